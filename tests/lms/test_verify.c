/* test_verify.c - verify: restored contents equal the evicted ones, byte for byte, for any size and number of readers; differences
 * are reported. */
#include "fixture.h"
#include "fault_os.h"
#include "headroom_backend.h"
#include "core/lms/lms.h"
#include "core/os/os.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define LARGE (72 * MIB + 12345) /* four readers, with slots that are filled more than once */

static hr_device device;
static hr_allocator allocator;
static hr__lms *lms;

static void set_up(const char *name, uint64_t host_limit)
{
	hr_lms_options lms_options;
	fixture_configure_emulated(256 * MIB, FIXTURE_DEFAULT, 0);
	CHECK_STATUS(HR_OK, hr_device_find(name, &device));
	allocator = fixture_allocator(device, 200 * MIB);
	CHECK_STATUS(HR_OK, hr_lms_options_init(&lms_options));
	lms_options.enabled = lms_options.verify = true;
	lms_options.policy = "lru";
	lms_options.host_limit = host_limit;
	CHECK_STATUS(HR_OK, hr_lms_configure(allocator, &lms_options));
	CHECK_STATUS(HR_OK, hr__lms_of(allocator, &lms));
}

static void tear_down(void)
{
	CHECK_STATUS(HR_OK, hr_lms_check(allocator));
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* A tensor whose contents differ everywhere. */
static hr_tensor make(uint64_t bytes)
{
	hr_tensor tensor;
	hr_tensor_options options;
	uint64_t seed = hr_test_seed() + bytes;
	unsigned char *contents = malloc(bytes + 8);
	void *at;
	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t word = hr_rand(&seed);
		memcpy(contents + i, &word, 8);
	}
	hr_tensor_options_init(&options);
	options.bytes = bytes;
	options.op = hr_name_intern("the_op");
	CHECK_STATUS(HR_OK, hr_tensor_create(allocator, &options, &tensor));
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	CHECK_STATUS(HR_OK, hr_stream_copy(device, at, contents, bytes, HR_COPY_TO_DEVICE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	free(contents);
	return tensor;
}

/* Evicts it; returns its host copy. */
static unsigned char *evict(hr_tensor tensor)
{
	hr_status status;
	hr__tensor *record = hr__tensor_of(tensor, &status);
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, lms->out_stream));
	CHECK(record->copy.address != 0);
	return (unsigned char *)(uintptr_t)record->copy.address;
}

static void expect_corrupt(hr_tensor tensor)
{
	hr_tensor_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_CORRUPT, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "the_op");
	CHECK_CONTAINS(hr_last_message(), "other contents than it was evicted with");
	CHECK_STATUS(HR_OK, hr_tensor_get_info(tensor, &info));
	CHECK_EQ(info.state, HR_TENSOR_EVICTED);
}

static void expect_good(hr_tensor tensor)
{
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
}

/* ---- detection ---- */

static void corrupt_one_bit(uint64_t bytes, uint64_t times)
{
	uint64_t random = hr_test_seed();
	hr_tensor tensor = make(bytes);
	for (uint64_t i = 0; i < times; i++) {
		unsigned char *copy = evict(tensor);
		uint64_t at = i == 0 ? 0 : i == 1 ? bytes - 1 : hr_rand_below(&random, bytes);
		unsigned char flipped = (unsigned char)(1u << hr_rand_below(&random, 8));
		copy[at] ^= flipped;
		expect_corrupt(tensor);
		copy[at] ^= flipped;
		expect_good(tensor);
	}
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
}

static void test_one_changed_bit_is_reported(void)
{
	static const uint64_t sizes[] = { 1, 63, 64, 65, 64 * KIB, MIB + 3, 4 * MIB, 4 * MIB + 1, 20 * MIB };
	set_up("GPU:0", 0);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) corrupt_one_bit(sizes[i], 3 + hr_test_scaled(5));
	corrupt_one_bit(LARGE, 3 + hr_test_scaled(3));
	tear_down();
}

static void swap(unsigned char *a, unsigned char *b, uint64_t bytes)
{
	unsigned char *kept = malloc(bytes);
	memcpy(kept, a, bytes);
	memcpy(a, b, bytes);
	memcpy(b, kept, bytes);
	free(kept);
}

