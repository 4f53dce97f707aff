/* test_function.c - functions: built once for each signature, with the same results as op by op, and no more memory. */
#include <sched.h>

#include "headroom_runtime.h"
#include "support_session.h"

struct body {
	int called;
	hr_optimizer optimizer;
};

/* One step of a small network; returns its loss. */
static hr_status train(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	struct body *body = context;
	CHECK_EQ(in_count, 2);
	CHECK_EQ(out_count, 1);
	body->called++;
	CHECK_STATUS(HR_OK, hr_variable_scope_push("model", HR_REUSE_OR_MAKE));
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value h = hr_dense("one", ins[0], 48, HR_RELU, 1);
	hr_value logits = hr_dense("two", h, 10, HR_LINEAR, 2);
	hr_value loss = hr_value_keep(hr_reduce_mean(hr_cross_entropy(logits, ins[1]), HR_ALL_AXES, false));
	hr_variable variables[8];
	size_t count = hr_trainable_variables(variables, 8);
	CHECK_EQ(count, 4);
	hr_value done = hr_minimize(&body->optimizer, loss, variables, count);
	CHECK_STATUS(HR_OK, hr_tape_end());
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	outs[0] = hr_scale(loss, 1, 0); /* temporary, so that it is returned without a copy */
	hr_value_release(loss);
	return done.id ? HR_OK : hr_last_status();
}

static int64_t train_some(bool eagerly, int steps, float *losses, int *called)
{
	struct body body = { 0 };
	hr_function function;
	hr_optimizer_init(&body.optimizer, HR_ADAM);
	hr_run_functions_eagerly(eagerly);
	open_session(0);
	CHECK_STATUS(HR_OK, hr_function_create("train", train, &body, &function));
	hr_value x = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(64, 32), 1));
	hr_value labels = hr_value_keep(hr_random_uniform(HR_DTYPE_INT32, HR_DIMS(64), 0, 10, 2));
	for (int i = 0; i < steps; i++) {
		hr_value loss;
		if (i == 1) CHECK_STATUS(HR_OK, hr_reset_memory_stats("GPU:0")); /* from here on nothing new is created */
		CHECK_STATUS(HR_OK, hr_function_call(function, (hr_value[]){ x, labels }, 2, &loss, 1));
		losses[i] = number_in(loss);
	}
	int64_t peak = stats_of().peak_bytes_in_use;
	*called = body.called;
	hr_value_release(x);
	hr_value_release(labels);
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_function_destroy(function));
	close_session();
	hr_run_functions_eagerly(false);
	return peak;
}

static void test_a_function_gives_the_same_bits_as_its_body(void)
{
	float eager[20], built[20];
	int called;
	int64_t eager_peak = train_some(true, 20, eager, &called);
	CHECK_EQ(called, 20);
	int64_t built_peak = train_some(false, 20, built, &called);
	CHECK_EQ(called, 1);
	for (int i = 0; i < 20; i++) CHECK_EQ(eager[i] == built[i], 1);
	CHECK(built[19] < built[0]);
	CHECK_LE(built_peak, eager_peak);
}

/* ---- signatures ---- */

static int squares;

static hr_status square(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context;
	(void)in_count;
	(void)out_count;
	squares++;
	outs[0] = hr_mul(ins[0], ins[0]); /* an input can be used more than once */
	return HR_OK;
}

