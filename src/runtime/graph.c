/* graph.c - op calls that become nodes, and running them.
 *
 * Nodes are in the order in which they were made, so inputs come before those who use them, and there can be no cycle. A run marks what its
 * fetches need, counts uses, and executes in order; with an input's last use its memory is free, or the output's (execute.c). */
#include <string.h>

#include "base/status.h"
#include "os/os.h"
#include "runtime/engine.h"

#define DEPTH 4u
#define GRAPHS_MAX 256u

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
	uint64_t data; /* bytes of attrs.data, which is the graph's */
};

struct hr__graph {
	uint64_t id;
	struct node *nodes;
	uint32_t count, capacity;
	uint32_t builders; /* threads that are in it; guarded by hr__runtime_lock */
};

static hr__graph *graphs[GRAPHS_MAX]; /* guarded by hr__runtime_lock, like the next */
static uint64_t last_id;

static _Thread_local struct {
	hr__graph *graphs[DEPTH];
	uint32_t count;
} entered;

hr__graph *hr__graph_current(void)
{
	return entered.count ? entered.graphs[entered.count - 1] : NULL;
}

/* ---- graphs ---- */

hr_status hr_graph_create(hr_graph *out)
{
	void *block;
	int error = hr__os()->alloc(sizeof(hr__graph), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a graph");
	hr__graph *graph = block;
	hr_status status = HR_TOO_MANY;
	hr__lock_take(&hr__runtime_lock);
	graph->id = ++last_id;
	for (uint32_t i = 0; i < GRAPHS_MAX && status; i++) {
		if (graphs[i]) continue;
		graphs[i] = graph;
		status = HR_OK;
	}
	hr__lock_release(&hr__runtime_lock);
	if (status) {
		hr__os()->free(graph, sizeof *graph);
		return hr__fail(status, "there are %u graphs; destroy one", GRAPHS_MAX);
	}
	out->id = graph->id;
	return HR_OK;
}

static hr__graph *find(hr_graph handle)
{
	for (uint32_t i = 0; i < GRAPHS_MAX && handle.id; i++)
		if (graphs[i] && graphs[i]->id == handle.id) return graphs[i];
	return NULL;
}

static void free_graph(hr__graph *graph)
{
	uint64_t bytes;
	hr_name op;
	hr__values_drop(NULL, graph, &bytes, &op);
	for (uint32_t i = 0; i < graph->count; i++)
		if (graph->nodes[i].data) hr__os()->free((void *)(uintptr_t)graph->nodes[i].attrs.data, graph->nodes[i].data);
	if (graph->nodes) hr__os()->free(graph->nodes, graph->capacity * sizeof *graph->nodes);
	hr__os()->free(graph, sizeof *graph);
}

void hr__graphs_free(void)
{
	for (uint32_t i = 0; i < GRAPHS_MAX; i++) {
		if (graphs[i]) free_graph(graphs[i]);
		graphs[i] = NULL;
	}
	entered.count = 0;
}

hr_status hr_graph_destroy(hr_graph handle)
{
	hr__lock_take(&hr__runtime_lock);
	hr__graph *graph = find(handle);
	bool in_use = graph && graph->builders;
	for (uint32_t i = 0; i < GRAPHS_MAX && graph && !in_use; i++)
		if (graphs[i] == graph) graphs[i] = NULL;
	hr__lock_release(&hr__runtime_lock);
	if (!graph) return hr__fail(HR_CLOSED, "the graph was destroyed, or never was one");
	if (in_use) return hr__fail(HR_IN_USE, "a thread is building the graph; hr_graph_leave first");
	free_graph(graph);
	return HR_OK;
}

hr_status hr_graph_enter(hr_graph handle)
{
	if (entered.count == DEPTH) return hr__fail(HR_TOO_MANY, "graphs are entered %u deep", DEPTH);
	hr__lock_take(&hr__runtime_lock);
	hr__graph *graph = find(handle);
	bool taken = graph && graph->builders;
	if (graph && !taken) graph->builders++;
	hr__lock_release(&hr__runtime_lock);
	if (!graph) return hr__fail(HR_CLOSED, "the graph was destroyed, or never was one");
	if (taken) return hr__fail(HR_IN_USE, "the graph is being built already");
	entered.graphs[entered.count++] = graph;
	return HR_OK;
}

hr_status hr_graph_leave(void)
{
	if (!entered.count) return hr__fail(HR_INVALID_ARGUMENT, "hr_graph_leave without hr_graph_enter");
	hr__lock_take(&hr__runtime_lock);
	entered.graphs[--entered.count]->builders--;
	hr__lock_release(&hr__runtime_lock);
	return HR_OK;
}

/* ---- building ---- */

static bool grow(hr__graph *graph)
{
	uint32_t capacity = graph->capacity ? graph->capacity * 2 : 64;
	void *nodes;
	if (graph->capacity > 1u << 24 || hr__os()->alloc(capacity * sizeof *graph->nodes, &nodes)) return false;
	if (graph->count) memcpy(nodes, graph->nodes, graph->count * sizeof *graph->nodes);
	if (graph->nodes) hr__os()->free(graph->nodes, graph->capacity * sizeof *graph->nodes);
	graph->nodes = nodes;
	graph->capacity = capacity;
	return true;
}

static bool own_data(struct node *node)
{
	void *copy;
	node->data = node->kind == HR__OP_CONSTANT ? hr__type_bytes(&node->types[0]) : 0;
	if (!node->data) return true;
	if (hr__os()->alloc(node->data, &copy)) return false;
	node->attrs.data = memcpy(copy, node->attrs.data, node->data);
	return true;
}

/* Numbers of results: the node's, with room for its outputs; 0 is none. */
static uint64_t number_of(uint32_t node, uint32_t output)
{
	return (uint64_t)(node + 1) * HR__OP_OUTPUTS + output;
}

void hr__graph_add(hr__graph *graph, enum hr__op_kind kind, const hr__attrs *attrs, const hr__value *ins, uint32_t in_count,
                   const hr__type *types, hr_value *outs)
{
	uint32_t count = hr__ops[kind].out_count;
	struct node node = { .kind = kind, .in_count = in_count, .scope = hr_name_scope_current() };
	if (attrs) node.attrs = *attrs;
	for (uint32_t i = 0; i < in_count; i++) node.ins[i] = (struct input){ ins[i].node, ins[i].output };
	for (uint32_t i = 0; i < count; i++) node.types[i] = types[i];
	if ((graph->count == graph->capacity && !grow(graph)) || !own_data(&node)) {
		hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for a node of a graph");
		return;
	}
	graph->nodes[graph->count] = node;
	for (uint32_t i = 0; i < count; i++)
		outs[i] = hr__value_new(&(hr__value){ .type = types[i], .graph = graph, .node = graph->count, .output = i, .serial = number_of(graph->count, i),
		                                      .op = hr_name_intern(hr__ops[kind].name), .scope = node.scope });
	graph->count++;
}

uint32_t hr__graph_count(const hr__graph *graph)
{
	return graph->count;
}

void hr__graph_node(const hr__graph *graph, uint32_t n, hr__step *out)
{
	const struct node *node = &graph->nodes[n];
	*out = (hr__step){ .kind = node->kind, .in_count = node->in_count, .attrs = node->attrs };
	for (uint32_t i = 0; i < node->in_count; i++) {
		out->ins[i] = number_of(node->ins[i].node, node->ins[i].output);
		out->in_types[i] = graph->nodes[node->ins[i].node].types[node->ins[i].output];
	}
	for (uint32_t i = 0; i < hr__ops[node->kind].out_count; i++) {
		out->outs[i] = number_of(n, i);
		out->out_types[i] = node->types[i];
	}
}

hr_value hr__graph_value(hr__graph *graph, uint32_t node, uint32_t output)
{
	return hr__value_new(&(hr__value){ .type = graph->nodes[node].types[output], .graph = graph, .node = node, .output = output,
	                                   .serial = number_of(node, output), .op = hr_name_intern(hr__ops[graph->nodes[node].kind].name),
	                                   .scope = graph->nodes[node].scope });
}

hr_value hr_placeholder(hr_dtype dtype, const int64_t *dims, int rank)
{
	hr__attrs attrs = { .dtype = dtype };
	if (!hr__graph_current()) {
		hr__fail(HR_INVALID_ARGUMENT, "a placeholder is for graphs; hr_graph_enter first");
		return HR_NO_VALUE;
	}
	if (hr__dims_make(dims, rank, &attrs.dims)) return HR_NO_VALUE;
	return hr__call_one(HR__OP_PLACEHOLDER, NULL, 0, &attrs);
}

/* ---- running ---- */

struct result {
	hr__buffer *buffer; /* with a reference, as long as uses are left */
	uint64_t offset;
	uint32_t uses; /* that are left */
};

struct run {
	hr__session *session;
	hr__graph *graph;
	bool *needed;            /* by node */
	struct result (*results)[HR__OP_OUTPUTS]; /* by node */
	hr__slot *fed;           /* by node; buffer or not, type.dtype is none where nothing was fed */
};

static hr_status take_feed(struct run *run, const hr_feed *feed, size_t number)
{
	hr__value place, value;
	char want[HR__DIMS_TEXT], got[HR__DIMS_TEXT];
	hr_status status = hr__value_get(feed->placeholder, &place);
	if (!status) status = hr__value_get(feed->value, &value);
	if (status) return hr__fail_in(status, "feed %zu", number);
	if (place.graph != run->graph || run->graph->nodes[place.node].kind != HR__OP_PLACEHOLDER)
		return hr__fail(HR_INVALID_ARGUMENT, "feed %zu is for no placeholder of the graph", number);
	if (value.session != run->session) return hr__fail(HR_INVALID_ARGUMENT, "feed %zu: the value belongs to no session, or to another one", number);
	if (run->fed[place.node].type.dtype) return hr__fail(HR_INVALID_ARGUMENT, "feed %zu: its placeholder is fed already", number);
	if (value.type.dtype != place.type.dtype || !hr__dims_equal(&value.type.dims, &place.type.dims))
		return hr__fail(HR_INVALID_ARGUMENT, "feed %zu: the placeholder is %s %s, and the value %s %s", number, hr_dtype_text(place.type.dtype),
		                hr__dims_text(&place.type.dims, want, sizeof want), hr_dtype_text(value.type.dtype),
		                hr__dims_text(&value.type.dims, got, sizeof got));
	run->fed[place.node] = (hr__slot){ value.type, value.buffer, value.offset, false };
	return HR_OK;
}

/* What the fetches need, and how often it is used. */
static hr_status mark(struct run *run, const hr_value *fetches, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		hr__value value;
		hr_status status = hr__value_get(fetches[i], &value);
		if (status) return hr__fail_in(status, "fetch %zu", i);
		if (value.graph != run->graph) return hr__fail(HR_INVALID_ARGUMENT, "fetch %zu is of no graph, or of another one than the first", i);
		run->needed[value.node] = true;
		run->results[value.node][value.output].uses++;
	}
	for (uint32_t n = run->graph->count; n-- > 0;) {
		const struct node *node = &run->graph->nodes[n];
		for (uint32_t i = 0; i < node->in_count && run->needed[n]; i++) {
			run->needed[node->ins[i].node] = true;
			run->results[node->ins[i].node][node->ins[i].output].uses++;
		}
	}
	return HR_OK;
}

