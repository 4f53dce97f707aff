/* follow.c - applies the active plan to the current step.
 *
 * A tensor stores its number in the plan (learned.planned) and its number of uses in the step, so the plan for a use is looked up
 * by number. If too many uses come at another time than in the plan, the step is LOST: it is not the plan's step, and until it ends
 * tensors are evicted as if there were no plan. */
#include <string.h>

#include "core/base/status.h"
#include "core/lms/policy/learned.h"
#include "core/lms/recipe/recipe.h"
#include "core/memory/bfc/tensor_block.h"

#define RESTORES_AT_ONCE 64u
#define REFUSED_AT_ONCE 8u /* restores without memory, after which a turn tries no others */
#define UNPLANNED_LEAD 8u /* an unplanned tensor is requested at the latest this many calls before it is needed */
#define FAR_OFF 8u        /* next uses more than 1/8 of a step away count as equally far */
#define OFF_PART 16u      /* a use that comes more than 1/16 of a step too early or too late is not the plan's */
#define OFF_MIN 8u        /* with this many uses that are not the plan's, and a quarter of all, the step is lost */

/* ---- mapping tensors to the plan ---- */

void hr__follow_created(hr__lms *lms, hr__tensor *tensor, uint32_t number)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	HR_ASSERT(tensor->lms == lms && lms->learned);
	hr__learned *learned = lms->learned;
	hr__active_plan *active = &learned->active_plan;
	if (!active->is_set || number >= active->created_count || active->created[number] == HR__RECORD_NONE) return;
	uint32_t planned = active->created[number];
	if (tensor->device_bytes == active->bytes[planned]) {
		tensor->learned.planned = planned;
		active->present[planned] = hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word));
	} else {
		learned->mismatches++;
		hr__lms_count(&lms->stats.num_mismatches, 1);
	}
}

void hr__follow_destroyed(hr__learned *learned, const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	/* A tensor of the next step may have its place already. */
	hr_tensor *present = learned->active_plan.is_set && tensor->learned.planned != HR__RECORD_NONE
	                         ? &learned->active_plan.present[tensor->learned.planned]
	                         : NULL;
	if (present && present->id == hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word)).id) present->id = 0;
}

void hr__follow_ghost(hr__learned *learned, hr__tensor *ghost, uint32_t planned)
{
	HR_ASSERT(hr__lock_is_mine(&ghost->lms->lock));
	const hr__active_plan *active = &learned->active_plan;
	if (!active->is_set || planned >= active->tensor_count || active->present[planned].id) return;
	ghost->learned.planned = planned;
	active->present[planned] = hr__tensor_handle(ghost, hr__load_relaxed(&ghost->word));
}

/* ---- is it the plan's step? ---- */

void hr__follow_use(hr__learned *learned, const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	HR_ASSERT(tensor->learned.uses > 0);
	const hr__active_plan *active = &learned->active_plan;
	uint32_t planned = tensor->learned.planned, position = learned->position - 1;
	if (!active->is_set || planned == HR__RECORD_NONE || !learned->position) return;
	uint32_t use = active->first[planned] + tensor->learned.uses - 1;
	uint32_t op = use < active->first[planned + 1] ? active->uses[use].op : HR__RECORD_NONE;
	uint32_t distance = op > position ? op - position : position - op;
	if (distance > active->op_count / OFF_PART + 1) learned->off++;
	else learned->on++;
}

/* The step is not the plan's, so what the plan says of its tensors is wrong. */
static bool is_lost(const hr__learned *learned)
{
	return learned->off >= OFF_MIN && learned->off > learned->on / 3;
}

/* Whether the current step is the active plan's, as far as is known. */
static bool follows(const hr__learned *learned)
{
	return learned->active_plan.is_set && !is_lost(learned);
}

/* ---- places ---- */

static bool is_during(const hr__layout_stay *stay, uint32_t turn)
{
	return stay->from <= stay->to ? turn >= stay->from && turn <= stay->to : turn >= stay->from || turn <= stay->to;
}

