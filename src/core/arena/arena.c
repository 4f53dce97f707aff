/* arena.c - the index of free chunks, and the operations that maintain it.
 *
 * A region is a chain of chunks in address order (prev, next) that covers the region without a gap. The chain starts with an edge:
 * an empty chunk that stays at the start for the life of the region. The chain ends with record 0, which stands for "no chunk". So
 * every chunk has a readable neighbour on both sides:
 *
 *     edge | in use | free        | in use | cached | hole (no memory)          | 0
 *
 * Free chunks are in the index. A bin holds a narrow range of sizes; bins are found through a two-level bitmap. Inside a bin,
 * chunks of different sizes form a trie on the bits of the size below those that select the bin, most significant first. Every node
 * is itself a chunk: the children of a chunk share its bits above their level, and a node's own size can be any size with its
 * prefix:
 *
 *     bin 37:     [size 5, oldest] - younger - younger        a ring (link = younger, older) of equal sizes,
 *                    /        \                               whose oldest member is the trie's node
 *               bit = 0      bit = 1
 *
 * Why not a balanced tree over all sizes: its log2(n) dependent loads, each with a misprediction, cost 20 ns at 500 free chunks,
 * the whole budget. Why not a plain list per bin: after every other block of one size was freed, each operation would be linear.
 *
 * Invariants, by the number that hr__arena_check returns:
 *   1  chunks of a region follow each other without gap or overlap, and prev and next agree
 *   2  sizes and addresses are multiples of the granularity, and no chunk but an edge is empty
 *   3  no two neighbours are both free, and no two neighbours are both holes
 *   4  every free chunk but the tail is in the bin of its size, reachable from its root, and nothing else is; the tail is free and
 *      lies before a hole that ends its region
 *   5  in a trie, a child agrees with its parent in the bits above its level, and parent links agree
 *   6  a ring holds one size, oldest first, and only its oldest member has a place in the trie
 *   7  a bit is set exactly when its bin is not empty, and the same for the summary
 *   8  free_bytes and free_count are the sum over free chunks
 *   9  every hole is in the list of holes, and nothing else is
 *  10  states are valid, an edge is where a chain starts and nowhere else, and all chunks of a chain name the same region
 *  11  a cursor is 0 or a chunk of a chain */
#include "core/arena/arena.h"

#include "core/base/checked.h"

/* ---- bins ---- */

static inline unsigned bin_of(uint64_t units)
{
	HR_ASSERT(units >> 45 == 0);
	if (units < 32) return (unsigned)units;
	unsigned top = hr__log2(units);
	return 16 + (top - 4) * 16 + (unsigned)((units >> (top - 4)) & 15);
}

/* The bits of [units] that the trie of its bin branches on, shifted to the top of the word. */
static inline uint64_t trie_key(uint64_t units)
{
	if (units < 32) return 0;
	return units << (64 - (hr__log2(units) - 4));
}

static inline uint64_t units_of(const hr__arena *arena, const hr__chunk *chunk)
{
	return chunk->size >> arena->shift;
}

static inline void mark_bin(hr__arena *arena, unsigned bin)
{
	HR_ASSERT(arena->bins[bin] != 0);
	arena->words[bin / 64] |= UINT64_C(1) << (bin % 64);
	arena->summary |= UINT64_C(1) << (bin / 64);
}

