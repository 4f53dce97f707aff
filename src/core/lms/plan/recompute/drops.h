/* drops.h - chooses which gaps are dropped and which tensors are brief, so that little time is spent on running ops again. Private to the planner. */
#ifndef HR_LMS_PLAN_DROPS_H
#define HR_LMS_PLAN_DROPS_H

#include "core/lms/plan/recompute/turns.h"

typedef struct hr__drop_choice {
	const uint64_t *allowed; /* by op: bytes that may be in use at it, and at the turns before it */
	uint32_t crest;          /* only turns with this much of the highest excess count, in 256ths; 0 = all turns with an excess */
} hr__drop_choice;

typedef struct hr__drops {
	hr__turns *turns;
	hr__plan_scratch scratch;
	uint64_t *excess, *weight; /* by turn: sums of the bytes above what is allowed, and of turns that count, before the turn */
	/* Candidates: gaps to drop, and tensors to make brief, whose number is added to that of gaps. */
	uint32_t *order; /* a heap, the best at the top */
	double *score;   /* time for each byte of excess that goes away */
	double *gain;    /* by tensor: excess that goes away if it is brief */
	uint64_t *cost;  /* by tensor: time that this takes */
	uint32_t *taken;           /* by tensor: the round in which it, or an output of the same op, was dropped, or an input of that op */
	uint32_t round;
	uint64_t least_bytes; /* smaller tensors are kept */
} hr__drops;

bool hr__drops_open(hr__drops *drops, hr__turns *turns);
void hr__drops_close(hr__drops *drops);

/* Makes the turns with the current drops. False if there are too many. Begin with [least_bytes] 0. */
bool hr__drops_make(hr__drops *drops, const hr__drop_choice *choice);

/* Drops the best gaps, given the turns as they are. False if nothing is in excess, or nothing helps. */
bool hr__drops_step(hr__drops *drops, const hr__drop_choice *choice);

/* Takes steps and makes turns until nothing is in excess, or nothing helps. False if there are too many turns. */
bool hr__drops_choose(hr__drops *drops, const hr__drop_choice *choice);

/* The highest excess of the turns; 0 = all is within what is allowed. */
uint64_t hr__drops_excess(const hr__drops *drops, const hr__drop_choice *choice);

#endif
