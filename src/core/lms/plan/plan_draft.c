/* plan_draft.c - memory for drafts, and the orders in which they look at gaps. */
#include "core/lms/plan/plan_draft.h"

/* ---- heap sort, because libc's qsort may allocate ---- */

static void sift_down(uint64_t *keys, uint32_t *values, uint32_t at, uint32_t count)
{
	uint64_t key = keys[at];
	uint32_t value = values[at];
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= count) break;
		if (child + 1 < count && keys[child + 1] > keys[child]) child++;
		if (keys[child] <= key) break;
		keys[at] = keys[child];
		values[at] = values[child];
		at = child;
	}
	keys[at] = key;
	values[at] = value;
}

static void sort(uint64_t *keys, uint32_t *values, uint32_t count)
{
	for (uint32_t i = count / 2; i-- > 0;) sift_down(keys, values, i, count);
	while (count > 1) {
		count--;
		uint64_t key = keys[0];
		uint32_t value = values[0];
		keys[0] = keys[count];
		values[0] = values[count];
		keys[count] = key;
		values[count] = value;
		sift_down(keys, values, 0, count);
	}
}

/* ---- memory ---- */

bool hr__draft_open(hr__draft *draft, hr__drafting *drafting)
{
	uint32_t gaps = drafting->ring->gap_count;
	*draft = (hr__draft){ 0 };
	return (draft->chosen = hr__scratch_take(&drafting->scratch, gaps, sizeof *draft->chosen)) != NULL &&
	       (draft->clean = hr__scratch_take(&drafting->scratch, gaps, sizeof *draft->clean)) != NULL &&
	       (draft->in_before = hr__scratch_take(&drafting->scratch, gaps, sizeof *draft->in_before)) != NULL &&
	       (draft->copied_after = hr__scratch_take(&drafting->scratch, gaps, sizeof *draft->copied_after)) != NULL &&
	       (draft->blame = hr__scratch_take(&drafting->scratch, gaps, sizeof *draft->blame)) != NULL;
}

static bool take_memory(hr__drafting *drafting)
{
	hr__scratch *scratch = &drafting->scratch;
	uint64_t n = (uint64_t)drafting->ring->n + 2, gaps = (uint64_t)drafting->ring->gap_count + 1;
	uint32_t **by_gap[] = { &drafting->by_start, &drafting->by_need, &drafting->by_length, &drafting->outs,
		                    &drafting->copies,   &drafting->ins,     &drafting->early,     &drafting->need_of };
	uint32_t **by_op[] = { &drafting->by_start_first, &drafting->outs_first, &drafting->copies_first,
		                   &drafting->ins_first,      &drafting->last,       &drafting->open };
	for (size_t i = 0; i < sizeof by_gap / sizeof by_gap[0]; i++)
		if ((*by_gap[i] = hr__scratch_take(scratch, gaps, sizeof(uint32_t))) == NULL) return false;
	for (size_t i = 0; i < sizeof by_op / sizeof by_op[0]; i++)
		if ((*by_op[i] = hr__scratch_take(scratch, n, sizeof(uint32_t))) == NULL) return false;
	/* A gap that wraps around is a candidate twice. */
	for (int i = 0; i < HR__DRAFT_RANKS; i++)
		if ((drafting->heaps[i] = hr__scratch_take(scratch, 2 * gaps, sizeof(uint64_t))) == NULL) return false;
	return hr__levels_open(&drafting->levels, scratch, drafting->ring->n) &&
	       (drafting->starts = hr__scratch_take(scratch, n, sizeof(uint64_t))) != NULL &&
	       (drafting->ends = hr__scratch_take(scratch, n, sizeof(uint64_t))) != NULL &&
	       (drafting->ready = hr__scratch_take(scratch, n, sizeof(uint64_t))) != NULL &&
	       (drafting->avoid = hr__scratch_take(scratch, gaps, sizeof(bool))) != NULL &&
	       (drafting->slots = hr__scratch_take(scratch, n, sizeof(uint64_t))) != NULL &&
	       (drafting->out_done = hr__scratch_take(scratch, gaps, sizeof(uint64_t))) != NULL &&
	       (drafting->returned = hr__scratch_take(scratch, gaps, sizeof(uint64_t))) != NULL &&
	       (drafting->started = hr__scratch_take(scratch, drafting->ring->n, sizeof(uint64_t))) != NULL &&
	       (drafting->ended = hr__scratch_take(scratch, drafting->ring->n, sizeof(uint64_t))) != NULL &&
	       (drafting->freed_by_ops = hr__scratch_take(scratch, HR__DRAFT_STEPS * n, sizeof(hr__freed))) != NULL &&
	       (drafting->freed_by_copies = hr__scratch_take(scratch, HR__DRAFT_STEPS * gaps, sizeof(hr__freed))) != NULL;
}

bool hr__drafting_open(hr__drafting *drafting, const hr__ring *ring)
{
	*drafting = (hr__drafting){ .ring = ring };
	if (!take_memory(drafting)) {
		hr__drafting_close(drafting);
		return false;
	}
	uint64_t *keys = drafting->heaps[0]; /* not used until gaps are chosen */
	for (uint32_t g = 0; g < ring->gap_count; g++) {
		const hr__plan_gap *gap = &ring->gaps[g];
		drafting->by_start_first[gap->from + 1]++;
		keys[g] = (uint64_t)gap->from << 32 | hr__ring_distance(ring, gap->from, gap->to);
		drafting->by_start[g] = drafting->by_need[g] = drafting->by_length[g] = g;
	}
	for (uint32_t i = 0; i < ring->n; i++) drafting->by_start_first[i + 1] += drafting->by_start_first[i];
	sort(keys, drafting->by_start, ring->gap_count);
	for (uint32_t g = 0; g < ring->gap_count; g++) keys[g] = (uint64_t)ring->gaps[g].to << 32 | g;
	sort(keys, drafting->by_need, ring->gap_count);
	for (uint32_t k = 0; k < ring->gap_count; k++) drafting->need_of[drafting->by_need[k]] = k;
	for (uint32_t g = 0; g < ring->gap_count; g++)
		keys[g] = (uint64_t)hr__ring_distance(ring, ring->gaps[g].from, ring->gaps[g].to) << 32 | g;
	sort(keys, drafting->by_length, ring->gap_count);
	return true;
}

void hr__drafting_close(hr__drafting *drafting)
{
	hr__scratch_free(&drafting->scratch);
}
