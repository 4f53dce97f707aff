/* holes.c - see holes.h.
 *
 * All addresses at which something begins or ends are known up front. Between two of them the state is uniform, so an allocator's
 * memory is a row of intervals. A segment tree over the intervals stores for each node the minimum number of reasons why an
 * interval is not free, the bytes with that number, and the longest run of such bytes, also at both edges. A reason is an
 * allocation, or the lack of mapped memory. An interval without a reason is free:
 *
 *     interval     |  unmapped  |  mapped  | allocated |  mapped  |
 *     reasons            1           0           1           0
 *
 * Mapping subtracts a reason and unmapping adds one, for all intervals between two addresses at once; a node stores the number that
 * it adds for its whole subtree. In inconsistent files allocations may overlap, and then count as two reasons. */
#include "analysis/capture/holes.h"

#include <stdlib.h>

#include "core/base/assert.h"
#include "core/os/os.h"
#include "analysis/view/view.h"

typedef struct tree_node {
	uint32_t least; /* minimum of reasons, including added */
	uint32_t added; /* reasons added to the whole subtree */
	uint64_t bytes; /* with the minimum of reasons */
	uint64_t longest, first, last; /* longest run of such bytes: anywhere, from the left edge, to the right edge */
} tree_node;

typedef struct address_row {
	uint64_t *edges; /* sorted addresses; there is one interval less */
	uint32_t edge_count;
	tree_node *nodes; /* node 0 is the root; the left child follows its parent, the right child follows the left subtree */
	uint64_t reserved, peak_reserved;
} address_row;

typedef struct region_change {
	uint64_t time_ns;
	uint32_t region;
	bool maps;
} region_change;

struct hr__holes {
	const hr__capture *capture;
	address_row *rows;
	uint64_t *edges; /* of all rows */
	tree_node *nodes;
	size_t edge_count, node_count;
	region_change *mappings;         /* maps and unmaps in order of time */
	uint32_t mapping_count, mapping; /* mapping: the next one */
	uint32_t change;                 /* the next one */
};

/* ---- the tree ---- */

static uint32_t right_of(uint32_t at, uint32_t low, uint32_t middle)
{
	return at + 2 * (middle - low);
}

static void combine(const address_row *row, uint32_t at, uint32_t low, uint32_t high)
{
	uint32_t middle = low + (high - low) / 2;
	tree_node *n = &row->nodes[at];
	const tree_node *a = &row->nodes[at + 1], *b = &row->nodes[right_of(at, low, middle)];
	uint64_t all_a = row->edges[middle] - row->edges[low], all_b = row->edges[high] - row->edges[middle];
	uint32_t least = a->least < b->least ? a->least : b->least;
	tree_node left = a->least == least ? *a : (tree_node){ 0 }, right = b->least == least ? *b : (tree_node){ 0 };
	n->least = least + n->added;
	n->bytes = left.bytes + right.bytes;
	n->first = left.first == all_a ? all_a + right.first : left.first;
	n->last = right.last == all_b ? all_b + left.last : right.last;
	n->longest = left.longest > right.longest ? left.longest : right.longest;
	if (left.last + right.first > n->longest) n->longest = left.last + right.first;
}

/* Initially nothing is mapped: one reason everywhere. */
static void build(address_row *row, uint32_t at, uint32_t low, uint32_t high)
{
	uint64_t bytes = row->edges[high] - row->edges[low];
	if (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		build(row, at + 1, low, middle);
		build(row, right_of(at, low, middle), middle, high);
	}
	row->nodes[at] = (tree_node){ .least = 1, .bytes = bytes, .longest = bytes, .first = bytes, .last = bytes };
}

static void add(address_row *row, uint32_t at, uint32_t low, uint32_t high, uint32_t from, uint32_t to, uint32_t reasons)
{
	if (from <= low && high <= to) {
		row->nodes[at].least += reasons;
		row->nodes[at].added += reasons;
		return;
	}
	uint32_t middle = low + (high - low) / 2;
	if (from < middle) add(row, at + 1, low, middle, from, to, reasons);
	if (to > middle) add(row, right_of(at, low, middle), middle, high, from, to, reasons);
	combine(row, at, low, high);
}

