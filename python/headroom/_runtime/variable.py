"""Variables: contents that persist. An eager one frees its memory when the object is gone, one of a graph when its session is closed."""
import ctypes
import threading
import weakref

from .. import _library
from .._library import encoded, exception, library, runtime
from ..errors import AlreadyExists
from . import arrays, context, dtypes, ops
from .graph import Operation, default_graph, get_default_graph
from .tensor import DONE, Tensor, TensorShape, c_dims, shape_of

NONE, FULL, NORMAL, UNIFORM = range(4)    # hr_initializer_kind


class Initial:
    """Initial contents that the library computes by itself: no copy is made."""

    def __init__(self, kind, a, b=0.0):
        self.kind, self.a, self.b = kind, a, b

    def struct(self):
        return _library.struct_type("hr_initializer")(self.kind, self.a, self.b, ops.next_seed(None) if self.kind > FULL else 0)


_sessions = {}    # the eager variables by session: {handle: {full name: weak reference}}
_lock = threading.RLock()


def _named(owner):
    """The variables of a graph or an eager session by full name."""
    return owner._variables if not isinstance(owner, int) else _sessions.setdefault(owner, weakref.WeakValueDictionary())


def _unused(owner, name):
    names, number, tried = _named(owner), 0, name
    while tried in names:
        number += 1
        tried = f"{name}_{number}"
    return tried


