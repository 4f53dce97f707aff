/* mappings.c - bookkeeping of pages, ranges and mappings.
 *
 * Ranges are an array of pointers in address order, searched by bisection. The pages mapped in a range are a two-level table. Its
 * leaves are allocated when a page is first mapped there, because allocators reserve far more addresses than they map.
 *
 * The state of a page is one word:    LIVE                  exists, not mapped
 *                                     LIVE | MAPPED         exists, mapped in one place
 *                                     ... | OF_HOST         is host memory
 *                                     next                  destroyed; index + 1 of the next destroyed page
 *
 * Invariants:
 *   1  ranges do not overlap and are in address order
 *   2  a page is MAPPED exactly when one slot of one range has its index
 *   3  a range's mapped is the number of its slots that are not 0
 *   4  page_live + page_host = pages with LIVE; the others below page_made are in the list page_free */
#include "core/device/backends/mappings.h"

#include <string.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/os/os.h"

#define LIVE UINT32_C(0x80000000)
#define MAPPED UINT32_C(0x40000000)
#define OF_HOST UINT32_C(1)
#define MAX_PAGES UINT32_C(0x3fffffff)
#define MAX_LEAF 1024u

#define HEX(address) ((unsigned long long)(address))

void hr__mappings_init(hr__mappings *books, uint64_t page_bytes)
{
	*books = (hr__mappings){ .page_bytes = page_bytes };
}

void hr__mappings_destroy(hr__mappings *books)
{
	for (uint32_t i = 0; i < books->range_count; i++) hr__mappings_range_free(books->ranges[i]);
	if (books->ranges) hr__os()->free(books->ranges, books->range_capacity * sizeof *books->ranges);
	if (books->pages) hr__os()->free(books->pages, books->page_capacity * sizeof *books->pages);
	hr__mappings_init(books, books->page_bytes);
}

/* Makes room for an item after [count]. */
static hr_status make_room(void *array, size_t count, size_t *capacity, size_t item, size_t first)
{
	int error = count < *capacity ? 0 : hr__os_grow(array, capacity, item, first);
	return error ? hr__os_fail(error, "the tables of a device") : HR_OK;
}

/* ---- ranges ---- */

/* Number of ranges that begin at or below [address]. */
static uint32_t rank_of(const hr__mappings *books, uint64_t address)
{
	uint32_t low = 0, high = books->range_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (books->ranges[middle]->base <= address) low = middle + 1;
		else high = middle;
	}
	return low;
}

/* The range that contains [address], or NULL. */
static hr__range *range_at(const hr__mappings *books, uint64_t address)
{
	uint32_t rank = rank_of(books, address);
	if (rank == 0) return NULL;
	hr__range *range = books->ranges[rank - 1];
	return address - range->base < range->bytes ? range : NULL;
}

/* Whether [bytes] from [address] on are inside [range]; [address] is. */
static bool fits(const hr__range *range, uint64_t address, uint64_t bytes)
{
	return bytes <= range->bytes - (address - range->base);
}

static void set_leaves(hr__range *range, uint64_t pages)
{
	range->leaf_entries = pages >= MAX_LEAF ? MAX_LEAF : UINT32_C(1) << (pages > 1 ? hr__log2(pages - 1) + 1 : 0);
	range->leaf_count = (uint32_t)((pages + range->leaf_entries - 1) / range->leaf_entries);
}

static hr_status make_range(const hr__mappings *books, uint64_t base, uint64_t bytes, hr__range_kind kind, hr__range **out)
{
	void *memory, *leaves = NULL;
	int error = hr__os()->alloc(sizeof(hr__range), &memory);
	if (error) return hr__os_fail(error, "the tables of a device");
	hr__range *range = memory;
	*range = (hr__range){ .base = base, .bytes = bytes, .kind = kind };
	if (kind == HR__RANGE_PAGES) {
		set_leaves(range, bytes / books->page_bytes);
		error = hr__os()->alloc(range->leaf_count * sizeof *range->leaves, &leaves);
		if (error) {
			hr__os()->free(range, sizeof *range);
			return hr__os_fail(error, "the tables of a device");
		}
		range->leaves = leaves;
	}
	*out = range;
	return HR_OK;
}

void hr__mappings_range_free(hr__range *range)
{
	for (uint32_t i = 0; i < range->leaf_count; i++) {
		if (range->leaves[i]) hr__os()->free(range->leaves[i], range->leaf_entries * sizeof(uint32_t));
	}
	if (range->leaves) hr__os()->free(range->leaves, range->leaf_count * sizeof *range->leaves);
	hr__os()->free(range, sizeof *range);
}

