/* test_plan.c - the planner and the bound: compared with an independent model (plan_model.h), with every possible plan of tiny
 * steps, and with invalid input and no memory. */
#include "fault_os.h"
#include "plan_model.h"
#include "plan_search.h"

/* ---- plans follow the rules ---- */

static void pick_memory(model *m, uint64_t *seed)
{
	uint64_t least = hr__plan_least(&m->step, NULL), peak = hr__plan_peak(&m->step);
	m->machine.memory = least + hr_rand_below(seed, peak - least + 2);
	if (hr_rand_below(seed, 4) == 0) m->machine.memory = least;
}

/* Like the planner: until a step takes as long as the one before, at most six steps. */
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

static void test_plan_keeps_the_rules_of_the_model(void)
{
	static model m;
	for (uint64_t round = 0; round < hr_test_scaled(6000); round++) {
		uint64_t seed = hr_test_seed() * 1000003 + round;
		hr__plan plan;
		model_random(&m, round % 3 == 0 ? MODEL_OPS : 12, round % 3 == 0 ? MODEL_TENSORS : 16, &seed);
		pick_memory(&m, &seed);
		CHECK_EQ(hr__plan_least(&m.step, NULL), model_least(&m));
		CHECK_EQ(hr__plan_peak(&m.step), model_peak(&m, NULL, 0));
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &plan));
		model_check(&m, &plan);
		CHECK_EQ(plan.step_ns, step_ns_of(&m, &plan));
		CHECK_GE(plan.step_ns, hr__plan_compute_ns(&m.step));
		if (hr__plan_peak(&m.step) <= m.machine.memory) CHECK_EQ(plan.move_count, 0);
		hr__plan_free(&plan);
	}
}

static void test_plan_needs_the_least_memory_and_no_less(void)
{
	static model m;
	for (uint64_t round = 0; round < hr_test_scaled(1000); round++) {
		uint64_t seed = hr_test_seed() * 1000033 + round;
		hr__plan plan;
		uint32_t op;
		model_random(&m, 20, 20, &seed);
		m.machine.memory = hr__plan_least(&m.step, &op);
		CHECK_LT(op, m.step.op_count);
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &plan));
		model_check(&m, &plan);
		hr__plan_free(&plan);
		if (m.machine.memory == 0) continue;
		m.machine.memory--;
		CHECK_STATUS(HR_OUT_OF_MEMORY, hr__plan_make(&m.step, &m.machine, &plan));
	}
}

static void test_plan_is_the_same_every_time(void)
{
	static model m;
	for (uint64_t round = 0; round < 200; round++) {
		uint64_t seed = hr_test_seed() * 1000037 + round;
		hr__plan a, b;
		model_random(&m, 30, 30, &seed);
		pick_memory(&m, &seed);
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &a));
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &b));
		CHECK_EQ(a.move_count, b.move_count);
		CHECK_EQ(a.step_ns, b.step_ns);
		for (uint32_t k = 0; k < a.move_count; k++) {
			CHECK_EQ(a.moves[k].tensor, b.moves[k].tensor);
			CHECK_EQ(a.moves[k].out_after, b.moves[k].out_after);
			CHECK_EQ(a.moves[k].in_before, b.moves[k].in_before);
		}
		hr__plan_free(&a);
		hr__plan_free(&b);
	}
}

/* ---- the bound, and every possible plan ---- */

