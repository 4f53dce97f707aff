/* properties.c - properties of a device, for programs (hr_device_get_info) and for the layers above. */
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/device/internal.h"

#define PLACE "/job:localhost/replica:0/task:0"

/* Bytes of a physical device that Headroom holds, including idle pages. */
static uint64_t held_bytes(const hr__physical *physical)
{
	uint64_t held = 0;
	for (uint32_t i = 0; i < physical->part_count; i++) {
		hr__device *part = physical->parts[i];
		if (!hr__load_acquire(&part->ready)) continue;
		hr__lock_take(&part->pool.lock);
		held += part->pool.held;
		hr__lock_release(&part->pool.lock);
	}
	return held;
}

uint64_t hr__device_obtainable(const hr__device *device)
{
	hr__physical *physical = device->physical;
	uint64_t free_bytes, total_bytes, bytes;
	if (device->pinned_for) {
		bool known = hr__pinned_is_real(physical) && hr__pinned_memory_info(&free_bytes, &total_bytes) == HR_OK;
		return known ? free_bytes : UINT64_MAX;
	}
	if (hr__call_memory_info(physical, &free_bytes, &total_bytes) != HR_OK) return UINT64_MAX;
	bytes = free_bytes;
	for (uint32_t i = 0; i < physical->part_count; i++) {
		hr__device *part = physical->parts[i];
		if (!hr__load_acquire(&part->ready)) continue;
		hr__lock_take(&part->pool.lock);
		bytes += part->pool.page_bytes * (uint64_t)part->pool.idle_count;
		hr__lock_release(&part->pool.lock);
	}
	return bytes;
}

HR_API hr_status hr_device_allow_access(hr_device handle, hr_device peer_handle)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	hr__device *peer = device ? hr__device_of(peer_handle, &status) : NULL;
	if (!peer) return status;
	if (device->physical == peer->physical) return HR_OK;
	if (device->physical->table != peer->physical->table || device->pinned_for || peer->pinned_for)
		return hr__fail(HR_UNSUPPORTED, "%s cannot access memory of %s: they are not devices of one kind", peer->name, device->name);
	return hr__call_allow_access(device->physical, peer->physical);
}

HR_API hr_status hr_device_get_info(hr_device handle, hr_device_info *info)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	status = hr__struct_check(&hr__struct_device_info, "hr_device_get_info", info);
	if (status != HR_OK) return status;
	hr__physical *physical = device->physical;
	uint64_t free_bytes, total_bytes;
	status = device->pinned_for ? hr__pinned_memory_info(&free_bytes, &total_bytes)
	                            : hr__call_memory_info(physical, &free_bytes, &total_bytes);
	if (status != HR_OK) return status;
	uint64_t taken = total_bytes > free_bytes ? total_bytes - free_bytes : 0;
	uint64_t held = device->pinned_for ? hr__page_pool_reserved(device) : held_bytes(physical);
	hr_device_info filled = { .physical_index = physical->number,
		                      .logical_count = physical->part_count,
		                      .total_bytes = total_bytes,
		                      .free_bytes = free_bytes,
		                      .limit_bytes = hr__device_limit(device),
		                      .page_bytes = device->pool.page_bytes,
		                      .reserved_bytes = hr__page_pool_reserved(device),
		                      .other_bytes = taken > held ? taken - held : 0 };
	snprintf(filled.name, sizeof filled.name, "%s", device->name);
	snprintf(filled.full_name, sizeof filled.full_name, PLACE "/device:%.24s", device->name);
	snprintf(filled.backend, sizeof filled.backend, "%s", physical->table->name);
	if (device->pinned_for) snprintf(filled.description, sizeof filled.description, "pinned host memory");
	else snprintf(filled.description, sizeof filled.description, "%s", physical->caps.description);
	hr__struct_out(&hr__struct_device_info, info, &filled);
	return HR_OK;
}

HR_API bool hr_device_is_emulated(hr_device handle)
{
	hr_status status;
	hr__last before = hr__last_get();
	const hr__device *device = hr__device_of(handle, &status);
	hr__last_set(&before);
	return device && !strcmp(device->physical->table->name, hr__backend_emulated.name);
}

hr_device hr__device_handle(const hr__device *device)
{
	return (hr_device){ hr__load_relaxed(&device->handle) };
}

const char *hr__device_name(const hr__device *device)
{
	return device->name;
}

uint64_t hr__device_page_bytes(const hr__device *device)
{
	return device->pool.page_bytes;
}

uint64_t hr__device_map_alignment(const hr__device *device)
{
	return device->physical->caps.map_alignment;
}

uint64_t hr__device_limit(const hr__device *device)
{
	return hr__load_relaxed(&device->limit);
}

uint64_t hr__device_uncapped(const hr__device *device)
{
	return device->pinned_for ? hr__device_limit(device) : device->uncapped;
}

bool hr__device_is_limited(const hr__device *device)
{
	return device->pinned_for || hr__device_limit(device) < device->physical->caps.total_bytes;
}

const char *hr__device_limit_setting(const hr__device *device)
{
	if (device->pinned_for) return "host_limit";
	return hr__device_limit(device) < device->uncapped ? "HEADROOM_LIMIT in the environment" : "memory_limit of hr_device_set_logical";
}

uint64_t hr__device_reservable(const hr__device *device)
{
	return hr__load_relaxed(&device->pool.reservable);
}

bool hr__device_has_plain(const hr__device *device)
{
	return device->pinned_for || device->physical->table->plain_alloc != NULL;
}

bool hr__device_host_accessible(const hr__device *device)
{
	return device->pinned_for ? hr__pinned_is_real(device->physical) : device->physical->caps.host_accessible;
}

const char *hr__device_pinned_for(const hr__device *device)
{
	return device->pinned_for ? device->pinned_for->name : NULL;
}

uint64_t hr__device_region_min(const hr__device *device)
{
	return device->pinned_for ? HR__PINNED_SLAB : 0;
}

uint32_t hr__device_index(const hr__device *device)
{
	return device->index;
}
