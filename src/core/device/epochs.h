/* epochs.h - two epochs (device.h) in 64 bits: when ordinary streams, and when copy streams, used some memory last. Pure.
 *
 * The streams in HR__COPY_STREAMS copy tensors to the host and back. Their queues are long, so a wait for work that one of them was given
 * lately may take as long as a step. Memory that such a stream used long ago is often joined with memory that was freed just now. With one
 * epoch for all streams, the next user of either part would wait for all copies that were queued in between.
 *
 *     63         48 47                                    0
 *    | difference  |  epoch of ordinary streams            |      epoch of copy streams = epoch + difference, a signed number
 *
 * An epoch that is equal for all streams is itself, so a free stores the device's epoch as it is. A difference that does not fit makes the
 * older epoch newer: its users then wait longer than needed. 48 bits are enough for 8 years with a million events per second. */
#ifndef HR_DEVICE_EPOCHS_H
#define HR_DEVICE_EPOCHS_H

#include "core/base/assert.h"
#include "headroom.h"

typedef uint64_t hr__epochs;

/* Slots of streams. Streams of hr__device_copy_stream get these; those of programs only if no other slot is free. */
#define HR__COPY_STREAMS (UINT64_C(0xf) << 60)
#define HR__EPOCH_BITS 48
#define HR__EPOCHS_APART 32767 /* largest difference */

_Static_assert(HR_STREAM_MAX == 64, "the slots of copy streams are the last ones of a set");

static inline uint64_t hr__epochs_ordinary(hr__epochs epochs)
{
	return epochs & ((UINT64_C(1) << HR__EPOCH_BITS) - 1);
}

static inline uint64_t hr__epochs_copies(hr__epochs epochs)
{
	return hr__epochs_ordinary(epochs) + (uint64_t)((int64_t)epochs >> HR__EPOCH_BITS);
}

static inline hr__epochs hr__epochs_of(uint64_t ordinary, uint64_t copies)
{
	HR_ASSERT((ordinary | copies) >> HR__EPOCH_BITS == 0);
	if (copies + HR__EPOCHS_APART < ordinary) copies = ordinary - HR__EPOCHS_APART;
	if (ordinary + HR__EPOCHS_APART < copies) ordinary = copies - HR__EPOCHS_APART;
	return (copies - ordinary) << HR__EPOCH_BITS | ordinary;
}

/* The epochs of memory that was used by the streams [a] at [of_a] and by the streams [b] at [of_b]. An epoch of no stream counts as 0. */
static inline hr__epochs hr__epochs_join(uint64_t a, hr__epochs of_a, uint64_t b, hr__epochs of_b)
{
	uint64_t ordinary = a & ~HR__COPY_STREAMS ? hr__epochs_ordinary(of_a) : 0, copies = a & HR__COPY_STREAMS ? hr__epochs_copies(of_a) : 0;
	if (b & ~HR__COPY_STREAMS && hr__epochs_ordinary(of_b) > ordinary) ordinary = hr__epochs_ordinary(of_b);
	if (b & HR__COPY_STREAMS && hr__epochs_copies(of_b) > copies) copies = hr__epochs_copies(of_b);
	return (a | b) & HR__COPY_STREAMS ? hr__epochs_of(ordinary ? ordinary : copies, copies) : ordinary;
}

#endif
