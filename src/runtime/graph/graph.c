/* graph.c - building graphs. Nodes are in creation order, so inputs precede their users and cycles are impossible. */
#include <string.h>

#include "core/base/status.h"
#include "core/os/os.h"
#include "runtime/graph/captured.h"
#include "runtime/graph/graph.h"

#define DEPTH 4u
#define GRAPHS_MAX 256u
#define SLOTS (GRAPHS_MAX + HR__FUNCTIONS_MAX * HR__SIGNATURES_MAX)

/* Graphs of programs, then graphs of functions, so that neither can exhaust the slots of the other. A graph's id contains its slot.
 * Guarded by hr__runtime_lock, like last_id. */
static hr__graph *graphs[SLOTS];
static uint64_t last_id;

static _Thread_local struct {
	uint64_t ids[DEPTH]; /* another thread may have ended these graphs with hr_shutdown */
	uint32_t count;
} entered;

/* Current graph of a thread whose graph was ended by hr_shutdown. Accepts no nodes. */
static hr__graph ended = { .id = UINT64_MAX };

/* ---- graphs ---- */

hr_status hr_graph_create(hr_graph *out)
{
	return hr__graph_create(NULL, out);
}

hr_status hr_graph_create_in_session(hr_session handle, hr_graph *out)
{
	hr_status status;
	const hr__session *session = hr__session_of(handle, &status);
	return session ? hr__graph_create(session, out) : status;
}

/* Call with the lock. False: no free slot in [slot, end). */
static bool enlist(hr__graph *graph, uint32_t slot, uint32_t end)
{
	while (slot < end && graphs[slot]) slot++;
	if (slot == end) return false;
	graph->id = ++last_id * SLOTS + slot;
	graphs[slot] = graph;
	return true;
}

hr_status hr__graph_create(const hr__session *session, hr_graph *out)
{
	void *block;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_graph_create: out is NULL");
	hr_status status = hr__runtime_begin();
	if (status) return status;
	int error = hr__os()->alloc(sizeof(hr__graph), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a graph");
	hr__graph *graph = block;
	graph->session = session ? session->id : 0;
	hr__lock_take(&hr__runtime_lock);
	bool fits = session ? enlist(graph, GRAPHS_MAX, SLOTS) : enlist(graph, 0, GRAPHS_MAX);
	hr__lock_release(&hr__runtime_lock);
	if (!fits) {
		hr__os()->free(graph, sizeof *graph);
		return hr__fail(HR_TOO_MANY, "there are %u graphs; destroy one", session ? SLOTS - GRAPHS_MAX : GRAPHS_MAX);
	}
	out->id = graph->id;
	return HR_OK;
}

/* Call with the lock. */
static hr__graph *find(hr_graph handle)
{
	hr__graph *graph = graphs[handle.id % SLOTS];
	return graph && graph->id == handle.id ? graph : NULL;
}

/* Searches by pointer without dereferencing [known], which may be freed. Call with the lock. */
static hr__graph *find_known(const hr__graph *known)
{
	for (uint32_t i = 0; i < SLOTS; i++)
		if (graphs[i] && graphs[i] == known) return graphs[i];
	return NULL;
}

hr__graph *hr__graph_current(void)
{
	if (!entered.count) return NULL;
	hr__lock_take(&hr__runtime_lock);
	hr__graph *graph = find((hr_graph){ entered.ids[entered.count - 1] });
	hr__lock_release(&hr__runtime_lock);
	return graph ? graph : &ended;
}

static void free_graph(hr__graph *graph)
{
	uint64_t bytes, largest;
	hr_name op;
	hr__captured_forget(graph);
	hr__values_drop(NULL, graph, &bytes, &largest, &op);
	hr__variables_drop(NULL, graph->id);
	for (uint32_t i = 0; i < graph->count; i++)
		if (graph->nodes[i].data) hr__os()->free((void *)(uintptr_t)graph->nodes[i].attrs.data, graph->nodes[i].data);
	if (graph->nodes) hr__os()->free(graph->nodes, graph->capacity * sizeof *graph->nodes);
	if (graph->touches) hr__os()->free(graph->touches, graph->touch_count * sizeof *graph->touches);
	hr__os()->free(graph, sizeof *graph);
}

void hr__graphs_free(void)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		if (graphs[i]) free_graph(graphs[i]);
		graphs[i] = NULL;
	}
	entered.count = 0;
}

static hr_status is_gone(void)
{
	return hr__fail(HR_INVALID_HANDLE, "the graph was destroyed, or never created");
}

