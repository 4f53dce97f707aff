/* bfc.c - the arena-backed allocator: hr_alloc and hr_free when the fast path in alloc.c does not apply.
 *
 * Attempts for a request, in order; each allocation is counted under the attempt that met it:
 *
 *   free chunk   in the pool of its size, in the thread's shard
 *   grow         map more pages (or add a region, where the device has no pages);
 *                then a free chunk of the other pool or of another shard, which is better than failing or emptying caches
 *   trim         empty the caches, release free pages of the small pool and of the device's other allocators, try again
 *   stitch       unmap free pages and map them side by side
 *   reclaim      evict unpinned tensors to the host (src/core/lms): one, several, all; then retry the attempts above;
 *                where allowed, also move tensors on the device */
#include <stdio.h>

#include "core/memory/allocator.h"

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/trace/trace.h"

/* Most records that one attempt needs: two splits to map, two to take, and a region. */
#define RECORDS_PER_ATTEMPT 8u

/* An allocation that misses the cache takes up to this much more of its size for the cache. */
#define REFILL_BYTES 8192u
#define REFILL_CHUNKS 8u

struct attempt {
	hr__shard *shard;     /* the shard that [id] is in, or the one to try next; its lock is held */
	bool small;           /* preferred pool */
	bool quiet;           /* not counted as a request */
	bool inactive;            /* for a tensor that is not pinned: the bytes count as inactive */
	uint64_t size, alignment;
	hr__chunk_id id;      /* the chunk that was found; 0 = none */
	uint64_t address;     /* address of [id] */
	enum hr__alloc_source source;
	hr_status error;      /* first failure other than a lack of room */
	char message[400];    /* message of [error] */
};

static hr__shard_pool *pool_for(hr__shard *shard, bool small)
{
	return small ? &shard->small : &shard->large;
}

/* Keeps the first failure, which is reported if no attempt succeeds. */
static void keep_first_error(struct attempt *attempt, hr_status status)
{
	if (status == HR_OK || status == HR_OUT_OF_MEMORY || attempt->error) return;
	attempt->error = status;
	snprintf(attempt->message, sizeof attempt->message, "%s", hr_last_message());
}

/* ---- single attempts, with the lock of attempt->shard held ---- */

static bool take(struct attempt *attempt, bool small, enum hr__alloc_source source)
{
	HR_ASSERT(hr__lock_is_mine(&attempt->shard->lock));
	hr_status status = hr__shard_ensure_records(attempt->shard, RECORDS_PER_ATTEMPT);
	keep_first_error(attempt, status);
	if (status) return false;
	hr__arena *arena = &pool_for(attempt->shard, small)->arena;
	attempt->id = hr__arena_take(arena, attempt->size, attempt->alignment);
	attempt->source = source;
	HR_ASSERT(!attempt->id || hr__chunk_at(&attempt->shard->table, attempt->id)->size == attempt->size);
	return attempt->id != 0;
}

/* take() without room to grow: the free chunk at the end of the arena counts at its present size, not its potential size. */
static bool take_as_is(struct attempt *attempt, bool small, enum hr__alloc_source source)
{
	hr__arena *arena = &pool_for(attempt->shard, small)->arena;
	uint64_t growth = arena->tail_growth;
	arena->tail_growth = 0;
	bool taken = take(attempt, small, source);
	arena->tail_growth = growth;
	return taken;
}

static bool grow_and_take(struct attempt *attempt, enum hr__alloc_source source)
{
	hr__shard_pool *pool = pool_for(attempt->shard, attempt->small);
	hr_status status = hr__shard_ensure_records(attempt->shard, RECORDS_PER_ATTEMPT);
	if (!status) status = hr__shard_pool_grow(attempt->shard, pool, attempt->size, attempt->alignment, true);
	keep_first_error(attempt, status);
	if (!status && take(attempt, attempt->small, source)) return true;
	/* take() may have passed over a free chunk because the tail, once grown, fits better. The tail could not grow, so use the
	 * chunk. */
	return take_as_is(attempt, attempt->small, source == HR__SOURCE_TRIM ? source : HR__SOURCE_FREE_CHUNK);
}

/* ---- other shards. Only one shard's lock is held at a time: that of [home] is released meanwhile and acquired again at the end. ---- */

