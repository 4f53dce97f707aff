/* headroom_profile.h - recording what happens to memory in a file, and looking at it afterwards.
 *
 * One recording at a time covers every allocator of the process. `headroom report FILE` shows it, `headroom replay FILE` runs it again.
 * The rules of headroom.h hold here too.
 *
 *     hr_trace_start, hr_trace_stop          one file, from here to there
 *     hr_profiler_start, hr_profiler_stop    a log directory; all of the run, or chosen steps
 *     HEADROOM_TRACE=FILE program            a program that calls none of these
 *     hr_profile_report, hr_profile_save     where memory and time went, from such a file
 *
 * A program never fails because it is recorded: what cannot be written is a status here, and a count of lost events in the file. When the
 * disk is slow, the program waits for it and nothing is lost; when it is full, the program goes on, what follows is lost, and how much
 * is known. A trace file that another program truncates loses events and does not kill: while something is recorded, a handler for SIGBUS is
 * installed that catches faults in the trace file alone. All others go to the handler that was there, or that the program installs later; SIGBUS
 * is unblocked in threads that record.
 *
 * What was started is stopped by the call of the same name, or by hr_shutdown. The environment's recording is none of the program's: no call here
 * stops it, and when one starts a recording, the environment's ends first, with a line on the standard error. Its file can be read. */
#ifndef HEADROOM_PROFILE_H
#define HEADROOM_PROFILE_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts recording every event of every allocator to a new file at [path] (docs/trace-format.md). What is allocated already is
 * written first. The file is readable at any moment, also after the process is killed. HR_IN_USE while one is being recorded or
 * the profiler runs, HR_IO when the file exists, cannot be made or the disk is full. */
HR_API hr_status hr_trace_start(const char *path);

/* Ends the recording. HR_IO when something could not be written meanwhile (the disk filled up, another program
 * truncated the file): the file holds what came before.
 * HR_INVALID_ARGUMENT: none was started. HR_IN_USE: what is recorded is the profiler's, which hr_profiler_stop ends. */
HR_API hr_status hr_trace_stop(void);

/* Puts a mark into the recording: a text and a number, such as "epoch" and 3, or "loss" and its bits. Nothing happens while nothing is
 * recorded. HR_INVALID_ARGUMENT: no text. */
HR_API hr_status hr_trace_mark(const char *text, uint64_t value);

/* Steps from [first] to [last], both included. The first step of a program is number 1 (hr_step_begin; each run of a session is a step
 * where the program marks none). */
typedef struct hr_profiler_steps {
	uint64_t first, last;
} hr_profiler_steps;

#define HR_PROFILER_STEPS_MAX 64

typedef struct hr_profiler_options {
	size_t struct_size;
	hr_profiler_steps steps[HR_PROFILER_STEPS_MAX];
	uint32_t step_count; /* entries of steps; 0 (default) = record everything from start to stop */
	bool compress;       /* pack each file with zstd once it is finished, FILE to FILE.zst; default false. Needs libzstd.so.1 */
	/* Also write each file, once it is finished, for TensorBoard and XProf: LOGDIR/plugins/profile/SESSION/HOST.xplane.pb, where SESSION is the name of
	 * the file without its extension; default false. `tensorboard --logdir LOGDIR` shows it. The call that finishes the file, hr_profiler_stop or the
	 * hr_step_end of a chosen step, then reads it back, which takes about 2 us and 100 bytes of host memory for each allocation with its free; other
	 * threads that mark a step meanwhile wait. */
	bool tensorboard;
	/* The most bytes that a file may have before it is packed; 0 (default): no limit. At least 1 MiB. A file that reaches it ends there: nothing more is
	 * recorded into it, by any thread, and events cost what they cost without a recording. It can be read like any other and says in its header that it
	 * ended at its limit. hr_profiler_stop then returns HR_TRUNCATED. With chosen steps, each file has this limit, and the next one begins as usual. */
	uint64_t max_bytes;
} hr_profiler_options;

HR_API hr_status hr_profiler_options_init(hr_profiler_options *options);

/* Finds "--profile_options=profile_steps=1,10,100" (or with the value as the next argument) among a program's arguments, puts what it
 * says into [options], and takes it out of [argv], whose end is moved up; *argc becomes smaller. Without such an argument nothing
 * changes. Settings are separated by ';':
 *
 *     profile_steps=1,10,100-103     the steps to record
 *     compress=1                     or 0
 *     tensorboard=1                  or 0
 *     max_bytes=512MiB               the limit of a file's size
 *
 * HR_INVALID_ARGUMENT, with a message that quotes the text, for an unknown setting or a bad list; [options] and the arguments are then as
 * they were. argv[0] is left alone, and so is everything behind an argument "--". */
HR_API hr_status hr_profiler_parse_arguments(int *argc, char **argv, hr_profiler_options *options);

/* Starts recording into new files in the directory [logdir], which is made if need be. [options] may be NULL: everything. Files are called
 * PROGRAM-YYYYMMDD-HHMMSS-PID.hrt, or ...-stepN.hrt, one for each run of chosen steps that follow each other; another number is added
 * rather than writing over a file.
 *
 * With chosen steps, a file begins when such a step begins on any allocator and ends with it. It has what was allocated before the step
 * first. A file that cannot be made then is told by hr_profiler_stop; the program goes on.
 *
 * HR_IN_USE: something is being recorded already. HR_IO: the directory cannot be made or written. HR_INVALID_ARGUMENT: no directory, a step
 * 0, a last step before the first, a max_bytes below 1 MiB. HR_UNSUPPORTED: compression without libzstd.so.1. */
