/* sort.h - heap sort, for code that must not allocate, as libc's qsort may. Inlined together with the comparison, so it costs what a
 * sort written for its type would. */
#ifndef HR_BASE_SORT_H
#define HR_BASE_SORT_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "core/base/assert.h"

/* Whether [a] comes before [b]. */
typedef bool (*hr__sort_before)(const void *a, const void *b, const void *context);

#define HR__SORT_INLINE static inline __attribute__((always_inline))
#define HR__SORT_ITEM_MAX 64u /* bytes */

/* Restores the order of a heap whose item [at] may have to move down. The first item of a heap is the one that comes last. */
HR__SORT_INLINE void hr__heap_sift(void *heap, size_t at, size_t count, size_t item, hr__sort_before before, const void *context)
{
	char *items = heap, moved[HR__SORT_ITEM_MAX];
	HR_ASSERT(item <= sizeof moved);
	memcpy(moved, items + at * item, item);
	for (size_t child; (child = 2 * at + 1) < count; at = child) {
		if (child + 1 < count && before(items + child * item, items + (child + 1) * item, context)) child++;
		if (!before(moved, items + child * item, context)) break;
		memcpy(items + at * item, items + child * item, item);
	}
	memcpy(items + at * item, moved, item);
}

HR__SORT_INLINE void hr__heap_make(void *heap, size_t count, size_t item, hr__sort_before before, const void *context)
{
	for (size_t i = count / 2; i-- > 0;) hr__heap_sift(heap, i, count, item, before, context);
}

/* Sorts [count] items of [item] bytes. The order of equal items is not defined. */
HR__SORT_INLINE void hr__sort(void *items, size_t count, size_t item, hr__sort_before before, const void *context)
{
	char last[HR__SORT_ITEM_MAX], *first = items;
	hr__heap_make(items, count, item, before, context);
	for (size_t i = count; i-- > 1;) {
		memcpy(last, first, item);
		memcpy(first, first + i * item, item);
		memcpy(first + i * item, last, item);
		hr__heap_sift(items, 0, i, item, before, context);
	}
}

#endif