/* Swaps words, blocks that are summed at once, and whole slots of the readers. */
static void test_exchanged_bytes_are_reported(void)
{
	static const uint64_t sizes[] = { 1, 8, 16, 64, 4096, MIB, 4 * MIB, 16 * MIB };
	set_up("GPU:0", 0);
	hr_tensor tensor = make(LARGE);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		unsigned char *copy = evict(tensor);
		swap(copy, copy + sizes[i], sizes[i]);
		expect_corrupt(tensor);
		swap(copy, copy + sizes[i], sizes[i]);
		swap(copy + 4 * MIB, copy + 36 * MIB, sizes[i]); /* both in the same slot of the same reader */
		expect_corrupt(tensor);
		swap(copy + 4 * MIB, copy + 36 * MIB, sizes[i]);
		expect_good(tensor);
	}
	tear_down();
}

static void test_a_write_to_a_large_tensor_through_a_read_pin_is_reported(void)
{
	void *at;
	set_up("GPU:0", 0);
	hr_tensor tensor = make(LARGE);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor, &at));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, (char *)at + LARGE - 9, 0, 9, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_CORRUPT, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	CHECK_CONTAINS(hr_last_message(), "reading only");
	tear_down();
}

/* ---- resources ---- */

/* An eighth of the host memory is used for reading. */
static void test_it_works_with_little_host_memory(void)
{
	static const uint64_t limits[] = { 64 * KIB, 100 * KIB, 3 * MIB };
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
		set_up("GPU:0", limits[i]);
		corrupt_one_bit(limits[i] / 2 + 1, 5);
		CHECK_LE(hr__host_get_usage(lms->host).reserved_bytes, (int64_t)limits[i]);
		tear_down();
	}
}

static int no_thread(void (*run)(void *), void *argument, const char *name, hr__thread **out)
{
	(void)run;
	(void)argument;
	(void)name;
	(void)out;
	return EAGAIN;
}

static void test_verify_works_when_no_thread_can_be_started(void)
{
	set_up("GPU:0", 0);
	hr_tensor tensor = make(LARGE);
	evict(tensor); /* several threads computed the checksum; after this the device has threads of its own */
	expect_good(tensor);
	hr__os_table table = *hr__os();
	table.thread_start = no_thread;
	CHECK_EQ(hr__os_replace(&table), hr__os_linux());
	unsigned char *copy = evict(tensor);
	copy[50 * MIB] ^= 1;
	expect_corrupt(tensor);
	copy[50 * MIB] ^= 1;
	expect_good(tensor);
	hr__os_replace(NULL);
	tear_down();
}

/* Copies of the other readers may be pending then. */
static void test_a_large_tensor_survives_any_failing_call(void)
{
	set_up("GPU:0", 0);
	hr_tensor tensor = make(LARGE);
	for (uint64_t n = 1, step = 1;; n += step) {
		evict(tensor);
		hr_backend_fail_nth(n, false, HR_DEVICE_ERROR);
		hr_status pinned = hr_tensor_pin(tensor, HR_READ, HR_STREAM_DEFAULT);
		hr_status unpinned = pinned ? HR_OK : hr_tensor_unpin(tensor, HR_STREAM_DEFAULT);
		bool reached = hr_backend_calls() >= n;
		hr_backend_fail_nth(0, false, HR_OK);
		if (pinned) CHECK_NE(pinned, HR_CORRUPT);
		if (unpinned) CHECK_NE(unpinned, HR_CORRUPT);
		if (!reached) CHECK(!pinned && !unpinned);
		expect_good(tensor);
		CHECK_STATUS(HR_OK, hr_lms_check(allocator));
		if (!reached) break;
		if (n > 20) step = HR_TEST_SANITIZED ? 13 : 5;
	}
	tear_down();
}

/* A simulated device has no contents to compare, and none are accessed. */
static void test_a_simulated_device_passes(void)
{
	set_up("SIM:0", 0);
	hr_tensor tensor = fixture_tensor(allocator, 100 * MIB);
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_evict(tensor));
	expect_good(tensor);
	tear_down();
}

TEST_MAIN(T(test_one_changed_bit_is_reported), T(test_exchanged_bytes_are_reported),
          T(test_a_write_to_a_large_tensor_through_a_read_pin_is_reported), T(test_it_works_with_little_host_memory),
          T(test_verify_works_when_no_thread_can_be_started), T(test_a_large_tensor_survives_any_failing_call),
          T(test_a_simulated_device_passes))
