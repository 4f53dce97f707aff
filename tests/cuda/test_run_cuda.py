#!/usr/bin/env python3
"""headroom run and CUDA programs that know nothing of Headroom, on the stand-in driver: whatever way a program reaches the driver, its memory is in
the statistics, and the program does what it does without Headroom."""
import json
import re
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cuda_run import BUILD, CARD, COMMAND, COMPILER, DRIVERS, LIBRARY, MIB, OUT_OF_MEMORY, Run, environment, needs_command, program, run, run_plain, start  # noqa: E402

# A block of every kind that counts: 1000 + 5000 + 10 rows of 512 + 77 + 2 MiB.
TAKE = ["start", "alloc:0:1000", "async:1:5000", "pitch:2:100", "pool:3:77", f"create:4:{2 * MIB}"]
TAKEN = 1000 + 5000 + 10 * 512 + 77 + 2 * MIB
GIVE = ["free:0", "freeasync:1", "free:2", "freeasync:3", "release:4", "sync"]


class Recording(Run):
    def test_every_way_to_the_driver_is_seen(self):
        def check(way):
            lines = self.lines(self.observe(way, *TAKE, "stats", *GIVE, "stats"))
            self.assertEqual(lines, [f"stats {TAKEN} of {TAKEN}", "stats 0 of 0"])
        self.for_each_way(check)

    def test_the_program_is_told_what_it_is_told_without_headroom(self):
        def check(way):
            commands = ["start", "info", "total", "free:9", "alloc:0:0", f"alloc:0:{CARD}", "alloc:1:4096", "free:1", "free:1", "freehost:3", "info"]
            plain = run_plain(way, *commands)
            self.assertEqual(plain.stdout.count("->"), 5)
            self.assertEqual(self.lines(self.observe(way, *commands)), plain.stdout.splitlines()[:-1])
        self.for_each_way(check)

    def test_results_of_failed_calls_are_not_touched(self):
        def check(way):
            lines = self.lines(self.observe(way, "start", f"untouched:0:{CARD}"))
            self.assertEqual(lines, ["2 2 2 2 1 untouched"])
        self.for_each_way(check)

    def test_threads_leave_exact_statistics(self):
        for way in ("link", "proc", "ptsz"):
            lines = self.lines(self.observe(way, "start", "stream", "threads:8:2000", "stats"))
            used = re.fullmatch(r"stats (\d+) of (\d+)", lines[0])
            self.assertEqual(used.group(1), used.group(2))
            self.assertGreater(int(used.group(1)), 0)

    def test_physical_memory_counts_until_it_is_released_and_unmapped(self):
        size = 4 * MIB
        lines = self.lines(self.observe("proc", "start", f"create:0:{size}", "map:0", "stats", "release:0", "stats", "retain:0", "unmap:0", "stats",
                                        "release:0", "stats"))
        self.assertEqual(lines, [f"stats {size} of {size}"] * 3 + ["stats 0 of 0"])

    def test_the_end_of_a_context_ends_its_memory(self):
        lines = self.lines(self.observe("proc", "start", "alloc:0:1000", "context", "alloc:1:77", "stats", "destroy", "stats", "start", "reset", "stats",
                                        "alloc:2:5", "stats", "releasecontext", "stats", "releasecontext"))
        self.assertEqual(lines[:4], ["stats 1077 of 1077", "stats 1000 of 1000", "stats 0 of 0", "stats 5 of 5"])

    def test_managed_and_pinned_memory_count_apart(self):
        lines = self.lines(self.observe("proc", "start", "managed:0:3000", "host:1:100", "allochost:2:200", "hoststats", "stats", "freehost:1", "freehost:2",
                                        "hoststats", "free:0", "stats"))
        self.assertEqual(lines, ["host 300", "stats 3000 of 3000", "host 0", "stats 0 of 0"])

    def test_each_card_has_its_own_statistics(self):
        commands = ["start:0", "alloc:0:1024", "start:1", "alloc:1:512", "free:0", "alloc:2:256", "free:2"]
        self.assertEqual(self.lines(self.observe("proc", *commands, "cards", FAKE_CUDA_DEVICES="2")), ["cards 0 512"])
        self.assertEqual(self.lines(self.under(program("proc") + commands + ["gpus"], "--manage", FAKE_CUDA_DEVICES="2")), ["gpus 0 512"])
        lines = self.lines(self.observe("proc", "start:0", "alloc:0:1024", "start:1", "info", "alloc:1:512", "info", FAKE_CUDA_DEVICES="2", options=("--limit", "2048")))
        self.assertEqual(lines, ["info 2048 of 2048", "info 1536 of 2048"])

    def test_a_recording_has_the_blocks_and_the_leaks(self):
        path = self.folder / "t.hrt"
        self.lines(self.observe("proc", *TAKE, "free:0", "freeasync:1", "sync", options=("--trace", path)))
        views = run("report", path, "--view", "leaks", "--json")
        self.assertEqual(views.returncode, 0, views.stderr)
        text = run("report", path, "--view", "leaks").stdout
        for call in ("cuMemAllocPitch", "cuMemAllocFromPoolAsync", "cuMemCreate"):
            self.assertIn(call, text)
        self.assertNotIn("cuMemAllocAsync", text)

    @needs_command
    def test_top_shows_programs_of_every_kind_in_one_table(self):
        # Observed, managed, and a program of Headroom itself. tests/torch/test_run.py has one with the plug-in for PyTorch.
        waiting = ["start", "alloc:0:123456", "sleep:0:30000"]
        own = "import ctypes, sys, time\n" \
              f"here = ctypes.CDLL({str(BUILD / 'libheadroom.so.0')!r}, ctypes.RTLD_GLOBAL)\n" \
              "allocator, block = ctypes.c_uint64(), ctypes.c_void_p()\n" \
              "assert here.hr_allocator_get_default(b'GPU:0', ctypes.byref(allocator)) == 0\n" \
              "assert here.hr_alloc_bytes(allocator, ctypes.c_size_t(512), ctypes.byref(block)) == 0\n" \
              "time.sleep(30)\n"
        commands = [("--observe", program("proc") + waiting), ("--manage", program("proc") + waiting), (None, [sys.executable, "-c", own])]
        processes = [subprocess.Popen([COMMAND, "run", *([mode] if mode else []), "--", *command], stdout=subprocess.DEVNULL, env=environment(XDG_RUNTIME_DIR=str(self.folder)))
                     for mode, command in commands]
        self.addCleanup(lambda: [(process.kill(), process.wait()) for process in processes])
        expected = [("CUDA:0", 123456), ("GPU:0", 123648), ("GPU:0", 512)]
        until = time.monotonic() + 60
        seen = None
        while time.monotonic() < until and seen != expected:
            shown = json.loads(run("top", "--once", "--json", XDG_RUNTIME_DIR=str(self.folder)).stdout)["programs"]
            used = {p["process"]: [(d["name"], d["bytes_in_use"]) for d in p["devices"] if d["bytes_in_use"]] for p in shown}
            seen = [device for process in processes for device in used.get(process.pid, [])]
            time.sleep(0.05)
        self.assertEqual(seen, expected)
        table = run("top", "--once", XDG_RUNTIME_DIR=str(self.folder)).stdout
        for process in processes:
            self.assertIn(str(process.pid), table)

    def test_few_calls_are_added_to_those_of_the_program(self):
        # Once the first ones are over. On a machine with one card: which context is current, for each request, and with --manage which pool the card has.
        commands = ["start", "stream", "alloc:9:50000000", "free:9", "alloc:0:1000", "async:1:1000", *["launch:0:0", "launch:0:2"] * 4, "sync"]
        each = [["launch:0:0"], ["launch:0:2"], ["alloc:2:70000"], ["free:2"], ["async:2:70000"], ["freeasync:2"]]
        measured = [word for words in each for word in ["calls", *words, "calls"]]
        expected = {"--observe": [1, 1, 2, 1, 2, 1], "--manage": [1, 1, 1, 2, 2, 0]}
        for mode, counts in expected.items():
            lines = self.lines(self.under(program("proc") + commands + measured, mode, HEADROOM_TOP="0"))
            self.assertEqual([int(line.split()[1]) for line in lines[1::2]], counts, mode)
        # A kernel that was launched before is not looked up again for its uses.
        lines = self.lines(self.observe("proc", *commands, *measured[:6], options=("--uses", "--trace", self.folder / "t.hrt"), HEADROOM_TOP="0"))
        self.assertEqual([int(line.split()[1]) for line in lines[1::2]], [1, 1])

    def test_nothing_is_left_in_the_driver(self):
        for way in ("link", "proc"):
            self.lines(self.observe(way, *TAKE, *GIVE, "releasecontext", FAKE_CUDA_CHECK="1"))


