/* placeholder.c - inputs of a run: placeholders, by handle or by name, and feeds from host memory. */
#include <stdio.h>

#include "core/base/status.h"
#include "runtime/graph/graph.h"

/* ---- placeholders ---- */

static hr_value add(const char *name, hr_dtype dtype, const int64_t *dims, int rank, hr_name full)
{
	hr__attrs attrs = { .dtype = dtype, .name = full };
	hr_status status = HR_OK;
	if (!hr__graph_current()) status = hr__fail(HR_INVALID_ARGUMENT, "it is for graphs; hr_graph_enter first");
	if (!status) status = hr__dims_make(dims, rank, &attrs.dims);
	if (!status) return hr__call_one(HR__OP_PLACEHOLDER, NULL, 0, &attrs);
	if (name) hr__fail_in(status, "placeholder \"%.200s\"", name);
	else hr__name_op(status, "placeholder", hr_name_scope_current());
	return HR_NO_VALUE;
}

hr_value hr_placeholder(hr_dtype dtype, const int64_t *dims, int rank)
{
	return add(NULL, dtype, dims, rank, HR_NAME_NONE);
}

/* The placeholder of that name; NULL = none. */
static const struct graph_node *find(const hr__graph *graph, hr_name name)
{
	for (uint32_t i = 0; i < graph->count; i++)
		if (graph->nodes[i].kind == HR__OP_PLACEHOLDER && graph->nodes[i].attrs.name == name) return &graph->nodes[i];
	return NULL;
}

hr_value hr_named_placeholder(const char *name, hr_dtype dtype, const int64_t *dims, int rank)
{
	hr_name full;
	const hr__graph *graph = hr__graph_current();
	if (hr__name_join(hr_name_scope_current(), name, "hr_named_placeholder", &full)) return HR_NO_VALUE;
	if (graph && find(graph, full)) {
		hr__fail(HR_ALREADY_EXISTS, "the graph has a placeholder \"%.200s\" already; hr_graph_find_placeholder gives it", hr_name_text(full));
		return HR_NO_VALUE;
	}
	return add(hr_name_text(full), dtype, dims, rank, full);
}

/* "there is no placeholder "y"; those with names are "x", "tower/x"", truncated to the buffer. */
static hr_status not_there(const hr__graph *graph, const char *name)
{
	char names[400];
	size_t used = 0;
	names[0] = 0;
	for (uint32_t i = 0; i < graph->count && used < sizeof names; i++) {
		const struct graph_node *node = &graph->nodes[i];
		if (node->kind != HR__OP_PLACEHOLDER || !node->attrs.name) continue;
		used += (size_t)snprintf(names + used, sizeof names - used, "%s\"%.100s\"", used ? ", " : "", hr_name_text(node->attrs.name));
	}
	if (!used) return hr__fail(HR_INVALID_ARGUMENT, "there is no placeholder \"%.200s\"; no placeholder of the graph has a name", name);
	return hr__fail(HR_INVALID_ARGUMENT, "there is no placeholder \"%.200s\"; those with names are %s%s", name, names,
	                used < sizeof names ? "" : "...");
}

hr_status hr_graph_find_placeholder(hr_graph handle, const char *name, hr_value *out)
{
	hr__graph *graph;
	if (!name || !*name || !out) return hr__fail(HR_INVALID_ARGUMENT, "hr_graph_find_placeholder: the name or out is NULL");
	hr_status status = hr__graph_begin_run(NULL, handle, &graph); /* no thread can add nodes meanwhile */
	if (status) return status;
	hr_name full = hr_name_intern(name);
	const struct graph_node *node = full == HR_NAME_OTHER ? NULL : find(graph, full);
	if (node) *out = node->first;
	else status = not_there(graph, name);
	hr__graph_end_run(graph);
	return status;
}

/* ---- feeds from host memory ---- */

static hr_status check_array(const hr__value *place, const void *data, size_t bytes)
{
	char shape[HR__DIMS_TEXT];
	uint64_t there = hr__type_bytes(&place->type);
	if (!place->graph) return hr__fail(HR_INVALID_ARGUMENT, "the value fed is not a placeholder");
	if (there != bytes)
		return hr__fail(HR_INVALID_ARGUMENT, "%zu bytes given for a placeholder of %s %s, which has %llu", bytes, hr_dtype_text(place->type.dtype),
		                hr__dims_text(&place->type.dims, shape, sizeof shape), (unsigned long long)there);
	return data || !bytes ? HR_OK : hr__fail(HR_INVALID_ARGUMENT, "data is NULL");
}

/* Makes a constant in [session], regardless of the thread's current graph and session. */
static hr_value value_of(hr__session *session, const hr__type *type, const void *data)
{
	hr__attrs attrs = { .dtype = type->dtype, .dims = type->dims, .data = data };
	hr_name scope = hr_name_scope_current();
	hr__task task = { .session = session, .kind = HR__OP_CONSTANT, .attrs = &attrs, .scope = scope, .role = HR__ACTIVATIONS };
	hr__slot slot = { .type = *type };
	if (hr__execute_plain(&task, NULL, 0, &slot)) return HR_NO_VALUE;
	return hr__value_new(&(hr__value){ .type = *type, .session = session, .buffer = slot.buffer, .op = hr_name_intern(hr__ops[HR__OP_CONSTANT].name),
	                                   .scope = scope });
}

hr_feed hr_feed_from_array(hr_session handle, hr_value placeholder, const void *data, size_t bytes)
{
	hr_status status;
	hr__value place;
	hr_feed feed = { placeholder, HR_NO_VALUE };
	hr__session *session = hr__session_of(handle, &status);
	if (session) status = hr__value_get(placeholder, &place);
	if (!status) status = check_array(&place, data, bytes);
	if (!status) feed.value = value_of(session, &place.type, data);
	if (!feed.value.id) hr__fail_in(hr_last_status(), "hr_feed_from_array");
	return feed;
}
