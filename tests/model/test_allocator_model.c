/* test_allocator_model.c - random use of allocators through the public API, compared with a reference that knows every allocation.
 *
 * With one thread everything is exact: bytes in use, bytes requested, peaks, counts, scopes, and the peak of a device that two
 * allocators share. A request may be refused only if it cannot be met: after a refusal, a walk over all chunks shows that no free
 * chunk is large enough, and that whole free pages and the rest of the limit together are too small as well. */
#include <stdlib.h>

#include "fixture.h"
#include "fault_os.h"
#include "support_stats.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define LIVE_MAX 600u
#define ALLOCATORS 2u
#define SCOPES 4u
#define STREAMS 4u

/* Parameters of a run. */
typedef struct setting {
	const char *label;
	uint64_t memory, page;
	uint64_t limit; /* of each allocator; 0 = the device's */
	uint32_t granularity;
	bool growth, cache, stitch;
	uint32_t allocators;
	uint64_t largest;   /* of a request */
	uint64_t alignment; /* largest in a request */
	uint32_t live;      /* number of blocks to keep, roughly */
	bool direct;        /* allocates from the device each time */
} setting;

typedef struct block {
	uint64_t address, requested, size, alignment;
	uint64_t streams;
	hr_name op;
	uint64_t pattern; /* of its contents, if the device has memory */
} block;

typedef struct book {
	hr_allocator handle;
	uint64_t limit;
	block live[LIVE_MAX];
	uint32_t count;
	int64_t in_use, requested, peak, largest;
	int64_t allocs, failed, frees, live_at_reset;
} book;

typedef struct scope {
	int64_t net, peak, allocs, frees;
} scope;

typedef struct model {
	const setting *setting;
	bool real; /* the device has memory behind its addresses */
	uint64_t seed;
	const char *name;
	hr_device device;
	hr_stream streams[STREAMS];
	book books[ALLOCATORS];
	int64_t in_use, peak; /* of the device */
	scope scopes[SCOPES];
	uint32_t scope_count;
	uint64_t met, refused;
} model;

static uint64_t below(model *m, uint64_t bound)
{
	return hr_rand_below(&m->seed, bound);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) & ~(unit - 1);
}

/* ---- the reference ---- */

static void account(model *m, book *b, int64_t bytes)
{
	b->in_use += bytes;
	m->in_use += bytes;
	if (b->in_use > b->peak) b->peak = b->in_use;
	if (m->in_use > m->peak) m->peak = m->in_use;
	for (uint32_t i = 0; i < m->scope_count; i++) {
		m->scopes[i].net += bytes;
		if (m->scopes[i].net > m->scopes[i].peak) m->scopes[i].peak = m->scopes[i].net;
		if (bytes > 0) m->scopes[i].allocs++;
		else m->scopes[i].frees++;
	}
}

static void get_stats(const book *b, hr_stats *stats)
{
	hr_stats_init(stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(b->handle, stats));
	check_identities(stats);
}

static void compare(const model *m, const book *b)
{
	hr_stats stats;
	get_stats(b, &stats);
	CHECK_EQ(stats.bytes_in_use, b->in_use);
	CHECK_EQ(stats.bytes_requested, b->requested);
	CHECK_EQ(stats.peak_bytes_in_use, b->peak);
	CHECK_EQ(stats.peak_error_bytes, 0);
	CHECK_EQ(stats.largest_alloc_size, b->largest);
	CHECK_EQ(stats.num_allocs, b->allocs);
	CHECK_EQ(stats.num_failed_allocs, b->failed);
	CHECK_EQ(stats.num_frees, b->frees);
	CHECK_EQ(stats.num_live, b->count);
	CHECK_EQ(stats.num_live_at_reset, b->live_at_reset);
	CHECK_EQ(stats.bytes_reservable_limit, b->limit);
	CHECK_LE(stats.peak_bytes_reserved, b->limit);

	hr_memory_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_get_memory_info(m->name, &info));
	CHECK_EQ(info.current, m->in_use);
	CHECK_EQ(info.peak, m->peak);
}

