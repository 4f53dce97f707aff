/* begin.h - hooks at the start and the end of the library's use, through which an unmodified program is profiled.
 *
 * The layer `profile`, which is above this one, defines these three functions. It cannot register itself as other layers do: an
 * unmodified program never calls it, so a static library would not even link it. Referring to these functions by name forces the
 * link. Nothing else of `profile` is named in this layer. */
#ifndef HR_MEMORY_BEGIN_H
#define HR_MEMORY_BEGIN_H

#include "headroom.h"

/* Before an allocator is created. Without locks. Costs one load after the first call. */
void hr__profile_begin(void);

/* From hr_shutdown, before recordings and allocators are closed. */
hr_status hr__profile_end(void);

/* In the child after fork. */
void hr__profile_forget(void);

#endif
