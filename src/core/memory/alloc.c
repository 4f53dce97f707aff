/* alloc.c - the fast path of hr_alloc and hr_free, which almost every call takes.
 *
 *   small (64 KiB and less)   the thread's cache: no lock, no shared cache line is written
 *   large                     the lock of a shard, the arena, the lookup
 *   anything unusual          bfc.c, direct.c: first call of a thread, empty bin, growth, pressure, errors */
#include "core/memory/allocator.h"

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/trace/stacks.h"
#include "core/trace/trace.h"

/* The calling thread's cache of the allocator; NULL on first use, after close, after fork and for an invalid handle. */
static inline hr__cache *cache_of(const hr__thread_state *self, hr_allocator handle)
{
	if (HR_UNLIKELY(!self)) return NULL;
	hr__cache *cache = self->caches[handle.id % HR__ALLOCATORS_MAX];
	return HR_LIKELY(cache && hr__load_relaxed(&cache->id) == handle.id) ? cache : NULL;
}

/* Streams that used a chunk before, which the new user's stream may have to wait for, and the epochs of that use. */
struct pending {
	uint64_t streams;
	hr__epochs epochs;
};

/* The epochs are read only when needed: the compiler would merge both reads into one wide load, which stalls on two recent stores. */
static inline void note_pending(struct pending *pending, const hr__chunk *chunk, hr_stream stream)
{
	pending->streams = chunk->streams & ~hr__stream_bit(stream);
	if (HR_UNLIKELY(pending->streams)) pending->epochs = chunk->epochs;
}

/* False when there is nothing to wait for. That includes a block for the host whose streams are all known to be idle. */
static inline bool is_pending(const struct pending *pending, const hr__cache *cache, hr_stream stream)
{
	if (HR_LIKELY(!pending->streams)) return false;
	return stream != HR_STREAM_HOST || pending->streams & hr__load_relaxed(&cache->streams->used);
}

/* Takes a kept chunk of [units] for a request. On success the cache is in its busy section, which hand_out ends. NULL, outside the
 * busy section, when the cache is stopped, has no such chunk (sets *none), or its meter is at its level. */
__attribute__((always_inline)) static inline hr__chunk *take(hr__cache *cache, const hr_request *request, uint64_t units,
                                                             struct pending *pending, bool *none)
{
	int64_t size = (int64_t)(units << cache->shift);
	HR_ASSERT(units > 0 && units < cache->bin_count);
	if (HR_UNLIKELY(!hr__cache_enter(cache))) return NULL;
	hr__chunk_id id = cache->bins[units];
	int64_t used = hr__load_relaxed(&cache->meter.used) + size;
	hr__chunk *chunk = &cache->chunks[id];
	if (HR_UNLIKELY(!id || used > hr__load_relaxed(&cache->meter.level))) {
		*none = !id;
		hr__cache_leave(cache);
		return NULL;
	}
	HR_ASSERT(hr__chunk_state_of(chunk) == HR__CHUNK_CACHED && chunk->size == (uint64_t)size);
	cache->bins[units] = chunk->link;
	note_pending(pending, chunk, request->stream);
	hr__chunk_describe(chunk, request);
	hr__store_relaxed(&chunk->state, HR__CHUNK_IN_USE);

	hr__store_relaxed(&cache->meter.used, used);
	if (used > hr__load_relaxed(&cache->high)) hr__store_relaxed(&cache->high, used);
	hr__owner_add(&cache->kept, -size);
	hr__owner_add(&cache->allocs, 1);
	hr__owner_add(&cache->requested, (int64_t)request->bytes);
	hr__owner_add(&cache->total, size);
	if (HR_UNLIKELY(size > hr__load_relaxed(&cache->largest))) hr__store_relaxed(&cache->largest, size);
	return chunk;
}

/* For a request of a program that was compiled against another version of the headers, or that did not set struct_size. */
static __attribute__((noinline, cold)) hr_status alloc_resized(hr_allocator handle, hr__allocator *allocator, const hr_request *request,
                                                               void **out)
{
	hr_request whole;
	hr_status status = hr__request_read("hr_alloc", request, &whole);
	return status ? hr__request_count_refusal(allocator, status) : hr_alloc(handle, &whole, out);
}

