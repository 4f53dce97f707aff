/* plan_choose.c - which tensors are evicted.
 *
 * The ops are scanned in order. Where more is in use than fits, the gap with the farthest end of those that span the op is taken,
 * until the rest fits.
 *
 * The end of a gap is its next use. If restores are dense (weights that are read one after the other, none twice), that is not
 * enough: the farthest next uses are neighbours, so their tensors would be restored all at once, after the link was idle. So there
 * is a second way: a restore gets a reservation of the link's time while ops compute, as late before the next use as it is free.
 * The gap ends where the reservation begins. Among gaps that end at the same op, the one that is needed first is taken. This
 * spreads the evictions over the ops. A gap for which no time is left has a worse rank, and ends at its next use. */
#include "core/base/assert.h"
#include "core/lms/plan/plan_draft.h"

#define RESERVE_WORK_MAX 500000u /* work for reservations: about 20 ms */

/* ---- time of the link in ---- */

static void open_slots(hr__plan_drafting *drafting)
{
	const hr__plan_ring *ring = drafting->ring;
	for (uint32_t i = 0; i < ring->n; i++) {
		drafting->slots[i] = ring->step->ops[i].ns;
		drafting->open[i] = 0;
	}
	for (uint32_t g = 0; g < ring->gap_count; g++) drafting->early[g] = 0;
}

/* How many ops before [op] the link has time, [op] itself being 0; more than n = never. Shortens chains of busy ops on the way. */
static uint32_t ops_to_open(hr__plan_drafting *drafting, uint32_t op)
{
	HR_ASSERT(op < drafting->ring->n);
	uint32_t n = drafting->ring->n, at = op, back = 0;
	for (uint32_t looks = 1; drafting->slots[at] == 0 && back <= n; looks++) {
		if (looks % 8 == 0) drafting->work++;
		uint32_t skip = drafting->open[at] > 0 ? drafting->open[at] : 1;
		back += skip;
		skip %= n;
		at = at >= skip ? at - skip : at + n - skip;
	}
	if (back > 0 && back <= n) drafting->open[op] = back;
	return back;
}

/* How many ops before the next use a restore has to begin, with the free time of the link; 0 = it does not fit into the gap.
 * [take]: reserves that time. */
static uint32_t ops_early(hr__plan_drafting *drafting, uint32_t g, bool take)
{
	HR_ASSERT(g < drafting->ring->gap_count);
	const hr__plan_ring *ring = drafting->ring;
	const hr__plan_gap *gap = &ring->gaps[g];
	uint32_t most = hr__plan_ring_distance(ring, gap->from, gap->to) - 1, early = 1, at = gap->to > 0 ? gap->to - 1 : ring->n - 1;
	uint64_t left = gap->in_ns;
	drafting->work++;
	for (uint32_t looks = 1;; looks++) {
		uint32_t back = ops_to_open(drafting, at);
		early += back;
		if (back > ring->n || early > most) return 0;
		back %= ring->n;
		at = at >= back ? at - back : at + ring->n - back;
		uint64_t part = left < drafting->slots[at] ? left : drafting->slots[at];
		left -= part;
		if (take) drafting->slots[at] -= part;
		if (left == 0) return early;
		if (looks % 8 == 0) drafting->work++;
		early++;
		at = at > 0 ? at - 1 : ring->n - 1;
	}
}

/* ---- candidates ---- */

/* 0 is best. Gaps of tensors so small that the fixed cost of copies matters are worse. */
static int rank_of(const hr__plan_drafting *drafting, uint32_t g, const hr__plan_strategy *strategy)
{
	const hr__plan_gap *gap = &drafting->ring->gaps[g];
	uint64_t latency = 2 * drafting->ring->machine->copy_ns, both = gap->out_ns + gap->in_ns;
	if (drafting->avoid[g]) return HR__PLAN_DRAFT_RANKS - 1;
	return strategy->least_worth > 0 && (both - latency) / strategy->least_worth < latency ? 1 : 0;
}

/* An entry is the end of the gap and, below it, its index by need counted from the end: of equal ones, the one needed first is on
 * top. */
