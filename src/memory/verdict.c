/* verdict.c - what would make a request fit: computed from what is there, by reading alone.
 *
 * WORDS. For an allocator of kind "bfc":
 *
 *   size        the request's bytes, rounded up to the granularity; alignment counts where it is above the granularity
 *   home        the shard of the calling thread, or the one that it would get, and in it the pool that the request belongs to: the small
 *               one with thread_cache, for 64 KiB and less without an alignment, else the large one. Only there does memory grow
 *   room        bytes that the allocator may still take from the device, in whole pages: the least of what its limit, the logical
 *               device's limit and the card leave. Pages that the card keeps for later are not taken
 *   holds       a free stretch of addresses holds the request when there is a multiple of alignment in it with size bytes behind it
 *   whole page  a page of addresses all of which are free
 *   leaver      the block of a tensor that is on the device, not pinned, and not to stay there (never_evict), whether tensors may leave
 *               now or not
 *
 * KINDS. The first that is true. hr_alloc tries the first four itself, in the same order, and they are true exactly when it would
 * succeed that way: the rules are the engine's own.
 *
 *   HR_FITS               a chunk of exactly that size is in the calling thread's cache (small ones), or
 *                         a free chunk of any pool of any shard holds it, or
 *                         in some hole of home it can be had by mapping pages (place.h) no more than room
 *   HR_FITS_AFTER_TRIM    the same in the TRIMMED STATE, which is what make_room of bfc.c leaves:
 *                           - cached chunks of this allocator are free, and joined with free neighbours;
 *                           - whole pages of its small pools are given back: holes, and room is larger by them;
 *                           - if its limit then leaves any room: whole pages of all pools of the device's other bfc allocators, their
 *                             cached chunks free and joined too, are given back: what the device and the card leave is larger by them
 *   HR_FITS_AFTER_STITCH  in the trimmed state, whether options.stitch allows it or not: in some hole of home, alone or with the free
 *                         chunks beside it, there is a place of P pages, P <= room + whole pages of all pools of this allocator but
 *                         those in the free chunks that the place builds on. [pages] = the least such P, less room
 *   HR_FITS_WITH_LMS      a. in the trimmed state, a row of neighbouring chunks, each free or a leaver, holds it: [bytes] = those of the
 *                         leavers in the row that has the fewest. reclaim.c looks for such a row; it may prefer another, whose tensors are
 *                         not used for longer. Or else
 *                         b. in the trimmed state as it is when all leavers are free, and pages of those that are in no region (fixed
 *                         tensors) are room: as HR_FITS, or as HR_FITS_AFTER_STITCH if options.stitch is on. Tensors leave one by one for that: [bytes] = size - free bytes of all pools - room, as
 *                         they are with the leavers there, in whole pages (units of the granularity where there are none), one at the
 *                         least, and never more than all leavers have
 *   HR_FITS_AFTER_DEFRAG  in the trimmed state, by sliding live blocks together. A stretch is a row of neighbouring chunks of a region
 *                         without a hole between them; in home's pool, the hole behind it counts as a free chunk of as many bytes as it
 *                         has, room at the most. A window is a row of neighbouring chunks of one stretch whose free chunks have size +
 *                         (alignment - granularity) bytes together: blocks slid to its lower end leave the request a place.
 *                         [bytes] = the live bytes in the window that has the fewest.
 *                         Where no stretch has a window, but free bytes of all pools + room >= size: all pools would have to be packed
 *                         anew, and [bytes] = all live bytes of the allocator
 *   HR_NEEDS_MORE         [bytes] = size - free bytes of all pools - room. So as soon as that much is freed, wherever, the verdict is
 *                         another one, and not before
 *   HR_NEVER_FITS         size alone, in whole pages, is above the limit, by [bytes]; or no address of home is a multiple of alignment
 *                         with size bytes behind it: [bytes] = 0
 *
 * On a device without pages: what is given back at a time is a region that is free from end to end, of either pool; memory grows by a
 * region of size + alignment bytes (size without an alignment), which is also what HR_NEVER_FITS goes by; room is in units of the
 * granularity; nothing is stitched, and nothing grows at the end of a stretch.
 *
 * "direct": size is in whole pages, or units of the granularity where the device has plain memory. HR_FITS: size <= room.
 * HR_FITS_AFTER_TRIM: size <= room when the device's bfc allocators are trimmed, which hr_alloc does not do here. Then HR_NEEDS_MORE or
 * HR_NEVER_FITS. Custom: the same by its own limit in Headroom, for the bytes as they were asked for, and by what its get_stats says
 * when it has one: HR_FITS when its largest_free, or its bytes_limit less bytes_reserved, is enough; HR_FITS_AFTER_DEFRAG with all live
 * bytes when only its bytes_limit less bytes in use is. It has the last word.
 *
 * WHAT IS FULL (tier). HR_NEEDS_MORE, and HR_FITS_WITH_LMS where size is more than free bytes of all pools + room: the one of the three limits that leaves least, in the trimmed state. HR_NEVER_FITS: the outermost
 * of those that forbid it. An allocator whose limit is all that its device may have has no limit of its own, and a device that may have
 * the whole card has none either. Otherwise nothing is full.
 *
 * Walks that find the chains changed between two holds see each byte once, in one of its states. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/status.h"
#include "base/text.h"
#include "memory/oom.h"
#include "memory/place.h"

#define NONE UINT64_MAX

/* What each of the three limits leaves, in bytes. */
struct room {
	uint64_t allocator, device, card;
};

