/* fault_os.h - an operating system for tests: Linux with injected failures and an account of everything that is still held.
 *
 *     hr_fault_os_install();
 *     hr_fault_os_fail_nth(3, false, ENOMEM);   // the third failable call from now on fails, once
 *     ... do the thing; it must return a status and leave nothing behind ...
 *     struct hr_fault_os_live live;
 *     hr_fault_os_live(&live);
 *     CHECK_EQ(live.alloc_bytes, 0);
 *     hr_fault_os_uninstall();
 *
 * To fail every call of a path in turn: for n = 1, 2, ... until the path succeeds with hr_fault_os_calls() < n.
 *
 * Failable calls are those that acquire or do something: alloc, reserve, commit, memfd, map_fd, punch, lock_memory, thread_start,
 * monitor_create, host_memory, heavy_barrier, and all file calls except unmapping. Calls that release something (release, decommit,
 * unmap_fd, unlock_memory, file_unmap) never fail unless hr_fault_os_fail_gives_back(true) is in force: cleanup is impossible if
 * releasing fails too.
 *
 * Bugs of the program under test print a message and abort: a block freed twice or with another size, release of a range that was
 * not reserved as such, memory committed outside of reserved ranges, close of a descriptor that is not open.
 *
 * Thread-safe. All counts are of calls through the installed table. */
#ifndef HR_TESTS_FAULT_OS_H
#define HR_TESTS_FAULT_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hr_fault_os_live {
	uint64_t alloc_blocks;
	uint64_t alloc_bytes;
	uint64_t reserved_ranges;
	uint64_t reserved_bytes;
	uint64_t committed_bytes; /* within reserved ranges, by commit */
	uint64_t mapped_bytes;    /* within reserved ranges, by map_fd */
	uint64_t locked_bytes;    /* by lock_memory; releasing a range unlocks it */
	uint64_t file_maps;
	uint64_t file_map_bytes;
	uint64_t fds; /* files and anonymous files */
	uint64_t threads;
	uint64_t monitors;
};

/* Installs the table, with no failure set and all counts at 0. */
void hr_fault_os_install(void);

/* Restores the table of Linux. */
void hr_fault_os_uninstall(void);

/* Makes the [n]th failable call from now on fail with [error], and with [forever] all calls after it too. Counting begins at 1; n =
 * 0 means none. Also sets hr_fault_os_calls() to 0. */
void hr_fault_os_fail_nth(uint64_t n, bool forever, int error);

/* Sets whether calls that release something are failable too. Off after install. */
void hr_fault_os_fail_gives_back(bool yes);

/* Failable calls since install or the last hr_fault_os_fail_nth, including those that failed. */
uint64_t hr_fault_os_calls(void);

/* Calls that were made to fail since install. */
uint64_t hr_fault_os_failures(void);

/* Everything that is held now. */
void hr_fault_os_live(struct hr_fault_os_live *out);

/* True if nothing is held; else prints what is held as a TAP comment. */
bool hr_fault_os_is_clean(void);

#endif
