"""headroom oom: saved reports, valid and invalid. An invalid one ends with status 2 and a message that names the file and the
error."""
import json
import sys
import unittest

from command import ROOT, CommandTest, has, main

sys.path.insert(0, str(ROOT / "tests/oom"))
from schema import validate  # noqa: E402

REPORTS = ROOT / "tests/oom/reports"
TRAINING = REPORTS / "training.json"


@unittest.skipUnless(has("jansson"), "built without jansson")
class Good(CommandTest):
    def test_the_example_in_the_docs_is_what_is_printed(self):
        """To regenerate: build/headroom oom tests/oom/reports/training.json"""
        page = (ROOT / "docs/oom-report.md").read_text()
        example = page.split("```text\n", 1)[1].split("```", 1)[0]
        self.assertEqual(example, self.passes("oom", TRAINING))

    def test_every_report_is_printed_as_it_was_saved(self):
        for path in REPORTS.iterdir():
            self.assertEqual(json.loads(path.read_text())["text"], self.passes("oom", path), path)

    def test_json_is_the_same_report(self):
        for path in REPORTS.iterdir():
            again = self.json("oom", path)
            self.assertEqual(again, json.loads(path.read_text()), path)
            self.assertEqual(validate(again), [])
        first = self.passes("oom", TRAINING, "--json")
        self.assertTrue(first.isascii())
        self.assertEqual(first, self.passes("oom", "-", "--json", stdin=first))

    def test_standard_input(self):
        self.assertEqual(self.passes("oom", "-", stdin=TRAINING.read_bytes()), self.passes("oom", TRAINING))

    def test_keys_may_be_in_any_order_and_more(self):
        report = {"later": [1, 2.5, None], **dict(reversed(json.loads(TRAINING.read_text()).items()))}
        self.assertEqual(self.passes("oom", "-", stdin=json.dumps(report)), report["text"])

    def test_text_cannot_do_anything(self):
        report = {**json.loads(TRAINING.read_text()), "text": "a\033[31m\n |#\033[2J\x7f\u009b|\nb\r\n\nHeading\033: x"}
        self.assertEqual(self.passes("oom", "-", stdin=json.dumps(report)), "a\\x1B[31m\n |#\\x1B[2J\\x7F\\xC2\\x9B|\nb\\x0D\n\nHeading\\x1B: x\n")

    def test_colours_only_on_a_terminal_that_wants_them(self):
        def on_terminal(**env):
            return self.on_terminal("oom", TRAINING, **env)

        coloured = on_terminal()
        for text in ("\033[1;31mOut of memory:\033[0m", "\033[1;36mHeld by op\033[0m", "\033[38;5;39m#", "\033[38;5;240m."):
            self.assertIn(text, coloured)
        self.assertNotIn("\033", on_terminal(NO_COLOR="1"))
        self.assertNotIn("\033", on_terminal(TERM="dumb"))

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "w") as full:
            for arguments in ([], ["--json"]):
                self.fails(2, "oom", TRAINING, *arguments, stdout=full, says=["cannot write to standard output", "ENOSPC: no space left on device"])


class Bad(CommandTest):
    def test_files_that_cannot_be_read(self):
        self.fails(2, "oom", "/nonexistent/report.json", says=["/nonexistent/report.json: cannot be opened: ENOENT: no such file"])
        self.fails(2, "oom", says=["REPORT is missing", "headroom help oom"])

    @unittest.skipUnless(has("jansson"), "built without jansson")
    def test_what_is_no_report(self):
        good = TRAINING.read_text()
        cases = [("", "it is empty"), ("hello", "expected an out-of-memory report as JSON"), ("{}", "no out-of-memory report"),
                 ("\0" * 9, "expected an out-of-memory report as JSON"), ("[" * 100000, "expected an out-of-memory report as JSON"),
                 (good[:5000], "ends in the middle, after 5000 bytes"), (good + "x", "byte"), (good.replace('"id"', '"version"', 1), "byte"),
                 (json.dumps(json.loads(good)["log"]), "the log of a report alone"), ('{"device_traces": [[]]}', "no out-of-memory report"),
                 (good.replace('"version":1', '"version":2', 1), "version 2 of the format, and this program reads up to 1"),
                 (good.replace('"text":"Out', '"test":"Out', 1), "text: is missing"), (good.replace('"log":[', '"log":[\033,'), "\\x1B")]
        for text, says in cases:
            with self.subTest(says=says):
                path = self.file("r.json", text)
                self.fails(2, "oom", path, says=[f"{path}: ", says])
                self.fails(2, "oom", "-", stdin=text, says=["standard input: ", says])

    @unittest.skipUnless(has("jansson"), "built without jansson")
    def test_files_without_end_and_directories(self):
        self.fails(2, "oom", "/dev/zero", says="expected an out-of-memory report as JSON")
        self.fails(2, "oom", self.folder.name, says=[self.folder.name, "EISDIR"])
        self.fails(2, "oom", "-", stdin=b'{"x": "' + b"y" * (257 << 20), says="larger than 256 MiB")

    @unittest.skipUnless(has("jansson"), "built without jansson")
    def test_odd_names_are_quoted(self):
        self.fails(2, "oom", self.file("a b\033.json", "x"), says="a b\\x1B.json")

    @unittest.skipIf(has("jansson"), "built with jansson")
    def test_without_jansson_it_says_so(self):
        self.fails(2, "oom", TRAINING, says="built without jansson")


if __name__ == "__main__":
    main()
