/* plan_search.h - every plan of moves for a tiny step. */
#ifndef HR_TESTS_LMS_PLAN_SEARCH_H
#define HR_TESTS_LMS_PLAN_SEARCH_H

#include "plan_model.h"

#define TINY_GAPS 8
#define TINY_STEPS 12

typedef struct search {
	const model *m;
	hr__plan_move gaps[TINY_GAPS], moves[TINY_GAPS]; /* gaps: only out_after and needed_by */
	uint32_t gap_count, move_count;
	uint64_t bound; /* of a step */
	uint64_t best_ns, best_bytes, plans;
} search;

static void find_gaps(search *s)
{
	const model *m = s->m;
	uint32_t n = m->step.op_count;
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		for (uint32_t i = 0; i < n; i++) {
			uint32_t to = (i + 1) % n;
			if (!m->used[i][t] || m->tensors[t].never_evict || (to == 0 && !model_is_cyclic(m, t))) continue;
			while (!m->used[to][t] && (to != 0 || model_is_cyclic(m, t))) to = (to + 1) % n;
			if (!m->used[to][t] || to == (i + 1) % n || (to <= i && !model_is_cyclic(m, t))) continue;
			if (s->gap_count < TINY_GAPS) s->gaps[s->gap_count] = (hr__plan_move){ .tensor = t, .out_after = i, .needed_by = to };
			s->gap_count++;
		}
	}
}

/* Checks the bound, which is for the average step. Plans whose last steps differ in time are skipped. */
static void try_moves(search *s)
{
	const model *m = s->m;
	uint64_t ends[TINY_STEPS], bytes = 0;
	if (model_peak(m, s->moves, s->move_count) > m->machine.memory) return;
	for (uint32_t k = 0; k < s->move_count; k++) {
		hr__plan_move *move = &s->moves[k];
		uint32_t written = move->out_after;
		bool early = move->copy_after != 0;
		move->clean = model_is_clean(m, s->moves, s->move_count, move, &written);
		move->copy_after = early ? written : move->out_after;
		bytes += m->tensors[move->tensor].bytes * (move->clean ? 1 : 2);
	}
	model_run(m, s->moves, s->move_count, TINY_STEPS, ends);
	uint64_t last = ends[TINY_STEPS - 1] - ends[TINY_STEPS - 2];
	s->plans++;
	if (bytes < s->best_bytes) s->best_bytes = bytes;
	if (last != ends[TINY_STEPS - 2] - ends[TINY_STEPS - 3] || last != ends[TINY_STEPS - 3] - ends[TINY_STEPS - 4]) return;
	CHECK_GE(last, s->bound);
	if (last < s->best_ns) s->best_ns = last;
}

static void try_gap(search *s, uint32_t k)
{
	if (k == s->gap_count) {
		hr__plan_move kept[TINY_GAPS];
		memcpy(kept, s->moves, sizeof kept);
		try_moves(s);
		memcpy(s->moves, kept, sizeof kept);
		return;
	}
	uint32_t n = s->m->step.op_count;
	try_gap(s, k + 1);
	for (uint32_t i = (s->gaps[k].out_after + 2) % n;; i = (i + 1) % n) {
		for (uint32_t early = 0; early < 2; early++) {
			hr__plan_move move = s->gaps[k];
			move.in_before = i;
			move.copy_after = early;
			s->moves[s->move_count++] = move;
			try_gap(s, k + 1);
			s->move_count--;
		}
		if (i == s->gaps[k].needed_by) break;
	}
}

/* Whether there are at most [most] plans. */
static bool is_small_enough(const search *s, double most)
{
	double plans = 1;
	if (s->gap_count > TINY_GAPS) return false;
	for (uint32_t k = 0; k < s->gap_count; k++) {
		uint32_t n = s->m->step.op_count, from = s->gaps[k].out_after, to = s->gaps[k].needed_by;
		plans *= 1 + 2 * (double)((to + n - from - 1) % n);
	}
	return plans <= most;
}

#endif
