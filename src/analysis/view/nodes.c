/* nodes.c - see nodes.h. */
#include "analysis/view/nodes.h"

#include <string.h>

#include "core/os/os.h"
#include "analysis/capture/finder.h"

typedef struct node_maker {
	const hr__selection *selection;
	hr__nodes *nodes;
	uint32_t *of_name; /* by name: node + 1 */
	hr__slots slots;   /* nodes by their path */
} node_maker;

/* ---- nodes ---- */

static hr_status add_node(node_maker *m, uint64_t path, uint32_t parent, uint32_t *out)
{
	hr__nodes *nodes = m->nodes;
	int error = nodes->count < nodes->capacity ? 0 : hr__os_grow(&nodes->nodes, &nodes->capacity, sizeof *nodes->nodes, 64);
	if (error) return hr__os_fail(error, "looking at a profile");
	*out = nodes->count++;
	nodes->nodes[*out] = (hr__node){ .path = path, .parent = parent, .depth = *out ? nodes->nodes[parent].depth + 1 : 0 };
	return HR_OK;
}

static uint32_t hash_text(const hr__slots *slots, const char *text, size_t length)
{
	uint64_t a = 0, b = length;
	for (size_t i = 0; i < length; i++) {
		a = (a ^ (unsigned char)text[i]) * 0x100000001B3u;
		b = b * 31 + (unsigned char)text[i];
	}
	return hr__finder_hash(slots, a, b);
}

/* Finds or adds the node for the first [length] bytes of a scope's name, below [parent]. */
static hr_status find_child(node_maker *m, hr_name name, size_t length, uint32_t parent, uint32_t *out)
{
	const char *text = hr_name_text(name);
	uint32_t hash = hash_text(&m->slots, text, length);
	for (uint32_t at = hr__slots_first(&m->slots, hash); hr__slots_holds(&m->slots, hash, &at); at++) {
		uint64_t path = m->nodes->nodes[m->slots.slots[at].item - 1].path;
		if (path >> 32 != length || memcmp(hr_name_text((hr_name)path), text, length) != 0) continue;
		*out = m->slots.slots[at].item - 1;
		return HR_OK;
	}
	hr_status status = hr__slots_reserve(&m->slots);
	if (!status) status = add_node(m, hr__path_cell(name, length), parent, out);
	if (!status) hr__slots_add(&m->slots, hash, *out);
	return status;
}

/* "model/layer_1/dense" gives nodes for model, model/layer_1 and model/layer_1/dense. */
static hr_status node_of_scope(node_maker *m, hr_name name, uint32_t *out)
{
	const char *text = hr_name_text(name), *end = text;
	hr_status status = HR_OK;
	*out = 0;
	for (int depth = 0; *end && depth < HR__NODE_DEPTH_MAX && !status; depth++) {
		end = strchr(end + 1, '/');
		if (!end) end = text + strlen(text);
		status = find_child(m, name, (size_t)(end - text), *out, out);
	}
	return status;
}

/* Finds or adds the node of a name. Op names are not paths: their nodes are children of node 0. */
static hr_status node_of(node_maker *m, hr__node_kind kind, hr_name name, uint32_t *out)
{
	hr_status status = HR_OK;
	if (m->of_name[name]) {
		*out = m->of_name[name] - 1;
		return HR_OK;
	}
	if (kind == HR__NODES_BY_OP) status = add_node(m, hr__path_cell(name, strlen(hr_name_text(name))), 0, out);
	else status = node_of_scope(m, name, out);
	if (!status) m->of_name[name] = *out + 1;
	return status;
}

static hr_status make_nodes(node_maker *m, hr__node_kind kind)
{
	const hr__capture *c = m->selection->capture;
	uint32_t node;
	hr_status status = add_node(m, 0, 0, &node);
	for (uint32_t i = 0; i < c->site_count && !status; i++)
		if (m->selection->takes_site[i]) status = node_of(m, kind, kind == HR__NODES_BY_OP ? c->sites[i].op : c->sites[i].scope, &node);
	for (uint32_t i = 0; i < c->op_count && !status; i++)
		if (hr__selects_op(m->selection, i)) status = node_of(m, kind, kind == HR__NODES_BY_OP ? c->ops[i].op : c->ops[i].scope, &node);
	return status;
}

/* ---- memory ---- */

static void change_live(hr__node *nodes, uint32_t node, uint64_t bytes, bool frees)
{
	nodes[node].self_live = frees ? nodes[node].self_live - bytes : nodes[node].self_live + bytes;
	for (;; node = nodes[node].parent) {
		nodes[node].live = frees ? nodes[node].live - bytes : nodes[node].live + bytes;
		if (nodes[node].live > nodes[node].peak_bytes) nodes[node].peak_bytes = nodes[node].live;
		if (node == 0) return;
	}
}

static void count_change(const hr__selection *s, hr__node *node, const hr__change *change)
{
	uint64_t bytes = s->capture->allocations[change->allocation].bytes;
	bool is_new = hr__allocation_birth(s->capture, change->allocation) >= s->first_allocation;
	if (is_new) node->self.residual_bytes += change->frees ? 0 - bytes : bytes;
	if (change->frees) return;
	node->self.bytes += bytes;
	node->self.allocations++;
}

