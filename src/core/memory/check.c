/* check.c - consistency check of an allocator's records and counters.
 *
 * Beyond the arenas' own invariants (1 to 11 in arena.c), with every shard's lock and meter_lock held and the caches stopped:
 *   20  every chunk in use or cached is in the lookup under its address, and the lookup holds nothing else
 *   21  every chunk in state CACHED is in exactly one cache, in the bin of its size, or in transit ([moving]); [kept] is the sum of
 *       the sizes of those in bins
 *   22  bytes in use are the sum over chunks in use, and requested bytes the sum of their requests
 *   23  the memory of regions and spans is what is counted as reserved, and mapped chunks cover exactly the mapped pages
 *   24  with several threads, several allocators on the device or tensors: no meter is above its level, the levels add up, and
 *       their sum is not above the peak that bounds it
 *   25  allocated blocks plus blocks of evicted tensors ([away]) are allocations met less frees
 *   26  a chunk in no region is a span in use: in shard 0, of whole pages; number and bytes of spans match the counters */
#include "core/base/status.h"
#include "core/memory/allocator.h"

struct tallies {
	uint64_t in_use, requested, cached, mapped, live, cached_count, spans, span_bytes;
};

static int check_chunks(const hr__shard *shard, struct tallies *tallies)
{
	uint64_t entries = 0;
	for (hr__chunk_id id = 1; id < shard->table.touched; id++) {
		const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
		enum hr__chunk_state state = hr__chunk_state_of(chunk);
		if (state == HR__CHUNK_UNUSED || state == HR__CHUNK_EDGE) continue;
		bool span = shard->allocator->kind == HR__KIND_BFC && chunk->region == HR__REGION_NONE;
		if (state != HR__CHUNK_HOLE && !span) tallies->mapped += chunk->size;
		if (span) {
			if (state != HR__CHUNK_IN_USE || shard->index || !chunk->pages || chunk->size % shard->allocator->page) return 26;
			tallies->spans++;
			tallies->span_bytes += chunk->size;
		}
		if (state != HR__CHUNK_IN_USE && state != HR__CHUNK_CACHED) continue;
		if (hr__lookup_find(&shard->lookup, shard->table.chunks, hr__chunk_address(chunk)) != id) return 20;
		entries++;
		if (state == HR__CHUNK_CACHED) {
			tallies->cached += chunk->size;
			tallies->cached_count++;
			continue;
		}
		if (chunk->requested > chunk->size) return 22;
		tallies->in_use += chunk->size;
		tallies->requested += chunk->requested;
		tallies->live++;
	}
	return entries == shard->lookup.count ? 0 : 20;
}

static int check_cache(const hr__cache *cache, uint64_t limit, uint64_t *count)
{
	uint64_t kept = 0;
	for (uint32_t bin = 0; bin < cache->bin_count; bin++) {
		for (hr__chunk_id id = cache->bins[bin]; id; id = cache->chunks[id].link) {
			const hr__chunk *chunk = &cache->chunks[id];
			if (hr__chunk_state_of(chunk) != HR__CHUNK_CACHED || chunk->size >> cache->shift != bin || ++*count > limit) return 21;
			kept += chunk->size;
		}
	}
	*count += (uint64_t)hr__load_relaxed(&cache->moving);
	return (int64_t)kept == hr__load_relaxed(&cache->kept) ? 0 : 21;
}

/* The chain of a region is valid; checks that it covers the whole region. */
static int check_end(const hr__shard *shard, const hr__region *region)
{
	hr__chunk_id id = region->edge;
	while (shard->table.chunks[id].next) id = shard->table.chunks[id].next;
	return hr__chunk_end(&shard->table.chunks[id]) == region->address + region->size ? 0 : 1;
}

static int check_pages(const hr__shard *shard, const hr__region *region)
{
	uint64_t mapped = 0, page = shard->allocator->page;
	for (hr__chunk_id id = shard->table.chunks[region->edge].next; id; id = shard->table.chunks[id].next) {
		const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
		bool hole = hr__chunk_state_of(chunk) == HR__CHUNK_HOLE;
		uint64_t first = (hr__chunk_address(chunk) - region->address) / page;
		uint64_t last = (hr__chunk_end(chunk) - 1 - region->address) / page;
		if (!hole) mapped += chunk->size;
		/* A hole may be wide, so only its ends are checked; the sum of mapped bytes covers the rest. */
		if ((region->pages[first] == 0) != hole || (region->pages[last] == 0) != hole) return 23;
	}
	return mapped == region->mapped ? 0 : 23;
}

/* Whether region [i] belongs to the shard. */
static bool is_of(const hr__shard *shard, uint32_t i)
{
	return shard->allocator->regions[i].size && (!shard->allocator->page || i / 2 == shard->index);
}