typedef struct seen {
	const book *book;
	uint64_t found;
} seen;

/* A chunk in use must be a block of the reference, with everything the request said about it. */
static void match(void *context, const hr_chunk_view *chunk)
{
	seen *s = context;
	uint32_t i = 0;
	while (i < s->book->count && s->book->live[i].address != (uint64_t)(uintptr_t)chunk->address) i++;
	CHECK_LT(i, s->book->count);
	CHECK_EQ(chunk->bytes, s->book->live[i].size);
	CHECK_EQ(chunk->requested, s->book->live[i].requested);
	CHECK_EQ(chunk->op, s->book->live[i].op);
	s->found++;
}

static void compare_all(const model *m)
{
	hr_stats stats, sum;
	int64_t reserved = 0;
	for (uint32_t i = 0; i < m->setting->allocators; i++) {
		if (m->setting->direct) {
			get_stats(&m->books[i], &stats);
			CHECK_EQ(stats.bytes_reserved, stats.bytes_in_use);
			CHECK_STATUS(HR_OK, hr_allocator_check(m->books[i].handle));
			reserved += stats.bytes_reserved;
			continue;
		}
		seen s = { &m->books[i], 0 };
		chunk_census census = { .page = m->setting->page, .each = match, .context = &s };
		get_stats(&m->books[i], &stats);
		census_take(m->books[i].handle, &stats, &census);
		CHECK_EQ(s.found, m->books[i].count);
		CHECK_STATUS(HR_OK, hr_allocator_check(m->books[i].handle));
		reserved += stats.bytes_reserved;
	}
	hr_stats_init(&sum);
	CHECK_STATUS(HR_OK, hr_device_get_stats(m->device, &sum));
	check_identities(&sum);
	CHECK_EQ(sum.bytes_in_use, m->in_use);
	CHECK_EQ(sum.peak_bytes_in_use, m->peak);
	CHECK_EQ(sum.bytes_reserved, reserved);
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_device_get_info(m->device, &info));
	CHECK_EQ(info.reserved_bytes, reserved);
	CHECK_LE(info.reserved_bytes, info.limit_bytes);
}

/* ---- contents ---- */

/* Writes a word at every 64th byte and at the end: enough to detect any two blocks that share memory. */
static void paint(const block *b)
{
	for (uint64_t at = 0; at < b->requested; at += 64) {
		uint64_t word = b->pattern + at, length = b->requested - at < 8 ? b->requested - at : 8;
		memcpy((char *)(uintptr_t)b->address + at, &word, length);
	}
	((unsigned char *)(uintptr_t)b->address)[b->requested - 1] = (unsigned char)b->pattern;
}

static void verify(const block *b)
{
	uint64_t wrong = 0;
	for (uint64_t at = 0; at + 65 < b->requested; at += 64) {
		uint64_t word = b->pattern + at;
		wrong += memcmp((char *)(uintptr_t)b->address + at, &word, 8) != 0;
	}
	CHECK_EQ(wrong, 0);
	CHECK_EQ(((unsigned char *)(uintptr_t)b->address)[b->requested - 1], (unsigned char)b->pattern);
}

/* ---- operations ---- */

static uint64_t random_bytes(model *m)
{
	uint64_t bits = 64 - (uint64_t)__builtin_clzll(m->setting->largest);
	uint64_t bytes = below(m, UINT64_C(1) << below(m, bits + 1)) + 1;
	if (below(m, 6) == 0) bytes = (UINT64_C(1) << below(m, bits)) + below(m, 3) - 1; /* on both sides of every power of two */
	if (below(m, 12) == 0 && m->setting->page) bytes = m->setting->page * (below(m, 4) + 1) - below(m, 2);
	return bytes < 1 ? 1 : bytes > m->setting->largest ? m->setting->largest : bytes;
}

