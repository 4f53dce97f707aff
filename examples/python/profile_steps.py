"""Looks at a recording while the program goes on: time and memory of each name scope, after some steps and at the end.

    python profile_steps.py [LOGDIR]
"""
import sys

import headroom as tf

logdir = sys.argv[1] if len(sys.argv) > 1 else "logdir"
profiler = tf.profiler.Profiler(logdir)    # a recording into the directory begins
weights = tf.Variable(tf.random.normal((256, 256)))
for step in range(1, 11):
    with tf.name_scope("square"):
        product = tf.matmul(weights, weights)
    with tf.name_scope("update"):
        weights.assign(product * 0.01)
    if step in (1, 10):
        print("step", step)
        print(profiler.profile(options=tf.profiler.ProfileOptionBuilder.time_and_memory()))
print("saved:", profiler.profile_and_save(logdir, "profile", options=tf.profiler.ProfileOptionBuilder.time_and_memory()))
profiler.close()
# headroom report FILE --export xplane --out logs; tensorboard --logdir logs    shows the recording in TensorBoard