class Limit(Run):
    """A card of another size."""

    def test_the_card_has_the_size_of_the_limit(self):
        def check(way):
            lines = self.lines(self.observe(way, "start", "info", "total", f"alloc:0:{MIB}", "info", "free:0", "info", options=("--limit", "3MiB")))
            self.assertEqual(lines, [f"info {3 * MIB} of {3 * MIB}", f"total {3 * MIB}", f"info {2 * MIB} of {3 * MIB}", f"info {3 * MIB} of {3 * MIB}"])
        self.for_each_way(check)

    def test_a_limit_above_the_card_changes_nothing(self):
        commands = ["start", "info", "total", f"alloc:0:{MIB}", "info"]
        self.assertEqual(self.lines(self.observe("proc", *commands, options=("--limit", "1GiB"))), run_plain("proc", *commands).stdout.splitlines()[:-1])

    def test_a_full_card_shows_what_the_driver_has_left(self):
        lines = self.lines(self.observe("proc", "start", "info", options=("--limit", "100MiB"), FAKE_CUDA_USED=str(200 * MIB)))
        self.assertEqual(lines, [f"info {CARD - 200 * MIB - 4 * MIB} of {100 * MIB}"])  # 4 MiB for the context

    def test_no_byte_is_allocated_past_the_limit(self):
        def check(way):
            result = self.observe(way, "start", f"alloc:0:{MIB}", "async:1:1", "free:0", f"async:1:{MIB}", "alloc:0:1", "create:2:2097152", "pitch:3:1",
                                  "pool:4:1", "freeasync:1", "sync", "alloc:0:1", "stats", options=("--limit", MIB), HEADROOM_OOM_REPORT=str(self.folder / "o-%p"))
            failed = [f"{call} -> {OUT_OF_MEMORY}" for call in ("async:1:1", "alloc:0:1", "create:2:2097152", "pitch:3:1", "pool:4:1")]
            self.assertEqual(self.lines(result), failed + ["stats 1 of 1"])
        self.for_each_way(check)

    def test_the_least_limit_is_256_bytes(self):
        for limit in ("1", "256"):
            lines = self.lines(self.observe("proc", "start", "alloc:0:1000", "async:1:257", "alloc:2:256", "info", options=("--limit", limit),
                                            HEADROOM_OOM_REPORT=str(self.folder / "o-%p-%n")))
            self.assertEqual(lines, ["alloc:0:1000 -> 2", "async:1:257 -> 2", "info 0 of 256"])

    def test_threads_together_keep_the_limit(self):
        # 8 threads keep up to 8 blocks of 4 KiB and more; 100 KiB is enough for about 24 of 64.
        result = self.observe("proc", "start", "stream", "threads:8:500", "stats", options=("--limit", 100 << 10))
        lines = result.stdout.splitlines()
        used, live = map(int, re.search(r"stats (\d+) of (\d+)", result.stdout).groups())
        self.assertIn("threads:8:500 -> 999", lines)
        self.assertLessEqual(live, 100 << 10)
        self.assertEqual(used, live)

    @needs_command
    def test_two_programs_have_two_limits(self):
        command = ["start", "info", "sleep:0:500", f"alloc:0:{MIB}", f"alloc:1:{MIB}"]
        programs = [subprocess.Popen([COMMAND, "run", "--limit", limit, "--", *program("proc"), *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     text=True, env=environment(XDG_RUNTIME_DIR=str(self.folder))) for limit in ("1MiB", "2MiB")]
        small, large = [p.communicate(timeout=60)[0].splitlines() for p in programs]
        self.assertEqual(small, [f"info {MIB} of {MIB}", f"alloc:1:{MIB} -> {OUT_OF_MEMORY}", "end"])
        self.assertEqual(large, [f"info {2 * MIB} of {2 * MIB}", "end"])

    def test_a_refusal_writes_a_report_to_the_standard_error(self):
        result = self.observe("proc", "start", f"alloc:0:{MIB}", "async:1:5000", options=("--limit", "1MiB"))
        self.assertEqual(result.stdout, f"async:1:5000 -> {OUT_OF_MEMORY}\nend\n")
        text = " ".join(result.stderr.split())
        self.assertTrue(text.startswith('Out of memory: op "cuMemAllocAsync", tag "cuMemAllocAsync", asked for 4.9 KiB on CUDA:0, allocator CUDA:0_driver. '
                                        "4.9 KiB more must be free; the allocator's limit of 1.0 MiB is reached"), text)
        self.assertRegex(result.stderr, r"Held by tag\n +1\.0 MiB 100\.0% +1 block +cuMemAlloc\n")

    def test_or_to_the_file_that_the_environment_names(self):
        report = self.folder / "oom.json"
        result = self.observe("proc", "start", f"alloc:0:{MIB}", "alloc:1:1", options=("--limit", "1MiB"), HEADROOM_OOM_REPORT=str(report))
        self.assertEqual(self.lines(result), [f"alloc:1:1 -> {OUT_OF_MEMORY}"])
        self.assertEqual(json.loads(report.read_text())["request"]["bytes"], 1)

    def test_at_most_16_reports_are_written(self):
        result = self.observe("proc", "start", f"alloc:0:{MIB}", *["alloc:1:1"] * 40, options=("--limit", "1MiB"))
        self.assertEqual(result.stderr.count("Out of memory: "), 16)

    def test_a_card_without_memory_writes_a_report_too(self):
        report = self.folder / "oom.json"
        result = self.observe("proc", "start", f"alloc:0:{CARD // 2}", f"alloc:1:{CARD}", HEADROOM_OOM_REPORT=str(report))
        self.assertEqual(self.lines(result), [f"alloc:1:{CARD} -> {OUT_OF_MEMORY}"])
        self.assertEqual(json.loads(report.read_text())["request"]["bytes"], CARD)

    @needs_command
    def test_units_in_the_environment_are_understood(self):
        lines = self.lines(self.observe("proc", "start", "total", HEADROOM_LIMIT="1.5MiB"))
        self.assertEqual(lines, [f"total {3 * MIB // 2}"])

    def test_managed_and_pinned_memory_do_not_count(self):
        # With --manage what is above the limit is not recorded, because its allocator is on Headroom's device, which has the limit. So it is above the card's size.
        commands = program("proc") + ["start", "alloc:0:256", "info", f"managed:1:{5 * MIB}", f"host:2:{5 * MIB}", "info"]
        for mode, size in (("--observe", 4 * MIB), ("--manage", 4 * MIB), ("--manage", 16 * MIB)):
            result = self.under(commands, mode, "--limit", size)
            lines = result.stdout.splitlines()
            self.assertEqual((result.returncode, lines[0], len(lines)), (0, lines[1], 3))
            self.assertEqual(result.stderr.count("a block of CUDA memory is not recorded: GPU:0_unified"), size == 4 * MIB and mode == "--manage", result.stderr)

    def test_a_limit_is_a_multiple_of_256_bytes(self):
        self.assertEqual(self.lines(self.observe("proc", "start", "total", "info", options=("--limit", "1500"))), ["total 1280", "info 1280 of 1280"])

    def test_memory_of_headroom_in_the_program_counts(self):
        # Its own pages of 2 MiB are not seen as the program's, and are part of what the limit leaves.
        for first in (["headroom:0:1000000", "alloc:0:1000"], ["alloc:0:1000", "headroom:0:1000000"]):
            lines = self.lines(self.observe("proc", "start", *first, "info", options=("--limit", "8MiB")))
            self.assertEqual(lines, [f"info {6 * MIB - 1000} of {8 * MIB}"])


class Names(Run):
    """Who asks for memory, and which kernels use it."""

    LAUNCHES = ["launch:0:0", "launch:0:1", "launch:0:2", "launch:0:3", "launch:0:4", "launch:0:5"]

    def recorded(self, *commands, way="proc", options=(), **extra):
        path = self.folder / f"{len(list(self.folder.iterdir()))}.hrt"
        lines = self.lines(self.observe(way, *commands, options=("--trace", path, *options), **extra))
        shown = run("report", path, "--view", "tensors", "--json", "--max-rows", "1000")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        return lines, [row for report in json.loads(shown.stdout)["reports"] for row in report["tensors"]["rows"]], path

    def named(self, rows, size):
        return {(row["op"], row["scope"], row["tag"]) for row in rows if row["bytes"] == size}

    def test_blocks_are_named_after_the_kernel_that_is_launched_next(self):
        for way in ("proc", "ptsz"):
            _, rows, _ = self.recorded("start", "stream", "alloc:0:1000", "async:1:5000", "launch:0:0", "alloc:2:77", "launch:0:1", "alloc:3:5", way=way)
            self.assertIn(("cuMemAlloc", "", "_Z5scalePf6vectori"), self.named(rows, 1000))
            self.assertIn(("cuMemAllocAsync", "", "_Z5scalePf6vectori"), self.named(rows, 5000))
            self.assertIn(("cuMemAlloc", "", "add_kernel"), self.named(rows, 77))
            self.assertEqual(self.named(rows, 5), {("cuMemAlloc", "", "cuMemAlloc")})

    def test_more_kernels_than_there_are_places_for_names(self):
        _, rows, _ = self.recorded("start", "stream", "kernels:0:150")
        for i in range(150):
            self.assertEqual(self.named(rows, 10000 + i), {("cuMemAlloc", "", "cuMemAlloc"), ("cuMemAlloc", "", f"kernel_{i}")})
        self.assertEqual(len(rows), 150 * 2 * 2)

    def test_kernels_have_their_names_of_cpp_where_its_library_is(self):
        library = subprocess.run([COMPILER, "-print-file-name=libstdc++.so.6"], capture_output=True, text=True).stdout.strip()
        if not Path(library).is_absolute():
            self.skipTest("there is no C++ library")
        _, rows, _ = self.recorded("start", "stream", "alloc:0:1000", "launch:0:0", "alloc:1:77", "launch:0:1", LD_PRELOAD=library)
        self.assertIn(("cuMemAlloc", "", "scale(float*, vector, int)"), self.named(rows, 1000))
        self.assertIn(("cuMemAlloc", "", "add_kernel"), self.named(rows, 77))

    def test_launches_are_those_of_the_driver(self):
        commands = ["start", "stream", "launch:8:0", "alloc:0:1000", "alloc:1:1000", *self.LAUNCHES, "sync", "unload", "launch:0:0"]
        for options in ((), ("--manage",), ("--uses", "--trace", self.folder / "u%n.hrt")):
            plain = run_plain("proc", *commands)
            self.assertEqual(plain.stdout.splitlines(), ["launch:0:0 -> 400", "end"])
            result = self.under(program("proc") + commands, *options)
            self.assertEqual((result.stdout, result.stderr), (plain.stdout, ""))

    def test_a_program_that_unloads_code_all_the_time(self):
        commands = ["start", "stream", "churn:0:12000"]
        self.assertEqual(self.lines(self.observe("proc", *commands)), run_plain("proc", *commands).stdout.splitlines()[:-1])
        # Kernels keep their names.
        _, rows, _ = self.recorded("start", "stream", "churn:0:5", "alloc:0:77", "launch:0:0", options=("--uses",))
        self.assertIn(("cuMemAlloc", "", "_Z5scalePf6vectori"), self.named(rows, 77))

    def test_ranges_are_scopes(self):
        _, rows, _ = self.recorded("start", "nvtx", "push:0", "alloc:0:1000", "push:1", "alloc:1:77", "pop", "alloc:2:5", "pop", "pop", "alloc:3:6")
        self.assertEqual({row["bytes"]: row["scope"] for row in rows}, {1000: "step", 77: "step/backward", 5: "step", 6: ""})

    def test_more_ranges_than_scopes_nest(self):
        _, rows, _ = self.recorded("start", "nvtx", *["push:0"] * 100, *["pop"] * 99, "alloc:0:5", "pop", "alloc:1:6")
        self.assertEqual({row["bytes"]: row["scope"] for row in rows}, {5: "step", 6: ""})

    @needs_command
    def test_another_tool_keeps_its_injection(self):
        shell = ["sh", "-c", 'printf %s "$NVTX_INJECTION64_PATH"']
        self.assertEqual(self.under(shell, NVTX_INJECTION64_PATH="/tool.so").stdout, "/tool.so")
        self.assertEqual(self.under(shell).stdout, str(LIBRARY.resolve()))

    def test_a_thread_is_named(self):
        # The name is read at the first requests, and at some of the later ones.
        _, rows, _ = self.recorded("start", "thread:0", "alloc:2:5")
        self.assertEqual({row["bytes"]: row["scope"] for row in rows if row["bytes"] != 512}, {4096: "thread loader", 8192: "thread writer", 5: ""})

    def test_callers_are_named_on_request(self):
        _, rows, _ = self.recorded("start", "alloc:0:5")
        self.assertEqual(rows[0]["scope"], "")
        _, rows, _ = self.recorded("start", "alloc:0:5", options=("--callers",))
        self.assertIn("cuda_program", rows[0]["scope"])

    @needs_command
    def test_the_line_of_python_that_asks(self):
        # With PyDLL a thread keeps the interpreter's lock during the call, with CDLL it does not, and nothing may be asked.
        script = self.folder / "loop.py"
        script.write_text("import ctypes\n"
                          "for kind, size in (ctypes.PyDLL, 1000), (ctypes.CDLL, 77):\n"
                          "    cuda = kind('libcuda.so.1')\n"
                          "    context, address = ctypes.c_void_p(), ctypes.c_uint64()\n"
                          "    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
                          "    assert cuda.cuCtxSetCurrent(context) == 0\n"
                          "    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0\n"
                          "print('end')\n")
        path = self.folder / "p.hrt"
        self.lines(self.under([sys.executable, script], "--observe", "--trace", path))
        shown = json.loads(run("report", path, "--view", "tensors", "--json").stdout)
        rows = [row for report in shown["reports"] for row in report["tensors"]["rows"]]
        self.assertEqual({row["bytes"]: row["scope"] for row in rows}, {1000: "loop.py:7", 77: ""})

    def test_uses_of_every_kind_of_launch(self):
        # Two blocks, six launches, each a read and a write of both.
        for way in ("proc", "ptsz", "link"):
            lines, rows, path = self.recorded("start", "stream", "alloc:0:1000", "async:1:5000", *self.LAUNCHES, "sync", "stats", way=way, options=("--uses",))
            self.assertEqual(lines, ["stats 6000 of 6000"])
            used = {row["bytes"]: row["uses"] for row in rows if row["uses"]}
            self.assertEqual(used, {1000: 12, 5000: 12})
            ops = json.loads(run("report", path, "--view", "op", "--json").stdout)["reports"][0]
            counts = {row["name"]: row["occurrence"] for row in ops["op"]["rows"] if row["occurrence"]}
            self.assertEqual(counts, {"_Z5scalePf6vectori": 5, "add_kernel": 1})
            planned = run("plan", path, "--limit", "1GiB")
            self.assertEqual(planned.returncode, 0, planned.stderr)

    def test_launches_that_a_graph_records_are_not_uses(self):
        _, rows, path = self.recorded("start", "stream", "alloc:0:1000", "capture:1", "launch:0:0", "capture:0", "launch:0:1", "sync", options=("--uses",))
        self.assertEqual(sum(row["uses"] for row in rows if row["bytes"] == 1000), 2)
        self.assertIn("_Z5scalePf6vectori", {row["tag"] for row in rows})  # it is the name of the block all the same

    def test_uses_of_managed_blocks(self):
        path = self.folder / "m.hrt"
        self.lines(self.under(program("proc") + ["start", "stream", "alloc:0:1000", "async:1:5000", *self.LAUNCHES, "sync"], "--manage", "--uses", "--trace", path))
        shown = json.loads(run("report", path, "--view", "tensors", "--json").stdout)
        self.assertEqual(sum(row["uses"] for report in shown["reports"] for row in report["tensors"]["rows"]), 24)

    def test_a_kernel_may_wait_for_what_the_program_does_next(self):
        # It cannot be timed, and the launch returns all the same; later ones of it do not wait.
        begun = time.monotonic()
        _, rows, path = self.recorded("start", "stream", "alloc:0:1000", "gate:0", *["launch:0:0"] * 20, "gate:1", "sync", "launch:0:1", "sync", options=("--uses",))
        self.assertLess(time.monotonic() - begun, 20)
        self.assertEqual(sum(row["uses"] for row in rows if row["bytes"] == 1000), 42)

    @needs_command
    def test_uses_need_a_recording(self):
        result = self.observe("proc", options=("--uses",))
        self.assertEqual(result.returncode, 2)
        self.assertIn("--uses is for a recording", result.stderr)


@needs_command
class Runtime(Run):
    """Programs that nvcc makes: CUDA's runtime needs more of the driver than the stand-in has, and says so; it must say the same under headroom run."""

    def test_programs_of_nvcc_do_what_they_do_without_headroom(self):
        compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        if not Path(compiler).exists():
            self.skipTest("there is no nvcc")
        source = self.folder / "program.cu"
        source.write_text("#include <cstdio>\n#include <cuda_runtime.h>\n"
                          "int main() { void *p; cudaError_t e = cudaMalloc(&p, 1000); printf(\"%s\\n\", cudaGetErrorString(e)); return 3; }\n")
        libraries = str(Path(compiler).resolve().parents[1] / "lib64")
        for runtime in ("static", "shared"):
            with self.subTest(runtime):
                out = self.folder / runtime
                done = subprocess.run([compiler, "-cudart", runtime, str(source), "-o", str(out)], capture_output=True, text=True)
                if done.returncode != 0:
                    self.skipTest(f"nvcc: {done.stderr.splitlines()[-1:]}")
                paths = f"{DRIVERS / 'whole'}:{libraries}"
                plain = subprocess.run([str(out)], env=environment(LD_LIBRARY_PATH=paths), capture_output=True, text=True)
                result = self.under([out], "--observe", LD_LIBRARY_PATH=paths)
                self.assertEqual((result.returncode, result.stdout, result.stderr), (3, plain.stdout, plain.stderr))


@needs_command
class Debugger(Run):
    @unittest.skipUnless(shutil.which("gdb"), "gdb is not installed (tools/setup.sh test)")
    def test_a_program_can_be_debugged(self):
        # headroom run -- gdb PROGRAM, and gdb of headroom run -- PROGRAM: breakpoints in the program and in the driver, and threads.
        commands = ["start", "stream", "alloc:0:1000", "threads:2:50", "free:0", "stats"]
        gdb = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-ex", "set breakpoint pending on", "-ex", "set startup-with-shell off"]
        stops = ["-ex", "break run_threads", "-ex", "break cuMemFreeAsync if 0", "-ex", "run", "-ex", "backtrace 2", "-ex", "continue", "--args"]
        alone = subprocess.run([*gdb, *stops, *program("link"), *commands], env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        if "exited normally" not in alone.stdout:
            self.skipTest(f"gdb does not work here: {alone.stderr[-200:]}")
        for mode in ("--observe", "--manage"):
            result = self.under([*gdb, *stops, *program("link"), *commands], mode)
            self.assertIn("exited normally", result.stdout, result.stderr)
            self.assertRegex(result.stdout, r"hit Breakpoint 1, .*run_threads")
            self.assertIn("end\n", result.stdout)
            used = re.search(r"stats (\d+) of (\d+)", result.stdout)
            if mode == "--observe":
                self.assertEqual(used.group(1), used.group(2))


@needs_command
class Frameworks(Run):
    SHOW = ["sh", "-c", 'echo "$PYTORCH_NO_CUDA_MEMORY_CACHING $XLA_PYTHON_CLIENT_ALLOCATOR $XLA_PYTHON_CLIENT_PREALLOCATE $TF_GPU_ALLOCATOR $TF_FORCE_GPU_ALLOW_GROWTH"']

    def test_variables_are_set_and_said(self):
        for name, values, said in (("torch", "1    ", "PYTORCH_NO_CUDA_MEMORY_CACHING=1"),
                                   ("jax", " platform false  ", "XLA_PYTHON_CLIENT_ALLOCATOR=platform XLA_PYTHON_CLIENT_PREALLOCATE=false"),
                                   ("tensorflow", "   cuda_malloc_async true", "TF_GPU_ALLOCATOR=cuda_malloc_async TF_FORCE_GPU_ALLOW_GROWTH=true")):
            result = self.under(self.SHOW, "--framework", name)
            self.assertEqual((result.stdout, result.stderr), (f"{values}\n", f"headroom: run: --framework {name}: {said}\n"))
        self.assertIn("set_allocator(None)", self.under(self.SHOW, "--framework", "cupy").stderr)

    def test_what_jax_requests_can_be_managed(self):
        result = self.under(self.SHOW, "--framework", "jax", "--manage")
        self.assertEqual((result.stdout, result.stderr), (" cuda_async false  \n", "headroom: run: --framework jax: XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async XLA_PYTHON_CLIENT_PREALLOCATE=false\n"))

    def test_what_is_set_already_stays(self):
        result = self.under(self.SHOW, "--framework", "jax", XLA_PYTHON_CLIENT_PREALLOCATE="true")
        self.assertEqual(result.stderr, "headroom: run: --framework jax: XLA_PYTHON_CLIENT_ALLOCATOR=platform XLA_PYTHON_CLIENT_PREALLOCATE=true\n")

    def test_auto_reads_what_the_script_imports(self):
        for text, name in (("import torchvision\nfrom jax import numpy\n", "jax"), ("x = 1\n  import torch\n", "torch"), ("import os\n", None)):
            script = self.folder / "train.py"
            script.write_text(text)
            result = self.under(["true", "--flag", script], "--framework", "auto")
            self.assertIn(f"--framework {name}:" if name else "nothing is set", result.stderr)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (0, 1))

    def test_another_name_is_an_error(self):
        result = self.under(["true"], "--framework", "mxnet")
        self.assertEqual((result.returncode, result.stderr), (2, 'headroom: run: --framework is auto, torch, jax, tensorflow or cupy, not "mxnet"\n'))


class Alone(Run):
    """What Headroom must leave alone."""

    def test_headroom_run_0_switches_it_off(self):
        def check(way):
            plain = run_plain(way, "start", "alloc:0:1000", "info", "stats")
            self.assertEqual(self.lines(self.observe(way, "start", "alloc:0:1000", "info", "stats", HEADROOM_RUN="0")), plain.stdout.splitlines()[:-1])
            by_hand = run_plain(way, "start", "alloc:0:1000", "info", HEADROOM_RUN="0", LD_PRELOAD=str(LIBRARY))
            self.assertEqual((by_hand.stdout, by_hand.stderr), (run_plain(way, "start", "alloc:0:1000", "info").stdout, ""))
        self.for_each_way(check)

    @needs_command
    def test_a_program_without_cuda_notices_nothing(self):
        result = self.under(["sh", "-c", "echo said; exit 42"], "--observe")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (42, "said\n", ""))

    def test_a_machine_without_a_driver(self):
        plain = run_plain("proc", LD_LIBRARY_PATH=str(self.folder))
        if plain.returncode == 0:
            self.skipTest("this machine has a CUDA driver")
        result = self.under(program("proc"), "--observe", LD_LIBRARY_PATH=str(self.folder))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (plain.returncode, plain.stdout, plain.stderr))

    def test_a_driver_that_lacks_calls(self):
        # Of CUDA 11.0: no memory in stream order, and none of virtual addresses. What it has is recorded.
        commands = ["start", "alloc:0:1000", "pitch:1:5", "free:0", "stats"]
        for mode in ("--observe", "--manage"):
            result = self.under(program("proc") + commands, mode, driver="old", PROGRAM_LACKS="all")
            self.assertEqual(result.stdout, "stats 5120 of 5120\nend\n" if mode == "--observe" else "stats 0 of 5120\nend\n")
            self.assertEqual(sum("the memory of CUDA device 0 is not managed" in line for line in result.stderr.splitlines()), mode == "--manage")
        for extra in ({"driver": "old"}, {"FAKE_CUDA_LACKS": "cuMemAllocAsync"}):
            result = self.observe("proc", "start", PROGRAM_LACKS="cuMemAllocAsync", **extra)
            plain = run_plain("proc", "start", PROGRAM_LACKS="cuMemAllocAsync", **extra)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (plain.returncode, plain.stdout, plain.stderr))

    def test_a_driver_that_does_not_know_the_parameters_of_kernels(self):
        path = self.folder / "old.hrt"
        result = self.observe("proc", "start", "stream", "alloc:0:1000", "launch:0:0", "launch:0:0", "sync", "stats", driver="old", PROGRAM_LACKS="all",
                              options=("--uses", "--trace", path))
        self.assertEqual(result.stdout, "stats 1000 of 1000\nend\n")
        said = [line for line in result.stderr.splitlines() if line.startswith("headroom: ")]
        self.assertEqual(len(said), 1)
        self.assertIn("neither cuFuncGetParamInfo nor cuKernelGetParamInfo, which CUDA 12.4 added", said[0])
        ops = json.loads(run("report", path, "--view", "op", "--json").stdout)["reports"][0]
        self.assertIn(("_Z5scalePf6vectori", 2), {(row["name"], row["occurrence"]) for row in ops["op"]["rows"]})

    def test_a_driver_that_lacks_what_recording_needs(self):
        (self.folder / "driver").mkdir()
        self.compile("driver/libcuda.so.1", "int cuInit(unsigned f) { return f; }\nint cuMemAlloc_v2(unsigned long long *p, unsigned long n) { *p = n; return 0; }\n",
                     "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
        text = ("#include <dlfcn.h>\n#include <stdio.h>\nint main(void) { void *l = dlopen(\"libcuda.so.1\", RTLD_NOW); unsigned long long p = 0; "
                "int (*f)(unsigned long long *, unsigned long) = (int (*)(unsigned long long *, unsigned long))dlsym(l, \"cuMemAlloc_v2\"); "
                "for (int i = 0; i < 3; i++) { int r = f(&p, 7 + i); printf(\"%d %llu\\n\", r, p); } return 0; }\n")
        out = self.compile("main", text, "-ldl")
        for options in (("--observe",), ("--manage",), ("--observe", "--limit", "1")):
            result = self.under([out], *options, LD_LIBRARY_PATH=str(self.folder / "driver"))
            self.assertEqual((result.returncode, result.stdout), (0, "0 7\n0 8\n0 9\n"))
            self.assertRegex(result.stderr, r"^headroom: the program runs without Headroom: the CUDA driver has no \w+\n$")

    def test_a_driver_that_does_not_start(self):
        self.assertEqual(self.lines(self.observe("proc", "start", "alloc:0:4096", FAKE_CUDA_INIT="803")), ["start -> 803", "alloc:0:4096 -> 3"])

    def test_calls_before_the_driver_is_initialised(self):
        lines = self.lines(self.observe("proc", "info", "alloc:0:5", "free:0", "start", "alloc:0:1000", "stats"))
        self.assertEqual(lines, ["info -> 3", "alloc:0:5 -> 3", "free:0 -> 3", "stats 1000 of 1000"])

    def test_a_fork_does_what_it_does_without_headroom(self):
        lines = self.lines(self.observe("proc", "start", "alloc:0:1000", "fork", "stats"))
        self.assertEqual(lines, ["stats 1000 of 1000"])

    @needs_command
    def test_other_preloaded_libraries_are_kept(self):
        other = str(BUILD / "libheadroom_analysis.so.0")
        shell = ["sh", "-c", 'printf %s "$LD_PRELOAD"']
        self.assertEqual(self.under(shell, "--observe", LD_PRELOAD=other).stdout, f"{other}:{LIBRARY.resolve()}")
        self.assertEqual(self.under(shell, "--observe", LD_PRELOAD=str(LIBRARY.resolve())).stdout, str(LIBRARY.resolve()))
        children = self.under(["sh", "-c", "sh -c 'printf \"%s\" \"$LD_PRELOAD\"'"], "--observe", "--no-children", LD_PRELOAD=other)
        self.assertEqual(children.stdout, other)
        children = self.under(["sh", "-c", "printf %s \"$NVTX_INJECTION64_PATH\""], "--observe", "--no-children")
        self.assertEqual(children.stdout, "")

    @needs_command
    def test_a_program_that_clears_its_environment(self):
        result = self.under(["env", "-i", f"LD_LIBRARY_PATH={DRIVERS / 'whole'}", *program("proc"), "start", "alloc:0:10"], "--observe")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "end\n", ""))

    def compile(self, name, text, *flags):
        source, out = self.folder / f"{name}.c", self.folder / name
        source.write_text(text)
        done = subprocess.run([COMPILER, str(source), "-o", str(out), *flags], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"the compiler cannot make such a program: {done.stderr.splitlines()[-1:]}")
        return out

    def test_the_loader_knows_who_calls_it(self):
        # outer opens inner by its bare name, through its own RUNPATH, with RTLD_DEEPBIND; and puts of this library passes on to the next one's.
        (self.folder / "inside").mkdir()
        self.compile("inside/libinner.so", "int inner(void) { return 42; }\n", "-shared", "-fPIC")
        outer = ("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n"
                 "int outer(void) { void *l = dlopen(\"libinner.so\", RTLD_NOW | RTLD_DEEPBIND); int (*f)(void) = l ? (int (*)(void))dlsym(l, \"inner\") : 0; "
                 "return f ? f() : -1; }\n")
        self.compile("libouter.so", outer, "-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/inside,--enable-new-dtags", "-ldl")
        wrapper = ("#define _GNU_SOURCE\n#include <dlfcn.h>\nint puts(const char *text) { int (*next)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "
                   "\"puts\"); return next(text[0] == 'o' ? \"wrapped\" : text); }\n")
        self.compile("libwrapper.so", wrapper, "-shared", "-fPIC", "-ldl")
        main = ("#include <dlfcn.h>\n#include <stdio.h>\nint main(void) { void *l = dlopen(\"./libouter.so\", RTLD_NOW); "
                "int (*f)(void) = l ? (int (*)(void))dlsym(l, \"outer\") : 0; puts(\"original\"); "
                "if (!dlsym(RTLD_DEFAULT, \"no_such_function\")) puts(dlerror() ? \"reason\" : \"no reason\"); "
                "if (!dlsym(RTLD_DEFAULT, \"cuMemAlloc_v2\")) puts(\"not there\"); return f ? f() : 1; }\n")
        out = self.compile("main", "#define _GNU_SOURCE\n" + main, "-ldl", f"-L{self.folder}", "-Wl,--no-as-needed", "-l:libwrapper.so", f"-Wl,-rpath,{self.folder}")
        for result in (start([str(out)], environment(), cwd=self.folder), self.under([out], "--observe", cwd=self.folder)):
            self.assertEqual((result.returncode, result.stdout, result.stderr), (42, "wrapped\nreason\nnot there\n", ""))

    @needs_command
    def test_programs_that_cannot_be_preloaded_into_run_without_it(self):
        hello = "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 7; }\n"
        for name, flags, why in (("static", ["-static"], "is statically linked"), ("static_pie", ["-static-pie"], "is statically linked"),
                                 ("sanitized", ["-fsanitize=address"], "was compiled with a sanitizer, which admits no preloaded library")):
            with self.subTest(name):
                path = self.compile(name, hello, *flags)
                result = self.under([path], "--observe")
                self.assertEqual((result.returncode, result.stdout), (7, "hello\n"))
                self.assertEqual(result.stderr, f'headroom: run: "{path}" {why}, so its CUDA calls are not seen; it runs without that\n')

    @needs_command
    def test_a_program_of_another_c_library_is_not_preloaded_into(self):
        path = self.compile("musl", "int main(void) { return 0; }\n", "-Wl,--dynamic-linker=/lib/ld-musl-none.so.1")
        result = self.under([path], "--observe")
        self.assertIn(f'"{path}" does not use the GNU C library, so its CUDA calls are not seen', result.stderr)

    @needs_command
    def test_a_32_bit_program_is_not_preloaded_into(self):
        # Only its header is read, so any file with that header will do.
        path = self.folder / "small"
        path.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(57))
        path.chmod(0o755)
        result = self.under([path], "--observe")
        self.assertIn(result.returncode, (126, 127))  # of a shell that tries to run it
        self.assertIn(f'"{path}" is a 32-bit program, so its CUDA calls are not seen', result.stderr)

    @needs_command
    def test_a_setuid_program_is_not_preloaded_into(self):
        path = self.folder / "setuid"
        shutil.copy("/bin/true", path)
        path.chmod(0o4755)
        result = self.under([path], "--observe")
        self.assertEqual((result.returncode, len(result.stderr.splitlines())), (0, 1))
        self.assertIn("runs with the rights of its owner (setuid)", result.stderr)

    @needs_command
    def test_the_interpreter_of_a_script_decides(self):
        interpreter = self.compile("interpreter", "int main(void) { return 5; }\n", "-static")
        script = self.folder / "script"
        script.write_text(f"#! {interpreter}\n")
        script.chmod(0o755)
        result = self.under([script], "--observe")
        self.assertEqual(result.returncode, 5)
        self.assertIn("is statically linked", result.stderr)

    def test_a_program_may_use_headroom_too(self):
        lines = self.lines(self.observe("proc", "start", "alloc:0:1000", "headroom:0:1000000", "stats", "gpustats"))
        self.assertEqual(lines[1:], ["gpu 1000192"])  # rounded to 256 bytes
        self.assertTrue(lines[0].startswith("stats 1000 of"))
        # In the other order its device is in use already, and has both.
        lines = self.lines(self.observe("proc", "start", "headroom:0:1000000", "alloc:0:1000", "gpustats"))
        self.assertEqual(lines, ["gpu 1001192"])

    def test_headrooms_own_calls_are_not_those_of_the_program(self):
        # A program of Headroom, in which libheadroom uses the stand-in driver: its pages are in no ledger but its own.
        example = BUILD / "tests" / "profile" / "profile_shared"
        result = self.under([example, "", "5"], "--observe")
        self.assertEqual((result.returncode, result.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
