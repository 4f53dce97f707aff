/* headroom_runtime.h - tensors that are computed with: ops, graphs, sessions, variables, gradients.
 *
 * Included by headroom.h.
 *
 *     hr_value x = hr_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(128, 1024), 1));
 *     hr_value w = hr_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(1024, 10), 2));
 *     hr_value y = hr_softmax(hr_matmul(x, w));
 *     float first[10];
 *     hr_status status = hr_fetch(hr_slice(y, 0, 0, 1), first, sizeof first);
 *     hr_release(x);
 *     hr_release(w);
 *
 * It is a memory manager's runtime: small, exact, and a client of the allocator, the ledger, the report and Large Model Support like any
 * other. Each op says in its row of HR_OP_TABLE what it does to memory.
 *
 * ONE SET OF CALLS. Outside of a graph an op call runs the op: its output has memory when the call returns, and contents as soon as the
 * session's stream gets there (hr_fetch waits for that). Between hr_graph_enter and hr_graph_leave the same calls add nodes to a graph and
 * allocate nothing; hr_session_run runs what the fetched values need of it.
 *
 * LOOSE AND KEPT. A value that an op returns is loose: the next op that takes it uses it up, so that its memory is free at once, or becomes the
 * output's. To use a value more than once, or to have it later, keep it: hr_keep, and hr_release at the end. So expressions need no names for
 * what is in between, and nothing stays by accident. In a graph there is nothing to keep, and both do nothing.
 *
 * DTYPES. Ops compute in float32 and float64, some also in int32, int64 and uint8. bool and bfloat16 are to keep values in. bfloat16 takes half the
 * bytes of float32, has its range, and 8 bits of precision: it can be cast from and to everything, made by hr_constant, hr_full and
 * hr_one_hot, fed, fetched, assigned to variables, copied, and moved by the ops on shapes. All others ask for a cast to float32.
 *
 * ERRORS. An op that cannot be done returns HR_NO_VALUE, and hr_last_status and hr_last_message say why: the op, its scope, the variable that it is
 * on, both shapes. Given HR_NO_VALUE an op returns HR_NO_VALUE and leaves the message alone, so it is enough to look at the end of an expression. What
 * was loose is used up all the same.
 *
 * What an op finds wrong only when it runs, an index out of range, is told by the next call that waits: hr_fetch, hr_session_synchronize or
 * hr_session_close. The op's result has zeros where something is wrong. From then until it is told, updates of variables (hr_assign_add,
 * hr_assign_sub, optimizers) leave them as they are, so that a wrong label ruins no model; hr_assign does what it says.
 *
 * THREADS. Each enters the session that it wants to work in. Values are handles: one that another thread releases meanwhile is there for the call that has
 * found it, and HR_CLOSED for the next. */
#ifndef HEADROOM_RUNTIME_H
#define HEADROOM_RUNTIME_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hr_value {
	uint64_t id; /* 0 is no value */
} hr_value;

typedef struct hr_variable {
	uint64_t id;
} hr_variable;

typedef struct hr_graph {
	uint64_t id;
} hr_graph;

typedef struct hr_session {
	uint64_t id;
} hr_session;

#define HR_NO_VALUE ((hr_value){ 0 })
/* What an assignment returns outside of graphs: it has been done, and there is nothing to use up or release. */
#define HR_DONE ((hr_value){ UINT64_MAX })

/* Dimensions of a shape, as arguments: HR_DIMS(2, 3). A scalar is HR_SCALAR. */
#define HR_DIMS(...) (const int64_t[]){ __VA_ARGS__ }, (int)(sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))
#define HR_SCALAR NULL, 0


/* ------------------------------------------------------------------------------------------------------------------------------
 * Sessions: where ops run
 * ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct hr_session_options {
	size_t struct_size;
	const char *device;     /* "GPU:0"; NULL (default) = the first device */
	hr_allocator allocator; /* an allocator of the session's own; id 0 (default) = the device's default allocator */
} hr_session_options;

HR_API void hr_session_options_init(hr_session_options *options);

