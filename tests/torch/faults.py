"""Training in which one call fails, as a program: `faults.py FIRST STRIDE LIBRARY` prints JSON.

In step number i the Nth call of the device, or of the operating system, fails once, or all calls of the device from the Nth on ("outage"). N grows by STRIDE
until steps of all shapes end before their Nth call. A step that raises is repeated from a checkpoint, as programs do. The exact losses and weights are then those of plain PyTorch. LIBRARY is tests/fault_os.c as a shared
library; "plain" runs plain PyTorch for as many steps as FIRST says."""
import ctypes
import errno
import io
import json
import sys

import torch
from torch import nn

import scenarios

LIMIT = 5 << 19  # 2.5 MiB
SHAPES = 3


class Training:
    def __init__(self):
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 128))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.steps = 0

    def step(self):
        torch.manual_seed(self.steps)
        inputs = torch.randn(160 + 32 * (self.steps % SHAPES), 128)  # a new plan for each step, so that the policy allocates
        return scenarios.train(self.optimizer, (self.model(inputs) - inputs).square().mean()).item().hex()

    def save(self):
        file = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
        return file

    def load(self, file):
        file.seek(0)
        state = torch.load(file)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.zero_grad()


class DeviceFaults:
    """Calls of the emulated device (headroom_backend.h)."""

    def __init__(self, library, forever):
        self.library = library
        self.forever = forever
        library.hr_backend_fail_nth.argtypes = [ctypes.c_uint64, ctypes.c_bool, ctypes.c_int]
        library.hr_backend_calls.restype = ctypes.c_uint64

    def fail(self, nth):
        self.library.hr_backend_fail_nth(nth, self.forever and nth > 0, 0)

    def calls(self):
        return self.library.hr_backend_calls()


class SystemFaults:
    """Host allocations and all other calls of the operating system that libheadroom makes (tests/fault_os.h)."""

    def __init__(self, library):
        self.library = library
        library.hr_fault_os_fail_nth.argtypes = [ctypes.c_uint64, ctypes.c_bool, ctypes.c_int]
        library.hr_fault_os_calls.restype = ctypes.c_uint64

    def fail(self, nth):
        self.library.hr_fault_os_fail_nth(nth, False, errno.ENOMEM)

    def calls(self):
        return self.library.hr_fault_os_calls()


def fail_each(training, faults, first, stride):
    """A step for each N from [first] on: the exact losses, how many steps raised, and the last N that a step reached."""
    losses, raised, nth, reached, missed = [], 0, first, 0, 0
    while missed < SHAPES:
        checkpoint = training.save()
        faults.fail(nth)
        try:
            loss = training.step()
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            loss = None
            if "Headroom" not in str(error):
                raise
        calls = faults.calls()  # of a step that raised, fewer than it makes otherwise
        faults.fail(0)
        headroom.torch.check()
        if calls >= nth:
            reached, missed, nth = nth, 0, nth + stride
        else:
            missed += 1  # a step of another shape may make more calls
        if loss is None:
            raised += 1
            training.load(checkpoint)
            loss = training.step()
        losses.append(loss)
        training.steps += 1
    return losses, raised, reached


def calls_of_a_step(training, faults, losses):
    """The fewest of steps of all shapes in which nothing fails."""
    calls = []
    for _ in range(SHAPES):
        faults.fail(0)
        losses.append(training.step())
        training.steps += 1
        calls.append(faults.calls())
    return min(calls)


def main(first, stride, library):
    global headroom
    torch.set_num_threads(1)
    if library == "plain":
        training = Training()
        losses = []
        for training.steps in range(int(first)):
            losses.append(training.step())
        print(json.dumps({"losses": losses, "digest": scenarios.digest(training.model)}))
        return
    import headroom.torch
    from headroom import _library
    device, system = _library.library.load(), ctypes.CDLL(library)
    system.hr_fault_os_install()  # before the first device
    headroom.torch.install(limit=LIMIT, lms=True, device="cpu", movable="64KiB", verify=True)
    training = Training()
    losses = []
    for training.steps in range(3):  # memory is short, and the libraries have what they allocate once
        losses.append(training.step())
    training.steps = 3
    result = {}
    first, stride = int(first), int(stride)
    for name, faults, between in (("device", DeviceFaults(device, False), stride), ("outage", DeviceFaults(device, True), 5 * stride),
                                  ("system", SystemFaults(system), stride)):
        calls = calls_of_a_step(training, faults, losses)
        if name == "system" and stride > 1:
            between = 1 + calls // 32  # a step makes from a few to hundreds
        more, raised, reached = fail_each(training, faults, 1 + first % between, between)
        losses += more
        result[name] = {"steps": len(more), "raised": raised, "reached": reached, "calls": calls, "stride": between}
    print(json.dumps({**result, "losses": losses, "digest": scenarios.digest(training.model), "lms": headroom.torch.lms_stats(),
                      "pinned": headroom.torch._plugin.headroom_torch_pinned_records()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