static inline void unmark_bin(hr__arena *arena, unsigned bin)
{
	HR_ASSERT(arena->bins[bin] == 0);
	uint64_t word = arena->words[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
	if (!word) arena->summary &= ~(UINT64_C(1) << (bin / 64));
}

/* The first non-empty bin at or above [bin]; HR__ARENA_BINS when there is none. */
static inline unsigned next_bin(const hr__arena *arena, unsigned bin)
{
	HR_ASSERT(bin <= HR__ARENA_BINS);
	unsigned w = bin / 64;
	uint64_t word = arena->words[w] & (~UINT64_C(0) << (bin % 64));
	if (!word) {
		uint64_t rest = w + 1 < 64 ? arena->summary & (~UINT64_C(0) << (w + 1)) : 0;
		if (!rest) return HR__ARENA_BINS;
		w = (unsigned)__builtin_ctzll(rest);
		word = arena->words[w];
	}
	return w * 64 + (unsigned)__builtin_ctzll(word);
}

/* ---- the index: insert, remove, find ---- */

/* Appends [id] after the youngest member of the ring whose oldest member is [oldest]. */
static inline void ring_append(hr__chunk *chunks, hr__chunk_id oldest, hr__chunk_id id)
{
	hr__chunk_id youngest = chunks[oldest].older;
	HR_ASSERT(oldest != id && chunks[oldest].size == chunks[id].size && chunks[oldest].parent != oldest);
	chunks[id].link = oldest;
	chunks[id].older = youngest;
	chunks[id].parent = id; /* marks a ring member that is not a node of the trie */
	chunks[youngest].link = id;
	chunks[oldest].older = id;
}

/* Whether a free chunk lies directly before the hole at the end of its region while the arena has no tail. */
static inline bool can_grow(const hr__arena *arena, const hr__chunk *chunk)
{
	const hr__chunk *next = &arena->table->chunks[chunk->next];
	return hr__chunk_state_of(next) == HR__CHUNK_HOLE && !next->next && !arena->tail;
}

static inline void index_insert(hr__arena *arena, hr__chunk_id id)
{
	hr__chunk *chunks = arena->table->chunks, *chunk = &chunks[id];
	uint64_t size = chunk->size, units = size >> arena->shift;
	unsigned bin = bin_of(units);
	hr__chunk_id at = arena->bins[bin];
	HR_ASSERT(hr__chunk_state_of(chunk) == HR__CHUNK_FREE && id != arena->tail);

	arena->free_bytes += size;
	arena->free_count++;
	if (HR_UNLIKELY(can_grow(arena, chunk))) {
		arena->tail = id;
		return;
	}
	if (at && chunks[at].size == size) {
		ring_append(chunks, at, id);
		return;
	}
	chunk->child[0] = chunk->child[1] = 0;
	chunk->link = chunk->older = id;
	chunk->parent = 0;
	if (!at) {
		arena->bins[bin] = id;
		mark_bin(arena, bin);
		return;
	}
	for (uint64_t key = trie_key(units);; key <<= 1) {
		hr__chunk_id *place = &chunks[at].child[key >> 63];
		if (!*place) {
			*place = id;
			chunk->parent = at;
			return;
		}
		at = *place;
		if (chunks[at].size == size) {
			ring_append(chunks, at, id);
			return;
		}
	}
}

/* Puts [heir] (0 = nothing) in the place of [id] in the trie of its bin. */
static inline void replace_in_parent(hr__arena *arena, hr__chunk_id id, hr__chunk_id heir)
{
	hr__chunk *chunks = arena->table->chunks;
	hr__chunk_id parent = chunks[id].parent;
	HR_ASSERT(parent != id && (!parent || chunks[parent].child[0] == id || chunks[parent].child[1] == id));
	if (parent) {
		chunks[parent].child[chunks[parent].child[1] == id] = heir;
	} else {
		unsigned bin = bin_of(units_of(arena, &chunks[id]));
		arena->bins[bin] = heir;
		if (!heir) unmark_bin(arena, bin);
	}
	if (heir) chunks[heir].parent = parent;
}

static inline void adopt_children(hr__chunk *chunks, hr__chunk_id from, hr__chunk_id to)
{
	for (int side = 0; side < 2; side++) {
		hr__chunk_id child = chunks[from].child[side];
		chunks[to].child[side] = child;
		if (child) chunks[child].parent = to;
	}
}

static inline void index_remove(hr__arena *arena, hr__chunk_id id)
{
	hr__chunk *chunks = arena->table->chunks, *chunk = &chunks[id];
	HR_ASSERT(hr__chunk_state_of(chunk) == HR__CHUNK_FREE && arena->free_count > 0 && arena->free_bytes >= chunk->size);
	arena->free_bytes -= chunk->size;
	arena->free_count--;
	if (HR_UNLIKELY(id == arena->tail)) {
		arena->tail = 0;
		return;
	}
	hr__chunk_id younger = chunk->link;
	if (younger != id) { /* other chunks of the same size: the shape of the trie does not change */
		hr__chunk_id older = chunk->older;
		chunks[older].link = younger;
		chunks[younger].older = older;
		if (chunk->parent == id) return;
		adopt_children(chunks, id, younger);
		replace_in_parent(arena, id, younger);
		return;
	}
	/* The only chunk of its size. Any leaf below it may replace it, because all of them share the bits above it. */
	hr__chunk_id leaf = chunk->child[1] ? chunk->child[1] : chunk->child[0];
	if (!leaf) {
		replace_in_parent(arena, id, 0);
		return;
	}
	while (chunks[leaf].child[0] || chunks[leaf].child[1])
		leaf = chunks[leaf].child[1] ? chunks[leaf].child[1] : chunks[leaf].child[0];
	hr__chunk_id above = chunks[leaf].parent;
	chunks[above].child[chunks[above].child[1] == leaf] = 0;
	adopt_children(chunks, id, leaf);
	replace_in_parent(arena, id, leaf);
}

/* Changes the size of the free chunk [id]. In the common case the chunk is alone in its bin, and the new size belongs to the same
 * bin: then only the size changes. */
static inline void index_resize(hr__arena *arena, hr__chunk_id id, uint64_t size)
{
	hr__chunk *chunks = arena->table->chunks, *chunk = &chunks[id];
	HR_ASSERT(hr__chunk_state_of(chunk) == HR__CHUNK_FREE && size > 0 && (size & ((UINT64_C(1) << arena->shift) - 1)) == 0);
	if (id == arena->tail) {
		arena->free_bytes += size - chunk->size;
		chunk->size = size;
		return;
	}
	unsigned bin = bin_of(units_of(arena, chunk));
	if (!can_grow(arena, chunk) && arena->bins[bin] == id && chunk->link == id && !(chunk->child[0] | chunk->child[1])) {
		unsigned new_bin = bin_of(size >> arena->shift);
		if (HR_LIKELY(bin == new_bin || !arena->bins[new_bin])) {
			arena->free_bytes += size - chunk->size;
			chunk->size = size;
			if (bin == new_bin) return;
			arena->bins[bin] = 0;
			unmark_bin(arena, bin);
			arena->bins[new_bin] = id;
			mark_bin(arena, new_bin);
			return;
		}
	}
	index_remove(arena, id);
	chunk->size = size;
	index_insert(arena, id);
}

/* Reinserts a free chunk whose next neighbour changed: it may have become the tail, or stopped being the tail. */
static void index_again(hr__arena *arena, hr__chunk_id id)
{
	index_remove(arena, id);
	index_insert(arena, id);
}

/* The smallest chunk in the trie below [at]. It is on the leftmost path, though not always at the end of that path. */
static inline hr__chunk_id smallest_below(const hr__chunk *chunks, hr__chunk_id at)
{
	hr__chunk_id best = at;
	while ((at = chunks[at].child[0] ? chunks[at].child[0] : chunks[at].child[1]) != 0)
		if (chunks[at].size < chunks[best].size) best = at;
	return best;
}

/* The smallest chunk of at least [size] bytes in the trie at [at]; 0 when all are smaller. Follows the bits of [size]. If no chunk
 * on that path is large enough, the last subtree to the right of the path holds the next larger sizes. */
static inline hr__chunk_id smallest_at_least(const hr__chunk *chunks, hr__chunk_id at, uint64_t size, uint64_t key)
{
	hr__chunk_id best = 0, right = 0;
	uint64_t best_size = UINT64_MAX;
	HR_ASSERT(at != 0);
	for (; at; key <<= 1) {
		uint64_t here = chunks[at].size;
		if (here >= size && here < best_size) {
			best = at;
			best_size = here;
			if (here == size) return best;
		}
		hr__chunk_id larger = chunks[at].child[1];
		at = chunks[at].child[key >> 63];
		if (larger && larger != at) right = larger;
	}
	if (right) {
		hr__chunk_id other = smallest_below(chunks, right);
		if (chunks[other].size < best_size) best = other;
	}
	return best;
}

/* The smallest chunk of at least [size] bytes in the bins; 0 when there is none. */
static inline hr__chunk_id best_in_bins(const hr__arena *arena, uint64_t size)
{
	const hr__chunk *chunks = arena->table->chunks;
	uint64_t units = size >> arena->shift;
	unsigned bin = bin_of(units);
	hr__chunk_id root = arena->bins[bin];
	if (root) {
		hr__chunk_id found = smallest_at_least(chunks, root, size, trie_key(units));
		if (found) return found;
	}
	bin = next_bin(arena, bin + 1);
	return bin == HR__ARENA_BINS ? 0 : smallest_below(chunks, arena->bins[bin]);
}

static inline hr__chunk_id index_find(const hr__arena *arena, uint64_t size)
{
	const hr__chunk *chunks = arena->table->chunks;
	hr__chunk_id best = best_in_bins(arena, size);
	uint64_t tail = chunks[arena->tail].size, most = tail + arena->tail_growth; /* record 0 has size 0 */
	if (HR_LIKELY(best && (most < size || most >= chunks[best].size))) return best;
	return tail >= size ? arena->tail : 0;
}

/* ---- chains ---- */

/* Splits the first [size] bytes of [id] off into a new record and returns it: same state, streams and region, in no index. The
 * address of [id] moves up. Its size does not change: the caller sets it, because only the caller knows which index [id] is in. */
static inline hr__chunk_id cut_front(hr__arena *arena, hr__chunk_id id, uint64_t size)
{
	hr__chunk_id front = hr__chunk_new(arena->table);
	hr__chunk *chunks = arena->table->chunks, *rest = &chunks[id], *chunk = &chunks[front];
	uint64_t address = hr__chunk_address(rest);
	HR_ASSERT(size > 0 && size < rest->size);
	hr__store_relaxed(&chunk->address, address);
	chunk->size = size;
	chunk->epochs = rest->epochs;
	chunk->streams = rest->streams;
	chunk->region = rest->region;
	hr__store_relaxed(&chunk->state, hr__load_relaxed(&rest->state));
	chunk->prev = rest->prev;
	chunk->next = id;
	chunks[rest->prev].next = front;
	rest->prev = front;
	hr__store_relaxed(&rest->address, address + size);
	return front;
}

/* Called before the record [id] is dropped. [heir] is the chunk that takes over its bytes. */
static __attribute__((noinline, cold)) void move_cursors(hr__arena *arena, hr__chunk_id id, hr__chunk_id heir)
{
	for (int i = 0; i < 2; i++)
		if (arena->cursor[i] == id) arena->cursor[i] = heir;
}

/* Removes [id] from its chain. Its bytes go to the neighbour [into], whose size the caller sets. */
static inline void chain_remove(hr__arena *arena, hr__chunk_id id, hr__chunk *into)
{
	hr__chunk *chunks = arena->table->chunks, *chunk = &chunks[id];
	HR_ASSERT(into == &chunks[chunk->prev] || into == &chunks[chunk->next]);
	chunks[chunk->prev].next = chunk->next;
	chunks[chunk->next].prev = chunk->prev; /* may write record 0, whose links are never read */
	into->epochs = hr__epochs_join(into->streams, into->epochs, chunk->streams, chunk->epochs);
	into->streams |= chunk->streams;
	if (HR_UNLIKELY(arena->cursors)) move_cursors(arena, id, (hr__chunk_id)(into - chunks));
	hr__chunk_drop(arena->table, id);
}

/* Record 0 has state 0, so it never matches a state that callers test for. */
static inline bool is_state(const hr__arena *arena, hr__chunk_id id, enum hr__chunk_state state)
{
	return hr__chunk_state_of(&arena->table->chunks[id]) == state;
}

static void hole_insert(hr__arena *arena, hr__chunk_id id)
{
	hr__chunk *chunks = arena->table->chunks;
	HR_ASSERT(id != arena->tail && id != arena->holes && chunks[id].size > 0);
	hr__store_relaxed(&chunks[id].state, HR__CHUNK_HOLE);
	chunks[id].streams = 0;
	chunks[id].epochs = 0;
	chunks[id].child[0] = 0;
	chunks[id].child[1] = arena->holes;
	if (arena->holes) chunks[arena->holes].child[0] = id;
	arena->holes = id;
}

static void hole_remove(hr__arena *arena, hr__chunk_id id)
{
	hr__chunk *chunks = arena->table->chunks;
	hr__chunk_id before = chunks[id].child[0], after = chunks[id].child[1];
	HR_ASSERT(is_state(arena, id, HR__CHUNK_HOLE) && (before || arena->holes == id));
	if (before) chunks[before].child[1] = after;
	else arena->holes = after;
	if (after) chunks[after].child[0] = before;
}

/* ---- operations ---- */

void hr__arena_init(hr__arena *arena, hr__chunk_table *table, uint64_t granularity)
{
	HR_ASSERT(hr__is_power_of_two(granularity));
	*arena = (hr__arena){ .table = table, .shift = hr__log2(granularity), .page = UINT64_MAX };
}

hr__chunk_id hr__arena_add_region(hr__arena *arena, uint64_t address, uint64_t size, uint16_t region)
{
	hr__chunk_id edge = hr__chunk_new(arena->table), id = hr__chunk_new(arena->table);
	hr__chunk *chunks = arena->table->chunks;
	HR_ASSERT(size > 0 && ((address | size) & ((UINT64_C(1) << arena->shift) - 1)) == 0);
	hr__store_relaxed(&chunks[edge].address, address);
	hr__store_relaxed(&chunks[edge].state, HR__CHUNK_EDGE);
	hr__store_relaxed(&chunks[id].address, address);
	chunks[edge].size = 0;
	chunks[edge].prev = 0;
	chunks[edge].next = id;
	chunks[id].size = size;
	chunks[id].prev = edge;
	chunks[id].next = 0;
	chunks[edge].region = chunks[id].region = region;
	hole_insert(arena, id);
	return edge;
}

void hr__arena_remove_region(hr__arena *arena, hr__chunk_id edge)
{
	hr__chunk_id hole = arena->table->chunks[edge].next;
	HR_ASSERT(is_state(arena, edge, HR__CHUNK_EDGE) && is_state(arena, hole, HR__CHUNK_HOLE) && !arena->table->chunks[hole].next);
	hole_remove(arena, hole);
	move_cursors(arena, hole, 0);
	move_cursors(arena, edge, 0);
	hr__chunk_drop(arena->table, hole);
	hr__chunk_drop(arena->table, edge);
}

/* Inserts [id], which is in no index, into the index of free chunks and merges it with free neighbours. The merged chunk keeps a
 * neighbour's record, and so in most cases the neighbour's place in the index. */
static inline hr__chunk_id join_free(hr__arena *arena, hr__chunk_id id)
{
	hr__chunk *chunks = arena->table->chunks, *chunk = &chunks[id];
	hr__chunk_id next = chunk->next, prev = chunk->prev;
	uint64_t size = chunk->size;
	HR_ASSERT(!is_state(arena, id, HR__CHUNK_FREE) || id != arena->tail);
	bool next_free = is_state(arena, next, HR__CHUNK_FREE);
	if (is_state(arena, prev, HR__CHUNK_FREE)) {
		chain_remove(arena, id, &chunks[prev]);
		if (next_free) {
			size += chunks[next].size;
			index_remove(arena, next);
			chain_remove(arena, next, &chunks[prev]);
		}
		index_resize(arena, prev, chunks[prev].size + size);
		return prev;
	}
	if (next_free) {
		hr__store_relaxed(&chunks[next].address, hr__chunk_address(chunk));
		chain_remove(arena, id, &chunks[next]);
		index_resize(arena, next, chunks[next].size + size);
		return next;
	}
	hr__store_relaxed(&chunk->state, HR__CHUNK_FREE);
	index_insert(arena, id);
	return id;
}

hr__chunk_id hr__arena_map(hr__arena *arena, hr__chunk_id hole, uint64_t address, uint64_t size)
{
	hr__chunk *chunks = arena->table->chunks, *chunk = &chunks[hole];
	HR_ASSERT(is_state(arena, hole, HR__CHUNK_HOLE) && address >= hr__chunk_address(chunk));
	HR_ASSERT(size > 0 && size <= hr__chunk_end(chunk) - address);
	uint64_t before = address - hr__chunk_address(chunk);
	if (before) {
		hr__chunk_id left = chunk->prev;
		hole_insert(arena, cut_front(arena, hole, before));
		chunk->size -= before;
		if (left == arena->tail) index_again(arena, left); /* the hole after it no longer reaches the end of the region */
	}
	if (size == chunk->size) {
		hole_remove(arena, hole);
		hr__chunk_id id = join_free(arena, hole);
		if (id == arena->tail) index_again(arena, id); /* it reaches the end of the region, so it is no longer the tail */
		return id;
	}
	hr__chunk_id id = cut_front(arena, hole, size);
	chunk->size -= size;
	return join_free(arena, id);
}

hr__chunk_id hr__arena_unmap(hr__arena *arena, hr__chunk_id id, uint64_t address, uint64_t size)
{
	hr__chunk *chunks = arena->table->chunks, *chunk = &chunks[id];
	HR_ASSERT(is_state(arena, id, HR__CHUNK_FREE) && address >= hr__chunk_address(chunk));
	HR_ASSERT(size > 0 && size <= hr__chunk_end(chunk) - address);
	uint64_t before = address - hr__chunk_address(chunk), whole = chunk->size;
	index_remove(arena, id);
	if (before) {
		index_insert(arena, cut_front(arena, id, before));
		chunk->size = whole -= before;
	}
	if (size < whole) {
		hr__chunk_id rest = id;
		id = cut_front(arena, rest, size);
		chunk->size -= size;
		index_insert(arena, rest);
		chunk = &chunks[id];
	}
	hr__chunk_id next = chunk->next, prev = chunk->prev;
	if (is_state(arena, next, HR__CHUNK_HOLE)) {
		chunk->size += chunks[next].size;
		hole_remove(arena, next);
		chain_remove(arena, next, chunk);
	}
	if (is_state(arena, prev, HR__CHUNK_HOLE)) {
		chunks[prev].size += chunk->size;
		chain_remove(arena, id, &chunks[prev]);
		hole_remove(arena, id = prev);
	}
	hole_insert(arena, id);
	hr__chunk_id left = chunks[id].prev;
	if (is_state(arena, left, HR__CHUNK_FREE) && can_grow(arena, &chunks[left])) index_again(arena, left);
	return id;
}

/* Bytes to skip at the start of a chunk to reach a multiple of [alignment]; UINT64_MAX when [size] bytes do not fit after that. */
static inline uint64_t padding_for(const hr__chunk *chunk, uint64_t size, uint64_t alignment)
{
	uint64_t aligned;
	if (!hr__align_up(hr__chunk_address(chunk), alignment, &aligned)) return UINT64_MAX;
	uint64_t padding = aligned - hr__chunk_address(chunk);
	return padding <= chunk->size && size <= chunk->size - padding ? padding : UINT64_MAX;
}

/* Finds a chunk for an alignment above the granularity. First tries the best fit, in case it is aligned; then the best fit with
 * room for any padding; then every free chunk that is large enough, so that no place is missed. */
static hr__chunk_id find_aligned(const hr__arena *arena, uint64_t size, uint64_t alignment)
{
	const hr__chunk *chunks = arena->table->chunks;
	hr__chunk_id id = index_find(arena, size);
	if (!id || padding_for(&chunks[id], size, alignment) != UINT64_MAX) return id;
	uint64_t roomy, best_size = UINT64_MAX;
	if (hr__add(size, alignment - (UINT64_C(1) << arena->shift), &roomy) && (id = index_find(arena, roomy)) != 0) return id;
	hr__chunk_id best = 0;
	for (id = hr__arena_first_free(arena, size); id; id = hr__arena_next_free(arena, id)) {
		if (chunks[id].size >= best_size || padding_for(&chunks[id], size, alignment) == UINT64_MAX) continue;
		best = id;
		best_size = chunks[id].size;
	}
	return best;
}

/* Bytes to leave free before a block of [size] bytes, so that the most whole pages stay free in the chunk. 0 for a chunk that can
 * grow. */
static __attribute__((noinline)) uint64_t padding_for_pages(const hr__arena *arena, const hr__chunk *chunk, uint64_t size)
{
	uint64_t begin = hr__chunk_address(chunk), end = hr__chunk_end(chunk), page = arena->page;
	HR_ASSERT(size < chunk->size && page >> arena->shift);
	if (can_grow(arena, chunk)) return 0;
	uint64_t behind = end / page > (begin + size + page - 1) / page ? end / page - (begin + size + page - 1) / page : 0;
	uint64_t before = (end - size) / page > (begin + page - 1) / page ? (end - size) / page - (begin + page - 1) / page : 0;
	return before > behind ? chunk->size - size : 0;
}

hr__chunk_id hr__arena_take(hr__arena *arena, uint64_t size, uint64_t alignment)
{
	hr__chunk *chunks = arena->table->chunks;
	bool plain = alignment >> arena->shift <= 1;
	HR_ASSERT(!alignment || hr__is_power_of_two(alignment));
	HR_ASSERT(size > 0 && (size & ((UINT64_C(1) << arena->shift) - 1)) == 0);
	hr__chunk_id id = plain ? index_find(arena, size) : find_aligned(arena, size, alignment);
	if (!id) return 0;
	hr__chunk *chunk = &chunks[id];
	uint64_t padding = plain ? 0 : padding_for(chunk, size, alignment), whole = chunk->size;
	if (HR_UNLIKELY(size >= arena->page && plain && size < whole)) padding = padding_for_pages(arena, chunk, size);
	if (HR_UNLIKELY(padding)) {
		index_remove(arena, id);
		index_insert(arena, cut_front(arena, id, padding));
		chunk->size = whole -= padding;
		index_insert(arena, id);
	}
	if (size < whole) {
		hr__chunk_id rest = id;
		id = cut_front(arena, rest, size);
		index_resize(arena, rest, whole - size);
	} else {
		index_remove(arena, id);
	}
	hr__store_relaxed(&chunks[id].state, HR__CHUNK_IN_USE);
	HR_ASSERT(chunks[id].size == size && (!alignment || hr__chunk_address(&chunks[id]) % alignment == 0));
	return id;
}

static bool covers(const hr__chunk *chunk, uint64_t address, uint64_t size)
{
	return address >= hr__chunk_address(chunk) && address - hr__chunk_address(chunk) <= chunk->size &&
	       size <= hr__chunk_end(chunk) - address;
}

hr__chunk_id hr__arena_take_at(hr__arena *arena, uint64_t address, uint64_t size)
{
	hr__chunk *chunks = arena->table->chunks;
	HR_ASSERT(size > 0 && ((size | address) & ((UINT64_C(1) << arena->shift) - 1)) == 0);
	hr__chunk_id id = arena->tail && covers(&chunks[arena->tail], address, size) ? arena->tail : hr__arena_first_free(arena, size);
	while (id && !covers(&chunks[id], address, size)) id = hr__arena_next_free(arena, id);
	if (!id) return 0;
	hr__chunk *chunk = &chunks[id];
	uint64_t before = address - hr__chunk_address(chunk), whole = chunk->size - before;
	index_remove(arena, id);
	if (before) {
		index_insert(arena, cut_front(arena, id, before));
		chunk->size = whole;
	}
	if (size < whole) {
		hr__chunk_id rest = id;
		id = cut_front(arena, rest, size);
		chunk->size = whole - size;
		index_insert(arena, rest);
	}
	hr__store_relaxed(&chunks[id].state, HR__CHUNK_IN_USE);
	HR_ASSERT(chunks[id].size == size && hr__chunk_address(&chunks[id]) == address);
	return id;
}

void hr__arena_exchange(hr__arena *arena, hr__chunk_id left, hr__chunk_id right)
{
	hr__chunk *chunks = arena->table->chunks, *first = &chunks[left], *second = &chunks[right];
	hr__chunk_id before = first->prev, behind = second->next;
	uint64_t address = hr__chunk_address(first);
	HR_ASSERT(first->next == right && is_state(arena, left, HR__CHUNK_IN_USE) && is_state(arena, right, HR__CHUNK_IN_USE));
	hr__store_relaxed(&second->address, address);
	hr__store_relaxed(&first->address, address + second->size);
	chunks[before].next = right;
	chunks[behind].prev = left; /* may write record 0, whose links are never read */
	second->prev = before;
	second->next = left;
	first->prev = right;
	first->next = behind;
}

hr__chunk_id hr__arena_give(hr__arena *arena, hr__chunk_id id)
{
	HR_ASSERT(is_state(arena, id, HR__CHUNK_IN_USE) || is_state(arena, id, HR__CHUNK_CACHED));
	return join_free(arena, id);
}

/* Reads lock-guarded fields without the lock, on purpose. Every number is checked before it is followed and the path is bounded, so
 * a torn read yields only a wrong answer, which the caller discards. */
__attribute__((no_sanitize("thread"))) uint64_t hr__arena_largest(const hr__arena *arena)
{
	const hr__chunk_table *table = arena->table;
	hr__chunk_id tail = arena->tail;
	uint64_t summary = arena->summary, largest = tail < table->committed ? table->chunks[tail].size : 0;
	if (!summary) return largest;
	unsigned w = hr__log2(summary);
	uint64_t word = w < HR__ARENA_WORDS ? arena->words[w] : 0;
	if (!word) return largest;
	hr__chunk_id at = arena->bins[w * 64 + hr__log2(word)];
	for (int depth = 0; at && at < table->committed && depth < 64; depth++) {
		const hr__chunk *chunk = &table->chunks[at];
		if (chunk->size > largest) largest = chunk->size;
		at = chunk->child[1] ? chunk->child[1] : chunk->child[0];
	}
	return largest;
}

/* ---- walking ---- */

/* The trie node of the ring that [id] is in. */
static hr__chunk_id ring_leader(const hr__chunk *chunks, hr__chunk_id id)
{
	while (chunks[id].parent == id) id = chunks[id].link;
	return id;
}

static hr__chunk_id first_from(const hr__arena *arena, unsigned bin)
{
	if (bin < HR__ARENA_BINS) bin = next_bin(arena, bin);
	return bin >= HR__ARENA_BINS ? arena->tail : arena->bins[bin];
}

hr__chunk_id hr__arena_first_free(const hr__arena *arena, uint64_t size)
{
	return first_from(arena, bin_of(size >> arena->shift));
}

/* The chunk after [after] in the trie of its bin, rings included; 0 after the last. */
static hr__chunk_id next_in_bin(const hr__chunk *chunks, hr__chunk_id after)
{
	hr__chunk_id younger = chunks[after].link;
	if (chunks[younger].parent == younger) return younger; /* the next member of the ring */
	hr__chunk_id node = ring_leader(chunks, after);
	for (int side = 0; side < 2; side++)
		if (chunks[node].child[side]) return chunks[node].child[side];
	for (hr__chunk_id up = chunks[node].parent; up; node = up, up = chunks[up].parent)
		if (chunks[up].child[0] == node && chunks[up].child[1]) return chunks[up].child[1];
	return 0;
}

hr__chunk_id hr__arena_next_free(const hr__arena *arena, hr__chunk_id after)
{
	HR_ASSERT(hr__chunk_state_of(&arena->table->chunks[after]) == HR__CHUNK_FREE);
	const hr__chunk *chunks = arena->table->chunks;
	if (after == arena->tail) return 0; /* the tail is always last */
	hr__chunk_id next = next_in_bin(chunks, after);
	return next ? next : first_from(arena, bin_of(units_of(arena, &chunks[after])) + 1);
}

/* ---- checking ---- */

struct totals {
	uint64_t free_bytes;
	uint32_t free_count, holes, cursors;
};

static int check_chain(const hr__arena *arena, hr__chunk_id first, struct totals *totals)
{
	const hr__chunk *chunks = arena->table->chunks;
	uint64_t mask = (UINT64_C(1) << arena->shift) - 1;
	if (chunks[first].prev) return 1;
	if (hr__chunk_state_of(&chunks[first]) != HR__CHUNK_EDGE || chunks[first].size) return 10;
	for (hr__chunk_id prev = first, id = chunks[first].next; id; prev = id, id = chunks[id].next) {
		const hr__chunk *chunk = &chunks[id];
		enum hr__chunk_state state = hr__chunk_state_of(chunk);
		if (chunk->prev != prev || hr__chunk_end(&chunks[prev]) != hr__chunk_address(chunk)) return 1;
		if (!chunk->size || ((hr__chunk_address(chunk) | chunk->size) & mask)) return 2;
		if (state < HR__CHUNK_FREE || state > HR__CHUNK_HOLE || chunk->region != chunks[first].region) return 10;
		if (state == hr__chunk_state_of(&chunks[prev]) && (state == HR__CHUNK_FREE || state == HR__CHUNK_HOLE)) return 3;
		for (int i = 0; i < 2; i++) totals->cursors += arena->cursor[i] == id;
		if (state == HR__CHUNK_HOLE) totals->holes++;
		if (state != HR__CHUNK_FREE) continue;
		totals->free_bytes += chunk->size;
		totals->free_count++;
	}
	return 0;
}

/* Checks one ring and adds the number of its members to *count. */
static int check_ring(const hr__arena *arena, hr__chunk_id leader, uint32_t *count)
{
	const hr__chunk *chunks = arena->table->chunks;
	hr__chunk_id id = leader;
	do {
		const hr__chunk *chunk = &chunks[id];
		if (chunk->size != chunks[leader].size || chunks[chunk->link].older != id) return 6;
		if ((chunk->parent == id) != (id != leader)) return 6;
		if (hr__chunk_state_of(chunk) != HR__CHUNK_FREE) return 4;
		if (++*count > arena->free_count) return 4;
		id = chunk->link;
	} while (id != leader);
	return 0;
}

/* Bits of [units] that lead from the root of its bin to depth [depth]. */
static uint64_t prefix_of(uint64_t units, unsigned depth)
{
	return depth ? trie_key(units) >> (64 - depth) : 0;
}

static unsigned depth_of(const hr__chunk *chunks, hr__chunk_id id)
{
	unsigned depth = 0;
	while ((id = chunks[id].parent) != 0 && depth < 64) depth++;
	return depth;
}

static int check_node(const hr__arena *arena, unsigned bin, hr__chunk_id id)
{
	const hr__chunk *chunks = arena->table->chunks;
	uint64_t units = units_of(arena, &chunks[id]);
	if (bin_of(units) != bin) return 4;
	unsigned depth = depth_of(chunks, id);
	if (depth >= 64) return 5;
	for (unsigned side = 0; side < 2; side++) {
		hr__chunk_id child = chunks[id].child[side];
		if (!child) continue;
		if (chunks[child].parent != id) return 5;
		if (prefix_of(units_of(arena, &chunks[child]), depth + 1) != ((prefix_of(units, depth) << 1) | side)) return 5;
	}
	return 0;
}

static int check_index(const hr__arena *arena)
{
	const hr__chunk *chunks = arena->table->chunks;
	uint32_t seen = 0;
	for (unsigned bin = 0; bin < HR__ARENA_BINS; bin++) {
		bool bit = (arena->words[bin / 64] >> (bin % 64)) & 1;
		if (bit != (arena->bins[bin] != 0)) return 7;
		if (arena->bins[bin] && chunks[arena->bins[bin]].parent) return 5;
	}
	for (unsigned w = 0; w < HR__ARENA_WORDS; w++)
		if (((arena->summary >> w) & 1) != (arena->words[w] != 0)) return 7;
	if (arena->tail) {
		const hr__chunk *tail = &chunks[arena->tail], *hole = &chunks[tail->next];
		if (hr__chunk_state_of(tail) != HR__CHUNK_FREE || hr__chunk_state_of(hole) != HR__CHUNK_HOLE || hole->next) return 4;
		seen++;
	}
	for (unsigned bin = 0; bin < HR__ARENA_BINS; bin++) {
		for (hr__chunk_id id = arena->bins[bin]; id; id = next_in_bin(chunks, id)) {
			if (chunks[id].parent == id) continue; /* counted with its ring */
			int broken = check_node(arena, bin, id);
			if (!broken) broken = check_ring(arena, id, &seen);
			if (broken) return broken;
		}
	}
	return seen == arena->free_count ? 0 : 4;
}

static int check_holes(const hr__arena *arena, uint32_t expected)
{
	const hr__chunk *chunks = arena->table->chunks;
	uint32_t seen = 0;
	for (hr__chunk_id id = arena->holes, before = 0; id; before = id, id = chunks[id].child[1])
		if (hr__chunk_state_of(&chunks[id]) != HR__CHUNK_HOLE || chunks[id].child[0] != before || ++seen > expected) return 9;
	return seen == expected ? 0 : 9;
}

int hr__arena_check(const hr__arena *arena, const hr__chunk_id *regions, uint32_t count)
{
	struct totals totals = { 0 };
	for (uint32_t i = 0; i < count; i++) {
		int broken = check_chain(arena, regions[i], &totals);
		if (broken) return broken;
	}
	if (totals.free_bytes != arena->free_bytes || totals.free_count != arena->free_count) return 8;
	if (totals.cursors != (uint32_t)(arena->cursor[0] != 0) + (arena->cursor[1] != 0)) return 11;
	int broken = check_index(arena);
	return broken ? broken : check_holes(arena, totals.holes);
}
