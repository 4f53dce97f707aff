/* tensor_conformance.c - tensors that are evicted from a device and restored: requirements on every device, including cards.
 *
 * Contents are written and read by the device alone: by copies, and by a kernel if the device runs any. While a tensor is evicted,
 * other blocks use and overwrite its memory, so that stale bytes cannot be mistaken for restored ones. */
#include "fixture.h"
#include "../../bench/gpu_kernel.h"
#include "conformance/allocator_subjects.h"
#include "fake_cuda/fake_cuda.h"
#include "headroom_lms.h"

#define LARGE ((HR_TEST_SANITIZED ? 36 : 72) * MIB + 12345) /* if it fits: several readers check it under verify */

static void skip_here(const char *why)
{
	printf("# skipped on %s: %s\n", now->label, why);
}

/* ---- tensors ---- */

/* False, with the reason printed, if the device does not support it. */
static bool open_tensors(uint64_t limit, hr_lms_safety safety, bool verify)
{
	hr_allocator_options options = options_of("bfc");
	if (limit) options.limit_bytes = limit;
	open_with(&options);
	hr_lms_options lms = fixture_lms_options("lru", 0);
	lms.safety = safety;
	lms.verify = verify;
	hr_status status = hr_lms_configure(here.allocator, &lms);
	if (status == HR_OK) return true;
	CHECK_STATUS(HR_UNSUPPORTED, status);
	skip_here(hr_last_message());
	close_all();
	return false;
}

static hr_tensor tensor_of(uint64_t bytes, bool fixed)
{
	hr_tensor tensor;
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = bytes;
	options.fixed = fixed;
	CHECK_STATUS(HR_OK, hr_tensor_create(here.allocator, &options, &tensor));
	return tensor;
}

static hr_tensor_state state_of(hr_tensor tensor)
{
	hr_tensor_info info = fixture_tensor_info(tensor);
	return info.state;
}

static char *pin(hr_tensor tensor, hr_access access, hr_stream stream)
{
	void *at;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, access, stream));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	return at;
}

static void unpin(hr_tensor tensor, hr_stream stream)
{
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, stream));
}

static void evict(hr_tensor tensor)
{
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_EQ(state_of(tensor), HR_TENSOR_EVICTED);
}

/* Words that differ everywhere; the caller frees them. */
static unsigned char *contents_of(uint64_t bytes, uint64_t seed)
{
	unsigned char *contents = malloc(bytes + 8);
	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t word = hr_rand(&seed);
		memcpy(contents + i, &word, 8);
	}
	return contents;
}

/* Writes the contents; returns the tensor's address. */
static char *write_to(hr_tensor tensor, uint64_t bytes, uint64_t seed, hr_stream stream)
{
	unsigned char *contents = contents_of(bytes, seed);
	char *to = pin(tensor, HR_OVERWRITE, stream);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, to, contents, bytes, HR_COPY_TO_DEVICE, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
	unpin(tensor, stream);
	free(contents);
	return to;
}

/* Checks device memory, pinned or not. */
static void expect_there(const char *there, const unsigned char *expected, uint64_t bytes, hr_stream stream)
{
	unsigned char *seen = malloc(bytes);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, seen, there, bytes, HR_COPY_TO_HOST, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
	if (now->real) CHECK_BYTES(seen, expected, bytes);
	free(seen);
}

static char *expect(hr_tensor tensor, uint64_t bytes, uint64_t seed, hr_stream stream)
{
	unsigned char *expected = contents_of(bytes, seed);
	char *there = pin(tensor, HR_READ, stream);
	expect_there(there, expected, bytes, stream);
	unpin(tensor, stream);
	free(expected);
	return there;
}

/* Another block uses [bytes] of the device for a while and overwrites all of them. */
static void disturb(uint64_t bytes, unsigned char value)
{
	void *taken;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(here.allocator, bytes, &taken));
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, taken, value, bytes, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_free(here.allocator, taken, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_allocator_trim(here.allocator, NULL)); /* fixed tensors get their pages from the device */
}

