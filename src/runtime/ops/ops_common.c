/* ops_common.c - see ops.h: ranges and walks of kernels, checks of types, helpers for gradients. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "runtime/engine/engine.h"
#include "runtime/kernels/bfloat16.h"
#include "runtime/ops/ops.h"

/* ---- ranges ---- */

#define MOST_PARTS 512

struct ranges {
	hr__range_function range;
	void *context;
	int64_t count, each;
};

static void run_part(void *context, uint32_t number)
{
	struct ranges *ranges = context;
	int64_t begin = (int64_t)number * ranges->each, left = ranges->count - begin;
	ranges->range(ranges->context, begin, begin + (left < ranges->each ? left : ranges->each));
}

void hr__each_range(hr__work *work, int64_t count, int64_t grain, hr__range_function range, void *context)
{
	HR_ASSERT(count >= 0 && grain > 0);
	if (count == 0) return;
	int64_t grains = (count - 1) / grain + 1;
	struct ranges ranges = { range, context, count, grain * ((grains - 1) / MOST_PARTS + 1) };
	uint32_t parts = (uint32_t)((count - 1) / ranges.each + 1);
	if (parts == 1) range(context, 0, count);
	else hr__team_run(work->team, parts, run_part, &ranges);
}

int64_t hr__grain_of(int64_t grain, int64_t wide)
{
	return wide >= grain ? 1 : wide <= 0 ? grain : grain / wide;
}

/* ---- bfloat16 ---- */

struct rounding {
	const void *from;
	void *to;
};

static void widen_range(void *context, int64_t begin, int64_t end)
{
	const struct rounding *rounding = context;
	for (int64_t i = begin; i < end; i++)
		((float *)rounding->to)[i] = hr__bfloat16_to_f32(((const hr__bfloat16 *)rounding->from)[i]);
}

static void narrow_range(void *context, int64_t begin, int64_t end)
{
	const struct rounding *rounding = context;
	for (int64_t i = begin; i < end; i++)
		((hr__bfloat16 *)rounding->to)[i] = hr__bfloat16_of_f32(((const float *)rounding->from)[i]);
}

uint64_t hr__wide_bytes(const hr__type *type)
{
	hr__type wide = { HR_DTYPE_FLOAT32, type->dims };
	return type->dtype == HR_DTYPE_BFLOAT16 ? (hr__type_bytes(&wide) + 63) / 64 * 64 : 0;
}

void hr__widen(hr__work *work, uint32_t i)
{
	hr__type *type = &work->in_types[i];
	struct rounding rounding = { work->in[i], work->scratch };
	uint64_t bytes = hr__wide_bytes(type);
	if (type->dtype != HR_DTYPE_BFLOAT16) return;
	hr__each_range(work, hr__dims_count(&type->dims), HR__GRAIN, widen_range, &rounding);
	work->in[i] = work->scratch;
	if (bytes > 0) work->scratch = (char *)work->scratch + bytes;
	type->dtype = HR_DTYPE_FLOAT32;
}

void hr__narrow(hr__work *work, const float *from, int64_t count, void *to)
{
	struct rounding rounding = { from, to };
	hr__each_range(work, count, HR__GRAIN, narrow_range, &rounding);
}

void hr__run_error(hr__work *work, const char *text)
{
	__atomic_store_n(&work->error, text, __ATOMIC_RELAXED);
}

