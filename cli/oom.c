/* oom.c - `headroom oom`: prints a saved out-of-memory report, formatted for this terminal. */
#include <stdio.h>

#include "command.h"
#include "core/memory/oom/report_write.h"
#include "oom.h"
#include "terminal/term.h"

enum { WIDTH, JSON };

static const hr__option options[] = {
	[WIDTH] = { "--width", "COLUMNS", "draw for that many columns, 40 to 1000; otherwise for those of the terminal, or 100" },
	[JSON] = { "--json", NULL, "print the report as JSON again, laid out to be read" },
	{ NULL, NULL, NULL },
};

/* Ignores failed writes: main reports them, with the reason, when the command ends. */
static bool to_stdout(void *context, const char *bytes, size_t length)
{
	(void)context;
	fwrite(bytes, 1, length, stdout);
	return true;
}

static void draw(const hr__report *report, uint32_t width)
{
	const char *const styles[HR__REPORT_STYLES] = {
		[HR__REPORT_PLAIN] = hr__style(stdout, HR__STYLE_PLAIN),     [HR__REPORT_STRONG] = hr__style(stdout, HR__STYLE_STRONG),
		[HR__REPORT_HEADING] = hr__style(stdout, HR__STYLE_HEADING), [HR__REPORT_ERROR] = hr__style(stdout, HR__STYLE_ERROR),
		[HR__REPORT_DIM] = hr__style(stdout, HR__STYLE_DIM),         [HR__REPORT_IN_USE] = hr__style(stdout, HR__STYLE_IN_USE),
		[HR__REPORT_CACHED] = hr__style(stdout, HR__STYLE_CACHED),   [HR__REPORT_FREE] = hr__style(stdout, HR__STYLE_FREE),
		[HR__REPORT_MIXED] = hr__style(stdout, HR__STYLE_SMALL),
	};
	hr__report_draw(report, &(hr__report_look){ .width = width, .styles = styles }, to_stdout, NULL);
}

static int run(const hr__arguments *arguments)
{
	uint64_t width = (uint64_t)hr__term_width();
	hr__oom_saved *saved;
	hr__json json;
	if (!hr__arguments_count(arguments, WIDTH, HR__REPORT_WIDTH_LEAST, HR__REPORT_WIDTH_MOST, &width)) return HR__EXIT_BAD;
	if (hr__oom_read_file(arguments->operands[0], &saved) != HR_OK) return hr__complain_last();
	if (hr__arguments_has(arguments, JSON)) {
		hr__json_init(&json, to_stdout, NULL);
		json.pretty = true;
		hr__report_write(&saved->report, &json);
		hr__json_finish(&json);
		putchar('\n');
	} else {
		draw(&saved->report, (uint32_t)width);
	}
	hr__oom_free(saved);
	return HR__EXIT_DONE;
}

const hr__command hr__command_oom = {
	.name = "oom",
	.operands = "REPORT",
	.summary = "a saved report on memory that ran out: what holds it, what it looks like, what would help",
	.about =
		"Draws an out-of-memory report that was saved as JSON; \"-\" is standard input. A program that uses Headroom saves one "
		"for each request that fails when HEADROOM_OOM_REPORT=/tmp/oom-%p.json is in its environment, or when it calls "
		"hr_oom_save.\n\n"
		"First comes what was asked for and what would make it fit, then what is full, the numbers, what holds memory by op, "
		"scope and tag, the largest blocks, the sizes of all blocks, a map of each region, and the last operations before the "
		"failure. In a map each character stands for the same number of bytes and shows what most of them are: # in use, c "
		"cached, . free, + where nothing is half of them, a space where no memory is mapped. Names are those that the program "
		"gave; control characters in them are shown as \\xNN.",
	.examples = "HEADROOM_OOM_REPORT=/tmp/oom-%p.json ./train\n"
				"headroom oom /tmp/oom-4711.json\n"
				"headroom oom /tmp/oom-4711.json --width 200 | less\n"
				"headroom oom report.json --json | jq '.verdict, .log[-1]'",
	.least_operands = 1,
	.most_operands = 1,
	.options = options,
	.run = run,
};
