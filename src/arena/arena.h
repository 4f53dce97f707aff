/* arena.h - best fit over ranges of addresses. Owns no memory and touches none: a 50 GB trace runs on a laptop.
 *
 * A region is a range of addresses. It starts as one hole; parts of it are mapped (they become free) and unmapped again. Free chunks
 * are taken, split exactly to size, and given back, when they merge at once with free neighbours. Requests get the smallest free chunk
 * that holds them, and among equals the one that has been free longest: it is the likeliest to be idle on every stream.
 *
 * One free chunk is different: the tail, which lies before the hole at the end of a region. It can be extended by mapping more, so in
 * the comparison it counts as large as it can become. Otherwise a tail that happens to be small would be the best fit for small
 * requests, and what lives there would stop the region from growing in one piece (the serve trace then needs 1.19 times its peak
 * instead of 1.08). The result is what best fit over the whole limit would do, with memory behind it only where it was needed.
 *
 * Costs: taking and giving follow at most one path through a trie, whose depth is at most log2 of the region's size over the
 * granularity less 4, in practice 0 to 3. Records are 64 bytes per chunk and the index is inside them.
 *
 * Not thread-safe: the owner has a lock. Nothing here fails: records are ensured before (hr__chunk_table_ensure), see each function. */
#ifndef HR_ARENA_ARENA_H
#define HR_ARENA_ARENA_H

#include "arena/chunk.h"

/* Sizes in units of granularity: 1 to 31 have a bin each, then 16 bins for each doubling up to 2^44 units. */
#define HR__ARENA_BINS (16u + 41u * 16u)
#define HR__ARENA_WORDS ((HR__ARENA_BINS + 63u) / 64u)

typedef struct hr__arena {
	hr__chunk_table *table;  /* immutable */
	uint32_t shift;          /* log2 of the granularity; immutable */
	hr__chunk_id tail;       /* the free chunk that can grow, 0 when there is none; not in a bin */
	uint64_t page;           /* blocks of that size and more are cut from the end of a chunk where that leaves more whole pages free, for
	                          * owners who can put free pages side by side; UINT64_MAX = it makes no difference. Set by the owner */
	uint64_t tail_growth;    /* bytes by which the tail may still be extended; set by the owner */
	hr__chunk_id holes;      /* first of the doubly linked list of holes (child[0] before, child[1] after) */
	uint32_t free_count;     /* free chunks, the tail included, */
	uint64_t free_bytes;     /* and their bytes */
	union {
		hr__chunk_id cursor[2]; /* see "walking with pauses" below; 0 = nobody is there */
		uint64_t cursors;       /* both: the hot path looks at them once */
	};
	uint64_t summary;                /* bit w is set when words[w] is not 0 */
	uint64_t words[HR__ARENA_WORDS]; /* bit b is set when bin b is not empty */
	hr__chunk_id bins[HR__ARENA_BINS]; /* root of each bin's trie */
} hr__arena;

/* [granularity] is a power of two. */
void hr__arena_init(hr__arena *arena, hr__chunk_table *table, uint64_t granularity);

/* Adds a region, all of it a hole, and returns its edge, whose [next] is the first chunk. Address and size are multiples of the
 * granularity. 2 records. */
hr__chunk_id hr__arena_add_region(hr__arena *arena, uint64_t address, uint64_t size, uint16_t region);

/* Removes a region that is one hole from end to end. */
void hr__arena_remove_region(hr__arena *arena, hr__chunk_id edge);

/* Makes [size] bytes at [address], inside [hole], free; merges with free neighbours. Returns the chunk they are in now. 2 records. */
hr__chunk_id hr__arena_map(hr__arena *arena, hr__chunk_id hole, uint64_t address, uint64_t size);

/* Makes [size] bytes at [address], inside the free chunk [id], a hole; merges with holes beside it. Returns the hole. 2 records. */
hr__chunk_id hr__arena_unmap(hr__arena *arena, hr__chunk_id id, uint64_t address, uint64_t size);

/* Takes exactly [size] bytes (a multiple of the granularity, not 0) at a multiple of [alignment] (a power of two) from the best free
 * chunk: 0 when there is none, and also when the tail, once extended, would be the best: extend it, or set tail_growth to 0. The chunk comes back in state HR__CHUNK_IN_USE with the streams and epoch of the free chunk it was
 * part of; the ledger fields are garbage. 2 records. Finds a place whenever there is one. */
hr__chunk_id hr__arena_take(hr__arena *arena, uint64_t size, uint64_t alignment);

/* Takes exactly the [size] bytes at [address]; 0 when they are not free. Looks at every free chunk of that size and more. 2 records. */
hr__chunk_id hr__arena_take_at(hr__arena *arena, uint64_t address, uint64_t size);

/* Two neighbours that are in use change places: [right] begins then where [left], which lies before it, began. */
void hr__arena_exchange(hr__arena *arena, hr__chunk_id left, hr__chunk_id right);

/* Gives a chunk back. Its streams and epoch must be set; merging joins them. Returns the free chunk it is part of now. */
hr__chunk_id hr__arena_give(hr__arena *arena, hr__chunk_id id);

/* Bytes of the largest free chunk, 0 when there is none. May be called without the owner's lock: then the answer is nonsense if the
 * arena changed meanwhile, which the caller finds out by the lock's version, but nothing bad happens. */
uint64_t hr__arena_largest(const hr__arena *arena);

/* Free chunks in order of bins, for those who must look at all of them; ends with 0. Within a bin the order is that of the trie, not
 * of size. Starts with the bin of [size], so nothing smaller than the bin's range is seen but a few that are smaller than [size] may
 * be; 0 means all. The arena must not change meanwhile. */
hr__chunk_id hr__arena_first_free(const hr__arena *arena, uint64_t size);
hr__chunk_id hr__arena_next_free(const hr__arena *arena, hr__chunk_id after);

/* Walking with pauses. Who follows a chain (next) and lets go of the owner's lock on the way puts a chunk of that chain in a cursor.
 * Whatever happens meanwhile, the cursor then names a chunk of the same chain: when its record is dropped, the neighbour that took its
 * bytes over; 0 when the region was removed. That chunk need not be where the walk was, but from there it is found by its address. */

/* Number of the first violated invariant listed at the top of arena.c, 0 when all hold. [regions] are the edges of every
 * region, [count] of them. Visits every chunk. */
int hr__arena_check(const hr__arena *arena, const hr__chunk_id *regions, uint32_t count);

#endif
