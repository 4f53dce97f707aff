/* defrag.c - enough memory is free for a request, but in pieces: moves tensors on the device until it is in one piece.
 *
 * A tensor that may not be evicted may still be moved, and so may a pinned one whose address is not taken (state.h). Plain blocks,
 * fixed tensors and tensors whose address is taken stay where they are.
 *
 * METHODS. A window is a row of neighbours, each of them free or a tensor that may be moved.
 *
 *   clear     the window, as short as possible, holds the request when all its tensors are elsewhere: in free chunks outside of it,
 *             largest tensor first, each in the smallest chunk that holds it, of equal ones in the lowest. The cost is the bytes of
 *             those tensors
 *
 *                 | free | T1 | free | T2 | x |  ...  | x | free  |      x: cannot be moved
 *                 |      request          | x |  ...  | x |T1|T2| |
 *
 *   pack      the free memory of the window is enough when its tensors lie side by side at its lower end. Each moves to the start
 *             of the free memory before it. If that is smaller than the tensor, a copy on the device would overwrite its own
 *             source, so that tensor goes through the host. The cost is the bytes of the tensors, twice for those that go through
 *             the host
 *
 *                 | free | T1 | free | T2 | free |
 *                 | T1 | T2 |      request       |
 *
 * In both, memory that the request's pool could still get from the device counts as free where the row ends and nothing is mapped
 * behind it.
 *
 *   pages     if free pages can be mapped side by side (stitching), whole pages need not be neighbours: tensors move off pages
 *             until there are as many whole ones as the request takes (defrag_pages.c). Other threads do not wait, but stitching
 *             waits until the device is done with the pages that it takes
 *
 * The cheapest method is used; at equal cost, clear before pack, and both before pages.
 *
 * Windows are planned on a map of the allocator, with all tensors that may be moved claimed and the context's lock held. Then the
 * lock and the tensors that stay are released, and the others move. If other threads have taken the free memory meanwhile, the
 * tensors not moved yet stay where they are. Nothing waits for the device. An attempt moves at most options.defrag_budget, and the
 * next one continues from there. */
#include "core/lms/reclaim/defrag.h"
#include "core/base/checked.h"
#include "core/base/sort.h"
#include "core/base/status.h"

#define NONE UINT64_MAX
#define ROUNDS 8u /* for one request: other threads may be taking what was just joined */

/* For the calling thread's request. */
static _Thread_local struct {
	uint32_t rounds;
	uint64_t moved;
} attempt;

/* ---- sorting ---- */

static bool entry_before(const void *left, const void *right, const void *context)
{
	const hr__defrag_entry *a = left, *b = right;
	(void)context;
	return a->key != b->key ? a->key < b->key : a->index < b->index;
}

void hr__defrag_sort(hr__defrag_entry *entries, size_t count)
{
	hr__sort(entries, count, sizeof *entries, entry_before, NULL);
}

/* ---- the map ---- */

static bool is_movable(const hr__lms *lms, const hr__tensor *tensor)
{
	/* The call that pins a blank tensor may still free it, and it has no contents to move. */
	if (tensor->fixed || hr__load_relaxed(&tensor->unwritten) || hr__load_relaxed(&tensor->word) & HR__WORD_DISPLACED) return false;
	return !lms->defrag_budget || tensor->device_bytes <= lms->defrag_budget;
}

/* Claims all tensors that may be moved, into lms->order, by address. */
static size_t claim_all(hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	size_t count = 0;
	for (uint32_t i = 0; i < lms->member_count; i++) {
		hr__tensor *tensor = lms->members[i];
		if (!hr__state_begin_move(tensor, hr__load_relaxed(&tensor->word))) continue;
		if (is_movable(lms, tensor)) lms->order[count++] = tensor;
		else hr__state_end_move(tensor);
	}
	hr__reclaim_sort_by_address(lms->order, count);
	for (size_t i = 0; i < count; i++) lms->movable[i] = (hr__movable){ lms->order[i]->address, lms->order[i]->device_bytes };
	return count;
}

static void *carve(hr__defrag_search *d, size_t *used, size_t count, size_t bytes)
{
	void *at = d->block ? (char *)d->block + *used : NULL;
	*used += (count * bytes + 15) & ~(size_t)15;
	return at;
}

