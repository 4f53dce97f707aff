/* test_oom_map.c - the map of a report: it adds up, it is exact if there is room, and it can be drawn while memory changes. */
#include "fixture.h"
#include "core/memory/oom/oom.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

static hr_device device;

static hr_allocator open_allocator(uint64_t page, uint64_t memory, bool addresses)
{
	hr_allocator_options options;
	hr_allocator allocator;
	device = fixture_simulated(memory, page);
	hr_allocator_options_init(&options);
	options.oom.report_allocations_on_oom = true;
	if (addresses) options.oom.allocation_log_address = HR_LOG_REAL_ADDRESS;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	return allocator;
}

static const hr__report *fail(hr_allocator allocator)
{
	hr_oom_report handle;
	void *block;
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, UINT64_C(1) << 46, &block));
	CHECK_STATUS(HR_OK, hr_oom_get_last(&handle));
	const hr__report *report = hr__report_open(handle.id);
	CHECK(report != NULL);
	return report;
}

/* ---- compared with hr_allocator_visit ---- */

struct drawing {
	hr__run runs[HR__REPORT_RUNS];
	uint32_t count;
	bool too_many;
};

static bool draw(void *context, const hr_chunk_view *chunk)
{
	struct drawing *drawing = context;
	hr__run *last = drawing->count ? &drawing->runs[drawing->count - 1] : NULL;
	uint64_t in_use = chunk->kind == HR_CHUNK_IN_USE ? chunk->bytes : 0;
	if (last && last->kind == chunk->kind) {
		last->bytes += chunk->bytes;
		last->in_use += in_use;
		last->chunks++;
	} else if (drawing->count == HR__REPORT_RUNS) {
		drawing->too_many = true;
	} else {
		drawing->runs[drawing->count++] = (hr__run){ chunk->bytes, in_use, 1, (uint8_t)chunk->kind };
	}
	return true;
}

static void check_map(hr_allocator allocator, const hr__report *report, bool exact)
{
	static struct drawing drawing;
	uint64_t in_use = 0;
	for (uint32_t i = 0; i < report->region_count; i++) {
		const hr__report_region *region = &report->regions[i];
		hr_region_info info = { .struct_size = sizeof info };
		uint64_t bytes = 0, used = 0, mapped_end = 0, at = 0;
		CHECK_STATUS(HR_OK, hr_allocator_get_region(allocator, i, &info));
		CHECK_EQ(region->address, report->options.allocation_log_address == HR_LOG_REAL_ADDRESS ? (uintptr_t)info.base : 0);
		CHECK_EQ(region->addresses, info.reserved_addresses);
		CHECK_EQ(region->reserved, info.bytes_reserved);
		CHECK_EQ(region->in_use, info.bytes_in_use);
		CHECK_EQ(region->cached, info.bytes_cached);
		CHECK_EQ(region->free, info.bytes_free);
		CHECK_EQ(region->largest_free, info.largest_free_block);
		CHECK_EQ(region->small_blocks, info.small_blocks);
		memset(&drawing, 0, sizeof drawing);
		CHECK_STATUS(HR_OK, hr_allocator_visit(allocator, i, draw, &drawing));
		if (drawing.count && drawing.runs[drawing.count - 1].kind == HR_CHUNK_UNMAPPED && !drawing.too_many) drawing.count--;
		for (uint32_t r = 0; r < region->run_count; r++) {
			const hr__run *run = &report->runs[region->first_run + r];
			bytes += run->bytes;
			used += run->in_use;
			CHECK_GT(run->bytes, 0);
			CHECK_GT(run->chunks, 0);
			if (run->kind == HR__RUN_IN_USE) CHECK_EQ(run->in_use, run->bytes);
			else if (run->kind != HR__RUN_MIXED) CHECK_EQ(run->in_use, 0);
			if (r && run->kind != HR__RUN_MIXED) CHECK_NE(run->kind, run[-1].kind);
		}
		for (uint32_t r = 0; r < drawing.count; r++) {
			at += drawing.runs[r].bytes;
			if (drawing.runs[r].kind != HR_CHUNK_UNMAPPED) mapped_end = at;
		}
		CHECK_EQ(used, region->in_use);
		if (!drawing.too_many) CHECK_EQ(bytes, mapped_end);
		if (exact) {
			CHECK_EQ(region->run_count, drawing.count);
			for (uint32_t r = 0; r < drawing.count; r++) {
				const hr__run *run = &report->runs[region->first_run + r], *wanted = &drawing.runs[r];
				CHECK_EQ(run->bytes, wanted->bytes);
				CHECK_EQ(run->in_use, wanted->in_use);
				CHECK_EQ(run->chunks, wanted->chunks);
				CHECK_EQ(run->kind, wanted->kind);
			}
		}
		in_use += used;
	}
	if (!report->regions_left_out) CHECK_EQ(in_use, report->stats.bytes_in_use);
}

