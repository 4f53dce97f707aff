/* lookup.h - maps an address to its chunk, without a lock.
 *
 * A hash table of 4-byte slots, at most half full. A slot holds 8 bits of the address's hash and the number of the chunk record,
 * which has the address itself. An address with home slot h is in the first slot that was free, when it was inserted, of
 *
 *     h, h ^ 1, h ^ 2, h ^ 3, ...      eventually all slots; the first 16 are neighbours
 *
 * and stays there. So a removal empties one slot and moves nothing, and an empty slot does not end a search: a search continues to
 * [reach], the largest distance of any entry. The first two slots are compared together, without a branch: which of the two it is
 * cannot be predicted, and it is one of them nine times out of ten. Both choices together save 4 ns of 35 in the gpt2var trace,
 * compared with linear probing that closes gaps. Comparing four slots at once costs more than it saves; so does comparing a cache
 * line at once, since a block that is freed soon after its allocation then waits for the store to its own slot. Only a thread that
 * holds the shard's lock writes.
 *
 * Any thread may read at any time. An address whose block the caller owns is always found, and a match is verified against the
 * record. A table that is too small is replaced; the old one is freed when no reader can be using it (see hr__lookup_grow). */
#ifndef HR_MEMORY_LOOKUP_H
#define HR_MEMORY_LOOKUP_H

#include "core/arena/chunk.h"

typedef struct hr__lookup_table {
	uint32_t shift; /* 32 - log2(slots): the home slot is the hash shifted right by this */
	uint32_t mask;  /* slots - 1 */
	hr__atomic_u32 reach;   /* no entry is farther than this from its home slot */
	uint32_t reserved;
	size_t bytes;   /* size of the allocation */
	void *block;    /* the allocation that contains the table, whose slots begin a cache line: so the first 16 that a search looks at are in one */
	hr__atomic_u32 slots[]; /* the hash's low 8 bits << 24 | chunk number; 0 = empty */
} hr__lookup_table;

typedef struct hr__lookup {
	_Atomic(hr__lookup_table *) table; /* written under the shard's lock */
	const hr__chunk *chunks;           /* immutable */
	uint32_t count;                    /* guarded by the shard's lock */
	hr__atomic_u32 shift;              /* of the table, for a prefetch of a slot; written under the shard's lock */
	hr__atomic_u64 bytes;              /* of the table, readable without a lock */
} hr__lookup;

_Static_assert(HR__CHUNKS_MAX <= 1u << 24, "a chunk number and 8 bits fit in a slot");

hr_status hr__lookup_init(hr__lookup *lookup, const hr__chunk *chunks);
void hr__lookup_destroy(hr__lookup *lookup);

/* Replaces the table by a larger one. *retired gets the old table: free it with hr__lookup_free once no reader can be using it.
 * HR_NO_HOST_MEMORY. */
hr_status hr__lookup_grow(hr__lookup *lookup, hr__lookup_table **retired);
void hr__lookup_free(hr__lookup_table *table);

/* Bytes of host memory of the table. Needs no lock. */
uint64_t hr__lookup_bytes(const hr__lookup *lookup);

static inline bool hr__lookup_has_room(const hr__lookup *lookup)
{
	return lookup->count <= hr__load_relaxed(&lookup->table)->mask / 2;
}

