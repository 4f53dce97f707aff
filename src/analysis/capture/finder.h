/* finder.h - maps a hash to the index of an item in an array: open addressing, at most three quarters full, removal without
 * tombstones.
 *
 *     slots   | index + 1, hash | 0 | index + 1, hash | ...   an item is in its hash's slot or after it; no empty slot between
 *
 * The caller compares items; the finder compares hashes. Hashes are salted (hr__finder_hash), so that a crafted file cannot force
 * collisions. */
#ifndef HR_PROFILE_FINDER_H
#define HR_PROFILE_FINDER_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"

typedef struct hr__finder_slot {
	uint32_t item; /* index + 1; 0: empty */
	uint32_t hash;
} hr__finder_slot;

/* Initially all zeros except the salt. */
typedef struct hr__slots {
	hr__finder_slot *slots;
	uint32_t mask, count; /* number of slots - 1; number of items */
	uint64_t salt;
} hr__slots;

static inline uint32_t hr__finder_hash(const hr__slots *slots, uint64_t a, uint64_t b)
{
	uint64_t h = a ^ slots->salt;
	h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
	h = (h ^ b ^ (h >> 27)) * 0x94D049BB133111EBu;
	h = (h ^ (h >> 31)) * 0x9E3779B97F4A7C15u;
	return (uint32_t)(h >> 32);
}

/* Makes room for one more item. HR_NO_HOST_MEMORY. */
hr_status hr__slots_reserve(hr__slots *slots);
/* Adds an item that is not in the table. hr__slots_reserve must have been called. */
void hr__slots_add(hr__slots *slots, uint32_t hash, uint32_t item);
/* Removes the item in slot [at]. */
void hr__slots_remove(hr__slots *slots, uint32_t at);
void hr__slots_free(hr__slots *slots);

/* Iterates over the items with a given hash:
 *
 *     for (uint32_t at = hr__slots_first(slots, hash); hr__slots_holds(slots, hash, &at); at++)
 *         if (is_it(slots->slots[at].item - 1)) ... */
static inline uint32_t hr__slots_first(const hr__slots *slots, uint32_t hash)
{
	return hash & slots->mask;
}

static inline bool hr__slots_holds(const hr__slots *slots, uint32_t hash, uint32_t *at)
{
	if (!slots->slots) return false;
	for (uint32_t i = *at & slots->mask;; i = (i + 1) & slots->mask) {
		*at = i;
		if (!slots->slots[i].item) return false;
		if (slots->slots[i].hash == hash) return true;
	}
}

#endif
