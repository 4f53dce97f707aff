/* fuzz_allocator.c - sequences of public API calls on simulated devices, checked against a list of the blocks that must be
 * allocated.
 *
 * An input is two bytes that choose device and allocator, then four bytes per call:
 *
 *     operation | size class and fine size | alignment and stream | block index
 *
 * Indices are taken modulo the number of objects. After every call bytes in use, peak and counts are exact and the identities hold.
 * A request is refused only if no free chunk and no free pages could have met it. At the end all memory from the system has been
 * returned. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(condition) \
	((condition)        \
	     ? (void)0      \
	     : (fprintf(stderr, "%s:%d: %s does not hold (%s)\n", __FILE__, __LINE__, #condition, hr_last_message()), abort()))
#define SUPPORT_EQ(a, b) MUST((a) == (b))
#define SUPPORT_LE(a, b) MUST((int64_t)(a) <= (int64_t)(b))
#include "fault_os.h"
#include "support_stats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define KIB UINT64_C(1024)
#define MAX_CALLS 300u
#define BLOCKS 256u
#define STREAMS 3u

typedef struct block {
	uint64_t address, size, requested;
} block;

typedef struct state {
	hr_device device;
	hr_allocator allocator;
	hr_stream streams[STREAMS];
	uint64_t page, limit;
	uint32_t granularity;
	bool bfc, stitch;
	block blocks[BLOCKS];
	uint32_t count;
	int64_t in_use, requested, peak, allocs, failed, frees, live_at_reset;
	uint32_t scopes;
} state;

static void open_state(state *s, uint8_t device, uint8_t allocator)
{
	static const uint64_t pages[] = { 4 * KIB, 64 * KIB, 256, 0 };
	hr_simulated_options simulated;
	hr_allocator_options options;
	memset(s, 0, sizeof *s);
	s->page = pages[device & 3];
	hr_simulated_options_init(&simulated);
	simulated.page_bytes = s->page;
	simulated.memory_bytes = 1024 * KIB;
	MUST(hr_simulated_configure(&simulated) == HR_OK);
	MUST(hr_device_find("SIM:0", &s->device) == HR_OK);
	for (uint32_t i = 1; i < STREAMS; i++) MUST(hr_stream_create(s->device, &s->streams[i]) == HR_OK);
	hr_allocator_options_init(&options);
	if (allocator & 1) options.kind = "direct";
	options.granularity = 16u << ((device >> 2) & 3) * 2; /* 16 to 1024 */
	if (s->page && options.granularity > s->page) options.granularity = 256;
	if (!s->page && options.granularity > 256) options.granularity = 256;
	options.allow_growth = !(allocator & 2);
	options.thread_cache = !(allocator & 4);
	options.stitch = !(allocator & 8);
	options.limit_bytes = (device >> 4) ? (s->page ? s->page : 4096) * (device >> 4) : 0;
	if (options.limit_bytes > simulated.memory_bytes) options.limit_bytes = 0;
	MUST(hr_allocator_create(s->device, &options, &s->allocator) == HR_OK);
	s->bfc = !(allocator & 1);
	s->stitch = options.stitch;
	s->granularity = options.granularity;
	s->limit = options.limit_bytes ? options.limit_bytes : simulated.memory_bytes;
}

static void account(state *s, int64_t bytes)
{
	s->in_use += bytes;
	if (s->in_use > s->peak) s->peak = s->in_use;
}

static void look(const state *s, hr_stats *stats)
{
	hr_stats_init(stats);
	MUST(hr_allocator_get_stats(s->allocator, stats) == HR_OK);
	check_identities(stats);
	MUST(stats->bytes_in_use == s->in_use && stats->bytes_requested == s->requested && stats->peak_bytes_in_use == s->peak);
	MUST(stats->num_allocs == s->allocs && stats->num_failed_allocs == s->failed && stats->num_frees == s->frees);
	MUST(stats->num_live == s->count && stats->num_live_at_reset == s->live_at_reset && stats->peak_error_bytes == 0);
	MUST(stats->bytes_reservable_limit == (int64_t)s->limit);
}

/* After a refusal: checks that nothing could have met the request. */
static void check_refusal(const state *s, uint64_t size, uint64_t alignment)
{
	hr_stats stats;
	chunk_census census = { .page = s->page, .size = size, .alignment = alignment };
	look(s, &stats);
	uint64_t allowance = s->limit - (uint64_t)stats.bytes_reserved;
	if (!s->bfc) {
		MUST(allowance < size);
		return;
	}
	census_take(s->allocator, &stats, &census);
	MUST(!census.fits);
	/* A small address range may contain no multiple of a large alignment. */
	if (s->page && alignment <= s->page)
		MUST(allowance / s->page + (s->stitch ? census.whole_free_pages : 0) < (size + s->page - 1) / s->page);
	if (!s->page) MUST(allowance < size + (alignment > s->granularity ? alignment : 0));
}

