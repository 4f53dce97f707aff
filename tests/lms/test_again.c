/* test_again.c - steps in which the learned policy drops tensors and runs ops again, as its plan says, on a device with memory behind it:
 * every op finds the contents that it would find with enough memory, and after each step everything is consistent.
 *
 * The program is a small network. Layer i computes two activations, first[i] from weight[i] and the layer before, second[i] from
 * first[i]; the backward pass reads them in reverse order, and at the end all weights are written. The policy is told that the link is
 * slow, so its plans drop what has a recipe. */
#include <stdlib.h>

#include "core/lms/policy/learned.h"
#include "recipe_kit.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define LAYERS 12u
#define BYTES ((size_t)(128 * KIB))
#define SECOND UINT64_C(1000000000)
#define LINK 1000000u /* bytes per second, as the policy is told */

struct network {
	const char *policy;
	uint64_t limit;
	bool ghosts;      /* first[i] is destroyed once second[i] is computed */
	bool grouped;     /* both ops of a layer are in one pin group */
	bool takes;       /* recipes hand over memory of their own */
	bool late;        /* a recipe is set after the unpin */
	bool two_streams; /* layers take turns on two streams */
	bool verify;
	bool off;         /* options.recompute is off */
	bool in_place;    /* an op in place, in a pin group of its own, changes second[i] when it was computed: it reads the layer before, too */
	bool impure;      /* both ops of a layer are in one pin group, and the first has no recipe: what it makes is moved */
	bool placed;      /* the policy is told that mapping pages took a second in each step, so the plan assigns addresses */
	uint64_t lower;   /* the limit from step 6 on; 0 = the same */
	uint32_t (*layers)(uint32_t step); /* NULL: all */
	uint32_t steps;
};

struct value {
	hr_tensor tensor;
	unsigned char *expected;
};

static struct {
	const struct network *network;
	hr_device device;
	hr_allocator allocator;
	hr__lms *lms;
	hr_stream streams[2];
	struct value weights[LAYERS], first[LAYERS], second[LAYERS];
	kit_op ops[2 * LAYERS], changes[LAYERS], load, loss, backward[LAYERS], update[LAYERS];
	bool compares; /* ops compare what they read, so the host waits for the device */
	unsigned char found[BYTES];
	hr_stream last; /* the stream of the last op */
} here;

static kit_op make_op(unsigned char value)
{
	return (kit_op){ .device = here.device, .allocator = here.allocator, .bytes = BYTES, .value = value, .takes = here.network->takes };
}

static struct value create(void)
{
	struct value made = { fixture_tensor(here.allocator, BYTES), malloc(BYTES) };
	CHECK(made.expected != NULL);
	return made;
}

static void destroy(struct value *value)
{
	CHECK_STATUS(HR_OK, hr_tensor_destroy(value->tensor));
	free(value->expected);
	*value = (struct value){ { 0 }, NULL };
}

static void compare(const struct value *value, hr_stream stream)
{
	void *at;
	CHECK_STATUS(HR_OK, hr_tensor_get_address(value->tensor, &at));
	CHECK_STATUS(HR_OK, hr_stream_copy(here.device, here.found, at, BYTES, HR_COPY_TO_HOST, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(here.device, stream));
	CHECK(memcmp(here.found, value->expected, BYTES) == 0);
}

static void set_recipe(kit_op *op, const hr_tensor *ins, size_t count, hr_tensor out)
{
	hr_recipe recipe = kit_recipe(op, ins, count, &out, 1);
	recipe.cost_ns = 20000;
	CHECK_STATUS(here.network->off ? HR_UNSUPPORTED : HR_OK, hr_tensor_set_recipe(&recipe));
}

/* Computes [out] from [ins], on the device and in arrays. */
static void run_op(kit_op *op, const struct value *const *ins, size_t count, struct value *out, bool pure, hr_stream stream)
{
	hr_tensor tensors[KIT_MOST];
	const unsigned char *expected[KIT_MOST];
	hr_pin pins[KIT_MOST];
	void *addresses[KIT_MOST], *to;
	for (size_t i = 0; i < count; i++) {
		tensors[i] = ins[i]->tensor;
		expected[i] = ins[i]->expected;
		pins[i] = (hr_pin){ tensors[i], HR_READ };
	}
	pins[count] = (hr_pin){ out->tensor, HR_OVERWRITE };
	if (stream != here.last) CHECK_STATUS(HR_OK, hr_stream_wait_stream(here.device, stream, here.last));
	here.last = stream;
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, count + 1, stream));
	for (size_t i = 0; i < count; i++) {
		if (here.compares) compare(ins[i], stream);
		CHECK_STATUS(HR_OK, hr_tensor_get_address(tensors[i], &addresses[i]));
	}
	CHECK_STATUS(HR_OK, hr_tensor_get_address(out->tensor, &to));
	CHECK_STATUS(HR_OK, kit_compute(op, addresses, count, to, 0, stream));
	if (pure && !here.network->late) set_recipe(op, tensors, count, out->tensor);
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, count + 1, stream));
	if (pure && here.network->late) set_recipe(op, tensors, count, out->tensor);
	kit_expect(op, expected, count, out->expected, 0);
}

