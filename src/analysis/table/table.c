/* table.c - see table.h. */
#define _GNU_SOURCE
#include "analysis/table/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/os/os.h"
#include "analysis/capture/capture.h"

#define REGEX_BYTES_MAX 1024u
#define ROWS_TEXT 20u
#define ROWS_JSON 1000u
#define ROWS_HELD 4096u

/* ---- filters ---- */

/* A pattern must match a whole name, as in tfprof. */
static hr_status compile(regex_t *out, const char *pattern, const char *option)
{
	char whole[REGEX_BYTES_MAX + 8], why[128];
	if (strlen(pattern) > REGEX_BYTES_MAX)
		return hr__fail(HR_INVALID_ARGUMENT, "%s: a regular expression has at most %u bytes", option, REGEX_BYTES_MAX);
	snprintf(whole, sizeof whole, "^(%s)$", pattern);
	/* The pattern is compiled alone first: "a)(b" is invalid, but would be valid inside parentheses. */
	int error = regcomp(out, pattern, REG_EXTENDED | REG_NOSUB);
	if (!error) {
		regfree(out);
		error = regcomp(out, whole, REG_EXTENDED | REG_NOSUB);
	}
	if (!error) return HR_OK;
	regerror(error, out, why, sizeof why);
	return hr__fail(error == REG_ESPACE ? HR_NO_HOST_MEMORY : HR_INVALID_ARGUMENT, "%s: \"%.200s\" is not a regular expression: %s", option, pattern, why);
}

static hr_status compile_all(regex_t *out, uint32_t *count, const char *const *patterns, const char *option)
{
	hr_status status = HR_OK;
	for (; patterns && *patterns && !status; patterns++) {
		if (*count == HR__REGEXES_MAX) return hr__fail(HR_INVALID_ARGUMENT, "%s: at most %d regular expressions", option, HR__REGEXES_MAX);
		status = compile(&out[*count], *patterns, option);
		if (!status) ++*count;
	}
	return status;
}

hr_status hr__filter_make(hr__filter *filter, const hr_profile_options *options)
{
	filter->show_count = filter->hide_count = 0;
	filter->min_bytes = options->min_bytes;
	filter->min_ns = options->min_micros < UINT64_MAX / 1000 ? options->min_micros * 1000 : UINT64_MAX - 1;
	hr_status status = compile_all(filter->show, &filter->show_count, options->show_name_regexes, "show_name_regexes");
	if (!status) status = compile_all(filter->hide, &filter->hide_count, options->hide_name_regexes, "hide_name_regexes");
	if (status) hr__filter_free(filter);
	return status;
}

void hr__filter_free(hr__filter *filter)
{
	for (uint32_t i = 0; i < filter->show_count; i++) regfree(&filter->show[i]);
	for (uint32_t i = 0; i < filter->hide_count; i++) regfree(&filter->hide[i]);
	filter->show_count = filter->hide_count = 0;
}

static bool matches_any(const regex_t *patterns, uint32_t count, const char *name)
{
	for (uint32_t i = 0; i < count; i++)
		if (regexec(&patterns[i], name, 0, NULL, 0) == 0) return true;
	return false;
}

bool hr__filter_takes(const hr__filter *filter, const char *name)
{
	if (filter->show_count && !matches_any(filter->show, filter->show_count, name)) return false;
	return !matches_any(filter->hide, filter->hide_count, name);
}

bool hr__filter_reaches(const hr__filter *filter, const hr__column *columns, uint32_t column_count, const uint64_t *row)
{
	for (uint32_t i = 0; i < column_count; i++) {
		if (columns[i].flags & HR__MIN_BYTES && row[i] < filter->min_bytes) return false;
		if (columns[i].flags & HR__MIN_MICROS && row[i] < filter->min_ns) return false;
	}
	return true;
}

/* ---- cells ---- */

