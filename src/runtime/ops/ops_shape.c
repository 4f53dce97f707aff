/* ops_shape.c - ops that move elements without computing. They support every dtype and depend only on its size. */
#include <inttypes.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "runtime/ops/ops.h"

#define COPY_GRAIN (8 * HR__GRAIN) /* bytes */

static int64_t size_of(const hr__type *type)
{
	return (int64_t)hr_dtype_size(type->dtype);
}

/* ---- reshape ---- */

HR__INFER(reshape)
{
	(void)count;
	char from[HR__DIMS_TEXT], to[HR__DIMS_TEXT];
	hr_status status = hr__need_any(in[0].dtype);
	if (status != HR_OK) return status;
	*out = (hr__type){ in[0].dtype, attrs->dims };
	int64_t all = hr__dims_count(&in[0].dims), known = 1;
	int open = -1;
	for (int i = 0; i < attrs->dims.rank; i++) {
		if (attrs->dims.d[i] == -1) open = i;
		else known *= attrs->dims.d[i];
	}
	if (open >= 0 && known > 0) out->dims.d[open] = all / known;
	if (open >= 0 ? known > 0 && all % known == 0 : hr__dims_count(&out->dims) == all) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "shape %s has %" PRId64 " elements, which do not fill shape %s",
	                hr__dims_text(&in[0].dims, from, sizeof from), all, hr__dims_text(&attrs->dims, to, sizeof to));
}

HR__GRADIENT(reshape)
{
	if (!hr__wanted(backward, 0)) return HR_OK;
	return hr__give(backward, 0, hr__reshape_to(backward->grad_out[0], &backward->in_types[0].dims));
}

hr_value hr_reshape(hr_value x, const int64_t *dims, int rank)
{
	if (!x.id) return x; /* keep the earlier message */
	hr__attrs attrs = { 0 };
	int64_t closed[HR_SHAPE_MAX_RANK] = { 0 };
	int open = -1;
	for (int i = 0; i < rank && i < HR_SHAPE_MAX_RANK && dims != NULL; i++) {
		closed[i] = dims[i];
		if (dims[i] != -1) continue;
		if (open >= 0) return hr__op_refuse(&x, 1, "reshape", "dimensions %d and %d are both -1", open, i);
		open = i;
		closed[i] = 1;
	}
	if (hr__dims_make(dims == NULL ? NULL : closed, rank, &attrs.dims) != HR_OK) return hr__op_refuse_in(&x, 1, "reshape");
	if (open >= 0) attrs.dims.d[open] = -1;
	return hr__call_one(HR__OP_RESHAPE, &x, 1, &attrs);
}

/* ---- transpose ---- */

/* Whether an order names each dimension once. */
static bool is_order(const int *order, int rank)
{
	unsigned seen = 0;
	for (int i = 0; i < rank; i++) {
		if (order[i] < 0 || order[i] >= rank || (seen >> order[i] & 1)) return false;
		seen |= 1u << order[i];
	}
	return true;
}

HR__INFER(transpose)
{
	(void)count;
	char text[HR__DIMS_TEXT];
	hr_status status = hr__need_any(in[0].dtype);
	if (status != HR_OK) return status;
	/* The rank of the order is in dims. */
	if (attrs->dims.rank != in[0].dims.rank) {
		return hr__fail(HR_INVALID_ARGUMENT, "shape %s has %d dimensions, the order %d",
		                hr__dims_text(&in[0].dims, text, sizeof text), in[0].dims.rank, attrs->dims.rank);
	}
	*out = in[0];
	for (int i = 0; i < out->dims.rank; i++) out->dims.d[i] = in[0].dims.d[attrs->order[i]];
	return HR_OK;
}

/* The dimensions of the output, with their steps in the input and in the output. Dimensions that stay adjacent are merged. */
struct turn {
	int rank;
	int64_t d[HR_SHAPE_MAX_RANK], from[HR_SHAPE_MAX_RANK], to[HR_SHAPE_MAX_RANK];
	int fast; /* the input's last dimension; if it is not the output's last too, tiles are transposed */
	int64_t size;
	const char *in;
	char *out;
};

