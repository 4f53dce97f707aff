/* plan_occupancy.c - the occupancy of each position, as a tree: adding to a range and finding the last one above a limit take logarithmic
 * time.
 *
 * What is added to a node counts for all nodes below it and is never pushed down, so a query only adds on its way. Node 1 is the root, the
 * children of node i are 2i and 2i + 1, and position i is node leaves + i. All walks go up from the leaves at the ends of a range: a walk
 * down from the root takes three times as long, and planning spends a third of its time here. */
#include "core/base/assert.h"
#include "core/lms/plan/plan_draft.h"

bool hr__occupancy_open(hr__occupancy *occupancy, hr__plan_scratch *scratch, uint32_t n)
{
	occupancy->n = n;
	occupancy->leaves = 1;
	while (occupancy->leaves < n) occupancy->leaves *= 2;
	occupancy->nodes = hr__plan_scratch_take(scratch, 2 * (uint64_t)occupancy->leaves, sizeof *occupancy->nodes);
	return occupancy->nodes != NULL;
}

static uint64_t higher(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Sets [highest] of a node from its children. It includes what was added to the node itself. */
static void refresh(hr__occupancy_node *nodes, uint32_t node)
{
	nodes[node].highest = higher(nodes[2 * node].highest, nodes[2 * node + 1].highest) + nodes[node].added;
}

void hr__occupancy_set(hr__occupancy *occupancy, const uint64_t *values)
{
	hr__occupancy_node *nodes = occupancy->nodes;
	for (uint32_t i = 0; i < occupancy->leaves; i++) nodes[occupancy->leaves + i].highest = i < occupancy->n ? values[i] : 0;
	for (uint32_t i = occupancy->leaves - 1; i > 0; i--) {
		nodes[i].added = 0;
		refresh(nodes, i);
	}
}

static void add(hr__occupancy_node *node, uint64_t bytes)
{
	node->highest += bytes;
	node->added += bytes;
}

void hr__occupancy_add(hr__occupancy *occupancy, uint32_t first, uint32_t last, uint64_t bytes)
{
	HR_ASSERT(last < occupancy->n || first > last);
	hr__occupancy_node *nodes = occupancy->nodes;
	if (first > last) return;
	uint32_t left = occupancy->leaves + first, right = occupancy->leaves + last;
	add(&nodes[left], bytes);
	if (left != right) add(&nodes[right], bytes);
	while (left / 2 != right / 2) { /* nodes between the two paths are in the range as a whole */
		if (left % 2 == 0) add(&nodes[left + 1], bytes);
		if (right % 2 == 1) add(&nodes[right - 1], bytes);
		refresh(nodes, left /= 2);
		refresh(nodes, right /= 2);
	}
	while (left > 1) refresh(nodes, left /= 2);
}

/* The last position below [node], some of which are higher than [limit]. [above] is what was added to nodes above. */
static uint32_t last_above_in(const hr__occupancy *occupancy, uint32_t node, uint64_t limit, uint64_t above)
{
	const hr__occupancy_node *nodes = occupancy->nodes;
	while (node < occupancy->leaves) {
		above += nodes[node].added;
		node = 2 * node + 1;
		if (nodes[node].highest + above <= limit) node--;
	}
	return node - occupancy->leaves;
}

uint32_t hr__occupancy_last_above(const hr__occupancy *occupancy, uint32_t first, uint32_t last, uint64_t limit)
{
	HR_ASSERT(last < occupancy->n || first > last);
	const hr__occupancy_node *nodes = occupancy->nodes;
	uint32_t node = occupancy->leaves + last, begin = occupancy->leaves + first;
	uint64_t above = 0;
	if (first > last) return UINT32_MAX;
	for (uint32_t up = node; up > 1;) above += nodes[up /= 2].added;
	if (nodes[node].highest + above > limit) return last;
	while (node != begin) { /* [begin] is the ancestor of the first position: what is left of it is not in the range */
		if (node % 2 == 1 && nodes[node - 1].highest + above > limit) {
			uint32_t found = last_above_in(occupancy, node - 1, limit, above);
			return found >= first ? found : UINT32_MAX;
		}
		above -= nodes[node /= 2].added;
		begin /= 2;
	}
	return UINT32_MAX;
}
