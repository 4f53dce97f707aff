"""headroom oom: saved reports, valid and invalid. An invalid one ends with status 2 and a message that names the file and the
error."""
import json
import sys
import unittest

from command import ROOT, CommandTest, has, main

sys.path.insert(0, str(ROOT / "tests/oom"))
from schema import validate  # noqa: E402

CORPUS = ROOT / "fuzz/corpus/oom_report"
TRAINING = CORPUS / "training"


@unittest.skipUnless(has("jansson"), "built without jansson")
class Good(CommandTest):
    def test_the_example_in_the_docs_is_what_is_drawn(self):
        """To regenerate: build/headroom oom fuzz/corpus/oom_report/training --width 100"""
        page = (ROOT / "docs/oom-report.md").read_text()
        example = page.split("```text\n", 1)[1].split("```", 1)[0]
        self.assertEqual(example, self.passes("oom", TRAINING, "--width", 100))

    def test_without_a_terminal_it_is_100_columns_of_plain_text(self):
        text = self.passes("oom", TRAINING, env={"COLUMNS": ""})
        self.assertEqual(text, self.passes("oom", TRAINING, "--width", 100))
        self.assertNotIn("\033", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 100)

    def test_maps_fit_the_width(self):
        for width, arguments, env in ((60, [], {"COLUMNS": "60"}), (150, [], {"COLUMNS": "150"}), (1000, ["--width=1000"], {"COLUMNS": "60"})):
            text = self.passes("oom", TRAINING, *arguments, env=env)
            self.assertEqual({len(line) for line in text.splitlines() if line.startswith(" |")}, {width - 1})

    def test_json_is_the_same_report(self):
        for name in ("training", "nothing", "names"):
            again = self.json("oom", CORPUS / name)
            self.assertEqual(again, json.loads((CORPUS / name).read_text()), name)
            self.assertEqual(validate(again), [])
        first = self.passes("oom", TRAINING, "--json")
        self.assertEqual(first, self.passes("oom", "-", "--json", stdin=first))

    def test_standard_input(self):
        self.assertEqual(self.passes("oom", "-", stdin=TRAINING.read_bytes()), self.passes("oom", TRAINING))

    def test_members_may_be_in_any_order_and_more(self):
        self.assertIn("Out of memory", self.passes("oom", CORPUS / "unknown_members"))

    def test_an_older_report_logged_frees_too(self):
        older = json.loads((CORPUS / "unknown_members").read_text())["allocator"]["oom"]
        self.assertNotIn("allocation_log_allocations_only", older)
        self.assertIs(self.json("oom", CORPUS / "unknown_members")["allocator"]["oom"]["allocation_log_allocations_only"], False)

    def test_an_older_report_knows_no_step(self):
        self.assertNotIn("step_peak_bytes", json.loads((CORPUS / "unknown_members").read_text())["verdict"])
        self.assertEqual(self.json("oom", CORPUS / "unknown_members")["verdict"]["step_peak_bytes"], 0)

    def test_the_largest_numbers_are_drawn(self):
        text = self.passes("oom", CORPUS / "edges")
        self.assertIn("8.0 EiB", text)
        self.assertIn("\\x1B[31m", text)

    def test_colours_only_on_a_terminal_that_wants_them(self):
        def on_terminal(**env):
            return self.on_terminal("oom", CORPUS / "names", **env)

        coloured = on_terminal()
        self.assertIn("\033[", coloured)
        self.assertNotIn("\033[2J", coloured)
        self.assertNotIn("\033", on_terminal(NO_COLOR="1"))
        self.assertNotIn("\033", on_terminal(TERM="dumb"))

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "w") as full:
            for arguments in ([], ["--json"]):
                self.fails(2, "oom", TRAINING, *arguments, stdout=full, says=["cannot write to standard output", "ENOSPC: no space left on device"])


class Bad(CommandTest):
    def test_files_that_cannot_be_read(self):
        self.fails(2, "oom", "/nonexistent/report.json", says=["/nonexistent/report.json: cannot be opened: ENOENT: no such file"])
        self.fails(2, "oom", self.folder.name, says=[self.folder.name, "is a directory"])
        self.fails(2, "oom", says=["REPORT is missing", "headroom help oom"])

    def test_widths_that_are_none(self):
        for width in ("39", "1001", "wide", "", "-5"):
            self.fails(2, "oom", TRAINING, f"--width={width}", says="--width takes a number from 40 to 1000")

    @unittest.skipUnless(has("jansson"), "built without jansson")
    def test_what_is_no_report(self):
        good = TRAINING.read_text()
        cases = [("", "it is empty"), ("hello", 'expected an out-of-memory report as JSON'), ("{}", "no out-of-memory report"),
                 (good[:5000], "ends in the middle, after 5000 bytes"), (good + "x", 'expected the end of the file, found "x"'),
                 (json.dumps(json.loads(good)["log"]), "the log of a report alone"), ('{"device_traces": [[]]}', "no out-of-memory report"),
                 (good.replace('"version":1', '"version":2', 1), "version 2 of the format, and this program reads up to 1"),
                 (good.replace('"sequence":1', '"sequence":"one"', 1), "sequence: expected a whole number"),
                 (good.replace('"names":', '"mames":', 1), "holders.op.names: is missing")]
        for text, says in cases:
            with self.subTest(says=says):
                path = self.file("r.json", text)
                self.fails(2, "oom", path, says=[f"{path}: ", says])
                self.fails(2, "oom", "-", stdin=text, says=["standard input: ", says])

    @unittest.skipUnless(has("jansson"), "built without jansson")
    def test_files_without_end(self):
        self.fails(2, "oom", "/dev/zero", says="larger than 256 MiB")

    @unittest.skipUnless(has("jansson"), "built without jansson")
    def test_odd_names_are_quoted(self):
        self.fails(2, "oom", self.file("a b\033.json", "x"), says="a b\\x1B.json")

    @unittest.skipIf(has("jansson"), "built with jansson")
    def test_without_jansson_it_says_so(self):
        self.fails(2, "oom", TRAINING, says="built without jansson")


if __name__ == "__main__":
    main()
