/* test_defrag.c - tensors are moved on the device to join free memory: with their contents, at the least cost, and never a tensor
 * whose address was taken.
 *
 * States are random: a region is filled with tensors and some plain blocks, and every other one is freed. Tensors stay pinned, so
 * that none can be evicted. The cost of a request is then compared with an oracle that was written from the text at the top of
 * defrag.c: it tries every window of what hr_allocator_visit shows. */
#include "fixture.h"
#include "fault_os.h"
#include "headroom_backend.h"
#include "core/lms/lms.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define NONE UINT64_MAX
#define TENSORS 512u
#define UNIT 256u

static hr_device device;
static hr_allocator allocator;
static uint64_t link_bytes_per_s; /* 0 = unlimited */

static struct {
	uint64_t random;
	struct {
		hr_tensor handle;
		uint64_t bytes, address; /* address: if it is held */
		hr_name tag;             /* identifies its block */
		unsigned char value;
		bool held; /* its address was taken */
	} tensors[TENSORS];
	uint32_t count;
	void *plain[TENSORS];
	uint32_t plain_count;
} here;

static uint64_t below(uint64_t bound)
{
	return hr_rand_below(&here.random, bound);
}

static hr_lms_options lms_options(bool defrag)
{
	hr_lms_options options = fixture_lms_options("lru", 64 * MIB);
	options.defrag = defrag;
	options.wait_ns = 0;
	return options;
}

static void set_up(uint64_t limit, uint64_t page, bool stitch, const hr_lms_options *lms)
{
	device = fixture_emulated(64 * MIB, page, link_bytes_per_s);
	hr_allocator_options options = fixture_allocator_options(limit);
	options.stitch = stitch;
	options.thread_cache = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, lms));
	here.count = here.plain_count = 0;
}

static hr_stats stats_of(void)
{
	return fixture_stats(allocator);
}

static hr_lms_stats lms_stats_of(void)
{
	return fixture_lms_stats(allocator);
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Adds a tensor with contents, pinned, its address not taken. False if there is no room. */
static bool add_tensor_of(uint64_t bytes, uint64_t alignment)
{
	uint32_t i = here.count;
	hr_tensor_options options;
	void *at;
	hr_tensor_options_init(&options);
	options.bytes = here.tensors[i].bytes = bytes;
	options.alignment = alignment;
	char tag[24];
	static uint32_t made;
	snprintf(tag, sizeof tag, "tensor %u", made++ % (4 * TENSORS));
	options.tag = here.tensors[i].tag = hr_name_intern(tag);
	here.tensors[i].held = false;
	here.tensors[i].value = (unsigned char)(1 + below(250));
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &here.tensors[i].handle));
	hr_status status = hr_tensor_pin(here.tensors[i].handle, HR_OVERWRITE, HR_STREAM_DEFAULT);
	if (status) {
		CHECK_STATUS(HR_OUT_OF_MEMORY, status);
		CHECK_STATUS(HR_OK, hr_tensor_destroy(here.tensors[i].handle));
		return false;
	}
	CHECK_STATUS(HR_OK, hr_tensor_get_address(here.tensors[i].handle, &at));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, at, here.tensors[i].value, bytes, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(here.tensors[i].handle, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_pin(here.tensors[i].handle, HR_READ, HR_STREAM_DEFAULT));
	here.count++;
	return true;
}

static bool add_tensor(uint64_t bytes)
{
	return add_tensor_of(bytes, 0);
}

