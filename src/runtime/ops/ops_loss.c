/* ops_loss.c - softmax and cross entropy, by rows of the last dimension. The row's maximum is subtracted before exp, so that
 * nothing overflows; sums are computed in double.
 *
 * Row loops process LANES elements at a time, which compilers vectorize. The order of additions is that of the lanes. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/base/status.h"
#include "runtime/ops/ops.h"
#include "runtime/kernels/ops_math.h"

#define ROWS_GRAIN (HR__GRAIN / 4) /* elements; at least a nanosecond each */
#define LANES 16
#define CHUNK 256 /* exponentials that are not stored are computed on the stack, in chunks of this many */

/* ---- types ---- */

/* Causal (attrs.keep): the last row uses all columns, each row before it one less. */
HR__INFER(softmax)
{
	(void)count;
	hr_status status = hr__need_rows(&in[0]);
	const hr__dims *dims = &in[0].dims;
	*out = in[0];
	if (status != HR_OK || !attrs->keep) return status;
	if (dims->rank >= 2 && dims->d[dims->rank - 1] >= dims->d[dims->rank - 2]) return HR_OK;
	char text[HR__DIMS_TEXT];
	return hr__fail(HR_INVALID_ARGUMENT,
	                "shape %s has no rows and columns, or more rows than columns, so some rows would attend to nothing",
	                hr__dims_text(dims, text, sizeof text));
}

/* Inputs: the output of softmax, and its gradient. */
HR__INFER(softmax_grad)
{
	(void)count, (void)attrs;
	hr_status status = hr__need_rows(&in[0]);
	if (status == HR_OK) status = hr__need_same_dtype(&in[0], &in[1]);
	if (status == HR_OK) status = hr__need_same_dims(&in[0], &in[1]);
	*out = in[0];
	return status;
}

/* Losses of bfloat16 logits are float32. */
HR__INFER(cross_entropy)
{
	(void)count, (void)attrs;
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	const hr__dims *logits = &in[0].dims, *labels = &in[1].dims;
	hr_status status = hr__need_real(&in[0]);
	if (status == HR_OK) status = hr__need_index(&in[1]);
	if (status != HR_OK) return status;
	*out = (hr__type){ hr__computed_in(&in[0]), *labels };
	if (logits->rank == 2 && labels->rank == 1 && logits->d[0] == labels->d[0]) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "shapes %s and %s are incompatible: logits are [rows,classes], labels [rows]",
	                hr__dims_text(logits, left, sizeof left), hr__dims_text(labels, right, sizeof right));
}

/* Inputs: logits, labels, and the gradient of each row's loss. */
HR__INFER(cross_entropy_grad)
{
	hr__type losses;
	hr_status status = hr__infer_cross_entropy(in, count, attrs, &losses);
	if (status == HR_OK) status = hr__need_same_dtype(&losses, &in[2]);
	if (status == HR_OK) status = hr__need_same_dims(&losses, &in[2]);
	*out = in[0];
	return status;
}

/* ---- rows ---- */

static int64_t row_length(const hr__work *work)
{
	const hr__dims *dims = &work->in_types[0].dims;
	return dims->d[dims->rank - 1];
}

static void exp_f64(const double *x, double less, double *out, int64_t count)
{
	for (int64_t i = 0; i < count; i++) out[i] = exp(x[i] - less);
}

/* Ignores NaN, so that it compiles to one instruction. A NaN still reaches the sum of exponentials, and so every element of the
 * row. */
#define LARGER(a, b) ((b) > (a) ? (b) : (a))

