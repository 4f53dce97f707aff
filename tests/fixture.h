/* fixture.h - what many tests begin with: a device, an allocator, Large Model Support, tensors, and their figures. A step that fails
 * fails the test. */
#ifndef HR_TESTS_FIXTURE_H
#define HR_TESTS_FIXTURE_H

#include "headroom.h"
#include "headroom_backend.h"
#include "headroom_lms.h"
#include "test.h"

/* Finds a device. */
HR_TEST_UNUSED static hr_device fixture_device(const char *name)
{
	hr_device device;
	CHECK_STATUS(HR_OK, hr_device_find(name, &device));
	return device;
}

#define FIXTURE_DEFAULT UINT64_MAX /* the default of an option */

/* Makes GPU:0 an emulated device, also on a machine with a card. A link of 0 has the speed of memory. */
HR_TEST_UNUSED static void fixture_configure_emulated(uint64_t memory_bytes, uint64_t page_bytes, uint64_t link_bytes_per_s)
{
	hr_emulated_options options;
	setenv("HEADROOM_CUDA", "0", 1);
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	if (memory_bytes != FIXTURE_DEFAULT) options.memory_bytes = memory_bytes;
	if (page_bytes != FIXTURE_DEFAULT) options.page_bytes = page_bytes;
	options.link_bytes_per_s = link_bytes_per_s;
	CHECK_STATUS(HR_OK, hr_emulated_configure(&options));
}

HR_TEST_UNUSED static hr_device fixture_emulated(uint64_t memory_bytes, uint64_t page_bytes, uint64_t link_bytes_per_s)
{
	fixture_configure_emulated(memory_bytes, page_bytes, link_bytes_per_s);
	return fixture_device("GPU:0");
}

HR_TEST_UNUSED static void fixture_configure_simulated(uint64_t memory_bytes, uint64_t page_bytes)
{
	hr_simulated_options options;
	hr_simulated_options_init(&options);
	if (memory_bytes != FIXTURE_DEFAULT) options.memory_bytes = memory_bytes;
	if (page_bytes != FIXTURE_DEFAULT) options.page_bytes = page_bytes;
	CHECK_STATUS(HR_OK, hr_simulated_configure(&options));
}

HR_TEST_UNUSED static hr_device fixture_simulated(uint64_t memory_bytes, uint64_t page_bytes)
{
	fixture_configure_simulated(memory_bytes, page_bytes);
	return fixture_device("SIM:0");
}

/* The default options of an allocator, with a limit; 0 = the default. */
HR_TEST_UNUSED static hr_allocator_options fixture_allocator_options(uint64_t limit_bytes)
{
	hr_allocator_options options;
	hr_allocator_options_init(&options);
	if (limit_bytes) options.limit_bytes = limit_bytes;
	return options;
}

HR_TEST_UNUSED static hr_allocator fixture_allocator(hr_device device, uint64_t limit_bytes)
{
	hr_allocator allocator;
	hr_allocator_options options = fixture_allocator_options(limit_bytes);
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	return allocator;
}

/* Options that turn Large Model Support on. [policy] NULL and [host_limit] 0 = the default. */
HR_TEST_UNUSED static hr_lms_options fixture_lms_options(const char *policy, uint64_t host_limit)
{
	hr_lms_options options;
	CHECK_STATUS(HR_OK, hr_lms_options_init(&options));
	options.enabled = true;
	if (policy) options.policy = policy;
	if (host_limit) options.host_limit = host_limit;
	return options;
}

HR_TEST_UNUSED static void fixture_lms(hr_allocator allocator, const char *policy, uint64_t host_limit)
{
	hr_lms_options options = fixture_lms_options(policy, host_limit);
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &options));
}

HR_TEST_UNUSED static hr_tensor fixture_tensor(hr_allocator allocator, size_t bytes)
{
	hr_tensor tensor;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = bytes;
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &tensor));
	return tensor;
}

HR_TEST_UNUSED static hr_stream fixture_stream(hr_device device)
{
	hr_stream stream;
	CHECK_STATUS(HR_OK, hr_stream_create(device, &stream));
	return stream;
}

HR_TEST_UNUSED static hr_stats fixture_stats(hr_allocator allocator)
{
	hr_stats stats;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	return stats;
}

HR_TEST_UNUSED static hr_lms_stats fixture_lms_stats(hr_allocator allocator)
{
	hr_lms_stats stats = { .struct_size = sizeof stats };
	CHECK_STATUS(HR_OK, hr_lms_get_stats(allocator, &stats));
	return stats;
}

HR_TEST_UNUSED static hr_tensor_info fixture_tensor_info(hr_tensor tensor)
{
	hr_tensor_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_tensor_get_info(tensor, &info));
	return info;
}

#endif