static void drop_tensor(uint32_t i)
{
	CHECK_STATUS(HR_OK, hr_tensor_unpin(here.tensors[i].handle, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(here.tensors[i].handle));
	here.tensors[i] = here.tensors[--here.count];
}

static bool add_plain(uint64_t bytes)
{
	if (here.plain_count == TENSORS || hr_alloc_bytes(allocator, bytes, &here.plain[here.plain_count])) return false;
	CHECK_STATUS(HR_OK, hr_stream_fill(device, here.plain[here.plain_count++], 0xEE, bytes < 64 ? bytes : 64, HR_STREAM_DEFAULT));
	return true;
}

static void hold_address(uint32_t i)
{
	void *at;
	CHECK_STATUS(HR_OK, hr_tensor_get_address(here.tensors[i].handle, &at));
	here.tensors[i].address = (uintptr_t)at;
	here.tensors[i].held = true;
}

/* Checks that all contents are unchanged, and that no tensor whose address is held has moved. */
static void check_contents(void)
{
	static unsigned char copy[4 * MIB];
	for (uint32_t i = 0; i < here.count; i++) {
		void *at;
		CHECK_STATUS(HR_OK, hr_tensor_get_address(here.tensors[i].handle, &at));
		if (here.tensors[i].held) CHECK_EQ((uintptr_t)at, here.tensors[i].address);
		CHECK_STATUS(HR_OK, hr_stream_copy(device, copy, at, here.tensors[i].bytes, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
		for (uint64_t b = 0; b < here.tensors[i].bytes; b++)
			if (copy[b] != here.tensors[i].value) CHECK_EQ(copy[b], here.tensors[i].value);
	}
	for (uint32_t i = 0; i < here.plain_count; i++) {
		CHECK_STATUS(HR_OK, hr_stream_copy(device, copy, here.plain[i], 64, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
		CHECK_EQ(copy[0], 0xEE);
	}
}

/* ---- the oracle ---- */

struct piece {
	uint64_t address, bytes;
	char kind; /* F free, M movable, X not movable, G can grow */
};

struct picture {
	struct piece pieces[4 * TENSORS];
	uint32_t count;
	uint64_t room;
};

static bool note(void *context, const hr_chunk_view *chunk)
{
	struct picture *seen = context;
	struct piece *next = &seen->pieces[seen->count++];
	*next = (struct piece){ (uintptr_t)chunk->address, chunk->bytes, 'X' };
	if (chunk->kind == HR_CHUNK_FREE) next->kind = 'F';
	if (chunk->kind == HR_CHUNK_UNMAPPED && seen->room) {
		next->kind = 'G';
		if (next->bytes > seen->room) next->bytes = seen->room;
	}
	for (uint32_t i = 0; i < here.count; i++)
		if (here.tensors[i].tag == chunk->tag && chunk->kind == HR_CHUNK_IN_USE && !here.tensors[i].held) next->kind = 'M';
	return true;
}

static void look(struct picture *seen)
{
	hr_stats stats = stats_of();
	seen->count = 0;
	seen->room = (uint64_t)(stats.bytes_limit - stats.bytes_reserved);
	CHECK_STATUS(HR_OK, hr_allocator_visit(allocator, 0, note, seen));
}

static uint64_t align_up(uint64_t value, uint64_t alignment)
{
	return alignment ? (value + alignment - 1) / alignment * alignment : value;
}

/* Whether pieces [i, j] are contiguous and can be joined. */
static bool is_row(const struct picture *seen, uint32_t i, uint32_t j)
{
	for (uint32_t k = i; k <= j; k++)
		if (seen->pieces[k].kind == 'X' || (seen->pieces[k].kind == 'G' && k != j)) return false;
	return true;
}

static bool row_holds(const struct picture *seen, uint32_t i, uint32_t j, uint64_t size, uint64_t alignment)
{
	uint64_t end = seen->pieces[j].address + seen->pieces[j].bytes;
	return align_up(seen->pieces[i].address, alignment) + size <= end;
}

static uint64_t cost_of_clearing(const struct picture *seen, uint32_t i, uint32_t j)
{
	struct piece spare[4 * TENSORS];
	uint64_t sizes[TENSORS], cost = 0;
	uint32_t spares = 0, movers = 0;
	for (uint32_t k = 0; k < seen->count; k++)
		if (seen->pieces[k].kind == 'F' && (k < i || k > j)) spare[spares++] = seen->pieces[k];
	for (uint32_t k = i; k <= j; k++) {
		if (seen->pieces[k].kind != 'M') continue;
		uint32_t at = movers++; /* largest first */
		for (; at > 0 && sizes[at - 1] < seen->pieces[k].bytes; at--) sizes[at] = sizes[at - 1];
		sizes[at] = seen->pieces[k].bytes;
		cost += seen->pieces[k].bytes;
	}
	for (uint32_t m = 0; m < movers; m++) {
		struct piece *best = NULL;
		for (uint32_t k = 0; k < spares; k++)
			if (spare[k].bytes >= sizes[m] && (!best || spare[k].bytes < best->bytes)) best = &spare[k];
		if (!best) return NONE;
		best->bytes -= sizes[m];
	}
	return cost;
}

static uint64_t cost_of_packing(const struct picture *seen, uint32_t i, uint32_t j, uint64_t size, uint64_t alignment)
{
	uint64_t gap = 0, cost = 0;
	for (uint32_t k = i; k <= j; k++) {
		if (seen->pieces[k].kind == 'M') cost += gap < seen->pieces[k].bytes ? 2 * seen->pieces[k].bytes : seen->pieces[k].bytes;
		else gap += seen->pieces[k].bytes;
	}
	return gap >= size + (alignment > UNIT ? alignment - UNIT : 0) ? cost : NONE;
}

static uint64_t oracle(const struct picture *seen, uint64_t size, uint64_t alignment)
{
	uint64_t best = NONE;
	for (uint32_t i = 0; i < seen->count; i++)
		for (uint32_t j = i; j < seen->count && is_row(seen, i, j); j++) {
			bool shortest = row_holds(seen, i, j, size, alignment) && (i == j || (!row_holds(seen, i + 1, j, size, alignment)));
			uint64_t clearing = shortest ? cost_of_clearing(seen, i, j) : NONE;
			uint64_t packing = cost_of_packing(seen, i, j, size, alignment);
			if (clearing < best) best = clearing;
			if (packing < best) best = packing;
		}
	return best;
}

/* ---- states ---- */

/* Fills the whole limit, then frees pieces. */
static void fragment(uint64_t most, uint64_t plain_share, uint64_t held_share)
{
	for (int refused = 0; refused < 4 && here.count < TENSORS;) {
		uint64_t bytes = (1 + below(most / UNIT)) * UNIT;
		bool done = plain_share && !below(plain_share) ? add_plain(bytes) : add_tensor(bytes);
		refused += !done;
	}
	for (uint32_t i = here.count; i-- > 0;) {
		if (below(2)) drop_tensor(i);
		else if (held_share && !below(held_share)) hold_address(i);
	}
}

static hr_status ask(uint64_t bytes, uint64_t alignment, void **out)
{
	hr_request request = HR_REQUEST(bytes);
	request.alignment = alignment;
	return hr_alloc(allocator, &request, out);
}

/* ---- promises ---- */

static void test_fragmented_memory_fits_with_defragmentation_and_not_without(void)
{
	uint64_t seed = hr_test_seed(), states = hr_test_scaled(HR_TEST_SANITIZED ? 25 : 100), tried = 0, judged = 0;
	if (states < 10) states = 10;
	for (uint64_t state = 0; state < states; state++) {
		uint64_t request = 0, most = (8 + (state % 5) * 40) * KIB, promised = 0;
		bool was_judged = false;
		void *block;
		for (int defrag = 0; defrag < 2; defrag++) {
			hr_lms_options options = lms_options(defrag);
			here.random = seed * 1000 + state;
			set_up(2 * MIB, 64 * KIB, false, &options);
			fragment(most, 0, 0);
			hr_stats stats = stats_of();
			request = (uint64_t)stats.bytes_free * 10 / 12 / UNIT * UNIT;
			if ((uint64_t)stats.largest_free_block >= request) {
				tear_down();
				break;
			}
			hr_lms_stats before = lms_stats_of();
			int64_t served = stats.source_defragment;
			hr_verdict verdict = { .struct_size = sizeof verdict };
			CHECK_STATUS(HR_OK, hr_allocator_would_fit(allocator, &HR_REQUEST(request), &verdict));
			/* If free pieces are whole pages and defragmentation is off, the verdict names stitching. */
			bool is_judged = verdict.kind == HR_FITS_AFTER_DEFRAG;
			CHECK(is_judged || (!defrag && verdict.kind == HR_FITS_AFTER_STITCH));
			if (defrag) CHECK_STR(verdict.advice, "");
			if (defrag && was_judged) CHECK_EQ(verdict.bytes, promised); /* the same whether it is on or off */
			was_judged = is_judged;
			promised = verdict.bytes;
			hr_status status = ask(request, 0, &block);
			CHECK_STATUS(defrag ? HR_OK : HR_OUT_OF_MEMORY, status);
			stats = stats_of();
			hr_lms_stats lms = lms_stats_of();
			CHECK_EQ(stats.source_defragment, served + defrag);
			CHECK_EQ(lms.num_defragmentations, before.num_defragmentations + defrag);
			CHECK_EQ(stats.num_defragmentations, lms.num_defragmentations);
			CHECK_EQ(stats.bytes_defragged, lms.bytes_defragged);
			CHECK_EQ(lms.bytes_defragged > before.bytes_defragged, defrag);
			if (is_judged) CHECK_EQ((uint64_t)(lms.bytes_defragged - before.bytes_defragged), defrag ? promised : 0);
			judged += is_judged && defrag;
			CHECK_EQ(lms.num_evictions, 0);
			CHECK_EQ(stats.num_live, (int64_t)here.count + defrag);
			CHECK_STATUS(HR_OK, hr_lms_check(allocator));
			CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
			if (defrag) CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0xAA, request, HR_STREAM_DEFAULT));
			check_contents();
			tried += (uint64_t)defrag;
			tear_down();
		}
	}
	CHECK_GE(tried, states / 2);
	CHECK_GE(judged, states / 10);
}

static void test_the_fewest_bytes_are_moved_and_no_address_that_is_held(void)
{
	uint64_t seed = hr_test_seed(), states = hr_test_scaled(HR_TEST_SANITIZED ? 60 : 400), met = 0, refused = 0, over_host = 0;
	static struct picture seen;
	if (states < 60) states = 60; /* so that every case occurs */
	for (uint64_t state = 0; state < states; state++) {
		hr_lms_options options = lms_options(true);
		void *block;
		here.random = seed * 100000 + state;
		set_up(512 * KIB, 64 * KIB, false, &options);
		fragment((state % 4 == 3 ? 160 : 16 << state % 4) * KIB, state % 3 ? 6 : 0, state % 2 ? 5 : 0);
		hr_stats stats = stats_of();
		uint64_t size = ((uint64_t)stats.largest_free_block + 1 + below((uint64_t)stats.bytes_free)) / UNIT * UNIT;
		uint64_t alignment = below(3) ? 0 : UNIT << below(6);
		look(&seen);
		uint64_t cost = size ? oracle(&seen, size, alignment) : 0;
		if (!cost) { /* it fits without moves */
			tear_down();
			continue;
		}
		hr_lms_stats before = lms_stats_of();
		hr_status status = ask(size, alignment, &block);
		hr_lms_stats after = lms_stats_of();
		CHECK_STATUS(cost == NONE ? HR_OUT_OF_MEMORY : HR_OK, status);
		uint64_t bounced = (uint64_t)(after.bytes_copied_out - before.bytes_copied_out);
		CHECK_EQ((uint64_t)(after.bytes_defragged - before.bytes_defragged) + bounced, cost == NONE ? 0 : cost);
		met += cost != NONE;
		refused += cost == NONE;
		over_host += bounced > 0;
		if (!status) CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0xAA, size, HR_STREAM_DEFAULT));
		check_contents();
		tear_down();
	}
	printf("# met %llu, of those over the host %llu; refused %llu\n", (unsigned long long)met, (unsigned long long)over_host,
	       (unsigned long long)refused);
	CHECK_GE(met, states / 5);
	CHECK_GE(refused, states / 20);
	if (states >= 300) CHECK_GE(over_host, 1);
}

/* With stitching it is enough that some pages are empty: a quarter of all blocks cannot be moved, and a window is rarely long
 * enough. */
static void test_pages_are_emptied_where_they_can_be_put_side_by_side(void)
{
	uint64_t seed = hr_test_seed(), states = hr_test_scaled(HR_TEST_SANITIZED ? 10 : 40), tried = 0, met = 0;
	if (states < 4) states = 4;
	for (uint64_t state = 0; state < states; state++) {
		void *block;
		for (int defrag = 0; defrag < 2; defrag++) {
			hr_lms_options options = lms_options(defrag);
			here.random = seed * 1000 + state;
			set_up(8 * MIB, 256 * KIB, true, &options);
			fragment(128 * KIB, 8, 8);
			uint64_t request = (uint64_t)stats_of().bytes_free / 2 / UNIT * UNIT;
			hr_lms_stats before = lms_stats_of();
			hr_status status = ask(request, 0, &block);
			if (!defrag && !status) { /* enough pages are empty without moves */
				tear_down();
				break;
			}
			if (status) CHECK_STATUS(HR_OUT_OF_MEMORY, status);
			CHECK_EQ(lms_stats_of().bytes_defragged > before.bytes_defragged, !status);
			if (!status) CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0xAA, request, HR_STREAM_DEFAULT));
			tried += (uint64_t)defrag;
			met += (uint64_t)(defrag && !status);
			check_contents();
			tear_down();
		}
	}
	printf("# met %llu of %llu\n", (unsigned long long)met, (unsigned long long)tried);
	CHECK_GE(tried, states / 2);
	CHECK_GE(met, tried * 3 / 4);
}

