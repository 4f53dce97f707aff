/* diff.c - the differences between two recordings, or between two steps: sums, and the bytes of ops and scopes at the peak.
 *
 * The names of both sides are interned in this process, so equal names have equal numbers. The changes of all rows, including
 * hidden ones, add up to the change of the peak. Text shows only differences; JSON has all rows. */
#include <stdio.h>
#include <string.h>

#include "core/base/text/json.h"
#include "core/base/names.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "analysis/view/nodes.h"
#include "analysis/table/table_write.h"

enum { A, B, SIDES };

typedef struct side {
	const hr__capture *capture;
	uint32_t step;
	uint32_t *op_devices;
	hr__selection selection;
	bool is_there; /* the capture has the device */
} side;

/* ---- sums ---- */

enum { M_WHAT, M_CHANGE, M_A, M_B, M_COLUMNS }; /* the change comes first, because a narrow terminal cuts later columns */

/* Bytes, times and counts are in separate tables, because a column holds one kind. */
static const hr__column byte_columns[] = {
	[M_WHAT] = { "what", "", HR__CELL_LABEL, 0 },
	[M_A] = { "a", "A", HR__CELL_BYTES, 0 },
	[M_B] = { "b", "B", HR__CELL_BYTES, 0 },
	[M_CHANGE] = { "change", "change", HR__CELL_BYTES_CHANGE, HR__ALWAYS },
};
static const hr__column other_columns[] = {
	[M_WHAT] = { "what", "", HR__CELL_LABEL, 0 },
	[M_A] = { "a", "A", HR__CELL_COUNT, 0 },
	[M_B] = { "b", "B", HR__CELL_COUNT, 0 },
	[M_CHANGE] = { "change", "change", HR__CELL_COUNT_CHANGE, HR__ALWAYS },
};
static const hr__column time_columns[] = {
	[M_WHAT] = { "what", "", HR__CELL_LABEL, 0 },
	[M_A] = { "a_micros", "A", HR__CELL_NS, 0 },
	[M_B] = { "b_micros", "B", HR__CELL_NS, 0 },
	[M_CHANGE] = { "change_micros", "change", HR__CELL_NS_CHANGE, HR__ALWAYS },
};

static void add_sum(hr__table *table, const char *what, uint64_t a, uint64_t b, hr_status *status)
{
	uint64_t *row = table->changes_only && a == b ? NULL : hr__table_row(table, status);
	if (!row) return;
	row[M_WHAT] = (uintptr_t)what;
	row[M_A] = a;
	row[M_B] = b;
	row[M_CHANGE] = b - a;
}

/* ---- groups ---- */

enum { D_NAME, D_CHANGE, D_A, D_B, D_NS_CHANGE, D_BYTES_CHANGE, D_BYTES_A, D_BYTES_B, D_NS_A, D_NS_B, D_COLUMNS };

#define GROUP_COLUMNS(heading)                                                                            \
	{                                                                                                     \
		[D_NAME] = { "name", heading, HR__CELL_PATH, 0 },                                                 \
		[D_A] = { "a_at_peak_bytes", "A at peak", HR__CELL_BYTES, HR__SUMS | HR__MEMORY },                \
		[D_B] = { "b_at_peak_bytes", "B at peak", HR__CELL_BYTES, HR__SUMS | HR__MEMORY },                \
		[D_CHANGE] = { "at_peak_change", "change", HR__CELL_BYTES_CHANGE, HR__SUMS | HR__MEMORY },        \
		[D_NS_CHANGE] = { "micros_change", "time", HR__CELL_NS_CHANGE, HR__SUMS | HR__TIME },             \
		[D_BYTES_CHANGE] = { "bytes_change", "allocated", HR__CELL_BYTES_CHANGE, HR__SUMS | HR__MEMORY }, \
		[D_BYTES_A] = { "a_bytes", "A allocated", HR__CELL_BYTES, HR__SUMS | HR__MEMORY | HR__NOT_IN_TEXT }, \
		[D_BYTES_B] = { "b_bytes", "B allocated", HR__CELL_BYTES, HR__SUMS | HR__MEMORY | HR__NOT_IN_TEXT }, \
		[D_NS_A] = { "a_micros", "A time", HR__CELL_NS, HR__SUMS | HR__TIME | HR__NOT_IN_TEXT },          \
		[D_NS_B] = { "b_micros", "B time", HR__CELL_NS, HR__SUMS | HR__TIME | HR__NOT_IN_TEXT },          \
	}

