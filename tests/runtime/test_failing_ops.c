/* test_failing_ops.c - an error that an op detects while it runs is reported at the next wait. Until then the program continues:
 * the error does not reach a variable, and no op reads the undefined output. */
#include "headroom_runtime.h"
#include "headroom_backend.h"
#include "support_far.h"
#include "support_session.h"

#define F HR_DTYPE_FLOAT32
#define WORDS 5
#define WIDTH 4
#define CLASSES 3
#define ROWS 6
#define NUMBERS (WORDS * WIDTH + WIDTH * CLASSES)

enum way { BY_OP, BY_FUNCTION, BY_GRAPH, WAYS };

/* ---- a model with an embedding ---- */

struct model {
	enum way way;
	bool kept; /* the contents of the variables are kept too, so they are not updated in place */
	hr_optimizer optimizer;
	hr_session session;
	hr_function function;
	hr_graph graph;
	hr_value words, labels, loss, done; /* of the graph */
};

static hr_variable table_of(void)
{
	return hr_get_variable("table", F, HR_DIMS(WORDS, WIDTH), HR_NORMAL(1, 1));
}

static hr_value loss_of(hr_value words, hr_value labels)
{
	hr_value found = hr_gather(hr_variable_read(table_of()), words);
	return hr_reduce_mean(hr_cross_entropy(hr_dense("out", found, CLASSES, HR_LINEAR, 2), labels), HR_ALL_AXES, false);
}

static hr_value train(const struct model *model, hr_value words, hr_value labels)
{
	hr_variable variables[4];
	CHECK_STATUS(HR_OK, hr_variable_scope_push("model", HR_REUSE_OR_MAKE));
	hr_tape_begin();
	hr_value loss = hr_value_keep(loss_of(words, labels));
	CHECK(hr_minimize(&model->optimizer, loss, variables, hr_trainable_variables(variables, 4)).id);
	hr_tape_end();
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	return loss;
}

static hr_status body(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	CHECK_EQ(in_count, 2);
	CHECK_EQ(out_count, 1);
	outs[0] = train(context, ins[0], ins[1]);
	return HR_OK;
}

/* The variables are those of the graph for BY_GRAPH, else those of the session. */
static void build(struct model *model)
{
	hr_variable variables[4];
	hr_value count;
	CHECK_STATUS(HR_OK, hr_graph_create(&model->graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(model->graph));
	CHECK_STATUS(HR_OK, hr_variable_scope_push("model", HR_REUSE_OR_MAKE));
	model->words = hr_placeholder(HR_DTYPE_INT32, HR_DIMS(ROWS));
	model->labels = hr_placeholder(HR_DTYPE_INT32, HR_DIMS(ROWS));
	model->loss = loss_of(model->words, model->labels);
	model->done = hr_minimize(&model->optimizer, model->loss, variables, hr_trainable_variables(variables, 4));
	hr_value start = hr_global_variables_initializer();
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_STATUS(HR_OK, hr_session_run(model->session, NULL, 0, &start, 1, &count, NULL, NULL));
	hr_value_release(count);
}

static hr_status step(struct model *model, const int32_t *words, const int32_t *labels)
{
	float loss;
	hr_value ins[] = { hr_constant(HR_DTYPE_INT32, HR_DIMS(ROWS), words), hr_constant(HR_DTYPE_INT32, HR_DIMS(ROWS), labels) }, outs[2];
	if (model->way == BY_OP) {
		outs[0] = train(model, ins[0], ins[1]);
	} else if (model->way == BY_FUNCTION) {
		CHECK_STATUS(HR_OK, hr_function_call(model->function, ins, 2, outs, 1));
	} else {
		hr_feed feeds[] = { { model->words, ins[0] }, { model->labels, ins[1] } };
		hr_status status = hr_session_run(model->session, feeds, 2, (hr_value[]){ model->loss, model->done }, 2, outs, NULL, NULL);
		if (status) return status;
		hr_value_release(outs[1]);
	}
	hr_status status = hr_value_fetch(outs[0], &loss, sizeof loss);
	if (model->way == BY_OP) hr_value_release(outs[0]);
	return status;
}

static void read_weights(const struct model *model, float *out)
{
	hr_variable variables[4];
	if (model->way == BY_GRAPH) CHECK_STATUS(HR_OK, hr_graph_enter(model->graph));
	size_t count = hr_trainable_variables(variables, 4), used = 0;
	CHECK_EQ(count, 3);
	for (size_t i = 0; i < count; i++) {
		hr_value value = hr_variable_read(variables[i]), got = value;
		if (model->way == BY_GRAPH) {
			CHECK_STATUS(HR_OK, hr_graph_leave());
			CHECK_STATUS(HR_OK, hr_session_run(model->session, NULL, 0, &value, 1, &got, NULL, NULL));
			CHECK_STATUS(HR_OK, hr_graph_enter(model->graph));
		}
		size_t numbers = (size_t)hr_value_count(got);
		CHECK_STATUS(HR_OK, hr_value_fetch(got, out + used, numbers * sizeof *out));
		used += numbers;
	}
	if (model->way == BY_GRAPH) CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK_EQ(used, NUMBERS + CLASSES);
}

/* ---- trained once with a failing step, once without ---- */

static const int32_t good[ROWS] = { 0, 1, 2, 3, 4, 0 }, classes[ROWS] = { 0, 1, 2, 0, 1, 2 }, far_word[ROWS] = { 0, 1, 7, 3, 4, 0 },
					 no_class[ROWS] = { 0, 1, 2, -1, 1, 2 };

static void go_wrong(struct model *model, const float *before)
{
	float after[NUMBERS + CLASSES];
	CHECK_STATUS(HR_INVALID_ARGUMENT, step(model, far_word, classes));
	CHECK_CONTAINS(hr_last_message(), "op \"gather\"");
	CHECK_CONTAINS(hr_last_message(), "an index is out of range: 7 is not from 0 to 4; shapes [5,4] and [6]");
	CHECK_STATUS(HR_INVALID_ARGUMENT, step(model, good, no_class));
	CHECK_CONTAINS(hr_last_message(), "op \"cross_entropy\"");
	CHECK_CONTAINS(hr_last_message(), "a label is out of range: -1 is not from 0 to 2; shapes [6,3] and [6]");
	read_weights(model, after);
	CHECK_BYTES(after, before, sizeof after);
}

static void train_with(const char *device, enum way way, hr_optimizer_kind kind, bool kept, bool wrong, float *out)
{
	struct model model = { .way = way, .kept = kept };
	hr_session_options options;
	hr_variable variables[4];
	hr_value held[4];
	hr_session_options_init(&options);
	options.device = device;
	CHECK_STATUS(HR_OK, hr_session_create(&options, &model.session));
	CHECK_STATUS(HR_OK, hr_session_enter(model.session));
	hr_optimizer_init(&model.optimizer, kind);
	if (way == BY_FUNCTION) CHECK_STATUS(HR_OK, hr_function_create("step", body, &model, &model.function));
	if (way == BY_GRAPH) build(&model);
	CHECK_STATUS(HR_OK, step(&model, good, classes));
	read_weights(&model, out);
	size_t count = kept ? hr_trainable_variables(variables, 4) : 0;
	for (size_t i = 0; i < count; i++) held[i] = hr_value_keep(hr_variable_read(variables[i]));
	if (wrong) go_wrong(&model, out);
	CHECK_STATUS(HR_OK, step(&model, good, classes));
	for (size_t i = 0; i < count; i++) hr_value_release(held[i]);
	read_weights(&model, out);
	if (way == BY_FUNCTION) CHECK_STATUS(HR_OK, hr_function_destroy(model.function));
	if (way == BY_GRAPH) CHECK_STATUS(HR_OK, hr_graph_destroy(model.graph));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(model.session));
}

