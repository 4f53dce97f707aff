"""`headroom plan`: use traces, valid and invalid; its output, and the relations between its numbers."""
import json
import struct
import unittest
from xml.etree import ElementTree

import trace_file
from command import CSV_HEADER, RMM_HEADER, TRACES, CommandTest, has, main, run

USE_HEADER = "time_us,action,id,bytes,stream,name\n"
MIB = 1 << 20
FIELDS = {"fits", "peak_bytes", "limit_bytes", "least_limit_bytes", "working_set_bytes", "policy", "bytes_out", "bytes_in", "step_ms_plain", "step_ms_predicted", "bound_ms",
          "slowdown", "step", "link_bytes_per_s", "fits_without_moving", "stats", "recompute"}
RECOMPUTE = {"predicted_by", "step_ms_moving", "step_ms_recomputing", "step_ms_both", "slowdown", "again_ms", "again_ops", "drops", "bytes_out", "bytes_in",
             "played"}
PLAYED = {"step_ms", "slowdown", "again_ms", "again_ops", "drops", "bytes_out", "bytes_in"}


class Recorder:
    """Writes a use trace."""

    def __init__(self):
        self.lines, self.sizes, self.ops = [], {}, 0

    def line(self, action, number, size="", name=""):
        self.lines.append(f"{len(self.lines)},{action},{number},{size},0,{name}\n")

    def step(self, number):
        self.line("s", number)

    def alloc(self, size):
        block = len(self.sizes)
        self.sizes[block] = size
        self.line("a", block, size)
        return block

    def free(self, block):
        self.line("f", block, self.sizes[block])

    def op(self, name, ns, reads=(), writes=(), makes=(), workspace=()):
        """Runs an op; returns the blocks that it makes, of the sizes [makes]."""
        number, self.ops = self.ops, self.ops + 1
        self.line("b", number, "", name)
        for block in reads:
            self.line("r", block, self.sizes[block])
        scratch = [self.alloc(size) for size in workspace]
        made = [self.alloc(size) for size in makes]
        for block in [*writes, *made]:
            self.line("w", block, self.sizes[block])
        for block in scratch:
            self.free(block)
        self.line("e", number, ns)
        return made

    def text(self):
        return USE_HEADER + "".join(self.lines)


def training(layers=10, steps=3, weight=4 * MIB, activation=16 * MIB, ns=1000000, carried=False):
    """A loop of steps, each forward and backward through [layers]. With [carried], each step leaves a block to the next, which
    frees it."""
    trace = Recorder()
    weights = [trace.alloc(weight) for _ in range(layers)]
    left = None
    for step in range(steps):
        trace.step(step)
        made = trace.op("load", ns, makes=[activation])
        for layer in range(layers):
            made += trace.op(f"forward_{layer}", ns, reads=[made[-1], weights[layer]], makes=[activation], workspace=[MIB])
        gradient = trace.op("loss", ns, reads=[made[-1]], makes=[activation])[0]
        for layer in reversed(range(layers)):
            after, = trace.op(f"backward_{layer}", ns, reads=[made[layer], gradient], writes=[weights[layer]], makes=[activation])
            trace.free(gradient)
            trace.free(made.pop())
            gradient = after
        trace.free(gradient)
        trace.free(made.pop())
        if carried:
            if left is not None:
                trace.op("use_carried", ns, reads=[left])
                trace.free(left)
            left, = trace.op("carry", ns, makes=[activation])
    return trace.text()


# ---- a Headroom trace, from docs/trace-format.md ----

KINDS = {"ALLOC": 1, "FREE": 2, "OP_BEGIN": 7, "OP_END": 8, "READ": 9, "WRITE": 10, "STEP": 11, "STEP_END": 12}


def varint(value):
    for length in range(1, 9):
        if value < 1 << 7 * length:
            return (value << length | 1 << length - 1).to_bytes(length, "little")
    return b"\0" + value.to_bytes(8, "little")


