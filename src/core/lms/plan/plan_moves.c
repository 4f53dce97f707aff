/* plan_moves.c - see plan_moves.h. Tries several strategies to choose and place moves, and improves the best. */
#include "core/lms/plan/plan_moves.h"

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/lms/plan/plan_draft.h"
#include "core/os/os.h"

/* ---- strategies ---- */

#define STRATEGIES 4        /* strategies that are improved */
#define MOST_WORK 400000u   /* limit for avoiding gaps that cost time: about 20 ms */
#define SOME_WORK 50000u    /* the same for some effort: about 2 ms */
#define LINK_NS_OF_A_NS 256 /* saving this much time of the links is worth 1 ns more of the step */

/* Prefers less time and, at about equal time, less work for the links: fewer bytes, in fewer copies. */
static uint64_t cost_of(const hr__plan_draft *draft)
{
	uint64_t cost;
	return hr__add(draft->step_ns, draft->link_ns / LINK_NS_OF_A_NS, &cost) ? cost : UINT64_MAX;
}

static void swap(hr__plan_draft *a, hr__plan_draft *b)
{
	hr__plan_draft c = *a;
	*a = *b;
	*b = c;
}

static void make_draft(hr__plan_drafting *drafting, hr__plan_draft *draft, const hr__plan_strategy *strategy)
{
	hr__plan_draft_choose(drafting, draft, strategy);
	hr__plan_draft_place(drafting, draft, strategy);
	hr__plan_draft_simulate(drafting, draft);
}

/* Positions at which the scan may begin. */
static uint32_t emptiest(const hr__plan_ring *ring)
{
	uint32_t where = 0;
	for (uint32_t i = 1; i < ring->n; i++)
		if (ring->occupied[i] < ring->occupied[where]) where = i;
	return where;
}

static uint32_t fullest(const hr__plan_ring *ring)
{
	uint32_t where = 0;
	for (uint32_t i = 1; i < ring->n; i++)
		if (ring->occupied[i] > ring->occupied[where]) where = i;
	return where;
}

/* The best strategies tried, best first. */
struct tried_strategy {
	hr__plan_strategy strategy;
	uint64_t cost;
};

static void try_strategy(hr__plan_drafting *drafting, hr__plan_draft *draft, hr__plan_strategy strategy,
                         struct tried_strategy *best)
{
	make_draft(drafting, draft, &strategy);
	struct tried_strategy tried = { strategy, cost_of(draft) };
	for (int i = 0; i < STRATEGIES; i++) {
		if (best[i].cost <= tried.cost) continue;
		struct tried_strategy worse = best[i];
		best[i] = tried;
		tried = worse;
	}
}

static void find_strategies(hr__plan_drafting *drafting, hr__plan_draft *draft, struct tried_strategy *best)
{
	static const uint32_t worths[] = { 0, 2, 8, 32 };
	const hr__plan_ring *ring = drafting->ring;
	uint32_t starts[3] = { 0, emptiest(ring), fullest(ring) };
	for (int i = 0; i < STRATEGIES; i++) best[i] = (struct tried_strategy){ .cost = UINT64_MAX };
	for (int i = 0; i < 24; i++) {
		if (i % 3 > 0 && starts[i % 3] == starts[i % 3 - 1]) continue;
		try_strategy(drafting, draft,
		             (hr__plan_strategy){ .start = starts[i % 3], .least_worth = worths[i / 3 % 4], .copy_early = i / 12 > 0 },
		             best);
	}
	hr__plan_strategy first = best[0].strategy;
	for (int i = 0; i < 3; i++) {
		hr__plan_strategy strategy = first;
		if (i == 0) strategy.restore_late = true;
		else strategy.reserve = i == 1 ? HR__RESERVE_TO_CHOOSE : HR__RESERVE_AND_KEEP;
		try_strategy(drafting, draft, strategy, best);
	}
}

/* Makes [best], the best draft of the strategies that are best for most steps, and returns its strategy. */
static hr__plan_strategy find_quickly(hr__plan_drafting *drafting, hr__plan_draft *best, hr__plan_draft *draft)
{
	hr__plan_strategy strategy = { .start = emptiest(drafting->ring), .copy_early = true }, found = strategy;
	uint64_t least = UINT64_MAX;
	for (strategy.least_worth = 2; strategy.least_worth <= 32; strategy.least_worth *= 4) {
		make_draft(drafting, draft, &strategy);
		if (least < UINT64_MAX && cost_of(draft) >= least) continue;
		least = cost_of(draft);
		found = strategy;
		swap(best, draft);
	}
	return found;
}

