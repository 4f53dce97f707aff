/* graph.h - graphs, shared by graph.c (building), run.c (running) and function.c. */
#ifndef HR_RUNTIME_GRAPH_H
#define HR_RUNTIME_GRAPH_H

#include "headroom_runtime.h"
#include "runtime/engine/engine.h"

struct input {
	uint32_t node, output;
};

struct graph_node {
	enum hr__op_kind kind;
	uint32_t in_count;
	struct input ins[HR__OP_INPUTS];
	hr__attrs attrs;
	hr__type types[HR__OP_OUTPUTS];
	hr_name scope;
	hr__role role;
	uint32_t block; /* checkpoint block; 0 = none */
	uint64_t data;  /* size of attrs.data, which the graph owns */
	hr_value first; /* handle of output 0 as returned by the op call */
};

/* The last nodes that read and wrote a variable: node number + 1; 0 = none. */
struct touch {
	uint32_t read, written;
};

struct hr__graph {
	uint64_t id;
	uint64_t session; /* owner of the variables; 0 = the graph */
	struct graph_node *nodes;
	uint32_t count;
	size_t capacity;
	struct touch *touches; /* indexed by variable number */
	size_t touch_count;
	uint32_t initialized;  /* number + 1 of the last node that initializes variables; 0 = none */
	uint32_t builders, runs; /* threads that have entered or are running the graph; guarded by hr__runtime_lock */
	struct hr__captured *captured; /* NULL: none; guarded by hr__runtime_lock (captured.h) */
	uint32_t calls, refusals; /* of the function, and how often it could not be captured; guarded by the session's turn */
	bool dropped;            /* freed at the end of its last run; guarded by hr__runtime_lock */
};

/* Starts a run of a graph, given by pointer or by handle. Until hr__graph_end_run the graph is not freed and no thread can enter
 * it. The thread that is building a graph may run it. HR_INVALID_HANDLE: no such graph. HR_IN_USE: another thread is building it. */
hr_status hr__graph_begin_run(const hr__graph *known, hr_graph handle, hr__graph **out);
void hr__graph_end_run(hr__graph *graph);
/* hr_graph_destroy for a graph that may be running: its handle becomes invalid at once, and the memory is freed at the end of its
 * last run. */
void hr__graph_drop(hr_graph handle);

#endif
