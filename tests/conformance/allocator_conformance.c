/* allocator_conformance.c - requirements on allocators on every device: one suite, run on each device. Faults and threads are in
 * allocator_fault_conformance.c. */
#include "conformance/allocator_subjects.h"

/* ---- random steps ---- */

#define STEPS 150u
#define LIVE 24u

/* Allocates and frees on every stream and trims sometimes. Statistics are checked after each step, contents before each free. */
static void steps_with(const hr_allocator_options *options)
{
	uint64_t seed = hr_test_seed();
	open_with(options);
	look();
	for (uint64_t step = 0; step < hr_test_scaled(STEPS); step++) {
		uint64_t choice = hr_rand_below(&seed, 100);
		hr_stream stream = here.streams[hr_rand_below(&seed, here.stream_count)];
		if (choice < 2) {
			uint64_t released = 0, before = (uint64_t)stats_now().bytes_reserved;
			CHECK_STATUS(HR_OK, hr_allocator_trim(here.allocator, &released));
			CHECK_EQ((uint64_t)stats_now().bytes_reserved, before - released);
		} else if (here.count < LIVE && choice < 60) {
			hr_status status = take(any_size(&seed, here.limit / 8), stream);
			if (status != HR_OK) CHECK_STATUS(HR_OUT_OF_MEMORY, status);
		} else if (here.count) {
			uint32_t index = (uint32_t)hr_rand_below(&seed, here.count);
			verify(&here.blocks[index]);
			CHECK_STATUS(HR_OK, drop(index, here.blocks[index].stream));
		}
		look();
	}
	drop_all();
	look();
	close_all();
}

static void steps_of_every_kind(void)
{
	static const struct {
		const char *kind;
		bool growth, cache, stitch;
	} kinds[] = {
		{ "bfc", true, true, true },
		{ "bfc", true, false, false },
		{ "bfc", false, true, true },
		{ "direct", true, true, true },
	};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		hr_allocator_options options = options_of(kinds[i].kind);
		options.allow_growth = kinds[i].growth;
		options.thread_cache = kinds[i].cache;
		options.stitch = kinds[i].stitch;
		steps_with(&options);
	}
}

static void test_statistics_and_contents_agree_after_every_step(void)
{
	on_each_device(steps_of_every_kind);
}

/* ---- growth ---- */

static void growth_is_as_asked(void)
{
	hr_allocator_options options = options_of("bfc");
	open_with(&options);
	CHECK_EQ(look().bytes_reserved, 0);
	CHECK_STATUS(HR_OK, take(1000, HR_STREAM_DEFAULT));
	hr_stats stats = look();
	CHECK_GE(stats.bytes_reserved, 1024);
	if (page()) CHECK_EQ((uint64_t)stats.bytes_reserved % page(), 0);
	if (page()) CHECK_LE((uint64_t)stats.bytes_reserved, 1024 + page());
	CHECK_EQ(stats.source_grow, 1);
	drop_all();
	close_all();

	options.allow_growth = false;
	open_with(&options);
	CHECK_EQ(look().bytes_reserved, here.limit);
	CHECK_STATUS(HR_OK, take(1000, HR_STREAM_DEFAULT));
	CHECK_EQ(look().bytes_reserved, here.limit);
	CHECK_EQ(stats_now().source_grow, 0);
	drop_all();
	close_all();
}

static void test_memory_is_mapped_as_needed_or_all_at_once(void)
{
	on_each_device(growth_is_as_asked);
}

/* ---- limits ---- */

