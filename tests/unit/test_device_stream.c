/* test_device_stream.c - which stream waits for which and how often, virtual time, and the emulated device's workers. */
#include "fault_os.h"
#include "support_streams.h"
#include "test.h"

#define COPY_LATENCY_NS 20000 /* of the simulated device */

/* ---- epochs ---- */

static void test_a_wait_is_made_once_for_all_that_was_freed_before(void)
{
	use("SIM:0");
	hr_stream one = new_stream(), two = new_stream(), three = new_stream();
	uint64_t first = hr__device_epoch(device);
	CHECK_EQ(waits_for(two, BIT(two), first), 0); /* its own frees need no wait */
	CHECK_EQ(waits_for(two, 0, first), 0);
	CHECK_EQ(waits_for(two, BIT(one) | BIT(two), first), 1);
	CHECK_EQ(waits_for(two, BIT(one) | BIT(two), first), 0);
	uint64_t second = hr__device_epoch(device);
	CHECK_GT(second, first);
	CHECK_EQ(waits_for(two, BIT(one), second), 1); /* freed later */
	CHECK_EQ(waits_for(two, BIT(one), first), 0);
	CHECK_EQ(waits_for(three, BIT(one), first), 1); /* another stream needs its own wait */
	CHECK_EQ(waits_for(three, BIT(one) | BIT(two) | BIT(three) | BIT(HR_STREAM_DEFAULT), hr__device_epoch(device)), 3);
	/* hr_stream_wait_stream counts as such a wait too. */
	uint64_t third = hr__device_epoch(device);
	CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, one, two));
	CHECK_EQ(waits_for(one, BIT(two), third), 0);
	CHECK_EQ(waits_for(two, BIT(one), third), 1);
}

static void test_what_the_host_has_seen_done_needs_no_wait(void)
{
	use("SIM:0");
	hr_stream one = new_stream(), two = new_stream();
	uint64_t epoch = hr__device_epoch(device);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, one));
	CHECK_EQ(waits_for(two, BIT(one), epoch), 0);
	epoch = hr__device_epoch(device);
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one) | BIT(HR_STREAM_DEFAULT), epoch));
	CHECK_EQ(waits_for(two, BIT(one) | BIT(HR_STREAM_DEFAULT), epoch), 0);
	uint64_t calls = hr_backend_calls();
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one) | BIT(HR_STREAM_DEFAULT), epoch));
	CHECK_EQ(hr_backend_calls(), calls); /* known already */
	CHECK_EQ(waits_for(two, BIT(one), hr__device_epoch(device)), 1);
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, 0, epoch));
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(40), epoch)); /* no such stream: nothing to wait for */
}

static void test_a_stream_in_a_used_slot_starts_from_nothing(void)
{
	use("SIM:0");
	hr_stream one = new_stream(), two = new_stream();
	uint64_t epoch = hr__device_epoch(device);
	CHECK_EQ(waits_for(two, BIT(one), epoch), 1);
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, two));
	CHECK_EQ(new_stream(), two);
	CHECK_EQ(waits_for(two, BIT(one), epoch), 1); /* the new stream has waited for no other */
	/* A block freed on a destroyed stream is safe on every stream. */
	epoch = hr__device_epoch(device);
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, one));
	CHECK_EQ(waits_for(two, BIT(one), epoch), 0);
	CHECK_EQ(new_stream(), one);
	CHECK_EQ(waits_for(two, BIT(one), epoch), 0);
	CHECK_EQ(waits_for(two, BIT(one), hr__device_epoch(device)), 1);
}

static void test_events_are_used_again(void)
{
	use("SIM:0");
	hr_stream one = new_stream();
	hr_backend_fail_nth(0, false, HR_OK);
	for (int i = 0; i < 1000; i++) CHECK_EQ(waits_for(one, BIT(HR_STREAM_DEFAULT), hr__device_epoch(device)), 1);
	CHECK_EQ(hr_backend_calls(), 1 + 2 * 1000); /* one is created; then record and wait */
	hr_backend_fail_nth(0, false, HR_OK);
	for (int i = 0; i < 100; i++) CHECK_STATUS(HR_OK, hr__device_wait_idle(device, 1, hr__device_epoch(device)));
	CHECK_EQ(hr_backend_calls(), 2 * 100);
}

