/* measure.c - see measure.h.
 *
 *     stage    the freshly started library: simulated device, streams, one allocator
 *     crew     the threads of a run; each has its own slots for the program's blocks. The calling thread is the first of them
 *
 * The copies synchronize at a spinning barrier before and after each timed pass. The timed loop is run_events: only hr_alloc and
 * hr_free over the prepared events. */
#include "replay/measure.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "shut_down.h"
#include "core/base/text/text.h"
#include "headroom_record.h"
#include "replay/histogram.h"
#include "core/os/os.h"

#define PAGE_LEAST (UINT64_C(4) << 10)
#define PAGE_MOST (UINT64_C(2) << 20)
#define RECORDED_PAGE_MOST (UINT64_C(1) << 30)
#define RECORDED_PAGES_MOST (UINT64_C(1) << 22) /* at the peak; bounds the memory that a trace can make the replay use */
#define MEMORY_LEAST (UINT64_C(1) << 30)
#define MEMORY_MOST HR__PROGRAM_LIVE_MAX
#define UNLIMITED_TIMES 16 /* no allocator worth replaying needs more than this many times the peak */

#define AUTO_NS 500000000u /* target time of all timed passes together, if their number is not given */
#define AUTO_LEAST 3u
#define AUTO_MOST 2000u
#define SAMPLES_MOST 16000000u /* calls of a copy that are timed separately; the rest run untimed */

struct crew;

/* One thread's run of the program. */
struct copy {
	struct crew *crew;
	void **slots;
	uint64_t failed;
	size_t first_failed;
	hr_status error;   /* a failure other than lack of memory */
	char message[512]; /* of the error, or else of the first refusal */
	uint64_t begin_ns, end_ns;
	uint32_t *samples; /* ticks of each call */
	pthread_t thread;
};

struct crew {
	const hr__setup *setup;
	const hr__program *program;
	hr_device device;
	hr_allocator allocator;
	hr_stream streams[HR_STREAM_MAX];
	void (*job)(struct copy *);
	struct copy *copies;
	uint32_t count;
	bool stop_at_failure;
	hr__atomic_u32 gate, arrived, generation;

	/* written by copy 0, between barriers */
	uint64_t passes_wanted, passes;
	uint64_t spent_ns, best_ns;
	bool done;
};

bool hr__setup_can_have_page(uint64_t page, uint64_t peak)
{
	return hr__is_power_of_two(page) && page >= PAGE_LEAST && page <= RECORDED_PAGE_MOST && peak / page <= RECORDED_PAGES_MOST;
}

uint64_t hr__setup_page(const hr__program *program, uint64_t recorded, bool stitch)
{
	if (stitch && hr__setup_can_have_page(recorded, program->peak_bytes)) return recorded;
	if (stitch || program->peak_bytes / 16384 >= PAGE_MOST) return PAGE_MOST;
	uint64_t most = program->peak_bytes / 16384;
	return most <= PAGE_LEAST ? PAGE_LEAST : UINT64_C(1) << hr__log2(most);
}

/* ---- stage ---- */

/* Memory of the device and limit of the allocator, for all copies together. */
static hr_status memory_for(const hr__setup *setup, uint64_t *memory, uint64_t *limit)
{
	uint64_t each = setup->limit;
	*limit = 0;
	if (each) {
		if (!hr__multiply(each, setup->threads, limit) || *limit > MEMORY_MOST)
			return hr__fail(HR_BAD_LIMIT,
			                "a limit of %llu bytes for each of %u threads is more than the 64 TiB of the simulated device",
			                (unsigned long long)each, setup->threads);
		/* A page more than the limit, so that the limit causes the refusal and is named in the message. */
		if (!hr__align_up(*limit + setup->page, setup->page, memory)) return hr__fail(HR_BAD_LIMIT, "the limit is too large");
		if (*memory > MEMORY_MOST) *memory = MEMORY_MOST;
		return HR_OK;
	}
	/* "direct" uses a whole page for the smallest block, so it gets the maximum. */
	*memory = MEMORY_MOST;
	if (strcmp(setup->allocator, "bfc") != 0) return HR_OK;
	if (!hr__multiply(setup->program->peak_bytes, UNLIMITED_TIMES * (uint64_t)setup->threads, memory) || *memory > MEMORY_MOST)
		*memory = MEMORY_MOST;
	if (*memory < MEMORY_LEAST) *memory = MEMORY_LEAST;
	return HR_OK;
}

