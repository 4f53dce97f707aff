/* headroom_runtime.h - a tensor runtime: ops, graphs, sessions, variables, gradients.
 *
 * The library is libheadroom_runtime. The rules of headroom.h apply.
 *
 *     hr_value x = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(128, 1024), 1));
 *     hr_value w = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(1024, 10), 2));
 *     hr_value y = hr_softmax(hr_matmul(x, w));
 *     float first[10];
 *     hr_status status = hr_value_fetch(hr_slice(y, 0, 0, 1), first, sizeof first);
 *     hr_value_release(x);
 *     hr_value_release(w);
 *
 * The runtime is small and exact, and uses the allocator, the ledger, OOM reports and Large Model Support like any other client.
 * The row of an op in the op table (src/runtime/ops/ops.c) states how its outputs get their memory.
 *
 * ONE SET OF CALLS. Outside of a graph an op call runs the op: its output has memory when the call returns, and contents when the
 * session's stream has executed the op (hr_value_fetch waits for that). Between hr_graph_enter and hr_graph_leave the same calls add
 * nodes to a graph and allocate nothing; hr_session_run runs the nodes that the fetched values need.
 *
 * TEMPORARY AND KEPT VALUES. A value that an op returns is temporary: the next op that takes it consumes it, so that its memory is
 * freed at once or becomes the output's. To use a value more than once, or later, keep it with hr_value_keep and release it with
 * hr_value_release. So intermediate values of an expression need no names, and none of them is left behind. In a graph nothing has to be
 * kept, and both calls have no effect.
 *
 * DTYPES. Ops compute in float32 and float64, some also in int32, int64 and uint8. bool is for storing values.
 * bfloat16 takes half the bytes of float32, has the same range, and 8 bits of precision. It can be cast from and to every dtype,
 * created by hr_constant, hr_full and hr_one_hot, fed, fetched, assigned to variables, copied, and used by the ops on shapes. The
 * products of two bfloat16 matrices are added in float32, and the result is float32. hr_attend takes bfloat16 and returns it. Elementwise
 * ops and hr_dropout compute bfloat16 in float32 and round the result once; of float32 and bfloat16 inputs it is float32. Losses of bfloat16 logits are float32. All other
 * ops require a cast to float32.
 *
 * ERRORS. An op that fails returns HR_NO_VALUE; hr_last_status and hr_last_message give the reason: the op, its scope, its
 * variable, both shapes. An op that is given HR_NO_VALUE returns HR_NO_VALUE and leaves the message unchanged, so it is enough to
 * check the result of an expression. A failed op still consumes its temporary inputs.
 *
 * An error that an op can only detect while it runs (an index out of range) is returned by the next call that waits: hr_value_fetch,
 * hr_session_synchronize or hr_session_destroy. The op's output has zeros where its input was wrong. From the error until it is
 * returned, updates of variables (hr_assign_add, hr_assign_sub, optimizers) leave the variables unchanged, so that a wrong label
 * does not ruin a model; hr_assign still takes effect.
 *
 * THREADS. Each thread enters the session that it works in. Values are handles: a value that another thread releases during a
 * call stays valid for that call, and is HR_INVALID_HANDLE for the next one. */
#ifndef HEADROOM_RUNTIME_H
#define HEADROOM_RUNTIME_H

#include "headroom.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hr_value {
	uint64_t id; /* 0 = no value */
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

/* HR_NO_VALUE: no value. HR_DONE is returned by an assignment outside of graphs: the assignment is done, and there is nothing to
 * consume or release. HR_DIMS: dimensions and rank of a shape, as two arguments: HR_DIMS(2, 3), or HR_SCALAR. */
#ifdef __cplusplus
extern "C++" {
template <typename... N> struct hr_dims {
	int64_t values[sizeof...(N)];
	const int64_t *data() const { return values; }
};
template <typename... N> inline hr_dims<N...> hr_dims_of(N... dims)
{
	return hr_dims<N...>{ { static_cast<int64_t>(dims)... } };
}
}
#define HR_NO_VALUE (hr_value{ 0 })
#define HR_DONE (hr_value{ UINT64_MAX })
#define HR_DIMS(...) hr_dims_of(__VA_ARGS__).data(), static_cast<int>(sizeof(hr_dims_of(__VA_ARGS__)) / sizeof(int64_t))
#else
#define HR_NO_VALUE ((hr_value){ 0 })
#define HR_DONE ((hr_value){ UINT64_MAX })
#define HR_DIMS(...) (const int64_t[]){ __VA_ARGS__ }, (int)(sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))
#endif
#define HR_SCALAR NULL, 0

