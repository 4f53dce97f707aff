#!/usr/bin/env python3
"""Programs that use CUDA without Headroom, under `headroom run` on a card: one line for each check; the exit status is 0 if all are right. Each program
runs alone, with --observe and with --manage at the same time, and must print the same each time (bench/cuda_programs.py measures them). What is not installed is
left out; without a card it says so and ends with 0.

    python tests/gpu/test_cuda_programs.py [driver] [nvcc] [tools] [pytorch] [cupy] [jax] [limits] [installed] [suite]       after `make` in the source tree

installed is what other projects bring with their packages: examples in the documentation of CuPy and JAX, PyTorch's table of ops, numba's tests.
suite is the part of CuPy's own tests that is about memory, streams and graphs: CUPY_TESTS names the folder of CuPy's source, and pytest must be installed.
"""
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("HEADROOM_COMMAND") or ROOT / "build" / "headroom")
MIB = 1 << 20
MODES = [(), ("--observe",), ("--manage", "--device", "none")]  # without the plug-in for PyTorch, which would take its tensors
failures = 0


def check(promise, holds, detail=""):
    global failures
    failures += not holds
    print(f"{'ok' if holds else 'FAILED'}: {promise}{'' if holds else ': ' + str(detail)}", flush=True)


def card():
    """Whether the driver works and has a card."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


# Blocks of every kind through the driver alone; prints Headroom's statistics beside the sum of what it holds.
DRIVER = """
import ctypes, sys
cuda, here = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
def size(n): return ctypes.c_size_t(n)
context, stream, kept = ctypes.c_void_p(), ctypes.c_void_p(), []
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuStreamCreate", ctypes.byref(stream), 1)
held = 0
for round in range(300):
    address, bytes = ctypes.c_uint64(), 4096 + round * 1024
    if round % 2: call("cuMemAlloc_v2", ctypes.byref(address), size(bytes))
    else: call("cuMemAllocAsync", ctypes.byref(address), size(bytes), stream)
    call("cuMemsetD8Async", address, ctypes.c_ubyte(round % 256), size(bytes), stream)
    kept.append((address, bytes))
    held += bytes
    if round % 3 == 0:
        address, bytes = kept.pop(len(kept) // 2)
        if round % 2: call("cuStreamSynchronize", stream), call("cuMemFree_v2", address)
        else: call("cuMemFreeAsync", address, stream)
        held -= bytes
call("cuStreamSynchronize", stream)
for at, (address, bytes) in enumerate(kept):
    seen = ctypes.create_string_buffer(bytes)
    call("cuMemcpyDtoHAsync_v2", seen, address, size(bytes), stream)
    call("cuStreamSynchronize", stream)
    assert len(set(seen.raw)) == 1, at
class Stats(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("fragmentation", ctypes.c_double), ("values", ctypes.c_int64 * 64)]
if hasattr(here, "hr_device_find"):
    device, stats = ctypes.c_uint32(), Stats()
    for name in (b"CUDA:0", b"GPU:0"):
        here.hr_stats_init_sized(ctypes.byref(stats), size(ctypes.sizeof(stats)))
        if here.hr_device_find(name, ctypes.byref(device)) == 0 and here.hr_device_get_stats(device, ctypes.byref(stats)) == 0 and stats.values[0]: break
    print("requested", stats.values[19], "held", held, file=sys.stderr)
print(len(kept), held)
"""

# For programs of frameworks: how many requests Headroom has recorded or served.
COUNT = """
import ctypes, sys
class Stats(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("fragmentation", ctypes.c_double), ("values", ctypes.c_int64 * 64)]
here, counts = ctypes.CDLL(None), []
if hasattr(here, "hr_device_find"):
    for name in (b"CUDA:0", b"GPU:0"):
        device, stats = ctypes.c_uint32(), Stats()
        here.hr_stats_init_sized(ctypes.byref(stats), ctypes.c_size_t(ctypes.sizeof(stats)))
        found = here.hr_device_find(name, ctypes.byref(device)) == 0 and here.hr_device_get_stats(device, ctypes.byref(stats)) == 0
        counts.append(stats.values[0] if found else 0)
    print("requests: recorded %d, on Headroom's device %d" % tuple(counts), file=sys.stderr)
"""

# A small model; losses are the results.
TORCH = """
import torch
torch.manual_seed(0)
torch.use_deterministic_algorithms(False)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(256, 1024, device="cuda")
for step in range(60):
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    if step % 10 == 0: print("%.9f" % loss.item())
"""

CUPY = """
import cupy
total = 0.0
for step in range(50):
    values = cupy.arange(1 << 22, dtype=cupy.float32).reshape(2048, 2048)
    total += float((values @ values.T).mean())
print(total)
"""

JAX = """
import jax, jax.numpy as np
@jax.jit
def step(weights, data):
    def loss(weights): return np.mean(np.square(np.tanh(data @ weights) @ weights))
    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 1e-3 * gradient, value
weights, data = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024)), jax.random.normal(jax.random.PRNGKey(1), (512, 1024))
for at in range(50):
    weights, value = step(weights, data)
    value.block_until_ready()
