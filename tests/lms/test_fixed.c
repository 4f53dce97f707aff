/* test_fixed.c - tensors with a stable address: pages are mapped and unmapped there, within every limit, with no other effect. */
#include "fixture.h"
#include "fake_cuda/load.h"
#include "fault_os.h"
#include "headroom_backend.h"
#include "headroom_lms.h"
#include "headroom_oom.h"
#include "support_stats.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define PAGE (64 * KIB)

static hr_device device;
static hr_allocator allocator;
static uint64_t limit, host_limit = 512 * MIB;

/* ---- a device, and tensors on it ---- */

static void set_up_device(uint64_t memory)
{
	device = fixture_emulated(memory, PAGE, 0);
}

static hr_lms_options lms_options(const char *policy)
{
	hr_lms_options options = fixture_lms_options(policy, host_limit);
	options.wait_ns = 0;
	return options;
}

static hr_allocator make_allocator(uint64_t bytes, const hr_lms_options *lms)
{
	hr_allocator made = fixture_allocator(device, bytes);
	if (lms) CHECK_STATUS(HR_OK, hr_lms_configure(made, lms));
	return made;
}

static void set_up(uint64_t bytes, hr_lms_safety safety)
{
	hr_lms_options options = lms_options("lru");
	options.safety = safety;
	set_up_device(256 * MIB);
	limit = bytes;
	allocator = make_allocator(bytes, &options);
}

static hr_tensor create_on(hr_allocator on, size_t bytes, bool fixed)
{
	hr_tensor tensor;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = bytes;
	options.fixed = fixed;
	options.op = hr_name_intern(fixed ? "fixed_op" : "movable_op");
	CHECK_STATUS(HR_OK, hr_tensor_create(on, &options, &tensor));
	return tensor;
}

static hr_tensor create(size_t bytes)
{
	return create_on(allocator, bytes, true);
}

static hr_tensor_info info_of(hr_tensor tensor)
{
	return fixture_tensor_info(tensor);
}

static hr_lms_stats lms_stats(void)
{
	return fixture_lms_stats(allocator);
}

/* Also checks everything that must hold whenever no thread is inside a call. */
static hr_stats stats_of(void)
{
	hr_stats stats = fixture_stats(allocator);
	check_identities(&stats);
	CHECK_LE(stats.peak_bytes_reserved, (int64_t)limit);
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	return stats;
}

static unsigned char byte_of(uint64_t seed, size_t at)
{
	return (unsigned char)((seed * 31 + at) ^ (at >> 8) ^ (at >> 16) * 7);
}

static void *address_of(hr_tensor tensor)
{
	void *at;
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	return at;
}

/* Writes contents that differ at every byte; returns the address. */
HR_TEST_PRIVATE static void make_contents(unsigned char *to, size_t bytes, uint64_t seed)
{
	for (size_t i = 0; i < bytes; i++) to[i] = byte_of(seed, i);
}

static void *fill_on(hr_tensor tensor, uint64_t seed, hr_stream stream)
{
	size_t bytes = info_of(tensor).bytes;
	unsigned char *contents = malloc(bytes);
	make_contents(contents, bytes, seed);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, stream));
	void *at = address_of(tensor);
	CHECK_STATUS(HR_OK, hr_stream_copy(device, at, contents, bytes, HR_COPY_TO_DEVICE, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, stream));
	free(contents);
	return at;
}

static void *fill(hr_tensor tensor, uint64_t seed)
{
	return fill_on(tensor, seed, HR_STREAM_DEFAULT);
}

static bool holds(const unsigned char *contents, size_t bytes, uint64_t seed)
{
	unsigned char *expected = malloc(bytes);
	make_contents(expected, bytes, seed);
	bool same = memcmp(contents, expected, bytes) == 0;
	free(expected);
	return same;
}

/* Checks device memory, pinned or not. */
static void expect_at(const void *at, size_t bytes, uint64_t seed, hr_stream stream)
{
	unsigned char *contents = malloc(bytes);
	CHECK_STATUS(HR_OK, hr_stream_copy(device, contents, at, bytes, HR_COPY_TO_HOST, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
	CHECK(holds(contents, bytes, seed));
	free(contents);
}

static void *expect_on(hr_tensor tensor, uint64_t seed, hr_stream stream)
{
	size_t bytes = info_of(tensor).bytes;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, stream));
	void *at = address_of(tensor);
	expect_at(at, bytes, seed, stream);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, stream));
	return at;
}

static void *expect(hr_tensor tensor, uint64_t seed)
{
	return expect_on(tensor, seed, HR_STREAM_DEFAULT);
}

static void tear_down(void)
{
	stats_of();
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- the address ---- */

static void hold_the_address(hr_lms_safety safety, bool verify)
{
	hr_lms_options options = lms_options("lru");
	uint64_t random = hr_test_seed(), seeds[6] = { 0 };
	size_t bytes[6] = { PAGE, PAGE + 1, 3 * PAGE - 7, 16 * PAGE, 40 * PAGE + 4096, 2 * PAGE };
	hr_tensor tensors[6];
	void *at[6];
	options.safety = safety;
	options.verify = verify;
	set_up_device(64 * MIB);
	limit = 16 * MIB;
	allocator = make_allocator(limit, &options);
	for (int i = 0; i < 6; i++) {
		tensors[i] = create(bytes[i]);
		at[i] = fill(tensors[i], seeds[i] = hr_rand(&random));
		CHECK_EQ((uintptr_t)at[i] % PAGE, 0u);
		CHECK_EQ(info_of(tensors[i]).device_bytes, (bytes[i] + PAGE - 1) / PAGE * PAGE);
	}
	for (uint64_t round = 0; round < hr_test_scaled(300); round++) {
		int i = (int)hr_rand_below(&random, 6);
		switch (hr_rand_below(&random, 5)) {
		case 0:
			CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[i]));
			CHECK_EQ(info_of(tensors[i]).state, HR_TENSOR_EVICTED);
			CHECK_EQ(info_of(tensors[i]).host_bytes, bytes[i]);
			break;
		case 1: CHECK_STATUS(HR_OK, hr_tensor_prefetch(tensors[i])); break;
		case 2: CHECK_EQ(fill(tensors[i], seeds[i] = hr_rand(&random)), at[i]); break;
		default: CHECK_EQ(expect(tensors[i], seeds[i]), at[i]);
		}
	}
	for (int i = 0; i < 6; i++) CHECK_EQ(expect(tensors[i], seeds[i]), at[i]);
	CHECK_GT(lms_stats().num_evictions, 2);
	for (int i = 0; i < 6; i++) CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[i]));
	hr_stats stats = stats_of();
	CHECK_EQ(stats.bytes_in_use, 0);
	CHECK_EQ(stats.bytes_reserved, 0); /* nothing else is on this allocator */
	CHECK_EQ(stats.num_live, 0);
	CHECK_EQ(lms_stats().host_bytes, 0);
	CHECK_EQ(lms_stats().bytes_out_now, 0);
	tear_down();
}

