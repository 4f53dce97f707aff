/* test_golden.c - ops, layers, their gradients and optimizers agree with PyTorch, outside of graphs and in them.
 *
 * Expected values are in golden/, written by tools/golden.py, which documents their origin. Errors may be 1e-5 of the expected
 * number; if that number is a sum whose parts cancel, 1e-5 of the sum of their magnitudes. float32 has 6e-8, so this is room for
 * some hundred roundings, and for nothing else: a wrong sign, factor or index causes an error in the order of 1. Numbers that are 0
 * for any input (cut off by relu, masked) must be 0.
 *
 *   HR_TEST_CARD   0: on the stand-in card, which computes with the card's kernels; 1: on the machine's card */
#include "card/support_card.h"
#include "headroom_runtime.h"
#include "runtime/engine/op.h"
#include "runtime/support_golden.h"

#define ALLOWED 1e-5

/* ---- ops by their names ---- */

typedef hr_value (*op_call)(const struct golden_case *of, const hr_value *in);

static int64_t parameter(const struct golden_case *of, int i)
{
	CHECK_LT(i, of->parameter_count);
	return (int64_t)of->parameters[i];
}

static void dims_of(const struct golden_case *of, int64_t *dims)
{
	for (int i = 0; i < of->parameter_count; i++) dims[i] = parameter(of, i);
}

#define CALL(name, ...)                                                           \
	static hr_value call_##name(const struct golden_case *of, const hr_value *in) \
	{                                                                             \
		(void)of;                                                                 \
		return hr_##name(__VA_ARGS__);                                            \
	}
#define UNARY(name) CALL(name, in[0])
#define BINARY(name) CALL(name, in[0], in[1])
#define REDUCTION(name) CALL(name, in[0], (int)parameter(of, 0), parameter(of, 1))
#define WINDOW(name) CALL(name, in[0], parameter(of, 0), parameter(of, 1))

BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
BINARY(maximum)
UNARY(neg)
UNARY(exp)
UNARY(log)
UNARY(sqrt)
UNARY(tanh)
UNARY(relu)
UNARY(gelu)
BINARY(gather)
REDUCTION(reduce_sum)
REDUCTION(reduce_mean)
REDUCTION(reduce_max)
UNARY(softmax)
UNARY(causal_softmax)
BINARY(cross_entropy)
WINDOW(max_pool)
WINDOW(avg_pool)
CALL(scale, in[0], of->parameters[0], of->parameters[1])
CALL(concat, in, of->in_count, (int)parameter(of, 0))
CALL(slice, in[0], (int)parameter(of, 0), parameter(of, 1), parameter(of, 2))
CALL(one_hot, in[0], parameter(of, 0), HR_DTYPE_FLOAT32)
CALL(layer_norm, in[0], in[1], in[2], of->parameters[0])
CALL(batch_norm, in[0], in[1], in[2], of->parameters[0], NULL, NULL)
CALL(batch_norm_inference, in[0], in[1], in[2], in[3], in[4], of->parameters[0])
CALL(dropout, in[0], of->parameters[0], (uint64_t)parameter(of, 1), in[1], true)
CALL(attend, in[0], in[1], in[2], parameter(of, 0), of->parameters[1], parameter(of, 2))
CALL(conv2d, in[0], in[1], parameter(of, 0), parameter(of, 1))
CALL(cast, hr_cast(in[0], HR_DTYPE_FLOAT64), HR_DTYPE_FLOAT32)

static hr_value call_cast_bfloat16(const struct golden_case *of, const hr_value *in)
{
	(void)of;
	return hr_cast(hr_cast(in[0], HR_DTYPE_BFLOAT16), HR_DTYPE_FLOAT32);
}

static hr_value call_reshape(const struct golden_case *of, const hr_value *in)
{
	int64_t dims[GOLDEN_PARAMETERS];
	dims_of(of, dims);
	return hr_reshape(in[0], dims, of->parameter_count);
}

static hr_value call_broadcast_to(const struct golden_case *of, const hr_value *in)
{
	int64_t dims[GOLDEN_PARAMETERS];
	dims_of(of, dims);
	return hr_broadcast_to(in[0], dims, of->parameter_count);
}