static void lay_out_arrays(hr__defrag_search *d, size_t capacity, size_t *used)
{
	*used = 0;
	d->stretches = carve(d, used, capacity, sizeof *d->stretches);
	d->windows = carve(d, used, capacity + 1, sizeof *d->windows); /* one that ends with each stretch, and one to pack */
	d->entries = carve(d, used, capacity + 1, sizeof *d->entries);
	d->spares = carve(d, used, 2 * capacity, sizeof *d->spares); /* a free chunk has two ends */
	d->by_size = carve(d, used, d->item_count, sizeof *d->by_size);
	d->movers = carve(d, used, d->item_count, sizeof *d->movers);
	d->trial = carve(d, used, d->item_count, sizeof *d->trial);
	d->pages = carve(d, used, d->page_capacity, sizeof *d->pages);
	d->page_order = carve(d, used, d->page_capacity, sizeof *d->page_order);
	d->rows = carve(d, used, d->page_capacity ? capacity : 0, sizeof *d->rows);
	d->row_of = carve(d, used, d->page_capacity ? capacity : 0, sizeof *d->row_of);
}

static bool map_allocator(hr__defrag_search *d, const hr__pressure *pressure)
{
	hr__lms *lms = d->lms;
	size_t capacity = hr__blocks_count(pressure, d->item_count);
	const hr__allocator *allocator = lms->allocator;
	if (allocator->page && allocator->stitch && allocator->limit / allocator->page <= HR__DEFRAG_PAGES_MAX)
		d->page_capacity = allocator->limit / allocator->page;
	lay_out_arrays(d, capacity, &d->block_bytes);
	if (hr__os()->alloc(d->block_bytes, &d->block)) {
		d->block = NULL;
		return false;
	}
	lay_out_arrays(d, capacity, &d->block_bytes);
	d->count = hr__blocks_look(pressure, lms->movable, d->item_count, d->stretches, capacity);
	return true;
}

/* ---- windows ---- */

static void add_window(hr__defrag_search *d, const hr__defrag_window *w)
{
	HR_ASSERT(w->first < w->end && w->end <= d->count);
	d->entries[d->window_count] = (hr__defrag_entry){ 2 * w->cost + w->is_packed, (uint32_t)d->window_count };
	d->windows[d->window_count++] = *w;
}

static bool holds(const hr__defrag_search *d, uint64_t from, uint64_t to)
{
	if (d->alignment && !hr__align_up(from, d->alignment, &from)) return false;
	return from <= to && d->size <= to - from;
}

/* Adds the shortest window that ends with each stretch. A longer one has more to move, and fewer places to move it to. */
static void find_clearable(hr__defrag_search *d)
{
	uint64_t cost = 0;
	for (size_t i = 0, left = 0; i < d->count; i++) {
		const hr__stretch *last = &d->stretches[i];
		uint64_t end = last->address + last->bytes;
		if (!last->joined) {
			left = i;
			cost = 0;
		}
		if (hr__defrag_is_item(last)) cost += last->bytes;
		for (; left < i && holds(d, d->stretches[left + 1].address, end); left++)
			if (hr__defrag_is_item(&d->stretches[left])) cost -= d->stretches[left].bytes;
		if (holds(d, d->stretches[left].address, end))
			add_window(d, &(hr__defrag_window){ (uint32_t)left, (uint32_t)i + 1, false, cost });
	}
}

/* The cost of packing a window; NONE if it is impossible. */
static uint64_t packing_cost(hr__defrag_search *d, size_t first, size_t end)
{
	HR_ASSERT(first < end && end <= d->count);
	const hr__lms *lms = d->lms;
	uint64_t gap = 0, cost = 0;
	d->work += end - first;
	for (size_t i = first; i < end; i++) {
		const hr__stretch *stretch = &d->stretches[i];
		if (!hr__defrag_is_item(stretch)) {
			gap += stretch->bytes;
			continue;
		}
		const hr__tensor *tensor = lms->order[stretch->item];
		bool over_host = gap < tensor->bytes;
		if (tensor->alignment > lms->allocator->granularity || (over_host && !lms->host)) return NONE;
		cost += over_host ? 2 * stretch->bytes : stretch->bytes;
	}
	return cost;
}

/* Tries all windows that end with the stretch before [end] and begin at [first] or earlier. Longer ones are tried while they may be
 * cheaper: with more free memory before it, a tensor need not go through the host. */
