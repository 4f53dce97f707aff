/* view_nodes.c - the view of ops, a list, and the view of name scopes, a tree with the sums of each scope alone and including the
 * scopes inside it. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "analysis/view/nodes.h"

/* ---- ops ---- */

/* The columns of bytes read and written are shown only on request, so they are not among the last columns, which a narrow terminal
 * drops. */
enum { OP_NAME, OP_RUNS, OP_NS, OP_DEVICE_NS, OP_AT_PEAK, OP_INPUT, OP_OUTPUT, OP_BYTES, OP_ALLOCATIONS, OP_PEAK, OP_RESIDUAL, OP_COLUMNS };

static const hr__column op_columns[OP_COLUMNS] = {
	[OP_NAME] = { "name", "op", HR__CELL_PATH, 0 },
	[OP_RUNS] = { "occurrence", "runs", HR__CELL_COUNT, HR__SUMS },
	[OP_NS] = { "micros", "time", HR__CELL_NS, HR__SUMS | HR__TIME | HR__MIN_MICROS },
	[OP_DEVICE_NS] = { "accelerator_micros", "on device", HR__CELL_NS, HR__SUMS | HR__TIME },
	[OP_AT_PEAK] = { "at_peak_bytes", "at peak", HR__CELL_BYTES, HR__SUMS | HR__MEMORY },
	[OP_INPUT] = { "input_bytes", "read", HR__CELL_BYTES, HR__SUMS | HR__IO },
	[OP_OUTPUT] = { "output_bytes", "written", HR__CELL_BYTES, HR__SUMS | HR__IO },
	[OP_BYTES] = { "bytes", "allocated", HR__CELL_BYTES, HR__SUMS | HR__MEMORY | HR__MIN_BYTES },
	[OP_ALLOCATIONS] = { "allocations", "allocs", HR__CELL_COUNT, HR__SUMS | HR__MEMORY },
	[OP_PEAK] = { "peak_bytes", "own peak", HR__CELL_BYTES, HR__MEMORY },
	[OP_RESIDUAL] = { "residual_bytes", "not freed", HR__CELL_BYTES, HR__SUMS | HR__MEMORY },
};

static void fill_op(uint64_t *row, const hr__node *node)
{
	row[OP_NAME] = node->path;
	row[OP_RUNS] = node->self.occurrence;
	row[OP_NS] = node->self.ns;
	row[OP_DEVICE_NS] = node->self.device_ns;
	row[OP_AT_PEAK] = node->self.at_peak_bytes;
	row[OP_BYTES] = node->self.bytes;
	row[OP_ALLOCATIONS] = node->self.allocations;
	row[OP_PEAK] = node->peak_bytes;
	row[OP_RESIDUAL] = node->self.residual_bytes;
	row[OP_INPUT] = node->self.input_bytes;
	row[OP_OUTPUT] = node->self.output_bytes;
}

/* True for an op that was inactive during the selected time. */
static bool is_idle(const hr__node *node)
{
	return !node->self.occurrence && !node->self.allocations && !node->self.at_peak_bytes && !node->self.end_bytes;
}

hr_status hr__view_op(hr__report_view *report)
{
	static const hr__table_plan plan = { .key = "op", .title = "Ops", .columns = op_columns, .column_count = OP_COLUMNS, .order = "at_peak_bytes" };
	hr__nodes nodes;
	hr_status status = HR_OK;
	hr__table *table = hr__report_table(report, &plan, &status);
	if (!status) status = hr__nodes_make(report->selection, HR__NODES_BY_OP, &nodes);
	if (status) return status;
	for (uint32_t i = 1; i < nodes.count && !status; i++) {
		if (is_idle(&nodes.nodes[i])) continue;
		uint64_t *row = hr__table_row(table, &status);
		if (row) fill_op(row, &nodes.nodes[i]);
	}
	hr__nodes_free(&nodes);
	hr__table_finish(table);
	return status;
}

/* ---- scopes ---- */

enum {
	SC_NAME, SC_AT_PEAK, SC_SELF_AT_PEAK, SC_INPUT, SC_OUTPUT, SC_NS, SC_SELF_NS, SC_BYTES, SC_SELF_BYTES, SC_PEAK, SC_RESIDUAL, SC_RUNS, SC_DEVICE_NS,
	SC_ALLOCATIONS, SC_SELF_RESIDUAL, SC_COLUMNS
};

