/* blocks.c - allocations and frees of a capture that is being built: which blocks are live, and the bytes in use. */
#include "analysis/capture/builder/builder.h"

#define MAX_LIVE_BYTES (UINT64_C(1) << 46) /* live at once on a device of an imported trace: 64 TiB, the most that a simulated device has */

static const hr__allocation *allocation_at(const hr__builder *b, uint32_t index)
{
	return &hr__builder_allocations(b)[index];
}

static uint32_t allocator_of(const hr__builder *b, uint32_t allocation)
{
	return hr__builder_sites(b)[allocation_at(b, allocation)->site].allocator;
}

/* Finds the slot of the live allocation at [address]; false when there is none. */
static bool find_slot(const hr__builder *b, uint32_t allocator, uint64_t address, uint32_t *slot)
{
	const hr__slots *slots = &b->live;
	uint32_t hash = hr__finder_hash(slots, address, allocator);
	for (*slot = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, slot); ++*slot) {
		uint32_t index = slots->slots[*slot].item - 1;
		if (allocation_at(b, index)->address == address && allocator_of(b, index) == allocator) return true;
	}
	return false;
}

/* The allocation in a slot of b->live. */
static uint32_t allocation_in(const hr__builder *b, uint32_t slot)
{
	return b->live.slots[slot].item - 1;
}

uint32_t hr__builder_find_live(const hr__builder *b, uint32_t allocator, uint64_t address)
{
	uint32_t slot;
	return find_slot(b, allocator, address, &slot) ? allocation_in(b, slot) : HR__NONE;
}

static hr_status add_change(hr__builder *b, const hr__event *e, uint32_t allocation, bool frees)
{
	uint16_t stream = 0;
	hr_status status = hr__builder_find_stream(b, e->stream, &stream);
	hr__change *change = hr__array_push(&b->arrays->changes, &status);
	if (status) return status;
	*change = (hr__change){ allocation, frees, stream, e->thread < HR__THREAD_LAST ? (uint16_t)e->thread : HR__THREAD_LAST };
	return hr__builder_add_item(b, HR__ITEM_CHANGE);
}

static hr_status end_allocation(hr__builder *b, uint32_t slot, const hr__event *e)
{
	uint64_t now = e->time_ns;
	uint32_t index = allocation_in(b, slot);
	hr__allocation *allocation = &hr__builder_allocations(b)[index];
	hr__capture_allocator *allocators = hr__builder_allocators(b);
	uint32_t allocator = allocator_of(b, index);
	hr_status status = add_change(b, e, index, true);
	if (status) return status;
	hr__slots_remove(&b->live, slot);
	allocation->end_ns = now;
	allocators[allocator].last_ns = now;
	b->in_use[allocator] -= allocation->bytes;
	b->device_in_use[allocators[allocator].device] -= allocation->bytes;
	return HR_OK;
}

/* Called when bytes in use have grown. */
static void note_peaks(hr__builder *b, uint32_t allocator, uint64_t now)
{
	hr__capture_allocator *a = &hr__builder_allocators(b)[allocator];
	hr__capture_device *d = &hr__builder_devices(b)[a->device];
	uint32_t change = (uint32_t)b->arrays->changes.count - 1;
	if (a->first_ns == HR__NEVER) a->first_ns = now;
	if (a->peak_change == HR__NONE || b->in_use[allocator] > a->peak_bytes) {
		a->peak_bytes = b->in_use[allocator];
		a->peak_ns = now;
		a->peak_change = change;
	}
	if (d->peak_change == HR__NONE || b->device_in_use[a->device] > d->peak_bytes) {
		d->peak_bytes = b->device_in_use[a->device];
		d->peak_ns = now;
		d->peak_change = change;
	}
}

static hr_status begin_allocation(hr__builder *b, const hr__event *e, uint32_t site)
{
	uint32_t allocator = hr__builder_sites(b)[site].allocator;
	uint64_t slack = e->requested <= e->bytes ? e->bytes - e->requested : 0;
	hr_status status = hr__slots_reserve(&b->live);
	hr__allocation *allocation = hr__array_push(&b->arrays->allocations, &status);
	if (status) return status;
	uint32_t index = (uint32_t)b->arrays->allocations.count - 1;
	*allocation = (hr__allocation){ .begin_ns = e->time_ns, .end_ns = HR__NEVER, .address = e->address, .bytes = e->bytes,
		                            .slack = slack < UINT32_MAX ? (uint32_t)slack : UINT32_MAX, .site = site };
	hr__slots_add(&b->live, hr__finder_hash(&b->live, e->address, allocator), index);
	status = add_change(b, e, index, false);
	if (status) return status;
	b->bytes_allocated += e->bytes;
	b->in_use[allocator] += e->bytes;
	b->device_in_use[hr__builder_device_index(b, allocator)] += e->bytes;
	note_peaks(b, allocator, e->time_ns);
	hr__lives_alloc(&b->lives, &(hr__life_event){ e, hr__builder_device_index(b, allocator), index });
	return HR_OK;
}

