/* pages.c - where a pool's memory comes from and goes to: growing, giving back, stitching.
 *
 * On a device with pages a region is a wide range of reserved addresses, and a chunk of state HOLE is where nothing is mapped:
 *
 *     grow       | in use | free | hole ..........      the free chunk before a hole is extended by just as many pages as are missing
 *     release    | in use | free | hole | free |        whole pages inside free chunks go back to the device's pool
 *     stitch     both: free pages from several places are mapped side by side in a hole. No byte moves; the price is a map and an
 *                unmap per page, so it comes last, takes only what is missing, and takes it from the smallest free chunks first,
 *                which are worth least.
 *
 * On a device without pages a region is one plain allocation, all of it mapped; regions double in size, and a region that is free
 * from end to end can be given back.
 *
 * Before pages are unmapped, the streams that used them are waited for: unmapping does not wait for the device. */
#include "memory/allocator.h"

#include "base/checked.h"
#include "base/status.h"
#include "os/os.h"
#include "trace/trace.h"

#define FIRST_PLAIN_REGION (UINT64_C(2) << 20)
#define FIRST_PLAIN_SMALL_REGION (UINT64_C(256) << 10)
#define BATCH 64u /* pages handled at a time, so that no memory is needed */

/* ---- regions ---- */

static uint64_t allowance(const hr__allocator *allocator)
{
	uint64_t reserved = (uint64_t)hr__load_relaxed(&allocator->stats.reserved);
	return allocator->limit > reserved ? allocator->limit - reserved : 0;
}

static hr_status over_limit(const hr__allocator *allocator)
{
	return hr__fail(HR_OUT_OF_MEMORY, "%s has reached its limit of %llu bytes", allocator->name, (unsigned long long)allocator->limit);
}

static hr_status region_slot(hr__allocator *allocator, uint32_t *out)
{
	for (uint32_t i = 0; i < allocator->region_count; i++) {
		if (allocator->regions[i].size) continue;
		*out = i;
		return HR_OK;
	}
	if (allocator->region_count == HR__REGIONS_MAX)
		return hr__fail(HR_TOO_MANY, "%s has %u regions already, which is the most there can be", allocator->name, HR__REGIONS_MAX);
	*out = allocator->region_count;
	return HR_OK;
}

/* Enters a region in the table; all of it is a hole. Two records. */
static hr__region *region_enter(hr__allocator *allocator, hr__pool *pool, uint32_t slot, uint64_t address, uint64_t size)
{
	hr__region *region = &allocator->regions[slot];
	*region = (hr__region){ .address = address, .size = size };
	region->edge = hr__arena_add_region(&pool->arena, address, size, (uint16_t)(slot | (pool->small ? HR__REGION_SMALL : 0)));
	if (slot == allocator->region_count) allocator->region_count++;
	return region;
}

/* Reserves addresses for a paged region: several times what may ever be mapped, so that holes do not use them up, or less when the
 * system will not give that much; at least [least]. */
static hr_status reserve_addresses(hr__allocator *allocator, uint64_t least, uint64_t *address, uint64_t *size)
{
	hr_status status = HR_OUT_OF_MEMORY;
	for (uint64_t times = 4; times; times /= 2) {
		if (!hr__multiply(allocator->limit, times, size) || *size < least) *size = least;
		status = hr__device_reserve(allocator->device, *size, address);
		if (!status || *size == least) return status;
	}
	return status;
}

static hr_status add_paged_region(hr__allocator *allocator, hr__pool *pool, uint64_t least)
{
	uint32_t slot = 0;
	uint64_t address, size;
	hr_status status = region_slot(allocator, &slot);
	if (status) return status;
	status = reserve_addresses(allocator, least, &address, &size);
	if (status) return status;

	/* Reserved and committed at once, but host memory is used only for the part that is touched: the pages that were ever mapped. */
	void *pages;
	uint64_t bytes;
	if (!hr__align_up(size / allocator->page * sizeof(hr__page_id), hr__os_page_size(), &bytes)) bytes = 0;
	int error = bytes ? hr__os()->reserve(bytes, hr__os_page_size(), &pages) : 12 /* ENOMEM */;
	if (!error && (error = hr__os()->commit(pages, bytes)) != 0) hr__os()->release(pages, bytes);
	if (error) {
		hr__device_release(allocator->device, address, size);
		return hr__os_fail(error, "cannot get host memory for the page table of %s", allocator->name);
	}
	hr__region *region = region_enter(allocator, pool, slot, address, size);
	region->pages = pages;
	region->pages_bytes = bytes;
	return HR_OK;
}

