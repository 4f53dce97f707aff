/* segments.h - the running programs that show their statistics: finds their files (profile/segment.h), reads them, removes those of the dead. */
#ifndef HR_CLI_SEGMENTS_H
#define HR_CLI_SEGMENTS_H

#include <stddef.h>

#include "profile/segment.h"

#define HR__SEGMENTS_MAX 256

typedef struct hr__segments {
	hr__segment list[HR__SEGMENTS_MAX]; /* checked: counts are in range, texts end and are printable, numbers are not negative */
	size_t count;
	size_t removed; /* files of processes that are gone */
	uint32_t pauses; /* how often a file was read again because a program was writing to it */
	size_t odd;     /* files that are none, are of another version, were never quiet, or are of another user than the process */
} hr__segments;

/* Looks in $XDG_RUNTIME_DIR and /dev/shm. What belongs to others and cannot be read is left out, and what is not of the user whose process it claims
 * to show. Programs come in the order of their numbers. */
void hr__segments_read(hr__segments *out);

/* One file, of process [process]. False when it is none. For tests. */
bool hr__segment_read(int folder, const char *name, uint32_t process, hr__segment *out);

#endif