/* All slower ways to allocate. */
static hr_status alloc_slow(hr_allocator handle, const hr_request *request, void **out) __attribute__((noinline));
static hr_status alloc_slow(hr_allocator handle, const hr_request *request, void **out)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	if (HR_UNLIKELY(request && request->struct_size != sizeof *request)) return alloc_resized(handle, allocator, request, out);
	hr__cache *cache = hr__cache_get(allocator);
	status = out ? hr__request_check(allocator, request) : hr__fail(HR_INVALID_ARGUMENT, "hr_alloc: out is NULL");
	if (status) return hr__request_count_refusal(allocator, status);
	void *address;
	status = allocator->kind == HR__KIND_BFC ? hr__bfc_alloc(allocator, cache, request, &address)
	                                         : hr__direct_alloc(allocator, cache, request, &address);
	if (status) {
		hr__request_refuse(allocator, request, request, status);
		return status;
	}
	*out = address;
	return HR_OK;
}

/* Makes the stream of a request wait for the streams that used its block before. If the device refuses, the block is freed and the
 * request counts as refused: [source] is what it had been counted under. */
static hr_status order(hr__cache *cache, hr__shard *shard, const hr_request *request, void *address, const struct pending *pending,
                       enum hr__alloc_source source) __attribute__((noinline));
static hr_status order(hr__cache *cache, hr__shard *shard, const hr_request *request, void *address, const struct pending *pending,
                       enum hr__alloc_source source)
{
	int64_t waits = 0;
	HR_ASSERT(pending->streams != 0 && hr__lock_none_from(HR__RANK_CACHES));
	hr_status status = hr__device_order_epochs(cache->allocator->device, request->stream, pending->streams, pending->epochs, &waits);
	if (HR_LIKELY(!status && !waits)) return HR_OK;
	hr__lock_take(&shard->lock);
	hr__owner_add(&shard->stats.waits, waits);
	hr__chunk_id id = hr__lookup_find(&shard->lookup, shard->table.chunks, (uintptr_t)address);
	int64_t size = (int64_t)hr__chunk_at(&shard->table, id)->size;
	if (status) hr__chunk_at(&shard->table, id)->streams |= pending->streams; /* these streams may still use the block */
	hr__lock_release(&shard->lock);
	if (!status) return HR_OK;
	hr_free((hr_allocator){ cache->allocator->id }, address, request->stream);
	hr__lock_take(&shard->lock);
	hr__owner_add(&shard->stats.frees, -1);
	hr__owner_add(&shard->stats.failed, 1);
	hr__owner_add(&shard->stats.total, -size);
	hr__owner_add(&shard->stats.sources[source], -1);
	hr__lock_release(&shard->lock);
	return status;
}

/* Completes the rare part of handing out a chunk: logs it, counts it in scopes, records it, orders streams, lowers a level that is
 * marked. */
static __attribute__((noinline)) hr_status hand_out_observed(hr__cache *cache, const hr_request *request, const hr__chunk *chunk, void **out,
                                                            uint64_t streams, hr__epochs epochs)
{
	struct pending pending = { streams, epochs };
	uint64_t address = hr__chunk_address(chunk);
	HR_ASSERT(hr__cache_is_busy(cache) && hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE);
	if (cache->log_left < 0) hr__log_write_alloc(cache, request, address);
	hr__stats_scope_note(cache->allocator, cache, (int64_t)chunk->size);
	uint64_t size = chunk->size;
	hr__cache_leave(cache);
	if (hr__trace_is_on()) hr__trace_alloc((uint32_t)cache->allocator->id, request, address, size);
	if (is_pending(&pending, cache, request->stream)) {
		hr_status status = order(cache, cache->shard, request, (void *)(uintptr_t)address, &pending, HR__SOURCE_CACHE);
		if (status) return status;
	}
	if (hr__load_relaxed(&cache->meter.lowering)) hr__meter_lower(cache->allocator, &cache->meter);
	*out = (void *)(uintptr_t)address;
	return HR_OK;
}

/* Hands out a chunk that take() returned. The rare work is a tail call to another function, so that hr_alloc saves few
 * registers. */
__attribute__((always_inline)) static inline hr_status hand_out(hr__cache *cache, const hr_request *request, const hr__chunk *chunk, void **out,
                                                                const struct pending *pending)
{
	HR_ASSERT(hr__cache_is_busy(cache));
	bool logged = --cache->log_left < 0;
	uint32_t observed = hr__load_relaxed(&cache->watch) | hr__load_relaxed(&cache->meter.lowering) | hr__load_relaxed(&hr__trace_on);
	if (HR_UNLIKELY(logged || observed || is_pending(pending, cache, request->stream)))
		return hand_out_observed(cache, request, chunk, out, pending->streams, pending->epochs);
	void *address = (void *)(uintptr_t)hr__chunk_address(chunk);
	hr__cache_leave(cache);
	*out = address;
	return HR_OK;
}

