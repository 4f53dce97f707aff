/* allocator.h - the data structures of an allocator. Private to src/core/memory.
 *
 *     hr_alloc / hr_free             alloc.c    the hot path
 *        |      \
 *        |       thread cache        cache.c    small freed blocks, kept by the thread; no lock
 *        v      /
 *     shard: a lock, and under it               small blocks: the thread's own shard; large blocks: see below
 *        |-- chunk records, lookup              (core/arena/chunk.h, lookup.h); the records hold the ledger
 *        |-- two pools, small and large         bfc.c: the attempts for a request; pages.c: growing, releasing, stitching
 *        '-- counters                           stats/meter.c, stats/stats.c
 *     spans                          span.c     blocks of whole pages outside the arenas, at a stable address
 *     direct, custom                 direct.c   every call goes to the device, or to a user's functions
 *     adopted blocks                 adopt.c    of a custom allocator: the caller has the memory from elsewhere
 *
 * There are two pools because long-lived small blocks would otherwise fragment large free ranges. With two pools the four recorded
 * traces need no more memory than exact best fit over one pool, and a cache can keep small blocks without spoiling the fit of large
 * requests.
 *
 * There are several shards because two threads that use one arena at the same time move its cache lines between their cores at
 * every operation: whole traces then run at a third to three quarters of the speed of one thread. A shard is a complete small
 * allocator with its own address range. A thread allocates small blocks from its own shard. All threads allocate large blocks from
 * shard 0 as long as they take turns, as the forward and the backward pass of a training program do: memory freed by one thread
 * serves another, and the fit is as good as with one thread. A thread that finds shard 0 busy when it starts, or often waits for its lock,
 * allocates large blocks from its own shard from then on (hr__cache_lock_large_slow). Free memory in one shard is used by the others before
 * a request fails. */
#ifndef HR_MEMORY_ALLOCATOR_H
#define HR_MEMORY_ALLOCATOR_H

#include "core/arena/arena.h"
#include "core/base/hooks.h"
#include "core/base/lock.h"
#include "core/base/shared.h"
#include "core/device/device.h"
#include "core/memory/leaks.h"
#include "core/memory/log.h"
#include "core/memory/bfc/lookup.h"
#include "core/os/os.h"

#define HR__SMALL_MAX 65536u           /* largest block that a cache keeps, in bytes */
#define HR__CACHE_BYTES_MAX (16 << 20) /* most bytes that one cache keeps; also at most 1 / HR__CACHE_SHARE of the allocator's limit */
#define HR__CACHE_SHARE 256u
#define HR__SLACK 32768                /* bytes by which a meter may overstate the peak; a thread has two meters at most */
#define HR__NO_LEVEL (INT64_MAX / 64)  /* level of a meter while one thread uses the allocator: no limit */
#define HR__SHARDS_MAX 8u
#define HR__PAGES_PER_SHARD 64u        /* an allocator has at most one shard for each 64 pages of its limit */
#define HR__REGIONS_MAX 256u
#define HR__ALLOCATORS_MAX 256u        /* slots; slot 0 is never used */
#define HR__NAME_SCOPES_MAX 64u        /* nested name scopes of a thread (hr_name_scope_push) */
#define HR__SCOPES_MAX 32u             /* nested statistics scopes of a thread (hr_stats_scope_begin) */

typedef struct hr__allocator hr__allocator;
typedef struct hr__shard hr__shard;
typedef struct hr__thread_state hr__thread_state;
typedef struct hr__lms_hooks hr__lms_hooks;

enum hr__kind { HR__KIND_BFC = 1, HR__KIND_DIRECT, HR__KIND_CUSTOM };

