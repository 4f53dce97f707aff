"""Physical and logical devices, as TensorFlow names them."""
import collections
import ctypes
import re

from . import _library, sizes
from ._library import library
from .errors import NoSuchDevice

PhysicalDevice = collections.namedtuple("PhysicalDevice", ["name", "device_type"])
PhysicalDevice.__doc__ = """A device of this machine: name "/physical_device:GPU:0", device_type "GPU"."""
LogicalDevice = collections.namedtuple("LogicalDevice", ["name", "device_type"])
LogicalDevice.__doc__ = """A device, or a part of one with a memory limit: name "/device:GPU:0", device_type "GPU"."""

MIB = 1 << 20


class LogicalDeviceConfiguration:
    """The memory limit of a logical device: a number of MiB, as in TensorFlow, or a size with a unit such as "1GiB"; None = all memory of the device."""

    def __init__(self, memory_limit=None):
        self.memory_limit = memory_limit if memory_limit is None else _mib(memory_limit)

    def __repr__(self):
        return f"LogicalDeviceConfiguration(memory_limit={self.memory_limit})"

    def __eq__(self, other):
        return isinstance(other, LogicalDeviceConfiguration) and other.memory_limit == self.memory_limit

    __hash__ = None


def _mib(limit):
    example = "give MiB as a number, such as 1024, or a size with a unit, such as '1GiB'"
    if isinstance(limit, bool) or not isinstance(limit, (int, float, str)):
        raise TypeError(f"memory_limit is {limit!r}; {example}")
    if isinstance(limit, str):
        if not re.search(r"[A-Za-z]", limit):
            raise ValueError(f"memory_limit is {limit!r}, without a unit; {example}")
        try:
            limit = sizes.parse_size(limit) / MIB
        except ValueError:
            raise ValueError(f"memory_limit is {limit!r}; {example}") from None
    if not 0 < limit < float("inf"):
        raise ValueError(f"memory_limit is {limit!r}; {example}")
    return limit


def infos():
    """hr_device_info of every logical device."""
    for index in range(library.hr_device_count()):
        device = _library.DEVICE()
        library.hr_device_at(index, ctypes.byref(device))
        info = _library.struct("hr_device_info")
        library.hr_device_get_info(device, ctypes.byref(info))
        yield info


def kind_of(info):
    return info.name.decode().partition(":")[0]


def _wanted(device_type):
    if device_type is not None and not isinstance(device_type, str):
        raise TypeError(f"device_type is {device_type!r}; give 'GPU', 'CPU', or None for both")
    return ("CPU", "GPU") if device_type is None else (device_type.upper(),)


def list_physical(device_type=None):
    """The devices of a type, or the CPU and all GPUs. Where there is no CUDA device, GPU:0 is emulated."""
    return [PhysicalDevice(f"/physical_device:{kind}:{number}", kind)
            for kind in _wanted(device_type) for number in range(library.hr_device_physical_count(kind.encode()))]


def list_logical(device_type=None):
    """The logical devices of a type, or of all types."""
    return [LogicalDevice(f"/device:{info.name.decode()}", kind_of(info)) for kind in _wanted(device_type) for info in infos() if kind_of(info) == kind]


def physical_name(device):
    """"GPU:0" of a PhysicalDevice or a name."""
    name = getattr(device, "name", device)
    match = re.fullmatch(r"(?:/physical_device:)?([A-Za-z]+:\d+)", name) if isinstance(name, str) else None
    if not match:
        raise TypeError(f"device is {device!r}; give an element of headroom.config.list_physical_devices('GPU'), or a name such as 'GPU:0'")
    return match.group(1)


def _existing(device):
    """physical_name of a device that there is."""
    name = physical_name(device).upper()
    kind, _, number = name.partition(":")
    if int(number) >= library.hr_device_physical_count(kind.encode()):
        names = ", ".join(each.name[len("/physical_device:"):] for each in list_physical())
        raise NoSuchDevice(f"device is {name!r}, which this machine does not have; it has {names}")
    return name


_configured = {}


def set_logical(device, logical_devices):
    """Splits a physical device into logical devices with a memory limit each. Before the device is first used: InUse afterwards."""
    name = _existing(device)
    example = "give a list such as [headroom.config.LogicalDeviceConfiguration(memory_limit=1024)]"
    if isinstance(logical_devices, LogicalDeviceConfiguration) or not isinstance(logical_devices, (list, tuple)):
        raise TypeError(f"logical_devices is {logical_devices!r}; {example}")
    for each in logical_devices:
        if not isinstance(each, LogicalDeviceConfiguration):
            raise TypeError(f"logical_devices contains {each!r}; {example}")
    if not logical_devices:
        raise ValueError(f"logical_devices is empty; {example}")
    if len(logical_devices) > 1 and any(each.memory_limit is None for each in logical_devices):
        raise ValueError(f"one of several logical_devices has no memory_limit; {example}")
    limits = [int(each.memory_limit * MIB) for each in logical_devices if each.memory_limit is not None]
    if limits:
        library.hr_device_set_logical(name.encode(), (ctypes.c_uint64 * len(limits))(*limits), len(limits))
        _configured[name] = list(logical_devices)


def get_logical(device):
    """The configurations that set_logical gave the device, or None."""
    return _configured.get(_existing(device))


def details(device):
    """What is known about a physical device: its name, memory in bytes, and whether it is emulated. It is in use from then on."""
    kind, _, number = _existing(device).partition(":")
    info = next(info for info in infos() if kind_of(info) == kind and info.physical_index == int(number))
    return {"device_name": info.description.decode(errors="replace"), "backend": info.backend.decode(), "memory_bytes": info.total_bytes,
            "free_bytes": info.free_bytes, "page_bytes": info.page_bytes, "emulated": info.backend == b"emulated"}
