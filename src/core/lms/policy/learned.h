/* learned.h - what the files of the learned policy share: all that it knows.
 *
 *     learned.c   what a program does in a step: it is recorded (record.h), copies are timed (link.h)
 *     steps.c     steps begin and end: judging the record, correcting, a new plan in force (force.h)
 *     follow.c    what the plan in force means for the step that runs
 *
 * The head of learned.c tells how they work together. lms.h has what others call. */
#ifndef HR_LMS_LEARNED_H
#define HR_LMS_LEARNED_H

#include "core/lms/policy/force.h"
#include "core/lms/policy/link.h"
#include "core/lms/lms.h"
#include "core/lms/policy/record.h"
#include "core/lms/policy/repeats.h"

typedef struct hr__learned hr__learned;

/* A tensor that had to leave though the plan would have it stay. */
typedef struct hr__stray {
	hr_tensor handle;
	uint32_t need; /* as in hr__comeback */
} hr__stray;

/* Under the context's lock. */
struct hr__learned {
	hr__record now, last; /* of this step, and of the one before it */
	hr__force force;
	bool recording, has_last;
	uint64_t before_last; /* signature of the step before the last */
	uint32_t step;       /* number, to tell whether a tensor's slot is of this step */
	uint32_t position;   /* pin calls in this step */
	uint32_t created;    /* tensors created in it */
	uint32_t mismatches; /* in it */
	uint32_t on, off;    /* uses in it, as planned and not */
	uint32_t next_return;
	hr__array waiting;   /* hr_tensor: returns that were asked for and are not done */
	hr__array strays;    /* hr__stray: not asked back yet */
	hr__link link;       /* how fast copies go */
	uint64_t slack;      /* of memory that plans leave alone, because it was found scattered */
	uint64_t memory;     /* that the last plan was made for */
	uint64_t unplanned;  /* bytes that had to leave in this step against the plan, */
	uint64_t scattered;  /* and most bytes that were free then, but of no use */
	uint32_t corrections;
	bool tidies;         /* free memory is put together before each step, */
	uint64_t tidy_ns;    /* which took so long the last time; 0 = it was not done yet */
	uint64_t area, area_bytes; /* where the plan's layout is; 0 = nowhere yet */
	uint64_t mapping;    /* time that mapping pages took until this step */
	bool costly;         /* it takes so much that places are worth finding */
	bool planning;       /* somebody is making a plan of [last] */
	uint32_t gathered;   /* times memory was put together for a layout */
	hr__repeats *repeats; /* watched as long as nobody says when steps begin; NULL until there is need */
	bool watching;       /* steps begin where a repeat does */
	bool wants_plan;     /* the last record should become one, once its times are known */
	hr__atomic_u8 settled; /* the plan in force has proved right often enough: nothing needs timing. For those without the lock */
};

/* ---- steps (steps.c) ---- */

/* Programs that mark no steps: one begins wherever their calls begin to repeat. Before a pin call, without the lock. */
void hr__steps_watch(hr__lms *lms, const hr_pin *pins, size_t count);

/* ---- following the plan (follow.c) ---- */

/* A tensor was created as [number] of the step: it may be one of the plan's. Under the lock. */
void hr__follow_created(hr__lms *lms, hr__tensor *tensor, uint32_t number);
/* It is going, so the plan no longer knows who it is. Under the lock. */
void hr__follow_destroyed(hr__learned *learned, const hr__tensor *tensor);
/* Before a pin call, without the lock: asks for what the plan wants back before it, and for what found no room before. */
void hr__follow_before(hr__lms *lms);
/* Compares the use that was just recorded of a tensor with the plan's. Under the lock. */
void hr__follow_use(hr__learned *learned, const hr__tensor *tensor);
/* After an unpin, without the lock: sends those away that the plan sends after it. */
void hr__follow_unpinned(hr__lms *lms, const hr_pin *pins, size_t count);

#endif
