/* engine.h - what the runtime is made of: sessions, buffers, values, graphs. Private to src/runtime.
 *
 *     buffer    memory for the contents of values: a tensor of Large Model Support, or a block where the allocator has none. Counted
 *               references; the last one frees it
 *     value     what a handle stands for: a type and a place in a buffer, or a place in a graph. Loose or kept
 *     session   a stream of a device, an allocator, and all values and buffers made there
 *     graph     nodes, in the order in which they were made, so that inputs come before those who use them
 *
 * hr__runtime_lock guards handles and all counts. It is never held while the layers below are called. */
#ifndef HR_RUNTIME_ENGINE_H
#define HR_RUNTIME_ENGINE_H

#include "base/lock.h"
#include "device/device.h"
#include "os/os.h"
#include "runtime/op.h"

typedef struct hr__session hr__session;
typedef struct hr__graph hr__graph;

extern hr__lock hr__runtime_lock;

/* ---- buffers (buffer.c) ---- */

/* What memory was got for: its tag in the ledger, in reports and in recordings. */
#define HR__ROLE_TABLE(X)                                                            \
	X(ACTIVATIONS, "activations") /* results of ops, unless they are one of these */ \
	X(GRADIENTS, "gradients")     /* results of ops that hr_gradients calls */       \
	X(WEIGHTS, "weights")         /* contents of variables */                        \
	X(OPTIMIZER, "optimizer")     /* of those that an optimizer made for itself */   \
	X(SCRATCH, "scratch")         /* needed while an op runs */

typedef enum hr__role {
#define HR__ROLE_ENUM(name, text) HR__##name,
	HR__ROLE_TABLE(HR__ROLE_ENUM)
#undef HR__ROLE_ENUM
} hr__role;

typedef struct hr__buffer {
	hr__session *session;
	hr_tensor tensor; /* id 0: a block */
	void *block;
	uint64_t bytes;
	int64_t refs;     /* guarded by the lock */
} hr__buffer;

/* With one reference, for the thread's current op, in [scope]. *out is NULL for no bytes. HR_OUT_OF_MEMORY, HR_NO_HOST_MEMORY. */
hr_status hr__buffer_new(hr__session *session, const hr__type *type, uint64_t bytes, hr_name scope, hr__role role, hr__buffer **out);
void hr__buffer_keep(hr__buffer *buffer);    /* NULL is fine */
void hr__buffer_release(hr__buffer *buffer); /* NULL is fine. Without the lock */
int64_t hr__buffer_refs(const hr__buffer *buffer);
/* Where it is, while it is pinned. NULL for no buffer. */
hr_status hr__buffer_address(const hr__buffer *buffer, uint64_t offset, void **out);

/* ---- sessions (session.c) ---- */

#define HR__ERROR_TEXT (2 * HR__DIMS_TEXT + 160)

struct hr__session {
	uint64_t id;
	hr_device handle;
	hr__device *device;
	hr_allocator allocator;
	hr_stream stream;
	hr_allocator staging;     /* pinned memory, where the host cannot reach the device's; id 0: it can. All sessions of a device have one */
	bool has_tensors;         /* its allocator is one that tensors can be made on */
	bool own_stream;
	hr__team *team;
	hr__monitor *turn;        /* ops on variables, and who makes one, take turns */
	struct hr__content *contents; /* of variables, by their number; guarded by the lock, like the next */
	uint32_t content_count;
	int64_t values, buffers;  /* that are there; guarded by the lock */
	uint64_t bytes;           /* of those buffers */
	hr__session *lost;        /* the next of those that could not be freed */
	/* The first thing that went wrong on the device, until it is told: guarded by the lock. */
	char error[HR__ERROR_TEXT]; /* empty: nothing */
	hr_name error_op, error_scope;
};