/* Takes a free chunk of another shard. On success attempt->shard is that shard, and its lock is held instead. */
static bool take_elsewhere(struct attempt *attempt, hr__shard *home, enum hr__alloc_source source)
{
	HR_ASSERT(attempt->shard == home && hr__lock_is_mine(&home->lock));
	if (hr__load_relaxed(&home->allocator->open_shards) == 1) return false;
	hr__lock_release(&home->lock);
	HR__EACH_SHARD(home->allocator, other)
	{
		if (other == home) continue;
		attempt->shard = other;
		hr__lock_take(&other->lock);
		if (take_as_is(attempt, attempt->small, source) || take_as_is(attempt, !attempt->small, source)) return true;
		hr__lock_release(&other->lock);
	}
	attempt->shard = home;
	hr__lock_take(&home->lock);
	return false;
}

/* Trims one allocator of the device, unless it is [self]. */
static void trim_other(hr__allocator *other, void *self)
{
	uint64_t released;
	if (other != self && other->kind == HR__KIND_BFC) hr__bfc_trim(other, &released);
}

void hr__bfc_trim_others(hr__allocator *allocator)
{
	if ((uint64_t)hr__load_relaxed(&allocator->reserved) < allocator->limit)
		hr__allocators_visit(allocator->device, trim_other, allocator);
}

/* Under pressure: releases everything that can be released without moving data. */
static void make_room(const struct attempt *attempt)
{
	hr__shard *home = attempt->shard;
	hr__allocator *allocator = home->allocator;
	HR_ASSERT(hr__lock_is_mine(&home->lock) && attempt->size <= allocator->limit);
	hr__lock_release(&home->lock);
	hr__caches_empty(allocator);
	HR__EACH_SHARD(allocator, shard)
	{
		hr__lock_take(&shard->lock);
		hr_status status = HR_OK; /* ignored: memory that cannot be released cannot help the request */
		/* Releasing a region is expensive on some devices, so it is not done for a request that would fail anyway. */
		bool helps = allocator->page || hr__shard_can_regrow(shard, attempt->size, attempt->alignment);
		if (helps) hr__shard_pool_release_free(shard, &shard->small, &status);
		if (helps && !allocator->page) hr__shard_pool_release_free(shard, &shard->large, &status);
		hr__lock_release(&shard->lock);
	}
	hr__bfc_trim_others(allocator);
	hr__lock_take(&home->lock);
	hr__owner_add(&home->stats.trims, 1);
}

/* Number of whole free pages in all shards but [home]. */
static uint64_t count_elsewhere(hr__shard *home)
{
	uint64_t total = 0;
	HR_ASSERT(hr__lock_is_mine(&home->lock));
	if (hr__load_relaxed(&home->allocator->open_shards) == 1) return 0;
	hr__lock_release(&home->lock);
	HR__EACH_SHARD(home->allocator, other)
	{
		if (other == home) continue;
		hr__lock_take(&other->lock);
		total += hr__shard_pool_count_free(other, &other->large) + hr__shard_pool_count_free(other, &other->small);
		hr__lock_release(&other->lock);
	}
	hr__lock_take(&home->lock);
	return total;
}

/* Releases up to [most] whole free pages of all shards but [home], and returns their number. */
static uint64_t release_elsewhere(hr__shard *home, uint64_t most, hr_status *status)
{
	uint64_t total = 0;
	HR_ASSERT(hr__lock_is_mine(&home->lock));
	hr__lock_release(&home->lock);
	HR__EACH_SHARD(home->allocator, other)
	{
		if (other == home || total >= most || *status) continue;
		hr__lock_take(&other->lock);
		total += hr__shard_pool_release_pages(other, &other->large, most - total, NULL, status);
		if (!*status) total += hr__shard_pool_release_pages(other, &other->small, most - total, NULL, status);
		hr__lock_release(&other->lock);
	}
	hr__lock_take(&home->lock);
	return total;
}

/* Unmaps free pages and maps them side by side. *bytes receives the bytes of the pages that were unmapped. Changes nothing unless
 * there are enough pages. */
static hr_status stitch(struct attempt *attempt, uint64_t *bytes)
{
	hr__shard *shard = attempt->shard;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && shard->allocator->page && shard->allocator->stitch);
	hr__shard_pool *pool = pool_for(shard, attempt->small), *other = pool_for(shard, !attempt->small);
	hr__stitch stitched_range;
	/* Counted before anything else is read, because count_elsewhere releases the shard's lock for a while. */
	uint64_t elsewhere = count_elsewhere(shard), released = 0;
	hr_status status = hr__shard_pool_prepare_stitch(shard, pool, attempt->size, attempt->alignment,
	                                       elsewhere + hr__shard_pool_count_free(shard, other), &stitched_range);
	if (status) return status;

	released += hr__shard_pool_release_pages(shard, pool, stitched_range.missing, &stitched_range, &status);
	if (!status && released < stitched_range.missing)
		released += hr__shard_pool_release_pages(shard, other, stitched_range.missing - released, NULL, &status);
	if (!status && released < stitched_range.missing) released += release_elsewhere(shard, stitched_range.missing - released, &status);
	if (!status) status = hr__shard_ensure_records(shard, RECORDS_PER_ATTEMPT);
	if (!status) status = hr__shard_pool_grow(shard, pool, attempt->size, attempt->alignment, true);
	if (status) return status;
	hr__allocator *allocator = shard->allocator;
	hr__owner_add(&shard->stats.stitches, 1);
	*bytes = released * allocator->page;
	hr__owner_add(&shard->stats.stitched, (int64_t)*bytes);
	return HR_OK;
}

