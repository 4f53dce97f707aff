/* test_plan_recompute.c - plans in which ops run again: valid by an independent model (plan_turns_model.h), compared with every way of
 * running a small step again, and with plans by one means alone. */
#include "fault_os.h"
#include "plan_turns_model.h"
#include "plan_search.h"

#define RANDOM_OPS 14
#define RANDOM_TENSORS 16

/* ---- random steps ---- */

static void make_some_pure(model *m, uint64_t *seed)
{
	uint64_t rarity = 1 + hr_rand_below(seed, 4);
	for (uint32_t i = 0; i < m->step.op_count; i++) m->ops[i].pure = hr_rand_below(seed, rarity) == 0 || hr_rand_below(seed, 2) == 0;
}

/* Layers forward and backward: activations, weights that the end of the step writes, tensors that die early, skips, writes in place. */
static void make_training_step(model *m, uint32_t layers, uint64_t *seed)
{
	uint32_t n = 2 * layers + 1, t = 0;
	memset(m, 0, sizeof *m);
	m->step.op_count = n;
	for (uint32_t i = 0; i < n; i++) m->ops[i] = (hr__plan_op){ .ns = hr_rand_below(seed, 6) == 0 ? 0 : 1 + hr_rand_below(seed, 400) };
	for (uint32_t i = 0; i < layers; i++) { /* tensor i: what layer i makes */
		bool dies_early = hr_rand_below(seed, 4) == 0;
		m->tensors[t] = (hr__plan_tensor){ .bytes = 1 + hr_rand_below(seed, 100), .died = dies_early && i + 1 < layers ? i + 1 : n - 2 - i };
		m->used[i][t] = m->wrote[i][t] = true;
		if (i + 1 < layers) m->used[i + 1][t] = true;
		if (!dies_early || i + 1 == layers) m->used[n - 2 - i][t] = true;
		if (i + 1 < layers && hr_rand_below(seed, 8) == 0) m->wrote[i + 1][t] = true;
		if (i + 3 < layers && !dies_early && hr_rand_below(seed, 3) == 0) m->used[i + 3][t] = true;
		t++;
	}
	for (uint32_t i = 0; i < layers; i += 2) { /* weights */
		m->tensors[t] = (hr__plan_tensor){ .bytes = 1 + hr_rand_below(seed, 40), .died = HR__PLAN_NEVER, .lived_before = true };
		m->used[i][t] = m->used[n - 2 - i][t] = m->used[n - 1][t] = m->wrote[n - 1][t] = true;
		t++;
	}
	m->step.tensor_count = t;
	for (uint32_t i = 0; i < n; i++) m->ops[i].pure = i < layers ? hr_rand_below(seed, 6) != 0 : hr_rand_below(seed, 3) == 0;
	model_finish(m);
	m->machine.out_bytes_per_s = 1000000000 / (1 + hr_rand_below(seed, 30));
	m->machine.in_bytes_per_s = m->machine.out_bytes_per_s;
	m->machine.copy_ns = hr_rand_below(seed, 3) == 0 ? 0 : hr_rand_below(seed, 100);
}

static void make_step(model *m, uint64_t round, uint64_t *seed)
{
	if (round % 2 == 0) {
		make_training_step(m, 2 + (uint32_t)hr_rand_below(seed, 8), seed);
	} else {
		model_random(m, RANDOM_OPS, RANDOM_TENSORS, seed);
		make_some_pure(m, seed);
	}
	uint64_t least = hr__plan_least(&m->step, NULL), peak = hr__plan_peak(&m->step);
	m->machine.memory = least + hr_rand_below(seed, peak - least + 2);
}

static uint64_t step_ns_of(const model *m, const hr__plan *plan)
{
	uint64_t ends[6], took = 0;
	model_run(m, plan->moves, plan->move_count, 6, ends);
	for (int i = 0; i < 6; i++) {
		uint64_t next = ends[i] - (i > 0 ? ends[i - 1] : 0);
		if (next == took) break;
		took = next;
	}
	return took;
}

static uint64_t again_ns_of(const model *m, const hr__plan *plan)
{
	uint64_t ns = 0;
	for (uint32_t i = 0; i < plan->turn_count; i++)
		if (plan->turns[i].again) ns += m->ops[plan->turns[i].op].ns;
	return ns;
}

