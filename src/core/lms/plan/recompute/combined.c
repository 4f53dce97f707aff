/* combined.c - see combined.h.
 *
 * Gaps are dropped one after the other, the cheapest for its bytes first, until the step fits (drops.c). On the way there are STAGES:
 * steps with some drops, which fit with some moves. Each is a step of its own (derived.h), for which moves are planned as for any
 * other. The first stage is moving alone, the last one recomputing alone. The more is dropped, the more time is spent on computing,
 * and the less on waiting for the link. In between is a stage from which on nearly all copies are hidden behind compute; it is found
 * by bisection. Then single drops are added and taken back as long as that helps.
 *
 * All of this is limited by counts of work, not by the clock, so that plans are deterministic. */
#include "core/lms/plan/recompute/combined.h"

#include <string.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/sort.h"
#include "core/base/status.h"
#include "core/lms/plan/plan_moves.h"
#include "core/lms/plan/recompute/derived.h"
#include "core/lms/plan/recompute/drops.h"
#include "core/os/os.h"

#define STAGES_MAX 64u
#define REFINEMENTS 3u          /* stages that are made between two others */
#define HIDDEN_SHARE 256u       /* copies are hidden if ops wait for less than this part of the step */
#define LINK_NS_OF_A_NS 256u    /* saving this much time of the links is worth 1 ns of the step */
#define EVALUATION_WORK_MAX 500000u /* about 20 ms */

typedef struct hr__stage {
	uint64_t excess; /* the highest, with these drops */
	uint64_t again_ns;
} hr__stage;

typedef struct hr__combining {
	const hr__plan_ring *ring;
	hr__plan_means means;
	hr__plan_scratch scratch;
	hr__recipes recipes;
	hr__turns turns;
	hr__drops drops;
	uint64_t *allowed;
	uint64_t work; /* for evaluations */
	hr__stage stages[STAGES_MAX];
	uint32_t stage_count;
	bool *stage_drops; /* by stage, then by gap */
	bool *best_drops;
	bool found;
	uint64_t best_cost, best_step_ns;
	hr_status status;
} hr__combining;

static uint64_t add_capped(uint64_t a, uint64_t b)
{
	uint64_t sum;
	return hr__add(a, b, &sum) ? sum : UINT64_MAX;
}

/* ---- memory ---- */

static hr_status no_memory(const hr__plan_ring *ring)
{
	return hr__fail(HR_NO_HOST_MEMORY, "no host memory to plan a step of %u ops", ring->n);
}

static bool open_combining(hr__combining *c)
{
	if (!hr__recipes_open(&c->recipes, c->ring)) return false;
	if (hr__turns_open(&c->turns, &c->recipes)) {
		if (hr__drops_open(&c->drops, &c->turns)) {
			if ((c->allowed = hr__plan_scratch_take(&c->scratch, c->ring->n, sizeof *c->allowed)) != NULL &&
			    (c->best_drops = hr__plan_scratch_take(&c->scratch, c->ring->gap_count, sizeof(bool))) != NULL &&
			    (c->stage_drops = hr__plan_scratch_take(&c->scratch, (uint64_t)STAGES_MAX * c->ring->gap_count, sizeof(bool))) != NULL)
				return true;
			hr__plan_scratch_free(&c->scratch);
			hr__drops_close(&c->drops);
		}
		hr__turns_close(&c->turns);
	}
	hr__recipes_close(&c->recipes);
	return false;
}

static void close_combining(hr__combining *c)
{
	hr__plan_scratch_free(&c->scratch);
	hr__drops_close(&c->drops);
	hr__turns_close(&c->turns);
	hr__recipes_close(&c->recipes);
}

/* ---- evaluation ---- */

/* Prefers less time and, at about equal time, less work for the links. */
static uint64_t cost_of(const hr__plan_machine *machine, const hr__plan_step *step, const hr__plan *plan)
{
	uint64_t link = 0, cost;
	for (uint32_t k = 0; k < plan->move_count; k++) {
		const hr__plan_move *move = &plan->moves[k];
		uint64_t bytes = step->tensors[move->tensor].bytes;
		link = add_capped(link, hr__plan_ring_copy_ns(bytes, machine->in_bytes_per_s, machine->copy_ns));
		if (!move->clean) link = add_capped(link, hr__plan_ring_copy_ns(bytes, machine->out_bytes_per_s, machine->copy_ns));
	}
	return hr__add(plan->step_ns, link / LINK_NS_OF_A_NS, &cost) ? cost : UINT64_MAX;
}

