#!/usr/bin/env python3
"""What `headroom run --observe` and `--manage` cost programs that use CUDA without Headroom.

    bench/cuda_programs.py [--build FOLDER] [--seconds S] [--programs NAME,...]

Each program runs in three processes at the same time: alone, with --observe and with --manage. They take turns, a few steps each, in changing order, so that a
slow moment of the machine meets all of them; one that waits for its turn does nothing. A ratio is the median of the ratios of the turns, its range the two
quartiles. The results of the three must be the same. All processes are started at once, because starting takes longer than the steps.

    calls          cuMemAlloc and cuMemFree of 1 MiB, in C++ (cuda_calls.cpp)
    ordered        cuMemAllocAsync and cuMemFreeAsync of 1 MiB, on a stream
    torch          PyTorch: a training step of 8 layers of 1024, batch 256
    torch_uncached the same with PYTORCH_NO_CUDA_MEMORY_CACHING=1: each tensor is a cudaMalloc
    jax            JAX: a gradient step of two products, with its own pool
    jax_platform   the same with XLA_PYTHON_CLIENT_ALLOCATOR=platform: each array is mapped memory
    jax_async      the same with XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async: each array is stream-ordered memory
    cupy           CuPy: a product and a mean, with its own pool
    cupy_async     the same with cupy.cuda.MemoryAsyncPool: each array is stream-ordered memory

What is not installed is left out. HEADROOM_TORCH_PYTHON is the interpreter that has the frameworks. Without a card it says so and ends with 0.
"""
import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODES = {"alone": None, "--observe": ["--observe"], "--manage": ["--manage", "--device", "none"]}  # without the plug-in for PyTorch
TURN_SECONDS = 0.06
WARMUP_STEPS = 20
START_SECONDS = 60
PYTHON = os.environ.get("HEADROOM_TORCH_PYTHON", sys.executable)

# ---- the programs ----

TURNS = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "end": break
    begin = time.perf_counter()
    for _ in range(int(line)): step()
    finish()
    print("%.9f" % (time.perf_counter() - begin), flush=True)
print(result(), flush=True)
"""

TORCH = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data, loss = torch.randn(256, 1024, device="cuda"), None
def step():
    global loss
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
finish = torch.cuda.synchronize
def result(): return "%.9g" % loss.item()
"""

JAX = """
import jax, jax.numpy as np
assert jax.default_backend() == "gpu"
@jax.jit
def update(weights, data):
    def loss(weights): return np.mean(np.square(np.tanh(data @ weights) @ weights))
    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 1e-3 * gradient, value
weights, data, value = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024)), jax.random.normal(jax.random.PRNGKey(1), (512, 1024)), None
def step():
    global weights, value
    weights, value = update(weights, data)
    value.block_until_ready()
def finish(): pass
def result(): return "%.9g" % float(value)
"""

CUPY = """
import cupy, os
if os.environ.get("BENCH_POOL") == "async": cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
total = 0.0
def step():
    global total
    values = cupy.arange(1 << 22, dtype=cupy.float32).reshape(2048, 2048)
    total = float((values @ values.T).mean())
def finish(): pass
def result(): return "%.9g" % total
"""

