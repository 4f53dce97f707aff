/* drop.c - dropping tensors. See recipe.h.
 *
 * A tensor is dropped by the program (hr_tensor_drop), or when its memory is needed and its recipe takes less time than the copies
 * that an eviction needs: both ways over the link, or only back if there is a host copy already. The time of a recipe includes the
 * recipes of inputs that are dropped themselves. A tensor whose copy fails because the host is full is dropped if it has a recipe,
 * whatever that costs. The speed of the link is that which the learned policy measured, else a guess.
 *
 * DEPTH. When tensor B is dropped, a pin of B runs the recipes of B's dropped inputs first, one inside another; and B's recipe runs
 * inside those of dropped tensors that depend on B. Both together must stay within recipe_depth, and what they may have pinned at once
 * within the limits: a tensor whose chain never finds enough memory would be lost. A walk follows each recipe once, so
 * the cost of a recipe that several inputs need counts once, as it would run once with enough memory. */
#include "core/lms/recipe/recipe.h"

#include "core/base/status.h"
#include "core/lms/policy/learned.h"

#define WALK_MAX 4096u           /* recipes that one walk examines */
#define LINK_GUESS UINT64_C(25)  /* bytes per ns */

/* ---- measuring ---- */

struct measure {
	hr__lms *lms;
	uint64_t walk;
	uint32_t most;  /* depth allowed */
	uint32_t steps; /* recipes examined */
	uint64_t cost_ns;
};

/* Recipes one inside another, and the bytes that they need. */
struct extent {
	uint32_t depth;
	uint64_t need;
};

static const struct extent too_deep = { HR__RECIPE_DEPTH_MAX + 1, 0 };

static struct extent greater(struct extent a, struct extent b)
{
	return (struct extent){ a.depth > b.depth ? a.depth : b.depth, a.need > b.need ? a.need : b.need };
}

static uint64_t input_bytes(const hr__recipe *recipe)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < recipe->input_count; i++) bytes += recipe->inputs[i].tensor->device_bytes;
	return bytes;
}

static uint64_t output_bytes(const hr__recipe *recipe)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < recipe->output_count; i++)
		if (recipe->outputs[i]) bytes += recipe->outputs[i]->device_bytes;
	return bytes;
}

/* From this recipe down to those whose inputs all have contents. Above [most], or after WALK_MAX recipes, it is too deep. While an input
 * is computed, the other inputs may be pinned, but the outputs have no memory yet. */
static struct extent extent_below(struct measure *m, hr__recipe *recipe, uint32_t level)
{
	if (level > m->most || m->steps >= WALK_MAX) return too_deep;
	if (!hr__recipe_visit(recipe, m->walk)) return (struct extent){ recipe->depth, recipe->need };
	m->steps++;
	uint64_t inputs = input_bytes(recipe);
	struct extent most = { 0, inputs + output_bytes(recipe) };
	for (uint32_t i = 0; i < recipe->input_count; i++) {
		const hr__tensor *input = recipe->inputs[i].tensor;
		if (!input->dropped && !hr__load_relaxed(&input->ghost)) continue;
		struct extent below = extent_below(m, hr__load_relaxed(&input->recipe), level + 1);
		most = greater(most, (struct extent){ below.depth, below.need + inputs - input->device_bytes });
	}
	bool known = recipe->cost_ns && m->cost_ns != UINT64_MAX;
	m->cost_ns = known ? m->cost_ns + recipe->cost_ns : UINT64_MAX;
	recipe->depth = most.depth + 1;
	recipe->need = most.need;
	return (struct extent){ recipe->depth, recipe->need };
}

/* Of the recipes of dropped tensors that depend on the tensor: the bytes of their other inputs. */
static struct extent extent_above(struct measure *m, const hr__tensor *tensor, uint32_t level)
{
	struct extent deepest = { 0, 0 };
	if (level > m->most || m->steps >= WALK_MAX) return too_deep;
	for (const hr__recipe_input *each = tensor->dependents; each; each = each->next) {
		hr__recipe *recipe = each->recipe;
		if (hr__recipe_visit(recipe, m->walk)) {
			struct extent most = { 0, 0 };
			uint64_t inputs = input_bytes(recipe);
			m->steps++;
			for (uint32_t i = 0; i < recipe->output_count; i++) {
				const hr__tensor *output = recipe->outputs[i];
				if (!output || (!output->dropped && !hr__load_relaxed(&output->ghost))) continue;
				struct extent above = extent_above(m, output, level + 1);
				most = greater(most, (struct extent){ above.depth + 1, above.need + inputs });
			}
			recipe->depth = most.depth;
			recipe->need = most.need;
		}
		if (recipe->depth) deepest = greater(deepest, (struct extent){ recipe->depth, recipe->need - tensor->device_bytes });
	}
	return deepest;
}

