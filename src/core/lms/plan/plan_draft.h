/* plan_draft.h - a plan under construction: in which gaps tensors are evicted, and when they are restored. Private to plan*.c. */
#ifndef HR_LMS_PLAN_DRAFT_H
#define HR_LMS_PLAN_DRAFT_H

#include "core/lms/plan/plan_ring.h"

/* ---- occupancy: bytes in use at each position of the ring, as a segment tree ---- */

typedef struct hr__occupancy_node {
	uint64_t highest; /* of its positions, without what was added to the nodes above */
	uint64_t added;   /* bytes added to all of its positions */
} hr__occupancy_node;

typedef struct hr__occupancy {
	hr__occupancy_node *nodes;
	uint32_t n, leaves;
} hr__occupancy;

/* Allocates from [scratch]; false if there is no memory. */
bool hr__occupancy_open(hr__occupancy *occupancy, hr__plan_scratch *scratch, uint32_t n);
void hr__occupancy_set(hr__occupancy *occupancy, const uint64_t *values);
/* Adds [bytes] to positions first to last, both included. [bytes] may be negative (modulo 2^64), but no position may become so. */
void hr__occupancy_add(hr__occupancy *occupancy, uint32_t first, uint32_t last, uint64_t bytes);
/* The last position from first to last that is higher than [limit]; UINT32_MAX if there is none. */
uint32_t hr__occupancy_last_above(const hr__occupancy *occupancy, uint32_t first, uint32_t last, uint64_t limit);

/* ---- the draft ---- */

#define HR__PLAN_DRAFT_STEPS 6 /* most steps to simulate for a draft */
#define HR__PLAN_DRAFT_RANKS 3 /* ranks of gaps, best first */

typedef struct hr__plan_draft {
	bool *chosen;           /* by gap */
	bool *clean;            /* by gap, where chosen */
	uint32_t *in_before;    /* by gap, where chosen */
	uint32_t *copied_after; /* by gap, where chosen and not clean */
	uint64_t *blame;        /* by gap: how long ops waited for its copies in the last simulated step */
	uint64_t step_ns, bytes_out, bytes_in;
	uint64_t link_ns; /* sum over all copies of a step */
	uint32_t moves;
} hr__plan_draft;

typedef enum hr__link_reservation {
	HR__RESERVE_NOTHING,   /* no reservations; a gap ends at its next use */
	HR__RESERVE_TO_CHOOSE, /* gaps are chosen by when the link has time to restore them, and end at their next use */
	HR__RESERVE_AND_KEEP   /* like TO_CHOOSE, but a gap ends where its reserved time begins */
} hr__link_reservation;

/* How gaps are chosen and restores placed. Several strategies are tried; the simulation finds the best. */
typedef struct hr__plan_strategy {
	uint32_t start;               /* the scan for positions over the limit begins here */
	uint32_t least_worth;         /* gaps whose copies take less than this many times the latency have a worse rank; 0 = none has */
	hr__link_reservation reserve; /* whether time of the link is reserved for restores */
	bool copy_early;              /* a tensor is copied after its last write, not at its eviction */
	bool restore_late;            /* a restore is requested by the op that needs it, not as early as it fits */
} hr__plan_strategy;

typedef struct hr__plan_freed {
	uint64_t when, bytes;
	uint32_t gap; /* the gap whose copy freed the memory; HR__PLAN_NO_GAP = an op freed it */
} hr__plan_freed;

typedef struct hr__plan_drafting {
	const hr__plan_ring *ring; /* without gaps in which everything fits */
	hr__plan_scratch scratch;
	hr__occupancy occupancy;
	uint64_t work; /* work so far, in units of about 45 ns. A count, not the clock, limits the search, so that plans are
	                * deterministic */
	uint32_t draft_work; /* of a draft: ops and gaps of the step, also those that no draft uses */
	/* All gaps, sorted by the op that they follow, then by next use; by next use; by length. */
	uint32_t *by_start, *by_start_first, *by_need, *by_length;
	/* To choose: bytes evicted or restored at a position ([starts] also to sum up occupancy, later); candidates of each rank, farthest next use first. */
	uint32_t *need_of; /* by gap: its index in by_need */
	uint64_t *starts, *ends, *heaps[HR__PLAN_DRAFT_RANKS];
	uint32_t heap_counts[HR__PLAN_DRAFT_RANKS];
	uint64_t *slots; /* by op: unreserved time of the link towards the device while the op computes */
	uint32_t *open;  /* by op: how many ops back the link has unreserved time, or a shortcut towards it */
	uint32_t *early; /* by gap: how many ops before its next use its restore is done, because of a reservation */
	/* To simulate: chosen gaps by eviction, by copied_after and by in_before, with the first index of each op. */
	uint32_t *outs, *outs_first, *copies, *copies_first, *ins, *ins_first;
	uint64_t *out_done;        /* by gap: when its copy to the host was done in the last simulated step */
	uint64_t *restore_began;   /* by gap: when its restore began in the last simulated step */
	uint64_t *started, *ended; /* by op: when it began and ended in the last simulated step */
	bool *avoid;               /* by gap: give it the worst rank, to try whether the draft gets better without it */
	uint64_t *ready;           /* by op: when the restores that it needs are done */
	uint32_t *last;            /* by op: the gap of the last restore that it needs */
	hr__plan_freed *freed_by_ops, *freed_by_copies;
} hr__plan_drafting;

bool hr__plan_drafting_open(hr__plan_drafting *drafting, const hr__plan_ring *ring);
void hr__plan_drafting_close(hr__plan_drafting *drafting);
bool hr__plan_draft_open(hr__plan_draft *draft, hr__plan_drafting *drafting);

/* Chooses gaps so that every position fits into the machine's memory, which the caller has checked to be possible. */
void hr__plan_draft_choose(hr__plan_drafting *drafting, hr__plan_draft *draft, const hr__plan_strategy *strategy);
/* Sets when each restore is requested, drops moves that are not needed after all, and finds which are clean. */
void hr__plan_draft_place(hr__plan_drafting *drafting, hr__plan_draft *draft, const hr__plan_strategy *strategy);
/* Peak of bytes in use with the draft. */
uint64_t hr__plan_draft_peak(hr__plan_drafting *drafting, const hr__plan_draft *draft);
/* Sets step_ns, by the model. */
void hr__plan_draft_simulate(hr__plan_drafting *drafting, hr__plan_draft *draft);

#endif