static void check_plan(const model *m, const hr__plan *plan)
{
	static turns_step s;
	if (plan->turn_count == 0) {
		CHECK_EQ(plan->drop_count, 0);
		model_check(m, plan);
		CHECK_EQ(plan->step_ns, step_ns_of(m, plan));
		return;
	}
	turns_carry_out(m, plan);
	turns_make_step(&s, m, plan);
	model_check(&s.m, &s.plan);
	CHECK_EQ(plan->step_ns, step_ns_of(&s.m, &s.plan));
	CHECK_EQ(plan->again_ns, again_ns_of(m, plan));
	for (uint32_t k = 1; k < plan->drop_count; k++) CHECK_LE(plan->drops[k - 1].after, plan->drops[k].after);
}

/* ---- valid, and no worse than one means alone ---- */

static void test_plan_that_runs_ops_again_is_valid(void)
{
	static model m;
	uint64_t with_turns = 0;
	for (uint64_t round = 0; round < hr_test_scaled(6000); round++) {
		uint64_t seed = hr_test_seed() * 1000003 + round;
		hr__plan plan;
		make_step(&m, round, &seed);
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &plan));
		check_plan(&m, &plan);
		with_turns += plan.turn_count > 0;
		hr__plan_free(&plan);
	}
	printf("# %llu plans run ops again\n", (unsigned long long)with_turns);
	CHECK_GT(with_turns, 0);
}

static void test_plan_by_both_means_is_no_worse_than_by_one(void)
{
	static model m;
	for (uint64_t round = 0; round < hr_test_scaled(3000); round++) {
		uint64_t seed = hr_test_seed() * 1000033 + round;
		hr__plan both, moves, again;
		make_step(&m, round, &seed);
		CHECK_STATUS(HR_OK, hr__plan_make_by(&m.step, &m.machine, HR__PLAN_BOTH, &both));
		CHECK_STATUS(HR_OK, hr__plan_make_by(&m.step, &m.machine, HR__PLAN_MOVE, &moves));
		CHECK_EQ(moves.turn_count, 0);
		CHECK_LE(both.step_ns, moves.step_ns);
		hr_status status = hr__plan_make_by(&m.step, &m.machine, HR__PLAN_RECOMPUTE, &again);
		if (status == HR_OK) {
			CHECK_EQ(again.move_count, 0);
			check_plan(&m, &again);
			CHECK_LE(both.step_ns, again.step_ns);
		} else {
			CHECK_STATUS(HR_OUT_OF_MEMORY, status);
		}
		hr__plan_free(&again);
		hr__plan_free(&both);
		hr__plan_free(&moves);
	}
}

/* ---- every way to run ops again ---- */

#define ORACLE_TENSORS 11
#define ORACLE_OPS 15
#define ORACLE_STATES ((ORACLE_OPS + 1) << ORACLE_TENSORS)

/* The least time of ops that run again, without moves, over all orders in which ops can run again and tensors be dropped. A state is
 * the next op of the step and the set of tensors that have memory, destroyed ones too. */
typedef struct oracle {
	const model *m;
	uint64_t cost[ORACLE_STATES];
	bool queued[ORACLE_STATES];
	uint32_t queue[ORACLE_STATES], head, count;
} oracle;

static uint32_t state_of(uint32_t op, uint32_t there)
{
	return op << ORACLE_TENSORS | there;
}

static void reach(oracle *o, uint32_t op, uint32_t there, uint64_t cost)
{
	uint32_t state = state_of(op, there);
	if (cost >= o->cost[state]) return;
	o->cost[state] = cost;
	if (o->queued[state]) return;
	o->queued[state] = true;
	o->queue[(o->head + o->count++) % ORACLE_STATES] = state;
}

static uint64_t bytes_of_set(const model *m, uint32_t there)
{
	uint64_t bytes = m->step.other_bytes;
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (there >> t & 1) bytes += m->tensors[t].bytes;
	return bytes;
}

static uint32_t made_by(const model *m, uint32_t op)
{
	uint32_t made = 0;
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (model_creates(m, op, t)) made |= 1u << t;
	return made;
}

/* Whether an op from [from] on and before [to] writes [t]. */
static bool is_written_in(const model *m, uint32_t t, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		if (m->wrote[i][t]) return true;
	return false;
}

static bool is_dead_at(const model *m, uint32_t t, uint32_t op)
{
	return m->tensors[t].died != HR__PLAN_NEVER && m->tensors[t].died < op;
}

/* Whether an op from [op] on uses [t]. */
static bool has_use_from(const model *m, uint32_t t, uint32_t op)
{
	for (uint32_t i = op; i < m->step.op_count; i++)
		if (m->used[i][t]) return true;
	return false;
}

