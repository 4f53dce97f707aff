/* environment.c - records and publishes an unmodified program, controlled by environment variables.
 *
 *     HEADROOM_TRACE=FILE          record to FILE. In FILE, "%p" is the process id, "%r" its rank, "%n" the first number from 1 for
 *                                  which no such file exists, "%%" a percent sign. Without %p and %r, each rank of a job has the file
 *                                  FILE-rankN. An existing file is not overwritten: without %n, another name is used, FILE-2
 *     HEADROOM_TRACE_STEPS=LIST    record only these steps, "1,10,100-103", each to its own file, FILE-stepN
 *     HEADROOM_TRACE_COMPRESS=1    pack finished files with zstd
 *     HEADROOM_TRACE_MAX_BYTES=SIZE  end each file at that size, such as 512MiB
 *     HEADROOM_STACKS=DEPTH        record call stacks of up to DEPTH frames, also in recordings that the program starts
 *     HEADROOM_TENSORBOARD=DIR     also export finished files for TensorBoard, into the log directory DIR
 *     HEADROOM_TOP=1               publish statistics for `headroom top`
 *
 * Recording and publishing begin when the program creates its first allocator, and end with hr_shutdown or the process. There is
 * one recording at a time, so a recording also ends when the program starts its own; the program does not notice. Errors are
 * printed once to standard error, because no call of the program could return them; the program continues. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/atomic.h"
#include "core/base/text/settings.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "headroom_record.h"
#include "core/memory/oom/oom.h"
#include "core/os/os.h"
#include "core/os/process.h"
#include "core/os/rank.h"
#include "core/record/profiler.h"
#include "core/record/publish.h"
#include "core/record/record.h"
#include "core/record/tensorboard.h"
#include "core/trace/stacks.h"

#define PATH_BYTES 4096

enum { UNREAD, READING, READ };
static hr__atomic_u32 state;     /* one of the enum: whether the environment was read since the process started or since
                                  * hr_shutdown */
static hr__atomic_u32 recorded;  /* 1: HEADROOM_TRACE was used. Only once per process; otherwise a loop of hr_shutdown would create
                                  * a file each time */
static hr__atomic_u32 exit_hook; /* 1: at_exit is registered */

static void say(const char *variable, const char *what, const char *more)
{
	char line[1024];
	int used = snprintf(line, sizeof line - 1, "headroom: %s: %s%s", variable, what, more);
	if (used < 0) return;
	size_t length = (size_t)used < sizeof line - 1 ? (size_t)used : sizeof line - 2;
	line[length++] = '\n';
	hr__os()->stderr_write(line, length);
}

/* Reports a failure to standard error. The program's call succeeds, and its thread keeps the last message [before]. */
static void complain(const char *variable, const hr__last *before)
{
	say(variable, hr_last_message(), "; the program continues");
	hr__setting_ignored(variable, before);
}

static bool is_on(const char *variable)
{
	const char *value = hr__os()->environment(variable);
	return value && value[0] && strcmp(value, "0") != 0;
}

void hr__environment_ended(hr_status status, const char *missed, bool gives_way)
{
	if (status) say("HEADROOM_TRACE", hr_last_message(), "");
	else if (missed[0]) say("HEADROOM_TRACE_STEPS", missed, "");
	if (gives_way) say("HEADROOM_TRACE", "the recording ends here, because the program starts its own", "");
}

/* Returns a failure only of a recording that the program started itself. */
static hr_status end_all(void)
{
	hr_status status = hr__profiler_end();
	hr__publish_stop();
	return status;
}

static void at_exit(void)
{
	if (!hr__forked) end_all();
}

static hr_status end_at_exit(void)
{
	uint32_t no = 0;
	if (!hr__cas_acq_rel(&exit_hook, &no, 1)) return HR_OK;
	int error = hr__os_at_exit(at_exit);
	return error ? hr__os_fail(error, "cannot register an exit handler") : HR_OK;
}

uint32_t hr__stack_depth_wanted(void)
{
	static const char variable[] = "HEADROOM_STACKS";
	hr__last before = hr__last_get();
	const char *text = hr__os()->environment(variable);
	hr_profiler_options options;
	hr_profiler_options_init(&options);
	if (!text || !text[0]) return 0;
	hr_status status = hr__profiler_parse_stack_depth(text, &options);
	if (!status && options.stack_depth) status = hr__stacks_prepare();
	if (!status) return options.stack_depth;
	hr__setting_ignored(variable, &before);
	return 0;
}

