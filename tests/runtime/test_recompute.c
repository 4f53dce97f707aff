/* test_recompute.c - values that are dropped are computed again to the bit: single ops, ops in place, gradients, random programs in
 * which everything is dropped after each op, and training with little memory. */
#include <errno.h>

#include "fault_os.h"
#include "fixture.h"
#include "headroom_runtime.h"
#include "support_drop.h"
#include "support_program.h"

#define MIB (UINT64_C(1) << 20)

static hr_session session;
static hr_allocator allocator;

static void open_with(const hr_lms_options *lms, uint64_t limit)
{
	hr_session_options options;
	hr_device device = fixture_emulated(64 * MIB, 64 << 10, 0);
	hr_allocator_options made = fixture_allocator_options(limit);
	made.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &made, &allocator));
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, lms));
	hr_session_options_init(&options);
	options.device = "GPU:0";
	options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
}

static void open_session(void)
{
	hr_lms_options lms = fixture_lms_options("lru", 0);
	lms.verify = true;
	open_with(&lms, 32 * MIB);
}

/* Checks that nothing is left. */
static void close_session(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_EQ(fixture_stats(allocator).bytes_in_use, 0);
	CHECK_EQ(fixture_lms_stats(allocator).num_tensors, 0);
	CHECK_EQ(fixture_lms_stats(allocator).num_ghosts, 0);
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static int64_t recomputes(void)
{
	return fixture_lms_stats(allocator).num_recomputes;
}

static float first[SIDE * SIDE], second[SIDE * SIDE];

/* ---- one value ---- */

static void test_a_dropped_value_is_computed_again(void)
{
	open_session();
	hr_value x = hr_value_keep(data_of(1)), y = hr_value_keep(hr_mul(x, x));
	peek(y, first);
	CHECK_EQ((int)(first[64] * 16), 64); /* (1 + 64 / 64)^2 = 4 */
	CHECK_EQ(drop_all(allocator), 1); /* y; x cannot be computed again */
	CHECK_EQ(recomputes(), 0);
	peek(y, second);
	CHECK_EQ(recomputes(), 1);
	CHECK_BYTES(second, first, sizeof first);
	hr_value_release(x);
	hr_value_release(y);
	close_session();
}

static void test_random_numbers_are_drawn_again(void)
{
	open_session();
	hr_value x = hr_value_keep(normal(7));
	hr_value y = hr_value_keep(hr_random_uniform(HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), -1, 1, 7));
	for (int i = 0; i < 2; i++) {
		peek(i ? y : x, first);
		CHECK_EQ(drop_all(allocator), 2);
		peek(i ? y : x, second);
		CHECK_BYTES(second, first, sizeof first);
	}
	hr_value_release(x);
	hr_value_release(y);
	close_session();
}

static void test_ops_in_place_have_one_recipe_for_all(void)
{
	open_session();
	hr_value x = hr_value_keep(data_of(-1)), w = hr_value_keep(data_of(-30)), b = hr_value_keep(data_of(3));
	int64_t tensors = fixture_lms_stats(allocator).num_tensors;
	hr_value y = hr_value_keep(hr_relu(hr_add(hr_matmul(x, w), b)));
	CHECK_EQ(fixture_lms_stats(allocator).num_tensors, tensors + 1); /* in the memory of the product */
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 1);
	peek(y, first);
	CHECK_EQ(drop_all(allocator), 1);
	peek(y, second);
	CHECK_EQ(recomputes(), 1); /* three ops */
	CHECK_BYTES(second, first, sizeof first);
	hr_value_release(x);
	hr_value_release(w);
	hr_value_release(b);
	hr_value_release(y);
	close_session();
}

/* x has gone when add runs, and the recipe of the product with it. */
static void test_ops_in_place_have_no_recipe_when_an_input_is_gone(void)
{
	open_session();
	hr_value b = hr_value_keep(data_of(3));
	hr_value y = hr_value_keep(hr_add(hr_matmul(data_of(1), data_of(2)), b));
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
	CHECK_EQ(drop_all(allocator), 0);
	/* Its input has a recipe, and is a ghost when add runs. It cannot be named any more. */
	hr_value z = hr_value_keep(hr_add(hr_exp(hr_transpose(normal(1), (const int[]){ 1, 0 }, 2)), b));
	peek(z, first);
	drop_all(allocator);
	peek(z, second);
	CHECK_BYTES(second, first, sizeof first);
	hr_value_release(b);
	hr_value_release(y);
	hr_value_release(z);
	close_session();
}

