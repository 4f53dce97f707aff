/* test_recipe_extend.c - recipes that are extended by ops in place: what a dropped tensor holds after it was computed again is what these ops made
 * of it, whatever happened to their inputs. */
#include "core/lms/lms.h"
#include "recipe_kit.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define BYTES ((size_t)(100 * KIB))
#define OPS 48u

static hr_device device;
static hr_allocator allocator;
static kit_op ops[OPS], changes[OPS];
static unsigned char contents[OPS][BYTES];
static hr_tensor tensors[OPS];
static unsigned change_count;

static void set_up_with(bool verify)
{
	device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	hr_allocator_options options = fixture_allocator_options(32 * MIB);
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	hr_lms_options lms = fixture_lms_options("lru", 32 * MIB);
	lms.verify = verify;
	lms.wait_ns = 0;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	memset(ops, 0, sizeof ops);
	memset(changes, 0, sizeof changes);
	memset(tensors, 0, sizeof tensors);
	change_count = 0;
}

static void set_up(void)
{
	set_up_with(false);
}

static hr_lms_stats lms_stats(void)
{
	return fixture_lms_stats(allocator);
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	for (unsigned i = 0; i < OPS; i++)
		if (tensors[i].id) CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[i]));
	CHECK_EQ(lms_stats().num_tensors, 0);
	CHECK_EQ(lms_stats().num_ghosts, 0);
	CHECK_EQ(lms_stats().num_recipes, 0);
	CHECK_EQ(lms_stats().bytes_dropped_now, 0);
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	for (unsigned i = 0; i < OPS; i++) CHECK(ops[i].released <= 1 && changes[i].released <= 1);
}

/* Tensors at, at + 1, ... are computed from tensor [from]; none if it is [at]. */
static void make(unsigned at, unsigned from, unsigned outs)
{
	size_t ins = from != at;
	const unsigned char *source = contents[from];
	ops[at] = (kit_op){ .device = device, .allocator = allocator, .bytes = BYTES, .value = (unsigned char)(at + 1) };
	for (unsigned k = 0; k < outs; k++) {
		if (!tensors[at + k].id) tensors[at + k] = fixture_tensor(allocator, BYTES);
		kit_expect(&ops[at], &source, ins, contents[at + k], k);
	}
	CHECK_STATUS(HR_OK, kit_run(&ops[at], &tensors[from], ins, &tensors[at], outs, HR_STREAM_DEFAULT));
	if (!ins) return;
	hr_recipe recipe = kit_recipe(&ops[at], &tensors[from], ins, &tensors[at], outs);
	recipe.cost_ns = 1000;
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
}

/* Changes tensor [at] by an op that reads [from]; none if it is [at]. Returns the op's number. */
static unsigned change(unsigned at, unsigned from)
{
	size_t ins = from != at;
	const unsigned char *source = contents[from];
	kit_op *op = &changes[change_count];
	*op = (kit_op){ .device = device, .allocator = allocator, .bytes = BYTES, .value = (unsigned char)(0x80 + change_count) };
	CHECK_STATUS(HR_OK, kit_run_in_place(op, &tensors[from], ins, tensors[at], HR_STREAM_DEFAULT));
	kit_expect_change(op, &source, ins, contents[at]);
	return change_count++;
}

static hr_status extend(unsigned at, unsigned from, unsigned by)
{
	hr_recipe recipe = kit_recipe(&changes[by], &tensors[from], from != at, &tensors[at], 1);
	recipe.recompute = kit_change_again;
	recipe.cost_ns = 500;
	return hr_tensor_extend_recipe(&recipe);
}

static hr_status extend_wrongly(const hr_tensor *ins, size_t in_count, const hr_tensor *outs, size_t out_count)
{
	hr_recipe recipe = kit_recipe(&changes[0], ins, in_count, outs, out_count);
	return hr_tensor_extend_recipe(&recipe);
}

static unsigned change_and_extend(unsigned at, unsigned from)
{
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[at]));
	unsigned by = change(at, from);
	CHECK_STATUS(HR_OK, extend(at, from, by));
	return by;
}

static void drop(unsigned at)
{
	CHECK_STATUS(HR_OK, hr_tensor_drop(tensors[at]));
	CHECK_EQ(fixture_tensor_info(tensors[at]).state, HR_TENSOR_DROPPED);
}

static void destroy(unsigned at)
{
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[at]));
	tensors[at].id = 0;
}

static void expect(unsigned at)
{
	static unsigned char found[BYTES];
	CHECK_STATUS(HR_OK, kit_read(device, tensors[at], found, BYTES, HR_STREAM_DEFAULT));
	CHECK_EQ(memcmp(found, contents[at], BYTES), 0);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
}

/* ---- what is computed ---- */

