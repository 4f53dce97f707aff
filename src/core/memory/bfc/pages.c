/* pages.c - the memory of a pool: growing, releasing, planning a stitch.
 *
 * On a device with pages, a shard reserves one wide address range: a quarter of it for the region of small blocks, the rest for the
 * region of large ones. A chunk in state HOLE has no memory mapped:
 *
 *     grow       | in use | free | hole ..........      the free chunk before a hole is extended by exactly the missing pages
 *     release    | in use | free | hole | free |        whole pages inside free chunks return to the device's page pool
 *     stitch     both, driven by bfc.c: free pages from several places are mapped side by side in a hole. No data moves. The cost
 *                is a map and an unmap per page, so stitching comes last, takes only the missing pages, and takes them from the
 *                smallest free chunks first, which are the least useful.
 *
 * On a device without pages there is one shard, and a region is one plain allocation, all of it mapped. Regions double in size, and
 * an entirely free region can be released. Where allocation is expensive (pinned host memory), regions have a minimum size, the
 * slab. They double up to 1 GiB only, because pinned memory is lost to the host and pinning it delays the request; or up to a
 * SLAB_SHARE of the limit if that is more, so that the number of regions stays bounded. There a remainder of the limit that is
 * smaller than a slab is added to the last region.
 *
 * Before pages are unmapped, the host waits for the streams that used them, because unmapping is not ordered with the device's
 * work. */
#include <errno.h>

#include "core/memory/allocator.h"
#include "core/memory/limit.h"

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/memory/bfc/page_hole.h"
#include "core/os/os.h"
#include "core/trace/trace.h"

#define FIRST_PLAIN_REGION (UINT64_C(2) << 20)
#define FIRST_PLAIN_SMALL_REGION (UINT64_C(256) << 10)
#define SLAB_MOST (UINT64_C(1) << 30) /* or a SLAB_SHARE (1/128) of the limit, if that is more */
#define SLAB_SHARE (HR__REGIONS_MAX / 2)
#define BATCH 64u /* pages per call, held on the stack so that no allocation is needed */

/* ---- regions ---- */

static uint64_t allowance(const hr__allocator *allocator)
{
	return allocator->limit - (uint64_t)hr__load_relaxed(&allocator->claimed);
}

static hr_status over_limit(const hr__allocator *allocator)
{
	return hr__fail(HR_OUT_OF_MEMORY, "%s has reached its limit of %llu bytes", allocator->name, (unsigned long long)allocator->limit);
}

/* Updates how far the arenas may grow. */
static void update_tail_growth(hr__shard *shard)
{
	shard->large.arena.tail_growth = shard->small.arena.tail_growth = allowance(shard->allocator);
}

/* Adds a region to the table, as one hole. Needs two records. */
static hr__region *region_enter(hr__shard *shard, hr__shard_pool *pool, uint32_t slot, uint64_t address, uint64_t size)
{
	hr__region *region = &shard->allocator->regions[slot];
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && !region->size && size > 0);
	*region = (hr__region){ .address = address, .size = size, .small = pool->small };
	region->edge = hr__arena_add_region(&pool->arena, address, size, (uint16_t)(slot | (pool->small ? HR__REGION_SMALL : 0)));
	hr__fetch_add_relaxed(&shard->allocator->region_total, 1);
	return region;
}

static hr__region *region_of(hr__shard *shard, const hr__chunk *chunk)
{
	HR_ASSERT((chunk->region & HR__REGION_INDEX) < HR__REGIONS_MAX);
	return &shard->allocator->regions[chunk->region & HR__REGION_INDEX];
}

/* Reserves the shard's addresses: several times the limit, so that holes do not exhaust them, or less if the system refuses that
 * much. */
static hr_status reserve_addresses(hr__allocator *allocator, uint64_t *address, uint64_t *size)
{
	hr_status status = HR_OUT_OF_MEMORY;
	for (uint64_t times = 8; times >= 2 && status; times /= 2) {
		if (!hr__multiply(allocator->limit, times, size)) continue;
		status = hr__device_reserve(allocator->device, *size, address);
	}
	return status;
}

