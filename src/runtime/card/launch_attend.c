/* launch_attend.c - fused attention on the card (kernels/attend.cuh, attend_tensor.cuh). */
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

#define TENSOR_WIDTH 64 /* of a head */
#define TENSOR_ROWS 64
#define TENSOR_THREADS 128

/* Cards from Ampere on multiply TF32. */
static bool fits_tensor_cores(const hr__launch *launch, const hr__k_attend *of)
{
	hr_dtype dtype = launch->work->out_types[0].dtype;
	return dtype == HR_DTYPE_FLOAT32 && of->width <= TENSOR_WIDTH && of->value_width <= TENSOR_WIDTH && hr__card_facts_of(launch->card)->arch >= 80;
}

static hr_status launch_rows(const hr__launch *launch, const char *name, int64_t rows, hr__k_attend *of)
{
	uintptr_t bits = (uintptr_t)of->q | (uintptr_t)of->k | (uintptr_t)of->v | (uintptr_t)of->dy;
	of->even = bits % 16 == 0 && (of->width | of->value_width) % 4 == 0;
	if (rows == 0 || of->jobs == 0) return HR_OK;
	hr__grid grid = { .x = (uint32_t)HR__UP(rows, TENSOR_ROWS), .y = 1, .z = (uint32_t)(of->jobs < HEADS_MAX ? of->jobs : HEADS_MAX), .threads = TENSOR_THREADS };
	return hr__launch_kernel(launch, HR__PROGRAM_ATTEND_TENSOR, HR_DTYPE_FLOAT32, name, &grid, of);
}

/* ---- all others ---- */

/* Tiles of [rows], and of the result's [width]. */
static hr_status launch_tiles(const hr__launch *launch, hr_dtype dtype, const char *name, int64_t rows, int64_t width, hr__k_attend *of)
{
	int64_t tile = dtype == HR_DTYPE_FLOAT32 ? 64 : 32;
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
	if (fits_tensor_cores(launch, &of)) return launch_rows(launch, "hr_tensor_attend", of.rows, &of);
	return launch_tiles(launch, work->out_types[0].dtype, "hr_attend", of.rows, of.value_width, &of);
}

HR__WORKSPACE(attend_grad)
{
	hr__k_attend of = attend_of(in + 1, attrs);
	(void)out;
	return (uint64_t)(of.jobs * of.rows) * hr_dtype_size(in[1].dtype);
}

HR__LAUNCH(attend_grad)
{
	const hr__work *work = launch->work;
	hr_dtype dtype = work->out_types[0].dtype;
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
	hr__grid grid = hr__launch_grid(launch, of.jobs * of.rows * 32);
	hr_status status = of.jobs > 0 && of.rows > 0 ? hr__launch_kernel(launch, HR__PROGRAM_ATTEND, dtype, "hr_attend_sums", &grid, &of) : HR_OK;
	if (!status && fits_tensor_cores(launch, &of)) {
		status = launch_rows(launch, "hr_tensor_queries", of.rows, &of);
		return status ? status : launch_rows(launch, "hr_tensor_keys", of.columns, &of);
	}
	int64_t widest = of.width > of.value_width ? of.width : of.value_width;
	if (!status) status = launch_tiles(launch, dtype, "hr_attend_queries", of.rows, of.width, &of);
	return status ? status : launch_tiles(launch, dtype, "hr_attend_keys", of.columns, widest, &of);
}
