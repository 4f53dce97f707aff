/* turns.c - see turns.h. One pass over the ops of the step. */
#include "core/lms/plan/recompute/turns.h"

#include <string.h>

#include "core/base/assert.h"

#define TURNS_PER_OP 4u     /* most turns, as a multiple of the ops */
#define INSTANCES_PER_USE 4u
#define PRICED_OPS_MAX 256u /* most ops of a chain that is priced */

enum { UNBORN, RESIDENT, DROPPED, DEAD };

typedef struct hr__turns_frame {
	uint32_t op, input; /* the op that runs again, and the next of its inputs to look at */
	uint32_t tensor;  /* for which it runs */
	uint32_t ghosts;  /* in a row, up to this tensor */
} hr__turns_frame;

/* ---- memory ---- */

bool hr__turns_open(hr__turns *turns, const hr__recipes *recipes)
{
	const hr__plan_step *step = recipes->ring->step;
	*turns = (hr__turns){ .recipes = recipes };
	hr__plan_scratch *scratch = &turns->scratch;
	uint64_t gaps = recipes->ring->gap_count, tensors = step->tensor_count, ops = step->op_count;
	uint64_t room = ops * TURNS_PER_OP + 64, instances = tensors + step->use_count * (uint64_t)INSTANCES_PER_USE + 64;
	if (room >= UINT32_MAX || instances >= UINT32_MAX) return false;
	turns->room = (uint32_t)room;
	turns->instance_room = (uint32_t)instances;
	if ((turns->dropped = hr__plan_scratch_take(scratch, gaps, sizeof(bool))) != NULL &&
	    (turns->banned = hr__plan_scratch_take(scratch, gaps, sizeof(bool))) != NULL &&
	    (turns->brief = hr__plan_scratch_take(scratch, tensors, sizeof(bool))) != NULL &&
	    (turns->held = hr__plan_scratch_take(scratch, room, sizeof(hr__held))) != NULL &&
	    (turns->price_ns = hr__plan_scratch_take(scratch, gaps, sizeof(uint64_t))) != NULL &&
	    (turns->needed_at = hr__plan_scratch_take(scratch, gaps, sizeof(uint32_t))) != NULL &&
	    (turns->early_bytes = hr__plan_scratch_take(scratch, gaps, sizeof(uint64_t))) != NULL &&
	    (turns->early_until = hr__plan_scratch_take(scratch, gaps, sizeof(uint32_t))) != NULL &&
	    (turns->turns = hr__plan_scratch_take(scratch, room, sizeof(hr__plan_turn))) != NULL &&
	    (turns->turn_of = hr__plan_scratch_take(scratch, ops, sizeof(uint32_t))) != NULL &&
	    (turns->occupied = hr__plan_scratch_take(scratch, room + 2, sizeof(uint64_t))) != NULL &&
	    (turns->change = hr__plan_scratch_take(scratch, room + 2, sizeof(uint64_t))) != NULL &&
	    (turns->instances = hr__plan_scratch_take(scratch, instances, sizeof(hr__instance))) != NULL &&
	    (turns->tensors = hr__plan_scratch_take(scratch, tensors, sizeof(hr__turns_tensor))) != NULL &&
	    (turns->stamp = hr__plan_scratch_take(scratch, ops, sizeof(uint32_t))) != NULL &&
	    (turns->stack = hr__plan_scratch_take(scratch, ops + 1, sizeof(hr__turns_frame))) != NULL &&
	    (turns->price_stack = hr__plan_scratch_take(scratch, ops + 1, sizeof(hr__turns_frame))) != NULL)
		return true;
	hr__turns_close(turns);
	return false;
}

void hr__turns_close(hr__turns *turns)
{
	hr__plan_scratch_free(&turns->scratch);
}

/* ---- instances ---- */

static bool add_instance(hr__turns *turns, hr__instance instance, uint32_t *index)
{
	if (turns->instance_count == turns->instance_room) return false;
	*index = turns->instance_count;
	turns->instances[turns->instance_count++] = instance;
	return true;
}

/* Whether there is a replica that can be used before op [op]. */
static bool has_replica(const hr__turns *turns, uint32_t tensor, uint32_t op)
{
	if (turns->tensors[tensor].replica == HR__PLAN_NEVER) return false;
	HR_ASSERT(turns->tensors[tensor].touched <= op);
	return !turns->brief[tensor] || turns->tensors[tensor].touched == op;
}

