/* test_graph.c - op calls that become nodes: nothing is allocated before a run, memory is freed at the last use, and results equal
 * those of the same calls outside of a graph. */
#include <sched.h>

#include "headroom.h"
#include "headroom_runtime.h"
#include "test.h"

static hr_session session;
static hr_allocator allocator;
static hr_graph graph;

static void set_up(void)
{
	hr_session_options options;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static hr_stats stats_of(void)
{
	hr_stats stats;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	return stats;
}

static void test_feed_and_fetch(void)
{
	int64_t sum[3];
	set_up();
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value a = hr_placeholder(HR_DTYPE_INT64, HR_DIMS(3)), b = hr_placeholder(HR_DTYPE_INT64, HR_DIMS(3)), c = hr_add(a, b);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_EQ(stats_of().num_allocs, 0);
	hr_feed feeds[] = { { a, hr_constant(HR_DTYPE_INT64, HR_DIMS(3), (int64_t[]){ 1, 2, 3 }) },
		                { b, hr_constant(HR_DTYPE_INT64, HR_DIMS(3), (int64_t[]){ 4, 5, 6 }) } };
	hr_value result;
	CHECK_STATUS(HR_OK, hr_session_run(session, feeds, 2, &c, 1, &result, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_value_fetch(result, sum, sizeof sum));
	for (int k = 0; k < 3; k++) CHECK_EQ(sum[k], 5 + 2 * k);
	CHECK_EQ(stats_of().bytes_in_use, 0);
	tear_down();
}

/* The run consumes a temporary value: its memory is freed or reused at its last use, not only at the end of the run. */
static void test_the_memory_of_a_temporary_feed_is_reused(void)
{
	float first;
	set_up();
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value a = hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(1024)), b = hr_exp(a), both = hr_add(b, hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(1)));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_value x = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1024), 0), kept = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1024), 0)), out;
	CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ a, x }, 1, &b, 1, &out, NULL, NULL));
	CHECK_EQ(stats_of().num_allocs, 2);
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_slice(out, 0, 0, 1), &first, sizeof first));
	CHECK_EQ(first, 1.0f);
	CHECK_EQ(stats_of().bytes_in_use, 4096);
	CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ a, kept }, 1, &b, 1, &out, NULL, NULL));
	CHECK_EQ(stats_of().num_allocs, 3); /* a kept value is not overwritten */
	hr_value_release(out);
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_slice(kept, 0, 0, 1), &first, sizeof first));
	CHECK_EQ(first, 0.0f);
	/* It is consumed whether the run succeeds or not. */
	x = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1024), 0);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, &(hr_feed){ a, x }, 1, &both, 1, &out, NULL, NULL));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_value_fetch(x, &first, sizeof first));
	CHECK_EQ(stats_of().bytes_in_use, 4096);
	hr_value_release(kept);
	tear_down();
}

/* Only nodes that the fetch needs run; a chain uses one buffer, in place. */
static void test_ops_that_are_not_fetched_do_not_run(void)
{
	set_up();
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value x = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1024), 1), y = hr_exp(hr_neg(hr_relu(x)));
	for (int i = 0; i < 100; i++) hr_exp(x);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_value result;
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &y, 1, &result, NULL, NULL));
	CHECK_EQ(stats_of().num_allocs, 1);
	CHECK_EQ(stats_of().peak_bytes_in_use, 4096);
	hr_value_release(result);
	CHECK_EQ(stats_of().bytes_in_use, 0);
	tear_down();
}

/* A small network with its gradients: in a graph as outside, to the bit, and with no more memory. */
static hr_value loss_of(hr_value x, hr_value w1, hr_value w2, hr_value labels)
{
	return hr_reduce_mean(hr_cross_entropy(hr_matmul(hr_relu(hr_matmul(x, w1)), w2), labels), HR_ALL_AXES, false);
}

