"""Where the tests of the PyTorch plug-in find PyTorch: in the environment that tools/torch.sh installs (TORCH_VERSION), or in HEADROOM_TORCH_PYTHON."""
import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["HEADROOM_COMMAND"]).parent
VERSION = os.environ.get("TORCH_VERSION") or "2.11"
INSTALLED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headroom" / f"torch-{VERSION}" / "bin" / "python"
PYTHON = os.environ.get("HEADROOM_TORCH_PYTHON") or str(INSTALLED)


def skip_without_pytorch():
    if os.environ.get("TORCH") == "0":
        reason = "TORCH=0"
    elif not os.path.exists(PYTHON):
        reason = "PyTorch is not installed (tools/torch.sh)"
    elif not (BUILD / "libheadroom.so.0").exists():
        reason = "this build has no shared library"
    else:
        return
    print(f"skipped: {reason}")
    sys.exit(0)


def version():
    """Of PyTorch: (2, 11)."""
    program = "import importlib.metadata; print(importlib.metadata.version('torch'))"
    text = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in text.split(".")[:2])


def skip_without_python_headers():
    """torch.compile compiles an extension module."""
    program = "import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()['include'], 'Python.h')))"
    if subprocess.run([PYTHON, "-c", program]).returncode:
        print("skipped: there is no Python.h (Debian: apt-get install python3-dev)")
        sys.exit(0)


def environment(**changes):
    """Of a child. Small pages, because the tensors are small. Some virtual machines announce AMX, which oneDNN uses for bfloat16, and do not
    have it. Threads of OpenMP sleep when they wait, because other tests use the processors too."""
    result = dict(os.environ, PYTHONPATH=str(ROOT / "python"), HEADROOM_LIBRARY_DIR=str(BUILD), HEADROOM_CUDA="0", HEADROOM_EMULATED="page=64KiB",
                  ONEDNN_MAX_CPU_ISA="AVX512_CORE", OMP_WAIT_POLICY="PASSIVE", PYTHONDONTWRITEBYTECODE="1")
    for name in ("HEADROOM_LMS", "HEADROOM_LIMIT", "HEADROOM_TRACE", "HEADROOM_OOM_REPORT"):
        result.pop(name, None)
    result.update(changes)
    return result


_forking = None  # the process of forked.py


def _stop_forking():
    global _forking
    _forking.stdin.close()
    _forking.terminate()
    _forking.wait()
    _forking.stdout.close()
    _forking = None


def run_program(program, timeout=600, **changes):
    """As run_python("-c", program), for a program that imports PyTorch: in a child of a process that has done so already (forked.py). Variables
    that PyTorch or the loader reads at its start cannot be changed."""
    global _forking
    assert all(name.startswith("HEADROOM_") or name in ("CC", "CXX", "CUDA_HOME", "PATH", "XDG_CACHE_HOME") for name in changes), changes
    if not _forking:
        _forking = subprocess.Popen([PYTHON, Path(__file__).with_name("forked.py")], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                    text=True, start_new_session=True)
        atexit.register(lambda: _forking and _stop_forking())
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as errors:
        changes = {name: str(value) for name, value in changes.items()}
        _forking.stdin.write(json.dumps({"program": program, "changes": changes, "stdout": out.name, "stderr": errors.name}) + "\n")
        _forking.stdin.flush()
        if not select.select([_forking.stdout], [], [], timeout)[0]:
            os.killpg(_forking.pid, 9)
            _stop_forking()
            raise subprocess.TimeoutExpired("a forked program", timeout, out.read(), errors.read())
        return subprocess.CompletedProcess(["-c"], int(_forking.stdout.readline()), out.read(), errors.read())


def run_python(*arguments, timeout=600, **changes):
    return subprocess.run([PYTHON, *map(str, arguments)], env=environment(**changes), capture_output=True, text=True, timeout=timeout)
