/* direct.c - allocators without an arena: "direct" passes every request to the device, "custom" to a user's functions.
 *
 * Each block has a chunk record that is in no arena, so ledger, lookup and statistics work as for other allocators. The device or
 * the user's functions are called without the lock. The bytes are claimed before the call, so that the limit holds at every
 * moment. */
#include "core/memory/allocator.h"
#include "core/memory/limit.h"

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/trace/trace.h"

#define BATCH 64u

/* ---- the device ---- */

static bool uses_pages(const hr__allocator *allocator)
{
	return allocator->kind == HR__KIND_DIRECT && !hr__device_has_plain(allocator->device);
}

static hr__page_id *pages_of(const hr__allocator *allocator, const hr__chunk *chunk)
{
	return uses_pages(allocator) ? chunk->pages : NULL;
}

/* Releases the first [mapped] pages of a block and its addresses. If the device refuses to unmap, nothing changes. */
static hr_status unmap_block(hr__allocator *allocator, uint64_t address, uint64_t bytes, const hr__page_id *pages, uint64_t mapped)
{
	HR_ASSERT(mapped <= bytes / allocator->page);
	hr_status status = mapped ? hr__device_unmap(allocator->device, address, (uint32_t)mapped) : HR_OK;
	if (status) return status;
	for (uint64_t i = 0; i < mapped; i += BATCH)
		hr__page_pool_give(allocator->device, pages + i, mapped - i < BATCH ? (uint32_t)(mapped - i) : BATCH);
	hr__device_release(allocator->device, address, bytes); /* on failure only addresses are lost */
	return HR_OK;
}

static void free_table(const hr__allocator *allocator, uint64_t bytes, hr__page_id *pages)
{
	if (pages) hr__os()->free(pages, bytes / allocator->page * sizeof *pages);
}