bool hr__cell_text(const hr__column *column, uint64_t value, const char **text, size_t *length)
{
	switch (column->kind) {
	case HR__CELL_NAME: *text = hr_name_text((hr_name)value); break;
	case HR__CELL_PATH: *text = hr_name_text((hr_name)value); *length = (size_t)(value >> 32); return true;
	case HR__CELL_LABEL: *text = (const char *)(uintptr_t)value; break;
	case HR__CELL_DTYPE: *text = value ? hr_dtype_text((hr_dtype)value) : ""; break;
	default: return false;
	}
	*length = strlen(*text);
	return true;
}

static void format_ns(uint64_t ns, char *out, size_t capacity)
{
	if (ns == HR__NEVER) snprintf(out, capacity, "-");
	else if (ns < 1000) snprintf(out, capacity, "%u ns", (unsigned)ns);
	else if (ns < 1000000) snprintf(out, capacity, "%.1f us", (double)ns / 1e3);
	else if (ns < 1000000000) snprintf(out, capacity, "%.1f ms", (double)ns / 1e6);
	else snprintf(out, capacity, "%.2f s", (double)ns / 1e9);
}

static void format_change(hr__cell_kind kind, int64_t change, char *out)
{
	char number[40];
	uint64_t size = change < 0 ? 0 - (uint64_t)change : (uint64_t)change;
	if (kind == HR__CELL_BYTES_CHANGE) hr__format_size(size, number, sizeof number);
	else if (kind == HR__CELL_NS_CHANGE) format_ns(size, number, sizeof number);
	else hr__format_count(size, number, sizeof number);
	snprintf(out, 48, "%s%s", change < 0 ? "-" : change > 0 ? "+" : "", number);
}

const char *hr__text_format(const char *text, char out[HR__CELL_BYTES_MAX])
{
	hr__text_escape(text, strlen(text), out, HR__CELL_BYTES_MAX);
	return out;
}

const char *hr__cell_format(const hr__column *column, uint64_t value, char out[HR__CELL_BYTES_MAX])
{
	const char *text;
	size_t length;
	*out = 0;
	if (hr__cell_text(column, value, &text, &length)) {
		hr__text_escape(text, length, out, HR__CELL_BYTES_MAX);
		return out;
	}
	switch (column->kind) {
	case HR__CELL_SHAPE:
		if (value != HR_SHAPE_NONE) hr_shape_format((hr_shape)value, out, HR__CELL_BYTES_MAX);
		break;
	case HR__CELL_BYTES: hr__format_size(value, out, 32); break;
	case HR__CELL_NS: format_ns(value, out, 32); break;
	case HR__CELL_YES: strcpy(out, value ? "yes" : "no"); break;
	case HR__CELL_STACK: break; /* it is no single text */
	case HR__CELL_PART:
		if (value == HR__NEVER) strcpy(out, "-");
		else snprintf(out, 32, "%.1f%%", (double)value / 1e4);
		break;
	case HR__CELL_COUNT_CHANGE:
	case HR__CELL_BYTES_CHANGE:
	case HR__CELL_NS_CHANGE: format_change(column->kind, (int64_t)value, out); break;
	default:
		if (value == HR__NEVER) strcpy(out, "-");
		else hr__format_count(value, out, 32);
		break;
	}
	return out;
}

const char *hr__table_cell_format(const hr__table *table, uint32_t column, uint64_t value, char out[HR__CELL_BYTES_MAX])
{
	hr__cell_format(&table->columns[column], value, out);
	if (!*out && table->columns[column].kind <= HR__CELL_LABEL) strcpy(out, column ? "-" : table->form == HR__TABLE_TREE ? "(model)" : "(none)");
	return out;
}

/* ---- rows ---- */

static bool is_text(hr__cell_kind kind)
{
	return kind == HR__CELL_NAME || kind == HR__CELL_PATH || kind == HR__CELL_LABEL || kind == HR__CELL_DTYPE;
}

static bool is_change(hr__cell_kind kind)
{
	return kind >= HR__CELL_COUNT_CHANGE;
}

