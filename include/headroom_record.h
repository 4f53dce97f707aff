/* headroom_record.h - recording memory events in a trace file. headroom_analysis.h reads trace files.
 *
 * One recording at a time covers every allocator of the process. `headroom report FILE` shows a trace file, `headroom replay FILE`
 * runs it again. The rules of headroom.h apply.
 *
 *     hr_trace_start, hr_trace_stop          one trace file, from start to stop
 *     hr_profiler_start, hr_profiler_stop    a log directory; the whole run, or chosen steps
 *     hr_stack_intern, hr_stack_set          call stacks, provided by plug-ins
 *     HEADROOM_TRACE=FILE program            a program that calls none of these
 *
 * A program never fails because it is recorded: a write error is a status here, and a count of lost events in the trace file. If
 * the disk is slow, the program waits for it and no event is lost. If the disk is full, the program continues, and later events are
 * lost and counted.
 *
 * Another program that truncates a trace file causes lost events, not a crash: during a recording, a handler for SIGBUS is
 * installed that handles only faults in the trace file. All other faults are passed to the previous handler, or to one that the
 * program installs later. SIGBUS is unblocked in threads that record. A handler that the program installs during a recording also
 * gets the faults in the trace file, until a thread begins its next block: install it before the recording starts.
 *
 * A recording is stopped by the call of the same name, or by hr_shutdown. No call here stops the recording of HEADROOM_TRACE.
 * When a call starts a recording, the recording of HEADROOM_TRACE ends first, with a line on the standard error; its trace file
 * is readable. */
#ifndef HEADROOM_RECORD_H
#define HEADROOM_RECORD_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts recording every event of every allocator to a new file at [path] (docs/trace-format.md). Blocks that are already allocated
 * are written first. The file is readable at any moment, also after the process is killed. Call stacks are recorded if HEADROOM_STACKS
 * gives a depth.
 *
 * HR_IN_USE  something is being recorded already, or the profiler is running
 * HR_IO      the file exists or cannot be created, or the disk is full */
HR_API HR_CHECK_RESULT hr_status hr_trace_start(const char *path);

/* Ends the recording.
 *
 * HR_IO                an event could not be written (the disk was full, another program truncated the file); the file holds what
 *                      was written before
 * HR_INVALID_ARGUMENT  no recording was started
 * HR_IN_USE            the recording was started by the profiler; hr_profiler_stop ends it */
HR_API hr_status hr_trace_stop(void);

/* Adds a mark to the recording: a text and a number, such as "epoch" and 3, or "loss" and its bits. No effect without a
 * recording. HR_INVALID_ARGUMENT: no text. */
HR_API hr_status hr_trace_mark(const char *text, uint64_t value);

/* ---- call stacks ----
 *
 * A recording can have the call stack of each allocation and of each refused request. There are two sources:
 *
 *     the program's own calls   captured by the library if the recording was started with a stack depth
 *                               (hr_profiler_options.stack_depth, HEADROOM_STACKS). Off by default: a capture takes microseconds
 *     a plug-in or interpreter  sets the stack of its thread with hr_stack_set. It takes precedence over a capture, and needs no option
 *
 * Memory of a tensor has the stack of hr_tensor_create, also when it is restored. Blocks that were allocated before the recording began
 * have no stack. */

/* A call stack, as a number. Equal stacks have equal numbers for the life of the process. */
typedef uint32_t hr_stack;

#define HR_STACK_NONE 0u  /* no stack */
#define HR_STACK_OTHER 1u /* stands for all new stacks once 65,534 stacks or about 4 million frames are interned; has one frame, "(other)" */
#define HR_STACK_DEPTH_MAX 128

/* A frame of a call stack. HR_NAME_NONE or 0 in a field: not known. Never changes: frames are passed in arrays. */
typedef struct hr_frame {
	hr_name function;
	hr_name file;    /* the source file */
	hr_name module;  /* the program or shared library */
	uint32_t line;   /* in [file]; the first line is 1 */
	uint64_t offset; /* of the instruction in [module], as addr2line expects it */
} hr_frame;

/* The number of the stack with these frames, innermost first. Only the innermost HR_STACK_DEPTH_MAX frames are kept. HR_STACK_NONE for
 * no frames. A frame without any name counts as "(other)". Stacks are never removed, and their number is limited: pass functions and
 * lines, not values that change with each call. Takes a hash of each frame; acquires a lock only for what is new. Thread-safe, never
 * fails, allocates nothing. */
HR_API hr_stack hr_stack_intern(const hr_frame *frames, size_t count);

/* The frames of a stack, innermost first. Returns their number; writes at most [capacity] of them. 0 for HR_STACK_NONE. */
HR_API size_t hr_stack_get_frames(hr_stack stack, hr_frame *frames, size_t capacity);

/* Sets the stack of the calling thread's allocations and new tensors from now on, until the next call. HR_STACK_NONE ends that. Returns
 * the stack that was set before. Without a recording it costs a few nanoseconds and has no effect. */
HR_API hr_stack hr_stack_set(hr_stack stack);

/* The stack depth that the current recording was started with; 0 = no recording, or one without a depth. A plug-in whose stacks are
 * expensive to collect can leave that out when it is 0. */
HR_API uint32_t hr_trace_get_stack_depth(void);

/* Steps from [first] to [last], both included. The first step of a program is number 1. Steps are those of hr_step_begin; if the
 * program marks none, each run of a session is a step. */
typedef struct hr_profiler_steps {
	uint64_t first, last;
} hr_profiler_steps;

