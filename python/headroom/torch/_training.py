"""What callbacks of training loops do: install the plug-in, record, and write reports when memory runs out."""
import json
import sys

import torch

from .. import torch as plugin
from .. import _library, sizes, start_trace, stop_trace


def _path(value, argument, example):
    if value is not None:
        _library.encoded(value, argument, example)
    return value


class Training:
    """The arguments of callbacks.

    limit, lms      as for headroom.torch.install, which is called if it was not called before
    device          "cuda" or "cpu"; None = "cuda" where PyTorch finds a CUDA device
    profile         a new file that the training is recorded to, such as "run.hrt"; None = nothing is recorded
    oom_report      where the report goes if memory runs out: a file (JSON if its name ends with ".json"), "stderr", or None
    scalars         whether statistics are written to the loggers of the training
    """

    def __init__(self, limit=None, lms=None, device=None, profile=None, oom_report="stderr", scalars=True, **options):
        self._profile = _path(profile, "profile", "run.hrt")
        self._oom_report = _path(oom_report, "oom_report", "oom.json")
        if not isinstance(scalars, bool):
            raise TypeError(f"scalars is {scalars!r}; give True or False")
        self.scalars = scalars
        self._recording = None
        self._reported = None
        if limit is not None:
            sizes.argument_size(limit, "limit", "26GB")    # before PyTorch's plug-in is compiled
        if not plugin.installed() or limit is not None or lms is not None or options:
            plugin.install(limit=limit, lms=lms, device=device or ("cuda" if torch.cuda.is_available() else "cpu"), **options)

    def begin(self):
        """Starts the recording. InUse if something else is being recorded."""
        if self._profile is not None and self._recording is None:
            recording = plugin.profile(self._profile)
            recording.__enter__()
            self._recording = recording

    def end(self):
        """Ends the recording."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.__exit__(None, None, None)

    def failed(self, error):
        """Writes the report on an error for lack of memory, once; other errors have none. Returns whether there was one."""
        if self._oom_report is None or not isinstance(error, (torch.OutOfMemoryError, RuntimeError)) or error is self._reported:
            return False
        try:
            text = plugin.oom_report(error)
        except ValueError:    # not an error of Headroom, or too old
            return False
        self._reported = error
        if self._oom_report == "stderr":
            print(text, file=sys.stderr)
            return True
        try:
            with open(self._oom_report, "w") as file:
                file.write(json.dumps(plugin.oom_report(error, as_json=True), indent=1) if str(self._oom_report).endswith(".json") else text)
        except OSError as problem:    # never instead of the error itself
            print(f"headroom: the out-of-memory report is not in {self._oom_report}: {problem}\n{text}", file=sys.stderr)
        return True
