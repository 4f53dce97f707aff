/* ops_conv.c - convolutions of images and their gradients, as matrix products (kernels/conv_tile.h).
 *
 * The right matrix of each product has a row for each tap (channel, row and column in the window) and a column for each place of the
 * window (image, row, column):
 *
 *     conv2d              output [o, places]     = filter [o, taps] by x [taps, places]
 *     conv2d_grad_input   gradient [c, places]   = filter, rotated by 180 degrees, [c, taps] by the output gradient [taps, places]
 *     conv2d_grad_filter  gradient [taps, o]     = x [taps, places] by the output gradient [places, o]
 *
 * That matrix is never made. Bands, a few rows and columns of places of one image, are copied with their padding to scratch memory; in
 * such a copy the pixels of a tap are at one distance from their places, for all places. With a stride of s, the copy holds every s-th
 * pixel of every s-th row together (a phase), for each first row and column below s, so that pixels of neighbouring places are neighbours.
 *
 * The first two products take the channels in blocks of about DEEP taps, pack the filter's part for all threads, and divide the bands
 * among the threads. The third divides the places into segments, whose sums are added in scratch memory, in order. The division depends
 * on shapes alone, and scratch does not grow with the batch.
 *
 * With a stride, a pixel is covered by some taps only, and every stride-th pixel by the same ones. The gradient of the images is
 * therefore one product for each kind of pixel that has taps, over those places and those taps (struct pixel_kind). */
#include <inttypes.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "runtime/ops/ops.h"
#include "runtime/kernels/conv_tile.h"

#define HIGHEST HR__CONV_HIGHEST
#define WIDEST HR__CONV_WIDEST
#define DEEP 576                    /* taps of a block of channels, if a channel has no more */
#define BAND_BYTES (64 << 10)      /* of a band's copy, if a row of places needs no more */
#define COLUMNS 64                  /* of a band whose rows are divided: a multiple */
#define BESIDE 4                    /* channels of a gradient; divides two vectors of any width */
#define PARTS 16                    /* run at the same time, each with scratch memory of its own */
#define SUMS_BYTES (2 << 20)        /* maximum scratch for the sums of segments */
#define LARGEST INT64_C(0x7fffffff) /* limit of stride and padding, so that sums with a dimension do not overflow */

/* ---- types ---- */

static hr_status misfit(const hr__dims *x, const hr__dims *filter, const char *why)
{
	char left[HR__DIMS_TEXT], right[HR__DIMS_TEXT];
	return hr__fail(HR_INVALID_ARGUMENT, "shapes %s and %s are incompatible: %s", hr__dims_text(x, left, sizeof left),
	                hr__dims_text(filter, right, sizeof right), why);
}

static int64_t places_along(int64_t image, int64_t window, const hr__attrs *attrs)
{
	return (image + 2 * attrs->padding - window) / attrs->stride + 1;
}

static hr_status output_dims(const hr__dims *x, const hr__dims *filter, const hr__attrs *attrs, hr__dims *out)
{
	if (attrs->stride < 1 || attrs->stride > LARGEST)
		return hr__fail(HR_INVALID_ARGUMENT, "stride is %" PRId64 "; it is at least 1", attrs->stride);
	if (attrs->padding < 0 || attrs->padding > LARGEST)
		return hr__fail(HR_INVALID_ARGUMENT, "padding is %" PRId64 "; it is at least 0", attrs->padding);
	if (x->rank != 4 || filter->rank != 4)
		return misfit(x, filter, "images are [n,channels,height,width], a filter [out channels,channels,height,width]");
	if (x->d[1] != filter->d[1]) return misfit(x, filter, "their second dimensions, the channels, differ");
	if (filter->d[2] == 0 || filter->d[3] == 0) return misfit(x, filter, "the filter has no height or no width");
	for (int i = 2; i < 4; i++) {
		if (x->d[i] + 2 * attrs->padding < filter->d[i])
			return misfit(x, filter, "the filter is larger than the image with its padding");
	}
	int64_t dims[4] = { x->d[0], filter->d[0], places_along(x->d[2], filter->d[2], attrs),
		                places_along(x->d[3], filter->d[3], attrs) };
	return hr__dims_make(dims, 4, out);
}

HR__INFER(conv2d)
{
	(void)count;
	hr_status status = hr__need_float(&in[0]);
	if (status == HR_OK) status = hr__need_same_dtype(&in[0], &in[1]);
	if (status == HR_OK) status = output_dims(&in[0].dims, &in[1].dims, attrs, &out->dims);
	out->dtype = in[0].dtype;
	return status;
}

