/* profiler.h - what the rest of this layer needs of the profiler; headroom_profile.h is the rest. */
#ifndef HR_PROFILE_PROFILER_H
#define HR_PROFILE_PROFILER_H

#include <stddef.h>

#include "headroom_profile.h"

/* Starts recording to a new file [stem][end], or [stem]-2[end] and so on where that, packed or not, is there. [path] gets its name. As
 * hr_trace_start. */
hr_status hr__trace_start_new(const char *stem, const char *end, char *path, size_t capacity);

/* "1,10,100-103" into options->steps. HR_INVALID_ARGUMENT, and then nothing has changed. */
hr_status hr__profiler_parse_steps(const char *text, hr_profiler_options *options);

/* hr_profiler_start with a name for the files instead of a directory: FILE, or FILE-stepN before its extension. "%p" in [pattern] is the number of
 * the process, "%n" the first number from 1 for which there is no such file, "%%" a percent sign. HR_INVALID_ARGUMENT for another "%". */
hr_status hr__profiler_start_file(const char *pattern, const hr_profiler_options *options);

/* Stops, if it runs. */
hr_status hr__profiler_end(void);
/* In the child after fork: the recording is the parent's. */
void hr__profiler_forget(void);

#endif
