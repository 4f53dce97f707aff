/* ops_batch_norm.c - batch norm: the numbers of each channel are normalized to mean 0 and deviation 1, then scaled and shifted by a gain
 * and a bias per channel.
 *
 * x is [n, channels, ...]: a channel is a row of [inner] numbers in each of n images. A part is a range of channels, at most CHANNELS,
 * and goes over the images in order. Means are computed in double, the mean first and then the squares of the differences. Mean and
 * variance of each channel are outputs too, for the gradient and for running statistics.
 *
 * Inference has no op of its own: gain, bias, mean and variance make a factor and a shift for each channel. */
#include <math.h>

#include "core/base/status.h"
#include "runtime/engine/engine.h"
#include "runtime/ops/ops.h"

#define LANES 8
#define CHANNELS 64

/* ---- types ---- */

static hr_status need_images(const hr__type *x)
{
	char text[HR__DIMS_TEXT];
	hr_status status = hr__need_float(x);
	if (status || x->dims.rank >= 2) return status;
	return hr__fail(HR_INVALID_ARGUMENT, "shape %s is not [n,channels,...]", hr__dims_text(&x->dims, text, sizeof text));
}

static hr_status need_channels(const hr__type *x, const hr__type *of, const char *name)
{
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	hr_status status = hr__need_same_dtype(x, of);
	if (status || (of->dims.rank == 1 && of->dims.d[0] == x->dims.d[1])) return status;
	return hr__fail(HR_INVALID_ARGUMENT, "shapes %s and %s are incompatible: %s is as long as the second dimension of what is normalised",
	                hr__dims_text(&x->dims, left, sizeof left), hr__dims_text(&of->dims, right, sizeof right), name);
}

static hr_status need_epsilon(double epsilon)
{
	return epsilon >= 0 ? HR_OK : hr__fail(HR_INVALID_ARGUMENT, "epsilon is %g; it is at least 0", epsilon);
}

/* Inputs: x, gain, bias. Outputs: y, and mean and variance of each channel. */
HR__INFER(batch_norm)
{
	(void)count;
	hr_status status = need_images(&in[0]);
	if (!status) status = need_channels(&in[0], &in[1], "gain");
	if (!status) status = need_channels(&in[0], &in[2], "bias");
	if (!status) status = need_epsilon(attrs->a);
	out[0] = in[0];
	out[1] = out[2] = in[1];
	return status;
}

/* Inputs: the gradient of y, x, gain, mean, variance. Outputs: the gradients of x, gain and bias. */
HR__INFER(batch_norm_grad)
{
	static const char *const names[] = { "gain", "mean", "variance" };
	(void)count;
	hr_status status = need_images(&in[1]);
	if (!status) status = hr__need_same_dtype(&in[1], &in[0]);
	if (!status) status = hr__need_same_dims(&in[1], &in[0]);
	for (int i = 0; i < 3 && !status; i++) status = need_channels(&in[1], &in[2 + i], names[i]);
	if (!status) status = need_epsilon(attrs->a);
	out[0] = in[1];
	out[1] = out[2] = in[2];
	return status;
}

/* ---- kernels ---- */

struct batch {
	const hr__work *work;
	int64_t images, channels, inner;
};

/* [TERM] is a double computed from element i. */
#define SUM(type, TERM)                                       \
	double lanes[LANES] = { 0 }, sum = 0;                     \
	int64_t at = 0;                                           \
	for (; at + LANES <= count; at += LANES) {                \
		for (int k = 0; k < LANES; k++) {                     \
			int64_t i = at + k;                               \
			lanes[k] += TERM;                                 \
		}                                                     \
	}                                                         \
	for (int64_t i = at; i < count; i++) sum += TERM;         \
	for (int k = 0; k < LANES; k++) sum += lanes[k];          \
	return sum;

