"""libheadroom through ctypes: loading it, and its statuses as exceptions."""
import ctypes
import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


class Error(RuntimeError):
    """A call of libheadroom failed. The text says what failed and what to do about it; `status` is such as "HR_IO"."""

    status = "HR_?"


class OutOfMemory(Error, MemoryError):
    """The device, or the limit set on it, has no room for the request."""


class InvalidArgument(Error, ValueError):
    """An argument is outside what the function takes."""


class NoSuchDevice(Error, LookupError):
    """The device name cannot be parsed, or there is no such device."""


class InUse(Error):
    """It is in use, so it cannot be changed now."""


class FileError(Error, OSError):
    """A file could not be read or written, or is not what it should be."""


class LibraryNotFound(ImportError):
    """libheadroom could not be loaded."""


EXCEPTIONS = {
    "HR_INVALID_ARGUMENT": InvalidArgument,
    "HR_BAD_LIMIT": InvalidArgument,
    "HR_OUT_OF_MEMORY": OutOfMemory,
    "HR_NO_HOST_MEMORY": OutOfMemory,
    "HR_BAD_DEVICE_NAME": NoSuchDevice,
    "HR_NO_SUCH_DEVICE": NoSuchDevice,
    "HR_AMBIGUOUS_DEVICE": NoSuchDevice,
    "HR_IN_USE": InUse,
    "HR_IO": FileError,
    "HR_BAD_FORMAT": FileError,
    "HR_TRUNCATED": FileError,
}

# name: (result, arguments). A result of None means hr_status, which becomes an exception. Handles are structs of one integer, which are
# passed like that integer.
HANDLE = ctypes.c_uint64
DEVICE = ctypes.c_uint32
TEXT = ctypes.c_char_p
SIZE = ctypes.c_size_t
FUNCTIONS = {
    "hr_version": (TEXT, []),
    "hr_status_name": (TEXT, [ctypes.c_int]),
    "hr_last_message": (TEXT, []),
    "hr_environment_check": (None, []),
    "hr_device_find": (None, [TEXT, ctypes.POINTER(DEVICE)]),
    "hr_device_get_stats": (None, [DEVICE, ctypes.c_void_p]),
    "hr_cuda_check": (None, []),
    "hr_stream_import": (None, [DEVICE, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint32)]),
    "hr_allocator_options_init_sized": (ctypes.c_int, [ctypes.c_void_p, SIZE]),
    "hr_allocator_create": (None, [DEVICE, ctypes.c_void_p, ctypes.POINTER(HANDLE)]),
    "hr_alloc": (None, [HANDLE, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]),
    "hr_free": (ctypes.c_int, [HANDLE, ctypes.c_void_p, ctypes.c_uint32]),  # of finalizers, which cannot raise
    "hr_allocator_get_stats": (None, [HANDLE, ctypes.c_void_p]),
    "hr_stats_init_sized": (ctypes.c_int, [ctypes.c_void_p, SIZE]),
    "hr_stats_format": (SIZE, [ctypes.c_void_p, TEXT, SIZE]),
    "hr_stats_format_json": (SIZE, [ctypes.c_void_p, TEXT, SIZE]),
    "hr_reset_memory_stats": (None, [TEXT]),
    "hr_get_memory_info": (None, [TEXT, ctypes.c_void_p]),
    "hr_get_lms_enabled": (ctypes.c_bool, []),
    "hr_allocator_get_holders": (None, [HANDLE, ctypes.c_int, ctypes.c_void_p, SIZE, ctypes.POINTER(SIZE)]),
    "hr_lms_get_stats": (None, [HANDLE, ctypes.c_void_p]),
    "hr_lms_check": (None, [HANDLE]),
    "hr_allocator_check": (None, [HANDLE]),
    "hr_allocator_trim": (None, [HANDLE, ctypes.POINTER(ctypes.c_uint64)]),
    "hr_step_begin": (None, [HANDLE]),
    "hr_step_end": (None, [HANDLE]),
    "hr_trace_start": (None, [TEXT]),
    "hr_trace_stop": (None, []),
    "hr_trace_mark": (None, [TEXT, ctypes.c_uint64]),
    "hr_name_text": (TEXT, [ctypes.c_uint32]),
    "hr_name_intern": (ctypes.c_uint32, [TEXT]),
    "hr_oom_format_text": (SIZE, [HANDLE, TEXT, SIZE]),
    "hr_oom_format_json": (SIZE, [HANDLE, TEXT, SIZE]),
}


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


def path():
    return folder() / "libheadroom.so.0"


def raise_status(status):
    name = library.hr_status_name(status).decode()
    message = library.hr_last_message().decode(errors="replace")
    error = EXCEPTIONS.get(name, Error)(f"{message} ({name})")
    error.status = name
    raise error


def check(status, function=None, arguments=None):
    """Raises the exception of a status; also the errcheck of ctypes."""
    if status:
        raise_status(status)
    return status


def load():
    try:
        loaded = ctypes.CDLL(str(path()), mode=ctypes.RTLD_GLOBAL)  # plug-ins use the same copy
    except OSError as error:
        raise LibraryNotFound(f"cannot load libheadroom: {error}. Install the package with `pip install .`, or set HEADROOM_LIBRARY_DIR to the "
                              "folder of libheadroom.so.0, such as `build` after `make`") from None
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int if result is None else result
        if result is None:
            function.errcheck = check
    return loaded


def text_of(function, *arguments):
    """The text of a function that formats into (buffer, capacity) and returns the length of the whole text."""
    capacity = 1 << 14
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        length = function(*arguments, buffer, capacity)
        if length < capacity:
            return buffer.value.decode(errors="replace")
        capacity = length + 1


library = load()