static void test_the_address_is_stable_under_random_operations(void)
{
	hold_the_address(HR_SAFETY_NONE, false);
}

static void test_the_address_is_stable_with_shadows(void)
{
	hold_the_address(HR_SAFETY_HOST_MAPPED, false);
}

static void test_the_address_is_stable_under_verify(void)
{
	hold_the_address(HR_SAFETY_HOST_MAPPED, true);
}

static void test_the_address_has_the_requested_alignment(void)
{
	set_up(16 * MIB, HR_SAFETY_NONE);
	hr_tensor tensor, small;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = 3 * PAGE;
	options.alignment = 4 * MIB;
	options.fixed = true;
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &tensor));
	options.bytes = 100;
	options.alignment = 4096;
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &small));
	void *at = fill(tensor, 3), *there = fill(small, 4);
	CHECK_EQ((uintptr_t)at % (4 * MIB), 0u);
	CHECK_EQ((uintptr_t)there % 4096, 0u);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(expect(tensor, 3), at);
	tear_down();
}

static void touch(void *at)
{
	*(volatile unsigned char *)at = 1;
}

static void test_accessing_an_evicted_tensor_faults(void)
{
	set_up(16 * MIB, HR_SAFETY_NONE);
	hr_tensor tensor = create(4 * PAGE);
	void *at = fill(tensor, 1);
	CHECK(!hr_test_crashes(touch, at));
	fill(tensor, 1); /* the child wrote to it: memory of the device is shared */
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK(hr_test_crashes(touch, at));
	expect(tensor, 1);
	CHECK(!hr_test_crashes(touch, at));
	tear_down();
}

/* ---- small ones ---- */

static void test_a_fixed_tensor_smaller_than_a_page_is_never_evicted(void)
{
	set_up(4 * MIB, HR_SAFETY_HOST_MAPPED);
	hr_tensor small = create(PAGE - 1), large = create_on(allocator, 3 * MIB, false), more = create_on(allocator, 3 * MIB, false);
	void *at = fill(small, 5);
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_evict(small));
	CHECK_CONTAINS(hr_last_message(), "smaller than a page");
	CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(small, false));
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_evict(small));
	CHECK(!info_of(small).never_evict);
	CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(small, true));
	CHECK(info_of(small).never_evict);
	for (uint64_t i = 0; i < 4; i++) {
		fill(large, i);
		fill(more, i);
	}
	CHECK_NE(info_of(small).state, HR_TENSOR_EVICTED);
	CHECK_STATUS(HR_OK, hr_lms_reclaim_inactive(allocator, HR_NAME_NONE, NULL));
	CHECK_NE(info_of(small).state, HR_TENSOR_EVICTED);
	CHECK_EQ(expect(small, 5), at);
	CHECK_STATUS(HR_BAD_LIMIT, hr_lms_set_limit(allocator, 1024)); /* it cannot be evicted */
	tear_down();
}

/* ---- statistics and the ledger ---- */

static void test_statistics_and_holders_count_them(void)
{
	set_up(16 * MIB, HR_SAFETY_NONE);
	hr_tensor a = create(10 * PAGE - 100), b = create(5 * PAGE);
	void *at = fill(a, 1);
	fill(b, 2);
	hr_stats stats = stats_of();
	CHECK_EQ(stats.bytes_in_use, 15 * PAGE);
	CHECK_EQ(stats.bytes_requested, 15 * PAGE - 100);
	CHECK_EQ(stats.bytes_reserved, 15 * PAGE);
	CHECK_EQ(stats.bytes_inactive, 15 * PAGE);
	CHECK_EQ(stats.num_allocs, 2);
	CHECK_EQ(stats.source_grow, 2);
	CHECK_EQ(stats.largest_alloc_size, 10 * PAGE);
	CHECK_EQ(stats.bytes_free, 0);

	hr_holder holders[4];
	hr_allocation_info info[4], one = { .struct_size = sizeof one };
	size_t count;
	CHECK_STATUS(HR_OK, hr_allocator_get_holders(allocator, HR_BY_OP, holders, 4, &count));
	CHECK_EQ(count, 1u);
	CHECK_EQ(holders[0].bytes, 15 * PAGE);
	CHECK_STR(hr_name_text(holders[0].name), "fixed_op");
	CHECK_STATUS(HR_OK, hr_allocator_get_largest(allocator, info, 4, &count));
	CHECK_EQ(count, 2u);
	CHECK_EQ(info[0].address, at);
	CHECK_STATUS(HR_OK, hr_allocation_get_info(allocator, at, &one));
	CHECK_EQ(one.bytes, 10 * PAGE);
	CHECK_STATUS(HR_NOT_ALLOCATED, hr_free(allocator, at, HR_STREAM_DEFAULT)); /* it belongs to a tensor */

	CHECK_STATUS(HR_OK, hr_tensor_evict(a));
	stats = stats_of();
	CHECK_EQ(stats.bytes_in_use, 5 * PAGE);
	CHECK_EQ(stats.bytes_reserved, 5 * PAGE); /* its pages are returned to the device */
	CHECK_EQ(stats.bytes_reclaimed, 10 * PAGE);
	CHECK_EQ(stats.num_live, 2);
	CHECK_EQ(stats.num_frees, 0);
	CHECK_STATUS(HR_NOT_ALLOCATED, hr_allocation_get_info(allocator, at, &one));
	expect(a, 1);
	stats = stats_of();
	CHECK_EQ(stats.num_allocs, 2);
	CHECK_EQ(stats.peak_bytes_in_use, 15 * PAGE);
	CHECK_STATUS(HR_OK, hr_tensor_evict(b));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(b));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(a));
	stats = stats_of();
	CHECK_EQ(stats.num_frees, 2);
	CHECK_EQ(stats.num_live, 0);
	CHECK_EQ(stats.bytes_reserved, 0);
	CHECK_STATUS(HR_OK, hr_reset_memory_stats("GPU:0"));
	CHECK_EQ(stats_of().num_allocs, 0);
	tear_down();
}

