#!/usr/bin/env python3
"""Tensors and ops in Python: results against NumPy, arrays in and out, memory that is freed, and what bad input says."""
import array
import gc
import threading
import unittest

from environment import need_numpy, run_python, use

np = need_numpy()
use()
import headroom as tf
from headroom.errors import InvalidArgument, OutOfMemory


def numbers(*shape, low=-2.0, high=2.0, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


class Ops(unittest.TestCase):
    def check(self, tensor, expected, **tolerance):
        got = tensor.numpy()
        self.assertEqual(got.shape, np.shape(expected))
        np.testing.assert_allclose(got, expected, **{"rtol": 2e-5, "atol": 2e-6, **tolerance})

    def test_operators_are_those_of_numpy(self):
        a, b = numbers(3, 4, seed=1), numbers(3, 4, low=0.5, seed=2)
        x, y = tf.constant(a), tf.constant(b)
        for got, expected in ((x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (-x, -a), (x + 1, a + 1), (2 * x, 2 * a), (1 - x, 1 - a), (x / 2, a / 2),
                              (3 / y, 3 / b), (x ** 2, a ** 2), (y ** 0.5, b ** 0.5), (abs(x), np.abs(a)), (x @ tf.transpose(y), a @ b.T), (x + b, a + b), (b - x, b - a),
                              (x + [1, 2, 3, 4], a + np.array([1, 2, 3, 4], np.float32))):
            self.check(got, expected)

    def test_integers_stay_integers(self):
        a = tf.constant([1, 2, 3], dtype=tf.int64)
        for got, expected in ((a + 1, [2, 3, 4]), (2 * a, [2, 4, 6]), (a - a, [0, 0, 0]), (a + (1 << 40), [(1 << 40) + n for n in (1, 2, 3)])):
            self.assertEqual(got.tolist(), expected)
            self.assertIs(got.dtype, tf.int64)
        with self.assertRaisesRegex(TypeError, "fraction.*int64"):
            a + 0.5

    def test_functions_are_those_of_numpy(self):
        a, b = numbers(2, 3, 4, seed=3), numbers(2, 3, 4, seed=4)
        positive = np.abs(a) + 0.5
        x, y = tf.constant(a), tf.constant(b)
        for got, expected in (
                (tf.exp(x), np.exp(a)), (tf.math.log(positive), np.log(positive)), (tf.sqrt(positive), np.sqrt(positive)), (tf.tanh(x), np.tanh(a)),
                (tf.nn.relu(x), np.maximum(a, 0)), (tf.sigmoid(x), 1 / (1 + np.exp(-a))), (tf.maximum(x, y), np.maximum(a, b)), (tf.minimum(x, y), np.minimum(a, b)),
                (tf.square(x), a * a), (tf.reduce_sum(x), a.sum()), (tf.reduce_mean(x, axis=1), a.mean(1)), (tf.reduce_max(x, axis=-1, keepdims=True), a.max(-1, keepdims=True)),
                (tf.reduce_min(x, axis=0), a.min(0)), (tf.reduce_sum(x, axis=[0, 2]), a.sum((0, 2))), (tf.reduce_sum(x, axis=[1, -1], keepdims=True), a.sum((1, 2), keepdims=True)),
                (tf.reshape(x, [6, -1]), a.reshape(6, 4)), (tf.transpose(x), a.T), (tf.transpose(x, [1, 0, 2]), a.transpose(1, 0, 2)), (tf.concat([x, y], 1), np.concatenate([a, b], 1)),
                (tf.concat([x] * 20, 0), np.concatenate([a] * 20, 0)), (tf.stack([x, y], axis=-1), np.stack([a, b], -1)), (tf.expand_dims(x, -1), a[..., None]),
                (tf.squeeze(tf.reshape(x, [1, 6, 1, 4])), a.reshape(6, 4)), (tf.broadcast_to(tf.constant([1.0, 2.0]), [3, 2]), [[1, 2]] * 3),
                (tf.slice(x, [0, 1, 1], [2, 2, -1]), a[:, 1:3, 1:]), (tf.add_n([x, y, x]), a + b + a), (tf.nn.softmax(x), np.exp(a) / np.exp(a).sum(-1, keepdims=True)),
                (tf.nn.log_softmax(x), np.log(np.exp(a) / np.exp(a).sum(-1, keepdims=True))), (tf.gather(x, [1, 0, 1]), a[[1, 0, 1]]), (tf.eye(3), np.eye(3)),
                (tf.one_hot([2, 0], 3), [[0, 0, 1], [1, 0, 0]]), (tf.matmul(x, y, transpose_b=True), a @ b.transpose(0, 2, 1)), (tf.zeros([2, 2]), np.zeros((2, 2))),
                (tf.ones_like(x), np.ones_like(a)), (tf.fill([2], 7.0), [7, 7]), (tf.cast(x, tf.int32), a.astype(np.int32)), (tf.range(2, 8, 2), [2, 4, 6]),
                (tf.range(0.0, 1.0, 0.25), [0, 0.25, 0.5, 0.75]), (tf.identity(x), a)):
            self.check(got, expected)
        logits, labels = numbers(5, 7, seed=5), np.array([1, 6, 0, 3, 3], np.int32)
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        self.check(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), -logs[np.arange(5), labels])
        self.check(tf.nn.softmax_cross_entropy_with_logits(labels=np.eye(7, dtype=np.float32)[labels], logits=logits), -logs[np.arange(5), labels])

    def test_an_index_is_that_of_numpy(self):
        a = numbers(3, 4, 5)
        x = tf.constant(a)
        for key in (0, -1, (1, 2), (slice(None), 1), (slice(1, 3), Ellipsis, slice(-2, None)), (Ellipsis, 0), (None, 1), (0, None, slice(2)), (slice(5, 9), 0)[1:]):
            np.testing.assert_array_equal(x[key].numpy(), a[key])
        np.testing.assert_array_equal(np.stack([row.numpy() for row in x]), a)
        for key, error in ((3, IndexError), (-4, IndexError), ((0, 0, 0, 0), IndexError), (slice(None, None, 2), ValueError), ("a", TypeError), (1.5, TypeError), (True, TypeError)):
            with self.assertRaises(error):
                x[key]

    def test_random_numbers_follow_the_seed(self):
        def draw():
            tf.random.set_seed(5)
            return tf.random.normal([100, 100], mean=3.0, stddev=2.0).numpy(), tf.random.uniform([1000], 0, 10, dtype=tf.int32).numpy()
        (first, whole), (second, _) = draw(), draw()
        np.testing.assert_array_equal(first, second)
        self.assertAlmostEqual(first.mean(), 3, delta=0.1)
        self.assertAlmostEqual(first.std(), 2, delta=0.1)
        self.assertEqual((whole.min(), whole.max()), (0, 9))
        self.assertFalse((tf.random.normal([8]).numpy() == tf.random.normal([8]).numpy()).all())
        with self.assertRaisesRegex(ValueError, "maxval is missing"):
            tf.random.uniform([3], dtype=tf.int32)
        with self.assertRaisesRegex(TypeError, "seed is 'a'"):
            tf.random.set_seed("a")


class Arrays(unittest.TestCase):
    def test_every_dtype_comes_back(self):
        for name in ("float32", "float64", "int32", "int64", "uint8", "bool"):
            expected = np.array([[0, 1], [2, 3]]).astype(name)
            tensor = tf.constant(expected)
            self.assertEqual((tensor.dtype.name, tensor.numpy().dtype.name, tensor.shape.as_list()), (name, name, [2, 2]))
            np.testing.assert_array_equal(tensor.numpy(), expected)
            self.assertEqual(tensor.tolist(), expected.tolist())
            self.assertTrue(tensor.dtype == name and tensor.dtype == np.dtype(name) and tensor.dtype != "bananas")
        half = tf.constant([1.0, 2.0, 3.14159], dtype=tf.bfloat16)
        self.assertIs(half.dtype, tf.bfloat16)
        np.testing.assert_allclose(half.numpy(), [1, 2, 3.140625])

    def test_python_numbers_choose_their_dtype(self):
        self.assertEqual([tf.constant(value).dtype.name for value in (1, 1.0, True, [1, 2.5], [[True, False]], [])], ["int32", "float32", "bool", "float32", "bool", "float32"])
        self.assertEqual(tf.constant(3, shape=[2, 2]).tolist(), [[3, 3], [3, 3]])
        self.assertEqual(tf.constant([1, 2, 3, 4], shape=[2, 2]).tolist(), [[1, 2], [3, 4]])
        self.assertEqual((float(tf.constant(1.5)), int(tf.constant(3)), bool(tf.constant([0]))), (1.5, 3, False))
        self.assertEqual([10, 20, 30][tf.constant(2)], 30)

    def test_arrays_that_are_not_contiguous_are_copied(self):
        a = np.arange(24, dtype=np.float64).reshape(4, 6)
        for view in (a.T, a[::2, 1::2], a[::-1], np.asfortranarray(a), a.astype(">f8"), a[:0], np.broadcast_to(a[0], (3, 6))):
            tensor = tf.constant(view)
            np.testing.assert_array_equal(tensor.numpy(), view)
        a[:] = 0
        self.assertEqual(tensor.numpy().max(), 5)    # it has a copy

    def test_buffers_and_other_arrays(self):
        self.assertEqual(tf.constant(array.array("d", [1, 2])).dtype, tf.float64)
        self.assertEqual(tf.constant(memoryview(bytes(6)).cast("B", (2, 3))).shape, (2, 3))
        self.assertEqual(tf.constant([np.float32(1), np.float32(2)]).tolist(), [1, 2])
        self.assertEqual(np.asarray(tf.constant([1, 2])).tolist(), [1, 2])
        self.assertEqual((np.array([1.0, 2.0], np.float32) + tf.constant([1.0, 1.0])).tolist(), [2, 3])

    def test_dlpack_goes_both_ways(self):
        from headroom.experimental import dlpack
        tensor = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        np.testing.assert_array_equal(np.from_dlpack(tensor), tensor.numpy())
        np.testing.assert_array_equal(dlpack.from_dlpack(dlpack.to_dlpack(tensor)).numpy(), tensor.numpy())
        view = np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2]
        np.testing.assert_array_equal(tf.experimental.dlpack.from_dlpack(view).numpy(), view)
        for wrong in (3, "capsule", [1.0]):
            with self.assertRaisesRegex(TypeError, "dlcapsule is"):
                dlpack.from_dlpack(wrong)

    def test_bad_arrays_name_the_argument(self):
        for wrong, error, text in (("abc", TypeError, "value is 'abc'"), (None, TypeError, "value is None"), ([1, "a"], TypeError, "contains 'a'"), ([[1], [2, 3]], ValueError, "not rectangular"),
                                   ([1, [2]], ValueError, "not rectangular"), ([[1], 2], ValueError, "not rectangular"), (np.array(["x"]), TypeError, "array of <U1"),
                                   (np.array([1j]), TypeError, "complex128"), (np.array([1], np.int16), TypeError, "int16.*astype"), (1 << 40, ValueError, "outside the range of int32"), ({1: 2}, TypeError, "value is")):
            with self.assertRaisesRegex(error, text):
                tf.constant(wrong)
        for wrong in ("float", "bananas"):
            with self.assertRaisesRegex(ValueError, "dtype is .*float32"):
                tf.constant(1, dtype=wrong)
        with self.assertRaisesRegex(TypeError, "dtype is"):
            tf.cast([1.0], object())
        for wrong, error in (([2, 1.5], TypeError), ([-5], ValueError), ("ab", TypeError), (None, TypeError)):
            with self.assertRaisesRegex(error, "such as"):
                tf.zeros(wrong)


