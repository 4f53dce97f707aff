/* recipe.c - makes and ends recipes. See recipe.h. */
#include "core/lms/recipe/recipe.h"

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/base/text/text.h"

uint64_t hr__recipe_begin_walk(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	return ++lms->recipe_walk;
}

/* ---- edges ---- */

void hr__recipe_note_use(hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	unsigned use = hr__load_relaxed(&tensor->recipe_use) & HR__RECIPE_READ;
	use |= (hr__load_relaxed(&tensor->recipe) ? HR__RECIPE_HAS : 0) | (tensor->dependents ? HR__RECIPE_FEEDS : 0);
	hr__store_relaxed(&tensor->recipe_use, (uint8_t)use);
}

static void link_input(hr__recipe_input *input)
{
	hr__tensor *tensor = input->tensor;
	input->next = tensor->dependents;
	input->link = &tensor->dependents;
	if (input->next) input->next->link = &input->next;
	tensor->dependents = input;
	hr__recipe_note_use(tensor);
}

static void unlink_input(hr__recipe_input *input)
{
	*input->link = input->next;
	if (input->next) input->next->link = input->link;
	hr__recipe_note_use(input->tensor);
}

/* ---- ending ---- */

/* Takes a recipe without outputs from its inputs. Ghosts on which nothing depends any more end with it. */
static void end_recipe(hr__recipe *recipe, hr__recipe_ended *ended)
{
	HR_ASSERT(hr__lock_is_mine(&recipe->lms->lock));
	HR_ASSERT(!recipe->running && !recipe->outputs_left && !recipe->holder);
	for (uint32_t i = 0; i < recipe->source_count; i++) hr__recipe_source_unlink(recipe->lms, &recipe->inputs[recipe->input_count + i]);
	for (uint32_t i = 0; i < recipe->input_count; i++) {
		hr__tensor *input = recipe->inputs[i].tensor;
		unlink_input(&recipe->inputs[i]);
		if (!hr__load_relaxed(&input->ghost) || input->dependents) continue;
		hr__ghost_unlist(input);
		input->next_ghost = ended->ghosts;
		ended->ghosts = input;
	}
	recipe->next_ended = ended->recipes;
	ended->recipes = recipe;
	hr__lms_count(&recipe->lms->stats.num_recipes, -1);
}

void hr__recipe_detach(hr__tensor *tensor, hr__recipe_ended *ended)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	hr__recipe *recipe = hr__load_relaxed(&tensor->recipe);
	if (!recipe) return;
	/* A ghost without dependents is about to be destroyed. */
	HR_ASSERT(!tensor->dropped || hr__state_place(tensor) == HR__PLACE_DESTROYING ||
	          (hr__load_relaxed(&tensor->ghost) && !tensor->dependents));
	uint32_t i = 0;
	while (recipe->outputs[i] != tensor) i++;
	recipe->outputs[i] = NULL;
	recipe->outputs_left--;
	hr__store_relaxed(&tensor->recipe, NULL);
	hr__recipe_note_use(tensor);
	hr__recipe_end_unused(recipe, ended);
}

void hr__recipe_end_unused(hr__recipe *recipe, hr__recipe_ended *ended)
{
	HR_ASSERT(hr__lock_is_mine(&recipe->lms->lock));
	if (!recipe->outputs_left && !recipe->running && !recipe->holder) end_recipe(recipe, ended);
}

void hr__recipe_unhold(hr__tensor *tensor, hr__recipe_ended *ended)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	hr__recipe *recipe = tensor->held;
	if (!recipe) return;
	HR_ASSERT(recipe->holder == tensor);
	tensor->held = NULL;
	recipe->holder = NULL;
	hr__recipe_end_unused(recipe, ended);
}

void hr__recipe_end_one(hr__recipe *recipe, hr__recipe_ended *ended)
{
	HR_ASSERT(hr__lock_is_mine(&recipe->lms->lock));
	uint32_t left = recipe->outputs_left;
	if (recipe->holder) hr__recipe_unhold(recipe->holder, ended); /* without outputs, that ends it */
	for (uint32_t i = 0; left; i++) {
		hr__tensor *output = recipe->outputs[i];
		if (!output) continue;
		while (hr__load_relaxed(&output->ghost) && output->dependents) hr__recipe_end_one(output->dependents->recipe, ended);
		hr__learned_recipe_ended(output);
		hr__recipe_detach(output, ended); /* with the last output the recipe ends; it is not freed yet */
		left--;
	}
}

