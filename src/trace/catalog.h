/* catalog.h - what the numbers in a trace file stand for: names and shapes as ids of this process, devices and allocators.
 *
 * Definitions may come later in the file than the events that use them: uses are noted with their place and judged at the end. */
#ifndef HR_TRACE_CATALOG_H
#define HR_TRACE_CATALOG_H

#include "trace/decode.h"
#include "trace/list.h"

/* Positions + 1 in a list of devices or allocators, by number: an open hash table that is at most half full. */
typedef struct hr__finder {
	hr__list slots;
} hr__finder;

typedef struct hr__catalog {
	hr__list names, shapes;
	hr__list devices, allocators; /* of hr__trace_device and hr__trace_allocator */
	hr__finder device_finder, allocator_finder;
} hr__catalog;

void hr__catalog_init(hr__catalog *catalog);
void hr__catalog_free(hr__catalog *catalog);

/* HR_NO_HOST_MEMORY. */
hr_status hr__catalog_define(hr__catalog *catalog, const hr__definition *definition);

/* Notes that the event at byte [offset] of the file names what it names. HR_NO_HOST_MEMORY. */
hr_status hr__catalog_note(hr__catalog *catalog, const hr__event *event, uint64_t offset);

/* HR_BAD_FORMAT when something that was noted is not defined. */
hr_status hr__catalog_check(const hr__catalog *catalog);

/* Turns the event's numbers into this process's ids; what is not defined becomes "other". */
void hr__catalog_translate(const hr__catalog *catalog, hr__event *event);

#endif