/* Opens a session: a stream of the device, and a container for variables. Threads use it by entering it.
 *
 * Ops are computed by the host. On a device whose memory it cannot reach, a card, each op works on copies in pinned memory that go there and back on
 * the session's stream. That memory is taken in pieces of 64 MiB and more, is shared by all sessions of the device, and stays until the last of
 * them is closed. It counts against hr_lms_options.host_limit, so set that one first.
 *
 * HR_UNSUPPORTED: the device has no memory that can be computed with (the simulated one). */
HR_API hr_status hr_session_open(const hr_session_options *options, hr_session *out);

/* Closes it: waits for its work, and frees its variables and every value that is still there; those are handles of nothing from then on. A value
 * that was neither released nor used up is a leak: the message of HR_IN_USE, which is returned when there were any, says how many, of how
 * many bytes, and the op of the largest, after what an op ran into that was not told yet. The session is closed all the same. No other thread may be using it. HR_CLOSED: it was closed already. */
HR_API hr_status hr_session_close(hr_session session);

/* Op calls of this thread go to [session] from now on. Sessions nest: leave returns to the one before. Without any, ops go to a session that
 * is made when it is first needed, on the first device, and ends with hr_shutdown. */
HR_API hr_status hr_session_enter(hr_session session);
HR_API hr_status hr_session_leave(void);

/* Waits until all that was called is done. The first error that an op ran into on the device, if any. */
HR_API hr_status hr_session_synchronize(hr_session session);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Values
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Keeps a loose value; kept more than once, it must be released as often. Returns its argument. */
HR_API hr_value hr_keep(hr_value value);
/* Gives one keep back. A loose value may be released too: then it is gone without having been used. HR_NO_VALUE is fine. */
HR_API void hr_release(hr_value value);

/* Copies its contents, all of them, to [to], which has room for exactly [bytes]; waits for the value to be computed. Uses it up if loose. */
HR_API hr_status hr_fetch(hr_value value, void *to, size_t bytes);

/* The same contents in another session, which may be on another device. On one device the copy waits in that session's stream for this one's;
 * between two, the call returns when it is done. Loose there; used up here, if loose. */
HR_API hr_value hr_copy_to_session(hr_value value, hr_session session);

HR_API int hr_value_rank(hr_value value); /* -1 for no value */
HR_API int64_t hr_value_dim(hr_value value, int dim);
HR_API int64_t hr_value_count(hr_value value); /* elements */
HR_API hr_dtype hr_value_dtype(hr_value value);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Ops
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* ---- that make something of nothing ---- */

/* [data] has as many elements as the shape, and is copied before the call returns. */
HR_API hr_value hr_constant(hr_dtype dtype, const int64_t *dims, int rank, const void *data);
HR_API hr_value hr_full(hr_dtype dtype, const int64_t *dims, int rank, double value);
/* The same [seed] gives the same numbers, whatever the number of threads. Mean 0, deviation 1. */
HR_API hr_value hr_random_normal(hr_dtype dtype, const int64_t *dims, int rank, uint64_t seed);
/* low <= x < high, both finite; integers too, if all of them are of the dtype. */
HR_API hr_value hr_random_uniform(hr_dtype dtype, const int64_t *dims, int rank, double low, double high, uint64_t seed);

/* ---- elementwise, with broadcasting: shapes are compared from the right; a dimension of 1, or a missing one, fits any ---- */

HR_API hr_value hr_add(hr_value a, hr_value b);
HR_API hr_value hr_sub(hr_value a, hr_value b);
HR_API hr_value hr_mul(hr_value a, hr_value b);
HR_API hr_value hr_div(hr_value a, hr_value b);
HR_API hr_value hr_maximum(hr_value a, hr_value b);
HR_API hr_value hr_neg(hr_value x);
HR_API hr_value hr_exp(hr_value x);
HR_API hr_value hr_log(hr_value x);
HR_API hr_value hr_sqrt(hr_value x);
HR_API hr_value hr_tanh(hr_value x);
HR_API hr_value hr_relu(hr_value x);
HR_API hr_value hr_gelu(hr_value x); /* exact, by the error function */
HR_API hr_value hr_scale(hr_value x, double factor, double plus); /* x * factor + plus */
/* To an integer: toward 0, to the nearest end of its range beyond that, and 0 for what is no number; from an integer to a smaller one, the low
 * bits. To bool: everything but 0 is true. To a float: the nearest, ties to even, in one rounding; what is no number stays so. */
