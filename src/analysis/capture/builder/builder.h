/* builder.h - builds a capture from the events of a trace.
 *
 * Events come in order of time, from a stream that is safe on any bytes, but they may be inconsistent: a full disk loses events, a
 * log may start in the middle of a run, and the file may come from an untrusted source. So each event is checked, and inconsistent
 * ones are skipped and counted, or are errors if the stream is strict:
 *
 *     ALLOC at an address that is in use     the block at that address ends: its FREE was lost
 *     FREE, READ, WRITE of an unknown block  skipped
 *     the same before the recorder's mark    not counted: threads use existing blocks that the recorder has not listed yet, and a
 *                                            block allocated meanwhile is reported twice. The mark ends the list of existing
 *                                            blocks. In a file without a mark these events are counted as skipped after all
 *     OP_END                                 ends the innermost op of that name on its thread, and the ops inside it; without such
 *                                            an op, skipped
 *     STEP inside a step                     joins the step or ends it (capture.h); the outstanding STEP_ENDs of an ended step are
 *                                            consumed without being counted
 *
 * One number is trusted: the number of events. The reader has counted them, so address space for that many can be reserved. */
#ifndef HR_BUILDER_BUILDER_H
#define HR_BUILDER_BUILDER_H

#include "analysis/capture/array.h"
#include "analysis/capture/builder/lives.h"
#include "analysis/capture/regions.h"
#include "analysis/capture/capture.h"
#include "analysis/capture/finder.h"

#define HR__TOTAL_BYTES_MAX (UINT64_MAX / 2) /* bytes allocated, or moved, in a whole trace */
#define HR__TIME_NS_MAX (UINT64_MAX / 2)     /* later times are set to this */
#define HR__STEP_TAGS_MAX 16

/* The arrays of a capture: type of the items, name, name of the count, and the most items that a trace can have. An event adds at most
 * one item to each array, except: two changes; one region and the remainders of two others; three items of the sequence. */
#define HR__CAPTURE_ARRAYS(X)                                                                       \
	X(hr__site, sites, site_count, summary->events)                                                 \
	X(hr__allocation, allocations, allocation_count, summary->events)                               \
	X(hr__change, changes, change_count, summary->events * 2)                                       \
	X(hr__op_run, ops, op_count, summary->events)                                                   \
	X(hr__capture_use, uses, use_count, summary->events)                                            \
	X(hr__step_run, steps, step_count, summary->events)                                             \
	X(hr__move, moves, move_count, summary->events)                                                 \
	X(hr__refusal, refusals, refusal_count, summary->events)                                        \
	X(hr__region_run, regions, region_count, summary->events * 4)                                   \
	X(hr__capture_allocator, allocators, allocator_count, summary->allocator_count + 1)             \
	X(hr__capture_device, devices, device_count, summary->device_count + 1)                         \
	X(hr__life, lives, life_count, summary->events)                                                 \
	X(hr__pause, pauses, pause_count, summary->events)                                              \
	X(uint8_t, sequence, sequence_count, summary->events * 3)                                       \
	X(uint32_t, op_ends, op_end_count, summary->events)                                             \
	X(uint32_t, tensor_ends, tensor_end_count, summary->events)                                     \
	X(hr_stream, streams, stream_count, HR__STREAMS_MAX)

typedef struct hr__capture_arrays {
#define HR__CAPTURE_ARRAY(type, items, counter, most) hr__array items;
	HR__CAPTURE_ARRAYS(HR__CAPTURE_ARRAY)
#undef HR__CAPTURE_ARRAY
} hr__capture_arrays;

enum { HR__SEEN_EVENT = 1, HR__SEEN_OP_BEGIN = 2 };

typedef struct hr__builder {
	hr__capture *capture;
	hr__capture_arrays *arrays;
	hr__event_stream *stream;
	size_t threads;
	uint8_t *seen; /* of each thread: HR__SEEN_EVENT, HR__SEEN_OP_BEGIN */

	/* Tables. */
	hr__slots site_slots; /* by all their fields */
	hr__slots allocator_slots, device_slots, stream_slots;
	uint32_t last_site, last_stream; /* found last: most events have the same */
	uint32_t last_allocator_id, last_allocator;

	/* Blocks. */
	hr__slots live;          /* allocations by allocator and address */
	uint64_t *in_use;        /* of each allocator: bytes */
	uint64_t *device_in_use; /* of each device: bytes */
	uint64_t bytes_allocated;
	bool mark_seen;               /* the mark that ends the list of existing blocks was seen */
	uint64_t skipped_before_mark; /* events */
	uint32_t allocations_before_mark;

	/* Ops and steps. */
	hr__array parents;   /* of each op: index of the enclosing op + 1; 0 = none */
	uint32_t *innermost; /* of each thread: index of the innermost op + 1; 0 = none */
	uint64_t device_ns_total;
	hr_name stall_mark;      /* tag of the marks that LMS writes at the end of a step that stalled */
	hr_name plan_mark;       /* tag of the marks that LMS writes when it has made a plan: a pause of the program */
	uint32_t step;           /* the open step; HR__NONE */
	hr_name step_tags[HR__STEP_TAGS_MAX]; /* tags of its members (capture.h); members beyond these are unknown */
	uint32_t step_tag_count; /* 0: unknown, as in older recordings */
	uint64_t step_unended;   /* STEPs of the open step without a STEP_END yet */
	uint64_t step_ends_owed; /* STEP_ENDs still to come for steps that another STEP ended */

	/* Moves. */
	hr__region_list regions;
	hr__lives lives;
	size_t tensor_ends; /* number of items of tensor_ends that the sequence has already */
	uint64_t bytes_moved;
} hr__builder;

