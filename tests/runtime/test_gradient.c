/* test_gradient.c - gradients through the engine, outside of graphs and in one, compared with finite differences in float64.
 *
 * test_op_gradients.c tests every op's own gradient. Here is one case for each aspect of the engine: which inputs and outputs a
 * tape keeps, results used more than once, shared memory, several inputs and outputs. A case is a function of up to three tensors.
 * Its output is multiplied by fixed random numbers before it is summed, so that every element of the output has a different weight;
 * then each element of each input is changed a little in both directions. */
#include <math.h>

#include "headroom.h"
#include "headroom_runtime.h"
#include "test.h"

#define INPUTS 5
#define ELEMENTS 64
#define STEP 1e-5

struct input {
	int64_t dims[4];
	int rank;
	double low, high; /* of its elements */
};

struct trial {
	const char *name;
	int count;
	struct input inputs[INPUTS];
	hr_value (*function)(const hr_value *in);
};

/* ---- the functions ---- */

static hr_value f_add(const hr_value *in) { return hr_add(in[0], in[1]); }
static hr_value f_mul(const hr_value *in) { return hr_mul(in[0], in[1]); }
static hr_value f_square(const hr_value *in) { return hr_mul(in[0], in[0]); }
static hr_value f_div(const hr_value *in) { return hr_div(in[0], in[1]); }
static hr_value f_exp(const hr_value *in) { return hr_exp(in[0]); }
static hr_value f_gelu(const hr_value *in) { return hr_gelu(in[0]); }
static hr_value f_reshape(const hr_value *in) { return hr_exp(hr_reshape(in[0], HR_DIMS(3, -1))); }
static hr_value f_concat(const hr_value *in) { return hr_concat(in, 3, 1); }
static hr_value f_slice(const hr_value *in) { return hr_slice(in[0], 1, 1, 2); }
static hr_value f_slice_rows(const hr_value *in) { return hr_exp(hr_slice(in[0], 0, 1, 2)); }
static hr_value f_max(const hr_value *in) { return hr_reduce_max(in[0], 1, false); }
static hr_value f_matmul(const hr_value *in) { return hr_matmul(in[0], in[1]); }
static hr_value f_softmax(const hr_value *in) { return hr_softmax(in[0]); }
static hr_value f_causal(const hr_value *in) { return hr_causal_softmax(in[0]); }
static hr_value f_layer_norm(const hr_value *in) { return hr_layer_norm(in[0], in[1], in[2], 1e-5); }
static hr_value f_attend(const hr_value *in) { return hr_attend(in[0], in[1], in[2], 2, 0.5, true); }
static hr_value f_batch_norm(const hr_value *in) { return hr_batch_norm(in[0], in[1], in[2], 1e-5, NULL, NULL); }
static hr_value f_fixed_norm(const hr_value *in) { return hr_batch_norm_inference(in[0], in[1], in[2], in[3], in[4], 1e-5); }
static hr_value f_dropout(const hr_value *in) { return hr_exp(hr_dropout(in[0], 0.5, 7, hr_full(HR_DTYPE_INT64, HR_SCALAR, 3), true)); }
static hr_value f_conv(const hr_value *in) { return hr_conv2d(in[0], in[1], 1, 1); }
static hr_value f_max_pool(const hr_value *in) { return hr_max_pool(in[0], 2, 1); }
static hr_value f_avg_pool(const hr_value *in) { return hr_avg_pool(in[0], 2, 2); }
static hr_value f_gather(const hr_value *in) { return hr_gather(in[0], hr_constant(HR_DTYPE_INT32, HR_DIMS(2, 2), (int32_t[]){ 3, 0, 3, 1 })); }
static hr_value f_cross_entropy(const hr_value *in) { return hr_cross_entropy(in[0], hr_constant(HR_DTYPE_INT64, HR_DIMS(3), (int64_t[]){ 2, 0, 3 })); }
/* One result with several users. */
static hr_value f_diamond(const hr_value *in)
{
	hr_value a = hr_value_keep(hr_exp(in[0]));
	hr_value b = hr_add(hr_mul(a, in[0]), hr_tanh(a));
	hr_value_release(a);
	return b;
}
static hr_value f_layer(const hr_value *in) { return hr_softmax(hr_add(hr_matmul(hr_relu(in[0]), in[1]), in[2])); }