static void close_tensors(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(here.allocator));
	close_all();
}

/* ---- any tensor ---- */

static uint64_t unit(void)
{
	return page() ? page() : 64 * KIB;
}

/* LARGE, or a third of the device's memory. */
static uint64_t large_size(void)
{
	uint64_t third = hr__device_reservable(device) / 3;
	return third < LARGE ? third : LARGE;
}

static void leave_and_return(bool verify)
{
	uint64_t large = large_size(), limit = 2 * large + 4 * unit();
	if (page()) limit = limit / page() * page();
	if (!open_tensors(limit, HR_SAFETY_NONE, verify)) return;
	uint64_t sizes[] = { unit() / 2 + 1, unit(), 3 * unit() / 2 - 5, large };
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		hr_tensor tensor = tensor_of(sizes[i], false);
		for (uint64_t round = 0; round < (sizes[i] < MIB ? 3 : 1); round++) {
			write_to(tensor, sizes[i], 10 * i + round, here.streams[round % here.stream_count]);
			for (int again = 0; again < 2; again++) { /* the second time without a copy: the host copy is valid */
				evict(tensor);
				disturb(sizes[i], (unsigned char)round);
				expect(tensor, sizes[i], 10 * i + round, here.streams[(round + 1) % here.stream_count]);
			}
		}
		CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	}
	close_tensors();
}

static void tensors_return_with_their_bits(void)
{
	leave_and_return(false);
	leave_and_return(true);
}

static void test_tensors_return_with_their_bits(void)
{
	on_each_device(tensors_return_with_their_bits);
}

/* ---- fixed tensors ---- */

static void hold_the_address(hr_lms_safety safety)
{
	if (!page()) {
		skip_here("it has no pages");
		return;
	}
	if (!open_tensors(0, safety, false)) return;
	uint64_t sizes[] = { page(), page() + 1, 5 * page() - 7, here.limit / page() / 2 * page() };
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		hr_tensor tensor = tensor_of(sizes[i], true);
		char *there = NULL;
		for (uint64_t round = 0; round < 4; round++) {
			hr_stream stream = here.streams[round % here.stream_count];
			char *written = write_to(tensor, sizes[i], 10 * i + round, stream);
			CHECK(!there || there == written);
			there = written;
			CHECK_EQ((uintptr_t)there % page(), 0u);
			evict(tensor);
			CHECK_EQ(hr__page_pool_reserved(device), 0); /* its pages are returned to the device */
			disturb(sizes[i], (unsigned char)round);
			CHECK_EQ(expect(tensor, sizes[i], 10 * i + round, here.streams[(round + 1) % here.stream_count]), there);
		}
		evict(tensor); /* destroyed while evicted, or while resident */
		if (i % 2) expect(tensor, sizes[i], 10 * i + 3, HR_STREAM_DEFAULT);
		CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
		CHECK_EQ(hr__page_pool_reserved(device), 0);
	}
	close_tensors();
}

static void fixed_tensors_keep_address_and_bits(void)
{
	hold_the_address(HR_SAFETY_NONE);
}

static void test_fixed_tensors_keep_address_and_bits(void)
{
	on_each_device(fixed_tensors_keep_address_and_bits);
}

static void fixed_tensors_with_shadows_keep_address_and_bits(void)
{
	hold_the_address(HR_SAFETY_HOST_MAPPED);
}

static void test_fixed_tensors_with_shadows_keep_address_and_bits(void)
{
	on_each_device(fixed_tensors_with_shadows_keep_address_and_bits);
}

