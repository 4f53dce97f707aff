#!/usr/bin/env python3
"""`headroom run` with PyTorch programs when it cannot work: one line says why, and the program runs as without it."""
import signal
import subprocess
import unittest

import environment

environment.skip_without_pytorch()

from running import COMMAND, STATS, TRAIN, RunCase


class Refused(RunCase):
    def test_without_a_gpu_pytorch_keeps_its_allocator_and_one_line_says_so(self):
        for options, lines in ((["--lms"], 1), (["--limit", "64MB"], 1), ([], 0)):
            result = self.run_program(options, "import torch" + STATS, CUDA_VISIBLE_DEVICES="")
            self.assertIn("no plug-in", result.stdout)
            self.assertEqual(len(result.stderr.splitlines()), lines, result.stderr)
            if lines:
                self.assertIn("--device cpu", result.stderr)

    def test_a_failed_installation_is_one_line_and_the_program_runs_on(self):
        plain = self.run_program(["--device", "none"], TRAIN)
        for options, changes, reason in ((["--limit", "100TB"], {}, "above the host's memory"),
                                         (["--lms"], {"HEADROOM_LIBRARY_DIR": "/nowhere"}, "cannot load libheadroom"),
                                         ([], {"XDG_CACHE_HOME": str(self.folder), "PATH": "/nowhere", "CXX": ""}, "C++ compiler")):
            result = self.run_program([*options, "--device", "cpu"], TRAIN, **changes)
            self.assertEqual(result.stdout, plain.stdout)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(reason, result.stderr)

    def test_a_setting_that_is_ignored_is_named(self):
        result = self.run_program(["--lms", "--limit", "64MB", "--device", "cpu"], TRAIN + STATS, HEADROOM_LMS="policy=none")
        self.assertGreater(self.words(result)["evictions"], 0)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn('no policy is named "none"', result.stderr)

    def test_lms_without_pytorch_is_told_at_the_end(self):
        result = self.run_program(["--lms"], "print('done')")
        self.assertEqual(result.stdout, "done\n")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn("--lms had no effect", result.stderr)
        result = self.run_program(["--lms", "--device", "cpu"], "import torch", python_options=["-I"])
        self.assertIn("python -I", result.stderr)
        self.assertEqual(self.run_program(["--limit", "64MB"], "print('done')").stderr, "")

    def test_lms_keeps_the_exit_status_and_signals_of_the_program(self):
        self.assertEqual(self.run_program(["--lms"], "raise SystemExit(7)", returncode=7).returncode, 7)
        self.run_program(["--lms"], "import os, signal; os.kill(os.getpid(), signal.SIGTERM)", returncode=-signal.SIGTERM)
        self.run_program(["--lms"], """
            import os
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                raise SystemExit(0)
            raise SystemExit("a child that the program did not start")
        """)

    def test_nothing_is_loaded_before_torch(self):
        result = self.run_program(["--device", "cpu"], "import sys; print(sorted(name for name in sys.modules if name.startswith(('headroom', 'ctypes', 'importlib.util'))))")
        bare = subprocess.run([environment.PYTHON, "-c", "import sys; print(sorted(name for name in sys.modules if name.startswith(('ctypes', 'importlib.util'))))"],
                              capture_output=True, text=True)
        self.assertEqual(result.stdout, bare.stdout)

    def test_wrong_options_are_refused_before_the_program_starts(self):
        for options, text in ((["--device", "tpu"], "cuda, cpu or none"), (["--limit", "much"], "--limit"), (["--limit", "0"], "--limit is 0")):
            result = self.run_program(options, "raise SystemExit('started')", returncode=2)
            self.assertIn(text, result.stderr)
        result = self.run_program(["--device", "cpu"], "raise SystemExit('started')", returncode=2, HEADROOM_PYTHON_DIR="/nowhere")
        self.assertIn("pip install .", result.stderr)
        result = self.run_program(["--lms"], "", HEADROOM_PYTHON_DIR="/nowhere")
        self.assertIn("HEADROOM_PYTHON_DIR", result.stderr)
        result = subprocess.run([COMMAND, "run", "--lms", "--", "/nowhere/train"], capture_output=True, text=True)
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (127, 1), result.stderr)


if __name__ == "__main__":
    unittest.main()
