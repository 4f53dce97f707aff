/* host_file.h - the file tier of host.h: room in an unlinked file, and the ring of pinned buffers that bytes pass through.
 *
 * Every function may be called from any thread, except those that open and end it. */
#ifndef HR_LMS_HOST_FILE_H
#define HR_LMS_HOST_FILE_H

#include "core/lms/host/host.h"

typedef struct hr__host_file hr__host_file;

/* Makes the file in [directory], with room for [limit] bytes (0 = what the disk takes), and takes the ring from [pool], an allocator of
 * [pool_limit] bytes on the pinned memory of [device]. Fails as hr__host_open does. */
hr_status hr__host_file_open(hr__device *device, hr_allocator pool, uint64_t pool_limit, const char *directory, uint64_t limit,
                             hr__host_file **out);

/* Everything but the ring, which is the pool's: it goes with that, and must go first, because copies may still be on their way from or
 * to it. */
void hr__host_file_close(hr__host_file *file);

/* After fork, in the child: closes the child's descriptor, and nothing else. */
void hr__host_file_forget(hr__host_file *file);

/* As their namesakes in host.h; store sets [copy] whole. */
hr_status hr__host_file_store(hr__host_file *file, uint64_t address, uint64_t bytes, hr_stream stream, hr__host_copy *copy);
hr_status hr__host_file_load(hr__host_file *file, const hr__host_copy *copy, uint64_t address, hr_stream stream);
void hr__host_file_drop(hr__host_file *file, const hr__host_copy *copy);

/* What it has of the pool. */
uint64_t hr__host_file_ring_bytes(const hr__host_file *file);

/* Number of the first violated invariant listed at the top of host_file.c, 0 when all hold. [bytes] are those of all copies in it. */
int hr__host_file_check(hr__host_file *file, uint64_t bytes);

#endif
