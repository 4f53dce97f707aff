/* turns.h - the order of a step in which tensors are dropped and computed again. Private to the planner.
 *
 * TURNS are what the device runs: the ops of the step in their order and, between them, ops that run again. A set of dropped gaps
 * determines all turns:
 *
 *   dropped     after the op that the gap follows
 *   needed      at the end of the gap, or earlier as the input of an op that runs again
 *   made again  just before the op that needs it, after whatever inputs are missing. An op that runs again makes all of its outputs
 *
 * A REPLICA is an output of an op that ran again. It is HELD until it is needed for the last time. A replica of a BRIEF tensor is not: it is
 * freed when the op of the step before which it was made comes next, and the op runs once more when needed. A replica of a tensor that
 * the step has destroyed is a GHOST. A replica that is needed at the end of the gap becomes the tensor. An output that is still there is
 * made a second time, and freed at once. */
#ifndef HR_LMS_PLAN_TURNS_H
#define HR_LMS_PLAN_TURNS_H

#include "core/lms/plan/recompute/recipes.h"

#define HR__TURNS_NO_PRICES UINT64_MAX
#define HR__GHOST_DEPTH 8u /* most ghosts in a row in a chain of recipes; the recorded steps gain nothing from more than 4 */

/* A tensor during a time in which it has memory. */
typedef struct hr__instance {
	uint32_t tensor;
	uint32_t made, last; /* first and last turn; last is HR__PLAN_NEVER if it outlives the step */
	bool again;          /* an op that ran again made it */
	bool second;         /* the tensor itself was there meanwhile */
	bool ghost;          /* the tensor was destroyed before */
} hr__instance;

/* A time between two turns that need a replica. */
typedef struct hr__held {
	uint32_t tensor, first, end; /* turns: after the one that needed it, up to the one that needs it again */
} hr__held;

/* A tensor while turns are made. In one place, because most of that time is spent waiting for memory. */
typedef struct hr__turns_tensor {
	uint64_t bytes;
	uint32_t state;
	uint32_t gap;      /* the droppable gap that it is in; HR__PLAN_NO_GAP = none */
	uint32_t replica;  /* the instance that is its replica; HR__PLAN_NEVER = none */
	uint32_t instance; /* while it is resident */
	uint32_t touched;  /* the op before which its replica was last needed */
} hr__turns_tensor;

typedef struct hr__turns {
	const hr__recipes *recipes;
	hr__plan_scratch scratch;
	uint64_t work; /* so far, in units of about 4 ns */

	/* which gaps are dropped, and which tensors are brief */
	bool *dropped; /* by gap */
	bool *banned;  /* by gap: dropping it is not possible with the others; set by hr__turns_make */
	bool *brief;   /* by tensor */

	/* the result */
	hr__plan_turn *turns;
	uint32_t count, room;
	uint32_t *turn_of;  /* by op */
	uint64_t *occupied; /* by turn: bytes in use */
	uint64_t again_ns;  /* time of all ops that run again */
	hr__instance *instances; /* ordered by [made] */
	uint32_t instance_count, instance_room;

	/* what it would cost to drop a gap that is kept */
	uint64_t priced_bytes;
	uint64_t *price_ns;  /* by gap: time of the ops that would run again; UINT64_MAX = it may not be dropped */
	uint32_t *needed_at; /* by gap: the turn by which it would have to be back */
	/* By gap: bytes of other dropped tensors that would have to be back by then, too, and the op at which they are needed now, on
	 * average. */
	uint64_t *early_bytes;
	uint32_t *early_until;

	/* Times in which replicas are held, only if there are prices. Those that there is no room for are left out. */
	hr__held *held;
	uint32_t held_count;

	/* while turns are made */
	hr__turns_tensor *tensors;
	uint32_t *stamp;    /* by op: the walk that counted it */
	uint32_t walk;
	uint64_t *change; /* by turn: bytes in use more than at the turn before, besides those of the step */
	struct hr__turns_frame *stack, *price_stack; /* a price is found while a chain is made */
} hr__turns;

/* Nothing is dropped, and no tensor is brief, at first. False if there is no memory. */
bool hr__turns_open(hr__turns *turns, const hr__recipes *recipes);
void hr__turns_close(hr__turns *turns);

/* Makes the turns. Gaps whose tensor could not be made again are banned, and kept. Gaps of tensors of [priced_bytes] and more get
 * prices; HR__TURNS_NO_PRICES = none does. False if there are too many turns. */
bool hr__turns_make(hr__turns *turns, uint64_t priced_bytes);

#endif