HR_API hr_value hr_cast(hr_value x, hr_dtype dtype);

/* ---- shape ---- */

/* The same elements in another shape; one dimension may be -1. Shares memory. */
HR_API hr_value hr_reshape(hr_value x, const int64_t *dims, int rank);
/* Dimension i of the output is dimension order[i] of the input. */
HR_API hr_value hr_transpose(hr_value x, const int *order, int rank);
HR_API hr_value hr_concat(const hr_value *values, int count, int axis);
/* [count] elements along [axis], from [begin] on. Shares memory where those lie side by side: when all dimensions before the axis are 1. */
HR_API hr_value hr_slice(hr_value x, int axis, int64_t begin, int64_t count);
HR_API hr_value hr_broadcast_to(hr_value x, const int64_t *dims, int rank);
/* Rows of [table] (its first dimension) by number: indices of any shape, int32 or int64. */
HR_API hr_value hr_gather(hr_value table, hr_value indices);
HR_API hr_value hr_one_hot(hr_value indices, int64_t depth, hr_dtype dtype);

/* ---- reductions: along [axis], or over everything with HR_ALL_AXES; keep: the dimension stays, as 1 ---- */

#define HR_ALL_AXES (-100)
HR_API hr_value hr_reduce_sum(hr_value x, int axis, bool keep);
HR_API hr_value hr_reduce_mean(hr_value x, int axis, bool keep);
HR_API hr_value hr_reduce_max(hr_value x, int axis, bool keep);

/* ---- linear algebra and layers ---- */

/* The last two dimensions are matrices, the ones before are batches, which broadcast. */
HR_API hr_value hr_matmul(hr_value a, hr_value b);
HR_API hr_value hr_matmul_transposed(hr_value a, bool transpose_a, hr_value b, bool transpose_b);
HR_API hr_value hr_softmax(hr_value x); /* along the last dimension */
/* The same, of the last two dimensions, rows and at least as many columns: the last row sees all columns, each row before it one less; 0 elsewhere. */
HR_API hr_value hr_causal_softmax(hr_value x);
/* (x - mean) / sqrt(variance + epsilon) * gain + bias, along the last dimension, which gain and bias have. */
HR_API hr_value hr_layer_norm(hr_value x, hr_value gain, hr_value bias, double epsilon);
/* x [n, channels, height, width], filter [out channels, channels, height, width]. [padding] zeros on each side. */
HR_API hr_value hr_conv2d(hr_value x, hr_value filter, int64_t stride, int64_t padding);
/* Windows of [size] by [size], over x [n, channels, height, width]; those that do not fit in whole are left out. */
HR_API hr_value hr_max_pool(hr_value x, int64_t size, int64_t stride);
HR_API hr_value hr_avg_pool(hr_value x, int64_t size, int64_t stride);
/* Of [rows, classes] logits and labels (int32 or int64, [rows]): one loss for each row. */
HR_API hr_value hr_cross_entropy(hr_value logits, hr_value labels);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Gradients
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Outside of graphs: from now on op calls of this thread are taken down, and what their gradients will look at is kept. end forgets all of it.
 * HR_IN_USE: a tape is on already. */
/* (In a graph gradients need no tape; so that the same code does both, beginning and ending one there is fine.) */
HR_API hr_status hr_tape_begin(void);
HR_API hr_status hr_tape_end(void);

/* What the sum of [of] changes by, for each element of [by]: out[i] has the type of by[i], and is loose; zeros where nothing depends on it. In a
 * graph it adds nodes; outside, it runs ops by the tape, and what that kept is released on the way: a tape serves once. All or none. Uses up [of],
 * if loose; keep it to look at it later. Those of [by] stay as they are.
 * Gradients of bfloat16 values are float32 on the way; only one that is handed out, by such a value, is rounded to it.
 *
 * HR_INVALID_ARGUMENT  no tape is on, or it has served; [of] is no float; an op on the way has no gradient (the message names it) */
