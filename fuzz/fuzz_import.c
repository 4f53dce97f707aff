/* fuzz_import.c - recorded traces from arbitrary bytes: CSV, RMM logs, PyTorch snapshots, Headroom traces, gzip.
 *
 * The importer detects the format. Reading gives a consistent tape that can be made into a program, or a message that can be
 * printed on a terminal. */
#include <stdio.h>
#include <stdlib.h>

#include "import.h"
#include "replay/program.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) ((condition) ? (void)0 : (fprintf(stderr, "%s does not hold\n", #condition), abort()))

static void check_message(void)
{
	const char *message = hr_last_message();
	MUST(*message);
	for (; *message; message++) MUST((unsigned char)*message >= 0x20 && *message != 0x7F);
}

/* Replays the tape and compares the sums. */
static void check_tape(const hr__tape *tape)
{
	uint64_t *sizes = calloc(tape->allocs, sizeof *sizes), live = 0, blocks = 0, peak = 0, allocs = 0;
	MUST(sizes && tape->allocs > 0 && tape->allocs + tape->frees == tape->count);
	for (size_t i = 0; i < tape->count; i++) {
		const hr__tape_event *event = &tape->events[i];
		MUST(event->block < tape->allocs && event->stream < tape->streams && event->thread < tape->threads);
		if (event->bytes) {
			MUST(event->block == allocs++);
			sizes[event->block] = event->bytes;
			live += event->bytes;
			blocks++;
		} else {
			MUST(sizes[event->block] > 0);
			live -= sizes[event->block];
			sizes[event->block] = 0;
			blocks--;
		}
		if (live > peak) {
			peak = live;
			MUST(peak < tape->peak_bytes || i == tape->peak_event);
		}
	}
	MUST(allocs == tape->allocs && live == tape->live_bytes && blocks == tape->live_blocks && peak == tape->peak_bytes);
	MUST(live <= HR__TAPE_LIVE_MAX);
	free(sizes);
}

static void check_program(const hr__tape *tape)
{
	hr__program program;
	MUST(hr__program_make(tape, &program) == HR_OK);
	MUST(program.count == tape->count && program.leftover_count == tape->live_blocks && program.slots <= tape->allocs);
	for (size_t i = 0; i < program.count; i++)
		MUST(program.events[i].slot < program.slots && program.events[i].stream <= program.streams);
	MUST(program.streams < HR_STREAM_MAX);
	hr__program_free(&program);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	hr__tape tape;
	char notes[2048];
	if (hr__import_memory(data, size, NULL, &tape) != HR_OK) {
		check_message();
		return 0;
	}
	check_tape(&tape);
	check_program(&tape);
	MUST(hr__tape_notes(&tape, notes, sizeof notes) < sizeof notes);
	hr__tape_free(&tape);
	return 0;
}