static void test_a_long_chain_in_place_ends_without_a_recipe(void)
{
	open_session();
	hr_value b = hr_value_keep(data_of(1)), y = hr_matmul(b, b);
	for (int i = 0; i < 7; i++) y = hr_scale(y, 0.5, 0.25);
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 1); /* 8 ops */
	hr_value_keep(y);
	peek(y, first);
	CHECK_EQ(drop_all(allocator), 1);
	peek(y, second);
	CHECK_BYTES(second, first, sizeof first);
	hr_value_release(y);
	y = hr_matmul(b, b);
	for (int i = 0; i < 8; i++) y = hr_scale(y, 0.5, 0.25);
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
	y = hr_value_keep(hr_scale(y, 2, 0)); /* nor later */
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
	hr_value_release(y);
	hr_value_release(b);
	close_session();
}

/* Each output of layer_norm, dropped alone. */
static void test_outputs_are_computed_again_one_by_one(void)
{
	open_session();
	const float ones[SIDE] = { 1, 2, 3 };
	hr_variable gamma = hr_get_variable("gamma", HR_DTYPE_FLOAT32, HR_DIMS(SIDE), HR_FULL(1.5));
	hr_value beta = hr_value_keep(hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(SIDE), ones)), x = hr_value_keep(data_of(-4));
	hr_tape_begin(); /* keeps mean and deviation of the rows */
	hr_value y = hr_value_keep(hr_layer_norm(x, hr_variable_read(gamma), beta, 1e-5));
	hr_value loss = hr_reduce_sum(hr_mul(y, y), HR_ALL_AXES, false), gradient;
	CHECK_EQ(drop_all(allocator) > 2, true);
	peek(y, first);
	CHECK_STATUS(HR_OK, hr_gradients(loss, (const hr_value[]){ x }, 1, &gradient));
	hr_value_keep(gradient);
	hr_tape_end();
	peek(gradient, second);
	/* The same without drops. */
	CHECK_STATUS(HR_OK, hr_lms_set_recompute(allocator, false));
	float plain[SIDE * SIDE];
	hr_value again;
	hr_tape_begin();
	hr_value z = hr_value_keep(hr_layer_norm(x, hr_variable_read(gamma), beta, 1e-5));
	loss = hr_reduce_sum(hr_mul(z, z), HR_ALL_AXES, false);
	peek(z, plain);
	CHECK_BYTES(first, plain, sizeof plain);
	CHECK_STATUS(HR_OK, hr_gradients(loss, (const hr_value[]){ x }, 1, &again));
	hr_tape_end();
	hr_value_keep(again);
	peek(again, plain);
	CHECK_BYTES(second, plain, sizeof plain);
	const hr_value all[] = { beta, x, y, z, gradient, again };
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) hr_value_release(all[i]);
	close_session();
}

static void test_without_recompute_nothing_has_a_recipe(void)
{
	hr_lms_options lms = fixture_lms_options("lru", 0);
	lms.recompute = false;
	open_with(&lms, 32 * MIB);
	hr_value x = hr_value_keep(normal(1));
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
	CHECK_STATUS(HR_OK, hr_lms_set_recompute(allocator, true));
	hr_value y = hr_value_keep(normal(2));
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 1);
	hr_value_release(x);
	hr_value_release(y);
	close_session();
}

/* ---- contents that change ---- */

static void test_an_updated_variable_does_not_change_what_was_computed_from_it(void)
{
	open_session();
	hr_variable variable = hr_get_variable("w", HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), HR_NORMAL(1, 5));
	hr_value x = hr_value_keep(data_of(-2));
	for (int dropped = 0; dropped < 2; dropped++) {
		hr_value y = hr_value_keep(hr_matmul(x, hr_variable_read(variable)));
		peek(y, first);
		if (dropped) CHECK_GT(drop_all(allocator), 0);
		hr_assign_add(variable, normal(9)); /* in place */
		drop_all(allocator);
		peek(y, second);
		CHECK_BYTES(second, first, sizeof first);
		hr_value_release(y);
	}
	hr_value_release(x);
	close_session();
}

static void test_an_input_that_is_overwritten_in_place_is_read_before(void)
{
	open_session();
	hr_value x = data_of(1); /* temporary */
	hr_value seen = hr_value_keep(x), y = hr_value_keep(hr_exp(hr_scale(seen, 0.01, 0)));
	peek(y, first);
	CHECK_GT(drop_all(allocator), 0);
	hr_value z = hr_value_keep(hr_neg(seen)); /* not in place: kept */
	hr_value_release(seen);                   /* y is computed first */
	drop_all(allocator);
	peek(y, second);
	CHECK_BYTES(second, first, sizeof first);
	hr_value_release(y);
	hr_value_release(z);
	close_session();
}

/* ---- errors ---- */