/* The stay of a tensor that includes a turn; NULL = it has none. */
static const hr__layout_stay *stay_at(const hr__active_plan *active, uint32_t planned, uint32_t turn)
{
	for (uint32_t i = active->first_stay[planned]; i < active->first_stay[planned + 1]; i++)
		if (is_during(&active->stays[i], turn)) return &active->stays[i];
	return NULL;
}

/* The stay in which the tensor is used next: that of now, if ops run again, because they use tensors, too. */
static const hr__layout_stay *next_stay(const hr__learned *learned, const hr__tensor *tensor)
{
	const hr__active_plan *active = &learned->active_plan;
	uint32_t planned = tensor->learned.planned;
	uint32_t uses = tensor->learned.step == learned->step ? tensor->learned.uses : 0, use = active->first[planned] + uses;
	const hr__layout_stay *found = NULL;
	if (hr__active_plan_runs_again(active) && learned->turn != HR__PLAN_NEVER) found = stay_at(active, planned, learned->turn);
	if (use >= active->first[planned + 1]) use = active->first[planned]; /* its first use in the next step */
	return found || use >= active->first[planned + 1] ? found : stay_at(active, planned, active->turn_of[active->uses[use].op]);
}

/* [takes]: the tensor gets memory. */
static uint64_t address_of(const hr__tensor *tensor, bool takes)
{
	hr__lms *lms = tensor->lms;
	hr__learned *learned = lms->learned;
	if (!learned || tensor->bytes <= HR__SMALL_MAX) return 0;
	uint64_t address = 0;
	hr__lock_take(&lms->lock);
	const hr__active_plan *active = &learned->active_plan;
	if (learned->area && active->laid_out) {
		const hr__layout_stay *stay = hr__again_place(learned, tensor, takes);
		if (!stay && tensor->learned.planned != HR__RECORD_NONE) stay = next_stay(learned, tensor);
		if (stay && stay->offset + stay->bytes <= learned->area_bytes) address = learned->area + stay->offset;
	}
	hr__lock_release(&lms->lock);
	return address;
}

uint64_t hr__learned_address(const hr__tensor *tensor)
{
	return address_of(tensor, true);
}

void hr__follow_leave_place(hr__tensor *tensor, uint64_t word)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	uint64_t place = hr__load_relaxed(&tensor->evict_first) ? address_of(tensor, false) : 0;
	if (!place || place == hr__load_relaxed(&tensor->address) || !hr__state_begin_eviction(tensor, word)) return;
	hr__last before = hr__last_get();
	if (hr__drop_or_evict(tensor, tensor->lms->out_stream)) hr__last_set(&before); /* it stays where it is */
}


/* ---- restores ---- */

static void request_restore(hr__learned *learned, hr_tensor handle)
{
	/* Without host memory, the pin restores it. */
	if (handle.id && hr__record_array_has_room(&learned->due_restores, sizeof(hr_tensor)))
		HR__RECORD_AT(hr_tensor, learned->due_restores, learned->due_restores.count++) = handle;
}

static bool is_evicted(hr_tensor handle)
{
	hr_status ignored;
	const hr__tensor *tensor = hr__tensor_of(handle, &ignored);
	return tensor && hr__word_place(hr__load_acquire(&tensor->word)) == HR__PLACE_EVICTED;
}

/* Whether a tensor has its place in the layout by now, if it has one. */
static bool has_place(const hr__learned *learned, hr_tensor handle)
{
	hr_status ignored;
	const hr__tensor *tensor = hr__tensor_of(handle, &ignored);
	if (!learned->area || !learned->active_plan.laid_out || !tensor || tensor->learned.planned == HR__RECORD_NONE) return true;
	const hr__layout_stay *stay = next_stay(learned, tensor);
	return !stay || learned->turn == HR__PLAN_NEVER || is_during(stay, learned->turn);
}

/* Requests the unplanned tensors that are needed by [need] or before, as soon as they have a place. A pin may have restored one already. */
static void request_unplanned(hr__learned *learned, uint32_t need)
{
	for (uint32_t i = 0; i < learned->unplanned_tensors.count;) {
		hr__unplanned_tensor *unplanned = &HR__RECORD_AT(hr__unplanned_tensor, learned->unplanned_tensors, i);
		if (unplanned->need > need || !has_place(learned, unplanned->handle)) {
			i++;
			continue;
		}
		if (is_evicted(unplanned->handle)) request_restore(learned, unplanned->handle);
		*unplanned = HR__RECORD_AT(hr__unplanned_tensor, learned->unplanned_tensors, --learned->unplanned_tensors.count);
	}
}

