"""Models: layers of layers."""
from .layers import Input, Layer

__all__ = ["Model", "Sequential"]


class Model(Layer):
    """A layer whose attributes are layers; its method call(inputs) uses them."""

    @property
    def layers(self):
        """The layers that the model consists of."""
        return list(self._layers())

    def summary(self, print_fn=print):
        """A line for each layer: its name, kind and number of parameters."""
        for layer in self.layers:
            print_fn(f"{layer.name:24} {type(layer).__name__:20} {layer.count_params():>12,}")
        print_fn(f"{'total':45} {self.count_params():>12,}")


class Sequential(Model):
    """One layer after the other. If the first one has an input_shape, the variables are made at once."""

    def __init__(self, layers=None, name=None):
        super().__init__(name)
        self._stack = []
        self._shape = None    # of the last layer's output, if it is known
        for layer in layers or []:
            self.add(layer)

    def add(self, layer):
        """Appends a layer."""
        if not isinstance(layer, Layer):
            raise TypeError(f"layers contains {layer!r}, a {type(layer).__name__}; give layers, such as headroom.keras.layers.Dense(10)")
        if not self._stack and layer.input_shape is not None:
            self._shape = (None, *layer.input_shape)
        self._stack.append(layer)
        if self._shape is not None:
            layer._build(self._shape)
            self._shape = layer.compute_output_shape(self._shape)

    @property
    def layers(self):
        """The layers in order."""
        return [each for each in self._stack if not isinstance(each, Input)]

    def call(self, inputs):
        for layer in self._stack:
            inputs = layer(inputs)
        return inputs

    @property
    def output_shape(self):
        """The shape of the last layer's output, with None for the batch; None if it is not known yet."""
        return self._shape
