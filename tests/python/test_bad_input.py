#!/usr/bin/env python3
"""Bad input of Python programs: the exception names the argument, and shows a good value."""
import unittest

from environment import need_numpy, use

np = need_numpy()
use()
import headroom as tf
from headroom.errors import InvalidArgument, InvalidHandle, NoSuchDevice, OutOfMemory

v1 = tf.compat.v1


class BadInput(unittest.TestCase):
    def refuse(self, *cases):
        for call, error, text in cases:
            with self.subTest(text), self.assertRaisesRegex(error, text):
                call()

    def test_wrong_types(self):
        x = tf.ones([2, 3])
        self.refuse(
            (lambda: tf.ones("3"), TypeError, r"dims is '3'.*\[2, 3\]"), (lambda: tf.zeros([-3]), ValueError, r"dims is \[-3\].*\[2, 3\]"), (lambda: tf.fill([2], "x"), TypeError, "value is 'x'.*1.5|dtype"),
            (lambda: tf.fill([2], None, tf.int32), TypeError, "value is None.*1.5"), (lambda: tf.range("3"), TypeError, "limit is '3'.*10"), (lambda: tf.range(0, 3, 0), ValueError, "delta is 0.*1"),
            (lambda: tf.eye("3"), TypeError, "num_rows is '3'.*3"), (lambda: tf.eye(-1), ValueError, "num_rows is -1.*3"), (lambda: tf.random.normal([2], seed="a"), TypeError, "seed is 'a'.*1"),
            (lambda: tf.random.normal([2], stddev="a"), TypeError, "stddev is 'a'.*1.0"), (lambda: tf.random.uniform([2], "a", 3), TypeError, "minval is 'a'"),
            (lambda: tf.one_hot([1], depth="3"), TypeError, "depth is '3'.*10"), (lambda: tf.transpose(x, "ab"), TypeError, r"perm is 'a'.*\[1, 0\]"), (lambda: tf.concat([x, x], axis="a"), TypeError, "axis is 'a'.*0"),
            (lambda: tf.expand_dims(x, "a"), TypeError, "axis is 'a'.*0"), (lambda: tf.slice(x, ["a"], [1]), TypeError, "begin is 'a'.*2"), (lambda: tf.slice(x, [0], [1.5]), TypeError, "size is 1.5"),
            (lambda: tf.reduce_sum(x, axis="a"), ValueError, "axis is 'a'.*-2 to 1"), (lambda: tf.cast(x, "float99"), ValueError, "dtype is 'float99'.*float32"), (lambda: tf.matmul(x, "x"), TypeError, "right side of matmul is 'x'"),
            (lambda: x + None, TypeError, "right side of add is None"), (lambda: tf.Variable("a"), TypeError, "initial_value is 'a'"), (lambda: tf.Variable([1.0]).assign("a"), TypeError, "value is 'a'"),
            (lambda: tf.constant([[1, 2], [3]]), ValueError, "not rectangular.*equal length"), (lambda: tf.constant(np.ones(2, complex)), TypeError, "complex128.*float32"),
            (lambda: tf.recompute_grad(3), TypeError, "function is 3"), (lambda: tf.function(3), TypeError, "func is 3"), (lambda: tf.name_scope(3).__enter__(), TypeError, "name is 3.*encoder"),
            (lambda: tf.keras.layers.Dense(3, input_shape="ab"), TypeError, "input_shape is 'ab'"), (lambda: tf.start_trace(3), TypeError, "path is 3.*run.hrt"), (lambda: tf.start_trace("a\0b"), ValueError, "path contains a 0.*run.hrt"),
            (lambda: v1.Session(graph=3), TypeError, "graph is 3.*headroom.Graph"), (lambda: v1.Session(tf.Graph()), TypeError, "target is .*graph="))

    def test_devices_that_do_not_exist(self):
        self.refuse((lambda: tf.experimental.get_bytes_in_use(99), NoSuchDevice, "gpu_id is 99"), (lambda: tf.experimental.get_num_allocs(-1), NoSuchDevice, "gpu_id is -1.*such as 0"),
                    (lambda: tf.experimental.get_num_allocs("0"), TypeError, "gpu_id is '0'.*such as 0"), (lambda: tf.device("GPU:99").__enter__(), NoSuchDevice, "GPU:99.*GPU:0"),
                    (lambda: tf.memory_info(0), TypeError, "device is 0.*GPU:0"), (lambda: tf.config.set_logical_device_configuration("GPU:9", [tf.config.LogicalDeviceConfiguration(64)]), NoSuchDevice, "GPU:9"))

    def test_limits_that_are_no_sizes(self):
        self.refuse((lambda: v1.Session(memory_limit="12 bananas"), ValueError, "memory_limit is '12 bananas'.*16MiB"), (lambda: v1.Session(memory_limit=1.5), TypeError, "memory_limit is 1.5.*16MiB"),
                    (lambda: v1.Session(memory_limit="100TB"), InvalidArgument, "memory_limit is '100TB'.*above.*16MiB"), (lambda: v1.Session(memory_limit="1KiB"), InvalidArgument, "memory_limit is '1KiB'.*below one page.*16MiB"),
                    (lambda: tf.config.LogicalDeviceConfiguration("12 bananas"), ValueError, "memory_limit is '12 bananas'.*1GiB"))
        with self.assertRaises(InvalidArgument) as caught:
            v1.Session(memory_limit="1KiB")
        self.assertEqual(caught.exception.status, "HR_BAD_LIMIT")

    def test_a_closed_session(self):
        with tf.Graph().as_default() as graph:
            x = tf.ones([2])
            variable = v1.get_variable("v", [2])
        session = v1.Session(graph=graph)
        session.close()
        session.close()    # has no effect
        closed = r"the session is closed; open another one: headroom.compat.v1.Session\(\)"
        self.refuse((lambda: session.run(x), InvalidHandle, closed), (lambda: session.__enter__(), InvalidHandle, closed), (lambda: session.run(variable), InvalidHandle, closed))

    def test_arrays_that_are_not_contiguous_are_copied(self):
        a = np.arange(12, dtype=np.float32).reshape(3, 4)
        graph = tf.Graph()
        with graph.as_default():
            place = v1.placeholder(tf.float32, [4, 3])
            twice = place * 2
        with v1.Session(graph=graph) as session:
            np.testing.assert_array_equal(session.run(twice, {place: a.T}), a.T * 2)
        for view in (a.T, a[::2, 1::2], a[::-1], a.astype(">f4")):
            self.assertFalse(view.flags.c_contiguous and view.dtype.isnative)
            for made in (tf.constant(view), tf.Variable(view), tf.convert_to_tensor(view)):
                np.testing.assert_array_equal(made.numpy(), view)
            if view.dtype.isnative:    # DLPack has no other byte order
                np.testing.assert_array_equal(tf.experimental.dlpack.from_dlpack(view).numpy(), view)

    def test_more_than_there_is(self):
        self.refuse((lambda: tf.ones([1 << 40]), OutOfMemory, "4.0 TiB"))


if __name__ == "__main__":
    unittest.main()
