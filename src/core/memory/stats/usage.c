/* usage.c - totals over all allocators of a device: which allocators belong to it, and what closed ones leave behind. */
#include <string.h>

#include "core/memory/allocator.h"

hr__usage hr__usages[HR__MAX_DEVICES];

void hr__usage_prepare(hr__usage *usage)
{
	HR_ASSERT(hr__allocators_are_locked());
	if (!usage->lock.rank) hr__lock_init(&usage->lock, HR__RANK_METER);
}

/* Starts the sums over all allocators when the device gets its second one. */
static void start_sharing(hr__allocator *first)
{
	hr__usage *usage = first->usage;
	HR_ASSERT(hr__allocators_are_locked() && !first->next_on_device);
	int64_t in_use, peak;
	hr__caches_stop(first);
	hr__shards_lock(first);
	hr__lock_take(first->meter_lock);
	hr__meters_in_use(first, &in_use, &peak);
	hr__owner_max(&usage->peak, peak);
	hr__owner_max(&usage->peak_active, hr__load_relaxed(&first->active) ? hr__load_relaxed(&first->peak_active) : peak);
	hr__owner_max(&usage->peak_error, hr__load_relaxed(&first->peak_error));
	hr__store_relaxed(&usage->shared, 1);
	hr__store_relaxed(&first->metered, 1);
	hr__meters_exact(first);
	hr__lock_release(first->meter_lock);
	hr__shards_unlock(first);
	hr__caches_start(first);
}

void hr__usage_join(hr__allocator *allocator)
{
	hr__usage *usage = allocator->usage;
	HR_ASSERT(hr__allocators_are_locked() && !allocator->caches && !allocator->next_on_device);
	uint32_t count = hr__load_relaxed(&usage->allocators);
	if (count == 1 && !hr__load_relaxed(&usage->shared)) start_sharing(usage->first);
	hr__shards_lock(allocator); /* hr__meters_exact expects the locks, though no other thread uses the allocator yet */
	hr__lock_take(&usage->lock);
	allocator->next_on_device = usage->first;
	usage->first = allocator;
	hr__store_relaxed(&usage->allocators, count + 1);
	hr__store_relaxed(&allocator->metered, hr__load_relaxed(&usage->shared));
	hr__meters_exact(allocator);
	hr__lock_release(&usage->lock);
	hr__shards_unlock(allocator);
}

void hr__usage_leave(hr__allocator *allocator)
{
	hr__usage *usage = allocator->usage;
	HR_ASSERT(hr__allocators_are_locked() && !allocator->caches);
	HR_ASSERT(hr__load_relaxed(&usage->allocators) > 0);
	hr__stats_keep_counts(allocator);
	hr__lock_take(&usage->lock);
	hr__allocator **at = &usage->first;
	while (*at != allocator) {
		HR_ASSERT(*at);
		at = &(*at)->next_on_device;
	}
	*at = allocator->next_on_device;
	hr__owner_add(&usage->levels, -hr__load_relaxed(&allocator->levels));
	hr__owner_add(&usage->granted, -hr__load_relaxed(&allocator->granted));
	if (!hr__load_relaxed(&usage->shared)) {
		int64_t peak = hr__load_relaxed(&allocator->peak);
		hr__owner_max(&usage->peak, peak);
		hr__owner_max(&usage->peak_active, hr__load_relaxed(&allocator->active) ? hr__load_relaxed(&allocator->peak_active) : peak);
		hr__owner_max(&usage->peak_error, hr__load_relaxed(&allocator->peak_error));
	} else if (!hr__load_relaxed(&usage->active)) {
		hr__owner_max(&usage->peak_active, hr__load_relaxed(&usage->peak));
	}
	hr__store_relaxed(&usage->allocators, hr__load_relaxed(&usage->allocators) - 1);
	if (!usage->first) {
		hr__store_relaxed(&usage->shared, 0);
		hr__store_relaxed(&usage->active, 0);
	}
	hr__lock_release(&usage->lock);
}

void hr__usages_reset(void)
{
	for (uint32_t i = 0; i < HR__MAX_DEVICES; i++) {
		HR_ASSERT(hr__forked || !hr__usages[i].first);
		memset(&hr__usages[i], 0, sizeof hr__usages[i]);
	}
}