HR_API hr_status hr_gradients(hr_value of, const hr_value *by, size_t count, hr_value *out);

/* What is called in between is a block: its values are not kept for gradients, but computed again from what went into it, when gradients get
 * there. Less memory for more time. In graphs and outside. Blocks do not nest: HR_IN_USE. */
HR_API hr_status hr_checkpoint_begin(void);
HR_API hr_status hr_checkpoint_end(void);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Graphs
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* At most 256 at a time (HR_TOO_MANY); what functions build does not count. */
HR_API hr_status hr_graph_create(hr_graph *out);
/* HR_IN_USE while a thread builds it, or runs it. Its values are handles of nothing from then on. */
HR_API hr_status hr_graph_destroy(hr_graph graph);

/* Op calls of this thread add nodes to [graph] from now on. Graphs nest, up to 4 deep (HR_TOO_MANY): leave returns to the one before, or to
 * running ops. HR_IN_USE: a thread builds it already, or runs it.
 *
 * hr_shutdown ends all graphs. The thread that calls it is in none afterwards; op calls of others that were in one fail with HR_CLOSED until they
 * leave it. */
HR_API hr_status hr_graph_enter(hr_graph graph);
HR_API hr_status hr_graph_leave(void);

/* In a graph: a value that every run is given. */
HR_API hr_value hr_placeholder(hr_dtype dtype, const int64_t *dims, int rank);
/* The same with a name, by which it can be found later and messages call it: "scope/name" in the current name scope. Names of placeholders are
 * unique in a graph: HR_ALREADY_EXISTS. HR_INVALID_ARGUMENT: no name, or one longer than 511 bytes with its scopes. HR_TOO_MANY: the name
 * is new, and the table of names (hr_name_intern) is full. */
HR_API hr_value hr_named_placeholder(const char *name, hr_dtype dtype, const int64_t *dims, int rank);
/* The placeholder of that name, scopes included: "tower/x". *out is the handle that hr_named_placeholder returned. Looks at the ops of the graph
 * one by one: look a name up once, not in every step.
 *
 * HR_INVALID_ARGUMENT  there is none of that name; the message lists those that have names
 * HR_IN_USE            another thread is building the graph
 * HR_CLOSED            there is no such graph */
HR_API hr_status hr_graph_find_placeholder(hr_graph graph, const char *name, hr_value *out);

typedef struct hr_feed {
	hr_value placeholder, value; /* loose values are used up by the run */
} hr_feed;

/* A feed from an array of the host: [data] has as many elements as the placeholder, of its dtype, [bytes] in all, and is copied before the call
 * returns. The value is loose and belongs to [session], whatever session or graph the thread is in.
 *
 *     float numbers[] = { 1, 2, 3 };
 *     hr_value x = HR_NO_VALUE, y = HR_NO_VALUE, result;
 *     hr_session session = { 0 };
 *     hr_feed feed = hr_feed_array(session, x, numbers, sizeof numbers);
 *     hr_status status = hr_session_run(session, &feed, 1, &y, 1, &result, NULL, NULL);
 *
 * When that fails the feed's value is HR_NO_VALUE, and the run that is given it returns the same status with the same message: HR_INVALID_ARGUMENT
 * (bytes that are not the placeholder's; no placeholder), HR_CLOSED, HR_OUT_OF_MEMORY, HR_NO_HOST_MEMORY. A feed that no run is given has a value
 * to release. */
HR_API hr_feed hr_feed_array(hr_session session, hr_value placeholder, const void *data, size_t bytes);

/* One thing to fetch for many assignments: all of [values] have to be done for it. A scalar, int32: how many. Outside of graphs HR_DONE. */
HR_API hr_value hr_group(const hr_value *values, size_t count);

/* ---- options of a run or function call, and what is told of it ---- */

