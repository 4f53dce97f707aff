/* ghost.c - tensors that the program has destroyed and recipes still need. See recipe.h.
 *
 * A ghost has memory only while a chain of recipes is running: it is computed as an input, and freed when the last chain of the
 * context has ended, so that a chain that needs it several times computes it once. If the learned policy follows a plan that needs it
 * later, it stays until then (policy/again.c). Until then it may be dropped under pressure, as any tensor with a recipe. */
#include "core/lms/recipe/recipe.h"

#include "core/base/status.h"

/* Whether a recipe that it is an input of is running: that has its handle, which would change. */
static bool is_needed_now(const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	for (const hr__recipe_input *each = tensor->dependents; each; each = each->next)
		if (each->recipe->running) return true;
	return false;
}

bool hr__ghost_is_pinned_by_recipe(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	hr__lock_take(&lms->lock);
	/* A recipe pins its inputs only while it is running, and that changes under the lock. */
	bool by_recipe = is_needed_now(tensor) || !(hr__load_relaxed(&tensor->word) & HR__WORD_PINS);
	hr__lock_release(&lms->lock);
	return by_recipe;
}

static bool may_be_ghost(hr__tensor *tensor)
{
	hr__recipe_chain chain;
	return hr__load_relaxed(&tensor->recipe) && hr__load_relaxed(&tensor->lms->recompute) && hr__drop_measure(tensor, &chain);
}

static enum hr__fate decide(hr__tensor *tensor, uint64_t word, enum hr__place from, hr__recipe_ended *ended)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	bool ghost = false;
	if (tensor->dependents) {
		if (is_needed_now(tensor)) return HR__FATE_WAIT;
		ghost = may_be_ghost(tensor);
		hr__recipe_obstacle obstacle = { 0 };
		if (!ghost) obstacle = hr__recipe_find_obstacle(tensor);
		if (obstacle.running || obstacle.dropped) return HR__FATE_END;
	}
	if (!hr__state_begin_destruction(tensor, word, from)) return HR__FATE_WAIT;
	hr__recipe_unhold(tensor, ended);
	if (ghost) {
		hr__drop_end(tensor); /* its bytes are no longer those of a dropped tensor */
		tensor->dropped = true;
		hr__store_relaxed(&tensor->ghost, HR__GHOST_BECOMING);
		return HR__FATE_GHOST;
	}
	hr__recipe_end_all(tensor, ended);
	hr__recipe_detach(tensor, ended);
	return HR__FATE_GONE;
}

enum hr__fate hr__ghost_decide(hr__tensor *tensor, uint64_t word, enum hr__place from, hr__recipe_ended *ended)
{
	hr__lms *lms = tensor->lms;
	hr__lock_take(&lms->lock);
	enum hr__fate fate = decide(tensor, word, from, ended);
	hr__lock_release(&lms->lock);
	return fate;
}

void hr__ghost_settle(hr__tensor *tensor, uint32_t generation)
{
	hr__lms *lms = tensor->lms;
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_DESTROYING && !tensor->address && !tensor->copy.bytes);
	hr__lock_take(&lms->lock);
	hr__evict_queue_remove_all(lms, tensor);
	hr__lms_list_as_evicted(lms, tensor);
	uint32_t planned = tensor->learned.planned;
	tensor->learned.slot = tensor->learned.planned = UINT32_MAX;
	hr__store_relaxed(&tensor->ghost, HR__GHOST_YES);
	hr__store_relaxed(&tensor->never_evict, 0);
	hr__store_relaxed(&tensor->evict_first, 0);
	hr__state_become_ghost(tensor, generation);
	hr__learned_ghost(tensor, planned);
	hr__lock_release(&lms->lock);
	hr__lms_count(&lms->stats.num_ghosts, 1);
	hr__lms_count(&lms->stats.num_tensors, -1);
}

/* ---- memory ---- */

void hr__ghost_list(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	if (tensor->ghost_listed) return;
	tensor->ghost_listed = true;
	tensor->next_ghost = lms->ghosts;
	lms->ghosts = tensor;
}

void hr__ghost_unlist(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	if (!tensor->ghost_listed) return;
	hr__tensor **link = &lms->ghosts;
	while (*link != tensor) link = &(*link)->next_ghost;
	*link = tensor->next_ghost;
	tensor->ghost_listed = false;
}

/* Claims a ghost with memory; NULL = none is left. One that another thread is dropping is skipped. */
static hr__tensor *claim_ghost(hr__lms *lms)
{
	hr__tensor *claimed = NULL;
	hr__lock_take(&lms->lock);
	for (hr__tensor *ghost = lms->ghosts, *next; ghost && !lms->recipes_running && !claimed; ghost = next) {
		next = ghost->next_ghost;
		if (hr__learned_keeps_ghost(ghost)) continue;
		hr__ghost_unlist(ghost);
		if (hr__state_begin_eviction(ghost, hr__load_relaxed(&ghost->word))) claimed = ghost;
	}
	hr__lock_release(&lms->lock);
	return claimed;
}

void hr__ghost_drop_all(hr__lms *lms)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	for (hr__tensor *ghost; (ghost = claim_ghost(lms)) != NULL;) {
		hr__last before = hr__last_get();
		if (hr__drop(ghost, lms->out_stream)) hr__last_set(&before); /* it keeps its memory, and may be evicted */
	}
}