static void test_a_clean_fixed_tensor_is_evicted_without_a_copy(void)
{
	for (int safety = HR_SAFETY_NONE; safety <= HR_SAFETY_HOST_MAPPED; safety++) {
		set_up(16 * MIB, (hr_lms_safety)safety);
		hr_tensor tensor = create(4 * PAGE);
		fill(tensor, 1);
		CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
		expect(tensor, 1);
		CHECK_EQ(info_of(tensor).state, HR_TENSOR_SYNCED);
		CHECK_EQ(lms_stats().num_clean_evictions, 0);
		CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
		CHECK_EQ(lms_stats().num_clean_evictions, 1);
		CHECK_EQ(lms_stats().bytes_copied_out, 4 * PAGE);
		CHECK_EQ(lms_stats().host_bytes, 4 * PAGE);
		int64_t copied_in = lms_stats().bytes_copied_in;
		fill(tensor, 2); /* overwrites: nothing is restored */
		CHECK_EQ(lms_stats().bytes_copied_in, copied_in);
		CHECK_EQ(lms_stats().host_bytes, 0);
		CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
		expect(tensor, 2);
		tear_down();
	}
}

static void test_an_out_of_memory_report_shows_them(void)
{
	static char text[1 << 20];
	hr_oom_options oom;
	set_up(4 * MIB, HR_SAFETY_NONE);
	hr_oom_options_init(&oom);
	oom.report_allocations_on_oom = true;
	CHECK_STATUS(HR_OK, hr_allocator_set_oom_options(allocator, &oom));
	hr_tensor kept = create(2 * MIB), more = create(3 * MIB), huge = create(5 * MIB);
	fill(kept, 1);
	CHECK_STATUS(HR_OK, hr_tensor_pin(kept, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(more, HR_WRITE, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "smallest sufficient limit is 5.0 MiB");
	hr_oom_report report;
	hr_verdict verdict = { .struct_size = sizeof verdict };
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	CHECK_STATUS(HR_OK, hr_oom_get_verdict(report, &verdict));
	CHECK_EQ(verdict.kind, HR_NEEDS_MORE);
	CHECK_EQ(verdict.bytes, MIB);
	CHECK_GT(hr_oom_format_text(report, text, sizeof text), 0u);
	CHECK_CONTAINS(text, "fixed_op");
	CHECK_CONTAINS(text, "large blocks: 2.0 MiB, 100.0% in use");
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(huge, HR_WRITE, HR_STREAM_DEFAULT));
	CHECK_EQ(stats_of().num_failed_allocs, 2);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(kept, HR_STREAM_DEFAULT));
	fill(more, 2);
	expect(kept, 1);
	tear_down();
}

/* ---- pressure ---- */

static void test_they_make_room_for_each_other(void)
{
	set_up(8 * MIB, HR_SAFETY_NONE);
	hr_tensor tensors[8];
	void *at[8];
	for (uint64_t i = 0; i < 8; i++) {
		tensors[i] = create(3 * MIB - i * 5000);
		at[i] = fill(tensors[i], i);
	}
	for (int round = 0; round < 3; round++)
		for (uint64_t i = 0; i < 8; i++) {
			CHECK_EQ(expect(tensors[i], i), at[i]);
			stats_of();
		}
	CHECK_GT(lms_stats().num_single_reclaims, 8);
	hr_tensor all = create(8 * MIB);
	fill(all, 9);
	CHECK_EQ(lms_stats().num_full_reclaims, 1);
	tear_down();
}

/* A movable tensor or a plain block gets the pages of evicted fixed tensors, and vice versa. */
static void test_fixed_and_movable_make_room_for_each_other(void)
{
	set_up(8 * MIB, HR_SAFETY_NONE);
	hr_tensor fixed[3], movable[3];
	void *at[3], *block;
	for (uint64_t i = 0; i < 3; i++) {
		fixed[i] = create(2 * MIB + 3);
		movable[i] = create_on(allocator, 2 * MIB + 12345 * i, false);
		at[i] = fill(fixed[i], i);
		fill(movable[i], 10 + i);
	}
	for (int round = 0; round < 5; round++) {
		for (uint64_t i = 0; i < 3; i++) {
			expect(movable[i], 10 + i);
			CHECK_EQ(expect(fixed[(i + (uint64_t)round) % 3], (i + (uint64_t)round) % 3), at[(i + (uint64_t)round) % 3]);
			stats_of();
		}
	}
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 7 * MIB, &block)); /* all must be evicted */
	stats_of();
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(fixed[0], HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_prefetch(fixed[0]));
	CHECK_EQ(info_of(fixed[0]).state, HR_TENSOR_EVICTED);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	for (uint64_t i = 0; i < 3; i++) {
		CHECK_EQ(expect(fixed[i], i), at[i]);
		expect(movable[i], 10 + i);
	}
	tear_down();
}

