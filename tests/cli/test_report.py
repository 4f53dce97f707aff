"""headroom report and headroom diff: views of traces that are written here, so that every number is known."""
import json
import os
import unicodedata
from pathlib import Path

from command import CommandTest, main, run
from trace_file import (ALLOC, ALLOC_FAILED, EVICT, FREE, MARK, OP_BEGIN, OP_END, READ, RESTORE, STEP, STEP_END, WRITE, MAP, MOVE, UNMAP, Trace)

VIEWS = ["summary", "timeline", "op", "scope", "peak", "leaks", "tensors", "steps", "allocators"]
MIB = 1 << 20


def training(leak=True, steps=5, activation=4 * MIB, op_time=50):
    """Weights before the steps; in each step, two layers make activations that are freed again, and history grows."""
    trace = Trace(devices=(("GPU:0", 1 << 30), ("CPU:0", 1 << 34)))
    now = 1000
    trace.event(ALLOC, now, address=1 << 30, bytes=8 * MIB, op="variable", scope="model/weights", tag="weights", shape=(1024, 2048))
    trace.event(ALLOC, now, allocator=2, address=1 << 40, bytes=MIB, op="dataset", scope="input")
    for step in range(1, steps + 1):
        now += 1000
        trace.event(STEP, now, bytes=step)
        for layer in (1, 2):
            scope = f"model/layer_{layer}"
            trace.event(OP_BEGIN, now + 100 * layer, op="matmul", scope=scope)
            trace.event(ALLOC, now + 100 * layer + 1, address=(2 << 30) + layer * 64 * MIB, bytes=activation * layer, op="matmul", scope=scope, shape=(64, 1024))
            trace.event(READ, now + 100 * layer + 2, address=1 << 30, op="matmul")
            trace.event(WRITE, now + 100 * layer + 2, address=(2 << 30) + layer * 64 * MIB, op="matmul")
            trace.event(OP_END, now + 100 * layer + op_time, bytes=40, op="matmul", scope=scope)
        if leak:
            trace.event(ALLOC, now + 300, address=(3 << 30) + step * MIB, bytes=4096, op="append", scope="history")
        trace.event(EVICT, now + 310, address=1 << 30, bytes=8 * MIB, op="variable", scope="model/weights")
        trace.event(RESTORE, now + 320, address=1 << 30, bytes=8 * MIB, op="variable", scope="model/weights")
        for layer in (1, 2):
            trace.event(FREE, now + 400 + layer, address=(2 << 30) + layer * 64 * MIB)
        trace.event(STEP_END, now + 500, bytes=step)
    trace.event(ALLOC_FAILED, now + 600, bytes=1 << 31, op="matmul", scope="model/layer_2")
    return trace


def with_names(op, scope, steps=4):
    """A leak, with names as long as in real models; ops with durations and uses."""
    trace = Trace()
    for step in range(1, steps + 1):
        now = 1_000_000 * step
        trace.event(STEP, now, bytes=step)
        trace.event(OP_BEGIN, now + 1, op=op, scope=scope)
        trace.event(ALLOC, now + 2, address=step << 30, bytes=700 * MIB, op=op, scope=scope, tag="activations_and_more", shape=(32, 16, 2048, 2048))
        trace.event(WRITE, now + 3, address=step << 30, op=op)
        trace.event(OP_END, now + 500_000, bytes=400_000, op=op, scope=scope)
        trace.event(STEP_END, now + 900_000, bytes=step)
    return trace


def two_scopes(at_peak=4 * MIB):
    """Scope a has 10 MiB at first, and [at_peak] at the peak of the device, which b's 30 MiB cause."""
    trace = Trace()
    trace.event(ALLOC, 1000, address=1 << 30, bytes=10 * MIB, op="load", scope="a/input")
    trace.event(FREE, 2000, address=1 << 30)
    trace.event(STEP, 3000, bytes=1)
    trace.event(ALLOC, 3001, address=2 << 30, bytes=at_peak, op="relu", scope="a")
    trace.event(ALLOC, 3002, address=3 << 30, bytes=30 * MIB, op="matmul", scope="b")
    trace.event(FREE, 3003, address=3 << 30)
    trace.event(ALLOC, 3004, address=4 << 30, bytes=5 * MIB, op="relu", scope="a")
    trace.event(STEP_END, 4000, bytes=1)
    return trace


def moving():
    """8 MiB of weights are evicted and restored in both steps; the first step makes 4 MiB of state, which is evicted and restored
    too, the second makes nothing."""
    trace = Trace()
    weights, state, host_weights, host_state = 1 << 30, 2 << 30, 1 << 40, 2 << 40
    now, where = 1000, weights
    trace.event(ALLOC, now, address=weights, bytes=8 * MIB, op="variable", tag="weights")
    for step in (1, 2):
        now += 1000
        trace.event(STEP, now, bytes=step)
        if step == 1:
            trace.event(ALLOC, now + 1, address=state, bytes=4 * MIB, op="full", tag="optimizer")
        # The first time a copy is made; the second time the host copy is valid, and the event is recorded after the free.
        if step == 1:
            trace.event(EVICT, now + 10, address=where, address2=host_weights, bytes=8 * MIB, op="variable", tag="weights")
        trace.event(FREE, now + 11, address=where)
        if step == 2:
            trace.event(EVICT, now + 12, address=where, address2=host_weights, bytes=0, op="variable", tag="weights")
        where += 64 * MIB
        trace.event(ALLOC, now + 20, address=where, bytes=8 * MIB, op="variable", tag="weights")
        trace.event(RESTORE, now + 21, address=where, address2=host_weights, bytes=8 * MIB, op="variable", tag="weights")
        if step == 1:
            trace.event(EVICT, now + 30, address=state, address2=host_state, bytes=4 * MIB, op="full", tag="optimizer")
            trace.event(FREE, now + 31, address=state)
            trace.event(ALLOC, now + 40, address=state + 64 * MIB, bytes=4 * MIB, op="full", tag="optimizer")
            trace.event(RESTORE, now + 41, address=state + 64 * MIB, address2=host_state, bytes=4 * MIB, op="full", tag="optimizer")
        trace.event(STEP_END, now + 500, bytes=step)
    # Defragmentation moves a block: it does not count as a new one.
    trace.event(STEP, now + 600, bytes=3)
    trace.event(ALLOC, now + 601, address=where + 64 * MIB, bytes=8 * MIB, op="variable", tag="weights")
    trace.event(MOVE, now + 602, address=where, address2=where + 64 * MIB, bytes=8 * MIB)
    trace.event(FREE, now + 603, address=where)
    trace.event(STEP_END, now + 700, bytes=3)
    return trace


