/* capture.h - a trace read into memory, for views, exporters and the HTML page: allocations and their lifetimes, ops, steps, moves.
 *
 *     allocation   a block from ALLOC to FREE: bytes in use on a device. A tensor that is evicted and restored is several
 *                  allocations
 *     site         properties that many allocations share: op, scope, tag, shape, dtype, allocator, stream, call stack
 *     change       an allocation or a free. Changes are ordered by time; replaying them gives the bytes in use at any moment
 *     op           from OP_BEGIN to OP_END on one thread
 *     use          an op reads or writes an allocation
 *     step         from STEP to STEP_END, or to the next STEP. At most one step is open. While a step is open, a STEP of another
 *                  allocator (identified by its tag) joins the step, which then ends with the last STEP_END of its members. A STEP
 *                  of a member ends the step and begins another. Without tags, a STEP with the same number joins
 *     skipped      inconsistent events. A recording may start while the program runs, so two cases are consistent: an event that
 *                  ends something begun before the recording, and a block reported twice, by the thread that allocates it and by
 *                  the recorder when it lists existing blocks
 *     move         a tensor is evicted or restored, or a block is moved on the device
 *     birth        the first allocation of a tensor that was evicted and restored, or moved; later allocations continue it
 *     sequence     the order of all of these: which of changes, ops, ends of ops, uses, steps, moves, refusals and ends of evicted
 *                  tensors comes next
 *
 * References are indices into arrays, which keeps a capture compact: 56 bytes for an allocation with its two changes, 44 for an op, and one
 * for each item of the sequence.
 * A capture is read once, in order of time, from a reader that is safe on any bytes, and never changes afterwards. The following
 * holds for any input file:
 *
 *     - every index is in range or HR__NONE; allocators that the file does not define share one entry named "(unknown)"
 *     - an allocation has one change that allocates and at most one later change that frees; times never decrease
 *     - times are below 2^63, or HR__NEVER; an end is not before its begin
 *     - the bytes ever allocated add up to less than 2^63, and so do the bytes moved; an event that would exceed this is skipped
 *     - at each moment the live allocations of a device add up to its bytes in use; peak_change is where that was first highest */
#ifndef HR_PROFILE_CAPTURE_H
#define HR_PROFILE_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"
#include "analysis/reader/event_stream.h"
#include "core/trace/trace.h"

#define HR__NEVER UINT64_MAX /* a time: not before the end of the trace */
#define HR__NONE UINT32_MAX  /* an index: none */

typedef struct hr__site {
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
	uint32_t allocator; /* index */
	hr_stream stream;
	hr_stack stack;     /* where the program allocated; HR_STACK_NONE: not recorded. hr_stack_get_frames */
} hr__site;

typedef struct hr__allocation {
	uint64_t begin_ns, end_ns; /* HR__NEVER: live at the end */
	uint64_t address;
	uint64_t bytes;            /* occupied */
	uint32_t slack;            /* occupied bytes minus requested bytes */
	uint32_t site;
} hr__allocation;

typedef struct hr__change {
	uint32_t allocation : 31; /* index */
	uint32_t frees : 1;
	uint16_t stream; /* index in streams: of the request, or of the free */
	uint16_t thread; /* number in the trace; HR__THREAD_LAST: that one or a later one */
} hr__change;

#define HR__STREAMS_MAX 65535u
#define HR__THREAD_LAST UINT16_MAX

/* How an allocation continues the life of a tensor that was evicted, or moved on the device. */
typedef struct hr__life {
	uint32_t birth;
	bool goes_on; /* its free does not end the tensor */
	bool scratch; /* memory that defragmentation used in between: not a tensor */
	bool early;   /* the tensor was evicted when the recording began */
} hr__life;

typedef enum hr__item_kind {
	HR__ITEM_CHANGE = 1,
	HR__ITEM_OP,
	HR__ITEM_OP_END,
	HR__ITEM_USE,
	HR__ITEM_STEP,
	HR__ITEM_MOVE,
	HR__ITEM_REFUSAL,
	HR__ITEM_TENSOR_END,
} hr__item_kind;

typedef struct hr__op_run {
	uint64_t begin_ns, end_ns; /* HR__NEVER: not ended */
	uint64_t device_ns;        /* run time of its kernel; 0 = unknown */
	hr_name op, scope;
	uint32_t thread;
	uint32_t step;             /* index; HR__NONE: outside of any step */
} hr__op_run;

