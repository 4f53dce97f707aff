#!/usr/bin/env python3
"""Manual pages and shell completion: made from the tables of the commands, complete, and in the languages of their readers."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HEADROOM = os.environ["HEADROOM_COMMAND"]
TOP = """
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_headroom
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def headroom(*arguments):
    return subprocess.run([HEADROOM, *arguments], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})


def commands():
    return [name for name in re.findall(r"^  ([a-z]+) ", headroom("help").stdout, re.M) if name != "help"]


def options_of(command):
    return re.findall(r"^  (--[a-z-]+)", headroom("help", command).stdout.split("\nExamples\n")[0], re.M)


class Man(unittest.TestCase):
    def test_every_option_is_there(self):
        self.assertGreater(len(commands()), 8)
        for command in commands():
            page = headroom("help", "--man", command).stdout
            self.assertIn(f"\nheadroom\\-{command} \\- ", page)
            for option in options_of(command):
                self.assertIn("\n.B " + option.replace("-", "\\-"), page, command)

    def test_the_overview_names_every_command(self):
        page = headroom("help", "--man").stdout
        for command in commands():
            self.assertIn(f"headroom\\-{command} (1)", page)

    @unittest.skipUnless(shutil.which("groff"), "groff is not installed (tools/setup.sh test)")
    def test_groff_has_no_complaint(self):
        for name in ["", *commands()]:
            page = headroom("help", "--man", *([name] if name else [])).stdout
            done = subprocess.run(["groff", "-man", "-ww", "-z", "-Tutf8"], input=page, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)

    def test_an_unknown_command_is_an_error(self):
        done = headroom("help", "--man", "rerport")
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean report?", done.stderr)


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bash = headroom("help", "--completion", "bash").stdout

    def complete(self, *words, folder="."):
        script = self.bash + TOP.format(words=" ".join(f"'{word}'" for word in words))
        done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, cwd=folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash_knows_commands_options_and_values(self):
        self.assertEqual(self.complete("headroom", "re"), ["report", "replay"])
        self.assertIn("--version", self.complete("headroom", "-"))
        for command in commands():
            self.assertEqual(set(self.complete("headroom", command, "--")), set(options_of(command)), command)
        self.assertEqual(self.complete("headroom", "report", "x", "--view", "pe"), ["peak"])
        self.assertEqual(self.complete("headroom", "report", "x", "--show-time", ""), ["yes", "no"])
        self.assertEqual(self.complete("headroom", "plan", "x", "--limit", ""), [])
        self.assertEqual(self.complete("headroom", "help", "dev"), ["devices"])

    def test_bash_completes_files_where_they_belong(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a.hrt").touch()
            Path(folder, "logs").mkdir()
            self.assertEqual(self.complete("headroom", "report", "a", folder=folder), ["a.hrt"])
            self.assertEqual(self.complete("headroom", "report", "a.hrt", "--html", "a", folder=folder), ["a.hrt"])
            self.assertEqual(self.complete("headroom", "run", "--tensorboard", "", folder=folder), ["logs"])
            self.assertEqual(self.complete("headroom", "run", "--limit", "8GB", "--", "python3", "a", folder=folder), ["a.hrt"])
        self.assertIn("python3", self.complete("headroom", "run", "--limit", "8GB", "python"))

    def test_every_offered_value_is_taken(self):
        """The lists in completion.c agree with the commands: a value that is not known is an error that quotes it."""
        found = re.findall(r"^\t(\w+)\)$|^\t\t(--[a-z-]+)\) COMPREPLY=\(\$\(compgen -W '([^']*)'", self.bash, re.M)
        command, checked = "", 0
        with tempfile.TemporaryDirectory() as folder:
            for name, option, words in found:
                command = name or command
                for word in words.split():
                    rest = [] if command == "run" else ["traces/gpt2.csv.gz"]
                    extra = {"--export": ["--out", f"{folder}/{checked}"], "--show-memory": ["--view", "op"], "--show-time": ["--view", "op"]}.get(option, [])
                    arguments = [command, option, word, *extra, *(rest or ["--", "true"])]
                    bad = headroom(*[("bananas" if argument == word else argument) for argument in arguments])
                    self.assertEqual(bad.returncode, 2, arguments)
                    self.assertIn("bananas", bad.stderr)
                    if command != "plan":  # which plays the trace
                        self.assertIn(headroom(*arguments).returncode, (0, 1), arguments)
                    checked += 1
        self.assertGreater(checked, 20)

    def test_the_shells_parse_it(self):
        for shell in ("bash", "zsh", "fish"):
            text = headroom("help", "--completion", shell).stdout
            for command in commands():
                self.assertIn(command, text)
            if shutil.which(shell):
                done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""), shell)

    def test_zsh_offers_as_many_files_as_a_command_takes(self):
        text = headroom("help", "--completion", "zsh").stdout
        begin = text.index("report)")
        report = text[begin:text.index(";;", begin)]
        self.assertIn("'*:file:_files'", report)  # any number of recordings
        self.assertNotIn("'1:file:", report)
        self.assertIn("'1:file:_files'", text)

    def test_an_unknown_shell_is_an_error(self):
        done = headroom("help", "--completion", "tcsh")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn('--completion takes bash, zsh or fish, not "tcsh"', done.stderr)
        self.assertEqual(headroom("help", "--completion").returncode, 2)


if __name__ == "__main__":
    unittest.main()
