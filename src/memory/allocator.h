/* allocator.h - what an allocator is made of. Private to src/memory.
 *
 *     hr_alloc / hr_free             alloc.c    the hot path
 *        |      \
 *        |       thread cache        cache.c    small freed blocks, kept by the thread; no lock
 *        v      /
 *     shard: a lock, and under it               small blocks: one for each thread; large ones: see below
 *        |-- chunk records, lookup              (arena/chunk.h, lookup.h); the ledger is in the records
 *        |-- two pools, small and large         bfc.c: the attempts for a request; pages.c: growing, releasing, stitching
 *        '-- counters                           meter.c, stats.c
 *     spans                          span.c     blocks of whole pages beside the arenas, whose address holds
 *     direct, custom                 direct.c   the device, or a user's functions, each time
 *
 * Two pools, because small blocks that live long would otherwise sit in the middle of large free ranges: apart, the four recorded
 * traces need as much memory as exact best fit over everything, or less, and a cache may hold small blocks back at no cost in fit.
 *
 * Several shards, because two threads that use one arena at the same time move its cache lines between their cores at every operation:
 * whole traces then run at a third to three quarters of the speed of one thread. A shard is a whole allocator in small, with addresses of
 * its own. Small blocks of a thread come from its own shard. Large blocks of all threads come from shard 0 as long as the threads take
 * turns, as the forward and the backward pass of a training program do: memory that one frees serves the other, and the fit is that of one
 * thread. A thread that finds shard 0 busy when it starts, or often waits for its lock, takes large blocks from its own shard from then on
 * (hr__large_contend). Memory that is free in one shard is used by the others before a request fails. */
#ifndef HR_MEMORY_ALLOCATOR_H
#define HR_MEMORY_ALLOCATOR_H

#include "arena/arena.h"
#include "base/lock.h"
#include "device/device.h"
#include "memory/leaks.h"
#include "memory/log.h"
#include "memory/lookup.h"
#include "os/os.h"

#define HR__SMALL_MAX 65536u           /* largest block that a cache keeps */
#define HR__CACHE_BYTES_MAX (16 << 20) /* most bytes that one cache keeps, */
#define HR__NAME_SCOPES_MAX 64u        /* name scopes of a thread, one in the other */
#define HR__CACHE_SHARE 256u           /* and at most this part of the limit */
#define HR__SLACK 32768                /* most bytes by which a meter may make the peak too high; a thread has two at most */
#define HR__NO_LEVEL (INT64_MAX / 64)  /* the level while one thread uses the allocator */
#define HR__SHARDS_MAX 8u
#define HR__PAGES_PER_SHARD 64u        /* a limit of fewer pages than this is not worth dividing */
#define HR__REGIONS_MAX 256u
#define HR__ALLOCATORS_MAX 256u        /* slots; slot 0 is never used */
#define HR__SCOPES_MAX 32u

typedef struct hr__allocator hr__allocator;
typedef struct hr__shard hr__shard;
typedef struct hr__thread_state hr__thread_state;
typedef struct hr__upper hr__upper;

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

/* ---- meters ---- */

/* Bytes handed out less bytes taken back through one cache or one shard; negative where blocks change hands. The sum of all meters of
 * an allocator is what is in use. How the peak of that sum is known without adding up at every block: meter.c. */
typedef struct hr__meter {
	hr__atomic_i64 used;   /* written by the cache's owner, or under the shard's lock */
	hr__atomic_i64 level;  /* [used] passes it only after asking; written under meter_lock */
	hr__atomic_u32 wanted; /* not 0: others could do with what the level is above [used] (meter.c); written under meter_lock */
} hr__meter;

/* ---- thread caches ---- */

/* One thread's cache in front of one allocator. The owner works in it without a lock, between hr__cache_enter and _leave. Another
 * thread that must empty it (trim, close) sets [stop], raises a heavy barrier and waits until [busy] is 0; see cache.c. */