/* Inputs: the gradient of the output, and the image or the filter, whichever the gradient is not of. */
static hr_status infer_gradient(const hr__type *in, const hr__attrs *attrs, const hr__dims *x, const hr__dims *filter,
                                hr__type *out)
{
	hr__type whole = { .dtype = in[1].dtype };
	hr_status status = hr__infer_conv2d((hr__type[]){ { in[1].dtype, *x }, { in[1].dtype, *filter } }, 2, attrs, &whole);
	if (status == HR_OK) status = hr__need_same_dtype(&in[0], &whole);
	if (status == HR_OK) status = hr__need_same_dims(&in[0], &whole);
	*out = (hr__type){ in[0].dtype, attrs->dims };
	return status;
}

HR__INFER(conv2d_grad_input)
{
	(void)count;
	return infer_gradient(in, attrs, &attrs->dims, &in[1].dims, out);
}

HR__INFER(conv2d_grad_filter)
{
	(void)count;
	return infer_gradient(in, attrs, &in[1].dims, &attrs->dims, out);
}

/* ---- bands ---- */

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t up(int64_t x, int64_t unit)
{
	return (x + unit - 1) / unit;
}

/* Images, and windows in them. Tap (c, i, j) of place (n, y, x) is the pixel (y * step + i - above, x * step + j - left) of channel c
 * of image n. */
struct windows {
	int64_t images, channels, height, width;
	int64_t rows, columns; /* of places in an image */
	int64_t high, wide;    /* of the window */
	int64_t step, above, left;
};

/* How images are divided into bands, and channels into blocks. In the copy of a band, tap (c, i, j) of place (y, x) is in the plane of
 * channel c and phase (i % step, j % step), in row y + i / step and column x + j / step. */
struct banding {
	int64_t channels;                  /* of a block */
	int64_t phases_high, phases_wide;
	int64_t rows, columns;             /* of places in a band, at most */
	int64_t below, beside;             /* rows and columns of a plane beyond those of the places */
	int64_t pitch, plane;              /* elements of a row and of a plane */
	int64_t down, across;              /* number of bands in an image */
	int64_t bytes;                     /* of a copy */
};

static struct banding banding_of(const struct windows *w, int64_t size)
{
	struct banding b = { .channels = least(most(DEEP / (w->high * w->wide), 1), w->channels) };
	b.phases_high = least(w->step, w->high);
	b.phases_wide = least(w->step, w->wide);
	b.below = (w->high - 1) / w->step;
	b.beside = (w->wide - 1) / w->step;
	int64_t planes = most(b.channels * b.phases_high * b.phases_wide, 1);
	int64_t room = BAND_BYTES / size / planes; /* elements of a plane */
	b.columns = w->columns;
	if ((b.columns + b.beside) * (1 + b.below) > room)
		b.columns = least(b.columns, most((room / (1 + b.below) - b.beside) / COLUMNS * COLUMNS, COLUMNS));
	b.rows = most(least(room / (b.columns + b.beside) - b.below, least(w->rows, up(w->images * w->rows, PARTS))), 1);
	b.down = up(w->rows, b.rows);
	b.rows = up(w->rows, most(b.down, 1));
	b.across = up(w->columns, b.columns);
	b.pitch = b.columns + b.beside;
	b.plane = (b.rows + b.below) * b.pitch;
	b.bytes = planes * b.plane * size + WIDEST; /* the last vector may end behind the last plane */
	return b;
}

/* A band: [rows] by [columns] places of image n, from row y and column x. */
struct band {
	int64_t n, y, x, rows, columns;
};

/* ---- problems ---- */

/* Pixels that are covered by the same taps: every stride-th pixel from [row] and [column], with every stride-th tap of the rotated
 * filter from [tap_row] and [tap_column]. */
struct pixel_kind {
	int64_t stride, row, column, tap_row, tap_column;
	int64_t high, wide; /* of the whole window */
};

struct conv {
	hr__work *work;
	hr__conv_kernels kernels;
	bool is_f32;
	bool of_input;          /* computes the gradient of the images */
	struct pixel_kind kind; /* of the pixels, if of_input */
	int64_t size;
	const void *images;
	struct windows windows;
	struct banding banding;
	int64_t out_channels, window; /* taps of a channel */
	int64_t first, channels, deep; /* the current block of channels, and its taps */
	int64_t *offsets;              /* of its taps from their places, in elements */
	char *strips, *copies;         /* the packed filter; copies of bands */
	int64_t segments, groups, panels, blocks; /* of a filter's gradient */
};

static int64_t bands_of(const struct conv *conv)
{
	return conv->windows.images * conv->banding.down * conv->banding.across;
}

