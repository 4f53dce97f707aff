/* step_view.c - see step_view.h. */
#include "plan/step_view.h"

#include <stdlib.h>

#include "analysis/schedule/pure_ops.h"
#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"

struct step_view_maker {
	const hr__schedule *schedule;
	uint64_t granularity;
	hr__step_view *view;
	uint32_t *numbers; /* for each tensor of the schedule, its index in the view, if it has one */
};

static void add_tensor(struct step_view_maker *maker, uint32_t index, bool lived_before)
{
	hr__plan_step *step = &maker->view->step;
	/* Cannot overflow: a schedule has no tensor above 2^48 bytes. */
	uint64_t bytes = maker->schedule->tensors[index].bytes;
	bool fits = hr__align_up(bytes, maker->granularity, &bytes);
	HR_ASSERT(fits);
	(void)fits;
	maker->numbers[index] = step->tensor_count;
	maker->view->tensor_of[step->tensor_count] = index;
	maker->view->tensors[step->tensor_count++] = (hr__plan_tensor){ .bytes = bytes,
		                                                            .died = HR__PLAN_NEVER,
		                                                            .lived_before = lived_before };
}

static void add_op(struct step_view_maker *maker, uint32_t index, uint64_t ns)
{
	hr__plan_step *step = &maker->view->step;
	maker->view->op_of[step->op_count] = index;
	maker->view->ops[step->op_count++] = (hr__plan_op){ .ns = ns, .first_use = step->use_count };
}

static void add_use(struct step_view_maker *maker, uint32_t tensor, bool write)
{
	maker->view->uses[maker->view->step.use_count++] = (hr__plan_use){ .tensor = maker->numbers[tensor], .write = write };
}

static void add_act(struct step_view_maker *maker, const hr__schedule_act *act)
{
	const hr__schedule *schedule = maker->schedule;
	hr__plan_step *step = &maker->view->step;
	switch ((hr__schedule_act_kind)act->kind) {
	case HR__ACT_CREATE:
		add_tensor(maker, act->index, false);
		if (schedule->tensors[act->index].maker != HR__SCHEDULE_NONE) break;
		add_op(maker, HR__SCHEDULE_NONE, 0);
		add_use(maker, act->index, true);
		break;
	case HR__ACT_OP: {
		const hr__schedule_op *op = &schedule->ops[act->index];
		add_op(maker, act->index, op->ns);
		for (uint32_t i = op->first_use; i < op->first_use + op->use_count; i++)
			add_use(maker, schedule->uses[i].tensor, schedule->uses[i].writes);
		break;
	}
	case HR__ACT_DESTROY: maker->view->tensors[maker->numbers[act->index]].died = step->op_count ? step->op_count - 1 : 0; break;
	}
}

/* Allocates arrays for the maximum that [part] can need. */
static bool get_room(struct step_view_maker *maker, uint32_t part)
{
	const hr__schedule *schedule = maker->schedule;
	const hr__schedule_part *played = &schedule->parts[part];
	hr__step_view *view = maker->view;
	size_t tensors = 1, ops = 1, count = 1;
	for (uint32_t i = 0; i < schedule->tensor_count; i++) tensors += hr__schedule_lives_at(&schedule->tensors[i], part);
	for (uint32_t i = played->first_act; i < played->first_act + played->act_count; i++) {
		tensors += schedule->acts[i].kind == HR__ACT_CREATE;
		ops += schedule->acts[i].kind != HR__ACT_DESTROY;
		count += schedule->acts[i].kind == HR__ACT_OP ? schedule->ops[schedule->acts[i].index].use_count : 1;
	}
	maker->numbers = malloc(((size_t)schedule->tensor_count + 1) * sizeof *maker->numbers);
	view->ops = malloc(ops * sizeof *view->ops);
	view->op_of = malloc(ops * sizeof *view->op_of);
	view->uses = malloc(count * sizeof *view->uses);
	view->tensors = malloc(tensors * sizeof *view->tensors);
	view->tensor_of = malloc(tensors * sizeof *view->tensor_of);
	return maker->numbers && view->ops && view->op_of && view->uses && view->tensors && view->tensor_of;
}

