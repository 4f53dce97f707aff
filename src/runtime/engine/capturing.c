/* capturing.c - see capturing.h. */
#include "runtime/engine/capturing.h"

#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/os/os.h"

#define ALIGNMENT 256u /* what kernels require of buffers */

struct planned_range {
	uint64_t at, bytes;
};

static _Thread_local hr__capturing *current;

hr__capturing *hr__capturing_in(const hr__session *session)
{
	return current && current->session == session ? current : NULL;
}

void hr__capturing_set(hr__capturing *capturing)
{
	current = capturing;
}

hr_status hr__capturing_refuses(const char *what)
{
	return hr__fail(HR_UNSUPPORTED, "a CUDA graph cannot be captured: %s", what);
}

static uint64_t rounded(uint64_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Blocks that are in use separate the free ranges, so there is at most one more of those. */
static hr_status make_room(hr__planned *planned)
{
	void *block;
	if (planned->taken + 2 <= planned->capacity) return HR_OK;
	uint32_t capacity = planned->capacity ? 2 * planned->capacity : 64;
	int error = hr__os()->alloc(capacity * sizeof *planned->ranges, &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a CUDA graph");
	if (planned->count) memcpy(block, planned->ranges, planned->count * sizeof *planned->ranges);
	if (planned->ranges) hr__os()->free(planned->ranges, planned->capacity * sizeof *planned->ranges);
	planned->ranges = block;
	planned->capacity = capacity;
	return HR_OK;
}

/* The smallest free range that is large enough; count: none. */
static uint32_t best_of(const hr__planned *planned, uint64_t bytes)
{
	uint32_t best = planned->count;
	for (uint32_t i = 0; i < planned->count; i++) {
		bool fits = planned->ranges[i].bytes >= bytes;
		if (fits && (best == planned->count || planned->ranges[i].bytes < planned->ranges[best].bytes)) best = i;
	}
	return best;
}

static void remove_at(hr__planned *planned, uint32_t i)
{
	memmove(&planned->ranges[i], &planned->ranges[i + 1], (--planned->count - i) * sizeof *planned->ranges);
}

hr_status hr__planned_take(hr__planned *planned, uint64_t bytes, void **out)
{
	uint64_t need = rounded(bytes), at = planned->end;
	hr_status status = make_room(planned);
	if (status) return status;
	uint32_t i = best_of(planned, need);
	bool fits = i < planned->count;
	if (fits) at = planned->ranges[i].at;
	else if (planned->count && planned->ranges[planned->count - 1].at + planned->ranges[planned->count - 1].bytes == planned->end)
		at = planned->ranges[i = planned->count - 1].at; /* the end grows */
	if (need > planned->limit || at > planned->limit - need)
		return hr__fail(HR_OUT_OF_MEMORY, "a CUDA graph needs more memory than was planned: it does not run twice in the same way");
	if (fits && planned->ranges[i].bytes > need) planned->ranges[i] = (struct planned_range){ at + need, planned->ranges[i].bytes - need };
	else if (i < planned->count) remove_at(planned, i);
	if (at + need > planned->end) planned->end = at + need;
	planned->taken++;
	*out = planned->base + at;
	return HR_OK;
}

void hr__planned_give(hr__planned *planned, void *address, uint64_t bytes)
{
	uint64_t at = (uint64_t)((char *)address - planned->base), need = rounded(bytes);
	uint32_t i = 0;
	HR_ASSERT(planned->taken > 0 && planned->count < planned->capacity);
	planned->taken--;
	while (i < planned->count && planned->ranges[i].at < at) i++;
	memmove(&planned->ranges[i + 1], &planned->ranges[i], (planned->count++ - i) * sizeof *planned->ranges);
	planned->ranges[i] = (struct planned_range){ at, need };
	if (i + 1 < planned->count && at + need == planned->ranges[i + 1].at) {
		planned->ranges[i].bytes += planned->ranges[i + 1].bytes;
		remove_at(planned, i + 1);
	}
	if (i > 0 && planned->ranges[i - 1].at + planned->ranges[i - 1].bytes == at) {
		planned->ranges[i - 1].bytes += planned->ranges[i].bytes;
		remove_at(planned, i);
	}
}

void hr__planned_end(hr__planned *planned)
{
	if (planned->ranges) hr__os()->free(planned->ranges, planned->capacity * sizeof *planned->ranges);
	*planned = (hr__planned){ .base = NULL };
}
