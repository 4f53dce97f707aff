/* ops_dropout.c - dropout: an element is 0 with a given probability, and otherwise scaled so that its expectation stays the same.
 *
 * Which elements are dropped is a function of the seed, the offset and the position alone (philox.h), so no mask is kept: the gradient
 * is the same op on the gradient, and the op can run again. Word i % 4 of block i / 4 is that of element i. It is dropped if the word is
 * below rate * 2^32, for every dtype. */
#include <string.h>

#include "core/base/status.h"
#include "runtime/engine/engine.h"
#include "runtime/kernels/philox.h"
#include "runtime/ops/ops.h"

#define BLOCKS 16 /* of four words, drawn together: the compiler draws them with vectors */

/* Inputs: x, and the offset, an int64 scalar. The result has the dtype of x, or attrs.dtype. */
HR__INFER(dropout)
{
	char shape[HR__DIMS_TEXT];
	(void)count;
	hr_status status = hr__need_real(&in[0]);
	if (status) return status;
	if (in[1].dtype != HR_DTYPE_INT64 || in[1].dims.rank > 0)
		return hr__fail(HR_INVALID_ARGUMENT, "the offset is %s %s; it is int64 []", hr_dtype_text(in[1].dtype), hr__dims_text(&in[1].dims, shape, sizeof shape));
	if (!(attrs->a >= 0 && attrs->a <= 1)) return hr__fail(HR_INVALID_ARGUMENT, "the rate is %g; it is from 0 to 1", attrs->a);
	*out = in[0];
	if (attrs->dtype) out->dtype = attrs->dtype;
	return HR_OK;
}

/* x may be the memory of out. */
#define FOR_TYPE(type, name)                                                                                                \
	static void drop_##name(const uint32_t *words, uint64_t below, type scale, const type *x, type *out, int64_t count)     \
	{                                                                                                                       \
		HR__INDEPENDENT for (int64_t i = 0; i < count; i++) out[i] = words[i] >= below ? x[i] * scale : 0;                  \
	}

FOR_TYPE(float, f32)
FOR_TYPE(double, f64)

static void drop_mixed(const hr__work *work, const uint32_t *words, uint64_t below, float scale, int64_t at, int64_t count)
{
	float piece[4 * BLOCKS], *to = work->out_types[0].dtype == HR_DTYPE_BFLOAT16 ? piece : (float *)work->out[0] + at;
	const float *from = (const float *)work->in[0] + at;
	if (work->in_types[0].dtype == HR_DTYPE_BFLOAT16) {
		hr__widen_piece((const uint16_t *)work->in[0] + at, piece, count);
		from = piece;
	}
	drop_f32(words, below, scale, from, to, count);
	if (to == piece) hr__round_piece(piece, (uint16_t *)work->out[0] + at, count);
}

/* Pieces begin at multiples of the grain, so at the beginning of a block. */
static void dropout_range(void *context, int64_t begin, int64_t end)
{
	const hr__work *work = context;
	double rate = work->attrs->a, scale = rate < 1 ? 1 / (1 - rate) : 0;
	uint64_t below = (uint64_t)(rate * 0x1p32), offset;
	uint32_t words[4 * BLOCKS];
	memcpy(&offset, work->in[1], sizeof offset);
	for (int64_t i = begin; i < end; i += 4 * BLOCKS) {
		int64_t count = end - i < 4 * BLOCKS ? end - i : 4 * BLOCKS;
		for (int block = 0; block < BLOCKS; block++) hr__philox(work->attrs->seed, (uint64_t)(i / 4 + block), HR__RANDOM_DROPOUT, offset, words + 4 * block);
		if (work->in_types[0].dtype == HR_DTYPE_BFLOAT16 || work->out_types[0].dtype == HR_DTYPE_BFLOAT16) drop_mixed(work, words, below, (float)scale, i, count);
		else if (work->out_types[0].dtype == HR_DTYPE_FLOAT32) drop_f32(words, below, (float)scale, (const float *)work->in[0] + i, (float *)work->out[0] + i, count);
		else drop_f64(words, below, scale, (const double *)work->in[0] + i, (double *)work->out[0] + i, count);
	}
}

HR__RUN(dropout)
{
	hr__each_range(work, hr__dims_count(&work->out_types[0].dims), HR__GRAIN / 8, dropout_range, work);
}

HR__GRADIENT(dropout)
{
	if (!hr__wanted(backward, 0)) return HR_OK;
	hr__attrs attrs = *backward->attrs;
	attrs.dtype = backward->in_types[0].dtype;
	return hr__give(backward, 0, hr__call_one(HR__OP_DROPOUT, (const hr_value[]){ backward->grad_out[0], backward->in[1] }, 2, &attrs));
}

/* ---- public calls ---- */

hr_value hr_dropout(hr_value x, double rate, uint64_t seed, hr_value offset, bool training)
{
	hr__value value;
	if (training) return hr__call_one(HR__OP_DROPOUT, (const hr_value[]){ x, offset }, 2, &(hr__attrs){ .a = rate, .seed = seed });
	if (offset.id) hr__value_consume(offset);
	if (!x.id) return x;
	if (hr__value_get(x, &value)) return hr__op_refuse_in(&x, 1, "dropout");
	return hr__reshape_to(x, &value.type.dims);
}
