/* diff.c - `headroom diff`: what changed between two traces, or between two steps. */
#include "report/profile.h"
#include "analysis/view/view.h"

enum { STEP_A, STEP_B, DEVICE, SCOPE, ORDER_BY, MAX_ROWS, SHOW, HIDE, WIDTH, JSON };

static const hr__option options[] = {
	[STEP_A] = { "--step-a", "N", "only that step of A; of several with that number the first" },
	[STEP_B] = { "--step-b", "N", "only that step of B; of several with that number the last" },
	[DEVICE] = { "--device", "NAME", "only that device, GPU:0, or all of a kind, GPU" },
	[SCOPE] = { "--name-scope", "SCOPE", "only what belongs to that name scope and to those inside of it" },
	[ORDER_BY] = { "--order-by", "COLUMN", "sort by that column, as --json calls it; default at_peak_change, or, where nothing changed at the peak, "
	                                       "bytes_change or micros_change; the largest change first" },
	[MAX_ROWS] = { "--max-rows", "N", "rows of a table; default 20, with --json 1000" },
	[SHOW] = { "--show-name-regexes", "LIST", "show rows whose whole name matches one of these POSIX extended regular expressions" },
	[HIDE] = { "--hide-name-regexes", "LIST", "hide rows whose whole name matches one of these" },
	[WIDTH] = { "--width", "COLUMNS", "40 to 1000; otherwise those of the terminal, or 100" },
	[JSON] = { "--json", NULL, "print one JSON object" },
	{ NULL, NULL, NULL },
};

static bool read_step(const hr__arguments *arguments, int option, int64_t *out)
{
	uint64_t number = 0;
	*out = -1;
	if (!hr__arguments_has(arguments, option)) return true;
	if (!hr__arguments_count(arguments, option, 0, INT64_MAX, &number)) return false;
	*out = (int64_t)number;
	return true;
}

static bool read_options(const hr__arguments *arguments, hr_profile_options *o, hr__patterns *show, hr__patterns *hide)
{
	hr_profile_options_init(o);
	hr__profile_look(o, stdout);
	uint64_t rows = 0, width = o->width;
	if (!hr__arguments_count(arguments, MAX_ROWS, 1, 1000000, &rows) || !hr__arguments_count(arguments, WIDTH, 40, 1000, &width) ||
	    !hr__patterns_split(arguments->values[SHOW], show) || !hr__patterns_split(arguments->values[HIDE], hide))
		return false;
	o->max_rows = (uint32_t)rows;
	o->width = (uint32_t)width;
	o->device = arguments->values[DEVICE];
	o->name_scope = arguments->values[SCOPE];
	o->order_by = arguments->values[ORDER_BY];
	o->show_name_regexes = show->list;
	o->hide_name_regexes = hide->list;
	return true;
}

static int diff(const hr__arguments *arguments, const hr_profile_options *o, int64_t step_a, int64_t step_b)
{
	hr__progress progress;
	hr__capture *a = NULL, *b = NULL;
	hr_profile_format format = hr__arguments_has(arguments, JSON) ? HR_PROFILE_JSON : HR_PROFILE_TEXT;
	hr__progress_begin(&progress);
	bool opened = hr__profile_open(arguments->operands[0], &progress, 0.5, &a) && hr__profile_open(arguments->operands[1], &progress, 1, &b);
	hr__progress_end(&progress);
	hr_status status = opened ? hr__profile_diff(a, b, o, step_a, step_b, format, hr__profile_to_file, stdout) : HR_OK;
	if (status && status != HR_IO) hr__complain_last(); /* main reports failed writes */
	hr__capture_close(a);
	hr__capture_close(b);
	return opened && (!status || status == HR_IO) ? HR__EXIT_DONE : HR__EXIT_BAD;
}

static int run(const hr__arguments *arguments)
{
	hr_profile_options o;
	hr__patterns show = { 0 }, hide = { 0 };
	int64_t step_a, step_b;
	bool right = read_step(arguments, STEP_A, &step_a) && read_step(arguments, STEP_B, &step_b) && read_options(arguments, &o, &show, &hide);
	int exit_status = right ? diff(arguments, &o, step_a, step_b) : HR__EXIT_BAD;
	hr__patterns_free(&show);
	hr__patterns_free(&hide);
	return exit_status;
}

const hr__command hr__command_diff = {
	.name = "diff",
	.operands = "A B",
	.summary = "what changed between two traces, or between two steps",
	.about = "Compares two traces of any format that report reads, device by device: the peak, what is in use at the end, time, and what each op and each name scope had at the peak. "
			 "The changes of all rows add up to the change of the peak. With the same trace twice and two steps, it compares these.",
	.examples = "headroom diff before.hrt after.hrt\n"
				"headroom diff train.hrt train.hrt --step-a 2 --step-b 90\n"
				"headroom diff a.hrt b.hrt --json | jq '.reports[0].memory.rows[0].change'",
	.least_operands = 2,
	.most_operands = 2,
	.options = options,
	.run = run,
};