/* ------------------------------------------------------------------------------------------------------------------------------
 * Sessions: where ops run
 * ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct hr_session_options {
	size_t struct_size;
	const char *device;     /* "GPU:0"; NULL (default) = the first device */
	hr_allocator allocator; /* the allocator that the session uses; id 0 (default) = the device's default allocator */
} hr_session_options;

HR_API void hr_session_options_init_sized(hr_session_options *options, size_t struct_size);
static inline void hr_session_options_init(hr_session_options *options)
{
	hr_session_options_init_sized(options, sizeof *options);
}

/* Opens a session: a stream of the device, and a container for variables. A thread uses a session by entering it.
 *
 * On an allocator with Large Model Support, values are evicted and restored as memory is needed, or dropped and recomputed if their op
 * is a pure function of its inputs (hr_lms_options.recompute turns that off). Results are the same to the bit.
 *
 * On a CUDA card with NVRTC, ops are computed by the card, matrix products by cuBLASLt. Where one of these libraries is missing, the host computes the
 * ops that need it, on copies in pinned memory, which are copied from and to the device on the session's stream. That memory is allocated in pieces of 64 MiB and more, is shared
 * by all sessions of the device, and is kept until the last of them is destroyed. It counts against hr_lms_options.host_limit, so set
 * that limit first.
 *
 * HR_UNSUPPORTED  the device has no memory to compute with (the simulated device)
 * HR_TOO_MANY     256 sessions exist already */
HR_API HR_CHECK_RESULT hr_status hr_session_create(const hr_session_options *options, hr_session *out);

/* Waits for the session's work, then destroys the session and frees its variables and all values that still exist. Handles of those
 * are invalid from then on. No other thread may be using the session.
 *
 * HR_IN_USE  there were values that had been neither released nor consumed, which is a leak. The message gives their number, their
 *            bytes and the op of the largest, after the error of an op that was not returned yet, if any. The session is destroyed all
 *            the same
 * HR_INVALID_HANDLE  the session was destroyed already */
HR_API hr_status hr_session_destroy(hr_session session);

/* Op calls of this thread use [session] from now on. Sessions nest: hr_session_leave returns to the previous one. A thread that
 * is in no session uses a session on the first device, which is created when it is first needed and destroyed by hr_shutdown.
 *
 * HR_TOO_MANY  the thread is inside 4 sessions already */
HR_API HR_CHECK_RESULT hr_status hr_session_enter(hr_session session);
HR_API hr_status hr_session_leave(void);

/* HR_OK: the session's ops are computed on its device. HR_UNSUPPORTED: they, or products of matrices, are computed by the host, on copies of values that
 * are on the device; the message says which, and why. */
HR_API hr_status hr_session_compute_check(hr_session session);

/* Waits until all work of the session is done. Returns the first error that an op detected while it ran, if any. */
HR_API HR_CHECK_RESULT hr_status hr_session_synchronize(hr_session session);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Values
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Keeps a temporary value and returns it. A value that is kept several times must be released as often. */
HR_API hr_value hr_value_keep(hr_value value);
/* Undoes one hr_value_keep. Releasing a temporary value frees it unused. HR_NO_VALUE is allowed. */
HR_API void hr_value_release(hr_value value);

/* Waits until the value is computed and copies all of its contents to [to]; [bytes] must be their exact size. Consumes a
 * temporary value. */
HR_API HR_CHECK_RESULT hr_status hr_value_fetch(hr_value value, void *to, size_t bytes);

/* Copies a value to another session, which may be on another device. On the same device the copy waits in the stream of
 * [session] for the stream of the value's session; between devices the call returns when the copy is done. The result is a
 * temporary value of [session]. Consumes a temporary [value]. */
HR_API hr_value hr_value_copy_to_session(hr_value value, hr_session session);

HR_API int hr_value_rank(hr_value value); /* -1 for an invalid value */
HR_API int64_t hr_value_dim(hr_value value, int dim);
HR_API int64_t hr_value_count(hr_value value); /* number of elements */
HR_API hr_dtype hr_value_dtype(hr_value value);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Ops
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* ---- without inputs ---- */

/* [data] has as many elements as the shape; it is copied before the call returns. */
HR_API hr_value hr_constant(hr_dtype dtype, const int64_t *dims, int rank, const void *data);
HR_API hr_value hr_full(hr_dtype dtype, const int64_t *dims, int rank, double value);
/* Mean 0, deviation 1. The same [seed] gives the same numbers, whatever the number of threads. */
HR_API hr_value hr_random_normal(hr_dtype dtype, const int64_t *dims, int rank, uint64_t seed);
/* low <= x < high, both finite. Also for integer dtypes that can represent all integers of the range. */
HR_API hr_value hr_random_uniform(hr_dtype dtype, const int64_t *dims, int rank, double low, double high, uint64_t seed);

