/* step_csv.c - the file of options.step_csv: a line of statistics for each step. */
#include <errno.h>
#include <stdio.h>

#include "core/base/status.h"
#include "core/lms/context.h"

#define CSV_FILES_MAX 9999u

static const char csv_header[] = "step,clock_ns"
#define COLUMN(name, text) "," #name
	HR_LMS_STATS_TABLE(COLUMN)
#undef COLUMN
		"\n";

/* A file name in the environment is for all allocators and all runs, and no file is overwritten: further files are named FILE-2,
 * FILE-3. */
static int create_csv(const char *path, int *fd)
{
	char other[HR__LMS_VARIABLE_MAX + 16];
	int error = hr__os()->file_create(path, fd);
	for (unsigned i = 2; error == EEXIST && hr__lms_options_from_environment(path) && i <= CSV_FILES_MAX; i++) {
		snprintf(other, sizeof other, "%s-%u", path, i);
		error = hr__os()->file_create(other, fd);
	}
	return error;
}

hr_status hr__step_csv_open(hr__lms *lms, const char *path)
{
	int error = create_csv(path, &lms->csv);
	if (error) {
		lms->csv = -1;
		return hr__os_fail(error, "cannot create step_csv \"%.200s\"", path);
	}
	error = hr__os()->file_write(lms->csv, csv_header, sizeof csv_header - 1, 0);
	lms->csv_offset = sizeof csv_header - 1;
	if (!error) return HR_OK;
	hr__os()->file_close(lms->csv);
	lms->csv = -1;
	return hr__os_fail(error, "cannot write step_csv \"%.200s\"", path);
}

void hr__step_csv_write(hr__lms *lms, int64_t step)
{
	char line[2048];
	hr_lms_stats stats = { .struct_size = sizeof stats };
	if (lms->csv < 0 || hr_lms_get_stats(lms->handle, &stats)) return;
	size_t used = (size_t)snprintf(line, sizeof line, "%lld,%llu", (long long)step,
	                               (unsigned long long)hr__device_clock_ns(lms->device));
#define VALUE(name, text) \
	if (used < sizeof line - 24) used += (size_t)snprintf(line + used, sizeof line - used, ",%lld", (long long)stats.name);
	HR_LMS_STATS_TABLE(VALUE)
#undef VALUE
	line[used++] = '\n';
	hr__lock_take(&lms->lock);
	uint64_t offset = lms->csv_offset;
	lms->csv_offset += used;
	hr__lock_release(&lms->lock);
	hr__os()->file_write(lms->csv, line, used, offset); /* a full disk does not stop the program */
}