/* Whether the event reports the live allocation [index] once more: a block that is allocated while a recording begins is reported by
 * the recorder, in its list of existing blocks, and by the thread that allocates it. */
static bool is_reported_twice(const hr__builder *b, uint32_t index, uint32_t site, const hr__event *e)
{
	const hr__allocation *allocation = allocation_at(b, index);
	const hr__site *sites = hr__builder_sites(b), *old = &sites[allocation->site], *new = &sites[site];
	if (b->mark_seen && index >= b->allocations_before_mark) return false;
	return allocation->bytes == e->bytes && old->op == new->op && old->scope == new->scope && old->tag == new->tag && old->shape == new->shape &&
	       old->dtype == new->dtype;
}

/* A replay has a limit on live bytes that Headroom's own recordings never exceed. Traces of other programs are checked. */
static hr_status check_live(const hr__builder *b, uint32_t allocator, const hr__event *e)
{
	uint64_t live = b->device_in_use[hr__builder_device_index(b, allocator)];
	if (b->stream->format == HR__FORMAT_HEADROOM || e->bytes <= MAX_LIVE_BYTES - live) return HR_OK;
	hr__fail(HR_BAD_FORMAT, "more than 64 TiB live at once (an allocation of %llu bytes on top of %llu)", (unsigned long long)e->bytes,
	         (unsigned long long)live);
	return b->stream->fail(b->stream, HR_BAD_FORMAT);
}

/* Handles an ALLOC at an address that is in use. *duplicate: the block was reported twice, so the caller must ignore the event. */
static hr_status add_second_alloc(hr__builder *b, const hr__event *e, uint32_t site, uint32_t slot, bool *duplicate)
{
	*duplicate = is_reported_twice(b, allocation_in(b, slot), site, e);
	if (b->stream->strict) {
		hr__fail(HR_BAD_FORMAT, "block %llu is allocated while it is live; free it first or give the new one another id",
		         (unsigned long long)e->address2);
		return b->stream->fail(b->stream, HR_BAD_FORMAT);
	}
	hr__builder_skip(b, *duplicate);
	/* Only the report of the allocating thread has a stack; the recorder's has none. */
	if (*duplicate && e->stack) hr__builder_allocations(b)[allocation_in(b, slot)].site = site;
	if (*duplicate) return HR_OK;
	hr__builder_device_of(b, hr__builder_find_allocator(b, e->allocator))->implied_frees++;
	return end_allocation(b, slot, e);
}

hr_status hr__builder_add_alloc(hr__builder *b, const hr__event *e)
{
	uint32_t site, slot, allocator = hr__builder_find_allocator(b, e->allocator);
	bool duplicate = false;
	hr__builder_device_of(b, allocator)->allocs++;
	if (e->bytes > HR__TOTAL_BYTES_MAX - b->bytes_allocated) {
		b->capture->skipped++;
		return HR_OK;
	}
	hr_status status = check_live(b, allocator, e);
	if (!status) status = hr__builder_find_site(b, e, &site);
	if (status) return status;
	if (HR_UNLIKELY(find_slot(b, allocator, e->address, &slot))) status = add_second_alloc(b, e, site, slot, &duplicate);
	return status || duplicate ? status : begin_allocation(b, e, site);
}

hr_status hr__builder_check_block(const hr__builder *b, const hr__event *e, uint32_t allocation, const char *verb)
{
	if (!b->stream->strict) return HR_OK;
	bool known = allocation != HR__NONE;
	uint64_t allocated = known ? allocation_at(b, allocation)->bytes : 0;
	if (known && (e->bytes == 0 || e->bytes == allocated)) return HR_OK;
	if (!known)
		hr__fail(HR_BAD_FORMAT, "block %llu is %s but not live: freed already, or never allocated", (unsigned long long)e->address2, verb);
	else
		hr__fail(HR_BAD_FORMAT, "block %llu is %s with %llu bytes, but was allocated with %llu", (unsigned long long)e->address2, verb,
		         (unsigned long long)e->bytes, (unsigned long long)allocated);
	return b->stream->fail(b->stream, HR_BAD_FORMAT);
}

hr_status hr__builder_add_free(hr__builder *b, const hr__event *e)
{
	uint32_t slot, allocator = hr__builder_find_allocator(b, e->allocator);
	bool known = find_slot(b, allocator, e->address, &slot);
	hr__life_event life = { e, hr__builder_device_index(b, allocator), known ? allocation_in(b, slot) : HR__NONE };
	hr_status status = hr__builder_check_block(b, e, life.allocation, "freed");
	if (!status && known) status = end_allocation(b, slot, e);
	if (status) return status;
	if (!known) {
		hr__builder_device_of(b, allocator)->unknown_frees++;
		/* If this is the thread's first event, it may have been inside this call when the recording began. Traces of other programs do
		 * not list the blocks that existed before. */
		hr__builder_skip(b, !(b->seen[e->thread] & HR__SEEN_EVENT) || b->stream->format != HR__FORMAT_HEADROOM);
	}
	return hr__builder_end_tensors(b, hr__lives_release(&b->lives, &life));
}
