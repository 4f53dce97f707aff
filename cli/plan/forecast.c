/* forecast.c - see forecast.h. */
#include "plan/forecast.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "shut_down.h"
#include "core/base/text/text.h"
#include "core/device/device.h"
#include "plan/step_view.h"

/* ---- facts ---- */

uint32_t hr__forecast_first(uint32_t part)
{
	return part > HR__FORECAST_BEFORE ? part - HR__FORECAST_BEFORE : 1;
}

static hr_status look_at_part(const hr__schedule *schedule, uint32_t i, uint32_t part, hr__forecast_facts *out)
{
	hr__step_view view;
	uint32_t op = 0;
	hr_status status = hr__step_view_make(schedule, i, HR__FORECAST_GRANULARITY, &view);
	if (status) return status;
	if (i == part) {
		out->peak_bytes = hr__plan_peak(&view.step);
		out->plain_ns = hr__plan_compute_ns(&view.step);
	}
	status = hr__step_view_relax(&view);
	uint64_t least = !status && view.step.op_count ? hr__plan_least(&view.step, &op) : 0;
	if (least > out->working_set_bytes || (i == part && least == out->working_set_bytes)) {
		out->working_set_bytes = least;
		out->working_set_op = view.op_of[op];
		out->working_set_part = i;
	}
	hr__step_view_free(&view);
	return status;
}

hr_status hr__forecast_facts_find(const hr__schedule *schedule, uint32_t part, hr__forecast_facts *out)
{
	*out = (hr__forecast_facts){ .working_set_op = HR__SCHEDULE_NONE };
	hr_status status = look_at_part(schedule, 0, part, out);
	for (uint32_t i = hr__forecast_first(part); !status && i <= part; i++) status = look_at_part(schedule, i, part, out);
	return status;
}

/* ---- a run ---- */

struct moved {
	uint32_t evictions, restores;
};

struct forecast_run {
	const hr__forecast_setup *setup;
	hr__forecast *forecast;
	hr_device handle;
	hr__device *device;
	hr_allocator allocator;
	uint32_t *plays;
	size_t play_count, play; /* play: the one that runs */
	uint64_t begin_ns;       /* when the last play began */
	hr_lms_stats before;     /* statistics at begin_ns */
	int64_t stitched_before; /* likewise, bytes_stitched */
	struct moved *moved;     /* for each tensor, in the last play */
	uint64_t ops, all_ops;   /* queued so far; in total */
};

static hr_status busy(void *context, hr_stream stream, uint64_t ns)
{
	struct forecast_run *run = context;
	run->ops++;
	hr__progress_show(run->setup->progress, (double)run->ops / (double)run->all_ops);
	return hr__device_compute(run->device, stream, ns);
}

static hr_status get_stats(struct forecast_run *run, hr_lms_stats *stats)
{
	*stats = (hr_lms_stats){ .struct_size = sizeof *stats };
	hr_status status = hr_lms_get_stats(run->allocator, stats);
	return status == HR_NOT_READY ? HR_OK : status;
}

static hr_status get_stitched(const struct forecast_run *run, int64_t *bytes)
{
	hr_stats stats;
	hr_stats_init(&stats);
	hr_status status = hr_allocator_get_stats(run->allocator, &stats);
	*bytes = stats.bytes_stitched;
	return status;
}

static void sum_up_step(struct forecast_run *run, uint64_t now_ns)
{
	hr__forecast *forecast = run->forecast;
	const hr_lms_stats *before = &run->before, *after = &forecast->stats;
	forecast->step_ns = now_ns - run->begin_ns;
	forecast->bytes_out = (uint64_t)(after->bytes_copied_out - before->bytes_copied_out);
	forecast->bytes_in = (uint64_t)(after->bytes_copied_in - before->bytes_copied_in);
	forecast->evictions = (uint64_t)(after->num_evictions - before->num_evictions);
	forecast->drops = (uint64_t)(after->num_drops - before->num_drops);
	forecast->recomputes = (uint64_t)(after->num_recomputes - before->num_recomputes);
	forecast->again_ns = (uint64_t)(after->recompute_ns - before->recompute_ns);
}

static hr_status step(void *context, size_t play)
{
	struct forecast_run *run = context;
	run->play = play;
	hr_status status = hr_stream_synchronize(run->handle, HR_STREAM_DEFAULT);
	if (status) return status;
	uint64_t now_ns = hr__device_clock_ns(run->device);
	if (play + 1 == run->play_count) {
		run->begin_ns = now_ns;
		status = get_stats(run, &run->before);
		if (!status) status = get_stitched(run, &run->stitched_before);
	} else if (play == run->play_count) {
		int64_t stitched = 0;
		status = get_stats(run, &run->forecast->stats);
		if (!status) status = get_stitched(run, &stitched);
		run->forecast->bytes_stitched = (uint64_t)(stitched - run->stitched_before);
		if (!status) sum_up_step(run, now_ns);
	}
	return status;
}

