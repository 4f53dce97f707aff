/* engine.h - internals of the runtime: sessions, buffers, values, graphs. Private to src/runtime.
 *
 *     buffer    memory for the contents of values: a tensor of Large Model Support, or a block if the allocator does not support
 *               tensors. Reference-counted
 *     value     the object behind a handle: a type, and either a position in a buffer or an output of a graph node. A value is
 *               temporary (consumed by the op that uses it) or kept
 *     session   a stream of a device, an allocator, and all values and buffers made in the session
 *     graph     nodes in creation order, so inputs precede their users
 *
 * hr__runtime_lock guards handles and all counts. It is never held across calls into the layers below. */
#ifndef HR_RUNTIME_ENGINE_H
#define HR_RUNTIME_ENGINE_H

#include "core/base/lock.h"
#include "core/device/device.h"
#include "core/os/os.h"
#include "headroom_runtime.h"
#include "runtime/engine/op.h"

typedef struct hr__session hr__session;
typedef struct hr__graph hr__graph;

extern hr__lock hr__runtime_lock;

/* ---- buffers (buffer.c) ---- */

/* The purpose of an allocation: its tag in the ledger, in reports and in recordings. */
#define HR__ROLE_TABLE(X)                                                            \
	X(ACTIVATIONS, "activations") /* results of ops, except those below */           \
	X(GRADIENTS, "gradients")     /* results of ops called by hr_gradients */        \
	X(WEIGHTS, "weights")         /* contents of variables */                        \
	X(OPTIMIZER, "optimizer")     /* variables that an optimizer created */          \
	X(SCRATCH, "scratch")         /* used while an op runs */

typedef enum hr__role {
#define HR__ROLE_ENUM(name, text) HR__##name,
	HR__ROLE_TABLE(HR__ROLE_ENUM)
#undef HR__ROLE_ENUM
} hr__role;

typedef struct hr__buffer {
	hr__session *session;
	hr_tensor tensor; /* id 0: the memory is a block */
	void *block;
	uint64_t bytes;
	int64_t refs;     /* guarded by hr__runtime_lock */
	struct hr__planned *planned; /* the block is part of a CUDA graph's memory (capturing.h); NULL: it is not */
	/* How its contents were computed, if they have a recipe; NULL = not known. Used by ops that may write to it, one at a time. */
	struct hr__origin *origin;
	struct hr__buffer *next_unused; /* list link */
} hr__buffer;

/* A buffer with one reference, attributed to the thread's current op and to [scope]. *out is NULL if [bytes] is 0.
 * HR_OUT_OF_MEMORY, HR_NO_HOST_MEMORY. */
hr_status hr__buffer_new(hr__session *session, const hr__type *type, uint64_t bytes, hr_name scope, hr__role role, hr__buffer **out);
void hr__buffer_keep(hr__buffer *buffer);    /* NULL is allowed */
void hr__buffer_release(hr__buffer *buffer); /* NULL is allowed. Call without the lock */
/* Tries again to free the buffers that could not be freed when they lost their last reference. */
void hr__buffers_free_unused(hr__session *session);
int64_t hr__buffer_refs(const hr__buffer *buffer);
/* The buffer's address plus [offset]; valid while the buffer is pinned. *out is NULL if [buffer] is NULL. */
hr_status hr__buffer_address(const hr__buffer *buffer, uint64_t offset, void **out);

/* ---- sessions (session.c) ---- */

#define HR__ERROR_TEXT (2 * HR__DIMS_TEXT + 160)

struct hr__session {
	uint64_t id;
	hr_device handle;
	hr__device *device;
	hr_allocator allocator;
	hr_stream stream;
	struct hr__card *card;    /* computes ops (card/card.h); NULL: the host does */
	void *faults;             /* in the card's memory: the first error that a kernel found (hr__k_fault) */
	bool may_have_faults;     /* kernels that can find errors were queued since that was read last; guarded by the lock */
	hr_allocator staging;     /* pinned memory, shared by all sessions of the device; id 0: the host can access the device */
	bool has_tensors;         /* the allocator supports tensors */
	bool has_recipes;         /* and evicts them, so that values may have recipes (recipe/origin.h) */
	bool own_stream;
	hr__team *team;
	hr__monitor *turn;        /* serializes ops on variables and the creation of variables; with recipes, all ops that write in place */
	struct hr__content *contents; /* contents of variables, indexed by variable number; both guarded by the lock */
	uint32_t content_count;
	int64_t values, buffers;  /* number of live values and buffers; guarded by the lock */
	uint64_t bytes;           /* total size of the live buffers; guarded by the lock */
	struct hr__captured *captured; /* list of its CUDA graphs (graph/captured.h); guarded by the lock */
	hr__buffer *unused;       /* list of buffers without references, from which dropped values are computed; guarded by the lock */
	hr__session *lost;        /* list link: sessions that could not be freed */
	/* The first error of an op on the device, until it is reported. Guarded by the lock. */
	char error[HR__ERROR_TEXT]; /* empty: no error */
	hr_name error_op, error_scope;
};