static hr_status add_plain_region(hr__allocator *allocator, hr__pool *pool, uint64_t size, uint64_t alignment)
{
	uint32_t slot = 0;
	uint64_t address, unit = allocator->granularity, most = allowance(allocator), need = size;
	hr_status status = region_slot(allocator, &slot);
	if (status) return status;
	if (alignment > 4096 && !hr__add(size, alignment, &need)) return over_limit(allocator);
	if (need > most) return over_limit(allocator);

	if (!pool->next_region) pool->next_region = pool->small ? FIRST_PLAIN_SMALL_REGION : FIRST_PLAIN_REGION;
	uint64_t ask = pool->next_region;
	if (ask > most || !allocator->allow_growth) ask = need;
	while (ask < need) ask *= 2;
	if (ask > most) ask = need;
	status = hr__pool_plain_alloc(allocator->device, ask, &address);
	if (status == HR_OUT_OF_MEMORY && ask > need) status = hr__pool_plain_alloc(allocator->device, ask = need, &address);
	if (status) return status;
	if (address & (unit - 1)) {
		hr__pool_plain_free(allocator->device, address, ask);
		return hr__fail(HR_UNSUPPORTED, "%s gave memory at an address that is no multiple of the granularity %llu",
		                hr__device_name(allocator->device), (unsigned long long)unit);
	}
	hr__region *region = region_enter(allocator, pool, slot, address, ask);
	region->plain = true;
	region->mapped = ask;
	hr__arena_map(&pool->arena, hr__chunk_at(&allocator->table, region->edge)->next, address, ask);
	pool->next_region = ask * 2 > pool->next_region ? ask * 2 : pool->next_region;
	hr__stats_reserve(allocator, (int64_t)ask);
	hr__note_reserved(allocator, address, (int64_t)ask);
	return HR_OK;
}

/* ---- mapping pages ---- */

/* Takes a mapped range of a region's addresses away from it and gives the pages back. The range is a hole already, or about to be. */
static hr_status unmap_pages(hr__allocator *allocator, hr__region *region, uint64_t address, uint32_t count)
{
	hr_status status = hr__device_unmap(allocator->device, address, count);
	if (status) return status;
	hr__page_id batch[BATCH];
	uint64_t first = (address - region->address) / allocator->page;
	for (uint32_t done = 0; done < count;) {
		uint32_t n = 0;
		for (; n < BATCH && done < count; n++, done++) {
			HR_ASSERT(region->pages[first + done] != 0);
			batch[n] = region->pages[first + done] - 1;
			region->pages[first + done] = 0;
		}
		hr__pool_give(allocator->device, batch, n);
	}
	region->mapped -= count * allocator->page;
	hr__stats_reserve(allocator, -(int64_t)(count * allocator->page));
	hr__note_reserved(allocator, address, -(int64_t)(count * allocator->page));
	return HR_OK;
}

/* Maps [count] pages at [address]; all of them or none. */
static hr_status map_pages(hr__allocator *allocator, hr__region *region, uint64_t address, uint32_t count)
{
	hr_status status = HR_OK;
	uint64_t first = (address - region->address) / allocator->page;
	uint32_t done = 0;
	while (done < count && !status) {
		hr__page_id batch[BATCH];
		uint32_t n = count - done < BATCH ? count - done : BATCH;
		status = hr__pool_take(allocator->device, n, batch);
		if (status) break;
		status = hr__device_map(allocator->device, address + done * allocator->page, batch, n);
		if (status) {
			hr__pool_give(allocator->device, batch, n);
			break;
		}
		for (uint32_t i = 0; i < n; i++) region->pages[first + done + i] = batch[i] + 1;
		region->mapped += n * allocator->page;
		hr__stats_reserve(allocator, (int64_t)(n * allocator->page));
		done += n;
	}
	if (status && done) {
		/* Never used, so idle. Should even this fail, the pages stay mapped and counted, and are found again when the region closes. */
		if (!hr__device_unmap(allocator->device, address, done)) {
			for (uint32_t i = 0; i < done; i++) {
				hr__page_id page = region->pages[first + i] - 1;
				region->pages[first + i] = 0;
				hr__pool_give(allocator->device, &page, 1);
			}
			region->mapped -= done * allocator->page;
			hr__stats_reserve(allocator, -(int64_t)(done * allocator->page));
		}
	}
	if (!status) hr__note_reserved(allocator, address, (int64_t)(count * allocator->page));
	return status;
}

