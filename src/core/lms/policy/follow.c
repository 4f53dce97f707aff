/* follow.c - applies the active plan to the current step.
 *
 * A tensor stores its number in the plan (learned.planned) and its number of uses in the step, so the plan for a use is looked up
 * by number. If too many uses come at another time than in the plan, the step is LOST: it is not the plan's step, and until it ends
 * tensors are evicted as if there were no plan. */
#include <string.h>

#include "core/lms/policy/learned.h"
#include "core/memory/bfc/tensor_block.h"

#define RETURNS_AT_ONCE 64u
#define STRAY_LEAD 8u /* a stray is requested at the latest this many calls before it is needed */
#define FAR_OFF 8u    /* next uses more than 1/8 of a step away count as equally far */
#define OFF_PART 16u  /* a use that comes more than 1/16 of a step too early or too late is not the plan's */
#define OFF_MIN 8u    /* with this many uses that are not the plan's, and a quarter of all, the step is lost */

/* ---- mapping tensors to the plan ---- */

void hr__follow_created(hr__lms *lms, hr__tensor *tensor, uint32_t number)
{
	hr__learned *learned = lms->learned;
	hr__force *force = &learned->force;
	if (!force->is_set || number >= force->created_count || force->created[number] == HR__NONE) return;
	uint32_t planned = force->created[number];
	if (hr__tensor_device_bytes(tensor) == force->bytes[planned]) {
		tensor->learned.planned = planned;
		force->present[planned] = hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word));
	} else {
		learned->mismatches++;
		hr__lms_count(&lms->stats.num_mismatches, 1);
	}
}

void hr__follow_destroyed(hr__learned *learned, const hr__tensor *tensor)
{
	/* A tensor of the next step may have its place already. */
	hr_tensor *present = learned->force.is_set && tensor->learned.planned != HR__NONE ? &learned->force.present[tensor->learned.planned] : NULL;
	if (present && present->id == hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word)).id) present->id = 0;
}

/* ---- is it the plan's step? ---- */

void hr__follow_use(hr__learned *learned, const hr__tensor *tensor)
{
	const hr__force *force = &learned->force;
	uint32_t planned = tensor->learned.planned, position = learned->position - 1;
	if (!force->is_set || planned == HR__NONE || !learned->position) return;
	uint32_t use = force->first[planned] + tensor->learned.uses - 1;
	uint32_t op = use < force->first[planned + 1] ? force->uses[use].op : HR__NONE, apart = op > position ? op - position : position - op;
	if (apart > force->op_count / OFF_PART + 1) learned->off++;
	else learned->on++;
}

/* The step is not the plan's, so what the plan says of its tensors is wrong. */
static bool is_lost(const hr__learned *learned)
{
	return learned->off >= OFF_MIN && learned->off > learned->on / 3;
}

/* ---- restores ---- */

static void want_back(hr__learned *learned, hr_tensor handle)
{
	/* Without host memory, the pin restores it. */
	if (handle.id && hr__record_array_has_room(&learned->waiting, sizeof(hr_tensor)))
		HR__AT(hr_tensor, learned->waiting, learned->waiting.count++) = handle;
}

static bool is_out(hr_tensor handle)
{
	hr_status ignored;
	const hr__tensor *tensor = hr__tensor_of(handle, &ignored);
	return tensor && hr__place_of(hr__load_acquire(&tensor->word)) == HR__OUT;
}

/* Requests the strays that are needed by [need] or before. A pin may have restored one already. */
static void want_strays_back(hr__learned *learned, uint32_t need)
{
	for (uint32_t i = 0; i < learned->strays.count;) {
		hr__stray *stray = &HR__AT(hr__stray, learned->strays, i);
		if (stray->need > need) {
			i++;
			continue;
		}
		if (is_out(stray->handle)) want_back(learned, stray->handle);
		*stray = HR__AT(hr__stray, learned->strays, --learned->strays.count);
	}
}

