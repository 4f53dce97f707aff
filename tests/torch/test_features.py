#!/usr/bin/env python3
"""Checkpoints of activations, DataLoader, torch.save, deepcopy, shared memory and forks, with evicted tensors (features.py)."""
import json
import unittest

import environment

environment.skip_without_pytorch()


class Features(unittest.TestCase):
    def test_features(self):
        result = environment.run_python(environment.ROOT / "tests/torch/features.py")
        self.assertEqual(result.returncode, 0, result.stdout[-3000:] + result.stderr[-6000:])
        for name, failure in json.loads(result.stdout).items():
            with self.subTest(name):
                self.assertEqual(failure, "")


if __name__ == "__main__":
    unittest.main()
