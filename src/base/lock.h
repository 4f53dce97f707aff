/* lock.h - the one kind of lock in Headroom: small, unfair, ranked, and a version number at the same time.
 *
 *   word:  even = free, odd = held; each lock and unlock adds one
 *
 * Taking it is one compare-and-swap of an even word for the odd one after it; releasing it is a plain store. So the word is also a
 * sequence number: a reader that sees the same even word before and after reading has a consistent picture (hr__lock_read_begin).
 *
 * Unfair on purpose: the holder may take it again at once, while a waiter backs off for a few microseconds. Critical sections last
 * tens of nanoseconds and touch the same cache lines; handing the lock over at every operation would move those lines between cores
 * and make two threads slower than one. A waiter never starves for long: it backs off at most HR__LOCK_MAX_SLEEP_NS at a time.
 *
 * Ranks: a thread may take a lock only if its rank is greater than that of every lock it holds. Checked in debug builds. */
#ifndef HR_BASE_LOCK_H
#define HR_BASE_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/atomic.h"

/* Outermost first. */
enum hr__lock_rank {
	HR__RANK_PROFILER = 1, /* starting and stopping recordings; around everything that they look at */
	HR__RANK_REPORT,       /* one thread at a time looks at who holds what; around everything that it looks at */
	HR__RANK_REPORT_SLOT,  /* a report that is being made or read */
	HR__RANK_REPORT_OUTPUT, /* one report at a time goes to where HEADROOM_OOM_REPORT says */
	HR__RANK_REGISTRY,     /* the process-wide lists of devices and allocators */
	HR__RANK_LMS,          /* the tensors of an allocator, and what policies know of them */
	HR__RANK_CACHES,       /* an allocator's list of thread caches */
	HR__RANK_SHARD,        /* an allocator's shards: arenas and chunk records; the rank of shard i is i above this */
	HR__RANK_METER = HR__RANK_SHARD + 8, /* an allocator's peak */
	HR__RANK_PAGE_POOL,    /* a logical device's pages and limit */
	HR__RANK_DEVICE,       /* inside a device backend */
	HR__RANK_TRACE,        /* the trace file's list of blocks */
	HR__RANK_GUARD,        /* mappings that are guarded against SIGBUS */
	HR__RANK_NAMES,        /* interning */
	HR__RANK_SETTINGS,     /* which settings of the environment were ignored */
	HR__RANK_RUNTIME,      /* values and sessions of the runtime: nothing is called under it */
};

typedef struct hr__lock {
	hr__atomic_u64 word; /* see the drawing above */
	uint8_t rank;        /* enum hr__lock_rank; immutable */
} hr__lock;

#define HR__LOCK_INIT(lock_rank) { 0, (uint8_t)(lock_rank) }
#define HR__LOCK_MAX_SLEEP_NS 50000

void hr__lock_init(hr__lock *lock, enum hr__lock_rank rank);

/* How a waiter waits: called with 0, 1, 2... until it gets the lock. The os layer installs one that yields and then sleeps; the
 * default only pauses the processor. */
extern void (*hr__lock_wait)(unsigned attempt);

/* A good way to wait without an operating system: pauses the processor, twice as long each time, up to a few microseconds. */
void hr__lock_pause(unsigned attempt);

void hr__lock_slow(hr__lock *lock);

/* Debug builds only. check comes before taking, so that a thread which takes the same lock twice is caught and does not hang. */
void hr__lock_rank_check(const hr__lock *lock);
void hr__lock_rank_push(const hr__lock *lock);
void hr__lock_rank_pop(const hr__lock *lock);

static inline bool hr__lock_attempt(hr__lock *lock)
{
	uint64_t seen = hr__load_relaxed(&lock->word);
	if ((seen & 1) != 0 || !hr__cas_acquire(&lock->word, &seen, seen + 1)) return false;
	/* For optimistic readers: who sees a value written from here on must also see the odd word. Costs nothing on x86-64. */
	hr__fence_release();
	return true;
}

/* Takes the lock if it is free. Never waits, so its rank may be anything. */
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

static inline bool hr__lock_is_held(const hr__lock *lock)
{
	return (hr__load_relaxed(&lock->word) & 1) != 0;
}

/* Optimistic reading: read_begin returns the version to compare with; an odd one means a writer is inside. Between the two calls
 * read only atomics. read_ok says whether nothing changed meanwhile. */
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
