#!/usr/bin/env python3
"""Functions, gradients, layers, losses and optimizers in Python: results against NumPy, memory that is freed, and what bad input says."""
import gc
import threading
import unittest

from environment import need_numpy, run_python, use

np = need_numpy()
use()
import headroom as tf
from headroom.errors import InvalidArgument, Unsupported

layers, losses, optimizers = tf.keras.layers, tf.keras.losses, tf.keras.optimizers


def in_use():
    gc.collect()
    return tf.memory_info()["current"]


def classifier():
    return tf.keras.Sequential([layers.Dense(32, activation="relu", input_shape=(16,)), layers.Dense(4, activation="softmax")])


def batch(seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(24, 16)).astype(np.float32)
    return tf.constant(x), tf.one_hot(np.argmax(x[:, :4], 1).astype(np.int32), 4)


class Functions(unittest.TestCase):
    def test_the_code_runs_once_for_each_signature(self):
        calls = []

        @tf.function
        def double(x, power=1):
            """Twice."""
            calls.append(x.shape)
            return {"twice": x * 2.0, "rest": (x, power, "text")}
        for _ in range(3):
            result = double(tf.constant([1.0, 2.0]))
            self.assertEqual((result["twice"].tolist(), result["rest"][0].tolist(), result["rest"][1:]), ([2, 4], [1, 2], (1, "text")))
        self.assertEqual(double(np.float32([[3]]))["twice"].tolist(), [[6]])
        self.assertEqual(double(tf.constant([1.0, 2.0]), power=2)["rest"][1], 2)
        self.assertEqual(len(calls), 3)
        self.assertEqual((double.__name__, double.__doc__), ("double", "Twice."))

    def test_all_assignments_run(self):
        total, count = tf.Variable([0.0, 0.0]), tf.Variable(0)

        @tf.function
        def add(x):
            total.assign_add(x)
            count.assign_add(1)
        for _ in range(3):
            self.assertIsNone(add(tf.constant([1.0, 2.0])))
        self.assertEqual((total.tolist(), count.tolist()), ([3, 6], 3))

    def test_eager_tensors_and_variables_of_the_outside_are_captured(self):
        outside, weight = tf.constant([10.0]), tf.Variable([2.0])

        @tf.function(name="scaled")
        def scaled(x):
            return x * weight + outside + 1.0
        self.assertEqual(scaled(tf.constant([1.0])).tolist(), [13])
        weight.assign([3.0])
        self.assertEqual(scaled(tf.constant([1.0])).tolist(), [14])

    def test_variables_are_made_once(self):
        made = []

        @tf.function
        def f(x):
            if not made:
                made.append(tf.Variable([1.0, 1.0]))
            return made[0].assign_add(x)
        self.assertEqual([f(tf.constant([1.0, 2.0])).tolist() for _ in range(2)], [[2, 3], [3, 5]])

    def test_functions_call_functions_and_methods(self):
        class Model:
            def __init__(self, factor):
                self.factor = factor

            @tf.function
            def scale(self, x):
                return x * self.factor
        inner = tf.function(lambda x: x + 1.0)
        outer = tf.function(lambda x: inner(x) * inner(x))
        self.assertEqual(outer(tf.constant([2.0])).tolist(), [9])
        two, three = Model(2.0), Model(3.0)
        self.assertEqual((two.scale(tf.constant([1.0])).tolist(), three.scale(tf.constant([1.0])).tolist()), ([2], [3]))

    def test_eager_functions_give_the_same(self):
        f = tf.function(lambda x: tf.nn.softmax(x @ x))
        x = tf.random.normal([8, 8])
        built = f(x).numpy()
        tf.config.run_functions_eagerly(True)
        try:
            self.assertTrue(tf.config.functions_run_eagerly())
            np.testing.assert_array_equal(f(x).numpy(), built)
        finally:
            tf.config.run_functions_eagerly(False)
        with self.assertRaisesRegex(TypeError, "run_eagerly is 1"):
            tf.config.run_functions_eagerly(1)

    def test_mistakes(self):
        with self.assertRaisesRegex(TypeError, "no contents while the graph is built"):
            tf.function(lambda x: 1 if x else 0)(tf.constant([1.0]))
        with self.assertRaisesRegex(InvalidArgument, 'op "matmul" in scope "wrong"'):
            def wrong(x):
                return x @ x
            tf.function(wrong)(tf.zeros([2, 3]))
        with self.assertRaisesRegex(TypeError, "func is 3"):
            tf.function(3)
        f = tf.function(lambda x: x)
        metadata = tf.RunMetadata()
        self.assertEqual(f.call_with_options(tf.RunOptions(trace_level=3), metadata, tf.ones([2])).tolist(), [1, 1])
        with self.assertRaisesRegex(ValueError, "give them to the outer run"):
            tf.function(lambda x: f.call_with_options(tf.RunOptions(), None, x))(tf.ones([2]))

    def test_graphs_and_captures_end_with_the_function(self):
        before = in_use()
        for _ in range(600):    # above the limit of graphs at a time
            big = tf.ones([64, 64])
            f = tf.function(lambda x, big=big: x + big)
            f(tf.ones([64, 64]))
        for size in range(1, 50):
            f(tf.ones([size, 64]) if size == 1 else tf.ones([64, 64]), tf.ones([64, 64]))
        del f, big
        self.assertEqual(in_use(), before)

    def test_threads_call_one_function(self):
        weight, results = tf.Variable(tf.ones([32, 32])), {}
        f = tf.function(lambda x: tf.reduce_sum(x @ weight))
        threads = [threading.Thread(target=lambda n=n: results.update({n: float(f(tf.fill([32, 32], float(n))))})) for n in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        self.assertEqual(results, {n: n * 32.0 ** 3 for n in range(8)})


class Gradients(unittest.TestCase):
    def test_they_are_those_of_calculus(self):
        x, w = tf.constant([1.0, 2.0, 3.0]), tf.Variable([2.0, 0.5, -1.0])

        def gradients():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(w * x * x) + tf.reduce_sum(tf.exp(w))
            return tape.gradient(y, {"x": x, "w": [w]})
        for found in (gradients(), tf.function(gradients)()):
            np.testing.assert_allclose(found["x"].numpy(), 2 * w.numpy() * x.numpy(), rtol=1e-6)
            np.testing.assert_allclose(found["w"][0].numpy(), x.numpy() ** 2 + np.exp(w.numpy()), rtol=1e-6)

    def test_targets_weights_and_zeros(self):
        x, other = tf.constant([1.0, 2.0]), tf.constant([5.0])
        with tf.GradientTape() as tape:
            y, z = x * x, x * 3.0
        first, none = tape.gradient([y, z], [x, other], output_gradients=[tf.constant([1.0, 10.0]), None])
        self.assertEqual((first.tolist(), none.tolist()), ([5, 43], [0]))

    def test_recomputed_segments_give_the_same(self):
        w = tf.Variable(tf.random.normal([16, 16]))
        layer = tf.recompute_grad(lambda x: tf.tanh(x @ w))

        def gradient(call):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(call(call(w))))
            return tape.gradient(loss, w).numpy()
        np.testing.assert_array_equal(gradient(layer), gradient(lambda x: tf.tanh(x @ w)))

    def test_mistakes(self):
        x = tf.constant([1.0])
        with self.assertRaisesRegex(Unsupported, "persistent"):
            tf.GradientTape(persistent=True)
        with tf.GradientTape() as tape:
            y = x * x
            with self.assertRaisesRegex(Unsupported, "inside the with of another"):
                with tf.GradientTape():
                    pass
        with self.assertRaisesRegex(TypeError, "sources contains 'x'"):
            tape.gradient(y, "x")
        self.assertEqual(tape.gradient(y, x).tolist(), [2])
        with self.assertRaisesRegex(InvalidArgument, "called already"):
            tape.gradient(y, x)
        with tf.GradientTape() as first:
            y = x * x
        with tf.GradientTape():
            pass
        with self.assertRaisesRegex(InvalidArgument, "another tape was begun since"):
            first.gradient(y, x)
        with self.assertRaises(ZeroDivisionError):
            with tf.GradientTape():
                1 / 0
        with tf.GradientTape() as tape:
            y = tf.cast(x, tf.int32)
        with self.assertRaisesRegex(InvalidArgument, "float"):
            tape.gradient(y, x)

    def test_a_tape_keeps_nothing_afterwards(self):
        x = tf.ones([64, 64])
        before = in_use()
        for use in (True, False):
            with tf.GradientTape() as tape:
                y = tf.exp(tf.exp(x * 0.1) * 0.1)
            if use:
                tape.gradient(y, x)
            del y, tape
            self.assertEqual(in_use(), before)


