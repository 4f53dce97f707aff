// front_cuda.cpp - CUDA tensors: Headroom as the implementation of PyTorch's CUDAAllocator, so that torch.cuda.memory_stats(), empty_cache() and the
// like work as with the native allocator. What is not supported raises an error that says so.
//
// Memory belongs to the stream that is current when it is allocated, and to those of record_stream: hr_free on HR_STREAM_HOST waits for exactly these.
//
// Not yet run on a card.
#include "plugin.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace headroom {

namespace cuda = c10::cuda;
namespace native = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::Stat;
using c10::CachingDeviceAllocator::StatArray;
using c10::CachingDeviceAllocator::StatType;

constexpr c10::DeviceIndex DEVICE = 0; // one GPU, so far
static hr_device cuda_device;
static std::string cuda_device_name;

// ---- streams ----

// Headroom's number of a stream of PyTorch's. PyTorch keeps the streams of its pools for ever, so entries are never removed. If Headroom has no
// number left for a stream, its work is waited for instead (HR_STREAM_HOST).
static hr_stream number_of(cudaStream_t stream)
{
	static std::mutex lock;
	static auto *known = new std::unordered_map<cudaStream_t, hr_stream>;
	if (!stream) return HR_STREAM_DEFAULT;
	std::lock_guard<std::mutex> guard(lock);
	auto found = known->find(stream);
	if (found != known->end()) return found->second;
	hr_stream number;
	if (hr_stream_import(cuda_device, reinterpret_cast<uint64_t>(stream), &number)) number = HR_STREAM_HOST;
	(*known)[stream] = number;
	return number;
}

static hr_stream current_stream()
{
	cudaStream_t stream = cuda::getCurrentCUDAStream(DEVICE).stream();
	hr_stream number = number_of(stream);
	if (number == HR_STREAM_HOST) cudaStreamSynchronize(stream); // an error is sticky, and PyTorch's next call reports it; frees must not throw
	return number;
}

// ---- statistics ----

static hr_stats read_stats()
{
	hr_stats stats;
	hr_stats_init(&stats);
	hr_status status = hr_allocator_get_stats(allocator, &stats);
	if (status) throw_status(status);
	return stats;
}

// PyTorch counts each figure in all, and for blocks of at most 1 MiB and larger ones apart. Headroom counts them together.
static void set_stat(StatArray &array, int64_t current, int64_t peak, int64_t allocated, int64_t freed)
{
	Stat &stat = array[static_cast<size_t>(StatType::AGGREGATE)];
	stat.current = current;
	stat.peak = peak;
	stat.allocated = allocated;
	stat.freed = freed;
}

static DeviceStats device_stats()
{
	hr_stats stats = read_stats();
	DeviceStats result;
	int64_t granted = stats.num_allocs - stats.num_failed_allocs;
	set_stat(result.allocation, stats.num_live, stats.num_live, granted, stats.num_frees);
	set_stat(result.active, stats.num_live, stats.num_live, granted, stats.num_frees);
	set_stat(result.segment, stats.num_regions, stats.num_regions, stats.num_regions, 0);
	set_stat(result.allocated_bytes, stats.bytes_in_use, stats.peak_bytes_in_use, stats.total_bytes_allocated, stats.total_bytes_allocated - stats.bytes_in_use);
	set_stat(result.active_bytes, stats.bytes_in_use, stats.peak_bytes_in_use, stats.total_bytes_allocated, stats.total_bytes_allocated - stats.bytes_in_use);
	set_stat(result.reserved_bytes, stats.bytes_reserved, stats.peak_bytes_reserved, stats.peak_bytes_reserved, stats.peak_bytes_reserved - stats.bytes_reserved);
	set_stat(result.inactive_split, stats.num_free_blocks, stats.num_free_blocks, 0, 0);
	set_stat(result.inactive_split_bytes, stats.bytes_free, stats.bytes_free, 0, 0);
	set_stat(result.requested_bytes, stats.bytes_requested, stats.bytes_requested, 0, 0);
	result.num_alloc_retries = stats.num_trims;
	result.num_ooms = stats.num_failed_allocs;
	result.num_device_alloc = stats.source_grow;
	return result;
}

// ---- the allocator ----

static void unsupported(const char *what, const char *instead)
{
	TORCH_CHECK(false, "Headroom's allocator does not support ", what, " yet. ", instead);
}

struct CudaAllocator final : native::CUDAAllocator {
	bool ready = false;

