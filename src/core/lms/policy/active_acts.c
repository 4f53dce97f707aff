/* active_acts.c - what is done at each use and turn of the active plan, and when restores are requested. See active_plan.h. */
#include "core/lms/policy/active_plan.h"

#include "core/base/sort.h"

/* ---- turns ---- */

void hr__active_plan_number_turns(hr__active_plan *active)
{
	const hr__plan *plan = &active->plan;
	active->turn_count = plan->turns ? plan->turn_count : active->op_count;
	for (uint32_t i = 0; i < active->turn_count; i++)
		if (!plan->turns || !plan->turns[i].again) active->turn_of[plan->turns ? plan->turns[i].op : i] = i;
	active->turn_of[active->op_count] = active->turn_count;
}

/* The use of a tensor by the op of a turn; NULL = there is none. */
static hr__planned_use *use_at(const hr__active_plan *active, uint32_t tensor, uint32_t turn)
{
	for (uint32_t k = active->first[tensor]; k < active->first[tensor + 1]; k++)
		if (active->uses[k].op == hr__active_plan_op_of(active, turn)) return &active->uses[k];
	return NULL;
}

static void add_act(hr__active_plan *active, hr__planned_act act)
{
	HR_ASSERT(active->act_count < active->act_capacity && act.turn < active->turn_count);
	active->acts[active->act_count++] = act;
}

static void arrange_move(hr__active_plan *active, const hr__plan_move *move)
{
	uint32_t t = move->tensor;
	hr__planned_use *last = hr__active_plan_is_again(active, move->out_after) ? NULL : use_at(active, t, move->out_after);
	hr__planned_use *copied = move->clean || hr__active_plan_is_again(active, move->copy_after) ? NULL : use_at(active, t, move->copy_after);
	uint32_t free_at = move->gone_by + 1 + (move->gone_by < move->out_after ? active->turn_count : 0);
	if (last) {
		last->evicted = true;
		last->free_at = free_at;
	}
	if (copied) copied->copied = true;
	if (hr__active_plan_is_again(active, move->out_after)) add_act(active, (hr__planned_act){ move->out_after, HR__AGAIN_EVICT, t, free_at });
	if (!move->clean && hr__active_plan_is_again(active, move->copy_after) && move->copy_after != move->out_after)
		add_act(active, (hr__planned_act){ .turn = move->copy_after, .kind = HR__AGAIN_COPY, .tensor = t });
}

/* Drops from the last to the first; [next] has, by tensor, the drop that follows. */
static void arrange_drops(const hr__record *record, hr__active_plan *active, uint32_t *next)
{
	for (uint32_t t = 0; t < active->tensor_count; t++) next[t] = HR__PLAN_NEVER;
	for (uint32_t i = active->plan.drop_count; i-- > 0;) {
		const hr__plan_drop *drop = &active->plan.drops[i];
		uint32_t t = drop->tensor, op = hr__active_plan_op_of(active, drop->after);
		bool again = hr__active_plan_is_again(active, drop->after), dies = HR__RECORD_AT(hr__recorded_tensor, record->tensors, t).died == op;
		hr__planned_use *use = again || dies ? NULL : use_at(active, t, drop->after);
		if (use) {
			use->dropped = true;
			use->free_at = drop->after + 1;
		}
		if (again) add_act(active, (hr__planned_act){ drop->after, HR__AGAIN_DROP, t, drop->after + 1 });
		if (drop->back_at != HR__PLAN_NEVER)
			add_act(active, (hr__planned_act){ drop->back_at, HR__AGAIN_MAKE, t,
			                                   next[t] == HR__PLAN_NEVER ? HR__PLAN_NEVER : active->plan.drops[next[t]].after });
		next[t] = i;
	}
}

/* Outputs that an op makes when it runs again although the plan does not keep them: dropped again at once. [away] has, by tensor, the
 * first drop that is not over. */