bool hr__drop_measure(hr__tensor *tensor, hr__recipe_chain *chain)
{
	hr__lms *lms = tensor->lms;
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	struct measure m = { .lms = lms, .walk = hr__recipe_begin_walk(lms), .most = lms->recipe_depth };
	uint64_t limit = hr__load_relaxed(&lms->limit);
	if (lms->allocator->limit < limit) limit = lms->allocator->limit;
	struct extent below = extent_below(&m, hr__load_relaxed(&tensor->recipe), 1);
	m.walk = hr__recipe_begin_walk(lms);
	struct extent above = extent_above(&m, tensor, 1);
	*chain = (hr__recipe_chain){ below.depth + above.depth, below.need + above.need, m.cost_ns };
	return chain->depth <= lms->recipe_depth && chain->need <= limit && m.steps < WALK_MAX;
}

/* ---- whether ---- */

/* Time of the copies that an eviction and its restore would take. */
static uint64_t copy_ns(const hr__tensor *tensor)
{
	const hr__lms *lms = tensor->lms;
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	uint64_t in = LINK_GUESS * UINT64_C(1000000000), out = in;
	if (lms->learned && lms->learned->link.out.ns) {
		in = hr__link_in(&lms->learned->link);
		out = hr__link_out(&lms->learned->link);
	}
	double ns = (double)tensor->bytes * 1e9 / (double)in + (double)HR__LINK_COPY_NS;
	if (!tensor->copy.bytes) ns += (double)tensor->bytes * 1e9 / (double)out + (double)HR__LINK_COPY_NS;
	return (uint64_t)ns;
}

bool hr__drop_is_cheaper(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	hr__recipe_chain chain;
	if (!(hr__load_relaxed(&tensor->recipe_use) & HR__RECIPE_HAS)) return false;
	bool ghost = hr__load_relaxed(&tensor->ghost);
	if (ghost) return true;
	if (!hr__load_relaxed(&lms->recompute) || hr__state_is_displaced(tensor) || hr__load_relaxed(&tensor->only_moved)) return false;
	if (hr__load_relaxed(&tensor->evict_first)) return hr__load_relaxed(&tensor->evict_first) == HR__EVICT_FIRST_DROP;
	hr__lock_take(&lms->lock);
	bool cheaper = hr__load_relaxed(&tensor->recipe) && hr__drop_measure(tensor, &chain) && chain.cost_ns < copy_ns(tensor);
	hr__lock_release(&lms->lock);
	return cheaper;
}

bool hr__drop_is_possible(const hr__tensor *tensor)
{
	return hr__load_relaxed(&tensor->recipe_use) & HR__RECIPE_HAS && hr__load_relaxed(&tensor->lms->recompute) &&
	       !hr__state_is_displaced(tensor);
}

hr__droppable hr__drop_survey(hr__lms *lms)
{
	hr__droppable found = { .on = lms->enabled && hr__load_relaxed(&lms->recompute) };
	hr__lock_take(&lms->lock);
	uint64_t walk = hr__recipe_begin_walk(lms);
	for (uint32_t i = 0; i < lms->resident_count; i++) {
		const hr__tensor *tensor = lms->members[i];
		hr__recipe *recipe = hr__load_relaxed(&tensor->recipe);
		if (!recipe || !recipe->cost_ns || !hr__tensor_is_evictable(tensor->index + 1)) continue;
		found.bytes += tensor->device_bytes;
		if (hr__recipe_visit(recipe, walk)) found.ns += recipe->cost_ns; /* one run computes all its outputs */
	}
	hr__lock_release(&lms->lock);
	return found;
}

/* ---- dropping ---- */

static void count_dropped(hr__lms *lms, int64_t bytes)
{
	int64_t now = hr__fetch_add_relaxed(&lms->stats.bytes_dropped_now, bytes) + bytes;
	hr__lms_raise(&lms->stats.peak_bytes_dropped, now);
}

void hr__drop_end(hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	if (!tensor->dropped) return;
	tensor->dropped = false;
	if (!hr__load_relaxed(&tensor->ghost)) count_dropped(tensor->lms, -(int64_t)tensor->device_bytes);
}

/* From here on only the recipe has the contents, and a call that ends the recipe recomputes the tensor first. */
static hr_status begin_drop(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	hr__recipe_chain chain;
	char name[HR__TENSOR_NAME];
	hr__lock_take(&lms->lock);
	bool has = hr__load_relaxed(&tensor->recipe) != NULL;
	bool may = has && (hr__drop_measure(tensor, &chain) || hr__load_relaxed(&tensor->ghost));
	if (may) {
		tensor->dropped = true;
		if (!hr__load_relaxed(&tensor->ghost)) count_dropped(lms, (int64_t)tensor->device_bytes);
	}
	hr__lock_release(&lms->lock);
	if (may) return HR_OK;
	hr__tensor_name(tensor, name, sizeof name);
	if (!has) return hr__fail(HR_NOT_READY, "%s has no recipe: none was set, or it ended when an input or the tensor was written", name);
	if (chain.depth <= lms->recipe_depth)
		return hr__fail(HR_UNSUPPORTED, "%s cannot be dropped: to compute it again, its chain of recipes may need %s at once", name,
		                hr__sizes_text(&chain.need, 1).text[0]);
	return hr__fail(HR_UNSUPPORTED, "%s cannot be dropped: more than %u recipes would have to run one inside another", name,
	                lms->recipe_depth);
}

