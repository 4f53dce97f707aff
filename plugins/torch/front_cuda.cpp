// front_cuda.cpp - CUDA tensors: Headroom as the implementation of PyTorch's CUDAAllocator, so that everything in torch.cuda works as with the native
// allocator, or raises an error that says what to do. cuda_front.h lists the parts.
//
// Memory belongs to the stream that is current when it is allocated, and to those of record_stream: hr_free on HR_STREAM_HOST waits for exactly these.
//
// On a process's first GPU, an allocation and a free take no lock and no lookup of their own unless there are special blocks.
#include "cuda_front.h"

#include <headroom_backend.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace headroom {

constexpr c10::DeviceIndex FIRST_DEVICE = 0; // a block that is not in the table of special blocks is on it, or a tensor of the engine

static std::atomic<Gpu *> gpus[MAX_GPUS];
static std::mutex open_lock;
static uint64_t limit_setting; // settings.limit, for each GPU
static std::mutex observer_lock;
static std::vector<native::OutOfMemoryObserver> observers;
__thread int shareable_depth = 0;

// ---- GPUs ----

static hr_status create_segments(hr_device device, hr_allocator *out)
{
	hr_allocator_options options;
	hr_allocator_options_init(&options);
	options.name = "pytorch pools";
	options.limit_bytes = limit_setting;
	options.oom.report_allocations_on_oom = true;
	return hr_allocator_create(device, &options, out);
}

static hr_status find_device(c10::DeviceIndex index, hr_device *out)
{
	return hr_device_find(("GPU:" + std::to_string(int(index))).c_str(), out);
}

static hr_status describe(Gpu &gpu)
{
	hr_device_info info;
	hr_status status = find_device(gpu.index, &gpu.device);
	hr_device_info_init(&info);
	if (status || (status = hr_device_get_info(gpu.device, &info))) return status;
	gpu.name = info.name;
	gpu.total_bytes = info.total_bytes;
	return HR_OK;
}

static Gpu &open_gpu(c10::DeviceIndex index)
{
	std::lock_guard<std::mutex> guard(open_lock);
	if (Gpu *open = gpus[index]) return *open;
	auto gpu = std::make_unique<Gpu>();
	gpu->index = index;
	hr_status status = describe(*gpu);
	if (!status && index == FIRST_DEVICE) gpu->main = allocator;
	else if (!status) status = open_another(gpu->device, &gpu->main);
	if (!status && lms_enabled) gpu->segments = gpu->main; // one limit for both, and eviction makes room for either
	else if (!status) status = create_segments(gpu->device, &gpu->segments);
	failed_allocator = gpu->main;
	if (status) throw_status(status);
	gpu->limit = static_cast<uint64_t>(main_stats(*gpu).bytes_limit);
	TORCH_CHECK(streams_open(*gpu), "Headroom could not create a stream on cuda:", int(index), ": ", hr_last_message());
	gpus[index] = gpu.get();
	return *gpu.release(); // never destroyed: PyTorch frees storages while the process ends
}

Gpu &gpu_of(c10::DeviceIndex device)
{
	TORCH_CHECK(device >= 0 && device < MAX_GPUS, "Headroom supports ", MAX_GPUS, " GPUs, and this is cuda:", int(device));
	Gpu *gpu = gpus[device].load(std::memory_order_acquire);
	return gpu ? *gpu : open_gpu(device);
}

Gpu *gpu_if_open(c10::DeviceIndex device)
{
	return device >= 0 && device < MAX_GPUS ? gpus[device].load(std::memory_order_acquire) : nullptr;
}

c10::DeviceIndex gpu_count()
{
	static c10::DeviceIndex count = std::min<c10::DeviceIndex>(cuda::device_count(), MAX_GPUS);
	return count;
}

static hr_allocator allocator_of(c10::DeviceIndex device)
{
	if (device == FIRST_DEVICE) return allocator;
	Gpu *gpu = gpu_if_open(device);
	return gpu ? gpu->main : hr_allocator{};
}

// ---- the stream of the calling thread, for movable tensors ----

