/* test_device.c - the list of devices: names, settings, logical devices, handles, fork. */
#include "core/device/internal.h"
#include "fault_os.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)

static void configure_emulated(uint32_t devices, uint64_t memory, uint64_t page)
{
	hr_emulated_options options;
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	options.devices = devices;
	options.memory_bytes = memory;
	options.page_bytes = page;
	CHECK_STATUS(HR_OK, hr_emulated_configure(&options));
}

static hr_device find(const char *name)
{
	hr_device device = { 0 };
	CHECK_STATUS(HR_OK, hr_device_find(name, &device));
	CHECK_NE(device.id, 0);
	return device;
}

static hr_device_info info_of(hr_device device)
{
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_device_get_info(device, &info));
	return info;
}

/* ---- names ---- */

static void test_names_are_read_as_tensorflow_reads_them(void)
{
	static const char *const same[] = {
		"GPU:0",
		"gpu:0",
		"Gpu:0",
		"/GPU:0",
		"/gpu:0",
		"/device:GPU:0",
		"/device:gpu:0",
		"/DEVICE:GPU:0",
		"GPU:00000000000000000000",
		"/job:localhost/device:GPU:0",
		"/replica:0/task:0/GPU:0",
		"/task:0/device:GPU:0",
		"/job:localhost/GPU:0",
		"/job:*/GPU:0",
		"/job:localhost/replica:0/task:0/device:GPU:0",
		"/job:LOCALHOST/replica:00/task:*/device:GPU:0",
		"GPU",
		"GPU:*",
		"/device:GPU",
		"/device:GPU:*",
		"/GPU:*",
	};
	hr_device first = find(NULL);
	for (size_t i = 0; i < sizeof same / sizeof *same; i++) CHECK_EQ(find(same[i]).id, first.id);
	CHECK_EQ(find("/job:localhost/replica:0/task:0/device:CPU:0").id, find("cpu").id);
	CHECK_NE(find("CPU:0").id, first.id);
	CHECK_NE(find("SIM:0").id, first.id);
}

static void test_names_that_cannot_be_parsed_are_refused(void)
{
	static const char *const bad[] = {
		"",
		"/",
		":",
		"::",
		"0",
		":0",
		"*",
		"GPU:",
		"GPU:x",
		"GPU:-1",
		"GPU:+1",
		"GPU: 0",
		" GPU:0",
		"GPU:0 ",
		"GPU:0x1",
		"GPU:0:1",
		"GPU:1*",
		"GPU:**",
		"GPU:4294967296",
		"GPU:2147483648",
		"GPU:99999999999999999999999999999999999999",
		"//GPU:0",
		"/device:",
		"/device:/GPU:0",
		"/job:localhost",
		"/job:localhost/",
		"/job:/GPU:0",
		"/job:localhostGPU:0",
		"/task:0",
		"/task:0GPU:0",
		"/task:/GPU:0",
		"/task:x/GPU:0",
		"/task:0/replica:0/GPU:0",
		"/replica:0/job:localhost/GPU:0",
		"/job:localhost/job:localhost/GPU:0",
		"GPU/0",
		"GPU:0/",
		"GPU:0/GPU:0",
		"_GPU:0",
		"9GPU:0",
		"G-PU:0",
		"GPU\n:0",
		"GPU:0\n",
		"AVERYLONGTYPEOFDEVICE:0",
		"job:localhost/GPU:0",
		"\xC3\xA9:0",
	};
	hr_device device = { 77 };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		hr_status status = hr_device_find(bad[i], &device);
		if (status != HR_BAD_DEVICE_NAME) printf("# name \"%s\"\n", bad[i]);
		CHECK_STATUS(HR_BAD_DEVICE_NAME, status);
		CHECK_CONTAINS(hr_last_message(), "\"GPU:0\"");
		CHECK_EQ(device.id, 77);
	}
}