static void test_all_ops_run_again_in_order(void)
{
	set_up_with(true);
	make(0, 0, 1);
	make(1, 1, 1);
	make(2, 0, 1);
	unsigned first = change_and_extend(2, 1), second = change_and_extend(2, 2);
	CHECK_EQ(lms_stats().num_recipes, 1);
	for (unsigned i = 1; i <= 3; i++) {
		drop(2);
		expect(2);
		CHECK(ops[2].calls == i && changes[first].calls == i && changes[second].calls == i);
	}
	CHECK_EQ(lms_stats().num_recomputes, 3);
	CHECK_EQ(lms_stats().recompute_ns, 3 * 2000);
	CHECK_EQ(ops[2].released + changes[first].released + changes[second].released, 0u);
	destroy(2);
	CHECK(ops[2].released == 1 && changes[first].released == 1 && changes[second].released == 1);
	tear_down();
}

static void test_memory_that_the_first_op_hands_over_is_changed(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	ops[1].takes = true;
	change_and_extend(1, 0);
	drop(1);
	expect(1);
	tear_down();
}

static void test_inputs_that_the_program_has_destroyed_live_on_as_ghosts(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	make(2, 1, 1);
	make(3, 0, 1);
	destroy(1); /* before the recipe is extended */
	CHECK_EQ(lms_stats().num_ghosts, 1);
	change_and_extend(2, 3);
	CHECK_EQ(lms_stats().num_ghosts, 1);
	destroy(3); /* after it */
	CHECK_EQ(lms_stats().num_ghosts, 2);
	change_and_extend(2, 2);
	for (unsigned i = 0; i < 2; i++) {
		drop(2);
		expect(2);
	}
	destroy(2);
	CHECK_EQ(lms_stats().num_ghosts, 0);
	tear_down();
}

static void test_a_ghost_has_all_its_ops(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	change_and_extend(1, 0);
	make(2, 1, 1);
	destroy(1);
	drop(2);
	expect(2);
	tear_down();
}

static void test_a_dropped_tensor_is_computed_before_an_op_changes_it(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[1]));
	drop(1);
	unsigned by = change(1, 0);
	CHECK_EQ(ops[1].calls, 1u);
	CHECK_STATUS(HR_OK, extend(1, 0, by));
	drop(1);
	expect(1);
	tear_down();
}

/* Another output of the op keeps its own recipe. */
static void test_one_of_two_outputs_is_changed(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 2);
	for (unsigned at = 1; at <= 2; at++) {
		unsigned by = change_and_extend(at, 0);
		drop(1);
		drop(2);
		expect(2);
		CHECK_EQ(fixture_tensor_info(tensors[1]).state, HR_TENSOR_DROPPED);
		expect(1);
		CHECK_EQ(changes[by].calls, 1u);
	}
	CHECK_EQ(ops[1].written, 4u); /* each run has computed one of the two */
	destroy(1);
	CHECK_EQ(ops[1].released, 0u);
	destroy(2);
	CHECK_EQ(ops[1].released, 1u);
	tear_down();
}

/* ---- writes ---- */

static void test_what_depends_on_the_old_contents_is_computed_before_they_change(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	make(2, 1, 1);
	drop(2);
	change_and_extend(1, 0);
	CHECK_EQ(ops[2].calls, 1u);
	CHECK_STATUS(HR_NOT_READY, hr_tensor_drop(tensors[2]));
	drop(1);
	expect(1);
	expect(2);
	tear_down();
}

static void test_a_write_to_an_input_comes_after_what_depends_on_it(void)
{
	for (unsigned input = 0; input < 2; input++) { /* of the first op, and of the op in place */
		set_up();
		make(0, 0, 1);
		make(1, 1, 1);
		make(2, 0, 1);
		unsigned by = change_and_extend(2, 1);
		drop(2);
		change(input, input);
		CHECK_EQ(changes[by].calls, 1u);
		CHECK_EQ(changes[by].released, 1u);
		CHECK_STATUS(HR_NOT_READY, hr_tensor_drop(tensors[2]));
		expect(2);
		tear_down();
	}
}

static void test_a_source_ends_an_extended_recipe(void)
{
	for (uint64_t source = 7; source <= 8; source++) {
		set_up();
		const uint64_t sources[] = { 7, 8 };
		make(0, 0, 1);
		make(1, 0, 1);
		hr_recipe recipe = kit_recipe(&ops[1], &tensors[0], 1, &tensors[1], 1);
		recipe.sources = &sources[0];
		recipe.source_count = 1;
		recipe.release = NULL;
		CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
		CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[1]));
		unsigned by = change(1, 1);
		recipe = kit_recipe(&changes[by], NULL, 0, &tensors[1], 1);
		recipe.recompute = kit_change_again;
		recipe.sources = &sources[1];
		recipe.source_count = 1;
		CHECK_STATUS(HR_OK, hr_tensor_extend_recipe(&recipe));
		drop(1);
		CHECK_STATUS(HR_OK, hr_lms_end_recipes(allocator, source, HR_STREAM_DEFAULT));
		CHECK_EQ(changes[by].calls, 1u);
		CHECK_STATUS(HR_NOT_READY, hr_tensor_drop(tensors[1]));
		expect(1);
		tear_down();
	}
}

