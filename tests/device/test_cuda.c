/* test_cuda.c - the CUDA backend on the stand-in driver of tests/fake_cuda: its messages when CUDA does not work, no leaks
 * whichever call fails, and no effect on the contexts of other libraries. tests/conformance tests what is common to all devices. */
#include "core/device/internal.h"
#include "fake_cuda/load.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)

/* ---- the stand-in ---- */

static unsigned live_objects(void)
{
	fake_cuda_live live;
	fake.get_live(&live);
	return live.retained + live.reservations + live.handles + live.mappings + live.plain + live.registered + live.streams +
	       live.events;
}

static hr_device find(const char *name)
{
	hr_device device = { 0 };
	CHECK_STATUS(HR_OK, hr_device_find(name, &device));
	return device;
}

static hr_device_info info_of(const char *name)
{
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_device_get_info(find(name), &info));
	return info;
}

static hr__device *opened(const char *name)
{
	hr__device *device = NULL;
	CHECK_STATUS(HR_OK, hr__device_named(name, &device));
	return device;
}

/* ---- reasons for having no CUDA ---- */

/* No CUDA device exists, for the reason [why], and everything works on emulated devices. */
static void check_none(const char *why)
{
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_cuda_check());
	CHECK_STR(hr_last_message(), why);
	CHECK_STR(info_of("GPU:0").backend, "emulated");
	CHECK_EQ(hr_device_count(), 3);
}

static void test_no_driver(void)
{
	void *real = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (real) hr_test_skip("this machine has a CUDA driver");
	unsetenv("HEADROOM_CUDA");
	check_none("no driver found (libcuda.so.1: cannot open shared object file: No such file or directory)");
	hr_device none;
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_find("GPU:1", &none));
	CHECK_STR(hr_last_message(), "there is no device \"GPU:1\"; the devices are GPU:0, CPU:0, SIM:0");
}

static void test_driver_that_is_too_old(void)
{
	fake_cuda_load("old");
	check_none("the CUDA driver is too old: it has no cuMemAddressReserve; Headroom needs CUDA 11.0 or newer");
	hr_device none;
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_find("GPU:1", &none));
	CHECK_STR(hr_last_message(),
	          "there is no device \"GPU:1\"; the devices are GPU:0, CPU:0, SIM:0. CUDA: the CUDA driver is too old: it has no "
	          "cuMemAddressReserve; Headroom needs CUDA 11.0 or newer");
}

static void test_driver_that_does_not_start(void)
{
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_INIT", "803", 1);
	check_none("cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (system has unsupported display driver / cuda driver combination)");
	hr__devices_shutdown();
	setenv("FAKE_CUDA_INIT", "12345", 1);
	check_none("cuInit: CUDA error 12345");
	hr__devices_shutdown();
	unsetenv("FAKE_CUDA_INIT"); /* once it succeeds, it is used */
	CHECK_STATUS(HR_OK, hr_cuda_check());
	CHECK_STR(info_of("GPU:0").backend, "cuda");
}

static void test_driver_without_a_card(void)
{
	fake_cuda_load("whole");
	unsetenv("CUDA_VISIBLE_DEVICES");
	setenv("FAKE_CUDA_INIT", "100", 1);
	check_none("the driver shows no device");
	hr__devices_shutdown();
	unsetenv("FAKE_CUDA_INIT");
	setenv("FAKE_CUDA_DEVICES", "0", 1);
	check_none("the driver shows no device");
	hr__devices_shutdown();
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	check_none("the driver shows no device; the environment variable CUDA_VISIBLE_DEVICES is \"\"");
}

static int forbidding_open(const char *path, int *file, uint64_t *size)
{
	if (strcmp(path, "/dev/nvidiactl") == 0) return EACCES;
	return hr__os_linux()->file_open(path, file, size);
}

static void test_card_that_is_forbidden(void)
{
	hr__os_table table = *hr__os_linux();
	char message[400];
	table.file_open = forbidding_open;
	hr__os_replace(&table);
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_INIT", "100", 1);
	snprintf(message, sizeof message,
	         "cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected); /dev/nvidiactl may not be opened (%s): add the "
	         "user to the "
	         "group that it belongs to, or run the container with access to GPUs",
	         hr__os_error(EACCES));
	check_none(message);
	hr__devices_shutdown();
	hr__os_replace(NULL);
}

