/* test_variables.c - variables: names and scopes, contents in place and not, outside of graphs and in them. */
#include <math.h>

#include "headroom_runtime.h"
#include "core/os/os.h"
#include "support_session.h"

static hr_variable make(const char *name, double value)
{
	return hr_get_variable(name, HR_DTYPE_FLOAT32, HR_DIMS(64, 64), HR_FULL(value));
}

static float first_of(hr_variable variable)
{
	return number_in(hr_slice(hr_reshape(hr_variable_read(variable), HR_DIMS(64 * 64)), 0, 0, 1));
}

/* ---- names ---- */

static void test_names_and_reuse(void)
{
	open_session(0);
	CHECK_STATUS(HR_OK, hr_variable_scope_push("scope1", HR_REUSE_AS_AROUND));
	hr_variable a = make("var1", 1);
	CHECK(a.id);
	CHECK_STR(hr_variable_name(a), "scope1/var1");
	CHECK(!make("var1", 2).id);
	CHECK_EQ((int)hr_last_status(), (int)HR_ALREADY_EXISTS);
	CHECK_CONTAINS(hr_last_message(), "scope1/var1");
	CHECK_CONTAINS(hr_last_message(), "[64,64]");
	CHECK_CONTAINS(hr_last_message(), "HR_REUSE");
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_STATUS(HR_OK, hr_variable_scope_push("scope2", HR_REUSE_AS_AROUND));
	hr_variable b = make("var1", 2);
	CHECK(b.id && b.id != a.id);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());

	CHECK_STATUS(HR_OK, hr_variable_scope_push("scope1", HR_REUSE_ONLY));
	CHECK_EQ(make("var1", 5).id, a.id);
	CHECK(!make("other", 5).id);
	CHECK_EQ((int)hr_last_status(), (int)HR_INVALID_ARGUMENT);
	CHECK_CONTAINS(hr_last_message(), "scope1/other");
	CHECK(!hr_get_variable("var1", HR_DTYPE_FLOAT32, HR_DIMS(3, 5), HR_ZEROS).id);
	CHECK_CONTAINS(hr_last_message(), "[64,64]");
	CHECK_CONTAINS(hr_last_message(), "[3,5]");
	/* Inner scopes reuse too. */
	CHECK_STATUS(HR_OK, hr_variable_scope_push("deep", HR_REUSE_AS_AROUND));
	CHECK(!make("x", 1).id);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());

	CHECK_STATUS(HR_OK, hr_variable_scope_push("scope1", HR_REUSE_OR_MAKE));
	CHECK_EQ(make("var1", 5).id, a.id);
	CHECK(make("new", 5).id);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_variable_scope_pop());
	CHECK_EQ(first_of(a), 1.0f);
	CHECK_EQ(first_of(b), 2.0f);
	hr_variable all[8];
	CHECK_EQ(hr_trainable_variables(all, 8), 3);
	CHECK_EQ(all[0].id, a.id);
	CHECK_EQ(all[1].id, b.id);
	CHECK_STR(hr_variable_name(all[2]), "scope1/new");
	close_session();
}

/* ---- contents ---- */

static void test_updates_are_in_place_unless_another_value_shares_the_contents(void)
{
	open_session(0);
	hr_variable w = make("w", 1);
	hr_value one = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 1));
	hr_stats before = stats_of();
	CHECK_EQ(hr_assign_add(w, one).id, HR_DONE.id);
	CHECK_EQ(hr_assign_sub(w, one).id, HR_DONE.id);
	CHECK_EQ(hr_assign_add(w, one).id, HR_DONE.id);
	CHECK_EQ(stats_of().num_allocs, before.num_allocs);
	CHECK_EQ(stats_of().bytes_in_use, before.bytes_in_use);

	hr_value held = hr_value_keep(hr_variable_read(w));
	CHECK_EQ(stats_of().num_allocs, before.num_allocs); /* reading copies nothing */
	CHECK_EQ(hr_assign_add(w, one).id, HR_DONE.id);
	CHECK_EQ(stats_of().num_allocs, before.num_allocs + 1);
	float found[64 * 64];
	CHECK_STATUS(HR_OK, hr_value_fetch(held, found, sizeof found));
	CHECK_EQ(found[77], 2.0f);
	hr_value_release(held);
	CHECK_EQ(stats_of().bytes_in_use, before.bytes_in_use);
	CHECK_EQ(first_of(w), 3.0f);

	/* A temporary value's memory becomes the variable's; a kept one is shared until a write. */
	int64_t count = stats_of().num_allocs;
	CHECK_EQ(hr_assign(w, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 7)).id, HR_DONE.id);
	CHECK_EQ(stats_of().num_allocs, count + 1);
	CHECK_EQ(stats_of().bytes_in_use, before.bytes_in_use);
	CHECK_EQ(hr_assign(w, one).id, HR_DONE.id);
	CHECK_EQ(stats_of().num_allocs, count + 1);
	CHECK_EQ(hr_assign_add(w, one).id, HR_DONE.id);
	CHECK_EQ(stats_of().num_allocs, count + 2);
	CHECK_STATUS(HR_OK, hr_value_fetch(one, found, sizeof found));
	CHECK_EQ(found[1], 1.0f);
	CHECK_EQ(first_of(w), 2.0f);
	hr_value_release(one);
	close_session();
}

