/* verdict_survey.c - the numbers of a verdict: how much is free and where, and what would have to be evicted or moved so that a
 * request fits. The top of verdict.c defines them.
 *
 * All numbers come from walks along regions (verdict_region.h). A hole is examined with its two neighbours. Runs of chunks need two
 * walks, one behind the other, with a window between them. */
#include "core/base/checked.h"
#include "core/memory/bfc/page_hole.h"
#include "core/memory/oom/verdict.h"
#include "core/memory/oom/verdict_region.h"

/* ---- room ---- */

void hr__survey_room(hr__judgement *j)
{
	const hr__allocator *allocator = j->allocator;
	uint64_t claimed = (uint64_t)hr__load_relaxed(&allocator->claimed);
	j->room = (hr__room){ .allocator = claimed < allocator->limit ? allocator->limit - claimed : 0,
		                  .device = hr__page_pool_available(allocator->device),
		                  .card = hr__device_obtainable(allocator->device) };
}

uint64_t hr__verdict_sum(uint64_t a, uint64_t b)
{
	return hr__add(a, b, &a) ? a : UINT64_MAX;
}

uint64_t hr__judgement_room(const hr__judgement *j)
{
	HR_ASSERT(j->unit > 0);
	uint64_t bytes = j->room.allocator < j->room.device ? j->room.allocator : j->room.device;
	return hr__align_down(bytes < j->room.card ? bytes : j->room.card, j->unit);
}

/* ---- surveys ---- */

static bool holds(const hr__judgement *j, uint64_t address, uint64_t bytes)
{
	uint64_t start = address, end = address + bytes;
	if (j->alignment && !hr__align_up(start, j->alignment, &start)) return false;
	return start <= end && j->size <= end - start;
}

/* Called for each way to place the request in a hole of home, with the number of pages to map and of whole pages in the free chunks
 * that the place extends into. */
typedef void (*gap_found)(hr__judgement *j, uint32_t pages, uint64_t whole_beside);

static void look_at_gap(hr__judgement *j, const hr__region_segment *left, const hr__region_segment *hole,
                        const hr__region_segment *right, bool alone, gap_found found)
{
	uint64_t page = j->allocator->page, begin = hole->address, end = begin + hole->bytes, first;
	hr__page_hole gap = { .begin = begin, .end = end, .left = begin, .right = end };
	hr__page_hole_fit fit;
	HR_ASSERT(hole->kind == HR__SEGMENT_HOLE && page);
	if (!alone && left && left->kind == HR__SEGMENT_FREE) gap.left = left->address;
	if (!alone && right && right->kind == HR__SEGMENT_FREE) gap.right = right->address + right->bytes;
	if (!hr__page_hole_fits(&gap, page, j->allocator->granularity, j->size, j->alignment, &fit)) return;
	uint64_t beside = (fit.uses_left ? hr__verdict_whole_pages(gap.left, begin, page, &first) : 0) +
	                  (fit.uses_right ? hr__verdict_whole_pages(end, gap.right, page, &first) : 0);
	found(j, fit.pages, beside);
}

/* Walks a region: adds it to [survey] (may be NULL) and calls [found] (may be NULL) for its holes. */
static void look_at_region(hr__judgement *j, hr__verdict_region *state, hr__survey *survey, gap_found found, bool alone_too)
{
	hr__region_segment three[3], *left = NULL, *hole = NULL, *next;
	unsigned at = 0;
	while (hr__verdict_region_next(state, next = &three[at])) {
		uint64_t first;
		if (survey && (next->kind == HR__SEGMENT_LIVE || next->kind == HR__SEGMENT_EVICTABLE)) survey->live += next->bytes;
		if (survey && next->kind == HR__SEGMENT_FREE) {
			survey->free += next->bytes;
			survey->whole += hr__verdict_whole_pages(next->address, next->address + next->bytes, state->page, &first);
			survey->holds |= holds(j, next->address, next->bytes);
		}
		if (hole && found) look_at_gap(j, left, hole, next, false, found);
		if (hole && found && alone_too) look_at_gap(j, left, hole, next, true, found);
		if (next->kind == HR__SEGMENT_HOLE) { /* [left] is the segment before it */
			hole = next;
		} else {
			left = next;
			hole = NULL;
		}
		at = (at + 1) % 3;
	}
	if (hole && found) look_at_gap(j, left, hole, NULL, false, found);
	if (hole && found && alone_too) look_at_gap(j, left, hole, NULL, true, found);
}

static void fewest_now(hr__judgement *j, uint32_t pages, uint64_t beside)
{
	(void)beside;
	if (pages < j->now.pages) j->now.pages = pages;
}

static void fewest_trimmed(hr__judgement *j, uint32_t pages, uint64_t beside)
{
	(void)beside;
	if (pages < j->trimmed.pages) j->trimmed.pages = pages;
}

