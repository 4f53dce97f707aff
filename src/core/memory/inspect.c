/* inspect.c - reading the blocks and regions of an allocator, adding a stream to a block, and naming one again. */
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/memory/bfc/tensor_block.h"
#include "core/trace/trace.h"
#include "core/memory/allocator.h"

/* ---- blocks ---- */

/* The chunk in use at [address], with the lock of its shard held; NULL if there is none, with no lock held. */
static hr__chunk *find_block(hr__allocator *allocator, const void *address, hr__shard **out)
{
	HR__EACH_SHARD(allocator, shard)
	{
		/* Spans belong to shard 0, whatever their address. */
		bool span = shard->index == 0 && hr__load_relaxed(&allocator->spans) > 0;
		if (!span && !hr__shard_has(shard, (uintptr_t)address)) continue;
		hr__lock_take(&shard->lock);
		hr__chunk_id id = hr__lookup_find(&shard->lookup, shard->table.chunks, (uintptr_t)address);
		hr__chunk *chunk = &shard->table.chunks[id];
		if (id && hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE) {
			*out = shard;
			return chunk;
		}
		hr__lock_release(&shard->lock);
	}
	hr__fail(HR_NOT_ALLOCATED, "%s has no block at %#llx: it was freed already, or comes from another allocator", allocator->name,
	         (unsigned long long)(uintptr_t)address);
	return NULL;
}

hr_status hr_allocation_get_info(hr_allocator handle, const void *address, hr_allocation_info *info)
{
	hr_status status;
	hr__shard *shard;
	status = hr__struct_check(&hr__struct_allocation_info, "hr_allocation_get_info", info);
	if (status) return status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	const hr__chunk *chunk = find_block(allocator, address, &shard);
	if (!chunk) return HR_NOT_ALLOCATED;
	hr_allocation_info found = hr__chunk_info(chunk);
	hr__lock_release(&shard->lock);
	hr__struct_out(&hr__struct_allocation_info, info, &found);
	return HR_OK;
}

hr_status hr_allocation_record_stream(hr_allocator handle, void *address, hr_stream stream)
{
	hr_status status;
	hr__shard *shard;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	if (!hr__device_has_stream(allocator->device, stream))
		return hr__fail(HR_INVALID_ARGUMENT, "hr_allocation_record_stream: %s has no stream %u", hr__device_name(allocator->device), stream);
	hr__chunk *chunk = find_block(allocator, address, &shard);
	if (!chunk) return HR_NOT_ALLOCATED;
	chunk->streams |= hr__stream_bit(stream);
	hr__lock_release(&shard->lock);
	return HR_OK;
}

/* Readers of recordings know only allocations and frees, so the block ends and begins again. */
void hr__chunk_rename(const hr__allocator *allocator, hr__chunk *chunk, hr_name scope, hr_name tag)
{
	if ((!scope || chunk->scope == scope) && (!tag || chunk->tag == tag)) return;
	if (scope) chunk->scope = scope;
	if (tag) chunk->tag = tag;
	if (!hr__trace_is_on()) return;
	hr__trace_free((uint32_t)allocator->id, hr__chunk_address(chunk), chunk->streams ? (hr_stream)__builtin_ctzll(chunk->streams) : HR_STREAM_DEFAULT);
	hr__recording_note_block(allocator, chunk);
}

hr_status hr_allocation_set_names(hr_allocator handle, const void *address, hr_name scope, hr_name tag)
{
	hr_status status = HR_OK;
	hr__shard *shard;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	hr__chunk *chunk = find_block(allocator, address, &shard);
	if (!chunk) return HR_NOT_ALLOCATED;
	if (chunk->owner)
		status = hr__fail(HR_UNSUPPORTED, "the block at %#llx of %s belongs to a tensor; use hr_tensor_set_names", (unsigned long long)(uintptr_t)address,
		                  allocator->name);
	else hr__chunk_rename(allocator, chunk, scope, tag);
	hr__lock_release(&shard->lock);
	return status;
}

void hr__block_rename(hr__allocator *allocator, uint64_t address, uint32_t owner, hr_name scope, hr_name tag)
{
	hr__last before = hr__last_get();
	hr__shard *shard;
	hr__chunk *chunk = find_block(allocator, (const void *)(uintptr_t)address, &shard);
	if (chunk && chunk->owner == owner) hr__chunk_rename(allocator, chunk, scope, tag);
	if (chunk) hr__lock_release(&shard->lock);
	else hr__last_set(&before);
}

