/* generate.h - made-up programs: what `headroom generate` writes, as events in memory.
 *
 * Everything follows from the seed by whole-number arithmetic, so the same arguments give the same trace on every machine. */
#ifndef HR_CLI_GENERATE_H
#define HR_CLI_GENERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

typedef struct hr__made_event {
	uint64_t time_us;
	uint64_t bytes; /* a free repeats them */
	uint32_t block; /* numbered from 0 within its actor */
	uint16_t stream;
	bool frees;
} hr__made_event;

/* One thread of the made-up program: its events, and what is needed to make them. */
typedef struct hr__actor {
	uint64_t random; /* state of the generator of numbers */
	uint64_t time_us;
	uint32_t streams; /* to spread work over: 0 to streams - 1 */
	hr__made_event *events;
	size_t count, wanted;
	uint64_t *sizes; /* of each block, by number */
	uint32_t blocks;
	bool full; /* as many events as wanted */
} hr__actor;

/* A kind of program fills the actor with exactly [wanted] events. */
typedef struct hr__made_kind {
	const char *name;
	void (*run)(hr__actor *actor);
} hr__made_kind;

extern const hr__made_kind hr__made_kinds[]; /* ended by one without a name */

/* ---- for the kinds ---- */

#define HR__NO_BLOCK UINT32_MAX

/* Appends an allocation and returns its block; HR__NO_BLOCK when the actor is full. */
uint32_t hr__actor_alloc(hr__actor *actor, uint64_t bytes, uint32_t stream);
/* Appends a free. Nothing happens for HR__NO_BLOCK, or when the actor is full. */
void hr__actor_free(hr__actor *actor, uint32_t block, uint32_t stream);

/* A number below [bound], which is not 0; true once in [n] times. */
uint64_t hr__actor_random(hr__actor *actor, uint64_t bound);
bool hr__actor_chance(hr__actor *actor, uint64_t n);

#endif
