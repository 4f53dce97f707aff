/* plan_place.c - when evicted tensors are restored, which evictions are not needed, and which host copies are valid. */
#include "core/base/assert.h"
#include "core/lms/plan/plan_draft.h"

/* When it has to be back at the latest: at its next use, or earlier by the time reserved for it on the link. */
static uint32_t latest_end(const hr__plan_drafting *drafting, uint32_t g)
{
	HR_ASSERT(drafting->early[g] < drafting->ring->n);
	uint32_t to = drafting->ring->gaps[g].to, early = drafting->early[g];
	return to >= early ? to - early : to + drafting->ring->n - early;
}

/* The tensor is on the device from position [first] to before [end] after all. */
static void add_back(hr__plan_drafting *drafting, uint32_t first, uint32_t end, uint64_t bytes)
{
	HR_ASSERT(end <= drafting->ring->n);
	uint32_t n = drafting->ring->n;
	if (first >= n) first -= n;
	if (first < end) {
		hr__occupancy_add(&drafting->occupancy, first, end - 1, bytes);
		return;
	}
	hr__occupancy_add(&drafting->occupancy, first, n - 1, bytes);
	if (end > 0) hr__occupancy_add(&drafting->occupancy, 0, end - 1, bytes);
}

/* Sets [values] to the bytes in use at each position if chosen gap [g] is evicted up to ends[g], or up to its latest end if there are no
 * [ends]. Returns the highest. */
static uint64_t sum_up(const hr__plan_drafting *drafting, const hr__plan_draft *draft, const uint32_t *ends, uint64_t *values)
{
	const hr__plan_ring *ring = drafting->ring;
	uint64_t away = 0, most = 0;
	for (uint32_t i = 0; i <= ring->n; i++) values[i] = 0;
	for (uint32_t g = 0; g < ring->gap_count; g++) {
		if (!draft->chosen[g]) continue;
		uint32_t first = ring->gaps[g].from + 1, end = ends != NULL ? ends[g] : latest_end(drafting, g);
		values[first] += ring->gaps[g].bytes;
		values[end] -= ring->gaps[g].bytes;
		if (first >= end) values[0] += ring->gaps[g].bytes; /* evicted when the step begins */
	}
	for (uint32_t i = 0; i < ring->n; i++) {
		away += values[i];
		values[i] = ring->occupied[i] - away;
		if (values[i] > most) most = values[i];
	}
	return most;
}

uint64_t hr__plan_draft_peak(hr__plan_drafting *drafting, const hr__plan_draft *draft)
{
	return sum_up(drafting, draft, draft->in_before, drafting->starts);
}

/* The last position before its latest end at which its bytes do not fit; UINT32_MAX = none. */
static uint32_t last_full(hr__plan_drafting *drafting, uint32_t g)
{
	const hr__plan_gap *gap = &drafting->ring->gaps[g];
	uint64_t limit = drafting->ring->machine->memory;
	uint32_t n = drafting->ring->n, end = latest_end(drafting, g), at;
	if (gap->bytes > limit) return end > 0 ? end - 1 : n - 1;
	limit -= gap->bytes;
	if (end > gap->from) return hr__occupancy_last_above(&drafting->occupancy, gap->from + 1, end - 1, limit);
	if (end > 0 && (at = hr__occupancy_last_above(&drafting->occupancy, 0, end - 1, limit)) != UINT32_MAX) return at;
	return gap->from + 1 < n ? hr__occupancy_last_above(&drafting->occupancy, gap->from + 1, n - 1, limit) : UINT32_MAX;
}

/* Drops moves without which every position still fits, those with the shortest gaps first. */
static void drop_needless(hr__plan_drafting *drafting, hr__plan_draft *draft)
{
	const hr__plan_ring *ring = drafting->ring;
	sum_up(drafting, draft, NULL, drafting->starts);
	hr__occupancy_set(&drafting->occupancy, drafting->starts);
	for (uint32_t k = 0; k < ring->gap_count; k++) {
		uint32_t g = drafting->by_length[k];
		const hr__plan_gap *gap = &ring->gaps[g];
		if (!draft->chosen[g] || last_full(drafting, g) != UINT32_MAX) continue;
		draft->chosen[g] = false;
		add_back(drafting, gap->from + 1, latest_end(drafting, g), gap->bytes);
	}
}

/* Walks the uses of a tensor around the ring: a host copy is valid from the time it is made until the tensor is written. It can be
 * made after the last write, while ops still read the tensor. */
static void find_clean(hr__plan_drafting *drafting, hr__plan_draft *draft, uint32_t tensor, bool copy_early)
{
	const hr__plan_ring *ring = drafting->ring;
	uint32_t begin = ring->first[tensor], written = begin;
	bool good = false;
	for (int round = hr__plan_ring_is_cyclic(&ring->step->tensors[tensor]) ? 0 : 1; round < 2; round++) {
		for (uint32_t k = begin; k < ring->first[tensor + 1]; k++) {
			uint32_t g = ring->gap_after[k];
			if (ring->wrote[k]) {
				good = false;
				written = k;
			}
			if (g == HR__PLAN_NO_GAP || !draft->chosen[g]) continue;
			draft->clean[g] = good;
			draft->copied_after[g] = copy_early ? ring->at[written] : ring->at[k];
			good = true;
		}
	}
}

/* Places restores in the order of need, each as early as it fits from then on, unless restore_late is set. A tensor that fits all
 * the time is not evicted. */
static void place_restores(hr__plan_drafting *drafting, hr__plan_draft *draft, const hr__plan_strategy *strategy)
{
	const hr__plan_ring *ring = drafting->ring;
	uint32_t k = 0;
	while (k < ring->gap_count && ring->gaps[drafting->by_need[k]].to < strategy->start) k++;
	for (uint32_t i = 0; i < ring->gap_count; i++, k++) {
		if (k >= ring->gap_count) k = 0;
		uint32_t g = drafting->by_need[k];
		const hr__plan_gap *gap = &ring->gaps[g];
		if (!draft->chosen[g]) continue;
		uint32_t full = last_full(drafting, g), end = latest_end(drafting, g);
		if (full == UINT32_MAX) {
			draft->chosen[g] = false;
			add_back(drafting, gap->from + 1, end, gap->bytes);
			continue;
		}
		draft->in_before[g] = strategy->restore_late ? end : full + 1 < ring->n ? full + 1 : 0;
		if (draft->in_before[g] != end) add_back(drafting, draft->in_before[g], end, gap->bytes);
	}
}

void hr__plan_draft_place(hr__plan_drafting *drafting, hr__plan_draft *draft, const hr__plan_strategy *strategy)
{
	const hr__plan_ring *ring = drafting->ring;
	drop_needless(drafting, draft);
	place_restores(drafting, draft, strategy);
	for (uint32_t t = 0; t < ring->step->tensor_count; t++) find_clean(drafting, draft, t, strategy->copy_early);
	draft->moves = 0;
	draft->bytes_out = draft->bytes_in = draft->link_ns = 0;
	for (uint32_t g = 0; g < ring->gap_count; g++) {
		if (!draft->chosen[g]) continue;
		draft->moves++;
		draft->bytes_in += ring->gaps[g].bytes;
		draft->link_ns += ring->gaps[g].in_ns;
		if (draft->clean[g]) continue;
		draft->bytes_out += ring->gaps[g].bytes;
		draft->link_ns += ring->gaps[g].out_ns;
	}
}
