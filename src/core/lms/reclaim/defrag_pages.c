/* defrag_pages.c - moves tensors off pages, so that whole pages are free for stitching (bfc.c).
 *
 *     | x | free   | T1 | free |   T2   |free|   free   | x |         x: cannot be moved
 *         p        p           p             p          p             p: pages
 *
 * A page can become whole if everything on it is free or may be moved. Pages with the fewest bytes of tensors are taken first.
 * Their tensors move to free memory that is part of no whole page: preferably where no page can become whole, otherwise to a page
 * with more bytes on it, which would come later and is then no longer taken. A tensor that lies on several pages moves once, and
 * counts for all of them. A page whose tensors find no place is skipped.
 *
 * This is greedy, one page after the other, so it need not move the fewest bytes. */
#include "core/base/checked.h"
#include "core/lms/reclaim/defrag.h"

#define NONE UINT64_MAX
#define NO_ROW UINT32_MAX

static uint64_t page_bytes(const hr__defrag_search *d)
{
	return d->lms->allocator->page;
}

/* ---- the pages ---- */

/* Sheets of a row that [address, end) lies on, at least in part: [*first, *last). */
static void pages_of(const hr__defrag_search *d, uint32_t row, uint64_t address, uint64_t end, uint32_t *first, uint32_t *last)
{
	*first = *last = 0;
	if (row == NO_ROW || end <= d->rows[row].page) return;
	const hr__defrag_row *at = &d->rows[row];
	uint64_t from = address > at->page ? (address - at->page) / page_bytes(d) : 0, to = (end - 1 - at->page) / page_bytes(d) + 1;
	if (from > at->count) from = at->count;
	if (to > at->count) to = at->count;
	*first = at->first + (uint32_t)from;
	*last = at->first + (uint32_t)to;
}

static void add_stretch(hr__defrag_search *d, uint32_t row, size_t i)
{
	HR_ASSERT(i < d->count);
	const hr__stretch *stretch = &d->stretches[i];
	uint32_t first, last;
	d->row_of[i] = row;
	pages_of(d, row, stretch->address, stretch->address + stretch->bytes, &first, &last);
	for (uint32_t s = first; s < last; s++) {
		hr__defrag_page *on = &d->pages[s];
		if (on->first == UINT32_MAX) on->first = (uint32_t)i;
		on->end = (uint32_t)i + 1;
		if (!hr__defrag_is_item(stretch)) continue;
		on->left++;
		on->cost += stretch->bytes;
	}
}

/* Adds a row of stretches [begin, end) and its pages. False if there are too many. */
static bool add_row(hr__defrag_search *d, uint32_t *rows, size_t begin, size_t end)
{
	HR_ASSERT(begin < end && end <= d->count);
	uint64_t to = d->stretches[end - 1].address + d->stretches[end - 1].bytes, page;
	if (!hr__align_up(d->stretches[begin].address, page_bytes(d), &page) || page + page_bytes(d) > to) return true;
	uint64_t count = (to - page) / page_bytes(d);
	if (count > d->page_capacity - d->page_count) return false;
	d->rows[*rows] = (hr__defrag_row){ page, (uint32_t)d->page_count, (uint32_t)count };
	for (uint64_t i = 0; i < count; i++) d->pages[d->page_count++] = (hr__defrag_page){ .first = UINT32_MAX };
	for (size_t i = begin; i < end; i++) add_stretch(d, *rows, i);
	++*rows;
	return true;
}

static bool list_pages(hr__defrag_search *d)
{
	uint32_t rows = 0;
	d->page_count = 0;
	for (size_t i = 0, end; i < d->count; i = end) {
		d->row_of[i] = NO_ROW;
		for (end = i + 1; end < d->count && d->stretches[end].joined; end++) d->row_of[end] = NO_ROW;
		size_t mapped = d->stretches[end - 1].item == HR__STRETCH_GROWS ? end - 1 : end;
		if (mapped > i && !add_row(d, &rows, i, mapped)) return false;
	}
	return true;
}

static uint64_t count_whole(hr__defrag_search *d)
{
	uint64_t count = 0;
	d->work += d->page_count;
	for (size_t i = 0; i < d->page_count; i++) count += !d->pages[i].left && !d->pages[i].used;
	return count;
}

/* Pages that the allocator could still get from the device. */
static uint64_t pages_to_get(const hr__defrag_search *d)
{
	for (size_t i = 0; i < d->count; i++)
		if (d->stretches[i].item == HR__STRETCH_GROWS) return d->stretches[i].bytes / page_bytes(d);
	return 0;
}

/* ---- places ---- */

/* Lists free memory except its whole pages. Returns the number of pieces. */
static size_t list_spares(hr__defrag_search *d)
{
	size_t count = 0;
	for (size_t i = 0; i < d->count; i++) {
		const hr__stretch *stretch = &d->stretches[i];
		uint64_t from = stretch->address, to = from + stretch->bytes, begin, end = hr__align_down(to, page_bytes(d));
		if (stretch->item != HR__STRETCH_FREE) continue;
		if (!hr__align_up(from, page_bytes(d), &begin) || begin >= end) begin = end = to;
		if (from < begin) d->spares[count++] = (hr__defrag_spare){ from, begin - from, d->row_of[i] };
		if (end < to) d->spares[count++] = (hr__defrag_spare){ end, to - end, d->row_of[i] };
	}
	return count;
}

