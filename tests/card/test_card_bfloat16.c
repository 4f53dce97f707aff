/* test_card_bfloat16.c - what a card computes with bfloat16, and its gradients, against the host; and again, to the bit. Products with rows of odd
 * lengths are computed on copies: their limits are made smaller here. */
#include <math.h>

#include "card/support_card.h"
#include "runtime/card/product.h"
#include "runtime/ops/ops.h"

#define INPUTS 3
#define MOST 8192

struct narrow_case {
	const char *name;
	hr_value (*body)(const hr_value *in);
	int64_t d[INPUTS][2]; /* of the inputs; 0: there is none, or it has one dimension */
};

struct outcome {
	int count;
	int64_t counts[1 + INPUTS];
	float data[1 + INPUTS][MOST];
};

#define B(x) hr_cast(x, HR_DTYPE_BFLOAT16)
#define BODY(name, expression)                      \
	static hr_value body_##name(const hr_value *in) \
	{                                               \
		return expression;                          \
	}

static hr_value product(hr_value a, bool turn_a, hr_value b, bool turn_b, hr_dtype dtype)
{
	return hr__call_one(HR__OP_MATMUL, (const hr_value[]){ a, b }, 2,
	                    &(hr__attrs){ .transpose_a = turn_a, .transpose_b = turn_b, .dtype = dtype });
}

static hr_value with_bias(hr_value a, hr_value b, hr_value bias)
{
	return hr__call_one(HR__OP_MATMUL, (const hr_value[]){ a, b, bias }, 3, &(hr__attrs){ .dtype = hr_value_dtype(bias) });
}

static hr_value losses(hr_value logits)
{
	int32_t labels[64];
	int64_t rows = hr_value_dim(logits, 0);
	for (int64_t i = 0; i < rows; i++) labels[i] = (int32_t)(i * 5 % hr_value_dim(logits, 1));
	return hr_cross_entropy(logits, hr_constant(HR_DTYPE_INT32, HR_DIMS(rows), labels));
}

BODY(dense, with_bias(B(in[0]), B(in[1]), B(in[2])))
BODY(dense_wide, with_bias(B(in[0]), B(in[1]), in[2]))
BODY(dense_float, with_bias(in[0], in[1], in[2]))
BODY(turned_a, product(B(in[0]), true, B(in[1]), false, HR_DTYPE_BFLOAT16))
BODY(turned_b, product(B(in[0]), false, B(in[1]), true, HR_DTYPE_BFLOAT16))
BODY(turned, product(B(in[0]), true, B(in[1]), true, 0))
BODY(gelu, hr_gelu(B(in[0])))
BODY(relu, hr_relu(B(in[0])))
BODY(both, hr_mul(B(in[0]), B(in[1])))
BODY(mixed, hr_add(in[0], B(in[1])))
BODY(mixed_back, hr_mul(B(in[0]), in[1]))
BODY(dropout, hr_dropout(B(in[0]), 0.3, 99, hr_full(HR_DTYPE_INT64, NULL, 0, 5), true))
BODY(sum, hr__call_one(HR__OP_SUM_TO, (const hr_value[]){ B(in[0]) }, 1, &(hr__attrs){ .dims = { 1, { 37 } } }))
BODY(losses, losses(B(in[0])))
BODY(norm, hr__layer_norm_to(HR_DTYPE_BFLOAT16, in[0], in[1], in[2], 1e-5))

static const struct narrow_case cases[] = {
	{ "dense", body_dense, { { 8, 16 }, { 16, 24 }, { 24 } } },
	{ "dense, odd columns", body_dense, { { 9, 16 }, { 16, 23 }, { 23 } } },
	{ "dense, odd depth", body_dense, { { 9, 15 }, { 15, 24 }, { 24 } } },
	{ "dense, chunks of odd columns", body_dense, { { 17, 24 }, { 24, 141 }, { 141 } } },
	{ "dense, nothing to add", body_dense, { { 0, 4 }, { 4, 3 }, { 3 } } },
	{ "dense of float32", body_dense_wide, { { 9, 16 }, { 16, 23 }, { 23 } } },
	{ "dense in float32", body_dense_float, { { 9, 16 }, { 16, 24 }, { 24 } } },
	{ "dense in float32, odd columns", body_dense_float, { { 9, 16 }, { 16, 23 }, { 23 } } },
	{ "first transposed", body_turned_a, { { 24, 13 }, { 24, 61 } } },
	{ "second transposed", body_turned_b, { { 14, 61 }, { 24, 61 } } },
	{ "second transposed, odd", body_turned_b, { { 14, 32 }, { 61, 32 } } },
	{ "both transposed", body_turned, { { 19, 14 }, { 61, 19 } } },
	{ "gelu", body_gelu, { { 8, 64 } } },
	{ "gelu, odd", body_gelu, { { 7, 9 } } },
	{ "relu", body_relu, { { 8, 64 } } },
	{ "elements of both", body_both, { { 8, 64 }, { 64 } } },
	{ "elements of float32 and bfloat16", body_mixed, { { 8, 64 }, { 8, 64 } } },
	{ "elements of bfloat16 and float32, odd", body_mixed_back, { { 7, 9 }, { 9 } } },
	{ "dropout", body_dropout, { { 8, 64 } } },
	{ "dropout, odd", body_dropout, { { 7, 9 } } },
	{ "sum of columns", body_sum, { { 200, 37 } } },
	{ "layer norm", body_norm, { { 40, 64 }, { 64 }, { 64 } } },
	{ "layer norm, odd", body_norm, { { 40, 33 }, { 33 }, { 33 } } },
	{ "layer norm of long rows", body_norm, { { 3, 1100 }, { 1100 }, { 1100 } } },
	{ "losses", body_losses, { { 8, 64 } } },
	{ "losses, odd", body_losses, { { 7, 33 } } },
	{ "losses of many classes", body_losses, { { 3, 1501 } } },
};