static const struct trial trials[] = {
	{ "add, a row", 2, { { { 2, 3 }, 2, -1, 1 }, { { 3 }, 1, -1, 1 } }, f_add },
	{ "mul", 2, { { { 2, 3 }, 2, -1, 1 }, { { 2, 1 }, 2, -1, 1 } }, f_mul },
	{ "mul by itself", 1, { { { 5 }, 1, -1, 1 } }, f_square },
	{ "div", 2, { { { 2, 3 }, 2, -1, 1 }, { { 3 }, 1, 1, 2 } }, f_div },
	{ "exp", 1, { { { 4 }, 1, -1, 1 } }, f_exp },
	{ "gelu", 1, { { { 9 }, 1, -2, 2 } }, f_gelu },
	{ "reshape", 1, { { { 2, 6 }, 2, -1, 1 } }, f_reshape },
	{ "concat", 3, { { { 2, 1 }, 2, -1, 1 }, { { 2, 3 }, 2, -1, 1 }, { { 2, 2 }, 2, -1, 1 } }, f_concat },
	{ "slice", 1, { { { 2, 4, 3 }, 3, -1, 1 } }, f_slice },
	{ "slice, side by side", 1, { { { 4, 3 }, 2, -1, 1 } }, f_slice_rows },
	{ "reduce_max", 1, { { { 3, 5 }, 2, -1, 1 } }, f_max },
	{ "matmul", 2, { { { 2, 3 }, 2, -1, 1 }, { { 3, 4 }, 2, -1, 1 } }, f_matmul },
	{ "softmax", 1, { { { 3, 4 }, 2, -1, 1 } }, f_softmax },
	{ "softmax, causal", 1, { { { 3, 4 }, 2, -1, 1 } }, f_causal },
	{ "layer_norm", 3, { { { 3, 4 }, 2, -1, 1 }, { { 4 }, 1, -1, 1 }, { { 4 }, 1, -1, 1 } }, f_layer_norm },
	{ "attend", 3, { { { 3, 4 }, 2, -1, 1 }, { { 3, 4 }, 2, -1, 1 }, { { 3, 2 }, 2, -1, 1 } }, f_attend },
	{ "batch_norm", 3, { { { 4, 3, 2 }, 3, -1, 1 }, { { 3 }, 1, -1, 1 }, { { 3 }, 1, -1, 1 } }, f_batch_norm },
	{ "batch_norm, inference", 5, { { { 2, 3, 2 }, 3, -1, 1 }, { { 3 }, 1, -1, 1 }, { { 3 }, 1, 1, 2 }, { { 3 }, 1, -1, 1 }, { { 3 }, 1, -1, 1 } }, f_fixed_norm },
	{ "dropout", 1, { { { 3, 4 }, 2, -1, 1 } }, f_dropout },
	{ "conv2d", 2, { { { 1, 2, 4, 4 }, 4, -1, 1 }, { { 2, 2, 3, 3 }, 4, -1, 1 } }, f_conv },
	{ "max_pool", 1, { { { 1, 2, 4, 4 }, 4, -1, 1 } }, f_max_pool },
	{ "avg_pool", 1, { { { 1, 2, 4, 4 }, 4, -1, 1 } }, f_avg_pool },
	{ "gather", 1, { { { 4, 3 }, 2, -1, 1 } }, f_gather },
	{ "cross_entropy", 1, { { { 3, 4 }, 2, -2, 2 } }, f_cross_entropy },
	{ "a diamond", 1, { { { 3 }, 1, -1, 1 } }, f_diamond },
	{ "a layer", 3, { { { 4, 3 }, 2, -1, 1 }, { { 3, 5 }, 2, -1, 1 }, { { 5 }, 1, -1, 1 } }, f_layer },
};

/* ---- comparing ---- */

static hr_session session;

struct data {
	double x[INPUTS][ELEMENTS];
	int64_t count[INPUTS];
};

static hr_value weighted(hr_value y)
{
	int rank = hr_value_rank(y);
	int64_t dims[4];
	for (int i = 0; i < rank; i++) dims[i] = hr_value_dim(y, i);
	return hr_reduce_sum(hr_mul(y, hr_random_normal(HR_DTYPE_FLOAT64, dims, rank, 77)), HR_ALL_AXES, false);
}

static void make_inputs(const struct trial *trial, const struct data *data, hr_value *in)
{
	for (int i = 0; i < trial->count; i++)
		in[i] = hr_value_keep(hr_constant(HR_DTYPE_FLOAT64, trial->inputs[i].dims, trial->inputs[i].rank, data->x[i]));
}