/* What a block placed there would spoil: the cost of the cheapest page that it would lie on. NONE if none of these pages can become
 * whole any more; 0 if one is whole or about to be. */
static uint64_t cost_of_placing(const hr__defrag_search *d, const hr__defrag_spare *place, uint64_t bytes, uint32_t current)
{
	uint32_t first, last;
	uint64_t cost = NONE;
	pages_of(d, place->row, place->address, place->address + bytes, &first, &last);
	for (uint32_t s = first; s < last; s++) {
		const hr__defrag_page *on = &d->pages[s];
		if (s == current || (!on->left && !on->used)) return 0;
		if (!on->used && on->cost < cost) cost = on->cost;
	}
	return cost;
}

/* The place that spoils least, and only pages that come after this one; the smallest among equals. */
static hr__defrag_spare *find_place(hr__defrag_search *d, size_t spare_count, const hr__tensor *tensor, uint32_t current)
{
	hr__defrag_spare *best = NULL;
	uint64_t best_cost = 0, bytes = tensor->device_bytes;
	d->work += spare_count;
	for (size_t i = 0; i < spare_count; i++) {
		hr__defrag_spare *each = &d->spares[i];
		if (each->bytes < bytes || (tensor->alignment && each->address % tensor->alignment)) continue;
		uint64_t cost = cost_of_placing(d, each, bytes, current);
		if (!cost || cost < d->pages[current].cost || cost < best_cost) continue;
		if (best && cost == best_cost && each->bytes >= best->bytes) continue;
		best = each;
		best_cost = cost;
	}
	return best;
}

static void occupy(hr__defrag_search *d, const hr__defrag_spare *place, uint64_t bytes, uint32_t change)
{
	HR_ASSERT(change == 1 || change == UINT32_MAX);
	uint32_t first, last;
	pages_of(d, place->row, place->address, place->address + bytes, &first, &last);
	for (uint32_t s = first; s < last; s++) d->pages[s].used += change;
}

/* ---- taking pages ---- */

/* Undoes the moves found for a page that cannot be emptied after all, down to [movers]. */
static void undo_moves(hr__defrag_search *d, size_t movers, size_t spare_count)
{
	while (d->trial_count > movers) {
		const hr__defrag_mover *last = &d->trial[--d->trial_count];
		uint64_t bytes = last->tensor->device_bytes;
		hr__defrag_spare *place = d->spares;
		while (place->address != last->to + bytes) place++;
		HR_ASSERT(place < d->spares + spare_count);
		place->address -= bytes;
		place->bytes += bytes;
		occupy(d, place, bytes, UINT32_MAX);
	}
}

/* Whether a stretch is a tensor that has no new place yet. */
static bool stays(const hr__defrag_search *d, size_t i)
{
	return hr__defrag_is_item(&d->stretches[i]) && !d->by_size[d->stretches[i].item].key;
}

/* Finds places for all tensors that are still on a page. */
static bool empty(hr__defrag_search *d, uint32_t which, size_t spare_count, uint64_t *cost)
{
	HR_ASSERT(which < d->page_count && d->pages[which].left);
	const hr__defrag_page *page = &d->pages[which];
	size_t before = d->trial_count;
	for (uint32_t i = page->first; i < page->end; i++) {
		if (!stays(d, i)) continue;
		hr__tensor *tensor = d->lms->order[d->stretches[i].item];
		hr__defrag_spare *place = find_place(d, spare_count, tensor, which);
		if (!place) {
			undo_moves(d, before, spare_count);
			return false;
		}
		d->trial[d->trial_count++] = (hr__defrag_mover){ tensor, place->address };
		occupy(d, place, tensor->device_bytes, 1);
		place->address += tensor->device_bytes;
		place->bytes -= tensor->device_bytes;
	}
	for (uint32_t i = page->first; i < page->end; i++) {
		const hr__stretch *stretch = &d->stretches[i];
		uint32_t first, last;
		if (!stays(d, i)) continue;
		d->by_size[stretch->item].key = 1;
		*cost += stretch->bytes;
		pages_of(d, d->row_of[i], stretch->address, stretch->address + stretch->bytes, &first, &last);
		for (uint32_t s = first; s < last; s++) d->pages[s].left--;
	}
	return true;
}

uint64_t hr__defrag_pages(hr__defrag_search *d)
{
	uint64_t needed, cost = 0, candidates = 0;
	if (!d->page_capacity || !hr__align_up(d->size, page_bytes(d), &needed) || !list_pages(d)) return NONE;
	needed /= page_bytes(d);
	uint64_t get = pages_to_get(d), have = get + count_whole(d);
	for (uint32_t i = 0; i < d->page_count; i++)
		if (d->pages[i].left) d->page_order[candidates++] = (hr__defrag_entry){ d->pages[i].cost, i };
	if (have >= needed || have + candidates < needed) return NONE;
	hr__defrag_sort(d->page_order, candidates);
	for (size_t i = 0; i < d->item_count; i++) d->by_size[i] = (hr__defrag_entry){ 0, 0 };
	size_t spares = list_spares(d);
	d->trial_count = 0;
	for (uint64_t i = 0; i < candidates && have < needed && d->work < HR__DEFRAG_WORK_MAX; i++) {
		const hr__defrag_page *page = &d->pages[d->page_order[i].index];
		if (page->used || !page->left || !empty(d, d->page_order[i].index, spares, &cost)) continue;
		have = get + count_whole(d);
	}
	if (have < needed) return NONE;
	hr__defrag_choose(d);
	return cost;
}
