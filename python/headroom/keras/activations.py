"""Activations by name."""
from .._runtime.ops import gelu, relu, sigmoid, softmax, tanh

__all__ = ["gelu", "get", "linear", "relu", "sigmoid", "softmax", "tanh"]


def linear(x):
    """x itself."""
    return x


_BY_NAME = {"linear": linear, "relu": relu, "gelu": gelu, "tanh": tanh, "sigmoid": sigmoid, "softmax": softmax}


def get(activation):
    """The function of a name, a function, or None for linear."""
    if activation is None:
        return linear
    if callable(activation):
        return activation
    if activation not in _BY_NAME:
        raise ValueError(f"activation is {activation!r}; give one of {', '.join(_BY_NAME)}, such as 'relu', or a function")
    return _BY_NAME[activation]
