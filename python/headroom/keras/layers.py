"""Layers. A layer makes its variables when it first knows the shape of its input; the memory of its ops is named after it."""
from .._library import runtime
from .._runtime import context, dtypes, ops
from .._runtime.tensor import Tensor, shape_of
from .._runtime.variable import Initial, Variable
from . import activations, initializers

__all__ = ["Activation", "AveragePooling2D", "Conv2D", "Dense", "Embedding", "Flatten", "GELU", "Input", "Layer", "LayerNormalization", "MaxPooling2D", "ReLU",
           "Reshape", "Softmax"]

def _size(value, argument, least=1):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} is {value!r}; give a whole number, such as 128")
    if value < least:
        raise ValueError(f"{argument} is {value}; give {least} or more, such as 128")
    return value


class Layer:
    """Base class: build(input_shape) makes variables with add_weight, call(inputs) computes."""

    def __init__(self, name=None, trainable=True, dtype=None, input_shape=None, **options):
        if options:
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(options)}")
        self.name = name or context.name_for(type(self).__name__.lower(), self)
        self.trainable = trainable
        self.dtype = dtypes.as_dtype(dtype or dtypes.float32)
        self.input_shape = tuple(shape_of(input_shape, "input_shape")) if input_shape is not None else None    # without the batch
        self.built = False
        self._weights = []

    def add_weight(self, name="weight", shape=(), dtype=None, initializer="glorot_uniform", trainable=True):
        """A variable of the layer, for build()."""
        initial = initializers.get(initializer)(shape, dtype or self.dtype)
        given = {"shape": shape, "_initial": initial} if isinstance(initial, Initial) else {"initial_value": initial}
        weight = Variable(trainable=trainable, name=f"{self.name}/{name}", dtype=dtype or self.dtype, **given)
        self._weights.append(weight)
        return weight

    def build(self, input_shape):
        """Makes the variables. [input_shape] includes the batch, which may be None."""

    def call(self, inputs):
        """Computes the output; a subclass has its own."""
        raise NotImplementedError(f"{type(self).__name__} needs a method call(self, inputs)")

    def __call__(self, inputs, *args, **kwargs):
        if not hasattr(inputs, "read_value") and not isinstance(inputs, Tensor):
            inputs = ops.tensor_of(inputs, argument="inputs")
        with context.name_scope(self.name):
            self._build(tuple(inputs.shape))
            return self.call(inputs, *args, **kwargs)

    def _build(self, input_shape):
        if not self.built:
            self.build(input_shape)
            self.built = True

    def _layers(self):
        """The layers that are attributes of this one, also in lists."""
        for value in vars(self).values():
            for each in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(each, Layer):
                    yield each

    @property
    def weights(self):
        """All variables, also those of layers inside."""
        found = list(self._weights)
        found += [value for value in vars(self).values() if isinstance(value, Variable) and not any(value is each for each in found)]
        for layer in self._layers():
            found += layer.weights
        return found

    variables = weights

    @property
    def trainable_variables(self):
        """The variables that optimizers update."""
        return [each for each in self.weights if each.trainable] if self.trainable else []

    trainable_weights = trainable_variables

    @property
    def losses(self):
        """Empty: there are no regularizers."""
        return []

    def count_params(self):
        """The number of elements of all variables."""
        return sum(each.shape.num_elements() for each in self.weights)

    def get_weights(self):
        """The contents of all variables, as NumPy arrays."""
        return [each.numpy() for each in self.weights]

    def set_weights(self, weights):
        """Assigns arrays to all variables, in the order of get_weights()."""
        mine = self.weights
        if len(weights) != len(mine):
            raise ValueError(f"weights has {len(weights)} arrays, and {self.name!r} {len(mine)} variables; give one for each, as from get_weights()")
        for variable, value in zip(mine, weights):
            variable.assign(value)

    def compute_output_shape(self, input_shape):
        """Of a layer that keeps the shape."""
        return input_shape


class Input(Layer):
    """The shape of a Sequential model's inputs, without the batch."""

    def __init__(self, shape=None, name=None, **options):
        super().__init__(name, input_shape=shape, **options)

    def call(self, inputs):
        return inputs


