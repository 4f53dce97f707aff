// fork.cpp - CPU tensors in the child of a fork, which must not call Headroom ("fork" in headroom.h).
//
// The memory of an emulated device is shared with children, as memory of a device would be. A child must have what its parent had at the fork, and keep it:
// the pages of all blocks that cannot move are copied to memory of its own, at the same addresses, while the parent waits. Movable tensors are not copied,
// because they may be larger than all memory: a child can use those that were pinned for life, whose memory it shares, and no others.
#include "plugin.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace headroom {

bool forked;

constexpr uintptr_t OS_PAGE = 4096;
constexpr uintptr_t MOST_GAP = 64 << 10; // free memory between two blocks that is copied with them, because each range is a mapping of its own

struct Range {
	uintptr_t begin, end; // whole pages of the system
};

// Of the fork that is under way, guarded by fork_lock:
static std::mutex fork_lock;
static std::vector<Range> ranges;
static int done[2]; // a pipe on which the child says that it has copied them

static bool add_chunk(void *context, const hr_chunk_view *chunk)
{
	bool &follows = *static_cast<bool *>(context); // no address without memory lies between the last range and this chunk
	if (chunk->kind == HR_CHUNK_UNMAPPED) follows = false;
	if (chunk->kind != HR_CHUNK_IN_USE || (lms_enabled && chunk->requested >= movable_bytes)) return true;
	uintptr_t address = reinterpret_cast<uintptr_t>(chunk->address);
	Range range{address / OS_PAGE * OS_PAGE, (address + chunk->bytes + OS_PAGE - 1) / OS_PAGE * OS_PAGE};
	if (follows && range.begin <= ranges.back().end + MOST_GAP) ranges.back().end = std::max(ranges.back().end, range.end);
	else ranges.push_back(range);
	follows = true;
	return true;
}

static void find_ranges()
{
	ranges.clear();
	hr_stats stats;
	hr_stats_init(&stats);
	if (hr_allocator_get_stats(allocator, &stats)) return;
	for (uint32_t i = 0; i < stats.num_regions; i++) {
		bool follows = false;
		if (hr_allocator_visit(allocator, i, add_chunk, &follows)) return; // a region was released meanwhile
	}
}

static void before_fork()
{
	if (forked) return;
	fork_lock.lock();
	find_ranges();
	if (!ranges.empty() && pipe(done) != 0) ranges.clear(); // the child shares them
	records_lock();
}

static void after_fork_in_parent()
{
	if (forked) return;
	records_unlock();
	if (!ranges.empty()) {
		char byte;
		close(done[1]);
		while (read(done[0], &byte, 1) < 0 && errno == EINTR) {}
		close(done[0]);
	}
	fork_lock.unlock();
}

// Not with memcpy: another thread may have returned the memory of a block since it was found.
static bool read_memory(int memory, char *to, const Range &range)
{
	for (uintptr_t at = range.begin; at < range.end;) {
		ssize_t count = pread(memory, to + (at - range.begin), range.end - at, static_cast<off_t>(at));
		if (count <= 0) return false;
		at += static_cast<size_t>(count);
	}
	return true;
}

// Only calls that are safe after a fork of a program with threads. Where one fails, the child shares the memory.
static void copy_range(int memory, const Range &range)
{
	size_t bytes = range.end - range.begin;
	void *copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copy == MAP_FAILED) return;
	bool copied = read_memory(memory, static_cast<char *>(copy), range) &&
		mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, reinterpret_cast<void *>(range.begin)) != MAP_FAILED;
	if (!copied) munmap(copy, bytes);
}

static void after_fork_in_child()
{
	if (forked) return;
	forked = true;
	if (!ranges.empty()) {
		int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
		for (const Range &range : ranges) copy_range(memory, range);
		ssize_t ignored = write(done[1], "", 1);
		(void)ignored;
		close(memory);
		close(done[0]);
		close(done[1]);
	}
	records_unlock();
	fork_lock.unlock();
}

void handle_forks()
{
	pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

} // namespace headroom