static hr_status stage_open(struct crew *crew)
{
	const hr__setup *setup = crew->setup;
	uint64_t memory = 0, limit = 0;
	hr_simulated_options simulated;
	hr_allocator_options options;
	hr_status status = memory_for(setup, &memory, &limit);
	if (status) return status;
	hr_simulated_options_init(&simulated);
	simulated.memory_bytes = memory;
	simulated.page_bytes = setup->page;
	hr_allocator_options_init(&options);
	options.kind = setup->allocator;
	options.limit_bytes = limit;
	options.stitch = setup->stitch;

	status = hr_simulated_configure(&simulated);
	if (!status) status = hr_device_find("SIM:0", &crew->device);
	for (uint32_t i = 1; !status && i <= crew->program->streams; i++) status = hr_stream_create(crew->device, &crew->streams[i]);
	if (!status) status = hr_allocator_create(crew->device, &options, &crew->allocator);
	return status;
}

static void crew_free(struct crew *crew)
{
	for (uint32_t i = 0; crew->copies && i < crew->count; i++) {
		free(crew->copies[i].slots);
		free(crew->copies[i].samples);
	}
	free(crew->copies);
	crew->copies = NULL;
}

static hr_status crew_open(struct crew *crew, const hr__setup *setup)
{
	*crew = (struct crew){ .setup = setup, .program = setup->program, .count = setup->threads };
	crew->copies = calloc(crew->count, sizeof *crew->copies);
	bool enough = crew->copies != NULL;
	for (uint32_t i = 0; enough && i < crew->count; i++) {
		crew->copies[i].crew = crew;
		crew->copies[i].slots = calloc(crew->program->slots + 1, sizeof(void *));
		enough = crew->copies[i].slots != NULL;
	}
	hr_status status = enough ? hr__shut_down()
	                          : hr__fail(HR_NO_HOST_MEMORY, "no memory for %u cop%s of the program", crew->count,
	                                     crew->count == 1 ? "y" : "ies");
	if (!status) status = stage_open(crew);
	if (status) {
		crew_free(crew);
		(void)hr__shut_down(); /* keeps the message of the failure */
	}
	return status;
}

static hr_status crew_close(struct crew *crew, hr_status status)
{
	crew_free(crew);
	hr_status end = hr__shut_down();
	return status ? status : end;
}

/* ---- crew ---- */

enum { GATE_CLOSED, GATE_OPEN, GATE_ABANDONED };

/* Barrier: waits until every copy has arrived. */
static void meet(struct crew *crew)
{
	uint32_t generation = hr__load_acquire(&crew->generation);
	if (hr__fetch_add_acq_rel(&crew->arrived, 1) + 1 == crew->count) {
		hr__store_relaxed(&crew->arrived, 0);
		hr__store_release(&crew->generation, generation + 1);
		return;
	}
	for (unsigned turns = 0; hr__load_acquire(&crew->generation) == generation; turns++) {
		if (turns < 1000) hr__cpu_pause();
		else sched_yield();
	}
}

static void *copy_main(void *argument)
{
	struct copy *self = argument;
	uint32_t gate;
	while ((gate = hr__load_acquire(&self->crew->gate)) == GATE_CLOSED) sched_yield();
	if (gate == GATE_OPEN) self->crew->job(self);
	return NULL;
}

/* Runs [job] in every copy. No copy starts before all threads exist, because the others would wait for a missing one forever. */
static hr_status crew_run(struct crew *crew, void (*job)(struct copy *))
{
	hr_status status = HR_OK;
	uint32_t started = 1;
	crew->job = job;
	for (; started < crew->count; started++) {
		int error = pthread_create(&crew->copies[started].thread, NULL, copy_main, &crew->copies[started]);
		if (!error) continue;
		status = hr__os_fail(error, "thread %u of %u", started + 1, crew->count);
		break;
	}
	hr__store_release(&crew->gate, status ? GATE_ABANDONED : GATE_OPEN);
	if (!status) job(&crew->copies[0]);
	for (uint32_t i = 1; i < started; i++) pthread_join(crew->copies[i].thread, NULL);
	for (uint32_t i = 0; !status && i < crew->count; i++)
		if (crew->copies[i].error) status = hr__fail(crew->copies[i].error, "%s", crew->copies[i].message);
	return status;
}

/* ---- running ---- */

/* Counts a refusal; true if the run continues. */
static bool note_refused(struct copy *self, size_t event, hr_status status) __attribute__((noinline, cold));
static bool note_refused(struct copy *self, size_t event, hr_status status)
{
	if (status != HR_OUT_OF_MEMORY) self->error = status;
	if (self->failed++ == 0 || self->error) {
		self->first_failed = event;
		snprintf(self->message, sizeof self->message, "%s", hr_last_message());
	}
	return !self->error && !self->crew->stop_at_failure;
}

static void note_bad_free(struct copy *self, hr_status status) __attribute__((noinline, cold));
static void note_bad_free(struct copy *self, hr_status status)
{
	self->error = status;
	snprintf(self->message, sizeof self->message, "a free that must work did not: %s", hr_last_message());
}

