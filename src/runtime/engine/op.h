/* op.h - the op table: one row per op.
 *
 *     infer      output types from input types; HR_INVALID_ARGUMENT with a message that names both shapes
 *     run        the kernel; runs on a thread of the device, in stream order. Its memory is contiguous and does not move meanwhile
 *     gradient   calls ops that compute the gradients of the inputs; NULL = no gradient
 *     memory     how the outputs get their memory
 *     launch     queues the kernels that compute it on a card (card/card.h), with scratch memory of the size that [workspace] returns; NULL = it
 *                is computed by [run], on copies in the host's memory
 *     again      whether the op is a pure function of its inputs
 *
 * The functions of a row are in the file of its group under ops/. */
#ifndef HR_RUNTIME_OP_H
#define HR_RUNTIME_OP_H

#include "headroom_runtime.h"
#include "core/base/atomic.h"
#include "runtime/engine/type.h"

#define HR__OP_INPUTS 8
#define HR__OP_OUTPUTS 3

/* One row per op, with everything that is known of it:
 *
 *     enum, name
 *     number of outputs; fewest and most inputs
 *     how the outputs get their memory (hr__op_memory)
 *     whether the op can run again, and what its time depends on (hr__op_again)
 *     masks (1: the first, 2: the second, 4: the third): inputs whose memory the first output may reuse; inputs, and outputs, whose
 *         contents the gradient reads
 *     functions: hr__infer_<>, hr__run_<>, hr__scratch_<>, hr__gradient_<>; "none" if there is none
 *     on a card: what computes it (hr__op_by), and the functions hr__launch_<>, hr__workspace_<>; "none" if the host computes it
 *
 * A placeholder exists in graphs only; it is fed, and never run. sgd, momentum and adam update all inputs but the last; adam all but
 * the last two, of which the last is the step number. */
