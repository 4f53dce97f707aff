/* walk.c - visiting every chunk of an allocator without making its threads wait for long.
 *
 * A hold stops the thread caches, so that states do not change, acquires the lock of one shard, visits at most HR__VISIT_MAX chunks
 * and releases everything: about 20 us.
 *
 * Blocks are visited by the numbers of their records: records never move, so the only state between two holds is a number.
 *
 * Chunks are visited in address order along the chain of their region, which may change between two holds. The state between two
 * holds is the address to continue from, and a cursor of the arena (arena.h): some chunk of the same chain. The chunk with the
 * address is a few steps to the left or right of the cursor. If that chunk began earlier, only the part not visited yet is
 * returned. So the pieces of a region follow each other without gap or overlap, and every walk ends. */
#include "core/memory/oom/oom.h"

hr__lock hr__report_lock = HR__LOCK_INIT(HR__RANK_REPORT);

static hr__region_walk region_walks[2];

void hr__walk_begin(hr__walk *walk, hr__allocator *allocator, bool foreign)
{
	HR_ASSERT(hr__lock_is_mine(&hr__report_lock));
	*walk = (hr__walk){ .allocator = allocator, .id = allocator->id, .foreign = foreign };
}

/* ---- holds ---- */

struct allocator_search {
	const hr__walk *walk;
	bool found;
};

static void compare(hr__allocator *allocator, void *context)
{
	struct allocator_search *search = context;
	if (allocator == search->walk->allocator && allocator->id == search->walk->id) search->found = true;
}

/* Keeps an allocator that is not the caller's from being closed; false if it was closed. */
static bool keep_open(const hr__walk *walk)
{
	struct allocator_search search = { .walk = walk };
	if (!walk->foreign) return true;
	hr__allocators_lock();
	hr__allocators_visit_locked(NULL, compare, &search);
	if (!search.found) hr__allocators_unlock();
	return search.found;
}

static void end_keep_open(const hr__walk *walk)
{
	if (walk->foreign) hr__allocators_unlock();
}

static void take_hold(hr__walk *walk, hr__shard *shard)
{
	HR_ASSERT(hr__lock_is_mine(&hr__report_lock));
	hr__caches_stop(walk->allocator);
	hr__lock_take(&shard->lock);
}

static void release_hold(hr__walk *walk, hr__shard *shard, uint32_t looked_at)
{
	hr__lock_release(&shard->lock);
	hr__caches_start(walk->allocator);
	HR_ASSERT(looked_at <= HR__VISIT_MAX);
	if (looked_at > walk->longest) walk->longest = looked_at;
	walk->visited += looked_at;
}

/* ---- blocks ---- */

static void walk_shard(hr__walk *walk, hr__shard *shard, void (*visit)(void *, const hr__chunk *), void *context)
{
	bool more = true;
	for (hr__chunk_id first = 1; more; first += HR__VISIT_MAX) {
		take_hold(walk, shard);
		hr__chunk_id end = shard->table.touched, id = first;
		more = end > first && end - first > HR__VISIT_MAX;
		if (more) end = first + HR__VISIT_MAX;
		for (; id < end; id++) {
			const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
			if (hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE) visit(context, chunk);
		}
		release_hold(walk, shard, id - first);
	}
}

void hr__walk_blocks(hr__walk *walk, void (*visit)(void *, const hr__chunk *), void *context)
{
	HR_ASSERT(hr__lock_is_mine(&hr__report_lock));
	HR_ASSERT(!walk->foreign);
	HR__EACH_SHARD(walk->allocator, shard) walk_shard(walk, shard, visit, context);
}

/* ---- chunks by address ---- */

static unsigned cursor_of(const hr__region_walk *region_walk)
{
	return region_walk == &region_walks[1];
}

