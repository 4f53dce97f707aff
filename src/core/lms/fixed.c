/* fixed.c - tensors with a stable address: eviction unmaps their pages, a restore maps other pages at the same address.
 *
 *     resident    its pages are mapped at its address (core/memory/bfc/span.c)
 *     evict       its contents are copied to the host, in stream order like any tensor's. Unmapping is not ordered by streams, so
 *                 then the host waits, without a lock: for the copy, which waited for all users of the tensor before it, and for
 *                 later users. The pages return to the device's pool; the addresses stay reserved
 *     restore     other pages are allocated and mapped at the same address; the contents follow on the in stream
 *
 * A fixed tensor smaller than a page is not handled here: it is a block like any other, and is never evicted (HR__STAYS_SMALL).
 *
 * SHADOWS (HR_SAFETY_HOST_MAPPED). While the tensor is evicted, host pages are mapped in place of its own, so that an access
 * without a pin reads its contents over the link. They belong to the tensor from its first eviction on and have an address range of
 * their own. They are in one of three places:
 *
 *     ASIDE    in their own address range: the tensor is resident or in transit. Copies from and to the host use this range
 *     UNDER    at the tensor's address: it is evicted
 *     LOOSE    not mapped: between the two, and after the device refused to map them. Their contents stay valid
 *
 *     evict       copy to ASIDE, wait, LOOSE, unmap the tensor's pages, UNDER
 *     restore     allocate pages, ASIDE, map the pages, copy from ASIDE. Until the pages are allocated, the shadow is UNDER
 *
 * A write through the address of an evicted tensor is kept, since its contents are there. It is still a missing pin, and verify
 * reports it. If the device refuses to map the shadow UNDER, the safety is lost, not the contents.
 *
 * While the tensor is resident, the shadow is a host copy like any other, valid until the tensor is written. Its pages are kept
 * then, because allocating them is slow, but they are the first to be released when the host is full. */
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/lms/lms.h"
#include "core/memory/bfc/tensor_block.h"

typedef enum spot { LOOSE, ASIDE, UNDER } spot;

struct hr__shadow {
	spot spot;
	uint32_t count;
	uint64_t bytes;
	uint64_t aside; /* its own address range */
	hr_page pages[];
};

static uint64_t bit(hr_stream stream)
{
	return hr__stream_bit(stream);
}

/* Waits until no stream uses its memory. A copy to the host has waited for all earlier users of the tensor (move.c). */
static hr_status wait_idle(const hr__tensor *tensor)
{
	const hr__lms *lms = tensor->lms;
	uint64_t copied = hr__load_relaxed(&tensor->out_epoch), streams = hr__load_relaxed(&tensor->streams);
	hr_status status = copied ? hr__device_wait_idle(lms->device, bit(lms->out), copied) : HR_OK;
	if (!status && streams) status = hr__device_wait_idle(lms->device, streams, hr__load_relaxed(&tensor->epoch));
	return status;
}

/* ---- shadows ---- */

static uint64_t address_at(const hr__tensor *tensor, spot where)
{
	return where == ASIDE ? tensor->shadow->aside : hr__span_address(tensor->span);
}

/* Moves the shadow to another place, where nothing is mapped. On failure it is where it was, or LOOSE. */
static hr_status put(const hr__tensor *tensor, spot where)
{
	hr__device *device = tensor->lms->device;
	struct hr__shadow *shadow = tensor->shadow;
	hr_status status = HR_OK;
	if (shadow->spot == where) return HR_OK;
	if (shadow->spot != LOOSE) status = hr__device_unmap(device, address_at(tensor, shadow->spot), shadow->count);
	if (status) return status;
	shadow->spot = LOOSE;
	if (where != LOOSE) status = hr__device_map_host(device, address_at(tensor, where), shadow->pages, shadow->count);
	if (!status) shadow->spot = where;
	return status;
}

static size_t struct_bytes(uint32_t count)
{
	return sizeof(struct hr__shadow) + count * sizeof(hr_page);
}

