/* numbering.h - numbers the ids that a file uses for streams or threads, which may be any 64-bit values, such as addresses. */
#ifndef HR_IMPORT_NUMBERING_H
#define HR_IMPORT_NUMBERING_H

#include "analysis/capture/finder.h"
#include "analysis/reader/list.h"

#define HR__NUMBERING_MAX 65535u /* different ids */

typedef struct hr__numbering {
	hr__list ids;  /* uint64_t, by number */
	hr__slots slots;
	uint32_t last; /* the number found last, which is usually the next one too */
} hr__numbering;

void hr__numbering_init(hr__numbering *numbering);
void hr__numbering_free(hr__numbering *numbering);

/* The number of [id]: 0, 1, 2, ... in the order in which ids first occur. HR_TOO_MANY with a message that calls them [what];
 * HR_NO_HOST_MEMORY. */
hr_status hr__numbering_find(hr__numbering *numbering, uint64_t id, const char *what, uint32_t *out);

/* The same for streams. 0 stays 0, the default stream, and ids below 2^24 stay what they are; others are numbered from 2^24 on. */
hr_status hr__numbering_stream(hr__numbering *numbering, uint64_t id, hr_stream *out);

#endif
