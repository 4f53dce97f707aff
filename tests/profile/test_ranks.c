/* test_ranks.c - recordings of a job's ranks, read as one: peaks, stragglers, and recordings that do not belong together. */
#include <stdlib.h>
#include <string.h>

#include "analysis/ranks/ranks.h"
#include "core/trace/trace.h"
#include "fixture.h"
#include "headroom_lms.h"
#include "headroom_record.h"
#include "support_files.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)
#define MS UINT64_C(1000000)

/* Records rank [number] of [count]: a step for each entry of [stalls], in which [peak] bytes are in use for a moment. */
static const char *record_rank(unsigned number, unsigned count, uint64_t peak, const uint64_t *stalls, size_t steps)
{
	char text[32], file[32];
	snprintf(text, sizeof text, "%u/%u", number, count);
	snprintf(file, sizeof file, "r%u-%u.hrt", number, (unsigned)(peak / MIB));
	const char *path = in_folder(file);
	CHECK_EQ(setenv("HEADROOM_RANK", text, 1), 0);
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	hr__trace_define_device(1, "GPU:0", 64 * MIB, 0);
	hr__trace_define_allocator(1, "bfc", "bfc", 1);
	for (size_t i = 0; i < steps; i++) {
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_STEP, .bytes = i + 1 });
		hr_request request = HR_REQUEST(peak);
		request.op = hr_name_intern("matmul <b>");
		hr__trace_alloc_existing(1, &request, 4096, peak);
		hr__trace_free(1, 4096, 0);
		if (stalls[i]) hr__trace_event(&(hr__event){ .kind = HR__EVENT_MARK, .tag = hr_name_intern(HR__MARK_STALL), .bytes = stalls[i] });
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_STEP_END, .bytes = i + 1 });
	}
	CHECK_STATUS(HR_OK, hr__trace_close());
	unsetenv("HEADROOM_RANK");
	return path;
}

static hr_status add(hr__ranks *ranks, const char *path)
{
	hr__capture *capture;
	CHECK_STATUS(HR_OK, hr__capture_open(path, NULL, NULL, &capture));
	hr_status status = hr__ranks_add(ranks, capture, path);
	hr__capture_close(capture);
	return status;
}

static void test_the_highest_peak_and_the_slow_rank_are_found(void)
{
	static const uint64_t none[3] = { 5000 * MS, 5000 * MS, 0 }, slow[3] = { 5000 * MS, 9000 * MS, 0 }, slower[3] = { 5000 * MS, 6000 * MS, 2000 * MS };
	hr__ranks ranks = { 0 };
	/* in another order than that of their ranks */
	CHECK_STATUS(HR_OK, add(&ranks, record_rank(2, 4, 30 * MIB, slow, 3)));
	CHECK_STATUS(HR_OK, add(&ranks, record_rank(0, 4, 10 * MIB, none, 3)));
	CHECK_STATUS(HR_OK, add(&ranks, record_rank(3, 4, 50 * MIB, slower, 3)));
	CHECK_STATUS(HR_OK, add(&ranks, record_rank(1, 4, 20 * MIB, none, 3)));
	CHECK_STATUS(HR_OK, hr__ranks_finish(&ranks));
	CHECK_EQ(ranks.count, 4);
	for (uint32_t i = 0; i < 4; i++) CHECK_EQ(ranks.runs[i]->rank.number, i);
	CHECK_EQ(ranks.highest, 3);
	CHECK_EQ(ranks.runs[3]->peak_bytes, 50 * MIB);
	CHECK_EQ(ranks.runs[3]->peak_op_bytes, 50 * MIB);
	CHECK_EQ(ranks.runs[3]->limit_bytes, 64 * MIB);
	CHECK_STR(hr_name_text(ranks.runs[3]->peak_op), "matmul <b>");
	/* Step 1: all waited 5 s. Step 2: 5, 5, 9, 6 s; the lower median is 5. Step 3: 0, 0, 0, 2. The steps themselves take far below 1 s. */
	static const uint64_t lags[4] = { 0, 0, 4000 * MS, 3000 * MS }, stragglers[4] = { 0, 0, 1, 2 };
	for (uint32_t i = 0; i < 4; i++) {
		CHECK_EQ(ranks.runs[i]->lag_ns, lags[i]);
		CHECK_EQ(ranks.runs[i]->stragglers, stragglers[i]);
		CHECK_EQ(ranks.runs[i]->step_count, 3);
	}
	CHECK_EQ(ranks.runs[2]->steps[1].lag_ns, 4000 * MS);
	CHECK_EQ(ranks.runs[3]->wait_ns, 13000 * MS);
	/* A block is live for moments only; every lane has its peak in some interval, and nothing above it. */
	for (uint32_t i = 0; i < 4; i++) {
		uint64_t most = 0;
		for (uint32_t k = 0; k < HR__RANKS_LANE; k++) most = ranks.runs[i]->lane[k] > most ? ranks.runs[i]->lane[k] : most;
		CHECK_EQ(most, ranks.runs[i]->peak_bytes);
	}
	hr__ranks_free(&ranks);
}

