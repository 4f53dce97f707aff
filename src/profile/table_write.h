/* table_write.h - tables as text that fits a terminal, and as JSON. */
#ifndef HR_PROFILE_TABLE_WRITE_H
#define HR_PROFILE_TABLE_WRITE_H

#include "base/json.h"
#include "profile/table.h"

typedef struct hr__text_out {
	hr_profile_writer write;
	void *context;
	uint32_t width;
	bool colour, utf8;
	bool failed; /* write returned false; what follows is dropped */
} hr__text_out;

#define HR__TEXT_WIDTH_LEAST 40u
#define HR__TEXT_WIDTH_MOST 1000u

void hr__text_print(hr__text_out *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A line that stands out. */
void hr__text_heading(hr__text_out *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Words, in as many lines as they need. */
void hr__text_paragraph(hr__text_out *out, const char *text);
void hr__table_text(const hr__table *table, hr__text_out *out);
/* A sentence on so many allocations and ops whose names had no room (hr__capture), if there are any. How many different names that were is not
 * known, since none of them was kept. */
void hr__profile_warn_of_names(uint64_t other_names, hr__text_out *out);

/* A member of the object that is being written: the table's key, with rows, hidden and total; or with the facts. */
void hr__table_json(const hr__table *table, hr__json *json);

#endif