/* ---- where to grow ---- */

struct place {
	hr__chunk_id hole;
	uint64_t address; /* of the first page to map */
	uint32_t pages;
};

/* How many pages it takes to have [size] bytes at [alignment] in and around [hole]; false when it cannot be. */
static bool consider(const hr__allocator *allocator, const hr__chunk *chunks, hr__chunk_id hole, uint64_t size, uint64_t alignment,
                     struct place *out)
{
	const hr__chunk *at = &chunks[hole];
	const hr__chunk *left = at->prev ? &chunks[at->prev] : NULL, *right = at->next ? &chunks[at->next] : NULL;
	uint64_t begin = hr__chunk_address(at), end = hr__chunk_end(at), start = begin, stop, map_end;
	if (left && hr__chunk_state_of(left) == HR__CHUNK_FREE) start = hr__chunk_address(left);
	if (alignment > allocator->granularity && !hr__align_up(start, alignment, &start)) return false;
	if (!hr__add(start, size, &stop)) return false;
	uint64_t map_begin = start > begin ? hr__align_down(start, allocator->page) : begin;
	if (stop > end) { /* only together with a free chunk behind the hole */
		if (!right || hr__chunk_state_of(right) != HR__CHUNK_FREE || stop > hr__chunk_end(right)) return false;
		map_end = end;
	} else if (!hr__align_up(stop, allocator->page, &map_end)) {
		return false;
	}
	if (map_begin >= map_end) return false;
	uint64_t pages = (map_end - map_begin) / allocator->page;
	if (pages > UINT32_MAX) return false;
	*out = (struct place){ hole, map_begin, (uint32_t)pages };
	return true;
}

/* The hole where the fewest pages are missing, the lowest among equals. */
static bool best_place(const hr__allocator *allocator, const hr__pool *pool, uint64_t size, uint64_t alignment, struct place *best)
{
	const hr__chunk *chunks = allocator->table.chunks;
	struct place place;
	bool found = false;
	for (hr__chunk_id hole = pool->arena.holes; hole; hole = chunks[hole].child[1]) {
		if (!consider(allocator, chunks, hole, size, alignment, &place)) continue;
		if (found && (place.pages > best->pages || (place.pages == best->pages && place.address > best->address))) continue;
		*best = place;
		found = true;
	}
	return found;
}

/* The best place, in a new region if there is none. */
static hr_status find_place(hr__allocator *allocator, hr__pool *pool, uint64_t size, uint64_t alignment, struct place *place)
{
	if (best_place(allocator, pool, size, alignment, place)) return HR_OK;
	uint64_t least;
	if (!hr__add(size, alignment, &least) || !hr__align_up(least, allocator->page, &least)) return over_limit(allocator);
	hr_status status = add_paged_region(allocator, pool, least);
	if (status) return status;
	return best_place(allocator, pool, size, alignment, place) ? HR_OK : over_limit(allocator);
}

static hr__region *region_of(hr__allocator *allocator, const hr__chunk *chunk)
{
	return &allocator->regions[chunk->region & HR__REGION_INDEX];
}

static hr_status grow_at(hr__allocator *allocator, hr__pool *pool, const struct place *place)
{
	hr__region *region = region_of(allocator, hr__chunk_at(&allocator->table, place->hole));
	hr_status status = map_pages(allocator, region, place->address, place->pages);
	if (!status) hr__arena_map(&pool->arena, place->hole, place->address, place->pages * allocator->page);
	return status;
}

hr_status hr__pool_grow(hr__allocator *allocator, hr__pool *pool, uint64_t size, uint64_t alignment)
{
	struct place place;
	if (size > allocator->limit) return over_limit(allocator);
	if (!allocator->page) return add_plain_region(allocator, pool, size, alignment);
	hr_status status = find_place(allocator, pool, size, alignment, &place);
	if (status) return status;
	if (place.pages * allocator->page > allowance(allocator)) return over_limit(allocator);
	return grow_at(allocator, pool, &place);
}