static void leave(void *context, uint32_t tensor, hr_tensor handle)
{
	struct forecast_run *run = context;
	hr_tensor_info info = { .struct_size = sizeof info };
	if (run->play + 1 < run->play_count || run->setup->schedule->tensors[tensor].born != run->setup->part) return;
	if (hr_tensor_get_info(handle, &info) != HR_OK) return;
	run->moved[tensor] = (struct moved){ (uint32_t)info.evictions, (uint32_t)info.restores };
}

static hr_status open_allocator(struct forecast_run *run)
{
	const hr__forecast_setup *setup = run->setup;
	hr_simulated_options simulated;
	hr_allocator_options options;
	hr_lms_options lms;
	hr_simulated_options_init(&simulated);
	simulated.page_bytes = setup->page;
	simulated.link_bytes_per_s = setup->link;
	simulated.map_ns = setup->map_ns;
	if (setup->limit > HR__SCHEDULE_LIVE_MAX || !hr__align_up(setup->limit, setup->page, &simulated.memory_bytes))
		return hr__fail(HR_BAD_LIMIT, "a limit of %llu bytes is more than the 64 TiB of the simulated device",
		                (unsigned long long)setup->limit);
	hr_allocator_options_init(&options);
	options.limit_bytes = setup->limit;
	options.oom.report_allocations_on_oom = false;
	/* A forecast does not depend on HEADROOM_LMS in the environment, which is for programs that run. */
	(void)hr_lms_options_init(&lms);
	lms.enabled = true;
	lms.defrag = lms.verify = false;
	lms.limit = lms.spill_limit = lms.wait_ns = 0;
	lms.spill_dir = lms.step_csv = NULL;
	lms.host_limit = setup->host_limit ? setup->host_limit : HR__SCHEDULE_LIVE_MAX;
	lms.policy = setup->policy;
	lms.recompute = setup->recompute;
	lms.safety = HR_SAFETY_NONE;

	hr_status status = hr_simulated_configure(&simulated);
	if (!status) status = hr_device_find("SIM:0", &run->handle);
	if (!status) run->device = hr__device_of(run->handle, &status);
	if (!status) status = hr_allocator_create(run->handle, &options, &run->allocator);
	if (!status) status = hr_lms_configure(run->allocator, &lms);
	return status;
}

/* Lists the steps before the requested one, then the requested one [repeats] times. */
static bool list_plays(struct forecast_run *run)
{
	const hr__forecast_setup *setup = run->setup;
	uint32_t first = hr__forecast_first(setup->part);
	size_t before = setup->part - first;
	run->play_count = before + setup->repeats;
	run->plays = malloc(run->play_count * sizeof *run->plays);
	run->moved = calloc((size_t)setup->schedule->tensor_count + 1, sizeof *run->moved);
	if (!run->plays || !run->moved) return false;
	run->all_ops = setup->schedule->parts[0].op_count + 1;
	for (size_t i = 0; i < run->play_count; i++) {
		run->plays[i] = i < before ? first + (uint32_t)i : setup->part;
		run->all_ops += setup->schedule->parts[run->plays[i]].op_count;
	}
	return true;
}

static hr_status drive(struct forecast_run *run)
{
	hr__forecast *forecast = run->forecast;
	hr__drive_options options = { .allocator = run->allocator,
		                          .plays = run->plays,
		                          .play_count = run->play_count,
		                          .recompute = run->setup->recompute,
		                          .context = run,
		                          .busy = busy,
		                          .step = step,
		                          .leave = leave };
	hr_status status = hr__drive(run->setup->schedule, &options, &forecast->stop);
	forecast->fits = status == HR_OK;
	if (status != HR_OUT_OF_MEMORY) return status;
	snprintf(forecast->message, sizeof forecast->message, "%s", hr_last_message());
	return get_stats(run, &forecast->stats);
}

/* ---- advice ---- */

/* Bytes that an op makes, without workspace. */
static uint64_t made_bytes(const hr__schedule *schedule, const hr__schedule_op *op)
{
	uint64_t bytes = 0;
	for (uint32_t i = op->first_use; i < op->first_use + op->use_count; i++) {
		const hr__schedule_tensor *tensor = &schedule->tensors[schedule->uses[i].tensor];
		if (schedule->uses[i].makes && !tensor->workspace) bytes += tensor->bytes;
	}
	return bytes;
}

/* False when recomputing is not cheaper than moving. */
static bool advise(const struct forecast_run *run, uint32_t index, hr__advice *out)
{
	const hr__schedule *schedule = run->setup->schedule;
	const hr__schedule_tensor *tensor = &schedule->tensors[index];
	const struct moved *moved = &run->moved[index];
	if (!moved->restores || tensor->maker == HR__SCHEDULE_NONE) return false;
	const hr__schedule_op *op = &schedule->ops[tensor->maker];
	double copy_ns = HR__FORECAST_COPY_NS + (double)tensor->bytes * 1e9 / (double)run->setup->link;
	double move_ns = (1.0 + moved->restores) * copy_ns;
	double compute_ns = moved->restores * ((double)op->ns * (double)tensor->bytes / (double)made_bytes(schedule, op));
	*out = (hr__advice){ op->name, 1, tensor->bytes, (uint64_t)move_ns, (uint64_t)compute_ns };
	return compute_ns < move_ns;
}

