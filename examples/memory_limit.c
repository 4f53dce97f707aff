/* memory_limit.c - one GPU as two logical devices, the first with 1024 MiB.
 *
 * Limits must be set before the device is first used. The GPU is emulated here, so that the program runs anywhere; for a real one,
 * omit hr_emulated_configure. */
#include <headroom.h>
#include <stdio.h>

#define MIB ((uint64_t)1 << 20)

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, hr_last_message());
	return 1;
}

static int print_memory(const char *device)
{
	hr_memory_info memory = { .struct_size = sizeof memory };
	if (hr_get_memory_info(device, &memory) != HR_OK) return fail(device);
	printf("%s: current %lld bytes, peak %lld bytes\n", device, (long long)memory.current, (long long)memory.peak);
	return 0;
}

int main(void)
{
	hr_emulated_options emulated;
	hr_emulated_options_init(&emulated);
	emulated.devices = 1;
	emulated.memory_bytes = 2048 * MIB;
	if (hr_emulated_configure(&emulated) != HR_OK) return fail("configuring");

	const uint64_t limits[] = { 1024 * MIB, 512 * MIB };
	if (hr_device_set_logical("GPU:0", limits, 2) != HR_OK) return fail("logical devices");
	for (uint32_t i = 0; i < 2; i++) {
		hr_device device;
		hr_device_info info = { .struct_size = sizeof info };
		if (hr_device_at(i, &device) != HR_OK || hr_device_get_info(device, &info) != HR_OK) return fail("a logical device");
		printf("%s: %s, limit %llu MiB\n", info.name, info.backend, (unsigned long long)(info.limit_bytes / MIB));
	}

	hr_allocator allocator;
	void *block, *more;
	if (hr_allocator_get_default("GPU:0", &allocator) != HR_OK) return fail("GPU:0");
	if (hr_alloc_bytes(allocator, 600 * MIB, &block) != HR_OK) return fail("600 MiB");
	if (print_memory("GPU:0")) return 1;

	/* The limit is enforced, although the GPU has room. */
	if (hr_alloc_bytes(allocator, 600 * MIB, &more) != HR_OUT_OF_MEMORY) return fail("the limit was not enforced");
	printf("600 MiB more: %s\n", hr_last_message());

	if (hr_free(allocator, block, HR_STREAM_DEFAULT) != HR_OK) return fail("freeing");
	if (print_memory("GPU:0") || print_memory("GPU:1")) return 1;
	return hr_shutdown() == HR_OK ? 0 : fail("the end");
}
