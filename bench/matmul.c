/* matmul.c - matrix products by the runtime's own kernel, compared with OpenBLAS if it is installed: is a library needed?
 *
 * Rounds alternate, and the best of each is taken. The runtime's figure is that of a whole op call, including memory for the output
 * and for scratch. Both use as many threads as there are processors. */
#include "headroom_runtime.h"
#include <dlfcn.h>

#include "bench.h"

#define ROUNDS 15

typedef void (*sgemm_function)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                               int ldb, float beta, float *c, int ldc);

struct size {
	const char *of;
	int batch, m, n, k;
};

static const struct size sizes[] = {
	{ "dense layer of a batch of 128", 1, 128, 1024, 1024 },  { "its gradient by the weights", 1, 1024, 1024, 128 },
	{ "wide layer of the GPT", 1, 512, 1024, 256 },           { "attention scores, 32 of them", 32, 128, 128, 32 },
	{ "square", 1, 1024, 1024, 1024 },
};

static sgemm_function find_openblas(void)
{
	static const char *const names[] = { "libopenblas.so.0", "libopenblas.so" };
	for (int i = 0; i < 2; i++) {
		void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
		if (library) return (sgemm_function)dlsym(library, "cblas_sgemm");
	}
	return NULL;
}

static double time_ours(const struct size *size, hr_value a, hr_value b)
{
	double begin = bench_now_ns();
	hr_value c = hr_matmul(a, b);
	if (!c.id) bench_must(hr_last_status());
	hr_value_release(c);
	(void)size;
	return bench_now_ns() - begin;
}

static double time_theirs(const struct size *size, sgemm_function sgemm, const float *a, const float *b, float *c)
{
	double begin = bench_now_ns();
	for (int i = 0; i < size->batch; i++)
		sgemm(101, 111, 111, size->m, size->n, size->k, 1, a + (size_t)i * (size_t)(size->m * size->k), size->k,
		      b + (size_t)i * (size_t)(size->k * size->n), size->n, 0, c + (size_t)i * (size_t)(size->m * size->n), size->n);
	return bench_now_ns() - begin;
}

static void measure(const struct size *size, sgemm_function sgemm)
{
	size_t count_a = (size_t)size->batch * (size_t)(size->m * size->k), count_b = (size_t)size->batch * (size_t)(size->k * size->n);
	size_t count_c = (size_t)size->batch * (size_t)(size->m * size->n);
	float *host_a = malloc(count_a * sizeof(float)), *host_b = malloc(count_b * sizeof(float)), *host_c = malloc(count_c * sizeof(float));
	if (!host_a || !host_b || !host_c) abort();
	hr_value a = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(size->batch, size->m, size->k), 1));
	hr_value b = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(size->batch, size->k, size->n), 2));
	bench_must(hr_value_fetch(a, host_a, count_a * sizeof(float)));
	bench_must(hr_value_fetch(b, host_b, count_b * sizeof(float)));
	double ours = 1e300, theirs = 1e300, flops = 2.0 * (double)count_c * size->k;
	for (int i = 0; i < ROUNDS; i++) {
		ours = bench_least(ours, time_ours(size, a, b));
		if (sgemm) theirs = bench_least(theirs, time_theirs(size, sgemm, host_a, host_b, host_c));
	}
	printf("%-32s %4d x %4d x %4d  %7.1f", size->of, size->m, size->n, size->k, flops / ours);
	if (sgemm) printf("  %7.1f  %5.2f", flops / theirs, theirs / ours);
	printf("\n");
	hr_value_release(a);
	hr_value_release(b);
	free(host_a);
	free(host_b);
	free(host_c);
}

int main(void)
{
	hr_session_options options;
	hr_session session;
	sgemm_function sgemm = find_openblas();
	hr_session_options_init(&options);
	options.device = "CPU:0"; /* calls are synchronous there */
	bench_must(hr_session_create(&options, &session));
	bench_must(hr_session_enter(session));
	printf("float32, GFLOP/s, all processors%s\n", sgemm ? "" : "; OpenBLAS was not found (Debian: libopenblas0)");
	printf("%-32s %18s  %7s", "", "", "ours");
	if (sgemm) printf("  %7s  %5s", "OpenBLAS", "ratio");
	printf("\n");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) measure(&sizes[i], sgemm);
	bench_must(hr_session_leave());
	bench_must(hr_session_destroy(session));
	return hr_shutdown() == HR_OK ? 0 : 1;
}
