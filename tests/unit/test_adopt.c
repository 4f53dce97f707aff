/* test_adopt.c - blocks of a custom allocator whose memory the caller has from elsewhere (core/memory/adopt.h). */
#include "core/memory/adopt.h"

#include "core/memory/allocator.h"
#include "core/memory/log.h"
#include "fault_os.h"
#include "fixture.h"
#include "headroom_oom.h"
#include "support_stats.h"
#include "test.h"

#define LIMIT (UINT64_C(1) << 30)

static int called;

static hr_status refuse(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)state, (void)bytes, (void)alignment, (void)stream, (void)out;
	called++;
	return HR_OUT_OF_MEMORY;
}

static hr_status leave_alone(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state, (void)address, (void)bytes, (void)stream;
	called++;
	return HR_OK;
}

static hr_allocator adopting(const char *device, bool logged)
{
	const hr_custom_allocator table = { .struct_size = sizeof table, .alloc = refuse, .free = leave_alone };
	hr_allocator_options options = fixture_allocator_options(LIMIT);
	hr_allocator allocator;
	hr_status status = hr_allocator_register("elsewhere", &table, NULL);
	CHECK(status == HR_OK || status == HR_ALREADY_EXISTS);
	options.kind = "elsewhere";
	options.oom.report_allocations_on_oom = logged;
	options.oom.allocation_log_sampling_rate = 1;
	CHECK_STATUS(HR_OK, hr_allocator_create(fixture_device(device), &options, &allocator));
	return allocator;
}

static hr_status adopt_for(hr_allocator allocator, uint64_t address, uint64_t bytes, void *keeper, hr__chunk_id *id)
{
	hr_request request = HR_REQUEST(bytes);
	request.stream = HR_STREAM_HOST;
	request.op = request.tag = hr_name_intern("take");
	return hr__adopt(allocator, &request, address, keeper, NULL, id);
}

static hr__chunk_id adopt(hr_allocator allocator, uint64_t address, uint64_t bytes)
{
	hr__chunk_id id;
	CHECK_STATUS(HR_OK, adopt_for(allocator, address, bytes, NULL, &id));
	return id;
}

static void give(hr_allocator allocator, uint64_t address)
{
	hr__adopted block;
	CHECK(hr__adopted_take(allocator, address, false, &block));
	hr__adopted_end(allocator, &block);
}

static const char *tag_of(hr_allocator allocator, uint64_t address)
{
	hr_allocation_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_allocation_get_info(allocator, (void *)(uintptr_t)address, &info));
	return hr_name_text(info.tag);
}

/* ---- one thread ---- */

static void test_statistics_are_exact(void)
{
	hr_allocator allocator = adopting("SIM:0", false);
	adopt(allocator, 0x1000, 100);
	adopt(allocator, 0x200000, 3 << 20);
	adopt(allocator, 0x3000, 7);
	give(allocator, 0x200000);
	adopt(allocator, 0x200000, 1000);
	hr_stats stats = checked_stats(allocator), device;
	CHECK_EQ(stats.bytes_in_use, 100 + 7 + 1000);
	CHECK_EQ(stats.bytes_requested, 100 + 7 + 1000);
	CHECK_EQ(stats.bytes_reserved, 100 + 7 + 1000);
	CHECK_EQ(stats.peak_bytes_in_use, 100 + (3 << 20) + 7);
	CHECK_EQ(stats.peak_bytes_reserved, 100 + (3 << 20) + 7);
	CHECK_EQ(stats.largest_alloc_size, 3 << 20);
	CHECK_EQ(stats.num_allocs, 4);
	CHECK_EQ(stats.source_device, 4);
	CHECK_EQ(stats.num_frees, 1);
	CHECK_EQ(stats.num_live, 3);
	CHECK_EQ(stats.total_bytes_allocated, 100 + (3 << 20) + 7 + 1000);
	hr_stats_init(&device);
	CHECK_STATUS(HR_OK, hr_device_get_stats(fixture_device("SIM:0"), &device));
	CHECK_EQ(device.bytes_in_use, 100 + 7 + 1000);
	CHECK_EQ(device.peak_bytes_in_use, 100 + (3 << 20) + 7);
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_EQ(called, 0);
}

