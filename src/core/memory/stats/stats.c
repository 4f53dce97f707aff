/* stats.c - reading the statistics.
 *
 * Counters are written under a shard's lock, or by the thread that owns a cache. A snapshot reads a shard's counters
 * optimistically, between two reads of the lock's version (lock.h), and acquires the lock after 64 failed attempts. A cache is read
 * without synchronising with its owner, so its counters may be slightly inconsistent. Fields that must add up are therefore derived
 * from each other, not read separately:
 *
 *     in use   = sum of all meters                         cached = kept by all caches
 *     free     = reserved - in use - cached                live   = allocs - failed - frees */
#include <string.h>

#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/memory/allocator.h"

#define ATTEMPTS 64

/* ---- one allocator ---- */

void hr_stats_init_sized(hr_stats *stats, size_t struct_size)
{
	if (stats) hr__struct_init(&hr__struct_stats, stats, struct_size, &(const hr_stats){ .struct_size = 0 });
}

/* Sums over counters of several threads may be inconsistent: a block that moved between two counters during the read may be missing
 * or counted twice. Impossible values are clamped. */
static void derive(hr_stats *stats)
{
	if (stats->bytes_in_use > stats->bytes_reserved) stats->bytes_in_use = stats->bytes_reserved;
	if (stats->bytes_in_use + stats->bytes_cached > stats->bytes_reserved)
		stats->bytes_cached = stats->bytes_reserved > stats->bytes_in_use ? stats->bytes_reserved - stats->bytes_in_use : 0;
	stats->bytes_free = stats->bytes_reserved - stats->bytes_in_use - stats->bytes_cached;
	if (stats->largest_free_block > stats->bytes_free) stats->largest_free_block = stats->bytes_free;
	if (stats->bytes_requested > stats->bytes_in_use) stats->bytes_requested = stats->bytes_in_use;
	if (stats->bytes_requested < 0) stats->bytes_requested = 0;
	if (stats->peak_bytes_reserved < stats->bytes_reserved) stats->peak_bytes_reserved = stats->bytes_reserved;
	if (stats->peak_bytes_in_use < stats->bytes_in_use) stats->peak_bytes_in_use = stats->bytes_in_use;
	/* With several threads the peak is an upper bound, but never more than the peak of reserved bytes. */
	if (stats->peak_bytes_in_use > stats->peak_bytes_reserved) stats->peak_bytes_in_use = stats->peak_bytes_reserved;
	stats->num_live = stats->num_live_at_reset + stats->num_allocs - stats->num_failed_allocs - stats->num_frees;
	if (stats->bytes_inactive > stats->bytes_in_use) stats->bytes_inactive = stats->bytes_in_use;
	stats->bytes_active = stats->bytes_in_use - stats->bytes_inactive;
	if (stats->peak_bytes_active > stats->peak_bytes_in_use) stats->peak_bytes_active = stats->peak_bytes_in_use;
	if (stats->peak_bytes_active < stats->bytes_active) stats->peak_bytes_active = stats->bytes_active;
	if (stats->bytes_reservable_limit < stats->bytes_reserved) stats->bytes_reservable_limit = stats->bytes_reserved;
	stats->fragmentation = stats->bytes_free > 0 ? 1.0 - (double)stats->largest_free_block / (double)stats->bytes_free : 0.0;
	HR_ASSERT(stats->bytes_free >= 0 && stats->bytes_active >= 0 && stats->num_live >= 0);
}

