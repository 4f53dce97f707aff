#!/usr/bin/env python3
"""headroom.cupy on a card: one line for each check; the exit status is 0 if all are right. Where there is no CuPy or no card it says so and ends with 0.

    python tests/gpu/test_cupy.py       with the installed package, or after `make` in the source tree
"""
import gc
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("HEADROOM_COMMAND") or ROOT / "build" / "headroom").parent


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(0)


try:
    import cupy
    cupy.cuda.runtime.getDeviceCount()
except Exception as error:  # also a driver that does not work
    skip(f"{type(error).__name__}: {error}")
try:
    import headroom
except ImportError:
    if not (BUILD / "libheadroom.so.0").exists():
        skip(f"no library in {BUILD}")
    sys.path.insert(0, str(ROOT / "python"))
    os.environ.setdefault("HEADROOM_LIBRARY_DIR", str(BUILD))
    import headroom
import headroom.cupy

MIB = 1 << 20
failures = 0


def check(promise, holds):
    global failures
    failures += not holds
    print(f"{'ok' if holds else 'FAILED'}: {promise}", flush=True)


def raises(kind, function, *args, **options):
    try:
        function(*args, **options)
    except kind as error:
        return error
    return None


def in_use():
    gc.collect()
    return headroom.cupy.stats()["bytes_in_use"]


check("a limit above the card is refused", raises(headroom.InvalidArgument, headroom.cupy.install, limit="100TB"))
check("CuPy works after a refused installation", int(cupy.ones(1000).sum()) == 1000)
headroom.cupy.install(limit="512MiB")
check("a second installation is refused", raises(headroom.cupy.AlreadyInstalled, headroom.cupy.install))
before = in_use()
array = cupy.arange(16 * MIB, dtype=cupy.float32)
check("arrays are counted", in_use() == before + 64 * MIB)
check("contents are right", float(array[12345]) == 12345 and bool((array[::1000] == cupy.arange(0, 16 * MIB, 1000, dtype=cupy.float32)).all()))
view = array[100:200]
del array
check("a view keeps the memory", in_use() == before + 64 * MIB and float(view[0]) == 100)
del view
check("the last array frees the memory", in_use() == before)
error = raises(cupy.cuda.memory.OutOfMemoryError, cupy.empty, 600 * MIB, dtype=cupy.uint8)
check("out of memory is CuPy's error, with Headroom's reason", error and isinstance(error.__cause__, headroom.OutOfMemory))
check("the program goes on after it", int(cupy.ones(MIB).sum()) == MIB)
check("an empty array works", cupy.empty(0).sum() == 0)

# Two streams take turns with the same memory. Without waiting for each other, the sums are wrong.
streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
right = True
for round_ in range(200):
    stream = streams[round_ % len(streams)]
    with stream:
        values = cupy.full(32 * MIB, round_ + 1, dtype=cupy.int32)    # 128 MiB of 512
        total = values.sum()
        del values
        right = right and int(total) == 32 * MIB * (round_ + 1)
check("streams that reuse memory wait for each other", right)
many = [cupy.cuda.Stream(non_blocking=True) for _ in range(100)]
right = True
for number, stream in enumerate(many):
    with stream:
        right = right and int(cupy.full(MIB, number, dtype=cupy.int32).sum()) == MIB * number
check("100 streams work", right)
with cupy.cuda.ExternalStream(streams[0].ptr):
    values = cupy.ones(MIB)
    check("an external stream works", int(values.sum()) == MIB)
    del values
check("all memory was freed", in_use() <= before + MIB)
check("free memory is returned to the card", headroom.cupy.trim() > 0)
sys.exit(1 if failures else 0)