/* Allocates and frees at random; [blocks] are those left at the end. */
static uint32_t fill(hr_allocator allocator, void **blocks, uint32_t most, uint64_t largest, uint64_t *random)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < 3 * most; i++) {
		if (count < most && hr_rand(random) % 3) {
			if (hr_alloc_bytes(allocator, 1 + hr_rand(random) % largest, &blocks[count]) == HR_OK) count++;
		} else if (count) {
			uint32_t at = (uint32_t)(hr_rand(random) % count);
			CHECK_STATUS(HR_OK, hr_free(allocator, blocks[at], HR_STREAM_DEFAULT));
			blocks[at] = blocks[--count];
		}
	}
	return count;
}

static void *blocks[200000];

static void check_random(uint64_t page, uint32_t most, uint64_t largest, bool exact)
{
	uint64_t random = hr_test_seed();
	for (int round = 0; round < 6; round++) {
		hr_allocator allocator = open_allocator(page, 1024 * MIB, round % 2);
		fill(allocator, blocks, most, largest, &random);
		const hr__report *report = fail(allocator);
		check_map(allocator, report, exact);
		CHECK_EQ(report->region_count + report->regions_left_out, report->stats.num_regions);
		CHECK_LE(report->longest_hold, HR__VISIT_MAX);
		hr__report_close(report);
		CHECK_STATUS(HR_OK, hr_shutdown());
	}
}

static void test_a_map_is_exact_where_there_is_room(void)
{
	check_random(64 * KIB, 900, 200 * KIB, true);
	check_random(64 * KIB, 900, 8 * KIB, true);
}

static void test_a_map_without_pages_is_exact_where_there_is_room(void)
{
	check_random(0, 600, 900 * KIB, true);
}

static void test_a_coarse_map_adds_up_to_the_regions_figures(void)
{
	check_random(64 * KIB, 30000, 8 * KIB, false);
	check_random(64 * KIB, 6000, 200 * KIB, false);
	check_random(0, 20000, 20 * KIB, false);
}

/* Every other one of 80,000 equal blocks is free: 80,000 runs, all of which have to be merged, evenly. */
static void test_a_coarse_map_is_even(void)
{
	hr_allocator allocator = open_allocator(2 * MIB, 64 * 1024 * MIB, false);
	for (int i = 0; i < 80000; i++) CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 128 * KIB, &blocks[i]));
	for (int i = 0; i < 80000; i += 2) CHECK_STATUS(HR_OK, hr_free(allocator, blocks[i], HR_STREAM_DEFAULT));
	const hr__report *report = fail(allocator);
	uint64_t longest = 0;
	CHECK_GT(report->run_count, HR__REPORT_RUNS / 4);
	for (uint32_t i = 0; i < report->run_count; i++)
		if (report->runs[i].bytes > longest) longest = report->runs[i].bytes;
	CHECK_LE(longest, 8 * (UINT64_C(80000) * 128 * KIB / HR__REPORT_RUNS));
	hr__report_close(report);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- while threads allocate ---- */

static hr_allocator shared;
static _Atomic(bool) done;

static void churn_or_draw(void *argument, unsigned index)
{
	static void *some[8][4000];
	(void)argument;
	if (index) {
		uint64_t random = index;
		while (!atomic_load(&done)) {
			uint32_t count = fill(shared, some[index], 4000, hr_rand(&random) % 2 ? 8 * KIB : 300 * KIB, &random);
			for (uint32_t i = 0; i < count; i++) CHECK_STATUS(HR_OK, hr_free(shared, some[index][i], HR_STREAM_DEFAULT));
			if (hr_rand(&random) % 4 == 0) CHECK_STATUS(HR_OK, hr_allocator_trim(shared, NULL));
		}
		return;
	}
	for (uint64_t i = 0; i < hr_test_scaled(HR_TEST_SANITIZED ? 20 : 60); i++) {
		const hr__report *report = fail(shared);
		CHECK_LE(report->longest_hold, HR__VISIT_MAX);
		for (uint32_t r = 0; r < report->region_count; r++) {
			const hr__report_region *region = &report->regions[r];
			uint64_t bytes = 0, used = 0;
			for (uint32_t j = 0; j < region->run_count; j++) {
				bytes += report->runs[region->first_run + j].bytes;
				used += report->runs[region->first_run + j].in_use;
			}
			CHECK_EQ(used, region->in_use);
			CHECK_EQ(region->reserved, region->in_use + region->cached + region->free);
			CHECK_LE(region->reserved, bytes);
			CHECK_LE(bytes, region->addresses);
		}
		hr__report_close(report);
		CHECK_STATUS(HR_OK, hr_allocator_check(shared));
	}
	atomic_store(&done, true);
}

static void test_a_map_can_be_drawn_while_threads_allocate(void)
{
	shared = open_allocator(64 * KIB, 4096 * MIB, false);
	hr_test_threads(4, churn_or_draw, NULL);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_a_map_without_pages_can_be_drawn_while_threads_allocate(void)
{
	shared = open_allocator(0, 4096 * MIB, false);
	hr_test_threads(4, churn_or_draw, NULL);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_a_map_is_exact_where_there_is_room), T(test_a_map_without_pages_is_exact_where_there_is_room),
          T(test_a_coarse_map_adds_up_to_the_regions_figures), T(test_a_coarse_map_is_even),
          T(test_a_map_can_be_drawn_while_threads_allocate), T(test_a_map_without_pages_can_be_drawn_while_threads_allocate))