static void heap_push(hr__plan_drafting *drafting, int rank, uint32_t gap, uint32_t end)
{
	HR_ASSERT(drafting->heap_counts[rank] < 2 * (drafting->ring->gap_count + 1));
	uint64_t *heap = drafting->heaps[rank], entry = (uint64_t)end << 32 | (drafting->ring->gap_count - 1 - drafting->need_of[gap]);
	uint32_t at = drafting->heap_counts[rank]++;
	while (at > 0 && heap[(at - 1) / 2] < entry) {
		heap[at] = heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap[at] = entry;
}

static uint32_t heap_top(const hr__plan_drafting *drafting, int rank, uint32_t *end)
{
	HR_ASSERT(drafting->heap_counts[rank] > 0);
	uint64_t entry = drafting->heaps[rank][0];
	*end = (uint32_t)(entry >> 32);
	return drafting->by_need[drafting->ring->gap_count - 1 - (uint32_t)entry];
}

static void heap_pop(hr__plan_drafting *drafting, int rank)
{
	HR_ASSERT(drafting->heap_counts[rank] > 0);
	uint64_t *heap = drafting->heaps[rank];
	uint32_t count = --drafting->heap_counts[rank], at = 0;
	uint64_t last = heap[count];
	heap[count] = 0; /* a second child that is not taken. So the larger child is found without a branch, which would be mispredicted half the time */
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= count) break;
		child += heap[child + 1] > heap[child];
		if (heap[child] <= last) break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
}

/* A gap, relative to the start of the scan: evicted in [begin, end). One that wraps around the start is evicted in [0, end), and
 * again from begin on. */
typedef struct span {
	uint32_t begin, end;
	bool wraps;
} span;

static span span_of(const hr__plan_ring *ring, const hr__plan_gap *gap, uint32_t start)
{
	uint32_t from = gap->from >= start ? gap->from - start : gap->from + ring->n - start;
	uint32_t to = gap->to >= start ? gap->to - start : gap->to + ring->n - start;
	return (span){ from + 1, to, to <= from };
}

/* ---- the scan ---- */

typedef struct scan {
	hr__plan_drafting *drafting;
	hr__plan_draft *draft;
	const hr__plan_strategy *strategy;
	uint32_t at;        /* ops since the start of the scan */
	uint64_t away;      /* bytes evicted at this op */
	uint64_t most_work; /* no reservations are made after this */
} scan;

/* The end of a gap that spans the op, if the tensor is evicted up to its next use. */
static uint32_t full_end(const scan *scanning, uint32_t g)
{
	span s = span_of(scanning->drafting->ring, &scanning->drafting->ring->gaps[g], scanning->strategy->start);
	return s.wraps && scanning->at >= s.begin ? s.end + scanning->drafting->ring->n : s.end;
}

static void pick(scan *scanning, uint32_t g, uint32_t end)
{
	HR_ASSERT(!scanning->draft->chosen[g] && end > scanning->at);
	hr__plan_drafting *drafting = scanning->drafting;
	const hr__plan_gap *gap = &drafting->ring->gaps[g];
	span s = span_of(drafting->ring, gap, scanning->strategy->start);
	scanning->draft->chosen[g] = true;
	scanning->away += gap->bytes;
	if (end < drafting->ring->n) drafting->ends[end] += gap->bytes;
	if (s.wraps && scanning->at < s.begin) drafting->starts[s.begin] += gap->bytes;
}

/* Tries a gap of the best rank; [end] is its end when it was last examined. True if it was picked; otherwise it is put where it
 * belongs now. */
static bool pick_reserved(scan *scanning, uint32_t g, uint32_t end)
{
	hr__plan_drafting *drafting = scanning->drafting;
	uint32_t full = full_end(scanning, g), early = 0;
	if (full <= scanning->at) return false;
	if (drafting->work < scanning->most_work) early = ops_early(drafting, g, false);
	if (early == 0 || full <= scanning->at + early) {
		heap_push(drafting, 1, g, full);
		return false;
	}
	if (full - early < end) {
		heap_push(drafting, 0, g, full - early);
		return false;
	}
	ops_early(drafting, g, true);
	if (scanning->strategy->reserve == HR__RESERVE_AND_KEEP) drafting->early[g] = early;
	pick(scanning, g, full - drafting->early[g]);
	return true;
}

