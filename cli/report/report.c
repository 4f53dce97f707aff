/* report.c - `headroom report`: memory and time of a trace, as tables or JSON, as an HTML page, or exported for other tools. */
#include <string.h>
#include <sys/stat.h>

#include "report/profile.h"
#include "report/ranks.h"
#include "analysis/export/export.h"
#include "analysis/export/export_file.h"
#include "analysis/page/page.h"
#include "analysis/view/view.h"
#include "analysis/import/quote.h"

#define STEPS_MAX 64

enum {
	VIEW, DEVICE, STEP, SCOPE, MIN_BYTES, MIN_MICROS, ORDER_BY, MAX_DEPTH, MAX_ROWS, SHOW, HIDE, MEMORY, TIME, INPUT_OUTPUT, STACKS, PRESET, WIDTH, HTML, OUT,
	EXPORT, JSON
};

static const hr__option options[] = {
	[VIEW] = { "--view", "NAME", "summary (default), timeline, op, scope, peak, leaks, tensors, steps or allocators" },
	[DEVICE] = { "--device", "NAME", "only that device, GPU:0, or all of a kind, GPU; otherwise each that was used, one after the other" },
	[STEP] = { "--step", "LIST", "only these steps, each on its own: 3 or 1,10,100 or 3-7; at most 64. Of several with the same number, all" },
	[SCOPE] = { "--name-scope", "SCOPE", "only what belongs to that name scope and to those inside of it; otherwise the whole model" },
	[MIN_BYTES] = { "--min-bytes", "SIZE", "hide rows with less" },
	[MIN_MICROS] = { "--min-micros", "N", "hide rows with less time" },
	[ORDER_BY] = { "--order-by", "COLUMN", "sort by that column, as --json calls it: bytes, peak_bytes, at_peak_bytes, residual_bytes, micros, "
	                                       "occurrence...; name sorts by name" },
	[MAX_DEPTH] = { "--max-depth", "N", "levels of the tree of the view scope" },
	[MAX_ROWS] = { "--max-rows", "N", "rows of a table; default 20, with --json 1000" },
	[SHOW] = { "--show-name-regexes", "LIST", "show rows whose whole name matches one of these POSIX extended regular expressions: 'conv.*,dense_[0-9]+'" },
	[HIDE] = { "--hide-name-regexes", "LIST", "hide rows whose whole name matches one of these" },
	[MEMORY] = { "--show-memory", "yes|no", "columns of bytes, in the views op, scope, tensors and steps; default yes" },
	[TIME] = { "--show-time", "yes|no", "columns of time, in those views, summary and peak; default yes" },
	[INPUT_OUTPUT] = { "--show-input-output", NULL, "columns of what ops read and wrote, in the views op and scope" },
	[STACKS] = { "--stacks", NULL, "call stacks of what is shown, in the views peak, tensors and leaks; the recording must have them (run --stacks)" },
	[PRESET] = { "--preset", "NAME", "begin with the options of time_and_memory, memory or leaks; others change them" },
	[WIDTH] = { "--width", "COLUMNS", "40 to 1000; otherwise those of the terminal, or 100" },
	[HTML] = { "--html", "FILE", "write a page for the browser to that file instead: all of the trace, to zoom, search and sort in; needs no network" },
	[OUT] = { "--out", "PATH", "write to that file" },
	[EXPORT] = { "--export", "FORMAT", "write all of the trace for another tool, to --out: xplane (a log directory for TensorBoard and XProf), chrome "
	                                   "(trace JSON for Perfetto), memory_viz (a snapshot for PyTorch's viewer), rmm (a log) or pprof" },
	[JSON] = { "--json", NULL, "print one JSON object" },
	{ NULL, NULL, NULL },
};

typedef struct report_request {
	hr_profile_options options;
	hr_profile_format format;
	hr__patterns show, hide;
	int64_t steps[STEPS_MAX];
	size_t step_count;
} report_request;

static bool read_switch(const hr__arguments *arguments, int option, bool *out)
{
	static const char *const yes[] = { "yes", "true", "1" }, *const no[] = { "no", "false", "0" };
	const char *value = arguments->values[option];
	char quoted[HR__QUOTE_BYTES];
	if (!value) return true;
	for (size_t i = 0; i < 3; i++) {
		if (strcmp(value, yes[i]) != 0 && strcmp(value, no[i]) != 0) continue;
		*out = strcmp(value, yes[i]) == 0;
		return true;
	}
	hr__complain("report: %s is yes or no, not %s", options[option].name, hr__quote(value, strlen(value), quoted));
	return false;
}

