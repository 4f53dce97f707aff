"""Statistics as scalars for TensorBoard, Weights & Biases and other writers of metrics."""
import sys

from . import _stats

STATISTICS = "bytes_in_use peak_bytes_in_use bytes_reserved bytes_reclaimed num_allocs num_failed_allocs fragmentation".split()
LMS = "bytes_copied_out bytes_copied_in num_evictions num_restores num_recomputes".split()


def scalars(device=None):
    """Statistics of a device by the names of charts: {"headroom/bytes_in_use": 1024.0, ...}. None = the default device. Where PyTorch runs with Large Model
    Support, its copies and the time that steps waited for them ("headroom/lms/stall_seconds") are there too."""
    stats = _stats.device_stats(device)
    values = {f"headroom/{name}": float(stats[name]) for name in STATISTICS}
    torch = sys.modules.get("headroom.torch")
    if torch is not None and torch.installed() and torch._lms:
        lms = torch.lms_stats()
        values.update({f"headroom/lms/{name}": float(lms[name]) for name in LMS})
        values["headroom/lms/stall_seconds"] = lms["stall_ns"] / 1e9
    return values


def log_scalars(writer, step=None, device=None):
    """Writes scalars(device) with a writer of other packages: a torch.utils.tensorboard.SummaryWriter, a run of Weights & Biases (or the module wandb), a logger
    of PyTorch Lightning, or a function that takes a dictionary and a step. Returns the scalars."""
    if step is not None and (isinstance(step, bool) or not hasattr(step, "__index__")):
        raise TypeError(f"step is {step!r}; give the number of the step, such as 100")
    values = scalars(device)
    if hasattr(writer, "add_scalar"):
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    elif hasattr(writer, "log_metrics"):
        writer.log_metrics(values, step)
    elif hasattr(writer, "log"):
        writer.log(values, step=step)
    elif callable(writer):
        writer(values, step)
    else:
        raise TypeError(f"writer is {writer!r}; give a SummaryWriter, a run of Weights & Biases, a logger of Lightning, or a function of a dictionary and a step")
    return values
