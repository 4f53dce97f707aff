/* ops_binary.c - elementwise ops of two inputs with broadcasting, and gradient ops of unary functions.
 *
 * A loop is compiled for each op, each dtype, and each combination of row steps: both inputs advance, or one of them repeats a
 * single element. All other broadcasting is done by the walk. */
#include <math.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "runtime/ops/ops.h"
#include "runtime/kernels/ops_math.h"

/* ---- types ---- */

/* Numbers of one dtype, broadcast; float32 and bfloat16 may be mixed. */
HR__INFER(binary)
{
	(void)count, (void)attrs;
	hr_status status = hr__need_element(&in[0]);
	if (status == HR_OK) status = hr__need_elements(&in[0], &in[1], &out->dtype);
	if (status != HR_OK) return status;
	return hr__dims_broadcast(&in[0].dims, &in[1].dims, &out->dims) ? HR_OK : hr__misfit(&in[0].dims, &in[1].dims);
}

/* Floats of one shape: inputs of the gradient ops of unary functions. */
HR__INFER(binary_float)
{
	(void)count, (void)attrs;
	hr_status status = hr__need_real(&in[0]);
	if (status == HR_OK) status = hr__need_elements(&in[0], &in[1], &out->dtype);
	if (status == HR_OK) status = hr__need_same_dims(&in[0], &in[1]);
	out->dims = in[0].dims;
	return status;
}

/* ---- loops ---- */

/* [a_step] and [b_step] are 0 or 1. False: integer division by zero. */
typedef bool (*binary_loop)(const void *a, const void *b, void *out, int64_t count, int64_t a_step, int64_t b_step);

#define LOOP(name, type, expression)                                                                              \
	static bool name(const void *of_a, const void *of_b, void *to, int64_t count, int64_t a_step, int64_t b_step) \
	{                                                                                                             \
		const type *pa = of_a, *pb = of_b;                                                                        \
		type *out = to;                                                                                           \
		if (a_step && b_step) {                                                                                   \
			HR__INDEPENDENT for (int64_t i = 0; i < count; i++)                                                   \
			{                                                                                                     \
				type a = pa[i], b = pb[i];                                                                        \
				out[i] = (type)(expression);                                                                      \
			}                                                                                                     \
		} else if (a_step) {                                                                                      \
			type b = pb[0];                                                                                       \
			HR__INDEPENDENT for (int64_t i = 0; i < count; i++)                                                   \
			{                                                                                                     \
				type a = pa[i];                                                                                   \
				out[i] = (type)(expression);                                                                      \
			}                                                                                                     \
		} else {                                                                                                  \
			type a = pa[0];                                                                                       \
			HR__INDEPENDENT for (int64_t i = 0; i < count; i++)                                                   \
			{                                                                                                     \
				type b = pb[i];                                                                                   \
				out[i] = (type)(expression);                                                                      \
			}                                                                                                     \
		}                                                                                                         \
		return true;                                                                                              \
	}