static void test_a_failed_wait_is_repeated(void)
{
	use("SIM:0");
	hr_stream one = new_stream();
	uint64_t epoch = hr__device_epoch(device);
	int64_t waits = 0;
	for (uint64_t nth = 1; nth <= 3; nth++) { /* create, record, wait */
		hr_backend_fail_nth(nth > 1 ? nth - 1 : 1, false, HR_DEVICE_ERROR);
		CHECK_STATUS(HR_DEVICE_ERROR, hr__device_order(device, one, 1, epoch, &waits));
		CHECK_EQ(waits, 0);
	}
	hr_backend_fail_nth(0, false, HR_OK);
	CHECK_EQ(waits_for(one, 1, epoch), 1);
	hr_backend_fail_nth(1, false, HR_DEVICE_ERROR);
	CHECK_STATUS(HR_DEVICE_ERROR, hr_stream_synchronize(handle, 0));
	hr_backend_fail_nth(2, true, HR_DEVICE_ERROR);
	CHECK_STATUS(HR_DEVICE_ERROR, hr__device_wait_idle(device, BIT(0), hr__device_epoch(device)));
	hr_backend_fail_nth(0, false, HR_OK);
	CHECK_EQ(waits_for(one, 1, hr__device_epoch(device) - 1), 1);
}

/* The caller is about to unmap memory: if no event can be created, it must wait for the whole stream. */
static void test_waiting_falls_back_to_the_whole_stream(void)
{
	use("GPU:0");
	hr_stream one = new_stream();
	for (uint64_t nth = 1; nth <= 3; nth++) {
		uint64_t address;
		hr_allocator allocator;
		void *block;
		CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
		CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 64 << 20, &block));
		address = (uintptr_t)block;
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, block, 0x5a, 64 << 20, one));
		hr_backend_fail_nth(nth, false, HR_DEVICE_ERROR);
		CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one), hr__device_epoch(device)));
		hr_backend_fail_nth(0, false, HR_OK);
		CHECK_EQ(((unsigned char *)(uintptr_t)address)[(64 << 20) - 1], 0x5a);
		CHECK_STATUS(HR_OK, hr_free(allocator, block, one));
	}
}

/* ---- virtual time ---- */

static uint64_t plain(uint64_t bytes)
{
	uint64_t address;
	CHECK_STATUS(HR_OK, hr__page_pool_plain_alloc(device, bytes, &address));
	return address;
}

static uint64_t time_after(hr_stream stream)
{
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
	return hr__device_clock_ns(device);
}

static void copy(hr_copy_kind kind, uint64_t block, uint64_t bytes, hr_stream stream)
{
	static char host[1]; /* never touched */
	void *at = (void *)(uintptr_t)block;
	bool in = kind == HR_COPY_TO_DEVICE;
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, in ? at : (void *)host, in ? (const void *)host : at, bytes, kind, stream));
}

static void test_virtual_time_is_what_the_work_takes(void)
{
	const uint64_t bytes = UINT64_C(55000000), copy_ns = MS + COPY_LATENCY_NS; /* 1 ms on the link */
	use("SIM:0");
	uint64_t a = plain(bytes), b = plain(bytes);
	hr_stream one = new_stream(), two = new_stream(), three = new_stream();
	CHECK_EQ(hr__device_clock_ns(device), 0);
	compute(one, 5 * MS);
	CHECK_EQ(hr__device_clock_ns(device), 0); /* nothing has waited for it */
	copy(HR_COPY_TO_DEVICE, a, bytes, two);
	copy(HR_COPY_TO_HOST, b, bytes, three); /* the other engine: concurrently */
	CHECK_EQ(time_after(two), copy_ns);
	CHECK_EQ(time_after(three), copy_ns);
	CHECK_EQ(time_after(one), 5 * MS);
	copy(HR_COPY_TO_DEVICE, a, bytes, two);   /* starts no earlier than now */
	copy(HR_COPY_TO_DEVICE, b, bytes, three); /* the same engine: sequentially */
	CHECK_EQ(time_after(two), 5 * MS + copy_ns);
	CHECK_EQ(time_after(three), 5 * MS + 2 * copy_ns);
	CHECK_EQ(time_after(one), 5 * MS + 2 * copy_ns); /* time does not go back */
}