static const hr__column op_columns[] = GROUP_COLUMNS("op");
static const hr__column scope_columns[] = GROUP_COLUMNS("scope");

static void fill_group(uint64_t *row, int which, const hr__node_sums *sums)
{
	row[which == A ? D_A : D_B] += sums->at_peak_bytes;
	row[which == A ? D_BYTES_A : D_BYTES_B] += sums->bytes;
	row[which == A ? D_NS_A : D_NS_B] += sums->ns;
}

/* The name that a node stands for. The path of a node that was created as the parent of a longer scope may itself be an interned
 * name. */
static hr_name name_of(uint64_t path, size_t names)
{
	hr_name name = (hr_name)path;
	const char *text = hr_name_text(name);
	if (strlen(text) == path >> 32) return name;
	hr_name part = hr__name_of_bytes(text, (size_t)(path >> 32));
	return part < names ? part : name;
}

static bool is_empty(const hr__node_sums *sums)
{
	return !sums->at_peak_bytes && !sums->bytes && !sums->ns;
}

/* Fills one row per name with the values of both sides. */
static hr_status collect_groups(const side *sides, hr__node_kind kind, uint64_t *rows, size_t names)
{
	for (int which = A; which < SIDES; which++) {
		hr__nodes nodes;
		if (!sides[which].is_there) continue;
		hr_status status = hr__nodes_make(&sides[which].selection, kind, &nodes);
		if (status) return status;
		for (uint32_t i = 0; i < nodes.count; i++) {
			const hr__node *node = &nodes.nodes[i];
			if (!is_empty(&node->self)) fill_group(rows + (size_t)name_of(node->path, names) * D_COLUMNS, which, &node->self);
		}
		hr__nodes_free(&nodes);
	}
	for (size_t name = 0; name < names; name++) {
		uint64_t *row = rows + name * D_COLUMNS;
		row[D_NAME] = hr__path_cell((hr_name)name, strlen(hr_name_text((hr_name)name)));
		row[D_CHANGE] = row[D_B] - row[D_A];
		row[D_BYTES_CHANGE] = row[D_BYTES_B] - row[D_BYTES_A];
		row[D_NS_CHANGE] = row[D_NS_B] - row[D_NS_A];
	}
	return HR_OK;
}

static bool any_changes(const uint64_t *rows, size_t names, int column)
{
	for (size_t name = 0; name < names; name++)
		if (rows[name * D_COLUMNS + (size_t)column]) return true;
	return false;
}

/* If nothing differs at the peak, sorts by another kind of change, and text leaves out the columns of bytes at the peak. */
static void look_beyond_peak(hr__table *table, const uint64_t *rows, size_t names, bool ordered)
{
	if (any_changes(rows, names, D_CHANGE)) return;
	if (!ordered) table->order = any_changes(rows, names, D_BYTES_CHANGE) ? D_BYTES_CHANGE : D_NS_CHANGE;
	if (table->changes_only) table->shows[D_A] = table->shows[D_B] = false;
}