/* Allocates from the cache of a thread whose meter may be at its level. */
static __attribute__((noinline)) hr_status alloc_above_level(hr_allocator handle, hr__cache *cache, const hr_request *request, void **out)
{
	uint64_t units = (request->bytes + cache->round) >> cache->shift;
	int64_t size = (int64_t)(units << cache->shift);
	struct pending pending = { 0, 0 };
	bool none;
	HR_ASSERT(units < cache->bin_count && !hr__cache_is_busy(cache));
	if (!hr__meter_allows(&cache->meter, size)) hr__meter_raise(cache->allocator, &cache->meter, NULL, size);
	const hr__chunk *chunk = take(cache, request, units, &pending, &none);
	return chunk ? hand_out(cache, request, chunk, out, &pending) : alloc_slow(handle, request, out);
}

/* Allocates from the free chunks of a pool of [shard], whose lock is held; releases the lock. */
__attribute__((always_inline)) static inline hr_status alloc_from(hr_allocator handle, hr__cache *cache, hr__shard *shard,
                                                                  hr__shard_pool *pool, const hr_request *request, void **out)
{
	uint64_t size = (request->bytes + cache->round) & ~(uint64_t)cache->round;
	struct pending pending;
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	if (HR_UNLIKELY(!hr__chunk_table_has(&shard->table, 2) || !hr__lookup_has_room(&shard->lookup))) goto no;
	hr__chunk_id id = hr__arena_take(&pool->arena, size, 0);
	if (HR_UNLIKELY(!id)) goto no;
	hr__chunk *chunk = &shard->table.chunks[id];
	HR_ASSERT(hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE && chunk->size == size);
	note_pending(&pending, chunk, request->stream);
	hr__chunk_describe(chunk, request);
	uint64_t address = hr__chunk_address(chunk);
	hr__log_alloc(cache, request, address);
	hr__lookup_insert(&shard->lookup, address, id);
	hr__meter_account(shard, cache, (int64_t)size);
	hr__owner_add(&shard->stats.allocs, 1);
	hr__owner_add(&shard->stats.sources[HR__SOURCE_FREE_CHUNK], 1);
	hr__owner_add(&shard->stats.requested, (int64_t)request->bytes);
	hr__owner_add(&shard->stats.total, (int64_t)size);
	hr__owner_max(&shard->stats.largest, (int64_t)size);
	hr__lock_release(&shard->lock);
	if (hr__trace_is_on()) hr__trace_alloc((uint32_t)cache->allocator->id, request, address, size);
	if (HR_UNLIKELY(is_pending(&pending, cache, request->stream))) {
		hr_status status = order(cache, shard, request, (void *)(uintptr_t)address, &pending, HR__SOURCE_FREE_CHUNK);
		if (status) return status;
	}
	*out = (void *)(uintptr_t)address;
	return HR_OK;
no:
	hr__lock_release(&shard->lock);
	return alloc_slow(handle, request, out);
}

static __attribute__((noinline)) hr_status alloc_small(hr_allocator handle, hr__cache *cache, const hr_request *request, void **out)
{
	hr__lock_take(&cache->shard->lock);
	return alloc_from(handle, cache, cache->shard, &cache->shard->small, request, out);
}

static __attribute__((noinline)) hr_status alloc_large(hr_allocator handle, hr__cache *cache, const hr_request *request, void **out)
{
	hr__shard *shard = hr__cache_lock_large(cache);
	return alloc_from(handle, cache, shard, &shard->large, request, out);
}

