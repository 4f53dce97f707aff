/* allocator.h - what an allocator is made of. Private to src/memory.
 *
 *     hr_alloc / hr_free                     alloc.c     the hot path: one screen each
 *        |      \
 *        |       thread cache                cache.c     small freed blocks, kept by the thread; no lock
 *        v      /
 *     the allocator's lock
 *        |-- chunk records, lookup, ledger   (arena/chunk.h, lookup.h)
 *        |-- bfc: two pools, small and large bfc.c       arenas over regions; growth, trimming, stitching in pages.c
 *        |-- direct, custom                  direct.c    the device, or a user's functions, each time
 *        '-- statistics                      stats.c
 *
 * Two pools, because small blocks that live long would otherwise sit in the middle of large free ranges: apart, the four recorded
 * traces need as much memory as exact best fit over everything, or less, and a cache may hold small blocks back at no cost in fit. */
#ifndef HR_MEMORY_ALLOCATOR_H
#define HR_MEMORY_ALLOCATOR_H

#include "arena/arena.h"
#include "base/lock.h"
#include "device/device.h"
#include "memory/lookup.h"

#define HR__SMALL_MAX 65536u           /* largest block that a cache keeps */
#define HR__CACHE_BYTES_MAX (16 << 20)  /* most bytes that one cache keeps, */
#define HR__CACHE_SHARE 256u           /* and at most this part of the limit */
#define HR__SLACK 65536                /* most bytes by which a thread's part of the peak may be too high */
#define HR__NO_LEVEL (INT64_MAX / 4)    /* the level of a thread that is alone */
#define HR__REGIONS_MAX 512u
#define HR__ALLOCATORS_MAX 256u        /* slots; slot 0 is never used */
#define HR__SCOPES_MAX 32u

typedef struct hr__allocator hr__allocator;
typedef struct hr__thread_state hr__thread_state;

enum hr__kind { HR__KIND_BFC = 1, HR__KIND_DIRECT, HR__KIND_CUSTOM };

/* Where allocations came from, in the order in which they are tried; the names are those of the source_* statistics. */
enum hr__source {
	HR__SOURCE_CACHE,
	HR__SOURCE_FREE_CHUNK,
	HR__SOURCE_GROW,
	HR__SOURCE_TRIM,
	HR__SOURCE_STITCH,
	HR__SOURCE_SINGLE_RECLAIM,
	HR__SOURCE_MULTI_RECLAIM,
	HR__SOURCE_FULL_RECLAIM,
	HR__SOURCE_DEFRAGMENT,
	HR__SOURCE_DEVICE,
	HR__SOURCES
};

/* ---- thread caches ---- */

/* One thread's cache in front of one allocator. The owner works in it without a lock, between hr__cache_enter and _leave. Another
 * thread that must empty it (trim, close) sets [stop], raises a heavy barrier and waits until [busy] is 0; see cache.c.
 *
 * Accounting: [used] is what the thread handed out less what it took back; it may be negative, since blocks change hands. While one
 * thread uses the allocator, [high] remembers the most, so that the exact peak can be told afterwards. With more threads each has a
 * [level] that its [used] must not pass without asking; the peak is that of in_use plus all levels, and levels that have become more
 * than HR__SLACK too high are lowered before they count (hr__peak_evaluate). In a program that does the same again and again, no
 * thread passes its level any more, and nobody writes a line that others read. */