/* ---- giving back ---- */

/* The whole pages inside a free chunk; false when there are none. */
static bool whole_pages(const hr__allocator *allocator, const hr__chunk *chunk, uint64_t *begin, uint32_t *count)
{
	uint64_t end = hr__align_down(hr__chunk_end(chunk), allocator->page);
	if (!hr__align_up(hr__chunk_address(chunk), allocator->page, begin) || *begin >= end) return false;
	uint64_t pages = (end - *begin) / allocator->page;
	*count = pages > UINT32_MAX ? UINT32_MAX : (uint32_t)pages;
	return true;
}

/* Gives up to [most] whole pages of the free chunk [id] back, those at its end first: what is left stays together. 2 records. */
static hr_status release_pages(hr__allocator *allocator, hr__pool *pool, hr__chunk_id id, uint32_t most, uint32_t *released)
{
	hr__chunk *chunk = hr__chunk_at(&allocator->table, id);
	uint64_t begin;
	uint32_t count;
	*released = 0;
	if (!whole_pages(allocator, chunk, &begin, &count)) return HR_OK;
	if (count > most) {
		begin += (uint64_t)(count - most) * allocator->page;
		count = most;
	}
	hr_status status = hr__records_ensure(allocator, 2);
	if (!status && chunk->streams) status = hr__device_wait_idle(allocator->device, chunk->streams, chunk->epoch);
	if (!status) status = unmap_pages(allocator, region_of(allocator, chunk), begin, count);
	if (status) return status;
	hr__arena_unmap(&pool->arena, id, begin, count * allocator->page);
	*released = count;
	return HR_OK;
}

/* A free chunk with a whole page in it, other than the two given: the smallest, or nearly. */
static hr__chunk_id find_donor(const hr__allocator *allocator, const hr__pool *pool, hr__chunk_id not_this, hr__chunk_id nor_this)
{
	uint64_t begin;
	uint32_t count;
	hr__chunk_id id = hr__arena_first_free(&pool->arena, allocator->page);
	for (; id; id = hr__arena_next_free(&pool->arena, id)) {
		if (id == not_this || id == nor_this) continue;
		if (whole_pages(allocator, &allocator->table.chunks[id], &begin, &count)) return id;
	}
	return 0;
}

static uint64_t release_all_pages(hr__allocator *allocator, hr__pool *pool)
{
	uint64_t total = 0;
	for (hr__chunk_id id; (id = find_donor(allocator, pool, 0, 0)) != 0;) {
		uint32_t released;
		if (release_pages(allocator, pool, id, UINT32_MAX, &released)) break;
		total += released * allocator->page;
	}
	return total;
}

/* Gives back a region that is one free chunk, [id]. */
static bool release_plain_region(hr__allocator *allocator, hr__pool *pool, hr__region *region, hr__chunk_id id)
{
	hr__chunk *chunk = hr__chunk_at(&allocator->table, id);
	if (chunk->streams && hr__device_wait_idle(allocator->device, chunk->streams, chunk->epoch)) return false;
	if (hr__pool_plain_free(allocator->device, region->address, region->size)) return false;
	hr__arena_unmap(&pool->arena, id, region->address, region->size);
	hr__arena_remove_region(&pool->arena, region->edge);
	hr__stats_reserve(allocator, -(int64_t)region->size);
	hr__note_reserved(allocator, region->address, -(int64_t)region->size);
	*region = (hr__region){ 0 };
	return true;
}

uint64_t hr__pool_release_free(hr__allocator *allocator, hr__pool *pool)
{
	if (allocator->page) return release_all_pages(allocator, pool);
	uint64_t total = 0;
	for (uint32_t i = 0; i < allocator->region_count; i++) {
		hr__region *region = &allocator->regions[i];
		if (!region->size) continue;
		hr__chunk_id id = hr__chunk_at(&allocator->table, region->edge)->next;
		hr__chunk *chunk = hr__chunk_at(&allocator->table, id);
		if (((chunk->region & HR__REGION_SMALL) != 0) != pool->small) continue;
		if (hr__chunk_state_of(chunk) != HR__CHUNK_FREE || chunk->next) continue;
		uint64_t size = region->size;
		if (release_plain_region(allocator, pool, region, id)) total += size;
	}
	if (total) pool->next_region = 0;
	return total;
}