typedef struct hr__cache {
	hr__atomic_u64 id;        /* handle of the allocator; 0 once it is closed */
	hr__shard *shard;         /* the thread's; the rest of this line is immutable */
	hr__chunk *chunks;        /* of the shard */
	hr__lookup *lookup;       /* of the shard */
	hr__allocator *allocator;
	const hr__stream_view *streams; /* of the device */
	uint32_t round;           /* granularity - 1 */
	uint32_t shift;           /* log2 of granularity */
	int32_t capacity;         /* most bytes to keep; 0 = keep nothing */
	uint32_t bin_count;       /* 0 = not a bfc allocator */

	/* owner only; others read */
	hr__shard *large;         /* where the thread's large blocks come from: shard 0, or its own. Nobody else reads it */
	hr__atomic_u32 busy;
	hr__atomic_u32 stop;      /* set by others */
	hr__atomic_u32 watch;     /* not 0: hr__watch counts every block; the owner is inside a statistics scope */
	hr_stream bytes_stream;   /* of hr_alloc_bytes; immutable */
	hr__meter meter;
	hr__atomic_i64 high;      /* most [used] since the peak was last looked at; counts while this is the only cache */
	hr__atomic_i64 kept;      /* bytes in bins */
	hr__atomic_i64 moving;    /* cached chunks between its bins and an arena: in neither for a moment; added to by anybody */
	hr__atomic_i64 allocs, frees, requested, largest; /* what went through the cache; requested is a balance */
	hr__atomic_i64 total;     /* bytes of [allocs] */
	int64_t log_left;         /* operations to skip before the next that is logged; below 0 = all are logged; HR__LOG_NEVER = none */
	hr__atomic_u64 log_bytes; /* of host memory behind the next */
	hr__log_ring *log;        /* NULL = nothing is logged; changed with the caches stopped and every shard's lock held */
	uint32_t cursor;          /* bin where the next overflow starts emptying */
	uint32_t thinned;         /* how often it was, */
	int64_t thin_from;        /* and from which value of [allocs] on it may be again; see hr__cache_thin */
	uint32_t contended;       /* how often the owner had to wait for the lock of [large] of late (hr__large_contend), */
	uint64_t contended_at;    /* and which version the lock had the last time */

	hr__atomic_u32 pinning;   /* not 0: the owner is in a call that counts pins (src/lms/check.c) */
	hr__log_ring *next_log;   /* while rings are being replaced */
	hr__atomic_u32 log_thread; /* the thread's number in the log, once it has one; 0 = none yet */
	hr__thread_state *thread; /* immutable */
	struct hr__cache *next;   /* allocator's list; changed with caches_lock and meter_lock held */
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
	uint32_t scope_depth; /* the thread's alone */
	uint32_t context;     /* not 0: requests that do not say their op or scope have one to inherit */
	hr_name op, scope;    /* the current ones (context.c) */
	uint32_t name_depth;
	bool retries;         /* what fails was told of already (hr__retry) */
	hr_name names[HR__NAME_SCOPES_MAX]; /* the path outside of each open name scope */
	hr__cache *caches[HR__ALLOCATORS_MAX];
	hr__scope_frame scopes[HR__SCOPES_MAX];
};

extern _Thread_local hr__thread_state *hr__thread_self __attribute__((tls_model("initial-exec")));

/* ---- shards ---- */

typedef struct hr__region {
	uint64_t address, size; /* of the address space */
	uint64_t mapped;        /* bytes with memory behind them */
	hr__chunk_id edge;      /* of its chain; the edge's next is the first chunk */
	hr__page_id *pages;     /* id + 1 of the page at each page of addresses, 0 = none; NULL where there are no pages */
	bool small;
} hr__region;

typedef struct hr__pool {
	hr__arena arena;
	uint64_t next_region; /* plain devices: size of the next region to ask for */
	bool small;
} hr__pool;

struct hr__shard {
	/* immutable once the shard is open */
	hr__allocator *allocator;
	uint32_t index;
	hr__atomic_u32 open;         /* 1 when everything here is in place; set under the allocator's caches_lock */
	hr__atomic_u64 base, span;   /* its addresses: frees find the shard by them. Set under lock, once, before they are handed out */
	hr__atomic_u64 large_from;   /* from here on are those of the large pool; UINT64_MAX where addresses do not tell */
	hr__page_id *pages;          /* for all of them; NULL where there are no pages */
	size_t pages_bytes;

	uint32_t threads; /* that use it; guarded by caches_lock */

	/* Guarded by lock. */
	hr__lock lock __attribute__((aligned(128)));
	hr__chunk_table table;
	hr__lookup lookup;
	hr__pool large, small;

