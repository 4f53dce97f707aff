/* launch_matrix.c - matrix products on the card, by cuBLASLt.
 *
 * Our matrices are stored by rows, cuBLASLt's by columns. A matrix by rows is its transpose by columns, and C^T = B^T A^T: the operands are exchanged,
 * and no memory order needs to be set.
 *
 * The algorithm is chosen by the library's heuristics for the shapes, the dtype, the size of the workspace and the alignment of the addresses alone, so
 * that a product gives the same bits each time. The choice takes longer than the rest of a call, so the last choices are kept. float32 is multiplied in float32: TF32 has 10 bits of precision. bfloat16 is multiplied as it is, and
 * added in float32. */
#include <string.h>

#include "core/base/status.h"
#include "runtime/card/card.h"
#include "runtime/engine/engine.h"
#include "runtime/ops/ops.h"

#define WORKSPACE_MAX (UINT64_C(32) << 20) /* what the library's documentation recommends for Hopper */
#define CHOSEN_MAX 512u
#define ALIGNMENT_MAX 16u                  /* of addresses, that makes a difference */

/* A product by columns: out [m, n] = a [m, k] b [k, n], [batch] of them, [steps] elements apart. */
struct lt_product {
	int64_t m, n, k, batch;
	int64_t a_step, b_step, out_step;
	bool a_turned, b_turned; /* stored by rows */
	const void *a, *b;
	void *out;
	hr_dtype in, to;
};

/* What an algorithm is chosen by. */
struct lt_key {
	int64_t sizes[4], steps[3], workspace;
	uint32_t kind[4], alignment[3], card[2];
	uint32_t is_used; /* not padding: keys are compared as bytes */
};

static struct {
	struct lt_key key; /* all 0: free */
	cublasLtMatmulAlgo_t algo;
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

static int make_layout(const struct lt_call *call, cublasLtMatrixLayout_t *out, hr_dtype dtype, int64_t rows, int64_t columns, int64_t batch, int64_t step)
{
	int32_t count = (int32_t)batch;
	int result = call->lt->cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)rows, (uint64_t)columns, rows);
	if (result || batch == 1) return result;
	result = call->lt->cublasLtMatrixLayoutSetAttribute(*out, HR__CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
	if (result) return result;
	return call->lt->cublasLtMatrixLayoutSetAttribute(*out, HR__CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
}

static int make_desc(struct lt_call *call, const struct lt_product *product)
{
	bool wide = product->to == HR_DTYPE_FLOAT64;
	int32_t a = product->a_turned ? HR__CUBLAS_OP_T : HR__CUBLAS_OP_N, b = product->b_turned ? HR__CUBLAS_OP_T : HR__CUBLAS_OP_N;
	int result = call->lt->cublasLtMatmulDescCreate(&call->desc, wide ? HR__CUBLAS_COMPUTE_64F : HR__CUBLAS_COMPUTE_32F, wide ? HR__CUDA_R_64F : HR__CUDA_R_32F);
	if (!result) result = call->lt->cublasLtMatmulDescSetAttribute(call->desc, HR__CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a);
	if (!result) result = call->lt->cublasLtMatmulDescSetAttribute(call->desc, HR__CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b);
	return result;
}

static uint32_t alignment_of(const void *address, int64_t step, hr_dtype dtype)
{
	uint64_t bits = (uintptr_t)address | (uint64_t)step * hr_dtype_size(dtype) | ALIGNMENT_MAX;
	return (uint32_t)(bits & ~(bits - 1));
}

static struct lt_key key_of(const struct lt_call *call, const struct lt_product *product, uint64_t workspace)
{
	const hr__processors *card = &call->facts->processors;
	return (struct lt_key){ .sizes = { product->m, product->n, product->k, product->batch },
		                    .steps = { product->a_step, product->b_step, product->out_step },
		                    .workspace = (int64_t)workspace,
		                    .kind = { product->a_turned, product->b_turned, (uint32_t)product->in, (uint32_t)product->to },
		                    .alignment = { alignment_of(product->a, product->a_step, product->in), alignment_of(product->b, product->b_step, product->in),
		                                   alignment_of(product->out, product->out_step, product->to) },
		                    .card = { (uint32_t)(card->major * 10 + card->minor), card->count },
		                    .is_used = 1 };
}

static uint32_t place_of(const struct lt_key *key)
{
	const unsigned char *bytes = (const unsigned char *)key;
	uint32_t hash = 2166136261u;
	for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ bytes[i]) * 16777619u;
	return hash % CHOSEN_MAX;
}

