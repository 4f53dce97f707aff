/* adopt.c - see adopt.h.
 *
 * Between two of these calls a program uses so much other memory that each cache line is a miss. So the usual case reads few of them: the allocator's
 * counters, the first lines of the shard, the slot of the lookup, and the record. Those whose addresses are known at once are prefetched, so that the misses
 * overlap. The code of the usual case is in one piece for each function, and all of it in one place of the library; what is rare is elsewhere.
 *
 * In the usual case the thread has no cache of the allocator, and no state. A cache would keep no blocks, since these are accounted for under the lock of
 * the only shard. It is made where something else needs it: the levels of several allocators on a device (meter.c), or the allocation log. While no thread
 * has one, and the device no other allocator, the meter of the shard is what is in use, and its highest value the peak, exactly, however many threads there
 * are. */
#include "core/memory/adopt.h"

#include "core/base/status.h"
#include "core/memory/allocator.h"
#include "core/memory/limit.h"
#include "core/os/python.h"
#include "core/trace/stacks.h"
#include "core/trace/trace.h"

#define RARE static __attribute__((cold, noinline))
#define USUAL __attribute__((hot, flatten))

/* Prefetches what is read and written for the block at [address]: each of the locked instructions that follow would wait for its misses alone. */
__attribute__((always_inline)) static inline void prefetch(hr__allocator *allocator, uint64_t address, bool is_new)
{
	hr__shard *shard = &allocator->shards[0];
	const char *lines = (const char *)&shard->lock;
	__builtin_prefetch(lines, 1);
	__builtin_prefetch(lines + 64, 1);
	__builtin_prefetch(&allocator->caches_lock, 1);
	if (is_new) __builtin_prefetch(&shard->stats.sources[HR__SOURCE_DEVICE], 1);
	__builtin_prefetch(&allocator->usage->reserved, 1);
	hr__lookup_prefetch(&shard->lookup, address);
}

/* Whether blocks are accounted for without a cache. What it depends on changes only with the lock of the shard held, except the log. */
__attribute__((always_inline)) static inline bool needs_no_cache(const hr__allocator *allocator)
{
	return !(hr__load_relaxed(&allocator->cache_count) | hr__load_relaxed(&allocator->metered) | hr__load_relaxed(&allocator->reports));
}

RARE hr__cache *get_cache(hr__allocator *allocator)
{
	return hr__cache_get(allocator);
}

__attribute__((always_inline)) static inline hr__cache *cache_for(hr__allocator *allocator)
{
	return HR_LIKELY(needs_no_cache(allocator)) ? NULL : get_cache(allocator);
}

RARE void account_in_scopes(const hr__allocator *allocator, int64_t bytes)
{
	hr__stats_scope_count(allocator, hr__thread_self, bytes);
}

RARE void account_with_levels(hr__shard *shard, hr__cache *cache, int64_t bytes)
{
	hr__meter_account(shard, cache, bytes);
}

/* With the lock held. Another thread may have got a cache since cache_for. */
__attribute__((always_inline)) static inline void account(hr__allocator *allocator, hr__shard *shard, hr__cache *cache, int64_t bytes)
{
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	if (HR_UNLIKELY(cache || !needs_no_cache(allocator))) {
		account_with_levels(shard, cache, bytes);
		return;
	}
	int64_t used = hr__load_relaxed(&shard->meter.used) + bytes;
	hr__store_relaxed(&shard->meter.used, used);
	hr__owner_max(&allocator->peak, used);
	if (HR_UNLIKELY(hr__thread_self && hr__thread_self->scope_depth)) account_in_scopes(allocator, bytes);
}

/* ---- adding ---- */