static void turn_make(const hr__work *work, struct turn *turn)
{
	const hr__dims *in = &work->in_types[0].dims, *out = &work->out_types[0].dims;
	int64_t steps[HR_SHAPE_MAX_RANK], step = 1;
	for (int i = in->rank; i-- > 0; step *= in->d[i]) steps[i] = step;
	int at = -1;
	for (int i = 0; i < out->rank; i++) {
		int64_t d = out->d[i], own = steps[work->attrs->order[i]];
		if (d == 1) continue;
		bool one = at >= 0 && turn->from[at] == d * own;
		if (!one) turn->d[++at] = 1;
		turn->d[at] *= d;
		turn->from[at] = own;
	}
	if (at < 0) {
		at = 0;
		turn->d[0] = turn->from[0] = 1;
	}
	turn->rank = at + 1;
	step = 1;
	for (int i = turn->rank; i-- > 0; step *= turn->d[i]) {
		turn->to[i] = step;
		if (turn->from[i] == 1) turn->fast = i;
	}
	turn->size = size_of(&work->out_types[0]);
	turn->in = work->in[0];
	turn->out = work->out[0];
}

#define TILE 32

/* Transposes a tile: [wide] elements along the output's last dimension, [high] along the input's. */
#define TURN_TILE(type)                                                                \
	do {                                                                               \
		const type *in = (const type *)turn->in + from;                                \
		type *out = (type *)turn->out + to;                                            \
		for (int64_t y = 0; y < high; y++) {                                           \
			for (int64_t x = 0; x < wide; x++) out[y * down + x] = in[x * across + y]; \
		}                                                                              \
	} while (0)

static void turn_tile(const struct turn *turn, int64_t from, int64_t to, int64_t high, int64_t wide)
{
	int64_t across = turn->from[turn->rank - 1], down = turn->to[turn->fast];
	switch (turn->size) {
	case 1: TURN_TILE(uint8_t); break;
	case 2: TURN_TILE(uint16_t); break;
	case 4: TURN_TILE(uint32_t); break;
	default: TURN_TILE(uint64_t);
	}
}

/* A strip of the plane spanned by the last dimensions of input and output; if they are the same, a row. */
static void turn_strip(const struct turn *turn, int64_t from, int64_t to, int64_t first)
{
	int last = turn->rank - 1;
	if (turn->fast == last) {
		memcpy(turn->out + to * turn->size, turn->in + from * turn->size, (size_t)(turn->d[last] * turn->size));
		return;
	}
	int64_t left = turn->d[turn->fast] - first, high = left < TILE ? left : TILE;
	from += first * turn->from[turn->fast];
	to += first * turn->to[turn->fast];
	for (int64_t x = 0; x < turn->d[last]; x += TILE) {
		int64_t wide = turn->d[last] - x < TILE ? turn->d[last] - x : TILE;
		turn_tile(turn, from + x * turn->from[last], to + x, high, wide);
	}
}

static int64_t strips_of(const struct turn *turn)
{
	return turn->fast == turn->rank - 1 ? 1 : (turn->d[turn->fast] + TILE - 1) / TILE;
}

/* Strips are numbered plane by plane; planes by all other dimensions. */
static void turn_range(void *context, int64_t begin, int64_t end)
{
	const struct turn *turn = context;
	int64_t strips = strips_of(turn);
	for (int64_t number = begin; number < end; number++) {
		int64_t plane = number / strips, from = 0, to = 0;
		for (int i = turn->rank - 1; i-- > 0;) {
			if (i == turn->fast) continue;
			from += plane % turn->d[i] * turn->from[i];
			to += plane % turn->d[i] * turn->to[i];
			plane /= turn->d[i];
		}
		turn_strip(turn, from, to, number % strips * TILE);
	}
}

HR__RUN(transpose)
{
	int64_t count = hr__dims_count(&work->out_types[0].dims);
	if (count == 0) return;
	struct turn turn = { 0 };
	turn_make(work, &turn);
	int64_t last = turn.d[turn.rank - 1], plane = turn.fast == turn.rank - 1 ? last : last * turn.d[turn.fast];
	int64_t strip = turn.fast == turn.rank - 1 ? last : last * TILE;
	hr__each_range(work, count / plane * strips_of(&turn), hr__grain_of(HR__GRAIN, strip), turn_range, &turn);
}

HR__GRADIENT(transpose)
{
	int back[HR_SHAPE_MAX_RANK], rank = backward->attrs->dims.rank;
	if (!hr__wanted(backward, 0)) return HR_OK;
	for (int i = 0; i < rank; i++) back[backward->attrs->order[i]] = i;
	return hr__give(backward, 0, hr_transpose(backward->grad_out[0], back, rank));
}