void hr__recipe_end_all(hr__tensor *tensor, hr__recipe_ended *ended)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	while (tensor->dependents) hr__recipe_end_one(tensor->dependents->recipe, ended);
}

static void release_recipe(hr__recipe *recipe)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	while (recipe && hr__fetch_sub_acq_rel(&recipe->refs, 1) == 1) {
		hr__recipe *before = recipe->before;
		if (recipe->release) recipe->release(recipe->user);
		hr__os()->free(recipe, recipe->bytes);
		recipe = before;
	}
}

void hr__recipe_release(hr__recipe_ended *ended)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	while (ended->ghosts || ended->recipes) {
		hr__tensor *ghost = ended->ghosts;
		hr__recipe *recipe = ended->recipes;
		if (ghost) {
			ended->ghosts = ghost->next_ghost;
			hr__lock_take(&ghost->lms->lock);
			hr__recipe_detach(ghost, ended);
			hr__lock_release(&ghost->lms->lock);
			hr__tensor_destroy_ghost(ghost);
		} else {
			ended->recipes = recipe->next_ended;
			release_recipe(recipe);
		}
	}
}

/* ---- before contents are lost ---- */

/* Follows recipes through ghosts, which have no contents that could be kept. */
static void find_obstacle(const hr__tensor *tensor, uint64_t walk, hr__recipe_obstacle *found);

static void find_obstacle_of(hr__recipe *recipe, uint64_t walk, hr__recipe_obstacle *found)
{
	if (!hr__recipe_visit(recipe, walk)) return;
	found->running |= recipe->running;
	for (uint32_t i = 0; i < recipe->output_count; i++) {
		hr__tensor *output = recipe->outputs[i];
		if (output && hr__load_relaxed(&output->ghost)) find_obstacle(output, walk, found);
		else if (output && output->dropped) found->dropped = output;
	}
}

static void find_obstacle(const hr__tensor *tensor, uint64_t walk, hr__recipe_obstacle *found)
{
	for (const hr__recipe_input *each = tensor->dependents; each && !found->running; each = each->next)
		find_obstacle_of(each->recipe, walk, found);
}

hr__recipe_obstacle hr__recipe_find_obstacle(const hr__tensor *tensor)
{
	hr__recipe_obstacle found = { 0 };
	find_obstacle(tensor, hr__recipe_begin_walk(tensor->lms), &found);
	return found;
}

hr__recipe_obstacle hr__recipe_find_obstacle_of(hr__recipe *recipe)
{
	hr__recipe_obstacle found = { 0 };
	find_obstacle_of(recipe, hr__recipe_begin_walk(recipe->lms), &found);
	return found;
}

hr_status hr__recipe_fail_running(const hr__tensor *tensor)
{
	char name[HR__TENSOR_NAME];
	return hr__fail(HR_INVALID_ARGUMENT, "%s is an input of a recipe, so a recompute function must not write or destroy it",
	                hr__tensor_name(tensor, name, sizeof name));
}

hr_status hr__recipe_end_dependents(hr__tensor *tensor, hr_tensor handle, hr_stream stream)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__lms *lms = tensor->lms;
	for (unsigned attempt = 0;;) {
		hr__recipe_ended ended = { 0 };
		hr__recipe_obstacle obstacle;
		uint64_t word = 0;
		hr__lock_take(&lms->lock);
		bool same = hr__load_relaxed(&tensor->word) >> 32 == handle.id >> 32;
		if (!same || !tensor->dependents) {
			hr__lock_release(&lms->lock);
			return HR_OK;
		}
		if (hr__recompute_is_running()) {
			hr__lock_release(&lms->lock);
			hr_status own = hr__recompute_check_own(tensor);
			return own ? own : hr__recipe_fail_running(tensor);
		}
		obstacle = hr__recipe_find_obstacle(tensor);
		if (obstacle.dropped) word = hr__load_relaxed(&obstacle.dropped->word);
		if (!obstacle.running && !obstacle.dropped) hr__recipe_end_all(tensor, &ended);
		hr__lock_release(&lms->lock);
		hr__recipe_release(&ended);
		if (!obstacle.running && !obstacle.dropped) return HR_OK;
		bool done = false;
		hr_status status = obstacle.running ? HR_OK : hr__recompute(obstacle.dropped, word, stream, HR__THEN_DETACH, &done);
		if (status) return status;
		if (!done) hr__state_wait(attempt++);
	}
}

