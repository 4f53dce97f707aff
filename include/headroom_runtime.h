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
 * ERRORS. An op that cannot be done returns HR_NO_VALUE, and hr_last_status and hr_last_message say why: the op, its scope, both shapes. Given
 * HR_NO_VALUE an op returns HR_NO_VALUE and leaves the message alone, so it is enough to look at the end of an expression. What was loose
 * is used up all the same. */
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

/* Opens a session: a stream of the device, and a container for variables. Threads use it by entering it. HR_UNSUPPORTED: the device has no
 * memory that can be computed with (the simulated one). */
HR_API hr_status hr_session_open(const hr_session_options *options, hr_session *out);

/* Closes it: waits for its work, and frees its variables and every value that is still there; those are handles of nothing from then on. What
 * was kept and never released is a leak: the message of HR_IN_USE, which is returned when there were any, says how many bytes, of which ops.
 * The session is closed all the same. HR_CLOSED: it was closed already. */
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
/* low <= x < high; integers too. */
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
HR_API hr_value hr_cast(hr_value x, hr_dtype dtype);

/* ---- shape ---- */

/* The same elements in another shape; one dimension may be -1. Shares memory. */
HR_API hr_value hr_reshape(hr_value x, const int64_t *dims, int rank);
/* Dimension i of the output is dimension order[i] of the input. */
HR_API hr_value hr_transpose(hr_value x, const int *order, int rank);
HR_API hr_value hr_concat(const hr_value *values, int count, int axis);
/* [count] elements along [axis], from [begin] on. */
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
/* Of [rows, classes] logits and labels (int32 or int64, [rows]): one loss for each row. */
HR_API hr_value hr_cross_entropy(hr_value logits, hr_value labels);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Gradients
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Outside of graphs: from now on op calls of this thread are taken down, and what their gradients will look at is kept. end forgets all of it.
 * HR_IN_USE: a tape is on already. */
HR_API hr_status hr_tape_begin(void);
HR_API hr_status hr_tape_end(void);

/* What the sum of [of] changes by, for each element of [by]: out[i] has the type of by[i], and is loose; zeros where nothing depends on it. In a
 * graph it adds nodes; outside, it runs ops by the tape, which is off meanwhile. All or none.
 *
 * HR_INVALID_ARGUMENT  no tape is on; [of] is no float; an op on the way has no gradient (the message names it) */
HR_API hr_status hr_gradients(hr_value of, const hr_value *by, size_t count, hr_value *out);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Graphs
 * ---------------------------------------------------------------------------------------------------------------------------- */

HR_API hr_status hr_graph_create(hr_graph *out);
/* HR_IN_USE while a thread builds it. Its values are handles of nothing from then on. */
HR_API hr_status hr_graph_destroy(hr_graph graph);

/* Op calls of this thread add nodes to [graph] from now on. Graphs nest: leave returns to the one before, or to running ops. */
HR_API hr_status hr_graph_enter(hr_graph graph);
HR_API hr_status hr_graph_leave(void);

/* In a graph: a value that every run is given. */
HR_API hr_value hr_placeholder(hr_dtype dtype, const int64_t *dims, int rank);

typedef struct hr_feed {
	hr_value placeholder, value; /* loose values are used up by the run */
} hr_feed;

/* Runs what the fetched values need of their graph, in an order in which inputs come before those who use them; memory is freed at the last use,
 * or taken over by the op that has it. outs[i] gets the contents of fetches[i], loose. All or none.
 *
 * HR_INVALID_ARGUMENT  a placeholder is needed and not fed, fed twice, or fed with another dtype or shape; something is fed that is no
 *                      placeholder; a fetch is of no graph, or of another one. The message names it
 * and whatever an op runs into. */
HR_API hr_status hr_session_run(hr_session session, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count,
                                hr_value *outs);

#ifdef __cplusplus
}
#endif

#endif
