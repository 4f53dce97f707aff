#!/usr/bin/env python3
"""The blocks of private pools (CUDA graphs, torch.cuda.MemPool), which need neither a GPU nor PyTorch: block_pool.cpp, compiled and run."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parents[1] / "plugins" / "torch"
COMPILER = next((name for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name and shutil.which(name)), None)

if COMPILER is None:
    print("skipped: no C++ compiler")
    sys.exit(0)


class Pools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = Path(cls.folder.name) / "block_pool"
        subprocess.run([COMPILER, "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-fsanitize=undefined", "-fno-sanitize-recover", "-I", str(PLUGIN),
                        str(HERE / "block_pool.cpp"), str(PLUGIN / "cuda_pools.cpp"), "-o", str(cls.program)], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_blocks_never_overlap_and_checkpoints_restore_them(self):
        for seed in range(1, 6):
            result = subprocess.run([str(self.program), str(seed), "3000"], capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
