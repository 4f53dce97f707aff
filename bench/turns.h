/* turns.h - replays one copy of a program on two threads that alternate, like a training program whose forward pass runs on one
 * thread and whose backward pass runs on another while the first waits. The threads are never in the allocator at the same time. */
#ifndef HR_BENCH_TURNS_H
#define HR_BENCH_TURNS_H

#include <pthread.h>
#include <stdlib.h>

#include "headroom.h"
#include "replay/program.h"

#define TURN_PART 8 /* a turn ends where live bytes have fallen, or risen, by this part of the peak */

struct turns {
	const hr__program *program;
	hr_allocator allocator;
	size_t *ends; /* end of each turn, as an event index; even turns are run by the calling thread */
	size_t count;
	void **slots;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	size_t turn;      /* the current one */
	hr_status status; /* of the first failed call */
};

/* Divides the program into turns: live bytes rise in a forward pass, from a minimum to the next maximum, and fall in a backward
 * pass. */
static inline void turns_find(struct turns *turns)
{
	const hr__program *program = turns->program;
	uint64_t *bytes = calloc(program->slots + 1, sizeof *bytes), live = 0, extreme = 0, least = program->peak_bytes / TURN_PART;
	size_t at = 0;
	turns->ends = calloc(program->count + 1, sizeof *turns->ends);
	if (!bytes || !turns->ends) abort();
	for (size_t i = 0; i < program->count; i++) {
		const hr__program_event *event = &program->events[i];
		bool rising = turns->count % 2 == 0;
		live = event->bytes ? live + event->bytes : live - bytes[event->slot];
		bytes[event->slot] = event->bytes;
		if (rising ? live >= extreme : live <= extreme) {
			extreme = live;
			at = i + 1;
		} else if ((rising ? extreme - live : live - extreme) > least) {
			turns->ends[turns->count++] = at;
			extreme = live;
			at = i + 1;
		}
	}
	turns->ends[turns->count++] = program->count;
	free(bytes);
}

static inline hr_status turns_run(struct turns *turns, size_t begin, size_t end)
{
	for (size_t i = begin; i < end; i++) {
		const hr__program_event *event = &turns->program->events[i];
		void **slot = &turns->slots[event->slot];
		hr_request request = HR_REQUEST(event->bytes);
		hr_status status = event->bytes ? hr_alloc(turns->allocator, &request, slot)
		                                : hr_free(turns->allocator, *slot, HR_STREAM_DEFAULT);
		if (status) return status;
	}
	return HR_OK;
}

static inline void turns_take(struct turns *turns, size_t parity)
{
	pthread_mutex_lock(&turns->mutex);
	for (;;) {
		while (turns->turn < turns->count && turns->turn % 2 != parity) pthread_cond_wait(&turns->changed, &turns->mutex);
		if (turns->turn == turns->count) break;
		size_t turn = turns->turn;
		if (!turns->status) turns->status = turns_run(turns, turn ? turns->ends[turn - 1] : 0, turns->ends[turn]);
		turns->turn++;
		pthread_cond_broadcast(&turns->changed);
	}
	pthread_mutex_unlock(&turns->mutex);
}

static inline void *turns_second(void *argument)
{
	turns_take(argument, 1);
	return NULL;
}

/* Replays the program once; its leftover blocks stay allocated. */
static inline hr_status turns_replay(const hr__program *program, hr_allocator allocator)
{
	struct turns turns = { .program = program, .allocator = allocator, .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
	pthread_t second;
	turns_find(&turns);
	turns.slots = calloc(program->slots + 1, sizeof *turns.slots);
	if (!turns.slots || pthread_create(&second, NULL, turns_second, &turns)) abort();
	turns_take(&turns, 0);
	pthread_join(second, NULL);
	free(turns.slots);
	free(turns.ends);
	return turns.status;
}

#endif
