/* test_allocator_shards.c - which shard a thread uses: that of the others, until it waits for their lock too often. */
#include "fault_os.h"
#include "memory/allocator.h"
#include "support_stats.h"
#include "test.h"

#define PAGE (UINT64_C(2) << 20)
#define KIB UINT64_C(1024)

static hr_allocator allocator_of(uint64_t pages)
{
	hr_simulated_options simulated;
	hr_allocator_options options;
	hr_device device;
	hr_allocator allocator;
	hr_simulated_options_init(&simulated);
	simulated.memory_bytes = pages * PAGE;
	simulated.page_bytes = PAGE;
	CHECK_STATUS(HR_OK, hr_configure_simulated(&simulated));
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	hr_allocator_options_init(&options);
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	return allocator;
}

static hr_stats stats_of(hr_allocator allocator)
{
	hr_stats stats;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	check_identities(&stats);
	return stats;
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

/* As if the lock were held by another thread [times]. */
static void contend(hr__cache *cache, unsigned times)
{
	for (unsigned i = 0; i < times; i++) hr__lock_release(&hr__shard_contend(cache)->lock);
}

static void *waits_often(void *argument)
{
	hr_allocator allocator = *(hr_allocator *)argument;
	void *large, *small[2], *after;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, PAGE, &large));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 4 * KIB, &small[0]));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 4 * KIB, &small[1]));
	CHECK_STATUS(HR_OK, hr_free(allocator, small[0], HR_STREAM_DEFAULT));
	hr__cache *cache = own_cache(allocator);
	CHECK_EQ(cache->shard->index, 0);
	CHECK_LE(4 * KIB, (uint64_t)hr__load_relaxed(&cache->kept));
	contend(cache, 3);
	CHECK_EQ(cache->shard->index, 0);
	contend(cache, 1);
	CHECK_EQ(cache->shard->index, 1);
	CHECK_EQ(hr__load_relaxed(&cache->kept), 0); /* what it kept is of the other shard */
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));

	/* One thread has 2 meters at most here: its cache's and a shard's. */
	hr_stats stats = stats_of(allocator);
	CHECK_EQ(stats.bytes_in_use, 2 * (int64_t)PAGE + 4 * (int64_t)KIB);
	CHECK_LE(stats.peak_bytes_in_use, 2 * (int64_t)PAGE + 8 * (int64_t)KIB + 2 * 64 * (int64_t)KIB);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, PAGE, &after));
	CHECK(hr__shard_has(cache->shard, (uintptr_t)after));
	CHECK_STATUS(HR_OK, hr_free(allocator, large, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, small[1], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, after, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_NOT_ALLOCATED, hr_free(allocator, small[0], HR_STREAM_DEFAULT));
	contend(cache, 8);
	CHECK_EQ(cache->shard->index, 1); /* nobody else is there */
	return NULL;
}

static void test_a_thread_that_waits_often_gets_a_shard_of_its_own(void)
{
	hr_allocator allocator = allocator_of(4096);
	beside(allocator, waits_often);
	CHECK_EQ(stats_of(allocator).bytes_in_use, 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void *waits_seldom(void *argument)
{
	hr_allocator allocator = *(hr_allocator *)argument;
	hr__cache *cache = own_cache(allocator);
	for (unsigned round = 0; round < 64; round++) {
		contend(cache, 1);
		for (unsigned i = 0; i < 1024; i++) { /* the lock is taken once by each call */
			void *block;
			CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, PAGE, &block));
			CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
		}
	}
	CHECK_EQ(cache->shard->index, 0);
	return NULL;
}

static void test_a_thread_that_waits_seldom_stays(void)
{
	hr_allocator allocator = allocator_of(4096);
	beside(allocator, waits_seldom);
	CHECK_EQ(stats_of(allocator).peak_bytes_reserved, 2 * (int64_t)PAGE); /* one block of each thread at a time */
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void *cannot_move(void *argument)
{
	hr_allocator allocator = *(hr_allocator *)argument;
	hr__cache *cache = own_cache(allocator);
	uint64_t nth = 0;
	void *block;
	while (cache->shard->index == 0) {
		hr_fault_os_fail_nth(++nth, false, ENOMEM);
		contend(cache, 4);
		hr_fault_os_fail_nth(0, false, 0);
		CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
		CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, PAGE, &block));
		CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	}
	CHECK_LE(2, nth); /* some call failed first */
	return NULL;
}

static void test_a_thread_that_cannot_get_a_shard_stays(void)
{
	hr_fault_os_install();
	hr_allocator allocator = allocator_of(4096);
	beside(allocator, cannot_move);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

TEST_MAIN(T(test_a_thread_that_waits_often_gets_a_shard_of_its_own), T(test_a_thread_that_waits_seldom_stays),
          T(test_a_thread_that_cannot_get_a_shard_stays))
