// cuda_streams.cpp - PyTorch's streams as streams of Headroom, any number of them.
//
// Headroom knows 64 streams of a device and records events on them later, so only streams that are never destroyed get a number: the default stream and
// the first NUMBERED of PyTorch's pools. All others share the number of the BRIDGE, a stream of our own. A block for such a stream S is allocated on the
// bridge, and S waits for the bridge. When it is freed, the bridge waits for S, or, if S may be destroyed by now, for all work of the context.
//
// An event is never recorded on a stream that is captured into a graph. Frees that would need one are put off until the capture has ended. With Large Model
// Support the engine moves tensors during a capture too: it forgets the streams that are captured, and the host stands for them.
#include "cuda_front.h"

#include <dlfcn.h>

namespace headroom {

constexpr int NUMBERED = 58; // leaves numbers for the default stream, the bridge and Headroom's own copies
constexpr size_t MOST_PUT_OFF = 256; // without the driver's help, the device is synchronized when there are more

// ---- the table of special blocks ----

constexpr size_t SHARDS = 32;

struct Shard {
	std::mutex lock;
	std::unordered_map<void *, Special> blocks;
};

std::atomic<int64_t> special_count{0};

static Shard &shard_of(void *address)
{
	static auto *shards = new Shard[SHARDS]; // never destroyed: PyTorch frees storages while the process ends
	return shards[(reinterpret_cast<uintptr_t>(address) >> 9) % SHARDS];
}

void special_add(void *address, const Special &special)
{
	Shard &shard = shard_of(address);
	std::lock_guard<std::mutex> guard(shard.lock);
	if (shard.blocks.insert_or_assign(address, special).second) special_count++;
}

bool special_take(void *address, Special *special)
{
	Shard &shard = shard_of(address);
	std::lock_guard<std::mutex> guard(shard.lock);
	auto found = shard.blocks.find(address);
	if (found == shard.blocks.end()) return false;
	*special = std::move(found->second);
	shard.blocks.erase(found);
	special_count--;
	return true;
}

bool special_get(void *address, Special *special)
{
	Shard &shard = shard_of(address);
	std::lock_guard<std::mutex> guard(shard.lock);
	auto found = shard.blocks.find(address);
	if (found == shard.blocks.end()) return false;
	*special = found->second;
	return true;
}

void special_change(void *address, const std::function<void(Special &)> &change)
{
	Shard &shard = shard_of(address);
	std::lock_guard<std::mutex> guard(shard.lock);
	auto [found, added] = shard.blocks.try_emplace(address);
	if (added) special_count++;
	change(found->second);
}

// ---- events ----

cudaEvent_t take_event(Gpu &gpu)
{
	{
		std::lock_guard<std::mutex> guard(gpu.stream_lock);
		if (!gpu.spare_events.empty()) {
			cudaEvent_t event = gpu.spare_events.back();
			gpu.spare_events.pop_back();
			return event;
		}
	}
	cuda::CUDAGuard device(gpu.index);
	cudaEvent_t event = nullptr;
	C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	return event;
}

void put_event(Gpu &gpu, cudaEvent_t event)
{
	std::lock_guard<std::mutex> guard(gpu.stream_lock);
	gpu.spare_events.push_back(event);
}

// ---- captures ----

bool is_capturing(cudaStream_t stream)
{
	cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
	if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
		(void)cudaGetLastError(); // the legacy stream cannot be asked while another one is captured; it is not captured itself
		return false;
	}
	return status != cudaStreamCaptureStatusNone;
}

bool capture_under_way_locked(Gpu &gpu)
{
	for (const PoolFilter &filter : gpu.filters)
		if (is_capturing(filter.stream)) return true;
	return false;
}

bool capture_under_way(Gpu &gpu)
{
	if (gpu.filter_count.load(std::memory_order_acquire) == 0) return false;
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	return capture_under_way_locked(gpu);
}

// ---- numbers ----

bool streams_open(Gpu &gpu)
{
	cuda::CUDAGuard device(gpu.index);
	if (cudaStreamCreateWithFlags(&gpu.bridge, cudaStreamNonBlocking) != cudaSuccess) return false;
	return hr_stream_import(gpu.device, reinterpret_cast<uint64_t>(gpu.bridge), &gpu.bridge_number) == HR_OK;
}

static hr_stream find_number(Gpu &gpu, cudaStream_t stream, bool external)
{
	std::lock_guard<std::mutex> guard(gpu.stream_lock);
	auto found = gpu.numbers.find(stream);
	if (found != gpu.numbers.end()) return found->second;
	// Headroom records an event on a stream that it learns of.
	if (external || is_capturing(stream)) return gpu.bridge_number;
	hr_stream number = gpu.bridge_number;
	if (gpu.imported < NUMBERED && hr_stream_import(gpu.device, reinterpret_cast<uint64_t>(stream), &number) == HR_OK) gpu.imported++;
	gpu.numbers[stream] = number;
	return number;
}

static std::atomic<uint64_t> forgotten{0}; // streams that have lost their number