/* Reserves the shard's addresses and adds its two regions, at first use. */
static hr_status open_addresses(hr__shard *shard)
{
	hr__allocator *allocator = shard->allocator;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && allocator->page && !shard->pages);
	uint64_t address, size, bytes;
	hr_status status = hr__shard_ensure_records(shard, 8);
	if (status) return status;
	status = reserve_addresses(allocator, &address, &size);
	if (status) return status;

	/* Reserved and committed at once; host memory is used only for the entries that are touched: those of pages that were ever
	 * mapped. */
	void *pages = NULL;
	int error = ENOMEM;
	if (hr__align_up(size / allocator->page * sizeof(hr__page_id), hr__os_page_size(), &bytes))
		error = hr__os()->reserve(bytes, hr__os_page_size(), &pages);
	if (!error && (error = hr__os()->commit(pages, bytes)) != 0) hr__os()->release(pages, bytes);
	if (error) {
		hr__device_release(allocator->device, address, size);
		return hr__os_fail(error, "cannot get host memory for the page table of %s", allocator->name);
	}
	shard->pages = pages;
	shard->pages_bytes = bytes;
	hr__store_relaxed(&shard->base, address);
	hr__store_relaxed(&shard->span, size);
	uint64_t small = hr__align_down(size / 4, allocator->page);
	hr__store_relaxed(&shard->large_from, address + small);
	hr__region *region = region_enter(shard, &shard->small, 2 * shard->index + 1, address, small);
	region->pages = shard->pages;
	region = region_enter(shard, &shard->large, 2 * shard->index, address + small, size - small);
	region->pages = shard->pages + small / allocator->page;
	return HR_OK;
}

static hr_status plain_slot(hr__allocator *allocator, uint32_t *out)
{
	for (uint32_t i = 0; i <= allocator->region_count && i < HR__REGIONS_MAX; i++) {
		if (allocator->regions[i].size) continue;
		*out = i;
		return HR_OK;
	}
	return hr__fail(HR_TOO_MANY, "%s has %u regions already, the maximum", allocator->name, HR__REGIONS_MAX);
}

/* Region size to request where regions have a minimum size. [need] <= [most], the remainder of the limit. */
static uint64_t slab_size(const hr__allocator *allocator, hr__shard_pool *pool, uint64_t need, uint64_t most)
{
	HR_ASSERT(need <= most);
	uint64_t slab = hr__device_region_min(allocator->device), largest = hr__align_down(allocator->limit / SLAB_SHARE, slab), ask;
	if (largest < SLAB_MOST) largest = SLAB_MOST;
	if (!pool->next_region) pool->next_region = slab;
	if (pool->next_region > largest) pool->next_region = largest;
	if (!hr__align_up(need, slab, &ask)) return need;
	if (ask < pool->next_region) ask = pool->next_region;
	/* A remainder of less than a slab would be of little use, so the request includes it. */
	return ask > most || most - ask < slab ? most : ask;
}

static uint64_t region_size(const hr__allocator *allocator, hr__shard_pool *pool, uint64_t need, uint64_t most)
{
	if (!allocator->allow_growth) return need;
	if (hr__device_region_min(allocator->device)) {
		/* Other allocators may hold part of it. */
		uint64_t available = hr__align_down(hr__page_pool_available(allocator->device), allocator->granularity);
		if (available < most) most = available > need ? available : need;
		return slab_size(allocator, pool, need, most);
	}
	if (!pool->next_region) pool->next_region = pool->small ? FIRST_PLAIN_SMALL_REGION : FIRST_PLAIN_REGION;
	uint64_t ask = pool->next_region;
	while (ask < need && ask <= most / 2) ask *= 2;
	return ask < need || ask > most ? need : ask;
}