#define FOR_TYPE(type, name, exponentials)                                                            \
	static type largest_##name(const type *x, int64_t count)                                          \
	{                                                                                                 \
		type lanes[LANES], most = -INFINITY;                                                          \
		int64_t i = 0;                                                                                \
		for (int k = 0; k < LANES; k++) lanes[k] = -INFINITY;                                         \
		for (; i + LANES <= count; i += LANES) {                                                      \
			for (int k = 0; k < LANES; k++) lanes[k] = LARGER(lanes[k], x[i + k]);                    \
		}                                                                                             \
		for (int k = 0; k < LANES; k++) most = LARGER(most, lanes[k]);                                \
		for (; i < count; i++) most = LARGER(most, x[i]);                                             \
		return most;                                                                                  \
	}                                                                                                 \
                                                                                                      \
	static double sum_##name(const type *x, int64_t count)                                            \
	{                                                                                                 \
		double lanes[LANES] = { 0 }, sum = 0;                                                         \
		int64_t i = 0;                                                                                \
		for (; i + LANES <= count; i += LANES) {                                                      \
			for (int k = 0; k < LANES; k++) lanes[k] += (double)x[i + k];                             \
		}                                                                                             \
		for (; i < count; i++) sum += (double)x[i];                                                   \
		for (int k = 0; k < LANES; k++) sum += lanes[k];                                              \
		return sum;                                                                                   \
	}                                                                                                 \
                                                                                                      \
	static double sum_of_products_##name(const type *x, const type *y, int64_t count)                 \
	{                                                                                                 \
		double lanes[LANES] = { 0 }, sum = 0;                                                         \
		int64_t i = 0;                                                                                \
		for (; i + LANES <= count; i += LANES) {                                                      \
			for (int k = 0; k < LANES; k++) lanes[k] += (double)x[i + k] * (double)y[i + k];          \
		}                                                                                             \
		for (; i < count; i++) sum += (double)x[i] * (double)y[i];                                    \
		for (int k = 0; k < LANES; k++) sum += lanes[k];                                              \
		return sum;                                                                                   \
	}                                                                                                 \
                                                                                                      \
	static double sum_of_powers_##name(const type *x, int64_t count, type most)                       \
	{                                                                                                 \
		type powers[CHUNK];                                                                           \
		double sum = 0;                                                                               \
		for (int64_t i = 0; i < count; i += CHUNK) {                                                  \
			int64_t some = count - i < CHUNK ? count - i : CHUNK;                                     \
			exponentials(x + i, most, powers, some);                                                  \
			sum += sum_##name(powers, some);                                                          \
		}                                                                                             \
		return sum;                                                                                   \
	}                                                                                                 \
                                                                                                      \
	/* The row has [count] elements, of which the first [seen] are used. */                           \
	static void softmax_##name(const type *x, type *out, int64_t count, int64_t seen)                 \
	{                                                                                                 \
		exponentials(x, largest_##name(x, seen), out, seen);                                          \
		type share = (type)(1 / sum_##name(out, seen));                                               \
		for (int64_t i = 0; i < seen; i++) out[i] *= share;                                           \
		for (int64_t i = seen; i < count; i++) out[i] = 0;                                            \
	}                                                                                                 \
                                                                                                      \
	/* dx = y (dy - sum of y dy). 0 where y is 0, as causal softmax needs. */                         \
	static void softmax_grad_##name(const type *y, const type *grad, type *out, int64_t count)        \
	{                                                                                                 \
		type taken = (type)sum_of_products_##name(y, grad, count);                                    \
		HR__INDEPENDENT for (int64_t i = 0; i < count; i++) out[i] = y[i] * (grad[i] - taken);        \
	}                                                                                                 \
                                                                                                      \
	static type loss_##name(const type *x, int64_t count, int64_t label)                              \
	{                                                                                                 \
		type most = largest_##name(x, count);                                                         \
		return (type)(log(sum_of_powers_##name(x, count, most)) + ((double)most - (double)x[label])); \
	}                                                                                                 \
                                                                                                      \
	/* The softmax, minus 1 at the label, times the gradient of the loss. */                          \
	static void loss_grad_##name(const type *x, type *out, int64_t count, int64_t label, type grad)   \
	{                                                                                                 \
		softmax_##name(x, out, count, count);                                                         \
		out[label] -= 1;                                                                              \
		for (int64_t i = 0; i < count; i++) out[i] *= grad;                                           \
	}

FOR_TYPE(float, f32, hr__exp_f32)
FOR_TYPE(double, f64, exp_f64)

/* ---- runs ---- */

static bool is_f32(const hr__work *work)
{
	return work->out_types[0].dtype == HR_DTYPE_FLOAT32;
}

/* Rows of bfloat16 are computed in float32, each part in a row of its own. */
#define SLOTS 16

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

HR__SCRATCH(cross_entropy)
{
	(void)out, (void)attrs;
	const hr__dims *dims = &in[0].dims;
	return in[0].dtype == HR_DTYPE_BFLOAT16 ? (uint64_t)(least(dims->d[0], SLOTS) * dims->d[1]) * sizeof(float) : 0;
}

static void run_rows(hr__work *work, hr__range_function range)
{
	int64_t length = row_length(work), before, behind;
	hr__around(&work->in_types[0].dims, work->in_types[0].dims.rank - 1, &before, &behind);
	hr__each_range(work, before, hr__grain_of(ROWS_GRAIN, length), range, work);
}

/* Number of columns that a row uses. */
static int64_t seen_by(const hr__work *work, int64_t row)
{
	const hr__dims *dims = &work->in_types[0].dims;
	int64_t length = row_length(work);
	if (!work->attrs->keep) return length;
	int64_t rows = dims->d[dims->rank - 2];
	return row % rows + 1 + length - rows;
}

static void softmax_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	int64_t length = row_length(work);
	for (int64_t row = begin; row < end; row++) {
		int64_t i = row * length, seen = seen_by(work, row);
		if (is_f32(work)) softmax_f32((const float *)work->in[0] + i, (float *)work->out[0] + i, length, seen);
		else softmax_f64((const double *)work->in[0] + i, (double *)work->out[0] + i, length, seen);
	}
}

HR__RUN(softmax)
{
	run_rows(work, softmax_range);
}

static void softmax_grad_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	int64_t length = row_length(work);
	const void *y = work->in[0], *grad = work->in[1];
	void *out = work->out[0];
	for (int64_t i = begin * length; i < end * length; i += length) {
		if (is_f32(work)) softmax_grad_f32((const float *)y + i, (const float *)grad + i, (float *)out + i, length);
		else softmax_grad_f64((const double *)y + i, (const double *)grad + i, (double *)out + i, length);
	}
}

HR__RUN(softmax_grad)
{
	run_rows(work, softmax_grad_range);
}

/* The label of a row; -1 and an error of the run if there is no such class. */
static int64_t label_of(hr__work *work, int64_t row)
{
	const void *labels = work->in[1];
	int64_t label = work->in_types[1].dtype == HR_DTYPE_INT32 ? ((const int32_t *)labels)[row] : ((const int64_t *)labels)[row];
	if (label >= 0 && label < row_length(work)) return label;
	hr__range_error(work, "a label is out of range", label, row_length(work));
	return -1;
}

static void loss_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	int64_t length = row_length(work);
	for (int64_t i = begin; i < end; i++) {
		int64_t label = label_of(work, i), size = (int64_t)hr_dtype_size(work->out_types[0].dtype);
		if (label < 0) memset((char *)work->out[0] + i * size, 0, (size_t)size);
		else if (is_f32(work)) ((float *)work->out[0])[i] = loss_f32((const float *)work->in[0] + i * length, length, label);
		else ((double *)work->out[0])[i] = loss_f64((const double *)work->in[0] + i * length, length, label);
	}
}

/* The losses of rows of bfloat16, or their gradients. */
static void narrow_slot(void *context, uint32_t slot)
{
	hr__work *work = context;
	bool goes_back = work->in_count > 2;
	int64_t length = row_length(work), rows = work->in_types[0].dims.d[0];
	float *row = (float *)work->scratch + slot * length;
	const uint16_t *from = work->in[0];
	for (int64_t i = slot; i < rows; i += SLOTS) {
		int64_t label = label_of(work, i);
		hr__widen_piece(from + i * length, row, length);
		if (!goes_back) {
			((float *)work->out[0])[i] = label < 0 ? 0 : loss_f32(row, length, label);
			continue;
		}
		if (label < 0) memset(row, 0, (size_t)length * sizeof *row);
		else loss_grad_f32(row, row, length, label, ((const float *)work->in[2])[i]);
		hr__round_piece(row, (uint16_t *)work->out[0] + i * length, length);
	}
}

static void run_losses(hr__work *work, hr__range_function range)
{
	if (work->in_types[0].dtype != HR_DTYPE_BFLOAT16) run_rows(work, range);
	else hr__team_run(work->team, (uint32_t)least(work->in_types[0].dims.d[0], SLOTS), narrow_slot, work);
}

HR__RUN(cross_entropy)
{
	run_losses(work, loss_range);
}

static void loss_grad_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	int64_t length = row_length(work);
	const void *logits = work->in[0], *grad = work->in[2];
	void *out = work->out[0];
	for (int64_t i = begin; i < end; i++) {
		int64_t label = label_of(work, i), at = i * length, size = (int64_t)hr_dtype_size(work->out_types[0].dtype);
		if (label < 0) memset((char *)out + at * size, 0, (size_t)(length * size));
		else if (is_f32(work)) loss_grad_f32((const float *)logits + at, (float *)out + at, length, label, ((const float *)grad)[i]);
		else loss_grad_f64((const double *)logits + at, (double *)out + at, length, label, ((const double *)grad)[i]);
	}
}

