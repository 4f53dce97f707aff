#!/usr/bin/env python3
"""Headroom as PyTorch's allocator, without Large Model Support: step time and peak memory of six programs, compared with PyTorch's own allocator.

    bench/torch_workloads.py --all [--quick] [--steps N] [--build FOLDER] [--device cpu --small]
    bench/torch_workloads.py --workload NAME --allocator native|expandable|headroom [--steps N]

    gpt2       GPT-2 medium, batch 8 x 1024, bf16 autocast, AdamW, dropout on
    gpt2var    the same with random lengths of 256 to 1024, the same in every run
    gpt2ckpt   the same as gpt2 with gradient checkpointing of every block
    resnet     ResNet-50, batch 64, SGD; the last batch of each epoch of 8 is 24
    unet       a U-Net of five levels, 256 x 256 images, Adam
    serve      a decoder of Llama's shape (1B): 8 requests at a time, prompts of 16 to 1024 tokens, answers of 8 to 96, caches that grow; a step is
               one token of every request
    fragmentation   a limit filled with blocks of 1.5 to 9 MB, every second one freed, then one tensor of a part of the free bytes. Blocks of this size share
               segments in PyTorch's native allocator, so none of them can be released; the contents of all other blocks are compared at the end

--all runs each pair of workload and allocator in a process of its own: memory that one workload leaves in pieces would count against the next. The processes
of a workload run at the same time and take turns, a step each, so that a slow moment of the machine meets all of them.

Step time: the median of the steps after the warm-up, the device synchronized at the end of each. /native: the median of the ratios of the same step. Reserved: the peak
over the whole process. With --device cpu the programs run
on Headroom's emulated device, to show that they work; PyTorch has no figures of memory there.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ALLOCATORS = ("native", "expandable", "headroom")
WARMUP = 4
READY = "ready for a step"  # what a child that takes turns prints before each
FRAGMENTED_LIMIT = 4 << 30
FRAGMENTED_PARTS = (0.5, 0.75, 0.9)  # all above the rest of the limit, which no block was taken from


# ---- processes ----


def environment(options, **changes):
    """Of a child that finds Headroom in a build folder, without being installed."""
    result = dict(os.environ, PYTHONPATH=str(ROOT / "python"), PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    result.setdefault("HEADROOM_LIBRARY_DIR", str(Path(options.build).resolve()))
    result.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    result.pop("PYTORCH_ALLOC_CONF", None)
    if options.device == "cpu":  # small pages, because the tensors are small; oneDNN uses AMX where a virtual machine announces it and does not have it
        result.setdefault("HEADROOM_EMULATED", "memory=4GiB,page=64KiB")
        result.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
        result.setdefault("OMP_NUM_THREADS", "1")
    result.update(changes)
    return result


class Child:
    """This interpreter with arguments, in a process that is killed after timeout seconds. show is called with each line that it prints."""

    def __init__(self, arguments, variables, timeout, show=None):
        self.process = subprocess.Popen([sys.executable, *map(str, arguments)], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True)
        self.killer = threading.Timer(timeout, self.process.kill)
        self.killer.start()
        self.show, self.result, self.last = show, None, ""

    def read(self, until=None):
        """Reads up to a line, or to the end. Whether that line came."""
        for line in self.process.stdout:
            line = line.rstrip()
            if line.startswith("{"):
                self.result = json.loads(line)
            elif until and line == until:
                return True
            elif line:
                self.last = line
                if self.show:
                    self.show(line)
        return False

    def take_turn(self):
        """Lets the child run a step. False: it has ended."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass    # read() sees the end
        return self.read(READY)

    def finish(self):
        """The dictionary that it printed, or {"failed": reason}."""
        self.read()
        self.process.stdin.close()
        self.process.wait()
        self.killer.cancel()
        if self.result and self.process.returncode == 0:
            return self.result
        return {"failed": f"exit status {self.process.returncode}: {self.last[:300]}"}


def run_child(arguments, variables, timeout, show=None):
    return Child(arguments, variables, timeout, show).finish()


def install(allocator, device, **settings):
    """In the child, before the first tensor on the device."""
    if allocator == "headroom":
        import headroom.torch
        headroom.torch.install(device=device, **settings)


def memory(allocator, device):
    """Peaks of the process, in bytes; what is not known is missing. card: what the driver says is in use now, of all processes."""
    import torch
    result = {}
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        result = {"card": total - free}
    if allocator == "headroom":
        import headroom.torch
        stats = headroom.torch.stats()
        result.update(reserved=stats["peak_bytes_reserved"], live=stats["peak_bytes_in_use"], stitches=stats["num_stitches"])
    elif device == "cuda":
        result.update(reserved=torch.cuda.max_memory_reserved(), live=torch.cuda.max_memory_allocated())
    return result


def synchronize(device):
    if device == "cuda":
        import torch
        torch.cuda.synchronize()


def synchronize_stream(device):
    """Waits for the current stream alone."""
    if device == "cuda":
        import torch
        torch.cuda.current_stream().synchronize()
    else:
        synchronize(device)


