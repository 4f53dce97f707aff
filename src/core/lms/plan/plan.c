/* plan.c - decides which tensors are evicted during a step, when, and when they are restored.
 *
 * THE MODEL
 *
 * The host issues everything in the order of ops and never waits. Memory is counted in that order, as in any stream-ordered
 * allocator:
 *
 *   before op i   restores with in_before == i allocate memory; then the tensors that op i creates
 *   op i          all tensors that it uses are on the device. Bytes in use now are at most machine->memory: the occupancy of
 *                 position i
 *   after op i    tensors with died == i free their memory; then those with out_after == i are evicted and free theirs
 *
 * Time is that of the device. It has three servers, each of which works in order: compute, the link out, the link in.
 *
 *   an op       starts when the op before it is done, when the restores of its tensors are done, and when there is room for what it
 *               creates
 *   a copy out  starts when the link is free and the op that wrote the tensor last (copy_after) is done, though the tensor may be
 *               evicted later
 *   a restore   starts when the link is free, when there is room, and when the tensor's copy out is done
 *
 * There is room when enough of the bytes freed before, in the order of issue, are really free: those of a tensor that dies when the
 * op is done, those of an evicted one when the op and its copy are done. Bytes are counted, not blocks, because pages can be
 * stitched. Bytes that are free first are used first. A clean tensor is not copied.
 *
 * The step is a ring: a few steps are simulated, until one takes as long as the one before.
 *
 * THE FILES
 *
 *   plan_ring.c      reads a step: uses by tensor, gaps, occupancy of each op
 *   plan_draft.c     memory for drafts
 *   plan_choose.c    which gaps are used
 *   plan_place.c     when tensors are restored; which gaps are not needed; which copies are valid
 *   plan_simulate.c  how long a step takes with that
 *   plan_occupancy.c    the tree of occupancies
 *   plan_moves.c     tries several strategies to choose and place, and improves the best
 *   bound.c          the time that no plan can beat */
#include "core/lms/plan/plan.h"

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/lms/plan/plan_moves.h"
#include "core/lms/plan/recompute/combined.h"
#include "core/os/os.h"

/* ---- what a step needs ---- */

static uint64_t highest(const uint64_t *values, uint32_t count, uint32_t *where)
{
	uint64_t most = 0;
	*where = 0;
	for (uint32_t i = 0; i < count; i++) {
		if (values[i] > most) {
			most = values[i];
			*where = i;
		}
	}
	return most;
}

/* Bytes in use in a step without ops. */
static uint64_t bytes_without_ops(const hr__plan_step *step)
{
	uint64_t bytes = step->other_bytes;
	for (uint32_t t = 0; t < step->tensor_count; t++) bytes += step->tensors[t].bytes;
	return bytes;
}

uint64_t hr__plan_least(const hr__plan_step *step, uint32_t *op)
{
	hr__plan_ring ring;
	uint32_t where = 0;
	if (hr__plan_ring_open(step, NULL, &ring) != HR_OK) return 0;
	uint64_t least = ring.n > 0 ? highest(ring.least, ring.n, &where) : bytes_without_ops(step);
	hr__plan_ring_close(&ring);
	if (op != NULL) *op = where;
	return least;
}

uint64_t hr__plan_peak(const hr__plan_step *step)
{
	hr__plan_ring ring;
	uint32_t where;
	if (hr__plan_ring_open(step, NULL, &ring) != HR_OK) return 0;
	uint64_t peak = ring.n > 0 ? highest(ring.occupied, ring.n, &where) : bytes_without_ops(step);
	hr__plan_ring_close(&ring);
	return peak;
}

uint64_t hr__plan_compute_ns(const hr__plan_step *step)
{
	uint64_t ns = 0;
	for (uint32_t i = 0; i < step->op_count; i++)
		if (!hr__add(ns, step->ops[i].ns, &ns)) return UINT64_MAX;
	return ns;
}

/* ---- making a plan ---- */

static hr_status plan_ring(const hr__plan_ring *ring, hr__plan_means means, hr__plan *out)
{
	uint32_t where = 0, least_op = 0;
	uint64_t peak = ring->n > 0 ? highest(ring->occupied, ring->n, &where) : bytes_without_ops(ring->step);
	uint64_t least = ring->n > 0 ? highest(ring->least, ring->n, &least_op) : peak;
	*out = (hr__plan){ 0 };
	if (least > ring->machine->memory)
		return hr__fail(HR_OUT_OF_MEMORY, "op %u of the step needs %llu bytes at once, and %llu may be used", least_op,
		                (unsigned long long)least, (unsigned long long)ring->machine->memory);
	if (peak <= ring->machine->memory) {
		*out = (hr__plan){ .step_ns = ring->n > 0 ? ring->time[ring->n] : 0, .peak_bytes = peak };
		return HR_OK;
	}
	return means == HR__PLAN_MOVE ? hr__plan_moves_make(ring, HR__MOVES_ALL, out, NULL) : hr__combined_make(ring, means, out);
}

hr_status hr__plan_make_by(const hr__plan_step *step, const hr__plan_machine *machine, hr__plan_means means, hr__plan *out)
{
	hr__plan_ring ring;
	hr__plan_kept kept;
	bool keeps = hr__plan_scratch_keep(&kept);
	hr_status status = hr__plan_ring_open(step, machine, &ring);
	if (status == HR_OK) {
		status = plan_ring(&ring, means, out);
		hr__plan_ring_close(&ring);
	}
	if (keeps) hr__plan_scratch_release();
	return status;
}

hr_status hr__plan_make(const hr__plan_step *step, const hr__plan_machine *machine, hr__plan *out)
{
	return hr__plan_make_by(step, machine, HR__PLAN_BOTH, out);
}

void hr__plan_free(hr__plan *plan)
{
	if (plan->moves != NULL) hr__os()->free(plan->moves, plan->move_count * sizeof *plan->moves);
	if (plan->turns != NULL) hr__os()->free(plan->turns, plan->turn_count * sizeof *plan->turns);
	if (plan->drops != NULL) hr__os()->free(plan->drops, plan->drop_count * sizeof *plan->drops);
	*plan = (hr__plan){ 0 };
}
