"""Headroom as the allocator of CuPy's arrays.

    import headroom.cupy
    headroom.cupy.install(limit="8GB")      # before the arrays that it should manage

Each CUDA device that CuPy uses gets an allocator of Headroom, with the same limit. Memory belongs to the stream that is current in CuPy when it is
allocated. It is freed when the last array that uses it is gone; another stream that gets it then waits for the first one, on the device. Arrays do not
move: Large Model Support is for PyTorch and for programs that use Headroom's tensors.
"""
import ctypes
import threading

import cupy

from . import _library, _stats, sizes
from ._library import library

__all__ = ["AlreadyInstalled", "NotInstalled", "install", "installed", "stats", "trim"]

# hr_stream in headroom.h
STREAM_DEFAULT = 0
STREAM_HOST = 0x80000000

# Handles that CUDA reserves: the default stream, and the calling thread's own, which is a different stream in each thread.
LEGACY_STREAM = 1
PER_THREAD_STREAM = 2


class AlreadyInstalled(RuntimeError):
    """install() was called before."""


class NotInstalled(RuntimeError):
    """install() was not called yet."""


class Block:
    """The owner of one block: CuPy keeps it as long as an array uses the memory."""

    def __init__(self, device, address, unknown_stream):
        self.device = device
        self.address = address
        self.unknown_stream = unknown_stream  # a stream without a number, whose work Headroom cannot wait for on the device

    def __del__(self):
        try:
            if self.unknown_stream is not None:
                self.device.wait_for(self.unknown_stream)
        finally:
            # The stream of the allocation is waited for, as CuPy's programs expect; other streams are the program's to order.
            library.hr_free(self.device.allocator, self.address, STREAM_HOST)


class Device:
    """Headroom's allocator of one CUDA device, and the numbers of CuPy's streams there."""

    def __init__(self, number, limit):
        self.number = number
        self.device = _stats.find_device(f"GPU:{number}")
        self.lock = threading.Lock()
        # By address, with the stream itself: Headroom uses a stream that it knows, so it must not be destroyed.
        self.streams = {}
        options = _library.struct("hr_allocator_options", name=b"cupy", limit_bytes=limit)
        handle = _library.HANDLE()
        library.hr_allocator_create(self.device, ctypes.byref(options), ctypes.byref(handle))
        self.allocator = handle.value

    def number_of(self, stream):
        """STREAM_HOST for an external stream, which its owner may destroy at any time, for CUDA's special handles, and when Headroom has no number left."""
        if not stream.ptr:
            return STREAM_DEFAULT
        if stream.ptr in (LEGACY_STREAM, PER_THREAD_STREAM) or isinstance(stream, cupy.cuda.ExternalStream):
            return STREAM_HOST
        with self.lock:
            if stream.ptr in self.streams:
                return self.streams[stream.ptr][0]
            number = ctypes.c_uint32()
            try:
                library.hr_stream_import(self.device, stream.ptr, ctypes.byref(number))
            except _library.Error as error:
                if error.status != "HR_TOO_MANY":
                    raise
                return STREAM_HOST
            self.streams[stream.ptr] = (number.value, stream)
            return number.value

    def wait_for(self, stream):
        """The whole device where the stream cannot be waited for: it was destroyed, or its handle means the stream of another thread here."""
        if stream.ptr != PER_THREAD_STREAM:
            try:
                return stream.synchronize()
            except Exception:
                pass
        cupy.cuda.Device(self.number).synchronize()

    def malloc(self, size):
        if size == 0:
            return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, self, self.number), 0)
        stream = cupy.cuda.get_current_stream()
        number = self.number_of(stream)
        request = _library.struct("hr_request", bytes=size, stream=number)
        address = ctypes.c_void_p()
        try:
            library.hr_alloc(self.allocator, ctypes.byref(request), ctypes.byref(address))
        except _library.OutOfMemory as error:
            stats = _stats.allocator_stats(self.allocator)
            raise cupy.cuda.memory.OutOfMemoryError(size, stats["bytes_in_use"], stats["bytes_limit"]) from error
        block = Block(self, address.value, stream if number == STREAM_HOST else None)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address.value, size, block, self.number), 0)


_devices = None  # by number
_limit = 0
_lock = threading.Lock()


def _check_cuda():
    library.hr_cuda_check()


def _device(number):
    with _lock:
        if number not in _devices:
            _devices[number] = Device(number, _limit)
        return _devices[number]


def _malloc(size):
    return _device(cupy.cuda.Device().id).malloc(size)


def installed():
    """Whether install() was called."""
    return _devices is not None


def install(limit=None):
    """Makes Headroom the allocator of arrays that are created from now on. [limit]: the most bytes on each device, such as "8GB"; None = all of it.

    A failure leaves CuPy as it was: AlreadyInstalled, ValueError, or a headroom.Error, such as headroom.NoSuchDevice without a CUDA device."""
    global _devices, _limit
    if _devices is not None:
        raise AlreadyInstalled("Headroom is CuPy's allocator already")
    bytes_of_limit = sizes.argument_size(limit, "limit", "8GB") if limit is not None else 0
    _check_cuda()
    number = cupy.cuda.Device().id
    first = Device(number, bytes_of_limit)  # a limit above the card is refused here
    _limit = bytes_of_limit
    _devices = {number: first}
    cupy.cuda.set_allocator(_malloc)


def _need(device):
    if _devices is None:
        raise NotInstalled("call headroom.cupy.install() first")
    return _device(cupy.cuda.Device().id if device is None else device)


def stats(device=None):
    """Statistics of the allocator of a CUDA device, by default the current one (headroom.h, HR_STATS_TABLE)."""
    return _stats.allocator_stats(_need(device).allocator)


def trim(device=None):
    """Returns free memory to the card, as free_all_blocks() of CuPy's own pool does. The bytes that were returned."""
    released = ctypes.c_uint64()
    library.hr_allocator_trim(_need(device).allocator, ctypes.byref(released))
    return released.value
