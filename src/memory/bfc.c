/* bfc.c - the arena-backed allocator: what hr_alloc and hr_free do when the straight path in alloc.c does not serve.
 *
 * Attempts for a request, in order; each allocation is counted under the one that met it:
 *
 *   free chunk   in the pool of its size
 *   grow         map more pages (or add a region, where the device has no pages)
 *                then a free chunk of the other pool: better than failing, and no reason to throw caches away
 *   trim         empty the caches, give free pages of the small pool and of the device's other allocators back, try again
 *   stitch       take free pages from where they are and map them side by side */
#include "memory/allocator.h"

#include "base/checked.h"
#include "base/status.h"
#include "base/text.h"
#include "trace/trace.h"

/* Most records that one attempt needs: two splits for mapping, two for taking, and a region. */
#define RECORDS_PER_ATTEMPT 8u

/* A bin is refilled with at most this many bytes, and this many chunks. */
#define REFILL_BYTES 8192u
#define REFILL_CHUNKS 8u

struct attempt {
	hr__allocator *allocator;
	hr__pool *pool;       /* the one it should come from */
	hr__pool *other;
	uint64_t size, alignment;
	hr__chunk_id id;      /* what was found */
	enum hr__source source;
	hr_status error;      /* the first failure that is not just a lack of room */
	char message[256];    /* its message */
};

static bool is_small(const hr__allocator *allocator, const struct attempt *attempt)
{
	return allocator->thread_cache && attempt->size <= HR__SMALL_MAX && attempt->alignment <= allocator->granularity;
}

/* Remembers a failure that should be reported if nothing else helps. */
static void remember(struct attempt *attempt, hr_status status)
{
	if (status == HR_OK || status == HR_OUT_OF_MEMORY || attempt->error) return;
	attempt->error = status;
	const char *message = hr_last_message();
	size_t length = 0;
	while (length < sizeof attempt->message - 1 && message[length]) length++;
	for (size_t i = 0; i < length; i++) attempt->message[i] = message[i];
	attempt->message[length] = 0;
}

static bool take(struct attempt *attempt, hr__pool *pool, enum hr__source source)
{
	hr_status status = hr__records_ensure(attempt->allocator, RECORDS_PER_ATTEMPT);
	remember(attempt, status);
	if (status) return false;
	attempt->id = hr__arena_take(&pool->arena, attempt->size, attempt->alignment);
	attempt->source = source;
	return attempt->id != 0;
}

static bool grow_and_take(struct attempt *attempt, enum hr__source source)
{
	hr_status status = hr__records_ensure(attempt->allocator, RECORDS_PER_ATTEMPT);
	if (!status) status = hr__pool_grow(attempt->allocator, attempt->pool, attempt->size, attempt->alignment);
	remember(attempt, status);
	if (!status && take(attempt, attempt->pool, source)) return true;
	/* The arena may have passed over a free chunk because the tail would have been better. It cannot grow: take that one. */
	attempt->pool->arena.tail_growth = 0;
	return take(attempt, attempt->pool, HR__SOURCE_FREE_CHUNK);
}

static void release_of_others(hr__allocator *other, void *self)
{
	if (other != self && other->kind == HR__KIND_BFC) hr__bfc_trim(other);
}

/* Under pressure: everything that can be given up without moving anything. The lock is released and taken again. */
static void make_room(hr__allocator *allocator)
{
	hr__lock_release(&allocator->lock);
	hr__caches_empty(allocator);
	/* Another allocator's memory helps only while our own limit leaves room for it. */
	if ((uint64_t)hr__load_relaxed(&allocator->stats.reserved) < allocator->limit)
		hr__allocators_visit(allocator->device, release_of_others, allocator);
	hr__lock_take(&allocator->lock);
	hr__owner_add(&allocator->stats.trims, 1);
	hr__pool_release_free(allocator, &allocator->small);
	if (!allocator->page) hr__pool_release_free(allocator, &allocator->large);
}