bool hr__region_walk_open(hr__walk *walk, unsigned which, uint32_t slot, hr__region_walk **out)
{
	HR_ASSERT(hr__lock_is_mine(&hr__report_lock) && which < 2);
	hr__region_walk *region_walk = *out = &region_walks[which];
	region_walk->walk = walk;
	region_walk->slot = slot;
	region_walk->next = region_walk->count = 0;
	region_walk->ended = true;
	region_walk->tensors = false;
	if (!keep_open(walk)) return false;
	hr__allocator *allocator = walk->allocator;
	uint32_t shard = allocator->page ? slot / 2 : 0;
	bool there = slot < HR__REGIONS_MAX && shard < allocator->shard_max && hr__load_acquire(&allocator->shards[shard].open);
	if (there) {
		region_walk->shard = &allocator->shards[shard];
		hr__lock_take(&region_walk->shard->lock);
		region_walk->region = allocator->regions[slot];
		there = region_walk->region.size != 0;
		region_walk->arena = region_walk->region.small ? &region_walk->shard->small.arena : &region_walk->shard->large.arena;
		if (there) region_walk->arena->cursor[which] = hr__chunk_at(&region_walk->shard->table, region_walk->region.edge)->next;
		hr__lock_release(&region_walk->shard->lock);
	}
	end_keep_open(walk);
	region_walk->at = region_walk->region.address;
	region_walk->ended = !there;
	return there;
}

/* Walks from [id] to the chunk of the same chain that contains [address]; 0 if that is after the last chunk. Counts steps in
 * *looked_at and stops when they are used up. *there says whether the chunk was reached. */
static hr__chunk_id find(const hr__chunk *chunks, hr__chunk_id id, uint64_t address, uint32_t *looked_at, bool *there)
{
	HR_ASSERT(*looked_at < HR__VISIT_MAX);
	for (*there = true; id; ++*looked_at) {
		const hr__chunk *chunk = &chunks[id];
		if (hr__chunk_address(chunk) <= address && address < hr__chunk_end(chunk)) return id;
		if (*looked_at == HR__VISIT_MAX - 1) {
			*there = false;
			return id;
		}
		id = hr__chunk_address(chunk) > address ? chunk->prev : chunk->next;
	}
	return 0;
}

static bool is_evictable(const hr__region_walk *region_walk, const hr__chunk *chunk)
{
	const hr__lms_hooks *lms_hooks = hr__load_acquire(&hr__hooks_table.lms);
	if (!region_walk->tensors || hr__chunk_state_of(chunk) != HR__CHUNK_IN_USE || !chunk->owner) return false;
	return lms_hooks && lms_hooks->is_evictable(chunk->owner);
}

/* One hold: reads up to HR__VISIT_MAX pieces. */
static void fill(hr__region_walk *region_walk)
{
	hr__arena *arena = region_walk->arena;
	const hr__chunk *chunks = region_walk->shard->table.chunks;
	uint32_t looked_at = 0;
	bool there;
	take_hold(region_walk->walk, region_walk->shard);
	hr__chunk_id *cursor = &arena->cursor[cursor_of(region_walk)], id = find(chunks, *cursor, region_walk->at, &looked_at, &there);
	for (; id && there && looked_at < HR__VISIT_MAX; looked_at++) {
		const hr__chunk *chunk = &chunks[id];
		region_walk->pieces[region_walk->count++] = (hr__region_piece){ region_walk->at, hr__chunk_end(chunk) - region_walk->at, hr__chunk_state_of(chunk), is_evictable(region_walk, chunk) };
		region_walk->at = hr__chunk_end(chunk);
		id = chunk->next;
	}
	*cursor = id;
	region_walk->ended = !id; /* after the last chunk, or the region was released */
	release_hold(region_walk->walk, region_walk->shard, looked_at);
}

bool hr__region_walk_next(hr__region_walk *region_walk, hr__region_piece *piece)
{
	HR_ASSERT(hr__lock_is_mine(&hr__report_lock));
	while (region_walk->next == region_walk->count) {
		region_walk->next = region_walk->count = 0;
		if (region_walk->ended) return false;
		if (!keep_open(region_walk->walk)) {
			region_walk->ended = true;
			return false;
		}
		fill(region_walk);
		end_keep_open(region_walk->walk);
	}
	*piece = region_walk->pieces[region_walk->next++];
	return true;
}

void hr__region_walk_close(hr__region_walk *region_walk)
{
	HR_ASSERT(hr__lock_is_mine(&hr__report_lock));
	region_walk->next = region_walk->count = 0;
	if (region_walk->ended || !keep_open(region_walk->walk)) return;
	hr__lock_take(&region_walk->shard->lock);
	region_walk->arena->cursor[cursor_of(region_walk)] = 0;
	hr__lock_release(&region_walk->shard->lock);
	end_keep_open(region_walk->walk);
	region_walk->ended = true;
}