static void read_text(const hr__arguments *arguments, int option, const char **out)
{
	if (arguments->values[option]) *out = arguments->values[option];
}

static bool read_steps(const hr__arguments *arguments, report_request *r)
{
	if (!hr__arguments_has(arguments, STEP)) return true;
	if (!hr__profile_parse_steps(arguments->values[STEP], r->steps, STEPS_MAX, &r->step_count)) return true;
	hr__complain("report: --step: %s", hr_last_message());
	return false;
}

static bool read_numbers(const hr__arguments *arguments, hr_profile_options *o)
{
	uint64_t depth = o->max_depth, rows = o->max_rows, width = o->width;
	if (!hr__arguments_size(arguments, MIN_BYTES, &o->min_bytes) || !hr__arguments_count(arguments, MIN_MICROS, 0, UINT64_MAX / 1000, &o->min_micros) ||
	    !hr__arguments_count(arguments, MAX_DEPTH, 1, 10000, &depth) || !hr__arguments_count(arguments, MAX_ROWS, 1, 1000000, &rows) ||
	    !hr__arguments_count(arguments, WIDTH, 40, 1000, &width))
		return false;
	o->max_depth = (uint32_t)depth;
	o->max_rows = (uint32_t)rows;
	o->width = (uint32_t)width;
	return true;
}

static bool read_request(const hr__arguments *arguments, report_request *r)
{
	hr_profile_options *o = &r->options;
	*r = (report_request){ .format = hr__arguments_has(arguments, JSON) ? HR_PROFILE_JSON : HR_PROFILE_TEXT };
	hr_profile_options_init(o);
	if (hr__arguments_has(arguments, PRESET) && hr_profile_options_init_preset(o, arguments->values[PRESET])) {
		hr__complain_last();
		return false;
	}
	hr__profile_look(o, hr__arguments_has(arguments, OUT) ? NULL : stdout);
	read_text(arguments, VIEW, &o->view);
	read_text(arguments, DEVICE, &o->device);
	read_text(arguments, SCOPE, &o->name_scope);
	read_text(arguments, ORDER_BY, &o->order_by);
	if (hr__arguments_has(arguments, INPUT_OUTPUT)) o->show_input_output = true;
	if (hr__arguments_has(arguments, STACKS)) o->show_stacks = true;
	if (!read_numbers(arguments, o) || !read_switch(arguments, MEMORY, &o->show_memory) || !read_switch(arguments, TIME, &o->show_time) ||
	    !read_steps(arguments, r) || !hr__patterns_split(arguments->values[SHOW], &r->show) || !hr__patterns_split(arguments->values[HIDE], &r->hide))
		return false;
	o->show_name_regexes = r->show.list;
	o->hide_name_regexes = r->hide.list;
	/* Report wrong options before a long file is read. */
	hr_profile_options checked;
	hr__filter filter;
	if (hr__profile_options_read(o, &checked) || hr__filter_make(&filter, &checked)) {
		hr__complain_last();
		return false;
	}
	hr__filter_free(&filter);
	return true;
}

/* False: [option] names the trace itself, which must not be overwritten; a message was printed. */
static bool leaves_trace(const hr__arguments *arguments, int option)
{
	const char *path = arguments->values[option];
	struct stat trace, file;
	if (!path || stat(arguments->operands[0], &trace) || stat(path, &file) || trace.st_dev != file.st_dev || trace.st_ino != file.st_ino) return true;
	hr__complain("report: %s %s is the trace itself", options[option].name, path);
	return false;
}

/* False: an option of views was combined with [option], which writes the whole trace; a message was printed. */
static bool is_alone(const hr__arguments *arguments, int option, int with)
{
	for (int i = 0; options[i].name; i++) {
		if (i == option || i == with || !hr__arguments_has(arguments, i)) continue;
		hr__complain("report: %s writes all of the trace; leave %s out", options[option].name, options[i].name);
		return false;
	}
	return true;
}

