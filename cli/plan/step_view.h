/* step_view.h - a step of a schedule in the form that the planner of Large Model Support takes (core/lms/plan/plan.h). */
#ifndef HR_CLI_STEP_VIEW_H
#define HR_CLI_STEP_VIEW_H

#include "core/lms/plan/plan.h"
#include "analysis/schedule/schedule.h"

/* A tensor that is filled by the driver is written by an extra op that takes no time. */
typedef struct hr__step_view {
	hr__plan_step step; /* points to the arrays below */
	hr__plan_op *ops;
	hr__plan_use *uses;
	hr__plan_tensor *tensors;
	uint32_t *op_of;     /* for each op, its index in the schedule; HR__SCHEDULE_NONE = fills a tensor */
	uint32_t *tensor_of; /* for each tensor, its index in the schedule */
} hr__step_view;

/* Makes the view of part [part], with sizes of tensors rounded up to [granularity], a power of two. HR_NO_HOST_MEMORY. */
hr_status hr__step_view_make(const hr__schedule *schedule, uint32_t part, uint64_t granularity, hr__step_view *out);

/* Reduces the view to what must be on the device at some time under any policy. Tensors without a use are dropped, because they can
 * be evicted for the whole step. A tensor that existed before the step and is destroyed in it, or is made in it and outlives it, is
 * only there from its first use to its last. Results of the planner for the reduced view hold for every policy: the least memory is
 * the largest working set, and the bound holds even for moves that no plan contains. */
hr_status hr__step_view_relax(hr__step_view *view);

/* Marks the ops that can run again (analysis/schedule/pure_ops.h), and takes back the writes of views. An op in place on what a pure op has made
 * becomes a part of that op, if no other op is between them: so the engine plans them (hr_tensor_hold_recipe). HR_NO_HOST_MEMORY. */
hr_status hr__step_view_mark_pure(hr__step_view *view, const hr__schedule *schedule);
void hr__step_view_free(hr__step_view *view);

#endif
