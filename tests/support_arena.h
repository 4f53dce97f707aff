/* support_arena.h - an arena and a naive model of it, side by side.
 *
 * The model keeps free ranges and holes in plain arrays and searches all of them for every operation, so that its correctness is
 * obvious. It predicts the exact result, not just a set of valid ones. Every operation below is done on both and compared.
 *
 * Rules of the model, from arena.h:
 *
 *     best fit     the smallest free range that holds the request; among equals the one that has had its extent longest
 *     alignment    the best fit if the request fits there aligned; else the best fit for the request with room for any padding;
 *                  else the smallest free range in which it happens to fit, the oldest among equals
 *     the tail     a free range before the hole that ends its region becomes the tail if there is none at that moment. It counts as
 *                  large as it can become; another range wins against a tail that can become just as large. No tail counts as a
 *                  tail of no bytes.
 *     merging      at once, only inside a region; streams are joined, and the later epoch of each kind of stream stays
 *
 * A file that includes this header may define SUPPORT_EQ(a, b), which compares two numbers and does not return if they differ. */
#ifndef HR_TESTS_SUPPORT_ARENA_H
#define HR_TESTS_SUPPORT_ARENA_H

#include <stdlib.h>
#include <string.h>

#include "core/arena/arena.h"

#ifndef SUPPORT_EQ
#include "test.h"
#define SUPPORT_EQ(a, b) CHECK_EQ(a, b)
#endif

#define SUPPORT_UNUSED __attribute__((unused))
#ifndef MODEL_MAX
#define MODEL_MAX 16384u /* ranges of each kind */
#endif
#define MODEL_REGIONS 8u
#define NOWHERE UINT32_MAX

typedef struct extent {
	uint64_t address, size;
	uint64_t stamp; /* free: time at which it got this extent */
	uint64_t streams, epochs[2]; /* latest use by ordinary streams and by copy streams; 0 = none */
	hr__chunk_id id; /* live: its record */
	uint32_t region;
} extent;

typedef struct extents {
	extent at[MODEL_MAX];
	uint32_t count;
} extents;

typedef struct arena_pair {
	hr__chunk_table table;
	hr__arena arena;

	uint64_t unit; /* granularity */
	extents free, holes, live;
	bool has_tail;
	uint64_t tail; /* address of the tail; no two free ranges begin at the same address */
	uint64_t clock;
	struct {
		uint64_t address, size; /* size 0 = none */
		hr__chunk_id edge;
	} regions[MODEL_REGIONS];
} arena_pair;

/* ---- the model ---- */

static void extents_add(extents *list, extent added)
{
	if (list->count == MODEL_MAX) abort();
	list->at[list->count++] = added;
}

static extent extents_remove(extents *list, uint32_t index)
{
	extent removed = list->at[index];
	list->at[index] = list->at[--list->count];
	return removed;
}

/* Index of the range of [region] that begins at [address]; NOWHERE if there is none. ends_at: the one that ends there. */
static uint32_t begins_at(const extents *list, uint32_t region, uint64_t address)
{
	for (uint32_t i = 0; i < list->count; i++)
		if (list->at[i].address == address && list->at[i].region == region) return i;
	return NOWHERE;
}

static uint32_t ends_at(const extents *list, uint32_t region, uint64_t address)
{
	for (uint32_t i = 0; i < list->count; i++)
		if (list->at[i].address + list->at[i].size == address && list->at[i].region == region) return i;
	return NOWHERE;
}

static bool model_is_tail(const arena_pair *pair, const extent *range)
{
	return pair->has_tail && pair->tail == range->address;
}

/* Whether [range] is followed only by a hole up to the end of its region. */
static bool model_can_grow(const arena_pair *pair, const extent *range)
{
	uint32_t hole = begins_at(&pair->holes, range->region, range->address + range->size);
	if (hole == NOWHERE) return false;
	return pair->holes.at[hole].address + pair->holes.at[hole].size ==
	       pair->regions[range->region].address + pair->regions[range->region].size;
}

