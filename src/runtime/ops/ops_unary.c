/* ops_unary.c - elementwise ops of one input. All work in place. */
#include <math.h>

#include "core/base/status.h"
#include "runtime/ops/ops.h"
#include "runtime/kernels/ops_math.h"

HR__INFER(unary_number)
{
	(void)count, (void)attrs;
	*out = in[0];
	return hr__need_element(&in[0]);
}

HR__INFER(unary_float)
{
	(void)count, (void)attrs;
	*out = in[0];
	return hr__need_real(&in[0]);
}

/* Runs of graphs make chains; programs do not. */
HR__INFER(chain)
{
	(void)in, (void)count, (void)attrs, (void)out;
	return hr__fail(HR_INVALID_ARGUMENT, "only graphs call it");
}

/* ---- loops ---- */

typedef void (*unary_loop)(const hr__attrs *attrs, const void *in, void *out, int64_t count);

#define LOOP(name, type, expression)                                                    \
	static void name(const hr__attrs *attrs, const void *from, void *to, int64_t count) \
	{                                                                                   \
		const type *in = from, factor = (type)attrs->a, plus = (type)attrs->b;          \
		type *out = to;                                                                 \
		(void)factor, (void)plus;                                                       \
		HR__INDEPENDENT for (int64_t i = 0; i < count; i++)                             \
		{                                                                               \
			type x = in[i];                                                             \
			out[i] = (type)(expression);                                                \
		}                                                                               \
	}

LOOP(neg_f32, float, -x)
LOOP(neg_f64, double, -x)
LOOP(neg_i32, int32_t, 0 - (uint32_t)x) /* wraps around */
LOOP(neg_i64, int64_t, 0 - (uint64_t)x)
LOOP(neg_u8, uint8_t, 0 - (uint32_t)x)
LOOP(exp_f64, double, exp(x))
LOOP(log_f32, float, logf(x))
LOOP(log_f64, double, log(x))
LOOP(sqrt_f32, float, sqrtf(x))
LOOP(sqrt_f64, double, sqrt(x))
LOOP(tanh_f64, double, tanh(x))
LOOP(relu_f32, float, x < 0 ? 0 : x) /* NaN stays NaN */
LOOP(relu_f64, double, x < 0 ? 0 : x)
#define HALF_ROOT 0.70710678118654752440
LOOP(gelu_f64, double, 0.5 * x * (1 + erf(x * HALF_ROOT)))
LOOP(scale_f32, float, x *factor + plus)
LOOP(scale_f64, double, x *factor + plus)

static void exp_f32(const hr__attrs *attrs, const void *from, void *to, int64_t count)
{
	(void)attrs;
	hr__exp_f32(from, 0, to, count);
}

static void tanh_f32(const hr__attrs *attrs, const void *from, void *to, int64_t count)
{
	(void)attrs;
	hr__tanh_f32(from, to, count);
}

static void gelu_f32(const hr__attrs *attrs, const void *from, void *to, int64_t count)
{
	(void)attrs;
	hr__gelu_f32(from, to, count);
}

/* ---- runs ---- */

struct unary {
	hr__work *work;
	unary_loop loop;
	int64_t size;
};

static void unary_range(void *context, int64_t begin, int64_t end)
{
	struct unary *unary = context;
	const char *from = unary->work->in[0];
	char *to = unary->work->out[0];
	unary->loop(unary->work->attrs, from + begin * unary->size, to + begin * unary->size, end - begin);
}

/* Elements of bfloat16. */
static void narrow_range(void *context, int64_t begin, int64_t end)
{
	const struct unary *unary = context;
	const char *from = unary->work->in[0];
	char *to = unary->work->out[0];
	float piece[HR__PIECE];
	for (int64_t i = begin; i < end; i += HR__PIECE) {
		int64_t count = end - i < HR__PIECE ? end - i : HR__PIECE;
		hr__widen_piece(from + i * unary->size, piece, count);
		unary->loop(unary->work->attrs, piece, piece, count);
		hr__round_piece(piece, to + i * unary->size, count);
	}
}

