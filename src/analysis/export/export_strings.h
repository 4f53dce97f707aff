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

#define HR__EXPORT_CLEAN_BYTES (3 * HR__EXPORT_NAME_BYTES) /* of a text, with its final 0; longer ones are cut */

/* The number of [text]; a new text is copied, with U+FFFD in place of bytes that are not UTF-8, because protobuf readers reject such
 * bytes. 0 after a failure: *status is then HR_NO_HOST_MEMORY, or what it was before. */
uint32_t hr__export_strings_add(hr__export_strings *strings, const char *text, hr_status *status);
void hr__export_strings_free(hr__export_strings *strings);

#endif