/* With the lock held; finds attempt->id or not. */
static void try_everything(struct attempt *attempt)
{
	hr__allocator *allocator = attempt->allocator;
	if (take(attempt, attempt->pool, HR__SOURCE_FREE_CHUNK)) return;
	if (grow_and_take(attempt, HR__SOURCE_GROW)) return;
	if (take(attempt, attempt->other, HR__SOURCE_FREE_CHUNK)) return;
	if (attempt->size > allocator->limit) return;
	make_room(allocator);
	if (take(attempt, attempt->pool, HR__SOURCE_TRIM)) return;
	if (grow_and_take(attempt, HR__SOURCE_TRIM)) return;
	if (take(attempt, attempt->other, HR__SOURCE_TRIM)) return;
	if (!allocator->page || !allocator->stitch) return;
	hr_status status = hr__records_ensure(allocator, RECORDS_PER_ATTEMPT);
	if (!status) status = hr__pool_stitch(allocator, attempt->pool, attempt->size, attempt->alignment);
	remember(attempt, status);
	if (!status) take(attempt, attempt->pool, HR__SOURCE_STITCH);
}

static hr_status out_of_memory(const hr__allocator *allocator, const struct attempt *attempt, const hr_request *request)
{
	char asked[16], used[16], limit[16], free_text[16], largest[16], available[16];
	int64_t in_use = hr__load_relaxed(&allocator->stats.in_use);
	uint64_t small = hr__arena_largest(&allocator->small.arena), large = hr__arena_largest(&allocator->large.arena);
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next) in_use += hr__load_relaxed(&cache->used);
	if (attempt->error) return hr__fail(attempt->error, "%s", attempt->message);
	if (attempt->size > allocator->limit)
		return hr__fail(HR_OUT_OF_MEMORY, "%s cannot give %s: that alone is above its limit of %s; raise the limit or ask for less",
		                allocator->name, hr__format_size(request->bytes, asked, sizeof asked),
		                hr__format_size(allocator->limit, limit, sizeof limit));
	return hr__fail(HR_OUT_OF_MEMORY,
	                "%s cannot give %s: %s of %s are in use; %s are free in %u blocks, the largest %s, and the device can give %s more; "
	                "free something, raise the limit or ask for less",
	                allocator->name, hr__format_size(request->bytes, asked, sizeof asked), hr__format_size((uint64_t)in_use, used, sizeof used),
	                hr__format_size(allocator->limit, limit, sizeof limit),
	                hr__format_size(allocator->small.arena.free_bytes + allocator->large.arena.free_bytes, free_text, sizeof free_text),
	                allocator->small.arena.free_count + allocator->large.arena.free_count,
	                hr__format_size(small > large ? small : large, largest, sizeof largest),
	                hr__format_size(hr__pool_available(allocator->device), available, sizeof available));
}

/* Takes a few more of the same size for the cache, as long as they are there for nothing. Returns a list. With the lock held. */
static hr__chunk_id take_more(struct attempt *attempt)
{
	hr__allocator *allocator = attempt->allocator;
	hr__chunk_id list = 0;
	uint64_t count = REFILL_BYTES / attempt->size;
	if (count > REFILL_CHUNKS) count = REFILL_CHUNKS;
	for (; count > 1 && !hr__records_ensure(allocator, RECORDS_PER_ATTEMPT); count--) {
		hr__chunk_id id = hr__arena_take(&attempt->pool->arena, attempt->size, 0);
		if (!id) break;
		hr__chunk *chunk = hr__chunk_at(&allocator->table, id);
		hr__store_relaxed(&chunk->state, HR__CHUNK_CACHED);
		hr__lookup_insert(&allocator->lookup, hr__chunk_address(chunk), id);
		chunk->link = list;
		list = id;
	}
	return list;
}

/* Counts the allocation and writes its record; returns streams that the chunk has to wait for, and their epoch. With the lock. */
static uint64_t hand_out(struct attempt *attempt, hr__cache *cache, const hr_request *request, uint64_t *epoch)
{
	hr__allocator *allocator = attempt->allocator;
	hr__chunk *chunk = hr__chunk_at(&allocator->table, attempt->id);
	uint64_t pending = chunk->streams & ~(UINT64_C(1) << request->stream);
	*epoch = chunk->epoch;
	hr__chunk_describe(chunk, request);
	hr__lookup_insert(&allocator->lookup, hr__chunk_address(chunk), attempt->id);
	hr__account(allocator, cache, (int64_t)attempt->size);
	hr__owner_add(&allocator->stats.allocs, 1);
	hr__owner_add(&allocator->stats.sources[attempt->source], 1);
	hr__owner_add(&allocator->stats.requested, (int64_t)request->bytes);
	hr__max(&allocator->stats.largest, (int64_t)attempt->size);
	return pending;
}