/* Part of a larger buffer is copied, so that the rest can be freed. */
static void test_a_view_is_copied_into_a_variable(void)
{
	open_session(0);
	hr_variable w = hr_get_variable("w", HR_DTYPE_FLOAT32, HR_DIMS(1, 64), HR_UNINITIALIZED);
	CHECK_EQ(hr_assign(w, hr_slice(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(1024, 64), 1), 0, 3, 1)).id, HR_DONE.id);
	CHECK_LE(stats_of().bytes_in_use, 1024);
	close_session();
}

/* ---- in graphs ---- */

static void test_variables_of_a_graph(void)
{
	hr_graph graph;
	hr_value result;
	hr_session second;
	hr_session_options options;
	int32_t count;
	open_session(0);
	int64_t before = stats_of().num_allocs;
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_variable w = make("w", 2), normal = hr_get_variable("normal", HR_DTYPE_FLOAT32, HR_DIMS(64, 64), HR_NORMAL(0.5, 3));
	CHECK(normal.id);
	hr_value sum = hr_reduce_sum(hr_variable_read(w), HR_ALL_AXES, false);
	hr_value more = hr_assign_add(w, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 1));
	hr_value after = hr_reduce_sum(hr_variable_read(w), HR_ALL_AXES, false); /* at this point: in one run, after the assignment */
	hr_value group = hr_group((hr_value[]){ more, after }, 2);
	hr_value start = hr_global_variables_initializer();
	CHECK_EQ(hr_trainable_variables(NULL, 0), 2);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_EQ(stats_of().num_allocs, before); /* building allocates nothing */

	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(session, NULL, 0, &sum, 1, &result, NULL, NULL));
	CHECK_CONTAINS(hr_last_message(), "\"w\" has no contents");
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &start, 1, &result, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_value_fetch(result, &count, sizeof count));
	CHECK_EQ(count, 2);
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &sum, 1, &result, NULL, NULL));
	CHECK_EQ(number_in(result), 2.0f * 64 * 64);
	/* An assignment that is not fetched does not run. */
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &after, 1, &result, NULL, NULL));
	CHECK_EQ(number_in(result), 2.0f * 64 * 64);
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, (hr_value[]){ sum, more, after }, 3, (hr_value[3]){ { 0 } }, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &group, 1, &result, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_value_fetch(result, &count, sizeof count));
	CHECK_EQ(count, 2);
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &sum, 1, &result, NULL, NULL));
	CHECK_EQ(number_in(result), 4.0f * 64 * 64);

	/* Another session has contents of its own. */
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &second));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_session_run(second, NULL, 0, &sum, 1, &result, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_session_run(second, NULL, 0, &start, 1, &result, NULL, NULL));
	hr_value_release(result);
	CHECK_STATUS(HR_OK, hr_session_run(second, NULL, 0, &sum, 1, &result, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_session_enter(second));
	CHECK_EQ(number_in(result), 2.0f * 64 * 64);
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(second));
	CHECK(!hr_variable_read(w).id);
	CHECK_CONTAINS(hr_last_message(), "belongs to a graph");
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	CHECK_STR(hr_variable_name(w), "");
	/* The values that were fetched together are still there: a leak, which closing reports. */
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_IN_USE, hr_session_destroy(session));
	CHECK_CONTAINS(hr_last_message(), "3 values");
	CHECK_EQ(stats_of().bytes_in_use, 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Reads of a variable that is updated in the same run: each has the contents at its point; memory is copied only if both are
 * needed. */
static void test_a_read_before_an_update_keeps_what_it_read(void)
{
	hr_graph graph;
	hr_value results[2];
	float old[64 * 64], new[64 * 64];
	open_session(0);
	hr_variable w = make("w", 1);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value before = hr_variable_read(w);
	hr_value after = hr_assign_add(w, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 1));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, (hr_value[]){ before, after }, 2, results, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_value_fetch(results[0], old, sizeof old));
	CHECK_STATUS(HR_OK, hr_value_fetch(results[1], new, sizeof new));
	CHECK_EQ(old[5], 1.0f);
	CHECK_EQ(new[5], 2.0f);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

