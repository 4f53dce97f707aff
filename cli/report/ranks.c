/* ranks.c - see ranks.h. */
#include "report/ranks.h"

#include <stdio.h>
#include <sys/stat.h>

#include "analysis/export/export_file.h"
#include "analysis/ranks/ranks.h"
#include "report/profile.h"

static bool takes(hr__ranks_options o, int option)
{
	return option == o.html || option == o.out || option == o.json || option == o.width || option == o.max_rows;
}

static bool check_options(const hr__arguments *arguments, hr__ranks_options o)
{
	const hr__option *options = arguments->command->options;
	for (int i = 0; options[i].name; i++) {
		if (!hr__arguments_has(arguments, i)) continue;
		bool alone = hr__arguments_has(arguments, o.html) && i != o.html;
		if (takes(o, i) && !alone) continue;
		hr__complain("report: %s is not for the ranks of a job%s; leave it out, or name one trace", options[i].name, alone ? " as a page" : "");
		return false;
	}
	return true;
}

/* Whether the file [path] is one of the traces, which must not be overwritten. */
static bool is_trace(const hr__arguments *arguments, const char *path)
{
	struct stat trace, file;
	if (!path || stat(path, &file)) return false;
	for (int i = 0; i < arguments->operand_count; i++)
		if (stat(arguments->operands[i], &trace) == 0 && trace.st_dev == file.st_dev && trace.st_ino == file.st_ino) return true;
	return false;
}

static bool read_options(const hr__arguments *arguments, hr__ranks_options o, hr_profile_options *out)
{
	uint64_t rows = 0, width;
	hr_profile_options_init(out);
	hr__profile_look(out, hr__arguments_has(arguments, o.out) ? NULL : stdout);
	width = out->width;
	if (!hr__arguments_count(arguments, o.max_rows, 1, 1000000, &rows) || !hr__arguments_count(arguments, o.width, 40, 1000, &width)) return false;
	out->max_rows = (uint32_t)rows;
	out->width = (uint32_t)width;
	return true;
}

/* Adds one trace. One of a process without a rank is left out. */
static bool add_trace(hr__ranks *ranks, const char *path, hr__progress *progress, double to)
{
	hr__capture *capture = NULL;
	if (!hr__profile_open(path, progress, to, &capture)) return false;
	hr_status status = hr__ranks_add(ranks, capture, path);
	hr__capture_close(capture);
	if (!status) return true;
	hr__progress_hide(progress);
	if (status != HR_NOT_READY) hr__complain("report: %s", hr_last_message());
	else fprintf(stderr, "headroom: report: %s; it is left out\n", hr_last_message());
	return status == HR_NOT_READY;
}

static bool read_traces(const hr__arguments *arguments, hr__ranks *ranks)
{
	hr__progress progress;
	hr__progress_begin(&progress);
	bool good = true;
	for (int i = 0; i < arguments->operand_count && good; i++)
		good = add_trace(ranks, arguments->operands[i], &progress, (double)(i + 1) / arguments->operand_count);
	hr__progress_end(&progress);
	if (good && !ranks->count) hr__complain("report: none of the traces is of a process with a rank");
	else if (good && hr__ranks_finish(ranks)) hr__complain_last();
	else return good;
	return false;
}

static hr_status write_tables(const hr__ranks *ranks, const hr_profile_options *options, hr_profile_format format, const char *path)
{
	hr__export_file *file;
	if (!path) {
		hr_status status = hr__ranks_write(ranks, options, format, hr__profile_to_file, stdout);
		return status == HR_IO ? HR_OK : status; /* main reports failed writes */
	}
	hr_status status = hr__export_file_open(path, &file);
	return status ? status : hr__export_file_close(file, hr__ranks_write(ranks, options, format, hr__export_file_write, file));
}

int hr__report_ranks(const hr__arguments *arguments, hr__ranks_options o)
{
	hr__ranks ranks = { 0 };
	hr_profile_options options;
	const char *html = arguments->values[o.html], *out = arguments->values[o.out];
	hr_profile_format format = hr__arguments_has(arguments, o.json) ? HR_PROFILE_JSON : HR_PROFILE_TEXT;
	if (!check_options(arguments, o) || !read_options(arguments, o, &options)) return HR__EXIT_BAD;
	if (is_trace(arguments, html) || is_trace(arguments, out)) return hr__complain("report: %s is one of the traces", html ? html : out);
	int exit_status = HR__EXIT_BAD;
	if (read_traces(arguments, &ranks)) {
		hr_status status = html ? hr__ranks_page(&ranks, html) : write_tables(&ranks, &options, format, out);
		exit_status = status ? hr__complain_last() : HR__EXIT_DONE;
	}
	hr__ranks_free(&ranks);
	return exit_status;
}
