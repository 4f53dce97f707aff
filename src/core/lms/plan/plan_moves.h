/* plan_moves.h - chooses moves for a step that does not fit, by the model at the top of plan.c. Private to the planner. */
#ifndef HR_LMS_PLAN_MOVES_H
#define HR_LMS_PLAN_MOVES_H

#include "core/lms/plan/plan_ring.h"

typedef enum hr__plan_effort {
	HR__MOVES_ALL,   /* all strategies; the best are improved */
	HR__MOVES_SOME,  /* a few strategies; the best is improved a little, if ops wait for copies */
	HR__MOVES_QUICK, /* a few strategies, to compare one step with another */
} hr__plan_effort;

/* [ring] has a machine, and no op needs more than its memory, but some do if nothing is evicted. *cost is the time of the step, and a little
 * for the time of the links. Either may be NULL: a cost alone takes less time. HR_NO_HOST_MEMORY. */
hr_status hr__plan_moves_make(const hr__plan_ring *ring, hr__plan_effort effort, hr__plan *out, uint64_t *cost);

#endif
