/* regions.h - memory that allocators have mapped, while a trace is read. Mapped regions are kept in order of allocator and address,
 * so that an UNMAP of any range ends what it covers and leaves the rest.
 *
 * Stitching moves pages between addresses without recording from where. So a MAP may cover a region that is still listed, which it
 * then replaces, and an UNMAP may cover nothing. */
#ifndef HR_PROFILE_REGIONS_H
#define HR_PROFILE_REGIONS_H

#include "analysis/capture/array.h"
#include "analysis/capture/capture.h"

/* Maximum number of live regions. It bounds the time that a hostile file can take, because an insertion shifts the entries after
 * it. */
#define HR__REGION_LIVE_MOST 16384u

typedef struct hr__region_list {
	hr__array *runs; /* of hr__region_run: all regions, live and ended */
	uint32_t *live;  /* indices, in order of allocator and address; none overlap */
	uint32_t count;
} hr__region_list;

hr_status hr__region_list_init(hr__region_list *list, hr__array *runs);
void hr__region_list_free(hr__region_list *list);

/* *taken is false if the event is inconsistent (no bytes, or an invalid address range) or too many regions are live.
 * HR_NO_HOST_MEMORY. */
hr_status hr__region_map(hr__region_list *list, uint32_t allocator, uint64_t address, uint64_t bytes, uint64_t now, bool *taken);
hr_status hr__region_unmap(hr__region_list *list, uint32_t allocator, uint64_t address, uint64_t bytes, uint64_t now, bool *taken);

#endif