#define HR__OP_TABLE(X) \
	X(PLACEHOLDER,        placeholder,        1, 0, 0, ALLOCATES, NEVER,    0, 0, 0, full, none, none, none, HOST, none, none) \
	X(READ,               read,               1, 1, 1, ALIASES,   NEVER,    0, 0, 0, read, none, none, none, HOST, none, none) \
	X(ASSIGN,             assign,             1, 2, 2, ALIASES,   NEVER,    0, 0, 0, assign, none, none, none, HOST, none, none) \
	X(INITIALIZE,         initialize,         1, 0, 0, ALLOCATES, NEVER,    0, 0, 0, done, full, none, none, KERNELS, full, none) \
	X(GROUP,              group,              1, 0, HR__OP_INPUTS, ALLOCATES, NEVER,    0, 0, 0, done, full, none, none, KERNELS, full, none) \
	/* the contents of a constant come from the host */ \
	X(CONSTANT,           constant,           1, 0, 0, ALLOCATES, NEVER,    0, 0, 0, constant, constant, none, none, HOST, none, none) \
	X(FULL,               full,               1, 0, 0, ALLOCATES, BYTES,    0, 0, 0, full, full, none, none, KERNELS, full, none) \
	X(RANDOM_NORMAL,      random_normal,      1, 0, 0, ALLOCATES, RANDOM,   0, 0, 0, random_normal, random_normal, none, none, KERNELS, random_normal, none) \
	X(RANDOM_UNIFORM,     random_uniform,     1, 0, 0, ALLOCATES, RANDOM,   0, 0, 0, random_uniform, random_uniform, none, none, KERNELS, random_uniform, none) \
	X(ADD,                add,                1, 2, 2, FORWARDS,  BYTES,    3, 0, 0, binary, add, none, add, KERNELS, elements, none) \
	X(SUB,                sub,                1, 2, 2, FORWARDS,  BYTES,    3, 0, 0, binary, sub, none, sub, KERNELS, elements, none) \
	X(MUL,                mul,                1, 2, 2, FORWARDS,  BYTES,    3, 3, 0, binary, mul, none, mul, KERNELS, elements, none) \
	X(DIV,                div,                1, 2, 2, FORWARDS,  BYTES,    3, 2, 1, binary, div, none, div, KERNELS, elements, none) \
	X(MAXIMUM,            maximum,            1, 2, 2, FORWARDS,  BYTES,    3, 3, 0, binary, maximum, none, maximum, KERNELS, elements, none) \
	X(NEG,                neg,                1, 1, 1, FORWARDS,  BYTES,    1, 0, 0, unary_number, neg, none, neg, KERNELS, elements, none) \
	X(EXP,                exp,                1, 1, 1, FORWARDS,  ELEMENTS, 1, 0, 1, unary_float, exp, none, exp, KERNELS, elements, none) \
	X(LOG,                log,                1, 1, 1, FORWARDS,  ELEMENTS, 1, 1, 0, unary_float, log, none, log, KERNELS, elements, none) \
	X(SQRT,               sqrt,               1, 1, 1, FORWARDS,  BYTES,    1, 0, 1, unary_float, sqrt, none, sqrt, KERNELS, elements, none) \
	X(TANH,               tanh,               1, 1, 1, FORWARDS,  ELEMENTS, 1, 0, 1, unary_float, tanh, none, tanh, KERNELS, elements, none) \
	X(RELU,               relu,               1, 1, 1, FORWARDS,  BYTES,    1, 0, 1, unary_float, relu, none, relu, KERNELS, elements, none) \
	X(GELU,               gelu,               1, 1, 1, FORWARDS,  ELEMENTS, 1, 1, 0, unary_float, gelu, none, gelu, KERNELS, elements, none) \
	X(SCALE,              scale,              1, 1, 1, FORWARDS,  BYTES,    1, 0, 0, unary_float, scale, none, scale, KERNELS, elements, none) \
	X(CAST,               cast,               1, 1, 1, FORWARDS,  BYTES,    1, 0, 0, cast, cast, none, cast, KERNELS, cast, none) \
	X(RESHAPE,            reshape,            1, 1, 1, ALIASES,   NEVER,    0, 0, 0, reshape, none, none, reshape, HOST, none, none) \
	X(TRANSPOSE,          transpose,          1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, transpose, transpose, none, transpose, KERNELS, transpose, none) \
	X(CONCAT,             concat,             1, 1, HR__OP_INPUTS, ALLOCATES, BYTES,    0, 0, 0, concat, concat, none, concat, KERNELS, concat, none) \
	X(SLICE,              slice,              1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, slice, slice, none, slice, KERNELS, slice, none) \
	X(BROADCAST_TO,       broadcast_to,       1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, broadcast_to, broadcast_to, none, broadcast_to, KERNELS, broadcast_to, none) \
	X(GATHER,             gather,             1, 2, 2, ALLOCATES, BYTES,    0, 2, 0, gather, gather, none, gather, KERNELS, gather, none) \
	X(ONE_HOT,            one_hot,            1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, one_hot, one_hot, none, none, KERNELS, one_hot, none) \
	X(REDUCE_SUM,         reduce_sum,         1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, reduce_number, reduce_sum, reduce_sum, reduce_sum, KERNELS, reduce, reduce) \
	X(REDUCE_MEAN,        reduce_mean,        1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, reduce_float, reduce_mean, reduce_sum, reduce_mean, KERNELS, reduce, reduce) \
	X(REDUCE_MAX,         reduce_max,         1, 1, 1, ALLOCATES, BYTES,    0, 1, 1, reduce_number, reduce_max, reduce_sum, reduce_max, KERNELS, reduce, reduce) \
	X(MATMUL,             matmul,             1, 2, 3, ALLOCATES, PRODUCTS, 0, 3, 0, matmul, matmul, matmul, matmul, CUBLASLT, matmul, matmul) \
	X(SOFTMAX,            softmax,            1, 1, 1, FORWARDS,  ELEMENTS, 1, 0, 1, softmax, softmax, none, softmax, KERNELS, rows, none) \
	X(CROSS_ENTROPY,      cross_entropy,      1, 2, 2, ALLOCATES, ELEMENTS, 0, 3, 0, cross_entropy, cross_entropy, cross_entropy, cross_entropy, KERNELS, rows, none) \
	X(LAYER_NORM,         layer_norm,         3, 3, 3, FORWARDS,  BYTES,    1, 3, 6, layer_norm, layer_norm, none, layer_norm, KERNELS, layer_norm, none) \
	X(BATCH_NORM,         batch_norm,         3, 3, 3, FORWARDS,  BYTES,    1, 3, 6, batch_norm, batch_norm, none, batch_norm, KERNELS, batch_norm, batch_norm) \
	X(DROPOUT,            dropout,            1, 2, 2, FORWARDS,  RANDOM,   1, 2, 0, dropout, dropout, none, dropout, KERNELS, dropout, none) \
	X(ATTEND,             attend,             2, 3, 3, ALLOCATES, PRODUCTS, 0, 7, 3, attend, attend, attend, attend, KERNELS, attend, none) \
	X(CONV2D,             conv2d,             1, 2, 2, ALLOCATES, PRODUCTS, 0, 3, 0, conv2d, conv2d, conv2d, conv2d, KERNELS, conv2d, none) \
	X(MAX_POOL,           max_pool,           1, 1, 1, ALLOCATES, BYTES,    0, 1, 1, pool, max_pool, none, max_pool, KERNELS, max_pool, none) \
	X(AVG_POOL,           avg_pool,           1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, pool, avg_pool, none, avg_pool, KERNELS, avg_pool, none) \
	/* for gradients */ \
	X(RELU_GRAD,          relu_grad,          1, 2, 2, FORWARDS,  BYTES,    3, 0, 0, binary_float, relu_grad, none, none, KERNELS, elements, none) \
	X(TANH_GRAD,          tanh_grad,          1, 2, 2, FORWARDS,  BYTES,    3, 0, 0, binary_float, tanh_grad, none, none, KERNELS, elements, none) \
	X(GELU_GRAD,          gelu_grad,          1, 2, 2, FORWARDS,  ELEMENTS, 3, 0, 0, binary_float, gelu_grad, none, none, KERNELS, elements, none) \
	X(SOFTMAX_GRAD,       softmax_grad,       1, 2, 2, FORWARDS,  BYTES,    3, 0, 0, softmax_grad, softmax_grad, none, none, KERNELS, rows, none) \
	X(CROSS_ENTROPY_GRAD, cross_entropy_grad, 1, 3, 3, FORWARDS,  ELEMENTS, 1, 0, 0, cross_entropy_grad, cross_entropy_grad, cross_entropy, none, KERNELS, rows, none) \
	X(MAX_GRAD,           max_grad,           1, 3, 3, FORWARDS,  BYTES,    1, 0, 0, max_grad, max_grad, none, none, KERNELS, max_grad, none) \
	X(SUM_TO,             sum_to,             1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, sum_to, sum_to, sum_to, sum_to, KERNELS, sum_to, sum_to) \
	X(SCATTER_ROWS,       scatter_rows,       1, 2, 2, ALLOCATES, BYTES,    0, 2, 0, scatter_rows, scatter_rows, none, scatter_rows, KERNELS, scatter_rows, none) \
	X(PAD,                pad,                1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, pad, pad, none, pad, KERNELS, pad, none) \
	X(LAYER_NORM_GRAD,    layer_norm_grad,    3, 5, 6, FORWARDS,  BYTES,    33, 0, 0, \
	  layer_norm_grad, layer_norm_grad, layer_norm_grad, none, KERNELS, layer_norm_grad, layer_norm_grad) \
	X(BATCH_NORM_GRAD,    batch_norm_grad,    3, 5, 5, FORWARDS,  BYTES,    1, 0, 0, batch_norm_grad, batch_norm_grad, none, none, KERNELS, batch_norm_grad, batch_norm_grad) \
	X(ATTEND_GRAD,        attend_grad,        3, 6, 6, ALLOCATES, PRODUCTS, 0, 0, 0, attend_grad, attend_grad, attend_grad, none, KERNELS, attend_grad, attend_grad) \
	X(CONV2D_GRAD_INPUT,  conv2d_grad_input,  1, 2, 2, ALLOCATES, PRODUCTS, 0, 0, 0, \
	  conv2d_grad_input, conv2d_grad_input, conv2d_grad_input, none, KERNELS, conv2d_grad_input, none) \
	X(CONV2D_GRAD_FILTER, conv2d_grad_filter, 1, 2, 2, ALLOCATES, PRODUCTS, 0, 0, 0, \
	  conv2d_grad_filter, conv2d_grad_filter, conv2d_grad_filter, none, KERNELS, conv2d_grad_filter, conv2d_grad_filter) \
	X(MAX_POOL_GRAD,      max_pool_grad,      1, 3, 3, ALLOCATES, BYTES,    0, 0, 0, max_pool_grad, max_pool_grad, none, none, KERNELS, max_pool_grad, none) \
	X(AVG_POOL_GRAD,      avg_pool_grad,      1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, avg_pool_grad, avg_pool_grad, none, none, KERNELS, avg_pool_grad, none) \
	/* for variables */ \
	X(COPY,               copy,               1, 1, 1, ALLOCATES, BYTES,    0, 0, 0, copy, copy, none, copy, KERNELS, copy, none) \
	X(ASSIGN_ADD,         assign_add,         1, 2, 2, FORWARDS,  NEVER,    3, 0, 0, assign_onto, add, none, none, KERNELS, update, none) \
	X(ASSIGN_SUB,         assign_sub,         1, 2, 2, FORWARDS,  NEVER,    3, 0, 0, assign_onto, sub, none, none, KERNELS, update, none) \
	X(SGD,                sgd,                1, 2, 2, UPDATES,   NEVER,    0, 0, 0, sgd, sgd, none, none, KERNELS, update, none) \
	X(MOMENTUM,           momentum,           2, 3, 3, UPDATES,   NEVER,    0, 0, 0, momentum, momentum, none, none, KERNELS, update, none) \
	X(ADAM,               adam,               3, 5, 5, UPDATES,   NEVER,    0, 0, 0, adam, adam, none, none, KERNELS, update, none) \
	/* for cards: elementwise ops of a graph, as one (chain.h) */ \
	X(CHAIN,              chain,              1, 1, HR__OP_INPUTS, FORWARDS, NEVER, 0xFF, 0, 0, chain, none, none, none, KERNELS, chain, none)