/* For a recording that no call of the program started: a wrong setting is reported, and the recording has no stacks. */
static void report_stack_depth(const hr__last *before)
{
	const char *text = hr__os()->environment("HEADROOM_STACKS");
	hr_profiler_options options;
	hr_profiler_options_init(&options);
	if (text && text[0] && hr__profiler_parse_stack_depth(text, &options)) complain("HEADROOM_STACKS", before);
	else if (options.stack_depth && hr__stacks_prepare()) complain("HEADROOM_STACKS", before);
}

static void begin_trace(const hr__last *before)
{
	uint32_t no = 0;
	const char *pattern = hr__os()->environment("HEADROOM_TRACE");
	const char *steps = hr__os()->environment("HEADROOM_TRACE_STEPS"), *tensorboard = hr__os()->environment("HEADROOM_TENSORBOARD");
	const char *most = hr__os()->environment("HEADROOM_TRACE_MAX_BYTES");
	hr_profiler_options options;
	if (!pattern || !pattern[0] || !hr__cas_acq_rel(&recorded, &no, 1)) return;
	hr_profiler_options_init(&options);
	if (tensorboard && (!tensorboard[0] || hr__tensorboard_available())) {
		if (tensorboard[0]) complain("HEADROOM_TENSORBOARD", before);
		tensorboard = NULL;
	}
	report_stack_depth(before);
	options.compress = is_on("HEADROOM_TRACE_COMPRESS");
	hr_status status = HR_OK;
	const char *variable = "HEADROOM_TRACE";
	if (steps && steps[0] && (status = hr__profiler_parse_steps(steps, &options)) != HR_OK) variable = "HEADROOM_TRACE_STEPS";
	if (!status && most && most[0] && (status = hr__profiler_parse_max_bytes(most, &options)) != HR_OK) variable = "HEADROOM_TRACE_MAX_BYTES";
	if (!status) status = hr__profiler_start_file(pattern, tensorboard, &options);
	if (!status) status = end_at_exit();
	if (status) complain(variable, before);
}

static void begin_top(const hr__last *before)
{
	if (!is_on("HEADROOM_TOP")) return;
	hr_status status = hr__publish_start();
	if (!status) status = end_at_exit();
	if (status) complain("HEADROOM_TOP", before);
}

void hr__record_begin(void)
{
	uint32_t unread = UNREAD;
	if (hr__load_acquire(&state) == READ || !hr__cas_acq_rel(&state, &unread, READING)) return;
	hr__last before = hr__last_get();
	begin_trace(&before);
	begin_top(&before);
	hr__store_release(&state, READ);
}

hr_status hr__record_end(void)
{
	hr_status status = end_all();
	hr__store_release(&state, UNREAD);
	return status;
}

void hr__record_forget(void)
{
	hr__profiler_forget();
	hr__publish_forget();
	/* The environment is not read again: the files that it names belong to the parent. */
	hr__store_relaxed(&state, READ);
}

uint32_t hr__threads_wanted(void)
{
	static const char variable[] = "HEADROOM_THREADS";
	hr__last before = hr__last_get();
	const char *text = hr__os()->environment(variable);
	char *end = NULL;
	long count = text && text[0] ? strtol(text, &end, 10) : 0;
	if (end && (*end || end == text || count < 1)) {
		hr__fail(HR_INVALID_ARGUMENT, "it is not a number of threads; use 1 or more");
		hr__setting_ignored(variable, &before);
		count = 0;
	}
	if (count < 1) count = (long)hr__os_processors();
	return count < 1 ? 1 : count > (long)HR__THREADS_MAX ? HR__THREADS_MAX : (uint32_t)count;
}

/* ---- for programs ---- */

hr_status hr_environment_check(void)
{
	char text[480];
	hr_cuda_options cuda;
	hr_emulated_options emulated;
	hr_lms_options lms;
	hr_profiler_options options;
	hr__rank rank;
	const char *steps = hr__os()->environment("HEADROOM_TRACE_STEPS"), *most = hr__os()->environment("HEADROOM_TRACE_MAX_BYTES");
	hr__last before = hr__last_get();
	hr__options_devices_from_environment(&cuda, &emulated);
	hr__options_limit_from_environment(0);
	hr__threads_wanted();
	hr__stack_depth_wanted();
	hr__rank_read(&rank);
	hr__report_files_max();
	if (hr_lms_options_init(&lms)) hr__setting_ignored("HEADROOM_LMS", &before);
	hr_profiler_options_init(&options);
	if (steps && steps[0] && hr__profiler_parse_steps(steps, &options)) hr__setting_ignored("HEADROOM_TRACE_STEPS", &before);
	if (most && most[0] && hr__profiler_parse_max_bytes(most, &options)) hr__setting_ignored("HEADROOM_TRACE_MAX_BYTES", &before);
	return hr__settings_ignored(text, sizeof text) ? hr__fail(HR_INVALID_ARGUMENT, "%s", text) : HR_OK;
}