/* hr__lookup_find compares two records without a branch, because it expects to find one; here a record that is read is almost always wasted. */
__attribute__((always_inline)) static inline bool has(const hr__shard *shard, uint64_t address)
{
	const hr__lookup_table *table = hr__load_relaxed(&shard->lookup.table);
	uint32_t hash = hr__lookup_hash(address), home = hash >> table->shift, reach = hr__load_relaxed(&table->reach);
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	for (uint32_t i = 0; i <= reach; i++) {
		uint32_t slot = hr__load_relaxed(&table->slots[home ^ i]);
		if (HR_UNLIKELY(slot && hr__lookup_fits(slot, hash)) && hr__lookup_is(slot, shard->table.chunks, address)) return true;
	}
	return false;
}

RARE hr_status refuse(hr__allocator *allocator, const hr_request *request, hr_status status)
{
	hr__request_refuse(allocator, request, request, status);
	return status;
}

RARE hr_status taken_already(const hr__allocator *allocator, uint64_t address)
{
	return hr__fail(HR_CORRUPT, "%s has a block at %#llx already, whose end was not seen", allocator->name, (unsigned long long)address);
}

RARE hr_status make_room(hr__shard *shard)
{
	return hr__shard_ensure_records(shard, 1);
}

/* With the lock held. */
__attribute__((always_inline)) static inline hr_status check_room(hr__shard *shard, uint64_t address)
{
	if (HR_UNLIKELY(!hr__chunk_table_has(&shard->table, 1) || !hr__lookup_has_room(&shard->lookup))) {
		hr_status status = make_room(shard);
		if (status) return status;
	}
	return HR_UNLIKELY(has(shard, address)) ? taken_already(shard->allocator, address) : HR_OK;
}

/* A new record in the lookup; after check_room, with the lock held. All of it but the ledger's names is set by the caller. */
__attribute__((always_inline)) static inline hr__chunk *new_record(hr__shard *shard, uint64_t address, hr__chunk_id *id)
{
	*id = hr__chunk_new(&shard->table);
	hr__chunk *chunk = hr__chunk_at(&shard->table, *id);
	hr__store_relaxed(&chunk->address, address);
	hr__store_relaxed(&chunk->state, HR__CHUNK_IN_USE);
	hr__lookup_insert(&shard->lookup, address, *id);
	return chunk;
}

RARE hr_status uncount(hr__allocator *allocator, hr__shard *shard, const hr_request *request, hr_status status)
{
	hr__lock_release(&shard->lock);
	hr__limit_unhold(allocator, request->bytes);
	return refuse(allocator, request, status);
}

/* For a request whose size is valid and whose names are final. */
__attribute__((always_inline)) static inline hr_status adopt(hr__allocator *allocator, hr__cache *cache, const hr_request *request, uint64_t address, void *keeper, hr__chunk_id *id)
{
	hr__shard *shard = &allocator->shards[0];
	int64_t bytes = (int64_t)request->bytes;
	HR_ASSERT(allocator->kind == HR__KIND_CUSTOM && hr__lock_none_from(HR__RANK_CACHES));
	if (HR_UNLIKELY(!hr__limit_claim(allocator, request->bytes))) return refuse(allocator, request, hr__direct_over_limit(allocator, request));
	hr__limit_hold(allocator, request->bytes);
	hr__lock_take(&shard->lock);
	__builtin_prefetch(&shard->table.chunks[shard->table.spare], 1); /* the record that it probably gets */
	hr_status status = check_room(shard, address);
	if (HR_UNLIKELY(status)) return uncount(allocator, shard, request, status);
	hr__chunk *chunk = new_record(shard, address, id);
	chunk->size = request->bytes;
	chunk->region = 0;
	chunk->keeper = keeper;
	hr__chunk_describe(chunk, request);
	hr__log_alloc(cache, request, address);
	account(allocator, shard, cache, bytes);
	hr__owner_add(&shard->stats.allocs, 1);
	hr__owner_add(&shard->stats.sources[HR__SOURCE_DEVICE], 1);
	hr__owner_add(&shard->stats.total, bytes);
	hr__owner_add(&shard->stats.requested, bytes);
	hr__owner_max(&shard->stats.largest, bytes);
	hr__lock_release(&shard->lock);
	if (hr__trace_is_on()) hr__trace_alloc((uint32_t)allocator->id, request, address, request->bytes);
	return HR_OK;
}