static void test_a_block_is_found_by_its_address_alone(void)
{
	hr_allocator allocator = adopting("SIM:0", false);
	hr__adopted block;
	adopt(allocator, 0x1000, 64);
	CHECK(hr__adopted_has(allocator, 0x1000));
	CHECK(!hr__adopted_has(allocator, 0x1010));
	CHECK(!hr__adopted_take(allocator, 0x1010, false, &block));
	CHECK(hr__adopted_take(allocator, 0x1000, false, &block));
	CHECK_EQ(block.chunk.size, 64);
	CHECK(!hr__adopted_take(allocator, 0x1000, false, &block));
	CHECK(!hr__adopted_has(allocator, 0x1000));
	CHECK(!hr__adopted_take((hr_allocator){ 0 }, 0x1000, false, &block));
	CHECK(!hr__adopted_take((hr_allocator){ allocator.id + HR__ALLOCATORS_MAX }, 0x1000, false, &block));
}

/* Enough for the table of addresses to grow several times. */
static void test_many_blocks(void)
{
	hr_allocator allocator = adopting("SIM:0", false);
	for (uint64_t i = 1; i <= 5000; i++) adopt(allocator, i << 12, i);
	CHECK_EQ(checked_stats(allocator).bytes_in_use, 5000 * 5001 / 2);
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	for (uint64_t i = 5000; i >= 1; i--) give(allocator, i << 12);
	CHECK_EQ(checked_stats(allocator).num_live, 0);
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
}

static void test_an_address_is_adopted_once(void)
{
	hr__chunk_id id;
	hr_allocator allocator = adopting("SIM:0", false);
	adopt(allocator, 0x1000, 64);
	CHECK_STATUS(HR_CORRUPT, adopt_for(allocator, 0x1000, 100, NULL, &id));
	CHECK_STR(hr_last_message(), "SIM:0_elsewhere has a block at 0x1000 already, whose end was not seen");
	CHECK_STATUS(HR_INVALID_ARGUMENT, adopt_for(allocator, 0x2000, 0, NULL, &id));
	hr_stats stats = checked_stats(allocator);
	CHECK_EQ(stats.bytes_in_use, 64);
	CHECK_EQ(stats.bytes_reserved, 64);
	CHECK_EQ(stats.num_failed_allocs, 2);
}

static void test_the_limit_holds_until_the_memory_is_gone(void)
{
	hr__chunk_id id;
	hr__adopted block;
	hr_allocator allocator = adopting("SIM:0", false);
	adopt(allocator, 0x1000, LIMIT - 10);
	CHECK_STATUS(HR_OUT_OF_MEMORY, adopt_for(allocator, 0x2000, 11, NULL, &id));
	CHECK(hr__adopted_take(allocator, 0x1000, true, &block));
	CHECK_EQ(checked_stats(allocator).bytes_in_use, 0);
	CHECK_STATUS(HR_OUT_OF_MEMORY, adopt_for(allocator, 0x2000, 11, NULL, &id));
	hr__adopted_end(allocator, &block);
	CHECK_STATUS(HR_OK, adopt_for(allocator, 0x2000, 11, NULL, &id));
	CHECK_EQ(checked_stats(allocator).num_failed_allocs, 2);
}

static void test_a_block_that_could_not_be_given_back_continues(void)
{
	hr_allocator allocator = adopting("SIM:0", false);
	for (int keep = 0; keep < 2; keep++) {
		hr__adopted block;
		adopt(allocator, 0x1000, 500);
		CHECK(hr__adopted_take(allocator, 0x1000, keep, &block));
		CHECK_STATUS(HR_OK, hr__adopted_restore(allocator, &block));
		hr_stats stats = checked_stats(allocator);
		CHECK_EQ(stats.bytes_in_use, 500);
		CHECK_EQ(stats.bytes_reserved, 500);
		CHECK_EQ(stats.num_frees, keep);
		CHECK_STR(tag_of(allocator, 0x1000), "take");
		CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
		give(allocator, 0x1000);
	}
}