/* An assignment in a graph to a variable of a closed session must not affect a new variable in the same slot. */
static void test_an_assignment_to_what_is_gone(void)
{
	hr_session first;
	hr_session_options options;
	hr_graph graph;
	hr_value result;
	open_session(0);
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &first));
	CHECK_STATUS(HR_OK, hr_session_enter(first));
	hr_variable gone = make("gone", 1);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_value assigned = hr_assign(gone, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 9));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(first));
	hr_variable here = make("here", 2);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_run(session, NULL, 0, &assigned, 1, &result, NULL, NULL));
	CHECK_EQ(first_of(here), 2.0f);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

/* Contents of a graph's variables are destroyed with the graph. */
static void test_a_graph_takes_its_contents_with_it(void)
{
	hr_graph graph;
	hr_value result;
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	CHECK(make("w", 1).id);
	hr_value start = hr_global_variables_initializer();
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &start, 1, &result, NULL, NULL));
	hr_value_release(result);
	CHECK_GT(stats_of().bytes_in_use, 0);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	CHECK_EQ(stats_of().bytes_in_use, 0);
	close_session();
}

/* The initializer may be built before the gradients. */
static void test_gradients_are_by_what_was_read(void)
{
	hr_graph graph;
	hr_value result, gradient;
	float found[64 * 64];
	open_session(0);
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_variable w = make("w", 4);
	hr_value y = hr_mul(hr_variable_read(w), hr_variable_read(w));
	hr_value start = hr_global_variables_initializer();
	CHECK_STATUS(HR_OK, hr_variable_gradients(y, &w, 1, &gradient));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &start, 1, &result, NULL, NULL));
	hr_value_release(result);
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &gradient, 1, &result, NULL, NULL));
	CHECK_STATUS(HR_OK, hr_value_fetch(result, found, sizeof found));
	CHECK_EQ(found[9], 8.0f);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
	close_session();
}

/* ---- threads ---- */

static hr_variable shared;
static hr_session shared_session;
static _Atomic(int) changed;

/* Half of the threads add, half of them compare two reads of one value. */
static void add_or_look(void *argument, unsigned index)
{
	(void)argument;
	CHECK_STATUS(HR_OK, hr_session_enter(shared_session));
	for (int i = 0; i < (int)hr_test_scaled(200); i++) {
		if (index % 2) {
			CHECK_EQ(hr_assign_add(shared, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 1)).id, HR_DONE.id);
		} else {
			hr_value held = hr_value_keep(hr_variable_read(shared));
			float once[64 * 64], again[64 * 64];
			CHECK_STATUS(HR_OK, hr_value_fetch(held, once, sizeof once));
			CHECK_STATUS(HR_OK, hr_value_fetch(held, again, sizeof again));
			if (memcmp(once, again, sizeof once) != 0 || once[0] != once[64 * 64 - 1]) changed++;
			hr_value_release(held);
		}
		CHECK_STATUS(HR_OK, hr_variable_scope_push("made", HR_REUSE_OR_MAKE));
		char name[16];
		snprintf(name, sizeof name, "v%d", i % 50);
		CHECK(hr_value_keep(hr_variable_read(hr_get_variable(name, HR_DTYPE_FLOAT32, HR_DIMS(1), HR_ZEROS))).id);
		CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	}
	CHECK_STATUS(HR_OK, hr_session_leave());
}