static void allocate(state *s, const uint8_t *op)
{
	uint64_t base = UINT64_C(1) << (op[1] >> 5) * 3; /* up to 2 MiB, on both sides of every power of two */
	hr_request request = HR_REQUEST(base + base * (op[1] & 31) / 16 - (op[1] & 1));
	void *out = NULL;
	if (s->count == BLOCKS) return;
	if (op[2] & 0x80) request.alignment = (size_t)1 << ((op[2] >> 2) & 15);
	request.stream = s->streams[(op[2] & 3) % STREAMS];
	uint64_t size = (request.bytes + s->granularity - 1) & ~((uint64_t)s->granularity - 1);
	hr_status status = hr_alloc(s->allocator, &request, &out);
	s->allocs++;
	if (status != HR_OK) {
		s->failed++;
		if (request.bytes == 0) MUST(status == HR_INVALID_ARGUMENT);
		else if (status == HR_UNSUPPORTED) MUST(!s->bfc && request.alignment > 512);
		else {
			MUST(status == HR_OUT_OF_MEMORY);
			check_refusal(s, size, request.alignment);
		}
		return;
	}
	uint64_t address = (uint64_t)(uintptr_t)out;
	MUST(address % (request.alignment ? request.alignment : s->granularity) == 0);
	for (uint32_t i = 0; i < s->count; i++)
		MUST(address + size <= s->blocks[i].address || s->blocks[i].address + s->blocks[i].size <= address);
	s->blocks[s->count++] = (block){ address, size, request.bytes };
	s->requested += (int64_t)request.bytes;
	account(s, (int64_t)size);
}

static void release(state *s, const uint8_t *op)
{
	if (!s->count) return;
	uint32_t which = op[3] % s->count;
	block gone = s->blocks[which];
	s->blocks[which] = s->blocks[--s->count];
	MUST(hr_free(s->allocator, (void *)(uintptr_t)gone.address, s->streams[(op[2] & 3) % STREAMS]) == HR_OK);
	s->frees++;
	s->requested -= (int64_t)gone.requested;
	account(s, -(int64_t)gone.size);
	if (op[1] & 1) MUST(hr_free(s->allocator, (void *)(uintptr_t)gone.address, 0) == HR_NOT_ALLOCATED);
}

static void other(state *s, const uint8_t *op)
{
	hr_allocation_info info = { .struct_size = sizeof info };
	switch (op[1] % 8) {
	case 0: MUST(hr_allocator_trim(s->allocator, NULL) == HR_OK); break;
	case 1:
		MUST(hr_reset_memory_stats("SIM:0") == HR_OK);
		s->peak = s->in_use;
		s->allocs = s->failed = s->frees = 0;
		s->live_at_reset = s->count;
		break;
	case 2:
		if (s->scopes < 32 && hr_stats_scope_begin(s->device) == HR_OK) s->scopes++;
		break;
	case 3:
		MUST(hr_stats_scope_end(s->device, NULL) == (s->scopes ? HR_OK : HR_INVALID_ARGUMENT));
		if (s->scopes) s->scopes--;
		break;
	case 4:
		if (!s->count) break;
		MUST(hr_allocation_record_stream(s->allocator, (void *)(uintptr_t)s->blocks[op[3] % s->count].address, s->streams[op[2] % STREAMS]) ==
		     HR_OK);
		break;
	case 5:
		if (!s->count) break;
		MUST(hr_allocation_get_info(s->allocator, (void *)(uintptr_t)s->blocks[op[3] % s->count].address, &info) == HR_OK);
		MUST(info.requested == s->blocks[op[3] % s->count].requested && info.bytes == s->blocks[op[3] % s->count].size);
		break;
	case 6: /* an address inside a block, or in none */
		MUST(hr_free(s->allocator, (void *)(uintptr_t)(s->count ? s->blocks[op[3] % s->count].address + 8 : 8), 0) ==
		     HR_NOT_ALLOCATED);
		break;
	case 7: MUST(hr_allocator_check(s->allocator) == HR_OK); break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static state s;
	hr_stats stats;
	if (size < 2) return 0;
	hr_fault_os_install();
	open_state(&s, data[0], data[1]);
	for (size_t i = 0; i < (size - 2) / 4 && i < MAX_CALLS; i++) {
		const uint8_t *op = data + 2 + i * 4;
		switch (op[0] % 4) {
		case 0:
		case 1: allocate(&s, op); break;
		case 2: release(&s, op); break;
		case 3: other(&s, op); break;
		}
		look(&s, &stats);
	}
	MUST(hr_allocator_check(s.allocator) == HR_OK);
	look(&s, &stats);
	if (s.bfc) {
		chunk_census census = { .page = s.page };
		census_take(s.allocator, &stats, &census);
	}
	MUST(hr_allocator_destroy(s.allocator) == (s.count ? HR_IN_USE : HR_OK));
	MUST(hr_shutdown() == (s.count ? HR_LEAKED : HR_OK));
	MUST(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
	return 0;
}
