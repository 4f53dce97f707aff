/* drive.h - runs a use tape through the public API of tensors, as the program that was recorded would have used it.
 *
 *     CREATE   hr_tensor_create; a tensor that no op makes is pinned HR_OVERWRITE once, which is when its contents come to be
 *     OP       hr_op_set, one hr_pin_all of the op's working set, [touch] for each tensor of it, [busy], hr_unpin_all
 *     DESTROY  hr_tensor_destroy
 *
 * A pin is HR_OVERWRITE for what the op makes, HR_WRITE for what it writes and was there, HR_READ for the rest.
 *
 * What computes, and what the contents of tensors are, is the caller's business: there is no device in here. A trace of several streams is
 * played on one, in its order.
 *
 * PLAYING STEPS AGAIN. Before the first step, part 0 of the tape is played. Then the steps of [plays], in any order, any number of times.
 * One rule makes that possible: when a step is about to be played, what lives is made to be what lived in the recording when that step
 * began. In the order of the recording that changes nothing. Otherwise
 *
 *     what lived then and lives now                     is the same tensor: weights, optimizer state, which live through all steps
 *     what lived then and does not live now             takes over a tensor of the same size that lives now and did not then, or is created
 *                                                       and filled. That happens when the recording freed it in a step played since, and
 *                                                       when it was made in a step that was left out
 *     what lives now and did not then, and nobody took  is destroyed: what a step made for a later step that is not played
 *
 * So a step that frees what the step before left, and leaves the like behind, can be played over and over, and passes it on to itself. */
#ifndef HR_CLI_DRIVE_H
#define HR_CLI_DRIVE_H

#include "uses.h"

/* A tensor of the running op, pinned. */
typedef struct hr__drive_touch {
	uint32_t tensor; /* of the tape */
	uint64_t birth;  /* counts tensors as they are created: tells several lives of one tensor of the tape apart */
	hr_tensor handle;
	hr_access access;
	hr_stream stream;
} hr__drive_touch;

/* Callbacks may be NULL. A status other than HR_OK ends the drive with it. */
typedef struct hr__drive_options {
	hr_allocator allocator;
	hr_stream stream;      /* for all work */
	const uint32_t *plays; /* parts of the tape, each from 1 on */
	size_t play_count;
	void *context; /* for the callbacks */
	/* The op computes: gives [stream] work for [ns]. */
	hr_status (*busy)(void *context, hr_stream stream, uint64_t ns);
	/* Called for each pinned tensor before the op computes, and for what is filled, with HR_OVERWRITE. It may ask for the address, check
	 * contents and write them, in the order of the stream. Not called for workspace. */
	hr_status (*touch)(void *context, const hr__drive_touch *touch);
	/* Play number [play] is about to begin, and all before it have been given to the device; [play] = play_count: all have ended. */
	hr_status (*step)(void *context, size_t play);
	/* The tensor is about to be destroyed, by the program, or at the end of everything. */
	void (*leave)(void *context, uint32_t tensor, hr_tensor handle);
} hr__drive_options;

typedef struct hr__drive_result {
	uint64_t ops;    /* that ran */
	uint32_t part;   /* that was played, or prepared, last */
	uint32_t op;     /* that could not be pinned, */
	uint32_t tensor; /* or tensor that could not be filled; HR__USES_NONE = neither */
} hr__drive_result;

/* Plays, and destroys every tensor in the end, in either case. HR_OUT_OF_MEMORY as hr_pin_all has it, with its message; whatever else a
 * call returned. *out is filled in any case. */
hr_status hr__drive(const hr__uses *uses, const hr__drive_options *options, hr__drive_result *out);

#endif
