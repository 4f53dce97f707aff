/* report.h - a report on a request that failed, as it is kept: everything in it is a copy, so that it can be read when the allocator has
 * changed or is gone. Made by report.c (verdict.c, holders.c), written out by report_text.c and report_json.c.
 *
 * Reports live in 16 slots of static memory, so that making one needs no memory. The log's entries do not fit there: they are in a
 * block that grows when an allocator's log is switched on (log.c). */
#ifndef HR_MEMORY_REPORT_H
#define HR_MEMORY_REPORT_H

#include "headroom.h"
#include "memory/log.h"

#define HR__REPORT_TOP 16u       /* holders of each kind, and largest blocks */
#define HR__REPORT_RUNS 2048u    /* runs of all region maps together */
#define HR__REPORT_REGIONS 64u   /* regions told of one by one */
#define HR__REPORT_SIZES 49u     /* size classes: class i holds live blocks of 2^i bytes up to twice that */
#define HR__REPORT_PATH_BYTES 4104u /* of a file that a report is written to, with a suffix */
#define HR__VISIT_MAX 4096u      /* chunks looked at per hold of a lock */

/* A stretch of a region with one kind of content. Neighbouring chunks of a kind are one run. Where a region has more runs than there is
 * room for, short ones are joined to mixed ones. */
typedef enum hr__run_kind {
	HR__RUN_FREE = HR_CHUNK_FREE,
	HR__RUN_IN_USE = HR_CHUNK_IN_USE,
	HR__RUN_CACHED = HR_CHUNK_CACHED,
	HR__RUN_UNMAPPED = HR_CHUNK_UNMAPPED,
	HR__RUN_MIXED = 5
} hr__run_kind;

typedef struct hr__run {
	uint64_t bytes;
	uint64_t in_use; /* of those; all of them in HR__RUN_IN_USE */
	uint32_t chunks;
	uint8_t kind; /* hr__run_kind */
} hr__run;

typedef struct hr__report_region {
	uint64_t address; /* 0 when addresses are not to be told */
	uint64_t addresses, reserved, in_use, cached, free, largest_free; /* bytes */
	bool small_blocks;
	uint32_t first_run, run_count; /* in runs[]; what is unmapped behind the last mapped byte is left out */
} hr__report_region;

typedef struct hr__report_block {
	uint64_t bytes, requested;
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
} hr__report_block;

typedef struct hr__report_holders {
	hr_holder top[HR__REPORT_TOP]; /* largest first */
	uint32_t count;                /* of top */
	uint32_t names;                /* that hold anything */
	int64_t rest_bytes;            /* held by those beyond top */
	int64_t rest_blocks;
} hr__report_holders;

typedef struct hr__report {
	uint64_t id;         /* of the report; 0 = the slot is empty or being written */
	uint64_t sequence;   /* events before this one in the process, plus 1 */
	uint64_t time_ns;    /* since 1970 */
	uint32_t process;
	uint32_t thread;     /* number of the log's thread; 0 = it has none */

	/* the request */
	uint64_t bytes, size, alignment; /* asked for; rounded up; 0 = any */
	uint32_t stream;
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;

	/* where */
	char allocator[32], kind[32], device[32], backend[16], card[96];
	uint64_t total_bytes, free_bytes, other_bytes, device_limit, device_reserved, page_bytes; /* of the device */
	bool stitch, thread_cache, allow_growth; /* the allocator's options */
	uint64_t limit;
	hr_oom_options options;

	hr_verdict verdict;
	hr_stats stats;

	hr__report_holders holders[3]; /* by hr_holder_kind */
	hr__report_block largest[HR__REPORT_TOP];
	uint32_t largest_count;
	int64_t size_bytes[HR__REPORT_SIZES], size_blocks[HR__REPORT_SIZES];

	hr__report_region regions[HR__REPORT_REGIONS];
	uint32_t region_count, regions_left_out;
	hr__run runs[HR__REPORT_RUNS];
	uint32_t run_count;

	uint32_t longest_hold;  /* most chunks looked at in one hold of a lock */
	uint64_t chunks_visited;

	uint32_t log_count;
	const hr__log_entry *log; /* oldest first; the failing request is not among them */
	uint64_t log_total;       /* operations logged since the log was switched on */

	hr_status file_status;            /* of writing it where HEADROOM_OOM_REPORT says; HR_NOT_READY = it says nothing */
	int file_error;                   /* errno value of HR_IO */
	char file[HR__REPORT_PATH_BYTES]; /* where to, or "stderr" */
} hr__report;

/* ---- writing it out. [report] does not change meanwhile. ---- */

/* Takes [length] bytes; false when it could not. */
typedef bool (*hr__report_sink)(void *context, const char *bytes, size_t length);

bool hr__report_text(const hr__report *report, hr__report_sink sink, void *context);
bool hr__report_json(const hr__report *report, hr__report_sink sink, void *context);
/* The log alone as a JSON array: its entries, and the failing request last. */
bool hr__report_log_json(const hr__report *report, hr__report_sink sink, void *context);

/* ---- making it ---- */

/* The rest of the process's reports: see report.c. Called when hr_alloc fails with HR_OUT_OF_MEMORY, with no lock held; the thread's
 * message stays as it is. */
struct hr__allocator;
void hr__report_make(struct hr__allocator *allocator, const hr_request *request);

#endif