static void test_message_quotes_a_name_safely(void)
{
	char *long_name = malloc(10001);
	char quoted[HR__QUOTE_CAPACITY];
	hr_device device;
	CHECK(long_name != NULL);
	memset(long_name, '\a', 10000);
	long_name[10000] = 0;
	CHECK_STATUS(HR_BAD_DEVICE_NAME, hr_device_find(long_name, &device));
	CHECK_LT(strlen(hr_last_message()), 512);
	CHECK_CONTAINS(hr_last_message(), "\\x07");
	CHECK_CONTAINS(hr_last_message(), "...");
	CHECK_CONTAINS(hr_last_message(), "\"GPU:0\"");
	CHECK(strchr(hr_last_message(), '\a') == NULL);
	memset(long_name, '0', 10000);
	memcpy(long_name, "GPU:", 4);
	CHECK_STATUS(HR_OK, hr_device_find(long_name, &device)); /* leading zeros */
	free(long_name);
	CHECK_STR(hr__device_quote("a\"b\\c\x01", quoted), "\"a\\x22b\\x5cc\\x01\"");
	CHECK_STR(hr__device_quote("", quoted), "\"\"");
}

static void test_a_name_of_no_device_lists_the_devices(void)
{
	static const char *const missing[] = { "GPU:1",
		                                   "CPU:1",
		                                   "TPU:0",
		                                   "TPU",
		                                   "/job:worker/GPU:0",
		                                   "/task:1/GPU:0",
		                                   "/replica:2/CPU:0",
		                                   "GPU:2147483647",
		                                   "/device:XLA_GPU:0" };
	hr_device device = { 77 };
	for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
		CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_find(missing[i], &device));
		CHECK_CONTAINS(hr_last_message(), "GPU:0, CPU:0, SIM:0");
		CHECK_CONTAINS(hr_last_message(), missing[i]);
	}
	CHECK_EQ(device.id, 77);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_device_find("GPU:0", NULL));
}

static void test_a_name_that_fits_two_names_them(void)
{
	hr_device device;
	configure_emulated(2, 64 * MIB, 2 * MIB);
	CHECK_STATUS(HR_AMBIGUOUS_DEVICE, hr_device_find("GPU", &device));
	CHECK_CONTAINS(hr_last_message(), "GPU:0 and GPU:1");
	CHECK_STATUS(HR_AMBIGUOUS_DEVICE, hr_device_find("/device:GPU:*", &device));
	CHECK_NE(find("GPU:0").id, find("GPU:1").id);
	CHECK_STATUS(HR_OK, hr_device_find("CPU:*", &device));
}

static void test_without_a_gpu_the_default_is_missing(void)
{
	hr_device device;
	configure_emulated(0, 64 * MIB, 2 * MIB);
	CHECK_EQ(hr_device_count(), 2);
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_find(NULL, &device));
	CHECK_CONTAINS(hr_last_message(), "CPU:0, SIM:0");
	find("CPU:0");
}

/* ---- listing ---- */

static void test_devices_are_listed_gpus_then_cpu_then_sim(void)
{
	static const char *const names[] = { "GPU:0", "GPU:1", "CPU:0", "SIM:0" };
	hr_device device;
	configure_emulated(2, 64 * MIB, 2 * MIB);
	CHECK_EQ(hr_device_count(), 4);
	for (uint32_t i = 0; i < 4; i++) {
		CHECK_STATUS(HR_OK, hr_device_at(i, &device));
		CHECK_STR(info_of(device).name, names[i]);
		CHECK_EQ(device.id, find(names[i]).id);
	}
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_at(4, &device));
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_at(UINT32_MAX, &device));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_device_at(0, NULL));
}

