/* test_misuse_recipes.c - mistakes with recipes. Each test is a small program that makes one. */
#include "headroom_lms.h"
#include "support_misuse.h"

#define BYTES (1024 * 1024)

/* The first call configures the device. */
static hr_allocator lms_allocator(bool enabled)
{
	static hr_device sim;
	hr_allocator made;
	hr_lms_options options;
	if (!sim.id) sim = device();
	CHECK_STATUS(HR_OK, hr_allocator_create(sim, NULL, &made));
	CHECK_STATUS(HR_OK, hr_lms_options_init(&options));
	options.enabled = enabled;
	options.policy = "lru";
	options.wait_ns = 0;
	CHECK_STATUS(HR_OK, hr_lms_configure(made, &options));
	return made;
}

static hr_tensor tensor_with(hr_allocator a, bool fixed)
{
	hr_tensor tensor;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = BYTES * (fixed ? 2 : 1);
	options.fixed = fixed;
	CHECK_STATUS(HR_OK, hr_tensor_create(a, &options, &tensor));
	return tensor;
}

static hr_tensor new_tensor(hr_allocator a)
{
	return tensor_with(a, false);
}

static hr_tensor write_tensor(hr_tensor tensor)
{
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	return tensor;
}

static hr_tensor written_tensor(hr_allocator a)
{
	return write_tensor(new_tensor(a));
}

/* "tensor 3 (1.0 MiB)", with its op if it has one */
static const char *name_of(hr_tensor tensor)
{
	static char names[4][64];
	static unsigned next;
	char *name = names[next++ % 4];
	hr_tensor_info info;
	hr_tensor_info_init(&info);
	bool named = hr_tensor_get_info(tensor, &info) == HR_OK && info.op;
	snprintf(name, sizeof names[0], "tensor %u (1.0 MiB%s%s)", (unsigned)tensor.id, named ? ", op " : "", named ? hr_name_text(info.op) : "");
	return name;
}

static hr_status compute(void *user, const hr_recompute *call)
{
	void *at;
	(void)user;
	hr_status status = HR_OK;
	for (size_t i = 0; i < call->output_count && !status; i++)
		if (call->outputs[i].id) status = hr_tensor_get_address(call->outputs[i], &at);
	return status;
}

static hr_recipe recipe_of(const hr_tensor *inputs, size_t input_count, const hr_tensor *outputs, size_t output_count)
{
	hr_recipe recipe;
	hr_recipe_init(&recipe);
	recipe.recompute = compute;
	recipe.inputs = inputs;
	recipe.input_count = input_count;
	recipe.outputs = outputs;
	recipe.output_count = output_count;
	recipe.op = hr_name_intern("gelu");
	return recipe;
}

static hr_status set(const hr_tensor *inputs, size_t input_count, const hr_tensor *outputs, size_t output_count)
{
	hr_recipe recipe = recipe_of(inputs, input_count, outputs, output_count);
	return hr_tensor_set_recipe(&recipe);
}

/* After a mistake the allocator is sound, and a recipe of correct tensors works. */
static void recipes_still_work(hr_allocator a)
{
	hr_tensor in = written_tensor(a), out = written_tensor(a);
	CHECK_STATUS(HR_OK, hr_lms_check(a));
	CHECK_STATUS(HR_OK, set(&in, 1, &out, 1));
	CHECK_STATUS(HR_OK, hr_tensor_drop(out));
	CHECK_STATUS(HR_OK, hr_tensor_pin(out, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(out, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(out));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(in));
	CHECK_STATUS(HR_OK, hr_lms_check(a));
	CHECK_STATUS(HR_OK, hr_allocator_check(a));
}

/* ---- setting ---- */

static void test_recipe_without_a_function(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor out = written_tensor(a);
	hr_recipe recipe = recipe_of(NULL, 0, &out, 1);
	recipe.recompute = NULL;
	EXPECT(HR_INVALID_ARGUMENT, hr_tensor_set_recipe(&recipe), "hr_tensor_set_recipe: recompute is NULL");
	recipes_still_work(a);
}

static void test_recipe_without_outputs(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor in = written_tensor(a);
	EXPECT(HR_INVALID_ARGUMENT, set(&in, 1, NULL, 0), "hr_tensor_set_recipe: the recipe names no outputs");
	EXPECT(HR_INVALID_ARGUMENT, set(&in, 1, &in, 0), "hr_tensor_set_recipe: the recipe names no outputs");
	EXPECT(HR_INVALID_ARGUMENT, set(NULL, 1, &in, 1), "hr_tensor_set_recipe: inputs is NULL");
	EXPECT(HR_INVALID_ARGUMENT, set(&in, 65537, &in, 1), "op gelu: a recipe has at most 65536 inputs, sources and outputs each");
	recipes_still_work(a);
}

static void test_recipe_of_a_destroyed_tensor(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor in = written_tensor(a), out = written_tensor(a);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(in));
	EXPECT(HR_INVALID_HANDLE, set(&in, 1, &out, 1), "op gelu: the tensor %#llx was destroyed, or never created", (unsigned long long)in.id);
	EXPECT(HR_INVALID_HANDLE, set(NULL, 0, &in, 1), "op gelu: the tensor %#llx was destroyed, or never created", (unsigned long long)in.id);
	recipes_still_work(a);
}

