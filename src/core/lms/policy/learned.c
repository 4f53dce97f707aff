/* learned.c - the policy that learns from one step what the next will do; this file records the step.
 *
 * A step is RECORDED (record.h) as pin calls: the tensors that each names, and how long the device worked between it and its unpin
 * (marks, device.h). Once tensors have been evicted, a PLAN is made of the record of a step (plan.h) and becomes the active plan
 * (active_plan.h, steps.c). In the next step (follow.c)
 *
 *   a tensor created in the step is identified by the number of tensors created before it, if its size is that of the one in the
 *   record; a tensor that existed before the step is itself. A use is identified by the number of uses of that tensor in the step
 *   so far
 *
 *   after a use that the plan follows with an eviction, the tensor's copy to the host is started, and its memory may be dropped:
 *   the next request that does not fit takes the oldest such tensor (reclaim.c), whose copy is likely to be done by then
 *
 *   restores are requested at the call that the plan says, in its order; one that does not fit waits for the next call
 *
 *   a tensor that was evicted unplanned is requested back before all that are needed later
 *
 *   ops run again, and tensors with recipes are dropped, as the plan says (again.c)
 *
 * Plans count bytes. Bytes of partly used pages cannot serve a large tensor, so plans leave some memory unused. If steps that
 * follow the plan have unplanned evictions, free memory is joined before each step, if that costs little, and as much as was found
 * fragmented is left unused.
 *
 * Tensors that are used in another way than in the record have no plan: they are evicted or not as under lru. No plan is made of
 * the record of a step that differs, if the active plan was right before; it is made of a second record like it.
 *
 * Everything here is under the context's lock, except moving tensors and making a plan. */
#include "core/lms/policy/learned.h"

#include "core/base/status.h"
#include "core/lms/recipe/recipe.h"

/* ---- opening and closing ---- */

hr_status hr__learned_open(hr__lms *lms)
{
	HR_ASSERT(!lms->learned && lms->enabled);
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
	hr__active_plan_free(&learned->active_plan);
	hr__record_array_free(&learned->times, sizeof(uint64_t));
	hr__record_array_free(&learned->due_restores, sizeof(hr_tensor));
	hr__record_array_free(&learned->unplanned_tensors, sizeof(hr__unplanned_tensor));
	hr__repeats_close(learned->repeats);
	hr__os()->free(learned, sizeof *learned);
	lms->learned = NULL;
}

/* ---- tensors ---- */

/* The tensor's number in the record of this step. */
static uint32_t slot_of(hr__learned *learned, hr__tensor *tensor, uint32_t created)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	if (tensor->learned.step == learned->step && tensor->learned.slot != HR__RECORD_NONE) return tensor->learned.slot;
	tensor->learned.step = learned->step;
	tensor->learned.uses = 0;
	tensor->learned.slot = learned->recording ? hr__record_tensor(&learned->now, tensor, created) : HR__RECORD_NONE;
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
	if (learned->recording && tensor->learned.step == learned->step && tensor->learned.slot != HR__RECORD_NONE && record->ops.count)
		HR__RECORD_AT(hr__recorded_tensor, record->tensors, tensor->learned.slot).died = record->ops.count - 1;
	hr__follow_destroyed(learned, tensor);
	hr__lock_release(&lms->lock);
}

/* ---- pins ---- */

/* The stream whose marks time an op. While the host works, the default stream is idle and reaches its marks at once. */
static hr_stream timed_on(hr_stream stream)
{
	return stream == HR_STREAM_HOST ? HR_STREAM_DEFAULT : stream;
}

/* Ops are timed once tensors have been evicted, until the plan was right often enough. */
static bool is_timing(const hr__lms *lms)
{
	return hr__learned_was_pressed(lms) && !hr__load_relaxed(&lms->learned->settled);
}

/* Ends the interval of the op that the pin call belongs to. */
static void pause_op(hr__lms *lms, hr_stream stream)
{
	const hr__pin_group *group = hr__pin_group_of_thread();
	uint64_t mark;
	/* The op whose part the group is has been idle since its last unpin. */
	if (!group->depth || group->continued || group->context != lms->handle.id || !is_timing(lms)) return;
	if (hr__device_mark_timed(lms->device, timed_on(stream), &mark)) return;
	hr__lock_take(&lms->lock);
	if (hr__follow_is_joined(lms, group)) hr__record_end_interval(&lms->learned->now, mark);
	hr__lock_release(&lms->lock);
}

void hr__learned_before_pin(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	if (!hr__load_relaxed(&lms->stats.num_steps) && hr__learned_was_pressed(lms)) hr__steps_watch(lms, pins, count);
	pause_op(lms, stream);
	hr__follow_before(lms, stream);
}

