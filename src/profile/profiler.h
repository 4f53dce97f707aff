/* profiler.h - what the rest of this layer needs of the profiler; headroom_profile.h is the rest. */
#ifndef HR_PROFILE_PROFILER_H
#define HR_PROFILE_PROFILER_H

#include <stddef.h>

#include "headroom_profile.h"

/* Starts recording to a new file [stem][end], or [stem]-2[end] and so on where that, packed or not, is there. [path] gets its name. As
 * hr_trace_start, with the limit of hr_profiler_options.max_bytes. */
hr_status hr__trace_start_new(const char *stem, const char *end, uint64_t max_bytes, char *path, size_t capacity);

/* "512MiB" into options->max_bytes. HR_INVALID_ARGUMENT, and then nothing has changed. */
hr_status hr__profiler_parse_max_bytes(const char *text, hr_profiler_options *options);

/* "1,10,100-103" into options->steps. HR_INVALID_ARGUMENT, and then nothing has changed. */
hr_status hr__profiler_parse_steps(const char *text, hr_profiler_options *options);

/* hr_profiler_start for the environment, with a name for the files instead of a directory: FILE, or FILE-stepN before its extension. "%p" in [pattern] is the number of
 * the process, "%n" the first number from 1 for which there is no such file, of any step, "%%" a percent sign. HR_INVALID_ARGUMENT for another "%". The calls of the
 * program do not see this recording: theirs end it when they start one, and never stop it. [tensorboard] is a log directory for TensorBoard, where each
 * file is written too when it is finished; NULL: none. */
hr_status hr__profiler_start_file(const char *pattern, const char *tensorboard, const hr_profiler_options *options);

/* What such a pattern stands for, with 1 for "%n". HR_INVALID_ARGUMENT, HR_IO when it is too long. */
hr_status hr__profiler_file_name(const char *pattern, char *out, size_t capacity);

/* Stops, if it runs. HR_OK for the environment's recording, whatever became of it: hr__environment_ended says that. */
hr_status hr__profiler_end(void);
/* Called when the recording that hr__profiler_start_file began is over. [status] is what hr_profiler_stop would return; [missed]: a sentence about
 * chosen steps that did not occur, or ""; [gives_way]: the program begins one of its own. Says on the standard error what is worth saying. */
void hr__environment_ended(hr_status status, const char *missed, bool gives_way);
/* In the child after fork: the recording is the parent's. */
void hr__profiler_forget(void);

#endif