/* Records a stitch. The requested block begins at the first of the stitched pages or soon after, so its address stands for them. */
static void record_stitch(const struct attempt *attempt, uint64_t bytes)
{
	if (!hr__trace_is_on()) return;
	const hr__shard *shard = attempt->shard;
	hr__trace_event(&(hr__event){ .kind = HR__EVENT_STITCH,
	                              .allocator = (uint32_t)shard->allocator->id,
	                              .address = attempt->id ? hr__chunk_address(hr__chunk_at(&shard->table, attempt->id)) : 0,
	                              .bytes = bytes });
}

static void stitch_and_take(struct attempt *attempt, enum hr__alloc_source source)
{
	uint64_t bytes = 0;
	const hr__allocator *allocator = attempt->shard->allocator;
	if (!allocator->page || !allocator->stitch) return;
	hr_status status = hr__shard_ensure_records(attempt->shard, RECORDS_PER_ATTEMPT);
	if (!status) status = stitch(attempt, &bytes);
	keep_first_error(attempt, status);
	if (status) return;
	take_as_is(attempt, attempt->small, source);
	record_stitch(attempt, bytes);
}

/* Makes every attempt except reclaim. Sets attempt->id on success. The lock of attempt->shard is held before and after, but
 * attempt->shard may change. */
static void try_everything(struct attempt *attempt)
{
	hr__shard *home = attempt->shard;
	hr__allocator *allocator = home->allocator;
	HR_ASSERT(hr__lock_is_mine(&home->lock) && !attempt->id);
	if (take(attempt, attempt->small, HR__SOURCE_FREE_CHUNK)) return;
	if (grow_and_take(attempt, HR__SOURCE_GROW)) return;
	if (take_as_is(attempt, !attempt->small, HR__SOURCE_FREE_CHUNK)) return;
	if (take_elsewhere(attempt, home, HR__SOURCE_FREE_CHUNK)) return;
	if (attempt->size > allocator->limit) return;
	make_room(attempt);
	if (take(attempt, attempt->small, HR__SOURCE_TRIM)) return;
	if (grow_and_take(attempt, HR__SOURCE_TRIM)) return;
	if (take_as_is(attempt, !attempt->small, HR__SOURCE_TRIM)) return;
	if (take_elsewhere(attempt, home, HR__SOURCE_TRIM)) return;
	stitch_and_take(attempt, HR__SOURCE_STITCH);
}

/* The attempts after tensors were evicted, without trimming again. */
static void try_again(struct attempt *attempt, enum hr__alloc_source source)
{
	hr__shard *home = attempt->shard;
	HR_ASSERT(hr__lock_is_mine(&home->lock) && !attempt->id);
	if (take_as_is(attempt, attempt->small, source)) return;
	if (grow_and_take(attempt, source)) return;
	if (take_as_is(attempt, !attempt->small, source)) return;
	if (take_elsewhere(attempt, home, source)) return;
	stitch_and_take(attempt, source);
}

/* Evicts tensors and retries until the request is met or no tensor is left. With the lock of attempt->shard held before and
 * after. */
