/* ranks_page.c - the ranks of a job as an HTML page: a lane of memory over time for each rank, below each other on one axis.
 *
 * The lanes are SVG inside the page; there is no script. All text from recordings is escaped. Lanes are aligned by the wall clocks of their hosts. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "analysis/export/export_file.h"
#include "analysis/ranks/ranks.h"
#include "analysis/table/table.h"
#include "core/base/names.h"
#include "core/base/status.h"
#include "core/base/text/text.h"

#define LANE_WIDTH 1000.0
#define LANE_HEIGHT 72.0
#define LIMIT_SHOWN_BELOW 4u /* times the highest peak: a limit far above it would leave a flat line of the memory */
#define MARKS_MAX 500u /* steps that a lane marks; with more of them, only slow ones are */

static const char style[] =
	"body { font: 14px/1.45 system-ui, sans-serif; margin: 24px; max-width: 1240px; color: #1f2328; background: #fff; }\n"
	"table { border-collapse: collapse; margin: 12px 0; font-variant-numeric: tabular-nums; }\n"
	"td, th { padding: 2px 12px 2px 0; text-align: right; } th { color: #59636e; font-weight: 600; }\n"
	"td:last-child, th:last-child { text-align: left; }\n"
	".lane { display: flex; gap: 12px; align-items: center; border-top: 1px solid #d8dee4; padding: 4px 0; }\n"
	".lane b { width: 72px; } .lane span { width: 110px; color: #59636e; } .lane.highest b { color: #bc4c00; }\n"
	"svg { flex: 1; height: 72px; } .memory { fill: #54aeff66; stroke: #0969da; stroke-width: 1; vector-effect: non-scaling-stroke; }\n"
	".limit { stroke: #cf222e; stroke-dasharray: 4 3; vector-effect: non-scaling-stroke; } .step { stroke: #d8dee4; vector-effect: non-scaling-stroke; }\n"
	".slow { fill: #fb850066; } .note { color: #59636e; }\n"
	"@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117; } .lane { border-color: #30363d; } .step { stroke: #30363d; } }\n";

/* ---- text ---- */

/* Untrusted text: printable, and without characters of markup. */
static void put_text(hr__export_file *to, const char *text)
{
	char printable[HR__CELL_BYTES_MAX];
	for (const char *at = hr__text_format(text, printable); *at; at++) {
		switch (*at) {
		case '<': hr__export_file_print(to, "&lt;"); break;
		case '>': hr__export_file_print(to, "&gt;"); break;
		case '&': hr__export_file_print(to, "&amp;"); break;
		case '"': hr__export_file_print(to, "&quot;"); break;
		default: hr__export_file_write(to, at, 1); break;
		}
	}
}

static void put_size(hr__export_file *to, uint64_t bytes)
{
	char text[32];
	hr__export_file_print(to, "%s", hr__format_size(bytes, text, sizeof text));
}

/* ---- lanes ---- */

typedef struct lane_axes {
	uint64_t begin_ns, span_ns; /* wall clock */
	uint64_t bytes;             /* the top of every lane */
} lane_axes;

static lane_axes axes_of(const hr__ranks *ranks)
{
	lane_axes axes = { UINT64_MAX, 1, 1 };
	uint64_t end = 0, peak = ranks->runs[ranks->highest]->peak_bytes;
	for (uint32_t i = 0; i < ranks->count; i++) {
		const hr__rank_run *run = ranks->runs[i];
		uint64_t limit = run->limit_bytes / LIMIT_SHOWN_BELOW < peak ? run->limit_bytes : 0, top = limit > peak ? limit : peak;
		if (run->start_wall_ns < axes.begin_ns) axes.begin_ns = run->start_wall_ns;
		if (run->start_wall_ns + run->end_ns > end) end = run->start_wall_ns + run->end_ns;
		if (top > axes.bytes) axes.bytes = top;
	}
	if (end > axes.begin_ns) axes.span_ns = end - axes.begin_ns;
	return axes;
}

static double across(const lane_axes *axes, const hr__rank_run *run, uint64_t ns)
{
	return LANE_WIDTH * ((double)(run->start_wall_ns - axes->begin_ns) + (double)ns) / (double)axes->span_ns;
}

static double down(const lane_axes *axes, uint64_t bytes)
{
	return LANE_HEIGHT * (1.0 - (double)bytes / (double)axes->bytes);
}

static void put_steps(hr__export_file *to, const hr__rank_run *run, const lane_axes *axes)
{
	uint32_t marks = 0;
	for (uint32_t i = 0; i < run->step_count && marks < MARKS_MAX; i++) {
		const hr__rank_step *step = &run->steps[i];
		double left = across(axes, run, step->begin_ns);
		if (step->straggler)
			hr__export_file_print(to, "<rect class=\"slow\" x=\"%.2f\" y=\"0\" width=\"%.2f\" height=\"%g\"><title>step %" PRIu64 ": %.3f ms behind the median</title></rect>\n",
			                      left, across(axes, run, step->begin_ns + step->ns) - left, LANE_HEIGHT, step->number, (double)step->lag_ns / 1e6);
		else if (run->step_count <= MARKS_MAX) hr__export_file_print(to, "<path class=\"step\" d=\"M%.2f 0V%g\"/>\n", left, LANE_HEIGHT);
		else continue;
		marks++;
	}
}

