/* lms_fewest.h - a lower bound of the bytes that any plan of Large Model Support moves in a step, out and in together.
 *
 * It is the optimum of the linear program in which tensors may be evicted in parts. At each op, the evicted bytes are at least the
 * excess over the limit. An eviction costs the tensor's bytes for the restore. Of the gaps between two writes, which can share one
 * copy out, one gap also pays for that copy. A gap around the end of the step counts as two gaps that share the price. The rows are
 * intervals, so the program is a minimum-cost flow along the ops. */
#ifndef HR_BENCH_LMS_FEWEST_H
#define HR_BENCH_LMS_FEWEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/lms/plan/plan.h"
#include "lms_trace.h"

/* ---- minimum-cost flow: shortest paths with potentials ---- */

typedef struct arc {
	uint32_t to, next;
	int64_t room;
	double cost;
} arc;

typedef struct network {
	arc *arcs; /* 2k and 2k + 1 are the two directions of one arc */
	uint32_t *first, *via, *heap, *place;
	double *potential, *distance;
	int64_t *excess;
	uint32_t nodes, count, heap_count;
} network;

#define NONE UINT32_MAX

static network network_make(uint32_t nodes, uint32_t most_arcs)
{
	network w = { .nodes = nodes };
	w.arcs = lms_must(calloc(2 * (size_t)most_arcs, sizeof *w.arcs));
	w.first = lms_must(calloc(nodes, sizeof *w.first));
	w.via = lms_must(calloc(nodes, sizeof *w.via));
	w.heap = lms_must(calloc(nodes, sizeof *w.heap));
	w.place = lms_must(calloc(nodes, sizeof *w.place));
	w.potential = lms_must(calloc(nodes, sizeof *w.potential));
	w.distance = lms_must(calloc(nodes, sizeof *w.distance));
	w.excess = lms_must(calloc(nodes, sizeof *w.excess));
	for (uint32_t v = 0; v < nodes; v++) w.first[v] = NONE;
	return w;
}

static void network_free(network *w)
{
	free(w->arcs);
	free(w->first);
	free(w->via);
	free(w->heap);
	free(w->place);
	free(w->potential);
	free(w->distance);
	free(w->excess);
}

static void add_arc(network *w, uint32_t from, uint32_t to, int64_t room, double cost)
{
	w->arcs[w->count] = (arc){ to, w->first[from], room, cost };
	w->first[from] = w->count++;
	w->arcs[w->count] = (arc){ from, w->first[to], 0, -cost };
	w->first[to] = w->count++;
}

static void heap_set(network *w, uint32_t at, uint32_t node)
{
	w->heap[at] = node;
	w->place[node] = at;
}

static void heap_up(network *w, uint32_t node)
{
	uint32_t at = w->place[node];
	while (at > 0 && w->distance[w->heap[(at - 1) / 2]] > w->distance[node]) {
		heap_set(w, at, w->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	heap_set(w, at, node);
}

static uint32_t heap_take(network *w)
{
	uint32_t top = w->heap[0], last = w->heap[--w->heap_count], at = 0;
	w->place[top] = NONE - 1;
	if (w->heap_count == 0) return top;
	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= w->heap_count) break;
		if (child + 1 < w->heap_count && w->distance[w->heap[child + 1]] < w->distance[w->heap[child]]) child++;
		if (w->distance[w->heap[child]] >= w->distance[last]) break;
		heap_set(w, at, w->heap[child]);
		at = child;
	}
	heap_set(w, at, last);
	return top;
}

static void reach(network *w, uint32_t node, double distance, uint32_t via)
{
	if (w->place[node] == NONE - 1 || (w->place[node] != NONE && w->distance[node] <= distance)) return;
	w->distance[node] = distance;
	w->via[node] = via;
	if (w->place[node] == NONE) w->place[node] = w->heap_count++;
	heap_up(w, node);
}

