/* plan_turns_model.h - plans in which ops run again, checked without the planner's code: a plan is carried out turn by turn on
 * symbolic contents, and written as a step of its own whose moves, memory and time plan_model.h checks. */
#ifndef HR_TESTS_LMS_PLAN_TURNS_MODEL_H
#define HR_TESTS_LMS_PLAN_TURNS_MODEL_H

#define MODEL_OPS 96
#define MODEL_TENSORS 192
#include "plan_model.h"

#define TURNS_STEPS 3 /* steps that are carried out: the second begins as the first ended */

static bool model_creates(const model *m, uint32_t op, uint32_t t)
{
	return !m->tensors[t].lived_before && model_first_use(m, t) == op;
}

/* Whether running [op] again reads [t]. */
static bool model_reads_again(const model *m, uint32_t op, uint32_t t)
{
	return m->used[op][t] && !model_creates(m, op, t) && !m->wrote[op][t];
}

/* ---- symbolic contents ---- */

static uint64_t model_mix(uint64_t a, uint64_t b)
{
	uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2))) * 0xff51afd7ed558ccdu;
	return x ^ x >> 33;
}

/* What [op] computes from the contents of its inputs: an op that is not pure depends on the step, too. */
static uint64_t model_result(const model *m, uint32_t op, const uint64_t *contents, uint64_t step)
{
	uint64_t result = model_mix(op + 1, m->ops[op].pure ? 0 : step + 1);
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		bool read = m->ops[op].pure ? model_reads_again(m, op, t) : m->used[op][t] && !model_creates(m, op, t);
		if (read) result = model_mix(result, contents[t]);
	}
	return result;
}

/* Runs an op of the step. [seen] gets, by tensor, what it found. */
static void model_run_op(const model *m, uint32_t op, uint64_t *contents, uint64_t step, uint64_t *seen)
{
	uint64_t result = model_result(m, op, contents, step);
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (!m->used[op][t]) continue;
		seen[t] = model_creates(m, op, t) ? 0 : contents[t];
		if (model_creates(m, op, t)) contents[t] = model_mix(result, t);
		else if (m->wrote[op][t]) contents[t] = model_mix(model_mix(result, t), contents[t]);
	}
}

/* ---- carrying out a plan ---- */

typedef struct turns_run {
	const model *m;
	const hr__plan *plan;
	uint64_t contents[MODEL_TENSORS], plain[MODEL_TENSORS]; /* with the plan, and without */
	bool here[MODEL_TENSORS];   /* has contents: on the device, or on the host while a move has it away */
	bool exists[MODEL_TENSORS]; /* the program has created it, and not destroyed it */
} turns_run;

static bool turns_is_away(const turns_run *r, uint32_t t, uint32_t turn)
{
	for (uint32_t k = 0; k < r->plan->move_count; k++) {
		const hr__plan_move *move = &r->plan->moves[k];
		if (move->tensor != t || turn == move->out_after) continue;
		for (uint32_t i = (move->out_after + 1) % r->plan->turn_count; i != move->in_before; i = (i + 1) % r->plan->turn_count)
			if (i == turn) return true;
	}
	return false;
}

/* Whether a drop says that [t] is kept from [turn] on, which makes it again. */
static bool turns_is_back(const hr__plan *plan, uint32_t t, uint32_t turn)
{
	for (uint32_t k = 0; k < plan->drop_count; k++)
		if (plan->drops[k].tensor == t && plan->drops[k].back_at == turn) return true;
	return false;
}

static void turns_check_memory(const turns_run *r, uint32_t turn, uint64_t made)
{
	uint64_t bytes = r->m->step.other_bytes + made;
	for (uint32_t t = 0; t < r->m->step.tensor_count; t++) {
		/* A tensor without uses is there as long as the step. */
		bool unused = model_first_use(r->m, t) == HR__PLAN_NEVER;
		if ((r->here[t] || (unused && r->exists[t])) && !turns_is_away(r, t, turn)) bytes += r->m->tensors[t].bytes;
	}
	CHECK_LE(bytes, r->m->machine.memory);
}

static void turns_run_again(turns_run *r, uint32_t op, uint32_t turn, uint64_t step)
{
	const model *m = r->m;
	uint64_t made = 0, result = model_result(m, op, r->contents, step);
	CHECK(m->ops[op].pure);
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (model_reads_again(m, op, t)) {
			CHECK(r->here[t]);
			CHECK(!turns_is_away(r, t, turn));
		}
		if (model_creates(m, op, t)) made += m->tensors[t].bytes;
	}
	turns_check_memory(r, turn, made);
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (!turns_is_back(r->plan, t, turn)) continue;
		CHECK(model_creates(m, op, t));
		CHECK(!r->here[t]);
		r->here[t] = true;
		r->contents[t] = model_mix(result, t);
	}
}

static void turns_run_program(turns_run *r, uint32_t op, uint32_t turn, uint64_t step)
{
	const model *m = r->m;
	uint64_t seen[MODEL_TENSORS], plain_seen[MODEL_TENSORS], made = 0;
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (!m->used[op][t]) continue;
		if (model_creates(m, op, t)) {
			CHECK(!r->here[t]);
			made += m->tensors[t].bytes;
			continue;
		}
		CHECK(r->here[t]);
		CHECK(!turns_is_away(r, t, turn));
	}
	turns_check_memory(r, turn, made);
	model_run_op(m, op, r->contents, step, seen);
	model_run_op(m, op, r->plain, step, plain_seen);
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (!m->used[op][t]) continue;
		CHECK_EQ(seen[t], plain_seen[t]);
		r->here[t] = r->exists[t] = true;
	}
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (m->tensors[t].died == op) r->exists[t] = r->here[t] = false;
}

