#!/usr/bin/env python3
"""What `headroom run --observe` and `--manage` cost programs that use CUDA without Headroom.

    bench/cuda_programs.py [--build FOLDER] [--seconds S] [--processes N] [--seed N] [--programs NAME,...]

Two processes of one program differ in what has nothing to do with Headroom, such as where the system puts their memory, and the difference stays for as long as they run.
So the unit is the process. Each program runs in several processes of each of five modes, all alive at the same time:

    alone      without Headroom
    again      the same: what it differs by from "alone" is not due to Headroom
    preload    with a preloaded library that does nothing
    observe    headroom run --observe
    manage     headroom run --manage

They take turns of about 10 ms, after 4 ms that are not measured; one that waits for its turn does nothing. A round is one turn of each process, in random order. All of them
are on one core, the same for all, which changes every few rounds: so the processes of all modes meet the same cores, neighbours and slow moments.

A process has one figure: the median over the rounds of its time, divided by the median of all processes in that round. A ratio of two modes is the median of the ratios of
each process of the one to each of the other (Hodges and Lehmann), and its interval that of Mann and Whitney's test: 95%, or the extremes where there are too few processes for that,
fewer than three in a mode, or four beside "alone" only. "again" is compared with "alone", the others with both. The times are

    time       a step, until the card is done: the median of the turn
    host       the same until all its calls of CUDA have returned
    processor  of all threads of the process, the mean of the turn

"processes" is the lowest and the highest figure of those alone; "in Headroom" what the program requested from the driver in a step, and how often threads of Headroom woke up. The results of all processes must be the same.

    calls          cuMemAlloc and cuMemFree of 1 MiB, in C++ (cuda_calls.cpp)
    ordered        cuMemAllocAsync and cuMemFreeAsync of 1 MiB, on a stream
    launches       cuLaunchKernel of a kernel that does nothing, on a stream
    cold           cuMemAlloc, a launch and cuMemFree, each after 4 MiB of other memory were written: "host" has the calls alone
    torch          PyTorch: a training step of 8 layers of 1024, batch 256, which consists of launches
    torch_gpt2     PyTorch: a training step like that of GPT-2 small, 12 layers of 768, batch 4 x 512, bfloat16, AdamW
    torch_uncached torch with PYTORCH_NO_CUDA_MEMORY_CACHING=1: each tensor is a cudaMalloc
    jax            JAX: a gradient step of two products, with its own pool
    jax_platform   the same with XLA_PYTHON_CLIENT_ALLOCATOR=platform: each array is mapped memory
    jax_async      the same with XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async: each array is stream-ordered memory
    cupy           CuPy: a product and a mean, with its own pool
    cupy_async     the same with cupy.cuda.MemoryAsyncPool: each array is stream-ordered memory

What is not installed is left out. HEADROOM_TORCH_PYTHON is the interpreter that has the frameworks. Without a card it says so and ends with 0.
"""
import argparse
import ctypes
import functools
import json
import math
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODES = ("alone", "again", "preload", "observe", "manage")
OPTIONS = {"observe": ["--observe"], "manage": ["--manage", "--device", "none"]}  # without the plug-in for PyTorch
TURN_SECONDS = 0.010
IDLE_SECONDS = 0.004
LEAST_STEPS = 3
ROUNDS_ON_A_CORE = 4
LEAST_ROUNDS = 3
START_SECONDS = 120
TURN_LIMIT_SECONDS = 30
PYTHON = os.environ.get("HEADROOM_TORCH_PYTHON", sys.executable)
FIGURES = ("time", "host", "processor")

# ---- the programs ----

TURNS = """
import gc, sys, time
def middle(values): return sorted(values)[len(values) // 2]
def turn(before, steps):
    for _ in range(before):
        step()
        finish()
    times, hosts, used = [], [], time.process_time()
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        issued = time.perf_counter()
        finish()
        times.append(time.perf_counter() - begin)
        hosts.append(issued - begin)
    return middle(times), middle(hosts), (time.process_time() - used) / steps
turn(10, 10)
gc.collect()
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "end": break
    print("%.9f %.9f %.9f" % turn(*map(int, line.split())), flush=True)
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
finish = torch.cuda.synchronize
def result(): return "%.9g" % loss.item()
"""

