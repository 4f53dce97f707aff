/* table.h - tables of plain numbers, which make up a view and are written as text or as JSON.
 *
 * A table computes its own totals. Rows that a filter hides, or that exceed the maximum, are added up in `hidden`, so that shown +
 * hidden = total in every column that can be summed. A table holds a bounded number of rows: the smallest are periodically moved
 * into `hidden`. */
#ifndef HR_PROFILE_TABLE_H
#define HR_PROFILE_TABLE_H

#include <regex.h>
#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"
#include "headroom_analysis.h"

#define HR__COLUMNS_MAX 20
#define HR__REGEXES_MAX 64
#define HR__CELL_BYTES_MAX 1100 /* fits any cell as text */

/* Meaning of the number in a cell. */
typedef enum hr__cell_kind {
	HR__CELL_NAME,         /* hr_name */
	HR__CELL_PATH,         /* length << 32 | hr_name: a prefix of a name */
	HR__CELL_SHAPE,        /* hr_shape */
	HR__CELL_DTYPE,        /* hr_dtype */
	HR__CELL_LABEL,        /* const char * to text that outlives the table */
	HR__CELL_COUNT,        /* HR__NEVER: none */
	HR__CELL_BYTES,
	HR__CELL_NS,           /* HR__NEVER: none */
	HR__CELL_YES,          /* 0 or 1 */
	HR__CELL_PART,         /* millionths; HR__NEVER: none */
	HR__CELL_STACK,        /* hr_stack. In text, lines below the row, a frame each; in JSON an array */
	HR__CELL_COUNT_CHANGE, /* this one and the two below: int64_t */
	HR__CELL_BYTES_CHANGE,
	HR__CELL_NS_CHANGE,
} hr__cell_kind;

enum {
	HR__SUMS = 1,       /* the column can be summed over rows */
	HR__MEMORY = 2,     /* shown with show_memory */
	HR__TIME = 4,       /* shown with show_time */
	HR__IO = 8,         /* shown with show_input_output */
	HR__MIN_BYTES = 16, /* compared with min_bytes */
	HR__MIN_MICROS = 32,
	HR__NOT_IN_TEXT = 64,
	HR__ALWAYS = 128,   /* in text, shown even if the column has no values */
	HR__STACKS = 256,   /* call stacks: shown with show_stacks, and in JSON */
};

typedef struct hr__column {
	const char *key;     /* in JSON and order_by */
	const char *heading; /* in text */
	hr__cell_kind kind;
	unsigned flags;
} hr__column;

typedef enum hr__table_form {
	HR__TABLE_LIST,
	HR__TABLE_TREE,   /* rows are added in order, with depths; each includes its descendants, so the table neither sums nor sorts */
	HR__TABLE_FACTS,  /* one row: a JSON object, or lines of text */
	HR__TABLE_CHART,  /* rows are equal time intervals, "begin_micros" to "end_micros". Text draws the column "peak_bytes", and
	                   * below it one line for each of "out_bytes", "in_bytes" and "refused" that has values */
} hr__table_form;

typedef struct hr__filter {
	regex_t show[HR__REGEXES_MAX], hide[HR__REGEXES_MAX];
	uint32_t show_count, hide_count;
	uint64_t min_bytes, min_ns;
} hr__filter;

/* HR_INVALID_ARGUMENT for an invalid regular expression, and for too many. */
hr_status hr__filter_make(hr__filter *filter, const hr_profile_options *options);
void hr__filter_free(hr__filter *filter);

typedef struct hr__table {
	const char *key, *title;
	hr__table_form form;
	const hr__column *columns;
	uint32_t column_count;
	uint64_t *cells; /* column_count + 1 per row; the last is the row's depth */
	size_t count, capacity;
	uint64_t total[HR__COLUMNS_MAX], hidden[HR__COLUMNS_MAX];
	uint64_t offered, hidden_rows; /* rows */
	int order;       /* column to sort by; -1: unsorted */
	bool shows[HR__COLUMNS_MAX];
	uint32_t most;   /* maximum number of rows shown */
	const hr__filter *filter; /* NULL: no row is hidden by name or minimum */
	bool changes_only;  /* rows in which nothing changed are hidden */
	uint64_t same_rows; /* number of rows hidden by changes_only */
	bool open;       /* the last row is not counted yet */
} hr__table;

/* What all tables of a kind share. */
typedef struct hr__table_plan {
	const char *key, *title;
	hr__table_form form;
	const hr__column *columns;
	uint32_t column_count;
	const char *order; /* default order_by; NULL: unsorted */
	uint32_t most;     /* maximum number of rows; 0: as in the options */
	bool bends;        /* an order_by that names none of its columns is no error, because another table of the view has it */
} hr__table_plan;

/* HR_INVALID_ARGUMENT when order_by names no column. [filter] must outlive the table. */
hr_status hr__table_init(hr__table *table, const hr__table_plan *plan, const hr_profile_options *options, hr_profile_format format,
                         const hr__filter *filter);
void hr__table_free(hr__table *table);

/* Appends a zeroed row and returns its cells, to be filled in before the next call. NULL when *status became HR_NO_HOST_MEMORY, or
 * was not HR_OK. */
uint64_t *hr__table_row(hr__table *table, hr_status *status);
void hr__table_set_depth(hr__table *table, uint64_t *row, uint32_t depth);
/* Called after the last row: sorts, and moves rows beyond the maximum into `hidden`. */
void hr__table_finish(hr__table *table);

static inline const uint64_t *hr__table_at(const hr__table *table, size_t row)
{
	return table->cells + row * (table->column_count + 1);
}

/* Whether a name passes the filter's regular expressions. */
bool hr__filter_takes(const hr__filter *filter, const char *name);
/* Whether the cells reach the filter's minima. */
bool hr__filter_reaches(const hr__filter *filter, const hr__column *columns, uint32_t column_count, const uint64_t *row);

/* Makes any text printable: unprintable bytes are escaped, and it is cut to fit. Returns [out]. */
const char *hr__text_format(const char *text, char out[HR__CELL_BYTES_MAX]);
/* Formats a cell for display; unprintable bytes of names are escaped. Returns [out]. */
const char *hr__cell_format(const hr__column *column, uint64_t value, char out[HR__CELL_BYTES_MAX]);
/* Formats a cell of a table: an empty name is "(none)", and the root of a tree "(model)". Regular expressions match this text. */
const char *hr__table_cell_format(const hr__table *table, uint32_t column, uint64_t value, char out[HR__CELL_BYTES_MAX]);
/* The unescaped text of a name, path or label; false for other kinds. */
bool hr__cell_text(const hr__column *column, uint64_t value, const char **text, size_t *length);

static inline uint64_t hr__path_cell(hr_name name, size_t length)
{
	return (uint64_t)length << 32 | name;
}

#endif
