/* device_conformance.c - requirements on the memory of every device, of whatever kind: one suite, run on each device. Streams,
 * threads and faults are in device_stream_conformance.c. */
#include "conformance/device_subjects.h"

/* ---- facts ---- */

static void info_agrees(void)
{
	hr_device_info info = { .struct_size = sizeof info };
	char full_name[64];
	CHECK_STATUS(HR_OK, hr_device_get_info(handle, &info));
	CHECK_STR(info.name, now->name);
	CHECK_STR(info.backend, now->backend);
	snprintf(full_name, sizeof full_name, "/job:localhost/replica:0/task:0/device:%s", now->name);
	CHECK_STR(info.full_name, full_name);
	CHECK_GT(strlen(info.description), 0);
	CHECK_EQ(info.logical_count, 1);
	CHECK_EQ(info.physical_index, 0);
	CHECK_EQ(info.limit_bytes, info.total_bytes);
	CHECK_EQ(info.limit_bytes, hr__device_limit(device));
	CHECK_LE(info.free_bytes, info.total_bytes);
	CHECK_EQ(info.page_bytes, page());
	CHECK_EQ(info.reserved_bytes, 0);
	CHECK_EQ(hr__device_reservable(device), page() ? hr__align_down(info.limit_bytes, page()) : info.limit_bytes);
	if (page()) CHECK_GE(hr__device_map_alignment(device), page());

	memory block;
	CHECK_STATUS(HR_OK, get(10000, &block));
	CHECK_STATUS(HR_OK, hr_device_get_info(handle, &info));
	CHECK_EQ(info.reserved_bytes, page() ? block.count * page() : 10000);
	CHECK_EQ(info.reserved_bytes, hr__page_pool_reserved(device));
	give(&block);
	info.struct_size = 4;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_device_get_info(handle, &info));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_device_get_info(handle, NULL));
}

static void test_info_agrees_with_the_device(void)
{
	on_each_device(info_agrees);
}

static void clock_goes_forward(void)
{
	uint64_t before = hr__device_clock_ns(device);
	hr__call_compute(device->physical, 1000000, 0);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, HR_STREAM_DEFAULT));
	uint64_t after = hr__device_clock_ns(device);
	CHECK_GE(after, before);
	if (device->physical->table->compute) CHECK_GE(after - before, 1000000);
}

static void test_the_clock_advances_by_the_work_done(void)
{
	on_each_device(clock_goes_forward);
}

/* ---- the page pool ---- */

static void pool_is_exact(void)
{
	if (!page() || !now->small) return;
	uint32_t count = (uint32_t)(hr__device_reservable(device) / page());
	hr__page_id *pages = calloc(count + 1, sizeof *pages);
	uint64_t free_before = free_bytes();
	CHECK(pages != NULL);
	for (int round = 0; round < 3; round++) {
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_take(device, count + 1, pages));
		CHECK_CONTAINS(hr_last_message(), now->name);
		CHECK_EQ(hr__page_pool_reserved(device), 0);
		CHECK_STATUS(HR_OK, hr__page_pool_take(device, count, pages));
		CHECK_EQ(hr__page_pool_reserved(device), hr__device_reservable(device));
		CHECK_EQ(hr__page_pool_available(device), 0);
		hr__page_id one;
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_take(device, 1, &one));
		hr__page_pool_give(device, pages, count);
		CHECK_EQ(hr__page_pool_available(device), hr__device_reservable(device));
		if (round == 1) {
			CHECK_EQ(hr__page_pool_shrink(device), count * page());
			CHECK_EQ(free_bytes(), free_before);
		}
	}
	CHECK_GE(hr__page_pool_metadata(device), count * sizeof(hr_page));
	hr__page_pool_shrink(device);
	free(pages);
}

static void test_pool_hands_out_exactly_the_limit(void)
{
	on_each_device(pool_is_exact);
}

