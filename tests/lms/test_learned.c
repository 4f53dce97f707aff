/* test_learned.c - the learned policy on the simulated device, in virtual time: its gain on steps that repeat, and that it loses
 * nothing on those that do not.
 *
 * A step is a chain: forward, each layer makes an activation from a weight and the previous activation; backward, in reverse, each
 * activation is used again and destroyed. The same program runs under lru, which moves tensors on demand, and times are compared
 * step by step. */
#include "fixture.h"
#include "core/device/device.h"
#include "fault_os.h"
#include "core/lms/policy/learned.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)
#define LAYERS_MAX 64u
#define STEPS_MAX 96u

/* How a step differs. */
enum kind {
	PLAIN,
	LONGER,    /* an op in the middle that uses old activations again */
	REORDERED, /* activations are made in another order than they are used */
	WIDER,     /* half of the activations are twice as large */
	SHORTER    /* half of the layers */
};

struct chain {
	uint32_t layers, steps;
	uint64_t weight, act; /* bytes */
	uint64_t forward_ns;  /* of a layer; backward takes twice that */
	uint64_t limit;
	bool unmarked;    /* no steps are marked */
	bool twice;       /* ops list some of their tensors twice */
	bool grouped;     /* ops pin their tensors one by one, in a group of calls */
	bool overlapping; /* the first activation is destroyed in the next step, after its successor was made */
	uint64_t kept;    /* bytes of a tensor that stays pinned and is not used */
	uint64_t link;    /* bytes per second; 0 = the default */
	enum kind (*kind)(uint32_t step);
	uint32_t *after; /* runs other ops after the steps; gets the peak of strays.count */
};

struct outcome {
	uint64_t ns[STEPS_MAX]; /* of each step */
	int64_t misses[STEPS_MAX], hits[STEPS_MAX];
	hr_lms_stats stats;
	uint64_t link_out, link_in; /* bytes per second, as the policy knows them in the end */
};

static struct {
	hr_allocator allocator;
	hr_device device;
	hr_stream stream;
	hr__lms *lms;
	bool grouped;
	hr_tensor weights[LAYERS_MAX], acts[LAYERS_MAX], old;
} here;

static hr_tensor create(uint64_t bytes)
{
	return fixture_tensor(here.allocator, bytes);
}

/* As ops that call other ops do. */
static void grouped_op(const hr_pin *pins, size_t count, uint64_t ns)
{
	hr_pin_group_begin();
	for (size_t i = 0; i < count; i++) {
		hr_pin_group_begin();
		CHECK_STATUS(HR_OK, hr_tensor_pin_all(&pins[i], 1, here.stream));
		hr_pin_group_end();
		CHECK_STATUS(HR_OK, hr__device_compute(here.lms->device, here.stream, i + 1 < count ? 0 : ns));
	}
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, count, here.stream));
	hr_pin_group_end();
	hr_pin_group_end(); /* has no effect */
}

static void op(const hr_pin *pins, size_t count, uint64_t ns)
{
	if (here.grouped) {
		grouped_op(pins, count, ns);
		return;
	}
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, count, here.stream));
	CHECK_STATUS(HR_OK, hr__device_compute(here.lms->device, here.stream, ns));
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, count, here.stream));
}

static uint64_t act_bytes(const struct chain *chain, enum kind kind, uint32_t layer)
{
	return kind == WIDER && layer % 2 ? 2 * chain->act : chain->act;
}

