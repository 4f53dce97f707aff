/* oom.h - reads a saved out-of-memory report (docs/oom-report.schema.json) back into the struct that it was written from.
 *
 * The file is from anywhere until it is read: memory is bounded by its size, which is bounded too, names are interned, numbers that are
 * too large become the largest that their field can hold, lists that are longer than the struct has room for are an error, and every
 * error names the file and the place in it. */
#ifndef HR_CLI_OOM_H
#define HR_CLI_OOM_H

#include "memory/report.h"

typedef struct hr__oom_saved {
	hr__report report;
	hr__log_entry *log; /* report.log */
} hr__oom_saved;

/* Reads a file; "-" is standard input. To be freed with hr__oom_free.
 *
 * HR_IO           cannot be opened or read
 * HR_BAD_FORMAT   not JSON, or no such report; larger than 256 MiB
 * HR_TRUNCATED    ends in the middle
 * HR_TOO_NEW      written by a version of Headroom that came after this one
 * HR_UNSUPPORTED  this program was built without jansson */
hr_status hr__oom_read_file(const char *path, hr__oom_saved **out);
hr_status hr__oom_read_memory(const void *bytes, size_t size, hr__oom_saved **out);
void hr__oom_free(hr__oom_saved *saved);

#endif
