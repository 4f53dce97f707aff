/* test_device_backend.c - devices that a program registers: hr_backend_register. */
#include "core/device/internal.h"
#include "test.h"

static hr_device find(const char *name)
{
	hr_device device = { 0 };
	CHECK_STATUS(HR_OK, hr_device_find(name, &device));
	return device;
}

static hr_device_info info_of(hr_device device)
{
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_device_get_info(device, &info));
	return info;
}

static hr_backend cpu_like(const char *name, const char *type)
{
	hr_backend backend = hr__backend_cpu;
	backend.name = name;
	backend.type = type;
	return backend;
}

static void test_a_registered_backend_brings_devices(void)
{
	hr_backend npu = cpu_like("npu", "npu"), card = cpu_like("card", "GPU"), second = cpu_like("second", "CPU");
	CHECK_STATUS(HR_OK, hr_backend_register(&npu, NULL));
	CHECK_EQ(hr_device_count(), 4);
	CHECK_STATUS(HR_OK, hr_backend_register(&card, NULL));
	CHECK_EQ(hr_device_count(), 4); /* emulated GPUs are only used if there are no others */
	CHECK_STATUS(HR_OK, hr_backend_register(&second, NULL));
	CHECK_EQ(hr_device_count(), 5);
	CHECK_STR(info_of(find("GPU:0")).backend, "card");
	CHECK_STR(info_of(find("NPU:0")).backend, "npu");
	CHECK_STR(info_of(find("CPU:0")).backend, "cpu");
	CHECK_STR(info_of(find("CPU:1")).backend, "second");
	hr__devices_shutdown();
	CHECK_STR(info_of(find("GPU:0")).backend, "emulated");
	CHECK_EQ(hr_device_count(), 3);
}

static void test_a_backend_must_be_complete(void)
{
	hr_backend good = hr__backend_emulated, bad;
	good.name = "mine";
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_backend_register(NULL, NULL));
#define WITHOUT(entry)                                                      \
	do {                                                                    \
		bad = good;                                                         \
		bad.entry = NULL;                                                   \
		CHECK_STATUS(HR_INVALID_ARGUMENT, hr_backend_register(&bad, NULL)); \
		CHECK_CONTAINS(hr_last_message(), #entry);                          \
	} while (0)
	WITHOUT(name);
	WITHOUT(type);
	WITHOUT(count);
	WITHOUT(open);
	WITHOUT(close);
	WITHOUT(memory_info);
	WITHOUT(reserve);
	WITHOUT(release);
	WITHOUT(page_create);
	WITHOUT(page_destroy);
	WITHOUT(map);
	WITHOUT(unmap);
	WITHOUT(plain_alloc);
	WITHOUT(plain_free);
	WITHOUT(stream_create);
	WITHOUT(stream_destroy);
	WITHOUT(stream_synchronize);
	WITHOUT(event_create);
	WITHOUT(event_destroy);
	WITHOUT(event_record);
	WITHOUT(event_query);
	WITHOUT(event_synchronize);
	WITHOUT(stream_wait_event);
	WITHOUT(copy);
	WITHOUT(fill);
	WITHOUT(host_alloc);
	WITHOUT(host_free);
	bad = good;
	bad.version = 2;
	CHECK_STATUS(HR_TOO_NEW, hr_backend_register(&bad, NULL));
	bad.version = 0;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_backend_register(&bad, NULL));
	bad = good;
	bad.struct_size = 8;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_backend_register(&bad, NULL));
	bad = good;
	bad.name = "sixteen_letters_";
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_backend_register(&bad, NULL));
	bad.name = "";
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_backend_register(&bad, NULL));
	bad = good;
	bad.type = "G P U";
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_backend_register(&bad, NULL));
	bad = good;
	bad.name = "cpu";
	CHECK_STATUS(HR_ALREADY_EXISTS, hr_backend_register(&bad, NULL));
}

