/* active_plan.c - see active_plan.h. A plan is built in this order: the record in the planner's terms, the plan, uses by tensor,
 * the layout, and what is done at each use. */
#include <string.h>

#include "core/lms/policy/active_plan.h"

#include "core/base/sort.h"

#define UNTIMED_NS 1000u /* of an op, if times are not known */
#define LATE 4u          /* the time given to copies, and then to restores, is cut in this many parts until a layout fits */

static void *zeroed(size_t count, size_t item)
{
	void *block;
	return hr__os()->alloc((count + 1) * item, &block) ? NULL : block;
}

/* The record in the planner's terms. The caller frees the two arrays. */
static hr_status describe(const hr__record *record, hr__plan_step *step)
{
	hr__plan_op *ops = zeroed(record->ops.count, sizeof *ops);
	hr__plan_tensor *tensors = zeroed(record->tensors.count, sizeof *tensors);
	bool *used = zeroed(record->tensors.count, sizeof *used);
	*step = (hr__plan_step){ .ops = ops,
		                     .uses = record->uses.items,
		                     .tensors = tensors,
		                     .op_count = record->ops.count,
		                     .use_count = record->uses.count,
		                     .tensor_count = record->tensors.count };
	if (!ops || !tensors || !used) {
		if (used) hr__os()->free(used, (record->tensors.count + 1) * sizeof *used);
		return HR_NO_HOST_MEMORY;
	}
	for (uint32_t i = 0; i < record->ops.count; i++) {
		const hr__recorded_op *op = &HR__RECORD_AT(hr__recorded_op, record->ops, i);
		ops[i] = (hr__plan_op){ .ns = record->measured ? op->ns : UNTIMED_NS, .first_use = op->first_use };
	}
	hr__record_mark_pure(record, ops, used);
	for (uint32_t i = 0; i < record->tensors.count; i++) {
		const hr__recorded_tensor *seen = &HR__RECORD_AT(hr__recorded_tensor, record->tensors, i);
		tensors[i] = (hr__plan_tensor){ used[i] ? seen->bytes : 0, used[i] ? seen->died : HR__PLAN_NEVER,
			                            seen->created == HR__RECORD_NONE, seen->never_evict };
	}
	hr__os()->free(used, (record->tensors.count + 1) * sizeof *used);
	return HR_OK;
}

/* The tensors of the plan, and their uses. */
static hr_status index_uses(const hr__record *record, hr__active_plan *active)
{
	uint32_t tensors = record->tensors.count;
	active->tensor_count = tensors;
	active->op_count = record->ops.count;
	active->use_count = record->uses.count;
	active->created_count = 0;
	for (uint32_t i = 0; i < tensors; i++) {
		uint32_t created = HR__RECORD_AT(hr__recorded_tensor, record->tensors, i).created;
		if (created != HR__RECORD_NONE && created >= active->created_count) active->created_count = created + 1;
	}
	active->first = zeroed(tensors, sizeof *active->first);
	active->uses = zeroed(active->use_count, sizeof *active->uses);
	active->created = zeroed(active->created_count, sizeof *active->created);
	active->bytes = zeroed(tensors, sizeof *active->bytes);
	active->persists = zeroed(tensors, sizeof *active->persists);
	active->present = zeroed(tensors, sizeof *active->present);
	active->restores = zeroed(active->plan.move_count, sizeof *active->restores);
	active->turn_of = zeroed(active->op_count, sizeof *active->turn_of);
	active->kept_until = zeroed(tensors, sizeof *active->kept_until);
	if (!active->first || !active->uses || !active->created || !active->bytes || !active->persists || !active->present ||
	    !active->restores || !active->turn_of || !active->kept_until)
		return HR_NO_HOST_MEMORY;
	memset(active->created, 0xff, (active->created_count + 1) * sizeof *active->created);
	for (uint32_t i = 0; i < tensors; i++) {
		const hr__recorded_tensor *seen = &HR__RECORD_AT(hr__recorded_tensor, record->tensors, i);
		active->bytes[i] = seen->bytes;
		active->persists[i] = seen->created == HR__RECORD_NONE && seen->died == HR__PLAN_NEVER;
		if (seen->created != HR__RECORD_NONE) active->created[seen->created] = i;
		if (active->persists[i]) active->present[i] = seen->handle;
	}
	/* Counting sort of uses by tensor; ops stay in order. */
	for (uint32_t i = 0; i < active->use_count; i++) active->first[HR__RECORD_AT(hr__plan_use, record->uses, i).tensor + 1]++;
	for (uint32_t i = 0; i < tensors; i++) active->first[i + 1] += active->first[i];
	uint32_t *next = zeroed(tensors, sizeof *next);
	if (!next) return HR_NO_HOST_MEMORY;
	memcpy(next, active->first, tensors * sizeof *next);
	for (uint32_t op = 0; op < active->op_count; op++) {
		uint32_t from = HR__RECORD_AT(hr__recorded_op, record->ops, op).first_use;
		uint32_t to = op + 1 < active->op_count ? HR__RECORD_AT(hr__recorded_op, record->ops, op + 1).first_use : active->use_count;
		for (uint32_t i = from; i < to; i++) active->uses[next[HR__RECORD_AT(hr__plan_use, record->uses, i).tensor]++].op = op;
	}
	hr__os()->free(next, (tensors + 1) * sizeof *next);
	active->signature = record->signature;
	return HR_OK;
}