typedef struct hr__capture_use {
	uint32_t op;         /* index of the op; HR__NONE: outside of any op */
	uint32_t allocation;
	bool writes;
} hr__capture_use;

#define HR__STALL_MAX_NS (UINT64_C(1) << 62)

typedef struct hr__step_run {
	uint64_t number;
	uint64_t begin_ns, end_ns; /* HR__NEVER: not ended */
	uint64_t stall_ns;         /* time that streams waited for restores, as far as it is recorded */
	uint32_t first_change, last_change; /* changes within the step; last_change is exclusive */
} hr__step_run;

typedef enum hr__move_kind {
	HR__MOVE_OUT = 1,   /* evicted to the host */
	HR__MOVE_IN,        /* restored to the device */
	HR__MOVE_ON_DEVICE, /* from one address to another */
	HR__MOVE_STITCH,    /* no byte moved: free pages were mapped side by side */
} hr__move_kind;

typedef struct hr__move {
	uint64_t time_ns, bytes;
	unsigned kind : 8;      /* hr__move_kind */
	unsigned by_recipe : 1; /* OUT: it was dropped instead; IN: it was recomputed */
	uint32_t site;
} hr__move;

typedef struct hr__refusal { /* a request that failed */
	uint64_t time_ns, bytes;
	uint32_t site;
} hr__refusal;

typedef struct hr__pause { /* the program waited for Large Model Support to compute a plan */
	uint64_t begin_ns, end_ns;
} hr__pause;

/* Memory that an allocator mapped on the device. When part of a region run is unmapped, the run ends and a new run begins for each
 * remaining part. */
typedef struct hr__region_run {
	uint64_t begin_ns, end_ns; /* HR__NEVER: still mapped at the end */
	uint64_t address, bytes;
	uint32_t allocator;
} hr__region_run;

typedef struct hr__capture_allocator {
	char name[32], kind[32];
	uint32_t id;            /* in the trace */
	uint32_t device;        /* index */
	uint64_t peak_bytes, peak_ns; /* peak of bytes in use, and the first time it was reached */
	uint32_t peak_change;   /* index of the change that reached the peak */
	uint64_t end_bytes;     /* in use at the end */
	uint64_t limit_bytes;   /* 0 = unknown */
	uint64_t first_ns, last_ns; /* times of its first and last change. first_ns is HR__NEVER if there is none, last_ns if a block is
	                             * live at the end */
} hr__capture_allocator;

typedef struct hr__capture_device {
	char name[32];
	uint64_t limit_bytes, page_bytes;
	uint64_t peak_bytes, peak_ns; /* of all its allocators together */
	uint32_t peak_change;
	uint64_t end_bytes;
	uint64_t allocs;        /* events */
	uint64_t unknown_frees; /* skipped: of blocks that are not known, such as those allocated before the recording began */
	uint64_t implied_frees; /* added: the address was allocated again while it was live */
	uint64_t accesses;      /* READ and WRITE events */
	uint64_t unknown_accesses; /* of those, skipped: of blocks that are not known */
	uint64_t joined;        /* allocations that continue an earlier one */
	uint64_t nameless_restores; /* restores that do not say from where, in recordings of older versions */
} hr__capture_device;

