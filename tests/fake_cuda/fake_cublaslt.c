/* fake_cublaslt.c - a stand-in for cuBLASLt: checks the arguments as the library does and multiplies with a plain loop, in stream order.
 *
 * Like the library it is given matrices by columns. Products of float32 and bfloat16 are added in float32, in the order of k. */
#include <stdlib.h>
#include <string.h>

#include "fake_cuda/fake_cuda.h"
#include "runtime/card/libraries.h"
#include "runtime/kernels/bfloat16.h"

#define EXPORT __attribute__((visibility("default")))
#define ALLOC_FAILED 3
#define EXECUTION_FAILED 13

#define PROTOTYPE(name, result, parameters) EXPORT result name parameters;
HR__CUBLASLT_CALLS(PROTOTYPE)

struct cublasLtContext {
	int lives;
};
struct hr__lt_desc {
	int compute, scale, turned[2], epilogue;
	const void *bias;
};
struct hr__lt_layout {
	int type, batch;
	int64_t rows, columns, ld, step;
};
struct hr__lt_preference {
	uint64_t workspace;
	uint32_t alignment[4];
};

#define COUNT(name)                                                                                                           \
	do {                                                                                                                      \
		CUresult result_;                                                                                                     \
		if (!fake_cuda_count(#name, &result_)) return result_ == HR__CUDA_ERROR_OUT_OF_MEMORY ? ALLOC_FAILED : EXECUTION_FAILED; \
	} while (0)
#define VALID(condition) \
	if (!(condition)) return HR__CUBLAS_STATUS_INVALID_VALUE

size_t cublasLtGetVersion(void)
{
	return 130000;
}

const char *cublasLtGetStatusName(int status)
{
	switch (status) {
	case HR__CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
	case ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
	case HR__CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
	case EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
	case HR__CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
	default: return "CUBLAS_STATUS_INTERNAL_ERROR";
	}
}

int cublasLtCreate(cublasLtHandle_t *out)
{
	COUNT(cublasLtCreate);
	VALID(out);
	*out = calloc(1, sizeof **out);
	(*out)->lives = 1;
	return 0;
}

int cublasLtDestroy(cublasLtHandle_t handle)
{
	VALID(handle && handle->lives);
	free(handle);
	return 0;
}

/* ---- descriptions ---- */

int cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, int compute, int scale)
{
	COUNT(cublasLtMatmulDescCreate);
	VALID(out);
	*out = calloc(1, sizeof **out);
	**out = (struct hr__lt_desc){ .compute = compute, .scale = scale };
	return 0;
}

int cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
	free(desc);
	return 0;
}

int cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, int attribute, const void *from, size_t bytes)
{
	COUNT(cublasLtMatmulDescSetAttribute);
	VALID(desc && from);
	if (attribute == HR__CUBLASLT_MATMUL_DESC_BIAS_POINTER) {
		VALID(bytes == sizeof desc->bias);
		memcpy(&desc->bias, from, bytes);
		return 0;
	}
	VALID(bytes == sizeof(int32_t));
	if (attribute == HR__CUBLASLT_MATMUL_DESC_EPILOGUE) {
		memcpy(&desc->epilogue, from, bytes);
		VALID(desc->epilogue == HR__CUBLASLT_EPILOGUE_BIAS);
		return 0;
	}
	VALID(attribute == HR__CUBLASLT_MATMUL_DESC_TRANSA || attribute == HR__CUBLASLT_MATMUL_DESC_TRANSB);
	memcpy(&desc->turned[attribute == HR__CUBLASLT_MATMUL_DESC_TRANSB], from, bytes);
	return 0;
}

int cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, int type, uint64_t rows, uint64_t columns, int64_t ld)
{
	COUNT(cublasLtMatrixLayoutCreate);
	VALID(out && rows && columns && ld >= (int64_t)rows);
	*out = calloc(1, sizeof **out);
	**out = (struct hr__lt_layout){ type, 1, (int64_t)rows, (int64_t)columns, ld, 0 };
	return 0;
}

int cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	free(layout);
	return 0;
}

int cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, int attribute, const void *from, size_t bytes)
{
	COUNT(cublasLtMatrixLayoutSetAttribute);
	VALID(layout && from);
	if (attribute == HR__CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
		VALID(bytes == sizeof(int32_t));
		memcpy(&layout->batch, from, bytes);
		return 0;
	}
	VALID(attribute == HR__CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == sizeof(int64_t));
	memcpy(&layout->step, from, bytes);
	return 0;
}

int cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
	COUNT(cublasLtMatmulPreferenceCreate);
	VALID(out);
	*out = calloc(1, sizeof **out);
	for (int i = 0; i < 4; i++) (*out)->alignment[i] = 256;
	return 0;
}

int cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
	free(preference);
	return 0;
}

int cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, int attribute, const void *from, size_t bytes)
{
	COUNT(cublasLtMatmulPreferenceSetAttribute);
	VALID(preference && from);
	if (attribute == HR__CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
		VALID(bytes == sizeof(uint64_t));
		memcpy(&preference->workspace, from, bytes);
		return 0;
	}
	int which = attribute - HR__CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
	VALID(which >= 0 && which < 4 && bytes == sizeof(uint32_t));
	memcpy(&preference->alignment[which], from, bytes);
	return 0;
}

/* ---- products ---- */

