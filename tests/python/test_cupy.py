#!/usr/bin/env python3
"""headroom.cupy on an emulated device, with a small stand-in for the parts of CuPy that it uses. tests/gpu/test_cupy.py is for a card."""
import ctypes
import gc
import os
import re
import sys
import types
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["HEADROOM_COMMAND"]).parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.update(HEADROOM_LIBRARY_DIR=str(BUILD), HEADROOM_CUDA="0", HEADROOM_EMULATED="memory=64MiB,page=64KiB,devices=2")

if not (BUILD / "libheadroom.so.0").exists():
    print("skipped: this build has no shared library")
    sys.exit(0)


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        if ptr == 0 and device_id < 0:
            raise RuntimeError("UnownedMemory requires explicit device_id for a null pointer.")
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class Stream:
    def __init__(self, ptr):
        self.ptr, self.synchronized = ptr, 0

    def synchronize(self):
        self.synchronized += 1


class ExternalStream(Stream):
    pass


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes, limit set to: {limit:,} bytes).")


class FakeCuda(types.ModuleType):
    def __init__(self):
        super().__init__("cupy.cuda")
        self.UnownedMemory, self.MemoryPointer, self.ExternalStream = UnownedMemory, MemoryPointer, ExternalStream
        self.memory = types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
        self.current, self.device, self.allocator = Stream(0), 0, None
        self.synchronized = []  # numbers of devices

    def Device(self, number=None):
        number = self.device if number is None else number
        return types.SimpleNamespace(id=number, synchronize=lambda: self.synchronized.append(number))

    def get_current_stream(self):
        return self.current

    def set_allocator(self, allocator):
        self.allocator = allocator


fake = types.ModuleType("cupy")
fake.cuda = cuda = FakeCuda()
sys.modules["cupy"] = fake

import headroom
import headroom.cupy as plugin


class Cupy(unittest.TestCase):
    """Tests run in the order of their names; the first ones need a process without the allocator."""

    def test_0_mistakes_of_installation_leave_cupy_alone(self):
        with self.assertRaisesRegex(headroom.NoSuchDevice, "CUDA"):
            plugin.install()
        with self.assertRaises(plugin.NotInstalled):
            plugin.stats()
        with self.assertRaisesRegex(ValueError, "limit is 'much'.*8GB"):
            plugin.install(limit="much")
        plugin._check_cuda = lambda: None
        with self.assertRaisesRegex(headroom.InvalidArgument, "above what GPU:0 may use"):
            plugin.install(limit="1GB")
        self.assertIsNone(cuda.allocator)
        self.assertFalse(plugin.installed())

    def test_1_install(self):
        plugin._check_cuda = lambda: None
        plugin.install(limit="16MiB")
        self.assertTrue(plugin.installed())
        self.assertEqual(plugin.stats()["bytes_limit"], 16 << 20)
        with self.assertRaises(plugin.AlreadyInstalled):
            plugin.install()

    def test_memory_is_freed_with_the_last_array(self):
        before = plugin.stats()["bytes_in_use"]
        pointer = cuda.allocator(1 << 20)
        ctypes.memset(pointer.ptr, 7, 1 << 20)
        self.assertEqual((pointer.mem.size, pointer.mem.device_id), (1 << 20, 0))
        self.assertEqual(plugin.stats()["bytes_in_use"], before + (1 << 20))
        view = MemoryPointer(pointer.mem, 256)
        del pointer
        self.assertEqual(plugin.stats()["bytes_in_use"], before + (1 << 20))
        del view
        gc.collect()
        self.assertEqual(plugin.stats()["bytes_in_use"], before)

    def test_an_empty_array_has_no_memory(self):
        before = plugin.stats()["num_allocs"]
        self.assertEqual(cuda.allocator(0).ptr, 0)
        self.assertEqual(plugin.stats()["num_allocs"], before)

    def test_out_of_memory_is_cupys_error_and_the_program_goes_on(self):
        with self.assertRaises(OutOfMemoryError) as caught:
            cuda.allocator(17 << 20)
        self.assertIsInstance(caught.exception.__cause__, headroom.OutOfMemory)
        self.assertIn("16,777,216", str(caught.exception))
        self.assertNotEqual(cuda.allocator(15 << 20).ptr, 0)

    def test_devices_have_allocators_of_their_own(self):
        cuda.device = 1
        try:
            pointer = cuda.allocator(1 << 20)
            self.assertEqual(pointer.mem.device_id, 1)
            self.assertEqual(plugin.stats()["bytes_in_use"], 1 << 20)
            self.assertEqual(plugin.stats(1)["bytes_in_use"] - plugin.stats(0)["bytes_in_use"], 1 << 20)
        finally:
            cuda.device = 0

    def test_a_stream_that_cannot_be_known_is_waited_for(self):
        cuda.current = ExternalStream(0x1234)
        try:
            pointer = cuda.allocator(1 << 20)
            self.assertEqual(cuda.current.synchronized, 0)
            del pointer
            gc.collect()
            self.assertEqual(cuda.current.synchronized, 1)
        finally:
            cuda.current = Stream(0)

    def test_memory_of_a_destroyed_stream_is_freed_after_a_wait_for_the_device(self):
        class Destroyed(ExternalStream):
            def synchronize(self):
                raise RuntimeError("cudaErrorInvalidResourceHandle")

        before = plugin.stats()["bytes_in_use"]
        cuda.current = Destroyed(0x1234)
        try:
            pointer = cuda.allocator(1 << 20)
        finally:
            cuda.current = Stream(0)
        cuda.synchronized.clear()
        del pointer
        gc.collect()
        self.assertEqual(cuda.synchronized, [0])
        self.assertEqual(plugin.stats()["bytes_in_use"], before)

    def test_handles_that_cuda_reserves_are_not_imported(self):
        imported = []
        original = plugin.library.hr_stream_import
        plugin.library.hr_stream_import = lambda device, native, out: imported.append(native)
        try:
            # The stream of a thread is not that of the thread that frees: the whole device is waited for.
            for handle, of_stream, of_device in ((1, 1, []), (2, 0, [0])):
                cuda.synchronized.clear()
                stream = cuda.current = Stream(handle)
                pointer = cuda.allocator(1 << 20)
                cuda.current = Stream(0)
                del pointer
                gc.collect()
                self.assertEqual((stream.synchronized, cuda.synchronized), (of_stream, of_device))
            self.assertEqual(imported, [])
        finally:
            plugin.library.hr_stream_import = original
            cuda.current = Stream(0)

    def test_a_known_stream_is_kept(self):
        imported = []
        original = plugin.library.hr_stream_import

        def hr_stream_import(device, native, out):
            imported.append(native)
            out._obj.value = 0

        plugin.library.hr_stream_import = hr_stream_import
        stream = cuda.current = Stream(0x5678)
        references = sys.getrefcount(stream)
        try:
            for _ in range(3):
                cuda.allocator(1 << 10)
            self.assertEqual(imported, [0x5678])
            self.assertGreater(sys.getrefcount(stream), references)
            self.assertEqual(stream.synchronized, 0)
        finally:
            plugin.library.hr_stream_import = original
            cuda.current = Stream(0)

    def test_trim_returns_free_memory(self):
        del cuda.allocator(8 << 20).mem
        gc.collect()
        self.assertGreaterEqual(plugin.trim(), 8 << 20)

    def test_the_stream_of_the_host_is_that_of_the_header(self):
        header = (ROOT / "include" / "headroom.h").read_text()
        self.assertIn(f"#define HR_STREAM_HOST {plugin.STREAM_HOST:#x}u", header)


if __name__ == "__main__":
    unittest.main()
