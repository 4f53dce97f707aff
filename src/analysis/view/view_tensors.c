/* view_tensors.c - a list of tensors: size, lifetime, number of uses, and longest idle time. */
#include "analysis/view/view.h"

enum { T_OP, T_BYTES, T_NS, T_IDLE, T_USES, T_SHAPE, T_DTYPE, T_SCOPE, T_TAG, T_BEGIN, T_ALIVE, T_SLACK, T_STACK, T_COLUMNS };

static const hr__column columns[T_COLUMNS] = {
	[T_OP] = { "op", "op", HR__CELL_NAME, 0 },
	[T_BYTES] = { "bytes", "bytes", HR__CELL_BYTES, HR__SUMS | HR__MEMORY | HR__MIN_BYTES },
	[T_NS] = { "micros", "lived", HR__CELL_NS, HR__TIME | HR__MIN_MICROS },
	[T_IDLE] = { "idle_micros", "idle", HR__CELL_NS, HR__TIME },
	[T_USES] = { "uses", "uses", HR__CELL_COUNT, HR__SUMS },
	[T_SHAPE] = { "shape", "shape", HR__CELL_SHAPE, 0 },
	[T_DTYPE] = { "dtype", "dtype", HR__CELL_DTYPE, 0 },
	[T_SCOPE] = { "scope", "scope", HR__CELL_NAME, 0 },
	[T_TAG] = { "tag", "tag", HR__CELL_NAME, 0 },
	[T_BEGIN] = { "begin_micros", "start", HR__CELL_NS, HR__TIME },
	[T_ALIVE] = { "alive", "alive", HR__CELL_YES, 0 },
	[T_SLACK] = { "slack_bytes", "slack", HR__CELL_BYTES, HR__SUMS | HR__MEMORY | HR__NOT_IN_TEXT },
	[T_STACK] = { "stack", "stack", HR__CELL_STACK, HR__STACKS },
};

/* The uses of one allocation by ops. */
typedef struct usage {
	uint64_t last_ns, idle_ns;
	uint32_t uses;
} usage;

typedef struct lister {
	const hr__selection *selection;
	hr__table *table;
	const usage *usages; /* NULL: the trace has no uses, so idle times are unknown */
	hr_status status;
} lister;

/* An allocation is idle from its begin to its first use, between uses, and from its last use to its end. The time of a use is the
 * begin of its op; the op that creates an allocation begins before it. */
static void note_use(usage *u, const hr__allocation *allocation, uint64_t now)
{
	if (now < allocation->begin_ns) now = allocation->begin_ns;
	uint64_t since = u->uses ? u->last_ns : allocation->begin_ns;
	if (now > since && now - since > u->idle_ns) u->idle_ns = now - since;
	if (now > u->last_ns) u->last_ns = now;
	u->uses++;
}

static void note_uses(const hr__capture *c, usage *usages)
{
	for (uint32_t i = 0; i < c->use_count; i++) {
		const hr__capture_use *use = &c->uses[i];
		if (use->op != HR__NONE) note_use(&usages[use->allocation], &c->allocations[use->allocation], c->ops[use->op].begin_ns);
	}
}

static void list(void *context, uint32_t index)
{
	lister *l = context;
	const hr__capture *c = l->selection->capture;
	const hr__allocation *allocation = &c->allocations[index];
	if (!hr__selects_allocation(l->selection, index)) return;
	uint64_t *row = hr__table_row(l->table, &l->status);
	if (!row) return;
	const hr__site *site = &c->sites[allocation->site];
	uint64_t end = allocation->end_ns == HR__NEVER ? c->end_ns : allocation->end_ns;
	row[T_OP] = site->op;
	row[T_SCOPE] = site->scope;
	row[T_TAG] = site->tag;
	row[T_SHAPE] = site->shape;
	row[T_DTYPE] = site->dtype;
	row[T_STACK] = site->stack;
	row[T_BYTES] = allocation->bytes;
	row[T_SLACK] = allocation->slack;
	row[T_BEGIN] = allocation->begin_ns;
	row[T_NS] = end - allocation->begin_ns;
	row[T_ALIVE] = allocation->end_ns == HR__NEVER;
	row[T_IDLE] = l->usages ? 0 : HR__NEVER;
	if (!l->usages) return;
	const usage *u = &l->usages[index];
	uint64_t last = end > (u->uses ? u->last_ns : allocation->begin_ns) ? end - (u->uses ? u->last_ns : allocation->begin_ns) : 0;
	row[T_USES] = u->uses;
	row[T_IDLE] = u->idle_ns > last ? u->idle_ns : last;
}

/* Lists the allocations that were live when the selected time began, and those that began in it. */
static void list_all(lister *l)
{
	const hr__selection *s = l->selection;
	if (s->first_change > 0) {
		hr_status status = hr__capture_live(s->capture, s->first_change - 1, s->device, list, l);
		if (status) l->status = status;
	}
	for (uint32_t i = s->first_change; i < s->last_change && !l->status; i++)
		if (!s->capture->changes[i].frees) list(l, s->capture->changes[i].allocation);
}

hr_status hr__view_tensors(hr__report_view *report)
{
	static const hr__table_plan plan = { .key = "tensors", .title = "Tensors", .columns = columns, .column_count = T_COLUMNS, .order = "bytes" };
	const hr__capture *c = report->selection->capture;
	lister l = { .selection = report->selection };
	usage *usages = NULL;
	l.table = hr__report_table(report, &plan, &l.status);
	if (!l.status && c->use_count) {
		usages = hr__view_alloc(c->allocation_count, sizeof *usages, &l.status);
		if (usages) note_uses(c, usages);
		l.usages = usages;
	}
	if (!l.status) list_all(&l);
	hr__view_free(usages, c->allocation_count, sizeof *usages);
	if (!l.status) hr__table_finish(l.table);
	return l.status;
}
