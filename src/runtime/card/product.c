/* product.c - see product.h.
 *
 * The algorithm is chosen by the library's heuristics for the shapes, the dtypes, the size of the workspace and the alignment of the addresses alone, so
 * that a product gives the same bits each time. The choice takes longer than the rest of a call, so the last choices are kept. float32 is multiplied in
 * float32: TF32 has 10 bits of precision. bfloat16 is multiplied as it is, and added in float32. */
#include <string.h>

#include "core/base/status.h"
#include "runtime/card/card.h"
#include "runtime/card/product.h"
#include "runtime/engine/engine.h"

#define CHOSEN_MAX 512u
#define ALIGNMENT_MAX 16u                  /* of addresses, that makes a difference */

/* What an algorithm is chosen by. */
struct lt_key {
	int64_t sizes[4], steps[3], rows[3], workspace;
	uint32_t kind[5], alignment[3], card[2]; /* without padding: keys are compared as bytes */
};

struct lt_choice {
	cublasLtMatmulAlgo_t algo;
	bool is_plain; /* there is a bias, but no algorithm that adds it */
};

static struct {
	struct lt_key key; /* all 0: free */
	struct lt_choice choice;
} chosen[CHOSEN_MAX]; /* by the hash of the key; guarded by hr__runtime_lock */

struct lt_call {
	const hr__cublaslt_calls *lt;
	const hr__card_facts *facts;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, out;
	cublasLtMatmulPreference_t preference;
};

/* ---- descriptions ---- */

static int type_of(hr_dtype dtype)
{
	return dtype == HR_DTYPE_FLOAT64 ? HR__CUDA_R_64F : dtype == HR_DTYPE_BFLOAT16 ? HR__CUDA_R_16BF : HR__CUDA_R_32F;
}

