/* test_pure_record.c - what the learned policy records of recipes: which ops can run again, and until when. */
#include "core/lms/policy/learned.h"
#include "fixture.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define OPS_MAX 32u

static struct {
	hr_device device;
	hr_allocator allocator;
	hr_stream stream;
	hr__lms *lms;
	hr__plan_op ops[OPS_MAX];
} here;

static void begin(void)
{
	memset(&here, 0, sizeof here);
	here.device = fixture_simulated(FIXTURE_DEFAULT, FIXTURE_DEFAULT);
	here.stream = fixture_stream(here.device);
	here.allocator = fixture_allocator(here.device, 64 << 20);
	fixture_lms(here.allocator, "learned", 0);
	CHECK_STATUS(HR_OK, hr__lms_of(here.allocator, &here.lms));
	CHECK_STATUS(HR_OK, hr_step_begin(here.allocator));
}

/* Ends the step and finds its pure ops. */
static void end(void)
{
	bool seen[256] = { false };
	CHECK_STATUS(HR_OK, hr_step_end(here.allocator));
	const hr__record *record = &here.lms->learned->last;
	CHECK(record->ops.count <= OPS_MAX && record->tensors.count < 256 && !record->broken);
	memset(here.ops, 0, sizeof here.ops);
	hr__record_mark_pure(record, here.ops, seen);
	CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
}

static void close_all(void)
{
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(here.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static hr_tensor create(void)
{
	return fixture_tensor(here.allocator, 64 * KIB);
}

static hr_status recompute(void *user, const hr_recompute *call)
{
	void *ignored;
	(void)user;
	return hr_tensor_get_address(call->outputs[0], &ignored);
}

static void set_recipe(hr_tensor output, hr_tensor input, uint64_t source)
{
	hr_recipe recipe;
	hr_recipe_init(&recipe);
	recipe.recompute = recompute;
	recipe.cost_ns = 1;
	recipe.outputs = &output;
	recipe.output_count = 1;
	recipe.inputs = &input;
	recipe.input_count = 1;
	recipe.sources = &source;
	recipe.source_count = source != 0;
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
}

/* An op that computes [output] from [input]; id 0 = from nothing. */
static void run(hr_tensor input, hr_tensor output)
{
	hr_pin pins[] = { { output, HR_OVERWRITE }, { input, HR_READ } };
	size_t count = input.id ? 2 : 1;
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, count, here.stream));
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, count, here.stream));
}

static hr_tensor make(hr_tensor input)
{
	hr_tensor output = create();
	run(input, output);
	return output;
}

static hr_tensor make_pure(hr_tensor input)
{
	hr_tensor output = make(input);
	set_recipe(output, input, 0);
	return output;
}

static void write_to(hr_tensor tensor)
{
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_WRITE, here.stream));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, here.stream));
}

static void destroy(hr_tensor tensor)
{
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
}

static const hr_tensor nothing;

static void test_an_op_is_pure_if_all_that_outlives_it_has_a_recipe(void)
{
	begin();
	hr_tensor a = make(nothing);                             /* 0 */
	hr_tensor b = make_pure(a);                              /* 1 */
	hr_pin both[] = { { create(), HR_OVERWRITE }, { create(), HR_OVERWRITE }, { b, HR_READ } };
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(both, 3, here.stream)); /* 2: one of two outputs has a recipe */
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(both, 3, here.stream));
	set_recipe(both[0].tensor, b, 0);
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(both, 3, here.stream)); /* 3: nothing is created, so a recipe set here is none of op 2 */
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(both, 3, here.stream));
	set_recipe(both[1].tensor, b, 0);
	end();
	CHECK(!here.ops[0].pure && here.ops[1].pure && !here.ops[2].pure && !here.ops[3].pure);
	CHECK_EQ(here.ops[1].until, 0);
	close_all();
}

static void test_a_recipe_that_reads_more_than_its_op_does_not_count(void)
{
	begin();
	hr_tensor a = make(nothing), b = make(nothing); /* 0, 1 */
	hr_tensor c = make(a);                          /* 2 */
	set_recipe(c, b, 0);
	end();
	CHECK(!here.ops[2].pure);
	close_all();
}

static void test_the_recipes_of_a_pin_group_count_together(void)
{
	begin();
	hr_tensor a = make(nothing); /* 0 */
	hr_pin_group_begin();        /* 1: the inner tensor has a recipe, and lives on as a ghost */
	hr_tensor inner = make_pure(a);
	make_pure(inner);
	destroy(inner);
	hr_pin_group_end();
	hr_pin_group_begin(); /* 2: it has none, so the recipe of the other ends */
	inner = make(a);
	make_pure(inner);
	destroy(inner);
	hr_pin_group_end();
	hr_pin_group_begin(); /* 3: the recipe ends in the op that it is of */
	inner = make(nothing);
	make_pure(inner);
	write_to(inner);
	hr_pin_group_end();
	end();
	CHECK_EQ(here.lms->learned->last.ops.count, 4);
	CHECK(!here.ops[0].pure && here.ops[1].pure && !here.ops[2].pure && !here.ops[3].pure);
	close_all();
}

