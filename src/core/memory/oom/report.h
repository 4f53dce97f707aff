/* report.h - a stored OOM report. All of it is a copy, so it can be read after the allocator has changed or was closed. Made by
 * report.c (verdict.c, holders.c), written by report_text.c and report_json.c.
 *
 * Reports are in 16 slots of static memory, so that making one needs no allocation. The log entries do not fit there: they are in a
 * block that grows when an allocator's log is switched on (log.c). */
#ifndef HR_MEMORY_REPORT_H
#define HR_MEMORY_REPORT_H

#include "headroom.h"
#include "core/memory/log.h"
#include "core/os/rank.h"

#define HR__REPORT_TOP 16u       /* holders of each kind, and largest blocks */
#define HR__REPORT_RUNS 2048u    /* runs of all regions together */
#define HR__REPORT_REGIONS 64u   /* regions reported individually */
#define HR__REPORT_SIZES 49u     /* size classes: class i counts blocks of at least 2^i bytes and less than twice that */
#define HR__REPORT_PEERS 32u     /* devices of other ranks */
#define HR__REPORT_PATH_BYTES 4104u /* path of a report's file, with a suffix */
#define HR__VISIT_MAX 4096u      /* chunks visited per hold of a lock */

/* A part of a region with one kind of content. Adjacent chunks of one kind form a run. Where a region has more runs than there is
 * room for, short runs are joined into mixed ones. */
typedef enum hr__run_kind {
	HR__RUN_FREE = HR_CHUNK_FREE,
	HR__RUN_IN_USE = HR_CHUNK_IN_USE,
	HR__RUN_CACHED = HR_CHUNK_CACHED,
	HR__RUN_UNMAPPED = HR_CHUNK_UNMAPPED,
	HR__RUN_MIXED = 5
} hr__run_kind;

typedef struct hr__run {
	uint64_t bytes;
	uint64_t in_use; /* part of [bytes]; equal in HR__RUN_IN_USE */
	uint32_t chunks;
	uint8_t kind; /* hr__run_kind */
} hr__run;

typedef struct hr__report_region {
	uint64_t address; /* 0 when addresses are withheld */
	uint64_t addresses, reserved, in_use, cached, free, largest_free; /* bytes */
	bool small_blocks;
	uint32_t first_run, run_count; /* in runs[]; unmapped addresses after the last mapped byte are left out */
} hr__report_region;

typedef struct hr__report_block {
	uint64_t bytes, requested;
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
} hr__report_block;

typedef struct hr__report_holders {
	hr_holder top[HR__REPORT_TOP]; /* largest first */
	uint32_t count;                /* entries of top */
	uint32_t names;                /* number of names that hold blocks */
	int64_t rest_bytes;            /* of names that are not in top */
	int64_t rest_blocks;
} hr__report_holders;

/* A device of another rank, as that rank published it. */
typedef struct hr__report_peer {
	uint32_t rank, process;
	char device[32];              /* "": the rank has used none yet */
	uint64_t in_use, peak, limit; /* bytes; limit 0: none */
	uint64_t age_ns;              /* before the report */
} hr__report_peer;

typedef struct hr__report_ranks {
	hr__rank self;                           /* count 0: the process is not a rank, and the other fields are 0 */
	hr__report_peer peers[HR__REPORT_PEERS]; /* those with most bytes in use; by rank, then largest first */
	uint32_t count, left_out;                /* in peers; others */
	uint32_t ranks;                          /* other ranks that publish on this host */
} hr__report_ranks;

typedef struct hr__report {
	uint64_t id;         /* of the report; 0 = the slot is empty or being written */
	uint64_t sequence;   /* number of the report in the process, from 1 */
	uint64_t time_ns;    /* since 1970 */
	uint32_t process;
	uint32_t thread;     /* the thread's number in the log; 0 = none */

	/* the request */
	uint64_t bytes, size, alignment; /* requested; rounded up; alignment 0 = any */
	uint32_t stream;
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;

	/* allocator and device */
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

	hr__report_ranks ranks; /* of the job */

	uint32_t longest_hold;  /* most chunks visited in one hold of a lock */
	uint64_t chunks_visited;

	uint32_t log_count;
	const hr__log_entry *log; /* oldest first; without the failed request */
	uint64_t log_total;       /* operations logged since the log was switched on */

	hr_status file_status;            /* of writing it as HEADROOM_OOM_REPORT says; HR_NOT_READY = that is not set */
	int file_error;                   /* errno value for HR_IO */
	char file[HR__REPORT_PATH_BYTES]; /* path, or "the standard error" */
} hr__report;

/* ---- writing. [report] must not change meanwhile. ---- */

/* Writes [length] bytes; false on failure. */
typedef bool (*hr__report_sink)(void *context, const char *bytes, size_t length);

bool hr__report_text(const hr__report *report, hr__report_sink sink, void *context);
bool hr__report_json(const hr__report *report, hr__report_sink sink, void *context);
/* The lines about other ranks alone. */
bool hr__report_ranks_text(const hr__report *report, hr__report_sink sink, void *context);
/* The log alone as a JSON array: its entries, then the failed request. */
bool hr__report_log_json(const hr__report *report, hr__report_sink sink, void *context);

/* ---- making ---- */

/* Makes a report (report.c). Called when a request fails with HR_OUT_OF_MEMORY, without locks. Keeps the thread's message. */
struct hr__allocator;
void hr__report_make(struct hr__allocator *allocator, const hr_request *request);

#endif