def headroom_trace(events):
    """Events are (kind, address, bytes, op name)."""
    records, numbers, last = b"", {}, 0
    for record, payload in ((34, varint(1) + varint(1 << 40) + varint(0) + b"SIM:0"), (35, varint(1) + varint(1) + varint(1) + b"a" + b"bfc")):
        records += struct.pack("<H", record) + varint(len(payload)) + payload
    for _, _, _, name in events:
        if name and name not in numbers:
            numbers[name] = len(numbers) + 2
            payload = varint(numbers[name]) + name.encode()
            records += struct.pack("<H", 32) + varint(len(payload)) + payload
    for kind, address, size, name in events:
        tag, body = KINDS[kind], b""
        if kind in ("ALLOC", "FREE", "READ", "WRITE"):
            tag |= 1 << 6 | 1 << 10
            body += bytes([1]) + varint(1)
            difference = address - last
            body += varint(difference << 1 if difference >= 0 else (-difference << 1) - 1)
            last = address
        if kind == "ALLOC":
            tag |= 3 << 11
            body += varint((size + 255) // 256 * 256) + varint(size)
        elif kind in ("OP_END", "STEP", "STEP_END"):
            tag |= 1 << 11
            body += varint(size)
        if kind in ("OP_BEGIN", "OP_END", "ALLOC", "READ", "WRITE"):
            tag |= 1 << 7
            body += struct.pack("<H", numbers.get(name, 0))
        records += struct.pack("<H", tag) + body + struct.pack("<H", 1)
    block = 1 << 16
    assert len(records) <= block - 64
    header = struct.pack("<8sHHIQQIIQQQIIQQII32s", b"\x89HRT\r\n\x1a\n", 1, 0, 128, 0, 0, block, 0x01020304, 0, 0, 10**9, 0, 1, 0, 128 + block, 1, 0, b"test")
    return header + struct.pack("<IB3sIIQQII24s", 0x4B425248, 1, b"", 0, 0, 0, 0, len(records), 0, b"") + records.ljust(block - 64, b"\0")


def as_headroom(text):
    """The events of a use trace, in the form of a Headroom trace."""
    events, names = [], {}
    for line in text.splitlines()[1:]:
        _, action, number, size, _, name = line.split(",", 5)
        number, size = int(number), int(size or 0)
        if action == "b":
            names[number] = name
        kind = {"a": "ALLOC", "f": "FREE", "b": "OP_BEGIN", "e": "OP_END", "r": "READ", "w": "WRITE", "s": "STEP"}[action]
        op = names[number] if action in "be" else None
        events.append((kind, (number + 1) << 32 if action in "afrw" else 0, number if action == "s" else size, op))
    return headroom_trace(events)


# ---- tests ----


class BadTraces(CommandTest):
    def bad(self, body, *says):
        self.fails(2, "plan", self.file("t.csv", USE_HEADER + body), "--limit", "1G", says=["t.csv", *says])

    def test_ops_begin_and_end_in_turn(self):
        self.bad("1,a,0,9,0,\n2,e,5,1,0,\n", "line 3", "op 5 ends, but none is running", "expected b")
        self.bad("1,a,0,9,0,\n2,b,5,,0,mm\n3,b,6,,0,add\n", "line 4", 'op 6 ("add") begins inside op 5 ("mm")', "expected the end")
        self.bad("1,a,0,9,0,\n2,b,5,,0,mm\n3,e,6,1,0,\n", "line 4", "op 6 ends while op 5 is running")
        self.bad("1,a,0,9,0,\n2,b,5,,0,mm\n", 'ends inside op 5 ("mm")', "expected e")
        self.bad("1,a,0,9,0,\n2,b,5,,0,mm\n3,s,1,,0,\n", "line 4", "step 1 begins inside op 5")

    def test_uses_are_of_live_blocks_inside_ops(self):
        self.bad("1,a,0,9,0,\n2,r,0,9,0,\n", "line 3", "block 0 is read outside of an op", "expected b")
        self.bad("1,a,0,9,0,\n2,w,0,9,0,\n", "line 3", "block 0 is written outside of an op")
        self.bad("1,a,0,9,0,\n2,b,5,,0,mm\n3,r,7,9,0,\n", "line 4", "block 7 is read but not live")
        self.bad("1,a,0,9,0,\n2,b,5,,0,mm\n3,f,0,9,0,\n4,w,0,9,0,\n", "line 5", "block 0 is written but not live: freed already")
        self.bad("1,a,0,9,0,\n2,b,5,,0,mm\n3,r,0,8,0,\n", "line 4", "read with 8 bytes", "allocated with 9")

    def test_steps_are_numbered_upwards(self):
        self.bad("1,a,0,9,0,\n2,s,3,,0,\n3,s,3,,0,\n", "line 4", "step 3 begins after step 3", "expected a larger number")
        self.bad("1,a,0,9,0,\n2,s,x,,0,\n", "line 3", 'id is "x"')

    def test_times_are_possible(self):
        self.bad("1,a,0,9,0,\n2,b,5,,0,mm\n3,e,5,2000000000000000000,0,\n", "line 4", "op 5 takes", "2^60")
        self.bad("1,a,0,9,0,\n2,b,5,,0,mm\n3,e,5,99999999999999999999,0,\n", "line 4", "does not fit in 64 bits")
        self.bad("1,a,0,9,0,\n2,b,5,,0,mm\n3,e,5,-1,0,\n", "line 4", "expected a whole number")

    def test_what_replay_refuses_is_refused(self):
        self.bad("1,f,0,9,0,\n", "line 2", "freed but not live")
        self.bad("1,a,0,9,0\n", "line 2", "5 fields; expected 6")
        self.bad("1,a,0,9,0,\n2,z,0,9,0,\n", "line 3", 'action is "z"')
        self.fails(2, "plan", "/nonexistent/trace.csv", says="cannot be opened")
        self.fails(2, "plan", self.file("a.txt", "hello\n"), says=["a.txt: line 1", "expected the header"])

    def test_a_step_without_ops(self):
        body = "1,a,0,9,0,\n2,s,0,,0,\n3,b,0,,0,mm\n4,r,0,9,0,\n5,e,0,5,0,\n6,s,1,,0,\n"
        path = self.file("t.csv", USE_HEADER + body)
        self.fails(2, "plan", path, "--step", 1, says=["no op runs in that step", "t.csv"])
        self.fails(2, "plan", path, "--step", 7, says=["t.csv has no step 7", "numbered 0 to 1"])
        self.assertEqual(self.json("plan", path, "--limit", "2MiB")["step"], 0)

    def test_headroom_traces_that_are_cut_or_damaged(self):
        whole = as_headroom(training(2, 2))
        self.fails(2, "plan", self.file("t.hrt", whole[:100]), says="t.hrt")
        self.passes("plan", self.file("t.hrt", whole[:1500]), "--limit", "1G")
        for at in range(140, 1400, 9):
            result = run("plan", self.file("t.hrt", whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1:]), "--limit", "64MiB", "--steps", 1)
            self.assertIn(result.returncode, (0, 1, 2), result.stderr)
            self.assertEqual(result.returncode == 2, result.stderr.startswith("headroom: "), result.stderr)


