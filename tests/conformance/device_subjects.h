/* device_subjects.h - the devices that the conformance suite runs on, and memory on them for tests.
 *
 * A subject is a device with its settings. Tests use the public API and device.h; tests that depend on the kind of device query the
 * device (pages, streams) or the subject (is there memory behind its addresses, does it detect misuse). Host code never accesses
 * device memory: on a card it cannot.
 *
 * HR_TEST_SUBJECT=cuda in the environment runs the suite only on subjects of that backend. A CUDA card is a subject if the driver
 * reports one, a real one or the stand-in of tests/fake_cuda (LD_LIBRARY_PATH), unless HEADROOM_CUDA=0. */
#ifndef HR_TESTS_DEVICE_SUBJECTS_H
#define HR_TESTS_DEVICE_SUBJECTS_H

#include "fixture.h"
#include "core/base/checked.h"
#include "core/device/backends/cuda_driver.h"
#include "core/device/internal.h"
#include "core/os/library.h"
#include "test.h"

/* ---- subjects ---- */

typedef struct subject {
	const char *label;
	const char *name; /* of the device */
	const char *backend;
	void (*set_up)(void); /* settings, before first use */
	bool real;            /* bytes written can be read back */
	bool strict;          /* misuse of addresses and pages is an error, not undefined */
	bool small;           /* a test may allocate all of its memory */
} subject;

/* Makes GPU:0 an emulated device, whatever the machine has. */
static void set_up_no_card(void)
{
	hr_cuda_options options;
	CHECK_STATUS(HR_OK, hr_cuda_options_init(&options));
	options.enabled = false;
	CHECK_STATUS(HR_OK, hr_cuda_configure(&options));
}

/* Retains the card's context in this process, like any program that uses CUDA. Otherwise each test that reopens the device would
 * create a new context each time, which takes a fifth of a second. */
static void keep_context(void)
{
	static CUcontext kept;
	char why[200];
	if (kept) return;
	hr__library *library = hr__library_open("libcuda.so.1", why, sizeof why);
	CHECK(library != NULL);
	CUresult (*init)(unsigned) = (CUresult(*)(unsigned))hr__library_symbol(library, "cuInit");
	CUresult (*retain)(CUcontext *, CUdevice) = (CUresult(*)(CUcontext *, CUdevice))hr__library_symbol(library,
	                                                                                                   "cuDevicePrimaryCtxRetain");
	CHECK(init != NULL && retain != NULL);
	CHECK_EQ(init(0), HR__CUDA_SUCCESS);
	CHECK_EQ(retain(&kept, 0), HR__CUDA_SUCCESS);
}

static void set_up_cuda(void)
{
	hr_cuda_options options;
	CHECK_STATUS(HR_OK, hr_cuda_options_init(&options));
	CHECK_STATUS(HR_OK, hr_cuda_configure(&options));
	keep_context();
}

static void set_up_emulated(void)
{
	hr_emulated_options options;
	set_up_no_card();
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	options.memory_bytes = (4 << 20) + 5; /* not a whole number of pages */
	options.page_bytes = 64 << 10;
	CHECK_STATUS(HR_OK, hr_emulated_configure(&options));
}

static void set_up_emulated_link(void)
{
	hr_emulated_options options;
	set_up_no_card();
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&options));
	options.memory_bytes = 64 << 20;
	options.link_bytes_per_s = UINT64_C(2000000000);
	options.kernel_latency_ns = 5000;
	CHECK_STATUS(HR_OK, hr_emulated_configure(&options));
}

static void set_up_simulated(uint64_t memory_bytes, uint64_t page_bytes)
{
	fixture_configure_simulated(memory_bytes, page_bytes);
}

static void set_up_simulated_small(void)
{
	set_up_simulated((64 << 10) + 100, 256);
}

static void set_up_simulated_plain(void)
{
	set_up_simulated(1 << 20, 0);
}

static void set_up_nothing(void)
{
}

static const subject subjects[] = {
	{ "emulated", "GPU:0", "emulated", set_up_emulated, true, true, true },
	{ "emulated with a link", "GPU:0", "emulated", set_up_emulated_link, true, true, true },
	{ "cuda", "GPU:0", "cuda", set_up_cuda, true, false, false },
	{ "cpu", "CPU:0", "cpu", set_up_nothing, true, false, false },
	{ "simulated", "SIM:0", "simulated", set_up_nothing, false, true, false },
	{ "simulated, pages of 256 bytes", "SIM:0", "simulated", set_up_simulated_small, false, true, true },
	{ "simulated without pages", "SIM:0", "simulated", set_up_simulated_plain, false, true, true },
};
#define SUBJECTS (sizeof subjects / sizeof *subjects)

/* The subject that is being tested. */
static const subject *now;
static hr_device handle;
static hr__device *device;

