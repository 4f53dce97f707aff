/* lives.h - joins the pieces of a tensor's life in a recording made under Large Model Support.
 *
 * In such a recording a tensor that leaves the device is freed, and allocated again when it returns, perhaps elsewhere. A PIECE is what
 * lies between an ALLOC and its FREE; a LIFE is all pieces of one tensor. Two passes over the events of the file:
 *
 *     read     hr__lives_read, every event: finds out which piece goes on in which
 *     replay   hr__lives_next, every event again: says what it is, with lives for blocks
 *
 * What ties the pieces together is where the copy is on the host:
 *
 *     EVICT at A, copy at H         the piece at A has a copy at H
 *     FREE of A                     the tensor is away if its piece has a copy; else its life ends
 *     ALLOC of B, RESTORE at B, H   one thread, one after the other: the piece at B goes on with the life whose copy is at H
 *     FREE of H, on the host        the copy is gone. If the tensor is away, it was destroyed: its life ends
 *     MOVE from A to B              the piece at B goes on with the life at A (defragmentation)
 *
 * A copy in the spill file has no FREE: a tensor that is destroyed while it is there lives until the place is used again.
 *
 * A tensor that was away when the recording began, and returns, lives from the beginning.
 *
 * Memory: 24 bytes per ALLOC of the device, 64 per thread, 32 per live block. */
#ifndef HR_CLI_LIVES_H
#define HR_CLI_LIVES_H

#include <stdbool.h>

#include "id_map.h"
#include "trace/trace.h"

typedef struct hr__lives hr__lives;

/* [threads]: numbers of threads are below. HR_NO_HOST_MEMORY. */
hr_status hr__lives_open(uint64_t threads, hr__lives **out);
void hr__lives_close(hr__lives *lives);

/* The next event of the first pass. [on_device]: its allocator is one of the device that is asked about. HR_UNSUPPORTED: a tensor
 * returns, and the file does not say where its copy was. HR_TOO_MANY, HR_NO_HOST_MEMORY. */
hr_status hr__lives_read(hr__lives *lives, const hr__event *event, bool on_device);

/* Ends the first pass. */
void hr__lives_rewind(hr__lives *lives);

/* Lives that began before the recording did, one by one in any order; false when there are no more. */
bool hr__lives_early(hr__lives *lives, uint32_t *life, uint64_t *bytes);

typedef enum hr__life_event {
	HR__LIFE_NOTHING, /* it is neither a beginning nor an end */
	HR__LIFE_BEGINS,
	HR__LIFE_ENDS,
	HR__LIFE_USED
} hr__life_event;

/* What the event is in the second pass, and the number of the life; for a READ or WRITE of an unknown block that is UINT32_MAX. A FREE of
 * an unknown block is HR__LIFE_ENDS of UINT32_MAX. HR_NO_HOST_MEMORY. */
hr_status hr__lives_next(hr__lives *lives, const hr__event *event, bool on_device, hr__life_event *what, uint32_t *life);

/* Pieces that were joined to an earlier one. */
uint64_t hr__lives_joined(const hr__lives *lives);

#endif