def fragmented():
    """An allocator with 16 MiB, then 20, then 12: two blocks with a hole between them, one block across two adjacent regions."""
    trace, base = Trace(), 1 << 30
    trace.event(MAP, 0, address=base, bytes=16 * MIB)
    trace.event(ALLOC, 1000, address=base, bytes=4 * MIB, op="a")
    trace.event(ALLOC, 1001, address=base + 8 * MIB, bytes=4 * MIB, op="b")  # free: 4 and 4
    trace.event(FREE, 11000, address=base)                                   # free: 8 and 4
    trace.event(ALLOC_FAILED, 11500, bytes=64 * MIB, op="c")
    trace.event(MAP, 21000, address=base + 16 * MIB, bytes=4 * MIB)
    trace.event(ALLOC, 21001, address=base + 14 * MIB, bytes=4 * MIB, op="d")  # free: 8, 2 and 2
    trace.event(FREE, 31000, address=base + 14 * MIB)
    trace.event(UNMAP, 31001, address=base + 12 * MIB, bytes=8 * MIB)          # free: 8
    trace.event(FREE, 40000, address=base + 8 * MIB)                           # free: 12
    return trace


INNER = (("forward", "model.py", 12), ("main", "train.py", 3))
OUTER = (("", "", 0, "/opt/libplug\x1b[31min.so", 0x1234), ("main", "train.py", 4))


def called():
    """Three steps; each leaves one block of a stack behind, and frees one of another."""
    trace = Trace()
    trace.event(MARK, 0)
    for step in range(1, 4):
        now = 1000 * step
        trace.event(STEP, now, bytes=step)
        trace.event(ALLOC, now + 1, address=step << 30, bytes=3 * MIB, op="append", stack=INNER)
        trace.event(ALLOC, now + 2, address=1, bytes=MIB, op="append", stack=OUTER)
        trace.event(ALLOC, now + 3, address=2 << 20, bytes=MIB)
        trace.event(FREE, now + 4, address=1)
        trace.event(FREE, now + 5, address=2 << 20)
        trace.event(STEP_END, now + 6, bytes=step)
    trace.event(ALLOC_FAILED, 9000, bytes=64 * MIB, op="append", stack=OUTER)
    return trace


class Stacks(CommandTest):
    INNER = [{"function": "forward", "file": "model.py", "line": 12}, {"function": "main", "file": "train.py", "line": 3}]
    OUTER = [{"module": "/opt/libplug\x1b[31min.so", "offset": 0x1234}, {"function": "main", "file": "train.py", "line": 4}]

    def setUp(self):
        super().setUp()
        self.trace = self.file("called.hrt", called().bytes())

    def test_the_peak_has_a_table_by_stack_that_adds_up(self):
        report = self.json("report", self.trace, "--view", "peak")["reports"][0]
        rows = [(row["bytes"], row["allocations"], row["stack"]) for row in report["by_stack"]["rows"]]
        self.assertEqual(rows[0], (9 * MIB, 3, self.INNER))
        self.assertCountEqual(rows[1:], [(MIB, 1, self.OUTER), (MIB, 1, [])])
        self.assertEqual(report["by_stack"]["total"]["bytes"], 11 * MIB)
        self.assertEqual(report["by_tensor"]["rows"][0]["stack"], self.INNER)

    def test_text_has_the_frames_below_a_row_and_fits(self):
        plain = self.passes("report", self.trace, "--view", "peak")
        self.assertNotIn("model.py", plain)
        text = self.passes("report", self.trace, "--view", "peak", "--stacks", "--width", 60)
        self.assertIn("By call stack", text)
        self.assertIn("    forward (model.py:12)\n    main (train.py:3)\n", text)
        self.assertIn("    libplug\\x1B[31min.so+0x1234\n    main (train.py:4)\n", text)  # names cannot steer the terminal
        self.assertLessEqual(max(map(len, text.splitlines())), 60)
        self.assertIn("forward (model.py:12)", self.passes("report", self.trace, "--view", "tensors", "--stacks"))

    def test_leaks_are_told_apart_by_their_stacks(self):
        result = run("report", self.trace, "--view", "leaks", "--json")
        self.assertEqual(result.returncode, 1, result.stderr)
        rows = json.loads(result.stdout)["reports"][0]["by_site"]["rows"]
        self.assertEqual([(row["op"], row["growing"], row["stack"]) for row in rows], [("append", True, self.INNER)])

    def test_stacks_are_refused_where_there_are_none(self):
        self.fails(2, "report", self.file("train.hrt", training().bytes()), "--view", "peak", "--stacks", says="has no call stacks")
        self.fails(2, "report", self.trace, "--view", "op", "--stacks", says="--stacks does nothing in the op view")
        self.assertNotIn("by_stack", self.json("report", self.file("t.hrt", training().bytes()), "--view", "peak")["reports"][0])

    def test_exports_have_the_stacks(self):
        out = Path(self.folder.name) / "out"
        self.passes("report", self.trace, "--export", "memory_viz", "--out", out)
        (trace,) = json.loads(out.read_text())["device_traces"]
        frames = [entry["frames"] for entry in trace if entry["action"] in ("alloc", "oom")]
        self.assertEqual(frames[0], [{"filename": "", "line": 0, "name": "append"}, {"filename": "model.py", "line": 12, "name": "forward"},
                                     {"filename": "train.py", "line": 3, "name": "main"}])
        self.assertEqual(frames[2], [])
        self.assertEqual(frames[-1][1]["name"], "libplug\x1b[31min.so+0x1234")
        self.passes("report", self.trace, "--export", "chrome", "--out", out)
        marks = [event["args"]["stack"] for event in json.loads(out.read_text())["traceEvents"] if event["name"] == "request refused"]
        self.assertEqual(marks, ["libplug\x1b[31min.so+0x1234 < main (train.py:4)"])
        self.passes("report", self.trace, "--export", "pprof", "--out", out)
        for text in (b"forward", b"model.py", b"train.py", b"/opt/libplug"):
            self.assertIn(text, out.read_bytes())
        self.passes("report", self.trace, "--html", out)


