/* os.h - the contract with the operating system, and the only door to it.
 *
 * Nothing outside src/os includes <sys/mman.h>, <pthread.h>, <unistd.h>, <fcntl.h> or calls malloc: it calls through hr__os(). The
 * table can be replaced (hr__os_replace), so a test can make the Nth call fail, count what is still held, or drive the clock.
 *
 * Every function that can fail returns 0 or an errno value (positive), and leaves its out-parameters alone when it fails. */
#ifndef HR_OS_OS_H
#define HR_OS_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "headroom.h"

typedef struct hr__thread hr__thread; /* a thread that was started; opaque */

/* A sleeping place: a mutex with a condition variable, for device workers. Not for hot paths (those use hr__lock). */
typedef struct hr__monitor hr__monitor;

typedef struct hr__os_table {
	/* ---- memory ---- */

	/* Small zeroed blocks of host memory; [bytes] > 0. free takes the same size back. */
	int (*alloc)(size_t bytes, void **out);
	void (*free)(void *block, size_t bytes);

	/* Address space without memory behind it; touching it faults. [bytes] is a multiple of page_size(). [alignment] is a power of
	 * two, at least the page size. */
	int (*reserve)(size_t bytes, size_t alignment, void **out);
	/* Gives reserved address space back, mapped or not. The whole of what reserve returned. */
	int (*release)(void *base, size_t bytes);
	/* Makes part of a reserved range readable and writable, zeroed at first touch. */
	int (*commit)(void *base, size_t bytes);
	/* Drops memory from a committed part again; the address space stays reserved. */
	int (*decommit)(void *base, size_t bytes);

	/* An anonymous file that lives in memory. close ends it. */
	int (*memfd)(const char *name, uint64_t bytes, int *out_fd);
	/* Puts [bytes] of file [fd] from [offset] at reserved address [base], shared, readable and writable. */
	int (*map_fd)(void *base, size_t bytes, int fd, uint64_t offset);
	/* Makes a range mapped by map_fd reserved again. */
	int (*unmap_fd)(void *base, size_t bytes);
	/* Gives the memory of part of an anonymous file back; it reads as zeros afterwards. */
	int (*punch)(int fd, uint64_t offset, uint64_t bytes);
	/* Pins memory so that it is never swapped out, and the reverse. EPERM or ENOMEM where limits forbid it. */
	int (*lock_memory)(void *base, size_t bytes);
	int (*unlock_memory)(void *base, size_t bytes);

	/* ---- threads ---- */

	int (*thread_start)(void (*run)(void *), void *argument, const char *name, hr__thread **out);
	void (*thread_join)(hr__thread *thread);
	int (*monitor_create)(hr__monitor **out);
	void (*monitor_destroy)(hr__monitor *monitor);
	void (*monitor_enter)(hr__monitor *monitor);
	void (*monitor_leave)(hr__monitor *monitor);
	/* Inside the monitor: waits for a wake, at most [timeout_ns] (UINT64_MAX = for ever); may wake for no reason. */
	void (*monitor_wait)(hr__monitor *monitor, uint64_t timeout_ns);
	void (*monitor_wake_all)(hr__monitor *monitor);

	/* ---- time ---- */

	uint64_t (*clock_ns)(void);      /* monotonic */
	uint64_t (*wall_clock_ns)(void); /* since 1970 */
	void (*sleep_ns)(uint64_t ns);

	/* ---- files ---- */

	/* Creates a new file, mode 0600, never through a link, never over an existing one (EEXIST). Readable and writable. */
	int (*file_create)(const char *path, int *out_fd);
	/* Opens a regular file for reading; anything else is EINVAL, a directory EISDIR. */
	int (*file_open)(const char *path, int *out_fd, uint64_t *out_size);
	/* Reads [bytes] at [offset], fewer only where the file ends; *out_read is 0 at the end. */
	int (*file_read)(int fd, void *to, size_t bytes, uint64_t offset, size_t *out_read);
	/* Writes all of it at [offset]. */
	int (*file_write)(int fd, const void *from, size_t bytes, uint64_t offset);
	/* Makes the file [bytes] long with disk space behind every byte, so that writing through a mapping cannot run out of disk.
	 * Never shortens it (EINVAL). */
	int (*file_extend)(int fd, uint64_t bytes);
	int (*file_size)(int fd, uint64_t *out);
	int (*file_truncate)(int fd, uint64_t bytes);
	/* Maps part of a file, shared and writable, at an address of the system's choice. [offset] is a multiple of page_size(). A file that another
	 * process shortens does not kill this one (os/guard.h). */
	int (*file_map)(int fd, uint64_t offset, size_t bytes, void **out);
	int (*file_unmap)(void *base, size_t bytes);
	/* Does what the first write to each page of a mapping would have to wait for, and changes nothing else: others may be writing to
	 * it. An advice: where the system does not know it, nothing happens. */
	void (*file_touch)(void *base, size_t bytes);
	int (*file_remove)(const char *path);
	/* Gives a file another name on the same disk, in one step; what had that name before is gone. */
	int (*file_rename)(const char *from, const char *to);
	/* Opens for writing what is no file: a character device (a terminal, /dev/null), or what this process has open itself, by the names
	 * /dev/stdout, /dev/stderr, /dev/fd/N and /proc/self/fd/N. Never follows another link and never waits. EEXIST for a regular file,
	 * EISDIR for a directory, ELOOP for a link, EINVAL for anything else (a pipe, a socket, a disk), ENOENT when there is nothing. */
	int (*sink_open)(const char *path, int *out_fd);
	/* Writes all of it to what sink_open gave. No signal comes of it: EPIPE, EFBIG. */
	int (*sink_write)(int fd, const void *from, size_t bytes);
	/* Makes a directory in one that is there. EEXIST when something has that name already, be it a directory. */
	int (*folder_create)(const char *path);
	void (*file_close)(int fd);

	/* ---- the rest ---- */

	/* Writes all of it to the standard error. No signal comes of it: EPIPE, EFBIG. */
	int (*stderr_write)(const void *from, size_t bytes);
	/* Total and available bytes of host memory. */
	int (*host_memory)(uint64_t *out_total, uint64_t *out_available);
	/* A barrier on all running threads of this process (membarrier, private expedited). ENOSYS where there is none. */
	int (*heavy_barrier)(void);
	int (*process_id)(void);
	/* A variable of the environment, or NULL; NULL too in a program with elevated rights. */
	const char *(*environment)(const char *name);
} hr__os_table;

