"""Memory in use now and at the peak, after a product of two matrices of 4 MiB on a GPU that is limited to 1 GiB."""
import headroom as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("GPU")[0],
    [tf.config.LogicalDeviceConfiguration(memory_limit=1024)])
a = tf.random.normal((1024, 1024))
b = tf.random.normal((1024, 1024))
c = tf.matmul(a, b)
info = tf.config.experimental.get_memory_info("GPU:0")
print(f"{info['current']:,} bytes in use, {info['peak']:,} at the peak")
