/* ops_norm.c - layer norm: rows of the last dimension are normalized to mean 0 and deviation 1, then scaled and shifted by a gain
 * and a bias per column.
 *
 * Means are computed in double, the mean first and then the squares of the differences, so that rows far from 0 lose no precision.
 * Mean and 1 / deviation of each row are outputs too: the gradient reads them instead of the output.
 *
 * The gradients of gain and bias are sums of dy h and dy over rows, where h is the normalized x. A row is added to them before its
 * dx is written, which may overwrite dy. The rows are divided into at most BLOCKS blocks, whose sums are added in scratch memory,
 * in order. */
#include <math.h>

#include "core/base/status.h"
#include "runtime/engine/engine.h"
#include "runtime/ops/ops.h"

#define LANES 8
#define BLOCKS 16
#define BLOCK_ELEMENTS 16384 /* minimum per block */

/* ---- types ---- */

static hr__dims without_last(const hr__dims *dims)
{
	hr__dims rows = *dims;
	rows.d[--rows.rank] = 0;
	return rows;
}

static hr_status need_columns(const hr__type *x, const hr__type *of, const char *name)
{
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	hr_status status = hr__need_same_dtype(x, of);
	if (status != HR_OK || (of->dims.rank == 1 && of->dims.d[0] == x->dims.d[x->dims.rank - 1])) return status;
	return hr__fail(HR_INVALID_ARGUMENT, "shapes %s and %s are incompatible: %s is as long as the last dimension of what is normalised",
	                hr__dims_text(&x->dims, left, sizeof left), hr__dims_text(&of->dims, right, sizeof right), name);
}

/* Inputs: x, gain, bias. Outputs: y, of the dtype of x or attrs.dtype, and mean and 1 / deviation of each row. */
HR__INFER(layer_norm)
{
	(void)count;
	hr_status status = hr__need_rows(&in[0]);
	if (status == HR_OK) status = need_columns(&in[0], &in[1], "gain");
	if (status == HR_OK) status = need_columns(&in[0], &in[2], "bias");
	if (status != HR_OK) return status;
	if (!(attrs->a >= 0)) return hr__fail(HR_INVALID_ARGUMENT, "epsilon is %g; it is at least 0", attrs->a);
	out[0] = in[0];
	out[1] = out[2] = (hr__type){ in[0].dtype, without_last(&in[0].dims) };
	if (!attrs->dtype || attrs->dtype == in[0].dtype) return HR_OK;
	out[0].dtype = attrs->dtype;
	if (attrs->dtype == HR_DTYPE_BFLOAT16 && in[0].dtype == HR_DTYPE_FLOAT32) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "the result of %s is to be %s; it is %s, or bfloat16 of float32", hr_dtype_text(in[0].dtype), hr_dtype_text(attrs->dtype),
	                hr_dtype_text(in[0].dtype));
}

/* Inputs: the gradient of y, which may be bfloat16, x, gain, mean, 1 / deviation, and what is added to the gradient of x, which may be missing. Outputs: the gradients of x, gain and bias. */
HR__INFER(layer_norm_grad)
{
	(void)attrs;
	hr_status status = hr__need_rows(&in[1]);
	hr_dtype dtype;
	if (status == HR_OK) status = hr__need_elements(&in[1], &in[0], &dtype);
	if (status == HR_OK) status = hr__need_same_dims(&in[1], &in[0]);
	if (status == HR_OK) status = need_columns(&in[1], &in[2], "gain");
	for (int i = 3; i < 5 && status == HR_OK; i++) {
		status = hr__need_same_dtype(&in[1], &in[i]);
		if (status == HR_OK) status = hr__need_same_dims(&(hr__type){ in[1].dtype, without_last(&in[1].dims) }, &in[i]);
	}
	if (status == HR_OK && count > 5) status = hr__need_same_dtype(&in[1], &in[5]);
	if (status == HR_OK && count > 5) status = hr__need_same_dims(&in[1], &in[5]);
	out[0] = in[1];
	out[1] = out[2] = in[2];
	return status;
}

/* ---- rows ---- */