/* The next size to try after the device refused [ask]: half of it, in whole slabs, where there are slabs; otherwise [need]. */
static uint64_t smaller_size(const hr__allocator *allocator, uint64_t ask, uint64_t need)
{
	HR_ASSERT(ask > need);
	uint64_t slab = hr__device_region_min(allocator->device), half = slab ? hr__align_down(ask / 2, slab) : 0;
	return half > need ? half : need;
}

static hr_status add_plain_region(hr__shard *shard, hr__shard_pool *pool, uint64_t size, uint64_t alignment)
{
	hr__allocator *allocator = shard->allocator;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && !allocator->page && shard->index == 0);
	uint32_t slot = 0;
	uint64_t address, most = allowance(allocator), need = size;
	hr_status status = plain_slot(allocator, &slot);
	if (status) return status;
	/* The device guarantees no alignment. */
	if (alignment > allocator->granularity && !hr__add(size, alignment, &need)) return over_limit(allocator);
	if (need > most) return over_limit(allocator);

	uint64_t ask = region_size(allocator, pool, need, most);
	if (!hr__limit_claim(allocator, ask)) return over_limit(allocator);
	status = hr__page_pool_plain_alloc(allocator->device, ask, &address);
	while (status == HR_OUT_OF_MEMORY && ask > need) {
		uint64_t smaller = smaller_size(allocator, ask, need);
		hr__limit_unclaim(allocator, ask - smaller);
		ask = smaller;
		status = hr__page_pool_plain_alloc(allocator->device, ask, &address);
	}
	if (!status && (address & (allocator->granularity - 1))) {
		hr__page_pool_plain_free(allocator->device, address, ask);
		status = hr__fail(HR_UNSUPPORTED, "%s gave memory at an address that is not a multiple of the granularity %u",
		                  hr__device_name(allocator->device), allocator->granularity);
	}
	if (status) {
		hr__limit_unclaim(allocator, ask);
		return status;
	}
	hr__limit_hold(allocator, ask);
	hr__region *region = region_enter(shard, pool, slot, address, ask);
	if (slot == allocator->region_count) allocator->region_count++;
	region->mapped = ask;
	hr__arena_map(&pool->arena, hr__chunk_at(&shard->table, region->edge)->next, address, ask);
	if (ask >= pool->next_region) pool->next_region = ask > UINT64_MAX / 2 ? ask : ask * 2;
	hr__recording_note_reserved(allocator, address, (int64_t)ask);
	return HR_OK;
}

/* ---- mapping pages ---- */

/* Unmaps pages of a region and returns them to the page pool. The range is idle, and free or about to be closed. */
static hr_status unmap_pages(hr__shard *shard, hr__region *region, uint64_t address, uint32_t count)
{
	hr__allocator *allocator = shard->allocator;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && region->mapped >= count * allocator->page);
	HR_ASSERT(address >= region->address && address + count * allocator->page <= region->address + region->size);
	uint64_t begin = hr__device_clock_ns(allocator->device);
	hr_status status = hr__device_unmap(allocator->device, address, count);
	hr__fetch_add_relaxed(&allocator->map_ns, hr__device_clock_ns(allocator->device) - begin);
	if (status) return status;
	hr__page_id batch[BATCH], *pages = region->pages + (address - region->address) / allocator->page;
	for (uint32_t done = 0; done < count;) {
		uint32_t n = 0;
		for (; n < BATCH && done < count; n++, done++) {
			HR_ASSERT(pages[done] != 0);
			batch[n] = pages[done] - 1;
			pages[done] = 0;
		}
		hr__page_pool_give(allocator->device, batch, n);
	}
	region->mapped -= count * allocator->page;
	hr__limit_unhold(allocator, count * allocator->page);
	update_tail_growth(shard);
	hr__recording_note_reserved(allocator, address, -(int64_t)(count * allocator->page));
	return HR_OK;
}