/* Adds the counters of one shard. */
static void add_shard(const hr__shard *shard, hr_stats *stats)
{
	stats->num_allocs += hr__load_relaxed(&shard->stats.allocs);
	stats->num_failed_allocs += hr__load_relaxed(&shard->stats.failed);
	stats->bytes_requested += hr__load_relaxed(&shard->stats.requested);
	if (hr__load_relaxed(&shard->stats.largest) > stats->largest_alloc_size)
		stats->largest_alloc_size = hr__load_relaxed(&shard->stats.largest);
	stats->num_stitches += hr__load_relaxed(&shard->stats.stitches);
	stats->bytes_stitched += hr__load_relaxed(&shard->stats.stitched);
	stats->num_stream_waits += hr__load_relaxed(&shard->stats.waits);
	stats->num_trims += hr__load_relaxed(&shard->stats.trims);
	stats->total_bytes_allocated += hr__load_relaxed(&shard->stats.total);
	int64_t *sources = &stats->source_cache;
	for (int i = 0; i < HR__SOURCES; i++) sources[i] += hr__load_relaxed(&shard->stats.sources[i]);
}

static void add_cache(const hr__cache *cache, hr_stats *stats)
{
	int64_t allocs = hr__load_relaxed(&cache->allocs), largest = hr__load_relaxed(&cache->largest);
	stats->num_allocs += allocs;
	stats->source_cache += allocs;
	stats->bytes_requested += hr__load_relaxed(&cache->requested);
	stats->total_bytes_allocated += hr__load_relaxed(&cache->total);
	stats->bytes_cached += hr__load_relaxed(&cache->kept);
	stats->metadata_bytes += (int64_t)(cache->bytes + hr__load_relaxed(&cache->log_bytes));
	if (largest > stats->largest_alloc_size) stats->largest_alloc_size = largest;
}

_Static_assert(offsetof(hr_stats, source_device) - offsetof(hr_stats, source_cache) == HR__SOURCE_DEVICE * sizeof(int64_t),
               "the source_* statistics are in the order of enum hr__alloc_source");

/* Adds the figures that only the arenas have. Reads fields that the lock guards without holding it; the caller checks the version
 * afterwards. */
__attribute__((no_sanitize("thread"))) static void add_arenas(const hr__shard *shard, hr_stats *stats)
{
	uint64_t small = hr__arena_largest(&shard->small.arena), large = hr__arena_largest(&shard->large.arena);
	uint64_t largest = small > large ? small : large;
	if ((int64_t)largest > stats->largest_free_block) stats->largest_free_block = (int64_t)largest;
	stats->num_free_blocks += shard->small.arena.free_count + shard->large.arena.free_count;
	stats->metadata_bytes += (int64_t)(shard->table.committed * sizeof(hr__chunk) + hr__lookup_bytes(&shard->lookup));
}

/* Adds one shard, read between two reads of its lock's version. */
static void read_shard(hr__shard *shard, hr_stats *stats)
{
	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		hr_stats copy = *stats;
		uint64_t version = hr__lock_read_begin(&shard->lock);
		if (version & 1) {
			hr__cpu_pause();
			continue;
		}
		add_shard(shard, &copy);
		add_arenas(shard, &copy);
		if (!hr__lock_read_ok(&shard->lock, version)) continue;
		*stats = copy;
		return;
	}
	hr__lock_take(&shard->lock);
	add_shard(shard, stats);
	add_arenas(shard, stats);
	hr__lock_release(&shard->lock);
}

/* A figure from a user's function, clamped so that the sum over all allocators cannot overflow. */
static int64_t believable(uint64_t bytes)
{
	const uint64_t most = INT64_MAX / HR__ALLOCATORS_MAX;
	return (int64_t)(bytes < most ? bytes : most);
}

static void read_custom(hr__allocator *allocator, hr_stats *stats)
{
	hr_custom_stats custom = { .struct_size = sizeof custom };
	if (allocator->kind != HR__KIND_CUSTOM || !allocator->custom.table.get_stats) return;
	if (allocator->custom.table.get_stats(allocator->custom_state, &custom)) return;
	if (believable(custom.bytes_reserved) >= stats->bytes_in_use) stats->bytes_reserved = believable(custom.bytes_reserved);
	if (stats->bytes_reserved > stats->peak_bytes_reserved) stats->peak_bytes_reserved = stats->bytes_reserved;
	if (custom.bytes_limit) stats->bytes_limit = believable(custom.bytes_limit);
	stats->largest_free_block = believable(custom.largest_free);
}

