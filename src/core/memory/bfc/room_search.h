/* room_search.h - which tensors to evict or to move so that a request fits. Nothing changes here: the result may be out of date on
 * return. */
#ifndef HR_MEMORY_ROOM_SEARCH_H
#define HR_MEMORY_ROOM_SEARCH_H

#include "core/memory/allocator.h"

/* Bytes of whole pages, at least one page, that are missing to stitch [size] bytes from free pages. UINT64_MAX if pages cannot be
 * stitched, or if that takes longer than copying as many bytes to the host. */
uint64_t hr__blocks_missing(hr__allocator *allocator, uint64_t size);

/* Free bytes that cannot serve a request for more than a page: those in no whole page or, where pages cannot be stitched, those
 * outside the largest free chunk. */
uint64_t hr__blocks_scattered(hr__allocator *allocator);

/* A block that may be evicted. */
typedef struct hr__movable {
	uint64_t address;
	uint64_t cost; /* of evicting it; the search minimises the sum over a window */
} hr__movable;

/* Finds a run of adjacent chunks, each free or one of [items] (sorted by address), that has room for the request at the lowest
 * total cost. *first and *count get the items in the run. False if there is none. */
bool hr__blocks_window(hr__allocator *allocator, uint64_t size, uint64_t alignment, const hr__movable *items, size_t item_count,
                       size_t *first, size_t *count);

/* ---- moving blocks on the device ---- */

#define HR__STRETCH_FREE UINT32_MAX
#define HR__STRETCH_GROWS (UINT32_MAX - 1) /* at the end of a window: [bytes] are unmapped but could be mapped */

/* A chunk between blocks that cannot be moved. */
typedef struct hr__stretch {
	uint64_t address, bytes;
	uint32_t item; /* index of the block that may be moved, or HR__STRETCH_* */
	bool joined;   /* begins where the previous stretch ends, in the same region */
} hr__stretch;

/* Writes up to [capacity] stretches of the allocator, those of each region by address, and returns their number. [items] are sorted
 * by address. [pressure] is the request that has no room: it determines which pool would grow, by how much, and whether thread caches
 * count as empty. The result may be out of date on return. */
size_t hr__blocks_look(const hr__pressure *pressure, const hr__movable *items, size_t item_count, hr__stretch *out, size_t capacity);
/* An estimate of the number of stretches, given the number of items. */
size_t hr__blocks_count(const hr__pressure *pressure, size_t item_count);

#endif
