"""Exceptions: what a call of the library returned, with the library's message.

The names that TensorFlow has for them are here too: `except headroom.errors.ResourceExhaustedError` catches headroom.OutOfMemory.
"""


class Error(RuntimeError):
    """A call of libheadroom failed. The text says what failed and what to do about it; `status` is such as "HR_IO"."""

    status = "HR_?"

    @property
    def message(self):
        """The library's message."""
        return str(self)


class ReportText(str):
    """The text of an out-of-memory report, which a notebook shows in lines."""

    def _repr_html_(self):
        from . import _display
        return _display.text("out of memory", str(self))


class OutOfMemory(Error, MemoryError):
    """The device, or the limit set on it, has no room for the request. Where allocations are reported (RunOptions, HEADROOM_OOM_REPORT), `report` and
    `allocation_log` say what held the memory and what was allocated last. The library keeps the last 16 reports."""

    report_id = 0

    def _format(self, function):
        from . import _library
        return _library.text_of(getattr(_library.library, function), self.report_id) if self.report_id else ""

    @property
    def report(self):
        """The whole report as text; "" if none was made, or there were 16 later ones."""
        return ReportText(self._format("hr_oom_format_text"))

    @property
    def report_json(self):
        """The whole report as JSON (docs/oom-report.schema.json), or ""."""
        return self._format("hr_oom_format_json")

    @property
    def allocation_log(self):
        """The recent allocations as a JSON array of objects with shape, dtype, op_name and time, or ""."""
        return self._format("hr_oom_format_log")


class InvalidArgument(Error, ValueError):
    """An argument is outside what the function takes."""


class NoSuchDevice(Error, LookupError):
    """The device name cannot be parsed, or there is no such device."""


class InUse(Error):
    """It is in use, so it cannot be changed now."""


class FileError(Error, OSError):
    """A file could not be read or written, or is not what it should be."""


class InvalidHandle(Error):
    """The session, graph or value was closed or released."""


class AlreadyExists(Error, ValueError):
    """The name is taken."""


class Unsupported(Error, NotImplementedError):
    """The device or the library cannot do this."""


class TooMany(Error):
    """A fixed maximum number is reached."""


class DeviceError(Error):
    """The device reported an error, or its contents were damaged."""


class LibraryNotFound(ImportError):
    """libheadroom could not be loaded."""


BY_STATUS = {
    "HR_INVALID_ARGUMENT": InvalidArgument,
    "HR_BAD_LIMIT": InvalidArgument,
    "HR_UNKNOWN_ALLOCATOR": InvalidArgument,
    "HR_OUT_OF_MEMORY": OutOfMemory,
    "HR_NO_HOST_MEMORY": OutOfMemory,
    "HR_BAD_DEVICE_NAME": NoSuchDevice,
    "HR_NO_SUCH_DEVICE": NoSuchDevice,
    "HR_AMBIGUOUS_DEVICE": NoSuchDevice,
    "HR_IN_USE": InUse,
    "HR_INVALID_HANDLE": InvalidHandle,
    "HR_ALREADY_EXISTS": AlreadyExists,
    "HR_UNSUPPORTED": Unsupported,
    "HR_TOO_MANY": TooMany,
    "HR_DEVICE_ERROR": DeviceError,
    "HR_CORRUPT": DeviceError,
    "HR_IO": FileError,
    "HR_BAD_FORMAT": FileError,
    "HR_TRUNCATED": FileError,
    "HR_TOO_NEW": FileError,
}

# ---- TensorFlow's names ----

OpError = Error
ResourceExhaustedError = OutOfMemory
InvalidArgumentError = InvalidArgument
NotFoundError = NoSuchDevice
FailedPreconditionError = InUse
CancelledError = InvalidHandle
AlreadyExistsError = AlreadyExists
UnimplementedError = Unsupported
InternalError = DeviceError