static hr_status make_shadow(hr__tensor *tensor)
{
	hr__device *device = tensor->lms->device;
	void *block;
	uint64_t bytes = hr__span_bytes(tensor->span);
	uint32_t count = (uint32_t)(bytes / tensor->lms->allocator->page);
	int error = hr__os()->alloc(struct_bytes(count), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for what is under a tensor that is out");
	struct hr__shadow *shadow = block;
	*shadow = (struct hr__shadow){ .spot = LOOSE, .count = count, .bytes = bytes };
	hr_status status = hr__device_reserve(device, bytes, &shadow->aside);
	if (!status) {
		status = hr__host_pages_take(device, count, shadow->pages);
		if (status) hr__device_release(device, shadow->aside, bytes);
	}
	if (status) hr__os()->free(block, struct_bytes(count));
	else tensor->shadow = shadow;
	return status;
}

/* The shadow is LOOSE and idle. */
static void free_shadow(hr__tensor *tensor)
{
	hr__device *device = tensor->lms->device;
	struct hr__shadow *shadow = tensor->shadow;
	hr__host_pages_give(device, shadow->pages, shadow->count);
	hr__device_release(device, shadow->aside, shadow->bytes); /* an address range that the device keeps costs nothing */
	hr__os()->free(shadow, struct_bytes(shadow->count));
	tensor->shadow = NULL;
}

static hr_status step_aside(void *tensor)
{
	return put(tensor, ASIDE);
}

hr_status hr__shadow_store(hr__tensor *tensor, hr__host_copy *copy)
{
	hr__lms *lms = tensor->lms;
	hr_status status = tensor->shadow ? HR_OK : make_shadow(tensor);
	if (!status) status = put(tensor, ASIDE);
	if (status) return status;
	uint64_t aside = tensor->shadow->aside;
	status = hr_copy(lms->device_handle, (void *)(uintptr_t)aside, (void *)(uintptr_t)tensor->address, tensor->bytes,
	                 HR_COPY_ON_DEVICE, lms->out);
	if (status) return status;
	hr__host_count(lms->host, (int64_t)tensor->bytes);
	*copy = (hr__host_copy){ .address = aside, .bytes = tensor->bytes };
	return HR_OK;
}

hr_status hr__shadow_load(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	hr_status status = put(tensor, ASIDE);
	if (status) return status;
	return hr_copy(lms->device_handle, (void *)(uintptr_t)tensor->address, (void *)(uintptr_t)tensor->shadow->aside, tensor->bytes,
	               HR_COPY_ON_DEVICE, lms->in);
}

void hr__shadow_drop(hr__tensor *tensor)
{
	hr__host_count(tensor->lms->host, -(int64_t)tensor->copy.bytes);
	tensor->copy = (hr__host_copy){ 0 };
}

/* Claims a resident tensor whose shadow can be released: first one whose shadow is not valid. NULL if there is none. */
static hr__tensor *claim_shadowed(hr__lms *lms, const hr__tensor *except)
{
	hr__tensor *found = NULL;
	hr__lock_take(&lms->lock);
	for (int good = 0; good < 2 && !found; good++) {
		for (uint32_t i = 0; i < lms->member_count && !found; i++) {
			hr__tensor *other = lms->members[i];
			if (other == except || !hr__is_shadowed(other)) continue;
			if (!hr__tensor_claim(other, hr__load_relaxed(&other->word), HR__HOME, HR__LEAVING)) continue;
			if (other->shadow && (good ? !hr__load_relaxed(&other->leaves) : !other->copy.bytes)) found = other;
			else hr__tensor_settle(other, HR__HOME, 0);
		}
	}
	hr__lock_release(&lms->lock);
	return found;
}

bool hr__shadows_shrink(hr__lms *lms, const hr__tensor *except, uint64_t bytes)
{
	uint64_t freed = 0;
	while (freed < bytes) {
		hr__tensor *tensor = claim_shadowed(lms, except);
		if (!tensor) break;
		hr__lms_enter(lms);
		hr_status status = wait_idle(tensor);
		if (!status) status = put(tensor, LOOSE);
		if (!status) {
			hr__lock_take(&lms->lock);
			if (tensor->copy.bytes) hr__shadow_drop(tensor);
			hr__store_relaxed(&tensor->synced, 0);
			hr__lock_release(&lms->lock);
			freed += tensor->shadow->bytes;
			free_shadow(tensor);
		}
		hr__tensor_settle(tensor, HR__HOME, 0);
		hr__lms_leave(lms);
		if (status) break;
	}
	return freed > 0;
}

/* ---- memory ---- */

hr_status hr__fixed_take(hr__tensor *tensor, const hr_request *request, bool idle)
{
	hr_status status = HR_OK;
	if (!tensor->span) {
		status = hr__span_take(tensor->lms->allocator, request, &tensor->span);
		if (!status) tensor->counted = true;
	} else if (!hr__span_has_memory(tensor->span)) {
		status = hr__span_occupy(tensor->span, request, idle, tensor->shadow ? step_aside : NULL, tensor);
		if (status && tensor->shadow) put(tensor, UNDER); /* back where it was */
	} else if (idle) { /* pages left by a restore that failed */
		hr__meters_idle(tensor->lms->allocator, (int64_t)hr__span_bytes(tensor->span));
	}
	if (status) return status;
	tensor->address = hr__span_address(tensor->span);
	tensor->device_bytes = hr__span_bytes(tensor->span);
	return HR_OK;
}

/* Unmaps its memory, which is idle. */
static hr_status vacate(const hr__tensor *tensor)
{
	hr_status status = tensor->shadow ? put(tensor, LOOSE) : HR_OK;
	if (status) return status;
	status = hr__span_vacate(tensor->span);
	if (tensor->shadow) put(tensor, status ? ASIDE : UNDER);
	return status;
}

hr_status hr__fixed_leave(hr__tensor *tensor)
{
	hr_status status = wait_idle(tensor);
	if (!status) status = vacate(tensor);
	return status;
}

void hr__fixed_undo(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	/* Part of the contents may be under way already. */
	if (!hr__device_wait_idle(lms->device, bit(lms->in), hr__device_epoch(lms->device))) vacate(tensor);
	tensor->address = 0;
}

hr_status hr__fixed_end(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	hr_status status = HR_OK;
	if (!tensor->span) return HR_OK;
	if (tensor->address) status = wait_idle(tensor);
	else if (hr__span_has_memory(tensor->span)) /* left by a restore that failed */
		status = hr__device_wait_idle(lms->device, bit(lms->in) | bit(lms->out), hr__device_epoch(lms->device));
	if (!status && tensor->shadow) status = put(tensor, LOOSE);
	if (!status) status = hr__span_give(tensor->span);
	if (status) return status;
	tensor->span = NULL;
	if (tensor->shadow) free_shadow(tensor);
	return HR_OK;
}

void hr__fixed_abandon(hr__tensor *tensor)
{
	if (tensor->shadow) free_shadow(tensor);
	hr__span_abandon(tensor->span);
	tensor->span = NULL;
}
