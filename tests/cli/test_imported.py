"""Traces of other programs in every command that reads traces: the figures are computed by hand from three small files, which have the
same blocks in a CSV, an RMM log and a PyTorch snapshot."""
import gzip
import json
import os
import pickle
import unittest
from pathlib import Path

from command import CSV_HEADER, RMM_HEADER, CommandTest, has, main

# Block 0 has 1000 bytes from 10 to 30 us, block 1 3000 bytes from 20 us on, block 2 500 bytes from 40 us on: 4000 bytes at the peak,
# 10 us after the first event, and 3500 at the end.
CSV = CSV_HEADER + "10,a,0,1000,0\n20,a,1,3000,7\n30,f,0,1000,7\n40,a,2,500,0\n"
RMM = RMM_HEADER + ("11,10:00:00.000010,allocate,0x10000,1000,0x0\n12,10:00:00.000020,allocate,0x20000,3000,0x7\n"
                    "12,10:00:00.000030,free,0x10000,1000,0x7\n11,10:00:00.000040,allocate,0x30000,500,0x0\n")
USES = ("time_us,action,id,bytes,stream,name\n0,a,0,1000,0,\n0,s,5,,,\n10,b,0,,,matmul\n20,a,1,3000,0,\n21,r,0,1000,,\n22,w,1,3000,,\n"
        "30,e,0,4000,,\n40,f,0,1000,0,\n50,s,6,,,\n60,b,1,,,add\n70,e,1,500,,\n")


def frames(*names):
    return [{"name": name, "filename": "model.py", "line": line + 1} for line, name in enumerate(names)]


def entry(action, time, address, size, stream=0, stack=()):
    return {"action": action, "addr": address, "size": size, "stream": stream, "time_us": 1700000000000000 + time, "frames": frames(*stack)}


SNAPSHOT = {"segments": [], "allocator_settings": {}, "device_traces": [
    [entry("segment_alloc", 10, 0x10000, 1 << 20), entry("alloc", 10, 0x10000, 1000, 0, ("linear", "forward")),
     entry("alloc", 20, 0x20000, 3000, 7, ("relu", "forward")), entry("free_requested", 29, 0x10000, 1000, 7),
     entry("free_completed", 30, 0x10000, 1000, 7), entry("alloc", 40, 0x30000, 500),
     {"action": "oom", "size": 9999, "stream": 0, "device_free": 1, "time_us": 1700000000000050}],
    [entry("alloc", 15, 0x10000, 64)]]}


class Imported(CommandTest):
    def files(self):
        made = {"CSV": self.file("t.csv", CSV), "RMM log": self.file("rmm.csv", RMM)}
        if has("jansson"):
            made["PyTorch snapshot"] = self.file("t.json", json.dumps(SNAPSHOT))
            made["PyTorch snapshot, pickled"] = self.file("t.pickle", pickle.dumps(SNAPSHOT))
        if has("zlib"):
            made["CSV, packed"] = self.file("t.csv.gz", gzip.compress(CSV.encode()))
        return made.items()

    def each(self, check):
        """Calls check(format, path) for each file."""
        for kind, path in self.files():
            with self.subTest(kind=kind):
                check(kind.split(",")[0], path)


