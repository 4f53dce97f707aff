/* limit.h - the allocator's limit, and the bytes that it holds of its device.
 *
 * Memory from the device is accounted in two stages. hr__limit_claim fails if it would pass the limit. hr__limit_hold follows once
 * the device has provided the memory; hr__limit_unclaim, if the device refused. hr__limit_unhold ends the claim too.
 *
 * [claimed] is raised before the device is asked for memory, so that threads that grow at the same time cannot exceed the limit
 * together; [reserved] follows when the device has provided it. So claimed >= reserved, and claimed <= limit. */
#ifndef HR_MEMORY_LIMIT_H
#define HR_MEMORY_LIMIT_H

#include "core/memory/allocator.h"

/* Returns the new value. */
static inline int64_t hr__limit_raise(hr__atomic_i64 *value, hr__atomic_i64 *peak, int64_t bytes)
{
	int64_t now = hr__fetch_add_relaxed(value, bytes) + bytes, seen = hr__load_relaxed(peak);
	while (now > seen && !hr__cas_acq_rel(peak, &seen, now)) {
	}
	return now;
}

static inline void hr__limit_lower(hr__atomic_i64 *value, uint64_t bytes)
{
	int64_t before = hr__fetch_add_relaxed(value, -(int64_t)bytes);
	HR_ASSERT(before >= (int64_t)bytes);
	(void)before;
}

static inline bool hr__limit_claim(hr__allocator *allocator, uint64_t bytes)
{
	int64_t seen = hr__load_relaxed(&allocator->claimed);
	do {
		if (bytes > allocator->limit || (uint64_t)seen > allocator->limit - bytes) return false;
	} while (!hr__cas_acq_rel(&allocator->claimed, &seen, seen + (int64_t)bytes));
	return true;
}

static inline void hr__limit_unclaim(hr__allocator *allocator, uint64_t bytes)
{
	hr__limit_lower(&allocator->claimed, bytes);
}

static inline void hr__limit_hold(hr__allocator *allocator, uint64_t bytes)
{
	int64_t now = hr__limit_raise(&allocator->reserved, &allocator->peak_reserved, (int64_t)bytes);
	HR_ASSERT(now > 0 && (uint64_t)now <= allocator->limit); /* it was claimed */
	(void)now;
	hr__limit_raise(&allocator->usage->reserved, &allocator->usage->peak_reserved, (int64_t)bytes);
}

static inline void hr__limit_unhold(hr__allocator *allocator, uint64_t bytes)
{
	hr__limit_lower(&allocator->reserved, bytes);
	hr__limit_lower(&allocator->usage->reserved, bytes);
	hr__limit_unclaim(allocator, bytes);
}

#endif
