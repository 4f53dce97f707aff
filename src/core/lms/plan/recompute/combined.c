/* combined.c - see combined.h.
 *
 * Gaps are dropped one after the other, the cheapest for its bytes first, until the step fits (drops.c). On the way there are STAGES:
 * steps with some drops, which fit with some moves. Each is a step of its own (derived.h), for which moves are planned as for any
 * other. The first stage is moving alone, the last one recomputing alone. The more is dropped, the more time is spent on computing,
 * and the less on waiting for the link. The best stage in between, often the first that hides nearly all copies behind compute, is
 * found by Fibonacci search. Then single gaps are dropped, or kept after all, as long as that helps.
 *
 * All of this is limited by counts of work, not by the clock, so that plans are deterministic. */
#include "core/lms/plan/recompute/combined.h"

#include <string.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/lms/plan/plan_moves.h"
#include "core/lms/plan/recompute/trial.h"

#define STAGES_MAX 64u
#define STAGE_UNTRIED (UINT64_MAX - 1) /* cost of a stage that was not tried */
#define REFINEMENTS 2u      /* stages that are made between two others */
#define HIDDEN_SHARE 256u   /* copies are hidden if they cost less than this part of the step */
#define CREST 80u           /* see drops.h */
#define ALONE_WORK 60000u   /* for changing single gaps without moves: about 1 ms */
#define STAGES_WORK 850000u /* for trying stages: about 17 ms */
#define BOTH_WORK 450000u   /* for trying stages and changing single gaps */
#define SMALL_OPS 1000u     /* of a step that stays in the processor's caches: a unit of work takes 8 ns instead of 20 */
#define SMALL_BOTH_WORK 2000000u

typedef struct hr__stages {
	hr__drop_trial *trial;
	hr__plan_scratch scratch;
	uint64_t *allowed; /* by op */
	uint64_t excess[STAGES_MAX]; /* the highest, by stage */
	hr__drop_set sets[STAGES_MAX];
	uint32_t count;
	uint64_t begun; /* work that was done before stages were tried */
} hr__stages;

static bool open_stages(hr__stages *stages, hr__drop_trial *trial)
{
	*stages = (hr__stages){ .trial = trial };
	uint32_t gaps = trial->ring->gap_count;
	stages->allowed = hr__plan_scratch_take(&stages->scratch, trial->ring->n, sizeof *stages->allowed);
	uint32_t tensors = trial->ring->step->tensor_count;
	bool *dropped = hr__plan_scratch_take(&stages->scratch, (uint64_t)STAGES_MAX * gaps, sizeof *dropped);
	bool *brief = hr__plan_scratch_take(&stages->scratch, (uint64_t)STAGES_MAX * tensors, sizeof *brief);
	if (stages->allowed == NULL || dropped == NULL || brief == NULL) {
		hr__plan_scratch_free(&stages->scratch);
		return false;
	}
	for (uint32_t i = 0; i < STAGES_MAX; i++)
		stages->sets[i] = (hr__drop_set){ dropped + (size_t)i * gaps, brief + (size_t)i * tensors, UINT64_MAX };
	return true;
}

/* What stays whatever is dropped has to be moved, so it is not in excess. */
static hr__drop_choice choice_of(hr__stages *stages, uint64_t more)
{
	const hr__recipes *recipes = &stages->trial->recipes;
	uint64_t allowed;
	if (!hr__add(stages->trial->ring->machine->memory, more, &allowed)) allowed = UINT64_MAX;
	for (uint32_t i = 0; i < stages->trial->ring->n; i++)
		stages->allowed[i] = recipes->staying[i] > allowed ? recipes->staying[i] : allowed;
	return (hr__drop_choice){ .allowed = stages->allowed, .crest = CREST };
}

/* Stages with less and less excess, down to none if that is possible. */
static void make_stages(hr__stages *stages)
{
	hr__drop_trial *trial = stages->trial;
	hr__drop_choice choice = choice_of(stages, 0);
	trial->drops.least_bytes = 0;
	stages->count = 0;
	for (bool more = true; more && stages->count < STAGES_MAX;) {
		if (!hr__drops_make(&trial->drops, &choice)) return;
		hr__trial_judge_alone(trial);
		hr__trial_save(trial, &stages->sets[stages->count]);
		stages->sets[stages->count].cost = STAGE_UNTRIED;
		stages->excess[stages->count++] = hr__drops_excess(&trial->drops, &choice);
		more = hr__drops_step(&trial->drops, &choice);
	}
}

/* ---- by recomputing alone ---- */

/* A change to the best set: gap [gap] is dropped, or kept after all; the same for [other], if there is one; or tensor [brief] becomes
 * brief, or is held. */
typedef struct hr__drop_change {
	uint32_t gap, other, brief;
} hr__drop_change;

