/* holes.h - reserved bytes, free bytes and the largest hole of each allocator while a trace is replayed: fragmentation at any
 * moment.
 *
 * Free memory is mapped and not allocated; fragmentation is 1 - largest / free, as in hr_stats. A trace does not record what thread
 * caches hold, so cached memory counts as free here. Ranges with adjacent addresses count as one. Allocators that record no
 * regions, such as direct ones, have nothing reserved. */
#ifndef HR_PROFILE_HOLES_H
#define HR_PROFILE_HOLES_H

#include "analysis/capture/capture.h"

typedef struct hr__holes hr__holes;

typedef struct hr__holes_state {
	uint64_t reserved_bytes, free_bytes, largest_free_bytes;
	uint64_t peak_reserved_bytes; /* peak since hr__holes_mark, or since the beginning */
} hr__holes_state;

/* The state of all allocators before the first change. Uses memory proportional to the number of addresses in the trace.
 * HR_NO_HOST_MEMORY. */
hr_status hr__holes_make(const hr__capture *capture, hr__holes **out);
void hr__holes_free(hr__holes *holes); /* NULL is allowed */

/* Advances to [time_ns]: applies maps and unmaps, but not allocations (hr__holes_change). Time must not decrease. */
void hr__holes_until(hr__holes *holes, uint64_t time_ns);
/* Applies the capture's next change, and all maps and unmaps up to its time. Takes time proportional to the logarithm of the number
 * of addresses. */
void hr__holes_change(hr__holes *holes);

/* Restarts the peak of reserved bytes from the current value. */
void hr__holes_mark(hr__holes *holes);

hr__holes_state hr__holes_of(const hr__holes *holes, uint32_t allocator);

/* 0 to 1; 0 when nothing is free. */
static inline double hr__holes_fragmentation(const hr__holes_state *state)
{
	return state->free_bytes ? 1 - (double)state->largest_free_bytes / (double)state->free_bytes : 0;
}

#endif