# XLA times its kernels in each process and may choose others, whose results differ in the last digits.
FIXED = {"XLA_FLAGS": "--xla_gpu_autotune_level=0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
PROGRAMS = {
    "calls": ("pair", "plain", {}), "ordered": ("pair", "ordered", {}),
    "torch": ("step", TORCH, {}), "torch_uncached": ("step", TORCH, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
    "jax": ("step", JAX, FIXED), "jax_platform": ("step", JAX, {**FIXED, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    "jax_async": ("step", JAX, {**FIXED, "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}),
    "cupy": ("step", CUPY, {}), "cupy_async": ("step", CUPY, {"BENCH_POOL": "async"}),
}


def skip(why):
    print(f"CUDA programs: skipped, {why}")
    sys.exit(0)


def has_card():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


class Ended(Exception):
    pass


class Child:
    """A program in one mode. Its standard error is a file, so that it never waits for a reader."""

    def __init__(self, name, mode, command, variables, headroom, folder):
        self.name = f"{name} {mode}"
        self.errors = open(Path(folder) / f"{name}{mode}", "w+")
        wrapped = command if MODES[mode] is None else [str(headroom), "run", *MODES[mode], "--", *command]
        self.process = subprocess.Popen(wrapped, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env={**os.environ, **variables})

    def wait_until_ready(self):
        return self.process.stdout.readline().strip() == "ready"

    def turn(self, steps):
        try:
            print(steps, file=self.process.stdin, flush=True)
            return float(self.process.stdout.readline())
        except (BrokenPipeError, ValueError) as error:
            raise Ended(f"{self.name}: ended in a turn: {self.said()[-1500:]}") from error

    def end(self):
        try:
            output = self.process.communicate("end\n", timeout=START_SECONDS)[0]
        except subprocess.TimeoutExpired:
            self.stop()
            return "no end"
        return output.strip() if self.process.returncode == 0 else f"status {self.process.returncode}"

    def stop(self):
        self.process.kill()
        self.process.wait()

    def said(self):
        self.errors.seek(0)
        return self.errors.read().strip()


def commands(names, folder):
    """The command of each program that can run."""
    found, calls = {}, Path(folder) / "cuda_calls"
    for name in names:
        text = PROGRAMS[name][1]
        if text in ("plain", "ordered"):
            if not calls.exists():
                subprocess.run(["g++", "-O2", "-o", str(calls), str(HERE / "cuda_calls.cpp"), "-ldl"], check=True)
            found[name] = [str(calls), text]
            continue
        module = name.split("_")[0]
        if subprocess.run([PYTHON, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"]).returncode:
            print(f"{name}: left out, there is no {module}")
            continue
        script = Path(folder) / f"program_{name}.py"  # torch.py would be what "import torch" finds
        script.write_text(text + TURNS)
        found[name] = [PYTHON, str(script)]
    return found


def take_turns(children, seconds):
    """Seconds per step of each mode in each turn."""
    for _ in range(2):  # the same number of steps in each mode, since results depend on it
        step = {mode: child.turn(WARMUP_STEPS) / WARMUP_STEPS for mode, child in children.items()}
    steps = max(1, min(200000, round(TURN_SECONDS / step["alone"])))
    times, modes, until = {mode: [] for mode in children}, list(children), time.monotonic() + seconds
    while time.monotonic() < until or len(times["alone"]) < 5:
        for mode in modes:
            times[mode].append(children[mode].turn(steps) / steps)
        modes = modes[1:] + modes[:1]
    return times


def ratio(times, mode):
    ratios = sorted(a / b for a, b in zip(times[mode], times["alone"]))
    quartiles = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(ratios):6.3f} ({quartiles[0]:.3f} to {quartiles[2]:.3f})"


def are_ready(children):
    missing = [child for child in children.values() if not child.wait_until_ready()]
    for child in missing:
        child.stop()
        print(f"{child.name}: did not start: {child.said()[-1500:]}", flush=True)
    return not missing


def measure(name, children, seconds):
    """A line of the table; whether the results are the same."""
    try:
        times = take_turns(children, seconds)
    except Ended as error:
        print(error, flush=True)
        return False
    results = {mode: child.end() for mode, child in children.items()}
    said = {mode: child.said() for mode, child in children.items()}
    typical = {mode: statistics.median(times[mode]) for mode in times}
    unit, scale = ("us", 1e6) if typical["alone"] < 1e-3 else ("ms", 1e3)
    print(f"{name:15} {unit} " + " ".join(f"{typical[mode] * scale:9.3f}" for mode in times) + "  " + "   ".join(ratio(times, mode) for mode in list(times)[1:]) +
          f"   {len(times['alone'])} turns", flush=True)
    for mode in list(times)[1:]:
        for line in said[mode].splitlines():
            if line.startswith("headroom: "):
                print(f"  {mode}: {line}")
    same = len(set(results.values())) == 1
    if not same:
        print(f"DIFFERENT RESULTS: {name}: {results} {said}")
    return same


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build-gpu")
    parser.add_argument("--seconds", type=float, default=30, help="for the turns of all programs together")
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    options = parser.parse_args()
    headroom = Path(options.build).resolve() / "headroom"
    if not has_card():
        skip("there is no card")
    if not (headroom.parent / "libheadroom_cuda.so").exists():
        skip(f"there is no libheadroom_cuda.so in {headroom.parent}")
    names = options.programs.split(",")
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        parser.error(f"no program {unknown[0]}; there are {', '.join(PROGRAMS)}")
    with tempfile.TemporaryDirectory() as folder:
        found, begin = commands(names, folder), time.monotonic()
        started = {name: {mode: Child(name, mode, found[name], PROGRAMS[name][2], headroom, folder) for mode in MODES} for name in found}
        print(f"{'program':15} {'':2} {'alone':>9} {'observe':>9} {'manage':>9}  {'observe/alone':>24}   {'manage/alone':>24}")
        try:
            ready = {name: children for name, children in started.items() if are_ready(children)}
            same = [measure(name, children, options.seconds / len(ready)) for name, children in ready.items()]
        finally:
            for children in started.values():
                for child in children.values():
                    child.stop()
        print(f"CUDA programs: {time.monotonic() - begin:.0f} s")
    sys.exit(0 if all(same) and len(ready) == len(started) else 1)


if __name__ == "__main__":
    main()