/* The upper half of a multiplicative hash: its top bits select the home slot, its low bits are stored in the slot. */
static inline uint32_t hr__lookup_hash(uint64_t address)
{
	return (uint32_t)((address >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

static inline uint32_t hr__lookup_slot(uint32_t hash, hr__chunk_id id)
{
	return hash << 24 | id;
}

/* Prefetches what an insertion or a removal of the address reads first. Without a lock: the table may be another one by then. */
static inline void hr__lookup_prefetch(const hr__lookup *lookup, uint64_t address)
{
	const hr__lookup_table *table = hr__load_relaxed(&lookup->table);
	__builtin_prefetch(&table->shift);
	__builtin_prefetch((const void *)((uintptr_t)table->slots + ((uint64_t)hr__lookup_hash(address) >> hr__load_relaxed(&lookup->shift)) * sizeof *table->slots), 1);
}

static inline hr__chunk_id hr__lookup_id(uint32_t slot)
{
	return slot & 0xffffff;
}

static inline bool hr__lookup_fits(uint32_t slot, uint32_t hash)
{
	return ((slot ^ hash << 24) >> 24) == 0;
}

/* Whether [slot] is that of [address]. */
static inline bool hr__lookup_is(uint32_t slot, const hr__chunk *chunks, uint64_t address)
{
	return slot && hr__chunk_address(&chunks[hr__lookup_id(slot)]) == address;
}

/* The chunk in use or cached whose address is [address]; 0 when there is none. *where gets its slot, for hr__lookup_remove_at. */
static inline hr__chunk_id hr__lookup_find_at(const hr__lookup *lookup, const hr__chunk *chunks, uint64_t address, uint32_t *where)
{
	const hr__lookup_table *table = hr__load_acquire(&lookup->table);
	uint32_t hash = hr__lookup_hash(address);
	uint32_t home = hash >> table->shift;
	uint32_t first = hr__load_acquire(&table->slots[home]), second = hr__load_acquire(&table->slots[home ^ 1]);
	bool other = !hr__lookup_fits(first, hash);
	uint32_t slot = other ? second : first;
	if (HR_LIKELY(hr__lookup_is(slot, chunks, address))) {
		*where = home ^ other;
		return hr__lookup_id(slot);
	}
	for (uint32_t i = 1; i <= hr__load_relaxed(&table->reach); i++) {
		slot = hr__load_acquire(&table->slots[home ^ i]);
		if (hr__lookup_fits(slot, hash) && hr__lookup_is(slot, chunks, address)) {
			*where = home ^ i;
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

/* Stores a slot in the first free place, without counting it. */
static inline void hr__lookup_place(hr__lookup_table *table, uint32_t home, uint32_t slot)
{
	uint32_t i = hr__load_relaxed(&table->slots[home]) != 0;
	while (HR_UNLIKELY(hr__load_relaxed(&table->slots[home ^ i]))) i++;
	if (HR_UNLIKELY(i > hr__load_relaxed(&table->reach))) hr__store_relaxed(&table->reach, i); /* must precede the slot */
	hr__store_release(&table->slots[home ^ i], slot);
}

/* Adds a chunk; there must be room (hr__lookup_has_room). */
static inline void hr__lookup_insert(hr__lookup *lookup, uint64_t address, hr__chunk_id id)
{
	hr__lookup_table *table = hr__load_relaxed(&lookup->table);
	HR_ASSERT(id > 0 && id < HR__CHUNKS_MAX && lookup->count < table->mask);
	HR_ASSERT(!hr__lookup_find(lookup, lookup->chunks, address));
	uint32_t hash = hr__lookup_hash(address);
	hr__lookup_place(table, hash >> table->shift, hr__lookup_slot(hash, id));
	lookup->count++;
}

/* Removes the entry in slot [where], which the caller found under the same lock. */
static inline void hr__lookup_remove_at(hr__lookup *lookup, uint32_t where)
{
	hr__lookup_table *table = hr__load_relaxed(&lookup->table);
	HR_ASSERT(where <= table->mask && lookup->count > 0);
	HR_ASSERT(hr__load_relaxed(&table->slots[where]) != 0);
	hr__store_release(&table->slots[where], 0);
	lookup->count--;
}

/* Removes a chunk that is in the table. */
static inline void hr__lookup_remove(hr__lookup *lookup, uint64_t address, hr__chunk_id id)
{
	const hr__lookup_table *table = hr__load_relaxed(&lookup->table);
	uint32_t home = hr__lookup_hash(address) >> table->shift, i = 0;
	while (hr__lookup_id(hr__load_relaxed(&table->slots[home ^ i])) != id) {
		HR_ASSERT(i < hr__load_relaxed(&table->reach));
		i++;
	}
	hr__lookup_remove_at(lookup, home ^ i);
}

#endif