/* ---- elementwise, with broadcasting: shapes are compared from the right; a dimension of 1, or a missing one, matches any ---- */

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
HR_API hr_value hr_gelu(hr_value x); /* exact, with the error function */
HR_API hr_value hr_scale(hr_value x, double factor, double plus); /* x * factor + plus */
/* To an integer: a float is rounded toward 0 and clamped to the range of the dtype, and NaN gives 0; of a larger integer, the
 * low bits. To bool: everything but 0 is true. To a float: the nearest value, ties to even, in one rounding; NaN stays NaN. To its own
 * dtype: shares memory with [x]. */
HR_API hr_value hr_cast(hr_value x, hr_dtype dtype);

/* ---- shape ---- */

/* The same elements in another shape; one dimension may be -1. Shares memory with [x]. */
HR_API hr_value hr_reshape(hr_value x, const int64_t *dims, int rank);
/* Dimension i of the output is dimension order[i] of the input. */
HR_API hr_value hr_transpose(hr_value x, const int *order, int rank);
HR_API hr_value hr_concat(const hr_value *values, int count, int axis);
/* [count] elements along [axis], from [begin] on. Shares memory with [x] if the elements are contiguous: when all dimensions
 * before the axis are 1. */
HR_API hr_value hr_slice(hr_value x, int axis, int64_t begin, int64_t count);
HR_API hr_value hr_broadcast_to(hr_value x, const int64_t *dims, int rank);
/* Rows of [table] (along its first dimension), selected by [indices] of any shape, int32 or int64. */
HR_API hr_value hr_gather(hr_value table, hr_value indices);
HR_API hr_value hr_one_hot(hr_value indices, int64_t depth, hr_dtype dtype);

/* ---- reductions: along [axis], or over all elements with HR_ALL_AXES. keep: the dimension stays, with size 1 ---- */

#define HR_ALL_AXES (-100)
HR_API hr_value hr_reduce_sum(hr_value x, int axis, bool keep);
HR_API hr_value hr_reduce_mean(hr_value x, int axis, bool keep);
HR_API hr_value hr_reduce_max(hr_value x, int axis, bool keep);

/* ---- linear algebra and layers ---- */

/* The last two dimensions are matrices; the dimensions before them are batches, which broadcast. Of bfloat16 matrices the result is
 * float32. */
HR_API hr_value hr_matmul(hr_value a, hr_value b);
HR_API hr_value hr_matmul_transposed(hr_value a, bool transpose_a, hr_value b, bool transpose_b);
HR_API hr_value hr_softmax(hr_value x); /* along the last dimension */
/* Softmax with a causal mask. The last two dimensions are rows and columns, with at least as many columns as rows. The last row
 * uses all columns, each row before it one column less; all other elements are 0. */
HR_API hr_value hr_causal_softmax(hr_value x);
/* Each channel of x [n, channels, ...] is normalised over all of the batch: (x - mean) / sqrt(variance + epsilon) * gain + bias. gain and
 * bias are [channels]. *mean and *variance get the channels' statistics as temporary values, unless NULL; the variance is divided by the
 * number of elements. No gradients pass through *mean and *variance. */
HR_API hr_value hr_batch_norm(hr_value x, hr_value gain, hr_value bias, double epsilon, hr_value *mean, hr_value *variance);
/* The same with given statistics, all [channels]. Made of other ops. */
HR_API hr_value hr_batch_norm_inference(hr_value x, hr_value mean, hr_value variance, hr_value gain, hr_value bias, double epsilon);
/* Each element is 0 with probability [rate] (0 to 1), and else divided by 1 - rate. Which elements are 0 is a function of [seed], the low
 * 62 bits of [offset] (int64 []) and the position alone: give another offset in each step, such as the step's number. No mask is kept, and
 * gradients and recomputed results use the same elements. [training] false: the result is x, and [offset] is not used; it may be
 * HR_NO_VALUE. */
HR_API hr_value hr_dropout(hr_value x, double rate, uint64_t seed, hr_value offset, bool training);
/* Attention, fused: softmax(scale * q k^T) v for each head, without the matrix of scores. q is [..., rows, width], k [..., keys, width],
 * v [..., keys, value width], with the same dimensions before; the result is [..., rows, value width]. The last dimension is divided
 * into [heads] equal parts, one for each head, as hr_dense returns them; with one head, a head is a matrix. [scale] is usually
 * 1 / sqrt(width / heads). causal: as in hr_causal_softmax, with keys as columns. For gradients q, k, v, the result and one number for
 * each row and head are kept. Of bfloat16 q, k and v the result is bfloat16; products are added in float32. A card with tensor cores
 * rounds weights and gradients of scores to bfloat16 before it multiplies them; the host does not. */
