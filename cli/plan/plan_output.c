/* plan_output.c - output of `headroom plan`: text, or one JSON object. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/base/text/json.h"
#include "core/base/text/text.h"
#include "terminal/lines.h"
#include "terminal/output.h"
#include "plan/plan.h"
#include "analysis/import/quote.h"

/* ---- JSON ---- */

static void field_uint(hr__json *json, const char *key, uint64_t value, bool known)
{
	hr__json_key(json, key);
	if (known) hr__json_uint(json, value);
	else hr__json_null(json);
}

static void field_ms(hr__json *json, const char *key, uint64_t ns, bool known)
{
	hr__json_key(json, key);
	if (known) hr__json_double(json, (double)ns / 1e6, 6);
	else hr__json_null(json);
}

static void field_bool(hr__json *json, const char *key, bool value, bool known)
{
	hr__json_key(json, key);
	if (known) hr__json_bool(json, value);
	else hr__json_null(json);
}

/* 0 for a step whose ops take no time. */
static double slowdown_of(const hr__plan_report *report, const hr__forecast *forecast)
{
	return report->facts.plain_ns ? (double)forecast->step_ns / (double)report->facts.plain_ns : 0;
}

static bool moves_nothing(const hr__forecast *forecast)
{
	return forecast->fits && forecast->evictions == 0 && forecast->bytes_in == 0;
}

static void write_stats(hr__json *json, const hr_lms_stats *stats)
{
	hr__json_key(json, "stats");
	hr__json_object(json);
#define STATS_FIELD(name, text) hr__json_field_int(json, #name, stats->name);
	HR_LMS_STATS_TABLE(STATS_FIELD)
#undef STATS_FIELD
	hr__json_end_object(json);
}

/* The fields of one limit; all null when [forecast] is NULL. */
static void write_forecast(hr__json *json, const hr__plan_report *report, const hr__forecast *forecast)
{
	bool known = forecast && forecast->fits, has_time = known && report->facts.plain_ns > 0;
	field_uint(json, "bytes_out", known ? forecast->bytes_out : 0, known);
	field_uint(json, "bytes_in", known ? forecast->bytes_in : 0, known);
	field_ms(json, "step_ms_predicted", known ? forecast->step_ns : 0, known);
	field_ms(json, "bound_ms", known ? forecast->bound_ns : 0, known);
	hr__json_key(json, "slowdown");
	if (has_time) hr__json_double(json, slowdown_of(report, forecast), 6);
	else hr__json_null(json);
	field_bool(json, "fits_without_moving", forecast && moves_nothing(forecast), forecast != NULL);
}

static void write_slowdown(hr__json *json, const hr__plan_report *report, const hr__outlook_step *step)
{
	hr__json_key(json, "slowdown");
	if (step->fits && report->facts.plain_ns) hr__json_double(json, (double)step->step_ns / (double)report->facts.plain_ns, 6);
	else hr__json_null(json);
}

static void write_again(hr__json *json, const hr__outlook_step *step)
{
	field_ms(json, "again_ms", step->again_ns, step->fits);
	field_uint(json, "again_ops", step->again_ops, step->fits);
	field_uint(json, "drops", step->dropped, step->fits);
	field_uint(json, "bytes_out", step->bytes_out, step->fits);
	field_uint(json, "bytes_in", step->bytes_in, step->fits);
}

/* All that is about running ops again; null when [outlook] is NULL. */
static void write_outlook(hr__json *json, const hr__plan_report *report, const hr__outlook *outlook)
{
	static const char *const keys[HR__OUTLOOK_MEANS] = { "step_ms_moving", "step_ms_recomputing", "step_ms_both" };
	hr__json_key(json, "recompute");
	if (!outlook) {
		hr__json_null(json);
		return;
	}
	const hr__outlook_step *both = &outlook->by[HR__BY_BOTH];
	hr__json_object(json);
	hr__json_field_string(json, "predicted_by", "planner model"); /* all but what was played */
	for (int i = 0; i < HR__OUTLOOK_MEANS; i++) field_ms(json, keys[i], outlook->by[i].step_ns, outlook->by[i].fits);
	write_slowdown(json, report, both);
	write_again(json, both);
	hr__json_key(json, "played");
	hr__json_object(json);
	field_ms(json, "step_ms", outlook->played.step_ns, outlook->played.fits);
	write_slowdown(json, report, &outlook->played);
	write_again(json, &outlook->played);
	hr__json_end_object(json);
	hr__json_end_object(json);
}