/* Whether an option that selects rows or columns can change anything in this view. */
static bool has_effect(int option, const hr__profile *profile, const report_request *r)
{
	bool has_rows = hr__profile_has_form(profile, HR__TABLE_LIST) || hr__profile_has_form(profile, HR__TABLE_TREE);
	switch (option) {
	case MIN_BYTES: return hr__profile_has_flag(profile, HR__MIN_BYTES);
	case MIN_MICROS: return hr__profile_has_flag(profile, HR__MIN_MICROS);
	case MEMORY: return hr__profile_has_flag(profile, HR__MEMORY);
	case TIME: return hr__profile_has_flag(profile, HR__TIME);
	case INPUT_OUTPUT: return hr__profile_has_flag(profile, HR__IO);
	case STACKS: return hr__profile_has_flag(profile, HR__STACKS);
	case MAX_DEPTH: return hr__profile_has_form(profile, HR__TABLE_TREE);
	case SCOPE: return strcmp(r->options.view, "allocators") != 0; /* regions have no scope */
	case MAX_ROWS: return has_rows || r->format == HR_PROFILE_JSON; /* a chart is as wide as the terminal */
	case SHOW:
	case HIDE: return has_rows;
	default: return true;
	}
}

/* False: an option has no effect in this view; a message was printed. */
static bool all_have_effect(const hr__arguments *arguments, const hr__profile *profile, const report_request *r)
{
	for (int i = 0; options[i].name; i++) {
		if (!hr__arguments_has(arguments, i) || has_effect(i, profile, r)) continue;
		hr__complain("report: %s does nothing in the %s view; leave it out", options[i].name, r->options.view);
		return false;
	}
	return true;
}

static int write_profile(const hr__arguments *arguments, const hr__profile *profile, const report_request *r)
{
	const char *path = arguments->values[OUT], *trace = arguments->operands[0], *order = arguments->values[ORDER_BY];
	hr__export_file *file;
	if (order && !hr__profile_has_column(profile, order))
		return hr__complain("report: --order-by %s: the %s view has no such column; others, such as --view op, may have it", order, r->options.view);
	if (!all_have_effect(arguments, profile, r)) return HR__EXIT_BAD;
	if (!path) {
		hr__profile_write(profile, trace, hr__profile_to_file, stdout);
		return HR__EXIT_DONE; /* main checks whether the output was written */
	}
	if (hr__export_file_open(path, &file)) return hr__complain_last();
	return hr__export_file_close(file, hr__profile_write(profile, trace, hr__export_file_write, file)) ? hr__complain_last() : HR__EXIT_DONE;
}

static int write_page(const char *path, const hr__capture *capture, hr__progress *progress)
{
	hr__progress_phase(progress, "drawing", 1);
	hr_status status = hr__page_write(capture, path);
	hr__progress_end(progress);
	return status ? hr__complain_last() : HR__EXIT_DONE;
}

static int report(const hr__arguments *arguments, report_request *r)
{
	hr__progress progress;
	hr__capture *capture = NULL;
	hr__profile *profile = NULL;
	hr__progress_begin(&progress);
	if (!hr__profile_open(arguments->operands[0], &progress, 0.9, &capture)) return HR__EXIT_BAD;
	if (hr__arguments_has(arguments, HTML)) {
		int written = write_page(arguments->values[HTML], capture, &progress);
		hr__capture_close(capture);
		return written;
	}
	if (hr__arguments_has(arguments, STACKS) && !capture->has_stacks) {
		hr__progress_end(&progress);
		hr__complain("report: --stacks: %s has no call stacks; record with headroom run --stacks 16", arguments->operands[0]);
		hr__capture_close(capture);
		return HR__EXIT_BAD;
	}
	hr__progress_phase(&progress, "adding up", 1);
	int exit_status = HR__EXIT_BAD;
	hr_status status = hr__profile_make(capture, &r->options, r->steps, r->step_count, r->format, &profile);
	hr__progress_end(&progress);
	if (status) hr__complain_last();
	else exit_status = write_profile(arguments, profile, r);
	if (!status && exit_status == HR__EXIT_DONE && hr__profile_grows(profile)) exit_status = HR__EXIT_NO;
	hr__profile_free(profile);
	hr__capture_close(capture);
	return exit_status;
}