/* The chosen gap, not tried yet, that ops waited for longest; if none waited, the largest. */
static uint32_t most_to_blame(const hr__plan_drafting *drafting, const hr__plan_draft *draft, const bool *tried)
{
	uint32_t worst = HR__PLAN_NO_GAP;
	uint64_t longest = 0, most = 0;
	for (uint32_t g = 0; g < drafting->ring->gap_count; g++) {
		uint64_t waited = draft->blame[g], bytes = drafting->ring->gaps[g].bytes;
		if (!draft->chosen[g] || tried[g] || waited < longest || (waited == longest && bytes <= most)) continue;
		longest = waited;
		most = bytes;
		worst = g;
	}
	return worst;
}

/* Improves [best], a draft of [strategy]: avoids one gap after the other, and keeps avoiding it if that helps; repeats this as long as it
 * makes a difference. */
static void improve(hr__plan_drafting *drafting, hr__plan_draft *best, hr__plan_draft *draft, const hr__plan_strategy *strategy,
                    bool *tried, uint64_t most_work)
{
	uint32_t gaps = drafting->ring->gap_count;
	bool helped = false;
	for (uint32_t g = 0; g < gaps; g++) tried[g] = false;
	while (drafting->work < most_work) {
		uint32_t g = most_to_blame(drafting, best, tried);
		if (g == HR__PLAN_NO_GAP && !helped) break;
		if (g == HR__PLAN_NO_GAP) {
			for (uint32_t i = 0; i < gaps; i++) tried[i] = false;
			helped = false;
			continue;
		}
		tried[g] = true;
		if (drafting->avoid[g]) continue; /* it is needed all the same */
		drafting->avoid[g] = true;
		make_draft(drafting, draft, strategy);
		drafting->avoid[g] = false;
		if (cost_of(draft) >= cost_of(best)) continue;
		drafting->avoid[g] = helped = true;
		swap(draft, best);
	}
}

/* The first op of [from, to) whose time plus [later] is at least [since]; [to] if there is none. Times only grow within a step, so
 * a binary search is possible. A plan has as many moves as ops, so a linear search for each move would take quadratic time. */
static uint32_t first_since(const uint64_t *times, uint32_t from, uint32_t to, uint64_t later, uint64_t since)
{
	HR_ASSERT(from <= to);
	while (from < to) {
		uint32_t middle = from + (to - from) / 2;
		if (times[middle] + later >= since) to = middle;
		else from = middle + 1;
	}
	return to;
}

/* The same from [from] round the ring to [to]. Ops of the next step are one step later. */
static uint32_t first_round(const hr__plan_drafting *drafting, const hr__plan_draft *draft, const uint64_t *times, uint32_t from,
                            uint32_t to, uint64_t since)
{
	if (from <= to) return first_since(times, from, to, 0, since);
	uint32_t n = drafting->ring->n, op = first_since(times, from, n, 0, since);
	return op < n ? op : first_since(times, 0, to, draft->step_ns, since);
}

/* The op that runs when a restore begins: the first, from in_before on, that is not done by then. */
static uint32_t start_of(const hr__plan_drafting *drafting, const hr__plan_draft *draft, uint32_t g)
{
	HR_ASSERT(draft->chosen[g]);
	uint64_t begins = drafting->restore_began[g], since = begins < UINT64_MAX ? begins + 1 : begins;
	return first_round(drafting, draft, drafting->ended, draft->in_before[g], drafting->ring->gaps[g].to, since);
}

/* The last op, from the one after which it is evicted, that began before the copy was done. */
static uint32_t gone_of(const hr__plan_drafting *drafting, const hr__plan_draft *draft, uint32_t g)
{
	HR_ASSERT(draft->chosen[g]);
	const hr__plan_gap *gap = &drafting->ring->gaps[g];
	uint64_t done = drafting->out_done[g];
	if (draft->clean[g]) return gap->from;
	if (draft->copied_after[g] > gap->from)
		done = done > draft->step_ns ? done - draft->step_ns : 0; /* the copy was made in the
	                                                                                                   * last step */
	uint32_t next = first_round(drafting, draft, drafting->started, gap->from + 1, gap->to, done);
	return next > 0 ? next - 1 : drafting->ring->n - 1;
}

static hr_status no_memory(const hr__plan_ring *ring)
{
	return hr__fail(HR_NO_HOST_MEMORY, "no host memory to plan a step of %u ops", ring->n);
}