static void test_bound_is_beaten_by_no_plan_and_plans_are_close_to_the_best(void)
{
	static model m;
	double planned = 0, best = 0, planned_bytes = 0, best_bytes = 0, worst = 1, bound_share = 0;
	uint64_t searched = 0;
	for (uint64_t round = 0; searched < hr_test_scaled(400); round++) {
		uint64_t seed = hr_test_seed() * 1000039 + round, extra, compute;
		search s = { .m = &m, .best_ns = UINT64_MAX, .best_bytes = UINT64_MAX };
		hr__plan plan;
		model_random(&m, 7, 5, &seed);
		find_gaps(&s);
		if (s.gap_count < 2 || !is_small_enough(&s, 3000)) continue;
		uint64_t least = hr__plan_least(&m.step, NULL), peak = hr__plan_peak(&m.step);
		if (peak <= least) continue;
		m.machine.memory = least + hr_rand_below(&seed, peak - least);
		compute = hr__plan_compute_ns(&m.step);
		CHECK_STATUS(HR_OK, hr__plan_bound(&m.step, &m.machine, &extra));
		s.bound = compute + extra;
		try_gap(&s, 0);
		CHECK_GT(s.plans, 0);
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &plan));
		CHECK_GE(plan.bytes_in + plan.bytes_out, s.best_bytes);
		planned += (double)plan.step_ns;
		best += (double)s.best_ns;
		planned_bytes += (double)(plan.bytes_in + plan.bytes_out);
		best_bytes += (double)s.best_bytes;
		bound_share += (double)s.bound / (double)(s.best_ns > 0 ? s.best_ns : 1);
		if ((double)plan.step_ns > worst * (double)s.best_ns) worst = (double)plan.step_ns / (double)s.best_ns;
		hr__plan_free(&plan);
		searched++;
	}
	printf("# time: %.4f of the best (worst %.3f), bytes: %.4f of the fewest, bound: %.3f of the best\n", planned / best, worst,
	       planned_bytes / best_bytes, bound_share / (double)searched);
	CHECK_LE(planned, 1.03 * best);
	CHECK_LE(planned_bytes, 1.05 * best_bytes);
}

static void test_bound_is_below_every_plan_made(void)
{
	static model m;
	for (uint64_t round = 0; round < hr_test_scaled(3000); round++) {
		uint64_t seed = hr_test_seed() * 1000081 + round, extra, ends[60];
		hr__plan plan;
		model_random(&m, round % 3 == 0 ? 40 : 12, round % 3 == 0 ? 30 : 12, &seed);
		pick_memory(&m, &seed);
		CHECK_STATUS(HR_OK, hr__plan_make(&m.step, &m.machine, &plan));
		CHECK_STATUS(HR_OK, hr__plan_bound(&m.step, &m.machine, &extra));
		if (hr__plan_peak(&m.step) <= m.machine.memory) CHECK_EQ(extra, 0);
		model_run(&m, plan.moves, plan.move_count, 60, ends);
		/* If the steps repeat, with whatever period, twice as many take twice as long. */
		if (ends[59] - ends[39] == ends[39] - ends[19]) CHECK_GE(ends[59] - ends[39], 20 * (hr__plan_compute_ns(&m.step) + extra));
		hr__plan_free(&plan);
	}
}

/* Two ops that use different tensors, and memory for one: everything is moved all the time, and nothing can be hidden. */
static void test_plan_that_moves_everything_takes_the_time_of_its_copies(void)
{
	hr__plan_use uses[2] = { { 0, true }, { 1, true } };
	hr__plan_op ops[2] = { { .ns = 100 }, { .ns = 100, .first_use = 1 } };
	hr__plan_tensor tensors[2] = { { 1000, HR__PLAN_NEVER, true, false }, { 1000, HR__PLAN_NEVER, true, false } };
	hr__plan_step step = { .ops = ops, .uses = uses, .tensors = tensors, .op_count = 2, .use_count = 2, .tensor_count = 2 };
	hr__plan_machine machine = { .memory = 1000, .out_bytes_per_s = 1000000000, .in_bytes_per_s = 1000000000 };
	hr__plan plan;
	uint64_t extra;
	CHECK_STATUS(HR_OK, hr__plan_make(&step, &machine, &plan));
	CHECK_EQ(plan.move_count, 2);
	CHECK_EQ(plan.bytes_out, 2000);
	CHECK_EQ(plan.bytes_in, 2000);
	CHECK_EQ(plan.step_ns, 200 + 4000);
	hr__plan_free(&plan);
	CHECK_STATUS(HR_OK, hr__plan_bound(&step, &machine, &extra));
	CHECK_EQ(extra, 2000); /* the bound ignores that one must be evicted before the other is restored */
}

