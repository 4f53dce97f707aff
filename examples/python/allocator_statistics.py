"""The allocator's statistics of a GPU, one call for each, before and after a matrix product.

    python allocator_statistics.py [GPU_ID]
"""
import sys

import headroom as tf

STATISTICS = [
    tf.experimental.get_num_allocs, tf.experimental.get_bytes_in_use, tf.experimental.get_peak_bytes_in_use, tf.experimental.get_largest_alloc_size,
    tf.experimental.get_bytes_limit, tf.experimental.get_bytes_reserved, tf.experimental.get_peak_bytes_reserved,
    tf.experimental.get_bytes_reservable_limit,
    # Large Model Support
    tf.experimental.get_bytes_inactive, tf.experimental.get_bytes_active, tf.experimental.get_peak_bytes_active, tf.experimental.get_bytes_reclaimed,
    tf.experimental.get_num_single_reclaims, tf.experimental.get_num_full_reclaims, tf.experimental.get_num_defragmentations,
    tf.experimental.get_bytes_defragged,
]

gpu_id = int(sys.argv[1]) if len(sys.argv) > 1 else 0
before = [get(gpu_id) for get in STATISTICS]
with tf.device(f"GPU:{gpu_id}"):
    a = tf.random.normal((512, 512))
    b = tf.matmul(a, a)
for get, old in zip(STATISTICS, before):
    print(f"{get.__name__:28} {old:>14,} {get(gpu_id):>14,}")
