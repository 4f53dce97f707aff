/* plan.c - `headroom plan`: predicts whether a program fits, what Large Model Support would move, and the cost.
 *
 *     no use events    compares the peak with the limit, and prints why more is not known
 *     --limit          one forecast (forecast.h)
 *     no limit         forecasts for several limits, as a curve */
#include "plan/plan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "command.h"
#include "replay/measure.h"
#include "analysis/import/quote.h"

#define PAGE (UINT64_C(2) << 20)
#define LINK_GB UINT64_C(55)
#define LINK_GB_LEAST 0.001
#define LINK_GB_MOST 100000.0
#define REPEATS 6
#define REPEATS_MOST 1000

enum { LIMIT, LINK, POLICY, STEP, STEPS, PAGE_SIZE, HOST_LIMIT, RECOMPUTE, SVG, DEVICE_INDEX, JSON };

static const hr__option options[] = {
	[LIMIT] = { "--limit", "SIZE",
	            "the memory that the program would get; without it, limits from 90% to 40% of the peak are tried" },
	[LINK] = { "--link", "GB/s",
	           "speed of the link between host and device, each way, in 10^9 bytes a second; default 55 (PCIe 5.0 x16)" },
	[POLICY] = { "--policy", "NAME",
	             "learned (default): moves tensors ahead of need, by what the step before did; lru: moves what was not used for "
	             "longest, when there is no room" },
	[STEP] = { "--step", "N",
	           "the step to plan, by its number in the trace. Default: the one in the middle by the time of its ops, "
	           "without the first, and without those in which tensors moved or requests were refused, where there are others" },
	[STEPS] = { "--steps", "N",
	            "how often that step is played; the last time counts. Default 6: the policy learns from the others" },
	[PAGE_SIZE] = { "--page", "SIZE", "page size of the simulated device; default: that of the recorded one, or 2MiB where the trace does not say" },
	[HOST_LIMIT] = { "--host-limit", "SIZE", "the most host memory that tensors may take; default: as much as they need" },
	[RECOMPUTE] = { "--recompute", "[=off]",
	                "also say what running ops again, instead of moving what they made, would do (default); off: do not" },
	[SVG] = { "--svg", "FILE", "draw time over memory for moving, recomputing and both to FILE, from 95% to 30% of the peak" },
	[DEVICE_INDEX] = { "--device-index", "N", HR__DEVICE_INDEX_HELP },
	[JSON] = { "--json", NULL, "print one JSON object instead of text; what is not known is null" },
	{ NULL, NULL, NULL },
};

/* ---- arguments ---- */

