/* ops_matrix.c - matrix products.
 *
 * The algorithm of Goto and van de Geijn (Anatomy of high-performance matrix multiplication), with little memory:
 *
 *     for each block of B, DEEP rows by WIDE columns, small enough for the L2 cache:
 *         pack it in panels of as many columns as two vectors hold, so that the innermost loop reads it sequentially
 *         for each strip of HIGH rows of A: pack it too, on the stack, and multiply it by every panel
 *
 * The innermost loop keeps HIGH by two vectors of sums in registers. It is compiled for several instruction sets and selected at
 * run time; the panel width depends on it. Sums of DEEP products are added to the output block by block, in order. No two threads
 * add to the same element.
 *
 * A single product is divided by strips; all threads share the packed block. In a batch of products, each product is computed by
 * one part, with a packed block of its own. There are at most SLOTS parts, so the memory does not grow with the batch. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "runtime/ops/ops.h"
#include "runtime/kernels/bfloat16.h"
#include "runtime/kernels/ops_tile.h"

#define HIGH HR__TILE_HIGH
#define DEEP HR__TILE_DEEP
#define WIDE 512 /* columns of a block; a multiple of every panel width */
#define SLOTS 16
#define WIDEST HR__TILE_WIDEST

/* ---- types ---- */

/* Rows and columns of an input after the requested transposition. */
static void sides(const hr__type *type, bool transposed, int64_t *rows, int64_t *columns)
{
	int rank = type->dims.rank;
	*rows = type->dims.d[rank - (transposed ? 1 : 2)];
	*columns = type->dims.d[rank - (transposed ? 2 : 1)];
}

static hr__dims batch_dims(const hr__type *type)
{
	hr__dims dims = type->dims;
	dims.rank -= 2;
	return dims;
}

static hr_status misfit(const hr__type *in, const hr__attrs *attrs, const char *why)
{
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	return hr__fail(HR_INVALID_ARGUMENT, "shapes %s%s and %s%s are incompatible: %s", hr__dims_text(&in[0].dims, left, sizeof left),
	                attrs->transpose_a ? " (transposed)" : "", hr__dims_text(&in[1].dims, right, sizeof right),
	                attrs->transpose_b ? " (transposed)" : "", why);
}

/* Products of bfloat16 are added in float32, and are float32, or rounded to bfloat16 once, with the bias (attrs.dtype). */
static bool is_narrow(const hr__type *type)
{
	return type->dtype == HR_DTYPE_BFLOAT16;
}

static hr_dtype dtype_of_products(const hr__type *in, const hr__attrs *attrs)
{
	return !is_narrow(&in[0]) ? in[0].dtype : attrs->dtype == HR_DTYPE_BFLOAT16 ? HR_DTYPE_BFLOAT16 : HR_DTYPE_FLOAT32;
}

/* The bias is a row that is added to each row of the result, and has its dtype. */
static hr_status check_bias(const hr__type *bias, const hr__type *out)
{
	char text[HR__DIMS_TEXT];
	int64_t columns = out->dims.d[out->dims.rank - 1];
	hr_status status = hr__need_same_dtype(out, bias);
	if (status || (bias->dims.rank == 1 && bias->dims.d[0] == columns)) return status;
	return hr__fail(HR_INVALID_ARGUMENT, "the bias is %s; it is [%" PRId64 "]", hr__dims_text(&bias->dims, text, sizeof text), columns);
}

/* Inputs: the matrices, and a bias, which may be missing. */
HR__INFER(matmul)
{
	hr_status status = is_narrow(&in[0]) ? HR_OK : hr__need_float(&in[0]);
	if (status == HR_OK) status = hr__need_same_dtype(&in[0], &in[1]);
	if (status != HR_OK) return status;
	if (in[0].dims.rank < 2 || in[1].dims.rank < 2) return misfit(in, attrs, "a matrix has two dimensions");
	int64_t rows, inner, depth, columns;
	sides(&in[0], attrs->transpose_a, &rows, &inner);
	sides(&in[1], attrs->transpose_b, &depth, &columns);
	if (inner != depth) {
		char why[96];
		snprintf(why, sizeof why, "the first has %" PRId64 " columns, the second %" PRId64 " rows", inner, depth);
		return misfit(in, attrs, why);
	}
	hr__dims a = batch_dims(&in[0]), b = batch_dims(&in[1]), both;
	if (!hr__dims_broadcast(&a, &b, &both)) return misfit(in, attrs, "the dimensions before the matrices cannot be broadcast");
	both.d[both.rank++] = rows;
	both.d[both.rank++] = columns;
	out->dtype = dtype_of_products(in, attrs);
	status = hr__dims_make(both.d, both.rank, &out->dims);
	return status || count < 3 ? status : check_bias(&in[2], out);
}

