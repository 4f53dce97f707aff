/* support_misuse.h - one mistake of a program, and its exact error. */
#ifndef HR_TESTS_SUPPORT_MISUSE_H
#define HR_TESTS_SUPPORT_MISUSE_H

#include <stdarg.h>

#include "test.h"

#define MISUSE_UNUSED __attribute__((unused))
#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

/* Checks the status and the whole message. */
#define EXPECT(status, call, ...)                   \
	do {                                            \
		char hr_expected_[512];                     \
		CHECK_STATUS(status, call);                 \
		snprintf(hr_expected_, 512, __VA_ARGS__);   \
		CHECK_STR(hr_last_message(), hr_expected_); \
	} while (0)

/* A simulated device of 1 GiB in pages of 2 MiB. */
MISUSE_UNUSED static hr_device device(void)
{
	hr_simulated_options options;
	hr_device found;
	hr_simulated_options_init(&options);
	options.memory_bytes = 1024 * MIB;
	CHECK_STATUS(HR_OK, hr_simulated_configure(&options));
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &found));
	return found;
}

MISUSE_UNUSED static hr_allocator allocator(void)
{
	hr_allocator made;
	CHECK_STATUS(HR_OK, hr_allocator_create(device(), NULL, &made));
	return made;
}

MISUSE_UNUSED static void *block_of(hr_allocator from, size_t bytes)
{
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(from, bytes, &block));
	return block;
}

/* After a mistake the state is unchanged, and everything still works. */
MISUSE_UNUSED static void still_works(hr_allocator a, int64_t live)
{
	hr_stats stats;
	void *block;
	CHECK_STATUS(HR_OK, hr_allocator_check(a));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(a, 1000, &block));
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(a, &stats));
	CHECK_EQ(stats.num_live, live + 1);
	CHECK_STATUS(HR_OK, hr_free(a, block, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_allocator_check(a));
}

#endif
