/* recompute.c - runs recipes. See recipe.h, which has the rule for threads and locks, and why nothing deadlocks.
 *
 *   begin      under the lock: the recipe is running, and its dropped outputs are RECOMPUTING. Ghosts among the outputs are computed
 *              only if they are needed
 *   inputs     are pinned for reading on the stream of the run, which restores them or runs their recipes, and the stream is made to
 *              wait for earlier work on them
 *   recompute  the program's function gets memory for each output when it asks for its address, or hands memory over
 *   end        the outputs are RESIDENT, or on failure DROPPED again, without memory. Their memory counts as allocated by the stream
 *              of the run, so that other streams wait for the work on it
 */
#include "core/lms/recipe/recipe.h"

#include "core/base/status.h"
#include "core/lms/tensor/pin.h"
#include "core/memory/bfc/tensor_block.h"

#define MAX_RUNS 4096u /* runs of recipes for one outermost run: a chain whose results do not stay in memory may need many */

/* A recipe that the thread runs, innermost first. */
typedef struct recipe_run {
	hr__recipe *recipe;
	hr_stream stream;
	uint32_t depth;
	struct recipe_run *outer, *outermost;
	/* Of the outermost: */
	uint32_t runs;          /* all that began in it */
	hr__recipe_ended ended; /* recipes that ended in it: their functions may do what must not be done while a recipe is running */
} recipe_run;

static _Thread_local recipe_run *innermost;

bool hr__recompute_is_running(void)
{
	return innermost != NULL;
}

/* The run of the calling thread that computes a RECOMPUTING tensor; NULL = another thread's. A recipe that the thread runs exists, so
 * the comparison is valid even if another thread changes tensor->recipe at this moment. */
static recipe_run *own_run(const hr__tensor *tensor)
{
	if (!innermost || hr__state_place(tensor) != HR__PLACE_RECOMPUTING) return NULL;
	const hr__recipe *recipe = hr__load_relaxed(&tensor->recipe);
	recipe_run *run = innermost;
	while (run && run->recipe != recipe) run = run->outer;
	return run;
}

hr_status hr__recompute_check_own(const hr__tensor *tensor)
{
	char name[HR__TENSOR_NAME];
	const recipe_run *run = own_run(tensor);
	if (!run) return HR_OK;
	return hr__fail(HR_IN_USE, "%s is being recomputed by this call of op %s; hr_tensor_get_address returns its address",
	                hr__tensor_name(tensor, name, sizeof name), hr__recipe_op(run->recipe).text);
}

hr_status hr__recompute_get_address(hr__tensor *tensor, void **out)
{
	char name[HR__TENSOR_NAME];
	const recipe_run *run = own_run(tensor);
	if (!run) return hr__fail(HR_INVALID_ARGUMENT, "%s is not pinned", hr__tensor_name(tensor, name, sizeof name));
	hr_status status = tensor->address ? HR_OK : hr__move_restore(tensor, run->stream, false, false);
	if (!status) *out = (void *)(uintptr_t)tensor->address;
	return status;
}

/* ---- beginning ---- */

static hr_status fail_running(const hr__tensor *tensor, const hr__recipe *recipe)
{
	char name[HR__TENSOR_NAME];
	return hr__fail(HR_IN_USE, "%s cannot be recomputed by op %s, because this thread is running that recipe",
	                hr__tensor_name(tensor, name, sizeof name), hr__recipe_op(recipe).text);
}

static bool runs_here(const hr__recipe *recipe)
{
	const recipe_run *run = innermost;
	while (run && run->recipe != recipe) run = run->outer;
	return run != NULL;
}

/* Whether an input is about to be destroyed or to become a ghost: its handle will change. */
static bool inputs_are_leaving(const hr__recipe *recipe)
{
	for (uint32_t i = 0; i < recipe->input_count; i++)
		if (hr__state_place(recipe->inputs[i].tensor) == HR__PLACE_DESTROYING) return true;
	return false;
}

