/* launch_matrix.c - matrix products on the card (product.h).
 *
 * Rows of bfloat16 whose length is no multiple of 8, such as the logits of 50,257 words, do not begin at multiples of 16 bytes, and the library multiplies
 * them at a third of the speed. Large products of such matrices are computed on copies in scratch memory, whose rows are longer (PADDED): a copy takes a
 * tenth of the time. Where columns of the result can be computed in chunks, the copies have 256 MiB at most. */
#include <string.h>

#include "runtime/card/card.h"
#include "runtime/card/product.h"
#include "runtime/ops/ops.h"

/* ---- padded products ---- */

#define UNIT 8                              /* elements of bfloat16 in 16 bytes */
#define SCRATCH_UNIT 256                    /* bytes; alignment of the copies */

hr__padded_limits hr__padded_limits_now = { .least = 1e9, .chunk_bytes = UINT64_C(256) << 20, .chunk_columns = 2048 };

/* Copies that a product is computed on, in this order in scratch memory; 0 bytes = the matrix itself is used. */
struct padding {
	int64_t chunk;    /* columns of the result that are computed at a time */
	uint64_t a, b, out;
};

static int64_t even(int64_t count)
{
	return HR__UP(count, UNIT) * UNIT;
}

static uint64_t bytes_of(int64_t rows, int64_t length, hr_dtype dtype)
{
	return HR__UP((uint64_t)rows * (uint64_t)even(length) * hr_dtype_size(dtype), SCRATCH_UNIT) * SCRATCH_UNIT;
}

static struct padding padding_for(const hr__product *product, int64_t chunk)
{
	struct padding padding = { .chunk = chunk };
	int64_t a_rows = product->a_turned ? chunk : product->k, a_length = product->a_turned ? product->k : chunk;
	int64_t b_rows = product->b_turned ? product->k : product->n, b_length = product->b_turned ? product->n : product->k;
	if (product->a_row % UNIT) padding.a = bytes_of(a_rows, a_length, product->in);
	if (product->b_row % UNIT) padding.b = bytes_of(b_rows, b_length, product->in);
	if (product->out_row % UNIT) padding.out = bytes_of(product->n, chunk, product->to);
	return padding;
}

/* All 0: the product is computed as it is. Depends on the shapes alone. */
static struct padding padding_of(const hr__product *product)
{
	struct padding none = { 0 };
	const hr__padded_limits *limits = &hr__padded_limits_now;
	int64_t columns = limits->chunk_columns;
	if (product->in != HR_DTYPE_BFLOAT16 || product->batch != 1 || (double)product->m * (double)product->n * (double)product->k < limits->least) return none;
	struct padding whole = padding_for(product, product->m);
	if (whole.a + whole.b + whole.out <= limits->chunk_bytes || !whole.out) return whole.a || whole.b || whole.out ? whole : none;
	struct padding least = padding_for(product, columns);
	uint64_t each = least.a + least.out, left = limits->chunk_bytes > least.b ? limits->chunk_bytes - least.b : 0;
	int64_t chunks = each && left > each ? (int64_t)(left / each) : 1;
	/* So that all chunks are about as wide. */
	int64_t count = HR__UP(product->m, chunks * columns), wide = HR__UP(HR__UP(product->m, count), columns) * columns;
	return padding_for(product, wide);
}

static uint64_t padded_bytes(const struct padding *padding)
{
	return padding->a + padding->b + padding->out;
}

static const void *moved(const void *from, int64_t elements, hr_dtype dtype)
{
	return (const char *)from + elements * (int64_t)hr_dtype_size(dtype);
}

/* Copies a matrix to rows of an even length. */
static hr_status pad(const hr__launch *launch, const void *from, void *to, int64_t rows, int64_t length, int64_t row, hr_dtype dtype)
{
	hr__strip strip = { .from = from, .to = to, .rows = rows, .columns = length, .to_columns = even(length), .from_row = row, .to_row = even(length), .dtype = dtype };
	return hr__strip_copy(launch, &strip);
}

