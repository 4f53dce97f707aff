/* gradient.c - gradients, by going through op calls backwards.
 *
 * Results have numbers, so that calls can be followed whether they are nodes of a graph or were taken down by a tape while they ran. A tape
 * keeps those values that gradients will look at (grad_in_mask, grad_out_mask of a row), and no others.
 *
 *   1. forwards: which results depend on [by]? Only for those are gradients wanted
 *   2. backwards: each call whose output has a gradient is asked for those of its inputs, which are added up by result. What a call's outputs
 *      had is released then: nothing before it needs it
 *
 * All of it is done by op calls, so it runs, or becomes nodes, like everything else. */
#include <string.h>

#include "base/status.h"
#include "os/os.h"
#include "runtime/engine.h"

/* ---- tapes ---- */

struct tape {
	hr__step *steps;
	uint32_t count, capacity;
	bool on;     /* calls are taken down */
	bool broken; /* there was no host memory for one */
};

static _Thread_local struct tape *tape;

bool hr__tape_is_on(void)
{
	return tape && tape->on;
}

hr_status hr_tape_begin(void)
{
	void *block;
	if (tape) return hr__fail(HR_IN_USE, "a tape is on already; hr_tape_end first");
	int error = hr__os()->alloc(sizeof(struct tape), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a tape");
	tape = block;
	tape->on = true;
	return HR_OK;
}

static void release_step(hr__step *step)
{
	for (uint32_t i = 0; i < HR__OP_INPUTS; i++) hr_release(step->in_values[i]);
	for (uint32_t i = 0; i < HR__OP_OUTPUTS; i++) hr_release(step->out_values[i]);
}

hr_status hr_tape_end(void)
{
	if (!tape) return hr__fail(HR_INVALID_ARGUMENT, "hr_tape_end without hr_tape_begin");
	for (uint32_t i = 0; i < tape->count; i++) release_step(&tape->steps[i]);
	if (tape->steps) hr__os()->free(tape->steps, tape->capacity * sizeof *tape->steps);
	hr__os()->free(tape, sizeof *tape);
	tape = NULL;
	return HR_OK;
}

static bool grow(void)
{
	uint32_t capacity = tape->capacity ? tape->capacity * 2 : 64;
	void *steps;
	if (tape->capacity > 1u << 22 || hr__os()->alloc(capacity * sizeof *tape->steps, &steps)) return false;
	if (tape->count) memcpy(steps, tape->steps, tape->count * sizeof *tape->steps);
	if (tape->steps) hr__os()->free(tape->steps, tape->capacity * sizeof *tape->steps);
	tape->steps = steps;
	tape->capacity = capacity;
	return true;
}

void hr__tape_note(enum hr__op_kind kind, const hr__attrs *attrs, const hr_value *ins, const hr__type *in_types, uint32_t in_count,
                   const hr_value *outs, const hr__type *out_types)
{
	const hr__op *op = &hr__ops[kind];
	if (tape->broken || (tape->count == tape->capacity && !grow())) {
		tape->broken = true;
		return;
	}
	hr__step *step = &tape->steps[tape->count++];
	*step = (hr__step){ .kind = kind, .in_count = in_count };
	if (attrs) step->attrs = *attrs;
	step->attrs.data = NULL; /* the caller's */
	for (uint32_t i = 0; i < in_count; i++) {
		step->ins[i] = hr__value_serial(ins[i]);
		step->in_types[i] = in_types[i];
		if (op->grad_in_mask >> i & 1) step->in_values[i] = hr_keep(hr__value_alias(ins[i]));
		tape->broken |= (op->grad_in_mask >> i & 1) && !step->in_values[i].id;
	}
	for (uint32_t i = 0; i < op->out_count; i++) {
		step->outs[i] = hr__value_serial(outs[i]);
		step->out_types[i] = out_types[i];
		if (op->grad_out_mask >> i & 1) step->out_values[i] = hr_keep(hr__value_alias(outs[i]));
		tape->broken |= (op->grad_out_mask >> i & 1) && !step->out_values[i].id;
	}
}

/* ---- numbers of results, and what is known of each ---- */

struct known {
	uint64_t number; /* 0 = nobody */
	bool depends;    /* on one of [by] */
	hr_value gradient; /* kept */
};

struct search {
	hr__graph *graph; /* NULL: the tape */
	uint32_t count;   /* of calls */
	struct known *known;
	uint32_t slots;   /* a power of two */
};

static struct known *known_of(const struct search *search, uint64_t number)
{
	uint32_t at = (uint32_t)((number * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (search->slots - 1);
	while (search->known[at].number && search->known[at].number != number) at = (at + 1) & (search->slots - 1);
	search->known[at].number = number;
	return &search->known[at];
}

static void get_step(const struct search *search, uint32_t n, hr__step *out)
{
	if (search->graph) hr__graph_node(search->graph, n, out);
	else *out = tape->steps[n];
}

static void find_dependents(const struct search *search)
{
	for (uint32_t n = 0; n < search->count; n++) {
		hr__step step;
		bool depends = false;
		get_step(search, n, &step);
		for (uint32_t i = 0; i < step.in_count; i++)
			depends |= hr__dtype_is_float(step.in_types[i].dtype) && known_of(search, step.ins[i])->depends;
		for (uint32_t i = 0; i < hr__ops[step.kind].out_count && depends; i++) known_of(search, step.outs[i])->depends = true;
	}
}

/* ---- backwards ---- */

static hr_status add_gradient(const struct search *search, uint64_t number, hr_value gradient)
{
	struct known *known = known_of(search, number);
	hr_value before = known->gradient;
	if (!gradient.id) return hr_last_status();
	known->gradient = hr_keep(before.id ? hr_add(before, gradient) : gradient);
	hr_release(before);
	return known->gradient.id ? HR_OK : hr_last_status();
}

/* The values that a node's gradient looks at. */
static void get_values(const struct search *search, uint32_t n, const hr__step *step, hr__backward *backward)
{
	const hr__op *op = &hr__ops[step->kind];
	for (uint32_t i = 0; i < step->in_count; i++) {
		if (!(op->grad_in_mask >> i & 1)) continue;
		uint64_t number = step->ins[i];
		backward->in[i] = search->graph ? hr__graph_value(search->graph, (uint32_t)(number / HR__OP_OUTPUTS) - 1, (uint32_t)(number % HR__OP_OUTPUTS))
		                                : step->in_values[i];
	}
	for (uint32_t i = 0; i < op->out_count; i++)
		if (op->grad_out_mask >> i & 1) backward->out[i] = search->graph ? hr__graph_value(search->graph, n, i) : step->out_values[i];
}

static hr_status go_back_over(const struct search *search, uint32_t n)
{
	hr__step step;
	get_step(search, n, &step);
	const hr__op *op = &hr__ops[step.kind];
	hr__backward backward = { .attrs = &step.attrs, .in_count = step.in_count, .out_count = op->out_count, .in_types = step.in_types,
		                      .out_types = step.out_types };
	bool any = false, wanted = false;
	for (uint32_t i = 0; i < op->out_count; i++) {
		backward.grad_out[i] = known_of(search, step.outs[i])->gradient;
		any |= backward.grad_out[i].id != 0;
	}
	for (uint32_t i = 0; i < step.in_count; i++) {
		backward.wanted[i] = hr__dtype_is_float(step.in_types[i].dtype) && known_of(search, step.ins[i])->depends;
		wanted |= backward.wanted[i];
	}
	if (!any || !wanted) return HR_OK;
	if (!op->gradient) return hr__fail(HR_INVALID_ARGUMENT, "op \"%s\" has no gradient", op->name);
	get_values(search, n, &step, &backward);
	hr_status status = op->gradient(&backward);
	for (uint32_t i = 0; i < step.in_count; i++) {
		if (!status && backward.wanted[i] && backward.grad_in[i].id) status = add_gradient(search, step.ins[i], backward.grad_in[i]);
		else hr_release(backward.grad_in[i]);
	}
	return status;
}

static hr_status go_back(const struct search *search, const uint64_t *by, size_t count)
{
	hr_status status = HR_OK;
	for (uint32_t n = search->count; n-- > 0 && !status;) {
		hr__step step;
		status = go_back_over(search, n);
		get_step(search, n, &step);
		for (uint32_t i = 0; i < hr__ops[step.kind].out_count; i++) {
			struct known *known = known_of(search, step.outs[i]);
			bool asked = false;
			for (size_t k = 0; k < count; k++) asked |= by[k] == known->number;
			if (asked) continue;
			hr_release(known->gradient);
			known->gradient = HR_NO_VALUE;
		}
	}
	return status;
}

/* ---- the call ---- */

static hr_status check(hr_value of, const hr_value *by, size_t count, struct search *search, uint64_t *numbers)
{
	hr__value value;
	hr_status status = hr__value_get(of, &value);
	if (status) return status;
	search->graph = value.graph;
	if (!hr__dtype_is_float(value.type.dtype))
		return hr__fail(HR_INVALID_ARGUMENT, "a gradient of %s was asked for; it takes a float", hr_dtype_text(value.type.dtype));
	if (!value.graph && !tape) return hr__fail(HR_INVALID_ARGUMENT, "no tape is on; hr_tape_begin before the ops whose gradients are wanted");
	if (!value.graph && tape->broken) return hr__fail(HR_NO_HOST_MEMORY, "there was no host memory for the tape");
	if (value.graph && value.graph != hr__graph_current())
		return hr__fail(HR_INVALID_ARGUMENT, "the value belongs to a graph that is not being built; hr_graph_enter first");
	for (size_t i = 0; i < count; i++) {
		hr__value each;
		status = hr__value_get(by[i], &each);
		if (status) return status;
		if (each.graph != value.graph) return hr__fail(HR_INVALID_ARGUMENT, "value %zu is not where the first one is", i);
		numbers[i] = hr__value_serial(by[i]);
	}
	search->count = search->graph ? hr__graph_count(search->graph) : tape->count;
	return HR_OK;
}

static hr_value ones_like(hr_value of)
{
	hr__value value;
	if (hr__value_get(of, &value)) return HR_NO_VALUE;
	return hr_full(value.type.dtype, value.type.dims.d, value.type.dims.rank, 1);
}

static hr_value zeros_like(hr_value of)
{
	hr__value value;
	if (hr__value_get(of, &value)) return HR_NO_VALUE;
	return hr_full(value.type.dtype, value.type.dims.d, value.type.dims.rank, 0);
}

static hr_status find_gradients(const struct search *search, hr_value of, const hr_value *by, const uint64_t *numbers, size_t count, hr_value *out)
{
	for (size_t i = 0; i < count; i++) known_of(search, numbers[i])->depends = true;
	find_dependents(search);
	hr_status status = add_gradient(search, hr__value_serial(of), ones_like(of));
	if (!status) status = go_back(search, numbers, count);
	for (size_t i = 0; i < count && !status; i++) {
		struct known *known = known_of(search, numbers[i]);
		out[i] = known->gradient.id ? hr__value_alias(known->gradient) : zeros_like(by[i]);
		if (!out[i].id) status = hr_last_status();
	}
	for (uint32_t i = 0; i < search->slots; i++) hr_release(search->known[i].gradient);
	for (size_t i = 0; i < count && status; i++) {
		hr_release(out[i]);
		out[i] = HR_NO_VALUE;
	}
	return status;
}

/* At the most. */
static uint64_t count_results(const struct search *search)
{
	uint64_t count = 1;
	for (uint32_t n = 0; n < search->count; n++) {
		hr__step step;
		get_step(search, n, &step);
		count += step.in_count + hr__ops[step.kind].out_count;
	}
	return count;
}

hr_status hr_gradients(hr_value of, const hr_value *by, size_t count, hr_value *out)
{
	void *block = NULL;
	struct search search = { .slots = 64 };
	if (!by || !out || !count) return hr__fail(HR_INVALID_ARGUMENT, "hr_gradients: there is nothing to find gradients by, or out is NULL");
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
			bool was_on = tape && tape->on;
			search.known = known;
			if (tape) tape->on = false;
			status = find_gradients(&search, of, by, numbers, count, out);
			if (tape) tape->on = was_on;
			hr__os()->free(known, search.slots * sizeof *search.known);
		}
	}
	hr__os()->free(block, count * sizeof(uint64_t));
	return status;
}
