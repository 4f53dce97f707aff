#!/usr/bin/env python3
"""Recorded call stacks have the calls of Python: with every interpreter that is installed, on threads, at the end of a program, with and without the interpreter's
lock."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from environment import BUILD, COMMAND, ROOT, environment

OLDEST = (3, 9)
BEGIN = """
import ctypes, sys
from ctypes import byref, c_size_t, c_uint64, c_void_p
def load(kind):
    global library, allocator
    library, allocator = kind(PATH, mode=ctypes.RTLD_GLOBAL), c_uint64()
    assert library.hr_allocator_get_default(b"GPU:0", byref(allocator)) == 0
def allocate(size):
    block = c_void_p()
    assert library.hr_alloc_bytes(allocator, c_size_t(size), byref(block)) == 0
    return block
"""
NATIVE = """
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
int hr_alloc_bytes(uint64_t allocator, size_t bytes, void **out);
static uint64_t allocator;
static void *run(void *size)
{
	void *block;
	return (void *)(intptr_t)hr_alloc_bytes(allocator, (size_t)size, &block);
}
/* On a thread that Python does not know, while the calling thread may hold the interpreter's lock. */
long allocate_natively(uint64_t from, size_t size)
{
	pthread_t thread;
	void *status;
	allocator = from;
	pthread_create(&thread, NULL, run, (void *)size);
	pthread_join(thread, &status);
	return (long)status;
}
"""


def interpreters():
    """One of each version: those in PATH, and those of pyenv."""
    found = {}
    names = [sys.executable] + [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], 14)] + sorted(map(str, (Path.home() / ".pyenv/versions").glob("3.*/bin/python")))
    for name in filter(None, names):
        result = subprocess.run([name, "-c", "import ctypes, sys; print(sys.version_info[:2])"], capture_output=True, text=True)
        version = tuple(map(int, result.stdout.strip("()\n").split(", "))) if result.returncode == 0 else (0, 0)
        if version >= OLDEST:
            found.setdefault(version, name)
    return found


class Stacks(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.trace = self.folder / "out.hrt"

    def stacks(self, program, depth=16, python=sys.executable, **changes):
        """Runs the program; the frames of each block, by its size."""
        script = self.folder / "model.py"
        script.write_text(BEGIN.replace("PATH", repr(str(BUILD / "libheadroom.so.0"))) + textwrap.dedent(program))
        self.trace.unlink(missing_ok=True)
        env = environment(HEADROOM_TRACE=str(self.trace), HEADROOM_STACKS=str(depth), **changes)
        result = subprocess.run([python, script], env=env, capture_output=True, text=True, timeout=300)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr[-4000:])
        report = subprocess.run([COMMAND, "report", self.trace, "--device", "GPU:0", "--view", "tensors", "--json"], capture_output=True, text=True, check=True).stdout
        self.lines = script.read_text().splitlines()
        return {row["bytes"]: row.get("stack", []) for row in json.loads(report)["reports"][0]["tensors"]["rows"]}

    def python_frames(self, stack):
        """The functions of Python, innermost first, with the text of their line; after those of libraries."""
        names = [frame.get("file", "").endswith(".py") for frame in stack]
        self.assertEqual(names, sorted(names), stack)
        return [(frame["function"].split(".")[-1], self.lines[frame["line"] - 1].strip()) for frame in stack if frame.get("file", "").endswith("model.py")]

    def test_each_version_of_python_shows_functions_and_lines(self):
        for version, python in interpreters().items():
            with self.subTest(version=version):
                stacks = self.stacks("""
                    import headroom, threading, atexit
                    load(ctypes.CDLL)
                    class Net:
                        def forward(self, size):
                            return allocate(size)
                    def train():
                        Net().forward(1 << 20)
                    train()
                    thread = threading.Thread(target=lambda: Net().forward(2 << 20))
                    thread.start()
                    thread.join()
                    atexit.register(train)
                    class Late:
                        def __del__(self):
                            library.hr_alloc_bytes(allocator, c_size_t(3 << 20), byref(c_void_p()))
                    late = Late()
                    """, python=python)
                forward = [("allocate", "assert library.hr_alloc_bytes(allocator, c_size_t(size), byref(block)) == 0"), ("forward", "return allocate(size)")]
                self.assertEqual(self.python_frames(stacks[1 << 20])[:3], [*forward, ("train", "Net().forward(1 << 20)")])
                self.assertEqual(self.python_frames(stacks[2 << 20]), [*forward, ("<lambda>", "thread = threading.Thread(target=lambda: Net().forward(2 << 20))")])
                self.assertIn(3 << 20, stacks)
                if version >= (3, 11):
                    self.assertIn("Net.forward", [frame.get("function") for frame in stacks[1 << 20]])
                for frame in stacks[1 << 20]:
                    self.assertNotIn("PyEval", frame.get("function", ""))
                    self.assertNotIn("/headroom/", frame.get("file", ""))

    def test_what_runs_without_python_has_the_functions_of_libraries_alone(self):
        source, native = self.folder / "native.c", self.folder / "libnative.so"
        source.write_text(NATIVE)
        subprocess.run([os.environ.get("CC") or "cc", "-shared", "-fPIC", "-pthread", source, "-o", native], check=True)
        for kind in ("CDLL", "PyDLL"):  # PyDLL keeps the interpreter's lock during calls
            stacks = self.stacks(f"""
                import headroom
                load(ctypes.CDLL)
                assert ctypes.{kind}({str(native)!r}).allocate_natively(allocator, c_size_t(1 << 20)) == 0
                """)
            self.assertTrue(stacks[1 << 20])
            self.assertEqual(self.python_frames(stacks[1 << 20]), [])

    def test_a_program_without_the_package_has_python_where_it_holds_the_lock(self):
        program = """
            load(ctypes.{})
            allocate(1 << 20)
            """
        held, released = self.stacks(program.format("PyDLL"))[1 << 20], self.stacks(program.format("CDLL"))[1 << 20]
        self.assertEqual([name for name, _ in self.python_frames(held)], ["allocate", "<module>"])
        self.assertEqual(self.python_frames(released), [])
        self.assertTrue(released)

    def test_the_depth_is_shared_by_both_kinds(self):
        for depth in (1, 2, 8, 128):
            stack = self.stacks("""
                import headroom
                load(ctypes.CDLL)
                def deep(levels):
                    return deep(levels - 1) if levels else allocate(1 << 20)
                deep(200)
                """, depth)[1 << 20]
            self.assertEqual(len(stack), depth)
            frames = [name for name, _ in self.python_frames(stack)]
            self.assertGreaterEqual(len(frames), depth // 2)
            self.assertEqual(frames, ["allocate", *["deep"] * 200][:len(frames)])

    def test_threads_that_run_and_allocate_get_on(self):
        stacks = self.stacks("""
            import headroom, threading
            load(ctypes.CDLL)
            def work(number):
                for _ in range(300):
                    library.hr_free(allocator, allocate(4096 * number), 0)
                    sum(range(1000))
                allocate((1 << 20) + 4096 * number)
            threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            """)
        for number in range(1, 5):
            self.assertEqual([name for name, _ in self.python_frames(stacks[(1 << 20) + 4096 * number])], ["allocate", "work"])

    def test_exports_have_them(self):
        self.stacks("""
            import headroom
            load(ctypes.CDLL)
            def train():
                return allocate(1 << 20)
            train()
            """)
        for kind in ("memory_viz", "pprof"):
            out = self.folder / kind
            subprocess.run([COMMAND, "report", self.trace, "--export", kind, "--out", out], check=True, capture_output=True)
            data = out.read_bytes()
            for text in (b"train", b"model.py"):
                self.assertIn(text, data, kind)
        peak = subprocess.run([COMMAND, "report", self.trace, "--view", "peak", "--stacks"], check=True, capture_output=True, text=True).stdout
        self.assertRegex(peak, r"train \(.*model.py:\d+\)")


if __name__ == "__main__":
    unittest.main()
