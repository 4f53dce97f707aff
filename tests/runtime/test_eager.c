/* test_eager.c - op calls outside of graphs: results and memory. */
#include <math.h>

#include "fixture.h"
#include "headroom.h"
#include "headroom_runtime.h"
#include "test.h"

static hr_session session;
static hr_allocator allocator;

static void open_on(const char *device)
{
	hr_session_options options;
	hr_session_options_init(&options);
	options.device = device;
	CHECK_STATUS(HR_OK, hr_allocator_get_default(device, &allocator));
	CHECK_STATUS(HR_OK, hr_session_create(&options, &session));
	CHECK_STATUS(HR_OK, hr_session_enter(session));
}

static void close_all(void)
{
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_OK, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static int64_t in_use(void)
{
	hr_stats stats = fixture_stats(allocator);
	return stats.bytes_in_use;
}

static int64_t requests(void)
{
	hr_stats stats = fixture_stats(allocator);
	return stats.num_allocs;
}

static const char *const devices[] = { "GPU:0", "CPU:0" };

static void test_three_numbers_and_three_numbers(void)
{
	for (int i = 0; i < 2; i++) {
		int64_t sum[3];
		open_on(devices[i]);
		hr_value a = hr_constant(HR_DTYPE_INT64, HR_DIMS(3), (int64_t[]){ 1, 2, 3 });
		hr_value b = hr_constant(HR_DTYPE_INT64, HR_DIMS(3), (int64_t[]){ 4, 5, 6 });
		CHECK_STATUS(HR_OK, hr_value_fetch(hr_add(a, b), sum, sizeof sum));
		for (int k = 0; k < 3; k++) CHECK_EQ(sum[k], 5 + 2 * k);
		CHECK_EQ(in_use(), 0);
		close_all();
	}
}

/* Temporary values are consumed, kept ones remain. */
static void test_a_temporary_value_is_gone_after_one_use(void)
{
	float x[4];
	open_on("GPU:0");
	hr_value a = hr_full(HR_DTYPE_FLOAT32, HR_DIMS(4), 2);
	hr_value b = hr_value_keep(hr_exp(a));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_value_fetch(a, x, sizeof x));
	CHECK_STATUS(HR_OK, hr_value_fetch(b, x, sizeof x));
	CHECK_STATUS(HR_OK, hr_value_fetch(b, x, sizeof x));
	CHECK(fabsf(x[3] - expf(2)) < 1e-5f);
	CHECK(!hr_add(a, b).id);
	CHECK_CONTAINS(hr_last_message(), "op \"add\"");
	CHECK_CONTAINS(hr_last_message(), "hr_value_keep");
	hr_value_release(b);
	CHECK_EQ(in_use(), 0);
	close_all();
}

/* A chain of elementwise ops on temporary values uses one buffer. */
static void test_a_chain_takes_its_input_s_memory(void)
{
	float first;
	open_on("GPU:0");
	hr_value x = hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(1024), 1));
	int64_t before = requests(), bytes = in_use();
	hr_value y = hr_value_keep(hr_tanh(hr_exp(hr_neg(hr_relu(x)))));
	CHECK_EQ(requests(), before + 1); /* for relu, because x is kept */
	CHECK_EQ(in_use(), 2 * bytes);
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_slice(y, 0, 0, 1), &first, sizeof first));
	CHECK(fabsf(first - tanhf(expf(-1))) < 1e-6f);
	hr_value_release(x);
	hr_value_release(y);
	CHECK_EQ(in_use(), 0);
	close_all();
}

static void test_closing_a_session_reports_unreleased_values(void)
{
	open_on("GPU:0");
	hr_value_keep(hr_full(HR_DTYPE_FLOAT32, HR_DIMS(256), 1));
	CHECK_STATUS(HR_OK, hr_session_leave());
	CHECK_STATUS(HR_IN_USE, hr_session_destroy(session));
	CHECK_CONTAINS(hr_last_message(), "1024 bytes");
	CHECK_CONTAINS(hr_last_message(), "\"full\"");
	CHECK_EQ(in_use(), 0);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_session_destroy(session));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_no_session_is_needed(void)
{
	double x;
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_reduce_sum(hr_full(HR_DTYPE_FLOAT64, HR_DIMS(10, 10), 0.5), HR_ALL_AXES, false), &x, sizeof x));
	CHECK_EQ((int)x, 50);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_three_numbers_and_three_numbers), T(test_a_temporary_value_is_gone_after_one_use), T(test_a_chain_takes_its_input_s_memory),
          T(test_closing_a_session_reports_unreleased_values), T(test_no_session_is_needed))
