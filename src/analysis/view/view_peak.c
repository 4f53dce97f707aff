/* view_peak.c - what was live at the device's peak: by op, by scope, by tag, by call stack and by tensor. Each table adds up exactly to the peak;
 * with a name scope, to that scope's part of the peak. */
#include "core/base/names.h"
#include "analysis/view/view.h"

/* ---- facts ---- */

enum { F_BYTES, F_SCOPE_BYTES, F_NS, F_STEP, F_ALLOCATIONS, F_SLACK, F_LIMIT, F_COLUMNS };

static const hr__column fact_columns[F_COLUMNS] = {
	[F_BYTES] = { "peak_bytes", "peak", HR__CELL_BYTES, 0 },
	[F_SCOPE_BYTES] = { "at_peak_bytes", "of it in the scope", HR__CELL_BYTES, HR__ALWAYS },
	[F_NS] = { "time_micros", "reached after", HR__CELL_NS, HR__TIME },
	[F_STEP] = { "step", "in step", HR__CELL_COUNT, 0 },
	[F_ALLOCATIONS] = { "allocations", "live blocks", HR__CELL_COUNT, 0 },
	[F_SLACK] = { "slack_bytes", "lost to rounding", HR__CELL_BYTES, 0 },
	[F_LIMIT] = { "limit_bytes", "limit at that time", HR__CELL_BYTES, 0 },
};

/* ---- groups by name ---- */

enum { G_NAME, G_BYTES, G_ALLOCATIONS, G_LARGEST, G_COLUMNS };

#define GROUP_COLUMNS(key, heading)                                                                     \
	{                                                                                                   \
		[G_NAME] = { key, heading, HR__CELL_NAME, 0 },                                                  \
		[G_BYTES] = { "bytes", "bytes", HR__CELL_BYTES, HR__SUMS | HR__MIN_BYTES },                     \
		[G_ALLOCATIONS] = { "allocations", "blocks", HR__CELL_COUNT, HR__SUMS },                        \
		[G_LARGEST] = { "largest_bytes", "largest", HR__CELL_BYTES, 0 },                                \
	}

static const hr__column op_columns[] = GROUP_COLUMNS("op", "op");
static const hr__column scope_columns[] = GROUP_COLUMNS("scope", "scope");
static const hr__column tag_columns[] = GROUP_COLUMNS("tag", "tag");

enum { BY_OP, BY_SCOPE, BY_TAG, GROUPINGS };

static const hr__table_plan group_plans[GROUPINGS] = {
	[BY_OP] = { .key = "by_op", .title = "By op", .columns = op_columns, .column_count = G_COLUMNS, .order = "bytes", .bends = true },
	[BY_SCOPE] = { .key = "by_scope", .title = "By name scope", .columns = scope_columns, .column_count = G_COLUMNS, .order = "bytes", .bends = true },
	[BY_TAG] = { .key = "by_tag", .title = "By tag", .columns = tag_columns, .column_count = G_COLUMNS, .order = "bytes", .bends = true },
};

/* ---- groups by call stack ---- */

enum { S_NAME, S_BYTES, S_ALLOCATIONS, S_LARGEST, S_STACK, S_COLUMNS };

static const hr__column stack_columns[S_COLUMNS] = {
	[S_NAME] = { "function", "function", HR__CELL_NAME, 0 }, /* of the innermost frame */
	[S_BYTES] = { "bytes", "bytes", HR__CELL_BYTES, HR__SUMS | HR__MIN_BYTES },
	[S_ALLOCATIONS] = { "allocations", "blocks", HR__CELL_COUNT, HR__SUMS },
	[S_LARGEST] = { "largest_bytes", "largest", HR__CELL_BYTES, 0 },
	[S_STACK] = { "stack", "stack", HR__CELL_STACK, HR__STACKS },
};

static const hr__table_plan stack_plan = { .key = "by_stack", .title = "By call stack", .columns = stack_columns, .column_count = S_COLUMNS,
	                                       .order = "bytes", .bends = true };

/* ---- tensors ---- */

enum { T_OP, T_BYTES, T_AGE, T_SHAPE, T_DTYPE, T_SCOPE, T_TAG, T_SLACK, T_ADDRESS, T_STACK, T_COLUMNS };

