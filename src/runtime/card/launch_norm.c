/* launch_norm.c - layer norm and batch norm on the card (kernels/norm.cuh). */
#include "runtime/card/card.h"
#include "runtime/ops/ops.h"

#define WARP 32
#define TASKS 1024        /* that keep a card busy */
#define LEAST_ROWS 32     /* of a block of layer norm's rows */
#define PACK 4            /* columns of a thread, of float32 */
#define LEAST_NUMBERS 4096 /* of a block of batch norm's channel */

/* ---- layer norm ---- */

static hr__k_norm norm_of(const hr__type *x)
{
	hr__k_norm of = { .length = x->dims.d[x->dims.rank - 1] };
	int64_t behind;
	hr__around(&x->dims, x->dims.rank - 1, &of.rows, &behind);
	return of;
}

HR__LAUNCH(layer_norm)
{
	const hr__work *work = launch->work;
	hr_dtype dtype = work->in_types[0].dtype;
	hr__k_norm of = norm_of(&work->in_types[0]);
	of.in = work->in[0];
	of.gain = work->in[1];
	of.bias = work->in[2];
	of.out = work->out[0];
	of.out_mean = work->out[1];
	of.out_scale = work->out[2];
	of.epsilon = work->attrs->a;
	of.out_narrow = HR__IS_NARROW(&work->out_types[0]);
	if (!of.rows) return HR_OK;
	bool even = hr__launch_is_even(dtype, of.length, (const void *[]){ of.in, of.gain, of.bias, of.out }, 4);
	return hr__launch_groups(launch, HR__PROGRAM_NORM, dtype, "layer_norm", of.rows, of.length, even, &of);
}

/* Divides the rows into blocks; by the shape alone. */
static void set_norm_blocks(hr__k_norm *of)
{
	int64_t chunks = HR__UP(of->length, of->length % PACK ? WARP : WARP * PACK), wanted = chunks ? HR__UP(TASKS, chunks) : 1, most = HR__UP(of->rows, LEAST_ROWS);
	int64_t blocks = wanted < most ? wanted : most;
	of->each = blocks > 0 ? HR__UP(of->rows, blocks) : 1;
	of->blocks = of->each ? HR__UP(of->rows, of->each) : 0;
}

HR__WORKSPACE(layer_norm_grad)
{
	hr__k_norm of = norm_of(&in[1]);
	(void)out, (void)attrs;
	set_norm_blocks(&of);
	return (uint64_t)(of.blocks * 2 * of.length) * sizeof(double);
}

/* The gradients of gain and bias first: that of x may overwrite the gradient of y. */
HR__LAUNCH(layer_norm_grad)
{
	const hr__work *work = launch->work;
	hr_dtype dtype = work->in_types[1].dtype;
	hr__k_norm of = norm_of(&work->in_types[1]);
	of.grad = work->in[0];
	of.in = work->in[1];
	of.gain = work->in[2];
	of.mean = work->in[3];
	of.scale = work->in[4];
	of.out = work->out[0];
	of.of_gain = work->out[1];
	of.of_bias = work->out[2];
	of.partials = work->scratch;
	of.plus = work->in_count > 5 ? work->in[5] : NULL;
	of.grad_narrow = HR__IS_NARROW(&work->in_types[0]);
	set_norm_blocks(&of);
	if (!of.length) return HR_OK;
	bool even = hr__launch_is_even(dtype, of.length, (const void *[]){ of.in, of.gain, of.grad, of.out, of.plus }, 5);
	int64_t chunks = HR__UP(of.length, WARP * (even ? hr__launch_pack(dtype) : 1));
	hr__grid grid = hr__launch_grid(launch, of.blocks * chunks * (int64_t)HR__BLOCK), joining = hr__launch_grid(launch, HR__UP(2 * of.length, WARP) * (int64_t)HR__BLOCK);
	const char *columns = even ? "hr_layer_norm_columns_n" : "hr_layer_norm_columns_1";
	hr_status status = of.rows ? hr__launch_kernel(launch, HR__PROGRAM_NORM, dtype, columns, &grid, &of) : HR_OK;
	if (!status) status = hr__launch_kernel(launch, HR__PROGRAM_NORM, dtype, "hr_layer_norm_join", &joining, &of);
	if (status || !of.rows) return status;
	return hr__launch_groups(launch, HR__PROGRAM_NORM, dtype, "layer_norm_grad", of.rows, of.length, even, &of);
}