/* The next turn in which an op runs again, or that of op [position], whichever is first. Requests the restores that the plan has before
 * it. *again: it is one in which an op runs again. */
static uint32_t advance(hr__learned *learned, uint32_t position, bool *again)
{
	const hr__active_plan *active = &learned->active_plan;
	uint32_t turn = active->turn_of[position < active->op_count ? position : active->op_count];
	bool in_step = learned->turn != HR__PLAN_NEVER;
	*again = in_step && learned->next_act < active->act_count && active->acts[learned->next_act].turn < turn;
	if (*again) turn = active->acts[learned->next_act].turn;
	if (in_step && turn > learned->turn) learned->turn = turn;
	for (; learned->next_restore < active->plan.move_count && active->restores[learned->next_restore].before <= turn;
	     learned->next_restore++) {
		const hr__planned_restore *comeback = &active->restores[learned->next_restore];
		request_unplanned(learned, comeback->need);
		request_restore(learned, active->present[comeback->tensor]);
	}
	return turn;
}

/* Takes restores from the list of those that are due, so that no other thread requests the same. */
static uint32_t take_due(hr__learned *learned, hr_tensor due[RESTORES_AT_ONCE])
{
	uint32_t found = 0;
	for (; found < learned->due_restores.count && found < RESTORES_AT_ONCE; found++)
		due[found] = HR__RECORD_AT(hr_tensor, learned->due_restores, found);
	learned->due_restores.count -= found;
	if (found)
		memmove(learned->due_restores.items, (hr_tensor *)learned->due_restores.items + found,
		        learned->due_restores.count * sizeof(hr_tensor));
	return found;
}

/* Restores that found no memory are due again. */
static void put_back(hr__learned *learned, const hr_tensor *due, uint32_t count)
{
	while (learned->due_restores.capacity - learned->due_restores.count < count &&
	       hr__record_array_grow(&learned->due_restores, sizeof(hr_tensor))) {}
	if (learned->due_restores.capacity - learned->due_restores.count < count) return; /* their pins restore them */
	memmove((hr_tensor *)learned->due_restores.items + count, learned->due_restores.items,
	        learned->due_restores.count * sizeof(hr_tensor));
	memcpy(learned->due_restores.items, due, count * sizeof(hr_tensor));
	learned->due_restores.count += count;
}

static void restore_due(hr__lms *lms, hr_tensor *due, uint32_t found)
{
	uint32_t left = 0;
	for (uint32_t i = 0; i < found; i++) {
		hr_status status;
		hr__tensor *tensor = hr__tensor_of(due[i], &status);
		if (!tensor) continue;
		if (left >= REFUSED_AT_ONCE) {
			due[left++] = due[i];
			continue;
		}
		hr__follow_leave_place(tensor, hr__load_acquire(&tensor->word));
		uint64_t word = hr__load_acquire(&tensor->word);
		if (hr__word_place(word) != HR__PLACE_EVICTED)
			hr__store_relaxed(&tensor->evict_first, 0); /* it is needed again before it was evicted */
		else if (hr__lms_prefetch(tensor, word) == HR_OUT_OF_MEMORY) due[left++] = due[i];
	}
	if (!left) return;
	hr__lock_take(&lms->lock);
	put_back(lms->learned, due, left);
	hr__lock_release(&lms->lock);
}

void hr__follow_before(hr__lms *lms, hr_stream stream)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__learned *learned = lms->learned;
	uint32_t position = HR__RECORD_NONE;
	for (bool again = true; again;) {
		hr_tensor due[RESTORES_AT_ONCE];
		bool late = false;
		hr__lock_take(&lms->lock);
		if (position == HR__RECORD_NONE) {
			bool joined = hr__follow_is_joined(lms, hr__pin_group_of_thread());
			late = !joined && learned->late_count;
			position = joined ? learned->position - 1 : learned->position++;
		}
		uint32_t turn = 0;
		again = false;
		if (follows(learned)) {
			turn = advance(learned, position, &again);
			request_unplanned(learned, position + UNPLANNED_LEAD);
		}
		uint32_t found = take_due(learned, due);
		hr__lock_release(&lms->lock);
		if (late) hr__follow_evict_late(lms);
		restore_due(lms, due, found);
		if (again) hr__again_run(lms, turn, stream);
	}
}

