/* launch_conv.c - convolutions and their gradients on the card (kernels/conv.cuh). */
#include <stdio.h>

#include "runtime/card/card.h"
#include "runtime/ops/ops.h"

/* As in conv.cuh. */
#define HIGH 16
#define WIDE 128
#define DEEP 16

#define TASKS 512            /* tiles that keep a card busy */
#define LEAST_PLACES 512     /* of a segment */
#define MOST_SEGMENTS 256

/* Rows of a thread: as many as keep the card busy, and no more than there are. */
static int rows_of_thread(const hr__k_conv *of)
{
	int64_t columns = HR__UP(of->n, WIDE);
	for (int rows = 8; rows > 2; rows /= 2)
		if (of->m > HIGH * rows / 2 && HR__UP(of->m, HIGH * rows) * columns >= TASKS / 4) return rows;
	return of->m > HIGH * 2 ? 4 : 2;
}

static hr_status launch_conv(const hr__launch *launch, hr_dtype dtype, hr__k_conv *of, int64_t segments)
{
	char name[40];
	int rows = rows_of_thread(of);
	snprintf(name, sizeof name, "hr_conv_%d", rows);
	if (of->n == 0 || of->m == 0) return HR_OK;
	hr__grid grid = { .x = (uint32_t)HR__UP(of->n, WIDE), .y = (uint32_t)HR__UP(of->m, HIGH * rows), .z = (uint32_t)segments, .threads = HR__BLOCK };
	return hr__launch_kernel(launch, HR__PROGRAM_CONV, dtype, name, &grid, of);
}

static hr_status clear(const hr__launch *launch)
{
	return hr__native_fill(launch->native, launch->work->out[0], 0, hr__type_bytes(&launch->work->out_types[0]));
}

/* x and filter: [n, c, h, w] and [o, c, r, s]; y: [n, o, p, q]. */
HR__LAUNCH(conv2d)
{
	const hr__work *work = launch->work;
	const int64_t *x = work->in_types[0].dims.d, *filter = work->in_types[1].dims.d, *y = work->out_types[0].dims.d;
	int64_t taps = filter[1] * filter[2] * filter[3], places = y[2] * y[3];
	hr__k_conv of = { .a = work->in[1], .b = work->in[0], .out = work->out[0], .m = y[1], .n = y[0] * places, .k = taps, .each = taps, .a_row = taps, .out_row = places,
		              .window_high = filter[2], .window_wide = filter[3], .rows = y[2], .columns = y[3], .height = x[2], .width = x[3],
		              .a_channel = filter[2] * filter[3], .b_image = x[1] * x[2] * x[3], .b_channel = x[2] * x[3], .out_image = y[1] * places,
		              .step = work->attrs->stride, .shift = -work->attrs->padding, .sign = 1, .divide = 1 };
	return taps ? launch_conv(launch, work->out_types[0].dtype, &of, 1) : clear(launch);
}

/* Pixel h is covered by place (h + padding - tap) / stride, if that is a whole number. */
HR__LAUNCH(conv2d_grad_input)
{
	const hr__work *work = launch->work;
	const int64_t *y = work->in_types[0].dims.d, *filter = work->in_types[1].dims.d, *x = work->out_types[0].dims.d;
	int64_t window = filter[2] * filter[3], pixels = x[2] * x[3];
	hr__k_conv of = { .a = work->in[1], .b = work->in[0], .out = work->out[0], .m = x[1], .n = x[0] * pixels, .k = filter[0] * window, .each = filter[0] * window,
		              .a_row = window, .out_row = pixels, .window_high = filter[2], .window_wide = filter[3], .rows = x[2], .columns = x[3], .height = y[2],
		              .width = y[3], .a_channel = filter[1] * window, .b_image = y[1] * y[2] * y[3], .b_channel = y[2] * y[3], .out_image = x[1] * pixels,
		              .step = 1, .shift = work->attrs->padding, .sign = -1, .divide = work->attrs->stride };
	return of.k ? launch_conv(launch, work->out_types[0].dtype, &of, 1) : clear(launch);
}

static hr__k_conv filter_gradient(const int64_t *y, const int64_t *x, const int64_t *filter, const hr__attrs *attrs)
{
	int64_t places = y[2] * y[3];
	hr__k_conv of = { .m = filter[0], .n = filter[1] * filter[2] * filter[3], .k = y[0] * places, .a_row = places, .window_high = filter[2], .window_wide = filter[3],
		              .rows = y[2], .columns = y[3], .height = x[2], .width = x[3], .a_image = y[1] * places, .b_image = x[1] * x[2] * x[3], .b_channel = x[2] * x[3],
		              .step = attrs->stride, .shift = -attrs->padding, .sign = 1, .divide = 1, .by_place = 1 };
	of.out_row = of.n;
	of.count = of.m * of.n;
	int64_t tiles = HR__UP(of.m, HIGH * 4) * HR__UP(of.n, WIDE), most = HR__UP(of.k, LEAST_PLACES), wanted = tiles > 0 ? HR__UP(TASKS, tiles) : 1;
	if (most > MOST_SEGMENTS) most = MOST_SEGMENTS;
	of.segments = wanted < most ? wanted : most;
	of.each = of.segments > 0 ? HR__UP(HR__UP(of.k, of.segments), DEEP) * DEEP : 0;
	of.segments = of.each > 0 ? HR__UP(of.k, of.each) : 0;
	return of;
}

HR__WORKSPACE(conv2d_grad_filter)
{
	hr__k_conv of = filter_gradient(in[0].dims.d, in[1].dims.d, out->dims.d, attrs);
	return of.segments > 1 ? (uint64_t)(of.segments * of.count) * hr_dtype_size(out->dtype) : 0;
}

HR__LAUNCH(conv2d_grad_filter)
{
	const hr__work *work = launch->work;
	hr_dtype dtype = work->out_types[0].dtype;
	hr__k_conv of = filter_gradient(work->in_types[0].dims.d, work->in_types[1].dims.d, work->out_types[0].dims.d, work->attrs);
	of.a = work->in[0];
	of.b = work->in[1];
	of.out = of.segments > 1 ? work->scratch : work->out[0];
	if (of.count == 0) return HR_OK;
	if (of.segments == 0) return clear(launch);
	hr_status status = launch_conv(launch, dtype, &of, of.segments);
	if (status || of.segments == 1) return status;
	of.a = work->scratch;
	of.out = work->out[0];
	hr__grid grid = hr__launch_grid(launch, of.count);
	return hr__launch_kernel(launch, HR__PROGRAM_CONV, dtype, "hr_conv_join", &grid, &of);
}
