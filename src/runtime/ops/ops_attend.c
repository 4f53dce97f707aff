/* ops_attend.c - fused attention: softmax(scale q k^T) v for each head, without the matrix of scores.
 *
 * The algorithm of FlashAttention (Dao and others, 2022): keys are taken in blocks. Of each row the largest score so far and the sum of
 * the exponentials are kept; when a block has a larger score, the sum and the output so far are multiplied by the exponential of the
 * difference. The logarithm of a row's sum is an output, so that the gradient can compute each weight again from its score alone:
 * exp(score - log). With w the weights and dw = dy v^T:
 *
 *     dscore = w (dw - sum(dy y)) scale        dq = dscore k        dk = dscore^T q        dv = w^T dy
 *
 * A head has [width] numbers of each row of q and k, side by side with the other heads, so that the outputs of a layer need not be
 * transposed. Forward, a part is BLOCK_ROWS rows of a head. Backward, a part is a head, and goes over blocks of keys and of rows: so each
 * gradient is added up in one order. The number of parts that have scratch memory is bounded; blocks are divided by shape alone.
 *
 * Of bfloat16 q, k and v all is bfloat16 but the logarithms, which are float32. The host computes in float32, on copies. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/base/status.h"
#include "runtime/kernels/ops_math.h"
#include "runtime/kernels/ops_tile.h"
#include "runtime/ops/ops.h"

#define HIGH HR__TILE_HIGH
#define LANES 8
#define SLOTS 16         /* parts that have scratch memory */
#define BLOCK_ROWS 96    /* a multiple of HIGH */
#define BLOCK_COLUMNS 128 /* a multiple of every panel width */

/* ---- types ---- */

static hr_status misfit(const hr__type *a, const hr__type *b, const char *why)
{
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	return hr__fail(HR_INVALID_ARGUMENT, "shapes %s and %s are incompatible: %s", hr__dims_text(&a->dims, left, sizeof left),
	                hr__dims_text(&b->dims, right, sizeof right), why);
}

static int64_t from_end(const hr__type *type, int n)
{
	return type->dims.d[type->dims.rank - n];
}

static bool same_batch(const hr__type *a, const hr__type *b)
{
	for (int i = 0; i + 2 < a->dims.rank; i++)
		if (a->dims.d[i] != b->dims.d[i]) return false;
	return true;
}

static hr_status check_heads(const hr__type *type, const char *name, int64_t heads)
{
	char text[HR__DIMS_TEXT];
	if (from_end(type, 1) % heads == 0) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "shape %s: the last dimension of %s cannot be split into %" PRId64 " heads",
	                hr__dims_text(&type->dims, text, sizeof text), name, heads);
}

/* Checks q, k and v. */
static hr_status check_inputs(const hr__type *in, const hr__attrs *attrs)
{
	hr_status status = in[0].dtype == HR_DTYPE_BFLOAT16 ? HR_OK : hr__need_float(&in[0]);
	for (int i = 1; i < 3 && !status; i++) {
		status = hr__need_same_dtype(&in[0], &in[i]);
		if (!status && (in[i].dims.rank != in[0].dims.rank || in[0].dims.rank < 2 || !same_batch(&in[0], &in[i])))
			status = misfit(&in[0], &in[i], "q, k and v are [..., rows, numbers], with the same dimensions before the rows");
	}
	if (status) return status;
	if (from_end(&in[0], 1) != from_end(&in[1], 1)) return misfit(&in[0], &in[1], "rows of q and k have different lengths");
	if (from_end(&in[1], 2) != from_end(&in[2], 2)) return misfit(&in[1], &in[2], "k and v have different numbers of rows");
	if (attrs->keep && from_end(&in[1], 2) < from_end(&in[0], 2)) return misfit(&in[0], &in[1], "causal attention needs at least as many keys as rows");
	if (attrs->count < 1) return hr__fail(HR_INVALID_ARGUMENT, "%" PRId64 " heads; there is at least 1", attrs->count);
	if (!isfinite(attrs->a)) return hr__fail(HR_INVALID_ARGUMENT, "the scale is %g", attrs->a);
	status = check_heads(&in[0], "q", attrs->count);
	return status ? status : check_heads(&in[2], "v", attrs->count);
}

/* The output, and the logarithms: [..., heads, rows]. */
static void output_types(const hr__type *in, const hr__attrs *attrs, hr__type *out)
{
	out[0] = out[1] = in[0];
	out[0].dims.d[in[0].dims.rank - 1] = from_end(&in[2], 1);
	out[1].dtype = hr__gradient_dtype(in[0].dtype);
	out[1].dims.d[in[0].dims.rank - 2] = attrs->count;
	out[1].dims.d[in[0].dims.rank - 1] = from_end(&in[0], 2);
}

