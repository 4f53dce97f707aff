/* launch_reduce.c - reductions on the card (kernels/reduce.cuh). */
#include <stdio.h>

#include "headroom_runtime.h"
#include "runtime/card/card.h"
#include "runtime/ops/ops.h"

#define WARP 32
#define TASKS 1024          /* that keep a card busy: the elements of few results are divided into blocks */
#define ROW_ELEMENTS 4096   /* at least, of a block of neighbours */
#define COLUMN_ELEMENTS 64  /* at least, of a block of a column */
#define MOST_BLOCKS 1024
#define PACK 4              /* columns of a thread, of most dtypes */
#define EACH_UNIT 16        /* a block begins at a multiple: of every pack */

/* ---- what is reduced ---- */

static bool goes(const hr__dims *in, const hr__dims *to, const hr__attrs *attrs, int i)
{
	int own = to ? i - (in->rank - to->rank) : 0;
	if (to) return own < 0 || to->d[own] == 1;
	return attrs->axis == HR_ALL_AXES || i == hr__axis(attrs->axis, in->rank);
}

static void add_dim(hr__k_walk *walk, int64_t d, int64_t step, bool merges)
{
	if (!merges) walk->d[walk->rank++] = 1;
	walk->d[walk->rank - 1] *= d;
	walk->step[walk->rank - 1] = step;
}

static int64_t count_of(const hr__k_walk *walk)
{
	int64_t count = 1;
	for (int i = 0; i < walk->rank; i++) count *= walk->d[i];
	return count;
}

/* So that the walks have at least one dimension. */
static void close_walk(hr__k_walk *walk)
{
	if (!walk->rank) add_dim(walk, 1, 1, false);
}

/* The dimensions, divided into those that are kept and those that are reduced; neighbours of one kind are merged. If the last is kept, it is [inner].
 * [to]: the shape that is reduced to; NULL = along attrs->axis. */