static void test_switched_off(void)
{
	fake_cuda_load("whole");
	setenv("HEADROOM_CUDA", "0", 1);
	check_none("switched off (HEADROOM_CUDA=0, or hr_cuda_configure)");
	CHECK_EQ(fake.calls(), 0);
	hr__devices_shutdown();
	setenv("HEADROOM_CUDA", "1", 1);
	CHECK_STR(info_of("GPU:0").backend, "cuda");
	hr__devices_shutdown();
	setenv("HEADROOM_CUDA", "no", 1);
	CHECK_STATUS(HR_OK, hr_cuda_check()); /* same as unset */
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_environment_check());
	CHECK_STR(hr_last_message(), "HEADROOM_CUDA is ignored: \"no\" is neither 0 nor 1");
	hr_cuda_options options;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_cuda_options_init(&options));
	CHECK(options.enabled);
}

static void forked(void *argument)
{
	(void)argument;
	CHECK_STATUS(HR_FORKED, hr_cuda_check());
	CHECK_STATUS(HR_OK, hr_shutdown());
	check_none("this process is a fork of one that used CUDA, which CUDA does not support; start it with exec");
}

static void test_fork_of_a_process_with_cuda(void)
{
	fake_cuda_load("whole");
	CHECK_STR(info_of("GPU:0").backend, "cuda");
	CHECK_EQ(hr_test_in_child(forked, NULL), 0);
	CHECK_STR(info_of("GPU:0").backend, "cuda");
}

static void test_programs_that_use_no_gpu_do_not_start_the_driver(void)
{
	fake_cuda_load("whole");
	CHECK_STR(info_of("CPU:0").backend, "cpu");
	CHECK_STR(info_of("SIM:0").backend, "simulated");
	CHECK_EQ(fake.calls(), 0);
	CHECK_EQ(hr_device_count(), 4);
	CHECK_GT(fake.calls(), 0);
}

/* ---- the list of devices ---- */

static void test_emulated_devices_keep_a_name(void)
{
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_DEVICES", "2", 1);
	static const char *const names[] = { "GPU:0", "GPU:1", "CPU:0", "SIM:0", "EMU:0" };
	CHECK_STR(info_of("EMU:0").backend, "emulated"); /* also if it is requested first */
	CHECK_STR(info_of("EMU:0").name, "EMU:0");
	CHECK_EQ(hr_device_count(), 5);
	for (uint32_t i = 0; i < 5; i++) {
		hr_device device;
		hr_device_info info = { .struct_size = sizeof info };
		CHECK_STATUS(HR_OK, hr_device_at(i, &device));
		CHECK_STATUS(HR_OK, hr_device_get_info(device, &info));
		CHECK_STR(info.name, names[i]);
	}
	hr_device none;
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_find("GPU:2", &none));
	CHECK_STR(hr_last_message(), "there is no device \"GPU:2\"; the devices are GPU:0, GPU:1, CPU:0, SIM:0, EMU:0");
	CHECK_STATUS(HR_AMBIGUOUS_DEVICE, hr_device_find("GPU", &none));
	hr_cuda_options options;
	CHECK_STATUS(HR_OK, hr_cuda_options_init(&options));
	CHECK_STATUS(HR_IN_USE, hr_cuda_configure(&options));
	hr__devices_shutdown();

	/* If emulated devices replace cards, the first is named GPU:0, and EMU:0 means the same device. */
	CHECK_STATUS(HR_OK, hr_cuda_options_init(&options));
	CHECK_EQ(hr_device_count(), 5);
	options.enabled = false;
	CHECK_STATUS(HR_OK, hr_cuda_configure(&options));
	CHECK_STR(info_of("EMU:0").name, "GPU:0");
	CHECK_EQ(find("EMU:0").id, find("GPU:0").id);
	CHECK_EQ(hr_device_count(), 3);
	hr__devices_shutdown();
	CHECK_EQ(live_objects(), 0);
}

static void test_emulated_device_in_use_keeps_its_name(void)
{
	fake_cuda_load("whole");
	hr_cuda_options options;
	CHECK_STATUS(HR_OK, hr_cuda_options_init(&options));
	find("EMU:0");
	options.enabled = false;
	CHECK_STATUS(HR_IN_USE, hr_cuda_configure(&options));
	CHECK_STR(info_of("EMU:0").name, "EMU:0");
}