/* Integers wrap around, computed as unsigned, for which that is defined. */
#define LOOPS(name, floats, integers)             \
	LOOP(name##_f32, float, floats)               \
	LOOP(name##_f64, double, floats)              \
	LOOP(name##_i32, int32_t, integers(uint32_t)) \
	LOOP(name##_i64, int64_t, integers(uint64_t)) \
	LOOP(name##_u8, uint8_t, integers(uint32_t))

#define ADD(wide) (wide) a + (wide)b
#define SUB(wide) (wide) a - (wide)b
#define MUL(wide) (wide) a *(wide)b
#define MAX(wide) (a > b ? a : b)

LOOPS(add, a + b, ADD)
LOOPS(sub, a - b, SUB)
LOOPS(mul, a *b, MUL)
LOOPS(maximum, a > b || a != a ? a : b, MAX) /* NaN in [a] wins */
LOOP(div_f32, float, a / b)
LOOP(div_f64, double, a / b)

#define DIVISION(name, type, wide)                                                                                \
	static bool name(const void *of_a, const void *of_b, void *to, int64_t count, int64_t a_step, int64_t b_step) \
	{                                                                                                             \
		const type *a = of_a, *b = of_b;                                                                          \
		type *out = to;                                                                                           \
		for (int64_t i = 0; i < count; i++) {                                                                     \
			type over = a[i * a_step], under = b[i * b_step];                                                     \
			if (under == 0) return false;                                                                         \
			out[i] = (type)-1 < 0 && under == (type)-1 ? (type)(0 - (wide)over) : (type)(over / under);           \
		}                                                                                                         \
		return true;                                                                                              \
	}

/* The smallest integer divided by -1 wraps around instead of trapping. */
DIVISION(div_i32, int32_t, uint32_t)
DIVISION(div_i64, int64_t, uint64_t)
DIVISION(div_u8, uint8_t, uint32_t)

LOOP(relu_grad_f32, float, a > 0 ? b : 0)
LOOP(relu_grad_f64, double, a > 0 ? b : 0)
LOOP(tanh_grad_f32, float, b *(1 - a * a))
LOOP(tanh_grad_f64, double, b *(1 - a * a))

/* gelu(x) = x F(x) with F(x) = (1 + erf(x / sqrt 2)) / 2, so its derivative is F(x) + x F'(x),
 * F'(x) = exp(-x^2 / 2) / sqrt(2 pi). */
#define HALF_ROOT 0.70710678118654752440
#define DENSITY 0.39894228040143267794
LOOP(gelu_grad_f64, double, b *(0.5 * (1 + erf(a * HALF_ROOT)) + a * DENSITY * exp(-0.5 * a * a)))

static bool gelu_grad_f32(const void *a, const void *b, void *out, int64_t count, int64_t a_step, int64_t b_step)
{
	HR_ASSERT(a_step == 1 && b_step == 1); /* the inputs have the same shape */
	(void)a_step, (void)b_step;
	hr__gelu_grad_f32(a, b, out, count);
	return true;
}

/* ---- runs ---- */

typedef struct binary_loops {
	binary_loop f32, f64, i32, i64, u8;
} binary_loops;

static binary_loop loop_for(const binary_loops *loops, hr_dtype dtype)
{
	switch (dtype) {
	case HR_DTYPE_FLOAT32: return loops->f32;
	case HR_DTYPE_FLOAT64: return loops->f64;
	case HR_DTYPE_INT32: return loops->i32;
	case HR_DTYPE_INT64: return loops->i64;
	default: return loops->u8;
	}
}

struct binary {
	hr__work *work;
	hr__broadcast walk;
	binary_loop loop;
	int64_t a_size, b_size, size; /* bytes of an element; of the output */
};

static void binary_row(void *context, int64_t out, int64_t a, int64_t b, int64_t count)
{
	struct binary *binary = context;
	hr__work *work = binary->work;
	int last = binary->walk.rank - 1;
	const char *from_a = work->in[0], *from_b = work->in[1];
	char *to = work->out[0];
	bool done = binary->loop(from_a + a * binary->a_size, from_b + b * binary->b_size, to + out * binary->size, count,
	                         binary->walk.a[last] != 0, binary->walk.b[last] != 0);
	if (!done) hr__run_error(work, "integer division by zero");
}

/* Elements of an operand, in float32: [piece], if they are bfloat16. */
static const void *operand(const hr__work *work, uint32_t i, int64_t at, int64_t count, float *piece)
{
	const char *from = (const char *)work->in[i] + at * (int64_t)hr_dtype_size(work->in_types[i].dtype);
	if (work->in_types[i].dtype != HR_DTYPE_BFLOAT16) return from;
	hr__widen_piece(from, piece, count);
	return piece;
}

/* A row of which an operand or the output is bfloat16. */
static void mixed_row(void *context, int64_t out, int64_t a, int64_t b, int64_t count)
{
	const struct binary *binary = context;
	const hr__work *work = binary->work;
	int64_t a_step = binary->walk.a[binary->walk.rank - 1] != 0, b_step = binary->walk.b[binary->walk.rank - 1] != 0;
	bool narrow = work->out_types[0].dtype == HR_DTYPE_BFLOAT16;
	float of_a[HR__PIECE], of_b[HR__PIECE], result[HR__PIECE];
	for (int64_t i = 0; i < count; i += HR__PIECE) {
		int64_t some = count - i < HR__PIECE ? count - i : HR__PIECE;
		const void *x = operand(work, 0, a + i * a_step, a_step ? some : 1, of_a), *y = operand(work, 1, b + i * b_step, b_step ? some : 1, of_b);
		char *to = (char *)work->out[0] + (out + i) * binary->size;
		binary->loop(x, y, narrow ? (char *)result : to, some, a_step, b_step);
		if (narrow) hr__round_piece(result, to, some);
	}
}

static void binary_range(void *context, int64_t begin, int64_t end)
{
	struct binary *binary = context;
	const hr__work *work = binary->work;
	bool mixed = work->in_types[0].dtype == HR_DTYPE_BFLOAT16 || work->in_types[1].dtype == HR_DTYPE_BFLOAT16;
	hr__broadcast_range(&binary->walk, begin, end, mixed ? mixed_row : binary_row, binary);
}

static void run_binary(hr__work *work, const binary_loops *loops, int64_t grain)
{
	struct binary binary = { .work = work, .loop = loop_for(loops, hr__computed_in(&work->out_types[0])),
		                     .a_size = (int64_t)hr_dtype_size(work->in_types[0].dtype), .b_size = (int64_t)hr_dtype_size(work->in_types[1].dtype),
		                     .size = (int64_t)hr_dtype_size(work->out_types[0].dtype) };
	hr__broadcast_make(&work->out_types[0].dims, &work->in_types[0].dims, &work->in_types[1].dims, &binary.walk);
	hr__each_range(work, hr__dims_count(&work->out_types[0].dims), grain, binary_range, &binary);
}

#define RUN_NUMBERS(name)                                                                                          \
	HR__RUN(name)                                                                                                  \
	{                                                                                                              \
		run_binary(work, &(binary_loops){ name##_f32, name##_f64, name##_i32, name##_i64, name##_u8 }, HR__GRAIN); \
	}

#define RUN_FLOATS(name, grain)                                                           \
	HR__RUN(name)                                                                         \
	{                                                                                     \
		run_binary(work, &(binary_loops){ .f32 = name##_f32, .f64 = name##_f64 }, grain); \
	}

RUN_NUMBERS(add)
RUN_NUMBERS(sub)
RUN_NUMBERS(mul)
RUN_NUMBERS(div)
RUN_NUMBERS(maximum)
RUN_FLOATS(relu_grad, HR__GRAIN)
RUN_FLOATS(tanh_grad, HR__GRAIN)
RUN_FLOATS(gelu_grad, HR__GRAIN / 4)

/* ---- gradients ---- */

static const hr__dims *dims_of(const hr__backward *backward, uint32_t i)
{
	return &backward->in_types[i].dims;
}

/* Gives [value], of the output's shape, to input [i], summed over the broadcast dimensions. */
static hr_status give_summed(hr__backward *backward, uint32_t i, hr_value value)
{
	return hr__give(backward, i, hr__sum_to(value, &backward->out_types[0].dims, dims_of(backward, i)));
}

HR__GRADIENT(add)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < 2 && status == HR_OK; i++) {
		if (hr__wanted(backward, i)) status = give_summed(backward, i, backward->grad_out[0]);
	}
	return status;
}

HR__GRADIENT(sub)
{
	hr_status status = HR_OK;
	if (hr__wanted(backward, 0)) status = give_summed(backward, 0, backward->grad_out[0]);
	if (status != HR_OK || !hr__wanted(backward, 1)) return status;
	/* Sum first: fewer elements to negate, and no copy of the whole gradient. */
	return hr__give(backward, 1, hr_neg(hr__sum_to(backward->grad_out[0], &backward->out_types[0].dims, dims_of(backward, 1))));
}

HR__GRADIENT(mul)
{
	hr_status status = HR_OK;
	if (hr__wanted(backward, 0)) status = give_summed(backward, 0, hr_mul(backward->grad_out[0], backward->in[1]));
	if (status != HR_OK || !hr__wanted(backward, 1)) return status;
	return give_summed(backward, 1, hr_mul(backward->grad_out[0], backward->in[0]));
}

/* y = a / b: dy/da = 1 / b, dy/db = -y / b. */
HR__GRADIENT(div)
{
	hr_status status = HR_OK;
	hr_value grad = backward->grad_out[0], b = backward->in[1];
	if (hr__wanted(backward, 0)) status = give_summed(backward, 0, hr_div(grad, b));
	if (status != HR_OK || !hr__wanted(backward, 1)) return status;
	return give_summed(backward, 1, hr_neg(hr_div(hr_mul(grad, backward->out[0]), b)));
}

/* The gradient of the second input: nonzero where that input is larger. relu_grad passes its second input on where its first is
 * above zero. */
static hr_value where_second_wins(hr__backward *backward)
{
	hr_value inputs[2] = { hr_sub(backward->in[1], backward->in[0]), backward->grad_out[0] };
	return hr__call_one(HR__OP_RELU_GRAD, inputs, 2, &(hr__attrs){ 0 });
}

/* If both are equal, the gradient goes to the first. */
HR__GRADIENT(maximum)
{
	hr_status status = HR_OK;
	if (hr__wanted(backward, 1)) status = give_summed(backward, 1, where_second_wins(backward));
	if (status != HR_OK || !hr__wanted(backward, 0)) return status;
	return give_summed(backward, 0, hr_sub(backward->grad_out[0], where_second_wins(backward)));
}

/* ---- public calls ---- */

#define CALL(name, kind)                                                             \
	hr_value name(hr_value a, hr_value b)                                            \
	{                                                                                \
		return hr__call_one(kind, (const hr_value[]){ a, b }, 2, &(hr__attrs){ 0 }); \
	}

CALL(hr_add, HR__OP_ADD)
CALL(hr_sub, HR__OP_SUB)
CALL(hr_mul, HR__OP_MUL)
CALL(hr_div, HR__OP_DIV)
CALL(hr_maximum, HR__OP_MAXIMUM)
