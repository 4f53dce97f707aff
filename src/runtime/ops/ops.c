/* ops.c - the table of ops (see op.h), indexed by enum hr__op_kind. */
#include "runtime/ops/ops.h"

/* Masks of inputs or outputs. */
#define FIRST 1u
#define SECOND 2u
#define THIRD 4u
#define BOTH (FIRST | SECOND)

/* Fields in the order of hr__op: inputs (min, max), memory, forwarding mask, infer, run, scratch, gradient, and the masks of what
 * it reads. */
#define OP(...) OP_WITH(1, __VA_ARGS__)
#define OP_WITH(outputs, kind, text, least, most, memory_of, takes, infer_of, run_of, scratch_of, gradient_of, looks_in, \
                looks_out)                                                                                               \
	[HR__OP_##kind] = { .name = text,                                                                                    \
		                .in_min = least,                                                                                 \
		                .in_max = most,                                                                                  \
		                .out_count = outputs,                                                                            \
		                .memory = memory_of,                                                                             \
		                .forwards = takes,                                                                               \
		                .infer = hr__infer_##infer_of,                                                                   \
		                .run = run_of,                                                                                   \
		                .scratch = scratch_of,                                                                           \
		                .gradient = gradient_of,                                                                         \
		                .grad_in_mask = looks_in,                                                                        \
		                .grad_out_mask = looks_out }