/* The table in force; never NULL. */
const hr__os_table *hr__os(void);

/* The table that talks to Linux. */
const hr__os_table *hr__os_linux(void);

/* Puts another table in force; NULL restores Linux. Only while no device or allocator exists. Returns the one before. */
const hr__os_table *hr__os_replace(const hr__os_table *table);

/* Bytes of a page of host memory. */
size_t hr__os_page_size(void);

/* Processors that this process may use, at least 1. */
uint32_t hr__os_processors(void);

/* A name for an errno value, such as "ENOSPC: no space left on device"; static text, thread-safe. */
const char *hr__os_error(int error);

/* Turns an errno value into a status: ENOMEM and EAGAIN to HR_NO_HOST_MEMORY, all else to HR_IO, with a message
 * "<what>: <hr__os_error>". */
hr_status hr__os_fail(int error, const char *what, ...) __attribute__((format(printf, 2, 3), cold));

/* Asymmetric synchronisation (a Dekker handshake whose common side costs two plain instructions). The frequent side stores its
 * flag, calls hr__light_barrier() and loads the other flag; the rare side stores its flag, calls hr__heavy_barrier() and loads.
 * At least one of the two then sees the other's flag. Where the system has no membarrier, and under ThreadSanitizer, which does not
 * know it, the light side becomes a full fence. */
extern _Atomic(bool) hr__light_is_full;
static inline void hr__light_barrier(void)
{
	if (__builtin_expect(hr__load_relaxed(&hr__light_is_full), 0)) hr__fence_seq_cst();
	else hr__compiler_barrier();
}
void hr__heavy_barrier(void);

/* Ticks of the processor's constant-rate counter: the cheapest clock there is (a few ns), for events. hr__ticks_rate gives the
 * number of ticks per second, measured once (a few ms, the first call). */
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

/* Registers [child] to run in the child after every fork; up to 4 (then ENOSPC), never removed. Registering it again changes
 * nothing. */
int hr__os_at_fork(void (*child)(void));

/* Registers [run] to be called with the value that the thread stored by hr__os_at_thread_exit_set, when a thread ends with a value
 * other than NULL. One registration per process is enough: returns EEXIST for a second function, 0 for the same one again. A thread
 * that sets its value anew inside [run] is called once more; at most 4 times. */
int hr__os_at_thread_exit(void (*run)(void *));
int hr__os_at_thread_exit_set(void *value);

#endif
