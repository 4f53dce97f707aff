// cuda_front.cpp - the CUDA front of plugins/torch without a card: the emulated device stands for the GPU, and this program supplies the functions of
// CUDA's runtime that the front calls. Kernels are not run; capture is a flag of a stream. It checks the bookkeeping: which memory is handed out, reused,
// counted and returned, and that no event is recorded on a stream that is captured or destroyed.
//
// With RUNTIME_ONLY it is a library of these functions, for a Python that loads it first; with DRIVER_ONLY, what PyTorch needs of the driver.
#ifdef DRIVER_ONLY
extern "C" int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
#else
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <headroom.h>
#include <torch/version.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace native = c10::cuda::CUDACachingAllocator;
using c10::MempoolId_t;

constexpr size_t KIB = 1 << 10, MIB = 1 << 20;

static void must(bool holds, const char *what, int line)
{
	if (holds) return;
	fprintf(stderr, "cuda_front: line %d: not true: %s\n", line, what);
	abort();
}
#define MUST(condition) must(condition, #condition, __LINE__)

// ---- the runtime ----

static std::mutex runtime_lock;
static std::set<cudaStream_t> capturing, destroyed;
static std::set<cudaEvent_t> pending; // events that have not happened
static bool hold_events;              // new events do not happen
static long next_handle = 0x1000, synchronizations;
static thread_local int current_device;

static void touch(cudaStream_t stream)
{
	must(!capturing.count(stream), "an event is recorded on a stream that is captured", 0);
	must(!destroyed.count(stream), "a destroyed stream is used", 0);
}

extern "C" {
cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = current_device; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { current_device = device; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
static cudaError_t make_stream(cudaStream_t *stream)
{
	std::lock_guard<std::mutex> guard(runtime_lock);
	*stream = reinterpret_cast<cudaStream_t>(next_handle += 16);
	return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) { return make_stream(stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) { return make_stream(stream); }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
	std::lock_guard<std::mutex> guard(runtime_lock);
	must(!destroyed.count(stream), "a destroyed stream is used", 0);
	*status = capturing.count(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
	return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
	std::lock_guard<std::mutex> guard(runtime_lock);
	*event = reinterpret_cast<cudaEvent_t>(next_handle += 16);
	return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	std::lock_guard<std::mutex> guard(runtime_lock);
	touch(stream);
	if (hold_events) pending.insert(event);
	return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
	std::lock_guard<std::mutex> guard(runtime_lock);
	return pending.count(event) ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t, unsigned)
{
	std::lock_guard<std::mutex> guard(runtime_lock);
	touch(stream);
	return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize()
{
	std::lock_guard<std::mutex> guard(runtime_lock);
	must(capturing.empty(), "the device is synchronized during a capture", 0);
	pending.clear();
	synchronizations++;
	return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMalloc(void **address, size_t bytes) { *address = aligned_alloc(512, (bytes + 511) / 512 * 512); return cudaSuccess; }
cudaError_t cudaFree(void *address) { free(address); return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { *free = 512 * MIB; *total = 1024 * MIB; return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address) { memset(handle, 0, sizeof *handle); memcpy(handle, &address, sizeof address); return cudaSuccess; }
cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle, unsigned) { memcpy(address, &handle, sizeof *address); return cudaSuccess; }
cudaError_t cudaIpcCloseMemHandle(void *) { return cudaSuccess; }

#ifdef RUNTIME_ONLY
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *device, int)
{
	memset(device, 0, sizeof *device);
	strcpy(device->name, "none");
	device->major = 9;
	device->totalGlobalMem = 1024 * MIB;
	device->multiProcessorCount = 1;
	device->warpSize = 32;
	return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) { *value = 1; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) { *can = 0; return cudaSuccess; }
#endif

// The emulated device has streams of its own.
hr_status hr_stream_import(hr_device device, uint64_t, hr_stream *out) { return hr_stream_create(device, out); }
hr_status hr_cuda_check(void) { return HR_OK; }

#ifdef RUNTIME_ONLY
}
#else
struct Settings {
	uint64_t limit, movable, host_limit;
	const char *spill_dir, *policy;
	int lms, verify;
};
hr_status headroom_torch_install_cuda(const Settings *settings);
void headroom_torch_shareable(int change);
uint64_t headroom_torch_allocator(void);
}

namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*function)(DeviceIndex)); // libtorch_cuda sets it, which this program does not load
}

