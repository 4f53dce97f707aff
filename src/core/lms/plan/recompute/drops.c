/* drops.c - see drops.h. */
#include "core/lms/plan/recompute/drops.h"

#include "core/base/assert.h"
#include "core/base/sort.h"

#define ROUNDS_MAX 200u
#define LEAST_SHARE 4096u /* tensors of less than this part of the excess are kept */
#define SHARE_OF_ROUND 6u /* a round removes this part of the highest excess */

bool hr__drops_open(hr__drops *drops, hr__turns *turns)
{
	const hr__plan_ring *ring = turns->recipes->ring;
	uint64_t tensors = ring->step->tensor_count, candidates = ring->gap_count + tensors;
	*drops = (hr__drops){ .turns = turns };
	if ((drops->excess = hr__plan_scratch_take(&drops->scratch, turns->room + 2, sizeof(uint64_t))) != NULL &&
	    (drops->weight = hr__plan_scratch_take(&drops->scratch, turns->room + 2, sizeof(uint64_t))) != NULL &&
	    (drops->order = hr__plan_scratch_take(&drops->scratch, candidates, sizeof(uint32_t))) != NULL &&
	    (drops->score = hr__plan_scratch_take(&drops->scratch, candidates, sizeof(double))) != NULL &&
	    (drops->gain = hr__plan_scratch_take(&drops->scratch, tensors, sizeof(double))) != NULL &&
	    (drops->cost = hr__plan_scratch_take(&drops->scratch, tensors, sizeof(uint64_t))) != NULL &&
	    (drops->taken = hr__plan_scratch_take(&drops->scratch, tensors, sizeof(uint32_t))) != NULL)
		return true;
	hr__drops_close(drops);
	return false;
}

void hr__drops_close(hr__drops *drops)
{
	hr__plan_scratch_free(&drops->scratch);
}

static uint64_t excess_at(const hr__turns *turns, const hr__drop_choice *choice, uint32_t turn)
{
	uint64_t allowed = choice->allowed[turns->turns[turn].before];
	return turns->occupied[turn] > allowed ? turns->occupied[turn] - allowed : 0;
}

static uint64_t highest_excess(const hr__turns *turns, const hr__drop_choice *choice, uint32_t *where)
{
	uint64_t most = 0;
	for (uint32_t i = 0; i < turns->count; i++) {
		uint64_t excess = excess_at(turns, choice, i);
		if (excess <= most) continue;
		most = excess;
		*where = i;
	}
	return most;
}

uint64_t hr__drops_excess(const hr__drops *drops, const hr__drop_choice *choice)
{
	uint32_t where;
	return highest_excess(drops->turns, choice, &where);
}

/* Only turns with an excess of [least] and more count. */
static void sum_excess(hr__drops *drops, const hr__drop_choice *choice, uint64_t least)
{
	const hr__turns *turns = drops->turns;
	uint64_t excess = 0, weight = 0;
	for (uint32_t i = 0; i < turns->count; i++) {
		uint64_t here = excess_at(turns, choice, i);
		drops->excess[i] = excess;
		drops->weight[i] = weight;
		if (here == 0 || here < least) continue;
		excess += here;
		weight++;
	}
	drops->excess[turns->count] = excess;
	drops->weight[turns->count] = weight;
}

static bool is_worse(const void *left, const void *right, const void *context)
{
	const double *score = context;
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
	return score[a] != score[b] ? score[a] > score[b] : a > b;
}

/* Excess that goes away if the gap is dropped. */
static double gain_of(const hr__drops *drops, uint32_t g)
{
	const hr__turns *turns = drops->turns;
	const hr__plan_gap *gap = &turns->recipes->ring->gaps[g];
	uint32_t first = turns->turn_of[gap->from] + 1, end = turns->needed_at[g];
	if (end <= first) return 0;
	double bytes = (double)gap->bytes * (double)(drops->weight[end] - drops->weight[first]);
	double excess = (double)(drops->excess[end] - drops->excess[first]), gain = bytes < excess ? bytes : excess;
	if (turns->early_bytes[g] == 0) return gain;
	uint32_t until = turns->turn_of[turns->early_until[g]];
	if (until <= end) return gain;
	return gain - (double)turns->early_bytes[g] * (double)(drops->weight[until] - drops->weight[end]);
}

static uint32_t list_gaps(hr__drops *drops)
{
	const hr__turns *turns = drops->turns;
	uint32_t count = 0;
	for (uint32_t g = 0; g < turns->recipes->ring->gap_count; g++) {
		if (turns->dropped[g] || turns->price_ns[g] == UINT64_MAX || turns->needed_at[g] == HR__PLAN_NEVER) continue;
		double gain = gain_of(drops, g);
		if (gain <= 0) continue;
		drops->score[g] = ((double)turns->price_ns[g] + 1) / gain;
		drops->order[count++] = g;
	}
	return count;
}