typedef enum hr_run_trace {
	HR_RUN_TRACE_NONE = 0,
	HR_RUN_TRACE_OPS = 1 /* each op's time, allocations and peak, in the metadata. The run waits until all of it is done */
} hr_run_trace;

typedef struct hr_run_options {
	size_t struct_size;
	/* While the run lasts, for the session's allocator; the meanings are those of hr_oom_options. Runs at the same time on one allocator have one log,
	 * of the size and rate of the first of them; the last to end puts back what the first one found. */
	bool report_allocations_on_oom;      /* default false: as the allocator's own options say */
	uint32_t allocation_log_buffer_size;
	double allocation_log_sampling_rate;
	hr_run_trace trace;
	bool is_step; /* the run is a step of the program, unless the program marks steps itself (hr_step_begin); default true */
	bool allocation_log_allocations_only; /* like the three above */
} hr_run_options;

HR_API void hr_run_options_init(hr_run_options *options);

typedef struct hr_op_metadata {
	hr_name op, scope;
	uint64_t begin_ns, ns;   /* when its kernel began, counted from the beginning of the run; how long it took */
	uint32_t allocations;    /* scratch memory too */
	uint64_t allocated_bytes; /* of those allocations, as bytes_in_use counts them: what the blocks occupy, rounding included */
	uint64_t peak_bytes;     /* bytes_in_use of the session's allocator while the op had all of its memory */
} hr_op_metadata;

/* Filled by a run, also by one that fails. Free it with hr_run_metadata_free; a run that is given it again frees it first. */
typedef struct hr_run_metadata {
	size_t struct_size;
	uint64_t ns;           /* of the whole run */
	uint64_t peak_bytes;   /* of the session's allocator, during the run; 0 unless traced */
	hr_op_metadata *ops;   /* in the order in which they ran */
	size_t op_count, op_capacity;
	char *allocation_log;  /* after HR_OUT_OF_MEMORY, with report_allocations_on_oom: a JSON array, what hr_oom_allocation_log gives */
} hr_run_metadata;

HR_API void hr_run_metadata_init(hr_run_metadata *metadata);
HR_API void hr_run_metadata_free(hr_run_metadata *metadata);

/* Runs what the fetched values need of their graph, in an order in which inputs come before those who use them; memory is freed at the last use,
 * or taken over by the op that has it. outs[i] gets the contents of fetches[i], loose. All or none; but variables that were assigned to before
 * something went wrong have their new contents. [options] and [metadata] may be NULL. Any number of threads may run one graph at the same time.
 *
 * HR_IN_USE            another thread is building the graph. A thread that is in it may run it
 * HR_INVALID_ARGUMENT  a placeholder is needed and not fed, fed twice, or fed with another dtype or shape; something is fed that is no
 *                      placeholder; a fetch is of no graph, or of another one; a variable has no contents yet. The message names it
 * and whatever an op runs into. */
HR_API hr_status hr_session_run(hr_session session, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count,
                                hr_value *outs, const hr_run_options *options, hr_run_metadata *metadata);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Variables
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* What a variable begins with. */
typedef struct hr_initializer {
	enum { HR_INIT_NONE, HR_INIT_FULL, HR_INIT_NORMAL, HR_INIT_UNIFORM } kind; /* none: it has no contents until it is assigned to */
	double a, b;    /* full: the value; normal: mean, deviation; uniform: low, high */
	uint64_t seed;
} hr_initializer;

#define HR_ZEROS ((hr_initializer){ .kind = HR_INIT_FULL })
#define HR_FULL(value) ((hr_initializer){ .kind = HR_INIT_FULL, .a = (value) })
#define HR_NORMAL(deviation, seed_) ((hr_initializer){ .kind = HR_INIT_NORMAL, .b = (deviation), .seed = (seed_) })
#define HR_UNIFORM(low, high, seed_) ((hr_initializer){ .kind = HR_INIT_UNIFORM, .a = (low), .b = (high), .seed = (seed_) })
#define HR_UNINITIALIZED ((hr_initializer){ .kind = HR_INIT_NONE })

