/* force.c - see force.h. A plan is built in this order: the record in the planner's terms, the plan, uses by tensor, the layout,
 * and what is done at each use. */
#include <string.h>

#include "core/lms/policy/force.h"

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
	*step = (hr__plan_step){ .ops = ops, .uses = record->uses.items, .tensors = tensors, .op_count = record->ops.count,
		                     .use_count = record->uses.count, .tensor_count = record->tensors.count };
	if (!ops || !tensors || !used) {
		if (used) hr__os()->free(used, (record->tensors.count + 1) * sizeof *used);
		return HR_NO_HOST_MEMORY;
	}
	for (uint32_t i = 0; i < record->ops.count; i++) {
		const hr__seen_op *op = &HR__AT(hr__seen_op, record->ops, i);
		ops[i] = (hr__plan_op){ record->measured ? op->ns : UNTIMED_NS, op->first_use };
	}
	for (uint32_t i = 0; i < record->uses.count; i++) used[HR__AT(hr__plan_use, record->uses, i).tensor] = true;
	for (uint32_t i = 0; i < record->tensors.count; i++) {
		const hr__seen_tensor *seen = &HR__AT(hr__seen_tensor, record->tensors, i);
		tensors[i] = (hr__plan_tensor){ used[i] ? seen->bytes : 0, used[i] ? seen->died : HR__PLAN_NEVER, seen->created == HR__NONE, seen->stays };
	}
	hr__os()->free(used, (record->tensors.count + 1) * sizeof *used);
	return HR_OK;
}

/* The tensors of the plan, and their uses. */
static hr_status index_uses(const hr__record *record, hr__force *force)
{
	uint32_t tensors = record->tensors.count;
	force->tensor_count = tensors;
	force->op_count = record->ops.count;
	force->use_count = record->uses.count;
	force->created_count = 0;
	for (uint32_t i = 0; i < tensors; i++) {
		uint32_t created = HR__AT(hr__seen_tensor, record->tensors, i).created;
		if (created != HR__NONE && created >= force->created_count) force->created_count = created + 1;
	}
	force->first = zeroed(tensors, sizeof *force->first);
	force->uses = zeroed(force->use_count, sizeof *force->uses);
	force->created = zeroed(force->created_count, sizeof *force->created);
	force->bytes = zeroed(tensors, sizeof *force->bytes);
	force->lives_on = zeroed(tensors, sizeof *force->lives_on);
	force->present = zeroed(tensors, sizeof *force->present);
	force->returns = zeroed(force->plan.move_count, sizeof *force->returns);
	if (!force->first || !force->uses || !force->created || !force->bytes || !force->lives_on || !force->present || !force->returns)
		return HR_NO_HOST_MEMORY;
	memset(force->created, 0xff, (force->created_count + 1) * sizeof *force->created);
	for (uint32_t i = 0; i < tensors; i++) {
		const hr__seen_tensor *seen = &HR__AT(hr__seen_tensor, record->tensors, i);
		force->bytes[i] = seen->bytes;
		force->lives_on[i] = seen->created == HR__NONE && seen->died == HR__PLAN_NEVER;
		if (seen->created != HR__NONE) force->created[seen->created] = i;
		if (force->lives_on[i]) force->present[i] = seen->handle;
	}
	/* Counting sort of uses by tensor; ops stay in order. */
	for (uint32_t i = 0; i < force->use_count; i++) force->first[HR__AT(hr__plan_use, record->uses, i).tensor + 1]++;
	for (uint32_t i = 0; i < tensors; i++) force->first[i + 1] += force->first[i];
	uint32_t *next = zeroed(tensors, sizeof *next);
	if (!next) return HR_NO_HOST_MEMORY;
	memcpy(next, force->first, tensors * sizeof *next);
	for (uint32_t op = 0; op < force->op_count; op++) {
		uint32_t from = HR__AT(hr__seen_op, record->ops, op).first_use;
		uint32_t to = op + 1 < force->op_count ? HR__AT(hr__seen_op, record->ops, op + 1).first_use : force->use_count;
		for (uint32_t i = from; i < to; i++) force->uses[next[HR__AT(hr__plan_use, record->uses, i).tensor]++].op = op;
	}
	hr__os()->free(next, (tensors + 1) * sizeof *next);
	force->signature = record->signature;
	return HR_OK;
}

/* Order of restores: by the call before which they are requested, then by the call that needs them, then as in the plan. Until they
 * are sorted, [tensor] is the number of the move. */
static bool is_asked_before(const hr__force *force, const hr__comeback *a, const hr__comeback *b)
{
	uint32_t n = force->op_count;
	uint32_t a_distance = (force->plan.moves[a->tensor].needed_by + n - a->before) % n;
	uint32_t b_distance = (force->plan.moves[b->tensor].needed_by + n - b->before) % n;
	if (a->before != b->before) return a->before < b->before;
	return a_distance != b_distance ? a_distance < b_distance : a->tensor < b->tensor;
}

