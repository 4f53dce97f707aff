/* oom.c - `headroom oom`: prints the text of a saved out-of-memory report, in colour on a terminal.
 *
 * The file is not trusted: its size is limited, and characters of its text that a terminal would interpret are shown as \xNN. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "core/base/status.h"
#include "core/memory/oom/report_write.h"
#include "core/os/os.h"
#include "analysis/import/quote.h"
#include "terminal/term.h"

enum { JSON };

static const hr__option options[] = {
	[JSON] = { "--json", NULL, "print the whole report as JSON, laid out to be read" },
	{ NULL, NULL, NULL },
};

#ifndef HR_HAVE_JANSSON

static hr_status print_report(FILE *file, bool as_json)
{
	(void)file, (void)as_json;
	return hr__fail(HR_UNSUPPORTED, "it is JSON, and this program was built without jansson; install libjansson-dev and build again");
}

#else

#include <jansson.h>

#define FILE_BYTES_MAX (UINT64_C(256) << 20)

/* ---- reading ---- */

struct oom_input {
	FILE *file;
	uint64_t bytes;
	char first;
	int error;
};

static size_t read_part(void *buffer, size_t capacity, void *context)
{
	struct oom_input *input = context;
	size_t got = input->bytes > FILE_BYTES_MAX ? 0 : fread(buffer, 1, capacity, input->file);
	if (ferror(input->file)) input->error = errno;
	if (input->bytes == 0 && got > 0) input->first = *(const char *)buffer;
	input->bytes += got;
	return got;
}

static hr_status fail_to_parse(const struct oom_input *input, const json_error_t *error)
{
	char quoted[HR__QUOTE_BYTES];
	if (input->error) return hr__fail(HR_IO, "cannot be read: %s", hr__os_error(input->error));
	if (input->bytes == 0) return hr__fail(HR_BAD_FORMAT, "it is empty; expected an out-of-memory report as JSON");
	if (input->bytes > FILE_BYTES_MAX) return hr__fail(HR_BAD_FORMAT, "larger than 256 MiB; is this an out-of-memory report?");
	if (input->first == '{' && json_error_code(error) == json_error_premature_end_of_input)
		return hr__fail(HR_TRUNCATED, "ends in the middle, after %llu bytes; it was cut: get it again", (unsigned long long)input->bytes);
	return hr__fail(HR_BAD_FORMAT, "expected an out-of-memory report as JSON; byte %d: %s", error->position,
	                hr__quote(error->text, strlen(error->text), quoted));
}

static hr_status check_kind(const json_t *report)
{
	const char *format = json_string_value(json_object_get(report, "format"));
	json_int_t version = json_integer_value(json_object_get(report, "version"));
	if (json_is_array(report))
		return hr__fail(HR_BAD_FORMAT, "it is a list, such as the log of a report alone; expected the report as a whole: {...}");
	if (!format || strcmp(format, HR__REPORT_FORMAT) != 0)
		return hr__fail(HR_BAD_FORMAT, "it is JSON, but no out-of-memory report: there is no \"format\": \"" HR__REPORT_FORMAT "\"");
	if (version > HR__REPORT_VERSION)
		return hr__fail(HR_TOO_NEW, "it has version %lld of the format, and this program reads up to %u; use a newer headroom",
		                (long long)version, HR__REPORT_VERSION);
	if (!json_string_value(json_object_get(report, "text"))) return hr__fail(HR_BAD_FORMAT, "text: is missing");
	return HR_OK;
}

/* ---- printing ---- */

/* Prints the first [length] bytes of [line] in [style], and the rest plain. */
static void print_styled(char *line, size_t length, hr__style_name style)
{
	char kept = line[length];
	line[length] = 0;
	fputs(hr__style(stdout, style), stdout);
	hr__print_quoted(stdout, line);
	fputs(hr__style(stdout, HR__STYLE_PLAIN), stdout);
	line[length] = kept;
	hr__print_quoted(stdout, line + length);
}

