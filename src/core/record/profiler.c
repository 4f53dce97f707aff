/* profiler.c - recordings in a log directory: file names, chosen steps, packing, and export for TensorBoard.
 *
 * There is one recording at a time: the program's own (hr_trace_start), the profiler's, or the environment's, which this file
 * treats as a profiler recording. A recording is ended only by the stop call that matches its start, or by hr_shutdown. The program
 * does not know of the environment's recording, so none of its calls may fail because of it: when the program starts another
 * recording, the environment's recording is finished first.
 *
 * The profiler writes one or more files. Without chosen steps there is one file, from start to stop. With chosen steps there is one
 * file for each run of consecutive chosen steps, begun and ended by the hook that lms calls:
 *
 *     step     9     10    11    12            steps = 10, 11
 *     file           [ step10.hrt ]
 *
 * Steps of several allocators may overlap: a file ends when no chosen step is open. A thread that marks a step waits while the file
 * is created or finished. Failures in the hook are kept and returned by hr_profiler_stop, because no other call can return them. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/base/atomic.h"
#include "core/base/lock.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "headroom_record.h"
#include "core/memory/allocator.h"
#include "core/os/os.h"
#include "core/os/process.h"
#include "core/os/rank.h"
#include "core/record/compress.h"
#include "core/record/program_name.h"
#include "core/record/profiler.h"
#include "core/record/tensorboard.h"
#include "core/trace/stacks.h"
#include "core/trace/trace.h"

#define PATH_BYTES 4096
#define ENDS_BYTES 160 /* room for what follows the stem of a file name, and for a rank */
#define MISSED_BYTES (HR_PROFILER_STEPS_MAX * (2 * 20 + 2)) /* each entry has up to two numbers of up to 20 digits */
#define NAMES_TRIED 10000 /* names tried for a new file */

static struct {
	hr__lock lock; /* guards the rest. Held while a file is created or finished, so that two threads do not create two files */
	bool started;
	bool by_environment; /* the running recording is the environment's */
	bool recording;      /* a file of the profiler is open */
	uint32_t open_steps; /* number of allocators in a chosen step that began after the start */
	bool in_step[HR__ALLOCATORS_MAX]; /* by allocator slot: it is one of open_steps */
	hr_profiler_options options;
	bool occurred[HR_PROFILER_STEPS_MAX]; /* by entry of options.steps: one of its steps began */
	uint64_t last_step;                   /* the highest step number that began; 0: none */
	char missed[MISSED_BYTES];            /* of the last recording that ended: entries that did not occur, "100,200-300" */
	char stem[PATH_BYTES]; /* start of file names, including the directory */
	char extension[32];
	char path[PATH_BYTES]; /* the newest file */
	char tensorboard[PATH_BYTES]; /* the log directory for TensorBoard; "": none */
	hr_status failed;      /* the first failure in a step */
	char message[512];
} profiler = { .lock = HR__LOCK_INIT(HR__RANK_PROFILER) };

/* ---- options ---- */

hr_status hr_profiler_options_init_sized(hr_profiler_options *options, size_t struct_size)
{
	if (!options) return hr__fail(HR_INVALID_ARGUMENT, "hr_profiler_options_init: options is NULL");
	hr__struct_init(&hr__struct_profiler_options, options, struct_size, &(const hr_profiler_options){ .struct_size = 0 });
	return HR_OK;
}

