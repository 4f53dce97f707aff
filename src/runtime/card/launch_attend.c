/* launch_attend.c - fused attention on the card (kernels/attend.cuh, attend_tensor.cuh, attend_bfloat16.cuh). */
#include "runtime/card/card.h"
#include "runtime/ops/ops.h"

#define HEADS_MAX 65535 /* of a grid's last dimension */

static int64_t from_end(const hr__type *type, int n)
{
	return type->dims.d[type->dims.rank - n];
}

/* [in]: q, k, v. */
static hr__k_attend attend_of(const hr__type *in, const hr__attrs *attrs)
{
	hr__dims batch = in[0].dims;
	batch.rank -= 2;
	return (hr__k_attend){ .heads = attrs->count, .rows = from_end(&in[0], 2), .columns = from_end(&in[1], 2), .width = from_end(&in[0], 1) / attrs->count,
		                   .value_width = from_end(&in[2], 1) / attrs->count, .q_row = from_end(&in[0], 1), .k_row = from_end(&in[1], 1),
		                   .v_row = from_end(&in[2], 1), .y_row = from_end(&in[2], 1), .jobs = hr__dims_count(&batch) * attrs->count, .causal = attrs->keep,
		                   .scale = attrs->a };
}

/* ---- tensor cores ---- */

/* Cards from Ampere on multiply TF32 and bfloat16. */
static bool has_tensor_cores(const hr__launch *launch)
{
	return hr__card_facts_of(launch->card)->arch >= 80;
}

static bool is_narrower(const hr__k_attend *of, int64_t width)
{
	return of->width <= width && of->value_width <= width;
}

static uintptr_t bits_of(const hr__k_attend *of)
{
	return (uintptr_t)of->q | (uintptr_t)of->k | (uintptr_t)of->v | (uintptr_t)of->dy;
}

/* ---- float32 by tensor cores ---- */

#define TENSOR_WIDTH 64 /* of a head */
#define TENSOR_ROWS 64
#define TENSOR_THREADS 128

static bool fits_tensor_cores(const hr__launch *launch, hr_dtype dtype, const hr__k_attend *of)
{
	return dtype == HR_DTYPE_FLOAT32 && is_narrower(of, TENSOR_WIDTH) && has_tensor_cores(launch);
}

static hr_status launch_rows(const hr__launch *launch, const char *name, int64_t rows, hr__k_attend *of)
{
	of->even = bits_of(of) % 16 == 0 && (of->width | of->value_width) % 4 == 0;
	if (rows == 0 || of->jobs == 0) return HR_OK;
	hr__grid grid = { .x = (uint32_t)HR__UP(rows, TENSOR_ROWS), .y = 1, .z = (uint32_t)(of->jobs < HEADS_MAX ? of->jobs : HEADS_MAX), .threads = TENSOR_THREADS };
	return hr__launch_kernel(launch, HR__PROGRAM_ATTEND_TENSOR, HR_DTYPE_FLOAT32, name, &grid, of);
}

/* ---- bfloat16 by tensor cores ---- */

#define NARROW_WIDTH 128 /* of a head */
#define NARROW_THREADS 128
#define COUNTED INT64_C(0x3fffffff) /* rows, in 32 bits */

static bool fits_narrow(const hr__launch *launch, hr_dtype dtype, const hr__k_attend *of)
{
	uintptr_t bits = bits_of(of) | (uintptr_t)of->y | (uintptr_t)of->out;
	bool even = bits % 16 == 0 && (of->width | of->value_width) % 8 == 0;
	return dtype == HR_DTYPE_BFLOAT16 && is_narrower(of, NARROW_WIDTH) && even && of->rows <= COUNTED && of->columns <= COUNTED && has_tensor_cores(launch);
}

/* There is a kernel for heads of up to 64 numbers, and one for up to 128. */
static hr_status launch_narrow(const hr__launch *launch, const char *of_64, const char *of_128, int64_t rows, hr__k_attend *of)
{
	bool fits_64 = is_narrower(of, 64);
	int64_t tile = fits_64 ? 128 : 64;
	if (rows == 0 || of->jobs == 0) return HR_OK;
	hr__grid grid = { .x = (uint32_t)(HR__UP(rows, tile) * of->jobs), .y = 1, .z = 1, .threads = NARROW_THREADS };
	return hr__launch_kernel(launch, HR__PROGRAM_ATTEND_BFLOAT16, HR_DTYPE_BFLOAT16, fits_64 ? of_64 : of_128, &grid, of);
}