hr_status hr__recipe_written(hr__tensor *tensor, hr_stream stream)
{
	HR_ASSERT(hr__load_relaxed(&tensor->word) & HR__WORD_PINS);
	hr__lms *lms = tensor->lms;
	hr__recipe_ended ended = { 0 };
	int64_t waits = 0;
	/* No recipe reads it from now on, so the bit may be cleared after the wait. A pin for the host has waited already. */
	uint64_t streams = hr__load_relaxed(&tensor->use_streams) & ~hr__stream_bit(stream);
	bool read = hr__load_relaxed(&tensor->recipe_use) & HR__RECIPE_READ && stream != HR_STREAM_HOST;
	uint64_t copied = hr__tensor_copied_after_use(tensor);
	hr_status status = HR_OK;
	if (read && streams) status = hr__device_order(lms->device, stream, streams, hr__load_relaxed(&tensor->use_epoch), &waits);
	if (read && copied) status = hr__device_order(lms->device, stream, hr__stream_bit(lms->out_stream), copied, &waits);
	if (status) return status;
	hr__lock_take(&lms->lock);
	hr__store_relaxed(&tensor->recipe_use, hr__load_relaxed(&tensor->recipe_use) & (HR__RECIPE_HAS | HR__RECIPE_FEEDS));
	hr__learned_recipe_ended(tensor);
	hr__recipe_detach(tensor, &ended);
	hr__lock_release(&lms->lock);
	hr__recipe_release(&ended);
	return HR_OK;
}

void hr__recipe_close(hr__lms *lms)
{
	for (bool more = true; more;) {
		hr__recipe_ended ended = { 0 };
		hr__lock_take(&lms->lock);
		more = false;
		for (uint32_t i = 0; i < lms->member_count && !more; i++) {
			hr__tensor *tensor = lms->members[i];
			hr__recipe *recipe = hr__load_relaxed(&tensor->recipe) ? hr__load_relaxed(&tensor->recipe) : tensor->held;
			more = recipe != NULL;
			if (!more) continue;
			if (recipe->holder) recipe->holder->held = NULL;
			recipe->holder = NULL;
			for (uint32_t k = 0; k < recipe->output_count; k++) {
				if (!recipe->outputs[k]) continue;
				hr__store_relaxed(&recipe->outputs[k]->recipe, NULL);
				hr__recipe_note_use(recipe->outputs[k]);
			}
			recipe->outputs_left = 0;
			recipe->running = false;
			end_recipe(recipe, &ended);
		}
		ended.ghosts = NULL; /* they are destroyed with all others */
		hr__lock_release(&lms->lock);
		hr__recipe_release(&ended);
	}
	hr__recipe_source_close(lms);
}

/* ---- making ---- */

