// block_pool.cpp - BlockPool of plugins/torch against a model: random allocations, frees, checkpoints and releases of segments on several streams.
//
//     block_pool SEED STEPS
//
// The model is a map of the allocated blocks. After every step the invariants of the pool are checked, and that its blocks are those of the model.
#include "cuda_pools.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

using namespace headroom;

static unsigned seed;
static long step;

static void fail(const char *what)
{
	fprintf(stderr, "block_pool: %s (seed %u, step %ld)\n", what, seed, step);
	exit(1);
}

static void must(bool holds, const char *what)
{
	if (!holds) fail(what);
}

struct Live {
	size_t requested;
	uint64_t stream;
};
using Model = std::map<uintptr_t, Live>;

static std::mt19937_64 random_bits;

static size_t below(size_t n) { return random_bits() % n; }

static size_t random_size()
{
	switch (below(4)) {
	case 0: return 1 + below(4096);
	case 1: return 1 + below(1 << 20);
	case 2: return (1 << 20) + below(9 << 20);
	default: return (10 << 20) + below(40 << 20);
	}
}

// Addresses that are never used twice at a time; those of a released segment may be used again.
static uintptr_t next_base = 1 << 30;
static std::multimap<size_t, uintptr_t> released;

static uintptr_t take_base(size_t bytes)
{
	auto found = released.find(bytes);
	if (found != released.end() && below(2)) {
		uintptr_t base = found->second;
		released.erase(found);
		return base;
	}
	next_base += bytes + (below(2) ? 0 : 2 << 20); // neighbours in address, but not one segment
	return next_base - bytes;
}

static void compare(const BlockPool &pool, const Model &model)
{
	std::string broken = pool.check();
	must(broken.empty(), broken.c_str());
	must(pool.counts().blocks == model.size(), "the pool has other blocks than the model");
	uintptr_t end = 0;
	size_t requested = 0;
	for (const auto &[address, live] : model) {
		const PoolBlock *block = pool.find(address);
		must(block && block->allocated, "a block is gone");
		must(block->bytes >= live.requested && block->requested == live.requested, "a block is smaller than its request");
		must(address >= end, "two blocks overlap");
		auto segment = std::prev(pool.segments().upper_bound(address))->second;
		must(segment.stream == live.stream, "a block came from a segment of another stream");
		must(address + block->bytes <= segment.base + segment.bytes, "a block ends outside of its segment");
		end = address + block->bytes;
		requested += live.requested;
	}
	must(pool.counts().requested_bytes == requested, "requested bytes differ");
}

static void allocate(BlockPool &pool, Model &model)
{
	size_t bytes = random_size(), rounded = BlockPool::rounded(bytes);
	uint64_t stream = below(3);
	uintptr_t address = pool.allocate(bytes, stream);
	if (!address) {
		size_t size = BlockPool::segment_bytes(rounded);
		must(size >= rounded, "a segment is smaller than the request it is for");
		pool.add_segment({take_base(size), size, stream, BlockPool::is_small(rounded)});
		address = pool.allocate(bytes, stream);
		must(address != 0, "a request fails in a new segment");
	}
	must(!model.count(address), "an allocated block was handed out again");
	model[address] = {bytes, stream};
}

static void free_one(BlockPool &pool, Model &model)
{
	if (model.empty()) return;
	auto victim = std::next(model.begin(), static_cast<long>(below(model.size())));
	must(!pool.free(victim->first + BlockPool::UNIT) || model.count(victim->first + BlockPool::UNIT), "a free inside of a block succeeded");
	model.erase(victim->first + BlockPool::UNIT); // it was the next block, if it was one
	must(pool.free(victim->first), "a free fails");
	must(!pool.free(victim->first), "a second free succeeds");
	model.erase(victim);
}

static void release(BlockPool &pool, const Model &model)
{
	size_t before = pool.counts().segment_bytes, taken = 0;
	for (const PoolSegment &segment : pool.take_free_segments()) {
		auto inside = model.lower_bound(segment.base);
		must(inside == model.end() || inside->first >= segment.base + segment.bytes, "a segment with allocated blocks was released");
		released.insert({segment.bytes, segment.base});
		taken += segment.bytes;
	}
	must(pool.counts().segment_bytes + taken == before, "released bytes differ");
}

struct Saved {
	PoolState state;
	Model model;
};

static void restore(BlockPool &pool, Model &model, const Saved &saved)
{
	std::vector<uintptr_t> before, after;
	must(pool.restore(saved.state, &before, &after), "a checkpoint cannot be restored");
	must(before.size() == model.size() && after.size() == saved.model.size(), "a checkpoint reports other blocks");
	for (uintptr_t address : before) must(model.count(address), "a checkpoint freed a block that was not allocated");
	for (uintptr_t address : after) must(saved.model.count(address), "a checkpoint allocated a block that it does not have");
	model = saved.model;
}

static void walk(long steps, bool no_split)
{
	BlockPool pool;
	Model model;
	std::vector<Saved> saved; // valid while no segment is released
	pool.no_split = no_split;
	for (step = 0; step < steps; step++) {
		size_t choice = below(100);
		if (choice < 50) allocate(pool, model);
		else if (choice < 92) free_one(pool, model);
		else if (choice < 95) saved.push_back({pool.state(), model});
		else if (choice < 98 && !saved.empty()) restore(pool, model, saved[below(saved.size())]);
		else if (choice == 99 && below(10) == 0) {
			release(pool, model);
			saved.clear();
		}
		compare(pool, model);
	}
	while (!model.empty()) free_one(pool, model);
	compare(pool, model);
	release(pool, model);
	must(pool.counts().segments == 0 && pool.blocks().empty(), "an empty pool holds memory");
}

// By hand: 3 blocks in a segment, the middle one freed and restored.
static void restore_by_hand()
{
	BlockPool pool;
	std::vector<uintptr_t> before, after;
	pool.add_segment({1 << 20, 2 << 20, 7, true});
	uintptr_t a = pool.allocate(512, 7), b = pool.allocate(1000, 7), c = pool.allocate(512, 7);
	must(a == 1 << 20 && b == a + 512 && c == b + 1024, "three blocks are not beside each other");
	must(pool.allocate(512, 8) == 0, "a block was reused on another stream");
	must(pool.allocate(2 << 20, 7) == 0, "a large request was served from a small segment");
	PoolState state = pool.state();
	must(pool.free(b), "a free fails");
	must(pool.allocate(100, 7) == b, "the best fit is not the gap of 1024 bytes");
	must(pool.free(a) && pool.free(c), "a free fails");
	must(pool.restore(state, &before, &after), "a checkpoint cannot be restored");
	must(before == std::vector<uintptr_t>{b} && after == std::vector<uintptr_t>{a, b, c}, "a checkpoint reports other blocks");
	must(pool.find(b)->bytes == 1024 && pool.find(b)->requested == 1000, "a restored block has another size");
	must(pool.free(a) && pool.free(b) && pool.free(c), "a restored block cannot be freed");
	must(pool.take_free_segments().size() == 1, "an empty segment stays");
	before.clear();
	after.clear();
	must(!pool.restore(state, &before, &after) && before.empty() && after.empty(), "a checkpoint of a released segment was restored");
}

int main(int count, char **arguments)
{
	seed = count > 1 ? static_cast<unsigned>(atol(arguments[1])) : 1;
	long steps = count > 2 ? atol(arguments[2]) : 20000;
	random_bits.seed(seed);
	restore_by_hand();
	walk(steps, false);
	walk(steps / 4, true);
	printf("ok: seed %u, %ld steps\n", seed, steps);
	return 0;
}
