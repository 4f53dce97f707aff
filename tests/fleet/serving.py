"""Shared code of the tests of `headroom metrics`: programs that publish, and the server."""
import os
import re
import select
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from command import COMMAND, run  # noqa: E402

# A training loop without a log directory: it does not record by itself.
TRAIN = [str(Path(COMMAND).parent / "examples" / "profile"), "", "1000000000"]
SAMPLE = re.compile(r'^([a-z_]+)(?:\{(.*)\})? ([0-9.]+)$')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)",?')


def samples(text):
    """(name, labels as a sorted tuple) -> value."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = SAMPLE.match(line).groups()
        key = name, tuple(sorted(LABEL.findall(labels or "")))
        assert key not in found, f"a label set twice: {line}"
        found[key] = float(value)
    return found


class Published(unittest.TestCase):
    """Programs publish in a folder of the test's own, and the server reads there. /dev/shm is looked at too, so programs of others may be listed."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.env = {"XDG_RUNTIME_DIR": str(self.folder)}

    def start(self, *arguments, **extra):
        program = subprocess.Popen([str(a) for a in arguments], env={**os.environ, **self.env, **extra}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (program.kill(), program.wait(), program.stderr.close()))
        return program

    def train(self, **extra):
        """A program that publishes, and whose statistics are there."""
        program = self.start(*TRAIN, HEADROOM_TOP="1", **extra)
        self.wait_for(lambda: f'headroom_device_in_use_bytes{{process="{program.pid}"' in self.printed())
        return program

    def printed(self, *arguments):
        result = run("metrics", *arguments, env=self.env)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def serve(self, where="0"):
        """Starts the server; returns it and its port."""
        server = self.start(COMMAND, "metrics", "--listen", where)
        self.assertTrue(select.select([server.stderr], [], [], 60)[0], "the server says nothing")
        line = server.stderr.readline().decode()
        self.assertRegex(line, r"^headroom: serving http://.*/metrics; Ctrl-C ends it\n$")
        return server, int(re.search(r":(\d+)/metrics", line).group(1))

    def wait_for(self, condition, seconds=60):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = condition()
            if value:
                return value
            time.sleep(0.1)
        self.fail("it never happened")