static void test_recipe_of_a_tensor_that_was_never_written(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor in = new_tensor(a), out = written_tensor(a);
	EXPECT(HR_INVALID_ARGUMENT, set(&in, 1, &out, 1), "recipe of op gelu: %s was never written", name_of(in));
	EXPECT(HR_INVALID_ARGUMENT, set(&out, 1, &in, 1), "recipe of op gelu: %s was never written", name_of(in));
	recipes_still_work(a);
}

static void test_recipe_with_itself_as_input(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor pair[] = { written_tensor(a), written_tensor(a) };
	EXPECT(HR_INVALID_ARGUMENT, set(pair, 2, &pair[1], 1), "recipe of op gelu: %s is both an input and an output", name_of(pair[1]));
	recipes_still_work(a);
}

static void test_recipe_with_an_output_twice(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor in = written_tensor(a), out = written_tensor(a), twice[] = { out, out };
	EXPECT(HR_INVALID_ARGUMENT, set(&in, 1, twice, 2), "recipe of op gelu: %s is an output twice", name_of(out));
	recipes_still_work(a);
}

static void test_recipes_in_a_cycle(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor first = written_tensor(a), second = written_tensor(a), third = written_tensor(a);
	CHECK_STATUS(HR_OK, set(&first, 1, &second, 1));
	CHECK_STATUS(HR_OK, set(&second, 1, &third, 1));
	EXPECT(HR_INVALID_ARGUMENT, set(&third, 1, &first, 1),
	       "recipe of op gelu: %s is an input of another recipe already; set recipes in the order of the ops, without cycles", name_of(first));
	recipes_still_work(a);
}

static void test_recipe_across_allocators(void)
{
	hr_allocator a = lms_allocator(true), b = lms_allocator(true);
	hr_tensor in = written_tensor(b), out = written_tensor(a), both[] = { out, in };
	EXPECT(HR_INVALID_ARGUMENT, set(&in, 1, &out, 1), "recipe of op gelu: %s is of another allocator", name_of(in));
	EXPECT(HR_INVALID_ARGUMENT, set(NULL, 0, both, 2), "recipe of op gelu: %s is of another allocator", name_of(in));
	recipes_still_work(a);
	recipes_still_work(b);
}

static void test_recipe_of_a_fixed_tensor(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor in = written_tensor(a), fixed = write_tensor(tensor_with(a, true));
	EXPECT(HR_UNSUPPORTED, set(&in, 1, &fixed, 1), "recipe of op gelu: tensor %u (2.0 MiB) is fixed, so it cannot be dropped", (unsigned)fixed.id);
	CHECK_STATUS(HR_OK, set(&fixed, 1, &in, 1)); /* as an input it is like any other */
	recipes_still_work(a);
}

static void test_recipe_of_a_dropped_tensor(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor in = written_tensor(a), out = written_tensor(a);
	CHECK_STATUS(HR_OK, set(&in, 1, &out, 1));
	CHECK_STATUS(HR_OK, hr_tensor_drop(out));
	EXPECT(HR_IN_USE, set(&in, 1, &out, 1), "recipe of op gelu: %s is dropped; pin it first", name_of(out));
	recipes_still_work(a);
}

static void test_recipe_while_large_model_support_is_off(void)
{
	hr_allocator a = lms_allocator(false);
	hr_tensor in = written_tensor(a), out = written_tensor(a);
	EXPECT(HR_UNSUPPORTED, set(&in, 1, &out, 1), "recipe of op gelu: Large Model Support is off on SIM:0_bfc");
}

/* ---- dropping ---- */

static void test_drop_of_a_tensor_without_a_recipe(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor empty = new_tensor(a), written = written_tensor(a);
	EXPECT(HR_NOT_READY, hr_tensor_drop(empty), "%s has no recipe, because it was never written", name_of(empty));
	EXPECT(HR_NOT_READY, hr_tensor_drop(written),
	       "%s has no recipe: none was set, or it ended when an input or the tensor was written", name_of(written));
	recipes_still_work(a);
}