static void test_card_is_described(void)
{
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_USED", "1048576", 1);
	hr_device_info info = info_of("GPU:0");
	CHECK_STR(info.description, "NVIDIA Fake, compute capability 9.0");
	CHECK_EQ(info.total_bytes, 256 * MIB);
	CHECK_EQ(info.free_bytes, 251 * MIB);
	CHECK_EQ(info.other_bytes, 5 * MIB); /* of another process, and the context */
	CHECK_EQ(info.page_bytes, 2 * MIB);
	hr__device *device = opened("GPU:0");
	hr__page_id pages[3];
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 3, pages));
	CHECK_EQ(info_of("GPU:0").other_bytes, 5 * MIB);
	CHECK_EQ(info_of("GPU:0").reserved_bytes, 6 * MIB);
	hr__page_pool_give(device, pages, 3);
	CHECK_EQ(info_of("GPU:0").other_bytes, 5 * MIB); /* pages kept in the pool are our own */
	CHECK_EQ(info_of("GPU:0").free_bytes, 245 * MIB);
}

static void test_page_size_is_a_setting(void)
{
	fake_cuda_load("whole");
	setenv("HEADROOM_CUDA_PAGE", "16MiB", 1);
	CHECK_EQ(info_of("GPU:0").page_bytes, 16 * MIB);
	hr__devices_shutdown();
	setenv("HEADROOM_CUDA_PAGE", "64K", 1); /* below the card's granularity */
	CHECK_EQ(info_of("GPU:0").page_bytes, 2 * MIB);
	hr__devices_shutdown();
	hr_cuda_options read;
	setenv("HEADROOM_CUDA_PAGE", "3MiB", 1);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_cuda_options_init(&read));
	CHECK_STR(hr_last_message(),
	          "in the environment variable HEADROOM_CUDA_PAGE: CUDA device: page_bytes = 3145728: it must be a power of two");
	CHECK_EQ(info_of("GPU:0").page_bytes, 2 * MIB); /* the first use falls back to the default */
	hr__devices_shutdown();
	setenv("HEADROOM_CUDA_PAGE", "big", 1);
	setenv("HEADROOM_CUDA", "0", 1);
	CHECK_STR(info_of("GPU:0").backend, "emulated"); /* the other variable still applies */
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_cuda_options_init(&read));
	CHECK_CONTAINS(hr_last_message(), "in the environment variable HEADROOM_CUDA_PAGE: \"big\" is not a size");
	hr__devices_shutdown();
	unsetenv("HEADROOM_CUDA");
	unsetenv("HEADROOM_CUDA_PAGE");
	hr_cuda_options options;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_cuda_options_init(NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_cuda_configure(NULL));
	CHECK_STATUS(HR_OK, hr_cuda_options_init(&options));
	options.page_bytes = 0;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_cuda_configure(&options));
	options.page_bytes = 128 * 1024 * MIB;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_cuda_configure(&options));
	options.page_bytes = 4 * MIB;
	CHECK_STATUS(HR_OK, hr_cuda_configure(&options));
	CHECK_EQ(info_of("GPU:0").page_bytes, 4 * MIB);
	CHECK_STATUS(HR_IN_USE, hr_cuda_configure(&options));
}

/* ---- a card that refuses calls ---- */

static void test_card_without_virtual_memory(void)
{
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_NO_VMM", "1", 1);
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_UNSUPPORTED, hr_device_get_info(find("GPU:0"), &info));
	CHECK_STR(hr_last_message(),
	          "opening cuda device 0: NVIDIA Fake, or the way its driver is set up, has no virtual memory management, "
	          "with which Headroom maps its pages; choose another card (CUDA_VISIBLE_DEVICES) or the emulated device "
	          "(HEADROOM_CUDA=0)");
	CHECK_EQ(live_objects(), 0);
	CHECK_STR(info_of("CPU:0").backend, "cpu");
}

static void test_limit_above_what_is_free(void)
{
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_USED", "209715200", 1);
	CHECK_STATUS(HR_BAD_LIMIT, hr_device_set_logical("GPU:0", (uint64_t[]){ 257 * MIB }, 1));
	CHECK_STR(hr_last_message(), "GPU:0: memory limit 0 is 257.0 MiB, above its 256.0 MiB");
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", (uint64_t[]){ 100 * MIB }, 1)); /* other processes may free memory */
	hr__device *device = opened("GPU:0");
	hr__page_id pages[40];
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_take(device, 40, pages));
	CHECK_STR(hr_last_message(),
	          "GPU:0: 80.0 MiB requested with 0 B of 100.0 MiB reserved, but the device itself is full: cuMemCreate of "
	          "2.0 MiB on NVIDIA Fake: CUDA_ERROR_OUT_OF_MEMORY (out of memory); of its 256.0 MiB, 0 B are free");
	uint64_t address;
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_plain_alloc(device, 60 * MIB, &address));
	CHECK_STR(hr_last_message(),
	          "GPU:0: 60.0 MiB requested with 0 B of 100.0 MiB reserved, but the device itself is full: cuMemAlloc of "
	          "60.0 MiB on NVIDIA Fake: CUDA_ERROR_OUT_OF_MEMORY (out of memory); of its 256.0 MiB, 52.0 MiB are free");
	CHECK_STATUS(HR_OK, hr__page_pool_take(device, 26, pages));
	hr__page_pool_give(device, pages, 26);
}

