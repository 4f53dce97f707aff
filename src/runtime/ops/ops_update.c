/* ops_update.c - optimizer steps: the new contents of a variable and its optimizer state, from its gradient.
 *
 * Output i may be the memory of input i. Each element is read before the element in its place is written. Factors common to all
 * elements are computed in double. Adam's terms are combined in PyTorch's order, so that rounding is the same unless the compiler
 * fuses products and sums. */
#include <math.h>

#include "core/base/status.h"
#include "runtime/ops/ops.h"

/* ---- types ---- */

/* The first [count] inputs are the variable, its state and the gradient. The outputs are all of them but the gradient. */
static hr_status infer_update(const hr__type *in, uint32_t count, hr__type *out)
{
	hr_status status = hr__need_float(&in[0]);
	for (uint32_t i = 1; i < count && status == HR_OK; i++) {
		status = hr__need_same_dtype(&in[0], &in[i]);
		if (status == HR_OK) status = hr__need_same_dims(&in[0], &in[i]);
	}
	for (uint32_t i = 0; i + 1 < count; i++) out[i] = in[0];
	return status;
}

HR__INFER(sgd)
{
	(void)attrs;
	return infer_update(in, count, out);
}

HR__INFER(momentum)
{
	(void)attrs;
	return infer_update(in, count, out);
}

HR__INFER(adam)
{
	(void)attrs;
	char text[HR__DIMS_TEXT];
	hr_status status = infer_update(in, count - 1, out);
	const hr__type *step = &in[count - 1];
	if (status != HR_OK || (step->dtype == HR_DTYPE_INT64 && step->dims.rank == 0)) return status;
	return hr__fail(HR_INVALID_ARGUMENT, "the number of the step is %s %s; it is int64 []", hr_dtype_text(step->dtype),
	                hr__dims_text(&step->dims, text, sizeof text));
}

/* ---- loops ---- */

struct update {
	hr__work *work;
	double rate, by_square; /* Adam: the learning rate and the divisor of the second moment's root, both with bias correction */
};

#define IN(type, i) ((const type *)update->work->in[i])
#define OUT(type, i) ((type *)update->work->out[i])

#define FOR_TYPE(type, name, root)                                                                        \
	static void sgd_##name(const struct update *update, int64_t begin, int64_t end)                       \
	{                                                                                                     \
		const type *w = IN(type, 0), *g = IN(type, 1), rate = (type)update->work->attrs->a;               \
		type *out = OUT(type, 0);                                                                         \
		HR__INDEPENDENT for (int64_t i = begin; i < end; i++) out[i] = w[i] - rate * g[i];                \
	}                                                                                                     \
                                                                                                          \
	static void momentum_##name(const struct update *update, int64_t begin, int64_t end)                  \
	{                                                                                                     \
		const hr__attrs *attrs = update->work->attrs;                                                     \
		const type *w = IN(type, 0), *sum = IN(type, 1), *g = IN(type, 2);                                \
		type *out = OUT(type, 0), *next = OUT(type, 1), rate = (type)attrs->a, momentum = (type)attrs->b; \
		HR__INDEPENDENT for (int64_t i = begin; i < end; i++)                                             \
		{                                                                                                 \
			type all = momentum * sum[i] + g[i];                                                          \
			out[i] = w[i] - rate * all;                                                                   \
			next[i] = all;                                                                                \
		}                                                                                                 \
	}                                                                                                     \
                                                                                                          \
	static void adam_##name(const struct update *update, int64_t begin, int64_t end)                      \
	{                                                                                                     \
		const hr__attrs *attrs = update->work->attrs;                                                     \
		const type *w = IN(type, 0), *m = IN(type, 1), *v = IN(type, 2), *g = IN(type, 3);                \
		type *out = OUT(type, 0), *next_m = OUT(type, 1), *next_v = OUT(type, 2);                         \
		type keeps = (type)attrs->c, takes_m = (type)(1 - attrs->b), takes_v = (type)(1 - attrs->c);      \
		type rate = (type)update->rate, by_square = (type)update->by_square, epsilon = (type)attrs->d;    \
		HR__INDEPENDENT for (int64_t i = begin; i < end; i++)                                             \
		{                                                                                                 \
			type first = m[i] + (g[i] - m[i]) * takes_m, second = keeps * v[i] + takes_v * g[i] * g[i];   \
			out[i] = w[i] - rate * first / (root(second) / by_square + epsilon);                          \
			next_m[i] = first;                                                                            \
			next_v[i] = second;                                                                           \
		}                                                                                                 \
	}

FOR_TYPE(float, f32, sqrtf)
FOR_TYPE(double, f64, sqrt)

/* ---- runs ---- */

#define RUN(name)                                                                                                        \
	static void name##_range(void *context, int64_t begin, int64_t end)                                                  \
	{                                                                                                                    \
		const struct update *update = context;                                                                           \
		if (update->work->out_types[0].dtype == HR_DTYPE_FLOAT32) name##_f32(update, begin, end);                        \
		else name##_f64(update, begin, end);                                                                             \
	}                                                                                                                    \
                                                                                                                         \
	static void run_##name(struct update *update)                                                                        \
	{                                                                                                                    \
		hr__each_range(update->work, hr__dims_count(&update->work->out_types[0].dims), HR__GRAIN, name##_range, update); \
	}

RUN(sgd)
RUN(momentum)
RUN(adam)

HR__RUN(sgd)
{
	run_sgd(&(struct update){ .work = work });
}

HR__RUN(momentum)
{
	run_momentum(&(struct update){ .work = work });
}

/* Both moments start at 0; the factors correct the bias. */
HR__RUN(adam)
{
	const hr__attrs *attrs = work->attrs;
	double step = (double)*(const int64_t *)work->in[4];
	if (step < 1) hr__run_error(work, "the number of a step is below 1");
	run_adam(
		&(struct update){ .work = work, .rate = attrs->a / (1 - pow(attrs->b, step)), .by_square = sqrt(1 - pow(attrs->c, step)) });
}