/* Shapes and dtypes that fit together. */
static int check(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
	VALID(desc && a && b && c && d);
	int64_t m = desc->turned[0] ? a->columns : a->rows, k = desc->turned[0] ? a->rows : a->columns;
	int64_t deep = desc->turned[1] ? b->columns : b->rows, n = desc->turned[1] ? b->rows : b->columns;
	VALID(k == deep && d->rows == m && d->columns == n && c->rows == m && c->columns == n && c->type == d->type && a->type == b->type);
	VALID(a->batch == d->batch && b->batch == d->batch && (d->batch == 1 || d->step));
	bool wide = a->type == HR__CUDA_R_64F;
	VALID(!desc->epilogue || desc->bias);
	if (desc->epilogue && (wide || m % 2)) return HR__CUBLAS_STATUS_NOT_SUPPORTED; /* as the library lacks algorithms for some epilogues */
	if (desc->compute != (wide ? HR__CUBLAS_COMPUTE_64F : HR__CUBLAS_COMPUTE_32F) || desc->scale != (wide ? HR__CUDA_R_64F : HR__CUDA_R_32F) ||
	    (d->type != a->type && !(a->type == HR__CUDA_R_16BF && d->type == HR__CUDA_R_32F)))
		return HR__CUBLAS_STATUS_NOT_SUPPORTED;
	return 0;
}

int cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                                   cublasLtMatmulHeuristicResult_t *out, int *count)
{
	COUNT(cublasLtMatmulAlgoGetHeuristic);
	VALID(handle && handle->lives && preference && wanted > 0 && out && count);
	int result = check(desc, a, b, c, d);
	if (result) return result;
	memset(out, 0, sizeof *out);
	out->algo.data[0] = 0xA190;
	for (int i = 0; i < 4; i++) out->algo.data[1 + i] = preference->alignment[i];
	out->workspaceSize = preference->workspace;
	*count = 1;
	return 0;
}

struct fake_product {
	struct hr__lt_desc desc;
	struct hr__lt_layout a, b, d;
	const char *in_a, *in_b, *bias;
	char *out;
};

static double element(const struct hr__lt_layout *layout, const char *at, int64_t batch, int64_t row, int64_t column)
{
	int64_t i = batch * layout->step + column * layout->ld + row;
	if (layout->type == HR__CUDA_R_64F) return ((const double *)at)[i];
	return (double)(layout->type == HR__CUDA_R_32F ? ((const float *)at)[i] : hr__bfloat16_to_f32(((const hr__bfloat16 *)at)[i]));
}

static void store(const struct fake_product *product, int64_t batch, int64_t row, int64_t column, double sum)
{
	int64_t i = batch * product->d.step + column * product->d.ld + row;
	if (product->d.type == HR__CUDA_R_64F) ((double *)product->out)[i] = sum;
	else if (product->d.type == HR__CUDA_R_32F) ((float *)product->out)[i] = (float)sum;
	else ((hr__bfloat16 *)product->out)[i] = hr__bfloat16_of_f32((float)sum);
}

static double sum_of(const struct fake_product *product, int64_t batch, int64_t i, int64_t j)
{
	const struct hr__lt_layout *a = &product->a, *b = &product->b;
	bool turned_a = product->desc.turned[0], turned_b = product->desc.turned[1];
	int64_t deep = turned_a ? a->rows : a->columns;
	double wide = 0;
	float narrow = 0;
	for (int64_t k = 0; k < deep; k++) {
		double x = element(a, product->in_a, batch, turned_a ? k : i, turned_a ? i : k), y = element(b, product->in_b, batch, turned_b ? j : k, turned_b ? k : j);
		if (a->type == HR__CUDA_R_64F) wide += x * y;
		else narrow += (float)x * (float)y;
	}
	return a->type == HR__CUDA_R_64F ? wide : (double)narrow;
}

/* It has the type of the result. */
static double bias_at(const struct fake_product *product, int64_t i)
{
	const struct hr__lt_layout row = { .type = product->d.type };
	return product->bias ? element(&row, product->bias, 0, i, 0) : 0;
}

static void run(const void *argument, const unsigned *grid, unsigned threads)
{
	const struct fake_product *product = argument;
	(void)grid, (void)threads;
	for (int64_t batch = 0; batch < product->d.batch; batch++) {
		for (int64_t j = 0; j < product->d.columns; j++)
			for (int64_t i = 0; i < product->d.rows; i++) store(product, batch, i, j, sum_of(product, batch, i, j) + bias_at(product, i));
	}
}

int cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a, cublasLtMatrixLayout_t of_a, const void *b,
                   cublasLtMatrixLayout_t of_b, const void *beta, const void *c, cublasLtMatrixLayout_t of_c, void *d, cublasLtMatrixLayout_t of_d,
                   const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, void *stream)
{
	COUNT(cublasLtMatmul);
	VALID(handle && handle->lives && alpha && beta && a && b && c == d && d && algo && algo->data[0] == 0xA190 && (workspace || !bytes));
	int result = check(desc, of_a, of_b, of_c, of_d);
	if (result) return result;
	VALID((uintptr_t)a % algo->data[1] == 0 && (uintptr_t)b % algo->data[2] == 0 && (uintptr_t)d % algo->data[4] == 0);
	VALID(of_a->type == HR__CUDA_R_64F ? *(const double *)alpha == 1 && *(const double *)beta == 0 : *(const float *)alpha == 1 && *(const float *)beta == 0);
	struct fake_product product = { *desc, *of_a, *of_b, *of_d, a, b, desc->bias, d };
	uint64_t addresses[] = { (uintptr_t)a, (uintptr_t)b, (uintptr_t)d, (uintptr_t)workspace };
	return fake_cuda_compute(stream, run, &product, sizeof product, addresses, 4) == HR__CUDA_SUCCESS ? 0 : EXECUTION_FAILED;
}