/* Whole free pages inside the arena can be used by a fixed tensor. */
static void test_free_pages_of_the_arena_are_used(void)
{
	set_up(8 * MIB, HR_SAFETY_NONE);
	void *blocks[64];
	for (int i = 0; i < 64; i++) CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 2 * PAGE, &blocks[i]));
	for (int i = 0; i < 64; i += 2) CHECK_STATUS(HR_OK, hr_free(allocator, blocks[i], HR_STREAM_DEFAULT));
	hr_tensor tensor = create(3 * MIB), rest = create(MIB), more = create(PAGE);
	fill(tensor, 1);
	CHECK_EQ(stats_of().source_trim, 1);
	fill(rest, 2);
	CHECK_EQ(stats_of().bytes_free, 0);
	CHECK_EQ(lms_stats().num_evictions, 0);
	fill(more, 3); /* now one must be evicted */
	CHECK_EQ(lms_stats().num_evictions, 1);
	expect(tensor, 1);
	for (int i = 1; i < 64; i += 2) CHECK_STATUS(HR_OK, hr_free(allocator, blocks[i], HR_STREAM_DEFAULT));
	expect(rest, 2);
	tear_down();
}

/* The device is full, although the allocator's own limit is not reached. */
static void test_the_limit_of_the_device_holds_too(void)
{
	hr_lms_options options = lms_options("lru");
	set_up_device(8 * MIB);
	limit = 6 * MIB;
	allocator = make_allocator(limit, &options);
	hr_allocator other = make_allocator(6 * MIB, NULL);
	void *block, *cached;
	hr_tensor a = create(3 * MIB), b = create(3 * MIB), c = create(4 * MIB);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(other, 3 * MIB, &block));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(other, 2 * MIB, &cached));
	CHECK_STATUS(HR_OK, hr_free(other, cached, HR_STREAM_DEFAULT)); /* free, but held by the other allocator */
	fill(a, 1);
	CHECK_EQ(stats_of().source_grow, 1);
	fill(b, 2); /* the other allocator releases its free memory, and that is not enough: a is evicted */
	CHECK_EQ(info_of(a).state, HR_TENSOR_EVICTED);
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_device_get_info(device, &info));
	CHECK_EQ(info.reserved_bytes, 6 * MIB);
	fill(c, 3);
	CHECK_STATUS(HR_OK, hr_free(other, block, HR_STREAM_DEFAULT));
	expect(a, 1);
	expect(b, 2);
	expect(c, 3);
	CHECK_STATUS(HR_OK, hr_device_get_info(device, &info));
	CHECK_LE(info.reserved_bytes, info.limit_bytes);
	tear_down();
}

static void test_the_limit_for_tensors_counts_their_pages(void)
{
	hr_lms_options options = lms_options("lru");
	options.limit = 4 * PAGE;
	set_up_device(64 * MIB);
	limit = 16 * MIB;
	allocator = make_allocator(limit, &options);
	hr_tensor a = create(PAGE + 1), b = create(PAGE + 1), c = create(PAGE + 1), large = create(4 * PAGE + 1);
	fill(a, 1);
	fill(b, 2);
	CHECK_EQ(info_of(a).state, HR_TENSOR_INACTIVE);
	fill(c, 3);
	CHECK_EQ(info_of(a).state, HR_TENSOR_EVICTED);
	CHECK_LE(stats_of().bytes_in_use, 4 * (int64_t)PAGE);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(large, HR_WRITE, HR_STREAM_DEFAULT));
	tear_down();
}

/* Queued work must be done before the pages are unmapped: slow streams reveal a missing wait. */
static void test_work_that_is_queued_is_waited_for(void)
{
	for (int safety = HR_SAFETY_NONE; safety <= HR_SAFETY_HOST_MAPPED; safety++) {
		hr_emulated_options emulated;
		hr_lms_options options = lms_options("lru");
		hr_stream streams[3];
		options.safety = (hr_lms_safety)safety;
		setenv("HEADROOM_CUDA", "0", 1);
		CHECK_STATUS(HR_OK, hr_emulated_options_init(&emulated));
		emulated.memory_bytes = 64 * MIB;
		emulated.page_bytes = PAGE;
		emulated.kernel_latency_ns = 2000000;
		CHECK_STATUS(HR_OK, hr_emulated_configure(&emulated));
		CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
		limit = 16 * MIB;
		allocator = make_allocator(limit, &options);
		for (int i = 0; i < 3; i++) CHECK_STATUS(HR_OK, hr_stream_create(device, &streams[i]));
		hr_tensor tensor = create(2 * PAGE), gone = create(2 * PAGE);
		hr_tensor_info info;
		for (int round = 0; round < 12; round++) {
			hr_tensor on = round % 4 == 3 ? gone : tensor;
			for (int i = 0; i < 3; i++) { /* each stream waits for the one before, then writes its part */
				CHECK_STATUS(HR_OK, hr_tensor_pin(on, HR_WRITE, streams[i]));
				unsigned char *at = address_of(on);
				CHECK_STATUS(HR_OK, hr_stream_fill(device, at + (size_t)i * 1000, (unsigned char)(round + i), 1000, streams[i]));
				CHECK_STATUS(HR_OK, hr_tensor_unpin(on, streams[i]));
			}
			if (round % 4 == 3) {
				CHECK_STATUS(HR_OK, hr_tensor_destroy(on));
				gone = create(2 * PAGE);
				continue;
			}
			if (round % 2) { /* a host copy exists, and the tensor is read once more before it is evicted */
				CHECK_STATUS(HR_OK, hr_tensor_evict(on));
				CHECK_STATUS(HR_OK, hr_tensor_prefetch(on));
				CHECK_STATUS(HR_OK, hr_tensor_pin(on, HR_READ, streams[2]));
				CHECK_STATUS(HR_OK, hr_tensor_unpin(on, streams[2]));
			}
			CHECK_STATUS(HR_OK, hr_tensor_evict(on));
			CHECK_STATUS(HR_OK, hr_tensor_pin(on, HR_READ, streams[1]));
			unsigned char contents[3000];
			CHECK_STATUS(HR_OK, hr_stream_copy(device, contents, address_of(on), sizeof contents, HR_COPY_TO_HOST, streams[1]));
			CHECK_STATUS(HR_OK, hr_stream_synchronize(device, streams[1]));
			for (int i = 0; i < 3000; i++) CHECK_EQ(contents[i], round + i / 1000);
			CHECK_STATUS(HR_OK, hr_tensor_unpin(on, streams[1]));
		}
		info = info_of(tensor);
		CHECK_GT(info.evictions, 5u);
		for (int i = 0; i < 3; i++) CHECK_STATUS(HR_OK, hr_stream_synchronize(device, streams[i]));
		tear_down();
	}
}