/* ---- regions ---- */

/* The [index]th existing region; NULL (status set) after the last. With every shard's lock held. */
static const hr__region *region_at(const hr__allocator *allocator, uint32_t index, hr_status *status, uint32_t *slot)
{
	HR_ASSERT(hr__shards_are_locked(allocator));
	uint32_t seen = 0;
	for (*slot = 0; *slot < HR__REGIONS_MAX; ++*slot)
		if (allocator->regions[*slot].size && seen++ == index) return &allocator->regions[*slot];
	*status = hr__fail(HR_INVALID_ARGUMENT, "%s has %u regions; there is no number %u", allocator->name, seen, index);
	return NULL;
}

static hr_chunk_view view_of(const hr__chunk *chunk)
{
	hr_chunk_view view = { .address = (void *)(uintptr_t)hr__chunk_address(chunk),
		                   .bytes = chunk->size,
		                   .kind = (hr_chunk_kind)hr__chunk_state_of(chunk) };
	if (view.kind != HR_CHUNK_IN_USE) return view;
	view.requested = chunk->requested;
	view.op = chunk->op;
	view.scope = chunk->scope;
	view.tag = chunk->tag;
	view.shape = chunk->shape;
	view.dtype = (hr_dtype)chunk->dtype;
	return view;
}

/* Visits the chunks of a region. The caches are stopped, so that states do not change. */
static hr_status visit(hr__allocator *allocator, uint32_t index, bool (*each)(void *, const hr_chunk_view *), void *context,
                       hr__region *copy)
{
	hr_status status = HR_OK;
	uint32_t slot;
	hr__caches_stop(allocator);
	hr__shards_lock(allocator);
	const hr__region *region = region_at(allocator, index, &status, &slot);
	if (region) {
		const hr__chunk_table *table = &allocator->shards[allocator->page ? slot / 2 : 0].table;
		*copy = *region;
		for (hr__chunk_id id = table->chunks[region->edge].next; id; id = table->chunks[id].next) {
			hr_chunk_view view = view_of(hr__chunk_at(table, id));
			if (!each(context, &view)) break;
		}
	}
	hr__shards_unlock(allocator);
	hr__caches_start(allocator);
	return status;
}

hr_status hr_allocator_visit(hr_allocator handle, uint32_t index, bool (*each)(void *context, const hr_chunk_view *chunk), void *context)
{
	hr_status status;
	hr__region region;
	if (!each) return hr__fail(HR_INVALID_ARGUMENT, "hr_allocator_visit: visit is NULL");
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	return allocator ? visit(allocator, index, each, context, &region) : status;
}

static bool sum_up(void *context, const hr_chunk_view *chunk)
{
	hr_region_info *info = context;
	int64_t bytes = (int64_t)chunk->bytes;
	switch (chunk->kind) {
	case HR_CHUNK_IN_USE:
		info->bytes_in_use += bytes;
		info->num_live++;
		break;
	case HR_CHUNK_CACHED:
		info->bytes_cached += bytes;
		break;
	case HR_CHUNK_FREE:
		info->bytes_free += bytes;
		info->num_free_blocks++;
		if (bytes > info->largest_free_block) info->largest_free_block = bytes;
		break;
	case HR_CHUNK_UNMAPPED:
		break;
	}
	return true;
}

hr_status hr_allocator_get_region(hr_allocator handle, uint32_t index, hr_region_info *info)
{
	hr_status status;
	hr__region region;
	status = hr__struct_check(&hr__struct_region_info, "hr_allocator_get_region", info);
	if (status) return status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	hr_region_info result = { .struct_size = sizeof result };
	status = visit(allocator, index, sum_up, &result, &region);
	if (status) return status;
	result.base = (void *)(uintptr_t)region.address;
	result.reserved_addresses = region.size;
	result.bytes_reserved = (int64_t)region.mapped;
	result.small_blocks = region.small;
	result.fragmentation = result.bytes_free ? 1.0 - (double)result.largest_free_block / (double)result.bytes_free : 0.0;
	hr__struct_out(&hr__struct_region_info, info, &result);
	return HR_OK;
}
