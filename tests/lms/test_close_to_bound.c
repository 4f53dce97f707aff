/* test_close_to_bound.c - the recorded training steps of traces/ with less memory than they need, in virtual time, so that times
 * can be asserted: the distance of a step from the bound that no plan can beat, the bytes moved, the copies hidden behind compute,
 * and the cost of a step that differs. `headroom plan` prints the same numbers (cli/forecast.h), and so does bench/lms. */
#include "fixture.h"
#include "../../bench/lms_fewest.h"
#include "core/base/checked.h"
#include "core/device/device.h"
#include "plan/drive.h"
#include "plan/forecast.h"
#include "plan/step_view.h"
#include "test.h"

#define PAGE (UINT64_C(2) << 20)
#define LINK UINT64_C(55000000000)
#define REPEATS 6

static struct {
	hr__schedule schedule;
	uint32_t part; /* the step under test */
	hr__forecast_facts facts;
	hr__step_view view; /* bytes that any engine must have on the device */
} trace;

static void open_trace(const char *path)
{
	hr_status status = hr__schedule_read(path, HR__FACTS_DEVICE_MOST, NULL, &trace.schedule);
	if (status == HR_UNSUPPORTED) hr_test_skip("the command was built without zlib");
	CHECK_STATUS(HR_OK, status);
	trace.part = hr__schedule_typical_step(&trace.schedule);
	CHECK_STATUS(HR_OK, hr__forecast_facts_find(&trace.schedule, trace.part, &trace.facts));
	CHECK_STATUS(HR_OK, hr__step_view_make(&trace.schedule, trace.part, HR__FORECAST_GRANULARITY, &trace.view));
	CHECK_STATUS(HR_OK, hr__step_view_relax(&trace.view));
}

static void open_gpt2(void)
{
	if (HR_TEST_SANITIZED) hr_test_skip("too slow under a sanitizer; resnet runs");
	open_trace("traces/gpt2b16-use.csv.gz");
}

static void open_resnet(void)
{
	open_trace("traces/resnet-use.csv.gz");
}

static void close_trace(void)
{
	hr__step_view_free(&trace.view);
	hr__schedule_free(&trace.schedule);
}

static uint64_t limit_of(uint32_t percent)
{
	return trace.facts.peak_bytes / 100 * percent;
}

struct outcome {
	double extra_ms, bound_ms; /* beyond the time of the ops */
	double moved;              /* bytes, both directions */
};

static struct outcome play(const char *policy, uint32_t percent, uint64_t link)
{
	hr__forecast_setup setup = { .schedule = &trace.schedule,
		                         .part = trace.part,
		                         .repeats = REPEATS,
		                         .limit = limit_of(percent),
		                         .link = link,
		                         .page = PAGE,
		                         .policy = policy };
	hr__forecast found;
	CHECK_STATUS(HR_OK, hr__forecast_make(&setup, &found));
	CHECK(found.fits);
	struct outcome outcome = { ((double)found.step_ns - (double)trace.facts.plain_ns) / 1e6, (double)found.bound_ns / 1e6,
		                       (double)found.bytes_out + (double)found.bytes_in };
	hr__forecast_free(&found);
	printf("#   %u%% of the peak, %.1f GB/s, %s: %.2f ms over %.2f, bound %.2f; %.3f GB moved\n", percent, (double)link / 1e9,
	       policy, outcome.extra_ms, (double)trace.facts.plain_ns / 1e6, outcome.bound_ms, outcome.moved / 1e9);
	return outcome;
}

static double fewest(uint32_t percent)
{
	return lms_fewest_bytes(&trace.view.step, hr__align_down(limit_of(percent), PAGE));
}

/* At most a quarter above the bound, plus 3% of the step for what no plan can know. */
static void check_close(uint32_t percent)
{
	struct outcome learned = play("learned", percent, LINK);
	CHECK(learned.extra_ms >= learned.bound_ms);
	CHECK(learned.extra_ms <= 1.25 * learned.bound_ms + 0.03 * (double)trace.facts.plain_ns / 1e6);
	CHECK(learned.moved >= fewest(percent));
	CHECK(learned.moved <= 1.15 * fewest(percent));
}

static void test_gpt2_is_close_to_the_bound(void)
{
	open_gpt2();
	check_close(75);
	check_close(50);
	close_trace();
}

static void test_resnet_is_close_to_the_bound(void)
{
	open_resnet();
	check_close(75);
	check_close(50);
	close_trace();
}

