/* cuda.c - NVIDIA GPUs, through the installed CUDA driver.
 *
 * Context
 *
 * A card's primary context is retained, never created and never reset. CUDA's runtime, PyTorch and the rest of the program use the
 * same context, so their kernels can access our memory. The context that was current on entry to a call is current again on return:
 * if it is not ours, ours is pushed and popped. In a program whose threads have ours current anyway, that costs one check (a few
 * ns).
 *
 * Memory
 *
 * A page is a physical handle (cuMemCreate) and is mapped whole. Mapping a run of pages creates one mapping per page and sets
 * access for all of them in one call (cuda_access.c). Unmapping removes a whole run in one call: CUDA cannot unmap part of a mapping, but one call
 * can cover many mappings, no matter which calls created them. None of these calls waits for work on the device; device.h says
 * where the waiting happens.
 *
 * Host memory pages (HOST_NUMA, on the node next to the card) are handles too, mapped and unmapped by the same calls. A copy
 * between them and device pages runs at the speed of the link.
 *
 * Streams
 *
 * 0 is the legacy default stream, which is what cudaStream_t 0 means in programs compiled with nvcc's defaults. Streams created
 * here do not synchronise with it: only events order streams. The per-thread default stream (2) is a different stream in each
 * thread and is therefore refused.
 *
 * Copies use the call for their direction, so that both copy engines of a card run at once.
 *
 * The only lock is that of the clock (cuda_clock.c): the driver has its own locks. */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/device/backends/cuda_card.h"
#include "core/device/internal.h"
#include "core/os/os.h"

#define PER_THREAD_STREAM 2u
#define HUGE_PAGE (UINT64_C(2) << 20)