static void reclaim(struct attempt *attempt, hr_stream stream)
{
	hr__allocator *allocator = attempt->shard->allocator;
	HR_ASSERT(hr__lock_is_mine(&attempt->shard->lock) && !attempt->id);
	const hr__lms_hooks *lms_hooks = hr__load_acquire(&hr__hooks_table.lms);
	if (!lms_hooks || !hr__load_acquire(&allocator->lms) || attempt->size > allocator->limit) return;
	hr__pressure pressure = { .allocator = allocator, .size = attempt->size, .alignment = attempt->alignment, .stream = stream };
	enum hr__alloc_source source, last = HR__SOURCE_FULL_RECLAIM;
	for (; !attempt->id; pressure.round++) {
		hr__lock_release(&attempt->shard->lock);
		hr_status status = lms_hooks->reclaim(&pressure, &source);
		/* Unlike keep_first_error, this keeps HR_OUT_OF_MEMORY too: its message says why nothing could be evicted. */
		if (status && status != HR_NOT_READY && !attempt->error) {
			attempt->error = status;
			snprintf(attempt->message, sizeof attempt->message, "%s", hr_last_message());
		}
		hr__lock_take(&attempt->shard->lock);
		if (status) {
			/* In round 0, another thread may have evicted the tensors since the last attempt and left free memory. In later
			 * rounds, the memory that evictions freed may have to be released before the request can use it. */
			if (status == HR_NOT_READY && pressure.round == 0) try_again(attempt, HR__SOURCE_FREE_CHUNK);
			else if (pressure.round > 0) try_everything(attempt);
			if (attempt->id && pressure.round > 0) attempt->source = last;
			return;
		}
		try_again(attempt, last = source);
		if (attempt->id) attempt->source = last; /* whichever attempt found it */
	}
}

/* State of an allocator that has no room for a request. */
struct shortage {
	uint64_t in_use, reserved, free, blocks, largest; /* bytes, except [blocks]: the number of free chunks */
	uint64_t more;                                     /* bytes that the device may still provide within the limits */
	bool by_limit;                                     /* [more] is bounded by the allocator's own limit */
};

static struct shortage find_shortage(hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_CACHES));
	struct shortage found = { 0 };
	HR__EACH_SHARD(allocator, shard)
	{
		hr__lock_take(&shard->lock);
		found.free += shard->small.arena.free_bytes + shard->large.arena.free_bytes;
		found.blocks += shard->small.arena.free_count + shard->large.arena.free_count;
		uint64_t small = hr__arena_largest(&shard->small.arena), large = hr__arena_largest(&shard->large.arena);
		if (small > found.largest) found.largest = small;
		if (large > found.largest) found.largest = large;
		hr__lock_release(&shard->lock);
	}
	hr__lock_take(&allocator->caches_lock);
	int64_t in_use = hr__meters_sum(allocator);
	hr__lock_release(&allocator->caches_lock);
	if (in_use > 0) found.in_use = (uint64_t)in_use;
	found.reserved = (uint64_t)hr__load_relaxed(&allocator->reserved);
	found.more = hr__page_pool_available(allocator->device);
	found.by_limit = allocator->limit < hr__device_reservable(allocator->device) && allocator->limit - found.reserved <= found.more;
	if (found.more > allocator->limit - found.reserved) found.more = allocator->limit - found.reserved;
	return found;
}

/* out_of_memory for pinned host memory. Users know it as the host pool, which has its own setting (host_limit), not as an
 * allocator. */
static hr_status host_pool_full(hr__allocator *allocator, const struct attempt *attempt, const hr_request *request)
{
	const char *owner = hr__device_pinned_for(allocator->device);
	if (attempt->size > allocator->limit) {
		hr__sizes size = HR__SIZES(request->bytes, allocator->limit);
		return hr__fail(HR_OUT_OF_MEMORY, "the host pool of %s is too small for %s: the request alone exceeds its limit of %s; raise host_limit",
		                owner, size.text[0], size.text[1]);
	}
	struct shortage found = find_shortage(allocator);
	hr__sizes size = HR__SIZES(request->bytes, found.in_use, allocator->limit, found.free, found.largest);
	/* The limit leaves room for the request, so it was the host that refused; hr__fail_in appends its message. */
	if (attempt->size + attempt->alignment <= found.more)
		return hr__fail_in(HR_OUT_OF_MEMORY, "the host pool of %s cannot grow: %s requested, %s of its limit of %s in use", owner, size.text[0],
		                   size.text[1], size.text[2]);
	return hr__fail(HR_OUT_OF_MEMORY,
	                "the host pool of %s is full: %s requested, but %s of its limit of %s are in use, and the largest of %llu free block%s "
	                "(%s) is %s; raise host_limit",
	                owner, size.text[0], size.text[1], size.text[2], (unsigned long long)found.blocks, hr__plural(found.blocks),
	                size.text[3], size.text[4]);
}