class Views(CommandTest):
    def setUp(self):
        super().setUp()
        self.trace = self.file("train.hrt", training().bytes())
        self.peak = 8 * MIB + 12 * MIB + 5 * 4096

    def report(self, view, *arguments, status=0):
        result = run("report", self.trace, "--view", view, "--json", *arguments)
        self.assertEqual(result.returncode, status, result.stderr)
        return json.loads(result.stdout)

    def table(self, view, key=None, *arguments, status=0):
        return self.report(view, *arguments, status=status)["reports"][0][key or view]

    def rows(self, table, key):
        return {row[key]: row for row in table["rows"]}

    def test_summary(self):
        report = self.report("summary")
        self.assertEqual([r["device"] for r in report["reports"]], ["GPU:0", "CPU:0"])
        facts = report["reports"][0]["summary"]
        self.assertEqual(facts["peak_bytes"], self.peak)
        self.assertEqual(facts["peak_step"], 5)
        self.assertEqual(facts["end_bytes"], 8 * MIB + 5 * 4096)
        self.assertEqual((facts["steps"], facts["ops"], facts["allocations"], facts["refused"]), (5, 10, 16, 1))
        self.assertEqual((facts["out_bytes"], facts["in_bytes"]), (40 * MIB, 40 * MIB))
        self.assertEqual(report["reports"][1]["summary"]["peak_bytes"], MIB)
        self.assertEqual(report["trace"]["complete"], True)
        self.assertEqual(report["trace"]["skipped"], 0)

    def test_ops(self):
        table = self.table("op", None, "--show-input-output")
        rows = self.rows(table, "name")
        matmul = rows["matmul"]
        self.assertEqual((matmul["occurrence"], matmul["micros"], matmul["accelerator_micros"]), (10, 0.5, 0.4))
        self.assertEqual((matmul["bytes"], matmul["allocations"], matmul["peak_bytes"], matmul["residual_bytes"]), (60 * MIB, 10, 12 * MIB, 0))
        self.assertEqual((matmul["input_bytes"], matmul["output_bytes"]), (80 * MIB, 60 * MIB))
        self.assertEqual(rows["append"]["residual_bytes"], 5 * 4096)
        self.assertEqual(table["total"]["at_peak_bytes"], self.peak)
        self.assertEqual([row["name"] for row in table["rows"]], ["matmul", "variable", "append"])

    def test_scopes_have_self_and_total(self):
        rows = self.rows(self.table("scope"), "name")
        self.assertEqual(rows[""]["at_peak_bytes"], self.peak)
        self.assertEqual((rows["model"]["bytes"], rows["model"]["self_bytes"]), (68 * MIB, 0))
        self.assertEqual((rows["model/layer_2"]["bytes"], rows["model/layer_2"]["self_bytes"]), (40 * MIB, 40 * MIB))
        self.assertEqual((rows["model"]["micros"], rows["model/layer_1"]["micros"]), (0.5, 0.25))
        self.assertEqual((rows[""]["depth"], rows["model"]["depth"], rows["model/layer_2"]["depth"]), (0, 1, 2))

    def test_at_peak_is_what_was_live_at_the_peak_of_the_device(self):
        self.trace = self.file("scopes.hrt", two_scopes().bytes())
        for arguments in ([], ["--step", "1"]):
            scope = ["--name-scope", "a", *arguments]
            own_peak = 9 * MIB if arguments else 10 * MIB  # the 10 MiB were freed before the step
            self.assertEqual(self.table("op", None, *scope)["total"]["at_peak_bytes"], 4 * MIB)
            root = self.rows(self.table("scope", None, *scope), "name")["a"]
            self.assertEqual((root["at_peak_bytes"], root["peak_bytes"]), (4 * MIB, own_peak))
            report = self.report("peak", *scope)["reports"][0]
            self.assertEqual((report["peak"]["peak_bytes"], report["peak"]["at_peak_bytes"], report["peak"]["allocations"]), (34 * MIB, 4 * MIB, 1))
            for key in ("by_op", "by_scope", "by_tag", "by_tensor"):
                self.assertEqual(report[key]["total"]["bytes"], 4 * MIB, key)
            report = self.report("summary", *scope)["reports"][0]
            self.assertEqual((report["summary"]["peak_bytes"], report["summary"]["at_peak_bytes"]), (own_peak, 4 * MIB))
            self.assertEqual(report["by_op"]["total"]["bytes"], 4 * MIB)
        self.assertIn("at the device's peak  4.0 MiB", self.passes("report", self.trace, "--name-scope", "a"))
        self.assertIn("of it in the scope  4.0 MiB", self.passes("report", self.trace, "--view", "peak", "--name-scope", "a"))
        self.assertNotIn("device's peak", self.passes("report", self.trace))
        other = self.file("other.hrt", two_scopes(at_peak=6 * MIB).bytes())
        report = json.loads(self.passes("diff", self.trace, other, "--name-scope", "a", "--json"))["reports"][0]
        self.assertEqual(report["by_op"]["total"]["at_peak_change"], 2 * MIB)
        self.assertIn({"what": "at the device's peak", "a": 4 * MIB, "b": 6 * MIB, "change": 2 * MIB},
                      [{k: row[k] for k in ("what", "a", "b", "change")} for row in report["memory"]["rows"]])

    def test_tensors_that_come_back_are_not_left_behind(self):
        self.trace = self.file("moving.hrt", moving().bytes())
        rows = self.table("steps")["rows"]
        self.assertEqual([row["residual_bytes"] for row in rows], [4 * MIB, 0, 0])
        self.assertEqual([row["allocations"] for row in rows], [3, 1, 1])
        report = self.report("leaks")["reports"][0]
        self.assertEqual([(row["left_bytes"], row["left_allocations"], row["kept_bytes"]) for row in report["by_step"]["rows"]],
                         [(4 * MIB, 1, 4 * MIB), (0, 0, 0), (0, 0, 0)])
        for step, left in ((1, 4 * MIB), (2, 0), (3, 0)):
            table = self.table("op", None, "--step", step)
            self.assertEqual(table["total"]["residual_bytes"], left)
        self.assertEqual(self.table("op")["total"]["residual_bytes"], 12 * MIB)  # of the whole recording

    def test_allocators_have_counts_reserved_memory_and_fragmentation(self):
        self.trace = self.file("fragmented.hrt", fragmented().bytes())
        report = self.report("allocators", "--max-rows", "4")["reports"][0]
        (row,) = report["allocators"]["rows"]
        self.assertEqual([row[key] for key in ("name", "kind", "allocations", "frees", "refused", "live")], ["bfc", "bfc", 3, 3, 1, 0])
        self.assertEqual([row[key] for key in ("bytes", "peak_bytes", "end_bytes", "peak_reserved_bytes", "reserved_bytes")],
                         [12 * MIB, 8 * MIB, 0, 20 * MIB, 12 * MIB])
        # When 8 MiB were first in use, 8 of 16 reserved MiB were free, 4 of them in the largest hole.
        self.assertEqual((row["peak_free_bytes"], row["peak_fragmentation"]), (8 * MIB, 0.5))
        columns = ("begin_micros", "allocations", "frees", "refused", "live", "peak_bytes", "end_bytes", "reserved_bytes", "free_bytes", "largest_free_bytes", "fragmentation")
        self.assertEqual([[row[key] for key in columns] for row in report["over_time"]["rows"]], [
            [0, 2, 0, 0, 2, 8 * MIB, 8 * MIB, 16 * MIB, 8 * MIB, 4 * MIB, 0.5],
            [10, 0, 1, 1, 1, 8 * MIB, 4 * MIB, 16 * MIB, 12 * MIB, 8 * MIB, 0.333333],
            [20, 1, 0, 0, 2, 8 * MIB, 8 * MIB, 20 * MIB, 12 * MIB, 8 * MIB, 0.333333],
            [30, 0, 2, 0, 0, 8 * MIB, 0, 12 * MIB, 12 * MIB, 12 * MIB, 0]])
        text = self.passes("report", self.trace, "--view", "allocators", "--width", "80")
        for part in ("free at peak", "frag.", "50.0%", "33.3%", "Over time", "reserved"):
            self.assertIn(part, text)
        self.fails(2, "report", self.trace, "--view", "allocators", "--name-scope", "", says="--name-scope does nothing in the allocators view")

    def test_the_summary_groups_by_tag_where_the_page_does(self):
        self.trace = self.file("moving.hrt", moving().bytes())  # two tags
        self.assertIn("At the peak, by tag", self.passes("report", self.trace))
        self.assertNotIn("by op", self.passes("report", self.trace))
        report = self.report("summary")["reports"][0]
        self.assertEqual({row["tag"]: row["bytes"] for row in report["by_tag"]["rows"]}, {"weights": 16 * MIB, "optimizer": 4 * MIB})
        self.assertEqual({row["op"]: row["bytes"] for row in report["by_op"]["rows"]}, {"variable": 16 * MIB, "full": 4 * MIB})
        one = self.file("scopes.hrt", two_scopes().bytes())  # none
        self.assertIn("At the peak, by op", self.passes("report", one))

    def test_headings_say_what_they_count(self):
        self.trace = self.file("moving.hrt", moving().bytes())
        for view, heading in (("op", "allocs"), ("op", "not freed"), ("steps", "not freed"), ("steps", "start"), ("tensors", "start")):
            text = self.passes("report", self.trace, "--view", view, "--width", "200")
            self.assertIn(heading, text)
            for cryptic in ("times", "left", "from"):
                self.assertNotIn(cryptic, text.split())

    def test_max_depth_cuts_the_tree(self):
        self.assertEqual(set(self.rows(self.table("scope", None, "--max-depth", 1), "name")), {"", "model", "history"})

    def test_hidden_scopes_are_counted_one_by_one(self):
        for arguments in (["--min-bytes", "1GiB"], ["--hide-name-regexes", ".*"]):
            table = self.table("scope", None, "--device", "GPU", *arguments)
            self.assertEqual((len(table["rows"]), table["hidden_rows"]), (1, 5), arguments)  # model, weights, 2 layers, history
        self.assertEqual(self.table("scope", None, "--max-depth", "1")["hidden_rows"], 3)

    def test_each_level_of_the_tree_is_two_columns_deeper(self):
        trace = Trace()
        trace.event(ALLOC, 1, address=1 << 30, bytes=MIB, op="o", scope="a/b/c/d/e/f")
        lines = self.passes("report", self.file("levels.hrt", trace.bytes()), "--view", "scope").splitlines()
        self.assertEqual([next(line for line in lines if line.lstrip().startswith(name + " ")).index(name) for name in "abcdef"], [2, 4, 6, 8, 10, 12])

    def test_deep_scopes_keep_their_names(self):
        trace = Trace()
        trace.event(ALLOC, 10, address=4096, bytes=512, op="op", scope="/".join(f"level_{i}" for i in range(25)))
        deep = self.file("deep.hrt", trace.bytes())
        for width in (40, 80, 133):
            text = self.passes("report", deep, "--view", "scope", "--width", width)
            self.assertEqual([f"level_{i}" for i in range(25) if not any(line.split()[:1] == [f"level_{i}"] for line in text.splitlines())], [], width)
            self.assertLessEqual(max(map(len, text.splitlines())), width)

    def test_the_peak_adds_up(self):
        report = self.report("peak")["reports"][0]
        self.assertEqual(report["peak"]["peak_bytes"], self.peak)
        for key in ("by_op", "by_scope", "by_tag", "by_tensor"):
            self.assertEqual(sum(row["bytes"] for row in report[key]["rows"]), self.peak, key)
            self.assertEqual(report[key]["total"]["bytes"], self.peak, key)
        self.assertEqual([(row["op"], row["shape"]) for row in report["by_tensor"]["rows"][:2]], [("matmul", "[64,1024]"), ("variable", "[1024,2048]")])
        self.assertEqual({row["tag"]: row["bytes"] for row in report["by_tag"]["rows"]}, {"weights": 8 * MIB, "": 12 * MIB + 5 * 4096})

    def test_leaks(self):
        report = self.report("leaks", status=1)["reports"][0]
        self.assertEqual(report["by_site"]["rows"][0]["op"], "append")
        self.assertEqual([row["growing"] for row in report["by_site"]["rows"]], [True, False])
        self.assertEqual(report["leaks"]["growth_bytes_per_step"], 4096)
        self.assertEqual([row["left_bytes"] for row in report["by_step"]["rows"]], [4096] * 5)

    def test_without_a_leak_the_status_is_0(self):
        sound = self.file("sound.hrt", training(leak=False).bytes())
        self.passes("report", sound, "--view", "leaks")
        self.assertEqual(self.json("report", sound, "--view", "leaks")["reports"][0]["leaks"]["growing"], 0)

    def test_steps(self):
        rows = self.table("steps")["rows"]
        self.assertEqual([row["step"] for row in rows], [1, 2, 3, 4, 5])
        self.assertEqual([row["end_bytes"] for row in rows], [8 * MIB + 4096 * step for step in range(1, 6)])
        self.assertEqual([row["peak_bytes"] for row in rows], [20 * MIB + 4096 * step for step in range(1, 6)])
        self.assertEqual({(row["ops"], row["out_bytes"], row["micros"]) for row in rows}, {(2, 8 * MIB, 0.5)})

    def test_tensors(self):
        rows = self.table("tensors", None, "--max-rows", 3)["rows"]
        self.assertEqual([row["bytes"] for row in rows], [8 * MIB] * 3)
        table = self.table("tensors", None, "--order-by", "uses")
        self.assertEqual((table["rows"][0]["op"], table["rows"][0]["uses"]), ("variable", 10))
        self.assertEqual(table["total"]["rows"], 16)

    def test_timeline(self):
        rows = self.table("timeline")["rows"]
        self.assertEqual(rows[0]["begin_micros"], 0)
        self.assertEqual([row["end_micros"] for row in rows[:-1]], [row["begin_micros"] for row in rows[1:]])
        self.assertEqual(rows[-1]["end_micros"], 6.6)  # of the last event
        for width in (40, 80):
            lines = self.passes("report", self.trace, "--view", "timeline", "--device", "GPU", "--width", width).splitlines()
            axis = next(i for i, line in enumerate(lines) if "0 ns" in line)
            self.assertTrue(lines[axis].endswith(" 6.6 us"), lines[axis])
            out, back, refused = lines[axis + 1:axis + 4]
            self.assertTrue(out.startswith(" moved out ") and back.startswith("  moved in ") and refused.startswith("   refused "), lines)
            if width == 80:
                self.assertEqual((out.count("█"), back.count("█"), refused.count("█")), (5, 5, 1))
                self.assertEqual(refused[-1], "█")
        # If nothing moves, moves are not mentioned.
        text = self.passes("report", self.trace, "--view", "timeline", "--device", "CPU")
        self.assertFalse("moved" in text or "refused" in text)

    def test_one_step_and_one_scope(self):
        facts = self.report("summary", "--step", "1,3-4")["reports"]
        self.assertEqual([(r["device"], r["step"]) for r in facts], [(d, s) for d in ("GPU:0", "CPU:0") for s in (1, 3, 4)])
        self.assertEqual(facts[1]["summary"]["peak_bytes"], 20 * MIB + 3 * 4096)
        facts = self.report("summary", "--name-scope", "model/layer_1", "--device", "GPU")["reports"]
        self.assertEqual([r["summary"]["peak_bytes"] for r in facts], [4 * MIB])

    def test_filters_hide_rows_and_add_them_up(self):
        for arguments in (["--min-bytes", "1MiB"], ["--hide-name-regexes", "app.*"], ["--show-name-regexes", "mat.*,vari[a]ble"], ["--max-rows", "2"]):
            table = self.table("op", None, *arguments)
            self.assertEqual({row["name"] for row in table["rows"]}, {"matmul", "variable"}, arguments)
            self.assertEqual(table["hidden"]["rows"], 1)
            self.assertEqual(table["hidden"]["at_peak_bytes"], 5 * 4096)
            self.assertEqual(table["total"]["at_peak_bytes"], self.peak)
        self.assertEqual([r["name"] for r in self.table("op", None, "--order-by", "name")["rows"]], ["append", "matmul", "variable"])
        self.assertEqual([r["name"] for r in self.table("op", None, "--min-micros", "1")["rows"]], [])
        # The whole name must match.
        self.assertEqual(self.table("op", None, "--show-name-regexes", "mat")["rows"], [])

    def test_what_has_no_name_is_called_none(self):
        trace = Trace()
        trace.event(ALLOC, 10, address=4096, bytes=512, op="", scope="")
        trace.event(ALLOC, 20, address=8192, bytes=512, op="named", scope="")
        path = self.file("unnamed.hrt", trace.bytes())
        text = self.passes("report", path, "--view", "op")
        self.assertIn("(none)", text)
        self.assertNotIn("(model)", text)
        self.assertIn("(model)", self.passes("report", path, "--view", "scope"))
        for view, table, key in (("op", "op", "name"), ("peak", "by_op", "op"), ("tensors", "tensors", "op")):
            rows = self.json("report", path, "--view", view, "--show-name-regexes", "[(]none[)]")["reports"][0][table]["rows"]
            self.assertEqual([row[key] for row in rows], [""], view)
            rows = self.json("report", path, "--view", view, "--hide-name-regexes", ".none.")["reports"][0][table]["rows"]
            self.assertEqual([row[key] for row in rows], ["named"], view)

    def test_order_is_that_of_what_is_shown(self):
        trace = Trace()
        shapes = [(64, 4), (8, 4), (1024,), None, (8, 16), (8,)]
        for i, shape in enumerate(shapes):
            trace.event(ALLOC, 10 + i, address=4096 * (i + 1), bytes=512, op="op", shape=shape, dtype=(1, 4, 3, 2, 1, 4)[i])
        path = self.file("shapes.hrt", trace.bytes())
        rows = self.json("report", path, "--view", "tensors", "--order-by", "shape")["reports"][0]["tensors"]["rows"]
        self.assertEqual([row["shape"] for row in rows], ["", "[8,4]", "[8,16]", "[8]", "[64,4]", "[1024]"])
        rows = self.json("report", path, "--view", "tensors", "--order-by", "dtype")["reports"][0]["tensors"]["rows"]
        self.assertEqual([row["dtype"] for row in rows], sorted(row["dtype"] for row in rows))
        self.assertEqual(len({row["dtype"] for row in rows}), 4)

    def test_columns_can_be_left_out(self):
        row = self.table("op", None, "--show-memory", "no")["rows"][0]
        self.assertNotIn("bytes", row)
        self.assertIn("micros", row)
        row = self.table("op", None, "--show-time", "no")["rows"][0]
        self.assertNotIn("micros", row)
        self.assertNotIn("input_bytes", row)

    def test_presets(self):
        report = self.json("report", self.trace, "--preset", "time_and_memory")
        self.assertEqual(report["view"], "scope")
        self.assertEqual(report["reports"][0]["scope"]["order_by"], "micros")
        self.assertEqual(self.json("report", self.trace, "--preset", "memory")["view"], "op")

    def test_out_writes_the_same_to_a_file(self):
        target = self.trace.parent / "profile.txt"
        self.assertEqual(self.passes("report", self.trace, "--view", "op", "--out", target), "")
        self.assertEqual(target.read_text(), self.passes("report", self.trace, "--view", "op"))

    def test_text_fits_the_terminal_and_has_colour_only_there(self):
        for width in (40, 60, 80, 133, 1000):
            for view in VIEWS:
                text = run("report", self.trace, "--view", view, "--width", width).stdout
                self.assertNotIn("\033", text)
                self.assertLessEqual(max(map(len, text.splitlines())), width, (view, width))
                self.assertFalse([line for line in text.splitlines() if view != "timeline" and "%" in line], view)
        self.assertIn("\033[", self.on_terminal("report", self.trace))
        self.assertNotIn("\033", self.on_terminal("report", self.trace, NO_COLOR="1"))
        ascii_only = self.passes("report", self.trace, env={"LC_ALL": "en_US.ISO-8859-1"})
        self.assertTrue(ascii_only.isascii())

    def headings(self, path, view, title, width):
        """The words of the line below a table's title, and the line below that."""
        lines = run("report", path, "--view", view, "--width", width).stdout.splitlines()
        return lines[lines.index(title) + 1].split(), lines[lines.index(title) + 2]

    def test_numbers_stay_when_names_are_long(self):
        path = self.file("long.hrt", with_names("attention_softmax_gradient", "transformer/layer_11/attention/output").bytes())
        stays = {
            40: {"leaks": "op grown alive", "op": "op runs time", "tensors": "op bytes lived", "steps": "step time peak"},
            60: {"leaks": "op grown alive grows steps blocks", "op": "op runs time on device at peak", "tensors": "op bytes lived idle uses start"},
            80: {"leaks": "op grown alive grows steps blocks scope shape", "op": "op runs time on device at peak allocated allocs", "tensors": "op bytes lived idle uses shape"},
            100: {"leaks": "op grown alive grows steps blocks scope shape", "tensors": "op bytes lived idle uses shape dtype scope start alive"},
        }
        titles = {"leaks": "Alive after the last step", "op": "Ops", "tensors": "Tensors", "steps": "Steps"}
        for width, views in stays.items():
            for view in VIEWS:
                text = run("report", path, "--view", view, "--width", width).stdout
                self.assertLessEqual(max(map(len, text.splitlines())), width, (view, width))
            for view, expected in views.items():
                words, row = self.headings(path, view, titles[view], width)
                self.assertEqual(words[:len(expected.split())], expected.split(), (view, width))
                if view == "leaks":
                    self.assertIn("2.1 GiB", row)
                    self.assertIn("2.7 GiB", row)
                    self.assertIn("attention_", row)

    def test_wide_characters_fit_the_terminal(self):
        def columns(line):
            return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)
        for op, scope in (("注意機構の勾配計算とソフトマックス" * 2, "変圧器/第十一層/注意/出力" * 2), ("한국어이름이긴연산자", "모형/층"), ("e\u0301" * 40, "a\u0301/" * 30)):
            path = self.file("wide.hrt", with_names(op, scope).bytes())
            for width in (40, 61, 80, 133):
                for view in VIEWS:
                    text = run("report", path, "--view", view, "--width", width).stdout
                    self.assertLessEqual(max(map(columns, text.splitlines())), width, (op, view, width))
            # Numbers are aligned with their headings.
            lines = self.passes("report", path, "--view", "peak", "--width", 80).splitlines()
            at = lines.index("By op") + 1
            self.assertEqual(len({columns(line) for line in lines[at:at + 2]}), 1)

    def test_names_cannot_hide_characters_or_turn_the_direction_of_writing(self):
        turns = "\u061c\u200b\u200e\u200f\u2028\u202a\u202e\u2060\u2066\u2069\ufeff\U000e0001"
        trace = Trace()
        trace.event(ALLOC, 10, address=4096, bytes=512, op=f"a{turns}b", scope="x")
        text = self.passes("report", self.file("bidi.hrt", trace.bytes()), "--view", "op", "--width", 400)
        self.assertFalse(set(turns) & set(text))
        self.assertIn("\\xE2\\x80\\xAE", text)

    def test_names_cannot_steer_the_terminal(self):
        trace = Trace()
        trace.event(ALLOC, 10, address=4096, bytes=512, op="evil\033[2J", scope="a/\x07b")
        hostile = self.file("hostile.hrt", trace.bytes())
        for view in VIEWS:
            text = self.passes("report", hostile, "--view", view)
            self.assertNotIn("\033", text)
            self.assertNotIn("\x07", text)
        self.assertIn("evil\\x1B[2J", self.passes("report", hostile, "--view", "op"))
        self.assertEqual(self.json("report", hostile, "--view", "op")["reports"][0]["op"]["rows"][0]["name"], "evil\033[2J")

    def test_a_trace_with_nothing_in_it(self):
        empty = self.file("empty.hrt", Trace().bytes())
        for view in VIEWS:
            self.passes("report", empty, "--view", view)
            self.assertEqual(len(self.json("report", empty, "--view", view)["reports"]), 1)

    def test_a_trace_that_was_cut_says_so(self):
        cut = self.file("cut.hrt", training().bytes()[:-900])
        self.assertIn("was not closed", self.passes("report", cut))