/* ---- stitching ---- */

/* Whole free pages that could be brought to [place]: in all free chunks but those that the place builds on. */
static uint64_t count_donors(const hr__allocator *allocator, const hr__pool *pool, hr__chunk_id not_this, hr__chunk_id nor_this)
{
	uint64_t total = 0, begin;
	uint32_t count;
	hr__chunk_id id = hr__arena_first_free(&pool->arena, allocator->page);
	for (; id; id = hr__arena_next_free(&pool->arena, id))
		if (id != not_this && id != nor_this && whole_pages(allocator, &allocator->table.chunks[id], &begin, &count)) total += count;
	return total;
}

hr_status hr__pool_stitch(hr__allocator *allocator, hr__pool *pool, uint64_t size, uint64_t alignment)
{
	struct place place;
	hr_status status = find_place(allocator, pool, size, alignment, &place);
	if (status) return status;
	const hr__chunk *hole = hr__chunk_at(&allocator->table, place.hole);
	hr__chunk_id left = hole->prev, right = hole->next;

	uint64_t have = allowance(allocator), available = hr__pool_available(allocator->device);
	have = (have < available ? have : available) / allocator->page;
	uint64_t missing = place.pages > have ? place.pages - have : 0;
	hr__pool *other = pool->small ? &allocator->large : &allocator->small;
	if (count_donors(allocator, pool, left, right) + count_donors(allocator, other, 0, 0) < missing) return over_limit(allocator);

	uint64_t moved = 0;
	while (moved < missing) {
		hr__pool *from = pool;
		hr__chunk_id donor = find_donor(allocator, pool, left, right);
		if (!donor) donor = find_donor(allocator, from = other, 0, 0);
		if (!donor) return over_limit(allocator);
		uint32_t released;
		uint64_t rest = missing - moved;
		status = release_pages(allocator, from, donor, rest > UINT32_MAX ? UINT32_MAX : (uint32_t)rest, &released);
		if (status) return status;
		moved += released;
	}
	/* Releasing made holes, perhaps one that touches the place: look again. It needs no more pages than before. */
	status = hr__records_ensure(allocator, 4);
	if (!status) status = find_place(allocator, pool, size, alignment, &place);
	if (!status) status = grow_at(allocator, pool, &place);
	if (status) return status;
	hr__owner_add(&allocator->stats.stitches, 1);
	hr__owner_add(&allocator->stats.stitched, (int64_t)(moved * allocator->page));
	if (hr__trace_is_on())
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_STITCH,
		                              .allocator = (uint32_t)allocator->id,
		                              .address = place.address,
		                              .bytes = moved * allocator->page });
	return HR_OK;
}

/* ---- the end ---- */

static void close_paged_region(hr__allocator *allocator, hr__region *region)
{
	uint64_t pages = region->size / allocator->page;
	for (uint64_t i = 0; i < pages && region->mapped;) {
		uint32_t run = 0;
		while (i + run < pages && run < (1u << 20) && region->pages[i + run]) run++;
		if (run && unmap_pages(allocator, region, region->address + i * allocator->page, run)) break;
		i += run ? run : 1;
	}
	hr__device_release(allocator->device, region->address, region->size);
	hr__os()->release(region->pages, region->pages_bytes);
}

/* Gives everything back, whatever state the chunks are in. The arenas are useless afterwards. */
void hr__regions_close(hr__allocator *allocator)
{
	for (uint32_t i = 0; i < allocator->region_count; i++) {
		hr__region *region = &allocator->regions[i];
		if (!region->size) continue;
		if (region->plain) {
			hr__pool_plain_free(allocator->device, region->address, region->size);
			hr__stats_reserve(allocator, -(int64_t)region->size);
		} else {
			close_paged_region(allocator, region);
		}
		*region = (hr__region){ 0 };
	}
	allocator->region_count = 0;
}

uint64_t hr__regions_metadata(const hr__allocator *allocator)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < allocator->region_count; i++)
		if (allocator->regions[i].pages) bytes += allocator->regions[i].mapped / allocator->page * sizeof(hr__page_id);
	return bytes;
}
