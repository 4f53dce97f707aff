/* cache.c - thread caches: small freed blocks that stay with the thread that freed them.
 *
 * The owner of a cache pops and pushes without a lock. An asymmetric Dekker handshake (os.h) protects the cache from a thread that
 * must empty it:
 *
 *     owner:    busy = 1; light barrier; stop? then leave, use the locked path      ...work...     busy = 0 (release)
 *     other:    stop = 1; heavy barrier; wait until busy == 0 (acquire)             ...work...     stop = 0 (release)
 *
 * At least one side sees the other's flag. The owner pays two plain stores and a load. The other thread pays a system call, which
 * is acceptable because it is about to map memory or fail. The owner never waits for a stopped cache: it uses the shard's lock
 * meanwhile. No thread acquires a shard's lock inside the busy section, so a thread may wait for [busy] while it holds one
 * (hr__caches_quiesce).
 *
 * A cache keeps only chunks of its thread's own shard. A block of another shard is returned to its arena at once.
 *
 * A kept chunk is in state HR__CHUNK_CACHED and stays in the lookup, so that a second free of its address is recognised. */
#include "core/memory/allocator.h"

#include "core/base/status.h"
#include "core/trace/stacks.h"
#include "core/trace/trace.h"

#define LINE 128u /* processors fetch cache lines in pairs */
#define THIN_LEAST 128u    /* chunks; with fewer, the fixed costs of a cache exceed those of the records */
#define THINNED_MAX 24u    /* limit on the doublings of the pause between thinnings */
#define THIN_PAUSE_PART 16 /* the first pause is one allocation per this many chunks given up */

#define CONTENTION_GAP 2048u /* versions of a lock; each acquisition adds two */
#define CONTENTION_MOST 4u   /* waits for the lock of shard 0 after which a thread uses its own shard for large blocks */
#define IDLE_PAUSES 128u     /* of the processor, about 4 us: a shard not used for this long is idle */

_Thread_local hr__thread_state *hr__thread_self __attribute__((tls_model("initial-exec")));

/* ---- returning chunks to the arena ---- */

/* Returns a list of chunks that the cache kept to the arena. */
static void give_list(hr__cache *cache, hr__chunk_id list)
{
	hr__shard *shard = cache->shard;
	int64_t count = 0;
	if (!list) return;
	hr__lock_take(&shard->lock);
	for (; list; count++) {
		hr__chunk_id id = list;
		list = hr__chunk_at(&shard->table, id)->link;
		HR_ASSERT(hr__chunk_state_of(hr__chunk_at(&shard->table, id)) == HR__CHUNK_CACHED);
		hr__shard_give(shard, id);
		/* Returning a long list takes tens of microseconds, and another thread may be waiting for this meter's level to be lowered.
		 * Only the owner may lower it. */
		if (HR_UNLIKELY(hr__load_relaxed(&cache->meter.lowering) && cache->thread == hr__thread_self))
			hr__meter_lower(cache->allocator, &cache->meter);
	}
	hr__fetch_add_relaxed(&cache->moving, -count);
	hr__lock_release(&shard->lock);
}

/* Removes every chunk of bin [bin] and prepends it to [list]. In the busy section, or with the cache stopped. */
static hr__chunk_id unload_bin(hr__cache *cache, uint32_t bin, hr__chunk_id list)
{
	hr__chunk_id id = cache->bins[bin];
	int64_t bytes = 0, count = 0;
	HR_ASSERT(hr__cache_is_busy(cache) || hr__load_relaxed(&cache->stop));
	cache->bins[bin] = 0;
	for (; id; count++) {
		hr__chunk *chunk = &cache->chunks[id];
		hr__chunk_id next = chunk->link;
		HR_ASSERT(hr__chunk_state_of(chunk) == HR__CHUNK_CACHED && chunk->size >> cache->shift == bin);
		bytes += (int64_t)chunk->size;
		chunk->link = list;
		list = id;
		id = next;
	}
	hr__owner_add(&cache->kept, -bytes);
	hr__fetch_add_relaxed(&cache->moving, count);
	return list;
}

