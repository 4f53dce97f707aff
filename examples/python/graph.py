"""The same ops in a graph, which has no memory until a session runs it."""
import headroom as tf

graph = tf.compat.v1.Graph()
with graph.as_default():
    a = tf.compat.v1.placeholder(tf.int64, shape=[3])
    b = tf.compat.v1.placeholder(tf.int64, shape=[3])
    c = a + b
print("built:", tf.config.experimental.get_memory_info()["peak"], "bytes")
with tf.compat.v1.Session(graph=graph) as sess:
    print(sess.run(c, feed_dict={a: [1, 2, 3], b: [4, 5, 6]}))
print("run:", tf.config.experimental.get_memory_info()["peak"], "bytes at the peak")
