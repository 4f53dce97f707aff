/* verdict_region.c - see verdict_region.h. Chunks come one by one (walk.c). Adjacent free chunks are merged first, then divided into
 * the part that is released, which becomes a hole, and the part that stays; holes are merged last. */
#include "core/base/checked.h"
#include "core/memory/oom/verdict_region.h"

uint64_t hr__verdict_whole_pages(uint64_t from, uint64_t to, uint64_t page, uint64_t *begin)
{
	if (!page || !hr__align_up(from, page, begin)) return 0;
	return hr__align_down(to, page) > *begin ? (hr__align_down(to, page) - *begin) / page : 0;
}

bool hr__verdict_region_open(hr__verdict_region *state, const hr__allocator *self, hr__walk *walk, unsigned which, uint32_t slot,
                   enum hr__verdict_stage stage)
{
	const hr__allocator *allocator = walk->allocator;
	HR_ASSERT(allocator->device == self->device && (allocator == self || walk->foreign));
	*state = (hr__verdict_region){ .stage = stage };
	if (!hr__region_walk_open(walk, which, slot, &state->walk)) return false;
	state->walk->tensors = stage >= HR__STAGE_EVICTABLE;
	state->page = self->page; /* the page size is the device's, so it is the same for both allocators */
	state->releases = stage != HR__STAGE_NOW && (!state->page || state->walk->region.small || allocator != self);
	return true;
}

static enum hr__segment_kind kind_of(const hr__verdict_region *state, const hr__region_piece *piece)
{
	switch (piece->state) {
	case HR__CHUNK_FREE: return HR__SEGMENT_FREE;
	case HR__CHUNK_HOLE: return HR__SEGMENT_HOLE;
	case HR__CHUNK_CACHED: return state->stage != HR__STAGE_NOW ? HR__SEGMENT_FREE : HR__SEGMENT_LIVE;
	default: return !piece->evictable ? HR__SEGMENT_LIVE : state->stage == HR__STAGE_EVICTED ? HR__SEGMENT_FREE : HR__SEGMENT_EVICTABLE;
	}
}

static bool next_piece(hr__verdict_region *state, hr__region_piece *piece)
{
	HR_ASSERT(!state->has_piece || state->piece.bytes > 0);
	if (!state->has_piece) return hr__region_walk_next(state->walk, piece);
	*piece = state->piece;
	state->has_piece = false;
	return true;
}

static void enqueue(hr__verdict_region *state, uint64_t from, uint64_t to, enum hr__segment_kind kind)
{
	HR_ASSERT(state->queued < 3 && from <= to);
	if (from < to) state->queue[state->queued++] = (hr__region_segment){ from, to - from, kind };
	if (from < to && kind == HR__SEGMENT_HOLE) state->given_back += to - from;
}

/* Divides a free range into the parts that a release leaves. */
static void divide(hr__verdict_region *state, const hr__region_segment *run)
{
	uint64_t from = run->address, to = from + run->bytes, begin;
	const hr__region *region = &state->walk->region;
	bool all = from == region->address && run->bytes == region->size;
	uint64_t pages = state->releases ? hr__verdict_whole_pages(from, to, state->page, &begin) : 0;
	state->queued = state->taken = 0;
	if (pages) {
		enqueue(state, from, begin, HR__SEGMENT_FREE);
		enqueue(state, begin, begin + pages * state->page, HR__SEGMENT_HOLE);
		enqueue(state, begin + pages * state->page, to, HR__SEGMENT_FREE);
	} else {
		enqueue(state, from, to, state->releases && !state->page && all ? HR__SEGMENT_HOLE : HR__SEGMENT_FREE);
	}
}

/* The next segment, with adjacent free chunks merged. */
static bool next_segment(hr__verdict_region *state, hr__region_segment *out)
{
	hr__region_piece piece, other;
	if (state->taken == state->queued) {
		if (!next_piece(state, &piece)) return false;
		hr__region_segment run = { piece.address, piece.bytes, kind_of(state, &piece) };
		if (run.kind != HR__SEGMENT_FREE) {
			*out = run;
			return true;
		}
		while (next_piece(state, &other)) {
			if (kind_of(state, &other) != HR__SEGMENT_FREE) {
				state->piece = other;
				state->has_piece = true;
				break;
			}
			run.bytes += other.bytes;
		}
		divide(state, &run);
	}
	*out = state->queue[state->taken++];
	return true;
}

bool hr__verdict_region_next(hr__verdict_region *state, hr__region_segment *out)
{
	if (state->has_ahead) *out = state->ahead;
	else if (!next_segment(state, out)) return false;
	state->has_ahead = false;
	while (out->kind == HR__SEGMENT_HOLE && (state->has_ahead = next_segment(state, &state->ahead)) && state->ahead.kind == HR__SEGMENT_HOLE) {
		out->bytes += state->ahead.bytes;
		state->has_ahead = false;
	}
	return true;
}