/* Plans moves for the turns, and sets *cost: UINT64_MAX if they do not fit. */
static hr_status plan_derived(hr__combining *c, const hr__derived *derived, hr__plan_effort effort, hr__plan *out, uint64_t *cost)
{
	hr__plan_ring ring;
	uint64_t peak = 0, least = 0;
	*out = (hr__plan){ 0 };
	*cost = UINT64_MAX;
	hr_status status = hr__plan_ring_open(&derived->step, c->ring->machine, &ring);
	if (status != HR_OK) return status;
	for (uint32_t i = 0; i < ring.n; i++) {
		if (ring.occupied[i] > peak) peak = ring.occupied[i];
		if (ring.least[i] > least) least = ring.least[i];
	}
	c->work += ring.n + derived->step.use_count + derived->step.tensor_count;
	if (peak <= c->ring->machine->memory) {
		*out = (hr__plan){ .step_ns = ring.time[ring.n], .peak_bytes = peak };
		*cost = out->step_ns;
	} else if (least <= c->ring->machine->memory && (c->means & HR__PLAN_MOVE)) {
		c->work += 5 * (ring.n + ring.gap_count);
		status = hr__plan_moves_make(&ring, effort, out);
		if (status == HR_OK) *cost = cost_of(c->ring->machine, &derived->step, out);
	}
	hr__plan_ring_close(&ring);
	return status;
}

/* Sets what a step takes with the current drops; keeps them if they are the best so far. *waits is the time that ops wait for copies.
 * False if that failed. */
static bool evaluate(hr__combining *c, uint64_t *cost, uint64_t *waits)
{
	hr__derived derived;
	hr__plan plan;
	*cost = *waits = UINT64_MAX;
	if (!hr__turns_make(&c->turns)) return true;
	if (!hr__derived_open(&derived, &c->turns)) {
		c->status = no_memory(c->ring);
		return false;
	}
	c->status = plan_derived(c, &derived, HR__MOVES_QUICK, &plan, cost);
	hr__derived_close(&derived);
	if (c->status != HR_OK) return false;
	if (*cost < UINT64_MAX) *waits = plan.step_ns - c->ring->time[c->ring->n] - c->turns.again_ns;
	if (*cost < c->best_cost) {
		c->found = true;
		c->best_cost = *cost;
		c->best_step_ns = plan.step_ns;
		memcpy(c->best_drops, c->turns.dropped, c->ring->gap_count * sizeof(bool));
	}
	hr__plan_free(&plan);
	return true;
}

/* ---- stages ---- */

static void set_allowed(hr__combining *c, uint64_t more)
{
	uint64_t allowed = add_capped(c->ring->machine->memory, more);
	for (uint32_t i = 0; i < c->ring->n; i++) c->allowed[i] = allowed;
}

static bool *drops_of(hr__combining *c, uint32_t stage)
{
	return c->stage_drops + (size_t)stage * c->ring->gap_count;
}

static void use_stage(hr__combining *c, uint32_t stage)
{
	memcpy(c->turns.dropped, drops_of(c, stage), c->ring->gap_count * sizeof(bool));
	memset(c->turns.banned, 0, c->ring->gap_count * sizeof(bool));
}

/* Makes stages with less and less excess, down to none if that is possible. */
static void make_stages(hr__combining *c)
{
	hr__drop_choice choice = { .allowed = c->allowed, .crest = 80, .most_ns_per_mib = UINT64_MAX };
	set_allowed(c, 0);
	memset(c->turns.dropped, 0, c->ring->gap_count * sizeof(bool));
	memset(c->turns.banned, 0, c->ring->gap_count * sizeof(bool));
	for (bool more = true; more && c->stage_count < STAGES_MAX;) {
		if (!hr__turns_make(&c->turns)) return;
		c->stages[c->stage_count] = (hr__stage){ hr__drops_excess(&c->drops, &choice), c->turns.again_ns };
		memcpy(drops_of(c, c->stage_count), c->turns.dropped, c->ring->gap_count * sizeof(bool));
		c->stage_count++;
		more = hr__drops_step(&c->drops, &choice);
	}
}

static bool evaluate_stage(hr__combining *c, uint32_t stage, uint64_t *cost, uint64_t *waits)
{
	use_stage(c, stage);
	return evaluate(c, cost, waits);
}

/* The first stage in which copies are hidden as well as in the last one. */
static bool bisect(hr__combining *c, uint32_t *found)
{
	uint32_t low = 0, high = c->stage_count - 1;
	uint64_t cost, last;
	if (!evaluate_stage(c, high, &cost, &last)) return false;
	uint64_t bearable = add_capped(last, c->ring->time[c->ring->n] / HIDDEN_SHARE);
	while (high - low > 1 && (c->means & HR__PLAN_MOVE)) {
		uint32_t middle = low + (high - low) / 2;
		uint64_t waits;
		if (!evaluate_stage(c, middle, &cost, &waits)) return false;
		if (waits <= bearable) high = middle;
		else low = middle;
	}
	*found = high;
	return true;
}