/* Undoes hand_out: the device could not be told to wait. */
static void take_back(struct attempt *attempt, hr__cache *cache, uint64_t streams, uint64_t epoch)
{
	hr__allocator *allocator = attempt->allocator;
	hr__lock_take(&allocator->lock);
	hr__chunk *chunk = hr__chunk_at(&allocator->table, attempt->id);
	hr__owner_add(&allocator->stats.allocs, -1);
	hr__owner_add(&allocator->stats.sources[attempt->source], -1);
	hr__owner_add(&allocator->stats.requested, -(int64_t)chunk->requested);
	hr__lookup_remove(&allocator->lookup, hr__chunk_address(chunk), attempt->id);
	hr__account(allocator, cache, -(int64_t)chunk->size);
	chunk->streams |= streams;
	chunk->epoch = epoch;
	hr__arena_give(chunk->region & HR__REGION_SMALL ? &allocator->small.arena : &allocator->large.arena, attempt->id);
	hr__lock_release(&allocator->lock);
}

/* The chunk that a cache keeps for this size although alloc.c could not simply use it: its level is reached, or the stream must wait. */
static bool take_kept(struct attempt *attempt, hr__cache *cache)
{
	if (!cache->capacity || !hr__cache_enter(cache)) return false;
	uint64_t bin = attempt->size >> cache->shift;
	hr__chunk_id id = cache->bins[bin];
	if (id) {
		cache->bins[bin] = cache->chunks[id].link;
		hr__owner_add(&cache->kept, -(int64_t)attempt->size);
	}
	hr__cache_leave(cache);
	if (!id) return false;
	/* It is in the lookup as a cached chunk; hand_out adds it again as one in use. */
	hr__lock_take(&attempt->allocator->lock);
	hr__lookup_remove(&attempt->allocator->lookup, hr__chunk_address(&cache->chunks[id]), id);
	hr__store_relaxed(&cache->chunks[id].state, HR__CHUNK_IN_USE);
	attempt->id = id;
	attempt->source = HR__SOURCE_CACHE;
	return true;
}

hr_status hr__bfc_alloc(hr__allocator *allocator, hr__cache *cache, const hr_request *request, void **out)
{
	struct attempt attempt = { .allocator = allocator, .alignment = request->alignment };
	if (!hr__align_up(request->bytes, allocator->granularity, &attempt.size))
		return hr__fail(HR_INVALID_ARGUMENT, "%s cannot give %zu bytes: too large to round up", allocator->name, request->bytes);
	bool small = is_small(allocator, &attempt);
	attempt.pool = small ? &allocator->small : &allocator->large;
	attempt.other = small ? &allocator->large : &allocator->small;

	hr__chunk_id more = 0;
	bool kept = small && cache && take_kept(&attempt, cache); /* takes the lock when it succeeds */
	if (!kept) {
		hr__lock_take(&allocator->lock);
		try_everything(&attempt);
	}
	if (!attempt.id) {
		hr_status status = out_of_memory(allocator, &attempt, request);
		hr__lock_release(&allocator->lock);
		return status;
	}
	uint64_t epoch, pending = hand_out(&attempt, cache, request, &epoch);
	if (small && !kept && cache && cache->capacity && attempt.source <= HR__SOURCE_GROW) more = take_more(&attempt);
	hr__lock_release(&allocator->lock);

	if (more) hr__cache_keep(cache, more);
	if (small && cache && hr__load_relaxed(&cache->used) + (int64_t)attempt.size > hr__load_relaxed(&cache->level))
		hr__cache_raise(cache, (int64_t)attempt.size); /* for the next one of that size */
	if (pending) {
		int64_t waits = 0;
		hr_status status = hr__device_order(allocator->device, request->stream, pending, epoch, &waits);
		if (status) {
			take_back(&attempt, cache, pending, epoch);
			return status;
		}
		if (waits) {
			hr__lock_take(&allocator->lock);
			hr__owner_add(&allocator->stats.waits, waits);
			hr__lock_release(&allocator->lock);
		}
	}
	hr__chunk *chunk = hr__chunk_at(&allocator->table, attempt.id);
	if (hr__trace_is_on()) hr__trace_alloc((uint32_t)allocator->id, request, hr__chunk_address(chunk), chunk->size);
	hr__observe(allocator, cache, (int64_t)chunk->size);
	*out = (void *)(uintptr_t)hr__chunk_address(chunk);
	return HR_OK;
}

