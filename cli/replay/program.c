/* program.c - see program.h. Two passes over the changes of the capture: the first counts, the second fills in. */
#include "replay/program.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/text/text.h"

#define OTHER_STREAMS (HR_STREAM_MAX - 1)
#define NO_NUMBER UINT32_MAX
#define DISCARD_CHANGES (1u << 20)
#define BLOCK_BYTES_MAX (UINT64_C(1) << 48) /* the maximum that hr_alloc accepts */

typedef struct program_maker {
	const hr__capture *capture;
	hr__capture *discarded;   /* the same, if its changes may be discarded; NULL: they may not */
	uint32_t device;
	uint32_t *stream_numbers; /* of each stream of the capture: in the order of first use on the device; NO_NUMBER: not used there */
	uint32_t default_stream;  /* number of the stream that the trace calls 0; NO_NUMBER: there is none */
	uint64_t threads[1024];   /* a bit for each thread seen */
	uint64_t live_bytes, live_blocks;
	uint32_t *slot_of; /* by allocation */
	uint32_t *unused;  /* slots; room for the most blocks that are live at once */
	uint64_t most_live;
} program_maker;

/* Whether the change is part of the program. Allocations of 0 bytes are not. */
static bool is_replayed(const program_maker *m, const hr__change *change)
{
	return (m->capture->device_count == 1 || hr__allocation_device(m->capture, change->allocation) == m->device) &&
	       hr__allocation_requested(&m->capture->allocations[change->allocation]) > 0;
}

/* ---- first pass ---- */

static void number_stream(program_maker *m, hr__program *program, const hr__change *change)
{
	if (m->stream_numbers[change->stream] != NO_NUMBER) return;
	if (m->capture->streams[change->stream] == HR_STREAM_DEFAULT) m->default_stream = program->trace_streams;
	m->stream_numbers[change->stream] = program->trace_streams++;
}

static void note_thread(program_maker *m, hr__program *program, uint32_t thread)
{
	uint64_t *word = &m->threads[thread / 64], bit = UINT64_C(1) << thread % 64;
	program->trace_threads += !(*word & bit);
	*word |= bit;
}

static hr_status count_alloc(program_maker *m, hr__program *program, uint64_t bytes)
{
	if (bytes > BLOCK_BYTES_MAX)
		return hr__fail(HR_BAD_FORMAT, "an allocation of %llu bytes; at most 2^48 can be", (unsigned long long)bytes);
	if (bytes > HR__PROGRAM_LIVE_MAX - m->live_bytes)
		return hr__fail(HR_BAD_FORMAT, "more than 64 TiB live at once (an allocation of %llu bytes on top of %llu)", (unsigned long long)bytes,
		                (unsigned long long)m->live_bytes);
	program->allocs++;
	m->live_bytes += bytes;
	if (++m->live_blocks > m->most_live) m->most_live = m->live_blocks;
	if (m->live_bytes <= program->peak_bytes) return HR_OK;
	program->peak_bytes = m->live_bytes;
	program->peak_event = program->count;
	return HR_OK;
}

static hr_status count_changes(program_maker *m, hr__program *program)
{
	const hr__capture *c = m->capture;
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < c->change_count && !status; i++) {
		const hr__change *change = &c->changes[i];
		if (!is_replayed(m, change)) continue;
		uint64_t bytes = hr__allocation_requested(&c->allocations[change->allocation]);
		number_stream(m, program, change);
		note_thread(m, program, change->thread);
		if (change->frees) {
			program->frees++;
			m->live_blocks--;
			m->live_bytes -= bytes;
		} else {
			status = count_alloc(m, program, bytes);
		}
		program->count++;
	}
	if (!status && !program->allocs) status = hr__fail(HR_BAD_FORMAT, "no allocation in it");
	return status;
}

/* ---- second pass ---- */

