/* plan_ring.h - a step in the form that the planner needs: uses by tensor, gaps, occupancy. Private to plan*.c and bound.c.
 *
 * Positions are ops. A gap is the time between two successive uses of a tensor, during which it may be evicted. The gap from the
 * last use to the first use in the next step wraps around. Gaps between adjacent ops are left out, because they have no position. */
#ifndef HR_LMS_PLAN_RING_H
#define HR_LMS_PLAN_RING_H

#include "core/lms/plan/plan.h"

#define HR__PLAN_NO_GAP UINT32_MAX

/* Blocks of host memory that are freed together. All zero = no blocks. */
#define HR__PLAN_SCRATCH_BLOCKS 48

typedef struct hr__plan_scratch {
	void *blocks[HR__PLAN_SCRATCH_BLOCKS];
	size_t sizes[HR__PLAN_SCRATCH_BLOCKS];
	uint32_t count;
} hr__plan_scratch;

/* Zeroed memory; NULL if there is none. A [count] of 0 gets room for one. */
void *hr__plan_scratch_take(hr__plan_scratch *scratch, uint64_t count, size_t size);
void hr__plan_scratch_free(hr__plan_scratch *scratch);

/* Freed blocks, for the next ones: many drafts need blocks of about the same sizes, and new memory costs a page fault for each page. */
#define HR__PLAN_KEPT_BLOCKS 96
typedef struct hr__plan_kept {
	void *blocks[HR__PLAN_KEPT_BLOCKS];
	size_t sizes[HR__PLAN_KEPT_BLOCKS];
	uint32_t count;
} hr__plan_kept;

/* From here until hr__plan_scratch_release the thread keeps in [blocks] what it frees. False: it does so in others already, and the
 * caller does not release. */
bool hr__plan_scratch_keep(hr__plan_kept *blocks);
void hr__plan_scratch_release(void);

typedef struct hr__plan_gap {
	uint64_t bytes;
	uint64_t out_ns, in_ns; /* time of a copy in each direction */
	uint32_t tensor;
	uint32_t from, to; /* ops that use it: it may be evicted after [from] and before [to]; to <= from: in the next step */
} hr__plan_gap;

typedef struct hr__plan_ring {
	const hr__plan_step *step;
	const hr__plan_machine *machine;
	hr__plan_scratch scratch;
	uint32_t n;          /* ops */
	uint64_t *occupied;  /* at each op, if nothing is evicted */
	uint64_t *least;     /* at each op, if everything is evicted that may be */
	uint64_t *time;      /* compute time before each op; time[n] = that of the whole step */
	uint32_t *first;     /* by tensor: index of its first use in [at], [wrote] and [gap_after]; first[tensor_count] = their length */
	uint32_t *at;        /* by use: the op; the uses of a tensor are consecutive, in order */
	bool *wrote;         /* by use: it writes, so that no older host copy is valid afterwards */
	uint32_t *gap_after; /* by use: index of the gap that follows it, or HR__PLAN_NO_GAP */
	hr__plan_gap *gaps;
	uint32_t gap_count;
	uint64_t *born, *dead; /* at each op: bytes of tensors that it creates, and of tensors that are destroyed after it */
} hr__plan_ring;

/* [machine] may be NULL: then gaps have no times. HR_INVALID_ARGUMENT, HR_NO_HOST_MEMORY; on failure there is nothing to close. */
hr_status hr__plan_ring_open(const hr__plan_step *step, const hr__plan_machine *machine, hr__plan_ring *ring);
void hr__plan_ring_close(hr__plan_ring *ring);

/* Sets *out to [ring] without the gaps in which everything fits anyway: tensors are not evicted there. At 70% of the peak that is more than
 * half of the gaps of gpt2b16. *out uses memory of [ring], and of [scratch]. False if there is no memory. */
bool hr__plan_ring_trim(const hr__plan_ring *ring, hr__plan_scratch *scratch, hr__plan_ring *out);

/* As hr__plan_bound, in a twentieth of the time; at most that bound. [ring] has a machine. */
hr_status hr__plan_ring_rough_bound(const hr__plan_ring *ring, uint64_t *extra_ns);

/* Nanoseconds to copy [bytes] at [bytes_per_s], rounded up, plus copy_ns; UINT64_MAX on overflow. */
uint64_t hr__plan_ring_copy_ns(uint64_t bytes, uint64_t bytes_per_s, uint64_t copy_ns);

/* Number of positions from [from] forward to [to]; a whole turn if they are equal. */
static inline uint32_t hr__plan_ring_distance(const hr__plan_ring *ring, uint32_t from, uint32_t to)
{
	return to > from ? to - from : to + ring->n - from;
}

static inline bool hr__plan_ring_is_cyclic(const hr__plan_tensor *tensor)
{
	return tensor->lived_before && tensor->died == HR__PLAN_NEVER;
}

#endif
