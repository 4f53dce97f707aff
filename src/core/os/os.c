/* os.c - the current table, errors, barriers, ticks, and the hooks for fork and thread exit.
 *
 * start() sets up process-wide state once (the fork handler, the thread key, the registration of membarrier, how locks wait). It
 * runs before main. Until then, and where membarrier is missing, hr__light_is_full is true, which is always correct. */
#define _GNU_SOURCE
#include "core/os/guard.h"
#include "core/os/linux.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/lock.h"
#include "core/base/names.h"
#include "core/base/status.h"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif

_Atomic(bool) hr__light_is_full = true;

/* ---- the current table ---- */

static _Atomic(const hr__os_table *) in_force = &hr__linux_table;

const hr__os_table *hr__os(void)
{
	return hr__load_acquire(&in_force);
}

const hr__os_table *hr__os_linux(void)
{
	return &hr__linux_table;
}

const hr__os_table *hr__os_replace(const hr__os_table *table)
{
	return hr__exchange_acq_rel(&in_force, table != NULL ? table : &hr__linux_table);
}

size_t hr__os_page_size(void)
{
	static _Atomic(size_t) known;
	size_t size = hr__load_relaxed(&known);
	if (HR_UNLIKELY(size == 0)) {
		size = (size_t)sysconf(_SC_PAGESIZE);
		hr__store_relaxed(&known, size);
	}
	return size;
}

uint32_t hr__os_processors(void)
{
	cpu_set_t set;
	int count = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
	return count < 1 ? 1 : (uint32_t)count;
}

/* ---- errors ---- */

#define ERROR_TABLE(X)                                         \
	X(EPERM, "operation not permitted")                        \
	X(ENOENT, "no such file or directory")                     \
	X(EINTR, "interrupted by a signal")                        \
	X(EIO, "input or output error")                            \
	X(ENXIO, "no such device or address")                      \
	X(E2BIG, "arguments and environment too long")             \
	X(ENOEXEC, "no program that this system can run")          \
	X(EBADF, "bad file descriptor")                            \
	X(EAGAIN, "resource temporarily unavailable")              \
	X(ENOMEM, "out of memory")                                 \
	X(EACCES, "permission denied")                             \
	X(EFAULT, "bad address")                                   \
	X(EBUSY, "device or resource busy")                        \
	X(EEXIST, "file exists")                                   \
	X(EXDEV, "on another file system")                         \
	X(ENODEV, "no such device, or not one that can be mapped") \
	X(ENOTDIR, "not a directory")                              \
	X(EISDIR, "is a directory")                                \
	X(EINVAL, "invalid argument, or not a regular file")       \
	X(ENFILE, "too many open files in the system")             \
	X(EMFILE, "too many open files in the process")            \
	X(ETXTBSY, "file is being executed")                       \
	X(EFBIG, "file too large")                                 \
	X(ENOSPC, "no space left on device")                       \
	X(ESPIPE, "illegal seek")                                  \
	X(EROFS, "read-only file system")                          \
	X(EMLINK, "too many links")                                \
	X(EPIPE, "broken pipe")                                    \
	X(ERANGE, "result out of range")                           \
	X(EDEADLK, "would deadlock")                               \
	X(ENAMETOOLONG, "file name too long")                      \
	X(ENOSYS, "not implemented by this system")                \
	X(ENOTEMPTY, "directory not empty")                        \
	X(ELOOP, "too many symbolic links")                        \
	X(EOVERFLOW, "value too large")                            \
	X(EOPNOTSUPP, "operation not supported")                   \
	X(ETIMEDOUT, "timed out")                                  \
	X(ESTALE, "stale file handle")                             \
	X(EDQUOT, "disk quota exceeded")                           \
	X(ECANCELED, "cancelled")

static const char *known_error(int error)
{
	switch (error) {
#define ERROR_CASE(name, text) \
	case name: return #name ": " text;
		ERROR_TABLE(ERROR_CASE)
#undef ERROR_CASE
	default: return NULL;
	}
}

const char *hr__os_error(int error)
{
	const char *text = known_error(error);
	return text != NULL ? text : "unknown error of the system";
}