/* One block: the recipe, its inputs with their pins and handles, its outputs with their handles. */
hr_status hr__recipe_allocate(const hr_recipe *given, hr__recipe *before, hr__recipe **out)
{
	size_t inputs = given->input_count + (before ? before->input_count : 0), sources = given->source_count + (before ? before->source_count : 0),
		   outputs = before ? before->output_count : given->output_count;
	size_t bytes = sizeof(hr__recipe) + (inputs + sources) * sizeof(hr__recipe_input) + inputs * (sizeof(hr_pin) + sizeof(hr_tensor)) +
	               outputs * (sizeof(hr__tensor *) + sizeof(hr_tensor));
	void *block;
	int error = hr__os()->alloc(bytes, &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a recipe");
	hr__recipe *recipe = block;
	*recipe = (hr__recipe){ .bytes = bytes,
		                    .before = before,
		                    .ops = before ? before->ops + 1 : 1,
		                    .first_input = before ? before->input_count : 0,
		                    .recompute = given->recompute,
		                    .release = given->release,
		                    .user = given->user,
		                    .cost_ns = given->cost_ns,
		                    .op = given->op,
		                    .input_count = (uint32_t)inputs,
		                    .source_count = (uint32_t)sources,
		                    .output_count = (uint32_t)outputs };
	hr__store_relaxed(&recipe->refs, 1);
	recipe->inputs = (hr__recipe_input *)(recipe + 1);
	recipe->pins = (hr_pin *)(recipe->inputs + inputs + sources);
	recipe->input_handles = (hr_tensor *)(recipe->pins + inputs);
	recipe->outputs = (hr__tensor **)(recipe->input_handles + inputs);
	recipe->output_handles = (hr_tensor *)(recipe->outputs + outputs);
	*out = recipe;
	return HR_OK;
}

hr_status hr__recipe_check_call(const hr_recipe *recipe, const char *call)
{
	const char *name = hr_name_text(recipe->op);
	if (hr__recompute_is_running())
		return hr__fail(HR_INVALID_ARGUMENT, "op %s: a recompute function must not set recipes", hr__brief(name, 60).text);
	if (!recipe->recompute) return hr__fail(HR_INVALID_ARGUMENT, "%s: recompute is NULL", call);
	if (!recipe->outputs || !recipe->output_count) return hr__fail(HR_INVALID_ARGUMENT, "%s: the recipe names no outputs", call);
	if (recipe->input_count && !recipe->inputs) return hr__fail(HR_INVALID_ARGUMENT, "%s: inputs is NULL", call);
	if (recipe->source_count && !recipe->sources) return hr__fail(HR_INVALID_ARGUMENT, "%s: sources is NULL", call);
	if (recipe->input_count > HR__RECIPE_TENSORS_MAX || recipe->output_count > HR__RECIPE_TENSORS_MAX ||
	    recipe->source_count > HR__RECIPE_TENSORS_MAX)
		return hr__fail(HR_INVALID_ARGUMENT, "op %s: a recipe has at most %u inputs, sources and outputs each", hr__brief(name, 60).text,
		                HR__RECIPE_TENSORS_MAX);
	return HR_OK;
}

static hr_status fail_in_op(hr_status status, const hr_recipe *given)
{
	return hr__fail_in(status, "op %s", hr__brief(hr_name_text(given->op), 60).text);
}

hr_status hr__recipe_find_inputs(const hr_recipe *given, hr__recipe *recipe)
{
	hr_status status = HR_OK;
	hr__recipe_input *inputs = &recipe->inputs[recipe->first_input];
	hr__recipe_input *sources = &recipe->inputs[recipe->input_count + recipe->source_count - given->source_count];
	for (uint32_t i = 0; i < given->input_count && !status; i++)
		inputs[i] = (hr__recipe_input){ .tensor = hr__tensor_of(given->inputs[i], &status), .recipe = recipe };
	for (uint32_t i = 0; i < given->source_count; i++) sources[i] = (hr__recipe_input){ .source = given->sources[i], .recipe = recipe };
	return status ? fail_in_op(status, given) : HR_OK;
}

/* Finds the records. check_tensors looks again, under the lock. */
static hr_status find_tensors(const hr_recipe *given, hr__recipe *recipe)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < recipe->output_count && !status; i++) recipe->outputs[i] = hr__tensor_of(given->outputs[i], &status);
	if (status) return fail_in_op(status, given);
	recipe->lms = recipe->outputs[0]->lms;
	if (!recipe->op) recipe->op = recipe->outputs[0]->op;
	return hr__recipe_find_inputs(given, recipe);
}

static hr_status fail_tensor(hr_status status, const hr__recipe *recipe, const hr__tensor *tensor, const char *why)
{
	char name[HR__TENSOR_NAME];
	return hr__fail(status, "recipe of op %s: %s %s", hr__recipe_op(recipe).text, hr__tensor_name(tensor, name, sizeof name), why);
}