static void test_pinned_memory_refused(void)
{
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_HOST_REGISTER", "2", 1);
	void *block;
	hr__device *device = opened("GPU:0");
	CHECK_STATUS(HR_NO_HOST_MEMORY, hr__call_host_alloc(device->physical, 3 * MIB, &block));
	CHECK_STR(hr_last_message(),
	          "cuMemHostRegister of 3.0 MiB on NVIDIA Fake: CUDA_ERROR_OUT_OF_MEMORY (out of memory); raise the limit "
	          "on locked memory (ulimit -l) or that of the memory cgroup, or lower host_limit");
	unsetenv("FAKE_CUDA_HOST_REGISTER");
	CHECK_STATUS(HR_OK, hr__call_host_alloc(device->physical, 3 * MIB, &block));
	memset(block, 1, 3 * MIB);
	CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, block, 3 * MIB));
	hr__devices_shutdown();
	CHECK_EQ(live_objects(), 0);
}

static void test_errors_carry_cudas_names(void)
{
	fake_cuda_load("whole");
	hr__physical *physical = opened("GPU:0")->physical;
	static const struct {
		CUresult result;
		hr_status status;
		const char *message;
	} cases[] = {
		{ HR__CUDA_ERROR_OUT_OF_MEMORY, HR_OUT_OF_MEMORY,
		  "cuStreamCreate on NVIDIA Fake: CUDA_ERROR_OUT_OF_MEMORY (out of memory)" },
		{ HR__CUDA_ERROR_INVALID_HANDLE, HR_INVALID_ARGUMENT,
		  "cuStreamCreate on NVIDIA Fake: CUDA_ERROR_INVALID_HANDLE (invalid resource handle)" },
		{ HR__CUDA_ERROR_NOT_SUPPORTED, HR_UNSUPPORTED,
		  "cuStreamCreate on NVIDIA Fake: CUDA_ERROR_NOT_SUPPORTED (operation not supported)" },
		{ HR__CUDA_ERROR_ILLEGAL_ADDRESS, HR_DEVICE_ERROR,
		  "cuStreamCreate on NVIDIA Fake: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)" },
		{ 4711, HR_DEVICE_ERROR, "cuStreamCreate on NVIDIA Fake: CUDA error 4711" },
	};
	hr_native_stream stream;
	hr_native_event event;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		fake.fail_nth(3, cases[i].result); /* after reading the current context and a push */
		CHECK_STATUS(cases[i].status, hr__call_stream_create(physical, &stream));
		CHECK_STR(hr_last_message(), cases[i].message);
	}
	fake.fail_nth(0, 0);
	CHECK_STATUS(HR_OK, hr__call_event_create(physical, &event));
	fake.fail_nth(3, HR__CUDA_ERROR_NOT_READY);
	CHECK_STATUS(HR_NOT_READY, hr__call_event_query(physical, event));
	CHECK_STR(hr_last_message(), cases[4].message); /* unchanged: a frequent query must be cheap */
	fake.fail_nth(0, 0);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_event_record(physical, event, 2)); /* CU_STREAM_PER_THREAD */
	CHECK_CONTAINS(hr_last_message(), "differs between threads");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_event_record(physical, event, 0xDEADBEE0));
	CHECK_STATUS(HR_OK, hr__call_event_destroy(physical, event));
	hr_stream imported;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_stream_import(find("GPU:0"), 2, &imported));
}

/* ---- pages ---- */