HR__RUN(cross_entropy_grad)
{
	run_losses(work, loss_grad_range);
}

/* ---- gradients ---- */

HR__GRADIENT(softmax)
{
	hr_value inputs[2] = { backward->out[0], backward->grad_out[0] };
	return hr__wanted(backward, 0) ? hr__give(backward, 0, hr__call_one(HR__OP_SOFTMAX_GRAD, inputs, 2, &(hr__attrs){ 0 })) : HR_OK;
}

HR__GRADIENT(cross_entropy)
{
	hr_value inputs[3] = { backward->in[0], backward->in[1], backward->grad_out[0] };
	return hr__wanted(backward, 0) ? hr__give(backward, 0, hr__call_one(HR__OP_CROSS_ENTROPY_GRAD, inputs, 3, &(hr__attrs){ 0 }))
	                               : HR_OK;
}

/* ---- public calls ---- */

hr_value hr_softmax(hr_value x)
{
	return hr__call_one(HR__OP_SOFTMAX, &x, 1, &(hr__attrs){ 0 });
}

hr_value hr_causal_softmax(hr_value x)
{
	return hr__call_one(HR__OP_SOFTMAX, &x, 1, &(hr__attrs){ .keep = true });
}

hr_value hr_cross_entropy(hr_value logits, hr_value labels)
{
	return hr__call_one(HR__OP_CROSS_ENTROPY, (const hr_value[]){ logits, labels }, 2, &(hr__attrs){ 0 });
}
