"""Tensors: values of an eager session, or of a graph.

An eager Tensor keeps its value until the object is gone. A Tensor of a graph is a handle of a node; the graph lives as long as one of them.
"""
import ctypes

from .._library import HANDLE, encoded, exception, library, runtime  # noqa: F401
from ..errors import InvalidArgument
from . import arrays, context, dtypes

DONE = (1 << 64) - 1    # HR_DONE


class TensorShape(tuple):
    """The dimensions of a tensor: a tuple of ints."""

    def as_list(self):
        """The dimensions as a list."""
        return list(self)

    @property
    def rank(self):
        """The number of dimensions."""
        return len(self)

    def num_elements(self):
        """The product of the dimensions."""
        count = 1
        for size in self:
            count *= size
        return count


def shape_of(dims, argument="shape"):
    """A TensorShape of ints, or an int."""
    if isinstance(dims, int) and not isinstance(dims, bool):
        dims = (dims,)
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    try:
        values = tuple(each.__index__() for each in dims)
    except (AttributeError, TypeError):
        raise TypeError(f"{argument} is {dims!r}; give whole numbers, such as [2, 3]. Every dimension must be known") from None
    if any(each < -1 for each in values):
        raise ValueError(f"{argument} is {list(values)}; a dimension cannot be negative: give one such as [2, 3]")
    return TensorShape(values)


def whole(value, argument, example):
    """An int of a whole number of any kind."""
    if isinstance(value, (bool, str)) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument} is {value!r}; give a whole number, such as {example}")
    return value.__index__()


def number(value, argument, example):
    """A float of a number of any kind."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{argument} is {value!r}; give a number, such as {example}")
    return float(value)


def c_dims(dims):
    return (ctypes.c_int64 * len(dims))(*dims) if dims else None


class Tensor:
    """An array on the device, or a node of a graph. Operators and NumPy's conversions work on it."""

    __slots__ = ("_id", "graph", "session", "_dtype", "_shape", "_name", "__weakref__")
    __array_priority__ = 100    # NumPy's operators leave theirs to this class

    def __init__(self, value, graph=None, session=0, name=None):
        self._id = value
        self.graph = graph
        self.session = session
        self._dtype = self._shape = None
        self._name = name

    def __del__(self, release=runtime.hr_value_release):
        if self.graph is None and self._id:
            release(self._id)

    # ---- properties ----

    @property
    def dtype(self):
        """The type of the elements, such as headroom.float32."""
        if self._dtype is None:
            self._dtype = dtypes.BY_NUMBER.get(runtime.hr_value_dtype(self._id))
            if self._dtype is None:
                raise exception(library.hr_last_status())
        return self._dtype

    @property
    def shape(self):
        """The dimensions, a TensorShape."""
        if self._shape is None:
            rank = runtime.hr_value_rank(self._id)
            if rank < 0:
                raise exception(library.hr_last_status())
            self._shape = TensorShape(runtime.hr_value_dim(self._id, at) for at in range(rank))
        return self._shape

    @property
    def ndim(self):
        """The number of dimensions."""
        return len(self.shape)

    @property
    def name(self):
        """The name of a tensor of a graph."""
        if self.graph is None:
            raise AttributeError("a tensor outside of graphs has no name; with headroom.name_scope('encoder') names the memory of the ops inside")
        return self._name or f"value_{self._id & 0xffffffff}:0"

    @property
    def op(self):
        """The operation of a graph that computes the tensor."""
        from .graph import Operation
        return Operation(self._id, self.graph, self._name)

    def get_shape(self):
        """The same as shape."""
        return self.shape

    def set_shape(self, shape):
        """Checks that the tensor has this shape. All shapes are known."""
        if tuple(shape_of(shape)) != tuple(self.shape):
            raise ValueError(f"shape is {list(shape)}, but the tensor has the shape {list(self.shape)}; give that one")

    # ---- contents ----

    def fetch(self):
        """(bytes, dtype, dims) of the contents; waits until they are computed. bfloat16 comes as float32."""
        if self.graph is not None:
            raise InvalidArgument("a tensor of a graph has no contents while the graph is built; run it: headroom.Session().run(tensor)")
        if not context.is_open(self.session):
            raise exception_closed()
        value = self
        if self.dtype is dtypes.bfloat16:
            from . import ops
            value = ops.cast(self, dtypes.float32)
        return fetch(value._id, value.dtype, value.shape)

    def numpy(self):
        """The contents as a NumPy array."""
        return arrays.to_numpy(*self.fetch())[()]

    def tolist(self):
        """The contents as nested lists; a number for a scalar."""
        return arrays.to_list(*self.fetch())

    def __array__(self, dtype=None, copy=None):
        found = arrays.to_numpy(*self.fetch())
        return found if dtype is None else found.astype(dtype)

    def __dlpack__(self, **options):
        """A copy of the contents in host memory."""
        return arrays.to_numpy(*self.fetch()).__dlpack__(**{name: value for name, value in options.items() if name != "stream"})

    def __dlpack_device__(self):
        return (1, 0)    # kDLCPU

    def _scalar(self, what):
        if self.graph is not None:
            raise TypeError(f"a tensor of a graph is used as {what}, but it has no contents while the graph is built. Inside a function, compute with "
                            "headroom's ops, or headroom.config.run_functions_eagerly(True)")
        if self.shape.num_elements() != 1:
            raise TypeError(f"a tensor of the shape {list(self.shape)} is used as {what}; only one element can be: take one, such as tensor[0]")
        values = self.tolist()
        while isinstance(values, list):
            values = values[0]
        return values

    def __bool__(self):
        return bool(self._scalar("a truth value"))

    def __float__(self):
        return float(self._scalar("a float"))

    def __int__(self):
        return int(self._scalar("an int"))

    def __index__(self):
        if self.dtype.kind != "int":
            raise TypeError(f"a tensor of {self.dtype.name} is used as an index; cast it to headroom.int32")
        return int(self._scalar("an index"))

    def __len__(self):
        if not self.shape:
            raise TypeError("a scalar tensor has no length")
        return self.shape[0]

    def __iter__(self):
        return (self[at] for at in range(len(self)))

    def __repr__(self):
        if self.graph is not None:
            return f"<headroom.Tensor {self.name!r} shape={list(self.shape)} dtype={self.dtype.name}>"
        return f"<headroom.Tensor shape={list(self.shape)} dtype={self.dtype.name}, numbers={_short(self)}>"

    def __getitem__(self, key):
        from . import ops
        return ops.item(self, key)


def _short(tensor):
    if tensor.shape.num_elements() > 100:
        return "..."
    try:
        return str(tensor.tolist())
    except Exception as error:    # of an op that failed while it ran
        return f"<{error}>"


def exception_closed():
    from ..errors import InvalidHandle
    return InvalidHandle("the session of the tensor is closed; fetch tensors before, or open another one: headroom.Session()")


def fetch(value, dtype, dims):
    """Consumes a temporary value."""
    size = dtype.size * TensorShape(dims).num_elements()
    raw = bytearray(size)
    runtime.hr_value_fetch(value, (ctypes.c_char * size).from_buffer(raw) if size else None, size)
    return raw, dtype, tuple(dims)