static void model_insert(arena_pair *pair, extent range)
{
	range.stamp = ++pair->clock;
	if (!pair->has_tail && model_can_grow(pair, &range)) {
		pair->has_tail = true;
		pair->tail = range.address;
	}
	extents_add(&pair->free, range);
}

static extent model_remove(arena_pair *pair, uint32_t index)
{
	if (model_is_tail(pair, &pair->free.at[index])) pair->has_tail = false;
	return extents_remove(&pair->free, index);
}

/* Called after the neighbours of a free range changed: it may have become the tail, or may not be the tail any more. */
static void model_settle(arena_pair *pair, uint32_t index)
{
	const extent *range = &pair->free.at[index];
	if (model_is_tail(pair, range) != (model_can_grow(pair, range) && (!pair->has_tail || model_is_tail(pair, range))))
		model_insert(pair, model_remove(pair, index));
}

static void model_join(extent *into, const extent *from)
{
	into->streams |= from->streams;
	for (int kind = 0; kind < 2; kind++)
		if (from->epochs[kind] > into->epochs[kind]) into->epochs[kind] = from->epochs[kind];
	into->size += from->size;
}

/* Makes [range] free and merges it with its free neighbours. */
static void model_free(arena_pair *pair, extent range)
{
	uint32_t before = ends_at(&pair->free, range.region, range.address);
	if (before != NOWHERE) {
		extent joined = model_remove(pair, before);
		model_join(&joined, &range);
		range = joined;
	}
	uint32_t behind = begins_at(&pair->free, range.region, range.address + range.size);
	if (behind != NOWHERE) {
		extent joined = model_remove(pair, behind);
		model_join(&range, &joined);
	}
	model_insert(pair, range);
}

static void model_hole(arena_pair *pair, extent range)
{
	uint32_t before = ends_at(&pair->holes, range.region, range.address);
	if (before != NOWHERE) {
		extent joined = extents_remove(&pair->holes, before);
		range.address = joined.address;
		range.size += joined.size;
	}
	uint32_t behind = begins_at(&pair->holes, range.region, range.address + range.size);
	if (behind != NOWHERE) range.size += extents_remove(&pair->holes, behind).size;
	range.streams = range.epochs[0] = range.epochs[1] = 0;
	extents_add(&pair->holes, range);
}

static uint32_t model_best(const arena_pair *pair, uint64_t size)
{
	const extents *list = &pair->free;
	uint32_t best = NOWHERE, tail = NOWHERE;
	for (uint32_t i = 0; i < list->count; i++) {
		const extent *range = &list->at[i];
		if (range->size < size && !(pair->has_tail && range->address == pair->tail)) continue;
		if (model_is_tail(pair, range)) tail = i;
		else if (best == NOWHERE || range->size < list->at[best].size ||
		         (range->size == list->at[best].size && range->stamp < list->at[best].stamp))
			best = i;
	}
	uint64_t tail_size = tail == NOWHERE ? 0 : list->at[tail].size, most = tail_size + pair->arena.tail_growth;
	if (best != NOWHERE && (most < size || most >= list->at[best].size)) return best;
	return tail_size >= size ? tail : NOWHERE;
}

/* Bytes before the first multiple of [alignment] in [range]; UINT64_MAX if [size] does not fit after them. */
static uint64_t model_padding(const extent *range, uint64_t size, uint64_t alignment)
{
	uint64_t padding = (0 - range->address) & (alignment - 1);
	return padding <= range->size && range->size - padding >= size ? padding : UINT64_MAX;
}

static uint32_t model_best_aligned(const arena_pair *pair, uint64_t size, uint64_t alignment)
{
	const extents *list = &pair->free;
	uint32_t found = model_best(pair, size), best = NOWHERE;
	if (found == NOWHERE || model_padding(&list->at[found], size, alignment) != UINT64_MAX) return found;
	found = model_best(pair, size + alignment - pair->unit);
	if (found != NOWHERE) return found;
	for (uint32_t i = 0; i < list->count; i++) {
		const extent *range = &list->at[i];
		if (model_padding(range, size, alignment) == UINT64_MAX) continue;
		bool older = best != NOWHERE && range->size == list->at[best].size &&
		             (model_is_tail(pair, &list->at[best]) || (!model_is_tail(pair, range) && range->stamp < list->at[best].stamp));
		if (best == NOWHERE || range->size < list->at[best].size || older) best = i;
	}
	return best;
}

