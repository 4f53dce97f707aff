// guard.cpp - addresses without access, for storages that are not pinned. A use that no op announced faults there, whether the tensor was evicted
// or not, so that such a mistake does not depend on memory pressure and never gives wrong results.
#include "plugin.h"

#include <sys/mman.h>

namespace headroom {

constexpr size_t GUARD_BYTES = size_t(1) << 43; // addresses only, no memory
constexpr size_t GUARD_PAGE = 4096;
static char *guard_base;
static std::atomic<size_t> guard_next{0};

bool guard_open()
{
	if (guard_base) return true;
	void *base = mmap(nullptr, GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base != MAP_FAILED) guard_base = static_cast<char *>(base);
	return guard_base != nullptr;
}

void *guard_address(size_t bytes)
{
	size_t rounded = (bytes + GUARD_PAGE - 1) & ~(GUARD_PAGE - 1);
	return guard_base + guard_next.fetch_add(rounded) % (GUARD_BYTES / 2); // the other half is room behind the last one
}

} // namespace headroom