static void write_curve(hr__json *json, const hr__plan_report *report)
{
	hr__json_key(json, "curve");
	hr__json_array(json);
	for (uint32_t i = 0; i < HR__CURVE_POINTS; i++) {
		hr__json_object(json);
		hr__json_field_uint(json, "limit_bytes", report->limits[i]);
		hr__json_field_bool(json, "fits", report->curve[i].fits);
		write_forecast(json, report, &report->curve[i]);
		write_outlook(json, report, report->recompute ? &report->outlooks[i] : NULL);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
}

void hr__plan_report_json(const hr__plan_report *report)
{
	hr__json json;
	bool planned = report->setup.part > 0, limited = report->setup.limit > 0;
	const hr__forecast *forecast = planned && limited ? &report->forecast : NULL;
	hr__output_json_begin(&json);
	hr__json_object(&json);
	field_bool(&json, "fits", hr__plan_report_fits(report), limited);
	hr__json_field_uint(&json, "peak_bytes", planned ? report->facts.peak_bytes : report->schedule.peak_bytes);
	field_uint(&json, "limit_bytes", report->setup.limit, limited);
	field_uint(&json, "least_limit_bytes", report->least_limit, planned && report->least_limit);
	field_uint(&json, "working_set_bytes", report->facts.working_set_bytes, planned);
	hr__json_field_string(&json, "policy", report->setup.policy);
	field_ms(&json, "step_ms_plain", report->facts.plain_ns, planned);
	write_forecast(&json, report, forecast);
	write_outlook(&json, report, forecast && report->recompute ? &report->outlook : NULL);
	field_uint(&json, "step", planned ? report->schedule.parts[report->setup.part].number : 0, planned);
	hr__json_field_uint(&json, "link_bytes_per_s", report->setup.link);
	if (forecast) {
		write_stats(&json, &forecast->stats);
	} else {
		hr__json_key(&json, "stats");
		hr__json_null(&json);
	}
	if (planned && !limited) write_curve(&json, report);
	hr__json_end_object(&json);
	hr__output_json_end(&json);
}

/* ---- text ---- */

#define LISTED_TENSORS 10u
#define LISTED_ADVICE 8u
#define NAME_COLUMNS 44
#define NAME_COLUMNS_LEAST 12
#define TENSOR_INDENT 16
#define CURVE_COLUMNS 74 /* without the bar */
#define BAR_CELLS 30

static const char *size_text(uint64_t bytes, char out[16])
{
	return hr__format_size(bytes, out, 16);
}

static const char *count_text(uint64_t count, char out[32])
{
	return hr__format_count(count, out, 32);
}

/* A name from the trace, made safe to print. */
static const char *name_text(hr_name name, char out[HR__QUOTE_BYTES])
{
	const char *text = hr_name_text(name);
	size_t length = strlen(text);
	if (!length) return "(no name)";
	hr__quote(text, length, out);
	/* Strip the quotes. */
	size_t quoted = strlen(out);
	memmove(out, out + 1, quoted - 2);
	out[quoted - 2] = 0;
	return out;
}

static double share_of_peak(const hr__plan_report *report, uint64_t bytes)
{
	uint64_t peak = report->setup.part ? report->facts.peak_bytes : report->schedule.peak_bytes;
	return peak ? (double)bytes / (double)peak : 0;
}

static void print_trace(const hr__plan_report *report)
{
	hr__line_begin("trace");
	printf("%s (%s%s)\n", report->path, hr__trace_format_name(report->trace.format), report->trace.gzip ? ", gzip" : "");
}

static void print_notes(const hr__plan_report *report)
{
	char notes[2048];
	hr__trace_facts_notes(&report->trace, HR__FACTS_PLAN, notes, sizeof notes);
	for (char *line = notes, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
		hr__line_begin("note");
		hr__line_add("%.*s\n", (int)(end - line), line);
	}
	if (!report->schedule.unmarked) return;
	hr__line_begin("note");
	hr__line_add("no steps are marked: what comes from the first op on is taken for one step\n");
}

/* The planned step, and why it was chosen. */
static void print_step(const hr__plan_report *report)
{
	const hr__schedule *schedule = &report->schedule;
	const hr__schedule_part *chosen = &schedule->parts[report->setup.part];
	char count[32];
	uint64_t least = UINT64_MAX, most = 0;
	uint32_t others = 0, hindered = 0;
	for (uint32_t i = 1; i < schedule->part_count; i++) {
		hindered += schedule->parts[i].hindered && schedule->parts[i].op_count;
		if (!hr__schedule_is_candidate(schedule, i)) continue;
		if (schedule->parts[i].ns < least) least = schedule->parts[i].ns;
		if (schedule->parts[i].ns > most) most = schedule->parts[i].ns;
		others++;
	}
	hr__line_begin("step");
	hr__line_add("number %llu, %s op%s in %.2f ms", (unsigned long long)chosen->number, count_text(chosen->op_count, count),
	       hr__plural(chosen->op_count), (double)chosen->ns / 1e6);
	if (report->step_given) hr__line_add("; as asked for");
	else if (others > 1 && least != most)
		hr__line_add("; in the middle of %u that take %.2f to %.2f ms (the first left aside)", others, (double)least / 1e6,
		       (double)most / 1e6);
	hr__line_add("\n");
	if (report->step_given || !schedule->has_unhindered || !hindered) return;
	hr__line_begin("");
	hr__line_add("%s steps were left aside in which tensors moved or requests were refused\n", count_text(hindered, count));
}

static void print_op(const hr__plan_report *report, uint32_t part, uint32_t op)
{
	char name[HR__QUOTE_BYTES];
	if (op == HR__SCHEDULE_NONE) hr__line_add("a tensor that is filled outside of ops");
	else
		hr__line_add("op %s%s%s (number %u)", hr__style(stdout, HR__STYLE_STRONG), name_text(report->schedule.ops[op].name, name),
		       hr__style(stdout, HR__STYLE_PLAIN), op);
	if (part == 0) hr__line_add(" before the first step");
	else hr__line_add(" in step %llu", (unsigned long long)report->schedule.parts[part].number);
}

static void print_memory(const hr__plan_report *report)
{
	char human[16], digits[32], page[16];
	const hr__forecast_facts *facts = &report->facts;
	hr__line_begin("peak");
	hr__line_add("%s live at once in that step (%s bytes)\n", size_text(facts->peak_bytes, human), count_text(facts->peak_bytes, digits));
	hr__line_begin("largest op");
	print_op(report, facts->working_set_part, facts->working_set_op);
	hr__line_add(" needs %s at once\n", size_text(facts->working_set_bytes, human));
	hr__line_begin("least limit");
	if (report->least_limit)
		hr__line_add("%s, %.3f times the peak, in pages of %s\n", size_text(report->least_limit, human), share_of_peak(report, report->least_limit),
		       size_text(report->setup.page, page));
	else hr__line_add("none was found: the host has no room for what would have to move\n");
}

/* ---- verdict ---- */

static void print_verdict(const hr__plan_report *report, bool fits, const char *how)
{
	char human[16];
	hr__line_begin("limit");
	hr__line_add("%s, %.3f times the peak: %s%s%s%s\n", size_text(report->setup.limit, human), share_of_peak(report, report->setup.limit),
	       hr__style(stdout, fits ? HR__STYLE_GOOD : HR__STYLE_ERROR), fits ? "it fits" : "it does not fit",
	       hr__style(stdout, HR__STYLE_PLAIN), how);
}

static const char *verdict_detail(const hr__plan_report *report)
{
	const hr__forecast *forecast = &report->forecast;
	if (forecast->fits) return moves_nothing(forecast) ? " and nothing has to move" : " with tensors moving";
	return report->facts.working_set_bytes > hr__align_down(report->setup.limit, report->setup.page) ? ", whatever is moved" : "";
}

/* Size on the device. Cannot overflow: a schedule has no tensor above 2^48 bytes. */
static uint64_t rounded(uint64_t bytes)
{
	(void)hr__align_up(bytes, HR__FORECAST_GRANULARITY, &bytes);
	return bytes;
}

/* Columns for the name of an op, with [used] columns taken by the rest of the line. */
static int name_columns(int used)
{
	int left = hr__term_table_width() - used;
	return left < NAME_COLUMNS_LEAST ? NAME_COLUMNS_LEAST : left < NAME_COLUMNS ? left : NAME_COLUMNS;
}

/* Maximum length of a name printed in [columns]. Names are not truncated if the output is not a terminal. */
static int name_cut(int columns)
{
	return isatty(STDOUT_FILENO) ? columns : HR__QUOTE_BYTES;
}

static void print_tensor(const hr__plan_report *report, const hr__tensor_use *use)
{
	const hr__schedule_tensor *tensor = &report->schedule.tensors[use->tensor];
	char human[16], name[HR__QUOTE_BYTES];
	const char *role = tensor->workspace ? "workspace" : use->makes ? "output" : use->writes ? "in and out" : "input";
	printf("%*s%-10s %10s", TENSOR_INDENT, "", role, size_text(tensor->bytes, human));
	if (use->makes) printf("\n");
	else if (tensor->maker != HR__SCHEDULE_NONE)
		printf("  made by %.*s (number %u)\n", name_cut(name_columns(TENSOR_INDENT + 51)), name_text(report->schedule.ops[tensor->maker].name, name),
		       tensor->maker);
	else printf("  filled %s\n", tensor->born ? "in a step, outside of ops" : "before the first step");
}

/* Prints the largest tensors of an op, largest first. */
static void print_working_set(const hr__plan_report *report, uint32_t index)
{
	const hr__schedule_op *op = &report->schedule.ops[index];
	const hr__tensor_use *uses = &report->schedule.uses[op->first_use];
	char human[16], count[32];
	uint64_t all = 0, shown_bytes = 0;
	uint32_t order[LISTED_TENSORS], listed = 0;
	for (uint32_t i = 0; i < op->use_count; i++) {
		uint64_t bytes = report->schedule.tensors[uses[i].tensor].bytes;
		uint32_t at = listed < LISTED_TENSORS ? listed++ : LISTED_TENSORS;
		all += rounded(bytes);
		/* Insertion sort that keeps the LISTED_TENSORS largest. */
		while (at > 0 && report->schedule.tensors[uses[order[at - 1]].tensor].bytes < bytes) {
			if (at < LISTED_TENSORS) order[at] = order[at - 1];
			at--;
		}
		if (at < LISTED_TENSORS) order[at] = i;
	}
	hr__line_begin("it needs");
	hr__line_add("%s at once, in %s tensor%s:\n", size_text(all, human), count_text(op->use_count, count), hr__plural(op->use_count));
	for (uint32_t i = 0; i < listed; i++) {
		print_tensor(report, &uses[order[i]]);
		shown_bytes += rounded(report->schedule.tensors[uses[order[i]].tensor].bytes);
	}
	if (op->use_count <= listed) return;
	printf("%*sand %s more with %s\n", TENSOR_INDENT, "", count_text(op->use_count - listed, count), size_text(all - shown_bytes, human));
}

static void print_failure(const hr__plan_report *report)
{
	const hr__drive_result *stop = &report->forecast.stop;
	char human[16];
	hr__line_begin("no room for");
	print_op(report, stop->part, stop->op);
	if (stop->op == HR__SCHEDULE_NONE && stop->tensor != HR__SCHEDULE_NONE)
		hr__line_add(" (%s)", size_text(report->schedule.tensors[stop->tensor].bytes, human));
	hr__line_add("\n");
	if (stop->op != HR__SCHEDULE_NONE) print_working_set(report, stop->op);
	hr__line_begin("");
	hr__line_add_quoted(report->forecast.message);
	hr__line_add("\n");
}

/* ---- cost ---- */

static void print_cost(const hr__plan_report *report)
{
	const hr__forecast *forecast = &report->forecast;
	const hr__forecast_facts *facts = &report->facts;
	char out[16], in[16];
	double plain_ms = (double)facts->plain_ns / 1e6, step_ms = (double)forecast->step_ns / 1e6;
	hr__line_begin("moved");
	hr__line_add("%s out and %s in, each step; link %.6g GB/s each way%s, policy %s\n", size_text(forecast->bytes_out, out),
	       size_text(forecast->bytes_in, in), (double)report->setup.link / 1e9,
	             report->link_given ? "" : " (assumed: PCIe 5.0 x16)", report->setup.policy);
	if (!moves_nothing(forecast)) {
		hr__line_begin("assumes");
		hr__line_add("copies that take no time from ops, as on a GPU; an emulated one copies, and plans, on the processors that compute, and "
		             "is slower than this\n");
	}
	hr__line_begin("time");
	hr__line_add("%s%.2f ms%s a step instead of %.2f", hr__style(stdout, HR__STYLE_STRONG), step_ms, hr__style(stdout, HR__STYLE_PLAIN),
	       plain_ms);
	if (facts->plain_ns)
		hr__line_add(": %s%.3f%s times as long", hr__style(stdout, HR__STYLE_STRONG), slowdown_of(report, forecast),
		       hr__style(stdout, HR__STYLE_PLAIN));
	hr__line_add("\n");
	hr__line_begin("bound");
	hr__line_add("at least %.2f ms more than the ops, however tensors are moved; here it is %.2f\n", (double)forecast->bound_ns / 1e6,
	       step_ms - plain_ms);
}

static void print_heading(const char *strong, const char *plain)
{
	char text[512];
	snprintf(text, sizeof text, "\n%s%s%s%s\n", hr__style(stdout, HR__STYLE_HEADING), strong, hr__style(stdout, HR__STYLE_PLAIN), plain);
	hr__term_wrap(text, 0, 0, hr__term_table_width());
}

static void print_advice(const hr__plan_report *report)
{
	const hr__forecast *forecast = &report->forecast;
	char count[32], human[16], name[HR__QUOTE_BYTES];
	uint64_t saving = 0, bytes = 0;
	if (!forecast->advice_count) return;
	int columns = name_columns(55);
	print_heading("Worth computing again instead of moving", ", where the inputs are still there (ms of a step)");
	printf("  %-*s %8s %10s %10s %10s %10s\n", columns, "made by", "tensors", "bytes", "moving", "computing", "saved");
	for (uint32_t i = 0; i < forecast->advice_count; i++) {
		const hr__advice *advice = &forecast->advice[i];
		uint64_t saved = advice->move_ns - advice->compute_ns;
		saving += saved;
		bytes += advice->bytes;
		if (i >= LISTED_ADVICE) continue;
		printf("  %-*.*s %8s %10s %10.2f %10.2f %10.2f\n", columns, name_cut(columns), name_text(advice->op, name),
		       count_text(advice->tensors, count), size_text(advice->bytes, human), (double)advice->move_ns / 1e6,
		       (double)advice->compute_ns / 1e6, (double)saved / 1e6);
	}
	printf("  %-*s %8s %10s %10s %10s %10.2f\n", columns, "all of them", "", size_text(bytes, human), "", "",
	       (double)saving / 1e6);
}

/* ---- the curve ---- */

static void print_curve(const hr__plan_report *report)
{
	char limit[16], out[16], in[16], about[128];
	double most = 1;
	int bar = hr__term_table_width() - CURVE_COLUMNS;
	bar = bar < 0 ? 0 : bar > BAR_CELLS ? BAR_CELLS : bar;
	const char *cell = hr__term_utf8() ? "\u2588" : "#";
	for (uint32_t i = 0; i < HR__CURVE_POINTS; i++)
		if (report->curve[i].fits && slowdown_of(report, &report->curve[i]) > most) most = slowdown_of(report, &report->curve[i]);
	snprintf(about, sizeof about, " (link %.6g GB/s each way, policy %s; %.2f ms without a limit)", (double)report->setup.link / 1e9,
	         report->setup.policy, (double)report->facts.plain_ns / 1e6);
	print_heading("A step with less memory", about);
	printf("  %10s %7s %10s %10s %10s %10s %8s\n", "limit", "of peak", "moved out", "moved in", "ms a step", "least ms", "slowdown");
	for (uint32_t i = 0; i < HR__CURVE_POINTS; i++) {
		const hr__forecast *forecast = &report->curve[i];
		printf("  %10s %6.0f%%", size_text(report->limits[i], limit), 100 * share_of_peak(report, report->limits[i]));
		if (!forecast->fits) {
			printf(" %sit does not fit%s\n", hr__style(stdout, HR__STYLE_ERROR), hr__style(stdout, HR__STYLE_PLAIN));
			continue;
		}
		double times = slowdown_of(report, forecast);
		printf(" %10s %10s %10.2f %10.2f", size_text(forecast->bytes_out, out), size_text(forecast->bytes_in, in),
		       (double)forecast->step_ns / 1e6, (double)(report->facts.plain_ns + forecast->bound_ns) / 1e6);
		if (report->facts.plain_ns) printf(" %8.3f ", times);
		else printf(" %8s ", "-");
		fputs(hr__style(stdout, HR__STYLE_IN_USE), stdout);
		for (int cells = (int)(times / most * bar + 0.5); cells > 0; cells--) fputs(cell, stdout);
		printf("%s\n", hr__style(stdout, HR__STYLE_PLAIN));
	}
}

/* ---- running ops again ---- */

static void add_times(const hr__plan_report *report, const hr__outlook_step *step, const char *name)
{
	if (!step->fits) hr__line_add("%s does not fit", name);
	else if (report->facts.plain_ns) hr__line_add("%s %.3f", name, (double)step->step_ns / (double)report->facts.plain_ns);
	else hr__line_add("%s %.2f ms", name, (double)step->step_ns / 1e6);
}

static void print_outlook(const hr__plan_report *report)
{
	const hr__outlook *outlook = &report->outlook;
	const hr__outlook_step *played = &outlook->played;
	char out[16], in[16], count[32];
	if (!report->recompute || !played->fits) return;
	hr__line_begin("recompute");
	if (!played->again_ops) {
		hr__line_add("no op ran again when it was played with recipes");
	} else {
		hr__line_add("%s%.2f ms%s a step", hr__style(stdout, HR__STYLE_STRONG), (double)played->step_ns / 1e6, hr__style(stdout, HR__STYLE_PLAIN));
		if (report->facts.plain_ns) hr__line_add(", %.3f times as long", (double)played->step_ns / (double)report->facts.plain_ns);
		hr__line_add(", played with recipes: %s op%s of %.2f ms run again, %s out and %s in", count_text(played->again_ops, count),
		             hr__plural(played->again_ops), (double)played->again_ns / 1e6, size_text(played->bytes_out, out),
		             size_text(played->bytes_in, in));
	}
	hr__line_add(". By the planner's model: ");
	add_times(report, &outlook->by[HR__BY_BOTH], "both");
	hr__line_add(", ");
	add_times(report, &outlook->by[HR__BY_MOVING], "moving alone");
	hr__line_add(", ");
	add_times(report, &outlook->by[HR__BY_RECOMPUTING], "recomputing alone");
	hr__line_add("\n");
}

static void print_means(const hr__plan_report *report, const hr__outlook_step *step)
{
	if (!step->fits) printf(" %7s", "-");
	else if (report->facts.plain_ns) printf(" %7.3f", (double)step->step_ns / (double)report->facts.plain_ns);
	else printf(" %7.2f", (double)step->step_ns / 1e6);
}

static void print_outlooks(const hr__plan_report *report)
{
	char limit[16], out[16];
	if (!report->recompute) return;
	char about[256];
	snprintf(about, sizeof about, " (%s; least: the bound of moving; again: running ops again; played: both, with recipes. The others are the "
	                              "planner's model)",
	         report->facts.plain_ns ? "times as long as without a limit" : "ms a step");
	print_heading("Moving, running ops again, or both", about);
	printf("  %10s %7s %7s %7s %7s %7s %7s %10s %8s\n", "limit", "of peak", "least", "moving", "again", "both", "played", "moved out", "again ms");
	for (uint32_t i = 0; i < HR__CURVE_POINTS; i++) {
		const hr__outlook *outlook = &report->outlooks[i];
		const hr__outlook_step *played = &outlook->played;
		hr__outlook_step least = { .fits = played->fits, .step_ns = report->facts.plain_ns + outlook->bound_ns };
		printf("  %10s %6.0f%%", size_text(outlook->limit, limit), 100 * share_of_peak(report, outlook->limit));
		print_means(report, &least);
		for (int k = 0; k < HR__OUTLOOK_MEANS; k++) print_means(report, &outlook->by[k]);
		print_means(report, played);
		if (played->fits) printf(" %10s %8.2f\n", size_text(played->bytes_out, out), (double)played->again_ns / 1e6);
		else printf(" %10s %8s\n", "-", "-");
	}
}

/* ---- the report ---- */

static void print_peak_only(const hr__plan_report *report)
{
	char human[16], digits[32];
	hr__line_begin("peak");
	hr__line_add("%s live at once (%s bytes)\n", size_text(report->schedule.peak_bytes, human), count_text(report->schedule.peak_bytes, digits));
	if (report->setup.limit)
		print_verdict(report, hr__plan_report_fits(report),
		              ", as far as the peak goes; 'headroom replay' says what fragmentation adds");
	hr__line_begin("no more");
	hr__line_add("the trace does not say which ops read and write which blocks, so what could leave meanwhile is not known.\n");
	hr__line_begin("");
	hr__line_add("Record use events: actions s b r w e in traces/README.md\n");
}

void hr__plan_report_text(const hr__plan_report *report)
{
	print_trace(report);
	if (!report->setup.part) {
		print_peak_only(report);
		print_notes(report);
		return;
	}
	print_step(report);
	print_memory(report);
	if (!report->setup.limit) {
		print_notes(report);
		print_curve(report);
		print_outlooks(report);
		return;
	}
	const hr__forecast *forecast = &report->forecast;
	print_verdict(report, forecast->fits, verdict_detail(report));
	if (forecast->fits) print_cost(report);
	else print_failure(report);
	if (forecast->fits) print_outlook(report);
	print_notes(report);
	if (forecast->fits) print_advice(report);
}
