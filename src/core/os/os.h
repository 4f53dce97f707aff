/* os.h - the interface to the operating system.
 *
 * Nothing outside src/core/os includes <sys/mman.h>, <pthread.h>, <unistd.h> or <fcntl.h>, or calls malloc; all system calls go through
 * hr__os(). The table can be replaced (hr__os_replace), so a test can make the Nth call fail, count what is still allocated, or
 * control the clock.
 *
 * Every function that can fail returns 0 or a positive errno value. On failure it leaves its out-parameters unchanged. */
#ifndef HR_OS_OS_H
#define HR_OS_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/atomic.h"
#include "core/base/shared.h"
#include "headroom.h"

typedef struct hr__thread hr__thread; /* a started thread; opaque */

/* A mutex with a condition variable, for device workers. Not for hot paths, which use hr__lock. */
typedef struct hr__monitor hr__monitor;

/* What is at an address of this process's code. The texts are valid until the module is unloaded. */
typedef struct hr__os_symbol {
	const char *function; /* "": unknown */
	const char *module;   /* path of the program or shared library */
	uint64_t offset;      /* of the address in the module's file, as addr2line expects it */
	uintptr_t base;       /* where the module is loaded */
	bool is_program;      /* the module is the program itself */
} hr__os_symbol;

typedef struct hr__os_table {
	/* ---- memory ---- */

	/* Small zeroed blocks of host memory; [bytes] > 0. free gets the same size. */
	int (*alloc)(size_t bytes, void **out);
	void (*free)(void *block, size_t bytes);

	/* Reserves address space without memory; accesses fault. [bytes] is a multiple of hr__os_page_size(). [alignment] is a power of
	 * two, at least the page size. */
	int (*reserve)(size_t bytes, size_t alignment, void **out);
	/* Releases reserved address space, mapped or not: the whole range that reserve returned. */
	int (*release)(void *base, size_t bytes);
	/* Makes part of a reserved range readable and writable; it is zeroed at first touch. */
	int (*commit)(void *base, size_t bytes);
	/* Asks for huge pages in a committed part, before its first touch. A hint: it cannot fail. */
	void (*prefer_huge_pages)(void *base, size_t bytes);
	/* Frees the memory of a committed part; the address space stays reserved. */
	int (*decommit)(void *base, size_t bytes);

	/* Creates an anonymous file in memory. file_close deletes it. */
	int (*memfd)(const char *name, uint64_t bytes, int *out_fd);
	/* Maps [bytes] of file [fd] from [offset] at the reserved address [base]: shared, readable and writable. */
	int (*map_fd)(void *base, size_t bytes, int fd, uint64_t offset);
	/* Returns a range mapped by map_fd to the reserved state. */
	int (*unmap_fd)(void *base, size_t bytes);
	/* Frees the memory of part of an anonymous file; the part then reads as zeros. */
	int (*punch)(int fd, uint64_t offset, uint64_t bytes);
	/* Locks memory so that it is never swapped out, and unlocks it. EPERM or ENOMEM where limits forbid it. */
	int (*lock_memory)(void *base, size_t bytes);
	int (*unlock_memory)(void *base, size_t bytes);

	/* ---- threads ---- */

	int (*thread_start)(void (*run)(void *), void *argument, const char *name, hr__thread **out);
	void (*thread_join)(hr__thread *thread);
	int (*monitor_create)(hr__monitor **out);
	void (*monitor_destroy)(hr__monitor *monitor);
	void (*monitor_enter)(hr__monitor *monitor);
	void (*monitor_leave)(hr__monitor *monitor);
	/* Inside the monitor: waits for a wake, at most [timeout_ns] (UINT64_MAX = no limit). Spurious wakeups are possible. */
	void (*monitor_wait)(hr__monitor *monitor, uint64_t timeout_ns);
	void (*monitor_wake_all)(hr__monitor *monitor);

	/* ---- time ---- */

	uint64_t (*clock_ns)(void);      /* monotonic */
	uint64_t (*wall_clock_ns)(void); /* since 1970-01-01 */
	void (*sleep_ns)(uint64_t ns);

	/* ---- files ---- */

	/* Creates a new file, mode 0600, readable and writable. Never follows a link and never replaces an existing file (EEXIST). */
	int (*file_create)(const char *path, int *out_fd);
	/* Opens a regular file for reading. EISDIR for a directory, EINVAL for anything else. */
	int (*file_open)(const char *path, int *out_fd, uint64_t *out_size);
	/* Reads [bytes] at [offset]; fewer only at the end of the file. *out_read is 0 at the end. */
	int (*file_read)(int fd, void *to, size_t bytes, uint64_t offset, size_t *out_read);
	/* Opens anything that can be read from its beginning to its end: a file, a pipe, a character device. May wait for the other end of
	 * a pipe. EISDIR for a directory. *out_size is 0 for what is not a regular file. */
	int (*input_open)(const char *path, int *out_fd, uint64_t *out_size);
	/* Reads up to [bytes] from where the last read ended; *out_read is 0 at the end. Descriptor 0 is the standard input. */
	int (*input_read)(int fd, void *to, size_t bytes, size_t *out_read);
	/* Writes all [bytes] at [offset]. */
	int (*file_write)(int fd, const void *from, size_t bytes, uint64_t offset);
	/* Extends the file to [bytes], with disk space allocated for every byte, so that writes through a mapping cannot run out of
	 * disk space. Never shortens the file (EINVAL). */
	int (*file_extend)(int fd, uint64_t bytes);
	int (*file_size)(int fd, uint64_t *out);
	int (*file_truncate)(int fd, uint64_t bytes);
	/* Maps part of a file, shared and writable, at an address that the system chooses. [offset] is a multiple of
	 * hr__os_page_size(). If another process truncates the file, this process survives (core/os/guard.h). */
	int (*file_map)(int fd, uint64_t offset, size_t bytes, void **out);
	int (*file_unmap)(void *base, size_t bytes);
	/* Prefaults the pages of a mapping for writing and changes no contents; other threads may be writing to it. A hint: without
	 * effect where the system does not support it. */
	void (*file_touch)(void *base, size_t bytes);
	int (*file_remove)(const char *path);
	/* Renames a file within one file system, atomically. Replaces an existing file of that name. */
	int (*file_rename)(const char *from, const char *to);
	/* Opens something other than a file for writing: a character device (a terminal, /dev/null), or a descriptor that this process
	 * has open, by the names /dev/stdout, /dev/stderr, /dev/fd/N and /proc/self/fd/N. Never follows another link and never waits.
	 * EEXIST for a regular file, EISDIR for a directory, ELOOP for a link, EINVAL for anything else (a pipe, a socket, a disk),
	 * ENOENT when there is nothing. */
	int (*sink_open)(const char *path, int *out_fd);
	/* Writes all [bytes] to a descriptor from sink_open. Returns EPIPE or EFBIG instead of raising a signal. */
	int (*sink_write)(int fd, const void *from, size_t bytes);
	/* Creates a directory whose parent exists. EEXIST when the name is taken, even by a directory. */
	int (*folder_create)(const char *path);
	void (*file_close)(int fd);

	/* ---- call stacks ---- */

	/* The return addresses on the calling thread's stack, innermost first. ENOSYS where the system cannot tell. The first call of a
	 * process loads a library and allocates memory. May wait for the lock of the dynamic loader, as symbol_find does. */
	int (*stack_capture)(void **addresses, size_t capacity, size_t *out_count);
	/* ENOENT when no module is loaded there. */
	int (*symbol_find)(const void *address, hr__os_symbol *out);

	/* ---- other ---- */

	/* Writes all [bytes] to the standard error. Returns EPIPE or EFBIG instead of raising a signal. */
	int (*stderr_write)(const void *from, size_t bytes);
	/* Total and available bytes of host memory. */
	int (*host_memory)(uint64_t *out_total, uint64_t *out_available);
	/* A barrier on all running threads of this process (membarrier, private expedited). ENOSYS where it is not supported. */
	int (*heavy_barrier)(void);
	int (*process_id)(void);
	/* An environment variable, or NULL. Always NULL in a program with elevated privileges. */
	const char *(*environment)(const char *name);
} hr__os_table;

