/* test_step_peak.c - the verdict on a failed request names the peak of an earlier step, and advises a limit with which the step
 * runs. Every number is computed by hand, in pages of 64 KiB. */
#include "fixture.h"
#include "headroom_lms.h"
#include "headroom_oom.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define PAGE (64 * KIB)

static hr_device device;

static void open_device(uint64_t pages)
{
	setenv("HEADROOM_CUDA", "0", 1);
	CHECK_STATUS(HR_OK, hr_shutdown());
	fixture_configure_emulated(pages * PAGE, PAGE, 0);
}

/* [policy]: of Large Model Support; NULL = off. */
static hr_allocator open_allocator(uint64_t pages, const char *policy)
{
	hr_allocator allocator;
	hr_lms_options lms;
	CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
	hr_allocator_options options = fixture_allocator_options(pages * PAGE);
	options.thread_cache = false;
	options.oom.report_allocations_on_oom = true;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	CHECK_STATUS(HR_OK, hr_lms_options_init(&lms));
	lms.enabled = policy != NULL;
	if (policy) lms.policy = policy;
	lms.host_limit = 64 * KIB * KIB;
	lms.wait_ns = 0;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms));
	return allocator;
}

static void *take(hr_allocator allocator, uint64_t pages)
{
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &HR_REQUEST(pages * PAGE), &block));
	return block;
}

static hr_tensor create(hr_allocator allocator, uint64_t pages)
{
	hr_tensor tensor = fixture_tensor(allocator, pages * PAGE);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	return tensor;
}

/* The verdict in the report of a failed request of that many pages. */
static hr_verdict refused(hr_allocator allocator, uint64_t pages)
{
	void *block;
	hr_oom_report report;
	hr_verdict verdict = { .struct_size = sizeof verdict }, asked = { .struct_size = sizeof asked };
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc(allocator, &HR_REQUEST(pages * PAGE), &block));
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	CHECK_STATUS(HR_OK, hr_oom_get_verdict(report, &verdict));
	CHECK_STATUS(HR_OK, hr_allocator_would_fit(allocator, &HR_REQUEST(pages * PAGE), &asked));
	CHECK_BYTES(&verdict, &asked, sizeof asked);
	return verdict;
}

static uint64_t reserved(hr_allocator allocator)
{
	hr_stats stats = fixture_stats(allocator);
	return (uint64_t)stats.bytes_reserved;
}

static void close_allocator(hr_allocator allocator)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
}

/* A step that uses 13 pages at once, whatever the limit: a plain block of one page all the time; six tensors of two pages; then,
 * after two of them are destroyed, one of three pages. Three tensors of two pages are left. */
static void run_step(hr_allocator allocator, hr_tensor left[3])
{
	hr_tensor tensors[6];
	CHECK_STATUS(HR_OK, hr_step_begin(allocator));
	for (int i = 0; i < 6; i++) tensors[i] = create(allocator, 2);
	for (int i = 4; i < 6; i++) CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[i]));
	hr_tensor last = create(allocator, 3);
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(last));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensors[3]));
	CHECK_STATUS(HR_OK, hr_step_end(allocator));
	for (int i = 0; i < 3; i++) left[i] = tensors[i];
}

static void pin_all(const hr_tensor *tensors, int count)
{
	for (int i = 0; i < count; i++) CHECK_STATUS(HR_OK, hr_tensor_pin(tensors[i], HR_READ, HR_STREAM_DEFAULT));
}

