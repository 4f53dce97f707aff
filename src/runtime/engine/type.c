/* type.c - see type.h. */
#include "runtime/engine/type.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"

/* So that sizes in bytes of any dtype, and sums of a few, fit in 64 bits. */
#define MOST_ELEMENTS (INT64_C(1) << 60)

/* Whether the product fits. Ignores zeros: [0,2^62] is as much a mistake as [2^62]. */
static bool counts_up(const int64_t *dims, int rank)
{
	uint64_t count = 1;
	for (int i = 0; i < rank; i++) {
		if (dims[i] == 0) continue;
		if (!hr__multiply(count, (uint64_t)dims[i], &count) || count > (uint64_t)MOST_ELEMENTS) return false;
	}
	return true;
}

hr_status hr__dims_make(const int64_t *dims, int rank, hr__dims *out)
{
	if (rank < 0 || rank > HR_SHAPE_MAX_RANK) {
		return hr__fail(HR_INVALID_ARGUMENT, "a shape has 0 to %d dimensions, not %d", HR_SHAPE_MAX_RANK, rank);
	}
	if (dims == NULL && rank > 0) return hr__fail(HR_INVALID_ARGUMENT, "a shape of %d dimensions needs them: dims is NULL", rank);
	hr__dims made = { .rank = rank };
	for (int i = 0; i < rank; i++) {
		if (dims[i] < 0) return hr__fail(HR_INVALID_ARGUMENT, "dimension %d is %" PRId64 "; it cannot be negative", i, dims[i]);
		made.d[i] = dims[i];
	}
	if (!counts_up(dims, rank)) {
		char text[HR__DIMS_TEXT];
		return hr__fail(HR_INVALID_ARGUMENT, "shape %s has more than 2^60 elements", hr__dims_text(&made, text, sizeof text));
	}
	*out = made;
	return HR_OK;
}

int64_t hr__dims_count(const hr__dims *dims)
{
	int64_t count = 1;
	/* Zeros first: the product of the other dimensions may overflow. */
	for (int i = 0; i < dims->rank; i++) {
		if (dims->d[i] == 0) return 0;
	}
	for (int i = 0; i < dims->rank; i++) count *= dims->d[i];
	return count;
}

bool hr__dims_equal(const hr__dims *a, const hr__dims *b)
{
	return a->rank == b->rank && (a->rank == 0 || memcmp(a->d, b->d, (size_t)a->rank * sizeof a->d[0]) == 0);
}

/* Dimension [i] of the shape, padded with ones on the left to [rank] dimensions. */
static int64_t aligned(const hr__dims *dims, int rank, int i)
{
	int own = i - (rank - dims->rank);
	return own < 0 ? 1 : dims->d[own];
}

bool hr__dims_broadcast(const hr__dims *a, const hr__dims *b, hr__dims *out)
{
	hr__dims both = { .rank = a->rank > b->rank ? a->rank : b->rank };
	for (int i = 0; i < both.rank; i++) {
		int64_t x = aligned(a, both.rank, i), y = aligned(b, both.rank, i);
		if (x != y && x != 1 && y != 1) return false;
		both.d[i] = x == 1 ? y : x;
	}
	if (!counts_up(both.d, both.rank)) return false;
	*out = both;
	return true;
}

const char *hr__dims_text(const hr__dims *dims, char *out, size_t capacity)
{
	char text[HR_SHAPE_MAX_RANK * 21 + 3] = "[";
	size_t length = 1;
	for (int i = 0; i < dims->rank; i++) {
		length += (size_t)snprintf(text + length, sizeof text - length, "%s%" PRId64, i ? "," : "", dims->d[i]);
	}
	snprintf(text + length, sizeof text - length, "]");
	if (capacity > 0) {
		size_t taken = strlen(text) < capacity ? strlen(text) : capacity - 1;
		memcpy(out, text, taken);
		out[taken] = 0;
	}
	return out;
}

uint64_t hr__type_bytes(const hr__type *type)
{
	return (uint64_t)hr__dims_count(&type->dims) * hr_dtype_size(type->dtype);
}

bool hr__dtype_is_float(hr_dtype dtype)
{
	return dtype == HR_DTYPE_FLOAT32 || dtype == HR_DTYPE_FLOAT64;
}

bool hr__dtype_is_index(hr_dtype dtype)
{
	return dtype == HR_DTYPE_INT32 || dtype == HR_DTYPE_INT64;
}

bool hr__dtype_is_number(hr_dtype dtype)
{
	return hr__dtype_is_float(dtype) || hr__dtype_is_index(dtype) || dtype == HR_DTYPE_UINT8;
}

hr_dtype hr__gradient_dtype(hr_dtype dtype)
{
	return dtype == HR_DTYPE_BFLOAT16 ? HR_DTYPE_FLOAT32 : dtype;
}