HR_API hr_value hr_attend(hr_value q, hr_value k, hr_value v, int64_t heads, double scale, bool causal);
/* (x - mean) / sqrt(variance + epsilon) * gain + bias, along the last dimension, which is the only one of gain and bias. */
HR_API hr_value hr_layer_norm(hr_value x, hr_value gain, hr_value bias, double epsilon);
/* x [n, channels, height, width], filter [out channels, channels, height, width]. [padding] zeros on each side. */
HR_API hr_value hr_conv2d(hr_value x, hr_value filter, int64_t stride, int64_t padding);
/* Windows of [size] by [size] over x [n, channels, height, width]. Windows that do not fit entirely are left out. */
HR_API hr_value hr_max_pool(hr_value x, int64_t size, int64_t stride);
HR_API hr_value hr_avg_pool(hr_value x, int64_t size, int64_t stride);
/* One loss for each row, from logits [rows, classes] and labels [rows] (int32 or int64). */
HR_API hr_value hr_cross_entropy(hr_value logits, hr_value labels);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Gradients
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Outside of graphs: hr_tape_begin starts to record the op calls of this thread, and keeps the values that their gradients need.
 * hr_tape_end discards the tape. HR_IN_USE: the thread has a tape already. In a graph gradients need no tape; beginning and
 * ending a tape is allowed there, so that the same code runs in both. */
HR_API hr_status hr_tape_begin(void);
HR_API hr_status hr_tape_end(void);

/* The gradients of the sum of [of] with respect to each element of each of [by]. out[i] is temporary and has the type of by[i]; it
 * is zero where [of] does not depend on by[i]. All or none. In a graph the call adds nodes. Outside, it runs ops from the tape and
 * releases the values that the tape kept, so a tape can be used once. Consumes a temporary [of]; keep it to read it later. The
 * values in [by] are not consumed. Gradients of bfloat16 values are float32, or bfloat16 where a product or an elementwise op gives them
 * so; a returned gradient of a bfloat16 by[i] is bfloat16.
 *
 * HR_INVALID_ARGUMENT  there is no tape, or it was used already; [of] is not of a float dtype; an op in between has no gradient
 *                      (the message names it) */
HR_API HR_CHECK_RESULT hr_status hr_gradients(hr_value of, const hr_value *by, size_t count, hr_value *out);

/* The ops called between hr_checkpoint_begin and hr_checkpoint_end form a segment. The values of a segment are not kept for
 * gradients, but recomputed from its inputs when gradients need them: less memory for more time. Works in graphs and outside.
 * Segments do not nest: HR_IN_USE. */
HR_API hr_status hr_checkpoint_begin(void);
HR_API hr_status hr_checkpoint_end(void);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Graphs
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Creates a graph. At most 256 exist at a time (HR_TOO_MANY); those that functions build do not count. */
HR_API HR_CHECK_RESULT hr_status hr_graph_create(hr_graph *out);
/* Creates a graph for code that is traced, as hr_function_call does: variables that are created while the graph is built belong to
 * [session] and are initialised at once. The thread that builds it must be in that session. At most 512 such graphs exist at a time,
 * those that functions build included (HR_TOO_MANY). HR_INVALID_HANDLE: no such session. */
HR_API HR_CHECK_RESULT hr_status hr_graph_create_in_session(hr_session session, hr_graph *out);
/* Destroys the graph. Handles of its values are invalid from then on. HR_IN_USE while a thread builds or runs the graph. */
HR_API hr_status hr_graph_destroy(hr_graph graph);

/* Op calls of this thread add nodes to [graph] from now on. Graphs nest, up to 4 deep (HR_TOO_MANY): hr_graph_leave returns to the
 * previous graph, or to running ops. HR_IN_USE: a thread is already building or running the graph.
 *
 * hr_shutdown destroys all graphs. The thread that calls it is in no graph afterwards. Op calls of other threads that were in a
 * graph fail with HR_INVALID_HANDLE until they leave it. */
HR_API HR_CHECK_RESULT hr_status hr_graph_enter(hr_graph graph);
HR_API hr_status hr_graph_leave(void);

