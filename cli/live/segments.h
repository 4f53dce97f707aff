/* segments.h - finds and reads the files in which running programs publish statistics (core/record/segment.h), and removes those of
 * dead processes. */
#ifndef HR_CLI_SEGMENTS_H
#define HR_CLI_SEGMENTS_H

#include <stddef.h>

#include "core/record/segment.h"

#define HR__SEGMENTS_MAX 256

typedef struct hr__segments {
	hr__segment list[HR__SEGMENTS_MAX]; /* counts are in range, texts are terminated and printable, numbers are not negative */
	size_t count;
	size_t removed; /* files of dead processes */
	uint32_t pauses; /* how often a file was read again because it was being written */
	size_t odd;     /* files that are invalid, of another version, constantly changing, or owned by another user than the process */
} hr__segments;

/* Looks in $XDG_RUNTIME_DIR and /dev/shm. Leaves out files of other users that cannot be read, and files that are not owned by the
 * user of the process they claim to describe. Programs are sorted by process id. */
void hr__segments_read(hr__segments *out);

/* Reads the file of process [process]; false if it is not valid. For tests. */
bool hr__segment_read(int folder, const char *name, uint32_t process, hr__segment *out);

#endif
