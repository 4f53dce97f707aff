/* fields.h - lines of comma-separated fields. */
#ifndef HR_IMPORT_FIELDS_H
#define HR_IMPORT_FIELDS_H

#include "analysis/import/source.h"

typedef struct hr__field {
	char *text; /* followed by a 0 */
	size_t length;
} hr__field;

/* Splits [line] at its first [most] - 1 commas, which are overwritten. Returns the number of fields. */
size_t hr__fields_split(hr__source_line *line, hr__field *fields, size_t most);

/* Parses a whole field as an unsigned number, decimal or (with [base] 16, with or without 0x) hexadecimal. HR_BAD_FORMAT with a
 * message that calls the field [name]. */
hr_status hr__field_number(const hr__field *field, const char *name, int base, uint64_t *out);

#endif