# Gradients of attention are summed in any order, so only the first loss is the same in all processes.
TORCH_GPT2 = """
import torch
from torch.nn import Embedding, GELU, LayerNorm, Linear, Module, Sequential
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
WORDS, LENGTH, WIDTH, HEADS = 8192, 512, 768, 12
class Block(Module):
    def __init__(self):
        super().__init__()
        self.before, self.inputs, self.output = LayerNorm(WIDTH), Linear(WIDTH, 3 * WIDTH), Linear(WIDTH, WIDTH)
        self.mlp = Sequential(LayerNorm(WIDTH), Linear(WIDTH, 4 * WIDTH), GELU(), Linear(4 * WIDTH, WIDTH))
    def forward(self, x):
        q, k, v = (part.unflatten(2, (HEADS, WIDTH // HEADS)).transpose(1, 2) for part in self.inputs(self.before(x)).split(WIDTH, dim=2))
        x = x + self.output(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(x)
torch.manual_seed(0)
with torch.device("cuda"):
    words, places = Embedding(WORDS, WIDTH), Embedding(LENGTH, WIDTH)
    body = Sequential(*[Block() for _ in range(12)], LayerNorm(WIDTH), Linear(WIDTH, WORDS, bias=False))
    data, at = torch.randint(WORDS, (4, LENGTH + 1)), torch.arange(LENGTH)
optimizer = torch.optim.AdamW([*words.parameters(), *places.parameters(), *body.parameters()], lr=1e-4, fused=True)
inputs, targets, first, loss = data[:, :-1].contiguous(), data[:, 1:].flatten(), None, None
def step():
    global first, loss
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = cross_entropy(body(words(inputs) + places(at)).flatten(0, 1), targets)
    if first is None: first = loss.item()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
finish = torch.cuda.synchronize
def result(): return "%.6g, then %s" % (first, "less" if loss.item() < first else loss.item())
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
def finish(): value.block_until_ready()
def result(): return "%.9g" % float(value)
"""

CUPY = """
import cupy, os
if os.environ.get("BENCH_POOL") == "async": cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
total = mean = 0.0
def step():
    global mean
    values = cupy.arange(1 << 22, dtype=cupy.float32).reshape(2048, 2048)
    mean = (values @ values.T).mean()
def finish():
    global total
    total = float(mean)
def result(): return "%.9g" % total
"""

UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
# XLA times its kernels in each process and may choose others, whose results differ in the last digits.
FIXED = {"XLA_FLAGS": "--xla_gpu_autotune_level=0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# The same order of dictionaries and sets in all processes.
VARIABLES = {"PYTHONHASHSEED": "0"}


class Program:
    """Its text, or the argument of cuda_calls; variables; processes of each mode and seconds, unless they are given."""

    def __init__(self, text, variables=None, processes=3, seconds=6.0):
        self.text, self.variables, self.processes, self.seconds = text, {**VARIABLES, **(variables or {})}, processes, seconds
        self.is_calls = "\n" not in text
        self.steps_to_try = 1000 if self.is_calls else 5


PROGRAMS = {
    "calls": Program("plain", seconds=3), "ordered": Program("ordered", seconds=3), "launches": Program("launches", processes=4),
    "cold": Program("cold", seconds=20),
    "torch": Program(TORCH, processes=8, seconds=40), "torch_gpt2": Program(TORCH_GPT2, processes=5, seconds=25), "torch_uncached": Program(TORCH, UNCACHED),
    "jax": Program(JAX, FIXED), "jax_platform": Program(JAX, {**FIXED, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    "jax_async": Program(JAX, {**FIXED, "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}),
    "cupy": Program(CUPY), "cupy_async": Program(CUPY, {"BENCH_POOL": "async"}),
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


def compile_files(folder):
    """The program of the driver's calls, and a library that does nothing."""
    nothing = Path(folder) / "nothing.cpp"
    nothing.write_text("extern \"C\" void headroom_bench_nothing() {}\n")
    for source, out, options in ((HERE / "cuda_calls.cpp", "cuda_calls", []), (nothing, "nothing.so", ["-shared", "-fPIC"])):
        subprocess.run(["g++", "-O2", *options, "-o", str(Path(folder) / out), str(source), "-ldl"], check=True)


def command_of(name, folder):
    """None: the framework is not installed."""
    program = PROGRAMS[name]
    if program.is_calls:
        return [str(Path(folder) / "cuda_calls"), program.text]
    module = name.split("_")[0]
    if subprocess.run([PYTHON, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"]).returncode:
        print(f"{name}: left out, there is no {module}")
        return None
    script = Path(folder) / f"program_{name}.py"  # torch.py would be what "import torch" finds
    script.write_text(program.text + TURNS)
    return [PYTHON, str(script)]


# ---- processes ----

class Ended(Exception):
    pass


class Child:
    """A process of a program. Its standard error is a file, so that it never waits for a reader."""

    def __init__(self, name, mode, number, command, headroom, folder):
        self.name, self.mode = f"{name} {mode} {number + 1}", mode
        self.errors = open(Path(folder) / f"{name}-{mode}-{number}", "w+")
        variables = {**os.environ, **PROGRAMS[name].variables}
        if mode == "preload":
            variables["LD_PRELOAD"] = ":".join(filter(None, [os.environ.get("LD_PRELOAD"), str(Path(folder) / "nothing.so")]))
        wrapped = [str(headroom), "run", *OPTIONS[mode], "--", *command] if mode in OPTIONS else command
        self.process = subprocess.Popen(wrapped, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=variables)

    def read(self, seconds):
        """A line; "" where there is none in that time. The child writes one when it is asked, so that no second one is in the buffer."""
        ready = select.select([self.process.stdout], [], [], max(0, seconds))[0]
        return self.process.stdout.readline().strip() if ready else ""

    def is_ready(self, until):
        if self.read(until - time.monotonic()) == "ready":
            return True
        self.stop()
        print(f"{self.name}: did not start: {self.said()[-1500:]}", flush=True)
        return False

    def threads(self):
        folder = Path(f"/proc/{self.process.pid}/task")
        try:
            return [folder / number for number in os.listdir(folder)]
        except OSError:  # it has ended
            return []

    def pin(self, core):
        """All of its threads; those that it starts later have the core of the thread that starts them."""
        for thread in self.threads():
            try:
                os.sched_setaffinity(int(thread.name), {core})
            except OSError:  # it has ended
                pass

    def own_threads(self):
        """How often the threads of Headroom have run, and for how many ns; zeros where the system does not say."""
        runs = ns = 0
        for thread in self.threads():
            try:
                if (thread / "comm").read_text().startswith("headroom"):
                    used = (thread / "schedstat").read_text().split()
                    runs, ns = runs + int(used[2]), ns + int(used[0])
            except (OSError, ValueError, IndexError):
                pass
        return runs, ns

    def turn(self, before, steps):
        """Seconds of a step, as in FIGURES. [before] more are not measured."""
        try:
            print(before, steps, file=self.process.stdin, flush=True)
            used = tuple(map(float, self.read(TURN_LIMIT_SECONDS).split()))
        except (BrokenPipeError, ValueError) as error:
            raise Ended(f"{self.name}: ended in a turn: {self.said()[-1500:]}") from error
        if len(used) != len(FIGURES):
            raise Ended(f"{self.name}: ended in a turn: {self.said()[-1500:]}")
        return used

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


def start(name, command, processes, chance, headroom, folder):
    """In random order, because the card gives later processes other memory."""
    wanted = [(mode, number) for mode in MODES for number in range(processes)]
    return [Child(name, mode, number, command, headroom, folder) for mode, number in chance.sample(wanted, len(wanted))]


# ---- turns ----

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


def core_for(round_number, on):
    return on[round_number // ROUNDS_ON_A_CORE % len(on)]


def take_turns(children, seconds, steps_to_try, chance, on):
    """What each child says of its turn in each round, how many steps a turn has, and all turns of a child. It is the same number for all of them, since results depend on it."""
    until = time.monotonic() + seconds
    typical = statistics.median(child.turn(1, steps_to_try)[0] for child in children)
    steps, before = max(LEAST_STEPS, min(200000, round(TURN_SECONDS / typical))), max(1, min(80000, round(IDLE_SECONDS / typical)))
    times, rounds = [[] for _ in children], 0
    while time.monotonic() < until or rounds < LEAST_ROUNDS:
        if rounds % ROUNDS_ON_A_CORE == 0:
            for child in children:
                child.pin(core_for(rounds, on))
        for at in chance.sample(range(len(children)), len(children)):
            times[at].append(children[at].turn(before, steps))
        rounds += 1
    return times, steps, 1 + steps_to_try + rounds * (before + steps)


# ---- figures ----

def figures_of(times, which):
    """The logarithm of each process's figure: its median over the rounds, beside the median of all processes in the round."""
    logs = [[math.log(max(turn[which], 1e-12)) for turn in turns] for turns in times]
    centers = [statistics.median(of_round) for of_round in zip(*logs)]
    return [statistics.median(value - center for value, center in zip(values, centers)) for values in logs]


@functools.lru_cache(maxsize=None)
def arrangements(u, m, n):
    """Of m values of one kind and n of another in a row: those in which u pairs, one of each, are the other way round."""
    if u < 0 or m == 0 or n == 0:
        return int(u == 0)
    return arrangements(u - n, m - 1, n) + arrangements(u, m, n - 1)


def places_outside(m, n):
    """How many of the m * n sorted differences are below a 95% interval: there, chance puts the truth in at most 2.5% of all cases."""
    seen, places = arrangements(0, m, n), 0
    while seen / math.comb(m + n, m) <= 0.025:
        places += 1
        seen += arrangements(places, m, n)
    return places


def ratio(these, those):
    """Of the processes of a mode to those of another, with an interval; of logarithms."""
    differences = sorted(a - b for a in these for b in those)
    outside = max(1, places_outside(len(these), len(those))) - 1  # too few processes: the extremes
    return tuple(math.exp(value) for value in (statistics.median(differences), differences[outside], differences[-1 - outside]))


def compare(children, figures, mode):
    """What a mode costs beside the processes without Headroom. "again" is beside "alone" only."""
    base = ("alone",) if mode == "again" else ("alone", "again")
    return ratio([f for child, f in zip(children, figures) if child.mode == mode], [f for child, f in zip(children, figures) if child.mode in base])


def own_work(children, headroom):
    """Of each child under Headroom: how often its threads have run, for how many ns, and what the program has requested from the driver."""
    shown = subprocess.run([str(headroom), "top", "--json"], capture_output=True, text=True)
    programs = json.loads(shown.stdout)["programs"] if shown.returncode == 0 else []
    requests = {program["process"]: sum(device["num_allocs"] for device in program["devices"]) for program in programs}
    return {child: (*child.own_threads(), requests.get(child.process.pid, 0)) for child in children if child.mode in OPTIONS}


def print_own_work(before, after, seconds, steps):
    """What Headroom did in a mode's processes meanwhile, on average."""
    texts = []
    for mode in OPTIONS:
        wakes, ns, requests = (statistics.mean(after[child][at] - before[child][at] for child in before if child.mode == mode) for at in range(3))
        texts.append(f"{mode} {requests / steps:.2f} requests a step, {wakes / seconds:.1f} wake-ups and {ns / seconds / 1e6:.3f} ms a second")
    print(f"  {'in Headroom':15} " + "   ".join(texts))


def print_table(name, children, times, steps):
    seconds = {mode: statistics.median(statistics.median(turn[0] for turn in turns) for child, turns in zip(children, times) if child.mode == mode) for mode in MODES}
    unit, scale = ("us", 1e6) if seconds["alone"] < 1e-3 else ("ms", 1e3)
    print(f"{name:15} {unit} a step: " + ", ".join(f"{mode} {seconds[mode] * scale:.4g}" for mode in MODES) +
          f"; {len(children)} processes, {len(times[0])} rounds, {steps} steps in a turn")
    figures = {figure: figures_of(times, at) for at, figure in enumerate(FIGURES)}
    for mode in MODES[1:]:
        print(f"  {mode + '/alone':15} " + "   ".join("%s %.4f (%.4f to %.4f)" % (figure, *compare(children, figures[figure], mode)) for figure in FIGURES))
    alone = {figure: [f for child, f in zip(children, figures[figure]) if child.mode in MODES[:2]] for figure in FIGURES}
    middle = {figure: statistics.median(values) for figure, values in alone.items()}
    print(f"  {'processes':15} " + "   ".join("%s %.4f to %.4f" % (figure, *(math.exp(f(alone[figure]) - middle[figure]) for f in (min, max))) for figure in FIGURES))


def measure(name, children, seconds, chance, on, headroom):
    """The table of a program; whether the results are the same."""
    try:
        begin, before = time.monotonic(), own_work(children, headroom)
        times, steps, all_steps = take_turns(children, seconds, PROGRAMS[name].steps_to_try, chance, on)
        spent, after = time.monotonic() - begin, own_work(children, headroom)
    except Ended as error:
        print(error, flush=True)
        return False
    results = {child.name: child.end() for child in children}
    print_table(name, children, times, steps)
    print_own_work(before, after, spent, all_steps)
    for mode in OPTIONS:
        for line in next(child for child in children if child.mode == mode).said().splitlines():
            if line.startswith("headroom: "):
                print(f"  {mode}: {line}")
    same = len(set(results.values())) == 1
    if not same:
        print(f"DIFFERENT RESULTS: {name}: {results} { {child.name: child.said()[-500:] for child in children if child.said()} }")
    sys.stdout.flush()
    return same


def run(name, options, chance, on, own, headroom, folder):
    """Whether all processes of the program have started, and had the same result; None: it is left out."""
    program, command, begin = PROGRAMS[name], command_of(name, folder), time.monotonic()
    if not command:
        return None
    children = start(name, command, options.processes or program.processes, chance, headroom, folder)
    try:
        ready = [child for child in children if child.is_ready(begin + START_SECONDS)]
        if {child.mode for child in ready} != set(MODES):
            return False
        started = time.monotonic() - begin
        os.sched_setaffinity(0, {own})
        same = measure(name, ready, options.seconds or program.seconds, chance, on, headroom)
        print(f"  {started:.0f} s to start, {time.monotonic() - begin:.0f} s in all", flush=True)
        return same and len(ready) == len(children)
    finally:
        for child in children:
            child.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build-gpu")
    parser.add_argument("--seconds", type=float, help="for the turns of each program")
    parser.add_argument("--processes", type=int, help="of each mode")
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
    chance, everywhere, on, begin = random.Random(options.seed), os.sched_getaffinity(0), cores(), time.monotonic()
    print(f"{len(on)} cores, --seed {options.seed}", flush=True)
    own = on.pop() if len(on) > 1 else on[0]  # this process keeps away from the cores of the turns
    chance.shuffle(on)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        compile_files(folder)
        for name in names:
            os.sched_setaffinity(0, everywhere)  # processes start on all cores
            outcomes.append(run(name, options, chance, on, own, headroom, folder))
    print(f"CUDA programs: {time.monotonic() - begin:.0f} s")
    sys.exit(1 if False in outcomes else 0)


if __name__ == "__main__":
    main()
