/* defrag.h - what the ways of defragmentation share: the picture that they are planned on. For defrag.c and defrag_pages.c alone. */
#ifndef HR_LMS_DEFRAG_H
#define HR_LMS_DEFRAG_H

#include "core/lms/lms.h"

#define HR__DEFRAG_WORK_MAX (UINT64_C(1) << 26) /* steps of looking for places; then what was found so far counts */
#define HR__DEFRAG_SHEETS_MAX (UINT64_C(1) << 20)

typedef struct window {
	uint32_t first, end; /* stretches */
	bool packs;
	uint64_t cost;
} window;

/* What is sorted: by key, then by index. */
typedef struct entry {
	uint64_t key;
	uint32_t index;
} entry;

/* A free place that tensors may move to. */
typedef struct spare {
	uint64_t address, bytes;
	uint32_t row; /* defrag_pages.c */
} spare;

typedef struct mover {
	hr__tensor *tensor;
	uint64_t to; /* 0 = down */
} mover;

/* A page all of whose addresses are free, or tensors that may be moved. */
typedef struct sheet {
	uint64_t cost;       /* bytes of all tensors that lie on it, in part at least */
	uint32_t first, end; /* stretches that do */
	uint32_t left;       /* how many of them are tensors that have no other place yet */
	uint32_t used;       /* tensors that are to move there */
} sheet;

/* The pages of a row of stretches. */
typedef struct row_pages {
	uint64_t page; /* address of the first; */
	uint32_t first, count; /* sheets */
} row_pages;

typedef struct desk {
	hr__lms *lms;
	uint64_t size, alignment; /* of the request; alignment 0 = any */
	uint64_t work;
	hr__stretch *stretches;
	size_t count, item_count;
	window *windows;
	entry *entries; /* of windows */
	size_t window_count;
	spare *spares;
	entry *by_size;        /* items of a window; by item, whether it has a place */
	mover *movers, *trial; /* of the best way so far; of one that is being tried */
	size_t mover_count, trial_count;
	sheet *sheets;
	entry *sheet_order;
	size_t sheet_count, sheet_capacity; /* capacity 0: pages are not put side by side */
	row_pages *rows;
	uint32_t *row_of; /* by stretch */
	void *block;
	size_t block_bytes;
} desk;

static inline bool hr__is_item(const hr__stretch *stretch)
{
	return stretch->item < HR__STRETCH_GROWS;
}

void hr__defrag_sort(entry *entries, size_t count);
/* What is being tried is the best way so far. */
void hr__defrag_choose(desk *d);
/* Tries to make whole pages. What that costs, and d->movers is how; UINT64_MAX when it cannot be. */
uint64_t hr__defrag_pages(desk *d);

#endif