/* ---- batch norm ---- */

static hr__k_batch batch_of(const hr__type *x)
{
	hr__k_batch of = { .channels = x->dims.d[1] };
	hr__around(&x->dims, 1, &of.images, &of.inner);
	int64_t numbers = of.images * of.inner, wanted = of.channels ? HR__UP(TASKS, of.channels) : 1, most = HR__UP(numbers, LEAST_NUMBERS);
	int64_t blocks = wanted < most ? wanted : most, unit = 4; /* blocks begin at multiples of a pack */
	of.each = blocks > 0 ? HR__UP(HR__UP(numbers, blocks), unit) * unit : 1;
	of.blocks = HR__UP(numbers, of.each);
	return of;
}

/* Partial sums of each block, then two numbers of each channel. */
static uint64_t batch_workspace(const hr__k_batch *of)
{
	return (uint64_t)(2 * of->channels * (of->blocks + 1)) * sizeof(double);
}

HR__WORKSPACE(batch_norm)
{
	hr__k_batch of = batch_of(&in[0]);
	(void)out, (void)attrs;
	return batch_workspace(&of);
}

HR__WORKSPACE(batch_norm_grad)
{
	hr__k_batch of = batch_of(&in[1]);
	(void)out, (void)attrs;
	return batch_workspace(&of);
}

struct batch_kernels {
	const char *part[2], *join, *apply[2]; /* of single elements, and of packs */
};

static hr_status run_batch_norm(const hr__launch *launch, hr__k_batch *of, hr_dtype dtype, bool even, const struct batch_kernels *kernels)
{
	int64_t numbers = of->images * of->channels * of->inner, pack = even ? hr__launch_pack(dtype) : 1;
	of->partials = launch->work->scratch;
	if (!of->channels) return HR_OK;
	of->stats = of->partials + 2 * of->channels * of->blocks;
	hr__grid parts = hr__launch_grid(launch, of->channels * of->blocks * (int64_t)HR__BLOCK), all = hr__launch_grid(launch, numbers / pack);
	hr__grid joining = hr__launch_grid(launch, of->channels * WARP);
	hr_status status = numbers ? hr__launch_kernel(launch, HR__PROGRAM_NORM, dtype, kernels->part[even], &parts, of) : HR_OK;
	if (!status) status = hr__launch_kernel(launch, HR__PROGRAM_NORM, dtype, kernels->join, &joining, of);
	if (!status && numbers) status = hr__launch_kernel(launch, HR__PROGRAM_NORM, dtype, kernels->apply[even], &all, of);
	return status;
}

HR__LAUNCH(batch_norm)
{
	static const struct batch_kernels kernels = { { "hr_batch_part_1", "hr_batch_part_n" }, "hr_batch_join", { "hr_batch_apply_1", "hr_batch_apply_n" } };
	const hr__work *work = launch->work;
	hr_dtype dtype = work->in_types[0].dtype;
	hr__k_batch of = batch_of(&work->in_types[0]);
	of.in = work->in[0];
	of.gain = work->in[1];
	of.bias = work->in[2];
	of.out = work->out[0];
	of.first = work->out[1];
	of.second = work->out[2];
	of.epsilon = work->attrs->a;
	return run_batch_norm(launch, &of, dtype, hr__launch_is_even(dtype, of.inner, (const void *[]){ of.in, of.out }, 2), &kernels);
}

HR__LAUNCH(batch_norm_grad)
{
	static const struct batch_kernels kernels = { { "hr_batch_grad_part_1", "hr_batch_grad_part_n" },
		                                          "hr_batch_grad_join",
		                                          { "hr_batch_grad_apply_1", "hr_batch_grad_apply_n" } };
	const hr__work *work = launch->work;
	hr_dtype dtype = work->in_types[1].dtype;
	hr__k_batch of = batch_of(&work->in_types[1]);
	of.grad = work->in[0];
	of.in = work->in[1];
	of.gain = work->in[2];
	of.mean = work->in[3];
	of.variance = work->in[4];
	of.out = work->out[0];
	of.first = work->out[1];
	of.second = work->out[2];
	of.epsilon = work->attrs->a;
	return run_batch_norm(launch, &of, dtype, hr__launch_is_even(dtype, of.inner, (const void *[]){ of.in, of.grad, of.out }, 3), &kernels);
}