/* Frees since the allocator was created. */
static int64_t count_frees(const hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_is_mine(&allocator->caches_lock));
	int64_t count = hr__load_acquire(&allocator->past_frees);
	for (uint32_t i = 0; i < allocator->shard_max; i++) count += hr__load_acquire(&allocator->shards[i].stats.frees);
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next) count += hr__load_acquire(&cache->frees);
	return count;
}

/* Counts since the last reset over all shards and caches, and bytes in use. */
static void count(hr__allocator *allocator, hr_stats *stats)
{
	hr__lock_take(&allocator->caches_lock); /* keeps the lists of caches and shards unchanged */
	*stats = allocator->closed;
	stats->struct_size = sizeof *stats;
	/* Frees are read first, so that every counted free has its allocation counted too. */
	stats->num_frees = count_frees(allocator) - hr__load_relaxed(&allocator->base_frees);
	HR__EACH_SHARD(allocator, shard) read_shard(shard, stats);
	for (const hr__cache *cache = allocator->caches; cache; cache = cache->next) add_cache(cache, stats);
	hr__meters_in_use(allocator, &stats->bytes_in_use, &stats->peak_bytes_in_use);
	bool active = hr__load_relaxed(&allocator->active);
	stats->peak_bytes_active = active ? hr__load_relaxed(&allocator->peak_active) : stats->peak_bytes_in_use;
	int64_t past = hr__load_relaxed(&allocator->past_allocs);
	stats->num_allocs += past - hr__load_relaxed(&allocator->base_allocs);
	stats->source_cache += past - hr__load_relaxed(&allocator->base_cached);
	stats->num_failed_allocs -= hr__load_relaxed(&allocator->base_failed);
	stats->bytes_requested += hr__load_relaxed(&allocator->past_requested);
	stats->total_bytes_allocated += hr__load_relaxed(&allocator->past_total) - hr__load_relaxed(&allocator->base_total);
	if (hr__load_relaxed(&allocator->past_largest) > stats->largest_alloc_size)
		stats->largest_alloc_size = hr__load_relaxed(&allocator->past_largest);
	stats->num_live_at_reset = hr__load_relaxed(&allocator->base_live);
	stats->peak_error_bytes = hr__load_relaxed(&allocator->peak_error);
	stats->num_regions = hr__load_relaxed(&allocator->region_total);
	const hr__lms_hooks *lms_hooks = hr__load_acquire(&hr__hooks_table.lms);
	if (lms_hooks && hr__load_acquire(&allocator->lms)) lms_hooks->stats(allocator, stats);
	hr__lock_release(&allocator->caches_lock);
}

static void snapshot(hr__allocator *allocator, hr_stats *stats)
{
	count(allocator, stats);
	stats->bytes_limit = stats->bytes_reservable_limit = (int64_t)allocator->limit;
	stats->bytes_reserved = hr__load_relaxed(&allocator->reserved);
	stats->peak_bytes_reserved = hr__load_relaxed(&allocator->peak_reserved);
	if (allocator->page) stats->page_table_bytes = stats->bytes_reserved / (int64_t)allocator->page * (int64_t)sizeof(hr__page_id);
	read_custom(allocator, stats);
	derive(stats);
}

hr_status hr_allocator_get_stats(hr_allocator handle, hr_stats *stats)
{
	hr_status status;
	hr_stats result;
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	status = hr__struct_check(&hr__struct_stats, "hr_allocator_get_stats", stats);
	if (status) return status;
	snapshot(allocator, &result);
	hr__struct_out(&hr__struct_stats, stats, &result);
	return HR_OK;
}

