/* ops_reduce.c - sums, means and maxima along dimensions.
 *
 * The reduced dimensions are between the kept ones: outer x many x inner elements are reduced to outer x inner. A task reduces up
 * to COLUMNS neighboring output elements. If that gives few tasks, [many] is divided into blocks whose results are combined in
 * scratch memory. All of this depends on the shape alone, and so does the order of additions.
 *
 * Sums are blocked: at most 64 additions in the dtype's own precision, whose results are added in double. The error of a sum of a
 * billion float32 is that of a few dozen.
 *
 * sum_to may reduce several separate groups of dimensions; then each output element is summed individually. */
#include <float.h>
#include <math.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "runtime/kernels/bfloat16.h"
#include "runtime/ops/ops.h"

#define COLUMNS 64
#define LANES 16
#define ROUND 64 /* additions in a lane before it is added to the total */
#define CHUNK (LANES * ROUND)
#define FEW_TASKS 16
#define MOST_BLOCKS 64
#define BLOCK_ELEMENTS 65536

/* ---- types ---- */

/* The shape of the result. */
static hr_status reduced_dims(const hr__dims *in, const hr__attrs *attrs, hr__dims *out)
{
	int axis = 0;
	bool all = attrs->axis == HR_ALL_AXES;
	if (!all) {
		hr_status status = hr__need_axis(attrs->axis, in, &axis);
		if (status != HR_OK) return status;
	}
	hr__dims left = { 0 };
	for (int i = 0; i < in->rank; i++) {
		bool goes = all || i == axis;
		if (!goes || attrs->keep) left.d[left.rank++] = goes ? 1 : in->d[i];
	}
	*out = left;
	return HR_OK;
}

HR__INFER(reduce_number)
{
	(void)count;
	hr_status status = hr__need_number(&in[0]);
	out->dtype = in[0].dtype;
	return status == HR_OK ? reduced_dims(&in[0].dims, attrs, &out->dims) : status;
}

HR__INFER(reduce_float)
{
	hr_status status = hr__need_float(&in[0]);
	return status == HR_OK ? hr__infer_reduce_number(in, count, attrs, out) : status;
}

HR__INFER(sum_to)
{
	(void)count;
	hr__dims both;
	hr_status status = hr__need_element(&in[0]);
	if (status != HR_OK) return status;
	*out = (hr__type){ hr__computed_in(&in[0]), attrs->dims };
	if (!hr__dims_broadcast(&in[0].dims, &attrs->dims, &both)) return hr__misfit(&in[0].dims, &attrs->dims);
	if (hr__dims_equal(&both, &in[0].dims)) return HR_OK;
	char from[HR__DIMS_TEXT], to[HR__DIMS_TEXT];
	return hr__fail(HR_INVALID_ARGUMENT, "shape %s cannot be summed to %s, which is larger",
	                hr__dims_text(&in[0].dims, from, sizeof from), hr__dims_text(&attrs->dims, to, sizeof to));
}

/* ---- loops ---- */

/* An intermediate sum or maximum. */
typedef union total {
	double real;     /* floats */
	uint64_t whole;  /* sums of integers, modulo 2^64 */
	int64_t largest; /* maxima of integers */
} total;

/* Reduces [many] rows of [columns] neighbors each, [step] elements apart. Step 1 implies one column. */
typedef void (*partial)(const void *from, int64_t many, int64_t step, int64_t columns, total *totals);

#define SUM(a, b) ((a) + (b))
#define MAX(a, b) ((b) > (a) || (b) != (b) ? (b) : (a)) /* NaN wins */

