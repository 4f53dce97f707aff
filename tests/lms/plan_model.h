/* plan_model.h - a second implementation of the planner's model, written from its description without regard to speed: which
 * tensors are resident at each op, whether a plan follows the rules, and how long a step takes with it. Also generates random
 * steps. */
#ifndef HR_TESTS_LMS_PLAN_MODEL_H
#define HR_TESTS_LMS_PLAN_MODEL_H

#include "core/lms/plan/plan.h"
#include "test.h"

#ifndef MODEL_OPS
#define MODEL_OPS 48
#define MODEL_TENSORS 48
#endif
#define MODEL_MOVES (MODEL_OPS * MODEL_TENSORS)

typedef struct model {
	hr__plan_op ops[MODEL_OPS];
	hr__plan_use uses[MODEL_OPS * MODEL_TENSORS];
	hr__plan_tensor tensors[MODEL_TENSORS];
	hr__plan_step step;
	hr__plan_machine machine;
	bool used[MODEL_OPS][MODEL_TENSORS], wrote[MODEL_OPS][MODEL_TENSORS];
} model;

/* ---- random steps ---- */

/* Makes ops from [first] to [last] use a tensor: always [first], each other one with probability 1 / [rarity]. */
static void model_use_between(model *m, uint32_t t, uint32_t first, uint32_t last, uint64_t rarity, uint64_t *seed)
{
	for (uint32_t i = first; i <= last; i++) {
		m->used[i][t] = i == first || hr_rand_below(seed, rarity) == 0;
		m->wrote[i][t] = m->used[i][t] && hr_rand_below(seed, 3) == 0;
	}
}

static void model_random_tensor(model *m, uint32_t t, uint64_t *seed)
{
	uint32_t n = m->step.op_count, a = (uint32_t)hr_rand_below(seed, n), b = (uint32_t)hr_rand_below(seed, n);
	uint32_t first = a < b ? a : b, last = a < b ? b : a;
	uint64_t kind = hr_rand_below(seed, 20);
	hr__plan_tensor *tensor = &m->tensors[t];
	*tensor = (hr__plan_tensor){ .bytes = 1 + hr_rand_below(seed, 100),
		                         .died = HR__PLAN_NEVER,
		                         .never_evict = hr_rand_below(seed, 12) == 0 };
	if (kind == 0) {
		tensor->lived_before = true; /* no op uses it */
		if (hr_rand_below(seed, 2) == 0) tensor->died = last;
		return;
	}
	tensor->lived_before = kind < 10;
	/* Used by some of the ops in its lifetime; a few tensors are destroyed after their last use. */
	model_use_between(m, t, first, last, 1 + hr_rand_below(seed, 6), seed);
	if (kind >= 12 || kind < 2) tensor->died = last + (uint32_t)hr_rand_below(seed, n - last);
}

static void model_finish(model *m)
{
	hr__plan_step *step = &m->step;
	step->use_count = 0;
	for (uint32_t i = 0; i < step->op_count; i++) {
		m->ops[i].first_use = step->use_count;
		for (uint32_t t = 0; t < step->tensor_count; t++)
			if (m->used[i][t]) m->uses[step->use_count++] = (hr__plan_use){ t, m->wrote[i][t] };
	}
	step->ops = m->ops;
	step->uses = m->uses;
	step->tensors = m->tensors;
}

HR_TEST_UNUSED static void model_random(model *m, uint32_t most_ops, uint32_t most_tensors, uint64_t *seed)
{
	memset(m, 0, sizeof *m);
	m->step.op_count = 1 + (uint32_t)hr_rand_below(seed, most_ops);
	m->step.tensor_count = (uint32_t)hr_rand_below(seed, most_tensors + 1);
	m->step.other_bytes = hr_rand_below(seed, 50);
	for (uint32_t i = 0; i < m->step.op_count; i++) m->ops[i].ns = hr_rand_below(seed, 4) == 0 ? 0 : hr_rand_below(seed, 1000);
	for (uint32_t t = 0; t < m->step.tensor_count; t++) model_random_tensor(m, t, seed);
	model_finish(m);
	m->machine.out_bytes_per_s = 1000000000 / (1 + hr_rand_below(seed, 30));
	m->machine.in_bytes_per_s = 1000000000 / (1 + hr_rand_below(seed, 30));
	m->machine.copy_ns = hr_rand_below(seed, 3) == 0 ? 0 : hr_rand_below(seed, 100);
}

