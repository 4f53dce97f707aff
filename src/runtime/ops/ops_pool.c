/* ops_pool.c - max and average pooling of images [n, channels, height, width], and their gradients.
 *
 * Windows that do not fit completely are omitted. A task is a plane: one channel of one image. Windows may overlap, so a pixel may
 * receive gradients from several; they are added in window order. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/base/status.h"
#include "runtime/ops/ops.h"

/* ---- types ---- */

static hr_status pooled_dims(const hr__dims *x, const hr__attrs *attrs, hr__dims *out)
{
	char text[HR__DIMS_TEXT];
	if (attrs->size < 1) return hr__fail(HR_INVALID_ARGUMENT, "size is %" PRId64 "; it is at least 1", attrs->size);
	if (attrs->stride < 1) return hr__fail(HR_INVALID_ARGUMENT, "stride is %" PRId64 "; it is at least 1", attrs->stride);
	hr__dims_text(x, text, sizeof text);
	if (x->rank != 4) return hr__fail(HR_INVALID_ARGUMENT, "shape %s is not [n,channels,height,width]", text);
	if (x->d[2] < attrs->size || x->d[3] < attrs->size) {
		return hr__fail(HR_INVALID_ARGUMENT, "shape %s does not fit: windows are [%" PRId64 ",%" PRId64 "], larger than an image",
		                text, attrs->size, attrs->size);
	}
	*out = *x;
	for (int i = 2; i < 4; i++) out->d[i] = (x->d[i] - attrs->size) / attrs->stride + 1;
	return HR_OK;
}

HR__INFER(pool)
{
	(void)count;
	hr_status status = hr__need_float(&in[0]);
	out->dtype = in[0].dtype;
	return status == HR_OK ? pooled_dims(&in[0].dims, attrs, &out->dims) : status;
}

static hr_status need_pooled(const hr__type *x, const hr__attrs *attrs, const hr__type *of)
{
	hr__type pooled = { .dtype = x->dtype };
	hr_status status = hr__infer_pool(x, 1, attrs, &pooled);
	if (status == HR_OK) status = hr__need_same_dtype(&pooled, of);
	return status == HR_OK ? hr__need_same_dims(&pooled, of) : status;
}

/* Inputs: the gradient of the output, x, and the output. */
HR__INFER(max_pool_grad)
{
	(void)count;
	hr_status status = need_pooled(&in[1], attrs, &in[0]);
	if (status == HR_OK) status = need_pooled(&in[1], attrs, &in[2]);
	*out = in[1];
	return status;
}

/* Input: the gradient of the output. attrs.dims is the shape of x. */
HR__INFER(avg_pool_grad)
{
	(void)count;
	*out = (hr__type){ in[0].dtype, attrs->dims };
	return need_pooled(out, attrs, &in[0]);
}

/* ---- planes ---- */

struct pool {
	hr__work *work;
	int64_t planes, height, width; /* of images */
	int64_t rows, columns;         /* of windows */
	int64_t size, stride;
};

/* NaN wins. Loops for stride 2, and for windows of 2 by 2, are compiled separately, because compilers vectorize them. */
#define LARGER(a, b) ((b) > (a) || (b) != (b) ? (b) : (a))

