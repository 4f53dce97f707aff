/* test_variable_destroy.c - variables that are destroyed one by one, and graphs whose variables belong to a session: what bindings need. */
#include "support_session.h"

static hr_variable make(const char *name, double value)
{
	return hr_get_variable(name, HR_DTYPE_FLOAT32, HR_DIMS(256, 256), HR_FULL(value));
}

static void test_memory_and_name_are_free_again(void)
{
	open_session(0);
	int64_t before = stats_of().bytes_in_use;
	hr_variable first = make("w", 2);
	hr_value read = hr_value_keep(hr_variable_read(first));
	CHECK_STATUS(HR_OK, hr_variable_destroy(first));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_variable_destroy(first));
	CHECK_EQ(hr_variable_read(first).id, 0);
	CHECK_EQ(number_in(hr_reduce_max(read, HR_ALL_AXES, false)), 2.0f); /* a value that was read stays */
	hr_value_release(read);
	CHECK_EQ(stats_of().bytes_in_use, before);
	hr_variable second = make("w", 3);
	CHECK(second.id && second.id != first.id);
	CHECK_EQ(hr_trainable_variables(NULL, 0), 1);
	CHECK_STATUS(HR_OK, hr_variable_destroy(second));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_variable_destroy((hr_variable){ 0 }));
	close_session();
}

static void test_the_state_of_optimizers_ends_with_the_variable(void)
{
	hr_optimizer adam;
	open_session(0);
	hr_optimizer_init(&adam, HR_ADAM);
	hr_variable both[] = { make("w", 1), make("w2", 1) };
	for (int i = 0; i < 2; i++) {
		hr_value gradient = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(256, 256), 1);
		CHECK(hr_apply_gradients(&adam, &both[i], &gradient, 1).id);
	}
	int64_t full = stats_of().bytes_in_use, each = 256 * 256 * 4;
	CHECK_STATUS(HR_OK, hr_variable_destroy(both[0]));
	CHECK_EQ(stats_of().bytes_in_use, full - 3 * each); /* w, w/adam/m, w/adam/v, and none of "w2" */
	CHECK_STATUS(HR_OK, hr_variable_destroy(both[1]));
	close_session();
}

static void test_an_optimizer_can_end_before_its_variables(void)
{
	hr_optimizer adam, other;
	open_session(0);
	hr_optimizer_init(&adam, HR_ADAM);
	hr_optimizer_init(&other, HR_MOMENTUM);
	other.name = "my/adam"; /* its state ends like that of "adam" */
	hr_variable w = make("w", 1), step = hr_get_variable("step", HR_DTYPE_INT64, HR_SCALAR, HR_ZEROS);
	int64_t before = stats_of().bytes_in_use, each = 256 * 256 * 4;
	const hr_optimizer *both[] = { &adam, &other };
	for (int i = 0; i < 2; i++) {
		hr_value gradient = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(256, 256), 1);
		CHECK(hr_apply_gradients(both[i], &w, &gradient, 1).id);
	}
	CHECK_GE(stats_of().bytes_in_use, before + 3 * each);
	CHECK_STATUS(HR_OK, hr_optimizer_free_state(session, "ada"));
	CHECK_STATUS(HR_OK, hr_optimizer_free_state(session, "my/adam"));
	CHECK_GE(stats_of().bytes_in_use, before + 2 * each);
	CHECK_STATUS(HR_OK, hr_optimizer_free_state(session, "adam"));
	CHECK_EQ(stats_of().bytes_in_use, before);
	int64_t number = 1;
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_variable_read(step), &number, sizeof number)); /* a variable of the program, whatever its name */
	CHECK_EQ(number, 0);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_optimizer_free_state(session, ""));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_optimizer_free_state((hr_session){ 0 }, "adam"));
	close_session();
}

static void test_variables_of_graphs_go_with_them(void)
{
	hr_graph graph;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_variable w = make("w", 1);
	CHECK_STATUS(HR_UNSUPPORTED, hr_variable_destroy(w));
	CHECK_CONTAINS(hr_last_message(), "hr_graph_destroy");
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

static void test_a_graph_in_a_session_uses_the_variables_of_the_session(void)
{
	hr_graph graph;
	hr_value out;
	open_session(0);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_graph_create_in_session((hr_session){ 0 }, &graph));
	CHECK_STATUS(HR_OK, hr_graph_create_in_session(session, &graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_variable w = make("w", 2);
	hr_value more = hr_assign_add(w, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(256, 256), 1));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_EQ(number_in(hr_reduce_max(hr_variable_read(w), HR_ALL_AXES, false)), 2.0f); /* it is the session's, and initialised */
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &more, 1, &out, NULL, NULL));
	hr_value_release(out);
	CHECK_EQ(number_in(hr_reduce_max(hr_variable_read(w), HR_ALL_AXES, false)), 3.0f);
	CHECK_STATUS(HR_OK, hr_variable_destroy(w));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_run(session, NULL, 0, &more, 1, &out, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

TEST_MAIN(T(test_memory_and_name_are_free_again), T(test_the_state_of_optimizers_ends_with_the_variable), T(test_an_optimizer_can_end_before_its_variables), T(test_variables_of_graphs_go_with_them),
          T(test_a_graph_in_a_session_uses_the_variables_of_the_session))
