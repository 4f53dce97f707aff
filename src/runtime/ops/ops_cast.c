/* ops_cast.c - conversion to another dtype. Floats outside an integer's range are clamped, NaN becomes 0. Between integers the low
 * bits are kept, as in C. Everything but 0 converts to true. */
#include "runtime/engine/engine.h"
#include "runtime/kernels/bfloat16.h"
#include "runtime/ops/ops.h"

HR__INFER(cast)
{
	(void)count;
	hr_status status = hr__need_any(in[0].dtype);
	if (status == HR_OK) status = hr__need_any(attrs->dtype);
	out->dtype = attrs->dtype;
	out->dims = in[0].dims;
	return status;
}

/* Converting a float that does not fit is undefined in C. [beyond] is the first value that does not fit. */
#define CLAMP(name, type, least, most, beyond)  \
	static inline type name(double x)           \
	{                                           \
		if (x != x) return 0;                   \
		if (x <= (double)(least)) return least; \
		return x >= (beyond) ? most : (type)x;  \
	}

CLAMP(clamp_i32, int32_t, INT32_MIN, INT32_MAX, 0x1p31)
CLAMP(clamp_i64, int64_t, INT64_MIN, INT64_MAX, 0x1p63)
CLAMP(clamp_u8, uint8_t, 0, UINT8_MAX, 0x1p8)

typedef void (*cast_loop)(const void *in, void *out, int64_t count);

#define LOOP(from, from_type, to, to_type, expression)                    \
	static void from##_to_##to(const void *of, void *into, int64_t count) \
	{                                                                     \
		const from_type *in = of;                                         \
		to_type *out = into;                                              \
		HR__INDEPENDENT for (int64_t i = 0; i < count; i++)               \
		{                                                                 \
			from_type x = in[i];                                          \
			out[i] = (to_type)(expression);                               \
		}                                                                 \
	}

#define FROM_FLOAT(from, type)                   \
	LOOP(from, type, f32, float, x)              \
	LOOP(from, type, f64, double, x)             \
	LOOP(from, type, i32, int32_t, clamp_i32(x)) \
	LOOP(from, type, i64, int64_t, clamp_i64(x)) \
	LOOP(from, type, u8, uint8_t, clamp_u8(x))   \
	LOOP(from, type, truth, uint8_t, x != 0)

#define FROM_INTEGER(from, type)      \
	LOOP(from, type, f32, float, x)   \
	LOOP(from, type, f64, double, x)  \
	LOOP(from, type, i32, int32_t, x) \
	LOOP(from, type, i64, int64_t, x) \
	LOOP(from, type, u8, uint8_t, x)  \
	LOOP(from, type, truth, uint8_t, x != 0)

#define FROM_TRUTH(from, type)             \
	LOOP(from, type, f32, float, x != 0)   \
	LOOP(from, type, f64, double, x != 0)  \
	LOOP(from, type, i32, int32_t, x != 0) \
	LOOP(from, type, i64, int64_t, x != 0) \
	LOOP(from, type, u8, uint8_t, x != 0)  \
	LOOP(from, type, truth, uint8_t, x != 0)

#define FROM_BFLOAT16(from, type)                                     \
	LOOP(from, type, f32, float, hr__bfloat16_to_f32(x))              \
	LOOP(from, type, f64, double, hr__bfloat16_to_f32(x))             \
	LOOP(from, type, i32, int32_t, clamp_i32(hr__bfloat16_to_f32(x))) \
	LOOP(from, type, i64, int64_t, clamp_i64(hr__bfloat16_to_f32(x))) \
	LOOP(from, type, u8, uint8_t, clamp_u8(hr__bfloat16_to_f32(x)))   \
	LOOP(from, type, truth, uint8_t, hr__bfloat16_to_f32(x) != 0)

FROM_FLOAT(f32, float)
FROM_FLOAT(f64, double)
FROM_INTEGER(i32, int32_t)
FROM_INTEGER(i64, int64_t)
FROM_INTEGER(u8, uint8_t)
FROM_TRUTH(truth, uint8_t)
FROM_BFLOAT16(b16, hr__bfloat16)

LOOP(f32, float, b16, hr__bfloat16, hr__bfloat16_of_f32(x))
LOOP(f64, double, b16, hr__bfloat16, hr__bfloat16_of_f64(x))
LOOP(i32, int32_t, b16, hr__bfloat16, hr__bfloat16_of_i64(x))
LOOP(i64, int64_t, b16, hr__bfloat16, hr__bfloat16_of_i64(x))
LOOP(u8, uint8_t, b16, hr__bfloat16, hr__bfloat16_of_i64(x))
LOOP(truth, uint8_t, b16, hr__bfloat16, hr__bfloat16_of_i64(x != 0))
LOOP(b16, hr__bfloat16, b16, hr__bfloat16, x)

#define ROW(from)                                                                                                 \
	{                                                                                                             \
		[HR_DTYPE_FLOAT32] = from##_to_f32, [HR_DTYPE_FLOAT64] = from##_to_f64, [HR_DTYPE_INT32] = from##_to_i32, \
		[HR_DTYPE_INT64] = from##_to_i64, [HR_DTYPE_UINT8] = from##_to_u8, [HR_DTYPE_BOOL] = from##_to_truth,     \
		[HR_DTYPE_BFLOAT16] = from##_to_b16                                                                       \
	}

static const cast_loop loops[][HR_DTYPE_BFLOAT16 + 1] = {
	[HR_DTYPE_FLOAT32] = ROW(f32), [HR_DTYPE_FLOAT64] = ROW(f64), [HR_DTYPE_INT32] = ROW(i32),
	[HR_DTYPE_INT64] = ROW(i64),   [HR_DTYPE_UINT8] = ROW(u8),    [HR_DTYPE_BOOL] = ROW(truth),
	[HR_DTYPE_BFLOAT16] = ROW(b16),
};

static void cast_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	hr_dtype from = work->in_types[0].dtype, to = work->out_types[0].dtype;
	const char *in = work->in[0];
	char *out = work->out[0];
	loops[from][to](in + begin * (int64_t)hr_dtype_size(from), out + begin * (int64_t)hr_dtype_size(to), end - begin);
}

HR__RUN(cast)
{
	hr__each_range(work, hr__dims_count(&work->out_types[0].dims), HR__GRAIN, cast_range, work);
}

HR__GRADIENT(cast)
{
	hr_dtype in = hr__gradient_dtype(backward->in_types[0].dtype), out = hr__gradient_dtype(backward->out_types[0].dtype);
	if (!hr__wanted(backward, 0) || !hr__dtype_is_float(out)) return HR_OK;
	if (in == out && hr_value_dtype(backward->grad_out[0]) == in) return hr__give(backward, 0, hr__reshape_to(backward->grad_out[0], &backward->in_types[0].dims));
	return hr__give(backward, 0, hr_cast(backward->grad_out[0], in));
}

/* A value that has the dtype shares its memory. */
hr_value hr_cast(hr_value x, hr_dtype dtype)
{
	hr__value value;
	if (x.id && !hr__value_get(x, &value) && value.type.dtype == dtype) return hr__reshape_to(x, &value.type.dims);
	return hr__call_one(HR__OP_CAST, &x, 1, &(hr__attrs){ .dtype = dtype });
}
