#!/usr/bin/env python3
"""Callbacks of PyTorch Lightning and transformers, and scalars through the writers of TensorBoard and Weights & Biases: real packages, small models on the CPU."""
import json
import subprocess
import tempfile
import unittest
from pathlib import Path

import environment
from environment import run_python, scalars_of

LIGHTNING = """
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

TRANSFORMERS = """
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

WRITERS = """
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


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_program(self, program, *arguments):
        path = self.folder / "program.py"
        path.write_text(program)
        return run_python(path, *arguments, cwd=self.folder)

    def recording(self):
        text = subprocess.run([environment.BUILD / "headroom", "report", "run.hrt", "--json"], cwd=self.folder, capture_output=True, text=True, check=True).stdout
        (self.folder / "run.hrt").unlink()
        return json.loads(text)["trace"]

    def check_scalars(self, found, steps):
        for name in ("headroom/bytes_in_use", "headroom/peak_bytes_in_use", "headroom/num_failed_allocs"):
            self.assertEqual([step for step, _ in found[name]], steps, name)
        self.assertGreater(found["headroom/bytes_in_use"][-1][1], 0)

    def check_wandb(self):
        files = list(self.folder.rglob("*.wandb"))
        self.assertEqual(len(files), 1, list(self.folder.iterdir()))
        self.assertIn(b"headroom/bytes_in_use", files[0].read_bytes())


class Lightning(Folder):
    def test_a_training_is_recorded_and_its_loggers_get_scalars(self):
        result = self.run_program(LIGHTNING, 64, "oom.txt")
        self.assertEqual(result.returncode, 0, result.stderr[-4000:])
        self.assertIn("steps: 8", result.stdout)
        self.assertEqual((self.recording()["steps"], (self.folder / "oom.txt").exists()), (8, False))
        self.check_scalars(scalars_of(self.folder / "logs"), [4, 8])
        self.assertIn("headroom/peak_bytes_in_use", next(self.folder.rglob("metrics.csv")).read_text())

    def test_memory_that_runs_out_leaves_a_report(self):
        result = self.run_program(LIGHTNING, 2048, "oom.json")
        self.assertIn("torch.OutOfMemoryError", result.stderr)
        self.assertEqual(json.loads((self.folder / "oom.json").read_text())["request"]["op_name"], "aten::mm")
        self.assertFalse(self.recording()["lost"])
        result = self.run_program(LIGHTNING, 2048, "/nowhere/oom.txt")
        self.assertIn("the out-of-memory report is not in /nowhere/oom.txt", result.stderr)
        self.assertIn("Held by op", result.stderr)
        self.assertIn("torch.OutOfMemoryError", result.stderr)


class Transformers(Folder):
    def test_a_training_is_recorded_and_writers_get_scalars(self):
        result = self.run_program(TRANSFORMERS, 64, "oom.txt")
        self.assertEqual(result.returncode, 0, result.stderr[-4000:])
        self.assertIn("hook left: False", result.stdout)
        self.assertEqual((self.recording()["steps"], (self.folder / "oom.txt").exists()), (4, False))
        self.check_scalars(scalars_of(self.folder / "out"), [2, 4, 4])    # the last at the end of the training
        self.check_wandb()

    def test_memory_that_runs_out_leaves_a_report(self):
        result = self.run_program(TRANSFORMERS, 2048, "oom.txt")
        self.assertIn("torch.OutOfMemoryError", result.stderr)
        self.assertTrue((self.folder / "oom.txt").read_text().startswith("Out of memory: op \"aten::mm\""))
        self.assertFalse(self.recording()["lost"])

    def test_bad_arguments_name_themselves(self):
        program = ("from headroom.{0} import HeadroomCallback\n"
                   "for wrong in ({{'limit': '12 bananas'}}, {{'profile': 3}}, {{'oom_report': 3}}, {{'scalars': 1}}):\n"
                   "    try: HeadroomCallback(device='cpu', **wrong)\n"
                   "    except Exception as e: print(type(e).__name__, e)")
        for kind in ("transformers", "lightning"):
            printed = run_python("-c", program.format(kind), cwd=self.folder).stdout
            for text in ("ValueError limit is '12 bananas'; give a number of bytes, or a size such as '26GB'", "TypeError profile is 3", "TypeError oom_report is 3", "TypeError scalars is 1; give True or False"):
                self.assertIn(text, printed)


class Writers(Folder):
    def test_scalars_reach_tensorboard_and_weights_and_biases(self):
        result = self.run_program(WRITERS)
        self.assertEqual(result.returncode, 0, result.stderr[-4000:])
        self.check_scalars(scalars_of(self.folder / "logs"), [1, 2])
        self.check_wandb()


if __name__ == "__main__":
    unittest.main()
