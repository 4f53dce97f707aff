/* export_strings.h - different texts, numbered in the order in which they come: 0, 1, 2... */
#ifndef HR_PROFILE_EXPORT_STRINGS_H
#define HR_PROFILE_EXPORT_STRINGS_H

#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

typedef struct hr__export_strings {
	char **texts;
	uint32_t *slots; /* of a hash table: number + 1; 0 = free */
	uint32_t count, capacity, slot_count;
} hr__export_strings; /* empty when all is zero */

/* The number of [text]; a new one is copied. HR_NO_HOST_MEMORY. */
hr_status hr__export_strings_add(hr__export_strings *strings, const char *text, uint32_t *out);
void hr__export_strings_free(hr__export_strings *strings);

#endif
