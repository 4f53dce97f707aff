/* plan_occupancy.c - the occupancy of each position, as a tree: adding to a range and finding the highest take logarithmic time.
 *
 * What is added to a node counts for all nodes below it and is never pushed down, so a query only adds on its way. */
#include "core/base/assert.h"
#include "core/lms/plan/plan_draft.h"

bool hr__occupancy_open(hr__occupancy *occupancy, hr__plan_scratch *scratch, uint32_t n)
{
	occupancy->n = n;
	occupancy->leaves = 1;
	while (occupancy->leaves < n) occupancy->leaves *= 2;
	occupancy->highest = hr__plan_scratch_take(scratch, 2 * (uint64_t)occupancy->leaves, sizeof *occupancy->highest);
	occupancy->added = hr__plan_scratch_take(scratch, 2 * (uint64_t)occupancy->leaves, sizeof *occupancy->added);
	return occupancy->highest != NULL && occupancy->added != NULL;
}

static uint64_t higher(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

void hr__occupancy_set(hr__occupancy *occupancy, const uint64_t *values)
{
	for (uint32_t i = 0; i < occupancy->leaves; i++) occupancy->highest[occupancy->leaves + i] = i < occupancy->n ? values[i] : 0;
	for (uint32_t i = 0; i < 2 * occupancy->leaves; i++) occupancy->added[i] = 0;
	for (uint32_t i = occupancy->leaves - 1; i > 0; i--)
		occupancy->highest[i] = higher(occupancy->highest[2 * i], occupancy->highest[2 * i + 1]);
}

/* [highest] of a node includes what was added to the node itself. */
static void add(hr__occupancy *occupancy, uint32_t node, uint32_t begin, uint32_t end, uint32_t first, uint32_t last,
                uint64_t bytes)
{
	if (first <= begin && end - 1 <= last) {
		occupancy->highest[node] += bytes;
		occupancy->added[node] += bytes;
		return;
	}
	uint32_t middle = begin + (end - begin) / 2;
	if (first < middle) add(occupancy, 2 * node, begin, middle, first, last, bytes);
	if (last >= middle) add(occupancy, 2 * node + 1, middle, end, first, last, bytes);
	occupancy->highest[node] = higher(occupancy->highest[2 * node], occupancy->highest[2 * node + 1]) + occupancy->added[node];
}

void hr__occupancy_add(hr__occupancy *occupancy, uint32_t first, uint32_t last, uint64_t bytes)
{
	HR_ASSERT(last < occupancy->n || first > last);
	if (first <= last) add(occupancy, 1, 0, occupancy->leaves, first, last, bytes);
}

static uint64_t highest(const hr__occupancy *occupancy, uint32_t node, uint32_t begin, uint32_t end, uint32_t first, uint32_t last)
{
	if (first <= begin && end - 1 <= last) return occupancy->highest[node];
	uint32_t middle = begin + (end - begin) / 2;
	uint64_t left = 0, right = 0;
	if (first < middle) left = highest(occupancy, 2 * node, begin, middle, first, last);
	if (last >= middle) right = highest(occupancy, 2 * node + 1, middle, end, first, last);
	return higher(left, right) + occupancy->added[node];
}

uint64_t hr__occupancy_highest(const hr__occupancy *occupancy, uint32_t first, uint32_t last)
{
	HR_ASSERT(last < occupancy->n || first > last);
	return first <= last ? highest(occupancy, 1, 0, occupancy->leaves, first, last) : 0;
}

/* [above] is what was added to nodes above. */
static uint32_t last_above(const hr__occupancy *occupancy, uint32_t node, uint32_t begin, uint32_t end, uint32_t first,
                           uint32_t last, uint64_t limit, uint64_t above)
{
	if (occupancy->highest[node] + above <= limit || last < begin || first >= end) return UINT32_MAX;
	if (end - begin == 1) return begin;
	uint32_t middle = begin + (end - begin) / 2;
	above += occupancy->added[node];
	uint32_t found = last_above(occupancy, 2 * node + 1, middle, end, first, last, limit, above);
	return found != UINT32_MAX ? found : last_above(occupancy, 2 * node, begin, middle, first, last, limit, above);
}

uint32_t hr__occupancy_last_above(const hr__occupancy *occupancy, uint32_t first, uint32_t last, uint64_t limit)
{
	HR_ASSERT(last < occupancy->n || first > last);
	return first <= last ? last_above(occupancy, 1, 0, occupancy->leaves, first, last, limit, 0) : UINT32_MAX;
}