static void fewest_evicted(hr__judgement *j, uint32_t pages, uint64_t beside)
{
	(void)beside;
	if (pages < j->evicted.pages) j->evicted.pages = pages;
}

static void fewest_stitched(hr__judgement *j, uint32_t pages, uint64_t beside)
{
	uint64_t have = hr__judgement_room(j) / j->allocator->page;
	if (pages > have + j->donors - beside) return;
	uint64_t missing = pages > have ? pages - have : 0;
	if (missing < j->stitched) j->stitched = missing;
}

/* The region that home would get: one hole, at an unknown address that is a multiple of the page size. */
static void look_at_fresh(hr__judgement *j, gap_found found)
{
	const hr__allocator *allocator = j->allocator;
	HR_ASSERT(allocator->page && j->fresh);
	uint64_t addresses = allocator->limit > UINT64_MAX / 8 ? allocator->limit : allocator->limit * 8, bytes;
	uint64_t small = hr__align_down(addresses / 4, allocator->page), region = j->small ? small : addresses - small;
	uint64_t lost = j->alignment > allocator->page ? j->alignment - allocator->page : 0;
	if (!hr__align_up(j->size, allocator->page, &bytes) || lost > region || bytes > region - lost ||
	    bytes / allocator->page > UINT32_MAX)
		return;
	found(j, (uint32_t)(bytes / allocator->page), 0);
}

static void survey_all(hr__judgement *j, hr__survey *survey, enum hr__verdict_stage stage, gap_found found)
{
	bool paged = j->allocator->page != 0;
	*survey = (hr__survey){ .pages = HR__NOT_FOUND };
	for (uint32_t slot = 0; slot < HR__REGIONS_MAX; slot++) {
		hr__verdict_region state;
		if (!hr__verdict_region_open(&state, j->allocator, j->walk, 0, slot, stage)) continue;
		look_at_region(j, &state, survey, paged && !j->fresh && slot == j->home ? found : NULL, false);
		survey->given_back += state.given_back;
		hr__region_walk_close(state.walk);
	}
	if (paged && j->fresh) look_at_fresh(j, found);
}

/* Whether memory can grow by what is missing. */
static bool grows(const hr__judgement *j, const hr__survey *survey)
{
	uint64_t room = hr__judgement_room(j);
	if (!j->allocator->page) return j->need <= room;
	return survey->pages != HR__NOT_FOUND && survey->pages <= room / j->allocator->page;
}

bool hr__survey_fits(const hr__judgement *j, const hr__survey *survey)
{
	return survey->holds || grows(j, survey);
}

bool hr__survey_has_addresses(hr__judgement *j)
{
	hr__region_walk *walk;
	if (!j->allocator->page || !j->alignment) return true;
	if (j->fresh) {
		j->now.pages = HR__NOT_FOUND;
		look_at_fresh(j, fewest_now);
		return j->now.pages != HR__NOT_FOUND;
	}
	if (!hr__region_walk_open(j->walk, 0, j->home, &walk)) return true;
	bool yes = holds(j, walk->region.address, walk->region.size);
	hr__region_walk_close(walk);
	return yes;
}

/* ---- other allocators of the device ---- */

struct others {
	const hr__allocator *self;
	struct {
		hr__allocator *allocator;
		uint64_t id;
	} list[HR__ALLOCATORS_MAX];
	uint32_t count;
};

static void note_other(hr__allocator *allocator, void *context)
{
	struct others *others = context;
	HR_ASSERT(others->count < HR__ALLOCATORS_MAX && hr__allocators_are_locked());
	if (allocator == others->self || allocator->kind != HR__KIND_BFC) return;
	others->list[others->count].allocator = allocator;
	others->list[others->count++].id = allocator->id;
}

/* Bytes that trimming the device's other allocators would release. */
static uint64_t given_back_by_others(hr__judgement *j)
{
	static struct others others; /* guarded by hr__report_lock */
	uint64_t bytes = 0;
	others.self = j->allocator;
	others.count = 0;
	hr__allocators_visit(j->allocator->device, note_other, &others);
	for (uint32_t i = 0; i < others.count; i++) {
		hr__walk walk = { .allocator = others.list[i].allocator, .id = others.list[i].id, .foreign = true };
		for (uint32_t slot = 0; slot < HR__REGIONS_MAX; slot++) {
			hr__verdict_region state;
			hr__region_segment ignored;
			if (!hr__verdict_region_open(&state, j->allocator, &walk, 0, slot, HR__STAGE_TRIMMED)) continue;
			while (hr__verdict_region_next(&state, &ignored)) continue;
			bytes += state.given_back;
			hr__region_walk_close(state.walk);
		}
		if (walk.longest > j->walk->longest) j->walk->longest = walk.longest;
		j->walk->visited += walk.visited;
	}
	return bytes;
}

