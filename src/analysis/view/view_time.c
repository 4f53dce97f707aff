/* view_time.c - the views over time: steps, memory over equal intervals, and the summary that includes the latter. */
#include "analysis/view/view.h"

/* ---- steps ---- */

enum {
	S_STEP, S_NS, S_PEAK, S_BEGIN_BYTES, S_END_BYTES, S_BYTES, S_ALLOCATIONS, S_RESIDUAL, S_OPS, S_DEVICE_NS, S_OUT, S_IN, S_DROPPED, S_AGAIN, S_REFUSED, S_BEGIN, S_COLUMNS
};

static const hr__column step_columns[S_COLUMNS] = {
	[S_STEP] = { "step", "step", HR__CELL_COUNT, 0 },
	[S_NS] = { "micros", "time", HR__CELL_NS, HR__SUMS | HR__TIME | HR__MIN_MICROS },
	[S_PEAK] = { "peak_bytes", "peak", HR__CELL_BYTES, HR__MEMORY | HR__MIN_BYTES },
	[S_BEGIN_BYTES] = { "begin_bytes", "before", HR__CELL_BYTES, HR__MEMORY | HR__NOT_IN_TEXT },
	[S_END_BYTES] = { "end_bytes", "at its end", HR__CELL_BYTES, HR__MEMORY },
	[S_BYTES] = { "bytes", "allocated", HR__CELL_BYTES, HR__SUMS | HR__MEMORY },
	[S_ALLOCATIONS] = { "allocations", "allocs", HR__CELL_COUNT, HR__SUMS | HR__MEMORY },
	[S_RESIDUAL] = { "residual_bytes", "not freed", HR__CELL_BYTES, HR__SUMS | HR__MEMORY },
	[S_OPS] = { "ops", "ops", HR__CELL_COUNT, HR__SUMS },
	[S_DEVICE_NS] = { "accelerator_micros", "on device", HR__CELL_NS, HR__SUMS | HR__TIME },
	[S_OUT] = { "out_bytes", "moved out", HR__CELL_BYTES, HR__SUMS | HR__MEMORY },
	[S_IN] = { "in_bytes", "moved in", HR__CELL_BYTES, HR__SUMS | HR__MEMORY },
	[S_DROPPED] = { "dropped", "dropped", HR__CELL_COUNT, HR__SUMS },
	[S_AGAIN] = { "recomputed", "recomputed", HR__CELL_COUNT, HR__SUMS },
	[S_REFUSED] = { "refused", "refused", HR__CELL_COUNT, HR__SUMS },
	[S_BEGIN] = { "begin_micros", "start", HR__CELL_NS, HR__TIME },
};

typedef struct walker {
	const hr__selection *selection;
	uint32_t change, allocation, op, move, refusal; /* index of the next of each */
	uint64_t in_use;
} walker;

/* Applies change number [index]. */
static void take_change(walker *w, uint32_t index)
{
	const hr__capture *c = w->selection->capture;
	const hr__allocation *allocation = &c->allocations[c->changes[index].allocation];
	if (!c->changes[index].frees) w->allocation++;
	if (!w->selection->takes_site[allocation->site]) return;
	w->in_use = c->changes[index].frees ? w->in_use - allocation->bytes : w->in_use + allocation->bytes;
}

static void walk_changes(walker *w, const hr__step_run *step, uint64_t *row)
{
	const hr__capture *c = w->selection->capture;
	while (w->change < step->first_change) take_change(w, w->change++);
	uint32_t first = w->allocation;
	row[S_BEGIN_BYTES] = row[S_PEAK] = w->in_use;
	for (; w->change < step->last_change; w->change++) {
		const hr__change *change = &c->changes[w->change];
		const hr__allocation *allocation = &c->allocations[change->allocation];
		take_change(w, w->change);
		if (w->in_use > row[S_PEAK]) row[S_PEAK] = w->in_use;
		if (!w->selection->takes_site[allocation->site]) continue;
		if (hr__allocation_birth(c, change->allocation) >= first) row[S_RESIDUAL] += change->frees ? 0 - allocation->bytes : allocation->bytes;
		if (change->frees) continue;
		row[S_BYTES] += allocation->bytes;
		row[S_ALLOCATIONS]++;
	}
	row[S_END_BYTES] = w->in_use;
}

/* Adds the bytes of a move over the link, or counts a tensor that was dropped or recomputed instead. */
static void count_move(const hr__move *move, uint64_t *out, uint64_t *in, uint64_t *dropped, uint64_t *again)
{
	if (move->kind == HR__MOVE_OUT) *out += move->bytes, *dropped += move->by_recipe;
	if (move->kind == HR__MOVE_IN) *in += move->bytes, *again += move->by_recipe;
}