static void plain_is_counted(void)
{
	uint64_t available = hr__page_pool_available(device), address, second;
	if (!hr__device_has_plain(device)) {
		CHECK_STATUS(HR_UNSUPPORTED, hr__page_pool_plain_alloc(device, 100, &address));
		return;
	}
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_plain_alloc(device, available + 1, &address));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_plain_alloc(device, UINT64_MAX, &address));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_plain_alloc(device->physical, UINT64_MAX, &address)); /* also below the pool */
	if (now->strict) CHECK_STATUS(HR_OUT_OF_MEMORY, hr__call_plain_alloc(device->physical, hr__device_limit(device) + 1, &address));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__page_pool_plain_alloc(device, 0, &address));
	CHECK_EQ(hr__page_pool_available(device), available);
	CHECK_STATUS(HR_OK, hr__page_pool_plain_alloc(device, 1001, &address));
	CHECK_EQ(hr__page_pool_reserved(device), 1001);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_plain_alloc(device, available - 1000, &second));
	if (now->small) {
		CHECK_STATUS(HR_OK, hr__page_pool_plain_alloc(device, available - 1001, &second));
		CHECK_NE(address, second);
		CHECK_EQ(hr__page_pool_available(device), 0);
		CHECK_STATUS(HR_OK, hr__page_pool_plain_free(device, second, available - 1001));
	}
	CHECK_STATUS(HR_OK, hr__page_pool_plain_free(device, address, 1001));
	CHECK_EQ(hr__page_pool_available(device), available);
}

static void test_plain_memory_counts_against_the_same_limit(void)
{
	on_each_device(plain_is_counted);
}

static void pages_make_way(void)
{
	uint64_t address, all = hr__device_reservable(device);
	if (!page() || !now->small || !hr__device_has_plain(device)) return;
	uint32_t count = (uint32_t)(all / page());
	hr__page_id *pages = calloc(count, sizeof *pages);
	CHECK(pages != NULL);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, count, pages));
	hr__page_pool_give(device, pages, count);
	/* All pages are idle now; plain memory needs their space, but no more than that. */
	CHECK_STATUS(HR_OK, hr__page_pool_plain_alloc(device, page() + 1, &address));
	CHECK_EQ(device->pool.idle_count, count - 2);
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_take(device, count - 1, pages));
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, count - 2, pages));
	hr__page_pool_give(device, pages, count - 2);
	CHECK_STATUS(HR_OK, hr__page_pool_plain_free(device, address, page() + 1));
	CHECK_STATUS(HR_OK, hr__page_pool_plain_alloc(device, all, &address));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_take(device, 1, pages));
	CHECK_STATUS(HR_OK, hr__page_pool_plain_free(device, address, all));
	free(pages);
}

static void test_idle_pages_make_way_for_plain_memory(void)
{
	on_each_device(pages_make_way);
}

/* ---- bytes ---- */

#define COPY_BYTES 50001u

static void copies_carry_bytes(void)
{
	static unsigned char out[COPY_BYTES], back[COPY_BYTES];
	memory a, b;
	CHECK_STATUS(HR_OK, get(COPY_BYTES / (now->small && page() == 256 ? 2 : 1), &a));
	CHECK_STATUS(HR_OK, get(a.bytes, &b));
	paint(out, sizeof out, 7);
	for (uint64_t offset = 0; offset < 3; offset++) {
		size_t bytes = a.bytes - 3;
		memset(back, 0, sizeof back);
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, at(&a, offset), out, bytes, HR_COPY_TO_DEVICE, 0));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, at(&b, 1), at(&a, offset), bytes, HR_COPY_ON_DEVICE, 0));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, back, at(&b, 1), bytes, HR_COPY_TO_HOST, 0));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
		if (now->real) CHECK_BYTES(out, back, bytes);
		CHECK_EQ(back[bytes], 0);
	}
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, at(&a, 0), 0xA5, a.bytes, 0));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, at(&a, 1), 0x5A, a.bytes - 2, 0));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, back, at(&a, 0), a.bytes, HR_COPY_TO_HOST, 0));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
	for (uint64_t i = 0; now->real && i < a.bytes; i++) CHECK_EQ(back[i], i == 0 || i == a.bytes - 1 ? 0xA5 : 0x5A);
	give(&a);
	give(&b);
}

static void test_copies_and_fills_carry_bytes(void)
{
	on_each_device(copies_carry_bytes);
}