/* Pages are unmapped outside the order of streams, so queued work is completed first. */
static void eviction_waits_for_queued_work(void)
{
	if (!page() || !has_streams()) {
		skip_here("it has no pages, or no streams");
		return;
	}
	if (!open_tensors(0, HR_SAFETY_NONE, false)) return;
	uint64_t bytes = here.limit / page() / 2 * page();
	unsigned char *expected = malloc(bytes);
	hr_tensor tensor = tensor_of(bytes, true);
	for (unsigned round = 0; round < 8; round++) {
		hr_stream stream = here.streams[1 + round % (here.stream_count - 1)];
		char *there = pin(tensor, HR_OVERWRITE, stream);
		for (unsigned i = 0; i < 16; i++)
			CHECK_STATUS(HR_OK, hr_stream_fill(handle, there, (unsigned char)(16 * round + i), bytes, stream));
		unpin(tensor, stream);
		evict(tensor);
		disturb(bytes, 99);
		memset(expected, (int)(16 * round + 15), bytes);
		CHECK_EQ(pin(tensor, HR_READ, HR_STREAM_DEFAULT), there);
		expect_there(there, expected, bytes, HR_STREAM_DEFAULT);
		unpin(tensor, HR_STREAM_DEFAULT);
	}
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	free(expected);
	close_tensors();
}

static void test_eviction_of_fixed_tensors_waits_for_queued_work(void)
{
	on_each_device(eviction_waits_for_queued_work);
}

/* ---- reads while evicted ---- */

static void out_can_be_read_by_copies(void)
{
	if (!page()) {
		skip_here("it has no pages");
		return;
	}
	if (!open_tensors(0, HR_SAFETY_HOST_MAPPED, false)) return;
	uint64_t bytes = 5 * page() - 24;
	hr_tensor tensor = tensor_of(bytes, true);
	for (uint64_t round = 0; round < 3; round++) {
		unsigned char *expected = contents_of(bytes, round);
		char *there = write_to(tensor, bytes, round, here.streams[round % here.stream_count]);
		void *other;
		evict(tensor);
		CHECK_EQ(hr__page_pool_reserved(device), 0);
		expect_there(there, expected, bytes, HR_STREAM_DEFAULT); /* a copy to the host */
		CHECK_STATUS(HR_OK, hr_alloc_bytes(here.allocator, bytes, &other));
		CHECK_STATUS(
			HR_OK, hr_stream_copy(handle, other, there, bytes, HR_COPY_ON_DEVICE, HR_STREAM_DEFAULT)); /* a copy within the device */
		expect_there(other, expected, bytes, HR_STREAM_DEFAULT);
		CHECK_STATUS(HR_OK, hr_free(here.allocator, other, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_allocator_trim(here.allocator, NULL));
		CHECK_EQ(state_of(tensor), HR_TENSOR_EVICTED);
		/* A write counts as a missed pin; its bytes are kept. */
		CHECK_STATUS(HR_OK, hr_stream_fill(handle, there + page(), 7, page(), HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, HR_STREAM_DEFAULT));
		memset(expected + page(), 7, page());
		CHECK_EQ(pin(tensor, HR_READ, HR_STREAM_DEFAULT), there);
		expect_there(there, expected, bytes, HR_STREAM_DEFAULT);
		unpin(tensor, HR_STREAM_DEFAULT);
		free(expected);
	}
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	close_tensors();
}

static void test_fixed_tensors_that_are_out_can_be_read_by_copies(void)
{
	on_each_device(out_can_be_read_by_copies);
}

/* The stand-in driver of tests/fake_cuda runs no PTX: it is given the kernel of gpu_kernel.h as a function of the host. */
static __typeof__(&fake_cuda_compute) stand_in_compute;

static void run_on_host(const void *argument, const unsigned *grid, unsigned threads)
{
	const kernel_arguments *arguments = argument;
	(void)grid, (void)threads;
	for (uint64_t i = 0; i < arguments->count * SAMPLES; i++) {
		const kernel_tensor *tensor = &arguments->tensors[i / SAMPLES];
		uint64_t thread = i % SAMPLES, *stamp = (uint64_t *)(uintptr_t)(tensor->address + thread * tensor->stride);
		if (tensor->expect && *stamp != tensor->expect + thread) ++*(uint32_t *)(uintptr_t)arguments->errors;
		if (tensor->next) *stamp = tensor->next + thread;
	}
}

/* Makes the device's primary context current, and prepares the kernel. */
static void open_kernel(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&stand_in_compute = library ? dlsym(library, "fake_cuda_compute") : NULL;
	if (!driver.here) driver_open();
	CHECK(driver.here);
	DRIVER(context_set(driver.context));
	if (!stand_in_compute && !kernel.function) kernel_open();
}

static void launch(kernel_arguments *arguments)
{
	uint64_t addresses[] = { arguments->tensors[0].address, arguments->errors };
	if (!stand_in_compute) kernel_launch(arguments, NULL); /* the default stream, the one used here */
	else CHECK_EQ(stand_in_compute(NULL, run_on_host, arguments, sizeof *arguments, addresses, 2), HR__CUDA_SUCCESS);
}

/* Runs the kernel, which compares stamps with [expect] and writes those of [next]; returns the number of mismatches. */
static uint32_t run_kernel(const char *there, uint64_t bytes, uint64_t expect_stamp, uint64_t next, void *counter)
{
	uint32_t count = 0;
	kernel_arguments arguments = { .errors = (uintptr_t)counter, .count = 1 };
	arguments.tensors[0] = (kernel_tensor){ (uintptr_t)there, (bytes - 8) / (SAMPLES - 1) & ~UINT64_C(7), expect_stamp, next };
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, counter, 0, sizeof count, HR_STREAM_DEFAULT));
	launch(&arguments);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, &count, counter, sizeof count, HR_COPY_TO_HOST, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, HR_STREAM_DEFAULT));
	return count;
}

