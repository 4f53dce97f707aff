/* learned.h - shared by the files of the learned policy: all its data.
 *
 *     learned.c   records what a program does in a step (record.h), times copies (link.h)
 *     steps.c     where steps begin and end: judges the record, corrects, activates a new plan (active_plan.h)
 *     follow.c    applies the active plan to the current step
 *     again.c     drops tensors and runs ops again, as the active plan says
 *
 * The top of learned.c explains how they work together. lms.h has the functions that other files call. */
#ifndef HR_LMS_LEARNED_H
#define HR_LMS_LEARNED_H

#include "core/lms/lms.h"
#include "core/lms/policy/active_plan.h"
#include "core/lms/policy/link.h"
#include "core/lms/policy/record.h"
#include "core/lms/policy/repeats.h"

typedef struct hr__learned hr__learned;

/* A tensor that was evicted unplanned. */
typedef struct hr__unplanned_tensor {
	hr_tensor handle;
	uint32_t need; /* as in hr__planned_restore */
} hr__unplanned_tensor;

/* An eviction, or a copy ahead of one, that the plan has after an op that may not be complete. */
typedef struct hr__late_eviction {
	hr_tensor handle;
	uint32_t free_at; /* as in hr__planned_use */
	bool evicted;     /* else it is only copied */
} hr__late_eviction;

#define HR__LATE_MAX 8u

/* Under the context's lock. */
struct hr__learned {
	hr__record now, last; /* of the current step and of the one before */
	hr__active_plan active_plan;
	bool recording, has_last;
	uint64_t before_last; /* signature of the step before the last */
	uint32_t step;        /* step number, to tell whether a tensor's slot is of this step */
	uint32_t position;    /* pin calls in this step */
	uint32_t created;     /* tensors created in this step */
	uint32_t mismatches;  /* in this step */
	uint32_t on, off;     /* uses in this step, as planned and not */
	uint32_t turn;        /* of the active plan: the one that runs, or ran last; HR__PLAN_NEVER = no step is running */
	uint32_t next_restore, next_act;
	uint64_t turns_before;  /* in all steps so far */
	uint32_t turns_running; /* threads that run an op again */
	hr__record_array due_restores;      /* hr_tensor: restores that are due and not done */
	hr__record_array unplanned_tensors; /* hr__unplanned_tensor: not due yet */
	hr__late_eviction late[HR__LATE_MAX];
	uint32_t late_count;
	hr__link link;                      /* speed of copies */
	hr__record_array times;             /* uint64_t: time of each op in the last step that was timed */
	uint64_t times_signature;           /* of that step */
	uint64_t slack;                     /* memory that plans leave unused, because it was found fragmented */
	uint64_t slack_used;                /* memory that the last plan left unused */
	uint64_t memory;                    /* that the last plan was made for */
	uint64_t limit;                     /* for tensors, that the last plan was made for (hr_lms_set_limit) */
	uint64_t limit_used;                /* that the active plan was made for */
	uint64_t step_begin;                /* when the step began, by the device's clock */
	uint64_t step_ns;                   /* least time from step to step that followed the active plan and mapped nothing; 0 = not known */
	uint64_t unplanned_bytes;           /* bytes of unplanned evictions in this step */
	uint64_t scattered;                 /* most bytes that were free at an unplanned eviction, but of no use */
	uint32_t corrections;
	bool joins_memory;         /* free memory is joined before each step */
	uint64_t join_ns;          /* time that joining took last; 0 = not done yet */
	uint64_t area, area_bytes; /* address range for the plan's layout; 0 = none yet */
	uint64_t mapping;          /* total time of mapping pages, until this step */
	bool mapping_is_slow;      /* mapping takes so long that a layout is worth finding */
	bool planning;             /* a thread is making a plan of [last] */
	uint32_t gathered;         /* times that memory was joined for a layout */
	bool settles;              /* all tensors were evicted before this step, so that it takes longer than the next one */
	hr__repeats *repeats;      /* used while the program marks no steps; NULL until needed */
	bool watching;             /* steps begin where a repeat begins */
	bool wants_plan;           /* a plan is to be made of the last record, once its times are known */
	hr__atomic_u8 no_small_copies; /* the link is known from large copies, or enough small ones are noted: small ones are not timed. As [settled] */
	hr__atomic_u8 settled;     /* the active plan was right often enough: nothing needs timing. For readers without the lock */
};