static hr_status check_options(const hr_profiler_options *options)
{
	if (options->step_count > HR_PROFILER_STEPS_MAX)
		return hr__fail(HR_INVALID_ARGUMENT, "hr_profiler_start: %u entries of steps; there is room for %u", options->step_count,
		                HR_PROFILER_STEPS_MAX);
	if (options->max_bytes && options->max_bytes < HR__TRACE_LIMIT_MIN)
		return hr__fail(HR_INVALID_ARGUMENT, "hr_profiler_start: a max_bytes of %llu is too small for a trace; it is 0 for no limit, or at least 1 MiB",
		                (unsigned long long)options->max_bytes);
	if (options->stack_depth > HR_STACK_DEPTH_MAX || options->reserved)
		return hr__fail(HR_INVALID_ARGUMENT, "hr_profiler_start: a stack_depth of %u, reserved %u; the most is %d, and reserved is 0", options->stack_depth,
		                options->reserved, HR_STACK_DEPTH_MAX);
	for (uint32_t i = 0; i < options->step_count; i++) {
		const hr_profiler_steps *steps = &options->steps[i];
		if (steps->first == 0 || steps->last < steps->first)
			return hr__fail(HR_INVALID_ARGUMENT, "hr_profiler_start: steps %llu to %llu: the first step is 1, and the last not before the first",
			                (unsigned long long)steps->first, (unsigned long long)steps->last);
	}
	return HR_OK;
}

static bool is_within(const hr_profiler_steps *steps, uint64_t step)
{
	return step >= steps->first && step <= steps->last;
}

static bool is_chosen(const hr_profiler_options *options, uint64_t step)
{
	for (uint32_t i = 0; i < options->step_count; i++)
		if (is_within(&options->steps[i], step)) return true;
	return false;
}

/* ---- files ---- */

static hr_status make_stem(const char *logdir)
{
	char name[32], when[32];
	struct tm parts;
	time_t now = (time_t)(hr__os()->wall_clock_ns() / 1000000000u);
	if (!gmtime_r(&now, &parts) || !strftime(when, sizeof when, "%Y%m%d-%H%M%S", &parts)) snprintf(when, sizeof when, "0");
	hr__program_name(name, sizeof name);
	size_t length = strlen(logdir);
	int used = snprintf(profiler.stem, sizeof profiler.stem, "%s%s%s-%s-%d", logdir, logdir[length - 1] == '/' ? "" : "/", name, when,
	                    hr__os()->process_id());
	if (used < 0 || (size_t)used + ENDS_BYTES > sizeof profiler.stem) return hr__fail(HR_IO, "the path of the log directory is too long");
	snprintf(profiler.extension, sizeof profiler.extension, ".hrt");
	return HR_OK;
}

static bool exists(const char *path)
{
	int fd;
	uint64_t size;
	int error = hr__os()->file_open(path, &fd, &size);
	if (!error) hr__os()->file_close(fd);
	return !error;
}

static bool is_taken(const char *path)
{
	char packed[PATH_BYTES + sizeof HR__PACKED_SUFFIX];
	snprintf(packed, sizeof packed, "%s" HR__PACKED_SUFFIX, path);
	return exists(path) || exists(packed);
}

hr_status hr__trace_start_new(const char *stem, const char *end, const hr_profiler_options *options, char *path, size_t capacity)
{
	for (unsigned number = 1; number < NAMES_TRIED; number++) {
		char count[16] = "";
		if (number > 1) snprintf(count, sizeof count, "-%u", number);
		int used = snprintf(path, capacity, "%s%s%s", stem, count, end);
		if (used < 0 || (size_t)used >= capacity) break;
		if (is_taken(path)) continue;
		hr_status status = hr__recording_start(path, options->max_bytes, options->stack_depth);
		if (status != HR_IO || !exists(path)) return status; /* another process may have created it first */
	}
	return hr__fail(HR_IO, "no unused file name is left like %.300s%s", stem, end);
}

/* ---- patterns of file names ---- */

/* What occurs in a pattern. */
struct pattern_parts {
	bool number; /* "%n" */
	bool unique; /* "%p" or "%r", which differ between the ranks of a job */
};

/* What replaces the character [kind] after a percent sign; false if it means nothing. */
static bool expand_one(char kind, unsigned number, const hr__rank *rank, struct pattern_parts *parts, char *out, size_t capacity)
{
	parts->number = parts->number || kind == 'n';
	parts->unique = parts->unique || kind == 'p' || kind == 'r';
	switch (kind) {
	case 'p': snprintf(out, capacity, "%d", hr__os()->process_id()); return true;
	case 'r': hr__rank_text(rank, out, capacity); return true;
	case 'n': snprintf(out, capacity, "%u", number); return true;
	case '%': snprintf(out, capacity, "%%"); return true;
	default: return false;
	}
}

