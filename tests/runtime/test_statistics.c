/* test_statistics.c - layers with variables that are not trained: the running statistics of batch norm, and the calls of dropout. They change
 * in the same way outside of graphs, in functions and in checkpoints. */
#include <math.h>

#include "headroom_runtime.h"
#include "support_session.h"

#define IMAGES 16
#define CHANNELS 6
#define STEPS 5

static bool training = true, checkpointed;

/* A step of a network with both layers; returns its loss. */
static hr_status body(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	const hr_optimizer *optimizer = context;
	hr_variable variables[8];
	(void)in_count, (void)out_count;
	CHECK_STATUS(HR_OK, hr_variable_scope_push("model", HR_REUSE_OR_MAKE));
	CHECK_STATUS(HR_OK, hr_tape_begin());
	if (checkpointed) hr_checkpoint_begin();
	hr_value h = hr_conv_layer("conv", ins[0], CHANNELS, 3, 1, 1, HR_LINEAR, 1);
	h = hr_dropout_layer("drop", hr_relu(hr_batch_norm_layer("norm", h, 0.25, training)), 0.5, 7, training);
	if (checkpointed) hr_checkpoint_end();
	hr_value loss = hr_value_keep(hr_reduce_mean(hr_mul(h, hr_full(HR_DTYPE_FLOAT32, HR_SCALAR, 3)), HR_ALL_AXES, false));
	CHECK_EQ(hr_trainable_variables(variables, 8), 4); /* not the statistics */
	hr_value done = training ? hr_minimize(optimizer, loss, variables, 4) : HR_DONE;
	CHECK_STATUS(HR_OK, hr_tape_end());
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	outs[0] = hr_scale(loss, 1, 0);
	hr_value_release(loss);
	return done.id ? HR_OK : hr_last_status();
}

struct outcome {
	float losses[STEPS], mean[CHANNELS], variance[CHANNELS];
	int64_t calls;
};

static void fetch_variable(const char *name, hr_dtype dtype, int64_t count, void *out, size_t bytes)
{
	hr_variable variable = count ? hr_get_variable(name, dtype, HR_DIMS(count), HR_ZEROS) : hr_get_variable(name, dtype, HR_SCALAR, HR_ZEROS);
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_variable_read(variable), out, bytes));
}

static struct outcome train(bool eagerly)
{
	struct outcome outcome;
	memset(&outcome, 0, sizeof outcome);
	hr_function function;
	hr_optimizer adam;
	hr_optimizer_init(&adam, HR_ADAM);
	hr_run_functions_eagerly(eagerly);
	open_session(0);
	CHECK_STATUS(HR_OK, hr_function_create("body", body, &adam, &function));
	hr_value x = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(IMAGES, 3, 8, 8), 1));
	for (int i = 0; i < STEPS; i++) {
		hr_value loss;
		CHECK_STATUS(HR_OK, hr_function_call(function, &x, 1, &loss, 1));
		outcome.losses[i] = number_in(loss);
	}
	hr_value_release(x);
	CHECK_STATUS(HR_OK, hr_function_destroy(function));
	CHECK_STATUS(HR_OK, hr_variable_scope_push("model", HR_REUSE_ONLY));
	fetch_variable("norm/mean", HR_DTYPE_FLOAT32, CHANNELS, outcome.mean, sizeof outcome.mean);
	fetch_variable("norm/variance", HR_DTYPE_FLOAT32, CHANNELS, outcome.variance, sizeof outcome.variance);
	fetch_variable("drop/calls", HR_DTYPE_INT64, 0, &outcome.calls, sizeof outcome.calls);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	close_session();
	hr_run_functions_eagerly(false);
	return outcome;
}

static void test_statistics_are_the_same_however_the_layers_run(void)
{
	struct outcome eager = train(true);
	CHECK_EQ(eager.calls, STEPS);
	for (int run = 1; run < 4; run++) {
		checkpointed = run & 2;
		struct outcome other = train(!(run & 1));
		CHECK_BYTES(&other, &eager, sizeof eager);
	}
	checkpointed = false;
}

/* Each step drops other elements, so the loss of the same batch changes without training, too. */
static hr_status only_drop(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context, (void)in_count, (void)out_count;
	CHECK_STATUS(HR_OK, hr_variable_scope_push("model", HR_REUSE_OR_MAKE));
	outs[0] = hr_reduce_sum(hr_dropout_layer("drop", ins[0], 0.5, 1, training), HR_ALL_AXES, false);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	return HR_OK;
}