	/* Statistics: written under lock, read by anybody. */
	hr__meter meter;
	struct {
		hr__atomic_i64 requested; /* of blocks that did not go through a cache, as a balance */
		hr__atomic_i64 largest;
		hr__atomic_i64 allocs, failed, frees; /* that did not go through a cache */
		hr__atomic_i64 total;                 /* bytes of the allocs that were met */
		hr__atomic_i64 sources[HR__SOURCES];
		hr__atomic_i64 stitches, stitched, waits, trims;
	} stats;
};

/* ---- the allocator ---- */

typedef struct hr__custom {
	char name[32];
	hr_custom_allocator table;
	void *user;
} hr__custom;

/* All allocators of a device together. While there was one alone, its own figures are the device's; from the second on [shared] is set, and
 * the sums below are kept (meter.c). */
typedef struct hr__usage {
	hr__lock lock;               /* guards every level on the device; innermost of the allocators' locks */
	hr__allocator *first;        /* list of its allocators (next_on_device); changed with lock held */
	hr__atomic_u32 allocators;   /* in that list */
	hr__atomic_u32 threads;      /* that have a cache of one of them; changed with lock held */
	hr__atomic_u32 shared;       /* 1 from the second allocator on, until there is none */
	hr__atomic_u32 active;       /* 1 = one of its allocators tracks active bytes; until there is none */
	hr__atomic_i64 levels, granted; /* sums over its allocators, while shared; written with lock held */
	hr__atomic_i64 missing;      /* bytes below a peak that the last meter without room asked for; written with lock held */
	hr__atomic_i64 peak, peak_active, peak_error; /* while shared; else what closed allocators left */
	hr__atomic_i64 reserved, peak_reserved;
	hr_stats closed;             /* counts of closed allocators since the last reset; guarded by the registry's lock */
	hr__atomic_i64 step_peak;    /* the highest of its allocators', closed ones too */
} hr__usage;

struct hr__allocator {
	/* immutable after creation */
	uint64_t id;
	uint32_t slot;
	enum hr__kind kind;
	hr__device *device;
	hr__usage *usage;   /* of the device */
	hr__lock *meter_lock; /* usage->lock */
	uint64_t limit;     /* in whole pages */
	uint64_t page;      /* 0 = the device has none */
	uint32_t granularity, shift;
	uint32_t shard_max; /* how many shards it may have */
	bool allow_growth, thread_cache, stitch, is_default;
	hr_stream bytes_stream; /* of hr_alloc_bytes */
	char name[32];
	char kind_name[32];
	hr__custom custom;
	void *custom_state;
	void *block; /* where this lives */
	_Atomic(struct hr__lms *) lms; /* who keeps tensors on it (src/lms); NULL = nobody. Set once */

	/* when memory runs out: changed with the caches stopped and every shard's lock held */
	hr_oom_options oom;
	hr__atomic_u8 reports;  /* what oom.report_allocations_on_oom says, for those who hold no lock */
	hr__log_ring *past_log; /* of threads that ended; written under caches_lock, like the two below */
	uint64_t past_logged;
	uint32_t log_threads;

	hr__lock caches_lock __attribute__((aligned(64)));
	hr__cache *caches; /* changed with caches_lock and meter_lock held, so either is enough to read it */
	hr__atomic_u32 cache_count; /* changed with caches_lock, every shard's lock and meter_lock held */
	hr__atomic_u32 open_shards; /* under caches_lock */
	hr__atomic_u32 metered; /* 1 = its meters have levels also with one thread (meter.c); changed as cache_count is, but never back to 0 */

	/* written with meter_lock held (meter.c) */
	hr__allocator *next_on_device;
	hr__atomic_i64 levels;      /* sum of all levels; meaningless while the allocator is not metered */
	hr__atomic_i64 granted;     /* what [levels] less inactive bytes may come to without asking */
	hr__atomic_i64 peak, peak_active, peak_error;
	hr__atomic_u32 active;      /* 1 = active bytes are tracked: the allocator has, or had, tensors */
	hr__atomic_i64 idle __attribute__((aligned(64))); /* bytes of inactive tensors; changed by any thread (hr__meters_idle) */

