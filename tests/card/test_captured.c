/* test_captured.c - functions that run as CUDA graphs: the same bits as op by op, and op by op where a graph cannot be used. */
#include <pthread.h>
#include <time.h>

#include "card/support_card.h"
#include "runtime/card/card.h"
#include "runtime/engine/engine.h"

#define STEPS 6
#define WIDE 8

/* ---- a training step ---- */

struct program {
	const char *scope;
	hr_optimizer adam;
};

static hr_status train(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	struct program *program = context;
	const float shift[WIDE] = { 0.5f, -0.25f, 1, 2, -1, 0, 0.125f, 3 };
	hr_variable variables[16];
	(void)in_count, (void)out_count;
	hr_status status = hr_variable_scope_push(program->scope, HR_REUSE_OR_MAKE);
	if (!status) status = hr_tape_begin();
	hr_value x = hr_add(ins[0], hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(WIDE), shift));
	hr_value h = hr_dropout_layer("drop", hr_dense("one", x, WIDE, HR_GELU, 1), 0.25, 7, true);
	hr_value loss = hr_value_keep(hr_reduce_mean(hr_cross_entropy(hr_dense("two", h, 4, HR_LINEAR, 2), ins[1]), HR_ALL_AXES, false));
	size_t count = hr_trainable_variables(variables, 16);
	hr_value done = hr_minimize(&program->adam, loss, variables, count);
	hr_tape_end();
	hr_variable_scope_pop();
	outs[0] = done.id ? hr_scale(loss, 1, 0) : HR_NO_VALUE;
	outs[1] = hr_scale(ins[0], 2, 0);
	hr_value_release(loss);
	return outs[0].id ? status : hr_last_status();
}

struct trained {
	float losses[STEPS], doubled[STEPS][3 * WIDE];
	uint64_t products; /* that were given to the card op by op */
};

static uint64_t products_of(hr_session session)
{
	hr_status status;
	return hr__card_queued(hr__session_of(session, &status)->card, HR__OP_MATMUL);
}

static hr_function function_of(struct program *program, const char *scope, hr_function_body body)
{
	hr_function function;
	*program = (struct program){ .scope = scope };
	hr_optimizer_init(&program->adam, HR_ADAM);
	program->adam.name = scope;
	CHECK_STATUS(HR_OK, hr_function_create("step", body, program, &function));
	return function;
}

/* Another input in each step. */
static hr_status step(hr_function function, int number, float *loss, float *doubled)
{
	hr_value outs[2], ins[] = { hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(3, WIDE), 100 + (uint64_t)number),
		                        hr_random_uniform(HR_DTYPE_INT32, HR_DIMS(3), 0, 4, 200 + (uint64_t)number) };
	hr_status status = hr_function_call(function, ins, 2, outs, 2);
	if (status) return status;
	status = hr_value_fetch(outs[0], loss, sizeof *loss);
	hr_status second = hr_value_fetch(outs[1], doubled, 3 * WIDE * sizeof *doubled);
	return status ? status : second;
}

static struct trained run(hr_session session, const char *scope, bool eagerly)
{
	struct trained out = { .products = 0 };
	struct program program;
	hr_function function = function_of(&program, scope, train);
	hr_run_functions_eagerly(eagerly);
	for (int i = 0; i < STEPS; i++) {
		if (i == 2) out.products = products_of(session);
		CHECK_STATUS(HR_OK, step(function, i, &out.losses[i], out.doubled[i]));
	}
	out.products = products_of(session) - out.products;
	hr_run_functions_eagerly(false);
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	return out;
}

static hr_session open_card(void)
{
	hr_session session = card_open();
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	return session;
}