static uint32_t edge_at(const address_row *row, uint64_t address)
{
	uint32_t low = 0, high = row->edge_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (row->edges[middle] < address) low = middle + 1;
		else high = middle;
	}
	return low;
}

/* [reasons] wraps around: UINT32_MAX subtracts one. */
static void add_reasons(address_row *row, uint64_t address, uint64_t bytes, uint32_t reasons)
{
	if (!row->nodes || !bytes) return;
	uint32_t from = edge_at(row, address), to = edge_at(row, address + bytes);
	if (from < to) add(row, 0, 0, row->edge_count - 1, from, to, reasons);
}

/* ---- addresses ---- */

/* False for ranges that wrap around the end of the address space. */
static bool is_range(uint64_t address, uint64_t bytes)
{
	return bytes && address + bytes > address;
}

/* Allocations count only for allocators that have regions; other allocators have an empty row. */
static void count_edges(const hr__capture *c, uint32_t *counts)
{
	for (uint32_t i = 0; i < c->region_count; i++) counts[c->regions[i].allocator] += 2;
	for (uint32_t i = 0; i < c->allocation_count; i++) {
		uint32_t allocator = hr__allocation_allocator(c, i);
		if (counts[allocator]) counts[allocator] += 2;
	}
}

static void push_edges(address_row *row, uint64_t address, uint64_t bytes)
{
	if (!is_range(address, bytes)) return;
	row->edges[row->edge_count++] = address;
	row->edges[row->edge_count++] = address + bytes;
}

static int compare_edges(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static void sort_edges(address_row *row)
{
	uint32_t kept = 0;
	if (row->edge_count) qsort(row->edges, row->edge_count, sizeof *row->edges, compare_edges);
	for (uint32_t i = 0; i < row->edge_count; i++)
		if (!kept || row->edges[kept - 1] != row->edges[i]) row->edges[kept++] = row->edges[i];
	row->edge_count = kept;
}

static hr_status make_edges(hr__holes *h)
{
	const hr__capture *c = h->capture;
	hr_status status = HR_OK;
	uint32_t *counts = hr__view_alloc(c->allocator_count, sizeof *counts, &status);
	if (status) return status;
	count_edges(c, counts);
	for (uint32_t i = 0; i < c->allocator_count; i++) h->edge_count += counts[i];
	h->edges = hr__view_alloc(h->edge_count, sizeof *h->edges, &status);
	if (!status) {
		size_t used = 0;
		for (uint32_t i = 0; i < c->allocator_count; used += counts[i++]) h->rows[i].edges = h->edges + used;
		for (uint32_t i = 0; i < c->region_count; i++) push_edges(&h->rows[c->regions[i].allocator], c->regions[i].address, c->regions[i].bytes);
		for (uint32_t i = 0; i < c->allocation_count; i++) {
			uint32_t allocator = hr__allocation_allocator(c, i);
			if (counts[allocator]) push_edges(&h->rows[allocator], c->allocations[i].address, c->allocations[i].bytes);
		}
		for (uint32_t i = 0; i < c->allocator_count; i++) sort_edges(&h->rows[i]);
	}
	hr__view_free(counts, c->allocator_count, sizeof *counts);
	return status;
}

static hr_status make_trees(hr__holes *h)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < h->capture->allocator_count; i++)
		if (h->rows[i].edge_count > 1) h->node_count += 2 * ((size_t)h->rows[i].edge_count - 1);
	h->nodes = hr__view_alloc(h->node_count, sizeof *h->nodes, &status);
	if (status) return status;
	size_t used = 0;
	for (uint32_t i = 0; i < h->capture->allocator_count; i++) {
		address_row *row = &h->rows[i];
		if (row->edge_count < 2) continue;
		row->nodes = h->nodes + used;
		used += 2 * ((size_t)row->edge_count - 1);
		build(row, 0, 0, row->edge_count - 1);
	}
	return HR_OK;
}

/* ---- time ---- */

