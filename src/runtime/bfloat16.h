/* bfloat16.h - bfloat16 is the upper half of a float32: the same sign and exponents, 8 bits of precision instead of 24. It is a dtype
 * to keep values in; nothing is computed with it.
 *
 * To bfloat16 everything is rounded once, to the nearest, ties to even. Rounding to float32 first and then again would be wrong where
 * the first lands on a tie: 1 + 2^-8 + 2^-40 would become 1, though it lies above the middle. What is no number stays so, and is
 * quiet. */
#ifndef HR_RUNTIME_BFLOAT16_H
#define HR_RUNTIME_BFLOAT16_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t hr__bfloat16;

static inline float hr__bfloat16_to_f32(hr__bfloat16 x)
{
	uint32_t bits = (uint32_t)x << 16;
	float out;
	memcpy(&out, &bits, sizeof out);
	return out;
}

/* A carry runs on into the exponent, at the end of which is infinity. With what is no number it would run over that, or, where the bits
 * that say so are cut off, make it infinity. */
static inline hr__bfloat16 hr__bfloat16_of_f32(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
	return (hr__bfloat16)(x != x ? quiet : rounded);
}

/* By way of float32, cut off instead of rounded, and with the last bit set if anything was lost: that is on the same side of every tie as
 * the whole number, as float32 has more than two bits more. */
static inline hr__bfloat16 hr__bfloat16_of_f64(double x)
{
	float near = (float)x;
	uint32_t bits;
	memcpy(&bits, &near, sizeof bits);
	if (fabs((double)near) > fabs(x)) bits--;
	if ((double)near != x) bits |= 1;
	memcpy(&near, &bits, sizeof near);
	return hr__bfloat16_of_f32(near);
}

/* A double holds all but the largest. Of those the last 12 bits, far below any tie, count as one. */
static inline hr__bfloat16 hr__bfloat16_of_i64(int64_t x)
{
	const int64_t whole = INT64_C(1) << 53, last = 0xFFF;
	if ((x > whole || x < -whole) && (x & last) != 0) x = (x & ~last) | 0x800;
	return hr__bfloat16_of_f64((double)x);
}

#endif
