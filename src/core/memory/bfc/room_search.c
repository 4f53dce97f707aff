/* room_search.c - see room_search.h. */
#include "core/memory/bfc/room_search.h"

#include "core/base/checked.h"

/* Bytes that the device may still provide. */
static uint64_t room_of(const hr__allocator *allocator)
{
	HR_ASSERT(allocator->page != 0);
	uint64_t room = allocator->limit - (uint64_t)hr__load_relaxed(&allocator->claimed), other = hr__page_pool_available(allocator->device);
	if (other < room) room = other;
	other = hr__device_obtainable(allocator->device);
	return hr__align_down(other < room ? other : room, allocator->page);
}

/* Bytes of whole free pages. */
static uint64_t free_pages_of(const hr__shard *shard)
{
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && shard->allocator->page);
	return (hr__shard_pool_count_free(shard, &shard->large) + hr__shard_pool_count_free(shard, &shard->small)) *
	       shard->allocator->page;
}

/* Whether remapping a page takes no longer than copying it to the host at the speed of PCIe 5.0. */
#define BYTES_PER_NS 50u
static bool stitches_fast(const hr__allocator *allocator)
{
	return hr__load_relaxed(&allocator->map_ns) <= hr__load_relaxed(&allocator->map_pages) * (allocator->page / BYTES_PER_NS);
}

uint64_t hr__blocks_missing(hr__allocator *allocator, uint64_t size)
{
	uint64_t need;
	if (!allocator->page || !allocator->stitch || !stitches_fast(allocator)) return UINT64_MAX;
	if (!hr__align_up(size, allocator->page, &need)) return UINT64_MAX;
	uint64_t have = room_of(allocator);
	HR__EACH_SHARD(allocator, shard)
	{
		hr__lock_take(&shard->lock);
		have += free_pages_of(shard);
		hr__lock_release(&shard->lock);
	}
	return have < need ? need - have : allocator->page;
}

uint64_t hr__blocks_scattered(hr__allocator *allocator)
{
	uint64_t bytes = 0, of_use = 0;
	bool stitches = allocator->page && allocator->stitch;
	HR__EACH_SHARD(allocator, shard)
	{
		hr__lock_take(&shard->lock);
		bytes += shard->large.arena.free_bytes + shard->small.arena.free_bytes;
		uint64_t largest = hr__arena_largest(&shard->large.arena);
		if (stitches) of_use += free_pages_of(shard);
		else if (largest > of_use) of_use = largest;
		hr__lock_release(&shard->lock);
	}
	return bytes - of_use;
}

/* ---- windows ---- */

struct window_search {
	uint64_t size, slack; /* size of the request; most bytes lost to alignment */
	const hr__movable *items;
	size_t item_count;
	bool found;
	uint64_t cost; /* of the best window so far */
	size_t first, count; /* items of the best window */
};

/* The first item at or above [address]. */
static size_t item_from(const struct window_search *search, uint64_t address)
{
	size_t low = 0, high = search->item_count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (search->items[middle].address < address) low = middle + 1;
		else high = middle;
	}
	return low;
}

/* The first chunk of the window. */
struct edge {
	hr__chunk_id id;
	size_t item; /* index of the first item at or after it */
};

static bool is_item(const struct window_search *search, size_t index, uint64_t address)
{
	return index < search->item_count && search->items[index].address == address;
}

/* For HR_ASSERT; release builds do not contain it. */
static inline __attribute__((unused)) bool are_sorted(const hr__movable *items, size_t count)
{
	for (size_t i = 1; i < count; i++)
		if (items[i - 1].address >= items[i].address) return false;
	return true;
}