/* Takes a range from the model; false if nothing fits. */
static bool model_take(arena_pair *pair, uint64_t size, uint64_t alignment, extent *out)
{
	bool plain = alignment <= pair->unit;
	uint32_t found = plain ? model_best(pair, size) : model_best_aligned(pair, size, alignment);
	if (found == NOWHERE) return false;
	extent whole = model_remove(pair, found), part = whole;
	uint64_t padding = plain ? 0 : model_padding(&whole, size, alignment);
	if (padding) {
		part.size = padding;
		model_insert(pair, part);
	}
	part.address = whole.address + padding + size;
	part.size = whole.size - padding - size;
	if (part.size) model_insert(pair, part);
	part.address = whole.address + padding;
	part.size = size;
	*out = part;
	return true;
}

/* ---- both ---- */

static void pair_ensure(arena_pair *pair)
{
	SUPPORT_EQ(hr__chunk_table_ensure(&pair->table, 8), HR_OK);
}

static void pair_check_extent(const arena_pair *pair, hr__chunk_id id, const extent *expected, enum hr__chunk_state state)
{
	const hr__chunk *chunk = hr__chunk_at(&pair->table, id);
	SUPPORT_EQ(hr__chunk_address(chunk), expected->address);
	SUPPORT_EQ(chunk->size, expected->size);
	SUPPORT_EQ(hr__chunk_state_of(chunk), state);
	SUPPORT_EQ(chunk->region, expected->region);
	SUPPORT_EQ(chunk->streams, expected->streams);
	if (expected->epochs[0]) SUPPORT_EQ(hr__epochs_ordinary(chunk->epochs), expected->epochs[0]);
	if (expected->epochs[1]) SUPPORT_EQ(hr__epochs_copies(chunk->epochs), expected->epochs[1]);
}

/* Compares what is cheap to compare. */
static void pair_compare(const arena_pair *pair)
{
	SUPPORT_EQ(pair->arena.free_count, pair->free.count);
	SUPPORT_EQ(pair->arena.tail != 0, pair->has_tail);
	if (pair->has_tail) SUPPORT_EQ(hr__chunk_address(hr__chunk_at(&pair->table, pair->arena.tail)), pair->tail);
}

/* Checks the arena's own invariants. */
SUPPORT_UNUSED static void pair_check(const arena_pair *pair)
{
	hr__chunk_id edges[MODEL_REGIONS];
	uint32_t count = 0;
	for (uint32_t i = 0; i < MODEL_REGIONS; i++)
		if (pair->regions[i].size) edges[count++] = pair->regions[i].edge;
	SUPPORT_EQ(hr__arena_check(&pair->arena, edges, count), 0);
}

