/* headroom_oom.h - out-of-memory reports: what holds the memory, what was allocated last, and what would have made the request fit.
 *
 * Included by headroom.h.
 *
 *     hr_device device;
 *     hr_allocator allocator;
 *     hr_allocator_options options;
 *     void *block;
 *     hr_allocator_options_init(&options);
 *     options.limit_bytes = 64 << 20;
 *     options.oom.report_allocations_on_oom = true;
 *     hr_device_find("GPU:0", &device);
 *     hr_allocator_create(device, &options, &allocator);
 *     if (hr_alloc_bytes(allocator, 1 << 30, &block) == HR_OUT_OF_MEMORY) {
 *         hr_oom_report report;
 *         char text[16384];
 *         if (hr_oom_get_last(&report) == HR_OK) {
 *             hr_oom_format_text(report, text, sizeof text);
 *             puts(text);
 *         }
 *     }
 *
 * HEADROOM_OOM_REPORT in the environment turns reports on without a change to the program:
 *
 *     HEADROOM_OOM_REPORT=stderr             text on the standard error
 *     HEADROOM_OOM_REPORT=/tmp/oom-%p.json   JSON in a new file for each report. %p is the process id; if the file exists, .1, .2,
 *                                            ... is appended to its name. `headroom oom FILE` prints the report
 *     HEADROOM_OOM_REPORT_FILES=100          most files that a process writes: 1 to 9999; default 16, also for an invalid value.
 *                                            Later reports are made, but not written to a file
 *
 * If a report cannot be written to a file (no such directory, a full disk, too many files), the reason is at the end of the message
 * of the failed request, and hr_oom_get_file returns it.
 *
 * In a rank of a job (docs/fleets.md), the report also has what the other ranks on this host hold, as they published it last
 * (HEADROOM_TOP=1).
 *
 * Making a report allocates no memory, and holds no lock for longer than it takes to visit 4,096 chunks, so it works when
 * everything else has failed. It only reads: a report that fails never hides the original error. */
#ifndef HEADROOM_OOM_H
#define HEADROOM_OOM_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the calling thread's context: its current op and name scope ----
 *
 * A request that does not specify its op or scope gets those of the calling thread. */

/* Enters a name scope. Scopes nest, up to 64 deep (HR_TOO_MANY): "layer_3" inside "encoder" is "encoder/layer_3" in requests.
 * HR_INVALID_ARGUMENT for NULL and "". The first push of a name interns it; later ones take tens of nanoseconds. */
HR_API hr_status hr_name_scope_push(const char *name);

/* Leaves the innermost scope. HR_INVALID_ARGUMENT when the thread is in no scope. */
HR_API hr_status hr_name_scope_pop(void);

/* The path of the thread's scopes; HR_NAME_NONE outside of all scopes. */
HR_API hr_name hr_name_scope_current(void);

/* Sets the thread's current op (HR_NAME_NONE = none) and returns the previous one. */
HR_API hr_name hr_op_set(hr_name op);

/* ---- holders ---- */

typedef enum hr_holder_kind { HR_BY_OP = 0, HR_BY_SCOPE = 1, HR_BY_TAG = 2 } hr_holder_kind;

typedef struct hr_holder {
	hr_name name;   /* HR_NAME_NONE: blocks whose request did not specify it */
	uint32_t count; /* number of blocks */
	int64_t bytes;  /* bytes of those blocks, rounding included */
} hr_holder;

/* Writes the [capacity] largest holders of the allocator's live blocks, largest first; *count receives the number written. Sums
 * up the whole ledger, 4,096 chunks at a time: concurrent changes may or may not be included. */
HR_API HR_CHECK_RESULT hr_status hr_allocator_get_holders(hr_allocator allocator, hr_holder_kind kind, hr_holder *out, size_t capacity, size_t *count);

/* Writes the [capacity] largest live blocks, at most 64, largest first; *count receives the number written. The function sets
 * struct_size of each element. */
HR_API HR_CHECK_RESULT hr_status hr_allocator_get_largest(hr_allocator allocator, hr_allocation_info *out, size_t capacity, size_t *count);

/* ---- options: hr_oom_options, in headroom.h ---- */

/* Replaces the options.oom that the allocator was created with, and restarts the allocation log. HR_INVALID_ARGUMENT: the rate
 * is not a number from 0 to 1, or the size is 0 or above 65,536. HR_NO_HOST_MEMORY. */
HR_API HR_CHECK_RESULT hr_status hr_allocator_set_oom_options(hr_allocator allocator, const hr_oom_options *options);
HR_API HR_CHECK_RESULT hr_status hr_allocator_get_oom_options(hr_allocator allocator, hr_oom_options *options);

/* ---- the verdict ---- */

/* What would make a request fit. The verdict is the first kind that holds, in the order in which hr_alloc tries them: HR_FITS,
 * HR_FITS_AFTER_TRIM, HR_FITS_AFTER_STITCH, HR_FITS_WITH_LMS, HR_FITS_AFTER_DEFRAG; then HR_NEEDS_MORE or HR_NEVER_FITS.
 * Defragmentation that is on comes before stitching and LMS that are off. The numbers are in order of introduction. */
