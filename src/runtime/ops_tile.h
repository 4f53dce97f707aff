/* ops_tile.h - the innermost loop of matrix products (ops_matrix.c), for those who pack matrices in their own way.
 *
 *     strip   HIGH rows of the left matrix, depth columns: element (i, k) at [k * HIGH + i]
 *     panel   depth rows of the right one, as many columns as two vectors hold: element (k, j) at [k * panel + j]
 *     tile    their product, HIGH rows of a panel's width
 *
 * Rows and columns that there are none of are zeros: they are multiplied, and then not taken. */
#ifndef HR_RUNTIME_OPS_TILE_H
#define HR_RUNTIME_OPS_TILE_H

#include <stdint.h>

#include "headroom_runtime.h"

#define HR__TILE_HIGH 6
#define HR__TILE_DEEP 256   /* rows of a panel at most, so that it stays in the first-level cache, or near it */
#define HR__TILE_WIDEST 128 /* bytes of the widest panel's row: two vectors of 64 */

typedef void (*hr__tile_kernel)(int64_t depth, const void *strip, const void *panel, void *tile);

/* The one for this processor; *panel gets the columns of its panels. float32 and float64. */
hr__tile_kernel hr__tile_kernel_for(hr_dtype dtype, int64_t *panel);

#endif
