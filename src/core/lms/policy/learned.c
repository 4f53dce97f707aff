/* learned.c - the policy that learns from one step what the next will do; and in it, what a program does, which is recorded.
 *
 * A step is RECORDED (record.h) as pin calls: which tensors each names, and how long the device worked between it and its unpin (marks,
 * device.h). When it is over and tensors had to leave in it, a PLAN is made of the record (plan.h) and put in FORCE (force.h,
 * steps.c). In the next step (follow.c)
 *
 *   a tensor is told by the number of tensors that were created in the step before it, if it has the size of the one in the record; one
 *   that was there before the step is itself. A use is told by how many uses of that tensor the step has had
 *
 *   after a use behind which the plan sends the tensor away, its copy to the host is begun, and it is free to be dropped: the next request
 *   that has no room takes the oldest such tensor (reclaim.c), by when its copy is likely to be done
 *
 *   returns are asked for when the call is reached that the plan says, in its order; one that finds no room waits for the next call
 *
 *   a tensor that had to leave though it should have stayed, a STRAY, is asked back before all that are needed later
 *
 * Plans count bytes. Pages that are partly in use have bytes which no large tensor can have, so plans leave some alone; and where steps that
 * go as planned have strays, free memory is put together before each step if that costs little, and what was found scattered is left alone.
 *
 * Tensors that are used in another way than the record says have no plan: they stay, or leave, as lru would have it. The record of a step
 * that differs is not made a plan of, as long as the plan in force has proved right before; a second one like it is.
 *
 * Everything here is under the context's lock, but for the moving itself and the making of a plan. */
#include "core/lms/policy/learned.h"

#include "core/base/status.h"

/* ---- opening and closing ---- */

hr_status hr__learned_open(hr__lms *lms)
{
	void *block;
	int error = hr__os()->alloc(sizeof(hr__learned), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for the learned policy");
	lms->learned = block;
	hr__record_clear(&lms->learned->now);
	hr__record_clear(&lms->learned->last);
	return HR_OK;
}

void hr__learned_close(hr__lms *lms)
{
	hr__learned *learned = lms->learned;
	if (!learned) return;
	hr__record_free(&learned->now);
	hr__record_free(&learned->last);
	hr__force_free(&learned->force);
	hr__array_free(&learned->waiting, sizeof(hr_tensor));
	hr__array_free(&learned->strays, sizeof(hr__stray));
	hr__repeats_close(learned->repeats);
	hr__os()->free(learned, sizeof *learned);
	lms->learned = NULL;
}

/* ---- tensors ---- */

/* The tensor's number in the record of this step. */
static uint32_t slot_of(hr__learned *learned, hr__tensor *tensor, uint32_t created)
{
	if (tensor->learned.step == learned->step && tensor->learned.slot != HR__NONE) return tensor->learned.slot;
	tensor->learned.step = learned->step;
	tensor->learned.uses = 0;
	tensor->learned.slot = learned->recording ? hr__record_tensor(&learned->now, tensor, created) : HR__NONE;
	return tensor->learned.slot;
}

void hr__learned_created(hr__lms *lms, hr__tensor *tensor)
{
	hr__learned *learned = lms->learned;
	if (!learned) return;
	hr__lock_take(&lms->lock);
	uint32_t number = learned->created++;
	slot_of(learned, tensor, number);
	hr__record_sign(&learned->now, tensor->bytes);
	hr__follow_created(lms, tensor, number);
	hr__lock_release(&lms->lock);
}

void hr__learned_destroyed(hr__lms *lms, hr__tensor *tensor)
{
	hr__learned *learned = lms->learned;
	if (!learned) return;
	hr__lock_take(&lms->lock);
	hr__record *record = &learned->now;
	if (learned->recording && tensor->learned.step == learned->step && tensor->learned.slot != HR__NONE && record->ops.count)
		HR__AT(hr__seen_tensor, record->tensors, tensor->learned.slot).died = record->ops.count - 1;
	hr__follow_destroyed(learned, tensor);
	hr__lock_release(&lms->lock);
}

/* ---- pins ---- */

/* The stream whose marks time an op: when the host works, the default stream has nothing to do, and reaches them at once. */
static hr_stream timed_on(hr_stream stream)
{
	return stream == HR_STREAM_HOST ? HR_STREAM_DEFAULT : stream;
}

void hr__learned_before(hr__lms *lms, const hr_pin *pins, size_t count)
{
	if (!hr__load_relaxed(&lms->stats.num_steps) && hr__load_relaxed(&lms->stats.num_evictions)) hr__steps_watch(lms, pins, count);
	hr__follow_before(lms);
}

void hr__learned_pinned(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	hr__learned *learned = lms->learned;
	uint64_t mark = 0;
	bool measure = hr__load_relaxed(&lms->stats.num_evictions) > 0 && !hr__load_relaxed(&learned->settled);
	if (measure && hr__device_mark(lms->device, timed_on(stream), &mark)) mark = 0;
	hr__lock_take(&lms->lock);
	if (learned->recording && hr__record_op(&learned->now, timed_on(stream))) {
		hr__record_sign(&learned->now, count);
		HR__AT(hr__seen_op, learned->now.ops, learned->now.ops.count - 1).begin = mark;
		for (size_t i = 0; i < count; i++) {
			hr_status ignored;
			hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
			if (!tensor) continue; /* another thread has unpinned and destroyed it already */
			if (hr__record_use(&learned->now, tensor, slot_of(learned, tensor, HR__NONE), pins[i].access != HR_READ))
				hr__follow_use(learned, tensor);
		}
	}
	hr__lock_release(&lms->lock);
}

void hr__learned_unpinned(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	hr__learned *learned = lms->learned;
	uint64_t mark = 0;
	/* With a mark after each op, who waits for memory of one does not wait for the next. */
	if (hr__load_relaxed(&lms->stats.num_evictions) > 0 && hr__device_mark(lms->device, timed_on(stream), &mark)) mark = 0;
	hr__lock_take(&lms->lock);
	if (learned->recording && learned->now.ops.count) HR__AT(hr__seen_op, learned->now.ops, learned->now.ops.count - 1).end = mark;
	hr__record_time(lms->device, &learned->now, 4);
	bool planned = learned->force.is_set;
	hr__lock_release(&lms->lock);
	if (planned) hr__follow_unpinned(lms, pins, count);
}

/* ---- copies ---- */

bool hr__learned_times_copy(const hr__lms *lms, uint64_t bytes)
{
	return lms->learned && bytes >= HR__LINK_TIMED_MIN && !hr__load_relaxed(&lms->learned->settled);
}

void hr__learned_copied(hr__lms *lms, bool out, uint64_t bytes, uint64_t before, uint64_t after)
{
	hr__learned *learned = lms->learned;
	hr__lock_take(&lms->lock);
	hr__link_note(&learned->link, (hr__link_copy){ out, after, before, bytes });
	hr__lock_release(&lms->lock);
}
