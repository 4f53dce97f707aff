/* support_stats.h - checks the guarantees that headroom.h gives for every snapshot, and compares a snapshot with a walk over all
 * chunks.
 *
 * A file that includes this header may define SUPPORT_EQ(a, b) and SUPPORT_LE(a, b), which compare numbers and do not return if the
 * comparison fails. */
#ifndef HR_TESTS_SUPPORT_STATS_H
#define HR_TESTS_SUPPORT_STATS_H

#include "headroom.h"

#ifndef SUPPORT_EQ
#include "test.h"
#define SUPPORT_EQ(a, b) CHECK_EQ(a, b)
#endif
#ifndef SUPPORT_LE
#define SUPPORT_LE(a, b) CHECK_LE(a, b)
#endif

#define SUPPORT_STATS_UNUSED __attribute__((unused))

/* Checks the identities at the top of the statistics in headroom.h, and that no field is negative. */
SUPPORT_STATS_UNUSED static void check_identities(const hr_stats *stats)
{
#define NOT_NEGATIVE(name, text) SUPPORT_LE(0, stats->name);
	HR_STATS_TABLE(NOT_NEGATIVE)
#undef NOT_NEGATIVE
	SUPPORT_EQ(stats->bytes_active + stats->bytes_inactive, stats->bytes_in_use);
	SUPPORT_EQ(stats->bytes_in_use + stats->bytes_cached + stats->bytes_free, stats->bytes_reserved);
	SUPPORT_LE(stats->bytes_requested, stats->bytes_in_use);
	SUPPORT_LE(stats->bytes_reserved, stats->bytes_reservable_limit);
	SUPPORT_LE(stats->bytes_in_use, stats->peak_bytes_in_use);
	SUPPORT_LE(stats->bytes_active, stats->peak_bytes_active);
	SUPPORT_LE(stats->bytes_reserved, stats->peak_bytes_reserved);
	SUPPORT_LE(stats->largest_free_block, stats->bytes_free);
	SUPPORT_EQ(stats->num_live_at_reset + stats->num_allocs - stats->num_failed_allocs - stats->num_frees, stats->num_live);
	SUPPORT_EQ(stats->source_cache + stats->source_free_chunk + stats->source_grow + stats->source_trim + stats->source_stitch +
	               stats->source_single_reclaim + stats->source_multi_reclaim + stats->source_full_reclaim +
	               stats->source_defragment + stats->source_device,
	           stats->num_allocs - stats->num_failed_allocs);
	SUPPORT_EQ(stats->fragmentation >= 0 && stats->fragmentation <= 1, true);
	if (stats->bytes_free == 0) SUPPORT_EQ(stats->fragmentation == 0, true);
}

/* A snapshot of an allocator that meets them. */
SUPPORT_STATS_UNUSED static hr_stats checked_stats(hr_allocator allocator)
{
	hr_stats stats;
	hr_stats_init(&stats);
	SUPPORT_EQ(hr_allocator_get_stats(allocator, &stats), HR_OK);
	check_identities(&stats);
	return stats;
}

/* Result of a walk over every chunk of every region of an allocator. */
typedef struct chunk_census {
	int64_t in_use, requested, cached, free, unmapped; /* bytes */
	int64_t live, free_blocks, largest_free;
	uint64_t whole_free_pages;
	uint32_t regions;

	uint64_t page;            /* 0 = do not count pages */
	uint64_t size, alignment; /* a request */
	bool fits;                /* a free chunk has room for the request */
	uint64_t next;            /* address at which the next chunk must begin */
	hr_chunk_kind before;
	void (*each)(void *context, const hr_chunk_view *chunk); /* called for each chunk in use; may be NULL */
	void *context;
} chunk_census;

