/* table_json.c - a table as a member of a JSON object. Times are in microseconds with three decimals, which is exact to the
 * nanosecond. */
#include "analysis/capture/capture.h"
#include "analysis/table/table_write.h"

static void write_micros(hr__json *json, uint64_t ns)
{
	if (ns == HR__NEVER) hr__json_null(json);
	else hr__json_double(json, (double)ns / 1000, 3);
}

static void write_name(hr__json *json, const char *key, hr_name name)
{
	if (name) hr__json_field_string(json, key, hr_name_text(name));
}

static void write_frame(hr__json *json, const hr_frame *frame)
{
	hr__json_object(json);
	write_name(json, "function", frame->function);
	write_name(json, "file", frame->file);
	if (frame->line) hr__json_field_uint(json, "line", frame->line);
	write_name(json, "module", frame->module);
	if (frame->offset) hr__json_field_uint(json, "offset", frame->offset);
	hr__json_end_object(json);
}

static void write_stack(hr__json *json, hr_stack stack)
{
	hr_frame frames[HR_STACK_DEPTH_MAX];
	size_t count = hr_stack_get_frames(stack, frames, HR_STACK_DEPTH_MAX);
	hr__json_array(json);
	for (size_t i = 0; i < count; i++) write_frame(json, &frames[i]);
	hr__json_end_array(json);
}

static void write_cell(const hr__column *column, uint64_t value, hr__json *json)
{
	const char *text;
	char shape[HR__CELL_BYTES_MAX];
	size_t length;
	if (hr__cell_text(column, value, &text, &length)) {
		hr__json_bytes(json, text, length);
		return;
	}
	switch (column->kind) {
	case HR__CELL_SHAPE: hr__json_string(json, hr__cell_format(column, value, shape)); break;
	case HR__CELL_NS: write_micros(json, value); break;
	case HR__CELL_YES: hr__json_bool(json, value != 0); break;
	case HR__CELL_STACK: write_stack(json, (hr_stack)value); break;
	case HR__CELL_PART:
		if (value == HR__NEVER) hr__json_null(json);
		else hr__json_double(json, (double)value / 1e6, 6);
		break;
	case HR__CELL_NS_CHANGE: hr__json_double(json, (double)(int64_t)value / 1000, 3); break;
	case HR__CELL_COUNT_CHANGE:
	case HR__CELL_BYTES_CHANGE: hr__json_int(json, (int64_t)value); break;
	default:
		if (column->kind == HR__CELL_COUNT && value == HR__NEVER) hr__json_null(json);
		else hr__json_uint(json, value);
		break;
	}
}

static void write_row(const hr__table *table, const uint64_t *row, hr__json *json)
{
	hr__json_object(json);
	for (uint32_t i = 0; i < table->column_count; i++) {
		if (!table->shows[i]) continue;
		hr__json_key(json, table->columns[i].key);
		write_cell(&table->columns[i], row[i], json);
	}
	if (table->form == HR__TABLE_TREE) hr__json_field_uint(json, "depth", row[table->column_count]);
	hr__json_end_object(json);
}

static void write_sums(const hr__table *table, const char *key, uint64_t rows, const uint64_t *sums, hr__json *json)
{
	hr__json_key(json, key);
	hr__json_object(json);
	hr__json_field_uint(json, "rows", rows);
	for (uint32_t i = 0; i < table->column_count; i++) {
		if (!table->shows[i] || !(table->columns[i].flags & HR__SUMS)) continue;
		hr__json_key(json, table->columns[i].key);
		write_cell(&table->columns[i], sums[i], json);
	}
	hr__json_end_object(json);
}

void hr__table_json(const hr__table *table, hr__json *json)
{
	hr__json_key(json, table->key);
	if (table->form == HR__TABLE_FACTS) {
		if (table->count) write_row(table, hr__table_at(table, 0), json);
		else hr__json_null(json);
		return;
	}
	hr__json_object(json);
	if (table->form != HR__TABLE_CHART) {
		if (table->form == HR__TABLE_LIST) write_sums(table, "total", table->offered, table->total, json);
		hr__json_key(json, "order_by");
		hr__json_string(json, table->order >= 0 ? table->columns[table->order].key : NULL);
		if (table->form == HR__TABLE_LIST) write_sums(table, "hidden", table->hidden_rows, table->hidden, json);
		else hr__json_field_uint(json, "hidden_rows", table->hidden_rows);
	}
	hr__json_key(json, "rows");
	hr__json_array(json);
	for (size_t i = 0; i < table->count; i++) write_row(table, hr__table_at(table, i), json);
	hr__json_end_array(json);
	hr__json_end_object(json);
}