/* Replaces "%n" by [number]. */
static hr_status expand(const char *pattern, unsigned number, const hr__rank *rank, char *out, size_t capacity, struct pattern_parts *parts)
{
	size_t used = 0;
	*parts = (struct pattern_parts){ false, false };
	for (const char *at = pattern; *at; at++) {
		char piece[16] = { *at };
		if (*at == '%' && !expand_one(*++at, number, rank, parts, piece, sizeof piece))
			return hr__fail(HR_INVALID_ARGUMENT, "\"%.300s\": after %% there is p, r, n or %%", pattern);
		size_t length = strlen(piece);
		if (used + length + ENDS_BYTES > capacity) return hr__fail(HR_IO, "the path is too long");
		memcpy(out + used, piece, length);
		used += length;
	}
	out[used] = 0;
	return HR_OK;
}

/* The extension of the file [path], with its dot; "" if it has none that is short enough. */
static const char *extension_of(const char *path)
{
	const char *name = strrchr(path, '/'), *dot;
	name = name ? name + 1 : path;
	dot = strrchr(name, '.');
	return dot && dot != name && strlen(dot) < sizeof profiler.extension ? dot : path + strlen(path);
}

/* The ranks of a job record with the same pattern, and must not have the same file. */
static void add_rank(const hr__rank *rank, char *path, size_t capacity)
{
	char extension[sizeof profiler.extension];
	size_t stem = (size_t)(extension_of(path) - path);
	snprintf(extension, sizeof extension, "%s", path + stem);
	snprintf(path + stem, capacity - stem, "-rank%u%s", rank->number, extension);
}

/* Expands the pattern to a path in [out]. */
static hr_status make_path(const char *pattern, unsigned number, char *out, size_t capacity, struct pattern_parts *parts)
{
	hr__rank rank;
	hr__rank_read(&rank);
	hr_status status = expand(pattern, number, &rank, out, capacity, parts);
	if (!status && rank.count > 1 && !parts->unique) add_rank(&rank, out, capacity); /* ENDS_BYTES are free */
	return status;
}

hr_status hr__profiler_file_name(const char *pattern, char *out, size_t capacity)
{
	struct pattern_parts parts;
	return make_path(pattern, 1, out, capacity, &parts);
}

/* Moves the extension from profiler.stem to profiler.extension. */
static void split_stem(void)
{
	char *extension = profiler.stem + (extension_of(profiler.stem) - profiler.stem);
	snprintf(profiler.extension, sizeof profiler.extension, "%s", extension);
	*extension = 0;
}

/* Whether [name] may be a file of a recording with the stem [context]: STEM.hrt, STEM-step3.hrt, STEM-step3-2.hrt, or
 * these packed. */
static bool has_stem(void *context, const char *name)
{
	const char *stem = context;
	size_t length = strlen(stem), packed = strlen(HR__PACKED_SUFFIX), extension = strlen(profiler.extension);
	if (strncmp(name, stem, length) != 0) return false;
	name += length;
	length = strlen(name);
	if (length >= packed && strcmp(name + length - packed, HR__PACKED_SUFFIX) == 0) length -= packed;
	if (length < extension || memcmp(name + length - extension, profiler.extension, extension) != 0) return false;
	return length == extension || name[0] == '-';
}

static bool stem_is_taken(void)
{
	char folder[PATH_BYTES], *slash;
	memcpy(folder, profiler.stem, sizeof folder);
	slash = strrchr(folder, '/');
	if (!slash) return hr__os_folder_any(".", has_stem, profiler.stem);
	slash[1] = 0;
	return hr__os_folder_any(folder, has_stem, profiler.stem + strlen(folder));
}