/* For whatever is made first, a session, a graph or a function: hr_shutdown ends it from now on. */
hr_status hr__runtime_begin(void);
/* The session of the calling thread's op calls. NULL, with a message. */
hr__session *hr__session_current(void);
hr__session *hr__session_of(hr_session session, hr_status *why);
/* One of those that are open, by their place; NULL = none there. With the lock. */
#define HR__SESSIONS_MAX 256u
hr__session *hr__session_at(uint32_t slot);
/* Waits for its stream; the first error of an op, which is forgotten then. */
hr_status hr__session_wait(hr__session *session);

/* ---- values (value.c) ---- */

typedef struct hr__value {
	uint32_t generation;
	bool used;
	bool loose;
	int32_t keeps;         /* guarded by the lock, like loose */
	hr__type type;
	hr__session *session;  /* NULL: in a graph */
	hr__buffer *buffer;    /* NULL: no bytes, or in a graph */
	uint64_t offset;       /* in it */
	hr__graph *graph;
	uint32_t node, output;
	uint64_t serial;       /* tells apart what was computed: an alias made for a tape has the same one. 0 until a tape sees it */
	hr_name op, scope;     /* that made it */
} hr__value;

/* What is behind a handle, copied under the lock. HR_CLOSED: nothing, or no longer. */
hr_status hr__value_get(hr_value handle, hr__value *out);
/* The same with a reference to the buffer, for those who look at the contents: another thread may release the value meanwhile. */
hr_status hr__value_hold(hr_value handle, hr__value *out);
/* A loose value; takes over the reference to the buffer. HR_NO_VALUE: no host memory, and the buffer is released. */
hr_value hr__value_new(const hr__value *value);
/* Ends a loose value; leaves a kept one alone. */
void hr__value_use_up(hr_value handle);
/* Ends all values of a session or graph. Returns how many; *bytes gets theirs, *op the op of the largest. */
uint64_t hr__values_drop(const hr__session *session, const hr__graph *graph, uint64_t *bytes, hr_name *op);
void hr__values_free(void);
/* The number of what was computed, given when first asked for. */
uint64_t hr__value_serial(hr_value handle);
void hr__value_set_serial(hr_value handle, uint64_t serial);
uint64_t hr__serial_next(void); /* with the lock */
/* Another value for the same contents. HR_NO_VALUE: no host memory. */
hr_value hr__value_alias(hr_value handle);
/* A value that was kept once is loose again. */
hr_value hr__value_loosen(hr_value handle);

/* ---- running (execute.c) ---- */

/* An input or output. */
typedef struct hr__slot {
	hr__type type;
	hr__buffer *buffer;
	uint64_t offset;
	bool may_take; /* nobody needs it after this op */
	int64_t refs;  /* that the caller knows of, when it may be taken */
} hr__slot;

/* An op to be run. */
typedef struct hr__task {
	hr__session *session;
	enum hr__op_kind kind;
	const hr__attrs *attrs;
	hr_name scope;
	hr__role role; /* of its outputs, if they are no contents of variables */
	bool updates;  /* contents of variables are its first inputs, and its outputs become them */
	hr_op_metadata *note; /* what is told of it; NULL = nothing */
	uint64_t begin_ns;    /* of the run that is told of */
} hr__task;

/* Runs an op: [outs] have their types, and get buffers, each with a reference. Inputs are not released. Asynchronous. Variables that the op is
 * on come before [ins], and have their new contents afterwards. */
hr_status hr__execute(const hr__task *task, const hr__slot *ins, uint32_t in_count, hr__slot *outs);
/* The same without variables. */
hr_status hr__execute_plain(const hr__task *task, const hr__slot *ins, uint32_t in_count, hr__slot *outs);

/* ---- on devices that the host cannot reach (stage.c) ---- */

/* Bytes of an op, on the device and in pinned memory. */
typedef struct hr__staged {
	void *there, *here;
	uint64_t bytes;
} hr__staged;

typedef struct hr__stage {
	void *block; /* NULL: nothing is staged */
	uint32_t in_count, out_count;
	hr__staged ins[HR__OP_INPUTS], outs[HR__OP_OUTPUTS];
} hr__stage;

