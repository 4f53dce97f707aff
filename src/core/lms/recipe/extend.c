/* extend.c - extends recipes by ops that ran in place. See recipe.h.
 *
 *     hold      the recipe of a tensor that is about to be written stays, with its inputs, when the write takes the tensor from it
 *     extend    the op was queued: a recipe that runs the held one's ops and then this one takes the place of the held one
 *     unhold    the op failed: the held recipe ends */
#include "core/lms/recipe/recipe.h"

#include "core/base/status.h"
#include "core/base/struct.h"

#define OPS_MAX 16u /* of a recipe: so many ops have to run for one tensor */

/* Finds the tensor and acquires the lock of its context. */
static hr_status lock_tensor(hr_tensor handle, hr__tensor **out)
{
	hr_status status;
	hr__tensor *tensor = hr__tensor_of(handle, &status);
	if (!tensor) return status;
	hr__lock_take(&tensor->lms->lock);
	uint64_t word = hr__load_acquire(&tensor->word);
	*out = tensor;
	if (word >> 32 == handle.id >> 32 && hr__word_place(word) != HR__PLACE_DESTROYING) return HR_OK;
	hr__lock_release(&tensor->lms->lock);
	return hr__tensor_fail_closed(handle);
}

/* ---- holding ---- */

/* HR_OK, or why the recipe of the tensor cannot be held; [why] receives the reason, which does not name the tensor. */
static hr_status check_hold(const hr__tensor *tensor, const char **why)
{
	const hr__recipe *recipe = hr__load_relaxed(&tensor->recipe);
	*why = "has no recipe: none was set, or it ended when an input or the tensor was written";
	if (!recipe) return HR_NOT_READY;
	*why = "holds a recipe already, or another output of its recipe does";
	if (tensor->held || recipe->holder) return HR_IN_USE;
	*why = "has a recipe of 16 ops, which is the most";
	return recipe->ops < OPS_MAX ? HR_OK : HR_UNSUPPORTED;
}

hr_status hr_tensor_hold_recipe(hr_tensor handle)
{
	hr__tensor *tensor;
	const char *why;
	char name[HR__TENSOR_NAME];
	if (hr__recompute_is_running()) return hr__fail(HR_INVALID_ARGUMENT, "hr_tensor_hold_recipe: called in a recompute function");
	hr_status status = lock_tensor(handle, &tensor);
	if (status) return status;
	status = check_hold(tensor, &why);
	if (!status) {
		hr__recipe *recipe = hr__load_relaxed(&tensor->recipe);
		recipe->holder = tensor;
		tensor->held = recipe;
		recipe->target = 0;
		while (recipe->outputs[recipe->target] != tensor) recipe->target++;
		hr__learned_hold(tensor);
	}
	hr__lock_release(&tensor->lms->lock);
	return status ? hr__fail(status, "%s %s", hr__tensor_name(tensor, name, sizeof name), why) : HR_OK;
}

hr_status hr_tensor_unhold_recipe(hr_tensor handle)
{
	hr__tensor *tensor;
	hr__recipe_ended ended = { 0 };
	hr_status status = lock_tensor(handle, &tensor);
	if (status) return status;
	hr__recipe_unhold(tensor, &ended);
	hr__lock_release(&tensor->lms->lock);
	hr__recipe_release(&ended);
	return HR_OK;
}

/* ---- extending ---- */

static hr_status fail_target(const hr__tensor *tensor, hr_status status, const char *why)
{
	char name[HR__TENSOR_NAME];
	return hr__fail(status, "%s %s", hr__tensor_name(tensor, name, sizeof name), why);
}

/* Copies what the held recipe names, in front of what [given] does. */
static void continue_held(hr__recipe *recipe, const hr__recipe *held, hr__tensor *target)
{
	recipe->lms = held->lms;
	recipe->target = held->target;
	recipe->outputs[held->target] = target;
	for (uint32_t i = 0; i < held->input_count; i++) recipe->inputs[i] = (hr__recipe_input){ .tensor = held->inputs[i].tensor, .recipe = recipe };
	for (uint32_t i = 0; i < held->source_count; i++)
		recipe->inputs[recipe->input_count + i] = (hr__recipe_input){ .source = held->inputs[held->input_count + i].source, .recipe = recipe };
	recipe->cost_ns = held->cost_ns && recipe->cost_ns ? held->cost_ns + recipe->cost_ns : 0;
	if (!recipe->op) recipe->op = held->op;
}

/* With the lock; on failure nothing is linked. *made is to be freed then, if it is not NULL. */
static hr_status make_extended(hr__tensor *tensor, const hr_recipe *given, hr__recipe **made)
{
	hr__lms *lms = tensor->lms;
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	hr__recipe *held = tensor->held;
	if (!held) return fail_target(tensor, HR_NOT_READY, "holds no recipe: an input was written since, or hr_tensor_hold_recipe was not called");
	if (hr__load_relaxed(&tensor->recipe) == held) return fail_target(tensor, HR_INVALID_ARGUMENT, "was not pinned for writing since it holds its recipe");
	hr_status status = hr__recipe_allocate(given, held, made);
	if (status) return status;
	hr__recipe *recipe = *made;
	continue_held(recipe, held, tensor);
	status = hr__recipe_find_inputs(given, recipe);
	if (!status) status = hr__recipe_check_off(recipe);
	uint64_t walk = hr__recipe_begin_walk(lms);
	if (!status) status = hr__recipe_check_output(recipe, recipe->target, given->outputs[0], walk);
	if (!status) status = hr__recipe_check_inputs(recipe, given->inputs, walk);
	if (!status && !hr__recipe_source_reserve(lms, recipe->source_count))
		status = hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for the sources of a recipe");
	return status;
}

/* The hold ends, whether the recipe can be extended or not. */
static hr_status extend(hr__tensor *tensor, const hr_recipe *given, hr__recipe **unused, hr__recipe_ended *ended)
{
	hr__recipe *made = NULL;
	hr_status status = make_extended(tensor, given, &made);
	if (status) *unused = made;
	if (!status) {
		hr__fetch_add_relaxed(&made->before->refs, 1);
		hr__recipe_link(made, ended);
		hr__learned_recipe_set(tensor->lms, made);
	}
	hr__recipe_unhold(tensor, ended);
	return status;
}

hr_status hr_tensor_extend_recipe(const hr_recipe *given)
{
	hr_recipe whole;
	hr__tensor *tensor;
	hr__recipe *unused = NULL;
	hr__recipe_ended ended = { 0 };
	hr_recipe_init(&whole);
	hr_status status = hr__struct_in(&hr__struct_recipe, "hr_tensor_extend_recipe", &whole, given);
	if (!status) status = hr__recipe_check_call(&whole, "hr_tensor_extend_recipe");
	if (!status && whole.output_count != 1)
		status = hr__fail(HR_INVALID_ARGUMENT, "hr_tensor_extend_recipe: an op in place has one output, not %zu", whole.output_count);
	if (!status) status = lock_tensor(whole.outputs[0], &tensor);
	if (status) return status;
	status = extend(tensor, &whole, &unused, &ended);
	hr__lock_release(&tensor->lms->lock);
	if (unused) hr__os()->free(unused, unused->bytes);
	hr__recipe_release(&ended);
	return status;
}