static void test_threads_that_share_a_variable(void)
{
	open_session(0);
	shared = make("w", 0);
	shared_session = session;
	hr_test_threads(4, add_or_look, NULL);
	CHECK_EQ(changed, 0);
	CHECK_EQ(first_of(shared), 2.0f * (float)(int)hr_test_scaled(200)); /* no update is lost */
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_IN_USE, hr_session_destroy(session)); /* the values kept above */
	CHECK_EQ(stats_of().bytes_in_use, 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static hr__os_table meddling_os;
static hr_variable meddled;
static _Thread_local hr_value meddled_by; /* threads of the device leave monitors too */

/* Updates the variable as soon as a thread has left a monitor, as if another thread came next. */
static void leave_and_update(hr__monitor *monitor)
{
	hr_value by = meddled_by;
	hr__os_linux()->monitor_leave(monitor);
	meddled_by = HR_NO_VALUE;
	if (by.id) CHECK_EQ(hr_assign_add(meddled, by).id, HR_DONE.id);
}

/* For a tape, the contents before and after an update are different values, even if the update comes as early as possible. */
static void test_an_update_behind_a_read_is_not_what_was_read(void)
{
	hr_value gradient;
	meddling_os = *hr__os_linux();
	meddling_os.monitor_leave = leave_and_update;
	hr__os_replace(&meddling_os);
	open_session(0);
	meddled = make("w", 1);
	hr_value one = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 1));
	CHECK_STATUS(HR_OK, hr_tape_begin());
	meddled_by = one;
	hr_value before = hr_value_keep(hr_variable_read(meddled)), after = hr_value_keep(hr_variable_read(meddled)), again = hr_value_keep(hr_variable_read(meddled));
	CHECK_EQ(meddled_by.id, 0);
	hr_value sum = hr_value_keep(hr_reduce_sum(hr_add(hr_mul(before, before), again), HR_ALL_AXES, false));
	CHECK_EQ(number_in(sum), 3.0f * 64 * 64);
	CHECK_STATUS(HR_OK, hr_gradients(sum, &after, 1, &gradient));
	CHECK_STATUS(HR_OK, hr_tape_end());
	CHECK_EQ(number_in(hr_slice(hr_reshape(gradient, HR_DIMS(64 * 64)), 0, 0, 1)), 1.0f); /* of [again], and none of [before] */
	hr_value_release(before);
	hr_value_release(after);
	hr_value_release(again);
	hr_value_release(sum);
	hr_value_release(one);
	close_session();
	hr__os_replace(NULL);
}

/* ---- optimizers ---- */

/* w approaches 3 by the gradient of (w - 3)^2: the same outside of graphs, in a graph, and in place. */
static hr_value distance(hr_variable w)
{
	hr_value d = hr_value_keep(hr_scale(hr_variable_read(w), 1, -3));
	hr_value loss = hr_reduce_sum(hr_mul(d, d), HR_ALL_AXES, false);
	hr_value_release(d);
	return loss;
}

static void test_optimizers_go_down(void)
{
	for (int kind = HR_SGD; kind <= HR_ADAM; kind++) {
		hr_optimizer optimizer;
		hr_graph graph;
		hr_value done, start, result;
		open_session(0);
		hr_optimizer_init(&optimizer, (hr_optimizer_kind)kind);
		optimizer.learning_rate = kind == HR_ADAM ? 0.2 : 0.02;
		hr_variable w = make("w", 1);
		int64_t settled = 0;
		for (int i = 0; i < 100; i++) {
			CHECK_STATUS(HR_OK, hr_tape_begin());
			hr_value loss = hr_value_keep(distance(w));
			CHECK_EQ(hr_minimize(&optimizer, loss, &w, 1).id, HR_DONE.id);
			CHECK_STATUS(HR_OK, hr_tape_end());
			hr_value_release(loss);
			if (i == 1) settled = stats_of().bytes_in_use;
		}
		CHECK_EQ(stats_of().bytes_in_use, settled);
		CHECK_EQ(hr_trainable_variables(NULL, 0), 1);
		CHECK(fabsf(first_of(w) - 3) < 0.25f);
		float eager = first_of(w);

		CHECK_STATUS(HR_OK, hr_graph_create(&graph));
		CHECK_STATUS(HR_OK, hr_graph_enter(graph));
		hr_variable v = make("w", 1);
		done = hr_minimize(&optimizer, distance(v), &v, 1);
		CHECK(done.id);
		hr_value reads = hr_slice(hr_reshape(hr_variable_read(v), HR_DIMS(64 * 64)), 0, 0, 1);
		start = hr_global_variables_initializer();
		CHECK_STATUS(HR_OK, hr_graph_leave());
		CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &start, 1, &result, NULL, NULL));
		hr_value_release(result);
		for (int i = 0; i < 100; i++) {
			CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &done, 1, &result, NULL, NULL));
			hr_value_release(result);
		}
		CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &reads, 1, &result, NULL, NULL));
		CHECK_EQ(number_in(result), eager);
		CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
		close_session();
	}
}

