/* test_checkpoint.c - checkpointed blocks, which are recomputed: bit-identical gradients with less memory, outside of graphs and in
 * them. */
#include "headroom_runtime.h"
#include "support_session.h"

#define WIDTH 64
#define ROWS 256
#define BLOCKS 6

/* Several layers in each block, so that values between them need not be kept. */
static hr_value network(hr_value x, bool checkpointed)
{
	for (int i = 0; i < BLOCKS; i++) {
		char name[8];
		snprintf(name, sizeof name, "b%d", i);
		CHECK_STATUS(HR_OK, hr_variable_scope_push(name, HR_REUSE_AS_AROUND));
		if (checkpointed) CHECK_STATUS(HR_OK, hr_checkpoint_begin());
		hr_value kept = hr_value_keep(x);
		hr_value h = hr_dense("a", kept, WIDTH, HR_GELU, (uint64_t)i * 10);
		h = hr_dense("b", hr_tanh(h), WIDTH, HR_GELU, (uint64_t)i * 10 + 1);
		x = hr_add(kept, hr_mul(hr_exp(hr_scale(h, 0.1, 0)), hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(ROWS, WIDTH), (uint64_t)i)));
		hr_value_release(kept);
		if (checkpointed) CHECK_STATUS(HR_OK, hr_checkpoint_end());
		CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	}
	return hr_reduce_mean(hr_mul(x, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 0.5)), HR_ALL_AXES, false);
}

struct outcome {
	float loss, gradients[BLOCKS * 4][WIDTH * WIDTH];
	int64_t peak;
};

static void fetch_all(const hr_value *gradients, size_t count, struct outcome *out)
{
	for (size_t i = 0; i < count; i++)
		CHECK_STATUS(HR_OK, hr_value_fetch(gradients[i], out->gradients[i], (size_t)hr_value_count(gradients[i]) * sizeof(float)));
}

static void run_eagerly(bool checkpointed, struct outcome *out)
{
	hr_variable variables[BLOCKS * 4];
	hr_value gradients[BLOCKS * 4];
	open_session(0);
	CHECK_STATUS(HR_OK, hr_variable_scope_push("net", HR_REUSE_OR_MAKE));
	hr_value_release(network(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(ROWS, WIDTH), 0.3), false)); /* creates the variables */
	size_t count = hr_trainable_variables(variables, BLOCKS * 4);
	CHECK_EQ(count, BLOCKS * 4);
	CHECK_STATUS(HR_OK, hr_reset_memory_stats("GPU:0"));
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value loss = hr_value_keep(network(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(ROWS, WIDTH), 0.3), checkpointed));
	CHECK_STATUS(HR_OK, hr_variable_gradients(loss, variables, count, gradients));
	CHECK_STATUS(HR_OK, hr_tape_end());
	out->peak = stats_of().peak_bytes_in_use;
	out->loss = number_in(loss);
	fetch_all(gradients, count, out);
	hr_value_release(loss);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	close_session();
}

static void run_in_graph(bool checkpointed, struct outcome *out)
{
	hr_graph graph;
	hr_variable variables[BLOCKS * 4];
	hr_value wanted[BLOCKS * 4 + 1], results[BLOCKS * 4 + 1], started;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	wanted[0] = network(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(ROWS, WIDTH), 0.3), checkpointed);
	size_t count = hr_trainable_variables(variables, BLOCKS * 4);
	CHECK_EQ(count, BLOCKS * 4);
	CHECK_STATUS(HR_OK, hr_variable_gradients(wanted[0], variables, count, wanted + 1));
	hr_value start = hr_global_variables_initializer();
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &start, 1, &started, NULL, NULL));
	hr_value_release(started);
	CHECK_STATUS(HR_OK, hr_reset_memory_stats("GPU:0"));
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, wanted, count + 1, results, NULL, NULL));
	out->peak = stats_of().peak_bytes_in_use;
	out->loss = number_in(results[0]);
	fetch_all(results + 1, count, out);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