static void try_packing(hr__defrag_search *d, size_t first, size_t end, uint64_t live, hr__defrag_window *best)
{
	for (; live < best->cost && d->work < HR__DEFRAG_WORK_MAX; first--) {
		uint64_t cost = hr__defrag_is_item(&d->stretches[first]) ? NONE : packing_cost(d, first, end);
		if (cost < best->cost) *best = (hr__defrag_window){ (uint32_t)first, (uint32_t)end, true, cost };
		if (!d->stretches[first].joined) return;
		if (hr__defrag_is_item(&d->stretches[first - 1])) live += d->stretches[first - 1].bytes;
	}
}

static void find_packable(hr__defrag_search *d)
{
	uint64_t gaps = 0, live = 0, wanted = d->size;
	hr__defrag_window best = { .cost = NONE };
	if (d->alignment) wanted += d->alignment - d->lms->allocator->granularity;
	for (size_t i = 0, left = 0; i < d->count; i++) {
		const hr__stretch *last = &d->stretches[i];
		if (!last->joined) {
			left = i;
			gaps = live = 0;
		}
		*(hr__defrag_is_item(last) ? &live : &gaps) += last->bytes;
		if (hr__defrag_is_item(last)) continue;
		for (; left < i; left++) {
			const hr__stretch *first = &d->stretches[left];
			if (!hr__defrag_is_item(first) && gaps - first->bytes < wanted) break;
			*(hr__defrag_is_item(first) ? &live : &gaps) -= first->bytes;
		}
		if (gaps >= wanted) try_packing(d, left, i + 1, live, &best);
	}
	if (best.cost != NONE) add_window(d, &best);
}

/* ---- places outside a window ---- */

static hr__defrag_spare *best_place(hr__defrag_search *d, size_t spare_count, const hr__tensor *tensor, uint64_t *at)
{
	HR_ASSERT(tensor->address);
	hr__defrag_spare *best = NULL;
	d->work += spare_count;
	for (size_t i = 0; i < spare_count; i++) {
		hr__defrag_spare *each = &d->spares[i];
		uint64_t start = each->address;
		if (each->bytes < tensor->device_bytes || (best && each->bytes >= best->bytes)) continue;
		if (tensor->alignment && !hr__align_up(start, tensor->alignment, &start)) continue;
		if (start - each->address > each->bytes - tensor->device_bytes) continue;
		best = each;
		*at = start;
	}
	return best;
}

static size_t list_spares(hr__defrag_search *d, const hr__defrag_window *w)
{
	size_t count = 0;
	for (uint32_t i = 0; i < d->count; i++) {
		const hr__stretch *stretch = &d->stretches[i];
		if (stretch->item == HR__STRETCH_FREE && (i < w->first || i >= w->end))
			d->spares[count++] = (hr__defrag_spare){ stretch->address, stretch->bytes, 0 };
	}
	return count;
}

/* Finds a place for every tensor of the window. */
static bool clear(hr__defrag_search *d, const hr__defrag_window *w)
{
	size_t spares = list_spares(d, w), items = 0;
	for (size_t i = w->first; i < w->end; i++)
		if (hr__defrag_is_item(&d->stretches[i]))
			d->by_size[items++] = (hr__defrag_entry){ ~d->stretches[i].bytes, d->stretches[i].item };
	hr__defrag_sort(d->by_size, items);
	d->trial_count = 0;
	for (size_t i = 0; i < items && d->work < HR__DEFRAG_WORK_MAX; i++) {
		hr__tensor *tensor = d->lms->order[d->by_size[i].index];
		uint64_t to;
		hr__defrag_spare *place = best_place(d, spares, tensor, &to);
		if (!place) return false;
		d->trial[d->trial_count++] = (hr__defrag_mover){ tensor, to };
		place->bytes -= to + tensor->device_bytes - place->address;
		place->address = to + tensor->device_bytes;
	}
	return d->trial_count == items;
}

static bool pack(hr__defrag_search *d, const hr__defrag_window *w)
{
	d->trial_count = 0;
	for (size_t i = w->first; i < w->end; i++)
		if (hr__defrag_is_item(&d->stretches[i]))
			d->trial[d->trial_count++] = (hr__defrag_mover){ .tensor = d->lms->order[d->stretches[i].item] };
	return true;
}

/* ---- planning and moving ---- */

void hr__defrag_choose(hr__defrag_search *d)
{
	hr__defrag_mover *swap = d->movers;
	d->movers = d->trial;
	d->mover_count = d->trial_count;
	d->trial = swap;
}