static void remapping_keeps_bytes(void)
{
	if (!page()) return;
	enum { COUNT = 5 };
	static const uint32_t order[COUNT] = { 3, 0, 4, 1, 2 };
	hr__page_id pages[COUNT], mixed[COUNT];
	uint64_t here, there, bytes = COUNT * page();
	unsigned char value, *seen = malloc(bytes);
	CHECK(seen != NULL);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, COUNT, pages));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, bytes, &here));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, bytes + page(), &there));
	CHECK_EQ(here % hr__device_map_alignment(device), 0);
	CHECK_EQ(there % hr__device_map_alignment(device), 0);
	CHECK_STATUS(HR_OK, hr__device_map(device, here, pages, COUNT));
	for (uint32_t i = 0; i < COUNT; i++) {
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)(here + i * page()), (unsigned char)(i + 1), page(), 0));
		mixed[i] = pages[order[i]];
	}
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
	/* Unmaps in two runs and maps elsewhere, in another order, also in two runs. */
	CHECK_STATUS(HR_OK, hr__device_unmap(device, here, 2));
	CHECK_STATUS(HR_OK, hr__device_unmap(device, here + 2 * page(), COUNT - 2));
	CHECK_STATUS(HR_OK, hr__device_map(device, there + page(), mixed, 4));
	CHECK_STATUS(HR_OK, hr__device_map(device, there + 5 * page(), mixed + 4, 1));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, seen, (void *)(uintptr_t)(there + page()), bytes, HR_COPY_TO_HOST, 0));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
	for (uint64_t i = 0; now->real && i < bytes; i += 97) {
		value = (unsigned char)(order[i / page()] + 1);
		CHECK_EQ(seen[i], value);
	}
	CHECK_STATUS(HR_OK, hr__device_unmap(device, there + page(), COUNT));
	CHECK_STATUS(HR_OK, hr__device_release(device, there, bytes + page()));
	CHECK_STATUS(HR_OK, hr__device_release(device, here, bytes));
	hr__page_pool_give(device, pages, COUNT);
	free(seen);
}

static void test_remapping_keeps_bytes(void)
{
	on_each_device(remapping_keeps_bytes);
}

static void many_pages_in_one_call(void)
{
	/* More pages than the pool translates on its stack. */
	if (!page() || (hr__device_reservable(device) / page() < 256 && strcmp(now->backend, "simulated") != 0)) return;
	uint32_t count = page() == 256 ? 256 : 600;
	if (hr__device_reservable(device) / page() < count) return;
	hr__page_id *pages = calloc(count, sizeof *pages);
	uint64_t address;
	CHECK(pages != NULL);
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, count, pages));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, count * page(), &address));
	CHECK_STATUS(HR_OK, hr__device_map(device, address, pages, count));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, (void *)(uintptr_t)address, 1, count * page(), 0));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
	CHECK_STATUS(HR_OK, hr__device_unmap(device, address, count));
	CHECK_STATUS(HR_OK, hr__device_release(device, address, count * page()));
	hr__page_pool_give(device, pages, count);
	free(pages);
}

static void test_many_pages_are_mapped_in_one_call(void)
{
	on_each_device(many_pages_in_one_call);
}

static void bad_work_is_refused(void)
{
	char host[64] = "";
	memory a;
	CHECK_STATUS(HR_OK, get(256, &a));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, NULL, NULL, 0, HR_COPY_TO_DEVICE, 0));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, NULL, 1, 0, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_copy(handle, NULL, host, 1, HR_COPY_TO_DEVICE, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_copy(handle, host, NULL, 1, HR_COPY_TO_HOST, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_copy(handle, at(&a, 0), host, 64, (hr_copy_kind)0, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_copy(handle, at(&a, 0), host, 64, (hr_copy_kind)4, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_copy(handle, at(&a, 0), host, SIZE_MAX, HR_COPY_TO_DEVICE, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_copy(handle, at(&a, 0), at(&a, 63), 64, HR_COPY_ON_DEVICE, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_copy(handle, at(&a, 63), at(&a, 0), 64, HR_COPY_ON_DEVICE, 0));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, at(&a, 64), at(&a, 0), 64, HR_COPY_ON_DEVICE, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_copy(handle, at(&a, 0), host, 64, HR_COPY_TO_DEVICE, 63));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_copy(handle, at(&a, 0), host, 64, HR_COPY_TO_DEVICE, 64));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_copy(handle, at(&a, 0), host, 64, HR_COPY_TO_DEVICE, UINT32_MAX));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_fill(handle, NULL, 1, 1, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_fill(handle, at(&a, 0), 1, SIZE_MAX, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_fill(handle, at(&a, 0), 1, 1, 5));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_synchronize(handle, 7));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_destroy(handle, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_destroy(handle, 9));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_wait_stream(handle, 0, 9));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_wait_stream(handle, 9, 0));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_stream_fill((hr_device){ 0 }, at(&a, 0), 1, 1, 0));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
	give(&a);
}

