/* step_view.c - see step_view.h. */
#include "plan/step_view.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- ops in place ---- */

static uint32_t end_of_uses(const hr__plan_step *step, uint32_t op)
{
	return op + 1 < step->op_count ? step->ops[op + 1].first_use : step->use_count;
}

/* The one tensor that op [op] writes, if it writes one; UINT32_MAX = none, or several. */
static uint32_t written_by(const hr__step_view *view, uint32_t op)
{
	uint32_t tensor = UINT32_MAX;
	for (uint32_t i = view->ops[op].first_use; i < end_of_uses(&view->step, op); i++) {
		if (!view->uses[i].write) continue;
		if (tensor != UINT32_MAX) return UINT32_MAX;
		tensor = view->uses[i].tensor;
	}
	return tensor;
}

/* The steps's ops and uses while ops in place become parts of others. */
struct joiner {
	hr__step_view *view;
	uint32_t *maker;  /* by tensor: its first op, by its new number; UINT32_MAX = none yet, or it lived before */
	uint32_t *number; /* by op: its new number */
	uint32_t ops, uses;
};

/* Whether op [op] is in place, and becomes a part of the last op. */
static bool joins_last(const struct joiner *joiner, const hr__schedule *schedule, uint32_t op)
{
	const hr__step_view *view = joiner->view;
	uint32_t tensor = written_by(view, op), index = view->op_of[op];
	if (!joiner->ops || tensor == UINT32_MAX || index == HR__SCHEDULE_NONE) return false;
	return view->ops[joiner->ops - 1].pure && joiner->maker[tensor] == joiner->ops - 1 &&
	       hr__op_purity(hr_name_text(schedule->ops[index].name)) == HR__OP_IN_PLACE;
}

/* Appends a use to the last op. */
static void keep_use(struct joiner *joiner, hr__plan_use use)
{
	hr__step_view *view = joiner->view;
	for (uint32_t i = view->ops[joiner->ops - 1].first_use; i < joiner->uses; i++) {
		if (view->uses[i].tensor != use.tensor) continue;
		view->uses[i].write |= use.write;
		return;
	}
	view->uses[joiner->uses++] = use;
	if (joiner->maker[use.tensor] == UINT32_MAX && !view->tensors[use.tensor].lived_before) joiner->maker[use.tensor] = joiner->ops - 1;
}

/* Reads the ops ahead of where they are written. */
static void join_ops(struct joiner *joiner, const hr__schedule *schedule)
{
	hr__step_view *view = joiner->view;
	hr__plan_step *step = &view->step;
	uint32_t first = 0;
	for (uint32_t op = 0; op < step->op_count; op++) {
		hr__plan_op here = view->ops[op];
		uint32_t end = end_of_uses(step, op);
		bool joins = joins_last(joiner, schedule, op);
		if (joins) {
			view->ops[joiner->ops - 1].ns += here.ns;
		} else {
			view->op_of[joiner->ops] = view->op_of[op];
			view->ops[joiner->ops++] = (hr__plan_op){ .ns = here.ns, .first_use = joiner->uses, .pure = here.pure };
		}
		joiner->number[op] = joiner->ops - 1;
		for (uint32_t i = first; i < end; i++) keep_use(joiner, view->uses[i]);
		first = end;
	}
	step->op_count = joiner->ops;
	step->use_count = joiner->uses;
	for (uint32_t i = 0; i < step->tensor_count; i++)
		if (view->tensors[i].died != HR__PLAN_NEVER) view->tensors[i].died = joiner->number[view->tensors[i].died];
}

/* Ops are marked already. */
static hr_status join_ops_in_place(hr__step_view *view, const hr__schedule *schedule)
{
	struct joiner joiner = { .view = view };
	joiner.maker = malloc(((size_t)view->step.tensor_count + 1) * sizeof *joiner.maker);
	joiner.number = malloc(((size_t)view->step.op_count + 1) * sizeof *joiner.number);
	bool enough = joiner.maker && joiner.number;
	if (enough) {
		memset(joiner.maker, 0xff, view->step.tensor_count * sizeof *joiner.maker);
		join_ops(&joiner, schedule);
	}
	free(joiner.maker);
	free(joiner.number);
	return enough ? HR_OK : hr__fail(HR_NO_HOST_MEMORY, "no memory for looking at %u ops", view->step.op_count);
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
		bool pure = purity != HR__OP_NOT_PURE && purity != HR__OP_IN_PLACE && !writes_others(view, op, end, seen);
		view->ops[op].pure = purity == HR__OP_STATISTICS || pure;
		for (uint32_t i = step->ops[op].first_use; i < end; i++) seen[view->uses[i].tensor] = true;
	}
	free(seen);
	return join_ops_in_place(view, schedule);
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
