/* program.c - see program.h. */
#include "replay/program.h"

#include <stdlib.h>

#include "core/base/status.h"
#include "core/base/text.h"

#define OTHER_STREAMS (HR_STREAM_MAX - 1)

/* The device's stream for number [stream] of the trace. The default stream is the one that the trace calls 0, or else its first. */
static uint32_t stream_of(const hr__tape *tape, uint32_t stream)
{
	uint32_t plain = tape->stream_zero == UINT32_MAX ? 0 : tape->stream_zero;
	if (stream == plain) return 0;
	uint32_t other = stream < plain ? stream : stream - 1;
	return 1 + other % OTHER_STREAMS;
}

/* Assigns a slot to every block. The slot freed last is reused first, because it is still in the processor's cache. [slot_of] has
 * room for every block, [unused] for every slot. */
static void assign_slots(const hr__tape *tape, hr__program *program, uint32_t *slot_of, uint32_t *unused)
{
	uint32_t unused_count = 0;
	for (size_t i = 0; i < tape->count; i++) {
		const hr__tape_event *event = &tape->events[i];
		if (event->bytes) slot_of[event->block] = unused_count ? unused[--unused_count] : program->slots++;
		else unused[unused_count++] = slot_of[event->block];
		program->events[i] = (hr__program_event){ event->bytes, slot_of[event->block], stream_of(tape, event->stream) };
	}
}

/* [freed] must be zeroed, with room for every block. */
static void collect_leftovers(const hr__tape *tape, hr__program *program, uint32_t *freed)
{
	for (size_t i = 0; i < tape->count; i++)
		if (!tape->events[i].bytes) freed[tape->events[i].block] = 1;
	for (size_t i = 0; i < tape->count; i++)
		if (tape->events[i].bytes && !freed[tape->events[i].block])
			program->leftovers[program->leftover_count++] = program->events[i].slot;
}

hr_status hr__program_make(const hr__tape *tape, hr__program *out)
{
	hr__program program = { .count = tape->count,
		                    .streams = tape->streams - 1 < OTHER_STREAMS ? tape->streams - 1 : OTHER_STREAMS,
		                    .trace_streams = tape->streams,
		                    .allocs = tape->allocs,
		                    .frees = tape->frees,
		                    .peak_bytes = tape->peak_bytes,
		                    .peak_event = tape->peak_event };
	uint32_t *slot_of = malloc(tape->allocs * sizeof *slot_of), *scratch = calloc(tape->allocs, sizeof *scratch);
	program.events = malloc(tape->count * sizeof *program.events);
	program.leftovers = malloc((tape->live_blocks + 1) * sizeof *program.leftovers);
	bool enough = slot_of && scratch && program.events && program.leftovers;
	if (enough) {
		assign_slots(tape, &program, slot_of, scratch);
		for (size_t i = 0; i < tape->allocs; i++) scratch[i] = 0;
		collect_leftovers(tape, &program, scratch);
	}
	free(slot_of);
	free(scratch);
	if (!enough) {
		hr__program_free(&program);
		return hr__fail(HR_NO_HOST_MEMORY, "no memory for a program of %zu step%s", tape->count, hr__plural(tape->count));
	}
	*out = program;
	return HR_OK;
}

void hr__program_free(hr__program *program)
{
	free(program->events);
	free(program->leftovers);
	*program = (hr__program){ 0 };
}