class WrongUse(CommandTest):
    def test_wrong_values(self):
        trace = self.file("t.csv", training(2, 1))
        cases = [
            (["--limit", "0"], ["--limit 0"]), (["--limit", "12Q"], ['"12Q"']), (["--limit", "1MiB"], ["less than one page"]), (["--limit", "100TiB"], ["64 TiB"]),
            (["--link", "0"], ["--link", "GB/s"]), (["--link", "fast"], ['"fast"']), (["--link", "-3"], ['"-3"']), (["--link", "inf"], ['"inf"']),
            (["--link", "1e9"], ['"1e9"']), (["--link", "5 MB/s"], ['"5 MB/s"']), (["--link", "."], ['"."']),
            (["--policy", "learnt"], ['"learnt"', "did you mean learned?"]), (["--policy", ""], ["there are learned and lru"]),
            (["--step", "x"], ['"x"']), (["--step", "9"], ["no step 9", "0 to 0"]), (["--steps", "0"], ["--steps"]), (["--steps", "1001"], ["1 to 1000"]),
            (["--page", "3000"], ["power of two"]), (["--host-limit", "0"], ["--host-limit 0"]), (["--recompute=maybe"], ["--recompute is on or off", '"maybe"']),
            (["--svg", "/nowhere/x.svg"], ["/nowhere/x.svg", "No such file"]), (["--limt", "1G"], ["--limit?"]),
        ]
        for arguments, says in cases:
            with self.subTest(arguments=arguments):
                more = [] if "--limit" in arguments else ["--limit", "1GiB"]
                self.fails(2, "plan", trace, *arguments, *more, says=says)

    def test_a_full_disk_is_an_error(self):
        trace = self.file("t.csv", training(2, 1))
        with open("/dev/full", "w") as full:
            for more in ([], ["--json"]):
                self.fails(2, "plan", trace, "--limit", "1GiB", *more, stdout=full, says=["cannot write to standard output"])


class WithoutUses(CommandTest):
    def test_only_the_peak_is_compared_and_it_says_why(self):
        for name, text in (("a.csv", CSV_HEADER + f"1,a,0,{8 * MIB},0\n"), ("b.csv", USE_HEADER + f"1,a,0,{8 * MIB},0,\n2,s,0,,0,\n"),
                           ("c.csv", RMM_HEADER + f"1,10:00:00,allocate,0x10,{8 * MIB},0x0\n")):
            with self.subTest(name=name):
                path = self.file(name, text)
                self.assertIn("it fits", self.passes("plan", path, "--limit", "8MiB"))
                self.assertIn("does not say which ops", self.passes("plan", path))
                result = self.fails(1, "plan", path, "--limit", "7MiB")
                self.assertIn("it does not fit", result.stdout)
                plan = self.json("plan", path, "--limit", "8MiB")
                self.assertEqual(set(plan), FIELDS)
                self.assertEqual((plan["fits"], plan["peak_bytes"], plan["limit_bytes"]), (True, 8 * MIB, 8 * MIB))
                self.assertTrue(all(plan[key] is None for key in ("least_limit_bytes", "bytes_out", "slowdown", "step", "stats", "bound_ms")))


class PlanTest(CommandTest):
    def check(self, plan):
        """Relations between the numbers of a plan that fits."""
        self.assertEqual(set(plan), FIELDS)
        self.assertTrue(plan["fits"])
        self.assertLessEqual(plan["least_limit_bytes"], plan["limit_bytes"])
        self.assertLessEqual(plan["working_set_bytes"], plan["least_limit_bytes"])
        self.assertLessEqual(plan["working_set_bytes"], plan["peak_bytes"])
        self.assertAlmostEqual(plan["slowdown"], plan["step_ms_predicted"] / plan["step_ms_plain"], places=4)
        self.assertGreaterEqual(plan["step_ms_predicted"], plan["step_ms_plain"] - 1e-6)
        self.assertLessEqual(plan["bound_ms"], plan["step_ms_predicted"] - plan["step_ms_plain"] + 1e-5)
        self.assertLessEqual(plan["bytes_out"], plan["stats"]["bytes_copied_out"])
        self.assertLessEqual(plan["bytes_in"], plan["stats"]["bytes_copied_in"])
        self.assertEqual(plan["fits_without_moving"], plan["bytes_out"] == 0 and plan["bytes_in"] == 0)
        self.assertEqual(plan["stats"]["num_pins"], 0)

    def plan(self, *arguments):
        plan = self.json("plan", *arguments)
        self.check(plan)
        return plan