#define FOR_TYPE(type, name)                                                                                                    \
	static double sum_##name(const type *x, int64_t count)                                                                      \
	{                                                                                                                           \
		SUM(type, (double)x[i])                                                                                                 \
	}                                                                                                                           \
                                                                                                                                \
	static double squares_##name(const type *x, int64_t count, double mean)                                                     \
	{                                                                                                                           \
		SUM(type, ((double)x[i] - mean) * ((double)x[i] - mean))                                                                \
	}                                                                                                                           \
                                                                                                                                \
	static double by_h_##name(const type *grad, const type *x, int64_t count, type middle)                                      \
	{                                                                                                                           \
		SUM(type, (double)grad[i] * (double)(x[i] - middle))                                                                    \
	}                                                                                                                           \
                                                                                                                                \
	/* Channels [begin, end), at most CHANNELS. */                                                                              \
	static void normalise_##name(const struct batch *of, int64_t begin, int64_t end)                                            \
	{                                                                                                                           \
		const type *x = of->work->in[0], *gain = of->work->in[1], *bias = of->work->in[2];                                      \
		type *out = of->work->out[0];                                                                                           \
		double mean[CHANNELS] = { 0 }, variance[CHANNELS] = { 0 }, numbers = (double)(of->images * of->inner);                  \
		int64_t count = of->inner, wide = end - begin;                                                                          \
		for (int64_t n = 0; n < of->images; n++)                                                                                \
			for (int64_t c = 0; c < wide; c++) mean[c] += sum_##name(x + (n * of->channels + begin + c) * count, count);        \
		for (int64_t c = 0; c < wide; c++) mean[c] = numbers > 0 ? mean[c] / numbers : 0;                                       \
		for (int64_t n = 0; n < of->images; n++)                                                                                \
			for (int64_t c = 0; c < wide; c++)                                                                                  \
				variance[c] += squares_##name(x + (n * of->channels + begin + c) * count, count, mean[c]);                      \
		for (int64_t c = 0; c < wide; c++) {                                                                                    \
			variance[c] = numbers > 0 ? variance[c] / numbers : 0;                                                              \
			((type *)of->work->out[1])[begin + c] = (type)mean[c];                                                              \
			((type *)of->work->out[2])[begin + c] = (type)variance[c];                                                          \
		}                                                                                                                       \
		for (int64_t n = 0; n < of->images; n++) {                                                                              \
			for (int64_t c = 0; c < wide; c++) {                                                                                \
				const type *from = x + (n * of->channels + begin + c) * count, by = gain[begin + c], add = bias[begin + c];     \
				type *to = out + (n * of->channels + begin + c) * count;                                                        \
				double middle = mean[c], scale = 1 / sqrt(variance[c] + of->work->attrs->a);                                    \
				HR__INDEPENDENT for (int64_t i = 0; i < count; i++) to[i] = (type)(((double)from[i] - middle) * scale) * by + add; \
			}                                                                                                                   \
		}                                                                                                                       \
	}                                                                                                                           \
                                                                                                                                \
	/* With h = (x - mean) / deviation: dx = gain (dy - mean(dy) - h mean(dy h)) / deviation. */                                \
	static void go_back_##name(const struct batch *of, int64_t begin, int64_t end)                                              \
	{                                                                                                                           \
		const type *grad = of->work->in[0], *x = of->work->in[1], *gain = of->work->in[2], *mean = of->work->in[3];             \
		const type *variance = of->work->in[4];                                                                                 \
		type *out = of->work->out[0];                                                                                           \
		double of_bias[CHANNELS] = { 0 }, of_gain[CHANNELS] = { 0 }, numbers = (double)(of->images * of->inner);                \
		int64_t count = of->inner, wide = end - begin;                                                                          \
		for (int64_t n = 0; n < of->images; n++) {                                                                              \
			for (int64_t c = 0; c < wide; c++) {                                                                                \
				int64_t at = (n * of->channels + begin + c) * count;                                                            \
				of_bias[c] += sum_##name(grad + at, count);                                                                     \
				of_gain[c] += by_h_##name(grad + at, x + at, count, mean[begin + c]);                                           \
			}                                                                                                                   \
		}                                                                                                                       \
		for (int64_t c = 0; c < wide; c++) {                                                                                    \
			of_gain[c] /= sqrt((double)variance[begin + c] + of->work->attrs->a);                                               \
			((type *)of->work->out[1])[begin + c] = (type)of_gain[c];                                                           \
			((type *)of->work->out[2])[begin + c] = (type)of_bias[c];                                                           \
		}                                                                                                                       \
		for (int64_t n = 0; n < of->images; n++) {                                                                              \
			for (int64_t c = 0; c < wide; c++) {                                                                                \
				int64_t at = (n * of->channels + begin + c) * count;                                                            \
				type factor = (type)(1 / sqrt((double)variance[begin + c] + of->work->attrs->a)), middle = mean[begin + c];     \
				type less = (type)(of_bias[c] / numbers), by_h = (type)(of_gain[c] / numbers), by = gain[begin + c] * factor;   \
				HR__INDEPENDENT for (int64_t i = 0; i < count; i++)                                                             \
					out[at + i] = by * (grad[at + i] - less - (x[at + i] - middle) * factor * by_h);                            \
			}                                                                                                                   \
		}                                                                                                                       \
	}

FOR_TYPE(float, f32)
FOR_TYPE(double, f64)

/* ---- runs ---- */