/* Which attempt served an allocation, in the order of the attempts. The names are those of the source_* statistics. */
enum hr__alloc_source {
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

/* ---- meters ---- */

/* Bytes allocated less bytes freed through one cache or one shard. Negative where blocks are freed through another meter than the
 * one they were allocated through. The sum of an allocator's meters is its bytes in use. meter.c describes how the peak of that sum
 * is tracked without computing the sum for every block. */
typedef struct hr__meter {
	hr__atomic_i64 used;   /* written by the cache's owner, or under the shard's lock */
	hr__atomic_i64 level;  /* [used] exceeds it only after hr__meter_raise; written under meter_lock */
	hr__atomic_u32 lowering; /* not 0: the owner must lower the level, because another meter has no room (meter.c); written under
	                          * meter_lock */
} hr__meter;

/* ---- thread caches ---- */

/* One thread's cache in front of one allocator. The owner uses it without a lock, between hr__cache_enter and hr__cache_leave.
 * Another thread that must empty the cache (trim, close) sets [stop], issues a heavy barrier and waits until [busy] is 0; see
 * cache.c. */
typedef struct hr__cache {
	hr__atomic_u64 id;        /* handle of the allocator; 0 once the allocator is closed */
	hr__shard *shard;         /* the thread's shard; the fields from here to bin_count are immutable */
	hr__chunk *chunks;        /* of the shard */
	hr__lookup *lookup;       /* of the shard */
	hr__allocator *allocator;
	const hr__stream_state *streams; /* of the device */
	uint32_t round;           /* granularity - 1 */
	uint32_t shift;           /* log2 of granularity */
	int32_t capacity;         /* most bytes to keep; 0 = keep nothing */
	uint32_t bin_count;       /* 0 = not a bfc allocator */

	/* written by the owner, read by any thread, unless noted otherwise */
	hr__shard *large;         /* shard of the thread's large blocks: shard 0, or its own; read by the owner only */
	hr__atomic_u32 busy;
	hr__atomic_u32 stop;      /* written by other threads */
	hr__atomic_u32 watch;     /* not 0: the owner is inside a statistics scope, so hr__stats_scope_count counts every block */
	hr_stream bytes_stream;   /* of hr_alloc_bytes; immutable */
	hr__meter meter;
	hr__atomic_i64 high;      /* highest [used] since the peak was last updated; meaningful while this is the only cache */
	hr__atomic_i64 kept;      /* bytes in bins */
	hr__atomic_i64 moving;    /* number of cached chunks that are between a bin and an arena, in neither; any thread adds */
	hr__atomic_i64 allocs, frees, requested, largest; /* of blocks that went through the cache; requested: bytes allocated less bytes freed */
	hr__atomic_i64 total;     /* bytes counted by [allocs] */
	int64_t log_left;         /* operations to skip before the next logged one; below 0 = all are logged; HR__LOG_NEVER = none */
	hr__atomic_u64 log_bytes; /* bytes of host memory of [log] */
	hr__log_ring *log;        /* NULL = nothing is logged; changed with the caches stopped and every shard's lock held */
	uint32_t cursor;          /* bin at which the next overflow starts to empty bins */
	uint32_t thinned;         /* number of times that hr__cache_thin emptied the cache */
	int64_t thin_from;        /* hr__cache_thin does nothing before [allocs] reaches this */
	uint32_t contended;       /* recent waits for the lock of [large] (hr__cache_lock_large_slow) */
	uint64_t contended_at;    /* version of the lock of [large] at the last wait */

	hr__atomic_u32 pinning;   /* not 0: the owner is in a call that counts pins (src/core/lms/check.c) */
	hr__log_ring *next_log;   /* used while rings are being replaced */
	hr__atomic_u32 log_thread; /* the thread's number in the log; 0 = none yet */
	hr__thread_state *thread; /* immutable */
	struct hr__cache *next;   /* allocator's list; changed with caches_lock and meter_lock held */
	void *block;              /* the host memory that contains this cache; padded, so that two caches never share a cache line */
	size_t bytes;             /* of [block] */
	hr__chunk_id bins[];      /* by size, in units of the granularity: the first cached chunk of that size */
} hr__cache;

typedef struct hr__scope_frame {
	uint32_t device; /* index */
	hr_stats_scope totals;
} hr__scope_frame;

/* Per-thread state. Freed when the thread ends. */
struct hr__thread_state {
	uint32_t scope_depth; /* accessed by this thread only */
	hr__atomic_u32 context; /* not 0: requests without an op or a scope get the thread's current one; with HR__CONTEXT_STACKS, requests
	                         * get a call stack. Written by this thread, and when a recording starts */
	hr_name op, scope;    /* current op and scope (context.c) */
	uint32_t name_depth;
	uint32_t retries;     /* hr__request_retry(true) without its end */
	hr_name names[HR__NAME_SCOPES_MAX]; /* for each open name scope: the path before it was pushed */
	hr__cache *caches[HR__ALLOCATORS_MAX];
	hr__scope_frame scopes[HR__SCOPES_MAX];
};

#define HR__CONTEXT_STACKS (1u << 31) /* above all names */

extern _Thread_local hr__thread_state *hr__thread_self __attribute__((tls_model("initial-exec")));

/* ---- shards ---- */

typedef struct hr__region {
	uint64_t address, size; /* of the address space */
	uint64_t mapped;        /* bytes backed by memory */
	hr__chunk_id edge;      /* sentinel of the region's chain of chunks; its next is the first chunk */
	hr__page_id *pages;     /* id + 1 of the page at each page of addresses, 0 = none; NULL on devices without pages */
	bool small;
} hr__region;

typedef struct hr__shard_pool {
	hr__arena arena;
	uint64_t next_region; /* devices without pages: size of the next region to request */
	bool small;
} hr__shard_pool;

struct hr__shard {
	/* immutable once the shard is open */
	hr__allocator *allocator;
	uint32_t index;
	hr__atomic_u32 open;         /* 1 when all of the shard is initialised; set under the allocator's caches_lock */
	hr__atomic_u64 base, span;   /* address range, by which a free finds its shard. Set once, under lock, before the first block */
	hr__atomic_u64 large_from;   /* first address of the large pool; UINT64_MAX where an address does not identify the pool */
	hr__page_id *pages;          /* page tables of its regions; NULL on devices without pages */
	size_t pages_bytes;

	uint32_t threads; /* number of threads that use the shard; guarded by caches_lock */

	/* Guarded by lock. In the order of use: a block that is adopted (adopt.h) or freed is in the first two cache lines. */
	hr__lock lock __attribute__((aligned(128)));
	hr__chunk_table table;
	hr__lookup lookup;

	/* Statistics: written under lock, read by any thread. */
	hr__meter meter;
	struct {
		hr__atomic_i64 requested; /* bytes allocated less bytes freed, of blocks that did not go through a cache */
		hr__atomic_i64 allocs, frees; /* of blocks that did not go through a cache */
		hr__atomic_i64 total;     /* bytes counted by [allocs] */
		hr__atomic_i64 sources[HR__SOURCES];
		hr__atomic_i64 largest, failed;
		hr__atomic_i64 stitches, stitched, waits, trims;
	} stats;