struct judgement {
	hr__walk *walk;
	hr__allocator *allocator;
	uint64_t size, alignment; /* 0 where the granularity is enough */
	uint64_t need;            /* what must be had from the device for it, at the least; in whole units */
	uint64_t unit;            /* a page, or the granularity */
	bool small;               /* which pool it belongs to */
	uint32_t home;            /* region that grows for it; */
	bool fresh;               /* that region is not there yet: it would be one hole */
	struct room room;         /* now, or in the trimmed state */
	struct survey {
		bool holds;                      /* some free stretch does */
		uint64_t pages;                  /* to be mapped where it takes the fewest; NONE = nowhere */
		uint64_t whole;                  /* whole pages there are */
		uint64_t free, live, given_back; /* bytes */
	} now, trimmed, gone;
	uint64_t donors;   /* whole pages that may be moved to be stitched */
	uint64_t stitched; /* pages; NONE = it cannot be had by that */
	bool lms;          /* tensors leave by themselves, */
	uint64_t host_room; /* and the host can take so many bytes of them */
	uint64_t leavers;  /* bytes of all of them, */
	uint64_t leaving;  /* and of those in the row that has the fewest; NONE = there is no row */
	uint64_t moved;    /* bytes; NONE likewise */
};

/* ---- a region as it is, or as it would be when trimmed ---- */

enum seen { FREE, LIVE, HOLE, LEAVER };

enum stage {
	NOW,     /* as it is */
	TRIMMED, /* what is cached is free, and what can be given back is */
	APART,   /* that, with leavers told from what is live */
	GONE     /* trimmed when leavers are free */
};

typedef struct segment {
	uint64_t address, bytes;
	enum seen kind;
} segment;

struct view {
	hr__line *line;
	enum stage stage;
	bool releases; /* whole pages, or the whole region, are given back */
	uint64_t page, given_back;
	segment queue[3]; /* what one free stretch became; */
	unsigned queued, taken;
	segment ahead; /* read too far */
	bool has_ahead;
	hr__piece piece; /* likewise */
	bool has_piece;
};

static bool view_open(struct view *view, struct judgement *j, hr__walk *walk, unsigned which, uint32_t slot, enum stage stage)
{
	const hr__allocator *allocator = walk->allocator;
	*view = (struct view){ .stage = stage };
	if (!hr__line_open(walk, which, slot, &view->line)) return false;
	view->line->tensors = stage >= APART;
	view->page = j->allocator->page; /* the device's, so the same for all */
	view->releases = stage != NOW && (!view->page || view->line->region.small || allocator != j->allocator);
	return true;
}

static enum seen kind_of(const struct view *view, const hr__piece *piece)
{
	switch (piece->state) {
	case HR__CHUNK_FREE: return FREE;
	case HR__CHUNK_HOLE: return HOLE;
	case HR__CHUNK_CACHED: return view->stage != NOW ? FREE : LIVE;
	default: return !piece->leaves ? LIVE : view->stage == GONE ? FREE : LEAVER;
	}
}

static bool next_piece(struct view *view, hr__piece *piece)
{
	if (!view->has_piece) return hr__line_next(view->line, piece);
	*piece = view->piece;
	view->has_piece = false;
	return true;
}

static void enqueue(struct view *view, uint64_t from, uint64_t to, enum seen kind)
{
	if (from < to) view->queue[view->queued++] = (segment){ from, to - from, kind };
	if (from < to && kind == HOLE) view->given_back += to - from;
}

static uint64_t whole_pages(uint64_t from, uint64_t to, uint64_t page, uint64_t *begin)
{
	if (!page || !hr__align_up(from, page, begin)) return 0;
	return hr__align_down(to, page) > *begin ? (hr__align_down(to, page) - *begin) / page : 0;
}

/* A free stretch, in the parts that giving back leaves. */
static void divide(struct view *view, const segment *run)
{
	uint64_t from = run->address, to = from + run->bytes, begin;
	const hr__region *region = &view->line->region;
	bool all = from == region->address && run->bytes == region->size;
	uint64_t pages = view->releases ? whole_pages(from, to, view->page, &begin) : 0;
	view->queued = view->taken = 0;
	if (pages) {
		enqueue(view, from, begin, FREE);
		enqueue(view, begin, begin + pages * view->page, HOLE);
		enqueue(view, begin + pages * view->page, to, FREE);
	} else {
		enqueue(view, from, to, view->releases && !view->page && all ? HOLE : FREE);
	}
}

/* Neighbours that are free are one. */
static bool next_part(struct view *view, segment *out)
{
	hr__piece piece, other;
	if (view->taken == view->queued) {
		if (!next_piece(view, &piece)) return false;
		segment run = { piece.address, piece.bytes, kind_of(view, &piece) };
		if (run.kind != FREE) {
			*out = run;
			return true;
		}
		while (next_piece(view, &other)) {
			if (kind_of(view, &other) != FREE) {
				view->piece = other;
				view->has_piece = true;
				break;
			}
			run.bytes += other.bytes;
		}
		divide(view, &run);
	}
	*out = view->queue[view->taken++];
	return true;
}