/* The body of an entry that is a single call. */
#define CALL(on, name, ...)                                                                          \
	do {                                                                                             \
		CUresult called_ = HR__CUDA_IN_CONTEXT(on, name, __VA_ARGS__);                               \
		return HR_LIKELY(called_ == HR__CUDA_SUCCESS) ? HR_OK : hr__cuda_failed(on, called_, #name); \
	} while (0)

/* ---- opening ---- */

static hr_status cuda_count(void *config, uint32_t *out)
{
	*out = hr__cuda_count_devices(((const hr_cuda_options *)config)->enabled);
	return HR_OK;
}

static CUresult attribute(const hr__cuda_card *of, int which)
{
	int value = 0;
	return hr__cuda.cuDeviceGetAttribute(&value, which, of->device) == HR__CUDA_SUCCESS ? value : 0;
}

/* Properties of the card that need no context. */
static hr_status identify(hr__cuda_card *opened, uint32_t index)
{
	snprintf(opened->name, sizeof opened->name, "CUDA device %u", index); /* until the name is known */
	CUresult result = hr__cuda.cuDeviceGet(&opened->device, (int)index);
	if (result != HR__CUDA_SUCCESS) return hr__cuda_failed(opened, result, "cuDeviceGet");
	char name[sizeof opened->name] = "";
	result = hr__cuda.cuDeviceGetName(name, sizeof name, opened->device);
	if (result != HR__CUDA_SUCCESS) return hr__cuda_failed(opened, result, "cuDeviceGetName");
	memcpy(opened->name, name, sizeof name);
	opened->name[sizeof name - 1] = 0;
	if (!attribute(opened, HR__CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
		return hr__fail(
			HR_UNSUPPORTED,
			"%s, or the way its driver is set up, has no virtual memory management, with which Headroom maps its pages; "
			"choose another card (CUDA_VISIBLE_DEVICES) or the emulated device (HEADROOM_CUDA=0)",
			opened->name);
	}
	CUmemLocation here = { HR__CU_MEM_LOCATION_TYPE_DEVICE, opened->device };
	opened->memory = (CUmemAllocationProp){ .type = HR__CU_MEM_ALLOCATION_TYPE_PINNED, .location = here };
	hr__cuda_access_open(opened);
	return HR_OK;
}

/* Memory size and page size; needs a context. */
static hr_status measure(hr__cuda_card *opened, uint64_t wanted_page)
{
	size_t free_bytes = 0, total = 0, granularity = 0;
	CUresult result = HR__CUDA_IN_CONTEXT(opened, cuMemGetInfo_v2, &free_bytes, &total);
	if (result != HR__CUDA_SUCCESS) return hr__cuda_failed(opened, result, "cuMemGetInfo");
	result = HR__CUDA_IN_CONTEXT(opened, cuMemGetAllocationGranularity, &granularity, &opened->memory, HR__CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (result != HR__CUDA_SUCCESS) return hr__cuda_failed(opened, result, "cuMemGetAllocationGranularity");
	if (!hr__is_power_of_two(granularity)) {
		return hr__fail(HR_DEVICE_ERROR, "%s maps in units of %zu bytes, which is not a power of two", opened->name, granularity);
	}
	opened->total_bytes = total;
	opened->page_bytes = wanted_page > granularity ? wanted_page : granularity;
	return HR_OK;
}

static hr_status cuda_open(void *config, uint32_t index, void **device, hr_backend_caps *caps)
{
	void *memory;
	int error = hr__os()->alloc(sizeof(hr__cuda_card), &memory);
	if (error) return hr__os_fail(error, "a CUDA device");
	hr__cuda_card *opened = memory;
	hr_status status = identify(opened, index);
	if (status == HR_OK) {
		CUresult result = hr__cuda.cuDevicePrimaryCtxRetain(&opened->context, opened->device);
		if (result != HR__CUDA_SUCCESS) status = hr__cuda_failed(opened, result, "cuDevicePrimaryCtxRetain");
	}
	if (status == HR_OK) {
		status = measure(opened, ((const hr_cuda_options *)config)->page_bytes);
		if (status == HR_OK) status = hr__cuda_clock_start(opened);
		if (status != HR_OK) hr__cuda.cuDevicePrimaryCtxRelease_v2(opened->device);
	}
	if (status != HR_OK) {
		hr__os()->free(opened, sizeof *opened);
		return status;
	}
	*caps = (hr_backend_caps){ .total_bytes = opened->total_bytes,
		                       .page_bytes = opened->page_bytes,
		                       .map_alignment = opened->page_bytes,
		                       .host_accessible = false };
	snprintf(caps->description, sizeof caps->description, "%s, compute capability %d.%d", opened->name,
	         attribute(opened, HR__CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
	         attribute(opened, HR__CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
	*device = opened;
	return HR_OK;
}

static void cuda_close(void *device)
{
	hr__cuda_card *closed = device;
	hr__cuda_clock_stop(closed);
	hr__cuda_access_close(closed);
	hr__cuda.cuDevicePrimaryCtxRelease_v2(closed->device);
	hr__os()->free(closed, sizeof *closed);
}

static hr_status cuda_memory_info(void *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
	hr__cuda_card *on = device;
	size_t free_now = 0, total = 0;
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuMemGetInfo_v2, &free_now, &total);
	if (result != HR__CUDA_SUCCESS) return hr__cuda_failed(on, result, "cuMemGetInfo");
	*free_bytes = free_now < on->total_bytes ? free_now : on->total_bytes;
	*total_bytes = on->total_bytes; /* the value at opening, because limits were derived from it */
	return HR_OK;
}

/* ---- pages ---- */

static hr_status cuda_reserve(void *device, uint64_t bytes, uint64_t *address)
{
	hr__cuda_card *on = device;
	CUdeviceptr base = 0;
	char of[48], size[24];
	hr__cuda_range *range;
	hr_status status = hr__cuda_range_make(on, bytes, &range);
	if (status != HR_OK) return status;
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuMemAddressReserve, &base, bytes, on->page_bytes, 0, 0);
	if (result != HR__CUDA_SUCCESS) {
		snprintf(of, sizeof of, " of %s of addresses", hr__format_size(bytes, size, sizeof size));
		status = hr__cuda_failed_of(on, result, "cuMemAddressReserve", of);
	} else {
		if (base % on->page_bytes != 0)
			status = hr__fail(HR_DEVICE_ERROR, "cuMemAddressReserve on %s gave addresses that are not aligned to its pages", on->name);
		if (status == HR_OK) status = hr__cuda_range_add(on, range, base);
		if (status != HR_OK) HR__CUDA_IN_CONTEXT(on, cuMemAddressFree, base, bytes);
	}
	if (status != HR_OK) hr__cuda_range_free(range);
	else *address = base;
	return status;
}

/* The range is removed first: freed addresses may be reserved again at once, by another thread. */
static hr_status cuda_release(void *device, uint64_t address, uint64_t bytes)
{
	hr__cuda_card *on = device;
	hr__cuda_range *range = hr__cuda_range_remove(on, address);
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuMemAddressFree, address, bytes);
	if (result != HR__CUDA_SUCCESS && range) {
		hr_status added = hr__cuda_range_add(on, range, address); /* there is room for it */
		HR_ASSERT(added == HR_OK);
		(void)added;
	} else if (range) {
		hr__cuda_range_free(range);
	}
	return result == HR__CUDA_SUCCESS ? HR_OK : hr__cuda_failed(on, result, "cuMemAddressFree");
}

/* A full card is often full because of other processes, so the message gives its free memory. */
static hr_status no_memory(const hr__cuda_card *on, CUresult result, const char *symbol, uint64_t bytes)
{
	size_t free_bytes = 0, total = 0;
	char of[40], text[160];
	snprintf(of, sizeof of, " of %s", hr__sizes_text(&bytes, 1).text[0]);
	if (result != HR__CUDA_ERROR_OUT_OF_MEMORY || HR__CUDA_IN_CONTEXT(on, cuMemGetInfo_v2, &free_bytes, &total) != HR__CUDA_SUCCESS) {
		return hr__cuda_failed_of(on, result, symbol, of);
	}
	hr__sizes size = HR__SIZES(bytes, total, free_bytes);
	return hr__fail(HR_OUT_OF_MEMORY, "%.*s of %s on %s: %s; of its %s, %s are free", hr__cuda_plain_length(symbol), symbol, size.text[0], on->name,
	                hr__cuda_describe(result, text, sizeof text), size.text[1], size.text[2]);
}

static hr_status cuda_page_create(void *device, hr_page *page)
{
	hr__cuda_card *on = device;
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuMemCreate, &handle, on->page_bytes, &on->memory, 0);
	if (result != HR__CUDA_SUCCESS) return no_memory(on, result, "cuMemCreate", on->page_bytes);
	*page = handle;
	return HR_OK;
}

static hr_status cuda_page_destroy(void *device, hr_page page)
{
	CALL((hr__cuda_card *)device, cuMemRelease, page);
}

/* Drivers before CUDA 12.2 lack the attribute. */
static hr_status cuda_host_page_create(void *device, hr_page *page)
{
	hr__cuda_card *on = device;
	CUmemGenericAllocationHandle handle = 0;
	char size[24], text[160];
	if (!attribute(on, HR__CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		return hr__fail(HR_UNSUPPORTED,
		                "%s, or its driver, cannot map memory of the host at addresses of the device; that needs CUDA 12.2",
		                on->name);
	int node = attribute(on, HR__CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
	CUmemAllocationProp host = { .type = HR__CU_MEM_ALLOCATION_TYPE_PINNED,
		                         .location = { HR__CU_MEM_LOCATION_TYPE_HOST_NUMA, node > 0 ? node : 0 } };
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuMemCreate, &handle, on->page_bytes, &host, 0);
	if (result == HR__CUDA_ERROR_OUT_OF_MEMORY)
		return hr__fail(HR_NO_HOST_MEMORY, "cuMemCreate of %s of the host's memory on %s: %s; lower host_limit",
		                hr__format_size(on->page_bytes, size, sizeof size), on->name, hr__cuda_describe(result, text, sizeof text));
	if (result != HR__CUDA_SUCCESS) return hr__cuda_failed_of(on, result, "cuMemCreate", " of the host's memory");
	*page = handle;
	return HR_OK;
}

/* Called in the context. *symbol is set to the call that failed. */
static CUresult map_run(hr__cuda_card *on, uint64_t address, const hr_page *pages, uint32_t count, const char **symbol)
{
	CUresult result = HR__CUDA_SUCCESS;
	uint32_t mapped = 0;
	for (; mapped < count; mapped++) {
		result = hr__cuda.cuMemMap(address + mapped * on->page_bytes, on->page_bytes, 0, pages[mapped], 0);
		if (result != HR__CUDA_SUCCESS) break;
	}
	*symbol = "cuMemMap";
	if (result == HR__CUDA_SUCCESS) {
		result = hr__cuda_access_set(on, address, count);
		*symbol = "cuMemSetAccess";
	}
	/* If this fails too, nothing can be done: the pages stay mapped, and CUDA will refuse to map others there. */
	if (result != HR__CUDA_SUCCESS && mapped > 0) hr__cuda.cuMemUnmap(address, mapped * on->page_bytes);
	return result;
}

static hr_status cuda_map(void *device, uint64_t address, const hr_page *pages, uint32_t count)
{
	hr__cuda_card *on = device;
	bool pushed;
	char of[48];
	const char *symbol = "cuCtxPushCurrent";
	CUresult result = hr__cuda_enter(on, &pushed);
	if (result == HR__CUDA_SUCCESS) {
		result = map_run(on, address, pages, count, &symbol);
		hr__cuda_leave(pushed);
	}
	if (result == HR__CUDA_SUCCESS) return HR_OK;
	snprintf(of, sizeof of, " of %u page%s", count, hr__plural(count));
	return hr__cuda_failed_of(on, result, symbol, of);
}

static hr_status cuda_unmap(void *device, uint64_t address, uint32_t count)
{
	hr__cuda_card *on = device;
	char of[48];
	hr__cuda_access_note(on, address, count, false);
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuMemUnmap, address, count * on->page_bytes);
	if (result == HR__CUDA_SUCCESS) return HR_OK;
	hr__cuda_access_note(on, address, count, true);
	snprintf(of, sizeof of, " of %u page%s", count, hr__plural(count));
	return hr__cuda_failed_of(on, result, "cuMemUnmap", of);
}

/* ---- plain memory, and pinned host memory ---- */

static hr_status check_size(uint64_t bytes)
{
	if (bytes > 0 && bytes <= INT64_MAX) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "%llu bytes cannot be allocated", (unsigned long long)bytes);
}

static hr_status cuda_plain_alloc(void *device, uint64_t bytes, uint64_t *address)
{
	hr__cuda_card *on = device;
	CUdeviceptr base = 0;
	hr_status status = check_size(bytes);
	if (status != HR_OK) return status;
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuMemAlloc_v2, &base, bytes);
	if (result != HR__CUDA_SUCCESS) return no_memory(on, result, "cuMemAlloc", bytes);
	*address = base;
	return HR_OK;
}

static hr_status cuda_plain_free(void *device, uint64_t address, uint64_t bytes)
{
	(void)bytes;
	CALL((hr__cuda_card *)device, cuMemFree_v2, address);
}

static uint64_t whole_pages(uint64_t bytes)
{
	uint64_t rounded = 0;
	bool fits = hr__align_up(bytes, hr__os_page_size(), &rounded);
	HR_ASSERT(fits); /* by check_size */
	(void)fits;
	return rounded;
}

static hr_status pin(const hr__cuda_card *on, void *block, uint64_t bytes)
{
	char size[24], text[160];
	/* Touch the pages first: registering present pages is several times faster than having the driver fault in each one. */
	for (uint64_t at = 0; at < bytes; at += hr__os_page_size()) ((volatile char *)block)[at] = 0;
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuMemHostRegister_v2, block, bytes, HR__CU_MEMHOSTREGISTER_PORTABLE);
	if (result == HR__CUDA_SUCCESS) return HR_OK;
	if (result != HR__CUDA_ERROR_OUT_OF_MEMORY) return hr__cuda_failed(on, result, "cuMemHostRegister");
	return hr__fail(
		HR_NO_HOST_MEMORY,
		"cuMemHostRegister of %s on %s: %s; raise the limit on locked memory (ulimit -l) or that of the memory cgroup, or "
		"lower host_limit",
		hr__format_size(bytes, size, sizeof size), on->name, hr__cuda_describe(result, text, sizeof text));
}