hr_status hr__step_view_make(const hr__schedule *schedule, uint32_t part, uint64_t granularity, hr__step_view *out)
{
	const hr__schedule_part *played = &schedule->parts[part];
	struct step_view_maker maker = { schedule, granularity, out, NULL };
	*out = (hr__step_view){ 0 };
	bool enough = get_room(&maker, part);
	if (enough) {
		for (uint32_t i = 0; i < schedule->tensor_count; i++)
			if (hr__schedule_lives_at(&schedule->tensors[i], part)) add_tensor(&maker, i, true);
		for (uint32_t i = 0; i < played->act_count; i++) add_act(&maker, &schedule->acts[played->first_act + i]);
	}
	free(maker.numbers);
	if (!enough) {
		hr__step_view_free(out);
		return hr__fail(HR_NO_HOST_MEMORY, "no memory for looking at a step of %u op%s", played->op_count, hr__plural(played->op_count));
	}
	out->step.ops = out->ops;
	out->step.uses = out->uses;
	out->step.tensors = out->tensors;
	return HR_OK;
}

hr_status hr__step_view_relax(hr__step_view *view)
{
	hr__plan_step *step = &view->step;
	uint32_t *last = malloc(((size_t)step->tensor_count + 1) * sizeof *last), kept = 0;
	if (!last)
		return hr__fail(HR_NO_HOST_MEMORY, "no memory for looking at %u tensor%s", step->tensor_count, hr__plural(step->tensor_count));
	for (uint32_t i = 0; i < step->tensor_count; i++) last[i] = HR__PLAN_NEVER;
	for (uint32_t op = 0; op < step->op_count; op++) {
		uint32_t end = op + 1 < step->op_count ? step->ops[op + 1].first_use : step->use_count;
		for (uint32_t i = step->ops[op].first_use; i < end; i++) last[step->uses[i].tensor] = op;
	}
	/* For each tensor processed, last[] is replaced by its new index. */
	for (uint32_t i = 0; i < step->tensor_count; i++) {
		hr__plan_tensor tensor = view->tensors[i];
		if (last[i] == HR__PLAN_NEVER) continue;
		bool passes_through = tensor.lived_before && tensor.died == HR__PLAN_NEVER;
		if (!passes_through) tensor.lived_before = false, tensor.died = last[i];
		view->tensor_of[kept] = view->tensor_of[i];
		view->tensors[kept] = tensor;
		last[i] = kept++;
	}
	for (uint32_t i = 0; i < step->use_count; i++) view->uses[i].tensor = last[view->uses[i].tensor];
	step->tensor_count = kept;
	free(last);
	return HR_OK;
}

/* Whether op [op] writes a tensor that it does not make. [view->step.uses] are in order, so the first use of a tensor makes it; [seen]
 * says which have been used. */
static bool writes_others(const hr__step_view *view, uint32_t op, uint32_t end, const bool *seen)
{
	for (uint32_t i = view->ops[op].first_use; i < end; i++) {
		uint32_t tensor = view->uses[i].tensor;
		if (view->uses[i].write && (seen[tensor] || view->tensors[tensor].lived_before)) return true;
	}
	return false;
}

hr_status hr__step_view_mark_pure(hr__step_view *view, const hr__schedule *schedule)
{
	const hr__plan_step *step = &view->step;
	bool *seen = calloc((size_t)step->tensor_count + 1, sizeof *seen);
	if (!seen)
		return hr__fail(HR_NO_HOST_MEMORY, "no memory for looking at %u tensor%s", step->tensor_count, hr__plural(step->tensor_count));
	for (uint32_t op = 0; op < step->op_count; op++) {
		uint32_t end = op + 1 < step->op_count ? step->ops[op + 1].first_use : step->use_count;
		hr__purity purity = view->op_of[op] == HR__SCHEDULE_NONE ? HR__OP_NOT_PURE : hr__op_purity(hr_name_text(schedule->ops[view->op_of[op]].name));
		if (purity == HR__OP_VIEW)
			for (uint32_t i = step->ops[op].first_use; i < end; i++)
				if (seen[view->uses[i].tensor] || view->tensors[view->uses[i].tensor].lived_before) view->uses[i].write = false;
		view->ops[op].pure = purity == HR__OP_STATISTICS || (purity != HR__OP_NOT_PURE && !writes_others(view, op, end, seen));
		for (uint32_t i = step->ops[op].first_use; i < end; i++) seen[view->uses[i].tensor] = true;
	}
	free(seen);
	return HR_OK;
}

void hr__step_view_free(hr__step_view *view)
{
	free(view->ops);
	free(view->op_of);
	free(view->uses);
	free(view->tensors);
	free(view->tensor_of);
	*view = (hr__step_view){ 0 };
}
