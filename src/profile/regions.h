/* regions.h - memory that allocators took from their devices, while a trace is read: what is there is kept in order of allocator and address, so that
 * an UNMAP of any range ends what it covers and leaves the rest.
 *
 * Stitching moves pages from one address to another without saying where, so a MAP may cover what is there already, and takes its place, and an UNMAP
 * may cover nothing. */
#ifndef HR_PROFILE_REGIONS_H
#define HR_PROFILE_REGIONS_H

#include "profile/array.h"
#include "profile/capture.h"

/* At once. It bounds the time that a hostile file can take: entering one moves those behind it. */
#define HR__REGION_LIVE_MOST 16384u

typedef struct hr__region_list {
	hr__array *runs; /* of hr__region_run: all there ever were */
	uint32_t *live;  /* indices, in order of allocator and address; none overlap */
	uint32_t count;
} hr__region_list;

hr_status hr__region_list_init(hr__region_list *list, hr__array *runs);
void hr__region_list_free(hr__region_list *list);

/* *taken is false when it makes no sense: no bytes, or addresses that there are not; or when too many are there already. HR_NO_HOST_MEMORY. */
hr_status hr__region_map(hr__region_list *list, uint32_t allocator, uint64_t address, uint64_t bytes, uint64_t now, bool *taken);
hr_status hr__region_unmap(hr__region_list *list, uint32_t allocator, uint64_t address, uint64_t bytes, uint64_t now, bool *taken);

#endif
