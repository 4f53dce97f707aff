"""A pytest plug-in: limits of memory, and leaks, of tests whose programs use Headroom, directly or as PyTorch's allocator.

    @pytest.mark.headroom(limit="2GiB", leaks=False)
    def test_training(): ...

limit     the test fails if more bytes than this are in use on the device at any moment of it
leaks     False: it fails if more bytes are in use after it than before it. A size such as "1MiB": more than that. True, the default: not checked
device    the device; None = the default one, "GPU:0"

Setting headroom_torch = "cpu" (or "cuda") in pytest's configuration, or --headroom-torch cpu, makes Headroom the allocator of PyTorch's tensors before the tests are
collected. A test that fails for lack of memory has the out-of-memory report in its output. Nothing is loaded until a test has the mark, or PyTorch is asked for.
"""
import gc
import os
import re
import sys

import pytest

ARGUMENTS = ("limit", "leaks", "device")
EXAMPLE = '@pytest.mark.headroom(limit="2GiB", leaks=False)'
_settings = pytest.StashKey()
_folder = pytest.StashKey()


def pytest_addoption(parser):
    """The option --headroom-torch and the setting headroom_torch."""
    text = "make Headroom the allocator of PyTorch's tensors on this device, cpu or cuda, before tests are collected"
    parser.getgroup("headroom").addoption("--headroom-torch", metavar="DEVICE", choices=("cpu", "cuda"), help=text)
    parser.addini("headroom_torch", text, default="")


def pytest_configure(config):
    """Declares the mark, and installs the plug-in for PyTorch."""
    config.addinivalue_line("markers", "headroom(limit=None, leaks=True, device=None): fails if the test has more bytes in use than limit, such as '2GiB', or, with "
                                       "leaks=False, leaves bytes in use")
    device = config.getoption("--headroom-torch") or config.getini("headroom_torch")
    if device:
        if device not in ("cpu", "cuda"):
            raise pytest.UsageError(f"headroom_torch is {device!r}; give 'cpu' or 'cuda'")
        import headroom.torch
        if not headroom.torch.installed():
            try:
                headroom.torch.install(device=device)
            except (RuntimeError, ValueError) as error:
                raise pytest.UsageError(f"headroom_torch is {device!r}, but Headroom cannot be installed: {error}") from error


class Settings:
    """The arguments of a mark."""

    def __init__(self, mark):
        from headroom import sizes
        unknown = [name for name in mark.kwargs if name not in ARGUMENTS]
        if mark.args or unknown:
            raise ValueError(f"the mark headroom has {unknown or list(mark.args)}; it takes limit, leaks and device: {EXAMPLE}")
        self.limit = mark.kwargs.get("limit")
        self.device = mark.kwargs.get("device")
        leaks = mark.kwargs.get("leaks", True)
        try:
            self.limit_bytes = None if self.limit is None else sizes.parse_size(self.limit)
        except (TypeError, ValueError):
            raise ValueError(f"limit is {self.limit!r}; give a size such as '2GiB': {EXAMPLE}") from None
        try:
            self.leak_bytes = None if leaks is True else 0 if leaks is False else sizes.parse_size(leaks)
        except (TypeError, ValueError):
            raise ValueError(f"leaks is {leaks!r}; give False, True, or a size such as '1MiB': {EXAMPLE}") from None
        if self.device is not None and not isinstance(self.device, str):
            raise ValueError(f"device is {self.device!r}; give a name such as 'GPU:0'")


def pytest_runtest_setup(item):
    """Reads the mark."""
    mark = item.get_closest_marker("headroom")
    if mark is None:
        return
    problem = None
    try:
        item.stash[_settings] = Settings(mark)
        _info(item.stash[_settings].device)
    except (ValueError, LookupError) as error:
        problem = str(error)
    if problem:
        pytest.fail(problem, pytrace=False)


def _info(device):
    import headroom
    return headroom.memory_info(device)


def _settled(device):
    """Bytes in use when nothing is collected or computed any more."""
    gc.collect()
    context = sys.modules.get("headroom._runtime.context")
    if context is not None:
        context.synchronize()
    return _info(device)["current"]