static void synchronize(cudaStream_t stream)
{
	if (!is_capturing(stream)) (void)cudaStreamSynchronize(stream); // an error is sticky, and PyTorch's next call reports it
}

static void synchronize_current(c10::DeviceIndex device)
{
	synchronize(cuda::getCurrentCUDAStream(device).stream());
}

static bool is_current_captured(c10::DeviceIndex device)
{
	return pool_filters.load(std::memory_order_acquire) && is_capturing(cuda::getCurrentCUDAStream(device).stream());
}

static void swap_capture_mode(int *mode)
{
	auto exchanged = static_cast<cudaStreamCaptureMode>(*mode);
	if (cudaThreadExchangeStreamCaptureMode(&exchanged) == cudaSuccess) *mode = exchanged;
}

// A stream without a number is synchronized, and HR_STREAM_HOST stands for it. It also stands for a captured stream, whose work begins when the graph is
// replayed. Does not throw, because deleters call it.
static hr_stream current_stream(c10::DeviceIndex device)
{
	try {
		Gpu &gpu = gpu_of(device);
		cuda::CUDAStream current = cuda::getCurrentCUDAStream(device);
		if (pool_filters.load(std::memory_order_acquire)) {
			forget_captured_streams(gpu);
			if (is_capturing(current.stream())) return HR_STREAM_HOST;
		}
		hr_stream number = number_of(gpu, current.stream(), is_external(current));
		if (number != gpu.bridge_number) return number;
		synchronize(current.stream());
	} catch (const std::exception &) {
		// CUDA has failed, or was unloaded because the process ends: no stream has work to wait for. PyTorch's next call reports the error.
	}
	return HR_STREAM_HOST;
}

// ---- out of memory ----

static void notify_observers(Gpu &gpu, size_t bytes)
{
	size_t free = 0, total = 0;
	{
		cuda::CUDAGuard device(gpu.index);
		(void)cudaMemGetInfo(&free, &total);
	}
	trace(native::TraceEntry::OOM, gpu, reinterpret_cast<void *>(free), bytes, nullptr);
	std::vector<native::OutOfMemoryObserver> called;
	{
		std::lock_guard<std::mutex> guard(observer_lock);
		called = observers;
	}
	for (const auto &observer : called) observer(gpu.index, bytes, total, free);
}

void fail_allocation(Gpu &gpu, hr_status status, size_t bytes)
{
	failed_allocator = gpu.main;
	std::string text = failure_text(status); // before the observers, which may make other calls fail
	if (status == HR_OUT_OF_MEMORY) {
		gpu.ooms++;
		notify_observers(gpu, bytes);
	}
	throw_text(status, text);
}

[[noreturn]] static void fail_at_cap(Gpu &gpu, size_t bytes, uint64_t used, uint64_t cap)
{
	bool installed = cap == gpu.limit;
	std::string pools = std::to_string(gpu.pool_segment_bytes.load());
	std::string text = "Headroom: out of memory. " + std::to_string(bytes) + " bytes were requested on cuda:" + std::to_string(int(gpu.index)) + "; " +
		std::to_string(used) + " of " + std::to_string(cap) + " bytes are in use. The limit is that of " +
		(installed ? "headroom.torch.install(limit=...), of which memory pools hold " : "torch.cuda.set_per_process_memory_fraction(); memory pools hold ") +
		pools + " bytes. Raise it, or release memory pools and CUDA graphs that are not used";
	gpu.ooms++;
	notify_observers(gpu, bytes);
	throw_text(HR_OUT_OF_MEMORY, text);
}

// Frees everything that can be freed after waiting for the device. False during a capture, when waiting is not possible.
static bool make_room(Gpu &gpu)
{
	if (capture_under_way(gpu)) return false;
	gpu.retries++;
	gpu.syncs++;
	{
		cuda::CUDAGuard device(gpu.index);
		(void)cudaDeviceSynchronize();
	}
	free_put_off(gpu, true);
	pools_release(gpu, {0, 0});
	return true;
}