/* One use less; with the last, the reference goes. */
static void use(struct result *result)
{
	if (--result->uses) return;
	hr__buffer_release(result->buffer);
	result->buffer = NULL;
}

static hr_status run_node(struct run *run, uint32_t n)
{
	const struct node *node = &run->graph->nodes[n];
	const hr__op *op = &hr__ops[node->kind];
	hr__slot ins[HR__OP_INPUTS], outs[HR__OP_OUTPUTS];
	hr_status status = HR_OK;
	if (node->kind == HR__OP_PLACEHOLDER) {
		if (!run->fed[n].type.dtype) return hr__fail(HR_INVALID_ARGUMENT, "a placeholder of %s is needed and not fed", hr_dtype_text(node->types[0].dtype));
		outs[0] = run->fed[n];
		hr__buffer_keep(outs[0].buffer);
	} else {
		for (uint32_t i = 0; i < node->in_count; i++) {
			const struct result *in = &run->results[node->ins[i].node][node->ins[i].output];
			ins[i] = (hr__slot){ run->graph->nodes[node->ins[i].node].types[node->ins[i].output], in->buffer, in->offset, in->uses == 1 };
		}
		for (uint32_t i = 0; i < op->out_count; i++) outs[i] = (hr__slot){ .type = node->types[i] };
		status = hr__execute(run->session, node->kind, &node->attrs, ins, node->in_count, outs);
	}
	for (uint32_t i = 0; i < node->in_count; i++) use(&run->results[node->ins[i].node][node->ins[i].output]);
	for (uint32_t i = 0; i < op->out_count && !status; i++) {
		struct result *result = &run->results[n][i];
		result->buffer = outs[i].buffer;
		result->offset = outs[i].offset;
		if (!result->uses) {
			hr__buffer_release(result->buffer);
			result->buffer = NULL;
		}
	}
	if (!status) return HR_OK;
	const char *scope = hr_name_text(node->scope);
	return hr__fail_in(status, "op \"%s\"%s%.200s%s", op->name, *scope ? " in scope \"" : "", scope, *scope ? "\"" : "");
}