	c10::DataPtr allocate(size_t bytes) override
	{
		c10::DeviceIndex device = cuda::current_device();
		TORCH_CHECK(device == DEVICE, "Headroom's allocator does not support several GPUs yet: it manages cuda:", int(DEVICE), ", not cuda:", int(device));
		if (cuda::currentStreamCaptureStatusMayInitCtx() != cuda::CaptureStatus::None) unsupported("CUDA graphs", "Run without capturing");
		return headroom::allocate(bytes, c10::Device(c10::DeviceType::CUDA, device));
	}
	c10::DeleterFnPtr raw_deleter() const override { return free_block; }
	void copy_data(void *to, const void *from, size_t bytes) const override
	{
		C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda::getCurrentCUDAStream(DEVICE).stream()));
	}
	void *raw_alloc(size_t bytes) override { return bytes ? raw_allocate(bytes) : nullptr; }
	void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override
	{
		cuda::CUDAStreamGuard guard(cuda::getStreamFromExternal(stream, DEVICE));
		return raw_alloc(bytes);
	}
	void raw_delete(void *address) override { free_block(address); }

	void init(int) override { ready = true; }
	bool initialized() override { return ready; }
	void enable(bool) override {}
	bool isEnabled() const override { return true; }
	std::string name() override { return "headroom"; }

	void emptyCache(c10::MempoolId_t) override
	{
		hr_status status = hr_allocator_trim(allocator, nullptr);
		if (status) throw_status(status);
	}
	// The most that cuDNN's benchmark mode may take for a workspace.
	void cacheInfo(c10::DeviceIndex, size_t *largest) override
	{
		hr_stats stats = read_stats();
		int64_t growth = stats.bytes_limit - stats.bytes_reserved;
		*largest = static_cast<size_t>(std::max(stats.largest_free_block, growth));
	}
	void *getBaseAllocation(void *address, size_t *size) override
	{
		hr_allocation_info info;
		hr_allocation_info_init(&info);
		if (hr_allocation_get_info(allocator, address, &info)) unsupported("sharing tensors between processes", "Share CPU tensors");
		if (size) *size = info.bytes;
		return info.address;
	}
	// Uses of a movable tensor are known from its pins.
	void recordStream(const c10::DataPtr &data, cuda::CUDAStream stream) override
	{
		hr_stream number = number_of(stream.stream());
		if (!data.get() || number == HR_STREAM_HOST) return;
		hr_status status = hr_allocation_record_stream(allocator, data.get(), number);
		if (status && status != HR_NOT_ALLOCATED) throw_status(status);
	}

	DeviceStats getDeviceStats(c10::DeviceIndex) override { return device_stats(); }
	void resetAccumulatedStats(c10::DeviceIndex) override { resetPeakStats(DEVICE); }
	void resetPeakStats(c10::DeviceIndex) override
	{
		hr_status status = hr_reset_memory_stats(cuda_device_name.c_str());
		if (status) throw_status(status);
	}
	double getMemoryFraction(c10::DeviceIndex) override
	{
		hr_device_info info;
		hr_device_info_init(&info);
		if (hr_device_get_info(cuda_device, &info) || !info.total_bytes) return 1;
		return static_cast<double>(read_stats().bytes_limit) / static_cast<double>(info.total_bytes);
	}
	void setMemoryFraction(double, c10::DeviceIndex) override { unsupported("set_per_process_memory_fraction", "Use headroom.torch.install(limit=...)"); }
	std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override { return {}; }

	native::SnapshotInfo snapshot(c10::MempoolId_t, bool) override
	{
		unsupported("memory snapshots", "Use headroom.torch.profile(), and `headroom report --export` for memory_viz");
		return {};
	}
	bool isHistoryEnabled() override { return false; }
	void recordHistory(bool enabled, native::CreateContextFn, size_t, native::RecordContext, bool, const std::vector<std::string> &) override
	{
		if (enabled) unsupported("recording a memory history", "Use headroom.torch.profile()");
	}
	void attachOutOfMemoryObserver(native::OutOfMemoryObserver) override {}
	void attachAllocatorTraceTracker(native::AllocatorTraceTracker) override {}

	void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t, std::function<bool(cudaStream_t)>) override { no_pools(); }
	void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override { no_pools(); }
	void releasePool(c10::DeviceIndex, c10::MempoolId_t) override {}
	std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex, c10::MempoolId_t) override
	{
		no_pools();
		return nullptr;
	}
	native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex, std::shared_ptr<native::AllocatorState>) override
	{
		no_pools();
		return {};
	}
	static void no_pools() { unsupported("CUDA graphs and memory pools", "Run without them"); }

	native::ShareableHandle shareIpcHandle(void *) override
	{
		unsupported("sharing tensors between processes", "Share CPU tensors");
		return {};
	}
	std::shared_ptr<void> getIpcDevPtr(std::string) override
	{
		unsupported("sharing tensors between processes", "Share CPU tensors");
		return nullptr;
	}
	void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override { unsupported("several GPUs", "Use one"); }
	cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream, bool) override
	{
		if (to_device != from_device) return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
		return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
	}
};

} // namespace headroom

extern "C" HR_API hr_status headroom_torch_install_cuda(const headroom::Settings *settings)
{
	using namespace headroom;
	static CudaAllocator *instance = new CudaAllocator;
	hr_device_info info;
	hr_status status = hr_cuda_check();
	if (status || (status = hr_device_find("GPU:0", &cuda_device))) return status;
	hr_device_info_init(&info);
	if ((status = hr_device_get_info(cuda_device, &info))) return status;
	cuda_device_name = info.name;
	if (!guard_open()) return HR_NO_HOST_MEMORY;
	if ((status = open_allocator(cuda_device, *settings, {c10::DeviceType::CUDA, current_stream, guard_address}))) return status;
	c10::SetAllocator(c10::DeviceType::CUDA, instance, 0);
	native::allocator.store(instance);
	return HR_OK;
}
