"""Functions: Python code that is traced into a graph, once for each signature, and then runs as that graph.

A signature is the dtypes and shapes of the tensors and arrays among the arguments, and the identity of everything else. Eager tensors that the code uses
without getting them as arguments are fed to each run. All assignments of the code run, whether or not a result depends on them.
"""
import collections
import functools
import threading

from .._library import exception, library, runtime
from . import arrays, context, ops
from .graph import Graph, Operation
from .session import check_options, run
from .tensor import Tensor, c_dims

MAX_GRAPHS = 32    # of a function; the one that was used longest ago is built again when it is needed
_eagerly = False


def run_functions_eagerly(run_eagerly):
    """True: functions are not traced; their code runs as it is written, for debugging."""
    global _eagerly
    if not isinstance(run_eagerly, bool):
        raise TypeError(f"run_eagerly is {run_eagerly!r}; give True or False")
    _eagerly = run_eagerly
    runtime.hr_run_functions_eagerly(run_eagerly)


def functions_run_eagerly():
    return _eagerly


class FunctionGraph(Graph):
    """The graph of a function. Its variables belong to a session."""

    def __init__(self, session):
        super().__init__(_session=session)
        self.captures = {}    # id of an eager tensor -> (the tensor, the id of its placeholder)
        self.changes = []     # ids of assignments

    def _embed(self, tensor):
        value = runtime.hr_placeholder(tensor.dtype.number, c_dims(tensor.shape), tensor.ndim)
        if not value:
            raise exception(library.hr_last_status())
        self.captures[id(tensor)] = (tensor, value)
        return value

    def changed(self, value):
        self.changes.append(value)
        return Tensor(value, self)


class Traced:
    """The graph for one signature."""

    def __init__(self, name, code, session, template, tensors):
        self.graph = graph = FunctionGraph(session)
        with context.name_scope(name), graph.as_default():
            places = []
            for tensor in tensors:
                with graph.building():
                    value = runtime.hr_placeholder(tensor.dtype.number, c_dims(tensor.shape), tensor.ndim)
                if not value:
                    raise exception(library.hr_last_status())
                places.append(Tensor(value, graph))
            args, kwargs = restore(template, places)
            result = code(*args, **kwargs)
            self.inputs = [place._id for place in places]
            outputs = []
            self.template = flatten(result, outputs, self._output)
            self.fetches = [each._id for each in outputs]
            if graph.changes:
                self.fetches.append(ops.group(*[Operation(each, graph) for each in graph.changes])._id)
        self.count = len(outputs)

    def _output(self, leaf):
        if hasattr(leaf, "read_value"):
            leaf = leaf.read_value()
        if isinstance(leaf, Operation):
            return None
        if isinstance(leaf, Tensor) and leaf.graph is not self.graph:
            with self.graph.building():
                return Tensor(self.graph.take(leaf), self.graph)
        return leaf if isinstance(leaf, Tensor) else None

    def __call__(self, session, tensors, options, metadata):
        if not self.fetches:
            return restore(self.template, [])
        feeds = list(zip(self.inputs, tensors)) + [(place, tensor) for tensor, place in self.graph.captures.values()]
        context.enter(session)
        given = [(place, tensor._id if tensor.session == session else runtime.hr_value_copy_to_session(tensor._id, session)) for place, tensor in feeds]
        outs = run(session, given, self.fetches, options, metadata)
        for value in outs[self.count:]:
            runtime.hr_value_release(value)
        return restore(self.template, [Tensor(runtime.hr_value_keep(value), None, session) for value in outs[:self.count]])


# ---- structures: nested lists, tuples and dictionaries ----

class Slot:
    """The place of a tensor in a structure."""

    def __init__(self, at):
        self.at = at