/* A request that is not valid, and call stacks, which begin at [caller]. */
RARE hr_status adopt_slowly(hr_allocator handle, const hr_request *request, uint64_t address, void *keeper, hr__chunk_id *id, const void *caller)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	status = hr__request_check(allocator, request);
	if (status) return hr__request_count_refusal(allocator, status);
	const void *outer = hr__stacks_enter(caller);
	status = adopt(allocator, cache_for(allocator), request, address, keeper, id);
	hr__stacks_leave(outer);
	return status;
}

RARE void line_of_python(hr_request *request, hr_name (*line)(void))
{
	hr_name name = line();
	if (name) request->scope = name;
}

USUAL hr_status hr__adopt(hr_allocator handle, hr_request *request, uint64_t address, void *keeper, hr_name (*line)(void), hr__chunk_id *id)
{
	hr__allocator *allocator = hr__allocator_peek(handle);
	const hr__thread_state *self = hr__thread_self;
	HR_ASSERT(request->struct_size == sizeof *request && !request->alignment && request->stream == HR_STREAM_HOST && address);
	if (HR_LIKELY(allocator != NULL)) prefetch(allocator, address, true);
	if (self && self->scope) request->scope = self->scope;
	else if (line && hr__python_has_lock()) line_of_python(request, line);
	bool captures = hr__trace_is_on() && hr__stacks_depth();
	if (HR_UNLIKELY(!allocator || request->bytes - 1 >= HR__REQUEST_BYTES_MAX || captures))
		return adopt_slowly(handle, request, address, keeper, id, __builtin_return_address(0));
	return adopt(allocator, cache_for(allocator), request, address, keeper, id);
}

/* ---- taking ---- */

/* Takes the record in slot [where] of the lookup, with the lock held, which it releases. */
__attribute__((always_inline)) static inline void take_at(hr__allocator *allocator, hr__cache *cache, uint32_t where, hr__chunk_id id, bool keep_claim, hr__adopted *out)
{
	hr__shard *shard = &allocator->shards[0];
	const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
	int64_t bytes = (int64_t)chunk->size;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE);
	out->chunk = *chunk;
	out->claimed = keep_claim;
	out->logged = cache && --cache->log_left < 0;
	hr__lookup_remove_at(&shard->lookup, where);
	account(allocator, shard, cache, -bytes);
	hr__owner_add(&shard->stats.frees, 1);
	hr__owner_add(&shard->stats.requested, -bytes);
	hr__chunk_drop(&shard->table, id);
	hr__lock_release(&shard->lock);
	if (!keep_claim) hr__limit_unhold(allocator, (uint64_t)bytes);
	if (hr__trace_is_on()) hr__trace_free((uint32_t)allocator->id, hr__chunk_address(&out->chunk), HR_STREAM_HOST);
}

USUAL bool hr__adopted_take(hr_allocator handle, uint64_t address, bool keep_claim, hr__adopted *out)
{
	hr__allocator *allocator = hr__allocator_peek(handle);
	uint32_t where;
	if (HR_UNLIKELY(!allocator)) return false;
	prefetch(allocator, address, false);
	hr__cache *cache = cache_for(allocator);
	hr__shard *shard = &allocator->shards[0];
	hr__lock_take(&shard->lock);
	hr__chunk_id id = hr__lookup_find_at(&shard->lookup, shard->table.chunks, address, &where);
	if (HR_UNLIKELY(!id)) {
		hr__lock_release(&shard->lock);
		return false;
	}
	take_at(allocator, cache, where, id, keep_claim, out);
	return true;
}