class Report(Imported):
    def test_the_summary(self):
        def check(kind, path):
            whole = self.json("report", path)
            self.assertEqual(whole["trace"]["format"], kind)
            self.assertEqual(whole["reports"][0]["device"], "GPU:0")
            summary = whole["reports"][0]["summary"]
            self.assertEqual((summary["peak_bytes"], summary["end_bytes"], summary["allocations"], summary["bytes"]), (4000, 3500, 3, 4500))
            self.assertEqual(whole["trace"]["skipped"], 0)
        self.each(check)

    def test_times_count_from_the_first_event(self):
        def check(kind, path):
            rows = self.json("report", path, "--view", "tensors")["reports"][0]["tensors"]["rows"]
            self.assertEqual([(row["bytes"], row["begin_micros"], row["alive"]) for row in rows],
                             [(3000, 10, True), (1000, 0, False), (500, 30, True)])
        self.each(check)

    def test_what_the_file_does_not_have_is_said_in_a_line(self):
        def check(kind, path):
            for view, says in (("steps", "has no steps."), ("leaks", "has no steps: what each step leaves"), ("scope", "has no name scopes"),
                               ("op", "does not say when ops run" if kind == "PyTorch snapshot" else "does not say which op allocates"),
                               ("allocators", None if kind == "PyTorch snapshot" else "fragmentation is not known")):
                text = self.passes("report", path, "--view", view, "--width", 200)
                if says:
                    self.assertIn(says, text.splitlines()[0])
                else:
                    self.assertNotIn("This trace", text)
        self.each(check)

    def test_a_recording_says_no_such_thing(self):
        path = os.path.join(self.folder.name, "made.hrt")
        self.passes("replay", self.file("t.csv", CSV), "--record", path, "--no-timing")
        for view in ("steps", "leaks", "scope", "op", "allocators"):
            self.assertNotIn("This trace", self.passes("report", path, "--view", view))

    def test_ops_and_steps_of_a_csv(self):
        path = self.file("use.csv", USES)
        ops = {row["name"]: row for row in self.json("report", path, "--view", "op")["reports"][0]["op"]["rows"]}
        self.assertEqual((ops["matmul"]["bytes"], ops["matmul"]["accelerator_micros"], ops["matmul"]["micros"]), (3000, 4, 20))
        self.assertEqual((ops["add"]["bytes"], ops["add"]["accelerator_micros"], ops["add"]["micros"]), (0, 0.5, 10))
        steps = self.json("report", path, "--view", "steps")["reports"][0]["steps"]["rows"]
        self.assertEqual([(row["step"], row["ops"], row["peak_bytes"]) for row in steps], [(5, 1, 4000), (6, 1, 3000)])

    @unittest.skipUnless(has("jansson"), "built without jansson")
    def test_devices_functions_segments_and_refusals_of_a_snapshot(self):
        path = self.file("t.json", json.dumps(SNAPSHOT))
        ops = {row["name"]: row["bytes"] for row in self.json("report", path, "--view", "op")["reports"][0]["op"]["rows"]}
        self.assertEqual(ops, {"linear": 1000, "relu": 3000, "": 500})
        stack = self.json("report", path, "--view", "tensors")["reports"][0]["tensors"]["rows"][0]["stack"]
        self.assertEqual(stack, [{"function": "relu", "file": "model.py", "line": 1}, {"function": "forward", "file": "model.py", "line": 2}])
        reports = self.json("report", path, "--view", "allocators")["reports"]
        self.assertEqual([report["device"] for report in reports], ["GPU:0", "GPU:1"])
        row = reports[0]["allocators"]["rows"][0]
        self.assertEqual((row["name"], row["reserved_bytes"], row["refused"]), ("pytorch", 1 << 20, 1))
        self.assertEqual(self.json("report", path)["trace"]["start_wall_ns"], 1700000000000010 * 1000)
        self.assertEqual(self.json("report", path, "--device", "GPU:1")["reports"][0]["summary"]["peak_bytes"], 64)

    def test_frees_of_unknown_blocks_are_counted(self):
        path = self.file("rmm.csv", RMM + "11,10:00:00.000050,free,0x99000,64,0x0\n")
        self.assertIn("1 free of blocks from before the recording began is left out.", self.passes("report", path))
        self.assertEqual(self.json("report", path)["trace"]["skipped"], 0)

    def test_times_that_go_back_are_corrected(self):
        path = self.file("t.csv", CSV_HEADER + "10,a,0,1000,0\n5,a,1,3000,0\n")
        self.assertIn("1 event has a time before", self.passes("report", path))
        self.assertEqual(self.json("report", path)["trace"]["micros"], 0)
        night = self.file("rmm.csv", RMM_HEADER + "1,23:59:59.999999,allocate,0x10,8,0x0\n1,00:00:00.000001,allocate,0x20,8,0x0\n")
        self.assertEqual(self.json("report", night)["trace"]["micros"], 2)
        self.assertNotIn("time before", self.passes("report", night))

    def test_bad_files_are_refused_as_by_replay(self):
        for body, says in (("1,f,5,1,0\n", "line 2: block 5 is freed but not live"), ("1,a,5,1,0\n2,a,5,1,0\n", "line 3: block 5 is allocated while it is live"),
                           ("1,a,0,10,0\n2,f,0,11,0\n", "line 3: block 0 is freed with 11 bytes")):
            path = self.file("bad.csv", CSV_HEADER + body)
            for command in (("report", path), ("diff", path, path), ("replay", path), ("plan", path)):
                self.fails(2, *command, says=["bad.csv", says])

    def test_a_page(self):
        def check(kind, path):
            page = Path(self.folder.name) / "page.html"
            self.passes("report", path, "--html", page)
            self.assertIn("</html>", page.read_text())
            page.unlink()
        self.each(check)