static int export_trace(const hr__arguments *arguments)
{
	hr__progress progress;
	hr__capture *capture = NULL;
	enum hr__export_format format;
	char quoted[HR__QUOTE_BYTES];
	const char *name = arguments->values[EXPORT];
	if (hr__export_find(name, &format)) return hr__complain("report: --export is %s: %s", hr__quote(name, strlen(name), quoted), hr_last_message());
	if (!hr__arguments_has(arguments, OUT)) return hr__complain("report: --export needs --out PATH, where to write it");
	if (!is_alone(arguments, EXPORT, OUT) || !leaves_trace(arguments, OUT)) return HR__EXIT_BAD;
	hr__progress_begin(&progress);
	if (!hr__profile_open(arguments->operands[0], &progress, 0.9, &capture)) return HR__EXIT_BAD;
	hr__progress_phase(&progress, "exporting", 1);
	hr_status status = hr__export_write(capture, format, arguments->values[OUT]);
	hr__progress_end(&progress);
	hr__capture_close(capture);
	return status ? hr__complain_last() : HR__EXIT_DONE;
}

static int run(const hr__arguments *arguments)
{
	report_request r;
	if (arguments->operand_count > 1) return hr__report_ranks(arguments, (hr__ranks_options){ HTML, OUT, JSON, WIDTH, MAX_ROWS });
	if (hr__arguments_has(arguments, EXPORT)) return export_trace(arguments);
	if (hr__arguments_has(arguments, HTML) && !is_alone(arguments, HTML, HTML)) return HR__EXIT_BAD;
	if (!leaves_trace(arguments, HTML) || !leaves_trace(arguments, OUT)) return HR__EXIT_BAD;
	int exit_status = read_request(arguments, &r) ? report(arguments, &r) : HR__EXIT_BAD;
	hr__patterns_free(&r.show);
	hr__patterns_free(&r.hide);
	return exit_status;
}

const hr__command hr__command_report = {
	.name = "report",
	.operands = "TRACE...",
	.summary = "where memory and time went: by op, by name scope, at the peak, step by step",
	.about =
		"Reads a trace that was recorded (headroom run --trace, hr_profiler_start, hr_trace_start), or one of another program (a CSV as in "
		"traces/, an RMM log, a PyTorch memory snapshot), and shows one view of it:\n\n"
		"  summary    the numbers that matter, memory over time, and what was there at the peak\n"
		"  timeline   memory over time, with what Large Model Support moved\n"
		"  op         a row for each op: time, memory at the peak, allocated, left behind\n"
		"  scope      the tree of name scopes, each with its own figures and with those inside it\n"
		"  peak       what was live at the peak, by op, scope, tag and tensor; each adds up to the peak\n"
		"  leaks      what steps leave allocated, growing ones first; the exit status is 1 when something grows\n"
		"  tensors    the largest, with their lifetimes and their longest idle times\n"
		"  steps      a row for each step\n"
		"  allocators requests, reserved and free memory and fragmentation of each allocator, in all and over time\n\n"
		"Hidden rows are added up in one row, so that a table always adds up to its total. Each device has its own tables. What "
		"the file does not have, such as steps, is said in a line.\n\n"
		"Several traces are those of the ranks of one job (torchrun, mpirun, srun): a row for each rank, the rank with the highest peak, and the steps in which "
		"Large Model Support made one rank wait longer than the others. With --html, a lane for each rank.",
	.examples = "headroom report train.hrt\n"
				"headroom report snapshot.pickle --view peak --stacks\n"
				"headroom report train.hrt --view peak --step 10\n"
				"headroom report train.hrt --view peak --stacks\n"
				"headroom report train.hrt --preset time_and_memory --max-depth 3\n"
				"headroom report train.hrt --view op --order-by micros --min-bytes 1MiB\n"
				"headroom report train.hrt --view op --show-name-regexes 'conv.*'\n"
				"headroom report train.hrt --html train.html\n"
				"headroom report train-rank*.hrt --html ranks.html\n"
				"headroom report train.hrt --view leaks && echo 'nothing grows'\n"
				"headroom report train.hrt --export xplane --out logs && xprof --logdir logs\n"
				"headroom report train.hrt --view tensors --json | jq '.reports[0].tensors'",
	.least_operands = 1,
	.most_operands = HR__OPERANDS_MAX,
	.options = options,
	.run = run,
};