static int check_regions(const hr__shard *shard, uint64_t *mapped)
{
	const hr__allocator *allocator = shard->allocator;
	int broken = 0;
	for (int small = 0; small < 2 && !broken; small++) {
		hr__chunk_id edges[HR__REGIONS_MAX];
		uint32_t count = 0;
		for (uint32_t i = 0; i < HR__REGIONS_MAX; i++)
			if (is_of(shard, i) && allocator->regions[i].small == (small != 0)) edges[count++] = allocator->regions[i].edge;
		broken = hr__arena_check(small ? &shard->small.arena : &shard->large.arena, edges, count);
	}
	for (uint32_t i = 0; i < HR__REGIONS_MAX && !broken; i++) {
		const hr__region *region = &allocator->regions[i];
		if (!is_of(shard, i)) continue;
		broken = check_end(shard, region);
		if (!broken && region->pages) broken = check_pages(shard, region);
		*mapped += region->mapped;
	}
	return broken;
}

static bool passed(const hr__meter *meter)
{
	return hr__load_relaxed(&meter->used) > hr__load_relaxed(&meter->level);
}

static int check_meters(const hr__allocator *allocator)
{
	int64_t levels = 0;
	if (!hr__meters_are_on(allocator)) return 0;
	for (uint32_t i = 0; i < allocator->shard_max; i++) {
		if (passed(&allocator->shards[i].meter)) return 24;
		levels += hr__load_relaxed(&allocator->shards[i].meter.level);
	}
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next) {
		if (passed(&cache->meter)) return 24;
		levels += hr__load_relaxed(&cache->meter.level);
	}
	if (levels != hr__load_relaxed(&allocator->levels)) return 24;
	if (hr__load_relaxed(&allocator->cache_count) > 1 && levels > hr__load_relaxed(&allocator->peak)) return 24;
	const hr__usage *usage = allocator->usage;
	return hr__load_relaxed(&usage->shared) && hr__load_relaxed(&usage->levels) > hr__load_relaxed(&usage->peak) ? 24 : 0;
}

static int check_totals(const hr__allocator *allocator, const struct tallies *tallies)
{
	int64_t requested = hr__load_relaxed(&allocator->past_requested);
	int64_t live = hr__load_relaxed(&allocator->past_allocs) - hr__load_relaxed(&allocator->past_frees);
	for (uint32_t i = 0; i < allocator->shard_max; i++) {
		const hr__shard *shard = &allocator->shards[i];
		requested += hr__load_relaxed(&shard->stats.requested);
		live += hr__load_relaxed(&shard->stats.allocs) - hr__load_relaxed(&shard->stats.failed) - hr__load_relaxed(&shard->stats.frees);
	}
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next) {
		requested += hr__load_relaxed(&cache->requested);
		live += hr__load_relaxed(&cache->allocs) - hr__load_relaxed(&cache->frees);
	}
	if ((int64_t)tallies->in_use != hr__meters_sum(allocator) || (int64_t)tallies->requested != requested) return 22;
	return (int64_t)tallies->live + hr__load_relaxed(&allocator->away) == live ? 0 : 25;
}

int hr__allocator_check_locked(hr__allocator *allocator)
{
	HR_ASSERT(hr__shards_are_locked(allocator) && hr__caches_are_stopped(allocator));
	HR_ASSERT(hr__lock_is_mine(allocator->meter_lock));
	struct tallies tallies = { 0 };
	uint64_t mapped = 0, cached = 0;
	int broken = 0;
	HR__EACH_SHARD(allocator, shard)
	{
		if (!broken) broken = check_chunks(shard, &tallies);
		if (!broken && allocator->kind == HR__KIND_BFC) broken = check_regions(shard, &mapped);
	}
	for (const hr__cache *cache = allocator->caches; cache && !broken; cache = cache->next)
		broken = check_cache(cache, tallies.cached_count, &cached);
	if (!broken && cached != tallies.cached_count) broken = 21;
	if (!broken) broken = check_totals(allocator, &tallies);
	if (!broken) broken = check_meters(allocator);
	if (broken || allocator->kind != HR__KIND_BFC) return broken;
	if ((int64_t)tallies.spans != hr__load_relaxed(&allocator->spans) || (int64_t)tallies.span_bytes != hr__load_relaxed(&allocator->span_bytes))
		return 26;
	return mapped == tallies.mapped && (int64_t)(mapped + tallies.span_bytes) == hr__load_relaxed(&allocator->reserved) ? 0 : 23;
}

hr_status hr_allocator_check(hr_allocator handle)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	hr__caches_stop(allocator);
	hr__shards_lock(allocator);
	hr__lock_take(allocator->meter_lock); /* a thread raises its level with no other lock held */
	int broken = hr__allocator_check_locked(allocator);
	hr__lock_release(allocator->meter_lock);
	hr__shards_unlock(allocator);
	hr__caches_start(allocator);
	return broken ? hr__fail(HR_CORRUPT, "%s: invariant %d does not hold (see arena.c and check.c)", allocator->name, broken) : HR_OK;
}