static void test_a_backend_compiled_long_ago_lacks_later_entries(void)
{
	hr_backend old = cpu_like("old", "OLD");
	void *block;
	hr__device *device;
	old.struct_size = offsetof(hr_backend, host_call);
	CHECK_STATUS(HR_OK, hr_backend_register(&old, NULL));
	CHECK_STATUS(HR_OK, hr__device_named("OLD:0", &device));
	CHECK_STATUS(HR_UNSUPPORTED, hr__call_host_call(device->physical, NULL, NULL, 0));
	CHECK_STATUS(HR_OK, hr__call_compute(device->physical, 1, 0));
	CHECK_STATUS(HR_OK, hr__call_host_alloc(device->physical, 10, &block));
	memset(block, 1, 10);
	CHECK_STATUS(HR_OK, hr__call_host_free(device->physical, block, 10));
	CHECK_GT(hr__device_clock_ns(device), 0);
}

static void test_backends_come_first_and_are_few(void)
{
	static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g", "h", "i" };
	for (int i = 0; i < 8; i++) {
		hr_backend one = cpu_like(names[i], names[i]);
		CHECK_STATUS(HR_OK, hr_backend_register(&one, NULL));
		CHECK_STATUS(HR_ALREADY_EXISTS, hr_backend_register(&one, NULL));
	}
	hr_backend last = cpu_like(names[8], names[8]);
	CHECK_STATUS(HR_TOO_MANY, hr_backend_register(&last, NULL));
	find("A:0");
	hr__devices_shutdown();
	find("CPU:0");
	CHECK_STATUS(HR_IN_USE, hr_backend_register(&last, NULL));
}

static hr_status three(void *config, uint32_t *out)
{
	*out = *(uint32_t *)config;
	return HR_OK;
}

static hr_status open_badly(void *config, uint32_t index, void **device, hr_backend_caps *caps)
{
	*device = config;
	caps->total_bytes = 1 << 20;
	if (index == 0) caps->total_bytes = 0;
	if (index == 1) caps->page_bytes = 4096; /* without entries for pages */
	memset(caps->description, 'x', sizeof caps->description);
	return HR_OK;
}

static void test_wrong_capabilities_of_a_backend_are_detected(void)
{
	uint32_t count = 3;
	hr_backend liar = cpu_like("liar", "LIAR");
	hr_device_info info = { .struct_size = sizeof info };
	liar.count = three;
	liar.open = open_badly;
	CHECK_STATUS(HR_OK, hr_backend_register(&liar, &count));
	CHECK_STATUS(HR_DEVICE_ERROR, hr_device_get_info(find("LIAR:0"), &info));
	CHECK_STATUS(HR_DEVICE_ERROR, hr_device_get_info(find("LIAR:1"), &info));
	CHECK_EQ(strlen(info_of(find("LIAR:2")).description), sizeof info.description - 1);
	hr__devices_shutdown();
	count = 1000;
	CHECK_STATUS(HR_OK, hr_backend_register(&liar, &count));
	CHECK_EQ(hr_device_count(), 0);
	CHECK_CONTAINS(hr_last_message(), "more than 64");
}

static void test_messages_of_a_backend_reach_the_caller(void)
{
	CHECK_STATUS(HR_DEVICE_ERROR, hr_backend_set_error(HR_DEVICE_ERROR, "the card is on fire"));
	CHECK_STR(hr_last_message(), "the card is on fire");
	CHECK_STATUS(HR_DEVICE_ERROR, hr_backend_set_error(HR_DEVICE_ERROR, NULL));
	CHECK_GT(strlen(hr_last_message()), 0);
	CHECK_STATUS(HR_OK, hr_backend_set_error(HR_OK, NULL));
}

TEST_MAIN(T(test_a_registered_backend_brings_devices), T(test_a_backend_must_be_complete),
          T(test_a_backend_compiled_long_ago_lacks_later_entries), T(test_backends_come_first_and_are_few),
          T(test_wrong_capabilities_of_a_backend_are_detected), T(test_messages_of_a_backend_reach_the_caller))
