/* host_file.h - the file tier of host.h: room in an unlinked file, and the ring of pinned buffers that bytes pass through.
 *
 * All functions may be called from any thread, except open, close and forget. */
#ifndef HR_LMS_HOST_FILE_H
#define HR_LMS_HOST_FILE_H

#include "core/lms/host/host.h"

typedef struct hr__host_file hr__host_file;

/* Creates the file in [directory], with room for [limit] bytes (0 = what the disk takes), and allocates the ring from [pool], an
 * allocator of [pool_limit] bytes on the pinned memory of [device]. Fails like hr__host_open. */
hr_status hr__host_file_open(hr__device *device, hr_allocator pool, uint64_t pool_limit, const char *directory, uint64_t limit,
                             hr__host_file **out);

/* Frees everything but the ring, which belongs to the pool. The pool must be closed first, because copies from or to the ring may
 * still be under way. */
void hr__host_file_close(hr__host_file *file);

/* After fork, in the child: closes the child's descriptor, and nothing else. */
void hr__host_file_forget(hr__host_file *file);

/* Like their namesakes in host.h; store sets all of *copy. */
hr_status hr__host_file_store(hr__host_file *file, uint64_t address, uint64_t bytes, hr_stream stream, hr__host_copy *copy);
hr_status hr__host_file_load(hr__host_file *file, const hr__host_copy *copy, uint64_t address, hr_stream stream);
void hr__host_file_drop(hr__host_file *file, const hr__host_copy *copy);

/* Bytes that it has of the pool. */
uint64_t hr__host_file_ring_bytes(const hr__host_file *file);

/* Number of the first violated invariant listed at the top of host_file.c, 0 if all hold. [bytes] are those of all copies in the
 * file. */
int hr__host_file_check(hr__host_file *file, uint64_t bytes);

#endif