static const hr__column scope_columns[SC_COLUMNS] = {
	[SC_NAME] = { "name", "scope", HR__CELL_PATH, 0 },
	[SC_AT_PEAK] = { "at_peak_bytes", "at peak", HR__CELL_BYTES, HR__MEMORY },
	[SC_SELF_AT_PEAK] = { "self_at_peak_bytes", "self", HR__CELL_BYTES, HR__MEMORY },
	[SC_INPUT] = { "input_bytes", "read", HR__CELL_BYTES, HR__IO },
	[SC_OUTPUT] = { "output_bytes", "written", HR__CELL_BYTES, HR__IO },
	[SC_NS] = { "micros", "time", HR__CELL_NS, HR__TIME | HR__MIN_MICROS },
	[SC_SELF_NS] = { "self_micros", "self", HR__CELL_NS, HR__TIME },
	[SC_BYTES] = { "bytes", "allocated", HR__CELL_BYTES, HR__MEMORY | HR__MIN_BYTES },
	[SC_SELF_BYTES] = { "self_bytes", "self", HR__CELL_BYTES, HR__MEMORY },
	[SC_PEAK] = { "peak_bytes", "own peak", HR__CELL_BYTES, HR__MEMORY },
	[SC_RESIDUAL] = { "residual_bytes", "not freed", HR__CELL_BYTES, HR__MEMORY },
	[SC_RUNS] = { "occurrence", "ops", HR__CELL_COUNT, 0 },
	[SC_DEVICE_NS] = { "accelerator_micros", "on device", HR__CELL_NS, HR__TIME },
	[SC_ALLOCATIONS] = { "allocations", "allocs", HR__CELL_COUNT, HR__MEMORY },
	[SC_SELF_RESIDUAL] = { "self_residual_bytes", "self", HR__CELL_BYTES, HR__MEMORY | HR__NOT_IN_TEXT },
};

static void fill_scope(uint64_t *row, const hr__node *node)
{
	row[SC_NAME] = node->path;
	row[SC_AT_PEAK] = node->total.at_peak_bytes;
	row[SC_SELF_AT_PEAK] = node->self.at_peak_bytes;
	row[SC_NS] = node->total.ns;
	row[SC_SELF_NS] = node->self.ns;
	row[SC_BYTES] = node->total.bytes;
	row[SC_SELF_BYTES] = node->self.bytes;
	row[SC_PEAK] = node->peak_bytes;
	row[SC_RESIDUAL] = node->total.residual_bytes;
	row[SC_RUNS] = node->total.occurrence;
	row[SC_DEVICE_NS] = node->total.device_ns;
	row[SC_ALLOCATIONS] = node->total.allocations;
	row[SC_INPUT] = node->total.input_bytes;
	row[SC_OUTPUT] = node->total.output_bytes;
	row[SC_SELF_RESIDUAL] = node->self.residual_bytes;
}

typedef struct tree {
	hr__report_view *report;
	const hr__nodes *nodes;
	hr__table *table;
	uint32_t *order; /* nodes, sorted by parent, then by the sort column */
	uint32_t *first; /* by node: index of its first child in order */
	uint32_t *count; /* by node: number of children */
	uint32_t max_depth;
} tree;

static int compare_paths(uint64_t a, uint64_t b)
{
	size_t n = (size_t)(a >> 32), m = (size_t)(b >> 32);
	int order = memcmp(hr_name_text((hr_name)a), hr_name_text((hr_name)b), n < m ? n : m);
	return order ? order : n < m ? -1 : n > m;
}

static int compare_nodes(const void *a, const void *b, void *context)
{
	const tree *t = context;
	const hr__node *x = &t->nodes->nodes[*(const uint32_t *)a], *y = &t->nodes->nodes[*(const uint32_t *)b];
	uint64_t left[SC_COLUMNS], right[SC_COLUMNS];
	if (x->parent != y->parent) return x->parent < y->parent ? -1 : 1;
	fill_scope(left, x);
	fill_scope(right, y);
	int column = t->table->order;
	if (column > SC_NAME && left[column] != right[column]) return left[column] > right[column] ? -1 : 1;
	return compare_paths(x->path, y->path);
}