SUPPORT_STATS_UNUSED static bool census_chunk(void *context, const hr_chunk_view *chunk)
{
	chunk_census *census = context;
	uint64_t address = (uint64_t)(uintptr_t)chunk->address, end = address + chunk->bytes;
	if (census->next) SUPPORT_EQ(address, census->next);
	SUPPORT_EQ(chunk->bytes > 0, true);
	census->next = end;
	/* Adjacent free chunks are always merged, and so are unmapped ones. */
	if (chunk->kind == HR_CHUNK_FREE || chunk->kind == HR_CHUNK_UNMAPPED) SUPPORT_EQ(chunk->kind != census->before, true);
	census->before = chunk->kind;
	switch (chunk->kind) {
	case HR_CHUNK_IN_USE:
		census->in_use += (int64_t)chunk->bytes;
		census->requested += (int64_t)chunk->requested;
		census->live++;
		if (census->each) census->each(census->context, chunk);
		break;
	case HR_CHUNK_CACHED: census->cached += (int64_t)chunk->bytes; break;
	case HR_CHUNK_UNMAPPED: census->unmapped += (int64_t)chunk->bytes; break;
	case HR_CHUNK_FREE: {
		uint64_t aligned = census->alignment ? (address + census->alignment - 1) & ~(census->alignment - 1) : address;
		census->free += (int64_t)chunk->bytes;
		census->free_blocks++;
		if ((int64_t)chunk->bytes > census->largest_free) census->largest_free = (int64_t)chunk->bytes;
		if (census->size && aligned <= end && end - aligned >= census->size) census->fits = true;
		uint64_t first = census->page ? (address + census->page - 1) / census->page : 0,
				 last = census->page ? end / census->page : 0;
		if (last > first) census->whole_free_pages += last - first;
		break;
	}
	}
	return true;
}

/* Walks over all chunks and compares the result with the statistics, which must not change meanwhile. */
SUPPORT_STATS_UNUSED static void census_take(hr_allocator allocator, const hr_stats *stats, chunk_census *census)
{
	hr_region_info sum = { 0 };
	for (uint32_t i = 0; i < (uint32_t)stats->num_regions; i++) {
		hr_region_info region = { .struct_size = sizeof region };
		SUPPORT_EQ(hr_allocator_get_region(allocator, i, &region), HR_OK);
		census->next = (uint64_t)(uintptr_t)region.base;
		census->before = (hr_chunk_kind)0;
		int64_t in_use = census->in_use, cached = census->cached, free_bytes = census->free, live = census->live;
		SUPPORT_EQ(hr_allocator_visit(allocator, i, census_chunk, census), HR_OK);
		SUPPORT_EQ(census->next, (uint64_t)(uintptr_t)region.base + region.reserved_addresses);
		SUPPORT_EQ(region.bytes_in_use, census->in_use - in_use);
		SUPPORT_EQ(region.bytes_cached, census->cached - cached);
		SUPPORT_EQ(region.bytes_free, census->free - free_bytes);
		SUPPORT_EQ(region.num_live, census->live - live);
		SUPPORT_EQ(region.bytes_reserved, region.bytes_in_use + region.bytes_cached + region.bytes_free);
		SUPPORT_LE(region.bytes_reserved, region.reserved_addresses);
		sum.bytes_reserved += region.bytes_reserved;
		sum.num_free_blocks += region.num_free_blocks;
		census->regions++;
	}
	hr_region_info none = { .struct_size = sizeof none };
	SUPPORT_EQ(hr_allocator_get_region(allocator, (uint32_t)stats->num_regions, &none), HR_INVALID_ARGUMENT);
	SUPPORT_EQ(sum.bytes_reserved, stats->bytes_reserved);
	SUPPORT_EQ(census->in_use, stats->bytes_in_use);
	SUPPORT_EQ(census->requested, stats->bytes_requested);
	SUPPORT_EQ(census->cached, stats->bytes_cached);
	SUPPORT_EQ(census->free, stats->bytes_free);
	SUPPORT_EQ(census->live, stats->num_live);
	SUPPORT_EQ(census->free_blocks, stats->num_free_blocks);
	SUPPORT_EQ(sum.num_free_blocks, stats->num_free_blocks);
	SUPPORT_EQ(census->largest_free, stats->largest_free_block);
}

#endif
