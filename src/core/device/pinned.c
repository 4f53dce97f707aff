/* pinned.c - pinned host memory, with which copies run at full speed, as a device.
 *
 * Eviction needs host blocks that are reused in stream order: a block that a copy to the device still reads must not be overwritten
 * by a later copy from the device. Allocators already do this for device memory, so host memory is presented to them as a device:
 *
 *     physical device     its streams, events, epoch
 *       GPU:0, GPU:1      logical devices: pages of the card
 *       GPU:0 host memory the same streams and epoch; no pages; plain memory is the backend's host_alloc and host_free
 *
 * There is one for each physical device, created on first use. It is in no list and no name finds it, so its memory is only in its
 * own statistics. Its record in the registry's array is reserved for its physical device: creating it cannot fail for lack of a
 * record, and it takes none from the devices of programs.
 *
 * Pinning is expensive: 65 ms per GiB where touched memory is registered, 600 ms where the driver allocates it. So allocators take
 * it in regions of HR__PINNED_SLAB and more (hr__device_region_min), and keep them. */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/device/internal.h"

/* The simulated device has no memory on the host either, so the host's memory does not bound its limit. */
bool hr__pinned_is_real(const hr__physical *physical)
{
	return physical->table->host_alloc != hr__backend_simulated.host_alloc;
}

hr_status hr__pinned_memory_info(uint64_t *free_bytes, uint64_t *total_bytes)
{
	int error = hr__os()->host_memory(total_bytes, free_bytes);
	return error ? hr__os_fail(error, "asking for the host's memory") : HR_OK;
}

/* ---- the limit ---- */

static hr_status bad_limit(const hr__device *pinned, uint64_t limit, const char *why, uint64_t bound)
{
	hr__sizes size = HR__SIZES(limit, bound);
	return hr__fail(HR_BAD_LIMIT, "the host pool of %s: host_limit %s is %s %s", pinned->pinned_for->name,
	                size.text[0], why, size.text[1]);
}

/* Replaces 0 by the default and checks that the limit is possible. */
static hr_status resolve_limit(const hr__device *pinned, uint64_t *limit)
{
	uint64_t free_bytes, total;
	if (*limit == 0 || hr__pinned_is_real(pinned->physical)) {
		hr_status status = hr__pinned_memory_info(&free_bytes, &total);
		if (status != HR_OK) return status;
		if (*limit > total) return bad_limit(pinned, *limit, "above the host's memory of", total);
		if (*limit == 0) *limit = total / 2;
	}
	if (*limit < hr__os_page_size()) return bad_limit(pinned, *limit, "below one page of", hr__os_page_size());
	return HR_OK;
}

/* Rounds down to whole pages: host memory is allocated in pages, so part of a page would exceed the limit. */
static uint64_t reservable_of(uint64_t limit)
{
	return hr__align_down(limit, hr__os_page_size());
}

hr_status hr__pinned_set_limit(hr__device *pinned, uint64_t limit)
{
	uint64_t before = hr__load_relaxed(&pinned->limit);
	if (limit == 0 || limit == before) return HR_OK;
	hr_status status = resolve_limit(pinned, &limit);
	if (status != HR_OK) return status;
	if (hr__page_pool_set_reservable(&pinned->pool, reservable_of(limit))) {
		hr__store_relaxed(&pinned->limit, limit);
		return HR_OK;
	}
	hr__sizes size = HR__SIZES(before, hr__page_pool_reserved(pinned), limit);
	return hr__fail(
		HR_IN_USE,
		"the host pool of %s has a host_limit of %s and %s of it in use, so the limit cannot become %s; close what uses it first",
		pinned->pinned_for->name, size.text[0], size.text[1], size.text[2]);
}

/* ---- opening ---- */

hr_status hr__pinned_open(hr__device *pinned, hr__physical *physical, uint64_t limit)
{
	HR_ASSERT(hr__load_relaxed(&physical->open) && physical->part_count > 0);
	memset(pinned, 0, sizeof *pinned);
	pinned->physical = physical;
	pinned->pinned_for = physical->parts[0];
	snprintf(pinned->name, sizeof pinned->name, "%.19s host memory", pinned->pinned_for->name);
	hr_status status = resolve_limit(pinned, &limit);
	if (status != HR_OK) return status;
	hr__store_relaxed(&pinned->limit, limit);
	hr__page_pool_init(&pinned->pool, 0, reservable_of(limit));
	return HR_OK;
}

/* ---- memory ---- */

hr_status hr__pinned_alloc(hr__device *pinned, uint64_t bytes, uint64_t *address)
{
	void *block;
	hr_status status = hr__call_host_alloc(pinned->physical, bytes, &block);
	if (status == HR_OK) *address = (uint64_t)(uintptr_t)block;
	/* HR_NO_HOST_MEMORY means that the library's own records found no memory; here host memory is what was requested. */
	return status == HR_NO_HOST_MEMORY ? HR_OUT_OF_MEMORY : status;
}

hr_status hr__pinned_free(hr__device *pinned, uint64_t address, uint64_t bytes)
{
	return hr__call_host_free(pinned->physical, (void *)(uintptr_t)address, bytes);
}
