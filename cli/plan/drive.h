/* drive.h - replays a schedule through the public tensor API, as the recorded program would have called it.
 *
 *     CREATE   hr_tensor_create; a tensor that no op makes is pinned HR_OVERWRITE once, to write its contents
 *     OP       hr_op_set, one hr_tensor_pin_all of the op's working set, [touch] for each tensor of it, [busy], hr_tensor_unpin_all
 *     DESTROY  hr_tensor_destroy
 *
 * If options.recompute is on, an op that is known by name to be pure (analysis/schedule/pure_ops.h) gives the tensors that it makes a
 * recipe. The recipe allocates the op's workspace, touches what it makes, and is busy for the time of the op.
 *
 * A pin is HR_OVERWRITE for a tensor that the op makes, HR_WRITE for an existing one that it writes, HR_READ for the rest. With recipes, a
 * view only reads what it shares.
 *
 * The caller's callbacks do the computing and define the contents of tensors; this module uses no device. A trace of several
 * streams is replayed on one stream, in its order.
 *
 * REPLAYING STEPS. Part 0 of the schedule is played before the first step. Then the steps of [plays] are played, in any order and any
 * number of times. Before a step is played, the set of live tensors is made equal to the set that was live in the recording when
 * that step began. In the order of the recording this changes nothing. Otherwise:
 *
 *     live then and now                  the same tensor: weights and optimizer state, which live through all steps
 *     live then, not now                 takes over a tensor of the same size that is live now and was not then, or is created and
 *                                        filled; happens when a step played since freed the tensor, and when the step that made it
 *                                        was left out
 *     live now, not then, not taken over destroyed: made by a step for a later step that is not played
 *
 * So a step that frees tensors of the step before and leaves similar ones behind can be played repeatedly, and passes them on to
 * itself. */
#ifndef HR_CLI_DRIVE_H
#define HR_CLI_DRIVE_H

#include "analysis/schedule/schedule.h"

/* A pinned tensor of the running op. */
typedef struct hr__drive_touch {
	uint32_t tensor; /* index in the schedule */
	uint64_t birth;  /* number of the creation; distinguishes several lifetimes of one tensor of the schedule */
	hr_tensor handle;
	hr_access access;
	hr_stream stream;
	bool again; /* a recipe is running: the tensor gets the contents that it was dropped with */
} hr__drive_touch;

/* Callbacks may be NULL. A status other than HR_OK ends the replay with that status. */
typedef struct hr__drive_options {
	hr_allocator allocator;
	hr_stream stream;      /* used for all work */
	const uint32_t *plays; /* parts of the schedule, each 1 or more */
	size_t play_count;
	bool recompute; /* pure ops give what they make recipes */
	void *context;  /* passed to the callbacks */
	/* Computes the op: queues work for [ns] on [stream]. */
	hr_status (*busy)(void *context, hr_stream stream, uint64_t ns);
	/* Called for each pinned tensor before the op computes, and with HR_OVERWRITE for each tensor that is filled. It may take the
	 * address, check contents and write them, in stream order. Not called for workspace. */
	hr_status (*touch)(void *context, const hr__drive_touch *touch);
	/* Called before play number [play], when all earlier ones have been queued on the device; and with [play] = play_count at the
	 * end. */
	hr_status (*step)(void *context, size_t play);
	/* Called before a tensor is destroyed, by the schedule or at the end of the replay. */
	void (*leave)(void *context, uint32_t tensor, hr_tensor handle);
} hr__drive_options;

typedef struct hr__drive_result {
	uint64_t ops;    /* completed */
	uint32_t part;   /* played or prepared last */
	uint32_t op;     /* the op that could not be pinned; HR__SCHEDULE_NONE = none */
	uint32_t tensor; /* the tensor that could not be filled; HR__SCHEDULE_NONE = none */
} hr__drive_result;

/* Replays the schedule, and destroys every tensor at the end, also on failure. HR_OUT_OF_MEMORY as from hr_tensor_pin_all, with its message;
 * otherwise the status of the call that failed. *out is always filled in. */
hr_status hr__drive(const hr__schedule *schedule, const hr__drive_options *options, hr__drive_result *out);

#endif