/* Room in the trimmed state. [given_back] is what the allocator itself releases. */
static void make_room(hr__judgement *j, uint64_t given_back)
{
	hr__survey_room(j);
	j->room.allocator = hr__verdict_sum(j->room.allocator, given_back);
	j->room.device = hr__verdict_sum(j->room.device, given_back);
	j->room.card = hr__verdict_sum(j->room.card, given_back);
	if (!j->room.allocator) return; /* the limit leaves no room for memory of other allocators */
	uint64_t others = given_back_by_others(j);
	j->room.device = hr__verdict_sum(j->room.device, others);
	j->room.card = hr__verdict_sum(j->room.card, others);
}

void hr__survey_now(hr__judgement *j)
{
	survey_all(j, &j->now, HR__STAGE_NOW, fewest_now);
	hr__survey_room(j);
}

void hr__survey_trimmed(hr__judgement *j)
{
	survey_all(j, &j->trimmed, HR__STAGE_TRIMMED, fewest_trimmed);
	make_room(j, j->trimmed.given_back);
}

void hr__survey_room_of_others(hr__judgement *j)
{
	make_room(j, 0);
}

/* ---- stitching and sliding ---- */

static void try_stitching(hr__judgement *j, enum hr__verdict_stage stage, uint64_t donors)
{
	hr__verdict_region state;
	j->stitched = HR__NOT_FOUND;
	j->donors = donors;
	if (!j->allocator->page) return;
	if (j->fresh) look_at_fresh(j, fewest_stitched);
	else if (hr__verdict_region_open(&state, j->allocator, j->walk, 0, j->home, stage)) {
		look_at_region(j, &state, NULL, fewest_stitched, true);
		hr__region_walk_close(state.walk);
	}
}

void hr__survey_stitching(hr__judgement *j)
{
	HR_ASSERT(j->size > 0 && !hr__survey_fits(j, &j->trimmed));
	try_stitching(j, HR__STAGE_TRIMMED, j->trimmed.whole);
}

/* Free bytes that hold the request wherever they begin. */
static uint64_t with_slack(const hr__judgement *j)
{
	return hr__verdict_sum(j->size, j->alignment ? j->alignment - j->allocator->granularity : 0);
}

/* A window that slides along a region: its contents lie between [tail], the part that follows, and the part that leads. */
struct survey_window {
	hr__verdict_region tail;
	hr__region_segment front; /* first segment of the window */
	bool has_front;
	uint64_t free, live, wanted;
};

static void drop_front(struct survey_window *window)
{
	uint64_t *sum = window->front.kind == HR__SEGMENT_FREE ? &window->free : &window->live;
	if (window->front.kind != HR__SEGMENT_HOLE) *sum -= *sum < window->front.bytes ? *sum : window->front.bytes;
	window->has_front = hr__verdict_region_next(&window->tail, &window->front);
}

/* Shrinks the window as far as possible, given [more] free bytes after its end. Returns its live bytes; HR__NOT_FOUND if it has too
 * few free bytes. */
static uint64_t cost_of(struct survey_window *window, uint64_t end, uint64_t more)
{
	if (hr__verdict_sum(window->free, more) < window->wanted) return HR__NOT_FOUND;
	while (window->has_front && window->front.address < end &&
	       (window->front.kind != HR__SEGMENT_FREE ||
	        (window->front.bytes <= window->free && hr__verdict_sum(window->free - window->front.bytes, more) >= window->wanted)))
		drop_front(window);
	return window->live;
}

static void slide_along(hr__judgement *j, uint32_t slot)
{
	hr__verdict_region lead;
	static struct survey_window window; /* guarded by hr__report_lock; static to spare the caller's stack */
	hr__region_segment next;
	window = (struct survey_window){ .wanted = with_slack(j) };
	if (!hr__verdict_region_open(&lead, j->allocator, j->walk, 0, slot, HR__STAGE_TRIMMED)) return;
	if (!hr__verdict_region_open(&window.tail, j->allocator, j->walk, 1, slot, HR__STAGE_TRIMMED)) {
		hr__region_walk_close(lead.walk);
		return;
	}
	window.has_front = hr__verdict_region_next(&window.tail, &window.front);
	bool is_home = j->allocator->page && !j->fresh && slot == j->home;
	while (hr__verdict_region_next(&lead, &next)) {
		uint64_t cost = HR__NOT_FOUND, end = next.address + next.bytes, room = is_home ? hr__judgement_room(j) : 0;
		if (next.kind == HR__SEGMENT_LIVE) window.live += next.bytes;
		if (next.kind == HR__SEGMENT_FREE) {
			window.free += next.bytes;
			cost = cost_of(&window, end, 0);
		}
		if (next.kind == HR__SEGMENT_HOLE) {
			if (room) cost = cost_of(&window, next.address, room < next.bytes ? room : next.bytes);
			while (window.has_front && window.front.address < end) drop_front(&window);
			window.free = window.live = 0;
		}
		if (cost < j->moved) j->moved = cost;
	}
	hr__region_walk_close(lead.walk);
	hr__region_walk_close(window.tail.walk);
}

