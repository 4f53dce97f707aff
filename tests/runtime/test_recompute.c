/* test_recompute.c - values that are dropped are computed again to the bit: single ops, ops in place, gradients, random programs in
 * which everything is dropped after each op, and training with little memory. */
#include <errno.h>

#include "analysis/schedule/pure_ops.h"
#include "core/lms/policy/learned.h"
#include "fault_os.h"
#include "fixture.h"
#include "headroom_runtime.h"
#include "runtime/recipe/origin.h"
#include "support_drop.h"
#include "support_far.h"
#include "support_program.h"

#define MIB (UINT64_C(1) << 20)

static hr_session session;
static hr_allocator allocator;

static void open_on(const char *name, const hr_lms_options *lms, uint64_t limit)
{
	hr_session_options options;
	hr_device device = fixture_device(name);
	hr_allocator_options made = fixture_allocator_options(limit);
	made.oom.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &made, &allocator));
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, lms));
	hr_session_options_init(&options);
	options.device = name;
	options.allocator = allocator;
	CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
}

static void open_with(const hr_lms_options *lms, uint64_t limit)
{
	fixture_configure_emulated(64 * MIB, 64 << 10, 0);
	open_on("GPU:0", lms, limit);
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

/* So a plan may run all three again. */
static void test_ops_in_place_are_recorded_as_one_op(void)
{
	hr__lms *lms;
	hr_lms_options options = fixture_lms_options("learned", 0);
	open_with(&options, 32 * MIB);
	hr_value x = hr_value_keep(data_of(-1)), w = hr_value_keep(data_of(-30)), b = hr_value_keep(data_of(3));
	CHECK_STATUS(HR_OK, hr__lms_of(allocator, &lms));
	const hr__record *record = &lms->learned->now;
	CHECK_STATUS(HR_OK, hr_step_begin(allocator));
	hr_value y = hr_value_keep(hr_relu(hr_add(hr_matmul(x, w), b)));
	CHECK_EQ(record->ops.count, 1u);
	hr_value z = hr_value_keep(hr_mul(y, y));
	CHECK_EQ(record->ops.count, 2u);
	hr__plan_op ops[2] = { { 0 } };
	bool seen[8] = { false };
	CHECK_LE(record->tensors.count, 8u);
	hr__record_mark_pure(record, ops, seen);
	CHECK(ops[0].pure && ops[1].pure);
	CHECK_STATUS(HR_OK, hr_step_end(allocator));
	hr_value_release(x);
	hr_value_release(w);
	hr_value_release(b);
	hr_value_release(y);
	hr_value_release(z);
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

/* There an op copies its inputs and outputs over the link, which takes longer than moving the output. */
static void test_far_from_the_host_nothing_has_a_recipe(void)
{
	hr_lms_options lms = fixture_lms_options("lru", 0);
	fixture_configure_emulated(64 * MIB, 64 << 10, 0);
	far_add();
	open_on("FAR:0", &lms, 32 * MIB);
	hr_value x = hr_value_keep(normal(1)), y = hr_value_keep(hr_relu(hr_matmul(x, x)));
	CHECK_EQ(fixture_lms_stats(allocator).num_recipes, 0);
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

static void test_a_dropped_value_is_computed_before_its_input_is_freed(void)
{
	open_session();
	hr_value x = hr_value_keep(data_of(1)), y = hr_value_keep(hr_exp(hr_scale(x, 0.01, 0)));
	peek(y, first);
	CHECK_EQ(drop_all(allocator), 1); /* scale has memory of its own, in which exp runs */
	hr_value_release(x);
	CHECK_EQ(recomputes(), 1);
	CHECK_EQ(drop_all(allocator), 0); /* its recipe has ended */
	peek(y, second);
	CHECK_BYTES(second, first, sizeof first);
	hr_value_release(y);
	close_session();
}

/* In a graph the last use of h is relu, which runs in its memory; y, computed from h, is dropped by then. */
static void test_a_dropped_value_is_computed_before_its_input_is_overwritten_in_place(void)
{
	float z_plain[SIDE * SIDE], z_dropped[SIDE * SIDE];
	for (int dropping = 0; dropping < 2; dropping++) {
		hr_graph graph;
		hr_value outs[2];
		if (dropping) register_drop_policy();
		hr_lms_options lms = fixture_lms_options(dropping ? "drops" : "lru", 0);
		open_with(&lms, 32 * MIB);
		CHECK_STATUS(HR_OK, hr_graph_create(&graph));
		CHECK_STATUS(HR_OK, hr_graph_enter(graph));
		hr_value x = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE)), h = hr_matmul(x, x);
		hr_value y = hr_transpose(h, (const int[]){ 1, 0 }, 2), z = hr_neg(hr_relu(h));
		CHECK_STATUS(HR_OK, hr_graph_leave());
		hr_value input = hr_value_keep(data_of(-1));
		int64_t tensors = fixture_lms_stats(allocator).num_tensors;
		CHECK_STATUS(HR_OK, hr_session_run(session, (hr_feed[]){ { x, input } }, 1, (const hr_value[]){ y, z }, 2, outs, NULL, NULL));
		CHECK_EQ(fixture_lms_stats(allocator).num_tensors, tensors + 2); /* y, and h as z */
		CHECK_EQ(fixture_lms_stats(allocator).num_drops > 0, dropping);
		hr_value_keep(outs[0]);
		hr_value_keep(outs[1]);
		peek(outs[0], dropping ? second : first);
		peek(outs[1], dropping ? z_dropped : z_plain);
		CHECK_EQ(recomputes() > 1, dropping);
		hr_value_release(outs[0]);
		hr_value_release(outs[1]);
		hr_value_release(input);
		CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
		close_session();
	}
	CHECK_BYTES(second, first, sizeof first);
	CHECK_BYTES(z_dropped, z_plain, sizeof z_plain);
}

/* ---- errors ---- */

/* The Nth call of the system, or of the device, fails. Returns whether all calls of the fetch had their turn. */
static bool fetch_with_fault(hr_value y, bool of_device, uint64_t nth, hr_status *status)
{
	if (of_device) hr_backend_fail_nth(nth, false, HR_DEVICE_ERROR);
	else hr_fault_os_fail_nth(nth, false, ENOMEM);
	*status = hr_value_fetch(y, second, sizeof second);
	bool all = (of_device ? hr_backend_calls() : hr_fault_os_calls()) < nth;
	hr_backend_fail_nth(0, false, HR_OK);
	hr_fault_os_fail_nth(0, false, 0);
	return all;
}

static void test_a_value_that_cannot_be_computed_again_says_so_and_can_later(void)
{
	hr_fault_os_install();
	open_session();
	hr_value x = hr_value_keep(data_of(1)), b = hr_value_keep(data_of(2));
	hr_value y = hr_value_keep(hr_relu(hr_add(hr_matmul(x, x), b)));
	peek(y, first);
	for (int of_device = 0; of_device < 2; of_device++) {
		uint64_t failed = 0, named = 0;
		bool all = false;
		for (uint64_t nth = 1; !all; nth++) {
			hr_status status;
			CHECK_EQ(drop_all(allocator), 1);
			all = fetch_with_fault(y, of_device, nth, &status);
			if (status) CHECK_STATUS(of_device ? HR_DEVICE_ERROR : HR_NO_HOST_MEMORY, status);
			failed += status != HR_OK;
			named += status && strstr(hr_last_message(), "could not be recomputed by op relu");
			CHECK_STATUS(HR_OK, hr_lms_check(allocator));
			peek(y, second);
			CHECK_BYTES(second, first, sizeof first);
		}
		CHECK_GT(failed, 0);
		CHECK_GT(named, 0);
	}
	hr_value_release(x);
	hr_value_release(b);
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

/* ---- the table ---- */

/* Of ops that the planner knows by name, the runtime knows the same. */
static void test_the_op_table_and_the_planner_agree_on_what_is_pure(void)
{
	uint32_t known = 0;
	for (int kind = 0; kind < HR__OP_COUNT; kind++) {
		hr__purity purity = hr__op_purity(hr__ops[kind].name);
		if (purity != HR__OP_PURE && purity != HR__OP_SEEDED) continue;
		if (hr__ops[kind].again == HR__NEVER) printf("# %s\n", hr__ops[kind].name);
		CHECK(hr__ops[kind].again != HR__NEVER);
		known++;
	}
	CHECK_GT(known, 20);
}

static hr__type f32(int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
	return (hr__type){ HR_DTYPE_FLOAT32, { rank, { a, b, c, d } } };
}

/* 1 us, 10 bytes a ns, and: 1 ns for an element, 8 for a random number, 90 products a ns. */
static void test_costs_are_those_of_the_documented_formula(void)
{
	hr__attrs attrs = { 0 }, transposed = { .transpose_a = true };
	hr__type row[] = { f32(2, 100, 50, 0, 0), f32(2, 100, 50, 0, 0) };
	CHECK_EQ(hr__op_cost_ns(HR__OP_ADD, &attrs, row, 2, row, false), 1000 + 60000 / 10);
	CHECK_EQ(hr__op_cost_ns(HR__OP_EXP, &attrs, row, 1, row, false), 1000 + 40000 / 10 + 5000);
	CHECK_EQ(hr__op_cost_ns(HR__OP_RANDOM_NORMAL, &attrs, NULL, 0, row, false), 1000 + 20000 / 10 + 5000 * 8);
	/* [100,50] by [50,90]: 100 * 90 * 50 products; transposed, [50,100] by [100,90]: 50 * 90 * 100. */
	hr__type factors[] = { row[0], f32(2, 50, 90, 0, 0) }, product = f32(2, 100, 90, 0, 0);
	CHECK_EQ(hr__op_cost_ns(HR__OP_MATMUL, &attrs, factors, 2, &product, false), 1000 + 4 * (5000 + 4500 + 9000) / 10 + 450000 / 90);
	hr__type turned[] = { row[0], f32(2, 100, 90, 0, 0) }, small = f32(2, 50, 90, 0, 0);
	CHECK_EQ(hr__op_cost_ns(HR__OP_MATMUL, &transposed, turned, 2, &small, false), 1000 + 4 * (5000 + 9000 + 4500) / 10 + 450000 / 90);
	/* Images [2,3,8,8], filter [9,3,3,3] and padding: [2,9,8,8], 27 products for each of 1152 numbers; the same for both gradients. */
	hr__type x = f32(4, 2, 3, 8, 8), filter = f32(4, 9, 3, 3, 3), y = f32(4, 2, 9, 8, 8);
	uint64_t expected = 1000 + 4 * (384 + 243 + 1152) / 10 + 1152 * 27 / 90;
	CHECK_EQ(hr__op_cost_ns(HR__OP_CONV2D, &attrs, (hr__type[]){ x, filter }, 2, &y, false), expected);
	CHECK_EQ(hr__op_cost_ns(HR__OP_CONV2D_GRAD_INPUT, &attrs, (hr__type[]){ y, filter }, 2, &x, false), expected);
	CHECK_EQ(hr__op_cost_ns(HR__OP_CONV2D_GRAD_FILTER, &attrs, (hr__type[]){ y, x }, 2, &filter, false), expected);
	/* A loss: the elements of its input. */
	hr__type labels[] = { row[0], { HR_DTYPE_INT32, { 1, { 100 } } } }, losses = f32(1, 100, 0, 0, 0);
	CHECK_EQ(hr__op_cost_ns(HR__OP_CROSS_ENTROPY, &attrs, labels, 2, &losses, false), 1000 + (20000 + 400 + 400) / 10 + 5000);
	/* On a card 5 us, 2000 bytes a ns, 2000 elements, 50,000 products. */
	hr__type large[] = { f32(2, 1000, 2000, 0, 0), f32(2, 2000, 5000, 0, 0) }, result = f32(2, 1000, 5000, 0, 0);
	CHECK_EQ(hr__op_cost_ns(HR__OP_EXP, &attrs, large, 1, large, true), 5000 + 16000000 / 2000 + 1000);
	CHECK_EQ(hr__op_cost_ns(HR__OP_MATMUL, &attrs, large, 2, &result, true), 5000 + 4 * (2000000 + 10000000 + 5000000) / 2000 + 10000000000 / 50000);
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

TEST_MAIN(T(test_a_dropped_value_is_computed_again), T(test_random_numbers_are_drawn_again), T(test_ops_in_place_have_one_recipe_for_all), T(test_ops_in_place_are_recorded_as_one_op),
          T(test_ops_in_place_have_no_recipe_when_an_input_is_gone), T(test_a_long_chain_in_place_ends_without_a_recipe),
          T(test_outputs_are_computed_again_one_by_one), T(test_without_recompute_nothing_has_a_recipe),
          T(test_far_from_the_host_nothing_has_a_recipe),
          T(test_an_updated_variable_does_not_change_what_was_computed_from_it),
          T(test_a_dropped_value_is_computed_before_its_input_is_freed),
          T(test_a_dropped_value_is_computed_before_its_input_is_overwritten_in_place),
          T(test_a_value_that_cannot_be_computed_again_says_so_and_can_later),
          T(test_an_input_is_freed_later_if_what_depends_on_it_cannot_be_computed_now), T(test_a_failing_kernel_is_reported_once),
          T(test_the_op_table_and_the_planner_agree_on_what_is_pure), T(test_costs_are_those_of_the_documented_formula),
          T_WITHIN(test_random_programs_give_the_same_bits_with_drops_after_each_op, 300))
