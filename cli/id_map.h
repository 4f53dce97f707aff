/* id_map.h - a hash table from what names a block, stream or thread in a file to a small number. */
#ifndef HR_CLI_ID_MAP_H
#define HR_CLI_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

/* What names a block in the file. [space] keeps ids of several allocators apart. */
typedef struct hr__tape_id {
	uint64_t id;
	uint32_t space;
} hr__tape_id;

typedef struct hr__id_entry {
	uint64_t id;
	uint32_t space;
	uint32_t value; /* number + 1; 0: no entry here */
} hr__id_entry;

typedef struct hr__id_map {
	hr__id_entry *entries;
	size_t count, capacity;
	uint64_t seed;
} hr__id_map;

/* Takes no memory. The seed differs from map to map, so that no file can have ids that all collide. */
void hr__id_map_init(hr__id_map *map);
void hr__id_map_free(hr__id_map *map);

/* Makes room for one more entry, at most half full. HR_NO_HOST_MEMORY. */
hr_status hr__id_map_ensure(hr__id_map *map);
/* The entry of [id], or the empty one where it belongs: the caller fills it in and counts it in map->count. Needs room for one more. */
hr__id_entry *hr__id_map_find(const hr__id_map *map, hr__tape_id id);
/* Pointers to other entries are invalid afterwards. */
void hr__id_map_remove(hr__id_map *map, hr__id_entry *entry);

/* The number of [id]; UINT32_MAX when there is none. Needs no room. */
uint32_t hr__id_map_get(const hr__id_map *map, hr__tape_id id);
/* Sets or replaces it; [value] is below UINT32_MAX. HR_NO_HOST_MEMORY. */
hr_status hr__id_map_put(hr__id_map *map, hr__tape_id id, uint32_t value);
/* Removes it and returns its number; UINT32_MAX when there is none. */
uint32_t hr__id_map_take(hr__id_map *map, hr__tape_id id);

#endif