static void test_an_unused_device_has_no_file_and_no_thread(void)
{
	struct hr_fault_os_live live;
	hr_fault_os_install();
	for (uint32_t i = 0; i < hr_device_count(); i++) {
		hr_device device;
		CHECK_STATUS(HR_OK, hr_device_at(i, &device));
		info_of(device);
	}
	hr_fault_os_live(&live);
	CHECK_EQ(live.fds, 0);
	CHECK_EQ(live.threads, 0);
	CHECK_EQ(live.monitors, 0);
	CHECK_EQ(live.reserved_bytes, 0);
	CHECK_LT(live.alloc_bytes, 256 << 10);
	hr__devices_shutdown();
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

static void test_gpu_ids_count_logical_gpus(void)
{
	hr__device *device;
	configure_emulated(2, 64 * MIB, 2 * MIB);
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", (uint64_t[]){ 10 * MIB, 20 * MIB }, 2));
	CHECK_STATUS(HR_OK, hr__device_gpu(2, &device));
	CHECK_STR(hr__device_name(device), "GPU:2");
	CHECK_STATUS(HR_OK, hr__device_gpu(2, &device));
	CHECK_EQ(hr__device_limit(device), 64 * MIB);
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr__device_gpu(3, &device));
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr__device_gpu(-1, &device));
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr__device_gpu(INT32_MIN, &device));
	CHECK_CONTAINS(hr_last_message(), "GPU:0, GPU:1, GPU:2, CPU:0, SIM:0");
}

/* ---- settings ---- */

static hr_status init_from(const char *text, hr_emulated_options *options)
{
	if (text) setenv("HEADROOM_EMULATED", text, 1);
	else unsetenv("HEADROOM_EMULATED");
	return hr_emulated_options_init(options);
}

static void test_emulated_options_come_from_the_environment(void)
{
	hr_emulated_options options;
	CHECK_STATUS(HR_OK, init_from(NULL, &options));
	CHECK_EQ(options.struct_size, sizeof options);
	CHECK_EQ(options.devices, 1);
	CHECK_EQ(options.memory_bytes, UINT64_C(1) << 30);
	CHECK_EQ(options.page_bytes, 2 * MIB);
	CHECK_EQ(options.link_bytes_per_s, 0);
	CHECK_EQ(options.kernel_latency_ns, 0);
	CHECK_STATUS(HR_OK, init_from("memory=512MiB,page=64KiB,link=2GB/s,latency=5us,devices=2", &options));
	CHECK_EQ(options.devices, 2);
	CHECK_EQ(options.memory_bytes, 512 * MIB);
	CHECK_EQ(options.page_bytes, 65536);
	CHECK_EQ(options.link_bytes_per_s, UINT64_C(2000000000));
	CHECK_EQ(options.kernel_latency_ns, 5000);
	CHECK_STATUS(HR_OK, init_from("latency=0ns, link=1G", &options));
	CHECK_EQ(options.link_bytes_per_s, UINT64_C(1) << 30);
	CHECK_EQ(options.memory_bytes, UINT64_C(1) << 30);
	CHECK_STATUS(HR_OK, init_from("", &options));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_emulated_options_init(NULL));

	CHECK_STATUS(HR_OK, init_from("memory=8MiB,devices=3", &options));
	CHECK_EQ(hr_device_count(), 5);
	CHECK_EQ(info_of(find("GPU:2")).total_bytes, 8 * MIB);
}