static void test_another_signature_is_built_anew(void)
{
	hr_function function;
	hr_value out;
	float numbers[12];
	open_session(0);
	CHECK_STATUS(HR_OK, hr_function_create("square", square, NULL, &function));
	for (int round = 0; round < 2; round++) {
		for (int64_t n = 1; n <= 4; n++) {
			hr_value in = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(n), (double)n);
			CHECK_STATUS(HR_OK, hr_function_call(function, &in, 1, &out, 1));
			CHECK_STATUS(HR_OK, hr_value_fetch(out, numbers, (size_t)n * 4));
			CHECK_EQ(numbers[n - 1], (float)(n * n));
		}
	}
	CHECK_EQ(squares, 4);
	/* The least recently used ones are replaced. */
	for (int64_t n = 5; n <= 12; n++) {
		hr_value in = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(n), 1);
		CHECK_STATUS(HR_OK, hr_function_call(function, &in, 1, &out, 1));
		hr_value_release(out);
	}
	CHECK_EQ(squares, 12);
	hr_value in = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 3);
	CHECK_STATUS(HR_OK, hr_function_call(function, &in, 1, &out, 1));
	CHECK_EQ(number_in(out), 9.0f);
	CHECK_EQ(squares, 13);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_value_fetch(in, numbers, 4)); /* it was temporary, so it is consumed */
	/* In a graph, or in another function, the call becomes part of it. */
	hr_graph graph;
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value place = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(1)), node;
	CHECK_STATUS(HR_OK, hr_function_call(function, &place, 1, &node, 1));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	in = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 4);
	CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ place, in }, 1, &node, 1, &out, NULL, NULL));
	CHECK_EQ(number_in(out), 16.0f);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	close_session();
}

/* The promised limits at the same time: functions with all their signatures, and graphs. */
static void test_functions_and_graphs_up_to_their_limits(void)
{
	enum { FUNCTIONS = 64, SIGNATURES = 8, GRAPHS = 256 };
	hr_function functions[FUNCTIONS], another;
	hr_graph graphs[GRAPHS], one_more;
	open_session(0);
	squares = 0;
	for (int i = 0; i < GRAPHS; i++) CHECK_STATUS(HR_OK, hr_graph_create(&graphs[i]));
	CHECK_STATUS(HR_TOO_MANY, hr_graph_create(&one_more));
	CHECK_CONTAINS(hr_last_message(), "256 graphs");
	for (int i = 0; i < FUNCTIONS; i++) CHECK_STATUS(HR_OK, hr_function_create("square", square, NULL, &functions[i]));
	CHECK_STATUS(HR_TOO_MANY, hr_function_create("square", square, NULL, &another));
	for (int call = 0; call < 2 * FUNCTIONS * SIGNATURES; call++) {
		hr_value in = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(call % SIGNATURES + 1), 3), out;
		CHECK_STATUS(HR_OK, hr_function_call(functions[call / SIGNATURES % FUNCTIONS], &in, 1, &out, 1));
		hr_value_release(out);
	}
	CHECK_EQ(squares, FUNCTIONS * SIGNATURES); /* the second time all of them existed */
	CHECK_STATUS(HR_OK, hr_graph_destroy(graphs[7]));
	CHECK_STATUS(HR_OK, hr_graph_create(&one_more));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_graph_destroy(graphs[7])); /* its slot has another graph now */
	close_session();
}

/* An active tape records the ops of a function; outputs are values of their own. */
static hr_status twice(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context;
	(void)in_count;
	(void)out_count;
	outs[0] = outs[1] = hr_mul(ins[0], ins[0]);
	return HR_OK;
}

static void test_a_function_under_a_tape(void)
{
	for (int eagerly = 0; eagerly < 2; eagerly++) {
		hr_function function;
		hr_value outs[2], gradient;
		hr_run_functions_eagerly(eagerly);
		open_session(0);
		CHECK_STATUS(HR_OK, hr_function_create("twice", twice, NULL, &function));
		hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 3));
		CHECK_STATUS(HR_OK, hr_tape_begin());
		CHECK_STATUS(HR_OK, hr_function_call(function, &x, 1, outs, 2));
		hr_value_keep(outs[0]);
		CHECK_STATUS(HR_OK, hr_gradients(outs[0], &x, 1, &gradient));
		CHECK_STATUS(HR_OK, hr_tape_end());
		CHECK_EQ(number_in(gradient), 6.0f);
		CHECK_EQ(number_in(outs[0]), 9.0f);
		CHECK_EQ(number_in(outs[1]), 9.0f);
		hr_value_release(outs[0]);
		CHECK_STATUS(HR_OK, hr_function_call(function, &x, 1, outs, 2));
		CHECK_EQ(number_in(outs[0]), 9.0f);
		CHECK_EQ(number_in(outs[1]), 9.0f);
		/* An invalid call consumes temporary inputs, and sets no outputs. */
		hr_value loose = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 3);
		CHECK_STATUS(HR_INVALID_HANDLE, hr_function_call((hr_function){ 999 }, &loose, 1, outs, 2));
		CHECK_EQ(outs[0].id + outs[1].id, 0);
		hr_value_release(x);
		CHECK_STATUS(HR_OK, hr_function_destroy(function));
		close_session();
	}
	hr_run_functions_eagerly(false);
}