/* ---- the problem ---- */

/* Element (i, k) of A is at a + i * a_row + k * a_column; the same for B. */
struct product {
	int64_t rows, depth, columns;
	int64_t a_row, a_column, b_row, b_column;
	int64_t batch;      /* number of products */
	hr__broadcast walk; /* over the output's batch dimensions; steps count matrices */
	int64_t panel;      /* columns of a panel */
};

/* A batch of matrices A with one B is a single product if the rows of all A are contiguous. */
static void merge_batch(struct product *product, const hr__type *b, bool transpose_a)
{
	hr__dims batch = batch_dims(b);
	if (transpose_a || hr__dims_count(&batch) != 1) return;
	/* B has no batch dimensions, so those of the output are A's. */
	product->rows *= product->batch;
	product->batch = 1;
}

static void product_make(const hr__type *in, const hr__type *out, const hr__attrs *attrs, int64_t panel, struct product *product)
{
	hr__dims of_out = batch_dims(out), of_a = batch_dims(&in[0]), of_b = batch_dims(&in[1]);
	*product = (struct product){ .batch = hr__dims_count(&of_out), .panel = panel };
	sides(&in[0], attrs->transpose_a, &product->rows, &product->depth);
	sides(&in[1], attrs->transpose_b, &product->depth, &product->columns);
	product->a_row = attrs->transpose_a ? 1 : product->depth;
	product->a_column = attrs->transpose_a ? product->rows : 1;
	product->b_row = attrs->transpose_b ? 1 : product->columns;
	product->b_column = attrs->transpose_b ? product->depth : 1;
	hr__broadcast_make(&of_out, &of_a, &of_b, &product->walk);
	merge_batch(product, &in[1], attrs->transpose_a);
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t up_to(int64_t x, int64_t unit)
{
	return (x + unit - 1) / unit * unit;
}

/* Elements of a packed block, for the widest panel: the actual width depends on the processor. */
static uint64_t block_elements(const struct product *product, int64_t size)
{
	return (uint64_t)(least(product->depth, DEEP) * up_to(least(product->columns, WIDE), WIDEST / size));
}

static int64_t slots_of(const struct product *product)
{
	return least(product->batch, SLOTS);
}

HR__SCRATCH(matmul)
{
	struct product product;
	int64_t size = out->dtype == HR_DTYPE_FLOAT64 ? 8 : 4;
	if (hr__dims_count(&out->dims) == 0) return 0;
	product_make(in, out, attrs, 1, &product);
	return hr__wide_bytes(&in[0]) + hr__wide_bytes(&in[1]) + hr__wide_bytes(out) + block_elements(&product, size) * (uint64_t)size * (uint64_t)slots_of(&product);
}

/* ---- the innermost loop ---- */

#define ROW_SUM(i)                        \
	sum##i##x += strip[k * HIGH + i] * x; \
	sum##i##y += strip[k * HIGH + i] * y;

#define ROW_STORE(i)                                              \
	memcpy(tile + (2 * i) * LANES, &sum##i##x, sizeof sum##i##x); \
	memcpy(tile + (2 * i + 1) * LANES, &sum##i##y, sizeof sum##i##y);

#define TILE_KERNEL(name, type, vector_bytes, target)                                                                  \
	target static void name(int64_t depth, const void *of_strip, const void *of_panel, void *to)                       \
	{                                                                                                                  \
		typedef type vector __attribute__((vector_size(vector_bytes), aligned(sizeof(type)), may_alias));              \
		enum { LANES = vector_bytes / sizeof(type) };                                                                  \
		const type *strip = of_strip, *panel = of_panel;                                                               \
		type *tile = to;                                                                                               \
		vector sum0x = { 0 }, sum1x = { 0 }, sum2x = { 0 }, sum3x = { 0 }, sum4x = { 0 }, sum5x = { 0 };               \
		vector sum0y = { 0 }, sum1y = { 0 }, sum2y = { 0 }, sum3y = { 0 }, sum4y = { 0 }, sum5y = { 0 };               \
		for (int64_t k = 0; k < depth; k++) {                                                                          \
			vector x = *(const vector *)(panel + (2 * k) * LANES), y = *(const vector *)(panel + (2 * k + 1) * LANES); \
			ROW_SUM(0) ROW_SUM(1) ROW_SUM(2) ROW_SUM(3) ROW_SUM(4) ROW_SUM(5)                                          \
		}                                                                                                              \
		ROW_STORE(0) ROW_STORE(1) ROW_STORE(2) ROW_STORE(3) ROW_STORE(4) ROW_STORE(5)                                  \
	}

TILE_KERNEL(tile_f32_16, float, 16, )
TILE_KERNEL(tile_f64_16, double, 16, )
#if defined(__x86_64__)
TILE_KERNEL(tile_f32_32, float, 32, __attribute__((target("avx2,fma"))))
TILE_KERNEL(tile_f64_32, double, 32, __attribute__((target("avx2,fma"))))
TILE_KERNEL(tile_f32_64, float, 64, __attribute__((target("avx512f"))))
TILE_KERNEL(tile_f64_64, double, 64, __attribute__((target("avx512f"))))
#endif

struct kernel {
	hr__tile_kernel f32, f64;
	int64_t bytes; /* of a row of a panel */
};

static struct kernel best_kernel(void)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f")) return (struct kernel){ tile_f32_64, tile_f64_64, 128 };
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return (struct kernel){ tile_f32_32, tile_f64_32, 64 };
#endif
	return (struct kernel){ tile_f32_16, tile_f64_16, 32 };
}

hr__tile_kernel hr__tile_kernel_for(hr_dtype dtype, int64_t *panel)
{
	struct kernel kernel = best_kernel();
	*panel = kernel.bytes / (int64_t)hr_dtype_size(dtype);
	return dtype == HR_DTYPE_FLOAT32 ? kernel.f32 : kernel.f64;
}

/* ---- packing and blocks ---- */

/* A block of B in one product: [deep] rows from deep_from, [wide] columns from wide_from. */
struct matrix_block {
	const struct product *product;
	hr__tile_kernel kernel;
	const void *a, *b;
	void *out, *packed;
	int64_t deep_from, deep, wide_from, wide;
};

/* Panels and strips are padded with zeros beyond the matrix; those products are computed and discarded. */
#define FOR_TYPE(type, name)                                                                                                  \
	static void pack_panel_##name(const struct matrix_block *block, int64_t number)                                           \
	{                                                                                                                         \
		const struct product *product = block->product;                                                                       \
		int64_t panel = product->panel, first = number * panel, count = least(panel, block->wide - first);                    \
		type *to = (type *)block->packed + first * block->deep;                                                               \
		const type *from = (const type *)block->b + block->deep_from * product->b_row +                                       \
		                   (block->wide_from + first) * product->b_column;                                                    \
		if (count < panel) memset(to, 0, (size_t)(block->deep * panel) * sizeof(type));                                       \
		if (product->b_column == 1) {                                                                                         \
			for (int64_t k = 0; k < block->deep; k++)                                                                         \
				memcpy(to + k * panel, from + k * product->b_row, (size_t)count * sizeof(type));                              \
			return;                                                                                                           \
		}                                                                                                                     \
		for (int64_t j = 0; j < count; j++) {                                                                                 \
			const type *column = from + j * product->b_column;                                                                \
			for (int64_t k = 0; k < block->deep; k++) to[k * panel + j] = column[k * product->b_row];                         \
		}                                                                                                                     \
	}                                                                                                                         \
                                                                                                                              \
	static void pack_strip_##name(const struct matrix_block *block, int64_t row, int64_t count, type *to)                     \
	{                                                                                                                         \
		const struct product *product = block->product;                                                                       \
		const type *from = (const type *)block->a + row * product->a_row + block->deep_from * product->a_column;              \
		for (int64_t i = 0; i < HIGH; i++) {                                                                                  \
			const type *of_row = from + (i < count ? i : 0) * product->a_row;                                                 \
			for (int64_t k = 0; k < block->deep; k++) to[k * HIGH + i] = i < count ? of_row[k * product->a_column] : 0;       \
		}                                                                                                                     \
	}                                                                                                                         \
                                                                                                                              \
	static void add_tile_##name(const struct matrix_block *block, int64_t row, int64_t rows, int64_t column, int64_t columns, \
	                            const type *tile)                                                                             \
	{                                                                                                                         \
		const struct product *product = block->product;                                                                       \
		for (int64_t i = 0; i < rows; i++) {                                                                                  \
			type *to = (type *)block->out + (row + i) * product->columns + column;                                            \
			const type *of_row = tile + i * product->panel;                                                                   \
			if (block->deep_from == 0) memcpy(to, of_row, (size_t)columns * sizeof(type));                                    \
			else                                                                                                              \
				for (int64_t j = 0; j < columns; j++) to[j] += of_row[j];                                                     \
		}                                                                                                                     \
	}                                                                                                                         \
                                                                                                                              \
	static void multiply_strip_##name(const struct matrix_block *block, int64_t row)                                          \
	{                                                                                                                         \
		const struct product *product = block->product;                                                                       \
		int64_t panel = product->panel, rows = least(HIGH, product->rows - row);                                              \
		type strip[HIGH * DEEP], tile[HIGH * WIDEST / sizeof(type)];                                                          \
		pack_strip_##name(block, row, rows, strip);                                                                           \
		for (int64_t j = 0; j < block->wide; j += panel) {                                                                    \
			block->kernel(block->deep, strip, (const type *)block->packed + j * block->deep, tile);                           \
			add_tile_##name(block, row, rows, block->wide_from + j, least(panel, block->wide - j), tile);                     \
		}                                                                                                                     \
	}

FOR_TYPE(float, f32)
FOR_TYPE(double, f64)

struct matmul {
	hr__work *work;
	struct product product;
	hr__tile_kernel kernel;
	bool is_f32;
	struct matrix_block block; /* the current block of all parts, if there is one product */
};

static void pack_panel(const struct matmul *matmul, const struct matrix_block *block, int64_t number)
{
	if (matmul->is_f32) pack_panel_f32(block, number);
	else pack_panel_f64(block, number);
}

static void multiply_strip(const struct matmul *matmul, const struct matrix_block *block, int64_t strip)
{
	if (matmul->is_f32) multiply_strip_f32(block, strip * HIGH);
	else multiply_strip_f64(block, strip * HIGH);
}

static int64_t panels_of(const struct matrix_block *block)
{
	return (block->wide + block->product->panel - 1) / block->product->panel;
}

static int64_t strips_of(const struct product *product)
{
	return (product->rows + HIGH - 1) / HIGH;
}

/* Advances to the next block; false after the last. Goes down first, so that columns of the output are finished while they are
 * cached. */
static bool next_block(struct matrix_block *block)
{
	const struct product *product = block->product;
	block->deep_from += block->deep;
	if (block->deep_from >= product->depth) {
		block->deep_from = 0;
		block->wide_from += block->wide;
	}
	block->deep = least(DEEP, product->depth - block->deep_from);
	block->wide = least(WIDE, product->columns - block->wide_from);
	return block->wide > 0;
}

/* The first block of product [number], to be packed in slot [slot]. */
static void first_block(const struct matmul *matmul, int64_t number, int64_t slot, struct matrix_block *block)
{
	const hr__work *work = matmul->work;
	const struct product *product = &matmul->product;
	int64_t size = matmul->is_f32 ? 4 : 8, a = 0, b = 0, rest = number;
	for (int i = product->walk.rank; i-- > 0;) {
		a += rest % product->walk.d[i] * product->walk.a[i];
		b += rest % product->walk.d[i] * product->walk.b[i];
		rest /= product->walk.d[i];
	}
	*block = (struct matrix_block){ .product = product, .kernel = matmul->kernel };
	block->a = (const char *)work->in[0] + a * product->rows * product->depth * size;
	block->b = (const char *)work->in[1] + b * product->depth * product->columns * size;
	block->out = (char *)work->out[0] + number * product->rows * product->columns * size;
	block->packed = (char *)work->scratch + slot * (int64_t)block_elements(product, size) * size;
	next_block(block);
}

/* ---- runs ---- */

static void pack_range(void *context, int64_t begin, int64_t end)
{
	struct matmul *matmul = context;
	for (int64_t i = begin; i < end; i++) pack_panel(matmul, &matmul->block, i);
}

static void strip_range(void *context, int64_t begin, int64_t end)
{
	struct matmul *matmul = context;
	for (int64_t i = begin; i < end; i++) multiply_strip(matmul, &matmul->block, i);
}

static void run_one(struct matmul *matmul)
{
	struct matrix_block *block = &matmul->block;
	first_block(matmul, 0, 0, block);
	do {
		int64_t of_strip = HIGH * block->deep * block->wide / 16;
		hr__each_range(matmul->work, panels_of(block), hr__grain_of(HR__GRAIN, matmul->product.panel * block->deep), pack_range,
		               matmul);
		hr__each_range(matmul->work, strips_of(&matmul->product), hr__grain_of(4 * HR__GRAIN, of_strip), strip_range, matmul);
	} while (next_block(block));
}

static void run_slot(void *context, uint32_t slot)
{
	struct matmul *matmul = context;
	struct matrix_block block;
	for (int64_t number = slot; number < matmul->product.batch; number += slots_of(&matmul->product)) {
		first_block(matmul, number, slot, &block);
		do {
			for (int64_t i = 0; i < panels_of(&block); i++) pack_panel(matmul, &block, i);
			for (int64_t i = 0; i < strips_of(&matmul->product); i++) multiply_strip(matmul, &block, i);
		} while (next_block(&block));
	}
}

/* The host multiplies float32: replaces the matrices by copies in scratch, and the output by one that is rounded afterwards. */
static void widen(hr__work *work)
{
	uint64_t bytes = hr__wide_bytes(&work->out_types[0]);
	for (uint32_t i = 0; i < 2; i++) hr__widen(work, i);
	if (!bytes) return;
	work->out[0] = work->scratch;
	work->scratch = (char *)work->scratch + bytes;
	work->out_types[0].dtype = HR_DTYPE_FLOAT32;
}

/* Adds the bias, and rounds. */
struct finishing {
	hr__work *work;
	const void *from; /* the sums; the output, if it is not rounded */
	int64_t columns;
};

static void add_bias_f32(const float *from, const float *bias, float *to, int64_t count)
{
	for (int64_t i = 0; i < count; i++) to[i] = from[i] + bias[i];
}

static void add_bias_f64(const double *from, const double *bias, double *to, int64_t count)
{
	for (int64_t i = 0; i < count; i++) to[i] = from[i] + bias[i];
}

static void round_row(const float *from, const hr__bfloat16 *bias, hr__bfloat16 *to, int64_t count)
{
	for (int64_t i = 0; i < count; i++) to[i] = hr__bfloat16_of_f32(bias ? from[i] + hr__bfloat16_to_f32(bias[i]) : from[i]);
}

static void finish_range(void *context, int64_t begin, int64_t end)
{
	const struct finishing *finishing = context;
	const hr__work *work = finishing->work;
	const void *bias = work->in_count > 2 ? work->in[2] : NULL;
	int64_t columns = finishing->columns;
	for (int64_t i = begin * columns; i < end * columns; i += columns) {
		if (is_narrow(&work->out_types[0])) round_row((const float *)finishing->from + i, bias, (hr__bfloat16 *)work->out[0] + i, columns);
		else if (work->out_types[0].dtype == HR_DTYPE_FLOAT32) add_bias_f32((const float *)finishing->from + i, bias, (float *)work->out[0] + i, columns);
		else add_bias_f64((const double *)finishing->from + i, bias, (double *)work->out[0] + i, columns);
	}
}

static void finish(hr__work *work, const void *from)
{
	const hr__dims *dims = &work->out_types[0].dims;
	struct finishing finishing = { work, from, dims->d[dims->rank - 1] };
	if (work->in_count < 3 && !is_narrow(&work->out_types[0])) return;
	hr__each_range(work, hr__dims_count(dims) / finishing.columns, hr__grain_of(HR__GRAIN, finishing.columns), finish_range, &finishing);
}

HR__RUN(matmul)
{
	int64_t panel;
	hr__work wide = *work;
	struct matmul matmul = { .work = &wide, .is_f32 = work->out_types[0].dtype != HR_DTYPE_FLOAT64 };
	if (hr__dims_count(&work->out_types[0].dims) == 0) return;
	widen(&wide);
	matmul.kernel = hr__tile_kernel_for(wide.out_types[0].dtype, &panel);
	product_make(wide.in_types, wide.out_types, wide.attrs, panel, &matmul.product);
	if (matmul.product.depth == 0) memset(wide.out[0], 0, hr__type_bytes(&wide.out_types[0]));
	else if (matmul.product.batch == 1) run_one(&matmul);
	else hr__team_run(work->team, (uint32_t)slots_of(&matmul.product), run_slot, &matmul);
	finish(work, wide.out[0]);
}

/* ---- gradients ---- */

/* Reshapes [value] to a matrix of all its rows. */
static hr_value as_matrix(hr_value value, const hr__dims *dims)
{
	int64_t columns = dims->d[dims->rank - 1], rows = 1;
	for (int i = 0; i + 1 < dims->rank; i++) rows *= dims->d[i];
	return hr_reshape(value, HR_DIMS(rows, columns));
}

static hr_value product_of(hr_value a, bool transpose_a, hr_value b, bool transpose_b, hr_dtype dtype)
{
	hr__attrs attrs = { .transpose_a = transpose_a, .transpose_b = transpose_b, .dtype = dtype };
	return hr__call_one(HR__OP_MATMUL, (const hr_value[]){ a, b }, 2, &attrs);
}

/* y = a b: da = dy b^T. For a^T: b dy^T. Of the dtype of a. */
static hr_value gradient_of_a(const hr__backward *backward)
{
	const hr__attrs *attrs = backward->attrs;
	hr_value grad = backward->grad_out[0], b = backward->in[1];
	hr_dtype dtype = backward->in_types[0].dtype;
	if (attrs->transpose_a) return product_of(b, attrs->transpose_b, grad, true, dtype);
	return product_of(grad, false, b, !attrs->transpose_b, dtype);
}

/* db = a^T dy. For b^T: dy^T a. Of float32, if b is bfloat16: b is the copy of a variable. */
static hr_value gradient_of_b(const hr__backward *backward, hr_value grad, hr_value a)
{
	const hr__attrs *attrs = backward->attrs;
	if (attrs->transpose_b) return product_of(grad, true, a, attrs->transpose_a, 0);
	return product_of(a, !attrs->transpose_a, grad, false, 0);
}

/* One b for a whole batch, as in a layer: its gradient is one product instead of a batch of products that are summed. */
static bool shares_b(const hr__backward *backward)
{
	return !backward->attrs->transpose_a && backward->in_types[1].dims.rank == 2 && backward->in_types[0].dims.rank > 2;
}

static hr_status give_a(hr__backward *backward)
{
	const hr__dims *a = &backward->in_types[0].dims;
	hr__dims full = backward->out_types[0].dims;
	memcpy(full.d + full.rank - 2, a->d + a->rank - 2, 2 * sizeof full.d[0]);
	return hr__give(backward, 0, hr__sum_to(gradient_of_a(backward), &full, a));
}

static hr_status give_b(hr__backward *backward)
{
	const hr__dims *a = &backward->in_types[0].dims, *b = &backward->in_types[1].dims, *y = &backward->out_types[0].dims;
	hr__dims full = *y;
	if (shares_b(backward))
		return hr__give(backward, 1, gradient_of_b(backward, as_matrix(backward->grad_out[0], y), as_matrix(backward->in[0], a)));
	memcpy(full.d + full.rank - 2, b->d + b->rank - 2, 2 * sizeof full.d[0]);
	return hr__give(backward, 1, hr__sum_to(gradient_of_b(backward, backward->grad_out[0], backward->in[0]), &full, b));
}

static hr_status give_bias(hr__backward *backward)
{
	return hr__give(backward, 2, hr__sum_to(backward->grad_out[0], &backward->out_types[0].dims, &backward->in_types[2].dims));
}

/* The products of bfloat16 matrices have gradients that are such products too: the output's gradient is rounded first. */
HR__GRADIENT(matmul)
{
	hr_value given = backward->grad_out[0];
	bool narrow = is_narrow(&backward->in_types[0]) && hr_value_dtype(given) != HR_DTYPE_BFLOAT16;
	if (narrow) backward->grad_out[0] = hr_value_keep(hr_cast(given, HR_DTYPE_BFLOAT16));
	hr_status status = backward->grad_out[0].id ? HR_OK : hr_last_status();
	if (!status && hr__wanted(backward, 0)) status = give_a(backward);
	if (!status && hr__wanted(backward, 1)) status = give_b(backward);
	if (!status && backward->in_count > 2 && hr__wanted(backward, 2)) status = give_bias(backward);
	if (narrow) hr_value_release(backward->grad_out[0]);
	backward->grad_out[0] = given;
	return status;
}

/* ---- public calls ---- */

hr_value hr__matmul_layer(hr_value x, hr_value w, hr_value b)
{
	return hr__call_one(HR__OP_MATMUL, (const hr_value[]){ x, w, b }, 3, &(hr__attrs){ .dtype = b.id ? hr_value_dtype(b) : 0 });
}

hr_value hr_matmul_transposed(hr_value a, bool transpose_a, hr_value b, bool transpose_b)
{
	return product_of(a, transpose_a, b, transpose_b, 0);
}

hr_value hr_matmul(hr_value a, hr_value b)
{
	return product_of(a, false, b, false, 0);
}