static void test_a_bad_environment_is_reported_and_the_defaults_apply(void)
{
	static const char *const bad[] = {
		"memory",
		"memory=",
		"=1",
		"memory=1XB",
		"memory=-1",
		"memory=1GiB,",
		",memory=1GiB",
		"memory=1GiB,,page=2MiB",
		"colour=red",
		"latency=5",
		"latency=5 us",
		"latency=99999999999999999999ns",
		"latency=99999999999s",
		"devices=",
		"devices=1.5",
		"devices=9",
		"devices=99999999999",
		"page=3MiB",
		"page=4KiB",
		"page=0",
		"memory=1KiB",
		"memory=2MiB,page=4MiB",
		"memory=99999999T",
		"link=/s",
		"link=fast",
		"memory=1GiB page=2MiB",
		"memory=11111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111",
	};
	hr_emulated_options options;
	hr_device device;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		hr_status status = init_from(bad[i], &options);
		if (status != HR_INVALID_ARGUMENT) printf("# %s\n", bad[i]);
		CHECK_STATUS(HR_INVALID_ARGUMENT, status);
		CHECK_CONTAINS(hr_last_message(), "HEADROOM_EMULATED");
		CHECK_EQ(options.struct_size, sizeof options);
		CHECK_EQ(options.memory_bytes, UINT64_C(1) << 30);
		CHECK_EQ(options.page_bytes, 2 * MIB);
		CHECK_EQ(options.devices, 1);
		/* The first use falls back to the defaults; the reason is kept. */
		CHECK_STATUS(HR_OK, hr_device_find("GPU:0", &device));
		CHECK_EQ(info_of(device).total_bytes, UINT64_C(1) << 30);
		CHECK_STATUS(HR_INVALID_ARGUMENT, hr_environment_check());
		CHECK_CONTAINS(hr_last_message(), "HEADROOM_EMULATED");
		CHECK_STATUS(HR_OK, hr_shutdown());
	}
	CHECK_STATUS(HR_OK, init_from(NULL, &options));
	find("GPU:0");
}

static void test_impossible_settings_are_refused(void)
{
	hr_emulated_options good, bad;
	hr_simulated_options sim, worse;
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&good));
	hr_simulated_options_init(&sim);