/* In a graph: a value that is fed to each run. */
HR_API hr_value hr_placeholder(hr_dtype dtype, const int64_t *dims, int rank);
/* A placeholder with a name, which hr_graph_find_placeholder and messages use: "scope/name" in the current name scope.
 *
 * HR_ALREADY_EXISTS    the graph has a placeholder of that name
 * HR_INVALID_ARGUMENT  no name, or one longer than 511 bytes with its scopes
 * HR_TOO_MANY          the name is new, and the table of names (hr_name_intern) is full */
HR_API hr_value hr_named_placeholder(const char *name, hr_dtype dtype, const int64_t *dims, int rank);
/* Finds a placeholder by its name, scopes included: "tower/x". *out is the handle that hr_named_placeholder returned. Searches the
 * ops of the graph one by one: look a name up once, not in every step.
 *
 * HR_INVALID_ARGUMENT  no placeholder has that name; the message lists the names
 * HR_IN_USE            another thread is building the graph
 * HR_INVALID_HANDLE            no such graph */
HR_API HR_CHECK_RESULT hr_status hr_graph_find_placeholder(hr_graph graph, const char *name, hr_value *out);

typedef struct hr_feed {
	hr_value placeholder, value; /* the run consumes temporary values */
} hr_feed;

/* A feed from an array on the host. [data] has as many elements as the placeholder, of its dtype, [bytes] in all; it is copied
 * before the call returns. The value is temporary and belongs to [session], whatever session or graph the thread is in.
 *
 *     float numbers[] = { 1, 2, 3 };
 *     hr_value x = HR_NO_VALUE, y = HR_NO_VALUE, result;
 *     hr_session session = { 0 };
 *     hr_feed feed = hr_feed_from_array(session, x, numbers, sizeof numbers);
 *     hr_status status = hr_session_run(session, &feed, 1, &y, 1, &result, NULL, NULL);
 *
 * On failure the feed's value is HR_NO_VALUE, and a run that is given the feed returns the same status with the same message:
 * HR_INVALID_ARGUMENT ([bytes] is not the size of the placeholder, or there is no placeholder), HR_INVALID_HANDLE, HR_OUT_OF_MEMORY,
 * HR_NO_HOST_MEMORY. The value of a feed that is given to no run must be released. */
HR_API hr_feed hr_feed_from_array(hr_session session, hr_value placeholder, const void *data, size_t bytes);

/* One value to fetch for many assignments: fetching it runs all of [values]. It is an int32 scalar, their number. Outside of
 * graphs: HR_DONE. */
HR_API hr_value hr_group(const hr_value *values, size_t count);

/* ---- options and metadata of a run or function call ---- */

typedef enum hr_run_trace {
	HR_RUN_TRACE_NONE = 0,
	HR_RUN_TRACE_OPS = 1 /* time, allocations and peak of each op, in the metadata. The run waits until all of its work is done */
} hr_run_trace;

typedef struct hr_run_options {
	size_t struct_size;
	/* The first three fields and allocation_log_allocations_only apply to the session's allocator during the run, with the
	 * meanings of hr_oom_options. Concurrent runs on one allocator share one log, with the size and rate of the first run; the
	 * last run to end restores the options that the first one found. */
	bool report_allocations_on_oom;      /* default false = the allocator's own options apply */
	uint32_t allocation_log_buffer_size;
	double allocation_log_sampling_rate;
	hr_run_trace trace;
	bool is_step; /* the run is a step, unless the program marks steps itself (hr_step_begin); default true */
	bool allocation_log_allocations_only; /* applies like the three fields above trace */
} hr_run_options;

HR_API void hr_run_options_init_sized(hr_run_options *options, size_t struct_size);
static inline void hr_run_options_init(hr_run_options *options)
{
	hr_run_options_init_sized(options, sizeof *options);
}

typedef struct hr_op_metadata {
	hr_name op, scope;
	uint64_t begin_ns, ns;   /* start of the kernel, counted from the start of the run; its duration */
	uint32_t allocations;    /* number of allocations, scratch memory included */
	uint64_t allocated_bytes; /* bytes of those allocations, as bytes_in_use counts them: what the blocks occupy, rounding
	                           * included */
	uint64_t peak_bytes;     /* bytes_in_use of the session's allocator while the op had all of its memory */
} hr_op_metadata;

/* Filled by a run, also by one that fails. Free it with hr_run_metadata_free; a run that is given it again frees it first. */
typedef struct hr_run_metadata {
	size_t struct_size;
	uint64_t ns;           /* duration of the whole run */
	uint64_t peak_bytes;   /* peak of the session's allocator during the run; 0 unless traced */
	hr_op_metadata *ops;   /* in order of execution */
	size_t op_count, op_capacity;
	char *allocation_log;  /* after HR_OUT_OF_MEMORY with report_allocations_on_oom: a JSON array, as from hr_oom_format_log */
} hr_run_metadata;

