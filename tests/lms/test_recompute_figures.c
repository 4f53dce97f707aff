/* test_recompute_figures.c - the recorded training steps of traces/ with less memory than they need, moved and recomputed, in virtual
 * time: how much longer they take, by the planner's model, beside either means alone, and played by the engine. `headroom plan` prints the
 * same numbers (cli/plan/outlook.h). */
#include "plan/outlook.h"
#include "test.h"

#define PAGE (UINT64_C(2) << 20)
#define LINK UINT64_C(55000000000)

static struct {
	hr__schedule schedule;
	hr__forecast_facts facts;
	hr__forecast_setup setup;
} trace;

static void open_trace(const char *path)
{
	hr_status status = hr__schedule_read(path, HR__FACTS_DEVICE_MOST, NULL, &trace.schedule);
	if (status == HR_UNSUPPORTED) hr_test_skip("the command was built without zlib");
	CHECK_STATUS(HR_OK, status);
	trace.setup = (hr__forecast_setup){ .schedule = &trace.schedule,
		                                .part = hr__schedule_typical_step(&trace.schedule),
		                                .link = LINK,
		                                .page = PAGE,
		                                .repeats = 6,
		                                .policy = "learned" };
	CHECK_STATUS(HR_OK, hr__forecast_facts_find(&trace.schedule, trace.setup.part, &trace.facts));
}

static double times_of(const hr__outlook_step *step)
{
	return (double)step->step_ns / (double)trace.facts.plain_ns;
}

/* At [percent] of the peak, both means together take at most [most] times the time without a limit, and no longer than one alone. */
static void check_times(uint32_t percent, double most)
{
	hr__outlook found;
	CHECK_STATUS(HR_OK, hr__outlook_make(&trace.setup, trace.facts.peak_bytes / 100 * percent, &found));
	const hr__outlook_step *moving = &found.by[HR__BY_MOVING], *again = &found.by[HR__BY_RECOMPUTING], *both = &found.by[HR__BY_BOTH];
	printf("#   %u%% of the peak: moving %.3f, recomputing %.3f, both %.3f, played %.3f\n", percent, times_of(moving),
	       again->fits ? times_of(again) : 0.0, times_of(both), times_of(&found.played));
	CHECK(moving->fits && both->fits && found.played.fits);
	CHECK(times_of(both) <= most);
	CHECK(times_of(&found.played) <= most);
	CHECK_GE(found.played.step_ns, trace.facts.plain_ns + found.played.again_ns);
	CHECK_LE(both->step_ns, moving->step_ns);
	if (again->fits) CHECK_LE(both->step_ns, again->step_ns);
	CHECK_GE(both->step_ns, trace.facts.plain_ns + both->again_ns);
}

/* The same where mapping a page takes as long as on an H200: once memory was gathered, each tensor has its place, and steps map nothing. */
static void check_places(uint32_t percent, double most)
{
	hr__forecast played;
	hr__forecast_setup setup = trace.setup;
	setup.limit = trace.facts.peak_bytes / 100 * percent;
	setup.repeats = 10;
	setup.recompute = true;
	setup.map_ns = 40000;
	CHECK_STATUS(HR_OK, hr__forecast_make(&setup, &played));
	double times = (double)played.step_ns / (double)trace.facts.plain_ns;
	printf("#   %u%% of the peak with places: played %.3f\n", percent, times);
	CHECK(played.fits);
	CHECK_EQ(played.bytes_stitched, 0u);
	CHECK(times <= most);
	hr__forecast_free(&played);
}

static void test_gpt2_at_half_its_memory_takes_little_longer(void)
{
	if (HR_TEST_SANITIZED) hr_test_skip("too slow under a sanitizer; resnet runs");
	open_trace("traces/gpt2b16-use.csv.gz");
	check_times(95, 1.001);
	check_times(78, 1.02);
	check_times(60, 1.08);
	check_times(50, 1.13);
	check_times(40, 1.28);
	check_times(30, 1.24);
	check_places(78, 1.02);
	check_places(50, 1.13);
	hr__schedule_free(&trace.schedule);
}

static void test_resnet_at_half_its_memory_takes_little_longer(void)
{
	open_trace("traces/resnet-use.csv.gz");
	check_times(95, 1.001);
	check_times(70, 1.03);
	check_times(60, 1.05);
	check_times(50, 1.10);
	check_times(40, 1.20);
	check_places(70, 1.03);
	check_places(60, 1.05);
	check_places(50, 1.10);
	check_places(40, 1.20);
	check_places(35, 1.50);
	hr__schedule_free(&trace.schedule);
}

TEST_MAIN(T(test_gpt2_at_half_its_memory_takes_little_longer), T(test_resnet_at_half_its_memory_takes_little_longer))
