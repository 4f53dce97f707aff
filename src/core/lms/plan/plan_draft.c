/* plan_draft.c - memory for drafts, and the orders in which they look at gaps. */
#include "core/lms/plan/plan_draft.h"

#include "core/base/sort.h"

/* Orders gaps by [key_of], which is at most the number of ops, and equal ones by number. [first] has room for that and one more. */
static void count_gaps(uint32_t *gaps, const hr__plan_ring *ring, uint32_t (*key_of)(const hr__plan_ring *ring, uint32_t gap), uint32_t *first)
{
	for (uint32_t i = 0; i < ring->n + 2; i++) first[i] = 0;
	for (uint32_t g = 0; g < ring->gap_count; g++) first[key_of(ring, g) + 1]++;
	for (uint32_t i = 0; i <= ring->n; i++) first[i + 1] += first[i];
	for (uint32_t g = 0; g < ring->gap_count; g++) gaps[first[key_of(ring, g)]++] = g;
}

static uint32_t start_key(const hr__plan_ring *ring, uint32_t gap)
{
	return ring->gaps[gap].from;
}

static uint32_t need_key(const hr__plan_ring *ring, uint32_t gap)
{
	return ring->gaps[gap].to;
}

static uint32_t length_key(const hr__plan_ring *ring, uint32_t gap)
{
	return hr__plan_ring_distance(ring, ring->gaps[gap].from, ring->gaps[gap].to);
}

/* The order of evictions after the same op: those that are restored first, then the largest, then the youngest. (The model does not depend
 * on the latter two. Played at 40% of its peak, resnet takes 1.10 times its time with this order, and 1.18 with its reverse.) */
static bool is_before(const void *left, const void *right, const void *context)
{
	const hr__plan_ring *ring = context;
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right, of_a = length_key(ring, a), of_b = length_key(ring, b);
	if (of_a != of_b) return of_a < of_b;
	return ring->gaps[a].bytes != ring->gaps[b].bytes ? ring->gaps[a].bytes > ring->gaps[b].bytes : a > b;
}

static void sort_by_start(hr__plan_drafting *drafting)
{
	const hr__plan_ring *ring = drafting->ring;
	uint32_t *first = drafting->by_start_first;
	for (uint32_t g = 0; g < ring->gap_count; g++) first[ring->gaps[g].from + 1]++;
	for (uint32_t i = 0; i < ring->n; i++) first[i + 1] += first[i];
	count_gaps(drafting->by_start, ring, start_key, drafting->outs_first);
	for (uint32_t i = 0; i < ring->n; i++)
		hr__sort(drafting->by_start + first[i], first[i + 1] - first[i], sizeof *drafting->by_start, is_before, ring);
}

/* ---- memory ---- */

bool hr__plan_draft_open(hr__plan_draft *draft, hr__plan_drafting *drafting)
{
	uint32_t gaps = drafting->ring->gap_count;
	*draft = (hr__plan_draft){ 0 };
	return (draft->chosen = hr__plan_scratch_take(&drafting->scratch, gaps, sizeof *draft->chosen)) != NULL &&
	       (draft->clean = hr__plan_scratch_take(&drafting->scratch, gaps, sizeof *draft->clean)) != NULL &&
	       (draft->in_before = hr__plan_scratch_take(&drafting->scratch, gaps, sizeof *draft->in_before)) != NULL &&
	       (draft->copied_after = hr__plan_scratch_take(&drafting->scratch, gaps, sizeof *draft->copied_after)) != NULL &&
	       (draft->blame = hr__plan_scratch_take(&drafting->scratch, gaps, sizeof *draft->blame)) != NULL;
}

static bool take_memory(hr__plan_drafting *drafting)
{
	hr__plan_scratch *scratch = &drafting->scratch;
	uint64_t n = (uint64_t)drafting->ring->n + 2, gaps = (uint64_t)drafting->ring->gap_count + 1;
	uint32_t **by_gap[] = { &drafting->by_start, &drafting->by_need, &drafting->by_length, &drafting->outs,
		                    &drafting->copies,   &drafting->ins,     &drafting->early,     &drafting->need_of };
	uint32_t **by_op[] = { &drafting->by_start_first, &drafting->outs_first, &drafting->copies_first,
		                   &drafting->ins_first,      &drafting->last,       &drafting->open };
	for (size_t i = 0; i < sizeof by_gap / sizeof by_gap[0]; i++)
		if ((*by_gap[i] = hr__plan_scratch_take(scratch, gaps, sizeof(uint32_t))) == NULL) return false;
	for (size_t i = 0; i < sizeof by_op / sizeof by_op[0]; i++)
		if ((*by_op[i] = hr__plan_scratch_take(scratch, n, sizeof(uint32_t))) == NULL) return false;
	/* A gap that wraps around is a candidate twice. */
	for (int i = 0; i < HR__PLAN_DRAFT_RANKS; i++)
		if ((drafting->heaps[i] = hr__plan_scratch_take(scratch, 2 * gaps, sizeof(uint64_t))) == NULL) return false;
	return hr__occupancy_open(&drafting->occupancy, scratch, drafting->ring->n) &&
	       (drafting->starts = hr__plan_scratch_take(scratch, n, sizeof(uint64_t))) != NULL &&
	       (drafting->ends = hr__plan_scratch_take(scratch, n, sizeof(uint64_t))) != NULL &&
	       (drafting->ready = hr__plan_scratch_take(scratch, n, sizeof(uint64_t))) != NULL &&
	       (drafting->avoid = hr__plan_scratch_take(scratch, gaps, sizeof(bool))) != NULL &&
	       (drafting->slots = hr__plan_scratch_take(scratch, n, sizeof(uint64_t))) != NULL &&
	       (drafting->out_done = hr__plan_scratch_take(scratch, gaps, sizeof(uint64_t))) != NULL &&
	       (drafting->restore_began = hr__plan_scratch_take(scratch, gaps, sizeof(uint64_t))) != NULL &&
	       (drafting->started = hr__plan_scratch_take(scratch, drafting->ring->n, sizeof(uint64_t))) != NULL &&
	       (drafting->ended = hr__plan_scratch_take(scratch, drafting->ring->n, sizeof(uint64_t))) != NULL &&
	       (drafting->freed_by_ops = hr__plan_scratch_take(scratch, HR__PLAN_DRAFT_STEPS * n, sizeof(hr__plan_freed))) != NULL &&
	       (drafting->freed_by_copies = hr__plan_scratch_take(scratch, HR__PLAN_DRAFT_STEPS * gaps, sizeof(hr__plan_freed))) !=
	           NULL;
}

bool hr__plan_drafting_open(hr__plan_drafting *drafting, const hr__plan_ring *ring)
{
	*drafting = (hr__plan_drafting){ .ring = ring };
	if (!take_memory(drafting)) {
		hr__plan_drafting_close(drafting);
		return false;
	}
	sort_by_start(drafting);
	count_gaps(drafting->by_need, ring, need_key, drafting->outs_first);
	count_gaps(drafting->by_length, ring, length_key, drafting->outs_first);
	for (uint32_t k = 0; k < ring->gap_count; k++) drafting->need_of[drafting->by_need[k]] = k;
	return true;
}

void hr__plan_drafting_close(hr__plan_drafting *drafting)
{
	hr__plan_scratch_free(&drafting->scratch);
}
