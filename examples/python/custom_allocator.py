"""An allocator that is written in Python: its memory is NumPy arrays, and it refuses more than its limit. Headroom keeps statistics and traces of it."""
import numpy as np

import headroom as tf


class ArrayAllocator(tf.compat.v1.Allocator):
    def __init__(self, name, memory_limit):
        super().__init__()
        self.name = name
        self.memory_limit = memory_limit
        self.arrays = {}
        self.current_usage = self.max_usage = self.alloc_count = 0

    def allocate(self, size, flags, arena=None):
        """`flags` is the alignment that the address needs."""
        if self.current_usage + size > self.memory_limit:
            raise MemoryError(f"{self.name}: {size} bytes are above the limit")
        array = np.zeros(size + flags, dtype=np.uint8)
        address = -(-array.ctypes.data // flags) * flags
        self.arrays[address] = array, size
        self.alloc_count += 1
        self.current_usage += size
        self.max_usage = max(self.max_usage, self.current_usage)
        return address

    def deallocate(self, ptr):
        _, size = self.arrays.pop(ptr)
        self.current_usage -= size

    def get_name(self):
        return self.name

    def get_stats(self):
        return {"name": self.name, "current_usage": self.current_usage, "max_usage": self.max_usage, "alloc_count": self.alloc_count}


allocator = ArrayAllocator("Custom", 100 << 20)
tf.compat.v1.get_default_graph()._set_allocator(allocator)

a = tf.constant([1, 2, 3], dtype=tf.float32)
b = tf.constant([4, 5, 6], dtype=tf.float32)
c = a + b
with tf.compat.v1.Session() as sess:
    print(sess.run(c))
    print(allocator.get_stats())