void hr__cache_overflow(hr__cache *cache)
{
	HR_ASSERT(cache->capacity > 0 && hr__lock_none_from(HR__RANK_CACHES));
	hr__chunk_id list = 0;
	if (!hr__cache_enter(cache)) return;
	for (uint32_t i = 0; i < cache->bin_count && hr__load_relaxed(&cache->kept) > cache->capacity - cache->capacity / 8; i++) {
		uint32_t bin = cache->cursor;
		cache->cursor = bin + 1 < cache->bin_count ? bin + 1 : 0;
		if (cache->bins[bin]) list = unload_bin(cache, bin, list);
	}
	hr__cache_leave(cache);
	give_list(cache, list);
}

void hr__cache_keep(hr__cache *cache, hr__chunk_id list)
{
	HR_ASSERT(list && hr__lock_none_from(HR__RANK_SHARD));
	if (!hr__cache_enter(cache)) {
		give_list(cache, list);
		return;
	}
	int64_t bytes = 0, count = 0;
	for (; list; count++) {
		hr__chunk *chunk = &cache->chunks[list];
		hr__chunk_id id = list;
		uint64_t bin = chunk->size >> cache->shift;
		HR_ASSERT(hr__chunk_state_of(chunk) == HR__CHUNK_CACHED && bin < cache->bin_count);
		list = chunk->link;
		chunk->link = cache->bins[bin];
		cache->bins[bin] = id;
		bytes += (int64_t)chunk->size;
	}
	hr__owner_add(&cache->kept, bytes);
	hr__fetch_add_relaxed(&cache->moving, -count);
	hr__cache_leave(cache);
}

/* ---- thinning ---- */

/* Number of chunks in the bins. In the busy section. */
static uint32_t count_kept(const hr__cache *cache)
{
	HR_ASSERT(hr__cache_is_busy(cache));
	uint32_t count = 0;
	for (uint32_t bin = 0; bin < cache->bin_count; bin++)
		for (hr__chunk_id id = cache->bins[bin]; id; id = cache->chunks[id].link) count++;
	return count;
}

/* A kept chunk needs a record and a place in the lookup, like a chunk in use. So before these tables grow, a cache that holds more
 * than an eighth of all chunks gives its chunks up. That frees many records, since most of the chunks merge with neighbours. The
 * pause until the next thinning doubles each time: a program that needs many kept chunks and few in use gets more records instead
 * of losing its cache again and again. */
void hr__cache_thin(hr__cache *cache, uint32_t records)
{
	hr__shard *shard = cache->shard;
	HR_ASSERT(cache->thread == hr__thread_self && hr__lock_none_from(HR__RANK_SHARD));
	hr__chunk_id list = 0;
	hr__lock_take(&shard->lock);
	bool enough = hr__chunk_table_has(&shard->table, records) && hr__lookup_has_room(&shard->lookup);
	uint32_t all = shard->lookup.count;
	hr__lock_release(&shard->lock);
	if (enough || all < THIN_LEAST || hr__load_relaxed(&cache->allocs) < cache->thin_from || !hr__cache_enter(cache)) return;
	uint32_t count = count_kept(cache);
	if (count > all / 8) {
		cache->thin_from = hr__load_relaxed(&cache->allocs) + ((int64_t)count << cache->thinned) / THIN_PAUSE_PART;
		if (cache->thinned < THINNED_MAX) cache->thinned++;
		for (uint32_t bin = 0; bin < cache->bin_count; bin++)
			if (cache->bins[bin]) list = unload_bin(cache, bin, list);
	}
	hr__cache_leave(cache);
	give_list(cache, list);
}

/* ---- joining and leaving ---- */

void hr__shards_lock(hr__allocator *allocator)
{
	HR__EACH_SHARD(allocator, shard) hr__lock_take(&shard->lock);
}

void hr__shards_unlock(hr__allocator *allocator)
{
	HR__EACH_SHARD(allocator, shard) hr__lock_release(&shard->lock);
}

#ifdef HR_DEBUG
bool hr__shards_are_locked(const hr__allocator *allocator)
{
	for (const hr__shard *shard = allocator->shards; shard < allocator->shards + allocator->shard_max; shard++)
		if (hr__load_acquire(&shard->open) && !hr__lock_is_mine(&shard->lock)) return false;
	return true;
}

bool hr__caches_are_stopped(const hr__allocator *allocator)
{
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next)
		if (!hr__load_relaxed(&cache->stop)) return false; /* [busy] may be set for a moment, by an owner that is about to see [stop] */
	return hr__lock_is_mine(&allocator->caches_lock);
}
#endif

