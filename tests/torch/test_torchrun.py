#!/usr/bin/env python3
"""examples/train_ddp.py, started by torchrun under `headroom run`: two ranks (gloo, CPU tensors) compute what they compute without Headroom, their recordings are
read as one, and a rank that runs out of memory says what the other holds."""
import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import environment

environment.skip_without_pytorch()

COMMAND = os.environ["HEADROOM_COMMAND"]
MIB = 1 << 20


class Torchrun(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def torchrun(self, options, *arguments, **changes):
        launch = [environment.PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", environment.ROOT / "examples/train_ddp.py", *arguments]
        command = [COMMAND, "run", "--device", "cpu", *options, "--", *launch] if options else launch
        env = environment.environment(OMP_NUM_THREADS="1", XDG_RUNTIME_DIR=str(self.folder), **changes)
        return subprocess.run(list(map(str, command)), env=env, cwd=self.folder, capture_output=True, text=True, timeout=600)

    def losses(self, result):
        self.assertEqual(result.returncode, 0, result.stderr[-6000:])
        found = sorted(re.findall(r"rank (\d) of 2, step (\d+): loss (\d\.\d{6})", result.stdout))  # lines of both may be joined
        self.assertEqual(len(found), 24)
        return found

    def test_two_ranks_train_at_a_limit_with_the_same_result_and_are_read_as_one(self):
        plain = self.losses(self.torchrun([]))
        limited = self.losses(self.torchrun(["--limit", "36MiB", "--lms", "--trace", "run.hrt"]))
        self.assertEqual(limited, plain)
        traces = sorted(self.folder.glob("run-rank*.hrt"))
        self.assertEqual([path.name for path in traces], ["run-rank0.hrt", "run-rank1.hrt"])
        report = json.loads(subprocess.run([COMMAND, "report", "--json", *traces], capture_output=True, text=True, check=True).stdout)
        self.assertEqual([row["rank"] for row in report["ranks"]["rows"]], [0, 1])
        for row in report["ranks"]["rows"]:
            self.assertEqual(row["device"], "GPU:0")
            self.assertLessEqual(row["peak_bytes"], 36 * MIB)
            self.assertGreater(row["out_bytes"], 0)
            self.assertGreaterEqual(row["steps"], 12)

    def test_a_rank_that_runs_out_of_memory_says_what_the_other_holds(self):
        result = self.torchrun(["--limit", "64MiB"], "16", HEADROOM_OOM_REPORT=str(self.folder / "oom-%p.json"))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("OutOfMemoryError: Headroom: out of memory", result.stderr)
        self.assertRegex(result.stderr, r"\n\S* *rank 0: .* in use of 64\.0 MiB on GPU:0, .* at its peak; process")
        report = json.loads(next(self.folder.glob("oom-*.json")).read_text())
        self.assertEqual(report["rank"]["number"], 1)
        (other,) = report["other_ranks"]
        self.assertEqual((other["rank"], other["limit_bytes"]), (0, 64 * MIB))
        self.assertGreater(other["in_use_bytes"], 0)


if __name__ == "__main__":
    unittest.main()
