#!/usr/bin/env python3
"""The PyTorch side of a comparison: training steps of the models of examples/models.h, their time and peak memory.

    bench/torch_models.py [--model mlp|conv|gpt] [--threads N] [--steps N] [--warmup N]
    bench/torch_models.py --quick [--device cuda|cpu] [--small] [--steps N]     measures the models whose names it reads, a line each

Prints a line of JSON for each model:

    torch, blas, threads       version; the library that multiplies matrices; number of threads
    step_seconds, step_seconds_min   median and minimum of the steps after the warm-up, without counting memory
    parameter_bytes
    peak_tensor_bytes          peak of bytes in tensors during a step
    peak_all_bytes             the same including other memory: scratch of oneDNN and BLAS, rounding, objects
    mapped_bytes               the part of that in touched mappings instead of malloc blocks: OpenBLAS packs matrices there

Both peaks include parameters, gradients, optimizer state, the input of the step, and everything else that is live at the peak. Gradients
are freed before each step (zero_grad(set_to_none=True)), so they are live only from backward to the end of the step. The measured step comes
after the warm-up, when all state exists.

--quick prints a line of JSON for each name: the median_s of the steps and, on a card, the peak_bytes of max_memory_allocated; 0 on the CPU. gpt2 is GPT-2 medium under bfloat16
autocast, with fused attention and dropout; --small makes it small.

How memory is counted. Tensors: torch.profiler reports each allocation and free of PyTorch's CPU allocator; the peak is the maximum of their running sum,
starting from the tensors that exist when the step begins. All: count_malloc.c, compiled here and preloaded into a second process, counts all blocks from
malloc and related functions. What was live before the model was created (Python and its modules) is subtracted from the peak within the step, and
pages of mappings that were touched since are added. The two are measured in separate steps, because the profiler itself needs memory, and
neither in a timed step. They should differ only by scratch memory and rounding; if all memory is less than tensors, something is counted
wrong, and the program reports it and fails.

Threads are those of OpenMP, which PyTorch and the OpenMP variant of OpenBLAS use. Debian's PyTorch calls whatever libblas.so.3 is. The
reference implementation (netlib) takes many times as long for a matrix product, so it is refused. Install libopenblas0-openmp, or point
LD_LIBRARY_PATH at the folder of its libblas.so.3.
"""
import argparse
import ctypes
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
COUNTER = "HEADROOM_COUNT_MALLOC"  # set to the library's path in the counting process

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    sys.exit("torch_models: python3 has no module torch")


# ---- models ----


def mlp():
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    x, labels = torch.randn(128, 1024), torch.randint(10, (128,))
    return model, lambda: F.cross_entropy(model(x), labels), [x, labels]


def conv():
    def stage(before, after):
        return [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*stage(3, 32), *stage(32, 64), nn.Flatten(), nn.Linear(64 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10))
    x, labels = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    return model, lambda: F.cross_entropy(model(x), labels), [x, labels]


class Attention(nn.Module):
    """Not fused, unless there is dropout: scores, mask, softmax and product are separate ops."""

    def __init__(self, width, heads, time_, dropout):
        super().__init__()
        self.heads, self.is_fused = heads, dropout > 0
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.drop = nn.Dropout(dropout)
        if not self.is_fused:
            self.register_buffer("later", torch.ones(time_, time_, dtype=torch.bool).triu(1))

    def mixed(self, q, k, v):
        if self.is_fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(scores.masked_fill(self.later, -math.inf), -1) @ v

    def forward(self, x):
        batch, time_, width = x.shape
        q, k, v = (layer(x).view(batch, time_, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.drop(self.out(self.mixed(q, k, v).transpose(1, 2).reshape(batch, time_, width)))


class Block(nn.Module):
    def __init__(self, width, heads, time_, dropout):
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width, heads, time_, dropout)
        self.dense = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.dense(x)


class Gpt(nn.Module):
    def __init__(self, time_=128, width=256, heads=8, blocks=4, vocabulary=1024, dropout=0.0):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(time_, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(width, heads, time_, dropout) for _ in range(blocks)])
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, tokens):
        return self.last(self.blocks(self.drop(self.token(tokens) + self.position.weight)))


def gpt_batch(model, batch, time_, vocabulary):
    """Each position predicts the next token: 129 tokens are 128 inputs and 128 labels."""
    tokens = torch.randint(vocabulary, (batch, time_ + 1))
    x, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)
    return model, lambda: F.cross_entropy(model(x).view(-1, vocabulary), labels), [x, labels, *model.buffers()]


def gpt():
    return gpt_batch(Gpt(), 4, 128, 1024)


def gpt2():
    time_, width, heads, blocks, vocabulary = (64, 64, 2, 4, 512) if SMALL else (1024, 1024, 16, 24, 50257)
    model = Gpt(time_, width, heads, blocks, vocabulary, dropout=0.1)
    model, loss, data = gpt_batch(model, 8, time_, vocabulary)

    def under_autocast():
        with torch.autocast(data[0].device.type, dtype=torch.bfloat16):
            return loss()
    return model, under_autocast, data


SMALL = False
MODELS = {"mlp": mlp, "conv": conv, "gpt": gpt, "gpt2": gpt2}


