/* capture_queries.c - what is live at a moment of a capture, and what limits it. See capture.h. */
#include "analysis/capture/capture.h"

#include <string.h>

#include "core/base/checked.h"
#include "core/os/os.h"

uint64_t hr__capture_limit(const hr__capture *capture, uint32_t device, uint64_t time_ns)
{
	uint64_t own = capture->devices[device].limit_bytes, sum = 0;
	for (uint32_t i = 0; i < capture->allocator_count; i++) {
		const hr__capture_allocator *a = &capture->allocators[i];
		if (a->device != device || a->first_ns == HR__NEVER || a->first_ns > time_ns || a->last_ns < time_ns) continue;
		if (!a->limit_bytes || !hr__add(sum, a->limit_bytes, &sum)) return own;
	}
	return sum && (!own || sum < own) ? sum : own;
}

bool hr__capture_is_host_pool(const hr__capture *capture, uint32_t device)
{
	static const char end[] = " host memory"; /* hr__pinned_open */
	const char *name = capture->devices[device].name;
	size_t length = strlen(name);
	return length >= sizeof end - 1 && strcmp(name + length - (sizeof end - 1), end) == 0;
}

static size_t words_of(const hr__capture *capture)
{
	return (size_t)capture->allocation_count / 64 + 1;
}

/* One bit per allocation, all 0. */
static hr_status make_bits(const hr__capture *capture, uint64_t **out)
{
	void *memory;
	int error = hr__os()->alloc(words_of(capture) * sizeof **out, &memory);
	if (error) return hr__os_fail(error, "reading a trace");
	*out = memory;
	return HR_OK;
}

/* [live] has one bit per allocation. */
static void note_change(const hr__change *change, uint64_t *live)
{
	uint32_t allocation = change->allocation;
	if (change->frees) live[allocation / 64] &= ~(UINT64_C(1) << allocation % 64);
	else live[allocation / 64] |= UINT64_C(1) << allocation % 64;
}

static void visit_noted(const hr__capture *capture, const uint64_t *live, size_t words, uint32_t device,
                        void (*visit)(void *context, uint32_t allocation), void *context)
{
	for (size_t word = 0; word < words; word++) {
		for (uint64_t bits = live[word]; bits; bits &= bits - 1) {
			uint32_t allocation = (uint32_t)(word * 64 + (unsigned)__builtin_ctzll(bits));
			if (device == HR__NONE || hr__allocation_device(capture, allocation) == device) visit(context, allocation);
		}
	}
}

hr_status hr__capture_live(const hr__capture *capture, uint32_t change, uint32_t device, void (*visit)(void *context, uint32_t allocation),
                           void *context)
{
	size_t words = words_of(capture);
	uint32_t last = change < capture->change_count ? change + 1 : capture->change_count;
	uint64_t *live;
	hr_status status = make_bits(capture, &live);
	if (status) return status;
	for (uint32_t i = 0; i < last; i++) note_change(&capture->changes[i], live);
	visit_noted(capture, live, words, device, visit, context);
	hr__os()->free(live, words * sizeof *live);
	return HR_OK;
}

hr_status hr__capture_live_at_peaks(const hr__capture *capture, void (*visit)(void *context, uint32_t allocation), void *context)
{
	size_t words = words_of(capture);
	uint64_t *live;
	hr_status status = make_bits(capture, &live);
	if (status) return status;
	for (uint32_t i = 0; i < capture->change_count; i++) {
		const hr__capture_device *device = &capture->devices[hr__allocation_device(capture, capture->changes[i].allocation)];
		if (device->peak_bytes && i <= device->peak_change) note_change(&capture->changes[i], live);
	}
	visit_noted(capture, live, words, HR__NONE, visit, context);
	hr__os()->free(live, words * sizeof *live);
	return HR_OK;
}