#define FOR_TYPE(type, name)                                                                                                    \
	/* One row of windows, computed by rows of pixels so that it vectorizes. */                                                 \
	static inline                                                                                                               \
		__attribute__((always_inline)) void max_row_##name(const struct pool *pool, const type *x, type *y, int64_t stride)     \
	{                                                                                                                           \
		for (int64_t c = 0; c < pool->columns; c++) y[c] = -INFINITY;                                                           \
		for (int64_t i = 0; i < pool->size; i++) {                                                                              \
			for (int64_t j = 0; j < pool->size; j++) {                                                                          \
				const type *from = x + i * pool->width + j;                                                                     \
				HR__INDEPENDENT for (int64_t c = 0; c < pool->columns; c++) y[c] = LARGER(y[c], from[c * stride]);              \
			}                                                                                                                   \
		}                                                                                                                       \
	}                                                                                                                           \
                                                                                                                                \
	static void max_plane_##name(const struct pool *pool, int64_t plane)                                                        \
	{                                                                                                                           \
		const type *x = (const type *)pool->work->in[0] + plane * pool->height * pool->width;                                   \
		type *y = (type *)pool->work->out[0] + plane * pool->rows * pool->columns;                                              \
		for (int64_t r = 0; r < pool->rows; r++, y += pool->columns) {                                                          \
			const type *from = x + r * pool->stride * pool->width;                                                              \
			if (pool->stride == 2) max_row_##name(pool, from, y, 2);                                                            \
			else max_row_##name(pool, from, y, pool->stride);                                                                   \
		}                                                                                                                       \
	}                                                                                                                           \
                                                                                                                                \
	static inline __attribute__((always_inline)) void avg_row_##name(const struct pool *pool, const type *x, type *y,           \
	                                                                 double share, int64_t size, int64_t stride)                \
	{                                                                                                                           \
		for (int64_t c = 0; c < pool->columns; c++) {                                                                           \
			double sum = 0;                                                                                                     \
			for (int64_t i = 0; i < size; i++) {                                                                                \
				for (int64_t j = 0; j < size; j++) sum += (double)x[i * pool->width + c * stride + j];                          \
			}                                                                                                                   \
			y[c] = (type)(sum * share);                                                                                         \
		}                                                                                                                       \
	}                                                                                                                           \
                                                                                                                                \
	static void avg_plane_##name(const struct pool *pool, int64_t plane)                                                        \
	{                                                                                                                           \
		const type *x = (const type *)pool->work->in[0] + plane * pool->height * pool->width;                                   \
		type *y = (type *)pool->work->out[0] + plane * pool->rows * pool->columns;                                              \
		double share = 1 / ((double)pool->size * (double)pool->size);                                                           \
		for (int64_t r = 0; r < pool->rows; r++, y += pool->columns) {                                                          \
			const type *from = x + r * pool->stride * pool->width;                                                              \
			if (pool->size == 2 && pool->stride == 2) avg_row_##name(pool, from, y, share, 2, 2);                               \
			else avg_row_##name(pool, from, y, share, pool->size, pool->stride);                                                \
		}                                                                                                                       \
	}                                                                                                                           \
                                                                                                                                \
	/* The pixel of the window's maximum: the first if several are equal, the last NaN if the maximum is NaN. Pixels are selected\
	 * without branches, because which one is the maximum cannot be predicted. */                                               \
	static int64_t place_##name(const struct pool *pool, const type *x, type largest)                                           \
	{                                                                                                                           \
		int64_t first = 0, nan = 0, size = pool->size;                                                                          \
		for (int64_t i = size; i-- > 0;) {                                                                                      \
			for (int64_t at = i * pool->width + size; at-- > i * pool->width;) first = x[at] == largest ? at : first;           \
		}                                                                                                                       \
		if (largest == largest) return first;                                                                                   \
		for (int64_t i = 0; i < size; i++) {                                                                                    \
			for (int64_t at = i * pool->width; at < i * pool->width + size; at++) nan = x[at] != x[at] ? at : nan;              \
		}                                                                                                                       \
		return nan;                                                                                                             \
	}                                                                                                                           \
                                                                                                                                \
	static void max_grad_plane_##name(const struct pool *pool, int64_t plane)                                                   \
	{                                                                                                                           \
		int64_t pixels = pool->height * pool->width, windows = pool->rows * pool->columns;                                      \
		const type *grad = (const type *)pool->work->in[0] + plane * windows,                                                   \
				   *x = (const type *)pool->work->in[1] + plane * pixels;                                                       \
		const type *y = (const type *)pool->work->in[2] + plane * windows;                                                      \
		type *out = (type *)pool->work->out[0] + plane * pixels;                                                                \
		memset(out, 0, (size_t)pixels * sizeof(type));                                                                          \
		for (int64_t r = 0; r < pool->rows; r++) {                                                                              \
			for (int64_t c = 0; c < pool->columns; c++) {                                                                       \
				int64_t corner = (r * pool->width + c) * pool->stride, at = r * pool->columns + c;                              \
				out[corner + place_##name(pool, x + corner, y[at])] += grad[at];                                                \
			}                                                                                                                   \
		}                                                                                                                       \
	}                                                                                                                           \
                                                                                                                                \
	static inline __attribute__((always_inline)) void share_row_##name(const struct pool *pool, const type *grad, type *out,    \
	                                                                   type share, int64_t size, int64_t stride)                \
	{                                                                                                                           \
		for (int64_t i = 0; i < size; i++, out += pool->width) {                                                                \
			for (int64_t c = 0; c < pool->columns; c++) {                                                                       \
				for (int64_t j = 0; j < size; j++) out[c * stride + j] += grad[c] * share;                                      \
			}                                                                                                                   \
		}                                                                                                                       \
	}                                                                                                                           \
                                                                                                                                \
	static void avg_grad_plane_##name(const struct pool *pool, int64_t plane)                                                   \
	{                                                                                                                           \
		int64_t pixels = pool->height * pool->width;                                                                            \
		const type *grad = (const type *)pool->work->in[0] + plane * pool->rows * pool->columns;                                \
		type *out = (type *)pool->work->out[0] + plane * pixels, share = (type)(1 / ((double)pool->size * (double)pool->size)); \
		memset(out, 0, (size_t)pixels * sizeof(type));                                                                          \
		for (int64_t r = 0; r < pool->rows; r++, grad += pool->columns) {                                                       \
			type *row = out + r * pool->stride * pool->width;                                                                   \
			if (pool->size == 2 && pool->stride == 2) share_row_##name(pool, grad, row, share, 2, 2);                           \
			else share_row_##name(pool, grad, row, share, pool->size, pool->stride);                                            \
		}                                                                                                                       \
	}