/* Adds a cache to the allocator's list. */
static void join(hr__allocator *allocator, hr__cache *cache)
{
	HR_ASSERT(hr__lock_is_mine(&allocator->caches_lock) && cache->thread == hr__thread_self);
	hr__shards_lock(allocator); /* waits for operations that account as the only thread */
	hr__lock_take(allocator->meter_lock);
	uint32_t count = hr__load_relaxed(&allocator->cache_count) + 1;
	hr__cache *alone = count == 2 ? allocator->caches : NULL;
	cache->next = allocator->caches;
	allocator->caches = cache;
	hr__store_relaxed(&allocator->cache_count, count);
	hr__store_relaxed(&cache->meter.level, hr__meters_are_on(allocator) ? 0 : HR__NO_LEVEL);
	hr__meters_join(allocator, cache);
	if (count > 1) {
		hr__meters_evaluate(allocator);
		if (alone) /* the highest [used] of the first cache, read now that it cannot pass its level unnoticed */
			hr__owner_max(&allocator->peak, hr__meters_of_others(NULL, allocator) + hr__load_relaxed(&alone->high));
		hr__owner_max(&allocator->peak_error, (int64_t)(count + hr__load_relaxed(&allocator->open_shards)) * HR__SLACK);
	}
	cache->shard->threads++;
	hr__lock_release(allocator->meter_lock);
	hr__shards_unlock(allocator);
	hr__store_relaxed(&cache->watch, cache->thread->scope_depth != 0);
}

/* Removes a cache, empty and stopped, from the list, and keeps its counts. */
static void leave(hr__allocator *allocator, hr__cache *cache)
{
	HR_ASSERT(hr__lock_is_mine(&allocator->caches_lock));
	HR_ASSERT(hr__load_relaxed(&cache->stop) && !hr__load_relaxed(&cache->kept));
	hr__log_leave(allocator, cache);
	hr__shards_lock(allocator);
	hr__meter_account(cache->shard, cache, 0); /* includes [high] in the peak, if this was the only cache */
	hr__lock_take(allocator->meter_lock);
	hr__meter *heir = &cache->shard->meter;
	int64_t level = hr__load_relaxed(&cache->meter.level) + hr__load_relaxed(&heir->level);
	hr__owner_add(&heir->used, hr__load_relaxed(&cache->meter.used));
	hr__store_relaxed(&heir->level, level < HR__NO_LEVEL ? level : HR__NO_LEVEL);
	hr__store_relaxed(&cache->meter.used, 0);
	hr__store_relaxed(&cache->meter.level, 0);
	hr__cache **at = &allocator->caches;
	while (*at != cache) {
		HR_ASSERT(*at);
		at = &(*at)->next;
	}
	*at = cache->next;
	hr__store_relaxed(&allocator->cache_count, hr__load_relaxed(&allocator->cache_count) - 1);
	if (hr__load_relaxed(&allocator->cache_count) == 1) /* the last cache: its earlier highs are included in the peak */
		hr__store_relaxed(&allocator->caches->high, hr__load_relaxed(&allocator->caches->meter.used));
	hr__meters_leave(allocator, cache);
	cache->shard->threads--;
	hr__lock_release(allocator->meter_lock);
	hr__shards_unlock(allocator);
	hr__owner_add(&allocator->past_allocs, hr__load_relaxed(&cache->allocs));
	hr__owner_add(&allocator->past_frees, hr__load_relaxed(&cache->frees));
	hr__owner_add(&allocator->past_requested, hr__load_relaxed(&cache->requested));
	hr__owner_add(&allocator->past_total, hr__load_relaxed(&cache->total));
	hr__owner_max(&allocator->past_largest, hr__load_relaxed(&cache->largest));
}

/* ---- stopping ---- */

void hr__cache_wait_idle(const hr__cache *cache)
{
	for (unsigned attempt = 0; hr__load_acquire(&cache->busy); attempt++) hr__lock_wait(attempt);
}

void hr__caches_stop(hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_CACHES));
	hr__lock_take(&allocator->caches_lock);
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) hr__store_relaxed(&cache->stop, 1);
	hr__heavy_barrier();
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) hr__cache_wait_idle(cache);
}