	hr__atomic_i64 claimed __attribute__((aligned(128))); /* bytes held or being asked for; never above limit */
	hr__atomic_i64 reserved; /* bytes held */
	hr__atomic_i64 peak_reserved;
	hr__atomic_u64 map_ns;    /* time that mapping and unmapping pages took, by the device's clock, */
	hr__atomic_u64 map_pages; /* and pages that were mapped */
	hr__atomic_i64 away; /* tensors whose block was given back, to be taken again */
	hr__atomic_i64 step_peak; /* most bytes that a step needed at once (hr__step_peak_note); 0 = not known */
	hr__atomic_i64 spans, span_bytes; /* blocks in no region (span.c) that have memory, and how much; changed under the lock of shard 0 */
	/* what caches of threads that ended had counted; written under caches_lock */
	hr__atomic_i64 past_allocs, past_frees, past_requested, past_largest, past_total;
	/* at the last reset, to be taken off; written under caches_lock */
	hr__atomic_i64 base_allocs, base_failed, base_frees, base_live, base_cached, base_total;
	hr_stats closed; /* what its tensors counted, once they are gone with their context; written under caches_lock */

	/* A shard's regions are guarded by its lock. With pages, shard s has regions 2s (large) and 2s+1 (small); without, all belong to
	 * shard 0 and region_count says how many slots were used; a slot that is free has size 0. */
	hr__region regions[HR__REGIONS_MAX];
	uint32_t region_count;
	hr__atomic_u32 region_total; /* regions there are; for those who may not look at them */

	hr__shard shards[HR__SHARDS_MAX];
};

extern hr__usage hr__usages[HR__MAX_DEVICES];

/* registry (allocator.c) */
hr__allocator *hr__allocator_of(hr_allocator handle, hr_status *why);
/* Calls [visit] for every allocator of [device] (NULL = all) with the registry's lock held. */
void hr__allocators_visit(hr__device *device, void (*visit)(hr__allocator *, void *), void *context);
/* The same when the registry's lock is held already. */
void hr__allocators_visit_locked(hr__device *device, void (*visit)(hr__allocator *, void *), void *context);
/* Between these two no allocator is made or closed. */
void hr__registry_enter(void);
void hr__registry_leave(void);
hr_status hr__request_check(const hr__allocator *allocator, const hr_request *request);
hr_status hr__refuse(hr__allocator *allocator, hr_status status); /* counts a refused request; returns status */
/* All that is to be done about a request that failed: it is recorded, counted and, for lack of memory, reported; the verdict is about [judged]. Nothing
 * while the thread tries again what was refused. */
void hr__refuse_request(hr__allocator *allocator, const hr_request *request, const hr_request *judged, hr_status status);
/* What follows, up to the call with false, is such a try. */
void hr__retry(bool on);

/* shards (allocator.c) */
hr_status hr__shard_open(hr__shard *shard); /* with caches_lock held, or while nobody else knows the allocator */
hr_status hr__records_ensure(hr__shard *shard, uint32_t records); /* and room for one more address; with the lock held */

/* caches (cache.c) */
hr__thread_state *hr__thread_get(void); /* the calling thread's, made when missing; NULL when it cannot be made, or the
                                        * thread is ending */
hr__cache *hr__cache_get(hr__allocator *allocator); /* the calling thread's, made when missing; NULL when it cannot be made */
/* Gives about an eighth of what the cache keeps back to the arenas. Without the lock, outside the busy section. */
void hr__cache_overflow(hr__cache *cache);
/* Empties a cache that keeps many chunks, if [records] more or one more address would need more host memory. Without locks. */
void hr__cache_thin(hr__cache *cache, uint32_t records);
/* Keeps a list (through link) of chunks in state HR__CHUNK_CACHED, or gives them back when the cache is stopped. Without the lock. */
void hr__cache_keep(hr__cache *cache, hr__chunk_id list);
/* Empties every cache of the allocator. Without locks. */
void hr__caches_empty(hr__allocator *allocator);
/* Empties them and makes them strangers to the allocator, which is about to go. Without locks. */
void hr__caches_detach(hr__allocator *allocator);
/* Takes the lock of [large], which another thread holds, and returns that shard. After many waits the next large block is from elsewhere. */
hr__shard *hr__large_contend(hr__cache *cache);
/* Waits until the owner is not in the busy section it is in now. After a heavy barrier. */
void hr__cache_wait_idle(const hr__cache *cache);
/* Waits until no thread is in the busy section it is in now. With or without a shard's lock, not meter_lock. */
void hr__caches_quiesce(hr__allocator *allocator);
void hr__caches_stop(hr__allocator *allocator);  /* takes caches_lock, stops every cache */
void hr__caches_start(hr__allocator *allocator); /* the reverse */
void hr__threads_forget(void); /* after fork, in the child */
void hr__thread_drop(void);    /* frees what the calling thread has; every allocator is closed */