hr_value hr_transpose(hr_value x, const int *order, int rank)
{
	hr__attrs attrs = { .dims.rank = rank };
	if (rank < 0 || rank > HR_SHAPE_MAX_RANK)
		return hr__op_refuse(&x, 1, "transpose", "a shape has 0 to %d dimensions, not %d", HR_SHAPE_MAX_RANK, rank);
	if (rank > 0 && (order == NULL || !is_order(order, rank))) {
		return hr__op_refuse(&x, 1, "transpose", "the order must name each of dimensions 0 to %d once", rank - 1);
	}
	for (int i = 0; i < rank; i++) attrs.order[i] = order[i];
	return hr__call_one(HR__OP_TRANSPOSE, &x, 1, &attrs);
}

/* ---- blocks, copied by concat, slice and pad ---- */

/* Pieces of [bytes], [from_step] apart in the input and [to_step] apart in the output. */
struct blocks {
	const char *from;
	char *to;
	int64_t bytes, from_step, to_step;
};

static void blocks_range(void *context, int64_t begin, int64_t end)
{
	const struct blocks *blocks = context;
	for (int64_t i = begin; i < end; i++) {
		memcpy(blocks->to + i * blocks->to_step, blocks->from + i * blocks->from_step, (size_t)blocks->bytes);
	}
}

static void bytes_range(void *context, int64_t begin, int64_t end)
{
	const struct blocks *blocks = context;
	memcpy(blocks->to + begin, blocks->from + begin, (size_t)(end - begin));
}

static void copy_blocks(hr__work *work, struct blocks *blocks, int64_t rows)
{
	if (rows == 0 || blocks->bytes == 0) return;
	if (rows == 1) hr__each_range(work, blocks->bytes, COPY_GRAIN, bytes_range, blocks);
	else hr__each_range(work, rows, hr__grain_of(COPY_GRAIN, blocks->bytes), blocks_range, blocks);
}

/* ---- concat ---- */

/* Checks that [other] has the type of [first], except along [axis]. */
static hr_status need_beside(const hr__type *first, const hr__type *other, int axis)
{
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	hr_status status = hr__need_same_dtype(first, other);
	if (status != HR_OK) return status;
	hr__dims_text(&first->dims, left, sizeof left);
	hr__dims_text(&other->dims, right, sizeof right);
	if (first->dims.rank != other->dims.rank) {
		return hr__fail(HR_INVALID_ARGUMENT, "shapes %s and %s have different numbers of dimensions", left, right);
	}
	for (int i = 0; i < first->dims.rank; i++) {
		if (i == axis || first->dims.d[i] == other->dims.d[i]) continue;
		return hr__fail(HR_INVALID_ARGUMENT,
		                "shapes %s and %s are incompatible along dimension %d: dimension %d is %" PRId64 " and %" PRId64, left, right,
		                axis, i, first->dims.d[i], other->dims.d[i]);
	}
	return HR_OK;
}

HR__INFER(concat)
{
	int axis;
	hr_status status = hr__need_any(in[0].dtype);
	if (status == HR_OK) status = hr__need_axis(attrs->axis, &in[0].dims, &axis);
	if (status != HR_OK) return status;
	hr__dims dims = in[0].dims;
	for (uint32_t i = 1; i < count && status == HR_OK; i++) {
		status = need_beside(&in[0], &in[i], axis);
		if (status == HR_OK) dims.d[axis] += in[i].dims.d[axis];
	}
	/* Check the limits again: the concatenation may exceed them. */
	out->dtype = in[0].dtype;
	return status == HR_OK ? hr__dims_make(dims.d, dims.rank, &out->dims) : status;
}

HR__RUN(concat)
{
	const hr__dims *dims = &work->out_types[0].dims;
	int axis = hr__axis(work->attrs->axis, dims->rank);
	int64_t before, behind, at = 0, size = size_of(&work->out_types[0]);
	hr__around(dims, axis, &before, &behind);
	for (uint32_t i = 0; i < work->in_count; i++) {
		int64_t bytes = work->in_types[i].dims.d[axis] * behind * size;
		struct blocks blocks = { work->in[i], (char *)work->out[0] + at, bytes, bytes, dims->d[axis] * behind * size };
		copy_blocks(work, &blocks, before);
		at += bytes;
	}
}

HR__GRADIENT(concat)
{
	int axis = hr__axis(backward->attrs->axis, backward->out_types[0].dims.rank);
	int64_t begin = 0;
	for (uint32_t i = 0; i < backward->in_count; i++) {
		int64_t count = backward->in_types[i].dims.d[axis];
		hr_status status = HR_OK;
		if (hr__wanted(backward, i)) status = hr__give(backward, i, hr_slice(backward->grad_out[0], axis, begin, count));
		if (status != HR_OK) return status;
		begin += count;
	}
	return HR_OK;
}

