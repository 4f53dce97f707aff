/* export_strings.h - a table of distinct strings, numbered 0, 1, 2... in the order of first use. */
#ifndef HR_PROFILE_EXPORT_STRINGS_H
#define HR_PROFILE_EXPORT_STRINGS_H

#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

typedef struct hr__export_strings {
	char **texts;
	uint32_t *slots; /* hash table: number + 1; 0 = free */
	uint32_t count, capacity, slot_count;
} hr__export_strings; /* all zeros: empty */

/* The number of [text]; a new text is copied. HR_NO_HOST_MEMORY. */
hr_status hr__export_strings_add(hr__export_strings *strings, const char *text, uint32_t *out);
void hr__export_strings_free(hr__export_strings *strings);

#endif