/* Call before creating a session, graph, function or tape. From then on hr_shutdown ends the runtime. */
hr_status hr__runtime_begin(void);
/* The session that the calling thread's op calls run in. NULL, with a message, if there is none. */
hr__session *hr__session_current(void);
hr__session *hr__session_of(hr_session session, hr_status *why);
/* The open session in [slot]; NULL = none. Call with the lock. */
#define HR__SESSIONS_MAX 256u
hr__session *hr__session_at(uint32_t slot);
/* Waits for the session's stream. Returns and clears the first error of an op. */
hr_status hr__session_wait(hr__session *session);

/* ---- values (value.c) ---- */

typedef struct hr__value {
	uint32_t generation;
	bool used;
	bool temporary;
	int32_t keeps;         /* number of unreleased hr_value_keep calls; guarded by the lock, like temporary */
	hr__type type;
	hr__session *session;  /* NULL: the value belongs to a graph */
	hr__buffer *buffer;    /* NULL: no bytes, or the value belongs to a graph */
	uint64_t offset;       /* in the buffer */
	hr__graph *graph;
	uint32_t node, output;
	uint64_t serial;       /* identifies the computed contents; a tape's alias has the same serial. 0 until a tape needs one */
	hr_name op, scope;     /* the op call that made it */
} hr__value;

/* Copies the record of a handle, under the lock. HR_INVALID_HANDLE: invalid or stale handle. */
hr_status hr__value_get(hr_value handle, hr__value *out);
/* The same, and adds a reference to the buffer. Needed to access the contents, because another thread may release the value. */
hr_status hr__value_hold(hr_value handle, hr__value *out);
/* Makes a temporary value. Consumes the caller's reference to the buffer. HR_NO_VALUE: no host memory; the buffer is released. */
hr_value hr__value_new(const hr__value *value);
/* Ends a temporary value. Does nothing to a kept one. */
void hr__value_consume(hr_value handle);
/* Ends all values of a session or graph. Returns their number; *bytes gets their total size, *op the op of the largest. */
uint64_t hr__values_drop(const hr__session *session, const hr__graph *graph, uint64_t *bytes, uint64_t *largest, hr_name *op);
void hr__values_free(void);
/* The serial of a value, assigned on first use. */
uint64_t hr__value_serial(hr_value handle);
void hr__value_set_serial(hr_value handle, uint64_t serial);
uint64_t hr__serial_next(void); /* call with the lock */
/* A second value with the same contents. HR_NO_VALUE: no host memory. */
hr_value hr__value_alias(hr_value handle);
/* Makes a value that was kept exactly once temporary again. Returns its argument. */
hr_value hr__value_make_temporary(hr_value handle);

/* ---- execution (execute.c) ---- */

/* An input or output of an op. */
typedef struct hr__slot {
	hr__type type;
	hr__buffer *buffer;
	uint64_t offset;
	bool may_take; /* not used after this op, so an output may reuse its memory */
	int64_t refs;  /* references that the caller accounts for; if the buffer has more, its memory is not reused */
} hr__slot;

/* An op to run. */
typedef struct hr__task {
	hr__session *session;
	enum hr__op_kind kind;
	const hr__attrs *attrs;
	hr_name scope;
	hr__role role; /* for the outputs, except those that become contents of variables */
	bool updates;  /* the first inputs are contents of variables, and the outputs replace them */
	hr_op_metadata *note; /* filled in while the op runs; NULL = none */
	uint64_t begin_ns;    /* start of the run that [note] belongs to */
} hr__task;

/* Runs an op asynchronously. The caller sets the types of [outs]; the call sets their buffers, each with a reference. References to
 * inputs are not released. Contents of variables that the op is called on are passed before [ins] and replaced by the outputs. */
hr_status hr__execute(const hr__task *task, const hr__slot *ins, uint32_t in_count, hr__slot *outs);
/* The same for an op that is called on no variables. */
hr_status hr__execute_plain(const hr__task *task, const hr__slot *ins, uint32_t in_count, hr__slot *outs);

/* ---- devices whose memory the host cannot access (stage.c) ---- */

/* An input or output on the device ([there]) and its copy in pinned memory ([here]). */
typedef struct hr__staged {
	void *there, *here;
	uint64_t bytes;
} hr__staged;

typedef struct hr__stage {
	void *block; /* NULL: nothing is staged */
	uint32_t in_count, out_count;
	hr__staged ins[HR__OP_INPUTS], outs[HR__OP_OUTPUTS];
} hr__stage;