HR_API void hr_run_metadata_init_sized(hr_run_metadata *metadata, size_t struct_size);
static inline void hr_run_metadata_init(hr_run_metadata *metadata)
{
	hr_run_metadata_init_sized(metadata, sizeof *metadata);
}
HR_API void hr_run_metadata_free(hr_run_metadata *metadata);

/* Runs the nodes that the fetched values need, inputs before the ops that use them. Memory is freed at its last use, or reused by
 * the op of that use. outs[i] receives the contents of fetches[i] as a temporary value. All or none, except that variables that
 * were assigned before an error have their new contents. [options] and [metadata] may be NULL. Any number of threads may run one
 * graph at the same time.
 *
 * HR_IN_USE            another thread is building the graph. A thread that is in the graph may run it
 * HR_INVALID_ARGUMENT  a required placeholder is not fed, fed twice, or fed with another dtype or shape; a value is fed that is not
 *                      a placeholder; a fetch is of no graph, or of another one; a variable has no contents yet. The message names
 *                      it
 * All other errors are those of the ops. */
HR_API HR_CHECK_RESULT hr_status hr_session_run(hr_session session, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count,
                                hr_value *outs, const hr_run_options *options, hr_run_metadata *metadata);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Variables
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* HR_INIT_NONE: no contents until the first assignment. */
typedef enum hr_initializer_kind { HR_INIT_NONE, HR_INIT_FULL, HR_INIT_NORMAL, HR_INIT_UNIFORM } hr_initializer_kind;

/* The initial contents of a variable. */
typedef struct hr_initializer {
	hr_initializer_kind kind;
	double a, b;    /* full: the value; normal: mean, deviation; uniform: low, high */
	uint64_t seed;
} hr_initializer;

#ifdef __cplusplus
#define HR_INITIALIZER(kind, a, b, seed) \
	(hr_initializer{ (kind), static_cast<double>(a), static_cast<double>(b), static_cast<uint64_t>(seed) })
#else
#define HR_INITIALIZER(kind, a, b, seed) ((hr_initializer){ (kind), (a), (b), (seed) })
#endif
#define HR_ZEROS HR_INITIALIZER(HR_INIT_FULL, 0, 0, 0)
#define HR_FULL(value) HR_INITIALIZER(HR_INIT_FULL, value, 0, 0)
#define HR_NORMAL(deviation, seed) HR_INITIALIZER(HR_INIT_NORMAL, 0, deviation, seed)
#define HR_UNIFORM(low, high, seed) HR_INITIALIZER(HR_INIT_UNIFORM, low, high, seed)
#define HR_UNINITIALIZED HR_INITIALIZER(HR_INIT_NONE, 0, 0, 0)

/* What hr_get_variable does with a name that exists. */
typedef enum hr_reuse {
	HR_REUSE_AS_AROUND = 0, /* as the enclosing scope; outside of all scopes, a name that exists is a collision */
	HR_REUSE_ONLY,          /* the variable must exist */
	HR_REUSE_OR_MAKE        /* the variable is used if it exists, and created if not */
} hr_reuse;

/* Until the scope is popped, variables are named "scope/name", and requests of ops are in a name scope of the same name. Scopes
 * nest, up to 16 deep. HR_TOO_MANY: they are that deep already, or the table of names (hr_name_intern) is full. */
HR_API hr_status hr_variable_scope_push(const char *name, hr_reuse reuse);
HR_API hr_status hr_variable_scope_pop(void);

/* A variable: named contents that persist.
 *
 * In a graph the variable belongs to the graph and has no memory. Each session that runs the graph has its own contents for the
 * variable, from the run of hr_global_variables_initializer (or of an assignment) on. Outside, and in a function, the variable
 * belongs to the thread's session and is initialised at once. Contents belong to the session and are freed with it.
 *
 * On failure the variable has id 0:
 *
 * HR_ALREADY_EXISTS    a collision; the message describes the existing variable and how to use it
 * HR_INVALID_ARGUMENT  HR_REUSE_ONLY and no such variable; the variable exists with another dtype or shape (the message gives
 *                      both); an initializer that hr_full, hr_random_normal or hr_random_uniform would reject for this dtype
 * HR_TOO_MANY          65,536 variables exist; or the name is new and the table of names is full, so that variables could not be
 *                      told apart. This also holds for variables that an optimizer creates
 * HR_OUT_OF_MEMORY */
