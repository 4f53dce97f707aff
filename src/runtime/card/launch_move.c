/* launch_move.c - ops that move elements on the card (kernels/move.cuh), in the largest units that sizes and addresses are multiples of. */
#include <stdio.h>

#include "headroom_runtime.h"
#include "runtime/card/card.h"
#include "runtime/kernels/bfloat16.h"
#include "runtime/ops/ops.h"

#define UNIT_MAX 16 /* bytes */
#define WARP 32

static int64_t size_of(const hr__type *type)
{
	return (int64_t)hr_dtype_size(type->dtype);
}

/* The largest unit of which [bits], an OR of sizes and addresses, are multiples. */
static int64_t unit_of(uint64_t bits)
{
	bits |= UNIT_MAX;
	return (int64_t)(bits & ~(bits - 1));
}

static hr_status launch_units(const hr__launch *launch, const char *name, int64_t unit, int64_t threads, void *arguments)
{
	char full[40];
	snprintf(full, sizeof full, "hr_%s_%d", name, (int)unit);
	hr__grid grid = hr__launch_grid(launch, threads);
	return hr__launch_kernel(launch, HR__PROGRAM_MOVE, (hr_dtype)0, full, &grid, arguments);
}

/* ---- blocks: concat, slice, pad, copy ---- */

/* In bytes. */
static hr_status copy_blocks(const hr__launch *launch, const void *from, void *to, int64_t rows, int64_t bytes, int64_t from_step, int64_t to_step)
{
	if (rows == 0 || bytes == 0) return HR_OK;
	if (rows == 1 || (bytes == from_step && bytes == to_step)) return hr__native_copy(launch->native, to, from, (uint64_t)(rows * bytes));
	int64_t unit = unit_of((uint64_t)bytes | (uint64_t)from_step | (uint64_t)to_step | (uintptr_t)from | (uintptr_t)to);
	hr__k_move of = { .from = from, .to = to, .rows = rows, .length = bytes / unit, .from_step = from_step / unit, .to_step = to_step / unit };
	return launch_units(launch, "blocks", unit, of.rows * of.length, &of);
}

struct reading {
	hr__launch launch;
	hr__k_move move; /* in bytes */
};

static hr_status launch_reading(const hr__native *native, void *argument)
{
	struct reading *reading = argument;
	hr__k_move of = reading->move;
	int64_t unit = unit_of((uint64_t)of.length | (uintptr_t)of.from | (uintptr_t)of.to);
	of.length = of.from_step = of.to_step = of.length / unit;
	reading->launch.native = native;
	return launch_units(&reading->launch, "blocks", unit, of.length, &of);
}

hr_status hr__card_read(hr__card *card, void *to, const void *from, uint64_t bytes, hr_stream stream)
{
	struct reading reading = { .launch = { .card = card }, .move = { .from = from, .to = to, .rows = 1, .length = (int64_t)bytes } };
	HR_ASSERT(bytes > 0 && bytes <= INT64_MAX);
	return hr__device_native(hr__card_facts_of(card)->device, stream, launch_reading, &reading);
}

HR__LAUNCH(concat)
{
	const hr__work *work = launch->work;
	const hr__dims *dims = &work->out_types[0].dims;
	int axis = hr__axis(work->attrs->axis, dims->rank);
	int64_t before, behind, at = 0, size = size_of(&work->out_types[0]);
	hr_status status = HR_OK;
	hr__around(dims, axis, &before, &behind);
	for (uint32_t i = 0; i < work->in_count && !status; i++) {
		int64_t bytes = work->in_types[i].dims.d[axis] * behind * size;
		status = copy_blocks(launch, work->in[i], (char *)work->out[0] + at, before, bytes, bytes, dims->d[axis] * behind * size);
		at += bytes;
	}
	return status;
}

HR__LAUNCH(slice)
{
	const hr__work *work = launch->work;
	const hr__dims *dims = &work->in_types[0].dims;
	int axis = hr__axis(work->attrs->axis, dims->rank);
	int64_t before, behind;
	hr__around(dims, axis, &before, &behind);
	int64_t unit = behind * size_of(&work->in_types[0]), bytes = work->attrs->count * unit;
	return copy_blocks(launch, (const char *)work->in[0] + work->attrs->begin * unit, work->out[0], before, bytes, dims->d[axis] * unit, bytes);
}