// Headroom enforces the limit of each of its allocators. This is for both together, and for a fraction set later.
static bool is_over_cap(Gpu &gpu, size_t bytes, uint64_t *used, uint64_t *cap)
{
	if (lms_enabled) return false; // eviction makes room; the engine knows the limit
	*cap = gpu.cap.load(std::memory_order_relaxed);
	uint64_t pools = gpu.pool_segment_bytes.load(std::memory_order_relaxed);
	if (*cap == UINT64_MAX && (pools == 0 || limit_setting == 0)) return false;
	*cap = std::min(*cap, gpu.limit);
	*used = static_cast<uint64_t>(main_stats(gpu).bytes_in_use) + pools;
	return bytes > *cap || *used > *cap - bytes;
}

static void check_cap(Gpu &gpu, size_t bytes)
{
	uint64_t used, cap;
	if (!is_over_cap(gpu, bytes, &used, &cap)) return;
	if (!make_room(gpu) || is_over_cap(gpu, bytes, &used, &cap)) fail_at_cap(gpu, bytes, used, cap);
}

// ---- allocation ----

static hr_status allocate_main(Gpu &gpu, size_t bytes, hr_stream number, void **address)
{
	hr_request request = hr_request_of(bytes);
	request.stream = number;
	request.scope = names().scope;
	request.tag = names().tag;
	return hr_alloc(gpu.main, &request, address);
}

static void mark_special(Gpu &gpu, void *address, cudaStream_t stream, bool external, bool bridged)
{
	Special special;
	special.device = gpu.index;
	special.stream = stream;
	special.external = bridged && external;
	if (bridged && !external) special.streams.push_back(stream);
	if (bridged) wait_for_bridge(gpu, stream);
	special_add(address, special);
}

static void *allocate_plain(Gpu &gpu, size_t bytes, cudaStream_t stream, bool external)
{
	void *address = nullptr;
	check_cap(gpu, bytes);
	hr_stream number = number_of(gpu, stream, external);
	hr_status status = allocate_main(gpu, bytes, number, &address);
	if (status == HR_OUT_OF_MEMORY) {
		if (make_room(gpu)) status = allocate_main(gpu, bytes, number, &address);
		if (status == HR_OUT_OF_MEMORY && (address = pool_allocate_on_oom(gpu, bytes, stream))) return address;
	}
	if (status) fail_allocation(gpu, status, bytes);
	bool bridged = number == gpu.bridge_number;
	try {
		if (bridged || gpu.index != FIRST_DEVICE) mark_special(gpu, address, stream, external, bridged);
	} catch (const c10::Error &) {
		hr_free(gpu.main, address, HR_STREAM_HOST); // [stream] was given no work on it
		throw;
	}
	trace(native::TraceEntry::ALLOC, gpu, address, bytes, stream);
	return address;
}

// NULL if no pool takes the request.
static void *allocate_in_pool(Gpu &gpu, size_t bytes, cudaStream_t stream)
{
	hr_status status;
	{
		std::lock_guard<std::mutex> guard(gpu.pool_lock);
		PrivatePool *pool = pool_for(gpu, stream);
		if (!pool && capture_under_way_locked(gpu)) pool = &capture_pool(gpu);
		if (!pool) return nullptr;
		void *address = pool_allocate(gpu, *pool, bytes, stream, &status);
		if (address) return address;
	}
	if (status != HR_OUT_OF_MEMORY || !make_room(gpu)) fail_allocation(gpu, status, bytes);
	std::unique_lock<std::mutex> guard(gpu.pool_lock);
	PrivatePool *pool = pool_for(gpu, stream);
	void *address = pool ? pool_allocate(gpu, *pool, bytes, stream, &status) : nullptr;
	guard.unlock();
	if (!address) fail_allocation(gpu, status, bytes);
	return address;
}