/* Replaces the operands by copies at [to], where rows are odd. Their columns of zeros may be part of the product: each sum gets zeros more. */
static hr_status pad_operands(const hr__launch *launch, hr__product *product, const struct padding *padding, bool is_first, char *to)
{
	int64_t k = product->k, rows_a = product->a_turned ? product->m : k, rows_b = product->b_turned ? k : product->n;
	int64_t length_a = product->a_turned ? k : product->m, length_b = product->b_turned ? product->n : k;
	hr_status status = HR_OK;
	if (padding->a) {
		status = pad(launch, product->a, to, rows_a, length_a, product->a_row, product->in);
		product->a = to;
		product->a_row = even(length_a);
	}
	if (padding->b) {
		if (!status && is_first) status = pad(launch, product->b, to + padding->a, rows_b, length_b, product->b_row, product->in);
		product->b = to + padding->a;
		product->b_row = even(length_b);
	}
	if (padding->a && padding->b && product->a_turned && !product->b_turned) product->k = even(k);
	return status;
}

/* Columns [at, at + count) of the result. */
static hr_status run_chunk(const hr__launch *launch, const hr__product *base, const struct padding *padding, int64_t at, int64_t count, uint64_t workspace)
{
	hr__product product = *base;
	char *to = (char *)launch->work->scratch + workspace;
	void *out = (void *)moved(base->out, at, base->to);
	product.m = count;
	product.a = moved(base->a, base->a_turned ? at * base->a_row : at, base->in);
	product.bias = base->bias && !padding->out ? moved(base->bias, at, base->to) : NULL;
	product.out = padding->out ? to + padding->a + padding->b : out;
	if (padding->out) product.out_row = even(count);
	hr_status status = pad_operands(launch, &product, padding, at == 0, to);
	if (padding->out && padding->a && !base->a_turned) product.m = even(count);
	if (!status) status = hr__product_run(launch, &product, launch->work->scratch, workspace);
	if (status || !padding->out) return status;
	hr__strip back = { .from = product.out, .to = out, .bias = base->bias ? moved(base->bias, at, base->to) : NULL, .rows = base->n, .columns = count,
		               .to_columns = count, .from_row = even(count), .to_row = base->out_row, .dtype = base->to };
	return hr__strip_copy(launch, &back);
}

static hr_status run_padded(const hr__launch *launch, const hr__product *product, const struct padding *padding, uint64_t workspace)
{
	hr_status status = HR_OK;
	for (int64_t at = 0; at < product->m && !status; at += padding->chunk)
		status = run_chunk(launch, product, padding, at, product->m - at < padding->chunk ? product->m - at : padding->chunk, workspace);
	return status;
}

/* ---- the op ---- */

static int64_t dim_at(const hr__type *type, int behind)
{
	return type->dims.d[type->dims.rank - 1 - behind];
}

/* Without its batch, and addresses. The first operand of the library is our second. */
static hr__product shape_of(const hr__type *in, const hr__type *out, const hr__attrs *attrs)
{
	return (hr__product){ .m = dim_at(out, 0), .n = dim_at(out, 1), .k = dim_at(&in[0], attrs->transpose_a ? 1 : 0), .batch = 1, .a_row = dim_at(&in[1], 0),
		                  .b_row = dim_at(&in[0], 0), .out_row = dim_at(out, 0), .a_turned = attrs->transpose_b, .b_turned = attrs->transpose_a, .in = in[0].dtype,
		                  .to = out->dtype };
}

static hr__dims batch_of(const hr__type *type)
{
	hr__dims dims = type->dims;
	dims.rank -= 2;
	return dims;
}

