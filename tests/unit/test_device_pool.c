/* test_device_pool.c - the page pool: exact under any order of calls, any failure and any number of threads. */
#include "fixture.h"
#include "core/device/internal.h"
#include "test.h"

#define KIB (UINT64_C(1) << 10)

static hr__device *simulated(uint64_t memory, uint64_t page)
{
	hr__device *device;
	fixture_configure_simulated(memory, page);
	CHECK_STATUS(HR_OK, hr__device_named("SIM:0", &device));
	return device;
}

static uint64_t device_free(hr__device *device)
{
	uint64_t free_bytes, total;
	CHECK_STATUS(HR_OK, hr__call_memory_info(device->physical, &free_bytes, &total));
	return free_bytes;
}

/* ---- one thread, against a model ---- */

#define PAGES 512u
#define MAX_PLAIN 64u

typedef struct model {
	hr__page_id taken[PAGES];
	uint32_t taken_count;
	struct {
		uint64_t address, bytes;
	} plain[MAX_PLAIN];
	uint32_t plain_count;
	uint64_t plain_bytes;
	bool is_taken[1 << 16]; /* by id */
} model;

static void check_model(hr__device *device, const model *m)
{
	uint64_t page = hr__device_page_bytes(device), reserved = m->taken_count * page + m->plain_bytes;
	CHECK_EQ(hr__page_pool_reserved(device), reserved);
	CHECK_EQ(hr__page_pool_available(device), hr__device_reservable(device) - reserved);
	CHECK_EQ(device->pool.held, reserved + device->pool.idle_count * page);
	CHECK_LE(device->pool.held, hr__device_reservable(device));
	CHECK_EQ(device_free(device), hr__device_limit(device) - device->pool.held);
}

static void take_some(hr__device *device, model *m, uint64_t *seed)
{
	hr__page_id pages[PAGES + 1];
	uint32_t count = (uint32_t)hr_rand_below(seed, hr_rand_below(seed, 4) ? 20 : PAGES + 1);
	bool fits = count * hr__device_page_bytes(device) <= hr__page_pool_available(device);
	CHECK_STATUS(fits ? HR_OK : HR_OUT_OF_MEMORY, hr__page_pool_take(device, count, pages));
	for (uint32_t i = 0; fits && i < count; i++) {
		CHECK_LT(pages[i], PAGES); /* ids are reused, so there are never more than pages */
		CHECK(!m->is_taken[pages[i]]);
		m->is_taken[pages[i]] = true;
		m->taken[m->taken_count++] = pages[i];
	}
}

static void give_some(hr__device *device, model *m, uint64_t *seed)
{
	uint32_t count = (uint32_t)hr_rand_below(seed, m->taken_count + 1);
	for (uint32_t i = 0; i < count; i++) { /* any of them, not just the last ones */
		uint32_t pick = (uint32_t)hr_rand_below(seed, m->taken_count - i), last = m->taken_count - 1 - i;
		hr__page_id id = m->taken[pick];
		m->taken[pick] = m->taken[last];
		m->taken[last] = id;
		m->is_taken[id] = false;
	}
	m->taken_count -= count;
	hr__page_pool_give(device, m->taken + m->taken_count, count);
}

static void plain_step(hr__device *device, model *m, uint64_t *seed)
{
	if (m->plain_count == MAX_PLAIN || (m->plain_count > 0 && hr_rand_below(seed, 2))) {
		uint32_t pick = (uint32_t)hr_rand_below(seed, m->plain_count);
		CHECK_STATUS(HR_OK, hr__page_pool_plain_free(device, m->plain[pick].address, m->plain[pick].bytes));
		m->plain_bytes -= m->plain[pick].bytes;
		m->plain[pick] = m->plain[--m->plain_count];
		return;
	}
	uint64_t bytes = 1 + hr_rand_below(seed, hr__device_limit(device) / 8), address;
	bool fits = bytes <= hr__page_pool_available(device);
	CHECK_STATUS(fits ? HR_OK : HR_OUT_OF_MEMORY, hr__page_pool_plain_alloc(device, bytes, &address));
	if (!fits) return;
	m->plain[m->plain_count].address = address;
	m->plain[m->plain_count++].bytes = bytes;
	m->plain_bytes += bytes;
}

