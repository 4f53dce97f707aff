"""Headroom under PyTorch: statistics, out-of-memory reports, profiles and Large Model Support, with nothing patched.

    import headroom.torch
    headroom.torch.install(limit="26GB", lms=True)

docs/pytorch.md says what works today.
"""
import contextlib
import ctypes
import json
import os
import re
import warnings

import torch

from .. import _library, _stats, errors, sizes, start_trace, stop_trace
from . import _addresses, _build, _compiled, _names, _script
from ._build import BuildError, UnsupportedVersion

__all__ = ["AlreadyInstalled", "BuildError", "NotInstalled", "UnsupportedVersion", "check", "holders", "install", "installed", "lms_stats", "oom_report", "pin",
           "profile", "shareable", "stats", "step"]


class AlreadyInstalled(RuntimeError):
    """install() was called before."""


class NotInstalled(RuntimeError):
    """install() was not called yet."""


_plugin = None
_hooks = None
_lms = False
_ops = False
_device = None
_by_run = False


def installed():
    """Whether install() was called."""
    return _plugin is not None


def _need():
    if _plugin is None:
        raise NotInstalled("call headroom.torch.install() first")
    return _plugin


RECOMPUTES = False  # where install() is not told recompute


def _check_host_limit(limit):
    """The emulated device takes the host's memory, so the library cannot refuse a limit that the host does not have."""
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if limit > host:
        raise ValueError(f"limit is {sizes.format_size(limit)}, above the host's memory of {sizes.format_size(host)}. Give less, or None for all of it")


def install(limit=None, lms=None, device="cuda", *, movable="1MiB", host_limit=None, spill_dir=None, policy=None, verify=False, ops=None, recompute=None,
            _rests_on_copy=False, _always_recompute=False):
    """Makes Headroom the allocator of PyTorch's tensors on [device]: "cuda", before the first CUDA tensor, or "cpu".

    limit       most bytes on the device, such as "26GB"; None = all of it
    lms         Large Model Support: tensors that no op is using are moved to the host when the limit is reached; None = as HEADROOM_LMS says, or off
    movable     the least size of a tensor that is moved
    host_limit, spill_dir, policy, verify    as in docs/lms.md
    recompute   whether results of ops may be dropped and computed again, where that is cheaper than moving them. Experimental; None = no
    ops         whether memory is named after the ops that allocate it, which takes about 0.3 us for each op; None = with lms, and while a recording runs

    A failure leaves PyTorch as it was: AlreadyInstalled, BuildError, UnsupportedVersion, RuntimeError (no CUDA device, or it was used already), ValueError (a bad
    argument or limit), or another headroom.Error."""
    global _plugin, _hooks, _lms, _device, _ops
    if _by_run:
        warnings.warn("Headroom was installed by `headroom run`, whose settings are used, not those of this call. `headroom run --device none` leaves it to the program",
                      stacklevel=2)
        return
    if _plugin is not None:
        raise AlreadyInstalled("Headroom is installed in this process already, and cannot be changed or removed")
    _build.check_version()
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"Headroom supports the devices 'cuda' and 'cpu', not {device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("PyTorch finds no CUDA device (torch.cuda.is_available() is False). For CPU tensors use device='cpu'")
    if kind == "cuda" and torch.cuda.is_initialized():
        raise RuntimeError("CUDA was used already: call headroom.torch.install() before the first CUDA tensor")
    if lms is None:
        lms = _library.library.hr_get_lms_enabled()
    settings = _build.Settings(limit=sizes.argument_size(limit, "limit", "26GB") if limit is not None else 0,
                               movable=sizes.argument_size(movable, "movable", "1MiB"),
                               host_limit=sizes.argument_size(host_limit, "host_limit", "64GB") if host_limit is not None else 0,
                               spill_dir=os.fsencode(spill_dir) if spill_dir is not None else None,
                               policy=policy.encode() if policy is not None else None, lms=bool(lms), verify=bool(verify),
                               rests_on_copy=_rests_on_copy, recompute=2 if _always_recompute else int(RECOMPUTES if recompute is None else bool(recompute)))
    if kind == "cpu":
        _check_host_limit(settings.limit)
    plugin = _build.load(kind == "cuda")
    (plugin.headroom_torch_install_cpu if kind == "cpu" else plugin.headroom_torch_install_cuda)(settings)
    _plugin = plugin
    _device = kind
    _lms = bool(lms)
    if _lms:
        _addresses.Addresses(kind).install()
        _compiled.install()
        _script.install()
    _hooks = _names.Names(plugin, kind)
    _hooks.install()
    _ops = bool(_lms or (ops if ops is not None else any(os.environ.get(name) for name in ("HEADROOM_TRACE", "HEADROOM_TENSORBOARD"))))
    plugin.headroom_torch_watch_ops(_ops)


