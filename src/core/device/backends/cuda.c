/* cuda.c - NVIDIA GPUs, through the installed CUDA driver.
 *
 * The driver library is loaded at run time. If it is missing or does not work, there are no CUDA devices. That is not an error:
 * emulated devices are used instead. The reason is kept for hr_cuda_check.
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
 * access for all of them in one call. Unmapping removes a whole run in one call: CUDA cannot unmap part of a mapping, but one call
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
 * Time
 *
 * CUDA reports the time between two events, in milliseconds as a float: exact to 0.25 us over 4 s, to 0.25 ms over an hour. So
 * times are measured from a base, an event on a stream that has no other work. When the base is older than REBASE_MS, a new base
 * event is recorded; it is used once it has happened. Callers that query at least every few seconds get CUDA's full resolution (0.5
 * us); the first answer after a long pause has the resolution of that pause. Each change of base adds at most one rounding error.
 *
 * Timed events cost five times as much to record as untimed ones (1.24 us and 0.23 us on an H200), and 3 us to query.
 *
 * The only lock here is that of the clock: the driver has its own locks. Static data is written under the registry's lock (count)
 * and only read afterwards. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/device/backends/cuda_driver.h"
#include "core/device/internal.h"
#include "core/os/library.h"
#include "core/os/os.h"

#define LIBRARY "libcuda.so.1"
#define OLDEST "11.0" /* the first CUDA version whose driver has all of HR__CUDA_CALLS */
#define CONTROL_DEVICE "/dev/nvidiactl"
#define PER_THREAD_STREAM 2u
#define HUGE_PAGE (UINT64_C(2) << 20)
#define REBASE_MS 2000.0f
#define FIRST_BASE_NS UINT64_C(1000000000) /* so that rounding never yields a negative time */

static struct {
	hr__library *library;
	int process; /* the process that called cuInit; a fork of it cannot use CUDA */
	bool broken; /* the last count found a driver but no device */
	char why[320];
} driver;

/* The driver's functions, under their own names. */
static struct {
#define MEMBER(name, parameters) CUresult(*name) parameters;
	HR__CUDA_CALLS(MEMBER)
#undef MEMBER
} cu;

typedef struct card {
	CUdevice device;
	CUcontext context;
	uint64_t page_bytes, total_bytes;
	CUmemAllocationProp memory; /* properties of a page */
	CUmemAccessDesc access;
	char name[64];
	CUstream clock;      /* the stream on which bases are recorded */
	hr__lock clock_lock; /* HR__RANK_DEVICE; guards the fields below */
	CUevent base, next;  /* next: becomes the base once it has happened */
	uint64_t base_ns;    /* time of base on our clock */
	bool next_is_recorded;
} card;

/* ---- errors ---- */

static hr_status status_of(CUresult result)
{
	switch (result) {
	case HR__CUDA_SUCCESS: return HR_OK;
	case HR__CUDA_ERROR_OUT_OF_MEMORY: return HR_OUT_OF_MEMORY;
	case HR__CUDA_ERROR_NOT_READY: return HR_NOT_READY;
	case HR__CUDA_ERROR_INVALID_HANDLE: return HR_INVALID_ARGUMENT;
	case HR__CUDA_ERROR_NOT_SUPPORTED: return HR_UNSUPPORTED;
	default: return HR_DEVICE_ERROR;
	}
}

/* "CUDA_ERROR_OUT_OF_MEMORY (out of memory)" */
static const char *describe(CUresult result, char *out, size_t capacity)
{
	const char *name = NULL, *text = NULL;
	if (cu.cuGetErrorName(result, &name) != HR__CUDA_SUCCESS || !name) {
		snprintf(out, capacity, "CUDA error %d", result);
	} else if (cu.cuGetErrorString(result, &text) != HR__CUDA_SUCCESS || !text) {
		snprintf(out, capacity, "%s", name);
	} else {
		snprintf(out, capacity, "%s (%s)", name, text);
	}
	return out;
}

