/* force.h - the plan in force: what the planner (plan.h) made of a record, looked up by tensor and use, and where everything should lie
 * (layout.h). Private to the learned policy.
 *
 * The plan is about numbered tensors and ops, those of the record. Who they are in the step that runs is in [present]: a tensor that lives
 * on is itself, one that is made in each step is told by its number among those created. All of this is under the context's lock once it
 * is in force. */
#ifndef HR_LMS_FORCE_H
#define HR_LMS_FORCE_H

#include "core/lms/plan/layout.h"
#include "core/lms/plan/plan.h"
#include "core/lms/policy/record.h"

/* What is done after a use. */
typedef struct hr__leave {
	uint32_t op; /* of the use */
	bool copied; /* after it: its copy to the host is begun, because this was the last write before it leaves */
	bool leaves; /* after it */
} hr__leave;

/* A return, and the op before which it is asked for. */
typedef struct hr__comeback {
	uint32_t before, tensor;
	uint32_t need; /* op that uses it; number of ops and more = in the next step */
} hr__comeback;

/* All zero = no plan. */
typedef struct hr__force {
	hr__plan plan;
	bool is_set;
	uint32_t tensor_count, op_count, created_count;
	uint32_t *first;        /* of each tensor, into uses; one more at the end */
	hr__leave *uses;        /* of all tensors, in order of ops */
	uint32_t use_count;
	uint32_t *created;      /* tensor that was created as number i; HR__NONE = it was never used */
	uint64_t *bytes;
	bool *lives_on;         /* and lived before: used again in the next step */
	hr_tensor *present;     /* who is that tensor in the step that runs; id 0 = nobody yet */
	hr__comeback *returns;  /* by before, then by need */
	hr__stay *stays;        /* of all tensors on the device, and where they lie */
	uint32_t *first_stay;   /* of each tensor, one more at the end */
	uint32_t stay_capacity;
	bool placing;           /* places were looked for, */
	bool laid_out;          /* and found; */
	uint32_t late;          /* for that, they were given this much less time than they should have */
	uint64_t signature, compute_ns;
	uint32_t matches;       /* steps that went as it says */
} hr__force;

/* Makes a plan of a record; [other_bytes] are in use all through the step by what is no tensor. *bound_ns gets what no plan can save
 * (hr__plan_bound). [places]: with places for everybody, if they can be found. Fails as hr__plan_make does, and then there is nothing to
 * free. It takes long, so it is called without the lock; who calls it keeps others away from the record. */
hr_status hr__force_make(const hr__record *record, uint64_t other_bytes, const hr__plan_machine *machine, bool places, hr__force *out,
                         uint64_t *bound_ns);
/* It is no plan then. */
void hr__force_free(hr__force *force);

#endif