static void test_graph_and_eager_give_the_same_bits(void)
{
	static float eager[2][32 * 64], deferred[2][32 * 64];
	set_up();
	hr_value x = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(16, 32), 1)), w1 = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(32, 64), 2));
	hr_value w2 = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(64, 10), 3));
	hr_value labels = hr_value_keep(hr_random_uniform(HR_DTYPE_INT32, HR_DIMS(16), 0, 10, 4));
	hr_value by[2] = { w1, w2 }, gradients[2];
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value loss = hr_value_keep(loss_of(x, w1, w2, labels));
	CHECK_STATUS(HR_OK, hr_gradients(loss, by, 2, gradients));
	CHECK_STATUS(HR_OK, hr_tape_end());
	hr_value_release(loss);
	CHECK_STATUS(HR_OK, hr_value_fetch(gradients[0], eager[0], 32 * 64 * 4));
	CHECK_STATUS(HR_OK, hr_value_fetch(gradients[1], eager[1], 64 * 10 * 4));
	int64_t peak = stats_of().peak_bytes_in_use;

	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value p[4] = { hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(16, 32)), hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(32, 64)),
		              hr_placeholder(HR_DTYPE_FLOAT32, HR_DIMS(64, 10)), hr_placeholder(HR_DTYPE_INT32, HR_DIMS(16)) };
	hr_value wanted[2];
	CHECK_STATUS(HR_OK, hr_gradients(loss_of(p[0], p[1], p[2], p[3]), p + 1, 2, wanted));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_feed feeds[] = { { p[0], x }, { p[1], w1 }, { p[2], w2 }, { p[3], labels } };
	CHECK_STATUS(HR_OK, hr_reset_memory_stats("GPU:0"));
	CHECK_STATUS(HR_OK, hr_session_run(session, feeds, 4, wanted, 2, gradients, NULL, NULL));
	CHECK_LE(stats_of().peak_bytes_in_use, peak);
	CHECK_STATUS(HR_OK, hr_value_fetch(gradients[0], deferred[0], 32 * 64 * 4));
	CHECK_STATUS(HR_OK, hr_value_fetch(gradients[1], deferred[1], 64 * 10 * 4));
	for (int i = 0; i < 32 * 64; i++) CHECK_EQ(eager[0][i] == deferred[0][i], 1);
	for (int i = 0; i < 64 * 10; i++) CHECK_EQ(eager[1][i] == deferred[1][i], 1);
	hr_value all[] = { x, w1, w2, labels };
	for (int i = 0; i < 4; i++) hr_value_release(all[i]);
	CHECK_EQ(stats_of().bytes_in_use, 0);
	tear_down();
}

/* ---- concurrency ---- */

static hr_value negated;
static _Atomic(bool) built;

/* One thread adds nodes, so that the node array is reallocated again and again; another tries to run the graph all the time. */
static void build_or_run(void *argument, unsigned index)
{
	hr_value out;
	(void)argument;
	if (!index) {
		while (hr_graph_enter(graph) == HR_IN_USE) sched_yield();
		for (int i = 0; i < 3000; i++) CHECK(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(2), i).id);
		CHECK_STATUS(HR_OK, hr_graph_leave());
		built = true;
	}
	while (index && !built) {
		hr_status status = hr_session_run(session, NULL, 0, &negated, 1, &out, NULL, NULL);
		if (!status) hr_value_release(out);
		else CHECK_STATUS(HR_IN_USE, status);
		sched_yield();
	}
}

static void run_refused(void *argument, unsigned index)
{
	(void)argument;
	(void)index;
	hr_value out = { 1 };
	CHECK_STATUS(HR_IN_USE, hr_session_run(session, NULL, 0, &negated, 1, &out, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "another thread is building the graph");
	CHECK_EQ(out.id, 0);
}

static void test_a_graph_does_not_run_while_another_thread_builds_it(void)
{
	hr_value out;
	set_up();
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	negated = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(2), 1);
	for (int i = 0; i < 50; i++) negated = hr_neg(negated);
	hr_test_threads(1, run_refused, NULL);
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &negated, 1, &out, NULL, NULL)); /* its own thread may */
	hr_value_release(out);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	hr_test_threads(2, build_or_run, NULL);
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &negated, 1, &out, NULL, NULL));
	hr_value_release(out);
	tear_down();
}

/* ---- shutdown ---- */

static pthread_barrier_t meeting;

/* The second thread is in the graph while the first shuts the library down. */
static void be_in_it_or_shut_down(void *argument, unsigned index)
{
	(void)argument;
	if (index) CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	pthread_barrier_wait(&meeting);
	if (!index) CHECK_STATUS(HR_OK, hr_shutdown());
	pthread_barrier_wait(&meeting);
	if (!index) return;
	CHECK_EQ(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(3), 1).id, 0);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_last_status());
	CHECK_CONTAINS(hr_last_message(), "hr_graph_leave");
	CHECK_EQ(hr_neg(negated).id, 0);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_last_status());
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_graph_leave());
}

static void test_a_thread_may_be_in_a_graph_that_ends(void)
{
	set_up();
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	negated = hr_neg(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(2), 1));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	pthread_barrier_init(&meeting, NULL, 2);
	hr_test_threads(2, be_in_it_or_shut_down, NULL);
	pthread_barrier_destroy(&meeting);
	set_up(); /* all of it works again */
	tear_down();
}

static hr_status nothing(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	(void)context;
	(void)in_count;
	(void)out_count;
	outs[0] = ins[0];
	return HR_OK;
}

static void test_shutdown_ends_graphs_and_functions_without_a_session(void)
{
	hr_function function;
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK_STATUS(HR_INVALID_HANDLE, hr_graph_destroy(graph));
	CHECK_STATUS(HR_OK, hr_function_create("nothing", nothing, NULL, &function));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK_STATUS(HR_INVALID_HANDLE, hr_function_destroy(function));
}

TEST_MAIN(T(test_feed_and_fetch), T(test_the_memory_of_a_temporary_feed_is_reused), T(test_ops_that_are_not_fetched_do_not_run),
          T(test_graph_and_eager_give_the_same_bits), T(test_a_graph_does_not_run_while_another_thread_builds_it),
          T(test_a_thread_may_be_in_a_graph_that_ends), T(test_shutdown_ends_graphs_and_functions_without_a_session))