typedef struct hr__capture {
	hr__site *sites;
	hr__allocation *allocations;
	hr__change *changes;
	hr__op_run *ops;
	hr__capture_use *uses;
	hr__step_run *steps;
	hr__move *moves;
	hr__refusal *refusals;
	hr__region_run *regions;
	hr__pause *pauses;
	hr__capture_allocator *allocators;
	hr__capture_device *devices;
	hr__life *lives;          /* of the first life_count allocations; each later allocation is its own birth */
	uint32_t life_count;
	uint8_t *sequence;        /* hr__item_kind: the n-th item of a kind is the n-th of its array */
	uint32_t sequence_count;
	uint32_t *op_ends;        /* ops in the order in which they end */
	uint32_t *tensor_ends;    /* births of tensors that were destroyed while they were evicted */
	uint32_t op_end_count, tensor_end_count;
	hr_stream *streams;       /* of changes; streams beyond HR__STREAMS_MAX share the last entry */
	uint32_t stream_count;
	uint32_t site_count, allocation_count, change_count, op_count, use_count, step_count, move_count, refusal_count, region_count, pause_count;
	uint32_t allocator_count, device_count;
	uint64_t end_ns;          /* time of the last event */
	uint64_t start_wall_ns;   /* wall clock time when the recording began, since 1970 */
	uint64_t lost;            /* events that could not be written */
	hr__rank rank;            /* of the process; count 0: it was not a rank, or the file does not say */
	bool knows_rank;          /* the file says whether the process was a rank */
	char writer[32];          /* the program that wrote the file, "headroom 0.2.0"; "": unknown */
	uint32_t process;         /* its id; 0: the file does not say */
	bool limited;             /* the file reached its size limit before the program ended */
	hr__trace_format format;
	bool gzip;
	uint64_t late;            /* events whose time was corrected because it was before that of an earlier one */
	uint64_t empty_allocs;    /* allocations of 0 bytes that were left out */
	uint64_t program_events;  /* begins and ends of ops and steps */
	uint64_t unknown_op_ends; /* of those, ends of ops that are not known */
	uint32_t unknown_device;  /* index of the device of allocators without a definition; HR__NONE: there is none */
	uint64_t skipped;         /* inconsistent events, such as a free of an address that was never allocated */
	uint64_t other_names;     /* allocations and ops whose name did not fit into a name table and reads "(other)" */
	bool complete;            /* false: the recording process was killed */
	bool has_stacks;          /* an allocation has a call stack */
} hr__capture;

/* Called periodically with the fraction that is done, 0 to 1. */
typedef void (*hr__capture_progress)(void *context, double part);

/* Reads a whole trace of any format (analysis/import/import.h). HR_IO, HR_BAD_FORMAT, HR_TRUNCATED, HR_TOO_NEW, HR_UNSUPPORTED,
 * HR_NO_HOST_MEMORY; HR_TOO_MANY for 2^30 events or more. [progress] may be NULL. */
hr_status hr__capture_open(const char *path, hr__capture_progress progress, void *context, hr__capture **out);
hr_status hr__capture_open_memory(const void *bytes, size_t size, hr__capture **out);
void hr__capture_close(hr__capture *capture); /* NULL is allowed */

/* Frees the memory of changes before [change], as far as it can be freed: for a caller that builds something else from them in order
 * and needs the memory. Nothing may read those changes afterwards. */
void hr__capture_discard_changes(hr__capture *capture, uint32_t change);

/* Index of an allocation's allocator, and of that allocator's device. */
static inline uint32_t hr__allocation_allocator(const hr__capture *capture, uint32_t allocation)
{
	return capture->sites[capture->allocations[allocation].site].allocator;
}

static inline uint32_t hr__allocation_device(const hr__capture *capture, uint32_t allocation)
{
	return capture->allocators[hr__allocation_allocator(capture, allocation)].device;
}

/* The first allocation of the allocation's tensor; 0 for a tensor that was evicted when the recording began. */
static inline uint32_t hr__allocation_birth(const hr__capture *capture, uint32_t allocation)
{
	if (allocation >= capture->life_count) return allocation;
	uint32_t birth = capture->lives[allocation].birth;
	return capture->lives[birth].early ? 0 : birth;
}

/* Bytes that the program requested. */
static inline uint64_t hr__allocation_requested(const hr__allocation *allocation)
{
	return allocation->bytes - allocation->slack;
}

/* The limit of a device at a moment: the sum of the limits of the allocators that were in use then, or the device's own limit if
 * that is lower. 0 = unknown. */
uint64_t hr__capture_limit(const hr__capture *capture, uint32_t device, uint64_t time_ns);

/* Whether the device is the pinned host memory that tensors of another one are evicted to. */
bool hr__capture_is_host_pool(const hr__capture *capture, uint32_t device);

/* Calls [visit] for each allocation that is live after change number [change] (HR__NONE: at the end) on [device] (HR__NONE: any),
 * in the order of allocation. Takes time proportional to the changes up to that point, and one bit of memory per allocation.
 * HR_NO_HOST_MEMORY. */
hr_status hr__capture_live(const hr__capture *capture, uint32_t change, uint32_t device, void (*visit)(void *context, uint32_t allocation),
                           void *context);

/* Like hr__capture_live, for each allocation that is live at the peak of its own device; one pass over the changes for all
 * devices. */
hr_status hr__capture_live_at_peaks(const hr__capture *capture, void (*visit)(void *context, uint32_t allocation), void *context);

#endif
