/* type.h - type of a value: dtype and shape. */
#ifndef HR_RUNTIME_TYPE_H
#define HR_RUNTIME_TYPE_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom_runtime.h"

typedef struct hr__dims {
	int rank;
	int64_t d[HR_SHAPE_MAX_RANK];
} hr__dims;

typedef struct hr__type {
	hr_dtype dtype;
	hr__dims dims;
} hr__type;

/* HR_INVALID_ARGUMENT: rank or dimension out of range, or more than 2^60 elements. */
hr_status hr__dims_make(const int64_t *dims, int rank, hr__dims *out);
int64_t hr__dims_count(const hr__dims *dims); /* elements */
bool hr__dims_equal(const hr__dims *a, const hr__dims *b);
/* The shape that both broadcast to; false if they are incompatible. */
bool hr__dims_broadcast(const hr__dims *a, const hr__dims *b, hr__dims *out);
/* Formats as "[64,1024]", truncated to [capacity]. Returns [out]. */
const char *hr__dims_text(const hr__dims *dims, char *out, size_t capacity);
#define HR__DIMS_TEXT 96

uint64_t hr__type_bytes(const hr__type *type);
bool hr__dtype_is_float(hr_dtype dtype);   /* float32, float64: the dtypes that ops compute in */
bool hr__dtype_is_index(hr_dtype dtype);   /* int32, int64 */
bool hr__dtype_is_number(hr_dtype dtype);  /* float32, float64, int32, int64, uint8 */
/* The dtype that gradients are computed in: the value's own, but float32 for bfloat16, so that gradients are summed in float32 and
 * rounded once, when they are returned. */
hr_dtype hr__gradient_dtype(hr_dtype dtype);

#endif
