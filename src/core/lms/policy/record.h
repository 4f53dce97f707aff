/* record.h - a record of a step: its pin calls, the tensors that each names, and how long the device worked on it. Private to the
 * learned policy (learned.h).
 *
 * An op is a pin call. Ops, tensors and uses are numbered in order, and plans refer to these numbers. A record that runs out of
 * host memory is BROKEN: nothing more is added, and no plan is made of it. Under the context's lock. */
#ifndef HR_LMS_RECORD_H
#define HR_LMS_RECORD_H

#include "core/lms/lms.h"
#include "core/lms/plan/plan.h"

struct hr__recipe;

#define HR__RECORD_NONE UINT32_MAX /* no tensor, no number, no op */

/* ---- growing arrays ---- */

/* All zero = empty. The owner knows the type of its items. */
typedef struct hr__record_array {
	void *items;
	uint32_t count;
	size_t capacity;
} hr__record_array;

#define HR__RECORD_AT(type, array, index) (((type *)(array).items)[index])

/* Doubles the capacity; [item] is the size of an item. False, and nothing changes, without host memory. */
bool hr__record_array_grow(hr__record_array *array, size_t item);
/* Makes sure that one more item fits; false as above. */
bool hr__record_array_has_room(hr__record_array *array, size_t item);
void hr__record_array_free(hr__record_array *array, size_t item);

/* ---- the record ---- */

typedef struct hr__recorded_tensor {
	hr_tensor handle; /* valid if it existed before the step, or outlives it */
	uint64_t bytes;
	uint32_t died;    /* op, or HR__PLAN_NEVER */
	uint32_t created; /* its number among those created in the step; HR__RECORD_NONE = it existed before */
	bool never_evict;
	bool owns_pages;      /* so it needs no place in a layout */
	bool has_recipe;      /* one was set before the tensor was used by a second op: it runs the op that created the tensor */
	bool reads_others;    /* the recipe reads more than what that op reads or creates */
	uint32_t recipe_until; /* the recipe ended before the op after this one; HR__PLAN_NEVER = when the tensor was destroyed, or later */
} hr__recorded_tensor;

typedef struct hr__recorded_op {
	uint32_t first_use, timed; /* number of intervals in [ns] */
	uint64_t ns; /* time of the device: sum of its intervals */
} hr__recorded_op;

/* The device works on an op from the end of a pin call to the next call. An op with several pin calls (hr_pin_group_begin) has several
 * intervals, because a pin call may take long on the host while the device is idle. */
typedef struct hr__recorded_interval {
	uint32_t op;
	hr_stream stream;
	uint64_t begin, end; /* marks; 0 = none */
} hr__recorded_interval;

typedef struct hr__record {
	hr__record_array tensors, ops, uses; /* hr__recorded_tensor, hr__recorded_op, hr__plan_use */
	hr__record_array intervals;          /* hr__recorded_interval */
	uint32_t timed;                      /* intervals whose time is known, or never will be */
	hr_stream timed_stream;              /* of the last interval whose time is known */
	uint64_t timed_end;                  /* and its end; 0 = there is none */
	uint64_t mark_ns;                    /* least time between two intervals: that of a mark, of which each interval has one */
	bool without_marks;                  /* the time of marks was taken off */
	bool measured, broken;               /* at least one op was timed; host memory ran out */
	bool ended;                          /* the step has ended: so has its last interval */
	bool mapped;                         /* pages were mapped in it, or all was evicted before it: the device waited, so ops may seem to take longer than they do */
	uint64_t signature;                  /* hash of all events in order: equal for steps that are alike */
} hr__record;

/* Empties a record, and keeps its memory. Also before its first use. */
void hr__record_clear(hr__record *record);
void hr__record_free(hr__record *record);
/* Adds a value to the signature. */
void hr__record_sign(hr__record *record, uint64_t value);
/* Adds a tensor; [created] as above. Returns its number in the record; HR__RECORD_NONE if the record is broken. */
uint32_t hr__record_tensor(hr__record *record, const hr__tensor *tensor, uint32_t created);
/* Begins the next op. False if the record is broken. */
bool hr__record_op(hr__record *record);
/* Adds a use of tensor number [slot] by the current op; HR__RECORD_NONE is ignored. Counts the tensor's uses: named twice in an op,
 * it is used once. True if a use was added. */
bool hr__record_use(hr__record *record, hr__tensor *tensor, uint32_t slot, bool write);

/* Index of the first use of op [op]; op = the number of ops: the end. */
static inline uint32_t hr__record_first_use(const hr__record *record, uint32_t op)
{
	return op < record->ops.count ? HR__RECORD_AT(hr__recorded_op, record->ops, op).first_use : record->uses.count;
}

/* ---- recipes ---- */

/* Notes that the outputs of a recipe got it, as far as one op of this step ([step]) has created them. */
void hr__record_recipe(hr__record *record, const struct hr__recipe *recipe, uint32_t step);
/* Notes that the recipe of tensor number [slot] has ended: op [until] is the last before which it could still run. */
void hr__record_recipe_end(hr__record *record, uint32_t slot, uint32_t until);
/* Says which ops can run again: those whose tensors that outlive them all have a recipe, which reads only what the op reads or creates.
 * [ops] has all ops of the record; [seen] has a false for each tensor, and true for those that are used afterwards. */
void hr__record_mark_pure(const hr__record *record, hr__plan_op *ops, bool *seen);

/* ---- times ---- */

/* Begins an interval of the current op at [mark]. */
void hr__record_begin_interval(hr__record *record, hr_stream stream, uint64_t mark);
/* Ends the last interval at [mark], or later if it had ended. */
void hr__record_end_interval(hr__record *record, uint64_t mark);
/* The step has ended: forgets an interval that has not. */
void hr__record_close_intervals(hr__record *record);
/* Reads the times of up to [most] intervals whose marks are done: a few at a time while a step runs. Once all are known, the time of marks is
 * taken off: on a card 1.2 us for each interval, which is a tenth of a step of many small ops. */
void hr__record_time(hr__device *device, hr__record *record, uint32_t most);
/* Waits until the device has done the ops whose times are not known. Without the lock; the record must not change meanwhile. */
void hr__record_wait(hr__device *device, const hr__record *record);
/* Whether the times of all ops are known, or never will be. */
bool hr__record_is_timed(const hr__record *record);

#endif