static hr_status make_stem_of(const char *pattern)
{
	for (unsigned number = 1;; number++) {
		struct pattern_parts parts;
		hr_status status = make_path(pattern, number, profiler.stem, sizeof profiler.stem, &parts);
		if (status) return status;
		split_stem();
		if (!parts.number || number == NAMES_TRIED || !stem_is_taken()) return HR_OK;
	}
}

/* ---- one file ---- */

static hr_status begin_file(uint64_t step)
{
	char end[80], before[PATH_BYTES];
	if (step) snprintf(end, sizeof end, "-step%llu%s", (unsigned long long)step, profiler.extension);
	else snprintf(end, sizeof end, "%s", profiler.extension);
	memcpy(before, profiler.path, sizeof before);
	hr_status status = hr__trace_start_new(profiler.stem, end, &profiler.options, profiler.path, sizeof profiler.path);
	if (status) memcpy(profiler.path, before, sizeof before);
	profiler.recording = status == HR_OK;
	return status;
}

static hr_status pack_file(void)
{
	size_t length = strlen(profiler.path);
	hr_status status = hr__pack(profiler.path);
	if (!status) memcpy(profiler.path + length, HR__PACKED_SUFFIX, sizeof HR__PACKED_SUFFIX);
	return status;
}

/* The session is named after the file, whose name is unique. */
static hr_status export_file(void)
{
	char session[PATH_BYTES];
	const char *name = strrchr(profiler.path, '/');
	snprintf(session, sizeof session, "%s", name ? name + 1 : profiler.path);
	char *dot = strrchr(session, '.');
	if (dot && dot != session) *dot = 0;
	return hr__tensorboard_export(profiler.path, profiler.tensorboard, session);
}

/* Returns the first failure; later stages run regardless. */
static hr_status end_file(void)
{
	char message[512] = "";
	profiler.recording = false;
	hr_status status = hr__recording_stop();
	if (status) snprintf(message, sizeof message, "%s", hr_last_message());
	hr_status exported = profiler.tensorboard[0] ? export_file() : HR_OK;
	if (exported && !status) snprintf(message, sizeof message, "%s", hr_last_message());
	hr_status packed = profiler.options.compress ? pack_file() : HR_OK;
	if (!status && !exported) return packed;
	return hr__fail(status ? status : exported, "%s", message);
}

/* ---- steps ---- */

static void keep_failure(hr_status status)
{
	if (!status || profiler.failed) return;
	profiler.failed = status;
	snprintf(profiler.message, sizeof profiler.message, "%s", hr_last_message());
}

static void step_begins(bool *in_step, uint64_t number)
{
	profiler.open_steps += !*in_step; /* already set if the slot's previous allocator was closed in a step */
	*in_step = true;
	if (!profiler.recording) keep_failure(begin_file(number));
}

/* A step that began before the profiler started was not counted, so its end is ignored. The file continues into the next step if
 * that step is chosen too. */
static void step_ends(bool *in_step, uint64_t number)
{
	if (!*in_step) return;
	*in_step = false;
	profiler.open_steps--;
	if (profiler.recording && !profiler.open_steps && !is_chosen(&profiler.options, number + 1)) keep_failure(end_file());
}

/* Called for every step, chosen or not. */
static void note_step(uint64_t number)
{
	if (number > profiler.last_step) profiler.last_step = number;
	for (uint32_t i = 0; i < profiler.options.step_count; i++)
		if (is_within(&profiler.options.steps[i], number)) profiler.occurred[i] = true;
}