static void sift_return(hr__force *force, uint32_t at, uint32_t count)
{
	hr__comeback *heap = force->returns, item = heap[at];
	for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
		if (child + 1 < count && is_asked_before(force, &heap[child], &heap[child + 1])) child++;
		if (!is_asked_before(force, &item, &heap[child])) break;
		heap[at] = heap[child];
	}
	heap[at] = item;
}

/* Heap sort. Insertion sort would take quadratic time, because a step that goes forward and back requests restores in reverse
 * order. */
static void sort_returns(hr__force *force, uint32_t count)
{
	for (uint32_t i = count / 2; i-- > 0;) sift_return(force, i, count);
	for (uint32_t i = count; i-- > 1;) {
		hr__comeback last = force->returns[i];
		force->returns[i] = force->returns[0];
		force->returns[0] = last;
		sift_return(force, 0, i);
	}
}

/* Sets what is done at each use, and sorts the restores. */
static void arrange(hr__force *force)
{
	for (uint32_t i = 0; i < force->plan.move_count; i++) {
		const hr__plan_move *move = &force->plan.moves[i];
		for (uint32_t k = force->first[move->tensor]; k < force->first[move->tensor + 1]; k++) {
			if (force->uses[k].op == move->out_after) force->uses[k].leaves = true;
			if (force->uses[k].op == move->copy_after && !move->clean) force->uses[k].copied = true;
		}
	}
	uint32_t count = 0;
	for (uint32_t i = 0; i < force->plan.move_count; i++) force->returns[count++] = (hr__comeback){ force->plan.moves[i].in_before, i, 0 };
	sort_returns(force, count);
	for (uint32_t i = 0; i < count; i++) {
		hr__comeback *item = &force->returns[i];
		const hr__plan_move *move = &force->plan.moves[item->tensor];
		item->tensor = move->tensor;
		item->need = move->needed_by + (move->needed_by < item->before ? force->op_count : 0);
	}
}

/* The op that is [late] / LATE of the way round the ring from [from] to [to]. */
static uint32_t between(uint32_t from, uint32_t to, uint32_t n, uint32_t late)
{
	uint64_t way = (to + n - from) % n;
	return (from + (uint32_t)(way * (late < LATE ? late : LATE) / LATE)) % n;
}

/* The op at which memory is allocated for a restore: when its copy starts, or later. */
static uint32_t return_op(const hr__plan_move *move, uint32_t n, uint32_t late)
{
	return late <= LATE ? move->starts_by : between(move->starts_by, move->needed_by, n, late - LATE);
}

/* The op until which memory counts as used: until the copy to the host is done, or earlier. */
static uint32_t gone_op(const hr__plan_move *move, uint32_t n, uint32_t late)
{
	return between(move->out_after, move->gone_by, n, late < LATE ? LATE - late : 0);
}

/* When each tensor is on the device, and its offset then. */
static hr_status lay_out(const hr__record *record, hr__force *force, uint32_t late, uint64_t most, bool *fits)
{
	uint32_t n = force->op_count, count = 0;
	force->stay_capacity = force->tensor_count + force->plan.move_count;
	if (!force->stays) force->stays = zeroed(force->stay_capacity, sizeof *force->stays);
	if (!force->first_stay) force->first_stay = zeroed(force->tensor_count, sizeof *force->first_stay);
	uint32_t *next = zeroed(force->tensor_count, sizeof *next);
	if (!force->stays || !force->first_stay || !next) {
		if (next) hr__os()->free(next, (force->tensor_count + 1) * sizeof *next);
		return HR_NO_HOST_MEMORY;
	}
	/* One stay per tensor, and one more for each move; moves cut it in the order of their ops. */
	for (uint32_t i = 0; i < force->plan.move_count; i++) next[force->plan.moves[i].tensor]++;
	for (uint32_t t = 0; t < force->tensor_count; t++) {
		const hr__seen_tensor *seen = &HR__AT(hr__seen_tensor, record->tensors, t);
		uint32_t moves = next[t], used = force->first[t + 1] - force->first[t];
		force->first_stay[t] = count;
		next[t] = count;
		if (!used || seen->bytes <= HR__SMALL_MAX || seen->apart) continue;
		uint32_t first = force->uses[force->first[t]].op, last = seen->died != HR__PLAN_NEVER ? seen->died : n - 1;
		bool ring = force->lives_on[t];
		if (!ring && seen->created == HR__NONE) first = 0;
		if (ring && !moves) first = 0;
		count += ring && moves ? moves : moves + 1;
		force->stays[next[t]] = (hr__stay){ seen->bytes, first, last, 0 };
	}
	force->first_stay[force->tensor_count] = count;
	for (uint32_t i = 0; i < force->plan.move_count; i++) {
		const hr__plan_move *move = &force->plan.moves[i];
		uint32_t t = move->tensor, begin = force->first_stay[t], end = force->first_stay[t + 1], at = next[t];
		if (begin == end) continue;
		if (!force->lives_on[t]) { /* one stay ends here, and the rest begins at the restore */
			hr__stay rest = force->stays[at];
			force->stays[at].to = gone_op(move, n, late);
			rest.from = return_op(move, n, late);
			force->stays[at + 1] = rest;
		} else { /* stays between moves; the last one wraps around the end of the step */
			uint32_t following = at + 1 < end ? at + 1 : begin;
			force->stays[at].bytes = HR__AT(hr__seen_tensor, record->tensors, t).bytes;
			force->stays[at].to = gone_op(move, n, late);
			force->stays[following].bytes = force->stays[at].bytes;
			force->stays[following].from = return_op(move, n, late);
		}
		next[t]++;
	}
	hr__os()->free(next, (force->tensor_count + 1) * sizeof *next);
	return hr__layout_make(force->stays, count, n, most, fits);
}