/* Slides a window over one region: the right edge advances chunk by chunk, and the left edge drops chunks that are not needed. */
static void search_region(struct window_search *search, const hr__shard *shard, hr__chunk_id edge)
{
	const hr__chunk_table *table = &shard->table;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && hr__chunk_state_of(hr__chunk_at(table, edge)) == HR__CHUNK_EDGE);
	struct edge left = { 0, 0 };
	uint64_t bytes = 0, cost = 0;
	size_t item = item_from(search, hr__chunk_address(hr__chunk_at(table, edge)));
	for (hr__chunk_id id = hr__chunk_at(table, edge)->next; id; id = hr__chunk_at(table, id)->next) {
		const hr__chunk *chunk = hr__chunk_at(table, id);
		uint64_t address = hr__chunk_address(chunk);
		while (item < search->item_count && search->items[item].address < address) item++;
		bool movable = hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE && is_item(search, item, address);
		if (!movable && hr__chunk_state_of(chunk) != HR__CHUNK_FREE) {
			bytes = cost = 0;
			left.id = 0;
			continue;
		}
		if (!left.id) left = (struct edge){ id, item };
		bytes += chunk->size;
		if (movable) cost += search->items[item].cost;
		size_t end = item + movable;
		for (;;) { /* while the rest of the window is enough */
			const hr__chunk *first = hr__chunk_at(table, left.id);
			if (bytes - first->size < search->size + search->slack) break;
			bytes -= first->size;
			if (is_item(search, left.item, hr__chunk_address(first))) cost -= search->items[left.item++].cost;
			left.id = first->next;
		}
		if (bytes < search->size + search->slack || (search->found && cost >= search->cost)) continue;
		search->found = true;
		search->cost = cost;
		search->first = left.item;
		search->count = end - left.item;
	}
}

bool hr__blocks_window(hr__allocator *allocator, uint64_t size, uint64_t alignment, const hr__movable *items, size_t item_count,
                       size_t *first, size_t *count)
{
	struct window_search search = { .size = size,
		                            .slack = alignment > allocator->granularity ? alignment - allocator->granularity : 0,
		                            .items = items,
		                            .item_count = item_count };
	HR_ASSERT(size > 0 && are_sorted(items, item_count));
	HR__EACH_SHARD(allocator, shard)
	{
		hr__lock_take(&shard->lock);
		for (uint32_t i = 0; i < HR__REGIONS_MAX; i++) {
			if (allocator->page ? i / 2 != shard->index : i >= allocator->region_count) continue;
			const hr__region *region = &allocator->regions[i];
			if (region->size && region->edge) search_region(&search, shard, region->edge);
		}
		hr__lock_release(&shard->lock);
	}
	if (!search.found) return false;
	*first = search.first;
	*count = search.count;
	return true;
}

/* ---- moving ---- */

static bool is_region_of(const hr__shard *shard, uint32_t i)
{
	const hr__allocator *allocator = shard->allocator;
	return allocator->page ? i / 2 == shard->index : i < allocator->region_count;
}

struct look {
	const hr__movable *items;
	size_t item_count;
	bool trimmed;  /* cached chunks count as free, and */
	uint64_t page; /* whole free pages do not, if this is not 0: hr_alloc would release them, and the request's room includes them */
	hr__stretch *out;
	size_t count, capacity;
};

/* Removes the whole pages of the last stretch, which is free. Returns whether a free stretch now ends where it ended. */
static bool cut_pages(struct look *look)
{
	hr__stretch *last = &look->out[look->count - 1];
	HR_ASSERT(look->page && last->item == HR__STRETCH_FREE);
	uint64_t end = last->address + last->bytes, first, behind = hr__align_down(end, look->page);
	if (!hr__align_up(last->address, look->page, &first) || first >= behind) return true;
	last->bytes = first - last->address;
	if (!last->bytes) look->count--;
	if (behind == end || look->count == look->capacity) return false;
	look->out[look->count++] = (hr__stretch){ behind, end - behind, HR__STRETCH_FREE, false };
	return true;
}

