/* backend_calls.c - all calls into backends. Each call is counted, can be made to fail by a test, and has a substitute where the entry is
 * optional.
 *
 * There is one counter for the process, so a test that makes call 1, 2, 3... fail, until no call fails any more, covers every place
 * where a device can fail. Only calls of entries that exist in the backend's table are counted, because a substitute cannot fail on
 * behalf of the device. close is not counted, because it returns nothing. */
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/device/internal.h"

/* Which calls fail. Set together by hr_backend_fail_nth; a concurrent call may see the old or the new setting. */
static struct {
	hr__atomic_u64 calls;
	hr__atomic_u64 nth; /* 0 = no call fails */
	hr__atomic_u32 forever;
	hr__atomic_u32 status;
} faults;

HR_API void hr_backend_fail_nth(uint64_t nth, bool forever, hr_status status)
{
	hr__store_relaxed(&faults.nth, 0);
	hr__store_relaxed(&faults.status, (uint32_t)(status == HR_OK ? HR_DEVICE_ERROR : status));
	hr__store_relaxed(&faults.forever, forever);
	hr__store_relaxed(&faults.calls, 0);
	hr__store_release(&faults.nth, nth);
}

HR_API uint64_t hr_backend_calls(void)
{
	return hr__load_relaxed(&faults.calls);
}

HR_API hr_status hr_backend_set_error(hr_status status, const char *message)
{
	if (status == HR_OK) return HR_OK;
	return hr__fail(status, "%s", message ? message : "the device gave no reason");
}

/* Counts a call of [entry]; returns an error when the call must fail. */
static hr_status enter(const char *entry)
{
	uint64_t call = hr__fetch_add_relaxed(&faults.calls, 1) + 1;
	uint64_t nth = hr__load_acquire(&faults.nth);
	if (HR_LIKELY(nth == 0 || call < nth || (call > nth && !hr__load_relaxed(&faults.forever)))) return HR_OK;
	return hr__fail((hr_status)hr__load_relaxed(&faults.status), "%s was made to fail (backend call %llu)", entry,
	                (unsigned long long)call);
}