/* For a session that is being opened. HR_UNSUPPORTED: there is no memory to compute with. */
hr_status hr__stage_open(hr__session *session);
void hr__stage_close(hr__session *session);
void hr__stages_forget(void); /* they are gone with their devices, or the parent's */
/* Pinned memory for the session's stream; hr_free gives it back. HR_NO_HOST_MEMORY. */
hr_status hr__stage_take(const hr__session *session, uint64_t bytes, void **out);
/* Queues copies of the inputs; the addresses of [work] are those of the copies then. Nothing happens where the host reaches the device. */
hr_status hr__stage_in(const hr__session *session, hr__work *work, uint64_t scratch, hr__stage *out);
/* Queues copies of the outputs to where they belong: all, or the device's memory is as it was. */
hr_status hr__stage_out(const hr__session *session, const hr__stage *stage);
/* Gives the pinned memory back, in stream order. */
void hr__stage_end(const hr__session *session, hr__stage *stage);

/* ---- variables (variable.c) ---- */

/* "around/name", interned. HR_INVALID_ARGUMENT: there is no name ([what] is what needs one), or it is too long. HR_TOO_MANY: the table of names is
 * full. */
hr_status hr__name_join(hr_name around, const char *name, const char *what, hr_name *out);

typedef struct hr__variable {
	uint64_t id; /* its number, and how many times that was used */
	hr_name name, scope;
	hr__type type;
	hr_initializer initializer;
	uint64_t graph, session; /* that it belongs to; one of them is 0 */
	bool trainable; /* false: an optimizer's own */
} hr__variable;

static inline hr__role hr__variable_role(const hr__variable *variable)
{
	return variable->trainable ? HR__WEIGHTS : HR__OPTIMIZER;
}

typedef struct hr__content {
	uint64_t variable;  /* 0: none */
	hr__buffer *buffer; /* with a reference */
	uint64_t serial;
} hr__content;

/* How many an op is on. */
uint32_t hr__variables_of(const hr__attrs *attrs);
/* It assigns to variables, rather than reading one. */
bool hr__writes_variables(enum hr__op_kind kind, const hr__attrs *attrs);
/* HR_CLOSED: there is none, or no longer. */
hr_status hr__variable_get(uint64_t id, hr__variable *out);
/* A variable that is not a trainable one: made if it is not there. */
hr_variable hr__variable_hidden(const char *name, const hr__type *type);
/* That the op may be called on it here. */
hr_status hr__variable_check(const hr__variable *variable, const hr__graph *graph, const hr__session *session);
/* Its contents, with a reference. HR_INVALID_ARGUMENT: it has none yet. */
hr_status hr__variable_read(hr__session *session, uint64_t id, hr__content *out);
/* New contents; takes a reference of its own. HR_NO_HOST_MEMORY: there is no place for them, and nothing changed. */
hr_status hr__variable_write(hr__session *session, uint64_t id, hr__buffer *buffer);
/* Makes place for contents, so that writing them cannot fail. */
hr_status hr__variable_prepare(hr__session *session, uint64_t id);
/* Gives contents to variables of a graph, or to those of the session that have none. */
hr_status hr__variables_initialize(hr__session *session, uint64_t graph, uint32_t *count);
/* Those of a session or graph that ends. */
void hr__variables_drop(hr__session *session, uint64_t graph);
void hr__variables_free(void);

/* An op call, as gradients see it: results have numbers. */
typedef struct hr__step {
	enum hr__op_kind kind;
	uint32_t in_count;
	uint32_t block; /* that it is computed again with; 0 = none */
	hr_name scope;
	hr__attrs attrs;
	uint64_t ins[HR__OP_INPUTS], outs[HR__OP_OUTPUTS];
	hr__type in_types[HR__OP_INPUTS], out_types[HR__OP_OUTPUTS];
	hr_value in_values[HR__OP_INPUTS], out_values[HR__OP_OUTPUTS]; /* kept, where the gradient looks at them */
} hr__step;

/* ---- graphs (graph.c) ---- */