static void test_it_is_off_by_default(void)
{
	hr_lms_options options;
	CHECK_STATUS(HR_OK, hr_lms_options_init(&options));
	CHECK(!options.defrag);
	CHECK(!hr_get_lms_defrag_enabled());
	CHECK_EQ(options.defrag_budget, 0u);
	CHECK_STATUS(HR_OK, hr_set_lms_defrag_enabled(true));
	CHECK(hr_get_lms_defrag_enabled());
	CHECK_STATUS(HR_OK, hr_lms_options_init(&options));
	CHECK(options.defrag);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(!hr_get_lms_defrag_enabled());
}

/* Eight tensors of 128 KiB in one MiB, every other one destroyed. */
static void comb_of_pages(const hr_lms_options *options, uint64_t page)
{
	set_up(MIB, page, false, options);
	for (int i = 0; i < 8; i++) CHECK(add_tensor(128 * KIB));
	for (int i = 6; i >= 0; i -= 2) {
		hr_tensor gone = here.tensors[i].handle;
		CHECK_STATUS(HR_OK, hr_tensor_unpin(gone, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_destroy(gone));
		memmove(&here.tensors[i], &here.tensors[i + 1], (--here.count - (uint32_t)i) * sizeof here.tensors[0]);
	}
	CHECK_EQ(stats_of().largest_free_block, (int64_t)(128 * KIB));
}

static void comb(const hr_lms_options *options)
{
	comb_of_pages(options, 64 * KIB);
}

static hr_verdict verdict_on(uint64_t bytes)
{
	hr_verdict verdict = { .struct_size = sizeof verdict };
	hr_request request = HR_REQUEST(bytes);
	CHECK_STATUS(HR_OK, hr_allocator_would_fit(allocator, &request, &verdict));
	return verdict;
}

/* Of | free | T | free | T | free | T | free | T |, each 128 KiB, the first 512 KiB are cleared: two tensors move to the two free
 * pieces after them, 256 KiB. Sliding tensors together would move three, 384 KiB. Everything is in one page, so that pages cannot
 * be stitched. */
static void test_the_verdict_names_what_is_moved_and_advises_defragmentation(void)
{
	for (int defrag = 0; defrag < 2; defrag++) {
		hr_lms_options options = lms_options(defrag);
		void *block;
		here.random = 1;
		comb_of_pages(&options, MIB);
		hr_verdict verdict = verdict_on(512 * KIB);
		CHECK_EQ((int)verdict.kind, (int)HR_FITS_AFTER_DEFRAG);
		CHECK_EQ(verdict.bytes, 256 * KIB);
		CHECK_EQ((int)verdict.tier, (int)HR_TIER_NONE);
		CHECK_CONTAINS(verdict.text, "tensors of 256.0 KiB have to move on the device");
		CHECK_EQ(strstr(verdict.text, "which hr_alloc does automatically") != NULL, defrag);
		CHECK_STR(verdict.advice, defrag ? "" : "Defragmentation is off: set hr_lms_options.defrag, or call hr_set_lms_defrag_enabled(true) before "
		                                        "the first tensor.");
		CHECK_EQ(lms_stats_of().bytes_defragged, 0); /* the query moved nothing */
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
		CHECK_STATUS(defrag ? HR_OK : HR_OUT_OF_MEMORY, ask(512 * KIB, 0, &block));
		CHECK_EQ((uint64_t)lms_stats_of().bytes_defragged, defrag ? verdict.bytes : 0);
		check_contents();
		tear_down();
	}
	hr_lms_options options = lms_options(true);
	options.defrag_budget = 128 * KIB;
	comb_of_pages(&options, MIB);
	CHECK_STR(verdict_on(512 * KIB).advice, "Raise hr_lms_options.defrag_budget to 262144.");
	tear_down();
	/* A plain block of 128 KiB in the middle cannot be moved; the only advice left is to raise the limit. */
	options = lms_options(true);
	set_up(MIB, MIB, false, &options);
	void *plain[8];
	for (int i = 0; i < 8; i++) CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 128 * KIB, &plain[i]));
	for (int i = 0; i < 8; i += 2) CHECK_STATUS(HR_OK, hr_free(allocator, plain[i], HR_STREAM_DEFAULT));
	hr_verdict verdict = verdict_on(512 * KIB);
	CHECK_EQ((int)verdict.kind, (int)HR_FITS_AFTER_DEFRAG);
	CHECK_EQ(verdict.bytes, 384 * KIB); /* three blocks between four free pieces */
	CHECK_CONTAINS(verdict.advice, "Raise options.limit_bytes by 1.0 MiB"); /* a page */
	tear_down();
}

