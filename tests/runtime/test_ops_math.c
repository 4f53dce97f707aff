/* test_ops_math.c - exp, tanh, erf and gelu of float32, compared with libm in double, over floats of every magnitude. */
#include "runtime/kernels/ops_math.h"
#include "runtime/support_ops.h"

#define MANY 1021 /* leaves a remainder after the vectors */

typedef void (*many)(const float *x, float *out, int64_t count);

static void exp_of(const float *x, float *out, int64_t count)
{
	hr__exp_f32(x, 0, out, count);
}

static float from_bits(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

/* Within 4e-7 of [want], relative to it or to [scale]; below the least normal float, within two units in the last place. */
static bool is_near(float got, double want, double scale)
{
	double allowed = 4e-7 * fmax(fabs(want), scale);
	if (isnan(want)) return isnan(got);
	if (isinf((float)want)) return got == (float)want || (!isinf(want) && fabs((double)got) > 3.4e38);
	return fabs((double)got - want) <= fmax(allowed, 0x1p-148);
}

/* Floats whose bits are [apart] steps apart: all exponents, both signs, infinities and NaNs. */
static void check_over_all(const char *name, many function, double (*reference)(double x), double (*scale)(double x))
{
	static float x[MANY], out[MANY];
	const uint32_t apart = (uint32_t)(1009 / fmin(hr_test_scale(), 100));
	for (uint64_t first = 0; first <= UINT32_MAX; first += (uint64_t)MANY * apart) {
		for (uint64_t i = 0; i < MANY; i++) x[i] = from_bits((uint32_t)(first + i * apart));
		function(x, out, MANY);
		for (int i = 0; i < MANY; i++) {
			double want = reference((double)x[i]);
			if (is_near(out[i], want, scale ? scale((double)x[i]) : 0)) continue;
			printf("# %s(%a) is %a, not %a\n", name, (double)x[i], (double)out[i], want);
			CHECK(false);
		}
	}
	CHECK(true);
}

static double gelu(double x)
{
	return 0.5 * x * (1 + erf(x * sqrt(0.5)));
}

/* (1 + erf) / 2 is small for large negative x, with the absolute error of 1. */
static double size(double x)
{
	return isinf(x) ? 0 : fabs(x);
}

static void test_functions_are_within_4e_7_of_libm(void)
{
	check_over_all("exp", exp_of, exp, NULL);
	check_over_all("tanh", hr__tanh_f32, tanh, NULL);
	check_over_all("erf", hr__erf_f32, erf, NULL);
	check_over_all("gelu", hr__gelu_f32, gelu, size);
}

static void test_special_values_are_those_of_libm(void)
{
	const float of[] = { 0.0f,   -0.0f,   INFINITY, -INFINITY, NAN,    1e-45f, -1e-45f, 88.72283f, 88.72284f,
		                 -87.4f, -103.9f, -104.1f,  3e38f,     -3e38f, 1.0f,   -1.0f,   0.625f,    4.0f };
	enum { COUNT = sizeof of / sizeof of[0] };
	float out[COUNT];
	exp_of(of, out, COUNT);
	for (int i = 0; i < COUNT; i++) CHECK(is_near(out[i], exp((double)of[i]), 0));
	CHECK(out[0] == 1 && out[1] == 1 && out[2] == INFINITY && out[3] == 0 && isnan(out[4]));
	hr__tanh_f32(of, out, COUNT);
	CHECK(signbit(out[1]) && out[2] == 1 && out[3] == -1 && isnan(out[4]) && out[5] == 1e-45f && out[13] == -1);
	hr__erf_f32(of, out, COUNT);
	CHECK(signbit(out[1]) && out[2] == 1 && out[3] == -1 && isnan(out[4]) && out[12] == 1 && out[13] == -1);
}

static void test_gelu_grad_is_the_slope_of_gelu(void)
{
	static float x[MANY], grad[MANY], out[MANY];
	for (int i = 0; i < MANY; i++) x[i] = (float)(i - MANY / 2) / 64, grad[i] = (float)(i % 7) - 3;
	hr__gelu_grad_f32(x, grad, out, MANY);
	for (int i = 0; i < MANY; i++) {
		double a = (double)x[i], slope = 0.5 * (1 + erf(a * sqrt(0.5))) + a * exp(-a * a / 2) / sqrt(2 * acos(-1));
		CHECK(is_near(out[i], (double)grad[i] * slope, 3));
	}
}

TEST_MAIN(T(test_functions_are_within_4e_7_of_libm), T(test_special_values_are_those_of_libm),
          T(test_gelu_grad_is_the_slope_of_gelu))