/* Checks that a refused request could not have been met. */
static void check_refusal(model *m, book *b, uint64_t size, uint64_t alignment)
{
	hr_stats stats;
	hr_device_info info = { .struct_size = sizeof info };
	uint64_t page = m->setting->page;
	chunk_census census = { .page = page, .size = size, .alignment = alignment };
	get_stats(b, &stats);
	CHECK_STATUS(HR_OK, hr_device_get_info(m->device, &info));
	uint64_t own = b->limit - (uint64_t)stats.bytes_reserved, device = info.limit_bytes - info.reserved_bytes;
	uint64_t allowance = own < device ? own : device;
	if (m->setting->direct) {
		CHECK_LT(allowance, size);
		return;
	}
	census_take(b->handle, &stats, &census);
	CHECK(!census.fits);
	CHECK_EQ(census.cached, 0); /* caches are emptied before a request fails */
	if (page) {
		uint64_t pages = allowance / page + (m->setting->stitch ? census.whole_free_pages : 0);
		CHECK_LT(pages, (size + page - 1) / page);
	} else {
		CHECK_LT(allowance, size + (alignment > m->setting->granularity ? alignment : 0)); /* alignment is not guaranteed */
	}
}

static void allocate(model *m, book *b)
{
	hr_request request = HR_REQUEST(random_bytes(m));
	void *address = NULL;
	uint64_t most = (uint64_t)__builtin_ctzll(m->setting->alignment);
	if (b->count == LIVE_MAX) return;
	if (below(m, 4) == 0) request.alignment = (size_t)1 << below(m, most + 1);
	request.stream = m->streams[below(m, below(m, 4) ? 1 : STREAMS)];
	request.op = hr_name_intern(below(m, 2) ? "matmul" : "conv");
	uint64_t size = round_up(request.bytes, m->setting->granularity);
	hr_status status = hr_alloc(b->handle, &request, &address);
	b->allocs++;
	if (status != HR_OK) {
		CHECK_STATUS(HR_OUT_OF_MEMORY, status);
		CHECK_EQ(address, NULL);
		b->failed++;
		m->refused++;
		check_refusal(m, b, size, request.alignment);
		return;
	}
	m->met++;
	block made = { (uint64_t)(uintptr_t)address,
		           request.bytes,
		           size,
		           request.alignment,
		           UINT64_C(1) << request.stream,
		           request.op,
		           hr_rand(&m->seed) };
	uint64_t alignment = request.alignment > m->setting->granularity ? request.alignment : m->setting->granularity;
	CHECK_EQ(made.address % alignment, 0);
	for (uint32_t i = 0; i < ALLOCATORS; i++)
		for (uint32_t k = 0; k < m->books[i].count; k++) {
			const block *other = &m->books[i].live[k];
			if (made.address < other->address + other->size && other->address < made.address + made.size)
				hr_test_fail(__FILE__, __LINE__, "two live blocks overlap");
		}
	b->live[b->count++] = made;
	b->requested += (int64_t)made.requested;
	if ((int64_t)size > b->largest) b->largest = (int64_t)size;
	account(m, b, (int64_t)size);
	if (m->real) paint(&made);
}

static void free_one(model *m, book *b)
{
	if (!b->count) return;
	uint32_t i = (uint32_t)below(m, b->count);
	block gone = b->live[i];
	if (m->real) verify(&gone);
	hr_allocation_info info = { .struct_size = sizeof info };
	if (below(m, 4) == 0) {
		CHECK_STATUS(HR_OK, hr_allocation_get_info(b->handle, (void *)(uintptr_t)gone.address, &info));
		CHECK_EQ(info.bytes, gone.size);
		CHECK_EQ(info.requested, gone.requested);
		CHECK_EQ(info.op, gone.op);
		CHECK_EQ(info.streams, gone.streams);
	}
	b->live[i] = b->live[--b->count];
	CHECK_STATUS(HR_OK, hr_free(b->handle, (void *)(uintptr_t)gone.address, m->streams[below(m, below(m, 4) ? 1 : STREAMS)]));
	b->frees++;
	b->requested -= (int64_t)gone.requested;
	account(m, b, -(int64_t)gone.size);
	if (below(m, 8)) return;
	CHECK_STATUS(HR_NOT_ALLOCATED, hr_free(b->handle, (void *)(uintptr_t)gone.address, 0));
	CHECK_STATUS(HR_NOT_ALLOCATED, hr_allocation_get_info(b->handle, (void *)(uintptr_t)gone.address, &info));
	if (gone.size > m->setting->granularity)
		CHECK_STATUS(HR_NOT_ALLOCATED, hr_free(b->handle, (void *)(uintptr_t)(gone.address + m->setting->granularity / 2), 0));
}

