"""Reads our exports with other tools: XProf, pprof, `headroom replay`; and with validators for Chrome's trace format and PyTorch's
snapshots, written from their documentation. Each number is compared with the capture's own.

XProf is searched in $HEADROOM_XPROF or build/xprof, where `tools/setup.sh test` installs it.
"""
import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("HEADROOM_COMMAND", ROOT / "build" / "headroom"))
PROGRAM = COMMAND.parent / "tests" / "profile" / "test_export"
XPROF = Path(os.environ.get("HEADROOM_XPROF", ROOT / "build" / "xprof"))
KINDS = ["train", "lms", "refused", "hostile", "empty"]
FORMATS = ["xplane", "chrome", "memory_viz", "rmm", "pprof"]


def program(*arguments, check=True):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, timeout=300)
    if check and result.returncode != 0:
        raise AssertionError(f"{arguments}: {result.stderr.decode()}")
    return result


class Exports:
    """Every kind of trace in every format, exported once."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.facts = {}
        for kind in KINDS:
            program("record", kind, self.path / f"{kind}.trace")
            self.facts[kind] = Facts(json.loads(program("facts", self.path / f"{kind}.trace").stdout))
            for form in FORMATS:
                program("write", form, self.path / f"{kind}.trace", self.file(kind, form))

    def file(self, kind, form):
        return self.path / f"{kind}.{form}"

    def json(self, kind, form):
        return json.loads(self.file(kind, form).read_text(encoding="utf-8"))


class Facts:
    def __init__(self, data):
        self.__dict__.update(data)
        for a in self.allocations:
            a["name"] = full_name(a)
        for op in self.ops:
            op["name"] = full_name(op)
            op.setdefault("end_ns", max(self.end_ns, op["begin_ns"]))

    def timeline(self, allocator=None, device=None, key="bytes"):
        """[time in ns, bytes in use after the change, the allocation, whether it is a free], for one allocator or device, or all."""
        points, now = [], 0
        for index, frees in self.changes:
            a = self.allocations[index]
            if allocator not in (None, a["allocator"]) or device not in (None, a["device"]):
                continue
            now += -a[key] if frees else a[key]
            points.append((a["end_ns"] if frees else a["begin_ns"], now, a, frees))
        return points

    def label(self, index):
        """The name of an allocator in exports."""
        own = self.allocators[index]
        same = [a for i, a in enumerate(self.allocators) if i != index and a["name"] == own["name"]]
        if not same:
            return own["name"]
        return own["name"] + " (" + self.devices[own["device"]]["name"]  # with a number if names are equal


def full_name(x):
    return "/".join(part for part in (x["scope"], x["op"]) if part) or "(none)"


exports = None


def setUpModule():
    global exports
    exports = Exports()


def tearDownModule():
    exports.folder.cleanup()


class Chrome(unittest.TestCase):
    """https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: the JSON object format."""
    METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index", "thread_sort_index": "sort_index"}

    def validate(self, trace):
        self.assertIsInstance(trace, dict)
        self.assertIn(trace["displayTimeUnit"], ("ms", "ns"))
        self.assertIsInstance(trace["otherData"], dict)
        slices = defaultdict(list)
        for event in trace["traceEvents"]:
            self.assertIsInstance(event["name"], str)
            self.assertIsInstance(event["pid"], int)
            self.assertIsInstance(event["tid"], int)
            self.assertIsInstance(event["args"], dict)
            phase = event["ph"]
            if phase == "M":
                key = self.METADATA[event["name"]]
                self.assertEqual(list(event["args"]), [key])
                self.assertIsInstance(event["args"][key], str if key == "name" else int)
                continue
            self.assertGreaterEqual(event["ts"], 0)
            if phase == "X":
                self.assertGreaterEqual(event["dur"], 0)
                slices[event["pid"], event["tid"]].append((round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)))
            elif phase == "C":
                self.assertTrue(event["args"] and all(isinstance(v, (int, float)) for v in event["args"].values()))
            else:
                self.assertEqual(phase, "i")
                self.assertIn(event["s"], ("g", "p", "t"))
        for thread in slices.values():  # slices of a thread are disjoint or nested
            open_ends = []
            for begin, end in sorted(thread, key=lambda s: (s[0], -s[1])):
                while open_ends and open_ends[-1] <= begin:
                    open_ends.pop()
                self.assertTrue(not open_ends or end <= open_ends[-1])
                open_ends.append(end)

    def test_every_trace_is_valid(self):
        for kind in KINDS:
            with self.subTest(kind):
                self.validate(exports.json(kind, "chrome"))

    def test_slices_are_our_ops_and_steps(self):
        for kind in ("train", "lms", "hostile"):
            facts, events = exports.facts[kind], exports.json(kind, "chrome")["traceEvents"]
            got = Counter((e["name"], e["args"]["scope"], round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in events if e.get("cat") == "op")
            wanted = Counter((o["op"] or o["name"], o["scope"], o["begin_ns"], o["end_ns"] - o["begin_ns"]) for o in facts.ops)
            self.assertEqual(got, wanted)
            got = [(e["name"], round(e["ts"] * 1000)) for e in events if e.get("cat") == "step"]
            self.assertEqual(got, [(f"step {s['number']}", s["begin_ns"]) for s in facts.steps])
            marks = Counter(e["name"] == "request refused" for e in events if e["ph"] == "i")
            self.assertEqual((marks[False], marks[True]), (facts.moves, facts.refusals))

    def test_counters_are_our_timeline(self):
        for kind in KINDS:
            facts, events = exports.facts[kind], exports.json(kind, "chrome")["traceEvents"]
            counters = defaultdict(list)
            for e in events:
                if e["ph"] == "C":
                    counters[e["pid"], e["name"]].append((round(e["ts"] * 1000), e["args"]["bytes"]))
            for index, allocator in enumerate(facts.allocators):
                wanted = [(t, b) for t, b, _, _ in facts.timeline(allocator=index)]
                found = [v for (pid, name), v in counters.items()
                         if pid == 2 + allocator["device"] and name.startswith(facts.label(index)) and name != "all in use" and v == wanted]
                self.assertEqual(len(found), 1 if wanted else len(found), allocator)
            for index, device in enumerate(facts.devices):
                total = counters.get((2 + index, "all in use"))
                if total:
                    self.assertEqual(total, [(t, b) for t, b, _, _ in facts.timeline(device=index)])
                    self.assertEqual(max(b for _, b in total), device["peak"])


class MemoryViz(unittest.TestCase):
    """The schema that torch.cuda.memory._snapshot documents, and the viewer's use of it."""
    ACTIONS = {"alloc", "free_requested", "free_completed", "segment_map", "segment_unmap", "oom", "snapshot"}

    def check_frames(self, frames):
        for frame in frames:
            self.assertEqual({k: type(v) for k, v in frame.items()}, {"filename": str, "line": int, "name": str})

    def check_segment(self, segment):
        numbers = ("device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream")
        self.assertTrue(all(isinstance(segment[key], int) and segment[key] >= 0 for key in numbers))
        self.assertIn(segment["segment_type"], ("small", "large"))
        self.assertEqual(len(segment["segment_pool_id"]), 2)
        self.assertIsInstance(segment["is_expandable"], bool)
        self.check_frames(segment["frames"])
        at = segment["address"]
        for block in segment["blocks"]:  # without gaps, from begin to end
            self.assertEqual(block["address"], at)
            self.assertIn(block["state"], ("active_allocated", "active_pending_free", "inactive"))
            self.assertLessEqual(block["requested_size"], block["size"])
            self.check_frames(block["frames"])
            at += block["size"]
        self.assertEqual(at, segment["address"] + segment["total_size"])
        used = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        self.assertEqual(sum(b["size"] for b in used), segment["allocated_size"])
        self.assertEqual(sum(b["requested_size"] for b in used), segment["requested_size"])

    def validate(self, snapshot):
        self.assertEqual(set(snapshot), {"segments", "device_traces", "allocator_settings", "external_annotations"})
        for segment in snapshot["segments"]:
            self.check_segment(segment)
        for trace in snapshot["device_traces"]:
            last = 0
            for entry in trace:
                self.assertIn(entry["action"], self.ACTIONS)
                self.assertIn("device_free" if entry["action"] == "oom" else "addr", entry)
                self.assertTrue(all(isinstance(entry[key], int) for key in ("size", "stream", "time_us")))
                self.assertGreaterEqual(entry["time_us"], last)
                last = entry["time_us"]
                self.check_frames(entry["frames"])

    def test_every_snapshot_is_valid(self):
        for kind in KINDS:
            with self.subTest(kind):
                self.validate(exports.json(kind, "memory_viz"))

    def test_what_the_viewer_adds_up_is_our_peak_and_what_is_left_is_in_the_segments(self):
        for kind in KINDS:
            facts, snapshot = exports.facts[kind], exports.json(kind, "memory_viz")
            self.assertEqual(len(snapshot["device_traces"]), len(facts.devices))
            for index, trace in enumerate(snapshot["device_traces"]):
                live, now, peak = {}, 0, 0
                for entry in trace:
                    if entry["action"] == "alloc":
                        self.assertNotIn(entry["addr"], live)
                        live[entry["addr"]] = entry["size"]
                        now += entry["size"]
                        peak = max(peak, now)
                    elif entry["action"] == "free_completed":
                        self.assertEqual(live.pop(entry["addr"]), entry["size"])
                        now -= entry["size"]
                self.assertEqual((peak, now), (facts.devices[index]["peak"], facts.devices[index]["end"]))
                blocks = {b["address"]: b["size"] for s in snapshot["segments"] if s["device"] == index
                          for b in s["blocks"] if b["state"] == "active_allocated"}
                self.assertEqual(blocks, live)

    def test_going_back_every_block_lies_in_a_segment(self):
        """Like the viewer: starts with the segments at the end and undoes one entry after the other."""
        for kind in KINDS:
            snapshot = exports.json(kind, "memory_viz")
            for index, trace in enumerate(snapshot["device_traces"]):
                mapped = Counter()  # begins and ends of segments: +1 and -1
                blocks = set()
                for segment in (s for s in snapshot["segments"] if s["device"] == index):
                    mapped[segment["address"]] += 1
                    mapped[segment["address"] + segment["total_size"]] -= 1
                    blocks.update(b["address"] for b in segment["blocks"] if b["state"] != "inactive" and b["size"])
                for entry in reversed(trace):
                    if entry["action"] in ("segment_map", "segment_unmap"):
                        sign = 1 if entry["action"] == "segment_unmap" else -1
                        mapped[entry["addr"]] += sign
                        mapped[entry["addr"] + entry["size"]] -= sign
                    elif entry["action"] == "free_completed" and entry["size"]:
                        blocks.add(entry["addr"])
                    elif entry["action"] == "alloc":
                        blocks.discard(entry["addr"])
                    depth, at = 0, sorted((a, 0, d) for a, d in mapped.items() if d) + [(b, 1, 0) for b in blocks]
                    for _, is_block, change in sorted(at):
                        depth += change
                        self.assertIn(depth, (0, 1))
                        self.assertTrue(depth or not is_block)
                self.assertFalse(blocks or any(mapped.values()))  # the start of the recording

    def test_categories_are_tags_and_one_is_unknown(self):
        for kind in KINDS:
            entries = [e for trace in exports.json(kind, "memory_viz")["device_traces"] for e in trace]
            found = {e["category"] for e in entries if "category" in e}
            tags = {a["tag"] for a in exports.facts[kind].allocations} - {""}
            self.assertEqual(found, tags | {"unknown"} if tags else set())

    def test_an_allocation_has_the_names_of_its_op(self):
        facts, snapshot = exports.facts["train"], exports.json("train", "memory_viz")
        got = [(e["frames"][0]["name"], e["frames"][0]["filename"], e["size"], e["user_metadata"]) for e in snapshot["device_traces"][0]
               if e["action"] == "alloc"]
        self.assertEqual(got, [(a["op"], a["scope"], a["bytes"], a["dtype"] + a["shape"]) for a in facts.allocations])

    def test_refused_requests_are_there(self):
        oom = [e for e in exports.json("refused", "memory_viz")["device_traces"][0] if e["action"] == "oom"]
        self.assertEqual([(e["frames"][0]["name"], e["size"]) for e in oom], [("does not fit", 16 << 20)])