/* Allocates our own memory and registers it: measured nine times faster than the driver's allocation. */
static hr_status cuda_host_alloc(void *device, uint64_t bytes, void **out)
{
	void *block;
	hr_status status = check_size(bytes);
	if (status != HR_OK) return status;
	uint64_t rounded = whole_pages(bytes);
	int error = hr__os()->reserve(rounded, rounded < HUGE_PAGE ? hr__os_page_size() : HUGE_PAGE, &block);
	if (error) return hr__os_fail(error, "%llu bytes of host memory", (unsigned long long)bytes);
	error = hr__os()->commit(block, rounded);
	if (!error) hr__os()->prefer_huge_pages(block, rounded); /* pin() touches each page */
	status = error ? hr__os_fail(error, "%llu bytes of host memory", (unsigned long long)bytes) : pin(device, block, rounded);
	if (status != HR_OK) {
		hr__os()->release(block, rounded);
		return status;
	}
	*out = block;
	return HR_OK;
}

static hr_status cuda_host_free(void *device, void *block, uint64_t bytes)
{
	hr__cuda_card *on = device;
	hr_status status = check_size(bytes);
	if (status != HR_OK) return status;
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuMemHostUnregister, block);
	/* Not registered: an earlier attempt unregistered the memory but failed to release it. */
	if (result != HR__CUDA_SUCCESS && result != HR__CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) {
		return hr__cuda_failed(on, result, "cuMemHostUnregister");
	}
	int error = hr__os()->release(block, whole_pages(bytes));
	return error ? hr__os_fail(error, "giving %llu bytes of host memory back", (unsigned long long)bytes) : HR_OK;
}