static void ask_badly(model *m, book *b)
{
	hr_request request = HR_REQUEST(below(m, 2) ? 0 : SIZE_MAX - below(m, 300));
	void *untouched = &request, *out = untouched;
	if (below(m, 4) == 0) request = (hr_request){ .struct_size = sizeof request, .bytes = 8, .alignment = 3 };
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_alloc(b->handle, &request, &out));
	CHECK_EQ(out, untouched);
	b->allocs++;
	b->failed++;
}

static void record_stream(model *m, book *b)
{
	if (!b->count) return;
	block *some = &b->live[below(m, b->count)];
	hr_stream stream = m->streams[below(m, STREAMS)];
	CHECK_STATUS(HR_OK, hr_allocation_record_stream(b->handle, (void *)(uintptr_t)some->address, stream));
	some->streams |= UINT64_C(1) << stream;
}

static void trim(model *m, book *b)
{
	hr_stats before, after;
	uint64_t released = UINT64_MAX;
	if (m->setting->direct) return;
	get_stats(b, &before);
	CHECK_STATUS(HR_OK, hr_allocator_trim(b->handle, &released));
	get_stats(b, &after);
	CHECK_EQ(before.bytes_reserved - after.bytes_reserved, released);
	CHECK_EQ(after.bytes_cached, 0);
	CHECK_EQ(after.num_trims, before.num_trims + 1);
	chunk_census census = { .page = m->setting->page };
	census_take(b->handle, &after, &census);
	CHECK_EQ(census.whole_free_pages, 0);
	if (!b->count) CHECK_EQ(after.bytes_reserved, 0);
}

static void reset(model *m)
{
	CHECK_STATUS(HR_OK, hr_reset_memory_stats(m->name));
	m->peak = m->in_use;
	for (uint32_t i = 0; i < m->setting->allocators; i++) {
		book *b = &m->books[i];
		b->peak = b->in_use;
		b->largest = b->allocs = b->failed = b->frees = 0;
		b->live_at_reset = b->count;
		hr_stats stats;
		get_stats(b, &stats);
		CHECK_EQ(stats.peak_bytes_reserved, stats.bytes_reserved);
		CHECK_EQ(stats.num_trims + stats.num_stitches + stats.bytes_stitched + stats.num_stream_waits, 0);
	}
}

static void begin_or_end_scope(model *m)
{
	if (m->scope_count < SCOPES && below(m, 2)) {
		CHECK_STATUS(HR_OK, hr_stats_scope_begin(m->device));
		m->scopes[m->scope_count++] = (scope){ 0 };
	} else if (m->scope_count > 0) {
		hr_stats_scope ended = { .struct_size = sizeof ended };
		const scope *expected = &m->scopes[--m->scope_count];
		CHECK_STATUS(HR_OK, hr_stats_scope_end(m->device, &ended));
		CHECK_EQ(ended.peak_bytes, expected->peak);
		CHECK_EQ(ended.net_bytes, expected->net);
		CHECK_EQ(ended.num_allocs, expected->allocs);
		CHECK_EQ(ended.num_frees, expected->frees);
	}
}