class Mistakes(unittest.TestCase):
    def test_shapes_that_do_not_match_are_named(self):
        with self.assertRaisesRegex(InvalidArgument, r'op "matmul".*\[2,3\]'):
            tf.matmul(tf.zeros([2, 3]), tf.zeros([2, 3]))
        with self.assertRaisesRegex(InvalidArgument, 'op "add" in scope "encoder"'):
            with tf.name_scope("encoder"):
                tf.zeros([2]) + tf.zeros([3])
        with self.assertRaisesRegex(InvalidArgument, "float32 and int32"):
            tf.zeros([2]) + tf.zeros([2], tf.int32)
        with self.assertRaisesRegex(ValueError, "axis is 5, but the tensor has 2"):
            tf.reduce_sum(tf.zeros([2, 2]), axis=5)
        with self.assertRaisesRegex(TypeError, "only one element"):
            bool(tf.zeros([2]))

    def test_an_index_out_of_range_is_reported_when_it_is_fetched(self):
        rows = tf.gather(tf.zeros([3, 2]), [7])
        with self.assertRaisesRegex(InvalidArgument, "7"):
            rows.numpy()
        self.assertEqual(tf.gather(tf.zeros([3, 2]), [0]).tolist(), [[0, 0]])

    def test_a_request_that_does_not_fit_is_an_error(self):
        with self.assertRaises(OutOfMemory) as caught:
            tf.zeros([1 << 16, 1 << 16])
        self.assertIn("16.0 GiB", str(caught.exception))
        self.assertIsInstance(caught.exception, MemoryError)