static hr_value filled(hr_dtype dtype, int64_t rows, double value)
{
	return hr_full(dtype, HR_DIMS(rows, 64), value);
}

/* The second of two gradients is invalid in the way [way]. */
static void refuse_update(const hr_optimizer *optimizer, hr_variable a, hr_variable b, int way)
{
	static const char *const parts[] = { "variable \"b\"", "[32,64]", "float64", "variable \"empty\" has no contents", "was consumed", "twice" };
	hr_variable variables[] = { a, b };
	hr_value gradients[] = { filled(HR_DTYPE_FLOAT32, 64, 1), filled(HR_DTYPE_FLOAT32, 64, 1) };
	if (way == 2) gradients[1] = hr_cast(gradients[1], HR_DTYPE_FLOAT64);
	if (way < 2) gradients[1] = hr_slice(gradients[1], 0, 0, 32);
	if (way == 3) variables[1] = hr_get_variable("empty", HR_DTYPE_FLOAT32, HR_DIMS(64, 64), HR_UNINITIALIZED);
	if (way >= 4) hr_value_release(gradients[1]);
	if (way == 5) gradients[1] = gradients[0];
	CHECK_EQ(hr_apply_gradients(optimizer, variables, gradients, 2).id, 0);
	CHECK_CONTAINS(hr_last_message(), parts[way]);
	CHECK_EQ(first_of(a), 1.0f);
	CHECK_EQ(first_of(b), 1.0f);
}

/* Including the number of the step: the next step is the first. */
static void test_an_update_that_is_refused_changes_nothing(void)
{
	for (int kind = HR_SGD; kind <= HR_ADAM; kind++) {
		for (int way = 0; way < 6; way++) {
			hr_optimizer optimizer, other;
			open_session(0);
			hr_optimizer_init(&optimizer, (hr_optimizer_kind)kind);
			other = optimizer;
			other.name = "other";
			hr_variable a = make("a", 1), b = make("b", 1), c = make("c", 1);
			refuse_update(&optimizer, a, b, way);
			hr_value gradient = hr_value_keep(filled(HR_DTYPE_FLOAT32, 64, 0.5));
			CHECK_EQ(hr_apply_gradients(&optimizer, &a, &gradient, 1).id, HR_DONE.id);
			CHECK_EQ(hr_apply_gradients(&other, &c, &gradient, 1).id, HR_DONE.id);
			CHECK_EQ(first_of(a), first_of(c));
			hr_value_release(gradient);
			close_session();
		}
	}
}

/* ---- temporary values ---- */

static hr_value loose_loss(hr_variable w)
{
	return hr_reduce_sum(hr_exp(hr_variable_read(w)), HR_ALL_AXES, false);
}

static void test_gradients_consume_a_temporary_loss(void)
{
	hr_optimizer sgd;
	hr_value gradient, of;
	open_session(0);
	hr_optimizer_init(&sgd, HR_SGD);
	hr_variable w = hr_get_variable("w", HR_DTYPE_FLOAT32, HR_DIMS(4), HR_FULL(1));
	hr_value x = hr_value_keep(hr_variable_read(w));
	for (int way = 0; way < 3; way++) {
		CHECK_STATUS(HR_OK, hr_tape_begin());
		of = loose_loss(w);
		if (way == 0) CHECK_STATUS(HR_OK, hr_gradients(of, &x, 1, &gradient));
		if (way == 1) CHECK_STATUS(HR_OK, hr_variable_gradients(of, &w, 1, &gradient));
		if (way == 2) CHECK_EQ(hr_minimize(&sgd, of, &w, 1).id, HR_DONE.id);
		if (way < 2) hr_value_release(gradient);
		CHECK_EQ(hr_value_rank(of), -1);
		CHECK_STATUS(HR_OK, hr_tape_end());
	}
	hr_value_release(x);
	close_session(); /* checks that nothing is left */
}

