/* launch_update.c - casts, and updates of variables, on the card (kernels/cast.cuh, update.cuh). */
#include <stdio.h>

#include "runtime/card/card.h"
#include "runtime/ops/ops.h"

#define CAST_PACK 4

HR__LAUNCH(cast)
{
	const hr__work *work = launch->work;
	hr_dtype from = work->in_types[0].dtype, to = work->out_types[0].dtype;
	char name[40];
	hr__k_cast of = { .from = work->in[0], .to = work->out[0], .count = hr__dims_count(&work->out_types[0].dims) };
	if (!of.count) return HR_OK;
	if (from == to) return hr__native_copy(launch->native, of.to, of.from, hr__type_bytes(&work->out_types[0]));
	bool even = of.count % CAST_PACK == 0 && (uintptr_t)of.from % (CAST_PACK * hr_dtype_size(from)) == 0 && (uintptr_t)of.to % (CAST_PACK * hr_dtype_size(to)) == 0;
	snprintf(name, sizeof name, "hr_cast_to_%s_%c", hr_dtype_text(to), even ? 'n' : '1');
	hr__grid grid = hr__launch_grid(launch, of.count / (even ? CAST_PACK : 1));
	return hr__launch_kernel(launch, HR__PROGRAM_CAST, from, name, &grid, &of);
}

/* All inputs are the variable, its state and the gradient, but the last of adam, which is the number of the step. */
HR__LAUNCH(update)
{
	const hr__work *work = launch->work;
	hr_dtype dtype = work->out_types[0].dtype;
	bool has_step = launch->op == &hr__ops[HR__OP_ADAM];
	uint32_t arrays = work->in_count - has_step;
	const void *addresses[8];
	char name[40];
	hr__k_update of = { .count = hr__dims_count(&work->out_types[0].dims), .a = work->attrs->a, .b = work->attrs->b, .c = work->attrs->c, .d = work->attrs->d,
		                .step = has_step ? work->in[arrays] : NULL, .faults = launch->faults };
	int count = 0;
	for (uint32_t i = 0; i < arrays; i++) addresses[count++] = of.in[i] = work->in[i];
	for (uint32_t i = 0; i < work->out_count; i++) addresses[count++] = of.out[i] = work->out[i];
	if (!of.count) return HR_OK;
	bool even = hr__launch_is_even(dtype, of.count, addresses, count);
	snprintf(name, sizeof name, "hr_%s_%c", launch->op->name, even ? 'n' : '1');
	hr__grid grid = hr__launch_grid(launch, of.count / (even ? hr__launch_pack(dtype) : 1));
	return hr__launch_kernel(launch, HR__PROGRAM_UPDATE, dtype, name, &grid, &of);
}
