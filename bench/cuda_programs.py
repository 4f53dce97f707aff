#!/usr/bin/env python3
"""What `headroom run --observe` and `--manage` cost programs that use CUDA without Headroom.

    bench/cuda_programs.py [--build FOLDER] [--seconds S] [--copies N] [--seed N] [--programs NAME,...]

Each program runs in six processes at the same time: two alone, two with --observe and two with --manage. They take turns of about 8 ms, after 3 ms that are not
measured; one that waits for its turn does nothing. A round is one turn of each process. Rounds come in blocks in which each process has each place once, in random order,
so that a slow moment of the machine meets all of them. Each process has a core of its own, where there are enough, and the processes change cores every few blocks.

A ratio is the median over the rounds, of the time of a mode's two processes to that of the two alone, with the 95% confidence interval of the median (of the
signs: it supposes nothing about the distribution). "shortest" is the same of the shortest step of each turn, which other work on the machine disturbs least, and "processor"
of the processor time of the thread that makes the calls. "copies" compares the second process of a mode with the first one: what they differ by is not due to Headroom.
The results of all processes must be the same. All are started at once, because starting takes longer than the steps.

    calls          cuMemAlloc and cuMemFree of 1 MiB, in C++ (cuda_calls.cpp)
    ordered        cuMemAllocAsync and cuMemFreeAsync of 1 MiB, on a stream
    launches       cuLaunchKernel of a kernel that does nothing, on a stream
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
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODES = {"alone": None, "observe": ["--observe"], "manage": ["--manage", "--device", "none"]}  # without the plug-in for PyTorch
TURN_SECONDS = 0.008
IDLE_SECONDS = 0.003
WARMUP_STEPS = 20
BLOCKS_ON_A_CORE = 4
LEAST_BLOCKS = 2
START_SECONDS = 60
PYTHON = os.environ.get("HEADROOM_TORCH_PYTHON", sys.executable)

# ---- the programs ----

TURNS = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "end": break
    before, steps = map(int, line.split())
    for _ in range(before): step()
    finish()
    used, times = time.thread_time(), [time.perf_counter()]
    for _ in range(steps):
        step()
        times.append(time.perf_counter())
    finish()
    end, used = time.perf_counter(), time.thread_time() - used
    shortest = min(b - a for a, b in zip(times, times[1:]))
    print("%.9f %.9f %.9f" % ((end - times[0]) / steps, shortest, used / steps), flush=True)
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
    "calls": ("pair", "plain", {}), "ordered": ("pair", "ordered", {}), "launches": ("pair", "launches", {}),
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

    def __init__(self, name, mode, copy, command, variables, headroom, folder):
        self.name = f"{name} {mode} {copy + 1}"
        self.errors = open(Path(folder) / f"{name}-{mode}-{copy}", "w+")
        wrapped = command if MODES[mode] is None else [str(headroom), "run", *MODES[mode], "--", *command]
        self.process = subprocess.Popen(wrapped, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env={**os.environ, **variables})

    def wait_until_ready(self):
        return self.process.stdout.readline().strip() == "ready"

    def pin(self, core):
        """All of its threads; those that it starts later have the core of the thread that starts them."""
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            try:
                os.sched_setaffinity(int(thread), {core})
            except OSError:  # it has ended
                pass

    def turn(self, before, steps):
        """Seconds of a step: the mean, the shortest, and those of the processor. [before] more are not measured."""
        try:
            print(before, steps, file=self.process.stdin, flush=True)
            mean, shortest, used = map(float, self.process.stdout.readline().split())
            return mean, shortest, used
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
        if text in ("plain", "ordered", "launches"):
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


def cores():
    """A number for each core of this process's, without a second one that shares its units; those of one package first."""
    found = {}
    for number in sorted(os.sched_getaffinity(0)):
        folder = Path(f"/sys/devices/system/cpu/cpu{number}/topology")
        try:
            where = tuple(int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))
        except (OSError, ValueError):
            where = (0, number)
        found.setdefault(where, number)
    return [found[where] for where in sorted(found)]


def orders(children, chance):
    """A block of rounds: each child has each place once."""
    shuffled = chance.sample(list(children), len(children))
    block = [shuffled[at:] + shuffled[:at] for at in range(len(shuffled))]
    chance.shuffle(block)
    return block