hr_status hr__os_fail(int error, const char *what, ...)
{
	HR_ASSERT(error > 0);
	hr_status status = error == ENOMEM || error == EAGAIN ? HR_NO_HOST_MEMORY : HR_IO;
	char subject[512];
	va_list arguments;
	va_start(arguments, what);
	vsnprintf(subject, sizeof subject, what, arguments);
	va_end(arguments);
	if (known_error(error) == NULL) return hr__fail(status, "%s: %s (errno %d)", subject, hr__os_error(error), error);
	return hr__fail(status, "%s: %s", subject, hr__os_error(error));
}

/* ---- arrays ---- */

int hr__os_grow(void *array, size_t *capacity, size_t item, size_t least)
{
	void *old, *larger;
	uint64_t wanted = *capacity > least / 2 ? 2 * (uint64_t)*capacity : least, bytes;
	int error = hr__multiply(wanted, item, &bytes) ? hr__os()->alloc((size_t)bytes, &larger) : ENOMEM;
	if (error) return error;
	memcpy(&old, array, sizeof old);
	if (old) {
		memcpy(larger, old, *capacity * item);
		hr__os()->free(old, *capacity * item);
	}
	memcpy(array, &larger, sizeof larger);
	*capacity = (size_t)wanted;
	return 0;
}

/* ---- waiting for locks ---- */

#define PAUSED_ATTEMPTS 4u
#define YIELDED_ATTEMPTS 4u
#define FIRST_SLEEP_NS 2000u
#define SLEEP_DOUBLINGS 5u

/* First pauses, for locks held for nanoseconds; then yields, in case the holder is waiting for a processor; then sleeps, for locks
 * held during a system call. Against a thread that reacquires the lock continuously, one poll in four after a pause finds it free,
 * so one waiter in ten gets as far as sleeping. */
static void wait_for_lock(unsigned attempt)
{
	if (attempt < PAUSED_ATTEMPTS) {
		hr__lock_pause(attempt);
		return;
	}
	attempt -= PAUSED_ATTEMPTS;
	if (attempt < YIELDED_ATTEMPTS) {
		sched_yield();
		return;
	}
	attempt -= YIELDED_ATTEMPTS;
	long ns = attempt < SLEEP_DOUBLINGS ? (long)FIRST_SLEEP_NS << attempt : HR__LOCK_MAX_SLEEP_NS;
	struct timespec time = { .tv_nsec = ns };
	nanosleep(&time, NULL);
}

_Static_assert((FIRST_SLEEP_NS << (SLEEP_DOUBLINGS - 1)) <= HR__LOCK_MAX_SLEEP_NS, "no sleep is longer than lock.h says");

/* ---- heavy barrier ---- */

void hr__heavy_barrier(void)
{
	hr__fence_seq_cst();
	if (hr__load_relaxed(&hr__light_is_full)) return;
	if (hr__os()->heavy_barrier() == 0) return;
	/* The barrier worked when the process began, so it was forbidden since (by a sandbox). From now on the light side has a full
	 * fence. For a thread that passed the light barrier before that, the sleep is long enough for its stores to leave the
	 * processor. */
	hr__store_seq_cst(&hr__light_is_full, true);
	hr__linux_sleep_ns(1000000);
	hr__fence_seq_cst();
}

/* ---- ticks ---- */

#if defined(__x86_64__)

#define RATE_NS 5000000u /* duration of the measurement; a reading is off by some 20 ns, so the rate by a few millionths */
#define RATE_READINGS 8u

struct clock_reading {
	uint64_t ns;
	uint64_t ticks;
};

/* Reads both clocks at one moment: the closest of a few pairs, because an interrupt can separate the two readings of a pair. */
static struct clock_reading read_both(void)
{
	struct clock_reading best = { 0 };
	uint64_t best_gap = UINT64_MAX;
	for (unsigned i = 0; i < RATE_READINGS; i++) {
		uint64_t before = hr__ticks();
		uint64_t ns = hr__linux_clock_ns();
		uint64_t gap = hr__ticks() - before;
		if (gap < best_gap) {
			best_gap = gap;
			best = (struct clock_reading){ ns, before + gap / 2 };
		}
	}
	return best;
}

#endif

