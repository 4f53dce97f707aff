/* guard.c - see guard.h.
 *
 * The handler can be installed at several levels. A program that installs its own handler over ours at level 0 has ours as its
 * previous handler, and may call it for faults that it does not handle. So when our handler is installed again over the program's,
 * it is a different function, level 1: it passes signals on to the program's handler, which passes them on to level 0, which passes
 * them on to the original handler. With one function for all levels this would be a loop. */
#define _GNU_SOURCE
#include "core/os/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>

#include "core/base/atomic.h"
#include "core/base/assert.h"
#include "core/base/lock.h"
#include "core/os/os.h"

#define MAPPINGS_MAX 16640u /* more than a recording can have (core/trace/blockfile.h); a mapping beyond that is not guarded */
#define LEVELS 4

/* Written under lock; read by the handler. */
static struct guarded_mapping {
	hr__atomic_u64 base; /* 0: free */
	hr__atomic_u64 bytes;
	hr__atomic_u32 broken;
} mappings[MAPPINGS_MAX];
static hr__atomic_u32 mappings_end; /* entries from this index on are free */
static hr__atomic_u32 any_broken;   /* 1: some page was lost since the process began */

static hr__lock lock = HR__LOCK_INIT(HR__RANK_GUARD);
static uint32_t live;                   /* mappings in use; guarded by lock, as are before and levels_used */
static struct sigaction before[LEVELS]; /* what each level passes signals on to; constant while the level can be called */
static int levels_used;

/* ---- the handler ---- */

static struct guarded_mapping *find(uint64_t address)
{
	uint32_t end = hr__load_acquire(&mappings_end);
	for (uint32_t i = 0; i < end; i++) {
		uint64_t base = hr__load_acquire(&mappings[i].base), bytes = hr__load_acquire(&mappings[i].bytes);
		if (base && address - base < bytes && hr__load_acquire(&mappings[i].base) == base) return &mappings[i];
	}
	return NULL;
}

/* Replaces the lost page. Returns true when the instruction can be retried. */
static bool mend(const siginfo_t *info)
{
	if (info->si_code != BUS_ADRERR) return false;
	uint64_t address = (uint64_t)(uintptr_t)info->si_addr, page = hr__os_page_size();
	struct guarded_mapping *mapping = find(address);
	if (!mapping) return false;
	int error = errno;
	void *at = mmap((void *)(uintptr_t)(address & ~(page - 1)), page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	errno = error;
	if (at == MAP_FAILED) return false;
	hr__store_release(&mapping->broken, 1);
	hr__store_release(&any_broken, 1);
	return true;
}

/* The action of SIG_DFL. A fault is raised again when the handler returns; a signal that was sent must be raised again
 * explicitly. */
static void die(const siginfo_t *info)
{
	struct sigaction action = { .sa_handler = SIG_DFL };
	sigaction(SIGBUS, &action, NULL);
	if (info->si_code <= 0) raise(SIGBUS);
}

static void pass_on(const struct sigaction *to, int number, siginfo_t *info, void *context)
{
	bool sent = info->si_code <= 0; /* by a process, not caused by an instruction */
	bool is_function = (to->sa_flags & SA_SIGINFO) || (to->sa_handler != SIG_DFL && to->sa_handler != SIG_IGN);
	if (is_function && (to->sa_flags & SA_RESETHAND)) {
		struct sigaction action = { .sa_handler = SIG_DFL };
		sigaction(SIGBUS, &action, NULL);
	}
	if (to->sa_flags & SA_SIGINFO) to->sa_sigaction(number, info, context);
	else if (is_function) to->sa_handler(number);
	else if (to->sa_handler == SIG_DFL || !sent) die(info); /* the system also kills the process when a fault is ignored */
}

static void handle(int level, int number, siginfo_t *info, void *context)
{
	if (!mend(info)) pass_on(&before[level], number, info, context);
}

#define HANDLER(level)                                                                \
	static void handle_##level(int number, siginfo_t *info, void *context)            \
	{                                                                                 \
		handle(level, number, info, context);                                         \
	}
HANDLER(0)
HANDLER(1)
HANDLER(2)
HANDLER(3)
static void (*const handlers[LEVELS])(int, siginfo_t *, void *) = { handle_0, handle_1, handle_2, handle_3 };

/* ---- installing the handler ---- */

/* The level whose handler is [action], or -1. */
static int level_of(const struct sigaction *action)
{
	for (int i = 0; i < LEVELS; i++)
		if ((action->sa_flags & SA_SIGINFO) && action->sa_sigaction == handlers[i]) return i;
	return -1;
}

static void install(void)
{
	struct sigaction now, ours;
	HR_ASSERT(hr__lock_is_mine(&lock));
	if (sigaction(SIGBUS, NULL, &now)) return;
	int level = level_of(&now);
	if (level >= 0) levels_used = level + 1;
	if (level >= 0 || levels_used == LEVELS) return;
	before[levels_used] = now;
	ours = now;
	ours.sa_sigaction = handlers[levels_used];
	/* Use the alternate stack if the thread has one, because the fault may be on a small stack; without an alternate stack the flag
	 * has no effect. */
	ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (now.sa_flags & (SA_NODEFER | SA_RESTART));
	if (sigaction(SIGBUS, &ours, NULL) == 0) levels_used++;
}

static void uninstall(void)
{
	struct sigaction now;
	HR_ASSERT(hr__lock_is_mine(&lock));
	int level = sigaction(SIGBUS, NULL, &now) ? -1 : level_of(&now);
	if (level < 0) return;
	sigaction(SIGBUS, &before[level], NULL);
	levels_used = level;
}

/* ---- mappings ---- */

static struct guarded_mapping *free_place(void)
{
	uint32_t end = hr__load_relaxed(&mappings_end);
	for (uint32_t i = 0; i < end; i++)
		if (hr__load_relaxed(&mappings[i].base) == 0) return &mappings[i];
	if (end == MAPPINGS_MAX) return NULL;
	hr__store_release(&mappings_end, end + 1);
	return &mappings[end];
}

void hr__guard_add(void *base, size_t bytes)
{
	hr__lock_take(&lock);
	struct guarded_mapping *mapping = free_place();
	if (mapping) {
		hr__store_relaxed(&mapping->broken, 0);
		hr__store_relaxed(&mapping->bytes, bytes);
		hr__store_release(&mapping->base, (uint64_t)(uintptr_t)base);
		if (live++ == 0) install();
	}
	hr__lock_release(&lock);
}

void hr__guard_remove(void *base)
{
	hr__lock_take(&lock);
	struct guarded_mapping *mapping = find((uint64_t)(uintptr_t)base);
	if (mapping) {
		hr__store_release(&mapping->base, 0);
		if (--live == 0) uninstall();
	}
	hr__lock_release(&lock);
}

bool hr__guard_is_broken(const void *base)
{
	struct guarded_mapping *mapping = hr__load_acquire(&any_broken) ? find((uint64_t)(uintptr_t)base) : NULL;
	return mapping && hr__load_acquire(&mapping->broken);
}

void hr__guard_refresh(void)
{
	sigset_t one;
	sigemptyset(&one);
	sigaddset(&one, SIGBUS);
	hr__lock_take(&lock);
	bool guards = live > 0;
	if (guards) install();
	hr__lock_release(&lock);
	if (guards) pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

void hr__guard_after_fork(void)
{
	hr__lock_init(&lock, HR__RANK_GUARD);
	live = 0;
	for (uint32_t i = 0; i < hr__load_relaxed(&mappings_end); i++) live += hr__load_relaxed(&mappings[i].base) != 0;
}
