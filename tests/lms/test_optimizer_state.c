/* test_optimizer_state.c - a model whose optimizer state is most of its memory, on the simulated device, in virtual time. State and weights cannot be
 * computed again, but the state is idle all through the forward and backward pass: plans move it, its copies hide behind the ops, and nothing is computed
 * again. An optimizer that updates each weight in a call of its own (in PyTorch: foreach=False) needs the state of one weight at a time; one call for all
 * weights needs everything at once.
 *
 * A layer has a weight, a gradient and two states of 8 MiB each, and an activation of 12 MiB that has a recipe. With 16 layers the forward pass ends with 576
 * MiB, 256 of them state, and the optimizer needs 512. */
#include "fixture.h"
#include "core/device/device.h"
#include "core/lms/lms.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)
#define LAYERS 16u
#define LARGE (8 * MIB)
#define ACT (12 * MIB)
#define LIMIT (530 * MIB)
#define FORWARD_NS UINT64_C(1000000)
#define BACKWARD_NS (2 * FORWARD_NS)
#define UPDATE_NS UINT64_C(100000)
#define STEPS 10u

static struct {
	hr_device device;
	hr_allocator allocator;
	hr_stream stream;
	hr__lms *lms;
	hr_tensor weights[LAYERS], first[LAYERS], second[LAYERS], acts[LAYERS + 1], gradients[LAYERS];
} here;

static hr_status pin_and_compute(const hr_pin *pins, size_t count, uint64_t ns)
{
	hr_status status = hr_tensor_pin_all(pins, count, here.stream);
	if (status) return status;
	CHECK_STATUS(HR_OK, hr__device_compute(here.lms->device, here.stream, ns));
	return hr_tensor_unpin_all(pins, count, here.stream);
}

static hr_status compute_again(void *user, const hr_recompute *call)
{
	void *address;
	(void)user;
	hr_status status = hr_tensor_get_address(call->outputs[0], &address);
	return status ? status : hr__device_compute(here.lms->device, call->stream, FORWARD_NS);
}

static void run_forward(uint32_t i)
{
	here.acts[i + 1] = fixture_tensor(here.allocator, ACT);
	hr_pin pins[] = { { here.acts[i], HR_READ }, { here.weights[i], HR_READ }, { here.acts[i + 1], HR_OVERWRITE } };
	hr_tensor inputs[] = { here.acts[i], here.weights[i] };
	CHECK_STATUS(HR_OK, pin_and_compute(pins, 3, FORWARD_NS));
	hr_recipe recipe;
	hr_recipe_init(&recipe);
	recipe.recompute = compute_again;
	recipe.inputs = inputs;
	recipe.input_count = 2;
	recipe.outputs = &here.acts[i + 1];
	recipe.output_count = 1;
	recipe.cost_ns = FORWARD_NS;
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
}

static void run_backward(uint32_t i)
{
	here.gradients[i] = fixture_tensor(here.allocator, LARGE);
	hr_pin pins[] = { { here.acts[i + 1], HR_READ }, { here.acts[i], HR_READ }, { here.weights[i], HR_READ }, { here.gradients[i], HR_OVERWRITE } };
	CHECK_STATUS(HR_OK, pin_and_compute(pins, 4, BACKWARD_NS));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(here.acts[i + 1]));
}

/* The status of the optimizer: of one call for all weights, if [fused]. */
static hr_status update(bool fused)
{
	hr_pin pins[4 * LAYERS];
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < LAYERS; i++) {
		pins[4 * i] = (hr_pin){ here.weights[i], HR_WRITE };
		pins[4 * i + 1] = (hr_pin){ here.first[i], HR_WRITE };
		pins[4 * i + 2] = (hr_pin){ here.second[i], HR_WRITE };
		pins[4 * i + 3] = (hr_pin){ here.gradients[i], HR_READ };
		if (!fused && !status) status = pin_and_compute(&pins[4 * i], 4, UPDATE_NS);
	}
	if (fused) status = pin_and_compute(pins, 4 * LAYERS, LAYERS * UPDATE_NS);
	for (uint32_t i = 0; i < LAYERS; i++) CHECK_STATUS(HR_OK, hr_tensor_destroy(here.gradients[i]));
	return status;
}