/* Changes [out] in place, and extends its recipe. */
static void change(kit_op *op, const struct value *in, struct value *out, hr_stream stream)
{
	const unsigned char *expected = in->expected;
	CHECK_STATUS(here.network->off ? HR_NOT_READY : HR_OK, hr_tensor_hold_recipe(out->tensor));
	hr_pin_group_begin();
	CHECK_STATUS(HR_OK, kit_run_in_place(op, &in->tensor, 1, out->tensor, stream));
	if (!here.network->off) {
		hr_recipe recipe = kit_recipe(op, &in->tensor, 1, &out->tensor, 1);
		recipe.recompute = kit_change_again;
		recipe.cost_ns = 20000;
		CHECK_STATUS(HR_OK, hr_tensor_extend_recipe(&recipe));
	}
	hr_pin_group_end();
	kit_expect_change(op, &expected, 1, out->expected);
}

static void run_step(uint32_t step)
{
	uint32_t layers = here.network->layers ? here.network->layers(step) : LAYERS;
	struct value input = create(), gradient, next;
	here.compares = step % 2 == 0;
	CHECK_STATUS(HR_OK, hr_step_begin(here.allocator));
	run_op(&here.load, NULL, 0, &input, false, here.streams[0]);
	for (uint32_t i = 0; i < layers; i++) {
		hr_stream stream = here.streams[here.network->two_streams ? i % 2 : 0];
		const struct value *before = i ? &here.second[i - 1] : &input;
		if (here.network->grouped || here.network->impure) hr_pin_group_begin();
		here.first[i] = create();
		run_op(&here.ops[2 * i], (const struct value *[]){ before, &here.weights[i] }, 2, &here.first[i], !here.network->impure, stream);
		here.second[i] = create();
		if (here.network->in_place && !here.network->impure) hr_pin_group_begin();
		run_op(&here.ops[2 * i + 1], (const struct value *[]){ &here.first[i] }, 1, &here.second[i], true, stream);
		if (here.network->in_place) hr_pin_group_end();
		if (here.network->ghosts || here.network->grouped) destroy(&here.first[i]); /* before the op in place */
		if (here.network->in_place) change(&here.changes[i], before, &here.second[i], stream);
		if (here.network->grouped) hr_pin_group_end();
	}
	gradient = create();
	run_op(&here.loss, (const struct value *[]){ &here.second[layers - 1] }, 1, &gradient, false, here.last);
	for (uint32_t i = layers; i-- > 0;) {
		hr_stream stream = here.streams[here.network->two_streams ? i % 2 : 0];
		bool both = here.first[i].tensor.id != 0;
		next = create();
		run_op(&here.backward[i], (const struct value *[]){ &gradient, &here.second[i], &here.weights[i], &here.first[i] }, both ? 4 : 3, &next,
		       false, stream);
		destroy(&gradient);
		destroy(&here.second[i]);
		if (both) destroy(&here.first[i]);
		gradient = next;
	}
	for (uint32_t i = 0; i < LAYERS; i++)
		run_op(&here.update[i], (const struct value *[]){ &gradient }, 1, &here.weights[i], false, here.streams[0]);
	destroy(&gradient);
	destroy(&input);
	CHECK_STATUS(HR_OK, hr_step_end(here.allocator));
}

static void check_all(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
	CHECK_STATUS(HR_OK, hr_allocator_check(here.allocator));
	CHECK(here.lms->ghosts == NULL); /* none has memory between steps */
	CHECK_EQ(here.lms->learned ? here.lms->learned->turns_running : 0, 0);
}

