/* headroom_oom.h - when memory runs out: who holds it, what was allocated last, and what would have made the request fit.
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
 *         if (hr_oom_last(&report) == HR_OK) {
 *             hr_oom_text(report, text, sizeof text);
 *             puts(text);
 *         }
 *     }
 *
 * A program that nobody wants to change gets the same by HEADROOM_OOM_REPORT in its environment:
 *
 *     HEADROOM_OOM_REPORT=stderr             as text on the standard error
 *     HEADROOM_OOM_REPORT=/tmp/oom-%p.json   as JSON in a new file for each event, %p being the number of the process; a name that is
 *                                            taken gets .1, .2, ... ; `headroom oom FILE` draws it
 *     HEADROOM_OOM_REPORT_FILES=100          the most files that a process writes: 1 to 9999; default 16, also for a text that is no
 *                                            such number. Reports after that are made, but in no file
 *
 * Why a report is in no file (no such directory, a full disk, too many files) is at the end of the message of the error that it is about,
 * and what hr_oom_get_file says.
 *
 * Making a report needs no memory and holds no lock for longer than it takes to look at 4,096 chunks, so it works when everything else
 * has failed. It only reads: a failing report never hides the error that it is about. */
#ifndef HEADROOM_OOM_H
#define HEADROOM_OOM_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- who is allocating: the calling thread's context ----
 *
 * A request that does not say its op or scope is the thread's current op's, in the thread's current scope. */

/* Enters a name scope: "encoder", then "layer_3" inside it, is "encoder/layer_3" to requests. Up to 64 deep (HR_TOO_MANY).
 * HR_INVALID_ARGUMENT for NULL and "". Pushing a name for the first time interns it; afterwards it takes tens of nanoseconds. */
HR_API hr_status hr_name_scope_push(const char *name);

/* Leaves the innermost scope. HR_INVALID_ARGUMENT when there is none. */
HR_API hr_status hr_name_scope_pop(void);

/* The path of the thread's scopes; HR_NAME_NONE outside of all. */
HR_API hr_name hr_name_scope_current(void);

/* Sets the thread's current op, HR_NAME_NONE for none, and returns the one before. */
HR_API hr_name hr_op_set(hr_name op);

/* ---- who holds what ---- */

typedef enum hr_holder_kind { HR_BY_OP = 0, HR_BY_SCOPE = 1, HR_BY_TAG = 2 } hr_holder_kind;

typedef struct hr_holder {
	hr_name name;   /* HR_NAME_NONE: blocks whose request did not say */
	uint32_t count; /* blocks */
	int64_t bytes;  /* of those blocks, rounding included */
} hr_holder;

/* The [capacity] largest holders of the allocator's live blocks, largest first; *count gets how many were written. Adds up the whole
 * ledger, 4,096 chunks at a time: what changes meanwhile may be seen or not. */
HR_API hr_status hr_allocator_get_holders(hr_allocator allocator, hr_holder_kind kind, hr_holder *out, size_t capacity, size_t *count);

/* The [capacity] largest live blocks, at most 64, largest first. Each element's struct_size is set by the function. */
HR_API hr_status hr_allocator_get_largest(hr_allocator allocator, hr_allocation_info *out, size_t capacity, size_t *count);

/* ---- switches: hr_oom_options, in headroom.h ---- */

/* Changes what options.oom said when the allocator was made; the log starts anew.
 * HR_INVALID_ARGUMENT: rate outside 0 to 1 or not a number, size 0 or above 65,536. HR_NO_HOST_MEMORY. Nothing changes then. */
HR_API hr_status hr_allocator_set_oom_options(hr_allocator allocator, const hr_oom_options *options);
HR_API hr_status hr_allocator_get_oom_options(hr_allocator allocator, hr_oom_options *options);

/* ---- the verdict ---- */

/* What would make a request fit; the first that holds, in the order in which hr_alloc tries them: as it is, trimmed, stitched, with LMS,
 * defragmented; then what is missing. Defragmentation that is on comes before stitching and LMS that are off. The numbers are not in that order: what came later has a greater one. */
