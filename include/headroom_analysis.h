/* headroom_analysis.h - where memory and time went, from a trace file that headroom_record.h describes (docs/profile.md).
 *
 * The library is libheadroom_analysis. The rules of headroom.h apply.
 *
 *     hr_profile_options options;
 *     hr_profile_options_init(&options);
 *     options.view = "scope";
 *     options.min_bytes = 1 << 20;
 *     hr_profile_save("train.hrt", &options, HR_PROFILE_TEXT, "profile.txt");
 *
 * Hidden rows are summed in a row of their own, so every table adds up to its total. Totals equal the allocators' statistics at
 * that moment. */
#ifndef HEADROOM_ANALYSIS_H
#define HEADROOM_ANALYSIS_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Registers the exporters of this library with libheadroom, so that hr_profiler_options.tensorboard works in a statically linked program.
 * Dynamically linked programs need not call it: libheadroom.so loads libheadroom_analysis.so when it is first needed. Returns HR_OK. */
HR_API hr_status hr_analysis_register(void);

typedef enum hr_profile_format {
	HR_PROFILE_TEXT = 0, /* human-readable tables */
	HR_PROFILE_JSON = 1, /* one object */
} hr_profile_format;

typedef struct hr_profile_options {
	size_t struct_size;
	/* "summary" (default), "timeline", "op", "scope", "peak", "leaks", "tensors", "steps", "allocators" */
	const char *view;
	/* "GPU:0": that device only; "GPU" or "CPU": all devices of that type; NULL: each device in the trace, one after the other */
	const char *device;
	/* Only this name scope and the scopes inside it; NULL: the whole model. */
	const char *name_scope;
	/* The step with this number, or each step with it if there are several; -1 (default): the whole trace. */
	int64_t step;
	/* Rows with less than either are hidden; 0: no row is hidden. */
	uint64_t min_bytes, min_micros;
	/* Key of the column to sort rows by, largest first; "name" sorts by name. NULL: the default of the view. */
	const char *order_by;
	/* Most levels of the scope tree; 0: 10,000. Most rows of other tables; 0: 20 in text, 1,000 in JSON. */
	uint32_t max_depth, max_rows;
	/* POSIX extended regular expressions, each matched against a whole name, such as "conv.*". A row is shown if its name
	 * matches one of show_name_regexes and none of hide_name_regexes. NULL, or an array that ends with NULL. */
	const char *const *show_name_regexes, *const *hide_name_regexes;
	/* show_memory: columns of bytes, in the views op, scope, tensors and steps. show_time: columns of time, in those views and
	 * in summary and peak. Both true by default. */
	bool show_memory, show_time;
	bool show_input_output; /* what ops read and wrote, in the views op and scope; default false */
	/* For text: width in columns, 40 to 1,000, 0 = 100; whether to use colours and block characters of a terminal. */
	uint32_t width;
	bool colour, utf8;
	/* Called from time to time with the fraction of the work that is done, 0 to 1. May be NULL. */
	void (*progress)(void *context, double part);
	void *progress_context;
	/* Call stacks in the views peak, tensors and leaks, if the recording has them; default false. JSON always has them. */
	bool show_stacks;
	uint8_t reserved[7]; /* 0 */
} hr_profile_options;

/* Sets the defaults: the whole model, the default view, nothing hidden. */
HR_API void hr_profile_options_init_sized(hr_profile_options *options, size_t struct_size);
static inline void hr_profile_options_init(hr_profile_options *options)
{
	hr_profile_options_init_sized(options, sizeof *options);
}

/* Sets [options] to a preset: "time_and_memory" (view "scope", columns of time and of bytes, rows with at least a byte and a
 * microsecond, sorted by time), "memory" (view "op", sorted by bytes at the peak) or "leaks". HR_INVALID_ARGUMENT for any other
 * name; the message lists the presets. */
HR_API hr_status hr_profile_options_init_preset_sized(hr_profile_options *options, size_t struct_size, const char *name);
static inline hr_status hr_profile_options_init_preset(hr_profile_options *options, const char *name)
{
	return hr_profile_options_init_preset_sized(options, sizeof *options, name);
}

/* Writes [length] bytes; returns false on failure. */
typedef bool (*hr_profile_writer)(void *context, const char *bytes, size_t length);

/* Reads the trace at [path] and writes a view of it, in pieces: a recording of Headroom, a CSV, an RMM log or a PyTorch snapshot
 * (docs/profile.md, "Traces of other programs"). [options] NULL = the defaults. Nothing is written before all errors but the last are
 * ruled out.
 *
 * HR_IO, HR_BAD_FORMAT, HR_TRUNCATED, HR_TOO_NEW  the file cannot be read or is not a trace
 * HR_TOO_MANY                                     it has too many events, streams or threads
 * HR_UNSUPPORTED                                  it needs zlib or jansson, which this library was built without
 * HR_INVALID_ARGUMENT                             unknown view, device, step, column or scope (the message lists those that exist),
 * or a bad regular expression
 * HR_NO_HOST_MEMORY
 * HR_IO                                           [write] returned false */
HR_API HR_CHECK_RESULT hr_status hr_profile_report(const char *path, const hr_profile_options *options, hr_profile_format format, hr_profile_writer write,
                                   void *context);

/* hr_profile_report to a new file. HR_IO when the file exists or cannot be written. */
HR_API HR_CHECK_RESULT hr_status hr_profile_save(const char *path, const hr_profile_options *options, hr_profile_format format, const char *file);

#ifdef __cplusplus
}
#endif

#endif