static void limit_is_met(const char *kind)
{
	hr_allocator_options options = options_of(kind);
	uint64_t piece = options.limit_bytes / 16, taken = 0, unit = page() && !hr__device_has_plain(device) ? page() : 256;
	open_with(&options);
	/* Refused at once, without a call to the device. */
	CHECK_STATUS(HR_OUT_OF_MEMORY, take(here.limit + 1, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "subject");
	CHECK_EQ(look().bytes_reserved, 0);
	while (take(piece, here.streams[taken % here.stream_count]) == HR_OK) taken++;
	CHECK_CONTAINS(hr_last_message(), "subject");
	hr_stats stats = look();
	CHECK_EQ(stats.num_failed_allocs, 2);
	CHECK_GE(taken, strcmp(kind, "direct") == 0 ? here.limit / ((piece + unit - 1) / unit * unit) : 15);
	CHECK_LE((uint64_t)stats.bytes_in_use, here.limit);
	verify_all();
	/* A freed block can be allocated again, on any stream; no more than that can be allocated. */
	for (int round = 0; round < 3; round++) {
		hr_stream stream = here.streams[here.stream_count - 1];
		CHECK_STATUS(HR_OK, drop(3, here.blocks[3].stream));
		look();
		CHECK_STATUS(HR_OK, take(piece, stream));
		CHECK_STATUS(HR_OUT_OF_MEMORY, take(piece, stream));
		look();
	}
	drop_all();
	close_all();
}

static void limits_are_met(void)
{
	hr_allocator_options options = options_of("bfc");
	hr_allocator none = { 0 };
	limit_is_met("bfc");
	limit_is_met("direct");
	options.limit_bytes = hr__device_limit(device) + (page() ? page() : 1);
	CHECK_STATUS(HR_BAD_LIMIT, hr_allocator_create(handle, &options, &none));
	if (page()) {
		options.limit_bytes = page() - 1;
		CHECK_STATUS(HR_BAD_LIMIT, hr_allocator_create(handle, &options, &none));
	}
	options.kind = "no such kind";
	options.limit_bytes = 0;
	CHECK_STATUS(HR_UNKNOWN_ALLOCATOR, hr_allocator_create(handle, &options, &none));
	CHECK_EQ(none.id, 0);
}

static void test_requests_are_refused_at_the_limit_and_not_before(void)
{
	on_each_device(limits_are_met);
}

/* ---- caches ---- */

static void small_blocks_twice(bool cache)
{
	hr_allocator_options options = options_of("bfc");
	options.thread_cache = cache;
	open_with(&options);
	for (int round = 0; round < 2; round++) {
		for (uint64_t i = 0; i < 40; i++) CHECK_STATUS(HR_OK, take(256 + i % 4 * 256, HR_STREAM_DEFAULT));
		look();
		drop_all();
		look();
	}
	hr_stats stats = stats_now();
	/* Caches may hold 1/256 of the limit. */
	if (!cache) CHECK_EQ(stats.source_cache, 0);
	if (!cache) CHECK_EQ(stats.bytes_cached, 0);
	if (cache && here.limit / 256 >= 8 * KIB) CHECK_GT(stats.source_cache, 0);
	CHECK_LE((uint64_t)stats.bytes_cached, here.limit / 256);
	/* Caches are emptied before a request fails, even before one for the whole limit. */
	CHECK_STATUS(HR_OK, take(here.limit, HR_STREAM_DEFAULT));
	CHECK_EQ(look().bytes_cached, 0);
	CHECK_EQ(stats_now().bytes_in_use, here.limit);
	drop_all();
	close_all();
}

static void caches_serve_and_give_way(void)
{
	small_blocks_twice(true);
	small_blocks_twice(false);
}

static void test_caches_serve_small_blocks_and_give_way(void)
{
	on_each_device(caches_serve_and_give_way);
}

/* ---- releasing ---- */

static void trim_gives_back(void)
{
	hr_allocator_options options = options_of("bfc");
	uint64_t seed = hr_test_seed(), released = 0;
	open_with(&options);
	for (int round = 0; round < 3; round++) {
		while (here.count < 40) {
			if (take(any_size(&seed, here.limit / 64), here.streams[here.count % here.stream_count]) != HR_OK) break;
		}
		for (uint32_t i = 0; i < here.count; i += 2) CHECK_STATUS(HR_OK, drop(i, here.blocks[i].stream));
		hr_stats before = look();
		CHECK_STATUS(HR_OK, hr_allocator_trim(here.allocator, &released));
		hr_stats after = look();
		CHECK_EQ((uint64_t)(before.bytes_reserved - after.bytes_reserved), released);
		CHECK_EQ(after.bytes_cached, 0);
		CHECK_EQ(after.num_trims, before.num_trims + 1);
		/* If the device has pages, no whole free page remains. */
		chunk_census census = { .page = page() };
		census_take(here.allocator, &after, &census);
		CHECK_EQ(census.whole_free_pages, 0);
		verify_all();
	}
	drop_all();
	CHECK_STATUS(HR_OK, hr_allocator_trim(here.allocator, &released));
	CHECK_EQ(look().bytes_reserved, 0);
	CHECK_EQ(hr__page_pool_reserved(device), 0);
	close_all();
}

static void test_trim_gives_back_what_is_free_and_nothing_else(void)
{
	on_each_device(trim_gives_back);
}

static void closing_takes_everything(void)
{
	static const char *const kinds[] = { "bfc", "direct" };
	for (size_t i = 0; i < 2; i++) {
		hr_allocator_options options = options_of(kinds[i]);
		open_with(&options);
		for (uint32_t n = 0; n < 6; n++) CHECK_STATUS(HR_OK, take(here.limit / 20, here.streams[n % here.stream_count]));
		CHECK_STATUS(HR_IN_USE, hr_allocator_destroy(here.allocator));
		CHECK_CONTAINS(hr_last_message(), "6 blocks");
		look();
		/* Work on the blocks is still queued. */
		for (uint32_t n = 0; n < 6; n++) CHECK_STATUS(HR_OK, paint_block(&here.blocks[n]));
		CHECK_STATUS(HR_OK, hr_allocator_destroy_all(here.allocator));
		CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_destroy(here.allocator));
		CHECK_EQ(hr__page_pool_reserved(device), 0);
		for (uint32_t n = 0; n < here.stream_count; n++) CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, here.streams[n]));
		streams_close();
		CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, here.staging, STAGING));
	}
}