hr_value hr_concat(const hr_value *values, int count, int axis)
{
	if (values == NULL || count < 1) return hr__op_refuse(NULL, 0, "concat", "there are no values to join");
	if (count > HR__OP_INPUTS) {
		return hr__op_refuse(values, (uint32_t)count, "concat", "it takes up to %d values, not %d; join some of them first",
		                     HR__OP_INPUTS, count);
	}
	return hr__call_one(HR__OP_CONCAT, values, (uint32_t)count, &(hr__attrs){ .axis = axis });
}

/* ---- slice and pad ---- */

HR__INFER(slice)
{
	(void)count;
	char text[HR__DIMS_TEXT];
	int axis;
	hr_status status = hr__need_any(in[0].dtype);
	if (status == HR_OK) status = hr__need_axis(attrs->axis, &in[0].dims, &axis);
	if (status != HR_OK) return status;
	int64_t all = in[0].dims.d[axis];
	if (attrs->begin < 0 || attrs->count < 0 || attrs->begin > all || attrs->count > all - attrs->begin) {
		return hr__fail(HR_INVALID_ARGUMENT,
		                "shape %s has %" PRId64 " elements along dimension %d, not %" PRId64 " from %" PRId64 " on",
		                hr__dims_text(&in[0].dims, text, sizeof text), all, axis, attrs->count, attrs->begin);
	}
	*out = in[0];
	out->dims.d[axis] = attrs->count;
	return HR_OK;
}

HR__RUN(slice)
{
	const hr__dims *dims = &work->in_types[0].dims;
	int axis = hr__axis(work->attrs->axis, dims->rank);
	int64_t before, behind, size = size_of(&work->in_types[0]);
	hr__around(dims, axis, &before, &behind);
	int64_t unit = behind * size, bytes = work->attrs->count * unit;
	struct blocks blocks = { (const char *)work->in[0] + work->attrs->begin * unit, work->out[0], bytes, dims->d[axis] * unit,
		                     bytes };
	copy_blocks(work, &blocks, before);
}

HR__GRADIENT(slice)
{
	if (!hr__wanted(backward, 0)) return HR_OK;
	hr__attrs attrs = { .axis = backward->attrs->axis, .begin = backward->attrs->begin, .dims = backward->in_types[0].dims };
	return hr__give(backward, 0, hr__call_one(HR__OP_PAD, &backward->grad_out[0], 1, &attrs));
}

hr_value hr_slice(hr_value x, int axis, int64_t begin, int64_t count)
{
	return hr__call_one(HR__OP_SLICE, &x, 1, &(hr__attrs){ .axis = axis, .begin = begin, .count = count });
}

/* Zeros of shape attrs.dims with the input at attrs.begin along attrs.axis. */
HR__INFER(pad)
{
	(void)count;
	int axis;
	char from[HR__DIMS_TEXT], to[HR__DIMS_TEXT];
	const hr__dims *dims = &attrs->dims;
	hr_status status = hr__need_any(in[0].dtype);
	if (status == HR_OK) status = hr__need_axis(attrs->axis, dims, &axis);
	if (status != HR_OK) return status;
	bool fits = in[0].dims.rank == dims->rank;
	for (int i = 0; i < dims->rank && fits; i++) fits = i == axis || in[0].dims.d[i] == dims->d[i];
	if (!fits || attrs->begin < 0 || attrs->begin > dims->d[axis] || in[0].dims.d[axis] > dims->d[axis] - attrs->begin) {
		return hr__fail(HR_INVALID_ARGUMENT, "shape %s does not fit into %s from %" PRId64 " on along dimension %d",
		                hr__dims_text(&in[0].dims, from, sizeof from), hr__dims_text(dims, to, sizeof to), attrs->begin, axis);
	}
	*out = (hr__type){ in[0].dtype, *dims };
	return HR_OK;
}

static void zero_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	memset((char *)work->out[0] + begin, 0, (size_t)(end - begin));
}

HR__RUN(pad)
{
	const hr__dims *dims = &work->out_types[0].dims;
	int axis = hr__axis(work->attrs->axis, dims->rank);
	int64_t before, behind, size = size_of(&work->out_types[0]);
	hr__around(dims, axis, &before, &behind);
	int64_t unit = behind * size, bytes = work->in_types[0].dims.d[axis] * unit;
	hr__each_range(work, (int64_t)hr__type_bytes(&work->out_types[0]), COPY_GRAIN, zero_range, work);
	struct blocks blocks = { work->in[0], (char *)work->out[0] + work->attrs->begin * unit, bytes, bytes, dims->d[axis] * unit };
	copy_blocks(work, &blocks, before);
}

