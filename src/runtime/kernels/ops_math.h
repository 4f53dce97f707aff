/* ops_math.h - vectorized exp, tanh, erf and gelu of float32.
 *
 * libm takes 2 to 20 ns per element. These loops compile to vector code: no branches, no tables, integers only as bits of a float.
 * The relative error is at most 4e-7 for every float, including infinities, NaN and denormals (a denormal result is within one unit
 * in the last place). tests/runtime/test_ops_math.c compares them with libm.
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
/* [grad] times the derivative of gelu at x. */
void hr__gelu_grad_f32(const float *x, const float *grad, float *out, int64_t count);

#endif
