/* lives.h - finds which allocations belong to the same tensor. A tensor that is evicted and restored, or moved on the device, is
 * several allocations in a trace; the first of them is its birth.
 *
 *     allocation     4        9        17          birth of 9 and 17: 4
 *     tensor         |--------|  out   |---->
 *
 * A host copy is identified by its host address, which no other tensor uses from the copy until the last restore. */
#ifndef HR_PROFILE_LIVES_H
#define HR_PROFILE_LIVES_H

#include "analysis/capture/array.h"
#include "analysis/capture/finder.h"

typedef struct hr__capture_lives {
	hr__array *births;  /* uint32_t, by allocation; an allocation beyond its end is its own birth */
	hr__array places;   /* host copies */
	hr__slots by_place; /* index of places by allocator and address */
} hr__capture_lives;

/* For at most [most] events. HR_NO_HOST_MEMORY, also from the calls below. */
hr_status hr__capture_lives_init(hr__capture_lives *lives, hr__array *births, uint64_t most, uint64_t salt);
void hr__capture_lives_free(hr__capture_lives *lives); /* does not free the births */

/* [allocation] is copied to the host address [place]. */
hr_status hr__capture_lives_leave(hr__capture_lives *lives, uint32_t allocator, uint64_t place, uint32_t allocation);
/* [allocation] holds what was copied to [place]. A place that is unknown was written before the recording began; the birth is then
 * 0. */
hr_status hr__capture_lives_return(hr__capture_lives *lives, uint32_t allocator, uint64_t place, uint32_t allocation);
/* [to] holds the contents that [from] held. */
hr_status hr__capture_lives_move(hr__capture_lives *lives, uint32_t from, uint32_t to);

#endif
