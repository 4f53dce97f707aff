/* fuzz_import.c - traces from arbitrary bytes: CSV, RMM logs, PyTorch snapshots, Headroom traces, gzip.
 *
 * The format is detected. Reading gives a capture, of which each device can be made into a program to replay and a schedule to plan,
 * or a message that can be printed on a terminal. */
#include <stdio.h>
#include <stdlib.h>

#include "analysis/schedule/schedule.h"
#include "replay/program.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) ((condition) ? (void)0 : (fprintf(stderr, "%s does not hold\n", #condition), abort()))

static void check_message(void)
{
	const char *message = hr_last_message();
	MUST(*message);
	for (; *message; message++) MUST((unsigned char)*message >= 0x20 && *message != 0x7F);
}

/* Replays the program and compares the sums. */
static void check_program(const hr__program *program)
{
	uint64_t *sizes = calloc(program->slots, sizeof *sizes), live = 0, blocks = 0, peak = 0, allocs = 0;
	MUST(sizes && program->allocs > 0 && program->allocs + program->frees == program->count && program->slots <= program->allocs);
	MUST(program->streams < HR_STREAM_MAX);
	for (size_t i = 0; i < program->count; i++) {
		const hr__program_event *event = &program->events[i];
		MUST(event->slot < program->slots && event->stream <= program->streams);
		MUST((sizes[event->slot] == 0) == (event->bytes > 0));
		live += event->bytes - sizes[event->slot];
		blocks += event->bytes ? 1 : (uint64_t)-1;
		allocs += event->bytes > 0;
		sizes[event->slot] = event->bytes;
		if (live > peak) {
			peak = live;
			MUST(peak < program->peak_bytes || i == program->peak_event);
		}
	}
	MUST(allocs == program->allocs && blocks == program->leftover_count && peak == program->peak_bytes && live <= HR__PROGRAM_LIVE_MAX);
	for (uint32_t i = 0; i < program->leftover_count; i++) MUST(sizes[program->leftovers[i]] > 0);
	free(sizes);
}

/* Every tensor is created once and destroyed at most once, after that; uses are of live tensors. */
static void check_schedule(const hr__schedule *schedule)
{
	uint8_t *state = calloc((size_t)schedule->tensor_count + 1, 1);
	uint32_t ops = 0, created = 0, acts = 0;
	MUST(state);
	for (uint32_t i = 0; i < schedule->act_count; i++) {
		const hr__schedule_act *act = &schedule->acts[i];
		if (act->kind == HR__ACT_OP) {
			MUST(act->index == ops++);
			const hr__schedule_op *op = &schedule->ops[act->index];
			MUST(op->use_count <= schedule->most_uses && op->first_use + op->use_count <= schedule->use_count);
			for (uint32_t u = op->first_use; u < op->first_use + op->use_count; u++) MUST(state[schedule->uses[u].tensor] == 1);
		} else if (act->kind == HR__ACT_CREATE) {
			MUST(act->index == created++ && state[act->index]++ == 0);
		} else {
			MUST(act->index < schedule->tensor_count && state[act->index]++ == 1);
		}
	}
	for (uint32_t i = 0; i < schedule->part_count; i++) acts += schedule->parts[i].act_count;
	MUST(ops == schedule->op_count && created == schedule->tensor_count && acts == schedule->act_count);
	free(state);
}

static void check_device(const hr__capture *capture, uint32_t device)
{
	hr__program program;
	hr__schedule schedule;
	if (hr__program_make(capture, device, &program) == HR_OK) {
		check_program(&program);
		hr__program_free(&program);
	} else {
		check_message();
	}
	if (hr__schedule_make(capture, device, &schedule) == HR_OK) {
		check_schedule(&schedule);
		hr__schedule_free(&schedule);
	} else {
		check_message();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	hr__capture *capture;
	hr__trace_facts facts;
	char notes[2048];
	if (hr__capture_open_memory(data, size, &capture) != HR_OK) {
		check_message();
		return 0;
	}
	for (uint32_t i = 0; i < capture->device_count && i < 4; i++) check_device(capture, i);
	if (hr__trace_facts_find(capture, HR__FACTS_DEVICE_MOST, &facts) == HR_OK)
		for (int purpose = HR__FACTS_REPLAY; purpose <= HR__FACTS_PLAN; purpose++)
			MUST(hr__trace_facts_notes(&facts, (hr__facts_purpose)purpose, notes, sizeof notes) < sizeof notes);
	else check_message();
	hr__capture_close(capture);
	return 0;
}
