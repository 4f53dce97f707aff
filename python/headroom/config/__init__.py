"""Devices, their limits, and settings of the process: the names of tf.config."""
from . import experimental
from .._devices import LogicalDevice, LogicalDeviceConfiguration, PhysicalDevice
from .._devices import get_logical as get_logical_device_configuration
from .._devices import list_logical as list_logical_devices
from .._devices import list_physical as list_physical_devices
from .._devices import set_logical as set_logical_device_configuration

__all__ = ["LogicalDevice", "LogicalDeviceConfiguration", "PhysicalDevice", "experimental", "functions_run_eagerly", "get_logical_device_configuration",
           "list_logical_devices", "list_physical_devices", "run_functions_eagerly", "set_logical_device_configuration"]


def run_functions_eagerly(run_eagerly):
    """True: functions are not traced into graphs; their code runs as it is written, for debugging."""
    from .._runtime import function
    function.run_functions_eagerly(run_eagerly)


def functions_run_eagerly():
    """Whether run_functions_eagerly is on."""
    from .._runtime import function
    return function.functions_run_eagerly()