void hr__learned_pinned(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	hr__learned *learned = lms->learned;
	hr__pin_group *group = hr__pin_group_of_thread();
	uint64_t mark = 0;
	if (is_timing(lms) && hr__device_mark_timed(lms->device, timed_on(stream), &mark)) mark = 0;
	hr__lock_take(&lms->lock);
	bool joined = hr__follow_is_joined(lms, group) && group->ops && group->ops == learned->now.ops.count;
	if (learned->recording && (joined || hr__record_op(&learned->now))) {
		hr__record_sign(&learned->now, count);
		hr__record_begin_interval(&learned->now, timed_on(stream), mark);
		for (size_t i = 0; i < count; i++) {
			hr_status ignored;
			hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
			if (!tensor) continue; /* another thread has unpinned and destroyed it already */
			if (hr__record_use(&learned->now, tensor, slot_of(learned, tensor, HR__RECORD_NONE), pins[i].access != HR_READ))
				hr__follow_use(learned, tensor);
		}
	}
	if (group->depth)
		*group = (hr__pin_group){ group->depth, lms->handle.id, learned->step, learned->position, learned->now.ops.count, false };
	hr__lock_release(&lms->lock);
}

/* Marks the end of an op; 0 = no mark. With a mark after each op, a stream that waits for memory of one op does not wait for the next. */
static uint64_t mark_end(hr__lms *lms, hr_stream stream)
{
	uint64_t mark = 0;
	if (!hr__learned_was_pressed(lms)) return 0;
	hr_status status = is_timing(lms) ? hr__device_mark_timed(lms->device, stream, &mark) : hr__device_mark(lms->device, stream, &mark);
	return status == HR_OK ? mark : 0;
}

void hr__learned_unpinned(hr__lms *lms, const hr_pin *pins, size_t count, hr_stream stream)
{
	hr__learned *learned = lms->learned;
	uint64_t mark = mark_end(lms, timed_on(stream));
	hr__lock_take(&lms->lock);
	if (learned->recording) hr__record_end_interval(&learned->now, mark);
	hr__record_time(lms->device, &learned->now, 4);
	bool planned = learned->active_plan.is_set;
	hr__lock_release(&lms->lock);
	if (planned) hr__follow_unpinned(lms, pins, count);
}

/* ---- recipes ---- */

void hr__learned_recipe_set(hr__lms *lms, const struct hr__recipe *recipe)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	hr__learned *learned = lms->learned;
	if (!learned) return;
	if (learned->recording) hr__record_recipe(&learned->now, recipe, learned->step);
	for (uint32_t i = 0; i < recipe->output_count; i++)
		if (recipe->outputs[i]) hr__follow_recipe(learned, recipe->outputs[i]);
}

void hr__learned_recipe_ended(const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	hr__learned *learned = tensor->lms->learned;
	if (!learned || !learned->recording || tensor->learned.step != learned->step) return;
	/* During a pin call, its op is not recorded yet: that is the op before which the recipe could still run. */
	uint32_t ops = learned->now.ops.count, op = learned->position > ops ? ops : ops - 1;
	if (ops) hr__record_recipe_end(&learned->now, tensor->learned.slot, op);
}

/* Whether an op in place on the tensor may be planned as a part of the thread's last op: that has made the tensor, and is still the last
 * op of the step. */
static bool is_made_by_last(const hr__lms *lms, const hr__tensor *tensor, const hr__pin_group *group)
{
	const hr__learned *learned = lms->learned;
	const hr__record *record = &learned->now;
	if (!learned->recording || record->broken || !record->ops.count || group->ops != record->ops.count) return false;
	if (group->context != lms->handle.id || group->step != learned->step || group->position != learned->position) return false;
	bool known = tensor->learned.step == learned->step && tensor->learned.slot != HR__RECORD_NONE && tensor->learned.uses == 1;
	return known && tensor->learned.use >= hr__record_first_use(record, record->ops.count - 1) &&
	       HR__RECORD_AT(hr__recorded_tensor, record->tensors, tensor->learned.slot).created != HR__RECORD_NONE;
}

void hr__learned_hold(const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	hr__pin_group *group = hr__pin_group_of_thread();
	if (tensor->lms->learned && !group->depth) group->continued = is_made_by_last(tensor->lms, tensor, group);
}

void hr__learned_ghost(hr__tensor *ghost, uint32_t planned)
{
	HR_ASSERT(hr__lock_is_mine(&ghost->lms->lock));
	if (ghost->lms->learned) hr__follow_ghost(ghost->lms->learned, ghost, planned);
}

/* ---- copies ---- */

bool hr__learned_times_copy(const hr__lms *lms, uint64_t bytes)
{
	const hr__learned *learned = lms->learned;
	if (!learned || bytes < HR__LINK_TIMED_SMALLEST || hr__load_relaxed(&learned->settled)) return false;
	return bytes >= HR__LINK_TIMED_MIN || !hr__load_relaxed(&learned->no_small_copies);
}

void hr__learned_copied(hr__lms *lms, bool out, uint64_t bytes, uint64_t before, uint64_t after)
{
	HR_ASSERT(before < after);
	hr__learned *learned = lms->learned;
	hr__lock_take(&lms->lock);
	hr__link_note(&learned->link, (hr__link_copy){ out, after, before, bytes });
	if (bytes >= HR__LINK_TIMED_MIN || learned->link.copy_count[1] >= HR__LINK_COPIES) hr__store_relaxed(&learned->no_small_copies, 1);
	hr__lock_release(&lms->lock);
}