	hr__shard_pool large, small; /* guarded by lock */
};

/* ---- the allocator ---- */

typedef struct hr__custom {
	char name[32];
	hr_custom_allocator table;
	void *user;
} hr__custom;

/* Totals over all allocators of a device. As long as the device has had only one allocator, the figures of that allocator are the
 * device's. From the second allocator on, [shared] is set and the sums below are maintained (meter.c). */
typedef struct hr__usage {
	hr__lock lock;               /* guards every level on the device; innermost of the allocators' locks */
	hr__allocator *first;        /* list of the device's allocators (next_on_device); changed with lock held */
	hr__atomic_u32 allocators;   /* number of allocators in the list */
	hr__atomic_u32 threads;      /* threads that have a cache of an allocator of the device; changed with lock held */
	hr__atomic_u32 shared;       /* 1 from the second allocator on, until the device has none */
	hr__atomic_u32 active;       /* 1 = one of the allocators tracks active bytes; until the device has none */
	hr__atomic_i64 levels, granted; /* sums over the allocators, while shared; written with lock held */
	hr__atomic_i64 missing;      /* bytes by which the last raise of a level would have exceeded a peak; written with lock held */
	hr__atomic_i64 peak, peak_active, peak_error; /* while shared; otherwise the values that closed allocators left */
	hr__atomic_i64 reserved __attribute__((aligned(64))), peak_reserved;
	hr_stats closed;             /* counts of closed allocators since the last reset; guarded by the registry's lock */
	hr__atomic_i64 step_peak;    /* highest step_peak of its allocators, closed ones included */
} hr__usage;

struct hr__allocator {
	/* immutable after creation */
	uint64_t id;
	uint16_t slot;
	hr__atomic_u8 reports; /* not immutable: oom.report_allocations_on_oom (below), readable without a lock. Operations are logged */
	enum hr__kind kind;
	hr__device *device;
	hr__usage *usage;   /* of the device */
	hr__lock *meter_lock; /* usage->lock */
	uint64_t limit;     /* a multiple of the page size */
	uint64_t page;      /* page size in bytes; 0 = the device has no pages */
	uint32_t granularity, shift;
	uint32_t shard_max; /* limit on the number of shards */
	bool allow_growth, thread_cache, stitch, is_default;
	hr_stream bytes_stream; /* of hr_alloc_bytes */
	char name[32];
	char kind_name[32];
	hr__custom custom;
	void *custom_state;
	void *block; /* the allocation that contains this struct */
	_Atomic(struct hr__lms *) lms; /* context of its tensors (src/core/lms); NULL = none; set once */
	hr__atomic_u64 apart_max; /* blocks of this size and less come from the small pools if there is room, because tensors have places in the
	                           * large ones (hr__blocks_keep_apart); 0 = only blocks of HR__SMALL_MAX and less */

	/* settings for out-of-memory handling: changed with the caches stopped and every shard's lock held */
	hr_oom_options oom;
	hr__log_ring *past_log; /* log of threads that ended; written under caches_lock, as are the next two */
	uint64_t past_logged;
	uint32_t log_threads;

	/* One cache line with what every operation under a shard's lock reads, and the bytes that a direct or adopted block changes. */
	hr__lock caches_lock __attribute__((aligned(64)));
	hr__atomic_u32 cache_count; /* changed with caches_lock, every shard's lock and meter_lock held */
	hr__atomic_u32 open_shards; /* changed under caches_lock */
	hr__atomic_u32 metered; /* 1 = its meters have levels even with one thread (meter.c); changed as cache_count is, never reset */

	/* written with meter_lock held (meter.c) */
	hr__atomic_u32 active;      /* 1 = active bytes are tracked: the allocator has or had tensors */
	hr__atomic_i64 peak;        /* of bytes in use */

	/* changed by any thread (limit.h) */
	hr__atomic_i64 claimed; /* bytes held or being requested from the device; never above limit */
	hr__atomic_i64 reserved; /* bytes held */
	hr__atomic_i64 peak_reserved;

	hr__cache *caches; /* changed with caches_lock and meter_lock held, so holding either is enough to read the list */

	/* written with meter_lock held (meter.c) */
	hr__allocator *next_on_device;
	hr__atomic_i64 levels;      /* sum of all levels; meaningless while the allocator is not metered */
	hr__atomic_i64 granted;     /* a pin needs no lock while [levels] - [inactive] is at most this */
	hr__atomic_i64 peak_active, peak_error;
	hr__atomic_i64 inactive __attribute__((aligned(64))); /* bytes of resident tensors without pins; changed by any thread
	                                                       * (hr__meters_add_inactive) */

	hr__atomic_u64 map_ns __attribute__((aligned(128))); /* time spent mapping and unmapping pages, by the device's clock */
	hr__atomic_u64 map_pages; /* number of pages mapped */
	hr__atomic_i64 away; /* blocks of evicted tensors: freed without being counted, and not yet allocated again */
	hr__atomic_i64 step_peak; /* most bytes that a step needed at once (hr__stats_note_step_peak); 0 = not known */
	hr__atomic_i64 spans, span_bytes; /* number and bytes of spans (span.c) that have memory; changed under the lock of shard 0 */
	/* counts of the caches of threads that ended; written under caches_lock */
	hr__atomic_i64 past_allocs, past_frees, past_requested, past_largest, past_total;
	/* values at the last reset, subtracted from the counts; written under caches_lock */
	hr__atomic_i64 base_allocs, base_failed, base_frees, base_live, base_cached, base_total;
	hr_stats closed; /* counts of its tensors, kept when their context closes; written under caches_lock */