print(float(value))
"""

# Blocks of 256 MiB until there is no more. Prints how many there were, and what the error says.
CUPY_UNTIL_FULL = """
import cupy
kept = []
try:
    while len(kept) < 4096: kept.append(cupy.empty(1 << 28, dtype=cupy.uint8))
except Exception as error:
    print(len(kept), "blocks of 256 MiB; card of %.1f GiB;" % (cupy.cuda.Device().mem_info[1] / 2**30), type(error).__name__ + ":", str(error).splitlines()[0][:160])
"""

JAX_UNTIL_FULL = """
import jax, jax.numpy as np
kept = []
try:
    while len(kept) < 4096: kept.append(np.ones(1 << 28, dtype=np.uint8).block_until_ready())
except Exception as error:
    limit = jax.devices()[0].memory_stats()
    print(len(kept), "blocks of 256 MiB; its pool of %.1f GiB;" % ((limit or {}).get("bytes_limit", 0) / 2**30), type(error).__name__ + ":", str(error).splitlines()[0][:160])
"""

NVCC = r"""
#include <cstdio>
#include <cuda_runtime.h>
__global__ void add(float *values, int count, float what) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < count) values[i] += what; }
int main()
{
	cudaStream_t stream;
	cudaStreamCreate(&stream);
	double sum = 0;
	for (int round = 0; round < 200; round++) {
		int count = 10000 + round * 1000;
		float *values = NULL, *more = NULL, last = 0;
		if (cudaMalloc(&values, count * sizeof *values) || cudaMallocAsync(&more, count * sizeof *more, stream)) return 1;
		cudaMemset(values, 0, count * sizeof *values);
		cudaMemsetAsync(more, 0, count * sizeof *more, stream);
		add<<<(count + 255) / 256, 256>>>(values, count, 1.5f);
		add<<<(count + 255) / 256, 256, 0, stream>>>(more, count, round);
		cudaMemcpyAsync(&last, more + count - 1, sizeof last, cudaMemcpyDeviceToHost, stream);
		cudaFreeAsync(more, stream);
		cudaStreamSynchronize(stream);
		sum += last;
		cudaMemcpy(&last, values + count - 1, sizeof last, cudaMemcpyDeviceToHost);
		cudaFree(values);
		sum += last;
	}
	size_t free_bytes, total;
	cudaError_t error = cudaMemGetInfo(&free_bytes, &total);
	printf("%.1f %s\n", sum, cudaGetErrorString(error));
	float *again = NULL, *kept = NULL;
	cudaMalloc(&kept, 1 << 20); /* ends with the context */
	error = cudaDeviceReset();
	if (!error) error = cudaMalloc(&again, 1 << 20);
	if (!error) error = cudaMemset(again, 0, 1 << 20);
	if (!error) error = cudaFree(again);
	printf("%s after a reset\n", cudaGetErrorString(error));
	return 0;
}
"""


def start(mode, command, **extra):
    wrapped = [str(COMMAND), "run", *mode, "--", *command] if mode else command
    return subprocess.Popen(wrapped, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **extra})


def end(process):
    output, errors = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def under(mode, command, **extra):
    return end(start(mode, command, **extra))


def compare(name, command, **extra):
    """Runs a program in each mode. Returns the standard errors."""
    running = [start(mode, command, **extra) for mode in MODES]
    results = [end(process) for process in running]
    for mode, result in zip(MODES, results):
        check(f"{name} {' '.join(mode) or 'alone'}: {result.stderr.strip().splitlines()[-1:]}",
              (result.returncode, result.stdout) == (0, results[0].stdout), (result.returncode, result.stdout, result.stderr[-2000:]))
    return [result.stderr.strip() for result in results]


def has(module, condition="True"):
    code = f"import {module}, sys; sys.exit(not ({condition}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def check_driver(folder):
    script = folder / "driver.py"
    script.write_text(DRIVER)
    for said in compare("driver calls", [sys.executable, str(script)])[1:]:
        words = said.split()
        check("statistics are the sum of live blocks", len(words) == 4 and words[1] == words[3], said)
    limited = under(("--observe", "--limit", "1MiB"), [sys.executable, str(script)])
    check("a limit stops the program with CUDA's error, and names the holders",
          "('cuMemAlloc" in limited.stderr and ", 2)" in limited.stderr and "Held by tag" in limited.stderr, limited.stderr[-2000:])
    trace = folder / "driver.hrt"
    under(("--observe", "--trace", str(trace)), [sys.executable, str(script)])
    shown = subprocess.run([str(COMMAND), "report", str(trace), "--view", "leaks", "--json"], capture_output=True, text=True)
    check("a recording can be read", shown.returncode == 0 and json.loads(shown.stdout)["trace"]["complete"], shown.stderr)


def compiled(folder, runtime):
    """The program of nvcc with the static or the shared runtime; None if it cannot be made."""
    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    source, program = folder / "program.cu", folder / f"program_{runtime}"
    if not Path(compiler).exists():
        print("left out: nvcc")
        return None
    if not program.exists():
        source.write_text(NVCC)
        done = subprocess.run([compiler, "-cudart", runtime, str(source), "-o", str(program)], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"left out: nvcc: {done.stderr.strip().splitlines()[-1:]}")
            return None
    library = Path(compiler).resolve().parents[1] / "lib64"
    os.environ["LD_LIBRARY_PATH"] = f"{os.environ.get('LD_LIBRARY_PATH', '')}:{library}"
    return str(program)


def check_nvcc(folder):
    for runtime in ("static", "shared"):
        program = compiled(folder, runtime)
        if program:
            compare(f"nvcc, {runtime} runtime", [program])


def find_tool(name):
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def check_tools(folder):
    """compute-sanitizer and cuda-gdb on a program under it, in both modes."""
    program = compiled(folder, "static")
    if not program:
        return
    for name, options, right in (("compute-sanitizer", ["--error-exitcode", "99"], "ERROR SUMMARY: 0 errors"), ("cuda-gdb", ["-batch", "-ex", "run", "--args"], "exited normally")):
        tool = find_tool(name)
        if not tool:
            print(f"left out: {name}: not installed")
            continue
        running = [start(mode, [tool, *options, program]) for mode in MODES]
        alone, *results = [end(process) for process in running]
        if right not in alone.stdout:
            print(f"left out: {name} does not work alone: {(alone.stdout + alone.stderr)[-500:]}")
            continue
        printed = [line for line in alone.stdout.splitlines() if line.endswith(" no error")]
        for mode, result in zip(MODES[1:], results):
            holds = result.returncode == 0 and right in result.stdout and len(printed) == 1 and printed[0] in result.stdout
            check(f"{name} {mode[0]}: {right}", holds, (result.returncode, result.stdout[-1500:], result.stderr[-500:]))


# Else XLA times its kernels in each process and may choose others, whose results differ in the last digits.
FIXED = {"XLA_FLAGS": "--xla_gpu_autotune_level=0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def check_framework(folder, name, module, condition, text, ways):
    """[ways]: what is said of each, its variables, and whether --manage serves the memory of its arrays."""
    if not has(module, condition):
        print(f"left out: {name}")
        return
    script = folder / f"{module}_program.py"
    script.write_text(text + COUNT)
    for way, variables, managed in ways:
        said = compare(f"{name}{way}", [sys.executable, str(script)], **variables)
        counts = [tuple(map(int, pair)) for pair in re.findall(r"recorded (\d+), on Headroom's device (\d+)", " ".join(said[1:]))]
        check(f"{name}{way}: requests are recorded{', and served' if managed else ''}", len(counts) == 2 and counts[0][0] > 0 and counts[1][1] >= (50 if managed else 1), said)


def check_pytorch(folder):
    check_framework(folder, "PyTorch", "torch", "torch.cuda.is_available()", TORCH,
                    [("", {}, False), (", each array from CUDA", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, True)])


def check_cupy(folder):
    check_framework(folder, "CuPy", "cupy", "cupy.cuda.runtime.getDeviceCount() > 0", CUPY, [("", {}, False)])


def check_jax(folder):
    check_framework(folder, "JAX", "jax", "jax.default_backend() == 'gpu'", JAX,
                    [(", each array mapped", {**FIXED, "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, False),
                     (", each array in stream order", {**FIXED, "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}, True), ("", FIXED, False)])


def card_gib():
    driver, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    return total.value / 2**30


def check_limits(folder):
    """The same program at 8 GiB by its own limit and by Headroom's: what each prints."""
    grow, running = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, []
    for name, text, native, common in (("CuPy", CUPY_UNTIL_FULL, {"CUPY_GPU_MEMORY_LIMIT": str(8 << 30)}, {}),
                                       ("JAX", JAX_UNTIL_FULL, {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{8 / card_gib():.5f}"}, grow)):
        if not has(name.lower()):
            print(f"left out: limits of {name}")
            continue
        script = folder / f"{name.lower()}_full.py"
        script.write_text(text)
        command = [sys.executable, str(script)]
        running.append((name, "its own limit", start((), command, **native, **common)))
        for mode in MODES[1:]:
            running.append((name, f"--limit 8GiB {mode[0]}", start((*mode, "--limit", "8GiB"), command, **common)))
    for name, limit, process in running:
        result = end(process)
        blocks = int((result.stdout.split() or ["0"])[0])
        # JAX takes three quarters of a card at most.
        check(f"{name}, {limit}: {result.stdout.strip()}", result.returncode == 0 and 20 <= blocks <= 32, (result.returncode, result.stdout, result.stderr[-1500:]))
        if name == "CuPy" and "--limit" in limit:
            check(f"{name}, {limit}: a report names the holders", "Out of memory" in result.stderr and "Held by" in result.stderr, result.stderr[-1500:])


SUITE = ["test_memory.py", "test_graph.py", "test_stream.py", "test_device.py", "test_runtime.py", "test_pinned_memory.py"]


def check_suite(folder):
    """Each of CuPy's tests ends as it does alone."""
    source = os.environ.get("CUPY_TESTS")
    if not source or not has("pytest") or not has("cupy", "cupy.cuda.runtime.getDeviceCount() > 0"):
        print("left out: CuPy's tests (CUPY_TESTS, pytest and CuPy)")
        return
    tests = [str(Path(source) / "tests" / "cupy_tests" / "cuda_tests" / name) for name in SUITE]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-q", "--tb=short", "-m", "not slow and not multi_gpu", *tests]
    running, alone = [start(mode, command) for mode in MODES], None
    for mode, process in zip(MODES, running):
        result = end(process)
        ended = set(re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) (\S+)", result.stdout, re.M))
        alone = alone or ended
        check(f"CuPy's tests {' '.join(mode) or 'alone'}: {(result.stdout.strip().splitlines() or ['nothing'])[-1]}", len(ended) > 100 and ended == alone,
              (sorted(ended ^ alone)[:20], result.stdout[-3000:], result.stderr[-1000:]))


INSTALLED = [("CuPy's examples", "cupy", 80, {}), ("JAX's examples", "jax", 80, FIXED), ("JAX's examples in stream order", "jax", 40, {**FIXED, "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}),
             ("PyTorch's ops", "torch", 120, {}), ("PyTorch's ops, each array from CUDA", "torch", 60, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}), ("numba's tests", "numba", 100, {})]
NONE_INSTALLED = 77


def check_installed(folder):
    """Tests that other projects bring with their packages (installed_tests.py) end as they do alone."""
    for name, package, count, variables in INSTALLED:
        command = [sys.executable, str(Path(__file__).with_name("installed_tests.py")), package, str(count)]
        running = [start(mode, command, **variables) for mode in MODES]
        alone, *others = [end(process) for process in running]
        if alone.returncode == NONE_INSTALLED:
            print(f"left out: {name}: {alone.stderr.strip().splitlines()[-1]}")
            continue
        lines = alone.stdout.splitlines()
        passed = sum(bool(re.search(r": (passed|(\d+) of \2 passed|same( same)*)$", line)) for line in lines)
        check(f"{name} alone: {len(lines)} tests, {passed} pass", alone.returncode == 0 and passed >= count / 4, (alone.returncode, lines, alone.stderr[-1500:]))
        for mode, result in zip(MODES[1:], others):
            different = sorted(set(result.stdout.splitlines()) ^ set(lines))
            check(f"{name} {mode[0]}: each ends as it does alone", result.returncode == 0 and not different, (result.returncode, different[:20], result.stderr[-1500:]))


if os.environ.get("HEADROOM_CUDA") == "0" or not card():
    print("skipped: no CUDA driver, or no card, or HEADROOM_CUDA=0")
    sys.exit(0)
if not (COMMAND.parent / "libheadroom_cuda.so").exists():
    print(f"skipped: no libheadroom_cuda.so in {COMMAND.parent}")
    sys.exit(0)
parts = {"driver": check_driver, "nvcc": check_nvcc, "tools": check_tools, "pytorch": check_pytorch, "cupy": check_cupy, "jax": check_jax, "limits": check_limits,
         "installed": check_installed, "suite": check_suite}
unknown = set(sys.argv[1:]) - set(parts)
if unknown:
    sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
with tempfile.TemporaryDirectory() as temporary:
    for part in sys.argv[1:] or parts:
        parts[part](Path(temporary))
sys.exit(1 if failures else 0)