// ---- helpers ----

static native::CUDAAllocator *allocator;

static c10::CachingDeviceAllocator::Stat stat(const c10::CachingDeviceAllocator::StatArray &array) { return array[0]; }
static int64_t allocated() { return stat(allocator->getDeviceStats(0).allocated_bytes).current; }

static cudaStream_t external_stream()
{
	cudaStream_t stream;
	make_stream(&stream);
	return stream;
}

static void set_capturing(cudaStream_t stream, bool on)
{
	std::lock_guard<std::mutex> guard(runtime_lock);
	if (on) capturing.insert(stream);
	else capturing.erase(stream);
}

struct Capture { // what torch.cuda.graph does
	c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
	c10::cuda::CUDAStreamGuard guard{stream};
	MempoolId_t id;
	explicit Capture(MempoolId_t pool) : id(pool)
	{
		cudaStream_t raw = stream.stream();
		allocator->beginAllocateToPool(0, id, [raw](cudaStream_t asked) { return asked == raw && capturing.count(raw); });
		set_capturing(raw, true);
	}
	~Capture()
	{
		set_capturing(stream.stream(), false);
		allocator->endAllocateToPool(0, id);
	}
};

static size_t pool_bytes(MempoolId_t id)
{
	size_t bytes = 0;
	for (const auto &segment : allocator->snapshot(id).segments) bytes += segment.total_size;
	return bytes;
}

template <typename Call> static std::string message_of(Call call)
{
	try {
		call();
	} catch (const c10::Error &error) {
		return error.what();
	}
	return "";
}

// ---- the checks ----

static void statistics_count_every_block()
{
	int64_t base = allocated();
	{
		c10::DataPtr none = allocator->allocate(0);
		MUST(none.get() == nullptr && allocated() == base);
		c10::DataPtr a = allocator->allocate(4 * MIB), b = allocator->allocate(MIB);
		MUST(allocated() == base + int64_t(5 * MIB));
		a.clear();
		MUST(allocated() == base + int64_t(MIB));
		auto stats = allocator->getDeviceStats(0);
		MUST(stat(stats.allocated_bytes).peak == base + int64_t(5 * MIB));
		MUST(stat(stats.allocation).allocated - stat(stats.allocation).freed == stat(stats.allocation).current);
		int64_t count = stat(stats.allocation).allocated;
		allocator->resetPeakStats(0);
		stats = allocator->getDeviceStats(0);
		MUST(stat(stats.allocated_bytes).peak == base + int64_t(MIB) && stat(stats.allocation).allocated == count);
		allocator->resetAccumulatedStats(0);
		stats = allocator->getDeviceStats(0);
		MUST(stat(stats.allocation).allocated == 0 && stat(stats.allocation).freed == 0 && stat(stats.allocated_bytes).freed == 0);
		c10::DataPtr c = allocator->allocate(2 * MIB);
		allocator->resetPeakStats(0);
		stats = allocator->getDeviceStats(0);
		MUST(stat(stats.allocation).allocated == 1 && stat(stats.allocated_bytes).allocated == int64_t(2 * MIB));
	}
	MUST(allocated() == base);
}

