#!/usr/bin/env python3
"""examples/mpi/train.c with Debian's Open MPI: any number of ranks computes the same, the recordings of the ranks are read as one, and a rank that runs out of
memory says what the others hold. Skipped where mpicc is not installed (tools/test-fleet.sh installs it)."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from command import COMMAND, run  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(COMMAND).parent
REQUIRED = os.environ.get("HEADROOM_REQUIRE_FLEET", "0") != "0"
MIB = 1 << 20


@unittest.skipUnless(REQUIRED or shutil.which("mpicc"), "mpicc is not installed (Debian: libopenmpi-dev, openmpi-bin)")
@unittest.skipUnless(REQUIRED or (BUILD / "libheadroom.so").exists(), "this build has no shared library")
class Mpi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = Path(temporary.name)
        cls.program = cls.folder / "train"
        command = ["mpicc", "-Wall", "-Wextra", "-Werror", "-O1", ROOT / "examples/mpi/train.c", f"-I{ROOT}/include", f"-L{BUILD}", "-lheadroom_runtime", "-lheadroom",
                   f"-Wl,-rpath,{BUILD}", "-o", cls.program]
        subprocess.run(command, check=True, timeout=300)

    def mpirun(self, ranks, *command, **extra):
        # Containers forbid the system call by which ranks read each other's memory.
        env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "HEADROOM_CUDA": "0", "XDG_RUNTIME_DIR": str(self.folder), **extra}
        return subprocess.run(["mpirun", "--oversubscribe", "-n", str(ranks), *map(str, command)], env=env, capture_output=True, text=True, timeout=300)

    def test_ranks_compute_what_one_computes(self):
        losses = []
        for ranks in (1, 2, 4):
            result = self.mpirun(ranks, self.program)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(sorted(re.findall(r"^rank (\d+) of", result.stdout, re.M)), [str(rank) for rank in range(ranks)])
            losses.append(dict(re.findall(r"^step (\d+): loss ([0-9.]+)$", result.stdout, re.M)))
        for step in ("1", "20"):  # sums of parts are rounded in another order
            for loss in losses:
                self.assertAlmostEqual(float(loss[step]) / float(losses[0][step]), 1, places=3)
        self.assertLess(float(losses[0]["20"]), float(losses[0]["1"]) / 5)

    def test_the_recordings_of_the_ranks_are_read_as_one(self):
        folder = self.folder / "recorded"
        folder.mkdir()
        result = self.mpirun(3, COMMAND, "run", "--trace", folder / "run-%r.hrt", "--", self.program)
        self.assertEqual(result.returncode, 0, result.stderr)
        traces = sorted(folder.iterdir())
        self.assertEqual([path.name for path in traces], ["run-0.hrt", "run-1.hrt", "run-2.hrt"])
        report = json.loads(run("report", *traces, "--json").stdout)
        self.assertEqual((report["read"], [row["rank"] for row in report["ranks"]["rows"]]), (3, [0, 1, 2]))
        self.assertEqual([row["steps"] for row in report["ranks"]["rows"]], [20, 20, 20])
        self.assertIn("3 of 3 ranks on 1 host", run("report", *traces).stdout)

    def test_a_rank_that_runs_out_of_memory_says_what_the_others_hold(self):
        result = self.mpirun(3, COMMAND, "run", "--", self.program, "1500", "100", HEADROOM_EMULATED="memory=64MiB",
                             HEADROOM_OOM_REPORT=str(self.folder / "oom-%p.json"))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("rank 2: a step: ", result.stderr)
        (path,) = self.folder.glob("oom-*.json")
        report = json.loads(path.read_text())
        self.assertEqual((report["rank"]["number"], report["rank"]["count"]), (2, 3))
        self.assertEqual([peer["rank"] for peer in report["other_ranks"]], [0, 1])
        for peer in report["other_ranks"]:
            self.assertEqual((peer["device"], peer["limit_bytes"]), ("GPU:0", 64 * MIB))
            self.assertGreater(peer["in_use_bytes"], MIB // 2)
            self.assertGreaterEqual(peer["peak_bytes"], peer["in_use_bytes"])
        text = run("oom", path).stdout
        self.assertIn("Other ranks of the job on this host; this is rank 2 of 3\n  rank 0: ", text)


if __name__ == "__main__":
    unittest.main()
