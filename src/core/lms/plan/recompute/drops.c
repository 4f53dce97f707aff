/* drops.c - see drops.h. */
#include "core/lms/plan/recompute/drops.h"

#include "core/base/assert.h"
#include "core/base/sort.h"

#define ROUNDS_MAX 200u
#define SHARE_OF_ROUND 6u /* a round removes this part of the highest excess */

bool hr__drops_open(hr__drops *drops, hr__turns *turns)
{
	const hr__plan_ring *ring = turns->recipes->ring;
	*drops = (hr__drops){ .turns = turns };
	if ((drops->excess = hr__plan_scratch_take(&drops->scratch, turns->room + 2, sizeof(uint64_t))) != NULL &&
	    (drops->weight = hr__plan_scratch_take(&drops->scratch, turns->room + 2, sizeof(uint64_t))) != NULL &&
	    (drops->order = hr__plan_scratch_take(&drops->scratch, ring->gap_count, sizeof(uint32_t))) != NULL &&
	    (drops->score = hr__plan_scratch_take(&drops->scratch, ring->gap_count, sizeof(double))) != NULL &&
	    (drops->taken = hr__plan_scratch_take(&drops->scratch, ring->step->tensor_count, sizeof(uint32_t))) != NULL)
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

static void sum_excess(hr__drops *drops, const hr__drop_choice *choice, uint64_t most)
{
	const hr__turns *turns = drops->turns;
	uint64_t least = most / 256 * choice->crest, excess = 0, weight = 0;
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

static bool better(const void *left, const void *right, const void *context)
{
	const double *score = context;
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
	return score[a] != score[b] ? score[a] < score[b] : a < b;
}

/* Excess that goes away if the gap is dropped. */
static double gain_of(const hr__drops *drops, uint32_t g)
{
	const hr__turns *turns = drops->turns;
	const hr__plan_gap *gap = &turns->recipes->ring->gaps[g];
	uint32_t first = turns->turn_of[gap->from] + 1, end = turns->needed_at[g];
	if (end <= first) return 0;
	double bytes = (double)gap->bytes * (double)(drops->weight[end] - drops->weight[first]);
	double excess = (double)(drops->excess[end] - drops->excess[first]);
	return bytes < excess ? bytes : excess;
}

static uint32_t list_candidates(hr__drops *drops, const hr__drop_choice *choice, uint64_t most)
{
	const hr__turns *turns = drops->turns;
	uint32_t count = 0;
	for (uint32_t g = 0; g < turns->recipes->ring->gap_count; g++) {
		const hr__plan_gap *gap = &turns->recipes->ring->gaps[g];
		if (turns->dropped[g] || turns->price_ns[g] == UINT64_MAX || turns->needed_at[g] == HR__PLAN_NEVER) continue;
		if (gap->bytes < most / 4096) continue;
		if ((double)turns->price_ns[g] * 1048576.0 > (double)choice->most_ns_per_mib * (double)gap->bytes) continue;
		double gain = gain_of(drops, g);
		if (gain <= 0) continue;
		drops->score[g] = ((double)turns->price_ns[g] + 1) / gain;
		drops->order[count++] = g;
	}
	hr__sort(drops->order, count, sizeof *drops->order, better, drops->score);
	return count;
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

/* Drops the best candidates. False if there are none. */
static bool take_best(hr__drops *drops, const hr__drop_choice *choice, uint64_t most, uint32_t where)
{
	hr__turns *turns = drops->turns;
	uint32_t count = list_candidates(drops, choice, most), took = 0;
	uint64_t gone = 0, enough = most / SHARE_OF_ROUND;
	double limit = count > 0 ? 1.5 * drops->score[drops->order[0]] : 0;
	drops->round++;
	turns->work += 8 * count;
	for (uint32_t k = 0; k < count && (took == 0 || gone < enough); k++) {
		uint32_t g = drops->order[k];
		const hr__plan_gap *gap = &turns->recipes->ring->gaps[g];
		if (drops->score[g] > limit) break;
		if (is_touched(drops, gap->tensor)) continue;
		touch(drops, gap->tensor);
		turns->dropped[g] = true;
		took++;
		if (turns->turn_of[gap->from] < where && where < turns->needed_at[g]) gone += gap->bytes;
	}
	return took > 0;
}

bool hr__drops_step(hr__drops *drops, const hr__drop_choice *choice)
{
	uint32_t where = 0;
	uint64_t most = highest_excess(drops->turns, choice, &where);
	if (most == 0) return false;
	sum_excess(drops, choice, most);
	return take_best(drops, choice, most, where);
}

bool hr__drops_choose(hr__drops *drops, const hr__drop_choice *choice)
{
	for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
		if (!hr__turns_make(drops->turns)) return false;
		if (!hr__drops_step(drops, choice)) return true;
	}
	return hr__turns_make(drops->turns);
}