/* Length of a symbol's name without its version suffix, as users know it (cuMemAlloc). */
static int plain_length(const char *symbol)
{
	const char *version = strstr(symbol, "_v2");
	return (int)(version ? (size_t)(version - symbol) : strlen(symbol));
}

/* [of] is the object of the call, such as " of 2.0 MiB". */
static hr_status failed_of(const card *on, CUresult result, const char *symbol, const char *of)
{
	char text[160];
	if (result == HR__CUDA_ERROR_NOT_READY) return HR_NOT_READY; /* expected, not an error: skip the message */
	return hr__fail(status_of(result), "%.*s%s on %s: %s", plain_length(symbol), symbol, of, on->name,
	                describe(result, text, sizeof text));
}

static hr_status failed(const card *on, CUresult result, const char *symbol)
{
	return failed_of(on, result, symbol, "");
}

/* ---- the context ---- */

/* Makes the card's context current; *pushed is whether leave must pop it. */
static CUresult enter(const card *on, bool *pushed)
{
	CUcontext current = NULL;
	CUresult result = cu.cuCtxGetCurrent(&current);
	*pushed = false;
	if (result != HR__CUDA_SUCCESS || current == on->context) return result;
	result = cu.cuCtxPushCurrent_v2(on->context);
	*pushed = result == HR__CUDA_SUCCESS;
	return result;
}

static void leave(bool pushed)
{
	CUcontext ours;
	if (pushed) cu.cuCtxPopCurrent_v2(&ours);
}

/* Makes one call in the card's context; evaluates to its CUresult. */
#define IN_CONTEXT(on, name, ...)                     \
	({                                                \
		bool pushed_;                                 \
		CUresult result_ = enter(on, &pushed_);       \
		if (HR_LIKELY(result_ == HR__CUDA_SUCCESS)) { \
			result_ = cu.name(__VA_ARGS__);           \
			leave(pushed_);                           \
		}                                             \
		result_;                                      \
	})

