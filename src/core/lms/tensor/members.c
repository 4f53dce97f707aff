/* members.c - the list of a context's tensors: evicted ones behind those that may be resident. */
#include <string.h>

#include "core/base/status.h"
#include "core/lms/lms.h"

static void *grow_copy(const void *old, size_t used, size_t to)
{
	void *block;
	if (hr__os()->alloc(to, &block)) return NULL;
	if (used) memcpy(block, old, used);
	return block;
}

/* The arrays that are as long as the list of members. item_bytes() has the size of their items. */
struct arrays {
	void *of[3 + HR__EVICT_QUEUES];
};

static size_t item_bytes(unsigned array)
{
	const hr__lms *lms = NULL;
	const size_t items[] = { sizeof *lms->members, sizeof *lms->movable, sizeof *lms->order };
	return array < 3 ? items[array] : sizeof(hr__evict_item);
}

static struct arrays arrays_of(const hr__lms *lms)
{
	struct arrays arrays = { { lms->members, lms->movable, lms->order } };
	for (unsigned i = 0; i < HR__EVICT_QUEUES; i++) arrays.of[3 + i] = lms->queues[i].items;
	return arrays;
}

static void free_arrays(const struct arrays *arrays, size_t capacity)
{
	for (unsigned i = 0; i < 3 + HR__EVICT_QUEUES; i++)
		if (arrays->of[i]) hr__os()->free(arrays->of[i], capacity * item_bytes(i));
}

void hr__lms_free_members(hr__lms *lms)
{
	HR_ASSERT(!lms->member_count);
	struct arrays arrays = arrays_of(lms);
	free_arrays(&arrays, lms->member_capacity);
}

/* The arrays grow together, so that reclaiming never allocates. There are no queues if tensors are never
 * evicted. */
static hr_status reserve_member(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	if (lms->member_count < lms->member_capacity) return HR_OK;
	size_t capacity = lms->member_capacity ? lms->member_capacity * 2u : 64u;
	unsigned count = lms->enabled ? 3 + HR__EVICT_QUEUES : 3;
	struct arrays old = arrays_of(lms), arrays = { { NULL } };
	for (unsigned i = 0; i < count; i++) {
		size_t used = i == 0 ? lms->member_count : i < 3 ? 0 : lms->queues[i - 3].count;
		arrays.of[i] = grow_copy(old.of[i], used * item_bytes(i), capacity * item_bytes(i));
		if (arrays.of[i]) continue;
		free_arrays(&arrays, capacity);
		return hr__fail(HR_NO_HOST_MEMORY, "cannot get host memory for the list of %s's tensors", lms->allocator->name);
	}
	free_arrays(&old, lms->member_capacity);
	lms->members = arrays.of[0];
	lms->movable = arrays.of[1];
	lms->order = arrays.of[2];
	for (unsigned i = 0; i < HR__EVICT_QUEUES; i++) lms->queues[i].items = arrays.of[3 + i];
	lms->member_capacity = (uint32_t)capacity;
	return HR_OK;
}

static void put_member(hr__lms *lms, uint32_t at, hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	HR_ASSERT(at < lms->member_capacity);
	lms->members[at] = tensor;
	tensor->member = at;
}

static void swap_members(hr__lms *lms, uint32_t a, uint32_t b)
{
	HR_ASSERT(a < lms->member_count && b < lms->member_count);
	hr__tensor *first = lms->members[a];
	put_member(lms, a, lms->members[b]);
	put_member(lms, b, first);
}

void hr__lms_list_as_evicted(hr__lms *lms, hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	HR_ASSERT(lms->members[tensor->member] == tensor);
	if (tensor->member < lms->resident_count) swap_members(lms, tensor->member, --lms->resident_count);
}

void hr__lms_list_as_resident(hr__lms *lms, hr__tensor *tensor)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	HR_ASSERT(lms->members[tensor->member] == tensor);
	if (tensor->member >= lms->resident_count) swap_members(lms, tensor->member, lms->resident_count++);
}

hr_status hr__lms_add(hr__lms *lms, hr__tensor *tensor)
{
	hr__lock_take(&lms->lock);
	hr_status status = reserve_member(lms);
	if (!status) {
		put_member(lms, lms->member_count++, tensor);
		hr__lms_list_as_resident(lms, tensor);
	}
	hr__lock_release(&lms->lock);
	return status;
}

void hr__lms_remove(hr__lms *lms, hr__tensor *tensor)
{
	hr__lock_take(&lms->lock);
	hr__evict_queue_remove_all(lms, tensor);
	hr__lms_list_as_evicted(lms,
	                        tensor); /* so that the last member, which takes its index, is on the right side of resident_count */
	put_member(lms, tensor->member, lms->members[--lms->member_count]);
	hr__lock_release(&lms->lock);
}
