/* inspect.c - observing an allocator: statistics scopes, recordings, blocks, regions. */
#include <string.h>

#include "core/base/status.h"
#include "core/base/struct.h"
#include "headroom_record.h"
#include "core/memory/allocator.h"
#include "core/trace/stacks.h"
#include "core/trace/trace.h"

/* ---- statistics scopes ---- */

void hr__watch(const hr__allocator *allocator, hr__thread_state *thread, int64_t bytes)
{
	uint32_t device = hr__device_index(allocator->device);
	for (uint32_t i = 0; thread && i < thread->scope_depth; i++) {
		hr__scope_frame *frame = &thread->scopes[i];
		if (frame->device != device) continue;
		frame->totals.net_bytes += bytes;
		if (frame->totals.net_bytes > frame->totals.peak_bytes) frame->totals.peak_bytes = frame->totals.net_bytes;
		if (bytes > 0) frame->totals.num_allocs++;
		else frame->totals.num_frees++;
	}
}

/* Updates [watch] in the caches that the thread has; later caches set it when they join. */
static void watch_changed(hr__thread_state *thread)
{
	for (uint32_t slot = 0; slot < HR__ALLOCATORS_MAX; slot++)
		if (thread->caches[slot]) hr__store_relaxed(&thread->caches[slot]->watch, thread->scope_depth != 0);
}

hr_status hr_stats_scope_begin(hr_device handle)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	hr__thread_state *thread = hr__thread_get();
	if (!thread) return hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for the thread's scopes");
	if (thread->scope_depth == HR__SCOPES_MAX)
		return hr__fail(HR_TOO_MANY, "this thread is inside %u statistics scopes already; end one first", HR__SCOPES_MAX);
	thread->scopes[thread->scope_depth++] = (hr__scope_frame){ .device = hr__device_index(device) };
	if (thread->scope_depth == 1) watch_changed(thread);
	return HR_OK;
}

hr_status hr_stats_scope_end(hr_device handle, hr_stats_scope *scope)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	status = scope ? hr__struct_check(&hr__struct_stats_scope, "hr_stats_scope_end", scope) : HR_OK;
	if (status) return status;
	hr__thread_state *thread = hr__thread_self;
	if (!thread || !thread->scope_depth)
		return hr__fail(HR_INVALID_ARGUMENT, "hr_stats_scope_end: this thread is inside no scope; every end needs its begin");
	hr__scope_frame *frame = &thread->scopes[thread->scope_depth - 1];
	if (frame->device != hr__device_index(device))
		return hr__fail(HR_INVALID_ARGUMENT, "hr_stats_scope_end: the innermost scope is not on %s; scopes end in reverse order",
		                hr__device_name(device));
	if (scope) hr__struct_out(&hr__struct_stats_scope, scope, &frame->totals);
	if (--thread->scope_depth == 0) watch_changed(thread);
	return HR_OK;
}

/* ---- recording ---- */

void hr__note_failed(const hr__allocator *allocator, const hr_request *request)
{
	if (!hr__trace_is_on()) return;
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_ALLOC_FAILED,
	                              .allocator = (uint32_t)allocator->id,
	                              .stream = request->stream,
	                              .requested = request->bytes,
	                              .op = request->op,
	                              .scope = request->scope,
	                              .tag = request->tag,
	                              .shape = request->shape,
	                              .dtype = request->dtype });
}

void hr__note_reserved(const hr__allocator *allocator, uint64_t address, int64_t bytes)
{
	if (!hr__trace_is_on()) return;
	hr__trace_event(&(hr__event){ .kind = bytes > 0 ? HR__EVENT_MAP : HR__EVENT_UNMAP,
	                              .allocator = (uint32_t)allocator->id,
	                              .address = address,
	                              .bytes = (uint64_t)(bytes > 0 ? bytes : -bytes) });
}

void hr__note_allocator(const hr__allocator *allocator)
{
	uint32_t device = hr__device_index(allocator->device);
	hr__trace_define_device(device, hr__device_name(allocator->device), hr__device_limit(allocator->device), allocator->page);
	hr__trace_define_allocator((uint32_t)allocator->id, allocator->name, allocator->kind_name, device);
	hr__trace_define_limit((uint32_t)allocator->id, allocator->limit);
}

