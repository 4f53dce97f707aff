/* report.c - reports of a capture. Options are checked first, then all tables are made; only then is anything written. */
#include <stdio.h>
#include <string.h>

#include "core/base/text/json.h"
#include "core/base/names.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/base/text/text.h"
#include "core/os/os.h"
#include "analysis/table/table_write.h"
#include "analysis/view/missing.h"
#include "analysis/view/view.h"

#define WIDTH_USUAL 100u
#define DEPTH_USUAL 10000u
#define REPORTS_MAX 4096u
#define DEVICES_MAX 64u /* each device and each step takes time proportional to the trace */
#define STEPS_MAX 64u

/* ---- options ---- */

typedef struct view_kind {
	const char *name;
	hr_status (*make)(hr__report_view *report);
} view_kind;

static const view_kind views[] = {
	{ "summary", hr__view_summary }, { "timeline", hr__view_timeline }, { "op", hr__view_op },           { "scope", hr__view_scope },
	{ "peak", hr__view_peak },       { "leaks", hr__view_leaks },       { "tensors", hr__view_tensors }, { "steps", hr__view_steps },
	{ "allocators", hr__view_allocators },
};
#define VIEWS (sizeof views / sizeof *views)

static hr_status find_view(const char *name, const view_kind **out)
{
	for (size_t i = 0; i < VIEWS; i++) {
		if (strcmp(views[i].name, name) != 0) continue;
		*out = &views[i];
		return HR_OK;
	}
	return hr__fail(HR_INVALID_ARGUMENT, "there is no view \"%.100s\"; there are summary, timeline, op, scope, peak, leaks, tensors, steps and allocators", name);
}

static HR__STRUCT_DEFINE(profile_options, 120, view, "call hr_profile_options_init first")

void hr_profile_options_init_sized(hr_profile_options *options, size_t struct_size)
{
	if (!options) return;
	const hr_profile_options initial = { .struct_size = sizeof initial, .view = "summary", .step = -1, .show_memory = true, .show_time = true };
	hr__struct_init(&hr__struct_profile_options, options, struct_size, &initial);
}

hr_status hr_profile_options_init_preset_sized(hr_profile_options *options, size_t struct_size, const char *name)
{
	hr_profile_options chosen;
	if (!options) return hr__fail(HR_INVALID_ARGUMENT, "hr_profile_options_init_preset: options is NULL");
	hr_profile_options_init(&chosen);
	if (name && strcmp(name, "time_and_memory") == 0) {
		chosen.view = "scope";
		chosen.min_bytes = chosen.min_micros = 1;
		chosen.order_by = "micros";
	} else if (name && strcmp(name, "memory") == 0) {
		chosen.view = "op";
		chosen.show_time = false;
		chosen.order_by = "at_peak_bytes";
	} else if (name && strcmp(name, "leaks") == 0) {
		chosen.view = "leaks";
	} else {
		return hr__fail(HR_INVALID_ARGUMENT, "there is no preset \"%.100s\"; there are time_and_memory, memory and leaks", name ? name : "");
	}
	hr__struct_init(&hr__struct_profile_options, options, struct_size, &chosen);
	return HR_OK;
}

hr_status hr__profile_options_read(const hr_profile_options *given, hr_profile_options *out)
{
	hr_profile_options_init(out);
	if (!given) return HR_OK;
	hr_status status = hr__struct_in(&hr__struct_profile_options, "hr_profile_report", out, given);
	if (status) return status;
	if (!out->view) out->view = "summary";
	if (!out->width) out->width = WIDTH_USUAL;
	if (!out->max_depth) out->max_depth = DEPTH_USUAL;
	if (out->width < HR__TEXT_WIDTH_LEAST || out->width > HR__TEXT_WIDTH_MOST)
		return hr__fail(HR_INVALID_ARGUMENT, "width: %u columns; from %u to %u", out->width, HR__TEXT_WIDTH_LEAST, HR__TEXT_WIDTH_MOST);
	if (out->step < -1) return hr__fail(HR_INVALID_ARGUMENT, "step: %lld; a number from 0, or -1 for all", (long long)out->step);
	const view_kind *view;
	return find_view(out->view, &view);
}