/* out_of_memory for a request that is larger than the limit. */
static hr_status above_limit(const hr__allocator *allocator, const hr_request *request)
{
	const hr__device *device = allocator->device;
	hr__sizes both = HR__SIZES(request->bytes, allocator->limit);
	char setting[64] = "";
	if (allocator->limit >= hr__device_reservable(device)) {
		if (!hr__device_is_limited(device))
			return hr__fail(HR_OUT_OF_MEMORY, "%s cannot allocate %s: the request alone exceeds the %s that %s has; request less", allocator->name,
			                both.text[0], both.text[1], hr__device_name(device));
		snprintf(setting, sizeof setting, " (%s)", hr__device_limit_setting(device));
	}
	return hr__fail(HR_OUT_OF_MEMORY, "%s cannot allocate %s: the request alone exceeds its limit of %s%s; raise the limit or request less",
	                allocator->name, both.text[0], both.text[1], setting);
}

hr_status hr__bfc_no_room(hr__allocator *allocator, uint64_t size, const hr_request *request)
{
	const hr__device *device = allocator->device;
	if (size > allocator->limit) return above_limit(allocator, request);
	struct shortage found = find_shortage(allocator);
	char more_from[100] = "the device can give";
	bool by_device = !found.by_limit && hr__device_is_limited(device);
	if (found.by_limit) snprintf(more_from, sizeof more_from, "its limit allows");
	if (by_device) snprintf(more_from, sizeof more_from, "the limit of %s (%s) allows", hr__device_name(device), hr__device_limit_setting(device));
	hr__sizes all = HR__SIZES(request->bytes, found.in_use, allocator->limit, found.free, found.largest, found.more);
	return hr__fail(HR_OUT_OF_MEMORY,
	                "%s cannot allocate %s: %s of %s are in use; %s are free in %llu block%s, the largest %s, and %s %s more; "
	                "free memory%s or request less",
	                allocator->name, all.text[0], all.text[1], all.text[2], all.text[3], (unsigned long long)found.blocks,
	                hr__plural(found.blocks), all.text[4], more_from, all.text[5], found.by_limit || by_device ? ", raise the limit" : "");
}

/* Sets the message for a request that no attempt could meet. */
static hr_status out_of_memory(hr__allocator *allocator, const struct attempt *attempt, const hr_request *request)
{
	HR_ASSERT(!attempt->id);
	if (attempt->error) return hr__fail(attempt->error, "%s", attempt->message);
	if (hr__device_pinned_for(allocator->device)) return host_pool_full(allocator, attempt, request);
	return hr__bfc_no_room(allocator, attempt->size, request);
}

/* ---- allocating ---- */

/* Takes a few more chunks of the same size for the cache, from free chunks only. Returns the first of a list through [link]. */
static hr__chunk_id take_more(struct attempt *attempt, hr__cache *cache)
{
	hr__shard *shard = attempt->shard;
	hr__chunk_id list = 0;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && shard == cache->shard && attempt->size <= HR__SMALL_MAX);
	uint64_t count = REFILL_BYTES / attempt->size;
	if (count > REFILL_CHUNKS) count = REFILL_CHUNKS;
	for (; count > 1 && !hr__shard_ensure_records(shard, RECORDS_PER_ATTEMPT); count--) {
		hr__chunk_id id = hr__arena_take(&shard->small.arena, attempt->size, 0);
		if (!id) break;
		hr__chunk *chunk = hr__chunk_at(&shard->table, id);
		hr__store_relaxed(&chunk->state, HR__CHUNK_CACHED);
		hr__fetch_add_relaxed(&cache->moving, 1);
		hr__lookup_insert(&shard->lookup, hr__chunk_address(chunk), id);
		chunk->link = list;
		list = id;
	}
	return list;
}

/* Counts the allocation and fills in its chunk record. Returns the streams that the request's stream must wait for; *epochs are those of
 * their last use. */
static uint64_t hand_out(struct attempt *attempt, hr__cache *cache, const hr_request *request, hr__epochs *epochs)
{
	hr__shard *shard = attempt->shard;
	hr__chunk *chunk = hr__chunk_at(&shard->table, attempt->id);
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	HR_ASSERT(hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE && chunk->size == attempt->size);
	uint64_t pending = chunk->streams & ~hr__stream_bit(request->stream);
	*epochs = chunk->epochs;
	attempt->address = hr__chunk_address(chunk);
	hr__chunk_describe(chunk, request);
	hr__lookup_insert(&shard->lookup, attempt->address, attempt->id);
	hr__log_alloc(cache, request, attempt->address);
	if (attempt->inactive) hr__meters_add_inactive(shard->allocator, (int64_t)attempt->size);
	hr__meter_account(shard, cache, (int64_t)attempt->size);
	hr__owner_add(&shard->stats.requested, (int64_t)request->bytes);
	if (attempt->quiet) {
		hr__fetch_add_relaxed(&shard->allocator->away, -1);
		return pending;
	}
	hr__owner_add(&shard->stats.allocs, 1);
	hr__owner_add(&shard->stats.sources[attempt->source], 1);
	hr__owner_add(&shard->stats.total, (int64_t)attempt->size);
	hr__owner_max(&shard->stats.largest, (int64_t)attempt->size);
	return pending;
}