HR__GRADIENT(pad)
{
	if (!hr__wanted(backward, 0)) return HR_OK;
	const hr__attrs *attrs = backward->attrs;
	const hr__dims *dims = &backward->in_types[0].dims;
	int64_t count = dims->d[hr__axis(attrs->axis, dims->rank)];
	return hr__give(backward, 0, hr_slice(backward->grad_out[0], attrs->axis, attrs->begin, count));
}

/* ---- broadcast ---- */

HR__INFER(broadcast_to)
{
	(void)count;
	char from[HR__DIMS_TEXT], to[HR__DIMS_TEXT];
	hr_status status = hr__need_any(in[0].dtype);
	if (status != HR_OK) return status;
	out->dtype = in[0].dtype;
	if (!hr__dims_broadcast(&in[0].dims, &attrs->dims, &out->dims)) return hr__misfit(&in[0].dims, &attrs->dims);
	if (hr__dims_equal(&out->dims, &attrs->dims)) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "shape %s cannot be broadcast to %s, which is smaller",
	                hr__dims_text(&in[0].dims, from, sizeof from), hr__dims_text(&attrs->dims, to, sizeof to));
}

struct spread {
	hr__work *work;
	hr__broadcast walk;
	int64_t size;
};

#define SPREAD(type)                                         \
	do {                                                     \
		type value = *(const type *)from, *out = (type *)to; \
		for (int64_t i = 0; i < count; i++) out[i] = value;  \
	} while (0)

static void spread_row(void *context, int64_t out_at, int64_t in_at, int64_t unused, int64_t count)
{
	struct spread *spread = context;
	const char *from = (const char *)spread->work->in[0] + in_at * spread->size;
	char *to = (char *)spread->work->out[0] + out_at * spread->size;
	(void)unused;
	if (spread->walk.a[spread->walk.rank - 1] != 0) {
		memcpy(to, from, (size_t)(count * spread->size));
		return;
	}
	switch (spread->size) {
	case 1: memset(to, *from, (size_t)count); break;
	case 2: SPREAD(uint16_t); break;
	case 4: SPREAD(uint32_t); break;
	default: SPREAD(uint64_t);
	}
}

static void spread_range(void *context, int64_t begin, int64_t end)
{
	struct spread *spread = context;
	hr__broadcast_range(&spread->walk, begin, end, spread_row, spread);
}

HR__RUN(broadcast_to)
{
	struct spread spread = { .work = work, .size = size_of(&work->out_types[0]) };
	hr__broadcast_make(&work->out_types[0].dims, &work->in_types[0].dims, &work->in_types[0].dims, &spread.walk);
	hr__each_range(work, hr__dims_count(&work->out_types[0].dims), HR__GRAIN, spread_range, &spread);
}

HR__GRADIENT(broadcast_to)
{
	if (!hr__wanted(backward, 0)) return HR_OK;
	return hr__give(backward, 0, hr__sum_to(backward->grad_out[0], &backward->out_types[0].dims, &backward->in_types[0].dims));
}

hr_value hr_broadcast_to(hr_value x, const int64_t *dims, int rank)
{
	if (!x.id) return x; /* keep the earlier message */
	hr__attrs attrs = { 0 };
	if (hr__dims_make(dims, rank, &attrs.dims) != HR_OK) return hr__op_refuse_in(&x, 1, "broadcast_to");
	return hr__call_one(HR__OP_BROADCAST_TO, &x, 1, &attrs);
}

/* ---- copy ---- */

HR__INFER(copy)
{
	(void)count, (void)attrs;
	*out = in[0];
	return hr__need_any(in[0].dtype);
}

static void copy_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	memcpy((char *)work->out[0] + begin, (const char *)work->in[0] + begin, (size_t)(end - begin));
}

HR__RUN(copy)
{
	hr__each_range(work, (int64_t)hr__type_bytes(&work->out_types[0]), COPY_GRAIN, copy_range, work);
}

HR__GRADIENT(copy)
{
	if (!hr__wanted(backward, 0)) return HR_OK;
	return hr__give(backward, 0, hr__reshape_to(backward->grad_out[0], &backward->in_types[0].dims));
}
