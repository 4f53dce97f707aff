#!/usr/bin/env python3
"""Compares training steps on a card in Headroom's runtime and in PyTorch, in one run.

    bench/card_models.py BUILD_FOLDER [--models mlp,conv,gpt,gpt2] [--steps N] [--rounds N] [--device GPU:0] [--seconds N] [--each N]
    bench/card_models.py BUILD_FOLDER --device CPU:0 --small       tries all of it on a machine without a card

    mlp, conv, gpt   the models of examples/models.h, float32
    gpt2             GPT-2 medium, batch 8 x 1024, products in bfloat16, fused attention, dropout; the last layer has weights of its own. PyTorch runs it
                     with autocast. It runs once more in the runtime with half of the memory of its function mode, with Large Model Support and recomputing

The runtime runs each model op by op (eager) and as a function, PyTorch eagerly; rounds alternate. Times are the least of the rounds' medians. Memory is the peak of
a step: the allocator's peak of bytes in use, PyTorch's max_memory_allocated. The losses of both modes, and of the run with half of the memory, must be the same to
the bit; if they are not, the program says so and fails. All of it takes --seconds at most, and one run --each.
"""
import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def environment(python):
    """With the libraries of CUDA that PyTorch brought, unless the program's user has chosen some."""
    if "HEADROOM_CUDA_LIBRARIES" in os.environ:
        return dict(os.environ)
    found = subprocess.run([python, "-c", "import nvidia; print(list(nvidia.__path__)[0])"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return dict(os.environ, HEADROOM_CUDA_LIBRARIES=found.stdout.strip()) if found.stdout.strip() else dict(os.environ)


def last_line(command, seconds, env):
    """The row that a program printed, or why there is none."""
    try:
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        return None, f"stopped after {seconds:.0f} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr or str(done.returncode)).strip().splitlines()
    return (json.loads(lines[-1]), None) if done.returncode == 0 else (None, lines[-1] if lines else f"exit status {done.returncode}")


class Torch:
    """A process that measures models in PyTorch one after the other. It imports PyTorch while the runtime is measured."""

    def __init__(self, command, env):
        self.messages = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.messages, text=True)

    def measure(self, model, seconds):
        """Like last_line. After a failure there is no process any more."""
        try:
            self.process.stdin.write(model + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return None, self.last_words()
        if not select.select([self.process.stdout], [], [], max(seconds, 0.1))[0]:
            self.end()
            return None, f"stopped after {seconds:.0f} s"
        line = self.process.stdout.readline()
        return (json.loads(line), None) if line else (None, self.last_words())

    def last_words(self):
        self.end()
        self.messages.seek(0)
        return (self.messages.read().strip().splitlines() or [f"exit status {self.process.returncode}"])[-1]

    def end(self):
        self.process.kill()
        self.process.wait()


class Comparison:
    def __init__(self, options):
        self.options, self.failed, self.end = options, False, time.monotonic() + options.seconds
        self.environment = environment(options.python)
        self.ours = [str(options.build / "bench" / "models"), "--device", options.device]
        self.common = ["--steps", str(options.steps)] + (["--small"] if options.small else [])
        torch = [options.python, str(HERE / "torch_models.py"), "--device", "cuda" if options.device.startswith("GPU") else "cpu", "--quick"]
        self.torch = None if options.no_torch else Torch(torch + self.common, self.environment)

    def run(self, label, command=None, model=None):
        """Of the runtime's [command], or PyTorch's [model]."""
        seconds = min(self.options.each, self.end - time.monotonic())
        row, why = last_line(command + self.common, seconds, self.environment) if command else self.torch.measure(model, seconds)
        if why:
            print(f"{label}: {why}", flush=True)
            self.failed = True
        return row

    def rounds(self, model):
        """Rows of each way: eager, function, PyTorch."""
        rows = {"eager": [], "function": [], "PyTorch": []}
        for _ in range(self.options.rounds):
            rows["function"].append(self.run(f"{model} function", self.ours + ["--model", model]))
            rows["eager"].append(self.run(f"{model} eager", self.ours + ["--model", model, "--eager"]))
            if self.torch:
                rows["PyTorch"].append(self.run(f"{model} PyTorch", model=model))
        return {way: [row for row in of if row] for way, of in rows.items()}

    def show(self, model, way, rows, theirs):
        if not rows:
            return
        seconds, peak = least(rows), rows[0]["peak_bytes"]
        line = f"{model:6}{way:18}{seconds * 1e3:12.2f}{peak / 1e6:12.1f}"
        if theirs:
            line += f"{seconds / least(theirs):18.2f}"
            line += f"{peak / theirs[0]['peak_bytes']:8.2f}" if theirs[0]["peak_bytes"] else f"{'-':>8}"
        print(line, flush=True)

    def same_losses(self, what, one, other):
        count = min(len(one["losses"]), len(other["losses"]))
        if one["losses"][:count] != other["losses"][:count]:
            print(f"{what}: the losses differ: {one['losses'][:count]} {other['losses'][:count]}")
            self.failed = True

    def compare(self, model):
        rows = self.rounds(model)
        theirs = rows["PyTorch"]
        for way in rows:
            self.show(model, way, rows[way], theirs if way != "PyTorch" else [])
        if rows["eager"] and rows["function"]:
            self.same_losses(f"{model}, eager and function", rows["eager"][0], rows["function"][0])
        if model == "gpt2" and rows["function"]:
            whole = rows["function"][0]
            limit = whole["peak_bytes"] // 2
            half = self.run("gpt2 half", self.ours + ["--model", "gpt2", "--limit", str(limit)])
            if half:
                self.show(model, "half, LMS", [half], theirs)
                print(f"gpt2 at half its memory: {least([half]) / least(rows['function']):.2f} times the time")
                self.same_losses("gpt2, whole and half", whole, half)


def least(rows):
    return min(row["median_s"] for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--models", default="mlp,conv,gpt,gpt2")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", default="GPU:0")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--each", type=float, default=120, help="seconds that one run may take")
    parser.add_argument("--small", action="store_true", help="a small gpt2")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--python", default=os.environ.get("HEADROOM_TORCH_PYTHON", sys.executable), help="that has PyTorch")
    options = parser.parse_args()
    comparison = Comparison(options)
    print(f"{'':24}{'ms a step':>12}{'peak MB':>12}{'of PyTorch: time':>18}{'memory':>8}")
    for model in options.models.split(","):
        if time.monotonic() < comparison.end:
            comparison.compare(model)
        else:
            print(f"{model}: not begun, {options.seconds:.0f} s are over")
    if comparison.torch:
        comparison.torch.end()
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main())