HR__LAUNCH(pad)
{
	const hr__work *work = launch->work;
	const hr__dims *dims = &work->out_types[0].dims;
	int axis = hr__axis(work->attrs->axis, dims->rank);
	int64_t before, behind;
	hr__around(dims, axis, &before, &behind);
	int64_t unit = behind * size_of(&work->out_types[0]), bytes = work->in_types[0].dims.d[axis] * unit;
	hr_status status = hr__native_fill(launch->native, work->out[0], 0, hr__type_bytes(&work->out_types[0]));
	return status ? status : copy_blocks(launch, work->in[0], (char *)work->out[0] + work->attrs->begin * unit, before, bytes, bytes, dims->d[axis] * unit);
}

HR__LAUNCH(copy)
{
	return hr__native_copy(launch->native, launch->work->out[0], launch->work->in[0], hr__type_bytes(&launch->work->out_types[0]));
}

/* ---- walks: transpose, broadcast ---- */

/* Elements of [size], in the order of the output, from where the walk says. Rows that are neighbours in both are moved in larger units. */
static hr_status copy_walk(const hr__launch *launch, hr__k_walk walk, int64_t size)
{
	const hr__work *work = launch->work;
	int last = walk.rank - 1;
	int64_t unit = size;
	if (walk.step[last] == 1) {
		uint64_t bits = (uintptr_t)work->in[0] | (uintptr_t)work->out[0] | (uint64_t)(walk.d[last] * size);
		for (int i = 0; i < last; i++) bits |= (uint64_t)(walk.step[i] * size);
		unit = unit_of(bits);
		walk.d[last] = walk.d[last] * size / unit;
		for (int i = 0; i < last; i++) walk.step[i] = walk.step[i] * size / unit;
	}
	hr__k_move of = { .from = work->in[0], .to = work->out[0], .rows = 1, .walk = walk };
	for (int i = 0; i < walk.rank; i++) of.rows *= walk.d[i];
	return launch_units(launch, "walk", unit, of.rows, &of);
}

HR__LAUNCH(broadcast_to)
{
	const hr__work *work = launch->work;
	hr__broadcast spread;
	hr__k_walk walk;
	if (!hr__dims_count(&work->out_types[0].dims)) return HR_OK;
	hr__broadcast_make(&work->out_types[0].dims, &work->in_types[0].dims, &work->in_types[0].dims, &spread);
	walk.rank = spread.rank;
	for (int i = 0; i < spread.rank; i++) {
		walk.d[i] = spread.d[i];
		walk.step[i] = spread.a[i];
	}
	return copy_walk(launch, walk, size_of(&work->out_types[0]));
}

/* The output's dimensions, with their steps in the input; those that stay beside each other are merged. */
static void set_turned(const hr__work *work, hr__k_walk *walk)
{
	const hr__dims *in = &work->in_types[0].dims, *out = &work->out_types[0].dims;
	int64_t steps[HR_SHAPE_MAX_RANK], step = 1;
	for (int i = in->rank; i-- > 0; step *= in->d[i]) steps[i] = step;
	walk->rank = 0;
	for (int i = 0; i < out->rank; i++) {
		int64_t d = out->d[i], own = steps[work->attrs->order[i]];
		if (d == 1) continue;
		if (!walk->rank || walk->step[walk->rank - 1] != d * own) walk->d[walk->rank++] = 1;
		walk->d[walk->rank - 1] *= d;
		walk->step[walk->rank - 1] = own;
	}
	if (!walk->rank) *walk = (hr__k_walk){ .rank = 1, .d = { 1 }, .step = { 1 } };
}

static void add_plane(hr__k_walk *walk, int64_t d, int64_t step)
{
	walk->d[walk->rank] = d;
	walk->step[walk->rank++] = step;
}

