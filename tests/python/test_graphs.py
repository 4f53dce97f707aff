#!/usr/bin/env python3
"""Graphs, sessions, variables in scopes, run options and allocators in Python, as programs for TensorFlow 1 use them."""
import ctypes
import gc
import json
import threading
import unittest

from environment import need_numpy, run_python, use

np = need_numpy()
use()
import headroom as tf
from headroom.errors import AlreadyExists, InvalidArgument, InvalidHandle, OutOfMemory
v1 = tf.compat.v1


def oom_graph():
    """A product that needs more than a session of 4 MiB has, after some that fit."""
    graph = v1.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [64, 64], name="x")
        with tf.name_scope("grow"):
            y = x
            for _ in range(5):
                y = tf.matmul(y, x)
            big = tf.matmul(tf.reshape(tf.broadcast_to(tf.reshape(y, [1, 64, 64]), [64, 64, 64]), [4096, 64]), y)
            big = tf.matmul(big, tf.transpose(big))
    return graph, x, big


class Graphs(unittest.TestCase):
    def test_nothing_is_allocated_before_a_run(self):
        before = tf.experimental.get_num_allocs(0)
        with v1.Graph().as_default() as graph:
            a = v1.placeholder(tf.int64, shape=[3], name="a")
            b = v1.placeholder(tf.int64, shape=[3])
            c = a + b * 2
        self.assertEqual(tf.experimental.get_num_allocs(0), before)
        with v1.Session(graph=graph) as session:
            result = session.run(c, feed_dict={a: [1, 2, 3], b: np.array([4, 5, 6])})
            np.testing.assert_array_equal(result, [9, 12, 15])
            self.assertEqual(result.dtype, np.int64)
            self.assertEqual(session.run({"sum": c, "more": [a, (b,)]}, {a: [0, 0, 0], b: [1, 1, 1]})["more"][1][0].tolist(), [1, 1, 1])

    def test_ops_follow_their_inputs_into_a_graph(self):
        v1.reset_default_graph()
        a = v1.placeholder(tf.float32, [2], name="a")
        constant = tf.constant([10.0, 20.0])    # eager: becomes a constant of the graph
        c = a * 2.0 + constant
        self.assertIs(c.graph, v1.get_default_graph())
        with v1.Session() as session:
            self.assertEqual(session.run(c, {a: [1, 2]}).tolist(), [12, 24])
            self.assertEqual(session.run([constant, c], {a: [1, 2]})[0].tolist(), [10, 20])

    def test_without_eager_execution_every_op_is_in_the_default_graph(self):
        result = run_python("-c", "import headroom as tf\ntf.compat.v1.disable_eager_execution()\nc = tf.constant([1, 2]) + tf.constant([3, 4])\nprint(c.graph is not None)\n"
                                  "assert tf.experimental.get_num_allocs(0) == 0")
        self.assertEqual((result.stdout, result.stderr), ("True\n", ""))

    def test_mistakes(self):
        with v1.Graph().as_default() as graph:
            a = v1.placeholder(tf.float32, [3], name="a")
            with self.assertRaisesRegex(AlreadyExists, '"a"'):
                v1.placeholder(tf.float32, [3], name="a")
            b = a + 1.0
        for call, error, text in ((lambda: bool(b), TypeError, "no contents while"), (lambda: b.numpy(), InvalidArgument, "run it"),
                                  (lambda: v1.placeholder(tf.float32), ValueError, "shape is missing"), (lambda: v1.placeholder(tf.float32, [None, 3]), TypeError, "Every dimension"),
                                  (lambda: v1.placeholder("bananas", [3]), ValueError, "dtype is 'bananas'")):
            with self.assertRaisesRegex(error, text):
                call()
        with v1.Graph().as_default():
            with self.assertRaisesRegex(ValueError, "another graph"):
                b + 1.0
        session = v1.Session(graph=graph)
        for feed, error, text in ((None, InvalidArgument, 'placeholder "a" .*not fed'), ({a: [1, 2]}, ValueError, r"feed_dict\['a:0'\] has the shape \[2\]"), ({a: ["x"] * 3}, TypeError, "feed_dict"),
                                  ({"a": [1, 2, 3]}, TypeError, "has the key 'a'"), ([1], TypeError, "feed_dict is"), ({b: [1, 2, 3]}, InvalidArgument, "placeholder"),):
            with self.assertRaisesRegex(error, text):
                session.run(b, feed)
        with self.assertRaisesRegex(TypeError, "fetches contains 'b'"):
            session.run("b")
        with self.assertRaisesRegex(ValueError, "another graph"):
            session.run(v1.placeholder(tf.float32, [1]))
        with self.assertRaisesRegex(TypeError, "options is 3.*RunOptions"):
            session.run(b, {a: [1, 2, 3]}, options=3)
        session.close()
        session.close()
        with self.assertRaisesRegex(InvalidHandle, "the session is closed.*Session"):
            session.run(b, {a: [1, 2, 3]})
        with self.assertRaisesRegex(InvalidHandle, "closed"):
            session.__enter__()

    def test_threads_run_one_graph(self):
        with v1.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [32, 32])
            y = tf.reduce_sum(tf.matmul(x, x))
        results = []
        with v1.Session(graph=graph) as session:
            threads = [threading.Thread(target=lambda n=n: results.append((n, session.run(y, {x: np.full((32, 32), n)})))) for n in range(8)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        self.assertEqual({n: float(value) for n, value in results}, {n: 32.0 ** 3 * n * n for n in range(8)})

    def test_gradients_of_a_graph(self):
        with v1.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [2])
            w = v1.get_variable("w", [2], initializer=tf.keras.initializers.Constant(3.0))
            g = v1.gradients(tf.reduce_sum(w * x * x), [w, x])
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            self.assertEqual([each.tolist() for each in session.run(g, {x: [1, 2]})], [[1, 4], [6, 12]])