static void run_step(const struct chain *chain, enum kind kind)
{
	uint32_t layers = kind == SHORTER ? chain->layers / 2 : chain->layers;
	if (!chain->unmarked) CHECK_STATUS(HR_OK, hr_step_begin(here.allocator));
	if (kind == REORDERED)
		for (uint32_t i = layers; i-- > 0;) here.acts[i] = create(act_bytes(chain, kind, i));
	for (uint32_t i = 0; i < layers; i++) {
		if (kind != REORDERED) here.acts[i] = create(act_bytes(chain, kind, i));
		hr_pin pins[] = { { here.acts[i], HR_OVERWRITE },
			              { here.weights[i], HR_READ },
			              { i ? here.acts[i - 1] : here.weights[i], HR_READ } };
		op(pins, 3, chain->forward_ns);
		if (i == 0 && here.old.id) CHECK_STATUS(HR_OK, hr_tensor_destroy(here.old));
		if (kind == LONGER && i == layers / 2) {
			hr_pin again[] = { { here.acts[1], HR_READ }, { here.acts[layers / 4], HR_READ } };
			op(again, 2, chain->forward_ns);
		}
	}
	for (uint32_t i = layers; i-- > 0;) {
		hr_pin pins[] = { { here.acts[i], HR_READ },
			              { here.weights[i], chain->twice ? HR_READ : HR_WRITE },
			              { i ? here.acts[i - 1] : here.weights[i], HR_READ },
			              { here.weights[i], HR_WRITE },
			              { here.acts[i], HR_READ } };
		op(pins, chain->twice ? 5 : 3, 2 * chain->forward_ns);
		if (i == 0 && chain->overlapping) here.old = here.acts[i];
		else CHECK_STATUS(HR_OK, hr_tensor_destroy(here.acts[i]));
	}
	if (!chain->unmarked) CHECK_STATUS(HR_OK, hr_step_end(here.allocator));
}

static uint64_t compute_ns(const struct chain *chain, enum kind kind)
{
	uint64_t layers = kind == SHORTER ? chain->layers / 2 : chain->layers;
	return (3 * layers + (kind == LONGER)) * chain->forward_ns;
}

static uint64_t time_now(void)
{
	uint64_t mark, ns;
	CHECK_STATUS(HR_OK, hr__device_mark_timed(here.lms->device, here.stream, &mark));
	CHECK_STATUS(HR_OK, hr__device_mark_time(here.lms->device, here.stream, mark, &ns));
	return ns;
}

/* Runs ops on all weights in turn, which do not fit beside a pinned tensor. */
static void run_loose_ops(const struct chain *chain)
{
	hr_tensor large = create(chain->limit - 4 * chain->weight);
	op(&(hr_pin){ large, HR_OVERWRITE }, 1, 0);
	CHECK_STATUS(HR_OK, hr_tensor_pin(large, HR_READ, here.stream));
	for (uint32_t i = 0; i < hr_test_scaled(5000); i++) {
		op(&(hr_pin){ here.weights[i * 7 % chain->layers], HR_READ }, 1, 1000);
		if (here.lms->learned->unplanned_tensors.count > *chain->after) *chain->after = here.lms->learned->unplanned_tensors.count;
	}
	CHECK_STATUS(HR_OK, hr_tensor_unpin(large, here.stream));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(large));
}

static void set_link(uint64_t bytes_per_s)
{
	hr_simulated_options options;
	hr_simulated_options_init(&options);
	options.link_bytes_per_s = bytes_per_s;
	CHECK_STATUS(HR_OK, hr_simulated_configure(&options));
}