static void try_drops(oracle *o, uint32_t op, uint32_t there, uint64_t cost)
{
	const model *m = o->m;
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		uint32_t maker = model_first_use(m, t);
		if (!(there >> t & 1) || maker == HR__PLAN_NEVER) continue;
		bool recipe = !m->tensors[t].lived_before && m->ops[maker].pure && !is_written_in(m, t, maker + 1, op);
		if (is_dead_at(m, t, op) || (recipe && !m->tensors[t].never_evict && has_use_from(m, t, op)))
			reach(o, op, there & ~(1u << t), cost);
	}
}

static void try_again(oracle *o, uint32_t op, uint32_t there, uint64_t cost)
{
	const model *m = o->m;
	for (uint32_t again = 0; again < op; again++) {
		uint32_t made = made_by(m, again), keep = 0;
		bool possible = m->ops[again].pure && made != 0;
		for (uint32_t t = 0; t < m->step.tensor_count && possible; t++) {
			if (!model_reads_again(m, again, t)) continue;
			uint32_t maker = model_first_use(m, t);
			possible = there >> t & 1 && !is_written_in(m, t, again + 1, op);
			/* A ghost has the contents that its recipe makes. */
			if (possible && is_dead_at(m, t, op)) possible = !is_written_in(m, t, maker + 1, again);
		}
		if (!possible || bytes_of_set(m, there) + bytes_of_set(m, made) - m->step.other_bytes > m->machine.memory) continue;
		for (uint32_t t = 0; t < m->step.tensor_count; t++)
			if ((made & ~there) >> t & 1 && (is_dead_at(m, t, op) || !is_written_in(m, t, again + 1, op))) keep |= 1u << t;
		for (uint32_t kept = keep; kept != 0; kept = (kept - 1) & keep) reach(o, op, there | kept, cost + m->ops[again].ns);
	}
}

static void try_op(oracle *o, uint32_t op, uint32_t there, uint64_t cost)
{
	const model *m = o->m;
	there |= made_by(m, op);
	if (bytes_of_set(m, there) > m->machine.memory) return;
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (m->used[op][t] && !(there >> t & 1)) return;
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (m->tensors[t].died == op) there &= ~(1u << t);
	reach(o, op + 1, there, cost);
}

/* UINT64_MAX: there is no way. */
static uint64_t least_again_ns(const model *m)
{
	static oracle o;
	uint64_t least = UINT64_MAX;
	uint32_t there = 0, n = m->step.op_count;
	o.m = m;
	o.head = o.count = 0;
	memset(o.queued, 0, sizeof o.queued);
	for (uint32_t i = 0; i < ORACLE_STATES; i++) o.cost[i] = UINT64_MAX;
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (m->tensors[t].lived_before || model_first_use(m, t) == HR__PLAN_NEVER) there |= 1u << t;
	reach(&o, 0, there, 0);
	while (o.count > 0) {
		uint32_t state = o.queue[o.head], op = state >> ORACLE_TENSORS, set = state & ((1u << ORACLE_TENSORS) - 1);
		o.head = (o.head + 1) % ORACLE_STATES;
		o.count--;
		o.queued[state] = false;
		if (op == n) {
			if (o.cost[state] < least) least = o.cost[state];
			continue;
		}
		try_op(&o, op, set, o.cost[state]);
		try_drops(&o, op, set, o.cost[state]);
		try_again(&o, op, set, o.cost[state]);
	}
	return least;
}

static void test_plan_by_recomputing_is_close_to_the_best_of_all(void)
{
	static model m;
	uint64_t searched = 0, best_sum = 0, plan_sum = 0, exact = 0, missed = 0, impossible = 0;
	double worst = 1;
	for (uint64_t round = 0; searched < hr_test_scaled(2000); round++) {
		uint64_t seed = hr_test_seed() * 1000039 + round;
		hr__plan plan;
		if (round % 2 == 0) {
			make_training_step(&m, 2 + (uint32_t)hr_rand_below(&seed, 6), &seed);
		} else {
			model_random(&m, 9, 8, &seed);
			make_some_pure(&m, &seed);
		}
		if (m.step.tensor_count > ORACLE_TENSORS || m.step.op_count > ORACLE_OPS) continue;
		uint64_t least = hr__plan_least(&m.step, NULL), peak = hr__plan_peak(&m.step), compute = hr__plan_compute_ns(&m.step);
		if (peak <= least) continue;
		m.machine.memory = least + hr_rand_below(&seed, peak - least);
		uint64_t best = least_again_ns(&m);
		hr_status status = hr__plan_make_by(&m.step, &m.machine, HR__PLAN_RECOMPUTE, &plan);
		if (best == UINT64_MAX) {
			CHECK_STATUS(HR_OUT_OF_MEMORY, status);
			impossible++;
			continue;
		}
		searched++;
		if (status != HR_OK) {
			CHECK_STATUS(HR_OUT_OF_MEMORY, status);
			missed++;
			continue;
		}
		CHECK_GE(plan.step_ns, compute + best);
		exact += plan.step_ns == compute + best;
		best_sum += compute + best;
		plan_sum += plan.step_ns;
		if ((double)plan.step_ns > worst * (double)(compute + best)) worst = (double)plan.step_ns / (double)(compute + best);
		hr__plan_free(&plan);
	}
	printf("# of %llu steps: %llu as good as the best, %llu not found, %llu impossible; time %.4f of the best, worst %.3f\n",
	       (unsigned long long)searched, (unsigned long long)exact, (unsigned long long)missed, (unsigned long long)impossible,
	       (double)plan_sum / (double)best_sum, worst);
	CHECK_GE(exact * 100, searched * 95);
	CHECK_LE(missed * 100, searched * 2);
	CHECK_LE((double)plan_sum, 1.01 * (double)best_sum);
}

