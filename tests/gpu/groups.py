"""Checks of PyTorch programs on a card, in groups. Each group is a process of its own, so that a crash does not hide the rest.

Prints a line for each check and the counts at the end; exit status 1 if a check failed, 77 without PyTorch or a GPU. --native runs the checks on PyTorch's
own allocator, to tell an error of a check from one of Headroom.
"""
import contextlib
import faulthandler
import re
import shutil
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77
MIB = 1 << 20
GIB = 1 << 30
NATIVE = "--native" in sys.argv

counts = {"ok": 0, "FAILED": 0}
checks = {}


def group(name):
    def register(function):
        checks[name] = function
        return function
    return register


@contextlib.contextmanager
def check(name):
    """What follows must not raise."""
    try:
        yield
    except BaseException as error:    # SystemExit of a library included
        counts["FAILED"] += 1
        where = traceback.extract_tb(error.__traceback__)[-1]
        print(f"FAILED {name}: {type(error).__name__}: {str(error)[:600]} (line {where.lineno} of {Path(where.filename).name})", flush=True)
    else:
        counts["ok"] += 1
        print(f"ok     {name}", flush=True)


def equal(seen, expected, what="value"):
    assert seen == expected, f"{what} is {seen!r}, not {expected!r}"


def install(**options):
    import torch
    if not NATIVE:
        sys.path.insert(0, str(ROOT / "python"))
        import warnings
        warnings.simplefilter("ignore")
        import headroom.torch
        headroom.torch.install(device="cuda", **options)
    torch.cuda.init()
    return torch


def tensor_of(torch, size, value=None, **options):
    made = torch.empty(size, dtype=torch.uint8, device="cuda", **options)
    return made if value is None else made.fill_(value)


def raises(kind, text, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        assert re.search(text, str(error), re.S), f"the message lacks {text!r}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def skip(name, reason):
    print(f"skipped {name}: {reason}", flush=True)


# ---- running them ----

def stack_of_crash(command):
    """The C stack of a command that crashes, where a debugger is installed."""
    debugger = shutil.which("gdb") or shutil.which("cuda-gdb")
    if not debugger:
        return ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        result = subprocess.run([debugger, "-batch", "-ex", "run", "-ex", "bt 40", "--args", *command], capture_output=True, text=True, timeout=240)
        return result.stdout[result.stdout.find("received signal"):][:6000]
    return ""


def run_group(name):
    begin = time.monotonic()
    command = [sys.executable, sys.argv[0], "--only", name] + (["--native"] if NATIVE else [])
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=240)
        output, code, errors = result.stdout, result.returncode, result.stderr
    except subprocess.TimeoutExpired as error:
        output, code, errors = (error.stdout or b"").decode(), "no end after 240 s", (error.stderr or b"").decode()
    ok, failed = len(re.findall("^ok ", output, re.M)), len(re.findall("^FAILED ", output, re.M))
    if code not in (0, 1):
        failed += 1
        output += f"FAILED group {name}: {'signal ' + str(-code) if isinstance(code, int) and code < 0 else code}\n{errors[-3000:]}\n"
        if isinstance(code, int) and code < 0:
            output += stack_of_crash(command)
    elif failed:
        output += errors[-1500:]
    print(f"== {name}, {time.monotonic() - begin:.1f} s\n{output}", end="", flush=True)
    return ok, failed, len(re.findall("^skipped ", output, re.M))


def main(alone=()):
    """Runs the groups that the command line names, or all. [alone]: those that need the card for themselves; of the others, four run at a time."""
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    try:
        import torch
    except ImportError:
        print("skipped: no PyTorch")
        return SKIPPED
    if "--only" in sys.argv:
        faulthandler.enable()    # a crash prints where it was
        with check(f"{wanted[0]}: the group ran to its end"):
            checks[wanted[0]]()
        return 1 if counts["FAILED"] else 0
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return SKIPPED
    if not NATIVE:
        sys.path.insert(0, str(ROOT / "python"))
        from headroom.torch import _build
        _build.build(True)    # once, before the groups need it
    names = [name for name in checks if not wanted or name in wanted]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run_group, [name for name in names if name not in alone]))
    results += [run_group(name) for name in names if name in alone]
    passed, failed, skipped = (sum(column) for column in zip(*results))
    print(f"{Path(sys.argv[0]).name}: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0