typedef struct hr__cache {
	hr__atomic_u64 id;        /* handle of the allocator; 0 once it is closed */
	hr__allocator *allocator; /* the rest of this line is immutable */
	hr__chunk *chunks;
	hr__lookup *lookup;
	hr__thread_state *thread;
	uint32_t round;           /* granularity - 1 */
	uint32_t shift;           /* log2 of granularity */
	int64_t capacity;         /* most bytes to keep; 0 = keep nothing */

	/* owner only; others read */
	hr__atomic_u32 busy;
	hr__atomic_u32 stop;      /* set by others */
	hr__atomic_u32 watch;     /* not 0: tell hr__watch of every block; set by others too */
	hr__atomic_i64 used, high;
	hr__atomic_i64 level;     /* written under the allocator's lock */
	hr__atomic_i64 kept;      /* bytes in bins */
	hr__atomic_i64 allocs, frees, requested, largest; /* what went through the cache; requested is a balance */
	uint32_t bin_count;       /* immutable */
	uint32_t cursor;          /* bin where the next overflow starts emptying */

	struct hr__cache *next;   /* allocator's list; changed with caches_lock and lock held */
	void *block;              /* where this lives, and its size: two caches never share a cache line */
	size_t bytes;
	hr__chunk_id bins[];      /* first kept chunk of each size in units */
} hr__cache;

typedef struct hr__scope_frame {
	uint32_t device; /* index */
	hr_stats_scope totals;
} hr__scope_frame;

/* What Headroom keeps for a thread. Freed when the thread ends. */
struct hr__thread_state {
	uint32_t scope_depth;
	hr__cache *caches[HR__ALLOCATORS_MAX];
	hr__scope_frame scopes[HR__SCOPES_MAX];
};

extern _Thread_local hr__thread_state *hr__thread_self __attribute__((tls_model("initial-exec")));

static inline bool hr__cache_enter(hr__cache *cache);
static inline void hr__cache_leave(hr__cache *cache);

/* ---- regions and pools ---- */

typedef struct hr__region {
	uint64_t address, size; /* of the address space */
	uint64_t mapped;        /* bytes with memory behind them */
	hr__chunk_id edge;      /* of its chain; the edge's next is the first chunk */
	hr__page_id *pages;     /* id + 1 of the page at each page of addresses, 0 = none; NULL where there are no pages */
	size_t pages_bytes;
	bool plain;             /* one plain allocation instead of pages */
} hr__region;

typedef struct hr__pool {
	hr__arena arena;
	uint64_t next_region; /* plain devices: size of the next region to ask for */
	bool small;
} hr__pool;

/* ---- the allocator ---- */

typedef struct hr__custom {
	char name[32];
	hr_custom_allocator table;
	void *user;
} hr__custom;

/* What all allocators of a device hold together. With one allocator it is that allocator's own figures; from the second on it is
 * kept here, at the price of an atomic addition per operation under the lock. */
typedef struct hr__usage {
	hr__atomic_u32 allocators;
	hr__atomic_u32 shared; /* 1 from the moment there were two */
	hr__atomic_i64 in_use, peak, reserved, peak_reserved;
} hr__usage;

struct hr__allocator {
	/* immutable after creation */
	uint64_t id;
	uint32_t slot;
	enum hr__kind kind;
	hr__device *device;
	hr__usage *usage; /* of the device */
	uint64_t limit;       /* in whole pages */
	uint64_t page;        /* 0 = the device has none */
	uint32_t granularity, shift;
	bool allow_growth, thread_cache, stitch, is_default;
	char name[32];
	char kind_name[32];
	hr__custom custom;
	void *custom_state;

	/* The list is changed with both locks held, so either is enough to read it. */
	hr__lock caches_lock __attribute__((aligned(64)));
	hr__cache *caches;
	hr__atomic_u32 cache_count; /* written under caches_lock and lock */

	/* Guarded by lock. */
	hr__lock lock __attribute__((aligned(128)));
	hr__chunk_table table;
	hr__lookup lookup;
	hr__pool large, small;
	hr__region regions[HR__REGIONS_MAX];
	uint32_t region_count; /* slots used so far; a released slot has size 0 */

