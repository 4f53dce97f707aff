/* uses.h - a recorded program with its uses: which op reads and writes which tensor, in which step, and for how long it computes.
 *
 * Where a tape (tape.h) is allocations and frees alone, this is what a planner needs. Blocks of the trace are tensors, by the tape's
 * numbers. Acts are what happened, in order:
 *
 *     CREATE tensor    it is allocated. What an op allocates between its begin and its end is created before the op
 *     OP op            it runs
 *     DESTROY tensor   it is freed. What is freed while an op runs is destroyed after the op
 *
 * The WORKING SET of an op is all that it reads, writes or allocates. What it allocates and frees again is its WORKSPACE; two pieces of
 * workspace, one freed before the other is allocated, count as if both were there at once.
 *
 * An op MAKES a tensor when it allocated it, or when it was allocated since the op before and this op writes and does not read it. What
 * no op makes (weights that are read first, a batch that was copied from the host) was FILLED by something that the trace does not
 * show, where it was allocated.
 *
 * Part 0 is what happened before the first step, parts 1, 2, ... are the steps. A trace with ops and without steps is one step from its
 * first op on.
 *
 * Memory: 32 bytes per tensor, 24 per op, 8 per use and per act; at most HR__TAPE_EVENTS_MAX of all events together. */
#ifndef HR_CLI_USES_H
#define HR_CLI_USES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"
#include "headroom_lms.h"

#define HR__USES_NONE UINT32_MAX
#define HR__USES_NS_MAX (UINT64_C(1) << 60) /* all ops together: 36 years */

typedef struct hr__use {
	uint32_t tensor;
	bool reads, writes, makes;
} hr__use;

typedef struct hr__use_op {
	uint64_t ns;        /* it computes on the device */
	uint32_t first_use; /* of uses; a tensor at most once in an op */
	uint32_t use_count;
	hr_name name;
} hr__use_op;

typedef struct hr__use_tensor {
	uint64_t bytes; /* as requested */
	uint32_t maker; /* the op that makes it; HR__USES_NONE = it is filled */
	uint32_t born;  /* part in which it is allocated, */
	uint32_t died;  /* and freed; HR__USES_NONE = never */
	bool workspace;

	/* while reading */
	uint32_t ops_before;   /* ops that had ended when it was allocated */
	uint32_t last_use_end; /* index of its last use + 1 */
} hr__use_tensor;

typedef enum hr__act_kind { HR__ACT_CREATE = 1, HR__ACT_OP, HR__ACT_DESTROY } hr__act_kind;

typedef struct hr__act {
	uint32_t kind;
	uint32_t index; /* of a tensor, or of an op */
} hr__act;

typedef struct hr__use_part {
	uint64_t number; /* what the trace calls the step */
	uint32_t first_act, act_count;
	uint32_t op_count;
	bool hindered; /* tensors moved or requests were refused when it was recorded */
	uint64_t ns;   /* of its ops together */
} hr__use_part;

typedef struct hr__uses {
	hr__use_op *ops;
	hr__use *uses;
	hr__use_tensor *tensors;
	hr__act *acts;
	hr__use_part *parts;
	uint32_t op_count, use_count, tensor_count, act_count, part_count;
	uint32_t most_uses; /* of one op */
	uint64_t accesses;  /* reads and writes that the trace tells of: 0 = it has no use events */
	uint64_t odd;       /* use events that fit nothing; only in files that may have lost some */
	bool unmarked;      /* the trace has no steps */
	uint32_t first_step;  /* the first part from 1 on that has an op; HR__USES_NONE = none has */
	bool has_others;      /* others have ops too, */
	bool has_unhindered;  /* and among these are unhindered ones */

	/* while reading */
	bool strict;
	bool running;
	uint32_t depth; /* ops that the running one is inside of */
	uint64_t running_id, running_thread;
	hr_name running_name;
	uint32_t first_begin; /* acts before the first op began */
	uint64_t ns;
	uint32_t *pending; /* tensors freed while the op runs */
	uint32_t pending_count;
	size_t op_capacity, use_capacity, tensor_capacity, act_capacity, part_capacity, pending_capacity;
} hr__uses;

/* [strict]: what does not add up is an error; else it is counted as odd where that can be. */
hr_status hr__uses_init(hr__uses *uses, bool strict);
void hr__uses_free(hr__uses *uses);

/* ---- reading: events in the order of the trace. HR_BAD_FORMAT, HR_TOO_MANY, HR_NO_HOST_MEMORY, with messages that do not name the file.
 * Tensors are numbered by the caller: 0, 1, 2, ... as they are allocated. [thread] is any number that tells threads apart. ---- */

hr_status hr__uses_alloc(hr__uses *uses, uint64_t bytes, uint64_t thread);
hr_status hr__uses_release(hr__uses *uses, uint32_t tensor);
hr_status hr__uses_step(hr__uses *uses, uint64_t number);
/* One op at a time. Ops inside it, in files that are not strict, are taken to be parts of it. */
hr_status hr__uses_op_begin(hr__uses *uses, uint64_t id, hr_name name, uint64_t thread);
hr_status hr__uses_op_end(hr__uses *uses, uint64_t id, uint64_t ns, uint64_t thread);
/* [block] is what the trace calls it, for messages. */
hr_status hr__uses_access(hr__uses *uses, uint32_t tensor, uint64_t block, bool write, uint64_t thread);
/* In the step at hand tensors moved, or requests were refused. */
void hr__uses_hindered(hr__uses *uses);
/* The file ended. HR_TRUNCATED: inside an op, when strict. */
hr_status hr__uses_finish(hr__uses *uses);

/* ---- looking ---- */

/* The part of the step that the trace calls [number]; HR__USES_NONE. */
uint32_t hr__uses_find_step(const hr__uses *uses, uint64_t number);

/* Whether [tensor] lives when part [part] begins. */
static inline bool hr__uses_lives_at(const hr__use_tensor *tensor, uint32_t part)
{
	return tensor->born < part && tensor->died >= part;
}

/* Whether [part] is one of which the typical step is taken: a step that has ops; not the first of these where there are others, because that one creates what
 * the others keep; and not a hindered one where there are others, because its times and its length are those of a shortage. */
bool hr__uses_is_candidate(const hr__uses *uses, uint32_t part);

/* The step in the middle by the time of its ops, of those candidates. HR__USES_NONE when no step has an op. */
uint32_t hr__uses_typical_step(const hr__uses *uses);

/* A use as a pin. */
hr_access hr__use_access(const hr__use *use);

#endif
