#!/usr/bin/env python3
"""Every program of examples/python runs, and prints what it says."""
import re
import tempfile
import unittest
from pathlib import Path

from environment import ROOT, need_numpy, run_python, use

need_numpy()
use()
FOLDER = ROOT / "examples" / "python"
# What must be in the output of each, as regular expressions.
EXPECTED = {
    "allocator_statistics": [r"get_num_allocs +0 +3\n", r"get_bytes_in_use +0 +2,097,152\n", r"get_largest_alloc_size +0 +1,048,576\n", r"get_bytes_defragged +0 +0\n"],
    "train": [r"loss \d\.\d+, after 10 steps 0\.\d+\n", r"'peak': \d{8}", r"recorded: logdir/.*\.hrt"],
    "custom_allocator": [r"\[5\. 7\. 9\.\]", r"'name': 'Custom', 'current_usage': 36, 'max_usage': 36, 'alloc_count': 3"],
    "memory_info": [r"12,582,912 bytes in use, 13,107,200 at the peak"],
    "oom_run": [r"Out of memory: op \"matmul\" in scope \"layer\"", r"limit", r"(matmul allocated \w+ \[[\d, ]+\] at 20\S+Z\n){3}"],
    "eager": [r"\[5, 7, 9\] \{'current': 768, 'peak': 768\}"],
    "graph": [r"built: 0 bytes\n\[5 7 9\]\nrun: 512 bytes"],
    "variables": [r"scope1/var1:0 scope2/var1:0 declared: 0 bytes\ninitialised: 8\d{4} bytes\nclosed: 0 bytes\n"],
    "profile_steps": [r"step 1\n(?s:.*)square +512.0 KiB(?s:.*)step 10\n(?s:.*)square +768.0 KiB", r"saved: logdir/profile.txt"],
    "profile_views": [r"layer_2 +0 B", r"(?s)saved: logdir/profile.txt"],
}


class Examples(unittest.TestCase):
    def test_every_program_has_expectations(self):
        self.assertEqual({path.stem for path in FOLDER.glob("*.py")}, set(EXPECTED))

    def test_every_program_runs(self):
        for name, patterns in EXPECTED.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                result = run_python(FOLDER / f"{name}.py", cwd=folder)
                self.assertEqual((result.returncode, result.stderr), (0, ""), name)
                for pattern in patterns:
                    self.assertRegex(result.stdout, pattern)

    def test_the_programs_of_the_guide_run(self):
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)
        blocks = [block for block in blocks if "import pytest" not in block]    # tests/integrations
        self.assertGreater(len(blocks), 2)
        for block in blocks:
            with self.subTest(block), tempfile.TemporaryDirectory() as folder:
                result = run_python("-c", block, cwd=folder)
                self.assertEqual((result.returncode, result.stderr), (0, ""), block)

    def test_only_the_import_differs_from_tensorflow(self):
        for path in FOLDER.glob("*.py"):
            imports = re.findall(r"^(?:import|from) headroom.*", path.read_text(), re.M)
            self.assertIn("import headroom as tf", imports, path)

    def test_they_leave_what_they_say(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run_python(FOLDER / "train.py", "logs", cwd=folder).returncode, 0)
            self.assertEqual(len(list(Path(folder).glob("logs/*.hrt"))), 1)
            self.assertEqual(len(list(Path(folder).glob("logs/plugins/profile/*/*.xplane.pb"))), 1)


if __name__ == "__main__":
    unittest.main()