#define REFUSED(options, field, value, configure) \
	(bad = good, worse = sim, (void)bad, (void)worse, (options).field = (value), configure(&(options)))
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_emulated_configure(NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(bad, struct_size, 8, hr_emulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(bad, devices, 9, hr_emulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(bad, page_bytes, 0, hr_emulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(bad, page_bytes, 3 * MIB, hr_emulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(bad, page_bytes, 32768, hr_emulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(bad, memory_bytes, 0, hr_emulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(bad, memory_bytes, 2 * MIB - 1, hr_emulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(bad, memory_bytes, UINT64_MAX, hr_emulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_simulated_configure(NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(worse, struct_size, 0, hr_simulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(worse, page_bytes, 128, hr_simulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(worse, page_bytes, 300, hr_simulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(worse, memory_bytes, 0, hr_simulated_configure));
	CHECK_STATUS(HR_INVALID_ARGUMENT, REFUSED(worse, memory_bytes, UINT64_MAX, hr_simulated_configure));
	CHECK_STATUS(HR_OK, REFUSED(worse, page_bytes, 256, hr_simulated_configure));
	CHECK_STATUS(HR_OK, REFUSED(worse, page_bytes, 0, hr_simulated_configure));
	CHECK_EQ(info_of(find("SIM:0")).page_bytes, 0);
	CHECK_EQ(info_of(find("GPU:0")).total_bytes, good.memory_bytes);
}

static void test_settings_after_first_use_are_refused(void)
{
	hr_emulated_options options;
	hr_simulated_options sim;
	uint64_t limit = 10 * MIB;
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	hr_simulated_options_init(&sim);
	CHECK_EQ(hr_device_count(), 3); /* hr_device_count uses no device */
	CHECK_STATUS(HR_OK, hr_emulated_configure(&options));
	find("GPU:0");
	CHECK_STATUS(HR_IN_USE, hr_emulated_configure(&options));
	CHECK_STATUS(HR_IN_USE, hr_device_set_logical("GPU:0", &limit, 1));
	CHECK_STATUS(HR_OK, hr_simulated_configure(&sim)); /* another device */
	CHECK_STATUS(HR_OK, hr_device_set_logical("SIM:0", &limit, 1));
	CHECK_STATUS(HR_IN_USE, hr_simulated_configure(&sim)); /* it would invalidate the limits */
	find("SIM:0");
	CHECK_STATUS(HR_IN_USE, hr_device_set_logical("SIM:0", &limit, 1));
}

/* ---- logical devices ---- */

static void test_logical_devices_number_on(void)
{
	configure_emulated(2, 64 * MIB, 2 * MIB);
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", (uint64_t[]){ 10 * MIB, 21 * MIB }, 2));
	CHECK_STATUS(HR_OK, hr_device_set_logical("/device:gpu:1", (uint64_t[]){ 64 * MIB }, 1));
	CHECK_EQ(hr_device_count(), 5);
	hr_device_info first = info_of(find("GPU:0")), second = info_of(find("GPU:1")), third = info_of(find("GPU:2"));
	CHECK_EQ(first.limit_bytes, 10 * MIB);
	CHECK_EQ(second.limit_bytes, 21 * MIB);
	CHECK_EQ(third.limit_bytes, 64 * MIB);
	CHECK_EQ(first.physical_index, 0);
	CHECK_EQ(second.physical_index, 0);
	CHECK_EQ(third.physical_index, 1);
	CHECK_EQ(second.logical_count, 2);
	CHECK_EQ(third.logical_count, 1);
	CHECK_EQ(second.total_bytes, 64 * MIB);
	CHECK_STR(second.full_name, "/job:localhost/replica:0/task:0/device:GPU:1");
}

static void test_physical_devices_are_counted_without_using_them(void)
{
	configure_emulated(2, 64 * MIB, 2 * MIB);
	CHECK_EQ(hr_device_physical_count("GPU"), 2);
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", (uint64_t[]){ 10 * MIB, 21 * MIB }, 2));
	CHECK_EQ(hr_device_physical_count("GPU"), 2);
	CHECK_EQ(hr_device_physical_count("CPU"), 1);
	CHECK_EQ(hr_device_physical_count("TPU"), 0);
	CHECK_EQ(hr_device_physical_count(NULL), 0);
	CHECK_CONTAINS(hr_last_message(), "\"GPU\"");
}

static void test_each_logical_device_has_a_limit_of_its_own(void)
{
	hr__device *first, *second;
	hr__page_id pages[16];
	configure_emulated(1, 64 * MIB, 2 * MIB);
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", (uint64_t[]){ 11 * MIB, 20 * MIB }, 2));
	CHECK_STATUS(HR_OK, hr__device_named("GPU:0", &first));
	CHECK_STATUS(HR_OK, hr__device_named("GPU:1", &second));
	CHECK_NE(hr__device_index(first), hr__device_index(second));
	CHECK_LT(hr__device_index(second), HR__MAX_DEVICES);
	CHECK_EQ(hr__device_reservable(first), 10 * MIB); /* whole pages */
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr__page_pool_take(first, 6, pages));
	CHECK_CONTAINS(hr_last_message(), "GPU:0");
	CHECK_STATUS(HR_OK, hr__page_pool_take(first, 5, pages));
	CHECK_STATUS(HR_OK, hr__page_pool_take(second, 10, pages + 5));
	CHECK_EQ(info_of(find("GPU:0")).reserved_bytes, 10 * MIB);
	CHECK_EQ(info_of(find("GPU:1")).reserved_bytes, 20 * MIB);
	CHECK_EQ(info_of(find("GPU:1")).free_bytes, 34 * MIB);
	hr__page_pool_give(first, pages, 5);
	hr__page_pool_give(second, pages + 5, 10);
	/* Streams belong to the physical device: both logical devices have the same. */
	hr_stream stream;
	CHECK_STATUS(HR_OK, hr_stream_create(find("GPU:0"), &stream));
	CHECK(hr__device_has_stream(second, stream));
	CHECK_STATUS(HR_OK, hr_stream_destroy(find("GPU:1"), stream));
}

static void test_impossible_limits_are_refused(void)
{
	uint64_t many[17];
	configure_emulated(1, 64 * MIB, 2 * MIB);
	for (int i = 0; i < 17; i++) many[i] = 2 * MIB;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_device_set_logical("GPU:0", many, 0));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_device_set_logical("GPU:0", many, 17));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_device_set_logical("GPU:0", NULL, 1));
	CHECK_STATUS(HR_BAD_LIMIT, hr_device_set_logical("GPU:0", (uint64_t[]){ 0 }, 1));
	CHECK_STATUS(HR_BAD_LIMIT, hr_device_set_logical("GPU:0", (uint64_t[]){ 2 * MIB - 1 }, 1));
	CHECK_CONTAINS(hr_last_message(), "page");
	CHECK_STATUS(HR_BAD_LIMIT, hr_device_set_logical("GPU:0", (uint64_t[]){ 64 * MIB + 1 }, 1));
	CHECK_STATUS(HR_BAD_LIMIT, hr_device_set_logical("GPU:0", (uint64_t[]){ 32 * MIB, 32 * MIB + 1 }, 2));
	CHECK_CONTAINS(hr_last_message(), "together");
	CHECK_STATUS(HR_BAD_LIMIT, hr_device_set_logical("GPU:0", (uint64_t[]){ 32 * MIB, UINT64_MAX }, 2));
	CHECK_STATUS(HR_BAD_LIMIT, hr_device_set_logical("GPU:0", (uint64_t[]){ 32 * MIB, 0 }, 2));
	CHECK_STATUS(HR_BAD_DEVICE_NAME, hr_device_set_logical("GPU:", many, 1));
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_set_logical("GPU:1", many, 1));
	CHECK_STATUS(HR_UNSUPPORTED, hr_device_set_logical("CPU:0", many, 1));
	CHECK_EQ(hr_device_count(), 3); /* the refused call changed nothing */
	configure_emulated(1, 64 * MIB, 2 * MIB);
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", many, 3)); /* a later split replaces an earlier one */
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", many, 16));
	CHECK_EQ(hr_device_count(), 18);
	hr_device none;
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_find("GPU:16", &none));
	CHECK_CONTAINS(hr_last_message(), "GPU:15");
	CHECK_EQ(info_of(find("GPU:15")).limit_bytes, 2 * MIB);
}

static void test_more_logical_devices_than_fit_are_refused(void)
{
	uint64_t many[16];
	hr_device device;
	configure_emulated(5, 64 * MIB, 2 * MIB);
	for (int i = 0; i < 16; i++) many[i] = 2 * MIB;
	for (int i = 0; i < 5; i++) {
		char name[16];
		snprintf(name, sizeof name, "GPU:%d", i);
		CHECK_STATUS(HR_OK, hr_device_set_logical(name, many, 16));
	}
	CHECK_STATUS(HR_TOO_MANY, hr_device_find("GPU:0", &device));
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_device_find("GPU:99", &device));
	CHECK_CONTAINS(hr_last_message(), ", ...");
	find("CPU:0");
}

/* ---- handles, shutdown ---- */

static void test_handles_end_with_shutdown(void)
{
	hr_status why = HR_OK;
	hr_device old = find("GPU:0"), stale[200];
	info_of(old);
	hr__devices_shutdown();
	hr_device_info info = { .struct_size = sizeof info };
	hr_stream stream;
	CHECK_STATUS(HR_INVALID_HANDLE, hr_device_get_info(old, &info));
	CHECK(hr__device_of(old, &why) == NULL);
	CHECK_EQ(why, HR_INVALID_HANDLE);
	hr_device fresh = find("GPU:0");
	CHECK_NE(fresh.id, old.id);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_stream_create(old, &stream));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_stream_synchronize(old, 0));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_stream_synchronize((hr_device){ 0 }, 0));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_stream_synchronize((hr_device){ UINT32_MAX }, 0));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_stream_synchronize((hr_device){ fresh.id + 40 }, 0));
	for (int i = 0; i < 200; i++) {
		stale[i] = find("GPU:0");
		hr__devices_shutdown();
		for (int k = 0; k <= i; k++) CHECK_STATUS(HR_INVALID_HANDLE, hr_stream_synchronize(stale[k], 0));
	}
}