/* 8 tensors of 128 KiB in a page of 1 MiB, every other one destroyed, the others inactive and eviction off. 512 KiB are free: two
 * tensors move to the free pieces after them, 256 KiB, and no limit is reached. */
static void test_the_verdict_prefers_defragmentation_that_is_on_to_eviction_that_is_off(void)
{
	for (int defrag = 0; defrag < 2; defrag++) {
		hr_lms_options options = lms_options(defrag);
		void *block;
		options.enabled = false;
		here.random = 1;
		comb_of_pages(&options, MIB);
		for (uint32_t i = 0; i < here.count; i++) CHECK_STATUS(HR_OK, hr_tensor_unpin(here.tensors[i].handle, HR_STREAM_DEFAULT));
		hr_verdict verdict = verdict_on(512 * KIB);
		CHECK_EQ((int)verdict.kind, (int)(defrag ? HR_FITS_AFTER_DEFRAG : HR_FITS_WITH_LMS));
		CHECK_EQ(verdict.bytes, 256 * KIB); /* two tensors are evicted, or moved */
		if (defrag) CHECK_STR(verdict.advice, "");
		else CHECK_CONTAINS(verdict.advice, "Or set hr_lms_options.defrag: 262144 bytes have to move on the device.");
		CHECK(!strstr(verdict.advice, "limit_bytes"));
		CHECK_STATUS(defrag ? HR_OK : HR_OUT_OF_MEMORY, ask(512 * KIB, 0, &block));
		CHECK_EQ(lms_stats_of().bytes_defragged, (int64_t)(defrag ? 256 * KIB : 0));
		for (uint32_t i = 0; i < here.count; i++) CHECK_STATUS(HR_OK, hr_tensor_pin(here.tensors[i].handle, HR_READ, HR_STREAM_DEFAULT));
		check_contents();
		tear_down();
	}
}

