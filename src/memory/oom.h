/* oom.h - what the parts of the out-of-memory report share: looking at an allocator without stopping it, and what comes of it.
 *
 *     walk.c      chunk records by number, and the chunks of a region by address, 4,096 at a time
 *     holders.c   who holds what; the largest blocks; how large blocks are
 *     map.c       what lies where
 *     verdict.c   what would make a request fit (verdict.h: verdict_survey.c, verdict_view.c, verdict_text.c)
 *     report.c    a report, from being made to being read
 *
 * One thread at a time looks (hr__report_lock), so that what is needed for it can be static: none of this allocates. Between two
 * holds of an allocator's locks everything may change: what is seen is true of each hold, and adds up exactly when nothing changes. */
#ifndef HR_MEMORY_OOM_H
#define HR_MEMORY_OOM_H

#include "memory/allocator.h"
#include "memory/report.h"

/* Guards the static memory of walk.c, holders.c, map.c and verdict_survey.c, and the cursors of all arenas. Outermost of all locks. */
extern hr__lock hr__report_lock;

/* ---- walking (walk.c). With hr__report_lock held, and no other. ---- */

typedef struct hr__walk {
	hr__allocator *allocator;
	uint64_t id;      /* of the allocator */
	bool foreign;     /* it is not the caller's, so it may be closed between two holds: then there is nothing more to see */
	uint32_t longest; /* most chunks looked at in one hold */
	uint64_t visited;
} hr__walk;

void hr__walk_begin(hr__walk *walk, hr__allocator *allocator, bool foreign);

/* Calls [visit] for each block that is allocated, in no order; the locks are held meanwhile. */
void hr__walk_blocks(hr__walk *walk, void (*visit)(void *context, const hr__chunk *chunk), void *context);

/* A chunk of a region, or the part of it that was not seen yet. */
typedef struct hr__piece {
	uint64_t address, bytes;
	enum hr__chunk_state state;
	bool leaves; /* a tensor could leave from there; told only when asked for */
} hr__piece;

/* A walk along a region, lowest address first. There are two, so that one can follow the other. */
typedef struct hr__line {
	hr__walk *walk;
	hr__shard *shard;
	hr__arena *arena;
	hr__region region; /* as it was at the start */
	uint32_t slot;     /* of the region */
	uint32_t next, count;
	uint64_t at; /* first address that is not in pieces */
	bool ended;
	bool tensors; /* asks of each piece whether it leaves; false when it is opened */
	hr__piece pieces[HR__VISIT_MAX];
} hr__line;

/* Begins along region [slot] of the allocator; false when there is none. [which] is 0 or 1. */
bool hr__line_open(hr__walk *walk, unsigned which, uint32_t slot, hr__line **out);
/* The next chunk; false behind the last. Takes and releases locks. */
bool hr__line_next(hr__line *line, hr__piece *piece);
void hr__line_close(hr__line *line);

/* ---- what is found. With hr__report_lock held. ---- */

/* Fills in holders, largest and sizes of [report] (holders.c). */
void hr__holders_report(hr__walk *walk, hr__report *report);
/* The name that holds most; false when nobody holds anything. */
bool hr__holders_top(hr__walk *walk, hr_holder_kind kind, hr_holder *out);

/* In the child of a fork, when a thread of the parent was inside. */
void hr__holders_forget(void);

/* Fills in regions and runs of [report] (map.c). */
void hr__map_report(hr__walk *walk, bool addresses, hr__report *report);

/* Judges a request that hr__request_check found good (verdict.c). [custom] is what the allocator's own functions say of themselves, NULL
 * when they say nothing: they are the user's, so they are asked before any lock is taken. [walk] gets what was looked at. */
bool hr__verdict_ask_custom(hr__allocator *allocator, hr_custom_stats *custom);
void hr__verdict_make(hr__walk *walk, const hr_request *request, const hr_custom_stats *custom, hr_verdict *verdict);
/* What a request takes, rounded as the allocator rounds. */
uint64_t hr__verdict_size(const hr__allocator *allocator, const hr_request *request);

/* ---- reports (report.c) ---- */

/* The report, which does not change until it is closed again; NULL, with a message, when it is no longer there. */
const hr__report *hr__report_open(uint64_t id);
void hr__report_close(const hr__report *report);

bool hr__reports_wanted(void); /* HEADROOM_OOM_REPORT is in the environment */
uint32_t hr__report_files_wanted(void); /* HEADROOM_OOM_REPORT_FILES, or the default where that cannot be followed */
void hr__reports_drop(void);   /* forgets all reports: before the memory of their logs goes */
void hr__reports_forget(void); /* the same in the child of a fork */

#endif
