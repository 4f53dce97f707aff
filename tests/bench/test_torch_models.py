#!/usr/bin/env python3
"""bench/torch_models.py with the profilers of old and new versions of PyTorch, without PyTorch: its calls are replaced."""
import importlib.util
import sys
import types
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Anything(types.ModuleType):
    """A module that has every name; each is a class, so that it can be a base class."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def load():
    torch, nn, functional = (sys.modules.setdefault(name, Anything(name)) for name in ("torch", "torch.nn", "torch.nn.functional"))
    torch.nn, nn.functional = nn, functional
    spec = importlib.util.spec_from_file_location("torch_models", ROOT / "bench" / "torch_models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Event:
    def __init__(self, nbytes, **calls):
        self.nbytes = lambda: nbytes
        for name, value in calls.items():
            setattr(self, name, lambda value=value: value)


class PeakOfTensors(unittest.TestCase):
    # 100 bytes exist before. By time: +50 = 150, +200 = 350, -50 = 300, +30 = 330; the peak is 350.
    CHANGES = ((1, 50), (4, 30), (2, 200), (3, -50))

    def test_clock_in_microseconds(self):
        events = [Event(change, start_us=at) for at, change in self.CHANGES]
        self.assertEqual(load().peak_of(100, events), 350)

    def test_clock_in_nanoseconds_alone(self):
        events = [Event(change, start_ns=at) for at, change in self.CHANGES]
        self.assertEqual(load().peak_of(100, events), 350)

    def test_no_event_is_above_what_was_there(self):
        self.assertEqual(load().peak_of(100, [Event(-40, start_ns=1)]), 100)


class NameOfBlas(unittest.TestCase):
    def test_libraries_of_others_are_not_named(self):
        files = ["/venv/numpy.libs/libscipy_openblas64_.so", "/venv/nvidia/lib/libcublas.so.13", "/venv/torch/lib/libtorch_cpu.so"]
        self.assertEqual(load().blas_among(files), "PyTorch's own")

    def test_that_of_the_system_is(self):
        files = ["/usr/lib/x86_64-linux-gnu/openblas-openmp/libblas.so.3", "/usr/lib/x86_64-linux-gnu/libc.so.6"]
        self.assertEqual(load().blas_among(files), "openblas-openmp/libblas.so.3")


if __name__ == "__main__":
    unittest.main()