/* Picks the best gap that spans this op. False if there is none. */
static bool pick_best(scan *scanning)
{
	hr__plan_drafting *drafting = scanning->drafting;
	for (int rank = 0; rank < HR__PLAN_DRAFT_RANKS; rank++) {
		bool reserve = rank == 0 && scanning->strategy->reserve != HR__RESERVE_NOTHING;
		while (drafting->heap_counts[rank] > 0) {
			uint32_t end, g = heap_top(drafting, rank, &end);
			if (end <= scanning->at && !reserve) break;
			heap_pop(drafting, rank);
			if (scanning->draft->chosen[g]) continue;
			if (reserve && !pick_reserved(scanning, g, end)) continue;
			if (!reserve) pick(scanning, g, end);
			return true;
		}
	}
	return false;
}

/* If nothing else spans this op: a tensor that was to be restored before it stays evicted up to its next use after all. False if
 * there is none. */
static bool cancel_reservation(scan *scanning)
{
	hr__plan_drafting *drafting = scanning->drafting;
	const hr__plan_ring *ring = drafting->ring;
	uint32_t farthest = 0, found = HR__PLAN_NO_GAP;
	drafting->work += ring->gap_count / 8;
	for (uint32_t g = 0; g < ring->gap_count; g++) {
		if (!scanning->draft->chosen[g] || drafting->early[g] == 0) continue;
		span s = span_of(ring, &ring->gaps[g], scanning->strategy->start);
		uint32_t end = full_end(scanning, g);
		bool spans = scanning->at < end && (s.wraps || scanning->at >= s.begin), is_back = end <= scanning->at + drafting->early[g];
		if (!spans || !is_back || end <= farthest) continue;
		farthest = end;
		found = g;
	}
	if (found == HR__PLAN_NO_GAP) return false;
	drafting->early[found] = 0;
	scanning->away += ring->gaps[found].bytes;
	if (farthest < ring->n) drafting->ends[farthest] += ring->gaps[found].bytes;
	return true;
}

static void begin_scan(scan *scanning)
{
	hr__plan_drafting *drafting = scanning->drafting;
	const hr__plan_ring *ring = drafting->ring;
	open_slots(drafting);
	for (uint32_t i = 0; i <= ring->n; i++) drafting->starts[i] = drafting->ends[i] = 0;
	for (int rank = 0; rank < HR__PLAN_DRAFT_RANKS; rank++) drafting->heap_counts[rank] = 0;
	for (uint32_t g = 0; g < ring->gap_count; g++) {
		scanning->draft->chosen[g] = false;
		span s = span_of(ring, &ring->gaps[g], scanning->strategy->start);
		if (s.wraps && s.end > 0) heap_push(drafting, rank_of(drafting, g, scanning->strategy), g, s.end);
	}
}

/* Gaps that begin after op [before] become candidates. */
static void add_candidates(scan *scanning, uint32_t before)
{
	hr__plan_drafting *drafting = scanning->drafting;
	for (uint32_t k = drafting->by_start_first[before]; k < drafting->by_start_first[before + 1]; k++) {
		uint32_t g = drafting->by_start[k];
		if (!scanning->draft->chosen[g]) heap_push(drafting, rank_of(drafting, g, scanning->strategy), g, full_end(scanning, g));
	}
}

void hr__plan_draft_choose(hr__plan_drafting *drafting, hr__plan_draft *draft, const hr__plan_strategy *strategy)
{
	HR_ASSERT(strategy->start < drafting->ring->n);
	const hr__plan_ring *ring = drafting->ring;
	drafting->work += drafting->draft_work;
	scan scanning = { .drafting = drafting, .draft = draft, .strategy = strategy, .most_work = drafting->work + RESERVE_WORK_MAX };
	begin_scan(&scanning);
	for (; scanning.at < ring->n; scanning.at++) {
		uint32_t op = scanning.at + strategy->start < ring->n ? scanning.at + strategy->start
		                                                      : scanning.at + strategy->start - ring->n;
		scanning.away += drafting->starts[scanning.at];
		scanning.away -= drafting->ends[scanning.at];
		if (scanning.at > 0) add_candidates(&scanning, op > 0 ? op - 1 : ring->n - 1);
		while (ring->occupied[op] - scanning.away > ring->machine->memory) {
			bool picked = pick_best(&scanning) || cancel_reservation(&scanning);
			HR_ASSERT(picked);
			if (!picked) break;
		}
	}
}