static int by_name(const void *a, const void *b)
{
	const hr__advice *first = a, *second = b;
	return first->op < second->op ? -1 : first->op > second->op;
}

static int by_saving(const void *a, const void *b)
{
	const hr__advice *first = a, *second = b;
	uint64_t first_ns = first->move_ns - first->compute_ns, second_ns = second->move_ns - second->compute_ns;
	if (first_ns != second_ns) return first_ns > second_ns ? -1 : 1;
	return by_name(a, b);
}

static hr_status collect_advice(struct forecast_run *run)
{
	hr__forecast *forecast = run->forecast;
	uint32_t count = 0, groups = 0;
	hr__advice each;
	for (uint32_t i = 0; i < run->setup->schedule->tensor_count; i++) count += advise(run, i, &each);
	if (!count) return HR_OK;
	forecast->advice = malloc(count * sizeof *forecast->advice);
	if (!forecast->advice) return hr__fail(HR_NO_HOST_MEMORY, "no memory for looking at %u tensor%s", count, hr__plural(count));
	count = 0;
	for (uint32_t i = 0; i < run->setup->schedule->tensor_count; i++)
		if (advise(run, i, &each)) forecast->advice[count++] = each;
	qsort(forecast->advice, count, sizeof *forecast->advice, by_name);
	for (uint32_t i = 0; i < count; i++) {
		hr__advice *last = &forecast->advice[groups ? groups - 1 : 0];
		each = forecast->advice[i];
		if (groups && last->op == each.op) {
			last->tensors++;
			last->bytes += each.bytes;
			last->move_ns += each.move_ns;
			last->compute_ns += each.compute_ns;
		} else {
			forecast->advice[groups++] = each;
		}
	}
	forecast->advice_count = groups;
	qsort(forecast->advice, groups, sizeof *forecast->advice, by_saving);
	return HR_OK;
}

/* ---- forecast ---- */

static hr_status find_bound(const hr__forecast_setup *setup, uint64_t *bound_ns)
{
	hr__step_view view;
	hr__plan_machine machine = { .memory = hr__align_down(setup->limit, setup->page),
		                         .out_bytes_per_s = setup->link,
		                         .in_bytes_per_s = setup->link,
		                         .copy_ns = HR__FORECAST_COPY_NS };
	hr_status status = hr__step_view_make(setup->schedule, setup->part, HR__FORECAST_GRANULARITY, &view);
	if (status) return status;
	status = hr__step_view_relax(&view);
	if (!status) status = hr__plan_bound(&view.step, &machine, bound_ns);
	hr__step_view_free(&view);
	return status;
}

hr_status hr__forecast_make(const hr__forecast_setup *setup, hr__forecast *out)
{
	struct forecast_run run = { .setup = setup, .forecast = out };
	*out = (hr__forecast){ 0 };
	hr_status status = list_plays(&run) ? hr__shut_down() : hr__fail(HR_NO_HOST_MEMORY, "no memory for playing a trace");
	if (!status) status = open_allocator(&run);
	if (!status) status = drive(&run);
	if (!status && out->fits) status = collect_advice(&run);
	if (!status && out->fits) status = find_bound(setup, &out->bound_ns);
	free(run.plays);
	free(run.moved);
	hr_status end = hr__shut_down(); /* keeps the message of an earlier failure */
	return status ? status : end;
}

/* ---- the least limit ---- */

static hr_status runs_at(const hr__forecast_setup *setup, uint64_t limit, bool *runs)
{
	hr__forecast forecast;
	hr__forecast_setup at = *setup;
	at.limit = limit;
	at.progress = NULL; /* the number of runs is not known */
	hr_status status = hr__forecast_make(&at, &forecast);
	*runs = !status && forecast.fits;
	hr__forecast_free(&forecast);
	return status;
}

hr_status hr__forecast_least(const hr__forecast_setup *setup, const hr__forecast_facts *facts, uint64_t most, uint64_t *limit)
{
	uint64_t good, bad = 0, pages = 1;
	bool runs = false;
	hr_status status = HR_OK;
	*limit = 0;
	if (!hr__align_up(facts->working_set_bytes, setup->page, &good) || !hr__align_up(most, setup->page, &most)) return HR_OK;
	if (good < setup->page) good = setup->page;
	if (good > most) return HR_OK;
	while (!(status = runs_at(setup, good, &runs)) && !runs) {
		bad = good;
		if (good == most) return HR_OK;
		good += pages * setup->page;
		pages *= 2;
		if (good > most) good = most;
	}
	/* [bad] does not run, [good] does. */
	while (!status && bad && good - bad > setup->page) {
		uint64_t middle = hr__align_down(bad + (good - bad) / 2, setup->page);
		status = runs_at(setup, middle, &runs);
		if (runs) good = middle;
		else bad = middle;
	}
	if (!status) *limit = good;
	return status;
}

void hr__forecast_free(hr__forecast *forecast)
{
	free(forecast->advice);
	*forecast = (hr__forecast){ 0 };
}
