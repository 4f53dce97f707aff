/* id_map.c - see id_map.h. Open addressing with linear probing; a removal shifts the following entries back. */
#include "id_map.h"

#include <stdlib.h>

#include "core/base/status.h"
#include "core/os/os.h"

static size_t place_of(const hr__id_map *map, hr__tape_id id)
{
	uint64_t x = (id.id ^ map->seed) + (uint64_t)id.space * UINT64_C(0x9E3779B97F4A7C15);
	x = (x ^ (x >> 32)) * (map->seed | 1);
	x = (x ^ (x >> 29)) * UINT64_C(0xBF58476D1CE4E5B9);
	return (size_t)(x ^ (x >> 32)) & (map->capacity - 1);
}

void hr__id_map_init(hr__id_map *map)
{
	*map = (hr__id_map){ .seed = (hr__os()->clock_ns() ^ (uintptr_t)map) * UINT64_C(0xD6E8FEB86659FD93) };
}

void hr__id_map_free(hr__id_map *map)
{
	free(map->entries);
	*map = (hr__id_map){ .seed = map->seed };
}

hr__id_entry *hr__id_map_find(const hr__id_map *map, hr__tape_id id)
{
	size_t at = place_of(map, id);
	for (;; at = (at + 1) & (map->capacity - 1)) {
		hr__id_entry *entry = &map->entries[at];
		if (!entry->value || (entry->id == id.id && entry->space == id.space)) return entry;
	}
}

hr_status hr__id_map_ensure(hr__id_map *map)
{
	if ((map->count + 1) * 2 <= map->capacity) return HR_OK;
	hr__id_map bigger = { .count = map->count, .capacity = map->capacity ? map->capacity * 2 : 64, .seed = map->seed };
	bigger.entries = calloc(bigger.capacity, sizeof *bigger.entries);
	if (!bigger.entries) return hr__fail(HR_NO_HOST_MEMORY, "no memory for a table of %zu live blocks", bigger.capacity / 2);
	for (size_t i = 0; i < map->capacity; i++) {
		const hr__id_entry *entry = &map->entries[i];
		if (entry->value) *hr__id_map_find(&bigger, (hr__tape_id){ entry->id, entry->space }) = *entry;
	}
	free(map->entries);
	*map = bigger;
	return HR_OK;
}

void hr__id_map_remove(hr__id_map *map, hr__id_entry *entry)
{
	size_t mask = map->capacity - 1, hole = (size_t)(entry - map->entries);
	for (size_t at = (hole + 1) & mask; map->entries[at].value; at = (at + 1) & mask) {
		size_t home = place_of(map, (hr__tape_id){ map->entries[at].id, map->entries[at].space });
		if (((at - home) & mask) < ((at - hole) & mask)) continue;
		map->entries[hole] = map->entries[at];
		hole = at;
	}
	map->entries[hole].value = 0;
	map->count--;
}

uint32_t hr__id_map_get(const hr__id_map *map, hr__tape_id id)
{
	return map->capacity ? hr__id_map_find(map, id)->value - 1 : UINT32_MAX;
}

hr_status hr__id_map_put(hr__id_map *map, hr__tape_id id, uint32_t value)
{
	hr_status status = hr__id_map_ensure(map);
	if (status) return status;
	hr__id_entry *entry = hr__id_map_find(map, id);
	map->count += entry->value == 0;
	*entry = (hr__id_entry){ id.id, id.space, value + 1 };
	return HR_OK;
}

uint32_t hr__id_map_take(hr__id_map *map, hr__tape_id id)
{
	if (!map->capacity) return UINT32_MAX;
	hr__id_entry *entry = hr__id_map_find(map, id);
	uint32_t value = entry->value - 1;
	if (entry->value) hr__id_map_remove(map, entry);
	return value;
}