static void take(struct outcome *out, hr_value value)
{
	CHECK(value.id != 0);
	out->counts[out->count] = hr_value_count(value);
	CHECK_LE(out->counts[out->count], MOST);
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_cast(value, HR_DTYPE_FLOAT32), out->data[out->count],
	                                   (size_t)out->counts[out->count] * sizeof(float)));
	out->count++;
}

static hr_value input_of(const int64_t *d, uint64_t seed)
{
	return hr_value_keep(hr_random_uniform(HR_DTYPE_FLOAT32, d, d[1] ? 2 : 1, -2, 2, seed));
}

static struct outcome run(hr_session session, const struct narrow_case *which)
{
	static struct outcome out;
	hr_value in[INPUTS], grads[INPUTS];
	int count = 0;
	out.count = 0;
	CHECK_STATUS(HR_OK, hr_session_enter(session));
	for (; count < INPUTS && (which->d[count][0] || which->d[count][1]); count++)
		in[count] = input_of(which->d[count], 7 + (uint64_t)count);
	CHECK_STATUS(HR_OK, hr_tape_begin());
	hr_value y = hr_value_keep(which->body(in));
	int64_t d[2] = { hr_value_dim(y, 0), hr_value_rank(y) > 1 ? hr_value_dim(y, 1) : 0 };
	hr_value weights = input_of(d, 99);
	CHECK_STATUS(HR_OK, hr_gradients(hr_mul(y, weights), in, (size_t)count, grads));
	CHECK_STATUS(HR_OK, hr_tape_end());
	take(&out, hr_scale(y, 1, 0));
	for (int i = 0; i < count; i++) take(&out, grads[i]);
	hr_value_release(y);
	hr_value_release(weights);
	for (int i = 0; i < count; i++) hr_value_release(in[i]);
	CHECK_STATUS(HR_OK, hr_session_leave());
	return out;
}

/* Numbers that are rounded to bfloat16 differ by a part in 256 at most, those of sums and gradients of several by some of them. */
static bool check_case(hr_session card, hr_session host, const struct narrow_case *which)
{
	static struct outcome is, again, should;
	is = run(card, which), again = run(card, which), should = run(host, which);
	double most = 0;
	bool same = true;
	CHECK_EQ(is.count, should.count);
	for (int i = 0; i < is.count; i++) {
		double scale = 1;
		for (int64_t k = 0; k < is.counts[i]; k++) scale = fmax(scale, fabs((double)should.data[i][k]));
		for (int64_t k = 0; k < is.counts[i]; k++)
			most = fmax(most, fabs((double)is.data[i][k] - (double)should.data[i][k]) / scale);
		same = same && !memcmp(is.data[i], again.data[i], (size_t)is.counts[i] * sizeof(float));
	}
	bool good = same && most <= 1.0 / 128;
	if (!good || card_is_real())
		printf("# %s %s: error %.1e%s\n", good ? "pass" : "FAIL", which->name, most, same ? "" : ", other bits when repeated");
	return good;
}

static void test_a_card_computes_bfloat16_as_the_host_does(void)
{
	hr_session card = card_open(), host = card_session("CPU:0", (hr_allocator){ 0 });
	bool good = true;
	for (int small = 0; small < 2; small++) {
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) good &= check_case(card, host, &cases[i]);
		hr__padded_limits_now = (hr__padded_limits){ .least = 1, .chunk_bytes = 4000, .chunk_columns = 32 };
	}
	CHECK(good);
	CHECK_STATUS(HR_OK, hr_session_destroy(card));
	CHECK_STATUS(HR_OK, hr_session_destroy(host));
}

TEST_MAIN(T_WITHIN(test_a_card_computes_bfloat16_as_the_host_does, 600))
