/* gpu_traces.h - the recorded traces on the device, with real mapping of pages.
 *
 * The least limit of a trace depends on the page size and on no other property of the device. So it is searched on the simulated
 * device, in child processes (a process that has used a GPU cannot fork another that does), and then tried on the device: it must
 * run there without a refusal, and shows the cost of stitching. */
#ifndef HR_BENCH_GPU_TRACES_H
#define HR_BENCH_GPU_TRACES_H

#include "replay/find_limit.h"
#include "gpu_device.h"
#include "replay/measure.h"
#include "replay/program.h"

#define TRACES 4
#define PAGE_SIZES 5

static const char *const trace_names[TRACES] = { "gpt2", "gpt2var", "resnet", "serve" };
static const uint64_t trace_pages[PAGE_SIZES] = { 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB };

static hr__program programs[TRACES];

/* [folder] contains uncompressed traces; NULL: the repository's, which need zlib. */
static void traces_read(const char *folder)
{
	for (int i = 0; i < TRACES; i++) {
		char path[512];
		if (folder) snprintf(path, sizeof path, "%s/%s.csv", folder, trace_names[i]);
		else snprintf(path, sizeof path, "traces/%s.csv.gz", trace_names[i]);
		bench_must(hr__program_read(path, HR__FACTS_DEVICE_MOST, NULL, &programs[i]));
	}
}

/* ---- least limits ---- */

/* Shared with the child processes: least_limits[trace][page size], 0 = not found. */
static uint64_t (*least_limits)[PAGE_SIZES];

static void find_one(int trace, int size)
{
	hr__setup setup = { .program = &programs[trace], .allocator = "bfc", .threads = 1, .stitch = true, .page = trace_pages[size] };
	hr__trial trial;
	hr__limit_answer answer;
	/* The GPU is not needed here, and initializing it takes time. */
	setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
	bench_must(hr__measure_trial(&setup, true, &trial));
	bench_must(hr__find_limit(&setup, (uint64_t)trial.stats.peak_bytes_reserved, &answer));
	least_limits[trace][size] = answer.limit;
}