/* Finds the nearest node with negative excess from those with positive excess; NONE if there is none. Updates the potentials. */
static uint32_t nearest_lack(network *w)
{
	uint32_t found = NONE;
	w->heap_count = 0;
	for (uint32_t v = 0; v < w->nodes; v++) w->place[v] = NONE;
	for (uint32_t v = 0; v < w->nodes; v++)
		if (w->excess[v] > 0) reach(w, v, 0, NONE);
	while (w->heap_count > 0) {
		uint32_t v = heap_take(w);
		if (w->excess[v] < 0) {
			found = v;
			break;
		}
		for (uint32_t a = w->first[v]; a != NONE; a = w->arcs[a].next) {
			if (w->arcs[a].room == 0) continue;
			double reduced = w->arcs[a].cost + w->potential[v] - w->potential[w->arcs[a].to];
			reach(w, w->arcs[a].to, w->distance[v] + (reduced > 0 ? reduced : 0), a);
		}
	}
	if (found == NONE) return NONE;
	for (uint32_t v = 0; v < w->nodes; v++) w->potential[v] += w->place[v] == NONE - 1 ? w->distance[v] : w->distance[found];
	return found;
}

static double least_cost(network *w)
{
	double cost = 0;
	for (uint32_t to; (to = nearest_lack(w)) != NONE;) {
		int64_t amount = -w->excess[to];
		uint32_t v = to;
		for (; w->via[v] != NONE; v = w->arcs[w->via[v] ^ 1].to)
			if (w->arcs[w->via[v]].room < amount) amount = w->arcs[w->via[v]].room;
		if (w->excess[v] < amount) amount = w->excess[v];
		w->excess[v] -= amount;
		w->excess[to] += amount;
		for (v = to; w->via[v] != NONE; v = w->arcs[w->via[v] ^ 1].to) {
			w->arcs[w->via[v]].room -= amount;
			w->arcs[w->via[v] ^ 1].room += amount;
			cost += (double)amount * w->arcs[w->via[v]].cost;
		}
	}
	return cost;
}

/* ---- fewest bytes ---- */

typedef struct uses_of {
	uint32_t *at;
	bool *wrote;
	uint32_t count;
} uses_of;

/* The uses of each tensor. */
static uses_of *sort_uses(const hr__plan_step *step)
{
	uses_of *of = lms_must(calloc(step->tensor_count + 1, sizeof *of));
	for (uint32_t u = 0; u < step->use_count; u++) of[step->uses[u].tensor].count++;
	for (uint32_t t = 0; t < step->tensor_count; t++) {
		of[t].at = lms_must(calloc(of[t].count + 1, sizeof *of[t].at));
		of[t].wrote = lms_must(calloc(of[t].count + 1, sizeof *of[t].wrote));
		of[t].count = 0;
	}
	for (uint32_t i = 0; i < step->op_count; i++) {
		uint32_t end = i + 1 < step->op_count ? step->ops[i + 1].first_use : step->use_count;
		for (uint32_t u = step->ops[i].first_use; u < end; u++) {
			uses_of *x = &of[step->uses[u].tensor];
			x->wrote[x->count] = step->uses[u].write || (x->count == 0 && !step->tensors[step->uses[u].tensor].lived_before);
			x->at[x->count++] = i;
		}
	}
	return of;
}

static void free_uses(uses_of *of, uint32_t tensors)
{
	for (uint32_t t = 0; t < tensors; t++) {
		free(of[t].at);
		free(of[t].wrote);
	}
	free(of);
}

static bool is_cyclic(const hr__plan_tensor *tensor)
{
	return tensor->lived_before && tensor->died == HR__PLAN_NEVER;
}

/* The linear program of a step at a limit. */
typedef struct program {
	const hr__plan_step *step;
	const uses_of *of;
	double *before; /* indexed by op: sum of the excess at earlier ops */
	int64_t *excess;
	network network;
} program;

/* The excess in the gap after use [k]: at ops up to the end of the step, and in the next step. */
static void weigh_gap(const program *p, const uses_of *x, uint32_t k, double *now, double *next)
{
	uint32_t from = x->at[k] + 1, to = k + 1 < x->count ? x->at[k + 1] : x->at[0], n = p->step->op_count;
	*now = p->before[k + 1 < x->count ? to : n] - p->before[from];
	*next = k + 1 < x->count ? 0 : p->before[to];
}