static void test_simulated_addresses_are_not_taken_for_host_memory(void)
{
	use("SIM:0");
	uint64_t a = plain(1000), b = plain(1000);
	void *host;
	CHECK_STATUS(HR_OK, hr__call_host_alloc(device->physical, 1000, &host));
	CHECK_STATUS(HR_DEVICE_ERROR, hr_stream_copy(handle, (void *)(uintptr_t)a, (void *)(uintptr_t)b, 1000, HR_COPY_TO_DEVICE, 0));
	CHECK_STATUS(HR_DEVICE_ERROR, hr_stream_copy(handle, (void *)(uintptr_t)a, (void *)(uintptr_t)b, 1000, HR_COPY_TO_HOST, 0));
	CHECK_STATUS(HR_DEVICE_ERROR, hr_stream_copy(handle, (void *)(uintptr_t)a, host, 1000, HR_COPY_ON_DEVICE, 0));
	CHECK_STATUS(HR_DEVICE_ERROR, hr_stream_copy(handle, (void *)(uintptr_t)a, host, 2000, HR_COPY_TO_DEVICE, 0));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, (void *)(uintptr_t)a, host, 1000, HR_COPY_TO_DEVICE, 0));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, (void *)(uintptr_t)a, (void *)(uintptr_t)b, 1000, HR_COPY_ON_DEVICE, 0));
	CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, host, 1000));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_host_free(device->physical, host, 1000));
}

static void test_virtual_time_waits_where_streams_wait(void)
{
	use("SIM:0");
	hr_stream one = new_stream(), two = new_stream();
	compute(one, 3 * MS);
	compute(two, 1 * MS);
	CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, two, one));
	compute(one, 10 * MS); /* after the moment that was waited for */
	compute(two, 2 * MS);
	CHECK_EQ(time_after(two), 5 * MS);
	CHECK_EQ(time_after(one), 13 * MS);
	uint64_t epoch = hr__device_epoch(device);
	compute(one, 4 * MS);
	CHECK_STATUS(HR_OK, hr__device_wait_idle(device, BIT(one), epoch));
	CHECK_EQ(hr__device_clock_ns(device), 17 * MS);
}

static void test_polling_an_event_ends(void)
{
	use("SIM:0");
	hr_native_event event;
	CHECK_STATUS(HR_OK, hr__call_event_create(device->physical, &event));
	compute(HR_STREAM_DEFAULT, MS);
	CHECK_STATUS(HR_OK, hr__call_event_record(device->physical, event, 0));
	uint64_t asked = 0;
	while (hr__call_event_query(device->physical, event) == HR_NOT_READY) asked++;
	CHECK_GT(asked, 1000);
	CHECK_LT(asked, 10000);
	CHECK_GE(hr__device_clock_ns(device), MS);
}

/* ---- the emulated device ---- */

static void use_emulated(uint64_t link, uint64_t latency)
{
	hr_emulated_options options;
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	options.memory_bytes = 64 << 20;
	options.page_bytes = 64 << 10;
	options.link_bytes_per_s = link;
	options.kernel_latency_ns = latency;
	CHECK_STATUS(HR_OK, hr_emulated_configure(&options));
	use("GPU:0");
}

static void wait_at_gate(void *open)
{
	while (!atomic_load((_Atomic(bool) *)open)) nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

static void test_work_is_asynchronous(void)
{
	use_emulated(0, 0);
	hr_stream one = new_stream(), two = new_stream();
	hr_native_stream native;
	uint64_t block = plain(100), epoch;
	unsigned char seen = 0;
	_Atomic(bool) open = false;
	CHECK_STATUS(HR_OK, hr__stream_native(device, one, &native));
	CHECK_STATUS(HR_OK, hr__call_host_call(device->physical, wait_at_gate, &open, native));
	/* If one of these waited for the gate, the test would hang. */
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)block, 7, 100, one));
	epoch = hr__device_epoch(device);
	CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, two, one));
	CHECK_EQ(waits_for(HR_STREAM_DEFAULT, BIT(one), epoch), 1);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, &seen, (void *)(uintptr_t)block, 1, HR_COPY_TO_HOST, two));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, new_stream()));
	CHECK_EQ(*(volatile unsigned char *)(uintptr_t)block, 0);
	atomic_store(&open, true);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, two));
	CHECK_EQ(seen, 7);
}

