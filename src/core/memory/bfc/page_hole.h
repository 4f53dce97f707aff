/* page_hole.h - the number of pages needed to place a block in a hole. Growing (pages.c) and predicting growth (verdict_survey.c) share
 * this rule.
 *
 *     | in use | free     | hole ..................... | free    | in use |
 *              left       begin                        end       right
 *
 * A block may begin in the free memory before the hole and end in the free memory after it. It begins as far to the left as
 * possible. */
#ifndef HR_MEMORY_PAGE_HOLE_H
#define HR_MEMORY_PAGE_HOLE_H

#include "core/base/checked.h"

typedef struct hr__page_hole {
	uint64_t begin, end;  /* of the hole: multiples of the page size */
	uint64_t left, right; /* begin of the free memory before it, end of that after it; equal to begin and end where there is none */
} hr__page_hole;

typedef struct hr__page_hole_fit {
	uint64_t address; /* of the first page to map */
	uint32_t pages;
	bool uses_left, uses_right;
} hr__page_hole_fit;

/* False if the block does not fit however many pages are mapped, or needs none. [alignment]: 0 or any power of two. */
static inline bool hr__page_hole_fits(const hr__page_hole *gap, uint64_t page, uint64_t granularity, uint64_t size,
                                      uint64_t alignment, hr__page_hole_fit *out)
{
	uint64_t start = gap->left, stop, map_end;
	if (alignment > granularity && !hr__align_up(start, alignment, &start)) return false;
	if (!hr__add(start, size, &stop) || stop > gap->right) return false;
	uint64_t map_begin = start > gap->begin ? hr__align_down(start, page) : gap->begin;
	if (stop > gap->end) map_end = gap->end;
	else if (!hr__align_up(stop, page, &map_end)) return false;
	if (map_begin >= map_end || (map_end - map_begin) / page > UINT32_MAX) return false;
	*out = (hr__page_hole_fit){ .address = map_begin,
		                        .pages = (uint32_t)((map_end - map_begin) / page),
		                        .uses_left = start<gap->begin, .uses_right = stop> gap->end };
	return true;
}

#endif
