/* plan.h - which tensors should leave during a step, when, and when to ask for them back: decided before the step, from what the last one
 * did.
 *
 * Pure: no device, no clock, no locks. Time in here is the time of the model at the top of plan.c; memory for the plan comes from
 * hr__os(). A step is a ring: what happens after its last op is followed by its first. */
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
	bool write; /* a copy on the host is no longer good afterwards */
} hr__plan_use;

typedef struct hr__plan_op {
	uint64_t ns;        /* it computes */
	uint32_t first_use; /* index of its first use; the next op's is where they end */
} hr__plan_op;

typedef struct hr__plan_tensor {
	uint64_t bytes;    /* on the device, rounding included */
	uint32_t died;     /* op after which it is destroyed; HR__PLAN_NEVER = it lives on */
	bool lived_before; /* it has contents when the step begins; else its first use makes it */
	bool stays;        /* it may not leave */
} hr__plan_tensor;

/* A tensor that lived before and lives on is the same in the next step, and may be out over the end of the step. One that lives on but did
 * not live before, or lived before and dies, is at home whenever a step ends. */
typedef struct hr__plan_step {
	const hr__plan_op *ops;
	const hr__plan_use *uses;       /* of all ops, in order; a tensor at most once in an op */
	const hr__plan_tensor *tensors; /* one without a use occupies memory all the time it lives */
	uint32_t op_count, use_count, tensor_count;
	uint64_t other_bytes; /* in use all the time by what is no tensor */
} hr__plan_step;

typedef struct hr__plan_machine {
	uint64_t memory;          /* bytes of the device that may be used */
	uint64_t out_bytes_per_s; /* of the link, each way; the two do not disturb each other */
	uint64_t in_bytes_per_s;
	uint64_t copy_ns; /* a copy takes this long on top */
} hr__plan_machine;

/* ---- what to do about it ---- */

typedef struct hr__plan_move {
	uint32_t tensor;
	uint32_t out_after; /* it leaves when this op, which uses it, is done */
	uint32_t gone_by;   /* the last op that began before its copy was done, by the model: until then its memory is read */
	uint32_t in_before; /* its return is asked for before this op, which may be the one that needs it */
	uint32_t starts_by; /* the op that runs when its way back begins, by the model: until then its memory is not touched */
	uint32_t needed_by; /* the op that uses it next; at or before out_after = in the next step */
	uint32_t
		copy_after; /* it is copied when this op, which wrote it last, is done, though others may still read it before it leaves;
	                      * after out_after = in the step before. Copying it when it leaves is as right, and slower */
	bool clean;     /* the host has a good copy already, so it leaves for nothing; copy_after means nothing then */
} hr__plan_move;

typedef struct hr__plan {
	/* By out_after. Copies out that are due after the same op go in the order in which they stand here; returns that are asked for before
	 * the same op go in the order of need, and those that are needed by the same op in the order of tensors. */
	hr__plan_move *moves;
	uint32_t move_count;
	uint64_t bytes_out, bytes_in; /* over the link in one step */
	uint64_t step_ns;             /* what a step takes with it, by the model, once it repeats */
	uint64_t peak_bytes;          /* most bytes in use with it, by the model: at most machine->memory */
} hr__plan;

/* Finds a plan that needs little time and then few bytes. HR_OUT_OF_MEMORY when some op cannot run in machine->memory whatever is moved
 * (hr__plan_least says what would do), HR_INVALID_ARGUMENT for a step that contradicts itself, HR_NO_HOST_MEMORY. A step that fits as it
 * is gets a plan without moves. Deterministic. */
hr_status hr__plan_make(const hr__plan_step *step, const hr__plan_machine *machine, hr__plan *out);
void hr__plan_free(hr__plan *plan);

/* The least memory in which the step runs: the largest sum over one op of what it uses and what must stay. *op (may be NULL) gets it.
 * 0 for a step that contradicts itself, or when host memory ran out. */
uint64_t hr__plan_least(const hr__plan_step *step, uint32_t *op);

/* The most bytes in use at once with nothing moved. 0 as above. */
uint64_t hr__plan_peak(const hr__plan_step *step);

/* What the step takes without any limit: the sum of its ops. */
uint64_t hr__plan_compute_ns(const hr__plan_step *step);

/* The bound: no way of moving tensors makes a step that repeats for ever take less than hr__plan_compute_ns + *extra_ns on average.
 * docs/lms.md has the proof. HR_NO_HOST_MEMORY. */
hr_status hr__plan_bound(const hr__plan_step *step, const hr__plan_machine *machine, uint64_t *extra_ns);

#endif
