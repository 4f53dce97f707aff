/* plan_simulate.c - how long a step takes with a plan, by the model at the top of plan.c. */
#include "core/base/assert.h"
#include "core/lms/plan/plan_draft.h"

typedef struct queue {
	hr__plan_freed *entries;
	uint32_t head, tail;
} queue;

typedef struct simulation {
	hr__plan_drafting *drafting;
	hr__plan_draft *draft;
	queue by_ops, by_copies;
	uint64_t op_done, out_free, in_free; /* when each of the three servers is free */
} simulation;

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Saturates instead of wrapping around, for steps of extreme length. */
static uint64_t after(uint64_t when, uint64_t ns)
{
	uint64_t sum;
	return __builtin_add_overflow(when, ns, &sum) ? UINT64_MAX : sum;
}

static void add_freed(queue *to, uint64_t when, uint64_t bytes)
{
	HR_ASSERT(to->head <= to->tail);
	if (bytes == 0) return;
	if (to->head < to->tail && to->entries[to->tail - 1].when == when) to->entries[to->tail - 1].bytes += bytes;
	else to->entries[to->tail++] = (hr__plan_freed){ when, bytes, HR__PLAN_NO_GAP };
}

/* The same for times that may be out of order. */
static void add_freed_sorted(queue *to, uint64_t when, uint64_t bytes, uint32_t gap)
{
	uint32_t at = to->tail++;
	for (; at > to->head && to->entries[at - 1].when > when; at--) to->entries[at] = to->entries[at - 1];
	to->entries[at] = (hr__plan_freed){ when, bytes, gap };
}

/* When memory for [bytes] is free. Bytes that are free first are used first. *last gets the gap that was waited for. */
static uint64_t take(simulation *sim, uint64_t bytes, uint32_t *last)
{
	uint64_t when = 0;
	while (bytes > 0) {
		queue *ops = &sim->by_ops, *copies = &sim->by_copies, *from;
		if (ops->head == ops->tail && copies->head == copies->tail) break;
		if (ops->head == ops->tail) from = copies;
		else if (copies->head == copies->tail) from = ops;
		else from = ops->entries[ops->head].when <= copies->entries[copies->head].when ? ops : copies;
		hr__plan_freed *freed = &from->entries[from->head];
		uint64_t part = bytes < freed->bytes ? bytes : freed->bytes;
		if (freed->when >= when) {
			when = freed->when;
			*last = freed->gap;
		}
		bytes -= part;
		freed->bytes -= part;
		if (freed->bytes == 0) from->head++;
	}
	return when;
}

static void issue_restore(simulation *sim, uint32_t g)
{
	HR_ASSERT(sim->draft->chosen[g]);
	hr__plan_drafting *drafting = sim->drafting;
	const hr__plan_gap *gap = &drafting->ring->gaps[g];
	uint32_t waited_for;
	uint64_t start = later(later(sim->in_free, take(sim, gap->bytes, &waited_for)),
	                       sim->draft->clean[g] ? 0 : drafting->out_done[g]);
	drafting->restore_began[g] = start;
	sim->in_free = after(start, gap->in_ns);
	if (sim->in_free < drafting->ready[gap->to]) return;
	drafting->ready[gap->to] = sim->in_free;
	drafting->last[gap->to] = g;
}

static void issue_copy(simulation *sim, uint32_t g)
{
	HR_ASSERT(sim->draft->chosen[g] && !sim->draft->clean[g]);
	sim->out_free = after(later(sim->out_free, sim->op_done), sim->drafting->ring->gaps[g].out_ns);
	sim->drafting->out_done[g] = sim->out_free;
}

/* Memory of a tensor that needs no copy, or is copied by now, is free when the op is done. */
static void issue_eviction(simulation *sim, uint32_t g)
{
	uint64_t copied = sim->draft->clean[g] ? 0 : sim->drafting->out_done[g], bytes = sim->drafting->ring->gaps[g].bytes;
	if (copied <= sim->op_done) add_freed(&sim->by_ops, sim->op_done, bytes);
	else add_freed_sorted(&sim->by_copies, copied, bytes, g);
}

static void run_step(simulation *sim)
{
	hr__plan_drafting *drafting = sim->drafting;
	const hr__plan_ring *ring = drafting->ring;
	for (uint32_t i = 0; i < ring->n; i++) {
		for (uint32_t k = drafting->ins_first[i]; k < drafting->ins_first[i + 1]; k++) issue_restore(sim, drafting->ins[k]);
		uint32_t waited_for = HR__PLAN_NO_GAP;
		uint64_t room = take(sim, ring->born[i], &waited_for), start = later(room, drafting->ready[i]);
		if (drafting->ready[i] > room) waited_for = drafting->last[i];
		if (start < sim->op_done) start = sim->op_done;
		else if (waited_for != HR__PLAN_NO_GAP) sim->draft->blame[waited_for] += start - sim->op_done;
		drafting->ready[i] = 0;
		drafting->last[i] = HR__PLAN_NO_GAP;
		sim->op_done = after(start, ring->step->ops[i].ns);
		drafting->started[i] = start;
		drafting->ended[i] = sim->op_done;
		add_freed(&sim->by_ops, sim->op_done, ring->dead[i]);
		for (uint32_t k = drafting->copies_first[i]; k < drafting->copies_first[i + 1]; k++) issue_copy(sim, drafting->copies[k]);
		for (uint32_t k = drafting->outs_first[i]; k < drafting->outs_first[i + 1]; k++) issue_eviction(sim, drafting->outs[k]);
	}
}