class Memory(unittest.TestCase):
    def test_a_tensor_frees_its_memory(self):
        gc.collect()
        before = tf.memory_info()["current"]
        tensors = [tf.ones([256, 256]) for _ in range(10)]
        self.assertEqual(tf.memory_info()["current"], before + 10 * 256 * 256 * 4)
        alias = tf.reshape(tensors[0], [-1])
        del tensors
        self.assertEqual(tf.memory_info()["current"], before + 256 * 256 * 4)    # the alias shares it
        del alias
        self.assertEqual(tf.memory_info()["current"], before)

    def test_expressions_leave_nothing(self):
        x = tf.ones([64, 64])
        before = tf.memory_info()["current"]
        for _ in range(200):
            y = tf.nn.softmax(x @ x + 1.0)[3:5] * 2.0
            with self.assertRaises(InvalidArgument):
                tf.matmul(y, y)
        del y
        self.assertEqual(tf.memory_info()["current"], before)

    def test_threads_share_the_session(self):
        results = {}

        def work(number):
            x = tf.fill([64, 64], float(number))
            for _ in range(20):
                x = x * 0.5 + number * 0.5
            results[number] = x.numpy()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        self.assertEqual({number: (value == number).all() for number, value in results.items()}, {number: True for number in range(6)})

    def test_devices(self):
        with tf.device("/CPU:0"):
            x = tf.ones([128, 128])
        self.assertGreaterEqual(tf.memory_info("CPU:0")["current"], 128 * 128 * 4)
        y = tf.ones([128, 128])
        with tf.device("GPU:0"):
            self.assertEqual((x + y).numpy()[0, 0], 2)    # copied
        with self.assertRaisesRegex(tf.NoSuchDevice, "GPU:9"):
            with tf.device("GPU:9"):
                pass


