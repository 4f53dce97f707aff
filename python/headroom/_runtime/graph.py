"""Graphs: ops that run later, in a session."""
import contextlib
import ctypes
import threading

from .. import _library
from .._library import encoded, exception, library, runtime
from . import arrays, context, dtypes
from .tensor import Tensor, c_dims, shape_of


class Operation:
    """A value of a graph that is fetched for its effect, such as an assignment. Outside of graphs: something that was done already."""

    def __init__(self, value, graph, name=None):
        self._id = value
        self.graph = graph
        self.name = name or f"op_{value & 0xffffffff}"

    def run(self, feed_dict=None, session=None):
        """Runs it in a session; None = that of the innermost `with`."""
        from .session import default_session
        session = session or default_session()
        if session is None:
            raise ValueError("session is missing, and there is no default one; give session=headroom.compat.v1.Session(), or use it in a with")
        return session.run(self, feed_dict)

    def __repr__(self):
        return f"<headroom.Operation {self.name!r}>"


class Graph:
    """Ops are added to it inside `with graph.as_default()`, and by ops on its tensors. Nothing has memory until a session runs it."""

    def __init__(self, _session=None):
        handle = _library.HANDLE()
        if _session is None:
            runtime.hr_graph_create(ctypes.byref(handle))
        else:
            runtime.hr_graph_create_in_session(_session, ctypes.byref(handle))
        self._handle = handle.value
        self._lock = threading.RLock()
        self._depth = 0
        self._allocator = None
        self._initializers = []     # ids of the first assignments of variables whose initial contents are arrays
        self._variables = {}        # by full name
        self._placeholders = 0
        self._constants = {}        # of eager tensors: id of the object -> (the tensor, its id in the graph)

    def __del__(self, destroy=runtime.hr_graph_destroy):
        if getattr(self, "_handle", 0) and not context._closed:
            try:
                destroy(self._handle)
            except Exception:    # a run of another thread has it
                pass

    @contextlib.contextmanager
    def as_default(self):
        """Ops inside the `with` become part of this graph."""
        context.thread.graphs.append(self)
        try:
            yield self
        finally:
            context.thread.graphs.pop()

    @contextlib.contextmanager
    def building(self):
        """Calls of the library inside the `with` add nodes."""
        with self._lock:
            if self._depth == 0:
                runtime.hr_graph_enter(self._handle)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    runtime.hr_graph_leave()

    def take(self, tensor):
        """The id of a tensor in this graph. The contents of an eager one become a constant."""
        if tensor.graph is self:
            return tensor._id
        if tensor.graph is not None:
            raise ValueError("a tensor of another graph is used; an op needs all its inputs from one graph: feed it through a placeholder")
        if id(tensor) not in self._constants:
            self._constants[id(tensor)] = (tensor, self._embed(tensor))
        return self._constants[id(tensor)][1]

    def _embed(self, tensor):
        raw, dtype, dims = tensor.fetch()
        value = runtime.hr_constant(dtype.number, c_dims(dims), len(dims), arrays.Data(dtype, dims, raw).address())
        if dtype is not tensor.dtype:
            value = runtime.hr_cast(value, tensor.dtype.number)
        if not value:
            raise exception(library.hr_last_status())
        return value

    def _set_allocator(self, allocator):
        """Sessions that run the graph get their memory from a compat.v1.Allocator. On the default graph: eager ops too."""
        from .allocator import Allocator
        if not isinstance(allocator, Allocator):
            raise TypeError(f"allocator is {allocator!r}; give an object of a class on headroom.compat.v1.Allocator")
        self._allocator = allocator
        if self is default_graph():
            context.replace_eager_session(context.create_session(allocator.DEVICE, allocator._create()))

    def finalize(self):
        """For programs that call it: a graph can be added to at any time."""


_default = None
_default_lock = threading.Lock()


def default_graph():
    """The graph of names of TensorFlow 1 that are used outside of all graphs."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Graph()
    return _default


def reset_default_graph():
    """The default graph is a new one from now on. Sessions of the old one keep it."""
    global _default
    with _default_lock:
        _default = None


def get_default_graph():
    """The graph that the thread is in, or the default one."""
    return context.thread.graphs[-1] if context.thread.graphs else default_graph()


def placeholder(dtype, shape=None, name=None):
    """A tensor that is fed to each run. Its shape must be known. Outside of all graphs it belongs to the default graph."""
    dtype = dtypes.as_dtype(dtype)
    if shape is None:
        raise ValueError("shape is missing; a placeholder needs all its dimensions: shape=[3], or shape=[] for a number")
    dims = shape_of(shape)
    graph = get_default_graph()
    with graph.building():
        if name is None:
            value = runtime.hr_placeholder(dtype.number, c_dims(dims), len(dims))
        else:
            value = runtime.hr_named_placeholder(encoded(name, "name", "x"), dtype.number, c_dims(dims), len(dims))
    if not value:
        raise exception(library.hr_last_status())
    graph._placeholders += 1
    return Tensor(value, graph, name=f"{name or f'placeholder_{graph._placeholders}'}:0")
