/* card_cases.h - what test_card_ops.c computes on a card and on the host. A case is a function from values to a value. */
#ifndef HR_TESTS_CARD_CASES_H
#define HR_TESTS_CARD_CASES_H

#include "fixture.h"
#include "headroom_runtime.h"

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
	double limit;  /* of the error, where that is larger than the dtype's because bfloat16 is computed in; else 0 */
	bool in_dtype; /* the reference is computed in the dtype of the card's, because other dtypes draw other numbers */
	struct input in[INPUTS];
};

#define FLOATS(low, high, ...) { false, low, high, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), { __VA_ARGS__ } }
#define INDICES(high, ...) { true, 0, high, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), { __VA_ARGS__ } }
#define SCALAR(low, high) { false, low, high, 0, { 0 } }
#define BODY(name, expression)                      \
	static hr_value body_##name(const hr_value *in) \
	{                                               \
		(void)in;                                   \
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

BODY(sum_all, hr_reduce_sum(in[0], HR_ALL_AXES, false))
BODY(sum_last, hr_reduce_sum(in[0], -1, false))
BODY(sum_first, hr_reduce_sum(in[0], 0, true))
BODY(sum_middle, hr_reduce_sum(in[0], 1, false))
BODY(mean_all, hr_reduce_mean(in[0], HR_ALL_AXES, true))
BODY(mean_last, hr_reduce_mean(in[0], -1, false))
BODY(mean_first, hr_reduce_mean(in[0], 0, false))
BODY(max_all, hr_reduce_max(in[0], HR_ALL_AXES, false))
BODY(max_last, hr_reduce_max(in[0], -1, false))
BODY(max_first, hr_reduce_max(in[0], 0, false))
BODY(sum_to_row, hr_mul(in[0], in[1]))
BODY(sum_to_channels, hr_mul(in[0], in[1]))
BODY(softmax, hr_softmax(in[0]))
BODY(causal, hr_causal_softmax(in[0]))
BODY(cross_entropy, hr_cross_entropy(in[0], in[1]))
BODY(layer_norm, hr_layer_norm(in[0], in[1], in[2], 1e-5))
BODY(layer_norm_around, hr_mul(in[0], hr_layer_norm(in[0], in[1], in[2], 1e-5)))
BODY(batch_norm, hr_batch_norm(in[0], in[1], in[2], 1e-5, NULL, NULL))

#define D HR_DIMS
static hr_dtype case_dtype; /* of the run */
BODY(as_bfloat16, hr_cast(hr_mul(hr_cast(hr_cast(in[0], HR_DTYPE_BFLOAT16), case_dtype), in[0]), case_dtype))
BODY(as_other_float, hr_cast(in[0], case_dtype == HR_DTYPE_FLOAT32 ? HR_DTYPE_FLOAT64 : HR_DTYPE_FLOAT32))
BODY(turn, hr_transpose(in[0], (int[]){ 1, 0 }, 2))
BODY(turn_heads, hr_transpose(in[0], (int[]){ 0, 2, 1, 3 }, 4))
BODY(turn_all, hr_transpose(in[0], (int[]){ 3, 1, 0, 2 }, 4))
BODY(turn_bytes, hr_transpose(hr_cast(in[0], HR_DTYPE_UINT8), (int[]){ 2, 0, 1 }, 3))
BODY(turn_bfloat16, hr_cast(hr_transpose(hr_cast(in[0], HR_DTYPE_BFLOAT16), (int[]){ 1, 0 }, 2), case_dtype))
BODY(concat, hr_concat((hr_value[]){ in[0], in[1], in[0] }, 3, 1))
BODY(slice, hr_slice(in[0], 1, 3, 5))
BODY(slice_first, hr_slice(in[0], 0, 1, 2))
BODY(slice_pad, hr_slice(hr_mul(in[0], in[0]), -1, 4, 8))
BODY(broadcast, hr_broadcast_to(in[0], D(3, 5, 8)))
BODY(broadcast_columns, hr_broadcast_to(in[0], D(2, 7, 9)))
BODY(broadcast_bytes, hr_broadcast_to(hr_cast(in[0], HR_DTYPE_UINT8), D(3, 16)))
BODY(gather, hr_gather(in[0], in[1]))
BODY(gather_wide, hr_gather(in[0], hr_cast(in[1], HR_DTYPE_INT64)))
BODY(gather_bytes, hr_gather(hr_cast(in[0], HR_DTYPE_UINT8), in[1]))
BODY(gather_twice, hr_gather(hr_mul(hr_gather(in[0], in[1]), hr_gather(in[0], in[1])), in[2]))
BODY(one_hot, hr_one_hot(in[0], 7, case_dtype))
BODY(one_hot_bytes, hr_one_hot(in[0], 7, HR_DTYPE_UINT8))
BODY(one_hot_bfloat16, hr_cast(hr_one_hot(in[0], 7, HR_DTYPE_BFLOAT16), case_dtype))
BODY(full, hr_full(case_dtype, D(5, 7), 2.5))
BODY(full_bytes, hr_full(HR_DTYPE_UINT8, D(37), 7))
BODY(full_bfloat16, hr_cast(hr_full(HR_DTYPE_BFLOAT16, D(37), 0.1), case_dtype))
BODY(full_int, hr_full(HR_DTYPE_INT64, D(3), -5e17))
BODY(normal, hr_random_normal(case_dtype, D(9, 31), 12345678901234))
BODY(uniform, hr_random_uniform(case_dtype, D(9, 31), -2, 3, 77))
BODY(uniform_int, hr_random_uniform(HR_DTYPE_INT32, D(101), -20, 30, 78))
BODY(uniform_bytes, hr_random_uniform(HR_DTYPE_UINT8, D(101), 0, 256, 79))
BODY(uniform_wide, hr_random_uniform(HR_DTYPE_INT64, D(101), -0x1p63, 0x1p63, 80))
BODY(dropout, hr_dropout(in[0], 0.3, 99, hr_full(HR_DTYPE_INT64, NULL, 0, 5), true))
BODY(max_pool, hr_max_pool(in[0], 2, 2))
BODY(max_pool_overlapping, hr_max_pool(in[0], 3, 2))
BODY(avg_pool, hr_avg_pool(in[0], 2, 2))
BODY(avg_pool_overlapping, hr_avg_pool(in[0], 3, 1))
BODY(avg_pool_apart, hr_avg_pool(in[0], 2, 3))
BODY(int_sum, hr_reduce_sum(hr_cast(in[0], HR_DTYPE_INT32), -1, false))
BODY(int_max, hr_reduce_max(hr_cast(in[0], HR_DTYPE_INT64), 0, false))
BODY(byte_sum, hr_reduce_sum(hr_cast(in[0], HR_DTYPE_UINT8), 0, false))

BODY(conv, hr_conv2d(in[0], in[1], 1, 1))
BODY(conv_2, hr_conv2d(in[0], in[1], 2, 1))
BODY(conv_3, hr_conv2d(in[0], in[1], 3, 0))
BODY(attend, hr_attend(in[0], in[1], in[2], 1, 0.25, false))
BODY(attend_causal, hr_attend(in[0], in[1], in[2], 2, 0.125, true))
BODY(attend_wide, hr_attend(in[0], in[1], in[2], 1, 0.1, true))
#define NARROW(x) hr_cast(x, HR_DTYPE_BFLOAT16)
#define ATTEND_NARROW(heads, scale, causal) hr_cast(hr_attend(NARROW(in[0]), NARROW(in[1]), NARROW(in[2]), heads, scale, causal), case_dtype)
BODY(attend_narrow, ATTEND_NARROW(1, 0.25, false))
BODY(attend_narrow_causal, ATTEND_NARROW(2, 0.125, true))
BODY(attend_narrow_negative, ATTEND_NARROW(1, -2, false))
BODY(attend_narrow_zero, ATTEND_NARROW(1, 0, true))

#define CASE(name, body, ...) { name, body_##body, false, 0, false, { __VA_ARGS__ } }
#define COARSE(name, body, ...) { name, body_##body, false, 1e-2, false, { __VA_ARGS__ } }
#define PLAIN(name, body, ...) { name, body_##body, true, 0, false, { __VA_ARGS__ } }  /* without a gradient */
#define SOURCE(name, body) { name, body_##body, true, 0, true, { { 0 } } }
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
	/* reductions */
	CASE("sum of all", sum_all, FLOATS(-1, 1, 3, 5, 7)),
	CASE("sum of all, many", sum_all, FLOATS(-1, 1, 100, 333)),
	CASE("sum of a number", sum_all, SCALAR(-1, 1)),
	CASE("sum of rows", sum_last, FLOATS(-1, 1, 9, 40)),
	CASE("sum of odd rows", sum_last, FLOATS(-1, 1, 9, 37)),
	CASE("sum of long rows", sum_last, FLOATS(-1, 1, 2, 5000)),
	CASE("sum of columns", sum_first, FLOATS(-1, 1, 300, 70)),
	CASE("sum of few columns", sum_first, FLOATS(-1, 1, 900, 3)),
	CASE("sum in the middle", sum_middle, FLOATS(-1, 1, 4, 50, 33)),
	CASE("sum of nothing", sum_last, FLOATS(-1, 1, 4, 0)),
	CASE("mean of all", mean_all, FLOATS(-1, 1, 40, 25)),
	CASE("mean of rows", mean_last, FLOATS(-1, 1, 6, 24)),
	CASE("mean of columns", mean_first, FLOATS(-1, 1, 24, 6)),
	CASE("max of all", max_all, FLOATS(-1, 1, 11, 30)),
	CASE("max of rows", max_last, FLOATS(-1, 1, 5, 64)),
	CASE("max of long rows", max_last, FLOATS(-1, 1, 3, 1500)),
	CASE("max of columns", max_first, FLOATS(-1, 1, 30, 40)),
	CASE("sum to a row", sum_to_row, FLOATS(-1, 1, 2, 30, 12), FLOATS(-1, 1, 12)),
	CASE("sum to channels", sum_to_channels, FLOATS(-1, 1, 6, 5, 4, 4), FLOATS(-1, 1, 5, 1, 1)),
	CASE("sum to columns of groups", sum_to_channels, FLOATS(-1, 1, 6, 5, 4, 8), FLOATS(-1, 1, 5, 1, 8)),
	/* rows */
	CASE("softmax", softmax, FLOATS(-3, 3, 7, 36)),
	CASE("softmax of odd rows", softmax, FLOATS(-3, 3, 7, 33)),
	CASE("softmax of long rows", softmax, FLOATS(-3, 3, 2, 2048)),
	CASE("softmax of long odd rows", softmax, FLOATS(-3, 3, 2, 1501)),
	CASE("causal softmax", causal, FLOATS(-3, 3, 2, 9, 9)),
	CASE("causal softmax, more columns", causal, FLOATS(-3, 3, 2, 6, 16)),
	CASE("cross entropy", cross_entropy, FLOATS(-3, 3, 8, 20), INDICES(20, 8)),
	CASE("cross entropy of many classes", cross_entropy, FLOATS(-3, 3, 3, 3001), INDICES(3001, 3)),
	/* norms */
	CASE("layer norm", layer_norm, FLOATS(1, 3, 6, 48), FLOATS(-1, 1, 48), FLOATS(-1, 1, 48)),
	CASE("layer norm, and around it", layer_norm_around, FLOATS(1, 3, 6, 48), FLOATS(-1, 1, 48), FLOATS(-1, 1, 48)),
	CASE("layer norm of odd rows, and around it", layer_norm_around, FLOATS(1, 3, 6, 35), FLOATS(-1, 1, 35), FLOATS(-1, 1, 35)),
	CASE("layer norm of odd rows", layer_norm, FLOATS(1, 3, 2, 3, 35), FLOATS(-1, 1, 35), FLOATS(-1, 1, 35)),
	CASE("layer norm of long rows", layer_norm, FLOATS(1, 3, 3, 1100), FLOATS(-1, 1, 1100), FLOATS(-1, 1, 1100)),
	CASE("layer norm of many rows", layer_norm, FLOATS(1, 3, 300, 8), FLOATS(-1, 1, 8), FLOATS(-1, 1, 8)),
	CASE("batch norm", batch_norm, FLOATS(1, 3, 8, 5, 4, 4), FLOATS(-1, 1, 5), FLOATS(-1, 1, 5)),
	CASE("batch norm, odd", batch_norm, FLOATS(1, 3, 8, 3, 3, 3), FLOATS(-1, 1, 3), FLOATS(-1, 1, 3)),
	CASE("batch norm of many numbers", batch_norm, FLOATS(1, 3, 12, 2, 40, 24), FLOATS(-1, 1, 2), FLOATS(-1, 1, 2)),
	CASE("batch norm of columns", batch_norm, FLOATS(1, 3, 50, 6), FLOATS(-1, 1, 6), FLOATS(-1, 1, 6)),
	/* moves */
	CASE("casts", as_bfloat16, FLOATS(-2, 2, 5, 9)),
	CASE("casts, packs", as_bfloat16, FLOATS(-2, 2, 8, 8)),
	CASE("cast between floats", as_other_float, FLOATS(-2, 2, 8, 8)),
	CASE("transpose", turn, FLOATS(-2, 2, 37, 70)),
	CASE("transpose of heads", turn_heads, FLOATS(-2, 2, 2, 5, 3, 8)),
	CASE("transpose of all", turn_all, FLOATS(-2, 2, 3, 4, 33, 5)),
	PLAIN("transpose of bytes", turn_bytes, FLOATS(0, 200, 3, 40, 33)),
	CASE("transpose of bfloat16", turn_bfloat16, FLOATS(-2, 2, 33, 7)),
	CASE("concat", concat, FLOATS(-2, 2, 4, 5), FLOATS(-2, 2, 4, 8)),
	CASE("concat of packs", concat, FLOATS(-2, 2, 4, 8, 4), FLOATS(-2, 2, 4, 4, 4)),
	CASE("slice", slice, FLOATS(-2, 2, 6, 11)),
	CASE("slice of the first", slice_first, FLOATS(-2, 2, 6, 11)),
	CASE("slice of packs", slice_pad, FLOATS(-2, 2, 3, 16)),
	CASE("broadcast", broadcast, FLOATS(-2, 2, 5, 8)),
	CASE("broadcast of columns", broadcast_columns, FLOATS(-2, 2, 2, 7, 1)),
	PLAIN("broadcast of bytes", broadcast_bytes, FLOATS(0, 200, 16)),
	CASE("gather", gather, FLOATS(-2, 2, 9, 20), INDICES(9, 3, 5)),
	CASE("gather, wide indices", gather_wide, FLOATS(-2, 2, 9, 7), INDICES(9, 13)),
	CASE("gather, many indices", gather, FLOATS(-2, 2, 5, 8), INDICES(5, 2500)),
	CASE("gather of numbers", gather, FLOATS(-2, 2, 1000), INDICES(1000, 30)),
	CASE("gather of a gather", gather_twice, FLOATS(-2, 2, 6, 4), INDICES(6, 12), INDICES(12, 9)),
	PLAIN("gather of bytes", gather_bytes, FLOATS(0, 200, 9, 5), INDICES(9, 7)),
	PLAIN("one hot", one_hot, INDICES(7, 11)),
	PLAIN("one hot of bytes", one_hot_bytes, INDICES(7, 2, 3)),
	PLAIN("one hot of bfloat16", one_hot_bfloat16, INDICES(7, 11)),
	PLAIN("sum of int32", int_sum, FLOATS(-1e9, 1e9, 3, 70)),
	PLAIN("max of int64", int_max, FLOATS(-1e9, 1e9, 30, 7)),
	PLAIN("sum of uint8", byte_sum, FLOATS(0, 255, 30, 40)),
	/* sources */
	SOURCE("full", full),
	SOURCE("full of bytes", full_bytes),
	SOURCE("full of bfloat16", full_bfloat16),
	SOURCE("full of int64", full_int),
	SOURCE("normal", normal),
	SOURCE("uniform", uniform),
	SOURCE("uniform of int32", uniform_int),
	SOURCE("uniform of uint8", uniform_bytes),
	SOURCE("uniform of all int64", uniform_wide),
	CASE("dropout", dropout, FLOATS(-2, 2, 7, 19)),
	CASE("dropout, packs", dropout, FLOATS(-2, 2, 7, 20)),
	/* images */
	CASE("max pool", max_pool, FLOATS(-2, 2, 2, 3, 8, 6)),
	CASE("max pool, overlapping", max_pool_overlapping, FLOATS(-2, 2, 2, 3, 9, 8)),
	CASE("average pool", avg_pool, FLOATS(-2, 2, 2, 3, 8, 7)),
	CASE("average pool, overlapping", avg_pool_overlapping, FLOATS(-2, 2, 1, 3, 6, 6)),
	CASE("average pool, apart", avg_pool_apart, FLOATS(-2, 2, 1, 3, 9, 10)),
	CASE("convolution", conv, FLOATS(-1, 1, 2, 3, 7, 6), FLOATS(-1, 1, 5, 3, 3, 3)),
	CASE("convolution, many channels", conv, FLOATS(-1, 1, 1, 20, 5, 5), FLOATS(-1, 1, 70, 20, 3, 3)),
	CASE("convolution, many places", conv, FLOATS(-1, 1, 4, 2, 16, 20), FLOATS(-1, 1, 3, 2, 3, 3)),
	CASE("convolution, stride 2", conv_2, FLOATS(-1, 1, 2, 4, 9, 8), FLOATS(-1, 1, 6, 4, 3, 3)),
	CASE("convolution, windows apart", conv_3, FLOATS(-1, 1, 2, 3, 10, 11), FLOATS(-1, 1, 4, 3, 2, 1)),
	CASE("convolution, nothing", conv, FLOATS(-1, 1, 0, 3, 4, 4), FLOATS(-1, 1, 2, 3, 3, 3)),
	CASE("attention", attend, FLOATS(-1, 1, 2, 5, 8), FLOATS(-1, 1, 2, 7, 8), FLOATS(-1, 1, 2, 7, 6)),
	CASE("attention, several blocks", attend, FLOATS(-1, 1, 70, 16), FLOATS(-1, 1, 133, 16), FLOATS(-1, 1, 133, 16)),
	CASE("attention, causal", attend_causal, FLOATS(-1, 1, 2, 75, 32), FLOATS(-1, 1, 2, 75, 32), FLOATS(-1, 1, 2, 75, 24)),
	CASE("attention, causal, more keys", attend_causal, FLOATS(-1, 1, 20, 8), FLOATS(-1, 1, 90, 8), FLOATS(-1, 1, 90, 8)),
	CASE("attention, wide heads", attend_wide, FLOATS(-1, 1, 9, 100), FLOATS(-1, 1, 9, 100), FLOATS(-1, 1, 9, 70)),
	COARSE("attention of bfloat16", attend_narrow, FLOATS(-1, 1, 2, 5, 8), FLOATS(-1, 1, 2, 7, 8), FLOATS(-1, 1, 2, 7, 16)),
	COARSE("attention of bfloat16, several blocks", attend_narrow, FLOATS(-1, 1, 150, 64), FLOATS(-1, 1, 201, 64), FLOATS(-1, 1, 201, 56)),
	COARSE("attention of bfloat16, causal", attend_narrow_causal, FLOATS(-1, 1, 2, 300, 128), FLOATS(-1, 1, 2, 300, 128), FLOATS(-1, 1, 2, 300, 128)),
	COARSE("attention of bfloat16, causal, more keys", attend_narrow_causal, FLOATS(-1, 1, 20, 64), FLOATS(-1, 1, 190, 64), FLOATS(-1, 1, 190, 16)),
	COARSE("attention of bfloat16, wide heads", attend_narrow, FLOATS(-1, 1, 70, 72), FLOATS(-1, 1, 133, 72), FLOATS(-1, 1, 133, 128)),
	COARSE("attention of bfloat16, wide heads, causal", attend_narrow_causal, FLOATS(-1, 1, 131, 256), FLOATS(-1, 1, 140, 256), FLOATS(-1, 1, 140, 160)),
	COARSE("attention of bfloat16, heads of 129", attend_narrow_causal, FLOATS(-1, 1, 9, 258), FLOATS(-1, 1, 70, 258), FLOATS(-1, 1, 70, 8)),
	COARSE("attention of bfloat16, uneven heads", attend_narrow_causal, FLOATS(-1, 1, 70, 14), FLOATS(-1, 1, 70, 14), FLOATS(-1, 1, 70, 10)),
	COARSE("attention of bfloat16, negative scale", attend_narrow_negative, FLOATS(-1, 1, 33, 16), FLOATS(-1, 1, 33, 16), FLOATS(-1, 1, 33, 16)),
	COARSE("attention of bfloat16, scale 0", attend_narrow_zero, FLOATS(-1, 1, 70, 16), FLOATS(-1, 1, 70, 16), FLOATS(-1, 1, 70, 16)),
	COARSE("attention of bfloat16, large scores", attend_narrow, FLOATS(-9, 9, 40, 16), FLOATS(-9, 9, 200, 16), FLOATS(-1, 1, 200, 16)),
	COARSE("attention of bfloat16, nothing", attend_narrow, FLOATS(-1, 1, 3, 8), FLOATS(-1, 1, 0, 8), FLOATS(-1, 1, 0, 8)),
	CASE("matmul, no depth", matmul, FLOATS(-1, 1, 4, 0), FLOATS(-1, 1, 0, 3)),
};

#endif
