/* support_session.h - a session on an emulated device, and the statistics of its allocator. */
#ifndef HR_TESTS_SUPPORT_SESSION_H
#define HR_TESTS_SUPPORT_SESSION_H

#include "fixture.h"
#include "headroom.h"
#include "headroom_runtime.h"
#include "test.h"

static hr_session session;
static hr_allocator allocator;

/* Opens it with an allocator of its own, of [limit] bytes; 0 = the device's default allocator. */
HR_TEST_UNUSED static void open_session(uint64_t limit)
{
	hr_session_options options;
	hr_device device;
	setenv("HEADROOM_CUDA", "0", 1);
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
	if (limit) {
		allocator = fixture_allocator(device, limit);
		options.allocator = allocator;
	} else {
		CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	}
	CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
}

HR_TEST_UNUSED static hr_stats stats_of(void)
{
	return fixture_stats(allocator);
}

/* Checks that nothing is left in it. */
HR_TEST_UNUSED static void close_session(void)
{
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_EQ(stats_of().bytes_in_use, 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* The number in a value of one element. */
HR_TEST_UNUSED static float number_in(hr_value value)
{
	float number = -1;
	CHECK_STATUS(HR_OK, hr_value_fetch(value, &number, sizeof number));
	return number;
}

#endif