/* For a valid request whose alignment does not exceed the granularity. */
__attribute__((always_inline)) static inline hr_status alloc_valid(hr__cache *cache, hr_allocator handle, const hr_request *request, void **out)
{
	HR_ASSERT(request->struct_size == sizeof *request && request->alignment <= (size_t)cache->round + 1);
	if (request->bytes - 1 >= HR__SMALL_MAX) {
		if (HR_UNLIKELY(!cache->bin_count || request->bytes - 1 >= (UINT64_C(1) << 48))) return alloc_slow(handle, request, out);
		return alloc_large(handle, cache, request, out);
	}
	if (HR_UNLIKELY(!cache->capacity)) return alloc_slow(handle, request, out);
	bool none = false;
	struct pending pending = { 0, 0 };
	const hr__chunk *chunk = take(cache, request, (request->bytes + cache->round) >> cache->shift, &pending, &none);
	if (HR_LIKELY(chunk != NULL)) return hand_out(cache, request, chunk, out, &pending);
	return none ? alloc_small(handle, cache, request, out) : alloc_above_level(handle, cache, request, out);
}

static __attribute__((noinline)) hr_status alloc_checked(hr__cache *cache, hr_allocator handle, const hr_request *request, void **out)
{
	bool valid = out && request->struct_size == sizeof *request && !hr__request_check(cache->allocator, request) &&
	            request->alignment <= (size_t)cache->round + 1;
	return valid ? alloc_valid(cache, handle, request, out) : alloc_slow(handle, request, out);
}

/* For a request whose op and scope are final, and a thread that has a cache. */
__attribute__((always_inline)) static inline hr_status alloc_complete(hr__cache *cache, hr_allocator handle, const hr_request *request, void **out)
{
	/* Only a plain request, on the default stream or for the host, is known to be valid without hr__request_check. */
	uint64_t unusual = (request->struct_size ^ sizeof *request) | request->alignment | (request->stream & ~HR_STREAM_HOST);
	return HR_LIKELY(out && !unusual) ? alloc_valid(cache, handle, request, out) : alloc_checked(cache, handle, request, out);
}

/* A request without an op or a scope inherits the thread's current one. [caller] is where the program continues: a call stack begins
 * there. */
static __attribute__((noinline)) hr_status alloc_in_context(hr__cache *cache, hr_allocator handle, const hr_request *request, void **out,
                                                            const void *caller)
{
	HR_ASSERT(request->struct_size == sizeof *request && hr__thread_self->context);
	hr_request complete = *request;
	hr__thread_state *self = hr__thread_self;
	if (!complete.op) complete.op = self->op;
	if (!complete.scope) complete.scope = self->scope;
	if (HR_LIKELY(!(hr__load_relaxed(&self->context) & HR__CONTEXT_STACKS)))
		return cache ? alloc_complete(cache, handle, &complete, out) : alloc_slow(handle, &complete, out);
	const void *outer = hr__stacks_enter(caller);
	hr_status status = cache ? alloc_complete(cache, handle, &complete, out) : alloc_slow(handle, &complete, out);
	hr__stacks_leave(outer);
	if (!hr__stacks_depth()) hr__fetch_and_acq_rel(&self->context, ~HR__CONTEXT_STACKS); /* the recording is over */
	return status;
}

/* The first request of a thread to an allocator, or one that is NULL. */
static __attribute__((noinline)) hr_status alloc_first(hr_allocator handle, const hr_request *request, void **out, const void *caller)
{
	const void *outer = hr__stacks_enter(caller);
	hr_status status = alloc_slow(handle, request, out);
	hr__stacks_leave(outer);
	return status;
}

hr_status hr_alloc(hr_allocator handle, const hr_request *request, void **out)
{
	const hr__thread_state *self = hr__thread_self;
	hr__cache *cache = cache_of(self, handle);
	if (HR_UNLIKELY(self && hr__load_relaxed(&self->context) && request && request->struct_size == sizeof *request))
		return alloc_in_context(cache, handle, request, out, __builtin_return_address(0));
	if (HR_UNLIKELY(!cache || !request)) return alloc_first(handle, request, out, __builtin_return_address(0));
	return alloc_complete(cache, handle, request, out);
}

/* For a thread without a cache, or with a current op or scope. */
static __attribute__((noinline)) hr_status alloc_bytes_slow(const hr__cache *cache, hr_allocator handle, size_t bytes, void **out,
                                                            const void *caller)
{
	hr_status status;
	hr_request request = HR_REQUEST(bytes);
	const hr__allocator *allocator = cache ? cache->allocator : hr__allocator_of(handle, &status);
	if (!allocator) return status;
	request.stream = allocator->bytes_stream;
	const void *outer = hr__stacks_enter(caller);
	status = hr_alloc(handle, &request, out);
	hr__stacks_leave(outer);
	return status;
}

