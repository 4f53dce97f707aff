"""Files that the command writes: replaced as a whole, never through a link, never blocked by a pipe."""
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import generate
from command import COMMAND, CommandTest, main, run
from test_report import training


def outputs(trace):
    """Every way to make the command write a file: arguments to which the path is appended."""
    return [["report", trace, "--out"], ["report", trace, "--json", "--out"], ["report", trace, "--html"], ["report", trace, "--export", "chrome", "--out"]]


class Outputs(CommandTest):
    def setUp(self):
        super().setUp()
        self.trace = self.file("train.hrt", training().bytes())
        self.place = Path(self.folder.name) / "place"
        self.place.mkdir()
        self.out = self.place / "out"

    def each(self):
        for arguments in outputs(self.trace):
            with self.subTest(arguments=arguments):
                yield arguments
                for path in self.place.iterdir():
                    path.unlink() if not path.is_dir() else path.rmdir()

    def test_a_file_is_replaced_and_private(self):
        for arguments in self.each():
            self.out.write_text("old")
            self.out.chmod(0o644)
            same = self.out.open()
            self.passes(*arguments, self.out)
            self.assertEqual(same.read(), "old")  # a new file replaced it
            same.close()
            self.assertGreater(self.out.stat().st_size, 100)
            self.assertEqual(self.out.stat().st_mode & 0o7777, 0o600)
            self.assertEqual([path.name for path in self.place.iterdir()], ["out"])

    def test_no_link_is_followed(self):
        for arguments in self.each():
            for target in ("victim", "missing", "/dev/null", "loop"):
                (self.place / "victim").write_text("precious")
                self.out.symlink_to(target)
                if target == "loop":
                    (self.place / "loop").symlink_to("out")
                self.fails(2, *arguments, self.out, says=["symbolic link", str(self.out)])
                self.assertEqual((self.place / "victim").read_text(), "precious")
                self.assertFalse((self.place / "missing").exists())
                self.assertTrue(self.out.is_symlink())
                self.out.unlink()

    def test_pipes_and_directories_are_refused_at_once(self):
        for arguments in self.each():
            os.mkfifo(self.out)
            self.fails(2, *arguments, self.out, says=["not a regular file", str(self.out)])
            self.out.unlink()
            self.out.symlink_to(self.place / "pipe")
            os.mkfifo(self.place / "pipe")
            self.fails(2, *arguments, self.out, says="symbolic link")
            self.out.unlink()
            self.out.mkdir()
            self.fails(2, *arguments, self.out, says="EISDIR")

    def test_standard_output_by_name(self):
        for arguments in self.each():
            self.passes(*arguments, self.out)
            self.assertEqual(self.passes(*arguments, "/dev/stdout"), self.out.read_text())
            with (self.place / "redirected").open("wb") as file:
                self.assertEqual(run(*arguments, "/dev/stdout", stdout=file).returncode, 0)
            self.assertEqual((self.place / "redirected").read_bytes(), self.out.read_bytes())
            self.assertTrue(os.path.islink("/dev/stdout"))

    def test_a_killed_command_leaves_the_old_file(self):
        self.out.write_text("old")
        before = self.out.stat().st_ino
        recorded = Path(self.folder.name) / "made.hrt"
        self.passes("replay", self.file("made.csv", generate.trace()), "--no-timing", "--record", recorded)
        for delay in (0.002, 0.01, 0.03, 0.1):
            process = subprocess.Popen([COMMAND, "report", str(recorded), "--export", "chrome", "--out", str(self.out)])
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            process.wait()
            if self.out.stat().st_ino == before:
                self.assertEqual(self.out.read_text(), "old")

    def test_a_full_disk_leaves_the_old_file(self):
        for arguments in self.each():
            self.out.write_text("old")
            # A limit on the size of files simulates a full disk.
            result = subprocess.run(["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", COMMAND, *map(str, arguments), str(self.out)], capture_output=True, timeout=300)
            self.assertEqual(result.returncode, 2, result)
            self.assertIn(b"EFBIG", result.stderr)
            self.assertEqual(self.out.read_text(), "old")
            self.assertEqual([path.name for path in self.place.iterdir()], ["out"])

    def test_a_link_that_comes_and_goes_is_never_written_through(self):
        victim = self.place / "victim"
        victim.write_text("precious")
        done = threading.Event()

        def swap():
            made = self.place / "made"
            while not done.is_set():
                for target in (victim, "/dev/null", None):
                    if target:
                        made.symlink_to(target)
                    else:
                        made.write_text("")
                    made.rename(self.out)

        swapper = threading.Thread(target=swap)
        swapper.start()
        try:
            for _ in range(40):
                for arguments in outputs(self.trace):
                    run(*arguments, self.out)
                    self.assertEqual(victim.read_text(), "precious")
        finally:
            done.set()
            swapper.join()


class Recordings(CommandTest):
    def test_a_recording_is_never_written_over(self):
        trace = self.file("made.csv", generate.trace(events=100))
        out, victim = Path(self.folder.name) / "out.hrt", Path(self.folder.name) / "victim"
        victim.write_text("precious")
        for make in (lambda: out.write_text("old"), lambda: out.symlink_to(victim), lambda: out.symlink_to("missing.hrt"), lambda: os.mkfifo(out)):
            make()
            self.fails(2, "replay", trace, "--no-timing", "--record", out, says=[str(out), "EEXIST"])
            out.unlink()
        self.assertEqual(victim.read_text(), "precious")
        self.assertFalse((Path(self.folder.name) / "missing.hrt").exists())


if __name__ == "__main__":
    main()
