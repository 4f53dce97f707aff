/* fixed.c - tensors with a stable address: eviction unmaps their pages, a restore maps other pages at the same address.
 *
 *     resident    its pages are mapped at its address (core/memory/bfc/span.c)
 *     evict       its contents are copied to the host, in stream order like any tensor's. Unmapping is not ordered by streams, so
 *                 then the host waits, without a lock: for the copy, which waited for all users of the tensor before it, and for
 *                 later users. The pages return to the device's pool; the addresses stay reserved
 *     restore     other pages are allocated and mapped at the same address; the contents follow on the in stream
 *
 * A fixed tensor smaller than a page is not handled here: it is a block like any other, and is never evicted
 * (HR__NEVER_EVICT_SMALL).
 *
 * SHADOWS (HR_SAFETY_HOST_MAPPED). While the tensor is evicted, host pages are mapped in place of its own, so that an access
 * without a pin reads its contents over the link. They belong to the tensor from its first eviction on and have an address range of
 * their own. They are in one of three places:
 *
 *     IN_OWN_RANGE    in their own address range: the tensor is resident or in transit. Copies from and to the host use this range
 *     AT_TENSOR       at the tensor's address: it is evicted
 *     UNMAPPED        not mapped: between the two, and after the device refused to map them. Their contents stay valid
 *
 *     evict       copy to IN_OWN_RANGE, wait, UNMAPPED, unmap the tensor's pages, AT_TENSOR
 *     restore     allocate pages, IN_OWN_RANGE, map the pages, copy from IN_OWN_RANGE. Until the pages are allocated, the shadow is
 *                 AT_TENSOR
 *
 * A write through the address of an evicted tensor is kept, since its contents are there. It is still a missing pin, and verify
 * reports it. If the device refuses to map the shadow AT_TENSOR, the safety is lost, not the contents.
 *
 * While the tensor is resident, the shadow is a host copy like any other, valid until the tensor is written. Its pages are kept
 * then, because allocating them is slow, but they are the first to be released when the host is full. */
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/lms/lms.h"
#include "core/memory/bfc/tensor_block.h"

typedef enum shadow_place { UNMAPPED, IN_OWN_RANGE, AT_TENSOR } shadow_place;

struct hr__shadow {
	shadow_place place;
	uint32_t count;
	uint64_t bytes;
	uint64_t own_range; /* its own address range */
	hr_page pages[];
};

static uint64_t bit(hr_stream stream)
{
	return hr__stream_bit(stream);
}

/* Waits until no stream uses its memory. A copy to the host has waited for all earlier users of the tensor (move.c). */
static hr_status wait_idle(const hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	const hr__lms *lms = tensor->lms;
	uint64_t copied = hr__load_relaxed(&tensor->copy_epoch), streams = hr__load_relaxed(&tensor->use_streams);
	hr_status status = copied ? hr__device_wait_idle(lms->device, bit(lms->out_stream), copied) : HR_OK;
	if (!status && streams) status = hr__device_wait_idle(lms->device, streams, hr__load_relaxed(&tensor->use_epoch));
	return status;
}

/* ---- shadows ---- */

static uint64_t address_at(const hr__tensor *tensor, shadow_place where)
{
	return where == IN_OWN_RANGE ? tensor->shadow->own_range : hr__span_address(tensor->span);
}

/* Moves the shadow to another place, where nothing is mapped. On failure it is where it was, or UNMAPPED. */
static hr_status map_shadow(const hr__tensor *tensor, shadow_place where)
{
	HR_ASSERT(tensor->shadow);
	HR_ASSERT(where != AT_TENSOR || !hr__span_has_memory(tensor->span));
	hr__device *device = tensor->lms->device;
	struct hr__shadow *shadow = tensor->shadow;
	hr_status status = HR_OK;
	if (shadow->place == where) return HR_OK;
	if (shadow->place != UNMAPPED) status = hr__device_unmap(device, address_at(tensor, shadow->place), shadow->count);
	if (status) return status;
	shadow->place = UNMAPPED;
	if (where != UNMAPPED) status = hr__device_map_host(device, address_at(tensor, where), shadow->pages, shadow->count);
	if (!status) shadow->place = where;
	return status;
}