/* Inputs: q, k, v. Outputs: y, and the logarithm of the sum of each row's exponentials. */
HR__INFER(attend)
{
	(void)count;
	hr_status status = check_inputs(in, attrs);
	if (!status) output_types(in, attrs, out);
	return status;
}

/* Inputs: the gradient of y, q, k, v, y, the logarithms. Outputs: the gradients of q, k and v. */
HR__INFER(attend_grad)
{
	hr__type types[2];
	(void)count;
	hr_status status = check_inputs(in + 1, attrs);
	if (status) return status;
	output_types(in + 1, attrs, types);
	const hr__type *given[] = { &in[0], &in[4], &in[5] }, *wanted[] = { &types[0], &types[0], &types[1] };
	for (int i = 0; i < 3 && !status; i++) {
		status = hr__need_same_dtype(wanted[i], given[i]);
		if (!status) status = hr__need_same_dims(wanted[i], given[i]);
	}
	for (int i = 0; i < 3; i++) out[i] = in[1 + i];
	return status;
}

/* ---- the problem ---- */

struct attention {
	int64_t batch, heads, rows, columns, width, value_width; /* width and value_width of one head */
	int64_t q_row, k_row, v_row, y_row;                      /* from one row to the next */
	int64_t block_rows, block_columns;                       /* what a block has at most; also the length of a row of scratch weights */
	bool causal;
	double scale;
	hr__tile_kernel kernel;
	int64_t panel, size;
	hr__work *work;
};

/* Where a head's first row begins. Backward, q, k, v and y are inputs. */
struct attention_head {
	const void *q, *k, *v, *dy;
	void *y, *logs, *dq, *dk, *dv;
};

/* What a slot packs blocks in. */
struct attention_scratch {
	void *strip;                /* of rows of q, or of dy */
	void *k_columns, *v_rows;   /* forward */
	void *v_columns, *k_rows;   /* backward: k as above, and v; columns are those of the transposed matrix */
	void *rows;                 /* of q, or of dy */
	void *weights, *slopes;     /* block_rows by block_columns: weights, and the gradients of the scores */
};

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t most_of(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* The number of keys that a row uses. */
static int64_t columns_seen(const struct attention *of, int64_t row)
{
	return of->causal ? row + of->columns - of->rows + 1 : of->columns;
}

/* Elements of [count] columns in panels, for the widest panel: the actual width depends on the processor. */
static int64_t in_panels(int64_t count, int64_t size)
{
	int64_t widest = HR__TILE_WIDEST / size;
	return (count + widest - 1) / widest * widest;
}

static struct attention attention_of(const hr__type *in, const hr__attrs *attrs)
{
	hr__dims batch = in[0].dims;
	int64_t size = (int64_t)hr_dtype_size(hr__gradient_dtype(in[0].dtype)), rows = from_end(&in[0], 2), columns = from_end(&in[1], 2);
	batch.rank -= 2;
	return (struct attention){ .batch = hr__dims_count(&batch),
		                       .heads = attrs->count,
		                       .rows = rows,
		                       .columns = columns,
		                       .block_rows = least(rows, BLOCK_ROWS),
		                       .block_columns = least(in_panels(columns, size), BLOCK_COLUMNS),
		                       .width = from_end(&in[0], 1) / attrs->count,
		                       .value_width = from_end(&in[2], 1) / attrs->count,
		                       .q_row = from_end(&in[0], 1),
		                       .k_row = from_end(&in[1], 1),
		                       .v_row = from_end(&in[2], 1),
		                       .y_row = from_end(&in[2], 1),
		                       .causal = attrs->keep,
		                       .scale = attrs->a,
		                       .size = size };
}

static void add_kernel(struct attention *of, hr__work *work)
{
	of->work = work;
	of->kernel = hr__tile_kernel_for(work->out_types[0].dtype, &of->panel);
}

/* [number] counts heads, in all of the batch. [first] is the index of q among the inputs. */
static struct attention_head head_of(const struct attention *of, int64_t number, int first)
{
	const hr__work *work = of->work;
	int64_t batch = number / of->heads, head = number % of->heads;
	int64_t q = (batch * of->rows * of->q_row + head * of->width) * of->size, k = (batch * of->columns * of->k_row + head * of->width) * of->size;
	int64_t v = (batch * of->columns * of->v_row + head * of->value_width) * of->size, y = (batch * of->rows * of->y_row + head * of->value_width) * of->size;
	int64_t logs = number * of->rows * of->size;
	struct attention_head out = { .q = (const char *)work->in[first] + q, .k = (const char *)work->in[first + 1] + k, .v = (const char *)work->in[first + 2] + v };
	if (first == 0) {
		out.y = (char *)work->out[0] + y;
		out.logs = (char *)work->out[1] + logs;
		return out;
	}
	out.dy = (const char *)work->in[0] + y;
	out.y = (char *)(uintptr_t)work->in[4] + y; /* only read */
	out.logs = (char *)(uintptr_t)work->in[5] + logs;
	out.dq = (char *)work->out[0] + q;
	out.dk = (char *)work->out[1] + k;
	out.dv = (char *)work->out[2] + v;
	return out;
}

/* Divides a slot's scratch memory, and returns its size; [at] may be NULL. */
static int64_t divide(const struct attention *of, bool backward, char *at, struct attention_scratch *out)
{
	int64_t wide = in_panels(of->width, of->size), value_wide = in_panels(of->value_width, of->size), longest = most_of(of->width, of->value_width);
	int64_t rows = of->block_rows, columns = of->block_columns, used = 0;
	struct { void **at; int64_t elements; } pieces[] = {
		{ &out->strip, HIGH * longest },
		{ &out->k_columns, columns * of->width },
		{ &out->v_rows, backward ? 0 : columns * value_wide },
		{ &out->v_columns, backward ? columns * of->value_width : 0 },
		{ &out->k_rows, backward ? columns * wide : 0 },
		{ &out->rows, backward ? rows * most_of(wide, value_wide) : 0 },
		{ &out->weights, backward ? rows * columns : 0 },
		{ &out->slopes, backward ? rows * columns : 0 },
	};
	for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
		*pieces[i].at = at ? at + used : NULL;
		used += (pieces[i].elements * of->size + 63) / 64 * 64;
	}
	return used;
}