static void test_an_op_can_run_again_until_its_recipe_ends(void)
{
	begin();
	hr_tensor a = make(nothing), b = make(nothing); /* 0, 1 */
	hr_tensor c = make(nothing);                    /* 2 */
	hr_tensor d = make_pure(a);                     /* 3: until op 7 writes the input */
	make_pure(b);                                   /* 4: until the input is destroyed after op 6 */
	hr_tensor e = make(c);                          /* 5: until the source changes after op 6 */
	set_recipe(e, c, 77);
	hr_tensor f = make(c);                          /* 6: the same, at once */
	set_recipe(f, c, 78);
	destroy(b);
	CHECK_STATUS(HR_OK, hr_lms_end_recipes(here.allocator, 77, here.stream));
	CHECK_STATUS(HR_OK, hr_lms_end_recipes(here.allocator, 78, here.stream));
	write_to(a);                                    /* 7 */
	write_to(d);                                    /* 8 */
	end();
	CHECK(here.ops[3].pure && here.ops[4].pure && here.ops[5].pure && !here.ops[6].pure);
	CHECK_EQ(here.ops[3].until, 7);
	CHECK_EQ(here.ops[4].until, 6);
	CHECK_EQ(here.ops[5].until, 6);
	close_all();
}

static void change(hr_tensor output, hr_tensor input)
{
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(output));
	hr_pin_group_begin();
	hr_pin pins[] = { { output, HR_WRITE }, { input, HR_READ } };
	size_t count = input.id ? 2 : 1;
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, count, here.stream));
	hr_recipe recipe;
	hr_recipe_init(&recipe);
	recipe.recompute = recompute;
	recipe.outputs = &output;
	recipe.output_count = 1;
	recipe.inputs = &input;
	recipe.input_count = input.id != 0;
	CHECK_STATUS(HR_OK, hr_tensor_extend_recipe(&recipe));
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, count, here.stream));
	hr_pin_group_end();
}

static hr_tensor make_pure_in_group(hr_tensor input)
{
	hr_pin_group_begin();
	hr_tensor output = make_pure(input);
	hr_pin_group_end();
	return output;
}

static void test_an_op_in_place_is_a_part_of_the_op_that_made_its_tensor(void)
{
	begin();
	hr_tensor a = make(nothing), b = make(nothing); /* 0, 1 */
	hr_tensor c = make_pure_in_group(a);            /* 2, with two ops in place, of which one reads another tensor */
	change(c, b);
	change(c, nothing);
	hr_tensor d = make_pure_in_group(a);            /* 3: its input lives on as a ghost when the op in place begins */
	hr_tensor e = make_pure_in_group(d);            /* 4 */
	destroy(d);
	change(e, nothing);
	hr_tensor f = make_pure_in_group(a);            /* 5: an op comes between */
	hr_tensor g = make_pure_in_group(a);            /* 6 */
	change(f, nothing);                             /* 7 */
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(g));  /* its op fails */
	write_to(g);                                    /* 8 */
	CHECK_STATUS(HR_OK, hr_tensor_unhold_recipe(g));
	hr_tensor h = make_pure_in_group(a);            /* 9: this time the op in place fails in the same op */
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(h));
	hr_pin_group_begin();
	write_to(h);
	hr_pin_group_end();
	CHECK_STATUS(HR_OK, hr_tensor_unhold_recipe(h));
	write_to(b);                                    /* 10: an input of the op in place */
	end();
	const hr__record *record = &here.lms->learned->last;
	CHECK_EQ(record->ops.count, 11);
	for (uint32_t op = 2; op < 11; op++) CHECK_EQ(here.ops[op].pure, op < 7);
	CHECK_EQ(here.ops[2].until, 10);
	CHECK_EQ(here.ops[4].until, 0);
	CHECK_EQ(here.ops[5].until, 7);
	close_all();
}

static uint64_t signature_of_a_step(bool drops, bool recipes)
{
	begin();
	hr_tensor a = make(nothing), b = recipes ? make_pure(a) : make(a);
	if (drops) CHECK_STATUS(HR_OK, hr_tensor_drop(b));
	make(b);
	end();
	uint64_t signature = here.lms->learned->last.signature;
	CHECK_EQ(fixture_lms_stats(here.allocator).num_recomputes, drops);
	close_all();
	return signature;
}

static void test_steps_are_alike_whatever_was_dropped_but_not_without_recipes(void)
{
	CHECK_EQ(signature_of_a_step(false, true), signature_of_a_step(true, true));
	CHECK_NE(signature_of_a_step(false, true), signature_of_a_step(false, false));
}

TEST_MAIN(T(test_an_op_is_pure_if_all_that_outlives_it_has_a_recipe), T(test_a_recipe_that_reads_more_than_its_op_does_not_count),
          T(test_the_recipes_of_a_pin_group_count_together), T(test_an_op_can_run_again_until_its_recipe_ends),
          T(test_an_op_in_place_is_a_part_of_the_op_that_made_its_tensor),
          T(test_steps_are_alike_whatever_was_dropped_but_not_without_recipes))