hr_status hr__recipe_check_off(const hr__recipe *recipe)
{
	const hr__lms *lms = recipe->lms;
	if (lms->enabled && hr__load_relaxed(&lms->recompute)) return HR_OK;
	return hr__fail(HR_UNSUPPORTED, "recipe of op %s: %s is off on %s", hr__recipe_op(recipe).text,
	                lms->enabled ? "options.recompute" : "Large Model Support", lms->allocator->name);
}

/* Whether a record is still the tensor of the handle, and has contents. */
static hr_status check_contents(const hr__recipe *recipe, const hr__tensor *tensor, hr_tensor handle)
{
	uint64_t word = hr__load_acquire(&tensor->word);
	enum hr__place place = hr__word_place(word);
	if (tensor->lms != recipe->lms) return fail_tensor(HR_INVALID_ARGUMENT, recipe, tensor, "is of another allocator");
	if (word >> 32 != handle.id >> 32 || place == HR__PLACE_UNUSED || place == HR__PLACE_DESTROYING ||
	    hr__load_relaxed(&tensor->ghost))
		return hr__tensor_fail_closed(handle);
	/* RESTORING may be the first memory of a tensor that another thread pins: then its contents are not known yet either. */
	bool empty = place == HR__PLACE_NEW || hr__load_relaxed(&tensor->unwritten) ||
	             (place == HR__PLACE_RESTORING && !hr__load_relaxed(&tensor->has_copy) && !tensor->dropped);
	return empty ? fail_tensor(HR_INVALID_ARGUMENT, recipe, tensor, "was never written") : HR_OK;
}

hr_status hr__recipe_check_output(hr__recipe *recipe, uint32_t at, hr_tensor handle, uint64_t walk)
{
	hr__tensor *tensor = recipe->outputs[at];
	hr_status status = check_contents(recipe, tensor, handle);
	if (status) return status;
	if (tensor->fixed) return fail_tensor(HR_UNSUPPORTED, recipe, tensor, "is fixed, so it cannot be dropped");
	if (tensor->dropped) return fail_tensor(HR_IN_USE, recipe, tensor, "is dropped; pin it first");
	if (tensor->dependents)
		return fail_tensor(HR_INVALID_ARGUMENT, recipe, tensor,
		                   "is an input of another recipe already; set recipes in the order of the ops, without cycles");
	if (tensor->recipe_mark == walk) return fail_tensor(HR_INVALID_ARGUMENT, recipe, tensor, "is an output twice");
	tensor->recipe_mark = walk;
	return HR_OK;
}

static hr_status check_input(const hr__recipe *recipe, uint32_t at, hr_tensor handle, uint64_t walk)
{
	const hr__tensor *tensor = recipe->inputs[at].tensor;
	hr_status status = check_contents(recipe, tensor, handle);
	if (!status && tensor->recipe_mark == walk)
		return fail_tensor(HR_INVALID_ARGUMENT, recipe, tensor, "is both an input and an output");
	return status;
}

hr_status hr__recipe_check_inputs(const hr__recipe *recipe, const hr_tensor *handles, uint64_t walk)
{
	hr_status status = HR_OK;
	for (uint32_t i = recipe->first_input; i < recipe->input_count && !status; i++)
		status = check_input(recipe, i, handles[i - recipe->first_input], walk);
	return status;
}

/* All checks that need the lock; nothing has changed if one fails. */
static hr_status check_tensors(hr__recipe *recipe, const hr_recipe *given)
{
	hr_status status = HR_OK;
	uint64_t walk = hr__recipe_begin_walk(recipe->lms);
	for (uint32_t i = 0; i < recipe->output_count && !status; i++) status = hr__recipe_check_output(recipe, i, given->outputs[i], walk);
	return status ? status : hr__recipe_check_inputs(recipe, given->inputs, walk);
}

