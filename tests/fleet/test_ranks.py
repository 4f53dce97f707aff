#!/usr/bin/env python3
"""headroom report of several traces: the ranks of a job as text, JSON and a page; and what cannot be read together."""
import html.parser
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from command import COMMAND, TRACES, CommandTest, run  # noqa: E402

GPT = str(Path(COMMAND).parent / "examples" / "gpt")


class Tags(html.parser.HTMLParser):
    """Counts elements, and finds an end without a begin in the SVGs."""
    def __init__(self):
        super().__init__()
        self.counts = {}

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1


class Job(CommandTest):
    @classmethod
    def setUpClass(cls):
        cls.recordings = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.recordings.cleanup)
        cls.folder_of_job = Path(cls.recordings.name)
        programs = [subprocess.Popen([COMMAND, "run", "--trace", cls.folder_of_job / "t.hrt", "--", GPT], stdout=subprocess.DEVNULL,
                                     env={**os.environ, "HEADROOM_RANK": f"{rank}/3"}) for rank in (0, 2)]
        for program in programs:
            assert program.wait() == 0
        cls.traces = sorted(cls.folder_of_job.iterdir())

    def test_a_row_for_each_rank(self):
        self.assertEqual([path.name for path in self.traces], ["t-rank0.hrt", "t-rank2.hrt"])
        report = self.json("report", *reversed(self.traces))
        self.assertEqual((report["rank_count"], report["read"], report["hosts"]), (3, 2, 1))
        rows = report["ranks"]["rows"]
        self.assertEqual([row["rank"] for row in rows], [0, 2])
        for row, path in zip(rows, self.traces):
            alone = self.json("report", path)["trace"]
            device = max((d for d in alone["devices"] if not d["name"].endswith(" host memory")), key=lambda d: d["peak_bytes"])
            self.assertEqual((row["peak_bytes"], row["device"], row["steps"], row["process"]), (device["peak_bytes"], device["name"], alone["steps"], alone["process"]))
            self.assertEqual(row["host"], alone["rank"]["host"])
            self.assertGreater(row["steps"], 0)
            self.assertGreater(row["out_bytes"], 0)  # it trains with little memory
            self.assertTrue(row["complete"])
        self.assertEqual(report["highest_peak_bytes"], max(row["peak_bytes"] for row in rows))
        text = self.passes("report", *self.traces)
        self.assertIn("2 of 3 ranks on 1 host", text)
        self.assertIn("Missing: rank 1 of 3", text)
        self.assertIn("Highest peak: rank", text)
        out = self.file("out.txt", "")
        self.passes("report", *self.traces, "--out", out)
        self.assertIn("2 of 3 ranks", out.read_text())

    def test_the_page_has_a_lane_for_each_rank(self):
        page = Path(self.folder.name) / "p.html"
        self.assertEqual(self.passes("report", *self.traces, "--html", page), "")
        text = page.read_text()
        tags = Tags()
        tags.feed(text)
        self.assertEqual(tags.counts["svg"], 2)
        self.assertEqual(tags.counts["tr"], 3)
        self.assertNotIn("script", tags.counts)
        self.assertIn('id="rank-2"', text)
        # Names of the program and paths are text, not markup.
        hostile = Path(self.folder.name) / "<img src=x>&.hrt"
        hostile.write_bytes(self.traces[0].read_bytes())
        self.passes("report", hostile, self.traces[1], "--html", page)
        tags = Tags()
        tags.feed(page.read_text())
        self.assertNotIn("img", tags.counts)
        self.assertIn("&lt;img src=x&gt;&amp;.hrt", page.read_text())

    def test_a_process_without_a_rank_is_left_out_with_a_word(self):
        launcher = Path(self.folder.name) / "launcher.hrt"
        run("run", "--trace", launcher, "--", GPT)
        result = run("report", *self.traces, launcher, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["read"], 2)
        self.assertEqual(result.stderr, f"headroom: report: {launcher} is of a process without a rank, such as a launcher; it is left out\n")
        self.fails(2, "report", launcher, launcher, says="none of the traces is of a process with a rank")

    def test_versions_and_truncation_are_told(self):
        other = bytearray(self.traces[1].read_bytes())
        other[96:128] = b"headroom 0.9.9".ljust(32, b"\0")
        other[88:92] = b"\0\0\0\0"
        other = self.file("other.hrt", bytes(other))
        text = self.passes("report", self.traces[0], other)
        self.assertIn("Rank 2 ran with headroom 0.9.9, and rank 0 with headroom", text)
        self.assertIn("Rank 2 was killed, or is still running", text)
        newer = bytearray(self.traces[1].read_bytes())
        newer[8] = 2
        self.fails(2, "report", self.traces[0], self.file("newer.hrt", bytes(newer)), says=["newer.hrt: the trace has version 2.3", "reads up to 1; use a newer headroom"])
        older = bytearray(self.traces[1].read_bytes())
        older[10] = 2
        self.fails(2, "report", self.traces[0], self.file("older.hrt", bytes(older)), says="which did not record ranks")

    def test_what_does_not_belong_together_is_refused(self):
        self.fails(2, "report", self.traces[0], self.traces[0], says=["are both of rank 0", "name one recording of each rank"])
        self.fails(2, "report", self.traces[0], TRACES / "resnet.csv.gz", says="is a CSV, which has no rank; read it alone")
        self.fails(2, "report", self.traces[0], "/no/such/file", says="/no/such/file")
        self.fails(2, "report", *self.traces, "--view", "peak", says="--view is not for the ranks of a job; leave it out, or name one trace")
        self.fails(2, "report", *self.traces, "--html", self.folder_of_job / "x", "--json", says="--json is not for the ranks of a job as a page")
        self.fails(2, "report", *self.traces, "--html", self.traces[1], says="is one of the traces")
        self.fails(2, "report", *self.traces, "--out", self.traces[0], says="is one of the traces")
        self.fails(2, "report", *self.traces, "--html", "/no/such/folder/x", says="/no/such/folder")


if __name__ == "__main__":
    unittest.main()
