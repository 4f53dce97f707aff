"""Initial contents of variables: objects that take a shape and a dtype."""
import math

from .._runtime.variable import FULL, NORMAL, UNIFORM, Initial

__all__ = ["Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Ones", "RandomNormal", "RandomUniform", "Zeros", "get"]


def fans(shape):
    """Inputs and outputs of one unit, for kernels [in, out] and filters [out, in, height, width]."""
    if len(shape) < 2:
        return (shape[0] if shape else 1,) * 2
    if len(shape) == 4:
        return shape[1] * shape[2] * shape[3], shape[0] * shape[2] * shape[3]
    return math.prod(shape[:-1]), shape[-1]


class Constant:
    """One number everywhere."""

    def __init__(self, value=0.0):
        self.value = value

    def __call__(self, shape, dtype=None):
        return Initial(FULL, self.value)


class Zeros(Constant):
    """Zeros."""

    def __init__(self):
        super().__init__(0.0)


class Ones(Constant):
    """Ones."""

    def __init__(self):
        super().__init__(1.0)


class RandomNormal:
    """Normally distributed numbers."""

    def __init__(self, mean=0.0, stddev=0.05, seed=None):
        self.mean, self.stddev = mean, stddev

    def __call__(self, shape, dtype=None):
        return Initial(NORMAL, self.mean, self.stddev)


class RandomUniform:
    """Numbers between minval and maxval, all as likely."""

    def __init__(self, minval=-0.05, maxval=0.05, seed=None):
        self.minval, self.maxval = minval, maxval

    def __call__(self, shape, dtype=None):
        return Initial(UNIFORM, self.minval, self.maxval)


class GlorotUniform:
    """Uniform numbers within sqrt(6 / (inputs + outputs)): the default of kernels."""

    def __init__(self, seed=None):
        pass

    def __call__(self, shape, dtype=None):
        limit = math.sqrt(6 / sum(fans(shape)))
        return Initial(UNIFORM, -limit, limit)


class GlorotNormal(GlorotUniform):
    """Normally distributed numbers with the deviation sqrt(2 / (inputs + outputs))."""

    def __call__(self, shape, dtype=None):
        return Initial(NORMAL, 0, math.sqrt(2 / sum(fans(shape))))


class HeUniform(GlorotUniform):
    """Uniform numbers within sqrt(6 / inputs)."""

    def __call__(self, shape, dtype=None):
        limit = math.sqrt(6 / fans(shape)[0])
        return Initial(UNIFORM, -limit, limit)


class HeNormal(GlorotUniform):
    """Normally distributed numbers with the deviation sqrt(2 / inputs)."""

    def __call__(self, shape, dtype=None):
        return Initial(NORMAL, 0, math.sqrt(2 / fans(shape)[0]))


_BY_NAME = {"zeros": Zeros, "ones": Ones, "glorot_uniform": GlorotUniform, "glorot_normal": GlorotNormal, "he_uniform": HeUniform, "he_normal": HeNormal,
            "random_normal": RandomNormal, "random_uniform": RandomUniform}


def get(initializer):
    """The initializer of a name, or the one that is given."""
    if isinstance(initializer, str):
        if initializer not in _BY_NAME:
            raise ValueError(f"initializer is {initializer!r}; give one of {', '.join(_BY_NAME)}, such as 'zeros'")
        return _BY_NAME[initializer]()
    if not callable(initializer):
        raise TypeError(f"initializer is {initializer!r}; give a name such as 'zeros', or headroom.keras.initializers.Zeros()")
    return initializer