/* Called when a session is opened. HR_UNSUPPORTED: the device has no memory that ops can compute in. */
hr_status hr__stage_open(hr__session *session);
void hr__stage_close(hr__session *session);
void hr__stages_forget(void); /* without freeing: the devices are gone, or belong to the parent process */
/* Pinned memory for the session's stream; to be freed with hr_free. HR_NO_HOST_MEMORY. */
hr_status hr__stage_take(const hr__session *session, uint64_t bytes, void **out);
/* Queues a copy of the device's memory to such memory. On a card a kernel copies up to HR__READ_BY_KERNEL bytes, because that does not wait for
 * evictions (hr__card_read). */
hr_status hr__stage_read(const hr__session *session, void *to, const void *from, uint64_t bytes);
#define HR__READ_BY_KERNEL 65536u
/* Queues copies of the inputs to pinned memory and redirects the addresses in [work] to it. Does nothing if the host can access the
 * device's memory. */
hr_status hr__stage_in(const hr__session *session, hr__work *work, uint64_t scratch, hr__stage *out);
/* Queues copies of the outputs to the device: all of them, or none on failure. */
hr_status hr__stage_out(const hr__session *session, const hr__stage *stage);
/* Frees the pinned memory, in stream order. */
void hr__stage_end(const hr__session *session, hr__stage *stage);

/* ---- errors that kernels of a card find (faults.c) ---- */

/* The text of an error that a run of an op found (job.c). */
void hr__job_describe_error(const hr__work *work, char *out, size_t capacity);

/* Gets memory for them on the card. Does nothing if the host computes. */
hr_status hr__faults_open(hr__session *session);
void hr__faults_close(hr__session *session);
/* What a kernel of the op needs to report an error. */
struct hr__k_faults hr__faults_for(hr__session *session, enum hr__op_kind kind, hr_name scope, const hr__work *work);
/* Waits for the session's stream, and moves an error of a kernel to the session's error. */
hr_status hr__faults_wait(hr__session *session);

/* ---- variables (variable.c) ---- */

/* Interns "around/name". HR_INVALID_ARGUMENT: [name] is empty (the message names [what]) or too long. HR_TOO_MANY: the table of
 * names is full. */
hr_status hr__name_join(hr_name around, const char *name, const char *what, hr_name *out);

typedef struct hr__variable {
	uint64_t id; /* variable number and generation */
	hr_name name, scope;
	hr__type type;
	hr_initializer initializer;
	uint64_t graph, session; /* the owner; one of them is 0 */
	bool trainable;    /* false: no gradients are taken with respect to it */
	bool of_optimizer; /* created by an optimizer */
} hr__variable;

static inline hr__role hr__variable_role(const hr__variable *variable)
{
	return variable->of_optimizer ? HR__OPTIMIZER : HR__WEIGHTS;
}

typedef struct hr__content {
	uint64_t variable;  /* 0: none */
	hr__buffer *buffer; /* with a reference */
	uint64_t serial;
} hr__content;

/* Number of variables that an op call uses. */
uint32_t hr__variables_of(const hr__attrs *attrs);
/* The op assigns to variables. False for ops that only read one. */
bool hr__writes_variables(enum hr__op_kind kind, const hr__attrs *attrs);
/* HR_INVALID_HANDLE: invalid or stale id. */
hr_status hr__variable_get(uint64_t id, hr__variable *out);
/* Finds or creates a variable of an optimizer, which is not trainable. The name is complete. */
hr_variable hr__variable_hidden(const char *name, const hr__type *type);
/* hr_get_variable for one that is not trainable: statistics and counts of a layer. */
hr_variable hr__variable_statistic(const char *name, const hr__type *type, hr_initializer initializer);
/* Checks that an op in [graph] or [session] may use the variable. */
hr_status hr__variable_check(const hr__variable *variable, const hr__graph *graph, const hr__session *session);
/* The variable's contents, with a reference. HR_INVALID_ARGUMENT: not initialized. */
hr_status hr__variable_read(hr__session *session, uint64_t id, hr__content *out);
/* Replaces the contents; adds a reference to [buffer]. HR_NO_HOST_MEMORY: no room in the table of contents; nothing changed. */
hr_status hr__variable_write(hr__session *session, uint64_t id, hr__buffer *buffer);
/* Reserves room in the table of contents, so that the following hr__variable_write cannot fail. */
hr_status hr__variable_prepare(hr__session *session, uint64_t id);
/* Initializes the variables of a graph, or those variables of the session that have no contents. */
hr_status hr__variables_initialize(hr__session *session, uint64_t graph, uint32_t *count);
/* Destroys the variables of a session or graph that is being closed. */
void hr__variables_drop(hr__session *session, uint64_t graph);
void hr__variables_free(void);