/* A batch of matrices with one second operand is one product of all their rows. */
static bool merge(hr__product *product, const hr__type *in, const hr__type *out, const hr__attrs *attrs)
{
	hr__dims of_b = batch_of(&in[1]), of_out = batch_of(out);
	if (attrs->transpose_a || hr__dims_count(&of_b) != 1) return false;
	product->n *= hr__dims_count(&of_out);
	return true;
}

/* For the library: as much as the operands have, so that small products need little. */
static uint64_t library_bytes(const hr__type *in, const hr__type *out)
{
	uint64_t bytes = hr__type_bytes(&in[0]) + hr__type_bytes(&in[1]) + hr__type_bytes(out);
	bytes = HR__UP(bytes, SCRATCH_UNIT) * SCRATCH_UNIT;
	return bytes < HR__PRODUCT_WORKSPACE_MAX ? bytes : HR__PRODUCT_WORKSPACE_MAX;
}

/* Of one product; none for a batch. */
static struct padding padding_in(hr__product *product, const hr__type *in, const hr__type *out, const hr__attrs *attrs, bool *is_one)
{
	hr__dims of_out = batch_of(out);
	*is_one = merge(product, in, out, attrs) || hr__dims_count(&of_out) == 1;
	return *is_one ? padding_of(product) : (struct padding){ 0 };
}

HR__WORKSPACE(matmul)
{
	hr__product product = shape_of(in, out, attrs);
	bool is_one;
	struct padding padding = padding_in(&product, in, out, attrs, &is_one);
	return library_bytes(in, out) + padded_bytes(&padding);
}

/* One call for each run of products whose operands are evenly apart: the last dimension of the walk over the batch. */
static hr_status run_batch(const hr__launch *launch, const hr__product *base, const hr__broadcast *walk, uint64_t workspace)
{
	int last = walk->rank - 1;
	int64_t runs = 1, index[HR_SHAPE_MAX_RANK] = { 0 };
	int64_t of_b = base->m * base->k, of_a = base->k * base->n, of_out = base->m * base->n;
	hr__product product = *base;
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
		hr_status status = hr__product_run(launch, &product, launch->work->scratch, workspace);
		if (status) return status;
	}
	return HR_OK;
}

static hr_status add_bias(const hr__launch *launch, const hr__product *product, int64_t rows)
{
	hr__strip strip = { .from = product->out, .to = product->out, .bias = product->bias, .rows = rows, .columns = product->m, .to_columns = product->m,
		                .from_row = product->m, .to_row = product->m, .dtype = product->to };
	return hr__strip_copy(launch, &strip);
}

HR__LAUNCH(matmul)
{
	const hr__work *work = launch->work;
	const hr__type *out = &work->out_types[0];
	hr__product product = shape_of(work->in_types, out, work->attrs);
	bool is_one;
	struct padding padding = padding_in(&product, work->in_types, out, work->attrs, &is_one);
	uint64_t workspace = library_bytes(work->in_types, out);
	product.a = work->in[1];
	product.b = work->in[0];
	product.bias = work->in_count > 2 ? work->in[2] : NULL;
	product.out = work->out[0];
	int64_t count = hr__dims_count(&out->dims);
	if (!count) return HR_OK;
	if (!product.k) {
		hr_status status = hr__native_fill(launch->native, work->out[0], 0, hr__type_bytes(out));
		return status || !product.bias ? status : add_bias(launch, &product, count / product.m);
	}
	if (padded_bytes(&padding)) return run_padded(launch, &product, &padding, workspace);
	if (is_one) return hr__product_run(launch, &product, work->scratch, workspace);
	hr__dims of_out = batch_of(out), of_a = batch_of(&work->in_types[0]), of_b = batch_of(&work->in_types[1]);
	hr__broadcast walk;
	hr__product each = product;
	each.bias = NULL;
	hr__broadcast_make(&of_out, &of_a, &of_b, &walk);
	hr_status status = run_batch(launch, &each, &walk, workspace);
	return status || !product.bias ? status : add_bias(launch, &product, count / product.m);
}