/* ---- streams and events ---- */

static CUstream native_stream(hr_native_stream stream)
{
	return (CUstream)(uintptr_t)stream;
}

static CUevent native_event(hr_native_event event)
{
	return (CUevent)(uintptr_t)event;
}

static hr_status cuda_stream_create(void *device, hr_native_stream *stream)
{
	hr__cuda_card *on = device;
	CUstream made = NULL;
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuStreamCreate, &made, HR__CU_STREAM_NON_BLOCKING);
	if (result != HR__CUDA_SUCCESS) return hr__cuda_failed(on, result, "cuStreamCreate");
	*stream = (hr_native_stream)(uintptr_t)made;
	return HR_OK;
}

static hr_status cuda_stream_destroy(void *device, hr_native_stream stream)
{
	CALL((hr__cuda_card *)device, cuStreamDestroy_v2, native_stream(stream));
}

static hr_status cuda_stream_synchronize(void *device, hr_native_stream stream)
{
	CALL((hr__cuda_card *)device, cuStreamSynchronize, native_stream(stream));
}

static hr_status create_event(const hr__cuda_card *on, unsigned flags, hr_native_event *event)
{
	CUevent made = NULL;
	CUresult result = HR__CUDA_IN_CONTEXT(on, cuEventCreate, &made, flags);
	if (result != HR__CUDA_SUCCESS) return hr__cuda_failed(on, result, "cuEventCreate");
	*event = (hr_native_event)(uintptr_t)made;
	return HR_OK;
}

