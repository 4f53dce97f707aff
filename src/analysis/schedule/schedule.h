/* schedule.h - a recorded program as a planner needs it: steps, ops, and which op reads and writes which tensor, and for how long it
 * computes.
 *
 * A schedule is made from a capture, for one device. Allocations of the capture become tensors: an allocation, or all allocations of
 * a tensor that was evicted and restored (analysis/capture/lives.h), so that the schedule is that of the program, whatever was moved
 * when it was recorded. Acts are the events, in order:
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
 * Of a trace without reads and writes only the peak is found, because there is nothing to plan.
 *
 * Memory: 32 bytes per tensor, 24 per op, 8 per use and per act. */
#ifndef HR_SCHEDULE_SCHEDULE_H
#define HR_SCHEDULE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "analysis/capture/array.h"
#include "analysis/capture/facts.h"
#include "headroom.h"
#include "headroom_lms.h"

#define HR__SCHEDULE_NONE UINT32_MAX
#define HR__SCHEDULE_NS_MAX (UINT64_C(1) << 60)   /* of all ops together: 36 years */
#define HR__SCHEDULE_LIVE_MAX (UINT64_C(1) << 46) /* 64 TiB: maximum memory of a simulated device */

typedef struct hr__tensor_use {
	uint32_t tensor;
	bool reads, writes, makes;
} hr__tensor_use;

typedef struct hr__schedule_op {
	uint64_t ns;        /* time on the device */
	uint32_t first_use; /* index in uses; a tensor occurs at most once in an op */
	uint32_t use_count;
	hr_name name;
} hr__schedule_op;

typedef struct hr__schedule_tensor {
	uint64_t bytes; /* as requested */
	uint32_t maker; /* the op that makes it; HR__SCHEDULE_NONE = it is filled */
	uint32_t born;  /* part in which it is allocated */
	uint32_t died;  /* part in which it is freed; HR__SCHEDULE_NONE = never */
	bool workspace;

	/* while the schedule is made */
	uint32_t ops_before;   /* ops that had ended when it was allocated */
	uint32_t last_use_end; /* index of its last use + 1 */
} hr__schedule_tensor;

typedef enum hr__schedule_act_kind { HR__ACT_CREATE = 1, HR__ACT_OP, HR__ACT_DESTROY } hr__schedule_act_kind;

typedef struct hr__schedule_act {
	uint32_t kind;
	uint32_t index; /* of a tensor or an op */
} hr__schedule_act;

typedef struct hr__schedule_part {
	uint64_t number; /* the step's number in the trace */
	uint32_t first_act, act_count;
	uint32_t op_count;
	bool hindered; /* tensors moved or requests were refused while it was recorded */
	uint64_t ns;   /* of all its ops */
} hr__schedule_part;

enum { HR__SCHEDULE_ARRAYS = 5 };

typedef struct hr__schedule {
	hr__schedule_op *ops;
	hr__tensor_use *uses;
	hr__schedule_tensor *tensors;
	hr__schedule_act *acts;
	hr__schedule_part *parts;
	uint32_t op_count, use_count, tensor_count, act_count, part_count;
	uint64_t peak_bytes;  /* live at once, with frees where they are in the trace */
	uint32_t most_uses;   /* maximum of an op */
	uint64_t accesses;    /* reads and writes by ops; 0 = the trace has no use events */
	uint64_t unknown;     /* reads, writes and ends of ops that match no running op */
	bool unmarked;        /* the trace has no steps */
	uint32_t first_step;  /* the first part from 1 on that has an op; HR__SCHEDULE_NONE = there is none */
	bool has_others;      /* later parts have ops too */
	bool has_unhindered;  /* at least one later part with ops is not hindered */
	hr__array arrays[HR__SCHEDULE_ARRAYS]; /* memory of the five lists above */
} hr__schedule;

/* Makes the schedule of the program on [device], an index. HR_BAD_FORMAT: a step begins inside of an op, or the times of ops or the
 * bytes of tensors are impossible. HR_UNSUPPORTED: ops overlap, or a tensor was restored and the file does not say which.
 * HR_NO_HOST_MEMORY. Messages do not name the file. On failure there is nothing to free. */
hr_status hr__schedule_make(const hr__capture *capture, uint32_t device, hr__schedule *out);
/* Reads a trace of any format and makes the schedule of the device that hr__trace_facts_find selects. [facts] may be NULL. Messages
 * name the file. */
hr_status hr__schedule_read(const char *path, int64_t device, hr__trace_facts *facts, hr__schedule *out);
hr_status hr__schedule_read_memory(const void *bytes, size_t size, hr__schedule *out);
void hr__schedule_free(hr__schedule *schedule);

/* ---- queries ---- */

/* The part of the step with that number in the trace; HR__SCHEDULE_NONE if there is none. */
uint32_t hr__schedule_find_step(const hr__schedule *schedule, uint64_t number);

/* Whether [tensor] is live when part [part] begins. */
static inline bool hr__schedule_lives_at(const hr__schedule_tensor *tensor, uint32_t part)
{
	return tensor->born < part && tensor->died >= part;
}

/* Whether [part] is a candidate for the typical step: a step that has ops; not the first such step if there are others, because it
 * creates what the others keep; and not a hindered one if there are others, because its times and its length are affected by a lack
 * of memory. */
bool hr__schedule_is_candidate(const hr__schedule *schedule, uint32_t part);

/* The candidate with the median time of ops. HR__SCHEDULE_NONE if no step has an op. */
uint32_t hr__schedule_typical_step(const hr__schedule *schedule);

/* The access of the pin for a use. */
hr_access hr__tensor_use_access(const hr__tensor_use *use);

#endif
