"""Trace files of every kind, valid and invalid. An invalid one ends with status 2 and a message that names the file, the position
and what was expected."""
import gzip
import json
import os
import pickle
import subprocess
import unittest
from pathlib import Path

import generate
from command import COMMAND, CSV_HEADER, RMM_HEADER, CommandTest, has, main
from trace_file import ALLOC, ALLOCATOR, DEVICE, FREE, Trace, varint

USE_HEADER = "time_us,action,id,bytes,stream,name\n"


class Files(CommandTest):
    def test_missing(self):
        self.fails(2, "replay", "/nonexistent/trace.csv", says=["/nonexistent/trace.csv", "cannot be opened: ENOENT: no such file"])

    def test_directory(self):
        self.fails(2, "replay", self.folder.name, says=[self.folder.name, "is a directory"])

    def test_empty(self):
        path = self.file("empty.csv", "")
        self.fails(2, "replay", path, says=[str(path), "is empty"])
        self.fails(2, "replay", "-", stdin="", says=["standard input", "is empty"])

    @unittest.skipIf(os.geteuid() == 0, "root reads everything")
    def test_unreadable(self):
        path = self.file("secret.csv", CSV_HEADER)
        path.chmod(0)
        self.fails(2, "replay", path, says=["secret.csv", "EACCES: permission denied"])

    def test_not_a_trace(self):
        self.fails(2, "replay", self.file("a.txt", "hello, world\n"), says=["a.txt: line 1", "expected the header", '"hello, world"'])
        self.fails(2, "replay", self.file("a.txt", "a" * 100000), says=["a.txt: line 1", "longer than"])
        self.fails(2, "replay", self.file("a.txt", b"\0" * 100), says=["a.txt: line 1", "NUL"])
        self.fails(2, "replay", self.file("a.txt", "x\033[31m\u0085\xff\n"), says="\\x1B[31m")
        self.fails(2, "replay", "/dev/zero", says="/dev/zero: line 1")

    def test_odd_names_are_quoted(self):
        self.fails(2, "replay", self.file("with space\n.csv", "x"), says="with space\\x0A.csv")

    def test_the_kind_is_told_by_content_not_name(self):
        self.assertEqual(self.json("replay", self.file("a.json", CSV_HEADER + "1,a,0,1,0\n"), "--no-timing")["format"], "CSV")

    @unittest.skipUnless(has("zlib"), "built without zlib")
    def test_gzip(self):
        packed = gzip.compress((CSV_HEADER + "".join(f"{i},a,{i},{i + 1},0\n" for i in range(3000))).encode())
        self.assertEqual(self.json("replay", self.file("a", packed), "--no-timing")["allocs"], 3000)
        halves = gzip.compress(CSV_HEADER.encode()) + gzip.compress(b"1,a,0,1,0\n")
        self.assertEqual(self.json("replay", self.file("two", halves), "--no-timing")["allocs"], 1)
        self.fails(2, "replay", self.file("cut.gz", packed[: len(packed) // 2]), says=["cut.gz: byte", "ends in the middle"])
        self.fails(2, "replay", self.file("end.gz", packed[:-3]), says="ends in the middle")
        self.fails(2, "replay", self.file("stub.gz", packed[:5]), says="ends in the middle")
        damaged = bytearray(packed)
        damaged[len(damaged) // 2] ^= 0xFF
        self.fails(2, "replay", self.file("bad.gz", bytes(damaged)), says="bad.gz: ")
        self.fails(2, "replay", self.file("junk.gz", packed + b"junk"), says=["junk.gz: byte", "damaged"])
        self.fails(2, "replay", self.file("empty.gz", gzip.compress(b"")), says="empty.gz: ")


@unittest.skipUnless(has("zlib"), "built without zlib")
@unittest.skipIf(b"__asan_init" in Path(COMMAND).read_bytes(), "AddressSanitizer keeps what was freed")
class Memory(CommandTest):
    """Memory is proportional to the size of the file, whatever its contents."""

    def write(self, file, times):
        """Writes 2,000 lines of 10 bytes [times] times; piece by piece, because the memory of this process counts for its children."""
        lines = "".join(f"1,a,{i % 10},9,0\n1,f,{i % 10},9,0\n" for i in range(1000)).encode()
        file.write(CSV_HEADER.encode())
        for _ in range(times):
            file.write(lines)

    def peak_of(self, *arguments):
        """Peak memory of the command in bytes, and its output."""
        with open(Path(self.folder.name) / "said", "wb+") as said:
            process = subprocess.Popen([COMMAND, *map(str, arguments)], stdout=said, stderr=said)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            return usage.ru_maxrss * 1024, process.returncode, said.read().decode()

    def test_a_file_that_unpacks_to_very_much_is_refused(self):
        """200 MB of text, 20 million events, in 0.8 MB: they used to need 0.9 GB of memory and more."""
        path = Path(self.folder.name) / "bomb.csv.gz"
        with gzip.open(path, "wb") as file:
            self.write(file, 10000)
        for command in (["plan", path, "--limit", "1GiB"], ["replay", path, "--no-timing"]):
            memory, status, said = self.peak_of(*command)
            self.assertEqual(status, 2)
            self.assertIn("run gunzip first", said)
            self.assertLess(memory, 400 << 20)

    def test_events_take_what_their_text_takes_a_few_times(self):
        """40 MB of text in lines of 10 bytes: 4 million events of 16 bytes, twice; and no events for a plan, which has acts of 8
        bytes."""
        path = Path(self.folder.name) / "t.csv"
        with open(path, "wb") as file:
            self.write(file, 2000)
        for command in (["plan", path, "--limit", "1GiB"], ["replay", path, "--no-timing"]):
            self.assertLess(self.peak_of(*command)[0], 4 * path.stat().st_size + (16 << 20))


class Csv(CommandTest):
    def bad(self, body, *says, header=CSV_HEADER):
        self.fails(2, "replay", self.file("t.csv", header + body), says=["t.csv", *says])

    def good(self, body, header=CSV_HEADER):
        return self.json("replay", self.file("t.csv", header + body), "--no-timing")

    def test_the_header_must_be_right(self):
        self.bad("", "line 1", header="time_us,action,id,bytes\n")
        self.bad("", "line 1", 'stream,nome"', "expected time_us,action,id,bytes,stream", header="time_us,action,id,bytes,stream,nome\n")
        self.bad("", "no allocation")

    def test_numbers(self):
        for field, name in (("x,a,0,1,0", "time_us"), ("1,a,x,1,0", "id"), ("1,a,0,x,0", "bytes"), ("1,a,0,1,x", "stream"), ("1,a,0,,0", "bytes"),
                            ("1,a,0,-1,0", "bytes"), ("1,a,0,1.5,0", "bytes"), ("1,a,0, 1,0", "bytes"), ("1,a,0,0x1,0", "bytes"), (",a,0,1,0", "time_us")):
            self.bad(f"1,a,7,1,0\n{field}\n", "line 3", f"{name} is ", "expected a whole number")
        self.bad("1,a,0,99999999999999999999999,0\n", "line 2", "does not fit in 64 bits")
        self.bad("1,a,0,18446744073709551615,0\n", "line 2", "at most 2^48")
        self.bad("1,a,0,0,0\n", "line 2", "0 bytes")
        self.bad("18446744073709551615,a,0,1,0\n", "line 2", "time_us is too large")
        self.bad("1,a,0,70368744177664,0\n2,a,1,1,0\n", "line 3", "more than 64 TiB")

    def test_fields(self):
        self.bad("1,a,0\n", "line 2", "3 fields; expected 5")
        self.bad("1,a,0,1\n", "line 2", "4 fields")
        self.bad("1,a,0,1,0,0\n", "line 2")
        self.bad("1,a,0,1,0\n", "line 2", "5 fields; expected 6", header=USE_HEADER)

    def test_actions(self):
        self.bad("1,z,0,1,0\n", "line 2", 'action is "z"')
        self.bad("1,alloc,0,1,0\n", "line 2", "expected a (allocate)")
        self.bad("1,,0,1,0\n", "line 2", "action")

    def test_blocks_must_be_live_when_freed_and_not_when_allocated(self):
        self.bad("1,f,5,1,0\n", "line 2", "block 5 is freed but not live")
        self.bad("1,a,5,1,0\n2,f,5,1,0\n3,f,5,1,0\n", "line 4", "block 5 is freed but not live")
        self.bad("1,a,5,1,0\n2,a,5,1,0\n", "line 3", "block 5 is allocated while it is live")
        self.bad("1,a,5,10,0\n2,f,5,11,0\n", "line 3", "freed with 11 bytes", "allocated with 10")

    def test_an_id_may_be_used_again_after_its_free(self):
        self.assertEqual(self.good("1,a,5,1,0\n2,f,5,1,0\n3,a,5,9,0\n4,f,5,,\n")["frees"], 2)

    def test_line_ends_and_byte_order_marks(self):
        self.assertEqual(self.good("1,a,0,1,0\r\n\r\n2,f,0,1,0", header="\ufeff" + CSV_HEADER)["frees"], 1)

    def test_nul_and_long_lines(self):
        self.bad("1,a,0,1\0,0\n", "line 2", "NUL")
        self.bad("1,a,0," + "1" * 70000 + ",0\n", "line 2", "longer than 65536 bytes")

    def test_use_events_are_read_and_left_out(self):
        body = "1,a,0,9,0,\n2,s,0,0,0,\n3,b,0,0,0,mm, the op\n4,r,0,9,0,\n5,w,0,9,0,\n6,e,0,12,0,\n7,f,0,9,0,\n"
        self.assertEqual(self.good(body, header=USE_HEADER)["events"], 2)
        self.assertIn("5 use events", self.passes("replay", self.file("t.csv", USE_HEADER + body), "--no-timing"))
        self.bad("1,a,0,9,0,\n2,r,x,0,0,\n", "line 3", 'id is "x"', header=USE_HEADER)


class Rmm(CommandTest):
    def bad(self, line, *says):
        good = "1,10:00:00.000001,allocate,0x10,64,0x0\n"
        self.fails(2, "replay", self.file("rmm.csv", RMM_HEADER + good + line), says=["rmm.csv: line 3", *says])

    def test_a_log(self):
        body = ("140,23:59:59.999999,allocate,0x7f00,1000,0x2\n141,10:57:36:150211,allocate failure,(nil),99,(nil)\n"
                "141,10:57:37.5,allocate,0x7f10,500,(nil)\n140,10:57:38,free,0x7f00,1000,0x2\n")
        path = self.file("rmm.csv", RMM_HEADER + body)
        replay = self.json("replay", path, "--no-timing")
        self.assertEqual((replay["format"], replay["allocs"], replay["frees"], replay["streams"]), ("RMM log", 2, 1, 2))
        text = self.passes("replay", path, "--no-timing")
        self.assertIn("2 threads (replayed in recorded order)", " ".join(text.split()))
        self.assertIn("1 request that failed", text)

    def test_it_may_begin_in_the_middle_of_a_run(self):
        body = ("1,10:00:00,free,0x99,64,0x0\n1,10:00:00,allocate,0x10,64,0x0\n1,10:00:00,allocate,0x10,32,0x0\n"
                "1,10:00:00,allocate,0x20,0,0x0\n1,10:00:00,free,0x20,0,0x0\n1,10:00:00,free,(nil),0,0x0\n")
        text = self.passes("replay", self.file("rmm.csv", RMM_HEADER + body), "--no-timing")
        for part in ("2 allocations, 1 free\n", "1 free of blocks from before", "1 block allocated again", "1 allocation of 0 bytes"):
            self.assertIn(part, text)

    def test_bad_lines(self):
        self.bad("1,10:00:00,allocate,0x20,64\n", "5 fields; expected 6")
        self.bad("1,10:00:00,allocate,0x20,64,0x0,1\n", "7 fields")
        self.bad("x,10:00:00,allocate,0x20,64,0x0\n", "Thread")
        self.bad("1,later,allocate,0x20,64,0x0\n", 'Time is "later"')
        self.bad("1,10:99:00,allocate,0x20,64,0x0\n", "Time")
        self.bad("1,10:00:00,realloc,0x20,64,0x0\n", 'Action is "realloc"', "expected allocate")
        self.bad("1,10:00:00,allocate,zz,64,0x0\n", "Pointer", "hexadecimal")
        self.bad("1,10:00:00,allocate,0x,64,0x0\n", "Pointer")
        self.bad("1,10:00:00,allocate,0x123456789012345678,64,0x0\n", "64 bits")
        self.bad("1,10:00:00,allocate,0x20,-64,0x0\n", "Size")
        self.bad("1,10:00:00,allocate,0x20,64,s\n", "Stream")


@unittest.skipUnless(has("jansson"), "built without jansson")
class Torch(CommandTest):
    def snapshot(self, *devices):
        return self.file("snapshot.json", json.dumps({"segments": [{"blocks": [{"state": "a]}\"\\"}]}], "device_traces": devices, "allocator_settings": {}}))

    def event(self, action, address=4096, size=512, **more):
        return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, **more}

    def test_a_snapshot(self):
        events = [self.event("segment_alloc"), self.event("alloc", frames=[{"filename": "é\"}].py", "line": 3, "name": "f\\"}]),
                  self.event("alloc", 8192, 1024), self.event("free_requested"), self.event("free_completed"), self.event("free_completed", 99),
                  {"action": "oom", "device_free": 1, "size": 9, "stream": 0}, self.event("snapshot")]
        path = self.snapshot([], events)
        replay = self.json("replay", path, "--no-timing")
        self.assertEqual((replay["format"], replay["allocs"], replay["frees"], replay["peak_live_bytes"]), ("PyTorch snapshot", 2, 1, 1536))
        text = self.passes("replay", path, "--no-timing")
        self.assertIn("1 free of blocks from before", text)
        self.assertIn("1 request that failed", text)

    def test_frees_that_were_only_requested_count_when_none_completed(self):
        path = self.snapshot([self.event("alloc"), self.event("free_requested")])
        self.assertEqual(self.json("replay", path, "--no-timing")["frees"], 1)

    def test_the_device_with_most_events_is_taken_or_the_one_asked_for(self):
        path = self.snapshot([self.event("alloc", 1, 10)], [self.event("alloc", 1, 20), self.event("alloc", 2, 20)], [])
        self.assertEqual(self.json("replay", path, "--no-timing")["peak_live_bytes"], 40)
        self.assertEqual(self.json("replay", path, "--device-index", 0, "--no-timing")["peak_live_bytes"], 10)
        for command in (("replay", "--no-timing"), ("plan",)):
            note = " ".join(self.passes(command[0], path, *command[1:]).split())
            self.assertIn("events of 2 devices, of which this is number 1; --device-index takes another", note)
            self.assertIn("which this is number 0", " ".join(self.passes(command[0], path, "--device-index", 0, *command[1:]).split()))
        self.fails(2, "replay", path, "--device-index", 2, says=["snapshot.json", "no events of device 2"])
        self.fails(2, "replay", path, "--device-index", 3, says=["snapshot.json", "no device 3"])

    def test_layout_does_not_matter(self):
        text = json.dumps({"device_traces": [[self.event("alloc")]]}, indent=3).replace("\n", "\r\n")
        self.assertEqual(self.json("replay", self.file("a.json", "\n\t " + text + "\n\n"), "--no-timing")["allocs"], 1)

    def bad(self, text, *says):
        self.fails(2, "replay", self.file("bad.json", text), says=["bad.json", *says])

    def test_bad_snapshots(self):
        whole = json.dumps({"device_traces": [[self.event("alloc"), self.event("alloc", 8192)]], "segments": [1, {"a": "b"}]})
        for length in range(1, len(whole)):
            self.fails(2, "replay", self.file("cut.json", whole[:length]), says="cut.json: ") if length % 9 == 0 else None
        self.bad("{}", "device_traces")
        self.bad('{"segments": []}', "device_traces")
        self.bad('{"device_traces": []}', "no events")
        self.bad('{"device_traces": {}}', "byte 18", "expected a list")
        self.bad('{"device_traces": [3]}', "byte 19", "expected a list")
        self.bad('{"device_traces": [[3]]}', "byte 20", "expected an entry")
        self.bad('{"device_traces": [[{"action": "alloc" "addr": 1}]]}', "in an entry", "not JSON")
        self.bad('{"device_traces": [[{"addr": 1}]]}', "byte 20", "action")
        self.bad(whole + "x", "expected the end of the file")
        self.bad(whole.replace("512", "-512"), "size")
        self.bad(whole.replace("512", "5.5"), "size")
        self.bad(whole.replace("512", "99999999999999999999"), "in an entry")
        self.bad(whole.replace("4096", '"4096"'), "addr")
        self.bad('{"a": ' + "[" * 100000, "closing bracket")
        self.bad('{"device_traces": [[{"action": ' + "[" * 100000 + "]" * 100000 + "}]]}", "in an entry")
        self.bad('{"device_traces": [' + "[]," * 2000 + "[]]}", "at most 1024 devices")


class RunsACommand:
    """Unpickling an instance calls os.system."""
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@unittest.skipUnless(has("jansson"), "built without jansson")
class TorchPickle(CommandTest):
    SAMPLE = Path(__file__).parent.parent / "data" / "torch_snapshot_4.pickle"

    def figures(self, path, *options):
        replay = self.json("replay", path, "--no-timing", *options)
        return tuple(replay[key] for key in ("format", "allocs", "frees", "streams", "peak_live_bytes"))

    def pickled(self, data, protocol=4):
        return self.file("snapshot.pickle", pickle.dumps(data, protocol))

    def bad(self, data, *says):
        self.fails(2, "replay", self.pickled(data), says=["snapshot.pickle: ", *says])

    def test_a_snapshot_of_pytorch(self):
        live, peak, allocs, frees = {}, 0, 0, 0
        for entry in pickle.loads(self.SAMPLE.read_bytes())["device_traces"][0]:
            if entry["action"] == "alloc":
                live[entry["addr"]] = entry["size"]
                allocs, peak = allocs + 1, max(peak, sum(live.values()))
            elif entry["action"] == "free_completed" and live.pop(entry["addr"], None):
                frees += 1
        self.assertGreater(frees, 5)
        self.assertEqual(self.figures(self.SAMPLE), ("PyTorch snapshot", allocs, frees, 2, peak))
        self.assertIn("1 request that failed", self.passes("replay", self.SAMPLE, "--no-timing"))

    def test_pickle_and_json_replay_the_same(self):
        expected = self.figures(self.SAMPLE.with_name("torch_snapshot.json"))
        for protocol in range(2, 6):
            self.assertEqual(self.figures(self.SAMPLE.with_name(f"torch_snapshot_{protocol}.pickle")), expected)

    @unittest.skipUnless(has("zlib"), "built without zlib")
    def test_gzip_and_standard_input(self):
        packed = self.file("s.pickle.gz", gzip.compress(self.SAMPLE.read_bytes()))
        self.assertEqual(self.figures(packed), self.figures(self.SAMPLE))
        with open(self.SAMPLE, "rb") as file:
            result = subprocess.run([COMMAND, "replay", "-", "--no-timing", "--json"], stdin=file, capture_output=True, check=True)
        self.assertEqual(json.loads(result.stdout)["allocs"], self.figures(self.SAMPLE)[1])

    def test_devices(self):
        event = {"action": "alloc", "addr": 1, "size": 10, "stream": 0}
        path = self.pickled({"device_traces": ([event], [dict(event, size=20), dict(event, addr=2, size=20)], [])})
        self.assertEqual(self.figures(path)[-1], 40)
        self.assertEqual(self.figures(path, "--device-index", 0)[-1], 10)
        self.fails(2, "replay", path, "--device-index", 3, says=["snapshot.pickle", "no device 3"])

    def test_a_pickle_that_runs_a_command_is_refused(self):
        trap = Path(self.folder.name) / "trap"
        for protocol in range(2, 6):
            for data in (RunsACommand(f"touch {trap}"), {"device_traces": [[RunsACommand(f"touch {trap}")]]}):
                self.fails(2, "replay", self.pickled(data, protocol), says=["snapshot.pickle: byte ", "would run code from this file"])
        self.assertFalse(trap.exists())
        pickle.loads(pickle.dumps(RunsACommand(f"touch {trap}")))
        self.assertTrue(trap.exists())

    def test_bad_snapshots(self):
        event = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1}
        self.bad({"device_traces": [[set()]]}, "byte ", "EMPTY_SET")
        self.bad([], "device_traces")
        self.bad({"segments": []}, "device_traces")
        self.bad({"device_traces": []}, "no events")
        self.bad({"device_traces": {}}, "expected a list as device_traces")
        self.bad({"device_traces": [3]}, "expected a list for each device")
        self.bad({"device_traces": [[event, 3]]}, "in entry 1", "expected a dict")
        self.bad({"device_traces": [[event, event, {"addr": 1}]]}, "in entry 2", "action")
        self.bad({"device_traces": [[dict(event, size=-512)]]}, "in entry 0", "size")
        self.bad({"device_traces": [[dict(event, size=5.5)]]}, "in entry 0", "size")
        self.bad({"device_traces": [[dict(event, addr="4096")]]}, "in entry 0", "addr")
        self.bad({"device_traces": [[dict(event, addr=1 << 63)]]}, "in entry 0", "addr")
        self.bad({"device_traces": [[dict(event, addr=1 << 64)]]}, "byte ", "64 bits")
        self.bad({"device_traces": [[]] * 2000}, "at most 1024 devices")
        self.bad({"device_traces": [[event]] * 2}, "a separate list for each device")
        self.bad({"device_traces": [[event, dict(event, frames=[None] * (1 << 20))]]}, "entry 1", "more than 1048576 parts")
        whole = pickle.dumps({"device_traces": [[event]], "segments": [(1, "a")]})
        for length in range(1, len(whole), 9):
            self.fails(2, "replay", self.file("cut.pickle", whole[:length]), says=f"cut.pickle: byte {length}: the pickle ends in the middle")
        self.fails(2, "replay", self.file("more.pickle", whole + b"x"), says=f"more.pickle: byte {len(whole)}: expected the end of the file")


class Headroom(CommandTest):
    def setUp(self):
        super().setUp()
        self.original = self.file("made.csv", generate.trace(events=20000, streams=3))
        self.recorded = os.path.join(self.folder.name, "made.hrt")
        self.first = self.json("replay", self.original, "--record", self.recorded, "--no-timing")

    def test_a_recorded_replay_replays_the_same(self):
        again = self.json("replay", self.recorded, "--repeat", 2)
        self.assertEqual(again["format"], "Headroom trace")
        for key in ("events", "allocs", "frees", "failed_allocs", "streams", "peak_live_bytes"):
            self.assertEqual(again[key], self.first[key], key)
        self.assertEqual(again["stats"]["bytes_in_use"], self.first["stats"]["bytes_in_use"])

    def test_a_recording_never_overwrites(self):
        self.fails(2, "replay", self.original, "--record", self.recorded, says="made.hrt")
        self.fails(2, "replay", self.original, "--record", "/nonexistent/x", says="/nonexistent/x")

    def test_refused_requests_are_left_out(self):
        path = os.path.join(self.folder.name, "tight.hrt")
        self.fails(1, "replay", self.original, "--record", path, "--limit", self.first["peak_live_bytes"] * 3 // 4)
        self.assertIn("requests that failed", self.passes("replay", path, "--no-timing"))

    def test_damaged_ones(self):
        whole = Path(self.recorded).read_bytes()
        records = int.from_bytes(whole[12:16], "little") + 64
        self.fails(2, "replay", self.file("cut.hrt", whole[:60]), says="cut.hrt")
        self.fails(2, "replay", self.file("bad.hrt", whole[:records] + b"\xff" * 300 + whole[records + 300:]), says=["bad.hrt", "byte"])
        self.assertIn("was not ended", self.passes("replay", self.file("half.hrt", whole[: len(whole) // 2]), "--no-timing"))

    def test_devices_are_not_added_up(self):
        trace = Trace(devices=(("GPU:0", 1 << 30), ("GPU:0 host memory", 1 << 30)))
        for i in range(3):
            trace.event(ALLOC, 10 * i, address=(i + 1) << 20, bytes=4096)
            trace.event(ALLOC, 10 * i + 1, allocator=2, address=(i + 1) << 20, bytes=1 << 16)
        trace.event(ALLOC, 100, address=1 << 28, bytes=4096)
        for i in range(3):
            trace.event(FREE, 200 + i, allocator=2, address=(i + 1) << 20)
        both = self.file("both.hrt", trace.bytes())
        self.assertEqual(self.json("replay", both, "--no-timing")["peak_live_bytes"], 4 * 4096)
        self.assertEqual(self.json("replay", both, "--no-timing", "--device-index", 1)["peak_live_bytes"], 3 << 16)
        self.assertIn("2 devices", self.passes("replay", both, "--no-timing"))
        self.fails(2, "replay", both, "--device-index", 2, says="no device 2: it has 2")

    def test_many_devices_take_time_in_proportion(self):
        """Every event is of another allocator than the one before. A linear search for each event would take 10^11 steps."""
        devices, pairs = 65000, 300000
        made = [Trace(devices=()) for i in range(devices)]
        for i, each in enumerate(made):
            each.define(DEVICE, varint(i) + varint(1 << 30) + varint(0) + b"GPU")
            each.define(ALLOCATOR, varint(i + 1) + varint(i) + varint(3) + b"bfc" + b"bfc")
        trace = Trace(devices=())
        trace.records = b"".join(each.records for each in made)
        for turn in range(2):
            before = len(trace.records)
            for allocator in (devices - 1, devices):
                trace.event(ALLOC, trace.time + 1, allocator=allocator, address=trace.address + 4096, bytes=256)
        pair = trace.records[before:]
        trace.records += pair * (pairs - 2)
        replay = self.json("replay", self.file("many.hrt", trace.bytes()), "--no-timing")
        self.assertEqual((replay["allocs"], replay["peak_live_bytes"]), (pairs, pairs * 256))

    @unittest.skipUnless(has("zlib"), "built without zlib")
    def test_packed_ones_are_to_be_unpacked(self):
        packed = self.file("t.hrt.gz", gzip.compress(Path(self.recorded).read_bytes()))
        self.fails(2, "replay", packed, says=["t.hrt.gz", "run gunzip first"])


if __name__ == "__main__":
    main()
