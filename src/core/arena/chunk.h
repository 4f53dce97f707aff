/* chunk.h - the chunk record: 64 bytes, one cache line, for every chunk of memory, in use or not.
 *
 * The record serves four modules that would otherwise each look up the same address: the arena (extent, neighbours, place in the
 * free index), the ledger (what the block is for: four ids), stream safety (streams that used the chunk, and the epochs) and the
 * thread caches (a link). Fields that only a free chunk needs share their bytes with fields that only a chunk in use needs.
 *
 *      0        8        16                 24        32     36     40            56     60       62      63     64
 *      | address | size   | requested/epochs| streams  | prev | next | ledger/tree | link | region | state | dtype |
 *
 * Records are numbered from 1; 0 means "none". They are in one reserved range that is committed as it fills, so a record never
 * moves and a thread can follow a number without a lock. Unused records form a list through [link]. */
#ifndef HR_ARENA_CHUNK_H
#define HR_ARENA_CHUNK_H

#include "core/base/assert.h"
#include "core/base/atomic.h"
#include "core/device/epochs.h"
#include "headroom.h"

typedef uint32_t hr__chunk_id;

enum hr__chunk_state {
	HR__CHUNK_UNUSED = 0, /* the record is in the list of spare records */
	HR__CHUNK_FREE = HR_CHUNK_FREE,
	HR__CHUNK_IN_USE = HR_CHUNK_IN_USE,
	HR__CHUNK_CACHED = HR_CHUNK_CACHED,   /* freed, but held by a thread cache */
	HR__CHUNK_HOLE = HR_CHUNK_UNMAPPED,   /* addresses without memory */
	HR__CHUNK_EDGE                        /* start of a region; empty */
};

/* Bit of [region]: thread caches are filled from this region. */
#define HR__REGION_SMALL 0x8000u
#define HR__REGION_INDEX 0x7fffu
/* Not in a region: a block of whole pages at an address range of its own (core/memory/bfc/span.c). */
#define HR__REGION_NONE 0x7fffu

typedef struct hr__chunk {
	hr__atomic_u64 address; /* atomic: hr_free compares it before it acquires the lock */
	uint64_t size;          /* bytes, a multiple of the granularity */
	union {
		uint64_t requested; /* in use: bytes requested */
		hr__epochs epochs;  /* free, cached: the device's epoch at the latest frees */
	};
	uint64_t streams;        /* streams that used the chunk and may still be using it */
	union {
		struct {
			hr__chunk_id prev, next;
		}; /* neighbours by address in the same region; 0 beyond its end */
		uint32_t *pages; /* a block outside all regions (direct allocator or span): its pages */
		void *keeper;    /* an adopted block (core/memory/adopt.h): what the caller gave */
	};
	union {
		struct {
			hr_name op, scope, tag;
			hr_shape shape;
		}; /* in use: the ledger */
		struct {
			hr__chunk_id child[2], parent, older;
		}; /* free: place in the index; a hole uses child as the links of a doubly linked list */
	};
	union {
		hr__chunk_id link; /* free: next younger of the same size; cached: next in the cache; unused: next spare record */
		uint32_t owner;    /* in use: the layer above's number of the tensor that owns the block; 0 = none */
	};
	uint16_t region;
	hr__atomic_u8 state; /* enum hr__chunk_state; atomic for the same reason as address */
	uint8_t dtype;
} hr__chunk;

_Static_assert(sizeof(hr__chunk) == 64, "a chunk record is one cache line");

/* The records of one shard. Guarded by the shard's lock, except for reading a record by its number. */
typedef struct hr__chunk_table {
	hr__chunk *chunks;     /* immutable; chunks[0] is never used */
	uint32_t committed;    /* records that are backed by memory */
	uint32_t touched;      /* records ever used; numbers below it are valid */
	hr__chunk_id spare;    /* first of the list of unused records */
	uint32_t spare_count;
} hr__chunk_table;

#define HR__CHUNKS_MAX (1u << 24)

hr_status hr__chunk_table_init(hr__chunk_table *table);
void hr__chunk_table_destroy(hr__chunk_table *table);

/* Ensures that the next [count] calls of hr__chunk_new succeed. HR_NO_HOST_MEMORY or HR_TOO_MANY on failure. */
hr_status hr__chunk_table_ensure_slow(hr__chunk_table *table, uint32_t count);
static inline bool hr__chunk_table_has(const hr__chunk_table *table, uint32_t count)
{
	return table->spare_count + table->committed >= count + table->touched;
}
static inline hr_status hr__chunk_table_ensure(hr__chunk_table *table, uint32_t count)
{
	return HR_LIKELY(hr__chunk_table_has(table, count)) ? HR_OK : hr__chunk_table_ensure_slow(table, count);
}

static inline hr__chunk *hr__chunk_at(const hr__chunk_table *table, hr__chunk_id id)
{
	HR_ASSERT(id != 0 && id < table->touched);
	return &table->chunks[id];
}

/* Returns a record that was ensured before. All fields but state are undefined. */
static inline hr__chunk_id hr__chunk_new(hr__chunk_table *table)
{
	hr__chunk_id id = table->spare;
	HR_ASSERT(hr__chunk_table_has(table, 1));
	if (HR_LIKELY(id != 0)) {
		table->spare = table->chunks[id].link;
		table->spare_count--;
		return id;
	}
	return table->touched++;
}

static inline void hr__chunk_drop(hr__chunk_table *table, hr__chunk_id id)
{
	hr__chunk *chunk = hr__chunk_at(table, id);
	HR_ASSERT(table->spare != id && table->spare_count < table->touched);
	hr__store_relaxed(&chunk->state, HR__CHUNK_UNUSED);
	chunk->link = table->spare;
	table->spare = id;
	table->spare_count++;
}

static inline uint64_t hr__chunk_address(const hr__chunk *chunk)
{
	return hr__load_relaxed(&chunk->address);
}

static inline uint64_t hr__chunk_end(const hr__chunk *chunk)
{
	return hr__load_relaxed(&chunk->address) + chunk->size;
}

static inline enum hr__chunk_state hr__chunk_state_of(const hr__chunk *chunk)
{
	return (enum hr__chunk_state)hr__load_relaxed(&chunk->state);
}

#endif