class BadQuestions(CommandTest):
    def setUp(self):
        super().setUp()
        self.trace = self.file("train.hrt", training().bytes())

    def test_options(self):
        cases = [
            (["--view", "opp"], 'no view "opp"'), (["--step", "9"], "no step 9; it has 5, from 1 to 5"), (["--step", "1,,2"], "not a list of steps"),
            (["--step", "1-99"], "at most 64"), (["--device", "TPU:0"], "it has GPU:0, CPU:0"), (["--show-name-regexes", "a(b"], "not a regular expression"),
            (["--hide-name-regexes", "[z-a]"], "not a regular expression"), (["--order-by", "beauty", "--view", "op"], 'no "beauty" in this view'),
            (["--preset", "everything"], "time_and_memory"), (["--show-memory", "maybe"], '"maybe"'), (["--width", "5"], "40 to 1000"),
            (["--min-bytes", "much"], '"much"'), (["--out", "/nowhere/at/all"], "/nowhere/at/all"),
        ]
        for arguments, says in cases:
            with self.subTest(arguments=arguments):
                self.fails(2, "report", self.trace, *arguments, says=says)

    def test_files(self):
        self.fails(2, "report", "/nowhere/at/all.hrt", says="/nowhere/at/all.hrt")
        self.fails(2, "report", self.file("letter.txt", "this is no trace" * 100), says=["letter.txt: line 1", "or a Headroom trace"])
        self.fails(2, "report", self.file("short.hrt", b"\x89HRT"), says="ends at byte 4")
        self.fails(2, "report", self.file("new.hrt", training().bytes(major=2)), says="version 2.1")
        self.fails(2, "report", self.trace.parent, says=str(self.trace.parent))
        self.fails(2, "report", says="TRACE is missing")

    def test_a_full_disk(self):
        with open("/dev/full", "w") as full:
            self.fails(2, "report", self.trace, stdout=full, says="cannot write to standard output")
            self.fails(2, "report", self.trace, "--json", stdout=full, says="cannot write to standard output")
            self.fails(2, "diff", self.trace, self.trace, stdout=full, says="cannot write to standard output")
        self.fails(2, "report", self.trace, "--out", "/dev/full", says="/dev/full")


