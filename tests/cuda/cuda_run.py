"""What the tests of `headroom run` with CUDA programs share: the programs, the stand-in driver, and running one on the other.

Where the programs are for another machine, HEADROOM_EMULATOR is the command that runs them, "qemu-aarch64 -L /usr/aarch64-linux-gnu", and HEADROOM_CC the
compiler that makes them. An emulated program cannot start another, so the environment that `headroom run` sets is made here, and tests of the command itself
are skipped."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
import command  # noqa: E402
from command import COMMAND  # noqa: E402

BUILD = Path(COMMAND).parent
PROGRAMS = BUILD / "tests" / "cuda"
LIBRARY = BUILD / "libheadroom_cuda.so"
FAULTS = PROGRAMS / "cuda_faults.so"
DRIVERS = Path(os.environ.get("HEADROOM_FAKE_CUDA", BUILD / "fake_cuda"))
EMULATOR = os.environ.get("HEADROOM_EMULATOR", "").split()
COMPILER = os.environ.get("HEADROOM_CC", "cc")
WAYS = ["link", "dlsym", "proc", "proc:12040", "proc:13000", "proc_v1", "proc_proc", "ptsz", "proc_ptsz", "default", "next", "module:proc", "module:dlsym",
        "deepbind:proc", "deepbind:dlsym"]
if EMULATOR:  # slowly
    WAYS = ["link", "proc", "proc_ptsz", "next", "deepbind:dlsym"]
MIB = 1 << 20
CARD = 256 * MIB
OUT_OF_MEMORY = 2
UNITS = {"KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}
needs_command = unittest.skipIf(EMULATOR, "an emulated program cannot start another")


def run(*arguments, **extra):
    """Runs the command itself, which reads what a program has recorded."""
    return start([COMMAND, *map(str, arguments)], {**os.environ, "LC_ALL": "C.UTF-8", **extra}) if EMULATOR else command.run(*arguments, env=extra)


def environment(driver="whole", **extra):
    whole = {**os.environ, "LD_LIBRARY_PATH": str(DRIVERS / driver), **extra}
    for name in ("HEADROOM_CUDA", "LD_PRELOAD"):
        if name not in extra:
            whole.pop(name, None)
    return whole


def program(way):
    return [str(PROGRAMS / ("cuda_program_linked" if way == "link" else "cuda_program")), way]


def start(command, settings, cwd=None):
    """Runs a program, through the emulator if there is one. The emulator must not use the loader's variables itself."""
    if EMULATOR:
        loader = [name for name in settings if name.startswith("LD_")]
        command = [*EMULATOR, *[word for name in loader for word in ("-E", f"{name}={settings[name]}")], *command]
        settings = {name: value for name, value in settings.items() if name not in loader}
    return subprocess.run(command, env=settings, cwd=cwd, capture_output=True, text=True, timeout=240)


def run_plain(way, *commands, **extra):
    return start(program(way) + list(commands), environment(**extra))


def in_bytes(size):
    unit = str(size)[-3:]
    return str(int(str(size)[:-3]) * UNITS[unit]) if unit in UNITS else str(size)


def by_hand(options, settings):
    """The environment that `headroom run OPTIONS` sets."""
    variables = {"--limit": "HEADROOM_LIMIT", "--trace": "HEADROOM_TRACE", "--stacks": "HEADROOM_STACKS"}
    flags = {"--manage": ("HEADROOM_RUN", "manage"), "--uses": ("HEADROOM_RUN_USES", "1"), "--callers": ("HEADROOM_RUN_CALLERS", "1")}
    made = {"HEADROOM_TOP": "1", "NVTX_INJECTION64_PATH": str(LIBRARY), **settings, "LD_PRELOAD": ":".join(filter(None, (settings.get("LD_PRELOAD"), str(LIBRARY))))}
    words = iter(map(str, options))
    for word in words:
        if word in variables:
            made[variables[word]] = in_bytes(next(words))
        elif word in flags:
            name, value = flags[word]
            made[name] = value
    return made


@unittest.skipUnless(LIBRARY.exists(), "sanitizer builds have no shared library")
class Run(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = Path(self.temporary.name)

    def under(self, command, *options, cwd=None, **extra):
        extra.setdefault("XDG_RUNTIME_DIR", str(self.folder))
        command, settings = list(map(str, command)), environment(**extra)
        if EMULATOR:
            return start(command, by_hand(options, settings), cwd)
        return start([COMMAND, "run", *map(str, options), "--", *command], settings, cwd)

    def observe(self, way, *commands, options=(), **extra):
        return self.under(program(way) + list(commands), "--observe", *options, **extra)

    def manage(self, way, *commands, options=(), **extra):
        return self.under(program(way) + list(commands), "--manage", *options, **extra)

    def lines(self, result, errors=""):
        self.assertEqual((result.returncode, result.stderr), (0, errors))
        self.assertEqual(result.stdout.splitlines()[-1], "end")
        return result.stdout.splitlines()[:-1]

    def for_each_way(self, check):
        for way in WAYS:
            with self.subTest(way=way):
                check(way)