void hr__adopted_finish(hr_allocator handle, const hr__adopted *block)
{
	hr__allocator *allocator = hr__allocator_peek(handle);
	if (!allocator) return;
	hr__cache *cache = cache_for(allocator);
	if (block->logged && cache) {
		hr__lock_take(&allocator->shards[0].lock);
		if (cache->log_left < 0) hr__log_write_free(cache, &block->chunk); /* the log may have ended since */
		hr__lock_release(&allocator->shards[0].lock);
	}
	if (block->claimed) hr__limit_unhold(allocator, block->chunk.size);
}

/* ---- other ---- */

hr_status hr__adopted_restore(hr_allocator handle, const hr__adopted *block)
{
	hr_status status;
	hr__chunk_id id;
	uint64_t address = hr__chunk_address(&block->chunk), bytes = block->chunk.size;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	hr__shard *shard = &allocator->shards[0];
	hr__cache *cache = cache_for(allocator);
	if (!block->claimed) {
		if (!hr__limit_claim(allocator, bytes)) return hr__fail(HR_OUT_OF_MEMORY, "%s has no room for a block that could not be freed", allocator->name);
		hr__limit_hold(allocator, bytes);
	}
	hr__lock_take(&shard->lock);
	status = check_room(shard, address);
	if (!status) {
		hr__chunk *chunk = new_record(shard, address, &id);
		*chunk = block->chunk;
		account(allocator, shard, cache, (int64_t)bytes);
		hr__owner_add(&shard->stats.frees, -1);
		hr__owner_add(&shard->stats.requested, (int64_t)bytes);
		if (hr__trace_is_on()) hr__recording_note_block(allocator, chunk);
	}
	hr__lock_release(&shard->lock);
	if (status) hr__limit_unhold(allocator, bytes);
	return status;
}

bool hr__adopted_take_of(hr_allocator handle, const void *keeper, uint32_t *cursor, hr__adopted *out)
{
	hr__allocator *allocator = hr__allocator_peek(handle);
	if (!allocator) return false;
	hr__shard *shard = &allocator->shards[0];
	hr__cache *cache = cache_for(allocator);
	hr__lock_take(&shard->lock);
	for (hr__chunk_id id = *cursor + 1; id < shard->table.touched; id++) {
		const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
		uint32_t where = 0;
		*cursor = id;
		if (hr__chunk_state_of(chunk) != HR__CHUNK_IN_USE || chunk->keeper != keeper) continue;
		if (hr__lookup_find_at(&shard->lookup, shard->table.chunks, hr__chunk_address(chunk), &where) != id) continue;
		take_at(allocator, cache, where, id, false, out);
		return true;
	}
	hr__lock_release(&shard->lock);
	return false;
}

bool hr__adopted_has(hr_allocator handle, uint64_t address)
{
	hr__allocator *allocator = hr__allocator_peek(handle);
	if (!allocator) return false;
	hr__shard *shard = &allocator->shards[0];
	hr__lock_take(&shard->lock);
	bool found = has(shard, address);
	hr__lock_release(&shard->lock);
	return found;
}

USUAL void hr__adopted_set_tag(hr_allocator handle, hr__chunk_id id, uint64_t address, hr_name tag)
{
	hr__allocator *allocator = hr__allocator_peek(handle);
	if (HR_UNLIKELY(!allocator)) return;
	hr__shard *shard = &allocator->shards[0];
	hr__lock_take(&shard->lock);
	hr__chunk *chunk = &shard->table.chunks[id];
	/* The record may be another block's by now. Numbers are never above those that were touched. */
	if (HR_LIKELY(hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE && hr__chunk_address(chunk) == address)) {
		if (HR_UNLIKELY(hr__trace_is_on())) hr__chunk_rename(allocator, chunk, HR_NAME_NONE, tag);
		else if (tag) chunk->tag = tag;
	}
	hr__lock_release(&shard->lock);
}
