"""Compiles plugins/torch against the headers of the installed PyTorch, once for each version of PyTorch, Headroom and the sources.

No Python headers, ninja or setuptools are needed: the plug-in is an ordinary shared library, called through ctypes and torch.ops.
"""
import contextlib
import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from .. import _library

OLDEST = (2, 9)
SOURCES = ["context", "records", "ops", "recipes", "collectives", "guard", "fork", "front_cpu"]
CUDA_SOURCES = ["front_cuda", "cuda_streams", "cuda_private", "cuda_pools", "cuda_stats", "cuda_snapshot"]
# NDEBUG as PyTorch itself is compiled: the layout of its structs depends on it.
FLAGS = ["-std=c++17", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden"]
HEADERS = ["headroom.h", "headroom_oom.h", "headroom_lms.h", "headroom_backend.h"]


class BuildError(RuntimeError):
    """The plug-in could not be compiled."""


class UnsupportedVersion(BuildError):
    """The installed PyTorch is too old."""


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "headroom" / "plugins"


def compiler():
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    raise BuildError("Headroom compiles its PyTorch plug-in when it is first used, and found no C++ compiler. Install one (Debian, Ubuntu: "
                     "apt-get install g++; conda: conda install gxx), or set CXX to its path")


def cuda_version_of(folder):
    """The version of CUDA's headers in [folder], such as "13.0"; None if there are none."""
    with contextlib.suppress(OSError):
        found = re.search(r"#define CUDART_VERSION +(\d+)", (folder / "cuda_runtime_api.h").read_text(errors="replace"))
        if found:
            return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}"
    return None


def cuda_include_folders():
    """The headers of the CUDA toolkit: CUDA_HOME, or those that PyTorch's wheels install beside it. Those of PyTorch's own version come first, and then
    those of its major version, because functions and structs differ between major versions."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    site = Path(torch.__file__).resolve().parents[1]
    versions = {folder: cuda_version_of(folder) for folder in [Path(home) / "include", *sorted(site.glob("nvidia/*/include"))]}
    usable = [folder for folder, version in versions.items() if version]
    if not usable:
        raise BuildError("Headroom's plug-in needs the headers of CUDA, and found no cuda_runtime_api.h. Set CUDA_HOME to the CUDA toolkit, or install the "
                         "package nvidia-cuda-runtime of PyTorch's CUDA version with pip")
    wanted = torch.version.cuda or ""
    return [min(usable, key=lambda folder: (versions[folder].split(".")[0] != wanted.split(".")[0], versions[folder] != wanted))]


def identity(sources, cuda):
    """A name for the compiled file that changes with everything it depends on."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted(sources.iterdir()) + [_library.include_folder() / name for name in HEADERS]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    kind = "cuda" if cuda else "cpu"
    return f"torch-{torch.__version__}-headroom-{_library.library.hr_version().decode()}-{kind}-{digest.hexdigest()[:12]}"


def compile_one(command, source, output):
    result = subprocess.run(command + ["-c", str(source), "-o", str(output)], capture_output=True, text=True)
    if result.returncode:
        raise BuildError(f"compiling {source.name} of Headroom's PyTorch plug-in failed:\n{result.stderr[-4000:]}")
    return str(output)


def compile_command(cuda):
    torch_folder = Path(torch.__file__).resolve().parent
    includes = [torch_folder / "include", torch_folder / "include" / "torch" / "csrc" / "api" / "include"] + (cuda_include_folders() if cuda else [])
    command = [compiler(), *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    return command + [argument for folder in includes for argument in ("-isystem", str(folder))] + ["-I", str(_library.include_folder())]


def compile_plugin(sources, output, cuda):
    torch_folder = Path(torch.__file__).resolve().parent
    command = compile_command(cuda)
    names = SOURCES + (CUDA_SOURCES if cuda else [])
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda name: compile_one(command, sources / f"{name}.cpp", Path(folder) / f"{name}.o"), names))
        libraries = ["-ltorch_cpu", "-lc10"] + (["-lc10_cuda"] if cuda else [])
        linked = Path(folder) / "plugin.so"
        command = [compiler(), "-shared", *objects, "-o", str(linked), f"-L{torch_folder / 'lib'}", "-Wl,--no-as-needed", *libraries, str(_library.path())]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise BuildError(f"linking Headroom's PyTorch plug-in failed:\n{result.stderr[-4000:]}")
        os.replace(linked, output)  # all of it at once, also if this process is killed