/* Counts moves and refusals, which are assigned to steps by time. A step without an end lasts until the end of the trace. */
static void walk_rest(walker *w, const hr__step_run *step, uint64_t *row)
{
	const hr__selection *s = w->selection;
	const hr__capture *c = s->capture;
	for (; w->move < c->move_count && c->moves[w->move].time_ns < step->end_ns; w->move++) {
		const hr__move *move = &c->moves[w->move];
		if (move->time_ns < step->begin_ns || !s->takes_site[move->site]) continue;
		count_move(move, &row[S_OUT], &row[S_IN], &row[S_DROPPED], &row[S_AGAIN]);
	}
	for (; w->refusal < c->refusal_count && c->refusals[w->refusal].time_ns < step->end_ns; w->refusal++)
		row[S_REFUSED] += c->refusals[w->refusal].time_ns >= step->begin_ns && s->takes_site[c->refusals[w->refusal].site];
}

static void walk_ops(walker *w, uint32_t step, uint64_t *row)
{
	const hr__selection *s = w->selection;
	const hr__capture *c = s->capture;
	for (; w->op < c->op_count && (c->ops[w->op].step == HR__NONE || c->ops[w->op].step <= step); w->op++) {
		if (c->ops[w->op].step != step || s->op_devices[w->op] != s->device || !s->takes_scope[c->ops[w->op].scope]) continue;
		row[S_OPS]++;
		row[S_DEVICE_NS] += c->ops[w->op].device_ns;
	}
}

hr_status hr__view_steps(hr__report_view *report)
{
	static const hr__table_plan plan = { .key = "steps", .title = "Steps", .columns = step_columns, .column_count = S_COLUMNS };
	const hr__capture *c = report->selection->capture;
	walker w = { .selection = report->selection };
	hr_status status = HR_OK;
	hr__table *table = hr__report_table(report, &plan, &status);
	for (uint32_t i = 0; i < c->step_count && !status; i++) {
		uint64_t unseen[S_COLUMNS] = { 0 };
		bool seen = report->selection->step == HR__NONE || report->selection->step == i;
		uint64_t *row = seen ? hr__table_row(table, &status) : unseen;
		if (!row) break;
		row[S_STEP] = c->steps[i].number;
		row[S_BEGIN] = c->steps[i].begin_ns;
		row[S_NS] = (c->steps[i].end_ns == HR__NEVER ? c->end_ns : c->steps[i].end_ns) - c->steps[i].begin_ns;
		walk_changes(&w, &c->steps[i], row);
		walk_rest(&w, &c->steps[i], row);
		walk_ops(&w, i, row);
	}
	if (!status) hr__table_finish(table);
	return status;
}

/* ---- timeline ---- */

enum { B_BEGIN, B_END_NS, B_PEAK, B_LEAST, B_END, B_ALLOCATIONS, B_FREES, B_OUT, B_IN, B_REFUSED, B_COLUMNS };

static const hr__column bucket_columns[B_COLUMNS] = {
	[B_BEGIN] = { "begin_micros", "from", HR__CELL_NS, 0 },
	[B_END_NS] = { "end_micros", "to", HR__CELL_NS, 0 },
	[B_PEAK] = { "peak_bytes", "most", HR__CELL_BYTES, 0 },
	[B_LEAST] = { "least_bytes", "least", HR__CELL_BYTES, 0 },
	[B_END] = { "end_bytes", "at its end", HR__CELL_BYTES, 0 },
	[B_ALLOCATIONS] = { "allocations", "allocations", HR__CELL_COUNT, HR__SUMS },
	[B_FREES] = { "frees", "frees", HR__CELL_COUNT, HR__SUMS },
	[B_OUT] = { "out_bytes", "moved out", HR__CELL_BYTES, HR__SUMS },
	[B_IN] = { "in_bytes", "moved in", HR__CELL_BYTES, HR__SUMS },
	[B_REFUSED] = { "refused", "refused", HR__CELL_COUNT, HR__SUMS },
};

#define BUCKETS_JSON 200u
#define BUCKETS_MOST 100000u
#define CHART_LABEL 11u

typedef struct timeline {
	const hr__selection *selection;
	hr__table *table;
	hr__stretches buckets;
} timeline;

static uint64_t *row_at(const timeline *t, uint32_t bucket)
{
	return t->table->cells + (size_t)bucket * (t->table->column_count + 1);
}

