#!/usr/bin/env python3
"""PyTorch's allocator on the GPU that bench/gpu ran on: pairs, threads, and the four traces.

    bench/gpu_torch.py [--traces FOLDER] [--figures FILE] [--build FOLDER]

The C++ functions are called from a small library (gpu_torch.cpp) that is compiled here with g++ against PyTorch's headers, so that
the cost of Python is not counted. If it cannot be compiled, the calls go through Python, on one thread only, and the cost of an empty
call of the same kind is printed too. FOLDER of --traces contains the uncompressed traces. FILE is the output of `gpu --figures`; with it
PyTorch's figures are also printed relative to Headroom's. Without PyTorch or without a GPU it prints a message and does nothing.
"""
import argparse
import array
import ctypes
import glob
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = (512, 1 << 20, 64 << 20)
TRACES = ("gpt2", "gpt2var", "resnet", "serve")
ROUNDS = 5
SETTING = "HEADROOM_BENCH_TORCH"  # set in the process that runs with expandable segments


def skip(why):
    print(f"PyTorch: skipped, {why}")
    sys.exit(0)


try:
    import torch
except ImportError:
    skip("python3 has no module torch")
if not torch.cuda.is_available():
    skip("it sees no card")


# ---- the compiled functions ----


def include_folders():
    """Include folders of PyTorch, and of the CUDA runtime, which PyTorch's headers include."""
    root = Path(torch.__file__).parent / "include"
    folders = [root, root / "torch" / "csrc" / "api" / "include"]
    packages = Path(torch.__file__).parent.parent / "nvidia"
    candidates = [os.environ.get("CUDA_HOME", "") + "/include", "/usr/local/cuda/include", *glob.glob("/usr/local/cuda-*/include"),
                  *glob.glob(f"{packages}/*/include")]
    return folders + [f for f in candidates if os.path.isfile(f"{f}/cuda_runtime_api.h")][:1]


def compile_library(folder):
    """Builds and loads the library. Prints the reason and returns None on failure."""
    out = Path(folder) / "libgpu_torch.so"
    lib = Path(torch.__file__).parent / "lib"
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    command = ["g++", "-O2", "-fPIC", "-shared", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-o", str(out),
               str(HERE / "gpu_torch.cpp"), *[f"-I{f}" for f in include_folders()], f"-L{lib}", f"-Wl,-rpath,{lib}", "-lc10_cuda", "-lc10"]
    try:
        if not out.exists() or out.stat().st_mtime < (HERE / "gpu_torch.cpp").stat().st_mtime:
            for standard in ("-std=c++20", "-std=c++17"):  # newer headers need C++20, older ones may not compile with it
                done = subprocess.run([*command, standard], capture_output=True, text=True, timeout=120)
                if done.returncode == 0:
                    break
            else:
                print(f"PyTorch: its headers do not compile here, so its calls go through Python:\n{done.stderr[-800:]}")
                return None
        library = ctypes.CDLL(str(out))
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"PyTorch: its calls go through Python: {error}")
        return None
    library.gpu_torch_pairs.restype = library.gpu_torch_replay.restype = ctypes.c_double
    library.gpu_torch_pairs.argtypes = [ctypes.c_size_t, ctypes.c_long, ctypes.c_int]
    library.gpu_torch_replay.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]
    return library


# ---- the same through Python ----


def python_pairs(bytes_, count):
    alloc, delete = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
    start = time.perf_counter_ns()
    for _ in range(count):
        delete(alloc(bytes_))
    return (time.perf_counter_ns() - start) / count


def empty_pairs(count):
    """The cost of calling two empty Python functions with the same parameters."""
    def alloc(size, device=None, stream=None):
        return size

    def delete(pointer):
        return None
    start = time.perf_counter_ns()
    for _ in range(count):
        delete(alloc(512))
    return (time.perf_counter_ns() - start) / count


def python_replay(sizes, slots, slot_count):
    alloc, delete = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
    blocks = [0] * slot_count
    start = time.perf_counter_ns()
    for size, slot in zip(sizes, slots):
        if size:
            blocks[slot] = alloc(size)
        else:
            delete(blocks[slot])
            blocks[slot] = 0
    ns = time.perf_counter_ns() - start
    for block in blocks:
        if block:
            delete(block)
    return ns


# ---- measuring ----


def measure_pairs(library, bytes_):
    count = 20000 if library else 5000
    if library:
        rounds = [library.gpu_torch_pairs(bytes_, count, 1) / count for _ in range(ROUNDS)]
    else:
        python_pairs(bytes_, 10)
        rounds = [python_pairs(bytes_, count) for _ in range(ROUNDS)]
    return statistics.median(rounds)


def measure_threads(library, bytes_, threads):
    """Throughput of [threads] threads relative to one."""
    count = 20000
    one = min(library.gpu_torch_pairs(bytes_, count, 1) for _ in range(3))
    many = min(library.gpu_torch_pairs(bytes_, count, threads) for _ in range(3))
    return threads * one / many