hr_status hr__bfc_free(hr__allocator *allocator, hr__cache *cache, uint64_t address, hr_stream stream)
{
	hr__lock_take(&allocator->lock);
	hr__chunk_id id = hr__lookup_find(&allocator->lookup, allocator->table.chunks, address);
	hr__chunk *chunk = &allocator->table.chunks[id];
	if (!id || hr__chunk_state_of(chunk) != HR__CHUNK_IN_USE) {
		hr__lock_release(&allocator->lock);
		return hr__fail(HR_NOT_ALLOCATED, "%s has no block at %#llx: %s", allocator->name, (unsigned long long)address,
		                id ? "it was freed already" : "it was freed already, or came from elsewhere");
	}
	/* The fast path in another thread may be freeing the same block. */
	uint8_t expected = HR__CHUNK_IN_USE;
	if (!hr__cas_acquire(&chunk->state, &expected, HR__CHUNK_CACHED)) {
		hr__lock_release(&allocator->lock);
		return hr__fail(HR_NOT_ALLOCATED, "%s has no block at %#llx: another thread has just freed it", allocator->name,
		                (unsigned long long)address);
	}
	uint64_t size = chunk->size;
	if (hr__trace_is_on()) hr__trace_free((uint32_t)allocator->id, address, stream);
	hr__owner_add(&allocator->stats.frees, 1);
	hr__owner_add(&allocator->stats.requested, -(int64_t)chunk->requested);
	chunk->epoch = hr__device_epoch(allocator->device);
	chunk->streams |= UINT64_C(1) << stream;
	hr__lookup_remove(&allocator->lookup, address, id);
	hr__account(allocator, cache, -(int64_t)size);
	hr__arena_give(chunk->region & HR__REGION_SMALL ? &allocator->small.arena : &allocator->large.arena, id);
	hr__lock_release(&allocator->lock);
	hr__observe(allocator, cache, -(int64_t)size);
	return HR_OK;
}

uint64_t hr__bfc_trim(hr__allocator *allocator)
{
	hr__caches_empty(allocator);
	hr__lock_take(&allocator->lock);
	uint64_t released = hr__pool_release_free(allocator, &allocator->small);
	released += hr__pool_release_free(allocator, &allocator->large);
	hr__owner_add(&allocator->stats.trims, 1);
	hr__lock_release(&allocator->lock);
	return released;
}

hr_status hr__bfc_open(hr__allocator *allocator)
{
	hr__arena_init(&allocator->large.arena, &allocator->table, allocator->granularity);
	hr__arena_init(&allocator->small.arena, &allocator->table, allocator->granularity);
	allocator->small.small = true;
	if (allocator->allow_growth) return HR_OK;

	/* All of the limit at once: a 64th of it for small blocks, the rest in one piece. */
	hr_status status = HR_OK;
	uint64_t unit = allocator->page ? allocator->page : allocator->granularity;
	uint64_t small = allocator->thread_cache ? hr__align_down(allocator->limit / 64, unit) : 0;
	hr__lock_take(&allocator->lock);
	if (small) status = hr__records_ensure(allocator, RECORDS_PER_ATTEMPT);
	if (small && !status) status = hr__pool_grow(allocator, &allocator->small, small, 0);
	if (!status) status = hr__records_ensure(allocator, RECORDS_PER_ATTEMPT);
	if (!status) status = hr__pool_grow(allocator, &allocator->large, allocator->limit - small, 0);
	if (status) hr__regions_close(allocator);
	hr__lock_release(&allocator->lock);
	return status;
}

void hr__bfc_close(hr__allocator *allocator)
{
	hr__lock_take(&allocator->lock);
	hr__regions_close(allocator);
	hr__lock_release(&allocator->lock);
}