static void test_a_budget_spreads_the_work_over_attempts(void)
{
	hr_lms_options options = lms_options(true);
	void *block;
	options.defrag_budget = 128 * KIB;
	here.random = 1;
	comb(&options);
	/* Two tensors separate 512 KiB; each attempt moves one. */
	CHECK_STATUS(HR_OUT_OF_MEMORY, ask(512 * KIB, 0, &block));
	CHECK_EQ(lms_stats_of().bytes_defragged, (int64_t)(128 * KIB));
	CHECK_STATUS(HR_OK, ask(512 * KIB, 0, &block));
	CHECK_EQ(lms_stats_of().bytes_defragged, (int64_t)(256 * KIB));
	CHECK_EQ(lms_stats_of().num_defragmentations, 2);
	check_contents();
	tear_down();
	/* A tensor larger than the budget never moves. */
	options.defrag_budget = 128 * KIB - 1;
	comb(&options);
	CHECK_STATUS(HR_OUT_OF_MEMORY, ask(256 * KIB, 0, &block));
	CHECK_EQ(lms_stats_of().bytes_defragged, 0);
	tear_down();
}

static void test_tensors_that_are_never_evicted_can_be_moved(void)
{
	hr_lms_options options = lms_options(true);
	void *block;
	here.random = 1;
	comb(&options);
	for (uint32_t i = 0; i < here.count; i++) {
		CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(here.tensors[i].handle, true));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(here.tensors[i].handle, HR_STREAM_DEFAULT));
	}
	CHECK_STATUS(HR_OK, ask(384 * KIB, 0, &block));
	CHECK_EQ(lms_stats_of().num_evictions, 0);
	CHECK_EQ(stats_of().source_defragment, 1);
	for (uint32_t i = 0; i < here.count; i++)
		CHECK_STATUS(HR_OK, hr_tensor_pin(here.tensors[i].handle, HR_READ, HR_STREAM_DEFAULT));
	check_contents();
	tear_down();
}

static void test_defragmentation_works_with_eviction_off(void)
{
	hr_lms_options options = lms_options(true);
	void *block;
	options.enabled = false;
	here.random = 1;
	comb(&options);
	CHECK_STATUS(HR_OK, ask(384 * KIB, 0, &block));
	CHECK_EQ(lms_stats_of().bytes_copied_out, 0);
	CHECK_GT(lms_stats_of().bytes_defragged, 0);
	check_contents();
	tear_down();
}

