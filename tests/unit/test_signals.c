/* test_signals.c - signal handlers interrupt calls of the library, and call the functions that the header allows. */
#include <sys/time.h>

#include "test.h"

static atomic_uint handled, wrong;

static void handle(int signal)
{
	(void)signal;
	bool right = strcmp(hr_version(), "0.2.0") == 0 && strcmp(hr_status_name(HR_IO), "HR_IO") == 0 && hr_status_text(HR_IO)[0] != 0 &&
	             strcmp(hr_dtype_text(HR_DTYPE_INT8), "int8") == 0 && hr_dtype_size(HR_DTYPE_FLOAT64) == 8;
	atomic_fetch_add(&wrong, !right);
	atomic_fetch_add(&handled, 1);
}

static void test_a_handler_may_interrupt_any_call(void)
{
	const struct itimerval often = { { 0, 100 }, { 0, 100 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = handle };
	hr_allocator allocator;
	void *blocks[64] = { 0 };
	uint64_t seed = hr_test_seed();
	setenv("HEADROOM_CUDA", "0", 1);
	CHECK_EQ(sigaction(SIGPROF, &action, NULL), 0);
	CHECK_EQ(setitimer(ITIMER_PROF, &often, NULL), 0); /* by processor time: calls are interrupted however busy the machine is */
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	for (uint64_t i = 0; i < 20000 || atomic_load(&handled) < 20; i++) {
		void **block = &blocks[hr_rand_below(&seed, 64)];
		CHECK_STATUS(HR_OK, hr_free(allocator, *block, HR_STREAM_HOST));
		CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 1 + hr_rand_below(&seed, 200000), block));
	}
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_EQ(setitimer(ITIMER_PROF, &never, NULL), 0);
	CHECK_EQ(atomic_load(&wrong), 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_a_handler_may_interrupt_any_call))
