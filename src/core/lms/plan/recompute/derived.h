/* derived.h - turns as a step of their own, whose ops are the turns and whose tensors are the instances, so that moves can be planned
 * for it as for any step. Private to the planner. */
#ifndef HR_LMS_PLAN_DERIVED_H
#define HR_LMS_PLAN_DERIVED_H

#include "core/lms/plan/recompute/turns.h"

typedef struct hr__derived {
	hr__plan_step step;
	hr__plan_scratch scratch;
} hr__derived;

/* Keeps nothing of [turns]. Replicas that are ghosts or second ones may not be evicted. False if there is no memory. */
bool hr__derived_open(hr__derived *derived, const hr__turns *turns);
void hr__derived_close(hr__derived *derived);

#endif