static void close_card(hr_session session)
{
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_a_captured_step_gives_the_bits_of_single_ops(void)
{
	hr_session session = open_card();
	struct trained eager = run(session, "eager", true), captured = run(session, "captured", false);
	CHECK_BYTES(captured.losses, eager.losses, sizeof eager.losses);
	CHECK_BYTES(captured.doubled, eager.doubled, sizeof eager.doubled);
	CHECK_GT(eager.products, 0);
	CHECK_EQ(captured.products, 0); /* from the third call on, each call is one launch */
	close_card(session);
}

/* ---- what cannot be captured ---- */

static hr_status count_and_return(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context, (void)in_count, (void)out_count;
	hr_variable v = hr_get_variable("v", HR_DTYPE_FLOAT32, HR_DIMS(4), HR_ZEROS);
	hr_value added = hr_value_keep(hr_add(hr_variable_read(v), ins[0]));
	hr_value assigned = hr_assign(v, added);
	outs[0] = hr_scale(added, 10, 0);
	hr_value_release(added);
	return assigned.id ? HR_OK : hr_last_status();
}

static hr_status add_and_read(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context, (void)in_count, (void)out_count;
	hr_variable v = hr_get_variable("v", HR_DTYPE_FLOAT32, HR_DIMS(4), HR_ZEROS);
	if (!hr_assign_add(v, ins[0]).id) return hr_last_status();
	outs[0] = hr_variable_read(v);
	return HR_OK;
}

static void check_counts(hr_function function, int calls, float each, float first)
{
	for (int i = 0; i < calls; i++) {
		float is[4];
		hr_value out, one = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(4), 1);
		CHECK_STATUS(HR_OK, hr_function_call(function, &one, 1, &out, 1));
		CHECK_STATUS(HR_OK, hr_value_fetch(out, is, sizeof is));
		for (int k = 0; k < 4; k++) CHECK_EQ(is[k], first + each * (float)(i + 1));
	}
}

static void test_replaced_and_returned_variables_run_op_by_op(void)
{
	struct program program;
	hr_session session = open_card();
	hr_function assigns = function_of(&program, "assigns", count_and_return), reads = function_of(&program, "reads", add_and_read);
	CHECK_STATUS(HR_OK, hr_variable_scope_push("assigns", HR_REUSE_OR_MAKE));
	check_counts(assigns, 7, 10, 0);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_STATUS(HR_OK, hr_variable_scope_push("reads", HR_REUSE_OR_MAKE));
	check_counts(reads, 7, 1, 0);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_STATUS(HR_OK, hr_function_destroy(assigns));
	CHECK_STATUS(HR_OK, hr_function_destroy(reads));
	close_card(session);
}

static hr_status add_and_scale(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context, (void)in_count, (void)out_count;
	hr_variable v = hr_get_variable("v", HR_DTYPE_FLOAT32, HR_DIMS(4), HR_ZEROS);
	if (!hr_assign_add(v, ins[0]).id) return hr_last_status();
	outs[0] = hr_scale(hr_variable_read(v), 1, 0);
	return HR_OK;
}

/* A value that was read before the step keeps its contents, also if it is held over launches. */
static void test_a_value_that_was_read_keeps_its_contents(void)
{
	struct program program;
	float is[4];
	hr_session session = open_card();
	hr_function counts = function_of(&program, "counts", add_and_scale);
	CHECK_STATUS(HR_OK, hr_variable_scope_push("counts", HR_REUSE_OR_MAKE));
	check_counts(counts, 4, 1, 0);
	hr_value held = hr_value_keep(hr_variable_read(hr_get_variable("v", HR_DTYPE_FLOAT32, HR_DIMS(4), HR_ZEROS)));
	check_counts(counts, 4, 1, 4);
	CHECK_STATUS(HR_OK, hr_value_fetch(held, is, sizeof is));
	CHECK_EQ(is[0], 4);
	hr_value_release(held);
	check_counts(counts, 4, 1, 8);
	CHECK_EQ(hr_assign(hr_get_variable("v", HR_DTYPE_FLOAT32, HR_DIMS(4), HR_ZEROS), hr_full(HR_DTYPE_FLOAT32, HR_DIMS(4), 100)).id, HR_DONE.id);
	check_counts(counts, 4, 1, 100);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_STATUS(HR_OK, hr_function_destroy(counts));
	close_card(session);
}

/* ---- threads ---- */

#define CALLS_OF_A_THREAD 20

struct caller_thread {
	hr_session session;
	hr_function function;
};

static void *call_often(void *argument)
{
	struct caller_thread *caller = argument;
	CHECK_STATUS(HR_OK, hr_session_enter(caller->session));
	for (int i = 0; i < CALLS_OF_A_THREAD; i++) {
		float is[4];
		hr_value out, one = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(4), 1);
		CHECK_STATUS(HR_OK, hr_function_call(caller->function, &one, 1, &out, 1));
		CHECK_STATUS(HR_OK, hr_value_fetch(out, is, sizeof is));
		CHECK(is[0] >= 1 && is[0] <= 2 * CALLS_OF_A_THREAD + 1 && is[3] == is[0]);
	}
	CHECK_STATUS(HR_OK, hr_session_leave());
	return NULL;
}