class Training(unittest.TestCase):
    def test_a_model_learns_the_same_eagerly_and_as_a_function(self):
        def train(wrap):
            tf.random.set_seed(1)
            model, optimizer, loss_fn = classifier(), optimizers.Adam(0.01), losses.CategoricalCrossentropy()
            x, y = batch()

            @wrap
            def step(x, y):
                with tf.GradientTape() as tape:
                    loss = loss_fn(y, model(x))
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables))
                return loss
            return [float(step(x, y)) for _ in range(60)], model.get_weights()
        eager, weights = train(lambda step: step)
        built, same = train(tf.function)
        self.assertEqual(eager, built)
        for a, b in zip(weights, same):
            np.testing.assert_array_equal(a, b)
        self.assertLess(eager[-1], eager[0] / 3)

    def test_nothing_is_left_of_a_model(self):
        def train():
            model, optimizer = classifier(), optimizers.Adam()
            x, y = batch()
            for _ in range(2):
                optimizer.minimize(lambda: losses.CategoricalCrossentropy()(y, model(x)), model.trainable_variables)
            return model.layers[0].name
        names = {train()}
        before = in_use()
        for _ in range(20):
            names.add(train())
        self.assertEqual(in_use(), before)
        self.assertEqual(len(names), 1)    # names are used again: their table has an end

    def test_adam_and_sgd_are_those_of_keras(self):
        for make, expected in ((lambda: optimizers.SGD(0.1), [1 - 0.1, 1 - 0.1 * 2]), (lambda: optimizers.Adam(0.1), [1 - 0.1, 1 - 0.2])):
            v, optimizer = tf.Variable([1.0]), make()
            for gradient, value in ((1.0, expected[0]), (1.0, expected[1])):
                optimizer.apply_gradients([(tf.constant([gradient]), v)])
                self.assertAlmostEqual(v.tolist()[0], value, places=5)
        v, optimizer = tf.Variable([1.0]), optimizers.SGD(0.1, momentum=0.9)
        for value in (0.9, 0.71):
            optimizer.apply_gradients([([1.0], v)])
            self.assertAlmostEqual(v.tolist()[0], value, places=5)
        optimizer.learning_rate = 0.5
        self.assertEqual(optimizer.learning_rate, 0.5)

    def test_losses_are_those_of_keras(self):
        p = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], np.float32)
        t = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
        expected = -np.log(p[[0, 1], [0, 1]])
        self.assertAlmostEqual(float(losses.CategoricalCrossentropy()(t, p)), expected.mean(), places=5)
        self.assertAlmostEqual(float(losses.SparseCategoricalCrossentropy()([0, 1], p)), expected.mean(), places=5)
        np.testing.assert_allclose(losses.CategoricalCrossentropy(reduction="none")(t, p).numpy(), expected, rtol=1e-5)
        logits = np.log(p) + 3
        for loss, labels in ((losses.CategoricalCrossentropy(from_logits=True), t), (losses.SparseCategoricalCrossentropy(from_logits=True), [0, 1])):
            self.assertAlmostEqual(float(loss(labels, logits)), expected.mean(), places=5)
        several = np.stack([t, t[::-1]], 1)    # two labels for each row
        both = -np.log(p[:, :2])
        self.assertAlmostEqual(float(losses.CategoricalCrossentropy()(several, p)), both.mean(), places=5)
        self.assertAlmostEqual(float(losses.MeanSquaredError()([[1.0, 2.0]], [[3.0, 2.0]])), 2)
        self.assertAlmostEqual(float(losses.MeanAbsoluteError(reduction="sum")([[1.0, 2.0]], [[3.0, 2.0]])), 1)
        with self.assertRaisesRegex(ValueError, r"y_true has the shape \[2\].*one_hot"):
            losses.CategoricalCrossentropy()([0.0, 1.0], p)
        with self.assertRaisesRegex(TypeError, "y_true is of float32"):
            losses.SparseCategoricalCrossentropy()([0.0, 1.0], p)

    def test_layers(self):
        images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
        model = tf.keras.Sequential([layers.Input(shape=(8, 8, 3)), layers.Conv2D(4, 3, padding="same", activation="relu"), layers.MaxPooling2D(), layers.AveragePooling2D(2),
                                     layers.Flatten(), layers.LayerNormalization(), layers.Dense(5, use_bias=False), layers.Reshape((5, 1)), layers.ReLU()])
        self.assertEqual((model(images).shape.as_list(), model.output_shape, len(model.trainable_variables)), ([2, 5, 1], (None, 5, 1), 5))
        one = layers.Conv2D(1, 3, use_bias=False, kernel_initializer="ones")
        np.testing.assert_allclose(one(images).numpy()[0, 0, 0, 0], images[0, :3, :3].sum(), rtol=1e-4)
        table = layers.Embedding(10, 4)
        np.testing.assert_array_equal(table(tf.constant([[1, 1], [2, 9]])).numpy()[0, 1], table.embeddings.numpy()[1])
        normal = layers.LayerNormalization()(images).numpy()
        np.testing.assert_allclose(normal.mean(-1), 0, atol=1e-5)
        dense = layers.Dense(3, activation="sigmoid", bias_initializer="ones")
        x = images[0, 0]
        np.testing.assert_allclose(dense(x).numpy(), 1 / (1 + np.exp(-(x @ dense.kernel.numpy() + 1))), rtol=1e-4)
        lines = []
        model.summary(lines.append)
        self.assertIn(f"{model.count_params():,}", lines[-1])
        weights = model.get_weights()
        model.set_weights([each * 0 for each in weights])
        self.assertEqual(np.abs(model(images).numpy()).max(), 0)

    def test_a_model_of_models(self):
        class Block(tf.keras.Model):
            def __init__(self):
                super().__init__()
                self.parts = [layers.Dense(8, activation="relu"), layers.Dense(8)]
                self.extra = tf.Variable([1.0])

            def call(self, x):
                return x + self.parts[1](self.parts[0](x)) * self.extra
        model = Block()
        self.assertEqual(model(tf.ones([2, 8])).shape, (2, 8))
        self.assertEqual(len(model.trainable_variables), 5)

    def test_mistakes(self):
        for make, error, text in ((lambda: layers.Dense("10"), TypeError, "units is '10'"), (lambda: layers.Dense(0), ValueError, "units is 0"), (lambda: layers.Dense(3, activation="bananas"), ValueError, "bananas.*relu"),
                                  (lambda: layers.Dense(3, kernel_initializer="bananas"), ValueError, "bananas.*zeros"), (lambda: layers.Dense(3, colour=1), TypeError, "Dense has no argument colour"),
                                  (lambda: layers.Conv2D(3, (2, 3)), ValueError, "square"), (lambda: layers.Conv2D(3, 3, data_format="x"), ValueError, "data_format"),
                                  (lambda: tf.keras.Sequential([3]), TypeError, "layers contains 3"), (lambda: layers.Layer()(tf.ones([1])), NotImplementedError, "call"),
                                  (lambda: optimizers.Adam("fast"), TypeError, "learning_rate is 'fast'"), (lambda: optimizers.SGD().apply_gradients([1]), TypeError, "give pairs|iterable"),
                                  (lambda: optimizers.SGD().apply_gradients([(1, 2)]), TypeError, "give pairs"), (lambda: optimizers.SGD().apply_gradients([]), ValueError, "no gradients"),
                                  (lambda: losses.Loss(reduction="x"), ValueError, "reduction is 'x'"), (lambda: layers.Conv2D(2, 3)(tf.ones([3, 3])), ValueError, "give images")):
            with self.assertRaisesRegex(error, text):
                make()


