"""The command in general: help, versions, misspelt words, invalid values, output that cannot be written; devices."""
import os
import subprocess

from pathlib import Path

import generate
from command import COMMAND, ROOT, CommandTest, main, run, unpacked

COMMANDS = ["demo", "run", "top", "report", "diff", "replay", "plan", "oom", "devices"]
TRACE = unpacked("resnet.csv")


class Help(CommandTest):
    def test_help_lists_every_command(self):
        for arguments in (["--help"], ["-h"], ["help"], ["help", "help"], ["help", "--help"]):
            text = self.passes(*arguments)
            for command in COMMANDS:
                self.assertIn(command, text)

    def test_every_command_has_help_with_examples(self):
        for command in COMMANDS:
            text = self.passes(command, "--help")
            self.assertEqual(text, self.passes("help", command))
            self.assertIn(f"usage: headroom {command}", text)
            self.assertIn("Examples", text)
            self.assertIn(f"headroom {command} ", text)
            self.assertLess(max(map(len, text.splitlines())), 133)

    def test_help_fits_80_columns(self):
        for command in COMMANDS:
            text = self.passes(command, "--help", env={"COLUMNS": "80"})
            self.assertEqual([line for line in text.splitlines() if len(line) > 80], [])

    def test_version_is_that_of_the_header(self):
        numbers = [line.split()[2] for line in (ROOT / "include/headroom.h").read_text().splitlines() if line.startswith("#define HR_VERSION_")]
        self.assertEqual(self.passes("--version"), f"headroom {'.'.join(numbers)}\n")


class WrongUse(CommandTest):
    def test_no_command(self):
        self.fails(2, says="which command?")

    def test_unknown_command_names_it_and_the_nearest(self):
        self.fails(2, "repaly", says=['unknown command "repaly"', "did you mean replay?"])
        self.fails(2, "help", "devcies", says=['"devcies"', "devices"])
        self.assertNotIn("did you mean", self.fails(2, "zzzzzzzz", says="unknown command").stderr)

    def test_unknown_option_names_it_and_the_nearest(self):
        self.fails(2, "replay", TRACE, "--limt", "1G", says=['unknown option "--limt"', "--limit?", "headroom help replay"])
        self.fails(2, "replay", TRACE, "--find", says=['"--find"', "--find-limit?"])
        self.fails(2, "replay", TRACE, "-x", says='"-x"')
        self.fails(2, "devices", "--jsno", says="--json?")
        self.fails(2, "--verison", says='unknown option "--verison"')

    def test_messages_name_the_directory_and_the_unit(self):
        self.fails(2, "run", "--trace", "/nonexistent/x.hrt", "--", "true", says='cannot make a file in "/nonexistent": ENOENT')
        self.fails(2, "top", "--interval", "0", says='--interval takes a number from 0.1 to 60 s, not "0"')

    def test_control_characters_do_not_reach_the_terminal(self):
        result = self.fails(2, "re\033[31mplay", says="\\x1B[31m")
        self.assertNotIn("\033", result.stderr)

    def test_wrong_values(self):
        cases = [
            (["--limit", "12Q"], ["--limit", '"12Q"']), (["--limit", "-1"], ["negative"]), (["--limit", ""], ["empty"]),
            (["--limit", "99999999999999999999"], ["--limit"]), (["--limit", "0"], ["--limit 0"]), (["--limit"], ["needs a value"]),
            (["--limit=1G", "--limit=2G"], ["given twice"]), (["--json=yes"], ["--json takes no value"]),
            (["--threads", "0"], ["--threads", "1 to 64"]), (["--threads", "two"], ['"two"']), (["--threads", "1000"], ['"1000"']),
            (["--repeat", "0"], ["--repeat"]), (["--repeat", "1.5"], ['"1.5"']), (["--page", "3000"], ["power of two"]),
            (["--page", "128"], ["at least 256"]), (["--device-index", "-1"], ["--device-index"]), (["other.csv"], ["other.csv", "TRACE"]),
            (["--allocator", "bfg"], ["bfg", "bfc", "direct"]), (["--limit", "100"], ["page"]), (["--limit", "100TiB"], ["64 TiB"]),
        ]
        for arguments, says in cases:
            with self.subTest(arguments=arguments):
                self.fails(2, "replay", TRACE, *arguments, says=says)

    def test_missing_operand(self):
        self.fails(2, "replay", says=["TRACE is missing", "headroom help replay"])
        self.fails(2, "devices", "GPU:0", says=["GPU:0", "options only"])

    def test_a_double_dash_ends_the_options(self):
        self.fails(2, "replay", "--", "--json", says="--json: cannot be opened")


