/* test_environment.c - settings in the environment never stop a program: invalid ones are ignored; hr_environment_check reports
 * them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"
#include "core/base/status.h"
#include "headroom.h"
#include "headroom_runtime.h"
#include "test.h"

#define MIB (UINT64_C(1) << 20)

static hr_device device;

static hr_device_info info_of(const char *name)
{
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_device_find(name, &device));
	CHECK_STATUS(HR_OK, hr_device_get_info(device, &info));
	return info;
}

static void clear(void)
{
	static const char *const variables[] = { "HEADROOM_CUDA", "HEADROOM_CUDA_PAGE", "HEADROOM_EMULATED", "HEADROOM_LIMIT", "HEADROOM_LMS",
		                                     "HEADROOM_REQUIRE_CUDA", "HEADROOM_THREADS", "HEADROOM_OOM_REPORT_FILES" };
	CHECK_STATUS(HR_OK, hr_shutdown());
	for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
	setenv("HEADROOM_CUDA", "0", 1);
	hr__last_clear();
}

/* A program that uses devices, an allocator, tensors, steps and ops, and checks every status. */
static void use_everything(void)
{
	hr_allocator allocator;
	float number = 0;
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	hr_tensor tensor = fixture_tensor(allocator, MIB);
	CHECK_STATUS(HR_OK, hr_step_begin(allocator));
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	CHECK_STATUS(HR_OK, hr_step_end(allocator));
	CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
	CHECK_STATUS(HR_OK, hr_value_fetch(hr_full(HR_DTYPE_FLOAT32, HR_SCALAR, 3), &number, sizeof number));
	CHECK_EQ(number, 3.0f);
}

static void test_nothing_in_the_environment_stops_a_program(void)
{
	static const struct {
		const char *variable, *value, *says;
	} bad[] = {
		{ "HEADROOM_CUDA", "no", "\"no\" is neither 0 nor 1" },
		{ "HEADROOM_CUDA_PAGE", "3MiB", "it must be a power of two" },
		{ "HEADROOM_EMULATED", "memory=lots", "\"lots\" is not a size" },
		{ "HEADROOM_LIMIT", "lots", "\"lots\" is not a size" },
		{ "HEADROOM_LIMIT", "1KiB", "below one page" },
		{ "HEADROOM_LIMIT", "0", "below one page" },
		{ "HEADROOM_LMS", "nonsense=1", "unknown setting" },
		{ "HEADROOM_LMS", "limit=many", "limit is not a size" },
		{ "HEADROOM_LMS", "policy=none_such", "no policy is named \"none_such\"" },
		{ "HEADROOM_LMS", "spill_dir=/no/such/place", "/no/such/place" },
		{ "HEADROOM_LMS", "step_csv=/no/such/place/steps.csv", "cannot create step_csv" },
		{ "HEADROOM_OOM_REPORT_FILES", "0", "not a number of files" },
		{ "HEADROOM_THREADS", "many", "not a number of threads" },
		{ "HEADROOM_THREADS", "0", "not a number of threads" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		clear();
		setenv(bad[i].variable, bad[i].value, 1);
		printf("# %s=%s\n", bad[i].variable, bad[i].value);
		use_everything();
		CHECK_STATUS(HR_OK, hr_last_status()); /* an internal error is not reported as the failure of a call */
		CHECK_STATUS(HR_INVALID_ARGUMENT, hr_environment_check());
		CHECK_CONTAINS(hr_last_message(), bad[i].variable);
		CHECK_CONTAINS(hr_last_message(), bad[i].says);
		CHECK(!strstr(strstr(hr_last_message(), " is ignored: "), bad[i].variable)); /* named once */
	}
	clear();
	CHECK_STATUS(HR_OK, hr_environment_check());
	use_everything();
	CHECK_STATUS(HR_OK, hr_environment_check());
	clear();
}

/* A variable applies to a whole process and all its runs: each allocator, and each run, gets a file of its own. */
static void test_step_csv_of_the_environment_is_for_many_allocators(void)
{
	char folder[] = "/tmp/hr-environment-XXXXXX", setting[128], path[128];
	struct stat there;
	clear();
	CHECK(mkdtemp(folder) != NULL);
	snprintf(setting, sizeof setting, "step_csv=%s/steps.csv", folder);
	setenv("HEADROOM_LMS", setting, 1);
	for (int run = 0; run < 2; run++) {
		hr_allocator second;
		use_everything();
		info_of("GPU:0");
		CHECK_STATUS(HR_OK, hr_allocator_create(device, NULL, &second));
		/* Options of the program start from the environment's. */
		hr_lms_options options;
		CHECK_STATUS(HR_OK, hr_lms_options_init(&options));
		CHECK_STATUS(HR_OK, hr_lms_configure(second, &options));
		CHECK_STATUS(HR_OK, hr_environment_check());
		CHECK_STATUS(HR_OK, hr_shutdown());
	}
	/* steps.csv and -2 are of the first run, -3 and -4 of the second. In each run one allocator's step was marked: its file has a
	 * line besides the header. */
	static const char *const names[] = { "steps.csv", "steps.csv-2", "steps.csv-3", "steps.csv-4" };
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof path, "%s/%s", folder, names[i]);
		CHECK_EQ(stat(path, &there), 0);
		CHECK_GT(there.st_size, 0);
		CHECK_EQ(unlink(path), 0);
	}
	CHECK_EQ(rmdir(folder), 0);
	/* If a program itself names a file that exists, that is an error. */
	clear();
	FILE *file = fopen("/tmp/hr-environment-taken.csv", "w");
	CHECK(file && !fclose(file));
	hr_allocator allocator;
	hr_lms_options options;
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	CHECK_STATUS(HR_OK, hr_lms_options_init(&options));
	options.step_csv = "/tmp/hr-environment-taken.csv";
	CHECK_STATUS(HR_IO, hr_lms_configure(allocator, &options));
	unlink("/tmp/hr-environment-taken.csv");
	clear();
}

