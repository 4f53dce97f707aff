/* lock.h - the only kind of lock in Headroom: small, unfair, ranked, and also a sequence lock.
 *
 *   word:  even = free, odd = held; each acquire and release adds one
 *
 * Acquiring is one compare-and-swap from an even word to the next odd one; releasing is a plain store. The word is also a sequence
 * number: a reader that sees the same even word before and after reading has a consistent view (hr__lock_read_begin).
 *
 * The lock is unfair on purpose: the holder may acquire it again at once, while a waiter backs off for a few microseconds. Critical
 * sections last tens of nanoseconds and touch the same cache lines. Handing the lock over at every operation would move those lines
 * between cores and make two threads slower than one. A waiter does not starve for long: each backoff is at most
 * HR__LOCK_MAX_SLEEP_NS.
 *
 * Ranks: a thread may acquire a lock only if its rank is greater than that of every lock the thread holds. Checked in debug
 * builds. */
#ifndef HR_BASE_LOCK_H
#define HR_BASE_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/atomic.h"
#include "core/base/shared.h"

/* Outermost first. */
enum hr__lock_rank {
	HR__RANK_PROFILER = 1, /* starting and stopping recordings; outside all locks that a recording acquires */
	HR__RANK_REPORT,       /* one thread at a time computes holders; outside all locks that this acquires */
	HR__RANK_REPORT_SLOT,  /* a report that is being written or read */
	HR__RANK_REPORT_OUTPUT, /* one report at a time is written to the target of HEADROOM_OOM_REPORT */
	HR__RANK_REGISTRY,     /* the process-wide lists of devices and allocators */
	HR__RANK_LMS,          /* the tensors of an allocator, and the state of its policy */
	HR__RANK_CACHES,       /* an allocator's list of thread caches */
	HR__RANK_SHARD,        /* an allocator's shards: arenas and chunk records; the rank of shard i is i above this */
	HR__RANK_METER = HR__RANK_SHARD + 8, /* the levels and peaks of a device's allocators */
	HR__RANK_PAGE_POOL,    /* a logical device's pages and limit */
	HR__RANK_DEVICE,       /* inside a device backend */
	HR__RANK_TRACE,        /* the trace file's list of blocks */
	HR__RANK_GUARD,        /* mappings guarded against SIGBUS */
	HR__RANK_NAMES,        /* interning */
	HR__RANK_SETTINGS,     /* which settings of the environment were ignored */
	HR__RANK_RUNTIME,      /* values and sessions of the runtime; nothing is called under it */
};

typedef struct hr__lock {
	hr__atomic_u64 word; /* see above */
	uint8_t rank;        /* enum hr__lock_rank; immutable */
} hr__lock;

#define HR__LOCK_INIT(lock_rank) { 0, (uint8_t)(lock_rank) }
#define HR__LOCK_MAX_SLEEP_NS 50000

HR__SHARED void hr__lock_init(hr__lock *lock, enum hr__lock_rank rank);

/* Called by a waiter with attempt 0, 1, 2... until it acquires the lock. The os layer installs a function that yields and then
 * sleeps; the default only pauses the processor. */
HR__SHARED extern void (*hr__lock_wait)(unsigned attempt);

/* Waits without the operating system: pauses the processor, twice as long each time, up to a few microseconds. */
void hr__lock_pause(unsigned attempt);

HR__SHARED void hr__lock_slow(hr__lock *lock);

/* Debug builds only. The check comes before acquiring, so that a thread that acquires a lock twice fails an assertion instead of
 * hanging. */
HR__SHARED void hr__lock_rank_check(const hr__lock *lock);
HR__SHARED void hr__lock_rank_push(const hr__lock *lock);
HR__SHARED void hr__lock_rank_pop(const hr__lock *lock);

/* Debug builds only, for HR_ASSERT: whether the calling thread holds the lock; whether it holds no lock of rank [rank] or above. */
HR__SHARED bool hr__lock_is_mine(const hr__lock *lock);
HR__SHARED bool hr__lock_none_from(enum hr__lock_rank rank);

static inline bool hr__lock_attempt(hr__lock *lock)
{
	uint64_t seen = hr__load_relaxed(&lock->word);
	if ((seen & 1) != 0 || !hr__cas_acquire(&lock->word, &seen, seen + 1)) return false;
	/* For optimistic readers: a reader that sees a value written after this point must also see the odd word. Free on x86-64. */
	hr__fence_release();
	return true;
}

/* Acquires the lock if it is free. Never waits, so the rank is not checked. */
static inline bool hr__lock_try(hr__lock *lock)
{
	if (!hr__lock_attempt(lock)) return false;
#ifdef HR_DEBUG
	hr__lock_rank_push(lock);
#endif
	return true;
}

static inline void hr__lock_take(hr__lock *lock)
{
#ifdef HR_DEBUG
	hr__lock_rank_check(lock);
#endif
	if (__builtin_expect(!hr__lock_attempt(lock), 0)) hr__lock_slow(lock);
#ifdef HR_DEBUG
	hr__lock_rank_push(lock);
#endif
}

static inline void hr__lock_release(hr__lock *lock)
{
#ifdef HR_DEBUG
	hr__lock_rank_pop(lock);
#endif
	hr__store_release(&lock->word, hr__load_relaxed(&lock->word) + 1);
}

/* Whether any thread holds the lock. */
static inline bool hr__lock_is_held(const hr__lock *lock)
{
	return (hr__load_relaxed(&lock->word) & 1) != 0;
}

/* Optimistic reading. read_begin returns a version; an odd version means that a writer holds the lock. Only atomics may be read
 * between the two calls. read_ok returns whether the lock was free and unchanged throughout. */
static inline uint64_t hr__lock_read_begin(const hr__lock *lock)
{
	return hr__load_acquire(&lock->word);
}

static inline bool hr__lock_read_ok(hr__lock *lock, uint64_t version)
{
	hr__fence_acquire();
	return (version & 1) == 0 && hr__load_relaxed(&lock->word) == version;
}

#endif
