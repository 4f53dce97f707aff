#!/usr/bin/env python3
"""The bookkeeping of the CUDA front, without a card: cuda_front.cpp, linked with the compiled plug-in. Needs PyTorch and the headers of a CUDA toolkit."""
import subprocess
import tempfile
import unittest
from pathlib import Path

import environment

environment.skip_without_pytorch()

HERE = Path(__file__).resolve().parent

PROGRAM = """
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
plugin, output = _build.build(True), sys.argv[2]
folder = Path(torch.__file__).resolve().parent / "lib"
# What the program does not supply of CUDA's runtime is in PyTorch's own, which cannot start here and is not called.
libraries = [str(plugin), f"-L{folder}", "-lc10_cuda", "-lc10", "-ltorch_cpu", str(_library.path()), f"-Wl,-rpath,{folder}:{_library.path().parent}"]
subprocess.run(command + ["-g", "-fvisibility=default", "-rdynamic", sys.argv[1], "-o", output, *libraries, "-Wl,--unresolved-symbols=ignore-all"], check=True)
nvidia = sorted(Path(torch.__file__).resolve().parents[1].glob("nvidia/*/lib"))
environment = dict(os.environ, HEADROOM_EMULATED="memory=1GiB", LD_LIBRARY_PATH=":".join(map(str, nvidia)))
for mode in ([], ["lms"]):
    subprocess.run([output, *mode], env=environment, check=True)
"""


class CudaFront(unittest.TestCase):
    def test_memory_is_counted_reused_and_returned(self):
        with tempfile.TemporaryDirectory() as folder:
            result = environment.run_python("-c", PROGRAM, HERE / "cuda_front.cpp", Path(folder) / "cuda_front")
            self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-6000:])
            print(result.stdout, end="")


if __name__ == "__main__":
    unittest.main(verbosity=2)