static void test_use_of_a_host_copy_is_a_write(void)
{
	set_up();
	void *at;
	make(0, 0, 1);
	make(1, 0, 1);
	make(2, 1, 1);
	drop(2);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[1]));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_host_begin(tensors[1], &at)); /* it is back, because tensor 2 was computed from it */
	CHECK_EQ(ops[2].calls, 1u);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensors[1]));
	CHECK_STATUS(HR_OK, hr_tensor_host_begin(tensors[1], &at));
	memset(at, 77, BYTES);
	memset(contents[1], 77, BYTES);
	CHECK_STATUS(HR_OK, hr_tensor_host_end(tensors[1]));
	CHECK_EQ(lms_stats().num_recipes, 0);
	expect(1);
	CHECK_STATUS(HR_NOT_READY, hr_tensor_drop(tensors[1]));
	expect(2);
	tear_down();
}

static void test_a_later_write_ends_all_of_it(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	unsigned by = change_and_extend(1, 0);
	change(1, 1);
	CHECK(ops[1].released == 1 && changes[by].released == 1);
	CHECK_STATUS(HR_NOT_READY, hr_tensor_drop(tensors[1]));
	expect(1);
	tear_down();
}

/* ---- holding ---- */

static void test_a_recipe_ends_if_an_input_is_written_while_it_is_held(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[1]));
	unsigned by = change(1, 1);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_EQ(lms_stats().num_recipes, 1);
	change(0, 0);
	CHECK_EQ(lms_stats().num_recipes, 0);
	CHECK_EQ(ops[1].released, 1u);
	CHECK_STATUS(HR_NOT_READY, extend(1, 1, by));
	CHECK_EQ(changes[by].released, 0u);
	expect(1);
	tear_down();
}

static void test_an_op_that_fails_gives_the_recipe_up(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	make(2, 1, 1);
	destroy(1);
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[2]));
	change(2, 2);
	CHECK_STATUS(HR_OK, hr_tensor_unhold_recipe(tensors[2]));
	CHECK_EQ(lms_stats().num_recipes, 0);
	CHECK_EQ(lms_stats().num_ghosts, 0);
	CHECK_EQ(ops[2].released, 1u);
	CHECK_STATUS(HR_OK, hr_tensor_unhold_recipe(tensors[2]));
	expect(2);
	tear_down();
}

static void test_a_recipe_that_is_held_for_nothing_stays(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[1]));
	CHECK_STATUS(HR_IN_USE, hr_tensor_hold_recipe(tensors[1]));
	CHECK_STATUS(HR_INVALID_ARGUMENT, extend(1, 1, 0)); /* no write: and the hold ends */
	CHECK_CONTAINS(hr_last_message(), "was not pinned for writing");
	CHECK_STATUS(HR_NOT_READY, extend(1, 1, 0));
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[1]));
	CHECK_STATUS(HR_OK, hr_tensor_unhold_recipe(tensors[1]));
	drop(1);
	expect(1);
	tear_down();
}

static void test_a_tensor_is_destroyed_while_it_holds_its_recipe(void)
{
	for (unsigned ghost = 0; ghost < 2; ghost++) {
		set_up();
		make(0, 0, 1);
		make(1, 0, 1);
		if (ghost) make(2, 1, 1);
		CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[1]));
		if (!ghost) change(1, 1);
		destroy(1);
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
		CHECK_EQ(lms_stats().num_recipes, 2 * ghost);
		CHECK_EQ(ops[1].released, 1 - ghost);
		if (ghost) drop(2);
		if (ghost) expect(2);
		tear_down();
	}
}