void hr__range_error(hr__work *work, const char *text, int64_t index, int64_t choices)
{
	const char *none = NULL;
	if (!__atomic_compare_exchange_n(&work->error, &none, text, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
	work->wrong = index; /* of the first error only */
	work->choices = choices;
}

/* ---- walks ---- */

/* Steps of an input that is broadcast to [out]: 0 where an element repeats. */
void hr__broadcast_steps(const hr__dims *out, const hr__dims *in, int64_t *steps)
{
	int64_t step = 1;
	for (int i = out->rank; i-- > 0;) {
		int own = i - (out->rank - in->rank);
		int64_t d = own < 0 ? 1 : in->d[own];
		steps[i] = d == 1 ? 0 : step;
		step *= d;
	}
}

void hr__broadcast_make(const hr__dims *out, const hr__dims *a, const hr__dims *b, hr__broadcast *walk)
{
	int64_t of_a[HR_SHAPE_MAX_RANK], of_b[HR_SHAPE_MAX_RANK];
	hr__broadcast_steps(out, a, of_a);
	hr__broadcast_steps(out, b, of_b);
	int at = -1;
	for (int i = 0; i < out->rank; i++) {
		int64_t d = out->d[i];
		if (d == 1) continue;
		bool one = at >= 0 && walk->a[at] == d * of_a[i] && walk->b[at] == d * of_b[i];
		if (!one) walk->d[++at] = 1;
		walk->d[at] *= d;
		walk->a[at] = of_a[i];
		walk->b[at] = of_b[i];
	}
	if (at < 0) {
		at = 0;
		walk->d[0] = walk->a[0] = walk->b[0] = 1;
	}
	walk->rank = at + 1;
}

struct broadcast_position {
	int64_t index[HR_SHAPE_MAX_RANK], a, b;
};

static void seek(const hr__broadcast *walk, int64_t row, struct broadcast_position *place)
{
	place->a = place->b = 0;
	for (int i = walk->rank - 1; i-- > 0;) {
		place->index[i] = row % walk->d[i];
		row /= walk->d[i];
		place->a += place->index[i] * walk->a[i];
		place->b += place->index[i] * walk->b[i];
	}
}

static void next_row(const hr__broadcast *walk, struct broadcast_position *place)
{
	for (int i = walk->rank - 1; i-- > 0;) {
		place->a += walk->a[i];
		place->b += walk->b[i];
		if (++place->index[i] < walk->d[i]) return;
		place->index[i] = 0;
		place->a -= walk->d[i] * walk->a[i];
		place->b -= walk->d[i] * walk->b[i];
	}
}

void hr__broadcast_range(const hr__broadcast *walk, int64_t begin, int64_t end, hr__broadcast_row row, void *context)
{
	if (begin >= end) return;
	int last = walk->rank - 1;
	int64_t length = walk->d[last], within = begin % length;
	struct broadcast_position place;
	seek(walk, begin / length, &place);
	while (begin < end) {
		int64_t count = length - within < end - begin ? length - within : end - begin;
		row(context, begin, place.a + within * walk->a[last], place.b + within * walk->b[last], count);
		next_row(walk, &place);
		begin += count;
		within = 0;
	}
}

/* ---- bfloat16 ---- */

void hr__widen_piece(const void *bfloat16, float *to, int64_t count)
{
	const hr__bfloat16 *from = bfloat16;
	HR__INDEPENDENT for (int64_t i = 0; i < count; i++) to[i] = hr__bfloat16_to_f32(from[i]);
}

void hr__round_piece(const float *from, void *bfloat16, int64_t count)
{
	hr__bfloat16 *to = bfloat16;
	HR__INDEPENDENT for (int64_t i = 0; i < count; i++) to[i] = hr__bfloat16_of_f32(from[i]);
}

hr_dtype hr__computed_in(const hr__type *type)
{
	return hr__gradient_dtype(type->dtype);
}

/* ---- checks ---- */

static hr_status wrong_dtype(hr_dtype dtype, const char *these)
{
	return hr__fail(HR_INVALID_ARGUMENT, "dtype is %s; it takes %s", hr_dtype_text(dtype), these);
}

/* The same for ops that compute; mentions the cast that bfloat16 needs. */
static hr_status not_computed_with(hr_dtype dtype, const char *these)
{
	if (dtype != HR_DTYPE_BFLOAT16) return wrong_dtype(dtype, these);
	return hr__fail(HR_INVALID_ARGUMENT, "dtype is bfloat16; it takes %s; hr_cast to float32 first", these);
}

hr_status hr__need_float(const hr__type *type)
{
	return hr__dtype_is_float(type->dtype) ? HR_OK : not_computed_with(type->dtype, "float32 and float64");
}

hr_status hr__need_real(const hr__type *type)
{
	return hr__dtype_is_float(hr__computed_in(type)) ? HR_OK : wrong_dtype(type->dtype, "float32, float64 and bfloat16");
}

hr_status hr__need_element(const hr__type *type)
{
	return hr__dtype_is_number(hr__computed_in(type)) ? HR_OK : wrong_dtype(type->dtype, "float32, float64, int32, int64, uint8 and bfloat16");
}

hr_status hr__need_elements(const hr__type *a, const hr__type *b, hr_dtype *out)
{
	*out = a->dtype == b->dtype ? a->dtype : hr__computed_in(a);
	return hr__computed_in(a) == hr__computed_in(b) ? HR_OK : hr__need_same_dtype(a, b);
}

hr_status hr__need_rows(const hr__type *type)
{
	hr_status status = hr__need_float(type);
	if (status != HR_OK || type->dims.rank > 0) return status;
	return hr__fail(HR_INVALID_ARGUMENT, "shape [] has no last dimension");
}

hr_status hr__need_number(const hr__type *type)
{
	return hr__dtype_is_number(type->dtype) ? HR_OK : not_computed_with(type->dtype, "float32, float64, int32, int64 and uint8");
}

hr_status hr__need_index(const hr__type *type)
{
	return hr__dtype_is_index(type->dtype) ? HR_OK : wrong_dtype(type->dtype, "int32 and int64 as indices");
}

hr_status hr__need_any(hr_dtype dtype)
{
	if (hr__dtype_is_number(dtype) || dtype == HR_DTYPE_BOOL || dtype == HR_DTYPE_BFLOAT16) return HR_OK;
	return wrong_dtype(dtype, "float32, float64, int32, int64, uint8, bool and bfloat16");
}

hr_status hr__need_same_dtype(const hr__type *a, const hr__type *b)
{
	if (a->dtype == b->dtype) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "dtypes %s and %s differ; hr_cast makes them the same", hr_dtype_text(a->dtype),
	                hr_dtype_text(b->dtype));
}

hr_status hr__need_same_dims(const hr__type *a, const hr__type *b)
{
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	if (hr__dims_equal(&a->dims, &b->dims)) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "shapes %s and %s differ", hr__dims_text(&a->dims, left, sizeof left),
	                hr__dims_text(&b->dims, right, sizeof right));
}

