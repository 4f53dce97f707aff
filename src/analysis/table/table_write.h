/* table_write.h - writes tables as text that fits a terminal, and as JSON. */
#ifndef HR_PROFILE_TABLE_WRITE_H
#define HR_PROFILE_TABLE_WRITE_H

#include "core/base/text/json.h"
#include "analysis/table/table.h"

typedef struct hr__text_out {
	hr_profile_writer write;
	void *context;
	uint32_t width;
	bool colour, utf8;
	bool failed; /* write returned false; further output is dropped */
} hr__text_out;

#define HR__TEXT_WIDTH_LEAST 40u
#define HR__TEXT_WIDTH_MOST 1000u

void hr__text_print(hr__text_out *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints a highlighted line. */
void hr__text_heading(hr__text_out *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints text, wrapped to the width. */
void hr__text_paragraph(hr__text_out *out, const char *text);
void hr__table_text(const hr__table *table, hr__text_out *out);
/* Prints a warning if [other_names] (hr__capture) is not 0. The number of distinct names is unknown, because none of them was
 * kept. */
void hr__profile_warn_of_names(uint64_t other_names, hr__text_out *out);

/* Writes a member of the current object: the table's key, with rows, hidden and total; or, for HR__TABLE_FACTS, with the facts. */
void hr__table_json(const hr__table *table, hr__json *json);

#endif
