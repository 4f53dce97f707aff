/* gradient.c - gradients, by traversing op calls backwards.
 *
 * Results are identified by numbers, so nodes of a graph and calls recorded by a tape are handled alike. A tape keeps only the
 * values that gradients read (grad_in_mask and grad_out_mask of a row).
 *
 *   1. forward: find the results that depend on [by]. Gradients are computed only for those
 *   2. backward: for each call whose output has a gradient, compute the gradients of its inputs and add them up per result. Then
 *      release the gradients of its outputs and the values that the tape kept for it: no earlier call needs them
 *
 * A checkpoint block is recomputed when its last call is reached: its calls are repeated from the inputs of the block, and
 * gradients read the recomputed results (struct known: again).
 *
 * Gradients of bfloat16 values are computed in float32 (hr__gradient_dtype) and converted to bfloat16 when they are returned.
 *
 * Everything is done by op calls, so it runs at once or becomes nodes, like any other op. */
#include <string.h>

#include "core/base/status.h"
#include "core/os/os.h"
#include "runtime/graph/tape.h"

/* ---- state of each result, by number ---- */

struct known {
	uint64_t number; /* 0 = free slot */
	bool depends;    /* on one of [by] */
	bool asked;      /* it is one of [by] */
	hr_value gradient; /* kept */
	/* While a checkpoint block is recomputed: */
	uint32_t looked_at; /* the last block in which a gradient reads it */
	uint32_t uses;     /* remaining uses in the block */
	hr_value again;    /* the recomputed value; kept */
};

struct gradient_search {
	hr__graph *graph; /* NULL: the tape */
	uint32_t count;   /* number of calls */
	struct known *known;
	uint32_t slots;   /* a power of two */
	uint32_t block;   /* the block that was recomputed last */
};