/* Adds tensors whose replicas are held where there is an excess. */
static uint32_t list_held(hr__drops *drops, uint32_t count)
{
	const hr__turns *turns = drops->turns;
	const hr__plan_ring *ring = turns->recipes->ring;
	for (uint32_t k = 0; k < turns->held_count; k++) drops->gain[turns->held[k].tensor] = 0;
	for (uint32_t k = 0; k < turns->held_count; k++) {
		const hr__held *held = &turns->held[k];
		uint64_t turns_over = drops->weight[held->end] - drops->weight[held->first];
		if (turns_over == 0) continue;
		if (drops->gain[held->tensor] == 0) drops->cost[held->tensor] = 0;
		double bytes = (double)ring->step->tensors[held->tensor].bytes * (double)turns_over;
		double excess = (double)(drops->excess[held->end] - drops->excess[held->first]);
		drops->gain[held->tensor] += bytes < excess ? bytes : excess;
		drops->cost[held->tensor] += ring->step->ops[turns->recipes->maker[held->tensor]].ns;
	}
	for (uint32_t k = 0; k < turns->held_count; k++) {
		uint32_t t = turns->held[k].tensor, candidate = ring->gap_count + t;
		if (drops->gain[t] <= 0) continue;
		drops->score[candidate] = ((double)drops->cost[t] + 1) / drops->gain[t];
		drops->order[count++] = candidate;
		drops->gain[t] = 0; /* only once */
	}
	return count;
}

/* A heap, because a round takes few of them. */
static uint32_t list_candidates(hr__drops *drops)
{
	uint32_t count = list_held(drops, list_gaps(drops));
	hr__heap_make(drops->order, count, sizeof *drops->order, is_worse, drops->score);
	return count;
}

/* Removes the best of [*count] candidates. */
static uint32_t next_candidate(hr__drops *drops, uint32_t *count)
{
	uint32_t best = drops->order[0];
	drops->order[0] = drops->order[--*count];
	if (*count > 0) hr__heap_sift(drops->order, 0, *count, sizeof *drops->order, is_worse, drops->score);
	return best;
}

/* Whether the price of the gap depends on one that was dropped in this round. */
static bool is_touched(const hr__drops *drops, uint32_t tensor)
{
	const hr__recipes *recipes = drops->turns->recipes;
	const hr__plan_step *step = recipes->ring->step;
	uint32_t maker = recipes->maker[tensor];
	for (uint32_t u = step->ops[maker].first_use; u < hr__recipes_end_of_uses(step, maker); u++)
		if (drops->taken[step->uses[u].tensor] == drops->round) return true;
	return drops->taken[tensor] == drops->round;
}

static void touch(hr__drops *drops, uint32_t tensor)
{
	const hr__recipes *recipes = drops->turns->recipes;
	const hr__plan_step *step = recipes->ring->step;
	uint32_t maker = recipes->maker[tensor];
	for (uint32_t u = step->ops[maker].first_use; u < hr__recipes_end_of_uses(step, maker); u++)
		if (step->tensors[step->uses[u].tensor].bytes >= step->tensors[tensor].bytes / 64)
			drops->taken[step->uses[u].tensor] = drops->round;
}

/* Takes a candidate; returns the bytes that go away at turn [where]. */
static uint64_t take_candidate(hr__drops *drops, uint32_t candidate, uint32_t where)
{
	hr__turns *turns = drops->turns;
	const hr__plan_ring *ring = turns->recipes->ring;
	if (candidate >= ring->gap_count) {
		turns->brief[candidate - ring->gap_count] = true;
		return 0;
	}
	const hr__plan_gap *gap = &ring->gaps[candidate];
	turns->dropped[candidate] = true;
	return turns->turn_of[gap->from] < where && where < turns->needed_at[candidate] ? gap->bytes : 0;
}

/* Takes the best candidates. False if there are none. */
static bool take_best(hr__drops *drops, uint64_t most, uint32_t where)
{
	hr__turns *turns = drops->turns;
	const hr__plan_ring *ring = turns->recipes->ring;
	uint32_t count = list_candidates(drops), took = 0;
	uint64_t gone = 0, enough = most / SHARE_OF_ROUND;
	double limit = count > 0 ? 1.5 * drops->score[drops->order[0]] : 0;
	drops->round++;
	turns->work += 8 * count;
	while (count > 0 && (took == 0 || gone < enough)) {
		uint32_t candidate = next_candidate(drops, &count);
		uint32_t tensor = candidate < ring->gap_count ? ring->gaps[candidate].tensor : candidate - ring->gap_count;
		if (drops->score[candidate] > limit) break;
		if (is_touched(drops, tensor)) continue;
		touch(drops, tensor);
		gone += take_candidate(drops, candidate, where);
		took++;
	}
	return took > 0;
}

bool hr__drops_step(hr__drops *drops, const hr__drop_choice *choice)
{
	uint32_t where = 0;
	uint64_t most = highest_excess(drops->turns, choice, &where);
	if (most == 0) return false;
	sum_excess(drops, choice, most / 256 * choice->crest);
	if (take_best(drops, most, where)) return true;
	sum_excess(drops, choice, 0); /* nothing helps at the crest */
	return take_best(drops, most, where);
}

bool hr__drops_make(hr__drops *drops, const hr__drop_choice *choice)
{
	if (!hr__turns_make(drops->turns, drops->least_bytes)) return false;
	drops->least_bytes = hr__drops_excess(drops, choice) / LEAST_SHARE;
	return true;
}

bool hr__drops_choose(hr__drops *drops, const hr__drop_choice *choice)
{
	drops->least_bytes = 0;
	for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
		if (!hr__drops_make(drops, choice)) return false;
		if (!hr__drops_step(drops, choice)) return true;
	}
	return hr__turns_make(drops->turns, HR__TURNS_NO_PRICES);
}