static void test_pool_agrees_with_a_model(void)
{
	hr__device *device = simulated(PAGES * 256 + 17, 256);
	uint64_t seed = hr_test_seed();
	static model m;
	for (uint64_t step = 0; step < hr_test_scaled(20000); step++) {
		switch (hr_rand_below(&seed, 8)) {
		case 0:
		case 1:
		case 2: take_some(device, &m, &seed); break;
		case 3:
		case 4: give_some(device, &m, &seed); break;
		case 5:
		case 6: plain_step(device, &m, &seed); break;
		case 7: {
			uint64_t idle = device->pool.idle_count * KIB / 4;
			if (hr_rand_below(&seed, 4) == 0) CHECK_EQ(hr__page_pool_shrink(device), idle);
			break;
		}
		}
		check_model(device, &m);
	}
}

static void test_a_failed_take_changes_nothing_at_every_call(void)
{
	hr__device *device = simulated(64 * 256, 256);
	hr__page_id some[10], pages[64];
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 10, some));
	hr__page_pool_give(device, some, 4); /* a few are idle */
	uint64_t free_before = device_free(device);
	for (uint64_t nth = 1; nth <= 16; nth++) {
		hr_backend_fail_nth(nth, false, HR_DEVICE_ERROR);
		CHECK_STATUS(HR_DEVICE_ERROR, hr__page_pool_take(device, 20, pages));
		CHECK_CONTAINS(hr_last_message(), "page_create");
		CHECK_EQ(hr__page_pool_reserved(device), 6 * 256);
		CHECK_EQ(device->pool.idle_count, 4);
		CHECK_EQ(device_free(device), free_before);
	}
	hr_backend_fail_nth(17, false, HR_DEVICE_ERROR);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 20, pages));
	hr__page_pool_give(device, pages, 20);
	/* If undoing fails too, the pages stay in the pool, idle, and the first error is returned. */
	hr_backend_fail_nth(0, false, HR_OK);
	hr__page_pool_shrink(device);
	hr_backend_fail_nth(5, true, HR_OUT_OF_MEMORY);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_take(device, 20, pages));
	CHECK_CONTAINS(hr_last_message(), "page_create");
	CHECK_CONTAINS(hr_last_message(), "SIM:0");
	hr_backend_fail_nth(0, false, HR_OK);
	CHECK_EQ(hr__page_pool_reserved(device), 6 * 256);
	CHECK_EQ(device->pool.idle_count, 4);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 58, pages));
	hr__page_pool_give(device, pages, 58);
	hr__page_pool_give(device, some + 4, 6);
}

static void test_a_page_that_cannot_be_destroyed_stays_idle(void)
{
	hr__device *device = simulated(16 * 256, 256);
	hr__page_id pages[16];
	uint64_t address;
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 16, pages));
	hr__page_pool_give(device, pages, 16);
	hr_backend_fail_nth(4, true, HR_DEVICE_ERROR);
	CHECK_EQ(hr__page_pool_shrink(device), 3 * 256);
	CHECK_EQ(device->pool.idle_count, 13);
	CHECK_STATUS(HR_DEVICE_ERROR, hr__page_pool_plain_alloc(device, 16 * 256, &address));
	hr_backend_fail_nth(0, false, HR_OK);
	CHECK_EQ(hr__page_pool_reserved(device), 0);
	CHECK_STATUS(HR_OK, hr__page_pool_plain_alloc(device, 16 * 256, &address));
	CHECK_STATUS(HR_OK, hr__page_pool_plain_free(device, address, 16 * 256));
}