hr_status hr__mappings_add(hr__mappings *books, uint64_t base, uint64_t bytes, hr__range_kind kind, hr__range **out)
{
	HR_ASSERT(bytes > 0 && !range_at(books, base) && !range_at(books, base + bytes - 1));
	hr__range *range = NULL;
	hr_status status = make_room(&books->ranges, books->range_count, &books->range_capacity, sizeof *books->ranges, 16);
	if (status == HR_OK) status = make_range(books, base, bytes, kind, &range);
	if (status != HR_OK) return status;
	uint32_t at = rank_of(books, base);
	memmove(&books->ranges[at + 1], &books->ranges[at], (books->range_count - at) * sizeof *books->ranges);
	books->ranges[at] = range;
	books->range_count++;
	*out = range;
	return HR_OK;
}

hr_status hr__mappings_whole(const hr__mappings *books, uint64_t base, uint64_t bytes, hr__range_kind kind, hr__range **out)
{
	hr__range *range = range_at(books, base);
	if (!range || range->base != base || range->bytes != bytes || range->kind != kind) {
		return hr__fail(HR_DEVICE_ERROR, "there is no range of %llu bytes at 0x%llx to give back", (unsigned long long)bytes,
		                HEX(base));
	}
	if (range->mapped > 0) {
		return hr__fail(HR_DEVICE_ERROR, "the range at 0x%llx still has %u page%s mapped", HEX(base), range->mapped, hr__plural(range->mapped));
	}
	*out = range;
	return HR_OK;
}

void hr__mappings_remove(hr__mappings *books, hr__range *range)
{
	uint32_t at = rank_of(books, range->base) - 1;
	HR_ASSERT(books->ranges[at] == range);
	books->range_count--;
	memmove(&books->ranges[at], &books->ranges[at + 1], (books->range_count - at) * sizeof *books->ranges);
}

/* ---- pages ---- */

static hr_status create_page(hr__mappings *books, uint32_t state, hr_page *page)
{
	uint32_t index;
	if (books->page_free) {
		index = books->page_free - 1;
		books->page_free = books->pages[index];
	} else {
		if (books->page_made == MAX_PAGES)
			return hr__fail(HR_OUT_OF_MEMORY, "a simulated or emulated device has at most 2^30 - 1 pages");
		hr_status status = make_room(&books->pages, books->page_made, &books->page_capacity, sizeof *books->pages, 1024);
		if (status != HR_OK) return status;
		index = books->page_made++;
	}
	books->pages[index] = state;
	*(state & OF_HOST ? &books->page_host : &books->page_live) += 1;
	*page = books->page_bytes * (uint64_t)index;
	return HR_OK;
}

hr_status hr__mappings_page_create(hr__mappings *books, hr_page *page)
{
	return create_page(books, LIVE, page);
}

hr_status hr__mappings_host_page_create(hr__mappings *books, hr_page *page)
{
	return create_page(books, LIVE | OF_HOST, page);
}

/* The state of [page]; NULL when there is no such page. */
static uint32_t *state_of(const hr__mappings *books, hr_page page)
{
	uint64_t index = page / books->page_bytes;
	if (page % books->page_bytes != 0 || index >= books->page_made || !(books->pages[index] & LIVE)) return NULL;
	return &books->pages[index];
}

hr_status hr__mappings_page_check(const hr__mappings *books, hr_page page)
{
	const uint32_t *state = state_of(books, page);
	if (!state) return hr__fail(HR_DEVICE_ERROR, "there is no page 0x%llx", HEX(page));
	if (*state & MAPPED) return hr__fail(HR_DEVICE_ERROR, "page 0x%llx is mapped already", HEX(page));
	return HR_OK;
}

hr_status hr__mappings_page_destroy(hr__mappings *books, hr_page page)
{
	hr_status status = hr__mappings_page_check(books, page);
	if (status != HR_OK) return status;
	uint32_t *state = state_of(books, page);
	*(*state & OF_HOST ? &books->page_host : &books->page_live) -= 1;
	*state = books->page_free;
	books->page_free = (uint32_t)(state - books->pages) + 1;
	return HR_OK;
}

bool hr__mappings_is_host_page(const hr__mappings *books, hr_page page)
{
	const uint32_t *state = state_of(books, page);
	return state && *state & OF_HOST;
}

/* ---- mappings ---- */

/* The leaf with the slot of page number [at] of the range. */
static inline uint32_t **leaf_of(const hr__range *range, uint64_t at)
{
	return &range->leaves[at / range->leaf_entries];
}

static inline uint32_t slot_value(const hr__range *range, uint64_t at)
{
	const uint32_t *leaf = *leaf_of(range, at);
	return leaf ? leaf[at % range->leaf_entries] : 0;
}

/* Finds the slots for [count] pages from [address] on: sets their range and the number of the first. */
static hr_status find_slots(const hr__mappings *books, uint64_t address, uint32_t count, hr__range **out, uint64_t *first)
{
	hr__range *range = range_at(books, address);
	uint64_t bytes;
	if (!range || range->kind != HR__RANGE_PAGES || (address - range->base) % books->page_bytes != 0 ||
	    !hr__multiply(books->page_bytes, count, &bytes) || !fits(range, address, bytes)) {
		return hr__fail(HR_DEVICE_ERROR, "%u pages from 0x%llx on are not in a range that was reserved for pages", count,
		                HEX(address));
	}
	*out = range;
	*first = (address - range->base) / books->page_bytes;
	return HR_OK;
}

