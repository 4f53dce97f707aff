/* chain_text.c - chains of elementwise ops on the card (engine/chain.h, kernels/chain.cuh).
 *
 * The kernels of a chain are a text of their own: a line for each step. Numbers such as the factor of a scale are arguments, so that chains of the same ops
 * have one program, which is compiled once and kept in the cache. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "runtime/card/card.h"
#include "runtime/card/chains.h"
#include "runtime/ops/ops.h"

#define TEXT_CAPACITY 4096

_Static_assert(HR__K_INPUTS == HR__OP_INPUTS && HR__K_RANK == HR_SHAPE_MAX_RANK, "arguments of a chain");

/* ---- the text ---- */

struct writer {
	char text[TEXT_CAPACITY];
	size_t length;
};

static void put(struct writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct writer *writer, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	int length = vsnprintf(writer->text + writer->length, TEXT_CAPACITY - writer->length, format, list);
	va_end(list);
	HR_ASSERT(length >= 0 && writer->length + (size_t)length < TEXT_CAPACITY); /* eight steps and inputs have a tenth of it each */
	writer->length += (size_t)length;
}

/* "x3" is input 3, "r1" the result of step 1. */
static void name_operand(const hr__chain *chain, uint32_t step, uint8_t operand, char out[8])
{
	(void)chain;
	if (operand < HR__OP_INPUTS) snprintf(out, 8, "x%u", operand);
	else snprintf(out, 8, "r%u", step - 1);
}

static bool takes_two(uint8_t kind)
{
	return hr__ops[kind].in_min == 2;
}

static void put_step(struct writer *writer, const hr__chain *chain, uint32_t i)
{
	const hr__chain_step *step = &chain->step[i];
	char a[8], b[8];
	bool rounds = step->narrow && i + 1 < chain->steps; /* the last is rounded when it is stored */
	name_operand(chain, i, step->a, a);
	name_operand(chain, i, step->b, b);
	if (step->kind == HR__OP_DROPOUT) {
		put(writer, "\t\tpack<T, M> r%u = dropped<M>(arg, %u, %s, i * M, %s);\n", i, i, b, a);
		if (rounds) put(writer, "\t\tfor (int k = 0; k < M; k++) r%u.at[k] = rounded(r%u.at[k]);\n", i, i);
		return;
	}
	put(writer, "\t\tpack<T, M> r%u;\n\t\tfor (int k = 0; k < M; k++) r%u.at[k] = %s(", i, i, rounds ? "rounded" : "");
	if (step->kind == HR__OP_CAST) put(writer, "%s.at[k]", a);
	else if (step->kind == HR__OP_SCALE) put(writer, "of_scale(%s.at[k], arg.factor[%u], arg.plus[%u])", a, i, i);
	else if (takes_two(step->kind)) put(writer, "of_%s(%s.at[k], %s.at[k])", hr__ops[step->kind].name, a, b);
	else put(writer, "of_%s(%s.at[k])", hr__ops[step->kind].name, a);
	put(writer, ");\n");
}

static void write_text(struct writer *writer, const hr__chain *chain)
{
	put(writer, "template <int M> BOTH void chain(const hr__k_chain &arg)\n{\n\tfor (STRIDES(i, arg.count / M)) {\n\t\tint64_t at[%u];\n\t\tfind<%u>(arg, i * M, at);\n",
	    chain->inputs, chain->inputs);
	for (uint32_t i = 0; i < chain->inputs; i++) {
		if (chain->is_offset[i]) put(writer, "\t\tuint64_t x%u = *(const uint64_t *)arg.in[%u];\n", i, i);
		else put(writer, "\t\tpack<T, M> x%u = get<M>(arg, %u, at[%u], %d);\n", i, i, i, chain->in_narrow[i]);
	}
	for (uint32_t i = 0; i < chain->steps; i++) put_step(writer, chain, i);
	put(writer, "\t\tstore_as<M>(arg.out, i * M, r%u, %d);\n\t}\n}\n", chain->steps - 1, chain->step[chain->steps - 1].narrow);
	put(writer, "KERNEL(hr_chain_n, hr__k_chain) { chain<N>(arg); }\nKERNEL(hr_chain_1, hr__k_chain) { chain<1>(arg); }\n");
}

hr_status hr__chain_build(const hr__card_facts *facts, const hr__chain *chain, void **image, size_t *bytes)
{
	struct writer writer = { .length = 0 };
	write_text(&writer, chain);
	hr__card_source parts[] = { hr__source_of(HR__PROGRAM_COUNT), hr__source_of(HR__PROGRAM_FORMULAS), hr__source_of(HR__PROGRAM_CHAIN),
		                        { "chain", writer.text, writer.length } };
	return hr__parts_build(facts, "chain.cuh", parts, (int)(sizeof parts / sizeof *parts), chain->dtype, image, bytes);
}

/* ---- launches ---- */

/* Steps of the inputs in the dimensions of the output; neighbouring dimensions that are so for all inputs are merged. */
static void set_walk(const hr__work *work, hr__k_chain *of)
{
	const hr__dims *out = &work->out_types[0].dims;
	hr__broadcast each[HR__OP_INPUTS];
	of->rank = 0;
	for (uint32_t i = 0; i < work->in_count; i++) hr__broadcast_steps(out, &work->in_types[i].dims, each[i].a);
	for (int k = 0; k < out->rank; k++) {
		int64_t d = out->d[k];
		bool merges = of->rank > 0;
		if (d == 1) continue;
		for (uint32_t i = 0; i < work->in_count && merges; i++) merges = of->step[i][of->rank - 1] == d * each[i].a[k];
		if (!merges) of->d[of->rank++] = 1;
		of->d[of->rank - 1] *= d;
		for (uint32_t i = 0; i < work->in_count; i++) of->step[i][of->rank - 1] = each[i].a[k];
	}
	if (of->rank) return;
	of->rank = 1;
	of->d[0] = 1;
	for (uint32_t i = 0; i < work->in_count; i++) of->step[i][0] = 1;
}

HR__LAUNCH(chain)
{
	const hr__work *work = launch->work;
	const hr__chain *chain = work->attrs->data;
	const void *addresses[HR__OP_INPUTS + 1] = { work->out[0] };
	hr__kernel *kernels[2];
	hr__k_chain of = { .out = work->out[0], .count = hr__dims_count(&work->out_types[0].dims) };
	int count = 1;
	for (uint32_t i = 0; i < work->in_count; i++) {
		of.in[i] = work->in[i];
		if (!chain->is_offset[i]) addresses[count++] = work->in[i];
	}
	memcpy(of.factor, chain->factor, sizeof of.factor);
	memcpy(of.plus, chain->plus, sizeof of.plus);
	memcpy(of.seed, chain->seed, sizeof of.seed);
	memcpy(of.below, chain->below, sizeof of.below);
	if (!of.count) return HR_OK;
	set_walk(work, &of);
	hr_status status = hr__card_chain(launch->card, chain, kernels);
	if (status) return status;
	bool even = hr__launch_is_even(chain->dtype, of.d[of.rank - 1], addresses, count);
	hr__grid grid = hr__launch_grid(launch, of.count / (even ? hr__launch_pack(chain->dtype) : 1));
	return hr__kernel_launch(launch->native, kernels[even], even ? "hr_chain_n" : "hr_chain_1", &grid, &of);
}
