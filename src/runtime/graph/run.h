/* run.h - a run of a graph, shared by run.c and chain.c. */
#ifndef HR_RUNTIME_RUN_H
#define HR_RUNTIME_RUN_H

#include "runtime/engine/chain.h"
#include "runtime/graph/graph.h"

struct result {
	hr__buffer *buffer; /* holds a reference while uses remain */
	uint64_t offset;
	uint32_t uses; /* remaining uses */
};

struct graph_run {
	hr__session *session;
	hr__graph *graph;
	bool *needed;            /* indexed by node */
	struct result (*results)[HR__OP_OUTPUTS]; /* indexed by node */
	hr__slot *fed;           /* indexed by node; holds a reference until the node runs. type.dtype is none if not fed */
	uint32_t *chains;        /* indexed by node: of the last node of a chain, the first + 1; HR__IN_CHAIN for the others; 0 = none */
	hr_run_metadata *metadata; /* NULL = not requested */
	bool traced;
	uint64_t begin_ns;
};

#define HR__IN_CHAIN UINT32_MAX

/* An input of a chain: a result that its steps use [uses] times. */
struct chain_input {
	struct input from;
	uint32_t uses;
};

struct graph_chain {
	hr__chain chain;
	struct chain_input ins[HR__OP_INPUTS];
};

/* Finds the chains of a run, after its nodes were marked. Where the card has no kernels for one, its ops run one by one. */
void hr__chains_find(struct graph_run *run);
/* The chain whose last node is [last]. */
void hr__chain_of(const struct graph_run *run, uint32_t last, struct graph_chain *out);

#endif
