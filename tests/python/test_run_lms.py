#!/usr/bin/env python3
"""`headroom run --lms` says at the end whether it had an effect, for programs that use the library without PyTorch."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = os.environ["HEADROOM_COMMAND"]
BUILD = Path(COMMAND).parent

if not (BUILD / "libheadroom.so.0").exists():
    print("skipped: this build has no shared library")
    sys.exit(0)

LIBRARY = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
allocator = ctypes.c_uint64()
assert library.hr_allocator_get_default(b"GPU:0", ctypes.byref(allocator)) == 0
"""
STEP = LIBRARY + "assert library.hr_step_begin(allocator) == 0"    # sets up Large Model Support
CHILD = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[2], sys.argv[1]], check=True)"


class RunLms(unittest.TestCase):
    def run_program(self, program, *options, **changes):
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, HEADROOM_CUDA="0", TMPDIR=folder, **changes)
            result = subprocess.run([COMMAND, "run", *options, "--", sys.executable, "-c", program, str(BUILD / "libheadroom.so.0"), STEP],
                                    env=environment, capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(os.listdir(folder), [])
            return result.stderr

    def test_a_program_that_uses_it_ends_without_a_line(self):
        self.assertEqual(self.run_program(STEP, "--lms"), "")
        self.assertEqual(self.run_program(CHILD, "--lms"), "")

    def test_a_program_that_does_not_is_told(self):
        self.assertIn("--lms had no effect", self.run_program(LIBRARY, "--lms"))
        self.assertIn("--lms had no effect", self.run_program("", "--lms"))
        self.assertEqual(self.run_program(LIBRARY), "")

    def test_nothing_is_overwritten_by_the_mark(self):
        with tempfile.NamedTemporaryFile(mode="w+") as file:
            file.write("kept")
            file.flush()
            self.assertEqual(self.run_program(STEP, HEADROOM_LMS="1", HEADROOM_RUN_MARK=file.name), "")
            self.assertEqual(Path(file.name).read_text(), "kept")

    def test_a_program_without_standard_error_runs(self):
        result = subprocess.run(f"exec '{COMMAND}' run --lms -- '{sys.executable}' -c 'print(1)' 2>&-", shell=True, capture_output=True, text=True, timeout=300)
        self.assertEqual((result.returncode, result.stdout), (0, "1\n"))


if __name__ == "__main__":
    unittest.main()