static void test_blocks_are_computed_again(void)
{
	static struct outcome eager[2], graph[2];
	for (int i = 0; i < 2; i++) {
		memset(&eager[i], 0, sizeof eager[i]);
		run_eagerly(i, &eager[i]);
		run_in_graph(i, &graph[i]);
	}
	printf("# peak: kept %lld, computed again %lld; in a graph %lld, %lld\n", (long long)eager[0].peak, (long long)eager[1].peak,
	       (long long)graph[0].peak, (long long)graph[1].peak);
	CHECK(eager[0].loss != 0 && eager[0].gradients[0][5] != 0);
	struct outcome *others[] = { &eager[1], &graph[0], &graph[1] };
	for (int k = 0; k < 3; k++) {
		CHECK_EQ(others[k]->loss == eager[0].loss, 1);
		CHECK_EQ(memcmp(others[k]->gradients, eager[0].gradients, sizeof eager[0].gradients), 0);
	}
	CHECK_LE(eager[1].peak * 10, eager[0].peak * 7);
	CHECK_LE(graph[1].peak, eager[1].peak);
	CHECK_LE(graph[0].peak, eager[0].peak);
}

static void test_blocks_do_not_nest(void)
{
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_checkpoint_end());
	CHECK_STATUS(HR_OK, hr_checkpoint_begin());
	CHECK_STATUS(HR_IN_USE, hr_checkpoint_begin());
	CHECK_STATUS(HR_OK, hr_checkpoint_end());
}

/* A tape is used once, and releases what it kept during the backward pass. */
static void test_a_tape_serves_once(void)
{
	open_session(0);
	hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(4), 2)), gradient;
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value y = hr_value_keep(hr_exp(x));
	CHECK_STATUS(HR_OK, hr_gradients(y, &x, 1, &gradient));
	hr_value_release(gradient);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(y, &x, 1, &gradient));
	CHECK_CONTAINS(hr_last_message(), "used for gradients already");
	CHECK_STATUS(HR_OK, hr_tape_end());
	hr_value_release(x);
	hr_value_release(y);
	close_session();
}

/* A constant in a block: its data belong to the caller, which may change them. */
static void test_a_constant_in_a_block_is_kept(void)
{
	float data[4] = { 1, 2, 3, 4 }, found[4];
	open_session(0);
	hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(4), 0)), gradient;
	CHECK_STATUS(HR_OK, hr_tape_begin());
	CHECK_STATUS(HR_OK, hr_checkpoint_begin());
	hr_value y = hr_value_keep(hr_mul(hr_exp(x), hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(4), data)));
	CHECK_STATUS(HR_OK, hr_checkpoint_end());
	memset(data, 0, sizeof data);
	CHECK_STATUS(HR_OK, hr_gradients(y, &x, 1, &gradient));
	CHECK_STATUS(HR_OK, hr_tape_end());
	CHECK_STATUS(HR_OK, hr_value_fetch(gradient, found, sizeof found));
	for (int i = 0; i < 4; i++) CHECK_EQ(found[i], (float)(i + 1));
	hr_value_release(x);
	hr_value_release(y);
	close_session();
}

/* hr_shutdown ends an active tape, and no old handle refers to a new object. */
static void test_nothing_exists_after_shutdown(void)
{
	float number;
	open_session(0);
	hr_value old = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 1));
	CHECK_STATUS(HR_OK, hr_tape_begin());
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_shutdown());
	open_session(0);
	hr_value new = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1), 2));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_value_fetch(old, &number, sizeof number));
	CHECK_STATUS(HR_OK, hr_tape_begin());
	CHECK_STATUS(HR_OK, hr_tape_end());
	CHECK_EQ(number_in(new), 2.0f);
	hr_value_release(new);
	close_session();
}

TEST_MAIN(T(test_a_constant_in_a_block_is_kept), T(test_nothing_exists_after_shutdown), T(test_blocks_are_computed_again), T(test_blocks_do_not_nest), T(test_a_tape_serves_once))
