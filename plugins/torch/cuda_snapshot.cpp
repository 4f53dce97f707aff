// cuda_snapshot.cpp - torch.cuda.memory_snapshot() and torch.cuda.memory._record_memory_history().
//
// A segment of the main allocator is a range of addresses with memory behind it. Headroom keeps no stream with a free chunk, so all its segments are shown
// under the default stream.
#include "cuda_front.h"

#include <set>

#include <c10/util/ApproximateClock.h>

namespace headroom {

using native::TraceEntry;

// ---- history ----

struct History {
	std::mutex lock;
	bool enabled = false;
	native::CreateContextFn gather = nullptr;
	native::RecordContext when = native::RecordContext::NEVER;
	size_t most = 1;
	uint32_t skipped = 0; // bit a: entries of action a are not kept
	struct Ring {
		std::vector<TraceEntry> entries;
		size_t next = 0; // the oldest, once the ring is full
	} rings[MAX_GPUS];
	std::unordered_map<size_t, std::shared_ptr<c10::GatheredContext>> contexts; // of allocated blocks, by address
	std::vector<native::AllocatorTraceTracker> trackers; // called with the lock held: they may not call the allocator
	decltype(native::SnapshotInfo::external_annotations) annotations;
};

std::atomic<bool> history_on{false};
static std::atomic<bool> gathers{false};
static thread_local std::shared_ptr<c10::GatheredContext> gathered;
static thread_local std::vector<std::string> compile_contexts;
static thread_local std::string user_metadata;

static History &history()
{
	static auto *instance = new History; // never destroyed: PyTorch frees storages while the process ends
	return *instance;
}

void history_gather(bool allocation)
{
	gathered = nullptr;
	if (!gathers.load(std::memory_order_acquire)) return;
	native::CreateContextFn gather;
	{
		std::lock_guard<std::mutex> guard(history().lock);
		gather = history().when == native::RecordContext::ALL || (allocation && history().when != native::RecordContext::NEVER) ? history().gather : nullptr;
	}
	if (gather) gathered = gather();
}

static void keep(History::Ring &ring, TraceEntry &&entry, size_t most)
{
	if (ring.entries.size() < most) {
		ring.entries.push_back(std::move(entry));
		return;
	}
	ring.entries[ring.next] = std::move(entry);
	ring.next = (ring.next + 1) % ring.entries.size();
}

static void keep_context(History &of, TraceEntry::Action action, size_t address)
{
	if (action == TraceEntry::ALLOC && gathered) of.contexts[address] = gathered;
	if (action == TraceEntry::FREE_COMPLETED) of.contexts.erase(address);
}

void history_add(TraceEntry::Action action, Gpu &gpu, void *address, size_t bytes, cudaStream_t stream, MempoolId_t pool)
{
	History &of = history();
	std::lock_guard<std::mutex> guard(of.lock);
	TraceEntry entry(action, gpu.index, reinterpret_cast<size_t>(address), bytes, stream, pool, c10::getApproximateTime(),
		of.when >= native::RecordContext::ALLOC ? gathered : nullptr, compile_contexts.empty() ? "" : compile_contexts.back()
#if HEADROOM_TORCH_AT_LEAST(10)
		, user_metadata
#endif
	);
	for (const auto &tracker : of.trackers) tracker(entry);
	if (!of.enabled) return;
	keep_context(of, action, reinterpret_cast<size_t>(address));
	if (of.skipped & (1u << action)) return;
	keep(of.rings[gpu.index], std::move(entry), of.most);
}

static uint32_t actions_of(const std::vector<std::string> &names)
{
	uint32_t actions = 0;
#if HEADROOM_TORCH_AT_LEAST(11)
	for (const std::string &name : names) actions |= 1u << c10::CachingDeviceAllocator::parseTraceEntryAction(name);
#else
	(void)names;
#endif
	return actions;
}

void history_record(bool enabled, native::CreateContextFn context, size_t entries, native::RecordContext when, bool clear, const std::vector<std::string> &skip)
{
	uint32_t skipped = actions_of(skip);
	TORCH_CHECK(when == native::RecordContext::NEVER || context, "recording a memory history with stacks needs a function that gathers them");
	History &of = history();
	std::lock_guard<std::mutex> guard(of.lock);
	size_t most = entries ? entries : 1;
	if (!enabled || clear || most < of.most)
		for (auto &ring : of.rings) ring = {};
	if (!enabled || when == native::RecordContext::NEVER) of.contexts.clear();
	if (!enabled) of.annotations.clear();
	of.enabled = enabled;
	of.gather = context;
	of.when = enabled ? when : native::RecordContext::NEVER;
	of.most = most;
	of.skipped = skipped;
	gathers = of.when != native::RecordContext::NEVER;
	history_on = enabled || !of.trackers.empty();
}

bool history_enabled()
{
	std::lock_guard<std::mutex> guard(history().lock);
	return history().enabled;
}

void history_attach(native::AllocatorTraceTracker tracker)
{
	std::lock_guard<std::mutex> guard(history().lock);
	history().trackers.push_back(std::move(tracker));
	history_on = true;
}

void history_annotate(const std::vector<std::pair<std::string, std::string>> &pairs)
{
	c10::DeviceIndex device = cuda::current_device();
	std::lock_guard<std::mutex> guard(history().lock);
	if (!history().enabled) return;
	auto &annotation = history().annotations.emplace_back(device, c10::getApproximateTime());
	for (const auto &[name, value] : pairs) annotation.recordUserMetadata(name, value);
}

void history_push_context(const std::string &text) { compile_contexts.push_back(text); }

void history_pop_context()
{
	if (!compile_contexts.empty()) compile_contexts.pop_back();
}

void history_set_metadata(const std::string &text) { user_metadata = text; }
std::string history_metadata() { return user_metadata; }

// ---- snapshots ----

struct MainVisit {
	Gpu *gpu;
	std::vector<native::SegmentInfo> *segments;
	std::set<void *> of_pools; // segments of private pools that are blocks of the main allocator: shown with their pools
	bool open;                 // the last segment ends where the next chunk begins
};

static void add_block(native::SegmentInfo &segment, size_t bytes, size_t requested, bool allocated, bool active)
{
	native::BlockInfo block;
	block.size = bytes;
	block.requested_size = requested;
	block.allocated = allocated;
	block.active = active;
	segment.total_size += bytes;
	if (allocated) {
		segment.allocated_size += bytes;
		segment.requested_size += requested;
	}
	if (active) segment.active_size += bytes;
	segment.blocks.push_back(std::move(block));
}

static native::SegmentInfo &begin_segment(MainVisit &visit, size_t address)
{
	native::SegmentInfo &segment = visit.segments->emplace_back();
	segment.device = visit.gpu->index;
	segment.address = address;
	segment.is_large = true;
	segment.is_expandable = true;
	visit.open = true;
	return segment;
}

static bool visit_chunk(void *context, const hr_chunk_view *chunk)
{
	auto &visit = *static_cast<MainVisit *>(context);
	if (chunk->kind == HR_CHUNK_UNMAPPED || visit.of_pools.count(chunk->address)) {
		visit.open = false;
		return true;
	}
	native::SegmentInfo &segment = visit.open ? visit.segments->back() : begin_segment(visit, reinterpret_cast<size_t>(chunk->address));
	bool used = chunk->kind == HR_CHUNK_IN_USE;
	add_block(segment, chunk->bytes, used ? chunk->requested : 0, used, used);
	return true;
}

static std::set<void *> segments_in_main(Gpu &gpu)
{
	std::set<void *> found;
	if (!lms_enabled) return found;
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	for (const auto &pool : gpu.pools)
		for (const auto &[base, segment] : pool->blocks.segments()) found.insert(reinterpret_cast<void *>(base));
	return found;
}

static void add_main(Gpu &gpu, std::vector<native::SegmentInfo> *segments)
{
	MainVisit visit{&gpu, segments, segments_in_main(gpu), false};
	uint32_t regions = static_cast<uint32_t>(main_stats(gpu).num_regions);
	for (uint32_t i = 0; i < regions; i++) {
		visit.open = false;
		if (hr_allocator_visit(gpu.main, i, visit_chunk, &visit)) break; // a region was released meanwhile
	}
}

static void add_pool(Gpu &gpu, const PrivatePool &pool, std::vector<native::SegmentInfo> *segments)
{
	for (const auto &[base, of] : pool.blocks.segments()) {
		native::SegmentInfo &segment = segments->emplace_back();
		segment.device = gpu.index;
		segment.address = base;
		segment.stream = reinterpret_cast<cudaStream_t>(of.stream);
		segment.is_large = !of.small;
		segment.owner_private_pool_id = pool.id;
		for (auto block = pool.blocks.blocks().find(base); block != pool.blocks.blocks().end() && block->first < base + of.bytes; ++block) {
			bool pending = false;
			for (const auto &freed : pool.pending) pending = pending || reinterpret_cast<uintptr_t>(freed.address) == block->first;
			add_block(segment, block->second.bytes, block->second.requested, block->second.allocated && !pending, block->second.allocated);
		}
	}
}

static void add_segments(Gpu &gpu, MempoolId_t only, std::vector<native::SegmentInfo> *segments)
{
	bool whole = only == MempoolId_t{0, 0};
	if (whole) add_main(gpu, segments);
	std::lock_guard<std::mutex> guard(gpu.pool_lock);
	for (const auto &pool : gpu.pools)
		if (whole || pool->id == only) add_pool(gpu, *pool, segments);
}

static void add_contexts(std::vector<native::SegmentInfo> &segments)
{
	std::lock_guard<std::mutex> guard(history().lock);
	if (history().contexts.empty()) return;
	for (auto &segment : segments) {
		size_t address = segment.address;
		for (auto &block : segment.blocks) {
			auto found = block.active ? history().contexts.find(address) : history().contexts.end();
			if (found != history().contexts.end()) block.context_when_allocated = found->second;
			address += block.size;
		}
	}
}

static void add_traces(native::SnapshotInfo *result, bool traces)
{
	static auto *clock = new c10::ApproximateClockToUnixTimeConverter;
	auto to_ns = clock->makeConverter();
	auto to_us = [&](auto &entry) { entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000; };
	std::lock_guard<std::mutex> guard(history().lock);
	for (c10::DeviceIndex i = 0; i < gpu_count(); i++) {
		auto &entries = result->device_traces.emplace_back();
		if (!traces) continue;
		const History::Ring &ring = history().rings[i];
		entries.insert(entries.end(), ring.entries.begin() + static_cast<ptrdiff_t>(ring.next), ring.entries.end());
		entries.insert(entries.end(), ring.entries.begin(), ring.entries.begin() + static_cast<ptrdiff_t>(ring.next));
		for (TraceEntry &entry : entries) to_us(entry);
	}
	result->external_annotations = history().annotations;
	for (auto &annotation : result->external_annotations) to_us(annotation);
}

native::SnapshotInfo take_snapshot(MempoolId_t only, bool traces)
{
	native::SnapshotInfo result;
	result.config_metadata = native::AllocatorConfigInfo{};
	result.config_metadata.max_split_size = SIZE_MAX;
	result.config_metadata.expandable_segments = true;
	result.config_metadata.last_allocator_settings = "headroom";
	for (c10::DeviceIndex i = 0; i < gpu_count(); i++) {
		Gpu *gpu = gpu_if_open(i);
		if (gpu) add_segments(*gpu, only, &result.segments);
	}
	add_contexts(result.segments);
	add_traces(&result, traces);
	return result;
}

} // namespace headroom
