"""Ops that run when they are called: each of the three tensors has memory as soon as its line has run."""
import headroom as tf

tf.config.run_functions_eagerly(True)    # functions too
a = tf.constant([1, 2, 3], dtype=tf.int64)
b = tf.constant([4, 5, 6], dtype=tf.int64)
c = a + b
print(c.tolist(), tf.config.experimental.get_memory_info())