/* ---- turns ---- */

static void number_turns(hr__active_plan *active)
{
	const hr__plan *plan = &active->plan;
	active->turn_count = plan->turns ? plan->turn_count : active->op_count;
	for (uint32_t i = 0; i < active->turn_count; i++)
		if (!plan->turns || !plan->turns[i].again) active->turn_of[plan->turns ? plan->turns[i].op : i] = i;
	active->turn_of[active->op_count] = active->turn_count;
}

/* The op that a turn is, or that it runs before. */
static uint32_t op_of_turn(const hr__active_plan *active, uint32_t turn)
{
	return active->plan.turns ? active->plan.turns[turn].before : turn;
}

static bool runs_again(const hr__active_plan *active, uint32_t turn)
{
	return active->plan.turns && active->plan.turns[turn].again;
}

/* The use of a tensor by the op of a turn; NULL = there is none. */
static hr__planned_use *use_at(const hr__active_plan *active, uint32_t tensor, uint32_t turn)
{
	for (uint32_t k = active->first[tensor]; k < active->first[tensor + 1]; k++)
		if (active->uses[k].op == op_of_turn(active, turn)) return &active->uses[k];
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
	hr__planned_use *last = runs_again(active, move->out_after) ? NULL : use_at(active, t, move->out_after);
	hr__planned_use *copied = move->clean || runs_again(active, move->copy_after) ? NULL : use_at(active, t, move->copy_after);
	uint32_t free_at = move->gone_by + 1 + (move->gone_by < move->out_after ? active->turn_count : 0);
	if (last) {
		last->evicted = true;
		last->free_at = free_at;
	}
	if (copied) copied->copied = true;
	if (runs_again(active, move->out_after)) add_act(active, (hr__planned_act){ move->out_after, HR__AGAIN_EVICT, t, free_at });
	if (!move->clean && runs_again(active, move->copy_after) && move->copy_after != move->out_after)
		add_act(active, (hr__planned_act){ .turn = move->copy_after, .kind = HR__AGAIN_COPY, .tensor = t });
}

