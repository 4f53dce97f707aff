/* ops_source.c - ops without inputs.
 *
 * The number of a block of elements is the counter of the random numbers (philox.h), so each element is a function of seed and position
 * alone. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/base/status.h"
#include "runtime/kernels/bfloat16.h"
#include "runtime/kernels/philox.h"
#include "runtime/ops/ops.h"

/* ---- constant ---- */

static hr_status requested_type(const hr__attrs *attrs, hr__type *out)
{
	out->dtype = attrs->dtype;
	out->dims = attrs->dims;
	return hr__need_any(attrs->dtype);
}

HR__INFER(constant)
{
	(void)in, (void)count;
	return requested_type(attrs, out);
}

static void copy_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	memcpy((char *)work->out[0] + begin, (const char *)work->attrs->data + begin, (size_t)(end - begin));
}

HR__RUN(constant)
{
	hr__each_range(work, (int64_t)hr__type_bytes(&work->out_types[0]), 8 * HR__GRAIN, copy_range, work);
}

/* ---- full ---- */

/* Whether all integers in [from, to) fit in [dtype]. True for other dtypes. */
static bool holds(hr_dtype dtype, double from, double to)
{
	switch (dtype) {
	case HR_DTYPE_INT32: return from >= -0x1p31 && to <= 0x1p31;
	case HR_DTYPE_INT64: return from >= -0x1p63 && to <= 0x1p63;
	case HR_DTYPE_UINT8: return from >= 0 && to <= 0x1p8;
	default: return true;
	}
}

HR__INFER(full)
{
	(void)in, (void)count;
	hr_status status = requested_type(attrs, out);
	if (status != HR_OK) return status;
	/* Above 2^53 adding 1 to a double has no effect. */
	double whole = trunc(attrs->a), next = whole + (fabs(whole) < 0x1p53);
	if (!holds(attrs->dtype, whole, next) || (attrs->dtype == HR_DTYPE_INT64 && whole >= 0x1p63)) {
		return hr__fail(HR_INVALID_ARGUMENT, "%g is not a valid %s", attrs->a, hr_dtype_text(attrs->dtype));
	}
	return HR_OK;
}

#define FILL(type, of)                                        \
	do {                                                      \
		type value = (type)(of), *out = work->out[0];         \
		for (int64_t i = begin; i < end; i++) out[i] = value; \
	} while (0)

static void fill_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	double with = work->attrs->a;
	switch (work->out_types[0].dtype) {
	case HR_DTYPE_FLOAT32: FILL(float, with); break;
	case HR_DTYPE_FLOAT64: FILL(double, with); break;
	case HR_DTYPE_INT32: FILL(int32_t, with); break;
	case HR_DTYPE_INT64: FILL(int64_t, with); break;
	case HR_DTYPE_UINT8: FILL(uint8_t, with); break;
	case HR_DTYPE_BFLOAT16: FILL(hr__bfloat16, hr__bfloat16_of_f64(with)); break;
	default: memset((uint8_t *)work->out[0] + begin, with != 0, (size_t)(end - begin));
	}
}

HR__RUN(full)
{
	hr__each_range(work, hr__dims_count(&work->out_types[0].dims), HR__GRAIN, fill_range, work);
}

/* ---- Philox ---- */

/* A block is 4 elements of 32 random bits, or 2 of 64. */
static void philox_wide(uint64_t seed, uint64_t block, enum hr__random_stream stream, uint64_t out[2])
{
	uint32_t words[4];
	hr__philox(seed, block, stream, 0, words);
	out[0] = (uint64_t)words[1] << 32 | words[0];
	out[1] = (uint64_t)words[3] << 32 | words[2];
}

/* ---- normal ---- */

#define TWO_PI 6.28318530717958647693

/* Box-Muller. Half a step is added so that the argument of the logarithm is never 0. */
static void normal_pair_f32(uint32_t x, uint32_t y, float out[2])
{
	float radius = sqrtf(-2 * logf((float)x * 0x1p-32f + 0x1p-33f)), angle = (float)y * (float)(TWO_PI * 0x1p-32);
	out[0] = radius * cosf(angle);
	out[1] = radius * sinf(angle);
}

static void normal_pair_f64(uint64_t x, uint64_t y, double out[2])
{
	double radius = sqrt(-2 * log((double)(x >> 11) * 0x1p-53 + 0x1p-54)), angle = (double)(y >> 11) * (TWO_PI * 0x1p-53);
	out[0] = radius * cos(angle);
	out[1] = radius * sin(angle);
}

HR__INFER(random_normal)
{
	(void)in, (void)count;
	hr_status status = requested_type(attrs, out);
	return status == HR_OK ? hr__need_float(out) : status;
}

/* Pieces begin at multiples of the grain, so at the beginning of a block. */
static void normal_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	uint64_t seed = work->attrs->seed;
	if (work->out_types[0].dtype == HR_DTYPE_FLOAT32) {
		float *out = work->out[0], four[4];
		for (int64_t i = begin; i < end; i += 4) {
			uint32_t words[4];
			hr__philox(seed, (uint64_t)i / 4, HR__RANDOM_NORMAL, 0, words);
			normal_pair_f32(words[0], words[1], four);
			normal_pair_f32(words[2], words[3], four + 2);
			memcpy(out + i, four, (size_t)(end - i < 4 ? end - i : 4) * sizeof four[0]);
		}
	} else {
		double *out = work->out[0], two[2];
		for (int64_t i = begin; i < end; i += 2) {
			uint64_t words[2];
			philox_wide(seed, (uint64_t)i / 2, HR__RANDOM_NORMAL, words);
			normal_pair_f64(words[0], words[1], two);
			memcpy(out + i, two, (size_t)(end - i < 2 ? end - i : 2) * sizeof two[0]);
		}
	}
}