static void test_two_threads_call_one_captured_function(void)
{
	struct program program;
	pthread_t other;
	float is[4];
	hr_session session = open_card();
	struct caller_thread caller = { session, function_of(&program, "both", add_and_scale) };
	hr_variable v = hr_get_variable("v", HR_DTYPE_FLOAT32, HR_DIMS(4), HR_ZEROS);
	CHECK_STATUS(HR_OK, hr_variable_scope_push("again", HR_REUSE_OR_MAKE));
	check_counts(caller.function, 1, 1, 0); /* makes the function's own variable, in that scope */
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_EQ(pthread_create(&other, NULL, call_often, &caller), 0);
	call_often(&caller);
	CHECK_EQ(pthread_join(other, NULL), 0);
	CHECK_STATUS(HR_OK, hr_variable_scope_push("again", HR_REUSE_OR_MAKE));
	hr_value counted = hr_variable_read(hr_get_variable("v", HR_DTYPE_FLOAT32, HR_DIMS(4), HR_ZEROS));
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_STATUS(HR_OK, hr_value_fetch(counted, is, sizeof is));
	CHECK_EQ(is[0], 2 * CALLS_OF_A_THREAD + 1);
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_variable_read(v), is, sizeof is));
	CHECK_EQ(is[0], 0);
	CHECK_STATUS(HR_OK, hr_function_destroy(caller.function));
	close_card(session);
}

/* ---- waiting ---- */

/* Work of the session's stream that ends when the test lets it. It gives up after a while, so that a call that waits for it fails the test. */
struct gate {
	hr__atomic_u32 open, gave_up;
};

static void hold_stream(void *argument)
{
	struct gate *gate = argument;
	for (int i = 0; i < 20000 && !hr__load_acquire(&gate->open); i++) nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	hr__store_release(&gate->gave_up, !hr__load_acquire(&gate->open));
}

/* Queues steps behind the gate, and opens it before the losses are fetched. */
static void check_steps_do_not_wait(hr_session session, hr_function function, const float *should)
{
	struct gate gate = { 0 };
	hr_status status;
	hr_value outs[2][2];
	const hr__session *of = hr__session_of(session, &status);
	CHECK_STATUS(HR_OK, hr__device_host_call(of->device, of->stream, hold_stream, &gate));
	for (int i = 2; i < 4; i++) {
		hr_value ins[] = { hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(3, WIDE), 100 + (uint64_t)i), hr_random_uniform(HR_DTYPE_INT32, HR_DIMS(3), 0, 4, 200 + (uint64_t)i) };
		CHECK_STATUS(HR_OK, hr_function_call(function, ins, 2, outs[i - 2], 2));
	}
	hr__store_release(&gate.open, 1);
	for (int i = 2; i < 4; i++) {
		float loss;
		hr_value_release(hr_value_keep(outs[i - 2][1]));
		CHECK_STATUS(HR_OK, hr_value_fetch(outs[i - 2][0], &loss, sizeof loss));
		CHECK_BYTES(&loss, &should[i], sizeof loss);
	}
	CHECK_EQ(hr__load_acquire(&gate.gave_up), 0);
}

