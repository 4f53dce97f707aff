/* test_card_ops.c - every op on a card, in float32 and float64, and its gradients, against the same ops in float64 on the host; and again, to the bit.
 *
 * A case is a function from values to a value. What is compared is its result, and the gradients of the sum of the result times fixed numbers. */
#include <math.h>

#include "card/support_card.h"
#include "runtime/engine/op.h"

#define INPUTS 3
#define OUTPUTS (1 + INPUTS)

struct input {
	bool is_index;
	double low, high;
	int rank;
	int64_t d[4];
};

struct card_case {
	const char *name;
	hr_value (*body)(const hr_value *in);
	bool no_gradient;
	struct input in[INPUTS];
};

#define FLOATS(low, high, ...) { false, low, high, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), { __VA_ARGS__ } }
#define INDICES(high, ...) { true, 0, high, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), { __VA_ARGS__ } }
#define SCALAR(low, high) { false, low, high, 0, { 0 } }
#define BODY(name, expression)                      \
	static hr_value body_##name(const hr_value *in) \
	{                                               \
		return expression;                          \
	}

/* ---- the cases ---- */

BODY(add, hr_add(in[0], in[1]))
BODY(sub, hr_sub(in[0], in[1]))
BODY(mul, hr_mul(in[0], in[1]))
BODY(div, hr_div(in[0], in[1]))
BODY(maximum, hr_maximum(in[0], in[1]))
BODY(neg, hr_neg(in[0]))
BODY(exp, hr_exp(in[0]))
BODY(log, hr_log(in[0]))
BODY(sqrt, hr_sqrt(in[0]))
BODY(tanh, hr_tanh(in[0]))
BODY(relu, hr_relu(in[0]))
BODY(gelu, hr_gelu(in[0]))
BODY(scale, hr_scale(in[0], 1.5, -0.25))
BODY(in_place, hr_relu(hr_add(hr_mul(in[0], in[0]), in[1])))
BODY(matmul, hr_matmul(in[0], in[1]))
BODY(matmul_ta, hr_matmul_transposed(in[0], true, in[1], false))
BODY(matmul_tb, hr_matmul_transposed(in[0], false, in[1], true))
BODY(matmul_tab, hr_matmul_transposed(in[0], true, in[1], true))

#define CASE(name, body, ...) { name, body_##body, false, { __VA_ARGS__ } }
static const struct card_case cases[] = {
	CASE("add", add, FLOATS(-2, 2, 3, 41), FLOATS(-2, 2, 3, 41)),
	CASE("add, packs", add, FLOATS(-2, 2, 8, 64), FLOATS(-2, 2, 8, 64)),
	CASE("add, a row", add, FLOATS(-2, 2, 6, 32), FLOATS(-2, 2, 32)),
	CASE("add, a column", add, FLOATS(-2, 2, 6, 32), FLOATS(-2, 2, 6, 1)),
	CASE("add, channels", add, FLOATS(-2, 2, 2, 3, 4, 5), FLOATS(-2, 2, 3, 1, 1)),
	CASE("add, both broadcast", add, FLOATS(-2, 2, 5, 1, 7), FLOATS(-2, 2, 3, 1)),
	CASE("add, a scalar", add, FLOATS(-2, 2, 300), SCALAR(-2, 2)),
	CASE("add, many", add, FLOATS(-2, 2, 70, 1000), FLOATS(-2, 2, 1000)),
	CASE("add, nothing", add, FLOATS(-2, 2, 0, 4), FLOATS(-2, 2, 4)),
	CASE("sub", sub, FLOATS(-2, 2, 4, 9), FLOATS(-2, 2, 9)),
	CASE("mul", mul, FLOATS(-2, 2, 4, 9), FLOATS(-2, 2, 4, 1)),
	CASE("div", div, FLOATS(-2, 2, 4, 8), FLOATS(0.5, 2, 8)),
	CASE("maximum", maximum, FLOATS(-2, 2, 4, 8), FLOATS(-2, 2, 4, 8)),
	CASE("neg", neg, FLOATS(-2, 2, 77)),
	CASE("exp", exp, FLOATS(-3, 3, 64)),
	CASE("log", log, FLOATS(0.1, 9, 64)),
	CASE("sqrt", sqrt, FLOATS(0.1, 9, 64)),
	CASE("tanh", tanh, FLOATS(-3, 3, 64)),
	CASE("relu", relu, FLOATS(-3, 3, 63)),
	CASE("gelu", gelu, FLOATS(-4, 4, 64)),
	CASE("scale", scale, FLOATS(-4, 4, 64)),
	CASE("in place", in_place, FLOATS(-2, 2, 12, 16), FLOATS(-2, 2, 16)),
	CASE("matmul", matmul, FLOATS(-1, 1, 5, 7), FLOATS(-1, 1, 7, 3)),
	CASE("matmul, larger", matmul, FLOATS(-1, 1, 48, 64), FLOATS(-1, 1, 64, 40)),
	CASE("matmul, first transposed", matmul_ta, FLOATS(-1, 1, 7, 5), FLOATS(-1, 1, 7, 3)),
	CASE("matmul, second transposed", matmul_tb, FLOATS(-1, 1, 5, 7), FLOATS(-1, 1, 3, 7)),
	CASE("matmul, both transposed", matmul_tab, FLOATS(-1, 1, 7, 5), FLOATS(-1, 1, 3, 7)),
	CASE("matmul, a batch", matmul, FLOATS(-1, 1, 4, 5, 7), FLOATS(-1, 1, 4, 7, 3)),
	CASE("matmul, one matrix for a batch", matmul, FLOATS(-1, 1, 4, 5, 7), FLOATS(-1, 1, 7, 3)),
	CASE("matmul, broadcast batches", matmul, FLOATS(-1, 1, 2, 1, 4, 6), FLOATS(-1, 1, 3, 6, 2)),
	CASE("matmul, no depth", matmul, FLOATS(-1, 1, 4, 0), FLOATS(-1, 1, 0, 3)),
};

