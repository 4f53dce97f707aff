/* combined.h - plans in which tensors are dropped and, by both means, others are moved. Private to the planner. */
#ifndef HR_LMS_PLAN_COMBINED_H
#define HR_LMS_PLAN_COMBINED_H

#include "core/lms/plan/plan_ring.h"

/* [ring] has a machine, does not fit, and no op of it needs more than the memory. [means] includes recomputing. HR_NO_HOST_MEMORY;
 * HR_OUT_OF_MEMORY if nothing may be moved and no plan was found. */
hr_status hr__combined_make(const hr__plan_ring *ring, hr__plan_means means, hr__plan *out);

#endif
