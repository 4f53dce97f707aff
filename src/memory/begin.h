/* begin.h - the library begins and ends to be used: the moments that an unmodified program is watched from.
 *
 * These three are defined by the layer `profile`, which is above this one. It cannot register itself as other layers do: a program that
 * never calls it, which is the program meant here, would not even have it linked from a static library. So it is named here, and nothing
 * else of it is. */
#ifndef HR_MEMORY_BEGIN_H
#define HR_MEMORY_BEGIN_H

#include "headroom.h"

/* An allocator is about to be made. No lock is held. Costs one load after the first time. */
void hr__profile_begin(void);

/* hr_shutdown, before recordings are closed and allocators go. */
hr_status hr__profile_end(void);

/* In the child after fork. */
void hr__profile_forget(void);

#endif
