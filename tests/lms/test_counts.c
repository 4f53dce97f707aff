/* test_counts.c - statistics of combined features: blocks and tensors, several allocators on a device, resets, closed allocators.
 * Every expected number is computed by hand. */
#include <pthread.h>

#include "fixture.h"
#include "support_stats.h"
#include "test.h"

#define KIB INT64_C(1024)
#define MIB (KIB * KIB)

static hr_device device;

static void set_up(void)
{
	device = fixture_emulated(256 * (uint64_t)MIB, 64 * (uint64_t)KIB, 0);
}

static hr_allocator open_allocator(int64_t limit)
{
	hr_allocator allocator = fixture_allocator(device, (uint64_t)limit);
	fixture_lms(allocator, "lru", 512 * (uint64_t)MIB);
	return allocator;
}

static hr_allocator open_plain(void)
{
	hr_allocator allocator;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &allocator));
	return allocator;
}

static hr_tensor create(hr_allocator allocator, int64_t bytes, bool fixed)
{
	hr_tensor tensor;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = (size_t)bytes;
	options.fixed = fixed;
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &tensor));
	return tensor;
}

static void pin(hr_tensor tensor)
{
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_WRITE, HR_STREAM_DEFAULT));
}

static void unpin(hr_tensor tensor)
{
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
}

static void *block(hr_allocator allocator, int64_t bytes)
{
	void *address;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, (size_t)bytes, &address));
	return address;
}

static void release(hr_allocator allocator, void *address)
{
	CHECK_STATUS(HR_OK, hr_free(allocator, address, HR_STREAM_DEFAULT));
}

static hr_stats of_allocator(hr_allocator allocator)
{
	hr_stats stats = fixture_stats(allocator);
	check_identities(&stats);
	return stats;
}

static hr_stats of_device(void)
{
	hr_stats stats;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_device_get_stats(device, &stats));
	check_identities(&stats);
	return stats;
}

static void reset(void)
{
	CHECK_STATUS(HR_OK, hr_reset_memory_stats("GPU:0"));
}

/* ---- active bytes ---- */