/* 10 MiB and a bit are 5 pages of 2 MiB. An allocator with a larger limit gets that much, and nothing above it can be allocated. */
static void test_a_limit_for_the_whole_process(void)
{
	hr_allocator allocator, own;
	hr_allocator_options options;
	void *block;
	clear();
	setenv("HEADROOM_LIMIT", "10486000", 1);
	hr_device_info info = info_of("GPU:0");
	CHECK_EQ(info.limit_bytes, 10 * MIB);
	CHECK_EQ(info.total_bytes, 1024 * MIB);
	CHECK_EQ(info_of("CPU:0").limit_bytes, info_of("CPU:0").total_bytes);
	CHECK_EQ(info_of("SIM:0").limit_bytes, info_of("SIM:0").total_bytes);
	CHECK_EQ(hr_get_bytes_limit(0), 10 * MIB);
	CHECK_EQ(hr_get_bytes_reservable_limit(0), 10 * MIB);
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 10 * MIB, &block));
	CHECK_EQ(hr_get_bytes_reserved(0), 10 * MIB);
	hr_allocator_options_init(&options);
	options.oom.report_allocations_on_oom = true;
	options.limit_bytes = HR_MIB(512); /* options that are valid without the variable are valid with it */
	info_of("GPU:0");
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &own));
	hr_stats stats = fixture_stats(own);
	CHECK_EQ(stats.bytes_limit, 10 * MIB);
	void *more;
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(own, 1, &more)); /* the whole limit of the device is in use */
	CHECK_CONTAINS(hr_last_message(), "the limit of GPU:0 (HEADROOM_LIMIT in the environment) allows 0 B more; free memory, raise the limit");
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(own, 11 * MIB, &more));
	CHECK_CONTAINS(hr_last_message(), "the request alone exceeds its limit of 10.0 MiB (HEADROOM_LIMIT in the environment); raise the limit");
	hr_oom_report report;
	static char text[65536];
	CHECK_STATUS(HR_OK, hr_oom_get_last(&report));
	CHECK(hr_oom_format_text(report, text, sizeof text) > 0);
	CHECK_CONTAINS(text, "HEADROOM_LIMIT");
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_DEFAULT));
	options.limit_bytes = HR_GIB(3); /* more than the device has is still an error */
	CHECK_STATUS(HR_BAD_LIMIT, hr_allocator_create(device, &options, &own));
	/* The limit applies to each logical device. */
	clear();
	setenv("HEADROOM_LIMIT", "10MiB", 1);
	CHECK_STATUS(HR_OK, hr_device_set_logical("GPU:0", (const uint64_t[]){ 4 * MIB, 64 * MIB }, 2));
	CHECK_EQ(info_of("GPU:0").limit_bytes, 4 * MIB);
	CHECK_EQ(info_of("GPU:1").limit_bytes, 10 * MIB);
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 5 * MIB, &more));
	CHECK_CONTAINS(hr_last_message(), "the request alone exceeds its limit of 4.0 MiB (memory_limit of hr_device_set_logical); raise the limit");
	clear();
	/* A limit above the device's memory changes nothing. */
	setenv("HEADROOM_LIMIT", "1TiB", 1);
	CHECK_EQ(info_of("GPU:0").limit_bytes, 1024 * MIB);
	CHECK_STATUS(HR_OK, hr_environment_check());
	CHECK_STATUS(HR_OK, hr_allocator_get_default("GPU:0", &allocator));
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(allocator, 2048 * MIB, &more));
	CHECK_CONTAINS(hr_last_message(), "the request alone exceeds the 1.0 GiB that GPU:0 has; request less"); /* no limit to raise */
	clear();
}

