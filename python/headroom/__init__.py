"""Headroom, a memory manager for tensor programs.

    headroom.memory_info("GPU:0")      bytes in use now and at the peak
    headroom.device_stats("GPU:0")     all statistics
    with headroom.trace("run.hrt"):    record every allocation; `headroom report run.hrt` shows it

headroom.torch is the plug-in for PyTorch.
"""
import contextlib as _contextlib
import os as _os

from . import _library
from ._library import (Error, FileError, InUse, InvalidArgument, LibraryNotFound, NoSuchDevice, OutOfMemory)
from ._stats import device_stats, device_summary, memory_info, reset_stats
from .sizes import format_size, parse_size

__version__ = _library.library.hr_version().decode()
__all__ = ["Error", "FileError", "InUse", "InvalidArgument", "LibraryNotFound", "NoSuchDevice", "OutOfMemory", "device_stats", "device_summary",
           "format_size", "memory_info", "parse_size", "reset_stats", "start_trace", "stop_trace", "trace"]


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