static size_t struct_bytes(uint32_t count)
{
	return sizeof(struct hr__shadow) + count * sizeof(hr_page);
}

static hr_status make_shadow(hr__tensor *tensor)
{
	HR_ASSERT(!tensor->shadow && tensor->span);
	hr__device *device = tensor->lms->device;
	void *block;
	uint64_t bytes = hr__span_bytes(tensor->span);
	uint32_t count = (uint32_t)(bytes / tensor->lms->allocator->page);
	int error = hr__os()->alloc(struct_bytes(count), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for the host pages of an evicted tensor");
	struct hr__shadow *shadow = block;
	*shadow = (struct hr__shadow){ .place = UNMAPPED, .count = count, .bytes = bytes };
	hr_status status = hr__device_reserve(device, bytes, &shadow->own_range);
	if (!status) {
		status = hr__host_pages_take(device, count, shadow->pages);
		if (status) hr__device_release(device, shadow->own_range, bytes);
	}
	if (status) hr__os()->free(block, struct_bytes(count));
	else tensor->shadow = shadow;
	return status;
}

/* The shadow is UNMAPPED and idle. */
static void free_shadow(hr__tensor *tensor)
{
	HR_ASSERT(tensor->shadow);
	hr__device *device = tensor->lms->device;
	struct hr__shadow *shadow = tensor->shadow;
	hr__host_pages_give(device, shadow->pages, shadow->count);
	hr__device_release(device, shadow->own_range, shadow->bytes); /* an address range that the device keeps costs nothing */
	hr__os()->free(shadow, struct_bytes(shadow->count));
	tensor->shadow = NULL;
}

static hr_status move_shadow_aside(void *tensor)
{
	return map_shadow(tensor, IN_OWN_RANGE);
}

hr_status hr__fixed_store_shadow(hr__tensor *tensor, hr__host_copy *copy)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_EVICTING && tensor->address);
	hr__lms *lms = tensor->lms;
	hr_status status = tensor->shadow ? HR_OK : make_shadow(tensor);
	if (!status) status = map_shadow(tensor, IN_OWN_RANGE);
	if (status) return status;
	uint64_t own_range = tensor->shadow->own_range;
	status = hr_stream_copy(lms->device_handle, (void *)(uintptr_t)own_range, (void *)(uintptr_t)tensor->address, tensor->bytes,
	                        HR_COPY_ON_DEVICE, lms->out_stream);
	if (status) return status;
	hr__host_count(lms->host, (int64_t)tensor->bytes);
	*copy = (hr__host_copy){ .address = own_range, .bytes = tensor->bytes };
	return HR_OK;
}

hr_status hr__fixed_load_shadow(hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_RESTORING && tensor->address && tensor->shadow);
	hr__lms *lms = tensor->lms;
	hr_status status = map_shadow(tensor, IN_OWN_RANGE);
	if (status) return status;
	return hr_stream_copy(lms->device_handle, (void *)(uintptr_t)tensor->address, (void *)(uintptr_t)tensor->shadow->own_range,
	                      tensor->bytes, HR_COPY_ON_DEVICE, lms->in_stream);
}

void hr__fixed_drop_shadow(hr__tensor *tensor)
{
	HR_ASSERT(!tensor->copy.bytes); /* forgotten first */
	hr__host_count(tensor->lms->host, -(int64_t)tensor->bytes);
}

/* Claims a resident tensor whose shadow can be released: first one whose shadow is not valid. NULL if there is none. */
static hr__tensor *claim_shadowed(hr__lms *lms, const hr__tensor *except)
{
	hr__tensor *found = NULL;
	hr__lock_take(&lms->lock);
	for (int good = 0; good < 2 && !found; good++) {
		for (uint32_t i = 0; i < lms->member_count && !found; i++) {
			hr__tensor *other = lms->members[i];
			if (other == except || !hr__tensor_is_shadowed(other)) continue;
			if (!hr__state_begin_eviction(other, hr__load_relaxed(&other->word))) continue;
			if (other->shadow && (good ? !hr__load_relaxed(&other->evict_first) : !other->copy.bytes)) found = other;
			else hr__state_end_eviction(other, HR__PLACE_RESIDENT);
		}
	}
	hr__lock_release(&lms->lock);
	return found;
}

