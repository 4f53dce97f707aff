/* blocks.c - a hash table with linear probing, at most half full. A removal moves later entries of the same run back, so that a search ends at the
 * first empty slot. One lock guards it: an entry is added and removed once for each call of the driver, which takes longer. */
#include "blocks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 1024u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static hr__block *slots; /* an address of 0 is empty */
static size_t capacity, count; /* capacity: a power of two, or 0 */
static uint64_t lowest = UINT64_MAX, highest; /* between these blocks have been: a search inside of blocks looks at all of them */

static size_t home_of(uint64_t address)
{
	return (size_t)((address >> 8) * UINT64_C(0x9E3779B97F4A7C15) >> 20) & (capacity - 1);
}

/* The slot of [address], or the empty one where it would be. */
static size_t slot_of(uint64_t address)
{
	size_t at = home_of(address);
	while (slots[at].address && slots[at].address != address) at = (at + 1) & (capacity - 1);
	return at;
}

static bool make_room(void)
{
	if (count < capacity / 2) return true;
	size_t before = capacity, wanted = capacity ? capacity * 2 : FIRST_SLOTS;
	hr__block *old = slots, *grown = calloc(wanted, sizeof *grown);
	if (!grown) return false;
	slots = grown;
	capacity = wanted;
	for (size_t i = 0; i < before; i++)
		if (old[i].address) slots[slot_of(old[i].address)] = old[i];
	free(old);
	return true;
}

static void remove_slot(size_t hole)
{
	size_t mask = capacity - 1;
	for (size_t at = (hole + 1) & mask; slots[at].address; at = (at + 1) & mask) {
		/* An entry moves back if the hole is between its home and its place. */
		if (((at - home_of(slots[at].address)) & mask) < ((at - hole) & mask)) continue;
		slots[hole] = slots[at];
		hole = at;
	}
	slots[hole].address = 0;
	count--;
}

bool hr__blocks_add(const hr__block *block)
{
	pthread_mutex_lock(&lock);
	bool room = make_room();
	if (room) {
		size_t at = slot_of(block->address);
		if (!slots[at].address) count++;
		slots[at] = *block;
		if (block->address < lowest) lowest = block->address;
		if (block->address + block->bytes > highest) highest = block->address + block->bytes;
	}
	pthread_mutex_unlock(&lock);
	return room;
}

bool hr__blocks_take(uint64_t address, hr__block *out)
{
	bool found = false;
	pthread_mutex_lock(&lock);
	if (capacity && address) {
		size_t at = slot_of(address);
		found = slots[at].address != 0;
		if (found) {
			*out = slots[at];
			remove_slot(at);
		}
	}
	pthread_mutex_unlock(&lock);
	return found;
}

static bool contains(const hr__block *block, uint64_t address)
{
	return block->address && address >= block->address && address - block->address < block->bytes;
}

bool hr__blocks_find(uint64_t address, bool inside, hr__block *out)
{
	pthread_mutex_lock(&lock);
	const hr__block *found = capacity && address ? &slots[slot_of(address)] : NULL;
	if (found && !found->address) found = NULL;
	bool possible = inside && address >= lowest && address < highest;
	for (size_t at = 0; at < capacity && !found && possible; at++)
		if (contains(&slots[at], address)) found = &slots[at];
	if (found) *out = *found;
	pthread_mutex_unlock(&lock);
	return found != NULL;
}

/* The cursor stays at a slot that was emptied, because a later entry may have moved back to it. */
bool hr__blocks_take_of(CUcontext context, size_t *cursor, hr__block *out)
{
	bool found = false, again;
	pthread_mutex_lock(&lock);
	do { /* the table may have grown since the search began: one that did not begin at 0 is repeated */
		size_t first = *cursor;
		for (size_t at = first; at < capacity && !found; at += !found) {
			found = slots[at].address && slots[at].context == context;
			*cursor = at;
			if (!found) continue;
			*out = slots[at];
			remove_slot(at);
		}
		again = !found && first > 0;
		if (!found) *cursor = 0;
	} while (again);
	pthread_mutex_unlock(&lock);
	return found;
}

void hr__blocks_forget(void)
{
	/* The table stays allocated: free could wait for a lock of the parent's. */
	pthread_mutex_init(&lock, NULL);
	slots = NULL;
	capacity = count = 0;
}
