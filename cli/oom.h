/* oom.h - reads a saved out-of-memory report (docs/oom-report.schema.json) back into the struct that it was written from.
 *
 * The file is not trusted. Memory use is bounded by the file's size, which is limited. Names are interned. Numbers that are too
 * large are clamped to their field's maximum. Lists longer than the struct has room for are an error. Every error message names the
 * file and the position in it. */
#ifndef HR_CLI_OOM_H
#define HR_CLI_OOM_H

#include "core/memory/oom/report.h"

typedef struct hr__oom_saved {
	hr__report report;
	hr__log_entry *log; /* report.log */
} hr__oom_saved;

/* Reads a file; "-" is standard input. To be freed with hr__oom_free.
 *
 * HR_IO           cannot be opened or read
 * HR_BAD_FORMAT   not JSON, not such a report, or larger than 256 MiB
 * HR_TRUNCATED    ends in the middle
 * HR_TOO_NEW      written by a newer version of Headroom
 * HR_UNSUPPORTED  this program was built without jansson */
hr_status hr__oom_read_file(const char *path, hr__oom_saved **out);
hr_status hr__oom_read_memory(const void *bytes, size_t size, hr__oom_saved **out);
void hr__oom_free(hr__oom_saved *saved);

#endif