/* Maps [count] pages at [address]: all or none, unless the device fails and then also fails to unmap. *mapped gets the number of
 * pages mapped from [address] on. */
static hr_status map_pages(hr__shard *shard, hr__region *region, uint64_t address, uint32_t count, uint32_t *mapped)
{
	hr__allocator *allocator = shard->allocator;
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	HR_ASSERT(address >= region->address && address + count * allocator->page <= region->address + region->size);
	hr_status status = HR_OK;
	hr__page_id *pages = region->pages + (address - region->address) / allocator->page;
	uint32_t done = *mapped = 0;
	if (!hr__limit_claim(allocator, count * allocator->page)) {
		update_tail_growth(shard); /* another shard may have used up the allowance */
		return over_limit(allocator);
	}
	while (done < count) {
		hr__page_id batch[BATCH];
		uint32_t n = count - done < BATCH ? count - done : BATCH;
		status = hr__page_pool_take(allocator->device, n, batch);
		if (status) break;
		uint64_t begin = hr__device_clock_ns(allocator->device);
		status = hr__device_map(allocator->device, address + done * allocator->page, batch, n);
		hr__fetch_add_relaxed(&allocator->map_ns, hr__device_clock_ns(allocator->device) - begin);
		hr__fetch_add_relaxed(&allocator->map_pages, n);
		if (status) {
			hr__page_pool_give(allocator->device, batch, n);
			break;
		}
		for (uint32_t i = 0; i < n; i++) {
			HR_ASSERT(pages[done + i] == 0);
			pages[done + i] = batch[i] + 1;
		}
		region->mapped += n * allocator->page;
		hr__limit_hold(allocator, n * allocator->page);
		done += n;
	}
	hr__limit_unclaim(allocator, (count - done) * allocator->page);
	update_tail_growth(shard);
	if (done) hr__recording_note_reserved(allocator, address, (int64_t)(done * allocator->page));
	/* The pages were never used, so they are idle. */
	if (status && done && unmap_pages(shard, region, address, done) == HR_OK) done = 0;
	*mapped = done;
	return status;
}

/* ---- where to grow ---- */

struct growth_place {
	hr__chunk_id hole;
	hr__chunk_id left, right; /* free chunks beside the hole that the block extends into; 0 = none */
	uint64_t address;         /* of the first page to map */
	uint32_t pages;
};

/* Finds the pages to map for [size] bytes at [alignment] in [hole], extending into the free chunks beside it unless [alone]. False
 * if the block does not fit. */
static bool consider(const hr__allocator *allocator, const hr__chunk *chunks, hr__chunk_id hole, uint64_t size, uint64_t alignment,
                     bool alone, struct growth_place *out)
{
	const hr__chunk *at = &chunks[hole], *left = &chunks[at->prev], *right = &chunks[at->next]; /* record 0 is never FREE */
	hr__page_hole gap = { .begin = hr__chunk_address(at), .end = hr__chunk_end(at) };
	hr__page_hole_fit fit;
	HR_ASSERT(hr__chunk_state_of(at) == HR__CHUNK_HOLE);
	gap.left = !alone && hr__chunk_state_of(left) == HR__CHUNK_FREE ? hr__chunk_address(left) : gap.begin;
	gap.right = !alone && hr__chunk_state_of(right) == HR__CHUNK_FREE ? hr__chunk_end(right) : gap.end;
	if (!hr__page_hole_fits(&gap, allocator->page, allocator->granularity, size, alignment, &fit)) return false;
	*out = (struct growth_place){ .hole = hole,
		                          .left = fit.uses_left ? at->prev : 0,
		                          .right = fit.uses_right ? at->next : 0,
		                          .address = fit.address,
		                          .pages = fit.pages };
	return true;
}

static bool better(const struct growth_place *place, const struct growth_place *than)
{
	return place->pages < than->pages || (place->pages == than->pages && place->address < than->address);
}