static void test_blocks_of_one_keeper_are_taken(void)
{
	int one, other;
	hr__adopted block;
	hr__chunk_id id;
	uint32_t cursor = 0;
	uint64_t bytes = 0;
	hr_allocator allocator = adopting("SIM:0", false);
	for (uint64_t i = 1; i <= 300; i++) CHECK_STATUS(HR_OK, adopt_for(allocator, i << 12, i, i % 3 ? &one : &other, &id));
	while (hr__adopted_take_of(allocator, &other, &cursor, &block)) {
		bytes += block.chunk.size;
		hr__adopted_end(allocator, &block);
	}
	CHECK_EQ(bytes, 3 * (100 * 101 / 2));
	CHECK_EQ(checked_stats(allocator).num_live, 200);
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
}

static void test_a_name_goes_to_the_block_that_was_meant(void)
{
	hr_allocator allocator = adopting("SIM:0", false);
	hr__chunk_id first = adopt(allocator, 0x1000, 10);
	hr__adopted_set_tag(allocator, first, 0x1000, hr_name_intern("kernel"));
	CHECK_STR(tag_of(allocator, 0x1000), "kernel");
	give(allocator, 0x1000);
	hr__chunk_id second = adopt(allocator, 0x2000, 10);
	CHECK_EQ(first, second); /* the record is used again */
	hr__adopted_set_tag(allocator, first, 0x1000, hr_name_intern("late"));
	CHECK_STR(tag_of(allocator, 0x2000), "take");
	hr__adopted_set_tag(allocator, second, 0x2000, HR_NAME_NONE);
	CHECK_STR(tag_of(allocator, 0x2000), "take");
	hr__adopted_set_tag((hr_allocator){ 0 }, second, 0x2000, hr_name_intern("nothing"));
}

static hr_name line(void)
{
	return hr_name_intern("never: this process has no interpreter");
}

static void test_scopes_of_names_and_of_statistics(void)
{
	hr_allocator allocator = adopting("SIM:0", false);
	hr_request request = HR_REQUEST(10);
	hr_allocation_info info = { .struct_size = sizeof info };
	hr_stats_scope totals = { .struct_size = sizeof totals };
	hr__chunk_id id;
	request.stream = HR_STREAM_HOST;
	request.op = hr_name_intern("take");
	request.scope = hr_name_intern("thread worker");
	CHECK_STATUS(HR_OK, hr__adopt(allocator, &request, 0x1000, NULL, line, &id));
	CHECK_STATUS(HR_OK, hr_name_scope_push("step"));
	CHECK_STATUS(HR_OK, hr_stats_scope_begin(fixture_device("SIM:0")));
	request.scope = hr_name_intern("thread worker");
	CHECK_STATUS(HR_OK, hr__adopt(allocator, &request, 0x2000, NULL, line, &id));
	give(allocator, 0x1000);
	CHECK_STATUS(HR_OK, hr_stats_scope_end(fixture_device("SIM:0"), &totals));
	CHECK_EQ(totals.num_allocs, 1);
	CHECK_EQ(totals.num_frees, 1);
	CHECK_EQ(totals.peak_bytes, 10);
	CHECK_STATUS(HR_OK, hr_allocation_get_info(allocator, (void *)0x2000, &info));
	CHECK_STR(hr_name_text(info.scope), "step");
}

static void test_the_allocation_log_has_both_ends(void)
{
	hr_allocator allocator = adopting("SIM:0", true);
	hr__log_entry entries[16];
	hr__adopted block;
	uint64_t total;
	hr_status status;
	adopt(allocator, 0x1000, 10);
	adopt(allocator, 0x2000, 20);
	give(allocator, 0x1000);
	CHECK(hr__adopted_take(allocator, 0x2000, false, &block));
	CHECK_STATUS(HR_OK, hr__adopted_restore(allocator, &block)); /* is no end */
	CHECK_EQ(hr__log_collect(hr__allocator_of(allocator, &status), entries, 16, &total), 3);
	CHECK_EQ(entries[0].bytes, 10);
	CHECK_EQ(entries[0].action, HR__LOG_ALLOC);
	CHECK_EQ(entries[1].bytes, 20);
	CHECK_EQ(entries[2].bytes, 10);
	CHECK_EQ(entries[2].action, HR__LOG_FREE);
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
}