/* The link is so fast that moving takes two thirds of the time of the ops: both directions together if [ways] is 2, each of them if
 * it is 1. So copies can be hidden; at most half of the extra time of lru may remain. */
static void check_hides(uint32_t percent, int ways)
{
	uint64_t link = (uint64_t)(fewest(percent) / 2 * ways * 1e9 / ((double)trace.facts.plain_ns * 2 / 3));
	struct outcome lru = play("lru", percent, link), learned = play("learned", percent, link);
	CHECK(learned.extra_ms <= lru.extra_ms / 2);
}

static void test_gpt2_hides_half_of_what_lru_waits_for(void)
{
	open_gpt2();
	check_hides(75, 2);
	check_hides(50, 2);
	check_hides(75, 1);
	check_hides(50, 1);
	close_trace();
}

static void test_resnet_hides_half_of_what_lru_waits_for(void)
{
	open_resnet();
	check_hides(75, 2);
	check_hides(75, 1);
	check_hides(50, 2);
	check_hides(50, 1);
	close_trace();
}

/* ---- a step that differs ---- */

#define PLAYS 11

static struct {
	hr_device handle;
	hr__device *device;
	uint64_t begin_ns[PLAYS + 1];
} stage;

static hr_status on_busy(void *context, hr_stream stream, uint64_t ns)
{
	(void)context;
	return hr__device_compute(stage.device, stream, ns);
}

static hr_status on_step(void *context, size_t play_number)
{
	(void)context;
	hr_status status = hr_stream_synchronize(stage.handle, HR_STREAM_DEFAULT);
	stage.begin_ns[play_number] = hr__device_clock_ns(stage.device);
	return status;
}

/* Plays parts in sequence; [ms] gets the time of each. */
static void play_parts(const char *policy, uint32_t percent, const uint32_t *parts, double *ms)
{
	hr_simulated_options simulated;
	hr__drive_result result;
	hr_status status;
	hr_simulated_options_init(&simulated);
	simulated.page_bytes = PAGE;
	simulated.link_bytes_per_s = LINK;
	CHECK(hr__align_up(limit_of(percent), PAGE, &simulated.memory_bytes));
	CHECK_STATUS(HR_OK, hr_simulated_configure(&simulated));
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &stage.handle));
	stage.device = hr__device_of(stage.handle, &status);
	hr_allocator allocator = fixture_allocator(stage.handle, limit_of(percent));
	fixture_lms(allocator, policy, UINT64_C(1) << 40);
	hr__drive_options drive = { .allocator = allocator, .plays = parts, .play_count = PLAYS, .busy = on_busy, .step = on_step };
	CHECK_STATUS(HR_OK, hr__drive(&trace.schedule, &drive, &result));
	CHECK_STATUS(HR_OK, hr_shutdown());
	printf("#   %u%% of the peak, %s:", percent, policy);
	for (uint32_t i = 0; i < PLAYS; i++) {
		ms[i] = (double)(stage.begin_ns[i + 1] - stage.begin_ns[i]) / 1e6;
		printf(" %.2f%s", ms[i], i + 1 == PLAYS ? " ms\n" : "");
	}
}

/* Step 3 of the recording has a third of the batch size, and ops that take longer for the new shapes. [times]: limit on the time of
 * the steps after it, relative to those before. */
static void check_differs(uint32_t percent, double times)
{
	uint32_t usual = trace.part, other = hr__schedule_find_step(&trace.schedule, 3);
	const uint32_t parts[PLAYS] = { 1, 2, 3, usual, usual, usual, usual, usual, other, usual, usual };
	double lru[PLAYS], learned[PLAYS];
	CHECK(other != usual);
	play_parts("lru", percent, parts, lru);
	play_parts("learned", percent, parts, learned);
	CHECK(learned[8] <= lru[8]);
	CHECK(learned[9] <= times * learned[7]);
	CHECK(learned[10] <= times * learned[7]);
}

/* At 75, 50 and 40% the different step fits without moves; only at 30% is anything moved. */
static void test_a_step_that_differs_costs_no_more_than_under_lru(void)
{
	open_resnet();
	check_differs(75, 1.02);
	check_differs(50, 1.02);
	check_differs(40, 1.02);
	check_differs(30, 1.02);
	close_trace();
}

TEST_MAIN(T(test_gpt2_is_close_to_the_bound), T(test_resnet_is_close_to_the_bound), T(test_gpt2_hides_half_of_what_lru_waits_for),
          T(test_resnet_hides_half_of_what_lru_waits_for), T(test_a_step_that_differs_costs_no_more_than_under_lru))