hr__memory_summary hr__stats_summarize(hr__allocator *allocator)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_CACHES));
	hr__memory_summary level = { 0 };
	hr__lock_take(&allocator->caches_lock);
	hr__meters_in_use(allocator, &level.in_use, &level.peak);
	HR__EACH_SHARD(allocator, shard) level.refused += hr__load_relaxed(&shard->stats.failed);
	hr__lock_release(&allocator->caches_lock);
	return level;
}

/* hr__owner_max is for values with one writer at a time. */
static void max_of_threads(hr__atomic_i64 *to, int64_t value)
{
	int64_t seen = hr__load_relaxed(to);
	while (seen < value && !hr__cas_acq_rel(to, &seen, value)) {}
}

void hr__stats_note_step_peak(hr__allocator *allocator, int64_t bytes)
{
	HR_ASSERT(bytes >= 0);
	max_of_threads(&allocator->step_peak, bytes);
	max_of_threads(&allocator->usage->step_peak, bytes);
}

/* ---- a device ---- */

/* Adds the counts since the last reset: no current values, no peaks. */
static void add_counts(hr_stats *sum, const hr_stats *one)
{
	if (one->largest_alloc_size > sum->largest_alloc_size) sum->largest_alloc_size = one->largest_alloc_size;
#define COUNTED(X)                                                                                                                       \
	X(num_allocs) X(num_failed_allocs) X(num_frees) X(num_live_at_reset) X(total_bytes_allocated) X(bytes_reclaimed)                     \
	X(num_single_reclaims) X(num_multi_reclaims) X(num_full_reclaims) X(num_defragmentations) X(bytes_defragged) X(num_stitches)         \
	X(bytes_stitched) X(num_stream_waits) X(num_trims) X(source_cache) X(source_free_chunk) X(source_grow) X(source_trim)                \
	X(source_stitch) X(source_single_reclaim) X(source_multi_reclaim) X(source_full_reclaim) X(source_defragment) X(source_device)
#define ADD(name) sum->name += one->name;
	COUNTED(ADD)
#undef ADD
#undef COUNTED
}

struct device_sum {
	hr_stats *stats;
	hr__stats_visit visit; /* NULL: none */
	void *context;
};

static void add_up(hr__allocator *allocator, void *context)
{
	const struct device_sum *device = context;
	hr_stats one, *sum = device->stats;
	HR_ASSERT(hr__allocators_are_locked());
	snapshot(allocator, &one);
	if (device->visit) device->visit(allocator, &one, device->context);
	int64_t limit = sum->bytes_limit, reservable = sum->bytes_reservable_limit, largest = sum->largest_alloc_size;
	int64_t largest_free = sum->largest_free_block;
#define ADD(name, text) sum->name += one.name;
	HR_STATS_TABLE(ADD)
#undef ADD
	sum->bytes_limit = limit;
	sum->bytes_reservable_limit = reservable;
	sum->largest_alloc_size = largest > one.largest_alloc_size ? largest : one.largest_alloc_size;
	sum->largest_free_block = largest_free > one.largest_free_block ? largest_free : one.largest_free_block;
}

/* Peaks of the device. They are not the sums of its allocators' peaks, which were reached at different times. */
static void read_peaks(const hr__usage *usage, hr_stats *stats)
{
	int64_t peak = hr__load_relaxed(&usage->peak), active = hr__load_relaxed(&usage->peak_active);
	if (!hr__load_relaxed(&usage->active)) active = peak > active ? peak : active;
	if (hr__load_relaxed(&usage->shared)) {
		stats->peak_bytes_in_use = peak;
		stats->peak_bytes_active = active;
		stats->peak_error_bytes = hr__load_relaxed(&usage->peak_error);
	} else {
		if (peak > stats->peak_bytes_in_use) stats->peak_bytes_in_use = peak;
		if (active > stats->peak_bytes_active) stats->peak_bytes_active = active;
		if (hr__load_relaxed(&usage->peak_error) > stats->peak_error_bytes) stats->peak_error_bytes = hr__load_relaxed(&usage->peak_error);
	}
	stats->peak_bytes_reserved = hr__load_relaxed(&usage->peak_reserved);
	if (stats->peak_bytes_reserved < stats->bytes_reserved) stats->peak_bytes_reserved = stats->bytes_reserved;
}