static hr_value call_transpose(const struct golden_case *of, const hr_value *in)
{
	int order[GOLDEN_PARAMETERS];
	for (int i = 0; i < of->parameter_count; i++) order[i] = (int)parameter(of, i);
	return hr_transpose(in[0], order, of->parameter_count);
}

static hr_value call_matmul(const struct golden_case *of, const hr_value *in)
{
	bool a = parameter(of, 0), b = parameter(of, 1);
	return a || b ? hr_matmul_transposed(in[0], a, in[1], b) : hr_matmul(in[0], in[1]);
}

/* Name of the op, its number of inputs and of parameters; -1: any number. */
#define OPS(X)               \
	X(add, 2, 0)             \
	X(sub, 2, 0)             \
	X(mul, 2, 0)             \
	X(div, 2, 0)             \
	X(maximum, 2, 0)         \
	X(neg, 1, 0)             \
	X(exp, 1, 0)             \
	X(log, 1, 0)             \
	X(sqrt, 1, 0)            \
	X(tanh, 1, 0)            \
	X(relu, 1, 0)            \
	X(gelu, 1, 0)            \
	X(scale, 1, 2)           \
	X(cast, 1, 0)            \
	X(cast_bfloat16, 1, 0)   \
	X(reshape, 1, -1)        \
	X(transpose, 1, -1)      \
	X(concat, -1, 1)         \
	X(slice, 1, 3)           \
	X(broadcast_to, 1, -1)   \
	X(gather, 2, 0)          \
	X(one_hot, 1, 1)         \
	X(reduce_sum, 1, 2)      \
	X(reduce_mean, 1, 2)     \
	X(reduce_max, 1, 2)      \
	X(matmul, 2, 2)          \
	X(softmax, 1, 0)         \
	X(cross_entropy, 2, 0)   \
	X(causal_softmax, 1, 0)  \
	X(layer_norm, 3, 1)      \
	X(batch_norm, 3, 1)      \
	X(batch_norm_inference, 5, 1) \
	X(dropout, 2, 2)         \
	X(attend, 3, 3)          \
	X(conv2d, 2, 2)          \
	X(max_pool, 1, 2)        \
	X(avg_pool, 1, 2)

static const struct op {
	const char *name;
	op_call call;
	int in_count, parameter_count;
} ops[] = {
#define OP_ROW(name, ins, parameters) { #name, call_##name, ins, parameters },
	OPS(OP_ROW)
#undef OP_ROW
};

#define OP_COUNT (sizeof ops / sizeof *ops)

static const struct op *op_of(const struct golden_file *file, const struct golden_case *of)
{
	for (size_t i = 0; i < OP_COUNT; i++) {
		if (strcmp(ops[i].name, of->op) != 0) continue;
		if ((ops[i].in_count >= 0 && ops[i].in_count != of->in_count) || of->out_count != 1
		    || (ops[i].parameter_count >= 0 && ops[i].parameter_count != of->parameter_count))
			golden_bad(file, "a case of %s has not as many tensors or parameters as it takes", of->op);
		return &ops[i];
	}
	golden_bad(file, "there is no op \"%s\"", of->op);
}

/* ---- values ---- */

static hr_session session;