/* What was evicted may be more than the device holds, and is not what the limit is about. */
static void test_the_peak_of_a_rank_is_that_of_its_device_and_not_of_its_host_pool(void)
{
	hr__ranks ranks = { 0 };
	const char *path = in_folder("pool.hrt");
	setenv("HEADROOM_RANK", "0/1", 1);
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	unsetenv("HEADROOM_RANK");
	hr__trace_define_device(2, "GPU:0 host memory", 900 * MIB, 0); /* in either order */
	hr__trace_define_device(1, "GPU:0", 64 * MIB, 0);
	hr__trace_define_device(3, "GPU:1", 64 * MIB, 0);
	hr__trace_define_device(4, "GPU:1 host memory", 900 * MIB, 0);
	static const uint64_t bytes[] = { 30 * MIB, 90 * MIB, 40 * MIB, 80 * MIB };
	for (uint32_t i = 0; i < 4; i++) {
		hr_request request = HR_REQUEST(bytes[i]);
		hr__trace_define_allocator(i + 1, "bfc", "bfc", i + 1);
		hr__trace_alloc_existing(i + 1, &request, 4096, bytes[i]);
	}
	CHECK_STATUS(HR_OK, hr__trace_close());
	CHECK_STATUS(HR_OK, add(&ranks, path));
	CHECK_STATUS(HR_OK, hr__ranks_finish(&ranks));
	CHECK_STR(ranks.runs[0]->device, "GPU:1");
	CHECK_EQ(ranks.runs[0]->peak_bytes, 40 * MIB);
	CHECK_EQ(ranks.runs[0]->limit_bytes, 64 * MIB);
	hr__ranks_free(&ranks);
}

static void test_steps_that_occur_twice_are_compared_in_order(void)
{
	static const uint64_t one[2] = { 1000 * MS, 2000 * MS };
	hr__ranks ranks = { 0 };
	for (unsigned rank = 0; rank < 2; rank++) {
		char text[32];
		const char *path = in_folder(rank ? "b.hrt" : "a.hrt");
		snprintf(text, sizeof text, "%u/2", rank);
		setenv("HEADROOM_RANK", text, 1);
		CHECK_STATUS(HR_OK, hr__trace_open(path));
		for (int i = 0; i < 2; i++) {
			hr__trace_event(&(hr__event){ .kind = HR__EVENT_STEP, .bytes = 7 });
			hr__trace_event(&(hr__event){ .kind = HR__EVENT_MARK, .tag = hr_name_intern(HR__MARK_STALL), .bytes = one[i] });
			hr__trace_event(&(hr__event){ .kind = HR__EVENT_STEP_END, .bytes = 7 });
		}
		CHECK_STATUS(HR_OK, hr__trace_close());
		CHECK_STATUS(HR_OK, add(&ranks, path));
	}
	unsetenv("HEADROOM_RANK");
	CHECK_STATUS(HR_OK, hr__ranks_finish(&ranks));
	CHECK_EQ(ranks.runs[0]->lag_ns + ranks.runs[1]->lag_ns, 0);
	hr__ranks_free(&ranks);
}

static void use_tensor(hr_device device, hr_tensor tensor, hr_access access, hr_stream stream)
{
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, access, stream));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
}