# ---- workloads: each returns a function that runs step number n, and how many steps to take ----


def optimizer_step(optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def gpt2(device, small, lengths=None, checkpointing=False, batch=8):
    import torch
    import torch_networks
    with torch.device(device):
        model = torch_networks.gpt2(small, checkpointing)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    longest, words = (64, 512) if small else (1024, 50257)
    choose = random.Random(17)
    data = torch.Generator().manual_seed(17)

    def step(number):
        length = choose.randint(longest // 4, longest) if lengths else longest
        tokens = torch.randint(words, (step.batch, length), generator=data).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(tokens)
        return optimizer_step(optimizer, loss)
    step.model, step.batch = model, batch
    return step, 25


def resnet(device, small, batch=64):
    import torch
    import torch_networks
    with torch.device(device):
        model = torch_networks.ResNet50(small)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch, side = (4, 64) if small else (batch, 224)
    data = torch.Generator().manual_seed(17)
    images, labels = torch.randn(batch, 3, side, side, generator=data), torch.randint(1000, (batch,), generator=data)

    def step(number):
        count = batch * 3 // 8 if number % 8 == 7 else batch
        return optimizer_step(optimizer, model(images[:count].to(device), labels[:count].to(device)))
    step.model = model
    return step, 40


def unet(device, small, batch=24):
    import torch
    import torch_networks
    with torch.device(device):
        model = torch_networks.UNet(small)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch, side = (2, 64) if small else (batch, 256)
    data = torch.Generator().manual_seed(17)
    images, masks = torch.randn(batch, 3, side, side, generator=data), torch.rand(batch, 1, side, side, generator=data).round()
    step = lambda number: optimizer_step(optimizer, model(images.to(device), masks.to(device)))  # noqa: E731
    step.model = model
    return step, 20


def serve(device, small):
    import torch
    import torch_networks
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        model = torch_networks.Llama(small).to(dtype).eval()
    longest, answer, words = (64, 12, 256) if small else (1024, 96, 128256)
    choose = random.Random(17)
    data = torch.Generator().manual_seed(17)
    running = []  # of [caches, last tokens, tokens left]

    def admit():
        rows = choose.choice((1, 1, 1, 2, 4))
        prompt = torch.randint(words, (rows, choose.randint(16, longest)), generator=data).to(device)
        caches = [None] * len(model.layers)
        running.append([caches, model(prompt, caches), choose.randint(8, answer)])

    @torch.inference_mode()
    def step(number):
        while len(running) < 8:
            admit()
        for request in running:
            request[1] = model(request[1], request[0])
            request[2] -= 1
        running[:] = [request for request in running if request[2]]
    step.model = model
    return step, 100


WORKLOADS = {
    "gpt2": gpt2,
    "gpt2var": lambda device, small: gpt2(device, small, lengths=True),
    "gpt2ckpt": lambda device, small: gpt2(device, small, checkpointing=True),
    "resnet": resnet,
    "unet": unet,
    "serve": serve,
}


def measure(options):
    """In the child: prints a line of JSON."""
    import torch
    install(options.allocator, options.device)
    torch.manual_seed(1)
    step, steps = WORKLOADS[options.workload](options.device, options.small)
    steps = options.steps or (4 if options.small else steps // 2 if options.quick else steps)
    seconds = []
    for number in range(WARMUP + steps):
        if options.turns:
            print(READY, flush=True)
            sys.stdin.readline()
        begin = time.perf_counter()
        step(number)
        synchronize(options.device)
        seconds.append(time.perf_counter() - begin)
    timed = [1e3 * second for second in seconds[WARMUP:]]
    print(json.dumps({"workload": options.workload, "allocator": options.allocator, "ms": statistics.median(timed), "steps_ms": [round(one, 3) for one in timed],
                      **memory(options.allocator, options.device)}), flush=True)


# ---- fragmentation ----


def fragmentation(options):
    """In the child: tries the large tensor. The settings are those of one limit for all allocators."""
    import torch
    limit, unit = (64 << 20, 100 << 10) if options.small else (FRAGMENTED_LIMIT, 1 << 20)
    if options.allocator == "headroom":
        install("headroom", options.device, limit=limit)
    elif options.device == "cuda":
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    choose, blocks = random.Random(17), []
    while sum(block.numel() for block in blocks) < limit * 0.85:  # the native allocator loses some at the end of each segment
        blocks.append(torch.full((int(choose.uniform(1.5, 9) * unit),), len(blocks) % 251, dtype=torch.uint8, device=options.device))
    freed = sum(block.numel() for block in blocks[1::2])
    blocks[1::2] = [None] * len(blocks[1::2])
    result = {}
    for part in FRAGMENTED_PARTS:
        try:
            large = torch.full((int(freed * part),), 7, dtype=torch.uint8, device=options.device)
            result[str(part)] = "ok"
            del large
        except torch.OutOfMemoryError:
            result[str(part)] = "out of memory"
    changed = sum(block is not None and not bool((block == number % 251).all()) for number, block in enumerate(blocks))
    print(json.dumps({"freed": freed, "limit": limit, "parts": result, "changed": changed, **memory(options.allocator, options.device)}), flush=True)


# ---- all of it ----


def cell(row, name, scale, digits):
    return f"{row[name] / scale:.{digits}f}" if row and name in row else "failed" if row and "failed" in row else "-"


def ratio(row, other, name):
    return f"{row[name] / other[name]:.3f}" if row and other and row.get(name) and other.get(name) else "-"


def step_ratio(row, other):
    """The median of the ratios of each step to the same step of another allocator."""
    if not row or not other or "failed" in row or "failed" in other:
        return "-"
    return f"{statistics.median(a / b for a, b in zip(row['steps_ms'], other['steps_ms'])):.3f}"


def print_table(results):
    heads = ["workload", "native ms", "expandable", "headroom", "/native", "live GB", "native GB", "expandable", "headroom", "/expandable"]
    print("\n" + " ".join(f"{head:>11}" for head in heads))
    for name, row in results.items():
        native, expandable, headroom = (row.get(allocator) for allocator in ALLOCATORS)
        cells = [name, *(cell(one, "ms", 1, 2) for one in (native, expandable, headroom)), step_ratio(headroom, native), cell(headroom, "live", 1e9, 3),
                 *(cell(one, "reserved", 1e9, 3) for one in (native, expandable, headroom)), ratio(headroom, expandable, "reserved")]
        print(" ".join(f"{text:>11}" for text in cells))


def print_fragmentation(rows):
    good = [row for row in rows.values() if "parts" in row]
    if good:
        print(f"\nfragmentation: {good[0]['limit'] / 1e9:.2f} GB, {good[0]['freed'] / 1e9:.2f} of them free in pieces; one tensor of a part of these")
    for allocator, row in rows.items():
        parts = ", ".join(f"{float(part):.0%}: {text}" for part, text in row.get("parts", {}).items())
        print(f"  {allocator:<11} {parts or row['failed']}" + (f"; {row['changed']} BLOCKS CHANGED" if row.get("changed") else ""))


def start_one(options, allocator, workload):
    arguments = [__file__, "--allocator", allocator, "--workload", workload, "--device", options.device, "--steps", options.steps, "--turns"]
    arguments += [flag for flag, on in (("--small", options.small), ("--quick", options.quick)) if on]
    changes = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if allocator == "expandable" else {}
    return Child(arguments, environment(options, **changes), options.timeout)


def run_workload(options, allocators, workload):
    """All allocators side by side, a step each in turn. A row for each."""
    begin = time.monotonic()
    children = {allocator: start_one(options, allocator, workload) for allocator in allocators}
    running = [child for child in children.values() if child.read(READY)]
    while running:
        running = [child for child in running if child.take_turn()]
    rows = {allocator: child.finish() for allocator, child in children.items()}
    for allocator, row in rows.items():
        print(f"{workload} {allocator}: {row.get('failed') or json.dumps(row)} ({time.monotonic() - begin:.1f} s)", flush=True)
    return rows


def run_all(options):
    # On the CPU expandable segments do not exist, and nothing limits PyTorch.
    allocators = ALLOCATORS if options.device == "cuda" else ("native", "headroom")
    names = [options.workload] if options.workload else [*WORKLOADS, "fragmentation"]
    results = {workload: run_workload(options, allocators, workload) for workload in names if workload != "fragmentation"}
    limited = run_workload(options, allocators if options.device == "cuda" else ("headroom",), "fragmentation") if "fragmentation" in names else {}
    if results:
        print_table(results)
    if limited:
        print_fragmentation(limited)
    rows = [row for found in results.values() for row in found.values()] + list(limited.values())
    return int(any("failed" in row or row.get("changed") for row in rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all allocators, in processes of their own")
    parser.add_argument("--workload", choices=[*WORKLOADS, "fragmentation"], help="this one alone")
    parser.add_argument("--allocator", choices=ALLOCATORS, default="headroom")
    parser.add_argument("--steps", type=int, default=0, help="timed steps; default 20 to 100, depending on the workload")
    parser.add_argument("--turns", action="store_true", help="wait for a line of input before each step")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the program")
    parser.add_argument("--quick", action="store_true", help="half the steps")
    parser.add_argument("--timeout", type=int, default=180, help="seconds for one process")
    parser.add_argument("--build", default=ROOT / "build-gpu", help="folder of libheadroom.so.0; HEADROOM_LIBRARY_DIR comes first")
    options = parser.parse_args()
    if options.all:
        return run_all(options)
    if not options.workload:
        parser.error("--workload or --all")
    os.environ.update(environment(options))  # before torch is imported
    sys.path.insert(0, str(ROOT / "python"))
    if options.allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return fragmentation(options) if options.workload == "fragmentation" else measure(options)


if __name__ == "__main__":
    sys.exit(main())