/* Marks the recipe of a DROPPED tensor as running, and claims its outputs. NULL: not now. */
static hr__recipe *claim_run(hr__tensor *tensor, uint64_t word, hr_status *status)
{
	hr__lms *lms = tensor->lms;
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	uint64_t now = hr__load_acquire(&tensor->word);
	if (now >> 32 != word >> 32 || hr__word_place(now) != HR__PLACE_DROPPED) return NULL;
	hr__recipe *recipe = hr__load_relaxed(&tensor->recipe);
	if (!recipe) return NULL; /* a ghost that is about to be destroyed */
	if (recipe->running && runs_here(recipe)) *status = fail_running(tensor, recipe);
	if (recipe->running || inputs_are_leaving(recipe) || !hr__state_begin_recompute(tensor, now)) return NULL;
	for (uint32_t i = 0; i < recipe->output_count; i++) {
		hr__tensor *output = recipe->outputs[i];
		bool claimed = output == tensor;
		if (output && !claimed && !hr__load_relaxed(&output->ghost))
			claimed = hr__state_begin_recompute(output, hr__load_relaxed(&output->word));
		recipe->output_handles[i] = claimed ? hr__tensor_handle(output, hr__load_relaxed(&output->word)) : (hr_tensor){ 0 };
	}
	for (uint32_t i = 0; i < recipe->input_count; i++) {
		hr__tensor *input = recipe->inputs[i].tensor;
		recipe->input_handles[i] = hr__tensor_handle(input, hr__load_relaxed(&input->word));
		recipe->pins[i] = (hr_pin){ recipe->input_handles[i], HR_READ };
	}
	recipe->running = true;
	lms->recipes_running++;
	return recipe;
}

static hr_status check_depth(const hr__tensor *tensor)
{
	char name[HR__TENSOR_NAME];
	if (!innermost) return HR_OK;
	if (innermost->depth < HR__RECIPE_DEPTH_MAX && innermost->outermost->runs < MAX_RUNS) return HR_OK;
	return hr__fail(HR_OUT_OF_MEMORY, "%s cannot be recomputed: its chain needs more than %u recipes, because there is no memory to keep "
	                "their results", hr__tensor_name(tensor, name, sizeof name), MAX_RUNS);
}

/* ---- running ---- */

/* The last user of an input may be on a stream that the program orders only behind the pin. */
static hr_status wait_for_inputs(const hr__recipe *recipe, hr_stream stream)
{
	hr_status status = HR_OK;
	hr__lms *lms = recipe->lms;
	for (uint32_t i = 0; i < recipe->input_count && !status; i++) {
		const hr__tensor *input = recipe->inputs[i].tensor;
		uint64_t users = hr__load_relaxed(&input->use_streams) & ~hr__stream_bit(stream), copied = hr__tensor_copied_after_use(input);
		int64_t waits = 0;
		if (users) status = hr__device_order(lms->device, stream, users, hr__load_relaxed(&input->use_epoch), &waits);
		if (copied) status = hr__device_order(lms->device, stream, hr__stream_bit(lms->out_stream), copied, &waits);
	}
	return status;
}

static hr__tensor *claimed_output(const hr__recipe *recipe, uint32_t at)
{
	hr_status ignored;
	hr_tensor handle = recipe->output_handles[at];
	return handle.id ? hr__tensor_of(handle, &ignored) : NULL;
}

/* Whether the functions so far have computed everything, as far as that can be known. */
static hr_status check_addresses(const hr__recipe *recipe)
{
	char name[HR__TENSOR_NAME];
	for (uint32_t i = 0; i < recipe->output_count; i++) {
		const hr__tensor *output = claimed_output(recipe, i);
		if (output && !output->address)
			return hr__fail(HR_INVALID_ARGUMENT, "its function returned HR_OK without computing %s", hr__tensor_name(output, name, sizeof name));
	}
	return HR_OK;
}

/* Calls the program's function of one op: of the recipe that runs, or of one before it. */
static hr_status call_op(const recipe_run *run, const hr__recipe *op)
{
	const hr__recipe *recipe = run->recipe;
	hr_recompute call = { .struct_size = sizeof call,
		                  .inputs = recipe->input_handles + op->first_input,
		                  .input_count = op->input_count - op->first_input,
		                  .outputs = recipe->output_handles + (op->before ? recipe->target : 0),
		                  .output_count = op->before ? 1 : recipe->output_count,
		                  .stream = run->stream };
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__last before = hr__last_get();
	hr__last_clear(); /* so that a function without a message of its own does not get an old one */
	hr_name name = hr_op_set(op->op);
	hr_status status = op->recompute(op->user, &call);
	hr_op_set(name);
	if (!status) hr__last_set(&before);
	else if (!hr_last_message()[0]) return hr__fail(status, "its function returned %s", hr_status_name(status));
	return status ? status : check_addresses(recipe);
}

/* Calls the functions of all ops of the recipe, the oldest first. */
static hr_status call_program(const recipe_run *run, const hr__recipe *op)
{
	hr_status status = op->before ? call_program(run, op->before) : HR_OK;
	return status ? status : call_op(run, op);
}

static hr_status verify_results(const recipe_run *run)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < run->recipe->output_count && !status; i++) {
		hr__tensor *output = claimed_output(run->recipe, i);
		if (output) status = hr__move_compare_recomputed(output, run->stream);
	}
	return status;
}