class Recording:
    """The recording of a test, which names what held its memory; none if something else is being recorded."""

    def __init__(self, item):
        factory = getattr(item.config, "_tmp_path_factory", None)    # none with -p no:tmpdir
        if factory is not None and _folder not in item.config.stash:
            item.config.stash[_folder] = factory.mktemp("headroom")
        folder = item.config.stash.get(_folder, None)
        self.path = None if folder is None else os.path.join(folder, f"{re.sub(r'[^A-Za-z0-9]+', '-', item.nodeid)[-100:]}-{os.getpid()}.hrt")
        if any(os.environ.get(name) for name in ("HEADROOM_TRACE", "HEADROOM_TENSORBOARD")):
            self.path = None
        self.open = None

    def start(self):
        import headroom
        if self.path is None:
            return
        plugin = sys.modules.get("headroom.torch")
        record = plugin.profile if plugin is not None and plugin.installed() else headroom.trace    # profile: with the names of ops
        try:
            if os.path.exists(self.path):
                os.remove(self.path)    # an earlier run of the same test
            recording = record(self.path)
            recording.__enter__()
            self.open = recording
        except headroom.Error:
            self.path = None

    def stop(self):
        import headroom
        recording, self.open = self.open, None
        if recording is not None:
            try:
                recording.__exit__(None, None, None)
            except headroom.Error:
                self.path = None

    def view(self, name, device):
        import headroom
        if self.path is None:
            return ""
        try:
            return f"{headroom.report(self.path, view=name, **({'device': device} if device else {}))}\nrecording: {self.path}\n"
        except headroom.Error as error:
            return f"no view of the recording: {error}\n"

    def remove(self):
        if self.path is not None and os.path.exists(self.path):
            os.remove(self.path)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """Measures the test's function."""
    settings = item.stash.get(_settings, None)
    if settings is None:
        yield
        return
    import headroom
    recording = Recording(item)
    before = _settled(settings.device)
    headroom.reset_stats(settings.device)
    recording.start()
    try:
        outcome = yield
    finally:
        recording.stop()
    failed = outcome.excinfo is not None
    peak, allocations = _info(settings.device)["peak"], headroom.device_stats(settings.device)["num_allocs"]
    problem = None
    if not failed and settings.limit_bytes is not None and peak > settings.limit_bytes:
        problem = f"{_bytes(peak)} were in use at the peak of the test, above its limit of {settings.limit}" + (f"; {_bytes(before)} before it" if before else ""), "peak"
    elif not failed and settings.leak_bytes is not None:
        left = _settled(settings.device) - before
        if left > settings.leak_bytes:
            problem = f"the test leaves {_bytes(left)} more in use than before it" + (f", above {_bytes(settings.leak_bytes)}" if settings.leak_bytes else ""), "tensors"
    if problem is None:
        recording.remove()
        if not failed and not allocations:
            item.warn(pytest.PytestWarning(f"{item.nodeid} has the mark headroom, but allocates nothing through Headroom on {settings.device or 'GPU:0'}. For PyTorch, set "
                                           "headroom_torch in pytest's configuration"))
        return
    text, view = problem
    item.add_report_section("call", "headroom", recording.view(view, settings.device))
    outcome.force_exception(pytest.fail.Exception(text, pytrace=False))


def _bytes(size):
    from headroom import format_size
    return f"{format_size(size)} ({size:,} bytes)" if size >= 1024 else f"{size} bytes"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds the out-of-memory report to a test that failed for lack of memory."""
    outcome = yield
    if call.excinfo is None or "headroom" not in sys.modules:
        return
    text = _report(call.excinfo.value)
    if text:
        outcome.get_result().sections.append(("Headroom's out-of-memory report", text))


def _report(error):
    import headroom
    if isinstance(error, headroom.OutOfMemory):
        return error.report
    plugin = sys.modules.get("headroom.torch")
    if plugin is None or "[report " not in str(error):
        return ""
    try:
        return plugin.oom_report(error)
    except ValueError:
        return ""
