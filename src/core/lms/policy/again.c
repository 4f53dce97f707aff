/* again.c - runs ops again, as the active plan says, and frees what they made; see follow.c.
 *
 * Before the pin call of an op, the calling thread carries out the turns that the plan has before it: it computes the tensors that the
 * plan keeps (hr__recompute, on the stream of the pin call), and frees what the plan does not need from then on. What cannot be computed,
 * because there is no memory, is left to the pin.
 *
 * A tensor that the plan drops keeps its memory until another request needs it, as one that the plan evicts (evict_queue.h), but is then
 * freed without a copy. A pin before that cancels it. GHOSTS have no pins: one that was computed stays until the turn after which the
 * plan drops it, then its memory is freed at once. While a turn is running, all ghosts stay, so that an op with several recipes computes
 * each ghost once. */
#include "core/lms/policy/learned.h"

#include "core/base/status.h"
#include "core/lms/recipe/recipe.h"

/* ---- dropping ---- */

uint64_t hr__again_free_number(const hr__learned *learned, uint32_t free_at)
{
	return hr__active_plan_runs_again(&learned->active_plan) ? learned->turns_before + free_at + 1 : 0;
}

void hr__again_drop_later(hr__tensor *tensor, uint64_t word, uint32_t free_at)
{
	hr__lms *lms = tensor->lms;
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	bool may = hr__load_relaxed(&tensor->recipe) && hr__load_relaxed(&lms->recompute) && !hr__load_relaxed(&tensor->never_evict);
	if (!may || !hr__state_begin_eviction(tensor, word)) return;
	hr__store_relaxed(&tensor->evict_first, HR__EVICT_FIRST_DROP);
	tensor->evict_number = hr__again_free_number(lms->learned, free_at);
	hr__evict_queue_put(lms, HR__EVICT_PLANNED, tensor);
	hr__state_end_eviction(tensor, HR__PLACE_RESIDENT);
}

bool hr__learned_is_copied_later(const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	const hr__learned *learned = tensor->lms->learned;
	if (!learned || !hr__load_relaxed(&tensor->evict_first) || learned->turn == HR__PLAN_NEVER) return false;
	return tensor->evict_number > hr__again_free_number(learned, learned->turn);
}

bool hr__learned_keeps_ghost(const hr__tensor *ghost)
{
	HR_ASSERT(hr__lock_is_mine(&ghost->lms->lock));
	const hr__learned *learned = ghost->lms->learned;
	if (!learned || !hr__active_plan_runs_again(&learned->active_plan)) return false;
	if (learned->turns_running) return true;
	uint32_t planned = ghost->learned.planned;
	return planned != HR__RECORD_NONE && learned->turn != HR__PLAN_NEVER && learned->active_plan.kept_until[planned] > learned->turn;
}

/* ---- places ---- */

/* The turn that the thread carries out. */
static _Thread_local struct {
	const hr__learned *learned;
	uint32_t turn;
} running;

/* The first of the places of a turn. */
static uint32_t first_place(const hr__active_plan *active, uint32_t turn)
{
	uint32_t low = 0, high = active->place_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (active->places[middle].turn < turn) low = middle + 1;
		else high = middle;
	}
	return low;
}

const hr__layout_stay *hr__again_place(hr__learned *learned, const hr__tensor *tensor, bool takes)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	hr__active_plan *active = &learned->active_plan;
	uint32_t planned = tensor->learned.planned;
	if (running.learned != learned) return NULL;
	for (uint32_t i = first_place(active, running.turn); i < active->place_count && active->places[i].turn == running.turn; i++) {
		hr__planned_place *place = &active->places[i];
		const hr__layout_stay *stay = &active->stays[place->stay];
		bool own = planned != HR__RECORD_NONE && place->stay >= active->first_stay[planned] && place->stay < active->first_stay[planned + 1];
		/* Memory of a recipe's own may be handed over to any output of that size. */
		if (place->taken_in == learned->step || (planned != HR__RECORD_NONE ? !own : stay->bytes != tensor->device_bytes)) continue;
		if (takes) place->taken_in = learned->step;
		return stay;
	}
	return NULL;
}

/* ---- turns ---- */

/* The next thing to do at turn [turn]. False: there is none. */
static bool take_act(hr__learned *learned, uint32_t turn, hr__planned_act *act, hr_tensor *handle)
{
	hr__active_plan *active = &learned->active_plan;
	if (!hr__active_plan_runs_again(active) || learned->next_act == active->act_count) return false;
	*act = active->acts[learned->next_act];
	if (act->turn > turn) return false;
	learned->next_act++;
	*handle = active->present[act->tensor];
	if (act->kind == HR__AGAIN_MAKE) active->kept_until[act->tensor] = act->until;
	return true;
}

static void make_again(hr__lms *lms, hr__tensor *tensor, hr_stream stream)
{
	bool done = false;
	hr__follow_leave_place(tensor, hr__load_acquire(&tensor->word));
	uint64_t word = hr__load_acquire(&tensor->word);
	hr__store_relaxed(&tensor->evict_first, 0); /* if it was not dropped yet, it stays */
	if (hr__word_place(word) == HR__PLACE_EVICTED) (void)hr__lms_prefetch(tensor, word); /* it could not be dropped */
	if (hr__word_place(word) != HR__PLACE_DROPPED) return;
	if (!hr__recompute(tensor, word, stream, HR__THEN_KEEP, &done) && done) hr__lms_count(&lms->stats.num_planned_recomputes, 1);
}

static void carry_out(hr__lms *lms, const hr__planned_act *act, hr_tensor handle, hr_stream stream)
{
	hr_status ignored;
	hr__tensor *tensor = handle.id ? hr__tensor_of(handle, &ignored) : NULL;
	if (!tensor) return;
	switch (act->kind) {
	case HR__AGAIN_MAKE: make_again(lms, tensor, stream); break;
	case HR__AGAIN_COPY: hr__follow_start_eviction(tensor, handle.id, NULL); break;
	case HR__AGAIN_EVICT: hr__follow_start_eviction(tensor, handle.id, &act->until); break;
	case HR__AGAIN_DROP:
		hr__lock_take(&lms->lock);
		if (!hr__load_relaxed(&tensor->ghost)) hr__again_drop_later(tensor, handle.id, act->until);
		hr__lock_release(&lms->lock);
	}
}

void hr__again_run(hr__lms *lms, uint32_t turn, hr_stream stream)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__learned *learned = lms->learned;
	hr__last before = hr__last_get(); /* what fails here is no failure of the program's call */
	for (bool first = true;; first = false) {
		hr__planned_act act;
		hr_tensor handle;
		hr__lock_take(&lms->lock);
		bool more = take_act(learned, turn, &act, &handle);
		if (first) learned->turns_running++;
		if (!more) learned->turns_running--;
		hr__lock_release(&lms->lock);
		if (!more) break;
		running.learned = learned;
		running.turn = turn;
		carry_out(lms, &act, handle, stream);
		running.learned = NULL;
	}
	hr__ghost_drop_all(lms);
	/* As after each op (mark_end in learned.c): what is freed now does not wait for the next op. */
	(void)hr__device_mark(lms->device, stream == HR_STREAM_HOST ? HR_STREAM_DEFAULT : stream, NULL);
	hr__last_set(&before);
}