static void release_all(const hr_value *in, int count)
{
	for (int i = 0; i < count; i++) hr_value_release(in[i]);
}

static double value_of(const struct trial *trial, const struct data *data)
{
	hr_value in[INPUTS];
	double result;
	make_inputs(trial, data, in);
	CHECK_STATUS(HR_OK, hr_value_fetch(weighted(trial->function(in)), &result, sizeof result));
	release_all(in, trial->count);
	return result;
}

static void compare(const struct trial *trial, struct data *data, hr_value *gradients, const char *where)
{
	for (int i = 0; i < trial->count; i++) {
		double found[ELEMENTS];
		CHECK_EQ(hr_value_count(gradients[i]), data->count[i]);
		CHECK_STATUS(HR_OK, hr_value_fetch(gradients[i], found, (size_t)data->count[i] * sizeof(double)));
		for (int64_t k = 0; k < data->count[i]; k++) {
			double at = data->x[i][k];
			data->x[i][k] = at + STEP;
			double above = value_of(trial, data);
			data->x[i][k] = at - STEP;
			double below = value_of(trial, data), expected = (above - below) / (2 * STEP);
			data->x[i][k] = at;
			if (fabs(found[k] - expected) <= 1e-6 * (1 + fabs(expected))) continue;
			printf("# %s, %s: input %d, element %lld: %.9g, by differences %.9g\n", trial->name, where, i, (long long)k, found[k], expected);
			CHECK(false);
		}
	}
}

static void check_eager(const struct trial *trial, struct data *data)
{
	hr_value in[INPUTS], gradients[INPUTS];
	make_inputs(trial, data, in);
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value y = hr_value_keep(weighted(trial->function(in)));
	CHECK_STATUS(HR_OK, hr_gradients(y, in, (size_t)trial->count, gradients));
	CHECK_STATUS(HR_OK, hr_tape_end());
	hr_value_release(y);
	release_all(in, trial->count);
	compare(trial, data, gradients, "outside of a graph");
}

static void check_graph(const struct trial *trial, struct data *data)
{
	hr_graph graph;
	hr_value places[INPUTS], wanted[INPUTS], gradients[INPUTS], in[INPUTS];
	hr_feed feeds[INPUTS];
	CHECK_STATUS(HR_OK, hr_graph_create(&graph));
	CHECK_STATUS(HR_OK, hr_graph_enter(graph));
	for (int i = 0; i < trial->count; i++)
		places[i] = hr_placeholder(HR_DTYPE_FLOAT64, trial->inputs[i].dims, trial->inputs[i].rank);
	CHECK_STATUS(HR_OK, hr_gradients(weighted(trial->function(places)), places, (size_t)trial->count, wanted));
	CHECK_STATUS(HR_OK, hr_graph_leave());
	make_inputs(trial, data, in);
	for (int i = 0; i < trial->count; i++) feeds[i] = (hr_feed){ places[i], in[i] };
	CHECK_STATUS(HR_OK, hr_session_run(session, feeds, (size_t)trial->count, wanted, (size_t)trial->count, gradients, NULL, NULL));
	release_all(in, trial->count);
	compare(trial, data, gradients, "in a graph");
	CHECK_STATUS(HR_OK, hr_graph_destroy(graph));
}

static void test_gradients_are_what_differences_say(void)
{
	hr_session_options options;
	hr_session_options_init(&options);
	options.device = "GPU:0";
	CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	for (size_t t = 0; t < sizeof trials / sizeof *trials; t++) {
		const struct trial *trial = &trials[t];
		struct data data;
		uint64_t random = hr_test_seed() + t;
		for (int i = 0; i < trial->count; i++) {
			data.count[i] = 1;
			for (int d = 0; d < trial->inputs[i].rank; d++) data.count[i] *= trial->inputs[i].dims[d];
			for (int64_t k = 0; k < data.count[i]; k++)
				data.x[i][k] = trial->inputs[i].low + (trial->inputs[i].high - trial->inputs[i].low) * (double)hr_rand_below(&random, 1000003) / 1000003;
		}
		check_eager(trial, &data);
		check_graph(trial, &data);
	}
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Also if nothing else is open. */
static void test_a_tape_ends_with_shutdown(void)
{
	CHECK_STATUS(HR_OK, hr_tape_begin());
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK_STATUS(HR_OK, hr_tape_begin());
	CHECK_STATUS(HR_OK, hr_tape_end());
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_a_tape_ends_with_shutdown), T(test_gradients_are_what_differences_say))