#define FOR_TYPE(type, name)                                                                                                    \
	static double mean_##name(const type *x, int64_t count)                                                                     \
	{                                                                                                                           \
		double lanes[LANES] = { 0 }, sum = 0;                                                                                   \
		int64_t i = 0;                                                                                                          \
		for (; i + LANES <= count; i += LANES) {                                                                                \
			for (int k = 0; k < LANES; k++) lanes[k] += (double)x[i + k];                                                       \
		}                                                                                                                       \
		for (; i < count; i++) sum += (double)x[i];                                                                             \
		for (int k = 0; k < LANES; k++) sum += lanes[k];                                                                        \
		return sum / (double)count;                                                                                             \
	}                                                                                                                           \
                                                                                                                                \
	static double variance_##name(const type *x, int64_t count, double mean)                                                    \
	{                                                                                                                           \
		double lanes[LANES] = { 0 }, sum = 0;                                                                                   \
		int64_t i = 0;                                                                                                          \
		for (; i + LANES <= count; i += LANES) {                                                                                \
			for (int k = 0; k < LANES; k++) lanes[k] += ((double)x[i + k] - mean) * ((double)x[i + k] - mean);                  \
		}                                                                                                                       \
		for (; i < count; i++) sum += ((double)x[i] - mean) * ((double)x[i] - mean);                                            \
		for (int k = 0; k < LANES; k++) sum += lanes[k];                                                                        \
		return sum / (double)count;                                                                                             \
	}                                                                                                                           \
                                                                                                                                \
	static void move_##name(const type *x, const type *gain, const type *bias, type *out, int64_t count, double mean, double scale) \
	{                                                                                                                           \
		HR__INDEPENDENT for (int64_t i = 0; i < count; i++) out[i] = (type)(((double)x[i] - mean) * scale) * gain[i] + bias[i]; \
	}                                                                                                                           \
                                                                                                                                \
	static void normalise_##name(const hr__work *work, int64_t row, int64_t count)                                              \
	{                                                                                                                           \
		const type *x = (const type *)work->in[0] + row * count, *gain = work->in[1], *bias = work->in[2];                      \
		double mean = mean_##name(x, count), scale = 1 / sqrt(variance_##name(x, count, mean) + work->attrs->a);                \
		((type *)work->out[1])[row] = (type)mean;                                                                               \
		((type *)work->out[2])[row] = (type)scale;                                                                              \
		if (work->out_types[0].dtype != HR_DTYPE_BFLOAT16) {                                                                    \
			move_##name(x, gain, bias, (type *)work->out[0] + row * count, count, mean, scale);                                 \
			return;                                                                                                             \
		}                                                                                                                       \
		for (int64_t i = 0; i < count; i += HR__PIECE) {                                                                        \
			int64_t some = count - i < HR__PIECE ? count - i : HR__PIECE;                                                       \
			type piece[HR__PIECE];                                                                                              \
			move_##name(x + i, gain + i, bias + i, piece, some, mean, scale);                                                   \
			hr__round_piece((const float *)piece, (uint16_t *)work->out[0] + row * count + i, some); /* of float32 alone */     \
		}                                                                                                                       \
	}                                                                                                                           \
                                                                                                                                \
	/* With h = (x - mean) / deviation and g = dy gain: dx = (g - mean(g) - h mean(g h)) / deviation. */                        \
	static void go_back_##name(const hr__work *work, const type *grad, int64_t row, int64_t count, double *of_gain, double *of_bias) \
	{                                                                                                                           \
		const type *x = (const type *)work->in[1] + row * count, *plus = work->in_count > 5 ? (const type *)work->in[5] + row * count : NULL; \
		const type *gain = work->in[2], middle = ((const type *)work->in[3])[row], factor = ((const type *)work->in[4])[row];   \
		type *out = (type *)work->out[0] + row * count;                                                                         \
		double lanes[LANES] = { 0 }, by_h[LANES] = { 0 }, sum = 0, sum_by_h = 0;                                                \
		for (int64_t i = 0; i < count; i++) {                                                                                   \
			of_gain[i] += (double)(grad[i] * ((x[i] - middle) * factor));                                                       \
			of_bias[i] += (double)grad[i];                                                                                      \
		}                                                                                                                       \
		int64_t i = 0;                                                                                                          \
		for (; i + LANES <= count; i += LANES) {                                                                                \
			for (int k = 0; k < LANES; k++) {                                                                                   \
				double g = (double)(grad[i + k] * gain[i + k]);                                                                 \
				lanes[k] += g;                                                                                                  \
				by_h[k] += g * (double)((x[i + k] - middle) * factor);                                                          \
			}                                                                                                                   \
		}                                                                                                                       \
		for (; i < count; i++) {                                                                                                \
			sum += (double)(grad[i] * gain[i]);                                                                                 \
			sum_by_h += (double)(grad[i] * gain[i]) * (double)((x[i] - middle) * factor);                                       \
		}                                                                                                                       \
		for (int k = 0; k < LANES; k++) sum += lanes[k], sum_by_h += by_h[k];                                                   \
		type mean = (type)(sum / (double)count), mean_by_h = (type)(sum_by_h / (double)count);                                  \
		HR__INDEPENDENT for (i = 0; i < count; i++) {                                                                           \
			type slope = factor * (grad[i] * gain[i] - mean - (x[i] - middle) * factor * mean_by_h);                            \
			out[i] = plus ? slope + plus[i] : slope;                                                                            \
		}                                                                                                                       \
	}

FOR_TYPE(float, f32)
FOR_TYPE(double, f64)

/* ---- runs ---- */

static bool is_f32(const hr__work *work)
{
	return work->out_types[1].dtype == HR_DTYPE_FLOAT32;
}

static int64_t columns_of(const hr__type *type)
{
	return type->dims.d[type->dims.rank - 1];
}

static int64_t rows_of(const hr__type *type)
{
	int64_t rows, behind;
	hr__around(&type->dims, type->dims.rank - 1, &rows, &behind);
	return rows;
}

static void norm_range(void *context, int64_t begin, int64_t end)
{
	const hr__work *work = context;
	for (int64_t row = begin; row < end; row++) {
		if (is_f32(work)) normalise_f32(work, row, columns_of(&work->in_types[0]));
		else normalise_f64(work, row, columns_of(&work->in_types[0]));
	}
}

