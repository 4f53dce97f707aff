/* launch_random.c - ops without inputs, and dropout, on the card (kernels/random.cuh, fill in move.cuh). */
#include <math.h>
#include <string.h>

#include "runtime/card/card.h"
#include "runtime/kernels/bfloat16.h"
#include "runtime/ops/ops.h"

/* ---- full ---- */

#define PUT(type, of)                        \
	do {                                     \
		type value = (type)(of);             \
		memcpy(element, &value, sizeof value); \
	} while (0)

/* The number, as often as it fits into 8 bytes. */
static uint64_t pattern_of(hr_dtype dtype, double x)
{
	char element[8];
	uint64_t out = 0;
	size_t size = hr_dtype_size(dtype);
	switch (dtype) {
	case HR_DTYPE_FLOAT32: PUT(float, x); break;
	case HR_DTYPE_FLOAT64: PUT(double, x); break;
	case HR_DTYPE_INT32: PUT(int32_t, x); break;
	case HR_DTYPE_INT64: PUT(int64_t, x); break;
	case HR_DTYPE_UINT8: PUT(uint8_t, x); break;
	case HR_DTYPE_BFLOAT16: PUT(hr__bfloat16, hr__bfloat16_of_f64(x)); break;
	default: PUT(uint8_t, x != 0);
	}
	for (size_t i = 0; i < sizeof out; i += size) memcpy((char *)&out + i, element, size);
	return out;
}

HR__LAUNCH(full)
{
	const hr__work *work = launch->work;
	hr__k_fill of = { .to = work->out[0], .bytes = hr__type_bytes(&work->out_types[0]), .value = pattern_of(work->out_types[0].dtype, work->attrs->a) };
	uint8_t byte = (uint8_t)of.value;
	if (!of.bytes) return HR_OK;
	if (of.value == byte * UINT64_C(0x0101010101010101)) return hr__native_fill(launch->native, of.to, byte, of.bytes);
	hr__grid grid = hr__launch_grid(launch, (int64_t)(of.bytes / 16 + 1));
	return hr__launch_kernel(launch, HR__PROGRAM_MOVE, (hr_dtype)0, "hr_fill", &grid, &of);
}

/* ---- random numbers ---- */

static hr_status launch_random(const hr__launch *launch, const char *name, int64_t each, hr__k_random *of)
{
	const hr__type *type = &launch->work->out_types[0];
	of->out = launch->work->out[0];
	of->count = hr__dims_count(&type->dims);
	of->seed = launch->work->attrs->seed;
	hr__grid grid = hr__launch_grid(launch, HR__UP(of->count, each));
	return of->count ? hr__launch_kernel(launch, HR__PROGRAM_RANDOM, hr__launch_dtype(type), name, &grid, of) : HR_OK;
}

HR__LAUNCH(random_normal)
{
	return launch_random(launch, "hr_normal", 16 / (int64_t)hr_dtype_size(launch->work->out_types[0].dtype), &(hr__k_random){ 0 });
}

HR__LAUNCH(random_uniform)
{
	const hr__attrs *attrs = launch->work->attrs;
	hr__k_random of = { .low = attrs->a, .high = attrs->b, .before_high = nextafter(attrs->b, attrs->a) };
	if (!hr__dtype_is_float(launch->work->out_types[0].dtype)) {
		__int128 first = (__int128)ceil(attrs->a);
		of.first = (int64_t)first;
		of.choices = (uint64_t)((__int128)ceil(attrs->b) - first);
	}
	return launch_random(launch, "hr_uniform", 2, &of);
}

HR__LAUNCH(dropout)
{
	const hr__work *work = launch->work;
	double rate = work->attrs->a;
	bool even = ((uintptr_t)work->in[0] | (uintptr_t)work->out[0]) % 16 == 0 && hr__dims_count(&work->out_types[0].dims) % 4 == 0;
	hr__k_random of = { .even = even, .in = work->in[0],
		                .offset = work->in[1], .scale = rate < 1 ? 1 / (1 - rate) : 0, .below = (uint64_t)(rate * 0x1p32) };
	of.in_narrow = HR__IS_NARROW(&work->in_types[0]);
	of.out_narrow = HR__IS_NARROW(&work->out_types[0]);
	return launch_random(launch, "hr_dropout", 4, &of);
}
