#!/usr/bin/env python3
"""Long runs and their ends: memory is flat, a killed program leaves a readable trace, interrupts and exceptions end a program as usual."""
import json
import os
import signal
import subprocess
import tempfile
import textwrap
import unittest
from pathlib import Path

import environment

environment.skip_without_pytorch()

signal.signal(signal.SIGINT, signal.default_int_handler)  # where a shell started the test in the background it is ignored, and children inherit that
STEPS = 1000 if float(os.environ.get("HR_TEST_SCALE", "1")) > 1 else 200
MAX_GROWTH_OF_HOST_BYTES = 4 << 20  # of 800 steps: a leak of one record in each step would be found by the number of tensors

BEGIN = """
import contextlib, json, os, sys
import torch
from torch import nn
import headroom.torch as plugin
torch.set_num_threads(1)
torch.manual_seed(7)
plugin.install(limit="3MB", lms=True, device="cpu", movable="64KiB")
model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 128))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
def step(batch=256):
    inputs = torch.randn(batch, 128)
    optimizer.zero_grad()
    (model(inputs) - inputs).square().mean().backward()
    optimizer.step()
def say_after(steps):
    for _ in range(steps):
        step()
    assert plugin.lms_stats()["num_evictions"] > 0
    print("running", flush=True)
"""


class Steady(unittest.TestCase):
    def start(self, program):
        process = subprocess.Popen([environment.PYTHON, "-c", BEGIN + textwrap.dedent(program)], env=environment.environment(), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process

    def test_memory_is_flat(self):
        process = self.start(f"""
            def state():
                stats = plugin.stats()
                with open("/proc/self/statm") as file:
                    resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                return {{"host": resident, "reserved": stats["bytes_reserved"], "in_use": stats["bytes_in_use"],
                        "tensors": plugin.lms_stats()["num_tensors"], "pinned": plugin._plugin.headroom_torch_pinned_records()}}
            for _ in range({STEPS // 5}):
                step()
            before = state()
            for _ in range({STEPS - STEPS // 5}):
                step()
            print(json.dumps([before, state(), plugin.lms_stats()["num_evictions"]]))
        """)
        output, errors = process.communicate(timeout=3600)
        self.assertEqual(process.returncode, 0, errors)
        before, after, evictions = json.loads(output)
        self.assertGreater(evictions, STEPS)
        self.assertLessEqual(after["host"], before["host"] + MAX_GROWTH_OF_HOST_BYTES)
        for name in ("reserved", "in_use", "tensors", "pinned"):
            self.assertEqual(before[name], after[name], name)

    def test_a_killed_program_leaves_a_readable_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.hrt"
            process = self.start(f"""
                with plugin.profile({str(path)!r}):
                    say_after(8)
                    while True:
                        step()
            """)
            self.assertEqual(process.stdout.readline(), "running\n")
            process.kill()
            process.wait(timeout=60)
            report = subprocess.run([os.environ["HEADROOM_COMMAND"], "report", str(path)], capture_output=True, text=True)
            self.assertEqual(report.returncode, 0, report.stderr)
            self.assertIn("steps", report.stdout)

    def test_an_interrupt_ends_a_program_as_usual(self):
        with tempfile.TemporaryDirectory() as folder:
            process = self.start(f"""
                with plugin.profile({str(Path(folder) / "run.hrt")!r}):
                    say_after(8)
                    while True:
                        step()
            """)
            self.assertEqual(process.stdout.readline(), "running\n")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=300)
            self.assertEqual(process.returncode, -signal.SIGINT, errors)
            self.assertIn("KeyboardInterrupt", errors)

    def test_an_interrupted_program_can_go_on(self):
        process = self.start("""
            with contextlib.suppress(KeyboardInterrupt):
                say_after(4)
                while True:
                    step()
            say_after(4)
            plugin.check()
        """)
        self.assertEqual(process.stdout.readline(), "running\n")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=300)
        self.assertEqual((process.returncode, output), (0, "running\n"), errors)

    def test_an_exception_ends_a_program_as_usual(self):
        for where in ("register_forward_hook", "register_full_backward_hook"):
            process = self.start(f"""
                say_after(4)
                def fail(*_):
                    raise ValueError("of the program")
                model[1].{where}(fail)
                step()
            """)
            _, errors = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 1, errors)
            self.assertIn("ValueError: of the program", errors)


if __name__ == "__main__":
    unittest.main()