/* Finds all of them, as many at a time as there are processors. Call before the device is opened. */
static void limits_find(int sizes)
{
	int running = 0, at_once = (int)sysconf(_SC_NPROCESSORS_ONLN);
	least_limits = mmap(NULL, TRACES * sizeof *least_limits, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (least_limits == MAP_FAILED) abort();
	fflush(stdout);
	if (figures) fflush(figures);
	for (int size = 0; size < sizes; size++)
		for (int trace = TRACES - 1; trace >= 0; trace--) { /* the longest first */
			if (running >= at_once && wait(NULL) > 0) running--;
			pid_t child = fork();
			if (child < 0) abort();
			if (child == 0) {
				find_one(trace, size);
				_exit(0);
			}
			running++;
		}
	while (running > 0 && wait(NULL) > 0) running--;
}

/* ---- running ---- */

typedef struct pass_result {
	double ns;
	uint64_t refused;
} pass_result;

/* One pass over a trace. Leftover blocks are freed afterwards, not timed. */
static pass_result trace_pass(const hr__program *program, hr_allocator allocator, void **slots)
{
	pass_result result = { 0 };
	hr_request request = HR_REQUEST(1);
	double start = bench_now_ns();
	for (size_t i = 0; i < program->count; i++) {
		const hr__program_event *event = &program->events[i];
		if (event->bytes) {
			request.bytes = event->bytes;
			if (hr_alloc(allocator, &request, &slots[event->slot])) {
				slots[event->slot] = NULL;
				result.refused++;
			}
		} else if (hr_free(allocator, slots[event->slot], HR_STREAM_DEFAULT)) {
			abort();
		}
	}
	result.ns = bench_now_ns() - start;
	for (uint32_t i = 0; i < program->leftover_count; i++) {
		if (hr_free(allocator, slots[program->leftovers[i]], HR_STREAM_DEFAULT)) abort();
		slots[program->leftovers[i]] = NULL;
	}
	return result;
}

static double milliseconds(const map_cost *cost)
{
	return (cost->map_ns + cost->unmap_ns) / 1e6;
}

/* ---- time per operation ---- */

#define WARM_PASSES 5

static double warm_ns[TRACES];

static void traces_speed(void)
{
	gpu_open(0);
	gpu_time_mapping();
	printf("\ntraces without a limit, pages of %s: the best of %d warm passes\n", size_text(gpu.info.page_bytes), WARM_PASSES);
	printf("%-9s %10s %12s %14s %16s %16s\n", "trace", "ops", "ns/op warm", "reserved/peak", "first pass", "of that mapping");
	for (int i = 0; i < TRACES; i++) {
		const hr__program *program = &programs[i];
		hr_allocator allocator = gpu_allocator(0, true);
		void **slots = calloc(program->slots, sizeof *slots);
		double best = 1e18;
		if (!slots) abort();
		gpu_mapping();
		pass_result first = trace_pass(program, allocator, slots);
		map_cost cost = gpu_mapping();
		for (int n = 0; n < WARM_PASSES; n++) best = bench_least(best, trace_pass(program, allocator, slots).ns);
		double reserved = (double)gpu_stats(allocator).peak_bytes_reserved / (double)program->peak_bytes;
		warm_ns[i] = figure(best / (double)program->count, "trace.%s.ns_per_op", trace_names[i]);
		figure(reserved, "trace.%s.reserved_over_peak", trace_names[i]);
		printf("%-9s %10zu %12.1f %14.4f %13.1f ms %13.1f ms\n", trace_names[i], program->count, warm_ns[i], reserved,
		       first.ns / 1e6, milliseconds(&cost) + cost.create_ns / 1e6);
		fflush(stdout);
		free(slots);
		bench_must(hr_allocator_destroy(allocator));
	}
	gpu_close();
}

/* ---- at the least limit ---- */

/* Result of one pass at the limit. */
typedef struct limit_pass {
	uint64_t refused, stitches, pages;
	double map_ms, ms;
} limit_pass;

static limit_pass at_limit(const hr__program *program, hr_allocator allocator, void **slots)
{
	hr_stats before = gpu_stats(allocator);
	gpu_mapping();
	pass_result result = trace_pass(program, allocator, slots);
	map_cost cost = gpu_mapping();
	hr_stats after = gpu_stats(allocator);
	return (limit_pass){ .refused = result.refused,
		                 .stitches = (uint64_t)(after.num_stitches - before.num_stitches),
		                 .pages = (uint64_t)(after.bytes_stitched - before.bytes_stitched) / gpu.info.page_bytes,
		                 .map_ms = milliseconds(&cost),
		                 .ms = result.ns / 1e6 };
}

static void print_at_limit(int trace, int size)
{
	const hr__program *program = &programs[trace];
	uint64_t limit = least_limits[trace][size];
	printf("%-9s %-7s ", trace_names[trace], size_text(trace_pages[size]));
	if (!limit || limit > gpu.info.limit_bytes) {
		printf("%s\n", limit ? "needs more memory than there is" : "no limit was found");
		return;
	}
	hr_allocator allocator = gpu_allocator(limit, true);
	void **slots = calloc(program->slots, sizeof *slots);
	if (!slots) abort();
	limit_pass first = at_limit(program, allocator, slots), again = at_limit(program, allocator, slots);
	double ratio = figure((double)limit / (double)program->peak_bytes, "trace.%s.limit_over_peak.%llu", trace_names[trace],
	                      (unsigned long long)(trace_pages[size] / MIB));
	printf("%10.4f | %7llu %8llu %7llu %9.1f %9.1f | %7llu %8llu %7llu %9.1f %9.1f\n", ratio, (unsigned long long)first.refused,
	       (unsigned long long)first.stitches, (unsigned long long)first.pages, first.map_ms, first.ms,
	       (unsigned long long)again.refused, (unsigned long long)again.stitches, (unsigned long long)again.pages, again.map_ms,
	       again.ms);
	fflush(stdout);
	free(slots);
	bench_must(hr_allocator_destroy(allocator));
}

static void traces_at_limits(int sizes)
{
	printf(
		"\ntraces at the least limit of a fresh allocator, free pages stitched. The first pass also maps everything for the first\n"
		"time; the second begins with memory as the first left it, so it may need more. map ms: in map, set access and unmap;\n"
		"pass ms: the whole pass, mapping included; pages: remapped\n");
	printf("%-9s %-7s %10s | %7s %8s %7s %9s %9s | %7s %8s %7s %9s %9s\n", "trace", "page", "limit/peak", "refused", "stitches",
	       "pages", "map ms", "pass ms", "refused", "stitches", "pages", "map ms", "pass ms");
	for (int size = 0; size < sizes; size++) {
		if (!gpu_open(trace_pages[size])) {
			printf("the device has pages of %s, not %s\n", size_text(gpu.info.page_bytes), size_text(trace_pages[size]));
			gpu_close();
			continue;
		}
		gpu_time_mapping();
		for (int trace = 0; trace < TRACES; trace++) print_at_limit(trace, size);
		gpu_close();
	}
}

#endif