/* A replica is needed by turn [turn], before op [before]. */
static void hold_replica(hr__turns *turns, uint32_t tensor, uint32_t turn, uint32_t before)
{
	const hr__instance *replica = &turns->instances[turns->tensors[tensor].replica];
	HR_ASSERT(has_replica(turns, tensor, before));
	if (turns->tensors[tensor].touched < before && turns->tensors[tensor].bytes >= turns->priced_bytes && turns->held_count < turns->room)
		turns->held[turns->held_count++] = (hr__held){ tensor, replica->last + 1, turn };
	turns->tensors[tensor].touched = before;
}

/* Counts the memory of a replica after the turn that made it. */
static void end_replica(hr__turns *turns, uint32_t tensor)
{
	if (turns->tensors[tensor].replica == HR__PLAN_NEVER) return;
	const hr__instance *replica = &turns->instances[turns->tensors[tensor].replica];
	turns->change[replica->made + 1] += turns->tensors[tensor].bytes;
	turns->change[replica->last + 1] -= turns->tensors[tensor].bytes;
	turns->tensors[tensor].replica = HR__PLAN_NEVER;
}

/* ---- prices ---- */

/* Whether an input has to be made again for an op that runs again before op [before]. */
static bool is_missing(const hr__turns *turns, uint32_t tensor, uint32_t before)
{
	return turns->tensors[tensor].state != RESIDENT && !has_replica(turns, tensor, before);
}

/* Whether [tensor], missing as an input of [reader], can be made again before op [before]. */
static bool can_make(const hr__turns *turns, uint32_t tensor, uint32_t reader, uint32_t before)
{
	const hr__recipes *recipes = turns->recipes;
	uint32_t maker = recipes->maker[tensor];
	return maker != HR__PLAN_NEVER && recipes->rewritten[tensor] > reader && recipes->valid_until[maker] >= before;
}

/* Counts a dropped tensor that comes back early if the gap is dropped. */
static void note_early(hr__turns *turns, uint32_t gap, uint32_t tensor, double *sum)
{
	uint64_t bytes = turns->tensors[tensor].bytes;
	turns->early_bytes[gap] += bytes;
	*sum += (double)bytes * turns->recipes->ring->gaps[turns->tensors[tensor].gap].to;
}

/* Finds what it would take to make [tensor], which is resident in [gap], again before op [before]. */
static void find_price(hr__turns *turns, uint32_t gap, uint32_t tensor, uint32_t before)
{
	const hr__recipes *recipes = turns->recipes;
	const hr__plan_step *step = recipes->ring->step;
	hr__turns_frame *stack = turns->price_stack;
	uint32_t depth = 0, looked = 0, maker = recipes->maker[tensor];
	double early_sum = 0;
	uint64_t ns = 0;
	turns->price_ns[gap] = UINT64_MAX;
	turns->early_bytes[gap] = 0;
	if (recipes->valid_until[maker] < before) return;
	turns->walk++;
	turns->stamp[maker] = turns->walk;
	stack[depth++] = (hr__turns_frame){ .op = maker, .input = recipes->first_input[maker], .tensor = tensor };
	while (depth > 0) {
		hr__turns_frame *frame = &stack[depth - 1];
		if (frame->input == recipes->first_input[frame->op + 1]) {
			ns += step->ops[frame->op].ns;
			depth--;
			continue;
		}
		uint32_t input = recipes->inputs[frame->input++];
		if (!is_missing(turns, input, before)) continue;
		uint32_t ghosts = turns->tensors[input].state == DEAD ? frame->ghosts + 1 : 0;
		if (!can_make(turns, input, frame->op, before) || ghosts > HR__GHOST_DEPTH || ++looked > PRICED_OPS_MAX) return;
		maker = recipes->maker[input];
		if (turns->stamp[maker] == turns->walk) continue;
		if (turns->tensors[input].state == DROPPED) note_early(turns, gap, input, &early_sum);
		turns->stamp[maker] = turns->walk;
		stack[depth++] = (hr__turns_frame){ maker, recipes->first_input[maker], input, ghosts };
	}
	turns->work += looked;
	turns->price_ns[gap] = ns;
	if (turns->early_bytes[gap] > 0) turns->early_until[gap] = (uint32_t)(early_sum / (double)turns->early_bytes[gap]);
}

/* Notes that a kept tensor is needed by turn [turn], before op [before]. */
static void note_need(hr__turns *turns, uint32_t tensor, uint32_t turn, uint32_t before)
{
	uint32_t gap = turns->tensors[tensor].gap;
	if (gap == HR__PLAN_NO_GAP || turns->tensors[tensor].bytes < turns->priced_bytes) return;
	if (turns->banned[gap] || turns->needed_at[gap] != HR__PLAN_NEVER) return;
	turns->needed_at[gap] = turn;
	find_price(turns, gap, tensor, before);
}

/* ---- running again ---- */