InputLayer = Input


class Dense(Layer):
    """activation(inputs @ kernel + bias), along the last dimension."""

    def __init__(self, units, activation=None, use_bias=True, kernel_initializer="glorot_uniform", bias_initializer="zeros", **options):
        super().__init__(**options)
        self.units = _size(units, "units")
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer, self.bias_initializer = initializers.get(kernel_initializer), initializers.get(bias_initializer)

    def build(self, input_shape):
        if not input_shape or input_shape[-1] is None:
            raise ValueError(f"the input of {self.name!r} has the shape {list(input_shape)}; its last dimension must be known")
        self.kernel = self.add_weight("kernel", (input_shape[-1], self.units), initializer=self.kernel_initializer)
        self.bias = self.add_weight("bias", (self.units,), initializer=self.bias_initializer) if self.use_bias else None

    def call(self, inputs):
        if not self.use_bias:
            return self.activation(ops.matmul(inputs, self.kernel))
        fused = _FUSED.get(self.activation)
        inputs, kernel, bias = (ops.tensor_of(each) for each in (inputs, self.kernel, self.bias))
        # The sum, and most activations, are computed in the memory of the product.
        found = ops.apply(lambda x, w, b: (fused or _same)(runtime.hr_add(runtime.hr_matmul(x, w), b)), inputs, kernel, bias)
        return found if fused else self.activation(found)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)


def _same(value):
    return value


_FUSED = {activations.linear: _same, ops.relu: runtime.hr_relu, ops.gelu: runtime.hr_gelu, ops.tanh: runtime.hr_tanh, ops.softmax: runtime.hr_softmax}


class Activation(Layer):
    """An activation as a layer."""

    def __init__(self, activation, **options):
        super().__init__(**options)
        self.activation = activations.get(activation)

    def call(self, inputs):
        return self.activation(inputs)


class ReLU(Activation):
    """max(x, 0)."""

    def __init__(self, **options):
        super().__init__("relu", **options)


class GELU(Activation):
    """x times the normal distribution's probability of less than x."""

    def __init__(self, **options):
        super().__init__("gelu", **options)


class Softmax(Activation):
    """Probabilities, along the last dimension."""

    def __init__(self, **options):
        super().__init__("softmax", **options)


class Flatten(Layer):
    """[batch, ...] to [batch, elements]."""

    def call(self, inputs):
        return ops.reshape(inputs, [inputs.shape[0], -1])

    def compute_output_shape(self, input_shape):
        count = 1
        for size in input_shape[1:]:
            count *= size
        return (input_shape[0], count)


class Reshape(Layer):
    """The elements of each row of the batch in another shape."""

    def __init__(self, target_shape, **options):
        super().__init__(**options)
        self.target_shape = tuple(target_shape)

    def call(self, inputs):
        return ops.reshape(inputs, (inputs.shape[0], *self.target_shape))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self.target_shape)


class Embedding(Layer):
    """Rows of a table, selected by whole numbers."""

    def __init__(self, input_dim, output_dim, embeddings_initializer="random_uniform", **options):
        super().__init__(**options)
        self.input_dim, self.output_dim = _size(input_dim, "input_dim"), _size(output_dim, "output_dim")
        self.embeddings_initializer = initializers.get(embeddings_initializer)

    def build(self, input_shape):
        self.embeddings = self.add_weight("embeddings", (self.input_dim, self.output_dim), initializer=self.embeddings_initializer)

    def call(self, inputs):
        return ops.gather(self.embeddings, inputs)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.output_dim)


class LayerNormalization(Layer):
    """Along the last dimension."""

    def __init__(self, epsilon=1e-3, **options):
        super().__init__(**options)
        self.epsilon = epsilon

    def build(self, input_shape):
        self.gamma = self.add_weight("gamma", (input_shape[-1],), initializer="ones")
        self.beta = self.add_weight("beta", (input_shape[-1],), initializer="zeros")

    def call(self, inputs):
        return ops.layer_normalization(inputs, self.gamma, self.beta, self.epsilon)


