#!/usr/bin/env python3
"""bench/cuda_programs.py on the stand-in driver: it measures the three modes of a program."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("HEADROOM_COMMAND") or ROOT / "build" / "headroom").parent
sys.path.insert(0, str(ROOT / "bench"))
import cuda_programs  # noqa: E402


@unittest.skipUnless((BUILD / "libheadroom_cuda.so").exists(), "sanitizer builds have no shared library")
class OnTheStandIn(unittest.TestCase):
    def run_bench(self, *arguments, **extra):
        settings = {**os.environ, "LD_LIBRARY_PATH": str(BUILD / "fake_cuda" / "whole"), **extra}
        settings.pop("HEADROOM_CUDA", None)
        return subprocess.run([sys.executable, str(ROOT / "bench" / "cuda_programs.py"), "--build", str(BUILD), *arguments], env=settings, capture_output=True, text=True, timeout=120)

    def test_three_modes_are_measured(self):
        result = self.run_bench("--programs", "calls,ordered", "--seconds", "0.5")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        for name in ("calls", "ordered"):
            self.assertRegex(result.stdout, rf"(?m)^{name} +us( +[0-9.]+){{3}}(  +[0-9.]+ \([0-9.]+ to [0-9.]+\)){{2}}   [0-9]+ turns$")

    def run_cupy(self, text):
        """With a module in place of CuPy."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "cupy.py").write_text(text)
            return self.run_bench("--programs", "cupy,calls", "--seconds", "0.5", PYTHONPATH=folder)

    def test_a_program_finds_the_module_of_its_framework(self):
        result = self.run_cupy("float32 = None\nclass Array:\n    T = property(lambda self: self)\n    def reshape(self, *shape): return self\n"
                               "    def __matmul__(self, other): return self\n    def mean(self): return 1.5\ndef arange(count, dtype): return Array()\n")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertRegex(result.stdout, r"(?m)^cupy +us .* turns$")

    def test_a_program_that_ends_early_does_not_end_the_others(self):
        result = self.run_cupy("float32 = None\ndef arange(count, dtype): raise MemoryError('none left')\n")
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        self.assertIn("cupy alone: ended in a turn: Traceback", result.stdout)
        self.assertIn("MemoryError: none left", result.stdout)
        self.assertRegex(result.stdout, r"(?m)^calls +us .* turns$")

    def test_a_driver_that_does_not_start_is_no_card(self):
        result = self.run_bench(FAKE_CUDA_INIT="803")
        self.assertEqual((result.returncode, result.stdout), (0, "CUDA programs: skipped, there is no card\n"))

    def test_an_unknown_program_is_an_error(self):
        result = self.run_bench("--programs", "calls,tensorflow")
        self.assertEqual(result.returncode, 2)
        self.assertIn("no program tensorflow; there are calls, ordered", result.stderr)


class Figures(unittest.TestCase):
    def test_a_ratio_is_that_of_the_turns(self):
        # One slow turn of both modes does not show.
        times = {"alone": [1.0, 2.0, 10.0, 1.0, 1.0], "--manage": [0.5, 1.0, 5.0, 0.5, 0.75]}
        self.assertRegex(cuda_programs.ratio(times, "--manage"), r"^ 0\.500 \(0\.500 to 0\.625\)$")


if __name__ == "__main__":
    unittest.main()
