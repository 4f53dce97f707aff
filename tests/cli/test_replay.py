"""headroom replay: its output, and that its statements are true."""
import json
import random
import unittest

import generate
from command import CSV_HEADER, TRACES, CommandTest, has, main, run, unpacked

KEYS = {"trace", "allocator", "threads", "events", "allocs", "frees", "failed_allocs", "peak_live_bytes", "limit_bytes", "min_limit_bytes",
        "min_limit_ratio", "ns_per_op", "alloc_p50_ns", "alloc_p99_ns", "free_p50_ns", "free_p99_ns", "pages_remapped", "stats"}
MEASURED = ["ns_per_op", "alloc_p50_ns", "alloc_p99_ns", "free_p50_ns", "free_p99_ns"]


def made(events=4000, seed=1, largest=1 << 20):
    """A trace as text, with its numbers of allocations and frees and its peak."""
    numbers = random.Random(seed)
    lines, live, total, peak, allocs, frees = [CSV_HEADER], {}, 0, 0, 0, 0
    for time in range(events):
        if live and numbers.random() < 0.47:
            block = numbers.choice(list(live))
            size = live.pop(block)
            lines.append(f"{time},f,{block},{size},0\n")
            total -= size
            frees += 1
        else:
            size = numbers.randint(1, largest)
            live[allocs] = size
            lines.append(f"{time},a,{allocs},{size},0\n")
            total += size
            allocs += 1
        peak = max(peak, total)
    return "".join(lines), allocs, frees, peak


