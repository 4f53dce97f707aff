"""A callback for the Trainer of Hugging Face's transformers.

    from headroom.transformers import HeadroomCallback
    trainer = Trainer(model, args, callbacks=[HeadroomCallback(limit="26GB", lms=True, profile="run.hrt", oom_report="oom.txt")])

The Trainer has no callback for errors, so the report on memory that runs out is written when the error ends the program. A program that catches it calls
headroom.torch.oom_report(error).
"""
import sys

from transformers import TrainerCallback

from ._scalars import log_scalars, scalars
from .torch._training import Training

__all__ = ["HeadroomCallback"]


class HeadroomCallback(TrainerCallback):
    """Makes Headroom the allocator of the training's tensors, records it, reports on memory that runs out, and writes statistics each time that the Trainer logs: to
    TensorBoard and Weights & Biases, if args.report_to has them. Make it before the first CUDA tensor, which can be the model's.

    limit, lms      the most memory, such as "26GB", and whether tensors may be moved to the host; further arguments are those of headroom.torch.install
    device          "cuda" or "cpu"; None = "cuda" where PyTorch finds a CUDA device
    profile         a new file to record to, for `headroom report`; None = nothing is recorded
    oom_report      where the report goes if memory runs out: a file (JSON if its name ends with ".json"), "stderr", or None
    scalars         whether statistics are written
    """

    def __init__(self, limit=None, lms=None, device=None, profile=None, oom_report="stderr", scalars=True, **options):
        self._training = Training(limit, lms, device, profile, oom_report, scalars, **options)
        self._writer = None
        self._hook = None

    def on_train_begin(self, args, state, control, **kwargs):
        """The Trainer calls it before the first step."""
        self._training.begin()
        if self._hook is None:
            previous = sys.excepthook

            def hook(kind, error, trace):
                self._training.failed(error)
                self.end()
                previous(kind, error, trace)
            self._hook, self._previous = hook, previous
            sys.excepthook = hook
        if self._training.scalars and state.is_world_process_zero and "tensorboard" in args.report_to and self._writer is None:
            from torch.utils.tensorboard import SummaryWriter
            self._writer = SummaryWriter(log_dir=folder_of(args))

    def on_log(self, args, state, control, logs=None, **kwargs):
        """The Trainer calls it when it logs."""
        if not self._training.scalars or not state.is_world_process_zero:
            return
        if self._writer is not None:
            log_scalars(self._writer, state.global_step)
        wandb = sys.modules.get("wandb")
        if wandb is not None and wandb.run is not None and "wandb" in args.report_to:
            wandb.log({**scalars(), "train/global_step": state.global_step})

    def on_train_end(self, args, state, control, **kwargs):
        """The Trainer calls it after the last step."""
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous
            self._hook = None
        self.end()

    def end(self):
        """Ends the recording, and closes the writer."""
        self._training.end()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def folder_of(args):
    """Where the Trainer's own files for TensorBoard are."""
    import os
    return os.environ.get("TENSORBOARD_LOGGING_DIR") or getattr(args, "logging_dir", None) or os.path.join(args.output_dir, "runs", "headroom")