static hr_status compare_groups(hr__table *table, const side *sides, hr__node_kind kind, bool ordered)
{
	hr_status status = HR_OK;
	size_t names = hr__names_count();
	uint64_t *rows = hr__view_alloc(names * D_COLUMNS, sizeof *rows, &status);
	if (!status) status = collect_groups(sides, kind, rows, names);
	if (!status) look_beyond_peak(table, rows, names, ordered);
	for (size_t name = 0; name < names && !status; name++) {
		const uint64_t *from = rows + name * D_COLUMNS;
		if (!from[D_A] && !from[D_B] && !from[D_BYTES_A] && !from[D_BYTES_B] && !from[D_NS_A] && !from[D_NS_B]) continue;
		uint64_t *row = hr__table_row(table, &status);
		if (row) memcpy(row, from, D_COLUMNS * sizeof *row);
	}
	hr__view_free(rows, names * D_COLUMNS, sizeof *rows);
	hr__table_finish(table);
	return status;
}

/* ---- one device ---- */

typedef struct device_sums {
	uint64_t peak, at_peak, end, bytes, allocations, ns, ops, device_ns;
} device_sums;

static device_sums add_up(const side *s)
{
	device_sums out = { 0 };
	if (!s->is_there) return out;
	const hr__capture *c = s->capture;
	out.peak = s->selection.peak_bytes;
	out.at_peak = s->selection.at_peak_bytes;
	out.end = s->selection.end_bytes;
	out.ns = s->selection.end_ns - s->selection.begin_ns;
	for (uint32_t i = s->selection.first_change; i < s->selection.last_change; i++) {
		if (c->changes[i].frees || !hr__selects_allocation(&s->selection, c->changes[i].allocation)) continue;
		out.allocations++;
		out.bytes += c->allocations[c->changes[i].allocation].bytes;
	}
	for (uint32_t i = 0; i < c->op_count; i++) {
		if (!hr__selects_op(&s->selection, i)) continue;
		out.ops++;
		out.device_ns += c->ops[i].device_ns;
	}
	return out;
}

static hr_status fill_report(hr__report_view *report, const side *sides, uint64_t *same_peak)
{
	static const hr__table_plan plans[] = {
		{ .key = "memory", .title = "Memory", .columns = byte_columns, .column_count = M_COLUMNS, .bends = true },
		{ .key = "time", .title = "Time", .columns = time_columns, .column_count = M_COLUMNS, .bends = true },
		{ .key = "counts", .title = "Counts", .columns = other_columns, .column_count = M_COLUMNS, .bends = true },
		{ .key = "by_op", .title = "Ops", .columns = op_columns, .column_count = D_COLUMNS, .order = "at_peak_change" },
		{ .key = "by_scope", .title = "Name scopes", .columns = scope_columns, .column_count = D_COLUMNS, .order = "at_peak_change" },
	};
	hr_status status = HR_OK;
	device_sums a = add_up(&sides[A]), b = add_up(&sides[B]);
	bool ordered = report->options->order_by != NULL;
	hr__table *tables[5];
	*same_peak = a.peak == b.peak ? a.peak : HR__NEVER;
	for (int i = 0; i < 5; i++) tables[i] = hr__report_table(report, &plans[i], &status);
	if (status) return status;
	for (int i = 0; i < 5; i++) tables[i]->changes_only = report->format == HR_PROFILE_TEXT;
	for (int i = 0; i < 3; i++) {
		tables[i]->filter = NULL; /* few rows, all of them shown */
		tables[i]->most = UINT32_MAX;
	}
	add_sum(tables[0], "peak", a.peak, b.peak, &status);
	if (sides[sides[A].is_there ? A : B].selection.is_scope) add_sum(tables[0], "at the device's peak", a.at_peak, b.at_peak, &status);
	add_sum(tables[0], "in use at the end", a.end, b.end, &status);
	add_sum(tables[0], "allocated in all", a.bytes, b.bytes, &status);
	add_sum(tables[1], "recorded", a.ns, b.ns, &status);
	add_sum(tables[1], "on the device", a.device_ns, b.device_ns, &status);
	add_sum(tables[2], "allocations", a.allocations, b.allocations, &status);
	add_sum(tables[2], "ops", a.ops, b.ops, &status);
	for (int i = 0; i < 3; i++) hr__table_finish(tables[i]);
	if (!status) status = compare_groups(tables[3], sides, HR__NODES_BY_OP, ordered);
	if (!status) status = compare_groups(tables[4], sides, HR__NODES_BY_SCOPE, ordered);
	return status;
}

