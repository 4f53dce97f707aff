/* capture.h - a trace in memory, as views, exporters and the page look at it: what was allocated and for how long, which ops ran, which steps there
 * were, what moved.
 *
 *     allocation   a block from ALLOC to FREE: bytes that are in use on a device. A tensor of Large Model Support that leaves and comes back is
 *                  several of them
 *     site         what many allocations have in common: op, scope, tag, shape, dtype, allocator, stream
 *     change       an allocation or a free, in order of time: going through changes gives what was in use at any moment
 *     op           from OP_BEGIN to OP_END on one thread
 *     use          an op reads or writes an allocation
 *     step         from STEP to STEP_END, or to the next STEP. There is one at a time: while one is open, a STEP of another allocator (its tag) takes
 *                  part in it, and it ends with the last STEP_END of those. A STEP of one that takes part already ends it and begins another. Where
 *                  there are no tags, one with the same number takes part
 *     skipped      events that make no sense. In a recording of a running program, what ends there without having begun there makes sense, and so do blocks
 *                  that are told of twice, by the thread that allocates them and by the recorder when it writes what there is already
 *     move         a tensor leaves the device or returns, or a block is moved on it
 *     birth        the first allocation of a tensor that left and came back, or that was moved: its other allocations go on with it
 *
 * Numbers are indices into arrays, so all of it is compact: 56 bytes for an allocation with its two changes, 40 for an op. It is read once, in order
 * of time, from a reader that is safe on any bytes. Nothing of it changes afterwards, and everything after that can trust it, whatever the file held:
 *
 *     - every index is in range or HR__NONE; allocators that the file does not define share one entry, called "(unknown)"
 *     - changes alternate for an allocation: one that allocates, and at most one that frees, later; times never decrease
 *     - times are below 2^63, or HR__NEVER; an end is not before its begin
 *     - all bytes that were ever allocated add up to less than 2^63, and so do those that moved; where they would not, the event is skipped
 *     - at each moment, the live allocations of a device add up to what was in use; peak_change is where that was highest, first */
#ifndef HR_PROFILE_CAPTURE_H
#define HR_PROFILE_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"
#include "trace/trace.h"

#define HR__NEVER UINT64_MAX /* a time: not before the end of the trace */
#define HR__NONE UINT32_MAX  /* an index: none */

typedef struct hr__site {
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
	uint32_t allocator; /* index */
	hr_stream stream;
} hr__site;

typedef struct hr__allocation {
	uint64_t begin_ns, end_ns; /* HR__NEVER: live at the end */
	uint64_t address;
	uint64_t bytes;            /* occupied */
	uint32_t slack;            /* occupied less asked for */
	uint32_t site;
} hr__allocation;

typedef struct hr__change {
	uint32_t allocation; /* index */
	bool frees;
} hr__change;

typedef struct hr__op_run {
	uint64_t begin_ns, end_ns; /* HR__NEVER: not ended */
	uint64_t device_ns;        /* what its kernel took; 0 = not known */
	hr_name op, scope;
	uint32_t thread;
	uint32_t step;             /* index; HR__NONE: in none */
} hr__op_run;

typedef struct hr__use {
	uint32_t op;         /* index of the op's run; HR__NONE: outside of any */
	uint32_t allocation;
	bool writes;
} hr__use;

typedef struct hr__step_run {
	uint64_t number;
	uint64_t begin_ns, end_ns; /* HR__NEVER: not ended */
	uint32_t first_change, last_change; /* changes within it: from first up to, and without, last */
} hr__step_run;

typedef enum hr__move_kind {
	HR__MOVE_OUT = 1,   /* to the host */
	HR__MOVE_IN,        /* back to the device */
	HR__MOVE_ON_DEVICE, /* from one address to another */
	HR__MOVE_STITCH,    /* no byte moved: free pages were mapped side by side */
} hr__move_kind;

typedef struct hr__move {
	uint64_t time_ns, bytes;
	hr__move_kind kind;
	uint32_t site;
} hr__move;

typedef struct hr__refusal { /* a request that failed */
	uint64_t time_ns, bytes;
	uint32_t site;
} hr__refusal;

typedef struct hr__pause { /* the program waited for Large Model Support to make a plan */
	uint64_t begin_ns, end_ns;
} hr__pause;