static void test_a_full_queue_blocks_and_loses_nothing(void)
{
	use_emulated(0, 0);
	hr_stream one = new_stream(), two = new_stream();
	uint64_t block = plain(8192);
	unsigned char seen[5000];
	compute(one, 20 * MS);
	for (uint32_t i = 0; i < 5000; i++) {
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)(block + i), (unsigned char)i, 1, one));
		CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, two, one));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, &seen[i], (void *)(uintptr_t)(block + i), 1, HR_COPY_TO_HOST, two));
	}
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, two));
	for (uint32_t i = 0; i < 5000; i++) CHECK_EQ(seen[i], (unsigned char)i);
}

static void test_the_link_takes_its_time_each_way(void)
{
	use_emulated(10000000, 1000000);
	const uint64_t bytes = 1000000, each = 100 * MS + MS; /* slow, so that the host's own time for the bytes is negligible */
	hr_stream one = new_stream(), two = new_stream();
	uint64_t a = plain(bytes), b = plain(bytes), start;
	char *host = malloc(2 * bytes);
	CHECK(host != NULL);
	memset(host, 0, 2 * bytes);
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)a, 1, bytes, 0));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)b, 1, bytes, 0));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
	uint64_t fastest = UINT64_MAX;
	for (int attempt = 0; attempt < 20 && fastest >= 2 * each; attempt++) { /* the machine may be busy */
		start = hr__os()->clock_ns();
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, (void *)(uintptr_t)a, host, bytes, HR_COPY_TO_DEVICE, one));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, host + bytes, (void *)(uintptr_t)b, bytes, HR_COPY_TO_HOST, two));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, one));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, two));
		uint64_t both = hr__os()->clock_ns() - start;
		CHECK_GE(both, each);
		if (both < fastest) fastest = both;
	}
	if (!HR_TEST_SANITIZED) CHECK_LT(fastest, 2 * each); /* both directions at once */
	start = hr__os()->clock_ns();
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, (void *)(uintptr_t)a, host, bytes, HR_COPY_TO_DEVICE, one));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, (void *)(uintptr_t)b, host, bytes, HR_COPY_TO_DEVICE, two));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, one));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, two));
	CHECK_GE(hr__os()->clock_ns() - start, 200 * MS); /* copies in one direction are sequential */
	free(host);
}

static void test_an_error_is_reported_once_by_its_own_stream(void)
{
	use_emulated(0, 0);
	hr_stream one = new_stream();
	uint64_t block = plain(100), range;
	CHECK_STATUS(HR_OK, hr__device_reserve(device, hr__device_page_bytes(device), &range));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)range, 1, 100, one));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)(range + 50), 1, 100, one));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)block, 1, 100, one)); /* the stream continues */
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_DEVICE_ERROR, hr_stream_synchronize(handle, one));
	char place[40];
	snprintf(place, sizeof place, "[0x%llx, 0x%llx)", (unsigned long long)range, (unsigned long long)range + 100);
	CHECK_CONTAINS(hr_last_message(), place); /* the first error */
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, one));
	CHECK_EQ(*(unsigned char *)(uintptr_t)block, 1);
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)range, 1, 100, one));
	CHECK_STATUS(HR_DEVICE_ERROR, hr_stream_destroy(handle, one)); /* the error is not lost; the stream still exists */
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, one));
}

static void touch(void *address)
{
	*(volatile char *)address = 1;
}

static void test_touching_what_is_unmapped_faults(void)
{
	use_emulated(0, 0);
	hr__page_id one;
	uint64_t range, page = hr__device_page_bytes(device);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 1, &one));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, 2 * page, &range));
	CHECK(hr_test_crashes(touch, (void *)(uintptr_t)range));
	CHECK_STATUS(HR_OK, hr__device_map(device, range, &one, 1));
	CHECK(!hr_test_crashes(touch, (void *)(uintptr_t)range));
	CHECK(hr_test_crashes(touch, (void *)(uintptr_t)(range + page)));
	CHECK_STATUS(HR_OK, hr__device_unmap(device, range, 1));
	CHECK(hr_test_crashes(touch, (void *)(uintptr_t)range));
}