static uint32_t find_device(const hr__capture *capture, const char *name)
{
	for (uint32_t i = 0; i < capture->device_count; i++)
		if (strcmp(capture->devices[i].name, name) == 0) return i;
	return HR__NONE;
}

static hr_status select_side(side *s, const char *device, const hr_profile_options *options)
{
	uint32_t index = find_device(s->capture, device);
	s->is_there = false;
	if (index == HR__NONE) return HR_OK;
	hr_status status = hr__selection_make(s->capture, index, s->step, options->name_scope, s->op_devices, &s->selection);
	s->is_there = !status;
	return status;
}

/* ---- all devices ---- */

#define DEVICES_MAX 64u

typedef struct output {
	const hr_profile_options *options;
	const hr__filter *filter;
	hr_profile_format format;
	hr__json json;
	hr__text_out text;
	/* All reports are made before the first is written. */
	hr__report_view *reports[DEVICES_MAX];
	const char *names[DEVICES_MAX]; /* of the reports' devices */
	uint64_t same_peaks[DEVICES_MAX]; /* the peak of both sides; HR__NEVER: the peaks differ */
	uint32_t devices;
	uint64_t other_names; /* of both sides */
} output;

static void write_json(hr__json *json, const char *device, const hr__report_view *report)
{
	hr__json_object(json);
	hr__json_field_string(json, "device", device);
	for (uint32_t i = 0; i < report->table_count; i++) hr__table_json(&report->tables[i], json);
	hr__json_end_object(json);
}

/* True also if all differing rows are hidden by a filter. */
static bool table_differs(const hr__table *table)
{
	return table->offered > table->same_rows;
}

static bool report_differs(const hr__report_view *report)
{
	for (uint32_t i = 0; i < report->table_count; i++)
		if (table_differs(&report->tables[i])) return true;
	return false;
}

/* States the peak also when it did not change, because the peak is the main result of a comparison. */
static void write_same(hr__text_out *out, bool differs, uint64_t same_peak)
{
	char text[80], peak[16];
	if (same_peak == HR__NEVER) return;
	hr__format_size(same_peak, peak, sizeof peak);
	snprintf(text, sizeof text, "%s peak is %s in both.", differs ? "The" : "Nothing differs: the", peak);
	hr__text_paragraph(out, text);
	hr__text_print(out, "\n");
}

static void write_text(hr__text_out *out, const char *device, const hr__report_view *report, uint64_t same_peak)
{
	static const hr__column device_column = { .kind = HR__CELL_LABEL };
	char name[HR__CELL_BYTES_MAX];
	bool differs = report_differs(report);
	hr__text_heading(out, "%s", hr__cell_format(&device_column, (uintptr_t)device, name));
	write_same(out, differs, same_peak);
	for (uint32_t i = 0; i < report->table_count && differs; i++) {
		if (table_differs(&report->tables[i])) {
			hr__table_text(&report->tables[i], out);
			continue;
		}
		hr__text_heading(out, "%s", report->tables[i].title);
		hr__text_print(out, "  (no difference)\n\n");
	}
}

static hr_status diff_device(output *o, side *sides, const char *device)
{
	hr__report_view *report;
	hr_status status = HR_OK;
	report = hr__view_alloc(1, sizeof *report, &status);
	if (status) return status;
	o->names[o->devices] = device;
	o->reports[o->devices++] = report;
	*report = (hr__report_view){ .options = o->options, .filter = o->filter, .format = o->format };
	status = select_side(&sides[A], device, o->options);
	if (!status) status = select_side(&sides[B], device, o->options);
	if (!status) status = fill_report(report, sides, &o->same_peaks[o->devices - 1]);
	for (int i = A; i < SIDES; i++)
		if (sides[i].is_there) hr__selection_free(&sides[i].selection);
	return status;
}