/* Tensors that got the memory that the layout has for them, when they were made again in the last step. */
static uint32_t places_used(void)
{
	const hr__learned *learned = here.lms->learned;
	uint32_t used = 0;
	for (uint32_t i = 0; i < learned->active_plan.place_count; i++) used += learned->active_plan.places[i].taken_in == learned->step;
	return used;
}

static hr_lms_stats run(const struct network *network)
{
	uint32_t used = 0;
	memset(&here, 0, sizeof here);
	here.network = network;
	here.device = fixture_emulated(64 * MIB, 64 * KIB, 0);
	here.streams[0] = here.last = fixture_stream(here.device);
	here.streams[1] = fixture_stream(here.device);
	here.allocator = fixture_allocator(here.device, network->limit);
	hr_lms_options options = fixture_lms_options(network->policy ? network->policy : "learned", 0);
	options.verify = network->verify;
	options.recompute = !network->off;
	CHECK_STATUS(HR_OK, hr_lms_configure(here.allocator, &options));
	CHECK_STATUS(HR_OK, hr__lms_of(here.allocator, &here.lms));
	if (here.lms->learned) here.lms->learned->link.out = here.lms->learned->link.in = (hr__link_speed){ .bytes = LINK, .ns = 1000000000 }; /* copies of small tensors are not timed */
	here.load = make_op(1);
	here.loss = make_op(2);
	for (uint32_t i = 0; i < LAYERS; i++) {
		here.ops[2 * i] = make_op((unsigned char)(10 + 2 * i));
		here.ops[2 * i + 1] = make_op((unsigned char)(11 + 2 * i));
		here.changes[i] = make_op((unsigned char)(60 + i));
		here.backward[i] = make_op((unsigned char)(100 + i));
		here.update[i] = make_op((unsigned char)(150 + i));
		here.weights[i] = create();
		run_op(&here.update[i], NULL, 0, &here.weights[i], false, here.streams[0]);
	}
	for (uint32_t step = 0; step < network->steps; step++) {
		if (network->placed) here.lms->learned->mapping -= SECOND;
		if (network->lower && step == 6) CHECK_STATUS(HR_OK, hr_lms_set_limit(here.allocator, network->lower));
		run_step(step);
		check_all();
		if (network->placed) used += places_used();
	}
	for (uint32_t i = 0; i < LAYERS; i++) {
		CHECK_STATUS(HR_OK, kit_read(here.device, here.weights[i].tensor, here.found, BYTES, here.streams[0]));
		CHECK(memcmp(here.found, here.weights[i].expected, BYTES) == 0);
		destroy(&here.weights[i]);
	}
	hr_lms_stats stats = fixture_lms_stats(here.allocator);
	if (network->placed) CHECK_GT(used, 0);
	if (network->lower) CHECK(here.lms->learned->memory <= network->lower && here.lms->learned->active_plan.plan.peak_bytes <= network->lower);
	printf("#   planned %lld of %lld steps, again %.3f ms a step, drops %lld, recomputed %lld (%lld as planned), moved %lld\n",
	       (long long)stats.num_steps_planned, (long long)stats.num_steps, (double)stats.plan_again_ns / 1e6, (long long)stats.num_drops,
	       (long long)stats.num_recomputes, (long long)stats.num_planned_recomputes, (long long)stats.num_evictions);
	CHECK_EQ(stats.num_tensors, 0);
	CHECK_EQ(stats.num_ghosts, 0);
	CHECK_EQ(stats.num_recipes, 0);
	CHECK_EQ(stats.num_failed_recomputes, 0);
	CHECK_STATUS(HR_OK, hr_allocator_destroy(here.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	return stats;
}

/* All activations and weights take 4.6 MiB, or 3.1 MiB with ghosts. */
static const struct network usual = { .limit = 3 * MIB, .steps = 8 };
static const struct network small = { .limit = 2304 * KIB, .steps = 8, .ghosts = true };

static void check_follows(const struct network *network)
{
	hr_lms_stats stats = run(network);
	CHECK_GE(stats.num_steps_planned, 6);
	CHECK_GT(stats.plan_again_ns, 0);
	CHECK_GT(stats.num_planned_recomputes, 0);
}

static void test_ops_run_again_as_planned_and_contents_are_right(void)
{
	check_follows(&usual);
}

static void test_ghosts_are_computed_and_kept_as_planned(void)
{
	check_follows(&small);
	/* A chain of ghosts runs once for all tensors that need it: no more than in the plan. */
}

static void test_ops_of_a_pin_group_run_again_together(void)
{
	struct network network = small;
	network.grouped = true;
	check_follows(&network);
}

static uint32_t half_of_them_once(uint32_t step)
{
	return step == 5 ? LAYERS / 2 : LAYERS;
}

/* The op in place is planned as a part of the op before it: plans are as good as without it. */
static void test_ops_in_place_run_again_with_the_op_that_made_their_tensor(void)
{
	struct network network = usual;
	network.in_place = true;
	check_follows(&network);
	hr_lms_stats stats = run(&network);
	CHECK_LE(stats.num_mismatches, 0);
	network.verify = network.takes = true;
	check_follows(&network);
	network = small;
	network.in_place = true;
	check_follows(&network);
	network.layers = half_of_them_once;
	network.steps = 10;
	check_follows(&network);
}

/* What is not dropped is moved, and nothing is copied before the op in place has run. */
static void test_what_an_op_in_place_changes_is_copied_once(void)
{
	struct network network = usual;
	network.in_place = network.impure = true;
	hr_lms_stats stats = run(&network);
	CHECK_EQ(stats.num_planned_recomputes, 0);
	CHECK_GT(stats.num_planned_evictions, 0);
	network.off = true;
	hr_lms_stats moved = run(&network);
	CHECK_LE(stats.bytes_copied_out, moved.bytes_copied_out + moved.bytes_copied_out / 8);
}

static void test_recipes_may_be_set_after_the_unpin(void)
{
	struct network network = usual;
	network.late = true;
	check_follows(&network);
}

static void test_recipes_may_hand_memory_over(void)
{
	struct network network = usual;
	network.takes = true;
	check_follows(&network);
	network = small;
	network.takes = true;
	check_follows(&network);
}

static void test_ops_run_again_on_the_stream_of_the_op_that_needs_them(void)
{
	struct network network = usual;
	network.two_streams = true;
	check_follows(&network);
	network = small;
	network.two_streams = true;
	check_follows(&network);
}

static void test_verify_finds_no_difference(void)
{
	struct network network = usual;
	network.verify = true;
	check_follows(&network);
}

static void test_nothing_runs_again_when_that_is_off(void)
{
	struct network network = usual;
	network.off = true;
	hr_lms_stats stats = run(&network);
	CHECK_GT(stats.num_evictions, 0);
	CHECK_EQ(stats.num_drops + stats.num_recomputes + stats.plan_again_ns, 0);
}

static void test_what_is_made_again_has_a_place_in_the_layout(void)
{
	struct network network = usual;
	network.placed = true;
	network.steps = 16;
	check_follows(&network);
	network.takes = true;
	check_follows(&network);
	network = small;
	network.placed = true;
	network.steps = 16;
	check_follows(&network);
}

static void test_another_limit_gets_another_plan(void)
{
	struct network network = usual;
	network.lower = 2304 * KIB;
	network.steps = 12;
	check_follows(&network);
	network.limit = 64 * MIB; /* there is no plan before */
	hr_lms_stats stats = run(&network);
	CHECK_GT(stats.num_planned_recomputes, 0);
}

static uint32_t fewer_and_fewer(uint32_t step)
{
	return LAYERS - step % 4;
}

static void test_a_step_that_differs_computes_what_it_should(void)
{
	struct network network = usual;
	network.layers = half_of_them_once;
	network.steps = 10;
	check_follows(&network);
	network = small;
	network.layers = half_of_them_once;
	network.steps = 10;
	check_follows(&network);
	network.layers = fewer_and_fewer;
	network.steps = 16;
	CHECK_GT(run(&network).num_drops, 0);
	network.policy = "lru";
	CHECK_GT(run(&network).num_drops, 0);
}

TEST_MAIN(T(test_ops_run_again_as_planned_and_contents_are_right), T(test_ghosts_are_computed_and_kept_as_planned),
          T(test_ops_of_a_pin_group_run_again_together), T(test_ops_in_place_run_again_with_the_op_that_made_their_tensor),
          T(test_what_an_op_in_place_changes_is_copied_once), T(test_recipes_may_be_set_after_the_unpin), T(test_recipes_may_hand_memory_over),
          T(test_ops_run_again_on_the_stream_of_the_op_that_needs_them), T(test_verify_finds_no_difference),
          T(test_nothing_runs_again_when_that_is_off), T(test_what_is_made_again_has_a_place_in_the_layout), T(test_a_step_that_differs_computes_what_it_should),
          T(test_another_limit_gets_another_plan))
