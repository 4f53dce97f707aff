#!/usr/bin/env python3
"""torch.distributed with two processes (gloo) at a limit: the losses of plain PyTorch, to the bit (distributed.py)."""
import json
import os
import subprocess
import tempfile
import unittest

import environment

environment.skip_without_pytorch()


def both(mode, *limit):
    """The results of the two processes."""
    program = environment.ROOT / "tests/torch/distributed.py"
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [subprocess.Popen([environment.PYTHON, program, mode, str(rank), store, *limit], env=environment.environment(),
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
        try:
            outputs = [process.communicate(timeout=1200) for process in processes]
        finally:
            for process in processes:
                process.kill()
    for process, (_, errors) in zip(processes, outputs):
        if process.returncode:
            raise AssertionError(f"distributed.py {mode} ended with {process.returncode}:\n{errors[-6000:]}")
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]  # some versions of PyTorch print what gloo connects to


class Distributed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plain = both("plain")
        cls.limited = both("limit", "44MB")

    def check(self, name):
        for expected, result in zip(self.plain, self.limited):
            self.assertEqual(expected[name]["losses"], result[name]["losses"])
            self.assertGreater(result[name]["evictions"], 5)
            self.assertEqual(result[name]["pinned"], 0, "tensors of complete collectives are not pinned")

    def test_ddp(self):
        self.check("ddp")

    def test_fsdp_with_flat_parameters(self):
        self.check("fsdp1")

    def test_fsdp_with_sharded_tensors(self):
        self.check("fsdp2")

    def test_tensors_of_collectives_stay_until_they_are_complete(self):
        self.check("collectives")

    def test_memory_that_is_short_does_not_wait_for_messages(self):
        self.check("messages")


if __name__ == "__main__":
    unittest.main()
