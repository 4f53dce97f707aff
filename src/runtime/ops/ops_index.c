/* ops_index.c - rows by index. An index out of range is an error of the run: nothing is read, and the result has zeros. */
#include <string.h>

#include "core/base/status.h"
#include "runtime/kernels/bfloat16.h"
#include "runtime/ops/ops.h"

#define OUT_OF_RANGE "an index is out of range"

static int64_t index_at(const hr__work *work, uint32_t input, int64_t i)
{
	const void *indices = work->in[input];
	return work->in_types[input].dtype == HR_DTYPE_INT32 ? ((const int32_t *)indices)[i] : ((const int64_t *)indices)[i];
}

/* Elements of a row: the product of all dimensions but the first. */
static int64_t row_elements(const hr__dims *table)
{
	int64_t before, behind;
	hr__around(table, 0, &before, &behind);
	return behind;
}

/* ---- gather ---- */

/* The shape of the rows of [table] selected by [indices]. */
static hr_status gathered_dims(const hr__dims *table, const hr__dims *indices, hr__dims *out)
{
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	int64_t d[2 * HR_SHAPE_MAX_RANK];
	int rank = 0;
	hr__dims_text(table, left, sizeof left);
	hr__dims_text(indices, right, sizeof right);
	if (table->rank == 0) return hr__fail(HR_INVALID_ARGUMENT, "shape [] has no rows for indices %s", right);
	for (int i = 0; i < indices->rank; i++) d[rank++] = indices->d[i];
	for (int i = 1; i < table->rank; i++) d[rank++] = table->d[i];
	if (rank > HR_SHAPE_MAX_RANK) {
		return hr__fail(HR_INVALID_ARGUMENT, "rows of shape %s by indices of shape %s have %d dimensions; there can be %d", left,
		                right, rank, HR_SHAPE_MAX_RANK);
	}
	return hr__dims_make(d, rank, out);
}

HR__INFER(gather)
{
	(void)count, (void)attrs;
	hr_status status = hr__need_any(in[0].dtype);
	if (status == HR_OK) status = hr__need_index(&in[1]);
	out->dtype = in[0].dtype;
	return status == HR_OK ? gathered_dims(&in[0].dims, &in[1].dims, &out->dims) : status;
}

static void gather_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	const char *table = work->in[0];
	char *out = work->out[0];
	int64_t rows = work->in_types[0].dims.d[0],
			bytes = row_elements(&work->in_types[0].dims) * (int64_t)hr_dtype_size(work->in_types[0].dtype);
	for (int64_t i = begin; i < end; i++) {
		int64_t row = index_at(work, 1, i);
		bool is_there = row >= 0 && row < rows;
		if (!is_there) hr__range_error(work, OUT_OF_RANGE, row, rows);
		if (!is_there && bytes > 0) memset(out + i * bytes, 0, (size_t)bytes);
		else if (bytes > 0) memcpy(out + i * bytes, table + row * bytes, (size_t)bytes);
	}
}

HR__RUN(gather)
{
	int64_t wide = row_elements(&work->in_types[0].dims);
	hr__each_range(work, hr__dims_count(&work->in_types[1].dims), hr__grain_of(HR__GRAIN, wide), gather_range, work);
}

HR__GRADIENT(gather)
{
	if (!hr__wanted(backward, 0)) return HR_OK;
	hr_value inputs[2] = { hr__wide_value(backward->grad_out[0]), backward->in[1] };
	hr__attrs attrs = { .dims = backward->in_types[0].dims };
	return hr__give(backward, 0, hr__call_one(HR__OP_SCATTER_ROWS, inputs, 2, &attrs));
}

hr_value hr_gather(hr_value table, hr_value indices)
{
	return hr__call_one(HR__OP_GATHER, (const hr_value[]){ table, indices }, 2, &(hr__attrs){ 0 });
}

/* ---- scatter ---- */

/* Adds the rows of the first input to zeros of shape attrs.dims, at the indices of the second. */
HR__INFER(scatter_rows)
{
	(void)count;
	hr__type rows = { in[0].dtype, { 0 } };
	hr_status status = hr__need_float(&in[0]);
	if (status == HR_OK) status = hr__need_index(&in[1]);
	if (status == HR_OK) status = gathered_dims(&attrs->dims, &in[1].dims, &rows.dims);
	if (status == HR_OK) status = hr__need_same_dims(&in[0], &rows);
	*out = (hr__type){ in[0].dtype, attrs->dims };
	return status;
}