static void apply(hr__drop_trial *trial, const hr__drop_set *set, hr__drop_change change)
{
	hr__trial_use(trial, set);
	bool *dropped = trial->turns.dropped, *brief = trial->turns.brief;
	if (change.gap != HR__PLAN_NO_GAP) dropped[change.gap] = !dropped[change.gap];
	if (change.other != HR__PLAN_NO_GAP) dropped[change.other] = !dropped[change.other];
	if (change.brief != HR__PLAN_NEVER) brief[change.brief] = !brief[change.brief];
}

/* The change after [last]: single gaps, tensors, then one gap instead of another. False if there are no more. */
static bool next_change(const hr__drop_trial *trial, const hr__drop_set *set, hr__drop_change *last)
{
	const hr__recipes *recipes = &trial->recipes;
	uint32_t gaps = trial->ring->gap_count, tensors = trial->ring->step->tensor_count;
	if (last->brief == HR__PLAN_NEVER && last->other == HR__PLAN_NO_GAP) {
		do last->gap++; /* from HR__PLAN_NO_GAP to 0 */
		while (last->gap < gaps && !recipes->droppable[last->gap]);
		if (last->gap < gaps) return true;
		*last = (hr__drop_change){ HR__PLAN_NO_GAP, HR__PLAN_NO_GAP, HR__PLAN_NEVER };
	}
	if (last->gap == HR__PLAN_NO_GAP) {
		do last->brief++;
		while (last->brief < tensors && recipes->maker[last->brief] == HR__PLAN_NEVER);
		if (last->brief < tensors) return true;
		*last = (hr__drop_change){ 0, HR__PLAN_NO_GAP, HR__PLAN_NEVER };
	}
	for (; last->gap < gaps; last->gap++, last->other = HR__PLAN_NO_GAP) {
		if (!set->dropped[last->gap]) continue;
		do last->other++;
		while (last->other < gaps && (set->dropped[last->other] || !recipes->droppable[last->other]));
		if (last->other < gaps) return true;
	}
	return false;
}

/* Tries changes as long as that helps. With [both], moves are planned, too. */
static hr_status change(hr__drop_trial *trial, bool both, uint64_t most_work)
{
	const hr__drop_change before_all = { HR__PLAN_NO_GAP, HR__PLAN_NO_GAP, HR__PLAN_NEVER };
	hr__drop_set *best = both ? &trial->both : &trial->alone;
	hr__drop_change next = before_all;
	hr_status status = HR_OK;
	bool helped = false;
	while (status == HR_OK && best->cost < UINT64_MAX && hr__trial_work(trial) < most_work) {
		uint64_t before = best->cost, cost;
		if (!next_change(trial, best, &next)) {
			if (!helped) break;
			next = before_all;
			helped = false;
			continue;
		}
		apply(trial, best, next);
		if (both) status = hr__trial_both(trial, &cost);
		else hr__trial_alone(trial);
		if (best->cost < before) helped = true;
	}
	return status;
}

static void plan_alone(hr__stages *stages)
{
	make_stages(stages);
	(void)change(stages->trial, false, hr__trial_work(stages->trial) + ALONE_WORK);
}

/* ---- with moves ---- */

/* Tries a stage that was not tried before. There is none after the last, so *cost is UINT64_MAX. */
static hr_status try_stage(hr__stages *stages, uint32_t stage, uint64_t *cost)
{
	hr_status status = HR_OK;
	*cost = UINT64_MAX;
	if (stage >= stages->count) return HR_OK;
	hr__drop_set *set = &stages->sets[stage];
	if (set->cost == STAGE_UNTRIED) {
		hr__trial_use(stages->trial, set);
		status = hr__trial_both(stages->trial, &set->cost);
	}
	*cost = set->cost;
	return status;
}

static bool has_work_left(const hr__stages *stages)
{
	return hr__trial_work(stages->trial) - stages->begun < STAGES_WORK;
}

/* Finds the stage with the least cost by Fibonacci search, which tries one more stage for each part that it leaves out: from stage to
 * stage more time is spent on computing, and less on waiting. */
static hr_status search_stages(hr__stages *stages, uint32_t *best)
{
	uint32_t low = 0, smaller = 1, larger = 2; /* what is left begins at [low], and has [smaller] + [larger] - 1 stages */
	uint64_t cost, other;
	hr_status status = try_stage(stages, stages->count - 1, &cost);
	while (smaller + larger <= stages->count) {
		larger += smaller;
		smaller = larger - smaller;
	}
	while (status == HR_OK && smaller > 0 && larger > smaller && has_work_left(stages)) {
		status = try_stage(stages, low + smaller, &cost);
		if (status == HR_OK) status = try_stage(stages, low + larger, &other);
		if (status == HR_OK && cost > other) low += smaller;
		larger -= smaller;
		uint32_t swapped = smaller;
		smaller = larger;
		larger = swapped;
	}
	*best = 0;
	for (uint32_t i = 1; i < stages->count; i++)
		if (stages->sets[i].cost < stages->sets[*best].cost) *best = i;
	return status;
}