static void test_drop_of_a_tensor_in_use(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor out = written_tensor(a);
	CHECK_STATUS(HR_OK, set(NULL, 0, &out, 1));
	CHECK_STATUS(HR_OK, hr_tensor_pin(out, HR_READ, HR_STREAM_DEFAULT));
	EXPECT(HR_IN_USE, hr_tensor_drop(out), "%s is pinned; unpin it first", name_of(out));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(out, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_set_never_evict(out, true));
	EXPECT(HR_UNSUPPORTED, hr_tensor_drop(out), "%s cannot be dropped: never_evict is set, or it is fixed and smaller than a page",
	       name_of(out));
	recipes_still_work(a);
}

static void test_prefetch_of_a_dropped_tensor(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor out = written_tensor(a);
	CHECK_STATUS(HR_OK, set(NULL, 0, &out, 1));
	CHECK_STATUS(HR_OK, hr_tensor_drop(out));
	EXPECT(HR_UNSUPPORTED, hr_tensor_prefetch(out), "%s is dropped: there is nothing to restore, and a pin recomputes it", name_of(out));
	recipes_still_work(a);
}

static void test_recipe_depth_out_of_range(void)
{
	hr_allocator a = allocator();
	hr_lms_options options;
	CHECK_STATUS(HR_OK, hr_lms_options_init(&options));
	options.recipe_depth = 257;
	EXPECT(HR_INVALID_ARGUMENT, hr_lms_configure(a, &options), "recipe_depth is 257, which is above 256");
	still_works(a, 0);
}

/* ---- in a recompute function ---- */

/* A function of a recipe that makes one mistake, and then computes. */
static struct {
	hr_allocator allocator;
	hr_tensor in, out, other;
	void (*mistake)(const hr_recompute *call);
	unsigned calls;
} here;

static hr_status err(void *user, const hr_recompute *call)
{
	here.calls++;
	here.mistake(call);
	return compute(user, call);
}

static void recompute_with(void (*mistake)(const hr_recompute *call))
{
	here.allocator = lms_allocator(true);
	here.in = written_tensor(here.allocator);
	here.out = written_tensor(here.allocator);
	here.other = written_tensor(here.allocator);
	here.mistake = mistake;
	here.calls = 0;
	hr_recipe recipe = recipe_of(&here.in, 1, &here.out, 1);
	recipe.recompute = err;
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
	CHECK_STATUS(HR_OK, set(&here.out, 1, &here.other, 1));
	CHECK_STATUS(HR_OK, hr_tensor_drop(here.out));
	CHECK_STATUS(HR_OK, hr_tensor_drop(here.other));
	CHECK_STATUS(HR_OK, hr_tensor_pin(here.out, HR_READ, HR_STREAM_DEFAULT));
	CHECK_EQ(here.calls, 1u);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(here.out, HR_STREAM_DEFAULT));
	recipes_still_work(here.allocator);
}

static void write_the_input(const hr_recompute *call)
{
	EXPECT(HR_INVALID_ARGUMENT, hr_tensor_pin(call->inputs[0], HR_WRITE, call->stream),
	       "%s is an input of a recipe, so a recompute function must not write or destroy it", name_of(here.in));
}

static void test_write_to_an_input_in_a_recompute_function(void)
{
	recompute_with(write_the_input);
}

static void destroy_the_input(const hr_recompute *call)
{
	EXPECT(HR_IN_USE, hr_tensor_destroy(call->inputs[0]), "%s is pinned 1 times; unpin it first", name_of(here.in));
}

static void test_destroying_an_input_in_a_recompute_function(void)
{
	recompute_with(destroy_the_input);
}

static void use_the_output(const hr_recompute *call)
{
	static const char text[] = "%s is being recomputed by this call of op gelu; hr_tensor_get_address returns its address";
	EXPECT(HR_IN_USE, hr_tensor_pin(call->outputs[0], HR_OVERWRITE, call->stream), text, name_of(here.out));
	EXPECT(HR_IN_USE, hr_tensor_pin(call->outputs[0], HR_READ, call->stream), text, name_of(here.out));
	EXPECT(HR_IN_USE, hr_tensor_destroy(call->outputs[0]), text, name_of(here.out));
	EXPECT(HR_IN_USE, hr_tensor_evict(call->outputs[0]), text, name_of(here.out));
	EXPECT(HR_IN_USE, hr_tensor_drop(call->outputs[0]), text, name_of(here.out));
	EXPECT(HR_IN_USE, hr_tensor_prefetch(call->outputs[0]), text, name_of(here.out));
}

static void test_use_of_the_output_in_a_recompute_function(void)
{
	recompute_with(use_the_output);
}

