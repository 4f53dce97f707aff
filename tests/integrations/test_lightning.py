#!/usr/bin/env python3
"""The callback of PyTorch Lightning, in trainings of a small model on the CPU."""
import json
import unittest

from environment import Training, scalars_of

PROGRAM = """
import sys, torch
import lightning as L
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from headroom.lightning import HeadroomCallback
callback = HeadroomCallback(limit="24MB", device="cpu", profile="run.hrt", oom_report=sys.argv[2])
width = int(sys.argv[1])

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.Linear(width, width), torch.nn.Linear(width, 1))
    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 64)), batch_size=8)
trainer = L.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], logger=[TensorBoardLogger("logs"), CSVLogger("csv")], log_every_n_steps=4,
                    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
trainer.fit(Model(), data)
print("steps:", trainer.global_step)
"""


class Lightning(Training):
    def test_a_training_is_recorded_and_its_loggers_get_scalars(self):
        result = self.run_program(PROGRAM, 64, "oom.txt")
        self.assertEqual(result.returncode, 0, result.stderr[-4000:])
        self.assertIn("steps: 8", result.stdout)
        self.assertEqual((self.recording()["steps"], (self.folder / "oom.txt").exists()), (8, False))
        self.check_scalars(scalars_of(self.folder / "logs"), [4, 8])
        self.assertIn("headroom/peak_bytes_in_use", next(self.folder.rglob("metrics.csv")).read_text())

    def test_memory_that_runs_out_leaves_a_report(self):
        result = self.run_program(PROGRAM, 2048, "oom.json")
        self.assertIn("torch.OutOfMemoryError", result.stderr)
        self.assertEqual(json.loads((self.folder / "oom.json").read_text())["request"]["op_name"], "aten::mm")
        self.assertFalse(self.recording()["lost"])
        result = self.run_program(PROGRAM, 2048, "/nowhere/oom.txt")
        self.assertIn("the out-of-memory report is not in /nowhere/oom.txt", result.stderr)
        self.assertIn("Held by op", result.stderr)
        self.assertIn("torch.OutOfMemoryError", result.stderr)

    def test_bad_arguments_name_themselves(self):
        self.check_bad_arguments("lightning")


if __name__ == "__main__":
    unittest.main()