static void begin_window(hr__nodes *nodes)
{
	for (uint32_t i = 0; i < nodes->count; i++) {
		nodes->nodes[i].peak_bytes = nodes->nodes[i].live;
		nodes->nodes[i].self.at_peak_bytes = nodes->nodes[i].self_live;
	}
}

static void count_memory(node_maker *m, hr__node_kind kind)
{
	const hr__selection *s = m->selection;
	const hr__capture *c = s->capture;
	hr__nodes *nodes = m->nodes;
	for (uint32_t i = 0; i < s->last_change; i++) {
		const hr__change *change = &c->changes[i];
		const hr__site *site = &c->sites[c->allocations[change->allocation].site];
		if (i == s->first_change) begin_window(nodes);
		if (s->takes_site[site - c->sites]) {
			uint32_t node = m->of_name[kind == HR__NODES_BY_OP ? site->op : site->scope] - 1;
			change_live(nodes->nodes, node, c->allocations[change->allocation].bytes, change->frees);
			if (i >= s->first_change) count_change(s, &nodes->nodes[node], change);
		}
		if (i < s->first_change || i != s->device_peak_change) continue;
		for (uint32_t k = 0; k < nodes->count; k++) nodes->nodes[k].self.at_peak_bytes = nodes->nodes[k].self_live;
	}
	if (s->first_change == s->last_change) begin_window(nodes);
	for (uint32_t k = 0; k < nodes->count; k++) nodes->nodes[k].self.end_bytes = nodes->nodes[k].self_live;
}

/* ---- ops ---- */

static uint64_t add_capped(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX / 4 - (b < UINT64_MAX / 4 ? b : UINT64_MAX / 4) ? UINT64_MAX / 4 : a + b;
}

static void count_ops(node_maker *m, hr__node_kind kind)
{
	const hr__selection *s = m->selection;
	const hr__capture *c = s->capture;
	for (uint32_t i = 0; i < c->op_count; i++) {
		if (!hr__selects_op(s, i)) continue;
		hr__node_sums *sums = &m->nodes->nodes[m->of_name[kind == HR__NODES_BY_OP ? c->ops[i].op : c->ops[i].scope] - 1].self;
		sums->occurrence++;
		sums->ns = add_capped(sums->ns, hr__op_ns(s, i));
		sums->device_ns += c->ops[i].device_ns;
	}
	for (uint32_t i = 0; i < c->use_count; i++) {
		const hr__capture_use *use = &c->uses[i];
		if (use->op == HR__NONE || !hr__selects_op(s, use->op)) continue;
		hr__node_sums *sums = &m->nodes->nodes[m->of_name[kind == HR__NODES_BY_OP ? c->ops[use->op].op : c->ops[use->op].scope] - 1].self;
		uint64_t bytes = c->allocations[use->allocation].bytes;
		if (use->writes) sums->output_bytes = add_capped(sums->output_bytes, bytes);
		else sums->input_bytes = add_capped(sums->input_bytes, bytes);
	}
}

/* ---- sums ---- */

static void add_sums(hr__node_sums *to, const hr__node_sums *from)
{
	to->bytes += from->bytes;
	to->allocations += from->allocations;
	to->residual_bytes += from->residual_bytes;
	to->at_peak_bytes += from->at_peak_bytes;
	to->end_bytes += from->end_bytes;
	to->occurrence += from->occurrence;
	to->ns = add_capped(to->ns, from->ns);
	to->device_ns += from->device_ns;
	to->input_bytes = add_capped(to->input_bytes, from->input_bytes);
	to->output_bytes = add_capped(to->output_bytes, from->output_bytes);
}

/* Children come after their parents, so the loop runs backwards. */
static void add_up(hr__nodes *nodes)
{
	for (uint32_t i = nodes->count; i-- > 0;) {
		hr__node *node = &nodes->nodes[i];
		add_sums(&node->total, &node->self);
		if (i) add_sums(&nodes->nodes[node->parent].total, &node->total);
	}
}

hr_status hr__nodes_make(const hr__selection *selection, hr__node_kind kind, hr__nodes *out)
{
	node_maker m = { .selection = selection, .nodes = out };
	hr_status status = HR_OK;
	*out = (hr__nodes){ 0 };
	m.slots.salt = hr__ticks();
	m.of_name = hr__view_alloc(selection->names, sizeof *m.of_name, &status);
	if (!status) status = make_nodes(&m, kind);
	if (!status) {
		count_memory(&m, kind);
		count_ops(&m, kind);
		add_up(out);
	}
	hr__slots_free(&m.slots);
	hr__view_free(m.of_name, selection->names, sizeof *m.of_name);
	if (status) hr__nodes_free(out);
	return status;
}

void hr__nodes_free(hr__nodes *nodes)
{
	hr__view_free(nodes->nodes, nodes->capacity, sizeof *nodes->nodes);
	*nodes = (hr__nodes){ 0 };
}