/* meters (meter.c) */
/* So that [size] more may be used. [other] is the second meter whose [used] only the caller can write now; NULL = none. */
void hr__meter_raise(hr__allocator *allocator, hr__meter *meter, hr__meter *other, int64_t size);
void hr__meter_sink(hr__allocator *allocator, hr__meter *meter); /* lowers a level that others want; by a thread that may write [used] */
void hr__meters_evaluate(hr__allocator *allocator); /* makes levels tight and the peak right; with meter_lock held */
void hr__meters_look(hr__allocator *allocator); /* what is in use now counts for the peak: for a thread that could get no cache */
int64_t hr__meters_sum(const hr__allocator *allocator); /* with caches_lock or meter_lock held */
/* The shards' meters but this one's (may be NULL). */
int64_t hr__meters_of_others(const hr__shard *shard, const hr__allocator *allocator);
bool hr__is_metered(const hr__allocator *allocator); /* whether its meters have levels */
/* Sets every level to what is used. With the caches stopped and every shard's lock and meter_lock held. */
void hr__meters_exact(hr__allocator *allocator);
/* From now on active bytes are tracked apart from bytes in use: the allocator is about to have tensors. Without locks. */
void hr__meters_begin_active(hr__allocator *allocator);
/* Bytes of tensors become inactive; negative: active, or they were freed. A tensor that is pinned is counted after the pin, one that is
 * unpinned before, one that is freed after, and one that gets memory ahead of a pin just before (hr__block_take): so active bytes are never
 * counted too high, which a peak would remember. Without meter_lock. */
void hr__meters_idle(hr__allocator *allocator, int64_t bytes);
void hr__meters_join(hr__allocator *allocator, hr__cache *cache);  /* the cache is in the list; with meter_lock held */
void hr__meters_leave(hr__allocator *allocator, hr__cache *cache); /* it is not in the list any more; with meter_lock held */
/* The peaks of a shared device are what is now. With the registry's lock held, and no other. */
void hr__usage_restart(hr__usage *usage);

/* bfc (bfc.c). Without locks. */
hr_status hr__bfc_open(hr__allocator *allocator);
hr_status hr__bfc_alloc(hr__allocator *allocator, hr__cache *cache, const hr_request *request, void **out);
hr_status hr__bfc_free(hr__allocator *allocator, hr__cache *cache, uint64_t address, hr_stream stream);
/* A request made by the library itself: in no count of requests. [idle]: for a tensor that is not pinned. */
hr_status hr__bfc_alloc_quietly(hr__allocator *allocator, hr__cache *cache, const hr_request *request, bool idle, void **out);
/* The same, or an ordinary one, for exactly that address. HR_NOT_READY (without a message) when it is not free. */
hr_status hr__bfc_alloc_at(hr__allocator *allocator, hr__cache *cache, const hr_request *request, bool quietly, bool idle, uint64_t address);
/* Takes back a block of which it is known which streams used it last, and when. [quietly]: not counted as a free. */
hr_status hr__bfc_give(hr__allocator *allocator, hr__cache *cache, uint64_t address, uint64_t streams, uint64_t epoch, bool quietly);
hr_status hr__bfc_trim(hr__allocator *allocator, uint64_t *released); /* the first error; bytes released in spite of it */
/* The same for the device's other allocators, where the limit of this one leaves room for what they give up. */
void hr__bfc_trim_others(hr__allocator *allocator);
/* Says why a request of [size] bytes, rounded up, was refused: HR_OUT_OF_MEMORY. */
hr_status hr__bfc_no_room(hr__allocator *allocator, uint64_t size, const hr_request *request);
void hr__give_back(hr__shard *shard, hr__chunk_id id); /* a chunk to its arena; with the lock held */

/* What bfc.c asks of memory (pages.c). With the shard's lock held. */
hr_status hr__pool_grow(hr__shard *shard, hr__pool *pool, uint64_t size, uint64_t alignment);
/* Finds out what must be given up for a request to be met by moving pages. [elsewhere] is how many whole pages are free outside the
 * pool. HR_OUT_OF_MEMORY when there are not enough, wherever it would be built. */