static void test_the_learned_policy_keeps_addresses(void)
{
	hr_lms_options options = lms_options("learned");
	set_up_device(64 * MIB);
	limit = 4 * MIB;
	allocator = make_allocator(limit, &options);
	hr_tensor tensors[8];
	void *at[8];
	for (uint64_t i = 0; i < 8; i++) {
		tensors[i] = create_on(allocator, MIB, i % 2 == 0);
		at[i] = fill(tensors[i], i);
	}
	for (int step = 0; step < 12; step++) {
		CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		for (uint64_t i = 0; i < 8; i++) {
			void *now = expect(tensors[i], i);
			if (i % 2 == 0) CHECK_EQ(now, at[i]);
		}
		for (uint64_t i = 8; i-- > 0;) expect(tensors[i], i);
		CHECK_STATUS(HR_OK, hr_step_end(allocator));
	}
	CHECK_GT(lms_stats().num_steps_planned, 0);
	tear_down();
}

/* ---- shadows ---- */

static void test_an_evicted_tensor_can_be_read_through_its_shadow(void)
{
	set_up(16 * MIB, HR_SAFETY_HOST_MAPPED);
	hr_tensor tensor = create(5 * PAGE - 17);
	unsigned char *at = fill(tensor, 77);
	for (uint64_t round = 0; round < 5; round++) {
		CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
		CHECK_EQ(info_of(tensor).state, HR_TENSOR_EVICTED);
		CHECK_EQ(stats_of().bytes_reserved, 0);                      /* no device memory is mapped */
		CHECK(holds(at, 5 * PAGE - 17, 77 + round));                 /* read by the host */
		expect_at(at, 5 * PAGE - 17, 77 + round, HR_STREAM_DEFAULT); /* read by the device */
		CHECK_EQ(info_of(tensor).state, HR_TENSOR_EVICTED);
		CHECK_EQ(expect(tensor, 77 + round), at);
		fill(tensor, 78 + round);
	}
	/* A write counts as a missed pin; its bytes are kept. */
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(at[100], byte_of(82, 100));
	at[100] ^= 0xff;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
	CHECK_EQ(at[100], byte_of(82, 100) ^ 0xff);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	tear_down();
}

static void test_verify_reports_a_write_while_evicted(void)
{
	hr_lms_options options = lms_options("lru");
	options.safety = HR_SAFETY_HOST_MAPPED;
	options.verify = true;
	set_up_device(64 * MIB);
	limit = 16 * MIB;
	allocator = make_allocator(limit, &options);
	hr_tensor tensor = create(2 * PAGE);
	unsigned char *at = fill(tensor, 1);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	at[5] ^= 1;
	CHECK_STATUS(HR_CORRUPT, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_EQ(info_of(tensor).state, HR_TENSOR_EVICTED);
	at[5] ^= 1; /* the contents underneath are unchanged */
	expect(tensor, 1);
	tear_down();
}

/* The host's pages count against host_limit; shadows kept by resident tensors are released first. */
static void test_shadows_are_within_the_limit_of_the_host(void)
{
	hr_lms_options options = lms_options("lru");
	options.safety = HR_SAFETY_HOST_MAPPED;
	options.host_limit = 8 * PAGE;
	set_up_device(64 * MIB);
	limit = 16 * MIB;
	allocator = make_allocator(limit, &options);
	hr_tensor a = create(4 * PAGE), b = create(4 * PAGE), c = create(4 * PAGE);
	fill(a, 1);
	fill(b, 2);
	fill(c, 3);
	CHECK_STATUS(HR_OK, hr_tensor_evict(a));
	CHECK_STATUS(HR_OK, hr_tensor_evict(b));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_evict(c));
	CHECK_CONTAINS(hr_last_message(), "host_limit");
	CHECK_EQ(info_of(c).state, HR_TENSOR_INACTIVE);
	expect(a, 1); /* its copy is still valid, and its shadow can be made again */
	CHECK_STATUS(HR_OK, hr_tensor_evict(c));
	CHECK_EQ(info_of(a).state, HR_TENSOR_INACTIVE);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_evict(a));
	fill(c, 4); /* the shadow it keeps has no contents */
	CHECK_STATUS(HR_OK, hr_tensor_evict(a));
	expect(a, 1);
	expect(b, 2);
	expect(c, 4);
	tear_down();
}

static void test_devices_without_support_report_it(void)
{
	hr_lms_options options = lms_options("lru");
	hr_tensor_options fixed;
	hr_tensor tensor;
	options.safety = HR_SAFETY_HOST_MAPPED;
	setenv("HEADROOM_CUDA", "0", 1);
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	hr_allocator_options plain = fixture_allocator_options(64 * MIB);
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &plain, &allocator));
	CHECK_STATUS(HR_UNSUPPORTED, hr_lms_configure(allocator, &options));
	CHECK_CONTAINS(hr_last_message(), "HR_SAFETY_HOST_MAPPED");
	options.safety = (hr_lms_safety)7;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_lms_configure(allocator, &options));
	CHECK_STATUS(HR_OK, hr_device_find("CPU:0", &device)); /* this device has no pages either */
	hr_allocator on_host;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &plain, &on_host));
	hr_tensor_options_init(&fixed);
	fixed.bytes = MIB;
	fixed.fixed = true;
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_create(on_host, &fixed, &tensor));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- closing and forking ---- */