static void fill_levels(timeline *t)
{
	const hr__selection *s = t->selection;
	const hr__capture *c = s->capture;
	uint64_t in_use = s->begin_bytes;
	uint32_t bucket = 0;
	row_at(t, 0)[B_PEAK] = row_at(t, 0)[B_LEAST] = row_at(t, 0)[B_END] = in_use;
	for (uint32_t i = s->first_change; i < s->last_change; i++) {
		const hr__change *change = &c->changes[i];
		const hr__allocation *allocation = &c->allocations[change->allocation];
		if (!s->takes_site[allocation->site]) continue;
		uint32_t now = hr__stretch_at(&t->buckets, change->frees ? allocation->end_ns : allocation->begin_ns);
		while (bucket < now) {
			bucket++;
			row_at(t, bucket)[B_PEAK] = row_at(t, bucket)[B_LEAST] = row_at(t, bucket)[B_END] = in_use;
		}
		uint64_t *row = row_at(t, bucket);
		in_use = change->frees ? in_use - allocation->bytes : in_use + allocation->bytes;
		if (in_use > row[B_PEAK]) row[B_PEAK] = in_use;
		if (in_use < row[B_LEAST]) row[B_LEAST] = in_use;
		row[B_END] = in_use;
		row[change->frees ? B_FREES : B_ALLOCATIONS]++;
	}
	while (++bucket < t->buckets.count) row_at(t, bucket)[B_PEAK] = row_at(t, bucket)[B_LEAST] = row_at(t, bucket)[B_END] = in_use;
}

static bool is_within(const hr__selection *s, uint64_t ns)
{
	return ns >= s->begin_ns && ns <= s->end_ns;
}

static void fill_traffic(timeline *t)
{
	const hr__selection *s = t->selection;
	const hr__capture *c = s->capture;
	for (uint32_t i = 0; i < c->move_count; i++) {
		const hr__move *move = &c->moves[i];
		if (!is_within(s, move->time_ns) || !s->takes_site[move->site]) continue;
		if (move->kind == HR__MOVE_OUT) row_at(t, hr__stretch_at(&t->buckets, move->time_ns))[B_OUT] += move->bytes;
		if (move->kind == HR__MOVE_IN) row_at(t, hr__stretch_at(&t->buckets, move->time_ns))[B_IN] += move->bytes;
	}
	for (uint32_t i = 0; i < c->refusal_count; i++)
		if (is_within(s, c->refusals[i].time_ns) && s->takes_site[c->refusals[i].site]) row_at(t, hr__stretch_at(&t->buckets, c->refusals[i].time_ns))[B_REFUSED]++;
}

static uint32_t choose_buckets(const hr__report_view *report)
{
	uint32_t wanted = report->options->max_rows;
	if (report->format == HR_PROFILE_TEXT) return report->options->width > CHART_LABEL + 20 ? report->options->width - CHART_LABEL : 20;
	return wanted == 0 ? BUCKETS_JSON : wanted < BUCKETS_MOST ? wanted : BUCKETS_MOST;
}

hr_status hr__view_timeline(hr__report_view *report)
{
	static const hr__table_plan plan = { .key = "timeline", .title = "Memory in use", .form = HR__TABLE_CHART, .columns = bucket_columns,
		                                 .column_count = B_COLUMNS };
	const hr__selection *s = report->selection;
	hr_status status = HR_OK;
	timeline t = { .selection = s, .buckets = hr__stretches_of(s, choose_buckets(report)) };
	t.table = hr__report_table(report, &plan, &status);
	for (uint32_t i = 0; i < t.buckets.count && !status; i++) {
		uint64_t *row = hr__table_row(t.table, &status);
		if (!row) break;
		row[B_BEGIN] = hr__stretch_begin(&t.buckets, i);
		row[B_END_NS] = hr__stretch_begin(&t.buckets, i + 1);
	}
	if (status) return status;
	fill_levels(&t);
	fill_traffic(&t);
	hr__table_finish(t.table);
	return HR_OK;
}

/* ---- summary ---- */

enum { F_PEAK, F_AT_PEAK, F_PEAK_NS, F_PEAK_STEP, F_LIMIT, F_END, F_NS, F_STEPS, F_OPS, F_DEVICE_NS, F_ALLOCATIONS, F_BYTES, F_OUT, F_IN, F_DROPPED, F_AGAIN, F_PLANNING, F_REFUSED, F_COLUMNS };

