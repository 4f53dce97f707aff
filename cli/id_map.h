/* id_map.h - a hash table from a file's id of a block, stream or thread to a small number. */
#ifndef HR_CLI_ID_MAP_H
#define HR_CLI_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

/* Id of a block in the file. [space] separates the ids of several allocators. */
typedef struct hr__tape_id {
	uint64_t id;
	uint32_t space;
} hr__tape_id;

typedef struct hr__id_entry {
	uint64_t id;
	uint32_t space;
	uint32_t value; /* number + 1; 0: the entry is empty */
} hr__id_entry;

typedef struct hr__id_map {
	hr__id_entry *entries;
	size_t count, capacity;
	uint64_t seed;
} hr__id_map;

/* Allocates no memory. The seed differs between maps, so that no file can contain ids that are known to collide. */
void hr__id_map_init(hr__id_map *map);
void hr__id_map_free(hr__id_map *map);

/* Makes room for one more entry, keeping the table at most half full. HR_NO_HOST_MEMORY. */
hr_status hr__id_map_ensure(hr__id_map *map);
/* The entry of [id], or the empty entry where it belongs; the caller then fills it in and increments map->count. Needs room for one
 * more entry. */
hr__id_entry *hr__id_map_find(const hr__id_map *map, hr__tape_id id);
/* Invalidates pointers to other entries. */
void hr__id_map_remove(hr__id_map *map, hr__id_entry *entry);

/* The number of [id]; UINT32_MAX when there is none. Needs no room. */
uint32_t hr__id_map_get(const hr__id_map *map, hr__tape_id id);
/* Sets or replaces the number of [id]; [value] must be below UINT32_MAX. HR_NO_HOST_MEMORY. */
hr_status hr__id_map_put(hr__id_map *map, hr__tape_id id, uint32_t value);
/* Removes [id] and returns its number; UINT32_MAX when there is none. */
uint32_t hr__id_map_take(hr__id_map *map, hr__tape_id id);

#endif