hr_status hr_alloc_bytes(hr_allocator handle, size_t bytes, void **out)
{
	hr_request request = HR_REQUEST(bytes);
	const hr__thread_state *self = hr__thread_self;
	hr__cache *cache = cache_of(self, handle);
	if (HR_UNLIKELY(!cache || hr__load_relaxed(&self->context))) return alloc_bytes_slow(cache, handle, bytes, out, __builtin_return_address(0));
	request.stream = cache->bytes_stream;
	return alloc_complete(cache, handle, &request, out);
}

static hr_status free_slow(hr_allocator handle, uint64_t address, hr_stream stream) __attribute__((noinline));
static hr_status free_slow(hr_allocator handle, uint64_t address, hr_stream stream)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	if (!address) return HR_OK;
	if (!hr__device_has_stream(allocator->device, stream))
		return hr__fail(HR_INVALID_ARGUMENT, "hr_free: %s has no stream %u", hr__device_name(allocator->device), stream);
	hr__cache *cache = hr__cache_get(allocator);
	if (allocator->kind == HR__KIND_BFC) return hr__bfc_free(allocator, cache, address, stream);
	return hr__direct_free(allocator, cache, address, stream);
}

/* Returns a block to the arena of the shard that the thread uses for large blocks. */
static __attribute__((noinline)) hr_status free_to_arena(hr_allocator handle, hr__cache *cache, uint64_t address, hr_stream stream)
{
	uint32_t where = 0;
	if (HR_UNLIKELY(cache->large != cache->shard && !hr__shard_has(cache->large, address))) return free_slow(handle, address, stream);
	hr__shard *shard = hr__cache_lock_large(cache);
	hr__chunk_id id = hr__lookup_find_at(&shard->lookup, shard->table.chunks, address, &where);
	hr__chunk *chunk = &shard->table.chunks[id];
	if (HR_UNLIKELY(hr__chunk_state_of(chunk) != HR__CHUNK_IN_USE)) { /* covers a failed lookup: record 0 is never in use */
		hr__lock_release(&shard->lock);
		return free_slow(handle, address, stream);
	}
	uint64_t size = chunk->size;
	/* A small block of a pool with caches is freed by a compare-and-swap, not here. */
	HR_ASSERT(size > HR__SMALL_MAX || address >= hr__load_relaxed(&shard->large_from));
	if (hr__trace_is_on()) hr__trace_free((uint32_t)cache->allocator->id, address, stream);
	hr__log_free(cache, chunk);
	hr__owner_add(&shard->stats.frees, 1);
	hr__owner_add(&shard->stats.requested, -(int64_t)chunk->requested);
	chunk->epochs = hr__load_relaxed(&cache->streams->epoch);
	chunk->streams |= hr__stream_bit(stream);
	hr__lookup_remove_at(&shard->lookup, where);
	hr__meter_account(shard, cache, -(int64_t)size);
	hr__arena_give(&hr__shard_pool_of(shard, chunk)->arena, id);
	hr__lock_release(&shard->lock);
	return HR_OK;
}

/* Frees a block that is not in the thread's own shard. A small block may be freed concurrently by the owner of a cache, without the
 * lock; a block of the large pool is only ever freed under the lock. */
static __attribute__((noinline)) hr_status free_elsewhere(hr_allocator handle, hr__cache *cache, uint64_t address, hr_stream stream)
{
	const hr__shard *large = cache->large;
	bool is_large = hr__shard_has(large, address) && address >= hr__load_relaxed(&large->large_from);
	return is_large ? free_to_arena(handle, cache, address, stream) : free_slow(handle, address, stream);
}

/* Rare work after a free: the cache keeps too much, or its level is marked. */
static __attribute__((noinline)) hr_status after_free(hr__cache *cache)
{
	HR_ASSERT(!hr__cache_is_busy(cache));
	if (hr__load_relaxed(&cache->kept) > cache->capacity) hr__cache_overflow(cache);
	if (hr__load_relaxed(&cache->meter.lowering)) hr__meter_lower(cache->allocator, &cache->meter);
	return HR_OK;
}