static int64_t blocks_of(const struct attention *of)
{
	return (of->rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

/* Forward, a job is a block of rows of a head; backward, a head. */
static int64_t jobs_of(const struct attention *of, bool backward)
{
	return of->batch * of->heads * (backward ? 1 : blocks_of(of));
}

static uint64_t scratch_bytes(const struct attention *of, bool backward)
{
	struct attention_scratch scratch;
	return (uint64_t)(divide(of, backward, NULL, &scratch) * least(jobs_of(of, backward), SLOTS));
}

/* Of [count] types. */
static uint64_t wide_bytes(const hr__type *types, int count)
{
	uint64_t bytes = 0;
	for (int i = 0; i < count; i++) bytes += hr__wide_bytes(&types[i]);
	return bytes;
}

HR__SCRATCH(attend)
{
	struct attention of = attention_of(in, attrs);
	return scratch_bytes(&of, false) + wide_bytes(in, 3) + wide_bytes(out, 1);
}

HR__SCRATCH(attend_grad)
{
	struct attention of = attention_of(in + 1, attrs);
	return scratch_bytes(&of, true) + wide_bytes(in, 6) + wide_bytes(out, 3);
}

/* ---- kernels ---- */

static void exponentials_f64(const double *x, double less, double *out, int64_t count)
{
	for (int64_t i = 0; i < count; i++) out[i] = exp(x[i] - less);
}

#define NUMBER float
#define NAMED(name) name##_f32
#define EXPONENTIALS hr__exp_f32
#include "runtime/kernels/attend.inc"
#undef NUMBER
#undef NAMED
#undef EXPONENTIALS

#define NUMBER double
#define NAMED(name) name##_f64
#define EXPONENTIALS exponentials_f64
#include "runtime/kernels/attend.inc"
#undef NUMBER
#undef NAMED
#undef EXPONENTIALS

/* ---- runs ---- */

static void attend_slot(void *context, uint32_t slot)
{
	const struct attention *of = context;
	struct attention_scratch scratch;
	int64_t jobs = jobs_of(of, false), slots = least(jobs, SLOTS), each = divide(of, false, NULL, &scratch);
	divide(of, false, (char *)of->work->scratch + slot * each, &scratch);
	for (int64_t job = slot; job < jobs; job += slots) {
		struct attention_head head = head_of(of, job / blocks_of(of), 0);
		int64_t row = job % blocks_of(of) * BLOCK_ROWS, count = least(BLOCK_ROWS, of->rows - row);
		if (of->size == 4) attend_f32(of, &head, row, count, &scratch);
		else attend_f64(of, &head, row, count, &scratch);
	}
}

static void clear(void *out, const hr__type *type)
{
	uint64_t bytes = hr__type_bytes(type);
	if (bytes > 0) memset(out, 0, bytes);
}

/* Without keys the output is 0, and the logarithms are those of 0. */
static void attend_to_nothing(hr__work *work)
{
	int64_t count = hr__dims_count(&work->out_types[1].dims);
	clear(work->out[0], &work->out_types[0]);
	for (int64_t i = 0; i < count; i++) {
		if (work->out_types[1].dtype == HR_DTYPE_FLOAT32) ((float *)work->out[1])[i] = -INFINITY;
		else ((double *)work->out[1])[i] = (double)-INFINITY;
	}
}

static void attend(hr__work *work)
{
	struct attention of = attention_of(work->in_types, work->attrs);
	add_kernel(&of, work);
	if (of.columns == 0) attend_to_nothing(work);
	else hr__team_run(work->team, (uint32_t)least(jobs_of(&of, false), SLOTS), attend_slot, &of);
}

/* Calls [run] with float32 copies of what is bfloat16. */
static void run_wide(hr__work *work, void (*run)(hr__work *work))
{
	hr__work wide = *work;
	for (uint32_t i = 0; i < work->in_count; i++) hr__widen(&wide, i);
	for (uint32_t i = 0; i < work->out_count; i++) {
		uint64_t bytes = hr__wide_bytes(&work->out_types[i]);
		wide.out_types[i].dtype = hr__gradient_dtype(work->out_types[i].dtype);
		if (bytes == 0) continue;
		wide.out[i] = wide.scratch;
		wide.scratch = (char *)wide.scratch + bytes;
	}
	run(&wide);
	for (uint32_t i = 0; i < work->out_count; i++)
		if (wide.out[i] != work->out[i]) hr__narrow(work, wide.out[i], hr__dims_count(&work->out_types[i].dims), work->out[i]);
}

HR__RUN(attend)
{
	run_wide(work, attend);
}

static void go_back_slot(void *context, uint32_t slot)
{
	const struct attention *of = context;
	struct attention_scratch scratch;
	int64_t jobs = jobs_of(of, true), slots = least(jobs, SLOTS), each = divide(of, true, NULL, &scratch);
	divide(of, true, (char *)of->work->scratch + slot * each, &scratch);
	for (int64_t job = slot; job < jobs; job += slots) {
		struct attention_head head = head_of(of, job, 1);
		if (of->size == 4) go_back_f32(of, &head, &scratch);
		else go_back_f64(of, &head, &scratch);
	}
}

static void go_back(hr__work *work)
{
	struct attention of = attention_of(work->in_types + 1, work->attrs);
	add_kernel(&of, work);
	if (of.rows == 0 || of.columns == 0)
		for (int i = 0; i < 3; i++) clear(work->out[i], &work->out_types[i]);
	else hr__team_run(work->team, (uint32_t)least(jobs_of(&of, true), SLOTS), go_back_slot, &of);
}

HR__RUN(attend_grad)
{
	run_wide(work, go_back);
}

/* ---- gradients ---- */

/* As matmul's, gradients of bfloat16 attention are computed from a rounded one. */
HR__GRADIENT(attend)
{
	hr_value given = backward->grad_out[0];
	if (!hr__wanted(backward, 0) && !hr__wanted(backward, 1) && !hr__wanted(backward, 2)) return HR_OK;
	if (hr_value_dtype(given) != backward->out_types[0].dtype) given = hr_cast(given, backward->out_types[0].dtype);
	hr_value outs[3], ins[6] = { given, backward->in[0], backward->in[1], backward->in[2], backward->out[0], backward->out[1] };
	hr_status status = HR_OK;
	hr__call(HR__OP_ATTEND_GRAD, ins, 6, backward->attrs, outs);
	for (uint32_t i = 0; i < 3; i++) {
		if (status == HR_OK && hr__wanted(backward, i)) status = hr__give(backward, i, outs[i]);
		else hr_value_release(outs[i]);
	}
	return status;
}

/* ---- public calls ---- */

hr_value hr_attend(hr_value q, hr_value k, hr_value v, int64_t heads, double scale, bool causal)
{
	hr_value outs[2];
	hr__call(HR__OP_ATTEND, (const hr_value[]){ q, k, v }, 3, &(hr__attrs){ .count = heads, .a = scale, .keep = causal }, outs);
	hr_value_release(outs[1]);
	return outs[0];
}