static void out_of_memory_is_counted_and_observed()
{
	static int seen;
	allocator->attachOutOfMemoryObserver([](int64_t device, size_t bytes, size_t, size_t) { seen += device == 0 && bytes == 1ull << 40; });
	int64_t before = allocator->getDeviceStats(0).num_ooms;
	MUST(message_of([] { allocator->allocate(1ull << 40); }).find("out of memory") != std::string::npos);
	MUST(seen == 1 && allocator->getDeviceStats(0).num_ooms == before + 1);
	allocator->setMemoryFraction(0.1, 0);
	MUST(message_of([] { allocator->allocate(200 * MIB); }).find("set_per_process_memory_fraction") != std::string::npos);
	allocator->setMemoryFraction(1, 0);
	MUST(allocator->allocate(200 * MIB).get());
}

static void memory_of_pools_counts_against_the_limit()
{
	const MempoolId_t id{0, 6};
	int64_t base = allocated(), ooms = allocator->getDeviceStats(0).num_ooms;
	allocator->beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
	c10::DataPtr in_pool = allocator->allocate(400 * MIB);
	MUST(message_of([] { allocator->allocate(700 * MIB); }).find("out of memory") != std::string::npos); // of the pool itself
	allocator->endAllocateToPool(0, id);
	for (int i = 0; i < 3; i++) {
		std::string message = message_of([] { allocator->allocate(700 * MIB); });
		MUST(message.find("install(limit=...)") != std::string::npos && message.find("memory pools hold 419430400 bytes") != std::string::npos);
		MUST(allocator->allocate(200 * MIB).get());
	}
	MUST(allocator->getDeviceStats(0).num_ooms == ooms + 4);
	in_pool.clear();
	allocator->releasePool(0, id);
	allocator->emptyCache({0, 0});
	MUST(allocator->allocate(700 * MIB).get());
	MUST(allocated() == base);
}

static void streams_of_any_number_get_memory()
{
	int64_t base = allocated();
	std::vector<c10::DataPtr> held;
	MUST(c10::cuda::getStreamFromPool().id() % 2 == 1 && c10::cuda::getDefaultCUDAStream().id() == 0); // what tells external streams apart
	MUST(c10::cuda::getStreamFromExternal(external_stream(), 0).id() % 2 == 0);
	for (int i = 0; i < 200; i++) {
		c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(-(i % 4), 0));
		held.push_back(allocator->allocate(64 * KIB));
		allocator->recordStream(held.back(), c10::cuda::getStreamFromPool(-((i + 1) % 4), 0));
	}
	MUST(allocated() == base + int64_t(200 * 64 * KIB));
	std::set<void *> different;
	for (const auto &data : held) different.insert(data.get());
	MUST(different.size() == 200);
	held.clear();
	MUST(allocated() == base);
}

static void external_streams_may_be_destroyed()
{
	int64_t base = allocated();
	for (int i = 0; i < 20; i++) {
		cudaStream_t raw = external_stream();
		c10::DataPtr shared = allocator->allocate(MIB), own;
		{
			c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(raw, 0));
			own = allocator->allocate(MIB);
		}
		allocator->recordStream(shared, c10::cuda::getStreamFromExternal(raw, 0));
		std::lock_guard<std::mutex>{runtime_lock}, destroyed.insert(raw);
	}
	long before = synchronizations;
	allocator->emptyCache({0, 0});
	MUST(allocated() == base && synchronizations > before);
}

// The streams that hr_free waits for, by Headroom's numbers.
static uint64_t users_of(void *address)
{
	hr_allocation_info info;
	hr_allocation_info_init(&info);
	MUST(hr_allocation_get_info(hr_allocator{headroom_torch_allocator()}, address, &info) == HR_OK);
	return info.streams;
}

static void the_default_stream_is_recorded_after_an_external_one()
{
	int64_t base = allocated();
	c10::DataPtr data;
	{
		c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
		data = allocator->allocate(MIB);
	}
	MUST(!(users_of(data.get()) & 1ull << HR_STREAM_DEFAULT));
	allocator->recordStream(data, c10::cuda::getStreamFromExternal(external_stream(), 0));
	allocator->recordStream(data, c10::cuda::getDefaultCUDAStream());
	MUST(users_of(data.get()) & 1ull << HR_STREAM_DEFAULT);
	data.clear();
	allocator->emptyCache({0, 0});
	MUST(allocated() == base);
}