static void test_eviction_comes_before_defragmentation(void)
{
	hr_lms_options options = lms_options(true);
	void *block;
	here.random = 1;
	comb(&options);
	for (uint32_t i = 0; i < here.count; i++) CHECK_STATUS(HR_OK, hr_tensor_unpin(here.tensors[i].handle, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, ask(384 * KIB, 0, &block));
	CHECK_GT(lms_stats_of().num_evictions, 0);
	CHECK_EQ(lms_stats_of().num_defragmentations, 0);
	tear_down();
}

/* A pin finds no room, and tensors that its own thread has pinned move for it. */
static void test_a_pin_makes_pinned_tensors_move(void)
{
	hr_lms_options options = lms_options(true);
	here.random = 1;
	comb(&options);
	CHECK(add_tensor(384 * KIB));
	CHECK_EQ(stats_of().source_defragment, 1);
	check_contents();
	tear_down();
}

/* The host copy is valid before and after the move, so the tensor is then evicted without a copy. */
static void test_a_move_keeps_the_host_copy_valid(void)
{
	hr_lms_options options = lms_options(true);
	void *block;
	here.random = 1;
	comb(&options);
	for (uint32_t i = 0; i < here.count; i++) {
		hr_tensor tensor = here.tensors[i].handle;
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
		CHECK_STATUS(HR_OK, hr_tensor_prefetch(tensor));
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	}
	CHECK_EQ(lms_stats_of().num_clean_evictions, 0);
	while ((uint64_t)stats_of().largest_free_block >= 384 * KIB) CHECK(add_tensor(64 * KIB));
	int64_t copied = lms_stats_of().bytes_copied_out;
	hr_status status = ask((uint64_t)stats_of().largest_free_block + 64 * KIB, 0, &block);
	CHECK(status == HR_OK || status == HR_OUT_OF_MEMORY);
	for (uint32_t i = 0; i < 4; i++) {
		hr_tensor tensor = here.tensors[i].handle;
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	}
	CHECK_EQ(lms_stats_of().num_clean_evictions, 4);
	CHECK_EQ(lms_stats_of().bytes_copied_out, copied);
	if (!status) CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	for (uint32_t i = 0; i < 4; i++) CHECK_STATUS(HR_OK, hr_tensor_pin(here.tensors[i].handle, HR_READ, HR_STREAM_DEFAULT));
	check_contents();
	tear_down();
}

/* Every call of the device fails in turn, once and permanently: the request fails or succeeds, and nothing is lost. */
enum way { CLEARS, PACKS, PAGES };

static uint64_t fault_state(enum way way, const hr_lms_options *options)
{
	here.random = 5;
	if (way == CLEARS) {
		comb(options);
		return 512 * KIB;
	}
	if (way == PAGES) { /* a page that holds little, and room for that in another page */
		set_up(512 * KIB, 128 * KIB, true, options);
		CHECK(add_plain(96 * KIB));
		CHECK(add_plain(32 * KIB));
		CHECK(add_tensor(32 * KIB));
		CHECK(add_plain(96 * KIB));
		CHECK(add_plain(128 * KIB));
		CHECK(add_plain(128 * KIB));
		CHECK_STATUS(HR_OK, hr_free(allocator, here.plain[1], HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_free(allocator, here.plain[2], HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_free(allocator, here.plain[4], HR_STREAM_DEFAULT));
		here.plain[1] = here.plain[3];
		here.plain_count = 2;
		return 256 * KIB;
	}
	/* A tensor for which there is no other place: it must be moved through the host. */
	set_up(512 * KIB, 64 * KIB, false, options);
	CHECK(add_plain(64 * KIB));
	CHECK(add_tensor(256 * KIB));
	CHECK(add_plain(128 * KIB));
	CHECK(add_plain(64 * KIB));
	CHECK_STATUS(HR_OK, hr_free(allocator, here.plain[0], HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(allocator, here.plain[1], HR_STREAM_DEFAULT));
	here.plain[0] = here.plain[2];
	here.plain_count = 1;
	return 192 * KIB;
}

static void fault_states(bool forever, enum way way)
{
	for (uint64_t nth = 1; nth < 400; nth++) {
		hr_lms_options options = lms_options(true);
		void *block = NULL;
		uint64_t size = fault_state(way, &options);
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
		hr_backend_fail_nth(nth, forever, HR_DEVICE_ERROR);
		hr_status status = ask(size, 0, &block);
		uint64_t calls = hr_backend_calls();
		hr_backend_fail_nth(0, false, HR_OK);
		CHECK(status == HR_OK || status == HR_DEVICE_ERROR);
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
		CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
		if (!status) CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 0xAA, size, HR_STREAM_DEFAULT));
		check_contents();
		tear_down();
		if (calls < nth) {
			CHECK_STATUS(HR_OK, status);
			CHECK_GT(nth, 4);
			return;
		}
	}
	CHECK(false);
}

static void test_any_call_of_the_device_may_fail_once(void)
{
	for (enum way way = CLEARS; way <= PAGES; way++) fault_states(false, way);
}

static void test_any_call_of_the_device_may_fail_permanently(void)
{
	for (enum way way = CLEARS; way <= PAGES; way++) fault_states(true, way);
}

/* The copy was queued, but ordering other streams after it failed: the tensor stays where it was, and its memory stays allocated
 * until the copy has read it. */
static void test_a_failed_move_keeps_its_memory_until_the_copy_has_read_it(void)
{
	bool more = true;
	for (uint64_t nth = 1; more; nth++) {
		hr_lms_options options = lms_options(true);
		hr__lms *lms;
		void *block, *at;
		static unsigned char copy[128 * KIB];
		here.random = 5;
		link_bytes_per_s = 5000000; /* 25 ms for a tensor */
		comb(&options);
		link_bytes_per_s = 0;
		CHECK_STATUS(HR_OK, hr__lms_of(allocator, &lms));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
		hold_address(3);
		CHECK_STATUS(HR_OK, hr_tensor_get_address(here.tensors[3].handle, &at));
		CHECK_STATUS(HR_OK, hr_stream_copy(device, copy, at, sizeof copy, HR_COPY_TO_HOST, lms->in_stream)); /* keeps the stream busy */
		hr_backend_fail_nth(nth, true, HR_DEVICE_ERROR);
		hr_status status = ask(384 * KIB, 0, &block);
		more = hr_backend_calls() >= nth;
		hr_backend_fail_nth(0, false, HR_OK);
		CHECK(status == HR_OK || status == HR_DEVICE_ERROR);
		drop_tensor(0); /* the tensor that was to be moved */
		if (status) {   /* its target is not freed together with it, or the device would wait for both */
			hr_request request = HR_REQUEST(128 * KIB);
			CHECK_STATUS(HR_OK, hr_stream_create(device, &request.stream));
			for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
		}
		CHECK_STATUS(HR_OK, hr_allocator_trim(allocator, NULL));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(device, lms->in_stream)); /* reports an error if the memory was unmapped */
		tear_down();
	}
}

/* The device failed while the tensor was moved through the host, and the tensor could not be put back: until the device works again
 * its address is refused, and after that it has its contents, whichever call is made first. */
static void test_the_address_of_a_displaced_tensor_is_refused(void)
{
	enum { ASKED, PINNED, EVICTED, OVERWRITTEN, WAYS };
	uint64_t displaced[WAYS] = { 0 };
	bool more = true;
	for (uint64_t nth = 1; more; nth++) {
		for (int verify = 0; verify < 2; verify++) {
			for (int way = ASKED; way < WAYS; way++) {
				hr_lms_options options = lms_options(true);
				char name[32];
				void *block = NULL, *at;
				options.verify = verify;
				uint64_t size = fault_state(PACKS, &options);
				hr_tensor tensor = here.tensors[0].handle;
				snprintf(name, sizeof name, "tensor %u ", (unsigned)tensor.id);
				CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
				if (way == OVERWRITTEN) CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_WRITE, HR_STREAM_DEFAULT));
				hr_backend_fail_nth(nth, true, HR_DEVICE_ERROR);
				hr_status status = ask(size, 0, &block);
				more = hr_backend_calls() >= nth;
				hr_status pinned = hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT);
				if (pinned) {
					CHECK_STATUS(HR_DEVICE_ERROR, pinned);
					CHECK_CONTAINS(hr_last_message(), name);
					CHECK_STATUS(HR_DEVICE_ERROR, hr_tensor_get_address(tensor, &at));
					CHECK_CONTAINS(hr_last_message(), name);
					CHECK_CONTAINS(hr_last_message(), "on the host");
					CHECK(status);
					displaced[way]++;
				}
				hr_backend_fail_nth(0, false, HR_OK);
				if (!pinned) CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
				CHECK_STATUS(HR_OK, hr_lms_check(allocator));
				if (way == PINNED) {
					CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
					CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
				} else if (way == EVICTED) {
					CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
					CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
					CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
				}
				CHECK_STATUS(HR_OK, hr_lms_check(allocator));
				check_contents();
				if (way == OVERWRITTEN) { /* the host copy it came from does not count as the new contents */
					hr__lms *lms;
					CHECK_STATUS(HR_OK, hr__lms_of(allocator, &lms));
					/* A failed copy may still be reading the old contents; sanitizers would report a race. */
					CHECK_STATUS(HR_OK, hr_stream_synchronize(device, lms->out_stream));
					here.tensors[0].value ^= 0xFF;
					CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
					CHECK_STATUS(HR_OK, hr_stream_fill(device, at, here.tensors[0].value, here.tensors[0].bytes, HR_STREAM_DEFAULT));
					for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
					CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
					CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
					check_contents();
				}
				tear_down();
			}
		}
	}
	for (int way = ASKED; way < WAYS; way++) CHECK_GT(displaced[way], 0);
}

