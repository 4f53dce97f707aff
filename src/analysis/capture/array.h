/* array.h - an array that grows in place. Address space for the maximum size is reserved up front; memory is committed as the array
 * fills.
 *
 * Growing copies nothing and never holds memory twice, which matters for arrays of hundreds of megabytes. */
#ifndef HR_PROFILE_ARRAY_H
#define HR_PROFILE_ARRAY_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/assert.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/os/os.h"

typedef struct hr__array {
	char *base;
	size_t item_bytes;
	size_t reserved, committed; /* bytes */
	size_t count, most;         /* items */
} hr__array;

#define HR__ARRAY_FIRST ((size_t)64 << 10)
#define HR__ARRAY_STEP ((size_t)16 << 20)

/* Reserves address space for [most] items. HR_NO_HOST_MEMORY. */
static inline hr_status hr__array_init(hr__array *array, size_t item_bytes, uint64_t most)
{
	uint64_t bytes;
	void *base;
	*array = (hr__array){ .item_bytes = item_bytes, .most = (size_t)most };
	if (!hr__multiply(most ? most : 1, item_bytes, &bytes) || !hr__align_up(bytes, HR__ARRAY_FIRST, &bytes))
		return hr__fail(HR_NO_HOST_MEMORY, "no address space for %llu items of a trace", (unsigned long long)most);
	int error = hr__os()->reserve((size_t)bytes, hr__os_page_size(), &base);
	if (error) return hr__os_fail(error, "reading a trace");
	array->base = base;
	array->reserved = (size_t)bytes;
	return HR_OK;
}

static inline hr_status hr__array_grow(hr__array *array)
{
	size_t more = array->committed ? array->committed : HR__ARRAY_FIRST;
	if (more > HR__ARRAY_STEP) more = HR__ARRAY_STEP;
	if (more > array->reserved - array->committed) more = array->reserved - array->committed;
	if (array->count >= array->most || !more) return hr__fail(HR_TOO_MANY, "the trace has more than %zu items of one kind", array->most);
	int error = hr__os()->commit(array->base + array->committed, more);
	if (error) return hr__os_fail(error, "reading a trace");
	array->committed += more;
	return HR_OK;
}

/* Appends a zeroed item. Returns NULL when *status became HR_NO_HOST_MEMORY or HR_TOO_MANY, and when *status was not HR_OK on
 * entry, so that calls can be chained. */
static inline void *hr__array_push(hr__array *array, hr_status *status)
{
	size_t end = (array->count + 1) * array->item_bytes;
	if (HR_UNLIKELY(*status)) return NULL;
	if (HR_UNLIKELY(end > array->committed || array->count >= array->most)) {
		*status = hr__array_grow(array);
		if (*status) return NULL;
	}
	return array->base + array->count++ * array->item_bytes;
}

static inline void hr__array_free(hr__array *array)
{
	if (array->base) hr__os()->release(array->base, array->reserved);
	*array = (hr__array){ 0 };
}

#endif