/* Memory that an allocator took from the device. Where part of one is given back, it ends, and what is left of it begins anew. */
typedef struct hr__region_run {
	uint64_t begin_ns, end_ns; /* HR__NEVER: still there at the end */
	uint64_t address, bytes;
	uint32_t allocator;
} hr__region_run;

typedef struct hr__capture_allocator {
	char name[32], kind[32];
	uint32_t id;            /* in the trace */
	uint32_t device;        /* index */
	uint64_t peak_bytes, peak_ns; /* in use: the most there was, and when first */
	uint32_t peak_change;   /* after which change */
	uint64_t end_bytes;     /* in use at the end */
	uint64_t limit_bytes;   /* 0 = not told */
	uint64_t first_ns, last_ns; /* its first change and its last; HR__NEVER for the first: there is none, and for the last: something is live at the end */
} hr__capture_allocator;

typedef struct hr__capture_device {
	char name[32];
	uint64_t limit_bytes, page_bytes;
	uint64_t peak_bytes, peak_ns; /* of all its allocators together */
	uint32_t peak_change;
	uint64_t end_bytes;
} hr__capture_device;

typedef struct hr__capture {
	hr__site *sites;
	hr__allocation *allocations;
	hr__change *changes;
	hr__op_run *ops;
	hr__use *uses;
	hr__step_run *steps;
	hr__move *moves;
	hr__refusal *refusals;
	hr__region_run *regions;
	hr__pause *pauses;
	hr__capture_allocator *allocators;
	hr__capture_device *devices;
	uint32_t *births;         /* of the first birth_count allocations; the others are their own */
	uint32_t birth_count;
	uint32_t site_count, allocation_count, change_count, op_count, use_count, step_count, move_count, refusal_count, region_count, pause_count;
	uint32_t allocator_count, device_count;
	uint64_t end_ns;          /* time of the last event */
	uint64_t start_wall_ns;   /* when the recording began, since 1970 */
	uint64_t lost;            /* events that could not be written */
	bool limited;             /* the file had reached its limit of size before the program ended */
	uint64_t skipped;         /* events that made no sense, such as a free of what was never allocated */
	uint64_t other_names;     /* allocations and ops with a name that no table of names had room for, so that it reads "(other)" */
	bool complete;            /* false: the recorder was killed */
} hr__capture;

/* Called now and then with the part that is done, 0 to 1. */
typedef void (*hr__capture_progress)(void *context, double part);

/* Reads a whole trace. HR_IO, HR_BAD_FORMAT, HR_TRUNCATED, HR_TOO_NEW as hr__trace_reader_open; HR_NO_HOST_MEMORY; HR_TOO_MANY for more than
 * 2^31 of something. [progress] may be NULL. */
hr_status hr__capture_open(const char *path, hr__capture_progress progress, void *context, hr__capture **out);
hr_status hr__capture_open_memory(const void *bytes, size_t size, hr__capture **out);
void hr__capture_close(hr__capture *capture); /* NULL is fine */

/* The allocator of an allocation, and its device: indices. */
static inline uint32_t hr__allocation_allocator(const hr__capture *capture, uint32_t allocation)
{
	return capture->sites[capture->allocations[allocation].site].allocator;
}

static inline uint32_t hr__allocation_device(const hr__capture *capture, uint32_t allocation)
{
	return capture->allocators[hr__allocation_allocator(capture, allocation)].device;
}

/* The allocation with which the life of an allocation's tensor began; 0 for a tensor that was on the host when the recording began. */
static inline uint32_t hr__allocation_birth(const hr__capture *capture, uint32_t allocation)
{
	return allocation < capture->birth_count ? capture->births[allocation] : allocation;
}

/* What limited a device at a moment: what the allocators that had anything may take together, and at most the device's own. 0 = not told. */
uint64_t hr__capture_limit(const hr__capture *capture, uint32_t device, uint64_t time_ns);

/* Calls [visit] for each allocation that is live after change number [change] (HR__NONE: at the end) on [device] (HR__NONE: on any), in the order in
 * which they were made. Takes time in proportion to the changes up to then, and a bit of memory for each allocation: HR_NO_HOST_MEMORY. */
hr_status hr__capture_live(const hr__capture *capture, uint32_t change, uint32_t device, void (*visit)(void *context, uint32_t allocation),
                           void *context);

/* The same for each allocation that is live at the peak of its own device, for all devices in one pass over the changes. */
hr_status hr__capture_live_at_peaks(const hr__capture *capture, void (*visit)(void *context, uint32_t allocation), void *context);

#endif
