/* defrag.h - shared by defrag.c and defrag_pages.c alone: the map of the allocator on which moves are planned. */
#ifndef HR_LMS_DEFRAG_H
#define HR_LMS_DEFRAG_H

#include "core/lms/lms.h"

#define HR__DEFRAG_WORK_MAX (UINT64_C(1) << 26) /* search steps; then the best solution so far counts */
#define HR__DEFRAG_PAGES_MAX (UINT64_C(1) << 20)

typedef struct hr__defrag_window {
	uint32_t first, end; /* stretches */
	bool is_packed;
	uint64_t cost;
} hr__defrag_window;

/* For sorting: by key, then by index. */
typedef struct hr__defrag_entry {
	uint64_t key;
	uint32_t index;
} hr__defrag_entry;

/* A free range that tensors may move to. */
typedef struct hr__defrag_spare {
	uint64_t address, bytes;
	uint32_t row; /* defrag_pages.c */
} hr__defrag_spare;

typedef struct hr__defrag_mover {
	hr__tensor *tensor;
	uint64_t to; /* 0 = to the start of the free memory before it */
} hr__defrag_mover;

/* A page on which everything is free, or a tensor that may be moved. */
typedef struct hr__defrag_page {
	uint64_t cost;       /* bytes of all tensors that lie on it, at least in part */
	uint32_t first, end; /* stretches that lie on it */
	uint32_t left;       /* number of tensors on it without a new place yet */
	uint32_t used;       /* number of tensors that are to move to it */
} hr__defrag_page;

/* The pages of a row of adjacent stretches. */
typedef struct hr__defrag_row {
	uint64_t page;         /* address of the first */
	uint32_t first, count; /* pages */
} hr__defrag_row;

typedef struct hr__defrag_search {
	hr__lms *lms;
	uint64_t size, alignment; /* of the request; alignment 0 = any */
	uint64_t work;
	hr__stretch *stretches;
	size_t count, item_count;
	hr__defrag_window *windows;
	hr__defrag_entry *entries; /* of windows */
	size_t window_count;
	hr__defrag_spare *spares;
	hr__defrag_entry *by_size;        /* items of a window; in defrag_pages.c, by item, whether it has a place */
	hr__defrag_mover *movers, *trial; /* the best solution so far; the one being tried */
	size_t mover_count, trial_count;
	hr__defrag_page *pages;
	hr__defrag_entry *page_order;
	size_t page_count, page_capacity; /* capacity 0: pages are not stitched */
	hr__defrag_row *rows;
	uint32_t *row_of; /* by stretch */
	void *block;
	size_t block_bytes;
} hr__defrag_search;

static inline bool hr__defrag_is_item(const hr__stretch *stretch)
{
	return stretch->item < HR__STRETCH_GROWS;
}

void hr__defrag_sort(hr__defrag_entry *entries, size_t count);
/* Makes the solution being tried the best so far. */
void hr__defrag_choose(hr__defrag_search *d);
/* Plans to free whole pages. Returns the cost, with the moves in d->movers; UINT64_MAX if it is impossible. */
uint64_t hr__defrag_pages(hr__defrag_search *d);

#endif
