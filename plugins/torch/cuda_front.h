// cuda_front.h - what the parts of the CUDA front share.
//
//     front_cuda.cpp     the CUDAAllocator: allocation, frees, record_stream, and the calls that PyTorch makes of an allocator
//     cuda_streams.cpp   PyTorch's streams as streams of Headroom, the bridge, frees that are put off
//     cuda_private.cpp   private pools: CUDA graphs, torch.cuda.MemPool
//     cuda_pools.h       the blocks of one private pool
//     cuda_stats.cpp     statistics
//     cuda_snapshot.cpp  snapshots and the history of allocations
//
// Where memory comes from:
//     main allocator    everything but the following. An hr_allocator for each GPU
//     private pools     blocks in segments, which are blocks of a second hr_allocator of the GPU, so that no block there has work of a stream to wait for.
//                       With Large Model Support, blocks of the main allocator, which evicts tensors to make room for them
//     shareable blocks  cudaMalloc, for programs that send tensors to other processes
// A block that needs more than hr_free to be freed is in the table of SPECIAL blocks.
//
// Locks, outermost first: Gpu::pool_lock, a shard of the special table, Gpu::stream_lock, the lock of the history. PyTorch may call with Python's GIL
// held, so nothing here acquires it.
#pragma once

#include "cuda_pools.h"
#include "plugin.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/version.h>

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#define HEADROOM_TORCH_AT_LEAST(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace headroom {

namespace cuda = c10::cuda;
namespace native = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::MempoolId_t;

constexpr int MAX_GPUS = 64;

// ---- special blocks ----

struct PrivatePool;

struct Special {
	enum Kind { PLAIN, POOL, SHARED };
	Kind kind = PLAIN;
	c10::DeviceIndex device = 0;
	cudaStream_t stream = nullptr;      // POOL, SHARED: of the request. PLAIN: only for the history, because nullptr also means that it is not known
	PrivatePool *pool = nullptr;        // POOL
	size_t bytes = 0;                   // SHARED
	std::vector<cudaStream_t> streams;  // streams of PyTorch's pools that used the block and have no number; POOL, SHARED: all of record_stream
	bool external = false;              // a stream that may be destroyed at any time used the block
};

void special_add(void *address, const Special &special);
bool special_take(void *address, Special *special);
bool special_get(void *address, Special *special);
// Calls [change] for the entry of [address], which is added if there is none; it may not call any other function here.
void special_change(void *address, const std::function<void(Special &)> &change);
extern std::atomic<int64_t> special_count;

// ---- GPUs ----

struct PoolFilter {
	MempoolId_t id;
	PrivatePool *pool;
	std::function<bool(cudaStream_t)> matches;
	cudaStream_t stream; // of the thread that began it: the capturing one if it is for a graph
};

struct PutOff {
	void *address;
	Special special;
};

// Segments of private pools that are blocks of the main allocator, and those that were since its last reset.
struct OwnSegments {
	std::atomic<int64_t> count{0}, bytes{0};
	std::atomic<int64_t> made{0}, freed{0}, bytes_made{0};
};

struct Totals {
	int64_t allocations = 0, frees = 0, bytes_allocated = 0, bytes_freed = 0, grown = 0;
};

struct Gpu {
	c10::DeviceIndex index = 0;
	hr_device device{};
	std::string name;
	hr_allocator main{};
	hr_allocator segments{}; // of the private pools; [main] with Large Model Support
	uint64_t total_bytes = 0;
	uint64_t limit = 0;                       // bytes, of the main allocator as created
	std::atomic<uint64_t> cap{UINT64_MAX};    // set_per_process_memory_fraction

	// Streams:
	std::mutex stream_lock;
	cudaStream_t bridge = nullptr;
	hr_stream bridge_number = HR_STREAM_HOST;
	std::unordered_map<cudaStream_t, hr_stream> numbers; // streams of PyTorch's pools; those without a number of their own: the bridge's
	int imported = 0;
	std::vector<cudaEvent_t> spare_events;
	std::vector<PutOff> put_off;
	std::atomic<size_t> put_off_count{0};

	// Private pools:
	std::mutex pool_lock;
	std::vector<std::unique_ptr<PrivatePool>> pools;
	std::vector<PoolFilter> filters;
	std::atomic<int> filter_count{0};
	std::atomic<size_t> pool_segment_bytes{0};
	std::atomic<bool> has_pools{false};
	OwnSegments own_segments;
	DeviceStats pool_stats; // and of shareable blocks

	// Statistics, guarded by stats_lock:
	std::mutex stats_lock;
	Totals carried; // counts of the main allocator before its last reset
	Totals reset;   // totals at the last reset_accumulated_memory_stats
	std::atomic<int64_t> ooms{0}, retries{0}, syncs{0};
	int64_t peak_live = 0, peak_requested = 0, peak_free = 0, peak_free_bytes = 0, peak_regions = 0; // as seen by getDeviceStats
};

// The GPU, opened on the first call. Throws if Headroom cannot use it.
Gpu &gpu_of(c10::DeviceIndex device);
// NULL if nothing was allocated on it.
Gpu *gpu_if_open(c10::DeviceIndex device);
c10::DeviceIndex gpu_count();

// Makes the message of an OutOfMemoryError, calls the observers and throws.
[[noreturn]] void fail_allocation(Gpu &gpu, hr_status status, size_t bytes);

// ---- streams ----

// Ids of PyTorch's own streams are odd, that of the default stream is 0. An external stream's id is its address.
inline bool is_external(const cuda::CUDAStream &stream)
{
	return stream.id() != 0 && (stream.id() & 1) == 0;
}