static bool is_entered(const hr__graph *graph)
{
	bool found = false;
	for (uint32_t i = 0; i < entered.count; i++) found |= entered.ids[i] == graph->id;
	return found;
}

hr_status hr__graph_begin_run(const hr__graph *known, hr_graph handle, hr__graph **out)
{
	hr__lock_take(&hr__runtime_lock);
	hr__graph *graph = known ? find_known(known) : find(handle);
	bool built = graph && graph->builders && !is_entered(graph);
	if (graph && !built) graph->runs++;
	hr__lock_release(&hr__runtime_lock);
	if (!graph) return is_gone();
	if (built) return hr__fail(HR_IN_USE, "another thread is building the graph; it can be run when that thread has left it (hr_graph_leave)");
	*out = graph;
	return HR_OK;
}

void hr__graph_end_run(hr__graph *graph)
{
	hr__lock_take(&hr__runtime_lock);
	bool last = !--graph->runs && graph->dropped;
	hr__lock_release(&hr__runtime_lock);
	if (last) free_graph(graph);
}

/* Makes the graph's handle invalid. Call with the lock. */
static void unlist(const hr__graph *graph)
{
	graphs[graph->id % SLOTS] = NULL;
}

void hr__graph_drop(hr_graph handle)
{
	hr__lock_take(&hr__runtime_lock);
	hr__graph *graph = find(handle);
	if (graph) unlist(graph);
	if (graph) graph->dropped = true;
	bool unused = graph && !graph->runs;
	hr__lock_release(&hr__runtime_lock);
	if (unused) free_graph(graph);
}

hr_status hr_graph_destroy(hr_graph handle)
{
	hr__lock_take(&hr__runtime_lock);
	hr__graph *graph = find(handle);
	bool in_use = graph && (graph->builders || graph->runs);
	if (graph && !in_use) unlist(graph);
	hr__lock_release(&hr__runtime_lock);
	if (!graph) return is_gone();
	if (in_use) return hr__fail(HR_IN_USE, "a thread is building the graph, or running it");
	free_graph(graph);
	return HR_OK;
}

hr_status hr_graph_enter(hr_graph handle)
{
	if (entered.count == DEPTH) return hr__fail(HR_TOO_MANY, "this thread is inside %u graphs already; leave one first (hr_graph_leave)", DEPTH);
	hr__lock_take(&hr__runtime_lock);
	hr__graph *graph = find(handle);
	bool taken = graph && (graph->builders || graph->runs);
	if (graph && !taken) graph->builders++;
	hr__lock_release(&hr__runtime_lock);
	if (!graph) return is_gone();
	if (taken) return hr__fail(HR_IN_USE, "the graph is being built already, or run");
	entered.ids[entered.count++] = handle.id;
	return HR_OK;
}

hr_status hr_graph_leave(void)
{
	if (!entered.count) return hr__fail(HR_INVALID_ARGUMENT, "hr_graph_leave without hr_graph_enter");
	hr__lock_take(&hr__runtime_lock);
	hr__graph *graph = find((hr_graph){ entered.ids[--entered.count] });
	if (graph) graph->builders--;
	hr__lock_release(&hr__runtime_lock);
	return HR_OK;
}

/* ---- building ---- */

static bool grow(hr__graph *graph)
{
	return graph->capacity <= 1u << 24 && !hr__os_grow(&graph->nodes, &graph->capacity, sizeof *graph->nodes, 64);
}

static bool own_data(struct graph_node *node)
{
	void *copy;
	node->data = node->kind == HR__OP_CONSTANT ? hr__type_bytes(&node->types[0]) : 0;
	if (!node->data) return true;
	if (hr__os()->alloc(node->data, &copy)) return false;
	node->attrs.data = memcpy(copy, node->attrs.data, node->data);
	return true;
}

/* Number of an output in the graph; never 0, which means none. */
static uint64_t number_of(uint32_t node, uint32_t output)
{
	return (uint64_t)(node + 1) * HR__OP_OUTPUTS + output;
}

/* Makes room in graph->touches for the node's variables. */
static bool grow_touches(hr__graph *graph, const hr__attrs *attrs)
{
	uint32_t most = 0;
	for (uint32_t i = 0; i < hr__variables_of(attrs); i++)
		if ((uint32_t)attrs->variables[i] >= most) most = (uint32_t)attrs->variables[i] + 1;
	return most <= graph->touch_count || !hr__os_grow(&graph->touches, &graph->touch_count, sizeof *graph->touches, (most + 255) / 256 * 256);
}