/* The next segment; neighbours that are holes are one too. */
static bool view_next(struct view *view, segment *out)
{
	if (view->has_ahead) *out = view->ahead;
	else if (!next_part(view, out)) return false;
	view->has_ahead = false;
	while (out->kind == HOLE && (view->has_ahead = next_part(view, &view->ahead)) && view->ahead.kind == HOLE) {
		out->bytes += view->ahead.bytes;
		view->has_ahead = false;
	}
	return true;
}

/* ---- room ---- */

static struct room room_now(const hr__allocator *allocator)
{
	uint64_t claimed = (uint64_t)hr__load_relaxed(&allocator->claimed);
	return (struct room){ .allocator = claimed < allocator->limit ? allocator->limit - claimed : 0,
		                  .device = hr__pool_available(allocator->device),
		                  .card = hr__device_obtainable(allocator->device) };
}

static uint64_t sum_of(uint64_t a, uint64_t b)
{
	return hr__add(a, b, &a) ? a : UINT64_MAX;
}

static uint64_t least(const struct judgement *j)
{
	uint64_t bytes = j->room.allocator < j->room.device ? j->room.allocator : j->room.device;
	return hr__align_down(bytes < j->room.card ? bytes : j->room.card, j->unit);
}

/* ---- the calling thread's part ---- */

static hr__cache *own_cache(const hr__allocator *allocator)
{
	hr__cache *cache = hr__thread_self ? hr__thread_self->caches[allocator->slot] : NULL;
	return cache && hr__load_relaxed(&cache->id) == allocator->id ? cache : NULL;
}

/* As choose_shard of cache.c would, for a thread that has none yet. */
static uint32_t home_shard(hr__allocator *allocator)
{
	const hr__cache *cache = own_cache(allocator);
	if (cache) return cache->shard->index;
	uint32_t best = 0;
	hr__lock_take(&allocator->caches_lock);
	for (uint32_t i = 1; i < allocator->shard_max && allocator->shards[best].threads; i++)
		if (allocator->shards[i].threads < allocator->shards[best].threads) best = i;
	hr__lock_release(&allocator->caches_lock);
	return best;
}

static bool is_kept(const struct judgement *j)
{
	hr__cache *cache = own_cache(j->allocator);
	if (!j->small || !cache || !cache->capacity || !hr__cache_enter(cache)) return false;
	bool kept = cache->bins[j->size >> cache->shift] != 0;
	hr__cache_leave(cache);
	return kept;
}

static void find_home(struct judgement *j)
{
	hr__allocator *allocator = j->allocator;
	if (!allocator->page) return;
	uint32_t shard = home_shard(allocator);
	j->home = 2 * shard + j->small;
	j->fresh = !hr__load_acquire(&allocator->shards[shard].open) || !hr__load_relaxed(&allocator->shards[shard].span);
}

/* ---- surveys ---- */

static bool holds(const struct judgement *j, uint64_t address, uint64_t bytes)
{
	uint64_t start = address, end = address + bytes;
	if (j->alignment && !hr__align_up(start, j->alignment, &start)) return false;
	return start <= end && j->size <= end - start;
}

/* What becomes of a hole of home: [found] is told of each way to have the request there, with the whole pages that it builds on. */
typedef void (*gap_found)(struct judgement *j, uint32_t pages, uint64_t whole_beside);

static void look_at_gap(struct judgement *j, const segment *left, const segment *hole, const segment *right, bool alone,
                        gap_found found)
{
	uint64_t page = j->allocator->page, begin = hole->address, end = begin + hole->bytes, first;
	hr__gap gap = { .begin = begin, .end = end, .left = begin, .right = end };
	hr__gap_fit fit;
	if (!alone && left && left->kind == FREE) gap.left = left->address;
	if (!alone && right && right->kind == FREE) gap.right = right->address + right->bytes;
	if (!hr__gap_fits(&gap, page, j->allocator->granularity, j->size, j->alignment, &fit)) return;
	uint64_t beside = (fit.uses_left ? whole_pages(gap.left, begin, page, &first) : 0) +
	                  (fit.uses_right ? whole_pages(end, gap.right, page, &first) : 0);
	found(j, fit.pages, beside);
}

