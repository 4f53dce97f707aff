"""Random tensors. With set_seed they are the same in every run, whatever the number of threads. In a function, the numbers are chosen when it is traced."""
from ._runtime.ops import random_normal as normal
from ._runtime.ops import random_uniform as uniform
from ._runtime.ops import set_seed

__all__ = ["normal", "set_seed", "uniform"]