static hr_status launch_narrow_grad(const hr__launch *launch, hr__k_attend *of)
{
	hr_status status = launch_narrow(launch, "hr_narrow_queries_64", "hr_narrow_queries_128", of->rows, of);
	return status ? status : launch_narrow(launch, "hr_narrow_keys_64", "hr_narrow_keys_128", of->columns, of);
}

/* ---- all others ---- */

/* Tiles of [rows], and of the result's [width]. */
static hr_status launch_tiles(const hr__launch *launch, hr_dtype dtype, const char *name, int64_t rows, int64_t width, hr__k_attend *of)
{
	int64_t tile = dtype == HR_DTYPE_FLOAT64 ? 32 : 64;
	if (rows == 0 || of->jobs == 0) return HR_OK;
	hr__grid grid = { .x = (uint32_t)HR__UP(rows, tile), .y = width > 0 ? (uint32_t)HR__UP(width, tile) : 1,
		              .z = (uint32_t)(of->jobs < HEADS_MAX ? of->jobs : HEADS_MAX), .threads = HR__BLOCK };
	return hr__launch_kernel(launch, HR__PROGRAM_ATTEND, dtype, name, &grid, of);
}

HR__LAUNCH(attend)
{
	const hr__work *work = launch->work;
	hr__k_attend of = attend_of(work->in_types, work->attrs);
	of.q = work->in[0];
	of.k = work->in[1];
	of.v = work->in[2];
	of.y = of.out = work->out[0];
	of.out_logs = work->out[1];
	hr_dtype dtype = work->in_types[0].dtype;
	if (fits_narrow(launch, dtype, &of)) return launch_narrow(launch, "hr_narrow_attend_64", "hr_narrow_attend_128", of.rows, &of);
	if (fits_tensor_cores(launch, dtype, &of)) return launch_rows(launch, "hr_tensor_attend", of.rows, &of);
	return launch_tiles(launch, dtype, "hr_attend", of.rows, of.value_width, &of);
}

HR__WORKSPACE(attend_grad)
{
	hr__k_attend of = attend_of(in + 1, attrs);
	(void)out;
	return (uint64_t)(of.jobs * of.rows) * hr_dtype_size(hr__gradient_dtype(in[1].dtype));
}

HR__LAUNCH(attend_grad)
{
	const hr__work *work = launch->work;
	hr_dtype dtype = work->in_types[1].dtype;
	hr__k_attend of = attend_of(work->in_types + 1, work->attrs);
	of.dy = work->in[0];
	of.q = work->in[1];
	of.k = work->in[2];
	of.v = work->in[3];
	of.y = work->in[4];
	of.logs = work->in[5];
	of.dq = work->out[0];
	of.dk = work->out[1];
	of.dv = work->out[2];
	of.sums = work->scratch;
	if (fits_narrow(launch, dtype, &of)) return launch_narrow_grad(launch, &of);
	hr__grid grid = hr__launch_grid(launch, of.jobs * of.rows * 32);
	hr_status status = of.jobs > 0 && of.rows > 0 ? hr__launch_kernel(launch, HR__PROGRAM_ATTEND, dtype, "hr_attend_sums", &grid, &of) : HR_OK;
	if (!status && fits_tensor_cores(launch, dtype, &of)) {
		status = launch_rows(launch, "hr_tensor_queries", of.rows, &of);
		return status ? status : launch_rows(launch, "hr_tensor_keys", of.columns, &of);
	}
	int64_t widest = of.width > of.value_width ? of.width : of.value_width;
	if (!status) status = launch_tiles(launch, dtype, "hr_attend_queries", of.rows, of.width, &of);
	return status ? status : launch_tiles(launch, dtype, "hr_attend_keys", of.columns, widest, &of);
}