def take_turns(children, seconds, seed):
    """What each child says of its turn in each round, and how many steps a turn has. It is the same number for all of them, since results depend on it."""
    for _ in range(2):
        typical = statistics.median(child.turn(1, WARMUP_STEPS)[0] for child in children.values())
    steps, before = (max(1, min(200000, round(seconds / typical))) for seconds in (TURN_SECONDS, IDLE_SECONDS))
    times, chance, on = {key: [] for key in children}, random.Random(seed), cores()
    if len(on) > len(children):  # this process keeps away from theirs
        os.sched_setaffinity(0, {on.pop()})
    until, blocks = time.monotonic() + seconds, 0
    while time.monotonic() < until or blocks < LEAST_BLOCKS:
        if blocks % BLOCKS_ON_A_CORE == 0:
            for at, child in enumerate(children.values()):
                child.pin(on[(at + blocks // BLOCKS_ON_A_CORE) % len(on)])
        for order in orders(children, chance):
            for key in order:
                times[key].append(children[key].turn(before, steps))
        blocks += 1
    return times, steps


def median_with_interval(values):
    """The median, and its 95% confidence interval: between two of the sorted values, so many places from the middle as a fair coin's heads are from half."""
    values = sorted(values)
    reach = 0.98 * len(values) ** 0.5
    low, high = max(0, int(len(values) / 2 - reach)), min(len(values) - 1, int(len(values) / 2 + reach))
    return statistics.median(values), values[low], values[high]


def describe(ratios):
    return "%.4f (%.4f to %.4f)" % median_with_interval(ratios)


def sums(times, mode, which):
    """Of all processes of a mode, in each round."""
    return [sum(turn[which] for turn in turns) for turns in zip(*(times[key] for key in times if key[0] == mode))]


def compare_modes(times, mode, which):
    return describe([a / b for a, b in zip(sums(times, mode, which), sums(times, "alone", which)) if b > 0] or [1.0])


def compare_copies(times, mode, which):
    return describe([a[which] / b[which] for a, b in zip(times[mode, 1], times[mode, 0]) if b[which] > 0] or [1.0])


def are_ready(children):
    missing = [child for child in children.values() if not child.wait_until_ready()]
    for child in missing:
        child.stop()
        print(f"{child.name}: did not start: {child.said()[-1500:]}", flush=True)
    return not missing


FIGURES = ("time", "shortest", "processor")


def print_table(name, times, steps):
    typical = {mode: statistics.median(turn[0] for key in times if key[0] == mode for turn in times[key]) for mode in MODES}
    unit, scale = ("us", 1e6) if typical["alone"] < 1e-3 else ("ms", 1e3)
    rounds = len(times["alone", 0])
    print(f"{name:15} {unit} a step: " + ", ".join(f"{mode} {typical[mode] * scale:.4g}" for mode in MODES) + f"; {rounds} rounds, {steps} steps in a turn")
    for mode in list(MODES)[1:]:
        print(f"  {mode + '/alone':15} " + "   ".join(f"{name} {compare_modes(times, mode, at)}" for at, name in enumerate(FIGURES)))
    for mode in MODES if ("alone", 1) in times else []:
        print(f"  {'copies: ' + mode:15} " + "   ".join(f"{name} {compare_copies(times, mode, at)}" for at, name in enumerate(FIGURES)))


def measure(name, children, seconds, seed):
    """The table of a program; whether the results are the same."""
    try:
        times, steps = take_turns(children, seconds, seed)
    except Ended as error:
        print(error, flush=True)
        return False
    results = {child.name: child.end() for child in children.values()}
    print_table(name, times, steps)
    for (mode, copy), child in children.items():
        for line in child.said().splitlines():
            if copy == 0 and line.startswith("headroom: "):
                print(f"  {mode}: {line}")
    same = len(set(results.values())) == 1
    if not same:
        print(f"DIFFERENT RESULTS: {name}: {results} { {child.name: child.said()[-500:] for child in children.values()} }")
    sys.stdout.flush()
    return same


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build-gpu")
    parser.add_argument("--seconds", type=float, default=30, help="for the turns of each program")
    parser.add_argument("--copies", type=int, default=2, help="processes of each mode")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100000, help="of the order of the turns")
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
        started = {name: {(mode, copy): Child(name, mode, copy, found[name], PROGRAMS[name][2], headroom, folder) for mode in MODES for copy in range(options.copies)}
                   for name in found}
        print(f"{len(cores())} cores, --seed {options.seed}", flush=True)
        try:
            ready = {name: children for name, children in started.items() if are_ready(children)}
            same = [measure(name, children, options.seconds, options.seed) for name, children in ready.items()]
        finally:
            for children in started.values():
                for child in children.values():
                    child.stop()
        print(f"CUDA programs: {time.monotonic() - begin:.0f} s")
    sys.exit(0 if all(same) and len(ready) == len(started) else 1)


if __name__ == "__main__":
    main()