static void a_capture_allocates_in_its_pool()
{
	const MempoolId_t id{7, 0};
	int64_t base = allocated();
	c10::DataPtr before = allocator->allocate(3 * MIB), in_pool, again;
	{
		Capture capture(id);
		in_pool = allocator->allocate(5 * MIB);
		void *address = in_pool.get();
		in_pool.clear();
		again = allocator->allocate(5 * MIB);
		MUST(again.get() == address); // reused on the same stream, without an event
		in_pool = allocator->allocate(1000);
		before.clear(); // put off
		MUST(allocated() == base + int64_t(3 * MIB + 5 * MIB + 1024));
		// Another stream that is not captured: neither the main allocator nor the pool.
		std::thread other([] {
			c10::DataPtr outside = allocator->allocate(MIB);
			MUST(outside.get());
		});
		other.join();
	}
	allocator->emptyCache({0, 0});
	MUST(allocated() == base + int64_t(5 * MIB + 1024));
	MUST(pool_bytes(id) == 22 * MIB);
	MUST(allocator->getPoolUseCount(0, id) == 1);
	MUST(allocator->checkPoolLiveAllocations(0, id, {again.get(), in_pool.get()}));
	MUST(!allocator->checkPoolLiveAllocations(0, id, {again.get()}));
	allocator->emptyCache({0, 0});
	MUST(pool_bytes(id) == 22 * MIB); // the graph needs them
	again.clear();
	in_pool.clear();
	MUST(pool_bytes(id) == 22 * MIB);
	allocator->releasePool(0, id);
	allocator->emptyCache({0, 0});
	MUST(pool_bytes(id) == 0 && allocated() == base && allocator->getPoolUseCount(0, id) == 0);
}

// What make_graphed_callables does: a forward graph, and a backward graph whose memory is allocated by autograd's thread, in one pool.
static void graphs_of_a_pool_keep_their_memory()
{
	const MempoolId_t id{0, 10};
	int64_t base = allocated();
	c10::DataPtr output, gradient;
	void *temporary = nullptr;
	{
		Capture forward(id);
		temporary = allocator->allocate(5 * MIB).get(); // freed again
		output = allocator->allocate(5 * MIB);
		MUST(output.get() == temporary);
	}
	c10::DataPtr static_gradient = allocator->allocate(5 * MIB); // between the captures: not of the pool
	MUST(pool_bytes(id) == 20 * MIB);
	{
		Capture backward(id);
		c10::cuda::CUDAStream stream = backward.stream;
		std::thread autograd([&] {
			c10::cuda::CUDAStreamGuard guard(stream);
			gradient = allocator->allocate(5 * MIB);
		});
		autograd.join();
		MUST(gradient.get() != output.get() && gradient.get() != static_gradient.get());
	}
	MUST(allocator->checkPoolLiveAllocations(0, id, {output.get(), gradient.get()}));
	void *freed = gradient.get();
	gradient.clear();
	{
		c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
		std::vector<c10::DataPtr> others;
		for (int i = 0; i < 20; i++) {
			others.push_back(allocator->allocate(5 * MIB));
			MUST(others.back().get() != freed); // the graph writes there when it is replayed
		}
	}
	output.clear();
	static_gradient.clear();
	allocator->releasePool(0, id);
	allocator->releasePool(0, id);
	allocator->emptyCache({0, 0});
	MUST(pool_bytes(id) == 0 && allocated() == base);
}