static void test_a_run_given_back_is_handed_out_in_its_order(void)
{
	hr__device *device = simulated(64 * 256, 256);
	hr__page_id pages[8], again[8];
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 8, pages));
	hr__page_pool_give(device, pages, 8);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 8, again));
	CHECK_BYTES(pages, again, sizeof pages); /* adjacent pages stay adjacent */
	hr__page_pool_give(device, again, 8);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 0, again));
}

static void test_a_full_card_makes_its_other_parts_give_idle_pages_up(void)
{
	hr__device *first, *second;
	hr__page_id pages[32], one;
	hr_page others;
	fixture_configure_simulated(32 * 256, 256);
	CHECK_STATUS(HR_OK, hr_device_set_logical("SIM:0", (uint64_t[]){ 16 * 256, 15 * 256, 256 }, 3)); /* the third is never used */
	CHECK_STATUS(HR_OK, hr__device_named("SIM:0", &first));
	CHECK_STATUS(HR_OK, hr__device_named("SIM:1", &second));
	CHECK_STATUS(HR_OK, hr__page_pool_take(first, 16, pages));
	CHECK_STATUS(HR_OK, hr__page_pool_take(second, 14, pages + 16));
	for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr__call_page_create(first->physical, &others)); /* simulates another process */
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_take(second, 1, &one));
	CHECK_CONTAINS(hr_last_message(), "the device itself is full");
	hr__page_pool_give(first, pages, 2); /* idle on the first device, but unavailable to the second */
	CHECK_STATUS(HR_OK, hr__page_pool_take(second, 1, &one));
	CHECK_EQ(hr__page_pool_reserved(first), 14 * 256);
	CHECK_EQ(hr__page_pool_reserved(second), 15 * 256);
}

static void test_page_tables_grow_with_the_pages(void)
{
	hr__device *device = simulated(UINT64_C(1) << 40, 2 << 20);
	static hr__page_id pages[100000];
	uint64_t before = hr__page_pool_metadata(device);
	CHECK_LT(before, 4096);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 100000, pages));
	for (uint32_t i = 0; i < 100000; i++) CHECK_EQ(hr__page_pool_page(&device->pool, pages[i]), i * (UINT64_C(2) << 20));
	CHECK_LT(hr__page_pool_metadata(device), 100000 * 12 * 3);
	hr__page_pool_give(device, pages, 100000);
}

/* ---- threads ---- */

static void hammer(void *argument, unsigned index)
{
	hr__device *device = argument;
	uint64_t seed = hr_test_seed() * 100 + index, page = hr__device_page_bytes(device);
	hr__page_id pages[40];
	for (uint64_t round = 0; round < hr_test_scaled(2000); round++) {
		uint32_t count = 1 + (uint32_t)hr_rand_below(&seed, 40);
		uint64_t address, bytes = 1 + hr_rand_below(&seed, 20 * page);
		if (hr__page_pool_take(device, count, pages) == HR_OK) {
			for (uint32_t i = 0; i < count; i++) (void)hr__page_pool_page(&device->pool, pages[i]);
			hr__page_pool_give(device, pages, count);
		}
		if (hr__page_pool_plain_alloc(device, bytes, &address) == HR_OK)
			CHECK_STATUS(HR_OK, hr__page_pool_plain_free(device, address, bytes));
		if (hr_rand_below(&seed, 32) == 0) hr__page_pool_shrink(device);
		CHECK_LE(hr__page_pool_reserved(device), hr__device_reservable(device));
	}
}

static void test_threads_never_pass_the_limit(void)
{
	hr__device *device = simulated(64 * 256, 256);
	hr_test_threads(4, hammer, device);
	CHECK_EQ(hr__page_pool_reserved(device), 0);
	CHECK_EQ(device->pool.destroying, 0);
	CHECK_EQ(device->pool.held, device->pool.idle_count * UINT64_C(256));
	hr__page_pool_shrink(device);
	CHECK_EQ(device_free(device), 64 * 256);
}