/* The graph that the calling thread is building; NULL = none. One that hr_shutdown has ended is there, empty, and takes no nodes. */
hr__graph *hr__graph_current(void);
/* Where its variables belong: to the graph, unless it is built for a function of a session. */
uint64_t hr__graph_owner(const hr__graph *graph);
/* For a function: variables are the session's. Its owner destroys it. */
hr_status hr__graph_create(const hr__session *session, hr_graph *out);
/* The last node that reads the variable; unless [any], only if that reads it as it is now. HR_NO_VALUE: there is none. */
hr_value hr__graph_reads(hr__graph *graph, uint64_t variable, bool any);
/* Adds a node. [ins] are values of the graph. HR_NO_VALUE in outs where that failed. */
void hr__graph_add(hr__graph *graph, enum hr__op_kind kind, const hr__attrs *attrs, const hr__value *ins, uint32_t in_count,
                   const hr__type *types, hr_value *outs);

void hr__graphs_free(void);

/* Node [n]: what was called. */
void hr__graph_node(const hr__graph *graph, uint32_t n, hr__step *out);
uint32_t hr__graph_count(const hr__graph *graph);
/* A value for an output of a node. */
hr_value hr__graph_value(hr__graph *graph, uint32_t node, uint32_t output);

/* ---- gradients (gradient.c) ---- */

/* An op ran outside of a graph: the tape of this thread, if there is one, takes note. Before inputs are used up. */
void hr__tape_note(enum hr__op_kind kind, const hr__attrs *attrs, const hr_value *ins, const hr__type *in_types, uint32_t in_count,
                   const hr_value *outs, const hr__type *out_types);
bool hr__tape_is_on(void);
bool hr__tape_is_there(void); /* on, or not any more */
/* The tape will keep this input of an op that is about to run: what gradients look at, and of a block what goes into it. */
bool hr__tape_keeps(enum hr__op_kind kind, uint32_t input, uint64_t number);
/* The block that op calls of this thread are in; 0 = none. */
uint32_t hr__block_current(void);
/* What op calls of this thread are for: activations or gradients. */
hr__role hr__role_current(void);

/* ---- runs (run.c, run_options.c) ---- */

/* What a caller wants of a run is possible. Both may be NULL. [call] is how messages call it. */
hr_status hr__run_check(const char *call, const hr_run_options *options, const hr_run_metadata *metadata);
/* Before a run: room for [ops] notes in [metadata], which may be NULL, and the log switched on. */
hr_status hr__run_begin(hr__session *session, const hr_run_options *options, hr_run_metadata *metadata, uint32_t ops, uint64_t *begin_ns);
/* After one that has begun. [status] is what it ended with. */
void hr__run_end(hr__session *session, const hr_run_options *options, hr_run_metadata *metadata, uint64_t begin_ns, hr_status status);
/* hr_session_run of a graph whose run has begun (hr__graph_begin_run), and ends that; all that assigns to variables is run too. [options] and
 * [metadata] are checked already. */
hr_status hr__graph_run(hr__session *session, hr__graph *graph, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count,
                        hr_value *outs, const hr_run_options *options, hr_run_metadata *metadata);

/* ---- functions (function.c) ---- */

#define HR__FUNCTIONS_MAX 64u
#define HR__SIGNATURES_MAX 8u /* that are kept of each, with a graph each */

/* What was built for a session that ends. */
void hr__functions_forget(const hr__session *session);
void hr__functions_free(void);

/* ---- messages ---- */

/* Puts "op "add" in scope "layer_1": " in front of the message that is there; one that begins with "op "add"" gets only the scope put in.
 * Returns [status]. */
hr_status hr__name_op(hr_status status, const char *op, hr_name scope);

/* ---- threads that help (team.c) ---- */

/* As HEADROOM_THREADS says, or as many as there are processors; at most 64. */
uint32_t hr__threads_wanted(void);
/* The team of the process; NULL when there is none to be had, and ops run alone. */
hr__team *hr__team_get(void);
void hr__team_end(bool forgets); /* forgets: its threads are gone already */

#endif