static void test_advice_follows_what_a_step_needed_with_tensors_on_the_host(void)
{
	static const char *const policies[] = { "learned", "lru" };
	for (int i = 0; i < 2; i++) {
		hr_tensor tensors[3];
		open_device(32);
		hr_allocator allocator = open_allocator(8, policies[i]);
		take(allocator, 1);
		CHECK_EQ(refused(allocator, 8).step_peak_bytes, 0); /* there was no step yet */
		CHECK_CONTAINS(refused(allocator, 8).advice, "for this request alone: later ones may need more.");
		run_step(allocator, tensors);
		pin_all(tensors, 3);
		/* 7 of 8 pages are in use: the block, and the tensors, which cannot be evicted. So one page is left for a request of three.
		 * */
		hr_verdict verdict = refused(allocator, 3);
		CHECK_EQ(reserved(allocator), 7 * PAGE);
		CHECK_EQ((int)verdict.kind, (int)HR_NEEDS_MORE);
		CHECK_EQ(verdict.bytes, 2 * PAGE);
		CHECK_EQ(verdict.step_peak_bytes, 13 * PAGE);
		/* 13 - 8 = 5 pages are 320 KiB, 13 pages 832 KiB or 851,968 B; the two pages that only this request lacks are 128 KiB. */
		CHECK_CONTAINS(verdict.advice, "Raise options.limit_bytes by 320.0 KiB, to 851968 (for this request alone by 128.0 KiB): "
		                               "an earlier step needed 832.0 KiB at its peak.");
		close_allocator(allocator);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Without Large Model Support, one page less than advised is too little for the step; the advised limit is enough. */
static void test_the_step_runs_with_the_limit_that_is_advised(void)
{
	hr_tensor tensors[3];
	for (uint64_t limit = 12; limit <= 13; limit++) {
		hr_tensor tensor;
		open_device(32);
		hr_allocator allocator = open_allocator(limit, NULL);
		take(allocator, 1);
		if (limit == 13) {
			run_step(allocator, tensors);
		} else {
			for (int i = 0; i < 5; i++) create(allocator, 2);
			tensor = fixture_tensor(allocator, 2 * PAGE);
			CHECK_STATUS(HR_OUT_OF_MEMORY, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
		}
		close_allocator(allocator);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Like `headroom demo`: first all memory, then less. */
static void test_an_allocator_without_a_step_is_advised_by_those_of_its_device(void)
{
	hr_tensor tensors[3];
	open_device(32);
	hr_allocator roomy = open_allocator(0, NULL);
	void *block = take(roomy, 1);
	run_step(roomy, tensors);
	CHECK_STATUS(HR_OK, hr_free(roomy, block, HR_STREAM_DEFAULT));
	close_allocator(roomy);

	hr_allocator tight = open_allocator(4, NULL);
	CHECK_STATUS(HR_OK, hr_step_begin(tight));
	take(tight, 3);
	hr_verdict verdict = refused(tight, 2);
	CHECK_EQ(verdict.step_peak_bytes, 13 * PAGE);
	/* 13 - 4 = 9 pages are 576 KiB. One of 4 pages is left for a request of two. */
	CHECK_CONTAINS(verdict.advice, "Raise options.limit_bytes by 576.0 KiB, to 851968 (for this request alone by 64.0 KiB): "
	                               "a step of another allocator needed 832.0 KiB at its peak.");
	CHECK_STATUS(HR_OK, hr_step_end(tight));
	CHECK_EQ(refused(tight, 2).step_peak_bytes, 13 * PAGE); /* its own step had a refusal, so it does not count */
	close_allocator(tight);

	hr_allocator stepping = open_allocator(4, NULL);
	CHECK_STATUS(HR_OK, hr_step_begin(stepping));
	take(stepping, 3);
	CHECK_STATUS(HR_OK, hr_step_end(stepping));
	verdict = refused(stepping, 2);
	CHECK_EQ(verdict.step_peak_bytes, 3 * PAGE); /* its own step, and no more than the request needs */
	CHECK_CONTAINS(verdict.advice, "Raise options.limit_bytes by 64.0 KiB, to 327680, for this request alone: later ones may need more.");
	close_allocator(stepping);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* The device has 12 pages, and the step needs 13: no limit is enough for it. */
static void test_a_limit_is_not_raised_above_what_the_device_has(void)
{
	hr_tensor tensors[3];
	open_device(12);
	hr_allocator allocator = open_allocator(8, "learned");
	take(allocator, 1);
	run_step(allocator, tensors);
	pin_all(tensors, 3);
	hr_verdict verdict = refused(allocator, 3);
	CHECK_EQ(verdict.step_peak_bytes, 13 * PAGE);
	/* 8 + 2 = 10 pages are 655,360 B. */
	CHECK_CONTAINS(verdict.advice, "Raise options.limit_bytes by 128.0 KiB, to 655360, for this request alone: an earlier step needed 832.0 KiB at its peak.");
	close_allocator(allocator);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_the_limit_of_a_logical_device_is_raised_for_the_step(void)
{
	hr_tensor tensors[3];
	uint64_t part = 8 * PAGE;
	open_device(32);
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", &part, 1));
	hr_allocator allocator = open_allocator(0, "learned");
	take(allocator, 1);
	run_step(allocator, tensors);
	pin_all(tensors, 3);
	CHECK_CONTAINS(refused(allocator, 3).advice, "Raise the memory_limit that hr_device_set_logical gave GPU:0 by 320.0 KiB (for this request alone by "
	                                             "128.0 KiB): an earlier step needed 832.0 KiB at its peak.");
	close_allocator(allocator);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_advice_follows_what_a_step_needed_with_tensors_on_the_host), T(test_the_step_runs_with_the_limit_that_is_advised),
          T(test_an_allocator_without_a_step_is_advised_by_those_of_its_device), T(test_a_limit_is_not_raised_above_what_the_device_has),
          T(test_the_limit_of_a_logical_device_is_raised_for_the_step))