HR__RUN(layer_norm)
{
	const hr__type *x = &work->in_types[0];
	hr__each_range(work, rows_of(x), hr__grain_of(HR__GRAIN / 4, columns_of(x)), norm_range, work);
}

/* Number of blocks that the rows are divided into. */
static int64_t blocks_of(const hr__type *x)
{
	int64_t rows = rows_of(x), columns = columns_of(x), blocks = columns == 0 ? 1 : rows / hr__grain_of(BLOCK_ELEMENTS, columns);
	return blocks > BLOCKS ? BLOCKS : blocks < 1 ? 1 : blocks;
}

HR__SCRATCH(layer_norm_grad)
{
	(void)out, (void)attrs;
	uint64_t columns = (uint64_t)(blocks_of(&in[1]) * columns_of(&in[1]));
	return 2 * columns * sizeof(double) + (in[0].dtype == HR_DTYPE_BFLOAT16 ? columns * sizeof(float) : 0);
}

static void block_part(void *context, uint32_t number)
{
	const hr__work *work = context;
	const hr__type *x = &work->in_types[1];
	int64_t rows = rows_of(x), columns = columns_of(x), each = (rows + blocks_of(x) - 1) / blocks_of(x);
	int64_t begin = number * each, end = begin + each < rows ? begin + each : rows;
	double *of_gain = (double *)work->scratch + number * 2 * columns, *of_bias = of_gain + columns;
	float *wide = (float *)((double *)work->scratch + blocks_of(x) * 2 * columns) + number * columns; /* a row of the gradient, if it is bfloat16 */
	bool narrow = work->in_types[0].dtype == HR_DTYPE_BFLOAT16;
	for (int64_t i = 0; i < 2 * columns; i++) of_gain[i] = 0;
	for (int64_t row = begin; row < end; row++) {
		if (narrow) hr__widen_piece((const uint16_t *)work->in[0] + row * columns, wide, columns);
		if (is_f32(work)) go_back_f32(work, narrow ? wide : (const float *)work->in[0] + row * columns, row, columns, of_gain, of_bias);
		else go_back_f64(work, (const double *)work->in[0] + row * columns, row, columns, of_gain, of_bias);
	}
}

static void join_range(void *context, int64_t begin, int64_t end)
{
	const hr__work *work = context;
	int64_t columns = columns_of(&work->in_types[1]), blocks = blocks_of(&work->in_types[1]);
	for (int64_t i = begin; i < end; i++) {
		const double *sums = (const double *)work->scratch + i;
		double of_gain = 0, of_bias = 0;
		for (int64_t block = 0; block < blocks; block++) {
			of_gain += sums[block * 2 * columns];
			of_bias += sums[(block * 2 + 1) * columns];
		}
		if (is_f32(work)) ((float *)work->out[1])[i] = (float)of_gain, ((float *)work->out[2])[i] = (float)of_bias;
		else ((double *)work->out[1])[i] = of_gain, ((double *)work->out[2])[i] = of_bias;
	}
}

HR__RUN(layer_norm_grad)
{
	const hr__type *x = &work->in_types[1];
	if (columns_of(x) == 0) return;
	hr__team_run(work->team, (uint32_t)blocks_of(x), block_part, work);
	hr__each_range(work, columns_of(x), HR__GRAIN / BLOCKS, join_range, work);
}

/* ---- gradients ---- */

HR__GRADIENT(layer_norm)
{
	if (!hr__wanted(backward, 0) && !hr__wanted(backward, 1) && !hr__wanted(backward, 2)) return HR_OK;
	hr_value outs[3], ins[6] = { backward->grad_out[0], backward->in[0], backward->in[1], backward->out[1], backward->out[2] };
	hr_status status = HR_OK;
	backward->is_sum[0] = hr__wanted(backward, 0) && backward->so_far[0].id; /* of what goes around the layer */
	if (backward->is_sum[0]) ins[5] = hr__value_make_temporary(backward->so_far[0]);
	hr__call(HR__OP_LAYER_NORM_GRAD, ins, backward->is_sum[0] ? 6 : 5, &(hr__attrs){ 0 }, outs);
	for (uint32_t i = 0; i < 3 && status == HR_OK; i++) {
		if (hr__wanted(backward, i)) status = hr__give(backward, i, outs[i]);
		else hr_value_release(outs[i]);
	}
	return status;
}

/* ---- public calls ---- */

hr_value hr__layer_norm_to(hr_dtype dtype, hr_value x, hr_value gain, hr_value bias, double epsilon)
{
	hr_value outs[3];
	hr__call(HR__OP_LAYER_NORM, (const hr_value[]){ x, gain, bias }, 3, &(hr__attrs){ .a = epsilon, .dtype = dtype }, outs);
	hr_value_release(outs[1]);
	hr_value_release(outs[2]);
	return outs[0];
}

hr_value hr_layer_norm(hr_value x, hr_value gain, hr_value bias, double epsilon)
{
	return hr__layer_norm_to(0, x, gain, bias, epsilon);
}