static void train_twice(const char *device, enum way way, hr_optimizer_kind kind, bool kept)
{
	float expected[NUMBERS + CLASSES], seen[NUMBERS + CLASSES];
	train_with(device, way, kind, kept, false, expected);
	train_with(device, way, kind, kept, true, seen);
	if (kind != HR_ADAM) CHECK_BYTES(seen, expected, sizeof seen); /* Adam counts the failed step too */
}

static void test_a_wrong_index_reaches_no_variable(void)
{
	setenv("HEADROOM_CUDA", "0", 1);
	far_add();
	for (int way = 0; way < WAYS; way++) {
		for (int kept = 0; kept < 2; kept++) {
			if (kept && way == BY_GRAPH) continue; /* contents of a graph cannot be kept */
			for (int device = 0; device < 2; device++) {
				train_twice(device ? "FAR:0" : "GPU:0", (enum way)way, HR_SGD, kept);
				train_twice(device ? "FAR:0" : "GPU:0", (enum way)way, HR_MOMENTUM, kept);
				train_twice(device ? "FAR:0" : "GPU:0", (enum way)way, HR_ADAM, kept);
			}
		}
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_adding_to_a_variable_waits_until_the_error_is_returned(void)
{
	float number;
	int32_t bad = 9;
	open_session(0);
	hr_variable sum = hr_get_variable("sum", F, HR_DIMS(1), HR_ZEROS);
	hr_value rows = hr_value_keep(hr_full(F, HR_DIMS(2, 1), 3));
	hr_value wrong = hr_gather(rows, hr_constant(HR_DTYPE_INT32, HR_DIMS(), &bad));
	CHECK(hr_assign_add(sum, wrong).id);
	CHECK(hr_assign_add(sum, hr_full(F, HR_DIMS(1), 1)).id); /* does not depend on the failed op, but that is not tracked */
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_value_fetch(hr_variable_read(sum), &number, sizeof number));
	CHECK_EQ((int)number_in(hr_variable_read(sum)), 0);
	CHECK(hr_assign_add(sum, hr_full(F, HR_DIMS(1), 1)).id);
	CHECK_EQ((int)number_in(hr_variable_read(sum)), 1);
	hr_value_release(rows);
	close_session();
}

/* ---- the end of a session ---- */

static void test_closing_tells_of_an_error_and_of_what_was_left(void)
{
	hr_session_options options;
	int32_t bad = 9;
	open_session(0);
	hr_session_options_init(&options);
	options.device = "GPU:0";
	hr_session other;
	CHECK_STATUS(HR_OK, hr_session_create(&options, &other));
	CHECK_STATUS(HR_OK, hr_session_enter(other));
	hr_value rows = hr_value_keep(hr_full(F, HR_DIMS(2, 8), 3));
	hr_value_release(hr_gather(rows, hr_constant(HR_DTYPE_INT32, HR_DIMS(1), &bad)));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_IN_USE, hr_session_destroy(other));
	CHECK_CONTAINS(hr_last_message(), "op \"gather\": an index is out of range: 9 is not from 0 to 1; shapes [2,8] and [1]; and destroying the session freed 1 value (64 bytes)");
	close_session();
}

