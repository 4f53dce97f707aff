/* test_stats_custom.c - a snapshot adds up, whatever statistics a custom allocator returns. */
#include "support_stats.h"
#include "test.h"

static hr_custom_stats says;
static hr_status says_status;
static unsigned char memory[64][4096] __attribute__((aligned(4096)));
static uint32_t taken;

static hr_status give(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)state;
	(void)bytes;
	(void)alignment;
	(void)stream;
	*out = memory[taken++];
	return HR_OK;
}

static hr_status take_back(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state;
	(void)address;
	(void)bytes;
	(void)stream;
	return HR_OK;
}

static hr_status tell(void *state, hr_custom_stats *stats)
{
	(void)state;
	if (says_status) return says_status;
	size_t size = stats->struct_size;
	*stats = says;
	stats->struct_size = size;
	return HR_OK;
}

static void test_statistics_stay_consistent_whatever_a_custom_allocator_reports(void)
{
	static const uint64_t figures[] = { 0, 1, 4096, 100000, UINT64_C(1) << 40, UINT64_C(1) << 62, UINT64_MAX };
	const hr_custom_allocator table = { .struct_size = sizeof table, .alloc = give, .free = take_back, .get_stats = tell };
	hr_allocator_options options;
	hr_allocator allocator;
	hr_device device;
	hr_stats stats;
	void *block;
	CHECK_STATUS(HR_OK, hr_allocator_register("odd", &table, NULL));
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	hr_allocator_options_init(&options);
	options.kind = "odd";
	options.limit_bytes = UINT64_C(1) << 30;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	for (int blocks = 0; blocks < 3; blocks++) {
		for (size_t i = 0; i < 7 * 7 * 7; i++) {
			says = (hr_custom_stats){ 0, figures[i % 7], figures[i / 7 % 7], figures[i / 49] };
			hr_stats_init(&stats);
			CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
			check_identities(&stats);
			CHECK_EQ(stats.bytes_in_use, blocks * 3000);
			hr_stats_init(&stats);
			CHECK_STATUS(HR_OK, hr_device_get_stats(device, &stats));
			check_identities(&stats);
		}
		CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 3000, &block));
	}
	/* Plausible values are used. */
	says = (hr_custom_stats){ 0, 20000, 500000, 8000 };
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	CHECK_EQ(stats.bytes_reserved, 20000);
	CHECK_EQ(stats.bytes_free, 20000 - 9000);
	CHECK_EQ(stats.largest_free_block, 8000);
	/* If the function fails, its values are not used. */
	says_status = HR_DEVICE_ERROR;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	check_identities(&stats);
	CHECK_EQ(stats.bytes_reserved, 9000);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_statistics_stay_consistent_whatever_a_custom_allocator_reports))