HR_API hr_variable hr_get_variable(const char *name, hr_dtype dtype, const int64_t *dims, int rank, hr_initializer initializer);

/* Destroys a variable of a session: frees its contents and the state that optimizers keep for it. Values that were read from it keep
 * what they hold. Its name is free again. A graph that uses the variable fails with HR_INVALID_HANDLE when it runs.
 *
 * HR_UNSUPPORTED     the variable belongs to a graph, and is destroyed with it
 * HR_INVALID_HANDLE  it was destroyed, or its session was */
HR_API HR_CHECK_RESULT hr_status hr_variable_destroy(hr_variable variable);

/* In a graph: a value to fetch, which initialises all variables that the graph has at the time of the run. Fetched, it is an
 * int32 scalar, their number. Outside: initialises the variables of the session that have no contents yet, and returns HR_DONE. */
HR_API hr_value hr_global_variables_initializer(void);

/* The contents at this point of the program. No copy is made: an update while the contents are still referenced uses other
 * memory. */
HR_API hr_value hr_variable_read(hr_variable variable);
/* Gives the variable new contents. The memory of a temporary value becomes the variable's. In a graph the result is the new
 * contents; fetch it, or a group with it, to run the assignment. Outside: HR_DONE. Gradients do not pass through an assignment. */
HR_API hr_value hr_assign(hr_variable variable, hr_value value);
/* Like hr_assign, with the sum or difference as the new contents, computed in the variable's own memory unless its contents are
 * still referenced. */
HR_API hr_value hr_assign_add(hr_variable variable, hr_value value);
HR_API hr_value hr_assign_sub(hr_variable variable, hr_value value);

/* "encoder/w"; "" for an invalid variable. Static text. */
HR_API const char *hr_variable_name(hr_variable variable);
/* The variables of the graph that is being built, or of the session, in order of creation, without those that optimizers
 * created and the statistics and counts of layers. Writes at most [capacity] of them; returns how many there are. */
HR_API size_t hr_trainable_variables(hr_variable *out, size_t capacity);

/* hr_gradients with respect to the contents of variables. Consumes a temporary [of]. */
HR_API HR_CHECK_RESULT hr_status hr_variable_gradients(hr_value of, const hr_variable *by, size_t count, hr_value *out);

/* ---- optimizers ---- */

typedef enum hr_optimizer_kind { HR_SGD = 0, HR_MOMENTUM, HR_ADAM } hr_optimizer_kind;

typedef struct hr_optimizer {
	size_t struct_size;
	hr_optimizer_kind kind;
	const char *name;     /* its state is in variables "<name>/step", "<variable>/<name>/m"; NULL (default) = "sgd", "momentum",
	                       * "adam" */
	double learning_rate; /* default 0.01; Adam 0.001 */
	double momentum;      /* default 0.9 */
	double beta1, beta2, epsilon; /* default 0.9, 0.999, 1e-8 */
} hr_optimizer;

HR_API void hr_optimizer_init_sized(hr_optimizer *optimizer, size_t struct_size, hr_optimizer_kind kind);
static inline void hr_optimizer_init(hr_optimizer *optimizer, hr_optimizer_kind kind)
{
	hr_optimizer_init_sized(optimizer, sizeof *optimizer, kind);
}
/* Updates each variable by its gradient, in the variable's own memory. Call it once in a step. Returns a value to fetch, like
 * hr_group. Consumes temporary gradients. Errors (dtype, shape, session, a variable without contents) are detected before the
 * first update: then nothing has changed, and no step was counted. */
HR_API hr_value hr_apply_gradients(const hr_optimizer *optimizer, const hr_variable *variables, const hr_value *gradients, size_t count);
/* hr_variable_gradients of [loss], then hr_apply_gradients. Consumes a temporary [loss]. */
HR_API hr_value hr_minimize(const hr_optimizer *optimizer, hr_value loss, const hr_variable *variables, size_t count);

/* Frees the state that the optimizers of that name keep in [session], outside of graphs: the next update begins anew. For programs that
 * give each optimizer a name, and end it before the session. HR_INVALID_HANDLE: no such session. HR_INVALID_ARGUMENT: no name. */
HR_API HR_CHECK_RESULT hr_status hr_optimizer_free_state(hr_session session, const char *name);

/* ---- layers: ops with variables, named "<name>/w" and the like, in the current variable scope ---- */

typedef enum hr_activation { HR_LINEAR = 0, HR_RELU, HR_GELU, HR_TANH } hr_activation;

/* [..., in] to [..., units]. w [in, units] is normal with deviation 1/sqrt(in), from [seed]; b [units] is zero. With a bfloat16 input w
 * and b are rounded for the product, and the result is bfloat16; variables are float32. */