enum hr__op_kind {
#define HR__OP_ENUM(kind, ...) HR__OP_##kind,
	HR__OP_TABLE(HR__OP_ENUM)
#undef HR__OP_ENUM
	HR__OP_COUNT
};

/* Parameters of an op besides its inputs. Each op uses some of the fields. */
typedef struct hr__attrs {
	hr_dtype dtype;
	hr__dims dims;       /* a requested shape */
	int axis;
	int order[HR_SHAPE_MAX_RANK];
	bool keep, transpose_a, transpose_b;
	int64_t begin, count;
	int64_t size, stride, padding; /* of a convolution or pooling window */
	double a, b, c, d;
	uint64_t seed;
	const void *data;    /* contents of a constant: valid during the call, or owned by the graph */
	/* Ops on variables: the contents of variables[i] are input i, before the given inputs; output i replaces them. 0 = none. */
	uint64_t variables[HR__OP_OUTPUTS];
	hr_name name;        /* of a placeholder; HR_NAME_NONE = unnamed */
	uint64_t graph;      /* whose variables are initialized; 0 = the session's */
} hr__attrs;

/* Worker threads for kernels. hr__team_run calls [part] for each number below [parts], several at the same time, and returns when
 * all are done. How work is divided into parts does not depend on the number of threads. */