/* Whether memory was too small for the program at any time. */
static inline bool hr__learned_was_pressed(const hr__lms *lms)
{
	return hr__load_relaxed(&lms->stats.num_evictions) > 0 || hr__load_relaxed(&lms->stats.num_drops) > 0;
}

/* ---- steps (steps.c) ---- */

/* For programs that mark no steps: a step begins where their calls begin to repeat. Called before a pin call, without the lock. */
void hr__steps_watch(hr__lms *lms, const hr_pin *pins, size_t count);

/* ---- following the plan (follow.c) ---- */

/* A tensor was created as [number] of the step: it may be in the plan. */
void hr__follow_created(hr__lms *lms, hr__tensor *tensor, uint32_t number);
/* The tensor is being destroyed: removes it from the plan. */
void hr__follow_destroyed(hr__learned *learned, const hr__tensor *tensor);
/* Whether the pin call that begins, or was just made, belongs to the op of the call before it. */
static inline bool hr__follow_is_joined(const hr__lms *lms, const hr__pin_group *group)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	return group->depth && group->context == lms->handle.id && group->step == lms->learned->step &&
	       group->position == lms->learned->position; /* else another thread has pinned meanwhile */
}
/* Before a pin call: prefetches what the plan restores before it, and what did not fit earlier, and runs the ops again that the plan
 * has before it, on [stream]. */
void hr__follow_before(hr__lms *lms, hr_stream stream);
/* Compares the use that was just recorded with the plan's. */
void hr__follow_use(hr__learned *learned, const hr__tensor *tensor);
/* After an unpin: starts the evictions that the plan has after it. */
void hr__follow_unpinned(hr__lms *lms, const hr_pin *pins, size_t count);
/* The last op is complete: starts its evictions that were put off. */
void hr__follow_evict_late(hr__lms *lms);
/* A tensor got a recipe: it may be dropped now, if the plan has that after its last use. With the lock. */
void hr__follow_recipe(hr__learned *learned, hr__tensor *tensor);
/* A destroyed tensor, which was [planned] in the plan, lives on as a ghost, with a new handle. With the lock. */
void hr__follow_ghost(hr__learned *learned, hr__tensor *ghost, uint32_t planned);
/* The tensor is about to be restored or made again. If it still has its memory, because no other tensor needed that, and the layout
 * now has another place for it, it is evicted or dropped: later tensors have a place in that memory. Without locks. */
void hr__follow_leave_place(hr__tensor *tensor, uint64_t word);
/* Starts its copy to the host; the memory stays until another request needs it. [free_at]: as in hr__planned_use; NULL = it is not
 * evicted. */
void hr__follow_start_eviction(hr__tensor *tensor, uint64_t word, const uint32_t *free_at);

/* ---- running ops again (again.c) ---- */

/* Carries out turn [turn], in which an op runs again. */
void hr__again_run(hr__lms *lms, uint32_t turn, hr_stream stream);
/* The memory of a tensor that has a recipe may be freed without a copy, when another request needs it. With the lock. */
void hr__again_drop_later(hr__tensor *tensor, uint64_t word, uint32_t free_at);
/* The memory that the layout has for a tensor that gets memory while the thread runs an op again as planned: one that the op creates, or
 * memory of its recipe's own, of the same size. NULL = none. [takes]: it gets that memory now, and no other tensor does. With the lock. */
const hr__layout_stay *hr__again_place(hr__learned *learned, const hr__tensor *tensor, bool takes);
/* The order in which memory of evicted and dropped tensors is used: what is free first comes first (hr__tensor.evict_number). */
uint64_t hr__again_free_number(const hr__learned *learned, uint32_t free_at);

#endif