static bool plan(hr__defrag_search *d)
{
	find_clearable(d);
	find_packable(d);
	hr__defrag_sort(d->entries, d->window_count);
	uint64_t pages = hr__defrag_pages(d);
	for (size_t i = 0; i < d->window_count; i++) {
		const hr__defrag_window *w = &d->windows[d->entries[i].index];
		if (w->cost > pages) break;
		if (!(w->is_packed ? pack(d, w) : d->work < HR__DEFRAG_WORK_MAX && clear(d, w))) continue;
		hr__defrag_choose(d);
		return true;
	}
	return pages != NONE;
}

/* Releases the claims on tensors that stay. */
static void release_others(hr__defrag_search *d)
{
	HR_ASSERT(hr__lock_is_mine(&d->lms->lock));
	HR_ASSERT(d->mover_count <= d->item_count);
	for (size_t i = 0; i < d->mover_count; i++) {
		hr__tensor **at = d->lms->order;
		size_t low = 0, high = d->item_count;
		while (low < high) { /* the first whose address is not below */
			size_t middle = low + (high - low) / 2;
			if (d->lms->movable[middle].address < d->movers[i].tensor->address) low = middle + 1;
			else high = middle;
		}
		at[low] = NULL;
	}
	for (size_t i = 0; i < d->item_count; i++)
		if (d->lms->order[i]) hr__state_end_move(d->lms->order[i]);
}

/* Moves as many tensors as the budget allows, and adds their bytes to *moved. Returns the first error. */
static hr_status move_planned(hr__defrag_search *d, uint64_t *moved)
{
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr_status first = HR_OK;
	uint64_t budget = d->lms->defrag_budget ? d->lms->defrag_budget : UINT64_MAX;
	for (size_t i = 0; i < d->mover_count; i++) {
		const hr__defrag_mover *each = &d->movers[i];
		uint64_t bytes = each->tensor->device_bytes;
		if (!first && bytes > budget - attempt.moved) first = HR_NOT_READY;
		if (first) {
			hr__state_end_move(each->tensor);
			continue;
		}
		first = each->to ? hr__move_to_address(each->tensor, each->to) : hr__move_down(each->tensor);
		if (first) continue;
		*moved += bytes;
		attempt.moved += bytes;
	}
	return first;
}

void hr__defrag_begin_request(void)
{
	attempt.rounds = 0;
	attempt.moved = 0;
}

/* Claims tensors and plans which of them move; false if there is no solution. Under the context's lock. */
static bool plan_moves(hr__defrag_search *d, hr__lms *lms, const hr__pressure *pressure)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	*d = (hr__defrag_search){ .lms = lms, .size = pressure->size };
	if (pressure->alignment > lms->allocator->granularity) d->alignment = pressure->alignment;
	d->item_count = claim_all(lms);
	bool found = d->item_count && map_allocator(d, pressure) && plan(d);
	if (!found) d->mover_count = 0;
	return found;
}

uint64_t hr__defrag_cost(hr__lms *lms, const hr__pressure *pressure)
{
	hr__defrag_search d;
	uint64_t bytes = 0;
	hr__lms_begin_move(lms);
	hr__lock_take(&lms->lock);
	bool found = plan_moves(&d, lms, pressure);
	for (size_t i = 0; i < d.mover_count; i++) bytes += d.movers[i].tensor->device_bytes;
	d.mover_count = 0; /* all of them stay */
	release_others(&d);
	hr__lock_release(&lms->lock);
	hr__lms_end_move(lms);
	if (d.block) hr__os()->free(d.block, d.block_bytes);
	return found ? bytes : NONE;
}

hr_status hr__defrag_run(hr__lms *lms, const hr__pressure *pressure)
{
	HR_ASSERT(lms->defrag);
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__defrag_search d;
	uint64_t moved = 0;
	if (attempt.rounds++ >= ROUNDS || (lms->defrag_budget && attempt.moved >= lms->defrag_budget)) return HR_NOT_READY;
	hr__lms_begin_move(lms);
	hr__lock_take(&lms->lock);
	bool found = plan_moves(&d, lms, pressure);
	release_others(&d);
	hr__lock_release(&lms->lock);
	hr_status status = found ? move_planned(&d, &moved) : HR_NOT_READY;
	hr__lms_end_move(lms);
	if (d.block) hr__os()->free(d.block, d.block_bytes);
	if (!moved) return status;
	hr__lms_count(&lms->stats.num_defragmentations, 1);
	hr__lms_count(&lms->stats.bytes_defragged, (int64_t)moved);
	return HR_OK;
}