typedef struct hr__team hr__team;
void hr__team_run(hr__team *team, uint32_t parts, void (*part)(void *context, uint32_t number), void *context);

/* Arguments of a kernel. */
typedef struct hr__work {
	const hr__attrs *attrs;
	uint32_t in_count, out_count;
	hr__type in_types[HR__OP_INPUTS], out_types[HR__OP_OUTPUTS];
	const void *in[HR__OP_INPUTS];
	void *out[HR__OP_OUTPUTS]; /* may be the memory of an input, if the row allows it */
	void *scratch;             /* of the size that the row's scratch function returned; NULL = none */
	hr__team *team;
	/* Set to a static string if the kernel finds an error. The output is then meaningless but deterministic. */
	const char *error;
	int64_t wrong, choices; /* for an index out of range: the index, and the number of valid ones */
} hr__work;

enum hr__op_memory {
	HR__ALLOCATES = 1, /* each output gets its own memory */
	HR__FORWARDS,      /* takes the memory of an input of the same size that has no other user; otherwise allocates */
	HR__ALIASES,       /* shares the memory of the first input */
	HR__UPDATES        /* output i takes the memory of input i, a variable's contents; allocates if they have other references */
};

/* Whether an op can run again with the same result, to the bit, so that its outputs may have a recipe (origin.h). If so, what the time
 * that it takes is estimated from (cost.c). */