static bool append_turn(hr__turns *turns, uint32_t op, uint32_t before, bool again, uint64_t occupied)
{
	if (turns->count == turns->room) return false;
	turns->occupied[turns->count] = occupied;
	turns->turns[turns->count++] = (hr__plan_turn){ op, before, again };
	turns->work += 4;
	return true;
}

static bool make_output(hr__turns *turns, uint32_t tensor, uint32_t turn, uint32_t before)
{
	uint32_t index;
	hr__instance instance = { .tensor = tensor, .made = turn, .last = turn, .again = true, .ghost = turns->tensors[tensor].state == DEAD };
	instance.second = turns->tensors[tensor].state == RESIDENT || has_replica(turns, tensor, before);
	if (!add_instance(turns, instance, &index)) return false;
	if (instance.second) return true;
	end_replica(turns, tensor);
	turns->tensors[tensor].replica = index;
	turns->tensors[tensor].touched = before;
	return true;
}

/* Appends the turn in which [op], all of whose inputs are there, runs again before op [before]. */
static bool run_again(hr__turns *turns, uint32_t op, uint32_t before)
{
	const hr__recipes *recipes = turns->recipes;
	const hr__plan_ring *ring = recipes->ring;
	uint32_t turn = turns->count;
	if (!append_turn(turns, op, before, true, ring->occupied[before] - ring->born[before])) return false;
	turns->again_ns += ring->step->ops[op].ns;
	turns->change[turn] += recipes->made_bytes[op];
	turns->change[turn + 1] -= recipes->made_bytes[op];
	for (uint32_t k = recipes->first_input[op]; k < recipes->first_input[op + 1]; k++) {
		uint32_t t = recipes->inputs[k];
		if (turns->tensors[t].state != RESIDENT) turns->instances[turns->tensors[t].replica].last = turn;
		else note_need(turns, t, turn, before);
	}
	for (uint32_t k = recipes->first_output[op]; k < recipes->first_output[op + 1]; k++)
		if (!make_output(turns, recipes->outputs[k], turn, before)) return false;
	return true;
}

typedef enum hr__turns_result { MADE, REFUSED, TOO_MANY } hr__turns_result;

/* A chain of recipes cannot run. The dropped tensor nearest to the missing input is kept from now on. */
static hr__turns_result refuse(hr__turns *turns, uint32_t depth, uint32_t input)
{
	uint32_t t = input;
	while (turns->tensors[t].state != DROPPED) {
		HR_ASSERT(depth > 0);
		t = turns->stack[--depth].tensor;
	}
	turns->banned[turns->tensors[t].gap] = true;
	turns->dropped[turns->tensors[t].gap] = false;
	return REFUSED;
}

/* Makes a replica of [tensor], which is dropped, before op [before]. */
static hr__turns_result make_again(hr__turns *turns, uint32_t tensor, uint32_t before)
{
	const hr__recipes *recipes = turns->recipes;
	hr__turns_frame *stack = turns->stack;
	uint32_t depth = 0, maker = recipes->maker[tensor];
	if (recipes->valid_until[maker] < before) return refuse(turns, 0, tensor);
	stack[depth++] = (hr__turns_frame){ .op = maker, .input = recipes->first_input[maker], .tensor = tensor };
	while (depth > 0) {
		hr__turns_frame *frame = &stack[depth - 1];
		if (frame->input == recipes->first_input[frame->op + 1]) {
			if (!run_again(turns, frame->op, before)) return TOO_MANY;
			depth--;
			continue;
		}
		uint32_t input = recipes->inputs[frame->input++];
		if (turns->tensors[input].state == RESIDENT) continue;
		if (has_replica(turns, input, before)) {
			hold_replica(turns, input, turns->count, before);
			continue;
		}
		uint32_t ghosts = turns->tensors[input].state == DEAD ? frame->ghosts + 1 : 0;
		if (!can_make(turns, input, frame->op, before) || ghosts > HR__GHOST_DEPTH) return refuse(turns, depth, input);
		maker = recipes->maker[input];
		stack[depth++] = (hr__turns_frame){ maker, recipes->first_input[maker], input, ghosts };
	}
	return MADE;
}

/* ---- the pass ---- */