#define HR_PROFILER_STEPS_MAX 64

typedef struct hr_profiler_options {
	size_t struct_size;
	hr_profiler_steps steps[HR_PROFILER_STEPS_MAX];
	uint32_t step_count; /* number of entries in steps; 0 (default) = record everything from start to stop */
	bool compress;       /* compress each finished file with zstd, FILE to FILE.zst; default false. Requires libzstd.so.1 */
	/* Also export each finished file for TensorBoard and XProf: LOGDIR/plugins/profile/SESSION/HOST.xplane.pb, where SESSION is
	 * the name of the file without its extension; default false. `tensorboard --logdir LOGDIR` shows it. The call that finishes
	 * the file, hr_profiler_stop or the hr_step_end of a chosen step, then reads it back, which takes about 2 us and 100 bytes
	 * of host memory for each allocation with its free. Other threads that mark a step wait meanwhile.
	 * libheadroom_analysis writes the log: see hr_analysis_register in headroom_analysis.h. */
	bool tensorboard;
	/* Most bytes of a file before compression, at least 1 MiB; 0 (default) = no limit. A file that reaches the limit ends there:
	 * no thread records to it any more, and events cost what they cost without a recording. The file is readable like any other,
	 * and its header says that it ended at its limit. hr_profiler_stop then returns HR_TRUNCATED. With chosen steps the limit
	 * applies to each file, and the next file begins as usual. */
	uint64_t max_bytes;
	/* Record the call stack of each allocation, with up to so many frames, at most HR_STACK_DEPTH_MAX; 0 (default) = as
	 * HEADROOM_STACKS says, or no stacks. Frames of Headroom's own libraries are left out. Where Python runs, its functions
	 * follow those of libraries (docs/profile.md). Functions have names if the dynamic loader knows them: those of shared libraries, and of
	 * programs linked with -rdynamic. Others are recorded as offsets, for addr2line. */
	uint32_t stack_depth;
	uint32_t reserved; /* 0 */
} hr_profiler_options;

HR_API hr_status hr_profiler_options_init_sized(hr_profiler_options *options, size_t struct_size);
static inline hr_status hr_profiler_options_init(hr_profiler_options *options)
{
	return hr_profiler_options_init_sized(options, sizeof *options);
}

/* Finds "--profile_options=profile_steps=1,10,100" (or with the value as the next argument) among a program's arguments, applies it
 * to [options], and removes it from [argv]: later arguments move up, and *argc becomes smaller. Without such an argument nothing
 * changes. argv[0] and everything after an argument "--" are ignored. Settings are separated by ';':
 *
 *     profile_steps=1,10,100-103     the steps to record
 *     compress=1                     or 0
 *     tensorboard=1                  or 0
 *     max_bytes=512MiB               the limit of a file's size
 *     stacks=16                      the stack depth
 *
 * HR_INVALID_ARGUMENT for an unknown setting or a bad list; the message quotes the text, and [options] and the arguments are
 * unchanged. */
HR_API HR_CHECK_RESULT hr_status hr_profiler_parse_arguments(int *argc, char **argv, hr_profiler_options *options);

/* Starts recording to new files in the directory [logdir], which is created if necessary. [options] NULL = record everything. Files
 * are named PROGRAM-YYYYMMDD-HHMMSS-PID.hrt, or ...-stepN.hrt, one for each run of consecutive chosen steps. If a file exists,
 * another number is added to the name.
 *
 * With chosen steps, a file begins when a chosen step begins on any allocator, and ends with the step. The blocks that were
 * allocated before the step are written first. If such a file cannot be created, the program continues and hr_profiler_stop returns
 * the error.
 *
 * HR_IN_USE            something is being recorded already
 * HR_IO                the directory cannot be created or written to
 * HR_INVALID_ARGUMENT  no directory, a step 0, a last step before the first, a max_bytes below 1 MiB, or a stack_depth above
 *                      HR_STACK_DEPTH_MAX
 * HR_UNSUPPORTED       compression without libzstd.so.1, a TensorBoard log without libheadroom_analysis, or a stack_depth where the
 *                      system cannot capture stacks */
HR_API HR_CHECK_RESULT hr_status hr_profiler_start(const char *logdir, const hr_profiler_options *options);

/* Stops the profiler. hr_shutdown does so too, and returns the same status.
 *
 * HR_INVALID_ARGUMENT  nothing was started with hr_profiler_start
 * HR_IO                a file could not be created, written, compressed or exported for TensorBoard; the other files were written
 * HR_NO_HOST_MEMORY    a file could not be exported; the trace file was written
 * HR_TRUNCATED         a file reached options.max_bytes; it holds what was recorded before
 * HR_NOT_READY         steps were chosen and none of them has occurred, so there is no file
 *
 * It is no error if only some of the chosen steps have occurred; hr_profiler_get_missed_steps returns the others. */
HR_API hr_status hr_profiler_stop(void);

/* The path of the newest file that the profiler began in this process, compressed or not; "" when there is none. Returns its
 * length; writes at most [capacity] bytes with the terminating 0. */
HR_API size_t hr_profiler_get_last_file(char *out, size_t capacity);

/* The chosen steps that had not occurred when the profiler was last stopped, such as "100,200-300": the entries of options.steps
 * of which no step began while the profiler ran. "" when there are none. Returns its length; writes at most [capacity] bytes
 * with the terminating 0. */
HR_API size_t hr_profiler_get_missed_steps(char *out, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
