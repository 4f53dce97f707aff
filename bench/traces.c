/* traces.c - the recorded traces through the public API, as shipped: with statistics, ledger and checks.
 *
 * For each trace, in one run: time per operation; the same with a recording, and with the allocation log; two threads, each with
 * its own copy, on one allocator; the same with only the blocks of 64 KiB and less; the least limit, compared with that of exact
 * best fit (the smallest free range that fits, the lowest address among equals, sizes rounded to 256 bytes), computed here; bytes
 * reserved without a limit, by one thread and by two that alternate; and host memory per live chunk. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "replay/find_limit.h"
#include "headroom_record.h"
#include "replay/measure.h"
#include "replay/program.h"
#include "turns.h"

#define ROUNDS 9

static const char *const traces[] = { "gpt2", "gpt2var", "resnet", "serve" };

/* ---- speed ---- */

struct run {
	const hr__program *program;
	hr_allocator allocator;
	int passes;
};

/* One pass over the program; [slots] holds the addresses. Returns ns. Leftover blocks are freed afterwards, not timed. */
static double pass(const struct run *run, void **slots)
{
	const hr__program *program = run->program;
	double start = bench_now_ns();
	for (size_t i = 0; i < program->count; i++) {
		const hr__program_event *event = &program->events[i];
		if (event->bytes) {
			hr_request request = HR_REQUEST(event->bytes);
			request.op = 7;
			if (hr_alloc(run->allocator, &request, &slots[event->slot])) abort();
		} else {
			hr_free(run->allocator, slots[event->slot], HR_STREAM_DEFAULT);
		}
	}
	double ns = bench_now_ns() - start;
	for (uint32_t i = 0; i < program->leftover_count; i++) hr_free(run->allocator, slots[program->leftovers[i]], HR_STREAM_DEFAULT);
	return ns;
}

static void *passes(void *argument)
{
	const struct run *run = argument;
	void **slots = calloc(run->program->slots, sizeof *slots);
	if (!slots) abort();
	for (int i = 0; i < run->passes; i++) pass(run, slots);
	free(slots);
	return NULL;
}

/* Throughput of two threads relative to one. */
static double two_threads(const hr__program *program)
{
	struct run run = { program, bench_allocator(2 << 20, 0, true), (int)(6000000 / program->count) + 1 };
	double one = 1e18, two = 1e18;
	passes(&run);
	for (int round = 0; round < ROUNDS; round++) {
		one = bench_least(one, bench_threads_ns(1, passes, &run));
		two = bench_least(two, bench_threads_ns(2, passes, &run));
	}
	bench_must(hr_shutdown());
	return 2 * one / two;
}

/* Time per operation without and with a recording, alternating. */
static void recording(const hr__program *program, double *off, double *on)
{
	struct run run = { program, bench_allocator(2 << 20, 0, true), 0 };
	void **slots = calloc(program->slots, sizeof *slots);
	char path[] = "/tmp/headroom-bench-XXXXXX";
	int fd = mkstemp(path);
	if (!slots || fd < 0) abort();
	close(fd);
	*off = *on = 1e18;
	pass(&run, slots);
	for (int round = 0; round < ROUNDS; round++) {
		*off = bench_least(*off, pass(&run, slots) / (double)program->count);
		unlink(path);
		bench_must(hr_trace_start(path));
		for (int i = 0; i < 3; i++) *on = bench_least(*on, pass(&run, slots) / (double)program->count);
		bench_must(hr_trace_stop());
	}
	unlink(path);
	free(slots);
	bench_must(hr_shutdown());
}

static void set_logging(hr_allocator allocator, bool on, double rate)
{
	hr_oom_options options;
	hr_oom_options_init(&options);
	options.report_allocations_on_oom = on;
	options.allocation_log_sampling_rate = rate;
	bench_must(hr_allocator_set_oom_options(allocator, &options));
}