typedef struct hr__stitch {
	hr__chunk_id left, right; /* free chunks that it builds on: their pages must stay. 0 = none */
	uint64_t missing;         /* pages to give up, beyond those that may be had from the device */
} hr__stitch;
hr_status hr__pool_plan(hr__shard *shard, hr__pool *pool, uint64_t size, uint64_t alignment, uint64_t elsewhere, hr__stitch *plan);
/* Counts, or gives back, whole free pages of a pool; not those that [plan] (may be NULL) builds on. */
uint64_t hr__pool_count_free(const hr__shard *shard, const hr__pool *pool);
uint64_t hr__pool_release_pages(hr__shard *shard, hr__pool *pool, uint64_t most, const hr__stitch *plan, hr_status *status);
uint64_t hr__pool_release_free(hr__shard *shard, hr__pool *pool, hr_status *status); /* everything that can go; bytes */
/* Where there are no pages: whether a new region for the request has room once all those that are free from end to end are given back. */
bool hr__shard_can_regrow(hr__shard *shard, uint64_t size, uint64_t alignment);
void hr__shard_close_regions(hr__shard *shard);

/* Gives back what spans still hold; the allocator is going (span.c). Under the lock of shard 0. */
void hr__spans_close(hr__shard *shard);

/* direct and custom (direct.c). Without locks. */
hr_status hr__direct_alloc(hr__allocator *allocator, hr__cache *cache, const hr_request *request, void **out);
hr_status hr__direct_free(hr__allocator *allocator, hr__cache *cache, uint64_t address, hr_stream stream);
void hr__direct_close(hr__allocator *allocator);

/* statistics (stats.c) */
/* All with the registry's lock held. */
void hr__usage_prepare(hr__usage *usage); /* before the first allocator of the device is built */
void hr__usage_join(hr__allocator *allocator);
void hr__usage_leave(hr__allocator *allocator); /* its counts stay with the device; the caches are detached */
void hr__usages_reset(void);
/* The context of its tensors is about to close; what that counted stays with the allocator. Without locks. */
void hr__stats_keep_tensors(hr__allocator *allocator, const hr__upper *upper);
/* What is in use now and was at most, as in hr_stats, and requests refused since the allocator was made. Cheaper than all statistics. Without
 * locks, or under those of a rank below HR__RANK_CACHES. */
typedef struct hr__level {
	int64_t in_use, peak, refused;
} hr__level;
hr__level hr__stats_level(hr__allocator *allocator);
/* A step that had all it asked for needed [bytes] at once. The highest is kept for the verdict on a later request. Without locks. */
void hr__step_peak_note(hr__allocator *allocator, int64_t bytes);
/* Memory from the device goes through two hands: it is claimed, which fails when that would pass the limit, and once the device has
 * given it, it is held. What the device refused is given up again; giving back what is held ends the claim too. */
bool hr__claim(hr__allocator *allocator, uint64_t bytes);
void hr__unclaim(hr__allocator *allocator, uint64_t bytes);
void hr__hold(hr__allocator *allocator, uint64_t bytes);
void hr__unhold(hr__allocator *allocator, uint64_t bytes);

/* observers (observe.c): what is not on the straight path of an allocation */
/* Counts a block that [thread] (may be NULL) got, or gave back (negative), in the thread's scopes. */
void hr__watch(const hr__allocator *allocator, hr__thread_state *thread, int64_t bytes);
void hr__note_failed(const hr__allocator *allocator, const hr_request *request);
void hr__note_reserved(const hr__allocator *allocator, uint64_t address, int64_t bytes);
void hr__note_allocator(const hr__allocator *allocator);

/* Records every allocator to a new file at [path], what is allocated already first; ends it. As hr_trace_start and hr_trace_stop, for who has made
 * sure that the recording is theirs (profile/profiler.c). */
hr_status hr__recording_start(const char *path, uint64_t max_bytes);
hr_status hr__recording_stop(void);

/* 0, or the number of a violated invariant (check.c). With every shard's lock and meter_lock held and the caches stopped. */
int hr__allocator_check_locked(hr__allocator *allocator);
void hr__shards_lock(hr__allocator *allocator); /* all that are open, in order */
void hr__shards_unlock(hr__allocator *allocator);

/* ---- what the layer above is asked and told. NULL until tensors are first used. ---- */

/* A request that has no room. */
typedef struct hr__pressure {
	hr__allocator *allocator;
	uint64_t size, alignment; /* rounded up; 0 = the granularity is enough */
	hr_stream stream;         /* that will use it */
	uint32_t round;           /* 0 = first call for this request */
	bool pages;               /* what is missing is [size] bytes of whole pages, wherever they are */
} hr__pressure;