static void test_steps_wait_for_nothing(void)
{
	hr_session session = open_card();
	struct trained should = run(session, "step", true);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	for (int eagerly = 0; eagerly < 2; eagerly++) {
		struct program program;
		float loss, doubled[3 * WIDE];
		session = card_session("GPU:0", (hr_allocator){ 0 });
		CHECK_STATUS(HR_OK, hr_session_enter(session));
		hr_function function = function_of(&program, "step", train);
		hr_run_functions_eagerly(eagerly);
		for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, step(function, i, &loss, doubled));
		check_steps_do_not_wait(session, function, should.losses);
		hr_run_functions_eagerly(false);
		CHECK_STATUS(HR_OK, hr_function_destroy(function));
		CHECK_STATUS(HR_OK, hr_session_leave());
		CHECK_STATUS(HR_OK, hr_session_destroy(session));
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- memory ---- */

static hr_status add_large(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context, (void)in_count, (void)out_count;
	hr_value wide = hr_value_keep(hr_broadcast_to(ins[0], HR_DIMS(1 << 18, 4))); /* 4 MiB */
	outs[0] = hr_reduce_mean(hr_exp(wide), 0, false);
	hr_value_release(wide);
	return HR_OK;
}

/* The memory of a captured function is given back when another request needs it, and the function works before and after. */
static void test_memory_of_graphs_is_given_back(void)
{
	const uint64_t limit = 16 << 20;
	struct program program;
	hr_device device;
	hr_allocator allocator;
	hr_allocator_options options;
	float first[4], is[4];
	card_begin();
	CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
	hr_allocator_options_init(&options);
	options.limit_bytes = limit;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	hr_session session = card_session("GPU:0", allocator);
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	hr_function function = function_of(&program, "large", add_large);
	for (int i = 0; i < 9; i++) {
		hr_value out, x = hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(4), 5);
		CHECK_STATUS(HR_OK, hr_function_call(function, &x, 1, &out, 1));
		CHECK_STATUS(HR_OK, hr_value_fetch(out, i ? is : first, sizeof is));
		if (i) CHECK_BYTES(is, first, sizeof is);
		if (i == 7) { /* more than the limit: refused once, although it is requested again without the graph */
			CHECK_EQ(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(5 << 20), 1).id, 0);
			CHECK_EQ(hr_last_status(), HR_OUT_OF_MEMORY);
			CHECK_EQ(fixture_stats(allocator).num_failed_allocs, 1);
		}
		if (i != 3) continue;
		hr_value large = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(3 << 20), 1); /* 12 MiB: more than is left beside the graph */
		CHECK(large.id);
		hr_value_release(hr_value_keep(large));
		CHECK_EQ(fixture_stats(allocator).num_failed_allocs, 0); /* the request was met */
	}
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* A function for whose graph there is no memory runs op by op. That the graph was not possible is no refusal; that an op is, is one. */
static void test_a_graph_without_memory_is_no_refusal(void)
{
	struct program program;
	hr_allocator allocator;
	hr_allocator_options options;
	card_begin();
	hr_allocator_options_init(&options);
	options.limit_bytes = 16 << 20;
	CHECK_STATUS(HR_OK, hr_allocator_create(fixture_device("GPU:0"), &options, &allocator));
	hr_session session = card_session("GPU:0", allocator);
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	hr_function function = function_of(&program, "large", add_large);
	hr_value kept = HR_NO_VALUE;
	for (int i = 0; i < 2; i++) {
		hr_value out, x = hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(4), 5);
		CHECK_STATUS(i ? HR_OUT_OF_MEMORY : HR_OK, hr_function_call(function, &x, 1, &out, 1));
		if (i) continue;
		hr_value_release(out);
		kept = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(7 << 19), 1)); /* 14 MiB */
		CHECK(kept.id);
	}
	CHECK_EQ(fixture_stats(allocator).num_failed_allocs, 1);
	hr_value_release(kept);
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- failures ---- */

/* Makes each call of the driver fail in turn, from the second call of a function on. What fails returns an error, and the steps after it succeed; what does
 * not is the same to the bit. */
static void test_every_call_of_the_driver_may_fail(void)
{
	if (card_is_real()) hr_test_skip("it needs the stand-in");
	hr_session session = open_card();
	struct trained should = run(session, "step", true);
	uint64_t failures = 0;
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	for (uint64_t nth = 1; nth < 400; nth += 1 + nth / 16) {
		struct program program;
		float loss, doubled[3 * WIDE];
		session = card_session("GPU:0", (hr_allocator){ 0 });
		CHECK_STATUS(HR_OK, hr_session_enter(session));
		hr_function function = function_of(&program, "step", train);
		CHECK_STATUS(HR_OK, step(function, 0, &loss, doubled));
		fake.fail_nth(nth, 2);
		bool failed = false, reached = false;
		for (int i = 1; i < 4; i++) {
			failed |= step(function, i, &loss, doubled) != HR_OK;
			if (!failed) CHECK_BYTES(&loss, &should.losses[i], sizeof loss);
		}
		reached = fake.failed()[0] != 0;
		fake.fail_nth(0, 0);
		failures += reached;
		CHECK_STATUS(HR_OK, step(function, 4, &loss, doubled));
		CHECK_BYTES(doubled, should.doubled[4], sizeof doubled);
		CHECK_STATUS(HR_OK, hr_function_destroy(function));
		CHECK_STATUS(HR_OK, hr_session_leave());
		CHECK_STATUS(HR_OK, hr_session_destroy(session));
		if (!reached) break;
	}
	CHECK_GT(failures, 20);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_two_threads_call_one_captured_function), T(test_steps_wait_for_nothing), T(test_a_captured_step_gives_the_bits_of_single_ops), T(test_replaced_and_returned_variables_run_op_by_op),
          T(test_a_value_that_was_read_keeps_its_contents), T(test_memory_of_graphs_is_given_back), T(test_a_graph_without_memory_is_no_refusal), T_WITHIN(test_every_call_of_the_driver_may_fail, 120))
