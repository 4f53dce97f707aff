/* trial.c - see trial.h. */
#include "core/lms/plan/recompute/trial.h"

#include <string.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/sort.h"
#include "core/base/status.h"
#include "core/lms/plan/plan_moves.h"
#include "core/lms/plan/recompute/derived.h"
#include "core/os/os.h"

#define COST_UNFIT (UINT64_C(1) << 63) /* of a set that does not fit, plus the bytes that do not */

static hr_status no_memory(const hr__plan_ring *ring)
{
	return hr__fail(HR_NO_HOST_MEMORY, "no host memory to plan a step of %u ops", ring->n);
}

static uint64_t add_capped(uint64_t a, uint64_t b)
{
	uint64_t sum;
	return hr__add(a, b, &sum) ? sum : UINT64_MAX;
}

/* ---- memory ---- */

static bool open_set(hr__drop_trial *trial, hr__drop_set *set)
{
	*set = (hr__drop_set){ .cost = UINT64_MAX };
	set->dropped = hr__plan_scratch_take(&trial->scratch, trial->ring->gap_count, sizeof *set->dropped);
	set->brief = hr__plan_scratch_take(&trial->scratch, trial->ring->step->tensor_count, sizeof *set->brief);
	return set->dropped != NULL && set->brief != NULL;
}

bool hr__trial_open(hr__drop_trial *trial, const hr__plan_ring *ring)
{
	*trial = (hr__drop_trial){ .ring = ring };
	if (open_set(trial, &trial->alone) && open_set(trial, &trial->both) && hr__recipes_open(&trial->recipes, ring) &&
	    hr__turns_open(&trial->turns, &trial->recipes) && hr__drops_open(&trial->drops, &trial->turns))
		return true;
	hr__trial_close(trial);
	return false;
}

void hr__trial_close(hr__drop_trial *trial)
{
	hr__drops_close(&trial->drops);
	hr__turns_close(&trial->turns);
	hr__recipes_close(&trial->recipes);
	hr__plan_scratch_free(&trial->scratch);
}

uint64_t hr__trial_work(const hr__drop_trial *trial)
{
	return trial->work + trial->turns.work / 5;
}

/* ---- sets ---- */

static void keep_if_best(hr__drop_trial *trial, hr__drop_set *set, uint64_t cost)
{
	if (cost >= set->cost) return;
	set->cost = cost;
	hr__trial_save(trial, set);
}

void hr__trial_save(const hr__drop_trial *trial, hr__drop_set *set)
{
	memcpy(set->dropped, trial->turns.dropped, trial->ring->gap_count * sizeof *set->dropped);
	memcpy(set->brief, trial->turns.brief, trial->ring->step->tensor_count * sizeof *set->brief);
}

void hr__trial_use(hr__drop_trial *trial, const hr__drop_set *set)
{
	memcpy(trial->turns.dropped, set->dropped, trial->ring->gap_count * sizeof *set->dropped);
	memset(trial->turns.banned, 0, trial->ring->gap_count * sizeof *trial->turns.banned);
	memcpy(trial->turns.brief, set->brief, trial->ring->step->tensor_count * sizeof *set->brief);
}

/* ---- alone ---- */

void hr__trial_alone(hr__drop_trial *trial)
{
	if (hr__turns_make(&trial->turns, HR__TURNS_NO_PRICES)) hr__trial_judge_alone(trial);
}

void hr__trial_judge_alone(hr__drop_trial *trial)
{
	uint64_t most = 0, memory = trial->ring->machine->memory;
	for (uint32_t i = 0; i < trial->turns.count; i++)
		if (trial->turns.occupied[i] > most) most = trial->turns.occupied[i];
	uint64_t step_ns = add_capped(trial->ring->time[trial->ring->n], trial->turns.again_ns);
	if (step_ns >= COST_UNFIT) step_ns = COST_UNFIT - 1;
	keep_if_best(trial, &trial->alone, most > memory ? add_capped(COST_UNFIT, most - memory) : step_ns);
}

bool hr__trial_fits_alone(const hr__drop_trial *trial)
{
	return trial->alone.cost < COST_UNFIT;
}

/* ---- with moves ---- */

/* Plans moves for a step that is the turns. *cost is UINT64_MAX if they do not fit; then there is no plan. NULL [out]: finds the cost alone. */
static hr_status plan_derived(hr__drop_trial *trial, const hr__plan_step *step, hr__plan_effort effort, hr__plan *out, uint64_t *cost)
{
	const hr__plan_machine *machine = trial->ring->machine;
	hr__plan_ring ring;
	uint64_t peak = 0, least = 0;
	if (out != NULL) *out = (hr__plan){ 0 };
	*cost = UINT64_MAX;
	hr_status status = hr__plan_ring_open(step, machine, &ring);
	if (status == HR_INVALID_ARGUMENT) return HR_OK; /* sums of the largest numbers overflow */
	if (status != HR_OK) return status;
	for (uint32_t i = 0; i < ring.n; i++) {
		if (ring.occupied[i] > peak) peak = ring.occupied[i];
		if (ring.least[i] > least) least = ring.least[i];
	}
	trial->work += ring.n + step->use_count + step->tensor_count;
	if (peak <= machine->memory) {
		if (out != NULL) *out = (hr__plan){ .step_ns = ring.time[ring.n], .peak_bytes = peak };
		*cost = ring.time[ring.n];
	} else if (least <= machine->memory) {
		trial->work += 5 * (ring.n + ring.gap_count);
		status = hr__plan_moves_make(&ring, effort, out, cost);
	}
	hr__plan_ring_close(&ring);
	return status;
}