static struct band band_at(const struct conv *conv, int64_t number)
{
	const struct banding *b = &conv->banding;
	struct band band = { .n = number / (b->down * b->across), .y = number / b->across % b->down * b->rows, .x = number % b->across * b->columns };
	band.rows = least(b->rows, conv->windows.rows - band.y);
	band.columns = least(b->columns, conv->windows.columns - band.x);
	return band;
}

static struct conv conv_of(hr__work *work, const struct windows *windows, int64_t out_channels)
{
	hr_dtype dtype = work->out_types[0].dtype;
	struct conv conv = { .work = work, .is_f32 = dtype == HR_DTYPE_FLOAT32, .size = (int64_t)hr_dtype_size(dtype) };
	conv.kernels = hr__conv_kernels_for(dtype);
	conv.windows = *windows;
	conv.banding = banding_of(windows, conv.size);
	conv.out_channels = out_channels;
	conv.window = windows->high * windows->wide;
	return conv;
}

struct tap {
	int64_t channel, row, column;
};

/* Of the current block. */
static struct tap tap_at(const struct conv *conv, int64_t number)
{
	const struct windows *w = &conv->windows;
	return (struct tap){ conv->first + number / conv->window, number / w->wide % w->high, number % w->wide };
}

static int64_t offset_of(const struct conv *conv, int64_t number)
{
	const struct banding *b = &conv->banding;
	struct tap tap = tap_at(conv, number);
	int64_t step = conv->windows.step, phase = tap.row % step * b->phases_wide + tap.column % step;
	return ((tap.channel - conv->first) * b->phases_high * b->phases_wide + phase) * b->plane + tap.row / step * b->pitch + tap.column / step;
}

/* Offset of a tap of the filter [o, c, i, j] in output channel [channel]. Of the rotated filter, the tap's channel is o. */
static inline int64_t in_filter(const struct conv *conv, int64_t channel, struct tap tap)
{
	const struct pixel_kind *kind = &conv->kind;
	if (!conv->of_input) return ((channel * conv->windows.channels + tap.channel) * conv->windows.high + tap.row) * conv->windows.wide + tap.column;
	int64_t row = kind->high - 1 - kind->tap_row - tap.row * kind->stride,
			column = kind->wide - 1 - kind->tap_column - tap.column * kind->stride;
	return ((tap.channel * conv->out_channels + channel) * kind->high + row) * kind->wide + column;
}

/* Offset of a place in the output; *apart gets the distance of its neighbour. */
static int64_t in_output(const struct conv *conv, int64_t n, int64_t channel, int64_t y, int64_t x, int64_t *apart)
{
	const struct pixel_kind *kind = &conv->kind;
	const hr__dims *out = &conv->work->out_types[0].dims;
	*apart = 1;
	if (conv->of_input) {
		*apart = kind->stride;
		y = kind->row + y * kind->stride;
		x = kind->column + x * kind->stride;
	}
	return ((n * conv->out_channels + channel) * out->d[2] + y) * out->d[3] + x;
}

/* Selects a block of channels. */
static void take_block(struct conv *conv, int64_t number)
{
	conv->first = number * conv->banding.channels;
	conv->channels = least(conv->banding.channels, conv->windows.channels - conv->first);
	conv->deep = conv->channels * conv->window;
}

/* ---- loops ---- */

/* How vectors cover the places of a band: row by row, or all rows with the columns between them, whichever needs fewer vectors. */
struct covering {
	bool by_rows;
	int64_t per_row, vectors;
};

static struct covering covering_of(const struct conv *conv, const struct band *band)
{
	int64_t lanes = conv->kernels.lanes, per_row = up(band->columns, lanes);
	int64_t whole = up((band->rows - 1) * conv->banding.pitch + band->columns, lanes);
	if (whole < band->rows * per_row) return (struct covering){ false, whole, whole };
	return (struct covering){ true, per_row, band->rows * per_row };
}

static int64_t vector_at(const struct conv *conv, const struct covering *covering, int64_t number)
{
	return number / covering->per_row * conv->banding.pitch + number % covering->per_row * conv->kernels.lanes;
}