/* Compares every chunk of every region with the model, and checks the walk over free chunks. */
SUPPORT_UNUSED static void pair_compare_all(const arena_pair *pair)
{
	uint64_t seen = 0, free_bytes = 0, largest = 0;
	for (uint32_t i = 0; i < MODEL_REGIONS; i++) {
		if (!pair->regions[i].size) continue;
		const hr__chunk *chunk = hr__chunk_at(&pair->table, pair->regions[i].edge);
		while (chunk->next) {
			hr__chunk_id id = chunk->next;
			chunk = hr__chunk_at(&pair->table, id);
			enum hr__chunk_state state = hr__chunk_state_of(chunk);
			const extents *list = state == HR__CHUNK_FREE ? &pair->free : state == HR__CHUNK_HOLE ? &pair->holes : &pair->live;
			uint32_t index = begins_at(list, i, hr__chunk_address(chunk));
			SUPPORT_EQ(index != NOWHERE, true);
			pair_check_extent(pair, id, &list->at[index], state);
			seen++;
		}
		SUPPORT_EQ(hr__chunk_end(chunk), pair->regions[i].address + pair->regions[i].size);
	}
	SUPPORT_EQ(seen, (uint64_t)pair->free.count + pair->holes.count + pair->live.count);

	for (uint32_t i = 0; i < pair->free.count; i++) {
		free_bytes += pair->free.at[i].size;
		if (pair->free.at[i].size > largest) largest = pair->free.at[i].size;
	}
	SUPPORT_EQ(pair->arena.free_bytes, free_bytes);
	SUPPORT_EQ(hr__arena_largest(&pair->arena), largest);

	seen = 0;
	hr__chunk_id last = 0;
	for (hr__chunk_id id = hr__arena_first_free(&pair->arena, 0); id; id = hr__arena_next_free(&pair->arena, last = id)) {
		SUPPORT_EQ(begins_at(&pair->free, hr__chunk_at(&pair->table, id)->region,
		                     hr__chunk_address(hr__chunk_at(&pair->table, id))) != NOWHERE,
		           true);
		seen++;
		SUPPORT_EQ(seen <= pair->free.count, true);
	}
	SUPPORT_EQ(seen, pair->free.count);
	if (pair->has_tail) SUPPORT_EQ(last, pair->arena.tail);
}

/* A walk that starts at [size] visits every free chunk that is large enough. */
SUPPORT_UNUSED static void pair_check_walk_from(const arena_pair *pair, uint64_t size)
{
	uint32_t expected = 0, seen = 0;
	for (uint32_t i = 0; i < pair->free.count; i++) expected += pair->free.at[i].size >= size;
	for (hr__chunk_id id = hr__arena_first_free(&pair->arena, size); id; id = hr__arena_next_free(&pair->arena, id))
		seen += hr__chunk_at(&pair->table, id)->size >= size;
	SUPPORT_EQ(seen, expected);
}

SUPPORT_UNUSED static arena_pair *pair_new(uint64_t granularity)
{
	arena_pair *pair = malloc(sizeof *pair);
	if (!pair) abort();
	memset(pair, 0, offsetof(arena_pair, free));
	pair->free.count = pair->holes.count = pair->live.count = 0;
	pair->has_tail = false;
	pair->clock = 0;
	memset(pair->regions, 0, sizeof pair->regions);
	SUPPORT_EQ(hr__chunk_table_init(&pair->table), HR_OK);
	hr__arena_init(&pair->arena, &pair->table, granularity);
	pair->unit = granularity;
	return pair;
}

SUPPORT_UNUSED static void pair_free(arena_pair *pair)
{
	hr__chunk_table_destroy(&pair->table);
	free(pair);
}

SUPPORT_UNUSED static void pair_add_region(arena_pair *pair, uint32_t region, uint64_t address, uint64_t size)
{
	pair_ensure(pair);
	pair->regions[region].address = address;
	pair->regions[region].size = size;
	pair->regions[region].edge = hr__arena_add_region(&pair->arena, address, size, (uint16_t)region);
	extents_add(&pair->holes, (extent){ .address = address, .size = size, .region = region });
	pair_compare(pair);
}

/* Whether a region is a single hole, so that it can be removed. */
SUPPORT_UNUSED static bool pair_is_empty(const arena_pair *pair, uint32_t region)
{
	uint32_t hole = begins_at(&pair->holes, region, pair->regions[region].address);
	return hole != NOWHERE && pair->holes.at[hole].size == pair->regions[region].size;
}

SUPPORT_UNUSED static void pair_remove_region(arena_pair *pair, uint32_t region)
{
	extents_remove(&pair->holes, begins_at(&pair->holes, region, pair->regions[region].address));
	hr__arena_remove_region(&pair->arena, pair->regions[region].edge);
	pair->regions[region].size = 0;
	pair_compare(pair);
}