/* Whether tensors move on the device to join free memory. */
typedef struct hr__moving {
	bool on;
	uint64_t budget; /* most bytes for one request; 0 = any */
} hr__moving;

struct hr__upper {
	/* Makes room by moving tensors out. HR_OK: it is worth trying again, and a success counts under *source. HR_NOT_READY: there is nobody
	 * left to move. Anything else: they cannot be moved, and the message says why. Without locks. */
	hr_status (*reclaim)(const hr__pressure *pressure, enum hr__source *source);
	/* Adds what it counted, and takes it as the new zero. With caches_lock held. */
	void (*stats)(hr__allocator *allocator, hr_stats *stats);
	void (*reset)(hr__allocator *allocator);
	/* Why an allocator cannot be closed: tensors are left. HR_OK when none are. Without locks. */
	hr_status (*in_use)(hr__allocator *allocator);
	/* The allocator is about to be closed, with what is left of its tensors. Without locks. */
	void (*closing)(hr__allocator *allocator);
	/* Whether the tensor [owner] (hr__block_own) could leave the device if there were need of its memory, in case tensors may leave at all.
	 * With the lock of the shard that has its block, which keeps it from being destroyed. */
	bool (*may_leave)(uint32_t owner);
	/* Whether tensors of the allocator leave by themselves; *room gets the bytes that the host can take, *apart those of pages that are in no
	 * region and whose tensors could leave. Under no lock of this layer but hr__report_lock. */
	bool (*leaves)(hr__allocator *allocator, uint64_t *room, uint64_t *apart);
	/* The bytes of tensors that would have to move on the device so that the request finds free memory in one piece; UINT64_MAX when that does
	 * not help. Tensors are claimed meanwhile, none is moved. Under no lock of this layer but hr__report_lock. */
	uint64_t (*moves)(const hr__pressure *pressure, hr__moving *how);
	void (*leaks)(hr__leaks *leaks); /* adds the tensors that there are. Without locks */
	void (*shutdown)(void); /* everything is about to be closed */
	void (*forget)(void);   /* after fork, in the child */
};

extern _Atomic(const hr__upper *) hr__upper_layer;

/* What the runtime ends before everything else does; NULL until it is first used. [forgets]: after fork, without touching anything. [leaks]
 * gets what had not been released. */
extern _Atomic(void (*)(bool forgets, hr__leaks *leaks)) hr__runtime_end;

/* ---- small inline pieces that the hot path and the slow one share ---- */

#define HR__EACH_SHARD(allocator, shard)                                                                   \
	for (hr__shard *shard = (allocator)->shards; shard < (allocator)->shards + (allocator)->shard_max; shard++) \
		if (hr__load_acquire(&shard->open))

static inline bool hr__shard_has(const hr__shard *shard, uint64_t address)
{
	return address - hr__load_relaxed(&shard->base) < hr__load_relaxed(&shard->span);
}

/* Takes the lock of the shard that the thread uses for large blocks, and returns the shard. */
static inline hr__shard *hr__large_enter(hr__cache *cache)
{
	hr__shard *shard = cache->large;
	return HR_LIKELY(hr__lock_try(&shard->lock)) ? shard : hr__large_contend(cache);
}

/* The shard that a thread with that cache (may be NULL) uses for small blocks, or for large ones. */
static inline hr__shard *hr__shard_for(hr__allocator *allocator, hr__cache *cache, bool small)
{
	return !cache ? &allocator->shards[0] : small ? cache->shard : cache->large;
}

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

/* Count an operation for the log; in the cache's busy section or under a shard's lock. */
static inline void hr__log_alloc(hr__cache *cache, const hr_request *request, uint64_t address)
{
	if (HR_UNLIKELY(cache && --cache->log_left < 0)) hr__log_write_alloc(cache, request, address);
}

static inline void hr__log_free(hr__cache *cache, const hr__chunk *chunk)
{
	if (HR_UNLIKELY(cache && --cache->log_left < 0)) hr__log_write_free(cache, chunk);
}

static inline void hr__max(hr__atomic_i64 *to, int64_t value)
{
	if (value > hr__load_relaxed(to)) hr__store_relaxed(to, value);
}

static inline bool hr__meter_allows(const hr__meter *meter, int64_t bytes)
{
	return hr__load_relaxed(&meter->used) + bytes <= hr__load_relaxed(&meter->level);
}