hr_status hr__profile_step(const hr__capture *capture, int64_t number, uint32_t *out)
{
	uint64_t least = UINT64_MAX, most = 0;
	*out = HR__NONE;
	if (number < 0) return HR_OK;
	for (uint32_t i = 0; i < capture->step_count; i++) {
		if (capture->steps[i].number < least) least = capture->steps[i].number;
		if (capture->steps[i].number > most) most = capture->steps[i].number;
		if (capture->steps[i].number != (uint64_t)number) continue;
		*out = i;
		return HR_OK;
	}
	if (!capture->step_count) return hr__fail(HR_INVALID_ARGUMENT, "step: the trace has no steps, so there is no step %lld", (long long)number);
	return hr__fail(HR_INVALID_ARGUMENT, "step: the trace has no step %lld; it has %u, from %llu to %llu", (long long)number, capture->step_count,
	                (unsigned long long)least, (unsigned long long)most);
}

uint32_t hr__profile_next_step(const hr__capture *capture, uint32_t step)
{
	for (uint32_t i = step == HR__NONE ? HR__NONE : step + 1; i < capture->step_count; i++)
		if (capture->steps[i].number == capture->steps[step].number) return i;
	return HR__NONE;
}

/* Parses a number at *text and advances past it. */
static bool parse_number(const char **text, int64_t *out)
{
	const char *at = *text;
	*out = 0;
	for (; *at >= '0' && *at <= '9'; at++) {
		if (*out > (INT64_MAX - 9) / 10) return false;
		*out = *out * 10 + (*at - '0');
	}
	bool any = at != *text;
	*text = at;
	return any;
}

hr_status hr__profile_parse_steps(const char *text, int64_t *out, size_t capacity, size_t *count)
{
	const char *at = text;
	*count = 0;
	for (;;) {
		int64_t first, last;
		bool right = parse_number(&at, &first);
		last = first;
		if (right && *at == '-') {
			at++;
			right = parse_number(&at, &last) && last >= first;
		}
		if (!right || (*at && *at != ',')) {
			return hr__fail(HR_INVALID_ARGUMENT, "\"%.100s\" is not a list of steps; write numbers and ranges with commas between them: 1,10,100 or 3-7", text);
		}
		for (int64_t i = first;; i++) {
			if (*count == capacity) return hr__fail(HR_TOO_MANY, "\"%.100s\": at most %zu steps at once", text, capacity);
			out[(*count)++] = i;
			if (i == last) break;
		}
		if (!*at) return HR_OK;
		at++;
	}
}

/* "GPU:0" selects one device, "GPU" all devices of that kind. Long names that end in the short name match too: "/device:GPU:0". */
bool hr__profile_takes_device(const hr__capture *capture, uint32_t device, const char *wanted)
{
	const char *name = capture->devices[device].name;
	size_t length = wanted ? strlen(wanted) : 0, whole = strlen(name);
	if (!wanted || !*wanted) return true;
	if (strcmp(name, wanted) == 0) return true;
	if (strncmp(name, wanted, length) == 0 && name[length] == ':') return true;
	return length > whole && strcmp(wanted + length - whole, name) == 0 && (wanted[length - whole - 1] == ':' || wanted[length - whole - 1] == '/');
}

static hr_status no_device(const hr__capture *capture, const char *wanted)
{
	char known[300];
	size_t used = 0;
	known[0] = 0;
	for (uint32_t i = 0; i < capture->device_count && used < sizeof known; i++)
		used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", capture->devices[i].name);
	return hr__fail(HR_INVALID_ARGUMENT, "device: nothing in the trace is on \"%.100s\"; it has %s", wanted ? wanted : "", *known ? known : "no devices");
}

/* ---- reports ---- */

hr__table *hr__report_table(hr__report_view *report, const hr__table_plan *plan, hr_status *status)
{
	if (*status) return NULL;
	if (report->table_count == HR__REPORT_TABLES_MAX) {
		*status = hr__fail(HR_TOO_MANY, "a view has at most %d tables", HR__REPORT_TABLES_MAX);
		return NULL;
	}
	hr__table *table = &report->tables[report->table_count];
	*status = hr__table_init(table, plan, report->options, report->format, report->filter);
	if (*status) return NULL;
	for (uint32_t i = 0; i < plan->column_count; i++)
		if (plan->columns[i].flags & HR__STACKS && report->selection && !report->selection->capture->has_stacks) table->shows[i] = false;
	report->table_count++;
	return table;
}

void hr__report_free(hr__report_view *report)
{
	for (uint32_t i = 0; i < report->table_count; i++) hr__table_free(&report->tables[i]);
	report->table_count = 0;
}

typedef struct made {
	hr__report_view view;
	uint32_t device, step; /* indices */
	uint32_t which, of;    /* position among the steps with the same number, from 1 */
} made;