/* First the inputs: ghosts that only the earlier recipes of the outputs need must not end with those. */
void hr__recipe_link(hr__recipe *recipe, hr__recipe_ended *ended)
{
	HR_ASSERT(hr__lock_is_mine(&recipe->lms->lock));
	for (uint32_t i = 0; i < recipe->input_count; i++) link_input(&recipe->inputs[i]);
	for (uint32_t i = 0; i < recipe->source_count; i++) hr__recipe_source_link(recipe->lms, &recipe->inputs[recipe->input_count + i]);
	for (uint32_t i = 0; i < recipe->output_count; i++) {
		hr__tensor *output = recipe->outputs[i];
		if (!output) continue;
		hr__recipe_detach(output, ended);
		hr__store_relaxed(&output->recipe, recipe);
		hr__recipe_note_use(output);
		recipe->outputs_left++;
	}
	hr__lms_count(&recipe->lms->stats.num_recipes, 1);
}

hr_status hr_tensor_set_recipe(const hr_recipe *given)
{
	hr_recipe whole;
	hr__recipe *recipe = NULL;
	hr__recipe_ended ended = { 0 };
	hr_recipe_init(&whole);
	hr_status status = hr__struct_in(&hr__struct_recipe, "hr_tensor_set_recipe", &whole, given);
	if (!status) status = hr__recipe_check_call(&whole, "hr_tensor_set_recipe");
	if (!status) status = hr__recipe_allocate(&whole, NULL, &recipe);
	if (status) return status;
	status = find_tensors(&whole, recipe);
	if (!status) status = hr__recipe_check_off(recipe);
	if (!status) {
		hr__lock_take(&recipe->lms->lock);
		status = check_tensors(recipe, &whole);
		if (!status && !hr__recipe_source_reserve(recipe->lms, recipe->source_count))
			status = hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for the sources of a recipe");
		if (!status) hr__recipe_link(recipe, &ended);
		if (!status) hr__learned_recipe_set(recipe->lms, recipe);
		hr__lock_release(&recipe->lms->lock);
	}
	if (status) hr__os()->free(recipe, recipe->bytes);
	else hr__recipe_release(&ended);
	return status;
}

/* ---- for hr_lms_check ---- */

static bool is_output(const hr__recipe *recipe, const hr__tensor *tensor)
{
	uint32_t found = 0, left = 0;
	for (uint32_t i = 0; i < recipe->output_count; i++) {
		found += recipe->outputs[i] == tensor;
		left += recipe->outputs[i] != NULL;
	}
	return found == 1 && left == recipe->outputs_left;
}

static bool dependents_are_sound(const hr__tensor *tensor)
{
	hr__recipe_input *const *link = &tensor->dependents;
	for (const hr__recipe_input *each = tensor->dependents; each; link = &each->next, each = each->next)
		if (each->tensor != tensor || each->link != link || each < each->recipe->inputs ||
		    each >= each->recipe->inputs + each->recipe->input_count ||
		    (!each->recipe->outputs_left && !each->recipe->running && !each->recipe->holder))
			return false;
	return true;
}

static bool held_is_sound(const hr__tensor *tensor)
{
	const hr__recipe *held = tensor->held;
	if (!held) return true;
	bool was_output = false;
	for (uint32_t i = 0; i < held->output_count; i++) was_output |= held->outputs[i] == tensor;
	return held->holder == tensor && was_output == (hr__load_relaxed(&tensor->recipe) == held);
}

int hr__recipe_check(const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	const hr__recipe *recipe = hr__load_relaxed(&tensor->recipe);
	bool ghost = hr__load_relaxed(&tensor->ghost);
	enum hr__place place = hr__state_frozen_place(hr__load_relaxed(&tensor->word));
	uint8_t use = (uint8_t)((recipe ? HR__RECIPE_HAS : 0) | (tensor->dependents ? HR__RECIPE_FEEDS : 0));
	if (ghost && !tensor->dependents) return 0; /* another thread is about to destroy it */
	bool sound = use == (hr__load_relaxed(&tensor->recipe_use) & (HR__RECIPE_HAS | HR__RECIPE_FEEDS)) && tensor->dropped == (place == HR__PLACE_DROPPED) &&
	             (recipe ? is_output(recipe, tensor) : !tensor->dropped && !ghost) && dependents_are_sound(tensor) &&
	             (!tensor->dependents || place != HR__PLACE_NEW) && held_is_sound(tensor);
	return sound ? 0 : 10;
}