typedef enum hr_verdict_kind {
	HR_FITS = 1,            /* as things are: a free block, or room to grow */
	HR_FITS_AFTER_TRIM,     /* when caches are emptied and free memory of this device's allocators is given back */
	HR_FITS_AFTER_STITCH,   /* when [pages] free pages are mapped side by side */
	HR_FITS_AFTER_DEFRAG,   /* when live blocks move so that free memory is in one piece. Where that can be done by moving tensors (options.defrag,
	                         * headroom_lms.h), [bytes] is what is moved then; otherwise the least that would have to be */
	HR_NEEDS_MORE,          /* [bytes] more have to be free, however they are arranged */
	HR_NEVER_FITS,          /* the request alone exceeds the limit, by [bytes] */
	HR_FITS_WITH_LMS        /* when idle tensors move to the host, at least [bytes] of them (headroom_lms.h). Before
	                         * HR_FITS_AFTER_DEFRAG in the order */
} hr_verdict_kind;
#define HR_VERDICT_KINDS (HR_FITS_WITH_LMS + 1) /* one more than the greatest number */

/* What is full when a request fails. */
typedef enum hr_tier {
	HR_TIER_NONE = 0,       /* nothing: enough is free, but not in one piece */
	HR_TIER_ALLOCATOR,      /* the allocator's limit: options.limit_bytes */
	HR_TIER_DEVICE,         /* the logical device's limit: hr_set_logical_devices */
	HR_TIER_PHYSICAL        /* the card itself: others hold the rest */
} hr_tier;

typedef struct hr_verdict {
	size_t struct_size;
	hr_verdict_kind kind;
	hr_tier tier;     /* what is full */
	uint64_t bytes;   /* see the kinds */
	uint64_t pages;
	char text[200];   /* a sentence for people */
	char advice[300]; /* what to do; names only settings that exist and are off. "" when nothing helps but freeing */
	uint64_t step_peak_bytes; /* most bytes that a step of the allocator needed at once, tensors on the host included (hr_step_begin). A step counts
	                           * once it has ended, if no request was refused in it. Before the first one: of the device's other allocators,
	                           * closed ones too. 0 = not known */
} hr_verdict;

/* Judges a request without making it: the same verdict that a report on it would have. */
HR_API hr_status hr_allocator_would_fit(hr_allocator allocator, const hr_request *request, hr_verdict *verdict);

/* ---- reports ---- */

/* The report on the calling thread's last request that failed for lack of memory, of an allocator that makes reports. It stays readable
 * until 16 later ones have been made by any thread. HR_NOT_READY when there is none. */
HR_API hr_status hr_oom_last(hr_oom_report *out);

/* The report as text for people, as JSON (docs/oom-report.schema.json), and only its log, as a JSON array. Each writes at most
 * [capacity] bytes with a final 0 and returns the length of the whole; a result >= capacity means it was cut. 0 when the report is no
 * longer there: hr_last_message() says so. */
HR_API size_t hr_oom_text(hr_oom_report report, char *out, size_t capacity);
HR_API size_t hr_oom_json(hr_oom_report report, char *out, size_t capacity);
HR_API size_t hr_oom_allocation_log(hr_oom_report report, char *out, size_t capacity);

/* Its verdict. HR_CLOSED when the report is no longer there. Set verdict->struct_size first. */
HR_API hr_status hr_oom_get_verdict(hr_oom_report report, hr_verdict *verdict);

/* Writes it to a new file, mode 0600, as JSON. HR_IO; HR_CLOSED when the report is no longer there. */
HR_API hr_status hr_oom_save(hr_oom_report report, const char *path);

/* The file that HEADROOM_OOM_REPORT made for the report ("the standard error" where it went there); [path] has room for [capacity] bytes with
 * the final 0.
 * HR_NOT_READY         HEADROOM_OOM_REPORT is not set
 * HR_IO                it could not be written; the message has the path and the system's error
 * HR_TOO_MANY          the process had written as many files as HEADROOM_OOM_REPORT_FILES allows
 * HR_TOO_SMALL         the path is longer than [capacity]; nothing is written
 * HR_CLOSED            the report is no longer there
 * HR_INVALID_ARGUMENT  path is NULL */
HR_API hr_status hr_oom_get_file(hr_oom_report report, char *path, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
