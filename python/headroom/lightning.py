"""A callback for PyTorch Lightning.

    from headroom.lightning import HeadroomCallback
    trainer = Trainer(callbacks=[HeadroomCallback(limit="26GB", lms=True, profile="run.hrt", oom_report="oom.txt")])
"""
try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from ._scalars import log_scalars
from .torch._training import Training

__all__ = ["HeadroomCallback"]


class HeadroomCallback(Callback):
    """Makes Headroom the allocator of the training's tensors, records it, reports on memory that runs out, and writes statistics to the trainer's loggers
    (TensorBoard, Weights & Biases, CSV, ...) every log_every_n_steps. Make it before the first CUDA tensor.

    limit, lms      the most memory, such as "26GB", and whether tensors may be moved to the host; further arguments are those of headroom.torch.install
    device          "cuda" or "cpu"; None = "cuda" where PyTorch finds a CUDA device
    profile         a new file to record to, for `headroom report`; None = nothing is recorded
    oom_report      where the report goes if memory runs out: a file (JSON if its name ends with ".json"), "stderr", or None
    scalars         whether statistics are written to the loggers
    """

    def __init__(self, limit=None, lms=None, device=None, profile=None, oom_report="stderr", scalars=True, **options):
        super().__init__()
        self._training = Training(limit, lms, device, profile, oom_report, scalars, **options)

    def setup(self, trainer, pl_module, stage=None):
        """Lightning calls it before each fit, validation, test or prediction."""
        self._training.begin()

    def teardown(self, trainer, pl_module, stage=None):
        """Lightning calls it at the end of those."""
        self._training.end()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        """Lightning calls it after each step."""
        if self._training.scalars and trainer.global_step % trainer.log_every_n_steps == 0:
            for logger in trainer.loggers:
                log_scalars(logger, trainer.global_step)

    def on_exception(self, trainer, pl_module, exception):
        """Lightning calls it when the training fails."""
        self._training.failed(exception)
        self._training.end()