static hr_status run_step(bool fused)
{
	CHECK_STATUS(HR_OK, hr_step_begin(here.allocator));
	here.acts[0] = fixture_tensor(here.allocator, ACT);
	CHECK_STATUS(HR_OK, pin_and_compute(&(hr_pin){ here.acts[0], HR_OVERWRITE }, 1, 0));
	for (uint32_t i = 0; i < LAYERS; i++) run_forward(i);
	for (uint32_t i = LAYERS; i-- > 0;) run_backward(i);
	CHECK_STATUS(HR_OK, hr_tensor_destroy(here.acts[0]));
	hr_status status = update(fused);
	CHECK_STATUS(HR_OK, hr_step_end(here.allocator));
	return status;
}

static void create(hr_tensor *tensor)
{
	*tensor = fixture_tensor(here.allocator, LARGE);
	CHECK_STATUS(HR_OK, pin_and_compute(&(hr_pin){ *tensor, HR_OVERWRITE }, 1, 0));
}

static void begin(void)
{
	here.device = fixture_simulated(FIXTURE_DEFAULT, FIXTURE_DEFAULT);
	CHECK_STATUS(HR_OK, hr_stream_create(here.device, &here.stream));
	here.allocator = fixture_allocator(here.device, LIMIT);
	fixture_lms(here.allocator, "learned", UINT64_C(64) << 30);
	CHECK_STATUS(HR_OK, hr__lms_of(here.allocator, &here.lms));
	for (uint32_t i = 0; i < LAYERS; i++) {
		create(&here.weights[i]);
		create(&here.first[i]);
		create(&here.second[i]);
	}
}

static uint64_t time_now(void)
{
	uint64_t mark, ns;
	CHECK_STATUS(HR_OK, hr__device_mark_timed(here.lms->device, here.stream, &mark));
	CHECK_STATUS(HR_OK, hr__device_mark_time(here.lms->device, here.stream, mark, &ns));
	return ns;
}

static int64_t evictions_of(const hr_tensor *tensors)
{
	int64_t evictions = 0;
	for (uint32_t i = 0; i < LAYERS; i++) {
		hr_tensor_info info;
		hr_tensor_info_init(&info);
		CHECK_STATUS(HR_OK, hr_tensor_get_info(tensors[i], &info));
		evictions += (int64_t)info.evictions;
	}
	return evictions;
}

static void test_state_moves_behind_the_ops_and_nothing_is_computed_again(void)
{
	uint64_t compute = LAYERS * (FORWARD_NS + BACKWARD_NS + UPDATE_NS), ns[STEPS];
	hr_lms_stats before, after;
	int64_t states_before = 0;
	begin();
	for (uint32_t step = 0; step < STEPS; step++) {
		uint64_t start = time_now();
		before = fixture_lms_stats(here.allocator);
		states_before = evictions_of(here.first) + evictions_of(here.second);
		CHECK_STATUS(HR_OK, run_step(false));
		ns[step] = time_now() - start;
		printf("# step %u: %.2f ms, %.2f without a limit\n", step, (double)ns[step] / 1e6, (double)compute / 1e6);
	}
	after = fixture_lms_stats(here.allocator);
	int64_t states = evictions_of(here.first) + evictions_of(here.second) - states_before, all = after.num_evictions - before.num_evictions;
	printf("# the last step evicted %lld tensors, %lld of them states, and copied %lld MiB each way\n", (long long)all, (long long)states,
	       (long long)((after.bytes_copied_in - before.bytes_copied_in) / (int64_t)MIB));
	CHECK_LE((double)ns[STEPS - 1], 1.02 * (double)compute);
	CHECK_EQ(after.num_recomputes - before.num_recomputes, 0);
	CHECK_EQ(after.num_drops - before.num_drops, 0);
	CHECK_GT(2 * states, all);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(here.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_one_call_for_all_states_needs_them_all_at_once(void)
{
	begin();
	CHECK_STATUS(HR_OK, hr_lms_set_limit(here.allocator, 500 * MIB)); /* less than the optimizer's 512 */
	CHECK_STATUS(HR_OUT_OF_MEMORY, run_step(true));
	CHECK(strstr(hr_last_message(), "needs") != NULL);
	CHECK_STATUS(HR_OK, run_step(false)); /* nothing was harmed */
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(here.allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_state_moves_behind_the_ops_and_nothing_is_computed_again), T(test_one_call_for_all_states_needs_them_all_at_once))