/* Records the reads and writes of the node that was just added. */
static void note_touches(hr__graph *graph, const struct graph_node *node)
{
	if (node->kind == HR__OP_INITIALIZE) graph->initialized = graph->count;
	for (uint32_t i = 0; i < hr__variables_of(&node->attrs); i++) {
		struct touch *touch = &graph->touches[(uint32_t)node->attrs.variables[i]];
		*(node->kind == HR__OP_READ ? &touch->read : &touch->written) = graph->count;
	}
}

void hr__graph_add(hr__graph *graph, enum hr__op_kind kind, const hr__attrs *attrs, const hr__value *ins, uint32_t in_count,
                   const hr__type *types, hr_value *outs)
{
	uint32_t count = hr__ops[kind].out_count;
	if (graph == &ended) {
		hr__fail(HR_INVALID_HANDLE, "the graph that this thread is in has ended with hr_shutdown; leave it (hr_graph_leave)");
		return;
	}
	struct graph_node node = { .kind = kind,
		                       .in_count = in_count,
		                       .scope = hr_name_scope_current(),
		                       .role = hr__role_current(),
		                       .block = hr__block_current() };
	if (attrs) node.attrs = *attrs;
	for (uint32_t i = 0; i < in_count; i++) node.ins[i] = (struct input){ ins[i].node, ins[i].output };
	for (uint32_t i = 0; i < count; i++) node.types[i] = types[i];
	if ((graph->count == graph->capacity && !grow(graph)) || !grow_touches(graph, attrs) || !own_data(&node)) {
		hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for a node of a graph");
		return;
	}
	graph->nodes[graph->count] = node;
	for (uint32_t i = 0; i < count; i++)
		outs[i] = hr__value_new(&(hr__value){ .type = types[i], .graph = graph, .node = graph->count, .output = i, .serial = number_of(graph->count, i),
		                                      .op = hr_name_intern(hr__ops[kind].name), .scope = node.scope });
	graph->nodes[graph->count].first = outs[0];
	graph->count++;
	note_touches(graph, &node);
}

uint32_t hr__graph_count(const hr__graph *graph)
{
	return graph->count;
}

void hr__graph_node(const hr__graph *graph, uint32_t n, hr__op_call *out)
{
	const struct graph_node *node = &graph->nodes[n];
	*out = (hr__op_call){
		.kind = node->kind, .in_count = node->in_count, .block = node->block, .scope = node->scope, .attrs = node->attrs
	};
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

uint64_t hr__graph_owner(const hr__graph *graph)
{
	return graph->session ? 0 : graph->id;
}

hr_value hr__graph_reads(hr__graph *graph, uint64_t variable, bool any)
{
	uint32_t number = (uint32_t)variable;
	if (number >= graph->touch_count) return HR_NO_VALUE;
	const struct touch *touch = &graph->touches[number];
	if (!touch->read || graph->nodes[touch->read - 1].attrs.variables[0] != variable) return HR_NO_VALUE;
	bool is_now = touch->read > touch->written && touch->read > graph->initialized;
	return any || is_now ? hr__graph_value(graph, touch->read - 1, 0) : HR_NO_VALUE;
}

/* ---- groups ---- */

static hr_value group_outside(const hr_value *values, size_t count)
{
	bool all = true;
	for (size_t i = 0; i < count; i++) {
		all &= values[i].id != 0;
		if (values[i].id) hr__value_consume(values[i]);
	}
	return all ? HR_DONE : HR_NO_VALUE;
}

/* Builds a tree, because a node has at most HR__OP_INPUTS inputs. */
static hr_value group_inside(const hr_value *values, size_t count, double total)
{
	hr_value heads[HR__OP_INPUTS];
	size_t used = 0, share = (count + HR__OP_INPUTS - 1) / HR__OP_INPUTS;
	for (size_t at = 0; at < count; at += share) {
		size_t part = count - at < share ? count - at : share;
		heads[used++] = part == 1 ? values[at] : group_inside(values + at, part, (double)part);
	}
	return hr__call_one(HR__OP_GROUP, heads, (uint32_t)used, &(hr__attrs){ .a = total });
}

hr_value hr_group(const hr_value *values, size_t count)
{
	if (count && !values) {
		hr__fail(HR_INVALID_ARGUMENT, "hr_group: values is NULL");
		return HR_NO_VALUE;
	}
	return hr__graph_current() ? group_inside(values, count, (double)count) : group_outside(values, count);
}
