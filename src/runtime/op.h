/* op.h - what there is to know of an op: one row of a table for each.
 *
 *     infer      the types of its outputs, from those of its inputs; HR_INVALID_ARGUMENT with a message that names both shapes
 *     run        computes, on a thread of the device, in stream order. Memory is contiguous, and does not move meanwhile
 *     gradient   calls ops that give the gradients of its inputs; NULL = it has none
 *     memory     what its output does to memory
 *
 * Rows are in ops.c, in the order of HR__OP_TABLE; what a row names is in the file of its group. */
#ifndef HR_RUNTIME_OP_H
#define HR_RUNTIME_OP_H

#include "base/atomic.h"
#include "runtime/type.h"

#define HR__OP_INPUTS 8
#define HR__OP_OUTPUTS 3

/* enum, name, group */
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

/* What an op is told besides its inputs; each uses what it needs. */
typedef struct hr__attrs {
	hr_dtype dtype;
	hr__dims dims;       /* a shape that was asked for */
	int axis;
	int order[HR_SHAPE_MAX_RANK];
	bool keep, transpose_a, transpose_b;
	int64_t begin, count;
	int64_t size, stride, padding; /* of windows */
	double a, b, c, d;
	uint64_t seed;
	const void *data;    /* of a constant: read while the call lasts, or owned by the graph */
	/* Ops on variables: contents of variables[i] are input i, before those that are given, and output i becomes them. 0 = none. */
	uint64_t variables[HR__OP_OUTPUTS];
	hr_name name;        /* of a placeholder; HR_NAME_NONE = it has none */
	uint64_t graph;      /* of the variables that are initialised; 0 = the session's */
} hr__attrs;

/* Threads that help an op: hr__team_run calls [part] for each of [parts] numbers, some of them at the same time; returns when all are done.
 * Which part does what does not depend on how many threads there are. */
typedef struct hr__team hr__team;
void hr__team_run(hr__team *team, uint32_t parts, void (*part)(void *context, uint32_t number), void *context);

/* What a run gets. */
typedef struct hr__work {
	const hr__attrs *attrs;
	uint32_t in_count, out_count;
	hr__type in_types[HR__OP_INPUTS], out_types[HR__OP_OUTPUTS];
	const void *in[HR__OP_INPUTS];
	void *out[HR__OP_OUTPUTS]; /* one of them may be an input's memory where the row says so */
	void *scratch;             /* of as many bytes as the row's scratch said; NULL = none */
	hr__team *team;
	/* What goes wrong while it runs: set to a sentence, static text. The op's output means nothing then, but is the same each time. */
	const char *error;
	int64_t wrong, choices; /* of an index that is out of range: what it is, and how many there are to choose from */
} hr__work;

enum hr__op_memory {
	HR__ALLOCATES = 1, /* its output has memory of its own */
	HR__FORWARDS,      /* it takes the memory of an input that nobody else can see, if it has as many bytes; else it allocates */
	HR__ALIASES,       /* it shares the memory of its first input */
	HR__UPDATES        /* output i takes the memory of input i, a variable's, unless somebody else still has that; else it allocates */
};

/* For gradients: values of the op that is gone through backwards, and where those of its inputs go (loose; left alone = zero). */
typedef struct hr__backward {
	const hr__attrs *attrs;
	uint32_t in_count, out_count;
	const hr__type *in_types, *out_types;
	hr_value in[HR__OP_INPUTS];       /* kept; HR_NO_VALUE where the row's mask does not ask for it */
	hr_value out[HR__OP_OUTPUTS];     /* the same */
	hr_value grad_out[HR__OP_OUTPUTS]; /* kept; HR_NO_VALUE = nothing depends on it */
	bool wanted[HR__OP_INPUTS];
	hr_value grad_in[HR__OP_INPUTS];
} hr__backward;

typedef struct hr__op {
	const char *name;
	uint8_t in_min, in_max, out_count;
	enum hr__op_memory memory;
	uint8_t forwards;  /* mask of inputs whose memory the first output may take */
	hr_status (*infer)(const hr__type *in, uint32_t count, const hr__attrs *attrs, hr__type *out);
	void (*run)(hr__work *work);
	uint64_t (*scratch)(const hr__type *in, const hr__type *out, const hr__attrs *attrs); /* bytes; NULL = none */
	hr_status (*gradient)(hr__backward *backward);
	uint8_t grad_in_mask, grad_out_mask; /* inputs and outputs whose contents the gradient looks at */
	bool order_only;   /* its inputs must be done, and it needs nothing of their contents */
} hr__op;

extern const hr__op hr__ops[HR__OP_COUNT];

/* The way into the runtime for all op calls: runs it, or adds a node. Loose inputs are used up. [outs] gets all outputs, loose, or none:
 * HR_NO_VALUE when something went wrong. */
void hr__call(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs, hr_value *outs);
/* The same for ops with one output. */
hr_value hr__call_one(enum hr__op_kind kind, const hr_value *inputs, uint32_t count, const hr__attrs *attrs);

#endif