class Figures(PlanTest):
    def test_enough_memory_moves_nothing(self):
        trace = self.file("t.csv", training())
        for policy in ("learned", "lru"):
            plan = self.plan(trace, "--limit", "1GiB", "--policy", policy)
            self.assertTrue(plan["fits_without_moving"])
            self.assertEqual((plan["slowdown"], plan["bound_ms"], plan["policy"]), (1, 0, policy))
            # 10 weights; 11 activations, 2 gradients, no workspace in the backward pass, which has the peak.
            self.assertEqual(plan["peak_bytes"], 10 * 4 * MIB + 13 * 16 * MIB)
            self.assertEqual(plan["working_set_bytes"], 3 * 16 * MIB + 4 * MIB)
            self.assertAlmostEqual(plan["step_ms_plain"], 22)

    def test_less_memory_moves_more(self):
        trace = self.file("t.csv", training())
        peak = self.plan(trace, "--limit", "1GiB")["peak_bytes"]
        for policy in ("learned", "lru"):
            moved = 0
            for percent in (85, 65, 45):
                plan = self.plan(trace, "--limit", peak * percent // 100, "--policy", policy)
                self.assertGreater(plan["bytes_out"], moved)
                moved = plan["bytes_out"]

    def test_a_slower_link_costs_more(self):
        trace = self.file("t.csv", training())
        times = [self.plan(trace, "--limit", "150MiB", "--link", link)["step_ms_predicted"] for link in ("100", "10", "1GB/s")]
        self.assertEqual(times, sorted(times))
        self.assertLess(times[0], times[2])

    def test_what_is_assumed_is_said(self):
        trace = self.file("t.csv", training())
        assumed, given, unmoved = (" ".join(self.passes("plan", trace, *arguments).split()) for arguments in (
            ["--limit", "150MiB"], ["--limit", "150MiB", "--link", "10"], ["--limit", "1GiB"]))
        self.assertIn("link 55 GB/s each way (assumed: PCIe 5.0 x16)", assumed)
        self.assertIn("assumes copies that take no time from ops, as on a GPU", assumed)
        self.assertIn("link 10 GB/s each way, policy", given)
        self.assertNotIn("assumes", unmoved)

    def test_the_same_arguments_give_the_same_figures(self):
        trace = self.file("t.csv", training())
        self.assertEqual(self.plan(trace, "--limit", "150MiB"), self.plan(trace, "--limit", "150MiB"))

    def test_an_op_that_cannot_fit_is_named_with_its_tensors(self):
        trace = self.file("t.csv", training())
        result = self.fails(1, "plan", trace, "--limit", "36MiB")
        for text in ("does not fit", "forward_0", "output", "input", "workspace", "16.0 MiB", "4.0 MiB", "made by load", "filled before the first step", "52.0 MiB"):
            self.assertIn(text, result.stdout)
        plan = json.loads(run("plan", trace, "--limit", "36MiB", "--json").stdout)
        self.assertEqual(set(plan), FIELDS)
        self.assertEqual((plan["fits"], plan["fits_without_moving"], plan["step_ms_predicted"]), (False, False, None))
        self.assertGreater(plan["least_limit_bytes"], plan["limit_bytes"])

    def test_the_least_limit_will_do(self):
        trace = self.file("t.csv", training())
        least = self.plan(trace, "--limit", "1GiB")["least_limit_bytes"]
        self.assertEqual(least % (2 * MIB), 0)
        self.plan(trace, "--limit", least)
        self.fails(1, "plan", trace, "--limit", least - 2 * MIB)

    def test_the_least_limit_counts_whole_pages_of_each_pool(self):
        """An op that reads 3 MiB, writes 3 MiB and has 1 KiB of workspace. Blocks of 64 KiB and less have pages of their own, so
        that 6 MiB and 1 KiB take four pages of 2 MiB, not just over three."""
        trace = Recorder()
        weight = trace.alloc(3 * MIB)
        for step in range(3):
            trace.step(step)
            out, = trace.op("f", 1000, reads=[weight], makes=[3 * MIB], workspace=[1024])
            trace.free(out)
        plan = self.plan(self.file("t.csv", trace.text()), "--limit", "1GiB")
        self.assertEqual((plan["working_set_bytes"], plan["least_limit_bytes"]), (6 * MIB + 1024, 8 * MIB))

    def test_a_full_host_is_told(self):
        result = self.fails(1, "plan", self.file("t.csv", training()), "--limit", "100MiB", "--host-limit", "16MiB")
        self.assertIn("host", result.stdout)

    def test_ops_without_a_time_have_no_slowdown(self):
        lines = self.passes("plan", self.file("untimed.csv", training(ns=0))).splitlines()
        begin = next(i for i, line in enumerate(lines) if line.endswith("slowdown")) + 1
        rows = [line.split() for line in lines[begin:begin + 6]]
        self.assertEqual([row[-1] for row in rows], ["-"] * len(rows), rows)

    def test_without_a_limit_there_is_a_curve(self):
        trace = self.file("t.csv", training())
        text = self.passes("plan", trace)
        for percent in range(90, 30, -10):
            self.assertIn(f"{percent}%", text)
        plan = self.json("plan", trace)
        self.assertEqual(set(plan), FIELDS | {"curve"})
        self.assertIsNone(plan["fits"])
        self.assertEqual([point["limit_bytes"] for point in plan["curve"]], [plan["peak_bytes"] // 100 * percent for percent in range(90, 30, -10)])

    def test_text_fits_the_terminal(self):
        trace = self.file("t.csv", training().replace("load", "forward_" + "long" * 15))
        commands = [["plan", trace, "--limit", "120MiB"], ["plan", trace], ["replay", trace, "--find-limit", "--limit", "300MiB"], ["devices"]]
        for columns in (80, 120):
            for command in commands:
                with self.subTest(command=command[0], columns=columns):
                    self.assertFits(self.on_terminal(*command, COLUMNS=str(columns), NO_COLOR="1", HEADROOM_CUDA="0"), columns)
        for command in (["devices"], ["replay", trace, "--no-timing"]):
            self.assertFits(self.passes(*command, env={"HEADROOM_CUDA": "0"}), 80)
        # Output to a file is not cut, so that it can be searched.
        self.assertIn("made by forward_" + "long" * 15, run("plan", trace.parent / "t.csv", "--limit", "36MiB", "--step", 1).stdout)

    def assertFits(self, text, columns):
        lines = [line for line in text.splitlines() if "/t.csv" not in line]
        self.assertLessEqual(max(map(len, lines)), columns, max(lines, key=len))

    def test_text_is_safe_to_print(self):
        trace = training(3, 2).replace("forward_1", "for\033[31mward, \xff1").replace("load", "")
        for limit in ("60MiB", "40MiB"):
            text = run("plan", self.file("t.csv", trace), "--limit", limit).stdout
            self.assertNotIn("\033", text)

    def test_what_was_moved_and_is_cheap_is_worth_computing_again(self):
        text = self.passes("plan", self.file("t.csv", training(ns=1000)), "--limit", "100MiB", "--link", "10")
        self.assertIn("Worth computing again", text)
        self.assertRegex(text, r"forward_\d +1 +16.0 MiB")
        dear = self.passes("plan", self.file("t.csv", training(ns=100000000)), "--limit", "100MiB", "--link", "10")
        self.assertNotIn("Worth computing again", dear)


class Recompute(PlanTest):
    """Predictions of the planner's model, with ops that run again."""

    @staticmethod
    def network(op="aten::gelu", layers=10):
        """Each layer makes what the backward pass reads: 16 MiB in 10 us, which take 610 us to move in both directions."""
        trace = Recorder()
        for step in range(3):
            trace.step(step)
            made = [trace.op("load", 10000, makes=[MIB])[0]]
            saved = []
            for _ in range(layers):
                saved += trace.op(op, 10000, reads=[made[0]], makes=[16 * MIB])
            for _ in range(layers):
                trace.op("backward", 10000, reads=[saved[-1]], writes=[made[0]] if len(saved) == 1 else [])
                trace.free(saved.pop())
            trace.free(made[0])
        return trace.text()

    def outlook(self, text, *arguments):
        plan = self.plan(self.file("t.csv", text), *arguments)
        self.assertEqual(set(plan["recompute"]), RECOMPUTE)
        self.assertEqual(set(plan["recompute"]["played"]), PLAYED)
        return plan["recompute"], plan["step_ms_plain"]

    def test_as_few_ops_run_again_as_are_needed(self):
        # 100 MiB hold the input and six tensors. Four are made again, each in 10 us.
        found, plain = self.outlook(self.network(), "--limit", "100MiB", "--link", "1")
        self.assertAlmostEqual(plain, 0.21)
        self.assertAlmostEqual(found["step_ms_recomputing"], plain + 0.04)
        self.assertAlmostEqual(found["step_ms_both"], plain + 0.04)
        self.assertEqual((found["again_ops"], found["drops"], found["bytes_out"], found["predicted_by"]), (4, 4, 0, "planner model"))
        self.assertAlmostEqual(found["again_ms"], 0.04)
        self.assertAlmostEqual(found["slowdown"], found["step_ms_both"] / plain, places=4)
        self.assertGreater(found["step_ms_moving"], plain + 4 * 16.7)

    def test_the_engine_takes_as_long_as_the_model_says(self):
        # The policy leaves a hundredth of memory unused, so 102 MiB are like 100.
        found, plain = self.outlook(self.network(), "--limit", "102MiB", "--link", "1")
        played = found["played"]
        self.assertEqual((played["again_ops"], played["drops"], played["bytes_out"], played["bytes_in"]), (4, 4, 0, 0))
        self.assertAlmostEqual(played["again_ms"], 0.04)
        self.assertAlmostEqual(played["step_ms"], plain + 0.04)
        self.assertAlmostEqual(played["slowdown"], played["step_ms"] / plain, places=4)

    def test_nothing_runs_again_where_names_do_not_say_that_it_may(self):
        plan = self.plan(self.file("t.csv", self.network("anything")), "--limit", "102MiB", "--link", "1")
        played = plan["recompute"]["played"]
        self.assertEqual((played["again_ops"], played["drops"], played["step_ms"]), (0, 0, plan["step_ms_predicted"]))

    def test_names_decide_what_may_run_again(self):
        for name in ("gelu", "gelu.default", "aten::gelu"):
            found, plain = self.outlook(self.network(name), "--limit", "100MiB", "--link", "1")
            self.assertEqual(found["again_ops"], 4, name)
        for name in ("gelu.out", "aten::bernoulli_", "scatter_add", "anything"):
            found, plain = self.outlook(self.network(name), "--limit", "100MiB", "--link", "1")
            self.assertEqual((found["again_ops"], found["drops"]), (0, 0), name)
            self.assertIsNone(found["step_ms_recomputing"])
            self.assertEqual(found["step_ms_both"], found["step_ms_moving"])

    def test_both_takes_no_longer_than_one_alone(self):
        trace = self.file("t.csv", self.network())
        for point in self.json("plan", trace)["curve"]:
            found = point["recompute"]
            self.assertLessEqual(found["step_ms_both"], found["step_ms_moving"])
            if found["step_ms_recomputing"] is not None:
                self.assertLessEqual(found["step_ms_both"], found["step_ms_recomputing"])

    def test_it_can_be_left_out(self):
        trace = self.file("t.csv", self.network())
        limited = ("plan", trace, "--limit", "100MiB")
        self.assertIn("recompute ", self.passes(*limited))
        self.assertEqual(self.passes(*limited), self.passes(*limited, "--recompute"))
        self.assertNotIn("recompute ", self.passes(*limited, "--recompute=off"))
        self.assertIsNone(self.json(*limited, "--recompute=off")["recompute"])
        self.assertIn("running ops again, or both", self.passes("plan", trace))
        self.assertNotIn("running ops again", self.passes("plan", trace, "--recompute=off"))

    def test_the_picture_has_a_line_for_each_means(self):
        trace, picture = self.file("a<b.csv", self.network()), self.file("x.svg", "")
        self.passes("plan", trace, "--limit", "1GiB", "--svg", picture)
        svg = ElementTree.fromstring(picture.read_text())
        namespace = "{http://www.w3.org/2000/svg}"
        text = " ".join(element.text for element in svg.iter(namespace + "text"))
        for part in ("a<b.csv", "moving", "recomputing", "both", "least by moving", "30%", "memory limit"):
            self.assertIn(part, text)
        self.assertEqual(sum("L" in path.get("d") and path.get("d").count("L") > 1 for path in svg.iter(namespace + "path")), 4)

    def test_a_picture_needs_uses(self):
        self.fails(2, "plan", self.file("t.csv", CSV_HEADER + "0,a,1,100,0\n"), "--svg", self.file("x.svg", ""), says=["--svg", "nothing to draw"])


class Steps(CommandTest):
    def test_the_step_in_the_middle_is_the_default(self):
        trace = Recorder()
        weight = trace.alloc(4 * MIB)
        for step, ns in enumerate((9000, 50, 30, 40)):
            trace.step(10 + step)
            trace.op("op", ns * 1000, reads=[weight])
        path = self.file("t.csv", trace.text())
        plan = self.json("plan", path, "--limit", "1GiB")
        self.assertEqual((plan["step"], plan["step_ms_plain"]), (13, 0.04))
        self.assertEqual(self.json("plan", path, "--limit", "1GiB", "--step", 10)["step_ms_plain"], 9)
        text = self.passes("plan", path, "--limit", "1GiB")
        self.assertIn("number 13, 1 op in 0.04 ms; in the middle of 3 that take 0.03 to 0.05 ms (the first left aside)", " ".join(text.split()))

    def test_steps_that_pass_a_block_on_can_be_repeated(self):
        trace = self.file("t.csv", training(carried=True))
        for limit in ("1GiB", "150MiB"):
            for repeats in (1, 2, 5):
                plan = self.json("plan", trace, "--limit", limit, "--steps", repeats)
                # The weights, and the block carried to the end of the step.
                self.assertEqual(plan["stats"]["num_tensors"], 11)
                self.assertEqual(plan["stats"]["num_steps"], 1 + repeats)

    def test_steps_that_leak_do_not_leak_more_when_repeated(self):
        trace = Recorder()
        weight = trace.alloc(4 * MIB)
        for step in range(3):
            trace.step(step)
            trace.op("leak", 1000, reads=[weight], makes=[MIB])
        self.assertEqual(self.json("plan", self.file("t.csv", trace.text()), "--limit", "1GiB", "--steps", 9)["stats"]["num_tensors"], 3)

    def test_without_steps_it_is_one(self):
        text = "".join(line for line in training(steps=1).splitlines(True) if ",s," not in line)
        path = self.file("t.csv", text)
        self.assertIn("no steps are marked", self.passes("plan", path, "--limit", "150MiB"))
        plan, marked = (self.json("plan", self.file("t.csv", each), "--limit", "150MiB") for each in (text, training(steps=1)))
        self.assertEqual(plan, marked)

    def test_what_no_op_touches_lives_all_the_same(self):
        trace = Recorder()
        trace.alloc(64 * MIB)
        weight = trace.alloc(4 * MIB)
        trace.step(0)
        trace.op("op", 1000, reads=[weight], makes=[4 * MIB])
        path = self.file("t.csv", trace.text())
        plan = self.json("plan", path, "--limit", "1GiB")
        self.assertEqual((plan["peak_bytes"], plan["working_set_bytes"]), (72 * MIB, 64 * MIB))

    def test_a_headroom_trace_says_the_same_as_a_csv(self):
        text = training(4, 2)
        for limit in ("1GiB", "80MiB"):
            csv, own = (self.json("plan", self.file(name, content), "--limit", limit) for name, content in (("t.csv", text), ("t.hrt", as_headroom(text))))
            self.assertEqual(csv, own)

    def test_odd_events_of_a_headroom_trace_are_counted(self):
        events = [("ALLOC", 4096, MIB, None), ("READ", 4096, 0, None), ("STEP", 0, 0, None), ("OP_BEGIN", 0, 0, "outer"), ("OP_BEGIN", 0, 0, "inner"),
                  ("READ", 4096, 0, "inner"), ("OP_END", 0, 7, "inner"), ("WRITE", 8192, 0, "outer"), ("OP_END", 0, 5000, "outer"), ("OP_END", 0, 1, "outer"),
                  ("STEP_END", 0, 0, None), ("STEP", 0, 0, None), ("OP_BEGIN", 0, 0, "cut")]
        path = self.file("t.hrt", headroom_trace(events))
        self.assertIn("3 use events of no known op or block", self.passes("plan", path, "--limit", "1GiB"))
        plan = self.json("plan", path, "--limit", "1GiB")
        self.assertEqual((plan["step_ms_plain"], plan["peak_bytes"], plan["step"]), (0.005, MIB, 0))


class UnderLms(CommandTest):
    """Recordings with evicted and restored tensors: a plan is about the program, so the parts of their lives are joined."""

    HOST = 1 << 40

    def setUp(self):
        super().setUp()
        self.trace, self.time, self.made = trace_file.Trace(devices=(("GPU:0", 1 << 30), ("PINNED:0", 1 << 30))), 0, []

    def event(self, kind, address=0, size=0, **fields):
        self.time += 1000
        self.trace.event(kind, self.time, address=address, bytes=size, **fields)

    def alloc(self, address, size):
        self.event(trace_file.ALLOC, address, size)

    def free(self, address):
        self.event(trace_file.FREE, address)

    def op(self, name, reads=(), makes=()):
        """[makes]: pairs of address and size. Blocks are restored inside of ops."""
        self.event(trace_file.OP_BEGIN, op=name)
        for back in reads:
            if isinstance(back, tuple):
                self.restore(*back)
        for address, size in makes:
            self.alloc(address, size)
        for address in reads:
            self.event(trace_file.READ, address[0] if isinstance(address, tuple) else address, op=name)
        for address, _ in makes:
            self.event(trace_file.WRITE, address, op=name)
        self.event(trace_file.OP_END, size=1000, op=name)

    def evict(self, address, size, host, clean=False):
        if not clean:
            self.event(trace_file.ALLOC, host, size, allocator=2)
            self.event(trace_file.EVICT, address, size, address2=host)
        self.free(address)
        if clean:
            self.event(trace_file.EVICT, address, 0, address2=host)

    def restore(self, address, size, host, copied=True):
        self.alloc(address, size)
        self.event(trace_file.RESTORE, address, size if copied else 0, address2=host)
        if not copied:
            self.drop(host)

    def drop(self, host):
        self.event(trace_file.FREE, host, allocator=2)

    def step(self, number):
        a, b, c, big, host = 1 << 20, 1 << 30, 1 << 31, 8 * MIB, self.HOST
        self.event(trace_file.STEP, size=number)
        self.op("load", makes=[(a, big)])
        self.op("f", reads=[a], makes=[(b, big)])
        self.evict(a, big, host)  # the output of load is evicted
        self.op("g", reads=[b], makes=[(a, big)])
        self.free(b)
        self.op("h", reads=[(b, big, host), a])  # and restored, at the address of f's output
        self.evict(b, big, host, clean=True)
        self.op("i", reads=[(c, big, host), a])
        self.free(a)
        self.free(c)
        self.drop(host)
        self.op("j", makes=[(c, big)])
        self.evict(c, big, host)
        self.drop(host)  # destroyed while evicted
        self.op("k", makes=[(b, big)])
        self.evict(b, big, host)
        self.restore(a, big, host, copied=False)  # overwritten completely
        self.free(a)
        self.event(trace_file.STEP_END, size=number)

    def test_the_peak_is_that_of_the_program(self):
        self.alloc(1 << 35, 4 * MIB)
        for number in (1, 2, 3):
            self.step(number)
        path = self.file("t.hrt", self.trace.bytes())
        plan = self.json("plan", path, "--limit", "1GiB")
        # The weights, the outputs of load, f and g: nothing was freed before g. Two of the three outputs were on the device at a
        # time.
        self.assertEqual(plan["peak_bytes"], (4 + 8 + 8 + 8) * MIB)
        self.assertIn("9 returns of tensors from the host joined to their lives", " ".join(self.passes("plan", path, "--limit", "1GiB").split()))
        replay = self.json("replay", path, "--no-timing")
        self.assertEqual(replay["peak_live_bytes"], (4 + 8 + 8) * MIB)
        self.assertEqual(replay["allocs"], 1 + 3 * 8)

    def test_what_was_away_when_the_recording_began_lives_from_there(self):
        self.step(1)
        self.event(trace_file.STEP, size=2)
        self.op("late", reads=[(1 << 35, 2 * MIB, self.HOST + (1 << 30))])
        path = self.file("t.hrt", self.trace.bytes())
        self.assertEqual(self.json("plan", path, "--limit", "1GiB", "--step", 1)["peak_bytes"], (2 + 8 + 8 + 8) * MIB)

    def test_a_return_from_an_unknown_place_is_refused_with_the_reason(self):
        self.alloc(4096, MIB)
        self.event(trace_file.STEP, size=1)
        self.op("f", reads=[4096])
        self.evict(4096, MIB, 0)
        self.op("g", reads=[(8192, MIB, 0)])
        path = self.file("t.hrt", self.trace.bytes())
        self.fails(2, "plan", path, says=["t.hrt", "older version", "record it again"])
        self.passes("replay", path, "--no-timing")

    def test_a_spill_file_is_a_place_too(self):
        spilled = 1 << 63 | 4096
        self.event(trace_file.STEP, size=1)
        self.op("f", makes=[(4096, 8 * MIB)])
        self.event(trace_file.EVICT, 4096, 8 * MIB, address2=spilled)
        self.free(4096)
        self.op("g", makes=[(4096, 8 * MIB)])
        self.op("h", reads=[(1 << 30, 8 * MIB, spilled), 4096])
        self.assertEqual(self.json("plan", self.file("t.hrt", self.trace.bytes()), "--limit", "1GiB")["peak_bytes"], 16 * MIB)

    def test_steps_with_enough_memory_are_preferred(self):
        """A step without evictions is chosen, although most have some; the first step is ignored."""
        self.alloc(1 << 35, 4 * MIB)
        for number, ns in ((1, 1), (2, 1)):
            self.event(trace_file.STEP, size=number)
            self.op("f", reads=[1 << 35], makes=[(4096, MIB)])
            self.free(4096)
        for number in range(3, 9):
            self.step(number)
        path = self.file("t.hrt", self.trace.bytes())
        self.assertEqual(self.json("plan", path, "--limit", "1GiB")["step"], 2)

    def test_a_program_with_less_memory_is_the_same_program(self):
        """The demo trains three times: with enough memory in steps 1 to 3, with half in step 4, which fails, and with LMS in steps
        5 to 7."""
        folder = self.file("demo", "")
        folder.unlink()
        run("demo", "--out", folder, "--steps", 3)
        free, moving = (self.json("plan", folder / "training.hrt", "--limit", "1GiB", "--step", step) for step in (3, 7))
        self.assertEqual([free["peak_bytes"], free["working_set_bytes"]], [moving["peak_bytes"], moving["working_set_bytes"]])
        self.assertIn(self.json("plan", folder / "training.hrt", "--limit", "1GiB")["step"], (2, 3))


@unittest.skipUnless(has("zlib"), "built without zlib")
class Recorded(PlanTest):
    """The traces of this repository."""

    TRACES = (("gpt2b16-use", 51.3e9, 268.0, 3), ("resnet-use", 5.87e9, 34.8, 4))

    def test_at_three_quarters_of_the_peak_they_fit(self):
        for name, peak, plain, step in self.TRACES:
            for policy in ("learned", "lru"):
                with self.subTest(trace=name, policy=policy):
                    plan = self.plan(TRACES / f"{name}.csv.gz", "--limit", int(0.75 * peak), "--policy", policy)
                    self.assertAlmostEqual(plan["peak_bytes"] / peak, 1, delta=0.01)
                    self.assertAlmostEqual(plan["step_ms_plain"], plain, delta=0.1)
                    self.assertEqual(plan["step"], step)
                    self.assertGreater(plan["bytes_out"], 0.2 * peak)
                    self.assertLess(plan["bytes_out"], 2 * peak)

    def test_at_a_tiny_limit_they_do_not_and_the_op_is_named(self):
        for name, says in (("gpt2b16-use", ("_log_softmax", "GiB", "input", "output", "made by")), ("resnet-use", ("convolution", "input", "workspace", "made by"))):
            with self.subTest(trace=name):
                result = self.fails(1, "plan", TRACES / f"{name}.csv.gz", "--limit", "400MiB")
                for text in ("does not fit", "no room for", "it needs", *says):
                    self.assertIn(text, result.stdout)


if __name__ == "__main__":
    main()