static struct batch batch_of(const hr__work *work, const hr__type *x)
{
	struct batch of = { .work = work, .channels = x->dims.d[1] };
	hr__around(&x->dims, 1, &of.images, &of.inner);
	return of;
}

static void each_channel(hr__work *work, struct batch *of, hr__range_function range)
{
	int64_t grain = hr__grain_of(HR__GRAIN, of->images * of->inner);
	hr__each_range(work, of->channels, grain < CHANNELS ? grain : CHANNELS, range, of);
}

static void norm_range(void *context, int64_t begin, int64_t end)
{
	const struct batch *of = context;
	for (int64_t first = begin; first < end; first += CHANNELS) {
		int64_t last = end - first < CHANNELS ? end : first + CHANNELS;
		if (of->work->out_types[0].dtype == HR_DTYPE_FLOAT32) normalise_f32(of, first, last);
		else normalise_f64(of, first, last);
	}
}

HR__RUN(batch_norm)
{
	struct batch of = batch_of(work, &work->in_types[0]);
	each_channel(work, &of, norm_range);
}

static void back_range(void *context, int64_t begin, int64_t end)
{
	const struct batch *of = context;
	for (int64_t first = begin; first < end; first += CHANNELS) {
		int64_t last = end - first < CHANNELS ? end : first + CHANNELS;
		if (of->work->out_types[0].dtype == HR_DTYPE_FLOAT32) go_back_f32(of, first, last);
		else go_back_f64(of, first, last);
	}
}

HR__RUN(batch_norm_grad)
{
	struct batch of = batch_of(work, &work->in_types[1]);
	each_channel(work, &of, back_range);
}

/* ---- gradients ---- */

HR__GRADIENT(batch_norm)
{
	if (!hr__wanted(backward, 0) && !hr__wanted(backward, 1) && !hr__wanted(backward, 2)) return HR_OK;
	hr_value outs[3], ins[5] = { backward->grad_out[0], backward->in[0], backward->in[1], backward->out[1], backward->out[2] };
	hr_status status = HR_OK;
	hr__call(HR__OP_BATCH_NORM_GRAD, ins, 5, &(hr__attrs){ .a = backward->attrs->a }, outs);
	for (uint32_t i = 0; i < 3 && status == HR_OK; i++) {
		if (hr__wanted(backward, i)) status = hr__give(backward, i, outs[i]);
		else hr_value_release(outs[i]);
	}
	return status;
}

/* ---- public calls ---- */

hr_value hr_batch_norm(hr_value x, hr_value gain, hr_value bias, double epsilon, hr_value *mean, hr_value *variance)
{
	hr_value outs[3];
	hr__call(HR__OP_BATCH_NORM, (const hr_value[]){ x, gain, bias }, 3, &(hr__attrs){ .a = epsilon }, outs);
	if (mean) *mean = outs[1];
	else hr_value_release(outs[1]);
	if (variance) *variance = outs[2];
	else hr_value_release(outs[2]);
	return outs[0];
}

/* Checks the inputs of hr_batch_norm_inference. */
static hr_status check_inference(const hr_value *ins, double epsilon, hr__type *x)
{
	static const char *const names[] = { "mean", "variance", "gain", "bias" };
	hr__value value;
	hr_status status = hr__value_get(ins[0], &value);
	if (!status) status = need_images(&value.type);
	*x = value.type;
	for (int i = 0; i < 4 && !status; i++) {
		status = hr__value_get(ins[1 + i], &value);
		if (!status) status = need_channels(x, &value.type, names[i]);
	}
	return status ? status : need_epsilon(epsilon);
}

hr_value hr_batch_norm_inference(hr_value x, hr_value mean, hr_value variance, hr_value gain, hr_value bias, double epsilon)
{
	const hr_value ins[] = { x, mean, variance, gain, bias };
	hr__type type;
	for (int i = 0; i < 5; i++)
		if (!ins[i].id) return hr__op_refuse(ins, 5, "batch_norm", "an input is missing"); /* keeps the earlier message */
	if (check_inference(ins, epsilon, &type)) return hr__op_refuse_in(ins, 5, "batch_norm");
	hr__dims columns = type.dims; /* [channels, 1, ...] */
	columns.rank--;
	columns.d[0] = type.dims.d[1];
	for (int i = 1; i < columns.rank; i++) columns.d[i] = 1;
	hr_value factor = hr_value_keep(hr_div(gain, hr_sqrt(hr_scale(variance, 1, epsilon))));
	hr_value shift = hr_sub(bias, hr_mul(mean, factor));
	hr_value y = hr_add(hr_mul(x, hr__reshape_to(factor, &columns)), hr__reshape_to(shift, &columns));
	hr_value_release(factor);
	return y;
}