static void frees_in_a_pool_wait_for_recorded_streams()
{
	const MempoolId_t id{8, 0};
	c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
	void *address;
	{
		Capture capture(id);
		c10::DataPtr data = allocator->allocate(5 * MIB);
		address = data.get();
		set_capturing(side.stream(), true); // joined the capture
		allocator->recordStream(data, side);
		data.clear();
		MUST(allocator->allocate(5 * MIB).get() != address);
		set_capturing(side.stream(), false);
	}
	hold_events = true;
	allocator->beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
	c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
	MUST(allocator->allocate(MIB + 1).get() != address);
	hold_events = false;
	pending.clear();
	MUST(allocator->allocate(MIB + 1).get());
	MUST(allocator->checkPoolLiveAllocations(0, id, {}));
	allocator->endAllocateToPool(0, id);
	allocator->releasePool(0, id);
	allocator->releasePool(0, id);
	allocator->emptyCache({0, 0});
	MUST(pool_bytes(id) == 0);
}

static void checkpoints_restore_a_pool()
{
	const MempoolId_t id{9, 0};
	Capture capture(id);
	c10::DataPtr a = allocator->allocate(2 * MIB), b = allocator->allocate(3 * MIB);
	auto state = allocator->getCheckpointState(0, id);
	void *address = b.get();
	int64_t bytes = allocated();
	b.clear();
	c10::DataPtr c = allocator->allocate(3 * MIB), d = allocator->allocate(30 * MIB);
	MUST(c.get() == address);
	c.release_context(); // the storages that PyTorch takes the deleters from
	d.release_context();
	void *kept = a.get();
	a.release_context();
	native::CheckpointDelta delta = allocator->setCheckpointPoolState(0, state);
	MUST(delta.ptrs_freed.size() == 3 && delta.dataptrs_allocd.size() == 2);
	std::set<void *> made;
	for (const auto &data : delta.dataptrs_allocd) {
		made.insert(data.get());
		MUST(data.get_deleter() == allocator->raw_deleter());
	}
	MUST((made == std::set<void *>{kept, address}) && allocated() == bytes);
	MUST(allocator->checkPoolLiveAllocations(0, id, {kept, address}));
	allocator->raw_delete(address); // as cudagraph trees do
	for (auto &data : delta.dataptrs_allocd)
		if (data.get() == address) data.release_context();
	MUST(allocator->allocate(3 * MIB).get() == address);
	MUST(!message_of([&] { allocator->setCheckpointPoolState(0, std::make_shared<native::AllocatorState>()); }).empty());
}

static void a_pool_exists_while_it_is_used()
{
	const MempoolId_t id{0, 5};
	allocator->createOrIncrefPool(0, id);
#if TORCH_VERSION_MINOR >= 11
	allocator->setUseOnOOM(0, id, false);
#endif
#if TORCH_VERSION_MINOR >= 10
	allocator->setNoSplit(0, id);
#endif
	MUST(allocator->getPoolUseCount(0, id) == 1);
	allocator->beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
	MUST(allocator->getPoolUseCount(0, id) == 2);
	c10::DataPtr a = allocator->allocate(12 * MIB + 1);
	size_t size = 0;
	MUST(allocator->getBaseAllocation(a.get(), &size) == a.get() && size == 14 * MIB);
	MUST(!message_of([&] { allocator->beginAllocateToPool(0, id, [](cudaStream_t) { return true; }); }).empty());
	allocator->endAllocateToPool(0, id);
	MUST(!message_of([&] { allocator->endAllocateToPool(0, id); }).empty());
	allocator->releasePool(0, id);
	allocator->releasePool(0, id);
	allocator->emptyCache(id);
	MUST(pool_bytes(id) == 14 * MIB); // the tensor outlives the pool
	a.clear();
	allocator->emptyCache(id);
	MUST(pool_bytes(id) == 0);
}

static void snapshots_have_every_block()
{
	c10::DataPtr a = allocator->allocate(512), b = allocator->allocate(3 * MIB);
	auto snapshot = allocator->snapshot();
	std::map<size_t, size_t> active;
	size_t total = 0;
	for (const auto &segment : snapshot.segments) {
		size_t address = segment.address;
		total += segment.total_size;
		for (const auto &block : segment.blocks) {
			if (block.allocated) active[address] = block.size;
			address += block.size;
		}
		MUST(address == segment.address + segment.total_size);
	}
	MUST(active.count(reinterpret_cast<size_t>(a.get())) && active[reinterpret_cast<size_t>(b.get())] == 3 * MIB);
	size_t sum = 0;
	for (const auto &[address, bytes] : active) sum += bytes;
	MUST(int64_t(sum) == allocated() && int64_t(total) == stat(allocator->getDeviceStats(0).reserved_bytes).current);
	MUST(snapshot.device_traces.size() == 1 && snapshot.device_traces[0].empty());
}