static hr_status execute(const recipe_run *run)
{
	const hr__recipe *recipe = run->recipe;
	hr__lms *lms = recipe->lms;
	hr_status status = recipe->input_count ? hr__pin_all_for_recipe(lms, recipe->pins, recipe->input_count, run->stream) : HR_OK;
	if (status) return status;
	status = wait_for_inputs(recipe, run->stream);
	if (!status) status = call_program(run, recipe);
	if (!status && lms->verify) status = verify_results(run);
	if (!recipe->input_count) return status;
	hr__last before = hr__last_get();
	hr_status unpinned = hr__pin_release_all(recipe->pins, recipe->input_count, run->stream);
	if (!status) return unpinned;
	hr__last_set(&before);
	return status;
}

/* ---- ending ---- */

static void count_run(const hr__recipe *recipe, hr_status status)
{
	hr__lms *lms = recipe->lms;
	hr__lms_count(status ? &lms->stats.num_failed_recomputes : &lms->stats.num_recomputes, 1);
	if (!status) hr__lms_count(&lms->stats.recompute_ns, (int64_t)recipe->cost_ns);
}

/* The tensor has its contents, and no recipe. It is still RECOMPUTING. */
static void detach(hr__tensor *tensor, hr__recipe_ended *ended)
{
	hr__lms *lms = tensor->lms;
	hr__lock_take(&lms->lock);
	hr__drop_end(tensor);
	hr__learned_recipe_ended(tensor);
	hr__recipe_detach(tensor, ended);
	hr__lock_release(&lms->lock);
}

static void end_run(recipe_run *run, hr_status status, hr__tensor *target, enum hr__recompute_then then)
{
	hr__recipe *recipe = run->recipe;
	hr__lms *lms = recipe->lms;
	hr__recipe_ended *ended = &run->outermost->ended;
	if (!status && then == HR__THEN_DETACH) detach(target, ended);
	uint64_t mark, epoch = hr__device_mark(lms->device, run->stream, &mark) == HR_OK ? mark - 1 : hr__device_epoch(lms->device);
	for (uint32_t i = 0; i < recipe->output_count; i++) {
		hr__tensor *output = claimed_output(recipe, i);
		if (!output) continue;
		if (status) hr__move_undo_recompute(output, run->stream);
		else hr__move_end_recompute(output, run->stream, epoch, then == HR__THEN_PIN && output == target);
	}
	count_run(recipe, status);
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < recipe->input_count; i++) {
		hr__tensor *input = recipe->inputs[i].tensor;
		hr__store_relaxed(&input->recipe_use, (uint8_t)(hr__load_relaxed(&input->recipe_use) | HR__RECIPE_READ));
	}
	recipe->running = false;
	hr__recipe_end_unused(recipe, ended); /* since its outputs are RESIDENT, other threads may have taken them from it */
	lms->recipes_running--;
	bool last = !lms->recipes_running;
	hr__lock_release(&lms->lock);
	if (last) hr__ghost_drop_all(lms);
}

hr_status hr__recompute(hr__tensor *tensor, uint64_t word, hr_stream stream, enum hr__recompute_then then, bool *done)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__lms *lms = tensor->lms;
	char name[HR__TENSOR_NAME];
	hr__brief_text op;
	*done = false;
	hr_status status = check_depth(tensor);
	if (status) return status;
	hr__lock_take(&lms->lock);
	hr__recipe *recipe = claim_run(tensor, word, &status);
	hr__lock_release(&lms->lock);
	if (!recipe) return status;
	recipe_run run = { .recipe = recipe, .stream = stream == HR_STREAM_HOST ? HR_STREAM_DEFAULT : stream, .outer = innermost };
	run.outermost = innermost ? innermost->outermost : &run;
	run.depth = innermost ? innermost->depth + 1 : 1;
	run.outermost->runs++;
	hr__cache *counting = hr__pin_begin_counting(lms);
	hr__lms_begin_move(lms);
	innermost = &run;
	status = execute(&run);
	innermost = run.outer;
	if (status) { /* before the recipe can end */
		hr__tensor_name(tensor, name, sizeof name);
		op = hr__recipe_op(recipe);
	}
	hr__last why = hr__last_get();
	end_run(&run, status, tensor, then);
	hr__lms_end_move(lms);
	hr__pin_end_counting(lms, counting);
	if (!innermost) hr__recipe_release(&run.ended);
	*done = !status;
	if (!status) return HR_OK;
	hr__last_set(&why);
	return hr__fail_in(status, "%s could not be recomputed by op %s", name, op.text);
}

