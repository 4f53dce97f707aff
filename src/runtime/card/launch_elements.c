/* launch_elements.c - elementwise ops on the card (kernels/elements.cuh). */
#include <stdio.h>

#include "runtime/card/card.h"
#include "runtime/ops/ops.h"

static void set_walk(const hr__work *work, hr__k_elements *arguments)
{
	hr__broadcast walk;
	const hr__type *a = &work->in_types[0], *b = &work->in_types[work->in_count - 1];
	hr__broadcast_make(&work->out_types[0].dims, &a->dims, &b->dims, &walk);
	arguments->rank = walk.rank;
	for (int i = 0; i < walk.rank; i++) {
		arguments->d[i] = walk.d[i];
		arguments->a_step[i] = walk.a[i];
		arguments->b_step[i] = walk.b[i];
	}
}

HR__LAUNCH(elements)
{
	const hr__work *work = launch->work;
	hr_dtype dtype = hr__launch_dtype(&work->out_types[0]);
	char name[40];
	hr__k_elements arguments = { .a = work->in[0], .b = work->in[work->in_count - 1], .out = work->out[0], .count = hr__dims_count(&work->out_types[0].dims),
		                         .factor = work->attrs->a, .plus = work->attrs->b, .faults = launch->faults };
	arguments.a_narrow = HR__IS_NARROW(&work->in_types[0]);
	arguments.b_narrow = HR__IS_NARROW(&work->in_types[work->in_count - 1]);
	arguments.out_narrow = HR__IS_NARROW(&work->out_types[0]);
	if (!arguments.count) return HR_OK;
	set_walk(work, &arguments);
	bool even = hr__launch_is_even(dtype, arguments.d[arguments.rank - 1], (const void *[]){ arguments.a, arguments.b, arguments.out }, 3);
	snprintf(name, sizeof name, "hr_%s_%c", launch->op->name, even ? 'n' : '1');
	hr__grid grid = hr__launch_grid(launch, arguments.count / (even ? hr__launch_pack(dtype) : 1));
	return hr__launch_kernel(launch, HR__PROGRAM_ELEMENTS, dtype, name, &grid, &arguments);
}