static void open_session(void)
{
	bool on_card = getenv("HR_TEST_CARD") != NULL;
	if (on_card) card_begin();
	session = card_session("GPU:0", (hr_allocator){ 0 });
	if (on_card) CHECK_STATUS(HR_OK, hr_session_compute_check(session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
}

static void close_session(void)
{
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static hr_value value_of(const struct golden_tensor *tensor)
{
	union { float f32; int32_t i32; int64_t i64; } *data = calloc((size_t)tensor->count + 1, sizeof *data);
	for (int64_t i = 0; i < tensor->count; i++) {
		if (tensor->dtype == HR_DTYPE_FLOAT32) ((float *)data)[i] = (float)tensor->values[i];
		else if (tensor->dtype == HR_DTYPE_INT32) ((int32_t *)data)[i] = (int32_t)tensor->values[i];
		else ((int64_t *)data)[i] = (int64_t)tensor->values[i];
	}
	hr_value value = hr_constant(tensor->dtype, tensor->dims, tensor->rank, data);
	free(data);
	return value;
}

static double worst; /* the largest error so far, relative to its scale */

/* Prints the case if the status is an error. */
static void need(const struct golden_file *file, const struct golden_case *of, hr_status status, const char *where)
{
	if (status != HR_OK) printf("# %s:%d: %s, %s\n", file->path, of->line, of->op, where);
	CHECK_STATUS(HR_OK, status);
}

/* Fetches [value] and compares it. */
static void compare(const struct golden_file *file, const struct golden_case *of, hr_value value, const struct golden_tensor *with, const char *what,
                    const char *where)
{
	if (!value.id) printf("# %s:%d: %s, %s, %s: %s\n", file->path, of->line, of->op, what, where, hr_last_message());
	CHECK(value.id != 0);
	CHECK_EQ(hr_value_rank(value), with->rank);
	for (int i = 0; i < with->rank; i++) CHECK_EQ(hr_value_dim(value, i), with->dims[i]);
	float *found = calloc((size_t)with->count + 1, sizeof *found);
	CHECK_STATUS(HR_OK, hr_value_fetch(value, found, (size_t)with->count * sizeof *found));
	for (int64_t i = 0; i < with->count; i++) {
		double off = fabs((double)found[i] - with->values[i]);
		if (off > worst * with->scales[i] && with->scales[i] > 0) worst = off / with->scales[i];
		if (off <= ALLOWED * with->scales[i]) continue; /* false for NaN */
		printf("# %s:%d: %s, %s, %s: element %lld is %.9g, expected %.9g of a scale of %.2g\n", file->path, of->line, of->op, what, where,
		       (long long)i, (double)found[i], with->values[i], with->scales[i]);
		CHECK(false);
	}
	free(found);
}

static const char *gradient_name(int input)
{
	static const char *const names[] = { "gradient by input 0", "gradient by input 1", "gradient by input 2", "gradient by a later input" };
	return names[input < 3 ? input : 3];
}

/* ---- outside of graphs ---- */

static hr_value weighted(hr_value y, hr_value weights)
{
	return hr_reduce_sum(hr_mul(y, weights), HR_ALL_AXES, false);
}

static void check_eager(const struct golden_file *file, const struct golden_case *of)
{
	const char *where = "outside of a graph";
	hr_value in[GOLDEN_TENSORS], by[GOLDEN_TENSORS], gradients[GOLDEN_TENSORS];
	for (int i = 0; i < of->in_count; i++) in[i] = hr_value_keep(value_of(&of->in[i]));
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value y = hr_value_keep(op_of(file, of)->call(of, in));
	compare(file, of, y, &of->out[0], "output", where);
	if (of->grad_count) {
		hr_value sum = hr_value_keep(weighted(y, value_of(&of->weights)));
		for (int i = 0; i < of->grad_count; i++) by[i] = in[of->grad[i].input];
		need(file, of, hr_gradients(sum, by, (size_t)of->grad_count, gradients), where);
		hr_value_release(sum);
	}
	CHECK_STATUS(HR_OK, hr_tape_end());
	hr_value_release(y);
	for (int i = 0; i < of->grad_count; i++) compare(file, of, gradients[i], &of->grad[i], gradient_name(of->grad[i].input), where);
	for (int i = 0; i < of->in_count; i++) hr_value_release(in[i]);
}

/* ---- in graphs ---- */

static void check_graph(const struct golden_file *file, const struct golden_case *of)
{
	const char *where = "in a graph";
	hr_graph graph;
	hr_value in[GOLDEN_TENSORS], by[GOLDEN_TENSORS], fetches[1 + GOLDEN_TENSORS], outs[1 + GOLDEN_TENSORS];
	hr_feed feeds[1 + GOLDEN_TENSORS];
	size_t feed_count = (size_t)of->in_count, fetch_count = 1 + (size_t)of->grad_count;
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	for (int i = 0; i < of->in_count; i++) in[i] = feeds[i].placeholder = hr_placeholder(of->in[i].dtype, of->in[i].dims, of->in[i].rank);
	fetches[0] = op_of(file, of)->call(of, in);
	if (of->grad_count) {
		hr_value weights = feeds[feed_count++].placeholder = hr_placeholder(HR_DTYPE_FLOAT32, of->weights.dims, of->weights.rank);
		for (int i = 0; i < of->grad_count; i++) by[i] = in[of->grad[i].input];
		need(file, of, hr_gradients(weighted(fetches[0], weights), by, (size_t)of->grad_count, fetches + 1), where);
	}
	CHECK_STATUS(HR_OK, hr_graph_leave());
	for (int i = 0; i < of->in_count; i++) feeds[i].value = value_of(&of->in[i]);
	if (of->grad_count) feeds[of->in_count].value = value_of(&of->weights);
	need(file, of, hr_session_run(session, feeds, feed_count, fetches, fetch_count, outs, NULL, NULL), where);
	compare(file, of, outs[0], &of->out[0], "output", where);
	for (int i = 0; i < of->grad_count; i++) compare(file, of, outs[1 + i], &of->grad[i], gradient_name(of->grad[i].input), where);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
}

/* ---- all cases ---- */

static const char *const op_files[] = { "elementwise", "bfloat16", "shape", "reduce", "matrix", "loss", "norm", "attention", "dropout", "window" };
#define OP_FILES (sizeof op_files / sizeof *op_files)

static void each_case(void (*check)(const struct golden_file *file, const struct golden_case *of))
{
	open_session();
	for (size_t i = 0; i < OP_FILES; i++) {
		struct golden_file file;
		struct golden_case of;
		golden_open(&file, op_files[i]);
		while (golden_read(&file, &of)) {
			check(&file, &of);
			golden_free(&of);
		}
	}
	printf("# errors are %.2g at most, of %.2g\n", worst, ALLOWED);
	close_session();
}

static void test_ops_are_those_of_pytorch_outside_of_graphs(void)
{
	each_case(check_eager);
}

static void test_ops_are_those_of_pytorch_in_graphs(void)
{
	each_case(check_graph);
}

/* ---- coverage ---- */

/* Ops that only gradients and variables call; their callers have cases. */
static bool is_inner(const char *name)
{
	static const char *const names[] = { "sum_to", "scatter_rows", "pad", "copy" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(names[i], name) == 0) return true;
	return false;
}

/* Scalars, empty values, and gradients with respect to every float input. */
static void look_at(const struct golden_file *file, const struct golden_case *of, bool *empty)
{
	int floats = 0;
	for (int i = 0; i < of->in_count; i++) {
		floats += of->in[i].dtype == HR_DTYPE_FLOAT32;
		if (of->in[i].count == 0) *empty = true;
	}
	if (of->grad_count != floats) golden_bad(file, "%s: gradients by %d of %d inputs", of->op, of->grad_count, floats);
}

static void test_every_op_with_a_gradient_has_cases(void)
{
	bool seen[OP_COUNT] = { false }, empty[OP_COUNT] = { false };
	for (size_t i = 0; i < OP_FILES; i++) {
		struct golden_file file;
		struct golden_case of;
		golden_open(&file, op_files[i]);
		while (golden_read(&file, &of)) {
			size_t op = (size_t)(op_of(&file, &of) - ops);
			seen[op] = true;
			look_at(&file, &of, &empty[op]);
			golden_free(&of);
		}
	}
	for (size_t i = 0; i < OP_COUNT; i++) {
		if (!seen[i] || !empty[i]) printf("# %s has no case%s\n", ops[i].name, seen[i] ? " of nothing" : "");
		CHECK(seen[i] && empty[i]);
	}
	for (int k = 0; k < HR__OP_COUNT; k++) {
		bool found = !hr__ops[k].gradient || is_inner(hr__ops[k].name);
		for (size_t i = 0; i < OP_COUNT && !found; i++) found = strcmp(ops[i].name, hr__ops[k].name) == 0;
		if (!found) printf("# op \"%s\" has a gradient and no cases\n", hr__ops[k].name);
		CHECK(found);
	}
}

/* ---- layers ---- */

/* All float inputs of a layer are variables here, its own and its arguments, so that gradients with respect to all of them are
 * computed at once. */
static hr_value layer_of(const struct golden_file *file, const struct golden_case *of, hr_value x)
{
	const double *p = of->parameters;
	if (strcmp(of->op, "dense") == 0) return hr_dense("layer", x, (int64_t)p[0], (hr_activation)p[1], 1);
	if (strcmp(of->op, "conv_layer") == 0)
		return hr_conv_layer("layer", x, (int64_t)p[0], (int64_t)p[1], (int64_t)p[2], (int64_t)p[3], (hr_activation)p[4], 1);
	if (strcmp(of->op, "embedding") == 0) return hr_embedding("layer", x, (int64_t)p[0], (int64_t)p[1], HR_DTYPE_FLOAT32, 1);
	if (strcmp(of->op, "layer_norm_layer") == 0) return hr_layer_norm_layer("layer", x);
	if (strcmp(of->op, "batch_norm_layer") == 0) return hr_batch_norm_layer("layer", x, p[0], p[1] != 0);
	if (strcmp(of->op, "attention") == 0) return hr_attention("layer", x, (int64_t)p[0], p[1] != 0, 1);
	golden_bad(file, "there is no layer \"%s\"", of->op);
}

struct layer {
	hr_variable x, variables[GOLDEN_TENSORS];
	hr_value indices; /* if it takes no floats */
	size_t count;
};

static hr_value input_of(const struct layer *layer)
{
	return layer->x.id ? hr_variable_read(layer->x) : layer->indices;
}

/* Creates the variables, in the order of the case's gradients. */
static void make_layer(const struct golden_file *file, const struct golden_case *of, struct layer *layer)
{
	const struct golden_tensor *x = &of->in[0];
	memset(layer, 0, sizeof *layer);
	if (x->dtype == HR_DTYPE_FLOAT32) layer->x = hr_get_variable("x", x->dtype, x->dims, x->rank, HR_ZEROS);
	else layer->indices = hr_value_keep(value_of(x));
	hr_value_release(layer_of(file, of, input_of(layer)));
	layer->count = hr_trainable_variables(layer->variables, GOLDEN_TENSORS);
	CHECK_EQ(layer->count, of->grad_count);
}

static void layer_eager(const struct golden_file *file, const struct golden_case *of)
{
	const char *where = "outside of a graph";
	struct layer layer;
	hr_value gradients[GOLDEN_TENSORS];
	make_layer(file, of, &layer);
	for (size_t i = 0; i < layer.count; i++) CHECK(hr_assign(layer.variables[i], value_of(&of->in[of->grad[i].input])).id != 0);
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value y = hr_value_keep(layer_of(file, of, input_of(&layer)));
	compare(file, of, y, &of->out[0], "output", where);
	hr_value sum = hr_value_keep(weighted(y, value_of(&of->weights)));
	need(file, of, hr_variable_gradients(sum, layer.variables, layer.count, gradients), where);
	CHECK_STATUS(HR_OK, hr_tape_end());
	hr_value_release(sum);
	hr_value_release(y);
	hr_value_release(layer.indices);
	for (size_t i = 0; i < layer.count; i++) compare(file, of, gradients[i], &of->grad[i], gradient_name(of->grad[i].input), where);
}

static void layer_graph(const struct golden_file *file, const struct golden_case *of)
{
	const char *where = "in a graph";
	struct layer layer;
	hr_value fetches[1 + GOLDEN_TENSORS], outs[1 + GOLDEN_TENSORS], begin[GOLDEN_TENSORS];
	hr_graph graph;
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	make_layer(file, of, &layer);
	for (size_t i = 0; i < layer.count; i++) begin[i] = hr_assign(layer.variables[i], value_of(&of->in[of->grad[i].input]));
	fetches[0] = layer_of(file, of, input_of(&layer));
	need(file, of, hr_variable_gradients(weighted(fetches[0], value_of(&of->weights)), layer.variables, layer.count, fetches + 1), where);
	hr_value ready = hr_global_variables_initializer();
	CHECK_STATUS(HR_OK, hr_graph_leave());
	need(file, of, hr_session_run(session, NULL, 0, &ready, 1, outs, NULL, NULL), where);
	hr_value_release(outs[0]);
	need(file, of, hr_session_run(session, NULL, 0, begin, layer.count, outs, NULL, NULL), where);
	for (size_t i = 0; i < layer.count; i++) hr_value_release(outs[i]);
	need(file, of, hr_session_run(session, NULL, 0, fetches, 1 + layer.count, outs, NULL, NULL), where);
	compare(file, of, outs[0], &of->out[0], "output", where);
	for (size_t i = 0; i < layer.count; i++) compare(file, of, outs[1 + i], &of->grad[i], gradient_name(of->grad[i].input), where);
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
}

/* Each case runs in a session of its own, because variables belong to sessions; existing variables are reused. */
static void each_with_variables(const char *name, void (*check)(const struct golden_file *file, const struct golden_case *of))
{
	struct golden_file file;
	struct golden_case of;
	golden_open(&file, name);
	while (golden_read(&file, &of)) {
		open_session();
		CHECK_STATUS(HR_OK, hr_variable_scope_push("golden", HR_REUSE_OR_MAKE));
		check(&file, &of);
		CHECK_STATUS(HR_OK, hr_variable_scope_pop());
		CHECK_STATUS(HR_OK, hr_session_leave());
		CHECK_STATUS(HR_OK, hr_session_destroy(session));
		golden_free(&of);
	}
	printf("# errors are %.2g at most, of %.2g\n", worst, ALLOWED);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_layers_are_those_of_pytorch_outside_of_graphs(void)
{
	each_with_variables("layers", layer_eager);
}

static void test_layers_are_those_of_pytorch_in_graphs(void)
{
	each_with_variables("layers", layer_graph);
}

/* ---- optimizers ---- */

/* Inputs of a case: the variable's initial value, and the gradient of each step; outputs: the variable after each step. */
static hr_optimizer optimizer_of(const struct golden_file *file, const struct golden_case *of)
{
	static const struct {
		const char *name;
		hr_optimizer_kind kind;
		int parameters;
	} kinds[] = { { "sgd", HR_SGD, 1 }, { "momentum", HR_MOMENTUM, 2 }, { "adam", HR_ADAM, 4 } };
	hr_optimizer optimizer;
	for (int i = 0; i < 3; i++) {
		if (strcmp(kinds[i].name, of->op) != 0) continue;
		if (of->parameter_count != kinds[i].parameters || of->in_count != 1 + of->out_count) break;
		hr_optimizer_init(&optimizer, kinds[i].kind);
		optimizer.learning_rate = of->parameters[0];
		if (kinds[i].kind == HR_MOMENTUM) optimizer.momentum = of->parameters[1];
		if (kinds[i].kind != HR_ADAM) return optimizer;
		optimizer.beta1 = of->parameters[1];
		optimizer.beta2 = of->parameters[2];
		optimizer.epsilon = of->parameters[3];
		return optimizer;
	}
	golden_bad(file, "\"%s\" is no optimizer with so many parameters", of->op);
}

static void optimize_eager(const struct golden_file *file, const struct golden_case *of)
{
	hr_optimizer optimizer = optimizer_of(file, of);
	hr_variable variable = hr_get_variable("x", HR_DTYPE_FLOAT32, of->in[0].dims, of->in[0].rank, HR_UNINITIALIZED);
	CHECK(variable.id != 0);
	CHECK(hr_assign(variable, value_of(&of->in[0])).id != 0);
	for (int i = 0; i < of->out_count; i++) {
		hr_value gradient = value_of(&of->in[1 + i]);
		CHECK(hr_apply_gradients(&optimizer, &variable, &gradient, 1).id != 0);
		compare(file, of, hr_variable_read(variable), &of->out[i], "variable", "outside of a graph");
	}
}

static void optimize_graph(const struct golden_file *file, const struct golden_case *of)
{
	hr_optimizer optimizer = optimizer_of(file, of);
	const struct golden_tensor *first = &of->in[0];
	hr_graph graph;
	hr_value outs[2];
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	hr_variable variable = hr_get_variable("x", HR_DTYPE_FLOAT32, first->dims, first->rank, HR_UNINITIALIZED);
	hr_value fed = hr_placeholder(HR_DTYPE_FLOAT32, first->dims, first->rank), begin = hr_assign(variable, fed);
	hr_value step[2] = { hr_apply_gradients(&optimizer, &variable, &fed, 1), hr_variable_read(variable) };
	hr_value initializer = hr_global_variables_initializer();
	CHECK_STATUS(HR_OK, hr_graph_leave());
	CHECK(begin.id && step[0].id && step[1].id && initializer.id);
	CHECK_STATUS(HR_OK, hr_session_run(session, NULL, 0, &initializer, 1, outs, NULL, NULL));
	hr_value_release(outs[0]);
	CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ fed, value_of(first) }, 1, &begin, 1, outs, NULL, NULL));
	hr_value_release(outs[0]);
	for (int i = 0; i < of->out_count; i++) {
		CHECK_STATUS(HR_OK, hr_session_run(session, &(hr_feed){ fed, value_of(&of->in[1 + i]) }, 1, step, 2, outs, NULL, NULL));
		hr_value_release(outs[0]);
		compare(file, of, outs[1], &of->out[i], "variable", "in a graph");
	}
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
}

static void test_optimizers_are_those_of_pytorch_outside_of_graphs(void)
{
	each_with_variables("optimizers", optimize_eager);
}

static void test_optimizers_are_those_of_pytorch_in_graphs(void)
{
	each_with_variables("optimizers", optimize_graph);
}

/* ---- invalid files ---- */

struct damage {
	const char *text; /* NULL: the file does not exist */
	bool accepted;
};

static const struct damage damages[] = {
	{ "# fine\ncase neg\nin float32 [2] 1 2 weights [2] 1 1 out [2] -1 -2~3 grad 0 [2] -1 -1\nend 1\n", true },
	{ NULL, false },
	{ " ", false },
	{ "end 0\n", false },
	{ "case neg in float32 [2] 1 2 weights [2] 1 1 out [2] -1 -2 grad 0 [2] -1 -1\n", false }, /* no end */
	{ "case neg in float32 [2] 1 2 weights [2] 1 1 out [2] -1", false },
	{ "case neg in float32 [2] 1 2 weights [2] 1 1 out [2] -1 -2 grad 0 [2] -1 -1 end 2", false },
	{ "case neg in float32 [2] 1 2 3 out [2] -1 -2 end 1", false },
	{ "case neg in float32 [2] 1 x out [2] -1 -2 end 1", false },
	{ "case neg in float32 [2] 1 nan out [2] -1 -2 end 1", false },
	{ "case neg in float32 [2] 1 2 out [2] -1 -2~ end 1", false },
	{ "case neg in float32 [2 1 2 out [2] -1 -2 end 1", false },
	{ "case neg in float32 [-2] 1 2 out [2] -1 -2 end 1", false },
	{ "case neg in float99 [2] 1 2 out [2] -1 -2 end 1", false },
	{ "case neg in float32 [2] 1 2 out [2] -1 -2 grad 1 [2] -1 -1 end 1", false },
	{ "case neg in float32 [2] 1 2 out [2] -1 -2 end 1 case", false },
	{ "<<<<<<< HEAD\ncase neg in float32 [2] 1 2 out [2] -1 -2 end 1", false },
};

static void read_damaged(void *argument)
{
	const struct damage *damage = argument;
	struct golden_file file = { .path = "memory", .line = 1 };
	struct golden_case of;
	/* Its output must not look like a failure of this test. */
	if (!freopen("/dev/null", "w", stdout)) _exit(2);
	if (damage->text == NULL) golden_open(&file, "there is none of this name");
	file.stream = fmemopen((void *)(uintptr_t)damage->text, strlen(damage->text), "r");
	if (!file.stream) _exit(2);
	golden_next(&file);
	while (golden_read(&file, &of)) golden_free(&of);
	_exit(0);
}

static void test_a_file_that_is_missing_cut_or_garbled_fails(void)
{
	for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
		struct damage damage = damages[i];
		int status = hr_test_in_child(read_damaged, &damage);
		printf("# damage %zu: status %d\n", i, status);
		CHECK(WIFEXITED(status));
		CHECK_EQ(WEXITSTATUS(status), damage.accepted ? 0 : 1);
	}
}

TEST_MAIN(T(test_ops_are_those_of_pytorch_outside_of_graphs), T(test_ops_are_those_of_pytorch_in_graphs), T(test_every_op_with_a_gradient_has_cases),
          T(test_layers_are_those_of_pytorch_outside_of_graphs), T(test_layers_are_those_of_pytorch_in_graphs),
          T(test_optimizers_are_those_of_pytorch_outside_of_graphs), T(test_optimizers_are_those_of_pytorch_in_graphs),
          T(test_a_file_that_is_missing_cut_or_garbled_fails))
