/* regions.c - see regions.h. */
#include "analysis/capture/regions.h"

#include <string.h>

hr_status hr__region_list_init(hr__region_list *list, hr__array *runs)
{
	void *memory;
	int error = hr__os()->alloc((HR__REGION_LIVE_MOST + 1) * sizeof *list->live, &memory);
	if (error) return hr__os_fail(error, "reading a trace");
	*list = (hr__region_list){ .runs = runs, .live = memory };
	return HR_OK;
}

void hr__region_list_free(hr__region_list *list)
{
	if (list->live) hr__os()->free(list->live, (HR__REGION_LIVE_MOST + 1) * sizeof *list->live);
	list->live = NULL;
}

static hr__region_run *run_at(const hr__region_list *list, uint32_t place)
{
	return (hr__region_run *)(void *)list->runs->base + list->live[place];
}

/* The first place whose region ends after [address] of [allocator], or belongs to a later allocator. */
static uint32_t find_place(const hr__region_list *list, uint32_t allocator, uint64_t address)
{
	uint32_t low = 0, high = list->count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const hr__region_run *run = run_at(list, middle);
		bool before = run->allocator < allocator || (run->allocator == allocator && run->address + (run->bytes - 1) < address);
		if (before) low = middle + 1;
		else high = middle;
	}
	return low;
}

static hr_status enter(hr__region_list *list, uint32_t place, hr__region_run run)
{
	hr_status status = HR_OK;
	HR_ASSERT(list->count <= HR__REGION_LIVE_MOST && place <= list->count);
	hr__region_run *fresh = hr__array_push(list->runs, &status);
	if (status) return status;
	*fresh = run;
	memmove(list->live + place + 1, list->live + place, (list->count - place) * sizeof *list->live);
	list->live[place] = (uint32_t)list->runs->count - 1;
	list->count++;
	return HR_OK;
}

static void leave(hr__region_list *list, uint32_t place)
{
	list->count--;
	memmove(list->live + place, list->live + place + 1, (list->count - place) * sizeof *list->live);
}

/* Whether the range has at least one byte and does not wrap around the end of the address space. */
static bool is_range(uint64_t address, uint64_t bytes)
{
	return bytes && address + (bytes - 1) >= address && bytes <= UINT64_MAX / 2;
}

static bool overlaps(const hr__region_run *run, uint32_t allocator, uint64_t address, uint64_t bytes)
{
	return run->allocator == allocator && run->address <= address + (bytes - 1) && address <= run->address + (run->bytes - 1);
}

/* Ends the region at [place] and begins new regions for the parts outside of the range. *next is the place after those parts. */
static hr_status cut(hr__region_list *list, uint32_t place, uint64_t address, uint64_t end, uint64_t now, uint32_t *next)
{
	hr__region_run old = *run_at(list, place);
	uint64_t old_end = old.address + (old.bytes - 1);
	hr_status status = HR_OK;
	run_at(list, place)->end_ns = now;
	leave(list, place);
	if (old.address < address) status = enter(list, place++, (hr__region_run){ now, HR__NEVER, old.address, address - old.address, old.allocator });
	/* If a region is cut in two and only one part fits into the list, the second part is dropped. */
	if (!status && old_end > end && list->count < HR__REGION_LIVE_MOST)
		status = enter(list, place++, (hr__region_run){ now, HR__NEVER, end + 1, old_end - end, old.allocator });
	*next = place;
	return status;
}

hr_status hr__region_unmap(hr__region_list *list, uint32_t allocator, uint64_t address, uint64_t bytes, uint64_t now, bool *taken)
{
	hr_status status = HR_OK;
	*taken = is_range(address, bytes);
	if (!*taken) return HR_OK;
	uint32_t place = find_place(list, allocator, address);
	while (!status && place < list->count && overlaps(run_at(list, place), allocator, address, bytes))
		status = cut(list, place, address, address + (bytes - 1), now, &place);
	return status;
}

hr_status hr__region_map(hr__region_list *list, uint32_t allocator, uint64_t address, uint64_t bytes, uint64_t now, bool *taken)
{
	hr_status status = hr__region_unmap(list, allocator, address, bytes, now, taken);
	*taken = *taken && list->count < HR__REGION_LIVE_MOST;
	if (status || !*taken) return status;
	return enter(list, find_place(list, allocator, address), (hr__region_run){ now, HR__NEVER, address, bytes, allocator });
}
