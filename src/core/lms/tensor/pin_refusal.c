/* pin_refusal.c - what a pin without memory would have needed, and the message that says so. */
#include <stdio.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/lms/tensor/pin.h"

/* What a call needs at once, and what holds memory against it. */
struct demand {
	uint64_t own;         /* bytes of the tensors that it names */
	uint64_t unevictable; /* of other resident tensors that may not be evicted, pinned or not */
	uint64_t pinned;      /* of other resident tensors that only their pins hold */
};

/* The field that its bytes count in; NULL if it is not resident or can be evicted. */
static uint64_t *field_of_bytes(const hr__tensor *tensor, struct demand *demand)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	uint64_t word = hr__load_acquire(&tensor->word);
	if (hr__word_place(word) != HR__PLACE_RESIDENT && hr__word_place(word) != HR__PLACE_MOVING) return NULL;
	if (hr__load_relaxed(&tensor->never_evict)) return &demand->unevictable;
	return word & HR__WORD_PINS ? &demand->pinned : NULL;
}

static struct demand measure_demand(hr__lms *lms, const hr_pin *pins, size_t count)
{
	struct demand demand = { 0 };
	hr__pin_names named = { { 0 } };
	hr__lock_take(&lms->lock);
	for (uint32_t i = 0; i < lms->member_count; i++) {
		uint64_t *to = field_of_bytes(lms->members[i], &demand);
		if (to) *to += lms->members[i]->device_bytes;
	}
	for (size_t i = 0; i < count; i++) {
		const hr__tensor *tensor = hr__pin_name_first(&named, pins, i);
		if (!tensor) continue;
		uint64_t bytes = tensor->device_bytes, *in = field_of_bytes(tensor, &demand);
		demand.own += bytes;
		if (in) *in -= *in < bytes ? *in : bytes; /* its own bytes do not count; other threads may have unpinned it since */
	}
	hr__lock_release(&lms->lock);
	return demand;
}

static uint64_t limit_of(hr__lms *lms)
{
	uint64_t limit = hr__load_acquire(&lms->limit);
	return limit < lms->allocator->limit ? limit : lms->allocator->limit;
}

bool hr__pin_can_never_fit(hr__lms *lms, const hr_pin *pins, size_t count)
{
	uint64_t limit = limit_of(lms);
	struct demand demand = measure_demand(lms, pins, count);
	return demand.own > limit || demand.unevictable > limit - demand.own;
}

/* "reads 4.0 MiB weights, writes 1.0 MiB": as many tensors as fit. */
static void list_tensors(const hr_pin *pins, size_t count, char *list, size_t capacity)
{
	size_t used = 0;
	hr__pin_names named = { { 0 } };
	list[0] = 0;
	for (size_t i = 0; i < count; i++) {
		char size[16];
		const hr__tensor *tensor = hr__pin_name_first(&named, pins, i);
		if (!tensor) continue;
		if (used > capacity - 100) {
			snprintf(list + used, capacity - used, ", ...");
			return;
		}
		const char *name = hr_name_text(tensor->tag ? tensor->tag : tensor->op);
		used += (size_t)snprintf(
			list + used, capacity - used, "%s%s %s%s%s", used ? ", " : "", pins[i].access == HR_READ ? "reads" : "writes",
			hr__format_size(tensor->device_bytes, size, sizeof size), *name ? " " : "", hr__brief(name, 40).text);
	}
}

hr_status hr__pin_fail_no_room(hr__lms *lms, const hr_pin *pins, size_t count, bool never)
{
	hr_name op = hr__thread_self ? hr__thread_self->op : HR_NAME_NONE;
	char who[HR__BRIEF_MAX + 16], list[512], more[16];
	snprintf(who, sizeof who, "%s%s%s", op ? "op \"" : "an op", hr__brief(hr_name_text(op), 60).text, op ? "\"" : "");
	if (!never && hr__reclaim_was_blocked())
		return hr__fail_in(HR_OUT_OF_MEMORY, "%s cannot run, because no tensor can be evicted to make room for it", who);
	struct demand demand = measure_demand(lms, pins, count);
	list_tensors(pins, count, list, sizeof list);
	int64_t inactive = hr__lms_inactive(lms);
	if (!lms->enabled && !never && inactive > 0)
		return hr__fail_in(HR_OUT_OF_MEMORY,
		                   "%s cannot run: it needs %s at once (%s), and %s of inactive tensors cannot be evicted; "
		                   "hr_set_lms_enabled(true) or HEADROOM_LMS=1 allows it",
		                   who, hr__sizes_text(&demand.own, 1).text[0], list, hr__format_size((uint64_t)inactive, more, sizeof more));
	hr_stats stats;
	hr_stats_init(&stats);
	(void)!hr_allocator_get_stats(lms->handle, &stats); /* zeros if it fails */
	int64_t plain = stats.bytes_in_use - hr__load_relaxed(&lms->resident);
	uint64_t unit = lms->allocator->page ? lms->allocator->page : lms->allocator->granularity, least;
	uint64_t other = demand.unevictable + (never ? 0 : demand.pinned) + (uint64_t)(plain > 0 ? plain : 0);
	if (!hr__align_up(demand.own + other, unit, &least)) least = UINT64_MAX;
	uint64_t there = (uint64_t)stats.bytes_reserved + hr__page_pool_available(lms->allocator->device);
	hr__sizes size = HR__SIZES(demand.own, other, least <= limit_of(lms) ? there : least);
	if (least <= limit_of(lms) && least > there)
		return hr__fail_in(HR_OUT_OF_MEMORY,
		                   "%s cannot run: it needs %s at once (%s), and %s more is in use; that is within the limit, but other "
		                   "users of %s leave only %s for it",
		                   who, size.text[0], list, size.text[1], hr__device_name(lms->allocator->device), size.text[2]);
	if (least <= limit_of(lms))
		return hr__fail_in(
			HR_OUT_OF_MEMORY,
			"%s cannot run: it needs %s at once (%s), and %s more is in use; that is within the limit, but free memory is "
			"fragmented: %sraise the limit",
			who, size.text[0], list, size.text[1], lms->defrag || !lms->enabled ? "" : "set hr_lms_options.defrag, or ");
	return hr__fail_in(HR_OUT_OF_MEMORY,
	                   "%s cannot run: it needs %s at once (%s), and %s more %s; the smallest sufficient limit is %s", who,
	                   size.text[0], list, size.text[1], never ? "cannot be evicted" : "is in use", size.text[2]);
}
