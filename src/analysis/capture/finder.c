/* finder.c - see finder.h. */
#include "analysis/capture/finder.h"

#include "core/base/assert.h"
#include "core/base/status.h"
#include "core/os/os.h"

#define FIRST_SLOTS 64u

static void put(hr__finder_slot *slots, uint32_t mask, hr__finder_slot slot)
{
	uint32_t at = slot.hash & mask;
	while (slots[at].item) at = (at + 1) & mask;
	slots[at] = slot;
}

static hr_status grow(hr__slots *slots)
{
	uint64_t old = slots->slots ? (uint64_t)slots->mask + 1 : 0, count = old ? old * 2 : FIRST_SLOTS;
	void *memory;
	if (count > UINT32_MAX) return hr__fail(HR_TOO_MANY, "the trace has more than 2^31 items of one kind");
	int error = hr__os()->alloc((size_t)count * sizeof(hr__finder_slot), &memory);
	if (error) return hr__os_fail(error, "reading a trace");
	for (uint64_t i = 0; i < old; i++)
		if (slots->slots[i].item) put(memory, (uint32_t)(count - 1), slots->slots[i]);
	if (slots->slots) hr__os()->free(slots->slots, (size_t)old * sizeof(hr__finder_slot));
	slots->slots = memory;
	slots->mask = (uint32_t)(count - 1);
	return HR_OK;
}

hr_status hr__slots_reserve(hr__slots *slots)
{
	uint64_t room = slots->slots ? (uint64_t)slots->mask + 1 : 0;
	return (uint64_t)slots->count + 1 <= room / 4 * 3 ? HR_OK : grow(slots);
}

void hr__slots_add(hr__slots *slots, uint32_t hash, uint32_t item)
{
	HR_ASSERT(slots->slots && slots->count < slots->mask && item < UINT32_MAX);
	put(slots->slots, slots->mask, (hr__finder_slot){ item + 1, hash });
	slots->count++;
}

/* Closes the hole: items after it whose own slot is at the hole or before it are moved into it, one after the other, so that no
 * search meets an empty slot before its item. */
void hr__slots_remove(hr__slots *slots, uint32_t at)
{
	uint32_t mask = slots->mask, hole = at;
	HR_ASSERT(slots->slots[at].item);
	for (uint32_t i = (at + 1) & mask; slots->slots[i].item; i = (i + 1) & mask) {
		uint32_t home = slots->slots[i].hash & mask;
		if (((i - home) & mask) < ((i - hole) & mask)) continue;
		slots->slots[hole] = slots->slots[i];
		hole = i;
	}
	slots->slots[hole].item = 0;
	slots->count--;
}

void hr__slots_free(hr__slots *slots)
{
	if (slots->slots) hr__os()->free(slots->slots, ((size_t)slots->mask + 1) * sizeof(hr__finder_slot));
	*slots = (hr__slots){ .salt = slots->salt };
}