struct hr__profile {
	const hr__capture *capture;
	hr_profile_options options;
	hr_profile_format format;
	hr__filter filter;
	made *reports;
	uint32_t count, capacity;
};

static hr_status make_report(hr__profile *p, uint32_t device, uint32_t step, uint32_t which, uint32_t of, const uint32_t *op_devices)
{
	hr__selection selection;
	const view_kind *view = NULL;
	hr_status status = find_view(p->options.view, &view);
	if (!status && p->count == p->capacity) status = hr__fail(HR_TOO_MANY, "more than %u devices and steps at once", p->capacity);
	if (!status) status = hr__selection_make(p->capture, device, step, p->options.name_scope, op_devices, &selection);
	if (status) return status;
	made *m = &p->reports[p->count++];
	*m = (made){ .device = device, .step = step, .which = which, .of = of };
	m->view.selection = &selection;
	m->view.options = &p->options;
	m->view.filter = &p->filter;
	m->view.format = p->format;
	status = view->make(&m->view);
	m->view.selection = NULL; /* the selection is local to this function */
	hr__selection_free(&selection);
	return status;
}

/* Devices that have something to show. Others are left out unless the options name them. */
static bool *find_used(const hr__capture *capture, hr_status *status)
{
	bool *used = hr__view_alloc(capture->device_count, sizeof *used, status);
	for (uint32_t i = 0; i < capture->site_count && used; i++) used[capture->allocators[capture->sites[i].allocator].device] = true;
	return used;
}

/* Reports all steps with that number, because a program may restart its numbering. */
static hr_status make_step_reports(hr__profile *p, uint32_t device, int64_t number, const uint32_t *op_devices)
{
	uint32_t step, of = 1;
	hr_status status = hr__profile_step(p->capture, number, &step);
	if (status) return status;
	for (uint32_t next = step; (next = hr__profile_next_step(p->capture, next)) != HR__NONE;) of++;
	for (uint32_t which = 1; which <= of && !status; which++, step = hr__profile_next_step(p->capture, step))
		status = make_report(p, device, step, which, of, op_devices);
	return status;
}

static hr_status make_device_reports(hr__profile *p, const int64_t *steps, size_t step_count, const uint32_t *op_devices, const bool *used, uint32_t *taken)
{
	hr_status status = HR_OK;
	for (uint32_t device = 0; device < p->capture->device_count && !status; device++) {
		if (!hr__profile_takes_device(p->capture, device, p->options.device)) continue;
		if (!p->options.device && p->capture->device_count > 1 && !used[device]) continue;
		if ((*taken)++ == DEVICES_MAX)
			return hr__fail(HR_TOO_MANY, "device: the trace has more than %u devices that are used; choose one, such as %s", DEVICES_MAX,
			                p->capture->devices[device].name);
		for (size_t i = 0; i < step_count && !status; i++) {
			status = make_step_reports(p, device, steps[i], op_devices);
			if (!status && p->options.progress) p->options.progress(p->options.progress_context, (double)(i + 1) / (double)step_count);
		}
	}
	return status;
}

static hr_status make_reports(hr__profile *p, const int64_t *steps, size_t step_count, const uint32_t *op_devices)
{
	uint32_t taken = 0;
	hr_status status = HR_OK;
	bool *used = find_used(p->capture, &status);
	if (!status) status = make_device_reports(p, steps, step_count, op_devices, used, &taken);
	hr__view_free(used, p->capture->device_count, sizeof *used);
	if (!status && !taken && p->options.device) return no_device(p->capture, p->options.device);
	/* If no device was reported, the steps have not been checked yet. */
	for (size_t i = 0; i < step_count && !taken && !status; i++) {
		uint32_t step;
		status = hr__profile_step(p->capture, steps[i], &step);
	}
	return status;
}

/* The number of steps with the requested numbers. */
static uint64_t count_steps(const hr__capture *capture, const int64_t *steps, size_t step_count)
{
	uint64_t count = 0;
	for (size_t i = 0; i < step_count; i++) {
		uint32_t step = HR__NONE;
		if (steps[i] >= 0 && hr__profile_step(capture, steps[i], &step)) continue;
		do count++;
		while ((step = hr__profile_next_step(capture, step)) != HR__NONE);
	}
	return count;
}