static hr_status cuda_event_create(void *device, hr_native_event *event)
{
	return create_event(device, HR__CU_EVENT_DISABLE_TIMING, event);
}

static hr_status cuda_timed_event_create(void *device, hr_native_event *event)
{
	return create_event(device, HR__CU_EVENT_DEFAULT, event);
}

static hr_status cuda_event_time(void *device, hr_native_event event, uint64_t *ns)
{
	return hr__cuda_clock_read(device, native_event(event), ns);
}

static hr_status cuda_event_destroy(void *device, hr_native_event event)
{
	CALL((hr__cuda_card *)device, cuEventDestroy_v2, native_event(event));
}

/* Importing a stream starts by recording an event on it, so an invalid stream is refused here. */
static hr_status cuda_event_record(void *device, hr_native_event event, hr_native_stream stream)
{
	if (HR_UNLIKELY(stream == PER_THREAD_STREAM)) {
		return hr__fail(HR_INVALID_ARGUMENT,
		                "CUDA's per-thread default stream differs between threads; use a stream of your own");
	}
	CALL((hr__cuda_card *)device, cuEventRecord, native_event(event), native_stream(stream));
}

static hr_status cuda_event_query(void *device, hr_native_event event)
{
	CALL((hr__cuda_card *)device, cuEventQuery, native_event(event));
}