class Interpreter(unittest.TestCase):
    def test_its_end_is_quiet_with_everything_alive(self):
        program = ("import headroom as tf, threading\n"
                   "keep = [tf.ones([8]), tf.Variable([1.0]), tf.keras.layers.Dense(3, input_shape=(2,)), tf.keras.optimizers.Adam()]\n"
                   "model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(2,))])\n"
                   "graph = tf.Graph()\n"
                   "with graph.as_default(): p = tf.placeholder(tf.float32, [2]) * 2.0\n"
                   "session = tf.Session(graph=graph)\n"
                   "f = tf.function(lambda x: model(x))\n"
                   "keep.append(f(tf.ones([1, 2])))\n"
                   "tape = tf.GradientTape()\ntape.__enter__()\ntf.ones([2]) * 2.0\n"
                   "cycle = [keep]; cycle.append(cycle)\nprint('end')")
        result = run_python("-c", program)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "end\n", ""))

    def test_lists_work_without_numpy(self):
        program = ("import sys; sys.modules['numpy'] = None\nimport headroom as tf\n"
                   "print((tf.constant([[1.0, 2.0]]) + 1).tolist(), tf.constant([1, 2], dtype=tf.int64).tolist())\n"
                   "try: tf.ones([2]).numpy()\nexcept ImportError as e: print(e)")
        result = run_python("-c", program)
        self.assertEqual(result.stderr, "")
        self.assertIn("[[2.0, 3.0]] [1, 2]", result.stdout)
        self.assertIn("pip install numpy", result.stdout)


if __name__ == "__main__":
    unittest.main()