hr_status hr__profile_check_scope(const hr__capture *a, const hr__capture *b, const char *scope)
{
	const hr__capture *const captures[] = { a, b };
	if (!scope) return HR_OK;
	for (int k = 0; k < 2 && captures[k]; k++) {
		for (uint32_t i = 0; i < captures[k]->site_count; i++)
			if (hr__scope_is_inside(hr_name_text(captures[k]->sites[i].scope), scope)) return HR_OK;
		for (uint32_t i = 0; i < captures[k]->op_count; i++)
			if (hr__scope_is_inside(hr_name_text(captures[k]->ops[i].scope), scope)) return HR_OK;
	}
	return hr__fail(HR_INVALID_ARGUMENT, "name_scope: nothing in the trace is in \"%.200s\"; the view \"scope\" shows what there is", scope);
}

hr_status hr__profile_make(const hr__capture *capture, const hr_profile_options *options, const int64_t *steps, size_t step_count,
                           hr_profile_format format, hr__profile **out)
{
	hr_status status = HR_OK;
	uint32_t *op_devices = NULL;
	hr_profile_options read;
	status = hr__profile_options_read(options, &read);
	hr__profile *p = hr__view_alloc(1, sizeof *p, &status);
	if (status) return status;
	p->capture = capture;
	p->options = read;
	p->format = format;
	if (!step_count) {
		steps = &p->options.step;
		step_count = 1;
	}
	uint64_t count = count_steps(capture, steps, step_count), reports = capture->device_count * count;
	if (!status && count > STEPS_MAX)
		status = hr__fail(HR_TOO_MANY, "step: the trace has %llu steps with that number; at most %u are shown at once", (unsigned long long)count, STEPS_MAX);
	p->capacity = reports < REPORTS_MAX ? (uint32_t)reports : REPORTS_MAX;
	p->reports = hr__view_alloc(p->capacity, sizeof *p->reports, &status);
	if (!status) status = hr__filter_make(&p->filter, &p->options);
	if (!status) status = hr__profile_check_scope(capture, NULL, p->options.name_scope);
	if (!status) status = hr__op_devices_make(capture, &op_devices);
	if (!status) status = make_reports(p, steps, step_count, op_devices);
	hr__op_devices_free(capture, op_devices);
	if (status) hr__profile_free(p);
	else *out = p;
	return status;
}

void hr__profile_free(hr__profile *p)
{
	if (!p) return;
	for (uint32_t i = 0; i < p->count; i++) hr__report_free(&p->reports[i].view);
	hr__view_free(p->reports, p->capacity, sizeof *p->reports);
	hr__filter_free(&p->filter);
	hr__view_free(p, 1, sizeof *p);
}

bool hr__profile_grows(const hr__profile *p)
{
	for (uint32_t i = 0; i < p->count; i++)
		if (p->reports[i].view.growing) return true;
	return false;
}

bool hr__profile_has_column(const hr__profile *p, const char *key)
{
	for (uint32_t i = 0; i < p->count; i++)
		for (uint32_t t = 0; t < p->reports[i].view.table_count; t++) {
			const hr__table *table = &p->reports[i].view.tables[t];
			bool sorts = table->form == HR__TABLE_LIST || table->form == HR__TABLE_TREE;
			for (uint32_t k = 0; k < table->column_count && sorts; k++)
				if (strcmp(table->columns[k].key, key) == 0 || strcmp(key, "name") == 0) return true;
		}
	return false;
}

/* All reports of a profile have the same tables, so checking the first is enough. */
bool hr__profile_has_flag(const hr__profile *p, unsigned flag)
{
	for (uint32_t t = 0; p->count && t < p->reports[0].view.table_count; t++) {
		const hr__table *table = &p->reports[0].view.tables[t];
		for (uint32_t k = 0; k < table->column_count; k++)
			if (table->columns[k].flags & flag) return true;
	}
	return p->count == 0;
}

bool hr__profile_has_form(const hr__profile *p, hr__table_form form)
{
	for (uint32_t t = 0; p->count && t < p->reports[0].view.table_count; t++)
		if (p->reports[0].view.tables[t].form == form) return true;
	return p->count == 0;
}

/* ---- writing ---- */