static void *allocate_shareable(Gpu &gpu, size_t bytes, cudaStream_t stream)
{
	void *address = nullptr;
	{
		cuda::CUDAGuard device(gpu.index);
		cudaError_t error = cudaMalloc(&address, bytes);
		if (error == cudaErrorMemoryAllocation) {
			(void)cudaGetLastError();
			hr_allocator_trim(gpu.main, nullptr);
			error = cudaMalloc(&address, bytes);
		}
		if (error == cudaErrorMemoryAllocation) {
			(void)cudaGetLastError();
			gpu.ooms++;
			notify_observers(gpu, bytes);
			TORCH_CHECK_WITH(OutOfMemoryError, false, "Headroom: out of memory. cudaMalloc of ", bytes, " bytes for a tensor that can be shared with other processes failed");
		}
		C10_CUDA_CHECK(error);
	}
	Special special;
	special.kind = Special::SHARED;
	special.device = gpu.index;
	special.stream = stream;
	special.bytes = bytes;
	special_add(address, special);
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	gpu.has_pools = true;
	count_segment(gpu, bytes, true);
	count_block(gpu, bytes, bytes, true);
	trace(native::TraceEntry::ALLOC, gpu, address, bytes, stream);
	return address;
}

static void *allocate_address(Gpu &gpu, size_t bytes, cudaStream_t stream, bool external)
{
	if (history_on.load(std::memory_order_relaxed)) history_gather(true);
	if (gpu.put_off_count.load(std::memory_order_relaxed)) free_put_off(gpu, false);
	if (gpu.filter_count.load(std::memory_order_acquire)) {
		void *address = allocate_in_pool(gpu, bytes, stream);
		if (address) return address;
	}
	return shareable_depth ? allocate_shareable(gpu, bytes, stream) : allocate_plain(gpu, bytes, stream, external);
}

// Whether a private pool takes a request of the calling thread. A graph contains the addresses of what it allocates.
static bool is_for_pool(Gpu &gpu)
{
	if (gpu.filter_count.load(std::memory_order_acquire) == 0) return false;
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	return pool_for(gpu, cuda::getCurrentCUDAStream(gpu.index).stream()) || capture_under_way_locked(gpu);
}

static bool is_movable(Gpu &gpu, size_t bytes)
{
	return lms_enabled && bytes >= movable_bytes && !shareable_depth && !is_for_pool(gpu);
}

static c10::DataPtr allocate_movable(Gpu &gpu, size_t bytes, c10::Device device)
{
	try {
		return headroom::allocate(bytes, device);
	} catch (const c10::OutOfMemoryError &) {
		if (!make_room(gpu)) {
			gpu.ooms++;
			throw;
		}
	}
	try {
		return headroom::allocate(bytes, device);
	} catch (const c10::OutOfMemoryError &) {
		gpu.ooms++;
		notify_observers(gpu, bytes);
		throw;
	}
}

// ---- frees ----

static void free_special(Gpu &gpu, void *address, const Special &special)
{
	if (special.kind == Special::POOL) return pool_free(gpu, address, special);
	trace(native::TraceEntry::FREE_REQUESTED, gpu, address, special.bytes, special.stream);
	put_off_free(gpu, address, special);
	free_put_off(gpu, false);
}

static void free_plain(Gpu &gpu, void *address)
{
	trace(native::TraceEntry::FREE_REQUESTED, gpu, address, 0, nullptr);
	if (gpu.filter_count.load(std::memory_order_acquire) && capture_under_way(gpu)) {
		Special special;
		special.device = gpu.index;
		put_off_free(gpu, address, special);
		return;
	}
	EngineCall call;
	hr_free(gpu.main, address, HR_STREAM_HOST);
	trace(native::TraceEntry::FREE_COMPLETED, gpu, address, 0, nullptr);
}

static void delete_block(void *address)
{
	if (!address) return;
	try {
		Special special;
		if (history_on.load(std::memory_order_relaxed)) history_gather(false);
		if (special_count.load(std::memory_order_relaxed) && special_take(address, &special)) free_special(*gpu_if_open(special.device), address, special);
		else if (!lms_enabled || !free_unadopted(address)) free_plain(gpu_of(FIRST_DEVICE), address);
	} catch (const c10::Error &) {
		// CUDA has failed, or was unloaded because the process ends. The block is lost; PyTorch's next call reports the error.
	}
}

// ---- sharing between processes ----

// The format of PyTorch's native allocator for memory of cudaMalloc.
constexpr char HANDLE_VERSION = 2;
constexpr char HANDLE_OF_CUDA_MALLOC = 'c';

