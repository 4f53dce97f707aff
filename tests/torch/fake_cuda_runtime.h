// fake_cuda_runtime.h - what the CUDA front of plugins/torch needs of CUDA's runtime, without a card: the emulated device stands for the GPU. Capture is a
// flag of a stream. FAKE_GPUS is the number of GPUs; with FAKE_NO_PINNING no host memory can be pinned. Included by one program, or by one library that a Python loads first (RUNTIME_ONLY).
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <headroom.h>
#include <torch/version.h>

#include <atomic>
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
	fprintf(stderr, "line %d: not true: %s\n", line, what);
	abort();
}
#define MUST(condition) must(condition, #condition, __LINE__)

// ---- the runtime ----

static std::mutex runtime_lock;
static std::set<cudaStream_t> capturing, destroyed;
static std::set<cudaEvent_t> pending; // events that have not happened
static bool hold_events;              // new events do not happen
static std::map<std::pair<uint32_t, uint64_t>, hr_stream> numbers; // of streams that the plug-in has told Headroom about, by device
static long next_handle = 0x1000, synchronizations;
static std::set<std::pair<int, int>> peers;                 // the first GPU may access memory of cudaMalloc of the second
static std::set<std::pair<uint32_t, uint32_t>> accessible;  // memory that Headroom maps on the first device is accessible to the second
static int peer_copies;
static thread_local int current_device;

// Call number [fails_at] of those that can fail does, counted from 1; 0 = none does.
static std::atomic<long> runtime_calls, fails_at;
static bool call_fails() { return ++runtime_calls == fails_at; }
#define MAY_FAIL do { if (call_fails()) return cudaErrorUnknown; } while (0)

static void touch(cudaStream_t stream)
{
	must(!capturing.count(stream), "an event is recorded on a stream that is captured", 0);
	must(!destroyed.count(stream), "a destroyed stream is used", 0);
}

extern "C" {
cudaError_t cudaGetDeviceCount(int *count)
{
	const char *gpus = getenv("FAKE_GPUS");
	*count = gpus ? atoi(gpus) : 1;
	return cudaSuccess;
}
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
	MAY_FAIL;
	std::lock_guard<std::mutex> guard(runtime_lock);
	*event = reinterpret_cast<cudaEvent_t>(next_handle += 16);
	return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	MAY_FAIL;
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
	MAY_FAIL;
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
cudaError_t cudaStreamSynchronize(cudaStream_t) { MAY_FAIL; return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned)
{
	std::lock_guard<std::mutex> guard(runtime_lock);
	must(other != current_device, "a GPU is not its own peer", 0);
	return peers.insert({current_device, other}).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t)
{
	memcpy(to, from, bytes);
	return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t)
{
	memcpy(to, from, bytes);
	peer_copies++;
	return cudaSuccess;
}
cudaError_t cudaMalloc(void **address, size_t bytes) { MAY_FAIL; *address = aligned_alloc(512, (bytes + 511) / 512 * 512); return cudaSuccess; }
cudaError_t cudaHostRegister(void *, size_t, unsigned) { return getenv("FAKE_NO_PINNING") ? cudaErrorMemoryAllocation : cudaSuccess; }
cudaError_t cudaHostUnregister(void *) { return cudaSuccess; }
cudaError_t cudaFree(void *address) { free(address); return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { *free = 512 * MIB; *total = 1024 * MIB; return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
static thread_local cudaStreamCaptureMode capture_mode;
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
	std::swap(*mode, capture_mode);
	return cudaSuccess;
}
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
hr_status hr_stream_import(hr_device device, uint64_t native, hr_stream *out)
{
	hr_status status = hr_stream_create(device, out);
	std::lock_guard<std::mutex> guard(runtime_lock);
	touch(reinterpret_cast<cudaStream_t>(native)); // the real one records an event
	if (status == HR_OK) numbers[{device.id, native}] = *out;
	return status;
}
hr_status hr_stream_forget(hr_device device, hr_stream stream)
{
	{
		std::lock_guard<std::mutex> guard(runtime_lock);
		for (auto next = numbers.begin(); next != numbers.end();) next = next->first.first == device.id && next->second == stream ? numbers.erase(next) : std::next(next);
	}
	return hr_stream_destroy(device, stream);
}
hr_status hr_cuda_check(void) { return HR_OK; }
hr_status hr_device_allow_access(hr_device device, hr_device peer)
{
	std::lock_guard<std::mutex> guard(runtime_lock);
	accessible.insert({device.id, peer.id});
	return HR_OK;
}

#ifdef RUNTIME_ONLY
}
#else
struct Settings { // as in plugin.h
	uint64_t limit = 900 * MIB, movable = 0, host_limit = 0;
	const char *spill_dir = nullptr, *policy = nullptr;
	int lms = 0, verify = 0, rests_on_copy = 0, recompute = 0;
};
hr_status headroom_torch_install_cuda(const Settings *settings);
void headroom_torch_shareable(int change);
uint64_t headroom_torch_allocator(void);
uint64_t headroom_torch_allocator_of(int device);
hr_status headroom_torch_step(void);
}

namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*function)(DeviceIndex)); // libtorch_cuda sets it, which this program does not load
}

// ---- helpers ----

static native::CUDAAllocator *allocator;

static c10::CachingDeviceAllocator::Stat stat(const c10::CachingDeviceAllocator::StatArray &array) { return array[0]; }
static int64_t allocated(c10::DeviceIndex device = 0) { return stat(allocator->getDeviceStats(device).allocated_bytes).current; }

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
	c10::cuda::CUDAStream stream;
	c10::cuda::CUDAStreamGuard guard{stream};
	MempoolId_t id;
	explicit Capture(MempoolId_t pool) : Capture(pool, c10::cuda::getStreamFromPool()) {}
	Capture(MempoolId_t pool, c10::cuda::CUDAStream on) : stream(on), id(pool)
	{
		cudaStream_t raw = stream.stream();
		allocator->beginAllocateToPool(stream.device_index(), id, [raw](cudaStream_t asked) { return asked == raw && capturing.count(raw); });
		set_capturing(raw, true);
	}
	~Capture()
	{
		set_capturing(stream.stream(), false);
		allocator->endAllocateToPool(stream.device_index(), id);
	}
};

static void start(const Settings &settings)
{
	c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
	if (headroom_torch_install_cuda(&settings) != HR_OK) {
		fprintf(stderr, "install: %s\n", hr_last_message());
		exit(1);
	}
	allocator = native::get();
	allocator->init(1);
	MUST(allocator->name() == "headroom" && allocator->initialized());
}

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

#endif
