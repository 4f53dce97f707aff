/* active_plan.h - the active plan: what the planner (plan.h) made of a record, looked up by tensor and use, and the addresses that
 * it assigns (layout.h). Private to the learned policy.
 *
 *     active_plan.c     makes and frees it
 *     active_acts.c     what is done at each use and turn
 *     active_layout.c   addresses
 *
 * A plan is about the numbered tensors and ops of the record. [present] maps them to the tensors of the current step: a tensor that
 * outlives the step keeps its handle, and one that is created in each step is identified by its number among those created. All of
 * this is under the context's lock once the plan is active. */
#ifndef HR_LMS_ACTIVE_PLAN_H
#define HR_LMS_ACTIVE_PLAN_H

#include "core/lms/plan/layout.h"
#include "core/lms/plan/plan.h"
#include "core/lms/policy/record.h"

/* What is done after a use of a tensor. */
typedef struct hr__planned_use {
	uint32_t op;
	bool copied;  /* its copy to the host is started, because this was the last write before its eviction */
	bool evicted; /* it may be evicted */
	bool dropped; /* its memory may be freed without a copy: it is made again */
	uint32_t free_at; /* evicted or dropped: the turn before which its memory is free, by the model; may be in the next step, as [need] */
} hr__planned_use;

/* TURNS are the ops of the step and, between them, ops that run again (plan.h). Without such ops, they are the ops. */

/* A restore, and the turn before which it is requested. */
typedef struct hr__planned_restore {
	uint32_t before, tensor;
	uint32_t need; /* op that it is needed by, or before which another op that needs it runs again; from the number of ops on = in the next step */
} hr__planned_restore;

/* What is done at a turn in which an op runs again, in this order. */
typedef enum hr__again {
	HR__AGAIN_MAKE,  /* the tensor is made again */
	HR__AGAIN_COPY, /* its copy to the host is started */
	HR__AGAIN_EVICT, /* so is its eviction */
	HR__AGAIN_DROP,  /* its memory may be freed without a copy */
} hr__again;

typedef struct hr__planned_act {
	uint32_t turn;
	hr__again kind;
	uint32_t tensor;
	uint32_t until; /* MAKE: the turn after which it is dropped next; HR__PLAN_NEVER. EVICT and DROP: as free_at */
} hr__planned_act;

/* The memory of a tensor that an op makes when it runs again. */
typedef struct hr__planned_place {
	uint32_t turn, stay;
	uint32_t taken_in; /* number of the step in which memory was allocated there last */
} hr__planned_place;

/* All zero = no plan. */
typedef struct hr__active_plan {
	hr__plan plan;
	bool is_set;
	uint32_t tensor_count, op_count, created_count;
	uint32_t *first;       /* of each tensor, into uses; [tensor_count] = the end */
	hr__planned_use *uses; /* by tensor, in order of ops */
	uint32_t use_count;
	uint32_t *created; /* tensor created as number i; HR__RECORD_NONE = never used */
	uint64_t *bytes;
	bool *persists;                /* it existed before the step and outlives it: the next step uses it again */
	hr_tensor *present;            /* the tensor in the current step; id 0 = not known yet */
	hr__planned_restore *restores; /* by before, then by need */
	uint32_t turn_count;
	uint32_t *turn_of; /* by op; [op_count] = turn_count */
	hr__planned_act *acts; /* by turn, then by act */
	uint32_t act_count, act_capacity;
	uint32_t *kept_until;  /* by tensor: what was made again last in this step stays until after this turn; 0 = nothing was */
	hr__layout_stay *stays;        /* of all tensors on the device, with their offsets */
	uint32_t *first_stay;          /* of each tensor; [tensor_count] = the end */
	uint32_t stay_capacity;
	hr__planned_place *places; /* by turn, if there is a layout */
	uint32_t place_count, place_capacity;
	bool placing;  /* a layout was tried */
	bool laid_out; /* a layout was found */
	uint64_t layout_bytes; /* its size */
	uint64_t late_bytes; /* of moves that have less time than they need, because of the layout (layout.h) */
	uint64_t signature, compute_ns;
	uint32_t matches; /* number of steps that followed it exactly */
} hr__active_plan;

/* Makes a plan of a record. [other_bytes] are used by plain blocks all through the step. *bound_ns gets the time that no plan can
 * save (hr__plan_bound). [places]: with a layout, if one is found. Fails like hr__plan_make; then there is nothing to free. It
 * takes long, so it is called without the lock; the caller keeps other threads from changing the record. */
hr_status hr__active_plan_make(const hr__record *record, uint64_t other_bytes, const hr__plan_machine *machine, bool places,
                               hr__active_plan *out, uint64_t *bound_ns);
/* ---- for the files of this module ---- */

void hr__active_plan_number_turns(hr__active_plan *active);
/* Sets what is done at each use and turn, and sorts the restores. HR_NO_HOST_MEMORY. */
hr_status hr__active_plan_arrange(const hr__record *record, hr__active_plan *active);
/* Finds when each tensor is on the device, and its offset then, within [most] bytes; sets laid_out. Restores for which memory is free
 * later than the plan says are requested later. HR_NO_HOST_MEMORY. */
hr_status hr__active_plan_lay_out(const hr__record *record, const hr__plan_machine *machine, hr__active_plan *active, uint64_t most);
/* Whether a tensor keeps the address that it had before the step. */
bool hr__active_plan_stays_in_place(const hr__recorded_tensor *seen);

/* The op that a turn is, or that it runs before. */
static inline uint32_t hr__active_plan_op_of(const hr__active_plan *active, uint32_t turn)
{
	return active->plan.turns ? active->plan.turns[turn].before : turn;
}
static inline bool hr__active_plan_is_again(const hr__active_plan *active, uint32_t turn)
{
	return active->plan.turns && active->plan.turns[turn].again;
}
/* Whether op [op] creates [tensor], which it uses. */
static inline bool hr__active_plan_creates(const hr__record *record, const hr__active_plan *active, uint32_t op, uint32_t tensor)
{
	return HR__RECORD_AT(hr__recorded_tensor, record->tensors, tensor).created != HR__RECORD_NONE &&
	       active->uses[active->first[tensor]].op == op;
}

/* ---- for the policy ---- */

/* Whether ops run again. */
static inline bool hr__active_plan_runs_again(const hr__active_plan *active)
{
	return active->is_set && active->plan.turns != NULL;
}
/* Frees the plan and sets *active to "no plan". */
void hr__active_plan_free(hr__active_plan *active);

#endif