/* ---- good plans ---- */

/* A training step: each layer makes a tensor that is used on the way back. Copies are hidden behind compute, so they cost no time.
 * */
static void test_plan_hides_what_the_links_can_hide(void)
{
	enum { LAYERS = 20 };
	hr__plan_use uses[2 * LAYERS];
	hr__plan_op ops[2 * LAYERS];
	hr__plan_tensor tensors[LAYERS];
	hr__plan_step step = {
		.ops = ops, .uses = uses, .tensors = tensors, .op_count = 2 * LAYERS, .use_count = 2 * LAYERS, .tensor_count = LAYERS
	};
	hr__plan_machine machine = { .memory = 10 << 20, .out_bytes_per_s = 2000000000, .in_bytes_per_s = 2000000000, .copy_ns = 10 };
	hr__plan plan;
	for (uint32_t i = 0; i < 2 * LAYERS; i++) {
		uint32_t t = i < LAYERS ? i : 2 * LAYERS - 1 - i;
		ops[i] = (hr__plan_op){ .ns = 1000000, .first_use = i };
		uses[i] = (hr__plan_use){ .tensor = t, .write = i < LAYERS };
		tensors[t] = (hr__plan_tensor){ .bytes = 1 << 20, .died = 2 * LAYERS - 1 - t };
	}
	CHECK_STATUS(HR_OK, hr__plan_make(&step, &machine, &plan));
	CHECK_EQ(plan.step_ns, hr__plan_compute_ns(&step));
	CHECK_EQ(plan.bytes_out, 10 << 20);
	CHECK_EQ(plan.bytes_in, 10 << 20);
	hr__plan_free(&plan);
}

/* Weights are read in sequence, with memory for half of them and a link that is just fast enough: the evicted ones must be spread
 * over the step. */
static void test_plan_spreads_restores(void)
{
	enum { LAYERS = 64 };
	hr__plan_use uses[LAYERS];
	hr__plan_op ops[LAYERS];
	hr__plan_tensor tensors[LAYERS];
	hr__plan_step step = {
		.ops = ops, .uses = uses, .tensors = tensors, .op_count = LAYERS, .use_count = LAYERS, .tensor_count = LAYERS
	};
	hr__plan_machine machine = { .memory = 32 << 20, .out_bytes_per_s = 1000000000, .in_bytes_per_s = 1000000000, .copy_ns = 10 };
	hr__plan plan;
	uint64_t copy_ns = (1 << 20) + 10, compute = 0;
	for (uint32_t i = 0; i < LAYERS; i++) {
		ops[i] = (hr__plan_op){ .ns = copy_ns * 6 / 10, .first_use = i };
		compute += ops[i].ns;
		uses[i] = (hr__plan_use){ .tensor = i };
		tensors[i] = (hr__plan_tensor){ .bytes = 1 << 20, .died = HR__PLAN_NEVER, .lived_before = true };
	}
	CHECK_STATUS(HR_OK, hr__plan_make(&step, &machine, &plan));
	CHECK_LE(plan.step_ns, compute + compute / 20); /* with adjacent ones, half as long again */
	CHECK_LE(plan.bytes_in, 36 << 20);
	hr__plan_free(&plan);
}

/* Weights that are only read are evicted without a copy. */
static void test_plan_leaves_clean_tensors_uncopied(void)
{
	enum { LAYERS = 8 };
	hr__plan_use uses[LAYERS];
	hr__plan_op ops[LAYERS];
	hr__plan_tensor tensors[LAYERS];
	hr__plan_step step = {
		.ops = ops, .uses = uses, .tensors = tensors, .op_count = LAYERS, .use_count = LAYERS, .tensor_count = LAYERS
	};
	hr__plan_machine machine = { .memory = 4 << 20, .out_bytes_per_s = 1000000000, .in_bytes_per_s = 1000000000, .copy_ns = 10 };
	hr__plan plan;
	for (uint32_t i = 0; i < LAYERS; i++) {
		ops[i] = (hr__plan_op){ .ns = 1000, .first_use = i };
		uses[i] = (hr__plan_use){ .tensor = i };
		tensors[i] = (hr__plan_tensor){ .bytes = 1 << 20, .died = HR__PLAN_NEVER, .lived_before = true };
	}
	CHECK_STATUS(HR_OK, hr__plan_make(&step, &machine, &plan));
	CHECK_EQ(plan.bytes_out, 0);
	CHECK_GE(plan.bytes_in, 4 << 20);
	for (uint32_t k = 0; k < plan.move_count; k++) CHECK(plan.moves[k].clean);
	hr__plan_free(&plan);
}

