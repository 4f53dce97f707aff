/* tensor_block.c - see tensor_block.h. */
#include "core/memory/bfc/tensor_block.h"

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/trace/trace.h"

static uint64_t occupied(const hr__allocator *allocator, const hr_request *request)
{
	uint64_t bytes = 0;
	if (!hr__align_up(request->bytes, allocator->granularity, &bytes)) HR_ASSERT(false); /* the request was met */
	return bytes;
}

hr_status hr__block_take(hr__allocator *allocator, const hr_request *request, bool inactive, uint64_t *address, uint64_t *bytes)
{
	void *block;
	HR_ASSERT(allocator->kind == HR__KIND_BFC);
	hr_status status = hr__request_check(allocator, request);
	if (!status) status = hr__bfc_alloc_quietly(allocator, hr__cache_get(allocator), request, inactive, &block);
	if (status) return status;
	*address = (uintptr_t)block;
	*bytes = occupied(allocator, request);
	return HR_OK;
}

hr_status hr__block_take_at(hr__allocator *allocator, const hr_request *request, bool quietly, bool inactive, uint64_t address, uint64_t *bytes)
{
	hr_status status = hr__request_check(allocator, request);
	if (!status) status = hr__bfc_alloc_at(allocator, hr__cache_get(allocator), request, quietly, inactive, address);
	if (status) return status;
	*bytes = occupied(allocator, request);
	return HR_OK;
}

uint64_t hr__blocks_map_ns(const hr__allocator *allocator)
{
	return hr__load_relaxed(&allocator->map_ns);
}

hr_status hr__blocks_gather(hr__allocator *allocator, uint64_t most, uint64_t *address, uint64_t *bytes)
{
	hr__shard *shard = hr__shard_for(allocator, hr__cache_get(allocator), false);
	uint64_t released;
	*address = *bytes = 0;
	if (!allocator->page || !allocator->stitch) return HR_OK;
	hr_status status = hr__bfc_trim(allocator, &released);
	if (status) return status;
	uint64_t room = allocator->limit - (uint64_t)hr__load_relaxed(&allocator->reserved), device = hr__page_pool_available(allocator->device);
	if (room > device) room = device;
	room -= room / 256; /* left for small blocks */
	room = hr__align_down(room, allocator->page);
	if (most <= room) room = hr__align_down(most + allocator->page - 1, allocator->page);
	if (!room) return HR_OK;
	hr__lock_take(&shard->lock);
	status = hr__shard_ensure_records(shard, 8);
	if (!status) status = hr__shard_pool_grow(shard, &shard->large, room, 0, false);
	hr__chunk_id best = shard->large.arena.tail;
	for (hr__chunk_id id = hr__arena_first_free(&shard->large.arena, 0); id; id = hr__arena_next_free(&shard->large.arena, id))
		if (!best || hr__chunk_at(&shard->table, id)->size > hr__chunk_at(&shard->table, best)->size) best = id;
	if (best) {
		*address = hr__chunk_address(hr__chunk_at(&shard->table, best));
		*bytes = hr__chunk_at(&shard->table, best)->size;
	}
	hr__lock_release(&shard->lock);
	return status;
}

void hr__blocks_keep_apart(hr__allocator *allocator)
{
	if (allocator->thread_cache) hr__store_relaxed(&allocator->apart_max, allocator->page / 2);
}

hr_status hr__block_give(hr__allocator *allocator, uint64_t address, uint64_t streams, hr__epochs epochs, bool quietly)
{
	return hr__bfc_give(allocator, hr__cache_get(allocator), address, streams, epochs, quietly);
}

void hr__block_forget(hr__allocator *allocator)
{
	hr__shard *shard = &allocator->shards[0];
	hr__lock_take(&shard->lock);
	hr__owner_add(&shard->stats.frees, 1);
	hr__fetch_add_relaxed(&allocator->away, -1);
	hr__lock_release(&shard->lock);
}

static uint64_t free_bytes_of(const hr__shard *shard, hr__chunk_id id)
{
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	if (!id) return 0;
	const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
	return hr__chunk_state_of(chunk) == HR__CHUNK_FREE ? chunk->size : 0;
}

/* A block, and the extent that would be free without it. */
struct stretch {
	uint64_t bytes, begin, end;
};

