#!/usr/bin/env python3
"""bench/cuda_programs.py on the stand-in driver: it measures the three modes of a program."""
import os
import random
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
        result = self.run_bench("--programs", "calls,ordered,launches", "--seconds", "0.5")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        figures = "   ".join(name + r" [0-9.]+ \([0-9.]+ to [0-9.]+\)" for name in ("time", "shortest", "processor"))
        for name in ("calls", "ordered", "launches"):
            self.assertRegex(result.stdout, rf"(?m)^{name} +us a step: alone [0-9.]+, observe [0-9.]+, manage [0-9.]+; [0-9]+ rounds, [0-9]+ steps in a turn\n"
                             rf"  observe/alone +{figures}\n  manage/alone +{figures}\n  copies: alone +{figures}\n  copies: observe +{figures}\n  copies: manage +{figures}\n")

    def test_one_process_of_each_mode_is_enough(self):
        result = self.run_bench("--programs", "calls", "--seconds", "0.1", "--copies", "1")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertNotIn("copies: ", result.stdout)

    def run_cupy(self, text):
        """With a module in place of CuPy."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "cupy.py").write_text(text)
            return self.run_bench("--programs", "cupy,calls", "--seconds", "0.5", PYTHONPATH=folder)

    def test_a_program_finds_the_module_of_its_framework(self):
        result = self.run_cupy("float32 = None\nclass Array:\n    T = property(lambda self: self)\n    def reshape(self, *shape): return self\n"
                               "    def __matmul__(self, other): return self\n    def mean(self): return 1.5\ndef arange(count, dtype): return Array()\n")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertRegex(result.stdout, r"(?m)^cupy +us a step: .* in a turn$")

    def test_a_program_that_ends_early_does_not_end_the_others(self):
        result = self.run_cupy("float32 = None\ndef arange(count, dtype): raise MemoryError('none left')\n")
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        self.assertIn("cupy alone 1: ended in a turn: Traceback", result.stdout)
        self.assertIn("MemoryError: none left", result.stdout)
        self.assertRegex(result.stdout, r"(?m)^calls +us a step: .* in a turn$")

    def test_a_driver_that_does_not_start_is_no_card(self):
        result = self.run_bench(FAKE_CUDA_INIT="803")
        self.assertEqual((result.returncode, result.stdout), (0, "CUDA programs: skipped, there is no card\n"))

    def test_an_unknown_program_is_an_error(self):
        result = self.run_bench("--programs", "calls,tensorflow")
        self.assertEqual(result.returncode, 2)
        self.assertIn("no program tensorflow; there are calls, ordered, launches", result.stderr)


class Figures(unittest.TestCase):
    def test_a_ratio_is_that_of_the_rounds(self):
        # Both processes of a mode count, and one slow round of all of them does not show. The processor's times are others.
        alone = [(1.0, 0.5), (2.0, 0.5), (10.0, 0.5), (1.0, 0.5), (1.0, 0.5)]
        times = {("alone", 0): alone, ("alone", 1): alone, ("manage", 0): [(t / 4, 1.0) for t, _ in alone], ("manage", 1): [(t * 3 / 4, 2.0) for t, _ in alone]}
        self.assertEqual(cuda_programs.compare_modes(times, "manage", 0), "0.5000 (0.5000 to 0.5000)")
        self.assertEqual(cuda_programs.compare_modes(times, "manage", 1), "3.0000 (3.0000 to 3.0000)")
        self.assertEqual(cuda_programs.compare_copies(times, "manage", 0), "3.0000 (3.0000 to 3.0000)")

    def test_the_interval_is_that_of_the_signs(self):
        # Of 100 values, the 41st and the 60th: a fair coin shows 41 to 59 heads of 100 in about 95% of all trials.
        self.assertEqual(cuda_programs.median_with_interval(range(99, -1, -1)), (49.5, 40, 59))
        self.assertEqual(cuda_programs.median_with_interval([7.0]), (7.0, 7.0, 7.0))
        # In 1000 samples of 101 normal values it has the median of the distribution about 950 times.
        chance, hits = random.Random(1), 0
        for _ in range(1000):
            _, low, high = cuda_programs.median_with_interval([chance.gauss(3, 1) for _ in range(101)])
            hits += low <= 3 <= high
        self.assertTrue(930 <= hits <= 975, hits)

    def test_each_process_has_each_place_once(self):
        for seed in range(20):
            block = cuda_programs.orders("abcdef", random.Random(seed))
            self.assertEqual([sorted(place) for place in zip(*block)], [list("abcdef")] * 6)
            self.assertEqual([sorted(order) for order in block], [list("abcdef")] * 6)
        self.assertNotEqual(cuda_programs.orders("abcdef", random.Random(1)), cuda_programs.orders("abcdef", random.Random(2)))


if __name__ == "__main__":
    unittest.main()
