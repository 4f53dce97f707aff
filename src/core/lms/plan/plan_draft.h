/* plan_draft.h - a plan in the making: which gaps are used, and when their tensors are asked back. Private to plan*.c. */
#ifndef HR_LMS_PLAN_DRAFT_H
#define HR_LMS_PLAN_DRAFT_H

#include "core/lms/plan/plan_ring.h"

/* ---- occupancy: add to ranges of positions, look for the highest ---- */

typedef struct hr__levels {
	uint64_t *highest; /* of the node's positions, without what was added to nodes above */
	uint64_t *added;   /* to all of the node's positions */
	uint32_t n, leaves;
} hr__levels;

/* Memory is taken from [scratch]; false when there is none. */
bool hr__levels_open(hr__levels *levels, hr__scratch *scratch, uint32_t n);
void hr__levels_set(hr__levels *levels, const uint64_t *values);
/* Positions first to last, both included; [bytes] may be a negative number modulo 2^64, the result not. */
void hr__levels_add(hr__levels *levels, uint32_t first, uint32_t last, uint64_t bytes);
uint64_t hr__levels_highest(const hr__levels *levels, uint32_t first, uint32_t last);
/* The last position from first to last that is higher than [limit]; UINT32_MAX when there is none. */
uint32_t hr__levels_last_above(const hr__levels *levels, uint32_t first, uint32_t last, uint64_t limit);

/* ---- the draft ---- */

#define HR__DRAFT_STEPS 6 /* that are simulated at most */
#define HR__DRAFT_RANKS 3 /* of gaps, best first */

typedef struct hr__draft {
	bool *chosen;           /* by gap */
	bool *clean;            /* by gap, where chosen */
	uint32_t *in_before;    /* by gap, where chosen */
	uint32_t *copied_after; /* by gap, where chosen and not clean */
	uint64_t *blame;        /* by gap: how long ops waited for its copies in the last step that was simulated */
	uint64_t step_ns, bytes_out, bytes_in;
	uint64_t link_ns; /* all copies of a step, one after the other */
	uint32_t moves;
} hr__draft;

typedef enum hr__promise {
	HR__PROMISE_NONE, /* a gap ends with its next use */
	HR__PROMISE_MADE, /* gaps are chosen by when the link has time to bring them back, and end with their next use */
	HR__PROMISE_KEPT  /* and end with when that is */
} hr__promise;

/* How gaps are chosen and returns placed. Several are tried, the simulation says which is best. */
typedef struct hr__taste {
	uint32_t start;       /* the scan for positions that are too full begins here */
	uint32_t least_worth; /* gaps whose copies take less than this many times the latency are of a worse rank; 0 = none is */
	hr__promise promise;  /* whether a return is promised time of the link */
	bool copy_early;      /* a tensor is copied when it has been written, not when it leaves */
	bool return_late;     /* a return is asked for by the op that needs it, not as early as there is room */
} hr__taste;

typedef struct hr__freed {
	uint64_t when, bytes;
	uint32_t gap; /* whose copy it was; HR__RING_NO_GAP = an op did it */
} hr__freed;

typedef struct hr__drafting {
	const hr__ring *ring;
	hr__scratch scratch;
	hr__levels levels;
	uint64_t work; /* done so far, in units of some 60 ns: what is looked at, not the clock, says when it is enough */
	/* All gaps, in the order of: the op they follow, and at the same op the next use; the next use; their length. */
	uint32_t *by_start, *by_start_first, *by_need, *by_length;
	/* To choose: bytes that leave or come back at a position; candidates of a rank, farthest next use first. */
	uint32_t *need_of; /* by gap: its place in by_need */
	uint64_t *starts, *ends, *heaps[HR__DRAFT_RANKS];
	uint32_t heap_counts[HR__DRAFT_RANKS];
	uint64_t *slots; /* by op: time of the link in while it computes that is promised to nobody */
	uint32_t *open;  /* by op: how many ops back there is such time, or a shorter way to it */
	uint32_t *early; /* by gap: how many ops before its next use it is back because of that */
	/* To simulate: chosen gaps by when they leave, by copied_after and by in_before, with where those of an op begin. */
	uint32_t *outs, *outs_first, *copies, *copies_first, *ins, *ins_first;
	uint64_t *out_done; /* by gap */
	uint64_t *returned; /* by gap: when its return began, in the last step that was simulated, */
	uint64_t *started, *ended; /* and by op: when it began, and was done */
	bool *avoid;        /* by gap: of the worst rank, to see if that helps */
	uint64_t *ready;    /* by op: when the returns it needs are done */
	uint32_t *last;     /* by op: the gap of the last of them */
	hr__freed *freed_by_ops, *freed_by_copies;
} hr__drafting;

bool hr__drafting_open(hr__drafting *drafting, const hr__ring *ring);
void hr__drafting_close(hr__drafting *drafting);
bool hr__draft_open(hr__draft *draft, hr__drafting *drafting);

/* Chooses gaps so that every position fits into the machine's memory, which the caller knows to be possible. */
void hr__draft_choose(hr__drafting *drafting, hr__draft *draft, const hr__taste *taste);
/* Says when each return is asked for, drops moves for which there is room after all, and finds out which are clean. */
void hr__draft_place(hr__drafting *drafting, hr__draft *draft, const hr__taste *taste);
/* Fills in step_ns, by the model. */
void hr__draft_simulate(hr__drafting *drafting, hr__draft *draft);

#endif