static void set_walks(hr__k_reduce *of, const hr__dims *in, const hr__dims *to, const hr__attrs *attrs)
{
	int64_t step = hr__dims_count(in);
	int last = -1; /* 1: the dimension before is reduced; 0: it is kept */
	of->kept.rank = of->gone.rank = 0;
	for (int i = 0; i < in->rank; i++) {
		if (in->d[i] == 1) continue;
		step = in->d[i] ? step / in->d[i] : 0;
		int now = goes(in, to, attrs, i);
		add_dim(now ? &of->gone : &of->kept, in->d[i], step, now == last);
		last = now;
	}
	of->inner = last == 0 ? of->kept.d[--of->kept.rank] : 1;
	of->outer = count_of(&of->kept);
	of->many = count_of(&of->gone);
	close_walk(&of->kept);
	close_walk(&of->gone);
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Divides the reduced elements into blocks; by the shape alone, so that sums are added in the same order on every card. */
static void set_blocks(hr__k_reduce *of)
{
	int64_t tasks = of->outer * HR__UP(of->inner, of->inner % PACK ? WARP : WARP * PACK), unit = of->inner > 1 ? COLUMN_ELEMENTS : ROW_ELEMENTS;
	int64_t wanted = tasks > 0 ? HR__UP(TASKS, tasks) : 1, most = least(HR__UP(of->many, unit), MOST_BLOCKS);
	of->blocks = wanted < most ? wanted : most;
	if (of->blocks < 1) of->blocks = 1;
	of->each = HR__UP(HR__UP(of->many, of->blocks), EACH_UNIT) * EACH_UNIT;
	of->blocks = of->many ? HR__UP(of->many, of->each) : 1;
}

static uint64_t workspace_of(const hr__k_reduce *of)
{
	return of->blocks > 1 ? (uint64_t)(of->outer * of->blocks * of->inner) * sizeof(uint64_t) : 0;
}

HR__WORKSPACE(reduce)
{
	hr__k_reduce of;
	(void)out;
	set_walks(&of, &in[0].dims, NULL, attrs);
	set_blocks(&of);
	return workspace_of(&of);
}

HR__WORKSPACE(sum_to)
{
	hr__k_reduce of;
	(void)attrs;
	set_walks(&of, &in[0].dims, &out->dims, NULL);
	set_blocks(&of);
	return workspace_of(&of);
}

/* ---- launches ---- */

/* Packs of columns are neighbours if every other dimension is made of whole packs. */
static bool columns_are_even(const hr__k_reduce *of, hr_dtype dtype)
{
	int64_t pack = hr__launch_pack(dtype);
	for (int i = 0; i < of->gone.rank; i++)
		if (of->gone.d[i] > 1 && of->gone.step[i] % pack) return false;
	for (int i = 0; i < of->kept.rank; i++)
		if (of->kept.d[i] > 1 && of->kept.step[i] % pack) return false;
	return hr__launch_is_even(dtype, of->inner, &of->in, 1);
}

static hr_status launch_columns(const hr__launch *launch, const char *what, hr__k_reduce *of)
{
	char name[40];
	hr_dtype dtype = hr__launch_dtype(&launch->work->in_types[0]);
	bool even = columns_are_even(of, dtype);
	int64_t tasks = of->outer * of->blocks * HR__UP(of->inner, WARP * (even ? hr__launch_pack(dtype) : 1));
	snprintf(name, sizeof name, "hr_%s_columns_%c", what, even ? 'n' : '1');
	hr__grid grid = hr__launch_grid(launch, tasks * HR__BLOCK);
	return hr__launch_kernel(launch, HR__PROGRAM_REDUCE, dtype, name, &grid, of);
}

static hr_status launch_join(const hr__launch *launch, const char *what, hr__k_reduce *of)
{
	char name[40];
	snprintf(name, sizeof name, "hr_%s_join", what);
	hr__grid grid = hr__launch_grid(launch, of->outer * of->inner * WARP);
	return hr__launch_kernel(launch, HR__PROGRAM_REDUCE, hr__launch_dtype(&launch->work->in_types[0]), name, &grid, of);
}

/* Packs are neighbours if every dimension but the last is made of whole packs. */
static bool rows_are_even(const hr__k_reduce *of, hr_dtype dtype)
{
	int64_t pack = hr__launch_pack(dtype), last = of->gone.d[of->gone.rank - 1];
	if (of->gone.step[of->gone.rank - 1] != 1) return false;
	for (int i = 0; i + 1 < of->gone.rank; i++)
		if (of->gone.step[i] % pack) return false;
	for (int i = 0; i < of->kept.rank; i++)
		if (of->kept.d[i] > 1 && of->kept.step[i] % pack) return false;
	return hr__launch_is_even(dtype, last, &of->in, 1);
}

static hr_status reduce(const hr__launch *launch, hr__k_reduce *of, const char *what)
{
	const hr__work *work = launch->work;
	hr_dtype dtype = hr__launch_dtype(&work->in_types[0]);
	hr_status status;
	of->narrow = HR__IS_NARROW(&work->in_types[0]);
	of->in = work->in[0];
	of->out = work->out[0];
	of->partials = work->scratch;
	set_blocks(of);
	if (of->outer == 0 || of->inner == 0) return HR_OK;
	if (of->inner > 1) status = launch_columns(launch, what, of);
	else status = hr__launch_groups(launch, HR__PROGRAM_REDUCE, dtype, what, of->outer * of->blocks, least(of->each, of->many), rows_are_even(of, dtype), of);
	return status || of->blocks == 1 ? status : launch_join(launch, what, of);
}

HR__LAUNCH(reduce)
{
	const hr__work *work = launch->work;
	bool is_mean = launch->op == &hr__ops[HR__OP_REDUCE_MEAN], is_max = launch->op == &hr__ops[HR__OP_REDUCE_MAX];
	hr__k_reduce of = { .divisor = 1 };
	set_walks(&of, &work->in_types[0].dims, NULL, work->attrs);
	if (is_mean) of.divisor = (double)of.many;
	return reduce(launch, &of, is_max ? "max" : "sum");
}

HR__LAUNCH(sum_to)
{
	const hr__work *work = launch->work;
	hr__k_reduce of = { .divisor = 1 };
	set_walks(&of, &work->in_types[0].dims, &work->out_types[0].dims, NULL);
	return reduce(launch, &of, "sum");
}

HR__LAUNCH(max_grad)
{
	const hr__work *work = launch->work;
	const hr__dims *dims = &work->in_types[0].dims;
	hr__k_share of = { .in = work->in[0], .most = work->in[1], .grad = work->in[2], .out = work->out[0], .outer = 1, .many = hr__dims_count(dims), .inner = 1 };
	if (work->attrs->axis != HR_ALL_AXES) {
		int axis = hr__axis(work->attrs->axis, dims->rank);
		hr__around(dims, axis, &of.outer, &of.inner);
		of.many = dims->d[axis];
	}
	if (!hr__dims_count(dims)) return HR_OK;
	int64_t threads = of.inner >= WARP ? 1 : of.many <= 1024 ? WARP : (int64_t)HR__BLOCK;
	hr__grid grid = hr__launch_grid(launch, of.outer * of.inner * threads);
	const char *name = threads == 1 ? "hr_share_thread" : threads == WARP ? "hr_share_warp" : "hr_share_block";
	return hr__launch_kernel(launch, HR__PROGRAM_REDUCE, work->in_types[0].dtype, name, &grid, &of);
}