bool streams_open(Gpu &gpu);
// Headroom's number of the stream; the bridge's number if it has none of its own.
hr_stream number_of(Gpu &gpu, cudaStream_t stream, bool external);
// Makes [stream] wait for everything that the bridge was given.
void wait_for_bridge(Gpu &gpu, cudaStream_t stream);
// Makes the bridge wait for all users of the block that have no number. False if that is not possible now: a capture is under way, or the driver cannot.
bool bridge_wait_for_users(Gpu &gpu, const Special &special);
bool is_capturing(cudaStream_t stream);
// Whether a stream is captured into a graph through PyTorch.
bool capture_under_way(Gpu &gpu);
bool capture_under_way_locked(Gpu &gpu); // with Gpu::pool_lock held

// The engine must not record on a captured stream. What it knows of those that are captured now is forgotten: their work from before the capture is done.
// Called before it is called while a capture may be under way.
void forget_captured_streams(Gpu &gpu);

void put_off_free(Gpu &gpu, void *address, const Special &special);
// Frees what was put off. With [wait] everything, after a synchronization of the device.
void free_put_off(Gpu &gpu, bool wait);

cudaEvent_t take_event(Gpu &gpu);
void put_event(Gpu &gpu, cudaEvent_t event);

// ---- private pools ----

extern std::atomic<int> pool_filters; // of all GPUs: a capture, or a thread that allocates in a MemPool

struct PoolPending {
	void *address;
	std::vector<cudaStream_t> streams;
	bool external;
	std::vector<cudaEvent_t> events; // empty: not recorded yet
};

struct PrivatePool {
	MempoolId_t id;
	int uses = 0;
	bool use_on_oom = false;
	native::CUDAAllocator *source = nullptr; // of segments; NULL = Headroom
	std::shared_ptr<native::CUDAAllocator> source_owner;
	BlockPool blocks;
	std::vector<PoolPending> pending; // freed blocks that other streams may still use
};

// The pool that a request of [stream] belongs to; NULL = none. With Gpu::pool_lock held.
PrivatePool *pool_for(Gpu &gpu, cudaStream_t stream);
// With Gpu::pool_lock held. NULL and *status, or an exception of a custom allocator.
void *pool_allocate(Gpu &gpu, PrivatePool &pool, size_t bytes, cudaStream_t stream, hr_status *status);
void pool_free(Gpu &gpu, void *address, const Special &special);
// Memory for a request that found none elsewhere, of a pool with use_on_oom. NULL if none has any.
void *pool_allocate_on_oom(Gpu &gpu, size_t bytes, cudaStream_t stream);
// The pool of blocks that are allocated by other streams while a graph is captured. With Gpu::pool_lock held.
PrivatePool &capture_pool(Gpu &gpu);
// Returns free segments of pools without uses; of [only], or of all for {0, 0}. The device must be idle.
void pools_release(Gpu &gpu, MempoolId_t only);

void pool_retain(Gpu &gpu, MempoolId_t id, native::CUDAAllocator *source, std::shared_ptr<native::CUDAAllocator> owner);
void pool_begin(Gpu &gpu, MempoolId_t id, std::function<bool(cudaStream_t)> filter);
void pool_end(Gpu &gpu, MempoolId_t id);
void pool_release(Gpu &gpu, MempoolId_t id);
int pool_uses(Gpu &gpu, MempoolId_t id);
void pool_set_use_on_oom(Gpu &gpu, MempoolId_t id, bool use);
void pool_set_no_split(Gpu &gpu, MempoolId_t id);
bool pool_has_exactly(Gpu &gpu, MempoolId_t id, const std::unordered_set<void *> &expected);
std::shared_ptr<native::AllocatorState> pool_checkpoint(Gpu &gpu, MempoolId_t id);
native::CheckpointDelta pool_restore(Gpu &gpu, const std::shared_ptr<native::AllocatorState> &state);

// ---- shareable blocks ----

extern __thread int shareable_depth;

// ---- statistics ----

hr_stats main_stats(Gpu &gpu); // segments of private pools included, where they are its blocks
DeviceStats device_stats(Gpu &gpu);
void reset_accumulated(Gpu &gpu);
void reset_peaks(Gpu &gpu);
// Counts in Gpu::pool_stats. With Gpu::pool_lock held.
void count_block(Gpu &gpu, size_t bytes, size_t requested, bool allocated);
void count_segment(Gpu &gpu, size_t bytes, bool allocated);

// ---- history ----

extern std::atomic<bool> history_on; // a history is recorded, or a tracker is attached
// Gathers the context (a Python stack) of the calling thread, for the entries that it adds next. Called before any lock is taken, because it acquires the GIL.
void history_gather(bool allocation);
void history_add(native::TraceEntry::Action action, Gpu &gpu, void *address, size_t bytes, cudaStream_t stream, MempoolId_t pool);
void history_record(bool enabled, native::CreateContextFn context, size_t entries, native::RecordContext when, bool clear, const std::vector<std::string> &skip);
bool history_enabled();
void history_annotate(const std::vector<std::pair<std::string, std::string>> &pairs);
void history_attach(native::AllocatorTraceTracker tracker);
void history_push_context(const std::string &text);
void history_pop_context();
void history_set_metadata(const std::string &text);
std::string history_metadata();
native::SnapshotInfo take_snapshot(MempoolId_t only, bool traces);

inline void trace(native::TraceEntry::Action action, Gpu &gpu, void *address, size_t bytes, cudaStream_t stream, MempoolId_t pool = {0, 0})
{
	if (history_on.load(std::memory_order_relaxed)) history_add(action, gpu, address, bytes, stream, pool);
}

} // namespace headroom
