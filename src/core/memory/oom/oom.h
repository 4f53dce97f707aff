/* oom.h - shared by the parts of the OOM report: walking an allocator without stopping it, and the results.
 *
 *     walk.c      chunk records by number, and the chunks of a region by address, 4,096 at a time
 *     holders.c   the holders; the largest blocks; the sizes of blocks
 *     map.c       the memory map
 *     verdict.c   what would make a request fit (verdict.h: verdict_survey.c, verdict_region.c, verdict_text.c)
 *     report.c    making, keeping and reading reports
 *
 * One thread at a time walks (hr__report_lock), so all working memory is static: nothing here allocates. Between two holds of an
 * allocator's locks everything may change: the result is correct for each hold, and adds up exactly if nothing changes in
 * between. */
#ifndef HR_MEMORY_OOM_H
#define HR_MEMORY_OOM_H

#include "core/memory/allocator.h"
#include "core/memory/oom/report.h"

/* Guards the static memory of walk.c, holders.c, map.c and verdict_survey.c, and the cursors of all arenas. Outermost lock of this
 * layer. */
extern hr__lock hr__report_lock;

/* ---- walking (walk.c). With hr__report_lock held, and no other. ---- */

typedef struct hr__walk {
	hr__allocator *allocator;
	uint64_t id;      /* of the allocator */
	bool foreign;     /* not the caller's allocator: it may be closed between two holds, which ends the walk */
	uint32_t longest; /* most chunks visited in one hold */
	uint64_t visited;
} hr__walk;

void hr__walk_begin(hr__walk *walk, hr__allocator *allocator, bool foreign);

/* Calls [visit] for each allocated block, in no order, with the locks held. */
void hr__walk_blocks(hr__walk *walk, void (*visit)(void *context, const hr__chunk *chunk), void *context);

/* A chunk of a region, or the part of it that was not visited yet. */
typedef struct hr__region_piece {
	uint64_t address, bytes;
	enum hr__chunk_state state;
	bool evictable; /* its tensor could be evicted; set only if hr__region_walk.tensors */
} hr__region_piece;

/* A walk along a region in address order. There are two, so that one can follow the other. */
typedef struct hr__region_walk {
	hr__walk *walk;
	hr__shard *shard;
	hr__arena *arena;
	hr__region region; /* as it was at the start */
	uint32_t slot;     /* of the region */
	uint32_t next, count;
	uint64_t at; /* first address that is not in [pieces] */
	bool ended;
	bool tensors; /* find out for each piece whether it [evictable]; false after hr__region_walk_open */
	hr__region_piece pieces[HR__VISIT_MAX];
} hr__region_walk;

/* Starts a walk along region [slot] of the allocator; false if there is none. [which] is 0 or 1. */
bool hr__region_walk_open(hr__walk *walk, unsigned which, uint32_t slot, hr__region_walk **out);
/* The next chunk; false after the last. Acquires and releases locks. */
bool hr__region_walk_next(hr__region_walk *line, hr__region_piece *piece);
void hr__region_walk_close(hr__region_walk *line);

/* ---- results. With hr__report_lock held. ---- */

/* Fills in holders, largest and sizes of [report] (holders.c). */
void hr__holders_report(hr__walk *walk, hr__report *report);
/* The name that holds the most bytes; false if there are no blocks. */
bool hr__holders_top(hr__walk *walk, hr_holder_kind kind, hr_holder *out);

/* In the child after fork, if a thread of the parent held hr__report_lock. */
void hr__holders_forget(void);

/* Fills in regions and runs of [report] (map.c). */
void hr__map_report(hr__walk *walk, bool addresses, hr__report *report);

/* Computes the verdict on a request that hr__request_check accepted (verdict.c). [custom] are the statistics of a custom allocator,
 * NULL if it has none. Its functions are the user's, so hr__verdict_ask_custom calls them before any lock is acquired. [walk]
 * counts the chunks visited. */
bool hr__verdict_ask_custom(hr__allocator *allocator, hr_custom_stats *custom);
void hr__verdict_make(hr__walk *walk, const hr_request *request, const hr_custom_stats *custom, hr_verdict *verdict);
/* Size of a request, rounded as the allocator rounds. */
uint64_t hr__verdict_size(const hr__allocator *allocator, const hr_request *request);

/* ---- reports (report.c) ---- */

/* The report, which does not change until hr__report_close; NULL, with a message, if it no longer exists. */
const hr__report *hr__report_open(uint64_t id);
void hr__report_close(const hr__report *report);

bool hr__reports_are_on(void); /* HEADROOM_OOM_REPORT is set */
uint32_t hr__report_files_max(void); /* HEADROOM_OOM_REPORT_FILES, or the default if that is unset or invalid */
void hr__reports_drop(void);   /* drops all reports, before the memory of their logs is freed */
void hr__reports_forget(void); /* hr__reports_drop in the child after fork */

#endif