/* The hole that needs the fewest pages; the lowest address among equals. */
static bool best_place(const hr__shard *shard, const hr__shard_pool *pool, uint64_t size, uint64_t alignment,
                       struct growth_place *best)
{
	const hr__chunk *chunks = shard->table.chunks;
	struct growth_place place;
	bool found = false;
	for (hr__chunk_id hole = pool->arena.holes; hole; hole = chunks[hole].child[1]) {
		if (!consider(shard->allocator, chunks, hole, size, alignment, false, &place)) continue;
		if (found && !better(&place, best)) continue;
		*best = place;
		found = true;
	}
	return found;
}

/* The best place. Reserves the shard's addresses if it has none yet. */
static hr_status find_place(hr__shard *shard, const hr__shard_pool *pool, uint64_t size, uint64_t alignment,
                            struct growth_place *place)
{
	if (!hr__load_relaxed(&shard->span)) {
		hr_status status = open_addresses(shard);
		if (status) return status;
	}
	if (best_place(shard, pool, size, alignment, place)) return HR_OK;
	return hr__fail(HR_OUT_OF_MEMORY, "%s has no addresses left for %llu bytes in one piece", shard->allocator->name,
	                (unsigned long long)size);
}

hr_status hr__shard_pool_grow(hr__shard *shard, hr__shard_pool *pool, uint64_t size, uint64_t alignment)
{
	hr__allocator *allocator = shard->allocator;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && (pool == &shard->small || pool == &shard->large));
	struct growth_place place;
	if (size > allocator->limit) return over_limit(allocator);
	if (!allocator->page) return add_plain_region(shard, pool, size, alignment);
	hr_status status = find_place(shard, pool, size, alignment, &place);
	if (status) return status;
	hr__region *region = region_of(shard, hr__chunk_at(&shard->table, place.hole));
	uint32_t mapped;
	status = map_pages(shard, region, place.address, place.pages, &mapped);
	if (mapped) hr__arena_map(&pool->arena, place.hole, place.address, mapped * allocator->page);
	return status;
}

/* ---- releasing ---- */

/* The whole pages inside a free chunk; false if there are none. */
static bool whole_pages(const hr__allocator *allocator, const hr__chunk *chunk, uint64_t *begin, uint32_t *count)
{
	uint64_t end = hr__align_down(hr__chunk_end(chunk), allocator->page);
	if (!hr__align_up(hr__chunk_address(chunk), allocator->page, begin) || *begin >= end) return false;
	uint64_t pages = (end - *begin) / allocator->page;
	*count = pages > UINT32_MAX ? UINT32_MAX : (uint32_t)pages;
	return true;
}

static uint64_t count_whole_pages(const hr__shard *shard, hr__chunk_id id)
{
	uint64_t begin;
	uint32_t count;
	HR_ASSERT(!id || hr__chunk_state_of(&shard->table.chunks[id]) == HR__CHUNK_FREE);
	return id && whole_pages(shard->allocator, &shard->table.chunks[id], &begin, &count) ? count : 0;
}

/* A free chunk that contains a whole page and is not part of the stitch: the smallest, or nearly. */
static hr__chunk_id find_donor(const hr__shard *shard, const hr__shard_pool *pool, const hr__stitch *stitch)
{
	hr__chunk_id id = hr__arena_first_free(&pool->arena, shard->allocator->page);
	for (; id; id = hr__arena_next_free(&pool->arena, id)) {
		if (stitch && (id == stitch->left || id == stitch->right)) continue;
		if (count_whole_pages(shard, id)) return id;
	}
	return 0;
}

uint64_t hr__shard_pool_count_free(const hr__shard *shard, const hr__shard_pool *pool)
{
	uint64_t total = 0;
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	hr__chunk_id id = hr__arena_first_free(&pool->arena, shard->allocator->page);
	for (; id; id = hr__arena_next_free(&pool->arena, id)) total += count_whole_pages(shard, id);
	return total;
}