/* ---- evictions ---- */

/* What the plan does after the tensor's latest use. NULL if the tensor has no plan. */
static const hr__planned_use *planned_use(const hr__learned *learned, const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	const hr__active_plan *active = &learned->active_plan;
	uint32_t planned = tensor->learned.planned;
	if (!follows(learned) || planned == HR__RECORD_NONE || tensor->learned.step != learned->step || !tensor->learned.uses) return NULL;
	uint32_t use = active->first[planned] + tensor->learned.uses - 1;
	return use < active->first[planned + 1] ? &active->uses[use] : NULL;
}

void hr__follow_start_eviction(hr__tensor *tensor, uint64_t word, const uint32_t *free_at)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__lms *lms = tensor->lms;
	if (hr__load_relaxed(&tensor->never_evict) || !hr__state_begin_eviction(tensor, word)) return;
	hr__lms_begin_move(lms);
	if (!hr__move_copy_to_host(tensor) && free_at) {
		hr__lock_take(&lms->lock);
		hr__store_relaxed(&tensor->evict_first, HR__EVICT_FIRST_MOVE);
		tensor->evict_number = hr__again_free_number(lms->learned, *free_at);
		hr__evict_queue_put(lms, HR__EVICT_PLANNED, tensor);
		hr__lock_release(&lms->lock);
		hr__lms_count(&lms->stats.num_planned_evictions, 1);
	}
	hr__state_end_eviction(tensor, HR__PLACE_RESIDENT);
	hr__lms_end_move(lms);
}

/* The next op may change a tensor in place that this one has made, as a part of this op (hr__learned_hold): a copy made now would be of
 * no use. */
static bool put_off(hr__learned *learned, const hr__tensor *tensor, hr_tensor handle, bool evicted, uint32_t free_at)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	if (!hr__pin_group_of_thread()->depth || tensor->learned.uses != 1 || !hr__load_relaxed(&tensor->recipe)) return false;
	for (uint32_t i = 0; i < learned->late_count; i++)
		if (learned->late[i].handle.id == handle.id) return true;
	if (learned->late_count == HR__LATE_MAX) return false;
	learned->late[learned->late_count++] = (hr__late_eviction){ handle, free_at, evicted };
	return true;
}

void hr__follow_evict_late(hr__lms *lms)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__learned *learned = lms->learned;
	hr__late_eviction late[HR__LATE_MAX];
	hr__lock_take(&lms->lock);
	uint32_t count = learned->late_count;
	memcpy(late, learned->late, count * sizeof *late);
	learned->late_count = 0;
	hr__lock_release(&lms->lock);
	for (uint32_t i = 0; i < count; i++) {
		hr_status ignored;
		hr__tensor *tensor = hr__tensor_of(late[i].handle, &ignored);
		if (tensor) hr__follow_start_eviction(tensor, late[i].handle.id, late[i].evicted ? &late[i].free_at : NULL);
	}
}

void hr__follow_unpinned(hr__lms *lms, const hr_pin *pins, size_t count)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__learned *learned = lms->learned;
	for (size_t i = 0; i < count; i++) {
		hr_status ignored;
		hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
		if (!tensor) continue; /* destroyed meanwhile */
		hr__lock_take(&lms->lock);
		const hr__planned_use *use = planned_use(learned, tensor);
		bool copied = use && use->copied, evicted = use && use->evicted;
		uint32_t free_at = use ? use->free_at : 0;
		if (use && use->dropped) hr__again_drop_later(tensor, pins[i].tensor.id, free_at);
		bool late = (copied || evicted) && put_off(learned, tensor, pins[i].tensor, evicted, free_at);
		hr__lock_release(&lms->lock);
		if ((copied || evicted) && !late) hr__follow_start_eviction(tensor, pins[i].tensor.id, evicted ? &free_at : NULL);
	}
}

