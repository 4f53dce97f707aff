/* verdict_region.c - see verdict_region.h. Chunks come one by one (walk.c). Adjacent free chunks are merged first, then divided into
 * the part that is released, which becomes a hole, and the part that stays; holes are merged last. */
#include "core/base/checked.h"
#include "core/memory/oom/verdict_region.h"

uint64_t hr__whole_pages(uint64_t from, uint64_t to, uint64_t page, uint64_t *begin)
{
	if (!page || !hr__align_up(from, page, begin)) return 0;
	return hr__align_down(to, page) > *begin ? (hr__align_down(to, page) - *begin) / page : 0;
}

bool hr__view_open(hr__view *view, const hr__allocator *self, hr__walk *walk, unsigned which, uint32_t slot,
                   enum hr__verdict_stage stage)
{
	const hr__allocator *allocator = walk->allocator;
	*view = (hr__view){ .stage = stage };
	if (!hr__line_open(walk, which, slot, &view->line)) return false;
	view->line->tensors = stage >= HR__STAGE_APART;
	view->page = self->page; /* the page size is the device's, so it is the same for both allocators */
	view->releases = stage != HR__STAGE_NOW && (!view->page || view->line->region.small || allocator != self);
	return true;
}

static enum hr__seen kind_of(const hr__view *view, const hr__piece *piece)
{
	switch (piece->state) {
	case HR__CHUNK_FREE: return HR__SEEN_FREE;
	case HR__CHUNK_HOLE: return HR__SEEN_HOLE;
	case HR__CHUNK_CACHED: return view->stage != HR__STAGE_NOW ? HR__SEEN_FREE : HR__SEEN_LIVE;
	default: return !piece->leaves ? HR__SEEN_LIVE : view->stage == HR__STAGE_GONE ? HR__SEEN_FREE : HR__SEEN_LEAVER;
	}
}

static bool next_piece(hr__view *view, hr__piece *piece)
{
	if (!view->has_piece) return hr__line_next(view->line, piece);
	*piece = view->piece;
	view->has_piece = false;
	return true;
}

static void enqueue(hr__view *view, uint64_t from, uint64_t to, enum hr__seen kind)
{
	if (from < to) view->queue[view->queued++] = (hr__region_segment){ from, to - from, kind };
	if (from < to && kind == HR__SEEN_HOLE) view->given_back += to - from;
}

/* Divides a free range into the parts that a release leaves. */
static void divide(hr__view *view, const hr__region_segment *run)
{
	uint64_t from = run->address, to = from + run->bytes, begin;
	const hr__region *region = &view->line->region;
	bool all = from == region->address && run->bytes == region->size;
	uint64_t pages = view->releases ? hr__whole_pages(from, to, view->page, &begin) : 0;
	view->queued = view->taken = 0;
	if (pages) {
		enqueue(view, from, begin, HR__SEEN_FREE);
		enqueue(view, begin, begin + pages * view->page, HR__SEEN_HOLE);
		enqueue(view, begin + pages * view->page, to, HR__SEEN_FREE);
	} else {
		enqueue(view, from, to, view->releases && !view->page && all ? HR__SEEN_HOLE : HR__SEEN_FREE);
	}
}

/* The next segment, with adjacent free chunks merged. */
static bool next_part(hr__view *view, hr__region_segment *out)
{
	hr__piece piece, other;
	if (view->taken == view->queued) {
		if (!next_piece(view, &piece)) return false;
		hr__region_segment run = { piece.address, piece.bytes, kind_of(view, &piece) };
		if (run.kind != HR__SEEN_FREE) {
			*out = run;
			return true;
		}
		while (next_piece(view, &other)) {
			if (kind_of(view, &other) != HR__SEEN_FREE) {
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

bool hr__view_next(hr__view *view, hr__region_segment *out)
{
	if (view->has_ahead) *out = view->ahead;
	else if (!next_part(view, out)) return false;
	view->has_ahead = false;
	while (out->kind == HR__SEEN_HOLE && (view->has_ahead = next_part(view, &view->ahead)) && view->ahead.kind == HR__SEEN_HOLE) {
		out->bytes += view->ahead.bytes;
		view->has_ahead = false;
	}
	return true;
}
