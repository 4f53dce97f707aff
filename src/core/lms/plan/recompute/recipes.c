/* recipes.c - see recipes.h. */
#include "core/lms/plan/recompute/recipes.h"

#include "core/base/assert.h"

static bool take_memory(hr__recipes *recipes)
{
	const hr__plan_step *step = recipes->ring->step;
	hr__plan_scratch *scratch = &recipes->scratch;
	uint64_t ops = (uint64_t)step->op_count + 2;
	return (recipes->maker = hr__plan_scratch_take(scratch, step->tensor_count, sizeof(uint32_t))) != NULL &&
	       (recipes->creator = hr__plan_scratch_take(scratch, step->tensor_count, sizeof(uint32_t))) != NULL &&
	       (recipes->rewritten = hr__plan_scratch_take(scratch, step->tensor_count, sizeof(uint32_t))) != NULL &&
	       (recipes->deaths = hr__plan_scratch_take(scratch, step->tensor_count, sizeof(uint32_t))) != NULL &&
	       (recipes->valid_until = hr__plan_scratch_take(scratch, ops, sizeof(uint32_t))) != NULL &&
	       (recipes->first_death = hr__plan_scratch_take(scratch, ops, sizeof(uint32_t))) != NULL &&
	       (recipes->made_bytes = hr__plan_scratch_take(scratch, ops, sizeof(uint64_t))) != NULL &&
	       (recipes->staying = hr__plan_scratch_take(scratch, ops, sizeof(uint64_t))) != NULL &&
	       (recipes->gap_after = hr__plan_scratch_take(scratch, step->use_count, sizeof(uint32_t))) != NULL &&
	       (recipes->inputs = hr__plan_scratch_take(scratch, step->use_count, sizeof(uint32_t))) != NULL &&
	       (recipes->first_input = hr__plan_scratch_take(scratch, ops, sizeof(uint32_t))) != NULL &&
	       (recipes->outputs = hr__plan_scratch_take(scratch, step->use_count, sizeof(uint32_t))) != NULL &&
	       (recipes->first_output = hr__plan_scratch_take(scratch, ops, sizeof(uint32_t))) != NULL &&
	       (recipes->droppable = hr__plan_scratch_take(scratch, recipes->ring->gap_count, sizeof(bool))) != NULL;
}

static void read_tensor(hr__recipes *recipes, uint32_t t)
{
	const hr__plan_ring *ring = recipes->ring;
	const hr__plan_tensor *tensor = &ring->step->tensors[t];
	uint32_t begin = ring->first[t], end = ring->first[t + 1], rewritten = HR__PLAN_NEVER;
	recipes->maker[t] = recipes->creator[t] = HR__PLAN_NEVER;
	for (uint32_t k = end; k > begin + 1; k--)
		if (ring->wrote[k - 1]) rewritten = ring->at[k - 1];
	recipes->rewritten[t] = rewritten;
	if (begin == end || tensor->lived_before) return;
	uint32_t op = ring->at[begin];
	recipes->creator[t] = op;
	recipes->made_bytes[op] += tensor->bytes;
	if (!ring->step->ops[op].pure) return;
	recipes->maker[t] = op;
	for (uint32_t k = begin; k + 1 < end && ring->at[k] < rewritten; k++) {
		uint32_t gap = ring->gap_after[k];
		if (gap == HR__PLAN_NO_GAP) continue;
		recipes->droppable[gap] = true;
		recipes->droppable_count++;
		recipes->staying[ring->gaps[gap].from + 1] -= tensor->bytes; /* a difference to the op before, until they are summed up */
		recipes->staying[ring->gaps[gap].to] += tensor->bytes;
	}
}

/* The first op after [op] that writes [tensor]. */
static uint32_t next_write(const hr__plan_ring *ring, uint32_t tensor, uint32_t index)
{
	for (uint32_t k = index + 1; k < ring->first[tensor + 1]; k++)
		if (ring->wrote[k]) return ring->at[k];
	return HR__PLAN_NEVER;
}

/* Whether the tensor may be gone at some time of the step. */
static bool can_be_gone(const hr__recipes *recipes, uint32_t tensor)
{
	return recipes->creator[tensor] != HR__PLAN_NEVER || recipes->ring->step->tensors[tensor].died != HR__PLAN_NEVER;
}

/* [next] has the index in ring->at of the next use of each tensor. */
static void read_op(hr__recipes *recipes, uint32_t op, uint32_t *next)
{
	const hr__plan_ring *ring = recipes->ring;
	uint32_t until = HR__PLAN_NEVER, inputs = recipes->first_input[op], outputs = recipes->first_output[op];
	for (uint32_t u = ring->step->ops[op].first_use; u < hr__recipes_end_of_uses(ring->step, op); u++) {
		uint32_t t = ring->step->uses[u].tensor, index = next[t]++, gap = ring->gap_after[index];
		recipes->gap_after[u] = gap != HR__PLAN_NO_GAP && recipes->droppable[gap] ? gap : HR__PLAN_NO_GAP;
		if (recipes->creator[t] == op) recipes->outputs[outputs++] = t;
		if (!hr__recipes_is_input(recipes, op, u)) continue;
		if (can_be_gone(recipes, t)) recipes->inputs[inputs++] = t;
		if (!ring->step->ops[op].pure) continue;
		uint32_t written = next_write(ring, t, index);
		if (written < until) until = written;
	}
	recipes->first_input[op + 1] = inputs;
	recipes->first_output[op + 1] = outputs;
	uint32_t own = ring->step->ops[op].until;
	if (own != 0 && own < until) until = own;
	recipes->valid_until[op] = until;
}

static void list_deaths(hr__recipes *recipes)
{
	const hr__plan_step *step = recipes->ring->step;
	uint32_t n = step->op_count, *first = recipes->first_death;
	for (uint32_t t = 0; t < step->tensor_count; t++)
		if (step->tensors[t].died != HR__PLAN_NEVER) first[step->tensors[t].died + 1]++;
	for (uint32_t i = 0; i < n; i++) first[i + 1] += first[i];
	for (uint32_t t = step->tensor_count; t-- > 0;)
		if (step->tensors[t].died != HR__PLAN_NEVER) recipes->deaths[--first[step->tensors[t].died + 1]] = t;
	/* Every first index has moved to where the op before it ends. */
	for (uint32_t i = 0; i < n; i++) first[i] = first[i + 1];
	first[n] = 0;
	for (uint32_t t = 0; t < step->tensor_count; t++) first[n] += step->tensors[t].died != HR__PLAN_NEVER;
}

bool hr__recipes_open(hr__recipes *recipes, const hr__plan_ring *ring)
{
	*recipes = (hr__recipes){ .ring = ring };
	if (!take_memory(recipes)) {
		hr__recipes_close(recipes);
		return false;
	}
	uint32_t *next = recipes->deaths; /* until deaths are listed */
	for (uint32_t t = 0; t < ring->step->tensor_count; t++) {
		read_tensor(recipes, t);
		next[t] = ring->first[t];
	}
	uint64_t dropped = 0;
	for (uint32_t i = 0; i < ring->n; i++) {
		read_op(recipes, i, next);
		dropped += recipes->staying[i];
		recipes->staying[i] = ring->occupied[i] + dropped;
	}
	list_deaths(recipes);
	return true;
}

void hr__recipes_close(hr__recipes *recipes)
{
	hr__plan_scratch_free(&recipes->scratch);
}
