/* recipes.h - which tensors of a step can be computed again, and until when. Private to the planner. */
#ifndef HR_LMS_PLAN_RECIPES_H
#define HR_LMS_PLAN_RECIPES_H

#include "core/lms/plan/plan_ring.h"

/* A tensor that a pure op creates has a RECIPE: that op. The recipe makes the contents that the tensor has until it is written again.
 * Its INPUTS are the tensors that the op uses and that existed before it. */
typedef struct hr__recipes {
	const hr__plan_ring *ring;
	hr__plan_scratch scratch;
	uint32_t *maker;       /* by tensor: the op of its recipe; HR__PLAN_NEVER = it has none */
	uint32_t *creator;     /* by tensor: the op that creates it, pure or not; HR__PLAN_NEVER = it lived before or has no use */
	uint32_t *rewritten;   /* by tensor: the first op after its first use that writes it; HR__PLAN_NEVER = none does */
	uint32_t *valid_until; /* by op: the first op after it that writes one of its inputs: it cannot run again after that */
	uint64_t *made_bytes;  /* by op: bytes of all tensors that it creates */
	uint32_t *gap_after;   /* by use of the step: the droppable gap that follows it; HR__PLAN_NO_GAP = none does */
	/* By op: tensors that running it again reads, except those that are there during the whole step; and tensors that it creates. Most of
	 * the time of making turns goes into looking at inputs. */
	uint32_t *inputs, *first_input; /* first_input[n] = their number */
	uint32_t *outputs, *first_output;
	uint32_t *deaths;      /* tensors by the op that they die after */
	uint32_t *first_death; /* by op: index in [deaths]; first_death[n] = their number */
	bool *droppable;       /* by gap: the recipe makes what the tensor holds in the gap */
	uint64_t *staying;     /* by op: bytes in use if all droppable gaps are dropped, and nothing runs again */
	uint32_t droppable_count;
} hr__recipes;

/* False if there is no memory. */
bool hr__recipes_open(hr__recipes *recipes, const hr__plan_ring *ring);
void hr__recipes_close(hr__recipes *recipes);

static inline uint32_t hr__recipes_end_of_uses(const hr__plan_step *step, uint32_t op)
{
	return op + 1 < step->op_count ? step->ops[op + 1].first_use : step->use_count;
}

/* Whether running [op] again reads what use [use] of it names. */
static inline bool hr__recipes_is_input(const hr__recipes *recipes, uint32_t op, uint32_t use)
{
	const hr__plan_use *named = &recipes->ring->step->uses[use];
	return recipes->creator[named->tensor] != op && !named->write;
}

#endif