/* Undoes hand_out when the device could not make the stream wait. */
static void take_back(struct attempt *attempt, hr__cache *cache, uint64_t streams, hr__epochs epochs)
{
	hr__shard *shard = attempt->shard;
	hr__lock_take(&shard->lock);
	hr__chunk *chunk = hr__chunk_at(&shard->table, attempt->id);
	HR_ASSERT(hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE && hr__chunk_address(chunk) == attempt->address);
	hr__log_free(cache, chunk);
	if (attempt->quiet) {
		hr__fetch_add_relaxed(&shard->allocator->away, 1);
	} else {
		hr__owner_add(&shard->stats.allocs, -1);
		hr__owner_add(&shard->stats.sources[attempt->source], -1);
		hr__owner_add(&shard->stats.total, -(int64_t)attempt->size);
	}
	hr__owner_add(&shard->stats.requested, -(int64_t)chunk->requested);
	hr__meter_account(shard, cache, -(int64_t)chunk->size);
	int64_t inactive = attempt->inactive ? (int64_t)chunk->size : 0;
	chunk->streams |= streams;
	chunk->epochs = epochs;
	hr__shard_give(shard, attempt->id);
	hr__lock_release(&shard->lock);
	if (inactive) hr__meters_add_inactive(shard->allocator, -inactive);
}

/* Takes a chunk of this size from the cache. alloc.c usually does so first; it leaves the cache alone when the thread's meter is at its
 * level or the request is unusual. On success the lock of the cache's shard is held. */
static bool take_from_cache(struct attempt *attempt, hr__cache *cache)
{
	if (!cache->capacity || !hr__cache_enter(cache)) return false;
	uint64_t bin = attempt->size >> cache->shift;
	HR_ASSERT(bin < cache->bin_count);
	hr__chunk_id id = cache->bins[bin];
	if (id) {
		cache->bins[bin] = cache->chunks[id].link;
		hr__owner_add(&cache->kept, -(int64_t)attempt->size);
		hr__fetch_add_relaxed(&cache->moving, 1);
	}
	hr__cache_leave(cache);
	if (!id) return false;
	/* A cached chunk is in the lookup table, and hand_out inserts it again. */
	attempt->shard = cache->shard;
	hr__lock_take(&attempt->shard->lock);
	hr__lookup_remove(&attempt->shard->lookup, hr__chunk_address(&cache->chunks[id]), id);
	hr__store_relaxed(&cache->chunks[id].state, HR__CHUNK_IN_USE);
	hr__fetch_add_relaxed(&cache->moving, -1);
	attempt->id = id;
	attempt->source = HR__SOURCE_CACHE;
	return true;
}

/* Makes the stream wait for the streams that used the chunk before. */
static hr_status wait_for_streams(struct attempt *attempt, hr__cache *cache, hr_stream stream, uint64_t pending, hr__epochs epochs)
{
	HR_ASSERT(pending != 0 && hr__lock_none_from(HR__RANK_CACHES));
	int64_t waits = 0;
	hr_status status = hr__device_order_epochs(attempt->shard->allocator->device, stream, pending, epochs, &waits);
	if (status) {
		take_back(attempt, cache, pending, epochs);
		return status;
	}
	if (waits) {
		hr__lock_take(&attempt->shard->lock);
		hr__owner_add(&attempt->shard->stats.waits, waits);
		hr__lock_release(&attempt->shard->lock);
	}
	return HR_OK;
}