	/* Statistics: written under lock, read by anybody. */
	struct {
		hr__atomic_i64 in_use;    /* bytes, [used] of the caches not included */
		hr__atomic_i64 levels;    /* sum of the levels of all caches; meaningless while there is one */
		hr__atomic_i64 peak;
		hr__atomic_i64 peak_error;
		hr__atomic_i64 requested; /* of blocks that did not go through a cache, as a balance */
		hr__atomic_i64 reserved, peak_reserved;
		hr__atomic_i64 largest;
		hr__atomic_i64 allocs, failed, frees; /* frees and allocs that did not go through a cache */
		hr__atomic_i64 sources[HR__SOURCES];
		hr__atomic_i64 stitches, stitched, waits, trims;
		hr__atomic_i64 past_cached_allocs; /* of caches of threads that ended */
		/* at the last reset, to be taken off */
		hr__atomic_i64 base_allocs, base_failed, base_frees, base_live, base_cached_allocs;
	} stats;
};

extern hr__usage hr__usages[HR__MAX_DEVICES];

/* registry (allocator.c) */
hr__allocator *hr__allocator_of(hr_allocator handle, hr_status *why);
/* Calls [visit] for every allocator of [device] (NULL = all) with the registry's lock held. */
void hr__allocators_visit(hr__device *device, void (*visit)(hr__allocator *, void *), void *context);
/* The same when the registry's lock is held already. */
void hr__allocators_visit_locked(hr__device *device, void (*visit)(hr__allocator *, void *), void *context);
hr_status hr__request_check(const hr__allocator *allocator, const hr_request *request);

/* caches (cache.c) */
hr__thread_state *hr__thread_get(void); /* the calling thread's, made when missing; NULL when it cannot be made */
hr__cache *hr__cache_get(hr__allocator *allocator); /* the calling thread's, made when missing; NULL when it cannot be made */
/* Raises the level of the cache so that [size] more bytes may be handed out. Without the lock. */
void hr__cache_raise(hr__cache *cache, int64_t size);
/* Makes the levels tight and the peak right, with several threads. With the lock held. */
void hr__peak_evaluate(hr__allocator *allocator);
/* Gives about an eighth of what the cache keeps back to the arenas. Without the lock, outside the busy section. */
void hr__cache_overflow(hr__cache *cache);
/* Keeps a list (through link) of chunks in state HR__CHUNK_CACHED, or gives them back when the cache is stopped. Without the lock. */
void hr__cache_keep(hr__cache *cache, hr__chunk_id list);
/* Empties every cache of the allocator. Without the lock. */
void hr__caches_empty(hr__allocator *allocator);
/* Empties them and makes them strangers to the allocator, which is about to go. Without the lock. */
void hr__caches_detach(hr__allocator *allocator);
/* Waits until no thread is in the busy section it is in now. With or without the lock. */
void hr__caches_quiesce(hr__allocator *allocator);
void hr__threads_forget(void); /* after fork, in the child */
void hr__thread_drop(void);    /* frees what the calling thread has; every allocator is closed */

/* bfc (bfc.c). Without the lock. */
hr_status hr__bfc_open(hr__allocator *allocator);
hr_status hr__bfc_alloc(hr__allocator *allocator, hr__cache *cache, const hr_request *request, void **out);
hr_status hr__bfc_free(hr__allocator *allocator, hr__cache *cache, uint64_t address, hr_stream stream);
uint64_t hr__bfc_trim(hr__allocator *allocator); /* bytes released */
void hr__bfc_close(hr__allocator *allocator);

/* What bfc.c asks of memory (pages.c). With the lock held. */
hr_status hr__pool_grow(hr__allocator *allocator, hr__pool *pool, uint64_t size, uint64_t alignment);
hr_status hr__pool_stitch(hr__allocator *allocator, hr__pool *pool, uint64_t size, uint64_t alignment);
uint64_t hr__pool_release_free(hr__allocator *allocator, hr__pool *pool);
void hr__regions_close(hr__allocator *allocator);
uint64_t hr__regions_metadata(const hr__allocator *allocator);

/* direct and custom (direct.c). Without the lock. */
hr_status hr__direct_alloc(hr__allocator *allocator, hr__cache *cache, const hr_request *request, void **out);
hr_status hr__direct_free(hr__allocator *allocator, hr__cache *cache, uint64_t address, hr_stream stream);
void hr__direct_close(hr__allocator *allocator);

