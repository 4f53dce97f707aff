"""Tensors of other libraries, through DLPack: the names of tf.experimental.dlpack. Contents are copied, because tensors of Headroom can move."""
from .._runtime import arrays
from .._runtime.ops import constant
from .._runtime.tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]


class _Capsule:
    """A capsule as an object with __dlpack__."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)    # kDLCPU


def to_dlpack(tensor):
    """A DLPack capsule with a copy of the contents in host memory."""
    if not isinstance(tensor, Tensor):
        tensor = constant(tensor, argument="tensor")
    return tensor.__dlpack__()


def from_dlpack(dlcapsule):
    """A tensor with a copy of the contents of a capsule, or of an object with __dlpack__, in host memory."""
    np = arrays.numpy()
    if type(dlcapsule).__name__ == "PyCapsule":
        dlcapsule = _Capsule(dlcapsule)
    if not hasattr(dlcapsule, "__dlpack__"):
        raise TypeError(f"dlcapsule is {dlcapsule!r}; give a DLPack capsule or an object with __dlpack__, such as a NumPy array or a PyTorch tensor")
    return constant(np.from_dlpack(dlcapsule), argument="dlcapsule")