static int compare_texts(const hr__column *column, uint64_t a, uint64_t b)
{
	const char *x, *y;
	size_t n, m;
	hr__cell_text(column, a, &x, &n);
	hr__cell_text(column, b, &y, &m);
	int order = memcmp(x, y, n < m ? n : m);
	return order ? order : n < m ? -1 : n > m;
}

static uint64_t magnitude(uint64_t change)
{
	return (int64_t)change < 0 ? 0 - change : change;
}

/* Compares shapes as text, but with numbers by value: [8,4] before [16,4]. */
static int compare_shapes(const hr__column *column, uint64_t a, uint64_t b)
{
	char x[HR__CELL_BYTES_MAX], y[HR__CELL_BYTES_MAX];
	return a == b ? 0 : strverscmp(hr__cell_format(column, a, x), hr__cell_format(column, b, y));
}

/* Text ascending, numbers descending, changes by descending magnitude. */
static int compare_cells(const hr__column *column, uint64_t a, uint64_t b)
{
	if (is_text(column->kind)) return compare_texts(column, a, b);
	if (column->kind == HR__CELL_SHAPE) return compare_shapes(column, a, b);
	if (is_change(column->kind)) {
		a = magnitude(a);
		b = magnitude(b);
	}
	return a > b ? -1 : a < b;
}

/* Compares by the sort column, then by the columns that min_bytes applies to, then by all others, so that the same trace always
 * gives the same table. */
static int compare_rows(const void *a, const void *b, void *context)
{
	const hr__table *table = context;
	const uint64_t *x = a, *y = b;
	int order = compare_cells(&table->columns[table->order], x[table->order], y[table->order]);
	for (uint32_t i = 0; i < table->column_count && !order; i++)
		if (table->columns[i].flags & HR__MIN_BYTES) order = compare_cells(&table->columns[i], x[i], y[i]);
	for (uint32_t i = 0; i < table->column_count && !order; i++) order = compare_cells(&table->columns[i], x[i], y[i]);
	return order;
}

static int find_column(const hr__table_plan *plan, const char *key)
{
	for (uint32_t i = 0; key && i < plan->column_count; i++)
		if (strcmp(plan->columns[i].key, key) == 0) return (int)i;
	return -1;
}

static hr_status unknown_order(const hr__table_plan *plan, const char *order)
{
	char known[400];
	size_t used = 0;
	known[0] = 0;
	for (uint32_t i = 0; i < plan->column_count && used < sizeof known; i++)
		used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", plan->columns[i].key);
	return hr__fail(HR_INVALID_ARGUMENT, "order_by: there is no \"%.100s\" in this view; there are %s", order, known);
}

static bool is_shown(const hr__column *column, const hr_profile_options *options, hr_profile_format format)
{
	if (column->flags & HR__STACKS && !options->show_stacks && format != HR_PROFILE_JSON) return false;
	if (column->flags & HR__MEMORY && !options->show_memory) return false;
	if (column->flags & HR__TIME && !options->show_time) return false;
	return !(column->flags & HR__IO) || options->show_input_output;
}

hr_status hr__table_init(hr__table *table, const hr__table_plan *plan, const hr_profile_options *options, hr_profile_format format,
                         const hr__filter *filter)
{
	bool sorts = plan->form == HR__TABLE_LIST || plan->form == HR__TABLE_TREE;
	const char *order = options->order_by && sorts ? options->order_by : plan->order;
	uint32_t most = plan->most ? plan->most : options->max_rows ? options->max_rows : format == HR_PROFILE_TEXT ? ROWS_TEXT : ROWS_JSON;
	HR_ASSERT(plan->column_count <= HR__COLUMNS_MAX);
	if (order && strcmp(order, "name") == 0) order = plan->columns[0].key;
	*table = (hr__table){ .key = plan->key, .title = plan->title, .form = plan->form, .columns = plan->columns, .column_count = plan->column_count,
		                  .order = find_column(plan, order), .most = sorts ? most : UINT32_MAX, .filter = plan->form == HR__TABLE_LIST ? filter : NULL };
	if (plan->form == HR__TABLE_TREE && !options->max_rows) table->most = UINT32_MAX;
	for (uint32_t i = 0; i < plan->column_count; i++) table->shows[i] = is_shown(&plan->columns[i], options, format);
	if (order && table->order < 0 && !plan->bends) return unknown_order(plan, order);
	if (table->order < 0) table->order = find_column(plan, plan->order);
	return HR_OK;
}