#define PARTIAL(name, element, type, VALUE, field, first, JOIN)                                                      \
	static void name##_along(const element *x, int64_t many, total *totals)                             \
	{                                                                                                \
		for (int64_t at = 0; at < many; at += CHUNK) {                                               \
			int64_t count = many - at < CHUNK ? many - at : CHUNK, i = 0;                            \
			type lanes[LANES];                                                                       \
			for (int k = 0; k < LANES; k++) lanes[k] = first;                                        \
			for (; i + LANES <= count; i += LANES) {                                                 \
				for (int k = 0; k < LANES; k++) lanes[k] = (type)JOIN(lanes[k], VALUE(x[at + i + k]));      \
			}                                                                                        \
			for (int k = 0; i < count; i++, k++) lanes[k] = (type)JOIN(lanes[k], VALUE(x[at + i]));         \
			for (int k = 0; k < LANES; k++) totals->field = JOIN(totals->field, lanes[k]);           \
		}                                                                                            \
	}                                                                                                \
                                                                                                     \
	static void name(const void *from, int64_t many, int64_t step, int64_t columns, total *totals)   \
	{                                                                                                \
		const element *x = from;                                                                        \
		for (int64_t c = 0; c < columns; c++) totals[c].field = first;                               \
		if (step == 1) {                                                                             \
			name##_along(x, many, totals);                                                           \
			return;                                                                                  \
		}                                                                                            \
		for (int64_t at = 0; at < many; at += ROUND) {                                               \
			int64_t count = many - at < ROUND ? many - at : ROUND;                                   \
			type lanes[COLUMNS];                                                                     \
			for (int64_t c = 0; c < columns; c++) lanes[c] = first;                                  \
			for (int64_t i = at; i < at + count; i++) {                                              \
				const element *row = x + i * step;                                                      \
				for (int64_t c = 0; c < columns; c++) lanes[c] = (type)JOIN(lanes[c], VALUE(row[c]));       \
			}                                                                                        \
			for (int64_t c = 0; c < columns; c++) totals[c].field = JOIN(totals[c].field, lanes[c]); \
		}                                                                                            \
	}

/* Sums of integers wrap around, computed as unsigned, for which that is defined. */
PARTIAL(sum_f32, float, float, , real, 0, SUM)
PARTIAL(sum_b16, hr__bfloat16, float, hr__bfloat16_to_f32, real, 0, SUM)
PARTIAL(sum_f64, double, double, , real, 0, SUM)
PARTIAL(sum_u32, uint32_t, uint32_t, , whole, 0, SUM)
PARTIAL(sum_u64, uint64_t, uint64_t, , whole, 0, SUM)
PARTIAL(sum_u8, uint8_t, uint8_t, , whole, 0, SUM)
/* The maximum of nothing is the smallest value of the dtype. */
PARTIAL(max_f32, float, float, , real, -INFINITY, MAX)
PARTIAL(max_f64, double, double, , real, -INFINITY, MAX)
PARTIAL(max_i32, int32_t, int32_t, , largest, INT32_MIN, MAX)
PARTIAL(max_i64, int64_t, int64_t, , largest, INT64_MIN, MAX)
PARTIAL(max_u8, uint8_t, uint8_t, , largest, 0, MAX)

/* ---- reductions ---- */

struct reduction {
	hr__work *work;
	hr_dtype dtype;
	bool is_max, is_mean;
	partial loop;
	int64_t size, outer, many, inner;
	int64_t chunks;  /* number of chunks of COLUMNS in [inner] */
	int64_t blocks;  /* number of blocks of [many] */
	total *partials; /* outer x blocks x inner, if there are several blocks */
};

