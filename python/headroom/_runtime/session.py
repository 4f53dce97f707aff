"""Sessions: running graphs, with options, and what is known about a run afterwards."""
import ctypes

from .. import _library, sizes
from .._library import exception, library, runtime
from ..errors import Error, InvalidArgument, InvalidHandle
from . import arrays, context
from .graph import Graph, Operation, get_default_graph
from .tensor import Tensor, fetch


class RunOptions:
    """Options of one run.

    report_allocations_on_oom       make a report and keep an allocation log, in case memory runs out
                                    (report_tensor_allocations_upon_oom is the same)
    allocation_log_buffer_size      entries of the log for each thread, 1 to 65,536
    allocation_log_sampling_rate    the fraction of allocations that is logged, 0 to 1
    allocation_log_allocations_only whether frees are left out of the log, as programs expect that read it like TensorFlow's
    trace_level                     RunOptions.FULL_TRACE: time and memory of each op, in the RunMetadata
    """

    NO_TRACE = 0
    SOFTWARE_TRACE = 1
    HARDWARE_TRACE = 2
    FULL_TRACE = 3

    def __init__(self, report_allocations_on_oom=False, allocation_log_buffer_size=100, allocation_log_sampling_rate=1.0, *, trace_level=NO_TRACE,
                 allocation_log_allocations_only=True, report_tensor_allocations_upon_oom=False):
        for name, value in (("report_tensor_allocations_upon_oom", report_tensor_allocations_upon_oom),
                            ("report_allocations_on_oom", report_allocations_on_oom), ("allocation_log_allocations_only", allocation_log_allocations_only)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} is {value!r}; give True or False")
        if isinstance(allocation_log_buffer_size, bool) or not isinstance(allocation_log_buffer_size, int):
            raise TypeError(f"allocation_log_buffer_size is {allocation_log_buffer_size!r}; give a number of entries, such as 100")
        if not 1 <= allocation_log_buffer_size <= 65536:
            raise ValueError(f"allocation_log_buffer_size is {allocation_log_buffer_size}; give 1 to 65536 entries, such as 100")
        if isinstance(allocation_log_sampling_rate, bool) or not isinstance(allocation_log_sampling_rate, (int, float)):
            raise TypeError(f"allocation_log_sampling_rate is {allocation_log_sampling_rate!r}; give a fraction, such as 0.1")
        if not 0 <= allocation_log_sampling_rate <= 1:
            raise ValueError(f"allocation_log_sampling_rate is {allocation_log_sampling_rate}; give a fraction from 0 to 1, such as 0.1")
        if trace_level not in (0, 1, 2, 3):
            raise ValueError(f"trace_level is {trace_level!r}; give headroom.RunOptions.NO_TRACE or FULL_TRACE")
        self.report_allocations_on_oom = report_allocations_on_oom or report_tensor_allocations_upon_oom
        self.allocation_log_buffer_size = allocation_log_buffer_size
        self.allocation_log_sampling_rate = float(allocation_log_sampling_rate)
        self.allocation_log_allocations_only = allocation_log_allocations_only
        self.trace_level = trace_level

    def _struct(self):
        return _library.struct("hr_run_options", report_allocations_on_oom=self.report_allocations_on_oom, trace=int(self.trace_level > 0),
                               allocation_log_buffer_size=self.allocation_log_buffer_size, allocation_log_sampling_rate=self.allocation_log_sampling_rate,
                               allocation_log_allocations_only=self.allocation_log_allocations_only)


class RunMetadata:
    """What is known about a run, also one that failed.

    allocation_log    after an OutOfMemory with report_allocations_on_oom: a JSON array as text; else ""
    ns, peak_bytes    duration of the run; most bytes in use, if it was traced
    ops               of a traced run, in order: dictionaries with op, scope, begin_ns, ns, allocations, allocated_bytes, peak_bytes
    """

    def __init__(self):
        self._clear()

    def _clear(self):
        self.allocation_log = ""
        self.ns = self.peak_bytes = 0
        self.ops = []

    def _take(self, metadata):
        self._clear()
        self.ns, self.peak_bytes = metadata.ns, metadata.peak_bytes
        if metadata.allocation_log:
            self.allocation_log = metadata.allocation_log.decode(errors="replace")
        kind = _library.struct_type("hr_op_metadata")
        rows = ctypes.cast(metadata.ops, ctypes.POINTER(kind)) if metadata.op_count else []
        for row in rows[:metadata.op_count]:
            values = {name: getattr(row, name) for name, _ in kind._fields_}
            self.ops.append({**values, "op": library.hr_name_text(row.op).decode(errors="replace"), "scope": library.hr_name_text(row.scope).decode(errors="replace")})

    @property
    def step_stats(self):
        """The same as ops."""
        return self.ops