/* [fast]: the output's dimension that is the input's last. */
static hr_status turn_tiles(const hr__launch *launch, const hr__k_walk *walk, int fast, int64_t size)
{
	int last = walk->rank - 1;
	int64_t to_step = 1;
	hr__k_turn of = { .from = launch->work->in[0], .to = launch->work->out[0], .planes = 1, .high = walk->d[fast], .wide = walk->d[last],
		              .across = walk->step[last] };
	int64_t steps[HR__K_RANK] = { 0 };
	for (int i = last; i >= 0; to_step *= walk->d[i--]) steps[i] = to_step;
	of.down = steps[fast];
	for (int i = 0; i < last; i++) {
		if (i == fast) continue;
		of.planes *= walk->d[i];
		add_plane(&of.from_walk, walk->d[i], walk->step[i]);
		add_plane(&of.to_walk, walk->d[i], steps[i]);
	}
	if (!of.from_walk.rank) {
		add_plane(&of.from_walk, 1, 0);
		add_plane(&of.to_walk, 1, 0);
	}
	int64_t tiles = of.planes * HR__UP(of.high, WARP) * HR__UP(of.wide, WARP);
	return launch_units(launch, "turn", size, tiles * (int64_t)HR__BLOCK, &of);
}

HR__LAUNCH(transpose)
{
	const hr__work *work = launch->work;
	hr__k_walk walk;
	int fast = 0;
	if (!hr__dims_count(&work->out_types[0].dims)) return HR_OK;
	set_turned(work, &walk);
	for (int i = 0; i < walk.rank; i++)
		if (walk.step[i] == 1) fast = i;
	int64_t size = size_of(&work->out_types[0]);
	return fast == walk.rank - 1 ? copy_walk(launch, walk, size) : turn_tiles(launch, &walk, fast, size);
}

/* ---- rows by index ---- */

static hr__k_index index_of(const hr__launch *launch, uint32_t indices)
{
	const hr__work *work = launch->work;
	return (hr__k_index){ .from = work->in[0], .indices = work->in[indices], .to = work->out[0], .count = hr__dims_count(&work->in_types[indices].dims),
		                  .wide_indices = HR__IS_WIDE(&work->in_types[indices]), .faults = launch->faults };
}

HR__LAUNCH(gather)
{
	const hr__work *work = launch->work;
	hr__k_index of = index_of(launch, 1);
	int64_t before, row;
	hr__around(&work->in_types[0].dims, 0, &before, &row);
	row *= size_of(&work->in_types[0]);
	of.rows = work->in_types[0].dims.d[0];
	int64_t unit = unit_of((uint64_t)row | (uintptr_t)of.from | (uintptr_t)of.to);
	of.length = row / unit;
	return of.count > 0 && of.length > 0 ? launch_units(launch, "gather", unit, of.count * of.length, &of) : HR_OK;
}

static uint64_t bits_of_one(hr_dtype dtype)
{
	union {
		float f32;
		double f64;
		uint64_t bits;
	} one = { .bits = 1 };
	if (dtype == HR_DTYPE_FLOAT32) one.f32 = 1;
	if (dtype == HR_DTYPE_FLOAT64) one.f64 = 1;
	return dtype == HR_DTYPE_BFLOAT16 ? hr__bfloat16_of_f32(1) : one.bits;
}

HR__LAUNCH(one_hot)
{
	hr__k_index of = index_of(launch, 0);
	of.length = launch->work->attrs->count;
	of.one = bits_of_one(launch->work->out_types[0].dtype);
	return of.count > 0 && of.length > 0 ? launch_units(launch, "one_hot", size_of(&launch->work->out_types[0]), of.count * of.length, &of) : HR_OK;
}

#define SCATTER_BLOCKS 512

HR__LAUNCH(scatter_rows)
{
	const hr__work *work = launch->work;
	const hr__type *table = &work->out_types[0];
	hr__k_index of = index_of(launch, 1);
	int64_t before;
	hr__around(&table->dims, 0, &before, &of.length);
	of.rows = table->dims.d[0];
	hr_status status = hr__native_fill(launch->native, of.to, 0, hr__type_bytes(table));
	if (status || of.count == 0 || of.length == 0) return status;
	bool even = hr__launch_is_even(table->dtype, of.length, (const void *[]){ of.from, of.to }, 2);
	int64_t wide = HR__UP(of.length, (int64_t)HR__BLOCK * (even ? hr__launch_pack(table->dtype) : 1));
	hr__grid grid = { .x = (uint32_t)(of.rows < SCATTER_BLOCKS ? of.rows + !of.rows : SCATTER_BLOCKS), .y = (uint32_t)(wide < 64 ? wide : 64), .threads = HR__BLOCK };
	return hr__launch_kernel(launch, HR__PROGRAM_SCATTER, table->dtype, even ? "hr_scatter_n" : "hr_scatter_1", &grid, &of);
}