static std::shared_ptr<void> open_handle(const std::string &handle)
{
	static std::mutex lock;
	static auto *open = new std::unordered_map<std::string, std::weak_ptr<void>>;
	c10::DeviceIndex device = cuda::current_device();
	std::string key = std::to_string(int(device)) + ":" + handle;
	std::lock_guard<std::mutex> guard(lock);
	auto found = open->find(key);
	if (found != open->end()) {
		std::shared_ptr<void> memory = found->second.lock();
		if (memory) return memory; // CUDA opens a handle once for a process
	}
	cudaIpcMemHandle_t raw;
	std::memcpy(&raw, handle.data() + 2, sizeof raw);
	void *address = nullptr;
	C10_CUDA_CHECK(cudaIpcOpenMemHandle(&address, raw, cudaIpcMemLazyEnablePeerAccess));
	std::shared_ptr<void> memory(address, [device, key](void *opened) {
		std::lock_guard<std::mutex> guard(lock);
		cuda::CUDAGuard current(device);
		(void)cudaIpcCloseMemHandle(opened);
		open->erase(key);
	});
	(*open)[key] = memory;
	return memory;
}

// ---- the allocator ----

struct CudaAllocator final : native::CUDAAllocator {
	bool ready = false;

	c10::DataPtr allocate(size_t bytes) override
	{
		c10::DeviceIndex index = cuda::current_device();
		c10::Device device(c10::DeviceType::CUDA, index);
		Gpu &gpu = gpu_of(index);
		if (lms_enabled) op_check();
		if (bytes == 0) return c10::DataPtr(nullptr, nullptr, delete_block, device);
		TORCH_CHECK_WITH(OutOfMemoryError, bytes < (1ull << 48), "CUDA out of memory. Tried to allocate more than 1EB memory.");
		if (is_movable(gpu, bytes)) return allocate_movable(gpu, bytes, device);
		cuda::CUDAStream stream = cuda::getCurrentCUDAStream(index);
		void *address = allocate_address(gpu, bytes, stream.stream(), is_external(stream));
		return c10::DataPtr(address, address, delete_block, device);
	}
	c10::DeleterFnPtr raw_deleter() const override { return delete_block; }
	void copy_data(void *to, const void *from, size_t bytes) const override
	{
		C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda::getCurrentCUDAStream().stream()));
	}
	void *raw_alloc(size_t bytes) override
	{
		if (bytes == 0) return nullptr;
		cuda::CUDAStream stream = cuda::getCurrentCUDAStream();
		return allocate_address(gpu_of(stream.device_index()), bytes, stream.stream(), is_external(stream));
	}
	void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override
	{
		// A stream of PyTorch's pools has a number if it was used before; any other may be destroyed at any time.
		return bytes ? allocate_address(gpu_of(cuda::current_device()), bytes, stream, true) : nullptr;
	}
	void raw_delete(void *address) override { delete_block(address); }

	void init(int) override { ready = true; }
	bool initialized() override { return ready; }
	void enable(bool) override {}
	bool isEnabled() const override { return true; }
	std::string name() override { return "headroom"; }

	void emptyCache(MempoolId_t id) override
	{
		for (c10::DeviceIndex i = 0; i < gpu_count(); i++) {
			Gpu *gpu = gpu_if_open(i);
			if (!gpu || capture_under_way(*gpu)) continue;
			cuda::CUDAGuard device(i);
			C10_CUDA_CHECK(cudaDeviceSynchronize());
			free_put_off(*gpu, true);
			pools_release(*gpu, id);
			hr_status status = id == MempoolId_t{0, 0} ? hr_allocator_trim(gpu->main, nullptr) : HR_OK;
			if (status) throw_status(status);
		}
	}
	// The most that cuDNN's benchmark mode may take for a workspace.
	void cacheInfo(c10::DeviceIndex device, size_t *largest) override
	{
		Gpu &gpu = gpu_of(device);
		hr_stats stats = main_stats(gpu);
		int64_t limit = static_cast<int64_t>(std::min(gpu.cap.load(), gpu.limit));
		size_t free = 0, total = 0;
		cuda::CUDAGuard guard(device);
		C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
		int64_t growth = std::min(static_cast<int64_t>(free), limit - stats.bytes_reserved - (lms_enabled ? 0 : static_cast<int64_t>(gpu.pool_segment_bytes.load())));
		*largest = static_cast<size_t>(std::max(std::max<int64_t>(stats.largest_free_block, growth), int64_t(0)));
	}
	// Of memory that is not special: the first GPU, unless it is that of a movable tensor.
	static c10::DeviceIndex device_of(void *address)
	{
		hr_allocation_info info;
		hr_allocation_info_init(&info);
		for (c10::DeviceIndex i = 0; lms_enabled && i < gpu_count(); i++) {
			Gpu *gpu = gpu_if_open(i);
			if (gpu && hr_allocation_get_info(gpu->main, address, &info) == HR_OK) return i;
		}
		return FIRST_DEVICE;
	}
	void *getBaseAllocation(void *address, size_t *size) override
	{
		Special special;
		bool found = special_get(address, &special);
		if (!found) special.device = device_of(address);
		Gpu &gpu = gpu_of(special.device);
		if (found && special.kind == Special::SHARED) {
			if (size) *size = special.bytes;
			return address;
		}
		if (found && special.kind == Special::POOL) {
			std::lock_guard<std::mutex> guard(gpu.pool_lock);
			auto segment = std::prev(special.pool->blocks.segments().upper_bound(reinterpret_cast<uintptr_t>(address)));
			if (size) *size = segment->second.bytes;
			return reinterpret_cast<void *>(segment->first);
		}
		hr_allocation_info info;
		hr_allocation_info_init(&info);
		TORCH_CHECK(hr_allocation_get_info(gpu.main, address, &info) == HR_OK, "invalid device pointer: ", address);
		if (size) *size = info.bytes;
		return info.address;
	}

	using native::CUDAAllocator::recordStream;
	void recordStream(const c10::DataPtr &data, cuda::CUDAStream stream) override
	{
		void *address = data.get();
		// Others are opened from other processes, or movable, whose uses are known from their pins. An entry for them would never be removed.
		if (!address || data.get_deleter() != delete_block) return;
		Special special;
		bool found = special_count.load(std::memory_order_relaxed) && special_get(address, &special);
		Gpu &gpu = gpu_of(found ? special.device : stream.device_index());
		cudaStream_t user = stream.stream();
		if (found && special.kind != Special::PLAIN && user == special.stream) return;
		hr_stream number = found && special.kind != Special::PLAIN ? gpu.bridge_number : number_of(gpu, user, is_external(stream));
		if (number == gpu.bridge_number) return record_without_number(gpu, address, user, is_external(stream), found);
		hr_status status = hr_allocation_record_stream(gpu.main, address, number);
		if (status && status != HR_NOT_ALLOCATED) throw_status(status);
	}
	static void record_without_number(Gpu &gpu, void *address, cudaStream_t user, bool external, bool known)
	{
		hr_allocation_info info;
		hr_allocation_info_init(&info);
		if (!known && hr_allocation_get_info(gpu.main, address, &info)) return; // not Headroom's
		special_change(address, [&](Special &special) {
			special.device = gpu.index;
			if (external) special.external = true;
			else if (std::find(special.streams.begin(), special.streams.end(), user) == special.streams.end()) special.streams.push_back(user);
		});
	}

	DeviceStats getDeviceStats(c10::DeviceIndex device) override { return device_stats(gpu_of(device)); }
	void resetAccumulatedStats(c10::DeviceIndex device) override { reset_accumulated(gpu_of(device)); }
	void resetPeakStats(c10::DeviceIndex device) override { reset_peaks(gpu_of(device)); }
	double getMemoryFraction(c10::DeviceIndex device) override
	{
		Gpu &gpu = gpu_of(device);
		uint64_t cap = gpu.cap;
		if (cap == UINT64_MAX && limit_setting) cap = gpu.limit;
		return cap == UINT64_MAX || !gpu.total_bytes ? 1.0 : static_cast<double>(cap) / static_cast<double>(gpu.total_bytes);
	}
	void setMemoryFraction(double fraction, c10::DeviceIndex device) override
	{
		TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction, ". Please set within [0, 1].");
		Gpu &gpu = gpu_of(device);
		uint64_t cap = static_cast<uint64_t>(fraction * static_cast<double>(gpu.total_bytes));
		if (lms_enabled) {
			hr_status status = hr_lms_set_limit(gpu.main, fraction == 1 ? 0 : std::max<uint64_t>(cap, 1));
			if (status) throw_status(status);
		}
		gpu.cap = fraction == 1 ? UINT64_MAX : cap;
	}