/* ---- running ---- */

/* The bytes of the result and of the gradients, as the session has them. */
struct results {
	int count;
	hr_dtype dtypes[OUTPUTS];
	int64_t counts[OUTPUTS];
	char *data[OUTPUTS];
};

static double number_at(const struct results *results, int which, int64_t i)
{
	const char *data = results->data[which];
	switch (results->dtypes[which]) {
	case HR_DTYPE_FLOAT32: return (double)((const float *)data)[i];
	case HR_DTYPE_FLOAT64: return ((const double *)data)[i];
	case HR_DTYPE_INT32: return ((const int32_t *)data)[i];
	case HR_DTYPE_INT64: return (double)((const int64_t *)data)[i];
	case HR_DTYPE_BFLOAT16: {
		uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
		float x;
		memcpy(&x, &bits, sizeof x);
		return (double)x;
	}
	default: return ((const uint8_t *)data)[i];
	}
}

/* The numbers are those of float32, so that each dtype begins with the same. */
static double number_of(const struct input *input, uint64_t *state)
{
	double unit = (double)(hr_rand(state) >> 11) * 0x1p-53, x = input->low + unit * (input->high - input->low);
	return input->is_index ? floor(x) : (double)(float)x;
}

static int64_t count_of(const int64_t *d, int rank)
{
	int64_t count = 1;
	for (int i = 0; i < rank; i++) count *= d[i];
	return count;
}

static hr_value constant_of(const struct input *input, hr_dtype dtype, uint64_t seed)
{
	int64_t count = count_of(input->d, input->rank);
	char *data = calloc((size_t)count + 1, 8);
	hr_dtype type = input->is_index ? HR_DTYPE_INT32 : dtype;
	for (int64_t i = 0; i < count; i++) {
		double x = number_of(input, &seed);
		if (type == HR_DTYPE_INT32) ((int32_t *)data)[i] = (int32_t)x;
		else if (type == HR_DTYPE_FLOAT32) ((float *)data)[i] = (float)x;
		else ((double *)data)[i] = x;
	}
	hr_value made = hr_value_keep(hr_constant(type, input->d, input->rank, data));
	free(data);
	return made;
}

static void take(struct results *results, hr_value value)
{
	int i = results->count++;
	if (!value.id) printf("# %s\n", hr_last_message());
	CHECK(value.id != 0);
	results->dtypes[i] = hr_value_dtype(value);
	results->counts[i] = hr_value_count(value);
	size_t bytes = (size_t)results->counts[i] * hr_dtype_size(results->dtypes[i]);
	results->data[i] = malloc(bytes + 1);
	CHECK_STATUS(HR_OK, hr_value_fetch(value, results->data[i], bytes));
}

