"""Headroom, a memory manager for tensor programs.

    headroom.memory_info("GPU:0")      bytes in use now and at the peak
    headroom.device_stats("GPU:0")     all statistics
    with headroom.trace("run.hrt"):    record every allocation; `headroom report run.hrt` shows it

headroom.torch is the plug-in for PyTorch, headroom.cupy the one for CuPy. Programs written for TensorFlow find its names here: `import headroom as tf`
(docs/python.md). They are loaded when they are first used, so that importing the package stays quick.
"""
import contextlib as _contextlib
import importlib as _importlib

from . import _library, errors
from ._stats import Statistics, device_stats, device_summary, memory_info, reset_stats
from .errors import Error, FileError, InUse, InvalidArgument, LibraryNotFound, NoSuchDevice, OutOfMemory
from .sizes import format_size, parse_size

__version__ = _library.library.hr_version().decode()

# The modules, and the modules of the names, that are loaded when they are first used.
_MODULES = "compat config cupy experimental keras math nn profiler random sizes torch".split()
_NAMES = {
    "_report": "Report report timeline",
    "_scalars": "log_scalars scalars",
    "_runtime.context": "device executing_eagerly init_scope name_scope",
    "_runtime.dtypes": "DType as_dtype bfloat16 float32 float64 int32 int64 uint8",
    "_runtime.function": "function",
    "_runtime.graph": "Graph Operation placeholder",
    "_runtime.ops": """abs add add_n broadcast_to cast concat constant convert_to_tensor divide exp expand_dims eye fill gather group identity matmul maximum
        minimum multiply negative no_op one_hot ones ones_like pow range reduce_max reduce_mean reduce_min reduce_sum reshape scale sigmoid slice sqrt square
        squeeze stack stop_gradient subtract tanh transpose zeros zeros_like""",
    "_runtime.session": "RunMetadata RunOptions Session extract_allocation_log",
    "_runtime.tape": "GradientTape recompute recompute_grad",
    "_runtime.tensor": "Tensor TensorShape",
    "_runtime.variable": "Variable get_variable global_variables_initializer variable_scope",
}
_LAZY = {_name: "" for _name in _MODULES}
_LAZY.update({_name: _module for _module, _names in _NAMES.items() for _name in _names.split()})
_LAZY["bool"] = "_runtime.dtypes"

__all__ = ["Error", "FileError", "InUse", "InvalidArgument", "LibraryNotFound", "NoSuchDevice", "OutOfMemory", "Statistics", "device_stats", "device_summary", "errors",
           "format_size", "memory_info", "parse_size", "reset_stats", "start_trace", "stop_trace", "trace"]
# Not in *: those that need packages of others, and those that would hide Python's own.
__all__ += [_name for _name in _LAZY if _name not in "abs bool cupy math pow random range slice torch".split()]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"headroom has no {name!r}")
    module = _importlib.import_module(f".{_LAZY[name] or name}", __name__)
    value = getattr(module, "bool_" if name == "bool" else name) if _LAZY[name] else module
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(_LAZY))


def start_trace(path):
    """Records every event of every allocator to a new file. InUse if something is being recorded already."""
    _library.library.hr_trace_start(_library.encoded(path, "path", "run.hrt"))


def stop_trace():
    """Ends the recording."""
    _library.library.hr_trace_stop()


@_contextlib.contextmanager
def trace(path):
    """Records what happens inside the `with`."""
    start_trace(path)
    try:
        yield
    finally:
        stop_trace()
