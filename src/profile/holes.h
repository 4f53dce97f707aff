/* holes.h - what allocators had reserved and free while a trace goes by, and the largest hole: fragmentation at any moment.
 *
 * Free is what is mapped and not allocated: 1 - largest / free is the fragmentation, as in hr_stats. A trace does not say what caches hold back, so that
 * counts as free here. Pieces of memory whose addresses follow each other are one. Allocators whose memory is not told of, such as direct ones, have
 * none reserved. */
#ifndef HR_PROFILE_HOLES_H
#define HR_PROFILE_HOLES_H

#include "profile/capture.h"

typedef struct hr__holes hr__holes;

typedef struct hr__holes_state {
	uint64_t reserved_bytes, free_bytes, largest_free_bytes;
	uint64_t peak_reserved_bytes; /* the most since hr__holes_mark, or since the beginning */
} hr__holes_state;

/* Of all allocators, before the first change. Memory in proportion to the addresses that occur. HR_NO_HOST_MEMORY. */
hr_status hr__holes_make(const hr__capture *capture, hr__holes **out);
void hr__holes_free(hr__holes *holes); /* NULL is fine */

/* Moves on to [time_ns]: memory is mapped and unmapped, allocations are for hr__holes_change. Time does not go back. */
void hr__holes_until(hr__holes *holes, uint64_t time_ns);
/* The next change of the capture, with all that was mapped and unmapped up to its time. Takes time in proportion to the logarithm of the addresses. */
void hr__holes_change(hr__holes *holes);

/* What is reserved now is the most from here on. */
void hr__holes_mark(hr__holes *holes);

hr__holes_state hr__holes_of(const hr__holes *holes, uint32_t allocator);

/* 0 to 1; 0 when nothing is free. */
static inline double hr__holes_fragmentation(const hr__holes_state *state)
{
	return state->free_bytes ? 1 - (double)state->largest_free_bytes / (double)state->free_bytes : 0;
}

#endif
