/* span.c - blocks of whole pages outside the arenas of a bfc allocator, at a stable address.
 *
 *     take      reserves addresses, takes pages from the device's page pool and maps them there
 *     vacate    unmaps the pages and returns them to the pool; the addresses stay reserved
 *     occupy    takes new pages and maps them at the same addresses
 *     give      releases pages and addresses
 *
 * A span has a chunk record in shard 0 for its whole life. While the span has memory, the record is in use, in the lookup and in no
 * region. So the ledger, statistics, holders and checks count it like any block. hr_free does not find it, because its address is
 * in no shard's range. While the span has no memory, the record is in state UNUSED, and nothing finds it.
 *
 * Pages are taken and mapped all at once, so a span has all its memory or none. They are claimed before they are requested, and
 * held while they are mapped (stats.c), so the limits of the allocator and of the page pool hold at every moment.
 *
 * When there are not enough pages: first the missing number of whole free pages is released from the arenas; then caches are
 * emptied and the device's other allocators trimmed; then tensors are evicted (src/core/lms), and free pages released again. */
#include <stddef.h>
#include <stdio.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/memory/limit.h"
#include "core/memory/bfc/span.h"
#include "core/memory/bfc/tensor_block.h"
#include "core/trace/trace.h"

struct hr__span {
	hr__allocator *allocator;
	uint64_t address, bytes; /* of its memory */
	uint64_t base, reserved; /* of its reserved addresses: more than [bytes] where the alignment requires it */
	hr__chunk_id id;         /* of its record in shard 0 */
	bool has_memory;
	hr__page_id pages[]; /* valid while it has memory */
};

static hr__shard *shard_of(const hr__span *span)
{
	return &span->allocator->shards[0];
}

static hr__chunk *chunk_of(const hr__span *span)
{
	return hr__chunk_at(&shard_of(span)->table, span->id);
}

static uint32_t count_of(const hr__span *span)
{
	return (uint32_t)(span->bytes / span->allocator->page);
}

bool hr__span_has_memory(const hr__span *span)
{
	return span->has_memory;
}

uint64_t hr__span_address(const hr__span *span)
{
	return span->address;
}

uint64_t hr__span_bytes(const hr__span *span)
{
	return span->bytes;
}

/* ---- addresses ---- */

static size_t struct_bytes(const hr__allocator *allocator, uint64_t bytes)
{
	return sizeof(hr__span) + bytes / allocator->page * sizeof(hr__page_id);
}

static void drop_record(const hr__span *span)
{
	hr__shard *shard = shard_of(span);
	hr__lock_take(&shard->lock);
	HR_ASSERT(hr__chunk_state_of(chunk_of(span)) == HR__CHUNK_UNUSED);
	hr__chunk_drop(&shard->table, span->id);
	hr__lock_release(&shard->lock);
}

static void close_span(hr__span *span)
{
	hr__device_release(span->allocator->device, span->base, span->reserved); /* on failure only addresses are lost */
	hr__os()->free(span, struct_bytes(span->allocator, span->bytes));
}

static hr_status reserve(hr__span *span, uint64_t alignment)
{
	hr__device *device = span->allocator->device;
	uint64_t slack = alignment > hr__device_map_alignment(device) ? alignment : 0;
	if (!hr__add(span->bytes, slack, &span->reserved)) HR_ASSERT(false); /* hr__request_check excludes an overflow */
	hr_status status = hr__device_reserve(device, span->reserved, &span->base);
	if (!status && !hr__align_up(span->base, slack ? slack : 1, &span->address)) HR_ASSERT(false);
	return status;
}