static void pin_what_depends_on_the_output(const hr_recompute *call)
{
	EXPECT(HR_IN_USE, hr_tensor_pin(here.other, HR_READ, call->stream),
	       "%s could not be recomputed by op gelu: %s is being recomputed by this call of op gelu; hr_tensor_get_address returns its address",
	       name_of(here.other), name_of(here.out));
}

static void test_pin_of_what_depends_on_the_output_in_a_recompute_function(void)
{
	recompute_with(pin_what_depends_on_the_output);
}

static void set_a_recipe(const hr_recompute *call)
{
	EXPECT(HR_INVALID_ARGUMENT, set(NULL, 0, call->inputs, 1), "op gelu: a recompute function must not set recipes");
}

static void test_setting_a_recipe_in_a_recompute_function(void)
{
	recompute_with(set_a_recipe);
}

static void take_what_does_not_fit(const hr_recompute *call)
{
	hr_tensor empty = new_tensor(here.allocator), small, scratch = written_tensor(here.allocator), fed = written_tensor(here.allocator);
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = BYTES / 2;
	CHECK_STATUS(HR_OK, hr_tensor_create(here.allocator, &options, &small));
	write_tensor(small);
	EXPECT(HR_INVALID_ARGUMENT, hr_tensor_take(call->outputs[0], empty), "%s cannot take the memory of %s: it has no memory",
	       name_of(here.out), name_of(empty));
	EXPECT(HR_INVALID_ARGUMENT, hr_tensor_take(call->outputs[0], small), "%s cannot take the memory of tensor %u (512.0 KiB, op gelu): it has another size",
	       name_of(here.out), (unsigned)small.id);
	EXPECT(HR_IN_USE, hr_tensor_take(call->outputs[0], call->inputs[0]), "%s cannot take the memory of %s: it is pinned; unpin it first",
	       name_of(here.out), name_of(here.in));
	EXPECT(HR_INVALID_ARGUMENT, hr_tensor_take(scratch, fed), "%s is not recomputed by this thread now: hr_tensor_take is for recompute functions",
	       name_of(scratch));
	CHECK_STATUS(HR_OK, hr_tensor_take(call->outputs[0], scratch));
	EXPECT(HR_INVALID_ARGUMENT, hr_tensor_take(call->outputs[0], fed), "%s cannot take the memory of %s: it has memory already",
	       name_of(here.out), name_of(fed));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(empty));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(small));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(scratch));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(fed));
}

static void test_taking_memory_that_does_not_fit(void)
{
	recompute_with(take_what_does_not_fit);
}

static void take_an_input_of_a_recipe(const hr_recompute *call)
{
	hr_allocator other = lms_allocator(true);
	hr_tensor foreign = written_tensor(other);
	EXPECT(HR_INVALID_ARGUMENT, hr_tensor_take(call->outputs[0], foreign), "%s cannot take the memory of %s: it is of another allocator",
	       name_of(here.out), name_of(foreign));
}

static void test_taking_memory_of_another_allocator(void)
{
	recompute_with(take_an_input_of_a_recipe);
}

static void test_taking_memory_outside_of_a_recompute_function(void)
{
	hr_allocator a = lms_allocator(true);
	hr_tensor to = new_tensor(a), from = written_tensor(a);
	EXPECT(HR_INVALID_ARGUMENT, hr_tensor_take(to, from), "%s is not recomputed by this thread now: hr_tensor_take is for recompute functions",
	       name_of(to));
	recipes_still_work(a);
}

TEST_MAIN(T(test_recipe_without_a_function), T(test_recipe_without_outputs), T(test_recipe_of_a_destroyed_tensor),
          T(test_recipe_of_a_tensor_that_was_never_written), T(test_recipe_with_itself_as_input), T(test_recipe_with_an_output_twice),
          T(test_recipes_in_a_cycle), T(test_recipe_across_allocators), T(test_recipe_of_a_fixed_tensor), T(test_recipe_of_a_dropped_tensor),
          T(test_recipe_while_large_model_support_is_off), T(test_drop_of_a_tensor_without_a_recipe), T(test_drop_of_a_tensor_in_use),
          T(test_prefetch_of_a_dropped_tensor), T(test_recipe_depth_out_of_range), T(test_write_to_an_input_in_a_recompute_function),
          T(test_destroying_an_input_in_a_recompute_function), T(test_use_of_the_output_in_a_recompute_function),
          T(test_pin_of_what_depends_on_the_output_in_a_recompute_function), T(test_setting_a_recipe_in_a_recompute_function),
          T(test_taking_memory_that_does_not_fit), T(test_taking_memory_of_another_allocator),
          T(test_taking_memory_outside_of_a_recompute_function))
