/* test_allocator_regression.c - fixed bugs, each as the promise that it broke. */
#include <string.h>

#include "fixture.h"
#include "headroom_backend.h"
#include "test.h"

#define PAGE (2u << 20)

static hr_device device_of(const char *name)
{
	hr_device device;
	CHECK_STATUS(HR_OK, hr_device_find(name, &device));
	return device;
}

static hr_allocator allocator_on(const char *name, uint64_t limit, bool stitch)
{
	hr_allocator allocator;
	hr_allocator_options options = fixture_allocator_options(limit);
	options.stitch = stitch;
	CHECK_STATUS(HR_OK, hr_allocator_create(device_of(name), &options, &allocator));
	return allocator;
}

static void simulate(uint64_t pages)
{
	fixture_configure_simulated(pages * PAGE, FIXTURE_DEFAULT);
}

/* A large free chunk was not used, because the arena assumed that its tail could still grow; another allocator had the memory. */
static void test_free_memory_is_used_when_the_tail_cannot_grow(void)
{
	simulate(1000);
	hr_allocator a = allocator_on("SIM:0", 0, false), b = allocator_on("SIM:0", 0, false);
	void *first, *second, *third, *small;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(a, 600ull * PAGE, &first));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(a, PAGE, &second));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(b, 399ull * PAGE, &third));
	CHECK_STATUS(HR_OK, hr_free(a, first, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(a, 4096, &small));
	CHECK_STATUS(HR_OK, hr_allocator_check(a));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Bytes of a refused request were counted in the peak of reserved bytes. */
static void test_refused_memory_is_not_in_the_peak(void)
{
	simulate(10);
	hr_allocator a = allocator_on("SIM:0", 0, true), b = allocator_on("SIM:0", 0, true);
	void *first, *second;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(a, 6 * PAGE, &first));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(b, 6 * PAGE, &second));
	hr_stats stats = fixture_stats(b);
	CHECK_EQ(stats.peak_bytes_reserved, 0);
	CHECK_STATUS(HR_OK, hr_device_get_stats(device_of("SIM:0"), &stats));
	CHECK_EQ(stats.peak_bytes_reserved, 6 * PAGE);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* A custom allocator on top of another one hung: its functions were called with the registry's lock held. */
static hr_status open_on_top(void *user, hr_device device, uint64_t limit, void **state)
{
	static hr_allocator inner;
	(void)user;
	hr_allocator_options options = fixture_allocator_options(limit);
	*state = &inner;
	return hr_allocator_create(device, &options, &inner);
}

static void close_on_top(void *state)
{
	hr_allocator_destroy_all(*(hr_allocator *)state);
}

static hr_status alloc_on_top(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	hr_request request = HR_REQUEST(bytes);
	request.alignment = alignment;
	request.stream = stream;
	return hr_alloc(*(hr_allocator *)state, &request, out);
}

static hr_status free_on_top(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)bytes;
	return hr_free(*(hr_allocator *)state, address, stream);
}

static hr_allocator on_top_of_bfc(void)
{
	hr_custom_allocator table = { .struct_size = sizeof table,
		                          .open = open_on_top,
		                          .close = close_on_top,
		                          .alloc = alloc_on_top,
		                          .free = free_on_top };
	hr_allocator_options options;
	hr_allocator allocator;
	CHECK_STATUS(HR_OK, hr_allocator_register("on_top", &table, NULL));
	hr_allocator_options_init(&options);
	options.kind = "on_top";
	CHECK_STATUS(HR_OK, hr_allocator_create(device_of("SIM:0"), &options, &allocator));
	return allocator;
}

static void test_a_custom_allocator_may_use_another(void)
{
	simulate(1000);
	void *block;
	hr_allocator allocator = on_top_of_bfc();
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 1000, &block));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	simulate(1000);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(on_top_of_bfc(), 1000, &block));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* hr_allocation_record_stream had no effect on a custom allocator, which is passed only one stream: that stream must wait for the others. */
static void test_streams_recorded_on_a_custom_block_are_waited_for(void)
{
	simulate(1000);
	void *block;
	hr_stream other;
	hr_stats before, after;
	hr_allocator allocator = on_top_of_bfc();
	CHECK_STATUS(HR_OK, hr_stream_create(device_of("SIM:0"), &other));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 1000, &block));
	CHECK_STATUS(HR_OK, hr_allocation_record_stream(allocator, block, other));
	hr_stats_init(&before);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &before));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	hr_stats_init(&after);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &after));
	CHECK_EQ(after.num_stream_waits - before.num_stream_waits, 1);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Closing an allocator released memory that a stream still used, if no event could be created. */
static void test_closing_waits_for_streams_without_events(void)
{
	hr_allocator allocator = allocator_on("GPU:0", 0, true);
	hr_device device = device_of("GPU:0");
	hr_stream stream;
	void *block;
	for (uint64_t nth = 1; nth <= 4; nth++) {
		CHECK_STATUS(HR_OK, hr_stream_create(device, &stream));
		CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 256 << 20, &block));
		for (int i = 0; i < 4; i++) CHECK_STATUS(HR_OK, hr_stream_fill(device, block, (unsigned char)i, 256 << 20, stream));
		hr_backend_fail_nth(nth, false, HR_DEVICE_ERROR);
		CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
		hr_backend_fail_nth(0, false, HR_OK);
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
		allocator = allocator_on("GPU:0", 0, true);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_free_memory_is_used_when_the_tail_cannot_grow), T(test_refused_memory_is_not_in_the_peak),
          T(test_a_custom_allocator_may_use_another), T(test_streams_recorded_on_a_custom_block_are_waited_for),
          T(test_closing_waits_for_streams_without_events))