def _install_by_run(device):
    """The start-up hook of `headroom run`. The program may call install() too."""
    global _by_run
    install(device=device, limit=os.environ.get("HEADROOM_LIMIT") or None)
    _by_run = True


def _index_of(device):
    if _device == "cpu":
        return 0
    if device is None:
        return torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return _index_of(None) if index is None else index


def _allocator(device):
    plugin, index = _need(), _index_of(device)
    allocator = plugin.headroom_torch_allocator_of(index)
    if not allocator:
        raise RuntimeError(f"nothing was allocated on {_device}:{index} yet, so it has no statistics")
    return allocator


def stats(device=None):
    """The statistics of a device's allocator, such as bytes_in_use and peak_bytes_in_use (headroom.h, HR_STATS_TABLE). None: the current device."""
    return _stats.allocator_stats(_allocator(device))


def holders(by="tag", device=None):
    """Bytes on the device by "tag" (weights, activations, ...), "scope" (the path of the module) or "op", largest first. Evicted tensors are not on the device."""
    return _stats.allocator_holders(_allocator(device), by)


def lms_stats(device=None):
    """Evictions, restores, copied bytes and the rest of HR_LMS_STATS_TABLE (headroom_lms.h), and the ops of all devices that ran on host copies. All 0 before
    the first large tensor."""
    plugin = _need()
    try:
        values = _stats.lms_stats(_allocator(device))
    except _library.Error as error:
        if error.status != "HR_NOT_READY":
            raise
        values = dict.fromkeys(_stats.LMS_FIELDS, 0)
    values["num_ops_on_host"] = plugin.headroom_torch_ops_on_host()
    return values


def check():
    """Checks every data structure, and with verify=True that no op wrote what it said it reads; raises headroom.Error if something is wrong. For tests."""
    plugin = _need()
    text = ctypes.create_string_buffer(2048)
    count = plugin.headroom_torch_violations(text, len(text))
    if count:
        raise _library.Error(f"{count} times an op wrote what it said it reads, first: {text.value.decode(errors='replace')}")
    for index in range(torch.cuda.device_count() if _device == "cuda" else 1):
        allocator = plugin.headroom_torch_allocator_of(index)
        if allocator:
            _library.library.hr_allocator_check(allocator)
            if lms_stats(index)["num_tensors"]:
                _library.library.hr_lms_check(allocator)


def step():
    """Ends a step and begins the next. Optimizers do it by themselves; call this in loops without one."""
    _need()
    _hooks.step()


def pin(*tensors):
    """Keeps tensors on the device, at their present address, for their life."""
    _need()
    if _lms:
        torch.ops.headroom.keep(list(tensors))


@contextlib.contextmanager
def shareable():
    """CUDA tensors that the calling thread creates inside the `with` can be sent to other processes (torch.multiprocessing). Their memory is CUDA's own:
    they never move, and each costs a cudaMalloc."""
    plugin = _need()
    if _device != "cuda":
        yield    # CPU tensors are shared through files, whatever their allocator
        return
    plugin.headroom_torch_shareable(1)
    try:
        yield
    finally:
        plugin.headroom_torch_shareable(-1)


@contextlib.contextmanager
def profile(path):
    """Records what happens inside the `with` to a new file: `headroom report FILE` shows it by op, module and step."""
    plugin = _need()
    start_trace(path)
    plugin.headroom_torch_watch_ops(1)
    try:
        yield
    finally:
        plugin.headroom_torch_watch_ops(_ops)
        stop_trace()


def oom_report(error, as_json=False):
    """The whole report on a torch.OutOfMemoryError, as text, or as a dictionary. The last 16 reports are kept."""
    found = re.search(r"\[report ([0-9a-f]+)\]", str(error))
    if not found:
        raise ValueError("this error has no report of Headroom")
    function = _library.library.hr_oom_format_json if as_json else _library.library.hr_oom_format_text
    text = _library.text_of(function, int(found.group(1), 16))
    if not text:
        raise ValueError("the report is no longer available: there were 16 later ones")
    return json.loads(text) if as_json else errors.ReportText(text)