void hr__follow_recipe(hr__learned *learned, hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	const hr__planned_use *use = planned_use(learned, tensor);
	if (use && use->dropped) hr__again_drop_later(tensor, hr__load_relaxed(&tensor->word), use->free_at);
}

/* ---- unplanned evictions ---- */

/* Calls until its next use, as far as known; UINT64_MAX = not known to be used again. */
static uint64_t distance_to(const hr__lms *lms, const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	const hr__learned *learned = lms->learned;
	const hr__active_plan *active = &learned->active_plan;
	uint32_t planned = tensor->learned.planned;
	uint64_t idle = hr__load_relaxed(&lms->clock) - hr__load_relaxed(&tensor->last_use);
	if (!follows(learned) || planned == HR__RECORD_NONE) return idle + 1; /* long idle: likely to stay so */
	if (hr__load_relaxed(&tensor->ghost) && hr__learned_keeps_ghost(tensor)) return 1;
	uint32_t uses = tensor->learned.step == learned->step ? tensor->learned.uses : 0, next = active->first[planned] + uses;
	if (next < active->first[planned + 1]) {
		uint32_t op = active->uses[next].op;
		return op >= learned->position ? op - learned->position + 1 : 1;
	}
	if (!active->persists[planned] || active->first[planned] == active->first[planned + 1]) return UINT64_MAX;
	uint32_t left = learned->position < active->op_count ? active->op_count - learned->position : 0;
	return (uint64_t)left + active->uses[active->first[planned]].op + 1;
}

double hr__learned_eviction_score(hr__lms *lms, const hr__tensor *tensor, bool alone)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	const hr__active_plan *active = &lms->learned->active_plan;
	uint64_t distance = distance_to(lms, tensor);
	if (!alone || !active->is_set || distance == UINT64_MAX || is_lost(lms->learned)) return (double)distance;
	uint64_t far_off = active->op_count / FAR_OFF + 1;
	return (double)(distance < far_off ? distance : far_off) / (double)tensor->device_bytes;
}

bool hr__learned_ranks_by_use(const hr__lms *lms)
{
	return !lms->learned->active_plan.is_set || is_lost(lms->learned);
}

void hr__learned_unplanned_eviction(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	hr__learned *learned = lms->learned;
	uint64_t scattered = hr__blocks_scattered(lms->allocator);
	if (scattered > learned->scattered) learned->scattered = scattered;
}

/* Adds a tensor once; the list has at most as many as the plan has tensors. */
static void add_unplanned_tensor(hr__learned *learned, const hr__tensor *tensor, uint32_t need)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	hr__unplanned_tensor unplanned = { hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word)), need };
	for (uint32_t i = 0; i < learned->unplanned_tensors.count; i++) {
		if (HR__RECORD_AT(hr__unplanned_tensor, learned->unplanned_tensors, i).handle.id != unplanned.handle.id) continue;
		HR__RECORD_AT(hr__unplanned_tensor, learned->unplanned_tensors, i) = unplanned;
		return;
	}
	if (learned->unplanned_tensors.count < learned->active_plan.tensor_count &&
	    hr__record_array_has_room(&learned->unplanned_tensors, sizeof(hr__unplanned_tensor)))
		HR__RECORD_AT(hr__unplanned_tensor, learned->unplanned_tensors, learned->unplanned_tensors.count++) = unplanned;
}

void hr__learned_evicted(hr__lms *lms, const hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING);
	hr__learned *learned = lms->learned;
	if (!learned || hr__load_relaxed(&tensor->evict_first)) return;
	hr__lock_take(&lms->lock);
	const hr__active_plan *active = &learned->active_plan;
	learned->unplanned_bytes += tensor->device_bytes;
	bool known = active->is_set && tensor->learned.planned != HR__RECORD_NONE && !is_lost(learned);
	uint64_t distance = known ? distance_to(lms, tensor) : UINT64_MAX;
	if (distance < UINT32_MAX / 2) add_unplanned_tensor(learned, tensor, learned->position + (uint32_t)distance - 1);
	hr__lock_release(&lms->lock);
}