#define FOR_TYPE(type, name)                                                                                                       \
	/* [count] pixels of a row from column x, every [step]-th one; zeros beside the image. [row] NULL: above or below it. */       \
	static inline void copy_row_##name(const type *row, int64_t width, int64_t x, int64_t step, int64_t count, type *to)           \
	{                                                                                                                              \
		int64_t i = 0;                                                                                                             \
		for (; row && i < count && x < 0; i++, x += step) to[i] = 0;                                                               \
		if (row && step == 1 && x < width) {                                                                                       \
			int64_t some = least(count - i, width - x);                                                                            \
			memcpy(to + i, row + x, (size_t)some * sizeof(type));                                                                  \
			i += some;                                                                                                             \
		} else if (row) {                                                                                                          \
			for (; i < count && x < width; i++, x += step) to[i] = row[x];                                                         \
		}                                                                                                                          \
		for (; i < count; i++) to[i] = 0;                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* One phase of one channel of a band. */                                                                                      \
	static void copy_plane_##name(const struct conv *conv, const struct band *band, int64_t channel, int64_t top, int64_t left, type *to) \
	{                                                                                                                              \
		const struct windows *w = &conv->windows;                                                                                  \
		const type *image = (const type *)conv->images + (band->n * w->channels + channel) * w->height * w->width;                 \
		for (int64_t r = 0; r < band->rows + conv->banding.below; r++) {                                                           \
			int64_t y = (band->y + r) * w->step + top - w->above, x = band->x * w->step + left - w->left;                          \
			copy_row_##name(y >= 0 && y < w->height ? image + y * w->width : NULL, w->width, x, w->step, conv->banding.pitch,      \
			                to + r * conv->banding.pitch);                                                                         \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	static void copy_band_##name(const struct conv *conv, const struct band *band, type *to)                                       \
	{                                                                                                                              \
		for (int64_t c = 0; c < conv->channels; c++)                                                                               \
			for (int64_t top = 0; top < conv->banding.phases_high; top++)                                                          \
				for (int64_t left = 0; left < conv->banding.phases_wide; left++, to += conv->banding.plane)                        \
					copy_plane_##name(conv, band, conv->first + c, top, left, to);                                                 \
	}                                                                                                                              \
                                                                                                                                   \
	/* A strip of the filter, [o, taps]. */                                                                                        \
	static void pack_filter_##name(const struct conv *conv, int64_t strip, type *to)                                               \
	{                                                                                                                              \
		const type *filter = conv->work->in[1];                                                                                    \
		int64_t high = conv->kernels.high;                                                                                         \
		for (int64_t k = 0; k < conv->deep; k++) {                                                                                 \
			struct tap tap = tap_at(conv, k);                                                                                      \
			for (int64_t i = 0; i < high; i++) {                                                                                   \
				int64_t row = strip * high + i;                                                                                    \
				to[k * high + i] = row < conv->out_channels ? filter[in_filter(conv, row, tap)] : 0;                               \
			}                                                                                                                      \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* Stores [count] neighbouring places of a tile, or adds them to those of earlier blocks of channels. */                       \
	static void put_run_##name(const struct conv *conv, int64_t n, int64_t channel, int64_t y, int64_t x, int64_t count, const type *tile) \
	{                                                                                                                              \
		int64_t rows = least(conv->kernels.high, conv->out_channels - channel), apart;                                             \
		for (int64_t i = 0; i < rows; i++, tile += 2 * conv->kernels.lanes) {                                                      \
			type *to = (type *)conv->work->out[0] + in_output(conv, n, channel + i, y, x, &apart);                                 \
			if (conv->first == 0 && apart == 1) memcpy(to, tile, (size_t)count * sizeof(type));                                    \
			else if (conv->first == 0)                                                                                             \
				for (int64_t k = 0; k < count; k++) to[k * apart] = tile[k];                                                       \
			else                                                                                                                   \
				for (int64_t k = 0; k < count; k++) to[k * apart] += tile[k];                                                      \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* The same for one vector of a tile, which begins [at] places after the band's first, and ends with its row if [by_rows]. */  \
	static void put_vector_##name(const struct conv *conv, const struct band *band, int64_t channel, int64_t at, bool by_rows, const type *tile) \
	{                                                                                                                              \
		int64_t lanes = conv->kernels.lanes, pitch = conv->banding.pitch;                                                          \
		for (int64_t i = 0; i < lanes;) {                                                                                          \
			int64_t y = (at + i) / pitch, x = (at + i) % pitch, left = least(lanes - i, pitch - x);                                \
			if (y >= band->rows) return;                                                                                           \
			if (x < band->columns)                                                                                                 \
				put_run_##name(conv, band->n, channel, band->y + y, band->x + x, least(left, band->columns - x), tile + i);        \
			if (by_rows) return;                                                                                                   \
			i += left;                                                                                                             \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	static void multiply_places_##name(const struct conv *conv, const struct band *band, type *copy)                               \
	{                                                                                                                              \
		type tile[HIGHEST * WIDEST / sizeof(type)];                                                                                \
		struct covering covering = covering_of(conv, band);                                                                        \
		int64_t high = conv->kernels.high, lanes = conv->kernels.lanes;                                                            \
		copy_band_##name(conv, band, copy);                                                                                        \
		for (int64_t v = 0; v < covering.vectors; v += 2) {                                                                        \
			bool two = v + 1 < covering.vectors;                                                                                   \
			int64_t a = vector_at(conv, &covering, v), b = two ? vector_at(conv, &covering, v + 1) : a;                            \
			for (int64_t strip = 0; strip < up(conv->out_channels, high); strip++) {                                               \
				conv->kernels.places(conv->deep, (const type *)conv->strips + strip * high * conv->deep, conv->offsets, copy + a, copy + b, tile); \
				put_vector_##name(conv, band, strip * high, a, covering.by_rows, tile);                                            \
				if (two) put_vector_##name(conv, band, strip * high, b, covering.by_rows, tile + lanes);                           \
			}                                                                                                                      \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* A panel of an output's gradient: its places in a band by two vectors of channels, BESIDE of which are interleaved at a time. */ \
	static void pack_gradient_##name(const struct conv *conv, const struct band *band, int64_t panel, type *to)                    \
	{                                                                                                                              \
		const struct windows *w = &conv->windows;                                                                                  \
		int64_t width = 2 * conv->kernels.lanes, some = least(width, conv->out_channels - panel * width), each = w->rows * w->columns; \
		const type *from = (const type *)conv->work->in[0] + (band->n * conv->out_channels + panel * width) * each;                \
		for (int64_t r = 0; r < band->rows; r++, to += band->columns * width) {                                                    \
			const type *row = from + (band->y + r) * w->columns + band->x;                                                         \
			for (int64_t i = 0; i < width; i += BESIDE) {                                                                          \
				const type *side[BESIDE];                                                                                          \
				/* Channels beyond the last are computed like the first one and discarded. */                                      \
				for (int64_t t = 0; t < BESIDE; t++) side[t] = row + (i + t < some ? i + t : 0) * each;                            \
				for (int64_t k = 0; k < band->columns; k++) {                                                                      \
					for (int64_t t = 0; t < BESIDE; t++) to[k * width + i + t] = side[t][k];                                       \
				}                                                                                                                  \
			}                                                                                                                      \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* Adds a band to the sums of the current block's taps, [strips of taps] tiles. */                                             \
	static void multiply_taps_##name(const struct conv *conv, const struct band *band, int64_t panel, type *copy, type *gradient, type *sums) \
	{                                                                                                                              \
		int64_t high = conv->kernels.high;                                                                                         \
		copy_band_##name(conv, band, copy);                                                                                        \
		pack_gradient_##name(conv, band, panel, gradient);                                                                         \
		for (int64_t tap = 0; tap < conv->deep; tap += high, sums += high * 2 * conv->kernels.lanes) {                             \
			const void *from[HIGHEST];                                                                                             \
			/* Rows beyond the last tap are computed like the first one and discarded. */                                          \
			for (int64_t i = 0; i < high; i++) from[i] = copy + conv->offsets[tap + i < conv->deep ? tap + i : tap];               \
			conv->kernels.taps(band->rows, band->columns, conv->banding.pitch, from, gradient, sums);                              \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* Stores the sums of a panel in a gradient [o, taps]. */                                                                      \
	static void put_sums_##name(const struct conv *conv, int64_t panel, const type *sums, type *to)                                \
	{                                                                                                                              \
		int64_t width = 2 * conv->kernels.lanes, some = least(width, conv->out_channels - panel * width);                          \
		int64_t taps = conv->windows.channels * conv->window;                                                                      \
		for (int64_t i = 0; i < some; i++) {                                                                                       \
			for (int64_t k = 0; k < conv->deep; k++) to[(panel * width + i) * taps + conv->first * conv->window + k] = sums[k * width + i]; \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	static void join_##name(const struct conv *conv, const type *sums, int64_t begin, int64_t end)                                 \
	{                                                                                                                              \
		type *out = conv->work->out[0];                                                                                            \
		int64_t each = conv->out_channels * conv->windows.channels * conv->window;                                                 \
		for (int64_t s = 1; s < conv->segments; s++, sums += each) {                                                               \
			for (int64_t i = begin; i < end; i++) out[i] += sums[i];                                                               \
		}                                                                                                                          \
	}

FOR_TYPE(float, f32)
FOR_TYPE(double, f64)

/* ---- the output and the gradient of the images ---- */

static int64_t aligned(int64_t bytes)
{
	return up(bytes, 64) * 64;
}

static int64_t offsets_bytes(const struct windows *windows, const struct banding *banding)
{
	return aligned(banding->channels * windows->high * windows->wide * (int64_t)sizeof(int64_t));
}

/* Scratch for run_places: offsets, strips, copies. */
static int64_t places_bytes(const struct windows *windows, int64_t out_channels, int64_t size)
{
	struct banding banding = banding_of(windows, size);
	int64_t deep = banding.channels * windows->high * windows->wide, bands = windows->images * banding.down * banding.across;
	return offsets_bytes(windows, &banding) + aligned((out_channels + HIGHEST) * deep * size) + least(bands, PARTS) * aligned(banding.bytes);
}

static void pack_range(void *context, int64_t begin, int64_t end)
{
	const struct conv *conv = context;
	for (int64_t strip = begin; strip < end; strip++) {
		char *to = conv->strips + strip * conv->kernels.high * conv->deep * conv->size;
		if (conv->is_f32) pack_filter_f32(conv, strip, (float *)to);
		else pack_filter_f64(conv, strip, (double *)to);
	}
}

static void places_part(void *context, uint32_t part)
{
	const struct conv *conv = context;
	char *copy = conv->copies + part * aligned(conv->banding.bytes);
	for (int64_t number = part; number < bands_of(conv); number += PARTS) {
		struct band band = band_at(conv, number);
		if (conv->is_f32) multiply_places_f32(conv, &band, (float *)copy);
		else multiply_places_f64(conv, &band, (double *)copy);
	}
}

static void run_places(struct conv *conv)
{
	hr__work *work = conv->work;
	int64_t bands = bands_of(conv), high = conv->kernels.high;
	if (!bands || !conv->out_channels) return;
	conv->offsets = work->scratch;
	conv->strips = (char *)work->scratch + offsets_bytes(&conv->windows, &conv->banding);
	for (int64_t number = 0; number * conv->banding.channels < conv->windows.channels; number++) {
		take_block(conv, number);
		for (int64_t k = 0; k < conv->deep; k++) conv->offsets[k] = offset_of(conv, k);
		conv->copies = conv->strips + aligned(up(conv->out_channels, high) * high * conv->deep * conv->size);
		hr__each_range(work, up(conv->out_channels, high), hr__grain_of(HR__GRAIN, high * conv->deep), pack_range, conv);
		hr__team_run(work->team, (uint32_t)least(bands, PARTS), places_part, conv);
	}
}

static struct windows windows_of(const hr__dims *x, const hr__dims *filter, const hr__dims *out, const hr__attrs *attrs)
{
	return (struct windows){ .images = x->d[0],
		                     .channels = x->d[1],
		                     .height = x->d[2],
		                     .width = x->d[3],
		                     .rows = out->d[2],
		                     .columns = out->d[3],
		                     .high = filter->d[2],
		                     .wide = filter->d[3],
		                     .step = attrs->stride,
		                     .above = attrs->padding,
		                     .left = attrs->padding };
}

HR__SCRATCH(conv2d)
{
	struct windows windows = windows_of(&in[0].dims, &in[1].dims, &out->dims, attrs);
	if (!hr__type_bytes(out)) return 0;
	return (uint64_t)places_bytes(&windows, out->dims.d[1], (int64_t)hr_dtype_size(out->dtype));
}

/* Zeros the output, for cases without products. */
static void clear(hr__work *work)
{
	uint64_t bytes = hr__type_bytes(&work->out_types[0]);
	if (bytes > 0) memset(work->out[0], 0, bytes);
}

HR__RUN(conv2d)
{
	const hr__dims *x = &work->in_types[0].dims, *filter = &work->in_types[1].dims, *out = &work->out_types[0].dims;
	struct windows windows = windows_of(x, filter, out, work->attrs);
	if (x->d[1] == 0) clear(work);
	if (x->d[1] == 0 || !hr__type_bytes(&work->out_types[0])) return;
	struct conv conv = conv_of(work, &windows, filter->d[0]);
	conv.images = work->in[0];
	run_places(&conv);
}

/* The pixels in [size] and taps in [window] that belong to tap [first]; false if there are no such pixels. *before is how far the
 * window of the first pixel extends before the output's gradient. */
static bool find_kind(int64_t first, int64_t size, int64_t window, const hr__attrs *attrs, int64_t *from, int64_t *places,
                      int64_t *taps, int64_t *before)
{
	int64_t stride = attrs->stride, reach = window - 1 - attrs->padding;
	if (first >= least(window, stride)) return false;
	*from = ((reach - first) % stride + stride) % stride;
	if (*from >= size) return false;
	*places = up(size - *from, stride);
	*taps = up(window - first, stride);
	*before = (reach - first - *from) / stride;
	return true;
}

/* Finds the kind of pixels that kind->tap_row and kind->tap_column belong to. The windows that cover a pixel begin up to a window's size
 * before it, from the last tap to the first: the filter is rotated. */
static bool windows_of_kind(const hr__dims *grad, const hr__dims *filter, const hr__dims *x, const hr__attrs *attrs, struct pixel_kind *kind,
                            struct windows *out)
{
	kind->stride = attrs->stride;
	kind->high = filter->d[2];
	kind->wide = filter->d[3];
	*out = (struct windows){ .images = grad->d[0], .channels = grad->d[1], .height = grad->d[2], .width = grad->d[3], .step = 1 };
	return find_kind(kind->tap_row, x->d[2], kind->high, attrs, &kind->row, &out->rows, &out->high, &out->above) &&
	       find_kind(kind->tap_column, x->d[3], kind->wide, attrs, &kind->column, &out->columns, &out->wide, &out->left);
}

#define EACH_KIND(kind, filter, stride)                                                   \
	for ((kind).tap_row = 0; (kind).tap_row < least((filter)->d[2], stride); (kind).tap_row++) \
		for ((kind).tap_column = 0; (kind).tap_column < least((filter)->d[3], stride); (kind).tap_column++)

HR__SCRATCH(conv2d_grad_input)
{
	int64_t bytes = 0;
	struct pixel_kind kind;
	struct windows windows;
	if (!hr__type_bytes(out) || !hr__type_bytes(&in[0])) return 0;
	EACH_KIND(kind, &in[1].dims, attrs->stride)
	{
		if (windows_of_kind(&in[0].dims, &in[1].dims, &out->dims, attrs, &kind, &windows))
			bytes = most(bytes, places_bytes(&windows, in[1].dims.d[1], (int64_t)hr_dtype_size(out->dtype)));
	}
	return (uint64_t)bytes;
}

HR__RUN(conv2d_grad_input)
{
	const hr__dims *grad = &work->in_types[0].dims, *filter = &work->in_types[1].dims, *x = &work->out_types[0].dims;
	int64_t stride = work->attrs->stride;
	bool has_products = hr__type_bytes(&work->in_types[0]) && hr__type_bytes(&work->out_types[0]);
	struct pixel_kind kind;
	struct windows windows;
	if (!has_products || filter->d[2] < stride || filter->d[3] < stride) clear(work); /* some pixels have no taps */
	if (!has_products) return;
	EACH_KIND(kind, filter, stride)
	{
		if (!windows_of_kind(grad, filter, x, work->attrs, &kind, &windows)) continue;
		struct conv conv = conv_of(work, &windows, filter->d[1]);
		conv.images = work->in[0];
		conv.of_input = true;
		conv.kind = kind;
		run_places(&conv);
	}
}

/* ---- the gradient of the filter ---- */

/* Scratch of the gradient of a filter: offsets; for each part a copy, a panel of the output's gradient, and sums; the sums of all
 * segments but the first, whose sums are in the output. */
struct filter_scratch {
	int64_t offsets, copy, gradient, sums;
	int64_t segments, of_segment;
};

static struct filter_scratch filter_scratch_of(const struct windows *w, const struct banding *banding, int64_t out_channels, int64_t size)
{
	int64_t window = w->high * w->wide, bands = w->images * banding->down * banding->across;
	struct filter_scratch s = { .offsets = offsets_bytes(w, banding), .copy = aligned(banding->bytes) };
	s.gradient = aligned(banding->rows * banding->columns * WIDEST);
	s.sums = aligned((banding->channels * window + HIGHEST) * WIDEST);
	s.of_segment = out_channels * w->channels * window * size;
	s.segments = most(least(least(SUMS_BYTES / most(s.of_segment, 1), PARTS), bands), 1);
	return s;
}

HR__SCRATCH(conv2d_grad_filter)
{
	struct windows windows = windows_of(&in[1].dims, &out->dims, &in[0].dims, attrs);
	if (!hr__type_bytes(out) || !hr__type_bytes(&in[0])) return 0;
	int64_t size = (int64_t)hr_dtype_size(out->dtype);
	struct banding banding = banding_of(&windows, size);
	struct filter_scratch s = filter_scratch_of(&windows, &banding, out->dims.d[0], size);
	return (uint64_t)(s.offsets + PARTS * (s.copy + s.gradient + s.sums) + (s.segments - 1) * s.of_segment);
}

/* The sums of a segment, one channel block and one panel of output channels after the other. */
static void filter_part(void *context, uint32_t number)
{
	struct conv conv = *(const struct conv *)context; /* each part has a block of its own */
	struct filter_scratch s = filter_scratch_of(&conv.windows, &conv.banding, conv.out_channels, conv.size);
	int64_t segment = number / conv.groups, bands = bands_of(&conv), each = up(bands, conv.segments);
	char *copy = conv.copies + number * (s.copy + s.gradient + s.sums), *gradient = copy + s.copy, *sums = gradient + s.gradient;
	char *to = segment ? conv.copies + PARTS * (s.copy + s.gradient + s.sums) + (segment - 1) * s.of_segment : conv.work->out[0];
	HR_ASSERT(segment * each < bands);
	for (int64_t cell = number % conv.groups; cell < conv.panels * conv.blocks; cell += conv.groups) {
		int64_t panel = cell % conv.panels;
		take_block(&conv, cell / conv.panels);
		memset(sums, 0, (size_t)s.sums);
		for (int64_t b = segment * each; b < least(bands, (segment + 1) * each); b++) {
			struct band band = band_at(&conv, b);
			if (conv.is_f32) multiply_taps_f32(&conv, &band, panel, (float *)copy, (float *)gradient, (float *)sums);
			else multiply_taps_f64(&conv, &band, panel, (double *)copy, (double *)gradient, (double *)sums);
		}
		if (conv.is_f32) put_sums_f32(&conv, panel, (float *)sums, (float *)to);
		else put_sums_f64(&conv, panel, (double *)sums, (double *)to);
	}
}

static void join_range(void *context, int64_t begin, int64_t end)
{
	const struct conv *conv = context;
	struct filter_scratch s = filter_scratch_of(&conv->windows, &conv->banding, conv->out_channels, conv->size);
	const char *sums = conv->copies + PARTS * (s.copy + s.gradient + s.sums);
	if (conv->is_f32) join_f32(conv, (const float *)sums, begin, end);
	else join_f64(conv, (const double *)sums, begin, end);
}

HR__RUN(conv2d_grad_filter)
{
	const hr__dims *grad = &work->in_types[0].dims, *x = &work->in_types[1].dims;
	struct windows windows = windows_of(x, &work->out_types[0].dims, grad, work->attrs);
	if (!hr__type_bytes(&work->in_types[0])) clear(work);
	if (!hr__type_bytes(&work->in_types[0]) || !hr__type_bytes(&work->out_types[0])) return;
	struct conv conv = conv_of(work, &windows, grad->d[1]);
	struct filter_scratch s = filter_scratch_of(&conv.windows, &conv.banding, conv.out_channels, conv.size);
	conv.images = work->in[1];
	conv.offsets = work->scratch;
	conv.copies = (char *)work->scratch + s.offsets;
	take_block(&conv, 0); /* taps have the same offsets in all blocks */
	for (int64_t k = 0; k < conv.deep; k++) conv.offsets[k] = offset_of(&conv, k);
	conv.segments = up(bands_of(&conv), up(bands_of(&conv), s.segments)); /* without those that rounding leaves empty */
	conv.panels = up(conv.out_channels, 2 * conv.kernels.lanes);
	conv.blocks = up(conv.windows.channels, conv.banding.channels);
	conv.groups = least(PARTS / conv.segments, conv.panels * conv.blocks);
	hr__team_run(work->team, (uint32_t)(conv.segments * conv.groups), filter_part, &conv);
	if (conv.segments > 1) hr__each_range(work, s.of_segment / conv.size, HR__GRAIN / PARTS, join_range, &conv);
}

/* ---- gradients ---- */

static hr_value gradient_by(const hr__backward *backward, enum hr__op_kind kind, uint32_t of, uint32_t by)
{
	hr__attrs attrs = { .stride = backward->attrs->stride,
		                .padding = backward->attrs->padding,
		                .dims = backward->in_types[of].dims };
	return hr__call_one(kind, (const hr_value[]){ backward->grad_out[0], backward->in[by] }, 2, &attrs);
}

HR__GRADIENT(conv2d)
{
	hr_status status = HR_OK;
	if (hr__wanted(backward, 0)) status = hr__give(backward, 0, gradient_by(backward, HR__OP_CONV2D_GRAD_INPUT, 0, 1));
	if (status != HR_OK || !hr__wanted(backward, 1)) return status;
	return hr__give(backward, 1, gradient_by(backward, HR__OP_CONV2D_GRAD_FILTER, 1, 0));
}

/* ---- public calls ---- */

hr_value hr_conv2d(hr_value x, hr_value filter, int64_t stride, int64_t padding)
{
	return hr__call_one(HR__OP_CONV2D, (const hr_value[]){ x, filter }, 2, &(hr__attrs){ .stride = stride, .padding = padding });
}