static void test_destroying_the_allocator_destroys_everything(void)
{
	for (int safety = HR_SAFETY_NONE; safety <= HR_SAFETY_HOST_MAPPED; safety++) {
		hr_fault_os_install();
		set_up(16 * MIB, (hr_lms_safety)safety);
		hr_tensor out = create(MIB), home = create(MIB), pinned = create(MIB), fresh = create(MIB);
		fill(out, 1);
		fill(home, 2);
		fill(pinned, 3);
		CHECK_STATUS(HR_OK, hr_tensor_evict(pinned));
		CHECK_STATUS(HR_OK, hr_tensor_pin(pinned, HR_WRITE, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_evict(out));
		CHECK_STATUS(HR_IN_USE, hr_allocator_destroy(allocator));
		if (safety) CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
		CHECK_STATUS(HR_OK, hr_shutdown());
		CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_evict(fresh));
		CHECK(hr_fault_os_is_clean());
		hr_fault_os_uninstall();
	}
}

static void use_after_fork(void *argument)
{
	hr_tensor tensor = *(hr_tensor *)argument;
	CHECK_STATUS(HR_FORKED, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_FORKED, hr_tensor_destroy(tensor));
	CHECK_STATUS(HR_OK, hr_shutdown());
	set_up(16 * MIB, HR_SAFETY_HOST_MAPPED);
	hr_tensor own = create(2 * PAGE);
	void *at = fill(own, 9);
	CHECK_STATUS(HR_OK, hr_tensor_evict(own));
	CHECK_EQ(expect(own, 9), at);
	tear_down();
}

static void test_a_fork_leaves_the_parent_alone(void)
{
	set_up(16 * MIB, HR_SAFETY_HOST_MAPPED);
	hr_tensor tensor = create(4 * PAGE), home = create(2 * PAGE);
	void *at = fill(tensor, 1);
	fill(home, 2);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(hr_test_in_child(use_after_fork, &tensor), 0);
	CHECK_EQ(expect(tensor, 1), at);
	expect(home, 2);
	tear_down();
}

/* ---- faults ---- */

typedef struct known {
	hr_tensor tensor;
	void *at;      /* NULL = it never had memory */
	uint64_t seed; /* of its contents */
	bool written;  /* its contents are known */
	bool fixed;
} known;

#define KNOWN 5
#define BUFFERS 64
#define SMALL_HOST (2 * MIB) /* less to pin each time; the pool uses all of it if it is used at all */

/* Buffers stay allocated, because a copy that could not be waited for may still be reading them. */
static unsigned char *buffers[BUFFERS];
static int buffer_count;

static unsigned char *new_buffer(size_t bytes)
{
	CHECK_LT(buffer_count, BUFFERS);
	return buffers[buffer_count++] = malloc(bytes);
}

/* Called when no copy uses them any more. */
static void free_buffers(void)
{
	while (buffer_count) free(buffers[--buffer_count]);
}

/* Steps that may all fail; known contents are recorded. */
static hr_status try_fill(known *of, uint64_t seed)
{
	size_t bytes = info_of(of->tensor).bytes;
	unsigned char *contents = new_buffer(bytes);
	hr_status status = hr_tensor_pin(of->tensor, HR_OVERWRITE, HR_STREAM_DEFAULT);
	if (status) return status;
	void *at = address_of(of->tensor);
	if (of->at && of->fixed) CHECK_EQ(at, of->at);
	of->at = at;
	of->written = false;
	make_contents(contents, bytes, seed);
	status = hr_stream_copy(device, at, contents, bytes, HR_COPY_TO_DEVICE, HR_STREAM_DEFAULT);
	if (!status) status = hr_stream_synchronize(device, HR_STREAM_DEFAULT);
	of->seed = seed;
	of->written = status == HR_OK;
	CHECK_STATUS(HR_OK, hr_tensor_unpin(of->tensor, HR_STREAM_DEFAULT));
	return status;
}

static hr_status try_read(known *of)
{
	if (!of->written) return HR_OK;
	hr_status status = hr_tensor_pin(of->tensor, HR_READ, HR_STREAM_DEFAULT);
	if (status) return status;
	if (of->fixed) CHECK_EQ(address_of(of->tensor), of->at);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(of->tensor, HR_STREAM_DEFAULT));
	return HR_OK;
}

static hr_status first_of(hr_status a, hr_status b)
{
	return a ? a : b;
}

static hr_status scenario(known *tensors)
{
	hr_status status = HR_OK;
	for (uint64_t i = 0; i < KNOWN; i++) status = first_of(status, try_fill(&tensors[i], i + 1));
	status = first_of(status, hr_tensor_evict(tensors[4].tensor));
	status = first_of(status, hr_tensor_prefetch(tensors[0].tensor));
	for (int i = 0; i < KNOWN; i++) status = first_of(status, try_read(&tensors[i]));
	status = first_of(status, try_fill(&tensors[1], 20));
	status = first_of(status, hr_lms_reclaim_inactive(allocator, HR_NAME_NONE, NULL));
	for (int i = KNOWN; i-- > 0;) status = first_of(status, try_read(&tensors[i]));
	hr_status destroyed = hr_tensor_destroy(tensors[2].tensor);
	if (!destroyed) {
		tensors[2] = (known){ .tensor = create(3 * PAGE), .fixed = true };
	} else { /* the tensor still exists */
		CHECK_EQ(info_of(tensors[2].tensor).pins, 0u);
	}
	return first_of(status, destroyed);
}

static void make_known(known *tensors, bool all_fixed)
{
	for (int i = 0; i < KNOWN; i++) {
		bool fixed = all_fixed || i != 3;
		tensors[i] = (known){ .tensor = create_on(allocator, 3 * PAGE - (unsigned)i * 9, fixed), .fixed = fixed };
	}
}

/* After the faults: everything works as if nothing had failed. */
static void check_after(known *tensors)
{
	stats_of();
	for (int i = 0; i < KNOWN; i++) {
		if (!tensors[i].written) continue;
		void *at = expect(tensors[i].tensor, tensors[i].seed);
		if (tensors[i].fixed) CHECK_EQ(at, tensors[i].at);
	}
	for (uint64_t i = 0; i < KNOWN; i++) CHECK_STATUS(HR_OK, try_fill(&tensors[i], i + 40));
	for (int i = 0; i < KNOWN; i++) expect(tensors[i].tensor, tensors[i].seed);
	stats_of();
	for (int i = 0; i < KNOWN; i++) CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[i].tensor));
	hr_stats stats = stats_of();
	CHECK_EQ(stats.bytes_in_use, 0);
	CHECK_EQ(stats.num_live, 0);
	CHECK_EQ(lms_stats().host_bytes, 0);
}