void hr__follow_before(hr__lms *lms)
{
	hr__learned *learned = lms->learned;
	hr__force *force = &learned->force;
	hr_tensor wanted[RETURNS_AT_ONCE];
	uint32_t found = 0;
	hr__lock_take(&lms->lock);
	uint32_t position = learned->position++;
	if (force->is_set && !is_lost(learned)) {
		for (; learned->next_return < force->plan.move_count && force->returns[learned->next_return].before <= position; learned->next_return++) {
			const hr__comeback *comeback = &force->returns[learned->next_return];
			want_strays_back(learned, comeback->need);
			want_back(learned, force->present[comeback->tensor]);
		}
		want_strays_back(learned, position + STRAY_LEAD);
	}
	/* Removed from the list, so that no other thread requests the same. */
	for (; found < learned->waiting.count && found < RETURNS_AT_ONCE; found++) wanted[found] = HR__AT(hr_tensor, learned->waiting, found);
	learned->waiting.count -= found;
	if (found) memmove(learned->waiting.items, (hr_tensor *)learned->waiting.items + found, learned->waiting.count * sizeof(hr_tensor));
	hr__lock_release(&lms->lock);

	uint32_t left = 0;
	for (uint32_t i = 0; i < found; i++) {
		hr_status status;
		hr__tensor *tensor = hr__tensor_of(wanted[i], &status);
		if (!tensor) continue;
		uint64_t word = hr__load_acquire(&tensor->word);
		if (hr__place_of(word) != HR__OUT) hr__store_relaxed(&tensor->leaves, 0); /* it is needed again before it was evicted */
		else if (hr__prefetch(tensor, word) == HR_OUT_OF_MEMORY) wanted[left++] = wanted[i];
	}
	if (!left) return;
	hr__lock_take(&lms->lock);
	while (learned->waiting.capacity - learned->waiting.count < left &&
	       hr__record_array_grow(&learned->waiting, sizeof(hr_tensor))) {}
	if (learned->waiting.capacity - learned->waiting.count >= left) { /* else their pins restore them */
		memmove((hr_tensor *)learned->waiting.items + left, learned->waiting.items, learned->waiting.count * sizeof(hr_tensor));
		memcpy(learned->waiting.items, wanted, left * sizeof(hr_tensor));
		learned->waiting.count += left;
	}
	hr__lock_release(&lms->lock);
}

/* ---- evictions ---- */

/* What the plan does after the tensor's latest use. NULL if the tensor has no plan. */
static const hr__leave *planned_use(const hr__learned *learned, const hr__tensor *tensor)
{
	const hr__force *force = &learned->force;
	uint32_t planned = tensor->learned.planned;
	if (!force->is_set || planned == HR__NONE || tensor->learned.step != learned->step || !tensor->learned.uses || is_lost(learned)) return NULL;
	uint32_t use = force->first[planned] + tensor->learned.uses - 1;
	return use < force->first[planned + 1] ? &force->uses[use] : NULL;
}

/* Starts its copy to the host; the memory stays until another request needs it. */
static void send(hr__tensor *tensor, uint64_t word, bool leaves)
{
	hr__lms *lms = tensor->lms;
	if (hr__load_relaxed(&tensor->never_evict) || !hr__tensor_claim(tensor, word, HR__HOME, HR__LEAVING)) return;
	hr__lms_enter(lms);
	if (!hr__move_sync(tensor) && leaves) {
		hr__lock_take(&lms->lock);
		hr__store_relaxed(&tensor->leaves, 1);
		hr__evict_queue_put(lms, HR__EVICT_LEAVING, tensor);
		hr__lock_release(&lms->lock);
		hr__lms_count(&lms->stats.num_planned_evictions, 1);
	}
	hr__tensor_settle(tensor, HR__HOME, 0);
	hr__lms_leave(lms);
}

void hr__follow_unpinned(hr__lms *lms, const hr_pin *pins, size_t count)
{
	const hr__learned *learned = lms->learned;
	for (size_t i = 0; i < count; i++) {
		hr_status ignored;
		hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
		if (!tensor) continue; /* destroyed meanwhile */
		hr__lock_take(&lms->lock);
		const hr__leave *use = planned_use(learned, tensor);
		bool copied = use && use->copied, leaves = use && use->leaves;
		hr__lock_release(&lms->lock);
		if (copied || leaves) send(tensor, pins[i].tensor.id, leaves);
	}
}

/* ---- places ---- */