/* Reserves addresses for one block and maps its pages. */
static hr_status map_block(hr__allocator *allocator, uint64_t bytes, uint64_t *out, hr__page_id **out_pages)
{
	HR_ASSERT(uses_pages(allocator) && bytes % allocator->page == 0);
	uint64_t address, page = allocator->page, count = bytes / page, done = 0;
	void *block;
	int error = hr__os()->alloc(count * sizeof(hr__page_id), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for the page table of a block");
	hr__page_id *pages = block;
	hr_status status = hr__device_reserve(allocator->device, bytes, &address);
	if (status) {
		hr__os()->free(pages, count * sizeof *pages);
		return status;
	}
	while (done < count && !status) {
		uint32_t n = count - done < BATCH ? (uint32_t)(count - done) : BATCH;
		status = hr__page_pool_take(allocator->device, n, pages + done);
		if (status) break;
		status = hr__device_map(allocator->device, address + done * page, pages + done, n);
		if (status) hr__page_pool_give(allocator->device, pages + done, n);
		else done += n;
	}
	if (status) {
		unmap_block(allocator, address, bytes, pages, done);
		free_table(allocator, bytes, pages);
		return status;
	}
	*out = address;
	*out_pages = pages;
	return HR_OK;
}

static hr_status obtain(hr__allocator *allocator, const hr_request *request, uint64_t bytes, uint64_t *address, hr__page_id **pages)
{
	*pages = NULL;
	if (uses_pages(allocator)) return map_block(allocator, bytes, address, pages);
	if (allocator->kind == HR__KIND_DIRECT) return hr__page_pool_plain_alloc(allocator->device, bytes, address);

	void *block = NULL;
	size_t alignment = request->alignment ? request->alignment : allocator->granularity;
	hr_status status = allocator->custom.table.alloc(allocator->custom_state, request->bytes, alignment, request->stream, &block);
	if (status) return hr__fail(status, "%s: the custom allocator \"%s\" could not give %zu byte%s", allocator->name,
	                            allocator->kind_name, request->bytes, hr__plural(request->bytes));
	if (block && ((uintptr_t)block & (alignment - 1)))
		allocator->custom.table.free(allocator->custom_state, block, request->bytes, request->stream);
	if (!block || ((uintptr_t)block & (alignment - 1)))
		return hr__fail(HR_CORRUPT, "the custom allocator \"%s\" gave address %p, which is not a multiple of %zu", allocator->kind_name,
		                block, alignment);
	*address = (uintptr_t)block;
	return HR_OK;
}

/* Returns the memory of a block to the device or to the user's functions. Its page table is kept. */
static hr_status return_memory(hr__allocator *allocator, uint64_t address, uint64_t bytes, const hr__page_id *pages, hr_stream stream)
{
	HR_ASSERT(!pages || uses_pages(allocator));
	if (pages) return unmap_block(allocator, address, bytes, pages, bytes / allocator->page);
	if (allocator->kind == HR__KIND_DIRECT) return hr__page_pool_plain_free(allocator->device, address, bytes);
	hr_status status = allocator->custom.table.free(allocator->custom_state, (void *)(uintptr_t)address, bytes, stream);
	return status ? hr__fail(status, "%s: the custom allocator \"%s\" could not free the block at %#llx", allocator->name,
	                         allocator->kind_name, (unsigned long long)address)
	              : HR_OK;
}

/* ---- the ledger ---- */

hr_status hr__direct_over_limit(const hr__allocator *allocator, const hr_request *request)
{
	hr__sizes size = HR__SIZES(request->bytes, (uint64_t)hr__load_relaxed(&allocator->reserved), allocator->limit);
	return hr__fail(HR_OUT_OF_MEMORY, "%s cannot allocate %s: %s of its limit of %s are in use; free memory or raise the limit",
	                allocator->name, size.text[0], size.text[1], size.text[2]);
}

/* Adds the block to the ledger, the lookup and the statistics. */
static hr_status add_to_ledger(hr__allocator *allocator, hr__cache *cache, const hr_request *request, uint64_t address, uint64_t bytes,
                       hr__page_id *pages)
{
	hr__shard *shard = &allocator->shards[0];
	hr__lock_take(&shard->lock);
	hr_status status = hr__shard_ensure_records(shard, 1);
	if (!status && hr__lookup_find(&shard->lookup, shard->table.chunks, address))
		status = hr__fail(HR_CORRUPT, "the custom allocator \"%s\" gave address %#llx, which is allocated already", allocator->kind_name,
		                  (unsigned long long)address);
	if (!status) {
		hr__chunk_id id = hr__chunk_new(&shard->table);
		hr__chunk *chunk = hr__chunk_at(&shard->table, id);
		hr__store_relaxed(&chunk->address, address);
		chunk->size = bytes;
		chunk->region = 0;
		chunk->pages = pages;
		hr__chunk_describe(chunk, request);
		hr__store_relaxed(&chunk->state, HR__CHUNK_IN_USE);
		hr__lookup_insert(&shard->lookup, address, id);
		hr__log_alloc(cache, request, address);
		hr__meter_account(shard, cache, (int64_t)bytes);
		hr__owner_add(&shard->stats.allocs, 1);
		hr__owner_add(&shard->stats.sources[HR__SOURCE_DEVICE], 1);
		hr__owner_add(&shard->stats.total, (int64_t)bytes);
		hr__owner_add(&shard->stats.requested, (int64_t)request->bytes);
		hr__owner_max(&shard->stats.largest, (int64_t)bytes);
	}
	hr__lock_release(&shard->lock);
	return status;
}

/* A device guarantees no alignment of plain memory, so the address is checked. */
static hr_status check_alignment(const hr__allocator *allocator, const hr_request *request, uint64_t address)
{
	uint64_t alignment = request->alignment ? request->alignment : allocator->granularity;
	if (!(address & (alignment - 1))) return HR_OK;
	return hr__fail(HR_UNSUPPORTED, "%s asks the device, which gave address %#llx; use a bfc allocator for an alignment of %llu",
	                allocator->name, (unsigned long long)address, (unsigned long long)alignment);
}

hr_status hr__direct_alloc(hr__allocator *allocator, hr__cache *cache, const hr_request *request, void **out)
{
	uint64_t address, bytes, unit = uses_pages(allocator) ? allocator->page : allocator->granularity;
	hr__page_id *pages;
	HR_ASSERT(allocator->kind != HR__KIND_BFC && hr__lock_none_from(HR__RANK_CACHES));
	if (!hr__align_up(request->bytes, unit, &bytes))
		return hr__fail(HR_INVALID_ARGUMENT, "%s cannot allocate %zu bytes: too large to round up", allocator->name, request->bytes);
	if (allocator->kind == HR__KIND_CUSTOM) bytes = request->bytes;
	if (!hr__limit_claim(allocator, bytes)) return hr__direct_over_limit(allocator, request);
	hr_status status = obtain(allocator, request, bytes, &address, &pages);
	if (status) {
		hr__limit_unclaim(allocator, bytes);
		return status;
	}
	hr__limit_hold(allocator, bytes);
	status = check_alignment(allocator, request, address);
	if (!status) status = add_to_ledger(allocator, cache, request, address, bytes, pages);
	if (status) {
		if (status != HR_CORRUPT) return_memory(allocator, address, bytes, pages, request->stream);
		free_table(allocator, bytes, pages);
		hr__limit_unhold(allocator, bytes);
		return status;
	}
	if (hr__trace_is_on()) hr__trace_alloc((uint32_t)allocator->id, request, address, bytes);
	*out = (void *)(uintptr_t)address;
	return HR_OK;
}

/* Removes a block from the ledger, but keeps its record, since the device may refuse to take the memory back. */
static void remove_from_ledger(hr__shard *shard, hr__cache *cache, hr__chunk_id id)
{
	hr__chunk *chunk = hr__chunk_at(&shard->table, id);
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE);
	hr__lookup_remove(&shard->lookup, hr__chunk_address(chunk), id);
	hr__store_relaxed(&chunk->state, HR__CHUNK_UNUSED);
	hr__meter_account(shard, cache, -(int64_t)chunk->size);
	hr__owner_add(&shard->stats.frees, 1);
	hr__owner_add(&shard->stats.requested, -(int64_t)chunk->requested);
}