/* The devices of A, then those that only B has. */
static hr_status diff_devices(output *o, side *sides)
{
	hr_status status = HR_OK;
	for (int which = A; which < SIDES; which++) {
		const hr__capture *c = sides[which].capture;
		for (uint32_t i = 0; i < c->device_count && !status; i++) {
			if (!hr__profile_takes_device(c, i, o->options->device)) continue;
			if (which == B && find_device(sides[A].capture, c->devices[i].name) != HR__NONE) continue;
			if (o->devices == DEVICES_MAX) return hr__fail(HR_TOO_MANY, "device: more than %u of them; choose one", DEVICES_MAX);
			status = diff_device(o, sides, c->devices[i].name);
		}
	}
	if (!status && !o->devices) return hr__fail(HR_INVALID_ARGUMENT, "device: neither trace has anything on \"%.100s\"", o->options->device ? o->options->device : "");
	return status;
}

static hr_status write_reports(output *o)
{
	hr_status status = HR_OK;
	bool is_json = o->format == HR_PROFILE_JSON;
	if (is_json) {
		hr__json_object(&o->json);
		hr__json_key(&o->json, "reports");
		hr__json_array(&o->json);
	} else if (o->other_names) {
		hr__profile_warn_of_names(o->other_names, &o->text);
		hr__text_print(&o->text, "\n");
	}
	for (uint32_t i = 0; i < o->devices; i++) {
		if (is_json) write_json(&o->json, o->names[i], o->reports[i]);
		else write_text(&o->text, o->names[i], o->reports[i], o->same_peaks[i]);
	}
	if (is_json) {
		hr__json_end_array(&o->json);
		hr__json_end_object(&o->json);
		status = hr__json_finish(&o->json);
		if (!status && !o->text.write(o->text.context, "\n", 1)) status = HR_IO;
	}
	return status || o->text.failed ? hr__fail(HR_IO, "the comparison could not be written") : HR_OK;
}

hr_status hr__profile_diff(const hr__capture *a, const hr__capture *b, const hr_profile_options *options, int64_t step_a, int64_t step_b,
                           hr_profile_format format, hr_profile_writer write, void *context)
{
	side sides[SIDES] = { { .capture = a }, { .capture = b } };
	hr_profile_options read;
	hr__filter filter = { .show_count = 0 };
	output o = { .options = &read, .filter = &filter, .format = format, .other_names = a->other_names + b->other_names };
	hr_status status = hr__profile_options_read(options, &read);
	if (!status) status = hr__profile_step(a, step_a, &sides[A].step);
	if (!status) status = hr__profile_step(b, step_b, &sides[B].step);
	/* If several steps of B have that number, the last one is used, so that a trace can be compared with itself. */
	for (uint32_t next = sides[B].step; !status && (next = hr__profile_next_step(b, next)) != HR__NONE;) sides[B].step = next;
	if (!status) status = hr__profile_check_scope(a, b, read.name_scope);
	if (!status) status = hr__filter_make(&filter, &read);
	if (status) return status;
	status = hr__op_devices_make(a, &sides[A].op_devices);
	if (!status) status = hr__op_devices_make(b, &sides[B].op_devices);
	hr__json_init(&o.json, write, context);
	o.json.pretty = true;
	o.text = (hr__text_out){ .write = write, .context = context, .width = read.width ? read.width : 100, .colour = read.colour, .utf8 = read.utf8 };
	if (!status) status = diff_devices(&o, sides);
	if (!status) status = write_reports(&o);
	for (uint32_t i = 0; i < o.devices; i++) {
		hr__report_free(o.reports[i]);
		hr__view_free(o.reports[i], 1, sizeof *o.reports[i]);
	}
	hr__filter_free(&filter);
	hr__op_devices_free(a, sides[A].op_devices);
	hr__op_devices_free(b, sides[B].op_devices);
	return status;
}