def read_trace(folder, name):
    """Sizes (0 = free), slots, the number of slots, and the peak of live bytes."""
    sizes, slots, places, spare = array.array("Q"), array.array("I"), {}, []
    live = peak = used = 0
    with open(f"{folder}/{name}.csv") as file:
        next(file)
        for line in file:
            _, action, block, bytes_, *_ = line.split(",")
            if action == "a":
                if spare:
                    slot = spare.pop()
                else:
                    slot, used = used, used + 1
                places[block] = slot
                live += int(bytes_)
                peak = max(peak, live)
                sizes.append(int(bytes_))
            else:
                slot = places.pop(block)
                spare.append(slot)
                live -= int(bytes_)
                sizes.append(0)
            slots.append(slot)
    return sizes, slots, used, peak


def replay(library, trace):
    """ns per operation of the best warm pass, and reserved bytes relative to the peak after the first."""
    sizes, slots, slot_count, peak = trace
    blocks = (ctypes.c_void_p * slot_count)()

    def once():
        if not library:
            return python_replay(sizes, slots, slot_count)
        return library.gpu_torch_replay(sizes.buffer_info()[0], slots.buffer_info()[0], len(sizes), ctypes.addressof(blocks), slot_count)

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if once() < 0:
        return float("nan"), float("nan")
    reserved = torch.cuda.memory_stats()["reserved_bytes.all.peak"] / peak
    best = min(once() for _ in range(3))
    torch.cuda.empty_cache()
    return best / len(sizes), reserved


# ---- printing ----


def read_figures(path):
    figures = {}
    if path and os.path.isfile(path):
        for line in open(path):
            name, value = line.split()
            figures[name] = float(value)
    return figures


def beside(value, ours):
    return f"{ours:12.1f} {value / ours:9.1f}x" if ours else f"{'-':>12} {'-':>10}"


def print_pairs(library, ours):
    print(f"\nPyTorch {torch.__version__}: alloc+free pair, warm, one thread, ns; the median of {ROUNDS} rounds"
          + ("" if library else " (through Python)"))
    print(f"{'bytes':<10} {'PyTorch':>10} {'headroom':>12} {'ratio':>10}")
    for bytes_ in SIZES:
        value = measure_pairs(library, bytes_)
        print(f"{bytes_:<10} {value:10.0f} {beside(value, ours.get(f'pairs.{bytes_}'))}")
    print(f"through Python, 512 B: {statistics.median(python_pairs(512, 5000) for _ in range(ROUNDS)):.0f} ns a pair, of which an empty "
          f"pair of Python calls is {statistics.median(empty_pairs(5000) for _ in range(ROUNDS)):.0f} ns")
    if not library:
        return
    print("\nPyTorch: threads, throughput over one thread")
    for bytes_ in SIZES[:2]:
        row = [f"{n} threads {measure_threads(library, bytes_, n):.2f}x (headroom {ours.get(f'threads.{bytes_}.{n}', float('nan')):.2f}x)"
               for n in (2, 4, 8)]
        print(f"{bytes_:<10} {', '.join(row)}")


def print_traces(library, folder, ours, setting):
    print(f"\nPyTorch: traces, {setting}: ns/op of the best warm pass; reserved over the most bytes live")
    print(f"{'trace':<10} {'PyTorch':>10} {'headroom':>12} {'ratio':>10} {'reserved/peak':>15} {'headroom':>10}")
    for name in TRACES:
        if not os.path.isfile(f"{folder}/{name}.csv"):
            print(f"{name:<10} no such trace in {folder}")
            continue
        ns, reserved = replay(library, read_trace(folder, name))
        least = ours.get(f"trace.{name}.reserved_over_peak")
        print(f"{name:<10} {ns:10.1f} {beside(ns, ours.get(f'trace.{name}.ns_per_op'))} {reserved:15.4f} "
              f"{f'{least:.4f}' if least else '-':>10}", flush=True)


def run_expandable():
    """Repeats the traces with expandable segments in a new process, because PyTorch reads the setting only once."""
    environment = dict(os.environ, **{SETTING: "expandable"})
    version = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in torch.__version__.split(".")[:2])
    environment["PYTORCH_ALLOC_CONF" if version >= (2, 9) else "PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    sys.stdout.flush()
    subprocess.run([sys.executable, *sys.argv], env=environment, check=False, timeout=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", default="build-gpu/traces")
    parser.add_argument("--figures")
    parser.add_argument("--build", default="build-gpu")
    arguments = parser.parse_args()
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    ours = read_figures(arguments.figures)
    library = compile_library(arguments.build)
    expandable = os.environ.get(SETTING) == "expandable"
    if not expandable:
        print_pairs(library, ours)
    print_traces(library, arguments.traces, ours, "expandable segments" if expandable else "as it comes")
    if not expandable:
        run_expandable()


main()
