/* lives.h - joins the pieces of a tensor's life in a recording made with Large Model Support.
 *
 * In such a recording an evicted tensor is freed, and allocated again when it is restored, perhaps at another address. A PIECE is
 * the time between an ALLOC and its FREE; a LIFE is all pieces of one tensor. Two passes over the events of the file:
 *
 *     read     hr__lives_read, every event: finds which piece continues which
 *     replay   hr__lives_next, every event again: returns its meaning, with lives instead of blocks
 *
 * Pieces are matched by the address of the host copy:
 *
 *     EVICT at A, copy at H         the piece at A has a copy at H
 *     FREE of A                     the tensor is evicted if its piece has a copy; otherwise its life ends
 *     ALLOC of B, RESTORE at B, H   in sequence on one thread: the piece at B continues the life whose copy is at H
 *     FREE of H, on the host        the copy is gone. If the tensor is evicted, it was destroyed: its life ends
 *     MOVE from A to B              the piece at B continues the life at A (defragmentation)
 *
 * A copy in the spill file has no FREE: the life of a tensor that is destroyed there ends when its place in the file is reused.
 *
 * A tensor that was evicted when the recording began, and is restored later, lives from the beginning.
 *
 * Memory: 24 bytes per ALLOC of the device, 32 per thread, at most 64 per live block and per host copy. */
#ifndef HR_CLI_LIVES_H
#define HR_CLI_LIVES_H

#include <stdbool.h>

#include "id_map.h"
#include "core/trace/trace.h"

typedef struct hr__lives hr__lives;

/* Thread numbers of events are below [threads]. HR_NO_HOST_MEMORY. */
hr_status hr__lives_open(uint64_t threads, hr__lives **out);
void hr__lives_close(hr__lives *lives);

/* Takes the next event of the first pass. [on_device]: its allocator belongs to the selected device. HR_UNSUPPORTED: a tensor is
 * restored, and the file does not have the address of its copy. HR_TOO_MANY, HR_NO_HOST_MEMORY. */
hr_status hr__lives_read(hr__lives *lives, const hr__event *event, bool on_device);

/* Ends the first pass. */
void hr__lives_rewind(hr__lives *lives);

/* Enumerates lives that began before the recording, in any order; false when there are no more. */
bool hr__lives_early(hr__lives *lives, uint32_t *life, uint64_t *bytes);

typedef enum hr__life_event {
	HR__LIFE_NOTHING, /* neither a beginning nor an end */
	HR__LIFE_BEGINS,
	HR__LIFE_ENDS,
	HR__LIFE_USED
} hr__life_event;

/* The meaning of the event in the second pass, and the number of the life. For a READ or WRITE of an unknown block, the number is
 * UINT32_MAX. A FREE of an unknown block is HR__LIFE_ENDS of UINT32_MAX. HR_NO_HOST_MEMORY. */
hr_status hr__lives_next(hr__lives *lives, const hr__event *event, bool on_device, hr__life_event *what, uint32_t *life);

/* Number of pieces that were joined to an earlier one. */
uint64_t hr__lives_joined(const hr__lives *lives);

#endif