def extract_allocation_log(run_metadata):
    """The allocation log of a run that ran out of memory: a JSON array as text. The function of this name in articles on RunOptions."""
    if not isinstance(run_metadata, RunMetadata):
        raise TypeError(f"run_metadata is {run_metadata!r}; give the headroom.RunMetadata that the run was given")
    return run_metadata.allocation_log


def check_options(options, metadata):
    if options is not None and not isinstance(options, RunOptions):
        raise TypeError(f"options is {options!r}; give headroom.RunOptions(report_allocations_on_oom=True)")
    if metadata is not None and not isinstance(metadata, RunMetadata):
        raise TypeError(f"run_metadata is {metadata!r}; give headroom.RunMetadata()")


def run(session, feeds, fetches, options=None, metadata=None):
    """hr_session_run: feeds are pairs of ids, fetches ids. Returns ids of temporary values."""
    feed_type = _library.struct_type("hr_feed")
    given = (feed_type * max(1, len(feeds)))(*[feed_type(*each) for each in feeds])
    wanted = (ctypes.c_uint64 * len(fetches))(*fetches)
    outs = (ctypes.c_uint64 * len(fetches))()
    about = _library.struct("hr_run_metadata") if metadata is not None or (options and options.trace_level) else None
    asked = options._struct() if options is not None else None
    try:
        runtime.hr_session_run(session, given, len(feeds), wanted, len(fetches), outs, ctypes.byref(asked) if asked is not None else None,
                               ctypes.byref(about) if about is not None else None)
    finally:
        if about is not None:
            if metadata is not None:
                metadata._take(about)
            runtime.hr_run_metadata_free(ctypes.byref(about))
    return list(outs)


_default_sessions = []    # of `with session`; of the whole process, as the library's sessions are


def default_session():
    """The session of the innermost `with`; None if there is none."""
    return _default_sessions[-1] if _default_sessions else None


