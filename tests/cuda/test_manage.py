#!/usr/bin/env python3
"""headroom run --manage, on the stand-in driver: memory comes from Headroom's allocator, and the program gets what the driver would have given it."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cuda_run import CARD, MIB, Run, program, run_plain  # noqa: E402


class Manage(Run):
    """Memory from Headroom's allocator."""

    def test_memory_comes_from_headroom_by_every_way(self):
        # Rounded to 256 bytes: 1000 to 1024 and 70000 to 70144. With per-thread streams stream 0 is the driver's affair, so a stream is made.
        def check(way):
            lines = self.lines(self.manage(way, "start", "stream", "alloc:0:1000", "async:1:70000", "contents:0", "contents:1", "gpustats", "free:0",
                                           "freeasync:1", "gpustats"))
            self.assertEqual(lines, [f"gpu {1024 + 70144}", "gpu 0"])
        self.for_each_way(check)

    def test_what_headroom_cannot_give_comes_from_the_driver_and_is_counted(self):
        lines = self.lines(self.manage("proc", "start", "stream", "pitch:0:100", "managed:1:50", f"create:2:{2 * MIB}", "pool:3:9", "gpustats",
                                       "free:0", "free:1", "release:2", "freeasync:3", "gpustats"))
        self.assertEqual(lines, [f"gpu {5120 + 50 + 2 * MIB + 9}", "gpu 0"])
        # Memory for the per-thread default stream, and for a stream that records a graph.
        for way in ("ptsz", "proc_ptsz"):
            lines = self.lines(self.manage(way, "start", "async:0:1000", "stats", "freeasync:0", "sync", "stats"))
            self.assertEqual([int(line.split()[3]) for line in lines], [1000, 0])
        # Memory of a context of the program's own ends with it.
        lines = self.lines(self.manage("proc", "start", "alloc:0:1024", "context", "alloc:1:77", "current", "gpustats", "destroy", "gpustats"))
        self.assertEqual(lines, [f"gpu {1024 + 77}", "gpu 1024"])

    def test_a_block_is_used_again_only_when_earlier_work_on_it_is_done(self):
        # Fills of the first block on one stream take longer than the writes and reads of the second, at the same address, on another.
        for free, alloc in (("free:0", "alloc:1"), ("free:0", "async:1"), ("freeasync:0", "alloc:1"), ("freeasync:0", "async:1")):
            commands = ["stream", "alloc:0:40000000", *["fill:0"] * 8, free, "stream", f"{alloc}:40000000", "contents:1", "same:0:1", "freeasync:1"]
            self.assertEqual(self.lines(self.manage("proc", "start", *commands * 3)), ["same 1"] * 3)

    def test_threads_share_the_allocator(self):
        for way in ("link", "proc", "ptsz"):
            self.assertEqual(self.lines(self.manage(way, "start", "stream", "threads:8:2000")), [])

    def test_an_address_belongs_to_its_block(self):
        lines = self.lines(self.manage("proc", "start", "alloc:0:1000000", "alloc:1:5000", "range:1:0", "range:1:4999", "range:0:999999"))
        self.assertEqual(lines, ["range 0 5000", "range 0 5000", "range 0 1000000"])

    def test_errors_are_those_of_the_driver(self):
        def check(way):
            commands = ["start", "stream", "free:9", "freeasync:9", "alloc:0:0", "async:0:0", "alloc:1:4096", "free:1", "free:1", "freeasync:1"]
            self.assertEqual(self.lines(self.manage(way, *commands)), run_plain(way, *commands).stdout.splitlines()[:-1])
            lines = self.lines(self.manage(way, "start", f"untouched:0:{CARD}"))
            self.assertEqual(lines, ["2 2 2 2 1 untouched"])
        self.for_each_way(check)

    def test_free_memory_includes_what_headroom_keeps(self):
        # The context takes 4 MiB, as without Headroom.
        lines = self.lines(self.manage("proc", "start", "alloc:0:1048576", "info", "free:0", "info"))
        self.assertEqual(lines, [f"info {CARD - 5 * MIB} of {CARD}", f"info {CARD - 4 * MIB} of {CARD}"])

    def test_the_limit_holds(self):
        lines = self.lines(self.manage("proc", "start", "info", f"alloc:0:{6 * MIB}", "info", f"alloc:1:{4 * MIB}", "free:0", f"alloc:1:{4 * MIB}", "info",
                                       options=("--limit", "8MiB"), HEADROOM_OOM_REPORT=str(self.folder / "oom")))
        self.assertEqual(lines, [f"info {8 * MIB} of {8 * MIB}", f"info {2 * MIB} of {8 * MIB}", f"alloc:1:{4 * MIB} -> 2", f"info {4 * MIB} of {8 * MIB}"])
        result = self.manage("proc", "start", f"alloc:0:{6 * MIB}", f"alloc:1:{4 * MIB}", options=("--limit", "8MiB"))
        self.assertEqual(result.stderr.count("Out of memory: "), 1)
        self.assertIn("GPU:0_managed", result.stderr)

    def test_the_limit_holds_for_managed_blocks_and_others_together(self):
        # In both orders; what is refused leaves nothing behind.
        for first, second in ((f"create:0:{6 * MIB}", f"alloc:1:{4 * MIB}"), (f"alloc:0:{6 * MIB}", f"create:1:{4 * MIB}"), (f"create:0:{6 * MIB}", f"async:1:{4 * MIB}")):
            lines = self.lines(self.manage("proc", "start", "stream", first, second, "info", "live", "alloc:2:1000", "live", options=("--limit", "8MiB"), HEADROOM_OOM_REPORT=str(self.folder / "oom")))
            self.assertEqual(lines, [f"{second} -> 2", f"info {2 * MIB} of {8 * MIB}", f"live {6 * MIB}", f"live {8 * MIB}"])
        # Pages that the allocator keeps for later are given back first.
        lines = self.lines(self.manage("proc", "start", f"alloc:0:{6 * MIB}", "free:0", f"create:1:{4 * MIB}", f"alloc:2:{4 * MIB}", "live", "info", options=("--limit", "8MiB")))
        self.assertEqual(lines, [f"live {8 * MIB}", f"info 0 of {8 * MIB}"])
        result = self.manage("proc", "start", f"create:0:{6 * MIB}", f"alloc:1:{4 * MIB}", options=("--limit", "8MiB"))
        self.assertEqual(result.stderr.count("Out of memory: "), 1)

    def test_a_limit_below_a_page_leaves_memory_to_the_driver(self):
        result = self.manage("proc", "start", "alloc:0:1000000", "info", "alloc:1:100000", options=("--limit", "1MiB"), HEADROOM_OOM_REPORT=str(self.folder / "oom"))
        self.assertEqual(result.stdout, f"info {MIB - 1000000} of {MIB}\nalloc:1:100000 -> 2\nend\n")
        self.assertEqual(result.stderr, "headroom: the memory of CUDA device 0 is not managed: the limit is below one page of Headroom's; it comes from the driver\n")

    def test_after_a_reset_memory_comes_from_the_driver(self):
        lines = self.lines(self.manage("proc", "start", "alloc:0:1000", "reset", "gpustats", "alloc:1:5", "gpustats", "free:1", "gpustats"))
        self.assertEqual(lines, ["gpu 0", "gpu 5", "gpu 0"])

    def test_a_destroyed_stream_is_forgotten(self):
        commands = ["stream", "async:0:1000", "contents:0", "freeasync:0", "streamend"] * 100  # more than Headroom's 63 streams
        self.assertEqual(self.lines(self.manage("proc", "start", *commands, "gpustats")), ["gpu 0"])

    def test_a_stream_that_is_destroyed_may_wait_for_other_threads(self):
        # Its work ends after a request of another thread.
        lines = self.lines(self.manage("proc", "start", "stream", "async:0:1000", "freeasync:0", "gate:0", "openlater", "streamend", "alloc:1:1000", "gpustats"))
        self.assertEqual(lines, ["gpu 1024"])

    def test_memory_for_more_streams_than_headroom_has_comes_from_the_driver(self):
        # 63, beside the default one. What the driver gives is not rounded to 256 bytes.
        commands = ["start", *["stream", "async:0:1000", "contents:0", "freeasync:0"] * 70, "sync"]
        self.assertEqual(self.lines(self.manage("proc", *commands, "gpustats", "async:1:1000", "gpustats", "freeasync:1", "sync", "gpustats")), ["gpu 0", "gpu 1000", "gpu 0"])

    def test_memory_stays_when_the_program_releases_the_context(self):
        lines = self.lines(self.manage("proc", "start", "alloc:0:1000", "releasecontext", "gpustats", "range:0:5", "free:0", "gpustats"))
        self.assertEqual(lines, ["gpu 1024", "range 0 1000", "gpu 0"])

    def test_memory_of_pools_comes_from_headroom(self):
        # Of the program's own pool and of the card's, to which the program sees what it uses.
        def check(way):
            commands = ["start", "stream", "newpool:0", "pool:0:1000", "pool:1:500", "contents:0", "poolinfo", "freeasync:1", "sync", "poolinfo", "lowpool",
                        "pool:2:24", "poolinfo", "gpustats", "freeasync:0", "freeasync:2", "endpool", "async:3:700", "poolinfo", "freeasync:3", "sync", "poolinfo"]
            managed = self.lines(self.manage(way, *commands))
            plain = run_plain(way, *commands).stdout.splitlines()[:-1]
            used = [[line.split(" reserved")[0] for line in lines if "gpu" not in line] for lines in (managed, plain)]
            self.assertEqual(used[0], used[1])
            self.assertEqual(managed[:4], ["pool 1500 1500 reserved 32 32", "pool 1000 1500 reserved 32 32", "pool 1024 1024 reserved 32 32", "gpu 1280"])
        self.for_each_way(check)

    def test_a_pool_has_its_size(self):
        commands = ["start", "stream", "newpool:0:1000", "pool:0:600", "pool:1:500", "freeasync:0", "sync", "pool:1:500", "poolinfo"]
        self.assertEqual(self.lines(self.manage("proc", *commands)), ["pool:1:500 -> 2", "pool 500 600 reserved 32 32"])
        self.assertEqual(run_plain("proc", *commands).stdout, "pool:1:500 -> 2\npool 500 600 reserved 0 0\nend\n")

    def test_pools_that_others_can_use_are_left_to_the_driver(self):
        for pool in (["newpool:1"], ["newpool:0", "sharepool:1"]):
            for chosen in ("pool:0:1000", "async:0:1000"):
                # The block is not rounded to 256 bytes.
                lines = self.lines(self.manage("proc", "start", "stream", *pool, "setpool", chosen, "gpustats", "freeasync:0", "sync", "endpool", "gpustats", FAKE_CUDA_DEVICES="2"))
                self.assertEqual(lines, ["gpu 1000", "gpu 0"])
        # A pool of the same handle, and the card's own after that, are not.
        lines = self.lines(self.manage("proc", "start", "stream", "newpool:1", "setpool", "endpool", "newpool:0", "pool:0:1000", "endpool", "async:1:1000", "gpustats"))
        self.assertEqual(lines, ["gpu 2048"])

    def test_a_trimmed_pool_gives_memory_back(self):
        lines = self.lines(self.manage("proc", "start", "stream", "newpool:0", f"pool:0:{60 * MIB}", "pool:1:5", "freeasync:0", "sync", "poolinfo", "trimpool", "poolinfo",
                                       f"create:1:{200 * MIB}", "release:1"))
        self.assertEqual(lines, [f"pool 5 {60 * MIB + 5} reserved 64 64", f"pool 5 {60 * MIB + 5} reserved 32 64"])

    def test_a_graph_owns_what_it_allocates(self):
        # Nothing of Headroom enters the graph, in any mode; nor does waiting for the streams of a block end it.
        commands = ["start", "stream", "async:1:300", "alloc:2:300", "freeasync:1", "capture:1", "async:0:1000", "alloc:3:1000", "capture:0", "freeasync:0", "free:2", "free:3", "sync"]
        plain = run_plain("proc", *commands)
        self.assertEqual(plain.stdout, "end\n")
        for way in ("link", "proc", "proc_proc"):
            for options in ((), ("--manage",), ("--uses", "--trace", self.folder / "g%n-%p.hrt"), ("--manage", "--uses", "--trace", self.folder / "g%n-%p.hrt")):
                self.assertEqual(self.lines(self.under(program(way) + commands, *options)), [])
        lines = self.lines(self.observe("proc", "start", "stream", "async:1:300", "capture:1", "async:0:1000", "alloc:2:77", "capture:0", "stats", "async:3:1", "cards"))
        self.assertEqual(lines[0].split()[1], "377")
        lines = self.lines(self.manage("proc", "start", "stream", "async:1:256", "capture:1", "async:0:1000", "alloc:2:77", "freeasync:1", "capture:0", "async:3:256", "gpustats"))
        self.assertEqual(lines, ["freeasync:1 -> 1", f"gpu {256 + 77 + 256}"])

    def test_a_free_while_a_graph_is_recorded_does_not_end_the_recording(self):
        # The block is freed once the recording has ended.
        for way in ("link", "proc", "proc_ptsz"):
            lines = self.lines(self.manage(way, "start", "stream", "alloc:0:256", "alloc:1:256", "fill:0", "capture:1", "free:0", "free:0", "capture:0", "gpustats", "alloc:2:256",
                                           "gpustats", "free:1", "free:2", "gpustats"))
            self.assertEqual(lines, ["free:0 -> 1", "gpu 512", "gpu 512", "gpu 0"])

    def test_a_recording_ends_with_its_stream(self):
        # Memory is managed again, so it is rounded to 256 bytes, and what was freed meanwhile is free.
        for way in ("link", "proc"):
            lines = self.lines(self.manage(way, "start", "stream", "alloc:0:256", "capture:1", "free:0", "gpustats", "streamend", "stream", "alloc:1:1000", "gpustats", "capture:1", "capture:0",
                                           "alloc:2:1000", "gpustats"))
            self.assertEqual(lines, ["gpu 256", "gpu 1024", "gpu 2048"])

    def test_memory_kept_for_later_is_not_in_the_way(self):
        # Of requests that the driver serves: on a card of 256 MiB, and within a limit of 100 MiB.
        lines = self.lines(self.manage("proc", "start", f"alloc:0:{150 * MIB}", "free:0", f"create:1:{200 * MIB}", "release:1", f"alloc:0:{150 * MIB}", "free:0", f"pitch:2:{20 * MIB}"))
        self.assertEqual(lines, [])
        lines = self.lines(self.manage("proc", "start", f"alloc:0:{90 * MIB}", "free:0", "info", f"create:1:{60 * MIB}", "info", f"alloc:0:{20 * MIB}", "live",
                                       options=("--limit", "100MiB")))
        self.assertEqual(lines, [f"info {100 * MIB} of {100 * MIB}", f"info {40 * MIB} of {100 * MIB}", f"live {80 * MIB}"])

    def test_a_stream_of_another_card_decides(self):
        commands = ["start:0", "stream", "start:1", "async:0:1024", "alloc:1:512"]
        self.assertEqual(self.lines(self.observe("proc", *commands, "cards", "freeasync:0", "sync", "cards", FAKE_CUDA_DEVICES="2")), ["cards 1024 512", "cards 0 512"])
        # Card 0 is not the current one when its stream is met: the block is the driver's, or of its own card.
        lines = self.lines(self.manage("proc", *commands, "gpus", "freeasync:0", "freeasync:1", "sync", "gpus", FAKE_CUDA_DEVICES="2"))
        self.assertEqual(lines, ["gpus 1024 512", "gpus 0 0"])

    def test_a_pool_decides_where_its_memory_is(self):
        # On card 0, for a stream of card 1: a stream that was made, and the default one.
        for stream in (["stream"], []):
            commands = ["start:0", "newpool:0", "start:1", *stream, "pool:0:1024", "alloc:1:512"]
            self.assertEqual(self.lines(self.observe("proc", *commands, "cards", "freeasync:0", "sync", "cards", FAKE_CUDA_DEVICES="2")), ["cards 1024 512", "cards 0 512"])
            lines = self.lines(self.manage("proc", *commands, "gpus", "freeasync:0", "freeasync:1", "sync", "gpus", FAKE_CUDA_DEVICES="2"))
            self.assertEqual(lines, ["gpus 1024 512", "gpus 0 0"])
            lines = self.lines(self.observe("proc", *commands, "pool:2:600", "alloc:3:900", "cards", FAKE_CUDA_DEVICES="2", options=("--limit", "1536"), HEADROOM_OOM_REPORT=str(self.folder / "o")))
            self.assertEqual(lines, ["pool:2:600 -> 2", "cards 1024 1412"])
        # Managed and host memory do not count against the limit.
        lines = self.lines(self.observe("proc", "start", "stream", "newpool:2", "pool:0:1000", "newpool:3", "pool:1:700", "cards", "hoststats", "info", "freeasync:0", "freeasync:1", "sync",
                                        "hoststats", options=("--limit", "2KiB")))
        self.assertEqual(lines, ["cards 1000 -1", "host 700", "info 2048 of 2048", "host 0"])
        lines = self.lines(self.manage("proc", "start", "stream", "newpool:2", "pool:0:1000", "newpool:3", "pool:1:700", "gpustats", "hoststats", "freeasync:0", "freeasync:1", "sync", "gpustats",
                                       "hoststats"))
        self.assertEqual(lines, ["gpu 1000", "host 700", "gpu 0", "host 0"])

    def test_cards_do_not_access_each_others_memory(self):
        commands = ["start", "alloc:0:1000", "peers"]
        result = self.manage("proc", *commands, FAKE_CUDA_DEVICES="2")
        self.assertEqual((result.returncode, result.stdout), (0, "peers 0 0 217\nend\n"))
        self.assertRegex(result.stderr, "^headroom: cards are shown to the program as without access to each other's memory, .*--observe leaves it\n$")
        for result in (run_plain("proc", *commands, FAKE_CUDA_DEVICES="2"), self.observe("proc", *commands, FAKE_CUDA_DEVICES="2")):
            self.assertEqual((result.stdout, result.stderr), ("peers 1 1 0\nend\n", ""))

    def test_a_block_for_another_process_says_what_to_do(self):
        commands = ["start", "alloc:0:1000", "share:0", "share:0", "share:9"]
        result = self.manage("proc", *commands)
        self.assertEqual(result.stdout, "share:0 -> 1\nshare:0 -> 1\nshare:9 -> 1\nend\n")
        self.assertRegex(result.stderr, "^headroom: the program shares memory with another process .*; run it with --observe\n$")
        self.assertEqual(self.lines(self.observe("proc", *commands)), ["share:9 -> 1"])

    def test_a_reset_gives_all_memory_back(self):
        # More than half of the card, twice.
        lines = self.lines(self.manage("proc", "start", f"alloc:0:{150 * MIB}", "reset", f"alloc:1:{150 * MIB}", "info"))
        plain = run_plain("proc", "start", f"alloc:0:{150 * MIB}", "reset", f"alloc:1:{150 * MIB}", "info")
        self.assertEqual(lines, plain.stdout.splitlines()[:-1])

    def test_a_program_that_waits_makes_no_calls(self):
        # The thread that publishes for `headroom top`, four times a second, leaves the driver alone.
        for mode in ("--observe", "--manage"):
            lines = self.lines(self.under(program("proc") + ["start", "stream", "alloc:0:1000", "sleep:0:300", "calls", "sleep:0:900", "calls"], mode, HEADROOM_TOP="1"))
            self.assertEqual(lines[1], "calls 0")

    def test_without_virtual_memory_the_driver_gives_it(self):
        result = self.manage("proc", "start", "alloc:0:1000", "free:0", FAKE_CUDA_NO_VMM="1")
        self.assertEqual(result.stdout, "end\n")
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertIn("the memory of CUDA device 0 is not managed", result.stderr)


if __name__ == "__main__":
    unittest.main()
