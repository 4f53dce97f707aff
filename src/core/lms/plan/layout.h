/* layout.h - assigns offsets in one range of memory to all tensors that a step has on the device, so that none overlap. Pure; host
 * memory comes from hr__os(). */
#ifndef HR_LMS_LAYOUT_H
#define HR_LMS_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"

/* A time during which a tensor is on the device: from op [from] to op [to], both included. The step is a ring: if to < from, the stay
 * wraps around its end. */
typedef struct hr__layout_stay {
	uint64_t bytes;
	uint32_t from, to;
	uint64_t offset; /* the result */
} hr__layout_stay;

/* Sets the offset of every stay, so that all of them fit into [most] bytes; *fits says whether that succeeded. Stays are placed
 * one after the other, each at the lowest offset that is free during it. Several orders are tried until one fits: the largest
 * first, the last to end, the longest, the first to begin. On recorded steps the first order needs the least possible memory, or a
 * few percent more. [ops] is the length of the step. HR_NO_HOST_MEMORY. Takes time quadratic in [count]: 10 ms for 2,500. */
hr_status hr__layout_make(hr__layout_stay *stays, uint32_t count, uint32_t ops, uint64_t most, bool *fits);

#endif
