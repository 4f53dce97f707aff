/* graph.h - what graph.c builds, run.c runs, and functions have. */
#ifndef HR_RUNTIME_GRAPH_H
#define HR_RUNTIME_GRAPH_H

#include "runtime/engine.h"

struct input {
	uint32_t node, output;
};

struct node {
	enum hr__op_kind kind;
	uint32_t in_count;
	struct input ins[HR__OP_INPUTS];
	hr__attrs attrs;
	hr__type types[HR__OP_OUTPUTS];
	hr_name scope;
	hr__role role;
	uint32_t block; /* of a checkpoint; 0 = none */
	uint64_t data;  /* bytes of attrs.data, which is the graph's */
	hr_value first; /* the handle of output 0 that its call returned */
};

/* The last nodes that read and wrote a variable: their numbers, and 1; 0 = none. */
struct touch {
	uint32_t read, written;
};

struct hr__graph {
	uint64_t id;
	uint64_t session; /* that its variables belong to; 0 = they are its own */
	struct node *nodes;
	uint32_t count, capacity;
	struct touch *touches; /* by number of the variable */
	uint32_t touch_count;
	uint32_t initialized;  /* number of the last node that initialises variables, and 1; 0 = none */
	uint32_t builders, runs; /* threads that are in it, and that run it; guarded by hr__runtime_lock, like the next */
	bool dropped;            /* its last run frees it */
};

/* By pointer or by handle. It stays until the run ends, and nobody builds it; a thread that is in it and runs it cannot do both at a time.
 * HR_CLOSED: there is no such graph. HR_IN_USE: another thread is in it. */
hr_status hr__graph_begin_run(const hr__graph *known, hr_graph handle, hr__graph **out);
void hr__graph_end_run(hr__graph *graph);
/* hr_graph_destroy, but of a graph that runs: that is gone for whoever looks for it, and freed at the end of its last run. */
void hr__graph_drop(hr_graph handle);

#endif