static void test_unmapping_takes_whole_mappings_of_several_calls(void)
{
	fake_cuda_load("whole");
	hr__physical *physical = opened("GPU:0")->physical;
	hr_page pages[6];
	uint64_t base;
	fake_cuda_live live;
	for (int i = 0; i < 6; i++) CHECK_STATUS(HR_OK, hr__call_page_create(physical, &pages[i]));
	CHECK_STATUS(HR_OK, hr__call_reserve(physical, 8 * 2 * MIB, &base));
	CHECK_STATUS(HR_OK, hr__call_map(physical, base, pages, 2));
	CHECK_STATUS(HR_OK, hr__call_map(physical, base + 4 * MIB, pages + 2, 3)); /* adjacent to the first */
	CHECK_STATUS(HR_OK, hr__call_map(physical, base + 10 * MIB, pages + 5, 1));
	CHECK_STATUS(HR_OK, hr__call_unmap(physical, base + 2 * MIB, 4)); /* parts of two map calls */
	fake.get_live(&live);
	CHECK_EQ(live.mappings, 2);
	CHECK_STATUS(HR_OK, hr__call_map(physical, base + 2 * MIB, pages + 1, 4));
	CHECK_STATUS(HR_OK, hr__call_unmap(physical, base, 6));

	/* An invalid range is an error of CUDA and changes nothing. */
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_unmap(physical, base, 1));
	CHECK_STR(hr_last_message(), "cuMemUnmap of 1 page on NVIDIA Fake: CUDA_ERROR_INVALID_VALUE (invalid argument)");
	CHECK_STATUS(HR_OK, hr__call_map(physical, base, pages, 2));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_unmap(physical, base, 3));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_map(physical, base + 2 * MIB, pages + 2, 1));
	CHECK_STR(hr_last_message(), "cuMemMap of 1 page on NVIDIA Fake: CUDA_ERROR_INVALID_VALUE (invalid argument)");
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_release(physical, base, 16 * MIB));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_map(physical, base + 4 * MIB, (hr_page[]){ pages[2], 5 }, 2)); /* all or none */
	fake.get_live(&live);
	CHECK_EQ(live.mappings, 2);
	CHECK_STATUS(HR_OK, hr__call_unmap(physical, base, 2));
	CHECK_STATUS(HR_OK, hr__call_release(physical, base, 16 * MIB));
	for (int i = 0; i < 6; i++) CHECK_STATUS(HR_OK, hr__call_page_destroy(physical, pages[i]));
	CHECK_STATUS(HR_DEVICE_ERROR, hr__call_page_destroy(physical, pages[0]));
	hr__devices_shutdown();
	CHECK_EQ(live_objects(), 0);
}

static void touch(void *address)
{
	*(volatile char *)address = 1;
}

static void test_device_memory_cannot_be_touched_by_the_host(void)
{
	fake_cuda_load("whole");
	hr_allocator allocator;
	void *block;
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 4096, &block));
	CHECK(hr_test_crashes(touch, block));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK_EQ(live_objects(), 0);
}

/* An allocator under pressure, with work always queued: it grows, trims and stitches, and the stand-in ends the process if it
 * unmaps memory that queued work uses. */
static void test_allocator_never_unmaps_what_is_in_use(void)
{
	enum { BLOCKS = 24, STREAMS = 3 };
	fake_cuda_load("whole");
	setenv("FAKE_CUDA_GRANULARITY", "65536", 1);
	setenv("HEADROOM_CUDA_PAGE", "64KiB", 1);
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", (uint64_t[]){ 16 * MIB }, 1));
	hr_device device = find("GPU:0");
	hr_allocator allocator;
	hr_stream streams[STREAMS] = { HR_STREAM_DEFAULT };
	uint64_t seed = hr_test_seed(), failures = 0, rounds = 2000 + hr_test_scaled(2000);
	unsigned char *seen = calloc(rounds, 1), *wanted = calloc(rounds, 1); /* by round: copies of several rounds may be pending */
	CHECK(seen != NULL && wanted != NULL);
	struct {
		void *at;
		size_t bytes;
		unsigned char value;
		hr_stream stream;
	} blocks[BLOCKS] = { 0 };
	for (int i = 1; i < STREAMS; i++) CHECK_STATUS(HR_OK, hr_stream_create(device, &streams[i]));
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	for (uint64_t round = 0; round < rounds; round++) {
		size_t at = hr_rand_below(&seed, BLOCKS);
		if (blocks[at].at) {
			wanted[round] = blocks[at].value;
			CHECK_STATUS(HR_OK, hr_stream_copy(device, &seen[round], (char *)blocks[at].at + blocks[at].bytes - 1, 1, HR_COPY_TO_HOST,
			                            blocks[at].stream));
			CHECK_STATUS(HR_OK, hr_free(allocator, blocks[at].at, blocks[at].stream));
			blocks[at].at = NULL;
			continue;
		}
		blocks[at].bytes = 1 + hr_rand_below(&seed, hr_rand_below(&seed, 4) ? 200000 : 5 * MIB);
		blocks[at].stream = streams[hr_rand_below(&seed, STREAMS)];
		blocks[at].value = (unsigned char)round;
		hr_request request = HR_REQUEST(blocks[at].bytes);
		request.stream = blocks[at].stream;
		hr_status status = hr_alloc(allocator, &request, &blocks[at].at);
		if (status == HR_OUT_OF_MEMORY) {
			failures++;
			blocks[at].at = NULL;
			continue;
		}
		CHECK_STATUS(HR_OK, status);
		CHECK_STATUS(HR_OK, hr_stream_fill(device, blocks[at].at, blocks[at].value, blocks[at].bytes, blocks[at].stream));
	}
	for (int i = 0; i < STREAMS; i++) CHECK_STATUS(HR_OK, hr_stream_synchronize(device, streams[i]));
	CHECK_BYTES(seen, wanted, rounds);
	free(seen);
	free(wanted);
	for (size_t at = 0; at < BLOCKS; at++) {
		if (blocks[at].at) CHECK_STATUS(HR_OK, hr_free(allocator, blocks[at].at, blocks[at].stream));
	}
	hr_stats stats = { .struct_size = sizeof stats };
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	CHECK_GT(failures, 0);
	CHECK_GT(stats.num_stitches, 0);
	CHECK_GT(stats.num_stream_waits, 0);
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK_EQ(live_objects(), 0);
}