/* Every call, or one in four if each takes ten times as long; other seeds choose others. */
static uint64_t every(void)
{
	return HR_TEST_SANITIZED && hr_test_scale() < 1 ? 4 : 1;
}

static void fail_every_call(hr_lms_safety safety, bool forever, hr_status with)
{
	const uint64_t stride = every();
	host_limit = SMALL_HOST;
	hr_fault_os_install();
	for (uint64_t n = 1 + hr_test_seed() % stride;; n += stride) {
		known tensors[KNOWN];
		set_up(10 * PAGE, safety);
		make_known(tensors, safety != HR_SAFETY_NONE);
		hr_backend_fail_nth(n, forever, with);
		hr_status status = scenario(tensors);
		bool reached = hr_backend_calls() >= n;
		/* Closing while calls still fail must not crash or leak. */
		if (n % 3 == 0) {
			CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
			hr_backend_fail_nth(0, false, HR_OK);
		} else {
			hr_backend_fail_nth(0, false, HR_OK);
			if (!reached) CHECK_STATUS(HR_OK, status);
			check_after(tensors);
		}
		CHECK_STATUS(HR_OK, hr_shutdown());
		CHECK(hr_fault_os_is_clean());
		free_buffers();
		if (!reached) break;
	}
	hr_fault_os_uninstall();
}

static void test_any_call_to_the_device_may_fail_once(void)
{
	fail_every_call(HR_SAFETY_NONE, false, HR_DEVICE_ERROR);
}

static void test_any_call_to_the_device_may_fail_once_with_shadows(void)
{
	fail_every_call(HR_SAFETY_HOST_MAPPED, false, HR_DEVICE_ERROR);
}

static void test_the_device_may_fail_permanently(void)
{
	fail_every_call(HR_SAFETY_NONE, true, HR_DEVICE_ERROR);
}

static void test_the_device_may_fail_permanently_with_shadows(void)
{
	fail_every_call(HR_SAFETY_HOST_MAPPED, true, HR_DEVICE_ERROR);
}

static void test_the_device_may_be_full_at_any_call(void)
{
	fail_every_call(HR_SAFETY_NONE, true, HR_OUT_OF_MEMORY);
	fail_every_call(HR_SAFETY_HOST_MAPPED, true, HR_OUT_OF_MEMORY);
}

static void fail_every_call_to_the_system(hr_lms_safety safety, bool forever)
{
	const uint64_t stride = every();
	host_limit = SMALL_HOST;
	hr_fault_os_install();
	for (uint64_t n = 1 + hr_test_seed() % stride;; n += stride) {
		known tensors[KNOWN];
		set_up(10 * PAGE, safety);
		make_known(tensors, safety != HR_SAFETY_NONE);
		hr_fault_os_fail_nth(n, forever, ENOMEM);
		hr_status status = scenario(tensors);
		bool reached = hr_fault_os_calls() >= n;
		hr_fault_os_fail_nth(0, false, 0);
		if (!reached) CHECK_STATUS(HR_OK, status);
		check_after(tensors);
		CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
		CHECK_STATUS(HR_OK, hr_shutdown());
		CHECK(hr_fault_os_is_clean());
		free_buffers();
		if (!reached) break;
	}
	hr_fault_os_uninstall();
}

static void test_any_call_to_the_system_may_fail(void)
{
	fail_every_call_to_the_system(HR_SAFETY_NONE, false);
	fail_every_call_to_the_system(HR_SAFETY_NONE, true);
	fail_every_call_to_the_system(HR_SAFETY_HOST_MAPPED, false);
	fail_every_call_to_the_system(HR_SAFETY_HOST_MAPPED, true);
}

/* ---- threads ---- */

#define SHARED 10

static struct {
	hr_tensor tensors[SHARED];
	void *at[SHARED];
	hr_stream streams[4];
} shared;

static void use_shared(void *argument, unsigned index)
{
	(void)argument;
	uint64_t random = hr_test_seed() + index;
	hr_stream stream = shared.streams[index];
	for (uint64_t round = 0; round < hr_test_scaled(300); round++) {
		uint64_t i = hr_rand_below(&random, SHARED);
		hr_tensor tensor = shared.tensors[i];
		switch (hr_rand_below(&random, 8)) {
		case 0: {
			hr_status status = hr_tensor_evict(tensor);
			CHECK(status == HR_OK || status == HR_IN_USE);
			break;
		}
		case 1: {
			hr_status status = hr_tensor_prefetch(tensor);
			CHECK(status == HR_OK || status == HR_OUT_OF_MEMORY);
			break;
		}
		case 2: {
			void *block;
			if (hr_alloc_bytes(allocator, 3 * PAGE, &block) == HR_OK)
				CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
			break;
		}
		case 3: {
			hr_tensor own = create(PAGE + index);
			hr_status status = hr_tensor_pin(own, HR_OVERWRITE, stream);
			if (!status) {
				CHECK_STATUS(HR_OK, hr_stream_fill(device, address_of(own), (unsigned char)index, PAGE, stream));
				CHECK_STATUS(HR_OK, hr_tensor_unpin(own, stream));
			}
			CHECK(status == HR_OK || status == HR_OUT_OF_MEMORY);
			CHECK_STATUS(HR_OK, hr_tensor_destroy(own));
			break;
		}
		default: {
			hr_status status = hr_tensor_pin(tensor, HR_READ, stream);
			if (status == HR_OUT_OF_MEMORY) break;
			CHECK_STATUS(HR_OK, status);
			if (i % 3) CHECK_EQ(address_of(tensor), shared.at[i]);
			expect_at(address_of(tensor), 2 * PAGE + i, i, stream);
			CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, stream));
		}
		}
	}
}