static hr_status hand_out(struct run *run, const hr_value *fetches, size_t count, hr_value *outs)
{
	for (size_t i = 0; i < count; i++) {
		hr__value value;
		hr_status status = hr__value_get(fetches[i], &value);
		struct result *result = status ? NULL : &run->results[value.node][value.output];
		if (result) {
			hr__buffer_keep(result->buffer);
			outs[i] = hr__value_new(&(hr__value){ .type = value.type, .session = run->session, .buffer = result->buffer,
			                                      .offset = result->offset, .op = value.op, .scope = value.scope });
		}
		if (!outs[i].id) {
			while (i-- > 0) hr__value_use_up(outs[i]), outs[i] = HR_NO_VALUE;
			return status ? status : HR_NO_HOST_MEMORY;
		}
	}
	return HR_OK;
}

static hr_status run_all(struct run *run, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count, hr_value *outs)
{
	hr_status status = HR_OK;
	for (size_t i = 0; i < feed_count && !status; i++) status = take_feed(run, &feeds[i], i);
	if (!status) status = mark(run, fetches, fetch_count);
	for (uint32_t n = 0; n < run->graph->count && !status; n++)
		if (run->needed[n]) status = run_node(run, n);
	if (!status) status = hand_out(run, fetches, fetch_count, outs);
	for (uint32_t n = 0; n < run->graph->count; n++)
		for (uint32_t i = 0; i < HR__OP_OUTPUTS; i++) hr__buffer_release(run->results[n][i].buffer);
	return status;
}

