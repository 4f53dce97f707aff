/* test_allocator_shards.c - the shard of large blocks: shard 0, until a thread waits too often for its lock. And how the meters of
 * threads share the bytes that are free below the peak. */
#include <sched.h>

#include "fixture.h"
#include "core/memory/allocator.h"
#include "support_stats.h"
#include "test.h"

#define PAGE (UINT64_C(2) << 20)
#define KIB UINT64_C(1024)

static hr_allocator allocator_of(uint64_t pages)
{
	hr_device device = fixture_simulated(pages * PAGE, PAGE);
	return fixture_allocator(device, 0);
}

/* Runs [body] on a thread of its own while the calling thread, which uses shard 0, waits. */
static void beside(hr_allocator allocator, void *(*body)(void *))
{
	pthread_t thread;
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, PAGE, &block));
	CHECK_EQ(pthread_create(&thread, NULL, body, &allocator), 0);
	pthread_join(thread, NULL);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
}

static hr__cache *own_cache(hr_allocator handle)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	CHECK(allocator != NULL);
	return hr__cache_get(allocator);
}

/* As if another thread held the lock [times] times. */
static void contend(hr__cache *cache, unsigned times)
{
	for (unsigned i = 0; i < times; i++) hr__lock_release(&hr__cache_lock_large_slow(cache)->lock);
}

static void *waits_often(void *argument)
{
	hr_allocator allocator = *(hr_allocator *)argument;
	void *large, *small, *after;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, PAGE, &large));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 4 * KIB, &small));
	hr__cache *cache = own_cache(allocator);
	CHECK_EQ(cache->shard->index, 1);
	CHECK(hr__shard_has(cache->shard, (uintptr_t)small));
	CHECK(!hr__shard_has(cache->shard, (uintptr_t)large));
	contend(cache, 3);
	CHECK_EQ(cache->large->index, 0);
	contend(cache, 1);
	CHECK_EQ(cache->large->index, 1);

	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, PAGE, &after));
	CHECK(hr__shard_has(cache->shard, (uintptr_t)after));
	hr_stats stats = checked_stats(allocator);
	CHECK_EQ(stats.bytes_in_use, 3 * (int64_t)PAGE + 4 * (int64_t)KIB);
	CHECK_LE(stats.peak_bytes_in_use, 3 * (int64_t)PAGE + 4 * (int64_t)KIB + 2 * 64 * (int64_t)KIB);
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_free(allocator, large, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, small, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, after, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_NOT_ALLOCATED, hr_free(allocator, large, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_NOT_ALLOCATED, hr_free(allocator, small, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_NOT_ALLOCATED, hr_free(allocator, after, HR_STREAM_DEFAULT));
	return NULL;
}

static void test_a_thread_that_waits_often_has_large_blocks_of_its_own(void)
{
	hr_allocator allocator = allocator_of(4096);
	beside(allocator, waits_often);
	CHECK_EQ(checked_stats(allocator).bytes_in_use, 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void *waits_seldom(void *argument)
{
	hr_allocator allocator = *(hr_allocator *)argument;
	hr__cache *cache = own_cache(allocator);
	for (unsigned round = 0; round < 64; round++) {
		contend(cache, 1);
		for (unsigned i = 0; i < 1024; i++) { /* each call acquires the lock once */
			void *block;
			CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, PAGE, &block));
			CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
		}
	}
	CHECK_EQ(cache->large->index, 0);
	return NULL;
}

static void test_a_thread_that_waits_seldom_shares_large_blocks(void)
{
	hr_allocator allocator = allocator_of(4096);
	beside(allocator, waits_seldom);
	CHECK_EQ(checked_stats(allocator).peak_bytes_reserved, 2 * (int64_t)PAGE); /* one block of each thread at a time */
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void *comes_when_busy(void *argument)
{
	hr__cache *cache = own_cache(*(hr_allocator *)argument);
	CHECK_EQ(cache->shard->index, 1);
	CHECK_EQ(cache->large->index, 1);
	return NULL;
}

/* The first thread uses shard 0 while the second one starts. */
static void test_a_thread_that_starts_beside_a_busy_one_has_large_blocks_of_its_own(void)
{
	hr_allocator allocator = allocator_of(4096);
	pthread_t thread;
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, PAGE, &block));
	hr__shard *shard = own_cache(allocator)->shard;
	hr__lock_take(&shard->lock); /* stands for another thread in a long call */
	CHECK_EQ(pthread_create(&thread, NULL, comes_when_busy, &allocator), 0);
	while (!hr__lock_is_held(&shard->allocator->caches_lock)) sched_yield(); /* it has tried shard 0 and waits for its lock */
	hr__lock_release(&shard->lock);
	pthread_join(thread, NULL);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- meters ---- */

static void *is_asked(void *argument)
{
	hr_allocator allocator = *(hr_allocator *)argument;
	hr__cache *cache = own_cache(allocator);
	void *block;
	hr__store_relaxed(&cache->meter.lowering, 1);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, PAGE, &block));
	CHECK_EQ(hr__load_relaxed(&cache->meter.lowering), 0);
	hr__store_relaxed(&cache->meter.lowering, 1);
	hr__store_relaxed(&cache->large->meter.lowering, 1);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	CHECK_EQ(hr__load_relaxed(&cache->meter.lowering), 0);
	CHECK_EQ(hr__load_relaxed(&cache->large->meter.lowering), 0);
	return NULL;
}

