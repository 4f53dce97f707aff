/* lives.h - which allocations are the same tensor: one that leaves the device and comes back, or is moved on it, is several allocations in a trace. The
 * first is its birth.
 *
 *     allocation     4        9        17          birth of 9 and 17: 4
 *     tensor         |--------|  out   |---->
 *
 * A copy on the host is known by its address there, which is the tensor's alone from the copy until the last return. */
#ifndef HR_PROFILE_LIVES_H
#define HR_PROFILE_LIVES_H

#include "profile/array.h"
#include "profile/finder.h"

typedef struct hr__lives {
	hr__array *births;  /* uint32_t, by allocation; those behind its end are their own */
	hr__array places;   /* on the host */
	hr__slots by_place; /* them by allocator and address */
} hr__lives;

/* For at most [most] events. HR_NO_HOST_MEMORY, as the calls below. */
hr_status hr__lives_init(hr__lives *lives, hr__array *births, uint64_t most, uint64_t salt);
void hr__lives_free(hr__lives *lives); /* not the births */

/* A copy of [allocation] is made at [place]. */
hr_status hr__lives_leave(hr__lives *lives, uint32_t allocator, uint64_t place, uint32_t allocation);
/* [allocation] holds what was copied to [place]. A place that is not known was filled before the recording began: the birth is then 0. */
hr_status hr__lives_return(hr__lives *lives, uint32_t allocator, uint64_t place, uint32_t allocation);
/* [to] holds what [from] held. */
hr_status hr__lives_move(hr__lives *lives, uint32_t from, uint32_t to);

#endif