static void sort_children(tree *t)
{
	for (uint32_t i = 0; i < t->nodes->count; i++) t->order[i] = i;
	/* Node 0 is its own parent, so it is kept in front and left out of the sort. */
	qsort_r(t->order + 1, t->nodes->count - 1, sizeof *t->order, compare_nodes, t);
	for (uint32_t i = 1; i < t->nodes->count; i++) {
		uint32_t parent = t->nodes->nodes[t->order[i]].parent;
		if (t->count[parent]++ == 0) t->first[parent] = i;
	}
}

static bool is_shown(const tree *t, uint32_t node)
{
	char name[HR__CELL_BYTES_MAX];
	return node == 0 || hr__filter_takes(t->report->filter, hr__cell_format(&scope_columns[0], t->nodes->nodes[node].path, name));
}

static bool is_empty(const hr__node *node)
{
	const hr__node_sums *sums = &node->total;
	return !sums->occurrence && !sums->allocations && !sums->at_peak_bytes && !sums->end_bytes;
}

/* Hides a scope and all scopes inside it. */
static void hide(tree *t, uint32_t node)
{
	if (is_empty(&t->nodes->nodes[node])) return; /* then all scopes inside it are empty too */
	t->table->hidden_rows++;
	for (uint32_t i = 0; i < t->count[node]; i++) hide(t, t->order[t->first[node] + i]);
}

/* If a scope is hidden by name, the scopes inside it are still shown. If a scope is too small, so are the scopes inside it. */
static hr_status show(tree *t, uint32_t node, uint32_t depth)
{
	hr_status status = HR_OK;
	uint64_t cells[SC_COLUMNS];
	fill_scope(cells, &t->nodes->nodes[node]);
	if (node && (is_empty(&t->nodes->nodes[node]) || !hr__filter_reaches(t->report->filter, scope_columns, SC_COLUMNS, cells))) {
		hide(t, node);
		return HR_OK;
	}
	if (is_shown(t, node)) {
		if (depth > t->max_depth) {
			hide(t, node);
			return HR_OK;
		}
		uint64_t *row = hr__table_row(t->table, &status);
		if (!row) return status;
		memcpy(row, cells, sizeof cells);
		hr__table_set_depth(t->table, row, depth++);
	} else {
		t->table->hidden_rows++;
	}
	for (uint32_t i = 0; i < t->count[node] && !status; i++) status = show(t, t->order[t->first[node] + i], depth);
	return status;
}

static hr_status show_tree(hr__report_view *report, hr__table *table, const hr__nodes *nodes)
{
	hr_status status = HR_OK;
	tree t = { .report = report, .nodes = nodes, .table = table, .max_depth = report->options->max_depth };
	t.order = hr__view_alloc(nodes->count, sizeof *t.order, &status);
	t.first = hr__view_alloc(nodes->count, sizeof *t.first, &status);
	t.count = hr__view_alloc(nodes->count, sizeof *t.count, &status);
	if (!status) {
		sort_children(&t);
		status = show(&t, 0, 0);
	}
	hr__view_free(t.order, nodes->count, sizeof *t.order);
	hr__view_free(t.first, nodes->count, sizeof *t.first);
	hr__view_free(t.count, nodes->count, sizeof *t.count);
	return status;
}

hr_status hr__view_scope(hr__report_view *report)
{
	static const hr__table_plan plan = { .key = "scope", .title = "Name scopes", .form = HR__TABLE_TREE, .columns = scope_columns,
		                                 .column_count = SC_COLUMNS, .order = "at_peak_bytes" };
	hr__nodes nodes;
	hr_status status = HR_OK;
	hr__table *table = hr__report_table(report, &plan, &status);
	if (!status) status = hr__nodes_make(report->selection, HR__NODES_BY_SCOPE, &nodes);
	if (status) return status;
	status = show_tree(report, table, &nodes);
	hr__nodes_free(&nodes);
	hr__table_finish(table);
	return status;
}