static void take_or_shrink(void *argument, unsigned index)
{
	hr__device *device = argument;
	hr__page_id pages[16];
	for (uint64_t round = 0; round < hr_test_scaled(3000); round++) {
		if (index == 0) {
			hr__page_pool_shrink(device);
			continue;
		}
		/* 16 pages are always available: pages that are being destroyed must not make this fail. */
		CHECK_STATUS(HR_OK, hr__page_pool_take(device, 16, pages));
		hr__page_pool_give(device, pages, 16);
	}
}

static void test_destroying_idle_pages_never_makes_a_request_fail(void)
{
	hr_test_threads(2, take_or_shrink, simulated(16 * 256, 256));
}

/* ---- accounts of software devices ---- */

static void test_mapping_page_by_page_is_fast(void)
{
	hr__device *device = simulated(UINT64_C(1) << 40, 2 << 20);
	enum { COUNT = 14000 };
	static hr__page_id pages[COUNT];
	uint64_t address, page = hr__device_page_bytes(device);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, COUNT, pages));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, UINT64_C(1) << 40, &address));
	double start = hr_test_now();
	for (uint32_t i = 0; i < COUNT; i++) CHECK_STATUS(HR_OK, hr__device_map(device, address + i * page, &pages[i], 1));
	for (uint32_t i = 0; i < COUNT; i += 2) CHECK_STATUS(HR_OK, hr__device_unmap(device, address + i * page, 1));
	double seconds = hr_test_now() - start;
	printf("# %.1f ns for each of %d calls\n", seconds * 1e9 / (COUNT * 1.5), COUNT + COUNT / 2);
	CHECK_LT(seconds, HR_TEST_SANITIZED ? 2.0 : 0.2);
}

static void test_simulated_addresses_are_used_again_exactly(void)
{
	hr__device *device = simulated(UINT64_C(1) << 40, 2 << 20);
	uint64_t a, b, c, again, page = hr__device_page_bytes(device), plain;
	CHECK_STATUS(HR_OK, hr__device_reserve(device, 3 * page, &a));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, 5 * page, &b));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, 3 * page, &c));
	CHECK_GE(a, UINT64_C(1) << 40);
	CHECK(a != b && b != c && a != c);
	CHECK_STATUS(HR_OK, hr__device_release(device, b, 5 * page));
	CHECK_STATUS(HR_OK, hr__page_pool_plain_alloc(device, 5 * page, &plain));
	CHECK_NE(plain, b); /* another kind of page */
	CHECK_STATUS(HR_OK, hr__device_reserve(device, 5 * page, &again));
	CHECK_EQ(again, b);
	CHECK_STATUS(HR_OK, hr__device_release(device, a, 3 * page));
	CHECK_STATUS(HR_OK, hr__device_release(device, c, 3 * page));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, 3 * page, &again));
	CHECK_EQ(again, c);
	CHECK_STATUS(HR_OK, hr__device_reserve(device, 3 * page, &again));
	CHECK_EQ(again, a);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__device_reserve(device, UINT64_C(1) << 50, &again));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__device_reserve(device, page + 1, &again));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__device_reserve(device, 0, &again));
}

TEST_MAIN(T(test_pool_agrees_with_a_model), T(test_a_failed_take_changes_nothing_at_every_call),
          T(test_a_page_that_cannot_be_destroyed_stays_idle), T(test_a_run_given_back_is_handed_out_in_its_order),
          T(test_a_full_card_makes_its_other_parts_give_idle_pages_up), T(test_page_tables_grow_with_the_pages),
          T(test_threads_never_pass_the_limit), T(test_destroying_idle_pages_never_makes_a_request_fail),
          T(test_mapping_page_by_page_is_fast), T(test_simulated_addresses_are_used_again_exactly))