static void test_closing_gives_everything_back_in_the_middle_of_work(void)
{
	on_each_device(closing_takes_everything);
}

/* ---- streams ---- */

#define REUSE_ROUNDS 12u

static bool all_bytes_are(const unsigned char *bytes, uint64_t count, unsigned char value)
{
	return bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0;
}

/* Stream A fills a block, copies it to the host and frees it, all without waiting. B allocates, fills the block with another value
 * and copies it to the host. Without an order between the two, A's copy has the bytes of B. With [also], a third stream reads the
 * block last. */
static void reuse_across(const char *kind, bool also)
{
	hr_allocator_options options = options_of(kind);
	uint64_t bytes = options.limit_bytes * 3 / 8 / 256 * 256, same = 0;
	void *host;
	options.thread_cache = false;
	if (bytes > 4 * MIB) options.limit_bytes = (bytes = 4 * MIB) * 2;
	if (page()) options.limit_bytes = (options.limit_bytes + page() - 1) / page() * page();
	CHECK_STATUS(HR_OK, hr__call_host_alloc(device->physical, 3 * bytes, &host));
	unsigned char *old = host, *later = old + bytes, *fresh = later + bytes;
	open_with(&options);
	hr_stream a = here.streams[1], b = here.streams[2], c = here.streams[3];
	hr_native_stream native;
	CHECK_STATUS(HR_OK, hr__stream_native(device, also ? c : a, &native));
	for (uint64_t round = 0; round < hr_test_scaled(REUSE_ROUNDS); round++) {
		unsigned char one = (unsigned char)(2 * round + 1), two = (unsigned char)(2 * round + 2);
		block first, second;
		wipe(host, 3 * bytes);
		CHECK_STATUS(HR_OK, take_bare(bytes, a, &first));
		if (!also) CHECK_STATUS(HR_OK, hr__call_compute(device->physical, 200000, native));
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, first.address, one, bytes, a));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, old, first.address, bytes, HR_COPY_TO_HOST, a));
		if (also) {
			CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, c, a));
			CHECK_STATUS(HR_OK, hr__call_compute(device->physical, 200000, native));
			CHECK_STATUS(HR_OK, hr_stream_copy(handle, later, first.address, bytes, HR_COPY_TO_HOST, c));
			CHECK_STATUS(HR_OK, hr_allocation_record_stream(here.allocator, first.address, c));
		}
		CHECK_STATUS(HR_OK, hr_free(here.allocator, first.address, a));
		CHECK_STATUS(HR_OK, take_bare(bytes, b, &second));
		same += second.address == first.address;
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, second.address, two, bytes, b));
		CHECK_STATUS(HR_OK, hr_stream_copy(handle, fresh, second.address, bytes, HR_COPY_TO_HOST, b));
		CHECK_STATUS(HR_OK, hr_free(here.allocator, second.address, b));
		for (uint32_t i = 0; i < here.stream_count; i++) CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, here.streams[i]));
		if (now->real) CHECK(all_bytes_are(old, bytes, one));
		if (now->real && also) CHECK(all_bytes_are(later, bytes, one));
		if (now->real) CHECK(all_bytes_are(fresh, bytes, two));
		look();
	}
	if (here.bfc) CHECK_GT(same, 0);
	if (same && here.bfc) CHECK_GT(stats_now().num_stream_waits, 0);
	close_all();
	CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, host, 3 * bytes));
}