static void arrange_unwanted(const hr__record *record, hr__active_plan *active, uint32_t *away)
{
	const hr__plan *plan = &active->plan;
	uint32_t begun = 0;
	for (uint32_t t = 0; t < active->tensor_count; t++) away[t] = HR__PLAN_NEVER;
	for (uint32_t i = 0; i < active->turn_count; i++) {
		for (; begun < plan->drop_count && plan->drops[begun].after < i; begun++) away[plan->drops[begun].tensor] = begun;
		if (!hr__active_plan_is_again(active, i)) continue;
		uint32_t op = plan->turns[i].op, end = hr__record_first_use(record, op + 1);
		for (uint32_t u = hr__record_first_use(record, op); u < end; u++) {
			uint32_t t = HR__RECORD_AT(hr__plan_use, record->uses, u).tensor;
			const hr__plan_drop *drop = away[t] != HR__PLAN_NEVER ? &plan->drops[away[t]] : NULL;
			if (hr__active_plan_creates(record, active, op, t) && drop && drop->back_at > i) add_act(active, (hr__planned_act){ i, HR__AGAIN_DROP, t, i + 1 });
		}
	}
}

static bool is_done_before(const void *left, const void *right, const void *context)
{
	const hr__planned_act *a = left, *b = right;
	(void)context;
	if (a->turn != b->turn) return a->turn < b->turn;
	return a->kind != b->kind ? a->kind < b->kind : a->tensor < b->tensor;
}

/* Most acts: two for each move and drop, and one for each output that is made and not kept. */
static uint32_t most_acts(const hr__record *record, const hr__active_plan *active)
{
	uint32_t most = 2 * (active->plan.move_count + active->plan.drop_count);
	for (uint32_t i = 0; i < active->turn_count; i++) {
		if (!hr__active_plan_is_again(active, i)) continue;
		uint32_t op = active->plan.turns[i].op;
		most += hr__record_first_use(record, op + 1) - hr__record_first_use(record, op);
	}
	return most;
}

/* ---- what is done when ---- */

/* Order of restores: by the turn before which they are requested, then by the turn that needs them, then as in the plan. Until they
 * are sorted, [tensor] is the number of the move. */
static bool is_requested_before(const void *left, const void *right, const void *context)
{
	const hr__active_plan *active = context;
	const hr__planned_restore *a = left, *b = right;
	uint32_t n = active->turn_count;
	uint32_t a_distance = (active->plan.moves[a->tensor].needed_by + n - a->before) % n;
	uint32_t b_distance = (active->plan.moves[b->tensor].needed_by + n - b->before) % n;
	if (a->before != b->before) return a->before < b->before;
	return a_distance != b_distance ? a_distance < b_distance : a->tensor < b->tensor;
}

static void arrange_restores(hr__active_plan *active)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < active->plan.move_count; i++)
		active->restores[count++] = (hr__planned_restore){ active->plan.moves[i].in_before, i, 0 };
	hr__sort(active->restores, count, sizeof *active->restores, is_requested_before, active);
	for (uint32_t i = 0; i < count; i++) {
		hr__planned_restore *item = &active->restores[i];
		const hr__plan_move *move = &active->plan.moves[item->tensor];
		item->tensor = move->tensor;
		item->need = hr__active_plan_op_of(active, move->needed_by) + (move->needed_by < item->before ? active->op_count : 0);
	}
}

hr_status hr__active_plan_arrange(const hr__record *record, hr__active_plan *active)
{
	HR_ASSERT(active->op_count > 0 || !active->plan.move_count);
	active->act_capacity = most_acts(record, active);
	void *acts, *by_tensor = NULL;
	size_t bytes = ((size_t)active->tensor_count + 1) * sizeof(uint32_t);
	if (hr__os()->alloc(((size_t)active->act_capacity + 1) * sizeof *active->acts, &acts)) return HR_NO_HOST_MEMORY;
	active->acts = acts;
	if (!hr__os()->alloc(bytes, &by_tensor)) {
		for (uint32_t i = 0; i < active->plan.move_count; i++) arrange_move(active, &active->plan.moves[i]);
		arrange_drops(record, active, by_tensor);
		arrange_unwanted(record, active, by_tensor);
		hr__sort(active->acts, active->act_count, sizeof *active->acts, is_done_before, NULL);
		arrange_restores(active);
	}
	if (!by_tensor) return HR_NO_HOST_MEMORY;
	hr__os()->free(by_tensor, bytes);
	return HR_OK;
}