/* Queued work reads the session when it runs, whatever errors the device returns meanwhile. */
static void test_a_session_stays_while_its_work_cannot_be_waited_for(void)
{
	hr_session_options options;
	hr_session broken;
	float number;
	int32_t bad = 999;
	setenv("HEADROOM_CUDA", "0", 1);
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &broken));
	CHECK_STATUS(HR_OK, hr_session_enter(broken));
	hr_value a = hr_value_keep(hr_full(F, HR_DIMS(300, 300), 1)), b = hr_matmul(a, a);
	for (int i = 0; i < 8; i++) b = hr_matmul(b, a);
	hr_value_release(hr_gather(b, hr_constant(HR_DTYPE_INT32, HR_DIMS(1), &bad)));
	hr_value_release(a);
	CHECK_STATUS(HR_OK, hr_session_leave());
	hr_backend_fail_nth(1, true, HR_DEVICE_ERROR);
	CHECK_STATUS(HR_DEVICE_ERROR, hr_session_destroy(broken));
	hr_backend_fail_nth(0, false, HR_OK);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_destroy(broken));
	/* The device works again, and other sessions can use it. */
	CHECK_STATUS(HR_OK, hr_session_create(&options, &broken));
	CHECK_STATUS(HR_OK, hr_session_enter(broken));
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_full(F, HR_DIMS(1), 5), &number, sizeof number));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(broken));
	hr_shutdown(); /* what could not be released is still there, and is reported */
}

/* ---- values of two threads ---- */

static hr_value shared;

static void fetch_or_release(void *argument, unsigned index)
{
	float numbers[256];
	(void)argument;
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	if (index) {
		hr_value_release(shared);
	} else {
		hr_status status = hr_value_fetch(shared, numbers, sizeof numbers);
		CHECK(status == HR_OK || status == HR_INVALID_HANDLE);
		if (!status) CHECK_EQ((int)numbers[255], 7);
		hr_value sum = hr_add(shared, shared);
		if (sum.id) CHECK_STATUS(HR_OK, hr_value_fetch(sum, numbers, sizeof numbers));
	}
	CHECK_STATUS(HR_OK, hr_session_leave());
}

static void test_a_value_that_another_thread_releases_is_there_or_closed(void)
{
	uint64_t rounds = hr_test_scaled(300);
	open_session(0);
	for (uint64_t i = 0; i < rounds; i++) {
		shared = hr_value_keep(hr_full(F, HR_DIMS(256), 7));
		hr_test_threads(2, fetch_or_release, NULL);
	}
	close_session();
}

/* ---- copies ---- */

static void test_gradients_go_back_through_copies_or_say_why_not(void)
{
	hr_session_options options;
	hr_session other;
	hr_value gradient;
	float numbers[2];
	open_session(0);
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &other));
	hr_value x = hr_value_keep(hr_full(F, HR_DIMS(2), 3));
	for (int away = 0; away < 2; away++) {
		hr_tape_begin();
		hr_value copy = hr_value_copy_to_session(hr_mul(x, x), other);
		if (away) CHECK_STATUS(HR_OK, hr_session_enter(other));
		else copy = hr_value_copy_to_session(copy, session);
		hr_value y = hr_value_keep(hr_reduce_sum(copy, HR_ALL_AXES, false));
		CHECK_STATUS(away ? HR_INVALID_ARGUMENT : HR_OK, hr_gradients(y, &x, 1, &gradient));
		if (away) CHECK_CONTAINS(hr_last_message(), "belongs to another session");
		if (away) CHECK_STATUS(HR_OK, hr_session_leave());
		else CHECK_STATUS(HR_OK, hr_value_fetch(gradient, numbers, sizeof numbers));
		CHECK_EQ((int)numbers[1], 6);
		hr_tape_end();
		hr_value_release(y);
	}
	hr_value_release(x);
	CHECK_STATUS(HR_OK, hr_session_destroy(other));
	close_session();
}

TEST_MAIN(T_WITHIN(test_a_wrong_index_reaches_no_variable, 300), T(test_adding_to_a_variable_waits_until_the_error_is_returned),
          T(test_closing_tells_of_an_error_and_of_what_was_left), T(test_a_session_stays_while_its_work_cannot_be_waited_for),
          T(test_a_value_that_another_thread_releases_is_there_or_closed), T(test_gradients_go_back_through_copies_or_say_why_not))
