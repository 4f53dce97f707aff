"""Options of a view: which rows and columns of a recording are shown, and for which part of the model.

    python profile_views.py [LOGDIR]
"""
import sys

import headroom as tf

logdir = sys.argv[1] if len(sys.argv) > 1 else "logdir"
with tf.profiler.experimental.Profile(logdir):
    x = tf.random.normal((512, 512))
    for layer in range(3):
        with tf.name_scope("encoder"), tf.name_scope(f"layer_{layer}"):
            x = tf.matmul(x, x)
    tf.reduce_sum(x).numpy()

options = tf.profiler.ProfileOptionBuilder.time_and_memory()
options["show_memory"] = True
options["show_input_output"] = True      # what ops read and wrote
options["min_bytes"] = 1024 * 1024       # rows of less than 1 MiB are hidden
profiler = tf.profiler.Profiler(logdir)  # reads what this process has recorded there
print(profiler.profile_model(options))
options["name_scope"] = "encoder/layer_1"
print(profiler.profile_name_scope(options))
print("saved:", profiler.profile_and_save(logdir, "profile", options))