static void test_each_call_drops_other_elements(void)
{
	float sums[2][3];
	for (int eagerly = 0; eagerly < 2; eagerly++) {
		hr_function function;
		hr_run_functions_eagerly(eagerly);
		open_session(0);
		CHECK_STATUS(HR_OK, hr_function_create("drop", only_drop, NULL, &function));
		hr_value x = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(1000), 1));
		for (int i = 0; i < 3; i++) {
			hr_value sum;
			CHECK_STATUS(HR_OK, hr_function_call(function, &x, 1, &sum, 1));
			sums[eagerly][i] = number_in(sum);
		}
		CHECK(sums[eagerly][0] != sums[eagerly][1] && sums[eagerly][1] != sums[eagerly][2]);
		hr_value_release(x);
		CHECK_STATUS(HR_OK, hr_function_destroy(function));
		close_session();
	}
	hr_run_functions_eagerly(false);
	CHECK_BYTES(sums[0], sums[1], sizeof sums[0]);
}

/* A run of a graph that fetches the result counts, though it does not fetch the assignment. */
static void test_a_run_of_a_graph_counts_a_call(void)
{
	hr_graph graph;
	float found[2];
	hr_value out;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value y = hr_reduce_sum(hr_dropout_layer("drop", hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(1000), 1), 0.5, 1, true), HR_ALL_AXES, false);
	hr_value ready = hr_global_variables_initializer();
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &ready, 1, &out, NULL, NULL));
	hr_value_release(out);
	for (int i = 0; i < 2; i++) {
		CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &y, 1, &out, NULL, NULL));
		found[i] = number_in(out);
	}
	CHECK(found[0] != found[1]);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

/* Computed by hand: channel 0 is 1, 3, 5, 7 with mean 4, variance 5, of a sample 20/3; channel 1 is four times 2. */
static void test_running_statistics_move_by_the_momentum(void)
{
	const float data[] = { 1, 3, 2, 2, 5, 7, 2, 2 };
	float mean[2], variance[2], y[8];
	open_session(0);
	CHECK_STATUS(HR_OK, hr_variable_scope_push("model", HR_REUSE_OR_MAKE));
	for (int i = 0; i < 2; i++) hr_value_release(hr_batch_norm_layer("norm", hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(2, 2, 2), data), 0.5, true));
	hr_value fixed = hr_batch_norm_layer("norm", hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(2, 2, 2), data), 0.5, false);
	CHECK_STATUS(HR_OK, hr_value_fetch(fixed, y, sizeof y));
	fetch_variable("norm/mean", HR_DTYPE_FLOAT32, 2, mean, sizeof mean);
	fetch_variable("norm/variance", HR_DTYPE_FLOAT32, 2, variance, sizeof variance);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	const double means[] = { 3, 1.5 }, variances[] = { 0.25 + 0.75 * 20 / 3, 0.25 };
	for (int c = 0; c < 2; c++) {
		CHECK(fabs((double)mean[c] - means[c]) < 1e-5 && fabs((double)variance[c] - variances[c]) < 1e-5);
		for (int i = 0; i < 4; i++) {
			int at = i / 2 * 4 + c * 2 + i % 2;
			CHECK(fabs((double)y[at] - ((double)data[at] - means[c]) / sqrt(variances[c] + 1e-5)) < 1e-5);
		}
	}
	close_session();
}

static void check_refused(hr_value out, const char *part)
{
	CHECK_EQ(out.id, 0);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_last_status());
	CHECK_CONTAINS(hr_last_message(), part);
}

static hr_value some(int64_t rows)
{
	return hr_full(HR_DTYPE_FLOAT32, HR_DIMS(rows, 3), 1);
}

static void test_layers_refuse_what_does_not_fit(void)
{
	open_session(0);
	CHECK_STATUS(HR_OK, hr_variable_scope_push("model", HR_REUSE_OR_MAKE));
	check_refused(hr_batch_norm_layer("norm", some(2), 1.5, true), "layer \"norm\" (batch norm): the momentum is 1.5");
	check_refused(hr_batch_norm_layer("norm", hr_full(HR_DTYPE_FLOAT32, HR_DIMS(2), 1), 0.1, true), "needs 2 to 8 dimensions");
	check_refused(hr_batch_norm_layer("norm", hr_full(HR_DTYPE_INT32, HR_DIMS(2, 3), 1), 0.1, true), "int32");
	check_refused(hr_dropout_layer("drop", some(2), -1, 1, true), "the rate is -1");
	check_refused(hr_dropout_layer("drop", HR_NO_VALUE, 0.5, 1, true), "the rate is -1"); /* the earlier message stays */
	check_refused(hr_dropout_layer("drop", HR_NO_VALUE, 0.5, 1, false), "the rate is -1");
	hr_value_release(hr_batch_norm_layer("norm", some(2), 0.1, true));
	check_refused(hr_batch_norm_layer("norm", hr_full(HR_DTYPE_FLOAT32, HR_DIMS(2, 4), 1), 0.1, true), "[4]");
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	close_session();
}

TEST_MAIN(T(test_statistics_are_the_same_however_the_layers_run), T(test_each_call_drops_other_elements), T(test_a_run_of_a_graph_counts_a_call),
          T(test_running_statistics_move_by_the_momentum), T(test_layers_refuse_what_does_not_fit))
