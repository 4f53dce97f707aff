"""Allocators that are written in Python."""
import ctypes
import itertools

from .. import _library, _stats
from .._c import parse
from .._library import library


OK, OUT_OF_MEMORY, INVALID_ARGUMENT = 0, 2, 1
_numbers = itertools.count()
_registered = []    # the callbacks and their allocators: the library may call them until the process ends


class Allocator:
    """Base class of an allocator: it finds memory, and Headroom keeps the statistics.

    allocate(size, flags, arena=None)    the address of [size] bytes; 0 or MemoryError = there is none. `flags` is the alignment that the address needs
    deallocate(ptr)                      frees what allocate returned
    get_name()                           its name in reports

    headroom.compat.v1.get_default_graph()._set_allocator(allocator) puts it to use. The memory is the host's, so sessions that use it are on CPU:0. Methods may be
    called from any thread.
    """

    def __init__(self):
        self.error = None    # the last exception of a method that was not a MemoryError

    def allocate(self, size, flags, arena=None):
        """Returns the address of [size] bytes, aligned to [flags]; 0 or a MemoryError if there is none."""
        raise NotImplementedError("a class on headroom.compat.v1.Allocator needs a method allocate(self, size, flags, arena=None)")

    def deallocate(self, ptr):
        """Frees what allocate returned."""
        raise NotImplementedError("a class on headroom.compat.v1.Allocator needs a method deallocate(self, ptr)")

    def get_name(self):
        """The name in reports."""
        return type(self).__name__

    # ---- for the library ----

    def _alloc(self, state, size, alignment, stream, out):
        try:
            address = self.allocate(size, alignment)
            if not isinstance(address, int):
                raise TypeError(f"allocate returned {address!r}; return the address as an int, such as array.ctypes.data")
        except MemoryError:
            return OUT_OF_MEMORY
        except Exception as error:
            self.error = error
            _library.raised_in_callback(error)
            return OUT_OF_MEMORY if isinstance(error, RuntimeError) else INVALID_ARGUMENT
        _library.raised_in_callback(None)    # an earlier attempt's
        ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = address or None
        return OK if address else OUT_OF_MEMORY

    def _free(self, state, address, size, stream):
        try:
            self.deallocate(address)
        except Exception as error:
            self.error = error
            return INVALID_ARGUMENT
        return OK

    DEVICE = "CPU:0"

    def _create(self):
        """The handle of an allocator of the library that calls this one."""
        if getattr(self, "_kind", None) is None:
            self._kind = f"python_{next(_numbers)}".encode()
            table = _library.struct("hr_custom_allocator")
            alloc = parse.callback("hr_status (*)(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)", None)(self._alloc)
            free = parse.callback("hr_status (*)(void *state, void *address, size_t bytes, hr_stream stream)", None)(self._free)
            table.alloc, table.free = (ctypes.cast(each, ctypes.c_void_p).value for each in (alloc, free))
            library.hr_allocator_register(self._kind, ctypes.byref(table), None)
            _registered.append((self, alloc, free))
        name = str(self.get_name())[:31].encode()
        options = _library.struct("hr_allocator_options", kind=self._kind, name=name)
        handle = _library.HANDLE()
        library.hr_allocator_create(_stats.find_device(self.DEVICE), ctypes.byref(options), ctypes.byref(handle))
        return handle.value
