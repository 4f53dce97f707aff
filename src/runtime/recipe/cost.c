/* cost.c - how long an op takes, for recipes.
 *
 * The estimate is the time that one core, or a card, needs for what the op does most: bytes, calls of functions, random numbers or products, at
 * the speeds below. Those of a core are what bench/recipes.c measures on an AMD EPYC, rounded down. More threads are not counted on,
 * because a recipe runs beside other ops. Those of a card are what an H200 reached in training of GPT-2, rounded down; products of float32 are slower
 * than those of bfloat16 by then. The order of magnitude is what matters: a matrix product is not dropped where a copy is faster. */
#include "core/base/assert.h"
#include "runtime/recipe/origin.h"

static const struct speeds {
	uint64_t call_ns;      /* queuing it and waking a thread; launching it */
	uint64_t bytes_per_ns; /* read and written */
	double element_ns;     /* a call of exp */
	double random_ns;      /* a random number */
	double product_ns;     /* a multiplication with an addition */
} core_speeds = { 1000, 10, 1, 8, 1.0 / 90 }, card_speeds = { 5000, 2000, 0.0005, 0.001, 1.0 / 50000 };

static uint64_t total_bytes(const hr__type *types, uint32_t count)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < count; i++) bytes += hr__type_bytes(&types[i]);
	return bytes;
}

static double elements(const hr__type *type)
{
	return (double)hr__dims_count(&type->dims);
}

/* Of a loss it is the input that has them. */
static double most_elements(const hr__type *ins, uint32_t in_count, const hr__type *outs)
{
	double most = elements(&outs[0]);
	return in_count && elements(&ins[0]) > most ? elements(&ins[0]) : most;
}

static uint64_t whole(double ns)
{
	return ns < 0x1p62 ? (uint64_t)ns : UINT64_C(1) << 62;
}

/* A filter is [out channels, in channels, height, width]: each number of the result of a convolution adds as many products as an out
 * channel of the filter has numbers. Its gradients add the same products, in another order. */
static double conv_products(const hr__type *result, const hr__type *filter)
{
	return filter->dims.d[0] ? elements(result) * elements(filter) / (double)filter->dims.d[0] : 0;
}

/* For each row and key: the lengths of their rows in q and v; all heads together have as many scores as that. Backward, five products
 * instead of two. [in] are q, k and v. */
static double attention_products(const hr__type *in, bool backward)
{
	const hr__dims *q = &in[0].dims, *v = &in[2].dims;
	double scores = hr__dims_count(q) > 0 ? elements(&in[0]) / (double)q->d[q->rank - 1] * (double)v->d[v->rank - 2] : 0;
	return scores * (double)(q->d[q->rank - 1] + v->d[v->rank - 1]) * (backward ? 2.5 : 1);
}

static double products(enum hr__op_kind kind, const hr__attrs *attrs, const hr__type *ins, const hr__type *outs)
{
	const hr__dims *a = &ins[0].dims;
	switch (kind) {
	case HR__OP_MATMUL: return elements(&outs[0]) * (double)a->d[a->rank - (attrs->transpose_a ? 2 : 1)];
	case HR__OP_ATTEND: return attention_products(ins, false);
	case HR__OP_ATTEND_GRAD: return attention_products(ins + 1, true); /* the first input is the result's gradient */
	case HR__OP_CONV2D: return conv_products(&outs[0], &ins[1]);
	case HR__OP_CONV2D_GRAD_INPUT: return conv_products(&ins[0], &ins[1]); /* the first input is the result's gradient */
	default: HR_ASSERT(kind == HR__OP_CONV2D_GRAD_FILTER); return conv_products(&ins[0], &outs[0]);
	}
}

uint64_t hr__op_cost_ns(enum hr__op_kind kind, const hr__attrs *attrs, const hr__type *ins, uint32_t in_count, const hr__type *outs, bool on_card)
{
	const hr__op *op = &hr__ops[kind];
	HR_ASSERT(op->again != HR__NEVER);
	const struct speeds *speeds = on_card ? &card_speeds : &core_speeds;
	uint64_t ns = speeds->call_ns + (total_bytes(ins, in_count) + total_bytes(outs, op->out_count)) / speeds->bytes_per_ns;
	switch (op->again) {
	case HR__ELEMENTS: return ns + whole(most_elements(ins, in_count, outs) * speeds->element_ns);
	case HR__RANDOM: return ns + whole(elements(&outs[0]) * speeds->random_ns);
	case HR__PRODUCTS: return ns + whole(products(kind, attrs, ins, outs) * speeds->product_ns);
	default: return ns;
	}
}