static hr_status cuda_event_synchronize(void *device, hr_native_event event)
{
	CALL((hr__cuda_card *)device, cuEventSynchronize, native_event(event));
}

static hr_status cuda_stream_wait_event(void *device, hr_native_stream stream, hr_native_event event)
{
	CALL((hr__cuda_card *)device, cuStreamWaitEvent, native_stream(stream), native_event(event), 0);
}

/* ---- work ---- */

static hr_status cuda_copy(void *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind, hr_native_stream stream)
{
	hr__cuda_card *on = device;
	CUstream native = native_stream(stream);
	switch (kind) {
	case HR_COPY_TO_DEVICE: CALL(on, cuMemcpyHtoDAsync_v2, to, (const void *)(uintptr_t)from, bytes, native);
	case HR_COPY_TO_HOST: CALL(on, cuMemcpyDtoHAsync_v2, (void *)(uintptr_t)to, from, bytes, native);
	case HR_COPY_ON_DEVICE: CALL(on, cuMemcpyDtoDAsync_v2, to, from, bytes, native);
	}
	return hr__fail(HR_INVALID_ARGUMENT, "%d is not a kind of copy", (int)kind);
}

static hr_status cuda_fill(void *device, uint64_t address, uint8_t value, uint64_t bytes, hr_native_stream stream)
{
	CALL((hr__cuda_card *)device, cuMemsetD8Async, address, value, bytes, native_stream(stream));
}

static hr_status cuda_host_call(void *device, void (*run)(void *), void *argument, hr_native_stream stream)
{
	CALL((hr__cuda_card *)device, cuLaunchHostFunc, native_stream(stream), run, argument);
}

const hr_backend hr__backend_cuda = {
	.version = HR_BACKEND_VERSION,
	.struct_size = sizeof(hr_backend),
	.name = "cuda",
	.type = "GPU",
	.count = cuda_count,
	.open = cuda_open,
	.close = cuda_close,
	.memory_info = cuda_memory_info,
	.reserve = cuda_reserve,
	.release = cuda_release,
	.page_create = cuda_page_create,
	.page_destroy = cuda_page_destroy,
	.map = cuda_map,
	.unmap = cuda_unmap,
	.plain_alloc = cuda_plain_alloc,
	.plain_free = cuda_plain_free,
	.stream_create = cuda_stream_create,
	.stream_destroy = cuda_stream_destroy,
	.stream_synchronize = cuda_stream_synchronize,
	.event_create = cuda_event_create,
	.event_destroy = cuda_event_destroy,
	.event_record = cuda_event_record,
	.event_query = cuda_event_query,
	.event_synchronize = cuda_event_synchronize,
	.stream_wait_event = cuda_stream_wait_event,
	.copy = cuda_copy,
	.fill = cuda_fill,
	.host_call = cuda_host_call,
	.host_alloc = cuda_host_alloc,
	.host_free = cuda_host_free,
	.event_time = cuda_event_time,
	.timed_event_create = cuda_timed_event_create,
	.host_page_create = cuda_host_page_create,
	.host_page_destroy = cuda_page_destroy,
	.allow_access = hr__cuda_allow_access,
};
