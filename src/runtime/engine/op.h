/* op.h - the op table: one row per op.
 *
 *     infer      output types from input types; HR_INVALID_ARGUMENT with a message that names both shapes
 *     run        the kernel; runs on a thread of the device, in stream order. Its memory is contiguous and does not move meanwhile
 *     gradient   calls ops that compute the gradients of the inputs; NULL = no gradient
 *     memory     how the outputs get their memory
 *
 * The rows are in ops.c, in the order of HR__OP_TABLE. The functions of a row are in the file of its group. */
#ifndef HR_RUNTIME_OP_H
#define HR_RUNTIME_OP_H

#include "headroom_runtime.h"
#include "core/base/atomic.h"
#include "runtime/engine/type.h"

#define HR__OP_INPUTS 8
#define HR__OP_OUTPUTS 3

/* enum, name */
#define HR__OP_TABLE(X)                  \
	X(PLACEHOLDER, "placeholder")        \
	X(READ, "read")                      \
	X(ASSIGN, "assign")                  \
	X(INITIALIZE, "initialize")          \
	X(GROUP, "group")                    \
	X(CONSTANT, "constant")              \
	X(FULL, "full")                      \
	X(RANDOM_NORMAL, "random_normal")    \
	X(RANDOM_UNIFORM, "random_uniform")  \
	X(ADD, "add")                        \
	X(SUB, "sub")                        \
	X(MUL, "mul")                        \
	X(DIV, "div")                        \
	X(MAXIMUM, "maximum")                \
	X(NEG, "neg")                        \
	X(EXP, "exp")                        \
	X(LOG, "log")                        \
	X(SQRT, "sqrt")                      \
	X(TANH, "tanh")                      \
	X(RELU, "relu")                      \
	X(GELU, "gelu")                      \
	X(SCALE, "scale")                    \
	X(CAST, "cast")                      \
	X(RESHAPE, "reshape")                \
	X(TRANSPOSE, "transpose")            \
	X(CONCAT, "concat")                  \
	X(SLICE, "slice")                    \
	X(BROADCAST_TO, "broadcast_to")      \
	X(GATHER, "gather")                  \
	X(ONE_HOT, "one_hot")                \
	X(REDUCE_SUM, "reduce_sum")          \
	X(REDUCE_MEAN, "reduce_mean")        \
	X(REDUCE_MAX, "reduce_max")          \
	X(MATMUL, "matmul")                  \
	X(SOFTMAX, "softmax")                \
	X(CROSS_ENTROPY, "cross_entropy")    \
	X(LAYER_NORM, "layer_norm")          \
	X(CONV2D, "conv2d")                  \
	X(MAX_POOL, "max_pool")              \
	X(AVG_POOL, "avg_pool")              \
	/* for gradients */                  \
	X(RELU_GRAD, "relu_grad")            \
	X(TANH_GRAD, "tanh_grad")            \
	X(GELU_GRAD, "gelu_grad")            \
	X(SOFTMAX_GRAD, "softmax_grad")      \
	X(CROSS_ENTROPY_GRAD, "cross_entropy_grad") \
	X(MAX_GRAD, "max_grad")              \
	X(SUM_TO, "sum_to")                  \
	X(SCATTER_ROWS, "scatter_rows")      \
	X(PAD, "pad")                        \
	X(LAYER_NORM_GRAD, "layer_norm_grad") \
	X(CONV2D_GRAD_INPUT, "conv2d_grad_input") \
	X(CONV2D_GRAD_FILTER, "conv2d_grad_filter") \
	X(MAX_POOL_GRAD, "max_pool_grad")    \
	X(AVG_POOL_GRAD, "avg_pool_grad")    \
	/* for variables */                  \
	X(COPY, "copy")                      \
	X(ASSIGN_ADD, "assign_add")          \
	X(ASSIGN_SUB, "assign_sub")          \
	X(SGD, "sgd")                        \
	X(MOMENTUM, "momentum")              \
	X(ADAM, "adam")

enum hr__op_kind {
#define HR__OP_ENUM(name, text) HR__OP_##name,
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
	hr_value grad_in[HR__OP_INPUTS];
} hr__backward;

typedef struct hr__op {
	const char *name;
	uint8_t in_min, in_max, out_count;
	enum hr__op_memory memory;
	uint8_t forwards;  /* mask of inputs whose memory the first output may reuse */
	hr_status (*infer)(const hr__type *in, uint32_t count, const hr__attrs *attrs, hr__type *out);
	void (*run)(hr__work *work);
	uint64_t (*scratch)(const hr__type *in, const hr__type *out, const hr__attrs *attrs); /* bytes; NULL = none */
	hr_status (*gradient)(hr__backward *backward);
	uint8_t grad_in_mask, grad_out_mask; /* masks of inputs and outputs whose contents the gradient reads */
	bool order_only;   /* waits for its inputs but does not read their contents */
} hr__op;

extern const hr__op hr__ops[HR__OP_COUNT];

/* Entry point of all op calls: runs the op, or adds a node to the current graph. Consumes temporary inputs. [outs] gets all outputs
 * as temporary values; on failure all are HR_NO_VALUE. */
void hr__call(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs, hr_value *outs);
/* The same for ops with one output. */
hr_value hr__call_one(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs);

#endif