static hr_status alloc(hr__allocator *allocator, hr__cache *cache, const hr_request *request, bool quiet, bool inactive, void **out)
{
	struct attempt attempt = { .alignment = request->alignment, .quiet = quiet, .inactive = inactive };
	HR_ASSERT(allocator->kind == HR__KIND_BFC && hr__lock_none_from(HR__RANK_CACHES));
	if (!hr__align_up(request->bytes, allocator->granularity, &attempt.size))
		return hr__fail(HR_INVALID_ARGUMENT, "%s cannot allocate %zu bytes: too large to round up", allocator->name, request->bytes);
	attempt.small = allocator->thread_cache && attempt.size <= HR__SMALL_MAX && attempt.alignment <= allocator->granularity;
	attempt.shard = hr__shard_for(allocator, cache, attempt.small);

	if (cache && cache->capacity) hr__cache_thin(cache, RECORDS_PER_ATTEMPT);
	bool cached = attempt.small, from_cache = cached && cache && take_from_cache(&attempt, cache);
	attempt.small |= attempt.size <= hr__load_relaxed(&allocator->apart_max);
	if (!from_cache) {
		hr__lock_take(&attempt.shard->lock);
		try_everything(&attempt);
		if (!attempt.id) reclaim(&attempt, request->stream);
	}
	if (!attempt.id) {
		hr__lock_release(&attempt.shard->lock);
		return out_of_memory(allocator, &attempt, request);
	}
	hr__chunk_id more = 0;
	hr__epochs epochs;
	uint64_t pending = hand_out(&attempt, cache, request, &epochs);
	if (cached && !from_cache && cache && cache->capacity && attempt.shard == cache->shard && attempt.source <= HR__SOURCE_GROW)
		more = take_more(&attempt, cache);
	hr__lock_release(&attempt.shard->lock);

	if (more) hr__cache_keep(cache, more);
	if (pending) {
		hr_status status = wait_for_streams(&attempt, cache, request->stream, pending, epochs);
		if (status) return status;
	}
	if (hr__trace_is_on()) hr__trace_alloc((uint32_t)allocator->id, request, attempt.address, attempt.size);
	*out = (void *)(uintptr_t)attempt.address;
	return HR_OK;
}

hr_status hr__bfc_alloc(hr__allocator *allocator, hr__cache *cache, const hr_request *request, void **out)
{
	return alloc(allocator, cache, request, false, false, out);
}

hr_status hr__bfc_alloc_quietly(hr__allocator *allocator, hr__cache *cache, const hr_request *request, bool inactive, void **out)
{
	return alloc(allocator, cache, request, true, inactive, out);
}

hr_status hr__bfc_alloc_at(hr__allocator *allocator, hr__cache *cache, const hr_request *request, bool quietly, bool inactive, uint64_t address)
{
	struct attempt attempt = { .alignment = request->alignment, .quiet = quietly, .inactive = inactive, .source = HR__SOURCE_FREE_CHUNK };
	hr__epochs epochs = 0;
	uint64_t pending = 0;
	if (!hr__align_up(request->bytes, allocator->granularity, &attempt.size)) return HR_NOT_READY;
	HR__EACH_SHARD(allocator, shard)
	{
		if (hr__shard_has(shard, address)) attempt.shard = shard;
	}
	if (!attempt.shard || (attempt.alignment && address % attempt.alignment)) return HR_NOT_READY;
	hr__lock_take(&attempt.shard->lock);
	if (!hr__shard_ensure_records(attempt.shard, RECORDS_PER_ATTEMPT))
		for (int small = 0; small < 2 && !attempt.id; small++)
			attempt.id = hr__arena_take_at(&pool_for(attempt.shard, small)->arena, address, attempt.size);
	if (attempt.id) pending = hand_out(&attempt, cache, request, &epochs);
	hr__lock_release(&attempt.shard->lock);
	if (!attempt.id) return HR_NOT_READY;
	if (pending) {
		hr_status status = wait_for_streams(&attempt, cache, request->stream, pending, epochs);
		if (status) return status;
	}
	if (hr__trace_is_on()) hr__trace_alloc((uint32_t)allocator->id, request, attempt.address, attempt.size);
	return HR_OK;
}

/* ---- freeing ---- */

void hr__shard_give(hr__shard *shard, hr__chunk_id id)
{
	hr__chunk *chunk = hr__chunk_at(&shard->table, id);
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	HR_ASSERT(chunk->region != HR__REGION_NONE);
	hr__lookup_remove(&shard->lookup, hr__chunk_address(chunk), id);
	hr__arena_give(&hr__shard_pool_of(shard, chunk)->arena, id);
}

static hr_status not_allocated(const hr__allocator *allocator, uint64_t address, bool known)
{
	return hr__fail(HR_NOT_ALLOCATED, "%s has no block at %#llx: %s", allocator->name, (unsigned long long)address,
	                known ? "it was freed already" : "it was freed already, or comes from another allocator");
}

/* Streams that may still use a block, and the epochs of their last use. */
struct users {
	uint64_t streams;
	hr__epochs epochs;
};

/* Frees a block that was used by [users]. If [users] is NULL, its users up to now are the stream of the request, the streams of
 * hr_allocation_record_stream, and [stream]. */
