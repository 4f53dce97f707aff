/* guard.h - mappings of files that another process can truncate.
 *
 * An access to a mapped page beyond the end of its file raises SIGBUS, which kills by default. A recorded program must not die
 * because its trace file was truncated. So while there are guarded mappings, a SIGBUS handler is installed. A fault in a guarded
 * mapping replaces the lost page with a page of zeros and marks the mapping as broken, and the program continues. Every other
 * SIGBUS is passed on to the previous handler, with its flags and mask; SIG_DFL and SIG_IGN act as without Headroom.
 *
 * The handler only reads atomics and calls mmap, sigaction and raise. */
#ifndef HR_OS_GUARD_H
#define HR_OS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* Called by hr__os()->file_map and file_unmap. The handler is installed with the first mapping and removed with the last, unless
 * the program has installed its own handler over ours: the program's handler may call ours. */
void hr__guard_add(void *base, size_t bytes);
void hr__guard_remove(void *base);

/* Whether a page of the mapping at [base] was lost. */
bool hr__guard_is_broken(const void *base);

/* Makes the guard effective for the calling thread if there are mappings: installs the handler over one that the program installed
 * meanwhile, and unblocks SIGBUS in this thread (a fault while SIGBUS is blocked kills without calling a handler). Two system
 * calls. */
void hr__guard_refresh(void);

/* In the child of a fork: reinitialises the lock and the count, which other threads of the parent may have been changing. */
void hr__guard_after_fork(void);

#endif
