"""Shared code of the tests of the command: running it, and traces for it.

The program under test is $HEADROOM_COMMAND, the first argument of a test that is run by hand, or build/headroom.
"""
import atexit
import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "traces"
CSV_HEADER = "time_us,action,id,bytes,stream\n"
RMM_HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"


def _command():
    if len(sys.argv) > 1 and os.access(sys.argv[1], os.X_OK) and os.path.isfile(sys.argv[1]):
        return os.path.abspath(sys.argv.pop(1))
    return os.environ.get("HEADROOM_COMMAND", str(ROOT / "build" / "headroom"))


COMMAND = _command()


def run(*arguments, stdin=None, env=None, stdout=subprocess.PIPE):
    """Runs the command; the result has returncode, stdout and stderr as text."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    environment.pop("HEADROOM_EMULATED", None)
    environment.update(env or {})
    if isinstance(stdin, str):
        stdin = stdin.encode()
    result = subprocess.run([COMMAND, *map(str, arguments)], input=stdin, stdout=stdout, stderr=subprocess.PIPE, env=environment, timeout=300)
    result.stdout = (result.stdout or b"").decode("utf-8", "replace")
    result.stderr = result.stderr.decode("utf-8", "replace")
    return result


_unpacked = tempfile.TemporaryDirectory()
atexit.register(_unpacked.cleanup)


def unpacked(name):
    """A trace of traces/ without gzip, so that tests of other features do not need zlib."""
    path = Path(_unpacked.name) / name
    if not path.exists():
        path.write_bytes(gzip.decompress((TRACES / (name + ".gz")).read_bytes()))
    return path


def has(library):
    """Whether the command was built with zlib or jansson."""
    probe = {"zlib": gzip.compress((CSV_HEADER + "1,a,0,1,0\n").encode()), "jansson": b'{"device_traces": [[{"action": "alloc", "addr": 1, "size": 1}]]}'}
    return "built without " + library not in run("replay", "-", "--no-timing", stdin=probe[library]).stderr


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, content):
        path = Path(self.folder.name) / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def passes(self, *arguments, **options):
        result = run(*arguments, **options)
        self.assertEqual(result.returncode, 0, f"{arguments}: {result.stderr}")
        self.assertEqual(result.stderr, "")
        return result.stdout

    def json(self, *arguments, **options):
        return json.loads(self.passes(*arguments, "--json", **options))

    def fails(self, status, *arguments, says=(), **options):
        """The command exits with [status], and its message contains every text of [says]."""
        result = run(*arguments, **options)
        self.assertEqual(result.returncode, status, f"{arguments}: {result.stdout}{result.stderr}")
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, result.stderr)
        if status == 2:
            self.assertTrue(result.stderr.startswith("headroom: "), result.stderr)
            self.assertNotIn("\033", result.stderr)
        return result

    def on_terminal(self, *arguments, until=None, status=0, **env):
        """Output of the command on a terminal. With [until], the command is ended when it has written that. It exits with [status]."""
        pid, fd = pty.fork()
        if pid == 0:
            os.environ.update({"TERM": "xterm", "COLUMNS": "80", "LC_ALL": "C.UTF-8"})
            os.environ.pop("NO_COLOR", None)
            os.environ.update(env)
            os.execv(COMMAND, [COMMAND, *map(str, arguments)])
        output = b""
        while True:
            try:
                data = os.read(fd, 65536)
            except OSError:
                break
            if not data:
                break
            output += data
            if until and until.encode() in output:
                os.kill(pid, signal.SIGKILL)
                break
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.assertIn(ended, (status, -signal.SIGKILL) if until else (status,), output)
        os.close(fd)
        return output.decode()


def main():
    unittest.main()