static void describe_block(const hr__allocator *allocator, const hr__chunk *chunk)
{
	hr_request request = HR_REQUEST(chunk->requested);
	request.stream = chunk->streams ? (hr_stream)__builtin_ctzll(chunk->streams) : HR_STREAM_DEFAULT; /* a span may have none */
	request.op = chunk->op;
	request.scope = chunk->scope;
	request.tag = chunk->tag;
	request.shape = chunk->shape;
	request.dtype = (hr_dtype)chunk->dtype;
	hr__trace_alloc_existing((uint32_t)allocator->id, &request, hr__chunk_address(chunk), chunk->size);
}

/* Records existing memory: reserved memory first, then the blocks. */
static void describe_existing(hr__allocator *allocator, void *context)
{
	(void)context;
	hr__note_allocator(allocator);
	hr__caches_stop(allocator);
	hr__shards_lock(allocator);
	for (uint32_t i = 0; i < HR__REGIONS_MAX; i++)
		if (allocator->regions[i].mapped) hr__note_reserved(allocator, allocator->regions[i].address, (int64_t)allocator->regions[i].mapped);
	HR__EACH_SHARD(allocator, shard)
	{
		for (hr__chunk_id id = 1; id < shard->table.touched; id++) {
			const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
			if (hr__chunk_state_of(chunk) != HR__CHUNK_IN_USE) continue;
			if (allocator->kind == HR__KIND_BFC && chunk->region == HR__REGION_NONE)
				hr__note_reserved(allocator, hr__chunk_address(chunk), (int64_t)chunk->size);
			describe_block(allocator, chunk);
		}
	}
	hr__shards_unlock(allocator);
	for (hr__cache *cache = allocator->caches; cache && hr__stacks_depth(); cache = cache->next)
		hr__fetch_or_acq_rel(&cache->thread->context, HR__CONTEXT_STACKS);
	hr__caches_start(allocator);
}

/* Other threads continue meanwhile. Their events may concern blocks that are not written yet, or that are written twice, but such
 * events come before the mark without a text. The mark tells readers that the blocks from before the recording are complete. */
hr_status hr__recording_start(const char *path, uint64_t max_bytes, uint32_t stack_depth)
{
	if (hr__forked) return hr__fail(HR_FORKED, "this process is a fork; call hr_shutdown() first");
	hr_status status = hr__trace_open_limited(path, max_bytes, stack_depth);
	if (status) return status;
	hr__allocators_visit(NULL, describe_existing, NULL);
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_MARK });
	return HR_OK;
}

hr_status hr__recording_stop(void)
{
	if (hr__forked) return hr__fail(HR_FORKED, "this process is a fork, and a recording is its parent's; call hr_shutdown() first");
	return hr__trace_close();
}

hr_status hr_trace_mark(const char *text, uint64_t value)
{
	if (!text || !text[0]) return hr__fail(HR_INVALID_ARGUMENT, "hr_trace_mark: a mark needs a text");
	if (!hr__trace_is_on()) return HR_OK;
	hr_name scope = hr_name_scope_current();
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_MARK, .scope = scope, .tag = hr_name_intern(text), .bytes = value });
	return HR_OK;
}

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
	hr__fail(HR_NOT_ALLOCATED, "%s has no block at %#llx: it was freed already, or came from elsewhere", allocator->name,
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

hr_status hr_record_stream(hr_allocator handle, void *address, hr_stream stream)
{
	hr_status status;
	hr__shard *shard;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	if (!hr__device_has_stream(allocator->device, stream))
		return hr__fail(HR_INVALID_ARGUMENT, "hr_record_stream: %s has no stream %u", hr__device_name(allocator->device), stream);
	hr__chunk *chunk = find_block(allocator, address, &shard);
	if (!chunk) return HR_NOT_ALLOCATED;
	chunk->streams |= hr__stream_bit(stream);
	hr__lock_release(&shard->lock);
	return HR_OK;
}

hr_status hr_allocator_trim(hr_allocator handle, uint64_t *released)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	uint64_t bytes = 0;
	status = allocator->kind == HR__KIND_BFC ? hr__bfc_trim(allocator, &bytes) : HR_OK;
	if (allocator->page) hr__pool_shrink(allocator->device);
	if (released) *released = bytes;
	return status;
}

/* ---- regions ---- */

/* The [index]th existing region; NULL (status set) after the last. With every shard's lock held. */
static const hr__region *region_at(const hr__allocator *allocator, uint32_t index, hr_status *status, uint32_t *slot)
{
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