/* Tries excesses between those of two stages. */
static bool refine(hr__combining *c, uint32_t stage)
{
	uint64_t cost, waits;
	if (stage == 0 || !(c->means & HR__PLAN_MOVE)) return true;
	if (!evaluate_stage(c, stage - 1, &cost, &waits)) return false;
	uint64_t more = c->stages[stage - 1].excess, less = c->stages[stage].excess;
	for (uint32_t k = 1; k <= REFINEMENTS && more > less; k++) {
		hr__drop_choice choice = { .allowed = c->allowed, .crest = 80, .most_ns_per_mib = UINT64_MAX };
		set_allowed(c, less + (more - less) / (REFINEMENTS + 1) * k);
		use_stage(c, stage - 1);
		if (hr__drops_choose(&c->drops, &choice) && !evaluate(c, &cost, &waits)) return false;
	}
	return true;
}

/* Adds or takes back single drops as long as that helps. */
static bool toggle(hr__combining *c)
{
	uint64_t cost, waits;
	for (bool helped = true; helped && c->found;) {
		helped = false;
		for (uint32_t g = 0; g < c->ring->gap_count; g++) {
			if (!c->recipes.droppable[g]) continue;
			if (c->work >= EVALUATION_WORK_MAX) return true;
			memcpy(c->turns.dropped, c->best_drops, c->ring->gap_count * sizeof(bool));
			memset(c->turns.banned, 0, c->ring->gap_count * sizeof(bool));
			c->turns.dropped[g] = !c->turns.dropped[g];
			uint64_t before = c->best_cost;
			if (!evaluate(c, &cost, &waits)) return false;
			if (c->best_cost < before) helped = true;
		}
	}
	return true;
}

/* ---- the plan ---- */

static bool take(uint64_t count, size_t size, void **block)
{
	uint64_t bytes;
	*block = NULL;
	return count == 0 || (hr__multiply(count, size, &bytes) && bytes <= SIZE_MAX / 2 && hr__os()->alloc((size_t)bytes, block) == 0);
}

/* The instance is there for longer than the turn that makes it, and is not a second one. */
static bool is_kept(const hr__instance *instance)
{
	return !instance->again || (!instance->second && instance->last > instance->made);
}

static bool drops_before(const void *left, const void *right, const void *context)
{
	const hr__plan_drop *a = left, *b = right;
	(void)context;
	return a->after != b->after ? a->after < b->after : a->tensor < b->tensor;
}

/* By instance: the first turn that uses it after the one that makes it. */
static void find_needs(const hr__derived *derived, const hr__turns *turns, uint32_t *needed)
{
	for (uint32_t k = 0; k < turns->instance_count; k++) needed[k] = HR__PLAN_NEVER;
	for (uint32_t i = 0; i < derived->step.op_count; i++) {
		for (uint32_t u = derived->step.ops[i].first_use; u < hr__recipes_end_of_uses(&derived->step, i); u++) {
			uint32_t k = derived->step.uses[u].tensor;
			if (needed[k] == HR__PLAN_NEVER && turns->instances[k].made != i) needed[k] = i;
		}
	}
}

/* Writes a drop for each kept instance that ends before the tensor is there for the last time. [latest] and [needed] have room for each
 * tensor and each instance. NULL [drops]: only counts. */
static uint32_t list_drops(const hr__turns *turns, uint32_t *latest, const uint32_t *needed, hr__plan_drop *drops)
{
	uint32_t count = 0;
	for (uint32_t t = 0; t < turns->recipes->ring->step->tensor_count; t++) latest[t] = HR__PLAN_NEVER;
	for (uint32_t k = turns->instance_count; k-- > 0;) {
		const hr__instance *instance = &turns->instances[k];
		uint32_t t = instance->tensor;
		if (!is_kept(instance)) continue;
		uint32_t next = latest[t];
		latest[t] = k;
		if (next == HR__PLAN_NEVER && !instance->ghost) continue;
		if (drops != NULL) {
			hr__plan_drop *drop = &drops[count];
			*drop = (hr__plan_drop){ .tensor = t, .after = instance->last, .back_at = HR__PLAN_NEVER, .needed_by = HR__PLAN_NEVER };
			drop->ghost = instance->ghost;
			if (next != HR__PLAN_NEVER) {
				drop->back_at = turns->instances[next].made;
				drop->needed_by = needed[next];
				drop->ghost = turns->instances[next].ghost;
			}
		}
		count++;
	}
	return count;
}

