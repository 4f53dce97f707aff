/* capturing.h - recording work for the card instead of doing it (graph/captured.h).
 *
 * While a thread captures, what it runs in the session gets memory from one block (hr__planned), and its kernels are recorded by a stream of their own.
 * The run is made twice: first without queueing anything, which finds how large the block must be; then again, with the same decisions.
 *
 * What cannot be recorded fails: ops that the host computes, and updates of variables that are not in place. Nothing has been changed then. */
#ifndef HR_RUNTIME_CAPTURING_H
#define HR_RUNTIME_CAPTURING_H

#include "runtime/engine/engine.h"

/* Best fit in a range of addresses that grows at its end. */
typedef struct hr__planned {
	char *base;
	uint64_t end, limit; /* most bytes in use; the most that there may be */
	struct planned_range *ranges; /* free ranges, by address */
	uint32_t count, capacity, taken;
} hr__planned;

/* HR_NO_HOST_MEMORY. HR_OUT_OF_MEMORY: beyond the limit. */
hr_status hr__planned_take(hr__planned *planned, uint64_t bytes, void **out);
void hr__planned_give(hr__planned *planned, void *at, uint64_t bytes);
void hr__planned_end(hr__planned *planned);

typedef struct hr__capturing {
	hr__session *session;
	hr__planned *memory;
	hr_stream stream;
	bool records;  /* false: finds out how much memory is needed */
	bool prepares; /* ops are run now, in the session's stream, once for all launches */
} hr__capturing;

/* What the calling thread captures, if it is in this session; else NULL. */
hr__capturing *hr__capturing_in(const hr__session *session);
/* NULL ends it. */
void hr__capturing_set(hr__capturing *capturing);
/* The error for what cannot be recorded. */
hr_status hr__capturing_refuses(const char *what);

#endif
