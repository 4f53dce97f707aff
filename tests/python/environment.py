"""For the tests of the Python package: the package of this tree with the libraries of this build, on the emulated device."""
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ["HEADROOM_COMMAND"]).resolve()
BUILD = COMMAND.parent
SETTINGS = ("HEADROOM_LMS", "HEADROOM_LIMIT", "HEADROOM_TRACE", "HEADROOM_OOM_REPORT", "HEADROOM_EMULATED")

if not (BUILD / "libheadroom.so.0").exists():
    print("skipped: this build has no shared library")
    sys.exit(0)


def environment(**changes):
    """Of a child."""
    result = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    result.update(PYTHONPATH=str(ROOT / "python"), HEADROOM_LIBRARY_DIR=str(BUILD), HEADROOM_CUDA="0", PYTHONDONTWRITEBYTECODE="1", **changes)
    return result


def run_python(*arguments, timeout=300, cwd=None, **changes):
    return subprocess.run([sys.executable, *map(str, arguments)], env=environment(**changes), capture_output=True, text=True, timeout=timeout, cwd=cwd)


def use():
    """Makes `import headroom` in this process find the package."""
    os.environ.update(environment())
    for name in SETTINGS:
        os.environ.pop(name, None)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "python"))


def need_numpy():
    """Runs the test with an interpreter that has NumPy, or skips it."""
    try:
        import numpy
        return numpy
    except ImportError:
        pass
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headroom"
    for python in [Path("/usr/bin/python3"), *sorted(cache.glob("torch-*/bin/python"))]:
        if python.exists() and not subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode:
            os.execv(python, [str(python), *sys.argv])
    print("skipped: no interpreter has NumPy (Debian: apt-get install python3-numpy)")
    sys.exit(0)
