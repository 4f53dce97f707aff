/* table_text.c - a table as text. If the table is too wide, names are cut first; then text columns are dropped, from the right, and
 * number columns last. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/text/text.h"
#include "analysis/capture/frame_text.h"
#include "analysis/table/table_write.h"
#include "analysis/table/width.h"

#define NAME_LEAST 14u  /* minimum width of the first column, even if others must be dropped */
#define TEXT_LEAST 10u  /* minimum width of other text columns; less is not readable */
#define OTHER_MOST 28u  /* maximum width of all columns but the first */
#define GAP 2u
#define CHART_LINES 10u
#define CHART_LABEL 11u

#define STRONG "\033[1m"
#define DIM "\033[2m"
#define HEADING "\033[1;36m"
#define BAR "\033[38;5;39m"
#define PLAIN "\033[0m"

static void put(hr__text_out *out, const char *text, size_t length)
{
	if (!out->failed && length && !out->write(out->context, text, length)) out->failed = true;
}

static void put_style(hr__text_out *out, const char *style)
{
	if (out->colour) put(out, style, strlen(style));
}

static void put_spaces(hr__text_out *out, uint32_t count)
{
	static const char spaces[] = "                                ";
	for (; count; count -= count < 32 ? count : 32) put(out, spaces, count < 32 ? count : 32);
}