static void record_history(bool enabled, native::CreateContextFn context, size_t entries, native::RecordContext when, bool clear)
{
#if TORCH_VERSION_MINOR >= 11
	allocator->recordHistory(enabled, context, entries, when, clear, {});
#else
	allocator->recordHistory(enabled, context, entries, when, clear);
#endif
}

static std::shared_ptr<c10::GatheredContext> gather() { return std::make_shared<c10::GatheredContext>(); }

static void the_history_is_a_ring()
{
	static int tracked;
	allocator->attachAllocatorTraceTracker([](const native::TraceEntry &) { tracked++; });
	record_history(true, gather, 5, native::RecordContext::ALL, true);
	MUST(allocator->isHistoryEnabled());
	c10::DataPtr a = allocator->allocate(MIB);
	void *address = a.get();
	a.clear();
	auto trace = allocator->snapshot().device_traces[0];
	MUST(trace.size() == 3 && trace[0].action_ == native::TraceEntry::ALLOC && trace[1].action_ == native::TraceEntry::FREE_REQUESTED);
	MUST(trace[2].action_ == native::TraceEntry::FREE_COMPLETED && trace[0].addr_ == reinterpret_cast<size_t>(address) && trace[0].context_);
	for (int i = 0; i < 10; i++) allocator->allocate(MIB + i);
	trace = allocator->snapshot().device_traces[0];
	MUST(trace.size() == 5 && trace.back().action_ == native::TraceEntry::FREE_COMPLETED);
	MUST(tracked >= 33);
	record_history(false, nullptr, 1, native::RecordContext::NEVER, false);
	MUST(!allocator->isHistoryEnabled() && allocator->snapshot().device_traces[0].empty());
}

static void only_shareable_tensors_are_shared()
{
	int64_t base = allocated();
	c10::DataPtr plain = allocator->allocate(MIB);
	MUST(message_of([&] { allocator->shareIpcHandle(plain.get()); }).find("headroom.torch.shareable") != std::string::npos);
	headroom_torch_shareable(1);
	c10::DataPtr shared = allocator->allocate(MIB);
	headroom_torch_shareable(-1);
	MUST(allocated() == base + int64_t(2 * MIB));
	native::ShareableHandle handle = allocator->shareIpcHandle(shared.get());
	MUST(handle.offset == 0 && allocator->getIpcDevPtr(handle.handle).get() == shared.get());
	MUST(!message_of([] { allocator->getIpcDevPtr("something else"); }).empty());
	shared.clear();
	plain.clear();
	MUST(allocated() == base);
}

static void threads_share_no_byte()
{
	std::vector<std::thread> threads;
	for (int number = 0; number < 4; number++)
		threads.emplace_back([number] {
			std::vector<std::pair<c10::DataPtr, size_t>> held;
			unsigned random = number + 1;
			c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
			for (int i = 0; i < 2000; i++) {
				random = random * 1103515245 + 12345;
				size_t bytes = 1 + random / 65536 % (64 * KIB);
				held.emplace_back(allocator->allocate(bytes), bytes);
				memset(held.back().first.get(), number * 16 + 1, bytes);
				if (held.size() < 20) continue;
				auto &[data, size] = held[random / 7 % held.size()];
				for (size_t at = 0; at < size; at += 997) must(static_cast<unsigned char *>(data.get())[at] == number * 16 + 1, "two threads share a byte", __LINE__);
				std::swap(held[random / 7 % held.size()], held.back());
				held.pop_back();
			}
		});
	for (auto &thread : threads) thread.join();
}

