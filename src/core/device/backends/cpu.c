/* cpu.c - host memory as a device: plain allocation, no pages, no streams; work is done when a call returns. */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/device/device.h"
#include "core/os/os.h"

/* The device has no state; this gives it a non-NULL handle. */
static char the_host;

static hr_status cpu_count(void *config, uint32_t *out)
{
	(void)config;
	*out = 1;
	return HR_OK;
}

static hr_status cpu_memory_info(void *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
	(void)device;
	int error = hr__os()->host_memory(total_bytes, free_bytes);
	return error ? hr__os_fail(error, "asking for the host's memory") : HR_OK;
}

static hr_status cpu_open(void *config, uint32_t index, void **device, hr_backend_caps *caps)
{
	(void)config;
	(void)index;
	uint64_t total, available;
	char size[24];
	hr_status status = cpu_memory_info(NULL, &available, &total);
	if (status != HR_OK) return status;
	*caps = (hr_backend_caps){ .total_bytes = total, .map_alignment = hr__os_page_size(), .host_accessible = true, .closed_streams = true };
	snprintf(caps->description, sizeof caps->description, "host memory, %s", hr__format_size(total, size, sizeof size));
	*device = &the_host;
	return HR_OK;
}

static void cpu_close(void *device)
{
	(void)device;
}

static hr_status whole_pages(uint64_t bytes, uint64_t *out)
{
	if (bytes > 0 && hr__align_up(bytes, hr__os_page_size(), out)) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "%llu bytes cannot be allocated", (unsigned long long)bytes);
}

static hr_status cpu_plain_alloc(void *device, uint64_t bytes, uint64_t *address)
{
	(void)device;
	uint64_t rounded = 0;
	void *block;
	hr_status status = whole_pages(bytes, &rounded);
	if (status != HR_OK) return status;
	int error = hr__os()->reserve(rounded, hr__os_page_size(), &block);
	if (!error) {
		error = hr__os()->commit(block, rounded);
		if (error) hr__os()->release(block, rounded);
	}
	if (error) return hr__fail(HR_OUT_OF_MEMORY, "the host has no %llu bytes: %s", (unsigned long long)bytes, hr__os_error(error));
	*address = (uint64_t)(uintptr_t)block;
	return HR_OK;
}

static hr_status cpu_plain_free(void *device, uint64_t address, uint64_t bytes)
{
	(void)device;
	uint64_t rounded = 0;
	hr_status status = whole_pages(bytes, &rounded);
	if (status != HR_OK) return status;
	int error = hr__os()->release((void *)(uintptr_t)address, rounded);
	return error ? hr__os_fail(error, "freeing %llu bytes of host memory", (unsigned long long)bytes) : HR_OK;
}

static hr_status cpu_copy(void *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind, hr_native_stream stream)
{
	(void)device;
	(void)kind;
	(void)stream;
	memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
	return HR_OK;
}

static hr_status cpu_fill(void *device, uint64_t address, uint8_t value, uint64_t bytes, hr_native_stream stream)
{
	(void)device;
	(void)stream;
	memset((void *)(uintptr_t)address, value, bytes);
	return HR_OK;
}

static hr_status cpu_host_call(void *device, void (*run)(void *), void *argument, hr_native_stream stream)
{
	(void)device;
	(void)stream;
	run(argument);
	return HR_OK;
}

const hr_backend hr__backend_cpu = {
	.version = HR_BACKEND_VERSION,
	.struct_size = sizeof(hr_backend),
	.name = "cpu",
	.type = "CPU",
	.count = cpu_count,
	.open = cpu_open,
	.close = cpu_close,
	.memory_info = cpu_memory_info,
	.plain_alloc = cpu_plain_alloc,
	.plain_free = cpu_plain_free,
	.copy = cpu_copy,
	.fill = cpu_fill,
	.host_call = cpu_host_call,
};