/* Like all calls that fail. */
static void test_gradients_consume_a_temporary_loss_when_there_are_none(void)
{
	hr_optimizer sgd, none = { 0 };
	hr_value gradient, of;
	open_session(0);
	hr_optimizer_init(&sgd, HR_SGD);
	hr_variable w = hr_get_variable("w", HR_DTYPE_FLOAT32, HR_DIMS(4), HR_FULL(1)), gone = { 12345 };
	hr_value x = hr_value_keep(hr_variable_read(w));
	for (int way = 0; way < 7; way++) { /* without a tape */
		of = loose_loss(w);
		if (way == 0) CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(of, &x, 1, &gradient));
		if (way == 1) CHECK_STATUS(HR_INVALID_ARGUMENT, hr_gradients(of, NULL, 0, &gradient));
		if (way == 2) CHECK_STATUS(HR_INVALID_ARGUMENT, hr_variable_gradients(of, NULL, 0, &gradient));
		if (way == 3) CHECK_STATUS(HR_INVALID_HANDLE, hr_variable_gradients(of, &gone, 1, &gradient));
		if (way == 4) CHECK_EQ(hr_minimize(&sgd, of, &w, 1).id, 0);
		if (way == 5) CHECK_EQ(hr_minimize(&none, of, &w, 1).id, 0);
		if (way == 6) CHECK_EQ(hr_minimize(&sgd, of, NULL, 0).id, 0);
		CHECK_EQ(hr_value_rank(of), -1);
	}
	hr_value_release(x);
	close_session();
}

/* ---- many names ---- */

static void fill_table_of_names(void)
{
	char name[32];
	for (int i = 0; i < 1 << 17; i++) {
		snprintf(name, sizeof name, "name %d", i);
		if (hr_name_intern(name) == HR_NAME_OTHER) return;
	}
	CHECK(false);
}

/* Names without a slot have the same number, and would be the same variable. */
static void test_names_without_a_place_make_no_variables(void)
{
	hr_optimizer optimizer;
	open_session(0);
	hr_optimizer_init(&optimizer, HR_MOMENTUM);
	CHECK_STATUS(HR_OK, hr_variable_scope_push("m", HR_REUSE_OR_MAKE));
	hr_variable known = make("known", 1);
	fill_table_of_names();
	CHECK_EQ(make("known", 2).id, known.id);
	CHECK_EQ(make("a", 1).id, 0);
	CHECK_STATUS(HR_TOO_MANY, hr_last_status());
	CHECK_CONTAINS(hr_last_message(), "\"m/a\"");
	CHECK_STATUS(HR_TOO_MANY, hr_variable_scope_push("deep", HR_REUSE_AS_AROUND));
	CHECK_CONTAINS(hr_last_message(), "\"m/deep\"");
	hr_value gradient = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(64, 64), 1);
	CHECK_EQ(hr_apply_gradients(&optimizer, &known, &gradient, 1).id, 0);
	CHECK_STATUS(HR_TOO_MANY, hr_last_status());
	CHECK_CONTAINS(hr_last_message(), "\"m/known/momentum/m\"");
	CHECK_EQ(first_of(known), 1.0f);
	CHECK_EQ(hr_trainable_variables(NULL, 0), 1);
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	/* A name whose text is that of the overflow name is a name of its own. */
	hr_variable other = make("(other)", 3);
	CHECK(other.id && other.id != known.id);
	close_session();
}

TEST_MAIN(T(test_names_and_reuse), T(test_updates_are_in_place_unless_another_value_shares_the_contents), T(test_a_view_is_copied_into_a_variable),
          T(test_variables_of_a_graph), T(test_a_read_before_an_update_keeps_what_it_read), T(test_an_assignment_to_what_is_gone),
          T(test_a_graph_takes_its_contents_with_it), T(test_gradients_are_by_what_was_read), T(test_threads_that_share_a_variable),
          T(test_an_update_behind_a_read_is_not_what_was_read), T(test_optimizers_go_down), T(test_an_update_that_is_refused_changes_nothing),
          T(test_gradients_consume_a_temporary_loss), T(test_gradients_consume_a_temporary_loss_when_there_are_none),
          T(test_names_without_a_place_make_no_variables))