// With Large Model Support: blocks of 1 MiB and more are tensors of the engine.
static void movable_tensors_are_counted_and_freed()
{
	int64_t base = allocated();
	c10::DataPtr a = allocator->allocate(4 * MIB), small = allocator->allocate(KIB);
	MUST(allocated() == base + int64_t(4 * MIB + KIB));
	a.clear();
	small.clear();
	MUST(allocated() == base);
	void *raw = allocator->raw_allocate(4 * MIB); // the deleter of a block and that of the allocator may differ
	MUST(allocated() == base + int64_t(4 * MIB));
	allocator->raw_deallocate(raw);
	MUST(allocated() == base);
	{
		c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(external_stream(), 0));
		c10::DataPtr b = allocator->allocate(4 * MIB);
		MUST(allocated() == base + int64_t(4 * MIB));
	}
	MUST(allocated() == base);
	allocator->setMemoryFraction(0.5, 0);
	allocator->setMemoryFraction(1, 0);
	MUST(message_of([] { allocator->allocate(1ull << 40); }).find("out of memory") != std::string::npos);
	MUST(message_of([] {
		Capture capture({70, 0});
		allocator->allocate(MIB);
	}).find("lms=True") != std::string::npos);
}

static void streams_recorded_for_a_movable_tensor_do_not_outlive_it()
{
	int64_t base = allocated();
	c10::DataPtr movable = allocator->allocate(4 * MIB);
	void *address = movable.get();
	allocator->recordStream(movable, c10::cuda::getStreamFromExternal(external_stream(), 0));
	movable.clear();
	MUST(allocated() == base);
	std::vector<c10::DataPtr> small; // blocks that do not move, until one has the address
	while (small.empty() || small.back().get() != address) {
		MUST(small.size() < 100);
		small.push_back(allocator->allocate(512 * KIB));
	}
	small.clear();
	MUST(allocated() == base); // a block that an external stream used is freed later
}

int main(int count, char **arguments)
{
	Settings settings{};
	bool lms = count > 1 && std::string(arguments[1]) == "lms";
	settings.lms = lms;
	c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
	settings.limit = 900 * MIB;
	hr_status status = headroom_torch_install_cuda(&settings);
	if (status) {
		fprintf(stderr, "cuda_front: %s\n", hr_last_message());
		return 1;
	}
	allocator = native::get();
	allocator->init(1);
	MUST(allocator->name() == "headroom" && allocator->initialized());
	static const struct { const char *name; void (*run)(); bool lms; } checks[] = {
#define CHECK(name) {#name, name, false}
#define CHECK_LMS(name) {#name, name, true}
		CHECK(statistics_count_every_block), CHECK(out_of_memory_is_counted_and_observed),
		CHECK(memory_of_pools_counts_against_the_limit), CHECK(streams_of_any_number_get_memory),
		CHECK(external_streams_may_be_destroyed), CHECK(the_default_stream_is_recorded_after_an_external_one), CHECK(a_capture_allocates_in_its_pool), CHECK(graphs_of_a_pool_keep_their_memory),
		CHECK(frees_in_a_pool_wait_for_recorded_streams),
		CHECK(checkpoints_restore_a_pool), CHECK(a_pool_exists_while_it_is_used), CHECK(snapshots_have_every_block),
		CHECK(only_shareable_tensors_are_shared), CHECK(threads_share_no_byte), CHECK(the_history_is_a_ring),
		CHECK_LMS(movable_tensors_are_counted_and_freed), CHECK_LMS(streams_recorded_for_a_movable_tensor_do_not_outlive_it),
#undef CHECK
#undef CHECK_LMS
	};
	for (const auto &check : checks) {
		if (check.lms != lms) continue;
		fprintf(stderr, "%s\n", check.name);
		check.run();
	}
	printf("ok\n");
	return 0;
}
#endif // RUNTIME_ONLY
#endif // DRIVER_ONLY
