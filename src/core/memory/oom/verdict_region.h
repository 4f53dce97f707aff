/* verdict_region.h - a region as it is, or as it would be after trimming or eviction. Private to verdict*.c; under hr__report_lock.
 * The top of verdict.c defines the terms. */
#ifndef HR_MEMORY_VERDICT_REGION_H
#define HR_MEMORY_VERDICT_REGION_H

#include "core/memory/oom/oom.h"

enum hr__seen { HR__SEEN_FREE, HR__SEEN_LIVE, HR__SEEN_HOLE, HR__SEEN_LEAVER };

enum hr__verdict_stage {
	HR__STAGE_NOW,     /* as it is */
	HR__STAGE_TRIMMED, /* cached chunks are free, and memory that can be released is released */
	HR__STAGE_APART,   /* trimmed, with leavers distinguished from live blocks */
	HR__STAGE_GONE     /* trimmed, with all leavers free */
};

typedef struct hr__region_segment {
	uint64_t address, bytes;
	enum hr__seen kind;
} hr__region_segment;

typedef struct hr__view {
	hr__line *line;
	enum hr__verdict_stage stage;
	bool releases; /* whole pages, or the whole region, are released */
	uint64_t page, given_back;
	hr__region_segment queue[3]; /* the parts of one free range */
	unsigned queued, taken;
	hr__region_segment ahead; /* segment read ahead */
	bool has_ahead;
	hr__piece piece; /* piece read ahead */
	bool has_piece;
} hr__view;

/* Starts along region [slot] of the walk's allocator; false if there is no such region. [self] is the allocator of the verdict; the
 * walk's allocator is [self] or another one of its device. [which] as in hr__line_open. The caller closes view->line. */
bool hr__view_open(hr__view *view, const hr__allocator *self, hr__walk *walk, unsigned which, uint32_t slot,
                   enum hr__verdict_stage stage);
/* The next segment in address order; false after the last. Adjacent free segments are merged, and so are holes. After false,
 * view->given_back is what the region releases. */
bool hr__view_next(hr__view *view, hr__region_segment *out);

/* Number of whole pages between two addresses; *begin (if the device has pages) is the address of the first. */
uint64_t hr__whole_pages(uint64_t from, uint64_t to, uint64_t page, uint64_t *begin);

#endif