/* Maps [size] bytes, [skip] bytes into the hole. */
SUPPORT_UNUSED static void pair_map(arena_pair *pair, uint32_t hole, uint64_t skip, uint64_t size)
{
	extent whole = extents_remove(&pair->holes, hole), part = whole;
	hr__chunk_id id = hr__chunk_at(&pair->table, pair->regions[whole.region].edge)->next;
	while (hr__chunk_address(hr__chunk_at(&pair->table, id)) != whole.address) id = hr__chunk_at(&pair->table, id)->next;
	pair_ensure(pair);
	hr__chunk_id got = hr__arena_map(&pair->arena, id, whole.address + skip, size);

	part.size = skip;
	if (skip) extents_add(&pair->holes, part);
	part.address = whole.address + skip + size;
	part.size = whole.size - skip - size;
	if (part.size) extents_add(&pair->holes, part);
	uint32_t before = ends_at(&pair->free, whole.region, whole.address);
	if (before != NOWHERE && skip) model_settle(pair, before);
	part.address = whole.address + skip;
	part.size = size;
	model_free(pair, part);
	const extent *range = &pair->free.at[pair->free.count - 1];
	pair_check_extent(pair, got, range, HR__CHUNK_FREE);
	pair_compare(pair);
}

/* Turns [size] bytes, [skip] bytes into the free range, into a hole. */
SUPPORT_UNUSED static void pair_unmap(arena_pair *pair, uint32_t index, uint64_t skip, uint64_t size)
{
	extent whole = pair->free.at[index], part = whole;
	hr__chunk_id id = hr__arena_first_free(&pair->arena, 0);
	while (hr__chunk_address(hr__chunk_at(&pair->table, id)) != whole.address ||
	       hr__chunk_at(&pair->table, id)->region != whole.region)
		id = hr__arena_next_free(&pair->arena, id);
	pair_ensure(pair);
	hr__chunk_id got = hr__arena_unmap(&pair->arena, id, whole.address + skip, size);

	model_remove(pair, index);
	part.size = skip;
	if (skip) model_insert(pair, part);
	part.address = whole.address + skip + size;
	part.size = whole.size - skip - size;
	if (part.size) model_insert(pair, part);
	part.address = whole.address + skip;
	part.size = size;
	model_hole(pair, part);
	const extent *hole = &pair->holes.at[pair->holes.count - 1];
	uint32_t before = ends_at(&pair->free, hole->region, hole->address);
	if (before != NOWHERE) model_settle(pair, before);
	pair_check_extent(pair, got, hole, HR__CHUNK_HOLE);
	pair_compare(pair);
}

/* Whether a range was found. It must be the one that the model predicts, or none. */
SUPPORT_UNUSED static bool pair_take(arena_pair *pair, uint64_t size, uint64_t alignment)
{
	extent expected;
	pair_ensure(pair);
	hr__chunk_id id = hr__arena_take(&pair->arena, size, alignment);
	bool found = model_take(pair, size, alignment, &expected);
	if (found && id) SUPPORT_EQ(hr__chunk_address(hr__chunk_at(&pair->table, id)), expected.address);
	SUPPORT_EQ(id != 0, found);
	pair_compare(pair);
	if (!found) return false;
	pair_check_extent(pair, id, &expected, HR__CHUNK_IN_USE);
	expected.id = id;
	extents_add(&pair->live, expected);
	return true;
}

/* Frees a live range that [streams] used until [epoch], which is not 0. */
SUPPORT_UNUSED static void pair_give(arena_pair *pair, uint32_t index, uint64_t streams, uint64_t epoch)
{
	extent range = extents_remove(&pair->live, index);
	hr__chunk *chunk = hr__chunk_at(&pair->table, range.id);
	chunk->streams = range.streams = streams;
	chunk->epochs = epoch;
	range.epochs[0] = streams & ~HR__COPY_STREAMS ? epoch : 0;
	range.epochs[1] = streams & HR__COPY_STREAMS ? epoch : 0;
	hr__chunk_id got = hr__arena_give(&pair->arena, range.id);
	range.id = 0;
	model_free(pair, range);
	pair_check_extent(pair, got, &pair->free.at[pair->free.count - 1], HR__CHUNK_FREE);
	pair_compare(pair);
}

#endif
