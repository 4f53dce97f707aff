"""Memory of whole devices, and Large Model Support: the names of tf.config.experimental."""
from .. import _stats
from .._devices import LogicalDeviceConfiguration as VirtualDeviceConfiguration
from .._devices import details as get_device_details
from .._devices import get_logical as get_virtual_device_configuration
from .._devices import list_logical as list_logical_devices
from .._devices import list_physical as list_physical_devices
from .._devices import physical_name
from .._devices import set_logical as set_virtual_device_configuration
from .._library import library
from ..errors import Unsupported

__all__ = ["VirtualDeviceConfiguration", "get_device_details", "get_lms_defrag_enabled", "get_lms_enabled", "get_memory_growth", "get_memory_info",
           "get_memory_usage", "get_virtual_device_configuration", "list_logical_devices", "list_physical_devices", "reset_memory_stats",
           "set_lms_defrag_enabled", "set_lms_enabled", "set_memory_growth", "set_virtual_device_configuration"]


def get_memory_info(device=None):
    """{"current": bytes in use on the device by all its allocators, "peak": most since start or reset}. None = the default device, GPU:0."""
    return _stats.memory_info(device)


def get_memory_usage(device=None):
    """Bytes in use on the device."""
    return _stats.memory_info(device)["current"]


def reset_memory_stats(device=None):
    """Sets peaks to the present values and counts to 0 (hr_reset_memory_stats in headroom.h lists every field)."""
    _stats.reset_stats(device)


def _flag(value, name):
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; give True or False")
    return value


def set_lms_enabled(enabled):
    """Whether tensors may be evicted to the host when the device is full. For allocators on which no tensor was made yet: call it first."""
    library.hr_set_lms_enabled(_flag(enabled, "enabled"))


def get_lms_enabled():
    """Whether set_lms_enabled is on."""
    return library.hr_get_lms_enabled()


def set_lms_defrag_enabled(enabled):
    """Whether live tensors may be moved to join free memory. For allocators on which no tensor was made yet."""
    library.hr_set_lms_defrag_enabled(_flag(enabled, "enabled"))


def get_lms_defrag_enabled():
    """Whether set_lms_defrag_enabled is on."""
    return library.hr_get_lms_defrag_enabled()


def set_memory_growth(device, enable):
    """Memory always grows as it is needed, so only True is possible."""
    physical_name(device)
    if not _flag(enable, "enable"):
        raise Unsupported("enable is False, but memory grows as it is needed; leave the call out, or give True")


def get_memory_growth(device):
    """True: memory always grows as it is needed."""
    physical_name(device)
    return True