static inline bool run_event(struct copy *self, const hr__program_event *event, hr_allocator allocator, const hr_stream *streams,
                             hr_request *request)
{
	void **slot = &self->slots[event->slot];
	if (event->bytes) {
		request->bytes = event->bytes;
		request->stream = streams[event->stream];
		hr_status status = hr_alloc(allocator, request, slot);
		if (HR_LIKELY(!status)) return true;
		*slot = NULL;
		return note_refused(self, (size_t)(event - self->crew->program->events), status);
	}
	/* The allocation was refused. */
	if (HR_UNLIKELY(!*slot)) return true;
	hr_status status = hr_free(allocator, *slot, streams[event->stream]);
	if (HR_LIKELY(!status)) return true;
	note_bad_free(self, status);
	return false;
}

/* Runs the events from [begin] to [end]; false if it stopped early. */
static bool run_events(struct copy *self, const hr__program_event *begin, const hr__program_event *end)
{
	hr_allocator allocator = self->crew->allocator;
	const hr_stream *streams = self->crew->streams;
	hr_request request = HR_REQUEST(1);
	for (const hr__program_event *event = begin; event < end; event++)
		if (HR_UNLIKELY(!run_event(self, event, allocator, streams, &request))) return false;
	return true;
}

static bool run_all(struct copy *self)
{
	const hr__program *program = self->crew->program;
	return run_events(self, program->events, program->events + program->count);
}

static void free_leftovers(struct copy *self)
{
	const hr__program *program = self->crew->program;
	for (uint32_t i = 0; i < program->leftover_count; i++) {
		void **slot = &self->slots[program->leftovers[i]];
		hr_status status = hr_free(self->crew->allocator, *slot, HR_STREAM_DEFAULT);
		if (status) note_bad_free(self, status);
		*slot = NULL;
	}
}

/* ---- trial ---- */

static void trial_job(struct copy *self)
{
	run_all(self);
}

hr_status hr__measure_trial(const hr__setup *setup, bool stop, hr__trial *out)
{
	struct crew crew;
	hr_status status = crew_open(&crew, setup);
	if (status) return status;
	crew.stop_at_failure = stop;
	memset(out, 0, sizeof *out);
	hr_stats_init(&out->stats);
	if (setup->record) status = hr_trace_start(setup->record);
	if (!status) status = crew_run(&crew, trial_job);
	if (!status) status = hr_allocator_get_stats(crew.allocator, &out->stats);
	if (!status && setup->record) status = hr_trace_stop();
	for (uint32_t i = 0; i < crew.count; i++) {
		const struct copy *each = &crew.copies[i];
		if (each->failed && (!out->failed || each->first_failed < out->first_failed)) {
			out->first_failed = each->first_failed;
			snprintf(out->message, sizeof out->message, "%s", each->message);
		}
		out->failed += each->failed;
	}
	return crew_close(&crew, status);
}

/* ---- speed: whole passes ---- */

static void sum_up_pass(struct crew *crew)
{
	uint64_t begin = UINT64_MAX, end = 0;
	for (uint32_t i = 0; i < crew->count; i++) {
		const struct copy *each = &crew->copies[i];
		if (each->begin_ns < begin) begin = each->begin_ns;
		if (each->end_ns > end) end = each->end_ns;
		if (each->error) crew->done = true;
	}
	if (crew->passes == 0 || end - begin < crew->best_ns) crew->best_ns = end - begin;
	crew->spent_ns += end - begin;
	crew->passes++;
	bool enough = crew->spent_ns >= AUTO_NS && crew->passes >= AUTO_LEAST;
	hr__progress_show(crew->setup->progress,
	                  crew->passes_wanted ? (double)crew->passes / (double)crew->passes_wanted : (double)crew->spent_ns / AUTO_NS);
	if (crew->passes_wanted ? crew->passes >= crew->passes_wanted : enough || crew->passes >= AUTO_MOST) crew->done = true;
}

static void passes_job(struct copy *self)
{
	struct crew *crew = self->crew;
	run_all(self);
	free_leftovers(self);
	self->failed = 0;
	do {
		meet(crew);
		self->begin_ns = hr__os()->clock_ns();
		run_all(self);
		self->end_ns = hr__os()->clock_ns();
		meet(crew);
		if (self == crew->copies) sum_up_pass(crew);
		free_leftovers(self);
		meet(crew);
	} while (!crew->done);
}

static hr_status measure_passes(const hr__setup *setup, uint64_t passes, hr__speed *out)
{
	struct crew crew;
	hr_status status = crew_open(&crew, setup);
	if (status) return status;
	crew.passes_wanted = passes;
	status = crew_run(&crew, passes_job);
	out->passes = crew.passes;
	out->ns_per_op = (double)crew.best_ns / ((double)setup->program->count * crew.count);
	for (uint32_t i = 0; i < crew.count; i++) out->failed += crew.copies[i].failed;
	return crew_close(&crew, status);
}

