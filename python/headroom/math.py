"""Elementwise ops and reductions: the names of tf.math."""
from ._runtime.ops import (abs, add, add_n, divide, exp, log, maximum, minimum, multiply, negative, pow, reduce_max, reduce_mean, reduce_min, reduce_sum, sigmoid,
                           sqrt, square, subtract, tanh)

__all__ = ["abs", "add", "add_n", "divide", "exp", "log", "maximum", "minimum", "multiply", "negative", "pow", "reduce_max", "reduce_mean", "reduce_min",
           "reduce_sum", "sigmoid", "sqrt", "square", "subtract", "tanh"]