/* Lists the entries that did not occur in profiler.missed. HR_NOT_READY if none occurred. */
static hr_status list_missed(void)
{
	size_t used = 0;
	uint32_t missing = 0;
	profiler.missed[0] = 0;
	for (uint32_t i = 0; i < profiler.options.step_count; i++) {
		const hr_profiler_steps *steps = &profiler.options.steps[i];
		if (profiler.occurred[i]) continue;
		used += (size_t)snprintf(profiler.missed + used, MISSED_BYTES - used, "%s%llu", missing++ ? "," : "", (unsigned long long)steps->first);
		if (steps->last != steps->first) used += (size_t)snprintf(profiler.missed + used, MISSED_BYTES - used, "-%llu", (unsigned long long)steps->last);
	}
	if (!missing || missing < profiler.options.step_count) return HR_OK;
	return hr__fail(HR_NOT_READY, "nothing was recorded: steps %.300s did not occur; the program had %llu steps", profiler.missed,
	                (unsigned long long)profiler.last_step);
}

static void watch_step(uint64_t allocator, uint64_t number, bool begins)
{
	bool *in_step = &profiler.in_step[allocator % HR__ALLOCATORS_MAX];
	hr__lock_take(&profiler.lock);
	if (profiler.started && begins) note_step(number);
	if (profiler.started && is_chosen(&profiler.options, number)) {
		if (begins) step_begins(in_step, number);
		else step_ends(in_step, number);
	}
	hr__lock_release(&profiler.lock);
}

/* ---- start and stop ---- */

/* Requires the lock. A failure in a step takes precedence over a failure here, because it came first. */
static hr_status stop(void)
{
	hr__store_release(&hr__hooks_table.step, NULL);
	profiler.started = false;
	keep_failure(profiler.recording ? end_file() : HR_OK);
	keep_failure(list_missed());
	if (!profiler.failed) return HR_OK;
	return hr__fail(profiler.failed, "%s", profiler.message);
}

/* Requires the lock. */
static void end_environments(bool gives_way)
{
	char missed[512] = "";
	hr_status status = stop();
	if (!status && profiler.missed[0])
		snprintf(missed, sizeof missed, "steps %.400s did not occur; the program had %llu steps", profiler.missed, (unsigned long long)profiler.last_step);
	hr__environment_ended(status, missed, gives_way);
}

/* Requires the lock. Called before a recording begins. HR_IN_USE: the profiler is running for the program. */
static hr_status make_way(void)
{
	if (profiler.started && profiler.by_environment) end_environments(true);
	if (profiler.started) return hr__fail(HR_IN_USE, "the profiler is recording; stop it with hr_profiler_stop first");
	return HR_OK;
}

/* Destination of files: exactly one of logdir and pattern is set. */
struct destination {
	const char *logdir;      /* directory */
	const char *pattern;     /* file name pattern */
	const char *tensorboard; /* log directory for TensorBoard; NULL: none */
};

static hr_status make_directory(const char *path)
{
	int error = path ? hr__os_make_directories(path) : 0;
	return error ? hr__os_fail(error, "cannot make the log directory %.300s", path) : HR_OK;
}

/* Requires the lock. */
static hr_status start(const struct destination *to, const hr_profiler_options *options)
{
	hr_status status = options->compress ? hr__pack_available() : HR_OK;
	if (!status && to->tensorboard) status = hr__tensorboard_available();
	if (!status) status = make_directory(to->logdir);
	if (!status) status = make_directory(to->tensorboard);
	if (!status && to->tensorboard && strlen(to->tensorboard) >= sizeof profiler.tensorboard)
		status = hr__fail(HR_IO, "the path of the log directory for TensorBoard is too long");
	if (!status) status = to->logdir ? make_stem(to->logdir) : make_stem_of(to->pattern);
	if (status) return status;
	snprintf(profiler.tensorboard, sizeof profiler.tensorboard, "%s", to->tensorboard ? to->tensorboard : "");
	profiler.options = *options;
	profiler.failed = HR_OK;
	profiler.open_steps = 0;
	profiler.last_step = 0;
	memset(profiler.in_step, 0, sizeof profiler.in_step);
	memset(profiler.occurred, 0, sizeof profiler.occurred);
	if (!options->step_count) status = begin_file(0);
	profiler.started = status == HR_OK;
	profiler.by_environment = to->pattern != NULL;
	if (profiler.started && options->step_count) hr__store_release(&hr__hooks_table.step, watch_step);
	return status;
}