/* The body of an entry that is a single call. */
#define CALL(on, name, ...)                                                                 \
	do {                                                                                    \
		CUresult called_ = IN_CONTEXT(on, name, __VA_ARGS__);                               \
		return HR_LIKELY(called_ == HR__CUDA_SUCCESS) ? HR_OK : failed(on, called_, #name); \
	} while (0)

/* ---- finding the driver ---- */

const char *hr__cuda_why(void)
{
	return driver.why;
}

bool hr__cuda_is_broken(void)
{
	return driver.broken;
}

/* Returns false, so that callers can return its result. */
__attribute__((format(printf, 1, 2))) static bool explain(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(driver.why, sizeof driver.why, format, arguments);
	va_end(arguments);
	return false;
}

static bool load(void)
{
	char why[200] = "";
	hr__library *library = driver.library ? driver.library : hr__library_open(LIBRARY, why, sizeof why);
	if (!library) return explain("no driver found (%s)", why);
	driver.broken = true; /* until a device is found */
	if (driver.library) return true;
#define RESOLVE(name, parameters)                                                                                       \
	{                                                                                                                   \
		void *symbol = hr__library_symbol(library, #name);                                                              \
		if (!symbol) {                                                                                                  \
			return explain("the CUDA driver is too old: it has no %s; Headroom needs CUDA " OLDEST " or newer", #name); \
		}                                                                                                               \
		memcpy(&cu.name, &symbol, sizeof symbol);                                                                       \
	}
	HR__CUDA_CALLS(RESOLVE)
#undef RESOLVE
	driver.library = library;
	return true;
}

/* The error of opening the driver's device file if access is denied; otherwise 0. The device is not a regular file, so the open
 * never succeeds, but missing permission is reported first. */
static int forbidden(void)
{
	int file;
	uint64_t size;
	int error = hr__os()->file_open(CONTROL_DEVICE, &file, &size);
	if (error == 0) hr__os()->file_close(file);
	return error == EACCES || error == EPERM ? error : 0;
}

static bool explain_init(CUresult result)
{
	char text[160];
	int error = forbidden();
	describe(result, text, sizeof text);
	if (error) {
		return explain("cuInit: %s; " CONTROL_DEVICE
		               " may not be opened (%s): add the user to the group that it belongs to, or run "
		               "the container with access to GPUs",
		               text, hr__os_error(error));
	}
	const char *visible = hr__os()->environment("CUDA_VISIBLE_DEVICES");
	if (result == HR__CUDA_ERROR_NO_DEVICE && visible) {
		char quoted[HR__QUOTE_CAPACITY];
		return explain("the driver shows no device; the environment variable CUDA_VISIBLE_DEVICES is %s",
		               hr__device_quote(visible, quoted));
	}
	if (result == HR__CUDA_ERROR_NO_DEVICE) return explain("the driver shows no device");
	return explain("cuInit: %s", text);
}

static bool initialise(int *count)
{
	char text[160];
	int process = hr__os()->process_id();
	if (driver.process && driver.process != process) {
		return explain("this process is a fork of one that used CUDA, which CUDA does not support; start it with exec");
	}
	CUresult result = cu.cuInit(0);
	if (result != HR__CUDA_SUCCESS) return explain_init(result);
	driver.process = process;
	result = cu.cuDeviceGetCount(count);
	if (result != HR__CUDA_SUCCESS) return explain("cuDeviceGetCount: %s", describe(result, text, sizeof text));
	if (*count <= 0) return explain_init(HR__CUDA_ERROR_NO_DEVICE);
	return true;
}

static hr_status cuda_count(void *config, uint32_t *out)
{
	int count = 0;
	driver.why[0] = 0;
	driver.broken = false;
	if (!((const hr_cuda_options *)config)->enabled) {
		explain("switched off (HEADROOM_CUDA=0, or hr_cuda_configure)");
	} else if (load() && initialise(&count)) {
		driver.broken = false;
		*out = (uint32_t)count;
		return HR_OK;
	}
	*out = 0;
	return HR_OK;
}

/* ---- opening ---- */

static CUresult attribute(const card *of, int which)
{
	int value = 0;
	return cu.cuDeviceGetAttribute(&value, which, of->device) == HR__CUDA_SUCCESS ? value : 0;
}

/* Properties of the card that need no context. */
static hr_status identify(card *opened, uint32_t index)
{
	snprintf(opened->name, sizeof opened->name, "CUDA device %u", index); /* until the name is known */
	CUresult result = cu.cuDeviceGet(&opened->device, (int)index);
	if (result != HR__CUDA_SUCCESS) return failed(opened, result, "cuDeviceGet");
	char name[sizeof opened->name] = "";
	result = cu.cuDeviceGetName(name, sizeof name, opened->device);
	if (result != HR__CUDA_SUCCESS) return failed(opened, result, "cuDeviceGetName");
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
	opened->access = (CUmemAccessDesc){ .location = here, .flags = HR__CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	return HR_OK;
}

/* Memory size and page size; needs a context. */
static hr_status measure(card *opened, uint64_t wanted_page)
{
	size_t free_bytes = 0, total = 0, granularity = 0;
	CUresult result = IN_CONTEXT(opened, cuMemGetInfo_v2, &free_bytes, &total);
	if (result != HR__CUDA_SUCCESS) return failed(opened, result, "cuMemGetInfo");
	result = IN_CONTEXT(opened, cuMemGetAllocationGranularity, &granularity, &opened->memory, HR__CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	if (result != HR__CUDA_SUCCESS) return failed(opened, result, "cuMemGetAllocationGranularity");
	if (!hr__is_power_of_two(granularity)) {
		return hr__fail(HR_DEVICE_ERROR, "%s maps in units of %zu bytes, which is not a power of two", opened->name, granularity);
	}
	opened->total_bytes = total;
	opened->page_bytes = wanted_page > granularity ? wanted_page : granularity;
	return HR_OK;
}

/* ---- the clock ---- */

static void stop_clock(const card *closed)
{
	if (closed->next) IN_CONTEXT(closed, cuEventDestroy_v2, closed->next);
	if (closed->base) IN_CONTEXT(closed, cuEventDestroy_v2, closed->base);
	if (closed->clock) IN_CONTEXT(closed, cuStreamDestroy_v2, closed->clock);
}

/* Called in the context. *symbol is set to the call that failed. */
static CUresult set_clock(card *opened, const char **symbol)
{
	*symbol = "cuStreamCreate";
	CUresult result = cu.cuStreamCreate(&opened->clock, HR__CU_STREAM_NON_BLOCKING);
	if (result != HR__CUDA_SUCCESS) return result;
	*symbol = "cuEventCreate";
	result = cu.cuEventCreate(&opened->base, HR__CU_EVENT_DEFAULT);
	if (result == HR__CUDA_SUCCESS) result = cu.cuEventCreate(&opened->next, HR__CU_EVENT_DEFAULT);
	if (result != HR__CUDA_SUCCESS) return result;
	*symbol = "cuEventRecord";
	result = cu.cuEventRecord(opened->base, opened->clock);
	if (result != HR__CUDA_SUCCESS) return result;
	*symbol = "cuEventSynchronize"; /* wait now, so that later events never find the base unfinished */
	return cu.cuEventSynchronize(opened->base);
}

static hr_status start_clock(card *opened)
{
	bool pushed;
	const char *symbol = "cuCtxPushCurrent";
	hr__lock_init(&opened->clock_lock, HR__RANK_DEVICE);
	opened->base_ns = FIRST_BASE_NS;
	CUresult result = enter(opened, &pushed);
	if (result == HR__CUDA_SUCCESS) {
		result = set_clock(opened, &symbol);
		leave(pushed);
	}
	if (result == HR__CUDA_SUCCESS) return HR_OK;
	stop_clock(opened);
	return failed(opened, result, symbol);
}

static int64_t ns_of(float ms)
{
	return (int64_t)((double)ms * 1e6);
}

/* Tries to move to a new base and returns whether it did. In the context and under the clock's lock, as is tell_time. */
static bool move_base(card *on)
{
	float step = 0;
	if (!on->next_is_recorded) on->next_is_recorded = cu.cuEventRecord(on->next, on->clock) == HR__CUDA_SUCCESS;
	if (!on->next_is_recorded || cu.cuEventElapsedTime(&step, on->base, on->next) != HR__CUDA_SUCCESS) return false;
	CUevent old = on->base;
	on->base = on->next;
	on->base_ns += (uint64_t)ns_of(step);
	on->next = old;
	on->next_is_recorded = false;
	return true;
}

static CUresult event_time_ns(card *on, CUevent event, uint64_t *ns)
{
	float since = 0; /* negative for events before the base */
	CUresult result = cu.cuEventElapsedTime(&since, on->base, event);
	while (result == HR__CUDA_SUCCESS && since > REBASE_MS && move_base(on)) { /* repeats when the next base is old too */
		result = cu.cuEventElapsedTime(&since, on->base, event);
	}
	if (result == HR__CUDA_SUCCESS) *ns = on->base_ns + (uint64_t)ns_of(since);
	return result;
}

static hr_status cuda_open(void *config, uint32_t index, void **device, hr_backend_caps *caps)
{
	void *memory;
	int error = hr__os()->alloc(sizeof(card), &memory);
	if (error) return hr__os_fail(error, "a CUDA device");
	card *opened = memory;
	hr_status status = identify(opened, index);
	if (status == HR_OK) {
		CUresult result = cu.cuDevicePrimaryCtxRetain(&opened->context, opened->device);
		if (result != HR__CUDA_SUCCESS) status = failed(opened, result, "cuDevicePrimaryCtxRetain");
	}
	if (status == HR_OK) {
		status = measure(opened, ((const hr_cuda_options *)config)->page_bytes);
		if (status == HR_OK) status = start_clock(opened);
		if (status != HR_OK) cu.cuDevicePrimaryCtxRelease_v2(opened->device);
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
	card *closed = device;
	stop_clock(closed);
	cu.cuDevicePrimaryCtxRelease_v2(closed->device);
	hr__os()->free(closed, sizeof *closed);
}

static hr_status cuda_memory_info(void *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
	card *on = device;
	size_t free_now = 0, total = 0;
	CUresult result = IN_CONTEXT(on, cuMemGetInfo_v2, &free_now, &total);
	if (result != HR__CUDA_SUCCESS) return failed(on, result, "cuMemGetInfo");
	*free_bytes = free_now < on->total_bytes ? free_now : on->total_bytes;
	*total_bytes = on->total_bytes; /* the value at opening, because limits were derived from it */
	return HR_OK;
}

/* ---- pages ---- */

static hr_status cuda_reserve(void *device, uint64_t bytes, uint64_t *address)
{
	card *on = device;
	CUdeviceptr base = 0;
	char of[48], size[24];
	CUresult result = IN_CONTEXT(on, cuMemAddressReserve, &base, bytes, on->page_bytes, 0, 0);
	if (result != HR__CUDA_SUCCESS) {
		snprintf(of, sizeof of, " of %s of addresses", hr__format_size(bytes, size, sizeof size));
		return failed_of(on, result, "cuMemAddressReserve", of);
	}
	if (base % on->page_bytes != 0) {
		IN_CONTEXT(on, cuMemAddressFree, base, bytes);
		return hr__fail(HR_DEVICE_ERROR, "cuMemAddressReserve on %s gave addresses that are not aligned to its pages", on->name);
	}
	*address = base;
	return HR_OK;
}

static hr_status cuda_release(void *device, uint64_t address, uint64_t bytes)
{
	CALL((card *)device, cuMemAddressFree, address, bytes);
}

/* A full card is often full because of other processes, so the message gives its free memory. */
static hr_status no_memory(const card *on, CUresult result, const char *symbol, uint64_t bytes)
{
	size_t free_bytes = 0, total = 0;
	char of[40], text[160];
	snprintf(of, sizeof of, " of %s", hr__sizes_text(&bytes, 1).text[0]);
	if (result != HR__CUDA_ERROR_OUT_OF_MEMORY || IN_CONTEXT(on, cuMemGetInfo_v2, &free_bytes, &total) != HR__CUDA_SUCCESS) {
		return failed_of(on, result, symbol, of);
	}
	hr__sizes size = HR__SIZES(bytes, total, free_bytes);
	return hr__fail(HR_OUT_OF_MEMORY, "%.*s of %s on %s: %s; of its %s, %s are free", plain_length(symbol), symbol, size.text[0], on->name,
	                describe(result, text, sizeof text), size.text[1], size.text[2]);
}

static hr_status cuda_page_create(void *device, hr_page *page)
{
	card *on = device;
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = IN_CONTEXT(on, cuMemCreate, &handle, on->page_bytes, &on->memory, 0);
	if (result != HR__CUDA_SUCCESS) return no_memory(on, result, "cuMemCreate", on->page_bytes);
	*page = handle;
	return HR_OK;
}

static hr_status cuda_page_destroy(void *device, hr_page page)
{
	CALL((card *)device, cuMemRelease, page);
}

/* Drivers before CUDA 12.2 lack the attribute. */
static hr_status cuda_host_page_create(void *device, hr_page *page)
{
	card *on = device;
	CUmemGenericAllocationHandle handle = 0;
	char size[24], text[160];
	if (!attribute(on, HR__CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		return hr__fail(HR_UNSUPPORTED,
		                "%s, or its driver, cannot map memory of the host at addresses of the device; that needs CUDA 12.2",
		                on->name);
	int node = attribute(on, HR__CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
	CUmemAllocationProp host = { .type = HR__CU_MEM_ALLOCATION_TYPE_PINNED,
		                         .location = { HR__CU_MEM_LOCATION_TYPE_HOST_NUMA, node > 0 ? node : 0 } };
	CUresult result = IN_CONTEXT(on, cuMemCreate, &handle, on->page_bytes, &host, 0);
	if (result == HR__CUDA_ERROR_OUT_OF_MEMORY)
		return hr__fail(HR_NO_HOST_MEMORY, "cuMemCreate of %s of the host's memory on %s: %s; lower host_limit",
		                hr__format_size(on->page_bytes, size, sizeof size), on->name, describe(result, text, sizeof text));
	if (result != HR__CUDA_SUCCESS) return failed_of(on, result, "cuMemCreate", " of the host's memory");
	*page = handle;
	return HR_OK;
}

/* Called in the context. *symbol is set to the call that failed. */
static CUresult map_run(const card *on, uint64_t address, const hr_page *pages, uint32_t count, const char **symbol)
{
	CUresult result = HR__CUDA_SUCCESS;
	uint32_t mapped = 0;
	for (; mapped < count; mapped++) {
		result = cu.cuMemMap(address + mapped * on->page_bytes, on->page_bytes, 0, pages[mapped], 0);
		if (result != HR__CUDA_SUCCESS) break;
	}
	*symbol = "cuMemMap";
	if (result == HR__CUDA_SUCCESS) {
		result = cu.cuMemSetAccess(address, count * on->page_bytes, &on->access, 1);
		*symbol = "cuMemSetAccess";
	}
	/* If this fails too, nothing can be done: the pages stay mapped, and CUDA will refuse to map others there. */
	if (result != HR__CUDA_SUCCESS && mapped > 0) cu.cuMemUnmap(address, mapped * on->page_bytes);
	return result;
}

static hr_status cuda_map(void *device, uint64_t address, const hr_page *pages, uint32_t count)
{
	card *on = device;
	bool pushed;
	char of[48];
	const char *symbol = "cuCtxPushCurrent";
	CUresult result = enter(on, &pushed);
	if (result == HR__CUDA_SUCCESS) {
		result = map_run(on, address, pages, count, &symbol);
		leave(pushed);
	}
	if (result == HR__CUDA_SUCCESS) return HR_OK;
	snprintf(of, sizeof of, " of %u page%s", count, hr__plural(count));
	return failed_of(on, result, symbol, of);
}

static hr_status cuda_unmap(void *device, uint64_t address, uint32_t count)
{
	card *on = device;
	char of[48];
	CUresult result = IN_CONTEXT(on, cuMemUnmap, address, count * on->page_bytes);
	if (result == HR__CUDA_SUCCESS) return HR_OK;
	snprintf(of, sizeof of, " of %u page%s", count, hr__plural(count));
	return failed_of(on, result, "cuMemUnmap", of);
}

/* ---- plain memory, and pinned host memory ---- */

static hr_status check_size(uint64_t bytes)
{
	if (bytes > 0 && bytes <= INT64_MAX) return HR_OK;
	return hr__fail(HR_INVALID_ARGUMENT, "%llu bytes cannot be allocated", (unsigned long long)bytes);
}

static hr_status cuda_plain_alloc(void *device, uint64_t bytes, uint64_t *address)
{
	card *on = device;
	CUdeviceptr base = 0;
	hr_status status = check_size(bytes);
	if (status != HR_OK) return status;
	CUresult result = IN_CONTEXT(on, cuMemAlloc_v2, &base, bytes);
	if (result != HR__CUDA_SUCCESS) return no_memory(on, result, "cuMemAlloc", bytes);
	*address = base;
	return HR_OK;
}

static hr_status cuda_plain_free(void *device, uint64_t address, uint64_t bytes)
{
	(void)bytes;
	CALL((card *)device, cuMemFree_v2, address);
}

static uint64_t whole_pages(uint64_t bytes)
{
	uint64_t rounded = 0;
	bool fits = hr__align_up(bytes, hr__os_page_size(), &rounded);
	HR_ASSERT(fits); /* by check_size */
	(void)fits;
	return rounded;
}

static hr_status pin(const card *on, void *block, uint64_t bytes)
{
	char size[24], text[160];
	/* Touch the pages first: registering present pages is several times faster than having the driver fault in each one. */
	for (uint64_t at = 0; at < bytes; at += hr__os_page_size()) ((volatile char *)block)[at] = 0;
	CUresult result = IN_CONTEXT(on, cuMemHostRegister_v2, block, bytes, HR__CU_MEMHOSTREGISTER_PORTABLE);
	if (result == HR__CUDA_SUCCESS) return HR_OK;
	if (result != HR__CUDA_ERROR_OUT_OF_MEMORY) return failed(on, result, "cuMemHostRegister");
	return hr__fail(
		HR_NO_HOST_MEMORY,
		"cuMemHostRegister of %s on %s: %s; raise the limit on locked memory (ulimit -l) or that of the memory cgroup, or "
		"lower host_limit",
		hr__format_size(bytes, size, sizeof size), on->name, describe(result, text, sizeof text));
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
	card *on = device;
	hr_status status = check_size(bytes);
	if (status != HR_OK) return status;
	CUresult result = IN_CONTEXT(on, cuMemHostUnregister, block);
	/* Not registered: an earlier attempt unregistered the memory but failed to release it. */
	if (result != HR__CUDA_SUCCESS && result != HR__CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) {
		return failed(on, result, "cuMemHostUnregister");
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
	card *on = device;
	CUstream made = NULL;
	CUresult result = IN_CONTEXT(on, cuStreamCreate, &made, HR__CU_STREAM_NON_BLOCKING);
	if (result != HR__CUDA_SUCCESS) return failed(on, result, "cuStreamCreate");
	*stream = (hr_native_stream)(uintptr_t)made;
	return HR_OK;
}

static hr_status cuda_stream_destroy(void *device, hr_native_stream stream)
{
	CALL((card *)device, cuStreamDestroy_v2, native_stream(stream));
}

static hr_status cuda_stream_synchronize(void *device, hr_native_stream stream)
{
	CALL((card *)device, cuStreamSynchronize, native_stream(stream));
}

static hr_status create_event(const card *on, unsigned flags, hr_native_event *event)
{
	CUevent made = NULL;
	CUresult result = IN_CONTEXT(on, cuEventCreate, &made, flags);
	if (result != HR__CUDA_SUCCESS) return failed(on, result, "cuEventCreate");
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
	card *on = device;
	bool pushed;
	CUresult result = enter(on, &pushed);
	if (result == HR__CUDA_SUCCESS) {
		hr__lock_take(&on->clock_lock);
		result = event_time_ns(on, native_event(event), ns);
		hr__lock_release(&on->clock_lock);
		leave(pushed);
	}
	return HR_LIKELY(result == HR__CUDA_SUCCESS) ? HR_OK : failed(on, result, "cuEventElapsedTime");
}

static hr_status cuda_event_destroy(void *device, hr_native_event event)
{
	CALL((card *)device, cuEventDestroy_v2, native_event(event));
}

/* Importing a stream starts by recording an event on it, so an invalid stream is refused here. */
static hr_status cuda_event_record(void *device, hr_native_event event, hr_native_stream stream)
{
	if (HR_UNLIKELY(stream == PER_THREAD_STREAM)) {
		return hr__fail(HR_INVALID_ARGUMENT,
		                "CUDA's per-thread default stream differs between threads; use a stream of your own");
	}
	CALL((card *)device, cuEventRecord, native_event(event), native_stream(stream));
}

static hr_status cuda_event_query(void *device, hr_native_event event)
{
	CALL((card *)device, cuEventQuery, native_event(event));
}

static hr_status cuda_event_synchronize(void *device, hr_native_event event)
{
	CALL((card *)device, cuEventSynchronize, native_event(event));
}

static hr_status cuda_stream_wait_event(void *device, hr_native_stream stream, hr_native_event event)
{
	CALL((card *)device, cuStreamWaitEvent, native_stream(stream), native_event(event), 0);
}

/* ---- work ---- */

static hr_status cuda_copy(void *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind, hr_native_stream stream)
{
	card *on = device;
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
	CALL((card *)device, cuMemsetD8Async, address, value, bytes, native_stream(stream));
}

static hr_status cuda_host_call(void *device, void (*run)(void *), void *argument, hr_native_stream stream)
{
	CALL((card *)device, cuLaunchHostFunc, native_stream(stream), run, argument);
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
};
