/* pure_ops.h - which ops of a recording can run again with the same result, by name.
 *
 * A name is PyTorch's, "mm", "aten::mm" or "aten::mm.out", or that of an op of the runtime. The rule for an entry of the table:
 *
 *   - The outputs depend on the inputs alone. Random ops count if a runtime can restore the state of their generator, as for the
 *     seed and offset of dropout; ops that draw new numbers in place (bernoulli_) do not.
 *   - The same inputs give the same bits. Ops that add with atomics are left out: index_add, scatter_add, index_put with accumulate,
 *     embedding_dense_backward, and the gradients of convolutions, pooling, interpolation, normalization and attention.
 *   - Nothing else happens: no collectives, no synchronization with the host, no optimizer.
 *
 * An op that is not in the table is not pure. Whatever its name, an op is not pure if it writes a tensor that it does not make: it ran
 * in place or into given outputs. There are three exceptions: views, recorded as writing the tensor that they share, and normalizations
 * that update running statistics, which a runtime leaves out when the op runs again, of which the table says so; and ops in place with the
 * name of a pure op and an underscore, which a runtime can run again after the op that made the tensor. */
#ifndef HR_SCHEDULE_PURE_OPS_H
#define HR_SCHEDULE_PURE_OPS_H

typedef enum hr__purity {
	HR__OP_NOT_PURE,
	HR__OP_PURE,
	HR__OP_SEEDED,     /* pure once the state of its random generator is restored */
	HR__OP_VIEW,       /* what it writes and does not make is not changed */
	HR__OP_STATISTICS, /* what it writes and does not make is left out when it runs again */
	HR__OP_IN_PLACE,   /* it changes one tensor; the same contents and inputs give the same result */
} hr__purity;

/* Takes time proportional to the table. */
hr__purity hr__op_purity(const char *name);

#endif