static void put_memory(hr__export_file *to, const hr__rank_run *run, const lane_axes *axes)
{
	hr__export_file_print(to, "<path class=\"memory\" d=\"M%.2f %g", across(axes, run, 0), LANE_HEIGHT);
	for (uint32_t i = 0; i < HR__RANKS_LANE; i++)
		hr__export_file_print(to, "L%.2f %.2fH%.2f", across(axes, run, run->end_ns / HR__RANKS_LANE * i), down(axes, run->lane[i]),
		                      across(axes, run, run->end_ns / HR__RANKS_LANE * (i + 1)));
	hr__export_file_print(to, "V%gZ\"/>\n", LANE_HEIGHT);
	if (run->limit_bytes && run->limit_bytes <= axes->bytes)
		hr__export_file_print(to, "<path class=\"limit\" d=\"M%.2f %.2fH%.2f\"/>\n", across(axes, run, 0), down(axes, run->limit_bytes), across(axes, run, run->end_ns));
}

static void put_lane(hr__export_file *to, const hr__rank_run *run, const lane_axes *axes, bool highest)
{
	hr__export_file_print(to, "<div class=\"lane%s\" id=\"rank-%u\"><b>rank %u</b><span>", highest ? " highest" : "", run->rank.number, run->rank.number);
	put_size(to, run->peak_bytes);
	hr__export_file_print(to, "<br>");
	put_text(to, run->device);
	hr__export_file_print(to, "</span><svg viewBox=\"0 0 %g %g\" preserveAspectRatio=\"none\" role=\"img\"><title>rank %u, ", LANE_WIDTH, LANE_HEIGHT, run->rank.number);
	put_text(to, run->path);
	hr__export_file_print(to, "</title>\n");
	put_steps(to, run, axes);
	put_memory(to, run, axes);
	hr__export_file_print(to, "</svg></div>\n");
}

/* ---- the table ---- */

static void put_row(hr__export_file *to, const hr__rank_run *run)
{
	hr__export_file_print(to, "<tr><td>%u<td>", run->rank.number);
	put_size(to, run->peak_bytes);
	hr__export_file_print(to, "<td>");
	if (run->limit_bytes) put_size(to, run->limit_bytes);
	else hr__export_file_print(to, "none");
	hr__export_file_print(to, "<td>%" PRIu64 "<td>", run->refused);
	put_size(to, run->out_bytes);
	hr__export_file_print(to, "<td>");
	put_size(to, run->in_bytes);
	hr__export_file_print(to, "<td>%u<td>%.3f ms<td>%.3f ms<td>%" PRIu64 "<td>%.3f ms<td>", run->step_count, (double)run->median_ns / 1e6, (double)run->wait_ns / 1e6,
	                      run->stragglers, (double)run->lag_ns / 1e6);
	put_text(to, run->peak_op ? hr_name_text(run->peak_op) : "");
	hr__export_file_print(to, "<td>");
	put_text(to, run->rank.host);
	hr__export_file_print(to, "</tr>\n");
}

static void put_page(hr__export_file *to, const hr__ranks *ranks)
{
	lane_axes axes = axes_of(ranks);
	const hr__rank_run *highest = ranks->runs[ranks->highest];
	hr__export_file_print(to, "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Ranks of a job</title>\n<style>\n");
	hr__export_file_write(to, style, sizeof style - 1);
	hr__export_file_print(to, "</style>\n");
	hr__export_file_print(to, "<h1>%u of %u ranks, %.3f s</h1>\n<p>The highest peak is that of <a href=\"#rank-%u\">rank %u</a>: ", ranks->count, highest->rank.count,
	                      (double)axes.span_ns / 1e9, highest->rank.number, highest->rank.number);
	put_size(to, highest->peak_bytes);
	hr__export_file_print(to, " on ");
	put_text(to, highest->device);
	hr__export_file_print(to, ".</p>\n<p class=\"note\">Bytes in use over time; every lane has the same scale, up to ");
	put_size(to, axes.bytes);
	hr__export_file_print(to, ". Dashed: the limit. Orange: steps that waited for memory longer than the median of the ranks.</p>\n");
	for (uint32_t i = 0; i < ranks->count; i++) put_lane(to, ranks->runs[i], &axes, i == ranks->highest);
	hr__export_file_print(to, "<table><tr><th>rank<th>peak<th>limit<th>refused<th>moved out<th>moved in<th>steps<th>median step<th>waited<th>slow steps<th>lag"
	                          "<th>most at the peak<th>host</tr>\n");
	for (uint32_t i = 0; i < ranks->count; i++) put_row(to, ranks->runs[i]);
	hr__export_file_print(to, "</table>\n</html>\n");
}

hr_status hr__ranks_page(const hr__ranks *ranks, const char *path)
{
	hr__export_file *file;
	if (!path || !*path) return hr__fail(HR_INVALID_ARGUMENT, "a page needs a path to write to");
	hr_status status = hr__export_file_open(path, &file);
	if (status) return status;
	put_page(file, ranks);
	return hr__export_file_close(file, HR_OK);
}