static void turns_drop(turns_run *r, uint32_t turn)
{
	for (uint32_t k = 0; k < r->plan->drop_count; k++) {
		const hr__plan_drop *drop = &r->plan->drops[k];
		if (drop->after != turn) continue;
		/* The program destroys a ghost for the first time by itself. */
		CHECK(r->here[drop->tensor] || drop->ghost);
		r->here[drop->tensor] = false;
	}
}

static void turns_begin_step(turns_run *r)
{
	for (uint32_t t = 0; t < r->m->step.tensor_count; t++) {
		bool lives = r->m->tensors[t].lived_before || model_first_use(r->m, t) == HR__PLAN_NEVER;
		r->here[t] = r->exists[t] = lives;
		/* Not the tensor of the step before. */
		if (lives && !model_is_cyclic(r->m, t)) r->contents[t] = r->plain[t] = t;
	}
}

/* Every op must find what it would find without the plan, in memory, and the memory must be enough. */
static void turns_carry_out(const model *m, const hr__plan *plan)
{
	static turns_run r;
	uint32_t op = 0;
	r = (turns_run){ .m = m, .plan = plan };
	for (uint32_t t = 0; t < m->step.tensor_count; t++) r.contents[t] = r.plain[t] = t;
	for (uint64_t step = 0; step < TURNS_STEPS; step++) {
		turns_begin_step(&r);
		op = 0;
		for (uint32_t i = 0; i < plan->turn_count; i++) {
			const hr__plan_turn *turn = &plan->turns[i];
			CHECK_EQ(turn->before, op);
			if (turn->again) turns_run_again(&r, turn->op, i, step);
			else {
				CHECK_EQ(turn->op, op);
				turns_run_program(&r, op++, i, step);
			}
			turns_drop(&r, i);
		}
		CHECK_EQ(op, m->step.op_count);
	}
}

/* ---- a plan as a step of its own ---- */

typedef struct turns_step {
	model m;
	hr__plan_move moves[MODEL_MOVES];
	hr__plan plan;                     /* its moves, with tensors of m */
	uint32_t original[MODEL_TENSORS];  /* by tensor of m */
	uint32_t current[MODEL_TENSORS];   /* by tensor of the original step: its tensor of m now */
} turns_step;

static uint32_t turns_add(turns_step *s, const model *m, uint32_t t, bool lived_before)
{
	uint32_t k = s->m.step.tensor_count++;
	CHECK_LT(k, (uint32_t)MODEL_TENSORS);
	s->m.tensors[k] = (hr__plan_tensor){ m->tensors[t].bytes, HR__PLAN_NEVER, lived_before, m->tensors[t].never_evict };
	s->original[k] = t;
	return k;
}

static void turns_add_turn(turns_step *s, const model *m, const hr__plan *plan, uint32_t i)
{
	uint32_t op = plan->turns[i].op;
	bool again = plan->turns[i].again;
	s->m.ops[i].ns = m->ops[op].ns;
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (!m->used[op][t]) continue;
		bool creates = model_creates(m, op, t);
		if (again && !creates && !model_reads_again(m, op, t)) continue;
		uint32_t k = s->current[t];
		if (creates) {
			k = turns_add(s, m, t, false);
			s->m.tensors[k].died = again && !turns_is_back(plan, t, i) ? i : HR__PLAN_NEVER;
			if (!again || turns_is_back(plan, t, i)) s->current[t] = k;
		}
		s->m.used[i][k] = true;
		s->m.wrote[i][k] = creates || m->wrote[op][t];
	}
	for (uint32_t k = 0; k < plan->drop_count; k++)
		if (plan->drops[k].after == i) s->m.tensors[s->current[plan->drops[k].tensor]].died = i;
	for (uint32_t t = 0; t < m->step.tensor_count && !again; t++)
		if (m->tensors[t].died == op) s->m.tensors[s->current[t]].died = i;
	for (uint32_t k = 0; k < plan->move_count; k++)
		if (plan->moves[k].out_after == i) s->moves[k].tensor = s->current[plan->moves[k].tensor];
}

/* A plan without turns is one for the step itself. */
static void turns_make_step(turns_step *s, const model *m, const hr__plan *plan)
{
	memset(&s->m, 0, sizeof s->m);
	s->plan = *plan;
	s->plan.moves = s->moves;
	s->m.machine = m->machine;
	s->m.step.other_bytes = m->step.other_bytes;
	s->m.step.op_count = plan->turn_count;
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (m->tensors[t].lived_before || model_first_use(m, t) == HR__PLAN_NEVER)
			s->current[t] = turns_add(s, m, t, m->tensors[t].lived_before);
	CHECK_LE(plan->turn_count, MODEL_OPS);
	for (uint32_t k = 0; k < plan->move_count; k++) s->moves[k] = plan->moves[k];
	for (uint32_t i = 0; i < plan->turn_count; i++) turns_add_turn(s, m, plan, i);
	model_finish(&s->m);
}

#endif
