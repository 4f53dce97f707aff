/* conv_tile.h - the innermost loops of convolutions (ops_conv.c). Both read images at addresses that the caller computes, so that no matrix of
 * windows is packed.
 *
 *     places   tile [high, 2 vectors]  = strip [depth, high] by the images: row k has two vectors, at first + offsets[k] and second + offsets[k]
 *     taps     sums [high, 2 vectors] += images by panel: for each place, one element at from[i] and two vectors of the panel
 *
 * Vectors of images need not be aligned. */
#ifndef HR_RUNTIME_CONV_TILE_H
#define HR_RUNTIME_CONV_TILE_H

#include <stdint.h>

#include "headroom_runtime.h"

#define HR__CONV_HIGHEST 8 /* rows of a tile, at most */
#define HR__CONV_WIDEST 128 /* bytes in a row of a tile: two vectors of 64, at most */

typedef struct hr__conv_kernels {
	int64_t high, lanes; /* rows of a tile; elements of a vector */
	void (*places)(int64_t depth, const void *strip, const int64_t *offsets, const void *first, const void *second, void *tile);
	/* Element k of row r is at from[i] + r * pitch + k, its vectors at panel + (r * columns + k) * 2 * lanes. */
	void (*taps)(int64_t rows, int64_t columns, int64_t pitch, const void *const *from, const void *panel, void *sums);
} hr__conv_kernels;

/* The kernels for this processor. float32 and float64. */
hr__conv_kernels hr__conv_kernels_for(hr_dtype dtype);

#endif