static void test_any_call_of_the_system_may_fail(void)
{
	for (uint64_t nth = 1; nth < 100; nth++) {
		hr_lms_options options = lms_options(true);
		void *block;
		here.random = 5;
		hr_fault_os_install();
		comb(&options);
		hr_fault_os_fail_nth(nth, false, ENOMEM);
		hr_status status = ask(512 * KIB, 0, &block);
		uint64_t calls = hr_fault_os_calls();
		hr_fault_os_fail_nth(0, false, 0);
		CHECK(status == HR_OK || status == HR_OUT_OF_MEMORY || status == HR_NO_HOST_MEMORY);
		check_contents();
		tear_down();
		CHECK(hr_fault_os_is_clean());
		hr_fault_os_uninstall();
		if (calls < nth) {
			CHECK_STATUS(HR_OK, status);
			return;
		}
	}
	CHECK(false);
}

/* ---- threads ---- */

#define WORKERS 3u
#define OWN 6u

static struct {
	atomic_bool end;
	atomic_ulong rounds;
} run;

/* Pins tensors of its own, mostly without taking the address, and checks them if it took it. */
static void *work(void *argument)
{
	uint64_t random = 77 + (uintptr_t)argument, size[OWN];
	hr_tensor own[OWN] = { { 0 } };
	unsigned char value[OWN];
	hr_stream stream;
	unsigned char *copy = malloc(128 * KIB);
	CHECK_STATUS(HR_OK, hr_stream_create(device, &stream));
	while (!atomic_load(&run.end)) {
		uint32_t i = (uint32_t)hr_rand_below(&random, OWN);
		void *at;
		if (!own[i].id) {
			hr_tensor_options options;
			hr_tensor_options_init(&options);
			options.bytes = size[i] = (1 + hr_rand_below(&random, 96)) * KIB;
			options.never_evict = true;
			CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &own[i]));
			hr_status status = hr_tensor_pin(own[i], HR_OVERWRITE, stream);
			if (status) {
				CHECK_STATUS(HR_OUT_OF_MEMORY, status);
				CHECK_STATUS(HR_OK, hr_tensor_destroy(own[i]));
				own[i].id = 0;
				continue;
			}
			value[i] = (unsigned char)hr_rand_below(&random, 256);
			CHECK_STATUS(HR_OK, hr_tensor_get_address(own[i], &at));
			CHECK_STATUS(HR_OK, hr_stream_fill(device, at, value[i], size[i], stream));
			CHECK_STATUS(HR_OK, hr_tensor_unpin(own[i], stream));
			continue;
		}
		CHECK_STATUS(HR_OK, hr_tensor_pin(own[i], HR_READ, stream));
		if (hr_rand_below(&random, 2)) {
			CHECK_STATUS(HR_OK, hr_tensor_get_address(own[i], &at));
			CHECK_STATUS(HR_OK, hr_stream_copy(device, copy, at, size[i], HR_COPY_TO_HOST, stream));
			CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
			for (uint64_t b = 0; b < size[i]; b += 61)
				if (copy[b] != value[i]) CHECK_EQ(copy[b], value[i]);
		}
		hr_tensor_info info = { .struct_size = sizeof info };
		if (!hr_rand_below(&random, 8)) CHECK_STATUS(HR_OK, hr_tensor_get_info(own[i], &info));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(own[i], stream));
		if (!hr_rand_below(&random, 4)) {
			CHECK_STATUS(HR_OK, hr_tensor_destroy(own[i]));
			own[i].id = 0;
		}
		atomic_fetch_add(&run.rounds, 1);
	}
	for (uint32_t i = 0; i < OWN; i++)
		if (own[i].id) CHECK_STATUS(HR_OK, hr_tensor_destroy(own[i]));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
	free(copy);
	return NULL;
}