/* Keeps a freed block, in state HR__CHUNK_CACHED, in the cache; ends the busy section. */
__attribute__((always_inline)) static inline hr_status keep(hr__cache *cache, hr__chunk *chunk, hr__chunk_id id, hr_stream stream)
{
	int64_t size = (int64_t)chunk->size;
	HR_ASSERT(hr__cache_is_busy(cache) && hr__chunk_state_of(chunk) == HR__CHUNK_CACHED);
	hr__owner_add(&cache->requested, -(int64_t)chunk->requested);
	hr__owner_add(&cache->frees, 1);
	chunk->epochs = hr__load_relaxed(&cache->streams->epoch);
	chunk->streams |= hr__stream_bit(stream);
	uint64_t bin = (uint64_t)size >> cache->shift;
	HR_ASSERT(bin < cache->bin_count);
	chunk->link = cache->bins[bin];
	cache->bins[bin] = id;
	int64_t kept = hr__load_relaxed(&cache->kept) + size;
	hr__store_relaxed(&cache->kept, kept);
	hr__owner_add(&cache->meter.used, -size);
	hr__cache_leave(cache);
	if (HR_UNLIKELY(kept > cache->capacity || hr__load_relaxed(&cache->meter.lowering))) return after_free(cache);
	return HR_OK;
}

/* keep() for a block that is first logged, counted in scopes or recorded. */
static __attribute__((noinline)) hr_status keep_observed(hr__cache *cache, hr__chunk *chunk, hr__chunk_id id, hr_stream stream)
{
	hr__stats_scope_note(cache->allocator, cache, -(int64_t)chunk->size);
	if (hr__trace_is_on()) hr__trace_free((uint32_t)cache->allocator->id, hr__chunk_address(chunk), stream);
	if (cache->log_left < 0) hr__log_write_free(cache, chunk);
	return keep(cache, chunk, id, stream);
}

/* Frees a block of a bfc allocator, on a stream that the device has. */
__attribute__((always_inline)) static inline hr_status free_valid(hr_allocator handle, hr__cache *cache, uint64_t address, hr_stream stream)
{
	if (HR_UNLIKELY(!hr__shard_has(cache->shard, address))) return free_elsewhere(handle, cache, address, stream);
	if (address >= hr__load_relaxed(&cache->shard->large_from)) return free_to_arena(handle, cache, address, stream);
	if (HR_UNLIKELY(!hr__cache_enter(cache))) return free_slow(handle, address, stream);
	hr__chunk_id id = hr__lookup_find(cache->lookup, cache->chunks, address);
	hr__chunk *chunk = &cache->chunks[id];
	if (HR_UNLIKELY(!id || chunk->size > HR__SMALL_MAX || !cache->capacity)) {
		/* Blocks of this size are in no cache, so they are freed only under the lock and free_to_arena needs no
		 * compare-and-swap. */
		bool large = id && chunk->size > HR__SMALL_MAX;
		hr__cache_leave(cache);
		return large ? free_to_arena(handle, cache, address, stream) : free_slow(handle, address, stream);
	}
	/* If two threads free the same block at once, the compare-and-swap makes one of them fail. */
	uint8_t expected = HR__CHUNK_IN_USE;
	if (HR_UNLIKELY(!hr__cas_acquire(&chunk->state, &expected, HR__CHUNK_CACHED))) {
		hr__cache_leave(cache);
		return free_slow(handle, address, stream);
	}
	if (HR_UNLIKELY(hr__chunk_address(chunk) != address)) { /* another thread freed it first; the record is another block's now */
		hr__store_relaxed(&chunk->state, HR__CHUNK_IN_USE);
		hr__cache_leave(cache);
		return free_slow(handle, address, stream);
	}
	bool logged = --cache->log_left < 0;
	if (HR_UNLIKELY(logged || hr__load_relaxed(&cache->watch) | hr__load_relaxed(&hr__trace_on))) return keep_observed(cache, chunk, id, stream);
	return keep(cache, chunk, id, stream);
}

static __attribute__((noinline)) hr_status free_checked(hr_allocator handle, hr__cache *cache, uint64_t address, hr_stream stream)
{
	if (!hr__device_has_stream(cache->allocator->device, stream)) return free_slow(handle, address, stream);
	return free_valid(handle, cache, address, stream);
}

hr_status hr_free(hr_allocator handle, void *pointer, hr_stream stream)
{
	uint64_t address = (uintptr_t)pointer;
	hr__cache *cache = cache_of(hr__thread_self, handle);
	if (HR_UNLIKELY(!cache || !address || !cache->bin_count)) return free_slow(handle, address, stream);
	return HR_LIKELY(hr__stream_is_everywhere(stream)) ? free_valid(handle, cache, address, stream) : free_checked(handle, cache, address, stream);
}
