/* test_mapped_times.c - the times of ops that plans are made of, on the simulated device: an op whose device waited for the host to map pages
 * keeps the time that it took in a step without that. */
#include "core/device/device.h"
#include "core/lms/policy/learned.h"
#include "fixture.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)
#define TENSORS 4u
#define OP_NS UINT64_C(1000000)
#define MAP_NS UINT64_C(1000000)

static hr_allocator allocator;
static hr__lms *lms;
static hr_tensor tensors[TENSORS];

/* One op for each tensor. [bytes]: a block that the first op requests before it computes. */
static void run_step(uint64_t bytes)
{
	CHECK_STATUS(HR_OK, hr_step_begin(allocator));
	for (uint32_t i = 0; i < TENSORS; i++) {
		void *block = NULL;
		hr_request request = HR_REQUEST(bytes);
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[i], HR_WRITE, HR_STREAM_DEFAULT));
		if (bytes && !i) CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &block));
		CHECK_STATUS(HR_OK, hr__device_compute(lms->device, HR_STREAM_DEFAULT, OP_NS));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[i], HR_STREAM_DEFAULT));
		if (block) CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	}
	CHECK_STATUS(HR_OK, hr_step_end(allocator));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(fixture_device("SIM:0"), HR_STREAM_DEFAULT));
}

static uint64_t time_of_first(void)
{
	CHECK_EQ(lms->learned->times.count, TENSORS);
	return HR__RECORD_AT(uint64_t, lms->learned->times, 0);
}

static void test_an_op_that_waited_for_mapping_keeps_its_time(void)
{
	hr_simulated_options simulated;
	hr_simulated_options_init(&simulated);
	simulated.memory_bytes = 256 * MIB;
	simulated.map_ns = MAP_NS;
	CHECK_STATUS(HR_OK, hr_simulated_configure(&simulated));
	hr_allocator_options options = fixture_allocator_options(128 * MIB);
	CHECK_STATUS(HR_OK, hr_allocator_create(fixture_device("SIM:0"), &options, &allocator));
	hr_lms_options given = fixture_lms_options("learned", 0);
	given.limit = 20 * MIB;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &given));
	CHECK_STATUS(HR_OK, hr__lms_of(allocator, &lms));
	for (uint32_t i = 0; i < TENSORS; i++) {
		tensors[i] = fixture_tensor(allocator, 8 * MIB);
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[i], HR_OVERWRITE, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_unpin(tensors[i], HR_STREAM_DEFAULT));
	}
	for (int i = 0; i < 3; i++) run_step(0);
	CHECK_EQ(time_of_first(), OP_NS);
	run_step(64 * MIB); /* the device waits for 32 pages */
	CHECK(lms->learned->last.mapped);
	CHECK_GE(HR__RECORD_AT(hr__recorded_op, lms->learned->last.ops, 0).ns, 32 * MAP_NS);
	CHECK_EQ(time_of_first(), OP_NS);
	for (uint32_t i = 0; i < TENSORS; i++) CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[i]));
	CHECK_STATUS(HR_OK, hr_allocator_destroy(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_an_op_that_waited_for_mapping_keeps_its_time))
