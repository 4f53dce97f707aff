/* arena.h - best fit over address ranges. The arena owns no memory and touches none, so a 50 GB trace replays on a laptop.
 *
 * A region is an address range. It starts as one hole (addresses without memory). Mapping turns part of a hole into free memory;
 * unmapping turns it back. Taking splits a free chunk exactly to size; giving a chunk back merges it with free neighbours at once.
 * A request gets the smallest free chunk that holds it and, among equal sizes, the one that has been free longest, because that one
 * is the most likely to be idle on every stream.
 *
 * One free chunk is special: the tail, which lies before the hole at the end of a region. Mapping more memory extends it, so best
 * fit compares it by the size that it can grow to. Otherwise a tail that is small at the moment would be the best fit for small
 * requests, and their blocks would keep the region from growing in one piece (the serve trace then needs 1.19 times its peak
 * instead of 1.08). The result is that of best fit over the whole limit, with memory mapped only where it was needed.
 *
 * Cost: taking and giving follow at most one path through a trie. Its depth is at most log2(region size / granularity) - 4, in
 * practice 0 to 3. Records are 64 bytes per chunk and contain the index.
 *
 * Not thread-safe: the owner holds a lock. No function here fails: the caller ensures beforehand (hr__chunk_table_ensure) the
 * number of records that the comment of each function gives. */
#ifndef HR_ARENA_ARENA_H
#define HR_ARENA_ARENA_H

#include "core/arena/chunk.h"

/* Sizes are in units of the granularity: 1 to 31 have a bin each; above that, 16 bins for each doubling up to 2^44 units. */
#define HR__ARENA_BINS (16u + 41u * 16u)
#define HR__ARENA_WORDS ((HR__ARENA_BINS + 63u) / 64u)

typedef struct hr__arena {
	hr__chunk_table *table;  /* immutable */
	uint32_t shift;          /* log2 of the granularity; immutable */
	hr__chunk_id tail;       /* the free chunk that can grow, 0 when there is none; not in a bin */
	uint64_t page;           /* blocks of this size and more are cut from the end of a chunk where that leaves more whole pages
	                          * free, for owners that can make free pages contiguous by remapping; UINT64_MAX = no difference. Set
	                          * by the owner */
	uint64_t tail_growth;    /* bytes by which the tail may still be extended; set by the owner */
	hr__chunk_id holes;      /* first of the doubly linked list of holes (child[0] before, child[1] after) */
	uint32_t free_count;     /* free chunks, including the tail */
	uint64_t free_bytes;     /* bytes of the free chunks */
	union {
		hr__chunk_id cursor[2]; /* see "Walking with pauses" below; 0 = unused */
		uint64_t cursors;       /* both cursors: one load on the hot path */
	};
	uint64_t summary;                /* bit w is set when words[w] is not 0 */
	uint64_t words[HR__ARENA_WORDS]; /* bit b is set when bin b is not empty */
	hr__chunk_id bins[HR__ARENA_BINS]; /* root of each bin's trie */
} hr__arena;

/* [granularity] is a power of two. */
void hr__arena_init(hr__arena *arena, hr__chunk_table *table, uint64_t granularity);

/* Adds a region that is one hole and returns its edge, whose [next] is the first chunk. Address and size are multiples of the
 * granularity. Uses 2 records. */
hr__chunk_id hr__arena_add_region(hr__arena *arena, uint64_t address, uint64_t size, uint16_t region);

/* Removes a region, which must be a single hole. */
void hr__arena_remove_region(hr__arena *arena, hr__chunk_id edge);

/* Turns [size] bytes at [address], inside [hole], into free memory and merges them with free neighbours. Returns the chunk that now
 * contains them. Uses 2 records. */
hr__chunk_id hr__arena_map(hr__arena *arena, hr__chunk_id hole, uint64_t address, uint64_t size);

/* Turns [size] bytes at [address], inside the free chunk [id], into a hole and merges it with adjacent holes. Returns the hole.
 * Uses 2 records. */
hr__chunk_id hr__arena_unmap(hr__arena *arena, hr__chunk_id id, uint64_t address, uint64_t size);

/* Takes exactly [size] bytes (a multiple of the granularity, not 0) at a multiple of [alignment] (a power of two) from the best
 * free chunk. Returns 0 when no free chunk fits, and also when the extended tail would be the best fit: the caller then extends the
 * tail, or sets tail_growth to 0. Otherwise finds a place whenever there is one. The returned chunk has state HR__CHUNK_IN_USE and
 * the streams and epochs of the free chunk it was part of; its ledger fields are undefined. Uses 2 records. */
hr__chunk_id hr__arena_take(hr__arena *arena, uint64_t size, uint64_t alignment);

/* Takes exactly the [size] bytes at [address]; 0 when they are not free. Searches the free chunks of that size and more linearly.
 * Uses 2 records. */
hr__chunk_id hr__arena_take_at(hr__arena *arena, uint64_t address, uint64_t size);

/* Swaps two adjacent chunks that are in use: [right] then begins where [left] began. [left] is the one at the lower address. */
void hr__arena_exchange(hr__arena *arena, hr__chunk_id left, hr__chunk_id right);

/* Gives a chunk back. Its streams and epochs must be set; merging combines those of the neighbours. Returns the free chunk that now
 * contains it. */
hr__chunk_id hr__arena_give(hr__arena *arena, hr__chunk_id id);

/* Bytes of the largest free chunk, 0 when there is none. Safe to call without the owner's lock: if the arena changes during the
 * call, the result is meaningless, which the caller detects by the lock's version. */
uint64_t hr__arena_largest(const hr__arena *arena);

/* Iterates over the free chunks in order of bins; ends with 0. Within a bin the order is that of the trie, not of size. Starts at
 * the bin of [size], so it skips smaller bins but may return a few chunks of that bin that are smaller than [size]; 0 means all.
 * The arena must not change during the iteration. */
hr__chunk_id hr__arena_first_free(const hr__arena *arena, uint64_t size);
hr__chunk_id hr__arena_next_free(const hr__arena *arena, hr__chunk_id after);

/* Walking with pauses. A walk along a chain (next) that releases the owner's lock on the way first stores a chunk of the chain in a
 * cursor. Whatever changes meanwhile, the cursor keeps naming a chunk of the same chain: when the chunk's record is dropped, the
 * cursor moves to the neighbour that took over its bytes; when the region is removed, the cursor becomes 0. The chunk need not be
 * at the address where the walk stopped; the walk finds that address from there. */

/* Number of the first violated invariant (listed at the top of arena.c), 0 when all hold. [regions] holds the edges of all [count]
 * regions. Visits every chunk. */
int hr__arena_check(const hr__arena *arena, const hr__chunk_id *regions, uint32_t count);

#endif
