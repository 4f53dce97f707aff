/* export_formats.h - one function per format, and helpers that several formats share. For export*.c, the profiler and the demo. */
#ifndef HR_PROFILE_EXPORT_FORMATS_H
#define HR_PROFILE_EXPORT_FORMATS_H

#include "analysis/capture/capture.h"

hr_status hr__export_chrome(const hr__capture *capture, const char *path);
hr_status hr__export_memory_viz(const hr__capture *capture, const char *path);
hr_status hr__export_rmm(const hr__capture *capture, const char *path);
hr_status hr__export_pprof(const hr__capture *capture, const char *path);

/* Part of the library, because the profiler calls it too. [session] is the name of the run in the log directory; an earlier export
 * of that name is replaced. NULL: the name is the time when the recording began. */
hr_status hr__export_xplane(const hr__capture *capture, const char *logdir, const char *session);

/* Zeroed memory; NULL when *status was a failure or became one. */
void *hr__export_take(hr_status *status, size_t bytes);
void hr__export_give(void *block, size_t bytes); /* NULL is allowed */

/* The end time; for something that never ended, the end of the trace. */
static inline uint64_t hr__export_end(const hr__capture *capture, uint64_t end_ns, uint64_t begin_ns)
{
	if (end_ns != HR__NEVER) return end_ns;
	return capture->end_ns > begin_ns ? capture->end_ns : begin_ns;
}

/* The time of a change. */
static inline uint64_t hr__export_change_ns(const hr__capture *capture, const hr__change *change)
{
	const hr__allocation *allocation = &capture->allocations[change->allocation];
	return change->frees ? allocation->end_ns : allocation->begin_ns;
}

/* "scope/op", or whichever of the two exists, or "(none)". Returns [out], which has room for two names and the separator. */
#define HR__EXPORT_NAME_BYTES 2064
const char *hr__export_op_name(hr_name scope, hr_name op, char out[HR__EXPORT_NAME_BYTES]);

/* "float32[8,3]", as far as known; "" when nothing is known. */
#define HR__EXPORT_TYPE_BYTES 256
const char *hr__export_type(const hr__site *site, char out[HR__EXPORT_TYPE_BYTES]);

/* Text for a move on a timeline, such as "to host". */
const char *hr__export_move_text(const hr__move *move);

/* A unique name for each allocator: its own name, with the device or the number appended where two are the same. All names are
 * compared once up front, because there may be a thousand allocators and a million events. */
#define HR__EXPORT_LABEL_BYTES 96
typedef struct hr__export_labels {
	char (*of)[HR__EXPORT_LABEL_BYTES]; /* by allocator index */
	size_t block_bytes;
} hr__export_labels;

hr_status hr__export_labels_init(const hr__capture *capture, hr__export_labels *out);
void hr__export_labels_free(hr__export_labels *labels);

/* Bytes in use of each allocator and device, updated change by change. */
typedef struct hr__export_sums {
	uint64_t *allocators, *devices; /* bytes */
	uint64_t *allocators_on;        /* number of allocators per device */
	size_t block_bytes;
} hr__export_sums;

hr_status hr__export_sums_init(const hr__capture *capture, hr__export_sums *out);
void hr__export_sums_take(const hr__capture *capture, hr__export_sums *sums, const hr__change *change);
void hr__export_sums_free(hr__export_sums *sums);

/* The number of ops that ran on each thread. Thread numbers may have gaps. */
typedef struct hr__export_threads {
	uint32_t *ops;
	uint32_t count;
} hr__export_threads;

hr_status hr__export_threads_init(const hr__capture *capture, hr__export_threads *out);
void hr__export_threads_free(hr__export_threads *threads);

#endif