/* hr__builder_sites(b), hr__builder_allocations(b)...: the items of an array so far. */
#define HR__CAPTURE_ARRAY(type, items, counter, most)                        \
	static inline type *hr__builder_##items(const hr__builder *b)            \
	{                                                                        \
		return (type *)(void *)b->arrays->items.base;                        \
	}
HR__CAPTURE_ARRAYS(HR__CAPTURE_ARRAY)
#undef HR__CAPTURE_ARRAY

/* Appends an item to the sequence, the order of events of different kinds. */
static inline hr_status hr__builder_add_item(hr__builder *b, hr__item_kind kind)
{
	hr_status status = HR_OK;
	uint8_t *item = hr__array_push(&b->arrays->sequence, &status);
	if (!status) *item = (uint8_t)kind;
	return status;
}

/* Counts a skipped event, unless it may end something that began before the recording ([from_before]). */
static inline void hr__builder_skip(hr__builder *b, bool from_before)
{
	if (!b->mark_seen) b->skipped_before_mark++;
	else if (!from_before) b->capture->skipped++;
}

/* The functions below fail with HR_NO_HOST_MEMORY and HR_TOO_MANY; with the stream's status on an event that a strict stream does not
 * allow. */

/* ---- tables.c: devices, allocators, streams and sites ---- */

/* Adds the file's devices and allocators, and one "(unknown)" entry of each, the last. */
hr_status hr__builder_add_definitions(hr__builder *b);
/* Whether an "(unknown)" entry is in use. */
bool hr__builder_uses_unknown(const hr__builder *b);

/* Index of the allocator with that id in the file; the "(unknown)" entry if the file does not define it. */
uint32_t hr__builder_look_up_allocator(hr__builder *b, uint32_t id);
static inline uint32_t hr__builder_find_allocator(hr__builder *b, uint32_t id)
{
	return HR_LIKELY(id == b->last_allocator_id) ? b->last_allocator : hr__builder_look_up_allocator(b, id);
}

/* The device of an allocator, both as indices. */
static inline uint32_t hr__builder_device_index(const hr__builder *b, uint32_t allocator)
{
	return hr__builder_allocators(b)[allocator].device;
}

static inline hr__capture_device *hr__builder_device_of(const hr__builder *b, uint32_t allocator)
{
	return &hr__builder_devices(b)[hr__builder_device_index(b, allocator)];
}

/* The index of a stream, in the order of first use. Streams beyond the maximum share the last entry. */
hr_status hr__builder_look_up_stream(hr__builder *b, hr_stream stream, uint16_t *out);
static inline hr_status hr__builder_find_stream(hr__builder *b, hr_stream stream, uint16_t *out)
{
	*out = (uint16_t)b->last_stream;
	if (HR_LIKELY(b->last_stream < b->arrays->streams.count && hr__builder_streams(b)[b->last_stream] == stream)) return HR_OK;
	return hr__builder_look_up_stream(b, stream, out);
}

/* The index of the site of an event. */
hr_status hr__builder_find_site(hr__builder *b, const hr__event *e, uint32_t *out);

/* ---- blocks.c: allocations, changes, bytes in use ---- */

hr_status hr__builder_add_alloc(hr__builder *b, const hr__event *e);
hr_status hr__builder_add_free(hr__builder *b, const hr__event *e);

/* The live allocation at [address]; HR__NONE: there is none. */
uint32_t hr__builder_find_live(const hr__builder *b, uint32_t allocator, uint64_t address);

/* Strict streams: fails if the block of the event is not live ([allocation] is HR__NONE), or the sizes of the event and of the
 * allocation differ. [verb] is for the message. */
hr_status hr__builder_check_block(const hr__builder *b, const hr__event *e, uint32_t allocation, const char *verb);

/* ---- program.c: ops, uses, steps, marks ---- */

hr_status hr__builder_add_op_begin(hr__builder *b, const hr__event *e);
hr_status hr__builder_add_op_end(hr__builder *b, const hr__event *e);
hr_status hr__builder_add_use(hr__builder *b, const hr__event *e);
hr_status hr__builder_add_step(hr__builder *b, const hr__event *e);
void hr__builder_add_step_end(hr__builder *b, const hr__event *e);
hr_status hr__builder_add_mark(hr__builder *b, const hr__event *e);
/* After the last event. */
void hr__builder_end_steps(hr__builder *b);

/* ---- moves.c: moves of tensors, refusals, regions ---- */

hr_status hr__builder_add_move(hr__builder *b, const hr__event *e, hr__move_kind kind);
hr_status hr__builder_add_refusal(hr__builder *b, const hr__event *e);
hr_status hr__builder_add_region(hr__builder *b, const hr__event *e);
/* Appends the tensors that the last call of hr__lives_* ended to the sequence, unless [status] is an error, which is returned. */
hr_status hr__builder_end_tensors(hr__builder *b, hr_status status);

#endif
