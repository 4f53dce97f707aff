/* guard.h - mappings of files that another process can shorten.
 *
 * Access to a mapped page behind the end of its file raises SIGBUS, which kills by default. A recorded program must not die because its trace
 * file was truncated. While there are guarded mappings, a handler for SIGBUS is installed: a fault in one of them gets a page of zeros in the
 * place of the lost one, the mapping counts as broken from then on, and the program goes on. Every other SIGBUS is passed on to what was
 * installed before, with its flags and mask; SIG_DFL and SIG_IGN act as they would without Headroom.
 *
 * The handler reads atomics and calls mmap, sigaction and raise. */
#ifndef HR_OS_GUARD_H
#define HR_OS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* hr__os()->file_map and file_unmap call these. The handler is installed with the first mapping and removed with the last one, unless the
 * program has installed its own over it: that may call ours. */
void hr__guard_add(void *base, size_t bytes);
void hr__guard_remove(void *base);

/* Whether a page of the mapping at [base] was lost. */
bool hr__guard_is_broken(const void *base);

/* Makes the guard work for the calling thread, where there are mappings: puts the handler in front of one that the program has installed
 * meanwhile, and unblocks SIGBUS in this thread (a fault while it is blocked kills without calling a handler). Two system calls. */
void hr__guard_refresh(void);

/* In a forked child, where other threads of the parent may have been inside of these. */
void hr__guard_after_fork(void);

#endif