static void test_a_recording_says_how_long_each_step_waited(void)
{
	const char *path = in_folder("stalls.hrt");
	hr__capture *capture;
	hr_device device = fixture_emulated(8 * MIB, 1 << 20, 100000000);
	hr_allocator allocator = fixture_allocator(device, 4 * MIB);
	fixture_lms(allocator, "lru", 0);
	hr_stream stream = fixture_stream(device);
	hr_tensor a = fixture_tensor(allocator, 3 * MIB), b = fixture_tensor(allocator, 3 * MIB);
	use_tensor(device, a, HR_OVERWRITE, stream);
	use_tensor(device, b, HR_OVERWRITE, stream);
	use_tensor(device, a, HR_READ, stream); /* before the recording */
	int64_t before = fixture_lms_stats(allocator).stall_ns, in_steps[2];
	CHECK_GT(before, 0);
	CHECK_STATUS(HR_OK, hr_trace_start(path));
	for (int step = 0; step < 2; step++) {
		CHECK_STATUS(HR_OK, hr_step_begin(allocator));
		if (step == 0) use_tensor(device, b, HR_READ, stream);
		if (step == 0) use_tensor(device, a, HR_READ, stream);
		CHECK_STATUS(HR_OK, hr_step_end(allocator));
		in_steps[step] = fixture_lms_stats(allocator).stall_ns - before;
		before += in_steps[step];
	}
	CHECK_STATUS(HR_OK, hr_trace_stop());
	CHECK_GT(in_steps[0], 0);
	CHECK_EQ(in_steps[1], 0);
	CHECK_STATUS(HR_OK, hr__capture_open(path, NULL, NULL, &capture));
	CHECK_EQ(capture->step_count, 2);
	for (int step = 0; step < 2; step++) CHECK_EQ(capture->steps[step].stall_ns, in_steps[step]);
	hr__capture_close(capture);
}

static void test_recordings_that_do_not_belong_together_are_refused(void)
{
	static const uint64_t none[1] = { 0 };
	hr__ranks ranks = { 0 };
	CHECK_STATUS(HR_OK, add(&ranks, record_rank(0, 4, MIB, none, 1)));
	CHECK_STATUS(HR_INVALID_ARGUMENT, add(&ranks, record_rank(1, 2, MIB, none, 1)));
	CHECK_CONTAINS(hr_last_message(), "they are not of one job");
	CHECK_STATUS(HR_INVALID_ARGUMENT, add(&ranks, record_rank(0, 4, 2 * MIB, none, 1)));
	CHECK_CONTAINS(hr_last_message(), "are both of rank 0; name one recording of each rank");
	CHECK_STATUS(HR_INVALID_ARGUMENT, add(&ranks, "traces/gpt2.csv.gz"));
	CHECK_CONTAINS(hr_last_message(), "which has no rank; read it alone");
	const char *path = in_folder("none.hrt");
	CHECK_STATUS(HR_OK, hr__trace_open(path));
	CHECK_STATUS(HR_OK, hr__trace_close());
	CHECK_STATUS(HR_NOT_READY, add(&ranks, path));
	CHECK_CONTAINS(hr_last_message(), "a process without a rank, such as a launcher");
	FILE *file = fopen(path, "r+b");
	CHECK(file && fseek(file, 10, SEEK_SET) == 0 && fputc(2, file) == 2 && fclose(file) == 0); /* version 1.2 */
	CHECK_STATUS(HR_INVALID_ARGUMENT, add(&ranks, path));
	CHECK_CONTAINS(hr_last_message(), "which did not record ranks; record all ranks with headroom 0.2 or newer");
	CHECK_EQ(ranks.count, 1);
	hr__ranks_free(&ranks);
}

TEST_MAIN(T(test_the_highest_peak_and_the_slow_rank_are_found),
          T(test_the_peak_of_a_rank_is_that_of_its_device_and_not_of_its_host_pool), T(test_steps_that_occur_twice_are_compared_in_order),
          T(test_a_recording_says_how_long_each_step_waited), T(test_recordings_that_do_not_belong_together_are_refused))
