"""The libraries through ctypes: finding and loading them, their functions and structs, and their statuses as exceptions.

`library`, `runtime` and `analysis` have the functions of libheadroom, libheadroom_runtime and libheadroom_analysis that _c/functions.py lists. A call that
returns a status raises the exception of errors.py for it. ctypes releases the interpreter's lock during each call.
"""
import ctypes
import os
import re
import sys
import threading
from pathlib import Path

from ._c import functions, parse
from ._c.structs import STRUCTS
from .errors import BY_STATUS, Error, FileError, InUse, InvalidArgument, LibraryNotFound, NoSuchDevice, OutOfMemory  # noqa: F401 (used as _library.Error)

FOLDER = Path(__file__).resolve().parent
HANDLE = ctypes.c_uint64
DEVICE = ctypes.c_uint32
SIZE = ctypes.c_size_t

# Return their status: finalizers call them, which cannot raise, or the status is a value.
UNCHECKED = {"hr_free", "hr_last_status", "hr_allocator_destroy", "hr_oom_get_last"}


def folder():
    """The folder of libheadroom: HEADROOM_LIBRARY_DIR, or the one that was installed with this package."""
    chosen = os.environ.get("HEADROOM_LIBRARY_DIR")
    return Path(chosen) if chosen else FOLDER / "lib"


def include_folder():
    """The folder of headroom.h."""
    installed = FOLDER / "include"
    return installed if installed.is_dir() else FOLDER.parents[1] / "include"


def plugin_folder(name):
    """The sources of a plug-in."""
    installed = FOLDER / "plugins" / name
    return installed if installed.is_dir() else FOLDER.parents[1] / "plugins" / name


def path(name="headroom"):
    return folder() / f"lib{name}.so.0"


# ---- structs ----

_structs = {}


def struct_type(name):
    """The ctypes.Structure of a struct of the headers."""
    if name not in _structs:
        _structs[name] = parse.struct(name, STRUCTS[name], struct_type)
    return _structs[name]


def struct(name, /, *arguments, **fields):
    """A struct with its defaults: those of its _init_sized function, which gets [arguments], or all fields 0. Then [fields] are set."""
    value = struct_type(name)()
    sized = next((each for each in (library, runtime, analysis) if each.has(f"{name}_init_sized")), None)
    if sized is not None:
        getattr(sized, f"{name}_init_sized")(ctypes.byref(value), ctypes.sizeof(value), *arguments)
    elif hasattr(value, "struct_size"):
        value.struct_size = ctypes.sizeof(value)
    for field, contents in fields.items():
        setattr(value, field, contents)
    return value


# ---- statuses ----

_thread = threading.local()


def new_report():
    """The number of the thread's last out-of-memory report, unless an earlier exception has it; 0 = none."""
    handle = HANDLE()
    if library.hr_oom_get_last(ctypes.byref(handle)) or handle.value == getattr(_thread, "report", 0):
        return 0
    _thread.report = handle.value
    return handle.value


def exception(status, about=""):
    """The exception for a status of the thread's last call. [about] names the argument that is wrong."""
    name = library.hr_status_name(status).decode()
    message = library.hr_last_message().decode(errors="replace")
    raised = getattr(_thread, "raised", None)    # by a method of an allocator that is written in Python
    _thread.raised = None
    if raised is not None:
        message += f": {type(raised).__name__}: {raised}"
    error = BY_STATUS.get(name, Error)(f"{about}{message} ({name})")
    error.status = name
    error.__cause__ = raised
    if name == "HR_OUT_OF_MEMORY":
        error.report_id = new_report()
    return error


def raise_status(status):
    raise exception(status)


def check(status, function=None, arguments=None):
    """Raises the exception of a status; also the errcheck of ctypes."""
    if status:
        raise_status(status)
    return status


def raised_in_callback(error):
    """The thread's next exception has this one as its cause."""
    _thread.raised = error


# ---- functions ----

class Library:
    """A shared library, loaded when its first function is used. Attributes are its functions."""

    def __init__(self, name, prototypes, needs=None):
        self._name = name
        self._needs = needs
        self._prototypes = {re.search(r"(hr_\w+)\(", line).group(1): line for line in prototypes.replace("\n", " ").split(";") if line.strip()}
        self._loaded = None
        self._lock = threading.Lock()

    def has(self, name):
        return name in self._prototypes

    def load(self):
        with self._lock:
            if self._loaded is None:
                if self._needs:
                    self._needs.load()
                self._loaded = self._open()
        return self._loaded

    def _open(self):
        try:
            loaded = ctypes.CDLL(str(path(self._name)), mode=ctypes.RTLD_GLOBAL)  # plug-ins use the same copy
            if self._name == "headroom" and hasattr(loaded, "hr__stacks_set_package"):
                loaded.hr__stacks_set_package(os.fsencode(FOLDER) + b"/")  # recorded call stacks have the lines of Python
            return loaded
        except OSError as error:
            raise LibraryNotFound(f"cannot load lib{self._name}: {error}. Install the package with `pip install .`, or set HEADROOM_LIBRARY_DIR to the "
                                  f"folder of lib{self._name}.so.0, such as `build` after `make`") from None

    def __getattr__(self, name):
        if name.startswith("_") or name not in self._prototypes:
            raise AttributeError(f"lib{self._name} has no function {name} in python/headroom/_c/functions.py")
        try:
            function = getattr(self.load(), name)
        except AttributeError:
            raise LibraryNotFound(f"{path(self._name)} has no {name}: it is older than this package. Set HEADROOM_LIBRARY_DIR to a newer one") from None
        prototype = " ".join(self._prototypes[name].split())
        function.restype, function.argtypes = parse.prototype(prototype, struct_type)
        if prototype.startswith("hr_status ") and name not in UNCHECKED:
            function.errcheck = check
        setattr(self, name, function)
        return function


library = Library("headroom", functions.HEADROOM)
runtime = Library("headroom_runtime", functions.HEADROOM_RUNTIME, needs=library)
analysis = Library("headroom_analysis", functions.HEADROOM_ANALYSIS, needs=library)
library.load()


# ---- texts ----

def text_of(function, *arguments):
    """The text of a function that formats into (buffer, capacity) and returns the length of the whole text."""
    capacity = 1 << 14
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        length = function(*arguments, buffer, capacity)
        if length < capacity:
            return buffer.value.decode(errors="replace")
        capacity = length + 1


def encoded(text, argument, example):
    """A text for the library. TypeError or ValueError names [argument] and shows [example]."""
    if isinstance(text, os.PathLike):
        text = os.fspath(text)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if not isinstance(text, str):
        raise TypeError(f"{argument} is {text!r}, not a text; give one such as {example!r}")
    if "\0" in text:
        raise ValueError(f"{argument} contains a 0 character: {text!r}; give a text such as {example!r}")
    return text.encode(errors="surrogateescape")


def ending():
    """Whether the interpreter is shutting down: finalizers then leave everything to the end of the process."""
    return sys is None or sys.is_finalizing()