class Diff(CommandTest):
    def setUp(self):
        super().setUp()
        self.before = self.file("before.hrt", training().bytes())
        self.after = self.file("after.hrt", training(leak=False, activation=3 * MIB).bytes())

    def test_changes_add_up_to_the_change_of_the_peak(self):
        report = self.json("diff", self.before, self.after)["reports"][0]
        memory = {row["what"]: row for row in report["memory"]["rows"]}
        change = (8 + 9) * MIB - (8 + 12) * MIB - 5 * 4096
        self.assertEqual(memory["peak"]["change"], change)
        for key in ("by_op", "by_scope"):
            self.assertEqual(sum(row["at_peak_change"] for row in report[key]["rows"]), change, key)
            self.assertEqual(report[key]["total"]["at_peak_change"], change, key)
        self.assertEqual(report["by_op"]["rows"][0]["name"], "matmul")
        self.assertEqual(report["by_op"]["rows"][0]["bytes_change"], -15 * MIB)
        self.assertEqual([r["device"] for r in self.json("diff", self.before, self.after)["reports"]], ["GPU:0", "CPU:0"])

    def test_a_trace_is_no_different_from_itself(self):
        for report in self.json("diff", self.before, self.before)["reports"]:
            self.assertEqual({row["change"] for row in report["memory"]["rows"] + report["counts"]["rows"]}, {0})
            self.assertEqual({row["at_peak_change"] for row in report["by_op"]["rows"]}, {0})

    def test_text_shows_only_what_differs(self):
        text = self.passes("diff", self.before, self.before)
        self.assertEqual(text.splitlines()[:2], ["GPU:0", "Nothing differs: the peak is 20.0 MiB in both."])
        self.assertEqual(text.count("Nothing differs"), 2, "of both devices")
        self.assertNotIn("Memory", text)
        later = self.file("later.hrt", training(op_time=70).bytes())
        text = self.passes("diff", self.before, later, "--device", "GPU:0")
        self.assertIn("The peak is 20.0 MiB in both.", text)
        self.assertEqual(text.count("(no difference)"), 3, "memory, time in all, counts")
        self.assertNotIn("0 B", text)
        matmul = next(row for row in self.json("diff", self.before, later, "--device", "GPU:0")["reports"][0]["by_op"]["rows"])
        self.assertEqual((matmul["name"], matmul["at_peak_change"]), ("matmul", 0))

    def test_rows_that_are_the_same_are_added_up(self):
        text = self.passes("diff", self.before, self.before, "--step-a", 1, "--step-b", 4, "--device", "GPU:0")
        ops = text[text.index("\nOps\n"):text.index("\nName scopes\n")]
        self.assertEqual([line.split("  ")[0] for line in ops.strip().splitlines()[2:]], ["append", "(2 more)", "total"])

    def test_steps_of_the_same_trace(self):
        report = self.json("diff", self.before, self.before, "--step-a", 1, "--step-b", 4, "--device", "GPU:0")["reports"][0]
        self.assertEqual(report["memory"]["rows"][0]["change"], 3 * 4096)
        self.assertEqual([row["name"] for row in report["by_op"]["rows"] if row["at_peak_change"]], ["append"])
        self.fails(2, "diff", self.before, self.before, "--step-b", 40, says="no step 40")

    def test_text_fits(self):
        for width in (40, 80, 200):
            text = self.passes("diff", self.before, self.after, "--width", width)
            self.assertLessEqual(max(map(len, text.splitlines())), width)
            self.assertIn("-3.0 MiB", text)

    def test_bad_files(self):
        self.fails(2, "diff", self.before, says="B")
        self.fails(2, "diff", self.before, "/nowhere.hrt", says="/nowhere.hrt")
        self.fails(2, "diff", self.before, self.after, "--device", "TPU", says="TPU")


