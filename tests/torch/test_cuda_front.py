#!/usr/bin/env python3
"""The CUDA front without a card: cuda_front.cpp and cuda_lms.cpp, linked with the compiled plug-in for its bookkeeping, and below a Python program for what PyTorch makes of
it. Needs PyTorch and the headers of a CUDA toolkit."""
import subprocess
import tempfile
import unittest
from pathlib import Path

import environment

environment.skip_without_pytorch()

HERE = Path(__file__).resolve().parent

# PyTorch's wheels lack some of the headers that cuda_runtime.h includes; a CUDA toolkit has them.
BEGIN = """
import os, subprocess, sys
from pathlib import Path
import torch
from headroom import _library
from headroom.torch import _build
try:
    command = _build.compile_command(cuda=True)
except _build.BuildError as error:
    print("skipped:", error)
    raise SystemExit(0)
probe = subprocess.run(command + ["-fsyntax-only", "-xc++", "-"], input="#include <cuda_runtime.h>", text=True, capture_output=True)
if probe.returncode:
    print("skipped: no CUDA toolkit")
    raise SystemExit(0)
"""

PROGRAM = BEGIN + """
plugin, output = _build.build(True), sys.argv[2]
folder = Path(torch.__file__).resolve().parent / "lib"
root, faults = Path(sys.argv[1]).resolve().parents[2], output + ".faults.so"
subprocess.run([os.environ.get("CC") or "cc", "-shared", "-fPIC", f"-I{root}/include", f"-I{root}/src", f"-I{root}/tests", str(root / "tests/fault_os.c"),
                str(_library.path()), "-o", faults], check=True)
# What the program does not supply of CUDA's runtime is in PyTorch's own, which cannot start here and is not called.
libraries = [str(plugin), faults, f"-L{folder}", "-lc10_cuda", "-lc10", "-ltorch_cpu", str(_library.path()), f"-Wl,-rpath,{folder}:{_library.path().parent}"]
subprocess.run(command + ["-g", "-fvisibility=default", "-rdynamic", sys.argv[1], "-o", output, *libraries, "-Wl,--unresolved-symbols=ignore-all"], check=True)
nvidia = sorted(Path(torch.__file__).resolve().parents[1].glob("nvidia/*/lib"))
environment = dict(os.environ, HEADROOM_EMULATED=f"memory=1GiB,devices={sys.argv[3]}", FAKE_GPUS=sys.argv[3], LD_LIBRARY_PATH=":".join(map(str, nvidia)))
subprocess.run([output], env=environment, check=True)
"""

# With these, programs that launch no kernels run with torch.cuda as on a card.
STAND_INS = BEGIN + """
for option, name in (("-DRUNTIME_ONLY", "runtime.so"), ("-DDRIVER_ONLY", "libcuda.so.1")):
    subprocess.run(command + [option, "-fvisibility=default", "-shared", sys.argv[1], "-o", str(Path(sys.argv[2]) / name)], check=True)
"""

LIMITS = """
import faulthandler, sys, warnings
faulthandler.enable()
warnings.simplefilter("ignore")
import torch
import headroom.torch
MIB = 1 << 20
headroom.torch.install(device="cuda", limit="900MiB")
torch.cuda.init()
seen = []
torch._C._cuda_attach_out_of_memory_observer(lambda *values: seen.append(values))

def tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")

def fails(size, text):
    before, calls = torch.cuda.memory_allocated(), len(seen)
    try:
        tensor(size)
    except torch.OutOfMemoryError as error:
        assert text in str(error), error
    else:
        raise AssertionError("no OutOfMemoryError")
    assert torch.cuda.memory_allocated() == before and len(seen) == calls + 1

for turn in range(3):
    first = tensor(100 * MIB)
    fails(850 * MIB, "out of memory")
    torch.cuda.set_per_process_memory_fraction(0.5)
    fails(600 * MIB, "set_per_process_memory_fraction")
    second = tensor(300 * MIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    pool = torch.cuda.MemPool()
    del second
    with torch.cuda.use_mem_pool(pool):
        third = tensor(400 * MIB)
    fails(600 * MIB, "install(limit=...)")
    fourth = tensor(300 * MIB)
    assert torch.cuda.memory_allocated() == 800 * MIB
    del first, third, fourth, pool
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0
    fifth = tensor(850 * MIB)
    del fifth
assert torch.cuda.memory_stats()["num_ooms"] == 9 == len(seen)
print("ok")
"""


REFUSED = """
import warnings
warnings.simplefilter("ignore")
import torch
import headroom
import headroom.torch

def refused(kind, text, **options):
    try:
        headroom.torch.install(device="cuda", **options)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind}")
    assert not headroom.torch.installed() and torch.cuda.memory.get_allocator_backend() == "native"

refused(headroom.OutOfMemory, "ulimit -l", lms=True)
refused(ValueError, "above", limit="100TB")
headroom.torch.install(device="cuda", limit="900MiB")
torch.cuda.init()
tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_allocated() == 1 << 20
print("ok")
"""

AFTER_USE = """
import warnings
warnings.simplefilter("ignore")
import torch
import headroom.torch
torch.cuda.init()
tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
try:
    headroom.torch.install(device="cuda", limit="900MiB")
except RuntimeError as error:
    assert "before the first CUDA tensor" in str(error), error
else:
    raise AssertionError("installed after CUDA was used")
assert torch.empty(1 << 20, dtype=torch.uint8, device="cuda").data_ptr()
print("ok")
"""


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        result = environment.run_python("-c", STAND_INS, HERE / "cuda_front.cpp", cls.folder)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]
        if result.stdout.startswith("skipped"):
            raise unittest.SkipTest(result.stdout.strip())

    def run_program(self, program, **changes):
        result = environment.run_python("-c", program, HEADROOM_EMULATED="memory=1GiB", LD_PRELOAD=str(self.folder / "runtime.so"), LD_LIBRARY_PATH=str(self.folder), **changes)
        self.assertEqual((result.returncode, result.stdout), (0, "ok\n"), result.stdout[-3000:] + result.stderr[-6000:])

    def test_a_limit_raises_and_the_program_continues(self):
        self.run_program(LIMITS)

    def test_refused_installations_leave_pytorchs_allocator(self):
        self.run_program(REFUSED, FAKE_NO_PINNING="1")
        self.run_program(AFTER_USE)


class CudaFront(unittest.TestCase):
    def run_checks(self, source, gpus):
        with tempfile.TemporaryDirectory() as folder:
            result = environment.run_python("-c", PROGRAM, HERE / source, Path(folder) / "checks", gpus)
            self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-6000:])
            print(result.stdout, end="")

    def test_memory_is_counted_reused_and_returned(self):
        self.run_checks("cuda_front.cpp", 1)

    def test_graphs_keep_what_they_use_and_everything_else_moves_on_every_gpu(self):
        self.run_checks("cuda_lms.cpp", 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
