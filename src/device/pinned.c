/* pinned.c - host memory that copies run at full speed with, as a device.
 *
 * What moves to the host and back needs blocks there that are recycled in stream order: a block that a copy to the device still reads
 * must not be overwritten by a later copy from it. Allocators do that for the memory of a device, so host memory is given to them as one:
 *
 *     physical device     its streams, events, epoch
 *       GPU:0, GPU:1      logical devices: pages of the card
 *       GPU:0 host memory the same streams and epoch; no pages; plain memory is the backend's host_alloc and host_free
 *
 * There is one for each physical device, made when somebody first asks for it. No list shows it and no name finds it, so what it holds
 * is in no statistics but its own. Its record is the physical device's own in the registry's array: making it cannot fail for want of
 * one, and takes none from the devices of programs.
 *
 * Pinning is expensive: 65 ms per GiB where touched memory is registered, 600 ms where the driver allocates it. So allocators take it
 * in regions of HR__PINNED_SLAB and more (hr__device_region_min), and keep them. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/status.h"
#include "base/text.h"
#include "device/internal.h"

/* The simulated device has no memory behind it, on the host neither: there the host's own is no bound. */
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

/* Puts what 0 means in its place, and sees that the limit is possible. */
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

/* Whole pages: host memory comes in them, so a part of one would pass the limit. */
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
	if (hr__pool_set_reservable(&pinned->pool, reservable_of(limit))) {
		hr__store_relaxed(&pinned->limit, limit);
		return HR_OK;
	}
	hr__sizes size = HR__SIZES(before, hr__pool_reserved(pinned), limit);
	return hr__fail(
		HR_IN_USE,
		"the host pool of %s has a host_limit of %s and %s of it in use, so it cannot be made %s; close what uses it first",
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
	hr__pool_init(&pinned->pool, 0, reservable_of(limit));
	return HR_OK;
}

/* ---- memory ---- */

hr_status hr__pinned_alloc(hr__device *pinned, uint64_t bytes, uint64_t *address)
{
	void *block;
	hr_status status = hr__call_host_alloc(pinned->physical, bytes, &block);
	if (status == HR_OK) *address = (uint64_t)(uintptr_t)block;
	/* Elsewhere the host is where the library keeps its records; here it is what was asked for. */
	return status == HR_NO_HOST_MEMORY ? HR_OUT_OF_MEMORY : status;
}

hr_status hr__pinned_free(hr__device *pinned, uint64_t address, uint64_t bytes)
{
	return hr__call_host_free(pinned->physical, (void *)(uintptr_t)address, bytes);
}