/* ---- errors ---- */

static hr_value outside;
static hr_function itself;

static hr_status bad(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)in_count;
	(void)out_count;
	switch (*(int *)context) {
	case 0: outs[0] = hr_add(ins[0], outside); break;
	case 1: outs[0] = hr_matmul(ins[0], ins[0]); break;
	case 2: break;
	case 3: return hr_function_call(itself, ins, 1, outs, 1);
	}
	return HR_OK;
}

static void test_errors_in_a_function(void)
{
	static const char *const parts[] = { "outside of the graph", "[3]", "output 0 was not set", "calls itself" };
	int which;
	hr_value out;
	open_session(0);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_function_create("", bad, NULL, &itself));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_function_create("bad", NULL, NULL, &itself));
	CHECK_STATUS(HR_OK, hr_function_create("bad", bad, &which, &itself));
	outside = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(3), 1));
	for (which = 0; which < 4; which++) {
		hr_value in = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(3), 1);
		hr_status status = hr_function_call(itself, &in, 1, &out, 1);
		CHECK(status == (which == 3 ? HR_IN_USE : HR_INVALID_ARGUMENT));
		CHECK_EQ(out.id, 0);
		CHECK_CONTAINS(hr_last_message(), parts[which]);
		CHECK_CONTAINS(hr_last_message(), "function \"bad\"");
	}
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_function_call(itself, NULL, 2, &out, 1));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_function_call((hr_function){ 99 }, &outside, 1, &out, 1));
	hr_value_release(outside);
	CHECK_STATUS(HR_OK, hr_function_destroy(itself));
	close_session();
}

/* ---- concurrency ---- */

static _Atomic(bool) over;

/* One thread calls a function, another opens and closes sessions: closing discards the graphs built for that session, and no
 * others. */
static void call_or_close(void *argument, unsigned index)
{
	hr_session_options options;
	hr_session mine;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	while (index && !over) {
		CHECK_STATUS(HR_OK, hr_session_create(&options, &mine));
		CHECK_STATUS(HR_OK, hr_session_destroy(mine));
	}
	if (index) return;
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	for (uint64_t i = 0; i < hr_test_scaled(10000); i++) {
		hr_value in = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 3), out;
		CHECK_STATUS(HR_OK, hr_function_call(*(hr_function *)argument, &in, 1, &out, 1));
		hr_value_release(out);
	}
	CHECK_STATUS(HR_OK, hr_session_leave());
	over = true;
}

static void test_closing_a_session_does_not_disturb_the_functions_of_others(void)
{
	hr_function function;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_function_create("square", square, NULL, &function));
	hr_test_threads(2, call_or_close, &function);
	CHECK_EQ(squares, 1);
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	close_session();
}

/* Each thread is in a session of its own, and all call one function. [argument] is the body of each thread. */
static hr_function shared;

static void in_own_session(void *argument, unsigned index)
{
	hr_session_options options;
	hr_session mine;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &mine));
	CHECK_STATUS(HR_OK, hr_session_enter(mine));
	(*(void (**)(unsigned))argument)(index);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(mine));
}