static bool was_chosen(const struct lt_key *key, cublasLtMatmulAlgo_t *out)
{
	uint32_t place = place_of(key);
	hr__lock_take(&hr__runtime_lock);
	bool found = !memcmp(&chosen[place].key, key, sizeof *key);
	if (found) *out = chosen[place].algo;
	hr__lock_release(&hr__runtime_lock);
	return found;
}

static void keep_choice(const struct lt_key *key, const cublasLtMatmulAlgo_t *algo)
{
	uint32_t place = place_of(key);
	hr__lock_take(&hr__runtime_lock);
	chosen[place].key = *key;
	chosen[place].algo = *algo;
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

static hr_status describe(struct lt_call *call, const struct lt_product *product)
{
	bool a = product->a_turned, b = product->b_turned;
	int result = make_desc(call, product);
	if (!result) result = make_layout(call, &call->a, product->in, a ? product->k : product->m, a ? product->m : product->k, product->batch, product->a_step);
	if (!result) result = make_layout(call, &call->b, product->in, b ? product->n : product->k, b ? product->k : product->n, product->batch, product->b_step);
	if (!result) result = make_layout(call, &call->out, product->to, product->m, product->n, product->batch, product->out_step);
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

static hr_status choose(struct lt_call *call, cublasLtHandle_t handle, const struct lt_product *product, uint64_t workspace, cublasLtMatmulAlgo_t *out)
{
	struct lt_key key = key_of(call, product, workspace);
	cublasLtMatmulHeuristicResult_t found;
	int count = 0;
	if (was_chosen(&key, out)) return HR_OK;
	int result = make_preference(call, &key, workspace);
	if (!result)
		result = call->lt->cublasLtMatmulAlgoGetHeuristic(handle, call->desc, call->a, call->b, call->out, call->out, call->preference, 1, &found, &count);
	if (!result && (!count || found.state)) result = HR__CUBLAS_STATUS_NOT_SUPPORTED;
	if (result) return lt_failed(call, result, "cublasLtMatmulAlgoGetHeuristic");
	*out = found.algo;
	keep_choice(&key, out);
	return HR_OK;
}

static hr_status multiply(const hr__launch *launch, struct lt_call *call, cublasLtHandle_t handle, const struct lt_product *product, uint64_t workspace)
{
	static const float one = 1, zero = 0;
	static const double wide_one = 1, wide_zero = 0;
	bool wide = product->to == HR_DTYPE_FLOAT64;
	cublasLtMatmulAlgo_t algo;
	hr_status status = choose(call, handle, product, workspace, &algo);
	if (status) return status;
	int result = call->lt->cublasLtMatmul(handle, call->desc, wide ? (const void *)&wide_one : &one, product->a, call->a, product->b, call->b,
	                                  wide ? (const void *)&wide_zero : &zero, product->out, call->out, product->out, call->out, &algo,
	                                  launch->work->scratch, workspace, launch->native->stream);
	return result ? lt_failed(call, result, "cublasLtMatmul") : HR_OK;
}

static hr_status run_product(const hr__launch *launch, const struct lt_product *product, uint64_t workspace)
{
	const hr__card_facts *facts = hr__card_facts_of(launch->card);
	struct lt_call call = { .lt = facts->cublaslt, .facts = facts };
	cublasLtHandle_t handle;
	hr_status status = hr__card_cublaslt(launch->card, &handle);
	if (!status) status = describe(&call, product);
	if (!status) status = multiply(launch, &call, handle, product, workspace);
	forget(&call);
	return status;
}

/* ---- the op ---- */

/* As much as the operands have, so that small products need little. */
HR__WORKSPACE(matmul)
{
	(void)attrs;
	uint64_t bytes = hr__type_bytes(&in[0]) + hr__type_bytes(&in[1]) + hr__type_bytes(out);
	bytes = (bytes + 255) / 256 * 256;
	return bytes < WORKSPACE_MAX ? bytes : WORKSPACE_MAX;
}

static int64_t dim_at(const hr__type *type, int behind)
{
	return type->dims.d[type->dims.rank - 1 - behind];
}

/* Without its batch. The first operand of the library is our second. */
static struct lt_product product_of(const hr__work *work)
{
	const hr__type *a = &work->in_types[0], *b = &work->in_types[1], *out = &work->out_types[0];
	bool turned_a = work->attrs->transpose_a, turned_b = work->attrs->transpose_b;
	return (struct lt_product){ .m = dim_at(out, 0), .n = dim_at(out, 1), .k = dim_at(a, turned_a ? 1 : 0), .batch = 1, .a_turned = turned_b,
		                        .b_turned = turned_a, .a = work->in[1], .b = work->in[0], .out = work->out[0], .in = b->dtype, .to = out->dtype };
}

static hr__dims batch_of(const hr__type *type)
{
	hr__dims dims = type->dims;
	dims.rank -= 2;
	return dims;
}

static const void *moved(const void *from, int64_t elements, hr_dtype dtype)
{
	return (const char *)from + elements * (int64_t)hr_dtype_size(dtype);
}

/* One call for each run of products whose operands are evenly apart: the last dimension of the walk over the batch. */
static hr_status run_batch(const hr__launch *launch, const struct lt_product *base, const hr__broadcast *walk, uint64_t workspace)
{
	int last = walk->rank - 1;
	int64_t runs = 1, index[HR_SHAPE_MAX_RANK] = { 0 };
	int64_t of_b = base->m * base->k, of_a = base->k * base->n, of_out = base->m * base->n;
	struct lt_product product = *base;
	product.batch = walk->d[last];
	product.a_step = walk->b[last] * of_b;
	product.b_step = walk->a[last] * of_a;
	product.out_step = of_out;
	for (int i = 0; i < last; i++) runs *= walk->d[i];
	for (int64_t run = 0; run < runs; run++) {
		int64_t a = 0, b = 0, rest = run;
		for (int i = last; i-- > 0; rest /= walk->d[i]) {
			index[i] = rest % walk->d[i];
			a += index[i] * walk->a[i];
			b += index[i] * walk->b[i];
		}
		product.a = moved(base->a, b * of_b, base->in);
		product.b = moved(base->b, a * of_a, base->in);
		product.out = (void *)moved(base->out, run * walk->d[last] * of_out, base->to);
		hr_status status = run_product(launch, &product, workspace);
		if (status) return status;
	}
	return HR_OK;
}

/* A batch of matrices with one second operand is one product of all their rows. */
static bool merges(const hr__work *work)
{
	hr__dims of_b = batch_of(&work->in_types[1]);
	return !work->attrs->transpose_a && hr__dims_count(&of_b) == 1;
}

HR__LAUNCH(matmul)
{
	const hr__work *work = launch->work;
	struct lt_product product = product_of(work);
	hr__dims of_out = batch_of(&work->out_types[0]), of_a = batch_of(&work->in_types[0]), of_b = batch_of(&work->in_types[1]);
	uint64_t workspace = hr__workspace_matmul(work->in_types, work->out_types, work->attrs);
	hr__broadcast walk;
	if (!hr__dims_count(&work->out_types[0].dims)) return HR_OK;
	if (!product.k) return hr__native_fill(launch->native, work->out[0], 0, hr__type_bytes(&work->out_types[0]));
	if (merges(work)) {
		product.n *= hr__dims_count(&of_out);
		return run_product(launch, &product, workspace);
	}
	hr__broadcast_make(&of_out, &of_a, &of_b, &walk);
	return run_batch(launch, &product, &walk, workspace);
}