bool hr__fixed_release_shadows(hr__lms *lms, const hr__tensor *except, uint64_t bytes)
{
	uint64_t freed = 0;
	while (freed < bytes) {
		hr__tensor *tensor = claim_shadowed(lms, except);
		if (!tensor) break;
		hr__lms_begin_move(lms);
		hr_status status = wait_idle(tensor);
		if (!status) status = map_shadow(tensor, UNMAPPED);
		if (!status) {
			hr__lock_take(&lms->lock);
			bool had_copy = tensor->copy.bytes != 0;
			hr__state_set_copy(tensor, (hr__host_copy){ 0 });
			if (had_copy) hr__fixed_drop_shadow(tensor);
			hr__lock_release(&lms->lock);
			freed += tensor->shadow->bytes;
			free_shadow(tensor);
		}
		hr__state_end_eviction(tensor, HR__PLACE_RESIDENT);
		hr__lms_end_move(lms);
		if (status) break;
	}
	return freed > 0;
}

/* ---- memory ---- */

hr_status hr__fixed_map(hr__tensor *tensor, const hr_request *request, bool inactive)
{
	HR_ASSERT(hr__tensor_owns_pages(tensor) && hr__state_place(tensor) == HR__PLACE_RESTORING);
	hr_status status = HR_OK;
	if (!tensor->span) {
		status = hr__span_take(tensor->lms->allocator, request, &tensor->span);
	} else if (!hr__span_has_memory(tensor->span)) {
		status = hr__span_occupy(tensor->span, request, inactive, tensor->shadow ? move_shadow_aside : NULL, tensor);
		if (status && tensor->shadow) map_shadow(tensor, AT_TENSOR); /* back where it was */
	} else if (inactive) {                                           /* pages left by a restore that failed */
		hr__meters_add_inactive(tensor->lms->allocator, (int64_t)hr__span_bytes(tensor->span));
	}
	if (status) return status;
	tensor->address = hr__span_address(tensor->span);
	HR_ASSERT(tensor->device_bytes == hr__span_bytes(tensor->span));
	return HR_OK;
}

/* Unmaps its memory, which is idle. */
static hr_status unmap_pages(const hr__tensor *tensor)
{
	HR_ASSERT(tensor->span && hr__span_has_memory(tensor->span));
	hr_status status = tensor->shadow ? map_shadow(tensor, UNMAPPED) : HR_OK;
	if (status) return status;
	status = hr__span_vacate(tensor->span);
	if (tensor->shadow) map_shadow(tensor, status ? IN_OWN_RANGE : AT_TENSOR);
	return status;
}

hr_status hr__fixed_unmap(hr__tensor *tensor)
{
	HR_ASSERT(hr__tensor_owns_pages(tensor) && hr__state_place(tensor) == HR__PLACE_EVICTING);
	hr_status status = wait_idle(tensor);
	if (!status) status = unmap_pages(tensor);
	return status;
}

void hr__fixed_undo_map(hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_RESTORING && tensor->address);
	hr__lms *lms = tensor->lms;
	/* Part of the contents may be under way already. */
	if (!hr__device_wait_idle(lms->device, bit(lms->in_stream), hr__device_epoch(lms->device))) unmap_pages(tensor);
	tensor->address = 0;
}

hr_status hr__fixed_release(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	hr_status status = HR_OK;
	if (!tensor->span) return HR_OK;
	if (tensor->address) status = wait_idle(tensor);
	else if (hr__span_has_memory(tensor->span)) /* left by a restore that failed */
		status = hr__device_wait_idle(lms->device, bit(lms->in_stream) | bit(lms->out_stream), hr__device_epoch(lms->device));
	if (!status && tensor->shadow) status = map_shadow(tensor, UNMAPPED);
	if (!status) status = hr__span_give(tensor->span);
	if (status) return status;
	tensor->span = NULL;
	if (tensor->shadow) free_shadow(tensor);
	return HR_OK;
}

void hr__fixed_abandon(hr__tensor *tensor)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_DESTROYING && tensor->span);
	if (tensor->shadow) free_shadow(tensor);
	hr__span_abandon(tensor->span);
	tensor->span = NULL;
}
