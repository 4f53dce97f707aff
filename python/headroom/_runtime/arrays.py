"""Arrays of Python and NumPy as bytes for the library, and back.

NumPy is only needed for arrays: lists and numbers work without it. Arrays that are not contiguous, or in another byte order, are copied.
"""
import array
import ctypes
import sys

from . import dtypes


def numpy():
    try:
        import numpy as module
        return module
    except ImportError:
        raise ImportError("arrays need NumPy: pip install numpy. Without it, Tensor.tolist() returns lists") from None


def _is_array(value):
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__") or hasattr(value, "__dlpack__")


def _is_buffer(value):
    try:
        memoryview(value).release()
    except TypeError:
        return False
    return True


class Data:
    """Elements in C order, with their dtype and dimensions."""

    def __init__(self, dtype, dims, raw):
        self.dtype = dtype
        self.dims = tuple(dims)
        self.raw = raw    # an object with a contiguous buffer

    def address(self):
        """For one call: a pointer that keeps nothing alive. None if there are no elements."""
        view = memoryview(self.raw)
        if not view.nbytes:
            return None
        if view.readonly:
            self.raw = bytearray(self.raw)
        return (ctypes.c_char * memoryview(self.raw).nbytes).from_buffer(self.raw)


def from_numpy(value, dtype, argument):
    np = numpy()
    if not isinstance(value, (np.ndarray, np.generic)):
        value = np.from_dlpack(value) if hasattr(value, "__dlpack__") and not hasattr(value, "__array__") else np.asarray(value)
    of = np.asarray(value)
    if of.dtype.kind not in "fiub":
        raise TypeError(f"{argument} is an array of {of.dtype}; give one of {', '.join(dtypes.BY_NAME)}, such as numpy.float32")
    if dtype is None:
        dtype = dtypes.BY_NAME.get(of.dtype.name)
        if dtype is None:
            raise TypeError(f"{argument} is an array of {of.dtype.name}, which the runtime does not have; convert it with array.astype('float32'), or give a dtype")
    wanted = np.dtype(dtype.as_numpy_dtype)
    copied = np.array(of, dtype=wanted, order="C", copy=True)
    return Data(dtype if dtype is not dtypes.bfloat16 else dtypes.float32, copied.shape, copied.reshape(-1).view(np.uint8) if copied.size else b"")


def _flatten(value, out, dims, depth, argument):
    if isinstance(value, (list, tuple)):
        if depth == len(dims):
            if out:
                raise ValueError(f"{argument} is not rectangular: a list is where a number was before. Give rows of equal length")
            dims.append(len(value))
        elif len(value) != dims[depth]:
            raise ValueError(f"{argument} is not rectangular: rows of {dims[depth]} and {len(value)} elements. Give rows of equal length")
        for each in value:
            _flatten(each, out, dims, depth + 1, argument)
    elif depth != len(dims):
        raise ValueError(f"{argument} is not rectangular: a number is where a list was before. Give rows of equal length")
    else:
        out.append(value)


def _kind(numbers, argument):
    for each in numbers:
        if not isinstance(each, (bool, int, float)):
            raise TypeError(f"{argument} contains {each!r}, a {type(each).__name__}; give numbers, such as [1.0, 2.0]")
    if any(isinstance(each, float) for each in numbers) or not numbers:
        return dtypes.float32
    return dtypes.bool_ if all(isinstance(each, bool) for each in numbers) else dtypes.int32


def from_list(value, dtype, argument):
    numbers, dims = [], []
    _flatten(value, numbers, dims, 0, argument)
    found = _kind(numbers, argument)
    dtype = dtype or found
    stored = dtypes.float32 if dtype is dtypes.bfloat16 else dtype
    if stored.kind != "float" and found.kind == "float":
        raise TypeError(f"{argument} has numbers with a fraction, but its dtype is {dtype.name}; give dtype=headroom.float32, or whole numbers")
    if stored.kind == "bool":
        numbers = [bool(each) for each in numbers]
    try:
        raw = array.array(stored.code, numbers)
    except OverflowError:
        raise ValueError(f"{argument} has a number outside the range of {stored.name}; give dtype=headroom.int64, or smaller numbers") from None
    return Data(stored, dims, raw)


def from_any(value, dtype=None, argument="value"):
    """The Data of numbers, lists, NumPy arrays and whatever has a buffer or __dlpack__. bfloat16 comes as float32."""
    module = sys.modules.get("numpy")
    if isinstance(value, (bool, int, float)):
        return from_list(value, dtype, argument)
    if _is_array(value) or (module and isinstance(value, (list, tuple)) and _contains_arrays(value, module)):
        return from_numpy(value, dtype, argument)
    if isinstance(value, (list, tuple)):
        return from_list(value, dtype, argument)
    if _is_buffer(value) and not isinstance(value, (bytes, bytearray)):
        with memoryview(value) as view:
            return from_list(view.tolist(), dtype or _of_format(view.format), argument)
    raise TypeError(f"{argument} is {value!r}, a {type(value).__name__}; give numbers, nested lists or an array, such as [1.0, 2.0]")


def _of_format(code):
    for each in dtypes.ALL:
        if each.code and each.code == code.lstrip("<=@") and each is not dtypes.bool_:
            return each
    return {"l": dtypes.int64, "?": dtypes.bool_}.get(code)


def _contains_arrays(value, module):
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (module.ndarray, module.generic))


def to_numpy(raw, dtype, dims):
    np = numpy()
    return np.frombuffer(raw, dtype=dtype.as_numpy_dtype).reshape(dims)


def to_list(raw, dtype, dims):
    numbers = array.array(dtype.code)
    numbers.frombytes(raw)
    values = [bool(each) for each in numbers] if dtype is dtypes.bool_ else list(numbers)
    for size in reversed(dims[1:]):
        values = [values[at:at + size] for at in range(0, len(values), size)] if size else []
    return values if dims else values[0]
