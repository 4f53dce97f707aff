/* count_malloc.c - counts the memory of a program from inside: LD_PRELOAD=libcount_malloc.so.
 *
 * bench/torch_models.py builds it and calls the functions at the end through ctypes.
 *
 * For blocks from malloc and related functions it counts live bytes and their peak. The size of a block is its malloc_usable_size,
 * so no record per block is needed: what malloc adds, free subtracts. Blocks below LEAST bytes are Python's own and are ignored.
 *
 * For anonymous mappings not made by malloc (malloc's own do not pass through here) it counts the pages touched, at the time of the
 * call. Libraries reserve more than they use, and untouched pages take no memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define LEAST 512
#define MAPPINGS 4096
#define PAGE 4096

/* ---- blocks ---- */

static _Atomic int64_t live, peak;

static void change(int64_t bytes)
{
	int64_t now = atomic_fetch_add(&live, bytes) + bytes, most = atomic_load(&peak);
	while (now > most && !atomic_compare_exchange_weak(&peak, &most, now)) continue;
}

static void *taken(void *block)
{
	size_t bytes = block ? malloc_usable_size(block) : 0;
	if (bytes >= LEAST) change((int64_t)bytes);
	return block;
}

static void given(void *block)
{
	size_t bytes = block ? malloc_usable_size(block) : 0;
	if (bytes >= LEAST) change(-(int64_t)bytes);
}

/* glibc's functions, under the names it exports for interposers. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *block, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *block);

void *malloc(size_t bytes) { return taken(__libc_malloc(bytes)); }
void *calloc(size_t count, size_t bytes) { return taken(__libc_calloc(count, bytes)); }
void *memalign(size_t alignment, size_t bytes) { return taken(__libc_memalign(alignment, bytes)); }
void *aligned_alloc(size_t alignment, size_t bytes) { return taken(__libc_memalign(alignment, bytes)); }

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
	void *block = taken(__libc_memalign(alignment, bytes));
	if (block) *out = block;
	return block ? 0 : ENOMEM;
}

void free(void *block)
{
	int error = errno;
	given(block);
	__libc_free(block);
	errno = error;
}

void *realloc(void *block, size_t bytes)
{
	size_t before = block ? malloc_usable_size(block) : 0;
	void *next = __libc_realloc(block, bytes);
	if (!next && bytes) return NULL;
	if (before >= LEAST) change(-(int64_t)before);
	return taken(next);
}

/* ---- mappings ---- */

static struct {
	char *at;
	size_t bytes; /* 0: unused row */
} mappings[MAPPINGS];
static atomic_flag lock = ATOMIC_FLAG_INIT;

/* Sets the size of the mapping at [at]; 0 removes it. The libraries measured here only unmap whole mappings. */
static void note(char *at, size_t bytes)
{
	int row = -1;
	while (atomic_flag_test_and_set(&lock)) continue;
	for (int i = 0; i < MAPPINGS; i++) {
		if (mappings[i].bytes && mappings[i].at != at) continue;
		if (mappings[i].bytes || row < 0) row = i;
		if (mappings[i].bytes) break;
	}
	if (row >= 0) mappings[row].at = at, mappings[row].bytes = bytes;
	atomic_flag_clear(&lock);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
	static void *(*next)(void *, size_t, int, int, int, off_t);
	if (!next) next = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
	void *block = next(at, bytes, protection, flags, file, offset);
	if (block != MAP_FAILED && (flags & MAP_ANONYMOUS)) note(block, bytes);
	return block;
}

int munmap(void *at, size_t bytes)
{
	static int (*next)(void *, size_t);
	if (!next) next = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
	note(at, 0);
	return next(at, bytes);
}

/* ---- for ctypes ---- */

int64_t count_malloc_live(void)
{
	return atomic_load(&live);
}

int64_t count_malloc_peak(void)
{
	return atomic_load(&peak);
}

/* Resets the peak to the live bytes. */
void count_malloc_reset(void)
{
	atomic_store(&peak, atomic_load(&live));
}

int64_t count_malloc_mapped(void)
{
	unsigned char touched[256];
	int64_t bytes = 0;
	while (atomic_flag_test_and_set(&lock)) continue;
	for (int i = 0; i < MAPPINGS; i++) {
		for (size_t from = 0; from < mappings[i].bytes; from += sizeof touched * PAGE) {
			size_t left = mappings[i].bytes - from, part = left < sizeof touched * PAGE ? left : sizeof touched * PAGE;
			if (mincore(mappings[i].at + from, part, touched) != 0) continue;
			for (size_t page = 0; page < (part + PAGE - 1) / PAGE; page++) bytes += touched[page] & 1 ? PAGE : 0;
		}
	}
	atomic_flag_clear(&lock);
	return bytes;
}