/* Tries what is between a stage and the one after it. */
static hr_status refine(hr__stages *stages, uint32_t stage)
{
	hr__drop_trial *trial = stages->trial;
	uint64_t cost;
	hr_status status = HR_OK;
	if (stage + 1 >= stages->count) return HR_OK;
	uint64_t more = stages->excess[stage], less = stages->excess[stage + 1];
	for (uint32_t k = 1; k <= REFINEMENTS && more > less && status == HR_OK && has_work_left(stages); k++) {
		hr__drop_choice choice = choice_of(stages, less + (more - less) / (REFINEMENTS + 1) * k);
		hr__trial_use(trial, &stages->sets[stage]);
		if (hr__drops_choose(&trial->drops, &choice)) status = hr__trial_both(trial, &cost);
	}
	return status;
}

/* Little can be gained if moving alone hides its copies. */
static hr_status plan_both(hr__stages *stages)
{
	uint32_t best = 0;
	uint64_t cost, plain = stages->trial->ring->time[stages->trial->ring->n];
	HR_ASSERT(stages->count > 0);
	stages->begun = hr__trial_work(stages->trial);
	hr__trial_use(stages->trial, &stages->trial->alone);
	hr_status status = hr__trial_both(stages->trial, &cost);
	if (status == HR_OK) status = try_stage(stages, 0, &cost);
	if (status != HR_OK || cost - plain <= plain / HIDDEN_SHARE) return status;
	status = search_stages(stages, &best);
	if (status == HR_OK) status = refine(stages, best);
	if (status == HR_OK && best > 0) status = refine(stages, best - 1);
	uint32_t most_work = stages->trial->ring->n < SMALL_OPS ? SMALL_BOTH_WORK : BOTH_WORK;
	return status == HR_OK ? change(stages->trial, true, stages->begun + most_work) : status;
}

/* ---- the plan ---- */

static hr_status no_memory(const hr__plan_ring *ring)
{
	return hr__fail(HR_NO_HOST_MEMORY, "no host memory to plan a step of %u ops", ring->n);
}

/* Moves are planned anew, so that the time may differ from that of the trial. */
static hr_status write_best(hr__drop_trial *trial, const hr__drop_set *best, hr__plan *out)
{
	hr_status status = hr__trial_write(trial, best, out);
	if (status != HR_OK || !hr__trial_fits_alone(trial) || out->step_ns <= trial->alone.cost) return status;
	hr__plan_free(out);
	return hr__trial_write(trial, &trial->alone, out);
}

static hr_status search(hr__drop_trial *trial, hr__plan_means means, hr__plan *out)
{
	hr__stages stages;
	hr_status status = HR_OK;
	const hr__drop_set *best = means == HR__PLAN_RECOMPUTE ? &trial->alone : &trial->both;
	if (!open_stages(&stages, trial)) return no_memory(trial->ring);
	plan_alone(&stages);
	if (means != HR__PLAN_RECOMPUTE) status = plan_both(&stages);
	hr__plan_scratch_free(&stages.scratch);
	if (status != HR_OK) return status;
	if (best->cost < UINT64_MAX && (best == &trial->both || hr__trial_fits_alone(trial))) return write_best(trial, best, out);
	return hr__fail(HR_OUT_OF_MEMORY, "no way was found to run the step in %llu bytes by running ops again",
	                (unsigned long long)trial->ring->machine->memory);
}

/* Takes the plan of moving alone instead, if it is better. */
static hr_status compare_with_moves(const hr__plan_ring *ring, hr__plan *out)
{
	hr__plan moves;
	uint64_t extra = 0, bound;
	hr_status status = hr__plan_ring_rough_bound(ring, &extra);
	if (status != HR_OK) return status;
	if (hr__add(ring->time[ring->n], extra, &bound) && out->step_ns < bound) return HR_OK; /* it cannot be */
	status = hr__plan_moves_make(ring, HR__MOVES_ALL, &moves, NULL);
	if (status != HR_OK) return status;
	if (moves.step_ns <= out->step_ns) {
		hr__plan worse = *out;
		*out = moves;
		moves = worse;
	}
	hr__plan_free(&moves);
	return HR_OK;
}

hr_status hr__combined_make(const hr__plan_ring *ring, hr__plan_means means, hr__plan *out)
{
	hr__drop_trial trial;
	*out = (hr__plan){ 0 };
	if (!hr__trial_open(&trial, ring)) return no_memory(ring);
	bool can_drop = trial.recipes.droppable_count > 0;
	hr_status status = HR_OUT_OF_MEMORY;
	if (can_drop || means == HR__PLAN_RECOMPUTE) status = search(&trial, means, out);
	hr__trial_close(&trial);
	if (means == HR__PLAN_RECOMPUTE) return status;
	if (status == HR_OUT_OF_MEMORY) return hr__plan_moves_make(ring, HR__MOVES_ALL, out, NULL);
	if (status == HR_OK && out->turn_count > 0) status = compare_with_moves(ring, out);
	if (status != HR_OK) hr__plan_free(out);
	return status;
}