/* ---- speed: single calls ---- */

/* Reads the counter after everything before has completed and before anything after starts. Otherwise the processor overlaps the
 * timed call with the reading, and half of the calls seem to take no time. */
static inline uint64_t ticks_in_order(void)
{
#if defined(__x86_64__)
	__builtin_ia32_lfence();
	uint64_t ticks = hr__ticks();
	__builtin_ia32_lfence();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
	uint64_t ticks = hr__ticks();
	__asm__ volatile("isb" ::: "memory");
#else
	uint64_t ticks = hr__ticks();
#endif
	return ticks;
}

static void calls_job(struct copy *self)
{
	const hr__program *program = self->crew->program;
	const hr__program_event *event = program->events, *end = event + program->count;
	hr_request request = HR_REQUEST(1);
	run_all(self);
	free_leftovers(self);
	meet(self->crew);
	for (size_t i = 0; event < end && i < SAMPLES_MOST; event++, i++) {
		uint64_t before = ticks_in_order();
		if (!run_event(self, event, self->crew->allocator, self->crew->streams, &request)) return;
		uint64_t ticks = ticks_in_order() - before;
		self->samples[i] = ticks < UINT32_MAX ? (uint32_t)ticks : UINT32_MAX;
	}
	run_events(self, event, end);
}

/* Ticks that reading the timer takes: the mean over many pairs of readings, without those interrupted. */
static double timer_ticks(void)
{
	uint64_t sum = 0, count = 0, most = UINT64_MAX;
	for (int i = 0; i < 20000; i++) {
		uint64_t before = hr__ticks(), ticks = ticks_in_order() - before;
		if (ticks > most) continue;
		sum += ticks;
		count++;
		if (i == 1000) most = 10 * (sum / count + 1);
	}
	return (double)sum / (double)count;
}

/* The counter may advance in increments larger than 1. On machines where that matters, an increment is about as long as a
 * reading. */
static double quantile_ns(const hr__histogram *histogram, double quantile, double timer)
{
	double ticks = hr__histogram_quantile(histogram, quantile, timer) - timer;
	return ticks > 0 ? ticks * 1e9 / hr__ticks_rate() : 0;
}

static void sum_up_calls(const struct crew *crew, hr__speed *out)
{
	hr__histogram allocs = { 0 }, frees = { 0 };
	const hr__program *program = crew->program;
	double timer = timer_ticks();
	for (uint32_t c = 0; c < crew->count; c++)
		for (size_t i = 0; i < program->count && i < SAMPLES_MOST; i++)
			hr__histogram_add(program->events[i].bytes ? &allocs : &frees, crew->copies[c].samples[i]);
	out->timer_ns = timer * 1e9 / hr__ticks_rate();
	out->alloc_p50_ns = quantile_ns(&allocs, 0.50, timer);
	out->alloc_p99_ns = quantile_ns(&allocs, 0.99, timer);
	out->free_p50_ns = quantile_ns(&frees, 0.50, timer);
	out->free_p99_ns = quantile_ns(&frees, 0.99, timer);
}

static hr_status measure_calls(const hr__setup *setup, hr__speed *out)
{
	struct crew crew;
	hr_status status = crew_open(&crew, setup);
	if (status) return status;
	size_t samples = setup->program->count < SAMPLES_MOST ? setup->program->count : SAMPLES_MOST;
	for (uint32_t i = 0; !status && i < crew.count; i++) {
		/* Write to the array first, so that no page fault happens in a timed call. */
		crew.copies[i].samples = malloc(samples * sizeof(uint32_t));
		if (crew.copies[i].samples) memset(crew.copies[i].samples, 0xFF, samples * sizeof(uint32_t));
		else status = hr__fail(HR_NO_HOST_MEMORY, "no memory for timing %zu call%s", samples, hr__plural(samples));
	}
	if (!status) status = crew_run(&crew, calls_job);
	if (!status) sum_up_calls(&crew, out);
	return crew_close(&crew, status);
}

hr_status hr__measure_speed(const hr__setup *setup, uint64_t passes, hr__speed *out)
{
	*out = (hr__speed){ 0 };
	hr_status status = measure_passes(setup, passes, out);
	return status ? status : measure_calls(setup, out);
}

/* ---- peak ---- */

hr_status hr__measure_peak(const hr__setup *setup, void (*look)(hr_allocator allocator, void *context), void *context)
{
	struct crew crew;
	hr__setup alone = *setup;
	alone.threads = 1;
	hr_status status = crew_open(&crew, &alone);
	if (status) return status;
	struct copy *self = &crew.copies[0];
	run_events(self, alone.program->events, alone.program->events + alone.program->peak_event + 1);
	if (self->error) status = hr__fail(self->error, "%s", self->message);
	else look(crew.allocator, context);
	return crew_close(&crew, status);
}