FOR_TYPE(float, f32)
FOR_TYPE(double, f64)

/* ---- runs ---- */

#define RANGE(name)                                                       \
	static void name##_range(void *context, int64_t begin, int64_t end)   \
	{                                                                     \
		const struct pool *pool = context;                                \
		bool is_f32 = pool->work->out_types[0].dtype == HR_DTYPE_FLOAT32; \
		for (int64_t plane = begin; plane < end; plane++) {               \
			if (is_f32) name##_plane_f32(pool, plane);                    \
			else name##_plane_f64(pool, plane);                           \
		}                                                                 \
	}

RANGE(max)
RANGE(avg)
RANGE(max_grad)
RANGE(avg_grad)

static void run_planes(hr__work *work, const hr__dims *x, const hr__dims *y, hr__range_function range)
{
	struct pool pool = { .work = work,
		                 .planes = x->d[0] * x->d[1],
		                 .height = x->d[2],
		                 .width = x->d[3],
		                 .rows = y->d[2],
		                 .columns = y->d[3],
		                 .size = work->attrs->size,
		                 .stride = work->attrs->stride };
	hr__each_range(work, pool.planes, hr__grain_of(HR__GRAIN, pool.height * pool.width), range, &pool);
}

HR__RUN(max_pool)
{
	run_planes(work, &work->in_types[0].dims, &work->out_types[0].dims, max_range);
}

HR__RUN(avg_pool)
{
	run_planes(work, &work->in_types[0].dims, &work->out_types[0].dims, avg_range);
}

HR__RUN(max_pool_grad)
{
	run_planes(work, &work->out_types[0].dims, &work->in_types[0].dims, max_grad_range);
}

HR__RUN(avg_pool_grad)
{
	run_planes(work, &work->out_types[0].dims, &work->in_types[0].dims, avg_grad_range);
}

/* ---- gradients ---- */

static hr__attrs windows_of(const hr__backward *backward)
{
	return (hr__attrs){ .size = backward->attrs->size, .stride = backward->attrs->stride };
}

HR__GRADIENT(max_pool)
{
	hr__attrs attrs = windows_of(backward);
	hr_value inputs[3] = { backward->grad_out[0], backward->in[0], backward->out[0] };
	return hr__wanted(backward, 0) ? hr__give(backward, 0, hr__call_one(HR__OP_MAX_POOL_GRAD, inputs, 3, &attrs)) : HR_OK;
}

HR__GRADIENT(avg_pool)
{
	hr__attrs attrs = windows_of(backward);
	attrs.dims = backward->in_types[0].dims;
	return hr__wanted(backward, 0) ? hr__give(backward, 0, hr__call_one(HR__OP_AVG_POOL_GRAD, backward->grad_out, 1, &attrs))
	                               : HR_OK;
}

/* ---- public calls ---- */

hr_value hr_max_pool(hr_value x, int64_t size, int64_t stride)
{
	return hr__call_one(HR__OP_MAX_POOL, &x, 1, &(hr__attrs){ .size = size, .stride = stride });
}

hr_value hr_avg_pool(hr_value x, int64_t size, int64_t stride)
{
	return hr__call_one(HR__OP_AVG_POOL, &x, 1, &(hr__attrs){ .size = size, .stride = stride });
}