static void print_map(const char *line)
{
	static const char cells[] = "#c.+";
	static const hr__style_name styles[] = { HR__STYLE_IN_USE, HR__STYLE_CACHED, HR__STYLE_FREE, HR__STYLE_SMALL };
	for (; *line; line++) {
		const char *cell = strchr(cells, *line);
		print_styled((char[]){ *line, 0 }, 1, cell ? styles[cell - cells] : HR__STYLE_PLAIN);
	}
}

static void print_line(char *line, bool begins_part)
{
	static const char headline[] = "Out of memory:";
	if (strncmp(line, " |", 2) == 0) print_map(line);
	else if (strncmp(line, headline, strlen(headline)) == 0) print_styled(line, strlen(headline), HR__STYLE_ERROR);
	else if (strstr(line, " FAILED ")) print_styled(line, strlen(line), HR__STYLE_ERROR);
	else print_styled(line, begins_part && *line != ' ' ? strcspn(line, ",:") : 0, HR__STYLE_HEADING);
	putchar('\n');
}

static void print_text(char *text)
{
	bool begins_part = false;
	for (char *line; (line = strsep(&text, "\n")) != NULL && (text || *line);) {
		print_line(line, begins_part);
		begins_part = !*line;
	}
}

static hr_status print_report(FILE *file, bool as_json)
{
	struct oom_input input = { .file = file };
	json_error_t error;
	json_t *report = json_load_callback(read_part, &input, JSON_REJECT_DUPLICATES, &error);
	hr_status status = report ? check_kind(report) : fail_to_parse(&input, &error);
	char *text = status ? NULL : strdup(json_string_value(json_object_get(report, "text")));
	if (!status && !text) status = hr__fail(HR_NO_HOST_MEMORY, "no memory for the text of the report");
	/* ASCII, so that no name can contain characters that a terminal interprets. */
	if (!status && as_json) {
		json_dumpf(report, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
		putchar('\n'); /* main reports failed writes */
	} else if (!status) {
		print_text(text);
	}
	free(text);
	json_decref(report);
	return status;
}

#endif

static int run(const hr__arguments *arguments)
{
	const char *path = arguments->operands[0];
	bool is_stdin = strcmp(path, "-") == 0;
	FILE *file = is_stdin ? stdin : fopen(path, "rb");
	hr_status status = file ? print_report(file, hr__arguments_has(arguments, JSON))
	                        : hr__fail(HR_IO, "cannot be opened: %s", hr__os_error(errno));
	if (file && !is_stdin) fclose(file);
	if (status) hr__fail_in(status, "%s", is_stdin ? "standard input" : path);
	return status ? hr__complain_last() : HR__EXIT_DONE;
}

const hr__command hr__command_oom = {
	.name = "oom",
	.operands = "REPORT",
	.summary = "a saved report on memory that ran out: what holds it, what it looks like, what would help",
	.about =
		"Prints an out-of-memory report that was saved as JSON; \"-\" is standard input. A program that uses Headroom saves one "
		"for each request that fails when HEADROOM_OOM_REPORT=/tmp/oom-%p.json is in its environment, or when it calls "
		"hr_oom_save.\n\n"
		"First comes what was asked for and what would make it fit, then what is full, the numbers, what holds memory by op, "
		"scope and tag, the largest blocks, the sizes of all blocks, a map of each region, and the last operations before the "
		"failure. In a map each character stands for the same number of bytes and shows what most of them are: # in use, c "
		"cached, . free, + where nothing is half of them, a space where no memory is mapped. Names are those that the program "
		"gave; control characters in them are shown as \\xNN.",
	.examples = "HEADROOM_OOM_REPORT=/tmp/oom-%p.json ./train\n"
				"headroom oom /tmp/oom-4711.json\n"
				"headroom oom report.json --json | jq '.verdict, .log[-1]'",
	.least_operands = 1,
	.most_operands = 1,
	.options = options,
	.run = run,
};