class Training:
    def __init__(self, name):
        torch.manual_seed(1)
        self.model, self.loss, self.data = MODELS[name]()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.001)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def warm_up(self, steps):
        for _ in range(steps):
            self.step()

    def bytes_between_steps(self):
        """Bytes of all tensors that exist when a step begins, after zero_grad has freed the gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        state = [t for of in self.optimizer.state.values() for t in of.values() if torch.is_tensor(t)]
        return sum(t.numel() * t.element_size() for t in [*self.model.parameters(), *state, *self.data])


# ---- tensors, by the profiler ----


def start_of(event):
    """Time of the event, as a sort key. Debian's PyTorch 1.13 has only start_us, 2.11 only start_ns."""
    return event.start_ns() if hasattr(event, "start_ns") else event.start_us()


def peak_of(before, events):
    """Maximum of the running sum. sorted is stable for events of the same time."""
    now = peak = before
    for event in sorted(events, key=start_of):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def peak_tensor_bytes(training):
    before = training.bytes_between_steps()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        training.step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    if not events:
        sys.exit("torch_models: the profiler tells of no allocation")
    return peak_of(before, events)


# ---- everything, by count_malloc.c ----


def counter():
    library = ctypes.CDLL(os.environ[COUNTER])
    for name in ("live", "peak", "mapped"):
        getattr(library, f"count_malloc_{name}").restype = ctypes.c_int64
    return library


def count_all(name, threads, warmup):
    """In the counting process: prints the peak of a step above what was live before the model was created."""
    torch.set_num_threads(threads)
    count = counter()
    torch.randn(64).sum()
    before, mapped = count.count_malloc_live(), count.count_malloc_mapped()
    training = Training(name)
    training.warm_up(warmup)
    training.bytes_between_steps()
    count.count_malloc_reset()
    training.step()
    mapped = count.count_malloc_mapped() - mapped
    print(json.dumps([count.count_malloc_peak() - before + mapped, mapped]))


def peak_all_bytes(library, name, options):
    command = [sys.executable, __file__, "--model", name, "--threads", str(options.threads), "--warmup", str(options.warmup)]
    environment = dict(os.environ, LD_PRELOAD=library, OMP_NUM_THREADS=str(options.threads), **{COUNTER: library})
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def build_counter(folder):
    library = str(Path(folder) / "libcount_malloc.so")
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", library, str(HERE / "count_malloc.c"), "-ldl"], check=True)
    return library


# ---- all of it ----


def blas_among(files):
    """The BLAS libraries among the loaded files that PyTorch uses on the CPU: not NumPy's own, and not a GPU's."""
    found = sorted(f for f in files if any(part in os.path.basename(f) for part in ("blas", "mkl_core"))
                   and "cublas" not in os.path.basename(f) and Path(f).parent.name != "numpy.libs")
    return ", ".join(str(Path(f).parent.name + "/" + Path(f).name) for f in found) or "PyTorch's own"


def blas():
    """The BLAS libraries loaded into this process; one linked into PyTorch itself is not seen."""
    with open("/proc/self/maps") as maps:
        return blas_among({line.split()[-1] for line in maps if "/" in line})


def need_fast_blas():
    if any("/blas/libblas" in "/" + name for name in blas().split(", ")):
        sys.exit(f"torch_models: PyTorch computes with {blas()}, the reference BLAS; that is no comparison. See --help")


def measure(library, name, options):
    training = Training(name)
    training.warm_up(options.warmup)
    seconds = []
    for _ in range(options.steps):
        begin = time.perf_counter()
        training.step()
        seconds.append(time.perf_counter() - begin)
    tensors = peak_tensor_bytes(training)
    everything, mapped = peak_all_bytes(library, name, options)
    print(json.dumps({
        "model": name,
        "torch": torch.__version__,
        "blas": blas(),
        "threads": torch.get_num_threads(),
        "steps": options.steps,
        "step_seconds": round(statistics.median(seconds), 6),
        "step_seconds_min": round(min(seconds), 6),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in training.model.parameters()),
        "peak_tensor_bytes": tensors,
        "peak_all_bytes": everything,
        "mapped_bytes": mapped,
    }), flush=True)
    if everything < tensors:
        sys.exit("torch_models: less memory in all than in tensors; one of them was counted wrong")


def quick(name, options):
    on_card = options.device.startswith("cuda")
    training = Training(name)
    training.warm_up(options.warmup)
    seconds = []
    if on_card:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(options.steps):
        begin = time.perf_counter()
        training.step().item()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"model": name, "median_s": statistics.median(seconds), "peak_bytes": torch.cuda.max_memory_allocated() if on_card else 0}), flush=True)


def main():
    global SMALL
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, help="this one alone")
    parser.add_argument("--threads", type=int, default=1, help="default 1")
    parser.add_argument("--steps", type=int, default=20, help="whose time is taken; default 20")
    parser.add_argument("--warmup", type=int, default=5, help="default 5")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu", help="with --quick: cuda or cpu")
    parser.add_argument("--small", action="store_true", help="a small gpt2")
    options = parser.parse_args()
    SMALL = options.small
    if options.quick:
        torch.set_default_device(torch.device(options.device))
        for line in sys.stdin:  # the model of a call is freed before the next line is read
            quick(line.strip(), options)
            gc.collect()
            if options.device.startswith("cuda"):
                torch.cuda.empty_cache()
        return None
    if COUNTER in os.environ:
        return count_all(options.model, options.threads, options.warmup)
    torch.set_num_threads(options.threads)
    need_fast_blas()
    with tempfile.TemporaryDirectory() as folder:
        library = build_counter(folder)
        for name in [options.model] if options.model else ("mlp", "conv", "gpt"):
            measure(library, name, options)


if __name__ == "__main__":
    main()
