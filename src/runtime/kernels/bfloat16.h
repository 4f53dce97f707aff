/* bfloat16.h - bfloat16 is the upper half of a float32: the same sign and exponent, 8 bits of precision instead of 24. Products
 * of bfloat16 matrices are exact in float32; all else is computed in float32 and rounded.
 *
 * Conversions to bfloat16 round once, to nearest, ties to even. Rounding to float32 first would be wrong if the first rounding
 * gives a tie: 1 + 2^-8 + 2^-40 would become 1, although it is above the midpoint. NaN stays NaN and becomes quiet. */
#ifndef HR_RUNTIME_BFLOAT16_H
#define HR_RUNTIME_BFLOAT16_H

#ifdef __CUDACC_RTC__ /* a part of the card's programs too */
#define HR__BFLOAT16 __device__ inline
#else
#include <math.h>
#include <stdint.h>
#include <string.h>
#define HR__BFLOAT16 static inline
#endif

typedef uint16_t hr__bfloat16;

HR__BFLOAT16 float hr__bfloat16_to_f32(hr__bfloat16 x)
{
	uint32_t bits = (uint32_t)x << 16;
	float out;
	memcpy(&out, &bits, sizeof out);
	return out;
}

/* A carry propagates into the exponent, up to infinity. NaN is handled separately: a carry could overflow it, and truncation could
 * remove its mantissa bits and make it infinity. */
HR__BFLOAT16 hr__bfloat16 hr__bfloat16_of_f32(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
	return (hr__bfloat16)(x != x ? quiet : rounded);
}

/* Converts to float32 by truncation and sets the last bit if anything was lost (round to odd). The result is on the same side of
 * every tie as [x], because float32 has at least two more bits than bfloat16. */
HR__BFLOAT16 hr__bfloat16 hr__bfloat16_of_f64(double x)
{
	float near = (float)x;
	uint32_t bits;
	memcpy(&bits, &near, sizeof bits);
	if (fabs((double)near) > fabs(x)) bits--;
	if ((double)near != x) bits |= 1;
	memcpy(&near, &bits, sizeof near);
	return hr__bfloat16_of_f32(near);
}

/* Up to 2^53 the conversion to double is exact. Beyond, the last 12 bits are far below any tie, so only whether they are zero
 * matters. */
HR__BFLOAT16 hr__bfloat16 hr__bfloat16_of_i64(int64_t x)
{
	const int64_t whole = (int64_t)1 << 53, last = 0xFFF;
	if ((x > whole || x < -whole) && (x & last) != 0) x = (x & ~last) | 0x800;
	return hr__bfloat16_of_f64((double)x);
}

#endif
