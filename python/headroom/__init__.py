"""Headroom, a memory manager for tensor programs.

    headroom.memory_info("GPU:0")      bytes in use now and at the peak
    headroom.device_stats("GPU:0")     all statistics
    with headroom.trace("run.hrt"):    record every allocation; `headroom report run.hrt` shows it

headroom.torch is the plug-in for PyTorch, headroom.cupy the one for CuPy. Programs written for TensorFlow find its names here: `import headroom as tf`
(docs/python.md). They are loaded when they are first used, so that importing the package stays quick.
"""
import contextlib as _contextlib
import importlib as _importlib
import os as _os

from . import _library, errors
from ._stats import device_stats, device_summary, memory_info, reset_stats
from .errors import Error, FileError, InUse, InvalidArgument, LibraryNotFound, NoSuchDevice, OutOfMemory
from .sizes import format_size, parse_size

__version__ = _library.library.hr_version().decode()

# The module of each name that is loaded when it is first used; "" = it is a module itself.
_LAZY = {
    "config": "", "cupy": "", "experimental": "", "sizes": "", "torch": "",
}

__all__ = ["Error", "FileError", "InUse", "InvalidArgument", "LibraryNotFound", "NoSuchDevice", "OutOfMemory", "device_stats", "device_summary", "errors",
           "format_size", "memory_info", "parse_size", "reset_stats", "start_trace", "stop_trace", "trace"]
__all__ += [_name for _name in _LAZY if _name not in ("cupy", "torch")]    # those two need packages of others


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"headroom has no {name!r}")
    module = _importlib.import_module(f".{_LAZY[name] or name}", __name__)
    value = getattr(module, name) if _LAZY[name] else module
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(_LAZY))


def start_trace(path):
    """Records every event of every allocator to a new file. InUse if something is being recorded already."""
    _library.library.hr_trace_start(_os.fsencode(path))


def stop_trace():
    _library.library.hr_trace_stop()


@_contextlib.contextmanager
def trace(path):
    """Records what happens inside the `with`."""
    start_trace(path)
    try:
        yield
    finally:
        stop_trace()
