/* plan.h - decides before a step which tensors are evicted during it, when, and when they are restored, from a record of the last
 * step.
 *
 * Pure: no device, no clock, no locks. Time is that of the model at the top of plan.c; memory for the plan comes from hr__os(). A
 * step is a ring: its last op is followed by its first. */
#ifndef HR_LMS_PLAN_H
#define HR_LMS_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

#define HR__PLAN_NEVER UINT32_MAX

/* ---- what a step does ---- */

typedef struct hr__plan_use {
	uint32_t tensor;
	bool write; /* a host copy is not valid afterwards */
} hr__plan_use;

typedef struct hr__plan_op {
	uint64_t ns;        /* compute time */
	uint32_t first_use; /* index of its first use; its uses end where those of the next op begin */
	bool pure;          /* it may run again: that takes as long, and makes the tensors that it creates as they were. Tensors that it
	                     * writes but does not create are neither read nor written then */
	uint32_t until;     /* pure: it may run again only before this op and earlier ones, because a later op changes its inputs; 0 = no such limit */
} hr__plan_op;

typedef struct hr__plan_tensor {
	uint64_t bytes;    /* on the device, including rounding */
	uint32_t died;     /* op after which it is destroyed; HR__PLAN_NEVER = it outlives the step */
	bool lived_before; /* it has contents when the step begins; otherwise its first use creates it */
	bool never_evict;  /* it may not be evicted */
} hr__plan_tensor;

/* A tensor that existed before the step and outlives it is the same in the next step, and may be evicted across the end of the
 * step. One that is created in the step and outlives it, or that existed before and is destroyed in it, is resident whenever a step
 * ends. */
typedef struct hr__plan_step {
	const hr__plan_op *ops;
	const hr__plan_use *uses;       /* of all ops, in order; a tensor at most once per op */
	const hr__plan_tensor *tensors; /* a tensor without uses occupies memory as long as it exists */
	uint32_t op_count, use_count, tensor_count;
	uint64_t other_bytes; /* in use by plain blocks, during the whole step */
} hr__plan_step;

typedef struct hr__plan_machine {
	uint64_t memory;          /* device memory that may be used */
	uint64_t out_bytes_per_s; /* bandwidth of the link in each direction; copies in one direction do not slow down the other */
	uint64_t in_bytes_per_s;
	uint64_t copy_ns; /* fixed cost of a copy */
} hr__plan_machine;

/* ---- the plan ---- */

typedef struct hr__plan_move {
	uint32_t tensor;
	uint32_t out_after; /* it is evicted when this op, which uses it, is done */
	uint32_t gone_by;   /* by the model, the last op that begins before its copy is done: its memory is in use until then */
	uint32_t in_before; /* its restore is requested before this op, which may be the one that needs it */
	uint32_t starts_by; /* by the model, the op that runs when its restore begins: its new memory is not used before */
	uint32_t needed_by; /* the op that uses it next; if it is not after out_after, that op of the next step */
	uint32_t
		copy_after; /* it is copied when this op, its last writer, is done; other ops may still read it before it is evicted. If this op is
		             * after out_after, that op of the previous step. Copying it at its eviction is also correct, but slower */
	bool clean;     /* it has a valid host copy, so it is evicted without a copy; copy_after has no meaning then */
} hr__plan_move;

/* A turn of the device: an op of the step, or one that runs again. */
typedef struct hr__plan_turn {
	uint32_t op;
	uint32_t before; /* the op of the step that it runs before; [op] if it is that op itself */
	bool again;
} hr__plan_turn;

/* A time without memory of a tensor that is made again, or the end of its last replica. */
typedef struct hr__plan_drop {
	uint32_t tensor;
	uint32_t after;     /* its memory is freed, without a copy to the host, when this turn is done */
	uint32_t back_at;   /* the turn, an op that runs again, that makes it again; HR__PLAN_NEVER = none does */
	uint32_t needed_by; /* the turn that uses it next, after back_at; HR__PLAN_NEVER if back_at is */
	bool ghost;         /* it is made again after the step has destroyed it, as an input of another op that runs again */
} hr__plan_drop;

typedef struct hr__plan {
	/* Sorted by out_after. Copies to the host that are due after the same op are made in this order. Restores that are requested
	 * before the same op are made in the order of need, and those needed by the same op in the order of tensors. */
	hr__plan_move *moves;
	uint32_t move_count;
	/* Only if ops run again; NULL otherwise. Then the ops that moves name are turns: indexes in [turns]. */
	hr__plan_turn *turns;
	hr__plan_drop *drops; /* sorted by [after] */
	uint32_t turn_count, drop_count;
	uint64_t again_ns;            /* time of the ops that run again */
	uint64_t bytes_out, bytes_in; /* over the link in one step */
	uint64_t step_ns;             /* time of a step with this plan, by the model, once it repeats */
	uint64_t peak_bytes;          /* peak of bytes in use with this plan, by the model: at most machine->memory */
} hr__plan;

typedef enum hr__plan_means {
	HR__PLAN_MOVE = 1,      /* tensors are evicted */
	HR__PLAN_RECOMPUTE = 2, /* tensors are dropped, and pure ops run again */
	HR__PLAN_BOTH = HR__PLAN_MOVE | HR__PLAN_RECOMPUTE,
} hr__plan_means;

/* Finds a plan with little extra time and, among those, few bytes over the link. HR_OUT_OF_MEMORY if some op cannot run in
 * machine->memory whatever is evicted (hr__plan_least says what would be enough), HR_INVALID_ARGUMENT for an inconsistent step,
 * HR_NO_HOST_MEMORY. A step that fits as it is gets a plan without moves. Deterministic. hr__plan_make is the same by both means.
 *
 * By both means, a step takes no longer than by either of them. Without pure ops, the plan is that of moving. By recomputing alone,
 * HR_OUT_OF_MEMORY also means that no plan was found. */
hr_status hr__plan_make(const hr__plan_step *step, const hr__plan_machine *machine, hr__plan *out);
hr_status hr__plan_make_by(const hr__plan_step *step, const hr__plan_machine *machine, hr__plan_means means, hr__plan *out);
void hr__plan_free(hr__plan *plan);

/* The least memory in which the step can run: the maximum over its ops of the bytes that the op uses and those that may not be evicted.
 * *op (may be NULL) receives the op with that maximum. 0 for an inconsistent step, or if host memory ran out. */
uint64_t hr__plan_least(const hr__plan_step *step, uint32_t *op);

/* Peak of bytes in use if nothing is evicted. 0 in the same cases as hr__plan_least. */
uint64_t hr__plan_peak(const hr__plan_step *step);

/* Time of the step without any limit: the sum of its ops. */
uint64_t hr__plan_compute_ns(const hr__plan_step *step);

/* The bound: whatever is evicted, if nothing runs again, a step that repeats without end takes at least hr__plan_compute_ns + *extra_ns on average.
 * docs/lms.md has the proof. HR_NO_HOST_MEMORY. */
hr_status hr__plan_bound(const hr__plan_step *step, const hr__plan_machine *machine, uint64_t *extra_ns);

#endif