static int make_layout(const struct lt_call *call, cublasLtMatrixLayout_t *out, hr_dtype dtype, int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t step)
{
	int32_t count = (int32_t)batch;
	int result = call->lt->cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)rows, (uint64_t)columns, ld);
	if (result || batch == 1) return result;
	result = call->lt->cublasLtMatrixLayoutSetAttribute(*out, HR__CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
	if (result) return result;
	return call->lt->cublasLtMatrixLayoutSetAttribute(*out, HR__CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
}

static int make_desc(struct lt_call *call, const hr__product *product)
{
	bool wide = product->to == HR_DTYPE_FLOAT64;
	int32_t a = product->a_turned ? HR__CUBLAS_OP_T : HR__CUBLAS_OP_N, b = product->b_turned ? HR__CUBLAS_OP_T : HR__CUBLAS_OP_N;
	int result = call->lt->cublasLtMatmulDescCreate(&call->desc, wide ? HR__CUBLAS_COMPUTE_64F : HR__CUBLAS_COMPUTE_32F, wide ? HR__CUDA_R_64F : HR__CUDA_R_32F);
	if (!result) result = call->lt->cublasLtMatmulDescSetAttribute(call->desc, HR__CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
	if (!result) result = call->lt->cublasLtMatmulDescSetAttribute(call->desc, HR__CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
	return result;
}

/* The bias is added to each column of the result, and has the result's dtype. */
static int set_bias(const struct lt_call *call, const void *bias)
{
	int32_t epilogue = HR__CUBLASLT_EPILOGUE_BIAS;
	int result = call->lt->cublasLtMatmulDescSetAttribute(call->desc, HR__CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
	return result ? result : call->lt->cublasLtMatmulDescSetAttribute(call->desc, HR__CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

static uint32_t alignment_of(const void *address, int64_t step, hr_dtype dtype)
{
	uint64_t bits = (uintptr_t)address | (uint64_t)step * hr_dtype_size(dtype) | ALIGNMENT_MAX;
	return (uint32_t)(bits & ~(bits - 1));
}

static struct lt_key key_of(const struct lt_call *call, const hr__product *product, uint64_t workspace)
{
	const hr__processors *card = &call->facts->processors;
	return (struct lt_key){ .sizes = { product->m, product->n, product->k, product->batch },
		                    .steps = { product->a_step, product->b_step, product->out_step },
		                    .rows = { product->a_row, product->b_row, product->out_row },
		                    .workspace = (int64_t)workspace,
		                    .kind = { 1, product->a_turned | (uint32_t)product->b_turned << 1, (uint32_t)product->in, (uint32_t)product->to, product->bias != NULL },
		                    .alignment = { alignment_of(product->a, product->a_step, product->in), alignment_of(product->b, product->b_step, product->in),
		                                   alignment_of(product->out, product->out_step, product->to) },
		                    .card = { (uint32_t)(card->major * 10 + card->minor), card->count } };
}

static uint32_t place_of(const struct lt_key *key)
{
	const unsigned char *bytes = (const unsigned char *)key;
	uint32_t hash = 2166136261u;
	for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ bytes[i]) * 16777619u;
	return hash % CHOSEN_MAX;
}

static bool was_chosen(const struct lt_key *key, struct lt_choice *out)
{
	uint32_t place = place_of(key);
	hr__lock_take(&hr__runtime_lock);
	bool found = !memcmp(&chosen[place].key, key, sizeof *key);
	if (found) *out = chosen[place].choice;
	hr__lock_release(&hr__runtime_lock);
	return found;
}

static void keep_choice(const struct lt_key *key, const struct lt_choice *choice)
{
	uint32_t place = place_of(key);
	hr__lock_take(&hr__runtime_lock);
	chosen[place].key = *key;
	chosen[place].choice = *choice;
	hr__lock_release(&hr__runtime_lock);
}

static int make_preference(struct lt_call *call, const struct lt_key *key, uint64_t workspace)
{
	const hr__cublaslt_calls *lt = call->lt;
	uint32_t a = key->alignment[0], b = key->alignment[1], out = key->alignment[2];
	int result = lt->cublasLtMatmulPreferenceCreate(&call->preference);
	if (!result) result = lt->cublasLtMatmulPreferenceSetAttribute(call->preference, HR__CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
	if (!result) result = lt->cublasLtMatmulPreferenceSetAttribute(call->preference, HR__CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a);
	if (!result) result = lt->cublasLtMatmulPreferenceSetAttribute(call->preference, HR__CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b);
	if (!result) result = lt->cublasLtMatmulPreferenceSetAttribute(call->preference, HR__CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out);
	if (!result) result = lt->cublasLtMatmulPreferenceSetAttribute(call->preference, HR__CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out);
	return result;
}

static hr_status lt_failed(const struct lt_call *call, int result, const char *what)
{
	return hr__fail(HR_DEVICE_ERROR, "%s on %s: %s", what, hr__device_name(call->facts->device), call->lt->cublasLtGetStatusName(result));
}

/* ---- calls ---- */

static hr_status describe(struct lt_call *call, const hr__product *product)
{
	bool a = product->a_turned, b = product->b_turned;
	int result = make_desc(call, product);
	if (!result)
		result = make_layout(call, &call->a, product->in, a ? product->k : product->m, a ? product->m : product->k, product->a_row, product->batch, product->a_step);
	if (!result)
		result = make_layout(call, &call->b, product->in, b ? product->n : product->k, b ? product->k : product->n, product->b_row, product->batch, product->b_step);
	if (!result) result = make_layout(call, &call->out, product->to, product->m, product->n, product->out_row, product->batch, product->out_step);
	return result ? lt_failed(call, result, "describing a product to cuBLASLt") : HR_OK;
}

static void forget(const struct lt_call *call)
{
	if (call->preference) call->lt->cublasLtMatmulPreferenceDestroy(call->preference);
	if (call->out) call->lt->cublasLtMatrixLayoutDestroy(call->out);
	if (call->b) call->lt->cublasLtMatrixLayoutDestroy(call->b);
	if (call->a) call->lt->cublasLtMatrixLayoutDestroy(call->a);
	if (call->desc) call->lt->cublasLtMatmulDescDestroy(call->desc);
}

/* HR__CUBLAS_STATUS_NOT_SUPPORTED: there is no algorithm. */
static int find(const struct lt_call *call, cublasLtHandle_t handle, cublasLtMatmulAlgo_t *out)
{
	cublasLtMatmulHeuristicResult_t found;
	int count = 0;
	int result = call->lt->cublasLtMatmulAlgoGetHeuristic(handle, call->desc, call->a, call->b, call->out, call->out, call->preference, 1, &found, &count);
	if (!result && (!count || found.state)) result = HR__CUBLAS_STATUS_NOT_SUPPORTED;
	if (!result) *out = found.algo;
	return result;
}

/* Describes the call anew, without the bias. */
static int find_plain(struct lt_call *call, cublasLtHandle_t handle, const hr__product *product, cublasLtMatmulAlgo_t *out)
{
	call->lt->cublasLtMatmulDescDestroy(call->desc);
	call->desc = NULL;
	int result = make_desc(call, product);
	return result ? result : find(call, handle, out);
}

static hr_status choose(struct lt_call *call, cublasLtHandle_t handle, const hr__product *product, uint64_t workspace, struct lt_choice *out)
{
	struct lt_key key = key_of(call, product, workspace);
	int result = 0;
	bool known = was_chosen(&key, out);
	if (!known) out->is_plain = false;
	if (product->bias && !out->is_plain) result = set_bias(call, product->bias);
	if (known && !result) return HR_OK;
	if (!result) result = make_preference(call, &key, workspace);
	if (!result) result = find(call, handle, &out->algo);
	if (result == HR__CUBLAS_STATUS_NOT_SUPPORTED && product->bias) {
		out->is_plain = true;
		result = find_plain(call, handle, product, &out->algo);
	}
	if (result) return lt_failed(call, result, "cublasLtMatmulAlgoGetHeuristic");
	keep_choice(&key, out);
	return HR_OK;
}

static hr_status multiply(const hr__launch *launch, struct lt_call *call, cublasLtHandle_t handle, const hr__product *product, void *at, uint64_t workspace)
{
	static const float one = 1, zero = 0;
	static const double wide_one = 1, wide_zero = 0;
	bool wide = product->to == HR_DTYPE_FLOAT64;
	struct lt_choice choice;
	hr_status status = choose(call, handle, product, workspace, &choice);
	if (status) return status;
	int result = call->lt->cublasLtMatmul(handle, call->desc, wide ? (const void *)&wide_one : &one, product->a, call->a, product->b, call->b,
	                                  wide ? (const void *)&wide_zero : &zero, product->out, call->out, product->out, call->out, &choice.algo, at, workspace,
	                                  launch->native->stream);
	if (result) return lt_failed(call, result, "cublasLtMatmul");
	if (!product->bias || !choice.is_plain) return HR_OK;
	hr__strip strip = { .from = product->out, .to = product->out, .bias = product->bias, .rows = product->n, .columns = product->m, .from_row = product->out_row,
		                .to_row = product->out_row, .to_columns = product->m, .dtype = product->to };
	return hr__strip_copy(launch, &strip);
}

hr_status hr__product_run(const hr__launch *launch, const hr__product *product, void *workspace, uint64_t bytes)
{
	const hr__card_facts *facts = hr__card_facts_of(launch->card);
	struct lt_call call = { .lt = facts->cublaslt, .facts = facts };
	cublasLtHandle_t handle;
	hr_status status = hr__card_cublaslt(launch->card, &handle);
	if (!status) status = describe(&call, product);
	if (!status) status = multiply(launch, &call, handle, product, workspace, bytes);
	forget(&call);
	return status;
}

/* ---- copies of rows ---- */

#define COLUMNS_EACH (8 * (int64_t)HR__BLOCK) /* of a block's turn; strips.cuh has the same number */

hr_status hr__strip_copy(const hr__launch *launch, const hr__strip *strip)
{
	hr__k_strip of = { .from = strip->from, .to = strip->to, .bias = strip->bias, .rows = strip->rows, .columns = strip->columns, .from_row = strip->from_row,
		               .to_row = strip->to_row, .to_columns = strip->to_columns };
	if (!of.rows || !of.to_columns) return HR_OK;
	hr__grid grid = hr__launch_grid(launch, of.rows * HR__UP(of.to_columns, COLUMNS_EACH) * (int64_t)HR__BLOCK);
	return hr__launch_kernel(launch, HR__PROGRAM_STRIPS, strip->dtype, "hr_strips", &grid, &of);
}
