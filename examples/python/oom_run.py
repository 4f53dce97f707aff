"""A run that does not fit in its session's memory, and what was allocated before it failed: the log in the error and in the metadata of the run."""
import json

import headroom as tf
from headroom import extract_allocation_log

options = tf.compat.v1.RunOptions(report_allocations_on_oom=True,
                                  allocation_log_buffer_size=100,      # the last 100 allocations of each thread
                                  allocation_log_sampling_rate=1.0)    # 0.1: about one of ten
run_metadata = tf.compat.v1.RunMetadata()
graph = tf.compat.v1.Graph()
with graph.as_default():
    x = tf.compat.v1.placeholder(tf.float32, shape=[256, 256], name="x")
    layers = [x]
    for _ in range(40):
        layers.append(tf.matmul(layers[-1], x, name="layer"))

with tf.compat.v1.Session(graph=graph, memory_limit="4MiB") as sess:
    try:
        sess.run(layers, feed_dict={x: [[1.0] * 256] * 256}, options=options, run_metadata=run_metadata)
    except tf.errors.ResourceExhaustedError as e:
        print("Out of memory:", str(e).split("\n")[0])
        allocation_log = extract_allocation_log(run_metadata)

for allocation in json.loads(allocation_log)[-3:]:
    print(f"{allocation['op_name']} allocated {allocation['dtype']} {allocation['shape']} at {allocation['time']}")
