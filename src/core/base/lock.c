/* lock.c - waiting for a lock, and the rank check of debug builds.
 *
 * A waiter polls rarely. Every poll makes the holder fetch the cache line again (about 100 ns between cores), and every handover
 * moves all cache lines that the lock guards. A waiter that polled continuously would pay both for each critical section of 15 ns.
 * So a waiter pauses before it polls, and pauses twice as long after each poll that finds the lock held.
 *
 * The locks that a thread holds form a stack. Locks need not be released in reverse order, so a release removes its entry from any
 * position. */
#include "core/base/lock.h"

#include "core/base/assert.h"

#define FIRST_PAUSES 64u /* about 2 microseconds, much longer than a critical section, so that a poll rarely fails */
#define MAX_DOUBLINGS 3u

void (*hr__lock_wait)(unsigned attempt) = hr__lock_pause;

void hr__lock_init(hr__lock *lock, enum hr__lock_rank rank)
{
	hr__store_relaxed(&lock->word, 0);
	lock->rank = (uint8_t)rank;
}

void hr__lock_pause(unsigned attempt)
{
	unsigned pauses = FIRST_PAUSES << (attempt < MAX_DOUBLINGS ? attempt : MAX_DOUBLINGS);
	for (unsigned i = 0; i < pauses; i++) hr__cpu_pause();
}

void hr__lock_slow(hr__lock *lock)
{
	unsigned attempt = 0;
	do {
		hr__lock_wait(attempt++);
	} while (!hr__lock_attempt(lock));
}

#ifdef HR_DEBUG

#define HELD_MAX 24u /* at most one lock of each rank, and a few acquired by hr__lock_try */

static _Thread_local struct {
	const hr__lock *locks[HELD_MAX];
	unsigned count;
} held;

void hr__lock_rank_check(const hr__lock *lock)
{
	for (unsigned i = 0; i < held.count; i++) {
		HR_ASSERT(held.locks[i] != lock && "the thread holds this lock already");
		HR_ASSERT(held.locks[i]->rank < lock->rank && "locks are taken in order of rank");
	}
}

void hr__lock_rank_push(const hr__lock *lock)
{
	HR_ASSERT(held.count < HELD_MAX);
	held.locks[held.count++] = lock;
}

void hr__lock_rank_pop(const hr__lock *lock)
{
	unsigned i = held.count;
	while (i > 0 && held.locks[i - 1] != lock) i--;
	HR_ASSERT(i > 0 && "only the thread that took a lock releases it");
	for (; i < held.count; i++) held.locks[i - 1] = held.locks[i];
	held.count--;
}

bool hr__lock_is_mine(const hr__lock *lock)
{
	unsigned i = 0;
	while (i < held.count && held.locks[i] != lock) i++;
	return i < held.count;
}

bool hr__lock_none_from(enum hr__lock_rank rank)
{
	unsigned i = 0;
	while (i < held.count && held.locks[i]->rank < rank) i++;
	return i == held.count;
}

#endif