/* Creates a span with addresses and a record, without memory. */
static hr_status open_span(hr__allocator *allocator, const hr_request *request, hr__span **out)
{
	void *block;
	uint64_t bytes;
	HR_ASSERT(allocator->kind == HR__KIND_BFC && allocator->page);
	if (!hr__align_up(request->bytes, allocator->page, &bytes) || bytes > allocator->limit)
		return hr__bfc_no_room(allocator, allocator->limit + 1, request);
	int error = hr__os()->alloc(struct_bytes(allocator, bytes), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for the page table of a block");
	hr__span *span = block;
	*span = (hr__span){ .allocator = allocator, .bytes = bytes };
	hr_status status = reserve(span, request->alignment);
	if (!status) {
		hr__shard *shard = shard_of(span);
		hr__lock_take(&shard->lock);
		status = hr__shard_ensure_records(shard, 1);
		if (!status) span->id = hr__chunk_new(&shard->table);
		hr__lock_release(&shard->lock);
		if (status) hr__device_release(allocator->device, span->base, span->reserved);
	}
	if (status) hr__os()->free(block, struct_bytes(allocator, bytes));
	else *out = span;
	return status;
}

/* ---- pages ---- */

struct clearing {
	hr_status (*clear)(void *context);
	void *context;
};

static hr_status map_pages(hr__span *span, const struct clearing *clearing)
{
	hr__allocator *allocator = span->allocator;
	HR_ASSERT(!span->has_memory && hr__lock_none_from(HR__RANK_CACHES));
	if (!hr__limit_claim(allocator, span->bytes))
		return hr__fail(HR_OUT_OF_MEMORY, "%s has reached its limit of %llu bytes", allocator->name,
		                (unsigned long long)allocator->limit);
	hr_status status = hr__page_pool_take(allocator->device, count_of(span), span->pages);
	if (status) {
		hr__limit_unclaim(allocator, span->bytes);
		return status;
	}
	uint64_t begin = hr__device_clock_ns(allocator->device);
	if (clearing->clear) status = clearing->clear(clearing->context);
	if (!status) status = hr__device_map(allocator->device, span->address, span->pages, count_of(span));
	hr__fetch_add_relaxed(&allocator->map_ns, hr__device_clock_ns(allocator->device) - begin);
	hr__fetch_add_relaxed(&allocator->map_pages, count_of(span));
	if (status) {
		hr__page_pool_give(allocator->device, span->pages, count_of(span));
		hr__limit_unclaim(allocator, span->bytes);
		/* This is not a lack of pages, so no tensor may be evicted for it. */
		return status == HR_OUT_OF_MEMORY ? hr__fail_in(HR_DEVICE_ERROR, "%s cannot map pages", allocator->name) : status;
	}
	span->has_memory = true;
	return HR_OK;
}

/* Bytes of missing pages; at least one page. */
static uint64_t missing(const hr__span *span)
{
	const hr__allocator *allocator = span->allocator;
	HR_ASSERT(!span->has_memory);
	uint64_t claimed = (uint64_t)hr__load_relaxed(&allocator->claimed), have = hr__page_pool_available(allocator->device);
	uint64_t obtainable = hr__device_obtainable(allocator->device),
			 allowed = allocator->limit > claimed ? allocator->limit - claimed : 0;
	if (have > obtainable) have = obtainable;
	if (have > allowed) have = allowed;
	have = hr__align_down(have, allocator->page);
	return have < span->bytes ? span->bytes - have : allocator->page;
}

/* Releases whole free pages of the arenas, as many as are missing. Returns whether any were released. */
static bool release_pages(const hr__span *span, hr_status *error)
{
	uint64_t page = span->allocator->page, most = missing(span) / page, total = 0;
	HR__EACH_SHARD(span->allocator, shard)
	{
		for (int small = 0; small < 2 && total < most; small++) {
			hr_status status = HR_OK;
			hr__lock_take(&shard->lock);
			total += hr__shard_pool_release_pages(shard, small ? &shard->small : &shard->large, most - total, NULL, &status);
			hr__lock_release(&shard->lock);
			if (status && !*error) *error = status;
		}
	}
	return total > 0;
}

/* Releases everything that can be released without moving data, and maps. */
static hr_status trim_and_map(hr__span *span, const struct clearing *clearing, hr_status *error)
{
	hr_status status = HR_OUT_OF_MEMORY;
	if (release_pages(span, error)) status = map_pages(span, clearing);
	if (status != HR_OUT_OF_MEMORY) return status;
	hr__caches_empty(span->allocator);
	hr__bfc_trim_others(span->allocator);
	release_pages(span, error);
	hr__shard *shard = shard_of(span);
	hr__lock_take(&shard->lock);
	hr__owner_add(&shard->stats.trims, 1);
	hr__lock_release(&shard->lock);
	return map_pages(span, clearing);
}

/* Evicts tensors and retries until the span has memory or no tensor is left (HR_NOT_READY). */
static hr_status reclaim_and_map(hr__span *span, hr_stream stream, const struct clearing *clearing, enum hr__alloc_source *source,
                                 hr_status *error)
{
	const hr__lms_hooks *lms_hooks = hr__load_acquire(&hr__hooks_table.lms);
	hr__pressure pressure = { .allocator = span->allocator, .stream = stream, .pages = true };
	if (!lms_hooks || !hr__load_acquire(&span->allocator->lms)) return HR_NOT_READY;
	for (;; pressure.round++) {
		pressure.size = missing(span);
		hr_status found = lms_hooks->reclaim(&pressure, source);
		if (found && found != HR_NOT_READY) return found;
		/* Also when there was nothing to evict: another thread's request may have evicted tensors since the last attempt and left
		 * free pages. */
		if (found) *source = HR__SOURCE_GROW;
		release_pages(span, error);
		hr_status status = map_pages(span, clearing);
		if (status != HR_OUT_OF_MEMORY) return status;
		if (found) return HR_NOT_READY;
	}
}

static hr_status get_memory(hr__span *span, const hr_request *request, const struct clearing *clearing,
                            enum hr__alloc_source *source)
{
	hr_status error = HR_OK;
	*source = HR__SOURCE_GROW;
	hr_status status = map_pages(span, clearing);
	if (status != HR_OUT_OF_MEMORY) return status;
	*source = HR__SOURCE_TRIM;
	status = trim_and_map(span, clearing, &error);
	if (status != HR_OUT_OF_MEMORY) return status;
	status = reclaim_and_map(span, request->stream, clearing, source, &error);
	if (status != HR_NOT_READY) return status;
	if (error)
		return hr__fail(error, "%s cannot allocate %zu bytes: free pages could not be unmapped", span->allocator->name, request->bytes);
	return hr__bfc_no_room(span->allocator, span->bytes, request);
}

/* ---- the ledger ---- */

/* Ensures room in the lookup for one address. */
static hr_status prepare(const hr__span *span)
{
	hr__shard *shard = shard_of(span);
	hr__lock_take(&shard->lock);
	hr_status status = hr__shard_ensure_records(shard, 0);
	hr__lock_release(&shard->lock);
	return status;
}

static void add_to_ledger(hr__span *span, const hr_request *request, bool inactive, const enum hr__alloc_source *source)
{
	hr__allocator *allocator = span->allocator;
	hr__shard *shard = shard_of(span);
	hr__cache *cache = hr__cache_get(allocator);
	HR_ASSERT(span->has_memory);
	hr__recording_note_reserved(allocator, span->address, (int64_t)span->bytes);
	hr__lock_take(&shard->lock);
	hr__limit_hold(allocator, span->bytes); /* reserved bytes and accounted blocks change together (check.c) */
	hr__shard_ensure_records(shard, 0); /* on failure (others used the room) the lookup gets slightly over half full */
	hr__chunk *chunk = chunk_of(span);
	hr__store_relaxed(&chunk->address, span->address);
	chunk->size = span->bytes;
	chunk->region = HR__REGION_NONE;
	chunk->pages = span->pages;
	hr__chunk_describe(chunk, request);
	chunk->streams = 0; /* callers know which streams used a span; this set holds those of hr_allocation_record_stream */
	hr__store_relaxed(&chunk->state, HR__CHUNK_IN_USE);
	hr__lookup_insert(&shard->lookup, span->address, span->id);
	hr__log_alloc(cache, request, span->address);
	if (inactive) hr__meters_add_inactive(allocator, (int64_t)span->bytes);
	hr__meter_account(shard, cache, (int64_t)span->bytes);
	hr__owner_add(&shard->stats.requested, (int64_t)request->bytes);
	hr__owner_add(&allocator->spans, 1);
	hr__owner_add(&allocator->span_bytes, (int64_t)span->bytes);
	if (!source) {
		hr__fetch_add_relaxed(&allocator->away, -1);
	} else {
		hr__owner_add(&shard->stats.allocs, 1);
		hr__owner_add(&shard->stats.sources[*source], 1);
		hr__owner_add(&shard->stats.total, (int64_t)span->bytes);
		hr__owner_max(&shard->stats.largest, (int64_t)span->bytes);
	}
	hr__lock_release(&shard->lock);
	if (hr__trace_is_on()) hr__trace_alloc((uint32_t)allocator->id, request, span->address, span->bytes);
}

/* Removes the block from the ledger and the statistics. */
static void remove_from_ledger(hr__span *span, hr__cache *cache, bool quietly)
{
	hr__allocator *allocator = span->allocator;
	hr__shard *shard = shard_of(span);
	hr__chunk *chunk = chunk_of(span);
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE);
	HR_ASSERT(hr__chunk_address(chunk) == span->address && chunk->region == HR__REGION_NONE);
	hr__log_free(cache, chunk);
	hr__lookup_remove(&shard->lookup, span->address, span->id);
	hr__store_relaxed(&chunk->state, HR__CHUNK_UNUSED);
	hr__meter_account(shard, cache, -(int64_t)span->bytes);
	hr__owner_add(&shard->stats.requested, -(int64_t)chunk->requested);
	hr__owner_add(&allocator->spans, -1);
	hr__owner_add(&allocator->span_bytes, -(int64_t)span->bytes);
	if (quietly) hr__fetch_add_relaxed(&allocator->away, 1);
	else hr__owner_add(&shard->stats.frees, 1);
}