/* ---- time ---- */

static uint64_t mark_time(hr__device *device, uint64_t mark)
{
	uint64_t ns = 0;
	CHECK_STATUS(HR_OK, hr__device_mark_time(device, HR_STREAM_DEFAULT, mark, &ns));
	return ns;
}

/* CUDA returns the time between events as a float, which cannot represent hours with microsecond resolution. */
static void test_time_stays_fine_over_hours(void)
{
	enum { COUNT = 20 };
	const uint64_t hour = UINT64_C(3600000000000), apart = 50000;
	uint64_t marks[COUNT], at[COUNT], first;
	fake_cuda_load("whole");
	hr__device *device = opened("GPU:0");
	CHECK_STATUS(HR_OK, hr__device_mark_timed(device, HR_STREAM_DEFAULT, &first));
	uint64_t start = mark_time(device, first);
	for (int round = 0; round < 3; round++) {
		fake.advance_clock(hour);
		uint64_t began = hr__os()->clock_ns();
		for (int i = 0; i < COUNT; i++) {
			CHECK_STATUS(HR_OK, hr__device_mark_timed(device, HR_STREAM_DEFAULT, &marks[i]));
			fake.advance_clock(apart);
		}
		uint64_t busy = hr__os()->clock_ns() - began; /* time of the driver's clock meanwhile */
		fake.advance_clock(5 * apart); /* queried a little later */
		for (int i = 0; i < COUNT; i++) at[i] = mark_time(device, marks[i]);
		for (int i = 1; i < COUNT; i++) {
			CHECK_GE(at[i] + 1000, at[i - 1] + apart);
			/* The error of a float over an hour is 250 us, each time. */
			if (i == COUNT - 1) CHECK_LE(at[i] - at[0], COUNT * apart + busy + 2000000);
		}
	}
	uint64_t all = mark_time(device, marks[COUNT - 1]) - start;
	CHECK_GE(all, 3 * hour);
	CHECK_LE(all, 3 * hour + 60 * UINT64_C(1000000000));
	uint64_t again = mark_time(device, first); /* long ago, and so coarse: 1 ms over three hours */
	CHECK_LE(again > start ? again - start : start - again, 2000000);
}

static void test_only_events_of_marks_keep_the_time(void)
{
	fake_cuda_load("whole");
	hr__physical *physical = opened("GPU:0")->physical;
	hr_native_event plain, timed;
	uint64_t ns = 4711;
	CHECK_STATUS(HR_OK, hr__call_event_create(physical, &plain));
	CHECK_STATUS(HR_OK, hr__call_timed_event_create(physical, &timed));
	CHECK_STATUS(HR_OK, hr__call_event_record(physical, plain, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_event_time(physical, plain, &ns));
	CHECK_STR(hr_last_message(), "cuEventElapsedTime on NVIDIA Fake: CUDA_ERROR_INVALID_HANDLE (invalid resource handle)");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__call_event_time(physical, timed, &ns)); /* never recorded */
	CHECK_EQ(ns, 4711);
	CHECK_STATUS(HR_OK, hr__call_event_record(physical, timed, 0));
	CHECK_STATUS(HR_OK, hr__call_event_time(physical, timed, &ns));
	CHECK_NE(ns, 4711);
	CHECK_STATUS(HR_OK, hr__call_event_destroy(physical, plain));
	CHECK_STATUS(HR_OK, hr__call_event_destroy(physical, timed));
	hr__devices_shutdown();
	CHECK_EQ(live_objects(), 0);
}