hr_status hr__trial_both(hr__drop_trial *trial, uint64_t *cost)
{
	hr__derived derived;
	*cost = UINT64_MAX;
	if (!hr__turns_make(&trial->turns, HR__TURNS_NO_PRICES)) return HR_OK;
	if (!hr__derived_open(&derived, &trial->turns)) return no_memory(trial->ring);
	hr_status status = plan_derived(trial, &derived.step, HR__MOVES_QUICK, NULL, cost);
	hr__derived_close(&derived);
	if (status != HR_OK) return status;
	keep_if_best(trial, &trial->both, *cost);
	return HR_OK;
}

/* ---- the plan ---- */

/* Whether the instance is there for longer than the turn that makes it, and is not a second one. */
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

/* A drop for each instance that another one follows, and for the last one of a ghost; returns their number. [latest] has room for each
 * tensor. NULL [drops]: only counts. */
static uint32_t list_drops(const hr__turns *turns, uint32_t *latest, const uint32_t *needed, hr__plan_drop *drops)
{
	uint32_t count = 0;
	for (uint32_t t = 0; t < turns->recipes->ring->step->tensor_count; t++) latest[t] = HR__PLAN_NEVER;
	for (uint32_t k = turns->instance_count; k-- > 0;) {
		const hr__instance *instance = &turns->instances[k];
		if (!is_kept(instance)) continue;
		uint32_t next = latest[instance->tensor];
		bool again = next != HR__PLAN_NEVER;
		latest[instance->tensor] = k;
		if (!again && !instance->ghost) continue;
		if (drops != NULL)
			drops[count] = (hr__plan_drop){ .tensor = instance->tensor,
				                            .after = instance->last,
				                            .back_at = again ? turns->instances[next].made : HR__PLAN_NEVER,
				                            .needed_by = again ? needed[next] : HR__PLAN_NEVER,
				                            .ghost = again ? turns->instances[next].ghost : instance->ghost };
		count++;
	}
	return count;
}

static bool take(uint32_t count, size_t size, void **block)
{
	uint64_t bytes;
	*block = NULL;
	return count == 0 || (hr__multiply(count, size, &bytes) && bytes <= SIZE_MAX / 2 && hr__os()->alloc((size_t)bytes, block) == 0);
}

/* Adds turns and drops to the plan of [derived], and names tensors in its moves. [needed] has room for each instance, [latest] for each
 * tensor. */
static bool write_turns(const hr__turns *turns, const hr__derived *derived, uint32_t *needed, uint32_t *latest, hr__plan *out)
{
	void *block;
	for (uint32_t k = 0; k < out->move_count; k++) out->moves[k].tensor = turns->instances[out->moves[k].tensor].tensor;
	find_needs(derived, turns, needed);
	if (!take(turns->count, sizeof *out->turns, &block)) return false;
	out->turns = block;
	out->turn_count = turns->count;
	memcpy(out->turns, turns->turns, turns->count * sizeof *out->turns);
	uint32_t count = list_drops(turns, latest, needed, NULL);
	if (!take(count, sizeof *out->drops, &block)) return false;
	out->drops = block;
	out->drop_count = count;
	out->again_ns = turns->again_ns;
	list_drops(turns, latest, needed, out->drops);
	hr__sort(out->drops, count, sizeof *out->drops, drops_before, NULL);
	return true;
}

/* Plans moves for the step as it is, quickly and, if ops wait for copies, thoroughly. */
static hr_status plan_moves_alone(hr__drop_trial *trial, hr__plan *out)
{
	hr__plan other;
	uint64_t cost, other_cost;
	hr_status status = plan_derived(trial, trial->ring->step, HR__MOVES_QUICK, out, &cost);
	if (status != HR_OK || out->step_ns == trial->ring->time[trial->ring->n]) return status;
	status = plan_derived(trial, trial->ring->step, HR__MOVES_ALL, &other, &other_cost);
	if (status == HR_OK && other_cost < cost) {
		hr__plan worse = *out;
		*out = other;
		other = worse;
	}
	if (status == HR_OK) hr__plan_free(&other);
	return status;
}

hr_status hr__trial_write(hr__drop_trial *trial, const hr__drop_set *set, hr__plan *out)
{
	hr__derived derived;
	hr__plan_scratch scratch = { 0 };
	HR_ASSERT(set->cost < UINT64_MAX);
	*out = (hr__plan){ 0 };
	hr__trial_use(trial, set);
	bool made = hr__turns_make(&trial->turns, HR__TURNS_NO_PRICES);
	HR_ASSERT(made);
	if (!made) return hr__fail(HR_OUT_OF_MEMORY, "the plan has too many turns");
	if (trial->turns.count == trial->ring->n) return plan_moves_alone(trial, out); /* nothing runs again */
	uint32_t *needed = hr__plan_scratch_take(&scratch, trial->turns.instance_count, sizeof *needed);
	uint32_t *latest = hr__plan_scratch_take(&scratch, trial->ring->step->tensor_count, sizeof *latest);
	hr_status status = no_memory(trial->ring);
	if (needed != NULL && latest != NULL && hr__derived_open(&derived, &trial->turns)) {
		uint64_t cost;
		status = plan_derived(trial, &derived.step, HR__MOVES_SOME, out, &cost);
		if (status == HR_OK && !write_turns(&trial->turns, &derived, needed, latest, out)) status = no_memory(trial->ring);
		hr__derived_close(&derived);
	}
	hr__plan_scratch_free(&scratch);
	if (status != HR_OK) hr__plan_free(out);
	return status;
}
