// cuda_pools.cpp - see cuda_pools.h.
#include "cuda_pools.h"

namespace headroom {

// Sizes of segments: those of PyTorch's own allocator, so that private pools reserve as much as there.
static constexpr size_t SMALL_SEGMENT = 2 << 20;
static constexpr size_t MEDIUM_SEGMENT = 20 << 20;
static constexpr size_t MEDIUM_BYTES = 10 << 20; // requests below this size share segments
static constexpr size_t SEGMENT_UNIT = 2 << 20;

static size_t round_up(size_t bytes, size_t unit)
{
	return bytes > SIZE_MAX - (unit - 1) ? SIZE_MAX / unit * unit : (bytes + unit - 1) / unit * unit;
}

size_t BlockPool::rounded(size_t bytes)
{
	return bytes < UNIT ? UNIT : round_up(bytes, UNIT);
}

size_t BlockPool::segment_bytes(size_t bytes)
{
	if (is_small(bytes)) return SMALL_SEGMENT;
	return bytes < MEDIUM_BYTES ? MEDIUM_SEGMENT : round_up(bytes, SEGMENT_UNIT);
}

const PoolSegment &BlockPool::segment_of(uintptr_t address) const
{
	return std::prev(segments_.upper_bound(address))->second;
}

// ---- blocks ----

void BlockPool::add_free(const PoolSegment &segment, uintptr_t address, size_t bytes)
{
	blocks_[address] = {bytes, 0, false};
	free_[{segment.stream, segment.small}].insert({bytes, address});
	counts_.free_blocks++;
	counts_.free_bytes += bytes;
}

void BlockPool::remove_free(const PoolSegment &segment, uintptr_t address, size_t bytes)
{
	blocks_.erase(address);
	free_[{segment.stream, segment.small}].erase({bytes, address});
	counts_.free_blocks--;
	counts_.free_bytes -= bytes;
}

void BlockPool::add_allocated(uintptr_t address, size_t bytes, size_t requested)
{
	blocks_[address] = {bytes, requested, true};
	counts_.blocks++;
	counts_.block_bytes += bytes;
	counts_.requested_bytes += requested;
}

const PoolBlock *BlockPool::find(uintptr_t address) const
{
	auto found = blocks_.find(address);
	return found == blocks_.end() ? nullptr : &found->second;
}

// A small remainder of a large block would be of no use to other large requests.
static bool is_worth_splitting(size_t remainder, bool small)
{
	return small ? remainder >= BlockPool::UNIT : remainder > BlockPool::SMALL_BYTES;
}

uintptr_t BlockPool::allocate(size_t bytes, uint64_t stream)
{
	size_t size = rounded(bytes);
	auto list = free_.find({stream, is_small(size)});
	if (list == free_.end()) return 0;
	auto best = list->second.lower_bound({size, 0});
	if (best == list->second.end()) return 0;
	auto [found, address] = *best;
	const PoolSegment &segment = segment_of(address);
	remove_free(segment, address, found);
	if (!no_split && is_worth_splitting(found - size, segment.small)) add_free(segment, address + size, found - size);
	else size = found;
	add_allocated(address, size, bytes);
	return address;
}

bool BlockPool::free(uintptr_t address)
{
	auto found = blocks_.find(address);
	if (found == blocks_.end() || !found->second.allocated) return false;
	const PoolSegment segment = segment_of(address);
	uintptr_t begin = address;
	size_t bytes = found->second.bytes;
	counts_.blocks--;
	counts_.block_bytes -= bytes;
	counts_.requested_bytes -= found->second.requested;
	auto next = std::next(found);
	if (begin != segment.base && !std::prev(found)->second.allocated) {
		auto before = std::prev(found);
		size_t more = before->second.bytes;
		begin = before->first;
		remove_free(segment, begin, more);
		bytes += more;
	}
	if (next != blocks_.end() && next->first < segment.base + segment.bytes && !next->second.allocated) {
		size_t more = next->second.bytes;
		remove_free(segment, next->first, more);
		bytes += more;
	}
	blocks_.erase(address);
	add_free(segment, begin, bytes);
	return true;
}

// ---- segments ----

void BlockPool::add_segment(const PoolSegment &segment)
{
	segments_[segment.base] = segment;
	counts_.segments++;
	counts_.segment_bytes += segment.bytes;
	add_free(segment, segment.base, segment.bytes);
}

std::vector<PoolSegment> BlockPool::take_free_segments()
{
	std::vector<PoolSegment> taken;
	for (auto next = segments_.begin(); next != segments_.end();) {
		const PoolSegment segment = next->second;
		const PoolBlock &first = blocks_.at(segment.base);
		if (first.allocated || first.bytes != segment.bytes) {
			++next;
			continue;
		}
		remove_free(segment, segment.base, segment.bytes);
		counts_.segments--;
		counts_.segment_bytes -= segment.bytes;
		next = segments_.erase(next);
		taken.push_back(segment);
	}
	return taken;
}

// ---- states ----

PoolState BlockPool::state() const
{
	PoolState state;
	for (const auto &[base, segment] : segments_) {
		PoolState::Segment copy{segment, {}};
		for (auto block = blocks_.find(base); block != blocks_.end() && block->first < base + segment.bytes; ++block)
			if (block->second.allocated) copy.allocated.push_back({block->first, block->second});
		state.segments.push_back(std::move(copy));
	}
	return state;
}

void BlockPool::clear_blocks(const PoolSegment &segment)
{
	auto block = blocks_.find(segment.base);
	while (block != blocks_.end() && block->first < segment.base + segment.bytes) {
		auto [address, gone] = *block++;
		if (!gone.allocated) {
			remove_free(segment, address, gone.bytes);
			continue;
		}
		counts_.blocks--;
		counts_.block_bytes -= gone.bytes;
		counts_.requested_bytes -= gone.requested;
		blocks_.erase(address);
	}
}

// Everything between the allocated blocks is free. The segment has no blocks.
void BlockPool::fill(const PoolSegment &segment, const std::vector<PoolState::Block> &allocated)
{
	uintptr_t at = segment.base;
	for (const auto &[address, block] : allocated) {
		if (address > at) add_free(segment, at, address - at);
		add_allocated(address, block.bytes, block.requested);
		at = address + block.bytes;
	}
	if (at < segment.base + segment.bytes) add_free(segment, at, segment.base + segment.bytes - at);
}

bool BlockPool::restore(const PoolState &state, std::vector<uintptr_t> *before, std::vector<uintptr_t> *after)
{
	std::map<uintptr_t, const PoolState::Segment *> wanted;
	for (const auto &segment : state.segments) {
		auto found = segments_.find(segment.segment.base);
		if (found == segments_.end() || found->second.bytes != segment.segment.bytes) return false;
		wanted[segment.segment.base] = &segment;
	}
	for (const auto &[address, block] : blocks_)
		if (block.allocated) before->push_back(address);
	for (const auto &[base, segment] : segments_) {
		auto found = wanted.find(base);
		clear_blocks(segment);
		fill(segment, found == wanted.end() ? std::vector<PoolState::Block>() : found->second->allocated);
	}
	for (const auto &[address, block] : blocks_)
		if (block.allocated) after->push_back(address);
	return true;
}

// ---- the invariants ----

std::string BlockPool::check() const
{
	PoolCounts sum;
	size_t listed = 0;
	for (const auto &[key, list] : free_) listed += list.size();
	for (const auto &[base, segment] : segments_) {
		uintptr_t at = base;
		bool before_is_free = false;
		sum.segments++;
		sum.segment_bytes += segment.bytes;
		while (at < base + segment.bytes) {
			auto found = blocks_.find(at);
			if (found == blocks_.end()) return "1: a segment has a gap";
			const PoolBlock &block = found->second;
			if (block.bytes % UNIT || at % UNIT || block.bytes == 0) return "4: a size or address is not a multiple of the unit";
			if (!block.allocated && before_is_free) return "2: two free blocks are neighbours";
			before_is_free = !block.allocated;
			if (!block.allocated) {
				auto list = free_.find({segment.stream, segment.small});
				if (list == free_.end() || !list->second.count({block.bytes, at})) return "3: a free block is not in its list";
				sum.free_blocks++;
				sum.free_bytes += block.bytes;
			} else {
				sum.blocks++;
				sum.block_bytes += block.bytes;
				sum.requested_bytes += block.requested;
			}
			at += block.bytes;
		}
		if (at != base + segment.bytes) return "1: a block ends outside of its segment";
	}
	if (sum.blocks + sum.free_blocks != blocks_.size()) return "1: a block is outside of all segments";
	if (listed != sum.free_blocks) return "3: a free list has an entry too many";
	bool equal = sum.segments == counts_.segments && sum.segment_bytes == counts_.segment_bytes && sum.blocks == counts_.blocks &&
		sum.block_bytes == counts_.block_bytes && sum.requested_bytes == counts_.requested_bytes && sum.free_blocks == counts_.free_blocks &&
		sum.free_bytes == counts_.free_bytes;
	return equal ? "" : "5: the counters differ from the sums";
}

} // namespace headroom