static hr_status free_block(hr__allocator *allocator, hr__cache *cache, uint64_t address, hr_stream stream, const struct users *users, bool quiet)
{
	hr__shard *shard = NULL;
	HR__EACH_SHARD(allocator, each)
	{
		if (hr__shard_has(each, address)) shard = each;
	}
	if (!shard) return not_allocated(allocator, address, false);
	hr__lock_take(&shard->lock);
	hr__chunk_id id = hr__lookup_find(&shard->lookup, shard->table.chunks, address);
	hr__chunk *chunk = &shard->table.chunks[id];
	/* The owner of a cache may be freeing the same block concurrently: the compare-and-swap makes one of the two fail. */
	uint8_t expected = HR__CHUNK_IN_USE;
	if (!id || !hr__cas_acquire(&chunk->state, &expected, HR__CHUNK_CACHED)) {
		hr__lock_release(&shard->lock);
		return not_allocated(allocator, address, id != 0);
	}
	uint64_t size = chunk->size;
	if (hr__trace_is_on()) hr__trace_free((uint32_t)allocator->id, address, stream);
	hr__log_free(cache, chunk);
	if (quiet) hr__fetch_add_relaxed(&allocator->away, 1);
	else hr__owner_add(&shard->stats.frees, 1);
	hr__owner_add(&shard->stats.requested, -(int64_t)chunk->requested);
	chunk->epochs = users ? users->epochs : hr__device_epoch(allocator->device);
	chunk->streams = users ? users->streams : chunk->streams | hr__stream_bit(stream);
	hr__meter_account(shard, cache, -(int64_t)size);
	hr__shard_give(shard, id);
	hr__lock_release(&shard->lock);
	return HR_OK;
}

hr_status hr__bfc_free(hr__allocator *allocator, hr__cache *cache, uint64_t address, hr_stream stream)
{
	return free_block(allocator, cache, address, stream, NULL, false);
}

hr_status hr__bfc_give(hr__allocator *allocator, hr__cache *cache, uint64_t address, uint64_t streams, hr__epochs epochs, bool quietly)
{
	hr_stream stream = streams ? (hr_stream)__builtin_ctzll(streams) : HR_STREAM_HOST;
	return free_block(allocator, cache, address, stream, &(struct users){ streams, epochs }, quietly);
}

hr_status hr__bfc_trim(hr__allocator *allocator, uint64_t *released)
{
	HR_ASSERT(allocator->kind == HR__KIND_BFC && hr__lock_none_from(HR__RANK_CACHES));
	hr_status status = HR_OK;
	*released = 0;
	hr__caches_empty(allocator);
	HR__EACH_SHARD(allocator, shard)
	{
		hr__lock_take(&shard->lock);
		*released += hr__shard_pool_release_free(shard, &shard->small, &status);
		*released += hr__shard_pool_release_free(shard, &shard->large, &status);
		if (shard->index == 0) hr__owner_add(&shard->stats.trims, 1);
		hr__lock_release(&shard->lock);
	}
	return status;
}

hr_status hr_allocator_trim(hr_allocator handle, uint64_t *released)
{
	hr_status status;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	uint64_t bytes = 0;
	status = allocator->kind == HR__KIND_BFC ? hr__bfc_trim(allocator, &bytes) : HR_OK;
	if (allocator->page) hr__page_pool_shrink(allocator->device);
	if (released) *released = bytes;
	return status;
}

/* ---- opening ---- */

/* Maps the whole limit at once: a 64th of it for small blocks, the rest as one range. */
static hr_status map_all(hr__shard *shard)
{
	hr__allocator *allocator = shard->allocator;
	uint64_t unit = allocator->page ? allocator->page : allocator->granularity;
	uint64_t small = allocator->thread_cache ? hr__align_down(allocator->limit / 64, unit) : 0;
	hr_status status = HR_OK;
	hr__lock_take(&shard->lock);
	if (small) status = hr__shard_ensure_records(shard, RECORDS_PER_ATTEMPT);
	if (small && !status) status = hr__shard_pool_grow(shard, &shard->small, small, 0, false);
	if (!status) status = hr__shard_ensure_records(shard, RECORDS_PER_ATTEMPT);
	if (!status) status = hr__shard_pool_grow(shard, &shard->large, allocator->limit - small, 0, false);
	hr__lock_release(&shard->lock);
	return status;
}

hr_status hr__bfc_open(hr__allocator *allocator)
{
	HR_ASSERT(allocator->kind == HR__KIND_BFC && !allocator->slot);
	/* Memory that is mapped all at once is one range, which is not divided into shards. */
	if (!allocator->allow_growth || !allocator->page) allocator->shard_max = 1;
	hr_status status = hr__shard_open(&allocator->shards[0]);
	if (!status && !allocator->allow_growth) status = map_all(&allocator->shards[0]);
	return status;
}