static hr_status start_once(const struct destination *to, const hr_profiler_options *options)
{
	hr_profiler_options complete = *options;
	hr_status status = check_options(options);
	if (!status && options->stack_depth) status = hr__stacks_prepare();
	if (status) return status;
	if (!complete.stack_depth) complete.stack_depth = hr__stack_depth_wanted();
	hr__lock_take(&profiler.lock);
	status = make_way();
	if (!status && hr__trace_is_open()) status = hr__fail(HR_IN_USE, "a trace is being recorded already; stop it with hr_trace_stop first");
	if (!status) status = start(to, &complete);
	hr__lock_release(&profiler.lock);
	return status;
}

hr_status hr_profiler_start(const char *logdir, const hr_profiler_options *options)
{
	if (!logdir || !logdir[0]) return hr__fail(HR_INVALID_ARGUMENT, "hr_profiler_start: the log directory is NULL or empty");
	hr_profiler_options whole;
	hr_profiler_options_init(&whole);
	hr_status status = options ? hr__struct_in(&hr__struct_profiler_options, "hr_profiler_start", &whole, options) : HR_OK;
	if (status) return status;
	return start_once(&(struct destination){ .logdir = logdir, .tensorboard = whole.tensorboard ? logdir : NULL }, &whole);
}

hr_status hr__profiler_start_file(const char *pattern, const char *tensorboard, const hr_profiler_options *options)
{
	return start_once(&(struct destination){ .pattern = pattern, .tensorboard = tensorboard }, options);
}

hr_status hr_profiler_stop(void)
{
	hr_status status;
	hr__lock_take(&profiler.lock);
	if (profiler.started && !profiler.by_environment) status = stop();
	else status = hr__fail(HR_INVALID_ARGUMENT, "the profiler is not running; start it with hr_profiler_start");
	hr__lock_release(&profiler.lock);
	return status;
}

hr_status hr_trace_start(const char *path)
{
	if (!path || !path[0]) return hr__fail(HR_INVALID_ARGUMENT, "hr_trace_start: the path is empty");
	uint32_t stack_depth = hr__stack_depth_wanted();
	hr__lock_take(&profiler.lock);
	hr_status status = make_way();
	if (!status) status = hr__recording_start(path, 0, stack_depth);
	hr__lock_release(&profiler.lock);
	return status;
}

hr_status hr_trace_stop(void)
{
	hr_status status;
	hr__lock_take(&profiler.lock);
	if (!profiler.started) status = hr__recording_stop();
	else if (profiler.by_environment) status = hr__fail(HR_INVALID_ARGUMENT, "no trace is being recorded");
	else status = hr__fail(HR_IN_USE, "the profiler is recording; stop it with hr_profiler_stop");
	hr__lock_release(&profiler.lock);
	return status;
}

hr_status hr__profiler_end(void)
{
	hr_status status = HR_OK;
	hr__lock_take(&profiler.lock);
	if (profiler.started && profiler.by_environment) end_environments(false);
	else if (profiler.started) status = stop();
	hr__lock_release(&profiler.lock);
	return status;
}

void hr__profiler_forget(void)
{
	hr__lock_init(&profiler.lock, HR__RANK_PROFILER);
	hr__store_relaxed(&hr__hooks_table.step, NULL);
	profiler.started = profiler.recording = false;
}

static size_t give_text(const char *text, char *out, size_t capacity)
{
	hr__lock_take(&profiler.lock);
	size_t length = strlen(text);
	if (out && capacity) snprintf(out, capacity, "%s", text);
	hr__lock_release(&profiler.lock);
	return length;
}

size_t hr_profiler_get_last_file(char *out, size_t capacity)
{
	return give_text(profiler.path, out, capacity);
}

size_t hr_profiler_get_missed_steps(char *out, size_t capacity)
{
	return give_text(profiler.missed, out, capacity);
}