static void test_threads_pin_while_tensors_move(void)
{
	hr_lms_options options = lms_options(true);
	pthread_t threads[WORKERS];
	uint64_t asked = 0, most = hr_test_scaled(HR_TEST_SANITIZED ? 1500 : 30000);
	here.random = hr_test_seed();
	set_up(MIB, 64 * KIB, false, &options);
	for (uint32_t i = 0; i < WORKERS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i), 0);
	/* The bound counts the workers' rounds, not the requests: on a busy machine the workers may start late. */
	for (; asked < most || (lms_stats_of().num_defragmentations < 20 && atomic_load(&run.rounds) < 50 * most); asked++) {
		void *block;
		hr_status status = ask((64 + below(256)) * KIB, 0, &block);
		if (!status) CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
		else CHECK_STATUS(HR_OUT_OF_MEMORY, status);
	}
	atomic_store(&run.end, true);
	for (uint32_t i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
	printf("# %lu rounds, %lld times moved\n", atomic_load(&run.rounds), (long long)lms_stats_of().num_defragmentations);
	CHECK_GE(lms_stats_of().num_defragmentations, 1);
	tear_down();
}

TEST_MAIN(T(test_it_is_off_by_default), T(test_tensors_that_are_never_evicted_can_be_moved), T(test_defragmentation_works_with_eviction_off),
          T(test_eviction_comes_before_defragmentation), T(test_a_pin_makes_pinned_tensors_move), T(test_a_move_keeps_the_host_copy_valid),
          T(test_the_verdict_names_what_is_moved_and_advises_defragmentation),
          T(test_the_verdict_prefers_defragmentation_that_is_on_to_eviction_that_is_off), T(test_a_budget_spreads_the_work_over_attempts),
          T_WITHIN(test_fragmented_memory_fits_with_defragmentation_and_not_without, 120),
          T_WITHIN(test_the_fewest_bytes_are_moved_and_no_address_that_is_held, 120),
          T_WITHIN(test_pages_are_emptied_where_they_can_be_put_side_by_side, 120),
          T_WITHIN(test_any_call_of_the_device_may_fail_once, 120), T_WITHIN(test_any_call_of_the_device_may_fail_permanently, 120),
          T(test_a_failed_move_keeps_its_memory_until_the_copy_has_read_it),
          T_WITHIN(test_the_address_of_a_displaced_tensor_is_refused, 120), T(test_any_call_of_the_system_may_fail),
          T_WITHIN(test_threads_pin_while_tensors_move, 120))