hr_status hr__misfit(const hr__dims *a, const hr__dims *b)
{
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	hr__dims_text(a, left, sizeof left);
	hr__dims_text(b, right, sizeof right);
	int rank = a->rank > b->rank ? a->rank : b->rank;
	for (int i = rank; i-- > 0;) {
		int of_a = i - (rank - a->rank), of_b = i - (rank - b->rank);
		int64_t x = of_a < 0 ? 1 : a->d[of_a], y = of_b < 0 ? 1 : b->d[of_b];
		if (x == y || x == 1 || y == 1) continue;
		return hr__fail(HR_INVALID_ARGUMENT, "shapes %s and %s are incompatible: dimension %d is %" PRId64 " and %" PRId64, left, right,
		                i, x, y);
	}
	return hr__fail(HR_INVALID_ARGUMENT, "shapes %s and %s make one of more than 2^60 elements", left, right);
}

int hr__axis(int axis, int rank)
{
	if (axis < 0) axis += rank;
	return axis >= 0 && axis < rank ? axis : -1;
}

hr_status hr__need_axis(int axis, const hr__dims *dims, int *out)
{
	char text[HR__DIMS_TEXT];
	*out = hr__axis(axis, dims->rank);
	if (*out >= 0) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "shape %s has no dimension %d", hr__dims_text(dims, text, sizeof text), axis);
}

void hr__around(const hr__dims *dims, int axis, int64_t *before, int64_t *behind)
{
	*before = *behind = 1;
	for (int i = 0; i < axis; i++) *before *= dims->d[i];
	for (int i = axis + 1; i < dims->rank; i++) *behind *= dims->d[i];
}

/* ---- refused op calls ---- */

static bool all_are_values(const hr_value *inputs, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		if (inputs[i].id == 0) return false;
	}
	return true;
}

/* Consumes temporary inputs, as every op call does. */
static void consume(const hr_value *inputs, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) hr__value_consume(inputs[i]);
}

hr_value hr__op_refuse(const hr_value *inputs, uint32_t count, const char *name, const char *format, ...)
{
	char text[512];
	va_list list;
	va_start(list, format);
	vsnprintf(text, sizeof text, format, list);
	va_end(list);
	bool fresh = all_are_values(inputs, count);
	consume(inputs, count);
	if (fresh) hr__name_op(hr__fail(HR_INVALID_ARGUMENT, "%s", text), name, hr_name_scope_current());
	return HR_NO_VALUE;
}

hr_value hr__op_refuse_in(const hr_value *inputs, uint32_t count, const char *name)
{
	consume(inputs, count);
	hr__name_op(hr_last_status(), name, hr_name_scope_current());
	return HR_NO_VALUE;
}

/* ---- gradients ---- */

hr_value hr__wide_value(hr_value value)
{
	return value.id && hr_value_dtype(value) == HR_DTYPE_BFLOAT16 ? hr_cast(value, HR_DTYPE_FLOAT32) : value;
}

hr_status hr__give(hr__backward *backward, uint32_t i, hr_value value)
{
	if (backward->in_types[i].dtype != HR_DTYPE_BFLOAT16) value = hr__wide_value(value);
	backward->grad_in[i] = value;
	if (value.id != 0) return HR_OK;
	for (uint32_t k = 0; k < backward->in_count; k++) {
		hr_value_release(backward->grad_in[k]);
		backward->grad_in[k] = HR_NO_VALUE;
	}
	return hr_last_status();
}

bool hr__wanted(const hr__backward *backward, uint32_t i)
{
	hr_dtype dtype = hr__gradient_dtype(backward->in_types[i].dtype);
	return backward->wanted[i] && backward->grad_out[0].id != 0 && hr__dtype_is_float(dtype);
}

hr_value hr__reshape_to(hr_value value, const hr__dims *dims)
{
	return hr__call_one(HR__OP_RESHAPE, &value, 1, &(hr__attrs){ .dims = *dims });
}

hr_value hr__broadcast_value(hr_value value, const hr__dims *dims)
{
	return hr__call_one(HR__OP_BROADCAST_TO, &value, 1, &(hr__attrs){ .dims = *dims });
}

hr_value hr__sum_to(hr_value value, const hr__dims *of, const hr__dims *to)
{
	if (hr__dims_count(of) == hr__dims_count(to) && hr__dims_count(of) > 0) return hr__reshape_to(value, to);
	if (hr__dims_equal(of, to)) return hr__reshape_to(value, to);
	return hr__call_one(HR__OP_SUM_TO, &value, 1, &(hr__attrs){ .dims = *to });
}