static void run_unary(hr__work *work, unary_loop loop, int64_t grain)
{
	struct unary unary = { work, loop, (int64_t)hr_dtype_size(work->out_types[0].dtype) };
	bool narrow = work->out_types[0].dtype == HR_DTYPE_BFLOAT16;
	hr__each_range(work, hr__dims_count(&work->out_types[0].dims), grain, narrow ? narrow_range : unary_range, &unary);
}

#define RUN_FLOATS(name, grain)                                                                         \
	HR__RUN(name)                                                                                       \
	{                                                                                                   \
		run_unary(work, work->out_types[0].dtype == HR_DTYPE_FLOAT64 ? name##_f64 : name##_f32, grain); \
	}

HR__RUN(neg)
{
	switch (hr__computed_in(&work->out_types[0])) {
	case HR_DTYPE_FLOAT32: run_unary(work, neg_f32, HR__GRAIN); break;
	case HR_DTYPE_FLOAT64: run_unary(work, neg_f64, HR__GRAIN); break;
	case HR_DTYPE_INT32: run_unary(work, neg_i32, HR__GRAIN); break;
	case HR_DTYPE_INT64: run_unary(work, neg_i64, HR__GRAIN); break;
	default: run_unary(work, neg_u8, HR__GRAIN); break;
	}
}

RUN_FLOATS(sqrt, HR__GRAIN)
RUN_FLOATS(relu, HR__GRAIN)
RUN_FLOATS(scale, HR__GRAIN)
/* At least a nanosecond per element; in float64 some call libm. */
RUN_FLOATS(exp, HR__GRAIN / 4)
RUN_FLOATS(log, HR__GRAIN / 4)
RUN_FLOATS(tanh, HR__GRAIN / 4)
RUN_FLOATS(gelu, HR__GRAIN / 4)

/* ---- gradients ---- */

HR__GRADIENT(neg)
{
	return hr__wanted(backward, 0) ? hr__give(backward, 0, hr_neg(backward->grad_out[0])) : HR_OK;
}

HR__GRADIENT(exp)
{
	return hr__wanted(backward, 0) ? hr__give(backward, 0, hr_mul(backward->grad_out[0], backward->out[0])) : HR_OK;
}

HR__GRADIENT(log)
{
	return hr__wanted(backward, 0) ? hr__give(backward, 0, hr_div(backward->grad_out[0], backward->in[0])) : HR_OK;
}

/* dy/dx = 1 / (2 y) */
HR__GRADIENT(sqrt)
{
	if (!hr__wanted(backward, 0)) return HR_OK;
	return hr__give(backward, 0, hr_div(hr_scale(backward->grad_out[0], 0.5, 0), backward->out[0]));
}

HR__GRADIENT(scale)
{
	return hr__wanted(backward, 0) ? hr__give(backward, 0, hr_scale(backward->grad_out[0], backward->attrs->a, 0)) : HR_OK;
}

static hr_status give_by(hr__backward *backward, enum hr__op_kind kind, hr_value known)
{
	if (!hr__wanted(backward, 0)) return HR_OK;
	return hr__give(backward, 0, hr__call_one(kind, (const hr_value[]){ known, backward->grad_out[0] }, 2, &(hr__attrs){ 0 }));
}

HR__GRADIENT(tanh)
{
	return give_by(backward, HR__OP_TANH_GRAD, backward->out[0]);
}

HR__GRADIENT(relu)
{
	return give_by(backward, HR__OP_RELU_GRAD, backward->out[0]);
}

HR__GRADIENT(gelu)
{
	return give_by(backward, HR__OP_GELU_GRAD, backward->in[0]);
}

/* ---- public calls ---- */

#define CALL(name, kind)                                     \
	hr_value name(hr_value x)                                \
	{                                                        \
		return hr__call_one(kind, &x, 1, &(hr__attrs){ 0 }); \
	}

CALL(hr_neg, HR__OP_NEG)
CALL(hr_exp, HR__OP_EXP)
CALL(hr_log, HR__OP_LOG)
CALL(hr_sqrt, HR__OP_SQRT)
CALL(hr_tanh, HR__OP_TANH)
CALL(hr_relu, HR__OP_RELU)
CALL(hr_gelu, HR__OP_GELU)

hr_value hr_scale(hr_value x, double factor, double plus)
{
	return hr__call_one(HR__OP_SCALE, &x, 1, &(hr__attrs){ .a = factor, .b = plus });
}