class Variable:
    """Contents that persist, of a fixed dtype and shape.

    initial_value    numbers, an array, a tensor, or a function without arguments that returns one
    """

    def __init__(self, initial_value=None, trainable=True, name=None, dtype=None, shape=None, _owner=None, _initial=None):
        self._id = 0
        if initial_value is None and _initial is None:
            raise ValueError("initial_value is missing; give numbers, an array or a tensor, such as headroom.zeros([2, 3])")
        self.trainable = trainable
        if _owner is None:
            graph = context.current_graph()
            _owner = graph if graph is not None and not hasattr(graph, "captures") else context.eager_session()
        self._owner = _owner
        self.graph = _owner if not isinstance(_owner, int) else None
        if _initial is None:
            with context.init_scope() if self.graph is None else self.graph.as_default():
                value = initial_value() if callable(initial_value) else initial_value
                value = ops.constant(value, dtype, argument="initial_value")
            self.dtype, self.shape = value.dtype, TensorShape(value.shape)
            if shape is not None and tuple(shape_of(shape)) != tuple(self.shape):
                raise ValueError(f"shape is {list(shape)}, but initial_value has the shape {list(self.shape)}; leave shape out")
        else:
            value = None
            self.dtype, self.shape = dtypes.as_dtype(dtype), shape_of(shape)
        self._make(name or "Variable", value, _initial)

    def _make(self, name, value, initial):
        adds = value is not None and self.dtype.code and self.dtype is not dtypes.bool_ and self.graph is None
        # Adding to -0.0 gives what is added, in the memory of the variable, which so keeps its tag "weights".
        start = initial or (Initial(FULL, -0.0) if adds and self.dtype.is_floating else Initial(FULL, 0) if adds else Initial(NONE, 0))
        with _lock:
            path = _unused(self._owner, "/".join([each.name for each in context.thread.scopes] + [name]))
            self._name = path
            with self._placed():
                handle = runtime.hr_get_variable(encoded(path, "name", "weights"), self.dtype.number, c_dims(self.shape), len(self.shape), start.struct())
                if not handle:
                    raise exception(library.hr_last_status())
                self._id = handle
                if value is not None:
                    done = (runtime.hr_assign_add if adds else runtime.hr_assign)(handle, self._use(value))
                    if not done:
                        raise exception(library.hr_last_status())
                    if self.graph is not None:
                        self.graph._initializers.append(done)
            _named(self._owner)[path] = self

    def _placed(self):
        """Calls of the library inside the `with` are for the owner of the variable."""
        if self.graph is not None:
            return self.graph.building()
        context.enter(self._owner)
        return _NOTHING

    def _use(self, tensor):
        """The id of a tensor for an assignment by the owner."""
        if self.graph is not None:
            return self.graph.take(tensor)
        return tensor._id if tensor.session == self._owner else runtime.hr_value_copy_to_session(tensor._id, self._owner)

    def __del__(self, destroy=runtime.hr_variable_destroy):
        if self._id and self.graph is None and not context._closed and context.is_open(self._owner):
            try:
                destroy(self._id)
            except Exception:    # its session was destroyed by hr_shutdown
                pass

    # ---- contents ----

    def read_value(self):
        """The contents now, without a copy: later assignments do not change them."""
        graph = context.current_graph()
        if graph is None:
            graph = self.graph
        if graph is not None:
            with graph.building():
                value = runtime.hr_variable_read(self._id)
            if not value:
                raise exception(library.hr_last_status())
            return Tensor(value, graph)
        context.enter(self._owner)
        value = runtime.hr_variable_read(self._id)
        if not value or not runtime.hr_value_keep(value):
            raise exception(library.hr_last_status())
        return Tensor(value, None, self._owner)

    value = read_value

    def numpy(self):
        """The contents as a NumPy array."""
        return self.read_value().numpy()

    def tolist(self):
        """The contents as nested lists."""
        return self.read_value().tolist()

    def __array__(self, dtype=None, copy=None):
        return self.read_value().__array__(dtype)

    def __getitem__(self, key):
        return self.read_value()[key]

    def _change(self, function, value):
        value = ops.tensor_of(value, self.dtype, "value")
        if tuple(value.shape) != tuple(self.shape):
            raise ValueError(f"value has the shape {list(value.shape)}, and the variable {self.name!r} {list(self.shape)}; give one of that shape")
        graph = context.current_graph()
        if graph is None:
            graph = self.graph or value.graph
        if graph is None:
            with self._placed():
                if function(self._id, self._use(value)) != DONE:
                    raise exception(library.hr_last_status())
            return self
        with graph.building():
            done = function(self._id, graph.take(value))
        if not done:
            raise exception(library.hr_last_status())
        return graph.changed(done) if hasattr(graph, "changed") else Tensor(done, graph)

    def assign(self, value, **_):
        """Replaces the contents. In a graph: the operation that does."""
        return self._change(runtime.hr_assign, value)

    def assign_add(self, delta, **_):
        """Adds to the contents, in place."""
        return self._change(runtime.hr_assign_add, delta)

    def assign_sub(self, delta, **_):
        """Subtracts from the contents, in place."""
        return self._change(runtime.hr_assign_sub, delta)

    # ---- properties ----

    @property
    def name(self):
        """The full name, with scopes: "encoder/weights:0"."""
        return f"{self._name}:0"

    @property
    def op(self):
        """An Operation with the variable's name."""
        return Operation(0, self.graph, self._name)

    @property
    def initializer(self):
        """The operation that gives all variables of the graph their initial contents."""
        return global_variables_initializer()

    def get_shape(self):
        """The same as shape."""
        return self.shape

    @property
    def ndim(self):
        """The number of dimensions."""
        return len(self.shape)

    def __repr__(self):
        return f"<headroom.Variable {self.name!r} shape={list(self.shape)} dtype={self.dtype.name}>"

    def __len__(self):
        return len(self.read_value())

    def __bool__(self):
        return bool(self.read_value())

    def __float__(self):
        return float(self.read_value())

    def __int__(self):
        return int(self.read_value())


class _Nothing:
    def __enter__(self):
        return None

    def __exit__(self, *error):
        return None


_NOTHING = _Nothing()
ops._operators(Variable)


# ---- scopes ----

AUTO_REUSE = "AUTO_REUSE"