/* Two allocators on a device have levels (meter.c); one gets its first block before the other exists. */
static void test_peaks_of_a_device_with_two_allocators(void)
{
	hr_stats stats;
	hr_allocator one = adopting("SIM:0", false), other;
	hr_allocator_options options = fixture_allocator_options(LIMIT);
	adopt(one, 0x1000, 1000);
	options.kind = "elsewhere";
	options.name = "other";
	CHECK_STATUS(HR_OK, hr_allocator_create(fixture_device("SIM:0"), &options, &other));
	adopt(other, 0x1000, 500); /* an address of its own: the ledgers are two */
	give(one, 0x1000);
	adopt(other, 0x5000, 300);
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_device_get_stats(fixture_device("SIM:0"), &stats));
	CHECK_EQ(stats.bytes_in_use, 800);
	CHECK_EQ(stats.peak_bytes_in_use, 1500);
	CHECK_EQ(checked_stats(one).peak_bytes_in_use, 1000);
	CHECK_EQ(checked_stats(other).peak_bytes_in_use, 800);
	CHECK_STATUS(HR_OK, hr_allocator_check(one));
	CHECK_STATUS(HR_OK, hr_allocator_check(other));
}

static void test_every_call_of_the_system_that_fails(void)
{
	bool failed = true;
	hr_fault_os_install();
	hr_allocator allocator = adopting("SIM:0", false);
	for (unsigned n = 1; failed; n++) {
		hr__chunk_id id;
		uint64_t made = 0;
		hr_status status = HR_OK;
		hr_fault_os_fail_nth(n, false, ENOMEM);
		while (!status && made < 3000) status = adopt_for(allocator, ++made << 12, 1, NULL, &id);
		failed = hr_fault_os_calls() >= n;
		hr_fault_os_fail_nth(0, false, 0);
		CHECK(status == HR_OK || status == HR_NO_HOST_MEMORY);
		CHECK_EQ(checked_stats(allocator).bytes_in_use, (int64_t)made - (status != HR_OK));
		CHECK_EQ(checked_stats(allocator).bytes_reserved, (int64_t)made - (status != HR_OK));
		CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
		for (uint64_t i = 1; i <= made - (status != HR_OK); i++) give(allocator, i << 12);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
	hr_fault_os_uninstall();
}

/* ---- several threads ---- */

static hr_allocator shared;
static pthread_barrier_t together;

/* Each thread holds 10 blocks of its own at a time; with [at_once] all threads hold them at the same moment. */
static void *work(void *argument)
{
	uint64_t base = (uint64_t)(uintptr_t)argument << 32;
	for (int round = 0; round < 200; round++) {
		hr__chunk_id ids[10];
		for (uint64_t i = 0; i < 10; i++) ids[i] = adopt(shared, base + (i << 12), 100000 + i);
		for (uint64_t i = 0; i < 10; i++) hr__adopted_set_tag(shared, ids[i], base + (i << 12), hr_name_intern("kernel"));
		if (round == 100) pthread_barrier_wait(&together);
		for (uint64_t i = 0; i < 10; i++) CHECK_STR(tag_of(shared, base + (i << 12)), "kernel");
		if (round == 100) pthread_barrier_wait(&together);
		for (uint64_t i = 0; i < 10; i++) give(shared, base + (i << 12));
	}
	return NULL;
}

static void test_the_peak_of_several_threads_is_exact(void)
{
	pthread_t threads[4];
	shared = adopting("SIM:0", false);
	pthread_barrier_init(&together, NULL, 4);
	for (uintptr_t i = 0; i < 4; i++) CHECK_EQ(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
	for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
	hr_stats stats = checked_stats(shared);
	CHECK_EQ(stats.peak_bytes_in_use, 4 * (10 * 100000 + 45));
	CHECK_EQ(stats.peak_error_bytes, 0);
	CHECK_EQ(stats.num_allocs, 4 * 200 * 10);
	CHECK_EQ(stats.num_live, 0);
	CHECK_STATUS(HR_OK, hr_allocator_check(shared));
}

static atomic_int taken, done;

/* Threads free the same blocks: each is taken once. */
static void *take_all(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&together);
	for (uint64_t i = 1; i <= 1000; i++) {
		hr__adopted block;
		if (hr__adopted_take(shared, i << 12, false, &block)) taken++;
	}
	return NULL;
}

static void test_a_block_is_taken_once(void)
{
	pthread_t threads[4];
	shared = adopting("SIM:0", false);
	for (uint64_t i = 1; i <= 1000; i++) adopt(shared, i << 12, i);
	pthread_barrier_init(&together, NULL, 4);
	for (int i = 0; i < 4; i++) CHECK_EQ(pthread_create(&threads[i], NULL, take_all, NULL), 0);
	for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
	CHECK_EQ(taken, 1000);
	CHECK_EQ(checked_stats(shared).bytes_in_use, 0);
}

static void *adopt_and_give(void *argument)
{
	uint64_t base = (uint64_t)(uintptr_t)argument << 32;
	while (!done) {
		adopt(shared, base, 100000);
		adopt(shared, base + 4096, 10);
		give(shared, base);
		give(shared, base + 4096);
	}
	return NULL;
}

/* What makes caches necessary may come and go while blocks are adopted: the log, and a second allocator of the device. */
static void test_accounting_changes_while_threads_adopt(void)
{
	pthread_t threads[3];
	shared = adopting("SIM:0", false);
	hr_oom_options log, none;
	hr_oom_options_init(&none);
	CHECK_STATUS(HR_OK, hr_allocator_get_oom_options(shared, &none));
	log = none;
	log.report_allocations_on_oom = true;
	log.allocation_log_sampling_rate = 1;
	for (uintptr_t i = 0; i < 3; i++) CHECK_EQ(pthread_create(&threads[i], NULL, adopt_and_give, (void *)(i + 1)), 0);
	for (int round = 0; round < 20; round++) {
		hr_allocator other;
		hr_allocator_options options = fixture_allocator_options(LIMIT);
		options.name = "other";
		CHECK_STATUS(HR_OK, hr_allocator_set_oom_options(shared, round % 2 ? &none : &log));
		usleep(500);
		if (round == 10) CHECK_STATUS(HR_OK, hr_allocator_create(fixture_device("SIM:0"), &options, &other));
		CHECK_STATUS(HR_OK, hr_allocator_check(shared));
	}
	done = 1;
	for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
	CHECK_EQ(checked_stats(shared).bytes_in_use, 0);
	CHECK_EQ(checked_stats(shared).num_live, 0);
	CHECK(checked_stats(shared).peak_bytes_in_use <= 3 * 100010 + checked_stats(shared).peak_error_bytes);
	CHECK_STATUS(HR_OK, hr_allocator_check(shared));
}

TEST_MAIN(T(test_statistics_are_exact), T(test_a_block_is_found_by_its_address_alone), T(test_many_blocks), T(test_an_address_is_adopted_once),
          T(test_the_limit_holds_until_the_memory_is_gone), T(test_a_block_that_could_not_be_given_back_continues), T(test_blocks_of_one_keeper_are_taken),
          T(test_a_name_goes_to_the_block_that_was_meant), T(test_scopes_of_names_and_of_statistics), T(test_the_allocation_log_has_both_ends),
          T(test_peaks_of_a_device_with_two_allocators), T(test_every_call_of_the_system_that_fails), T(test_the_peak_of_several_threads_is_exact),
          T(test_a_block_is_taken_once), T(test_accounting_changes_while_threads_adopt))