static void test_a_value_that_cannot_be_computed_again_says_so_and_can_later(void)
{
	uint64_t failed = 0;
	hr_fault_os_install();
	open_session();
	hr_value x = hr_value_keep(data_of(1)), y = hr_value_keep(hr_matmul(x, x));
	peek(y, first);
	for (uint64_t nth = 1;; nth++) {
		CHECK_EQ(drop_all(allocator), 1);
		hr_fault_os_fail_nth(nth, false, ENOMEM);
		hr_status status = hr_value_fetch(y, second, sizeof second);
		bool all = hr_fault_os_calls() < nth;
		hr_fault_os_fail_nth(0, false, 0);
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
		if (status) {
			CHECK_STATUS(HR_NO_HOST_MEMORY, status);
			failed++;
		}
		peek(y, second);
		CHECK_BYTES(second, first, sizeof first);
		if (all) break;
	}
	CHECK_GT(failed, 0);
	hr_value_release(x);
	hr_value_release(y);
	close_session();
	hr_fault_os_uninstall();
}

/* y is dropped, and cannot be recomputed when x is released. */
static void test_an_input_is_freed_later_if_what_depends_on_it_cannot_be_computed_now(void)
{
	uint64_t kept = 0;
	hr_fault_os_install();
	open_session();
	for (uint64_t nth = 1;; nth++) {
		hr_value x = hr_value_keep(data_of(1)), y = hr_value_keep(hr_matmul(x, x));
		peek(y, first);
		CHECK_EQ(drop_all(allocator), 1);
		hr_fault_os_fail_nth(nth, true, ENOMEM);
		hr_value_release(x);
		bool all = hr_fault_os_calls() < nth;
		hr_fault_os_fail_nth(0, false, 0);
		kept += fixture_lms_stats(allocator).num_tensors == 2;
		peek(y, second);
		CHECK_BYTES(second, first, sizeof first);
		hr_value_release(y);
		CHECK_EQ(fixture_lms_stats(allocator).num_tensors, 0);
		if (all) break;
	}
	CHECK_GT(kept, 0);
	close_session();
	hr_fault_os_uninstall();
}

static void test_a_failing_kernel_is_reported_once(void)
{
	open_session();
	int32_t bad = 99;
	float row[SIDE];
	hr_value x = hr_value_keep(data_of(1)), index = hr_value_keep(hr_constant(HR_DTYPE_INT32, HR_DIMS(1), &bad));
	hr_value y = hr_value_keep(hr_gather(x, index));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(y, row, sizeof row));
	CHECK_EQ(drop_all(allocator), 1);
	CHECK_STATUS(HR_OK, hr_value_fetch(y, row, sizeof row));
	hr_value_release(x);
	hr_value_release(index);
	hr_value_release(y);
	close_session();
}

/* ---- random programs ---- */

static void test_random_programs_give_the_same_bits_with_drops_after_each_op(void)
{
	static struct program plain = { .scope = "random" }, dropping = { .scope = "random" };
	uint64_t programs = hr_test_scaled(HR_TEST_SANITIZED ? 100 : 60), dropped = 0, again = 0;
	for (uint64_t i = 0; i < programs; i++) {
		uint64_t seed = hr_test_seed() * 1000003 + i;
		hr_lms_options lms = fixture_lms_options(i % 2 ? "learned" : "lru", 0);
		lms.verify = i % 4 < 2;
		lms.recompute = false;
		open_with(&lms, 32 * MIB);
		plain.drops.id = 0;
		run_program(&plain, seed, 100);
		CHECK_EQ(fixture_lms_stats(allocator).num_drops, 0);
		close_session();
		lms.recompute = true;
		open_with(&lms, 32 * MIB);
		dropping.drops = allocator;
		run_program(&dropping, seed, 100);
		again += (uint64_t)recomputes();
		close_session();
		dropped += dropping.dropped;
		CHECK_EQ(dropping.hash_count, plain.hash_count);
		if (memcmp(dropping.hashes, plain.hashes, plain.hash_count * sizeof *plain.hashes)) printf("# program %llu\n", (unsigned long long)seed);
		CHECK_BYTES(dropping.hashes, plain.hashes, plain.hash_count * sizeof *plain.hashes);
	}
	printf("# %llu programs, %llu values dropped, %llu recipes run\n", (unsigned long long)programs, (unsigned long long)dropped,
	       (unsigned long long)again);
	CHECK_GT(dropped, programs * 100);
}

TEST_MAIN(T(test_a_dropped_value_is_computed_again), T(test_random_numbers_are_drawn_again), T(test_ops_in_place_have_one_recipe_for_all),
          T(test_ops_in_place_have_no_recipe_when_an_input_is_gone), T(test_a_long_chain_in_place_ends_without_a_recipe),
          T(test_outputs_are_computed_again_one_by_one), T(test_without_recompute_nothing_has_a_recipe),
          T(test_an_updated_variable_does_not_change_what_was_computed_from_it),
          T(test_an_input_that_is_overwritten_in_place_is_read_before),
          T(test_a_value_that_cannot_be_computed_again_says_so_and_can_later),
          T(test_an_input_is_freed_later_if_what_depends_on_it_cannot_be_computed_now), T(test_a_failing_kernel_is_reported_once),
          T_WITHIN(test_random_programs_give_the_same_bits_with_drops_after_each_op, 300))