def check_version():
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise UnsupportedVersion(f"Headroom's plug-in needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer, and this is {torch.__version__}. Upgrade it: pip install --upgrade torch")


def build(cuda):
    """The path of the compiled plug-in."""
    check_version()
    sources = _library.plugin_folder("torch")
    output = cache_folder() / f"{identity(sources, cuda)}.so"
    if output.is_file():
        return output
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be compiling the same file
        if not output.is_file():
            begin = time.monotonic()
            compile_command(cuda)  # raises if something is missing
            print(f"headroom: compiling the plug-in for PyTorch {torch.__version__}, once; takes about half a minute", file=sys.stderr, flush=True)
            compile_plugin(sources, output, cuda)
            print(f"headroom: compiled in {time.monotonic() - begin:.0f} s, kept in {output.parent}", file=sys.stderr, flush=True)
    return output


class Settings(ctypes.Structure):
    """struct Settings in plugin.h."""
    _fields_ = [("limit", ctypes.c_uint64), ("movable", ctypes.c_uint64), ("host_limit", ctypes.c_uint64), ("spill_dir", ctypes.c_char_p), ("policy", ctypes.c_char_p),
                ("lms", ctypes.c_int), ("verify", ctypes.c_int), ("rests_on_copy", ctypes.c_int), ("recompute", ctypes.c_int)]


def load(cuda):
    path = build(cuda)
    torch.ops.load_library(str(path))
    plugin = ctypes.CDLL(str(path))
    plugin.headroom_torch_allocator.restype = ctypes.c_uint64
    plugin.headroom_torch_allocator.argtypes = []
    plugin.headroom_torch_allocator_of.restype = ctypes.c_uint64
    plugin.headroom_torch_allocator_of.argtypes = [ctypes.c_int]
    plugin.headroom_torch_step.restype = ctypes.c_int
    plugin.headroom_torch_step.argtypes = []
    plugin.headroom_torch_step.errcheck = _library.check
    for name in ("headroom_torch_pinned_records", "headroom_torch_ops_on_host"):
        getattr(plugin, name).restype = ctypes.c_int64
        getattr(plugin, name).argtypes = []
    plugin.headroom_torch_violations.restype = ctypes.c_int64
    plugin.headroom_torch_violations.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    plugin.headroom_torch_watch_ops.restype = None
    plugin.headroom_torch_watch_ops.argtypes = [ctypes.c_int]
    plugin.headroom_torch_set_module.restype = None
    plugin.headroom_torch_set_module.argtypes = [ctypes.c_uint64, ctypes.c_uint32]
    plugin.fast = ctypes.PyDLL(str(path))  # keeps the GIL: for short calls
    for name, result in (("headroom_torch_enter", ctypes.c_int), ("headroom_torch_leave", None)):
        getattr(plugin.fast, name).restype = result
        getattr(plugin.fast, name).argtypes = [ctypes.c_void_p]  # a number of 64 bits; c_uint64 takes longer
    plugin.headroom_torch_set_tag.restype = ctypes.c_uint32
    plugin.headroom_torch_set_tag.argtypes = [ctypes.c_uint32]
    if cuda:
        plugin.headroom_torch_shareable.restype = None
        plugin.headroom_torch_shareable.argtypes = [ctypes.c_int]
    plugin.headroom_torch_name.restype = None
    plugin.headroom_torch_name.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]
    for name in ["headroom_torch_install_cpu"] + (["headroom_torch_install_cuda"] if cuda else []):
        getattr(plugin, name).restype = ctypes.c_int
        getattr(plugin, name).argtypes = [ctypes.POINTER(Settings)]
        getattr(plugin, name).errcheck = _library.check
    return plugin