/* Unmaps come before maps of the same time. */
static int compare_mappings(const void *a, const void *b)
{
	const region_change *x = a, *y = b;
	if (x->time_ns != y->time_ns) return x->time_ns < y->time_ns ? -1 : 1;
	if (x->maps != y->maps) return x->maps ? 1 : -1;
	return x->region < y->region ? -1 : x->region > y->region;
}

static hr_status make_mappings(hr__holes *h)
{
	const hr__capture *c = h->capture;
	hr_status status = HR_OK;
	h->mappings = hr__view_alloc(2 * (size_t)c->region_count, sizeof *h->mappings, &status);
	if (status) return status;
	for (uint32_t i = 0; i < c->region_count; i++) {
		const hr__region_run *region = &c->regions[i];
		if (!is_range(region->address, region->bytes) || region->begin_ns == region->end_ns) continue;
		h->mappings[h->mapping_count++] = (region_change){ region->begin_ns, i, true };
		if (region->end_ns != HR__NEVER) h->mappings[h->mapping_count++] = (region_change){ region->end_ns, i, false };
	}
	if (h->mapping_count) qsort(h->mappings, h->mapping_count, sizeof *h->mappings, compare_mappings);
	return HR_OK;
}

void hr__holes_until(hr__holes *h, uint64_t time_ns)
{
	for (; h->mapping < h->mapping_count && h->mappings[h->mapping].time_ns <= time_ns; h->mapping++) {
		const region_change *m = &h->mappings[h->mapping];
		const hr__region_run *region = &h->capture->regions[m->region];
		address_row *row = &h->rows[region->allocator];
		row->reserved += m->maps ? region->bytes : 0 - region->bytes;
		if (row->reserved > row->peak_reserved) row->peak_reserved = row->reserved;
		add_reasons(row, region->address, region->bytes, m->maps ? UINT32_MAX : 1);
	}
}

void hr__holes_change(hr__holes *h)
{
	HR_ASSERT(h->change < h->capture->change_count);
	const hr__change *change = &h->capture->changes[h->change++];
	const hr__allocation *allocation = &h->capture->allocations[change->allocation];
	hr__holes_until(h, change->frees ? allocation->end_ns : allocation->begin_ns);
	if (!is_range(allocation->address, allocation->bytes)) return;
	add_reasons(&h->rows[hr__allocation_allocator(h->capture, change->allocation)], allocation->address, allocation->bytes, change->frees ? UINT32_MAX : 1);
}

void hr__holes_mark(hr__holes *h)
{
	for (uint32_t i = 0; i < h->capture->allocator_count; i++) h->rows[i].peak_reserved = h->rows[i].reserved;
}

hr__holes_state hr__holes_of(const hr__holes *h, uint32_t allocator)
{
	const address_row *row = &h->rows[allocator];
	hr__holes_state state = { .reserved_bytes = row->reserved, .peak_reserved_bytes = row->peak_reserved };
	if (!row->nodes || row->nodes[0].least > 0) return state;
	state.free_bytes = row->nodes[0].bytes;
	state.largest_free_bytes = row->nodes[0].longest;
	return state;
}

/* ---- construction ---- */

hr_status hr__holes_make(const hr__capture *capture, hr__holes **out)
{
	hr_status status = HR_OK;
	hr__holes *h = hr__view_alloc(1, sizeof *h, &status);
	if (status) return status;
	h->capture = capture;
	h->rows = hr__view_alloc(capture->allocator_count, sizeof *h->rows, &status);
	if (!status) status = make_edges(h);
	if (!status) status = make_trees(h);
	if (!status) status = make_mappings(h);
	if (status) hr__holes_free(h);
	else *out = h;
	return status;
}

void hr__holes_free(hr__holes *h)
{
	if (!h) return;
	hr__view_free(h->mappings, 2 * (size_t)h->capture->region_count, sizeof *h->mappings);
	hr__view_free(h->nodes, h->node_count, sizeof *h->nodes);
	hr__view_free(h->edges, h->edge_count, sizeof *h->edges);
	hr__view_free(h->rows, h->capture->allocator_count, sizeof *h->rows);
	hr__view_free(h, 1, sizeof *h);
}