#if HEADROOM_TORCH_AT_LEAST(10)
	std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override { return {}; }
#endif
#if HEADROOM_TORCH_AT_LEAST(11)
	native::SnapshotInfo snapshot(MempoolId_t id, bool traces) override { return take_snapshot(id, traces); }
	void recordHistory(bool enabled, native::CreateContextFn context, size_t entries, native::RecordContext when, bool clear, const std::vector<std::string> &skip) override
	{
		history_record(enabled, context, entries, when, clear, skip);
	}
#else
	native::SnapshotInfo snapshot(MempoolId_t id) override { return take_snapshot(id, true); }
	void recordHistory(bool enabled, native::CreateContextFn context, size_t entries, native::RecordContext when, bool clear) override
	{
		history_record(enabled, context, entries, when, clear, {});
	}
#endif
	bool isHistoryEnabled() override { return history_enabled(); }
	void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &pairs) override { history_annotate(pairs); }
	void pushCompileContext(std::string &text) override { history_push_context(text); }
	void popCompileContext() override { history_pop_context(); }
#if HEADROOM_TORCH_AT_LEAST(10)
	void setUserMetadata(const std::string &text) override { history_set_metadata(text); }
	std::string getUserMetadata() override { return history_metadata(); }
#endif
	void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override
	{
		std::lock_guard<std::mutex> guard(observer_lock);
		observers.push_back(std::move(observer));
	}
	void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override { history_attach(std::move(tracker)); }

	void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override { pool_begin(gpu_of(device), id, std::move(filter)); }
	void endAllocateToPool(c10::DeviceIndex device, MempoolId_t id) override { pool_end(gpu_of(device), id); }
	void releasePool(c10::DeviceIndex device, MempoolId_t id) override { pool_release(gpu_of(device), id); }
	int getPoolUseCount(c10::DeviceIndex device, MempoolId_t id) override { return pool_uses(gpu_of(device), id); }
