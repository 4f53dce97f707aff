#!/usr/bin/env python3
"""bench/cuda_programs.py on the stand-in driver: it measures the five modes of a program."""
import itertools
import math
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

    def test_five_modes_are_measured(self):
        result = self.run_bench("--programs", "calls,ordered,launches", "--seconds", "0.2", "--processes", "2")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        number = r"[0-9.]+"
        figures = "   ".join(rf"{name} {number} \({number} to {number}\)" for name in ("time", "host", "processor"))
        spread = "   ".join(rf"{name} {number} to {number}" for name in ("time", "host", "processor"))
        work = rf"{number} requests a step, {number} wake-ups and {number} ms a second"
        for name in ("calls", "ordered", "launches"):
            self.assertRegex(result.stdout, rf"(?m)^{name} +us a step: alone {number}, again {number}, preload {number}, observe {number}, manage {number}; "
                             rf"10 processes, [0-9]+ rounds, [0-9]+ steps in a turn\n" + "".join(rf"  {mode}/alone +{figures}\n" for mode in cuda_programs.MODES[1:]) +
                             rf"  processes +{spread}\n  in Headroom +observe {work}   manage {work}\n  [0-9]+ s to start, [0-9]+ s in all\n")

    def test_one_process_of_each_mode_is_enough(self):
        result = self.run_bench("--programs", "calls", "--seconds", "0.1", "--processes", "1")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertIn("; 5 processes, ", result.stdout)

    def run_cupy(self, text):
        """With a module in place of CuPy."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "cupy.py").write_text(text)
            return self.run_bench("--programs", "cupy,calls", "--seconds", "0.2", "--processes", "1", PYTHONPATH=folder)

    def test_a_program_finds_the_module_of_its_framework(self):
        result = self.run_cupy("float32 = None\nclass Array:\n    T = property(lambda self: self)\n    def reshape(self, *shape): return self\n"
                               "    def __matmul__(self, other): return self\n    def mean(self): return 1.5\ndef arange(count, dtype): return Array()\n")
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        self.assertRegex(result.stdout, r"(?m)^cupy +us a step: .* in a turn$")

    def test_a_program_that_ends_early_does_not_end_the_others(self):
        result = self.run_cupy("float32 = None\ndef arange(count, dtype): raise MemoryError('none left')\n")
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        for mode in cuda_programs.MODES:
            self.assertIn(f"cupy {mode} 1: did not start: Traceback", result.stdout)
        self.assertIn("MemoryError: none left", result.stdout)
        self.assertRegex(result.stdout, r"(?m)^calls +us a step: .* in a turn$")

    def test_a_driver_that_does_not_start_is_no_card(self):
        result = self.run_bench(FAKE_CUDA_INIT="803")
        self.assertEqual((result.returncode, result.stdout), (0, "CUDA programs: skipped, there is no card\n"))

    def test_an_unknown_program_is_an_error(self):
        result = self.run_bench("--programs", "calls,tensorflow")
        self.assertEqual(result.returncode, 2)
        self.assertIn("no program tensorflow; there are calls, ordered, launches", result.stderr)


class Process:
    def __init__(self, mode):
        self.mode = mode


class Figures(unittest.TestCase):
    def test_a_ratio_is_that_of_the_processes(self):
        # A slow round of all processes does not show, nor does one slow turn of a process. The processor's times are others.
        slow = (1.0, 2.0, 10.0, 1.0, 1.0)
        modes = [Process(mode) for mode in cuda_programs.MODES for _ in range(3)]
        factors = {"alone": 1.0, "again": 1.0, "preload": 1.0, "observe": 1.5, "manage": 0.25}
        times = [[(factors[process.mode] * t, 0.5 if process.mode == "manage" else 1.0) for t in slow] for process in modes]
        times[0][3] = (77.0, 1.0)
        figures = cuda_programs.figures_of(times, 0)
        for mode in cuda_programs.MODES[1:]:
            for value in cuda_programs.compare(modes, figures, mode):
                self.assertAlmostEqual(value, factors[mode])
        self.assertAlmostEqual(cuda_programs.compare(modes, cuda_programs.figures_of(times, 1), "manage")[0], 0.5)

    def test_a_process_that_differs_does_not_move_the_ratio_and_widens_the_interval(self):
        those = [0.001 * i for i in range(6)]
        estimate, low, high = cuda_programs.ratio([0.001, 0.003, 0.3], those)
        self.assertLess(abs(estimate - 1), 0.002)
        self.assertTrue(low < 1 < 1.3 < high, (low, high))

    def test_the_interval_is_that_of_mann_and_whitney(self):
        # Of all ways to choose 3 of 9 places, by hand: those with 0, 1, 2 and 3 pairs the other way round are 1, 1, 2 and 3 of 84.
        self.assertEqual([cuda_programs.arrangements(u, 3, 6) for u in range(4)], [1, 1, 2, 3])
        for m, n in ((3, 6), (4, 4), (2, 5)):
            counted = {}
            for chosen in itertools.combinations(range(m + n), m):
                pairs = sum(a > b for a in chosen for b in range(m + n) if b not in chosen)
                counted[pairs] = counted.get(pairs, 0) + 1
            self.assertEqual(counted, {u: cuda_programs.arrangements(u, m, n) for u in range(m * n + 1)})
        # From tables of the test at 5%, two-sided: the critical values of U are 1, 0, 13 and 8; for 3 and 3 there is none.
        self.assertEqual([cuda_programs.places_outside(m, n) for m, n in ((3, 6), (4, 4), (8, 8), (7, 7), (3, 3))], [2, 1, 14, 9, 0])
        # It has the ratio in about 95% of all trials.
        chance, hits = random.Random(1), 0
        for _ in range(1000):
            _, low, high = cuda_programs.ratio([chance.gauss(0.3, 1) for _ in range(5)], [chance.gauss(0, 1) for _ in range(10)])
            hits += low <= math.exp(0.3) <= high
        self.assertTrue(930 <= hits <= 975, hits)

    def test_processes_meet_the_same_cores(self):
        rounds = [cuda_programs.core_for(number, [5, 7, 9]) for number in range(24)]
        self.assertEqual(rounds, [5] * 4 + [7] * 4 + [9] * 4 + [5] * 4 + [7] * 4 + [9] * 4)


if __name__ == "__main__":
    unittest.main()
