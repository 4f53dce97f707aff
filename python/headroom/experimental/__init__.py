"""The allocator statistics of a GPU: the names of tf.experimental. headroom.device_stats("GPU:0") has all statistics in one dictionary.

`gpu_id` counts logical GPUs from 0. Figures are for the whole device, the sum over its allocators.
"""
import operator

from .._library import exception, library
from ..errors import NoSuchDevice

STATISTICS = {
    "num_allocs": "The allocation requests since start or reset, refused ones included.",
    "bytes_in_use": "The bytes in use, rounding included.",
    "peak_bytes_in_use": "The most bytes in use since start or reset.",
    "largest_alloc_size": "The bytes of the largest allocation since start or reset.",
    "bytes_limit": "The most bytes that may be allocated.",
    "bytes_reserved": "The bytes reserved from the device.",
    "peak_bytes_reserved": "The most bytes reserved since start or reset.",
    "bytes_reservable_limit": "The most bytes that may be reserved from the device.",
    "bytes_inactive": "The bytes of resident tensors that no op is using.",
    "bytes_active": "The bytes in use less those that are inactive.",
    "peak_bytes_active": "The most active bytes since start or reset.",
    "bytes_reclaimed": "The bytes freed on the device by moving tensors to the host, in all.",
    "num_single_reclaims": "The times that evicting one tensor was enough.",
    "num_full_reclaims": "The times that everything inactive had to be evicted.",
    "num_defragmentations": "The times that live bytes were moved to join free memory.",
    "bytes_defragged": "The bytes moved by defragmentation.",
    # beyond the documents
    "num_multi_reclaims": "The times that evicting several adjacent tensors was enough.",
    "total_bytes_allocated": "The bytes of all allocations since start or reset, freed ones included.",
}

__all__ = ["dlpack"] + [f"get_{name}" for name in STATISTICS]


def _gpu(gpu_id):
    try:
        number = operator.index(gpu_id) if not isinstance(gpu_id, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"gpu_id is {gpu_id!r}; give the number of a GPU, such as 0")
    if not 0 <= number < 1 << 31:
        raise NoSuchDevice(f"gpu_id is {number}; GPUs are counted from 0: give a number such as 0")
    return number


def _getter(name, text):
    def get(gpu_id=0):
        number = _gpu(gpu_id)
        value = getattr(library, f"hr_get_{name}")(number)
        if value < 0:
            raise exception(-value, f"gpu_id is {number}: ")
        return value

    get.__name__ = get.__qualname__ = f"get_{name}"
    get.__doc__ = f"{text} `gpu_id` is the number of a logical GPU, such as 0."
    return get


for _name, _text in STATISTICS.items():
    globals()[f"get_{_name}"] = _getter(_name, _text)


def __getattr__(name):
    if name == "dlpack":
        import importlib
        return importlib.import_module(".dlpack", __name__)
    raise AttributeError(f"headroom.experimental has no {name!r}")
