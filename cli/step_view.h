/* step_view.h - a step of a use tape as the planner of Large Model Support sees it (lms/plan.h). */
#ifndef HR_CLI_STEP_VIEW_H
#define HR_CLI_STEP_VIEW_H

#include "lms/plan.h"
#include "uses.h"

/* Where a driver fills a tensor, the view has an op that takes no time and writes it. */
typedef struct hr__step_view {
	hr__plan_step step; /* its arrays are those below */
	hr__plan_op *ops;
	hr__plan_use *uses;
	hr__plan_tensor *tensors;
	uint32_t *op_of;     /* op of the tape that each op is; HR__USES_NONE = a tensor is filled */
	uint32_t *tensor_of; /* tensor of the tape that each tensor is */
} hr__step_view;

/* Of part [part], with the sizes of tensors rounded up to [granularity], a power of two. HR_NO_HOST_MEMORY. */
hr_status hr__step_view_make(const hr__uses *uses, uint32_t part, uint64_t granularity, hr__step_view *out);

/* Leaves of the view what must be on the device at some moment, whatever an engine does: tensors without a use are dropped, because they
 * can leave once and for all; one that lived before and dies, or is made and lives on, is there from its first use to its last. What the
 * planner says of that is true of every engine: the least memory is the largest working set, and the bound holds for those that move what
 * no plan would. */
hr_status hr__step_view_relax(hr__step_view *view);
void hr__step_view_free(hr__step_view *view);

#endif