static struct stretch find_stretch(hr__allocator *allocator, uint64_t address)
{
	struct stretch found = { 0 };
	HR__EACH_SHARD(allocator, shard)
	{
		bool span = shard->index == 0 && hr__load_relaxed(&allocator->spans) > 0; /* spans are outside the shards' ranges */
		if (!span && !hr__shard_has(shard, address)) continue;
		hr__lock_take(&shard->lock);
		hr__chunk_id id = hr__lookup_find(&shard->lookup, shard->table.chunks, address);
		if (id) {
			const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
			found = (struct stretch){ chunk->size, address, address + chunk->size };
			if (chunk->region != HR__REGION_NONE) {
				found.begin -= free_bytes_of(shard, chunk->prev);
				found.end += free_bytes_of(shard, chunk->next);
			}
		}
		hr__lock_release(&shard->lock);
		if (found.bytes) break;
	}
	return found;
}

uint64_t hr__block_bytes(hr__allocator *allocator, uint64_t address, uint64_t *room)
{
	struct stretch found = find_stretch(allocator, address);
	if (room && found.bytes) *room = found.end - found.begin;
	return found.bytes;
}

/* Bytes of whole pages from [begin] to [end]. */
static uint64_t whole_between(const hr__allocator *allocator, uint64_t begin, uint64_t end)
{
	end = hr__align_down(end, allocator->page);
	return hr__align_up(begin, allocator->page, &begin) && begin < end ? end - begin : 0;
}

uint64_t hr__block_pages(hr__allocator *allocator, uint64_t address, bool gain)
{
	HR_ASSERT(allocator->page != 0);
	struct stretch found = find_stretch(allocator, address);
	uint64_t all = whole_between(allocator, found.begin, found.end);
	if (!gain || !all) return all;
	return all - whole_between(allocator, found.begin, address) - whole_between(allocator, address + found.bytes, found.end);
}

/* The shard that contains [address], with its lock acquired; NULL = none. */
static hr__shard *hold_shard_of(hr__allocator *allocator, uint64_t address)
{
	HR__EACH_SHARD(allocator, shard)
	{
		if (!hr__shard_has(shard, address)) continue;
		hr__lock_take(&shard->lock);
		return shard;
	}
	return NULL;
}

void hr__block_own(hr__allocator *allocator, uint64_t address, uint32_t owner)
{
	HR_ASSERT(owner != 0);
	hr__shard *shard = hold_shard_of(allocator, address);
	if (!shard) return;
	hr__chunk_id id = hr__lookup_find(&shard->lookup, shard->table.chunks, address);
	if (id) hr__chunk_at(&shard->table, id)->owner = owner;
	hr__lock_release(&shard->lock);
}

uint64_t hr__block_before(hr__allocator *allocator, uint64_t address)
{
	hr__shard *shard = hold_shard_of(allocator, address);
	if (!shard) return 0;
	hr__chunk_id id = hr__lookup_find(&shard->lookup, shard->table.chunks, address);
	uint64_t bytes = id ? free_bytes_of(shard, hr__chunk_at(&shard->table, id)->prev) : 0;
	hr__lock_release(&shard->lock);
	return bytes;
}

static void note_placed(const hr__allocator *allocator, const hr__chunk *chunk)
{
	hr_request request = { .struct_size = sizeof request, .bytes = chunk->requested, .op = chunk->op, .scope = chunk->scope,
		                   .tag = chunk->tag, .shape = chunk->shape, .dtype = (hr_dtype)chunk->dtype };
	hr__trace_alloc_existing((uint32_t)allocator->id, &request, hr__chunk_address(chunk), chunk->size);
}

uint64_t hr__blocks_exchange(hr__allocator *allocator, uint64_t left, uint64_t right)
{
	hr__shard *shard = hold_shard_of(allocator, left);
	hr__lookup *lookup = &shard->lookup;
	HR_ASSERT(shard && left < right);
	hr__chunk_id first = hr__lookup_find(lookup, shard->table.chunks, left), second = hr__lookup_find(lookup, shard->table.chunks, right);
	hr__chunk *chunk = hr__chunk_at(&shard->table, first), *other = hr__chunk_at(&shard->table, second);
	HR_ASSERT(hr__chunk_end(chunk) == right && chunk->region == other->region);
	hr__lookup_remove(lookup, left, first);
	hr__lookup_remove(lookup, right, second);
	hr__arena_exchange(&hr__shard_pool_of(shard, chunk)->arena, first, second);
	uint64_t moved = hr__chunk_address(chunk);
	hr__lookup_insert(lookup, left, second);
	hr__lookup_insert(lookup, moved, first);
	if (hr__trace_is_on()) { /* for readers that know only allocations and frees */
		hr__trace_free((uint32_t)allocator->id, left, HR_STREAM_DEFAULT);
		hr__trace_free((uint32_t)allocator->id, right, HR_STREAM_DEFAULT);
		note_placed(allocator, other);
		note_placed(allocator, chunk);
	}
	hr__lock_release(&shard->lock);
	return moved;
}