uint64_t hr__learned_place(const hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	const hr__learned *learned = lms->learned;
	if (!learned || tensor->bytes <= HR__SMALL_MAX) return 0;
	uint64_t place = 0;
	hr__lock_take(&lms->lock);
	const hr__force *force = &learned->force;
	uint32_t planned = tensor->learned.planned;
	if (learned->area && force->laid_out && planned != HR__NONE) {
		uint32_t uses = tensor->learned.step == learned->step ? tensor->learned.uses : 0, use = force->first[planned] + uses;
		if (use >= force->first[planned + 1]) use = force->first[planned]; /* its first use in the next step */
		for (uint32_t i = force->first_stay[planned]; use < force->first[planned + 1] && i < force->first_stay[planned + 1] && !place; i++) {
			const hr__stay *stay = &force->stays[i];
			uint32_t op = force->uses[use].op;
			bool here = stay->from <= stay->to ? op >= stay->from && op <= stay->to : op >= stay->from || op <= stay->to;
			if (here && stay->offset + stay->bytes <= learned->area_bytes) place = learned->area + stay->offset;
		}
	}
	hr__lock_release(&lms->lock);
	return place;
}

/* ---- unplanned evictions ---- */

/* Calls until its next use, as far as known; UINT64_MAX = not known to be used again. */
static uint64_t distance_to(const hr__lms *lms, const hr__tensor *tensor)
{
	const hr__learned *learned = lms->learned;
	const hr__force *force = &learned->force;
	uint32_t planned = tensor->learned.planned;
	uint64_t idle = hr__load_relaxed(&lms->clock) - hr__load_relaxed(&tensor->last_use);
	if (!force->is_set || planned == HR__NONE || is_lost(learned)) return idle + 1; /* long idle: likely to stay so */
	uint32_t uses = tensor->learned.step == learned->step ? tensor->learned.uses : 0, next = force->first[planned] + uses;
	if (next < force->first[planned + 1]) {
		uint32_t op = force->uses[next].op;
		return op >= learned->position ? op - learned->position + 1 : 1;
	}
	if (!force->lives_on[planned] || force->first[planned] == force->first[planned + 1]) return UINT64_MAX;
	uint32_t left = learned->position < force->op_count ? force->op_count - learned->position : 0;
	return (uint64_t)left + force->uses[force->first[planned]].op + 1;
}

double hr__learned_worth(hr__lms *lms, const hr__tensor *tensor, bool alone)
{
	const hr__force *force = &lms->learned->force;
	uint64_t distance = distance_to(lms, tensor);
	if (!alone || !force->is_set || distance == UINT64_MAX || is_lost(lms->learned)) return (double)distance;
	uint64_t far_off = force->op_count / FAR_OFF + 1;
	return (double)(distance < far_off ? distance : far_off) / (double)hr__tensor_device_bytes(tensor);
}

bool hr__learned_goes_by_use(const hr__lms *lms)
{
	return !lms->learned->force.is_set || is_lost(lms->learned);
}

void hr__learned_pressed(hr__lms *lms)
{
	hr__learned *learned = lms->learned;
	uint64_t scattered = hr__blocks_scattered(lms->allocator);
	if (scattered > learned->scattered) learned->scattered = scattered;
}

/* Adds a tensor once; the list has at most as many as the plan has tensors. */
static void add_stray(hr__learned *learned, const hr__tensor *tensor, uint32_t need)
{
	hr__stray stray = { hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word)), need };
	for (uint32_t i = 0; i < learned->strays.count; i++) {
		if (HR__AT(hr__stray, learned->strays, i).handle.id != stray.handle.id) continue;
		HR__AT(hr__stray, learned->strays, i) = stray;
		return;
	}
	if (learned->strays.count < learned->force.tensor_count && hr__record_array_has_room(&learned->strays, sizeof(hr__stray)))
		HR__AT(hr__stray, learned->strays, learned->strays.count++) = stray;
}

void hr__learned_evicted(hr__lms *lms, const hr__tensor *tensor)
{
	hr__learned *learned = lms->learned;
	if (!learned || hr__load_relaxed(&tensor->leaves)) return;
	hr__lock_take(&lms->lock);
	const hr__force *force = &learned->force;
	learned->unplanned += tensor->device_bytes;
	bool known = force->is_set && tensor->learned.planned != HR__NONE && !is_lost(learned);
	uint64_t distance = known ? distance_to(lms, tensor) : UINT64_MAX;
	if (distance < UINT32_MAX / 2) add_stray(learned, tensor, learned->position + (uint32_t)distance - 1);
	hr__lock_release(&lms->lock);
}
