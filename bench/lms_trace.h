/* lms_trace.h - steps of a use trace (traces/README.md) in the planner's format.
 *
 * An op uses what it reads, writes or allocates. A block that is freed during an op, or before the next one, dies with that op. */
#ifndef HR_BENCH_LMS_TRACE_H
#define HR_BENCH_LMS_TRACE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/lms/plan/plan.h"

typedef struct lms_event {
	char action;
	uint64_t id, bytes;
} lms_event;

typedef struct lms_trace {
	lms_event *events;
	size_t count;
	uint64_t blocks; /* upper bound of the ids */
} lms_trace;

static inline void *lms_must(void *memory)
{
	if (memory == NULL) abort();
	return memory;
}

/* Reads uncompressed CSV. */
static inline lms_trace lms_trace_read(FILE *from)
{
	lms_trace trace = { 0 };
	size_t room = 0;
	char line[1024];
	while (fgets(line, sizeof line, from) != NULL) {
		unsigned long long when, id, bytes;
		char action;
		if (sscanf(line, "%llu,%c,%llu,%llu", &when, &action, &id, &bytes) != 4) continue;
		if (trace.count == room) {
			room = room > 0 ? 2 * room : 1024;
			trace.events = lms_must(realloc(trace.events, room * sizeof *trace.events));
		}
		trace.events[trace.count++] = (lms_event){ action, id, bytes };
		if (strchr("afrw", action) != NULL && id >= trace.blocks) trace.blocks = id + 1;
	}
	return trace;
}

typedef struct lms_step {
	hr__plan_op *ops;
	hr__plan_use *uses;
	hr__plan_tensor *tensors;
	uint64_t *ids; /* indexed by tensor */
	hr__plan_step step;
} lms_step;

typedef struct lms_building {
	lms_step *out;
	uint32_t *tensor_of; /* indexed by block; tensor + 1 */
	uint32_t *used_at;   /* indexed by tensor: its use in the current op, + 1 */
	uint64_t *sizes;     /* indexed by block; 0 = not live */
	bool running;
} lms_building;

static inline uint32_t lms_tensor(lms_building *b, uint64_t block, bool lived_before)
{
	hr__plan_step *step = &b->out->step;
	if (b->tensor_of[block] == 0) {
		uint32_t t = step->tensor_count++;
		b->out->tensors[t] = (hr__plan_tensor){ .bytes = b->sizes[block], .died = HR__PLAN_NEVER, .lived_before = lived_before };
		b->out->ids[t] = block;
		b->tensor_of[block] = t + 1;
	}
	return b->tensor_of[block] - 1;
}

static inline void lms_use(lms_building *b, uint64_t block, bool write)
{
	hr__plan_step *step = &b->out->step;
	uint32_t t = lms_tensor(b, block, false);
	uint32_t op_first = b->out->ops[step->op_count - 1].first_use;
	if (b->used_at[t] > op_first) {
		b->out->uses[b->used_at[t] - 1].write |= write;
		return;
	}
	b->out->uses[step->use_count++] = (hr__plan_use){ t, write };
	b->used_at[t] = step->use_count;
}

static inline void lms_event_in_step(lms_building *b, const lms_event *event)
{
	hr__plan_step *step = &b->out->step;
	switch (event->action) {
	case 'b':
		b->out->ops[step->op_count++] = (hr__plan_op){ .first_use = step->use_count };
		b->running = true;
		break;
	case 'e':
		b->out->ops[step->op_count - 1].ns = event->bytes;
		b->running = false;
		break;
	case 'a':
		b->sizes[event->id] = event->bytes;
		if (b->running) lms_use(b, event->id, true);
		break;
	case 'f':
		if (b->tensor_of[event->id] > 0 && step->op_count > 0)
			b->out->tensors[lms_tensor(b, event->id, false)].died = step->op_count - 1;
		/* Freed before the first op: as if it had not existed. */
		else if (b->tensor_of[event->id] > 0) b->out->tensors[lms_tensor(b, event->id, false)].bytes = 0;
		b->sizes[event->id] = 0;
		break;
	case 'r':
	case 'w':
		if (b->running) lms_use(b, event->id, event->action == 'w');
		break;
	default: break;
	}
}

/* Extracts step [number]. Exits if there is none. */
static inline lms_step lms_step_make(const lms_trace *trace, uint64_t number)
{
	lms_step out = { 0 };
	lms_building b = { .out = &out };
	size_t i = 0, room = trace->count + 1;
	out.ops = lms_must(calloc(room, sizeof *out.ops));
	out.uses = lms_must(calloc(room, sizeof *out.uses));
	out.tensors = lms_must(calloc(trace->blocks + 1, sizeof *out.tensors));
	out.ids = lms_must(calloc(trace->blocks + 1, sizeof *out.ids));
	b.tensor_of = lms_must(calloc(trace->blocks + 1, sizeof *b.tensor_of));
	b.used_at = lms_must(calloc(trace->blocks + 1, sizeof *b.used_at));
	b.sizes = lms_must(calloc(trace->blocks + 1, sizeof *b.sizes));
	for (; i < trace->count && !(trace->events[i].action == 's' && trace->events[i].id == number); i++) {
		if (trace->events[i].action == 'a') b.sizes[trace->events[i].id] = trace->events[i].bytes;
		if (trace->events[i].action == 'f') b.sizes[trace->events[i].id] = 0;
	}
	if (i == trace->count) {
		fprintf(stderr, "the trace has no step %llu\n", (unsigned long long)number);
		exit(2);
	}
	for (uint64_t block = 0; block < trace->blocks; block++)
		if (b.sizes[block] > 0) lms_tensor(&b, block, true);
	for (i++; i < trace->count && trace->events[i].action != 's'; i++) lms_event_in_step(&b, &trace->events[i]);
	out.step.ops = out.ops;
	out.step.uses = out.uses;
	out.step.tensors = out.tensors;
	free(b.tensor_of);
	free(b.used_at);
	free(b.sizes);
	return out;
}

static inline void lms_step_free(lms_step *step)
{
	free(step->ops);
	free(step->uses);
	free(step->tensors);
	free(step->ids);
}

#endif