#define ADD_ROW(type)                                                    \
	do {                                                                 \
		const type *from = (const type *)work->in[0] + i * wide + begin; \
		type *to = (type *)work->out[0] + row * wide + begin;            \
		for (int64_t c = 0; c < end - begin; c++) to[c] += from[c];      \
	} while (0)

/* Columns [begin] to [end] of all rows, in index order, so that the order of additions does not depend on the threads. */
static void scatter_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	const hr__type *type = &work->out_types[0];
	int64_t rows = type->dims.d[0], wide = row_elements(&type->dims), count = hr__dims_count(&work->in_types[1].dims);
	int64_t size = (int64_t)hr_dtype_size(type->dtype);
	for (int64_t i = 0; i < rows; i++) memset((char *)work->out[0] + (i * wide + begin) * size, 0, (size_t)((end - begin) * size));
	for (int64_t i = 0; i < count; i++) {
		int64_t row = index_at(work, 1, i);
		if (row < 0 || row >= rows) hr__range_error(work, OUT_OF_RANGE, row, rows);
		else if (type->dtype == HR_DTYPE_FLOAT32) ADD_ROW(float);
		else ADD_ROW(double);
	}
}

HR__RUN(scatter_rows)
{
	hr__each_range(work, row_elements(&work->out_types[0].dims), 64, scatter_range, work);
}

HR__GRADIENT(scatter_rows)
{
	return hr__wanted(backward, 0) ? hr__give(backward, 0, hr_gather(backward->grad_out[0], backward->in[1])) : HR_OK;
}

/* ---- one hot ---- */

HR__INFER(one_hot)
{
	(void)count;
	hr_status status = hr__need_index(&in[0]);
	if (status == HR_OK) status = hr__need_any(attrs->dtype);
	if (status != HR_OK) return status;
	hr__dims dims = in[0].dims;
	if (dims.rank == HR_SHAPE_MAX_RANK) {
		char text[HR__DIMS_TEXT];
		return hr__fail(HR_INVALID_ARGUMENT, "shape %s has no room for one more dimension",
		                hr__dims_text(&dims, text, sizeof text));
	}
	dims.d[dims.rank++] = attrs->count;
	out->dtype = attrs->dtype;
	return hr__dims_make(dims.d, dims.rank, &out->dims);
}

static void set_one(void *out, hr_dtype dtype, int64_t at)
{
	switch (dtype) {
	case HR_DTYPE_FLOAT32: ((float *)out)[at] = 1; break;
	case HR_DTYPE_FLOAT64: ((double *)out)[at] = 1; break;
	case HR_DTYPE_INT32: ((int32_t *)out)[at] = 1; break;
	case HR_DTYPE_INT64: ((int64_t *)out)[at] = 1; break;
	case HR_DTYPE_BFLOAT16: ((hr__bfloat16 *)out)[at] = hr__bfloat16_of_f32(1); break;
	default: ((uint8_t *)out)[at] = 1;
	}
}

static void one_hot_range(void *context, int64_t begin, int64_t end)
{
	hr__work *work = context;
	int64_t depth = work->attrs->count, size = (int64_t)hr_dtype_size(work->out_types[0].dtype);
	if (depth > 0) memset((char *)work->out[0] + begin * depth * size, 0, (size_t)((end - begin) * depth * size));
	for (int64_t i = begin; i < end; i++) {
		int64_t place = index_at(work, 0, i);
		if (place < 0 || place >= depth) hr__range_error(work, OUT_OF_RANGE, place, depth);
		else set_one(work->out[0], work->out_types[0].dtype, i * depth + place);
	}
}

HR__RUN(one_hot)
{
	int64_t grain = hr__grain_of(HR__GRAIN, work->attrs->count);
	hr__each_range(work, hr__dims_count(&work->in_types[0].dims), grain, one_hot_range, work);
}

hr_value hr_one_hot(hr_value indices, int64_t depth, hr_dtype dtype)
{
	if (depth < 0) return hr__op_refuse(&indices, 1, "one_hot", "depth is %lld; it cannot be negative", (long long)depth);
	return hr__call_one(HR__OP_ONE_HOT, &indices, 1, &(hr__attrs){ .count = depth, .dtype = dtype });
}