static double measure_rate(void)
{
#if defined(__aarch64__)
	uint64_t per_second;
	__asm__("mrs %0, cntfrq_el0" : "=r"(per_second));
	return (double)per_second;
#elif defined(__x86_64__)
	struct clock_reading start = read_both();
	hr__linux_sleep_ns(RATE_NS);
	struct clock_reading end = read_both();
	return (double)(end.ticks - start.ticks) * 1e9 / (double)(end.ns - start.ns);
#else
	return 1e9;
#endif
}

double hr__ticks_rate(void)
{
	static _Atomic(double) known; /* the first thread's value is kept, so that all threads agree */
	double rate = hr__load_acquire(&known);
	if (rate == 0) {
		double measured = measure_rate();
		if (hr__cas_acq_rel(&known, &rate, measured)) rate = measured;
	}
	return rate;
}

/* ---- hooks ---- */

#define FORK_HOOKS 4u

static pthread_once_t started = PTHREAD_ONCE_INIT;
static int fork_error;       /* why fork hooks cannot run; 0 = they can; written by start_once */
static int thread_key_error; /* the same for thread exit hooks */
static pthread_key_t thread_key;
static _Atomic(void (*)(void)) fork_hooks[FORK_HOOKS];
static _Atomic(void (*)(void *)) thread_exit_hook;

static void run_fork_hooks(void)
{
	hr__names_after_fork();
	hr__guard_after_fork();
	for (unsigned i = 0; i < FORK_HOOKS; i++) {
		void (*hook)(void) = hr__load_acquire(&fork_hooks[i]);
		if (hook != NULL) hook();
	}
}

static void run_thread_exit_hook(void *value)
{
	void (*hook)(void *) = hr__load_acquire(&thread_exit_hook);
	if (hook != NULL) hook(value);
}

/* ---- memory of messages ---- */

static int message_key_error;
static pthread_key_t message_key;

static void end_message(void *memory)
{
	hr__message_forget();
	free(memory);
}

/* Not through the table: a message about a call that was made to fail is not to fail itself. */
static void *message_memory(size_t bytes)
{
	void *memory = message_key_error == 0 ? calloc(1, bytes) : NULL;
	if (!memory || pthread_setspecific(message_key, memory) == 0) return memory;
	free(memory); /* its end would not be seen */
	return NULL;
}

static void start_once(void)
{
	hr__lock_wait = wait_for_lock;
	message_key_error = pthread_key_create(&message_key, end_message);
	hr__message_memory = message_memory;
	fork_error = pthread_atfork(NULL, NULL, run_fork_hooks);
	thread_key_error = pthread_key_create(&thread_key, run_thread_exit_hook);
	if (!UNDER_TSAN && hr__linux_heavy_barrier() == 0) hr__store_seq_cst(&hr__light_is_full, false);
}

/* Also called by functions that depend on it, in case a constructor of the program runs before this one. */
static __attribute__((constructor)) void start(void)
{
	pthread_once(&started, start_once);
}

/* Runs when the process ends or a module that contains the library is unloaded (the shared library itself never is: it is linked
 * with nodelete). A thread that ends later must not call unloaded code; its per-thread state is leaked. */
static __attribute__((destructor)) void stop(void)
{
	start();
	if (message_key_error == 0) {
		end_message(pthread_getspecific(message_key));
		pthread_key_delete(message_key);
	}
	message_key_error = ECANCELED;
	if (thread_key_error == 0) pthread_key_delete(thread_key);
	thread_key_error = ECANCELED; /* another module may own the key by now */
}

int hr__os_at_fork(void (*child)(void))
{
	start();
	if (fork_error != 0) return fork_error;
	for (unsigned i = 0; i < FORK_HOOKS; i++) {
		void (*hook)(void) = NULL;
		if (hr__cas_acq_rel(&fork_hooks[i], &hook, child) || hook == child) return 0;
	}
	return ENOSPC;
}

int hr__os_at_thread_exit(void (*run)(void *))
{
	start();
	if (thread_key_error != 0) return thread_key_error;
	void (*hook)(void *) = NULL;
	return hr__cas_acq_rel(&thread_exit_hook, &hook, run) || hook == run ? 0 : EEXIST;
}

/* Not inlined: gcc 12 crashes when its link-time inliner tries. Called once per thread. */
__attribute__((noinline)) int hr__os_at_thread_exit_set(void *value)
{
	start();
	if (thread_key_error != 0) return thread_key_error;
	return pthread_setspecific(thread_key, value);
}