static void print_list(hr__text_out *out, const char *format, va_list list)
{
	char line[HR__CELL_BYTES_MAX + 200];
	int length = vsnprintf(line, sizeof line, format, list);
	if (length > 0) put(out, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

void hr__text_print(hr__text_out *out, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	print_list(out, format, list);
	va_end(list);
}

void hr__text_heading(hr__text_out *out, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	put_style(out, HEADING);
	print_list(out, format, list);
	put_style(out, PLAIN);
	put(out, "\n", 1);
	va_end(list);
}

void hr__text_paragraph(hr__text_out *out, const char *text)
{
	uint32_t column = 0;
	while (*text) {
		size_t length = strcspn(text, " ");
		if (column && column + 1 + length > out->width) {
			put(out, "\n", 1);
			column = 0;
		}
		if (column) put(out, " ", 1);
		put(out, text, length);
		column += (uint32_t)length + (column > 0);
		text += length + (text[length] == ' ');
	}
	put(out, "\n", 1);
}

/* ---- cells ---- */

/* Cuts the text to [room] columns. A path keeps its end, other text its beginning. */
static const char *shorten(const hr__text_out *out, char *text, uint32_t room, char result[HR__CELL_BYTES_MAX])
{
	const char *mark = out->utf8 ? "\u2026" : "..";
	uint32_t columns = hr__width_of(text), marks = out->utf8 ? 1 : 2, keep = room > marks ? room - marks : 0;
	size_t bytes;
	if (columns <= room) return text;
	if (strchr(text, '/')) {
		const char *from = text;
		/* Combining characters are removed together with their base character. */
		for (uint32_t width; *from && ((width = hr__width_of_character(from, &bytes)) == 0 || columns > keep); from += bytes) columns -= width;
		snprintf(result, HR__CELL_BYTES_MAX, "%s%s", mark, from);
		return result;
	}
	char *to = text;
	for (uint32_t used = 0, width; *to && used + (width = hr__width_of_character(to, &bytes)) <= keep; to += bytes) used += width;
	*to = 0;
	snprintf(result, HR__CELL_BYTES_MAX, "%s%s", text, mark);
	return result;
}

static bool is_left(const hr__column *column)
{
	return column->kind <= HR__CELL_LABEL;
}

#define INDENT_MOST 60u

/* In a tree, the first column shows the last part of a path, indented by its depth, up to [indent_most]. */
static void format_cell(const hr__table *table, uint32_t column, const uint64_t *row, uint32_t indent_most, char text[HR__CELL_BYTES_MAX])
{
	hr__table_cell_format(table, column, row[column], text);
	if (table->form != HR__TABLE_TREE || column) return;
	const char *last = strrchr(text, '/');
	uint64_t indent = 2 * row[table->column_count];
	if (indent > indent_most) indent = indent_most;
	char part[HR__CELL_BYTES_MAX];
	snprintf(part, sizeof part, "%*s%.1000s", (int)indent, "", last ? last + 1 : text);
	strcpy(text, part);
}

/* ---- widths ---- */

typedef struct table_layout {
	uint32_t widths[HR__COLUMNS_MAX]; /* 0: not shown */
	uint32_t indent; /* maximum indentation of a tree */
} table_layout;

static void widen(table_layout *l, uint32_t column, const char *text)
{
	uint32_t columns = hr__width_of(text);
	if (columns > l->widths[column]) l->widths[column] = columns;
}

/* A column without any values, for example because no ops were recorded or nothing has a tag. */
static bool is_empty(const hr__table *table, uint32_t column)
{
	hr__cell_kind kind = table->columns[column].kind;
	if (column == 0 || table->columns[column].flags & HR__ALWAYS || (table->columns[column].flags & HR__SUMS && table->total[column])) return false;
	for (size_t row = 0; row < table->count; row++) {
		uint64_t value = hr__table_at(table, row)[column];
		if (value && !(value == UINT64_MAX && (kind == HR__CELL_NS || kind == HR__CELL_COUNT || kind == HR__CELL_PART))) return false;
	}
	return kind != HR__CELL_YES && table->count > 0;
}

static void measure(const hr__table *table, table_layout *l)
{
	char text[HR__CELL_BYTES_MAX];
	for (uint32_t i = 0; i < table->column_count; i++) {
		l->widths[i] = 0;
		if (!table->shows[i] || table->columns[i].flags & HR__NOT_IN_TEXT || table->columns[i].kind == HR__CELL_STACK || is_empty(table, i)) continue;
		widen(l, i, table->columns[i].heading);
		for (size_t row = 0; row < table->count; row++) {
			format_cell(table, i, hr__table_at(table, row), INDENT_MOST, text);
			widen(l, i, text);
		}
		if (table->columns[i].flags & HR__SUMS) {
			widen(l, i, hr__cell_format(&table->columns[i], table->total[i], text));
			widen(l, i, hr__cell_format(&table->columns[i], table->hidden[i], text));
		}
		if (i && l->widths[i] > OTHER_MOST) l->widths[i] = OTHER_MOST;
	}
	if (l->widths[0] < NAME_LEAST) l->widths[0] = NAME_LEAST;
}

/* Minimum width of a column: names may be cut, numbers may not. */
static uint32_t least_width(const hr__table *table, const table_layout *l, uint32_t column)
{
	uint32_t least = column == 0 ? NAME_LEAST : TEXT_LEAST;
	return is_left(&table->columns[column]) && l->widths[column] > least ? least : l->widths[column];
}

/* Width of the whole table, optionally with its names cut. */
static uint32_t sum_of_widths(const hr__table *table, const table_layout *l, bool cut)
{
	uint32_t width = 0;
	for (uint32_t i = 0; i < table->column_count; i++)
		if (l->widths[i]) width += (cut ? least_width(table, l, i) : l->widths[i]) + (i ? GAP : 0);
	return width;
}

static uint32_t *widest_to_cut(const hr__table *table, table_layout *l)
{
	uint32_t *widest = NULL;
	for (uint32_t i = 0; i < table->column_count; i++)
		if (l->widths[i] > least_width(table, l, i) && (!widest || l->widths[i] > *widest)) widest = &l->widths[i];
	return widest;
}

static void fit(const hr__table *table, const hr__text_out *out, table_layout *l)
{
	for (int text = 1; text >= 0; text--)
		for (uint32_t i = table->column_count; i-- > 1 && sum_of_widths(table, l, true) > out->width;)
			if (is_left(&table->columns[i]) == text) l->widths[i] = 0;
	uint32_t wanted = l->widths[0];
	for (uint32_t *widest; sum_of_widths(table, l, false) > out->width && (widest = widest_to_cut(table, l));) --*widest;
	l->indent = l->widths[0] < wanted ? l->widths[0] / 2 : INDENT_MOST; /* leaves room for the name */
}

/* ---- lists and trees ---- */

/* *owed is the number of pending spaces before the cell. Spaces are held back so that no line ends in spaces. */
static void put_cell(hr__text_out *out, bool left, char *text, uint32_t width, uint32_t *owed)
{
	char room[HR__CELL_BYTES_MAX];
	const char *shown = shorten(out, text, width, room);
	uint32_t columns = hr__width_of(shown), pad = width - columns;
	if (!left) *owed += pad;
	if (columns) {
		put_spaces(out, *owed);
		*owed = 0;
	}
	put(out, shown, strlen(shown));
	*owed += GAP + (left ? pad : 0);
}

/* Writes a stack below its row, innermost frame first. */
static void put_stack(hr_stack stack, hr__text_out *out)
{
	hr_frame frames[HR_STACK_DEPTH_MAX];
	char whole[HR__FRAME_TEXT_BYTES], text[HR__CELL_BYTES_MAX], room[HR__CELL_BYTES_MAX];
	size_t count = hr_stack_get_frames(stack, frames, HR_STACK_DEPTH_MAX);
	put_style(out, DIM);
	for (size_t i = 0; i < count; i++) {
		hr__text_format(hr__frame_text(&frames[i], whole), text);
		hr__text_print(out, "    %s\n", shorten(out, text, out->width - 4, room));
	}
	put_style(out, PLAIN);
}

static void put_row(const hr__table *table, const table_layout *l, const uint64_t *row, hr__text_out *out)
{
	char text[HR__CELL_BYTES_MAX];
	uint32_t owed = 0;
	for (uint32_t i = 0; i < table->column_count; i++) {
		if (!l->widths[i]) continue;
		format_cell(table, i, row, l->indent, text);
		put_cell(out, is_left(&table->columns[i]), text, l->widths[i], &owed);
	}
	put(out, "\n", 1);
	for (uint32_t i = 0; i < table->column_count; i++)
		if (table->shows[i] && table->columns[i].kind == HR__CELL_STACK) put_stack((hr_stack)row[i], out);
}

static void put_headings(const hr__table *table, const table_layout *l, hr__text_out *out)
{
	char text[HR__CELL_BYTES_MAX];
	uint32_t owed = 0;
	put_style(out, STRONG);
	for (uint32_t i = 0; i < table->column_count; i++) {
		if (!l->widths[i]) continue;
		strcpy(text, table->columns[i].heading);
		put_cell(out, is_left(&table->columns[i]), text, l->widths[i], &owed);
	}
	put_style(out, PLAIN);
	put(out, "\n", 1);
}

static void put_sums(const hr__table *table, const table_layout *l, const char *label, const uint64_t *sums, hr__text_out *out)
{
	char text[HR__CELL_BYTES_MAX];
	uint32_t owed = 0;
	put_style(out, DIM);
	for (uint32_t i = 0; i < table->column_count; i++) {
		const hr__column *column = &table->columns[i];
		if (!l->widths[i]) continue;
		*text = 0;
		if (i == 0) snprintf(text, sizeof text, "%s", label);
		else if (column->flags & HR__SUMS) hr__cell_format(column, sums[i], text);
		put_cell(out, is_left(column), text, l->widths[i], &owed);
	}
	put_style(out, PLAIN);
	put(out, "\n", 1);
}

static bool has_sums(const hr__table *table, const table_layout *l)
{
	for (uint32_t i = 1; i < table->column_count; i++)
		if (l->widths[i] && table->columns[i].flags & HR__SUMS) return true;
	return false;
}

static void put_list(const hr__table *table, hr__text_out *out)
{
	char label[64];
	table_layout l = { .indent = 0 };
	measure(table, &l);
	fit(table, out, &l);
	if (table->title) hr__text_heading(out, "%s", table->title);
	if (!table->count && !table->hidden_rows) {
		hr__text_print(out, "  (nothing)\n\n");
		return;
	}
	put_headings(table, &l, out);
	for (size_t i = 0; i < table->count; i++) put_row(table, &l, hr__table_at(table, i), out);
	snprintf(label, sizeof label, "(%llu more)", (unsigned long long)table->hidden_rows);
	if (table->hidden_rows && table->form == HR__TABLE_LIST) put_sums(table, &l, label, table->hidden, out);
	if (table->hidden_rows && table->form == HR__TABLE_TREE) hr__text_print(out, "%s\n", label);
	if (table->form == HR__TABLE_LIST && table->offered > 1 && has_sums(table, &l)) put_sums(table, &l, "total", table->total, out);
	put(out, "\n", 1);
}

/* ---- facts ---- */

static void put_facts(const hr__table *table, hr__text_out *out)
{
	char text[HR__CELL_BYTES_MAX], room[HR__CELL_BYTES_MAX];
	uint32_t widest = 0;
	if (table->title) hr__text_heading(out, "%s", table->title);
	for (uint32_t i = 0; i < table->column_count; i++)
		if (hr__width_of(table->columns[i].heading) > widest) widest = hr__width_of(table->columns[i].heading);
	for (uint32_t i = 0; i < table->column_count && table->count; i++) {
		if (!table->shows[i] || table->columns[i].flags & HR__NOT_IN_TEXT || is_empty(table, i)) continue;
		hr__cell_format(&table->columns[i], hr__table_at(table, 0)[i], text);
		put_style(out, DIM);
		put(out, table->columns[i].heading, strlen(table->columns[i].heading));
		put_style(out, PLAIN);
		put_spaces(out, widest - hr__width_of(table->columns[i].heading) + GAP);
		hr__text_print(out, "%s\n", shorten(out, text, out->width > widest + GAP ? out->width - widest - GAP : 1, room));
	}
	put(out, "\n", 1);
}

/* ---- charts ---- */

static uint32_t find_column(const hr__table *table, const char *key)
{
	for (uint32_t i = 0; i < table->column_count; i++)
		if (strcmp(table->columns[i].key, key) == 0) return i;
	return 0;
}

/* Draws one character: how much of the line that represents [low] to [high] bytes is filled. */
static void put_block(hr__text_out *out, uint64_t bytes, double low, double high)
{
	static const char *const blocks[] = { " ", "\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588" };
	double part = ((double)bytes - low) / (high - low);
	int eighths = part >= 1 ? 8 : part <= 0 ? 0 : (int)(part * 8 + 0.5);
	const char *block = out->utf8 ? blocks[eighths] : eighths > 3 ? "#" : " ";
	put(out, block, strlen(block));
}

/* The sum of a column over the time intervals that character [cell] of [cells] represents. */
static uint64_t sum_of_cell(const hr__table *table, uint32_t column, uint32_t cell, uint32_t cells)
{
	uint64_t sum = 0;
	for (uint64_t i = (uint64_t)cell * table->count / cells; i < (uint64_t)(cell + 1) * table->count / cells; i++) sum += hr__table_at(table, i)[column];
	return sum;
}

/* Draws when something moved or was refused, scaled by the amount. Any nonzero amount is visible. */
static void put_traffic(const hr__table *table, const char *key, uint32_t cells, hr__text_out *out)
{
	uint32_t column = find_column(table, key);
	uint64_t most = 0;
	for (uint32_t i = 0; i < cells; i++)
		if (sum_of_cell(table, column, i, cells) > most) most = sum_of_cell(table, column, i, cells);
	if (!column || !most) return;
	hr__text_print(out, "%*s ", (int)CHART_LABEL - 1, table->columns[column].heading);
	put_style(out, BAR);
	for (uint32_t i = 0; i < cells; i++) {
		double sum = (double)sum_of_cell(table, column, i, cells), least = (double)most / (out->utf8 ? 8 : 2);
		put_block(out, sum > 0 && sum < least ? (uint64_t)least + 1 : (uint64_t)sum, 0, (double)most);
	}
	put_style(out, PLAIN);
	put(out, "\n", 1);
}

static void put_chart(const hr__table *table, hr__text_out *out)
{
	char text[HR__CELL_BYTES_MAX];
	uint32_t column = find_column(table, "peak_bytes"), room = out->width > CHART_LABEL + 20 ? out->width - CHART_LABEL : 20;
	uint64_t most = 0;
	if (table->title) hr__text_heading(out, "%s", table->title);
	for (size_t i = 0; i < table->count; i++)
		if (hr__table_at(table, i)[column] > most) most = hr__table_at(table, i)[column];
	if (!most) {
		hr__text_print(out, "  (nothing)\n\n");
		return;
	}
	uint32_t cells = table->count < room ? (uint32_t)table->count : room;
	for (uint32_t line = CHART_LINES; line-- > 0;) {
		double low = (double)most * line / CHART_LINES, high = (double)most * (line + 1) / CHART_LINES;
		bool labelled = line == CHART_LINES - 1 || line == CHART_LINES / 2 - 1;
		hr__text_print(out, "%*s ", (int)CHART_LABEL - 1, labelled ? hr__format_size((uint64_t)high, text, 32) : "");
		put_style(out, BAR);
		for (uint32_t i = 0; i < cells; i++) put_block(out, hr__table_at(table, (size_t)((uint64_t)i * table->count / cells))[column], low, high);
		put_style(out, PLAIN);
		put(out, "\n", 1);
	}
	char from[HR__CELL_BYTES_MAX];
	hr__cell_format(&table->columns[0], hr__table_at(table, 0)[0], from);
	uint32_t end = find_column(table, "end_micros");
	hr__cell_format(&table->columns[end], hr__table_at(table, table->count - 1)[end], text);
	uint32_t taken = hr__width_of(from) + hr__width_of(text);
	put_spaces(out, CHART_LABEL);
	hr__text_print(out, "%s", from);
	put_spaces(out, cells > taken ? cells - taken : 1);
	hr__text_print(out, "%s\n", text);
	put_traffic(table, "out_bytes", cells, out);
	put_traffic(table, "in_bytes", cells, out);
	put_traffic(table, "refused", cells, out);
	put(out, "\n", 1);
}

void hr__table_text(const hr__table *table, hr__text_out *out)
{
	switch (table->form) {
	case HR__TABLE_FACTS: put_facts(table, out); break;
	case HR__TABLE_CHART: put_chart(table, out); break;
	default: put_list(table, out); break;
	}
}
