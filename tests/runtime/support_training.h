/* support_training.h - training of the models of examples/models.h: a step, op by op, in a function or in a graph, and all weights.
 * */
#ifndef HR_TESTS_SUPPORT_TRAINING_H
#define HR_TESTS_SUPPORT_TRAINING_H

#include "../../examples/models.h"
#include "headroom.h"
#include "headroom_runtime.h"
#include "test.h"

enum how { BY_OP, BY_FUNCTION, BY_GRAPH, HOW_COUNT };
static const char *const how_names[] = { "op by op", "in a function", "in a graph" };

/* A training, in the thread's current session. */
struct training {
	const struct model *model;
	enum how how;
	bool checkpointed;
	hr_optimizer optimizer;
	hr_session session; /* BY_GRAPH: the session that runs it */
	hr_function function;
	hr_graph graph;
	hr_value x, labels, loss, done; /* of the graph; [started]: all its variables have contents */
	bool started;
};

static hr_status training_body(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count)
{
	const struct training *training = context;
	CHECK_EQ(in_count, 2);
	CHECK_EQ(out_count, 1);
	outs[0] = model_train(training->model, ins[0], ins[1], &training->optimizer, training->checkpointed);
	return outs[0].id ? HR_OK : hr_last_status();
}

static hr_value training_place_like(hr_value value)
{
	int64_t dims[HR_SHAPE_MAX_RANK];
	if (!value.id) return HR_NO_VALUE;
	for (int i = 0; i < hr_value_rank(value); i++) dims[i] = hr_value_dim(value, i);
	return hr_placeholder(hr_value_dtype(value), dims, hr_value_rank(value));
}

/* Called inside the graph. */
static hr_status training_build_step(struct training *training)
{
	hr_variable variables[256];
	const struct model *model = training->model;
	training->x = training_place_like(model->inputs(model, 0)); /* these nodes are never run */
	training->labels = training->x.id ? training_place_like(model->labels(model, 0)) : HR_NO_VALUE;
	if (!training->labels.id) return hr_last_status();
	hr_status status = hr_variable_scope_push(model->name, HR_REUSE_OR_MAKE);
	if (status) return status;
	hr_value logits = model->logits(model, training->x, training->checkpointed);
	training->loss = hr_reduce_mean(hr_cross_entropy(logits, training->labels), HR_ALL_AXES, false);
	training->done = HR_NO_VALUE;
	if (training->loss.id) training->done = hr_minimize(&training->optimizer, training->loss, variables, hr_trainable_variables(variables, 256));
	status = training->done.id ? HR_OK : hr_last_status();
	CHECK_STATUS(HR_OK, hr_variable_scope_pop());
	return status;
}

/* Builds the graph of a step, completely or not at all. */
static hr_status training_build(struct training *training)
{
	hr_status status = hr_graph_create(&training->graph);
	if (status) return status;
	CHECK_STATUS(HR_OK, hr_graph_enter(training->graph));
	status = training_build_step(training);
	CHECK_STATUS(HR_OK, hr_graph_leave());
	if (!status) return HR_OK;
	CHECK_STATUS(HR_OK, hr_graph_destroy(training->graph));
	training->graph.id = 0;
	return status;
}

static hr_status training_start(struct training *training)
{
	hr_value count;
	hr_status status = training->graph.id ? HR_OK : training_build(training);
	if (status || training->started) return status;
	CHECK_STATUS(HR_OK, hr_graph_enter(training->graph));
	hr_value start = hr_global_variables_initializer();
	CHECK_STATUS(HR_OK, hr_graph_leave());
	if (!start.id) return hr_last_status();
	status = hr_session_run(training->session, NULL, 0, &start, 1, &count, NULL, NULL);
	if (status) return status;
	hr_value_release(count);
	training->started = true;
	return HR_OK;
}

HR_TEST_UNUSED static void training_begin(struct training *training)
{
	training->graph.id = 0;
	training->started = false;
	if (training->how == BY_FUNCTION) CHECK_STATUS(HR_OK, hr_function_create("train", training_body, training, &training->function));
}

HR_TEST_UNUSED static void training_end(struct training *training)
{
	if (training->how == BY_FUNCTION) CHECK_STATUS(HR_OK, hr_function_destroy(training->function));
	if (training->how == BY_GRAPH && training->graph.id) CHECK_STATUS(HR_OK, hr_graph_destroy(training->graph));
}

static hr_status training_run(struct training *training, hr_value x, hr_value labels, hr_value *loss)
{
	hr_value ins[] = { x, labels }, outs[2], wanted[2];
	hr_status status;
	*loss = HR_NO_VALUE;
	switch (training->how) {
	case BY_FUNCTION: return hr_function_call(training->function, ins, 2, loss, 1);
	case BY_GRAPH:
		status = training_start(training);
		if (status) {
			hr_value_release(x);
			hr_value_release(labels);
			return status;
		}
		wanted[0] = training->loss;
		wanted[1] = training->done;
		status = hr_session_run(training->session, (hr_feed[]){ { training->x, x }, { training->labels, labels } }, 2, wanted, 2, outs, NULL, NULL);
		if (status) return status;
		*loss = outs[0];
		hr_value_release(outs[1]);
		return HR_OK;
	default: *loss = model_train(training->model, x, labels, &training->optimizer, training->checkpointed);
	}
	return loss->id ? HR_OK : hr_last_status();
}

/* Runs one step. An error has a message. */
HR_TEST_UNUSED static hr_status training_step(struct training *training, uint64_t step, float *out)
{
	hr_value x = training->model->inputs(training->model, step), loss;
	hr_value labels = x.id ? training->model->labels(training->model, step) : HR_NO_VALUE;
	if (!labels.id) {
		hr_status why = hr_last_status();
		hr_value_release(x);
		return why;
	}
	hr_status status = training_run(training, x, labels, &loss);
	return status ? status : hr_value_fetch(loss, out, sizeof *out);
}

/* Copies all weights to [out]; returns how many numbers. BY_GRAPH they are the graph's variables, else those of the session. */
HR_TEST_UNUSED static size_t training_weights(const struct training *training, float *out, size_t capacity)
{
	hr_variable variables[256];
	size_t used = 0;
	bool in_graph = training->how == BY_GRAPH;
	if (in_graph) CHECK_STATUS(HR_OK, hr_graph_enter(training->graph));
	size_t count = hr_trainable_variables(variables, 256);
	CHECK_LE(count, 256);
	for (size_t i = 0; i < count; i++) {
		hr_value value = hr_variable_read(variables[i]), got = value;
		if (in_graph) {
			CHECK_STATUS(HR_OK, hr_graph_leave());
			CHECK_STATUS(HR_OK, hr_session_run(training->session, NULL, 0, &value, 1, &got, NULL, NULL));
			CHECK_STATUS(HR_OK, hr_graph_enter(training->graph));
		}
		size_t numbers = (size_t)hr_value_count(got);
		CHECK_LE(used + numbers, capacity);
		CHECK_STATUS(HR_OK, hr_value_fetch(got, out + used, numbers * sizeof *out));
		used += numbers;
	}
	if (in_graph) CHECK_STATUS(HR_OK, hr_graph_leave());
	return used;
}

#endif
