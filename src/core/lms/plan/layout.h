/* layout.h - where in one piece of memory everything that a step has on the device at some time should lie, so that nothing is in anybody's
 * way. Pure; memory comes from hr__os(). */
#ifndef HR_LMS_LAYOUT_H
#define HR_LMS_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"

/* A stay on the device: from op [from] to op [to], both included. The step is a ring: to < from goes over its end. */
typedef struct hr__stay {
	uint64_t bytes;
	uint32_t from, to;
	uint64_t offset; /* the answer */
} hr__stay;

/* Gives every stay its offset, so that all of it fits into [most] bytes; *fits says whether that was found. Each gets the lowest place that is
 * free as long as it stays; in which order they are placed, the largest first, the longest, the first or the last to go, is tried until one
 * fits: on recorded steps the first does with nothing lost, or within some percent of the least possible. [ops] is the length of the step.
 * HR_NO_HOST_MEMORY. Time grows with the square of [count]: 10 ms for 2,500. */
hr_status hr__layout_make(hr__stay *stays, uint32_t count, uint32_t ops, uint64_t most, bool *fits);

#endif
