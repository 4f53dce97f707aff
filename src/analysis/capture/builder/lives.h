/* lives.h - finds which allocations belong to the same tensor.
 *
 * In a recording made with Large Model Support an evicted tensor is freed, and allocated again when it is restored, perhaps at
 * another address. Its allocations are matched by the address of the host copy:
 *
 *     EVICT at A, copy at H         the allocation at A has a copy at H
 *     FREE of A                     the tensor is evicted if its allocation has a copy; otherwise it ends
 *     ALLOC of B, RESTORE at B, H   in sequence on one thread: the allocation at B continues the tensor whose copy is at H
 *     FREE of H, on another device  the copy is gone. If the tensor is evicted, it was destroyed
 *     MOVE from A to B              the allocation at B continues the tensor at A (defragmentation)
 *
 * A copy in the spill file has no FREE: a tensor that is destroyed there ends when its place in the file is reused. A tensor that
 * was evicted when the recording began, and is restored later, exists from the beginning.
 *
 * Memory: 24 bytes for each allocation up to the last one that continues another, 24 per thread, 16 per host copy. */
#ifndef HR_PROFILE_LIVES_H
#define HR_PROFILE_LIVES_H

#include "analysis/capture/array.h"
#include "analysis/capture/capture.h"
#include "analysis/capture/finder.h"

#define HR__LIVES_DEVICES_MAX 64u /* devices that evict to the host */

typedef struct hr__life_past hr__life_past;

typedef struct hr__lives {
	hr__array *lives;  /* hr__life, by allocation; an allocation beyond its end is its own birth */
	hr__array *ends;   /* uint32_t: births of tensors that were destroyed while they were evicted */
	hr__array states;  /* of each entry of lives: its host copy, and whether it is evicted */
	hr__array copies;  /* host copies; by_place finds them by device and address */
	hr__slots by_place;
	uint32_t devices[HR__LIVES_DEVICES_MAX]; /* those that have copies */
	uint32_t device_count;
	hr__life_past *pasts; /* by thread: its last allocations and frees */
	size_t threads;
} hr__lives;

/* What an event of a capture is about. */
typedef struct hr__life_event {
	const hr__event *event;
	uint32_t device;     /* index */
	uint32_t allocation; /* at event->address; HR__NONE: none */
} hr__life_event;

/* For at most [most] events of thread numbers below [threads]. HR_NO_HOST_MEMORY, also from the calls below. */
hr_status hr__lives_init(hr__lives *lives, hr__array *items, hr__array *ends, uint64_t most, size_t threads, uint64_t salt);
void hr__lives_free(hr__lives *lives); /* does not free the results */

void hr__lives_alloc(hr__lives *lives, const hr__life_event *e);
hr_status hr__lives_release(hr__lives *lives, const hr__life_event *e);
hr_status hr__lives_evict(hr__lives *lives, const hr__life_event *e);
/* *joined: whether the allocation continues another. *nameless: the event does not say where the copy is. */
hr_status hr__lives_restore(hr__lives *lives, const hr__life_event *e, bool *joined, bool *nameless);
/* [to]: the allocation at event->address2. */
hr_status hr__lives_move(hr__lives *lives, const hr__life_event *e, uint32_t to, bool *joined);

#endif
