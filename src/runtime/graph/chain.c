/* chain.c - which elementwise ops of a run are computed as one on a card (engine/chain.h).
 *
 * A chain is a row of nodes of which each uses the result of the one before, and nothing else does. Between them no other op runs, except those that
 * share memory, such as reads of variables. All results have one shape; other inputs may be broadcast to it. All inputs are in memory together with the
 * result, which may be more than the ops need one by one: run.c runs them so if there is no room. So do sessions whose values have recipes. */
#include <string.h>

#include "runtime/card/card.h"
#include "runtime/graph/run.h"

#define LEAST_ELEMENTS 4096 /* of a result: below, a launch takes longer than the memory */

static bool is_formula(enum hr__op_kind kind)
{
	return (kind >= HR__OP_ADD && kind <= HR__OP_CAST) || (kind >= HR__OP_RELU_GRAD && kind <= HR__OP_GELU_GRAD) || kind == HR__OP_DROPOUT;
}

static const hr__type *type_of(const struct graph_run *run, struct input in)
{
	return &run->graph->nodes[in.node].types[in.output];
}

static hr_dtype computed_in(const hr__type *type)
{
	return hr__gradient_dtype(type->dtype);
}

/* Floats of one dtype, but for bfloat16, which is computed in float32. */
static bool can_chain(const struct graph_run *run, uint32_t n)
{
	const struct graph_node *node = &run->graph->nodes[n];
	hr_dtype dtype = computed_in(&node->types[0]);
	if (!is_formula(node->kind) || !hr__dtype_is_float(dtype) || hr__dims_count(&node->types[0].dims) < LEAST_ELEMENTS) return false;
	uint32_t numbers = node->kind == HR__OP_DROPOUT ? 1 : node->in_count;
	for (uint32_t i = 0; i < numbers; i++)
		if (computed_in(type_of(run, node->ins[i])) != dtype) return false;
	return true;
}

/* Whether [next] is the only user of the result of node n, and computes as many elements. */
static bool continues(const struct graph_run *run, uint32_t n, uint32_t next)
{
	const struct graph_node *from = &run->graph->nodes[n], *to = &run->graph->nodes[next];
	uint32_t uses = 0;
	if (!can_chain(run, next) || computed_in(&from->types[0]) != computed_in(&to->types[0]) || !hr__dims_equal(&from->types[0].dims, &to->types[0].dims)) return false;
	for (uint32_t i = 0; i < to->in_count; i++) uses += to->ins[i].node == n;
	return uses && uses == run->results[n][0].uses;
}

/* The node that runs after n; those between share memory. The count of nodes: there is none. */
static uint32_t next_of(const struct graph_run *run, uint32_t n)
{
	const hr__graph *graph = run->graph;
	for (n++; n < graph->count; n++) {
		const struct graph_node *node = &graph->nodes[n];
		if (run->needed[n] && (hr__ops[node->kind].memory != HR__ALIASES || hr__writes_variables(node->kind, &node->attrs))) break;
	}
	return n;
}

/* The number of an input, which is added if it is new. HR__OP_INPUTS: there are too many. */
static uint8_t add_input(struct graph_chain *to, struct input from, const hr__type *type, bool is_offset)
{
	uint32_t i = 0;
	hr__chain *chain = &to->chain;
	while (i < chain->inputs && (to->ins[i].from.node != from.node || to->ins[i].from.output != from.output || chain->is_offset[i] != is_offset)) i++;
	if (i == HR__OP_INPUTS) return HR__OP_INPUTS;
	if (i == chain->inputs) {
		to->ins[i] = (struct chain_input){ .from = from };
		chain->in_narrow[i] = type->dtype == HR_DTYPE_BFLOAT16;
		chain->is_offset[i] = is_offset;
		chain->inputs++;
	}
	to->ins[i].uses++;
	return (uint8_t)i;
}

static void set_numbers(hr__chain *chain, const struct graph_node *node)
{
	uint32_t i = chain->steps;
	double rate = node->attrs.a;
	if (node->kind == HR__OP_SCALE) {
		chain->factor[i] = node->attrs.a;
		chain->plus[i] = node->attrs.b;
	} else if (node->kind == HR__OP_DROPOUT) {
		chain->factor[i] = rate < 1 ? 1 / (1 - rate) : 0;
		chain->below[i] = (uint64_t)(rate * 0x1p32);
		chain->seed[i] = node->attrs.seed;
	}
}

/* Adds node n behind node [before], HR__IN_CHAIN for none. False: there is no room, and [to] is meaningless. */
static bool add_step(const struct graph_run *run, struct graph_chain *to, uint32_t n, uint32_t before)
{
	const struct graph_node *node = &run->graph->nodes[n];
	hr__chain *chain = &to->chain;
	uint8_t operands[2] = { 0, 0 };
	if (chain->steps == HR__CHAIN_STEPS) return false;
	for (uint32_t i = 0; i < node->in_count; i++) {
		bool is_offset = node->kind == HR__OP_DROPOUT && i == 1;
		operands[i] = HR__OP_INPUTS;
		if (node->ins[i].node == before) continue;
		operands[i] = add_input(to, node->ins[i], type_of(run, node->ins[i]), is_offset);
		if (operands[i] == HR__OP_INPUTS) return false;
	}
	set_numbers(chain, node);
	chain->dtype = computed_in(&node->types[0]);
	chain->step[chain->steps++] = (hr__chain_step){ (uint8_t)node->kind, operands[0], operands[1], node->types[0].dtype == HR_DTYPE_BFLOAT16 };
	return true;
}

/* Begins at node [first]; returns the last node. */
static uint32_t extend(const struct graph_run *run, uint32_t first, struct graph_chain *to)
{
	uint32_t last = first;
	*to = (struct graph_chain){ .chain = { .steps = 0 } };
	if (!add_step(run, to, first, HR__IN_CHAIN)) return first;
	for (uint32_t next = next_of(run, first); next < run->graph->count && continues(run, last, next); next = next_of(run, next)) {
		struct graph_chain longer = *to;
		if (!add_step(run, &longer, next, last)) break;
		*to = longer;
		last = next;
	}
	return last;
}

/* Marks the nodes of a chain. */
static void mark_chain(struct graph_run *run, uint32_t first, uint32_t last)
{
	for (uint32_t n = first; n < last; n = next_of(run, n)) run->chains[n] = HR__IN_CHAIN;
	run->chains[last] = first + 1;
}

void hr__chains_find(struct graph_run *run)
{
	const hr__session *session = run->session;
	struct graph_chain found;
	if (!session->card || session->has_recipes) return;
	for (uint32_t n = 0; n < run->graph->count; n++) {
		if (!run->needed[n] || !can_chain(run, n)) continue;
		uint32_t last = extend(run, n, &found);
		if (last == n || !hr__card_has_chain(session->card, &found.chain)) continue;
		mark_chain(run, n, last);
		n = last;
	}
}

void hr__chain_of(const struct graph_run *run, uint32_t last, struct graph_chain *out)
{
	uint32_t before = HR__IN_CHAIN;
	*out = (struct graph_chain){ .chain = { .steps = 0 } };
	for (uint32_t n = run->chains[last] - 1; n <= last; n = next_of(run, n)) {
		(void)add_step(run, out, n, before);
		before = n;
	}
}