/* Looks at all of a region: adds it to [survey] (may be NULL) and tells [found] (may be NULL) of its holes. */
static void look_at_region(struct judgement *j, struct view *view, struct survey *survey, gap_found found, bool alone_too)
{
	segment three[3], *left = NULL, *hole = NULL, *next;
	unsigned at = 0;
	while (view_next(view, next = &three[at])) {
		uint64_t first;
		if (survey && (next->kind == LIVE || next->kind == LEAVER)) survey->live += next->bytes;
		if (survey && next->kind == FREE) {
			survey->free += next->bytes;
			survey->whole += whole_pages(next->address, next->address + next->bytes, view->page, &first);
			survey->holds |= holds(j, next->address, next->bytes);
		}
		if (hole && found) look_at_gap(j, left, hole, next, false, found);
		if (hole && found && alone_too) look_at_gap(j, left, hole, next, true, found);
		if (next->kind == HOLE) { /* its left neighbour was the one before */
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

static void fewest_now(struct judgement *j, uint32_t pages, uint64_t beside)
{
	(void)beside;
	if (pages < j->now.pages) j->now.pages = pages;
}

static void fewest_trimmed(struct judgement *j, uint32_t pages, uint64_t beside)
{
	(void)beside;
	if (pages < j->trimmed.pages) j->trimmed.pages = pages;
}

static void fewest_stitched(struct judgement *j, uint32_t pages, uint64_t beside)
{
	uint64_t have = least(j) / j->allocator->page;
	if (pages > have + j->donors - beside) return;
	uint64_t missing = pages > have ? pages - have : 0;
	if (missing < j->stitched) j->stitched = missing;
}

/* The region that home would get: one hole, at an address that nobody knows yet, but a multiple of the page size. */
static void look_at_fresh(struct judgement *j, gap_found found)
{
	const hr__allocator *allocator = j->allocator;
	uint64_t addresses = allocator->limit > UINT64_MAX / 8 ? allocator->limit : allocator->limit * 8, bytes;
	uint64_t small = hr__align_down(addresses / 4, allocator->page), region = j->small ? small : addresses - small;
	uint64_t lost = j->alignment > allocator->page ? j->alignment - allocator->page : 0;
	if (!hr__align_up(j->size, allocator->page, &bytes) || lost > region || bytes > region - lost ||
	    bytes / allocator->page > UINT32_MAX)
		return;
	found(j, (uint32_t)(bytes / allocator->page), 0);
}

static void survey_all(struct judgement *j, struct survey *survey, enum stage stage, gap_found found)
{
	bool paged = j->allocator->page != 0;
	*survey = (struct survey){ .pages = NONE };
	for (uint32_t slot = 0; slot < HR__REGIONS_MAX; slot++) {
		struct view view;
		if (!view_open(&view, j, j->walk, 0, slot, stage)) continue;
		look_at_region(j, &view, survey, paged && !j->fresh && slot == j->home ? found : NULL, false);
		survey->given_back += view.given_back;
		hr__line_close(view.line);
	}
	if (paged && j->fresh) look_at_fresh(j, found);
}

/* Whether memory grows by what is missing. */
static bool grows(const struct judgement *j, const struct survey *survey)
{
	uint64_t room = least(j);
	if (!j->allocator->page) return j->need <= room;
	return survey->pages != NONE && survey->pages <= room / j->allocator->page;
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
	if (allocator == others->self || allocator->kind != HR__KIND_BFC) return;
	others->list[others->count].allocator = allocator;
	others->list[others->count++].id = allocator->id;
}

/* What trimming the device's other allocators would give back. */
static uint64_t survey_others(struct judgement *j)
{
	static struct others others; /* guarded by hr__report_lock */
	uint64_t bytes = 0;
	others.self = j->allocator;
	others.count = 0;
	hr__allocators_visit(j->allocator->device, note_other, &others);
	for (uint32_t i = 0; i < others.count; i++) {
		hr__walk walk = { .allocator = others.list[i].allocator, .id = others.list[i].id, .foreign = true };
		for (uint32_t slot = 0; slot < HR__REGIONS_MAX; slot++) {
			struct view view;
			segment ignored;
			if (!view_open(&view, j, &walk, 0, slot, TRIMMED)) continue;
			while (view_next(&view, &ignored)) continue;
			bytes += view.given_back;
			hr__line_close(view.line);
		}
		if (walk.longest > j->walk->longest) j->walk->longest = walk.longest;
		j->walk->visited += walk.visited;
	}
	return bytes;
}

/* Room in the trimmed state. [given_back] is what the allocator itself gives back. */
static void make_room(struct judgement *j, uint64_t given_back)
{
	j->room = room_now(j->allocator);
	j->room.allocator = sum_of(j->room.allocator, given_back);
	j->room.device = sum_of(j->room.device, given_back);
	j->room.card = sum_of(j->room.card, given_back);
	if (!j->room.allocator) return; /* the limit leaves nothing that others could help with */
	uint64_t others = survey_others(j);
	j->room.device = sum_of(j->room.device, others);
	j->room.card = sum_of(j->room.card, others);
}

/* ---- stitching, and sliding ---- */

static void try_stitching(struct judgement *j, enum stage stage, uint64_t donors)
{
	struct view view;
	j->stitched = NONE;
	j->donors = donors;
	if (!j->allocator->page) return;
	if (j->fresh) look_at_fresh(j, fewest_stitched);
	else if (view_open(&view, j, j->walk, 0, j->home, stage)) {
		look_at_region(j, &view, NULL, fewest_stitched, true);
		hr__line_close(view.line);
	}
}

/* As many free bytes as hold the request wherever they begin. */
static uint64_t with_slack(const struct judgement *j)
{
	return sum_of(j->size, j->alignment ? j->alignment - j->allocator->granularity : 0);
}

/* The window that is being slid along a region: what is in it between [tail], which follows, and the one that leads. */
struct window {
	struct view tail;
	segment front; /* first segment of the window */
	bool has_front;
	uint64_t free, live, wanted;
};

static void drop_front(struct window *window)
{
	uint64_t *sum = window->front.kind == FREE ? &window->free : &window->live;
	if (window->front.kind != HOLE) *sum -= *sum < window->front.bytes ? *sum : window->front.bytes;
	window->has_front = view_next(&window->tail, &window->front);
}

/* Makes the window as short as it can be with [more] free bytes behind its end; NONE when it is too short, else its live bytes. */
static uint64_t cost_of(struct window *window, uint64_t end, uint64_t more)
{
	if (sum_of(window->free, more) < window->wanted) return NONE;
	while (window->has_front && window->front.address < end &&
	       (window->front.kind != FREE ||
	        (window->front.bytes <= window->free && sum_of(window->free - window->front.bytes, more) >= window->wanted)))
		drop_front(window);
	return window->live;
}

static void slide_along(struct judgement *j, uint32_t slot)
{
	struct view lead;
	static struct window window; /* guarded by hr__report_lock; what it has of a view is small, but the stack is the caller's */
	segment next;
	window = (struct window){ .wanted = with_slack(j) };
	if (!view_open(&lead, j, j->walk, 0, slot, TRIMMED)) return;
	if (!view_open(&window.tail, j, j->walk, 1, slot, TRIMMED)) {
		hr__line_close(lead.line);
		return;
	}
	window.has_front = view_next(&window.tail, &window.front);
	bool is_home = j->allocator->page && !j->fresh && slot == j->home;
	while (view_next(&lead, &next)) {
		uint64_t cost = NONE, end = next.address + next.bytes, room = is_home ? least(j) : 0;
		if (next.kind == LIVE) window.live += next.bytes;
		if (next.kind == FREE) {
			window.free += next.bytes;
			cost = cost_of(&window, end, 0);
		}
		if (next.kind == HOLE) {
			if (room) cost = cost_of(&window, next.address, room < next.bytes ? room : next.bytes);
			while (window.has_front && window.front.address < end) drop_front(&window);
			window.free = window.live = 0;
		}
		if (cost < j->moved) j->moved = cost;
	}
	hr__line_close(lead.line);
	hr__line_close(window.tail.line);
}

static void try_sliding(struct judgement *j)
{
	j->moved = NONE;
	for (uint32_t slot = 0; slot < HR__REGIONS_MAX; slot++) slide_along(j, slot);
}

/* ---- tensors that leave ---- */

/* Rows of free chunks and leavers along a region: the window is as short as can be for each that it ends with. */
static void leave_along(struct judgement *j, uint32_t slot)
{
	struct view lead;
	static struct window window; /* guarded by hr__report_lock */
	segment next;
	window = (struct window){ .wanted = j->size };
	if (!view_open(&lead, j, j->walk, 0, slot, APART)) return;
	if (!view_open(&window.tail, j, j->walk, 1, slot, APART)) {
		hr__line_close(lead.line);
		return;
	}
	window.has_front = view_next(&window.tail, &window.front);
	while (view_next(&lead, &next)) {
		uint64_t end = next.address + next.bytes;
		if (next.kind != FREE && next.kind != LEAVER) {
			while (window.has_front && window.front.address < end) drop_front(&window);
			window.free = window.live = 0;
			continue;
		}
		*(next.kind == FREE ? &window.free : &window.live) += next.bytes;
		if (next.kind == LEAVER) j->leavers += next.bytes;
		for (uint64_t behind; window.has_front && window.front.address < next.address; drop_front(&window)) {
			behind = window.front.address + window.front.bytes;
			if (behind > end || !holds(j, behind, end - behind)) break;
		}
		uint64_t begin = window.front.address;
		if (window.has_front && begin < end && holds(j, begin, end - begin) && window.live < j->leaving) j->leaving = window.live;
	}
	hr__line_close(lead.line);
	hr__line_close(window.tail.line);
}

static void fewest_gone(struct judgement *j, uint32_t pages, uint64_t beside)
{
	(void)beside;
	if (pages < j->gone.pages) j->gone.pages = pages;
}

/* Bytes of tensors that would have to leave; NONE when that does not help. */
static uint64_t try_leaving(struct judgement *j)
{
	hr__allocator *allocator = j->allocator;
	uint64_t there = sum_of(j->trimmed.free, least(j)), missing = j->size > there ? j->size - there : 1;
	const hr__upper *upper = hr__load_acquire(&hr__upper_layer);
	j->leavers = 0;
	j->leaving = NONE;
	if (!upper || !hr__load_acquire(&allocator->lms)) return NONE;
	j->lms = upper->leaves(allocator, &j->host_room, &j->leavers);
	uint64_t apart = j->leavers;
	for (uint32_t slot = 0; slot < HR__REGIONS_MAX; slot++) leave_along(j, slot);
	if (!j->leavers || j->leaving != NONE) return j->leaving;
	survey_all(j, &j->gone, GONE, fewest_gone);
	struct room trimmed = j->room;
	make_room(j, sum_of(j->gone.given_back, apart));
	bool fits = j->gone.holds || grows(j, &j->gone);
	if (!fits && allocator->stitch) {
		try_stitching(j, GONE, j->gone.whole);
		fits = j->stitched != NONE;
	}
	j->room = trimmed;
	if (!fits) return NONE;
	if (!hr__align_up(missing, j->unit, &missing)) return NONE;
	return missing < j->leavers ? missing : j->leavers;
}

/* Whether any address of home would do, if everything there were free. */
static bool has_addresses(struct judgement *j)
{
	hr__line *line;
	if (!j->allocator->page || !j->alignment) return true;
	if (j->fresh) {
		j->now.pages = NONE;
		look_at_fresh(j, fewest_now);
		return j->now.pages != NONE;
	}
	if (!hr__line_open(j->walk, 0, j->home, &line)) return true;
	bool yes = holds(j, line->region.address, line->region.size);
	hr__line_close(line);
	return yes;
}

/* ---- words ---- */

static void say(char *out, size_t capacity, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void say(char *out, size_t capacity, const char *format, ...)
{
	size_t used = strnlen(out, capacity);
	va_list arguments;
	va_start(arguments, format);
	if (used < capacity) vsnprintf(out + used, capacity - used, format, arguments);
	va_end(arguments);
	used = strnlen(out, capacity);
	if (used == capacity - 1) out[hr__utf8_trim(out, used)] = 0;
}

#define SAY(verdict, ...) say((verdict)->text, sizeof(verdict)->text, __VA_ARGS__)
#define ADVISE(verdict, ...) say((verdict)->advice, sizeof(verdict)->advice, __VA_ARGS__)

typedef struct words {
	char text[16];
} words;

static words size_text(uint64_t bytes)
{
	words out;
	hr__format_size(bytes, out.text, sizeof out.text);
	return out;
}

static bool has_own_limit(const hr__allocator *allocator)
{
	return allocator->limit < hr__device_reservable(allocator->device);
}

/* The logical device is a part of its card. */
static bool is_part(const hr__allocator *allocator)
{
	hr_device_info info = { .struct_size = sizeof info };
	if (hr__device_pinned_for(allocator->device)) return true; /* a part of the host */
	return hr_device_get_info(hr__device_handle(allocator->device), &info) == HR_OK && info.limit_bytes < info.total_bytes;
}

/* What the limit of a device is set with. */
static const char *limit_setting(const hr__device *device)
{
	return hr__device_pinned_for(device) ? "host_limit" : "memory_limit of hr_set_logical_devices";
}

static hr_tier fullest(const struct judgement *j)
{
	const struct room *room = &j->room;
	if (has_own_limit(j->allocator) && room->allocator <= room->device && room->allocator <= room->card) return HR_TIER_ALLOCATOR;
	return is_part(j->allocator) && room->device <= room->card ? HR_TIER_DEVICE : HR_TIER_PHYSICAL;
}

static hr_tier outermost(const hr__allocator *allocator)
{
	if (has_own_limit(allocator)) return HR_TIER_ALLOCATOR;
	return is_part(allocator) ? HR_TIER_DEVICE : HR_TIER_PHYSICAL;
}

/* Names what is full, and the setting that would change it. */
static void say_tier(const struct judgement *j, hr_verdict *verdict)
{
	const hr__device *device = j->allocator->device;
	switch (verdict->tier) {
	case HR_TIER_ALLOCATOR:
		SAY(verdict, "; the allocator's limit of %s is reached (options.limit_bytes)", size_text(j->allocator->limit).text);
		break;
	case HR_TIER_DEVICE:
		SAY(verdict, "; the limit of %s, %s, is reached (%s)", hr__device_name(device), size_text(hr__device_limit(device)).text,
		    limit_setting(device));
		break;
	case HR_TIER_PHYSICAL: SAY(verdict, "; the device itself is full"); break;
	case HR_TIER_NONE: break;
	}
}

/* By how much a limit would have to be raised so that memory grows by the request in one piece; only where what is behind it has that
 * much. */
static void advise_limit(const struct judgement *j, hr_verdict *verdict)
{
	const hr__allocator *allocator = j->allocator;
	uint64_t raised, behind = j->room.device < j->room.card ? j->room.device : j->room.card;
	uint64_t more = j->need > j->room.allocator ? j->need - j->room.allocator : 0;
	if (has_own_limit(allocator) && more && j->need <= behind) {
		if (!hr__align_up(allocator->limit + more, j->unit, &raised) || raised > hr__device_reservable(allocator->device)) return;
		ADVISE(verdict, "Raise options.limit_bytes by %s, to %llu. ", size_text(raised - allocator->limit).text,
		       (unsigned long long)raised);
	} else if (is_part(allocator) && j->need > j->room.device && j->need <= j->room.card) {
		ADVISE(verdict, hr__device_pinned_for(allocator->device) ? "Raise the host_limit of %s by %s"
		                                                          : "Raise the memory_limit that hr_set_logical_devices gave %s by %s",
		       hr__device_name(allocator->device), size_text(j->need - j->room.device).text);
		ADVISE(verdict, has_own_limit(allocator) && more ? ", and options.limit_bytes. " : ". ");
	}
}

static void advise_freeing(const struct judgement *j, hr_verdict *verdict)
{
	hr_holder top;
	if (!hr__holders_top(j->walk, HR_BY_OP, &top) || top.name == HR_NAME_NONE) return;
	ADVISE(verdict, "Free something: op %.80s holds most, %s in %u blocks. ", hr_name_text(top.name),
	       size_text((uint64_t)top.bytes).text, top.count);
}

static void advise_others(const struct judgement *j, hr_verdict *verdict)
{
	hr_device_info info = { .struct_size = sizeof info };
	if (verdict->tier != HR_TIER_PHYSICAL || hr_device_get_info(hr__device_handle(j->allocator->device), &info) != HR_OK) return;
	if (info.other_bytes) ADVISE(verdict, "Others hold %s of the card. ", size_text(info.other_bytes).text);
}

/* ---- the verdict ---- */

static void needs_more(struct judgement *j, uint64_t bytes, hr_verdict *verdict)
{
	verdict->kind = HR_NEEDS_MORE;
	verdict->tier = fullest(j);
	verdict->bytes = bytes;
	SAY(verdict, "%s more must be free", size_text(bytes).text);
	say_tier(j, verdict);
	advise_limit(j, verdict);
	advise_others(j, verdict);
	advise_freeing(j, verdict);
}

static void never_fits(struct judgement *j, uint64_t bytes, hr_verdict *verdict)
{
	verdict->kind = HR_NEVER_FITS;
	verdict->tier = outermost(j->allocator);
	verdict->bytes = bytes;
	SAY(verdict, "The request alone is %s above what there may ever be, %s", size_text(bytes).text,
	    size_text(j->allocator->limit).text);
	if (verdict->tier == HR_TIER_DEVICE) SAY(verdict, " (%s)", limit_setting(j->allocator->device));
	else SAY(verdict, verdict->tier == HR_TIER_ALLOCATOR ? " (options.limit_bytes)" : ", which is all the device has");
	advise_limit(j, verdict);
	ADVISE(verdict, "Ask for less. ");
}

static void fits_after_defrag(struct judgement *j, uint64_t bytes, hr_verdict *verdict)
{
	verdict->kind = HR_FITS_AFTER_DEFRAG;
	verdict->bytes = bytes;
	SAY(verdict, "Enough is free, but in pieces: live blocks of %s would have to move", size_text(bytes).text);
	advise_limit(j, verdict);
	advise_freeing(j, verdict);
}

static void fits_with_lms(struct judgement *j, uint64_t bytes, hr_verdict *verdict)
{
	verdict->kind = HR_FITS_WITH_LMS;
	verdict->bytes = bytes;
	if (j->size > sum_of(j->trimmed.free, least(j))) verdict->tier = fullest(j);
	SAY(verdict, "It fits with LMS: moves %s of tensors that nobody is using to the host", size_text(bytes).text);
	if (!j->lms) {
		ADVISE(verdict, "Large Model Support is off: hr_set_lms_enabled(true) before the first tensor, or HEADROOM_LMS=1 in the environment. ");
	} else if (j->host_room < bytes) {
		ADVISE(verdict, "Raise host_limit: the host has room for %s. ", size_text(j->host_room).text);
	} else {
		SAY(verdict, ", which hr_alloc does by itself");
		return;
	}
	advise_limit(j, verdict);
	advise_others(j, verdict);
}

static void judge_bfc(struct judgement *j, hr_verdict *verdict)
{
	const hr__allocator *allocator = j->allocator;
	if (is_kept(j)) {
		verdict->kind = HR_FITS;
		SAY(verdict, "It fits: the thread's cache has a block of that size");
		return;
	}
	find_home(j);
	survey_all(j, &j->now, NOW, fewest_now);
	j->room = room_now(allocator);
	if (j->now.holds || grows(j, &j->now)) {
		verdict->kind = HR_FITS;
		if (j->now.holds) SAY(verdict, "It fits: a free block is large enough");
		else SAY(verdict, "It fits: there is room to grow by %s", size_text(least(j)).text);
		return;
	}
	survey_all(j, &j->trimmed, TRIMMED, fewest_trimmed);
	make_room(j, j->trimmed.given_back);
	if (j->trimmed.holds || grows(j, &j->trimmed)) {
		verdict->kind = HR_FITS_AFTER_TRIM;
		SAY(verdict, "It fits when caches are emptied and free memory is given back, which hr_alloc does by itself");
		return;
	}
	try_stitching(j, TRIMMED, j->trimmed.whole);
	if (j->stitched != NONE) {
		verdict->kind = HR_FITS_AFTER_STITCH;
		verdict->pages = j->stitched;
		SAY(verdict, "Enough pages are free, but apart: it fits when %llu of them %s mapped side by side",
		    (unsigned long long)j->stitched, j->stitched == 1 ? "is" : "are");
		if (allocator->stitch) SAY(verdict, ", which hr_alloc does by itself");
		else ADVISE(verdict, "options.stitch is off: make the allocator with it on, or call hr_allocator_trim and try again. ");
		return;
	}
	uint64_t leaving = try_leaving(j);
	if (leaving != NONE) {
		fits_with_lms(j, leaving, verdict);
		return;
	}
	try_sliding(j);
	uint64_t total = sum_of(j->trimmed.free, least(j));
	if (j->moved != NONE) {
		fits_after_defrag(j, j->moved, verdict);
	} else if (j->need > allocator->limit) {
		never_fits(j, j->need - allocator->limit, verdict);
	} else if (!has_addresses(j)) {
		verdict->kind = HR_NEVER_FITS;
		SAY(verdict, "No address of the allocator is a multiple of %llu with that much behind it",
		    (unsigned long long)j->alignment);
		ADVISE(verdict, "Ask for a smaller alignment. ");
	} else if (j->size <= total) {
		fits_after_defrag(j, j->trimmed.live, verdict);
	} else {
		needs_more(j, j->size - total, verdict);
	}
}

static void judge_direct(struct judgement *j, hr_verdict *verdict)
{
	j->room = room_now(j->allocator);
	if (j->need <= least(j)) {
		verdict->kind = HR_FITS;
		SAY(verdict, "It fits: there is room for %s", size_text(least(j)).text);
		return;
	}
	if (j->need > j->allocator->limit) {
		never_fits(j, j->need - j->allocator->limit, verdict);
		return;
	}
	make_room(j, 0);
	if (j->need <= least(j)) {
		verdict->kind = HR_FITS_AFTER_TRIM;
		SAY(verdict, "It fits when free memory of the device's other allocators is given back");
		ADVISE(verdict, "Call hr_allocator_trim on the other allocators of %s. ", hr__device_name(j->allocator->device));
		return;
	}
	needs_more(j, j->need - least(j), verdict);
}

static void judge_custom(struct judgement *j, const hr_custom_stats *custom, hr_verdict *verdict)
{
	uint64_t in_use = (uint64_t)hr__load_relaxed(&j->allocator->reserved), left = UINT64_MAX, grow = UINT64_MAX, piece = 0;
	const char *name = j->allocator->kind_name;
	j->room = room_now(j->allocator);
	j->room.device = j->room.card = UINT64_MAX; /* where it gets its memory from is its own business */
	if (custom) piece = custom->largest_free;
	if (custom && custom->bytes_limit) {
		left = custom->bytes_limit > in_use ? custom->bytes_limit - in_use : 0;
		grow = custom->bytes_limit > custom->bytes_reserved ? custom->bytes_limit - custom->bytes_reserved : 0;
	}
	uint64_t room = j->room.allocator < left ? j->room.allocator : left;
	if (j->need > j->allocator->limit) {
		never_fits(j, j->need - j->allocator->limit, verdict);
	} else if (j->need > room) {
		verdict->kind = HR_NEEDS_MORE;
		verdict->bytes = j->need - room;
		verdict->tier = HR_TIER_ALLOCATOR;
		SAY(verdict, "%s more must be free", size_text(verdict->bytes).text);
		if (left < j->room.allocator)
			SAY(verdict, "; the custom allocator \"%s\" is at its own limit of %s", name, size_text(custom->bytes_limit).text);
		else say_tier(j, verdict);
		advise_freeing(j, verdict);
	} else if (j->need > grow && j->need > piece) {
		verdict->kind = HR_FITS_AFTER_DEFRAG;
		verdict->bytes = in_use;
		SAY(verdict, "The custom allocator \"%s\" has enough, but not in one piece", name);
		advise_freeing(j, verdict);
	} else {
		verdict->kind = HR_FITS;
		SAY(verdict, "It fits, by all that is known of the custom allocator \"%s\"", name);
	}
}

/* ---- the way in ---- */

static bool takes_pages(const hr__allocator *allocator)
{
	return allocator->kind == HR__KIND_DIRECT && !hr__device_has_plain(allocator->device);
}

uint64_t hr__verdict_size(const hr__allocator *allocator, const hr_request *request)
{
	uint64_t size = request->bytes;
	if (allocator->kind != HR__KIND_CUSTOM)
		hr__align_up(size, takes_pages(allocator) ? allocator->page : allocator->granularity, &size);
	return size;
}

bool hr__verdict_ask_custom(hr__allocator *allocator, hr_custom_stats *custom)
{
	*custom = (hr_custom_stats){ .struct_size = sizeof *custom };
	if (allocator->kind != HR__KIND_CUSTOM || !allocator->custom.table.get_stats) return false;
	return allocator->custom.table.get_stats(allocator->custom_state, custom) == HR_OK;
}

void hr__verdict_make(hr__walk *walk, const hr_request *request, const hr_custom_stats *custom, hr_verdict *verdict)
{
	hr__allocator *allocator = walk->allocator;
	struct judgement j = { .walk = walk, .allocator = allocator, .size = hr__verdict_size(allocator, request) };
	*verdict = (hr_verdict){ .struct_size = sizeof *verdict };
	if (request->alignment > allocator->granularity) j.alignment = request->alignment;
	j.small = allocator->thread_cache && j.size <= HR__SMALL_MAX && !j.alignment;
	j.unit = allocator->kind == HR__KIND_BFC && allocator->page ? allocator->page : allocator->granularity;
	j.need = j.size;
	switch (allocator->kind) {
	case HR__KIND_BFC:
		if (allocator->page) hr__align_up(j.size, allocator->page, &j.need);
		else if (j.alignment) j.need = sum_of(j.size, j.alignment);
		judge_bfc(&j, verdict);
		break;
	case HR__KIND_DIRECT:
		if (takes_pages(allocator)) j.unit = allocator->page;
		judge_direct(&j, verdict);
		break;
	case HR__KIND_CUSTOM:
		j.unit = 1;
		judge_custom(&j, custom, verdict);
		break;
	}
	SAY(verdict, ".");
	size_t end = strlen(verdict->advice);
	if (end && verdict->advice[end - 1] == ' ') verdict->advice[end - 1] = 0;
}

hr_status hr_allocator_would_fit(hr_allocator handle, const hr_request *request, hr_verdict *verdict)
{
	hr_status status;
	hr__walk walk;
	hr_custom_stats custom;
	hr_verdict result;
	if (!verdict || verdict->struct_size != sizeof *verdict)
		return hr__fail(HR_INVALID_ARGUMENT, "hr_allocator_would_fit: set verdict.struct_size to sizeof(hr_verdict)");
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	status = hr__request_check(allocator, request);
	if (status) return status;
	bool asked = hr__verdict_ask_custom(allocator, &custom);
	hr__lock_take(&hr__report_lock);
	hr__walk_begin(&walk, allocator, false);
	hr__verdict_make(&walk, request, asked ? &custom : NULL, &result);
	hr__lock_release(&hr__report_lock);
	*verdict = result;
	return HR_OK;
}