#if HEADROOM_TORCH_AT_LEAST(11)
	void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t id, std::shared_ptr<native::CUDAAllocator> source) override
	{
		native::CUDAAllocator *address = source.get();
		pool_retain(gpu_of(device), id, address == this ? nullptr : address, std::move(source));
	}
	void setUseOnOOM(c10::DeviceIndex device, MempoolId_t id, bool use) override { pool_set_use_on_oom(gpu_of(device), id, use); }
#else
	void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t id, native::CUDAAllocator *source) override
	{
		pool_retain(gpu_of(device), id, source == this ? nullptr : source, nullptr);
	}
	void setUseOnOOM(c10::DeviceIndex device, MempoolId_t id) override { pool_set_use_on_oom(gpu_of(device), id, true); }
#endif
#if HEADROOM_TORCH_AT_LEAST(10)
	void setNoSplit(c10::DeviceIndex device, MempoolId_t id) override { pool_set_no_split(gpu_of(device), id); }
#endif
	bool checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t id, const std::unordered_set<void *> &expected) override
	{
		return pool_has_exactly(gpu_of(device), id, expected);
	}
	std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex device, MempoolId_t id) override { return pool_checkpoint(gpu_of(device), id); }
	native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device, std::shared_ptr<native::AllocatorState> state) override
	{
		return pool_restore(gpu_of(device), state);
	}

	native::ShareableHandle shareIpcHandle(void *address) override
	{
		Special special;
		TORCH_CHECK(special_get(address, &special) && special.kind == Special::SHARED,
			"This tensor cannot be shared with another process: its memory is mapped by Headroom. Create it inside `with headroom.torch.shareable():`, "
			"or copy it there: `with headroom.torch.shareable(): tensor = tensor.clone()`");
		cudaIpcMemHandle_t handle;
		cuda::CUDAGuard device(special.device);
		C10_CUDA_CHECK(cudaIpcGetMemHandle(&handle, address));
		std::string text{HANDLE_VERSION, HANDLE_OF_CUDA_MALLOC};
		text.append(reinterpret_cast<const char *>(&handle), sizeof handle);
		return {0, text};
	}
	std::shared_ptr<void> getIpcDevPtr(std::string handle) override
	{
		TORCH_CHECK(handle.size() == 2 + sizeof(cudaIpcMemHandle_t) && handle[0] == HANDLE_VERSION && handle[1] == HANDLE_OF_CUDA_MALLOC,
			"the memory of this tensor cannot be opened: it was sent by another version of PyTorch, or by its native allocator with expandable_segments:True");
		return open_handle(handle);
	}
	// PyTorch calls it before the first copy between two GPUs that can access each other's memory.
	void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override
	{
		hr_device owner, user;
		hr_status status = find_device(other, &owner);
		if (!status) status = find_device(device, &user);
		if (!status) status = hr_device_allow_access(owner, user);
		if (status) throw_status(status);
		// For memory of cudaMalloc: shareable blocks, and those of other libraries.
		cuda::CUDAGuard guard(device);
		cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
		if (error == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();
		else C10_CUDA_CHECK(error);
	}
	// [peers]: enablePeerAccess was called for both directions.
	cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream, bool peers) override
	{
		if (peers || to_device == from_device) return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
		return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
	}
};

