// cuda_stats.cpp - statistics as torch.cuda.memory_stats() has them: those of the main allocator, which Headroom keeps, and those of private pools and
// shareable blocks, which are counted here. The peak of both together is the sum of their peaks: exact unless pools are used, an upper bound otherwise.
//
// PyTorch resets peaks and accumulated counts apart. Headroom resets both at once, so counts from before a reset are carried on here.
#include "cuda_front.h"

#include <algorithm>

namespace headroom {

using c10::CachingDeviceAllocator::Stat;
using c10::CachingDeviceAllocator::StatArray;
using c10::CachingDeviceAllocator::StatType;

static Stat &all(StatArray &array)
{
	return array[static_cast<size_t>(StatType::AGGREGATE)];
}

hr_stats main_stats(Gpu &gpu)
{
	hr_stats stats;
	hr_stats_init(&stats);
	hr_status status = hr_allocator_get_stats(gpu.main, &stats);
	if (status) throw_status(status);
	return stats;
}

// ---- pools ----

static void change(Stat &stat, size_t amount, bool more)
{
	if (more) stat.increase(amount);
	else stat.decrease(amount);
}

void count_block(Gpu &gpu, size_t bytes, size_t requested, bool allocated)
{
	DeviceStats &stats = gpu.pool_stats;
	change(all(stats.allocation), 1, allocated);
	change(all(stats.active), 1, allocated);
	change(all(stats.allocated_bytes), bytes, allocated);
	change(all(stats.active_bytes), bytes, allocated);
	change(all(stats.requested_bytes), requested, allocated);
}

void count_segment(Gpu &gpu, size_t bytes, bool allocated)
{
	DeviceStats &stats = gpu.pool_stats;
	change(all(stats.segment), 1, allocated);
	change(all(stats.reserved_bytes), bytes, allocated);
	if (allocated) stats.num_device_alloc++;
	else stats.num_device_free++;
}

// ---- the main allocator ----

// Without segments of private pools, which are counted with the pools.
static hr_stats own_stats(Gpu &gpu)
{
	hr_stats stats = main_stats(gpu);
	const OwnSegments &own = gpu.own_segments;
	int64_t bytes = own.bytes;
	stats.num_live -= own.count;
	stats.num_allocs -= own.made;
	stats.num_frees -= own.freed;
	stats.total_bytes_allocated -= own.bytes_made;
	for (int64_t *field : {&stats.bytes_in_use, &stats.peak_bytes_in_use, &stats.bytes_requested, &stats.bytes_reserved, &stats.peak_bytes_reserved}) *field -= bytes;
	return stats;
}

static Totals totals_of(const Gpu &gpu, const hr_stats &stats)
{
	Totals totals = gpu.carried;
	totals.allocations += stats.num_allocs - stats.num_failed_allocs;
	totals.frees += stats.num_frees;
	totals.bytes_allocated += stats.total_bytes_allocated;
	totals.bytes_freed = totals.bytes_allocated - stats.bytes_in_use;
	totals.grown += stats.source_grow;
	return totals;
}

static void set(StatArray &array, int64_t current, int64_t peak, int64_t allocated, int64_t freed)
{
	Stat &stat = all(array);
	stat.current = current;
	stat.peak = std::max(peak, current);
	stat.allocated = allocated;
	stat.freed = freed;
}

static void raise(int64_t *peak, int64_t value)
{
	if (*peak < value) *peak = value;
}

static DeviceStats stats_of_main(Gpu &gpu)
{
	DeviceStats result;
	std::lock_guard<std::mutex> guard(gpu.stats_lock);
	hr_stats stats = own_stats(gpu);
	Totals totals = totals_of(gpu, stats);
	int64_t allocations = totals.allocations - gpu.reset.allocations, frees = totals.frees - gpu.reset.frees;
	int64_t bytes_allocated = totals.bytes_allocated - gpu.reset.bytes_allocated, bytes_freed = totals.bytes_freed - gpu.reset.bytes_freed;
	int64_t idle = stats.bytes_free + stats.bytes_cached;
	raise(&gpu.peak_live, stats.num_live);
	raise(&gpu.peak_requested, stats.bytes_requested);
	raise(&gpu.peak_free, stats.num_free_blocks);
	raise(&gpu.peak_free_bytes, idle);
	raise(&gpu.peak_regions, stats.num_regions);
	set(result.allocation, stats.num_live, gpu.peak_live, allocations, frees);
	set(result.active, stats.num_live, gpu.peak_live, allocations, frees);
	set(result.segment, stats.num_regions, gpu.peak_regions, stats.num_regions, 0);
	set(result.allocated_bytes, stats.bytes_in_use, stats.peak_bytes_in_use, bytes_allocated, bytes_freed);
	set(result.active_bytes, stats.bytes_in_use, stats.peak_bytes_in_use, bytes_allocated, bytes_freed);
	set(result.reserved_bytes, stats.bytes_reserved, stats.peak_bytes_reserved, stats.peak_bytes_reserved, stats.peak_bytes_reserved - stats.bytes_reserved);
	set(result.inactive_split, stats.num_free_blocks, gpu.peak_free, 0, 0);
	set(result.inactive_split_bytes, idle, gpu.peak_free_bytes, 0, 0);
	set(result.requested_bytes, stats.bytes_requested, gpu.peak_requested, bytes_allocated, bytes_freed);
	result.num_alloc_retries = gpu.retries;
	result.num_ooms = gpu.ooms;
	result.num_sync_all_streams = gpu.syncs;
	result.num_device_alloc = totals.grown - gpu.reset.grown;
	return result;
}

static void add(StatArray &to, const StatArray &from)
{
	Stat &stat = all(to);
	const Stat &more = from[static_cast<size_t>(StatType::AGGREGATE)];
	stat.current += more.current;
	stat.peak += more.peak;
	stat.allocated += more.allocated;
	stat.freed += more.freed;
}

DeviceStats device_stats(Gpu &gpu)
{
	DeviceStats result = stats_of_main(gpu);
	if (!gpu.has_pools.load(std::memory_order_acquire)) return result;
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	const DeviceStats &pools = gpu.pool_stats;
	add(result.allocation, pools.allocation);
	add(result.segment, pools.segment);
	add(result.active, pools.active);
	add(result.allocated_bytes, pools.allocated_bytes);
	add(result.reserved_bytes, pools.reserved_bytes);
	add(result.active_bytes, pools.active_bytes);
	add(result.requested_bytes, pools.requested_bytes);
	result.num_device_alloc += pools.num_device_alloc;
	result.num_device_free += pools.num_device_free;
	for (const auto &pool : gpu.pools) {
		const PoolCounts &counts = pool->blocks.counts();
		all(result.inactive_split).current += counts.free_blocks;
		all(result.inactive_split_bytes).current += counts.free_bytes;
	}
	raise(&all(result.inactive_split).peak, all(result.inactive_split).current);
	raise(&all(result.inactive_split_bytes).peak, all(result.inactive_split_bytes).current);
	return result;
}

// ---- resets ----

static void for_pool_stats(Gpu &gpu, void (*change)(Stat &))
{
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	DeviceStats &stats = gpu.pool_stats;
	for (StatArray *array : {&stats.allocation, &stats.segment, &stats.active, &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes})
		change(all(*array));
}

void reset_accumulated(Gpu &gpu)
{
	{
		std::lock_guard<std::mutex> guard(gpu.stats_lock);
		gpu.reset = totals_of(gpu, own_stats(gpu));
		gpu.ooms = gpu.retries = gpu.syncs = 0;
	}
	for_pool_stats(gpu, [](Stat &stat) { stat.reset_accumulated(); });
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	gpu.pool_stats.num_device_alloc = gpu.pool_stats.num_device_free = 0;
}

void reset_peaks(Gpu &gpu)
{
	{
		std::lock_guard<std::mutex> guard(gpu.stats_lock);
		Totals before = totals_of(gpu, own_stats(gpu));
		hr_status status = hr_reset_memory_stats(gpu.name.c_str());
		if (status) throw_status(status);
		gpu.carried = before;
		gpu.own_segments.made = gpu.own_segments.freed = gpu.own_segments.bytes_made = 0;
		gpu.peak_live = gpu.peak_requested = gpu.peak_free = gpu.peak_free_bytes = gpu.peak_regions = 0;
	}
	for_pool_stats(gpu, [](Stat &stat) { stat.reset_peak(); });
}

} // namespace headroom
