"""Gradients: of eager ops from a tape of the library, in graphs from the nodes."""
import ctypes

from .._library import runtime
from ..errors import InvalidArgument, Unsupported
from . import context, ops
from .function import flatten, restore
from .tensor import Tensor


class Recording:
    """The tape of the library that a thread has. The thread refers to it, and not to the GradientTape, which so ends with its last reference."""

    recording = True


def _end(recording):
    """Ends the thread's tape if it is this one."""
    if recording is not None and context.thread.tape is recording:
        context.thread.tape = None
        runtime.hr_tape_end()


class GradientTape:
    """Records the ops inside the `with`, for one call of gradient(). A thread has one tape at a time. A source that the target does not depend on has a
    gradient of zeros."""

    def __init__(self, persistent=False, watch_accessed_variables=True):
        if persistent:
            raise Unsupported("persistent is True, but a tape is used once; give all sources to one call of gradient(), as a list")
        self._recording = None
        self._in_graph = False

    def __enter__(self):
        outer = context.thread.tape
        if context.current_graph() is not None:
            self._in_graph = True
            return self
        if outer is not None:
            if outer.recording:
                raise Unsupported("a tape is inside the with of another one; a thread records one at a time: use one tape, with all sources in one call")
            _end(outer)
        runtime.hr_tape_begin()
        context.thread.tape = self._recording = Recording()
        return self

    def __exit__(self, kind, *error):
        if self._recording is not None:
            self._recording.recording = False
        if kind is not None:
            _end(self._recording)

    def __del__(self):
        try:
            _end(getattr(self, "_recording", None))
        except Exception:    # the interpreter is shutting down
            pass

    def watch(self, tensor):
        """Every tensor is watched."""

    def stop_recording(self):
        """Not there: what is not to be recorded is put outside of the `with`."""
        raise Unsupported("stop_recording is not there; put what is not to be recorded outside of the with")

    def gradient(self, target, sources, output_gradients=None, unconnected_gradients=None):
        """The gradients of the sum of [target] with respect to [sources]: a tensor or variable, or a structure of them."""
        if not self._in_graph and (self._recording is None or context.thread.tape is not self._recording):
            raise InvalidArgument("the tape has no recording: gradient() was called already, another tape was begun since, or its with was never entered. "
                                  "A tape is used once: give all sources to one call of gradient(), as a list")
        found = []
        template = flatten(sources, found, _source)
        if not found:
            raise ValueError(f"sources is {sources!r}; give tensors or variables, such as model.trainable_variables")
        total = _total(target, output_gradients)
        if self._in_graph or total.graph is not None:
            gradients = _in_graph(total, found)
        else:
            try:
                gradients = _eager(total, found)
            finally:
                _end(self._recording)
        return restore(template, gradients)


def _source(leaf):
    if isinstance(leaf, Tensor) or hasattr(leaf, "read_value"):
        return leaf
    raise TypeError(f"sources contains {leaf!r}, a {type(leaf).__name__}; give tensors or variables, such as model.trainable_variables")


def _total(target, output_gradients):
    targets = target if isinstance(target, (list, tuple)) else [target]
    weights = output_gradients if isinstance(output_gradients, (list, tuple)) else [output_gradients] * len(targets)
    if len(weights) != len(targets):
        raise ValueError(f"output_gradients has {len(weights)} elements, and target {len(targets)}; give one for each target")
    parts = [ops.tensor_of(each, argument="target") if weight is None else ops.multiply(each, weight) for each, weight in zip(targets, weights)]
    return parts[0] if len(parts) == 1 else ops.add_n([ops.reduce_sum(each) for each in parts])


def _call(function, of, by):
    outs = (ctypes.c_uint64 * len(by))()
    function(of, (ctypes.c_uint64 * len(by))(*by), len(by), outs)
    return list(outs)


def _eager(total, sources):
    context.enter(total.session)
    reads = [each if isinstance(each, Tensor) else each.read_value() for each in sources]
    values = _call(runtime.hr_gradients, total._id, [each._id for each in reads])
    return [Tensor(runtime.hr_value_keep(value), None, total.session) for value in values]


def _in_graph(total, sources):
    """Variables as they were read, before later assignments."""
    graph = total.graph or context.current_graph()
    results = [None] * len(sources)
    with graph.building():
        of = graph.take(total)
        for function, wanted in ((runtime.hr_gradients, True), (runtime.hr_variable_gradients, False)):
            at = [n for n, each in enumerate(sources) if isinstance(each, Tensor) is wanted]
            ids = [graph.take(sources[n]) if wanted else sources[n]._id for n in at]
            for n, value in zip(at, _call(function, of, ids) if at else []):
                results[n] = Tensor(value, graph)
    return results


def gradients(ys, xs, grad_ys=None, name=None):
    """The gradients of a graph: of the sum of [ys] with respect to each of [xs]."""
    total = _total(ys, grad_ys)
    if total.graph is None:
        raise InvalidArgument("ys is not in a graph; outside of graphs use with headroom.GradientTape() as tape, and tape.gradient(ys, xs)")
    found = []
    template = flatten(xs if isinstance(xs, (list, tuple)) else [xs], found, _source)
    return restore(template, _in_graph(total, found))


class recompute:
    """The ops inside the `with` are recomputed when gradients need them, instead of keeping their results: less memory for more time."""

    def __enter__(self):
        runtime.hr_checkpoint_begin()

    def __exit__(self, *error):
        runtime.hr_checkpoint_end()


def recompute_grad(function):
    """A function whose results are recomputed for gradients."""
    import functools
    if not callable(function):
        raise TypeError(f"function is {function!r}; give a function, such as a layer")

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        with recompute():
            return function(*args, **kwargs)
    return wrapped