typedef enum hr_verdict_kind {
	HR_FITS = 1,            /* in the present state: there is a free block, or room to grow */
	HR_FITS_AFTER_TRIM,     /* after emptying caches and returning free memory of this device's allocators */
	HR_FITS_AFTER_STITCH,   /* after mapping [pages] free pages side by side */
	HR_FITS_AFTER_DEFRAG,   /* after moving live blocks so that free memory is contiguous. If moving tensors is enough
	                         * (options.defrag, headroom_lms.h), [bytes] is what that moves; otherwise the least that would have
	                         * to move */
	HR_NEEDS_MORE,          /* [bytes] more must be free, in any arrangement */
	HR_NEVER_FITS,          /* the request alone exceeds the limit, by [bytes] */
	HR_FITS_WITH_LMS        /* after evicting at least [bytes] of idle tensors to the host, or dropping them (headroom_lms.h) */
} hr_verdict_kind;
#define HR_VERDICT_KINDS (HR_FITS_WITH_LMS + 1) /* the greatest number + 1 */

/* Which limit a failed request reached. */
typedef enum hr_tier {
	HR_TIER_NONE = 0,       /* none: enough is free, but not contiguous */
	HR_TIER_ALLOCATOR,      /* the allocator's limit: options.limit_bytes */
	HR_TIER_DEVICE,         /* the logical device's limit: hr_device_set_logical */
	HR_TIER_PHYSICAL        /* the memory of the card: other users hold the rest */
} hr_tier;

typedef struct hr_verdict {
	size_t struct_size;
	hr_verdict_kind kind;
	hr_tier tier;     /* which limit is reached */
	uint64_t bytes;   /* see hr_verdict_kind */
	uint64_t pages;
	char text[200];   /* human-readable sentence */
	char advice[300]; /* what to do; names only settings that exist and are off. "" when only freeing memory helps */
	uint64_t step_peak_bytes; /* most bytes that a step of the allocator (hr_step_begin) needed at once, including tensors on the
	                           * host. A step counts once it has ended, if no request was refused in it. Before the first such
	                           * step: the figure of the device's other allocators, including destroyed ones. 0 = not known */
	uint64_t recompute_bytes; /* HR_FITS_WITH_LMS: of [bytes], those that need not go to the host, because recipes compute them again
	                           * (hr_tensor_set_recipe) */
	uint64_t recompute_ns;    /* about how long that takes, by the costs that the recipes state */
} hr_verdict;

/* All fields 0, and struct_size as compiled. */
static inline void hr_verdict_init(hr_verdict *verdict)
{
	memset(verdict, 0, sizeof *verdict);
	verdict->struct_size = sizeof *verdict;
}

/* Computes the verdict on a request without making the request: the verdict that a report on it would have. Set
 * verdict->struct_size first. */
HR_API HR_CHECK_RESULT hr_status hr_allocator_would_fit(hr_allocator allocator, const hr_request *request, hr_verdict *verdict);

/* ---- reports ---- */

/* The report on the calling thread's last request that failed for lack of memory, on an allocator that makes reports. The report
 * stays readable until all threads together have made 16 later ones. HR_NOT_READY when there is none. */
HR_API HR_CHECK_RESULT hr_status hr_oom_get_last(hr_oom_report *out);

/* The report as human-readable text, as JSON (docs/oom-report.schema.json), and its allocation log alone as a JSON array. Each
 * function writes at most [capacity] bytes with the terminating 0 and returns the length of the whole text; a result >= capacity
 * means that the text was truncated. 0 when the report is no longer available (hr_last_message). */
HR_API size_t hr_oom_format_text(hr_oom_report report, char *out, size_t capacity);
HR_API size_t hr_oom_format_json(hr_oom_report report, char *out, size_t capacity);
HR_API size_t hr_oom_format_log(hr_oom_report report, char *out, size_t capacity);

/* What the report says about the job's other ranks on this host (docs/fleets.md), a line for each of their devices, in the same way. 0 also
 * when the process is not a rank, or no other rank publishes its statistics. */
HR_API size_t hr_oom_format_ranks(hr_oom_report report, char *out, size_t capacity);

/* The verdict of a report. HR_INVALID_HANDLE when the report is no longer available. Set verdict->struct_size first. */
HR_API HR_CHECK_RESULT hr_status hr_oom_get_verdict(hr_oom_report report, hr_verdict *verdict);

/* Writes the report as JSON to a new file with mode 0600. HR_IO; HR_INVALID_HANDLE when the report is no longer available. */
HR_API HR_CHECK_RESULT hr_status hr_oom_save(hr_oom_report report, const char *path);

/* The path of the file that HEADROOM_OOM_REPORT made for the report; "the standard error" if it was written there. [path] has room
 * for [capacity] bytes with the terminating 0.
 *
 * HR_NOT_READY         HEADROOM_OOM_REPORT is not set
 * HR_IO                the file could not be written; the message has the path and the system's error
 * HR_TOO_MANY          the process had already written HEADROOM_OOM_REPORT_FILES files
 * HR_TOO_SMALL         the path does not fit in [capacity] bytes; nothing is written. The message has the size that is needed. Also
 *                      with [path] NULL and [capacity] 0
 * HR_INVALID_HANDLE            the report is no longer available
 * HR_INVALID_ARGUMENT  [path] is NULL and [capacity] is not 0 */
HR_API HR_CHECK_RESULT hr_status hr_oom_get_file(hr_oom_report report, char *path, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
