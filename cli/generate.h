/* generate.h - synthetic programs, as events in memory: what `headroom generate` writes.
 *
 * Events depend only on the seed and integer arithmetic, so the same arguments give the same trace on every machine. */
#ifndef HR_CLI_GENERATE_H
#define HR_CLI_GENERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

typedef struct hr__made_event {
	uint64_t time_us;
	uint64_t bytes; /* a free repeats the size of its block */
	uint32_t block; /* numbered from 0 within the actor */
	uint16_t stream;
	bool frees;
} hr__made_event;

/* One thread of a synthetic program: its events and the state of the generator. */
typedef struct hr__actor {
	uint64_t random; /* state of the random number generator */
	uint64_t time_us;
	uint32_t streams; /* number of streams to use */
	hr__made_event *events;
	size_t count, wanted;
	uint64_t *sizes; /* of each block, by number */
	uint32_t blocks;
	bool full; /* [wanted] events were made */
} hr__actor;

/* A kind of program. [run] fills the actor with exactly [wanted] events. */
typedef struct hr__made_kind {
	const char *name;
	void (*run)(hr__actor *actor);
} hr__made_kind;

extern const hr__made_kind hr__made_kinds[]; /* terminated by an entry without a name */

/* ---- for the kinds ---- */

#define HR__NO_BLOCK UINT32_MAX

/* Appends an allocation and returns its block; HR__NO_BLOCK when the actor is full. */
uint32_t hr__actor_alloc(hr__actor *actor, uint64_t bytes, uint32_t stream);
/* Appends a free. Does nothing for HR__NO_BLOCK, or when the actor is full. */
void hr__actor_free(hr__actor *actor, uint32_t block, uint32_t stream);

/* A random number below [bound], which must not be 0; true with probability 1/[n]. */
uint64_t hr__actor_random(hr__actor *actor, uint64_t bound);
bool hr__actor_chance(hr__actor *actor, uint64_t n);

#endif
