/* ops_tile.h - the innermost loop of matrix products (ops_matrix.c), for kernels that pack matrices themselves.
 *
 *     strip   HIGH rows of the left matrix, depth columns: element (i, k) at [k * HIGH + i]
 *     panel   depth rows of the right matrix, as many columns as two vectors hold: element (k, j) at [k * panel + j]
 *     tile    their product, HIGH rows of a panel's width
 *
 * Missing rows and columns are padded with zeros; their products are computed and discarded. */
#ifndef HR_RUNTIME_OPS_TILE_H
#define HR_RUNTIME_OPS_TILE_H

#include <stdint.h>

#include "headroom_runtime.h"

#define HR__TILE_HIGH 6
#define HR__TILE_DEEP 256   /* maximum rows of a panel, so that it fits in or near the L1 cache */
#define HR__TILE_WIDEST 128 /* bytes in a row of the widest panel: two vectors of 64 */

typedef void (*hr__tile_kernel)(int64_t depth, const void *strip, const void *panel, void *tile);

/* The kernel for this processor; *panel gets the number of columns of its panels. float32 and float64. */
hr__tile_kernel hr__tile_kernel_for(hr_dtype dtype, int64_t *panel);

#endif