static void test_shutdown_resets_settings_and_releases_everything(void)
{
	hr_fault_os_install();
	for (int round = 0; round < 3; round++) {
		hr__device *device;
		hr__page_id pages[3];
		uint64_t address;
		hr_stream stream;
		configure_emulated(1, 8 * MIB, 64 << 10);
		CHECK_STATUS(HR_OK, hr__device_named("GPU:0", &device));
		CHECK_STATUS(HR_OK, hr_stream_create(find("GPU:0"), &stream));
		CHECK_STATUS(HR_OK, hr__page_pool_take(device, 3, pages));
		CHECK_STATUS(HR_OK, hr__device_reserve(device, MIB, &address));
		CHECK_STATUS(HR_OK, hr__device_map(device, address, pages, 3));
		CHECK_STATUS(HR_OK, hr_stream_fill(find("GPU:0"), (void *)(uintptr_t)address, 1, 1000, stream));
		hr__devices_shutdown(); /* also frees what was not released */
		CHECK(hr_fault_os_is_clean());
		CHECK_EQ(info_of(find("GPU:0")).total_bytes, UINT64_C(1) << 30);
		hr__devices_shutdown();
		CHECK(hr_fault_os_is_clean());
	}
	hr__devices_shutdown(); /* a second call is harmless */
	hr_fault_os_uninstall();
}