class Variables(unittest.TestCase):
    def test_scopes_name_them_and_closing_the_session_frees_them(self):
        v1.reset_default_graph()
        gc.collect()
        before = tf.memory_info()["current"]
        with v1.variable_scope("scope1"):
            first = v1.get_variable("var1", [100, 100], dtype=tf.float32)
            with v1.variable_scope("deep"):
                self.assertEqual(v1.get_variable("x", [1]).name, "scope1/deep/x:0")
        with v1.variable_scope("scope2"):
            second = v1.get_variable("var1", [100, 100], dtype=tf.float32)
        self.assertEqual((first.name, second.name), ("scope1/var1:0", "scope2/var1:0"))
        self.assertEqual(tf.memory_info()["current"], before)
        with v1.Session() as session:
            with self.assertRaisesRegex(InvalidArgument, '"scope1/var1" has no contents'):
                session.run(first)
            session.run(v1.global_variables_initializer())
            self.assertGreaterEqual(tf.memory_info()["current"], before + 80000)
            self.assertLess(abs(session.run(first)).max(), 1)
            session.run(first.assign_add(tf.ones([100, 100])))
            self.assertGreater(session.run(first).max(), 0.9)
            session.close()
        self.assertEqual(tf.memory_info()["current"], before)

    def test_collisions_and_reuse(self):
        with v1.Graph().as_default():
            with v1.variable_scope("s"):
                first = v1.get_variable("v", [2])
                with self.assertRaisesRegex(AlreadyExists, r"'s/v' exists already, as float32 \[2\].*reuse=True"):
                    v1.get_variable("v", [2])
            for reuse in (True, v1.AUTO_REUSE):
                with v1.variable_scope("s", reuse=reuse):
                    self.assertIs(v1.get_variable("v", [2]), first)
                    with self.assertRaisesRegex(ValueError, r"'s/v' is float32 \[2\], not float32 \[3\]"):
                        v1.get_variable("v", [3])
            with v1.variable_scope("s", reuse=True):
                with self.assertRaisesRegex(ValueError, "'s/other' does not exist"):
                    v1.get_variable("other", [2])
            with v1.variable_scope("s", reuse=v1.AUTO_REUSE):
                self.assertIsNot(v1.get_variable("other", [2]), first)
            with self.assertRaisesRegex(ValueError, "reuse is 3"):
                v1.variable_scope("s", reuse=3)
            with self.assertRaisesRegex(ValueError, "shape is missing.*'z'"):
                v1.get_variable("z")
            for wrong, error in ((3, TypeError), ("", ValueError)):
                with self.assertRaises(error):
                    v1.variable_scope(wrong)

    def test_contents_of_arrays(self):
        with v1.Graph().as_default() as graph:
            v = tf.Variable(np.arange(4, dtype=np.float32), name="v")
            add = v.assign_add([1, 1, 1, 1])
            double = v * 2.0
        with v1.Session(graph=graph) as session:
            session.run(v1.global_variables_initializer())
            session.run(add)
            self.assertEqual(session.run(double).tolist(), [2, 4, 6, 8])

    def test_eager_variables_free_their_memory_and_name(self):
        gc.collect()
        before = tf.memory_info()["current"]
        for _ in range(50):
            v = tf.Variable(tf.ones([100, 100]), name="again")
            self.assertEqual(v.name, "again:0")
            v.assign_sub(v * 0.5)
            self.assertEqual(v.numpy()[0, 0], 0.5)
            del v
        self.assertEqual(tf.memory_info()["current"], before)
        v, w = tf.Variable([1.0, -0.0], name="v"), tf.Variable([[1, 2]], dtype=tf.int64, name="v")
        self.assertEqual((v.name, w.name, w.dtype), ("v:0", "v_1:0", tf.int64))
        self.assertTrue(np.signbit(v.numpy()[1]))
        read = v.read_value()
        v.assign([5, 6])
        self.assertEqual((read.tolist()[0], (v + 1).tolist(), v[1].tolist()), (1, [6, 7], 6))
        for value, error in (([1, 2, 3], ValueError), (tf.constant([1, 2]), TypeError), ("x", TypeError)):
            with self.assertRaisesRegex(error, "value"):
                v.assign(value)
        with self.assertRaisesRegex(ValueError, "initial_value is missing"):
            tf.Variable()
        holders = tf.Variable(np.ones((256, 256), np.float32))
        from headroom import _library, _stats
        allocator = _library.HANDLE()
        _library.library.hr_allocator_get_default(b"GPU:0", ctypes.byref(allocator))
        self.assertGreaterEqual(_stats.allocator_holders(allocator, "tag").get("weights", 0), 256 * 256 * 4)
        del holders


