// cuda_front.cpp - the CUDA front of plugins/torch without a card (fake_cuda_runtime.h). Kernels are not run. It checks the bookkeeping: which memory is
// handed out, reused, counted and returned, and that no event is recorded on a stream that is captured or destroyed. cuda_lms.cpp has Large Model Support.
//
// With RUNTIME_ONLY it is a library of the runtime's functions, for a Python that loads it first; with DRIVER_ONLY, what PyTorch needs of the driver.
#ifdef DRIVER_ONLY
extern "C" int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
#else
#include "fake_cuda_runtime.h"

#ifndef RUNTIME_ONLY
#include <chrono>

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

// For information: a timing is no promise of a test.
static void print_time_of_statistics()
{
	constexpr int CALLS = 20000;
	auto begin = std::chrono::steady_clock::now();
	int64_t sum = 0;
	for (int i = 0; i < CALLS; i++) sum += stat(allocator->getDeviceStats(0).allocated_bytes).current;
	double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / CALLS;
	MUST(sum == CALLS * allocated());
	fprintf(stderr, "getDeviceStats: %.0f ns\n", ns);
}

int main()
{
	start({});
	print_time_of_statistics();
	static const struct { const char *name; void (*run)(); } checks[] = {
#define CHECK(name) {#name, name}
		CHECK(statistics_count_every_block), CHECK(out_of_memory_is_counted_and_observed),
		CHECK(memory_of_pools_counts_against_the_limit), CHECK(streams_of_any_number_get_memory),
		CHECK(external_streams_may_be_destroyed), CHECK(the_default_stream_is_recorded_after_an_external_one), CHECK(a_capture_allocates_in_its_pool),
		CHECK(graphs_of_a_pool_keep_their_memory), CHECK(frees_in_a_pool_wait_for_recorded_streams),
		CHECK(checkpoints_restore_a_pool), CHECK(a_pool_exists_while_it_is_used), CHECK(snapshots_have_every_block),
		CHECK(only_shareable_tensors_are_shared), CHECK(threads_share_no_byte), CHECK(the_history_is_a_ring),
#undef CHECK
	};
	for (const auto &check : checks) {
		fprintf(stderr, "%s\n", check.name);
		check.run();
	}
	printf("ok\n");
	return 0;
}
#endif // RUNTIME_ONLY
#endif // DRIVER_ONLY