/* Shared pieces (allocator.c). With the lock held. */
hr_status hr__records_ensure(hr__allocator *allocator, uint32_t records); /* records, and room for one more address */
hr_status hr__refuse(hr__allocator *allocator, hr_status status); /* counts a refused request; takes the lock itself; returns status */

/* Statistics (stats.c). */
void hr__usage_join(hr__allocator *allocator);
void hr__usage_leave(hr__allocator *allocator);
void hr__usages_reset(void);
void hr__usage_add(hr__usage *usage, int64_t bytes);
void hr__stats_reserve(hr__allocator *allocator, int64_t bytes); /* adds to bytes_reserved; with the lock held */

/* Observers (observe.c): what is not on the straight path of an allocation. */
void hr__watch(hr__cache *cache, int64_t bytes); /* a block was handed out (or taken back: negative) and somebody wants to know */
void hr__watch_update(hr__cache *cache);         /* sets cache->watch */
void hr__note_failed(const hr__allocator *allocator, const hr_request *request);
void hr__note_reserved(const hr__allocator *allocator, uint64_t address, int64_t bytes);
void hr__note_allocator(const hr__allocator *allocator);

/* 0, or the number of a violated invariant (check.c). With the lock held and the caches stopped. */
int hr__allocator_check_locked(hr__allocator *allocator);
void hr__caches_stop(hr__allocator *allocator);  /* takes caches_lock, stops every cache */
void hr__caches_start(hr__allocator *allocator); /* the reverse */

/* ---- small inline pieces that the hot path and the slow one share ---- */

#include "os/os.h"

static inline bool hr__cache_enter(hr__cache *cache)
{
	hr__store_relaxed(&cache->busy, 1);
	hr__light_barrier();
	if (HR_LIKELY(!hr__load_acquire(&cache->stop))) return true;
	hr__store_release(&cache->busy, 0);
	return false;
}

static inline void hr__cache_leave(hr__cache *cache)
{
	hr__store_release(&cache->busy, 0);
}

static inline void hr__max(hr__atomic_i64 *to, int64_t value)
{
	if (value > hr__load_relaxed(to)) hr__store_relaxed(to, value);
}

/* Adds [bytes] to what is in use and keeps the peak. [cache] (may be NULL) is the calling thread's. With the lock held. */
static inline void hr__account(hr__allocator *allocator, hr__cache *cache, int64_t bytes)
{
	int64_t before = hr__load_relaxed(&allocator->stats.in_use), now = before + bytes;
	hr__store_relaxed(&allocator->stats.in_use, now);
	if (HR_LIKELY(cache && hr__load_relaxed(&allocator->cache_count) == 1)) {
		int64_t used = hr__load_relaxed(&cache->used), high = before + hr__load_relaxed(&cache->high);
		hr__store_relaxed(&cache->high, used);
		hr__max(&allocator->stats.peak, high > now + used ? high : now + used);
	} else if (bytes > 0 && now + hr__load_relaxed(&allocator->stats.levels) > hr__load_relaxed(&allocator->stats.peak)) {
		hr__peak_evaluate(allocator);
	}
}

/* What is to be done with every block besides: rarely anything. */
static inline void hr__observe(hr__allocator *allocator, hr__cache *cache, int64_t bytes)
{
	if (HR_LIKELY(cache)) {
		if (HR_UNLIKELY(hr__load_relaxed(&cache->watch))) hr__watch(cache, bytes);
	} else if (hr__load_relaxed(&allocator->usage->shared)) {
		hr__usage_add(allocator->usage, bytes);
	}
}

/* Fills in what a request says about a chunk that it got. */
static inline void hr__chunk_describe(hr__chunk *chunk, const hr_request *request)
{
	chunk->requested = request->bytes;
	chunk->streams = UINT64_C(1) << request->stream;
	chunk->op = request->op;
	chunk->scope = request->scope;
	chunk->tag = request->tag;
	chunk->shape = request->shape;
	chunk->dtype = (uint8_t)request->dtype;
}

#endif
