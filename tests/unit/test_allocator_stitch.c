/* test_allocator_stitch.c - a request succeeds if enough pages are free, wherever they are and whatever its alignment. */
#include "fixture.h"
#include "core/memory/bfc/tensor_block.h"
#include "test.h"

#define PAGE UINT64_C(65536)
#define PAGES 8u

static hr_device device;

static hr_allocator eight_pages(bool stitch)
{
	hr_allocator allocator;
	hr_allocator_options options = fixture_allocator_options(PAGES * PAGE);
	options.thread_cache = false;
	options.stitch = stitch;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	return allocator;
}

static void *take(hr_allocator allocator, uint64_t bytes, uint64_t alignment)
{
	hr_request request = HR_REQUEST(bytes);
	void *block = NULL;
	request.alignment = alignment;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
	if (alignment) CHECK_EQ((uintptr_t)block % alignment, 0);
	return block;
}

static void find_device(void)
{
	device = fixture_simulated(64 << 20, PAGE);
}

/* Some pages are in use, the rest after them is free, and the limit is reached: any request for the rest succeeds, at any
 * alignment. */
static void test_free_pages_at_the_end_meet_any_request_that_they_could(void)
{
	find_device();
	for (uint64_t used = 1; used < PAGES; used++)
		for (uint64_t asked = 1; asked <= PAGES - used; asked++)
			for (uint64_t alignment = 256; alignment <= PAGES * PAGE; alignment *= 2) {
				hr_allocator allocator = eight_pages(true);
				take(allocator, used * PAGE, 0);
				CHECK_STATUS(HR_OK, hr_free(allocator, take(allocator, (PAGES - used) * PAGE, 0), HR_STREAM_DEFAULT));
				take(allocator, asked * PAGE, alignment);
				CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
				CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
			}
}

/* Eight blocks of a page, any subset of which is freed: all free pages can be allocated as one block, however they are scattered.
 * */
static void test_scattered_free_pages_meet_every_request_they_are_enough_for(void)
{
	find_device();
	for (unsigned freed = 1; freed < 1u << PAGES; freed++)
		for (uint64_t alignment = 256; alignment <= 4 * PAGE; alignment *= 4) {
			hr_allocator allocator = eight_pages(true);
			void *blocks[PAGES];
			hr_stats stats;
			uint64_t count = (uint64_t)__builtin_popcount(freed);
			for (unsigned i = 0; i < PAGES; i++) blocks[i] = take(allocator, PAGE, 0);
			for (unsigned i = 0; i < PAGES; i++)
				if (freed >> i & 1) CHECK_STATUS(HR_OK, hr_free(allocator, blocks[i], HR_STREAM_DEFAULT));
			take(allocator, count * PAGE - 256, alignment);
			hr_stats_init(&stats);
			CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
			CHECK_EQ(stats.bytes_reserved, PAGES * PAGE); /* no additional page */
			CHECK_LE(stats.bytes_stitched, count * PAGE);
			CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
			CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
		}
}

/* Without stitching such a request is refused, and no page was moved. */
static void test_without_stitching_pages_stay_where_they_are(void)
{
	void *blocks[PAGES], *out;
	hr_stats stats;
	find_device();
	hr_allocator allocator = eight_pages(false);
	for (unsigned i = 0; i < PAGES; i++) blocks[i] = take(allocator, PAGE, 0);
	for (unsigned i = 0; i < PAGES; i += 2) CHECK_STATUS(HR_OK, hr_free(allocator, blocks[i], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 2 * PAGE, &out));
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	CHECK_EQ(stats.num_stitches, 0);
	CHECK_EQ(stats.bytes_free, 4 * PAGE);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Tensors have places in the gathered memory, so a block of half a page stays out of it, as long as there is other memory. */
static void test_no_more_is_gathered_than_asked_for(void)
{
	hr_status status;
	hr_allocator_options options = fixture_allocator_options(512 * PAGE);
	find_device();
	hr_allocator handle;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &handle));
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	uint64_t area = 0, bytes = 0;
	CHECK_STATUS(HR_OK, hr__blocks_gather(allocator, 100 * PAGE - 1, &area, &bytes));
	CHECK_GE(bytes, 100 * PAGE - 1);
	CHECK_LE(bytes, 101 * PAGE);
	CHECK_LE(fixture_stats(handle).bytes_reserved, (int64_t)(101 * PAGE)); /* the rest is not mapped yet */
	CHECK_STATUS(HR_OK, hr_allocator_destroy(handle));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_small_blocks_stay_out_of_gathered_memory(void)
{
	hr_status status;
	hr_allocator_options options = fixture_allocator_options(512 * PAGE);
	find_device();
	hr_allocator handle;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &handle));
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	uint64_t area = 0, bytes = 0;
	CHECK_STATUS(HR_OK, hr__blocks_gather(allocator, UINT64_MAX, &area, &bytes));
	CHECK_GT(bytes, 500 * PAGE);
	void *before = take(handle, 5 * PAGE / 4, 0);
	CHECK((uintptr_t)before >= area && (uintptr_t)before < area + bytes); /* so a block of this kind is in the area otherwise */
	hr__blocks_keep_apart(allocator);
	for (int i = 0; i < 2; i++) {
		void *block = take(handle, PAGE / 2, 0);
		CHECK((uintptr_t)block < area || (uintptr_t)block >= area + bytes);
	}
	for (int i = 0; i < 800; i++) take(handle, PAGE / 2, 0); /* then the area is used all the same */
	CHECK_STATUS(HR_OK, hr_allocator_check(handle));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_no_more_is_gathered_than_asked_for), T(test_small_blocks_stay_out_of_gathered_memory), T(test_free_pages_at_the_end_meet_any_request_that_they_could),
          T(test_scattered_free_pages_meet_every_request_they_are_enough_for), T(test_without_stitching_pages_stay_where_they_are))