static void test_an_allocator_closes_while_recipes_are_held(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	make(2, 0, 1);
	change_and_extend(1, 0);
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[1]));
	change(1, 1);
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[2]));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK(ops[1].released == 1 && ops[2].released == 1 && changes[0].released == 1);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_what_cannot_be_held_or_extended_is_refused(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	make(2, 0, 2);
	CHECK_STATUS(HR_NOT_READY, hr_tensor_hold_recipe(tensors[0]));
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[2]));
	CHECK_STATUS(HR_IN_USE, hr_tensor_hold_recipe(tensors[3])); /* of the same op */
	change(2, 2);
	CHECK_STATUS(HR_INVALID_ARGUMENT, extend_wrongly(NULL, 0, &tensors[2], 2));
	CHECK_CONTAINS(hr_last_message(), "one output, not 2");
	CHECK_STATUS(HR_INVALID_ARGUMENT, extend_wrongly(&tensors[2], 1, &tensors[2], 1));
	CHECK_CONTAINS(hr_last_message(), "both an input and an output");
	CHECK_STATUS(HR_NOT_READY, extend(2, 2, 0)); /* the failure has ended the hold */
	expect(2);
	drop(3);
	expect(3);
	CHECK_STATUS(HR_OK, hr_tensor_hold_recipe(tensors[1]));
	change(1, 1);
	make(4, 1, 1); /* the new contents are an input: the recipe would have to be older than this one */
	CHECK_STATUS(HR_INVALID_ARGUMENT, extend(1, 1, 1));
	hr_tensor gone = tensors[1];
	destroy(4);
	destroy(1);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_hold_recipe(gone));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_tensor_unhold_recipe(gone));
	tear_down();
}

static void test_a_recipe_has_sixteen_ops_at_most(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	for (unsigned i = 1; i < 16; i++) change_and_extend(1, i % 2 ? 0 : 1);
	CHECK_STATUS(HR_UNSUPPORTED, hr_tensor_hold_recipe(tensors[1]));
	drop(1);
	expect(1);
	tear_down();
}

/* ---- failures ---- */

static hr_status calls_hold(kit_op *op, const hr_recompute *call)
{
	(void)op;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_hold_recipe(call->inputs[0]));
	CHECK_STATUS(HR_INVALID_ARGUMENT, extend_wrongly(NULL, 0, call->outputs, 1));
	return HR_OK;
}

static void test_a_recompute_function_cannot_hold_or_extend(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	unsigned by = change_and_extend(1, 0);
	changes[by].first = calls_hold;
	drop(1);
	expect(1);
	CHECK_EQ(changes[by].calls, 1u);
	tear_down();
}

static hr_status computes_nothing(void *user, const hr_recompute *call)
{
	(void)user;
	(void)call;
	return HR_OK;
}

static void test_any_op_of_a_recipe_may_fail(void)
{
	set_up();
	make(0, 0, 1);
	make(1, 0, 1);
	kit_op *all[] = { &ops[1], &changes[change_and_extend(1, 0)], &changes[change_and_extend(1, 0)] };
	drop(1);
	for (unsigned i = 0; i < 3; i++) {
		all[i]->fails = HR_IO;
		CHECK_STATUS(HR_IO, hr_tensor_pin(tensors[1], HR_READ, HR_STREAM_DEFAULT));
		CHECK_EQ(fixture_tensor_info(tensors[1]).state, HR_TENSOR_DROPPED);
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
		all[i]->fails = HR_OK;
	}
	expect(1);
	CHECK_EQ(all[2]->calls, 2u); /* the ops after one that fails are not called */
	hr_recipe wrong = kit_recipe(&ops[1], &tensors[0], 1, &tensors[1], 1);
	wrong.recompute = computes_nothing;
	wrong.release = NULL;
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&wrong));
	unsigned by = change_and_extend(1, 0);
	drop(1);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_tensor_pin(tensors[1], HR_READ, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "without computing");
	CHECK_EQ(changes[by].calls, 0u);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[1], HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[1], HR_STREAM_DEFAULT));
	tear_down();
}

TEST_MAIN(T(test_all_ops_run_again_in_order), T(test_memory_that_the_first_op_hands_over_is_changed),
          T(test_inputs_that_the_program_has_destroyed_live_on_as_ghosts), T(test_a_ghost_has_all_its_ops),
          T(test_a_dropped_tensor_is_computed_before_an_op_changes_it), T(test_one_of_two_outputs_is_changed),
          T(test_what_depends_on_the_old_contents_is_computed_before_they_change), T(test_a_write_to_an_input_comes_after_what_depends_on_it),
          T(test_a_source_ends_an_extended_recipe), T(test_use_of_a_host_copy_is_a_write), T(test_a_later_write_ends_all_of_it),
          T(test_a_recipe_ends_if_an_input_is_written_while_it_is_held), T(test_an_op_that_fails_gives_the_recipe_up),
          T(test_a_recipe_that_is_held_for_nothing_stays), T(test_a_tensor_is_destroyed_while_it_holds_its_recipe),
          T(test_an_allocator_closes_while_recipes_are_held), T(test_what_cannot_be_held_or_extended_is_refused),
          T(test_a_recipe_has_sixteen_ops_at_most), T(test_a_recompute_function_cannot_hold_or_extend), T(test_any_op_of_a_recipe_may_fail))