class Questions(CommandTest):
    """Invalid requests are refused with a message, and nothing is lost."""

    def setUp(self):
        super().setUp()
        self.bytes = training().bytes()
        self.trace = self.file("train.hrt", self.bytes)

    def test_the_trace_is_not_written_over(self):
        link = self.folder.name + "/link"
        os.link(self.trace, link)
        for arguments in (["--out", self.trace], ["--out", link], ["--html", self.trace], ["--export", "rmm", "--out", link]):
            self.fails(2, "report", self.trace, *arguments, says="is the trace itself")
        self.assertEqual(self.trace.read_bytes(), self.bytes)

    def test_a_failing_report_leaves_the_file_that_was_there(self):
        old = self.file("old.txt", "old")
        self.fails(2, "report", self.trace, "--order-by", "nope", "--out", old, says="nope")
        self.assertEqual(old.read_text(), "old")
        self.passes("report", self.trace, "--out", old)
        self.assertIn("peak", old.read_text())
        new = self.folder.name + "/new.txt"
        self.passes("report", self.trace, "--out", new)
        self.assertEqual(os.stat(new).st_mode & 0o777, 0o600)

    def test_options_that_would_do_nothing(self):
        page, out = self.folder.name + "/page.html", self.folder.name + "/out"
        for arguments in (["--step", "2"], ["--view", "op"], ["--device", "GPU"], ["--json"], ["--html", page]):
            self.fails(2, "report", self.trace, "--export", "chrome", "--out", out, *arguments, says=["--export", "leave " + arguments[0]])
        for arguments in (["--step", "2"], ["--json"], ["--out", out]):
            self.fails(2, "report", self.trace, "--html", page, *arguments, says=["--html", "leave " + arguments[0]])
        self.assertEqual(os.listdir(self.folder.name), ["train.hrt"])
        for view in VIEWS:
            self.fails(2, "report", self.trace, "--view", view, "--order-by", "nope", says="nope")

    def test_options_that_would_do_nothing_in_a_view(self):
        works = {
            "--show-memory=no": {"op", "scope", "tensors", "steps"},
            "--show-time=no": {"summary", "op", "scope", "peak", "tensors", "steps"},
            "--show-input-output": {"op", "scope"},
            "--max-depth=1": {"scope"},
            "--max-rows=1": set(VIEWS) - {"timeline"},
            "--min-bytes=1GiB": set(VIEWS) - {"timeline"},
            "--min-micros=1000": {"op", "scope", "tensors", "steps"},
            "--show-name-regexes=nothing": set(VIEWS) - {"timeline"},
            "--hide-name-regexes=.*": set(VIEWS) - {"timeline"},
        }
        for option, views in works.items():
            for view in VIEWS:
                arguments = ["report", self.trace, "--view", view, "--device", "GPU:0"]
                with self.subTest(option=option, view=view):
                    if view in views:
                        self.assertNotEqual(run(*arguments, option).stdout, run(*arguments).stdout)
                    else:
                        self.fails(2, *arguments, option, says=f"{option.split('=')[0]} does nothing in the {view} view")
        self.passes("report", self.trace, "--view", "timeline", "--max-rows", 10, "--json")
        self.passes("report", self.trace, "--preset", "memory", "--view", "timeline")  # options set by a preset are not checked
        self.passes("report", self.file("empty.hrt", Trace(devices=()).bytes()), "--show-memory", "no")

    def test_names_that_had_no_room(self):
        trace = Trace()
        trace.event(OP_BEGIN, 10, op="(other)")
        for i, op in enumerate(("(other)", "(other)", "matmul")):
            trace.event(ALLOC, 20 + i, address=(i + 1) << 20, bytes=4096, op=op)
        trace.event(OP_END, 30, op="(other)")
        path = self.file("names.hrt", trace.bytes())
        sentence = "those of 3 allocations and ops are shown as (other)"
        for view in VIEWS:
            text = " ".join(self.passes("report", path, "--view", view).split())
            self.assertEqual(text.count(sentence), 1, view)
        self.assertEqual(self.json("report", path)["trace"]["other_names"], 3)
        self.assertEqual(self.json("report", self.trace)["trace"]["other_names"], 0)
        self.assertNotIn("(other)", self.passes("report", self.trace))
        self.assertIn("those of 6 allocations and ops", " ".join(self.passes("diff", path, path).split()))

    def test_an_unknown_scope(self):
        self.fails(2, "report", self.trace, "--name-scope", "mod", says=["name_scope", '"mod"'])
        self.fails(2, "diff", self.trace, self.trace, "--name-scope", "mod", says='"mod"')
        self.passes("report", self.trace, "--name-scope", "model/")
        other = self.file("other.hrt", training(leak=False).bytes())
        self.passes("diff", self.trace, other, "--name-scope", "history")  # only one of them has it
        self.passes("diff", other, self.trace, "--name-scope", "history")

    def test_steps_with_the_same_number(self):
        twice = Trace()
        for run_, size in enumerate((1, 2)):
            for step in (1, 2):
                now = 10000 * (run_ + 1) + 1000 * step
                twice.event(STEP, now, bytes=step)
                twice.event(ALLOC, now + 1, address=1 << 30, bytes=size * MIB, op="a")
                twice.event(FREE, now + 2, address=1 << 30)
                twice.event(STEP_END, now + 3, bytes=step)
        trace = self.file("twice.hrt", twice.bytes())
        reports = self.json("report", trace, "--step", "2,1", "--view", "peak")["reports"]
        self.assertEqual([(r["step"], r["occurrence"], r["peak"]["peak_bytes"]) for r in reports],
                         [(2, 1, MIB), (2, 2, 2 * MIB), (1, 1, MIB), (1, 2, 2 * MIB)])
        self.assertIn("step 2 (2 of 2)", self.passes("report", trace, "--step", 2))
        self.assertNotIn("occurrence", self.json("report", self.trace, "--step", 2)["reports"][0])
        rows = self.json("diff", trace, trace, "--step-a", 2, "--step-b", 2)["reports"][0]["memory"]["rows"]
        self.assertEqual((rows[0]["a"], rows[0]["b"]), (MIB, 2 * MIB))
        many = Trace()
        for step in range(65):
            many.event(STEP, 10 * step, bytes=1)
            many.event(STEP_END, 10 * step + 5, bytes=1)
        self.fails(2, "report", self.file("many.hrt", many.bytes()), "--step", 1, says=["65 steps", "at most 64"])

    def test_commas_in_regular_expressions(self):
        for pattern in ("[(]x,matmul", "[]],matmul", "[^](]x,matmul", "x{1,2},matmul", "(a,b),matmul", "\\(,matmul"):
            names = [row["name"] for row in self.json("report", self.trace, "--view", "op", "--device", "GPU", "--show-name-regexes", pattern)["reports"][0]["op"]["rows"]]
            self.assertIn("matmul", names, pattern)

    def test_names_of_devices_cannot_steer_the_terminal(self):
        evil = self.file("evil.hrt", Trace(devices=(("\x1b]0;x\aGPU:0", 1 << 30),)).bytes())
        result = self.fails(2, "report", evil, "--device", "nope", says="\\x1B]0;x\\x07GPU:0")
        self.assertNotIn("\x1b", result.stderr)

    def test_many_devices(self):
        """Empty devices are left out."""
        trace = Trace(devices=[(f"GPU:{i}", 1 << 30) for i in range(4000)])
        for i in range(2000):
            trace.event(ALLOC, i, address=(i + 1) << 12, bytes=4096, op=f"op{i}")
        self.assertEqual(len(self.json("report", self.file("many.hrt", trace.bytes()), "--view", "op")["reports"]), 1)


if __name__ == "__main__":
    main()
