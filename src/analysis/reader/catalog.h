/* catalog.h - the meaning of the numbers in a trace file: names, shapes and stacks as ids of this process, devices and allocators.
 *
 * A definition may come later in the file than the events and definitions that use it, so uses are recorded with their offset and
 * checked at the end, and frames and stacks get their ids then. */
#ifndef HR_TRACE_CATALOG_H
#define HR_TRACE_CATALOG_H

#include "analysis/reader/decode.h"
#include "analysis/reader/list.h"
#include "analysis/reader/reader.h"

/* Positions + 1 in a list of devices or allocators, by number: an open-addressing hash table, at most half full. */
typedef struct hr__finder {
	hr__list slots;
} hr__finder;

typedef struct hr__catalog {
	hr__list names, shapes, frames, stacks;
	hr__list frame_definitions, stack_definitions; /* until hr__catalog_finish */
	hr__list stack_frames;                         /* the frames of all stack_definitions */
	hr__list devices, allocators; /* lists of hr__trace_device and hr__trace_allocator */
	hr__finder device_finder, allocator_finder;
} hr__catalog;

void hr__catalog_init(hr__catalog *catalog);
void hr__catalog_free(hr__catalog *catalog);

/* [offset] is that of the record in the file. HR_NO_HOST_MEMORY. */
hr_status hr__catalog_define(hr__catalog *catalog, const hr__definition *definition, uint64_t offset);

/* Records the names, shapes and stacks that the event at byte [offset] of the file uses. HR_NO_HOST_MEMORY. */
hr_status hr__catalog_note(hr__catalog *catalog, const hr__event *event, uint64_t offset);

/* Gives frames and stacks their ids, after the last definition. HR_NO_HOST_MEMORY. */
hr_status hr__catalog_finish(hr__catalog *catalog);

/* HR_BAD_FORMAT when a name, shape, frame or stack is used but not defined. */
hr_status hr__catalog_check(const hr__catalog *catalog);

/* Replaces the event's numbers by ids of this process; undefined ones become "other". */
void hr__catalog_translate(const hr__catalog *catalog, hr__event *event);

#endif