/* ---- contexts ---- */

/* Makes one call of each kind. */
static void use_everything(void)
{
	hr_device device = find("GPU:0");
	hr_allocator allocator;
	hr_stream stream;
	void *block;
	unsigned char seen = 0;
	info_of("GPU:0");
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	CHECK_STATUS(HR_OK, hr_stream_create(device, &stream));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 3 * MIB, &block));
	CHECK_STATUS(HR_OK, hr_stream_fill(device, block, 7, 3 * MIB, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_wait_stream(device, stream, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_stream_copy(device, &seen, block, 1, HR_COPY_TO_HOST, stream));
	uint64_t mark, ns;
	CHECK_STATUS(HR_OK, hr__device_mark_timed(opened("GPU:0"), stream, &mark));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
	CHECK_STATUS(HR_OK, hr__device_mark_time(opened("GPU:0"), stream, mark, &ns));
	CHECK_EQ(seen, 7);
	CHECK_STATUS(HR_OK, hr_free(allocator, block, stream));
	CHECK_STATUS(HR_OK, hr_stream_destroy(device, stream));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void check_current(CUcontext expected, unsigned depth)
{
	CUcontext now = NULL;
	CHECK_EQ(fake.get_current(&now), HR__CUDA_SUCCESS);
	CHECK_EQ((void *)now, (void *)expected);
	CHECK_EQ(fake.depth(), depth);
}

static void test_what_is_current_stays_current(void)
{
	fake_cuda_load("whole");
	use_everything();
	check_current(NULL, 0);
	CHECK_EQ(live_objects(), 0);

	/* Another library has retained the primary context, and uses a context of its own. */
	CUcontext primary;
	CHECK_EQ(fake.retain(&primary, 0), HR__CUDA_SUCCESS);
	CHECK_EQ(fake.push(fake.foreign_context()), HR__CUDA_SUCCESS);
	use_everything();
	check_current(fake.foreign_context(), 1);

	/* Another library uses the primary context. */
	CHECK_EQ(fake.push(primary), HR__CUDA_SUCCESS);
	use_everything();
	check_current(primary, 2);
	fake_cuda_live live;
	fake.get_live(&live);
	CHECK_EQ(live.retained, 1); /* still retained by the library, and no longer by us */
}

/* ---- faults ---- */

/* The calls that release something, and those made before each of them. */
static bool gives_back(const char *call)
{
	static const char *const calls[] = {
		"cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuMemAddressFree",   "cuMemRelease",      "cuMemUnmap",
		"cuMemFree_v2",    "cuMemHostUnregister", "cuStreamDestroy_v2", "cuEventDestroy_v2", "cuDevicePrimaryCtxRelease_v2"
	};
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		if (strcmp(call, calls[i]) == 0) return true;
	}
	return false;
}

#define TWICE(call) ((call) == HR_OK || (call) == HR_OK)

static hr_status use_pages(hr__device *device)
{
	uint64_t base, bytes = 3 * hr__device_page_bytes(device);
	hr__page_id pages[3];
	hr_status status = hr__page_pool_take(device, 3, pages);
	if (status != HR_OK) return status;
	status = hr__device_reserve(device, bytes, &base);
	if (status == HR_OK) {
		status = hr__device_map(device, base, pages, 3);
		if (status == HR_OK) {
			status = hr_stream_fill(find("GPU:0"), (void *)(uintptr_t)base, 1, bytes, HR_STREAM_DEFAULT);
			CHECK(TWICE(hr_stream_synchronize(find("GPU:0"), HR_STREAM_DEFAULT)));
			CHECK(TWICE(hr__device_unmap(device, base, 3)));
		}
		CHECK(TWICE(hr__device_release(device, base, bytes)));
	}
	hr__page_pool_give(device, pages, 3);
	hr__page_pool_shrink(device);
	hr__page_pool_shrink(device); /* what was refused the first time */
	return status;
}

static hr_status use_streams(hr_device handle, hr__device *device)
{
	int64_t waits = 0;
	hr_stream stream;
	hr_status status = hr_stream_create(handle, &stream);
	if (status != HR_OK) return status;
	uint64_t mask = 1 | UINT64_C(1) << stream, mark = 0, ns;
	status = hr__device_order(device, stream, mask, hr__device_epoch(device), &waits);
	if (status == HR_OK) status = hr__device_mark_timed(device, stream, &mark);
	if (status == HR_OK) status = hr__device_order(device, HR_STREAM_DEFAULT, mask, mark - 1, &waits);
	if (status == HR_OK) status = hr__device_wait_idle(device, mask, mark - 1);
	if (status == HR_OK) status = hr__device_mark_time(device, stream, mark, &ns);
	if (status == HR_OK) fake.advance_clock(UINT64_C(3000000000)); /* so that the clock gets another base */
	if (status == HR_OK) status = hr__device_mark_timed(device, stream, &mark);
	if (status == HR_OK) status = hr__device_wait_idle(device, mask, mark - 1);
	if (status == HR_OK) status = hr__device_mark_time(device, stream, mark, &ns);
	if (status == HR_OK) status = hr__device_wait_idle(device, mask, hr__device_epoch(device));
	CHECK(TWICE(hr_stream_destroy(handle, stream)));
	return status;
}

static hr_status use_memory(hr__device *device)
{
	uint64_t plain;
	void *block;
	hr_status status = hr__page_pool_plain_alloc(device, 1000, &plain);
	if (status != HR_OK) return status;
	CHECK(TWICE(hr__page_pool_plain_free(device, plain, 1000)));
	status = hr__call_host_alloc(device->physical, 5000, &block);
	if (status != HR_OK) return status;
	CHECK(TWICE(hr__call_host_free(device->physical, block, 5000)));
	return HR_OK;
}

static hr_status whole_life(void)
{
	hr_device handle;
	hr__device *device;
	hr_status status = hr_cuda_check();
	if (status == HR_OK) status = hr_device_find("GPU:0", &handle);
	if (status == HR_OK) status = hr__device_named("GPU:0", &device);
	if (status == HR_OK) status = use_pages(device);
	if (status == HR_OK) status = use_streams(handle, device);
	if (status == HR_OK) status = use_memory(device);
	hr__devices_shutdown();
	return status;
}

/* What the driver refuses to release at the very end, when there is no retry, remains, and nothing else. */
static void test_every_driver_call_may_fail_and_nothing_leaks(void)
{
	static const CUresult results[] = { HR__CUDA_ERROR_OUT_OF_MEMORY, HR__CUDA_ERROR_UNKNOWN };
	fake_cuda_load("whole");
	unsigned long long nth = 1, failures = 0;
	unsigned refused = 0;
	for (bool reached = true; reached; nth++) {
		fake.fail_nth(nth, results[nth % 2]);
		hr_status status = whole_life();
		reached = fake.calls() >= nth;
		bool kept = gives_back(fake.failed());
		fake.fail_nth(0, 0);
		if (status != HR_OK) failures++;
		if (!reached) CHECK_STATUS(HR_OK, status);
		unsigned left = live_objects();
		CHECK_GE(left, refused);
		if (!kept) CHECK_EQ(left, refused);
		else CHECK_LE(left, refused + 1);
		refused = left;
		CHECK_EQ(fake.depth(), 0);
	}
	printf("# %llu calls, %llu lives that ended early, %u objects refused at the end\n", nth, failures, refused);
	CHECK_GT(failures, 20);
	/* Two spare events, two of marks, the clock's stream and two events, each with two calls before it that may fail; and the
	 * context. */
	CHECK_LE(refused, 7 * 3 + 1);
}

TEST_MAIN(T(test_no_driver), T(test_driver_that_is_too_old), T(test_driver_that_does_not_start), T(test_driver_without_a_card),
          T(test_card_that_is_forbidden), T(test_switched_off), T(test_fork_of_a_process_with_cuda),
          T(test_programs_that_use_no_gpu_do_not_start_the_driver), T(test_emulated_devices_keep_a_name),
          T(test_emulated_device_in_use_keeps_its_name), T(test_card_is_described), T(test_page_size_is_a_setting),
          T(test_card_without_virtual_memory), T(test_limit_above_what_is_free), T(test_pinned_memory_refused),
          T(test_errors_carry_cudas_names), T(test_unmapping_takes_whole_mappings_of_several_calls),
          T(test_device_memory_cannot_be_touched_by_the_host), T(test_allocator_never_unmaps_what_is_in_use),
          T(test_time_stays_fine_over_hours), T(test_only_events_of_marks_keep_the_time), T(test_what_is_current_stays_current),
          T(test_every_driver_call_may_fail_and_nothing_leaks))
