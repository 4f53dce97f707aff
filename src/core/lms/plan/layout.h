/* layout.h - assigns offsets in one range of memory to all tensors that a step has on the device, so that none overlap. Pure; host
 * memory comes from hr__os(). */
#ifndef HR_LMS_LAYOUT_H
#define HR_LMS_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"

/* A time during which a tensor is on the device: from turn [from] to turn [to], both included. The step is a ring: if to < from, the stay
 * wraps around its end. A stay that begins with a restore may begin later, and one that ends with a copy to the host may count as ended
 * before the copy is done; a part of that costs no time. */
typedef struct hr__layout_stay {
	uint64_t bytes;
	uint32_t from, to;   /* given: its longest time. Result: its time, as long as its place is free */
	uint32_t late;       /* turns by which it may begin later */
	uint32_t free_late;  /* as many of them cost no time */
	uint32_t early;      /* turns by which it may end earlier */
	uint64_t offset;     /* result */
} hr__layout_stay;

/* Sets the offset of every stay, so that all of them fit into [most] bytes; *fits says whether that succeeded. If not, nothing has changed.
 * *late_bytes: sum of bytes of stays that begin so late that it costs time, or end early, in proportion to how much.
 *
 * Stays are placed one after the other, each at the lowest offset that is free during it; a stay for which there is none is
 * shortened, no more than needed. Several orders are tried: the largest first, the last to end, the longest, the first to begin.
 * A stay that does not fit at all, or lost most time, is placed first in the next try. On recorded steps the first order needs the least possible
 * memory, or a few percent more. [turns] is the length of the step. HR_NO_HOST_MEMORY. The work is limited by a count: about 20 ms. */
hr_status hr__layout_make(hr__layout_stay *stays, uint32_t count, uint32_t turns, uint64_t most, bool *fits, uint64_t *late_bytes);

#endif
