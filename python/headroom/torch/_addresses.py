"""Calls through which an address leaves PyTorch, or memory is read without an op.

After the first kind the storage stays resident for its life; during the second it is pinned."""
import contextlib
import functools
import sys
import threading

import torch
import torch.utils.dlpack

LEAVING = {torch.Tensor: ["data_ptr", "numpy", "share_memory_"],
           torch.UntypedStorage: ["data_ptr", "_share_fd_cpu_", "_share_filename_cpu_"]}
READING = {torch.Tensor: ["tolist", "apply_", "map_", "map2_"],
           torch.UntypedStorage: ["tolist", "__getitem__", "__setitem__", "_write_file", "_set_from_file", "byteswap", "fill_", "resize_"]}
# Functions of torch._C that make a DLPack capsule, also for Tensor.__dlpack__. Other modules have them under public names.
EXPORTING = ["_to_dlpack", "_to_dlpack_versioned"]
# Modules of PyTorch that compare addresses, or test their alignment, and do not access memory. They get an address that no other storage has.
COMPARING = ("torch.distributed.fsdp.", "torch.distributed.utils", "torch.nn.modules.rnn", "torch._inductor.utils")


def only_compares(frame):
    return frame.f_globals.get("__name__", "").startswith(COMPARING)


def as_tensor(value):
    """Only tensors reach C++: a storage is given as a tensor that has it."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.empty(0, dtype=torch.uint8, device=value.device).set_(value)


@contextlib.contextmanager
def held(*values):
    pins = []
    try:
        for value in values:
            pins.append(torch.ops.headroom.hold(as_tensor(value)))
        yield
    finally:
        for pin in pins:
            torch.ops.headroom.let_go(pin)


class Addresses:
    def __init__(self, device_type):
        self.device_type = device_type
        self.local = threading.local()  # .serializing: the thread is in torch.save or torch.load, which compare addresses

    def is_ours(self, value):
        return value.device.type == self.device_type and not (isinstance(value, torch.Tensor) and value.layout is not torch.strided)

    def wrap(self, owner, name, leaves):
        original = getattr(owner, name, None)
        if original is None:  # not in this version of PyTorch
            return

        @functools.wraps(original)
        def method(value, *args, **kwargs):
            if not self.is_ours(value):
                return original(value, *args, **kwargs)
            if name == "data_ptr" and (getattr(self.local, "serializing", False) or only_compares(sys._getframe(1))):
                tensor = as_tensor(value)
                identity = torch.ops.headroom.identity(tensor)
                return identity + tensor.storage_offset() * tensor.element_size() if identity else 0
            if leaves:
                torch.ops.headroom.keep([as_tensor(value)])
                return original(value, *args, **kwargs)
            with held(value, *(other for other in args if isinstance(other, torch.Tensor) and self.is_ours(other))):
                return original(value, *args, **kwargs)

        setattr(owner, name, method)

    def wrap_export(self, name):
        original = getattr(torch._C, name, None)
        if original is None:  # not in this version of PyTorch
            return

        @functools.wraps(original)
        def export(*args, **kwargs):
            value = args[0] if args else kwargs.pop("data", None)
            if isinstance(value, torch.Tensor) and self.is_ours(value):
                device = kwargs.get("dl_device")
                # The copy is made here, because one that PyTorch makes can be evicted as soon as its op has ended.
                if kwargs.get("copy") and (device is None or tuple(device) == tuple(value.__dlpack_device__())):
                    value = value.detach().clone()
                    del kwargs["copy"]
                torch.ops.headroom.keep([value])
            return original(value, *args[1:], **kwargs)

        for module in (torch._C, torch, torch.utils.dlpack):
            for alias, value in list(vars(module).items()):
                if value is original:
                    setattr(module, alias, export)

    def wrap_serialization(self, name):
        original = getattr(torch.serialization, name)

        @functools.wraps(original)
        def function(*args, **kwargs):
            before = getattr(self.local, "serializing", False)
            self.local.serializing = True
            try:
                return original(*args, **kwargs)
            finally:
                self.local.serializing = before

        setattr(torch.serialization, name, function)

    def install(self):
        for name in ("_save", "_legacy_save", "_load", "_legacy_load"):
            self.wrap_serialization(name)
        for name in EXPORTING:
            self.wrap_export(name)
        for table, leaves in ((LEAVING, True), (READING, False)):
            for owner, names in table.items():
                for name in names:
                    self.wrap(owner, name, leaves)
        is_ours = self.is_ours

        class FileWriter(torch._C.PyTorchFileWriter):
            """torch.save writes the contents of storages without an op."""

            def write_record(self, name, data, size):
                if not isinstance(data, torch.UntypedStorage) or not is_ours(data):
                    return super().write_record(name, data, size)
                with held(data):
                    return super().write_record(name, data, size)

        torch._C.PyTorchFileWriter = FileWriter