static hr_status write_plan(hr__plan_drafting *drafting, const hr__plan_draft *draft, hr__plan *out)
{
	const hr__plan_ring *ring = drafting->ring;
	void *moves = NULL;
	if (draft->moves > 0 && hr__os()->alloc(draft->moves * sizeof(hr__plan_move), &moves) != 0)
		return hr__fail(HR_NO_HOST_MEMORY, "no host memory for a plan of %u moves", draft->moves);
	*out = (hr__plan){ .moves = moves, .move_count = draft->moves, .bytes_out = draft->bytes_out, .bytes_in = draft->bytes_in };
	out->step_ns = draft->step_ns;
	out->peak_bytes = hr__plan_draft_peak(drafting, draft);
	HR_ASSERT(out->peak_bytes <= ring->machine->memory);
	for (uint32_t k = 0; k < draft->moves; k++) {
		uint32_t g = drafting->outs[k];
		const hr__plan_gap *gap = &ring->gaps[g];
		out->moves[k] = (hr__plan_move){ .tensor = gap->tensor,
			                             .out_after = gap->from,
			                             .gone_by = gone_of(drafting, draft, g),
			                             .in_before = draft->in_before[g],
			                             .starts_by = start_of(drafting, draft, g),
			                             .needed_by = gap->to,
			                             .copy_after = draft->clean[g] ? gap->from : draft->copied_after[g],
			                             .clean = draft->clean[g] };
	}
	return HR_OK;
}

/* ---- efforts ---- */

/* Makes [best], the best draft of all strategies, improved. */
static void find_all(hr__plan_drafting *drafting, hr__plan_draft *best, hr__plan_draft *current, hr__plan_draft *draft, bool *tried)
{
	struct tried_strategy strategies[STRATEGIES];
	find_strategies(drafting, draft, strategies);
	drafting->work = 0;
	for (uint32_t i = 0; i < STRATEGIES && strategies[i].cost < UINT64_MAX; i++) {
		for (uint32_t g = 0; g < drafting->ring->gap_count; g++) drafting->avoid[g] = false;
		make_draft(drafting, current, &strategies[i].strategy);
		improve(drafting, current, draft, &strategies[i].strategy, tried, MOST_WORK / STRATEGIES * (i + 1));
		if (i == 0 || cost_of(current) < cost_of(best)) swap(best, current);
	}
}

/* The same of a few strategies. If no op waits for a copy, there is nothing to improve. */
static void find_some(hr__plan_drafting *drafting, hr__plan_draft *best, hr__plan_draft *draft, bool *tried)
{
	hr__plan_strategy found = find_quickly(drafting, best, draft), reserving = found;
	if (best->step_ns == drafting->ring->time[drafting->ring->n]) return;
	reserving.reserve = HR__RESERVE_TO_CHOOSE; /* takes longer to find */
	make_draft(drafting, draft, &reserving);
	if (cost_of(draft) < cost_of(best)) {
		found = reserving;
		swap(best, draft);
	}
	drafting->work = 0;
	improve(drafting, best, draft, &found, tried, SOME_WORK);
}

static hr_status find(hr__plan_drafting *drafting, hr__plan_effort effort, hr__plan *out, uint64_t *cost)
{
	hr__plan_draft best, current, draft;
	bool *tried;
	const hr__plan_ring *ring = drafting->ring;
	if (!hr__plan_draft_open(&best, drafting) || !hr__plan_draft_open(&draft, drafting) ||
	    (effort == HR__MOVES_ALL && !hr__plan_draft_open(&current, drafting)) ||
	    (tried = hr__plan_scratch_take(&drafting->scratch, ring->gap_count, sizeof *tried)) == NULL)
		return no_memory(ring);
	switch (effort) {
	case HR__MOVES_ALL: find_all(drafting, &best, &current, &draft, tried); break;
	case HR__MOVES_SOME: find_some(drafting, &best, &draft, tried); break;
	default: find_quickly(drafting, &best, &draft);
	}
	if (cost != NULL) *cost = cost_of(&best);
	if (out == NULL) return HR_OK;
	hr__plan_draft_simulate(drafting, &best); /* the plan has the times of the last simulation */
	return write_plan(drafting, &best, out);
}

hr_status hr__plan_moves_make(const hr__plan_ring *ring, hr__plan_effort effort, hr__plan *out, uint64_t *cost)
{
	hr__plan_drafting drafting;
	hr__plan_ring trimmed;
	hr__plan_scratch scratch = { 0 };
	hr_status status = no_memory(ring);
	if (hr__plan_ring_trim(ring, &scratch, &trimmed) && hr__plan_drafting_open(&drafting, &trimmed)) {
		drafting.draft_work = ring->n + ring->gap_count;
		status = find(&drafting, effort, out, cost);
		hr__plan_drafting_close(&drafting);
	}
	hr__plan_scratch_free(&scratch);
	return status;
}