/* ---- residency ---- */

static bool model_is_cyclic(const model *m, uint32_t t)
{
	return m->tensors[t].lived_before && m->tensors[t].died == HR__PLAN_NEVER;
}

static uint32_t model_first_use(const model *m, uint32_t t)
{
	for (uint32_t i = 0; i < m->step.op_count; i++)
		if (m->used[i][t]) return i;
	return HR__PLAN_NEVER;
}

static bool model_lives_at(const model *m, uint32_t t, uint32_t op)
{
	uint32_t first = model_first_use(m, t);
	bool made = m->tensors[t].lived_before || first == HR__PLAN_NEVER || first <= op;
	return made && (m->tensors[t].died == HR__PLAN_NEVER || op <= m->tensors[t].died);
}

/* Whether a tensor may be evicted during op [op]: the op is between two uses and does not use the tensor. */
static bool model_may_be_away(const model *m, uint32_t t, uint32_t op)
{
	uint32_t n = m->step.op_count, first = HR__PLAN_NEVER, last = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (!m->used[i][t]) continue;
		if (first == HR__PLAN_NEVER) first = i;
		last = i;
	}
	if (first == HR__PLAN_NEVER || m->tensors[t].never_evict || m->used[op][t]) return false;
	return model_is_cyclic(m, t) || (first < op && op < last);
}

HR_TEST_UNUSED static uint64_t model_least(const model *m)
{
	uint64_t least = 0;
	for (uint32_t i = 0; i < m->step.op_count; i++) {
		uint64_t bytes = m->step.other_bytes;
		for (uint32_t t = 0; t < m->step.tensor_count; t++)
			if (model_lives_at(m, t, i) && !model_may_be_away(m, t, i)) bytes += m->tensors[t].bytes;
		if (bytes > least) least = bytes;
	}
	return least;
}

static bool model_is_away(const model *m, const hr__plan_move *move, uint32_t op)
{
	uint32_t n = m->step.op_count;
	for (uint32_t i = (move->out_after + 1) % n; i != move->in_before; i = (i + 1) % n)
		if (i == op) return true;
	return false;
}

static uint64_t model_occupied(const model *m, const hr__plan_move *moves, uint32_t count, uint32_t op)
{
	uint64_t bytes = m->step.other_bytes;
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (model_lives_at(m, t, op)) bytes += m->tensors[t].bytes;
	for (uint32_t k = 0; k < count; k++)
		if (model_is_away(m, &moves[k], op)) bytes -= m->tensors[moves[k].tensor].bytes;
	return bytes;
}

static uint64_t model_peak(const model *m, const hr__plan_move *moves, uint32_t count)
{
	uint64_t peak = 0;
	for (uint32_t i = 0; i < m->step.op_count; i++) {
		uint64_t bytes = model_occupied(m, moves, count, i);
		if (bytes > peak) peak = bytes;
	}
	return peak;
}

/* ---- validity of host copies ---- */

static const hr__plan_move *model_move_after(const hr__plan_move *moves, uint32_t count, uint32_t tensor, uint32_t op)
{
	for (uint32_t k = 0; k < count; k++)
		if (moves[k].tensor == tensor && moves[k].out_after == op) return &moves[k];
	return NULL;
}

/* Goes back in time from a move to the tensor's last event. True if that was another copy; else *written gets the op that wrote the
 * tensor, or since which it is unchanged. */