static void call_shared(unsigned index)
{
	for (int i = 0; i < 60; i++) {
		hr_value in = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), index + 1), out;
		CHECK_STATUS(HR_OK, hr_function_call(shared, &in, 1, &out, 1));
		CHECK_EQ(number_in(out), (float)((index + 1) * (index + 1)));
	}
}

/* Two sessions keep their graphs; with twelve, more than a function keeps, some are replaced while they run. */
static void test_sessions_call_a_function_at_the_same_time(void)
{
	static const unsigned counts[] = { 2, 12, 2 };
	void (*calls)(unsigned) = call_shared;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_function_create("square", square, NULL, &shared));
	for (int i = 0; i < 3; i++) {
		hr_run_functions_eagerly(i == 2);
		squares = 0;
		hr_test_threads(counts[i], in_own_session, &calls);
		if (i == 0) CHECK_EQ(squares, 2);
		if (i == 2) CHECK_EQ(squares, 120);
	}
	hr_run_functions_eagerly(false);
	CHECK_STATUS(HR_OK, hr_function_destroy(shared));
	close_session();
}

/* Two functions that call each other, started by one thread each: without detection they would deadlock. */
static hr_function crossed[2];
static _Atomic(int) arrived, refused;
static _Thread_local int depth;

static hr_status cross(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	int which = *(int *)context;
	hr_status status = HR_OK;
	if (depth++) outs[0] = hr_neg(ins[0]);
	else {
		arrived++;
		while (arrived < 2) sched_yield();
		status = hr_function_call(crossed[!which], ins, in_count, outs, out_count);
	}
	depth--;
	return status;
}

static void call_crossed(unsigned index)
{
	hr_value in = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 3), out;
	hr_status status = hr_function_call(crossed[index], &in, 1, &out, 1);
	refused += status == HR_IN_USE;
	if (status) return;
	CHECK_EQ(number_in(out), -3.0f);
}

static void test_functions_that_wait_for_each_other_are_refused(void)
{
	static int which[] = { 0, 1 };
	void (*calls)(unsigned) = call_crossed;
	open_session(0);
	for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr_function_create("cross", cross, &which[i], &crossed[i]));
	hr_test_threads(2, in_own_session, &calls);
	CHECK_EQ(refused, 1);
	for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr_function_destroy(crossed[i]));
	close_session();
}

/* Its memory is needed until the body returns. */
static hr_status destroy_itself(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context;
	(void)in_count;
	(void)out_count;
	CHECK_STATUS(HR_IN_USE, hr_function_destroy(itself));
	outs[0] = hr_neg(ins[0]);
	return HR_OK;
}

static void test_a_function_that_is_called_is_not_destroyed(void)
{
	open_session(0);
	CHECK_STATUS(HR_OK, hr_function_create("destroy", destroy_itself, NULL, &itself));
	hr_value in = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 3), out;
	CHECK_STATUS(HR_OK, hr_function_call(itself, &in, 1, &out, 1));
	CHECK_EQ(number_in(out), -3.0f);
	CHECK_STATUS(HR_OK, hr_function_destroy(itself));
	close_session();
}

/* exp(-x): two ops, the second in the memory of the first. */
static hr_status decay(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context, (void)in_count, (void)out_count;
	outs[0] = hr_exp(hr_neg(ins[0]));
	return outs[0].id ? HR_OK : hr_last_status();
}