/* Whether a subject exists and is selected. Called before faults are injected. */
HR_TEST_UNUSED static bool is_here(const subject *asked)
{
	const char *wanted = getenv("HR_TEST_SUBJECT");
	bool cuda = strcmp(asked->backend, "cuda") == 0;
	if (wanted && strcmp(wanted, asked->backend) != 0) return false;
	if (!cuda) return true;
	hr_status status = hr_cuda_check();
	hr__devices_shutdown();
	if (wanted) CHECK_STATUS(HR_OK, status);
	return status == HR_OK;
}

/* The caller shuts the device down. */
HR_TEST_UNUSED static void on_device(const subject *on, void (*test)(void))
{
	now = on;
	printf("# on %s\n", now->label);
	fflush(stdout);
	now->set_up();
	CHECK_STATUS(HR_OK, hr_device_find(now->name, &handle));
	CHECK_STATUS(HR_OK, hr__device_named(now->name, &device));
	test();
	CHECK_EQ(hr__page_pool_reserved(device), 0);
}

HR_TEST_UNUSED static void on_each_device(void (*test)(void))
{
	for (size_t i = 0; i < SUBJECTS; i++) {
		if (!is_here(&subjects[i])) continue;
		on_device(&subjects[i], test);
		hr__devices_shutdown();
	}
}

static uint64_t page(void)
{
	return hr__device_page_bytes(device);
}

HR_TEST_UNUSED static bool has_streams(void)
{
	return hr__has_streams(device->physical);
}

HR_TEST_UNUSED static uint64_t free_bytes(void)
{
	uint64_t free_now, total;
	CHECK_STATUS(HR_OK, hr__call_memory_info(device->physical, &free_now, &total));
	CHECK_LE(free_now, total);
	return free_now;
}

/* ---- memory for a test: adjacent pages, or a plain block ---- */

#define MAX_PAGES 256u

typedef struct memory {
	uint64_t address, bytes;
	uint32_t count;
	hr__page_id pages[MAX_PAGES];
} memory;

HR_TEST_UNUSED static hr_status get(uint64_t bytes, memory *out)
{
	memory got = { .bytes = bytes };
	if (!page()) {
		hr_status status = hr__page_pool_plain_alloc(device, bytes, &got.address);
		if (status == HR_OK) *out = got;
		return status;
	}
	uint64_t rounded = 0;
	CHECK(hr__align_up(bytes, page(), &rounded));
	got.count = (uint32_t)(rounded / page());
	CHECK_LE(got.count, MAX_PAGES);
	hr_status status = hr__page_pool_take(device, got.count, got.pages);
	if (status != HR_OK) return status;
	status = hr__device_reserve(device, rounded, &got.address);
	if (status == HR_OK) {
		status = hr__device_map(device, got.address, got.pages, got.count);
		/* A second time, because the injected fault may have made the first fail. */
		if (status != HR_OK && hr__device_release(device, got.address, rounded) != HR_OK) {
			CHECK_STATUS(HR_OK, hr__device_release(device, got.address, rounded));
		}
	}
	if (status == HR_OK) *out = got;
	else hr__page_pool_give(device, got.pages, got.count);
	return status;
}

#define TWICE(call) ((call) == HR_OK || (call) == HR_OK)

HR_TEST_UNUSED static void give(const memory *block)
{
	if (!page()) {
		CHECK(TWICE(hr__page_pool_plain_free(device, block->address, block->bytes)));
		return;
	}
	CHECK(TWICE(hr__device_unmap(device, block->address, block->count)));
	CHECK(TWICE(hr__device_release(device, block->address, block->count * page())));
	hr__page_pool_give(device, block->pages, block->count);
}

HR_TEST_UNUSED static void *at(const memory *block, uint64_t offset)
{
	return (void *)(uintptr_t)(block->address + offset);
}

HR_TEST_UNUSED static void paint(unsigned char *bytes, size_t count, uint64_t seed)
{
	for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)(hr_rand(&seed) >> 24);
}

/* ---- a stream that is blocked for as long as the test needs ---- */

static _Atomic(bool) gate_open;

static void wait_at_gate(void *argument)
{
	(void)argument;
	while (!atomic_load(&gate_open)) nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

/* The simulated device runs host functions at once, so virtual time blocks it instead: its work is done only when waited for. */
HR_TEST_UNUSED static void hold(hr_native_stream stream)
{
	atomic_store(&gate_open, false);
	if (now->real) CHECK_STATUS(HR_OK, hr__call_host_call(device->physical, wait_at_gate, NULL, stream));
	else CHECK_STATUS(HR_OK, hr__call_compute(device->physical, 30000000, stream));
}

HR_TEST_UNUSED static void let_go(void)
{
	atomic_store(&gate_open, true);
}

#endif