/* An op call as the gradient code sees it. Inputs and outputs are identified by numbers. */
typedef struct hr__op_call {
	enum hr__op_kind kind;
	uint32_t in_count;
	uint32_t block; /* checkpoint block that it is recomputed with; 0 = none */
	hr_name scope;
	hr__attrs attrs;
	uint64_t ins[HR__OP_INPUTS], outs[HR__OP_OUTPUTS];
	hr__type in_types[HR__OP_INPUTS], out_types[HR__OP_OUTPUTS];
	hr_value in_values[HR__OP_INPUTS], out_values[HR__OP_OUTPUTS]; /* kept, if the gradient reads them */
} hr__op_call;

/* ---- graphs (graph.c) ---- */

/* The graph that the calling thread is building; NULL = none. A graph that hr_shutdown has ended is still returned, but empty, and
 * accepts no nodes. */
hr__graph *hr__graph_current(void);
/* Owner of variables created in the graph: the graph itself, or the session if the graph is built for a function. */
uint64_t hr__graph_owner(const hr__graph *graph);
/* A graph for a function; its variables belong to the session. The caller destroys it. */
hr_status hr__graph_create(const hr__session *session, hr_graph *out);
/* The last node that reads the variable. Unless [any], only if the variable has not been written since. HR_NO_VALUE: none. */
hr_value hr__graph_reads(hr__graph *graph, uint64_t variable, bool any);
/* Adds a node. [ins] are values of the graph. On failure [outs] is HR_NO_VALUE. */
void hr__graph_add(hr__graph *graph, enum hr__op_kind kind, const hr__attrs *attrs, const hr__value *ins, uint32_t in_count,
                   const hr__type *types, hr_value *outs);

void hr__graphs_free(void);

/* The op call that made node [n]. */
void hr__graph_node(const hr__graph *graph, uint32_t n, hr__op_call *out);
uint32_t hr__graph_count(const hr__graph *graph);
/* A value for an output of a node. */
hr_value hr__graph_value(hr__graph *graph, uint32_t node, uint32_t output);

/* ---- gradients (gradient.c) ---- */

/* Records an op that ran outside a graph on this thread's tape, if there is one. Call before the inputs are consumed. */
void hr__tape_note(enum hr__op_kind kind, const hr__attrs *attrs, const hr_value *ins, const hr__type *in_types, uint32_t in_count,
                   const hr_value *outs, const hr__type *out_types);
bool hr__tape_is_on(void);
bool hr__tape_is_there(void); /* recording or stopped */
/* The tape will keep this input of an op that is about to run, because the gradient reads it or because it is an input of a
 * checkpoint block. */
bool hr__tape_keeps(enum hr__op_kind kind, uint32_t input, uint64_t number);
/* The checkpoint block of op calls on this thread; 0 = none. */
uint32_t hr__block_current(void);
/* The role of op calls on this thread: activations or gradients. */
hr__role hr__role_current(void);

/* ---- runs (run.c, run_options.c) ---- */

/* Validates options and metadata; both may be NULL. *options receives the options, of this version; the defaults for NULL. [call] is the function's
 * name for messages. */
hr_status hr__run_check(const char *call, const hr_run_options *given, const hr_run_metadata *metadata, hr_run_options *options);
/* Prepares a run: allocates [ops] entries in [metadata], which may be NULL, and enables the allocation log if requested. */
hr_status hr__run_begin(hr__session *session, const hr_run_options *options, hr_run_metadata *metadata, uint32_t ops, uint64_t *begin_ns);
/* Ends a run for which hr__run_begin succeeded. [status] is its result. */
void hr__run_end(hr__session *session, const hr_run_options *options, hr_run_metadata *metadata, uint64_t begin_ns, hr_status status);
/* hr_session_run of a graph after hr__graph_begin_run; calls hr__graph_end_run. Also runs every op that assigns to variables.
 * [options] and [metadata] are already validated. */
hr_status hr__graph_run(hr__session *session, hr__graph *graph, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count,
                        hr_value *outs, const hr_run_options *options, hr_run_metadata *metadata);

/* ---- functions (function.c) ---- */

#define HR__FUNCTIONS_MAX 64u
#define HR__SIGNATURES_MAX 8u /* graphs kept for each function, one per signature */

/* Frees the graphs that functions built for a session that is being closed. */
void hr__functions_forget(const hr__session *session);
void hr__functions_free(void);

/* ---- messages ---- */

/* Prefixes the thread's message with "op "add" in scope "layer_1": ". If the message already begins with "op "add"", inserts only
 * the scope. Returns [status]. */
hr_status hr__name_op(hr_status status, const char *op, hr_name scope);

/* ---- worker threads (team.c) ---- */

/* The process's team. NULL if it cannot be created; ops then run on one thread. */
hr__team *hr__team_get(void);
void hr__team_end(bool forgets); /* forgets: the threads no longer exist, do not join them */

#endif