/* ---- every way to move and to run ops again ---- */

#define MIXED_AGAIN 2     /* most ops that run again */
#define MIXED_WAYS 2000   /* most sequences of turns of a step that is searched */
#define MIXED_PLANS 600.0 /* most plans of moves for each */

/* A sequence of turns under construction, as a step of its own. */
typedef struct mixed_turns {
	model m;
	uint32_t current[ORACLE_TENSORS]; /* by tensor of the step: its tensor of m that has the contents; NONE */
	bool dead[ORACLE_TENSORS];
	uint32_t again;
} mixed_turns;

typedef struct mixed_search {
	const model *m;
	uint64_t best_ns, ways;
	bool too_many;
} mixed_search;

#define MIXED_NONE UINT32_MAX

/* States are large, so they are not on the stack. */
static mixed_turns mixed_states[4 * ORACLE_OPS];
static uint32_t mixed_depth;

static mixed_turns *copy_mixed(const mixed_turns *from)
{
	CHECK_LT(mixed_depth, sizeof mixed_states / sizeof mixed_states[0]);
	mixed_turns *s = &mixed_states[mixed_depth++];
	*s = *from;
	return s;
}

static void use_in_turn(mixed_turns *s, uint32_t turn, uint32_t k, bool write)
{
	s->m.used[turn][k] = true;
	s->m.wrote[turn][k] = write;
}

static uint32_t make_in_turn(const mixed_search *all, mixed_turns *s, uint32_t turn, uint32_t t)
{
	uint32_t k = s->m.step.tensor_count++;
	s->m.tensors[k] = (hr__plan_tensor){ .bytes = all->m->tensors[t].bytes, .died = HR__PLAN_NEVER, .never_evict = all->m->tensors[t].never_evict };
	use_in_turn(s, turn, k, true);
	return k;
}

static void end_mixed(mixed_search *all, mixed_turns *s)
{
	search found = { .m = &s->m, .best_ns = UINT64_MAX, .best_bytes = UINT64_MAX };
	if (++all->ways > MIXED_WAYS) {
		all->too_many = true;
		return;
	}
	model_finish(&s->m);
	find_gaps(&found);
	if (!is_small_enough(&found, MIXED_PLANS)) {
		all->too_many = true;
		return;
	}
	try_gap(&found, 0);
	if (found.best_ns < all->best_ns) all->best_ns = found.best_ns;
}

static void go_mixed(mixed_search *all, const mixed_turns *from, uint32_t op);

/* After [op]: drops every set of tensors that it used and that could be made again. */
static void drop_mixed(mixed_search *all, const mixed_turns *from, uint32_t op, uint32_t turn)
{
	const model *m = all->m;
	uint32_t may = 0;
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		uint32_t maker = model_first_use(m, t);
		if (!m->used[op][t] || m->tensors[t].lived_before || m->tensors[t].never_evict || !m->ops[maker].pure) continue;
		if (!is_written_in(m, t, maker + 1, op + 1) && has_use_from(m, t, op + 1)) may |= 1u << t;
	}
	for (uint32_t set = may;; set = (set - 1) & may) {
		mixed_turns *s = copy_mixed(from);
		for (uint32_t t = 0; t < m->step.tensor_count; t++) {
			if (!(set >> t & 1)) continue;
			s->m.tensors[s->current[t]].died = turn;
			s->current[t] = MIXED_NONE;
		}
		go_mixed(all, s, op + 1);
		mixed_depth--;
		if (set == 0 || all->too_many) return;
	}
}