void hr__survey_sliding(hr__judgement *j)
{
	j->moved = HR__NOT_FOUND;
	for (uint32_t slot = 0; slot < HR__REGIONS_MAX; slot++) slide_along(j, slot);
}

void hr__survey_defrag(hr__judgement *j)
{
	const hr__lms_hooks *lms_hooks = hr__load_acquire(&hr__hooks_table.lms);
	hr__pressure pressure = { .allocator = j->allocator, .size = j->size, .alignment = j->alignment, .trimmed = true,
		                      .room = hr__judgement_room(j) };
	j->defragged = lms_hooks && hr__load_acquire(&j->allocator->lms) ? lms_hooks->bytes_to_move(&pressure, &j->moving) : HR__NOT_FOUND;
}

/* ---- eviction ---- */

/* Finds runs of free chunks and evictable blocks along a region: for each end, the shortest window that holds the request. */
static void evict_along(hr__judgement *j, uint32_t slot)
{
	hr__verdict_region lead;
	static struct survey_window window; /* guarded by hr__report_lock */
	hr__region_segment next;
	window = (struct survey_window){ .wanted = j->size };
	if (!hr__verdict_region_open(&lead, j->allocator, j->walk, 0, slot, HR__STAGE_EVICTABLE)) return;
	if (!hr__verdict_region_open(&window.tail, j->allocator, j->walk, 1, slot, HR__STAGE_EVICTABLE)) {
		hr__region_walk_close(lead.walk);
		return;
	}
	window.has_front = hr__verdict_region_next(&window.tail, &window.front);
	while (hr__verdict_region_next(&lead, &next)) {
		uint64_t end = next.address + next.bytes;
		if (next.kind != HR__SEGMENT_FREE && next.kind != HR__SEGMENT_EVICTABLE) {
			while (window.has_front && window.front.address < end) drop_front(&window);
			window.free = window.live = 0;
			continue;
		}
		*(next.kind == HR__SEGMENT_FREE ? &window.free : &window.live) += next.bytes;
		if (next.kind == HR__SEGMENT_EVICTABLE) j->evictable += next.bytes;
		for (uint64_t behind; window.has_front && window.front.address < next.address; drop_front(&window)) {
			behind = window.front.address + window.front.bytes;
			if (behind > end || !holds(j, behind, end - behind)) break;
		}
		uint64_t begin = window.front.address;
		if (window.has_front && begin < end && holds(j, begin, end - begin) && window.live < j->evicting) j->evicting = window.live;
	}
	hr__region_walk_close(lead.walk);
	hr__region_walk_close(window.tail.walk);
}

uint64_t hr__survey_eviction(hr__judgement *j)
{
	hr__allocator *allocator = j->allocator;
	uint64_t there = hr__verdict_sum(j->trimmed.free, hr__judgement_room(j)), missing = j->size > there ? j->size - there : 1;
	const hr__lms_hooks *lms_hooks = hr__load_acquire(&hr__hooks_table.lms);
	j->evictable = 0;
	j->evicting = HR__NOT_FOUND;
	if (!lms_hooks || !hr__load_acquire(&allocator->lms)) return HR__NOT_FOUND;
	j->lms = lms_hooks->get_evictable(allocator, &j->host_room, &j->evictable);
	j->droppable = lms_hooks->get_droppable(allocator);
	uint64_t apart = j->evictable;
	for (uint32_t slot = 0; slot < HR__REGIONS_MAX; slot++) evict_along(j, slot);
	if (!j->evictable || j->evicting != HR__NOT_FOUND) return j->evicting;
	survey_all(j, &j->evicted, HR__STAGE_EVICTED, fewest_evicted);
	hr__room trimmed = j->room;
	make_room(j, hr__verdict_sum(j->evicted.given_back, apart));
	bool fits = hr__survey_fits(j, &j->evicted);
	if (!fits && allocator->stitch) {
		try_stitching(j, HR__STAGE_EVICTED, j->evicted.whole);
		fits = j->stitched != HR__NOT_FOUND;
	}
	j->room = trimmed;
	if (!fits) return HR__NOT_FOUND;
	if (!hr__align_up(missing, j->unit, &missing)) return HR__NOT_FOUND;
	return missing < j->evictable ? missing : j->evictable;
}
