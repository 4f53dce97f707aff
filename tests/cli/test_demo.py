"""`headroom demo`: three trainings, a report, pictures; and its output files can be read."""
import json
import os
import re
import socket
import subprocess
import unittest
from pathlib import Path

from command import COMMAND, CommandTest, has, main


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

        # The files agree with the printed text.
        reports = json.loads(self.passes("report", self.out / "training.hrt", "--device", "GPU:0", "--json"))["reports"]
        summary = reports[0]["summary"]
        self.assertAlmostEqual(summary["peak_bytes"] / 2**20, float(whole[2]), delta=0.051)
        # The advice on the limit is based on the memory of the first training, as its recording shows.
        verdict = json.loads((self.out / "oom.json").read_text())["verdict"]
        self.assertEqual(verdict["step_peak_bytes"], summary["peak_bytes"])
        self.assertIn(f"a step of another allocator needed {whole[2]} MiB at its peak.", " ".join(text.split()))
        raised = int(re.search(r"Raise options\.limit_bytes by [0-9.]+ MiB, to ([0-9]+) \(for this request alone by", " ".join(text.split())).group(1))
        page = 64 << 10
        self.assertEqual(raised, (verdict["step_peak_bytes"] + page - 1) // page * page)
        self.assertIn(f"a step of another allocator needed {whole[2]} MiB at its peak.",
                      " ".join(json.loads((self.out / "oom.json").read_text())["text"].split()))
        out, back = map(float, re.search(r"([0-9.]+) MiB\s+moved\s+to\s+the\s+host,\s+([0-9.]+)\s+MiB\s+back", text).groups())
        self.assertAlmostEqual(summary["out_bytes"] / 2**20, out, delta=0.051)
        self.assertAlmostEqual(summary["in_bytes"] / 2**20, back, delta=0.051)
        self.assertEqual(summary["refused"], 1)
        self.assertGreater(summary["planning_micros"], 0)  # the third training waited for that
        self.assertEqual(json.loads((self.out / "oom.json").read_text())["format"], "headroom-oom-report")
        self.assertIn("Out of memory", (self.out / "oom.txt").read_text())
        if has("jansson"):
            self.assertIn("Out of memory", self.passes("oom", self.out / "oom.json"))
        self.assertGreater((self.out / "report.html").stat().st_size, 50000)
        self.assertEqual(len(list((self.out / "tensorboard").glob("plugins/profile/*/*.xplane.pb"))), 1)

        self.check_again()

    def check_again(self):
        """Over an earlier run, and on a narrow terminal."""
        (self.out / "notes").write_text("mine")
        before = (self.out / "training.hrt").read_bytes()
        sessions = self.out / "tensorboard" / "plugins" / "profile"
        (plane,) = sessions.rglob("*.xplane.pb")
        earlier = plane.read_bytes()
        (plane.parent / "ALL_HOSTS.op_stats_v2.pb").write_text("computed by XProf")
        (sessions / "mine").mkdir()
        (sessions / "mine" / "host.xplane.pb").write_text("mine")
        text = self.passes("demo", "--steps", 1, "--out", self.out, env={"COLUMNS": "60"})
        self.assertNotEqual((self.out / "training.hrt").read_bytes(), before)
        self.assertEqual((self.out / "notes").read_text(), "mine")
        # One session for TensorBoard, and nothing that was computed from the earlier one; other sessions remain.
        self.assertEqual([str(f.relative_to(sessions)) for f in sorted(sessions.rglob("*")) if f.is_file()],
                         [f"headroom_demo/{plane.name}", "mine/host.xplane.pb"])
        self.assertNotEqual(plane.read_bytes(), earlier)
        self.assertLessEqual(max(map(len, text.split("Look closer")[0].splitlines()[1:])), 60)

    @unittest.skipUnless("HEADROOM_FAKE_CUDA" in os.environ, "the stand-in driver is not known")
    def test_on_a_machine_with_a_card_it_trains_on_the_card(self):
        """The card is the stand-in driver's, with pages of 2 MiB, and without NVRTC: the host computes."""
        env = {"HEADROOM_CUDA": "1", "LD_LIBRARY_PATH": os.environ["HEADROOM_FAKE_CUDA"] + "/whole", "HEADROOM_CUDA_LIBRARIES": "0"}
        text = " ".join(self.passes("demo", "--steps", 2, "--out", self.out, env=env).split())
        for part in ("trained with Adam on NVIDIA Fake", "Out of memory: op", "the same, to the bit"):
            self.assertIn(part, text)
        summary = json.loads(self.passes("report", self.out / "training.hrt", "--device", "GPU:0", "--json"))["reports"][0]["summary"]
        self.assertEqual(summary["limit_bytes"], 256 << 20)  # the stand-in's memory

    def test_a_card_that_is_required_must_be_there(self):
        self.fails(2, "demo", "--out", self.out, env={"HEADROOM_CUDA": "0", "HEADROOM_REQUIRE_CUDA": "1"}, says="CUDA")

    def test_lines_appear_one_by_one_in_a_pipe(self):
        """On a SOCK_SEQPACKET socket each write is one message, so that separate writes can be told apart without a clock."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = subprocess.Popen([COMMAND, "demo", "--steps", "1", "--out", self.out], stdout=theirs)
        theirs.close()
        writes = list(iter(lambda: ours.recv(1 << 20).decode(), ""))
        ours.close()
        self.assertEqual(program.wait(timeout=300), 0)
        self.assertIn("Look closer", "".join(writes))
        (heading,) = [text for text in writes if "1. With all the memory" in text]
        (training,) = [text for text in writes if "at the peak" in text and "moved" not in text]
        self.assertNotEqual(heading, training)
        self.assertTrue(all(text.endswith("\n") for text in writes[:writes.index(training)]))

    def test_wrong_use(self):
        self.fails(2, "demo", "--steps", "0", says="--steps")
        self.fails(2, "demo", "--steps", "1001", says="--steps")
        self.fails(2, "demo", "--out", "", says="--out")
        self.fails(2, "demo", "--out", "/proc/nothing", says="/proc/nothing")
        self.fails(2, "demo", "there", says="there")


if __name__ == "__main__":
    main()