static void test_pages_side_by_side_are_mapped_by_one_system_call(void)
{
	hr_fault_os_install();
	use_emulated(0, 0);
	hr__page_id pages[8], swapped[8];
	uint64_t range, page = hr__device_page_bytes(device);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 8, pages));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, 8 * page, &range));
	CHECK_STATUS(HR_OK, hr__device_map(device, range, pages, 1)); /* allocates the records of the range */
	CHECK_STATUS(HR_OK, hr__device_unmap(device, range, 1));
	hr_fault_os_fail_nth(0, false, 0);
	CHECK_STATUS(HR_OK, hr__device_map(device, range, pages, 8));
	CHECK_EQ(hr_fault_os_calls(), 1);
	CHECK_STATUS(HR_OK, hr__device_unmap(device, range, 8));
	for (int i = 0; i < 8; i++) swapped[i] = pages[7 - i];
	hr_fault_os_fail_nth(0, false, 0);
	CHECK_STATUS(HR_OK, hr__device_map(device, range, swapped, 8));
	CHECK_EQ(hr_fault_os_calls(), 8);
	CHECK_STATUS(HR_OK, hr__device_unmap(device, range, 8));
	/* All or none: the fifth of eight fails, and nothing is mapped. */
	struct hr_fault_os_live live;
	hr_fault_os_fail_nth(5, false, ENOMEM);
	CHECK_STATUS(HR_NO_HOST_MEMORY, hr__device_map(device, range, swapped, 8));
	hr_fault_os_fail_nth(0, false, 0);
	hr_fault_os_live(&live);
	CHECK_EQ(live.mapped_bytes, 0);
	CHECK_STATUS(HR_OK, hr__device_map(device, range, pages, 8));
	CHECK_STATUS(HR_OK, hr__device_unmap(device, range, 8));
	hr__devices_shutdown();
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

static void test_host_memory_that_may_not_be_pinned_serves_as_well(void)
{
	struct hr_fault_os_live live;
	void *block;
	hr_fault_os_install();
	use_emulated(0, 0);
	int served = 0;
	plain(1); /* the records are allocated now, so that every round makes the same calls */
	for (uint64_t nth = 1;; nth++) {
		hr_fault_os_fail_nth(nth, false, EPERM);
		hr_status status = hr__call_host_alloc(device->physical, 10000, &block);
		bool reached = hr_fault_os_calls() >= nth;
		hr_fault_os_fail_nth(0, false, 0);
		if (status == HR_OK) {
			memset(block, 1, 10000);
			CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, block, 10000));
			served += reached;
		}
		if (!reached) break;
	}
	CHECK_EQ(served, 1); /* only pinning may fail */
	hr_fault_os_live(&live);
	CHECK_EQ(live.locked_bytes, 0);
	CHECK_EQ(live.reserved_ranges, 1);
	hr__devices_shutdown();
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

TEST_MAIN(T(test_a_wait_is_made_once_for_all_that_was_freed_before), T(test_what_the_host_has_seen_done_needs_no_wait),
          T(test_a_stream_in_a_used_slot_starts_from_nothing), T(test_events_are_used_again),
          T(test_a_failed_wait_is_repeated), T(test_waiting_falls_back_to_the_whole_stream),
          T(test_virtual_time_is_what_the_work_takes),
          T(test_simulated_addresses_are_not_taken_for_host_memory), T(test_virtual_time_waits_where_streams_wait),
          T(test_polling_an_event_ends), T(test_work_is_asynchronous),
          T(test_a_full_queue_blocks_and_loses_nothing), T(test_the_link_takes_its_time_each_way),
          T(test_an_error_is_reported_once_by_its_own_stream), T(test_touching_what_is_unmapped_faults),
          T(test_pages_side_by_side_are_mapped_by_one_system_call), T(test_host_memory_that_may_not_be_pinned_serves_as_well))