static struct known *known_of(const struct gradient_search *search, uint64_t number)
{
	uint32_t at = (uint32_t)((number * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (search->slots - 1);
	while (search->known[at].number && search->known[at].number != number) at = (at + 1) & (search->slots - 1);
	search->known[at].number = number;
	return &search->known[at];
}

static void get_call(const struct gradient_search *search, uint32_t n, hr__op_call *out)
{
	if (search->graph) hr__graph_node(search->graph, n, out);
	else *out = hr__tape_current()->calls[n];
}

static bool has_gradient(hr_dtype dtype)
{
	return hr__dtype_is_float(hr__gradient_dtype(dtype));
}

static void find_dependents(const struct gradient_search *search)
{
	for (uint32_t n = 0; n < search->count; n++) {
		hr__op_call call;
		bool depends = false;
		get_call(search, n, &call);
		for (uint32_t i = 0; i < call.in_count && !hr__variables_of(&call.attrs); i++)
			depends |= has_gradient(call.in_types[i].dtype) && known_of(search, call.ins[i])->depends;
		for (uint32_t i = 0; i < hr__ops[call.kind].out_count && depends; i++) known_of(search, call.outs[i])->depends = true;
	}
}

/* ---- backward ---- */

static hr_status add_gradient(const struct gradient_search *search, uint64_t number, hr_value gradient)
{
	struct known *known = known_of(search, number);
	hr_value before = known->gradient;
	if (!gradient.id) return hr_last_status();
	known->gradient = hr_value_keep(before.id ? hr_add(hr__value_make_temporary(before), gradient) : gradient); /* in the memory of one */
	return known->gradient.id ? HR_OK : hr_last_status();
}

/* The value of a result of the graph. */
static hr_value result_in(hr__graph *graph, uint64_t number)
{
	return hr__graph_value(graph, (uint32_t)(number / HR__OP_OUTPUTS) - 1, (uint32_t)(number % HR__OP_OUTPUTS));
}

/* An input of a call: the recomputed value if there is one, else the value of the tape or graph. */
static hr_value input_of(const struct gradient_search *search, const hr__op_call *call, uint32_t i)
{
	hr_value again = call->block ? known_of(search, call->ins[i])->again : HR_NO_VALUE;
	if (again.id) return again;
	return search->graph ? result_in(search->graph, call->ins[i]) : call->in_values[i];
}

/* The values that the gradient of a call reads. */
static void get_values(const struct gradient_search *search, const hr__op_call *call, hr__backward *backward)
{
	const hr__op *op = &hr__ops[call->kind];
	for (uint32_t i = 0; i < call->in_count; i++)
		if (op->grad_in_mask >> i & 1) backward->in[i] = input_of(search, call, i);
	for (uint32_t i = 0; i < op->out_count; i++) {
		if (!(op->grad_out_mask >> i & 1)) continue;
		if (call->block) backward->out[i] = known_of(search, call->outs[i])->again;
		else backward->out[i] = search->graph ? result_in(search->graph, call->outs[i]) : call->out_values[i];
	}
}

/* ---- recomputation ---- */

/* Whether the call belongs to the block and can be repeated. Reads of variables are not repeated: the tape or graph has their
 * results. */
static bool in_block(const hr__op_call *call, uint32_t of)
{
	return call->block == of && !hr__variables_of(&call->attrs);
}

/* Finds the results that gradients read, and the results needed to compute those. Returns the first call of the block. */
static uint32_t survey_block(const struct gradient_search *search, uint32_t last, uint32_t of)
{
	uint32_t first = last;
	for (uint32_t n = last + 1; n-- > 0;) {
		hr__op_call call;
		get_call(search, n, &call);
		const hr__op *op = &hr__ops[call.kind];
		bool needed = false;
		if (call.block != of) break;
		first = n;
		if (!in_block(&call, of)) continue;
		for (uint32_t i = 0; i < op->out_count; i++) {
			struct known *out = known_of(search, call.outs[i]);
			if (op->grad_out_mask >> i & 1) out->looked_at = of;
			needed |= out->looked_at == of || out->uses;
		}
		for (uint32_t i = 0; i < call.in_count; i++) {
			struct known *in = known_of(search, call.ins[i]);
			if (op->grad_in_mask >> i & 1) in->looked_at = of;
			in->uses += needed;
		}
	}
	return first;
}

static void drop_unused(struct known *known, uint32_t of)
{
	if (known->uses || known->looked_at == of) return;
	hr_value_release(known->again);
	known->again = HR_NO_VALUE;
}

static hr_status call_again(const struct gradient_search *search, const hr__op_call *call)
{
	const hr__op *op = &hr__ops[call->kind];
	hr_value ins[HR__OP_INPUTS], outs[HR__OP_OUTPUTS];
	bool needed = false;
	for (uint32_t i = 0; i < op->out_count; i++) {
		const struct known *out = known_of(search, call->outs[i]);
		needed |= out->looked_at == call->block || out->uses;
	}
	if (!needed) return HR_OK;
	for (uint32_t i = 0; i < call->in_count; i++) ins[i] = input_of(search, call, i);
	if (call->out_values[0].id) outs[0] = hr__value_alias(call->out_values[0]); /* a constant, kept by the tape */
	else hr__call(call->kind, ins, call->in_count, &call->attrs, outs);
	if (!outs[0].id) return hr_last_status();
	for (uint32_t i = 0; i < op->out_count; i++) {
		struct known *out = known_of(search, call->outs[i]);
		out->again = hr_value_keep(outs[i]);
		drop_unused(out, call->block);
	}
	for (uint32_t i = 0; i < call->in_count; i++) {
		struct known *in = known_of(search, call->ins[i]);
		in->uses--;
		drop_unused(in, call->block);
	}
	return HR_OK;
}

/* Recomputes the block whose last call is [last]. */
static hr_status compute_again(struct gradient_search *search, uint32_t last, uint32_t of)
{
	hr_status status = HR_OK;
	uint32_t first = survey_block(search, last, of), outer = hr__block_set(0); /* recomputed calls are in no block */
	hr__role role = hr__role_set(HR__ACTIVATIONS);
	search->block = of;
	for (uint32_t n = first; n <= last && !status; n++) {
		hr__op_call call;
		get_call(search, n, &call);
		if (in_block(&call, of)) status = call_again(search, &call);
	}
	hr__role_set(role);
	hr__block_set(outer);
	return status;
}

static hr_status go_back_over(struct gradient_search *search, uint32_t n)
{
	hr__op_call call;
	get_call(search, n, &call);
	const hr__op *op = &hr__ops[call.kind];
	hr__backward backward = { .attrs = &call.attrs,
		                      .in_count = call.in_count,
		                      .out_count = op->out_count,
		                      .in_types = call.in_types,
		                      .out_types = call.out_types };
	bool any = false, wanted = false;
	for (uint32_t i = 0; i < op->out_count; i++) {
		backward.grad_out[i] = known_of(search, call.outs[i])->gradient;
		any |= backward.grad_out[i].id != 0;
	}
	for (uint32_t i = 0; i < call.in_count; i++) {
		backward.wanted[i] = has_gradient(call.in_types[i].dtype) && known_of(search, call.ins[i])->depends;
		if (backward.wanted[i]) backward.so_far[i] = known_of(search, call.ins[i])->gradient;
		wanted |= backward.wanted[i];
	}
	if (!any || !wanted) return HR_OK;
	if (!op->gradient) return hr__name_op(hr__fail(HR_INVALID_ARGUMENT, "it has no gradient"), op->name, call.scope);
	hr_status status = HR_OK;
	if (call.block && call.block != search->block) status = compute_again(search, n, call.block);
	if (status) return status;
	get_values(search, &call, &backward);
	status = op->gradient(&backward);
	for (uint32_t i = 0; i < call.in_count; i++) {
		if (backward.is_sum[i]) known_of(search, call.ins[i])->gradient = HR_NO_VALUE;
		if (!status && backward.wanted[i] && backward.grad_in[i].id)
			status = add_gradient(search, call.ins[i], backward.grad_in[i]);
		else hr_value_release(backward.grad_in[i]);
	}
	return status;
}

static hr_status go_back(struct gradient_search *search)
{
	hr_status status = HR_OK;
	for (uint32_t n = search->count; n-- > 0 && !status;) {
		hr__op_call call;
		status = go_back_over(search, n);
		get_call(search, n, &call);
		if (!search->graph) hr__op_call_release(&hr__tape_current()->calls[n]);
		for (uint32_t i = 0; i < hr__ops[call.kind].out_count; i++) {
			struct known *known = known_of(search, call.outs[i]);
			hr_value_release(known->again);
			known->again = HR_NO_VALUE;
			if (known->asked) continue;
			hr_value_release(known->gradient);
			known->gradient = HR_NO_VALUE;
		}
	}
	return status;
}

/* ---- public calls ---- */

static hr_status check(hr_value of, const hr_value *by, size_t count, struct gradient_search *search, uint64_t *numbers)
{
	hr__value value;
	const struct hr__op_tape *tape = hr__tape_current();
	hr_status status = hr__value_get(of, &value);
	if (status) return status;
	search->graph = value.graph;
	if (!has_gradient(value.type.dtype))
		return hr__fail(HR_INVALID_ARGUMENT, "gradients of %s were requested; only float types have them", hr_dtype_text(value.type.dtype));
	if (!value.graph && !tape) return hr__fail(HR_INVALID_ARGUMENT, "no tape is on; call hr_tape_begin before the ops to differentiate");
	if (!value.graph && tape->served)
		return hr__fail(HR_INVALID_ARGUMENT, "the tape was used for gradients already; call hr_tape_end, and hr_tape_begin for the next ones");
	if (!value.graph && tape->broken) return hr__fail(HR_NO_HOST_MEMORY, "there was no host memory for the tape");
	if (value.graph && value.graph != hr__graph_current())
		return hr__fail(HR_INVALID_ARGUMENT, "the value belongs to a graph that is not being built; hr_graph_enter first");
	for (size_t i = 0; i < count; i++) {
		hr__value each;
		status = hr__value_get(by[i], &each);
		if (status) return status;
		if (each.graph != value.graph) return hr__fail(HR_INVALID_ARGUMENT, "value %zu is in another session or graph than the first", i);
		numbers[i] = hr__value_serial(by[i]);
	}
	search->count = search->graph ? hr__graph_count(search->graph) : tape->count;
	return HR_OK;
}

static hr_value full_like(hr_value of, hr_dtype dtype, double number)
{
	hr__value value;
	if (hr__value_get(of, &value)) return HR_NO_VALUE;
	return hr_full(dtype, value.type.dims.d, value.type.dims.rank, number);
}

/* A gradient has the type of [by]. */
static hr_value hand_out(hr_value by, hr_value gradient)
{
	hr_dtype dtype = hr_value_dtype(by);
	if (!gradient.id) return full_like(by, dtype, 0);
	return dtype == hr__gradient_dtype(dtype) ? hr__value_alias(gradient) : hr_cast(gradient, dtype);
}

static hr_status find_gradients(struct gradient_search *search, hr_value of, const hr_value *by, const uint64_t *numbers,
                                size_t count, hr_value *out)
{
	for (size_t i = 0; i < count; i++) known_of(search, numbers[i])->depends = known_of(search, numbers[i])->asked = true;
	find_dependents(search);
	hr_status status = add_gradient(search, hr__value_serial(of), full_like(of, hr__gradient_dtype(hr_value_dtype(of)), 1));
	if (!status) status = go_back(search);
	for (size_t i = 0; i < count && !status; i++) {
		out[i] = hand_out(by[i], known_of(search, numbers[i])->gradient);
		if (!out[i].id) status = hr_last_status();
	}
	for (uint32_t i = 0; i < search->slots; i++) {
		hr_value_release(search->known[i].gradient);
		hr_value_release(search->known[i].again);
	}
	for (size_t i = 0; i < count && status; i++) {
		hr_value_release(out[i]);
		out[i] = HR_NO_VALUE;
	}
	return status;
}

/* Upper bound of the number of results. */
static uint64_t count_results(const struct gradient_search *search)
{
	uint64_t count = 1;
	for (uint32_t n = 0; n < search->count; n++) {
		hr__op_call call;
		get_call(search, n, &call);
		count += call.in_count + hr__ops[call.kind].out_count;
	}
	return count;
}

/* Does not consume [of]. */
static hr_status gradients(hr_value of, const hr_value *by, size_t count, hr_value *out)
{
	void *block = NULL;
	struct gradient_search search = { .slots = 64 };
	if (!by || !out || !count) return hr__fail(HR_INVALID_ARGUMENT, "hr_gradients: no variables or values are given, or out is NULL");
	for (size_t i = 0; i < count; i++) out[i] = HR_NO_VALUE;
	int error = hr__os()->alloc(count * sizeof(uint64_t), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for gradients");
	uint64_t *numbers = block;
	hr_status status = check(of, by, count, &search, numbers);
	if (!status) {
		void *known;
		while (search.slots < 2 * (count_results(&search) + count)) search.slots *= 2;
		error = hr__os()->alloc(search.slots * sizeof *search.known, &known);
		if (error) status = hr__os_fail(error, "cannot get host memory for gradients");
		if (!status) {
			struct hr__op_tape *tape = hr__tape_current();
			bool was_on = tape && tape->on;
			search.known = known;
			if (tape) tape->on = false;
			hr__role before = hr__role_set(HR__GRADIENTS);
			status = find_gradients(&search, of, by, numbers, count, out);
			hr__role_set(before);
			if (tape) tape->on = was_on && search.graph;
			if (!search.graph) tape->served = true;
			hr__os()->free(known, search.slots * sizeof *search.known);
		}
	}
	hr__os()->free(block, count * sizeof(uint64_t));
	return status;
}

hr_status hr_gradients(hr_value of, const hr_value *by, size_t count, hr_value *out)
{
	hr_status status = gradients(of, by, count, out);
	hr__value_consume(of);
	return status;
}

/* Does not consume [of]. */
static hr_status variable_gradients(hr_value of, const hr_variable *by, size_t count, hr_value *out)
{
	void *list;
	hr_status status = HR_OK;
	if (!by || !out || !count) return hr__fail(HR_INVALID_ARGUMENT, "hr_variable_gradients: no variables or values are given, or out is NULL");
	int error = hr__os()->alloc(count * sizeof(hr_value), &list);
	if (error) return hr__os_fail(error, "cannot get host memory for gradients");
	hr_value *values = list;
	hr__graph *graph = hr__graph_current();
	for (size_t i = 0; i < count && !status; i++) {
		hr_value read = graph ? hr__graph_reads(graph, by[i].id, true) : HR_NO_VALUE; /* as it was before later assignments */
		values[i] = hr_value_keep(read.id ? read : hr_variable_read(by[i]));
		if (!values[i].id) status = hr_last_status();
	}
	if (!status) status = gradients(of, values, count, out);
	for (size_t i = 0; i < count; i++) hr_value_release(values[i]);
	hr__os()->free(list, count * sizeof(hr_value));
	return status;
}

hr_status hr_variable_gradients(hr_value of, const hr_variable *by, size_t count, hr_value *out)
{
	hr_status status = variable_gradients(of, by, count, out);
	hr__value_consume(of);
	return status;
}
