/* gpu_torch.cpp - PyTorch's caching allocator called without Python. bench/gpu_torch.py compiles and calls it. */
#include <c10/cuda/CUDACachingAllocator.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace allocator = c10::cuda::CUDACachingAllocator;

static double now_ns()
{
	return (double)std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void pairs(size_t bytes, long count)
{
	for (long i = 0; i < count; i++) allocator::raw_delete(allocator::raw_alloc(bytes));
}

/* Wall time, in ns, of [threads] threads that each allocate and free [count] times; -1 if memory runs out. */
extern "C" double gpu_torch_pairs(size_t bytes, long count, int threads)
{
	try {
		pairs(bytes, 10);
		std::vector<std::thread> others;
		double start = now_ns();
		for (int i = 1; i < threads; i++) others.emplace_back(pairs, bytes, count);
		pairs(bytes, count);
		for (auto &other : others) other.join();
		return now_ns() - start;
	} catch (const std::exception &) {
		return -1;
	}
}

/* Wall time, in ns, of [count] steps: bytes[i] != 0 allocates into slot slots[i], 0 frees it. Leftover blocks are freed
 * afterwards, not timed. -1 if memory runs out. */
extern "C" double gpu_torch_replay(const uint64_t *bytes, const uint32_t *slots, size_t count, void **blocks, size_t slot_count)
{
	double ns = -1;
	try {
		double start = now_ns();
		for (size_t i = 0; i < count; i++) {
			void *&block = blocks[slots[i]];
			if (bytes[i]) {
				block = allocator::raw_alloc(bytes[i]);
			} else {
				allocator::raw_delete(block);
				block = nullptr;
			}
		}
		ns = now_ns() - start;
	} catch (const std::exception &) {
		ns = -1;
	}
	for (size_t i = 0; i < slot_count; i++) {
		if (blocks[i]) allocator::raw_delete(blocks[i]);
		blocks[i] = nullptr;
	}
	return ns;
}
