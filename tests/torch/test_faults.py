#!/usr/bin/env python3
"""A call of the device or of the operating system fails during a step: the step gives the right result or raises, and the next one is right (faults.py)."""
import json
import os
import subprocess
import tempfile
import unittest

import environment

environment.skip_without_pytorch()

EVERY = float(os.environ.get("HR_TEST_SCALE", "1")) >= 3
STRIDE = 1 if EVERY else 7


def faults(*arguments):
    result = environment.run_python(environment.ROOT / "tests/torch/faults.py", *arguments, timeout=7200)
    if result.returncode:
        raise AssertionError(f"faults.py {' '.join(map(str, arguments))} ended with {result.returncode}:\n{result.stderr[-6000:]}")
    return json.loads(result.stdout)


class Faults(unittest.TestCase):
    def test_a_step_in_which_a_call_fails_is_right_or_raises_and_the_next_is_right(self):
        root = environment.ROOT
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "fault_os.so")
            subprocess.run([os.environ.get("CC") or "cc", "-shared", "-fPIC", f"-I{root}/include", f"-I{root}/src", f"-I{root}/tests", root / "tests/fault_os.c",
                            environment.BUILD / "libheadroom.so.0", "-o", library], check=True)
            failing = faults(1 + os.getpid() % STRIDE, STRIDE, library)
        plain = faults(len(failing["losses"]), 0, "plain")
        for step, (expected, loss) in enumerate(zip(plain["losses"], failing["losses"])):
            self.assertEqual(expected, loss, f"the loss of step {step}")
        self.assertEqual(plain["digest"], failing["digest"])
        self.assertEqual(failing["pinned"], 0)
        # A step that raises does not end the walk: it goes on until no step reaches its call.
        for kind in ("device", "outage", "system"):
            walk = failing[kind]
            self.assertGreater(walk["reached"], walk["calls"] // 4, kind)  # later steps make fewer calls
            self.assertGreaterEqual(walk["steps"] * walk["stride"], walk["reached"], kind)
        self.assertGreater(failing["outage"]["raised"], 0)
        self.assertGreater(failing["lms"]["num_evictions"], len(plain["losses"]))


if __name__ == "__main__":
    unittest.main()
