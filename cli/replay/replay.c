/* replay.c - `headroom replay`: runs a recorded trace through the public API on the simulated device.
 *
 *     trial         one pass with the limit of --limit, or without a limit: does it fit, and the statistics at its end
 *     find limit    --find-limit: many passes with different limits
 *     speed         passes timed as a whole, then a pass in which every call is timed
 *     picture       --picture: a pass up to the peak, and a chart of the regions at that moment
 *
 * Each part starts with a fresh allocator (measure.h). */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "command.h"
#include "replay/find_limit.h"
#include "replay/measure.h"
#include "replay/replay.h"

#define MAX_THREADS 64
#define MAX_REPEAT 1000000

enum { LIMIT, FIND_LIMIT, NO_STITCH, ALLOCATOR, THREADS, REPEAT, PAGE, DEVICE_INDEX, RECORD, NO_TIMING, PICTURE, JSON };

static const hr__option options[] = {
	[LIMIT] = { "--limit", "SIZE", "most memory that the allocator may reserve; default: no limit" },
	[FIND_LIMIT] = { "--find-limit", NULL,
	                 "find the smallest limit at which no allocation fails, to within 0.1% of the peak. A higher limit can fail where a "
	                 "lower one does not, so higher limits are tried too: the result is above every limit that was seen to fail" },
	[NO_STITCH] = { "--no-stitch", NULL,
	                "best fit alone: do not map free pages side by side when nothing else fits, which is the default" },
	[ALLOCATOR] = { "--allocator", "NAME", "bfc (default): best fit with coalescing; direct: one device allocation per request" },
	[THREADS] = { "--threads", "N", "N threads on one allocator, each replaying its own copy of the trace; --limit is per copy" },
	[REPEAT] = { "--repeat", "N", "number of timed passes, of which the fastest is reported; default: as many as fit in half a second, at least 3" },
	[PAGE] = { "--page", "SIZE",
	           "page size of the simulated device. Default: that of the recorded device, or 2MiB if the trace does not give it; with "
	           "--no-stitch, the largest power of two up to 1/16384 of the peak, from 4KiB to 2MiB" },
	[DEVICE_INDEX] = { "--device-index", "N", HR__DEVICE_INDEX_HELP },
	[RECORD] = { "--record", "FILE", "write the first pass to FILE, which must not exist, as a Headroom trace" },
	[NO_TIMING] = { "--no-timing", NULL, "do not measure speed" },
	[PICTURE] = { "--picture", NULL, "all statistics, memory over time, and a picture of the regions at the peak" },
	[JSON] = { "--json", NULL, "print one JSON object instead of text; what was not measured is null" },
	{ NULL, NULL, NULL },
};

/* Parses and checks the arguments. If they are wrong, prints a message and returns false. */
static bool read_arguments(const hr__arguments *arguments, hr__replay *replay, uint64_t *page, uint64_t *repeat, int64_t *device)
{
	uint64_t threads = 1;
	if (!hr__arguments_size(arguments, LIMIT, &replay->setup.limit)) return false;
	if (!hr__arguments_size(arguments, PAGE, page)) return false;
	if (!hr__arguments_count(arguments, THREADS, 1, MAX_THREADS, &threads)) return false;
	if (!hr__arguments_count(arguments, REPEAT, 1, MAX_REPEAT, repeat)) return false;
	if (!hr__arguments_device_index(arguments, DEVICE_INDEX, device)) return false;
	if (hr__arguments_has(arguments, LIMIT) && replay->setup.limit == 0) {
		hr__complain("replay: --limit 0 leaves no memory at all; omit --limit to replay without a limit");
		return false;
	}
	if (hr__arguments_has(arguments, PAGE) && (!hr__is_power_of_two(*page) || *page < 256)) {
		hr__complain("replay: --page %s: a page is a power of two, at least 256 bytes", arguments->values[PAGE]);
		return false;
	}
	replay->setup.threads = (uint32_t)threads;
	replay->setup.allocator = hr__arguments_has(arguments, ALLOCATOR) ? arguments->values[ALLOCATOR] : "bfc";
	replay->setup.stitch = !hr__arguments_has(arguments, NO_STITCH);
	replay->timed = !hr__arguments_has(arguments, NO_TIMING);
	return true;
}

