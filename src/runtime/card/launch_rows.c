/* launch_rows.c - softmax and cross entropy on the card (kernels/rows.cuh). */
#include "runtime/card/card.h"
#include "runtime/ops/ops.h"

HR__LAUNCH(rows)
{
	const hr__work *work = launch->work;
	const hr__dims *dims = &work->in_types[0].dims;
	bool has_labels = launch->op == &hr__ops[HR__OP_CROSS_ENTROPY] || launch->op == &hr__ops[HR__OP_CROSS_ENTROPY_GRAD];
	bool is_softmax = launch->op == &hr__ops[HR__OP_SOFTMAX];
	hr_dtype dtype = hr__launch_dtype(&work->in_types[0]);
	int64_t behind;
	hr__k_rows of = { .in = work->in[0], .out = work->out[0], .length = dims->d[dims->rank - 1], .causal = is_softmax && work->attrs->keep, .faults = launch->faults };
	of.narrow = HR__IS_NARROW(&work->in_types[0]);
	hr__around(dims, dims->rank - 1, &of.rows, &behind);
	if (of.causal) of.period = dims->d[dims->rank - 2];
	if (has_labels) {
		of.labels = work->in[1];
		of.wide_labels = HR__IS_WIDE(&work->in_types[1]);
	}
	of.grad = has_labels ? work->in[2] : work->in[1];
	if (!of.rows || (!of.length && !has_labels)) return HR_OK;
	bool reads_grad = launch->op == &hr__ops[HR__OP_SOFTMAX_GRAD], writes_rows = launch->op != &hr__ops[HR__OP_CROSS_ENTROPY];
	const void *addresses[] = { of.in, reads_grad ? of.grad : of.in, writes_rows ? of.out : of.in };
	/* Rows of logits may begin anywhere; softmax takes whole packs. */
	bool even = hr__launch_is_even(dtype, has_labels ? 0 : of.length, addresses, 3);
	return hr__launch_groups(launch, HR__PROGRAM_ROWS, dtype, launch->op->name, of.rows, of.length, even, &of);
}