HR_API hr_value hr_dense(const char *name, hr_value x, int64_t units, hr_activation activation, uint64_t seed);
/* [n, in, h, w] to [n, channels, ...]: windows of [size] by [size]. w [channels, in, size, size], b [channels, 1, 1]. */
HR_API hr_value hr_conv_layer(const char *name, hr_value x, int64_t channels, int64_t size, int64_t stride, int64_t padding, hr_activation activation,
                              uint64_t seed);
/* Rows of a table [count, width], selected by index. */
HR_API hr_value hr_embedding(const char *name, hr_value indices, int64_t count, int64_t width, hr_dtype dtype, uint64_t seed);
/* Normalises along the last dimension. The gain begins as one, the bias as zero. */
HR_API hr_value hr_layer_norm_layer(const char *name, hr_value x);
/* The same, rounded once to [dtype]: bfloat16 of a float32 [x], or its own. For a product that follows: takes less memory than a cast. */
HR_API hr_value hr_layer_norm_layer_to(const char *name, hr_value x, hr_dtype dtype);
/* Normalises each channel of [n, channels, ...]. The gain begins as one, the bias as zero. "<name>/mean" and "<name>/variance" are running
 * statistics, which are not trainable. training: with the statistics of the batch, of which the fraction [momentum] (usually 0.1) is added
 * to the running ones; a variance that is added is divided by the number of elements less one. Otherwise: with the running statistics.
 * In a graph that is run directly, running statistics change only in runs whose fetches need their assignment; functions run all. */
HR_API hr_value hr_batch_norm_layer(const char *name, hr_value x, double momentum, bool training);
/* hr_dropout with other numbers in each call: the offset is the number of the call, which the variable "<name>/calls" counts. It
 * is not trainable. In a graph, each run that needs the result counts. */
HR_API hr_value hr_dropout_layer(const char *name, hr_value x, double rate, uint64_t seed, bool training);
/* Self-attention (hr_attend) over [n, time, width] with [heads] heads. causal: a position does not attend to later ones. With a bfloat16
 * input products and result are bfloat16; variables are float32. */
HR_API hr_value hr_attention(const char *name, hr_value x, int64_t heads, bool causal, uint64_t seed);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Functions: code written like any other, which runs as a graph
 * ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct hr_function {
	uint64_t id;
} hr_function;

/* Calls ops on [ins] and sets [outs]. Called once for each combination of dtypes and shapes, to build a graph: whatever it does
 * besides calling ops happens only then. Returns HR_OK or an error. */
typedef hr_status (*hr_function_body)(void *context, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count);

/* Creates a function. At most 64 exist at a time (HR_TOO_MANY). Messages use [name]. */
HR_API HR_CHECK_RESULT hr_status hr_function_create(const char *name, hr_function_body body, void *context, hr_function *out);
/* Destroys a function. HR_IN_USE while a thread calls it. */
HR_API hr_status hr_function_destroy(hr_function function);

/* Runs the function in the thread's session: all outputs, and all assignments of the body. Consumes temporary [ins]. At most 8
 * combinations of session, dtypes and shapes are kept; the least recently used one is built again when needed.
 *
 * Threads may call one function at the same time, each in its own session or several in one. One thread at a time calls the body,
 * and the others wait until it returns; graphs that are built run concurrently.
 *
 * HR_IN_USE  the body calls its own function, directly or through others: such a call would wait for itself
 * All other errors are those of the body and the ops. */
HR_API HR_CHECK_RESULT hr_status hr_function_call(hr_function function, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count);

/* hr_function_call with options and metadata, as in hr_session_run; both may be NULL. While functions run op by op
 * (hr_run_functions_eagerly, or with a tape) there is no run: the allocation log for HR_OUT_OF_MEMORY and the time are provided,
 * is_step has no effect, and HR_RUN_TRACE_OPS returns HR_UNSUPPORTED.
 *
 * HR_INVALID_ARGUMENT  the call is in a graph or in the body of another function, and becomes a part of it; pass the options to
 *                      the run of that graph or function */
HR_API HR_CHECK_RESULT hr_status hr_function_call_with_options(hr_function function, const hr_value *ins, size_t in_count, hr_value *outs, size_t out_count,
                                               const hr_run_options *options, hr_run_metadata *metadata);

/* true: functions are not built into graphs; their bodies run op by op, for debugging. Process-wide; default false. */
HR_API void hr_run_functions_eagerly(bool eagerly);

#ifdef __cplusplus
}
#endif

#endif