static void run_mixed(mixed_search *all, const mixed_turns *from, uint32_t op)
{
	const model *m = all->m;
	for (uint32_t t = 0; t < m->step.tensor_count; t++)
		if (m->used[op][t] && !model_creates(m, op, t) && from->current[t] == MIXED_NONE) return;
	mixed_turns *s = copy_mixed(from);
	uint32_t turn = s->m.step.op_count++;
	s->m.ops[turn].ns = m->ops[op].ns;
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (!m->used[op][t]) continue;
		if (model_creates(m, op, t)) s->current[t] = make_in_turn(all, s, turn, t);
		else use_in_turn(s, turn, s->current[t], m->wrote[op][t]);
	}
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (m->tensors[t].died != op) continue;
		s->m.tensors[s->current[t]].died = turn;
		s->current[t] = MIXED_NONE;
		s->dead[t] = true;
	}
	drop_mixed(all, s, op, turn);
	mixed_depth--;
}

static bool can_run_again(const mixed_search *all, const mixed_turns *s, uint32_t op, uint32_t again)
{
	const model *m = all->m;
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (!model_reads_again(m, again, t)) continue;
		if (s->current[t] == MIXED_NONE || is_written_in(m, t, again + 1, op)) return false;
		if (s->dead[t] && is_written_in(m, t, model_first_use(m, t) + 1, again)) return false;
	}
	return m->ops[again].pure;
}

/* Runs [again] once more before [op]. Replicas of destroyed tensors live until their last use. */
static void again_mixed(mixed_search *all, const mixed_turns *from, uint32_t op, uint32_t again)
{
	const model *m = all->m;
	mixed_turns *s = copy_mixed(from);
	uint32_t turn = s->m.step.op_count++;
	bool useful = false;
	s->m.ops[turn].ns = m->ops[again].ns;
	s->again++;
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (!model_reads_again(m, again, t)) continue;
		use_in_turn(s, turn, s->current[t], false);
		if (s->dead[t]) s->m.tensors[s->current[t]].died = turn;
	}
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		if (!model_creates(m, again, t)) continue;
		uint32_t k = make_in_turn(all, s, turn, t);
		bool second = s->current[t] != MIXED_NONE || (!s->dead[t] && is_written_in(m, t, again + 1, op));
		if (second || s->dead[t]) s->m.tensors[k].died = turn, s->m.tensors[k].never_evict = true;
		if (second) continue;
		s->current[t] = k;
		useful = true;
	}
	if (useful) go_mixed(all, s, op);
	mixed_depth--;
}

static void go_mixed(mixed_search *all, const mixed_turns *from, uint32_t op)
{
	if (all->too_many) return;
	if (op == all->m->step.op_count) {
		end_mixed(all, copy_mixed(from));
		mixed_depth--;
		return;
	}
	run_mixed(all, from, op);
	for (uint32_t again = 0; again < op && from->again < MIXED_AGAIN; again++)
		if (can_run_again(all, from, op, again)) again_mixed(all, from, op, again);
}

/* The least time of a step over all plans with few ops that run again; UINT64_MAX if there are too many plans. */
static uint64_t best_mixed_ns(const model *m)
{
	static mixed_turns s;
	mixed_search all = { .m = m, .best_ns = UINT64_MAX };
	memset(&s, 0, sizeof s);
	s.m.machine = m->machine;
	s.m.step.other_bytes = m->step.other_bytes;
	for (uint32_t t = 0; t < m->step.tensor_count; t++) {
		s.current[t] = MIXED_NONE;
		if (!m->tensors[t].lived_before && model_first_use(m, t) != HR__PLAN_NEVER) continue;
		s.current[t] = s.m.step.tensor_count;
		s.m.tensors[s.m.step.tensor_count++] = m->tensors[t];
	}
	go_mixed(&all, &s, 0);
	return all.too_many ? UINT64_MAX : all.best_ns;
}

