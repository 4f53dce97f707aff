/* recipes.c - what recipes cost an op of the runtime, and how fast the runtime's kernels are on one core, which src/runtime/recipe/cost.c
 * estimates.
 *
 *     HEADROOM_THREADS=1 recipes
 *
 * The first part runs an op on 16 numbers, where the call is all there is: without Large Model Support, with it and no recipes, and with
 * recipes. "in place" is a chain of four ops in one tensor, whose recipe is set four times. The second part prints the speed of each
 * kind of op in the unit of cost.c. */
#include "headroom_lms.h"
#include "headroom_runtime.h"

#include "bench.h"

#define ROUNDS 7
#define CALLS 20000
#define SIDE 1024

enum mode { OFF, MOVES, RECIPES, MODES };

static hr_session open_session(enum mode mode)
{
	hr_device device;
	hr_allocator allocator;
	hr_allocator_options made;
	hr_lms_options lms;
	hr_session_options options;
	hr_session session;
	hr_allocator_options_init(&made);
	bench_must(hr_device_find("CPU:0", &device));
	bench_must(hr_allocator_create(device, &made, &allocator));
	bench_must(hr_lms_options_init(&lms));
	lms.enabled = mode != OFF;
	lms.recompute = mode == RECIPES;
	lms.policy = "lru";
	bench_must(hr_lms_configure(allocator, &lms));
	hr_session_options_init(&options);
	options.device = "CPU:0";
	options.allocator = allocator;
	bench_must(hr_session_create(&options, &session));
	return session;
}

/* ---- calls ---- */

static double apart_ns(hr_value x)
{
	double begin = bench_now_ns();
	for (int i = 0; i < CALLS; i++) hr_value_release(hr_add(x, x));
	return (bench_now_ns() - begin) / CALLS;
}

static double in_place_ns(hr_value x)
{
	double begin = bench_now_ns();
	for (int i = 0; i < CALLS / 4; i++) hr_value_release(hr_neg(hr_neg(hr_neg(hr_add(x, x)))));
	return (bench_now_ns() - begin) / CALLS;
}

static void measure_calls(void)
{
	static const char *const names[] = { "without LMS", "with LMS, recompute=0", "with LMS" };
	hr_session sessions[MODES];
	hr_value x[MODES];
	double apart[MODES] = { 1e9, 1e9, 1e9 }, in_place[MODES] = { 1e9, 1e9, 1e9 };
	for (int m = 0; m < MODES; m++) {
		sessions[m] = open_session((enum mode)m);
		bench_must(hr_session_enter(sessions[m]));
		x[m] = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(16), 1));
		bench_must(hr_session_leave());
	}
	for (int round = 0; round < ROUNDS; round++) {
		for (int m = 0; m < MODES; m++) {
			bench_must(hr_session_enter(sessions[m]));
			apart[m] = bench_least(apart[m], apart_ns(x[m]));
			in_place[m] = bench_least(in_place[m], in_place_ns(x[m]));
			bench_must(hr_session_leave());
		}
	}
	printf("ns for an op          own memory   in place\n");
	for (int m = 0; m < MODES; m++) printf("%-21s %10.0f %10.0f\n", names[m], apart[m], in_place[m]);
	for (int m = 0; m < MODES; m++) {
		hr_value_release(x[m]);
		bench_must(hr_session_destroy(sessions[m]));
	}
}

/* ---- kernels ---- */

static hr_value run_add(const hr_value *in)
{
	return hr_add(in[0], in[1]);
}

static hr_value run_transpose(const hr_value *in)
{
	return hr_transpose(in[0], (const int[]){ 1, 0 }, 2);
}

static hr_value run_layer_norm(const hr_value *in)
{
	return hr_layer_norm(in[0], in[2], in[2], 1e-5);
}

static hr_value run_exp(const hr_value *in)
{
	return hr_exp(in[0]);
}

static hr_value run_gelu(const hr_value *in)
{
	return hr_gelu(in[0]);
}

static hr_value run_softmax(const hr_value *in)
{
	return hr_softmax(in[0]);
}

static hr_value run_normal(const hr_value *in)
{
	(void)in;
	return hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), 1);
}

static hr_value run_matmul(const hr_value *in)
{
	return hr_matmul(in[0], in[1]);
}

static hr_value run_conv2d(const hr_value *in)
{
	return hr_conv2d(in[3], in[4], 1, 1);
}

static const struct kernel {
	const char *name, *unit;
	double amount; /* in the unit */
	hr_value (*run)(const hr_value *in);
} kernels[] = {
	{ "add", "bytes", 12.0 * SIDE * SIDE, run_add },
	{ "transpose", "bytes", 8.0 * SIDE * SIDE, run_transpose },
	{ "layer_norm", "bytes", 8.0 * SIDE * SIDE, run_layer_norm },
	{ "exp", "elements", 1.0 * SIDE * SIDE, run_exp },
	{ "gelu", "elements", 1.0 * SIDE * SIDE, run_gelu },
	{ "softmax", "elements", 1.0 * SIDE * SIDE, run_softmax },
	{ "random_normal", "elements", 1.0 * SIDE * SIDE, run_normal },
	{ "matmul", "products", 1.0 * SIDE * SIDE * SIDE, run_matmul },
	{ "conv2d", "products", 16.0 * 32 * 32 * 64 * 64 * 9, run_conv2d },
};

static void measure_kernels(void)
{
	hr_session session = open_session(OFF);
	bench_must(hr_session_enter(session));
	hr_value in[] = { hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), 1), hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), 2),
		              hr_full(HR_DTYPE_FLOAT32, HR_DIMS(SIDE), 1), hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(16, 64, 32, 32), 3),
		              hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(64, 64, 3, 3), 4) };
	size_t count = sizeof in / sizeof *in;
	for (size_t i = 0; i < count; i++) hr_value_keep(in[i]);
	printf("\nkernel           us    ns each   each ns\n");
	for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
		double least = 1e18;
		for (int round = 0; round < ROUNDS; round++) {
			double begin = bench_now_ns();
			hr_value_release(kernels[k].run(in));
			bench_must(hr_session_synchronize(session));
			least = bench_least(least, bench_now_ns() - begin);
		}
		printf("%-13s %5.0f %10.3f %9.2f %s\n", kernels[k].name, least / 1e3, least / kernels[k].amount, kernels[k].amount / least, kernels[k].unit);
	}
	for (size_t i = 0; i < count; i++) hr_value_release(in[i]);
	bench_must(hr_session_leave());
	bench_must(hr_session_destroy(session));
}

int main(void)
{
	measure_calls();
	measure_kernels();
	return hr_shutdown() == HR_OK ? 0 : 1;
}
