/* ops_math.h - exp, tanh and erf of many float32 at once, and what is made of them.
 *
 * libm takes its arguments one by one, at 2 to 20 ns each. These are loops that compilers turn into vector code: no branches, no
 * tables, and integers only where they are bits of a float. Within 4e-7 of the true value, relative to it, for every float:
 * infinities, NaN and denormals too (a denormal result is within one unit of its last place). tests/runtime/test_ops_math.c
 * compares them with libm.
 *
 * [out] may be the memory of an input. */
#ifndef HR_RUNTIME_OPS_MATH_H
#define HR_RUNTIME_OPS_MATH_H

#include <stdint.h>

/* exp(x - less) */
void hr__exp_f32(const float *x, float less, float *out, int64_t count);
void hr__tanh_f32(const float *x, float *out, int64_t count);
void hr__erf_f32(const float *x, float *out, int64_t count);
void hr__gelu_f32(const float *x, float *out, int64_t count);
/* The derivative of gelu at x, by [grad]. */
void hr__gelu_grad_f32(const float *x, const float *grad, float *out, int64_t count);

#endif