/* [grows]: bytes that may be mapped after a stretch. */
static void look_along(struct look *look, const hr__shard *shard, hr__chunk_id edge, uint64_t grows)
{
	const hr__chunk_table *table = &shard->table;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && hr__chunk_state_of(hr__chunk_at(table, edge)) == HR__CHUNK_EDGE);
	const struct window_search items = { .items = look->items, .item_count = look->item_count };
	size_t item = item_from(&items, hr__chunk_address(hr__chunk_at(table, edge)));
	bool joined = false;
	for (hr__chunk_id id = hr__chunk_at(table, edge)->next; id && look->count < look->capacity; id = hr__chunk_at(table, id)->next) {
		const hr__chunk *chunk = hr__chunk_at(table, id);
		enum hr__chunk_state state = hr__chunk_state_of(chunk);
		if (state == HR__CHUNK_CACHED && look->trimmed) state = HR__CHUNK_FREE;
		if (state == HR__CHUNK_FREE && joined && look->out[look->count - 1].item == HR__STRETCH_FREE) {
			look->out[look->count - 1].bytes += chunk->size; /* a cached chunk beside another free one */
			continue;
		}
		if (joined && look->page && look->out[look->count - 1].item == HR__STRETCH_FREE) joined = cut_pages(look);
		if (look->count == look->capacity) return;
		hr__stretch *next = &look->out[look->count];
		*next = (hr__stretch){ hr__chunk_address(chunk), chunk->size, HR__STRETCH_FREE, joined };
		while (item < look->item_count && look->items[item].address < next->address) item++;
		if (state == HR__CHUNK_IN_USE && is_item(&items, item, next->address)) {
			next->item = (uint32_t)item;
		} else if (state == HR__CHUNK_HOLE && joined && grows) {
			next->item = HR__STRETCH_GROWS;
			if (next->bytes > grows) next->bytes = grows;
		} else if (state != HR__CHUNK_FREE) {
			joined = false;
			continue;
		}
		joined = next->item != HR__STRETCH_GROWS;
		look->count++;
	}
	if (joined && look->page && look->out[look->count - 1].item == HR__STRETCH_FREE) cut_pages(look);
}

size_t hr__blocks_look(const hr__pressure *pressure, const hr__movable *items, size_t item_count, hr__stretch *out, size_t capacity)
{
	hr__allocator *allocator = pressure->allocator;
	HR_ASSERT(pressure->size > 0 && are_sorted(items, item_count));
	struct look look = { .items = items, .item_count = item_count, .trimmed = pressure->trimmed, .out = out, .capacity = capacity };
	bool small = allocator->thread_cache && pressure->size <= HR__SMALL_MAX && pressure->alignment <= allocator->granularity;
	uint32_t home = hr__shard_for(allocator, hr__cache_get(allocator), small)->index;
	uint64_t room = !allocator->page ? 0 : pressure->trimmed ? pressure->room : room_of(allocator);
	HR__EACH_SHARD(allocator, shard)
	{
		hr__lock_take(&shard->lock);
		for (uint32_t i = 0; i < HR__REGIONS_MAX; i++) {
			const hr__region *region = &allocator->regions[i];
			if (!is_region_of(shard, i) || !region->size || !region->edge) continue;
			look.page = look.trimmed && region->small ? allocator->page : 0;
			look_along(&look, shard, region->edge, shard->index == home && region->small == small ? room : 0);
		}
		hr__lock_release(&shard->lock);
	}
	return look.count;
}

static size_t count_cached(const hr__shard *shard)
{
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	size_t count = 0;
	for (hr__chunk_id id = 1; id < shard->table.touched; id++)
		count += hr__chunk_state_of(hr__chunk_at(&shard->table, id)) == HR__CHUNK_CACHED;
	return count;
}

size_t hr__blocks_count(const hr__pressure *pressure, size_t item_count)
{
	hr__allocator *allocator = pressure->allocator;
	size_t count = item_count;
	HR__EACH_SHARD(allocator, shard)
	{
		hr__lock_take(&shard->lock);
		if (pressure->trimmed) count += count_cached(shard);
		count += shard->small.arena.free_count + shard->large.arena.free_count + 8;
		hr__lock_release(&shard->lock);
	}
	return count + item_count / 8 + HR__REGIONS_MAX; /* allowance for concurrent changes */
}