/* Makes a plan; [places]: with a layout, if one is found. The less time copies and restores are given, the better it packs. */
static hr_status draw_up(const hr__record *record, const hr__plan_step *step, const hr__plan_machine *machine, bool places,
                         hr__force *force)
{
	hr_status status = hr__plan_make(step, machine, &force->plan);
	if (!status) status = index_uses(record, force);
	for (force->late = 0; force->late <= 2 * LATE && !status && places; force->late++) {
		status = lay_out(record, force, force->late, machine->memory, &force->laid_out);
		if (!status && force->laid_out) break;
	}
	if (status) return status;
	/* A restore requested before the link has time for it only occupies memory. */
	for (uint32_t i = 0; i < force->plan.move_count; i++)
		force->plan.moves[i].in_before = return_op(&force->plan.moves[i], step->op_count, force->laid_out ? force->late : 0);
	arrange(force);
	force->compute_ns = hr__plan_compute_ns(step);
	force->is_set = true;
	return HR_OK;
}

/* Tries plans with slightly less memory too, which may pack much better. */
static hr_status draw_best(const hr__record *record, const hr__plan_step *step, const hr__plan_machine *machine, bool places,
                           hr__force *best)
{
	hr_status status = draw_up(record, step, machine, places, best);
	best->placing = places;
	for (uint32_t less = 1; less <= 2 && !status && best->late > LATE / 2; less++) {
		hr__force other = { 0 };
		hr__plan_machine smaller = *machine;
		smaller.memory -= machine->memory / 100 * less;
		if (draw_up(record, step, &smaller, places, &other) || other.late >= best->late) {
			hr__force_free(&other);
		} else {
			hr__force_free(best);
			*best = other;
			best->placing = true;
		}
	}
	return status;
}

hr_status hr__force_make(const hr__record *record, uint64_t other_bytes, const hr__plan_machine *machine, bool places, hr__force *out,
                         uint64_t *bound_ns)
{
	hr__plan_step step;
	*out = (hr__force){ 0 };
	hr_status status = describe(record, &step);
	step.other_bytes = other_bytes;
	if (!status) status = draw_best(record, &step, machine, places, out);
	if (!status) status = hr__plan_bound(&step, machine, bound_ns);
	if (step.ops) hr__os()->free((void *)(uintptr_t)step.ops, (step.op_count + 1) * sizeof *step.ops);
	if (step.tensors) hr__os()->free((void *)(uintptr_t)step.tensors, (step.tensor_count + 1) * sizeof *step.tensors);
	if (status) hr__force_free(out);
	return status;
}

void hr__force_free(hr__force *force)
{
	if (force->first) hr__os()->free(force->first, (force->tensor_count + 1) * sizeof *force->first);
	if (force->uses) hr__os()->free(force->uses, (force->use_count + 1) * sizeof *force->uses);
	if (force->created) hr__os()->free(force->created, (force->created_count + 1) * sizeof *force->created);
	if (force->bytes) hr__os()->free(force->bytes, (force->tensor_count + 1) * sizeof *force->bytes);
	if (force->lives_on) hr__os()->free(force->lives_on, (force->tensor_count + 1) * sizeof *force->lives_on);
	if (force->present) hr__os()->free(force->present, (force->tensor_count + 1) * sizeof *force->present);
	if (force->returns) hr__os()->free(force->returns, (force->plan.move_count + 1) * sizeof *force->returns);
	if (force->stays) hr__os()->free(force->stays, (force->stay_capacity + 1) * sizeof *force->stays);
	if (force->first_stay) hr__os()->free(force->first_stay, (force->tensor_count + 1) * sizeof *force->first_stay);
	hr__plan_free(&force->plan);
	*force = (hr__force){ 0 };
}