class RunOptions(unittest.TestCase):
    def test_the_log_of_a_run_that_runs_out_of_memory(self):
        graph, x, big = oom_graph()
        options = v1.RunOptions(report_allocations_on_oom=True, allocation_log_buffer_size=100, allocation_log_sampling_rate=1.0)
        metadata = v1.RunMetadata()
        with v1.Session(graph=graph, memory_limit="4MiB") as session:
            with self.assertRaises(tf.errors.ResourceExhaustedError) as caught:
                session.run(big, {x: np.ones((64, 64))}, options=options, run_metadata=metadata)
        error = caught.exception
        self.assertIn("matmul", str(error))
        log = json.loads(tf.extract_allocation_log(metadata))
        self.assertEqual(json.loads(error.allocation_log), log)
        self.assertGreater(len(log), 3)
        for entry in log:
            self.assertTrue({"shape", "dtype", "op_name", "time"} <= set(entry), entry)
        self.assertIn("matmul", log[-1]["op_name"])
        self.assertIn("grow", error.report)
        self.assertIn("verdict", json.loads(error.report_json))

    def test_an_error_without_a_report_has_none(self):
        graph, x, big = oom_graph()
        with v1.Session(graph=graph, memory_limit="4MiB") as session:
            for options, has_log in ((v1.RunOptions(report_allocations_on_oom=True), True), (v1.RunOptions(report_tensor_allocations_upon_oom=True), True), (None, False)):
                metadata = v1.RunMetadata()
                with self.assertRaises(OutOfMemory) as caught:
                    session.run(big, {x: np.ones((64, 64))}, options=options, run_metadata=metadata)
                self.assertEqual((bool(metadata.allocation_log), bool(caught.exception.report)), (has_log, has_log))

    def test_a_traced_run_lists_its_ops(self):
        with v1.Graph().as_default() as graph:
            with tf.name_scope("layer"):
                y = tf.matmul(tf.ones([8, 8]), tf.ones([8, 8]))
        metadata = tf.RunMetadata()
        with v1.Session(graph=graph) as session:
            session.run(y, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
        self.assertIn(("matmul", "layer"), [(each["op"], each["scope"]) for each in metadata.ops])
        self.assertGreater(metadata.ns, 0)

    def test_bad_options_name_the_argument(self):
        for name, wrong, error in (("report_allocations_on_oom", 1, TypeError), ("allocation_log_buffer_size", 0, ValueError), ("allocation_log_buffer_size", 70000, ValueError),
                                   ("allocation_log_buffer_size", 1.5, TypeError), ("allocation_log_sampling_rate", 1.5, ValueError), ("allocation_log_sampling_rate", float("nan"), ValueError),
                                   ("allocation_log_sampling_rate", "0.1", TypeError), ("trace_level", 9, ValueError)):
            with self.assertRaisesRegex(error, f"{name} is .*(such as|give)"):
                v1.RunOptions(**{name: wrong})
        with self.assertRaisesRegex(TypeError, "run_metadata is"):
            tf.extract_allocation_log("log")
        with self.assertRaisesRegex(ValueError, "12 bananas.*16MiB"):
            v1.Session(memory_limit="12 bananas")


class CustomAllocator(v1.Allocator):
    def __init__(self, limit):
        super().__init__()
        self.limit, self.used, self.count, self.blocks, self.lock = limit, 0, 0, {}, threading.Lock()

    def allocate(self, size, flags, arena=None):
        with self.lock:
            if self.used + size > self.limit:
                raise RuntimeError("Out of memory in this allocator")
            block = np.zeros(size + flags, np.uint8)
            address = -(-block.ctypes.data // flags) * flags
            self.blocks[address] = block
            self.used += size
            self.count += 1
            return address

    def deallocate(self, ptr):
        with self.lock:
            block = self.blocks.pop(ptr)
            self.used -= len(block)


class Allocators(unittest.TestCase):
    def test_a_session_computes_in_the_memory_of_an_allocator_in_python(self):
        allocator = CustomAllocator(1 << 20)
        with v1.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [64, 64])
            y = tf.matmul(x, x)
            big = tf.ones([1024, 1024]) + tf.reduce_sum(x)
        graph._set_allocator(allocator)
        with v1.Session(graph=graph) as session:
            self.assertEqual(session.run(y, {x: np.ones((64, 64))})[0, 0], 64)
            self.assertGreaterEqual(allocator.count, 2)
            with self.assertRaisesRegex(OutOfMemory, "RuntimeError: Out of memory in this allocator") as caught:
                session.run(big, {x: np.ones((64, 64))})
            self.assertIs(caught.exception.__cause__, allocator.error)
            with self.assertRaises(TypeError) as caught:
                session.run(3)
            self.assertIsNone(caught.exception.__cause__)
        self.assertEqual(allocator.blocks, {})
        with self.assertRaisesRegex(TypeError, "allocator is 3"):
            graph._set_allocator(3)

    def test_one_without_methods_says_which(self):
        graph = v1.Graph()
        allocator = v1.Allocator()
        graph._set_allocator(allocator)
        with graph.as_default():
            y = tf.ones([4])
        with v1.Session(graph=graph) as session:
            with self.assertRaisesRegex(tf.Error, "needs a method allocate"):
                session.run(y)
        self.assertIn("needs a method allocate", str(allocator.error))

    def test_the_default_graphs_allocator_serves_eager_ops_too(self):
        program = ("import sys; sys.path.insert(0, 'tests/python'); sys.argv = ['x']\nimport headroom as tf, ctypes\n"
                   "class A(tf.compat.v1.Allocator):\n"
                   "    count = 0; blocks = {}\n"
                   "    def allocate(self, size, flags, arena=None):\n"
                   "        block = ctypes.create_string_buffer(size + flags); address = -(-ctypes.addressof(block) // flags) * flags\n"
                   "        self.blocks[address] = block; self.count += 1; return address\n"
                   "    def deallocate(self, ptr): del self.blocks[ptr]\n"
                   "old = tf.ones([2])\na = A(); tf.compat.v1.get_default_graph()._set_allocator(a)\n"
                   "x = tf.constant([1.0, 2.0]); y = x + old\nprint(y.tolist(), a.count > 0)")
        result = run_python("-c", program)
        self.assertEqual((result.stdout, result.stderr), ("[2.0, 3.0] True\n", ""))


if __name__ == "__main__":
    unittest.main()
