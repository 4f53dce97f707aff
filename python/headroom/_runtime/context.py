"""Where ops run: the sessions of eager ops, the graphs and devices that a thread is in.

Each device that eager ops use has one session, made by its first op. A thread of the library is in at most one session; it is changed when an op needs
another one. Graphs are entered for single calls, so that they can be built by any thread and run while a `with graph.as_default()` is open.
"""
import atexit
import contextlib
import ctypes
import threading
import weakref

from .. import _library, _stats
from .._library import library, runtime
from ..errors import Error, InvalidHandle

_lock = threading.RLock()
_eager = {}     # device name -> handle of its session; "" = the default device
_open = {}      # handle of each session that is open -> the handle of its allocator, or 0
_closed = False


class _Thread(threading.local):
    def __init__(self):
        self.session = 0      # that the thread is in, in the library
        self.graphs = []      # that ops become part of
        self.devices = []     # of `with device`; "" = the default device
        self.tape = None
        self.scopes = []      # of variables


thread = _Thread()


# ---- sessions ----

def create_session(device="", allocator=0):
    """The handle of a new session."""
    handle = _library.HANDLE()
    options = _library.struct("hr_session_options", device=device.encode() or None, allocator=allocator)
    runtime.hr_session_create(ctypes.byref(options), ctypes.byref(handle))
    with _lock:
        _open[handle.value] = allocator
    return handle.value


def destroy_session(handle):
    """Raises what the session returns. Its allocator, if it has one of its own, is destroyed too."""
    with _lock:
        if handle not in _open:
            return
        allocator = _open.pop(handle)
        for name in [name for name, each in _eager.items() if each == handle]:
            del _eager[name]
    if thread.session == handle:
        runtime.hr_session_leave()
        thread.session = 0
    try:
        runtime.hr_session_destroy(handle)
    finally:
        if allocator:
            library.hr_allocator_destroy(allocator)


def is_open(handle):
    return handle in _open


def eager_session(device=None):
    """The session of eager ops on a device; None = the device that the thread is on."""
    if device is None:
        device = thread.devices[-1] if thread.devices else ""
    handle = _eager.get(device)
    if handle is None:
        with _lock:
            if _closed:
                raise InvalidHandle("the interpreter is shutting down, so no ops can run")
            handle = _eager.get(device)
            if handle is None:
                handle = _eager[device] = create_session(device)
    return handle


def synchronize():
    """Waits for the work of all sessions, whose temporary memory is free then."""
    with _lock:
        handles = list(_open)
    for handle in handles:
        try:
            runtime.hr_session_synchronize(handle)
        except Error:
            pass    # of an op, which the program hears of when it fetches the result; or the session was closed meanwhile


def replace_eager_session(handle):
    """Eager ops on the default device run in this session from now on; values of the old one are copied when they are used."""
    with _lock:
        _eager[""] = handle


def enter(handle):
    """The thread's calls of the library use the session from now on."""
    if thread.session == handle:
        return
    if thread.session:
        runtime.hr_session_leave()
        thread.session = 0
    runtime.hr_session_enter(handle)
    thread.session = handle


@atexit.register
def _close_all():
    """Before the interpreter goes: allocators that are written in Python are still callable, and work that is queued is done."""
    global _closed
    with _lock:
        _closed = True
        handles = list(_open)
    for handle in handles:
        try:
            destroy_session(handle)
        except Error:
            pass    # tensors that still exist


# ---- names of layers and optimizers ----

_names = weakref.WeakValueDictionary()
_name_lock = threading.RLock()    # a finalizer may run while it is held


def name_for(kind, owner):
    """"dense", "dense_1", ...: a name that no other object has. It is free again when the owner is gone, so that the library's table of names does not fill."""
    with _name_lock:
        number, name = 0, kind
        while name in _names:
            number += 1
            name = f"{kind}_{number}"
        _names[name] = owner
        return name


# ---- devices ----

@contextlib.contextmanager
def device(name):
    """Eager ops inside the `with`, and sessions that are opened there, are on this device. None = the default one. The ops of a graph run where the session
    is."""
    text = ""
    if name is not None:
        info = _library.struct("hr_device_info")
        library.hr_device_get_info(_stats.find_device(name), ctypes.byref(info))
        text = info.name.decode()
        text = "" if text == "GPU:0" else text
    thread.devices.append(text)
    try:
        yield
    finally:
        thread.devices.pop()


# ---- graphs ----

def current_graph():
    """The graph that ops become part of; None = they run at once."""
    return thread.graphs[-1] if thread.graphs else _default_graph_only()


_eagerly = True


def _default_graph_only():
    if _eagerly:
        return None
    from .graph import default_graph
    return default_graph()


def disable_eager_execution():
    """Ops outside of all graphs become part of the default graph from now on, as in TensorFlow 1."""
    global _eagerly
    _eagerly = False


def enable_eager_execution():
    """Ops outside of all graphs run when they are called, which is the default."""
    global _eagerly
    _eagerly = True


def executing_eagerly():
    """Whether ops run when they are called: False inside functions and graphs."""
    return current_graph() is None


@contextlib.contextmanager
def init_scope():
    """Ops inside the `with` run at once, also where a function is traced."""
    outer, thread.graphs = thread.graphs, []
    try:
        yield
    finally:
        thread.graphs = outer


@contextlib.contextmanager
def name_scope(name):
    """Memory that ops inside the `with` allocate is named after the scope: "encoder/layer_3" for a scope inside another one."""
    library.hr_name_scope_push(_library.encoded(name, "name", "encoder"))
    try:
        yield name
    finally:
        library.hr_name_scope_pop()