/* ---- fork ---- */

/* ThreadSanitizer does not support a forked child of a program with threads that starts threads itself. */
#if defined(__SANITIZE_THREAD__)
#define CHILD_MAY_HAVE_THREADS 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CHILD_MAY_HAVE_THREADS 0
#endif
#endif
#ifndef CHILD_MAY_HAVE_THREADS
#define CHILD_MAY_HAVE_THREADS 1
#endif

static void use_a_stream(void)
{
	hr_device device = find("GPU:0");
	hr__device *internal;
	hr_stream stream;
	uint64_t address;
	char out[100] = "a child's own", back[100] = "";
	CHECK_STATUS(HR_OK, hr__device_named(NULL, &internal));
	CHECK_STATUS(HR_OK, hr__page_pool_plain_alloc(internal, 100, &address));
	CHECK_STATUS(HR_OK, hr_stream_create(device, &stream));
	CHECK_STATUS(HR_OK, hr_stream_copy(device, (void *)(uintptr_t)address, out, 100, HR_COPY_TO_DEVICE, stream));
	CHECK_STATUS(HR_OK, hr_stream_copy(device, back, (void *)(uintptr_t)address, 100, HR_COPY_TO_HOST, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream));
	CHECK_STR(back, out);
}

static void in_the_child(void *argument)
{
	hr_device parents = *(hr_device *)argument, device;
	hr_device_info info = { .struct_size = sizeof info };
	hr_stream stream;
	hr__device *internal;
	hr_emulated_options options;
	hr_status why = HR_OK;
	CHECK(hr__forked);
	CHECK_STATUS(HR_FORKED, hr_device_find("GPU:0", &device));
	CHECK_STATUS(HR_FORKED, hr_device_at(0, &device));
	CHECK_EQ(hr_device_count(), 0);
	CHECK_STATUS(HR_FORKED, hr_device_get_info(parents, &info));
	CHECK_STATUS(HR_FORKED, hr_stream_create(parents, &stream));
	CHECK_STATUS(HR_FORKED, hr_stream_synchronize(parents, 0));
	CHECK_STATUS(HR_FORKED, hr__device_named(NULL, &internal));
	CHECK_STATUS(HR_FORKED, hr__device_gpu(0, &internal));
	CHECK_STATUS(HR_FORKED, hr__device_gpu(-1, &internal));
	CHECK(hr__device_of(parents, &why) == NULL && why == HR_FORKED);
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	CHECK_STATUS(HR_FORKED, hr_emulated_configure(&options));
	CHECK_STATUS(HR_FORKED, hr_device_set_logical("GPU:0", (uint64_t[]){ 10 * MIB }, 1));
	CHECK_STATUS(HR_FORKED, hr_backend_register(&hr__backend_cpu, NULL));

	hr__devices_forget(); /* as hr_shutdown does */
	CHECK(!hr__forked);
	CHECK_STATUS(HR_INVALID_HANDLE, hr_device_get_info(parents, &info));
	find("GPU:0");
	if (CHILD_MAY_HAVE_THREADS) use_a_stream();
	hr__devices_shutdown();
}