/* Calls [entry] of the device's table and returns its status. */
#define CALL(device, entry, ...)                                      \
	do {                                                              \
		hr_status injected = enter(#entry);                           \
		if (HR_UNLIKELY(injected != HR_OK)) return injected;          \
		return (device)->table->entry((device)->native, __VA_ARGS__); \
	} while (0)

/* ---- opening ---- */

hr_status hr__call_count(const hr_backend *table, void *config, uint32_t *out)
{
	hr_status injected = enter("count");
	return injected != HR_OK ? injected : table->count(config, out);
}

hr_status hr__call_open(hr__physical *device)
{
	hr_status injected = enter("open");
	if (injected != HR_OK) return injected;
	return device->table->open(device->config, device->index, &device->native, &device->caps);
}

hr_status hr__call_memory_info(hr__physical *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
	CALL(device, memory_info, free_bytes, total_bytes);
}

/* ---- memory. Callers use pages only where caps.page_bytes is not 0. ---- */

hr_status hr__call_reserve(hr__physical *device, uint64_t bytes, uint64_t *address)
{
	CALL(device, reserve, bytes, address);
}

hr_status hr__call_release(hr__physical *device, uint64_t address, uint64_t bytes)
{
	CALL(device, release, address, bytes);
}

hr_status hr__call_page_create(hr__physical *device, hr_page *page)
{
	CALL(device, page_create, page);
}

hr_status hr__call_page_destroy(hr__physical *device, hr_page page)
{
	CALL(device, page_destroy, page);
}

hr_status hr__call_map(hr__physical *device, uint64_t address, const hr_page *pages, uint32_t count)
{
	CALL(device, map, address, pages, count);
}

hr_status hr__call_unmap(hr__physical *device, uint64_t address, uint32_t count)
{
	CALL(device, unmap, address, count);
}

hr_status hr__call_allow_access(hr__physical *device, hr__physical *peer)
{
	if (!device->table->allow_access) return HR_OK;
	CALL(device, allow_access, peer->native);
}

hr_status hr__call_host_page_create(hr__physical *device, hr_page *page)
{
	if (!device->table->host_page_create)
		return hr__fail(HR_UNSUPPORTED, "the %s device cannot map memory of the host at its addresses", device->table->name);
	CALL(device, host_page_create, page);
}

hr_status hr__call_host_page_destroy(hr__physical *device, hr_page page)
{
	CALL(device, host_page_destroy, page);
}

hr_status hr__call_plain_alloc(hr__physical *device, uint64_t bytes, uint64_t *address)
{
	if (!device->table->plain_alloc) return hr__fail(HR_UNSUPPORTED, "the %s device has pages only", device->table->name);
	CALL(device, plain_alloc, bytes, address);
}

hr_status hr__call_plain_free(hr__physical *device, uint64_t address, uint64_t bytes)
{
	if (!device->table->plain_free) return hr__fail(HR_UNSUPPORTED, "the %s device has pages only", device->table->name);
	CALL(device, plain_free, address, bytes);
}

/* ---- streams and events. Callers use them only where hr__has_streams is true; without streams all work is done when a call
 * returns. ---- */

hr_status hr__call_stream_create(hr__physical *device, hr_native_stream *stream)
{
	CALL(device, stream_create, stream);
}

hr_status hr__call_stream_destroy(hr__physical *device, hr_native_stream stream)
{
	CALL(device, stream_destroy, stream);
}

hr_status hr__call_stream_synchronize(hr__physical *device, hr_native_stream stream)
{
	if (!hr__has_streams(device)) return HR_OK;
	CALL(device, stream_synchronize, stream);
}

hr_status hr__call_event_create(hr__physical *device, hr_native_event *event)
{
	CALL(device, event_create, event);
}

hr_status hr__call_event_destroy(hr__physical *device, hr_native_event event)
{
	CALL(device, event_destroy, event);
}

hr_status hr__call_event_record(hr__physical *device, hr_native_event event, hr_native_stream stream)
{
	CALL(device, event_record, event, stream);
}

hr_status hr__call_event_query(hr__physical *device, hr_native_event event)
{
	CALL(device, event_query, event);
}

hr_status hr__call_event_synchronize(hr__physical *device, hr_native_event event)
{
	CALL(device, event_synchronize, event);
}

hr_status hr__call_stream_wait_event(hr__physical *device, hr_native_stream stream, hr_native_event event)
{
	CALL(device, stream_wait_event, stream, event);
}

hr_status hr__call_timed_event_create(hr__physical *device, hr_native_event *event)
{
	if (!device->table->timed_event_create) return hr__call_event_create(device, event);
	CALL(device, timed_event_create, event);
}

hr_status hr__call_event_time(hr__physical *device, hr_native_event event, uint64_t *ns)
{
	if (!device->table->event_time) {
		return hr__fail(HR_UNSUPPORTED, "the %s device does not report when work was done", device->table->name);
	}
	CALL(device, event_time, event, ns);
}

/* ---- work ---- */

hr_status hr__call_copy(hr__physical *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind,
                        hr_native_stream stream)
{
	CALL(device, copy, to, from, bytes, kind, stream);
}

hr_status hr__call_fill(hr__physical *device, uint64_t address, uint8_t value, uint64_t bytes, hr_native_stream stream)
{
	CALL(device, fill, address, value, bytes, stream);
}

hr_status hr__call_host_call(hr__physical *device, void (*run)(void *), void *argument, hr_native_stream stream)
{
	if (!device->table->host_call) {
		return hr__fail(HR_UNSUPPORTED, "the %s device cannot run host functions in stream order", device->table->name);
	}
	CALL(device, host_call, run, argument, stream);
}

hr_status hr__call_compute(hr__physical *device, uint64_t ns, hr_native_stream stream)
{
	if (!device->table->compute) return HR_OK;
	CALL(device, compute, ns, stream);
}

/* ---- host memory ---- */

static bool whole_pages(uint64_t bytes, uint64_t *out)
{
	return bytes > 0 && hr__align_up(bytes, hr__os_page_size(), out);
}

static hr_status plain_host_alloc(uint64_t bytes, void **out)
{
	uint64_t rounded;
	void *block;
	if (!whole_pages(bytes, &rounded)) {
		return hr__fail(HR_INVALID_ARGUMENT, "%llu bytes of host memory cannot be allocated", (unsigned long long)bytes);
	}
	int error = hr__os()->reserve(rounded, hr__os_page_size(), &block);
	if (error) return hr__os_fail(error, "%llu bytes of host memory", (unsigned long long)bytes);
	error = hr__os()->commit(block, rounded);
	if (error) {
		hr__os()->release(block, rounded);
		return hr__os_fail(error, "%llu bytes of host memory", (unsigned long long)bytes);
	}
	*out = block;
	return HR_OK;
}

hr_status hr__call_host_alloc(hr__physical *device, uint64_t bytes, void **out)
{
	if (!device->table->host_alloc) return plain_host_alloc(bytes, out);
	CALL(device, host_alloc, bytes, out);
}

hr_status hr__call_host_free(hr__physical *device, void *block, uint64_t bytes)
{
	if (!device->table->host_free) {
		uint64_t rounded;
		int error = whole_pages(bytes, &rounded) ? hr__os()->release(block, rounded) : 0;
		return error ? hr__os_fail(error, "freeing host memory") : HR_OK;
	}
	CALL(device, host_free, block, bytes);
}

hr_status hr__call_clock_ns(hr__physical *device, uint64_t *ns)
{
	if (!device->table->clock_ns) {
		*ns = hr__os()->clock_ns();
		return HR_OK;
	}
	CALL(device, clock_ns, ns);
}