static void write_trace(const hr__profile *p, const char *path, hr__json *json)
{
	const hr__capture *c = p->capture;
	hr__json_key(json, "trace");
	hr__json_object(json);
	hr__json_field_string(json, "path", path);
	hr__json_field_string(json, "format", hr__trace_format_name(c->format));
	hr__json_field_bool(json, "complete", c->complete);
	hr__json_field_uint(json, "lost", c->lost);
	hr__json_field_bool(json, "limited", c->limited);
	hr__json_field_uint(json, "skipped", c->skipped);
	hr__json_field_uint(json, "other_names", c->other_names);
	hr__json_field_uint(json, "start_wall_ns", c->start_wall_ns);
	hr__json_field_double(json, "micros", (double)c->end_ns / 1000, 3);
	hr__json_field_uint(json, "process", c->process);
	hr__rank_json(json, &c->rank);
	hr__json_field_uint(json, "allocations", c->allocation_count);
	hr__json_field_uint(json, "ops", c->op_count);
	hr__json_field_uint(json, "steps", c->step_count);
	hr__json_key(json, "devices");
	hr__json_array(json);
	for (uint32_t i = 0; i < c->device_count; i++) {
		hr__json_object(json);
		hr__json_field_string(json, "name", c->devices[i].name);
		hr__json_field_uint(json, "limit_bytes", c->devices[i].limit_bytes);
		hr__json_field_uint(json, "peak_bytes", c->devices[i].peak_bytes);
		hr__json_field_uint(json, "end_bytes", c->devices[i].end_bytes);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
	hr__json_end_object(json);
}

static hr_status write_json(const hr__profile *p, const char *path, hr_profile_writer write, void *context)
{
	hr__json json;
	hr__json_init(&json, write, context);
	json.pretty = true;
	hr__json_object(&json);
	write_trace(p, path, &json);
	hr__json_field_string(&json, "view", p->options.view);
	hr__json_field_string(&json, "name_scope", p->options.name_scope);
	hr__json_key(&json, "reports");
	hr__json_array(&json);
	for (uint32_t i = 0; i < p->count; i++) {
		const made *m = &p->reports[i];
		hr__json_object(&json);
		hr__json_field_string(&json, "device", p->capture->devices[m->device].name);
		hr__json_key(&json, "step");
		if (m->step == HR__NONE) hr__json_null(&json);
		else hr__json_uint(&json, p->capture->steps[m->step].number);
		if (m->of > 1) hr__json_field_uint(&json, "occurrence", m->which);
		for (uint32_t t = 0; t < m->view.table_count; t++) hr__table_json(&m->view.tables[t], &json);
		hr__json_end_object(&json);
	}
	hr__json_end_array(&json);
	hr__json_end_object(&json);
	hr_status status = hr__json_finish(&json);
	if (!status && !write(context, "\n", 1)) status = HR_IO;
	return status ? hr__fail(status, "the profile could not be written") : HR_OK;
}

void hr__profile_warn_of_names(uint64_t other_names, hr__text_out *out)
{
	char count[32], most[32], line[200];
	if (!other_names) return;
	snprintf(line, sizeof line, "There are more names than are kept apart (%s, %u MiB in all); those of %s %s are shown as (other).",
	         hr__format_count(HR__NAMES_MAX - 2, most, sizeof most), HR__NAMES_TEXT_MAX >> 20, hr__format_count(other_names, count, sizeof count),
	         other_names == 1 ? "allocation or op" : "allocations and ops");
	hr__text_paragraph(out, line);
}

/* A recording that starts in the middle of a run frees blocks that it does not know. In Headroom's own recordings that is an event that
 * makes no sense, because they begin with a list of all blocks. */
static uint64_t count_unknown_frees(const hr__capture *c)
{
	uint64_t count = 0;
	for (uint32_t i = 0; i < c->device_count && c->format != HR__FORMAT_HEADROOM; i++) count += c->devices[i].unknown_frees;
	return count;
}

/* Warnings about an incomplete trace come first. */
static void write_warnings(const hr__profile *p, hr__text_out *out)
{
	const hr__capture *c = p->capture;
	const char *missing = hr__view_missing(c, p->options.view);
	uint64_t unknown = count_unknown_frees(c);
	char count[32], line[128];
	if (!c->complete) hr__text_paragraph(out, "The recording was not closed; events up to its end are shown.");
	if (c->limited) hr__text_paragraph(out, "The recording ended when its file reached its size limit; later events are missing.");
	snprintf(line, sizeof line, "%s event%s lost while recording: sums can be off.", hr__format_count(c->lost, count, sizeof count),
	         c->lost == 1 ? " was" : "s were");
	if (c->lost) hr__text_paragraph(out, line);
	snprintf(line, sizeof line, "%s event%s no sense and %s skipped.", hr__format_count(c->skipped, count, sizeof count),
	         c->skipped == 1 ? " makes" : "s make", c->skipped == 1 ? "was" : "were");
	if (c->skipped) hr__text_paragraph(out, line);
	snprintf(line, sizeof line, "%s free%s of blocks from before the recording began %s left out.", hr__format_count(unknown, count, sizeof count),
	         hr__plural(unknown), unknown == 1 ? "is" : "are");
	if (unknown) hr__text_paragraph(out, line);
	snprintf(line, sizeof line, "%s event%s a time before that of the event before them, and %s moved to that time.",
	         hr__format_count(c->late, count, sizeof count), c->late == 1 ? " has" : "s have", c->late == 1 ? "is" : "are");
	if (c->late) hr__text_paragraph(out, line);
	hr__profile_warn_of_names(c->other_names, out);
	if (missing) hr__text_paragraph(out, missing);
	if (!c->complete || c->limited || c->lost || c->skipped || c->other_names || unknown || c->late || missing) hr__text_print(out, "\n");
}

static hr_status write_text(const hr__profile *p, hr_profile_writer write, void *context)
{
	hr__text_out out = { .write = write, .context = context, .width = p->options.width ? p->options.width : WIDTH_USUAL, .colour = p->options.colour,
		                 .utf8 = p->options.utf8 };
	static const hr__column device_column = { .kind = HR__CELL_LABEL };
	char name[HR__CELL_BYTES_MAX];
	write_warnings(p, &out);
	if (!p->count) hr__text_print(&out, "Nothing was allocated on any device.\n");
	for (uint32_t i = 0; i < p->count; i++) {
		const made *m = &p->reports[i];
		hr__cell_format(&device_column, (uintptr_t)p->capture->devices[m->device].name, name);
		if (m->step == HR__NONE) hr__text_heading(&out, "%s", name);
		else if (m->of == 1) hr__text_heading(&out, "%s, step %llu", name, (unsigned long long)p->capture->steps[m->step].number);
		else hr__text_heading(&out, "%s, step %llu (%u of %u)", name, (unsigned long long)p->capture->steps[m->step].number, m->which, m->of);
		for (uint32_t t = 0; t < m->view.table_count; t++) hr__table_text(&m->view.tables[t], &out);
	}
	return out.failed ? hr__fail(HR_IO, "the profile could not be written") : HR_OK;
}

hr_status hr__profile_write(const hr__profile *p, const char *path, hr_profile_writer write, void *context)
{
	return p->format == HR_PROFILE_JSON ? write_json(p, path, write, context) : write_text(p, write, context);
}

/* ---- the public calls ---- */

hr_status hr_profile_report(const char *path, const hr_profile_options *options, hr_profile_format format, hr_profile_writer write, void *context)
{
	hr_profile_options read;
	hr__capture *capture = NULL;
	hr__profile *profile = NULL;
	if (!path || !write) return hr__fail(HR_INVALID_ARGUMENT, "hr_profile_report: a path and a writer are needed");
	if (format != HR_PROFILE_TEXT && format != HR_PROFILE_JSON) return hr__fail(HR_INVALID_ARGUMENT, "hr_profile_report: there is no format %d", (int)format);
	hr_status status = hr__profile_options_read(options, &read);
	if (!status) status = hr__capture_open(path, read.progress, read.progress_context, &capture);
	if (status) return status;
	read.progress = NULL; /* the rest is quick */
	status = hr__profile_make(capture, &read, NULL, 0, format, &profile);
	if (!status) status = hr__profile_write(profile, path, write, context);
	hr__profile_free(profile);
	hr__capture_close(capture);
	return status;
}

typedef struct file_writer {
	int fd, error;
	uint64_t at;
} file_writer;

static bool write_to_file(void *context, const char *bytes, size_t length)
{
	file_writer *w = context;
	w->error = hr__os()->file_write(w->fd, bytes, length, w->at);
	w->at += length;
	return w->error == 0;
}

hr_status hr_profile_save(const char *path, const hr_profile_options *options, hr_profile_format format, const char *file)
{
	file_writer w = { 0 };
	if (!file) return hr__fail(HR_INVALID_ARGUMENT, "hr_profile_save: a file is needed");
	int error = hr__os()->file_create(file, &w.fd);
	if (error) return hr__os_fail(error, "cannot make the profile %s", file);
	hr_status status = hr_profile_report(path, options, format, write_to_file, &w);
	hr__os()->file_close(w.fd);
	if (status) hr__os()->file_remove(file);
	return w.error ? hr__os_fail(w.error, "cannot write the profile %s", file) : status;
}
