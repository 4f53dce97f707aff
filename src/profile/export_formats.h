/* export_formats.h - one function for each format, and what several of them need. For export*.c, the profiler and the demo. */
#ifndef HR_PROFILE_EXPORT_FORMATS_H
#define HR_PROFILE_EXPORT_FORMATS_H

#include "profile/capture.h"

hr_status hr__export_chrome(const hr__capture *capture, const char *path);
hr_status hr__export_memory_viz(const hr__capture *capture, const char *path);
hr_status hr__export_rmm(const hr__capture *capture, const char *path);
hr_status hr__export_pprof(const hr__capture *capture, const char *path);

/* Part of the library: the profiler writes it too. [session] is the name of the run in the log directory, and what was exported under it before is
 * replaced; NULL: when the recording began. */
hr_status hr__export_xplane(const hr__capture *capture, const char *logdir, const char *session);

/* Memory, cleared; NULL when [status] is a failure, also of this call. */
void *hr__export_take(hr_status *status, size_t bytes);
void hr__export_give(void *block, size_t bytes); /* NULL: nothing */

/* An end that did not come before the trace's. */
static inline uint64_t hr__export_end(const hr__capture *capture, uint64_t end_ns, uint64_t begin_ns)
{
	if (end_ns != HR__NEVER) return end_ns;
	return capture->end_ns > begin_ns ? capture->end_ns : begin_ns;
}

/* When a change happened. */
static inline uint64_t hr__export_change_ns(const hr__capture *capture, const hr__change *change)
{
	const hr__allocation *allocation = &capture->allocations[change->allocation];
	return change->frees ? allocation->end_ns : allocation->begin_ns;
}

/* "scope/op", or the one that there is; "(none)" without both. Returns [out], which takes two names with what is between them. */
#define HR__EXPORT_NAME_BYTES 2064
const char *hr__export_op_name(hr_name scope, hr_name op, char out[HR__EXPORT_NAME_BYTES]);

/* "float32[8,3]", as far as it is known; "" when nothing is. */
#define HR__EXPORT_TYPE_BYTES 256
const char *hr__export_type(const hr__site *site, char out[HR__EXPORT_TYPE_BYTES]);

/* "leaves the device"... what a move did, as a line of a timeline says it. */
const char *hr__export_move_text(hr__move_kind kind);

/* The text with U+FFFD in the place of bytes that are no UTF-8, cut to [capacity] with its final 0; readers of protobufs refuse all else. Returns
 * [out]. */
#define HR__EXPORT_CLEAN_BYTES (3 * HR__EXPORT_NAME_BYTES)
const char *hr__export_clean(const char *text, char *out, size_t capacity);

/* A name for each allocator that no other has: its own, with the device or the number behind it where two have the same. Each is compared with the
 * others once, since there may be a thousand of them and a million events. */
#define HR__EXPORT_LABEL_BYTES 96
typedef struct hr__export_labels {
	char (*of)[HR__EXPORT_LABEL_BYTES]; /* an allocator's index */
	size_t block_bytes;
} hr__export_labels;

hr_status hr__export_labels_init(const hr__capture *capture, hr__export_labels *out);
void hr__export_labels_free(hr__export_labels *labels);

/* Bytes in use for each of a capture's allocators and devices, as changes go by. */
typedef struct hr__export_sums {
	uint64_t *allocators, *devices; /* bytes */
	uint64_t *allocators_on;        /* how many a device has */
	size_t block_bytes;
} hr__export_sums;

hr_status hr__export_sums_init(const hr__capture *capture, hr__export_sums *out);
void hr__export_sums_take(const hr__capture *capture, hr__export_sums *sums, const hr__change *change);
void hr__export_sums_free(hr__export_sums *sums);

/* How many ops ran on each thread; thread numbers may have gaps. */
typedef struct hr__export_threads {
	uint32_t *ops;
	uint32_t count;
} hr__export_threads;

hr_status hr__export_threads_init(const hr__capture *capture, hr__export_threads *out);
void hr__export_threads_free(hr__export_threads *threads);

#endif
