/* test_ops_batch_norm.c - batch norm and its gradient, compared with slow references in double. */
#include "runtime/support_ops.h"

static const hr_dtype floats[] = { HR_DTYPE_FLOAT32, HR_DTYPE_FLOAT64 };
static const double epsilon = 1e-5;

/* The element [place] of channel [c]. */
static int64_t index_of(const hr__dims *dims, int64_t inner, int64_t c, int64_t place)
{
	return (place / inner * dims->d[1] + c) * inner + place % inner;
}

static void check_channel(const tensor *in, const tensor *outs, const tensor *grad, const tensor *back, int64_t inner, int64_t c, double middle)
{
	const hr__dims *dims = &in[0].type.dims;
	int64_t count = dims->d[0] * inner;
	double mean = 0, variance = 0, of_bias = 0, of_gain = 0, gain = get(&in[1], c);
	for (int64_t i = 0; i < count; i++) mean += get(&in[0], index_of(dims, inner, c, i)) / (double)count;
	for (int64_t i = 0; i < count; i++) variance += pow(get(&in[0], index_of(dims, inner, c, i)) - mean, 2) / (double)count;
	double scale = 1 / sqrt(variance + epsilon), of_h = (1 + fabs(middle)) * scale;
	check_near(&outs[1], c, mean, 1 + fabs(middle));
	check_near(&outs[2], c, variance, 1);
	for (int64_t i = 0; i < count; i++) {
		int64_t at = index_of(dims, inner, c, i);
		double h = (get(&in[0], at) - mean) * scale;
		check_near(&outs[0], at, h * gain + get(&in[2], c), of_h);
		of_bias += get(grad, at), of_gain += get(grad, at) * h;
	}
	check_near(&back[1], c, of_gain, of_h * sqrt((double)count));
	check_near(&back[2], c, of_bias, sqrt((double)count));
	for (int64_t i = 0; i < count; i++) {
		int64_t at = index_of(dims, inner, c, i);
		double h = (get(&in[0], at) - mean) * scale;
		check_near(&back[0], at, gain * scale * (get(grad, at) - of_bias / (double)count - h * of_gain / (double)count), 8 * scale * of_h);
	}
}

static void check_norm(hr_dtype dtype, hr__dims dims, double middle)
{
	int64_t channels = dims.d[1], inner = 1;
	for (int i = 2; i < dims.rank; i++) inner *= dims.d[i];
	tensor in[3] = { random_tensor(dtype, dims, middle - 1, middle + 1), random_tensor(dtype, SHAPE(channels), -2, 2), random_tensor(dtype, SHAPE(channels), -2, 2) };
	tensor outs[HR__OP_OUTPUTS], back[HR__OP_OUTPUTS], grad = random_tensor(dtype, dims, -1, 1);
	hr__attrs attrs = { .a = epsilon };
	call_all(HR__OP_BATCH_NORM, in, 3, &attrs, outs);
	call_all(HR__OP_BATCH_NORM_GRAD, (tensor[]){ grad, in[0], in[1], outs[1], outs[2] }, 5, &attrs, back);
	check_dims(&outs[0], dims), check_dims(&outs[1], SHAPE(channels)), check_dims(&back[0], dims), check_dims(&back[2], SHAPE(channels));
	for (int64_t c = 0; c < channels && dims.d[0] * inner > 0; c++) check_channel(in, outs, &grad, back, inner, c, middle);
	for (int64_t c = 0; c < channels && dims.d[0] * inner == 0; c++) {
		CHECK_EQ(get(&outs[1], c), 0); /* of no numbers */
		CHECK_EQ(get(&outs[2], c), 0);
		CHECK_EQ(get(&back[1], c), 0);
		CHECK_EQ(get(&back[2], c), 0);
	}
	free_all(in, 3), free_all(outs, 3), free_all(back, 3), free(grad.data);
}

static void test_batch_norm_normalises_channels(void)
{
	for (size_t d = 0; d < 2; d++) {
		check_norm(floats[d], SHAPE(2, 3), 0);
		check_norm(floats[d], SHAPE(500, 131), 0); /* several ranges of channels */
		check_norm(floats[d], SHAPE(4, 3, 7, 9), 0);
		check_norm(floats[d], SHAPE(3, 2, 100, 91), 5); /* channels of their own */
		check_norm(floats[d], SHAPE(20, 5, 3), 30);
		check_norm(floats[d], SHAPE(1, 2, 1), 0); /* one number */
		check_norm(floats[d], SHAPE(0, 5), 0);
		check_norm(floats[d], SHAPE(2, 5, 0), 0);
		check_norm(floats[d], SHAPE(2, 0, 4), 0);
	}
}

static void test_batch_norm_refuses_what_does_not_fit(void)
{
	const hr_dtype f = HR_DTYPE_FLOAT32;
	const hr__attrs none = { 0 };
	tensor x = make(f, SHAPE(2, 3, 4)), c = make(f, SHAPE(3)), wide = make(f, SHAPE(4)), line = make(f, SHAPE(3)), d = make(HR_DTYPE_FLOAT64, SHAPE(3));
	tensor i = make(HR_DTYPE_INT32, SHAPE(2, 3));
	check_refused(HR__OP_BATCH_NORM, (tensor[]){ line, c, c }, 3, &none, "shape [3] is not [n,channels,...]");
	check_refused(HR__OP_BATCH_NORM, (tensor[]){ i, i, i }, 3, &none, "dtype is int32");
	check_refused(HR__OP_BATCH_NORM, (tensor[]){ x, wide, c }, 3, &none, "shapes [2,3,4] and [4] are incompatible: gain");
	check_refused(HR__OP_BATCH_NORM, (tensor[]){ x, c, wide }, 3, &none, "shapes [2,3,4] and [4] are incompatible: bias");
	check_refused(HR__OP_BATCH_NORM, (tensor[]){ x, c, d }, 3, &none, "dtypes float32 and float64 differ");
	check_refused(HR__OP_BATCH_NORM, (tensor[]){ x, c, c }, 3, &(hr__attrs){ .a = -1 }, "epsilon is -1");
	check_refused(HR__OP_BATCH_NORM_GRAD, (tensor[]){ c, x, c, c, c }, 5, &none, "shapes [2,3,4] and [3] differ");
	check_refused(HR__OP_BATCH_NORM_GRAD, (tensor[]){ x, x, c, wide, c }, 5, &none, "mean is as long");
	check_refused(HR__OP_BATCH_NORM_GRAD, (tensor[]){ x, x, c, c, wide }, 5, &none, "variance is as long");
}

TEST_MAIN(T(test_batch_norm_normalises_channels), T(test_batch_norm_refuses_what_does_not_fit))