static void device_visit(hr__device *device, hr_stats *stats, hr__stats_visit visit, void *context)
{
	struct device_sum sum = { stats, visit, context };
	const hr__usage *usage = &hr__usages[hr__device_index(device)];
	hr_stats_init(stats);
	stats->bytes_limit = stats->bytes_reservable_limit = (int64_t)hr__device_reservable(device);
	hr__allocators_lock();
	hr__allocators_visit_locked(device, add_up, &sum);
	add_counts(stats, &usage->closed);
	read_peaks(usage, stats);
	hr__allocators_unlock();
	derive(stats);
}

static void device_snapshot(hr__device *device, hr_stats *stats)
{
	device_visit(device, stats, NULL, NULL);
}

hr_status hr_device_get_stats(hr_device handle, hr_stats *stats)
{
	hr_status status;
	hr_stats result;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	status = hr__struct_check(&hr__struct_stats, "hr_device_get_stats", stats);
	if (status) return status;
	device_snapshot(device, &result);
	hr__struct_out(&hr__struct_stats, stats, &result);
	return HR_OK;
}

hr_status hr__stats_visit_device(hr_device handle, hr_stats *stats, hr__stats_visit visit, void *context)
{
	hr_status status;
	hr__device *device = hr__device_of(handle, &status);
	if (!device) return status;
	device_visit(device, stats, visit, context);
	return HR_OK;
}

hr_status hr_get_memory_info(const char *device_name, hr_memory_info *info)
{
	hr__device *device;
	hr_stats stats;
	hr_status status = hr__struct_check(&hr__struct_memory_info, "hr_get_memory_info", info);
	if (!status) status = hr__device_named(device_name, &device);
	if (status) return status;
	device_snapshot(device, &stats);
	hr_memory_info found = { .current = stats.bytes_in_use, .peak = stats.peak_bytes_in_use };
	hr__struct_out(&hr__struct_memory_info, info, &found);
	return HR_OK;
}

/* ---- resetting ---- */

static void reset_one(hr__allocator *allocator, void *context)
{
	(void)context;
	HR_ASSERT(hr__allocators_are_locked());
	hr__caches_stop(allocator);
	hr__shards_lock(allocator);
	hr__lock_take(allocator->meter_lock);
	hr_stats totals;
	hr_stats_init(&totals);
	HR__EACH_SHARD(allocator, shard)
	{
		add_shard(shard, &totals);
		for (int i = 0; i < HR__SOURCES; i++) hr__store_relaxed(&shard->stats.sources[i], 0);
		hr__store_relaxed(&shard->stats.stitches, 0);
		hr__store_relaxed(&shard->stats.stitched, 0);
		hr__store_relaxed(&shard->stats.waits, 0);
		hr__store_relaxed(&shard->stats.trims, 0);
		hr__store_relaxed(&shard->stats.largest, 0);
	}
	int64_t cached = hr__load_relaxed(&allocator->past_allocs), frees = count_frees(allocator);
	int64_t total = totals.total_bytes_allocated + hr__load_relaxed(&allocator->past_total);
	for (hr__cache *cache = allocator->caches; cache; cache = cache->next) {
		cached += hr__load_relaxed(&cache->allocs);
		total += hr__load_relaxed(&cache->total);
		hr__store_relaxed(&cache->largest, 0);
		hr__store_relaxed(&cache->high, hr__load_relaxed(&cache->meter.used));
	}
	hr__store_relaxed(&allocator->past_largest, 0);
	hr__store_relaxed(&allocator->base_allocs, totals.num_allocs + cached);
	hr__store_relaxed(&allocator->base_cached, cached);
	hr__store_relaxed(&allocator->base_total, total);
	hr__store_relaxed(&allocator->base_frees, frees);
	hr__store_relaxed(&allocator->base_failed, totals.num_failed_allocs);
	hr__store_relaxed(&allocator->base_live, totals.num_allocs + cached - totals.num_failed_allocs - frees);
	bool several = hr__load_relaxed(&allocator->cache_count) > 1;
	uint32_t meters = hr__load_relaxed(&allocator->cache_count) + hr__load_relaxed(&allocator->open_shards);
	hr__meters_exact(allocator);
	hr__store_relaxed(&allocator->peak, hr__meters_sum(allocator));
	hr__store_relaxed(&allocator->peak_active, hr__load_relaxed(&allocator->granted));
	hr__store_relaxed(&allocator->peak_error, several ? (int64_t)meters * HR__SLACK : 0);
	memset(&allocator->closed, 0, sizeof allocator->closed);
	hr__store_relaxed(&allocator->peak_reserved, hr__load_relaxed(&allocator->reserved));
	const hr__lms_hooks *lms_hooks = hr__load_acquire(&hr__hooks_table.lms);
	if (lms_hooks && hr__load_acquire(&allocator->lms)) lms_hooks->reset(allocator);
	hr__lock_release(allocator->meter_lock);
	hr__shards_unlock(allocator);
	hr__caches_start(allocator);
}