static void out_can_be_read_by_a_kernel(void)
{
	if (strcmp(now->backend, "cuda") != 0) {
		skip_here("it runs no kernels");
		return;
	}
	open_kernel();
	if (!open_tensors(0, HR_SAFETY_HOST_MAPPED, false)) return;
	void *counter;
	uint64_t bytes = 9 * page() - 24;
	hr_tensor tensor = tensor_of(bytes, true);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(here.allocator, 256, &counter));
	char *there = pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT);
	run_kernel(there, bytes, 0, 1000, counter);
	unpin(tensor, HR_STREAM_DEFAULT);
	for (uint64_t stamp = 1000; stamp < 9000; stamp += 2000) {
		evict(tensor);
		CHECK_EQ(run_kernel(there, bytes, stamp, 0, counter), 0u);
		CHECK_EQ(run_kernel(there, bytes, stamp + 500, 0, counter), SAMPLES); /* mismatches are detected */
		CHECK_EQ(run_kernel(there, bytes, stamp, stamp + 1000, counter), 0u); /* its writes are kept */
		CHECK_EQ(state_of(tensor), HR_TENSOR_EVICTED);
		CHECK_EQ(pin(tensor, HR_WRITE, HR_STREAM_DEFAULT), there);
		CHECK_EQ(run_kernel(there, bytes, stamp + 1000, stamp + 2000, counter), 0u);
		unpin(tensor, HR_STREAM_DEFAULT);
	}
	CHECK_STATUS(HR_OK, hr_free(here.allocator, counter, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	close_tensors();
}

static void test_fixed_tensors_that_are_out_can_be_read_by_a_kernel(void)
{
	setenv("FAKE_CUDA_KERNELS", "1", 1); /* before the stand-in is initialized, in this test's process */
	on_each_device(out_can_be_read_by_a_kernel);
}

TEST_MAIN(T(test_tensors_return_with_their_bits), T(test_fixed_tensors_keep_address_and_bits),
          T(test_fixed_tensors_with_shadows_keep_address_and_bits), T(test_eviction_of_fixed_tensors_waits_for_queued_work),
          T(test_fixed_tensors_that_are_out_can_be_read_by_copies), T(test_fixed_tensors_that_are_out_can_be_read_by_a_kernel))