/* Undoes remove_from_ledger. If other threads used up the room in the lookup meanwhile, the lookup grows or, failing that, gets
 * slightly more than half full. */
static void restore_to_ledger(hr__shard *shard, hr__cache *cache, hr__chunk_id id)
{
	hr__chunk *chunk = hr__chunk_at(&shard->table, id);
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && hr__chunk_state_of(chunk) == HR__CHUNK_UNUSED);
	hr__shard_ensure_records(shard, 0);
	hr__lookup_insert(&shard->lookup, hr__chunk_address(chunk), id);
	hr__store_relaxed(&chunk->state, HR__CHUNK_IN_USE);
	hr__meter_account(shard, cache, (int64_t)chunk->size);
	hr__owner_add(&shard->stats.frees, -1);
	hr__owner_add(&shard->stats.requested, (int64_t)chunk->requested);
}

hr_status hr__direct_free(hr__allocator *allocator, hr__cache *cache, uint64_t address, hr_stream stream)
{
	hr__shard *shard = &allocator->shards[0];
	HR_ASSERT(allocator->kind != HR__KIND_BFC);
	hr__lock_take(&shard->lock);
	hr__chunk_id id = hr__lookup_find(&shard->lookup, shard->table.chunks, address);
	if (!id) {
		hr__lock_release(&shard->lock);
		return hr__fail(HR_NOT_ALLOCATED, "%s has no block at %#llx: it was freed already, or comes from another allocator", allocator->name,
		                (unsigned long long)address);
	}
	hr__chunk *chunk = hr__chunk_at(&shard->table, id);
	uint64_t bytes = chunk->size, streams = chunk->streams | hr__stream_bit(stream);
	hr__page_id *pages = pages_of(allocator, chunk);
	remove_from_ledger(shard, cache, id);
	hr__lock_release(&shard->lock);

	/* The device releases memory at once, so queued work on it must finish first. */
	hr_status status;
	int64_t waits = 0;
	if (allocator->kind == HR__KIND_DIRECT)
		status = hr__device_wait_idle(allocator->device, streams, hr__device_epoch(allocator->device));
	else /* a custom free gets one stream, so that stream waits for the others that used the block */
		status = hr__device_order(allocator->device, stream, streams, hr__device_epoch(allocator->device), &waits);
	/* Before the memory can serve another request. */
	if (!status && hr__trace_is_on()) hr__trace_free((uint32_t)allocator->id, address, stream);
	if (!status) status = return_memory(allocator, address, bytes, pages, stream);

	hr__lock_take(&shard->lock);
	hr__owner_add(&shard->stats.waits, waits);
	if (status) {
		restore_to_ledger(shard, cache, id);
	} else {
		hr__log_free(cache, chunk);
		hr__chunk_drop(&shard->table, id);
	}
	hr__lock_release(&shard->lock);
	if (status) return status;
	free_table(allocator, bytes, pages);
	hr__limit_unhold(allocator, bytes);
	return HR_OK;
}

/* Frees every block that is still allocated. */
void hr__direct_close(hr__allocator *allocator)
{
	hr__shard *shard = &allocator->shards[0];
	HR_ASSERT(!allocator->caches);
	for (hr__chunk_id id = 1; id < shard->table.touched; id++) {
		hr__chunk *chunk = hr__chunk_at(&shard->table, id);
		if (hr__chunk_state_of(chunk) != HR__CHUNK_IN_USE) continue;
		hr__page_id *pages = pages_of(allocator, chunk);
		return_memory(allocator, hr__chunk_address(chunk), chunk->size, pages, HR_STREAM_DEFAULT);
		free_table(allocator, chunk->size, pages);
		hr__limit_unhold(allocator, chunk->size);
	}
}