static void cancel_drop(hr__tensor *tensor)
{
	hr__lock_take(&tensor->lms->lock);
	hr__drop_end(tensor);
	hr__lock_release(&tensor->lms->lock);
}

/* Drops a claimed tensor. It stays EVICTING. */
static hr_status drop_claimed(hr__tensor *tensor, hr_stream stream)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING && tensor->address && !tensor->fixed);
	hr_status status = tensor->lms->verify ? hr__move_know_sum(tensor) : HR_OK;
	if (!status) status = begin_drop(tensor);
	if (!status) {
		status = hr__move_free_memory(tensor, stream);
		if (status) cancel_drop(tensor);
	}
	return status;
}

hr_status hr__drop(hr__tensor *tensor, hr_stream stream)
{
	hr__lms *lms = tensor->lms;
	hr__lms_begin_move(lms);
	hr_status status = drop_claimed(tensor, stream);
	hr__state_end_eviction(tensor, status ? HR__PLACE_RESIDENT : HR__PLACE_DROPPED);
	hr__lms_end_move(lms);
	return status;
}

hr_status hr__drop_or_evict(hr__tensor *tensor, hr_stream stream)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING);
	hr_tensor handle = hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word));
	if (!hr__load_relaxed(&tensor->unwritten) && hr__drop_is_cheaper(tensor)) {
		hr__last before = hr__last_get();
		hr__lms *lms = tensor->lms;
		hr__lms_begin_move(lms);
		bool dropped = drop_claimed(tensor, stream) == HR_OK;
		if (dropped) hr__state_end_eviction(tensor, HR__PLACE_DROPPED);
		hr__lms_end_move(lms);
		if (dropped) return HR_OK;
		hr__last_set(&before); /* another thread has ended its recipe, or dropped what it depends on */
	}
	hr_status status = hr__move_evict(tensor, stream);
	if (status != HR_OUT_OF_MEMORY || !hr__drop_is_possible(tensor)) return status;
	hr__last why = hr__last_get();
	if (!hr__state_begin_eviction(tensor, handle.id)) return status; /* it was pinned meanwhile */
	if (hr__drop(tensor, stream)) hr__last_set(&why);
	else status = HR_OK;
	return status;
}

hr_status hr_tensor_drop(hr_tensor handle)
{
	hr_status status;
	char name[HR__TENSOR_NAME];
	hr__tensor *tensor = hr__tensor_of(handle, &status);
	if (!tensor) return status;
	hr__tensor_name(tensor, name, sizeof name);
	for (unsigned attempt = 0;; attempt++) {
		uint64_t word = hr__load_acquire(&tensor->word);
		if (word >> 32 != handle.id >> 32) return hr__tensor_fail_closed(handle);
		switch (hr__word_place(word)) {
		case HR__PLACE_UNUSED:
		case HR__PLACE_DESTROYING: return hr__tensor_fail_closed(handle);
		case HR__PLACE_EVICTED:
		case HR__PLACE_DROPPED: return HR_OK;
		case HR__PLACE_NEW: return hr__fail(HR_NOT_READY, "%s has no recipe, because it was never written", name);
		case HR__PLACE_RESIDENT:
			if (word & HR__WORD_PINS) return hr__fail(HR_IN_USE, "%s is pinned; unpin it first", name);
			if (hr__load_relaxed(&tensor->never_evict) || !hr__load_relaxed(&tensor->lms->recompute))
				return hr__fail(HR_UNSUPPORTED, "%s cannot be dropped: %s", name,
				                hr__load_relaxed(&tensor->never_evict) ? "never_evict is set, or it is fixed and smaller than a page"
				                                                       : "options.recompute is off");
			if (tensor->fixed) return hr__fail(HR_UNSUPPORTED, "%s cannot be dropped: it is fixed", name);
			if (!hr__state_begin_eviction(tensor, word)) break;
			return hr__drop(tensor, tensor->lms->out_stream);
		default:
			status = hr__recompute_check_own(tensor);
			if (status) return status;
			hr__state_wait(attempt);
		}
	}
}

hr_status hr_lms_set_recompute(hr_allocator allocator, bool recompute)
{
	hr__lms *lms;
	hr_status status = hr__lms_of(allocator, &lms);
	if (!status) hr__store_relaxed(&lms->recompute, recompute);
	return status;
}