hr_status hr_session_run(hr_session handle, const hr_feed *feeds, size_t feed_count, const hr_value *fetches, size_t fetch_count, hr_value *outs)
{
	hr_status status;
	hr__value first;
	struct run run = { .session = hr__session_of(handle, &status) };
	if (!run.session) return status;
	if (!fetch_count || !fetches || !outs || (feed_count && !feeds))
		return hr__fail(HR_INVALID_ARGUMENT, "hr_session_run: there is nothing to fetch, or a pointer is NULL");
	for (size_t i = 0; i < fetch_count; i++) outs[i] = HR_NO_VALUE;
	status = hr__value_get(fetches[0], &first);
	if (!status && !first.graph) status = hr__fail(HR_INVALID_ARGUMENT, "fetch 0 is of no graph");
	if (status) return status;
	run.graph = first.graph;
	uint32_t count = run.graph->count;
	void *block;
	uint64_t bytes = count * (sizeof *run.results + sizeof *run.fed + sizeof *run.needed);
	int error = hr__os()->alloc(bytes, &block);
	if (error) return hr__os_fail(error, "cannot get host memory to run a graph of %u nodes", count);
	run.results = block;
	run.fed = (hr__slot *)(run.results + count);
	run.needed = (bool *)(run.fed + count);
	status = run_all(&run, feeds, feed_count, fetches, fetch_count, outs);
	hr__os()->free(block, bytes);
	for (size_t i = 0; i < feed_count; i++) hr__value_use_up(feeds[i].value);
	return status;
}