/* ---- operations ---- */

hr_status hr__span_take(hr__allocator *allocator, const hr_request *request, hr__span **out)
{
	hr__span *span = NULL;
	enum hr__alloc_source source;
	hr_status status = hr__request_check(allocator, request);
	if (!status) status = open_span(allocator, request, &span);
	if (!status) status = prepare(span);
	if (!status) status = get_memory(span, request, &(struct clearing){ 0 }, &source);
	if (!status) {
		add_to_ledger(span, request, false, &source);
		*out = span;
		return HR_OK;
	}
	if (span) {
		char why[512]; /* undoing may fail too, and must not replace the message */
		snprintf(why, sizeof why, "%s", hr_last_message());
		drop_record(span);
		close_span(span);
		hr__fail(status, "%s", why);
	}
	hr_request whole = *request; /* as a request to an arena would have to be, so that the verdict is about whole pages */
	if (hr__align_up(request->bytes, allocator->page, &whole.bytes) && whole.alignment < allocator->page) whole.alignment = allocator->page;
	hr__request_refuse(allocator, request, &whole, status);
	return status;
}

hr_status hr__span_occupy(hr__span *span, const hr_request *request, bool inactive, hr_status (*clear)(void *context), void *context)
{
	enum hr__alloc_source source;
	HR_ASSERT(!span->has_memory);
	hr_status status = hr__request_check(span->allocator, request);
	if (!status) status = prepare(span);
	if (!status) status = get_memory(span, request, &(struct clearing){ clear, context }, &source);
	if (status) return status;
	add_to_ledger(span, request, inactive, NULL);
	return HR_OK;
}