void hr__caches_start(hr__allocator *allocator)
{
	HR_ASSERT(hr__caches_are_stopped(allocator));
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) hr__store_release(&cache->stop, 0);
	hr__lock_release(&allocator->caches_lock);
}

void hr__caches_quiesce(hr__allocator *allocator)
{
	HR_ASSERT(!hr__lock_is_mine(allocator->meter_lock));
	hr__heavy_barrier();
	hr__lock_take(allocator->meter_lock); /* keeps the list unchanged; no thread waits for this lock inside a busy section */
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) hr__cache_wait_idle(cache);
	hr__lock_release(allocator->meter_lock);
}

static void empty_stopped(hr__cache *cache)
{
	hr__chunk_id list = 0;
	HR_ASSERT(hr__load_relaxed(&cache->stop));
	for (uint32_t bin = 0; bin < cache->bin_count; bin++)
		if (cache->bins[bin]) list = unload_bin(cache, bin, list);
	give_list(cache, list);
}

void hr__caches_empty(hr__allocator *allocator)
{
	hr__caches_stop(allocator);
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) empty_stopped(cache);
	hr__caches_start(allocator);
}

/* ---- large blocks ---- */

/* Whether another thread is using the shard: its lock is held, or the lock's version changes within IDLE_PAUSES. Without locks. */
static bool is_busy(hr__shard *shard)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_CACHES));
	uint64_t version = hr__lock_read_begin(&shard->lock);
	for (unsigned i = 0; i < IDLE_PAUSES && hr__lock_read_ok(&shard->lock, version); i++) hr__cpu_pause();
	return !hr__lock_read_ok(&shard->lock, version);
}

/* The version of a lock counts its acquisitions. One wait is forgotten per CONTENTION_GAP versions, so only frequent waits add
 * up. */
hr__shard *hr__cache_lock_large_slow(hr__cache *cache)
{
	hr__shard *shard = cache->large;
	HR_ASSERT(cache->thread == hr__thread_self && !hr__cache_is_busy(cache));
	uint64_t version = hr__lock_read_begin(&shard->lock);
	uint64_t forgotten = (version - cache->contended_at) / CONTENTION_GAP;
	cache->contended_at = version;
	cache->contended = forgotten < cache->contended ? cache->contended - (uint32_t)forgotten + 1 : 1;
	if (cache->contended >= CONTENTION_MOST) cache->large = cache->shard;
	hr__lock_take(&shard->lock);
	return shard;
}

/* ---- threads ---- */

static void cache_free(hr__cache *cache)
{
	HR_ASSERT(!hr__cache_is_busy(cache));
	hr__os()->free(cache->block, cache->bytes);
}

/* A cache whose allocator was closed stays with its thread, unusable, until the thread ends or creates another in its slot. */
static bool is_orphan(const hr__cache *cache)
{
	return hr__load_acquire(&cache->id) == 0;
}

void hr__caches_detach(hr__allocator *allocator)
{
	hr__caches_stop(allocator);
	while (allocator->caches) {
		hr__cache *cache = allocator->caches;
		empty_stopped(cache);
		leave(allocator, cache);
		hr__store_release(&cache->id, 0);
		hr__store_release(&cache->stop, 0);
	}
	hr__lock_release(&allocator->caches_lock);
}

static void unlink_cache(hr__cache *cache)
{
	hr__allocator *allocator = cache->allocator;
	hr__caches_stop(allocator);
	empty_stopped(cache);
	leave(allocator, cache);
	hr__caches_start(allocator);
}

/* Set when the thread's state was freed because the thread is ending. The state is not created again: what destructors of other
 * modules allocate or free later needs no cache, and nothing would free a cache created in the last round of destructors. */
static _Thread_local bool thread_ended;

static void drop_state(void *value)
{
	hr__thread_state *thread = value;
	HR_ASSERT(thread == hr__thread_self);
	hr__allocators_lock(); /* a concurrent close of an allocator has detached all its caches, or none */
	for (uint32_t slot = 0; slot < HR__ALLOCATORS_MAX; slot++) {
		hr__cache *cache = thread->caches[slot];
		if (!cache) continue;
		if (!is_orphan(cache)) unlink_cache(cache);
		cache_free(cache);
	}
	hr__allocators_unlock();
	hr__os()->free(thread, sizeof *thread);
	hr__thread_self = NULL;
	hr__trace_thread_exit();
}