class LargeModels(unittest.TestCase):
    def test_training_past_the_memory_of_the_device_gives_the_same(self):
        program = ("import headroom as tf\n"
                   "import sys\n"
                   "if sys.argv[1] == 'lms': tf.config.experimental.set_lms_enabled(True)\n"
                   "tf.config.set_logical_device_configuration('GPU:0', [tf.config.LogicalDeviceConfiguration(memory_limit=int(sys.argv[2]))])\n"
                   "tf.random.set_seed(3)\n"
                   "model = tf.keras.Sequential([tf.keras.layers.Dense(512, activation='relu', input_shape=(512,)) for _ in range(6)] + [tf.keras.layers.Dense(10)])\n"
                   "optimizer = tf.keras.optimizers.SGD(0.1)\n"
                   "x = tf.random.normal([256, 512]); y = tf.random.uniform([256], 0, 10, dtype=tf.int32)\n"
                   "loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)\n"
                   "@tf.function\n"
                   "def step(x, y):\n"
                   "    with tf.GradientTape() as tape: loss = loss_fn(y, model(x))\n"
                   "    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))\n"
                   "    return loss\n"
                   "print([float(step(x, y)) for _ in range(4)])\n"
                   "print(tf.experimental.get_bytes_reclaimed(0) > 0)")
        whole, little = run_python("-c", program, "no", 256), run_python("-c", program, "lms", 12)
        self.assertEqual((whole.returncode, little.returncode), (0, 0), little.stderr)
        self.assertEqual(whole.stdout.split("\n")[:2], [little.stdout.split("\n")[0], "False"])
        self.assertEqual(little.stdout.split("\n")[1], "True")
        refused = run_python("-c", program, "no", 12)
        self.assertIn("OutOfMemory", refused.stderr)


if __name__ == "__main__":
    unittest.main()
