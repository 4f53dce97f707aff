"""Statistics as dictionaries."""
import ctypes
import json

from ._library import DEVICE, encoded, library, struct, struct_type, text_of
from .sizes import format_size

# No struct of the library is larger, and one that is too large is filled as far as the library knows it. The names of the fields come from
# the library's own JSON.
MAX_STRUCT_BYTES = 4096

# HR_LMS_STATS_TABLE in headroom_lms.h, in its order; a test compares them.
LMS_FIELDS = """num_tensors num_pins bytes_pinned bytes_inactive bytes_reclaimed bytes_out_now peak_bytes_out bytes_copied_out bytes_copied_in
    num_evictions num_clean_evictions num_restores num_single_reclaims num_multi_reclaims num_full_reclaims num_planned_evictions
    num_prefetches num_prefetch_hits num_prefetch_misses num_prefetches_refused stall_ns num_steps num_steps_planned num_mismatches
    plan_step_ns plan_bound_ns plan_bytes_out plan_bytes_in host_bytes peak_host_bytes spilled_bytes num_defragmentations bytes_defragged
    num_pin_waits num_repeats
    num_recipes num_ghosts num_drops bytes_dropped bytes_dropped_now peak_bytes_dropped
    num_recomputes num_failed_recomputes recompute_ns num_planned_recomputes plan_again_ns""".split()


class Statistics(dict):
    """Statistics by name: a dictionary, which a notebook shows as a table."""

    def _repr_html_(self):
        from . import _display
        return _display.table("statistics", self.items())


def device_name(name):
    return None if name is None else encoded(name, "device", "GPU:0")


def find_device(name):
    device = DEVICE()
    library.hr_device_find(device_name(name), ctypes.byref(device))
    return device


def opaque_stats(read, handle):
    buffer = ctypes.create_string_buffer(MAX_STRUCT_BYTES)
    ctypes.cast(buffer, ctypes.POINTER(ctypes.c_size_t))[0] = MAX_STRUCT_BYTES
    read(handle, buffer)
    return buffer


def device_stats(name=None):
    """The statistics of a device as a dictionary, such as {"bytes_in_use": 1024, ...} (headroom.h, HR_STATS_TABLE)."""
    return Statistics(json.loads(text_of(library.hr_stats_format_json, opaque_stats(library.hr_device_get_stats, find_device(name)))))


def device_summary(name=None):
    """The same as a table for people."""
    return text_of(library.hr_stats_format, opaque_stats(library.hr_device_get_stats, find_device(name)))


def allocator_stats(allocator):
    """All statistics of an allocator."""
    return Statistics(json.loads(text_of(library.hr_stats_format_json, opaque_stats(library.hr_allocator_get_stats, allocator))))


HOLDER_KINDS = {"op": 0, "scope": 1, "tag": 2}  # hr_holder_kind


class Holders(dict):
    """Bytes by name: a dictionary, which a notebook shows as a table."""

    def _repr_html_(self):
        from . import _display
        return _display.table("bytes held", [(f"{name or '(none)'}", format_size(size)) for name, size in self.items()])


def allocator_holders(allocator, by):
    if by not in HOLDER_KINDS:
        raise ValueError(f"holders by {' or '.join(map(repr, HOLDER_KINDS))}, not {by!r}")
    capacity = 256
    while True:
        holders = (struct_type("hr_holder") * capacity)()
        count = ctypes.c_size_t()
        library.hr_allocator_get_holders(allocator, HOLDER_KINDS[by], holders, capacity, ctypes.byref(count))
        if count.value < capacity:
            return Holders((library.hr_name_text(holder.name).decode(errors="replace"), holder.bytes) for holder in holders[:count.value])
        capacity *= 4


def lms_stats(allocator):
    stats = (ctypes.c_int64 * (len(LMS_FIELDS) + 1))()
    stats[0] = ctypes.sizeof(stats)
    library.hr_lms_get_stats(allocator, stats)
    return Statistics(zip(LMS_FIELDS, stats[1:]))


def memory_info(name=None):
    """{"current": bytes in use now, "peak": most bytes in use since start or reset}."""
    info = struct("hr_memory_info")
    library.hr_get_memory_info(device_name(name), ctypes.byref(info))
    return Statistics(current=info.current, peak=info.peak)


def reset_stats(name=None):
    """Sets peaks of a device to the present values and counts to 0. None = the default device."""
    library.hr_reset_memory_stats(device_name(name))
