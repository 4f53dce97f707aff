/* chain.h - a chain of elementwise ops, computed as one: each step but the first uses the result of the one before, which nothing else uses. The
 * results in between get no memory. Every step rounds as its op does, so the chain gives the same bits as the ops. */
#ifndef HR_RUNTIME_CHAIN_H
#define HR_RUNTIME_CHAIN_H

#include "runtime/card/kernels/arguments.h"
#include "runtime/engine/op.h"

#define HR__CHAIN_STEPS HR__K_STEPS

/* [a] and [b]: an input of the chain, or HR__OP_INPUTS for the result of the step before. The offset of a dropout is [b]. */
typedef struct hr__chain_step {
	uint8_t kind, a, b;
	bool narrow; /* the result is bfloat16 */
} hr__chain_step;

/* In attrs.data of the op. */
typedef struct hr__chain {
	hr_dtype dtype; /* that it is computed in */
	uint32_t steps, inputs;
	hr__chain_step step[HR__CHAIN_STEPS];
	bool in_narrow[HR__OP_INPUTS];
	bool is_offset[HR__OP_INPUTS];
	double factor[HR__CHAIN_STEPS], plus[HR__CHAIN_STEPS]; /* as in hr__k_chain */
	uint64_t seed[HR__CHAIN_STEPS], below[HR__CHAIN_STEPS];
} hr__chain;

#endif
