"""Runs PyTorch programs with `headroom run`, for the tests of it."""
import os
import subprocess
import tempfile
import textwrap
import unittest
from pathlib import Path

import environment

COMMAND = os.environ["HEADROOM_COMMAND"]
TRAIN = """
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)])    # 4 MiB each
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    loss = model(torch.randn(128, 1024)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
"""
STATS = """
import sys
if "headroom.torch" in sys.modules:
    plugin = sys.modules["headroom.torch"]
    plugin.check()
    print("limit", plugin.stats()["bytes_limit"], "evictions", plugin.lms_stats()["num_evictions"], "peak", plugin.stats()["peak_bytes_in_use"])
else:
    print("no plug-in")
"""


class RunCase(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def script(self, program, name="train.py"):
        path = self.folder / name
        path.write_text(textwrap.dedent(program))
        return str(path)

    def run_program(self, options, program, returncode=0, python_options=(), **changes):
        """Without PYTHONPATH and HEADROOM_LIBRARY_DIR: the command finds the package by itself."""
        env = environment.environment(TMPDIR=str(self.folder), **changes)
        for name in ("PYTHONPATH", "HEADROOM_LIBRARY_DIR"):
            if name not in changes:
                env.pop(name, None)
        result = subprocess.run([COMMAND, "run", *options, "--", environment.PYTHON, *python_options, self.script(program)], env=env, cwd=self.folder,
                                capture_output=True, text=True, timeout=600)
        self.assertEqual(result.returncode, returncode, result.stdout[-3000:] + result.stderr[-6000:])
        self.assertEqual([path.name for path in self.folder.glob("headroom-run-*")], [])
        return result

    def words(self, result):
        line = result.stdout.splitlines()[-1].split()
        return {line[i]: int(line[i + 1]) for i in range(0, len(line), 2)}