static void test_plan_by_both_means_is_close_to_the_best_of_all(void)
{
	static model m;
	double planned = 0, best = 0, worst = 1;
	uint64_t searched = 0, mixed = 0;
	for (uint64_t round = 0; searched < hr_test_scaled(300); round++) {
		uint64_t seed = hr_test_seed() * 1000099 + round;
		hr__plan plan;
		if (round % 4 > 0) {
			make_training_step(&m, 2 + (uint32_t)hr_rand_below(&seed, 3), &seed);
		} else {
			model_random(&m, 6, 4, &seed);
			make_some_pure(&m, &seed);
		}
		uint64_t least = hr__plan_least(&m.step, NULL), peak = hr__plan_peak(&m.step);
		if (peak <= least) continue;
		m.machine.memory = least + hr_rand_below(&seed, peak - least);
		uint64_t best_ns = best_mixed_ns(&m);
		if (best_ns == UINT64_MAX) continue;
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &plan));
		planned += (double)plan.step_ns;
		best += (double)best_ns;
		if ((double)plan.step_ns > worst * (double)best_ns) worst = (double)plan.step_ns / (double)best_ns;
		mixed += plan.turn_count > 0;
		hr__plan_free(&plan);
		searched++;
	}
	printf("# time: %.4f of the best (worst %.3f); %llu of %llu plans run ops again\n", planned / best, worst, (unsigned long long)mixed,
	       (unsigned long long)searched);
	CHECK_GT(mixed, 0);
	CHECK_LE(planned, 1.03 * best);
}

/* ---- steps with known answers ---- */

/* Ops 0 to [n] - 1 make tensors that ops n to 2n - 1 use in the opposite order. All tensors have 100 bytes; the links are so slow that
 * nothing is moved. */
typedef struct there_and_back {
	hr__plan_op ops[40];
	hr__plan_use uses[80];
	hr__plan_tensor tensors[20];
	hr__plan_step step;
	hr__plan_machine machine;
} there_and_back;

/* With [chained], each op also reads what the one before made. */
static void make_there_and_back(there_and_back *s, uint32_t n, bool chained, uint64_t memory)
{
	*s = (there_and_back){ .machine = { .memory = memory, .out_bytes_per_s = 1, .in_bytes_per_s = 1 } };
	uint32_t uses = 0;
	for (uint32_t i = 0; i < 2 * n; i++) {
		uint32_t t = i < n ? i : 2 * n - 1 - i;
		s->ops[i] = (hr__plan_op){ .ns = 10, .first_use = uses, .pure = i < n };
		if (chained && i > 0 && i < n) s->uses[uses++] = (hr__plan_use){ .tensor = i - 1 };
		s->uses[uses++] = (hr__plan_use){ .tensor = t, .write = i < n };
		s->tensors[t] = (hr__plan_tensor){ .bytes = 100, .died = 2 * n - 1 - t };
	}
	s->step = (hr__plan_step){ .ops = s->ops, .uses = s->uses, .tensors = s->tensors, .op_count = 2 * n, .use_count = uses, .tensor_count = n };
}

/* 10 tensors of 100 bytes, room for 6: four are dropped, and four ops run again. */
static void test_plan_runs_again_as_few_ops_as_are_needed(void)
{
	there_and_back s;
	hr__plan plan;
	make_there_and_back(&s, 10, false, 600);
	CHECK_STATUS(HR_OK, hr__plan_make(&s.step, &s.machine, &plan));
	CHECK_EQ(plan.move_count, 0);
	CHECK_EQ(plan.again_ns, 4 * 10);
	CHECK_EQ(plan.step_ns, 24 * 10);
	CHECK_EQ(plan.turn_count, 24);
	CHECK_EQ(plan.drop_count, 4);
	CHECK_LE(plan.peak_bytes, 600);
	hr__plan_free(&plan);
}

/* Each tensor is made of the one before. Room for 8 of 16: segments are made again at once, so no op runs more than once more. */
static void test_plan_makes_a_chain_again_once(void)
{
	there_and_back s;
	hr__plan plan;
	make_there_and_back(&s, 16, true, 800);
	CHECK_STATUS(HR_OK, hr__plan_make(&s.step, &s.machine, &plan));
	CHECK_EQ(plan.move_count, 0);
	CHECK_LE(plan.again_ns, 16 * 10);
	CHECK_LE(plan.peak_bytes, 800);
	hr__plan_free(&plan);
}

/* The weight that op 0 reads is written by op 2, before op 3 needs the tensor that op 0 made: it may not be dropped. Had op 0 not read
 * it, it could be. */