static void test_cuda_can_be_required(void)
{
	hr_allocator allocator;
	hr_session session;
	clear();
	CHECK_STR(info_of("GPU:0").backend, "emulated");
	CHECK(hr_device_is_emulated(device));
	info_of("CPU:0");
	CHECK(!hr_device_is_emulated(device));
	CHECK(!hr_device_is_emulated((hr_device){ 0 }));
	CHECK_STATUS(HR_OK, hr_last_status());
	CHECK_STATUS(HR_OK, hr_shutdown());
	setenv("HEADROOM_REQUIRE_CUDA", "1", 1);
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_allocator_get_default(NULL, &allocator));
	CHECK_STR(hr_last_message(), "there is no device \"GPU:0\"; the devices are CPU:0, SIM:0, EMU:0; HEADROOM_REQUIRE_CUDA forbids "
	                             "emulated devices in place of GPUs. CUDA: switched off (HEADROOM_CUDA=0, or hr_cuda_configure)");
	CHECK_EQ(hr_get_bytes_in_use(0), -HR_NO_SUCH_DEVICE);
	hr_session_options options;
	hr_session_options_init(&options);
	CHECK_STATUS(HR_NO_SUCH_DEVICE, hr_session_create(&options, &session));
	CHECK(!hr_full(HR_DTYPE_FLOAT32, HR_SCALAR, 1).id); /* the default session */
	CHECK_EQ(hr_last_status(), HR_NO_SUCH_DEVICE);
	CHECK_STR(info_of("EMU:0").backend, "emulated"); /* available under its own name */
	CHECK(hr_device_is_emulated(device));
	CHECK_STATUS(HR_OK, hr_shutdown());
	setenv("HEADROOM_REQUIRE_CUDA", "0", 1);
	CHECK_STR(info_of("GPU:0").backend, "emulated");
	clear();
}

static void test_sizes_do_not_overflow(void)
{
	CHECK_EQ(HR_KIB(3), UINT64_C(3072));
	CHECK_EQ(HR_MIB(3), UINT64_C(3145728));
	CHECK_EQ(HR_GIB(3), UINT64_C(3221225472)); /* 3 << 30 is -1073741824 */
	CHECK_EQ(sizeof HR_GIB(1), 8);
}

TEST_MAIN(T(test_nothing_in_the_environment_stops_a_program), T(test_step_csv_of_the_environment_is_for_many_allocators),
          T(test_a_limit_for_the_whole_process), T(test_cuda_can_be_required), T(test_sizes_do_not_overflow))
