/* plan_levels.c - the occupancy of each position, as a tree: adding to a range and finding the highest take logarithmic time.
 *
 * What is added to a node counts for all nodes below it and is never pushed down, so a query only adds on its way. */
#include "core/lms/plan/plan_draft.h"

bool hr__levels_open(hr__levels *levels, hr__scratch *scratch, uint32_t n)
{
	levels->n = n;
	levels->leaves = 1;
	while (levels->leaves < n) levels->leaves *= 2;
	levels->highest = hr__scratch_take(scratch, 2 * (uint64_t)levels->leaves, sizeof *levels->highest);
	levels->added = hr__scratch_take(scratch, 2 * (uint64_t)levels->leaves, sizeof *levels->added);
	return levels->highest != NULL && levels->added != NULL;
}

static uint64_t higher(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

void hr__levels_set(hr__levels *levels, const uint64_t *values)
{
	for (uint32_t i = 0; i < levels->leaves; i++) levels->highest[levels->leaves + i] = i < levels->n ? values[i] : 0;
	for (uint32_t i = 0; i < 2 * levels->leaves; i++) levels->added[i] = 0;
	for (uint32_t i = levels->leaves - 1; i > 0; i--)
		levels->highest[i] = higher(levels->highest[2 * i], levels->highest[2 * i + 1]);
}

/* [highest] of a node includes what was added to the node itself. */
static void add(hr__levels *levels, uint32_t node, uint32_t begin, uint32_t end, uint32_t first, uint32_t last, uint64_t bytes)
{
	if (first <= begin && end - 1 <= last) {
		levels->highest[node] += bytes;
		levels->added[node] += bytes;
		return;
	}
	uint32_t middle = begin + (end - begin) / 2;
	if (first < middle) add(levels, 2 * node, begin, middle, first, last, bytes);
	if (last >= middle) add(levels, 2 * node + 1, middle, end, first, last, bytes);
	levels->highest[node] = higher(levels->highest[2 * node], levels->highest[2 * node + 1]) + levels->added[node];
}

void hr__levels_add(hr__levels *levels, uint32_t first, uint32_t last, uint64_t bytes)
{
	if (first <= last) add(levels, 1, 0, levels->leaves, first, last, bytes);
}

static uint64_t highest(const hr__levels *levels, uint32_t node, uint32_t begin, uint32_t end, uint32_t first, uint32_t last)
{
	if (first <= begin && end - 1 <= last) return levels->highest[node];
	uint32_t middle = begin + (end - begin) / 2;
	uint64_t left = 0, right = 0;
	if (first < middle) left = highest(levels, 2 * node, begin, middle, first, last);
	if (last >= middle) right = highest(levels, 2 * node + 1, middle, end, first, last);
	return higher(left, right) + levels->added[node];
}

uint64_t hr__levels_highest(const hr__levels *levels, uint32_t first, uint32_t last)
{
	return first <= last ? highest(levels, 1, 0, levels->leaves, first, last) : 0;
}

/* [above] is what was added to nodes above. */
static uint32_t last_above(const hr__levels *levels, uint32_t node, uint32_t begin, uint32_t end, uint32_t first, uint32_t last,
                           uint64_t limit, uint64_t above)
{
	if (levels->highest[node] + above <= limit || last < begin || first >= end) return UINT32_MAX;
	if (end - begin == 1) return begin;
	uint32_t middle = begin + (end - begin) / 2;
	above += levels->added[node];
	uint32_t found = last_above(levels, 2 * node + 1, middle, end, first, last, limit, above);
	return found != UINT32_MAX ? found : last_above(levels, 2 * node, begin, middle, first, last, limit, above);
}

uint32_t hr__levels_last_above(const hr__levels *levels, uint32_t first, uint32_t last, uint64_t limit)
{
	return first <= last ? last_above(levels, 1, 0, levels->leaves, first, last, limit, 0) : UINT32_MAX;
}