# ---- images ----

class _Image(Layer):
    """[batch, height, width, channels], or [batch, channels, height, width] with data_format="channels_first", which is what the runtime computes in: the other is
    transposed."""

    def __init__(self, data_format="channels_last", **options):
        super().__init__(**options)
        if data_format not in ("channels_last", "channels_first"):
            raise ValueError(f"data_format is {data_format!r}; give 'channels_last' or 'channels_first'")
        self.last = data_format == "channels_last"

    def call(self, inputs):
        inputs = ops.tensor_of(inputs)
        if inputs.ndim != 4:
            raise ValueError(f"the input of {self.name!r} has the shape {list(inputs.shape)}; give images, such as [32, 28, 28, 1]")
        found = self._compute(ops.transpose(inputs, [0, 3, 1, 2]) if self.last else inputs)
        return ops.transpose(found, [0, 2, 3, 1]) if self.last else found


def _square(size, argument):
    both = size if isinstance(size, (list, tuple)) else (size, size)
    if len(both) != 2 or both[0] != both[1]:
        raise ValueError(f"{argument} is {size!r}; windows are square: give one number, such as 3")
    return _size(both[0], argument)


class Conv2D(_Image):
    """activation(convolution + bias), with square filters."""

    def __init__(self, filters, kernel_size, strides=1, padding="valid", activation=None, use_bias=True, kernel_initializer="glorot_uniform",
                 bias_initializer="zeros", **options):
        super().__init__(**options)
        self.filters, self.kernel_size, self.strides = _size(filters, "filters"), _square(kernel_size, "kernel_size"), _square(strides, "strides")
        if padding not in ("valid", "same") or (padding == "same" and (self.strides != 1 or self.kernel_size % 2 == 0)):
            raise ValueError(f"padding is {padding!r}; give 'valid', or 'same' with strides of 1 and an odd kernel_size")
        self.padding = self.kernel_size // 2 if padding == "same" else 0
        self.activation, self.use_bias = activations.get(activation), use_bias
        self.kernel_initializer, self.bias_initializer = initializers.get(kernel_initializer), initializers.get(bias_initializer)

    def build(self, input_shape):
        channels = input_shape[-1 if self.last else 1]
        self.kernel = self.add_weight("kernel", (self.filters, channels, self.kernel_size, self.kernel_size), initializer=self.kernel_initializer)
        self.bias = self.add_weight("bias", (self.filters, 1, 1), initializer=self.bias_initializer) if self.use_bias else None

    def _compute(self, inputs):
        """The convolution of images with channels first."""
        found = ops.conv2d_nchw(inputs, self.kernel, self.strides, self.padding)
        return self.activation(ops.add(found, self.bias) if self.use_bias else found)

    def compute_output_shape(self, input_shape):
        height, width = input_shape[1:3] if self.last else input_shape[2:4]
        out = [(size + 2 * self.padding - self.kernel_size) // self.strides + 1 for size in (height, width)]
        return (input_shape[0], *out, self.filters) if self.last else (input_shape[0], self.filters, *out)


class _Pool(_Image):
    def __init__(self, pool_size=2, strides=None, padding="valid", **options):
        super().__init__(**options)
        if padding != "valid":
            raise ValueError(f"padding is {padding!r}; give 'valid'")
        self.pool_size = _square(pool_size, "pool_size")
        self.strides = _square(strides, "strides") if strides is not None else self.pool_size

    def _compute(self, inputs):
        return self._pool(inputs, self.pool_size, self.strides)

    def compute_output_shape(self, input_shape):
        sizes = list(input_shape)
        for at in (1, 2) if self.last else (2, 3):
            sizes[at] = (sizes[at] - self.pool_size) // self.strides + 1
        return tuple(sizes)


class MaxPooling2D(_Pool):
    """The largest element of each window of an image."""

    _pool = staticmethod(ops.max_pool_nchw)


class AveragePooling2D(_Pool):
    """The mean of each window of an image."""

    _pool = staticmethod(ops.avg_pool_nchw)


MaxPool2D, AvgPool2D = MaxPooling2D, AveragePooling2D
