// cuda_pools.h - BlockPool: blocks of memory in the segments of one private pool (CUDA graphs, torch.cuda.MemPool). It knows addresses and sizes only;
// segments are supplied by its owner, so it can be tested without a device.
//
// A block is reused only on the stream that it was allocated for: then the order of the stream is enough, and no event is needed, which matters while a
// stream is captured into a graph.
//
// Invariants (check() verifies them):
//     1. The blocks of a segment follow each other without gaps, from its base to its end.
//     2. No two free blocks of a segment are neighbours.
//     3. Every free block is in the free list of its segment's stream and kind, and nothing else is.
//     4. Sizes and addresses are multiples of UNIT.
//     5. The counters equal the sums over all blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace headroom {

struct PoolBlock {
	size_t bytes;
	size_t requested;
	bool allocated;
};

struct PoolSegment {
	uintptr_t base;
	size_t bytes;
	uint64_t stream;
	bool small; // serves requests of at most SMALL_BYTES
};

// The allocated blocks of a pool at one moment.
struct PoolState {
	struct Block {
		uintptr_t address;
		PoolBlock block;
	};
	struct Segment {
		PoolSegment segment;
		std::vector<Block> allocated; // lowest address first
	};
	std::vector<Segment> segments;
};

struct PoolCounts {
	size_t segments = 0, segment_bytes = 0;
	size_t blocks = 0, block_bytes = 0, requested_bytes = 0; // allocated
	size_t free_blocks = 0, free_bytes = 0;                  // parts of segments that have allocated blocks too, or not
};

class BlockPool {
public:
	static constexpr size_t UNIT = 512;
	static constexpr size_t SMALL_BYTES = 1 << 20;

	bool no_split = false; // every request gets a segment of its own, of at least its size

	static size_t rounded(size_t bytes);
	static bool is_small(size_t bytes) { return bytes <= SMALL_BYTES; }
	// Bytes of the segment to add when allocate() has returned 0.
	static size_t segment_bytes(size_t bytes);

	// The address of a block, the best fit among the free blocks of [stream]; 0 if none fits.
	uintptr_t allocate(size_t bytes, uint64_t stream);
	void add_segment(const PoolSegment &segment);
	// False, without any effect, if no allocated block starts at [address].
	bool free(uintptr_t address);
	// NULL if no block starts at [address].
	const PoolBlock *find(uintptr_t address) const;

	// Removes the segments without allocated blocks and returns them.
	std::vector<PoolSegment> take_free_segments();

	PoolState state() const;
	// Makes the allocated blocks those of [state]; segments that were added since are free. Returns false, without any effect, if a segment of [state] is
	// gone. *before and *after receive the addresses of the blocks that were allocated before and are allocated now.
	bool restore(const PoolState &state, std::vector<uintptr_t> *before, std::vector<uintptr_t> *after);

	const PoolCounts &counts() const { return counts_; }
	const std::map<uintptr_t, PoolSegment> &segments() const { return segments_; }
	const std::map<uintptr_t, PoolBlock> &blocks() const { return blocks_; }
	// Empty, or the first invariant that does not hold.
	std::string check() const;

private:
	using FreeList = std::set<std::pair<size_t, uintptr_t>>; // best fit is the first that is large enough
	std::map<uintptr_t, PoolSegment> segments_;              // by base
	std::map<uintptr_t, PoolBlock> blocks_;                  // by address, of all segments
	std::map<std::pair<uint64_t, bool>, FreeList> free_;     // by stream and kind
	PoolCounts counts_;

	const PoolSegment &segment_of(uintptr_t address) const;
	void add_free(const PoolSegment &segment, uintptr_t address, size_t bytes);
	void remove_free(const PoolSegment &segment, uintptr_t address, size_t bytes);
	void add_allocated(uintptr_t address, size_t bytes, size_t requested);
	void clear_blocks(const PoolSegment &segment);
	void fill(const PoolSegment &segment, const std::vector<PoolState::Block> &allocated);
};

} // namespace headroom
