/* test_record_times.c - times of ops in the record of a step (core/lms/policy/record.h): what marks take is not a part of them. */
#include "core/device/device.h"
#include "core/lms/policy/record.h"
#include "fixture.h"
#include "test.h"

#define US UINT64_C(1000)
#define OPS 5u

static hr__device *device;

static uint64_t mark(void)
{
	uint64_t epoch;
	CHECK_STATUS(HR_OK, hr__device_mark_timed(device, HR_STREAM_DEFAULT, &epoch));
	return epoch;
}

static void compute(uint64_t ns)
{
	CHECK_STATUS(HR_OK, hr__device_compute(device, HR_STREAM_DEFAULT, ns));
}

/* Records OPS ops of 10, 20, ... us, the first in two intervals, on a device where a mark takes [mark_ns], and is idle for [idle_ns] more between ops.
 * [early]: times are read while the step runs. */
static void check_times(uint64_t mark_ns, uint64_t idle_ns, bool early, uint64_t surplus_ns)
{
	hr__record record = { 0 };
	hr__record_clear(&record);
	for (uint32_t i = 0; i < OPS; i++) {
		CHECK(hr__record_op(&record));
		for (uint32_t part = 0; part < (i ? 1 : 2); part++) {
			compute(mark_ns + idle_ns);
			hr__record_begin_interval(&record, HR_STREAM_DEFAULT, mark());
			compute((i + 1) * (i ? 10 : 5) * US + mark_ns);
			hr__record_end_interval(&record, mark());
		}
		if (early) hr__record_time(device, &record, 4);
	}
	hr__record_close_intervals(&record);
	for (int again = 0; again < 3; again++) hr__record_time(device, &record, UINT32_MAX);
	CHECK(hr__record_is_timed(&record));
	for (uint32_t i = 0; i < OPS; i++) CHECK_EQ(HR__RECORD_AT(hr__recorded_op, record.ops, i).ns, (i + 1) * 10 * US + (i ? 1 : 2) * surplus_ns);
	hr__record_free(&record);
}

static void test_marks_are_not_a_part_of_ops(void)
{
	CHECK_STATUS(HR_OK, hr__device_named("SIM:0", &device));
	check_times(0, 0, false, 0);
	check_times(1220, 0, false, 0);
	check_times(1220, 0, true, 0);
}

/* Then it is not known what a mark takes. */
static void test_idle_time_between_all_ops_is_not_that_of_marks(void)
{
	CHECK_STATUS(HR_OK, hr__device_named("SIM:0", &device));
	check_times(1220, 50 * US, false, 1220);
}

TEST_MAIN(T(test_marks_are_not_a_part_of_ops), T(test_idle_time_between_all_ops_is_not_that_of_marks))