static void test_bad_work_is_refused(void)
{
	on_each_device(bad_work_is_refused);
}

static void misuse_is_caught(void)
{
	if (!now->strict || !page()) return;
	hr__physical *physical = device->physical;
	hr_page pages[3], none = 5;
	uint64_t range;
	for (int i = 0; i < 3; i++) CHECK_STATUS(HR_OK, hr__call_page_create(physical, &pages[i]));
	CHECK_STATUS(HR_OK, hr__call_reserve(physical, 4 * page(), &range));
	CHECK_STATUS(HR_OK, hr__call_map(physical, range + page(), pages, 2));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_map(physical, range, (hr_page[]){ pages[2], none }, 2));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_map(physical, range, &pages[0], 1));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_map(physical, range + page(), &pages[2], 1));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_map(physical, range + 4 * page(), &pages[2], 1));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_map(physical, range + 1, &pages[2], 1));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_map(physical, range, &none, 1));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_unmap(physical, range, 1));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_unmap(physical, range + 2 * page(), 2));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_page_destroy(physical, pages[0]));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_release(physical, range, 4 * page()));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_release(physical, range, 3 * page()));
	hr_page twice[2] = { pages[2], pages[2] };
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_map(physical, range + 2 * page(), twice, 2));
	CHECK_STATUS(HR_OK, hr__call_map(physical, range + 3 * page(), &pages[2], 1)); /* the failed call mapped nothing */
	CHECK_STATUS(HR_OK, hr__call_unmap(physical, range + page(), 3));
	CHECK_STATUS(HR_OK, hr__call_release(physical, range, 4 * page()));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_release(physical, range, 4 * page()));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_map(physical, range, &pages[0], 1));
	for (int i = 0; i < 3; i++) CHECK_STATUS(HR_OK, hr__call_page_destroy(physical, pages[i]));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_page_destroy(physical, pages[0]));
}

static void test_misuse_of_pages_is_caught(void)
{
	on_each_device(misuse_is_caught);
}

/* The error of a copy may be returned by the call or by the next wait for the stream; after that, the device works again. */
static hr_status copy_and_wait(uint64_t to, const void *from, size_t bytes)
{
	hr_status status = hr_stream_copy(handle, (void *)(uintptr_t)to, from, bytes, HR_COPY_TO_DEVICE, 0);
	hr_status waited = hr_stream_synchronize(handle, 0);
	return status != HR_OK ? status : waited;
}

static void unmapped_copy_is_an_error(void)
{
	static unsigned char host[4096];
	if (!now->strict || !page()) return;
	uint64_t range, bytes = page() < sizeof host ? page() : sizeof host;
	hr__page_id one;
	char place[32];
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 1, &one));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, 2 * page(), &range));
	CHECK_STATUS(HR_DEVICE_ERROR, copy_and_wait(range, host, bytes));
	snprintf(place, sizeof place, "0x%llx", (unsigned long long)range);
	CHECK_CONTAINS(hr_last_message(), place);
	CHECK_STATUS(HR_OK, hr__device_map(device, range, &one, 1));
	CHECK_STATUS(HR_OK, copy_and_wait(range, host, bytes));
	CHECK_STATUS(HR_DEVICE_ERROR, copy_and_wait(range + page() - 10, host, 11));
	CHECK_STATUS(HR_OK, copy_and_wait(range + page() - 10, host, 10));
	CHECK_STATUS(HR_OK, hr__device_unmap(device, range, 1));
	CHECK_STATUS(HR_DEVICE_ERROR, copy_and_wait(range, host, bytes));
	CHECK_STATUS(HR_OK, hr__device_release(device, range, 2 * page()));
	CHECK_STATUS(HR_DEVICE_ERROR, copy_and_wait(range, host, bytes));
	hr__page_pool_give(device, &one, 1);
}

static void test_copying_to_unmapped_memory_is_an_error_not_a_crash(void)
{
	on_each_device(unmapped_copy_is_an_error);
}

static void host_memory_works(void)
{
	void *block;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_host_alloc(device->physical, 0, &block));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_host_alloc(device->physical, UINT64_MAX, &block));
	CHECK_STATUS(HR_OK, hr__call_host_alloc(device->physical, 100000, &block));
	if (now->real) memset(block, 1, 100000);
	memory a;
	CHECK_STATUS(HR_OK, get(1000, &a));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, at(&a, 0), block, 1000, HR_COPY_TO_DEVICE, 0));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, (char *)block + 5000, at(&a, 0), 1000, HR_COPY_TO_HOST, 0));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, 0));
	give(&a);
	CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, block, 100000));
}

