"""`headroom demo`: three trainings, a report, pictures; and what it leaves can be looked at."""
import json
import re
from pathlib import Path

from command import CommandTest, has, main


class Demo(CommandTest):
    def setUp(self):
        super().setUp()
        self.out = Path(self.folder.name) / "new" / "demo"

    def test_the_story(self):
        text = self.passes("demo", "--steps", 2, "--out", self.out)
        whole, less = re.findall(r"2 steps in [0-9.]+ s, loss ([0-9.]+) to ([0-9.]+), ([0-9.]+) MiB at the\s+peak", text)
        self.assertEqual(whole[:2], less[:2])
        self.assertLess(float(less[2]), 0.51 * float(whole[2]))
        for part in ("Out of memory: op", "What to do: Large Model Support", "Held by tag", "weights", "moved to the host", "the same, to the bit",
                     "Memory in use", f"xdg-open {self.out}/report.html", f"tensorboard --logdir {self.out}/tensorboard"):
            self.assertIn(part, " ".join(text.split()))

        # What it leaves is what it told of.
        reports = json.loads(self.passes("report", self.out / "training.hrt", "--device", "GPU:0", "--json"))["reports"]
        summary = reports[0]["summary"]
        self.assertAlmostEqual(summary["peak_bytes"] / 2**20, float(whole[2]), delta=0.051)
        out, back = map(float, re.search(r"([0-9.]+) MiB\s+moved\s+to\s+the\s+host,\s+([0-9.]+)\s+MiB\s+back", text).groups())
        self.assertAlmostEqual(summary["out_bytes"] / 2**20, out, delta=0.051)
        self.assertAlmostEqual(summary["in_bytes"] / 2**20, back, delta=0.051)
        self.assertEqual(summary["refused"], 1)
        self.assertEqual(json.loads((self.out / "oom.json").read_text())["format"], "headroom-oom-report")
        self.assertIn("Out of memory", (self.out / "oom.txt").read_text())
        if has("jansson"):
            self.assertIn("Out of memory", self.passes("oom", self.out / "oom.json"))
        self.assertGreater((self.out / "report.html").stat().st_size, 50000)
        self.assertEqual(len(list((self.out / "tensorboard").glob("plugins/profile/*/*.xplane.pb"))), 1)

        self.check_again()

    def check_again(self):
        """Over an earlier one, and on a narrow terminal."""
        (self.out / "notes").write_text("mine")
        before = (self.out / "training.hrt").read_bytes()
        text = self.passes("demo", "--steps", 1, "--out", self.out, env={"COLUMNS": "60"})
        self.assertNotEqual((self.out / "training.hrt").read_bytes(), before)
        self.assertEqual((self.out / "notes").read_text(), "mine")
        self.assertLessEqual(max(map(len, text.split("Look closer")[0].splitlines()[1:])), 60)

    def test_wrong_use(self):
        self.fails(2, "demo", "--steps", "0", says="--steps")
        self.fails(2, "demo", "--steps", "1001", says="--steps")
        self.fails(2, "demo", "--out", "", says="--out")
        self.fails(2, "demo", "--out", "/proc/nothing", says="/proc/nothing")
        self.fails(2, "demo", "there", says="there")


if __name__ == "__main__":
    main()