class Output(CommandTest):
    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "w") as full:
            for arguments in (["--help"], ["devices"], ["devices", "--json"], ["replay", TRACE, "--json", "--no-timing"],
                              ["replay", TRACE, "--picture", "--no-timing"]):
                with self.subTest(arguments=arguments):
                    self.fails(2, *arguments, stdout=full, says=["cannot write to standard output", "ENOSPC: no space left on device"])

    def test_colours_only_on_a_terminal_that_wants_them(self):
        arguments = ["replay", TRACE, "--picture", "--no-timing"]
        self.assertIn("\033[", self.on_terminal(*arguments))
        self.assertNotIn("\033[", self.on_terminal(*arguments, NO_COLOR="1"))
        self.assertNotIn("\033[", self.on_terminal(*arguments, TERM="dumb"))
        self.assertNotIn("\033[", self.passes(*arguments))

    def test_a_progress_bar_only_on_a_terminal(self):
        trace = self.file("made.csv", generate.trace("random"))
        pass_ns = 100000 * self.json("replay", trace, "--repeat", 2)["ns_per_op"]
        # The measurement may be far too slow on a busy machine, so this runs until the bar is shown, or for a minute.
        self.assertIn("timing", self.on_terminal("replay", trace, "--repeat", int(60e9 / pass_ns) + 2, until="timing"))
        self.passes("replay", trace, "--repeat", int(1.5e9 / pass_ns) + 2)

    def test_the_picture_fits_the_width(self):
        for width in (40, 80, 200):
            text = self.passes("replay", TRACE, "--picture", "--no-timing", env={"COLUMNS": str(width)})
            drawn = [line for line in text.splitlines() if set(line.strip()) & set("█▓▒░") and "in use" not in line]
            self.assertTrue(drawn)
            self.assertLessEqual(max(map(len, drawn if width < 80 else text.splitlines())), width)

    def test_the_list_of_commands_fits_80_columns(self):
        text = self.passes("--help", env={"COLUMNS": "80"})
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_the_picture_can_do_without_unicode(self):
        text = self.passes("replay", TRACE, "--picture", "--no-timing", env={"LC_ALL": "en_US.ISO-8859-1"})
        self.assertTrue(text.isascii())
        self.assertIn("####", text)


class Devices(CommandTest):
    def test_table_has_every_device(self):
        text = self.passes("devices", env={"HEADROOM_EMULATED": "memory=256MiB,devices=2"})
        for name in ("GPU:0", "GPU:1", "CPU:0", "SIM:0", "emulated", "256.0 MiB"):
            self.assertIn(name, text)

    def test_json_has_every_field(self):
        devices = self.json("devices", env={"HEADROOM_EMULATED": "memory=256MiB,page=64KiB"})["devices"]
        self.assertEqual([device["name"] for device in devices], ["GPU:0", "CPU:0", "SIM:0"])
        self.assertEqual(set(devices[0]), {"name", "full_name", "backend", "description", "physical_index", "logical_count", "total_bytes",
                                           "free_bytes", "limit_bytes", "reserved_bytes", "other_bytes", "page_bytes"})
        self.assertEqual((devices[0]["total_bytes"], devices[0]["page_bytes"]), (256 << 20, 64 << 10))

    def test_bad_settings_are_named_and_ignored(self):
        result = run("devices", env={"HEADROOM_EMULATED": "memory=lots", "HEADROOM_THREADS": "few"})
        self.assertEqual(result.returncode, 0)
        self.assertIn("GPU:0", result.stdout)
        self.assertIn("1.0 GiB", result.stdout)
        self.assertEqual(result.stderr.count("\n"), 1)
        for text in ("HEADROOM_EMULATED is ignored", "lots", "HEADROOM_THREADS is ignored"):
            self.assertIn(text, result.stderr)

    def test_the_demo_says_that_its_gpu_is_emulated(self):
        if Path("/dev/nvidiactl").exists():
            self.skipTest("this machine has a card")
        result = run("demo", "--steps", "1", "--out", self.folder.name + "/demo", env={"HEADROOM_CUDA": "1"})
        self.assertRegex(result.stderr, r"^headroom: GPU:0 is an emulated device[^\n]*CUDA: no driver found[^\n]*HEADROOM_REQUIRE_CUDA=1[^\n]*\n$")

    def test_devices_says_once_why_there_is_no_card(self):
        if Path("/dev/nvidiactl").exists():
            self.skipTest("this machine has a card")
        for options in ((), ("--json",)):
            result = run("devices", *options, env={"HEADROOM_CUDA": "1"})
            self.assertEqual((result.stdout.count("no driver found"), result.stderr), (1, ""))

    def test_an_emulated_gpu_can_be_refused(self):
        devices = self.json("devices", env={"HEADROOM_REQUIRE_CUDA": "1", "HEADROOM_CUDA": "0"})["devices"]
        self.assertEqual([device["name"] for device in devices], ["CPU:0", "SIM:0", "EMU:0"])
        self.fails(2, "demo", "--out", self.folder.name, env={"HEADROOM_REQUIRE_CUDA": "1", "HEADROOM_CUDA": "0"},
                   says=['no device "GPU:0"', "HEADROOM_REQUIRE_CUDA", "HEADROOM_CUDA=0"])

    def test_a_limit_for_the_process(self):
        devices = self.json("devices", env={"HEADROOM_LIMIT": "101MiB"})["devices"]
        self.assertEqual(devices[0]["limit_bytes"], 100 << 20)  # 50 pages of 2 MiB
        self.assertEqual(devices[1]["limit_bytes"], devices[1]["total_bytes"])


if __name__ == "__main__":
    main()