class variable_scope:
    """Variables of get_variable inside the `with` are named "scope/name", and memory after the scope.

    reuse    None = as around it; True = only variables that exist; AUTO_REUSE = those that exist, and new ones; False = only new ones
    """

    def __init__(self, name_or_scope, reuse=None, **options):
        if options:
            raise TypeError(f"variable_scope has no argument {', '.join(options)}; it takes name_or_scope and reuse")
        name = name_or_scope.name if isinstance(name_or_scope, variable_scope) else name_or_scope
        encoded(name, "name_or_scope", "encoder")
        if not name:
            raise ValueError("name_or_scope is empty; give a name such as 'encoder'")
        if reuse not in (None, True, False, AUTO_REUSE):
            raise ValueError(f"reuse is {reuse!r}; give True, False, None or headroom.compat.v1.AUTO_REUSE")
        self.name, self.reuse = name, reuse

    def __enter__(self):
        library.hr_name_scope_push(self.name.encode())
        entered = variable_scope(self.name, self.reuse)
        if entered.reuse is None and context.thread.scopes:
            entered.reuse = context.thread.scopes[-1].reuse
        context.thread.scopes.append(entered)
        return entered

    def __exit__(self, *error):
        context.thread.scopes.pop()
        library.hr_name_scope_pop()

    def reuse_variables(self):
        """get_variable inside the scope returns variables that exist, from now on."""
        self.reuse = True


def get_variable_scope():
    """The innermost variable_scope."""
    return context.thread.scopes[-1] if context.thread.scopes else variable_scope("(none)")


def get_variable(name, shape=None, dtype=dtypes.float32, initializer=None, trainable=True, **options):
    """The variable "scope/name" of the graph that the thread is in, or of the default graph. It has memory in a session from the run of
    global_variables_initializer on."""
    if options:
        raise TypeError(f"get_variable has no argument {', '.join(options)}; it takes name, shape, dtype, initializer and trainable")
    encoded(name, "name", "weights")
    graph = get_default_graph()
    scopes = context.thread.scopes
    path = "/".join([each.name for each in scopes] + [name])
    reuse = scopes[-1].reuse if scopes else None
    with _lock:
        found = graph._variables.get(path)
        if found is not None:
            return _reused(found, reuse, shape, dtype)
        if reuse is True:
            raise ValueError(f"variable {path!r} does not exist, and its scope only reuses; make it first, or use reuse=headroom.compat.v1.AUTO_REUSE")
        if initializer is not None and not callable(initializer):
            return Variable(initializer, trainable, name, dtype, _owner=graph)
        if shape is None:
            raise ValueError(f"shape is missing for the new variable {path!r}; give one such as [100, 100]")
        from ..keras import initializers
        initial = (initializer or initializers.GlorotUniform())(shape_of(shape), dtype)
        if isinstance(initial, Initial):
            return Variable(None, trainable, name, dtype, shape, _owner=graph, _initial=initial)
        return Variable(initial, trainable, name, dtype, _owner=graph)


def _reused(found, reuse, shape, dtype):
    if reuse not in (True, AUTO_REUSE):
        raise AlreadyExists(f"variable {found._name!r} exists already, as {found.dtype.name} {list(found.shape)}; to use it again, "
                            "variable_scope(..., reuse=True) or reuse=headroom.compat.v1.AUTO_REUSE; else choose another name or scope")
    if (shape is not None and tuple(shape_of(shape)) != tuple(found.shape)) or dtypes.as_dtype(dtype) is not found.dtype:
        raise ValueError(f"variable {found._name!r} is {found.dtype.name} {list(found.shape)}, not {dtypes.as_dtype(dtype).name} "
                         f"{list(shape_of(shape)) if shape is not None else ''}; give those")
    return found


def global_variables_initializer():
    """An operation that gives the graph's variables their initial contents. Outside of all graphs it is that of the default graph: eager variables have
    theirs already."""
    graph = get_default_graph()
    with graph.building():
        ids = [runtime.hr_global_variables_initializer(), *graph._initializers]
        value = runtime.hr_group((ctypes.c_uint64 * len(ids))(*ids), len(ids))
    if not value:
        raise exception(library.hr_last_status())
    return Operation(value, graph, "init")


def global_variables():
    """The variables of the graph that the thread is in, or of the default graph."""
    return list(get_default_graph()._variables.values())


def trainable_variables():
    """Those of global_variables() that are trainable."""
    return [each for each in global_variables() if each.trainable]