static void test_host_memory_for_copies(void)
{
	on_each_device(host_memory_works);
}

/* ---- pages of host memory ---- */

/* Device pages and host pages are mapped in turn at one address; both keep their contents. */
static void host_pages_take_turns_at_an_address(void)
{
	enum { COUNT = 3 };
	memory block;
	hr_page pages[COUNT];
	hr__device *pinned;
	uint64_t aside, bytes = COUNT * page();
	if (!page() || !device->physical->table->host_page_create) return;
	hr_status status = hr__host_pages_check(device);
	if (status == HR_UNSUPPORTED) return; /* an old driver or card */
	CHECK_STATUS(HR_OK, status);
	CHECK_STATUS(HR_OK, hr__device_pinned(device, 0, &pinned));
	unsigned char *first = malloc(bytes), *second = malloc(bytes), *seen = malloc(bytes);
	paint(first, bytes, 1);
	paint(second, bytes, 2);
	uint64_t held = hr__page_pool_reserved(pinned), left = free_bytes();
	CHECK_STATUS(HR_OK, hr__host_pages_take(device, COUNT, pages));
	CHECK_EQ(hr__page_pool_reserved(pinned), held + bytes);
	/* No device memory is used. On a card, other processes may allocate meanwhile. */
	if (now->small) CHECK_GE(free_bytes() + page(), left);
	CHECK_STATUS(HR_OK, get(bytes, &block));
	CHECK_STATUS(HR_OK, hr__device_reserve(device, bytes, &aside));
	CHECK_STATUS(HR_OK, hr__device_map_host(device, aside, pages, COUNT));
	void *there = (void *)(uintptr_t)aside;
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, at(&block, 0), first, bytes, HR_COPY_TO_DEVICE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, there, at(&block, 0), bytes, HR_COPY_ON_DEVICE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, at(&block, 0), second, bytes, HR_COPY_TO_DEVICE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, HR_STREAM_DEFAULT));

	CHECK_STATUS(HR_OK, hr__device_unmap(device, aside, COUNT));
	CHECK_STATUS(HR_OK, hr__device_unmap(device, block.address, COUNT));
	CHECK_STATUS(HR_OK, hr__device_map_host(device, block.address, pages, COUNT));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, seen, at(&block, 0), bytes, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, at(&block, page()), 7, page(), HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, HR_STREAM_DEFAULT));
	CHECK_BYTES(seen, first, bytes);
	memset(first + page(), 7, page());

	CHECK_STATUS(HR_OK, hr__device_unmap(device, block.address, COUNT));
	CHECK_STATUS(HR_OK, hr__device_map_host(device, aside, pages, COUNT));
	CHECK_STATUS(HR_OK, hr__device_map(device, block.address, block.pages, COUNT));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, seen, at(&block, 0), bytes, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, HR_STREAM_DEFAULT));
	CHECK_BYTES(seen, second, bytes);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, at(&block, 0), there, bytes, HR_COPY_ON_DEVICE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, seen, at(&block, 0), bytes, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, HR_STREAM_DEFAULT));
	CHECK_BYTES(seen, first, bytes);

	CHECK_STATUS(HR_OK, hr__device_unmap(device, aside, COUNT));
	CHECK_STATUS(HR_OK, hr__device_release(device, aside, bytes));
	hr__host_pages_give(device, pages, COUNT);
	CHECK_EQ(hr__page_pool_reserved(pinned), held);
	give(&block);
	free(first);
	free(second);
	free(seen);
}

static void test_host_pages_take_turns_at_an_address(void)
{
	on_each_device(host_pages_take_turns_at_an_address);
}

TEST_MAIN(T(test_info_agrees_with_the_device), T(test_the_clock_advances_by_the_work_done),
          T(test_pool_hands_out_exactly_the_limit), T(test_plain_memory_counts_against_the_same_limit),
          T(test_idle_pages_make_way_for_plain_memory), T(test_copies_and_fills_carry_bytes), T(test_remapping_keeps_bytes),
          T(test_many_pages_are_mapped_in_one_call), T(test_bad_work_is_refused), T(test_misuse_of_pages_is_caught),
          T(test_copying_to_unmapped_memory_is_an_error_not_a_crash), T(test_host_memory_for_copies),
          T(test_host_pages_take_turns_at_an_address))