static void open_book(model *m, book *b)
{
	hr_allocator_options options;
	hr_stats stats;
	memset(b, 0, sizeof *b);
	hr_allocator_options_init(&options);
	if (m->setting->direct) options.kind = "direct";
	options.limit_bytes = m->setting->limit;
	options.granularity = m->setting->granularity;
	options.allow_growth = m->setting->growth;
	options.thread_cache = m->setting->cache;
	options.stitch = m->setting->stitch;
	CHECK_STATUS(HR_OK, hr_allocator_create(m->device, &options, &b->handle));
	get_stats(b, &stats);
	b->limit = (uint64_t)stats.bytes_reservable_limit;
	if (m->setting->limit) CHECK_EQ(b->limit, m->setting->limit - (m->setting->page ? m->setting->limit % m->setting->page : 0));
	CHECK_EQ(stats.bytes_reserved, m->setting->growth || m->setting->direct ? 0 : stats.bytes_reservable_limit);
}

/* Closes the second of two allocators and opens another in its place. The peak of the device is kept. */
static void replace_second(model *m)
{
	book *b = &m->books[1];
	if (m->setting->allocators < 2) return;
	CHECK_STATUS(b->count ? HR_IN_USE : HR_OK, hr_allocator_destroy(b->handle));
	if (b->count) CHECK_STATUS(HR_OK, hr_allocator_destroy_all(b->handle));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_check(b->handle));
	m->in_use -= b->in_use;
	open_book(m, b);
}

static void step(model *m, uint64_t number)
{
	book *b = &m->books[below(m, m->setting->allocators)];
	uint64_t choice = below(m, 1000), swing = (number / (m->setting->live * 6)) % 2 ? m->setting->live : m->setting->live / 4 + 1;
	if (choice < 10) record_stream(m, b);
	else if (choice < 14) trim(m, b);
	else if (choice < 16) reset(m);
	else if (choice < 26) begin_or_end_scope(m);
	else if (choice < 32) ask_badly(m, b);
	else if (choice < 33) replace_second(m);
	else if (below(m, swing * 2) >= b->count) allocate(m, b);
	else free_one(m, b);
	compare(m, b);
	if (number % 64 == 0) compare_all(m);
}

