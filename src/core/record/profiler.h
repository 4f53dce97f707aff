/* profiler.h - the profiler's interface for the rest of this layer; headroom_record.h is the public part. */
#ifndef HR_PROFILE_PROFILER_H
#define HR_PROFILE_PROFILER_H

#include <stddef.h>

#include "headroom_record.h"

/* Starts recording to a new file [stem][end], or [stem]-2[end] and so on if that file exists, packed or not. [path] receives the
 * name. Statuses as hr_trace_start. Of [options], the size limit and the stack depth are used. */
hr_status hr__trace_start_new(const char *stem, const char *end, const hr_profiler_options *options, char *path, size_t capacity);

/* Parses "512MiB" into options->max_bytes. HR_INVALID_ARGUMENT leaves the options unchanged. */
hr_status hr__profiler_parse_max_bytes(const char *text, hr_profiler_options *options);

/* Parses "16" into options->stack_depth. HR_INVALID_ARGUMENT leaves the options unchanged. */
hr_status hr__profiler_parse_stack_depth(const char *text, hr_profiler_options *options);

/* The stack depth that HEADROOM_STACKS gives, with captures prepared; 0 if it is not set, or ignored because it is wrong or not
 * supported. Without locks. */
uint32_t hr__stack_depth_wanted(void);

/* Parses "1,10,100-103" into options->steps. HR_INVALID_ARGUMENT leaves the options unchanged. */
hr_status hr__profiler_parse_steps(const char *text, hr_profiler_options *options);

/* hr_profiler_start for the environment, with a file name instead of a directory: FILE, or FILE-stepN before its extension. In
 * [pattern], "%p" is the process id, "%r" its rank ("none" if it is not one of a job's ranks), "%n" the first number from 1 for which
 * no such file exists for any step, and "%%" a percent sign; any other "%" is HR_INVALID_ARGUMENT. A pattern without %p and %r gets
 * "-rank%r" before its extension in a job of several ranks, whose files would have one name otherwise. The program's own profiler and trace calls do not see this recording: starting a
 * recording ends it, and stop calls never stop it. [tensorboard] is a log directory for TensorBoard, to which each file is also
 * exported when it is finished; NULL: none. */
hr_status hr__profiler_start_file(const char *pattern, const char *tensorboard, const hr_profiler_options *options);

/* Expands such a pattern, with 1 for "%n". HR_INVALID_ARGUMENT; HR_IO when the result is too long. */
hr_status hr__profiler_file_name(const char *pattern, char *out, size_t capacity);

/* Stops the profiler if it is running. HR_OK for the environment's recording, whose result hr__environment_ended reports. */
hr_status hr__profiler_end(void);
/* Called when the recording of hr__profiler_start_file is over. [status] is what hr_profiler_stop would return; [missed] is a
 * sentence about chosen steps that did not occur, or ""; [gives_way]: the program starts a recording of its own. Prints errors and
 * warnings to standard error. */
void hr__environment_ended(hr_status status, const char *missed, bool gives_way);
/* Called in the child after fork: the recording belongs to the parent. */
void hr__profiler_forget(void);

#endif
