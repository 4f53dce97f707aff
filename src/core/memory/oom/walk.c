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

static hr__line lines[2];

void hr__walk_begin(hr__walk *walk, hr__allocator *allocator, bool foreign)
{
	HR_ASSERT(hr__lock_is_held(&hr__report_lock));
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
static bool pin(const hr__walk *walk)
{
	struct allocator_search search = { .walk = walk };
	if (!walk->foreign) return true;
	hr__registry_enter();
	hr__allocators_visit_locked(NULL, compare, &search);
	if (!search.found) hr__registry_leave();
	return search.found;
}

static void unpin(const hr__walk *walk)
{
	if (walk->foreign) hr__registry_leave();
}

static void hold(hr__walk *walk, hr__shard *shard)
{
	hr__caches_stop(walk->allocator);
	hr__lock_take(&shard->lock);
}

static void let_go(hr__walk *walk, hr__shard *shard, uint32_t looked_at)
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
		hold(walk, shard);
		hr__chunk_id end = shard->table.touched, id = first;
		more = end > first && end - first > HR__VISIT_MAX;
		if (more) end = first + HR__VISIT_MAX;
		for (; id < end; id++) {
			const hr__chunk *chunk = hr__chunk_at(&shard->table, id);
			if (hr__chunk_state_of(chunk) == HR__CHUNK_IN_USE) visit(context, chunk);
		}
		let_go(walk, shard, id - first);
	}
}

void hr__walk_blocks(hr__walk *walk, void (*visit)(void *, const hr__chunk *), void *context)
{
	HR_ASSERT(!walk->foreign);
	HR__EACH_SHARD(walk->allocator, shard) walk_shard(walk, shard, visit, context);
}

/* ---- chunks by address ---- */

static unsigned cursor_of(const hr__line *line)
{
	return line == &lines[1];
}

bool hr__line_open(hr__walk *walk, unsigned which, uint32_t slot, hr__line **out)
{
	hr__line *line = *out = &lines[which];
	line->walk = walk;
	line->slot = slot;
	line->next = line->count = 0;
	line->ended = true;
	line->tensors = false;
	if (!pin(walk)) return false;
	hr__allocator *allocator = walk->allocator;
	uint32_t shard = allocator->page ? slot / 2 : 0;
	bool there = slot < HR__REGIONS_MAX && shard < allocator->shard_max && hr__load_acquire(&allocator->shards[shard].open);
	if (there) {
		line->shard = &allocator->shards[shard];
		hr__lock_take(&line->shard->lock);
		line->region = allocator->regions[slot];
		there = line->region.size != 0;
		line->arena = line->region.small ? &line->shard->small.arena : &line->shard->large.arena;
		if (there) line->arena->cursor[which] = hr__chunk_at(&line->shard->table, line->region.edge)->next;
		hr__lock_release(&line->shard->lock);
	}
	unpin(walk);
	line->at = line->region.address;
	line->ended = !there;
	return there;
}

/* Walks from [id] to the chunk of the same chain that contains [address]; 0 if that is after the last chunk. Counts steps in
 * *looked_at and stops when they are used up. *there says whether the chunk was reached. */
static hr__chunk_id find(const hr__chunk *chunks, hr__chunk_id id, uint64_t address, uint32_t *looked_at, bool *there)
{
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

static bool leaves(const hr__line *line, const hr__chunk *chunk)
{
	const hr__upper *upper = hr__load_acquire(&hr__hooks_table.lms);
	if (!line->tensors || hr__chunk_state_of(chunk) != HR__CHUNK_IN_USE || !chunk->owner) return false;
	return upper && upper->may_leave(chunk->owner);
}

/* One hold: reads up to HR__VISIT_MAX pieces. */
static void fill(hr__line *line)
{
	hr__arena *arena = line->arena;
	const hr__chunk *chunks = line->shard->table.chunks;
	uint32_t looked_at = 0;
	bool there;
	hold(line->walk, line->shard);
	hr__chunk_id *cursor = &arena->cursor[cursor_of(line)], id = find(chunks, *cursor, line->at, &looked_at, &there);
	for (; id && there && looked_at < HR__VISIT_MAX; looked_at++) {
		const hr__chunk *chunk = &chunks[id];
		line->pieces[line->count++] = (hr__piece){ line->at, hr__chunk_end(chunk) - line->at, hr__chunk_state_of(chunk), leaves(line, chunk) };
		line->at = hr__chunk_end(chunk);
		id = chunk->next;
	}
	*cursor = id;
	line->ended = !id; /* after the last chunk, or the region was released */
	let_go(line->walk, line->shard, looked_at);
}

bool hr__line_next(hr__line *line, hr__piece *piece)
{
	while (line->next == line->count) {
		line->next = line->count = 0;
		if (line->ended) return false;
		if (!pin(line->walk)) {
			line->ended = true;
			return false;
		}
		fill(line);
		unpin(line->walk);
	}
	*piece = line->pieces[line->next++];
	return true;
}

void hr__line_close(hr__line *line)
{
	line->next = line->count = 0;
	if (line->ended || !pin(line->walk)) return;
	hr__lock_take(&line->shard->lock);
	line->arena->cursor[cursor_of(line)] = 0;
	hr__lock_release(&line->shard->lock);
	unpin(line->walk);
	line->ended = true;
}
