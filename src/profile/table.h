/* table.h - what a view consists of: tables of plain numbers, which are then written as text or as JSON.
 *
 * A table keeps its totals by itself. Rows that a filter hides, or that are too many, are added up in `hidden`, so that shown + hidden = total in every
 * column that can be summed. However many rows are offered, it holds a bounded number: now and then the smallest are let go. */
#ifndef HR_PROFILE_TABLE_H
#define HR_PROFILE_TABLE_H

#include <regex.h>
#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"
#include "headroom_profile.h"

#define HR__COLUMNS_MAX 20
#define HR__REGEXES_MAX 64
#define HR__CELL_BYTES_MAX 1100 /* enough for any cell as text */

/* What the number in a cell is. */
typedef enum hr__cell_kind {
	HR__CELL_NAME,         /* hr_name */
	HR__CELL_PATH,         /* length << 32 | hr_name: the beginning of a name */
	HR__CELL_SHAPE,        /* hr_shape */
	HR__CELL_DTYPE,        /* hr_dtype */
	HR__CELL_LABEL,        /* const char * to static text, or text that outlives the table */
	HR__CELL_COUNT,        /* HR__NEVER: none */
	HR__CELL_BYTES,
	HR__CELL_NS,           /* HR__NEVER: none */
	HR__CELL_YES,          /* 0 or 1 */
	HR__CELL_PART,         /* millionths; HR__NEVER: none */
	HR__CELL_COUNT_CHANGE, /* the last three: int64_t */
	HR__CELL_BYTES_CHANGE,
	HR__CELL_NS_CHANGE,
} hr__cell_kind;

enum {
	HR__SUMS = 1,       /* rows can be added up */
	HR__MEMORY = 2,     /* shown with show_memory */
	HR__TIME = 4,       /* shown with show_time */
	HR__IO = 8,         /* shown with show_input_output */
	HR__MIN_BYTES = 16, /* what min_bytes looks at */
	HR__MIN_MICROS = 32,
	HR__NOT_IN_TEXT = 64,
	HR__ALWAYS = 128,   /* in text also where there is none of it */
};

typedef struct hr__column {
	const char *key;     /* in JSON, and for order_by */
	const char *heading; /* in text */
	hr__cell_kind kind;
	unsigned flags;
} hr__column;

typedef enum hr__table_form {
	HR__TABLE_LIST,
	HR__TABLE_TREE,   /* rows come in order, with depths; each counts what is below it, so nothing is summed or sorted here */
	HR__TABLE_FACTS,  /* one row: an object, or lines of text */
	HR__TABLE_CHART,  /* rows of equal stretches of time, "begin_micros" to "end_micros"; text draws the column "peak_bytes" and below it, in a line
	                   * for each, those of "out_bytes", "in_bytes" and "refused" in which there is something */
} hr__table_form;

typedef struct hr__filter {
	regex_t show[HR__REGEXES_MAX], hide[HR__REGEXES_MAX];
	uint32_t show_count, hide_count;
	uint64_t min_bytes, min_ns;
} hr__filter;

/* HR_INVALID_ARGUMENT for a regular expression that is none, and for too many. */
hr_status hr__filter_make(hr__filter *filter, const hr_profile_options *options);
void hr__filter_free(hr__filter *filter);

typedef struct hr__table {
	const char *key, *title;
	hr__table_form form;
	const hr__column *columns;
	uint32_t column_count;
	uint64_t *cells; /* column_count + 1 for a row; the last is its depth */
	size_t count, capacity;
	uint64_t total[HR__COLUMNS_MAX], hidden[HR__COLUMNS_MAX];
	uint64_t offered, hidden_rows; /* rows */
	int order;       /* column; -1: as they come */
	bool shows[HR__COLUMNS_MAX];
	uint32_t most;   /* rows that are shown */
	const hr__filter *filter; /* NULL: nothing is hidden by name or minimum */
	bool changes_only;  /* rows in which nothing changed are hidden */
	uint64_t same_rows; /* so many of the hidden ones are that */
	bool open;       /* the last row is not taken in yet */
} hr__table;

/* The part that is the same for all tables of a kind. */
typedef struct hr__table_plan {
	const char *key, *title;
	hr__table_form form;
	const hr__column *columns;
	uint32_t column_count;
	const char *order; /* by default; NULL: as they come */
	uint32_t most;     /* rows; 0: as the options say */
	bool bends;        /* an order_by that it does not have is no error: another table of the view has it */
} hr__table_plan;

/* HR_INVALID_ARGUMENT when there is no column order_by. [filter] outlives the table. */
hr_status hr__table_init(hr__table *table, const hr__table_plan *plan, const hr_profile_options *options, hr_profile_format format,
                         const hr__filter *filter);
void hr__table_free(hr__table *table);

/* Cells of another row, zeros, to be filled before the next call. NULL when *status became HR_NO_HOST_MEMORY, or was not HR_OK. */
uint64_t *hr__table_row(hr__table *table, hr_status *status);
void hr__table_set_depth(hr__table *table, uint64_t *row, uint32_t depth);
/* After the last row: sorts, and lets go what is too much. */
void hr__table_finish(hr__table *table);

static inline const uint64_t *hr__table_at(const hr__table *table, size_t row)
{
	return table->cells + row * (table->column_count + 1);
}

/* Whether a name passes the filter's regular expressions. */
bool hr__filter_takes(const hr__filter *filter, const char *name);
/* Whether the cells reach its minima. */
bool hr__filter_reaches(const hr__filter *filter, const hr__column *columns, uint32_t column_count, const uint64_t *row);

/* A cell as people read it, printable whatever a name holds; returns [out]. [whole]: all of a path, and numbers as JSON has them. */
const char *hr__cell_format(const hr__column *column, uint64_t value, char out[HR__CELL_BYTES_MAX]);
/* The same in its table, where what has no name is called "(none)", and the root of a tree "(model)". Regular expressions look at this. */
const char *hr__table_cell_format(const hr__table *table, uint32_t column, uint64_t value, char out[HR__CELL_BYTES_MAX]);
/* Its bytes as they are: the text of a name, a path, a label; false for other kinds. */
bool hr__cell_text(const hr__column *column, uint64_t value, const char **text, size_t *length);

static inline uint64_t hr__path_cell(hr_name name, size_t length)
{
	return (uint64_t)length << 32 | name;
}

#endif