static void reuse_is_safe(void)
{
	if (!has_streams()) return;
	reuse_across("bfc", false);
	reuse_across("bfc", true);
	reuse_across("direct", false);
	reuse_across("direct", true);
}

static void test_memory_reused_on_another_stream_holds_what_each_wrote(void)
{
	on_each_device(reuse_is_safe);
}

static void frees_on_other_streams(void)
{
	hr_allocator_options options = options_of("bfc");
	uint64_t seed = hr_test_seed();
	if (!has_streams()) return;
	open_with(&options);
	for (uint64_t step = 0; step < hr_test_scaled(STEPS); step++) {
		hr_stream stream = here.streams[hr_rand_below(&seed, here.stream_count)];
		if (here.count < LIVE && hr_rand_below(&seed, 100) < 55) {
			CHECK_STATUS(HR_OK, take(any_size(&seed, here.limit / LIVE / 4), stream));
			continue;
		}
		if (!here.count) continue;
		uint32_t index = (uint32_t)hr_rand_below(&seed, here.count);
		/* The stream that frees the block has work on it, queued after the work of the block's own stream. */
		block *b = &here.blocks[index];
		CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, stream, b->stream));
		b->stream = stream;
		verify(b);
		CHECK_STATUS(HR_OK, drop(index, stream));
		look();
	}
	drop_all();
	close_all();
}

static void test_blocks_may_be_freed_on_another_stream(void)
{
	on_each_device(frees_on_other_streams);
}

/* ---- stitching ---- */

#define PIECE 2u /* pages in each block of the fragmented state */

/* Fills the limit with blocks of PIECE pages and frees every second: half of the memory is free, and no two free pieces are
 * adjacent. Returns the free bytes. */
static uint64_t fragment(bool stitch)
{
	hr_allocator_options options = options_of("bfc");
	uint64_t pages = options.limit_bytes / page(), piece = PIECE * page();
	if (pages > 32) pages = 32;
	options.limit_bytes = pages / PIECE * piece;
	options.thread_cache = false;
	options.stitch = stitch;
	open_with(&options);
	for (uint64_t i = 0; i < pages / PIECE; i++) CHECK_STATUS(HR_OK, take(piece, here.streams[i % here.stream_count]));
	CHECK_STATUS(HR_OUT_OF_MEMORY, take(1, HR_STREAM_DEFAULT));
	/* drop() moves the last block to the index of the dropped one, so blocks are chosen by address. */
	uint64_t freed = 0;
	for (uint32_t i = 0; i < here.count;) {
		uint64_t number = (uint64_t)(uintptr_t)here.blocks[i].address / piece;
		if (number % 2) {
			CHECK_STATUS(HR_OK, drop(i, here.blocks[i].stream));
			freed += piece;
		} else {
			i++;
		}
	}
	hr_stats stats = look();
	CHECK_EQ((uint64_t)stats.bytes_free, freed);
	CHECK_EQ((uint64_t)stats.largest_free_block, piece);
	CHECK_GE(freed, 2 * piece);
	return freed;
}