HR__RUN(random_normal)
{
	hr__each_range(work, hr__dims_count(&work->out_types[0].dims), HR__GRAIN / 8, normal_range, work);
}

/* ---- uniform ---- */

HR__INFER(random_uniform)
{
	(void)in, (void)count;
	hr_status status = requested_type(attrs, out);
	if (status == HR_OK) status = hr__need_number(out);
	if (status != HR_OK) return status;
	if (!(attrs->a < attrs->b) || !isfinite(attrs->a) || !isfinite(attrs->b)) {
		return hr__fail(HR_INVALID_ARGUMENT, "the range from %g to %g is empty or infinite", attrs->a, attrs->b);
	}
	if (hr__dtype_is_float(attrs->dtype)) return HR_OK;
	double from = ceil(attrs->a), to = ceil(attrs->b);
	if (!holds(attrs->dtype, from, to)) {
		return hr__fail(HR_INVALID_ARGUMENT, "not all values from %g to %g fit in %s", attrs->a, attrs->b, hr_dtype_text(attrs->dtype));
	}
	if (from >= to) return hr__fail(HR_INVALID_ARGUMENT, "there is no integer from %g up to %g", attrs->a, attrs->b);
	return HR_OK;
}

/* The number at [bits] / 2^64 of the range. Rounding may give the upper end, which is excluded. */
static double between(const hr__attrs *attrs, uint64_t bits)
{
	double unit = (double)(bits >> 11) * 0x1p-53, x = attrs->a * (1 - unit) + attrs->b * unit;
	if (x < attrs->a) return attrs->a;
	return x < attrs->b ? x : nextafter(attrs->b, attrs->a);
}

static float between_f32(const hr__attrs *attrs, uint64_t bits)
{
	float x = (float)between(attrs, bits);
	if ((double)x < attrs->a) return nextafterf(x, INFINITY);
	return (double)x < attrs->b ? x : nextafterf(x, -INFINITY);
}

static int64_t integer_between(const hr__attrs *attrs, uint64_t bits)
{
	double from = ceil(attrs->a), to = ceil(attrs->b);
	/* Up to 2^64, which does not fit in uint64_t. */
	unsigned __int128 count = (unsigned __int128)((__int128)to - (__int128)from);
	return (int64_t)((__int128)from + (__int128)((count * bits) >> 64));
}

static void uniform_at(hr__work *work, int64_t i, uint64_t bits)
{
	switch (work->out_types[0].dtype) {
	case HR_DTYPE_FLOAT32: ((float *)work->out[0])[i] = between_f32(work->attrs, bits); break;
	case HR_DTYPE_FLOAT64: ((double *)work->out[0])[i] = between(work->attrs, bits); break;
	case HR_DTYPE_INT32: ((int32_t *)work->out[0])[i] = (int32_t)integer_between(work->attrs, bits); break;
	case HR_DTYPE_INT64: ((int64_t *)work->out[0])[i] = integer_between(work->attrs, bits); break;
	default: ((uint8_t *)work->out[0])[i] = (uint8_t)integer_between(work->attrs, bits);
	}
}

static void uniform_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	for (int64_t i = begin; i < end; i += 2) {
		uint64_t words[2];
		philox_wide(work->attrs->seed, (uint64_t)i / 2, HR__RANDOM_UNIFORM, words);
		uniform_at(work, i, words[0]);
		if (i + 1 < end) uniform_at(work, i + 1, words[1]);
	}
}

HR__RUN(random_uniform)
{
	hr__each_range(work, hr__dims_count(&work->out_types[0].dims), HR__GRAIN / 8, uniform_range, work);
}

/* ---- public calls ---- */

static hr_value call(enum hr__op_kind kind, const int64_t *dims, int rank, hr__attrs *attrs)
{
	if (hr__dims_make(dims, rank, &attrs->dims) != HR_OK) return hr__op_refuse_in(NULL, 0, hr__ops[kind].name);
	return hr__call_one(kind, NULL, 0, attrs);
}

hr_value hr_constant(hr_dtype dtype, const int64_t *dims, int rank, const void *data)
{
	hr__attrs attrs = { .dtype = dtype, .data = data };
	if (data == NULL && hr__dims_make(dims, rank, &attrs.dims) == HR_OK && hr__dims_count(&attrs.dims) > 0) {
		return hr__op_refuse(NULL, 0, "constant", "data is NULL");
	}
	return call(HR__OP_CONSTANT, dims, rank, &attrs);
}

hr_value hr_full(hr_dtype dtype, const int64_t *dims, int rank, double value)
{
	return call(HR__OP_FULL, dims, rank, &(hr__attrs){ .dtype = dtype, .a = value });
}

hr_value hr_random_normal(hr_dtype dtype, const int64_t *dims, int rank, uint64_t seed)
{
	return call(HR__OP_RANDOM_NORMAL, dims, rank, &(hr__attrs){ .dtype = dtype, .seed = seed });
}

hr_value hr_random_uniform(hr_dtype dtype, const int64_t *dims, int rank, double low, double high, uint64_t seed)
{
	return call(HR__OP_RANDOM_UNIFORM, dims, rank, &(hr__attrs){ .dtype = dtype, .a = low, .b = high, .seed = seed });
}