/* The device's stream for a stream of the trace. The default stream is the one that the trace calls 0, or else its first. */
static uint32_t stream_of(const program_maker *m, uint32_t stream)
{
	uint32_t number = m->stream_numbers[stream], plain = m->default_stream == NO_NUMBER ? 0 : m->default_stream;
	if (number == plain) return 0;
	return 1 + (number < plain ? number : number - 1) % OTHER_STREAMS;
}

/* Assigns a slot to every block. The slot freed last is reused first, because it is still in the processor's cache. */
static void fill_in(program_maker *m, hr__program *program)
{
	const hr__capture *c = m->capture;
	uint32_t unused_count = 0;
	size_t at = 0;
	for (uint32_t i = 0; i < c->change_count; i++) {
		const hr__change *change = &c->changes[i];
		uint32_t *slot = &m->slot_of[change->allocation];
		if (m->discarded && i % DISCARD_CHANGES == 0) hr__capture_discard_changes(m->discarded, i);
		if (!is_replayed(m, change)) continue;
		if (change->frees) m->unused[unused_count++] = *slot;
		else *slot = unused_count ? m->unused[--unused_count] : program->slots++;
		uint64_t bytes = change->frees ? 0 : hr__allocation_requested(&c->allocations[change->allocation]);
		program->events[at++] = (hr__program_event){ bytes, *slot, stream_of(m, change->stream) };
		if (!change->frees && c->allocations[change->allocation].end_ns == HR__NEVER) program->leftovers[program->leftover_count++] = *slot;
	}
}

static hr_status make(program_maker *m, hr__program *program)
{
	uint32_t streams = m->capture->stream_count;
	m->stream_numbers = malloc(((size_t)streams + 1) * sizeof *m->stream_numbers);
	if (!m->stream_numbers) return hr__fail(HR_NO_HOST_MEMORY, "no memory for %u streams", streams);
	memset(m->stream_numbers, 0xFF, ((size_t)streams + 1) * sizeof *m->stream_numbers);
	hr_status status = count_changes(m, program);
	if (status) return status;
	program->streams = program->trace_streams - 1 < OTHER_STREAMS ? program->trace_streams - 1 : OTHER_STREAMS;
	m->slot_of = malloc(((size_t)m->capture->allocation_count + 1) * sizeof *m->slot_of);
	m->unused = malloc((m->most_live + 1) * sizeof *m->unused);
	program->events = malloc(program->count * sizeof *program->events);
	program->leftovers = malloc((m->live_blocks + 1) * sizeof *program->leftovers);
	if (!m->slot_of || !m->unused || !program->events || !program->leftovers)
		return hr__fail(HR_NO_HOST_MEMORY, "no memory for a program of %zu event%s", program->count, hr__plural(program->count));
	fill_in(m, program);
	return HR_OK;
}

static hr_status make_and_free(program_maker *m, hr__program *out)
{
	hr__program program = { 0 };
	hr_status status = make(m, &program);
	free(m->stream_numbers);
	free(m->slot_of);
	free(m->unused);
	if (status) hr__program_free(&program);
	else *out = program;
	return status;
}

hr_status hr__program_make(const hr__capture *capture, uint32_t device, hr__program *out)
{
	program_maker m = { .capture = capture, .device = device, .default_stream = NO_NUMBER };
	return make_and_free(&m, out);
}

hr_status hr__program_read(const char *path, int64_t device, hr__trace_facts *facts, hr__program *out)
{
	hr__capture *capture;
	hr__trace_facts found;
	hr_status status = hr__capture_open(path, NULL, NULL, &capture);
	if (status) return status;
	status = hr__trace_facts_find(capture, device, &found);
	if (!status) {
		program_maker m = { .capture = capture, .discarded = capture, .device = found.device, .default_stream = NO_NUMBER };
		status = make_and_free(&m, out);
	}
	if (!status && facts) *facts = found;
	hr__capture_close(capture);
	return status ? hr__fail_in(status, "%s", path) : HR_OK;
}

void hr__program_free(hr__program *program)
{
	free(program->events);
	free(program->leftovers);
	*program = (hr__program){ 0 };
}