static void thread_ends(void *value)
{
	thread_ended = true;
	drop_state(value);
}

void hr__thread_drop(void)
{
	if (!hr__thread_self) return;
	hr__os_at_thread_exit_set(NULL);
	drop_state(hr__thread_self);
}

void hr__threads_forget(void)
{
	hr__thread_self = NULL;
	hr__os_at_thread_exit_set(NULL);
}

hr__thread_state *hr__thread_get(void)
{
	void *block;
	if (hr__thread_self) return hr__thread_self;
	if (thread_ended) return NULL;
	int error = hr__os_at_thread_exit(thread_ends);
	if ((error && error != 17 /* EEXIST: already registered */) || hr__os()->alloc(sizeof(hr__thread_state), &block)) return NULL;
	if (hr__os_at_thread_exit_set(block)) {
		hr__os()->free(block, sizeof(hr__thread_state));
		return NULL;
	}
	hr__thread_self = block;
	if (hr__stacks_depth()) hr__store_relaxed(&hr__thread_self->context, HR__CONTEXT_STACKS);
	return hr__thread_self;
}

/* The shard with the fewest threads; a shard that is not open yet if all open ones have threads. */
static hr__shard *choose_shard(hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_is_mine(&allocator->caches_lock));
	hr__shard *best = &allocator->shards[0];
	for (uint32_t i = 1; i < allocator->shard_max && best->threads; i++)
		if (allocator->shards[i].threads < best->threads) best = &allocator->shards[i];
	if (!hr__load_relaxed(&best->open) && hr__shard_open(best)) return &allocator->shards[0];
	return best;
}

static hr__cache *cache_new(hr__allocator *allocator, hr__thread_state *thread)
{
	uint32_t bins = allocator->kind == HR__KIND_BFC ? (HR__SMALL_MAX >> allocator->shift) + 1 : 0;
	size_t bytes = sizeof(hr__cache) + bins * sizeof(hr__chunk_id) + 2 * LINE;
	void *block;
	if (hr__os()->alloc(bytes, &block)) return NULL;
	hr__cache *cache = (hr__cache *)(((uintptr_t)block + LINE - 1) & ~(uintptr_t)(LINE - 1));
	cache->block = block;
	cache->bytes = bytes;
	cache->allocator = allocator;
	cache->thread = thread;
	cache->streams = hr__device_stream_state(allocator->device);
	cache->log_left = HR__LOG_NEVER;
	cache->round = allocator->granularity - 1;
	cache->shift = allocator->shift;
	cache->bin_count = bins;
	cache->bytes_stream = allocator->bytes_stream;
	if (allocator->kind == HR__KIND_BFC && allocator->thread_cache) {
		uint64_t share = allocator->limit / HR__CACHE_SHARE;
		cache->capacity = share < HR__CACHE_BYTES_MAX ? (int32_t)share : HR__CACHE_BYTES_MAX;
	}
	hr__store_relaxed(&cache->id, allocator->id);
	return cache;
}

hr__cache *hr__cache_get(hr__allocator *allocator)
{
	hr__thread_state *thread = hr__thread_get();
	if (!thread) return NULL;
	hr__cache *cache = thread->caches[allocator->slot];
	if (cache && hr__load_relaxed(&cache->id) == allocator->id) return cache;
	if (cache) {
		HR_ASSERT(is_orphan(cache));
		cache_free(cache);
		thread->caches[allocator->slot] = NULL;
	}
	if (!(cache = cache_new(allocator, thread))) return NULL;
	bool busy = allocator->shard_max > 1 && hr__load_relaxed(&allocator->cache_count) && is_busy(&allocator->shards[0]);
	hr__lock_take(&allocator->caches_lock);
	cache->shard = choose_shard(allocator);
	cache->large = busy ? cache->shard : &allocator->shards[0];
	cache->chunks = cache->shard->table.chunks;
	cache->lookup = &cache->shard->lookup;
	hr__log_join(allocator, cache);
	join(allocator, cache);
	hr__lock_release(&allocator->caches_lock);
	thread->caches[allocator->slot] = cache;
	return cache;
}
