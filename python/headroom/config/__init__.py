"""Devices, their limits, and settings of the process: the names of tf.config."""
from . import experimental
from .._devices import LogicalDevice, LogicalDeviceConfiguration, PhysicalDevice
from .._devices import get_logical as get_logical_device_configuration
from .._devices import list_logical as list_logical_devices
from .._devices import list_physical as list_physical_devices
from .._devices import set_logical as set_logical_device_configuration

__all__ = ["LogicalDevice", "LogicalDeviceConfiguration", "PhysicalDevice", "experimental", "get_logical_device_configuration", "list_logical_devices",
           "list_physical_devices", "set_logical_device_configuration"]
