/* launch_pool.c - pooling on the card (kernels/pool.cuh). */
#include "runtime/card/card.h"
#include "runtime/ops/ops.h"

static hr_status launch_pool(const hr__launch *launch, const hr__dims *x, const hr__dims *y, hr__k_pool *of, bool pixels, const char *name)
{
	const hr__work *work = launch->work;
	of->out = work->out[0];
	of->planes = x->d[0] * x->d[1];
	of->height = x->d[2];
	of->width = x->d[3];
	of->rows = y->d[2];
	of->columns = y->d[3];
	of->size = work->attrs->size;
	of->stride = work->attrs->stride;
	int64_t count = of->planes * (pixels ? of->height * of->width : of->rows * of->columns);
	hr__grid grid = hr__launch_grid(launch, count);
	return count ? hr__launch_kernel(launch, HR__PROGRAM_POOL, work->out_types[0].dtype, name, &grid, of) : HR_OK;
}

HR__LAUNCH(max_pool)
{
	const hr__work *work = launch->work;
	return launch_pool(launch, &work->in_types[0].dims, &work->out_types[0].dims, &(hr__k_pool){ .in = work->in[0] }, false, "hr_max_pool");
}

HR__LAUNCH(avg_pool)
{
	const hr__work *work = launch->work;
	return launch_pool(launch, &work->in_types[0].dims, &work->out_types[0].dims, &(hr__k_pool){ .in = work->in[0] }, false, "hr_avg_pool");
}

HR__LAUNCH(max_pool_grad)
{
	const hr__work *work = launch->work;
	hr__k_pool of = { .grad = work->in[0], .in = work->in[1], .most = work->in[2] };
	return launch_pool(launch, &work->out_types[0].dims, &work->in_types[0].dims, &of, true, "hr_max_pool_grad");
}

HR__LAUNCH(avg_pool_grad)
{
	const hr__work *work = launch->work;
	return launch_pool(launch, &work->out_types[0].dims, &work->in_types[0].dims, &(hr__k_pool){ .grad = work->in[0] }, true, "hr_avg_pool_grad");
}