class Replay(CommandTest):
    def setUp(self):
        super().setUp()
        text, self.allocs, self.frees, self.peak = made()
        self.trace = self.file("made.csv", text)

    def test_json_has_the_keys_and_the_trace_s_own_numbers(self):
        replay = self.json("replay", self.trace)
        self.assertLessEqual(KEYS, set(replay))
        self.assertEqual(replay["trace"], str(self.trace))
        self.assertEqual((replay["allocator"], replay["threads"]), ("bfc", 1))
        self.assertEqual((replay["events"], replay["allocs"], replay["frees"]), (4000, self.allocs, self.frees))
        self.assertEqual((replay["failed_allocs"], replay["peak_live_bytes"]), (0, self.peak))
        for key in ("limit_bytes", "min_limit_bytes", "min_limit_ratio"):
            self.assertIsNone(replay[key])
        for key in MEASURED:
            self.assertGreaterEqual(replay[key], 0)
        self.assertGreater(replay["ns_per_op"], 0)
        self.assertLessEqual(replay["alloc_p50_ns"], replay["alloc_p99_ns"])

    def test_statistics_are_those_of_one_pass(self):
        stats = self.json("replay", self.trace, "--repeat", 5)["stats"]
        self.assertEqual((stats["num_allocs"], stats["num_frees"]), (self.allocs, self.frees))
        self.assertEqual(stats["num_live"], self.allocs - self.frees)
        self.assertGreaterEqual(stats["peak_bytes_in_use"], self.peak)
        self.assertEqual(stats["bytes_in_use"] + stats["bytes_cached"] + stats["bytes_free"], stats["bytes_reserved"])
        self.assertEqual(sum(value for key, value in stats.items() if key.startswith("source_")), self.allocs)

    def test_what_is_not_measured_is_null(self):
        replay = self.json("replay", self.trace, "--no-timing")
        self.assertEqual([replay[key] for key in MEASURED], [None] * len(MEASURED))

    def test_a_limit_that_is_enough(self):
        limit = 2 * self.peak
        replay = self.json("replay", self.trace, "--limit", limit)
        self.assertEqual((replay["limit_bytes"], replay["failed_allocs"]), (limit, 0))
        self.assertLessEqual(replay["stats"]["peak_bytes_reserved"], limit)
        self.assertIn("it fits", self.passes("replay", self.trace, f"--limit={limit}", "--no-timing"))

    def test_a_limit_that_is_not_ends_with_1_and_says_where(self):
        result = run("replay", self.trace, "--limit", self.peak // 2, "--json")
        replay = json.loads(result.stdout)
        self.assertEqual((result.returncode, result.stderr), (1, ""))
        self.assertGreater(replay["failed_allocs"], 0)
        self.assertEqual(replay["stats"]["num_failed_allocs"], replay["failed_allocs"])
        self.assertLess(replay["first_failed_event"], 4000)
        self.assertEqual([replay[key] for key in MEASURED], [None] * len(MEASURED))
        text = run("replay", self.trace, "--limit", self.peak // 2)
        self.assertEqual(text.returncode, 1)
        for part in ("does not fit", "the first, at event", "cannot allocate", "its limit allows", "raise the limit"):
            self.assertIn(part, " ".join(text.stdout.split()))

    def check_found_limit(self, trace, *options):
        found = self.json("replay", trace, "--find-limit", "--no-timing", *options)
        least, lowest, page, peak = (found[key] for key in ("min_limit_bytes", "lowest_success_bytes", "page_bytes", "peak_live_bytes"))
        self.assertGreaterEqual(least, lowest)
        self.assertGreaterEqual(lowest, peak)
        self.assertAlmostEqual(found["min_limit_ratio"], least / peak, places=5)
        for limit in (least, lowest):
            self.passes("replay", trace, "--limit", limit, "--no-timing", *options)
        step = max(page, peak // 1000)
        self.fails(1, "replay", trace, "--limit", lowest - step - page, "--no-timing", *options)
        return found

    def test_a_found_limit_is_one(self):
        self.check_found_limit(self.trace, "--no-stitch")
        self.check_found_limit(self.trace, "--page", "64KiB")
        self.check_found_limit(unpacked("resnet.csv"))

    def test_a_found_limit_is_one_with_stitching_too(self):
        text, *_, peak = made(largest=16 << 20)
        trace = self.file("large.csv", text)
        plain, stitched = self.check_found_limit(trace, "--no-stitch"), self.check_found_limit(trace)
        self.assertEqual(stitched["page_bytes"], 2 << 20)
        self.assertLess(stitched["min_limit_bytes"], 1.1 * plain["min_limit_bytes"])
        at_limit = self.json("replay", trace, "--limit", stitched["min_limit_bytes"], "--no-timing")
        self.assertEqual(at_limit["pages_remapped"] * (2 << 20), at_limit["stats"]["bytes_stitched"])

    def test_what_the_allocator_fits_by_default_fits(self):
        """64 MiB in eight blocks, every second one freed: 32 MiB are free in holes of 8 MiB, which only stitching can join to one
        block."""
        block = 8 << 20
        lines = [f"{i},a,{i},{block},0\n" for i in range(8)] + [f"8,f,{i},{block},0\n" for i in range(0, 8, 2)] + [f"9,a,8,{4 * block},0\n"]
        trace = self.file("holes.csv", CSV_HEADER + "".join(lines))
        fits = self.json("replay", trace, "--limit", 8 * block, "--no-timing")
        self.assertEqual((fits["stitch"], fits["page_bytes"], fits["failed_allocs"], fits["pages_remapped"]), (True, 2 << 20, 0, 16))
        found = self.json("replay", trace, "--find-limit", "--no-timing")
        self.assertEqual((found["min_limit_bytes"], found["min_limit_ratio"]), (8 * block, 1))
        plain = self.fails(1, "replay", trace, "--limit", 8 * block, "--no-timing", "--no-stitch")
        self.assertIn("without stitching", plain.stdout)
        self.assertIn("does not fit", plain.stdout)
        self.fails(2, "replay", trace, "--stitch", says="--no-stitch")

    def test_statistics_and_a_picture(self):
        text = self.passes("replay", unpacked("gpt2.csv"), "--find-limit", "--picture", "--repeat", 3)
        for part in ("peak", "least limit", "ns", "p99", "num_allocs", "Live bytes", "region 1", "in use"):
            self.assertIn(part, text)

    def test_direct_asks_the_device_each_time(self):
        replay = self.json("replay", self.trace, "--allocator", "direct", "--repeat", 2)
        self.assertEqual((replay["allocator"], replay["stats"]["source_device"]), ("direct", self.allocs))
        self.assertIn("the device 100.0%", self.passes("replay", self.trace, "--allocator", "direct", "--picture", "--no-timing"))

    def test_threads_replay_a_copy_each(self):
        replay = self.json("replay", self.trace, "--threads", 3, "--limit", 2 * self.peak, "--repeat", 3)
        self.assertEqual((replay["threads"], replay["allocs"], replay["stats"]["num_allocs"]), (3, self.allocs, 3 * self.allocs))
        self.assertEqual(replay["stats"]["num_live"], 3 * (self.allocs - self.frees))
        self.assertLessEqual(replay["stats"]["bytes_limit"], 6 * self.peak)
        self.assertIn("3 threads together", self.passes("replay", self.trace, "--threads", "3", "--repeat", "2"))

    def test_repeat_says_how_many_passes(self):
        self.assertEqual(self.json("replay", self.trace, "--repeat", 7)["timed_passes"], 7)
        self.assertGreaterEqual(self.json("replay", self.trace)["timed_passes"], 3)

    def test_page_size(self):
        for page in (4096, 1 << 20):
            replay = self.json("replay", self.trace, "--page", page, "--no-timing")
            self.assertEqual((replay["page_bytes"], replay["stats"]["bytes_reserved"] % page), (page, 0))

    def test_every_kind_of_synthetic_trace_replays(self):
        for kind in generate.KINDS:
            for streams, threads in ((1, 1), (4, 1), (70, 3)):
                with self.subTest(kind=kind, streams=streams, threads=threads):
                    replay = self.json("replay", "-", "--repeat", 1, stdin=generate.trace(kind, 4000, streams, threads))
                    self.assertEqual((replay["events"], replay["failed_allocs"]), (4000, 0))
                    self.assertEqual(replay["format"], "RMM log" if threads > 1 else "CSV")
                    self.assertLessEqual(replay["streams"], streams)
                    if kind == "random":
                        self.assertEqual(replay["streams"], streams)

    def test_a_trace_may_come_from_standard_input(self):
        self.assertEqual(self.json("replay", "-", stdin=self.trace.read_bytes())["allocs"], self.allocs)

    def test_more_streams_than_a_device_has_share(self):
        lines = [CSV_HEADER] + [f"{i},a,{i},4096,{i % 100}\n" for i in range(300)] + [f"{i},f,{i},4096,{(i + 1) % 100}\n" for i in range(300)]
        trace = self.file("streams.csv", "".join(lines))
        self.assertEqual(self.json("replay", trace, "--repeat", 2)["streams"], 100)
        self.assertIn("100 streams share the 64", self.passes("replay", trace, "--no-timing"))

    def test_a_program_of_one_allocation(self):
        trace = self.file("one.csv", CSV_HEADER + "0,a,0,1,0\n")
        replay = self.json("replay", trace, "--find-limit")
        self.assertEqual((replay["allocs"], replay["frees"], replay["peak_live_bytes"]), (1, 0, 1))
        self.assertIsNone(replay["free_p50_ns"])
        self.passes("replay", trace, "--picture")

    @unittest.skipUnless(has("zlib"), "built without zlib")
    def test_the_recorded_traces_have_the_figures_of_their_readme(self):
        for name, allocs, peak in (("gpt2", 14944, 28.17), ("gpt2var", 48700, 28.17), ("resnet", 5265, 5.83), ("serve", 205003, 1.69),
                                   ("gpt2b16-use", 12519, 51.3), ("resnet-use", 3973, 5.83)):
            with self.subTest(trace=name):
                replay = self.json("replay", TRACES / f"{name}.csv.gz", "--no-timing")
                self.assertEqual((replay["allocs"], replay["failed_allocs"]), (allocs, 0))
                self.assertAlmostEqual(replay["peak_live_bytes"] / 1e9, peak, delta=0.05)


if __name__ == "__main__":
    main()
