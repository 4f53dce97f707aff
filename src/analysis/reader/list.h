/* list.h - a growing list, for what the reader keeps of a file whose size it cannot trust. Memory comes from os.h. */
#ifndef HR_TRACE_LIST_H
#define HR_TRACE_LIST_H

#include <stddef.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/os/os.h"

/* Empty when all fields but item_bytes are zero. */
typedef struct hr__list {
	void *items;
	size_t count, capacity;
	size_t item_bytes;
} hr__list;

/* Makes room for [count] items; new items are zero. The capacity at least doubles, so that adding items one at a time is linear. */
static inline hr_status hr__list_reserve(hr__list *list, size_t count)
{
	int error = count <= list->capacity ? 0 : hr__os_grow(&list->items, &list->capacity, list->item_bytes, count > 16 ? count : 16);
	return error ? hr__os_fail(error, "reading a trace") : HR_OK;
}

static inline void *hr__list_at(const hr__list *list, size_t index)
{
	HR_ASSERT(index < list->count);
	return (char *)list->items + index * list->item_bytes;
}

static inline hr_status hr__list_add(hr__list *list, const void *item)
{
	hr_status status = hr__list_reserve(list, list->count + 1);
	if (status != HR_OK) return status;
	memcpy((char *)list->items + list->count++ * list->item_bytes, item, list->item_bytes);
	return HR_OK;
}

static inline void hr__list_free(hr__list *list)
{
	if (list->items != NULL) hr__os()->free(list->items, list->capacity * list->item_bytes);
	list->items = NULL;
	list->count = list->capacity = 0;
}

#endif
