/* verdict_region.h - a region as it is, or as it would be after trimming or eviction. Private to verdict*.c; under hr__report_lock.
 * The top of verdict.c defines the terms. */
#ifndef HR_MEMORY_VERDICT_REGION_H
#define HR_MEMORY_VERDICT_REGION_H

#include "core/memory/oom/oom.h"

enum hr__segment_kind { HR__SEGMENT_FREE, HR__SEGMENT_LIVE, HR__SEGMENT_HOLE, HR__SEGMENT_EVICTABLE };

enum hr__verdict_stage {
	HR__STAGE_NOW,     /* as it is */
	HR__STAGE_TRIMMED, /* cached chunks are free, and memory that can be released is released */
	HR__STAGE_EVICTABLE,   /* trimmed, with evictable blocks distinguished from live blocks */
	HR__STAGE_EVICTED     /* trimmed, with all evictable blocks free */
};

typedef struct hr__region_segment {
	uint64_t address, bytes;
	enum hr__segment_kind kind;
} hr__region_segment;

typedef struct hr__verdict_region {
	hr__region_walk *walk;
	enum hr__verdict_stage stage;
	bool releases; /* whole pages, or the whole region, are released */
	uint64_t page, given_back;
	hr__region_segment queue[3]; /* the parts of one free range */
	unsigned queued, taken;
	hr__region_segment ahead; /* segment read ahead */
	bool has_ahead;
	hr__region_piece piece; /* piece read ahead */
	bool has_piece;
} hr__verdict_region;

/* Starts along region [slot] of the walk's allocator; false if there is no such region. [self] is the allocator of the verdict; the
 * walk's allocator is [self] or another one of its device. [which] as in hr__region_walk_open. The caller closes state->walk. */
bool hr__verdict_region_open(hr__verdict_region *state, const hr__allocator *self, hr__walk *walk, unsigned which, uint32_t slot,
                   enum hr__verdict_stage stage);
/* The next segment in address order; false after the last. Adjacent free segments are merged, and so are holes. After false,
 * state->given_back is what the region releases. */
bool hr__verdict_region_next(hr__verdict_region *state, hr__region_segment *out);

/* Number of whole pages between two addresses; *begin (if the device has pages) is the address of the first. */
uint64_t hr__verdict_whole_pages(uint64_t from, uint64_t to, uint64_t page, uint64_t *begin);

#endif
