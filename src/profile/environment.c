/* environment.c - an unmodified program that is watched because its environment says so.
 *
 *     HEADROOM_TRACE=FILE          record to FILE; "%p" in it is the number of the process, "%n" the first number from 1 for which there is no such
 *                                  file, "%%" a percent sign. Without %n, a file that is there is not written over: another name is taken, FILE-2
 *     HEADROOM_TRACE_STEPS=LIST    only these steps, "1,10,100-103", each in a file of its own, FILE-stepN
 *     HEADROOM_TRACE_COMPRESS=1    pack what is finished with zstd
 *     HEADROOM_TRACE_MAX_BYTES=SIZE  end each file at that size, such as 512MiB
 *     HEADROOM_TENSORBOARD=DIR     write what is finished for TensorBoard too, into the log directory DIR
 *     HEADROOM_TOP=1               show statistics to `headroom top`
 *
 * All begins when the program makes its first allocator, and ends with hr_shutdown or the process. A recording ends earlier when the program starts
 * one of its own: there is one at a time, and the program is not to notice. What does not work is said once, on the
 * standard error, since no call of the program could tell it; the program goes on. */
#include <stdio.h>
#include <string.h>

#include "base/atomic.h"
#include "base/settings.h"
#include "base/status.h"
#include "device/device.h"
#include "headroom_profile.h"
#include "memory/begin.h"
#include "memory/oom.h"
#include "os/os.h"
#include "os/process.h"
#include "profile/profiler.h"
#include "profile/publish.h"
#include "runtime/engine.h"

#define PATH_BYTES 4096

enum { UNREAD, READING, READ };
static hr__atomic_u32 state;     /* one of the enum: whether the environment was read since the process began or hr_shutdown */
static hr__atomic_u32 recorded;  /* 1: HEADROOM_TRACE was followed; once in a process, or hr_shutdown in a loop would leave a file each time */
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

/* The call of the program that began it succeeds, and leaves its thread the message [before]. */
static void complain(const char *variable, const hr__last *before)
{
	say(variable, hr_last_message(), "; the program goes on");
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
	if (gives_way) say("HEADROOM_TRACE", "the recording ends here, since the program starts one of its own", "");
}

/* A status only for a recording that the program began itself. */
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
	return error ? hr__os_fail(error, "cannot register what to do at exit") : HR_OK;
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
	options.compress = is_on("HEADROOM_TRACE_COMPRESS");
	hr_status status = steps && steps[0] ? hr__profiler_parse_steps(steps, &options) : HR_OK;
	if (!status && most && most[0]) status = hr__profiler_parse_max_bytes(most, &options);
	if (!status) status = hr__profiler_start_file(pattern, tensorboard && tensorboard[0] ? tensorboard : NULL, &options);
	if (!status) status = end_at_exit();
	if (status) complain("HEADROOM_TRACE", before);
}

static void begin_top(const hr__last *before)
{
	if (!is_on("HEADROOM_TOP")) return;
	hr_status status = hr__publish_start();
	if (!status) status = end_at_exit();
	if (status) complain("HEADROOM_TOP", before);
}

void hr__profile_begin(void)
{
	uint32_t unread = UNREAD;
	if (hr__load_acquire(&state) == READ || !hr__cas_acq_rel(&state, &unread, READING)) return;
	hr__last before = hr__last_get();
	begin_trace(&before);
	begin_top(&before);
	hr__store_release(&state, READ);
}

hr_status hr__profile_end(void)
{
	hr_status status = end_all();
	hr__store_release(&state, UNREAD);
	return status;
}

void hr__profile_forget(void)
{
	hr__profiler_forget();
	hr__publish_forget();
	/* The environment is not followed again: what it names is the parent's. */
	hr__store_relaxed(&state, READ);
}

/* ---- for programs ---- */

hr_status hr_environment_check(void)
{
	char text[480];
	hr_cuda_options cuda;
	hr_emulated_options emulated;
	hr_lms_options lms;
	hr_profiler_options options;
	const char *steps = hr__os()->environment("HEADROOM_TRACE_STEPS"), *most = hr__os()->environment("HEADROOM_TRACE_MAX_BYTES");
	hr__last before = hr__last_get();
	hr__devices_from_environment(&cuda, &emulated);
	hr__limit_from_environment(0);
	hr__threads_wanted();
	hr__report_files_wanted();
	if (hr_lms_options_init(&lms)) hr__setting_ignored("HEADROOM_LMS", &before);
	hr_profiler_options_init(&options);
	if (steps && steps[0] && hr__profiler_parse_steps(steps, &options)) hr__setting_ignored("HEADROOM_TRACE_STEPS", &before);
	if (most && most[0] && hr__profiler_parse_max_bytes(most, &options)) hr__setting_ignored("HEADROOM_TRACE_MAX_BYTES", &before);
	return hr__settings_ignored(text, sizeof text) ? hr__fail(HR_INVALID_ARGUMENT, "%s", text) : HR_OK;
}