static partial loop_for(hr_dtype dtype, bool is_max)
{
	switch (dtype) {
	case HR_DTYPE_FLOAT32: return is_max ? max_f32 : sum_f32;
	case HR_DTYPE_FLOAT64: return is_max ? max_f64 : sum_f64;
	case HR_DTYPE_INT32: return is_max ? max_i32 : sum_u32;
	case HR_DTYPE_INT64: return is_max ? max_i64 : sum_u64;
	case HR_DTYPE_BFLOAT16: return sum_b16;
	default: return is_max ? max_u8 : sum_u8;
	}
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t up(int64_t x, int64_t unit)
{
	return (x + unit - 1) / unit;
}

/* Chooses the number of blocks. */
static void cut(struct reduction *reduction)
{
	int64_t wide = least(reduction->inner, COLUMNS);
	reduction->chunks = up(reduction->inner, COLUMNS);
	reduction->blocks = 1;
	if (wide == 0 || reduction->outer * reduction->chunks >= FEW_TASKS) return;
	int64_t rows = BLOCK_ELEMENTS / wide;
	if (reduction->many > rows) reduction->blocks = least(up(reduction->many, rows), MOST_BLOCKS);
}

static uint64_t scratch_of(const struct reduction *reduction)
{
	if (reduction->blocks == 1) return 0;
	return (uint64_t)(reduction->outer * reduction->blocks * reduction->inner) * sizeof(total);
}

static void join(const struct reduction *reduction, total *into, const total *other)
{
	bool real = hr__dtype_is_float(hr__gradient_dtype(reduction->dtype));
	if (!reduction->is_max && real) into->real += other->real;
	else if (!reduction->is_max) into->whole += other->whole;
	else if (real) into->real = MAX(into->real, other->real);
	else into->largest = MAX(into->largest, other->largest);
}

/* Writes output element [at]. */
static void finish(const struct reduction *reduction, int64_t at, const total *of)
{
	void *out = reduction->work->out[0];
	double real = reduction->is_mean ? of->real / (double)reduction->many : of->real;
	/* Integer sums and maxima are read through the same member: the low bits are the same. */
	switch (reduction->dtype) {
	case HR_DTYPE_BFLOAT16: /* its sums are float32 */
	case HR_DTYPE_FLOAT32: ((float *)out)[at] = (float)real; break;
	case HR_DTYPE_FLOAT64: ((double *)out)[at] = real; break;
	case HR_DTYPE_INT32: ((uint32_t *)out)[at] = (uint32_t)of->whole; break;
	case HR_DTYPE_INT64: ((uint64_t *)out)[at] = of->whole; break;
	default: ((uint8_t *)out)[at] = (uint8_t)of->whole;
	}
}

/* Reduces one block of one chunk of columns. */
static void task(const struct reduction *reduction, int64_t number)
{
	int64_t chunk = number % reduction->chunks, block = number / reduction->chunks % reduction->blocks;
	int64_t outer = number / reduction->chunks / reduction->blocks;
	int64_t each = up(reduction->many, reduction->blocks), begin = least(block * each, reduction->many);
	int64_t count = least(each, reduction->many - begin), column = chunk * COLUMNS,
			columns = least(COLUMNS, reduction->inner - column);
	const char *in = reduction->work->in[0];
	total totals[COLUMNS];
	in += ((outer * reduction->many + begin) * reduction->inner + column) * reduction->size;
	reduction->loop(in, count, reduction->inner, columns, totals);
	for (int64_t c = 0; c < columns; c++) {
		if (reduction->blocks == 1) finish(reduction, outer * reduction->inner + column + c, &totals[c]);
		else reduction->partials[(outer * reduction->blocks + block) * reduction->inner + column + c] = totals[c];
	}
}

static void task_range(void *context, int64_t begin, int64_t end)
{
	for (int64_t i = begin; i < end; i++) task(context, i);
}

static void join_range(void *context, int64_t begin, int64_t end)
{
	const struct reduction *reduction = context;
	for (int64_t at = begin; at < end; at++) {
		const total *from = reduction->partials + at / reduction->inner * reduction->blocks * reduction->inner +
		                    at % reduction->inner;
		total all = *from;
		for (int64_t block = 1; block < reduction->blocks; block++) join(reduction, &all, from + block * reduction->inner);
		finish(reduction, at, &all);
	}
}

static void run_reduction(struct reduction *reduction)
{
	hr__work *work = reduction->work;
	int64_t outputs = reduction->outer * reduction->inner, tasks = reduction->outer * reduction->blocks * reduction->chunks;
	if (outputs == 0) return;
	int64_t each = up(reduction->many, reduction->blocks) * least(reduction->inner, COLUMNS);
	reduction->partials = work->scratch;
	hr__each_range(work, tasks, hr__grain_of(HR__GRAIN, each), task_range, reduction);
	if (reduction->blocks > 1) hr__each_range(work, outputs, HR__GRAIN / MOST_BLOCKS, join_range, reduction);
}

/* ---- along an axis ---- */

static void set_axis(struct reduction *reduction, const hr__dims *dims, const hr__attrs *attrs)
{
	reduction->outer = reduction->inner = 1;
	reduction->many = hr__dims_count(dims);
	if (attrs->axis != HR_ALL_AXES) {
		int axis = hr__axis(attrs->axis, dims->rank);
		hr__around(dims, axis, &reduction->outer, &reduction->inner);
		reduction->many = dims->d[axis];
	}
	cut(reduction);
}

HR__SCRATCH(reduce_sum)
{
	struct reduction reduction = { .dtype = in[0].dtype };
	(void)out;
	set_axis(&reduction, &in[0].dims, attrs);
	return scratch_of(&reduction);
}

static struct reduction reduction_of(hr__work *work, bool is_max, bool is_mean)
{
	hr_dtype dtype = work->in_types[0].dtype;
	struct reduction reduction = { .work = work, .dtype = dtype, .is_max = is_max, .is_mean = is_mean };
	reduction.loop = loop_for(dtype, is_max);
	reduction.size = (int64_t)hr_dtype_size(dtype);
	return reduction;
}

static void run_along(hr__work *work, bool is_max, bool is_mean)
{
	struct reduction reduction = reduction_of(work, is_max, is_mean);
	set_axis(&reduction, &work->in_types[0].dims, work->attrs);
	run_reduction(&reduction);
}

HR__RUN(reduce_sum)
{
	run_along(work, false, false);
}

HR__RUN(reduce_mean)
{
	run_along(work, false, true);
}

HR__RUN(reduce_max)
{
	run_along(work, true, false);
}

/* ---- to a shape ---- */

/* Dimensions of the input; adjacent ones that are all reduced or all kept are merged. */
struct groups {
	int count;
	int64_t d[HR_SHAPE_MAX_RANK], step[HR_SHAPE_MAX_RANK];
	bool goes[HR_SHAPE_MAX_RANK];
};

static void group(const hr__dims *in, const hr__dims *to, struct groups *groups)
{
	groups->count = 0;
	for (int i = 0; i < in->rank; i++) {
		int own = i - (in->rank - to->rank), last = groups->count - 1;
		if (in->d[i] == 1) continue;
		bool goes = own < 0 || to->d[own] == 1;
		if (last < 0 || groups->goes[last] != goes) {
			last = groups->count++;
			groups->d[last] = 1;
			groups->goes[last] = goes;
		}
		groups->d[last] *= in->d[i];
	}
	int64_t step = 1;
	for (int i = groups->count; i-- > 0; step *= groups->d[i]) groups->step[i] = step;
}

/* Handles at most one reduced group; false if there are more. */
static bool set_groups(struct reduction *reduction, const struct groups *groups)
{
	int stretch = -1;
	reduction->outer = reduction->many = reduction->inner = 1;
	for (int i = 0; i < groups->count; i++) {
		if (groups->goes[i] && stretch >= 0) return false;
		if (groups->goes[i]) stretch = i;
	}
	for (int i = 0; i < groups->count; i++) {
		if (i < stretch) reduction->outer *= groups->d[i];
		else if (i == stretch) reduction->many = groups->d[i];
		else reduction->inner *= groups->d[i];
	}
	cut(reduction);
	return true;
}

HR__SCRATCH(sum_to)
{
	struct reduction reduction = { .dtype = in[0].dtype };
	struct groups groups;
	(void)attrs;
	group(&in[0].dims, &out->dims, &groups);
	return set_groups(&reduction, &groups) ? scratch_of(&reduction) : 0;
}

struct scattered {
	struct reduction reduction;
	struct groups groups;
	int last;      /* the last reduced group, which the loop sums */
	int64_t times; /* calls of the loop per output element */
};

/* Offset of call [number] for output element [at]. */
static int64_t offset_of(const struct scattered *scattered, int64_t at, int64_t number)
{
	const struct groups *groups = &scattered->groups;
	int64_t offset = 0;
	for (int i = groups->count; i-- > 0;) {
		if (i == scattered->last) continue;
		int64_t *index = groups->goes[i] ? &number : &at;
		offset += *index % groups->d[i] * groups->step[i];
		*index /= groups->d[i];
	}
	return offset;
}

static void scattered_range(void *context, int64_t begin, int64_t end)
{
	const struct scattered *scattered = context;
	const struct reduction *reduction = &scattered->reduction;
	const struct groups *groups = &scattered->groups;
	const char *in = reduction->work->in[0];
	for (int64_t at = begin; at < end; at++) {
		total all = { 0 }, one;
		for (int64_t number = 0; number < scattered->times; number++) {
			int64_t offset = offset_of(scattered, at, number);
			reduction->loop(in + offset * reduction->size, groups->d[scattered->last], groups->step[scattered->last], 1, &one);
			join(reduction, &all, &one);
		}
		finish(reduction, at, &all);
	}
}

HR__RUN(sum_to)
{
	struct scattered scattered = { .reduction = reduction_of(work, false, false), .times = 1 };
	struct groups *groups = &scattered.groups;
	group(&work->in_types[0].dims, &work->out_types[0].dims, groups);
	if (set_groups(&scattered.reduction, groups)) {
		run_reduction(&scattered.reduction);
		return;
	}
	for (int i = 0; i < groups->count; i++) {
		if (groups->goes[i]) scattered.last = i;
	}
	for (int i = 0; i < scattered.last; i++) {
		if (groups->goes[i]) scattered.times *= groups->d[i];
	}
	int64_t each = scattered.times * groups->d[scattered.last];
	hr__each_range(work, hr__dims_count(&work->out_types[0].dims), hr__grain_of(HR__GRAIN, each), scattered_range, &scattered);
}

/* ---- the gradient of a maximum ---- */

/* Inputs: the reduced value, its maxima, their gradients. */
HR__INFER(max_grad)
{
	(void)count;
	hr__type left = { in[0].dtype, { 0 } };
	hr_status status = hr__need_float(&in[0]);
	if (status == HR_OK) status = reduced_dims(&in[0].dims, attrs, &left.dims);
	for (int i = 1; i <= 2 && status == HR_OK; i++) {
		status = hr__need_same_dtype(&in[i], &left);
		if (status == HR_OK) status = hr__need_same_dims(&in[i], &left);
	}
	*out = in[0];
	return status;
}

/* Elements equal to the maximum share its gradient equally. Works in place: no element is read after it is written. */
#define SHARE(name, type)                                                                                              \
	static void name(const struct reduction *reduction, int64_t outer, int64_t column, int64_t columns)                \
	{                                                                                                                  \
		const hr__work *work = reduction->work;                                                                        \
		int64_t first = outer * reduction->many * reduction->inner + column, left = outer * reduction->inner + column; \
		const type *x = (const type *)work->in[0] + first, *most = (const type *)work->in[1] + left;                   \
		const type *grad = (const type *)work->in[2] + left;                                                           \
		type *out = (type *)work->out[0] + first, share[COLUMNS] = { 0 };                                              \
		for (int64_t i = 0; i < reduction->many; i++) {                                                                \
			for (int64_t c = 0; c < columns; c++) share[c] += x[i * reduction->inner + c] == most[c];                  \
		}                                                                                                              \
		for (int64_t c = 0; c < columns; c++) share[c] = grad[c] / (share[c] > 0 ? share[c] : 1);                      \
		for (int64_t i = 0; i < reduction->many; i++) {                                                                \
			for (int64_t c = 0; c < columns; c++) {                                                                    \
				int64_t at = i * reduction->inner + c;                                                                 \
				out[at] = x[at] == most[c] ? share[c] : 0;                                                             \
			}                                                                                                          \
		}                                                                                                              \
	}

SHARE(share_f32, float)
SHARE(share_f64, double)

static void share_range(void *context, int64_t begin, int64_t end)
{
	const struct reduction *reduction = context;
	for (int64_t i = begin; i < end; i++) {
		int64_t column = i % reduction->chunks * COLUMNS, columns = least(COLUMNS, reduction->inner - column);
		if (reduction->dtype == HR_DTYPE_FLOAT32) share_f32(reduction, i / reduction->chunks, column, columns);
		else share_f64(reduction, i / reduction->chunks, column, columns);
	}
}

HR__RUN(max_grad)
{
	struct reduction reduction = reduction_of(work, true, false);
	set_axis(&reduction, &work->in_types[0].dims, work->attrs);
	int64_t each = reduction.many * least(reduction.inner, COLUMNS);
	hr__each_range(work, reduction.outer * reduction.chunks, hr__grain_of(HR__GRAIN, each), share_range, &reduction);
}

/* ---- gradients ---- */

/* Broadcasts the gradient of the output to the shape of the input. */
static hr_value spread_out(const hr__backward *backward, hr_value grad)
{
	const hr__dims *dims = &backward->in_types[0].dims;
	hr__attrs kept = *backward->attrs;
	hr__dims ones;
	kept.keep = true;
	if (reduced_dims(dims, &kept, &ones) != HR_OK) return HR_NO_VALUE;
	return hr__broadcast_value(hr__reshape_to(grad, &ones), dims);
}

HR__GRADIENT(reduce_sum)
{
	return hr__wanted(backward, 0) ? hr__give(backward, 0, spread_out(backward, backward->grad_out[0])) : HR_OK;
}

HR__GRADIENT(reduce_mean)
{
	struct reduction reduction = { 0 };
	if (!hr__wanted(backward, 0)) return HR_OK;
	set_axis(&reduction, &backward->in_types[0].dims, backward->attrs);
	double share = reduction.many > 0 ? 1 / (double)reduction.many : 0;
	/* Scale before broadcasting: fewer elements. */
	return hr__give(backward, 0, spread_out(backward, hr_scale(backward->grad_out[0], share, 0)));
}

HR__GRADIENT(reduce_max)
{
	hr_value inputs[3] = { backward->in[0], backward->out[0], backward->grad_out[0] };
	return hr__wanted(backward, 0) ? hr__give(backward, 0, hr__call_one(HR__OP_MAX_GRAD, inputs, 3, backward->attrs)) : HR_OK;
}

HR__GRADIENT(sum_to)
{
	if (!hr__wanted(backward, 0)) return HR_OK;
	return hr__give(backward, 0, hr__broadcast_value(backward->grad_out[0], &backward->in_types[0].dims));
}

/* ---- public calls ---- */

#define CALL(name, kind)                                                              \
	hr_value name(hr_value x, int axis, bool keep)                                    \
	{                                                                                 \
		return hr__call_one(kind, &x, 1, &(hr__attrs){ .axis = axis, .keep = keep }); \
	}

CALL(hr_reduce_sum, HR__OP_REDUCE_SUM)
CALL(hr_reduce_mean, HR__OP_REDUCE_MEAN)
CALL(hr_reduce_max, HR__OP_REDUCE_MAX)