/* Releases up to [most] whole pages of the free chunk [id], from its end, so that the rest stays contiguous. */
static hr_status release_from(hr__shard *shard, hr__shard_pool *pool, hr__chunk_id id, uint64_t most, uint32_t *released)
{
	hr__allocator *allocator = shard->allocator;
	hr__chunk *chunk = hr__chunk_at(&shard->table, id);
	uint64_t begin;
	uint32_t count;
	*released = 0;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && hr__chunk_state_of(chunk) == HR__CHUNK_FREE && most > 0);
	if (!whole_pages(allocator, chunk, &begin, &count)) return HR_OK;
	if (count > most) {
		begin += (count - most) * allocator->page;
		count = (uint32_t)most;
	}
	hr_status status = hr__shard_ensure_records(shard, 2);
	if (!status && chunk->streams) status = hr__device_wait_idle_epochs(allocator->device, chunk->streams, chunk->epochs);
	if (!status) status = unmap_pages(shard, region_of(shard, chunk), begin, count);
	if (status) return status;
	hr__arena_unmap(&pool->arena, id, begin, count * allocator->page);
	*released = count;
	return HR_OK;
}

uint64_t hr__shard_pool_release_pages(hr__shard *shard, hr__shard_pool *pool, uint64_t most, const hr__stitch *stitch,
                                      hr_status *status)
{
	uint64_t total = 0;
	while (total < most) {
		uint32_t released;
		hr__chunk_id id = find_donor(shard, pool, stitch);
		if (!id) break;
		*status = release_from(shard, pool, id, most - total, &released);
		if (*status) break;
		total += released;
	}
	return total;
}

/* Releases a region that consists of one free chunk, [id]. */
static hr_status release_plain_region(hr__shard *shard, hr__shard_pool *pool, hr__region *region, hr__chunk_id id)
{
	hr__allocator *allocator = shard->allocator;
	hr__chunk *chunk = hr__chunk_at(&shard->table, id);
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && chunk->size == region->size);
	hr_status status = chunk->streams ? hr__device_wait_idle_epochs(allocator->device, chunk->streams, chunk->epochs) : HR_OK;
	if (!status) status = hr__page_pool_plain_free(allocator->device, region->address, region->size);
	if (status) return status;
	hr__arena_unmap(&pool->arena, id, region->address, region->size);
	hr__arena_remove_region(&pool->arena, region->edge);
	hr__limit_unhold(allocator, region->size);
	hr__recording_note_reserved(allocator, region->address, -(int64_t)region->size);
	hr__fetch_add_relaxed(&allocator->region_total, -1u);
	*region = (hr__region){ 0 };
	return HR_OK;
}

/* The only chunk of an entirely free region; 0 if the region is not entirely free. */
static hr__chunk_id only_chunk(hr__shard *shard, const hr__region *region)
{
	if (!region->size) return 0;
	hr__chunk_id id = hr__chunk_at(&shard->table, region->edge)->next;
	const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
	return hr__chunk_state_of(chunk) == HR__CHUNK_FREE && !chunk->next ? id : 0;
}

bool hr__shard_can_regrow(hr__shard *shard, uint64_t size, uint64_t alignment)
{
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	const hr__allocator *allocator = shard->allocator;
	uint64_t room = allowance(allocator), need = size;
	if (alignment > allocator->granularity && !hr__add(size, alignment, &need)) return false;
	for (uint32_t i = 0; i < allocator->region_count && room < need; i++) {
		if (only_chunk(shard, &allocator->regions[i])) room += allocator->regions[i].size;
	}
	return room >= need;
}

static uint64_t release_plain_regions(hr__shard *shard, hr__shard_pool *pool, hr_status *status)
{
	uint64_t total = 0;
	for (uint32_t i = 0; i < shard->allocator->region_count; i++) {
		hr__region *region = &shard->allocator->regions[i];
		hr__chunk_id id = region->small == pool->small ? only_chunk(shard, region) : 0;
		if (!id) continue;
		uint64_t size = region->size;
		hr_status released = release_plain_region(shard, pool, region, id);
		if (released) *status = released;
		else total += size;
	}
	if (total) pool->next_region = 0;
	return total;
}

