/* test_plan_kept.c - plans whose tensors have places, on the simulated device: they fit into the memory that was gathered, and are not exchanged
 * because ops take a little longer, since all tensors would have to move to new places for that. */
#include "core/device/device.h"
#include "core/lms/policy/learned.h"
#include "fixture.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)
#define LAYERS 24u
#define WEIGHTS (16 * MIB)
#define LIMIT (60 * MIB) /* of 224 */
#define OP_NS UINT64_C(300000)
#define MAP_NS UINT64_C(200000)

static hr_allocator allocator;
static hr__lms *lms;
static hr_tensor weights;

static void run_op(hr_tensor tensor, hr_access access, uint64_t ns)
{
	hr_pin pins[2] = { { .tensor = weights, .access = HR_READ }, { .tensor = tensor, .access = access } };
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, 2, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr__device_compute(lms->device, HR_STREAM_DEFAULT, ns));
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, 2, HR_STREAM_DEFAULT));
}

/* Each layer makes a tensor, of another size than its neighbours, which is read in the opposite order. Returns the step's time. */
static uint64_t run_step(uint64_t op_ns)
{
	hr_tensor made[LAYERS];
	uint64_t random = 7, begin = hr__device_clock_ns(lms->device);
	CHECK_STATUS(HR_OK, hr_step_begin(allocator));
	for (uint32_t i = 0; i < LAYERS; i++) {
		made[i] = fixture_tensor(allocator, (1 + hr_rand_below(&random, 20)) * MIB);
		run_op(made[i], HR_OVERWRITE, op_ns);
	}
	for (uint32_t i = LAYERS; i-- > 0;) {
		run_op(made[i], HR_READ, op_ns);
		CHECK_STATUS(HR_OK, hr_tensor_destroy(made[i]));
	}
	CHECK_STATUS(HR_OK, hr_step_end(allocator));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(fixture_device("SIM:0"), HR_STREAM_DEFAULT));
	return hr__device_clock_ns(lms->device) - begin;
}

static hr_lms_stats stats_of(void)
{
	hr_lms_stats stats;
	hr_lms_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_lms_get_stats(allocator, &stats));
	return stats;
}

static void open_device(void)
{
	hr_simulated_options simulated;
	hr_simulated_options_init(&simulated);
	simulated.memory_bytes = 1024 * MIB;
	simulated.map_ns = MAP_NS;
	CHECK_STATUS(HR_OK, hr_simulated_configure(&simulated));
	hr_allocator_options options = fixture_allocator_options(LIMIT);
	CHECK_STATUS(HR_OK, hr_allocator_create(fixture_device("SIM:0"), &options, &allocator));
	hr_lms_options given = fixture_lms_options("learned", 0);
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &given));
	CHECK_STATUS(HR_OK, hr__lms_of(allocator, &lms));
	weights = fixture_tensor(allocator, WEIGHTS);
	CHECK_STATUS(HR_OK, hr_tensor_pin(weights, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(weights, HR_STREAM_DEFAULT));
}

static void close_device(void)
{
	CHECK_STATUS(HR_OK, hr_tensor_destroy(weights));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_a_plan_with_places_is_kept_when_ops_take_longer(void)
{
	uint64_t usual = 0, longest = 0;
	open_device();
	for (int i = 0; i < 20; i++) usual = run_step(OP_NS);
	const hr__learned *learned = lms->learned;
	/* Gathering left less memory than the first plan needed, so that another one was made. */
	CHECK(learned->active_plan.laid_out && learned->area);
	CHECK_LE(learned->active_plan.layout_bytes, learned->area_bytes);
	const void *moves = learned->active_plan.plan.moves;
	uint32_t gathered = learned->gathered;
	hr_lms_stats before = stats_of();
	for (int i = 0; i < 20; i++) {
		/* Times that change back and forth by more than the twentieth part that counts as a change. */
		uint64_t ns = run_step(OP_NS + OP_NS / 10 * (uint64_t)(i / 4 % 2));
		if (ns > longest) longest = ns;
	}
	hr_lms_stats after = stats_of();
	printf("# a step takes %.1f ms, %.1f at most when ops take 10%% longer; planned %.1f; gathered %u times\n", (double)usual / 1e6,
	       (double)longest / 1e6, (double)learned->active_plan.plan.step_ns / 1e6, learned->gathered);
	CHECK(learned->active_plan.plan.moves == moves);
	CHECK_EQ(learned->gathered, gathered);
	CHECK_EQ(after.num_prefetches_refused, before.num_prefetches_refused);
	CHECK_EQ(after.num_prefetch_misses, before.num_prefetch_misses);
	CHECK_LE(usual, learned->active_plan.plan.step_ns);
	CHECK_LE(longest, usual + usual / 10);
	close_device();
}

/* Runs [count] steps. In number [slow] ops take longer, and the device is idle between steps. Returns the number of the last step before which memory was gathered. */
static uint32_t run_steps(uint32_t count, uint32_t slow)
{
	uint32_t found = UINT32_MAX, gathered = 0;
	for (uint32_t i = 0; i < count; i++) {
		run_step(i == slow ? OP_NS + OP_NS / 10 : OP_NS);
		if (i == slow) CHECK_STATUS(HR_OK, hr__device_compute(lms->device, HR_STREAM_DEFAULT, 2 * LAYERS * OP_NS));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(fixture_device("SIM:0"), HR_STREAM_DEFAULT));
		if (lms->learned->gathered == gathered) continue;
		gathered = lms->learned->gathered;
		found = i;
	}
	return found;
}

static void test_the_step_in_which_tensors_find_their_places_changes_no_plan(void)
{
	open_device();
	uint32_t last = run_steps(20, UINT32_MAX), gathered = lms->learned->gathered;
	uint64_t planned = lms->learned->active_plan.plan.step_ns, compute = lms->learned->active_plan.compute_ns;
	close_device();
	CHECK_LT(last, 20u);
	open_device();
	CHECK_EQ(run_steps(20, last), last);
	CHECK_EQ(lms->learned->gathered, gathered);
	CHECK_EQ(lms->learned->active_plan.plan.step_ns, planned);
	CHECK_EQ(lms->learned->active_plan.compute_ns, compute);
	close_device();
}

TEST_MAIN(T(test_a_plan_with_places_is_kept_when_ops_take_longer), T(test_the_step_in_which_tensors_find_their_places_changes_no_plan))