void hr__table_free(hr__table *table)
{
	if (table->cells) hr__os()->free(table->cells, table->capacity * (table->column_count + 1) * sizeof *table->cells);
	table->cells = NULL;
	table->count = table->capacity = 0;
}

static void add_row(const hr__table *table, uint64_t *sum, const uint64_t *row)
{
	for (uint32_t i = 0; i < table->column_count; i++)
		if (table->columns[i].flags & HR__SUMS) sum[i] += row[i];
}

static bool is_taken(const hr__table *table, const uint64_t *row)
{
	char name[HR__CELL_BYTES_MAX];
	const hr__filter *filter = table->filter;
	if (!filter) return true;
	if (!hr__filter_reaches(filter, table->columns, table->column_count, row)) return false;
	if (!filter->show_count && !filter->hide_count) return true;
	return hr__filter_takes(filter, hr__table_cell_format(table, 0, row[0], name));
}

static bool has_change(const hr__table *table, const uint64_t *row)
{
	for (uint32_t i = 0; i < table->column_count; i++)
		if (is_change(table->columns[i].kind) && row[i]) return true;
	return false;
}

/* Counts the last row, now that it is filled in, and keeps it unless it is hidden. */
static void take_last(hr__table *table)
{
	if (!table->open) return;
	const uint64_t *row = hr__table_at(table, table->count - 1);
	bool same = table->changes_only && !has_change(table, row);
	table->open = false;
	if (table->form != HR__TABLE_TREE) add_row(table, table->total, row);
	if (!same && is_taken(table, row)) return;
	table->same_rows += same;
	add_row(table, table->hidden, row);
	table->hidden_rows++;
	table->count--;
}

/* Keeps the first [most] rows in sort order and moves the rest into `hidden`. */
static void let_go(hr__table *table, size_t most)
{
	if (table->order >= 0 && table->form == HR__TABLE_LIST && table->count > 1)
		qsort_r(table->cells, table->count, (table->column_count + 1) * sizeof *table->cells, compare_rows, table);
	for (size_t i = most; i < table->count; i++) {
		if (table->form != HR__TABLE_TREE) add_row(table, table->hidden, hr__table_at(table, i));
		table->hidden_rows++;
	}
	if (table->count > most) table->count = most;
}

static hr_status grow(hr__table *table)
{
	int error = hr__os_grow(&table->cells, &table->capacity, (table->column_count + 1) * sizeof *table->cells, 16);
	return error ? hr__os_fail(error, "making a table of a profile") : HR_OK;
}

uint64_t *hr__table_row(hr__table *table, hr_status *status)
{
	if (*status) return NULL;
	take_last(table);
	if (table->most < UINT32_MAX / 4 && table->count >= ROWS_HELD && table->count >= 2 * (size_t)table->most) let_go(table, table->most);
	if (table->count == table->capacity) *status = grow(table);
	if (*status) return NULL;
	uint64_t *row = table->cells + table->count++ * (table->column_count + 1);
	memset(row, 0, (table->column_count + 1) * sizeof *row);
	table->offered++;
	table->open = true;
	return row;
}

void hr__table_set_depth(hr__table *table, uint64_t *row, uint32_t depth)
{
	row[table->column_count] = depth;
}

void hr__table_finish(hr__table *table)
{
	take_last(table);
	let_go(table, table->most);
}