class Rmm(unittest.TestCase):
    def test_it_replays(self):
        for kind in ("train", "lms", "refused", "hostile"):
            facts = exports.facts[kind]
            result = subprocess.run([COMMAND, "replay", exports.file(kind, "rmm"), "--no-timing", "--json"], capture_output=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            replay = json.loads(result.stdout)
            counted = [p for p in facts.timeline(key="asked") if p[2]["bytes"]]
            self.assertEqual(replay["format"], "RMM log")
            self.assertEqual(replay["allocs"], sum(not p[3] for p in counted))
            self.assertEqual(replay["frees"], sum(p[3] for p in counted))
            self.assertEqual(replay["peak_live_bytes"], max(p[1] for p in counted))

    def test_lines_are_as_rmm_writes_them(self):
        lines = exports.file("train", "rmm").read_text().splitlines()
        self.assertEqual(lines[0], "Thread,Time,Action,Pointer,Size,Stream")
        for line in lines[1:]:
            self.assertRegex(line, r"^\d+,\d\d:\d\d:\d\d\.\d{6},(allocate|free),0x[0-9a-f]+,\d+,0x[0-9a-f]+$")
        self.assertIn(f",allocate failure,(nil),{16 << 20},0x0", exports.file("refused", "rmm").read_text())


def fields(data):
    """The fields of a protobuf message: {number: [value]}, varints as numbers, the rest as bytes."""
    found, at = defaultdict(list), 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found[key >> 3].append(varint())
        else:
            assert key & 7 == 2, f"wire type {key & 7}"
            length = varint()
            found[key >> 3].append(data[at:at + length])
            at += length
    return found


def packed(values):
    """Repeated numbers, single or packed."""
    numbers = []
    for value in values:
        numbers += [value] if isinstance(value, int) else fields_of_packed(value)
    return numbers


def fields_of_packed(data):
    numbers, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
    return numbers


class Pprof(unittest.TestCase):
    """Field numbers are those of pprof's profile.proto."""

    def read(self, kind):
        data = exports.file(kind, "pprof").read_bytes()
        profile = fields(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        strings = [s.decode() for s in profile[6]]
        self.assertEqual(strings[0], "")
        functions = {f[1][0]: strings[f[2][0]] for f in map(fields, profile[5])}
        locations = {f[1][0]: functions[fields(f[4][0])[1][0]] for f in map(fields, profile[4])}
        types = [(strings[f[1][0]], strings[f[2][0]]) for f in map(fields, profile[1])]
        samples = []
        for sample in map(fields, profile[2]):
            stack = [locations[i] for i in packed(sample[1])]
            labels = {strings[f[1][0]]: strings[f[2][0]] for f in map(fields, sample[3])}
            samples.append((stack, dict(zip([t for t, _ in types], packed(sample[2]))), labels))
        return types, samples

    def test_values_add_up(self):
        for kind in KINDS:
            facts = exports.facts[kind]
            types, samples = self.read(kind)
            self.assertEqual(types, [("peak_space", "bytes"), ("peak_objects", "count"), ("inuse_space", "bytes"), ("inuse_objects", "count"),
                                     ("alloc_space", "bytes"), ("alloc_objects", "count")])
            total = Counter()
            for _, values, _ in samples:
                total.update(values)
            self.assertEqual(total["peak_space"], sum(d["peak"] for d in facts.devices))
            self.assertEqual(total["peak_objects"], sum(len(d["live_at_peak"]) for d in facts.devices))
            self.assertEqual(total["inuse_space"], sum(d["end"] for d in facts.devices))
            self.assertEqual(total["alloc_space"], sum(a["bytes"] for a in facts.allocations))
            self.assertEqual(total["alloc_objects"], len(facts.allocations))

    def test_stacks_are_scopes_and_labels_are_tags(self):
        for kind in ("train", "lms", "hostile"):
            facts = exports.facts[kind]
            wanted, got = Counter(), Counter()
            for device in facts.devices:
                for index in device["live_at_peak"]:
                    a = facts.allocations[index]
                    stack = [a["op"] or "(none)", *reversed([p for p in a["scope"].split("/") if p]), device["name"]]
                    wanted[tuple(stack), a["tag"], a["shape"], a["dtype"]] += a["bytes"]
            for stack, values, labels in self.read(kind)[1]:
                got[tuple(stack), labels.get("tag", ""), labels.get("shape", ""), labels.get("dtype", "")] += values["peak_space"]
            self.assertEqual(+got, +wanted)

    @unittest.skipUnless(shutil.which("go"), "go is not here")
    def test_pprof_itself_reads_it(self):
        facts = exports.facts["train"]
        result = subprocess.run(["go", "tool", "pprof", "-top", "-nodefraction=0", "-unit=B", exports.file("train", "pprof")],
                                capture_output=True, text=True, timeout=120,
                                env={**os.environ, "PPROF_TMPDIR": exports.folder.name, "HOME": exports.folder.name})
        if "no such tool" in result.stderr:
            self.skipTest("go has no pprof here")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Type: peak_space", result.stdout)
        flat = {line.split()[-1]: line.split()[0] for line in result.stdout.splitlines() if line.strip() and line.strip()[0].isdigit()}
        wanted = Counter()
        for index in facts.devices[0]["live_at_peak"]:
            wanted[facts.allocations[index]["op"]] += facts.allocations[index]["bytes"]
        self.assertEqual({k: int(v.rstrip("B")) for k, v in flat.items() if k in wanted}, dict(wanted))


def free_ports():
    """Two different free ports."""
    with socket.socket() as a, socket.socket() as b:
        a.bind(("127.0.0.1", 0))
        b.bind(("127.0.0.1", 0))
        return a.getsockname()[1], b.getsockname()[1]


def joined(ranges):
    """Sorted, with adjacent ranges joined."""
    result = []
    for begin, end in sorted(ranges):
        if result and result[-1][1] == begin:
            result[-1] = (result[-1][0], end)
        else:
            result.append((begin, end))
    return result


def fragmentation(facts, allocator, points):
    """The fraction of the free memory that is not in the largest hole, after the last point."""
    now, live = points[-1][0], {}
    for _, _, a, frees in points:
        live.pop(a["address"], None)
        if not frees:
            live[a["address"]] = a["bytes"]
    held = joined((r["address"], r["address"] + r["bytes"]) for r in facts.regions
                  if r["allocator"] == allocator and r["begin_ns"] <= now < r.get("end_ns", now + 1))
    holes = []
    for begin, stop in held:  # a block may span two adjacent regions
        at = begin
        for address in sorted(a for a in live if begin <= a < stop):
            if address > at:
                holes.append((at, address))
            at = max(at, address + live[address])
        if at < stop:
            holes.append((at, stop))
    sizes = [stop - begin for begin, stop in holes]
    return 1 - max(sizes) / sum(sizes) if sizes else 0


@unittest.skipUnless((XPROF / "bin" / "python").exists(), f"XProf is not here ({XPROF}): tools/setup.sh test could not install it")
class Xprof(unittest.TestCase):
    """XProf's server, started on a log directory of the test."""

    @classmethod
    def setUpClass(cls):
        cls.logdir = exports.path / "logdir"
        cls.logdir.mkdir()
        cls.runs = {}
        for kind in KINDS:  # all in one directory, where each is a run
            (run,) = (exports.file(kind, "xplane") / "plugins" / "profile").iterdir()
            target = cls.logdir / "plugins" / "profile" / f"{kind}_{run.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(run, target)
            cls.runs[kind] = target.name
            (file,) = run.iterdir()
            assert file.name.endswith(".xplane.pb"), file
            cls.host = file.name[:-len(".xplane.pb")]
        cls.port, grpc_port = free_ports()
        start = "import sys; from xprof.server import main; sys.exit(main())"
        # Without the settings of sanitizers, which do not apply to it.
        env = {k: v for k, v in os.environ.items() if not k.endswith("SAN_OPTIONS")}
        cls.log = open(exports.path / "xprof.log", "w+")
        command = [XPROF / "bin" / "python", "-c", start, "--logdir", cls.logdir, "--port", str(cls.port), "--grpc_port", str(grpc_port)]
        cls.server = subprocess.Popen(command, stdout=cls.log, stderr=subprocess.STDOUT, env=env)
        end = time.time() + 120
        while True:
            try:
                assert set(cls.get("runs")) == set(cls.runs.values()), cls.get("runs")
                return
            except OSError:
                if time.time() > end or cls.server.poll() is not None:
                    cls.tearDownClass()
                    raise AssertionError("XProf does not start:\n" + (exports.path / "xprof.log").read_text())
                time.sleep(0.2)

    @classmethod
    def tearDownClass(cls):
        if hasattr(cls, "server"):
            cls.server.terminate()
            cls.server.wait()
            cls.log.close()

    @classmethod
    def get(cls, what, **arguments):
        query = urllib.parse.urlencode(arguments)
        with urllib.request.urlopen(f"http://127.0.0.1:{cls.port}/data/plugin/profile/{what}?{query}", timeout=120) as answer:
            data = answer.read()
        return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)

    def tool(self, kind, tool):
        return self.get("data", run=self.runs[kind], tag=tool, host=self.host)

    def test_it_lists_the_tools(self):
        tools = self.get("run_tools", run=self.runs["train"])
        for tool in ("memory_profile", "trace_viewer@", "framework_op_stats"):
            self.assertIn(tool, tools)

    def profile_of(self, kind, index):
        """XProf's profile of one of our allocators; None if there is none."""
        label = exports.facts[kind].label(index)
        answer = self.tool(kind, "memory_profile").get("memoryProfilePerAllocator", {})
        points = [(t, b) for t, b, _, _ in exports.facts[kind].timeline(allocator=index)]
        for name, profile in answer.items():
            got = [(int(s["timeOffsetPs"]) // 1000, int(s["aggregationStats"]["heapAllocatedBytes"])) for s in profile["sampledTimelineSnapshots"]]
            if name.split(". ", 1)[-1].startswith(label) and got == points:  # names are numbered in display order
                return profile
        self.assertFalse(points, f"no profile of {label} with our timeline among {list(answer)}")
        return None

    def test_memory_profile_has_our_peak_timeline_and_names(self):
        for kind in ("train", "lms", "refused", "hostile"):
            facts = exports.facts[kind]
            for index, allocator in enumerate(facts.allocators):
                profile = self.profile_of(kind, index)
                if not profile:
                    continue
                points = facts.timeline(allocator=index)
                summary = profile["profileSummary"]
                self.assertEqual(int(summary["peakBytesUsageLifetime"]), allocator["peak"])
                self.assertEqual(int(summary["peakStats"]["heapAllocatedBytes"]), allocator["peak"])
                # XProf reports the last moment of the peak, headroom the first.
                last = max(i for i, p in enumerate(points) if p[1] == allocator["peak"])
                self.assertEqual(int(summary["peakStatsTimePs"]), points[last][0] * 1000)
                self.check_timeline(profile, points)
                self.check_table(profile, points[:last + 1], allocator["peak"])

    def test_the_overview_has_our_steps(self):
        for kind in ("train", "lms"):
            overview = self.tool(kind, "overview_page")
            steps = next(table for table in overview if any(column["id"] == "stepTimeMs" for column in table.get("cols", ())))
            columns = [c["id"] for c in steps["cols"]]
            got = [(row["c"][columns.index("stepnum")]["v"], round(row["c"][columns.index("stepTimeMs")]["v"] * 1e6)) for row in steps["rows"]]
            self.assertEqual(got, [(str(s["number"]), s["end_ns"] - s["begin_ns"]) for s in exports.facts[kind].steps])
            for table in overview:
                if any(column["id"] == "severity" for column in table.get("cols", ())):
                    self.assertEqual(table["rows"], [])  # "No step marker observed"...

    def test_the_memory_page_begins_with_the_device(self):
        facts = exports.facts["lms"]
        answer = self.tool("lms", "memory_profile")
        shown = [a for a in facts.allocators if a["peak"]]
        self.assertEqual(sorted(facts.devices[a["device"]]["name"] for a in shown), ["GPU:0", "GPU:0 host memory"])
        self.assertTrue(answer["memoryIds"][0].startswith("1. GPU:0_bfc"), answer["memoryIds"])
        self.assertTrue(answer["memoryIds"][1].startswith("2. GPU:0 host pool"), answer["memoryIds"])
        for profile in answer["memoryProfilePerAllocator"].values():
            # The page warns of incomplete steps if this is below 1.
            self.assertGreaterEqual(int(profile["sampledTimelineSnapshots"][-1]["activityMetadata"]["stepId"]), 1)

    def test_the_capacity_is_the_limit_of_the_allocator(self):
        for kind, limit in (("train", 48 << 20), ("lms", 1600 << 10), ("refused", 8 << 20)):
            facts = exports.facts[kind]
            (index,) = [i for i, a in enumerate(facts.allocators) if facts.devices[a["device"]]["name"] == "GPU:0" and a["peak"]]
            self.assertEqual(facts.allocators[index]["limit"], limit)
            self.assertEqual(int(self.profile_of(kind, index)["profileSummary"]["memoryCapacity"]), limit)

    def test_fragmentation_is_what_the_holes_say(self):
        seen = set()
        for kind in ("train", "lms", "refused"):
            facts = exports.facts[kind]
            for index in range(len(facts.allocators)):
                profile = self.profile_of(kind, index)
                points = facts.timeline(allocator=index)
                for i in range(0, len(points), max(1, len(points) // 40)):
                    got = profile["sampledTimelineSnapshots"][i]["aggregationStats"]["fragmentation"]
                    wanted = fragmentation(facts, index, points[:i + 1])
                    self.assertAlmostEqual(got, wanted, places=12)
                    seen.add(round(wanted, 3))
        self.assertGreater(len(seen), 3, seen)

    def check_timeline(self, profile, points):
        """Checks every point with all its attributes."""
        for snapshot, (_, _, a, frees) in zip(profile["sampledTimelineSnapshots"], points):
            activity = snapshot["activityMetadata"]
            self.assertEqual(activity["memoryActivity"], "DEALLOCATION" if frees else "ALLOCATION")
            self.assertEqual(int(activity["allocationBytes"]), a["bytes"])
            self.assertEqual(int(activity["requestedBytes"]), a["asked"])
            self.assertEqual(int(activity["address"]), a["address"])
            self.assertEqual((activity["tfOpName"], activity["regionType"], activity["tensorShape"]), (a["name"], a["tag"], a["shape"]))
            self.assertEqual(activity["dataType"], {"float32": "float", "float64": "double"}.get(a["dtype"], a["dtype"]))

    def check_table(self, profile, points, peak):
        """The ops live at the peak add up to it."""
        live = {}
        for _, _, a, frees in points:
            if frees:
                del live[a["address"]]
            else:
                live[a["address"]] = a
        wanted = Counter((a["name"], a["bytes"], a["shape"], a["tag"]) for a in live.values())
        got = Counter()
        for row in profile["activeAllocations"]:
            self.assertEqual(row["specialIndex"], "-1")  # other values mean memory without a name
            activity = profile["memoryProfileSnapshots"][int(row["snapshotIndex"])]["activityMetadata"]
            got[activity["tfOpName"], int(activity["allocationBytes"]), activity["tensorShape"], activity["regionType"]] += int(row["numOccurrences"])
        self.assertEqual(got, wanted)
        self.assertEqual(sum(key[1] * count for key, count in got.items()), peak)

    def test_trace_viewer_lists_our_ops(self):
        for kind in ("train", "lms", "hostile"):
            facts = exports.facts[kind]
            events = self.tool(kind, "trace_viewer@")["traceEvents"]
            shown = Counter((e["name"], round(e["dur"] * 1000)) for e in events if e.get("ph") == "X")
            for op in facts.ops:
                if op["end_ns"] > op["begin_ns"]:
                    self.assertTrue(shown[op["name"], op["end_ns"] - op["begin_ns"]], op)
            for step in facts.steps:
                self.assertTrue(shown[str(step["number"]), step["end_ns"] - step["begin_ns"]], step)  # in a row named steps

    def test_op_statistics_are_ours(self):
        for kind in ("train", "lms"):
            (table,) = self.tool(kind, "framework_op_stats")[:1]
            columns = [c["id"] for c in table["cols"]]
            rows = [dict(zip(columns, (c["v"] for c in row["c"]))) for row in table["rows"]]
            got = {r["operation"]: (r["occurrences"], round(r["total_time"] * 1000)) for r in rows if r["operation"] != "IDLE"}
            wanted = defaultdict(lambda: (0, 0))
            for op in exports.facts[kind].ops:
                count, total = wanted[op["name"]]
                wanted[op["name"]] = (count + 1, total + op["end_ns"] - op["begin_ns"])
            self.assertEqual(got, dict(wanted))
            self.assertIn("Matmul", {r["type"] for r in rows})

    def test_an_empty_trace_and_odd_names_do_no_harm(self):
        for kind in ("empty", "hostile", "refused"):
            for tool in ("memory_profile", "trace_viewer@", "framework_op_stats", "overview_page"):
                self.tool(kind, tool)
        self.assertFalse(self.tool("empty", "memory_profile").get("memoryProfilePerAllocator"))


class Places(unittest.TestCase):
    def fails(self, form, path, *says):
        result = program("write", form, exports.path / "train.trace", path, check=False)
        self.assertEqual(result.returncode, 2)
        for text in says:
            self.assertIn(text, result.stderr.decode())

    def test_what_cannot_be_written_is_said(self):
        for form in FORMATS:
            self.fails(form, "/proc/nothing/here", "/proc/nothing", "ENOENT")
            self.fails(form, "/dev/full", "/dev/full", "ENOSPC" if form != "xplane" else "ENOTDIR")

    def test_a_pipe_gets_it_whole(self):
        result = program("write", "chrome", exports.path / "train.trace", "/dev/stdout")
        self.assertEqual(result.stdout, exports.file("train", "chrome").read_bytes())


class Command(unittest.TestCase):
    def report(self, *arguments):
        return subprocess.run([COMMAND, "report", exports.path / "train.trace", *arguments], capture_output=True, text=True, timeout=300)

    def test_it_exports_the_same(self):
        for form in FORMATS:
            path = exports.path / f"command.{form}"
            result = self.report("--export", form, "--out", path)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
            (one,), (other,) = ([p] if p.is_file() else [f for f in p.rglob("*") if f.is_file()] for p in (path, exports.file("train", form)))
            self.assertEqual(one.name if form == "xplane" else "", other.name if form == "xplane" else "")
            self.assertEqual(one.read_bytes(), other.read_bytes())

    def test_wrong_usage_is_said(self):
        for arguments, says in ((["--export", "html\033", "--out", "x"], "expected xplane, chrome, memory_viz, rmm or pprof"),
                                (["--export", "chrome"], "--out"), (["--export", "chrome", "--out", "x", "--json"], "--json"),
                                (["--export", "chrome", "--out", "/dev/full"], "ENOSPC")):
            result = self.report(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(says, result.stderr)
            self.assertNotIn("\033", result.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1 and os.access(sys.argv[1], os.X_OK) and os.path.isfile(sys.argv[1]):
        COMMAND = Path(sys.argv.pop(1)).resolve()
        PROGRAM = COMMAND.parent / "tests" / "profile" / "test_export"
    unittest.main(verbosity=2)  # prints what is skipped, and why