static const hr__column tensor_columns[T_COLUMNS] = {
	[T_OP] = { "op", "op", HR__CELL_NAME, 0 },
	[T_BYTES] = { "bytes", "bytes", HR__CELL_BYTES, HR__SUMS | HR__MIN_BYTES },
	[T_AGE] = { "age_micros", "age", HR__CELL_NS, HR__TIME },
	[T_SHAPE] = { "shape", "shape", HR__CELL_SHAPE, 0 },
	[T_DTYPE] = { "dtype", "dtype", HR__CELL_DTYPE, 0 },
	[T_SCOPE] = { "scope", "scope", HR__CELL_NAME, 0 },
	[T_TAG] = { "tag", "tag", HR__CELL_NAME, 0 },
	[T_SLACK] = { "slack_bytes", "slack", HR__CELL_BYTES, HR__SUMS | HR__NOT_IN_TEXT },
	[T_ADDRESS] = { "address", "address", HR__CELL_COUNT, HR__NOT_IN_TEXT },
	[T_STACK] = { "stack", "stack", HR__CELL_STACK, HR__STACKS },
};

static const hr__table_plan tensor_plan = { .key = "by_tensor", .title = "By tensor", .columns = tensor_columns, .column_count = T_COLUMNS, .order = "bytes" };

/* ---- collecting ---- */

typedef struct group {
	uint64_t bytes, allocations, largest;
} group;

typedef struct collector {
	hr__report_view *report;
	hr__table *tensors; /* NULL: not collected */
	group *groups[GROUPINGS]; /* by name; NULL: not collected */
	group *stacks;            /* by stack; NULL: not collected */
	uint64_t allocations, slack;
	hr_status status;
} collector;

/* [number] is that of a name or of a stack. */
static void count(group *groups, uint32_t number, uint64_t bytes)
{
	if (!groups) return;
	groups[number].bytes += bytes;
	groups[number].allocations++;
	if (bytes > groups[number].largest) groups[number].largest = bytes;
}

static void collect(void *context, uint32_t index)
{
	collector *c = context;
	const hr__selection *s = c->report->selection;
	const hr__allocation *allocation = &s->capture->allocations[index];
	const hr__site *site = &s->capture->sites[allocation->site];
	if (!hr__selects_allocation(s, index)) return;
	c->allocations++;
	c->slack += allocation->slack;
	count(c->groups[BY_OP], site->op, allocation->bytes);
	count(c->groups[BY_SCOPE], site->scope, allocation->bytes);
	count(c->groups[BY_TAG], site->tag, allocation->bytes);
	count(c->stacks, site->stack, allocation->bytes);
	uint64_t *row = c->tensors ? hr__table_row(c->tensors, &c->status) : NULL;
	if (!row) return;
	row[T_OP] = site->op;
	row[T_SCOPE] = site->scope;
	row[T_TAG] = site->tag;
	row[T_SHAPE] = site->shape;
	row[T_DTYPE] = site->dtype;
	row[T_BYTES] = allocation->bytes;
	row[T_AGE] = s->device_peak_ns - allocation->begin_ns;
	row[T_SLACK] = allocation->slack;
	row[T_ADDRESS] = allocation->address;
	row[T_STACK] = site->stack;
}

static void visit_peak(collector *c)
{
	const hr__selection *s = c->report->selection;
	if (c->status || s->device_peak_change == HR__NONE) return; /* nothing is live before the first change */
	hr_status status = hr__capture_live(s->capture, s->device_peak_change, s->device, collect, c);
	if (status) c->status = status;
}

static void fill_groups(collector *c, hr__table *table, const group *groups)
{
	for (size_t name = 0; name < c->report->selection->names && !c->status; name++) {
		if (!groups[name].allocations) continue;
		uint64_t *row = hr__table_row(table, &c->status);
		if (!row) return;
		row[G_NAME] = name;
		row[G_BYTES] = groups[name].bytes;
		row[G_ALLOCATIONS] = groups[name].allocations;
		row[G_LARGEST] = groups[name].largest;
	}
	hr__table_finish(table);
}

static void fill_stacks(collector *c, hr__table *table)
{
	for (uint32_t stack = 0; stack < HR__STACKS_MAX && !c->status; stack++) {
		hr_frame inner = { 0 };
		if (!c->stacks[stack].allocations) continue;
		uint64_t *row = hr__table_row(table, &c->status);
		if (!row) return;
		hr_stack_get_frames(stack, &inner, 1);
		row[S_NAME] = inner.function ? inner.function : inner.file ? inner.file : inner.module;
		row[S_BYTES] = c->stacks[stack].bytes;
		row[S_ALLOCATIONS] = c->stacks[stack].allocations;
		row[S_LARGEST] = c->stacks[stack].largest;
		row[S_STACK] = stack;
	}
	hr__table_finish(table);
}