static void run(const setting *s, const char *name, bool real, uint64_t steps, uint64_t salt)
{
	static model m;
	memset(&m, 0, sizeof m);
	m.setting = s;
	m.real = real;
	m.name = name;
	m.seed = hr_test_seed() * 1000 + salt;
	hr_fault_os_install();
	if (real) fixture_configure_emulated(s->memory, s->page, 0);
	else fixture_configure_simulated(s->memory, s->page);
	CHECK_STATUS(HR_OK, hr_device_find(name, &m.device));
	for (uint32_t i = 1; i < STREAMS; i++) CHECK_STATUS(HR_OK, hr_stream_create(m.device, &m.streams[i]));
	for (uint32_t i = 0; i < s->allocators; i++) open_book(&m, &m.books[i]);
	for (uint64_t number = 0; number < steps; number++) step(&m, number);
	printf("# %s: %llu met, %llu refused\n", s->label, (unsigned long long)m.met, (unsigned long long)m.refused);
	CHECK_GT(m.met, steps / 20);
	CHECK_GT(m.refused, 0);
	while (m.scope_count) CHECK_STATUS(HR_OK, (m.scope_count--, hr_stats_scope_end(m.device, NULL)));
	for (uint32_t i = 0; i < s->allocators; i++) {
		book *b = &m.books[i];
		if (i == 1) break; /* the second is closed with its blocks */
		while (b->count) free_one(&m, b);
		compare_all(&m);
		CHECK_STATUS(HR_OK, hr_allocator_destroy(b->handle));
		CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_destroy(b->handle));
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

static const setting simulated_settings[] = {
	/* memory, page, limit, granularity, growth, cache, stitch, allocators, largest, alignment, live, direct */
	{ "as by default", 1024 * MIB, 2 * MIB, 0, 256, true, true, true, 1, 64 * MIB, 4096, 200, false },
	{ "one page", 1 * MIB, 64 * KIB, 64 * KIB, 256, true, true, true, 1, 20 * KIB, 4096, 20, false },
	{ "two pages of 4 KiB", 1 * MIB, 4 * KIB, 8 * KIB, 16, true, true, true, 1, 5 * KIB, 256, 20, false },
	{ "three pages", 1 * MIB, 4 * KIB, 13 * KIB, 64, true, true, true, 1, 12 * KIB, 4096, 8, false },
	{ "stitching", 8 * MIB, 64 * KIB, 0, 256, true, false, true, 1, 1 * MIB, 64 * KIB, 70, false },
	{ "stitching with caches", 8 * MIB, 64 * KIB, 5 * MIB, 256, true, true, true, 1, 1 * MIB, 64 * KIB, 80, false },
	{ "no stitching", 8 * MIB, 64 * KIB, 0, 256, true, true, false, 1, 1 * MIB, 4096, 80, false },
	{ "alignments above a page", 16 * MIB, 64 * KIB, 6 * MIB, 256, true, true, true, 1, 1 * MIB, 1 * MIB, 80, false },
	{ "no growth", 16 * MIB, 64 * KIB, 4 * MIB, 256, false, true, true, 1, 512 * KIB, 4096, 80, false },
	{ "no growth, nothing else either", 16 * MIB, 64 * KIB, 3 * MIB, 4096, false, false, false, 1, 512 * KIB, 4096, 60, false },
	{ "without pages", 8 * MIB, 0, 0, 256, true, true, true, 1, 1 * MIB, 4096, 100, false },
	{ "without pages and caches", 16 * MIB, 0, 3 * MIB, 16, true, false, true, 1, 1 * MIB, 4096, 40, false },
	{ "without pages, no growth", 8 * MIB, 0, 0, 512, false, true, true, 1, 1 * MIB, 4096, 100, false },
	{ "granularity 4096", 20 * MIB, 4 * KIB, 0, 4096, true, true, true, 1, 4 * MIB, 64 * KIB, 100, false },
	{ "pages of 256 bytes", 64 * KIB, 256, 0, 256, true, true, true, 1, 8 * KIB, 1024, 40, false },
	{ "two on one device", 10 * MIB, 64 * KIB, 0, 256, true, true, true, 2, 1 * MIB, 4096, 80, false },
	{ "two with limits", 12 * MIB, 64 * KIB, 7 * MIB, 256, true, true, true, 2, 1 * MIB, 4096, 60, false },
	{ "two without pages", 10 * MIB, 0, 0, 256, true, true, true, 2, 1 * MIB, 4096, 80, false },
	{ "direct", 8 * MIB, 64 * KIB, 0, 256, true, true, true, 1, 1 * MIB, 256, 80, true },
	{ "direct beside direct", 8 * MIB, 0, 5 * MIB, 16, true, true, true, 2, 1 * MIB, 512, 60, true },
};
#define SIMULATED (sizeof simulated_settings / sizeof *simulated_settings)

static void test_allocators_do_what_the_model_says(void)
{
	for (uint64_t i = 0; i < SIMULATED; i++) run(&simulated_settings[i], "SIM:0", false, hr_test_scaled(4000000) / SIMULATED, i);
}

static const setting emulated_settings[] = {
	{ "emulated", 4 * MIB, 64 * KIB, 0, 256, true, true, true, 1, 512 * KIB, 64 * KIB, 70, false },
	{ "emulated, three pages", 8 * MIB, 64 * KIB, 192 * KIB, 256, true, true, true, 1, 150 * KIB, 4096, 12, false },
	{ "emulated, two allocators", 4 * MIB, 64 * KIB, 0, 256, true, true, true, 2, 512 * KIB, 64 * KIB, 40, false },
};
#define EMULATED (sizeof emulated_settings / sizeof *emulated_settings)

static void test_blocks_keep_their_contents(void)
{
	for (uint64_t i = 0; i < EMULATED; i++) run(&emulated_settings[i], "GPU:0", true, hr_test_scaled(200000) / EMULATED, 100 + i);
}

TEST_MAIN(T_WITHIN(test_allocators_do_what_the_model_says, 300), T_WITHIN(test_blocks_keep_their_contents, 300))
