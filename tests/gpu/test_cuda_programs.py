#!/usr/bin/env python3
"""Programs that use CUDA without Headroom, under `headroom run` on a card: one line for each check; the exit status is 0 if all are right. Each program
runs alone, with --observe and with --manage, must print the same each time, and prints the time of a step on the standard error. What is not installed
is left out; without a card it says so and ends with 0.

    python tests/gpu/test_cuda_programs.py       after `make` in the source tree
"""
import ctypes
import json
import os
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

# A small model; losses are the results.
TORCH = """
import sys, time, torch
torch.manual_seed(0)
torch.use_deterministic_algorithms(False)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(256, 1024, device="cuda")
times = []
for step in range(60):
    torch.cuda.synchronize(); begin = time.perf_counter()
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize(); times.append(time.perf_counter() - begin)
    if step % 10 == 0: print("%.9f" % loss.item())
print("step %.3f ms" % (sorted(times)[len(times) // 2] * 1e3), file=sys.stderr)
"""

CUPY = """
import sys, time, cupy
total, times = 0.0, []
for step in range(50):
    begin = time.perf_counter()
    values = cupy.arange(1 << 22, dtype=cupy.float32).reshape(2048, 2048)
    total += float((values @ values.T).mean())
    times.append(time.perf_counter() - begin)
print(total)
print("step %.3f ms" % (sorted(times)[len(times) // 2] * 1e3), file=sys.stderr)
"""

JAX = """
import sys, time, jax, jax.numpy as np
@jax.jit
def step(weights, data):
    def loss(weights): return np.mean(np.square(np.tanh(data @ weights) @ weights))
    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 1e-3 * gradient, value
weights, data, times = jax.random.normal(jax.random.PRNGKey(0), (1024, 1024)), jax.random.normal(jax.random.PRNGKey(1), (512, 1024)), []
for at in range(50):
    begin = time.perf_counter()
    weights, value = step(weights, data)
    value.block_until_ready()
    times.append(time.perf_counter() - begin)
print(float(value))
print("step %.3f ms" % (sorted(times)[len(times) // 2] * 1e3), file=sys.stderr)
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
	return 0;
}
"""


def under(mode, command, **extra):
    wrapped = [str(COMMAND), "run", *mode, "--", *command] if mode else command
    return subprocess.run(wrapped, capture_output=True, text=True, timeout=300, env={**os.environ, **extra})


def compare(name, command, **extra):
    """Runs a program in each mode. Returns the standard errors."""
    plain, said = None, []
    for mode in MODES:
        result = under(mode, command, **extra)
        plain = plain or result
        said.append(result.stderr.strip())
        check(f"{name} {' '.join(mode) or 'alone'}: {result.stderr.strip().splitlines()[-1:]}",
              (result.returncode, result.stdout) == (0, plain.stdout), (result.returncode, result.stdout, result.stderr[-2000:]))
    return said


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


def check_frameworks(folder):
    for name, module, condition, text, presets in (("PyTorch", "torch", "torch.cuda.is_available()", TORCH, ["torch"]),
                                                   ("CuPy", "cupy", "cupy.cuda.runtime.getDeviceCount() > 0", CUPY, []),
                                                   ("JAX", "jax", "jax.default_backend() == 'gpu'", JAX, ["jax"])):
        if not has(module, condition):
            print(f"left out: {name}")
            continue
        script = folder / f"{module}_program.py"
        script.write_text(text)
        command = [sys.executable, str(script)]
        # Else XLA times its kernels in each process and may choose others, whose results differ in the last digits.
        fixed = {"XLA_FLAGS": "--xla_gpu_autotune_level=0"} if module == "jax" else {}
        compare(name, command, **fixed)
        for preset in presets:
            variables = {"torch": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "jax": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}}[preset]
            compare(f"{name}, each array from CUDA", command, **fixed, **variables)


def check_nvcc(folder):
    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(compiler).exists():
        print("left out: nvcc")
        return
    source = folder / "program.cu"
    source.write_text(NVCC)
    for runtime in ("static", "shared"):
        program = folder / f"program_{runtime}"
        done = subprocess.run([compiler, "-cudart", runtime, str(source), "-o", str(program)], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"left out: nvcc: {done.stderr.strip().splitlines()[-1:]}")
            return
        library = Path(compiler).resolve().parents[1] / "lib64"
        paths = os.environ.get("LD_LIBRARY_PATH", "")
        compare(f"nvcc, {runtime} runtime", [str(program)], LD_LIBRARY_PATH=f"{paths}:{library}")
        if shutil.which("compute-sanitizer"):
            result = under(("--observe",), ["compute-sanitizer", "--error-exitcode", "99", str(program)])
            check(f"compute-sanitizer on it, {runtime} runtime", result.returncode == 0, result.stdout[-2000:])


if os.environ.get("HEADROOM_CUDA") == "0" or not card():
    print("skipped: no CUDA driver, or no card, or HEADROOM_CUDA=0")
    sys.exit(0)
if not (COMMAND.parent / "libheadroom_cuda.so").exists():
    print(f"skipped: no libheadroom_cuda.so in {COMMAND.parent}")
    sys.exit(0)
with tempfile.TemporaryDirectory() as temporary:
    check_driver(Path(temporary))
    check_nvcc(Path(temporary))
    check_frameworks(Path(temporary))
sys.exit(1 if failures else 0)