static void stitching_joins(void)
{
	if (!page()) return;
	/* Without stitching the request is refused and no page is moved. */
	uint64_t freed = fragment(false);
	CHECK_STATUS(HR_OUT_OF_MEMORY, take(freed, HR_STREAM_DEFAULT));
	CHECK_EQ(look().num_stitches, 0);
	drop_all();
	close_all();

	/* From one byte more than any hole to all free memory. */
	for (uint64_t asked = PIECE * page() + 1; asked; asked = asked < freed ? (2 * asked < freed ? 2 * asked : freed) : 0) {
		CHECK_EQ(fragment(true), freed);
		hr_stats before = stats_now();
		CHECK_STATUS(HR_OK, take(asked, here.streams[here.stream_count - 1]));
		hr_stats after = look();
		CHECK_EQ(after.source_stitch, before.source_stitch + 1);
		CHECK_EQ(after.num_stitches, before.num_stitches + 1);
		CHECK_EQ((uint64_t)after.bytes_stitched % page(), 0);
		/* Whole pages, no more than the request needs; the pages that it builds on may stay. */
		CHECK_GE((uint64_t)after.bytes_stitched + PIECE * page(), asked);
		CHECK_LT((uint64_t)after.bytes_stitched, asked + page());
		CHECK_EQ(after.bytes_reserved, before.bytes_reserved);
		verify_all();
		drop_all();
		close_all();
	}
}

static void test_stitching_joins_free_pages_and_does_not_touch_live_blocks(void)
{
	on_each_device(stitching_joins);
}

/* Queued work uses the free pages: it must be done before they are mapped elsewhere. */
static void stitching_waits(void)
{
	if (!page() || !has_streams()) return;
	for (int round = 0; round < 4; round++) {
		uint64_t freed = fragment(true), piece = PIECE * page();
		void *host;
		block held[16];
		unsigned count = (unsigned)(freed / piece);
		hr_native_stream native;
		CHECK_LE(count, 16);
		CHECK_STATUS(HR_OK, hr__call_host_alloc(device->physical, freed, &host));
		wipe(host, freed);
		CHECK_STATUS(HR_OK, hr__stream_native(device, here.streams[1], &native));
		for (unsigned i = 0; i < count; i++) CHECK_STATUS(HR_OK, take_bare(piece, here.streams[1], &held[i]));
		CHECK_STATUS(HR_OK, hr__call_compute(device->physical, 2000000, native));
		for (unsigned i = 0; i < count; i++) {
			unsigned char *to = (unsigned char *)host + i * piece;
			CHECK_STATUS(HR_OK, hr_stream_fill(handle, held[i].address, (unsigned char)(i + 1), piece, here.streams[1]));
			CHECK_STATUS(HR_OK, hr_stream_copy(handle, to, held[i].address, piece, HR_COPY_TO_HOST, here.streams[1]));
		}
		for (unsigned i = 0; i < count; i++) CHECK_STATUS(HR_OK, hr_free(here.allocator, held[i].address, here.streams[1]));
		CHECK_STATUS(HR_OK, take(freed, here.streams[2]));
		CHECK_GT(look().source_stitch, 0);
		CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, here.streams[1]));
		for (unsigned i = 0; now->real && i < count; i++)
			CHECK(all_bytes_are((unsigned char *)host + i * piece, piece, (unsigned char)(i + 1)));
		drop_all();
		CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, host, freed));
		close_all();
	}
}

static void test_stitching_waits_for_work_on_the_pages(void)
{
	on_each_device(stitching_waits);
}

TEST_MAIN(T(test_statistics_and_contents_agree_after_every_step), T(test_memory_is_mapped_as_needed_or_all_at_once),
          T(test_requests_are_refused_at_the_limit_and_not_before), T(test_caches_serve_small_blocks_and_give_way),
          T(test_trim_gives_back_what_is_free_and_nothing_else), T(test_closing_gives_everything_back_in_the_middle_of_work),
          T(test_memory_reused_on_another_stream_holds_what_each_wrote), T(test_blocks_may_be_freed_on_another_stream),
          T(test_stitching_joins_free_pages_and_does_not_touch_live_blocks), T(test_stitching_waits_for_work_on_the_pages))