/* The search starts from the peak of a pass without a limit. */
static hr_status find_limit(hr__replay *replay)
{
	hr__trial unlimited;
	hr__setup setup = replay->setup;
	setup.limit = 0;
	hr_status status = hr__measure_trial(&setup, false, &unlimited);
	if (!status) status = hr__find_limit(&setup, (uint64_t)unlimited.stats.peak_bytes_reserved, &replay->least);
	if (status || !setup.stitch || !replay->least.limit) return status;
	setup.limit = replay->least.limit;
	hr__trial trial;
	status = hr__measure_trial(&setup, false, &trial);
	replay->least_remapped = status ? 0 : (uint64_t)trial.stats.bytes_stitched / setup.page;
	return status;
}

/* Runs everything that was requested. */
static hr_status measure(hr__replay *replay, const hr__arguments *arguments, uint64_t repeat)
{
	hr__progress progress;
	bool finds_limit = hr__arguments_has(arguments, FIND_LIMIT);
	hr__progress_begin(&progress);
	replay->setup.progress = &progress;
	hr__progress_phase(&progress, "replaying", 0);
	replay->setup.record = arguments->values[RECORD];
	hr_status status = hr__measure_trial(&replay->setup, false, &replay->trial);
	replay->setup.record = NULL;
	/* Refused allocations are not made, so the speed of a trace that does not fit would be meaningless. */
	if (replay->trial.failed) replay->timed = false;
	hr__progress_phase(&progress, "finding the limit", !finds_limit ? 0 : replay->timed ? 0.6 : 1);
	if (!status && finds_limit) status = find_limit(replay);
	hr__progress_phase(&progress, "timing", 1);
	if (!status && replay->timed) status = hr__measure_speed(&replay->setup, repeat, &replay->speed);
	hr__progress_end(&progress);
	replay->setup.progress = NULL;
	return status;
}

static int replay_trace(hr__replay *replay, const hr__arguments *arguments, uint64_t page, uint64_t repeat)
{
	replay->setup.program = &replay->program;
	replay->setup.page = page ? page : hr__setup_page(&replay->program, replay->trace.page_bytes, replay->setup.stitch);
	hr_status status = measure(replay, arguments, repeat);
	if (!status && hr__arguments_has(arguments, JSON)) hr__replay_json(replay);
	else if (!status) status = hr__replay_text(replay, hr__arguments_has(arguments, PICTURE));
	if (status) return hr__complain_last();
	return replay->trial.failed ? HR__EXIT_NO : HR__EXIT_DONE;
}

static int run(const hr__arguments *arguments)
{
	hr__replay replay = { .path = arguments->operands[0] };
	int64_t device = HR__FACTS_DEVICE_MOST;
	uint64_t page = 0, repeat = 0;
	if (!read_arguments(arguments, &replay, &page, &repeat, &device)) return HR__EXIT_BAD;
	if (hr__program_read(replay.path, device, &replay.trace, &replay.program) != HR_OK) return hr__complain_last();
	int code = replay_trace(&replay, arguments, page, repeat);
	hr__program_free(&replay.program);
	return code;
}

const hr__command hr__command_replay = {
	.name = "replay",
	.operands = "TRACE",
	.summary = "run a recorded trace again: does it fit, how fast is it, what does memory look like",
	.about =
		"Runs every allocation and free of TRACE, in its order, through the public API on a simulated device, which has no "
		"memory behind it: a trace of 50 GB replays on a laptop. The allocator has its default options: when no free block is "
		"large enough, free pages are mapped side by side (--no-stitch turns that off). TRACE is a CSV as in traces/, an RMM "
		"log, a PyTorch memory snapshot (pickle or JSON), or a Headroom trace; all but the last may be packed with gzip; - is "
		"standard input. The format is recognized by the content. A trace of several threads is replayed by one thread, in the recorded "
		"order.\n\n"
		"Speed: on a fresh allocator one pass to warm up, then passes timed as a whole. ns per operation is the wall time of "
		"the fastest pass, divided by all allocations and frees of all threads. Blocks that a pass leaves allocated are "
		"freed after it, untimed. Percentiles come from one more pass in which each call is timed by itself, less the cost of "
		"reading the timer; they may exceed the time per operation, since the processor overlaps calls in a loop.\n\n"
		"If an allocation fails because the limit is too small, its free is skipped and the exit status is 1. With --threads, "
		"the copies may reach their peaks at different moments, so the limit that is found can vary from run to run.",
	.examples =
		"headroom replay traces/gpt2.csv.gz --picture\n"
		"headroom replay traces/serve.csv.gz --find-limit\n"
		"headroom replay traces/gpt2var.csv.gz --limit 28GiB && echo it fits\n"
		"headroom replay rmm_log.csv --no-stitch --threads 2 --json",
	.least_operands = 1,
	.most_operands = 1,
	.options = options,
	.run = run,
};