static bool read_policy(const hr__arguments *arguments, const char **out)
{
	static const char *const policies[] = { "learned", "lru", NULL };
	const char *text = hr__arguments_has(arguments, POLICY) ? arguments->values[POLICY] : policies[0];
	char quoted[HR__QUOTE_BYTES];
	for (size_t i = 0; policies[i]; i++)
		if (strcmp(policies[i], text) == 0) *out = policies[i];
	if (*out) return true;
	const char *near = hr__nearest(text, policies);
	hr__complain("plan: there is no policy %s; there are learned and lru%s%s%s", hr__quote(text, strlen(text), quoted),
	             near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
	return false;
}

static bool read_recompute(const hr__arguments *arguments, bool *out)
{
	char quoted[HR__QUOTE_BYTES];
	const char *text = hr__arguments_has(arguments, RECOMPUTE) ? arguments->values[RECOMPUTE] : "";
	*out = strcmp(text, "off") != 0;
	if (!*out || !*text || strcmp(text, "on") == 0) return true;
	hr__complain("plan: --recompute is on or off, not %s", hr__quote(text, strlen(text), quoted));
	return false;
}

/* Parses and checks the arguments. False: something is wrong, and a message was printed. */
static bool read_arguments(const hr__arguments *arguments, hr__forecast_setup *setup, uint64_t *step)
{
	uint64_t repeats = REPEATS;
	double link = (double)LINK_GB;
	*setup = (hr__forecast_setup){ .page = PAGE };
	if (!hr__arguments_size(arguments, LIMIT, &setup->limit)) return false;
	if (!hr__arguments_size(arguments, PAGE_SIZE, &setup->page)) return false;
	if (!hr__arguments_size(arguments, HOST_LIMIT, &setup->host_limit)) return false;
	if (!hr__arguments_decimal(arguments, LINK, "GB/s", LINK_GB_LEAST, LINK_GB_MOST, &link)) return false;
	if (!hr__arguments_count(arguments, STEP, 0, UINT64_MAX / 16, step)) return false;
	if (!hr__arguments_count(arguments, STEPS, 1, REPEATS_MOST, &repeats)) return false;
	if (!read_policy(arguments, &setup->policy)) return false;
	if (hr__arguments_has(arguments, LIMIT) && setup->limit == 0) {
		hr__complain("plan: --limit 0 leaves no memory at all; leave it out to see what several limits would do");
		return false;
	}
	if (hr__arguments_has(arguments, HOST_LIMIT) && setup->host_limit == 0) {
		hr__complain("plan: --host-limit 0 leaves no host memory for evicted tensors; leave it out for no limit");
		return false;
	}
	if (!hr__is_power_of_two(setup->page) || setup->page < 256) {
		hr__complain("plan: --page %s: a page is a power of two, at least 256 bytes", arguments->values[PAGE_SIZE]);
		return false;
	}
	setup->link = (uint64_t)(link * 1e9);
	setup->repeats = (uint32_t)repeats;
	return true;
}

/* Selects the step to plan. False: there is none, and a message was printed. */
static bool choose_step(hr__plan_report *report, const hr__arguments *arguments, uint64_t number)
{
	const hr__schedule *schedule = &report->schedule;
	report->step_given = hr__arguments_has(arguments, STEP);
	uint32_t part = report->step_given ? hr__schedule_find_step(schedule, number) : hr__schedule_typical_step(schedule);
	if (part == HR__SCHEDULE_NONE && report->step_given) {
		hr__complain("plan: %s has no step %llu; its steps are numbered %llu to %llu", report->path, (unsigned long long)number,
		             (unsigned long long)schedule->parts[1].number, (unsigned long long)schedule->parts[schedule->part_count - 1].number);
		return false;
	}
	if (part == HR__SCHEDULE_NONE || !schedule->parts[part].op_count) {
		hr__complain("plan: no op runs in %s of %s; expected a step with ops (b, e)",
		             part == HR__SCHEDULE_NONE ? "any step" : "that step", report->path);
		return false;
	}
	report->setup.part = part;
	return true;
}

/* ---- forecasting ---- */

static hr_status forecast_curve(hr__plan_report *report, hr__progress *progress)
{
	hr__forecast_setup setup = report->setup;
	hr_status status = HR_OK;
	for (uint32_t i = 0; !status && i < HR__CURVE_POINTS; i++) {
		setup.limit = report->facts.peak_bytes / 100 * (HR__CURVE_FROM - i * HR__CURVE_BY);
		if (setup.limit < setup.page) setup.limit = setup.page;
		report->limits[i] = setup.limit;
		hr__progress_phase(progress, "playing", (i + 1.0) / HR__CURVE_POINTS);
		status = hr__forecast_make(&setup, &report->curve[i]);
		if (!status && report->recompute) status = hr__outlook_make(&setup, setup.limit, &report->outlooks[i]);
	}
	return status;
}

/* Upper end of the search for the least limit: with this much, the program runs without evictions, or fails for lack of host
 * memory. */
static uint64_t most_limit(const hr__plan_report *report)
{
	uint64_t peak = report->schedule.peak_bytes, most;
	if (!hr__multiply(peak, 2, &most) || !hr__add(most, 16 * report->setup.page, &most) || most > HR__SCHEDULE_LIVE_MAX) most = HR__SCHEDULE_LIVE_MAX;
	return most;
}

static hr_status forecast(hr__plan_report *report)
{
	hr__progress progress;
	hr__progress_begin(&progress);
	report->setup.schedule = &report->schedule;
	report->setup.progress = &progress;
	hr_status status = hr__forecast_facts_find(&report->schedule, report->setup.part, &report->facts);
	hr__progress_phase(&progress, "finding the least limit", 0);
	hr__progress_show(&progress, 0);
	if (!status) status = hr__forecast_least(&report->setup, &report->facts, most_limit(report), &report->least_limit);
	if (!status && !report->setup.limit) {
		status = forecast_curve(report, &progress);
	} else if (!status) {
		hr__progress_phase(&progress, "playing", 1);
		status = hr__forecast_make(&report->setup, &report->forecast);
		if (!status && report->recompute) status = hr__outlook_make(&report->setup, report->setup.limit, &report->outlook);
	}
	hr__progress_end(&progress);
	report->setup.progress = NULL;
	return status;
}

/* False: a message was printed. */
static bool draw_picture(const hr__plan_report *report, const char *path)
{
	hr__outlook outlooks[HR__PICTURE_POINTS];
	uint64_t peak = report->facts.peak_bytes;
	for (uint32_t i = 0; i < HR__PICTURE_POINTS; i++) {
		uint64_t limit = peak / 100 * (HR__PICTURE_FROM - i * HR__PICTURE_BY);
		if (limit < report->setup.page) limit = report->setup.page;
		if (hr__outlook_make(&report->setup, limit, &outlooks[i]) == HR_OK) continue;
		hr__complain_last();
		return false;
	}
	const char *slash = strrchr(report->path, '/');
	if (hr__outlook_draw(path, slash ? slash + 1 : report->path, &report->facts, report->setup.link, outlooks, HR__PICTURE_POINTS)) return true;
	hr__complain("plan: %s: %s", path, strerror(errno));
	return false;
}

bool hr__plan_report_fits(const hr__plan_report *report)
{
	if (!report->setup.limit) return true;
	return report->setup.part ? report->forecast.fits : report->schedule.peak_bytes <= report->setup.limit;
}

/* Uses the page size of the recorded device, if the trace has it and no other is given. False: the limit is below one page, and a
 * message was printed. */
static bool settle_page(hr__plan_report *report, const hr__arguments *arguments)
{
	hr__forecast_setup *setup = &report->setup;
	if (!hr__arguments_has(arguments, PAGE_SIZE) && hr__setup_can_have_page(report->trace.page_bytes, report->schedule.peak_bytes))
		setup->page = report->trace.page_bytes;
	if (!setup->limit || setup->limit >= setup->page) return true;
	hr__complain("plan: --limit %s is less than one page of %llu bytes", arguments->values[LIMIT], (unsigned long long)setup->page);
	return false;
}

static int plan_trace(hr__plan_report *report, const hr__arguments *arguments, uint64_t step)
{
	if (!settle_page(report, arguments)) return HR__EXIT_BAD;
	report->link_given = hr__arguments_has(arguments, LINK);
	if (report->schedule.accesses > 0) {
		if (!choose_step(report, arguments, step)) return HR__EXIT_BAD;
		if (forecast(report) != HR_OK) return hr__complain_last();
		if (hr__arguments_has(arguments, SVG) && !draw_picture(report, arguments->values[SVG])) return HR__EXIT_BAD;
	} else if (hr__arguments_has(arguments, SVG)) {
		hr__complain("plan: --svg: %s does not say which ops read and write which blocks, so there is nothing to draw", report->path);
		return HR__EXIT_BAD;
	}
	if (hr__arguments_has(arguments, JSON)) hr__plan_report_json(report);
	else hr__plan_report_text(report);
	return hr__plan_report_fits(report) ? HR__EXIT_DONE : HR__EXIT_NO;
}

static int run(const hr__arguments *arguments)
{
	hr__plan_report report = { .path = arguments->operands[0] };
	int64_t device = HR__FACTS_DEVICE_MOST;
	uint64_t step = 0;
	if (!read_arguments(arguments, &report.setup, &step) || !read_recompute(arguments, &report.recompute) || !hr__arguments_device_index(arguments, DEVICE_INDEX, &device)) return HR__EXIT_BAD;
	if (hr__schedule_read(report.path, device, &report.trace, &report.schedule) != HR_OK) return hr__complain_last();
	int exit_status = plan_trace(&report, arguments, step);
	hr__forecast_free(&report.forecast);
	for (uint32_t i = 0; i < HR__CURVE_POINTS; i++) hr__forecast_free(&report.curve[i]);
	hr__schedule_free(&report.schedule);
	return exit_status;
}

const hr__command hr__command_plan = {
	.name = "plan",
	.operands = "TRACE",
	.summary = "before you run: does it fit, what would be moved to the host, and what would that cost",
	.about =
		"Plays a recorded program with less memory than it had, on a simulated device, with the code of Large Model Support "
		"itself: tensors are moved to host memory when there is no room, and are brought back when an op needs them. Nothing is "
		"computed. Copies take the time of the link, ops the time that was recorded, and neither slows the other down, as on a "
		"GPU. A program on an emulated GPU is slower than the plan says: its copies and the planning use the processors that "
		"compute.\n\n"
		"TRACE is a use trace (traces/README.md) or a Headroom trace with use events: it must say which ops read and write "
		"which blocks, and how long they take. For other traces only the peak is compared with the limit. In a recording made "
		"under Large Model Support, the times that a tensor spent on the device are joined, so that the plan is for the "
		"program, whatever was moved while it was recorded.\n\n"
		"The steps before the planned one are played as recorded (the last 16 of them). Then that step is played several times, "
		"since a training loop repeats and the policy learns from it. The figures are those of the last time.\n\n"
		"peak: most bytes live at once in the step. least limit: the lowest limit, in whole pages, at which the program was "
		"played to the end; it is at least the largest set of tensors that one op needs at the same time, in that step or one "
		"that is played before it. bound: the extra time that no way of moving tensors could avoid on this link, next to the "
		"extra time here. Worth computing again: tensors that were moved although the ops that make them take less time than "
		"the move; a program that computes them again where it needs them (activation checkpointing) saves the link that work.\n\n"
		"Recompute: what the step takes if ops that are known to give the same result again (by name) run again instead of "
		"moving what they made, or beside moving. The figure that counts is played, as above, with recipes for what these ops make. "
		"Those of the planner's model are next to it: for moving alone, for running ops again alone, and for both.\n\n"
		"The exit status is 1 when the program does not fit, even with moving.",
	.examples =
		"headroom plan traces/gpt2b16-use.csv.gz --limit 36GB\n"
		"headroom plan traces/gpt2b16-use.csv.gz --svg gpt2.svg\n"
		"headroom plan traces/resnet-use.csv.gz --limit 4GiB --link 25 --policy lru\n"
		"headroom plan traces/resnet-use.csv.gz --limit 2GiB --step 3 --json",
	.least_operands = 1,
	.most_operands = 1,
	.options = options,
	.run = run,
};