bool hr__recompute_would_run(hr_pin pin)
{
	hr_status ignored;
	const hr__tensor *tensor = hr__tensor_of(pin.tensor, &ignored);
	return tensor && pin.access != HR_OVERWRITE && hr__state_place(tensor) == HR__PLACE_DROPPED;
}

hr_status hr__recompute_apart(const hr_pin *pins, size_t count, hr_stream stream)
{
	hr_status status = HR_OK;
	for (size_t i = 0; i < count && !status; i++) {
		hr_status ignored;
		hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
		bool done;
		if (!tensor || !hr__recompute_would_run(pins[i])) continue;
		hr__store_relaxed(&tensor->only_moved, 1);
		status = hr__recompute(tensor, hr__load_acquire(&tensor->word), stream, HR__THEN_KEEP, &done);
	}
	return status;
}

void hr__recompute_apart_end(const hr_pin *pins, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		hr_status ignored;
		hr__tensor *tensor = hr__tensor_of(pins[i].tensor, &ignored);
		if (tensor && hr__load_relaxed(&tensor->only_moved)) hr__store_relaxed(&tensor->only_moved, 0);
	}
}

/* ---- handing memory over ---- */

static hr_status fail_take(const hr__tensor *tensor, const hr__tensor *from, hr_status status, const char *why)
{
	char to_name[HR__TENSOR_NAME], from_name[HR__TENSOR_NAME];
	hr__tensor_name(tensor, to_name, sizeof to_name);
	hr__tensor_name(from, from_name, sizeof from_name);
	return hr__fail(status, "%s cannot take the memory of %s: %s", to_name, from_name, why);
}

/* Brings a tensor back that was evicted since the program's function wrote it. */
static hr_status bring_back(hr_tensor from, hr_stream stream)
{
	hr_status status = hr_tensor_pin(from, HR_READ, stream);
	return status ? status : hr_tensor_unpin(from, stream);
}

/* [from] is claimed (EVICTING). */
static hr_status check_take(const hr__tensor *tensor, const hr__tensor *from)
{
	if (from->lms != tensor->lms) return fail_take(tensor, from, HR_INVALID_ARGUMENT, "it is of another allocator");
	if (from->device_bytes != tensor->device_bytes) return fail_take(tensor, from, HR_INVALID_ARGUMENT, "it has another size");
	if (hr__load_relaxed(&from->recipe_use) & (HR__RECIPE_HAS | HR__RECIPE_FEEDS))
		return fail_take(tensor, from, HR_INVALID_ARGUMENT, "it has a recipe, or is an input of one");
	if (from->fixed) return fail_take(tensor, from, HR_INVALID_ARGUMENT, "it is fixed");
	if (hr__load_relaxed(&from->unwritten)) return fail_take(tensor, from, HR_INVALID_ARGUMENT, "it has no contents");
	if (tensor->alignment && from->address % tensor->alignment)
		return fail_take(tensor, from, HR_INVALID_ARGUMENT, "its memory is not aligned as needed");
	return HR_OK;
}

hr_status hr_tensor_take(hr_tensor to, hr_tensor handle)
{
	hr_status status;
	char name[HR__TENSOR_NAME];
	hr__tensor *tensor = hr__tensor_of(to, &status), *from = tensor ? hr__tensor_of(handle, &status) : NULL;
	if (!from) return status;
	if (!own_run(tensor))
		return hr__fail(HR_INVALID_ARGUMENT, "%s is not recomputed by this thread now: hr_tensor_take is for recompute functions",
		                hr__tensor_name(tensor, name, sizeof name));
	if (tensor->address) return fail_take(tensor, from, HR_INVALID_ARGUMENT, "it has memory already");
	for (unsigned attempt = 0;; attempt++) {
		uint64_t word = hr__load_acquire(&from->word);
		if (word >> 32 != handle.id >> 32) return hr__tensor_fail_closed(handle);
		if (word & HR__WORD_PINS) return fail_take(tensor, from, HR_IN_USE, "it is pinned; unpin it first");
		enum hr__place place = hr__word_place(word);
		if (place == HR__PLACE_RESIDENT && !(word & HR__WORD_DISPLACED)) {
			if (hr__state_begin_eviction(from, word)) break;
		} else if (place == HR__PLACE_EVICTING || place == HR__PLACE_MOVING || place == HR__PLACE_RESTORING) {
			hr__state_wait(attempt);
		} else if (place == HR__PLACE_EVICTED) {
			status = bring_back(handle, own_run(tensor)->stream);
			if (status) return status;
		} else {
			return fail_take(tensor, from, HR_INVALID_ARGUMENT, "it has no memory");
		}
	}
	status = check_take(tensor, from);
	if (status) hr__state_end_eviction(from, HR__PLACE_RESIDENT);
	else hr__move_take(tensor, from);
	return status;
}
