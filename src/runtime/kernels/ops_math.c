/* ops_math.c - see ops_math.h.
 *
 * Each function is reduced to a short range and approximated there by a polynomial. The coefficients minimize the largest error,
 * weighted by its effect on the result (Remez exchange, computed in double). Where two formulas meet, both are computed and one is
 * selected.
 *
 * Comparisons are written so that NaN stays NaN. No float is converted to an integer, which is undefined if it does not fit. */
#include "runtime/kernels/ops_math.h"

#include <string.h>

#include "runtime/ops/ops.h"

#define INLINE static inline __attribute__((always_inline))

INLINE float from_bits(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

INLINE uint32_t bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

/* 2^n for -126 <= n <= 127, n in two's complement. */
INLINE float power_of_two(uint32_t n)
{
	return from_bits((n + 127) << 23);
}

/* exp(x) = 2^n exp(r), |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer in the low bits. ln 2 is subtracted in two parts;
 * the first has so few bits that its product with n is exact. 2^n is applied in two factors, because it may be out of range for a
 * float although the result, an infinity or a denormal, is not. */
INLINE float exp_of(float x)
{
	const float whole = 0x1.8p23f;
	x = x > 89 ? 89 : x;
	x = x < -105 ? -105 : x;
	float shifted = x * 1.44269504f + whole, n = shifted - whole;
	float r = x - n * 0.693359375f - n * -2.12194440e-4f;
	float p = 1.3814451e-3f;
	p = p * r + 8.3688916e-3f;
	p = p * r + 4.1668401e-2f;
	p = p * r + 0.16666519f;
	p = p * r + 0.49999993f;
	p = p * (r * r) + r + 1;
	int32_t power = (int32_t)(bits_of(shifted) - bits_of(whole)), half = power >> 1;
	return p * power_of_two((uint32_t)half) * power_of_two((uint32_t)(power - half));
}

/* A polynomial near 0, to keep the relative error small; otherwise 1 - 2 / (exp(2x) + 1), which is 1 from about 9 on. */
INLINE float tanh_of(float x)
{
	float size = __builtin_fabsf(x), square = x * x;
	float p = -5.6060537e-3f;
	p = p * square + 2.0554376e-2f;
	p = p * square - 5.3715243e-2f;
	p = p * square + 0.13331172f;
	p = p * square - 0.33333273f;
	float near = size + size * (square * p);
	float far = 1 - 2 / (exp_of(size > 10 ? 20 : 2 * size) + 1);
	return __builtin_copysignf(size < 0.625f ? near : far, x);
}

/* A polynomial below 1; above, 1 - exp(-q(x)), where q approximates -log(1 - erf(x)). 1 from 4 on. */
INLINE float erf_of(float x)
{
	float size = __builtin_fabsf(x), square = x * x;
	float p = 7.8538611e-5f;
	p = p * square - 8.0101935e-4f;
	p = p * square + 5.1883277e-3f;
	p = p * square - 2.6853812e-2f;
	p = p * square + 0.11283585f;
	p = p * square - 0.37612626f;
	p = p * square + 1.1283792f;
	float up = size > 4 ? 4 : size, q = -1.8637900e-4f;
	q = q * up + 2.9476564e-3f;
	q = q * up - 2.1838056e-2f;
	q = q * up + 0.10310674f;
	q = q * up + 0.63814485f;
	q = q * up + 1.1270892f;
	q = q * up + 3.4152600e-4f;
	return __builtin_copysignf(size < 1 ? size * p : 1 - exp_of(-q), x);
}

/* x F(x), F(x) = (1 + erf(x / sqrt 2)) / 2. Its derivative is F(x) + x F'(x), F'(x) = exp(-x^2 / 2) / sqrt(2 pi). */
INLINE float gelu_of(float x)
{
	return 0.5f * x * (1 + erf_of(x * 0.70710678f));
}

INLINE float gelu_slope(float x)
{
	return 0.5f * (1 + erf_of(x * 0.70710678f)) + x * 0.39894228f * exp_of(-0.5f * x * x);
}

/* ---- loops ---- */

/* Compiled for AVX2 as well, and selected at run time. */
#if defined(__x86_64__)
#define WIDER(name, parameters, arguments, expression)                                       \
	__attribute__((target("avx2,fma"))) static void name##_wide parameters                   \
	{                                                                                        \
		HR__INDEPENDENT for (int64_t i = 0; i < count; i++) out[i] = expression;             \
	}                                                                                        \
	static bool name##_has_wide parameters                                                   \
	{                                                                                        \
		if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false; \
		name##_wide arguments;                                                               \
		return true;                                                                         \
	}
#define TRY_WIDER(name, arguments) \
	if (name##_has_wide arguments) return
#else
#define WIDER(name, parameters, arguments, expression)
#define TRY_WIDER(name, arguments) (void)0
#endif

#define LOOP(name, parameters, arguments, expression)                            \
	WIDER(name, parameters, arguments, expression)                               \
	void name parameters                                                         \
	{                                                                            \
		TRY_WIDER(name, arguments);                                              \
		HR__INDEPENDENT for (int64_t i = 0; i < count; i++) out[i] = expression; \
	}

LOOP(hr__exp_f32, (const float *x, float less, float *out, int64_t count), (x, less, out, count), exp_of(x[i] - less))
LOOP(hr__tanh_f32, (const float *x, float *out, int64_t count), (x, out, count), tanh_of(x[i]))
LOOP(hr__erf_f32, (const float *x, float *out, int64_t count), (x, out, count), erf_of(x[i]))
LOOP(hr__gelu_f32, (const float *x, float *out, int64_t count), (x, out, count), gelu_of(x[i]))
LOOP(hr__gelu_grad_f32, (const float *x, const float *grad, float *out, int64_t count), (x, grad, out, count),
     grad[i] * gelu_slope(x[i]))