hr_status hr_reset_memory_stats(const char *device_name)
{
	hr__device *device;
	hr_status status = hr__device_named(device_name, &device);
	if (status) return status;
	hr__usage *usage = &hr__usages[hr__device_index(device)];
	hr__allocators_lock();
	hr__usage_prepare(usage);
	hr__allocators_visit_locked(device, reset_one, NULL);
	hr__meters_restart(usage);
	memset(&usage->closed, 0, sizeof usage->closed);
	hr__store_relaxed(&usage->peak_reserved, hr__load_relaxed(&usage->reserved));
	hr__allocators_unlock();
	return HR_OK;
}

/* ---- closing allocators ---- */

void hr__stats_keep_tensors(hr__allocator *allocator, const hr__lms_hooks *lms_hooks)
{
	hr_stats counted;
	hr_stats_init(&counted);
	hr__lock_take(&allocator->caches_lock);
	lms_hooks->stats(allocator, &counted);
	add_counts(&allocator->closed, &counted);
	hr__lock_release(&allocator->caches_lock);
}

void hr__stats_keep_counts(hr__allocator *allocator)
{
	HR_ASSERT(hr__allocators_are_locked() && !allocator->caches);
	hr_stats last;
	count(allocator, &last);
	last.num_frees = last.num_live_at_reset + last.num_allocs - last.num_failed_allocs;
	add_counts(&allocator->usage->closed, &last);
}

/* ---- the getters ---- */

static hr_status gpu_snapshot(int gpu_id, hr_stats *stats)
{
	hr__device *device;
	hr_status status = hr__device_gpu(gpu_id, &device);
	if (!status) device_snapshot(device, stats);
	return status;
}

#define GETTER(name)                                                              \
	int64_t hr_get_##name(int gpu_id)                                             \
	{                                                                             \
		hr_stats stats;                                                           \
		hr_status status = gpu_snapshot(gpu_id, &stats);                          \
		return status ? -(int64_t)status : stats.name;                            \
	}
GETTER(num_allocs)
GETTER(bytes_in_use)
GETTER(peak_bytes_in_use)
GETTER(largest_alloc_size)
GETTER(bytes_limit)
GETTER(bytes_reserved)
GETTER(peak_bytes_reserved)
GETTER(bytes_reservable_limit)
GETTER(bytes_inactive)
GETTER(bytes_active)
GETTER(peak_bytes_active)
GETTER(bytes_reclaimed)
GETTER(num_single_reclaims)
GETTER(num_full_reclaims)
GETTER(num_defragmentations)
GETTER(bytes_defragged)
GETTER(num_multi_reclaims)
GETTER(total_bytes_allocated)