/* What hr_get_variable does with a name that is there already. */
typedef enum hr_reuse {
	HR_REUSE_AS_AROUND = 0, /* as the scope around it; outside of all, a name that is there is a collision */
	HR_REUSE_ONLY,          /* the variable must be there */
	HR_REUSE_OR_MAKE        /* it is used if it is there, and made if not */
} hr_reuse;

/* Names of variables are "scope/name" from now on, until the scope is left; requests of ops are in a name scope of the same name. Scopes nest,
 * up to 16 deep, and those within a scope that reuses do so too. HR_TOO_MANY: they are as deep as that, or the table of names (hr_name_intern) is
 * full. */
HR_API hr_status hr_variable_scope_push(const char *name, hr_reuse reuse);
HR_API hr_status hr_variable_scope_pop(void);

/* A variable: contents that stay, under a name.
 *
 * In a graph it belongs to the graph and has no memory; each session that runs the graph has contents of its own for it, from the run of
 * hr_global_variables_initializer (or of an assignment) on. Outside, and in a function, it belongs to the session of the thread, and is
 * initialised at once. Contents live in the session, and end with it.
 *
 * The variable has id 0 when that fails: HR_ALREADY_EXISTS (a collision: the message tells what is there and how to use it),
 * HR_INVALID_ARGUMENT (only reuse, and not there; there with another dtype or shape: both are named; an initializer that hr_full, hr_random_normal
 * or hr_random_uniform would refuse for this dtype), HR_TOO_MANY (65,536 variables; or the name is new, and the table of names is full, in which
 * variables could not be told apart: so it is for what an optimizer makes), HR_OUT_OF_MEMORY. */
HR_API hr_variable hr_get_variable(const char *name, hr_dtype dtype, const int64_t *dims, int rank, hr_initializer initializer);

/* In a graph: what initialises all variables of the graph that there are when it is run; fetch it. Outside: initialises those of the session that
 * have no contents yet: HR_DONE. Fetched, a scalar, int32: how many. */
HR_API hr_value hr_global_variables_initializer(void);

/* The contents, as they are at this point of the program. No copy: an update that comes while somebody still has them gets other memory. */
HR_API hr_value hr_read(hr_variable variable);
/* Gives it new contents. Memory of a loose value becomes the variable's. In a graph it is the new contents; fetch it, or a group with it, to have
 * it run. Outside HR_DONE. Gradients end here: nothing goes through an assignment. */
HR_API hr_value hr_assign(hr_variable variable, hr_value value);
/* The same, in the variable's own memory, unless somebody still has its contents. */
HR_API hr_value hr_assign_add(hr_variable variable, hr_value value);
HR_API hr_value hr_assign_sub(hr_variable variable, hr_value value);

/* "encoder/w"; "" for none. Static text. */
HR_API const char *hr_variable_name(hr_variable variable);
/* Those of the graph that is being built, or of the session, in the order in which they were made, without those that optimizers made for
 * themselves. At most [capacity] are written; returns how many there are. */
HR_API size_t hr_trainable_variables(hr_variable *out, size_t capacity);

/* hr_gradients, by the contents of variables. Uses up [of], if loose. */
HR_API hr_status hr_variable_gradients(hr_value of, const hr_variable *by, size_t count, hr_value *out);

/* ---- optimizers ---- */

typedef enum hr_optimizer_kind { HR_SGD = 0, HR_MOMENTUM, HR_ADAM } hr_optimizer_kind;

typedef struct hr_optimizer {
	size_t struct_size;
	hr_optimizer_kind kind;
	const char *name;     /* what it remembers is in variables "<name>/step", "<variable>/<name>/m"; NULL (default) = "sgd", "momentum", "adam" */
	double learning_rate; /* default 0.01; Adam 0.001 */
	double momentum;      /* default 0.9 */
	double beta1, beta2, epsilon; /* default 0.9, 0.999, 1e-8 */
} hr_optimizer;