static void test_plan_runs_nothing_again_after_its_input_was_written(void)
{
	hr__plan_op ops[] = { { .ns = 1, .pure = true }, { .ns = 1, .first_use = 2 }, { .ns = 1, .first_use = 3 }, { .ns = 1, .first_use = 5 } };
	hr__plan_use uses[] = { { .tensor = 0 }, { .tensor = 1, .write = true }, { .tensor = 2, .write = true }, { .tensor = 0, .write = true },
		                    { .tensor = 2 }, { .tensor = 1 } };
	hr__plan_tensor tensors[] = { { .bytes = 10, .died = HR__PLAN_NEVER, .lived_before = true },
		                          { .bytes = 100, .died = 3 },
		                          { .bytes = 50, .died = 2 } };
	hr__plan_step step = { .ops = ops, .uses = uses, .tensors = tensors, .op_count = 4, .use_count = 6, .tensor_count = 3 };
	hr__plan_machine machine = { .memory = 120, .out_bytes_per_s = 1000000000, .in_bytes_per_s = 1000000000, .copy_ns = 1000 };
	hr__plan plan;
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__plan_make_by(&step, &machine, HR__PLAN_RECOMPUTE, &plan));
	CHECK_CONTAINS(hr_last_message(), "by running ops again");
	CHECK_STATUS(HR_OK, hr__plan_make(&step, &machine, &plan));
	CHECK_EQ(plan.turn_count, 0);
	CHECK_EQ(plan.move_count, 1);
	hr__plan_free(&plan);
	uses[0].tensor = 0, uses[3].write = false;
	CHECK_STATUS(HR_OK, hr__plan_make(&step, &machine, &plan));
	CHECK_EQ(plan.move_count, 0);
	CHECK_EQ(plan.again_ns, 1);
	CHECK_EQ(plan.turn_count, 5);
	CHECK_EQ(plan.turns[3].op, 0);
	CHECK_EQ(plan.turns[3].before, 3);
	CHECK(plan.turns[3].again);
	CHECK_EQ(plan.drop_count, 1);
	CHECK_EQ(plan.drops[0].tensor, 1);
	CHECK_EQ(plan.drops[0].after, 0);
	CHECK_EQ(plan.drops[0].back_at, 3);
	CHECK_EQ(plan.drops[0].needed_by, 4);
	CHECK(!plan.drops[0].ghost);
	hr__plan_free(&plan);
}

/* Tensor 1 is made of tensor 0, which is destroyed by then: both ops run again, and tensor 0 is a ghost. */
static void test_plan_makes_destroyed_inputs_again(void)
{
	hr__plan_op ops[] = { { .ns = 7, .pure = true }, { .ns = 5, .first_use = 1, .pure = true }, { .ns = 1, .first_use = 3 }, { .ns = 1, .first_use = 4 } };
	hr__plan_use uses[] = { { .tensor = 0, .write = true }, { .tensor = 0 }, { .tensor = 1, .write = true }, { .tensor = 2, .write = true }, { .tensor = 1 } };
	hr__plan_tensor tensors[] = { { .bytes = 20, .died = 1 }, { .bytes = 100, .died = 3 }, { .bytes = 110, .died = 2 } };
	hr__plan_step step = { .ops = ops, .uses = uses, .tensors = tensors, .op_count = 4, .use_count = 5, .tensor_count = 3 };
	hr__plan_machine machine = { .memory = 120, .out_bytes_per_s = 1000000, .in_bytes_per_s = 1000000 };
	hr__plan plan;
	CHECK_STATUS(HR_OK, hr__plan_make(&step, &machine, &plan));
	CHECK_EQ(plan.again_ns, 12);
	CHECK_EQ(plan.turn_count, 6);
	CHECK_EQ(plan.turns[3].op, 0);
	CHECK_EQ(plan.turns[4].op, 1);
	CHECK_EQ(plan.drop_count, 3);
	CHECK_EQ(plan.drops[0].tensor, 0);
	CHECK_EQ(plan.drops[0].after, 1);
	CHECK_EQ(plan.drops[0].back_at, 3);
	CHECK(plan.drops[0].ghost);
	CHECK_EQ(plan.drops[1].tensor, 1);
	CHECK_EQ(plan.drops[1].back_at, 4);
	CHECK_EQ(plan.drops[2].tensor, 0);
	CHECK_EQ(plan.drops[2].after, 4);
	CHECK_EQ(plan.drops[2].back_at, HR__PLAN_NEVER);
	CHECK_EQ(plan.peak_bytes, 120);
	hr__plan_free(&plan);
}