	hr__shard shards[HR__SHARDS_MAX]; /* near the counters above: the first one usually in the same page of memory */

	/* A shard's regions are guarded by its lock. On devices with pages, shard s has regions 2s (large) and 2s+1 (small). On others,
	 * all regions belong to shard 0; region_count is the number of slots ever used, and a free slot has size 0. */
	hr__region regions[HR__REGIONS_MAX];
	uint32_t region_count;
	hr__atomic_u32 region_total; /* number of regions, readable without a lock */
};

extern hr__usage hr__usages[HR__MAX_DEVICES];

/* registry (allocator.c) */
/* The slot of a handle. [id] is that of its allocator, or 0; it is compared before the pointer is followed, because the slot of a stale handle may point to an
 * allocator that is being closed. */
struct hr__allocator_slot {
	hr__atomic_u64 id;
	_Atomic(hr__allocator *) allocator;
};
extern struct hr__allocator_slot hr__allocator_slots[HR__ALLOCATORS_MAX];
/* NULL if the handle is not valid; sets no message. */
static inline hr__allocator *hr__allocator_peek(hr_allocator handle)
{
	const struct hr__allocator_slot *slot = &hr__allocator_slots[handle.id % HR__ALLOCATORS_MAX];
	bool valid = handle.id && hr__load_acquire(&slot->id) == handle.id;
	return HR_LIKELY(valid) ? hr__load_relaxed(&slot->allocator) : NULL;
}
/* NULL if the handle is not valid or the process was forked; *why is then the status, and the message is set. */
HR__SHARED hr__allocator *hr__allocator_of(hr_allocator handle, hr_status *why);
/* Calls [visit] for every allocator of [device] (NULL = all) with the registry's lock held. */
void hr__allocators_visit(hr__device *device, void (*visit)(hr__allocator *, void *), void *context);
/* hr__allocators_visit for a caller that holds the registry's lock. */
void hr__allocators_visit_locked(hr__device *device, void (*visit)(hr__allocator *, void *), void *context);
/* Acquire and release the registry's lock: no allocator is created or closed while it is held. */
void hr__allocators_lock(void);
void hr__allocators_unlock(void);
/* Copies a request of any version of the headers (core/base/struct.h). [call] is the public function. */
hr_status hr__request_read(const char *call, const hr_request *request, hr_request *out);
#define HR__REQUEST_BYTES_MAX (UINT64_C(1) << 48)
/* Checks a request of this version. */
hr_status hr__request_check(const hr__allocator *allocator, const hr_request *request);
hr_status hr__request_count_refusal(hr__allocator *allocator, hr_status status); /* counts a refused request; returns status */
/* Handles a failed request: writes it to the recording, counts it and, if memory was lacking, reports it. The verdict is about
 * [judged]. Does nothing while the thread retries a refused request (hr__request_retry). */
void hr__request_refuse(hr__allocator *allocator, const hr_request *request, const hr_request *judged, hr_status status);
/* Between true and false refusals of the calling thread's requests are neither reported nor counted: another attempt has been reported, or
 * will be. Nests. */
HR__SHARED void hr__request_retry(bool on);

/* shards (allocator.c) */
hr_status hr__shard_open(hr__shard *shard); /* with caches_lock held, or before the allocator is visible to other threads */
hr_status hr__shard_ensure_records(hr__shard *shard, uint32_t records); /* also ensures room for one more address; with the lock held */

/* caches (cache.c) */
hr__thread_state *hr__thread_get(void); /* of the calling thread, created if missing; NULL if that fails or the thread is ending */
hr__cache *hr__cache_get(hr__allocator *allocator); /* of the calling thread, created if missing; NULL if it cannot be created */
/* Returns about an eighth of the cached chunks to the arenas. Without the lock, outside the busy section. */
void hr__cache_overflow(hr__cache *cache);
/* Called before [records] chunk records are needed. If they, or one more address in the lookup table, would take more host memory, and
 * the cache keeps many chunks, empties the cache instead. Without locks. */
void hr__cache_thin(hr__cache *cache, uint32_t records);
/* Adds a list of chunks (linked through [link], in state HR__CHUNK_CACHED) to the cache; if the cache is stopped, returns them to the
 * arena. Without the lock. */
void hr__cache_keep(hr__cache *cache, hr__chunk_id list);
/* Empties every cache of the allocator. Without locks. */
void hr__caches_empty(hr__allocator *allocator);
/* Empties every cache and detaches it from the allocator, which is about to close. Without locks. */
void hr__caches_detach(hr__allocator *allocator);
/* Acquires the lock of [large], which another thread holds, and returns that shard. After many waits the thread's next large block
 * comes from its own shard. */
hr__shard *hr__cache_lock_large_slow(hr__cache *cache);
/* Waits until the owner has left the busy section that it is in now. To be called after a heavy barrier. */
void hr__cache_wait_idle(const hr__cache *cache);
/* Waits until every thread has left the busy section that it is in now. A shard's lock may be held, but not meter_lock. */
void hr__caches_quiesce(hr__allocator *allocator);
void hr__caches_stop(hr__allocator *allocator);  /* acquires caches_lock, stops every cache */
void hr__caches_start(hr__allocator *allocator); /* restarts every cache, releases caches_lock */
void hr__threads_forget(void); /* after fork, in the child */
void hr__thread_drop(void);    /* frees the calling thread's state; every allocator is closed */

/* meters (meter.c) */
/* Raises the level of [meter] so that [size] more bytes may be used. [other] is the second meter whose [used] only the calling
 * thread can write at this moment; NULL = none. */
void hr__meter_raise(hr__allocator *allocator, hr__meter *meter, hr__meter *other, int64_t size);
void hr__meter_lower(hr__allocator *allocator, hr__meter *meter); /* lowers a level that is marked ([lowering]); for a thread that may write [used] */
void hr__meters_evaluate(hr__allocator *allocator); /* tightens the levels and updates the peak; with meter_lock held */
void hr__meters_update_peak(hr__allocator *allocator); /* raises the peak to the bytes in use; for a thread without a cache */
int64_t hr__meters_sum(const hr__allocator *allocator); /* with caches_lock or meter_lock held */
/* Bytes in use of an allocator, and their peak; exact while one thread uses the allocator. With caches_lock held. */
void hr__meters_in_use(const hr__allocator *allocator, int64_t *in_use, int64_t *peak);
/* Sum of the meters of all shards but this one (NULL = of all shards). */
int64_t hr__meters_of_others(const hr__shard *shard, const hr__allocator *allocator);
bool hr__meters_are_on(const hr__allocator *allocator); /* whether its meters have levels */
/* Sets every level to [used]. With the caches stopped and every shard's lock and meter_lock held. */
void hr__meters_exact(hr__allocator *allocator);
/* Starts tracking active bytes apart from bytes in use, before the allocator gets its first tensor. Without locks. */
void hr__meters_begin_active(hr__allocator *allocator);
/* Adds [bytes] of tensors to the inactive bytes; negative: they became active, or were freed. The call comes after a pin, before an
 * unpin, after a free, and just before memory is allocated ahead of a pin (hr__block_take). With this order active bytes are never
 * overcounted, which would raise the peak for good. Without meter_lock. */
void hr__meters_add_inactive(hr__allocator *allocator, int64_t bytes);
void hr__meters_join(hr__allocator *allocator, hr__cache *cache);  /* after the cache entered the list; with meter_lock held */
void hr__meters_leave(hr__allocator *allocator, hr__cache *cache); /* after the cache left the list; with meter_lock held */
/* Resets the peaks of a shared device to the current values. With the registry's lock held, and no other. */
void hr__meters_restart(hr__usage *usage);

/* bfc (bfc.c). Without locks. */
hr_status hr__bfc_open(hr__allocator *allocator);
hr_status hr__bfc_alloc(hr__allocator *allocator, hr__cache *cache, const hr_request *request, void **out);
hr_status hr__bfc_free(hr__allocator *allocator, hr__cache *cache, uint64_t address, hr_stream stream);
/* For requests that the library itself makes: not counted as requests. [inactive]: for a tensor that is not pinned. */
hr_status hr__bfc_alloc_quietly(hr__allocator *allocator, hr__cache *cache, const hr_request *request, bool inactive, void **out);
/* Allocates at exactly [address]. [quietly]: not counted as a request. [inactive]: for a tensor that is not pinned. HR_NOT_READY
 * (without a message) when the range is not free. */
hr_status hr__bfc_alloc_at(hr__allocator *allocator, hr__cache *cache, const hr_request *request, bool quietly, bool inactive, uint64_t address);
/* Frees a block whose last use is known: by [streams], up to [epochs]. [quietly]: not counted as a free. */
hr_status hr__bfc_give(hr__allocator *allocator, hr__cache *cache, uint64_t address, uint64_t streams, hr__epochs epochs, bool quietly);
hr_status hr__bfc_trim(hr__allocator *allocator, uint64_t *released); /* returns the first error; *released is valid even then */
/* Trims the device's other allocators, if the limit of this one leaves room for what they release. */
void hr__bfc_trim_others(hr__allocator *allocator);
/* Sets the message that says why a request of [size] bytes, rounded up, was refused. Returns HR_OUT_OF_MEMORY. */
hr_status hr__bfc_no_room(hr__allocator *allocator, uint64_t size, const hr_request *request);
void hr__shard_give(hr__shard *shard, hr__chunk_id id); /* returns a chunk to its arena; with the lock held */

/* Memory for bfc.c (pages.c). With the shard's lock held. */
hr_status hr__shard_pool_grow(hr__shard *shard, hr__shard_pool *pool, uint64_t size, uint64_t alignment);
/* A range of addresses to which free pages are to be mapped. */
typedef struct hr__stitch {
	hr__chunk_id left, right; /* free chunks that the range extends: their pages must stay; 0 = none */
	uint64_t missing;         /* pages to release elsewhere, beyond those available from the device */
} hr__stitch;
/* Finds a range for a request, and how many pages must be released for it. [elsewhere] is the number of whole free pages outside the
 * pool. HR_OUT_OF_MEMORY when there are not enough free pages for any range. */
hr_status hr__shard_pool_prepare_stitch(hr__shard *shard, hr__shard_pool *pool, uint64_t size, uint64_t alignment, uint64_t elsewhere,
                              hr__stitch *plan);
/* Number of whole free pages of a pool. */
uint64_t hr__shard_pool_count_free(const hr__shard *shard, const hr__shard_pool *pool);
/* Releases up to [most] whole free pages of a pool, except those of the chunks in [plan] (may be NULL). Returns their number. */
uint64_t hr__shard_pool_release_pages(hr__shard *shard, hr__shard_pool *pool, uint64_t most, const hr__stitch *plan,
                                      hr_status *status);
/* Releases all free pages, or free regions on a device without pages. Returns the bytes. */
uint64_t hr__shard_pool_release_free(hr__shard *shard, hr__shard_pool *pool, hr_status *status);
/* Devices without pages: whether a new region for the request fits once all entirely free regions are released. */
bool hr__shard_can_regrow(hr__shard *shard, uint64_t size, uint64_t alignment);
void hr__shard_close_regions(hr__shard *shard);

/* Releases the memory of the spans that are left when the allocator closes (span.c). Under the lock of shard 0. */
void hr__spans_close(hr__shard *shard);

/* direct and custom (direct.c). Without locks. */
hr_status hr__direct_alloc(hr__allocator *allocator, hr__cache *cache, const hr_request *request, void **out);
hr_status hr__direct_free(hr__allocator *allocator, hr__cache *cache, uint64_t address, hr_stream stream);
void hr__direct_close(hr__allocator *allocator);
hr_status hr__direct_over_limit(const hr__allocator *allocator, const hr_request *request); /* the message of a request above the limit */

/* totals of a device (stats/usage.c) */
/* With the registry's lock held, except hr__usages_reset, which hr_shutdown calls when no allocator is left. */
void hr__usage_prepare(hr__usage *usage); /* before the first allocator of the device is created */
void hr__usage_join(hr__allocator *allocator);
void hr__usage_leave(hr__allocator *allocator); /* its counts are kept for the device; the caches are detached */
void hr__usages_reset(void);

/* statistics (stats/stats.c) */
/* Adds the allocator's counts to those of its device. Its remaining blocks count as freed. With the registry's lock held. */
void hr__stats_keep_counts(hr__allocator *allocator);
/* Keeps the counts of the allocator's tensors, whose context is about to close. Without locks. */
void hr__stats_keep_tensors(hr__allocator *allocator, const hr__lms_hooks *lms_hooks);
/* As hr_device_get_stats, and calls [visit] for each allocator of the device, with the registry's lock held and the statistics that the
 * device's are summed from. So the figures of both add up, whatever other threads do meanwhile. [stats] has the size of this version. */
typedef void (*hr__stats_visit)(hr__allocator *allocator, const hr_stats *stats, void *context);
hr_status hr__stats_visit_device(hr_device device, hr_stats *stats, hr__stats_visit visit, void *context);
/* Bytes in use and their peak, as in hr_stats, and requests refused since the allocator was created. Cheaper than the full
 * statistics. Without locks, or under locks of a rank below HR__RANK_CACHES. */
typedef struct hr__memory_summary {
	int64_t in_use, peak, refused;
} hr__memory_summary;
hr__memory_summary hr__stats_summarize(hr__allocator *allocator);
/* Notes that a step whose requests were all met needed [bytes] at once. The highest value is kept for the verdict on a later
 * request. Without locks. */
void hr__stats_note_step_peak(hr__allocator *allocator, int64_t bytes);

/* Counts a block that [thread] (may be NULL) allocated, or freed (negative), in the thread's statistics scopes. */
void hr__stats_scope_count(const hr__allocator *allocator, hr__thread_state *thread, int64_t bytes); /* stats/stats_scope.c */

/* recordings (recording.c) */
/* If a recording is on, write an event: a refused request; [bytes] mapped, or unmapped if negative; the allocator itself. */
void hr__recording_note_failed(const hr__allocator *allocator, const hr_request *request);
void hr__recording_note_reserved(const hr__allocator *allocator, uint64_t address, int64_t bytes);
void hr__recording_note_allocator(const hr__allocator *allocator);
/* A block that exists already. With the lock of its shard held. */
void hr__recording_note_block(const hr__allocator *allocator, const hr__chunk *chunk);
/* Names a block again (HR_NAME_NONE: not), with the lock of its shard held (inspect.c). */
void hr__chunk_rename(const hr__allocator *allocator, hr__chunk *chunk, hr_name scope, hr_name tag);
/* Start and end a recording of every allocator to a new file at [path], which begins with the blocks that are already allocated. Like
 * hr_trace_start and hr_trace_stop, but for a caller that owns the recording (core/record/profiler.c). */
hr_status hr__recording_start(const char *path, uint64_t max_bytes, uint32_t stack_depth);
hr_status hr__recording_stop(void);

/* 0, or the number of a violated invariant (check.c). With every shard's lock and meter_lock held and the caches stopped. */
int hr__allocator_check_locked(hr__allocator *allocator);
void hr__shards_lock(hr__allocator *allocator); /* every open shard, in order */
void hr__shards_unlock(hr__allocator *allocator);

/* Debug builds only, for HR_ASSERT: the calling thread holds the registry's lock; holds the lock of every open shard; has stopped the
 * caches (hr__caches_stop). */
bool hr__allocators_are_locked(void);
bool hr__shards_are_locked(const hr__allocator *allocator);
bool hr__caches_are_stopped(const hr__allocator *allocator);

/* ---- hooks of the layer above; NULL until tensors are first used ---- */

/* A request for which there is no room. */
typedef struct hr__pressure {
	hr__allocator *allocator;
	uint64_t size, alignment; /* rounded up; alignment 0 = the granularity is enough */
	hr_stream stream;         /* the stream that will use the block */
	uint32_t round;           /* 0 = first call for this request */
	bool pages;               /* the request needs [size] bytes of whole pages, at any addresses */
	/* [trimmed]: the request is only evaluated, not made. Thread caches count as empty, and memory may grow by [room], the bytes that
	 * the device could provide after a trim. */
	bool trimmed;
	uint64_t room;
} hr__pressure;

/* Whether tensors may be moved on the device to make free memory contiguous. */
typedef struct hr__moving {
	bool on;
	uint64_t budget; /* limit on bytes moved for one request; 0 = no limit */
} hr__moving;

/* Evictable tensors that recipes compute again. */
typedef struct hr__droppable {
	uint64_t bytes, ns; /* and the time of these recipes */
	bool on;            /* they are dropped automatically */
} hr__droppable;

struct hr__lms_hooks {
	/* Makes room by evicting tensors. HR_OK: the request should be retried, and a success counts under *source. HR_NOT_READY: no
	 * tensor is left to evict. Anything else: eviction failed, and the message says why. Without locks. */
	hr_status (*reclaim)(const hr__pressure *pressure, enum hr__alloc_source *source);
	/* Add the layer's counts to [stats]; reset them to zero. With caches_lock held. */
	void (*stats)(hr__allocator *allocator, hr_stats *stats);
	void (*reset)(hr__allocator *allocator);
	/* HR_OK when no tensors are left; otherwise why the allocator cannot be closed. Without locks. */
	hr_status (*in_use)(hr__allocator *allocator);
	/* The allocator is about to be closed, with its remaining tensors. Without locks. */
	void (*closing)(hr__allocator *allocator);
	/* Whether the tensor [owner] (hr__block_own) could be evicted, supposing that eviction is on. With the lock of the shard that
	 * holds its block, which keeps the tensor from being destroyed. */
	bool (*is_evictable)(uint32_t owner);
	/* Whether tensors of the allocator are evicted automatically. *room receives the bytes that the host can take, *apart the
	 * bytes of evictable tensors that own pages outside all regions. Of this layer's locks, only hr__report_lock may be held. */
	bool (*get_evictable)(hr__allocator *allocator, uint64_t *room, uint64_t *apart);
	/* Finds the tensors that may be dropped. Of this layer's locks, only hr__report_lock may be held. */
	hr__droppable (*get_droppable)(hr__allocator *allocator);
	/* Bytes of tensors that would have to move on the device to give the request contiguous free memory; UINT64_MAX when moving
	 * does not help. Tensors are claimed meanwhile, but not moved. Of this layer's locks, only hr__report_lock may be held. */
	uint64_t (*bytes_to_move)(const hr__pressure *pressure, hr__moving *how);
	void (*leaks)(hr__leaks *leaks); /* adds the existing tensors. Without locks */
	void (*shutdown)(void); /* before everything is closed */
	void (*forget)(void);   /* in the child after fork */
};

/* ---- inline functions that the hot path and the slow path share ---- */

#define HR__EACH_SHARD(allocator, shard)                                                                   \
	for (hr__shard *shard = (allocator)->shards; shard < (allocator)->shards + (allocator)->shard_max; shard++) \
		if (hr__load_acquire(&shard->open))

static inline bool hr__shard_has(const hr__shard *shard, uint64_t address)
{
	return address - hr__load_relaxed(&shard->base) < hr__load_relaxed(&shard->span);
}

/* Acquires the lock of the shard that the thread uses for large blocks, and returns the shard. */
static inline hr__shard *hr__cache_lock_large(hr__cache *cache)
{
	hr__shard *shard = cache->large;
	return HR_LIKELY(hr__lock_try(&shard->lock)) ? shard : hr__cache_lock_large_slow(cache);
}

/* The shard that the thread of [cache] (may be NULL) uses for small or for large blocks. */
static inline hr__shard *hr__shard_for(hr__allocator *allocator, hr__cache *cache, bool small)
{
	return !cache ? &allocator->shards[0] : small ? cache->shard : cache->large;
}

static inline bool hr__cache_enter(hr__cache *cache)
{
	HR_ASSERT(!hr__load_relaxed(&cache->busy) && cache->thread == hr__thread_self);
	hr__store_relaxed(&cache->busy, 1);
	hr__light_barrier();
	if (HR_LIKELY(!hr__load_acquire(&cache->stop))) return true;
	hr__store_release(&cache->busy, 0);
	return false;
}

static inline bool hr__cache_is_busy(const hr__cache *cache)
{
	return hr__load_relaxed(&cache->busy) != 0;
}

static inline void hr__cache_leave(hr__cache *cache)
{
	HR_ASSERT(hr__cache_is_busy(cache) && cache->thread == hr__thread_self);
	hr__store_release(&cache->busy, 0);
}

/* Count an operation, and log it if its turn has come (log_left). In the cache's busy section or under a shard's lock. */
static inline void hr__log_alloc(hr__cache *cache, const hr_request *request, uint64_t address)
{
	HR_ASSERT(!cache || cache->thread == hr__thread_self);
	if (HR_UNLIKELY(cache && --cache->log_left < 0)) hr__log_write_alloc(cache, request, address);
}

static inline void hr__log_free(hr__cache *cache, const hr__chunk *chunk)
{
	HR_ASSERT(!cache || cache->thread == hr__thread_self);
	if (HR_UNLIKELY(cache && --cache->log_left < 0)) hr__log_write_free(cache, chunk);
}

static inline bool hr__meter_allows(const hr__meter *meter, int64_t bytes)
{
	return hr__load_relaxed(&meter->used) + bytes <= hr__load_relaxed(&meter->level);
}

/* Counts a block in the thread's statistics scopes, which are rarely open. A thread without a cache has no [watch] flag and always
 * makes the call. Under the shard's lock or in the cache's busy section, so that watching cannot begin between a block and its
 * accounting. */
static inline void hr__stats_scope_note(const hr__allocator *allocator, hr__cache *cache, int64_t bytes)
{
	if (HR_UNLIKELY(!cache || hr__load_relaxed(&cache->watch))) hr__stats_scope_count(allocator, hr__thread_self, bytes);
}

/* hr__meter_account for several threads or shards, for a thread without a cache, or when [watch] is set. */
void hr__meter_account_any(hr__shard *shard, hr__cache *cache, hr__meter *meter, int64_t bytes);

/* The usual case with several threads and no tensors: the meter stays at or below its level. Returns false without side effects in
 * every other case. */
static inline bool hr__meter_account_below(hr__shard *shard, hr__cache *cache, hr__meter *meter, int64_t bytes)
{
	const hr__allocator *allocator = cache->allocator;
	HR_ASSERT(meter == &shard->meter || meter == &cache->meter);
	int64_t now = hr__load_relaxed(&meter->used) + bytes;
	if (hr__load_relaxed(&allocator->cache_count) == 1 || hr__load_relaxed(&allocator->active) || hr__load_relaxed(&cache->watch) ||
	    now > hr__load_relaxed(&meter->level))
		return false;
	hr__store_relaxed(&meter->used, now);
	hr__light_barrier(); /* the level may have been lowered meanwhile: see meter.c */
	if (HR_UNLIKELY(now > hr__load_relaxed(&meter->level) || hr__load_relaxed(&shard->meter.lowering) || hr__load_relaxed(&cache->meter.lowering)))
		hr__meter_account_any(shard, cache, meter, 0);
	return true;
}

/* Accounts for [bytes] allocated (freed: negative) under the shard's lock, and updates the peak. [cache] (may be NULL) is the
 * calling thread's. A small block is counted in the thread's own meter, as one from the cache is: if a block were allocated through one
 * meter and freed through the other, the two would drift apart and reach their levels more often. */
static inline void hr__meter_account(hr__shard *shard, hr__cache *cache, int64_t bytes)
{
	hr__allocator *allocator = cache ? cache->allocator : shard->allocator; /* that of the shard is in a cache line of its own */
	HR_ASSERT(hr__lock_is_mine(&shard->lock));
	bool small = cache && bytes <= HR__SMALL_MAX && bytes >= -(int64_t)HR__SMALL_MAX;
	hr__meter *meter = small ? &cache->meter : &shard->meter;
	/* One thread, one shard, no scope: the allocator's peak is exact and updated here. Only a metered allocator has levels
	 * (meter.c). */
	if (HR_UNLIKELY(!cache || (hr__load_relaxed(&allocator->cache_count) ^ 1) | (hr__load_relaxed(&allocator->open_shards) ^ 1) |
	                              hr__load_relaxed(&cache->watch))) {
		if (!cache || !hr__meter_account_below(shard, cache, meter, bytes)) hr__meter_account_any(shard, cache, meter, bytes);
		return;
	}
	int64_t high = hr__load_relaxed(&shard->meter.used) + hr__load_relaxed(&cache->high);
	hr__owner_add(&meter->used, bytes);
	int64_t used = hr__load_relaxed(&cache->meter.used), both = hr__load_relaxed(&shard->meter.used) + used;
	hr__store_relaxed(&cache->high, used);
	hr__owner_max(&allocator->peak, high > both ? high : both);
	if (HR_LIKELY(!hr__load_relaxed(&allocator->metered))) return;
	hr__light_barrier();
	if (HR_UNLIKELY(hr__load_relaxed(&meter->used) > hr__load_relaxed(&meter->level) || hr__load_relaxed(&meter->lowering)))
		hr__meter_account_any(shard, cache, meter, 0);
}

/* The ledger's description of a chunk in use; with the lock held. */
static inline hr_allocation_info hr__chunk_info(const hr__chunk *chunk)
{
	HR_ASSERT(hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE);
	return (hr_allocation_info){ .struct_size = sizeof(hr_allocation_info),
		                         .address = (void *)(uintptr_t)hr__chunk_address(chunk),
		                         .bytes = chunk->size,
		                         .requested = chunk->requested,
		                         .op = chunk->op,
		                         .scope = chunk->scope,
		                         .tag = chunk->tag,
		                         .shape = chunk->shape,
		                         .dtype = (hr_dtype)chunk->dtype,
		                         .streams = chunk->streams };
}

/* Copies a request's description to the chunk that it got. */
static inline void hr__chunk_describe(hr__chunk *chunk, const hr_request *request)
{
	HR_ASSERT(request->bytes > 0 && request->bytes <= chunk->size);
	chunk->requested = request->bytes;
	chunk->owner = 0;
	chunk->streams = hr__stream_bit(request->stream);
	chunk->op = request->op;
	chunk->scope = request->scope;
	chunk->tag = request->tag;
	chunk->shape = request->shape;
	chunk->dtype = (uint8_t)request->dtype;
}

static inline hr__shard_pool *hr__shard_pool_of(hr__shard *shard, const hr__chunk *chunk)
{
	return chunk->region & HR__REGION_SMALL ? &shard->small : &shard->large;
}

#endif