class Session:
    """Runs a graph, and holds the contents of its variables. Close it, or use it in a `with`: that frees them.

    memory_limit    most bytes that the session may use, such as "16MiB"; None = what the device has
    """

    def __init__(self, target="", graph=None, config=None, *, memory_limit=None):
        self._handle = 0
        if not isinstance(target, str):
            raise TypeError(f"target is {target!r}; sessions run in this process: leave it out, or give graph={target!r} if that is the graph")
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph is {graph!r}; give a headroom.Graph, such as tensor.graph, or leave it out for the default graph")
        self.graph = graph if graph is not None else get_default_graph()
        self._values = {}
        allocator, device = 0, context.thread.devices[-1] if context.thread.devices else ""
        if memory_limit is not None:
            allocator = _limited_allocator(device, memory_limit)
        elif self.graph._allocator is not None:
            device, allocator = self.graph._allocator.DEVICE, self.graph._allocator._create()
        self._handle = context.create_session(device, allocator)

    def close(self):
        """Waits for the session's work and frees its variables. Closing it again has no effect."""
        handle, self._handle = getattr(self, "_handle", 0), 0
        if handle:
            context.destroy_session(handle)

    def __del__(self):
        try:
            if not context._closed:
                self.close()
        except Exception:    # what an op has left, which nothing can return any more
            pass

    def __enter__(self):
        self._open_handle()
        self._graph_scope = self.graph.as_default()
        self._graph_scope.__enter__()
        _default_sessions.append(self)
        return self

    def __exit__(self, *error):
        _default_sessions.remove(self)
        self._graph_scope.__exit__(None, None, None)
        try:
            self.close()
        except Error:
            if error[0] is None:
                raise

    def _open_handle(self):
        if not self._handle:
            raise InvalidHandle("the session is closed; open another one: headroom.compat.v1.Session()")
        return self._handle

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """The contents of [fetches] - a tensor, an operation, a variable, or lists, tuples and dictionaries of those - as NumPy arrays. An operation gives
        None."""
        handle = self._open_handle()
        check_options(options, run_metadata)
        leaves = []
        structure = self._plan(fetches, leaves)
        symbolic = [each for each in leaves if each.graph is not None]
        results = {}
        if symbolic:
            feeds = self._feeds(handle, feed_dict)
            outs = run(handle, feeds, [each._id for each in symbolic], options, run_metadata)
            results = self._contents(symbolic, outs)
        elif feed_dict:
            raise ValueError("feed_dict is given, but nothing of a graph is fetched; fetch a tensor that depends on what is fed")
        elif run_metadata is not None:
            run_metadata._clear()
        for each in leaves:
            if each.graph is None and isinstance(each, Tensor):
                results[id(each)] = each.numpy()
        return structure(results)

    def _plan(self, fetches, leaves):
        """A function from results by id to the structure of [fetches]."""
        if isinstance(fetches, (list, tuple)):
            parts = [self._plan(each, leaves) for each in fetches]
            kind = tuple if isinstance(fetches, tuple) else list
            return lambda results: kind(part(results) for part in parts)
        if isinstance(fetches, dict):
            named = {name: self._plan(each, leaves) for name, each in fetches.items()}
            return lambda results: {name: part(results) for name, part in named.items()}
        leaf = self._leaf(fetches)
        leaves.append(leaf)
        return lambda results: results.get(id(leaf))

    def _leaf(self, fetch):
        if hasattr(fetch, "read_value"):
            with self.graph.as_default() if fetch.graph is not None else context.init_scope():
                fetch = fetch.read_value()
        if not isinstance(fetch, (Tensor, Operation)):
            raise TypeError(f"fetches contains {fetch!r}, a {type(fetch).__name__}; give tensors, operations or variables of the session's graph")
        if fetch.graph is not None and fetch.graph is not self.graph:
            raise ValueError("fetches contains a tensor of another graph; open a session for that one: headroom.compat.v1.Session(graph=graph)")
        return fetch

    def _feeds(self, handle, feed_dict):
        feeds = []
        if feed_dict is not None and not isinstance(feed_dict, dict):
            raise TypeError(f"feed_dict is {feed_dict!r}; give a dictionary from placeholders to numbers or arrays, such as {{x: [1, 2, 3]}}")
        try:
            for place, value in (feed_dict or {}).items():
                feeds.append(self._feed(handle, place, value))
        except BaseException:
            for _, value in feeds:
                runtime.hr_value_release(value)
            raise
        return feeds

    def _feed(self, handle, place, value):
        if not isinstance(place, Tensor) or place.graph is not self.graph:
            raise TypeError(f"feed_dict has the key {place!r}; keys are placeholders of the session's graph")
        about = f"feed_dict[{place.name!r}]"
        if isinstance(value, Tensor):
            value = value.numpy()
        data = arrays.from_any(value, place.dtype, about)
        if data.dims != tuple(place.shape):
            raise ValueError(f"{about} has the shape {list(data.dims)}, and the placeholder {list(place.shape)}; give one of that shape")
        if data.dtype is not place.dtype:
            raise TypeError(f"{about} cannot be fed as {place.dtype.name}; use a placeholder of float32, and headroom.cast in the graph")
        feed = runtime.hr_feed_from_array(handle, place._id, data.address(), memoryview(data.raw).nbytes)
        if not feed.value:
            raise exception(library.hr_last_status(), f"{about}: ")
        return feed.placeholder, feed.value

    def _contents(self, leaves, outs):
        results = {}
        try:
            for at, (leaf, value) in enumerate(zip(leaves, outs)):
                outs[at] = 0
                if isinstance(leaf, Operation):
                    runtime.hr_value_release(value)
                else:
                    results[id(leaf)] = self._content(leaf, value)
        finally:
            for value in outs:
                runtime.hr_value_release(value)
        return results

    def _content(self, leaf, value):
        if leaf.dtype.code:
            return arrays.to_numpy(*fetch(value, leaf.dtype, leaf.shape))[()]
        context.enter(self._handle)    # the cast of bfloat16 is an op of the session
        from . import dtypes
        try:
            return arrays.to_numpy(*fetch(runtime.hr_cast(value, dtypes.float32.number), dtypes.float32, leaf.shape))[()]
        finally:
            context.enter(context.eager_session(""))


def _limited_allocator(device, memory_limit):
    from .. import _stats
    limit = sizes.argument_size(memory_limit, "memory_limit", "16MiB")
    options = _library.struct("hr_allocator_options", limit_bytes=limit)
    handle = _library.HANDLE()
    found = _stats.find_device(device or None)
    try:
        library.hr_allocator_create(found, ctypes.byref(options), ctypes.byref(handle))
    except InvalidArgument as error:
        named = InvalidArgument(f"memory_limit is {memory_limit!r}: {error}; give a size such as '16MiB'")
        named.status = error.status
        raise named from None
    return handle.value


class InteractiveSession(Session):
    """A session that is the default one until it is closed."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        _default_sessions.append(self)

    def close(self):
        if self in _default_sessions:
            _default_sessions.remove(self)
        super().close()