static void test_the_peak_of_active_bytes_never_falls(void)
{
	set_up();
	hr_allocator a = open_allocator(64 * MIB);
	hr_tensor tensor = create(a, 4 * MIB, false);
	void *plain = block(a, 8 * MIB); /* 8 active */
	pin(tensor);                     /* 12 */
	CHECK_EQ(of_allocator(a).peak_bytes_active, 12 * MIB);
	unpin(tensor); /* 8 */
	release(a, plain); /* 0 */
	CHECK_EQ(of_allocator(a).bytes_active, 0);
	CHECK_EQ(of_allocator(a).bytes_inactive, 4 * MIB);
	CHECK_EQ(of_allocator(a).peak_bytes_active, 12 * MIB);
	CHECK_EQ(of_device().peak_bytes_active, 12 * MIB);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_inactive_bytes_are_in_no_peak_of_active_ones(void)
{
	set_up();
	hr_allocator a = open_allocator(64 * MIB);
	hr_tensor tensor = create(a, 16 * MIB, false);
	pin(tensor);
	unpin(tensor);
	reset(); /* 16 inactive, 0 active */
	CHECK_EQ(of_allocator(a).peak_bytes_active, 0);
	CHECK_EQ(of_allocator(a).peak_bytes_in_use, 16 * MIB);
	void *first = block(a, 2 * MIB), *second = block(a, KIB); /* 2 MiB + 1 KiB active */
	release(a, first);
	release(a, second);
	CHECK_EQ(of_allocator(a).peak_bytes_active, 2 * MIB + KIB);
	CHECK_EQ(of_allocator(a).peak_bytes_in_use, 18 * MIB + KIB);
	CHECK_EQ(of_device().peak_bytes_active, 2 * MIB + KIB);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor)); /* no bytes become active */
	CHECK_EQ(of_allocator(a).peak_bytes_active, 2 * MIB + KIB);
	CHECK_EQ(of_allocator(a).bytes_in_use, 0);
	CHECK_STATUS(HR_OK, hr_tensor_prefetch(tensor)); /* nor here: the tensor is resident and not pinned */
	CHECK_EQ(of_allocator(a).bytes_inactive, 16 * MIB);
	CHECK_EQ(of_allocator(a).peak_bytes_active, 2 * MIB + KIB);
	pin(tensor);
	CHECK_EQ(of_allocator(a).peak_bytes_active, 16 * MIB);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_small_blocks_from_a_cache_count_as_active(void)
{
	set_up();
	hr_allocator a = open_allocator(64 * MIB);
	hr_tensor tensor = create(a, 4 * MIB, false);
	void *blocks[64];
	pin(tensor);
	for (int i = 0; i < 64; i++) blocks[i] = block(a, 512); /* 4 MiB + 32 KiB */
	for (int i = 0; i < 64; i++) release(a, blocks[i]);
	unpin(tensor);
	for (int i = 0; i < 64; i++) blocks[i] = block(a, 1024); /* 64 KiB */
	CHECK_EQ(of_allocator(a).bytes_active, 64 * KIB);
	CHECK_EQ(of_allocator(a).peak_bytes_active, 4 * MIB + 32 * KIB);
	pin(tensor); /* 4 MiB + 64 KiB */
	CHECK_EQ(of_allocator(a).peak_bytes_active, 4 * MIB + 64 * KIB);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_a_fixed_tensor_is_active_while_it_is_pinned(void)
{
	set_up();
	hr_allocator a = open_allocator(64 * MIB);
	hr_tensor tensor = create(a, 4 * MIB, true);
	pin(tensor);
	unpin(tensor);
	void *plain = block(a, 2 * MIB);
	CHECK_EQ(of_allocator(a).peak_bytes_active, 4 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(of_allocator(a).bytes_active, 2 * MIB);
	CHECK_EQ(of_allocator(a).bytes_inactive, 0);
	CHECK_STATUS(HR_OK, hr_tensor_prefetch(tensor));
	CHECK_EQ(of_allocator(a).bytes_inactive, 4 * MIB);
	CHECK_EQ(of_allocator(a).peak_bytes_active, 4 * MIB);
	pin(tensor);
	CHECK_EQ(of_allocator(a).peak_bytes_active, 6 * MIB);
	release(a, plain);
	unpin(tensor);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	CHECK_EQ(of_allocator(a).bytes_active, 0);
	CHECK_EQ(of_allocator(a).peak_bytes_active, 6 * MIB);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Two allocators that are never active at the same time: their peaks do not add up. */
static void test_peaks_of_a_device_are_of_one_moment(void)
{
	set_up();
	hr_allocator a = open_allocator(64 * MIB), b = open_allocator(64 * MIB), c = open_plain();
	hr_tensor x = create(a, 8 * MIB, false), y = create(b, 4 * MIB, false);
	pin(x); /* in use 8, active 8 */
	unpin(x); /* 8, 0 */
	pin(y); /* 12, 4 */
	void *plain = block(c, 2 * MIB); /* 14, 6 */
	unpin(y); /* 14, 2 */
	release(c, plain); /* 12, 0 */
	CHECK_EQ(of_device().bytes_in_use, 12 * MIB);
	CHECK_EQ(of_device().peak_bytes_in_use, 14 * MIB);
	CHECK_EQ(of_device().peak_bytes_active, 8 * MIB);
	CHECK_EQ(of_device().peak_error_bytes, 0);
	CHECK_EQ(of_allocator(a).peak_bytes_active, 8 * MIB);
	CHECK_EQ(of_allocator(b).peak_bytes_active, 4 * MIB);
	CHECK_EQ(of_allocator(c).peak_bytes_active, 2 * MIB);
	reset(); /* 12, 0 */
	CHECK_EQ(of_device().peak_bytes_in_use, 12 * MIB);
	CHECK_EQ(of_device().peak_bytes_active, 0);
	pin(y);
	pin(x); /* 12, 12 */
	unpin(x);
	unpin(y);
	CHECK_STATUS(HR_OK, hr_tensor_evict(x)); /* 4, 0 */
	plain = block(c, 10 * MIB); /* 14, 10 */
	CHECK_EQ(of_device().peak_bytes_in_use, 14 * MIB);
	CHECK_EQ(of_device().peak_bytes_active, 12 * MIB);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Small blocks of two allocators in turn, from the thread's caches: the sum of the peaks would be 300 + 300 blocks. */
static void test_one_thread_on_several_allocators_has_exact_peaks(void)
{
	set_up();
	hr_allocator allocators[2] = { open_plain(), open_plain() };
	void *blocks[300];
	for (int pass = 0; pass < 4; pass++) {
		hr_allocator allocator = allocators[pass & 1], other = allocators[!(pass & 1)];
		void *beside[5];
		for (int i = 0; i < 300; i++) blocks[i] = block(allocator, 256);
		for (int i = 0; i < 5; i++) beside[i] = block(other, 256);
		for (int i = 0; i < 300; i++) release(allocator, blocks[i]);
		for (int i = 0; i < 5; i++) release(other, beside[i]);
	}
	CHECK_EQ(of_device().peak_bytes_in_use, 305 * 256);
	CHECK_EQ(of_device().peak_bytes_active, 305 * 256);
	CHECK_EQ(of_allocator(allocators[0]).peak_bytes_in_use, 300 * 256);
	CHECK_EQ(of_allocator(allocators[1]).peak_bytes_in_use, 300 * 256);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void *use_and_keep(void *allocator)
{
	void **out = malloc(sizeof *out);
	CHECK(out);
	*out = block(*(hr_allocator *)allocator, MIB);
	release(*(hr_allocator *)allocator, block(*(hr_allocator *)allocator, 3 * MIB));
	return out;
}

/* An allocator used by one thread has exact peaks even while another thread uses the device. */
static void test_a_thread_with_an_allocator_of_its_own_has_exact_peaks(void)
{
	set_up();
	hr_allocator a = open_plain(), b = open_plain();
	void *mine = block(a, 5 * MIB + 256), *result;
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, use_and_keep, &b)); /* 9 MiB + 256 on the device */
	CHECK(!pthread_join(thread, &result));
	CHECK_EQ(of_allocator(a).peak_bytes_in_use, 5 * MIB + 256);
	CHECK_EQ(of_allocator(a).peak_error_bytes, 0);
	CHECK_EQ(of_allocator(b).peak_bytes_in_use, 4 * MIB);
	CHECK_EQ(of_allocator(b).peak_error_bytes, 0);
	hr_stats stats = of_device();
	CHECK_LE(9 * MIB + 256, stats.peak_bytes_in_use);
	CHECK_LE(stats.peak_bytes_in_use, 9 * MIB + 256 + stats.peak_error_bytes);
	CHECK_LE(stats.peak_error_bytes, 2 * 2 * 64 * KIB);
	reset(); /* one thread again: exact */
	CHECK_EQ(of_device().peak_bytes_in_use, 6 * MIB + 256);
	release(a, mine);
	release(a, block(a, 7 * MIB));
	CHECK_EQ(of_device().peak_bytes_in_use, 8 * MIB);
	release(b, *(void **)result);
	free(result);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- closed allocators ---- */

static void test_counts_of_a_closed_allocator_stay_with_its_device(void)
{
	set_up();
	hr_allocator a = open_plain();
	void *address;
	release(a, block(a, 3 * MIB));
	release(a, block(a, 100)); /* 256 */
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(a, 1024 * (size_t)MIB, &address));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(a));
	for (int i = 0; i < 2; i++) {
		hr_stats stats = of_device();
		CHECK_EQ(stats.num_allocs, 3);
		CHECK_EQ(stats.num_failed_allocs, 1);
		CHECK_EQ(stats.num_frees, 2);
		CHECK_EQ(stats.num_live, 0);
		CHECK_EQ(stats.largest_alloc_size, 3 * MIB);
		CHECK_EQ(stats.total_bytes_allocated, 3 * MIB + 256);
		CHECK_EQ(stats.peak_bytes_in_use, 3 * MIB);
		CHECK_EQ(stats.bytes_in_use, 0);
		open_plain(); /* an unused allocator changes nothing */
	}
	reset();
	hr_stats stats = of_device();
	CHECK_EQ(stats.num_allocs, 0);
	CHECK_EQ(stats.num_frees, 0);
	CHECK_EQ(stats.total_bytes_allocated, 0);
	CHECK_EQ(stats.largest_alloc_size, 0);
	CHECK_EQ(stats.peak_bytes_in_use, 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_blocks_that_are_closed_with_their_allocator_count_as_freed(void)
{
	set_up();
	hr_allocator a = open_plain(), b = open_allocator(64 * MIB);
	hr_tensor tensor = create(b, 2 * MIB, false);
	block(a, MIB);
	pin(tensor);
	unpin(tensor);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor)); /* 2 MiB reclaimed */
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(a));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(b));
	hr_stats stats = of_device();
	CHECK_EQ(stats.num_allocs, 2);
	CHECK_EQ(stats.num_frees, 2);
	CHECK_EQ(stats.num_live, 0);
	CHECK_EQ(stats.bytes_reclaimed, 2 * MIB);
	CHECK_EQ(stats.total_bytes_allocated, 3 * MIB);
	CHECK_EQ(stats.bytes_in_use, 0);
	CHECK_EQ(stats.peak_bytes_in_use, 3 * MIB);
	CHECK_EQ(stats.peak_bytes_active, 3 * MIB);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- resets ---- */

static hr_lms_stats of_tensors(hr_allocator allocator)
{
	return fixture_lms_stats(allocator);
}

static void test_a_reset_is_the_same_for_both_kinds_of_statistics(void)
{
	set_up();
	hr_allocator a = open_allocator(8 * MIB);
	hr_tensor x = create(a, 4 * MIB, false), y = create(a, 4 * MIB, false), z = create(a, 4 * MIB, false);
	pin(x);
	unpin(x);
	pin(y);
	unpin(y);
	pin(z); /* x is evicted: a single reclaim */
	unpin(z);
	CHECK_EQ(of_allocator(a).num_single_reclaims, 1);
	CHECK_EQ(of_tensors(a).num_single_reclaims, 1);
	CHECK_EQ(of_tensors(a).peak_bytes_out, 4 * MIB);
	reset();
	hr_stats stats = of_allocator(a);
	hr_lms_stats lms = of_tensors(a);
	CHECK_EQ(stats.bytes_reclaimed, 0);
	CHECK_EQ(stats.num_single_reclaims, 0);
	CHECK_EQ(lms.bytes_reclaimed, 0);
	CHECK_EQ(lms.num_single_reclaims, 0);
	CHECK_EQ(lms.num_evictions, 0);
	CHECK_EQ(lms.bytes_copied_out, 0);
	CHECK_EQ(lms.num_prefetch_misses, 0);
	CHECK_EQ(lms.num_tensors, 3); /* current values are not reset */
	CHECK_EQ(lms.bytes_out_now, 4 * MIB);
	CHECK_EQ(lms.peak_bytes_out, 4 * MIB);
	CHECK_EQ(lms.bytes_inactive, 8 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(x));
	reset();
	CHECK_EQ(of_tensors(a).peak_bytes_out, 0);
	CHECK_EQ(of_tensors(a).peak_host_bytes, 0);
	CHECK_STATUS(HR_OK, hr_tensor_evict(y));
	CHECK_EQ(of_allocator(a).bytes_reclaimed, 4 * MIB);
	CHECK_EQ(of_tensors(a).bytes_reclaimed, 4 * MIB);
	CHECK_EQ(of_tensors(a).num_evictions, 1);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- other counters ---- */

static void test_several_tensors_evicted_together_are_a_multi_reclaim(void)
{
	set_up();
	hr_allocator a = open_allocator(8 * MIB);
	hr_tensor small[8];
	for (int i = 0; i < 8; i++) {
		small[i] = create(a, MIB, false);
		pin(small[i]);
		unpin(small[i]);
	}
	hr_tensor large = create(a, 3 * MIB, false);
	pin(large);
	hr_stats stats = of_allocator(a);
	CHECK_EQ(stats.num_multi_reclaims, 1);
	CHECK_EQ(stats.num_multi_reclaims, of_tensors(a).num_multi_reclaims);
	CHECK_EQ(stats.source_multi_reclaim, 1);
	CHECK_EQ(stats.bytes_reclaimed, 3 * MIB);
	CHECK_EQ(hr_get_num_multi_reclaims(0), 1);
	CHECK_EQ(hr_get_num_multi_reclaims(7), -(int64_t)HR_NO_SUCH_DEVICE);
	reset();
	CHECK_EQ(hr_get_num_multi_reclaims(0), 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_total_bytes_are_those_of_every_chunk_handed_out(void)
{
	set_up();
	hr_allocator a = open_allocator(64 * MIB);
	void *address;
	for (int i = 0; i < 10; i++) release(a, block(a, 300)); /* 512 each, from the arena and then from the cache */
	release(a, block(a, 100 * KIB));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(a, 65 * (size_t)MIB, &address));
	hr_tensor tensor = create(a, MIB, false);
	pin(tensor);
	unpin(tensor);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_STATUS(HR_OK, hr_tensor_prefetch(tensor)); /* a restore is no request */
	int64_t total = 10 * 512 + 100 * KIB + MIB;
	CHECK_EQ(of_allocator(a).total_bytes_allocated, total);
	CHECK_EQ(hr_get_total_bytes_allocated(0), total);
	reset();
	CHECK_EQ(hr_get_total_bytes_allocated(0), 0);
	release(a, block(a, 256));
	CHECK_EQ(hr_get_total_bytes_allocated(0), 256);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_the_limit_of_a_device_is_in_whole_pages(void)
{
	setenv("HEADROOM_CUDA", "0", 1);
	fixture_configure_emulated(64 * (uint64_t)MIB, 2 * (uint64_t)MIB, 0);
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", (uint64_t[]){ 9 * (uint64_t)MIB, 5 * (uint64_t)MIB + 1 }, 2));
	CHECK_EQ(hr_get_bytes_limit(0), 8 * MIB);
	CHECK_EQ(hr_get_bytes_limit(1), 4 * MIB);
	CHECK_EQ(hr_get_bytes_reservable_limit(1), 4 * MIB);
	CHECK_STATUS(HR_OK, hr_device_find("GPU:1", &device));
	CHECK_EQ(of_allocator(open_plain()).bytes_limit, 4 * MIB);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_the_peak_of_active_bytes_never_falls), T(test_inactive_bytes_are_in_no_peak_of_active_ones),
          T(test_small_blocks_from_a_cache_count_as_active), T(test_a_fixed_tensor_is_active_while_it_is_pinned),
          T(test_peaks_of_a_device_are_of_one_moment), T(test_one_thread_on_several_allocators_has_exact_peaks),
          T(test_a_thread_with_an_allocator_of_its_own_has_exact_peaks), T(test_counts_of_a_closed_allocator_stay_with_its_device),
          T(test_blocks_that_are_closed_with_their_allocator_count_as_freed), T(test_a_reset_is_the_same_for_both_kinds_of_statistics),
          T(test_several_tensors_evicted_together_are_a_multi_reclaim), T(test_total_bytes_are_those_of_every_chunk_handed_out),
          T(test_the_limit_of_a_device_is_in_whole_pages))