/* The current table; never NULL. */
HR__SHARED const hr__os_table *hr__os(void);

/* The Linux table. */
HR__SHARED const hr__os_table *hr__os_linux(void);

/* Replaces the current table; NULL restores the Linux table. Allowed only while no device or allocator exists. Returns the previous
 * table. */
HR__SHARED const hr__os_table *hr__os_replace(const hr__os_table *table);

/* Size of a page of host memory in bytes. */
HR__SHARED size_t hr__os_page_size(void);

/* Processors that this process may run on, at least 1. */
uint32_t hr__os_processors(void);

/* Text of an errno value, such as "ENOSPC: no space left on device"; static, thread-safe. */
const char *hr__os_error(int error);

/* Converts an errno value to a status: ENOMEM and EAGAIN to HR_NO_HOST_MEMORY, all others to HR_IO. The message is "<what>:
 * <hr__os_error>". */
HR__SHARED hr_status hr__os_fail(int error, const char *what, ...) __attribute__((format(printf, 2, 3), cold));

/* Grows an array of *capacity items of [item] bytes, from hr__os()->alloc or empty: to twice its capacity, at least to [least] items.
 * New items are zero. [array] is the address of the pointer to the first item. Returns 0 or an errno value, and then changes nothing. */
HR__SHARED int hr__os_grow(void *array, size_t *capacity, size_t item, size_t least);

/* Asymmetric synchronisation: a Dekker handshake whose frequent side costs two plain instructions. The frequent side stores its
 * flag, calls hr__light_barrier() and loads the other flag; the rare side stores its flag, calls hr__heavy_barrier() and loads the
 * other flag. At least one of them then sees the other's flag. Where the system has no membarrier, and under ThreadSanitizer, which
 * does not model it, the light side is a full fence. */
extern _Atomic(bool) hr__light_is_full;
static inline void hr__light_barrier(void)
{
	if (__builtin_expect(hr__load_relaxed(&hr__light_is_full), 0)) hr__fence_seq_cst();
	else hr__compiler_barrier();
}
void hr__heavy_barrier(void);

/* Ticks of the processor's constant-rate counter: the cheapest clock (a few ns), for events. hr__ticks_rate returns ticks per
 * second, measured in the first call (a few ms). */
static inline uint64_t hr__ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t ticks;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
#else
	return hr__os()->clock_ns();
#endif
}
double hr__ticks_rate(void);

/* Registers [child] to run in the child after every fork. At most 4 functions (then ENOSPC), never removed. Registering a function
 * twice has no further effect. */
HR__SHARED int hr__os_at_fork(void (*child)(void));

/* Registers [run] to be called when a thread ends, with the value that the thread stored by hr__os_at_thread_exit_set, unless that
 * is NULL. One function per process: EEXIST for a second function, 0 for the same one again. If [run] sets the value again, it is
 * called again, at most 4 times. */
int hr__os_at_thread_exit(void (*run)(void *));
int hr__os_at_thread_exit_set(void *value);

#endif
