/* stats.c - statistics of a context, and its part of the allocator's. */
#include "core/base/struct.h"
#include "core/lms/context.h"

static int64_t count_pins(hr__lms *lms)
{
	int64_t pins = 0;
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count; i++) pins += hr__word_pins(hr__load_relaxed(&lms->members[i]->word));
	hr__lock_release(&lms->lock);
	return pins;
}

/* Fields that count from the first tensor or the last reset on. The others are current values, peaks, or properties of the active
 * plan. */
/* clang-format off */
#define COUNTED(X)                                                                                                          \
	X(bytes_reclaimed) X(bytes_copied_out) X(bytes_copied_in) X(num_evictions) X(num_clean_evictions) X(num_restores)       \
	X(num_single_reclaims) X(num_multi_reclaims) X(num_full_reclaims) X(num_planned_evictions) X(num_prefetches)            \
	X(num_prefetch_hits) X(num_prefetch_misses) X(num_prefetches_refused) X(stall_ns) X(num_steps) X(num_steps_planned)     \
	X(num_mismatches) X(num_defragmentations) X(bytes_defragged) X(num_pin_waits) X(num_repeats)     \
	X(num_drops) X(bytes_dropped) X(num_recomputes) X(num_failed_recomputes) X(recompute_ns) X(num_planned_recomputes)
/* clang-format on */

#define SINCE(lms, name) (hr__load_relaxed(&(lms)->stats.name) - hr__load_relaxed(&(lms)->base.name))

hr_status hr_lms_get_stats(hr_allocator handle, hr_lms_stats *stats)
{
	hr__lms *lms;
	hr_status status = hr__struct_check(&hr__struct_lms_stats, "hr_lms_get_stats", stats);
	if (!status) status = hr__lms_find(handle, &lms);
	if (status) return status;
	hr_lms_stats found = { .struct_size = sizeof found };
	hr__stall_evaluate(lms);
#define READ(name, text) found.name = hr__load_relaxed(&lms->stats.name);
	HR_LMS_STATS_TABLE(READ)
#undef READ
#define READ(name) found.name = SINCE(lms, name);
	COUNTED(READ)
#undef READ
	found.num_pins = count_pins(lms);
	found.bytes_pinned = hr__lms_pinned(lms);
	found.bytes_inactive = hr__lms_inactive(lms);
	if (lms->host) {
		hr__host_usage usage = hr__host_get_usage(lms->host);
		found.host_bytes = usage.pinned_bytes;
		found.peak_host_bytes = usage.peak_pinned_bytes;
		found.spilled_bytes = usage.spilled_bytes;
	}
	hr__struct_out(&hr__struct_lms_stats, stats, &found);
	return HR_OK;
}

void hr__lms_stats_add(hr__allocator *allocator, hr_stats *stats)
{
	hr__lms *lms = hr__load_acquire(&allocator->lms);
	if (!lms) return; /* its context has ended since the caller looked */
	stats->bytes_inactive = hr__lms_inactive(lms);
	stats->bytes_reclaimed += SINCE(lms, bytes_reclaimed);
	stats->num_single_reclaims += SINCE(lms, num_single_reclaims);
	stats->num_multi_reclaims += SINCE(lms, num_multi_reclaims);
	stats->num_full_reclaims += SINCE(lms, num_full_reclaims);
	stats->num_defragmentations += SINCE(lms, num_defragmentations);
	stats->bytes_defragged += SINCE(lms, bytes_defragged);
}

void hr__lms_stats_reset(hr__allocator *allocator)
{
	hr__lms *lms = hr__load_acquire(&allocator->lms);
	if (!lms) return;
#define REBASE(name) hr__store_relaxed(&lms->base.name, hr__load_relaxed(&lms->stats.name));
	COUNTED(REBASE)
#undef REBASE
	hr__store_relaxed(&lms->stats.peak_bytes_out, hr__load_relaxed(&lms->stats.bytes_out_now));
	hr__store_relaxed(&lms->stats.peak_bytes_dropped, hr__load_relaxed(&lms->stats.bytes_dropped_now));
	if (lms->host) hr__host_reset_peaks(lms->host);
}
