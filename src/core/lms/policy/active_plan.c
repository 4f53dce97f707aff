/* active_plan.c - see active_plan.h. A plan is built in this order: the record in the planner's terms, the plan, uses by tensor,
 * turns, the layout, and what is done at each use and turn. */
#include <string.h>

#include "core/lms/policy/active_plan.h"

#include "core/base/sort.h"
#include "core/lms/plan/plan_ring.h"

#define UNTIMED_NS 1000u /* of an op, if times are not known */
#define LATE_PART 100u /* late moves may take this part of a step until a plan for less memory is tried */
#define FOUND_MAX 4u   /* tries after which the best layout is taken, if one was found */
#define LESS_MAX 16u   /* percent of memory that a plan may leave unused for its layout */

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

/* Most bytes of tensors that have no place because they are small, at a time. Those of a step that ends after its last use count until
 * the end. */
static uint64_t small_bytes(const hr__record *record, const hr__active_plan *active)
{
	uint64_t before = 0, most = 0;
	for (uint32_t op = 0; op < active->op_count; op++) {
		uint64_t dead = 0;
		for (uint32_t u = hr__record_first_use(record, op); u < hr__record_first_use(record, op + 1); u++) {
			uint32_t t = HR__RECORD_AT(hr__plan_use, record->uses, u).tensor;
			const hr__recorded_tensor *seen = &HR__RECORD_AT(hr__recorded_tensor, record->tensors, t);
			if (seen->bytes > HR__SMALL_MAX || seen->created == HR__RECORD_NONE) continue;
			if (active->uses[active->first[t]].op == op) before += seen->bytes;
			if (seen->died != HR__PLAN_NEVER && active->uses[active->first[t + 1] - 1].op == op) dead += seen->bytes;
		}
		if (before > most) most = before;
		before -= dead;
	}
	for (uint32_t t = 0; t < active->tensor_count; t++) {
		const hr__recorded_tensor *seen = &HR__RECORD_AT(hr__recorded_tensor, record->tensors, t);
		if (seen->bytes <= HR__SMALL_MAX && seen->created == HR__RECORD_NONE && active->first[t] < active->first[t + 1]) most += seen->bytes;
	}
	return most;
}

/* Bytes of memory that a layout may use: tensors that keep their addresses, or are small, are outside of it. */
static uint64_t layout_room(const hr__record *record, const hr__plan_step *step, const hr__plan_machine *machine, const hr__active_plan *active)
{
	uint64_t taken = step->other_bytes + small_bytes(record, active);
	for (uint32_t i = 0; i < record->tensors.count; i++)
		if (hr__active_plan_stays_in_place(&HR__RECORD_AT(hr__recorded_tensor, record->tensors, i))) taken += step->tensors[i].bytes;
	return machine->memory > taken ? machine->memory - taken : 0;
}

/* Makes a plan for [memory], with a layout in all memory, if one is found; only if a step takes less than [most_ns], because finding a
 * layout can take as long as the plan. */
static hr_status make_one(const hr__record *record, const hr__plan_step *step, const hr__plan_machine *machine, uint64_t memory,
                          uint64_t most_ns, hr__active_plan *active)
{
	hr__plan_machine smaller = *machine;
	smaller.memory = memory;
	hr_status status = hr__plan_make(step, &smaller, &active->plan);
	if (!status) status = index_uses(record, active);
	if (status) return status;
	hr__active_plan_number_turns(active);
	/* A restore requested before the link has time for it only occupies memory. */
	for (uint32_t i = 0; i < active->plan.move_count; i++) active->plan.moves[i].in_before = active->plan.moves[i].starts_by;
	if (active->plan.step_ns < most_ns) status = hr__active_plan_lay_out(record, machine, active, layout_room(record, step, machine, active));
	for (uint32_t i = 0; !status && active->laid_out && i < active->first_stay[active->tensor_count]; i++)
		if (active->stays[i].offset + active->stays[i].bytes > active->layout_bytes)
			active->layout_bytes = active->stays[i].offset + active->stays[i].bytes;
	if (!status) status = hr__active_plan_arrange(record, active);
	if (status) return status;
	active->compute_ns = hr__plan_compute_ns(step);
	active->is_set = true;
	return HR_OK;
}

static uint64_t late_ns(const hr__active_plan *active, const hr__plan_machine *machine)
{
	return hr__plan_ring_copy_ns(active->late_bytes, machine->in_bytes_per_s, 0);
}

/* The time of a step with the late moves of its layout; a plan without one is worse than all others. */
static uint64_t laid_out_ns(const hr__active_plan *active, const hr__plan_machine *machine)
{
	return active->laid_out ? active->plan.step_ns + late_ns(active, machine) : UINT64_MAX;
}

/* Plans for less memory than there is have layouts that fit, and in which fewer moves are late. They also take longer: once one does so even
 * without late moves, those for still less memory are not tried. */
static hr_status make_best(const hr__record *record, const hr__plan_step *step, const hr__plan_machine *machine, bool places,
                           hr__active_plan *best)
{
	hr_status status = make_one(record, step, machine, machine->memory, places ? UINT64_MAX : 0, best);
	uint32_t found = 0; /* plans that have a layout */
	for (uint32_t percent = 1; places && percent <= LESS_MAX && !status; percent *= 2) {
		hr__active_plan other = { 0 };
		found += best->laid_out;
		if (found == FOUND_MAX || (found && late_ns(best, machine) <= best->plan.step_ns / LATE_PART)) break;
		uint64_t most_ns = laid_out_ns(best, machine);
		bool failed = make_one(record, step, machine, machine->memory - machine->memory / 100 * percent, most_ns, &other) != HR_OK;
		bool too_long = !failed && other.plan.step_ns >= most_ns;
		if (failed || laid_out_ns(&other, machine) >= most_ns) {
			hr__active_plan_free(&other);
		} else {
			hr__active_plan_free(best);
			*best = other;
		}
		if (too_long) break;
	}
	best->placing = places;
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
	if (active->places) hr__os()->free(active->places, (active->place_capacity + 1) * sizeof *active->places);
	if (active->first_stay) hr__os()->free(active->first_stay, (active->tensor_count + 1) * sizeof *active->first_stay);
	hr__plan_free(&active->plan);
	*active = (hr__active_plan){ 0 };
}