static hr_status wait_for_recorded(const hr__span *span)
{
	hr__shard *shard = shard_of(span);
	hr__device *device = span->allocator->device;
	hr__lock_take(&shard->lock);
	uint64_t streams = chunk_of(span)->streams;
	hr__lock_release(&shard->lock);
	return streams ? hr__device_wait_idle(device, streams, hr__device_epoch(device)) : HR_OK;
}

static hr_status give_memory(hr__span *span, bool quietly)
{
	hr__allocator *allocator = span->allocator;
	hr__shard *shard = shard_of(span);
	HR_ASSERT(span->has_memory);
	hr_status status = wait_for_recorded(span);
	uint64_t begin = hr__device_clock_ns(allocator->device);
	if (!status) status = hr__device_unmap(allocator->device, span->address, count_of(span));
	hr__fetch_add_relaxed(&allocator->map_ns, hr__device_clock_ns(allocator->device) - begin);
	if (status) return status;
	hr__cache *cache = hr__cache_get(allocator);
	hr__lock_take(&shard->lock);
	remove_from_ledger(span, cache, quietly);
	/* After remove_from_ledger, so that a recording that starts now contains no block that is never freed. Before the memory can serve
	 * another request. */
	if (hr__trace_is_on()) hr__trace_free((uint32_t)allocator->id, span->address, HR_STREAM_DEFAULT);
	hr__recording_note_reserved(allocator, span->address, -(int64_t)span->bytes);
	/* Pages return to the pool before the claim ends, so that no request gets past the limit and then finds no pages. */
	hr__page_pool_give(allocator->device, span->pages, count_of(span));
	hr__limit_unhold(allocator, span->bytes);
	hr__lock_release(&shard->lock);
	span->has_memory = false;
	return HR_OK;
}

hr_status hr__span_vacate(hr__span *span)
{
	HR_ASSERT(span->has_memory);
	return give_memory(span, true);
}

hr_status hr__span_give(hr__span *span)
{
	hr__allocator *allocator = span->allocator;
	if (span->has_memory) {
		hr_status status = give_memory(span, false);
		if (status) return status;
	} else {
		hr__block_forget(allocator);
	}
	drop_record(span);
	close_span(span);
	return HR_OK;
}

/* ---- closing ---- */

void hr__span_abandon(hr__span *span)
{
	if (span->has_memory) return; /* hr__spans_close finds it through its record */
	hr__block_forget(span->allocator);
	drop_record(span);
	close_span(span);
}

void hr__spans_close(hr__shard *shard)
{
	hr__allocator *allocator = shard->allocator;
	HR_ASSERT(hr__lock_is_mine(&shard->lock) && shard->index == 0);
	for (hr__chunk_id id = 1; id < shard->table.touched && hr__load_relaxed(&allocator->spans) > 0; id++) {
		const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
		if (hr__chunk_state_of(chunk) != HR__CHUNK_IN_USE || chunk->region != HR__REGION_NONE) continue;
		hr__span *span = (hr__span *)((char *)chunk->pages - offsetof(hr__span, pages));
		bool unmapped = hr__device_unmap(allocator->device, span->address, count_of(span)) == HR_OK;
		if (unmapped) hr__page_pool_give(allocator->device, span->pages, count_of(span));
		hr__limit_unhold(allocator, span->bytes);
		hr__owner_add(&allocator->spans, -1);
		close_span(span);
	}
}