HR_API void hr_optimizer_init(hr_optimizer *optimizer, hr_optimizer_kind kind);
/* Updates each variable by its gradient, in the variable's own memory. To be called once in a step. A value to fetch, as of hr_group. Loose gradients
 * are used up. What is wrong with any of them (dtype, shape, session; a variable without contents) is found before the first update: then nothing has
 * changed, and no step was counted. */
HR_API hr_value hr_apply_gradients(const hr_optimizer *optimizer, const hr_variable *variables, const hr_value *gradients, size_t count);
/* hr_variable_gradients of [loss], and applied. Uses up [loss], if loose. */
HR_API hr_value hr_minimize(const hr_optimizer *optimizer, hr_value loss, const hr_variable *variables, size_t count);

/* ---- layers: ops with variables, named "<name>/w" and the like, in the current variable scope ---- */

typedef enum hr_activation { HR_LINEAR = 0, HR_RELU, HR_GELU, HR_TANH } hr_activation;

/* [..., in] to [..., units]. w [in, units] normal with deviation 1/sqrt(in) by [seed], b [units] zero. */
HR_API hr_value hr_dense(const char *name, hr_value x, int64_t units, hr_activation activation, uint64_t seed);
/* [n, in, h, w] to [n, channels, ...]: windows of [size] by [size]. w [channels, in, size, size], b [channels, 1, 1]. */
HR_API hr_value hr_conv_layer(const char *name, hr_value x, int64_t channels, int64_t size, int64_t stride, int64_t padding, hr_activation activation,
                              uint64_t seed);
/* Rows of a table [count, width] by index. */
HR_API hr_value hr_embedding(const char *name, hr_value indices, int64_t count, int64_t width, hr_dtype dtype, uint64_t seed);
/* Normalises along the last dimension. gain one, bias zero. */
HR_API hr_value hr_layer_norm_layer(const char *name, hr_value x);
/* Attention of [n, time, width] to itself with [heads] heads; causal: no position sees later ones. */
HR_API hr_value hr_attention(const char *name, hr_value x, int64_t heads, bool causal, uint64_t seed);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Functions: a step that is written like any other code, and runs as a graph
 * ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct hr_function {
	uint64_t id;
} hr_function;

/* Calls ops on [ins], and sets [outs]. Called once for each combination of dtypes and shapes: then it builds a graph, so what it does besides
 * calling ops happens at that time only. Returns what went wrong, HR_OK if nothing did. */
typedef hr_status (*hr_function_body)(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count);

/* At most 64 of them at a time (HR_TOO_MANY). [name] is how messages call it. */
HR_API hr_status hr_function_create(const char *name, hr_function_body body, void *context, hr_function *out);
/* HR_IN_USE while a thread calls it. */
HR_API hr_status hr_function_destroy(hr_function function);

/* Runs it in the session of the thread: all outputs, and all assignments that the body made. Loose [ins] are used up. At most 8 combinations of
 * session, dtypes and shapes are kept, and the one that was used longest ago is built anew.
 *
 * Threads may call one function at the same time, each in its session or several in one. The body is called by one thread at a time, and the others
 * wait until it returns; what was built runs side by side.
 *
 * HR_IN_USE  the body calls its own function, itself or by way of others: such a call would wait for itself
 * and whatever the body returns, or an op runs into. */
HR_API hr_status hr_function_call(hr_function function, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count);

/* The same with options and metadata, as of hr_session_run; both may be NULL. While functions run op by op (hr_run_functions_eagerly, or a tape is
 * on) there is no run: the log for HR_OUT_OF_MEMORY and the time are there, is_step does nothing, and HR_RUN_TRACE_OPS is HR_UNSUPPORTED.
 *
 * HR_INVALID_ARGUMENT  the call is in a graph or in the body of another function, of which it becomes a part: options go to the run of that */
HR_API hr_status hr_function_call_with_options(hr_function function, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count,
                                               const hr_run_options *options, hr_run_metadata *metadata);

/* true: functions are not built, their bodies run op by op. For looking into them. Of the whole process; default false. */
HR_API void hr_run_functions_eagerly(bool eagerly);

#ifdef __cplusplus
}
#endif

#endif