static bool model_is_clean(const model *m, const hr__plan_move *moves, uint32_t count, const hr__plan_move *move, uint32_t *written)
{
	uint32_t t = move->tensor, n = m->step.op_count, i = move->out_after, first = model_first_use(m, t);
	for (uint32_t steps = 0; steps <= n; steps++, i = (i + n - 1) % n) {
		if (steps > 0 && model_move_after(moves, count, t, i) != NULL) return true;
		bool wrote = m->wrote[i][t] || (i == first && !m->tensors[t].lived_before) || (i == first && !model_is_cyclic(m, t));
		*written = i;
		if (wrote) return false;
	}
	return true;
}

/* ---- the rules ---- */

static void model_check_move(const model *m, const hr__plan *plan, const hr__plan_move *move)
{
	uint32_t n = m->step.op_count, t = move->tensor, written;
	bool back = false;
	CHECK_LT(t, m->step.tensor_count);
	CHECK_LT(move->out_after, n);
	CHECK_LT(move->in_before, n);
	CHECK_LT(move->needed_by, n);
	CHECK(!m->tensors[t].never_evict);
	CHECK(m->used[move->out_after][t]);
	CHECK(m->used[move->needed_by][t]);
	if (!model_is_cyclic(m, t)) CHECK_LT(move->out_after, move->needed_by);
	for (uint32_t i = (move->out_after + 1) % n;; i = (i + 1) % n) {
		if (i == move->in_before) back = true;
		if (i == move->needed_by) break;
		CHECK(!m->used[i][t]);
	}
	CHECK(back);
	CHECK_NE(move->in_before, (move->out_after + 1) % n); /* it would not have been evicted at all */
	CHECK_EQ(move->clean, model_is_clean(m, plan->moves, plan->move_count, move, &written));
	if (move->clean) return;
	/* It is copied after it was last written, or when it is evicted. */
	CHECK_LT(move->copy_after, n);
	CHECK(m->used[move->copy_after][t]);
	CHECK(move->copy_after == written || move->copy_after == move->out_after);
}

/* Recomputes the numbers that the plan states and compares them. */
static void model_check(const model *m, const hr__plan *plan)
{
	uint64_t out = 0, in = 0;
	for (uint32_t k = 0; k < plan->move_count; k++) {
		const hr__plan_move *move = &plan->moves[k];
		model_check_move(m, plan, move);
		CHECK(model_move_after(plan->moves, plan->move_count, move->tensor, move->out_after) == move);
		if (k > 0) CHECK_LE(plan->moves[k - 1].out_after, move->out_after);
		in += m->tensors[move->tensor].bytes;
		if (!move->clean) out += m->tensors[move->tensor].bytes;
	}
	CHECK_EQ(plan->bytes_out, out);
	CHECK_EQ(plan->bytes_in, in);
	CHECK_EQ(plan->peak_bytes, model_peak(m, plan->moves, plan->move_count));
	CHECK_LE(plan->peak_bytes, m->machine.memory);
}

/* ---- time ---- */

typedef struct model_time {
	const model *m;
	const hr__plan_move *moves;
	uint32_t count;
	uint64_t freed_when[64 * (MODEL_OPS + MODEL_MOVES)], freed_bytes[64 * (MODEL_OPS + MODEL_MOVES)];
	uint32_t freed;
	uint64_t copied[MODEL_MOVES], ready[MODEL_OPS];
	uint64_t compute, out, in;
} model_time;

static uint64_t model_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void model_give(model_time *s, uint64_t when, uint64_t bytes)
{
	if (bytes == 0) return;
	s->freed_when[s->freed] = when;
	s->freed_bytes[s->freed++] = bytes;
}

static uint64_t model_take(model_time *s, uint64_t bytes)
{
	uint64_t when = 0;
	while (bytes > 0) {
		uint32_t best = UINT32_MAX;
		for (uint32_t k = 0; k < s->freed; k++)
			if (best == UINT32_MAX || s->freed_when[k] < s->freed_when[best]) best = k;
		CHECK_NE(best, UINT32_MAX);
		uint64_t part = bytes < s->freed_bytes[best] ? bytes : s->freed_bytes[best];
		when = model_max(when, s->freed_when[best]);
		bytes -= part;
		s->freed_bytes[best] -= part;
		if (s->freed_bytes[best] > 0) continue;
		s->freed--;
		s->freed_when[best] = s->freed_when[s->freed];
		s->freed_bytes[best] = s->freed_bytes[s->freed];
	}
	return when;
}