uint64_t hr__shard_pool_release_free(hr__shard *shard, hr__shard_pool *pool, hr_status *status)
{
	if (!shard->allocator->page) return release_plain_regions(shard, pool, status);
	return hr__shard_pool_release_pages(shard, pool, UINT64_MAX, NULL, status) * shard->allocator->page;
}

/* ---- stitching ---- */

/* The best range extends into the free chunks beside it. Their pages then cannot be moved, so there may be too few pages for it. Another
 * range, which leaves those chunks and their pages available, may still fit. A range that is only a hole, without such chunks, can use
 * every free page of the pool. So no request is refused for which there are enough pages. */
hr_status hr__shard_pool_prepare_stitch(hr__shard *shard, hr__shard_pool *pool, uint64_t size, uint64_t alignment, uint64_t elsewhere,
                              hr__stitch *stitch)
{
	const hr__chunk *chunks = shard->table.chunks;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && shard->allocator->page);
	struct growth_place best = { 0 }, place;
	hr_status status = find_place(shard, pool, size, alignment, &best); /* only to check that there are addresses */
	if (status) return status;
	uint64_t have = allowance(shard->allocator), available = hr__page_pool_available(shard->allocator->device);
	uint64_t obtainable = hr__device_obtainable(shard->allocator->device); /* below the limits when others hold memory */
	if (available > obtainable) available = obtainable;
	have = (have < available ? have : available) / shard->allocator->page;
	uint64_t donors = hr__shard_pool_count_free(shard, pool) + elsewhere;
	best.hole = 0;
	for (hr__chunk_id hole = pool->arena.holes; hole; hole = chunks[hole].child[1]) {
		for (int alone = 0; alone < 2; alone++) {
			if (!consider(shard->allocator, chunks, hole, size, alignment, alone, &place)) continue;
			if (place.pages > have + donors - count_whole_pages(shard, place.left) - count_whole_pages(shard, place.right)) continue;
			if (!best.hole || better(&place, &best)) best = place;
		}
	}
	if (!best.hole) return over_limit(shard->allocator);
	*stitch = (hr__stitch){ .left = best.left, .right = best.right, .missing = best.pages > have ? best.pages - have : 0 };
	return HR_OK;
}

/* ---- closing ---- */

static void close_paged_region(hr__shard *shard, hr__region *region)
{
	uint64_t page = shard->allocator->page, pages = region->size / page;
	for (uint64_t i = 0; i < pages && region->mapped;) {
		uint32_t run = 0;
		while (i + run < pages && run < (1u << 20) && region->pages[i + run]) run++;
		if (run && unmap_pages(shard, region, region->address + i * page, run)) break;
		i += run ? run : 1;
	}
}

/* Releases everything, whatever state the chunks are in. The arenas are unusable afterwards. */
void hr__shard_close_regions(hr__shard *shard)
{
	hr__allocator *allocator = shard->allocator;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && !allocator->caches);
	if (shard->index == 0) hr__spans_close(shard);
	if (shard->pages) {
		close_paged_region(shard, &allocator->regions[2 * shard->index]);
		close_paged_region(shard, &allocator->regions[2 * shard->index + 1]);
		hr__device_release(allocator->device, hr__load_relaxed(&shard->base), hr__load_relaxed(&shard->span));
		hr__os()->release(shard->pages, shard->pages_bytes);
		shard->pages = NULL;
	}
	for (uint32_t i = 0; i < allocator->region_count; i++) {
		hr__region *region = &allocator->regions[i];
		if (!region->size) continue;
		hr__page_pool_plain_free(allocator->device, region->address, region->size);
		hr__limit_unhold(allocator, region->size);
		*region = (hr__region){ 0 };
	}
}
