"""Two variables of one name in two scopes: their memory is there from the initializer on, until the session is closed."""
import headroom as tf


def in_use():
    return tf.config.experimental.get_memory_info("GPU:0")["current"]


with tf.compat.v1.variable_scope("scope1"):
    var1 = tf.compat.v1.get_variable("var1", [100, 100], dtype=tf.float32)
with tf.compat.v1.variable_scope("scope2"):
    var2 = tf.compat.v1.get_variable("var1", [100, 100], dtype=tf.float32)
print(var1.name, var2.name, "declared:", in_use(), "bytes")
with tf.compat.v1.Session() as sess:
    sess.run(tf.compat.v1.global_variables_initializer())
    print("initialised:", in_use(), "bytes")
print("closed:", in_use(), "bytes")
