/* lookup.h - from an address to its chunk, without a lock.
 *
 * A hash table of 4-byte slots: 8 bits of the address's hash and the number of the chunk record, which has the address itself.
 * Linear probing in a table at most half full; deletion moves later entries back, so there are no tombstones. (Buckets of a cache line
 * compared at once save mispredictions on long traces, but a block that is freed soon after it was allocated then waits for the store
 * of its own tag: 12 ns. Measured both ways; this won.) Only a thread that holds the allocator's lock writes.
 *
 * Any thread may read at any time. It looks for an address whose block its caller owns, so that entry is not being deleted; but it may
 * be on the move, and a reader can miss it. So a miss means "look again under the lock", and a hit is checked against the record.
 * A table that grew is replaced; the old one is freed when no reader can be in it (see hr__lookup_grow). */
#ifndef HR_MEMORY_LOOKUP_H
#define HR_MEMORY_LOOKUP_H

#include "arena/chunk.h"

typedef struct hr__lookup_table {
	uint32_t shift; /* 32 - log2(slots): the home of an address is its hash shifted by this */
	uint32_t mask;  /* slots - 1 */
	size_t bytes;   /* of this block, for freeing it */
	hr__atomic_u32 slots[]; /* the hash's low 8 bits << 24 | chunk number; 0 = empty */
} hr__lookup_table;

typedef struct hr__lookup {
	_Atomic(hr__lookup_table *) table; /* written under the allocator's lock */
	const hr__chunk *chunks;           /* immutable */
	uint32_t count;                    /* under the lock */
	hr__atomic_u64 bytes;              /* of the table: for those who may not look into it */
} hr__lookup;

_Static_assert(HR__CHUNKS_MAX <= 1u << 24, "a chunk number and 8 bits fit in a slot");

hr_status hr__lookup_init(hr__lookup *lookup, const hr__chunk *chunks);
void hr__lookup_destroy(hr__lookup *lookup);

/* Makes room for more. *retired gets the table that was in use: free it with hr__lookup_free once no reader can be in it.
 * HR_NO_HOST_MEMORY. */
hr_status hr__lookup_grow(hr__lookup *lookup, hr__lookup_table **retired);
void hr__lookup_free(hr__lookup_table *table);

/* Bytes of host memory behind the table. Needs no lock. */
uint64_t hr__lookup_bytes(const hr__lookup *lookup);

static inline bool hr__lookup_has_room(const hr__lookup *lookup)
{
	return lookup->count <= hr__load_relaxed(&lookup->table)->mask / 2;
}

/* The upper half of a multiplicative hash: its top bits are the home slot, its low ones are kept in the slot. */
static inline uint32_t hr__lookup_hash(uint64_t address)
{
	return (uint32_t)((address >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

static inline uint32_t hr__lookup_slot(uint32_t hash, hr__chunk_id id)
{
	return hash << 24 | id;
}

static inline hr__chunk_id hr__lookup_id(uint32_t slot)
{
	return slot & 0xffffff;
}

static inline bool hr__lookup_fits(uint32_t slot, uint32_t hash)
{
	return ((slot ^ hash << 24) >> 24) == 0;
}

/* The chunk in use or cached whose address is [address]; 0 when it was not found (see above). *where gets its slot, for
 * hr__lookup_remove_at. */
static inline hr__chunk_id hr__lookup_find_at(const hr__lookup *lookup, const hr__chunk *chunks, uint64_t address, uint32_t *where)
{
	const hr__lookup_table *table = hr__load_acquire(&lookup->table);
	uint32_t hash = hr__lookup_hash(address);
	/* At most one round: while entries move, a reader might find no empty slot to stop at. */
	for (uint32_t at = hash >> table->shift, tries = 0; tries <= table->mask; at = (at + 1) & table->mask, tries++) {
		uint32_t slot = hr__load_acquire(&table->slots[at]);
		if (!slot) return 0;
		if (hr__lookup_fits(slot, hash) && hr__chunk_address(&chunks[hr__lookup_id(slot)]) == address) {
			*where = at;
			return hr__lookup_id(slot);
		}
	}
	return 0;
}

static inline hr__chunk_id hr__lookup_find(const hr__lookup *lookup, const hr__chunk *chunks, uint64_t address)
{
	uint32_t where;
	return hr__lookup_find_at(lookup, chunks, address, &where);
}

/* Adds a chunk; there must be room. */
static inline void hr__lookup_insert(hr__lookup *lookup, uint64_t address, hr__chunk_id id)
{
	hr__lookup_table *table = hr__load_relaxed(&lookup->table);
	uint32_t hash = hr__lookup_hash(address), at = hash >> table->shift;
	while (hr__load_relaxed(&table->slots[at])) at = (at + 1) & table->mask;
	hr__store_release(&table->slots[at], hr__lookup_slot(hash, id));
	lookup->count++;
}

/* Removes what is in slot [hole], where the caller found it under the same lock. */
static inline void hr__lookup_remove_at(hr__lookup *lookup, uint32_t hole)
{
	hr__lookup_table *table = hr__load_relaxed(&lookup->table);
	uint32_t mask = table->mask;
	HR_ASSERT(hr__load_relaxed(&table->slots[hole]) != 0);
	/* Close the gap: an entry behind it moves into it unless that would put it before its home. */
	for (uint32_t at = (hole + 1) & mask;; at = (at + 1) & mask) {
		uint32_t slot = hr__load_relaxed(&table->slots[at]);
		if (!slot) break;
		uint32_t home = hr__lookup_hash(hr__chunk_address(&lookup->chunks[hr__lookup_id(slot)])) >> table->shift;
		if (((at - home) & mask) < ((at - hole) & mask)) continue;
		hr__store_release(&table->slots[hole], slot);
		hole = at;
	}
	hr__store_release(&table->slots[hole], 0);
	lookup->count--;
}

/* Removes a chunk that is there. */
static inline void hr__lookup_remove(hr__lookup *lookup, uint64_t address, hr__chunk_id id)
{
	const hr__lookup_table *table = hr__load_relaxed(&lookup->table);
	uint32_t at = hr__lookup_hash(address) >> table->shift;
	while (hr__lookup_id(hr__load_relaxed(&table->slots[at])) != id) {
		HR_ASSERT(hr__load_relaxed(&table->slots[at]) != 0);
		at = (at + 1) & table->mask;
	}
	hr__lookup_remove_at(lookup, at);
}

#endif