class Diff(Imported):
    def test_the_same_blocks_are_no_different(self):
        csv = self.file("same.csv", CSV)
        def check(kind, path):
            memory = self.json("diff", csv, path)["reports"][0]["memory"]["rows"]
            self.assertEqual([row["change"] for row in memory], [0] * len(memory))
        self.each(check)

    def test_with_another_format(self):
        more = self.file("more.csv", CSV + "50,a,3,10000,0\n")
        def check(kind, path):
            rows = {row["what"]: row for row in self.json("diff", path, more)["reports"][0]["memory"]["rows"]}
            self.assertEqual((rows["peak"]["a"], rows["peak"]["b"], rows["peak"]["change"]), (4000, 13500, 9500))
        self.each(check)


class ReplayAndPlan(Imported):
    def test_the_formats_agree(self):
        def check(kind, path):
            replay = self.json("replay", path, "--no-timing")
            self.assertEqual((replay["format"], replay["allocs"], replay["frees"], replay["streams"], replay["peak_live_bytes"]), (kind, 3, 1, 2, 4000))
            self.assertEqual(self.json("plan", path)["peak_bytes"], 4000)
        self.each(check)


class Exports(Imported):
    def export(self, path, form):
        out = Path(self.folder.name) / f"out.{form}"
        self.passes("report", path, "--export", form, "--out", out)
        return out

    def test_rmm(self):
        """The log of a log is that log, but for the numbers of threads and the time of day."""
        def check(kind, path):
            lines = [line.split(",") for line in self.export(path, "rmm").read_text().splitlines()[1:]]
            first = [line for line in lines if line[3] != "(nil)" and int(line[3], 16) >> 56 == 0]  # without the second device
            self.assertEqual([(line[2], line[4], line[5]) for line in first],
                             [("allocate", "1000", "0x0"), ("allocate", "3000", "0x7"), ("free", "1000", "0x7"), ("allocate", "500", "0x0")])
            self.assertEqual([line[1] for line in first], ["00:00:00.000000", "00:00:00.000010", "00:00:00.000020", "00:00:00.000030"])
            self.assertEqual([line[0] for line in first], ["1", "2", "2", "1"] if kind == "RMM log" else ["1"] * 4)
            os.unlink(Path(self.folder.name) / "out.rmm")
        self.each(check)
        again = self.json("replay", self.export(self.file("rmm.csv", RMM), "rmm"), "--no-timing")
        self.assertEqual((again["allocs"], again["frees"], again["streams"], again["peak_live_bytes"]), (3, 1, 2, 4000))

    def test_chrome(self):
        def check(kind, path):
            events = json.loads(self.export(path, "chrome").read_text())["traceEvents"]
            levels = [(event["ts"], event["args"]["bytes"]) for event in events if event["ph"] == "C" and event["name"].endswith(" in use") and event["pid"] == 2]
            self.assertEqual(levels, [(0, 1000), (10, 4000), (20, 3000), (30, 3500)])
        self.each(check)

    @unittest.skipUnless(has("jansson"), "built without jansson")
    def test_memory_viz(self):
        """A snapshot becomes a snapshot with the same blocks and frames, which replay reads."""
        def check(kind, path):
            out = self.export(path, "memory_viz")
            trace = [event for event in json.loads(out.read_text())["device_traces"][0] if event["action"] in ("alloc", "free_completed")]
            self.assertEqual([(event["action"], event["size"]) for event in trace], [("alloc", 1000), ("alloc", 3000), ("free_completed", 1000), ("alloc", 500)])
            if kind == "PyTorch snapshot":
                self.assertEqual([event["addr"] for event in trace], [0x10000, 0x20000, 0x10000, 0x30000])
                self.assertIn(("linear", "model.py", 1), [(frame["name"], frame["filename"], frame["line"]) for frame in trace[0]["frames"]])
            self.assertEqual(self.json("replay", out, "--no-timing", "--device-index", 0)["peak_live_bytes"], 4000)
            out.unlink()
        self.each(check)

    def test_pprof_and_xplane_have_the_peak(self):
        def check(kind, path):
            profile = self.export(path, "pprof").read_bytes()
            text = gzip.decompress(profile) if profile[:2] == b"\x1f\x8b" else profile
            self.assertIn(b"bytes", text)
            if kind == "PyTorch snapshot":
                self.assertIn(b"linear", text)
                self.assertIn(b"model.py", text)
            (log,) = self.export(path, "xplane").rglob("*.xplane.pb")
            self.assertIn({"CSV": b"csv", "RMM log": b"rmm"}.get(kind, b"pytorch"), log.read_bytes())
            os.unlink(Path(self.folder.name) / "out.pprof")
            for file in sorted((Path(self.folder.name) / "out.xplane").rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()
        self.each(check)


if __name__ == "__main__":
    main()