/* Drops from the last to the first; [next] has, by tensor, the drop that follows. */
static void arrange_drops(const hr__record *record, hr__active_plan *active, uint32_t *next)
{
	for (uint32_t t = 0; t < active->tensor_count; t++) next[t] = HR__PLAN_NEVER;
	for (uint32_t i = active->plan.drop_count; i-- > 0;) {
		const hr__plan_drop *drop = &active->plan.drops[i];
		uint32_t t = drop->tensor, op = op_of_turn(active, drop->after);
		bool again = runs_again(active, drop->after), dies = HR__RECORD_AT(hr__recorded_tensor, record->tensors, t).died == op;
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
		if (!runs_again(active, i)) continue;
		uint32_t op = plan->turns[i].op, end = op + 1 < active->op_count ? HR__RECORD_AT(hr__recorded_op, record->ops, op + 1).first_use : active->use_count;
		for (uint32_t u = HR__RECORD_AT(hr__recorded_op, record->ops, op).first_use; u < end; u++) {
			uint32_t t = HR__RECORD_AT(hr__plan_use, record->uses, u).tensor;
			const hr__plan_drop *drop = away[t] != HR__PLAN_NEVER ? &plan->drops[away[t]] : NULL;
			bool made = HR__RECORD_AT(hr__recorded_tensor, record->tensors, t).created != HR__RECORD_NONE && active->uses[active->first[t]].op == op;
			if (made && drop && drop->back_at > i) add_act(active, (hr__planned_act){ i, HR__AGAIN_DROP, t, i + 1 });
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
		if (!runs_again(active, i)) continue;
		uint32_t op = active->plan.turns[i].op, end = op + 1 < active->op_count ? HR__RECORD_AT(hr__recorded_op, record->ops, op + 1).first_use : active->use_count;
		most += end - HR__RECORD_AT(hr__recorded_op, record->ops, op).first_use;
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
		item->need = op_of_turn(active, move->needed_by) + (move->needed_by < item->before ? active->op_count : 0);
	}
}

/* Sets what is done at each use and turn, and sorts the restores. */
static hr_status arrange(const hr__record *record, hr__active_plan *active)
{
	HR_ASSERT(active->op_count > 0 || !active->plan.move_count);
	active->act_capacity = most_acts(record, active);
	active->acts = zeroed(active->act_capacity, sizeof *active->acts);
	uint32_t *by_tensor = zeroed(active->tensor_count, sizeof *by_tensor);
	if (active->acts && by_tensor) {
		for (uint32_t i = 0; i < active->plan.move_count; i++) arrange_move(active, &active->plan.moves[i]);
		arrange_drops(record, active, by_tensor);
		arrange_unwanted(record, active, by_tensor);
		hr__sort(active->acts, active->act_count, sizeof *active->acts, is_done_before, NULL);
		arrange_restores(active);
	}
	if (by_tensor) hr__os()->free(by_tensor, (active->tensor_count + 1) * sizeof *by_tensor);
	return active->acts && by_tensor ? HR_OK : HR_NO_HOST_MEMORY;
}

/* The op that is [late] / LATE of the way round the ring from [from] to [to]. */
static uint32_t between(uint32_t from, uint32_t to, uint32_t n, uint32_t late)
{
	HR_ASSERT(from < n && to < n);
	uint64_t way = (to + n - from) % n;
	return (from + (uint32_t)(way * (late < LATE ? late : LATE) / LATE)) % n;
}

/* The op at which memory is allocated for a restore: when its copy starts, or later. */
static uint32_t restore_op(const hr__plan_move *move, uint32_t n, uint32_t late)
{
	return late <= LATE ? move->starts_by : between(move->starts_by, move->needed_by, n, late - LATE);
}

/* The op until which memory counts as used: until the copy to the host is done, or earlier. */
static uint32_t freed_op(const hr__plan_move *move, uint32_t n, uint32_t late)
{
	return between(move->out_after, move->gone_by, n, late < LATE ? LATE - late : 0);
}

/* Whether a tensor keeps the address that it had before the step. */
static bool stays_in_place(const hr__recorded_tensor *seen)
{
	return seen->never_evict && seen->created == HR__RECORD_NONE;
}

/* When each tensor is on the device, and its offset then. */
static hr_status lay_out(const hr__record *record, hr__active_plan *active, uint32_t late, uint64_t most, bool *fits)
{
	uint32_t n = active->turn_count, count = 0;
	active->stay_capacity = active->tensor_count + active->plan.move_count;
	if (!active->stays) active->stays = zeroed(active->stay_capacity, sizeof *active->stays);
	if (!active->first_stay) active->first_stay = zeroed(active->tensor_count, sizeof *active->first_stay);
	uint32_t *next = zeroed(active->tensor_count, sizeof *next);
	if (!active->stays || !active->first_stay || !next) {
		if (next) hr__os()->free(next, (active->tensor_count + 1) * sizeof *next);
		return HR_NO_HOST_MEMORY;
	}
	/* One stay per tensor, and one more for each move; moves cut it in the order of their ops. */
	for (uint32_t i = 0; i < active->plan.move_count; i++) next[active->plan.moves[i].tensor]++;
	for (uint32_t t = 0; t < active->tensor_count; t++) {
		const hr__recorded_tensor *seen = &HR__RECORD_AT(hr__recorded_tensor, record->tensors, t);
		uint32_t moves = next[t], used = active->first[t + 1] - active->first[t];
		active->first_stay[t] = count;
		next[t] = count;
		if (!used || seen->bytes <= HR__SMALL_MAX || seen->owns_pages || stays_in_place(seen)) continue;
		uint32_t first = active->uses[active->first[t]].op, last = seen->died != HR__PLAN_NEVER ? seen->died : n - 1;
		bool ring = active->persists[t];
		if (!ring && seen->created == HR__RECORD_NONE) first = 0;
		if (ring && !moves) first = 0;
		count += ring && moves ? moves : moves + 1;
		active->stays[next[t]] = (hr__layout_stay){ seen->bytes, first, last, 0 };
	}
	active->first_stay[active->tensor_count] = count;
	for (uint32_t i = 0; i < active->plan.move_count; i++) {
		const hr__plan_move *move = &active->plan.moves[i];
		uint32_t t = move->tensor, begin = active->first_stay[t], end = active->first_stay[t + 1], at = next[t];
		if (begin == end) continue;
		if (!active->persists[t]) { /* one stay ends here, and the rest begins at the restore */
			hr__layout_stay rest = active->stays[at];
			active->stays[at].to = freed_op(move, n, late);
			rest.from = restore_op(move, n, late);
			active->stays[at + 1] = rest;
		} else { /* stays between moves; the last one wraps around the end of the step */
			uint32_t following = at + 1 < end ? at + 1 : begin;
			active->stays[at].bytes = HR__RECORD_AT(hr__recorded_tensor, record->tensors, t).bytes;
			active->stays[at].to = freed_op(move, n, late);
			active->stays[following].bytes = active->stays[at].bytes;
			active->stays[following].from = restore_op(move, n, late);
		}
		next[t]++;
	}
	hr__os()->free(next, (active->tensor_count + 1) * sizeof *next);
	return hr__layout_make(active->stays, count, n, most, fits);
}

/* Makes a plan; [places]: with a layout, if one is found. The less time copies and restores are given, the better it packs. */
static hr_status make_one(const hr__record *record, const hr__plan_step *step, const hr__plan_machine *machine, bool places,
                          hr__active_plan *active)
{
	hr_status status = hr__plan_make(step, machine, &active->plan);
	if (!status) status = index_uses(record, active);
	if (!status) number_turns(active);
	uint64_t taken = step->other_bytes;
	for (uint32_t i = 0; i < record->tensors.count; i++)
		if (stays_in_place(&HR__RECORD_AT(hr__recorded_tensor, record->tensors, i))) taken += step->tensors[i].bytes;
	uint64_t most = machine->memory > taken ? machine->memory - taken : 0;
	for (active->late = 0; active->late <= 2 * LATE && !status && places && !active->plan.turns; active->late++) {
		status = lay_out(record, active, active->late, most, &active->laid_out);
		if (!status && active->laid_out) break;
	}
	if (status) return status;
	for (uint32_t i = 0; active->laid_out && i < active->first_stay[active->tensor_count]; i++)
		if (active->stays[i].offset + active->stays[i].bytes > active->layout_bytes)
			active->layout_bytes = active->stays[i].offset + active->stays[i].bytes;
	/* A restore requested before the link has time for it only occupies memory. */
	for (uint32_t i = 0; i < active->plan.move_count; i++)
		active->plan.moves[i].in_before = restore_op(&active->plan.moves[i], active->turn_count, active->laid_out ? active->late : 0);
	status = arrange(record, active);
	if (status) return status;
	active->compute_ns = hr__plan_compute_ns(step);
	active->is_set = true;
	return HR_OK;
}

/* Tries plans with slightly less memory too, which may pack much better. */
static hr_status make_best(const hr__record *record, const hr__plan_step *step, const hr__plan_machine *machine, bool places,
                           hr__active_plan *best)
{
	hr_status status = make_one(record, step, machine, places, best);
	best->placing = places;
	for (uint32_t less = 1; less <= 2 && !status && best->late > LATE / 2; less++) {
		hr__active_plan other = { 0 };
		hr__plan_machine smaller = *machine;
		smaller.memory -= machine->memory / 100 * less;
		if (make_one(record, step, &smaller, places, &other) || other.late >= best->late) {
			hr__active_plan_free(&other);
		} else {
			hr__active_plan_free(best);
			*best = other;
			best->placing = true;
		}
	}
	return status;
}

hr_status hr__active_plan_make(const hr__record *record, uint64_t other_bytes, const hr__plan_machine *machine, bool places,
                               hr__active_plan *out, uint64_t *bound_ns)
{
	HR_ASSERT(!record->broken);
	hr__plan_step step;
	*out = (hr__active_plan){ 0 };
	hr_status status = describe(record, &step);
	step.other_bytes = other_bytes;
	if (!status) status = make_best(record, &step, machine, places, out);
	if (!status) status = hr__plan_bound(&step, machine, bound_ns);
	if (step.ops) hr__os()->free((void *)(uintptr_t)step.ops, (step.op_count + 1) * sizeof *step.ops);
	if (step.tensors) hr__os()->free((void *)(uintptr_t)step.tensors, (step.tensor_count + 1) * sizeof *step.tensors);
	if (status) hr__active_plan_free(out);
	return status;
}

void hr__active_plan_free(hr__active_plan *active)
{
	if (active->first) hr__os()->free(active->first, (active->tensor_count + 1) * sizeof *active->first);
	if (active->uses) hr__os()->free(active->uses, (active->use_count + 1) * sizeof *active->uses);
	if (active->created) hr__os()->free(active->created, (active->created_count + 1) * sizeof *active->created);
	if (active->bytes) hr__os()->free(active->bytes, (active->tensor_count + 1) * sizeof *active->bytes);
	if (active->persists) hr__os()->free(active->persists, (active->tensor_count + 1) * sizeof *active->persists);
	if (active->present) hr__os()->free(active->present, (active->tensor_count + 1) * sizeof *active->present);
	if (active->restores) hr__os()->free(active->restores, (active->plan.move_count + 1) * sizeof *active->restores);
	if (active->turn_of) hr__os()->free(active->turn_of, (active->op_count + 1) * sizeof *active->turn_of);
	if (active->acts) hr__os()->free(active->acts, (active->act_capacity + 1) * sizeof *active->acts);
	if (active->kept_until) hr__os()->free(active->kept_until, (active->tensor_count + 1) * sizeof *active->kept_until);
	if (active->stays) hr__os()->free(active->stays, (active->stay_capacity + 1) * sizeof *active->stays);
	if (active->first_stay) hr__os()->free(active->first_stay, (active->tensor_count + 1) * sizeof *active->first_stay);
	hr__plan_free(&active->plan);
	*active = (hr__active_plan){ 0 };
}