static const hr__column fact_columns[F_COLUMNS] = {
	[F_PEAK] = { "peak_bytes", "peak", HR__CELL_BYTES, 0 },
	[F_AT_PEAK] = { "at_peak_bytes", "at the device's peak", HR__CELL_BYTES, HR__ALWAYS },
	[F_PEAK_NS] = { "peak_micros", "reached after", HR__CELL_NS, HR__TIME },
	[F_PEAK_STEP] = { "peak_step", "in step", HR__CELL_COUNT, 0 },
	[F_LIMIT] = { "limit_bytes", "limit at that time", HR__CELL_BYTES, 0 },
	[F_END] = { "end_bytes", "in use at the end", HR__CELL_BYTES, HR__ALWAYS },
	[F_NS] = { "micros", "recorded", HR__CELL_NS, HR__TIME },
	[F_STEPS] = { "steps", "steps", HR__CELL_COUNT, 0 },
	[F_OPS] = { "ops", "ops", HR__CELL_COUNT, 0 },
	[F_DEVICE_NS] = { "accelerator_micros", "time on the device", HR__CELL_NS, HR__TIME },
	[F_ALLOCATIONS] = { "allocations", "allocations", HR__CELL_COUNT, 0 },
	[F_BYTES] = { "bytes", "allocated in all", HR__CELL_BYTES, 0 },
	[F_OUT] = { "out_bytes", "moved to the host", HR__CELL_BYTES, 0 },
	[F_IN] = { "in_bytes", "moved back", HR__CELL_BYTES, 0 },
	[F_DROPPED] = { "dropped", "tensors dropped", HR__CELL_COUNT, 0 },
	[F_AGAIN] = { "recomputed", "tensors recomputed", HR__CELL_COUNT, 0 },
	[F_PLANNING] = { "planning_micros", "pauses for LMS plans", HR__CELL_NS, HR__TIME },
	[F_REFUSED] = { "refused", "requests refused", HR__CELL_COUNT, 0 },
};

static void fill_summary(const hr__selection *s, uint64_t *row)
{
	const hr__capture *c = s->capture;
	row[F_PEAK] = s->peak_bytes;
	row[F_AT_PEAK] = s->at_peak_bytes;
	row[F_PEAK_NS] = s->peak_ns;
	row[F_PEAK_STEP] = hr__step_of_change(c, s->peak_change);
	row[F_LIMIT] = hr__capture_limit(c, s->device, s->peak_ns);
	row[F_END] = s->end_bytes;
	row[F_NS] = s->end_ns - s->begin_ns;
	row[F_STEPS] = s->step == HR__NONE ? c->step_count : 1;
	for (uint32_t i = s->first_change; i < s->last_change; i++) {
		if (c->changes[i].frees || !hr__selects_allocation(s, c->changes[i].allocation)) continue;
		row[F_ALLOCATIONS]++;
		row[F_BYTES] += c->allocations[c->changes[i].allocation].bytes;
	}
	for (uint32_t i = 0; i < c->op_count; i++) {
		if (!hr__selects_op(s, i)) continue;
		row[F_OPS]++;
		row[F_DEVICE_NS] += c->ops[i].device_ns;
	}
	for (uint32_t i = 0; i < c->move_count; i++) {
		const hr__move *move = &c->moves[i];
		if (!is_within(s, move->time_ns) || !s->takes_site[move->site]) continue;
		count_move(move, &row[F_OUT], &row[F_IN], &row[F_DROPPED], &row[F_AGAIN]);
	}
	for (uint32_t i = 0; i < c->pause_count; i++)
		if (is_within(s, c->pauses[i].end_ns)) row[F_PLANNING] += c->pauses[i].end_ns - c->pauses[i].begin_ns;
	for (uint32_t i = 0; i < c->refusal_count; i++) row[F_REFUSED] += is_within(s, c->refusals[i].time_ns) && s->takes_site[c->refusals[i].site];
}

hr_status hr__view_summary(hr__report_view *report)
{
	static const hr__table_plan plan = { .key = "summary", .form = HR__TABLE_FACTS, .columns = fact_columns, .column_count = F_COLUMNS };
	hr_status status = HR_OK;
	hr__table *table = hr__report_table(report, &plan, &status);
	uint64_t *row = status ? NULL : hr__table_row(table, &status);
	if (!row) return status;
	table->shows[F_AT_PEAK] = report->selection->is_scope;
	fill_summary(report->selection, row);
	hr__table_finish(table);
	status = hr__view_timeline(report);
	if (!status) status = hr__view_peak_groups(report, report->options->max_rows ? 0 : 8);
	return status;
}
