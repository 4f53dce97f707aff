/* recording.c - what an allocator writes to a recording besides its allocations and frees, and starting and stopping one. */
#include "core/base/status.h"
#include "core/memory/allocator.h"
#include "core/trace/stacks.h"
#include "core/trace/trace.h"
#include "headroom_record.h"

void hr__recording_note_failed(const hr__allocator *allocator, const hr_request *request)
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

void hr__recording_note_reserved(const hr__allocator *allocator, uint64_t address, int64_t bytes)
{
	HR_ASSERT(bytes != 0);
	if (!hr__trace_is_on()) return;
	hr__trace_event(&(hr__event){ .kind = bytes > 0 ? HR__EVENT_MAP : HR__EVENT_UNMAP,
	                              .allocator = (uint32_t)allocator->id,
	                              .address = address,
	                              .bytes = (uint64_t)(bytes > 0 ? bytes : -bytes) });
}

void hr__recording_note_allocator(const hr__allocator *allocator)
{
	uint32_t device = hr__device_index(allocator->device);
	hr__trace_define_device(device, hr__device_name(allocator->device), hr__device_limit(allocator->device), allocator->page);
	hr__trace_define_allocator((uint32_t)allocator->id, allocator->name, allocator->kind_name, device);
	hr__trace_define_limit((uint32_t)allocator->id, allocator->limit);
}

void hr__recording_note_block(const hr__allocator *allocator, const hr__chunk *chunk)
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
	HR_ASSERT(hr__allocators_are_locked());
	hr__recording_note_allocator(allocator);
	hr__caches_stop(allocator);
	hr__shards_lock(allocator);
	for (uint32_t i = 0; i < HR__REGIONS_MAX; i++)
		if (allocator->regions[i].mapped) hr__recording_note_reserved(allocator, allocator->regions[i].address, (int64_t)allocator->regions[i].mapped);
	HR__EACH_SHARD(allocator, shard)
	{
		for (hr__chunk_id id = 1; id < shard->table.touched; id++) {
			const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
			if (hr__chunk_state_of(chunk) != HR__CHUNK_IN_USE) continue;
			if (allocator->kind == HR__KIND_BFC && chunk->region == HR__REGION_NONE)
				hr__recording_note_reserved(allocator, hr__chunk_address(chunk), (int64_t)chunk->size);
			hr__recording_note_block(allocator, chunk);
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
	if (!text || !text[0]) return hr__fail(HR_INVALID_ARGUMENT, "hr_trace_mark: the text is empty");
	if (!hr__trace_is_on()) return HR_OK;
	hr_name scope = hr_name_scope_current();
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_MARK, .scope = scope, .tag = hr_name_intern(text), .bytes = value });
	return HR_OK;
}
