#!/usr/bin/env python3
"""headroom run and headroom top: unchanged programs are recorded and observed, and never fail because of it."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from command import COMMAND, TRACES, run  # noqa: E402
import plain_trace  # noqa: E402

REPLAY = [COMMAND, "replay", str(TRACES / "resnet.csv.gz"), "--no-timing"]
# A program with millions of events: a training loop, without a log directory, so that it does not record by itself.
TRAIN = [str(Path(COMMAND).parent / "examples" / "profile")]
TRAIN_SHARED = [str(Path(COMMAND).parent / "tests" / "profile" / "profile_shared")]


class Folder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = Path(self.temporary.name)
        self.runtime = self.folder / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.env = {"XDG_RUNTIME_DIR": str(self.runtime)}

    def files(self):
        return sorted(p.name for p in self.folder.iterdir() if p.is_file())

    def start(self, *arguments, **extra):
        """A program that runs until it is killed."""
        program = subprocess.Popen([str(a) for a in arguments], env={**os.environ, **self.env, **extra}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (program.kill(), program.wait()))
        return program

    def top(self):
        result = run("top", "--once", "--json", env=self.env)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def wait_for(self, condition, seconds=60):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            value = condition()
            if value:
                return value
            time.sleep(0.1)
        self.fail("it never happened")


class Run(Folder):
    def run_recorded(self, *options, program=None):
        return run("run", *options, "--", *(program or REPLAY), env=self.env)

    def events(self, path):
        result = run("replay", path, "--no-timing", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["allocs"]

    def test_the_programs_exit_status_and_output_are_its_own(self):
        for status in (0, 1, 42):
            result = self.run_recorded(program=["sh", "-c", f"echo said; exit {status}"])
            self.assertEqual((result.returncode, result.stdout), (status, "said\n"))
        result = self.run_recorded(program=["sh", "-c", "kill -9 $$"])
        self.assertEqual(result.returncode, -signal.SIGKILL)
        result = self.run_recorded(program=["printf", "%s|", "--trace", "--help", "--"])
        self.assertEqual(result.stdout, "--trace|--help|--|")

    def test_a_program_is_recorded_without_knowing(self):
        plain = run(*REPLAY[1:], "--json")
        path = self.folder / "t.hrt"
        result = self.run_recorded("--trace", path, program=REPLAY + ["--json"])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["allocs"], json.loads(plain.stdout)["allocs"])
        self.assertGreaterEqual(self.events(path), json.loads(plain.stdout)["allocs"])
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertEqual(list(self.runtime.iterdir()), [])

    def test_compressed_files_are_smaller_and_hold_the_same(self):
        self.run_recorded("--trace", self.folder / "a.hrt")
        result = self.run_recorded("--trace", self.folder / "b.hrt", "--compress")
        self.assertEqual(result.stderr, "")
        self.assertEqual(self.files(), ["a.hrt", "b.hrt.zst"])
        self.assertEqual(self.events(self.folder / "a.hrt"), self.events(self.folder / "b.hrt.zst"))
        self.assertLess((self.folder / "b.hrt.zst").stat().st_size, (self.folder / "a.hrt").stat().st_size)

    def test_a_static_program_records_without_a_log_for_tensorboard(self):
        result = self.run_recorded("--trace", self.folder / "t.hrt", "--tensorboard", self.folder / "logs", program=TRAIN + ["", "5"])
        self.assertEqual(result.returncode, 0)
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertIn("libheadroom_analysis", result.stderr)
        self.assertEqual(self.files(), ["t.hrt"])

    @unittest.skipUnless(Path(TRAIN_SHARED[0]).exists(), "sanitizer builds have no shared library")
    def test_a_recording_is_left_for_tensorboard_too(self):
        result = self.run_recorded("--trace", self.folder / "t%%.hrt", "--steps", "2,4", "--tensorboard", self.folder / "log%dir", program=TRAIN_SHARED + ["", "5"])
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        planes = sorted(str(p.relative_to(self.folder).parent) for p in self.folder.rglob("*.xplane.pb"))
        self.assertEqual(planes, ["log%dir/plugins/profile/t%-step2", "log%dir/plugins/profile/t%-step4"])
        # It equals the export of the same file.
        run("report", self.folder / "t%-step2.hrt", "--export", "xplane", "--out", self.folder / "again")
        (again,) = (self.folder / "again").rglob("*.xplane.pb")
        self.assertEqual(next((self.folder / planes[0]).iterdir()).read_bytes(), again.read_bytes())
        # If the directory cannot be created, an error is printed and the program continues.
        result = self.run_recorded("--trace", self.folder / "u.hrt", "--tensorboard", "/proc/nothing", program=TRAIN_SHARED + ["", "5"])
        self.assertEqual(result.returncode, 0)
        self.assertIn("/proc/nothing", result.stderr)
        self.assertEqual(run("run", "--tensorboard", "logs", "--", "true").returncode, 2)

    def test_a_recording_ends_at_its_limit(self):
        path = self.folder / "t.hrt"
        result = self.run_recorded("--trace", path, "--max-bytes", "1MiB", program=TRAIN + ["", "10000"])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("reached its limit of 1048576 bytes", result.stderr)
        self.assertLessEqual(path.stat().st_size, 1 << 20)
        self.assertIn("ended when its file reached its size limit", run("report", path).stdout)
        self.assertIs(json.loads(run("report", path, "--json").stdout)["trace"]["limited"], True)
        for wrong in ("1", "much", "-5"):
            result = run("run", "--trace", self.folder / "u.hrt", "--max-bytes", wrong, "--", "true")
            self.assertEqual(result.returncode, 2)
            self.assertTrue(result.stderr.startswith(f'headroom: run: --max-bytes: "{wrong}" is not a size'), result.stderr)
        self.assertEqual(run("run", "--max-bytes", "1GiB", "--", "true").returncode, 2)  # without --trace

    def test_a_recording_has_call_stacks_if_asked(self):
        path = self.folder / "t.hrt"
        result = self.run_recorded("--trace", path, "--stacks", "4", program=TRAIN + ["", "3"])
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        rows = json.loads(run("report", path, "--view", "tensors", "--json").stdout)["reports"][0]["tensors"]["rows"]
        self.assertTrue(rows)
        for row in rows:
            self.assertTrue(1 <= len(row["stack"]) <= 4, row)
        self.assertIn("profile", rows[0]["stack"][0]["module"])
        # A reader that knows nothing of stacks finds the same allocations.
        events = plain_trace.Trace(path).events
        self.assertEqual(sum(event.kind == plain_trace.ALLOC for event in events), json.loads(run("report", path, "--json").stdout)["trace"]["allocations"])
        for wrong in ("129", "deep", "-1", ""):
            result = run("run", "--trace", self.folder / "u.hrt", "--stacks", wrong, "--", "true")
            self.assertEqual(result.returncode, 2)
            self.assertIn("--stacks", result.stderr)
        self.assertEqual(run("run", "--stacks", "4", "--", "true").returncode, 2)  # without --trace
        # A wrong value in the environment is reported, and the recording has no stacks.
        self.env["HEADROOM_STACKS"] = "deep"
        result = self.run_recorded("--trace", self.folder / "v.hrt", program=TRAIN + ["", "3"])
        self.assertEqual(result.returncode, 0)
        self.assertIn("HEADROOM_STACKS", result.stderr)
        self.assertNotIn("stack", run("report", self.folder / "v.hrt", "--view", "tensors", "--json").stdout)

    def test_names_have_numbers_in_them(self):
        for _ in range(3):
            self.run_recorded("--trace", self.folder / "t%n.hrt")
        self.assertEqual(self.files(), ["t1.hrt", "t2.hrt", "t3.hrt"])
        for path in self.folder.glob("*.hrt"):
            path.unlink()
        for _ in range(2):
            self.run_recorded("--trace", self.folder / "out-%n.hrt", "--steps", "1,3-4", program=TRAIN + ["", "5"])
        self.assertEqual(self.files(), ["out-1-step1.hrt", "out-1-step3.hrt", "out-2-step1.hrt", "out-2-step3.hrt"])
        self.run_recorded("--trace", self.folder / "out-%n.hrt", "--steps", "2", "--compress", program=TRAIN + ["", "5"])
        self.run_recorded("--trace", self.folder / "out-%n.hrt", program=TRAIN + ["", "5"])
        self.assertEqual(self.files()[-2:], ["out-3-step2.hrt.zst", "out-4.hrt"])
        (self.folder / "dot.1").touch()
        (self.folder / "dot.10").touch()
        self.run_recorded("--trace", self.folder / "dot.%n", program=TRAIN + ["", "5"])
        self.assertTrue((self.folder / "dot.2").exists())
        self.run_recorded("--trace", self.folder / "100%%-%p.hrt")
        self.assertRegex(self.files()[0], r"^100%-[0-9]+\.hrt$")

    def test_nothing_is_written_over(self):
        path = self.folder / "t.hrt"
        path.write_text("precious")
        result = self.run_recorded("--trace", path)
        self.assertEqual(result.returncode, 2)
        self.assertIn("exists already", result.stderr)
        self.env["HEADROOM_TRACE"] = str(path)
        self.assertEqual(run(*REPLAY[1:], env=self.env).returncode, 0)
        self.assertEqual(path.read_text(), "precious")
        self.assertEqual(self.files(), ["t-2.hrt", "t.hrt"])

    def test_wrong_use_is_told_and_the_program_not_started(self):
        marker = self.folder / "started"
        for options in (["--steps", "1"], ["--compress"], ["--trace", ""], ["--trace", "x", "--steps", "0"], ["--trace", "x", "--steps", "a"], ["--tracer", "x"],
                        ["--trace", "bad%d.hrt"], ["--trace", "x%"], ["--trace", "/nonexistent/d/x.hrt"], ["--trace", "/dev/null/x.hrt"], ["--trace", "/dev/null/x-%n.hrt", "--steps", "1"],
                        ["--trace", f"{self.folder}/", "--steps", "1"], ["--trace", "x" * 5000]):
            result = self.run_recorded(*options, program=["touch", str(marker)])
            self.assertEqual(result.returncode, 2, options)
            self.assertIn("headroom:", result.stderr)
        self.assertFalse(marker.exists())
        self.runtime.chmod(0o500)
        if not os.access(self.runtime, os.W_OK):  # root may write anywhere
            self.assertEqual(self.run_recorded("--trace", self.runtime / "x.hrt", program=["true"]).returncode, 2)
        self.runtime.chmod(0o700)
        self.assertEqual(self.run_recorded("--trace", self.folder / "%p-%n.hrt", program=["true"]).returncode, 0)
        self.assertEqual(run("run").returncode, 2)
        self.assertEqual(self.run_recorded(program=["/nonexistent/program"]).returncode, 127)
        self.assertEqual(self.run_recorded(program=["/"]).returncode, 126)

    def test_a_recording_that_cannot_be_does_not_stop_the_program(self):
        for variables, word in (({"HEADROOM_TRACE": "/proc/nothing/t.hrt"}, "HEADROOM_TRACE"),
                                ({"HEADROOM_TRACE": "/dev/full/t.hrt"}, "HEADROOM_TRACE"),
                                ({"HEADROOM_TRACE": str(self.folder / "%x.hrt")}, "after %"),
                                ({"HEADROOM_TRACE": str(self.folder / "t.hrt"), "HEADROOM_TRACE_STEPS": "x"}, "steps"),
                                ({"HEADROOM_TOP": "1", "XDG_RUNTIME_DIR": "/proc/nothing"}, "HEADROOM_TOP")):
            result = run(*REPLAY[1:], env={**self.env, **variables})
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(word, result.stderr)
            self.assertIn("continues", result.stderr)
        self.assertEqual(self.files(), [])

    def test_a_program_that_records_by_itself_does_so_when_it_is_recorded(self):
        path = self.folder / "t.hrt"
        result = self.run_recorded("--trace", path, program=[str(Path(COMMAND).parent / "examples" / "profile_views")])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"^headroom: HEADROOM_TRACE: the recording ends here[^\n]*\n$")
        self.assertEqual(run("report", path).returncode, 0)
        self.assertEqual(self.files(), ["t.hrt"])

    def test_chosen_steps_have_files_of_their_own(self):
        result = self.run_recorded("--trace", self.folder / "t.hrt", "--steps", "2,4-6", program=TRAIN + ["", "9"])
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.files(), ["t-step2.hrt", "t-step4.hrt"])
        self.assertEqual(self.events(self.folder / "t-step2.hrt"), 16)
        self.assertEqual(self.events(self.folder / "t-step4.hrt"), 48)

    def test_steps_that_do_not_occur_are_reported(self):
        for steps, missed, files in (("99", "99", []), ("2,10,100-103", "10,100-103", ["t-step2.hrt"])):
            result = self.run_recorded("--trace", self.folder / "t.hrt", "--steps", steps, program=TRAIN + ["", "3"])
            self.assertEqual(result.returncode, 0)
            self.assertRegex(result.stderr, rf"^headroom: [^\n]*steps {missed} did not occur; the program had 3 steps\n$")
            self.assertEqual(self.files(), files)

    def test_a_program_that_takes_the_option_records_the_steps_it_names(self):
        logs = self.folder / "logs"
        result = run("run", "--", *TRAIN, "--profile_options=profile_steps=1,3;compress=1", logs, "5", env=self.env)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(len(list(logs.glob("profile-*-step[13].hrt.zst"))), 2)
        result = run("run", "--", *TRAIN, "--profile_options=profile_steps=1,10,100", logs, "12", env=self.env)
        self.assertEqual((result.returncode, result.stderr), (0, "steps 100 did not occur\n"))
        result = run("run", "--", *TRAIN, "--profile_options=steps=1", logs, env=self.env)
        self.assertEqual(result.returncode, 1)
        self.assertIn("unknown setting", result.stderr)

    def test_each_rank_of_a_job_has_a_file_of_its_own(self):
        for rank in range(2):
            result = run("run", "--trace", self.folder / "t.hrt", "--", *TRAIN, "", "5", env={**self.env, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)})
            self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.files(), ["t-rank0.hrt", "t-rank1.hrt"])
        trace = json.loads(run("report", self.folder / "t-rank1.hrt", "--json").stdout)["trace"]
        self.assertEqual({key: trace["rank"][key] for key in ("number", "count", "local")}, {"number": 1, "count": 2, "local": 1})
        again = run("run", "--trace", self.folder / "t.hrt", "--", "true", env={**self.env, "RANK": "1", "WORLD_SIZE": "2"})
        self.assertEqual(again.returncode, 2)
        self.assertIn("t-rank1.hrt", again.stderr)
        # The same through a launcher below `headroom run`, whose children have the ranks.
        launcher = 'for r in 0 1; do PMI_RANK=$r PMI_SIZE=2 "$@" & done; wait'
        result = run("run", "--trace", self.folder / "r%r.hrt", "--", "bash", "-c", launcher, "-", *TRAIN, "", "5", env=self.env)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.files(), ["r0.hrt", "r1.hrt", "t-rank0.hrt", "t-rank1.hrt"])

    def test_a_killed_program_leaves_a_file_that_can_be_read(self):
        path = self.folder / "t.hrt"
        program = self.start(COMMAND, "run", "--trace", path, "--", *TRAIN, "", "100000000")
        self.wait_for(lambda: path.exists() and path.stat().st_size > 8 << 20)
        program.kill()
        program.wait()
        self.assertGreater(self.events(path), 1000)

    def test_a_small_disk_that_fills_up_does_not_stop_the_program(self):
        disk = self.folder / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", disk], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("no right to mount a small disk; the limit on file sizes in test_profiler stands in for it")
        self.addCleanup(lambda: subprocess.run(["umount", disk], check=True))
        result = self.run_recorded("--trace", disk / "t.hrt", program=TRAIN + ["", "30000"])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("events are missing", result.stderr)
        self.assertGreater(self.events(disk / "t.hrt"), 1000)


class Top(Folder):
    def setUp(self):
        super().setUp()
        if self.top()["programs"]:
            self.skipTest("programs of others show themselves in /dev/shm")

    def loop(self, **extra):
        return self.start(*TRAIN, "", "1000000000", HEADROOM_TOP="1", **extra)

    def test_two_programs_are_shown_each_with_its_own_numbers(self):
        first, second = self.loop(), self.loop()
        look = self.wait_for(lambda: (lambda t: t if {first.pid, second.pid} <= {p["process"] for p in t["programs"] if p["devices"]} else None)(self.top()))
        for program in look["programs"]:
            device = program["devices"][0]
            self.assertEqual(program["program"], "profile")
            self.assertEqual(device["name"], "CPU:0")
            self.assertGreater(device["peak_bytes_in_use"], 0)
            self.assertLessEqual(device["bytes_in_use"], device["peak_bytes_in_use"])
            self.assertLessEqual(len(device["samples"]), 64)
        table = run("top", "--once", env={**self.env, "COLUMNS": "140"})
        self.assertIn(str(first.pid), table.stdout)
        self.assertIn(str(second.pid), table.stdout)
        self.assertTrue(all(len(line) <= 140 for line in table.stdout.splitlines()))
        for name in self.runtime.iterdir():
            self.assertEqual(name.stat().st_mode & 0o777, 0o600)

    def test_a_killed_program_disappears_and_its_file_with_the_next_look(self):
        program = self.loop()
        self.wait_for(lambda: self.top()["programs"])
        program.kill()
        program.wait()
        self.assertEqual(self.top()["programs"], [])
        self.wait_for(lambda: self.top() and not list(self.runtime.iterdir()))

    def test_a_program_that_ends_takes_its_file_away(self):
        self.assertEqual(run(*REPLAY[1:], env={**self.env, "HEADROOM_TOP": "1"}).returncode, 0)
        self.assertEqual(list(self.runtime.iterdir()), [])

    def test_odd_files_do_not_disturb_it(self):
        pid = os.getpid()
        for name, content in ((f"headroom-top-{pid}", b"\xff" * 9000), ("headroom-top-x", b""), ("headroom-top-0", b""), (f"headroom-top-{pid}0000000000", b""), ("headroom-top-", b"")):
            (self.runtime / name).write_bytes(content)
        self.assertEqual(self.top()["programs"], [])
        self.assertEqual(len(list(self.runtime.iterdir())), 5)
        self.assertIn("No program publishes its statistics", run("top", "--once", env=self.env).stdout)

    def test_a_table_fits_the_terminal(self):
        program = self.loop()
        self.wait_for(lambda: any(p["devices"] for p in self.top()["programs"]))
        for width, wanted, missing in ((200, "last 16 s", "-----"), (100, "last 2 s", "last 16"), (89, "allocs/s", "last"), (80, "refused", "allocs/s"), (60, "full", "limit"), (40, "program", "device")):
            lines = run("top", "--once", env={**self.env, "COLUMNS": str(width)}).stdout.splitlines()
            self.assertEqual(len(lines), 2)
            self.assertTrue(all(len(line) <= width for line in lines), (width, lines))
            self.assertIn(wanted, lines[0])
            self.assertNotIn(missing, lines[0])
            self.assertIn("in use", lines[0])
            self.assertIn(str(program.pid), lines[1])

    def test_on_a_small_terminal_no_line_wraps_and_nothing_scrolls(self):
        programs = [self.loop(), self.loop()]
        self.wait_for(lambda: sum(len(p["devices"]) for p in self.top()["programs"]) >= len(programs))
        for rows, columns in ((5, 60), (8, 30)):
            output = self.watch(rows, columns, COLUMNS="").decode()
            frames = re.sub(r"\x1b\[[0-9;?]*[a-zA-GI-Z]", "", output).split("\x1b[H")[1:-1]
            self.assertTrue(frames)
            for frame in frames:
                lines = frame.replace("\r", "").split("\n")
                self.assertLessEqual(len(lines), rows, frame)
                self.assertTrue(all(len(line) < columns for line in lines), (columns, lines))
            self.assertIn("... and 2 more" if rows == 5 else str(programs[1].pid), frames[-1])

    def watch(self, rows, columns, **extra):
        """Output of `headroom top` on a terminal of that size, until q; size 0 means unknown."""
        import fcntl
        import pty
        import struct
        import termios
        child, terminal = pty.fork()
        if child == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.environ.update(self.env, TERM="xterm", **extra)
            os.execv(COMMAND, [COMMAND, "top", "--interval", "0.2"])
        output = b""
        while output.count(b"\x1b[H") < 4:
            output += os.read(terminal, 65536)
        os.write(terminal, b"q")
        try:
            while True:
                piece = os.read(terminal, 65536)
                if not piece:
                    break
                output += piece
        except OSError:
            pass
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        os.close(terminal)
        return output

    def test_on_a_terminal_it_refreshes_in_place_until_q(self):
        program = self.loop()
        self.wait_for(lambda: self.top()["programs"])
        output = self.watch(0, 0, COLUMNS="120")
        self.assertIn(str(program.pid).encode(), output)
        self.assertTrue(output.rstrip().endswith(b"\x1b[?1049l"), output[-40:])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + ["-v"] + sys.argv[1:])