/* ---- invalid input ---- */

typedef struct small_step {
	hr__plan_op ops[3];
	hr__plan_use uses[4];
	hr__plan_tensor tensors[2];
	hr__plan_step step;
	hr__plan_machine machine;
} small_step;

static void make_small(small_step *s)
{
	*s = (small_step){ .ops = { { .ns = 10 }, { .ns = 10, .first_use = 1 }, { .ns = 10, .first_use = 3 } },
		               .uses = { { 0, true }, { 0, false }, { 1, true }, { 0, false } },
		               .tensors = { { 100, HR__PLAN_NEVER, true, false }, { 50, 1, false, false } },
		               .machine = { 1000, 1000, 1000, 0 } };
	s->step = (hr__plan_step){
		.ops = s->ops, .uses = s->uses, .tensors = s->tensors, .op_count = 3, .use_count = 4, .tensor_count = 2
	};
}

static void check_refused(small_step *s, const char *message)
{
	hr__plan plan;
	uint64_t extra;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__plan_make(&s->step, &s->machine, &plan));
	CHECK_CONTAINS(hr_last_message(), message);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__plan_bound(&s->step, &s->machine, &extra));
	make_small(s);
	CHECK_STATUS(HR_OK, hr__plan_make(&s->step, &s->machine, &plan));
	hr__plan_free(&plan);
}

static void test_plan_refuses_a_step_that_contradicts_itself(void)
{
	small_step s;
	make_small(&s);
	s.uses[2].tensor = 2;
	check_refused(&s, "use 2 names tensor 2, of 2");
	s.uses[2].tensor = 0;
	check_refused(&s, "op 1 uses tensor 0 twice");
	s.tensors[1].died = 0;
	check_refused(&s, "op 1 uses tensor 1, which was destroyed after op 0");
	s.tensors[0].died = 3;
	check_refused(&s, "tensor 0 is destroyed after op 3 of 3");
	s.ops[1].first_use = 4;
	check_refused(&s, "the uses of op 2 begin at 3, of 4");
	s.ops[2].first_use = 5;
	check_refused(&s, "the uses of op 2 begin at 5, of 4");
	s.ops[0].first_use = 1;
	check_refused(&s, "the uses of op 0 begin at 1, of 4");
	s.tensors[0].bytes = UINT64_MAX;
	check_refused(&s, "more than 2^64 bytes");
	s.ops[1].ns = UINT64_MAX;
	check_refused(&s, "more than 2^64 ns");
	s.machine.in_bytes_per_s = 0;
	check_refused(&s, "0 bytes per second");
	s.step.op_count = 0;
	check_refused(&s, "uses without an op");
	s.tensors[0].died = 3;
	CHECK_EQ(hr__plan_least(&s.step, NULL), 0);
	CHECK_EQ(hr__plan_peak(&s.step), 0);
}

static void test_plan_takes_a_step_without_ops(void)
{
	hr__plan_tensor tensor = { 100, HR__PLAN_NEVER, true, false };
	hr__plan_step step = { .tensors = &tensor, .tensor_count = 1, .other_bytes = 5 };
	hr__plan_machine machine = { .memory = 105, .out_bytes_per_s = 1, .in_bytes_per_s = 1 };
	hr__plan plan;
	uint64_t extra = 1;
	CHECK_EQ(hr__plan_peak(&step), 105);
	CHECK_EQ(hr__plan_least(&step, NULL), 105);
	CHECK_EQ(hr__plan_compute_ns(&step), 0);
	CHECK_STATUS(HR_OK, hr__plan_make(&step, &machine, &plan));
	CHECK_EQ(plan.move_count, 0);
	hr__plan_free(&plan);
	CHECK_STATUS(HR_OK, hr__plan_bound(&step, &machine, &extra));
	CHECK_EQ(extra, 0);
	machine.memory = 104;
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__plan_make(&step, &machine, &plan));
}