/* What the allocation log adds to an operation at a sampling rate; on and off alternate. */
static double logging(const hr__program *program, double rate)
{
	struct run run = { program, bench_allocator(2 << 20, 0, true), 0 };
	void **slots = calloc(program->slots, sizeof *slots);
	double times[2] = { 1e18, 1e18 };
	if (!slots) abort();
	pass(&run, slots);
	for (int round = 0; round < 2 * ROUNDS; round++) {
		set_logging(run.allocator, round % 2 != 0, rate);
		pass(&run, slots);
		for (int i = 0; i < 3; i++) times[round % 2] = bench_least(times[round % 2], pass(&run, slots) / (double)program->count);
	}
	free(slots);
	bench_must(hr_shutdown());
	return times[1] - times[0];
}

/* The events of a program for blocks of 64 KiB and less. */
static hr__program small_blocks(const hr__program *program)
{
	hr__program small = *program;
	char *is_small = calloc(program->slots, 1);
	small.events = calloc(program->count, sizeof *small.events);
	small.leftovers = calloc(program->leftover_count + 1, sizeof *small.leftovers);
	if (!is_small || !small.events || !small.leftovers) abort();
	small.count = small.leftover_count = 0;
	for (size_t i = 0; i < program->count; i++) {
		const hr__program_event *event = &program->events[i];
		if (event->bytes) is_small[event->slot] = event->bytes <= 65536;
		if (is_small[event->slot]) small.events[small.count++] = *event;
	}
	for (uint32_t i = 0; i < program->leftover_count; i++)
		if (is_small[program->leftovers[i]]) small.leftovers[small.leftover_count++] = program->leftovers[i];
	free(is_small);
	return small;
}

/* ---- fit ---- */

typedef struct range {
	uint64_t address, size;
	bool used;
} range;

/* Whether the program fits in [limit] bytes with exact best fit. */
static bool best_fit_runs(const hr__program *program, uint64_t limit, range *ranges, uint64_t *slots)
{
	size_t count = 1;
	ranges[0] = (range){ 0, limit & ~UINT64_C(255), false };
	for (size_t i = 0; i < program->count; i++) {
		const hr__program_event *event = &program->events[i];
		size_t at = 0;
		if (event->bytes) {
			uint64_t size = (event->bytes + 255) & ~UINT64_C(255);
			size_t best = count;
			for (at = 0; at < count; at++)
				if (!ranges[at].used && ranges[at].size >= size && (best == count || ranges[at].size < ranges[best].size)) best = at;
			if (best == count) return false;
			slots[event->slot] = ranges[best].address;
			if (ranges[best].size > size) {
				memmove(&ranges[best + 2], &ranges[best + 1], (count++ - best - 1) * sizeof *ranges);
				ranges[best + 1] = (range){ ranges[best].address + size, ranges[best].size - size, false };
				ranges[best].size = size;
			}
			ranges[best].used = true;
			continue;
		}
		for (size_t low = 0, high = count; low < high;) {
			at = (low + high) / 2;
			if (ranges[at].address == slots[event->slot]) break;
			if (ranges[at].address < slots[event->slot]) low = at + 1;
			else high = at;
		}
		ranges[at].used = false;
		if (at + 1 < count && !ranges[at + 1].used) {
			ranges[at].size += ranges[at + 1].size;
			memmove(&ranges[at + 1], &ranges[at + 2], (--count - at - 1) * sizeof *ranges);
		}
		if (at > 0 && !ranges[at - 1].used) {
			ranges[at - 1].size += ranges[at].size;
			memmove(&ranges[at], &ranges[at + 1], (--count - at) * sizeof *ranges);
		}
	}
	return true;
}

/* Least limit relative to the peak, to 0.02%, by bisection. */
static double best_fit_ratio(const hr__program *program)
{
	range *ranges = calloc(2 * (size_t)program->slots + 4, sizeof *ranges);
	uint64_t *slots = calloc(program->slots, sizeof *slots), low = program->peak_bytes, high = low + low / 4;
	if (!ranges || !slots) abort();
	while (high - low > program->peak_bytes / 5000) {
		uint64_t middle = (low + high) / 2;
		if (best_fit_runs(program, middle, ranges, slots)) high = middle;
		else low = middle;
	}
	free(ranges);
	free(slots);
	return (double)high / (double)program->peak_bytes;
}