static uint64_t model_copy_ns(const model *m, uint64_t bytes, uint64_t rate)
{
	return (bytes * 1000000000 + rate - 1) / rate + m->machine.copy_ns;
}

/* All restores that are requested before op [i], ordered by need, then by tensor. */
static void model_returns(model_time *s, uint32_t i)
{
	const model *m = s->m;
	uint32_t n = m->step.op_count;
	for (uint32_t far = 0; far < n; far++) {
		for (uint32_t t = 0; t < m->step.tensor_count; t++) {
			for (uint32_t k = 0; k < s->count; k++) {
				const hr__plan_move *move = &s->moves[k];
				if (move->tensor != t || move->in_before != i || (i + far) % n != move->needed_by) continue;
				uint64_t room = model_take(s, m->tensors[t].bytes);
				uint64_t start = model_max(s->in, model_max(room, move->clean ? 0 : s->copied[k]));
				s->in = start + model_copy_ns(m, m->tensors[t].bytes, m->machine.in_bytes_per_s);
				s->ready[move->needed_by] = model_max(s->ready[move->needed_by], s->in);
			}
		}
	}
}

static void model_op(model_time *s, uint32_t i)
{
	const model *m = s->m;
	uint64_t made = 0, room;
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (!m->tensors[t].lived_before && model_first_use(m, t) == i) made += m->tensors[t].bytes;
	room = model_take(s, made);
	s->compute = model_max(s->compute, model_max(room, s->ready[i])) + m->ops[i].ns;
	s->ready[i] = 0;
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (m->tensors[t].died == i) model_give(s, s->compute, m->tensors[t].bytes);
	for (uint32_t k = 0; k < s->count; k++) {
		const hr__plan_move *move = &s->moves[k];
		if (move->clean || move->copy_after != i) continue;
		s->out = model_max(s->out, s->compute) + model_copy_ns(m, m->tensors[move->tensor].bytes, m->machine.out_bytes_per_s);
		s->copied[k] = s->out;
	}
	for (uint32_t k = 0; k < s->count; k++) {
		const hr__plan_move *move = &s->moves[k];
		if (move->out_after != i) continue;
		model_give(s, move->clean ? s->compute : model_max(s->compute, s->copied[k]), m->tensors[move->tensor].bytes);
	}
}

/* Sets the end times of [steps] steps, at most 64. */
static void model_run(const model *m, const hr__plan_move *moves, uint32_t count, int steps, uint64_t *ends)
{
	static model_time s;
	uint32_t n = m->step.op_count;
	uint64_t start = model_occupied(m, moves, count, 0), made = 0, died = 0;
	s.m = m;
	s.moves = moves;
	s.count = count;
	s.freed = 0;
	s.compute = s.out = s.in = 0;
	memset(s.copied, 0, sizeof s.copied);
	memset(s.ready, 0, sizeof s.ready);
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (m->tensors[t].died != HR__PLAN_NEVER) died += m->tensors[t].bytes;
		if (m->tensors[t].lived_before) continue;
		made += m->tensors[t].bytes;
		if (model_first_use(m, t) == 0) start -= m->tensors[t].bytes;
	}
	/* Tensors restored right before the first op are still evicted when the step begins. */
	for (uint32_t k = 0; k < count; k++)
		if (moves[k].in_before == 0 && moves[k].out_after != n - 1) start -= m->tensors[moves[k].tensor].bytes;
	model_give(&s, 0, m->machine.memory - start);
	for (int step = 0; step < steps; step++) {
		for (uint32_t i = 0; i < n; i++) {
			model_returns(&s, i);
			model_op(&s, i);
		}
		if (made > died) model_give(&s, s.compute, made - died);
		else s.ready[0] = model_max(s.ready[0], model_take(&s, died - made));
		ends[step] = s.compute;
	}
}

#endif
