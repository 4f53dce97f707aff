#!/usr/bin/env python3
"""The callback of transformers' Trainer, in trainings of a small model on the CPU, with TensorBoard and Weights & Biases."""
import unittest

from environment import Training, scalars_of

PROGRAM = """
import sys, torch
from headroom.transformers import HeadroomCallback
from transformers import Trainer, TrainingArguments
callback = HeadroomCallback(limit="24MB", device="cpu", lms=False, profile="run.hrt", oom_report=sys.argv[2])
width = int(sys.argv[1])

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.Linear(width, width), torch.nn.Linear(width, 1))
    def forward(self, x=None, labels=None):
        return {"loss": (self.net(x).squeeze(-1) - labels).square().mean()}

data = [{"x": torch.randn(64), "labels": torch.tensor(0.0)} for _ in range(32)]
args = TrainingArguments("out", use_cpu=True, per_device_train_batch_size=8, num_train_epochs=1, logging_steps=2, report_to=["tensorboard", "wandb"], save_strategy="no",
                         disable_tqdm=True)
Trainer(Model(), args, train_dataset=data, callbacks=[callback]).train()
print("hook left:", "headroom" in sys.excepthook.__module__)
"""


class Transformers(Training):
    def test_a_training_is_recorded_and_writers_get_scalars(self):
        result = self.run_program(PROGRAM, 64, "oom.txt")
        self.assertEqual(result.returncode, 0, result.stderr[-4000:])
        self.assertIn("hook left: False", result.stdout)
        self.assertEqual((self.recording()["steps"], (self.folder / "oom.txt").exists()), (4, False))
        self.check_scalars(scalars_of(self.folder / "out"), [2, 4, 4])    # the last at the end of the training
        self.check_wandb()

    def test_memory_that_runs_out_leaves_a_report(self):
        result = self.run_program(PROGRAM, 2048, "oom.txt")
        self.assertIn("torch.OutOfMemoryError", result.stderr)
        self.assertTrue((self.folder / "oom.txt").read_text().startswith("Out of memory: op \"aten::mm\""))
        self.assertFalse(self.recording()["lost"])

    def test_bad_arguments_name_themselves(self):
        self.check_bad_arguments("transformers")


if __name__ == "__main__":
    unittest.main()