/* 1000 floats are 4000 bytes, 4096 with rounding: the input exists, neg allocates, exp reuses that. */
static void test_metadata_of_a_call(void)
{
	hr_function function;
	hr_run_options options;
	hr_run_metadata metadata;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_function_create("decay", decay, NULL, &function));
	hr_run_options_init(&options);
	hr_run_metadata_init(&metadata);
	options.trace = HR_RUN_TRACE_OPS;
	hr_value in = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1000), 0)), out;
	for (int round = 0; round < 2; round++) { /* first it is built, then reused */
		CHECK_STATUS(HR_OK, hr_function_call_with_options(function, &in, 1, &out, 1, &options, &metadata));
		CHECK_EQ(metadata.op_count, 2);
		CHECK_STR(hr_name_text(metadata.ops[0].op), "neg");
		CHECK_STR(hr_name_text(metadata.ops[0].scope), "decay");
		CHECK_EQ(metadata.ops[0].allocated_bytes, 4096);
		CHECK_STR(hr_name_text(metadata.ops[1].op), "exp");
		CHECK_EQ(metadata.ops[1].allocations, 0);
		CHECK_EQ(metadata.peak_bytes, 8192);
		CHECK_GT(metadata.ns, 0);
		hr_value_release(out);
	}
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_function_call_with_options(function, &in, 1, &out, 1, &options, NULL));
	CHECK_STR(hr_last_message(), "hr_function_call_with_options: a traced run needs metadata");
	/* Op by op there is no run to trace; the rest of the metadata is set. */
	hr_run_functions_eagerly(true);
	CHECK_STATUS(HR_UNSUPPORTED, hr_function_call_with_options(function, &in, 1, &out, 1, &options, &metadata));
	CHECK_CONTAINS(hr_last_message(), "function \"decay\" runs op by op");
	options.trace = HR_RUN_TRACE_NONE;
	CHECK_STATUS(HR_OK, hr_function_call_with_options(function, &in, 1, &out, 1, &options, &metadata));
	CHECK_EQ(metadata.op_count, 0);
	CHECK_GT(metadata.ns, 0);
	hr_value_release(out);
	hr_run_functions_eagerly(false);
	/* In a graph the call does not run. */
	hr_graph graph;
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value place = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(1000));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_function_call_with_options(function, &place, 1, &out, 1, &options, NULL));
	CHECK_CONTAINS(hr_last_message(), "give options and metadata to the run of that");
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	hr_run_metadata_free(&metadata);
	hr_value_release(in);
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	close_session();
}

/* The log of a call that runs out of memory, built and op by op; the allocator's own options are unchanged. */
static void test_the_log_of_a_call_that_ran_out_of_memory(void)
{
	hr_function function;
	hr_run_options options;
	hr_run_metadata metadata;
	hr_oom_options before = { .struct_size = sizeof before }, after = before;
	open_session(8 << 20);
	CHECK_STATUS(HR_OK, hr_allocator_get_oom_options(allocator, &before));
	CHECK_STATUS(HR_OK, hr_function_create("decay", decay, NULL, &function));
	hr_run_options_init(&options);
	hr_run_metadata_init(&metadata);
	options.report_allocations_on_oom = true;
	hr_value in = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1024, 1280), 0)), out; /* 5 MiB: no room for a second one */
	for (int eagerly = 0; eagerly < 2; eagerly++) {
		hr_run_functions_eagerly(eagerly);
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr_function_call_with_options(function, &in, 1, &out, 1, &options, &metadata));
		CHECK(metadata.allocation_log);
		CHECK_CONTAINS(metadata.allocation_log, "\"op_name\":\"neg\"");
		CHECK_CONTAINS(metadata.allocation_log, "\"shape\":[1024,1280]");
		CHECK_STATUS(HR_OK, hr_allocator_get_oom_options(allocator, &after));
		CHECK_EQ(after.report_allocations_on_oom, before.report_allocations_on_oom);
	}
	hr_run_functions_eagerly(false);
	hr_run_metadata_free(&metadata);
	hr_value_release(in);
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	close_session();
}

TEST_MAIN(T(test_a_function_gives_the_same_bits_as_its_body), T(test_another_signature_is_built_anew), T(test_a_function_under_a_tape), T(test_metadata_of_a_call),
          T(test_the_log_of_a_call_that_ran_out_of_memory), T(test_errors_in_a_function),
          T(test_functions_and_graphs_up_to_their_limits),
          T(test_closing_a_session_does_not_disturb_the_functions_of_others), T(test_sessions_call_a_function_at_the_same_time),
          T(test_functions_that_wait_for_each_other_are_refused), T(test_a_function_that_is_called_is_not_destroyed))
