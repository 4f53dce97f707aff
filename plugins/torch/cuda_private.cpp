// cuda_private.cpp - private pools: memory of CUDA graphs and of torch.cuda.MemPool.
//
// A pool is found by PyTorch's number of it. It exists while something uses it (graphs, MemPool objects, contexts that allocate to it) or blocks of it are
// allocated. A filter says which streams' requests go to a pool. What is in a pool never moves.
//
// While a graph is captured, requests of streams that are not captured come from the capture pool: the main allocator may have to record an event on the
// captured stream, which would become part of the graph.
#include "cuda_front.h"

#include <algorithm>

namespace headroom {

constexpr MempoolId_t CAPTURE_POOL{~0ull, ~0ull};
std::atomic<int> pool_filters{0};

static PrivatePool *find_pool(Gpu &gpu, MempoolId_t id)
{
	for (auto &pool : gpu.pools)
		if (pool->id == id) return pool.get();
	return nullptr;
}

static PrivatePool &need_pool(Gpu &gpu, MempoolId_t id, const char *call)
{
	PrivatePool *pool = find_pool(gpu, id);
	TORCH_CHECK(pool, call, ": there is no memory pool (", id.first, ", ", id.second, ") on cuda:", int(gpu.index));
	return *pool;
}

static PrivatePool &make_pool(Gpu &gpu, MempoolId_t id)
{
	PrivatePool *pool = find_pool(gpu, id);
	if (pool) return *pool;
	gpu.pools.push_back(std::make_unique<PrivatePool>());
	gpu.pools.back()->id = id;
	gpu.has_pools = true;
	return *gpu.pools.back();
}

PrivatePool &capture_pool(Gpu &gpu)
{
	return make_pool(gpu, CAPTURE_POOL);
}

static void drop_if_unused(Gpu &gpu, PrivatePool &pool)
{
	if (pool.uses > 0 || pool.blocks.counts().segments > 0 || pool.id == CAPTURE_POOL) return;
	gpu.pools.erase(std::find_if(gpu.pools.begin(), gpu.pools.end(), [&](const auto &other) { return other.get() == &pool; }));
}

PrivatePool *pool_for(Gpu &gpu, cudaStream_t stream)
{
	for (auto filter = gpu.filters.rbegin(); filter != gpu.filters.rend(); ++filter)
		if (filter->matches(stream)) return filter->pool;
	return nullptr;
}

// ---- frees that wait for other streams ----

// Records an event on each stream that used the block; false if that is not possible yet.
static bool record_pending(Gpu &gpu, PoolPending &pending)
{
	if (!pending.events.empty()) return true;
	cuda::CUDAGuard device(gpu.index);
	if (pending.external) return false;
	for (cudaStream_t stream : pending.streams)
		if (is_capturing(stream)) return false;
	for (cudaStream_t stream : pending.streams) {
		cudaEvent_t event = take_event(gpu);
		if (cudaEventRecord(event, stream) != cudaSuccess) (void)cudaGetLastError();
		pending.events.push_back(event);
	}
	return true;
}

static bool is_done(const PoolPending &pending)
{
	for (cudaEvent_t event : pending.events) {
		if (cudaEventQuery(event) == cudaSuccess) continue;
		(void)cudaGetLastError(); // cudaErrorNotReady
		return false;
	}
	return true;
}

static void free_now(Gpu &gpu, PrivatePool &pool, void *address)
{
	const PoolBlock *block = pool.blocks.find(reinterpret_cast<uintptr_t>(address));
	if (!block || !block->allocated) return;
	size_t bytes = block->bytes, requested = block->requested;
	pool.blocks.free(reinterpret_cast<uintptr_t>(address));
	count_block(gpu, bytes, requested, false);
	trace(native::TraceEntry::FREE_COMPLETED, gpu, address, bytes, nullptr, pool.id);
}

// With [idle] the device was synchronized.
static void free_pending(Gpu &gpu, PrivatePool &pool, bool idle)
{
	if (pool.pending.empty() || (!idle && capture_under_way_locked(gpu))) return;
	std::vector<PoolPending> left;
	for (PoolPending &pending : pool.pending) {
		if (!idle && (!record_pending(gpu, pending) || !is_done(pending))) {
			left.push_back(std::move(pending));
			continue;
		}
		for (cudaEvent_t event : pending.events) put_event(gpu, event);
		free_now(gpu, pool, pending.address);
	}
	pool.pending.swap(left);
}

void pool_free(Gpu &gpu, void *address, const Special &special)
{
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	PrivatePool &pool = *special.pool;
	trace(native::TraceEntry::FREE_REQUESTED, gpu, address, 0, special.stream, pool.id);
	if (special.streams.empty() && !special.external) free_now(gpu, pool, address);
	else pool.pending.push_back({address, special.streams, special.external, {}});
	drop_if_unused(gpu, pool);
}

// ---- segments ----

// Keeps count of a segment that is a block of the main allocator.
static void count_own(Gpu &gpu, const PrivatePool &pool, size_t bytes, bool taken)
{
	if (pool.source || !lms_enabled) return;
	OwnSegments &own = gpu.own_segments;
	own.count += taken ? 1 : -1;
	own.bytes += taken ? static_cast<int64_t>(bytes) : -static_cast<int64_t>(bytes);
	(taken ? own.made : own.freed)++;
	if (taken) own.bytes_made += static_cast<int64_t>(bytes);
}

static void *take_segment(Gpu &gpu, PrivatePool &pool, size_t bytes, hr_status *status)
{
	// A capture forbids calls that its thread may make otherwise.
	cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
	if (pool.source) return pool.source->raw_alloc(bytes);
	void *address = nullptr;
	hr_request request = hr_request_of(bytes);
	request.stream = HR_STREAM_HOST;
	request.scope = names().scope;
	request.tag = names().tag;
	if (lms_enabled) {
		forget_captured_streams(gpu);
		*status = hr_alloc(gpu.segments, &request, &address);
		return *status ? nullptr : address;
	}
	if (gpu.pool_segment_bytes + static_cast<uint64_t>(main_stats(gpu).bytes_reserved) + bytes > std::min(gpu.cap.load(), gpu.limit) &&
	    !capture_under_way_locked(gpu))
		hr_allocator_trim(gpu.main, nullptr);
	*status = hr_alloc(gpu.segments, &request, &address);
	if (*status == HR_OUT_OF_MEMORY && !capture_under_way_locked(gpu)) {
		gpu.retries++;
		hr_allocator_trim(gpu.main, nullptr);
		*status = hr_alloc(gpu.segments, &request, &address);
	}
	return *status ? nullptr : address;
}

static void return_segment(Gpu &gpu, PrivatePool &pool, const PoolSegment &segment)
{
	cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
	void *address = reinterpret_cast<void *>(segment.base);
	if (pool.source) pool.source->raw_delete(address);
	else hr_free(gpu.segments, address, HR_STREAM_HOST);
	count_segment(gpu, segment.bytes, false);
	count_own(gpu, pool, segment.bytes, false);
	gpu.pool_segment_bytes -= segment.bytes;
	trace(native::TraceEntry::SEGMENT_FREE, gpu, address, segment.bytes, reinterpret_cast<cudaStream_t>(segment.stream), pool.id);
}

static bool add_segment(Gpu &gpu, PrivatePool &pool, size_t bytes, cudaStream_t stream, hr_status *status)
{
	size_t size = BlockPool::segment_bytes(bytes);
	void *address = take_segment(gpu, pool, size, status);
	if (!address) return false;
	pool.blocks.add_segment({reinterpret_cast<uintptr_t>(address), size, reinterpret_cast<uint64_t>(stream), BlockPool::is_small(bytes)});
	count_segment(gpu, size, true);
	count_own(gpu, pool, size, true);
	gpu.pool_segment_bytes += size;
	trace(native::TraceEntry::SEGMENT_ALLOC, gpu, address, size, stream, pool.id);
	return true;
}

// ---- allocation ----

static void *hand_out(Gpu &gpu, PrivatePool &pool, uintptr_t address, cudaStream_t stream)
{
	void *block = reinterpret_cast<void *>(address);
	const PoolBlock *found = pool.blocks.find(address);
	Special special;
	special.kind = Special::POOL;
	special.device = gpu.index;
	special.stream = stream;
	special.pool = &pool;
	special_add(block, special);
	count_block(gpu, found->bytes, found->requested, true);
	trace(native::TraceEntry::ALLOC, gpu, block, found->bytes, stream, pool.id);
	return block;
}

void *pool_allocate(Gpu &gpu, PrivatePool &pool, size_t bytes, cudaStream_t stream, hr_status *status)
{
	uint64_t key = reinterpret_cast<uint64_t>(stream);
	*status = HR_OK;
	free_pending(gpu, pool, false);
	uintptr_t address = pool.blocks.allocate(bytes, key);
	if (!address) {
		*status = HR_OUT_OF_MEMORY;
		if (!add_segment(gpu, pool, BlockPool::rounded(bytes), stream, status)) return nullptr;
		*status = HR_OK;
		address = pool.blocks.allocate(bytes, key);
	}
	return hand_out(gpu, pool, address, stream);
}

void *pool_allocate_on_oom(Gpu &gpu, size_t bytes, cudaStream_t stream)
{
	if (!gpu.has_pools) return nullptr;
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	for (auto &pool : gpu.pools) {
		uintptr_t address = pool->use_on_oom ? pool->blocks.allocate(bytes, reinterpret_cast<uint64_t>(stream)) : 0;
		if (address) return hand_out(gpu, *pool, address, stream);
	}
	return nullptr;
}

void pools_release(Gpu &gpu, MempoolId_t only)
{
	if (!gpu.has_pools) return;
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	if (capture_under_way_locked(gpu)) return;
	for (size_t i = gpu.pools.size(); i-- > 0;) {
		PrivatePool &pool = *gpu.pools[i];
		if (only != MempoolId_t{0, 0} && pool.id != only) continue;
		free_pending(gpu, pool, true);
		if (pool.uses > 0) continue;
		for (const PoolSegment &segment : pool.blocks.take_free_segments()) return_segment(gpu, pool, segment);
		drop_if_unused(gpu, pool);
	}
	hr_allocator_trim(gpu.segments, nullptr);
}

// ---- the life of a pool ----

static void retain(PrivatePool &pool, native::CUDAAllocator *source, std::shared_ptr<native::CUDAAllocator> owner)
{
	pool.uses++;
	if (!source) return;
	TORCH_CHECK(pool.source == source || pool.blocks.counts().segments == 0, "the memory pool already has memory of another allocator");
	pool.source = source;
	pool.source_owner = std::move(owner);
}

void pool_retain(Gpu &gpu, MempoolId_t id, native::CUDAAllocator *source, std::shared_ptr<native::CUDAAllocator> owner)
{
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	retain(make_pool(gpu, id), source, std::move(owner));
}

// The next call of PyTorch begins the capture. Filters of graphs match streams that are captured, those of MemPools a thread or every stream.
static void prepare_capture(Gpu &gpu)
{
	keep_in_use();
	if (capture_under_way(gpu)) return;
	cuda::CUDAGuard device(gpu.index);
	C10_CUDA_CHECK(cudaDeviceSynchronize()); // forget_captured_streams relies on it
}

void pool_begin(Gpu &gpu, MempoolId_t id, std::function<bool(cudaStream_t)> filter)
{
	cudaStream_t stream = cuda::getCurrentCUDAStream(gpu.index).stream();
	if (lms_enabled && !filter(stream)) prepare_capture(gpu);
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	for (const PoolFilter &other : gpu.filters) TORCH_CHECK(other.id != id, "beginAllocateToPool: already recording to mempool_id");
	PrivatePool &pool = make_pool(gpu, id);
	retain(pool, nullptr, nullptr);
	gpu.filters.push_back({id, &pool, std::move(filter), stream});
	gpu.filter_count++;
	pool_filters++;
}

void pool_end(Gpu &gpu, MempoolId_t id)
{
	{
		std::lock_guard<std::mutex> guard(gpu.pool_lock);
		auto found = std::find_if(gpu.filters.begin(), gpu.filters.end(), [&](const PoolFilter &filter) { return filter.id == id; });
		TORCH_CHECK(found != gpu.filters.end(), "endAllocatePool: not currently recording to mempool_id");
		gpu.filters.erase(found);
		gpu.filter_count--;
		pool_filters--;
	}
	free_put_off(gpu, false);
}

void pool_release(Gpu &gpu, MempoolId_t id)
{
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	PrivatePool &pool = need_pool(gpu, id, "releasePool");
	TORCH_CHECK(pool.uses > 0, "releasePool: the memory pool is not in use");
	pool.uses--;
	drop_if_unused(gpu, pool);
}

int pool_uses(Gpu &gpu, MempoolId_t id)
{
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	PrivatePool *pool = find_pool(gpu, id);
	return pool ? pool->uses : 0;
}

void pool_set_use_on_oom(Gpu &gpu, MempoolId_t id, bool use)
{
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	PrivatePool *pool = find_pool(gpu, id);
	if (pool) pool->use_on_oom = use;
}

void pool_set_no_split(Gpu &gpu, MempoolId_t id)
{
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	need_pool(gpu, id, "setNoSplit").blocks.no_split = true;
}

// ---- checkpoints ----

static bool is_pending(const PrivatePool &pool, uintptr_t address)
{
	for (const PoolPending &pending : pool.pending)
		if (reinterpret_cast<uintptr_t>(pending.address) == address) return true;
	return false;
}

bool pool_has_exactly(Gpu &gpu, MempoolId_t id, const std::unordered_set<void *> &expected)
{
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	PrivatePool &pool = need_pool(gpu, id, "checkPoolLiveAllocations");
	free_pending(gpu, pool, false);
	size_t live = 0;
	for (const auto &[address, block] : pool.blocks.blocks()) {
		if (!block.allocated || is_pending(pool, address)) continue;
		if (!expected.count(reinterpret_cast<void *>(address))) return false;
		live++;
	}
	return live == expected.size();
}

struct Checkpoint final : native::AllocatorState {
	MempoolId_t id;
	PoolState state;
};

std::shared_ptr<native::AllocatorState> pool_checkpoint(Gpu &gpu, MempoolId_t id)
{
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	PrivatePool &pool = need_pool(gpu, id, "getCheckpointState");
	free_pending(gpu, pool, false);
	auto checkpoint = std::make_shared<Checkpoint>();
	checkpoint->id = id;
	checkpoint->state = pool.blocks.state();
	for (auto &segment : checkpoint->state.segments) {
		auto &blocks = segment.allocated;
		blocks.erase(std::remove_if(blocks.begin(), blocks.end(), [&](const auto &block) { return is_pending(pool, block.address); }), blocks.end());
	}
	return checkpoint;
}

native::CheckpointDelta pool_restore(Gpu &gpu, const std::shared_ptr<native::AllocatorState> &state)
{
	auto *checkpoint = dynamic_cast<Checkpoint *>(state.get());
	TORCH_CHECK(checkpoint, "setCheckpointPoolState: the state is not one of Headroom's");
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	PrivatePool &pool = need_pool(gpu, checkpoint->id, "setCheckpointPoolState");
	std::vector<uintptr_t> before, after;
	std::map<uintptr_t, PoolBlock> old = pool.blocks.blocks();
	TORCH_CHECK(pool.blocks.restore(checkpoint->state, &before, &after), "setCheckpointPoolState: memory of the checkpoint was released since");
	native::CheckpointDelta delta;
	for (uintptr_t address : before) {
		Special gone;
		count_block(gpu, old[address].bytes, old[address].requested, false);
		if (special_take(reinterpret_cast<void *>(address), &gone)) delta.ptrs_freed.push_back(reinterpret_cast<void *>(address)); // else pending
	}
	for (PoolPending &pending : pool.pending)
		for (cudaEvent_t event : pending.events) put_event(gpu, event);
	pool.pending.clear();
	for (uintptr_t address : after) {
		auto segment = std::prev(pool.blocks.segments().upper_bound(address));
		void *block = hand_out(gpu, pool, address, reinterpret_cast<cudaStream_t>(segment->second.stream));
		delta.dataptrs_allocd.emplace_back(block, block, native::get()->raw_deleter(), c10::Device(c10::DeviceType::CUDA, gpu.index));
	}
	return delta;
}

} // namespace headroom
