#!/usr/bin/env python3
"""Scalars through the writers of TensorBoard and Weights & Biases."""
import unittest

from environment import Training, scalars_of

PROGRAM = """
import headroom, wandb
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("logs")
run = wandb.init(project="headroom", dir=".")
kept = headroom.ones([256, 256])
for step in (1, 2):
    kept = kept + headroom.ones([256, 256])
    headroom.log_scalars(writer, step)
    headroom.log_scalars(run, step)
    headroom.log_scalars(wandb, step)
writer.close()
run.finish()
"""


class Writers(Training):
    def test_scalars_reach_tensorboard_and_weights_and_biases(self):
        result = self.run_program(PROGRAM)
        self.assertEqual(result.returncode, 0, result.stderr[-4000:])
        self.check_scalars(scalars_of(self.folder / "logs"), [1, 2])
        self.check_wandb()


if __name__ == "__main__":
    unittest.main()