static void run(const struct chain *chain, const char *policy, struct outcome *out)
{
	memset(&here, 0, sizeof here);
	memset(out, 0, sizeof *out);
	here.grouped = chain->grouped;
	hr_fault_os_install();
	fixture_configure_simulated(FIXTURE_DEFAULT, FIXTURE_DEFAULT);
	if (chain->link) set_link(chain->link);
	here.device = fixture_device("SIM:0");
	CHECK_STATUS(HR_OK, hr_stream_create(here.device, &here.stream));
	here.allocator = fixture_allocator(here.device, chain->limit);
	fixture_lms(here.allocator, policy, UINT64_C(64) << 30);
	hr__reclaim_compares = true;
	CHECK_STATUS(HR_OK, hr__lms_of(here.allocator, &here.lms));
	for (uint32_t i = 0; i < chain->layers; i++) {
		here.weights[i] = create(chain->weight);
		op(&(hr_pin){ here.weights[i], HR_OVERWRITE }, 1, 0);
	}
	hr_tensor kept = { 0 };
	if (chain->kept) {
		kept = create(chain->kept);
		CHECK_STATUS(HR_OK, hr_tensor_pin(kept, HR_OVERWRITE, here.stream));
	}
	uint64_t before = time_now();
	for (uint32_t i = 0; i < chain->steps; i++) {
		hr_lms_stats earlier = fixture_lms_stats(here.allocator);
		run_step(chain, chain->kind ? chain->kind(i) : PLAIN);
		uint64_t now = time_now();
		out->stats = (hr_lms_stats){ .struct_size = sizeof out->stats };
		CHECK_STATUS(HR_OK, hr_lms_get_stats(here.allocator, &out->stats));
		out->ns[i] = now - before;
		out->misses[i] = out->stats.num_prefetch_misses - earlier.num_prefetch_misses;
		out->hits[i] = out->stats.num_prefetch_hits - earlier.num_prefetch_hits;
		before = now;
		CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
		CHECK_STATUS(HR_OK, hr_allocator_check(here.allocator));
	}
	if (chain->after) run_loose_ops(chain);
	if (here.lms->learned) {
		out->link_out = hr__link_out(&here.lms->learned->link);
		out->link_in = hr__link_in(&here.lms->learned->link);
	}
	if (chain->kept) CHECK_STATUS(HR_OK, hr_tensor_unpin(kept, here.stream));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(here.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

static void print(const char *name, const struct chain *chain, const struct outcome *out)
{
	printf("# %s:", name);
	for (uint32_t i = 0; i < chain->steps; i++) printf(" %.2f/%lld", (double)out->ns[i] / 1e6, (long long)out->misses[i]);
	printf("\n");
}

static void compare(const struct chain *chain, struct outcome *learned, struct outcome *lru)
{
	run(chain, "learned", learned);
	run(chain, "lru", lru);
	print("learned (ms/misses)", chain, learned);
	print("lru    ", chain, lru);
	printf("# compute %.2f ms\n", (double)compute_ns(chain, PLAIN) / 1e6);
}

/* 24 layers, 64 MiB weights, 96 MiB activations: 3.8 GiB in 2 GiB; 1.2 ms to move an activation. */
static struct chain usual_chain(void)
{
	return (
		struct chain){ .layers = 24, .steps = 16, .weight = 64 * MIB, .act = 96 * MIB, .forward_ns = 2000000, .limit = 2048 * MIB };
}

static uint64_t extra(const struct outcome *out, const struct chain *chain, uint32_t step)
{
	uint64_t compute = compute_ns(chain, PLAIN);
	return out->ns[step] > compute ? out->ns[step] - compute : 0;
}

/* From the second step on all pins find resident tensors, and a step takes at most [part] of lru's time beyond compute. */
static void check_gain(const struct chain *chain, double part)
{
	static struct outcome learned, lru;
	compare(chain, &learned, &lru);
	for (uint32_t i = 1; i < chain->steps; i++) {
		CHECK_EQ(learned.misses[i], 0);
		CHECK_GT(learned.hits[i], 0);
		CHECK_GT(lru.misses[i], 0);
		CHECK_LE((double)extra(&learned, chain, i), part * (double)extra(&lru, chain, i));
	}
	CHECK_EQ(learned.stats.num_steps_planned, chain->steps - 1);
	CHECK_EQ(learned.stats.num_mismatches, 0);
	CHECK_LE(learned.stats.plan_bound_ns, (int64_t)extra(&learned, chain, chain->steps - 1) + 1);
}

static void test_tensors_are_prefetched_from_the_second_step_on(void)
{
	struct chain chain = usual_chain();
	check_gain(&chain, 0.25);
}

/* The link is the bottleneck: it is always busy, and steps under lru wait for it more than twice as long. */
static void test_a_step_that_the_link_bounds_gains_too(void)
{
	struct chain chain = usual_chain();
	chain.forward_ns = 500000;
	check_gain(&chain, 0.65);
}

static void test_a_deep_chain_of_small_tensors_gains_too(void)
{
	struct chain chain = { .layers = 60, .steps = 16, .weight = 2 * MIB, .act = 6 * MIB, .forward_ns = 200000, .limit = 256 * MIB };
	check_gain(&chain, 0.5);
}

/* The activation of the last step is destroyed when its successor already has its place in the plan. */
static void test_a_tensor_that_outlives_its_step_is_prefetched(void)
{
	struct chain chain = usual_chain();
	chain.overlapping = true;
	check_gain(&chain, 0.25);
}

static void test_an_op_that_names_a_tensor_twice_uses_it_once(void)
{
	struct chain chain = usual_chain();
	chain.twice = true;
	check_gain(&chain, 0.25);
}

/* The pin calls of a group are one op: steps take the time that they take with one call for each op. */
static void test_a_group_of_pin_calls_is_planned_as_one_op(void)
{
	static struct outcome grouped, plain;
	struct chain chain = usual_chain();
	run(&chain, "learned", &plain);
	chain.grouped = true;
	run(&chain, "learned", &grouped);
	print("one call", &chain, &plain);
	print("grouped ", &chain, &grouped);
	for (uint32_t i = 2; i < chain.steps; i++) {
		CHECK_EQ(grouped.misses[i], 0);
		CHECK_GT(grouped.hits[i], 0);
		CHECK_LE((double)grouped.ns[i], 1.05 * (double)plain.ns[i]);
	}
	CHECK_EQ(grouped.stats.plan_step_ns, plain.stats.plan_step_ns);
}

/* A tensor that stays pinned from step to step is memory that plans cannot use. */
static void test_a_tensor_that_stays_pinned_is_not_planned(void)
{
	struct chain chain = usual_chain();
	static struct outcome outcome;
	chain.kept = 5 * chain.weight;
	run(&chain, "learned", &outcome);
	print("kept", &chain, &outcome);
	for (uint32_t i = 2; i < chain.steps; i++) CHECK_EQ(outcome.misses[i], 0);
}

/* ---- steps that differ ---- */

static enum kind other;

static enum kind once(uint32_t step)
{
	return step == 11 ? other : PLAIN;
}

static enum kind alternating(uint32_t step)
{
	return step % 2 ? other : PLAIN;
}

/* One step differs: it takes at most [part] of its time under lru, and the second step after it is as fast as those before. The
 * first one after it has to restore what the different step evicted. */
static void check_odd_step(enum kind kind, double part)
{
	static struct outcome learned, lru;
	struct chain chain = usual_chain();
	other = kind;
	chain.kind = once;
	chain.steps = 18;
	compare(&chain, &learned, &lru);
	CHECK_LE((double)learned.ns[11], part * (double)lru.ns[11]);
	CHECK_LE((double)learned.ns[12], 1.02 * (double)learned.ns[9]);
	for (uint32_t i = 13; i < chain.steps; i++) CHECK_LE((double)learned.ns[i], 1.02 * (double)learned.ns[9]);
	for (uint32_t i = 13; i < chain.steps; i++) CHECK_EQ(learned.misses[i], 0);
}

static void test_a_step_with_an_op_more_costs_no_more_than_lru(void)
{
	check_odd_step(LONGER, 1);
}

static void test_a_step_with_larger_tensors_costs_no_more_than_lru(void)
{
	check_odd_step(WIDER, 1);
}

static void test_a_step_with_fewer_layers_costs_no_more_than_lru(void)
{
	check_odd_step(SHORTER, 1);
}

/* Tensors are identified by their order of creation, and all of these have the same size: each is mistaken for another, until their
 * uses differ. */
static void test_tensors_made_in_another_order_cost_no_more_than_lru(void)
{
	check_odd_step(REORDERED, 1);
}

/* Steps of two kinds in turn: in total no slower than lru. */
static void check_alternating(enum kind kind)
{
	static struct outcome learned, lru;
	struct chain chain = usual_chain();
	uint64_t sums[2] = { 0 };
	other = kind;
	chain.kind = alternating;
	chain.steps = 24;
	compare(&chain, &learned, &lru);
	for (uint32_t i = 2; i < chain.steps; i++) {
		sums[0] += learned.ns[i];
		sums[1] += lru.ns[i];
	}
	CHECK_LE(sums[0], sums[1]);
}

static void test_steps_of_alternating_shapes_cost_no_more_than_lru(void)
{
	check_alternating(LONGER);
	check_alternating(WIDER);
	check_alternating(SHORTER);
	check_alternating(REORDERED);
}

/* Unplanned evictions in a step without a plan are not kept in a list that grows. */
static void test_ops_outside_of_steps_leak_nothing(void)
{
	struct chain chain = usual_chain();
	static struct outcome outcome;
	uint32_t most = 0;
	chain.steps = 6;
	chain.after = &most;
	run(&chain, "learned", &outcome);
	CHECK_LE(most, 4 * chain.layers);
}

/* Tensors of a MiB, a link of 2 GB/s: a copy takes 0.5 ms. Without the copies' times the policy would assume a link that is 25 times as fast. */
static void test_the_speed_of_a_slow_link_is_known_from_small_copies(void)
{
	static struct outcome outcome;
	struct chain chain = { .layers = 40, .steps = 8, .weight = MIB, .act = MIB, .forward_ns = 100000, .limit = 48 * MIB, .link = UINT64_C(2000000000) };
	run(&chain, "learned", &outcome);
	printf("# out %.2f, in %.2f GB/s\n", (double)outcome.link_out / 1e9, (double)outcome.link_in / 1e9);
	CHECK_GT(outcome.link_out, chain.link * 9 / 10);
	CHECK_LE(outcome.link_out, chain.link * 11 / 10);
	CHECK_GT(outcome.link_in, chain.link * 9 / 10);
	CHECK_LE(outcome.link_in, chain.link * 11 / 10);
}

/* ---- no steps ---- */

static void test_without_marked_steps_it_is_no_worse_than_lru(void)
{
	static struct outcome learned, lru;
	struct chain chain = usual_chain();
	chain.unmarked = true;
	compare(&chain, &learned, &lru);
	for (uint32_t i = 0; i < chain.steps; i++) CHECK_LE(learned.ns[i], lru.ns[i]);
}

TEST_MAIN(T(test_the_speed_of_a_slow_link_is_known_from_small_copies), T(test_tensors_are_prefetched_from_the_second_step_on), T(test_a_step_that_the_link_bounds_gains_too),
          T(test_a_deep_chain_of_small_tensors_gains_too), T(test_a_tensor_that_outlives_its_step_is_prefetched), T(test_an_op_that_names_a_tensor_twice_uses_it_once),
          T(test_a_group_of_pin_calls_is_planned_as_one_op), T(test_a_tensor_that_stays_pinned_is_not_planned),
          T(test_ops_outside_of_steps_leak_nothing),
          T(test_a_step_with_an_op_more_costs_no_more_than_lru), T(test_a_step_with_larger_tensors_costs_no_more_than_lru),
          T(test_a_step_with_fewer_layers_costs_no_more_than_lru), T(test_tensors_made_in_another_order_cost_no_more_than_lru),
          T(test_steps_of_alternating_shapes_cost_no_more_than_lru), T(test_without_marked_steps_it_is_no_worse_than_lru))