/* The optimizer's state cannot be computed again, and its copies hide behind the ops: it is moved, and nothing runs again. */
static void test_plan_moves_what_hides_before_it_runs_anything_again(void)
{
	there_and_back s;
	hr__plan plan;
	make_there_and_back(&s, 10, false, 1000);
	for (uint32_t i = 0; i < 20; i++) s.ops[i].ns = 1000;
	s.tensors[10] = (hr__plan_tensor){ .bytes = 300, .died = HR__PLAN_NEVER, .lived_before = true };
	s.uses[20] = (hr__plan_use){ .tensor = 10, .write = true };
	s.ops[20] = (hr__plan_op){ .ns = 1000, .first_use = 20 };
	s.step.op_count = s.step.use_count = 21;
	s.step.tensor_count = 11;
	s.machine = (hr__plan_machine){ .memory = 1000, .out_bytes_per_s = 1000000000, .in_bytes_per_s = 1000000000 };
	CHECK_STATUS(HR_OK, hr__plan_make(&s.step, &s.machine, &plan));
	CHECK_EQ(plan.turn_count, 0);
	CHECK_EQ(plan.step_ns, 21000);
	CHECK_EQ(plan.move_count, 1);
	CHECK_EQ(plan.moves[0].tensor, 10);
	hr__plan_free(&plan);
}

static void test_plan_is_the_same_every_time(void)
{
	static model m;
	for (uint64_t round = 0; round < 300; round++) {
		uint64_t seed = hr_test_seed() * 1000037 + round;
		hr__plan a, b;
		make_step(&m, round, &seed);
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &a));
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &b));
		CHECK_EQ(a.step_ns, b.step_ns);
		CHECK_EQ(a.turn_count, b.turn_count);
		CHECK_EQ(a.drop_count, b.drop_count);
		CHECK_EQ(a.move_count, b.move_count);
		for (uint32_t i = 0; i < a.turn_count; i++) CHECK_EQ(a.turns[i].op, b.turns[i].op);
		for (uint32_t i = 0; i < a.drop_count; i++) CHECK_EQ(a.drops[i].after, b.drops[i].after);
		for (uint32_t i = 0; i < a.move_count; i++) CHECK_EQ(a.moves[i].in_before, b.moves[i].in_before);
		hr__plan_free(&a);
		hr__plan_free(&b);
	}
}

static void test_plan_with_the_largest_numbers(void)
{
	there_and_back s;
	hr__plan plan;
	make_there_and_back(&s, 8, true, 0);
	for (uint32_t i = 0; i < 16; i++) s.ops[i].ns = UINT64_MAX / 17;
	for (uint32_t t = 0; t < 8; t++) s.tensors[t].bytes = UINT64_MAX / 9;
	s.machine = (hr__plan_machine){ .memory = UINT64_MAX / 9 * 3, .out_bytes_per_s = 1, .in_bytes_per_s = 1, .copy_ns = UINT64_MAX };
	CHECK_STATUS(HR_OK, hr__plan_make(&s.step, &s.machine, &plan));
	CHECK_LE(plan.peak_bytes, s.machine.memory);
	hr__plan_free(&plan);
}

/* ---- no memory ---- */

static void test_plan_without_host_memory_fails_and_leaks_nothing(void)
{
	static model m;
	hr__plan plan = { 0 };
	uint64_t round = 0;
	do {
		uint64_t seed = hr_test_seed() * 1000081 + round++;
		hr__plan_free(&plan);
		make_training_step(&m, 8, &seed);
		m.machine.memory = hr__plan_least(&m.step, NULL) + 20;
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &plan));
	} while (plan.turn_count == 0 || plan.move_count == 0);
	hr__plan_free(&plan);
	hr_fault_os_install();
	for (uint64_t n = 1;; n++) {
		hr_fault_os_fail_nth(n, false, ENOMEM);
		hr_status status = hr__plan_make(&m.step, &m.machine, &plan);
		if (status == HR_OK) {
			CHECK_LT(hr_fault_os_calls(), n);
			CHECK_GT(n, 100);
			break;
		}
		CHECK_STATUS(HR_NO_HOST_MEMORY, status);
		CHECK(hr_fault_os_is_clean());
	}
	hr__plan_free(&plan);
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

TEST_MAIN(T(test_plan_that_runs_ops_again_is_valid), T(test_plan_by_both_means_is_no_worse_than_by_one),
          T(test_plan_by_recomputing_is_close_to_the_best_of_all), T(test_plan_by_both_means_is_close_to_the_best_of_all),
          T(test_plan_runs_again_as_few_ops_as_are_needed),
          T(test_plan_makes_a_chain_again_once), T(test_plan_runs_nothing_again_after_its_input_was_written),
          T(test_plan_makes_destroyed_inputs_again), T(test_plan_moves_what_hides_before_it_runs_anything_again),
          T(test_plan_is_the_same_every_time), T(test_plan_with_the_largest_numbers),
          T(test_plan_without_host_memory_fails_and_leaks_nothing))