static double our_ratio(const hr__program *program, bool stitch)
{
	hr__setup setup = { .program = program, .allocator = "bfc", .threads = 1, .stitch = stitch, .page = hr__setup_page(program, 0, stitch) };
	hr__trial trial;
	hr__limit_answer answer;
	bench_must(hr__measure_trial(&setup, true, &trial));
	bench_must(hr__find_limit(&setup, (uint64_t)trial.stats.peak_bytes_reserved, &answer));
	return (double)answer.limit / (double)program->peak_bytes;
}

/* Peak of reserved bytes without a limit, relative to the peak; by one thread, or by two that alternate. */
static double reserved_ratio(const hr__program *program, bool takes_turns)
{
	hr_allocator allocator = bench_allocator(2 << 20, 0, true);
	struct turns one = { .program = program, .allocator = allocator, .slots = calloc(program->slots + 1, sizeof(void *)) };
	hr_stats stats;
	if (!one.slots) abort();
	bench_must(takes_turns ? turns_replay(program, allocator) : turns_run(&one, 0, program->count));
	hr_stats_init(&stats);
	bench_must(hr_allocator_get_stats(allocator, &stats));
	free(one.slots);
	bench_must(hr_shutdown());
	return (double)stats.peak_bytes_reserved / (double)program->peak_bytes;
}

/* Host memory per live chunk at the peak. */
static void metadata_at_peak(hr_allocator allocator, void *context)
{
	hr_stats stats;
	hr_stats_init(&stats);
	bench_must(hr_allocator_get_stats(allocator, &stats));
	*(double *)context = (double)stats.metadata_bytes / (double)stats.num_live;
}

int main(void)
{
	printf("%-9s %9s %17s %17s %10s %10s %10s %12s %12s %26s %9s %17s\n", "trace", "ns/op", "alloc p50/p99", "free p50/p99", "recording", "log",
	       "log of 0.1", "two threads", "<= 64 KiB", "limit/peak (best fit)", "stitched", "reserved (turns)");
	for (size_t i = 0; i < sizeof traces / sizeof traces[0]; i++) {
		char path[64];
		hr__program program;
		hr__speed speed;
		double off, on, metadata = 0;
		snprintf(path, sizeof path, "traces/%s.csv.gz", traces[i]);
		bench_must(hr__program_read(path, HR__FACTS_DEVICE_MOST, NULL, &program));
		hr__setup setup = { .program = &program, .allocator = "bfc", .threads = 1, .stitch = true, .page = 2 << 20 };
		bench_must(hr__measure_speed(&setup, 0, &speed));
		recording(&program, &off, &on);
		hr__program small = small_blocks(&program);
		double whole = two_threads(&program), part = two_threads(&small);
		bench_must(hr__measure_peak(&setup, metadata_at_peak, &metadata));
		double log_all = logging(&program, 1.0), log_some = logging(&program, 0.1);
		printf("%-9s %9.1f %9.0f/%-7.0f %9.0f/%-7.0f %+7.1f ns %+7.1f ns %+7.1f ns %11.2fx %11.2fx %12.4f (%8.4f)", traces[i], speed.ns_per_op,
		       speed.alloc_p50_ns, speed.alloc_p99_ns, speed.free_p50_ns, speed.free_p99_ns, on - off, log_all, log_some, whole, part,
		       our_ratio(&program, false), best_fit_ratio(&program));
		printf(" %9.4f %8.4f (%6.4f)   %.0f bytes of host memory per live chunk\n", our_ratio(&program, true), reserved_ratio(&program, false),
		       reserved_ratio(&program, true), metadata);
		fflush(stdout);
		free(small.events);
		free(small.leftovers);
		hr__program_free(&program);
	}
	return 0;
}
