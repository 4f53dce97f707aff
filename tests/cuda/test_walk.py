#!/usr/bin/env python3
"""Every call fails in turn in a program under `headroom run`: those of the driver, those of libheadroom to the operating system, and host memory for
libheadroom_cuda itself; once, and from that call on. The program (program.c, PROGRAM_WALK) runs each case in a child process."""
import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cuda_run import EMULATOR, FAULTS, MIB, Run, program, run, run_plain  # noqa: E402

COMMANDS = ["start", "stream", "alloc:0:1000", "async:1:5000", "pitch:2:100", "pool:3:77", "newpool:0", "pool:7:500", f"create:4:{2 * MIB}", "host:5:64", "managed:6:300", "total",
            f"create:8:{2 * MIB}", "map:8", "launch:0:0", "launch:0:1", "sync", "sync", "capture:1", "capture:0", "unmap:8", "release:8", "freehost:5", "free:0", "freeasync:1", "free:2", "freeasync:3", "freeasync:7", "endpool", "free:6", "release:4", "sync", "info", "stats"]
# Calls that only Headroom makes: where one of them fails, the program notices nothing.
OWN = {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuCtxGetCurrent", "cuCtxGetDevice", "cuFuncGetName", "cuKernelGetName", "cuFuncGetParamInfo",
       "cuKernelGetParamInfo", "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventElapsedTime", "cuStreamGetCtx", "cuDeviceGetMemPool", "cuDeviceGetDefaultMemPool"}
MODES = [("--observe",), ("--observe", "--limit", "100MiB"), ("--observe", "--callers", "--uses"), ("--manage",),
         ("--manage", "--uses", "--limit", "100MiB", "--stacks", "4")]
SYSTEM = ["system", "system-on", "memory", "memory-on"]
if EMULATOR:
    MODES, SYSTEM = [("--observe",), ("--manage",)], ["system-on", "memory-on"]


class Child:
    """What a child printed: "line|line|failed NAME|status 0"."""

    def __init__(self, text):
        self.text = text
        words = text.split("|")
        self.status, self.failed = words[-1], words[-2].removeprefix("failed ") if len(words) > 1 else ""
        self.said = [word for word in words if word.startswith("headroom: ")]
        # Not what depends on the mode: how much is free, and statistics.
        self.done = [word for word in words[:-2] if not re.match("headroom: |info |stats |total ", word) or "->" in word]
        stats = re.search(r"stats (-?\d+) of (\d+)", text)
        self.recorded, self.live = map(int, stats.groups()) if stats else (None, None)


class Walk(Run):
    def walk(self, kind, options, **extra):
        command = program("proc") + COMMANDS
        trace = ("--trace", self.folder / "%p-%n.hrt") if {"--uses", "--stacks"} & set(options) else ()
        if kind != "driver":
            extra["LD_PRELOAD"] = str(FAULTS)
        # The thread that publishes for `headroom top` makes calls at times of its own.
        result = self.under(command, *options, *trace, PROGRAM_WALK=kind, **{"HEADROOM_TOP": "0", **extra})
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return [Child(line) for line in result.stdout.splitlines()]

    def plain(self):
        result = run_plain("proc", *COMMANDS, PROGRAM_WALK="driver")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return [Child(line) for line in result.stdout.splitlines()]

    def check(self, child, observed):
        self.assertEqual(child.status, "status 0", child.text)
        self.assertLessEqual(len(child.said), 3, child.text)
        for said in child.said:
            self.assertRegex(said, "; the program continues$|; it comes from the driver$|^headroom: the program runs without Headroom: .+|HEADROOM_TRACE: ", child.text)
        if observed:
            self.assertLessEqual(child.recorded, child.live, child.text)

    def test_calls_of_the_driver(self):
        # A call of the program's that fails has the effects that it has without Headroom; one of Headroom's own has none, except that a managed block
        # is not freed where the driver does not say whether the device is done with it.
        plain = self.plain()
        possible, whole = [child.done for child in plain], plain[-1].done
        self.assertGreater(len(possible), 20)
        for options in MODES:
            with self.subTest(options):
                children = self.walk("driver", options)
                failed = {child.failed for child in children[:-1]}
                for child in children:
                    self.check(child, "--observe" in options)
                    self.assertIn(child.done, possible, child.text)
                    if child.failed in OWN:
                        self.assertEqual(child.done, whole, child.text)
                self.assertEqual(children[-1].failed, "none")
                self.assertLessEqual({"cuDeviceGetCount", "cuCtxGetCurrent", "cuMemAlloc_v2" if "--observe" in options else "cuCtxSynchronize"}, failed)

    def test_calls_of_the_system(self):
        # The program gets what it gets without Headroom.
        whole = self.plain()[-1].done
        for kind in SYSTEM:
            for options in MODES:
                with self.subTest((kind, *options)):
                    children = self.walk(kind, options, **({} if "--uses" in options else {"HEADROOM_TOP": "1"}))
                    for child in children:
                        self.check(child, "--observe" in options)
                        self.assertEqual(child.done, whole, child.text)
                    self.assertEqual(children[-1].failed, "none")
                    self.assertGreaterEqual(len(children), 20 if kind.startswith("system") else 4)
                    # Without host memory for its record, one managed block comes from the driver, which is not worth a line.
                    self.assertTrue(any(child.said for child in children) or (kind == "memory" and "--manage" in options))

    @unittest.skipIf(EMULATOR, "it takes long")
    def test_recordings_are_whole_or_the_reason_is_said(self):
        # Not where every later call fails: a file that could not be begun cannot be removed then.
        for kind in ("driver", "system", "memory"):
            for path in self.folder.glob("*.hrt"):
                path.unlink()
            children = self.walk(kind, ("--observe", "--uses"))
            files = list(self.folder.glob("*.hrt"))
            self.assertGreaterEqual(len(files) + sum(bool(child.said) for child in children) + sum("start ->" in child.text for child in children), len(children))
            self.assertGreater(len(files), 1)
            for path in files:
                shown = run("report", path)
                self.assertEqual(shown.returncode, 0, (kind, shown.stderr))


if __name__ == "__main__":
    unittest.main()