/* ---- the order of issue ---- */

static void list_outs(hr__plan_drafting *drafting, const hr__plan_draft *draft)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < drafting->ring->n; i++) {
		drafting->outs_first[i] = count;
		for (uint32_t k = drafting->by_start_first[i]; k < drafting->by_start_first[i + 1]; k++)
			if (draft->chosen[drafting->by_start[k]]) drafting->outs[count++] = drafting->by_start[k];
	}
	drafting->outs_first[drafting->ring->n] = count;
}

/* Turns counts at [op + 2] into first indices at [op + 1]. Adding entries then advances each to the start of the next op, where it
 * belongs. */
static void begin_list(uint32_t *first, uint32_t n)
{
	first[0] = first[1] = 0;
	for (uint32_t i = 1; i < n; i++) first[i + 1] += first[i];
}

/* Copies after the same op in the order of moves. */
static void list_copies(hr__plan_drafting *drafting, const hr__plan_draft *draft)
{
	uint32_t n = drafting->ring->n, *first = drafting->copies_first, count = drafting->outs_first[n];
	for (uint32_t i = 0; i < n + 2; i++) first[i] = 0;
	for (uint32_t k = 0; k < count; k++)
		if (!draft->clean[drafting->outs[k]]) first[draft->copied_after[drafting->outs[k]] + 2]++;
	begin_list(first, n);
	for (uint32_t k = 0; k < count; k++) {
		uint32_t g = drafting->outs[k];
		if (!draft->clean[g]) drafting->copies[first[draft->copied_after[g] + 1]++] = g;
	}
}

/* Restores before the same op in the order of need: those for this step, then those for the next. */
static void list_ins(hr__plan_drafting *drafting, const hr__plan_draft *draft)
{
	const hr__plan_ring *ring = drafting->ring;
	uint32_t *first = drafting->ins_first;
	for (uint32_t i = 0; i < ring->n + 2; i++) first[i] = 0;
	for (uint32_t g = 0; g < ring->gap_count; g++)
		if (draft->chosen[g]) first[draft->in_before[g] + 2]++;
	begin_list(first, ring->n);
	for (int next = 0; next < 2; next++) {
		for (uint32_t k = 0; k < ring->gap_count; k++) {
			uint32_t g = drafting->by_need[k];
			if (!draft->chosen[g] || (ring->gaps[g].to < draft->in_before[g]) != next) continue;
			drafting->ins[first[draft->in_before[g] + 1]++] = g;
		}
	}
}

/* ---- running ---- */

/* Bytes in use when a step begins: tensors that lived before, except those evicted across the end of the step. */
static uint64_t in_use_at_start(const hr__plan_ring *ring, const hr__plan_draft *draft)
{
	uint64_t bytes = ring->occupied[0] - ring->born[0];
	for (uint32_t g = 0; g < ring->gap_count; g++) {
		const hr__plan_gap *gap = &ring->gaps[g];
		bool over_the_end = draft->chosen[g] && gap->to <= gap->from && (draft->in_before[g] <= gap->to);
		if (over_the_end) bytes -= gap->bytes;
	}
	return bytes;
}

void hr__plan_draft_simulate(hr__plan_drafting *drafting, hr__plan_draft *draft)
{
	const hr__plan_ring *ring = drafting->ring;
	simulation sim = { .drafting = drafting, .draft = draft };
	uint64_t born = 0, dead = 0, ended = 0, step_ns = 0;
	sim.by_ops.entries = drafting->freed_by_ops;
	sim.by_copies.entries = drafting->freed_by_copies;
	list_outs(drafting, draft);
	list_copies(drafting, draft);
	list_ins(drafting, draft);
	for (uint32_t i = 0; i < ring->n; i++) {
		drafting->ready[i] = 0;
		drafting->last[i] = HR__PLAN_NO_GAP;
		born += ring->born[i];
		dead += ring->dead[i];
	}
	for (uint32_t g = 0; g < ring->gap_count; g++) drafting->out_done[g] = 0;
	add_freed(&sim.by_ops, 0, ring->machine->memory - in_use_at_start(ring, draft));
	for (int step = 0; step < HR__PLAN_DRAFT_STEPS; step++) {
		for (uint32_t g = 0; g < ring->gap_count; g++) draft->blame[g] = 0;
		run_step(&sim);
		/* The ring closes: tensors created in a step that live on are gone when the next one begins, and those that die in it exist
		 * again. */
		if (born > dead) add_freed(&sim.by_ops, sim.op_done, born - dead);
		else drafting->ready[0] = later(drafting->ready[0], take(&sim, dead - born, &drafting->last[0]));
		uint64_t took = sim.op_done - ended;
		ended = sim.op_done;
		if (took == step_ns) break;
		step_ns = took;
	}
	draft->step_ns = step_ns;
}