/* Of the gaps between two writes, one pays for the copy out; any choice gives a lower bound. This takes the gap with the most
 * excess. Returns whether that is the gap after use [k]. */
static bool pays_for_copy(const program *p, const uses_of *x, uint32_t k, bool cyclic)
{
	uint32_t all = x->count, begin = k, best = NONE;
	double most = -1;
	for (uint32_t steps = 0; !x->wrote[begin] && !(begin == 0 && !cyclic); steps++) {
		if (steps == all) return false; /* never written: the host copy stays valid */
		begin = (begin + all - 1) % all;
	}
	for (uint32_t j = begin;;) {
		double now, next;
		if (j + 1 == all && !cyclic) break;
		weigh_gap(p, x, j, &now, &next);
		if (now + next > most) {
			most = now + next;
			best = j;
		}
		j = (j + 1) % all;
		if (x->wrote[j] || j == begin) break;
	}
	return best == k;
}

static void add_gap(program *p, uint32_t t, uint32_t k, bool cyclic)
{
	const uses_of *x = &p->of[t];
	int64_t bytes = (int64_t)p->step->tensors[t].bytes;
	double price = pays_for_copy(p, x, k, cyclic) ? 2 : 1, now, next;
	uint32_t from = x->at[k] + 1, n = p->step->op_count;
	weigh_gap(p, x, k, &now, &next);
	if (k + 1 < x->count) {
		if (from < x->at[k + 1]) add_arc(&p->network, from, x->at[k + 1], bytes, price);
		return;
	}
	/* Two parts share the price; if one part has no excess, the other bears all of it. */
	double share = next == 0 ? 1 : now == 0 ? 0 : 0.5;
	if (from < n) add_arc(&p->network, from, n, bytes, price * share);
	if (x->at[0] > 0) add_arc(&p->network, 0, x->at[0], bytes, price * (1 - share));
}

static void find_excess(program *p, uint64_t memory)
{
	const hr__plan_step *step = p->step;
	int64_t occupied = (int64_t)step->other_bytes;
	for (uint32_t t = 0; t < step->tensor_count; t++) {
		const hr__plan_tensor *tensor = &step->tensors[t];
		p->excess[tensor->lived_before || p->of[t].count == 0 ? 0 : p->of[t].at[0]] += (int64_t)tensor->bytes;
		if (tensor->died != HR__PLAN_NEVER) p->excess[tensor->died + 1] -= (int64_t)tensor->bytes;
	}
	for (uint32_t i = 0; i < step->op_count; i++) {
		occupied += p->excess[i];
		p->excess[i] = occupied > (int64_t)memory ? occupied - (int64_t)memory : 0;
		p->before[i + 1] = p->before[i] + (double)p->excess[i];
	}
}

static inline double lms_fewest_bytes(const hr__plan_step *step, uint64_t memory)
{
	uint32_t n = step->op_count;
	uses_of *of = sort_uses(step);
	program p = { .step = step, .of = of, .network = network_make(n + 1, n + 2 * step->use_count + 1) };
	p.before = lms_must(calloc(n + 2, sizeof *p.before));
	p.excess = lms_must(calloc(n + 2, sizeof *p.excess));
	find_excess(&p, memory);
	for (uint32_t t = 0; t < step->tensor_count; t++) {
		bool cyclic = is_cyclic(&step->tensors[t]);
		if (step->tensors[t].never_evict) continue;
		for (uint32_t k = 0; k < of[t].count; k++)
			if (k + 1 < of[t].count || cyclic) add_gap(&p, t, k, cyclic);
	}
	for (uint32_t i = 0; i < n; i++) {
		add_arc(&p.network, i + 1, i, INT64_MAX / 4, 0);
		p.network.excess[i] = p.excess[i] - (i > 0 ? p.excess[i - 1] : 0);
	}
	p.network.excess[n] = -p.excess[n - 1];
	double cost = least_cost(&p.network);
	network_free(&p.network);
	free(p.before);
	free(p.excess);
	free_uses(of, step->tensor_count);
	return cost;
}

#endif