void forget_captured_streams(Gpu &gpu)
{
	std::lock_guard<std::mutex> guard(gpu.stream_lock);
	for (auto next = gpu.numbers.begin(); next != gpu.numbers.end();) {
		auto [stream, number] = *next++;
		if (number == gpu.bridge_number || !is_capturing(stream)) continue;
		hr_stream_forget(gpu.device, number);
		gpu.numbers.erase(stream);
		gpu.imported--;
		forgotten++;
	}
}

hr_stream number_of(Gpu &gpu, cudaStream_t stream, bool external)
{
	if (!stream) return HR_STREAM_DEFAULT;
	if (external) return find_number(gpu, stream, true);
	thread_local cudaStream_t last = nullptr; // streams of different GPUs differ
	thread_local hr_stream last_number = HR_STREAM_DEFAULT;
	thread_local uint64_t last_forgotten = 0;
	uint64_t now_forgotten = forgotten.load(std::memory_order_acquire);
	if (stream == last && now_forgotten == last_forgotten) return last_number;
	hr_stream number = find_number(gpu, stream, false);
	if (number != gpu.bridge_number) {
		last = stream;
		last_number = number;
		last_forgotten = now_forgotten;
	}
	return number;
}

// ---- the bridge ----

static cudaError_t order(Gpu &gpu, cudaStream_t waiter, cudaStream_t other)
{
	cudaEvent_t event = take_event(gpu);
	cudaError_t error = cudaEventRecord(event, other);
	if (error == cudaSuccess) error = cudaStreamWaitEvent(waiter, event, 0);
	put_event(gpu, event); // the wait is for the event as recorded now
	if (error != cudaSuccess) (void)cudaGetLastError();
	return error;
}

void wait_for_bridge(Gpu &gpu, cudaStream_t stream)
{
	cuda::CUDAGuard device(gpu.index);
	C10_CUDA_CHECK(order(gpu, stream, gpu.bridge));
}

// All work of the context so far, whatever its stream. CUDA 12.5 and newer.
static bool record_context(cudaEvent_t event)
{
	using Record = int (*)(void *, void *);
	using Current = int (*)(void **);
	static void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	static auto record = driver ? reinterpret_cast<Record>(dlsym(driver, "cuCtxRecordEvent")) : nullptr;
	static auto current = driver ? reinterpret_cast<Current>(dlsym(driver, "cuCtxGetCurrent")) : nullptr;
	void *context = nullptr;
	return record && current && current(&context) == 0 && context && record(context, event) == 0;
}

bool bridge_wait_for_users(Gpu &gpu, const Special &special)
{
	cuda::CUDAGuard device(gpu.index);
	for (cudaStream_t stream : special.streams)
		if (is_capturing(stream) || order(gpu, gpu.bridge, stream) != cudaSuccess) return false;
	if (!special.external) return true;
	// Recording a context invalidates captures in it. The lock keeps a new one from beginning, and a filter may belong to one that begins now.
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	if (!gpu.filters.empty()) return false;
	cudaEvent_t event = take_event(gpu);
	bool recorded = record_context(event) && cudaStreamWaitEvent(gpu.bridge, event, 0) == cudaSuccess;
	put_event(gpu, event);
	return recorded;
}

// ---- frees that are put off ----

void put_off_free(Gpu &gpu, void *address, const Special &special)
{
	std::lock_guard<std::mutex> guard(gpu.stream_lock);
	gpu.put_off.push_back({address, special});
	gpu.put_off_count++;
}

static void free_shared(Gpu &gpu, const PutOff &block)
{
	{
		cuda::CUDAGuard device(gpu.index);
		(void)cudaFree(block.address); // waits for the device
	}
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	count_block(gpu, block.special.bytes, block.special.bytes, false);
	count_segment(gpu, block.special.bytes, false);
}

static void free_main(Gpu &gpu, const PutOff &block)
{
	const Special &special = block.special;
	if (special.kind == Special::SHARED) {
		free_shared(gpu, block);
	} else {
		bool bridged = !special.streams.empty() || special.external;
		hr_status status = bridged ? hr_allocation_record_stream(gpu.main, block.address, gpu.bridge_number) : HR_OK;
		if (status) return; // the block is unknown, so it cannot be freed either
		EngineCall call;
		hr_free(gpu.main, block.address, HR_STREAM_HOST);
	}
	trace(native::TraceEntry::FREE_COMPLETED, gpu, block.address, 0, special.stream);
}

void free_put_off(Gpu &gpu, bool wait)
{
	if (gpu.put_off_count.load(std::memory_order_relaxed) == 0 || capture_under_way(gpu)) return;
	std::vector<PutOff> blocks;
	{
		std::lock_guard<std::mutex> guard(gpu.stream_lock);
		blocks.swap(gpu.put_off);
		gpu.put_off_count = 0;
	}
	wait = wait || (blocks.size() > MOST_PUT_OFF && gpu.filter_count == 0);
	if (wait) {
		cuda::CUDAGuard device(gpu.index);
		gpu.syncs++;
		(void)cudaDeviceSynchronize(); // an error is sticky, and PyTorch's next call reports it
	}
	for (const PutOff &block : blocks) {
		if (wait || block.special.kind == Special::SHARED || bridge_wait_for_users(gpu, block.special)) free_main(gpu, block);
		else put_off_free(gpu, block.address, block.special);
	}
}

} // namespace headroom
