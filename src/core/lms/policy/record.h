/* record.h - what was seen of a step: its pin calls, which tensors each of them names, and how long the device worked on it. Private to the
 * learned policy (learned.h).
 *
 * An op is a pin call. Ops, tensors and uses are numbered as they come, and plans are about those numbers. A record that runs out of host
 * memory is BROKEN: it takes nothing more, and no plan is made of it. Under the context's lock. */
#ifndef HR_LMS_RECORD_H
#define HR_LMS_RECORD_H

#include "core/lms/lms.h"
#include "core/lms/plan/plan.h"

#define HR__NONE UINT32_MAX /* no tensor, no number, no op */

/* ---- growing arrays ---- */

/* All zero = empty. The owner knows what is in it. */
typedef struct hr__array {
	void *items;
	uint32_t count, capacity;
} hr__array;

#define HR__AT(type, array, index) (((type *)(array).items)[index])

/* Makes it twice as large; [item] is the size of one. False, and nothing changed, when there is no host memory. */
bool hr__array_grow(hr__array *array, size_t item);
/* Makes sure that one more fits; false as above. */
bool hr__array_has_room(hr__array *array, size_t item);
void hr__array_free(hr__array *array, size_t item);

/* ---- what was seen of a step ---- */

typedef struct hr__seen_tensor {
	hr_tensor handle; /* of one that lived before the step, or lives on */
	uint64_t bytes;
	uint32_t died;    /* op, or HR__PLAN_NEVER */
	uint32_t created; /* its number among those created in the step; HR__NONE = it lived before */
	bool stays, apart; /* apart: it has pages of its own, which are in nobody's way */
} hr__seen_tensor;

typedef struct hr__seen_op {
	uint32_t first_use;
	uint32_t stream;
	uint64_t begin, end; /* marks; 0 = none */
	uint64_t ns;
} hr__seen_op;

typedef struct hr__record {
	hr__array tensors, ops, uses; /* hr__seen_tensor, hr__seen_op, hr__plan_use */
	uint32_t timed;               /* ops whose time is known, or will never be */
	bool measured, broken;        /* ops have marks; memory for it ran out */
	uint64_t signature;           /* of what happened, in order: steps that have the same are alike */
} hr__record;

/* Forgets what is in it, and keeps the memory. Before its first use too. */
void hr__record_clear(hr__record *record);
void hr__record_free(hr__record *record);
/* Adds a value to the signature. */
void hr__record_sign(hr__record *record, uint64_t value);
/* Takes a tensor in; [created] as above. Its number in the record; HR__NONE when the record is broken. */
uint32_t hr__record_tensor(hr__record *record, const hr__tensor *tensor, uint32_t created);
/* Begins the next op. False when the record is broken. */
bool hr__record_op(hr__record *record, hr_stream stream);
/* Tensor number [slot] is used by that op; HR__NONE is not recorded. Counts the tensor's uses: named twice in an op, it is used once. */
bool hr__record_use(hr__record *record, hr__tensor *tensor, uint32_t slot, bool write);

/* ---- times ---- */

/* Finds out how long ops took whose marks are done, [most] of them: a few at a time while a step runs. */
void hr__record_time(hr__device *device, hr__record *record, uint32_t most);
/* Whether the times of all ops are known, or will never be. */
bool hr__record_is_timed(const hr__record *record);
/* Ops are not timed in every step. What they took in another one like it is as good. */
void hr__record_keep_times(hr__record *record, const hr__record *before);
/* All ops, one after the other. */
uint64_t hr__record_compute_ns(const hr__record *record);

#endif