static hr_value weights_for(hr_value y, hr_dtype dtype)
{
	struct input like = { .low = -1, .high = 1, .rank = hr_value_rank(y) };
	int64_t d[HR_SHAPE_MAX_RANK];
	for (int i = 0; i < like.rank; i++) d[i] = hr_value_dim(y, i);
	like.d[0] = count_of(d, like.rank);
	like.rank = 1;
	hr_value flat = constant_of(&like, dtype, 99), out = hr_reshape(flat, d, hr_value_rank(y));
	hr_value_keep(out);
	hr_value_release(flat);
	return out;
}

static struct results run_case(const struct card_case *which, hr_dtype dtype)
{
	struct results results = { .count = 0 };
	hr_value in[INPUTS], by[INPUTS], grads[INPUTS];
	int count = 0, wanted = 0;
	for (; count < INPUTS && (which->in[count].high != 0); count++) in[count] = constant_of(&which->in[count], dtype, 7 + (uint64_t)count);
	for (int i = 0; i < count; i++)
		if (!which->in[i].is_index) by[wanted++] = in[i];
	if (!which->no_gradient) CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value y = hr_value_keep(which->body(in));
	if (!y.id) printf("# %s\n", hr_last_message());
	CHECK(y.id != 0);
	if (!which->no_gradient) {
		hr_value weights = weights_for(y, hr_value_dtype(y));
		CHECK_STATUS(HR_OK, hr_gradients(hr_mul(y, weights), by, (size_t)wanted, grads));
		CHECK_STATUS(HR_OK, hr_tape_end());
		hr_value_release(weights);
	}
	take(&results, y);
	for (int i = 0; i < wanted && !which->no_gradient; i++) take(&results, grads[i]);
	hr_value_release(y);
	for (int i = 0; i < count; i++) hr_value_release(in[i]);
	return results;
}

static void free_results(struct results *results)
{
	for (int i = 0; i < results->count; i++) free(results->data[i]);
}

static struct results run_on(hr_session session, const struct card_case *which, hr_dtype dtype)
{
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	struct results results = run_case(which, dtype);
	CHECK_STATUS(HR_OK, hr_session_leave());
	return results;
}

/* The largest difference, relative to the largest number. */
static double difference(const struct results *is, const struct results *should, int which)
{
	double most = 0, scale = 0;
	CHECK_EQ(is->counts[which], should->counts[which]);
	for (int64_t i = 0; i < is->counts[which]; i++) {
		double a = number_at(is, which, i), b = number_at(should, which, i);
		if (!(fabs(a - b) <= most)) most = isnan(a) && isnan(b) ? most : isnan(a - b) ? INFINITY : fabs(a - b);
		if (fabs(b) > scale) scale = fabs(b);
	}
	return most / (scale > 1 ? scale : 1);
}

static void check_case(hr_session card, hr_session host, const struct card_case *which, hr_dtype dtype)
{
	double limit = dtype == HR_DTYPE_FLOAT32 ? 3e-6 : 1e-13;
	struct results is = run_on(card, which, dtype), again = run_on(card, which, dtype), should = run_on(host, which, HR_DTYPE_FLOAT64);
	CHECK_EQ(is.count, should.count);
	for (int i = 0; i < is.count; i++) {
		double wrong = difference(&is, &should, i);
		if (!(wrong <= limit)) printf("# %s, %s, %s %d: the error is %g\n", which->name, hr_dtype_text(dtype), i ? "gradient" : "result", i, wrong);
		CHECK(wrong <= limit);
		CHECK_BYTES(is.data[i], again.data[i], (size_t)is.counts[i] * hr_dtype_size(is.dtypes[i]));
	}
	free_results(&is);
	free_results(&again);
	free_results(&should);
}

static void test_ops_agree_with_the_host(void)
{
	hr_session card = card_open(), host = card_session("CPU:0", (hr_allocator){ 0 });
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		check_case(card, host, &cases[i], HR_DTYPE_FLOAT32);
		check_case(card, host, &cases[i], HR_DTYPE_FLOAT64);
	}
	CHECK_STATUS(HR_OK, hr_session_destroy(card));
	CHECK_STATUS(HR_OK, hr_session_destroy(host));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_ops_agree_with_the_host))