HR_API hr_status hr_profiler_start(const char *logdir, const hr_profiler_options *options);

/* Ends it. hr_shutdown does that too, and returns what this would. HR_INVALID_ARGUMENT: nothing was started with hr_profiler_start. HR_IO: a
 * file could not be made, written, packed or exported for TensorBoard; the others are there. HR_NO_HOST_MEMORY: a file could not be exported; the
 * recording is there. HR_TRUNCATED: a file reached options.max_bytes; it holds what came before. HR_NOT_READY: steps were chosen and none of them has occurred, so there is no
 * file. When some have and others not, that is HR_OK, and hr_profiler_missed_steps has the others. */
HR_API hr_status hr_profiler_stop(void);

/* The path of the newest file that the profiler began in this process, packed or not; "" when there is none. Returns its length; writes
 * at most [capacity] bytes with the final 0. */
HR_API size_t hr_profiler_last_file(char *out, size_t capacity);

/* The chosen steps that had not occurred when the profiler stopped last, as "100,200-300": entries of options.steps of which no step at all began
 * while it ran. "" when there is none. Returns its length; writes at most [capacity] bytes with the final 0. */
HR_API size_t hr_profiler_missed_steps(char *out, size_t capacity);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Views of a recording (docs/profile.md)
 *
 *     hr_profile_options options;
 *     hr_profile_options_init(&options);
 *     options.view = "scope";
 *     options.min_bytes = 1 << 20;
 *     hr_profile_save("train.hrt", &options, HR_PROFILE_TEXT, "profile.txt");
 *
 * What rows hide is kept in a row of its own, so every table adds up to its total, and the totals are those that the allocators'
 * statistics had at that moment. */

typedef enum hr_profile_format {
	HR_PROFILE_TEXT = 0, /* tables for people */
	HR_PROFILE_JSON = 1, /* one object */
} hr_profile_format;

typedef struct hr_profile_options {
	size_t struct_size;
	/* "summary" (default), "timeline", "op", "scope", "peak", "leaks", "tensors", "steps", "allocators" */
	const char *view;
	/* "GPU:0": that device alone; "GPU" or "CPU": all of that kind; NULL: each device in the trace, one after the other */
	const char *device;
	/* Only what belongs to this name scope and those inside of it; NULL: the whole model. */
	const char *name_scope;
	/* The step with this number alone, or each of several; -1 (default): all of the trace. */
	int64_t step;
	/* Rows with less are hidden; 0: none. A row must reach both. */
	uint64_t min_bytes, min_micros;
	/* Key of the column that rows are sorted by, the largest first; "name" sorts by name. NULL: what suits the view. */
	const char *order_by;
	/* Levels of the scope tree; 0: 10,000. Rows of other tables; 0: 20 in text, 1,000 in JSON. */
	uint32_t max_depth, max_rows;
	/* POSIX extended regular expressions, each of which must match a whole name, as "conv.*". Rows are shown whose name matches one of the
	 * first and none of the second. NULL or ended by NULL. */
	const char *const *show_name_regexes, *const *hide_name_regexes;
	/* Columns of bytes, in the views op, scope, tensors and steps; columns of time, in those and in summary and peak. Both true by default. */
	bool show_memory, show_time;
	bool show_input_output; /* what ops read and wrote, in the views op and scope; false by default */
	/* For text: columns, 40 to 1,000, 0 means 100; colours and block characters of a terminal. */
	uint32_t width;
	bool colour, utf8;
	/* Called now and then with the part of the work that is done, 0 to 1. May be NULL. */
	void (*progress)(void *context, double part);
	void *progress_context;
} hr_profile_options;

/* All of the model, default view, nothing hidden. */
HR_API void hr_profile_options_init(hr_profile_options *options);

/* Sets [options] to a preset by name: "time_and_memory" (view "scope", both kinds of columns, rows with at least a byte and a microsecond, by time),
 * "memory" (view "op", by what was there at the peak), "leaks". HR_INVALID_ARGUMENT for any other, which lists them. */
HR_API hr_status hr_profile_options_preset(hr_profile_options *options, const char *name);

/* Takes [length] bytes; returns false when it could not. */
typedef bool (*hr_profile_writer)(void *context, const char *bytes, size_t length);

/* Reads the trace at [path] and writes a view of it, piece by piece. [options] NULL: the default ones. HR_IO, HR_BAD_FORMAT, HR_TRUNCATED,
 * HR_TOO_NEW for a file that cannot be read or is none; HR_INVALID_ARGUMENT for an unknown view, device, step, column or scope, or a bad regular
 * expression (the message says which there are); HR_NO_HOST_MEMORY; HR_IO when [write] returned false. Nothing is written before all of that but the
 * last is known to be right. */
HR_API hr_status hr_profile_report(const char *path, const hr_profile_options *options, hr_profile_format format, hr_profile_writer write,
                                   void *context);

/* The same into a new file. HR_IO when it is there already or cannot be written. */
HR_API hr_status hr_profile_save(const char *path, const hr_profile_options *options, hr_profile_format format, const char *file);

#ifdef __cplusplus
}
#endif

#endif