enum hr__op_again {
	HR__NEVER = 0, /* it depends on more than its inputs, writes to variables, or makes no contents of its own */
	HR__BYTES,     /* it reads and writes memory, with few operations on each element */
	HR__ELEMENTS,  /* it calls a function such as exp on each element */
	HR__RANDOM,    /* it draws random numbers, which depend on the seed alone */
	HR__PRODUCTS   /* it adds products: matrices and convolutions */
};

/* What computes an op on a card. An op is computed by the host where that is missing. */
enum hr__op_by {
	HR__BY_HOST = 0,
	HR__BY_KERNELS, /* kernels of our own, compiled by NVRTC */
	HR__BY_CUBLASLT
};

struct hr__launch; /* card/card.h */

/* Arguments of a gradient function: the values of the op, and where to store the gradients of its inputs. Those are temporary; one
 * that is not set is zero. */
typedef struct hr__backward {
	const hr__attrs *attrs;
	uint32_t in_count, out_count;
	const hr__type *in_types, *out_types;
	hr_value in[HR__OP_INPUTS];       /* kept; HR_NO_VALUE if not in the row's mask */
	hr_value out[HR__OP_OUTPUTS];     /* kept; HR_NO_VALUE if not in the row's mask */
	hr_value grad_out[HR__OP_OUTPUTS]; /* kept; HR_NO_VALUE = the result does not depend on it */
	bool wanted[HR__OP_INPUTS];
	hr_value so_far[HR__OP_INPUTS];   /* the sum of the gradients that other calls gave to the input; HR_NO_VALUE = none */
	bool is_sum[HR__OP_INPUTS];       /* set: the function has consumed so_far[i] and added it to grad_in[i] */
	hr_value grad_in[HR__OP_INPUTS];
} hr__backward;

typedef struct hr__op {
	const char *name;
	uint8_t in_min, in_max, out_count;
	enum hr__op_memory memory;
	enum hr__op_again again;
	uint8_t forwards;  /* mask of inputs whose memory the first output may reuse */
	hr_status (*infer)(const hr__type *in, uint32_t count, const hr__attrs *attrs, hr__type *out);
	void (*run)(hr__work *work);
	uint64_t (*scratch)(const hr__type *in, const hr__type *out, const hr__attrs *attrs); /* bytes; NULL = none */
	hr_status (*gradient)(hr__backward *backward);
	uint8_t grad_in_mask, grad_out_mask; /* masks of inputs and outputs whose contents the gradient reads */
	enum hr__op_by by;
	hr_status (*launch)(struct hr__launch *launch); /* NULL = on the host */
	uint64_t (*workspace)(const hr__type *in, const hr__type *out, const hr__attrs *attrs); /* bytes; NULL = none */
	bool order_only;   /* waits for its inputs but does not read their contents */
} hr__op;

extern const hr__op hr__ops[HR__OP_COUNT];

/* Entry point of all op calls: runs the op, or adds a node to the current graph. Consumes temporary inputs. [outs] gets all outputs
 * as temporary values; on failure all are HR_NO_VALUE. */
void hr__call(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs, hr_value *outs);
/* The same for ops with one output. */
hr_value hr__call_one(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs);

#endif