static void test_a_forked_child_must_start_anew(void)
{
	hr_device device = find("GPU:0");
	hr_stream stream;
	hr__device *internal;
	CHECK_STATUS(HR_OK, hr_stream_create(device, &stream));
	CHECK_STATUS(HR_OK, hr__device_named("GPU:0", &internal));
	CHECK_STATUS(HR_OK, hr__call_compute(internal->physical, 20000000, 0)); /* a worker is busy during the fork */
	CHECK_EQ(hr_test_in_child(in_the_child, &device), 0);
	CHECK(!hr__forked);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(device, stream)); /* the parent's worker continues */
}

static void in_a_clean_child(void *argument)
{
	(void)argument;
	CHECK(!hr__forked);
	find("GPU:0");
}

static void test_a_fork_without_state_is_not_treated_as_one(void)
{
	CHECK_EQ(hr_test_in_child(in_a_clean_child, NULL), 0);
	find("GPU:0");
	hr__devices_shutdown();
	CHECK_EQ(hr_test_in_child(in_a_clean_child, NULL), 0);
}

static void keep_finding(void *argument, unsigned index)
{
	_Atomic(bool) *stop = argument;
	if (index == 0) {
		for (int i = 0; i < 20; i++) CHECK_EQ(hr_test_in_child(in_the_child, &(hr_device){ find("GPU:0").id }), 0);
		atomic_store(stop, true);
	}
	while (!atomic_load(stop)) find("CPU:0");
}

static void test_a_fork_while_another_thread_holds_the_lock(void)
{
	_Atomic(bool) stop = false;
	find("GPU:0");
	hr_test_threads(2, keep_finding, &stop);
}

TEST_MAIN(T(test_names_are_read_as_tensorflow_reads_them), T(test_names_that_cannot_be_parsed_are_refused),
          T(test_message_quotes_a_name_safely), T(test_a_name_of_no_device_lists_the_devices),
          T(test_a_name_that_fits_two_names_them), T(test_without_a_gpu_the_default_is_missing),
          T(test_devices_are_listed_gpus_then_cpu_then_sim), T(test_an_unused_device_has_no_file_and_no_thread),
          T(test_gpu_ids_count_logical_gpus), T(test_emulated_options_come_from_the_environment),
          T(test_a_bad_environment_is_reported_and_the_defaults_apply), T(test_impossible_settings_are_refused),
          T(test_settings_after_first_use_are_refused), T(test_logical_devices_number_on), T(test_physical_devices_are_counted_without_using_them),
          T(test_each_logical_device_has_a_limit_of_its_own), T(test_impossible_limits_are_refused),
          T(test_more_logical_devices_than_fit_are_refused), T(test_handles_end_with_shutdown),
          T(test_shutdown_resets_settings_and_releases_everything), T(test_a_forked_child_must_start_anew),
          T(test_a_fork_without_state_is_not_treated_as_one), T(test_a_fork_while_another_thread_holds_the_lock))
