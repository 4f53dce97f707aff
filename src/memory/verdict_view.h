/* verdict_view.h - a region as it is, or as it would be when trimmed or when tensors have left: what a verdict looks at. Private to
 * verdict*.c; under hr__report_lock. The words are those at the top of verdict.c. */
#ifndef HR_MEMORY_VERDICT_VIEW_H
#define HR_MEMORY_VERDICT_VIEW_H

#include "memory/oom.h"

enum hr__seen { HR__SEEN_FREE, HR__SEEN_LIVE, HR__SEEN_HOLE, HR__SEEN_LEAVER };

enum hr__stage {
	HR__STAGE_NOW,     /* as it is */
	HR__STAGE_TRIMMED, /* what is cached is free, and what can be given back is */
	HR__STAGE_APART,   /* that, with leavers told from what is live */
	HR__STAGE_GONE     /* trimmed when leavers are free */
};

typedef struct hr__segment {
	uint64_t address, bytes;
	enum hr__seen kind;
} hr__segment;

typedef struct hr__view {
	hr__line *line;
	enum hr__stage stage;
	bool releases; /* whole pages, or the whole region, are given back */
	uint64_t page, given_back;
	hr__segment queue[3]; /* what one free stretch became; */
	unsigned queued, taken;
	hr__segment ahead; /* read too far */
	bool has_ahead;
	hr__piece piece; /* likewise */
	bool has_piece;
} hr__view;

/* Begins along region [slot] of the walk's allocator, which is [self], the one that is asked, or another of its device; false when there is
 * no such region. [which] as in hr__line_open. The caller closes view->line. */
bool hr__view_open(hr__view *view, const hr__allocator *self, hr__walk *walk, unsigned which, uint32_t slot, enum hr__stage stage);
/* The next segment, lowest address first; false behind the last. Neighbours that are free are one, and so are holes. Once it is false,
 * view->given_back is what the region gives back. */
bool hr__view_next(hr__view *view, hr__segment *out);

/* Whole pages between two addresses; *begin (where there are pages at all) is that of the first. */
uint64_t hr__whole_pages(uint64_t from, uint64_t to, uint64_t page, uint64_t *begin);

#endif
