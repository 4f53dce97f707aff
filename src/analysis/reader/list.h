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
	void *items;
	size_t capacity = list->capacity * 2 > 16 ? list->capacity * 2 : 16;
	if (count <= list->capacity) return HR_OK;
	if (capacity < count) capacity = count;
	int error = hr__os()->alloc(capacity * list->item_bytes, &items);
	if (error != 0) return hr__os_fail(error, "reading a trace");
	if (list->count > 0) memcpy(items, list->items, list->count * list->item_bytes);
	if (list->items != NULL) hr__os()->free(list->items, list->capacity * list->item_bytes);
	list->items = items;
	list->capacity = capacity;
	return HR_OK;
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