/* What is to be done with every block besides: rarely anything. A thread that could not get a cache has nothing to tell it so.
 * Under the shard's lock or in the cache's busy section, so that nobody begins to watch between a block and its account. */
static inline void hr__observe(const hr__allocator *allocator, hr__cache *cache, int64_t bytes)
{
	if (HR_UNLIKELY(!cache || hr__load_relaxed(&cache->watch))) hr__watch(allocator, hr__thread_self, bytes);
}

/* hr__account where there are several threads or shards, or somebody is watching. */
void hr__account_any(hr__shard *shard, hr__cache *cache, hr__meter *meter, int64_t bytes);

/* The usual case with several threads and no tensors: the meter stays below its level, and nothing else is to be done. False: nothing was
 * done. */
static inline bool hr__account_below(hr__shard *shard, hr__cache *cache, hr__meter *meter, int64_t bytes)
{
	const hr__allocator *allocator = shard->allocator;
	int64_t now = hr__load_relaxed(&meter->used) + bytes;
	if (hr__load_relaxed(&allocator->cache_count) == 1 || hr__load_relaxed(&allocator->active) || hr__load_relaxed(&cache->watch) ||
	    now > hr__load_relaxed(&meter->level))
		return false;
	hr__store_relaxed(&meter->used, now);
	hr__light_barrier(); /* the level may have been lowered since: see meter.c */
	if (HR_UNLIKELY(now > hr__load_relaxed(&meter->level) || hr__load_relaxed(&shard->meter.wanted) || hr__load_relaxed(&cache->meter.wanted)))
		hr__account_any(shard, cache, meter, 0);
	return true;
}

/* Accounts for [bytes] handed out (or taken back: negative) under the shard's lock, and keeps the peak. [cache] (may be NULL) is the
 * calling thread's. A small block goes to the thread's own meter, as it does when it comes from the cache: so the two meters do not
 * drift apart, and their levels are seldom reached. */
static inline void hr__account(hr__shard *shard, hr__cache *cache, int64_t bytes)
{
	hr__allocator *allocator = shard->allocator;
	bool small = cache && bytes <= HR__SMALL_MAX && bytes >= -(int64_t)HR__SMALL_MAX;
	hr__meter *meter = small ? &cache->meter : &shard->meter;
	/* One thread, one shard, no scope: the allocator's peak is exact, and kept here. Only a metered one has levels (meter.c). */
	if (HR_UNLIKELY(!cache || (hr__load_relaxed(&allocator->cache_count) ^ 1) | (hr__load_relaxed(&allocator->open_shards) ^ 1) |
	                              hr__load_relaxed(&cache->watch))) {
		if (!cache || !hr__account_below(shard, cache, meter, bytes)) hr__account_any(shard, cache, meter, bytes);
		return;
	}
	int64_t high = hr__load_relaxed(&shard->meter.used) + hr__load_relaxed(&cache->high);
	hr__owner_add(&meter->used, bytes);
	int64_t used = hr__load_relaxed(&cache->meter.used), both = hr__load_relaxed(&shard->meter.used) + used;
	hr__store_relaxed(&cache->high, used);
	hr__max(&allocator->peak, high > both ? high : both);
	if (HR_LIKELY(!hr__load_relaxed(&allocator->metered))) return;
	hr__light_barrier();
	if (HR_UNLIKELY(hr__load_relaxed(&meter->used) > hr__load_relaxed(&meter->level) || hr__load_relaxed(&meter->wanted)))
		hr__account_any(shard, cache, meter, 0);
}

/* What a chunk in use tells about itself; with the lock held. */
static inline hr_allocation_info hr__chunk_info(const hr__chunk *chunk)
{
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

/* Fills in what a request says about a chunk that it got. */
static inline void hr__chunk_describe(hr__chunk *chunk, const hr_request *request)
{
	chunk->requested = request->bytes;
	chunk->owner = 0;
	chunk->streams = hr__stream_bit(request->stream);
	chunk->op = request->op;
	chunk->scope = request->scope;
	chunk->tag = request->tag;
	chunk->shape = request->shape;
	chunk->dtype = (uint8_t)request->dtype;
}

static inline hr__pool *hr__pool_of(hr__shard *shard, const hr__chunk *chunk)
{
	return chunk->region & HR__REGION_SMALL ? &shard->small : &shard->large;
}

#endif