/* Adds turns and drops to a plan for [derived], and names tensors in its moves. */
static hr_status write_turns(hr__combining *c, const hr__derived *derived, hr__plan *out)
{
	const hr__turns *turns = &c->turns;
	void *turn_block, *drop_block;
	uint32_t *needed = hr__plan_scratch_take(&c->scratch, turns->instance_count, sizeof *needed);
	uint32_t *latest = hr__plan_scratch_take(&c->scratch, c->ring->step->tensor_count, sizeof *latest);
	if (needed == NULL || latest == NULL) return no_memory(c->ring);
	for (uint32_t k = 0; k < out->move_count; k++) out->moves[k].tensor = turns->instances[out->moves[k].tensor].tensor;
	if (turns->count == c->ring->n) return HR_OK;
	find_needs(derived, turns, needed);
	uint32_t count = list_drops(turns, latest, needed, NULL);
	if (!take(turns->count, sizeof *out->turns, &turn_block)) return no_memory(c->ring);
	out->turns = turn_block;
	out->turn_count = turns->count;
	memcpy(out->turns, turns->turns, turns->count * sizeof *out->turns);
	if (!take(count, sizeof *out->drops, &drop_block)) return no_memory(c->ring);
	out->drops = drop_block;
	out->drop_count = count;
	out->again_ns = turns->again_ns;
	list_drops(turns, latest, needed, out->drops);
	hr__sort(out->drops, count, sizeof *out->drops, drops_before, NULL);
	return HR_OK;
}

static hr_status write_best(hr__combining *c, hr__plan *out)
{
	hr__derived derived;
	hr__plan improved;
	uint64_t cost, improved_cost;
	memcpy(c->turns.dropped, c->best_drops, c->ring->gap_count * sizeof(bool));
	memset(c->turns.banned, 0, c->ring->gap_count * sizeof(bool));
	bool made = hr__turns_make(&c->turns);
	HR_ASSERT(made);
	if (!made || !hr__derived_open(&derived, &c->turns)) return no_memory(c->ring);
	hr_status status = plan_derived(c, &derived, HR__MOVES_QUICK, out, &cost);
	if (status == HR_OK && out->step_ns > c->ring->time[c->ring->n] + c->turns.again_ns) {
		status = plan_derived(c, &derived, HR__MOVES_ALL, &improved, &improved_cost);
		if (status == HR_OK && improved_cost < cost) {
			hr__plan worse = *out;
			*out = improved;
			improved = worse;
		}
		if (status == HR_OK) hr__plan_free(&improved);
	}
	if (status == HR_OK) status = write_turns(c, &derived, out);
	hr__derived_close(&derived);
	if (status != HR_OK) hr__plan_free(out);
	return status;
}

static hr_status search(hr__combining *c, hr__plan *out)
{
	uint32_t stage;
	make_stages(c);
	if (c->stage_count > 0 && (!bisect(c, &stage) || !refine(c, stage) || !toggle(c))) return c->status;
	if (c->found) return write_best(c, out);
	return hr__fail(HR_OUT_OF_MEMORY, "no way was found to run the step in %llu bytes by running ops again",
	                (unsigned long long)c->ring->machine->memory);
}

/* Whether moving alone could be better than [plan]. */
static hr_status may_be_beaten(const hr__plan_ring *ring, const hr__plan *plan, bool *out)
{
	uint64_t extra = 0;
	hr_status status = hr__plan_ring_rough_bound(ring, &extra);
	*out = plan->step_ns >= add_capped(ring->time[ring->n], extra);
	return status;
}

static hr_status choose_better(const hr__plan_ring *ring, hr__plan *out)
{
	bool beaten;
	hr__plan moves;
	hr_status status = may_be_beaten(ring, out, &beaten);
	if (status != HR_OK || !beaten) return status;
	status = hr__plan_moves_make(ring, HR__MOVES_ALL, &moves);
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
	hr__combining c = { .ring = ring, .means = means, .best_cost = UINT64_MAX };
	*out = (hr__plan){ 0 };
	if (!open_combining(&c)) return no_memory(ring);
	hr_status status = HR_OK;
	bool none = c.recipes.droppable_count == 0;
	if (!none || means == HR__PLAN_RECOMPUTE) status = search(&c, out);
	close_combining(&c);
	if (means == HR__PLAN_RECOMPUTE) return status;
	if (none || status == HR_OUT_OF_MEMORY) return hr__plan_moves_make(ring, HR__MOVES_ALL, out);
	if (status == HR_OK) status = choose_better(ring, out);
	if (status != HR_OK) hr__plan_free(out);
	return status;
}
