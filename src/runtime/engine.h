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
#include "runtime/op.h"

typedef struct hr__session hr__session;
typedef struct hr__graph hr__graph;

extern hr__lock hr__runtime_lock;

/* ---- buffers (buffer.c) ---- */

typedef struct hr__buffer {
	hr__session *session;
	hr_tensor tensor; /* id 0: a block */
	void *block;
	uint64_t bytes;
	int64_t refs;     /* guarded by the lock */
} hr__buffer;

/* With one reference. *out is NULL for no bytes. HR_OUT_OF_MEMORY, HR_NO_HOST_MEMORY. */
hr_status hr__buffer_new(hr__session *session, const hr__type *type, uint64_t bytes, hr__buffer **out);
void hr__buffer_keep(hr__buffer *buffer);    /* NULL is fine */
void hr__buffer_release(hr__buffer *buffer); /* NULL is fine. Without the lock */
bool hr__buffer_is_sole(const hr__buffer *buffer);

/* ---- sessions (session.c) ---- */

struct hr__session {
	uint64_t id;
	hr_device handle;
	hr__device *device;
	hr_allocator allocator;
	hr_stream stream;
	bool has_tensors;         /* its allocator is one that tensors can be made on */
	bool own_stream;
	hr__team *team;
	int64_t values, buffers;  /* that are there; guarded by the lock */
	uint64_t bytes;           /* of those buffers */
	/* The first thing that went wrong on the device: guarded by the lock. */
	const char *error;
	hr_name error_op, error_scope;
};

/* The session of the calling thread's op calls. NULL, with a message. */
hr__session *hr__session_current(void);
hr__session *hr__session_of(hr_session session, hr_status *why);
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
/* A loose value; takes over the reference to the buffer. HR_NO_VALUE: no host memory, and the buffer is released. */
hr_value hr__value_new(const hr__value *value);
/* Ends a loose value; leaves a kept one alone. */
void hr__value_use_up(hr_value handle);
/* Ends all values of a session or graph. Returns how many, and in *kept how many had been kept; *op gets the op of the largest. */
uint64_t hr__values_drop(const hr__session *session, const hr__graph *graph, uint64_t *bytes, hr_name *op);
void hr__values_free(void);
/* The number of what was computed, given when first asked for. */
uint64_t hr__value_serial(hr_value handle);
/* Another value for the same contents. HR_NO_VALUE: no host memory. */
hr_value hr__value_alias(hr_value handle);

/* ---- running (execute.c) ---- */

/* An input or output. */
typedef struct hr__slot {
	hr__type type;
	hr__buffer *buffer;
	uint64_t offset;
	bool may_take; /* nobody needs it after this op */
} hr__slot;

/* Runs an op: [outs] have their types, and get buffers, each with a reference. Inputs are not released. Asynchronous. */
hr_status hr__execute(hr__session *session, enum hr__op_kind kind, const hr__attrs *attrs, const hr__slot *ins, uint32_t in_count,
                      hr__slot *outs);

/* An op call, as gradients see it: results have numbers. */
typedef struct hr__step {
	enum hr__op_kind kind;
	uint32_t in_count;
	hr__attrs attrs;
	uint64_t ins[HR__OP_INPUTS], outs[HR__OP_OUTPUTS];
	hr__type in_types[HR__OP_INPUTS], out_types[HR__OP_OUTPUTS];
	hr_value in_values[HR__OP_INPUTS], out_values[HR__OP_OUTPUTS]; /* kept, where the gradient looks at them */
} hr__step;

/* ---- graphs (graph.c) ---- */

/* The graph that the calling thread is building; NULL = none. */
hr__graph *hr__graph_current(void);
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

/* ---- threads that help (team.c) ---- */

/* The team of the process; NULL when there is none to be had, and ops run alone. */
hr__team *hr__team_get(void);
void hr__team_end(bool forgets); /* forgets: its threads are gone already */

#endif
