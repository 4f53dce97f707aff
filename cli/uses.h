/* uses.h - a recorded program with its uses: which op reads and writes which tensor, in which step, and how long it computes.
 *
 * A tape (tape.h) has only allocations and frees; this is what a planner needs. Blocks of the trace are tensors, with the tape's
 * numbers. Acts are the events, in order:
 *
 *     CREATE tensor    an allocation. Allocations between the begin and the end of an op come before the op
 *     OP op            an execution
 *     DESTROY tensor   a free. Frees while an op runs come after the op
 *
 * The WORKING SET of an op is all that it reads, writes or allocates. Tensors that it allocates and frees are its WORKSPACE. Two
 * workspace tensors count as live at the same time even if one is freed before the other is allocated.
 *
 * An op MAKES a tensor that it allocates, and one that was allocated since the previous op and that it writes without reading. A
 * tensor that no op makes (weights that are read first, a batch copied from the host) is FILLED at its allocation by something that
 * is not in the trace.
 *
 * Part 0 is everything before the first step; parts 1, 2, ... are the steps. A trace with ops and without steps is one step from
 * its first op on.
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
#define HR__USES_NS_MAX (UINT64_C(1) << 60) /* of all ops together: 36 years */

typedef struct hr__tensor_use {
	uint32_t tensor;
	bool reads, writes, makes;
} hr__tensor_use;

typedef struct hr__use_op {
	uint64_t ns;        /* time on the device */
	uint32_t first_use; /* index in uses; a tensor occurs at most once in an op */
	uint32_t use_count;
	hr_name name;
} hr__use_op;

typedef struct hr__use_tensor {
	uint64_t bytes; /* as requested */
	uint32_t maker; /* the op that makes it; HR__USES_NONE = it is filled */
	uint32_t born;  /* part in which it is allocated */
	uint32_t died;  /* part in which it is freed; HR__USES_NONE = never */
	bool workspace;

	/* while reading */
	uint32_t ops_before;   /* ops that had ended when it was allocated */
	uint32_t last_use_end; /* index of its last use + 1 */
} hr__use_tensor;

typedef enum hr__act_kind { HR__ACT_CREATE = 1, HR__ACT_OP, HR__ACT_DESTROY } hr__act_kind;

typedef struct hr__act {
	uint32_t kind;
	uint32_t index; /* of a tensor or an op */
} hr__act;

typedef struct hr__use_part {
	uint64_t number; /* the step's number in the trace */
	uint32_t first_act, act_count;
	uint32_t op_count;
	bool hindered; /* tensors moved or requests were refused while it was recorded */
	uint64_t ns;   /* of all its ops */
} hr__use_part;

typedef struct hr__uses {
	hr__use_op *ops;
	hr__tensor_use *uses;
	hr__use_tensor *tensors;
	hr__act *acts;
	hr__use_part *parts;
	uint32_t op_count, use_count, tensor_count, act_count, part_count;
	uint32_t most_uses; /* maximum of an op */
	uint64_t accesses;  /* reads and writes in the trace; 0 = it has no use events */
	uint64_t odd;       /* use events that match no op or block; only in files that may have lost events */
	bool unmarked;      /* the trace has no steps */
	uint32_t first_step;  /* the first part from 1 on that has an op; HR__USES_NONE = there is none */
	bool has_others;      /* later parts have ops too */
	bool has_unhindered;  /* at least one later part with ops is not hindered */

	/* while reading */
	bool strict;
	bool running;
	uint32_t depth; /* nesting level inside the running op */
	uint64_t running_id, running_thread;
	hr_name running_name;
	uint32_t first_begin; /* number of acts before the first op began */
	uint64_t ns;
	uint32_t *pending; /* tensors freed while the op runs */
	uint32_t pending_count;
	size_t op_capacity, use_capacity, tensor_capacity, act_capacity, part_capacity, pending_capacity;
} hr__uses;

/* [strict]: inconsistencies are errors; otherwise they are counted as odd where possible. */
hr_status hr__uses_init(hr__uses *uses, bool strict);
void hr__uses_free(hr__uses *uses);

/* ---- reading: events in the order of the trace. HR_BAD_FORMAT, HR_TOO_MANY, HR_NO_HOST_MEMORY, with messages that do not name the
 * file. The caller numbers tensors 0, 1, 2, ... in order of allocation. [thread] is any number that identifies the thread. ---- */

hr_status hr__uses_alloc(hr__uses *uses, uint64_t bytes, uint64_t thread);
hr_status hr__uses_release(hr__uses *uses, uint32_t tensor);
hr_status hr__uses_step(hr__uses *uses, uint64_t number);
/* One op at a time. Nested ops, allowed unless strict, count as parts of the outer op. */
hr_status hr__uses_op_begin(hr__uses *uses, uint64_t id, hr_name name, uint64_t thread);
hr_status hr__uses_op_end(hr__uses *uses, uint64_t id, uint64_t ns, uint64_t thread);
/* [block] is the block's id in the trace, for messages. */
hr_status hr__uses_access(hr__uses *uses, uint32_t tensor, uint64_t block, bool write, uint64_t thread);
/* Marks the current step: tensors moved or requests were refused. */
void hr__uses_hindered(hr__uses *uses);
/* Ends reading. HR_TRUNCATED: the trace ends inside an op, if strict. */
hr_status hr__uses_finish(hr__uses *uses);

/* ---- queries ---- */

/* The part of the step with that number in the trace; HR__USES_NONE if there is none. */
uint32_t hr__uses_find_step(const hr__uses *uses, uint64_t number);

/* Whether [tensor] is live when part [part] begins. */
static inline bool hr__uses_lives_at(const hr__use_tensor *tensor, uint32_t part)
{
	return tensor->born < part && tensor->died >= part;
}

/* Whether [part] is a candidate for the typical step: a step that has ops; not the first such step if there are others, because it
 * creates what the others keep; and not a hindered one if there are others, because its times and its length are affected by a lack
 * of memory. */
bool hr__uses_is_candidate(const hr__uses *uses, uint32_t part);

/* The candidate with the median time of ops. HR__USES_NONE if no step has an op. */
uint32_t hr__uses_typical_step(const hr__uses *uses);

/* The access of the pin for a use. */
hr_access hr__tensor_use_access(const hr__tensor_use *use);

#endif