static hr_status make_leaf(const hr__range *range, uint64_t at)
{
	uint32_t **leaf = leaf_of(range, at);
	void *memory;
	if (*leaf) return HR_OK;
	int error = hr__os()->alloc(range->leaf_entries * sizeof **leaf, &memory);
	if (error) return hr__os_fail(error, "the tables of a device");
	*leaf = memory;
	return HR_OK;
}

static hr_status map_one(hr__mappings *books, hr__range *range, uint64_t at, hr_page page)
{
	hr_status status = hr__mappings_page_check(books, page);
	if (status != HR_OK) return status;
	if (slot_value(range, at)) {
		return hr__fail(HR_DEVICE_ERROR, "a page is mapped at 0x%llx already", HEX(range->base + at * books->page_bytes));
	}
	status = make_leaf(range, at);
	if (status != HR_OK) return status;
	uint32_t *state = state_of(books, page);
	*state |= MAPPED;
	(*leaf_of(range, at))[at % range->leaf_entries] = (uint32_t)(state - books->pages) + 1;
	range->mapped++;
	return HR_OK;
}

static void unmap_one(hr__mappings *books, hr__range *range, uint64_t at)
{
	uint32_t *slot = &(*leaf_of(range, at))[at % range->leaf_entries];
	HR_ASSERT(*slot && (books->pages[*slot - 1] & MAPPED));
	books->pages[*slot - 1] &= ~MAPPED;
	*slot = 0;
	range->mapped--;
}

hr_status hr__mappings_map(hr__mappings *books, uint64_t address, const hr_page *pages, uint32_t count)
{
	hr__range *range = NULL;
	uint64_t first;
	hr_status status = find_slots(books, address, count, &range, &first);
	for (uint32_t i = 0; i < count && status == HR_OK; i++) {
		status = map_one(books, range, first + i, pages[i]);
		if (status == HR_OK) continue;
		while (i-- > 0) unmap_one(books, range, first + i);
		break;
	}
	return status;
}

hr_status hr__mappings_unmap_check(const hr__mappings *books, uint64_t address, uint32_t count)
{
	hr__range *range = NULL;
	uint64_t first;
	hr_status status = find_slots(books, address, count, &range, &first);
	if (status != HR_OK) return status;
	for (uint32_t i = 0; i < count; i++) {
		if (!slot_value(range, first + i)) {
			return hr__fail(HR_DEVICE_ERROR, "no page is mapped at 0x%llx", HEX(address + i * books->page_bytes));
		}
	}
	return HR_OK;
}

void hr__mappings_unmap(hr__mappings *books, uint64_t address, uint32_t count)
{
	hr__range *range = range_at(books, address);
	uint64_t first = (address - range->base) / books->page_bytes;
	for (uint32_t i = 0; i < count; i++) unmap_one(books, range, first + i);
}

/* ---- access ---- */

bool hr__mappings_host_page_at(const hr__mappings *books, uint64_t address)
{
	const hr__range *range = range_at(books, address);
	uint32_t slot = range && range->kind == HR__RANGE_PAGES ? slot_value(range, (address - range->base) / books->page_bytes) : 0;
	return slot && books->pages[slot - 1] & OF_HOST;
}

static bool all_mapped(const hr__mappings *books, const hr__range *range, uint64_t address, uint64_t bytes)
{
	if (range->mapped == range->bytes / books->page_bytes) return true;
	uint64_t first = (address - range->base) / books->page_bytes, last = (address + bytes - 1 - range->base) / books->page_bytes;
	for (uint64_t at = first; at <= last; at++) {
		if (!slot_value(range, at)) return false;
	}
	return true;
}

hr_status hr__mappings_access(const hr__mappings *books, uint64_t address, uint64_t bytes, const char *what)
{
	const hr__range *range = range_at(books, address);
	bool inside = range && range->kind != HR__RANGE_HOST && fits(range, address, bytes);
	if (inside && (range->kind == HR__RANGE_PLAIN || all_mapped(books, range, address, bytes))) return HR_OK;
	return hr__fail(HR_DEVICE_ERROR, "%s [0x%llx, 0x%llx): no device memory is mapped there%s", what, HEX(address),
	                HEX(address + bytes), inside ? ", or only in part" : "");
}

hr_status hr__mappings_host_access(const hr__mappings *books, uint64_t address, uint64_t bytes, const char *what)
{
	const hr__range *range = range_at(books, address);
	if (!range || (range->kind == HR__RANGE_HOST && fits(range, address, bytes))) return HR_OK;
	return hr__fail(HR_DEVICE_ERROR, "%s [0x%llx, 0x%llx): this is not host memory", what, HEX(address), HEX(address + bytes));
}
