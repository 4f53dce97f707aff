/* test_plan_recompute.c - plans in which ops run again: valid by an independent model (plan_turns_model.h), compared with every way of
 * running a small step again, and with plans by one means alone. */
#include "fault_os.h"
#include "plan_turns_model.h"

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
#define ORACLE_OPS 11
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
			make_training_step(&m, 2 + (uint32_t)hr_rand_below(&seed, 4), &seed);
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
}

TEST_MAIN(T(test_plan_by_recomputing_is_close_to_the_best_of_all), T(test_plan_that_runs_ops_again_is_valid), T(test_plan_by_both_means_is_no_worse_than_by_one))