#define SOURCE(kind, name) OP(kind, #name, 0, 0, HR__ALLOCATES, 0, name, hr__run_##name, NULL, NULL, 0, 0)
#define BINARY(kind, name, looks_in, looks_out) \
	OP(kind, #name, 2, 2, HR__FORWARDS, BOTH, binary, hr__run_##name, NULL, hr__gradient_##name, looks_in, looks_out)
#define UNARY(kind, name, of, looks_in, looks_out) \
	OP(kind, #name, 1, 1, HR__FORWARDS, FIRST, of, hr__run_##name, NULL, hr__gradient_##name, looks_in, looks_out)
#define GRADIENT_OF_ONE(kind, name) OP(kind, #name, 2, 2, HR__FORWARDS, BOTH, binary_float, hr__run_##name, NULL, NULL, 0, 0)
#define MOVES(kind, name, most) OP(kind, #name, 1, most, HR__ALLOCATES, 0, name, hr__run_##name, NULL, hr__gradient_##name, 0, 0)
#define REDUCES(kind, name, of, looks_in, looks_out) \
	OP(kind, #name, 1, 1, HR__ALLOCATES, 0, of, hr__run_##name, hr__scratch_reduce_sum, hr__gradient_##name, looks_in, looks_out)
/* The ops on variables: kernels of the plain ops, with their own checks and names. */
#define ONTO_VARIABLE(kind, name) OP(kind, "assign_" #name, 2, 2, HR__FORWARDS, BOTH, assign_onto, hr__run_##name, NULL, NULL, 0, 0)
/* Updates all inputs but the last; Adam all but the last two, of which the last is the step number. */
#define UPDATES(kind, name, inputs, outputs) \
	OP_WITH(outputs, kind, #name, inputs, inputs, HR__UPDATES, 0, name, hr__run_##name, NULL, NULL, 0, 0)

const hr__op hr__ops[HR__OP_COUNT] = {
	OP(PLACEHOLDER, "placeholder", 0, 0, HR__ALLOCATES, 0, full, NULL, NULL, NULL, 0, 0), /* in graphs: fed, never run */
	OP(READ, "read", 1, 1, HR__ALIASES, 0, read, NULL, NULL, NULL, 0, 0),
	OP(ASSIGN, "assign", 2, 2, HR__ALIASES, 0, assign, NULL, NULL, NULL, 0, 0),
	OP(INITIALIZE, "initialize", 0, 0, HR__ALLOCATES, 0, done, hr__run_full, NULL, NULL, 0, 0),
	[HR__OP_GROUP] = { .name = "group", .in_max = HR__OP_INPUTS, .out_count = 1, .memory = HR__ALLOCATES, .infer = hr__infer_done,
		               .run = hr__run_full, .order_only = true },
	SOURCE(CONSTANT, constant),
	SOURCE(FULL, full),
	SOURCE(RANDOM_NORMAL, random_normal),
	SOURCE(RANDOM_UNIFORM, random_uniform),
	BINARY(ADD, add, 0, 0),
	BINARY(SUB, sub, 0, 0),
	BINARY(MUL, mul, BOTH, 0),
	BINARY(DIV, div, SECOND, FIRST),
	BINARY(MAXIMUM, maximum, BOTH, 0),
	UNARY(NEG, neg, unary_number, 0, 0),
	UNARY(EXP, exp, unary_float, 0, FIRST),
	UNARY(LOG, log, unary_float, FIRST, 0),
	UNARY(SQRT, sqrt, unary_float, 0, FIRST),
	UNARY(TANH, tanh, unary_float, 0, FIRST),
	UNARY(RELU, relu, unary_float, 0, FIRST),
	UNARY(GELU, gelu, unary_float, FIRST, 0),
	UNARY(SCALE, scale, unary_float, 0, 0),
	UNARY(CAST, cast, cast, 0, 0),
	OP(RESHAPE, "reshape", 1, 1, HR__ALIASES, 0, reshape, NULL, NULL, hr__gradient_reshape, 0, 0),
	MOVES(TRANSPOSE, transpose, 1),
	MOVES(CONCAT, concat, HR__OP_INPUTS),
	MOVES(SLICE, slice, 1),
	MOVES(BROADCAST_TO, broadcast_to, 1),
	OP(GATHER, "gather", 2, 2, HR__ALLOCATES, 0, gather, hr__run_gather, NULL, hr__gradient_gather, SECOND, 0),
	OP(ONE_HOT, "one_hot", 1, 1, HR__ALLOCATES, 0, one_hot, hr__run_one_hot, NULL, NULL, 0, 0),
	REDUCES(REDUCE_SUM, reduce_sum, reduce_number, 0, 0),
	REDUCES(REDUCE_MEAN, reduce_mean, reduce_float, 0, 0),
	REDUCES(REDUCE_MAX, reduce_max, reduce_number, FIRST, FIRST),
	OP(MATMUL, "matmul", 2, 2, HR__ALLOCATES, 0, matmul, hr__run_matmul, hr__scratch_matmul, hr__gradient_matmul, BOTH, 0),
	UNARY(SOFTMAX, softmax, softmax, 0, FIRST),
	OP(CROSS_ENTROPY, "cross_entropy", 2, 2, HR__ALLOCATES, 0, cross_entropy, hr__run_cross_entropy, NULL,
	   hr__gradient_cross_entropy, BOTH, 0),
	OP_WITH(3, LAYER_NORM, "layer_norm", 3, 3, HR__FORWARDS, FIRST, layer_norm, hr__run_layer_norm, NULL, hr__gradient_layer_norm,
	        BOTH, SECOND | THIRD),
	OP(CONV2D, "conv2d", 2, 2, HR__ALLOCATES, 0, conv2d, hr__run_conv2d, hr__scratch_conv2d, hr__gradient_conv2d, BOTH, 0),
	OP(MAX_POOL, "max_pool", 1, 1, HR__ALLOCATES, 0, pool, hr__run_max_pool, NULL, hr__gradient_max_pool, FIRST, FIRST),
	OP(AVG_POOL, "avg_pool", 1, 1, HR__ALLOCATES, 0, pool, hr__run_avg_pool, NULL, hr__gradient_avg_pool, 0, 0),
	GRADIENT_OF_ONE(RELU_GRAD, relu_grad),
	GRADIENT_OF_ONE(TANH_GRAD, tanh_grad),
	GRADIENT_OF_ONE(GELU_GRAD, gelu_grad),
	OP(SOFTMAX_GRAD, "softmax_grad", 2, 2, HR__FORWARDS, BOTH, softmax_grad, hr__run_softmax_grad, NULL, NULL, 0, 0),
	OP(CROSS_ENTROPY_GRAD, "cross_entropy_grad", 3, 3, HR__FORWARDS, FIRST, cross_entropy_grad, hr__run_cross_entropy_grad, NULL,
	   NULL, 0, 0),
	OP(MAX_GRAD, "max_grad", 3, 3, HR__FORWARDS, FIRST, max_grad, hr__run_max_grad, NULL, NULL, 0, 0),
	OP(SUM_TO, "sum_to", 1, 1, HR__ALLOCATES, 0, sum_to, hr__run_sum_to, hr__scratch_sum_to, hr__gradient_sum_to, 0, 0),
	OP(SCATTER_ROWS, "scatter_rows", 2, 2, HR__ALLOCATES, 0, scatter_rows, hr__run_scatter_rows, NULL, hr__gradient_scatter_rows,
	   SECOND, 0),
	MOVES(PAD, pad, 1),
	OP_WITH(3, LAYER_NORM_GRAD, "layer_norm_grad", 5, 5, HR__FORWARDS, FIRST, layer_norm_grad, hr__run_layer_norm_grad,
	        hr__scratch_layer_norm_grad, NULL, 0, 0),
	OP(CONV2D_GRAD_INPUT, "conv2d_grad_input", 2, 2, HR__ALLOCATES, 0, conv2d_grad_input, hr__run_conv2d_grad_input,
	   hr__scratch_conv2d_grad_input, NULL, 0, 0),
	OP(CONV2D_GRAD_FILTER, "conv2d_grad_filter", 2, 2, HR__ALLOCATES, 0, conv2d_grad_filter, hr__run_conv2d_grad_filter,
	   hr__scratch_conv2d_grad_filter, NULL, 0, 0),
	OP(MAX_POOL_GRAD, "max_pool_grad", 3, 3, HR__ALLOCATES, 0, max_pool_grad, hr__run_max_pool_grad, NULL, NULL, 0, 0),
	OP(AVG_POOL_GRAD, "avg_pool_grad", 1, 1, HR__ALLOCATES, 0, avg_pool_grad, hr__run_avg_pool_grad, NULL, NULL, 0, 0),
	MOVES(COPY, copy, 1),
	ONTO_VARIABLE(ASSIGN_ADD, add),
	ONTO_VARIABLE(ASSIGN_SUB, sub),
	UPDATES(SGD, sgd, 2, 1),
	UPDATES(MOMENTUM, momentum, 3, 2),
	UPDATES(ADAM, adam, 5, 3),
};