static void fill_facts(collector *c, hr__table *table)
{
	const hr__selection *s = c->report->selection;
	uint64_t *row = hr__table_row(table, &c->status);
	if (!row) return;
	row[F_BYTES] = s->device_peak_bytes;
	row[F_SCOPE_BYTES] = s->at_peak_bytes;
	row[F_NS] = s->device_peak_ns;
	row[F_STEP] = hr__step_of_change(s->capture, s->device_peak_change);
	row[F_ALLOCATIONS] = c->allocations;
	row[F_SLACK] = c->slack;
	row[F_LIMIT] = hr__capture_limit(s->capture, s->device, s->device_peak_ns);
	hr__table_finish(table);
}

static void free_groups(collector *c)
{
	for (int i = 0; i < GROUPINGS; i++) hr__view_free(c->groups[i], c->report->selection->names, sizeof(group));
}

hr_status hr__view_peak(hr__report_view *report)
{
	static const hr__table_plan fact_plan = { .key = "peak", .title = "The peak", .form = HR__TABLE_FACTS, .columns = fact_columns,
		                                      .column_count = F_COLUMNS };
	collector c = { .report = report };
	hr__table *tables[GROUPINGS];
	hr__table *facts = hr__report_table(report, &fact_plan, &c.status);
	for (int i = 0; i < GROUPINGS; i++) {
		tables[i] = hr__report_table(report, &group_plans[i], &c.status);
		c.groups[i] = hr__view_alloc(report->selection->names, sizeof(group), &c.status);
	}
	bool has_stacks = report->selection->capture->has_stacks && (report->options->show_stacks || report->format == HR_PROFILE_JSON);
	hr__table *stacks = has_stacks ? hr__report_table(report, &stack_plan, &c.status) : NULL;
	if (has_stacks) c.stacks = hr__view_alloc(HR__STACKS_MAX, sizeof(group), &c.status);
	c.tensors = hr__report_table(report, &tensor_plan, &c.status);
	if (facts) facts->shows[F_SCOPE_BYTES] = report->selection->is_scope;
	visit_peak(&c);
	if (!c.status) fill_facts(&c, facts);
	for (int i = 0; i < GROUPINGS && !c.status; i++) fill_groups(&c, tables[i], c.groups[i]);
	if (!c.status && has_stacks) fill_stacks(&c, stacks);
	if (!c.status) hr__table_finish(c.tensors);
	hr__view_free(c.stacks, HR__STACKS_MAX, sizeof(group));
	free_groups(&c);
	return c.status;
}

/* Whether the device's memory has at least two tags. The HTML page uses the same rule, so that both start with the same
 * grouping. */
static bool has_tags(const hr__capture *c, uint32_t device)
{
	hr_name first = HR_NAME_NONE;
	for (uint32_t i = 0; i < c->allocation_count; i++) {
		const hr__site *site = &c->sites[c->allocations[i].site];
		if (site->tag == HR_NAME_NONE || site->tag == first || c->allocators[site->allocator].device != device) continue;
		if (first != HR_NAME_NONE) return true;
		first = site->tag;
	}
	return false;
}

hr_status hr__view_peak_groups(hr__report_view *report, uint32_t most)
{
	const hr__selection *s = report->selection;
	int usual = has_tags(s->capture, s->device) ? BY_TAG : BY_OP;
	collector c = { .report = report };
	hr__table *tables[GROUPINGS] = { NULL };
	for (int i = 0; i < GROUPINGS; i++) {
		bool wanted = i == usual || (report->format == HR_PROFILE_JSON && i != BY_SCOPE);
		hr__table_plan plan = group_plans[i];
		plan.title = i == BY_TAG ? "At the peak, by tag" : "At the peak, by op";
		plan.most = most;
		if (!wanted) continue;
		tables[i] = hr__report_table(report, &plan, &c.status);
		c.groups[i] = hr__view_alloc(s->names, sizeof(group), &c.status);
	}
	visit_peak(&c);
	for (int i = 0; i < GROUPINGS && !c.status; i++)
		if (tables[i]) fill_groups(&c, tables[i], c.groups[i]);
	free_groups(&c);
	return c.status;
}
