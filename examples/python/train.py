"""Ten training steps of a dense network on a GPU that is limited to 1 GiB, recorded for TensorBoard.

    python train.py [LOGDIR]
    tensorboard --logdir LOGDIR
"""
import sys

import headroom as tf

logdir = sys.argv[1] if len(sys.argv) > 1 else "logdir"
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("GPU")[0],
    [tf.config.LogicalDeviceConfiguration(memory_limit=1024)])    # MiB

model = tf.keras.models.Sequential([
    tf.keras.layers.Dense(1024, activation="relu", input_shape=(1024,)),
    tf.keras.layers.Dense(1024, activation="relu"),
    tf.keras.layers.Dense(10, activation="softmax"),
])
optimizer = tf.keras.optimizers.Adam()
loss_fn = tf.keras.losses.CategoricalCrossentropy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


x = tf.random.normal((128, 1024))
y = tf.one_hot(tf.random.uniform((128,), 0, 10, dtype=tf.int32), depth=10)
with tf.profiler.experimental.Profile(logdir) as profile:
    losses = [float(train_step(x, y)) for _ in range(10)]
print(f"loss {losses[0]:.3f}, after {len(losses)} steps {losses[-1]:.3f}")
print(tf.config.experimental.get_memory_info("GPU:0"))
print("recorded:", profile.file)