/* Makes the dropped tensors that op [op] uses resident. */
static hr__turns_result bring_back(hr__turns *turns, uint32_t op)
{
	const hr__plan_step *step = turns->recipes->ring->step;
	for (uint32_t u = step->ops[op].first_use; u < hr__recipes_end_of_uses(step, op); u++) {
		uint32_t t = step->uses[u].tensor;
		if (turns->tensors[t].state != DROPPED) continue;
		hr__turns_result result = has_replica(turns, t, op) ? MADE : make_again(turns, t, op);
		if (result != MADE) return result;
		hold_replica(turns, t, turns->count, op);
		hr__instance *replica = &turns->instances[turns->tensors[t].replica];
		replica->last = HR__PLAN_NEVER;
		turns->change[replica->made + 1] += turns->tensors[t].bytes;
		turns->tensors[t].instance = turns->tensors[t].replica;
		turns->tensors[t].replica = HR__PLAN_NEVER;
		turns->tensors[t].state = RESIDENT;
	}
	return MADE;
}

/* The tensor enters the gap after a use. */
static void enter_gap(hr__turns *turns, uint32_t tensor, uint32_t gap, uint32_t turn)
{
	turns->tensors[tensor].gap = gap;
	if (gap == HR__PLAN_NO_GAP || !turns->dropped[gap]) return;
	turns->tensors[tensor].state = DROPPED;
	turns->instances[turns->tensors[tensor].instance].last = turn;
	turns->change[turn + 1] -= turns->tensors[tensor].bytes;
}

static hr__turns_result run_op(hr__turns *turns, uint32_t op)
{
	const hr__recipes *recipes = turns->recipes;
	const hr__plan_ring *ring = recipes->ring;
	const hr__plan_step *step = ring->step;
	hr__turns_result result = bring_back(turns, op);
	if (result != MADE) return result;
	uint32_t turn = turns->count, end = hr__recipes_end_of_uses(step, op);
	if (!append_turn(turns, op, op, false, ring->occupied[op])) return TOO_MANY;
	turns->turn_of[op] = turn;
	for (uint32_t u = step->ops[op].first_use; u < end; u++) {
		uint32_t t = step->uses[u].tensor;
		if (turns->tensors[t].state == RESIDENT) {
			note_need(turns, t, turn, op);
			continue;
		}
		HR_ASSERT(turns->tensors[t].state == UNBORN);
		turns->tensors[t].state = RESIDENT;
		hr__instance made = { .tensor = t, .made = turn, .last = HR__PLAN_NEVER };
		if (!add_instance(turns, made, &turns->tensors[t].instance)) return TOO_MANY;
	}
	for (uint32_t u = step->ops[op].first_use; u < end; u++)
		enter_gap(turns, step->uses[u].tensor, recipes->gap_after[u], turn);
	for (uint32_t k = recipes->first_death[op]; k < recipes->first_death[op + 1]; k++) {
		uint32_t t = recipes->deaths[k];
		turns->tensors[t].state = DEAD;
		turns->instances[turns->tensors[t].instance].last = turn;
	}
	return MADE;
}

static hr__turns_result begin(hr__turns *turns)
{
	const hr__plan_ring *ring = turns->recipes->ring;
	turns->count = turns->instance_count = turns->held_count = 0;
	turns->again_ns = 0;
	memset(turns->change, 0, (turns->room + 2) * sizeof *turns->change);
	for (uint32_t g = 0; g < ring->gap_count; g++) {
		turns->needed_at[g] = HR__PLAN_NEVER;
		turns->price_ns[g] = UINT64_MAX;
	}
	for (uint32_t t = 0; t < ring->step->tensor_count; t++) {
		turns->tensors[t] = (hr__turns_tensor){ .bytes = ring->step->tensors[t].bytes,
			                                    .state = UNBORN,
			                                    .gap = HR__PLAN_NO_GAP,
			                                    .replica = HR__PLAN_NEVER };
		if (turns->recipes->creator[t] != HR__PLAN_NEVER) continue;
		turns->tensors[t].state = RESIDENT;
		hr__instance lives = { .tensor = t, .last = HR__PLAN_NEVER };
		if (!add_instance(turns, lives, &turns->tensors[t].instance)) return TOO_MANY;
	}
	return MADE;
}

static void sum_up(hr__turns *turns)
{
	uint64_t more = 0;
	for (uint32_t t = 0; t < turns->recipes->ring->step->tensor_count; t++) end_replica(turns, t);
	for (uint32_t i = 0; i < turns->count; i++) {
		more += turns->change[i];
		turns->occupied[i] += more;
	}
	turns->work += turns->count + turns->recipes->ring->gap_count;
}

bool hr__turns_make(hr__turns *turns, uint64_t priced_bytes)
{
	hr__turns_result result;
	turns->priced_bytes = priced_bytes;
	do {
		result = begin(turns);
		for (uint32_t i = 0; i < turns->recipes->ring->n && result == MADE; i++) result = run_op(turns, i);
	} while (result == REFUSED);
	if (result == MADE) sum_up(turns);
	return result == MADE;
}