/* Sizes and times near the largest values: nothing wraps around (a sanitizer checks), and the plan is valid. */
static void test_plan_survives_the_largest_numbers(void)
{
	hr__plan_use uses[2] = { { 0, true }, { 1, true } };
	hr__plan_op ops[2] = { { .ns = UINT64_MAX / 2 }, { .ns = UINT64_MAX / 2, .first_use = 1 } };
	hr__plan_tensor tensors[2] = { { UINT64_MAX / 2, HR__PLAN_NEVER, true, false },
		                           { UINT64_MAX / 2, HR__PLAN_NEVER, true, false } };
	hr__plan_step step = { .ops = ops, .uses = uses, .tensors = tensors, .op_count = 2, .use_count = 2, .tensor_count = 2 };
	hr__plan_machine machine = {
		.memory = UINT64_MAX / 2, .out_bytes_per_s = 1, .in_bytes_per_s = UINT64_MAX, .copy_ns = UINT64_MAX
	};
	hr__plan plan;
	uint64_t extra;
	CHECK_STATUS(HR_OK, hr__plan_make(&step, &machine, &plan));
	CHECK_EQ(plan.move_count, 2);
	hr__plan_free(&plan);
	CHECK_STATUS(HR_OK, hr__plan_bound(&step, &machine, &extra));
	CHECK_GT(extra, 0);
}

/* ---- no memory ---- */

static void test_plan_without_host_memory_fails_and_leaks_nothing(void)
{
	static model m;
	uint64_t seed = hr_test_seed();
	hr__plan plan;
	uint64_t extra;
	do {
		model_random(&m, 30, 30, &seed);
		m.machine.memory = hr__plan_least(&m.step, NULL);
	} while (m.machine.memory >= hr__plan_peak(&m.step));
	hr_fault_os_install();
	for (uint64_t n = 1;; n++) {
		hr_fault_os_fail_nth(n, false, ENOMEM);
		hr_status status = hr__plan_make(&m.step, &m.machine, &plan);
		if (status == HR_OK) {
			CHECK_LT(hr_fault_os_calls(), n);
			CHECK_GT(n, 20);
			break;
		}
		CHECK_STATUS(HR_NO_HOST_MEMORY, status);
		CHECK(hr_fault_os_is_clean());
	}
	hr__plan_free(&plan);
	CHECK(hr_fault_os_is_clean());
	for (uint64_t n = 1;; n++) {
		hr_fault_os_fail_nth(n, false, ENOMEM);
		if (hr__plan_bound(&m.step, &m.machine, &extra) == HR_OK) break;
		CHECK(hr_fault_os_is_clean());
	}
	hr_fault_os_fail_nth(1, true, ENOMEM);
	CHECK_EQ(hr__plan_least(&m.step, NULL), 0);
	CHECK_EQ(hr__plan_peak(&m.step), 0);
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

TEST_MAIN(T(test_plan_keeps_the_rules_of_the_model), T(test_plan_needs_the_least_memory_and_no_less),
          T(test_plan_is_the_same_every_time), T(test_bound_is_beaten_by_no_plan_and_plans_are_close_to_the_best),
          T(test_bound_is_below_every_plan_made), T(test_plan_that_moves_everything_takes_the_time_of_its_copies),
          T(test_plan_hides_what_the_links_can_hide), T(test_plan_spreads_restores),
          T(test_plan_leaves_clean_tensors_uncopied), T(test_plan_refuses_a_step_that_contradicts_itself),
          T(test_plan_takes_a_step_without_ops), T(test_plan_survives_the_largest_numbers),
          T(test_plan_without_host_memory_fails_and_leaks_nothing))