def flatten(structure, found, tensor):
    """The structure with a Slot for each leaf that tensor(leaf) makes a tensor of; those are added to [found]."""
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*[flatten(each, found, tensor) for each in structure])
    if isinstance(structure, (list, tuple)):
        return type(structure)(flatten(each, found, tensor) for each in structure)
    if isinstance(structure, dict):
        return {name: flatten(each, found, tensor) for name, each in structure.items()}
    made = tensor(structure)
    if made is None:
        return None if isinstance(structure, Operation) else structure
    found.append(made)
    return Slot(len(found) - 1)


def restore(structure, tensors):
    if isinstance(structure, Slot):
        return tensors[structure.at]
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*[restore(each, tensors) for each in structure])
    if isinstance(structure, (list, tuple)):
        return type(structure)(restore(each, tensors) for each in structure)
    if isinstance(structure, dict):
        return {name: restore(each, tensors) for name, each in structure.items()}
    return structure


def key_of(structure):
    """Something to look a structure up by: equal for the same numbers and texts, and for the same objects."""
    if isinstance(structure, Slot):
        return ("slot", structure.at)
    if isinstance(structure, (list, tuple)):
        return (type(structure), tuple(key_of(each) for each in structure))
    if isinstance(structure, dict):
        return (dict, tuple((name, key_of(each)) for name, each in structure.items()))
    if structure is None or isinstance(structure, (bool, int, float, str, bytes)):
        return (type(structure), structure)
    return ("object", id(structure))    # which the entry keeps


def _argument(leaf):
    """A tensor argument: a tensor or an array. Variables and all other objects are used as they are."""
    if isinstance(leaf, Tensor):
        return leaf
    return ops.constant(leaf) if arrays._is_array(leaf) and not hasattr(leaf, "read_value") else None


# ---- functions ----

class Function:
    """What headroom.function returns. `options` and `run_metadata` of a call: call_with_options."""

    def __init__(self, code, name=None):
        functools.update_wrapper(self, code)
        self._code = code
        self._name = name or getattr(code, "__name__", "function")
        if not self._name.isidentifier():
            self._name = "function"
        self._lock = threading.RLock()
        self._traced = collections.OrderedDict()    # by signature: (Traced, the structure, whose objects it keeps)

    @property
    def python_function(self):
        return self._code

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args, **kwargs):
        return self._call(args, kwargs)

    def call_with_options(self, options, run_metadata, *args, **kwargs):
        """A call with headroom.RunOptions and headroom.RunMetadata, either of which may be None."""
        return self._call(args, kwargs, options, run_metadata)

    def _call(self, args, kwargs, options=None, metadata=None):
        check_options(options, metadata)
        tape = context.thread.tape
        if _eagerly or context.current_graph() is not None or (tape is not None and tape.recording):
            if options is not None or metadata is not None:
                raise ValueError(f"options or run_metadata is given, but function {self._name!r} does not run as a graph of its own here: it is in another function or "
                                 "graph, a tape records it, or functions run eagerly; give them to the outer run")
            with context.name_scope(self._name):
                return self._code(*args, **kwargs)
        with context.init_scope():
            tensors = []
            template = flatten((args, kwargs), tensors, _argument)
        session = tensors[0].session if tensors and not context.thread.devices else context.eager_session()
        return self._find(session, template, tensors)(session, tensors, options, metadata)

    def _find(self, session, template, tensors):
        key = (session, key_of(template), tuple((each.dtype, tuple(each.shape)) for each in tensors))
        with self._lock:
            entry = self._traced.get(key)
            if entry is None:
                entry = (Traced(self._name, self._code, session, template, tensors), template)
                self._traced[key] = entry
                while len(self._traced) > MAX_GRAPHS:
                    self._traced.popitem(last=False)
            self._traced.move_to_end(key)
            return entry[0]


def function(func=None, input_signature=None, autograph=True, jit_compile=None, reduce_retracing=False, name=None):
    """Makes a function run as a graph: @headroom.function, or @headroom.function(...). The other arguments are TensorFlow's and have no effect; Python's `if` and
    `for` are executed while the function is traced."""
    if func is None:
        return lambda code: function(code, name=name)
    if not callable(func):
        raise TypeError(f"func is {func!r}; give a function")
    return Function(func, name)