// Whether the host's memory can be pinned, without which no tensor can be evicted. Found out before PyTorch depends on it.
static hr_status check_pinning()
{
	constexpr size_t BYTES = 2 << 20, PAGE = 4096;
	void *block = aligned_alloc(PAGE, BYTES);
	if (!block) return hr_backend_set_error(HR_NO_HOST_MEMORY, "the host has no 2 MiB of memory");
	std::memset(block, 0, BYTES);
	cudaError_t error = cudaHostRegister(block, BYTES, cudaHostRegisterPortable);
	if (error == cudaSuccess) cudaHostUnregister(block);
	else (void)cudaGetLastError();
	free(block);
	if (error == cudaSuccess) return HR_OK;
	std::string text = std::string("CUDA refuses to pin memory of the host (cudaHostRegister: ") + cudaGetErrorString(error) +
		"), to which lms=True moves tensors. Raise the limit on locked memory (ulimit -l) or that of the container's memory, or install with lms=False";
	return hr_backend_set_error(HR_NO_HOST_MEMORY, text.c_str());
}

} // namespace headroom

extern "C" HR_API hr_status headroom_torch_install_cuda(const headroom::Settings *settings)
{
	using namespace headroom;
	static CudaAllocator *instance = new CudaAllocator;
	hr_device device;
	hr_status status = hr_cuda_check();
	if (status || (status = hr_device_find("GPU:0", &device))) return status;
	if (!guard_open()) return HR_NO_HOST_MEMORY;
	if (settings->lms && (status = check_pinning())) return status;
	limit_setting = settings->limit;
	FrontTable table{};
	table.type = c10::DeviceType::CUDA;
	table.devices = gpu_count;
	table.allocator = allocator_of;
	table.stream = current_stream;
	table.rests_on_copy = true;
	table.synchronize = synchronize_current;
	table.captured = is_current_captured;
	table.captures = &pool_filters;
	table.swap_capture_mode = swap_capture_mode;
	if ((status = open_allocator(device, *settings, table))) return status;
	c10::SetAllocator(c10::DeviceType::CUDA, instance, 0);
	native::allocator.store(instance);
	return HR_OK;
}

// Allocations of the calling thread can be shared with other processes between two calls, with 1 and -1.
extern "C" HR_API void headroom_torch_shareable(int change)
{
	headroom::shareable_depth += change;
}