/* A thread that uses only large blocks was interrupted by others that needed the slack of its meter of small blocks. */
static void test_a_large_block_answers_for_both_meters_of_a_thread(void)
{
	hr_allocator allocator = allocator_of(4096);
	beside(allocator, is_asked);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Slack that a meter keeps if it has [slack] bytes and another meter needs [missing] bytes. */
static int64_t kept_of(hr__cache *cache, int64_t slack, int64_t missing)
{
	hr__allocator *allocator = cache->allocator;
	hr__meter *meter = &cache->meter;
	hr__lock_take(allocator->meter_lock);
	int64_t level = hr__load_relaxed(&meter->used) + slack;
	hr__owner_add(&allocator->levels, level - hr__load_relaxed(&meter->level));
	hr__store_relaxed(&meter->level, level);
	hr__owner_max(&allocator->peak, hr__load_relaxed(&allocator->levels));
	hr__store_relaxed(&allocator->usage->missing, missing);
	hr__store_relaxed(&meter->lowering, 2);
	hr__lock_release(allocator->meter_lock);
	hr__meter_lower(allocator, meter);
	return hr__load_relaxed(&meter->level) - hr__load_relaxed(&meter->used);
}

static void *gives(void *argument)
{
	hr__cache *cache = own_cache(*(hr_allocator *)argument);
	int64_t mib = 1024 * (int64_t)KIB;
	CHECK_EQ(kept_of(cache, 8 * mib, mib), 4 * mib);               /* it keeps half, because the other half is more than 1 MiB */
	CHECK_EQ(kept_of(cache, 8 * mib, 6 * mib), 2 * mib);           /* 8 - 6 */
	CHECK_EQ(kept_of(cache, 8 * mib, 100 * mib), 16 * (int64_t)KIB); /* half of the slack that a meter never gives up */
	CHECK_EQ(kept_of(cache, 32 * (int64_t)KIB, mib), 32 * (int64_t)KIB);
	return NULL;
}

static void test_a_meter_asked_to_lower_its_level_keeps_half_if_that_is_enough(void)
{
	hr_allocator allocator = allocator_of(4096);
	beside(allocator, gives);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_a_thread_that_waits_often_has_large_blocks_of_its_own), T(test_a_thread_that_waits_seldom_shares_large_blocks),
          T(test_a_thread_that_starts_beside_a_busy_one_has_large_blocks_of_its_own), T(test_a_large_block_answers_for_both_meters_of_a_thread),
          T(test_a_meter_asked_to_lower_its_level_keeps_half_if_that_is_enough))