static void share(hr_lms_safety safety)
{
	set_up(14 * PAGE, safety);
	for (uint64_t i = 0; i < SHARED; i++) {
		shared.tensors[i] = create_on(allocator, 2 * PAGE + i, i % 3 != 0);
		shared.at[i] = fill(shared.tensors[i], i);
	}
	for (int i = 0; i < 4; i++) CHECK_STATUS(HR_OK, hr_stream_create(device, &shared.streams[i]));
	hr_test_threads(4, use_shared, NULL);
	for (uint64_t i = 0; i < SHARED; i++) expect(shared.tensors[i], i);
	tear_down();
}

static void test_threads_may_do_all_of_it_at_once(void)
{
	share(HR_SAFETY_NONE);
	share(HR_SAFETY_HOST_MAPPED);
}

/* ---- on the stand-in for CUDA, which ends the process if memory is unmapped under queued work ---- */

static void load_driver(void)
{
	setenv("FAKE_CUDA_GRANULARITY", "65536", 1);
	setenv("HEADROOM_CUDA_PAGE", "64KiB", 1);
	fake_cuda_load("whole");
}

static void set_up_cuda(uint64_t bytes, hr_lms_safety safety)
{
	hr_lms_options options = lms_options("lru");
	hr_device_info info = { .struct_size = sizeof info };
	options.safety = safety;
	CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
	CHECK_STATUS(HR_OK, hr_device_get_info(device, &info));
	CHECK_STR(info.backend, "cuda");
	CHECK_EQ(info.page_bytes, PAGE);
	limit = bytes;
	allocator = make_allocator(bytes, &options);
}

static void expect_nothing_left(void)
{
	fake_cuda_live live;
	fake.get_live(&live);
	CHECK_EQ(live.handles, 0u);
	CHECK_EQ(live.mappings, 0u);
	CHECK_EQ(live.reservations, 0u);
	CHECK_EQ(live.registered, 0u);
}

static void test_it_works_on_cuda(void)
{
	load_driver();
	for (int safety = HR_SAFETY_NONE; safety <= HR_SAFETY_HOST_MAPPED; safety++) {
		set_up_cuda(12 * PAGE, (hr_lms_safety)safety);
		hr_tensor tensors[6];
		void *at[6];
		for (uint64_t i = 0; i < 6; i++) {
			tensors[i] = create_on(allocator, 4 * PAGE - i, i != 2);
			at[i] = fill(tensors[i], i);
		}
		for (uint64_t round = 0; round < 24; round++) {
			void *now = expect(tensors[round % 6], round % 6);
			if (round % 6 != 2) CHECK_EQ(now, at[round % 6]);
		}
		CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[0]));
		if (safety) expect_at(at[0], 4 * PAGE, 0, HR_STREAM_DEFAULT);
		expect(tensors[0], 0);
		tear_down();
		expect_nothing_left();
	}
	/* A card or driver that cannot map host memory at its addresses. */
	setenv("FAKE_CUDA_NO_HOST_NUMA", "1", 1);
	CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
	hr_lms_options options = lms_options("lru");
	options.safety = HR_SAFETY_HOST_MAPPED;
	allocator = make_allocator(4 * PAGE, NULL);
	CHECK_STATUS(HR_UNSUPPORTED, hr_lms_configure(allocator, &options));
	CHECK_CONTAINS(hr_last_message(), "12.2");
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_any_call_to_cuda_may_fail(void)
{
	load_driver();
	const uint64_t stride = HR_TEST_SANITIZED ? 7 : 3; /* there are a thousand calls; other seeds choose others */
	host_limit = SMALL_HOST;
	for (int safety = HR_SAFETY_NONE; safety <= HR_SAFETY_HOST_MAPPED; safety++) {
		for (uint64_t n = 1 + hr_test_seed() % stride;; n += stride) {
			known tensors[KNOWN];
			set_up_cuda(10 * PAGE, (hr_lms_safety)safety);
			make_known(tensors, safety != HR_SAFETY_NONE);
			fake.fail_nth(n, HR__CUDA_ERROR_UNKNOWN);
			scenario(tensors);
			bool reached = fake.calls() >= n;
			fake.fail_nth(0, HR__CUDA_SUCCESS);
			check_after(tensors);
			CHECK_STATUS(HR_OK, hr_shutdown());
			free_buffers();
			if (!reached) break;
		}
	}
}

TEST_MAIN(T(test_the_address_is_stable_under_random_operations), T(test_the_address_is_stable_with_shadows),
          T(test_the_address_is_stable_under_verify), T(test_the_address_has_the_requested_alignment),
          T(test_accessing_an_evicted_tensor_faults), T(test_a_fixed_tensor_smaller_than_a_page_is_never_evicted),
          T(test_statistics_and_holders_count_them), T(test_a_clean_fixed_tensor_is_evicted_without_a_copy),
          T(test_an_out_of_memory_report_shows_them), T(test_they_make_room_for_each_other),
          T(test_fixed_and_movable_make_room_for_each_other), T(test_free_pages_of_the_arena_are_used),
          T(test_the_limit_of_the_device_holds_too), T(test_the_limit_for_tensors_counts_their_pages),
          T(test_work_that_is_queued_is_waited_for), T(test_the_learned_policy_keeps_addresses),
          T(test_an_evicted_tensor_can_be_read_through_its_shadow), T(test_verify_reports_a_write_while_evicted),
          T(test_shadows_are_within_the_limit_of_the_host), T(test_devices_without_support_report_it),
          T(test_destroying_the_allocator_destroys_everything), T(test_a_fork_leaves_the_parent_alone),
          T(test_any_call_to_the_device_may_fail_once), T(test_any_call_to_the_device_may_fail_once_with_shadows),
          T(test_the_device_may_fail_permanently), T(test_the_device_may_fail_permanently_with_shadows),
          T(test_the_device_may_be_full_at_any_call), T(test_any_call_to_the_system_may_fail),
          T(test_threads_may_do_all_of_it_at_once), T(test_it_works_on_cuda), T_WITHIN(test_any_call_to_cuda_may_fail, 300))
