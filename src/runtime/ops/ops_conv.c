/* ops_conv.c - convolutions of images and their gradients, as matrix products (ops_tile.h).
 *
 * The right matrix of each product is never stored as a whole: it has a row for each tap (channel, row and column in the window)
 * and a column for each place of the window (image, row, column). Panels of it are built on the stack from the image just before
 * they are multiplied.
 *
 *     conv2d              output [o, places]     = filter [o, taps] by x [taps, places]
 *     conv2d_grad_input   gradient [c, places]   = filter, rotated by 180 degrees, [c, taps] by the output gradient [taps, places]
 *     conv2d_grad_filter  gradient [o, taps]     = the output gradient [o, places] by x [places, taps]
 *
 * The first two pack HR__TILE_DEEP columns of the filter at a time, shared by all threads, and divide the panels of places among
 * the threads. The third has few panels and many places: the places are divided into segments whose sums are added in scratch
 * memory, in order. The division depends on shapes alone, and scratch does not grow with the batch.
 *
 * With a stride, a pixel is covered by some taps only, and every stride-th pixel by the same ones. The gradient of the images is
 * therefore one product for each kind of pixel that has taps, over those places and those taps (struct pixel_kind). */
#include <inttypes.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "runtime/ops/ops.h"
#include "runtime/kernels/ops_tile.h"

#define HIGH HR__TILE_HIGH
#define DEEP HR__TILE_DEEP
#define PANEL_BYTES (DEEP * HR__TILE_WIDEST)
#define TILE_BYTES (HIGH * HR__TILE_WIDEST)
#define PARTS 16                    /* of a filter's gradient */
#define BESIDE 4                    /* taps interleaved at a time; divides the columns of every panel */
#define STRIPS 16                   /* packed by a part at a time */
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

/* ---- taps and places ---- */

/* Images as a matrix of taps by places. Tap (c, i, j) of place (n, y, x) is the pixel (y * step + i - above, x * step + j - left)
 * of channel c of image n. */
struct taps {
	const void *data;
	int64_t channels, height, width; /* of an image */
	int64_t rows, columns;           /* of places in an image */
	int64_t high, wide;              /* of the window */
	int64_t step, above, left;
};

/* Consecutive places in one row of one image. */
struct place_run {
	int64_t n, y, x;   /* the first place */
	int64_t image;     /* offset of image n, in elements */
	int64_t top, left; /* pixel of the first tap of the first place */
	int64_t at, count; /* range within the requested places */
};

struct tap {
	int64_t channel, row, column;
};

static struct tap tap_at(const struct taps *taps, int64_t number)
{
	return (struct tap){ number / (taps->high * taps->wide), number / taps->wide % taps->high, number % taps->wide };
}

static void next_tap(const struct taps *taps, struct tap *tap)
{
	if (++tap->column < taps->wide) return;
	tap->column = 0;
	if (++tap->row < taps->high) return;
	tap->row = 0;
	tap->channel++;
}

/* Divides [count] places, at most DEEP, into runs. Returns their number. */
static int find_runs(const struct taps *taps, int64_t first, int64_t count, struct place_run *runs)
{
	int found = 0;
	for (int64_t at = 0; at < count; found++) {
		int64_t place = first + at, x = place % taps->columns, y = place / taps->columns % taps->rows;
		int64_t left = taps->columns - x < count - at ? taps->columns - x : count - at;
		int64_t n = place / taps->columns / taps->rows;
		runs[found] = (struct place_run){ .n = n, .y = y, .x = x, .at = at, .count = left };
		runs[found].image = n * taps->channels * taps->height * taps->width;
		runs[found].top = y * taps->step - taps->above;
		runs[found].left = x * taps->step - taps->left;
		at += left;
	}
	return found;
}

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

/* ---- problems ---- */

/* Pixels that are covered by the same taps: every stride-th pixel from [row] and [column], with every stride-th tap of the rotated
 * filter from [tap_row] and [tap_column]. */
struct pixel_kind {
	int64_t stride, row, column, tap_row, tap_column;
	int64_t high, wide; /* of the whole window */
};

struct conv {
	hr__work *work;
	hr__tile_kernel kernel;
	bool is_f32;
	bool of_input;          /* computes the gradient of the images */
	struct pixel_kind kind; /* of the pixels, if of_input */
	int64_t size, panel;
	struct taps taps;
	int64_t out_channels, tap_count, images;
	int64_t deep_from, deep;  /* the packed range of taps */
	int64_t segments, groups; /* of a filter's gradient */
};

static int64_t places_of(const struct conv *conv)
{
	return conv->images * conv->taps.rows * conv->taps.columns;
}

static struct taps taps_of(const hr__dims *x, const hr__dims *filter, const hr__dims *out, const hr__attrs *attrs)
{
	return (struct taps){ .channels = x->d[1],
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

static struct conv conv_of(hr__work *work, struct taps taps, const void *images, int64_t count, int64_t out_channels)
{
	hr_dtype dtype = work->out_types[0].dtype;
	struct conv conv = { .work = work,
		                 .is_f32 = dtype == HR_DTYPE_FLOAT32,
		                 .size = (int64_t)hr_dtype_size(dtype),
		                 .taps = taps,
		                 .out_channels = out_channels,
		                 .images = count };
	conv.taps.data = images;
	conv.tap_count = taps.channels * taps.high * taps.wide;
	conv.kernel = hr__tile_kernel_for(dtype, &conv.panel);
	return conv;
}

/* Offset of a tap of the rotated filter in the filter [o, c, i, j]; the tap's channel is o. */
static inline int64_t turned(const struct conv *conv, int64_t channel, struct tap tap)
{
	const struct pixel_kind *kind = &conv->kind;
	int64_t row = kind->high - 1 - kind->tap_row - tap.row * kind->stride,
			column = kind->wide - 1 - kind->tap_column - tap.column * kind->stride;
	return ((tap.channel * conv->out_channels + channel) * kind->high + row) * kind->wide + column;
}

/* Offset of the run's first place in the gradient of the images. */
static int64_t pixel(const struct conv *conv, const struct place_run *run, int64_t channel)
{
	const struct pixel_kind *kind = &conv->kind;
	const hr__dims *out = &conv->work->out_types[0].dims;
	int64_t y = kind->row + run->y * kind->stride, x = kind->column + run->x * kind->stride;
	return ((run->n * conv->out_channels + channel) * out->d[2] + y) * out->d[3] + x;
}

/* ---- loops ---- */

/* One tap of a run. */
#define FILL(type, name)                                                                                              \
	static inline void fill_##name(const struct taps *taps, const struct place_run *run, struct tap tap, type *to)    \
	{                                                                                                                 \
		int64_t y = run->top + tap.row, x = run->left + tap.column, count = run->count, i = 0;                        \
		if (y >= 0 && y < taps->height) {                                                                             \
			const type *row = (const type *)taps->data + run->image + (tap.channel * taps->height + y) * taps->width; \
			for (; i < count && x < 0; i++, x += taps->step) to[i] = 0;                                               \
			if (taps->step == 1) {                                                                                    \
				int64_t some = least(count - i, taps->width - x);                                                     \
				if (some > 0) memcpy(to + i, row + x, (size_t)some * sizeof(type));                                   \
				i += most(some, 0);                                                                                   \
			} else {                                                                                                  \
				for (; i < count && x < taps->width; i++, x += taps->step) to[i] = row[x];                            \
			}                                                                                                         \
		}                                                                                                             \
		for (; i < count; i++) to[i] = 0;                                                                             \
	}

FILL(float, f32)
FILL(double, f64)

#define FOR_TYPE(type, name)                                                                                                       \
	/* A panel of taps by places. */                                                                                               \
	static void pack_places_##name(const struct conv *conv, int64_t first, int64_t count, type *to)                                \
	{                                                                                                                              \
		struct place_run runs[HR__TILE_WIDEST / sizeof(type)];                                                                     \
		int found = find_runs(&conv->taps, first, count, runs);                                                                    \
		struct tap tap = tap_at(&conv->taps, conv->deep_from);                                                                     \
		for (int64_t k = 0; k < conv->deep; k++, to += conv->panel, next_tap(&conv->taps, &tap)) {                                 \
			for (int r = 0; r < found; r++) fill_##name(&conv->taps, &runs[r], tap, to + runs[r].at);                              \
			for (int64_t i = count; i < conv->panel; i++) to[i] = 0;                                                               \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* A panel of places by taps: BESIDE taps at a time are read from the image and then interleaved. */                           \
	static void pack_taps_##name(const struct conv *conv, int64_t first, int64_t count, int64_t first_tap, type *to)               \
	{                                                                                                                              \
		struct place_run runs[DEEP];                                                                                               \
		type side[BESIDE][DEEP];                                                                                                   \
		int found = find_runs(&conv->taps, first, count, runs);                                                                    \
		int64_t taps = least(conv->panel, conv->tap_count - first_tap);                                                            \
		struct tap tap = tap_at(&conv->taps, first_tap);                                                                           \
		for (int64_t j = 0; j < conv->panel; j += BESIDE) {                                                                        \
			for (int64_t t = 0; t < BESIDE; t++, next_tap(&conv->taps, &tap)) {                                                    \
				if (j + t >= taps) memset(side[t], 0, (size_t)count * sizeof(type));                                               \
				for (int r = 0; r < found && j + t < taps; r++) fill_##name(&conv->taps, &runs[r], tap, side[t] + runs[r].at);     \
			}                                                                                                                      \
			for (int64_t k = 0; k < count; k++) {                                                                                  \
				for (int t = 0; t < BESIDE; t++) to[k * conv->panel + j + t] = side[t][k];                                         \
			}                                                                                                                      \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* A strip of the filter, [o, taps]. */                                                                                        \
	static void pack_filter_##name(const struct conv *conv, int64_t strip, type *to)                                               \
	{                                                                                                                              \
		const type *filter = conv->work->in[1];                                                                                    \
		for (int64_t i = 0; i < HIGH; i++) {                                                                                       \
			int64_t row = strip * HIGH + i;                                                                                        \
			struct tap tap = tap_at(&conv->taps, conv->deep_from);                                                                 \
			for (int64_t k = 0; k < conv->deep; k++, next_tap(&conv->taps, &tap)) {                                                \
				int64_t at = conv->of_input ? turned(conv, row, tap) : row * conv->tap_count + conv->deep_from + k;                \
				to[k * HIGH + i] = row < conv->out_channels ? filter[at] : 0;                                                      \
			}                                                                                                                      \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* A strip of an output's gradient, [n, o, places]. */                                                                         \
	static void pack_gradient_##name(const struct conv *conv, int64_t strip, int64_t first, int64_t count, type *to)               \
	{                                                                                                                              \
		int64_t each = conv->taps.rows * conv->taps.columns, rows = least(HIGH, conv->out_channels - strip * HIGH);                \
		if (rows < HIGH) memset(to, 0, (size_t)(count * HIGH) * sizeof(type));                                                     \
		for (int64_t at = 0; at < count;) {                                                                                        \
			int64_t place = first + at, within = place % each, some = least(each - within, count - at);                            \
			const type *from = (const type *)conv->work->in[0] + (place / each * conv->out_channels + strip * HIGH) * each +       \
			                   within;                                                                                             \
			for (int64_t k = 0; k < some && rows == HIGH; k++) {                                                                   \
				for (int64_t i = 0; i < HIGH; i++) to[(at + k) * HIGH + i] = from[i * each + k];                                   \
			}                                                                                                                      \
			for (int64_t k = 0; k < some && rows < HIGH; k++) {                                                                    \
				for (int64_t i = 0; i < rows; i++) to[(at + k) * HIGH + i] = from[i * each + k];                                   \
			}                                                                                                                      \
			at += some;                                                                                                            \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* Adds [rows] of a tile to a matrix with row distance [apart]. */                                                             \
	static void add_##name(bool is_first, int64_t rows, int64_t columns, int64_t panel, int64_t apart, const type *tile, type *to) \
	{                                                                                                                              \
		for (int64_t i = 0; i < rows; i++, tile += panel, to += apart) {                                                           \
			if (is_first) memcpy(to, tile, (size_t)columns * sizeof(type));                                                        \
			else                                                                                                                   \
				for (int64_t j = 0; j < columns; j++) to[j] += tile[j];                                                            \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* Adds a tile to [n, o, places]. A panel may cover the end of an image. */                                                    \
	static void add_places_##name(const struct conv *conv, int64_t strip, int64_t first, int64_t count, const type *tile)          \
	{                                                                                                                              \
		int64_t each = conv->taps.rows * conv->taps.columns, rows = least(HIGH, conv->out_channels - strip * HIGH);                \
		for (int64_t at = 0; at < count;) {                                                                                        \
			int64_t place = first + at, within = place % each, some = least(each - within, count - at);                            \
			type *to = (type *)conv->work->out[0] + (place / each * conv->out_channels + strip * HIGH) * each + within;            \
			add_##name(conv->deep_from == 0, rows, some, conv->panel, each, tile + at, to);                                        \
			at += some;                                                                                                            \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* Adds a tile to every stride-th pixel. */                                                                                    \
	static void add_apart_##name(const struct conv *conv, int64_t strip, int64_t first, int64_t count, const type *tile)           \
	{                                                                                                                              \
		struct place_run runs[HR__TILE_WIDEST / sizeof(type)];                                                                     \
		int found = find_runs(&conv->taps, first, count, runs);                                                                    \
		int64_t stride = conv->kind.stride, rows = least(HIGH, conv->out_channels - strip * HIGH);                                 \
		for (int64_t i = 0; i < rows; i++) {                                                                                       \
			for (int r = 0; r < found; r++) {                                                                                      \
				const type *from = tile + i * conv->panel + runs[r].at;                                                            \
				type *to = (type *)conv->work->out[0] + pixel(conv, &runs[r], strip * HIGH + i);                                   \
				for (int64_t k = 0; k < runs[r].count; k++)                                                                        \
					to[k * stride] = conv->deep_from == 0 ? from[k] : to[k * stride] + from[k];                                    \
			}                                                                                                                      \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	static void multiply_places_##name(const struct conv *conv, int64_t number)                                                    \
	{                                                                                                                              \
		type panel[PANEL_BYTES / sizeof(type)], tile[TILE_BYTES / sizeof(type)];                                                   \
		int64_t first = number * conv->panel, count = least(conv->panel, places_of(conv) - first);                                 \
		pack_places_##name(conv, first, count, panel);                                                                             \
		for (int64_t strip = 0; strip < up(conv->out_channels, HIGH); strip++) {                                                   \
			conv->kernel(conv->deep, (const type *)conv->work->scratch + strip * HIGH * conv->deep, panel, tile);                  \
			if (conv->kind.stride > 1) add_apart_##name(conv, strip, first, count, tile);                                          \
			else add_places_##name(conv, strip, first, count, tile);                                                               \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	/* Adds places [first ...], at most DEEP, of all strips and panels of a group to the sums of a segment. */                     \
	static void multiply_taps_##name(const struct conv *conv, int64_t group, int64_t first, int64_t count, bool is_first,          \
	                                 type *strips, type *sums)                                                                     \
	{                                                                                                                              \
		type panel[PANEL_BYTES / sizeof(type)], tile[TILE_BYTES / sizeof(type)];                                                   \
		for (int64_t from = 0; from < conv->out_channels; from += STRIPS * HIGH) {                                                 \
			int64_t some = up(least(conv->out_channels - from, STRIPS * HIGH), HIGH), before = from / HIGH;                        \
			for (int64_t s = 0; s < some; s++) pack_gradient_##name(conv, before + s, first, count, strips + s * HIGH * count);    \
			for (int64_t tap = group * conv->panel; tap < conv->tap_count; tap += conv->groups * conv->panel) {                    \
				pack_taps_##name(conv, first, count, tap, panel);                                                                  \
				for (int64_t s = 0; s < some; s++) {                                                                               \
					int64_t row = (before + s) * HIGH;                                                                             \
					conv->kernel(count, strips + s * HIGH * count, panel, tile);                                                   \
					add_##name(is_first, least(HIGH, conv->out_channels - row), least(conv->panel, conv->tap_count - tap),         \
					           conv->panel, conv->tap_count, tile, sums + row * conv->tap_count + tap);                            \
				}                                                                                                                  \
			}                                                                                                                      \
		}                                                                                                                          \
	}                                                                                                                              \
                                                                                                                                   \
	static void join_##name(const struct conv *conv, const type *sums, int64_t begin, int64_t end)                                 \
	{                                                                                                                              \
		type *out = conv->work->out[0];                                                                                            \
		int64_t each = conv->out_channels * conv->tap_count;                                                                       \
		for (int64_t s = 1; s < conv->segments; s++, sums += each) {                                                               \
			for (int64_t i = begin; i < end; i++) out[i] += sums[i];                                                               \
		}                                                                                                                          \
	}

FOR_TYPE(float, f32)
FOR_TYPE(double, f64)

/* ---- the output and the gradient of the images ---- */

static void pack_range(void *context, int64_t begin, int64_t end)
{
	const struct conv *conv = context;
	for (int64_t strip = begin; strip < end; strip++) {
		char *to = (char *)conv->work->scratch + strip * HIGH * conv->deep * conv->size;
		if (conv->is_f32) pack_filter_f32(conv, strip, (float *)to);
		else pack_filter_f64(conv, strip, (double *)to);
	}
}

static void places_range(void *context, int64_t begin, int64_t end)
{
	const struct conv *conv = context;
	for (int64_t number = begin; number < end; number++) {
		if (conv->is_f32) multiply_places_f32(conv, number);
		else multiply_places_f64(conv, number);
	}
}

static void run_places(struct conv *conv)
{
	hr__work *work = conv->work;
	int64_t strips = up(conv->out_channels, HIGH);
	for (conv->deep_from = 0; conv->deep_from < conv->tap_count; conv->deep_from += conv->deep) {
		conv->deep = least(DEEP, conv->tap_count - conv->deep_from);
		int64_t of_panel = strips * HIGH * conv->deep * conv->panel / 16;
		hr__each_range(work, strips, hr__grain_of(HR__GRAIN, HIGH * conv->deep), pack_range, conv);
		hr__each_range(work, up(places_of(conv), conv->panel), hr__grain_of(4 * HR__GRAIN, of_panel), places_range, conv);
	}
}

static uint64_t filter_bytes(int64_t rows, int64_t taps, hr_dtype dtype)
{
	return (uint64_t)(up(rows, HIGH) * HIGH * least(taps, DEEP)) * hr_dtype_size(dtype);
}

HR__SCRATCH(conv2d)
{
	(void)out, (void)attrs;
	const hr__dims *filter = &in[1].dims;
	return filter_bytes(filter->d[0], filter->d[1] * filter->d[2] * filter->d[3], in[1].dtype);
}

HR__SCRATCH(conv2d_grad_input)
{
	(void)out, (void)attrs;
	const hr__dims *filter = &in[1].dims;
	return filter_bytes(filter->d[1], filter->d[0] * filter->d[2] * filter->d[3], in[1].dtype);
}

/* Zeros the output, for cases without products. */
static void clear(hr__work *work)
{
	uint64_t bytes = hr__type_bytes(&work->out_types[0]);
	if (bytes > 0) memset(work->out[0], 0, bytes);
}

HR__RUN(conv2d)
{
	const hr__dims *x = &work->in_types[0].dims, *filter = &work->in_types[1].dims;
	struct conv conv = conv_of(work, taps_of(x, filter, &work->out_types[0].dims, work->attrs), work->in[0], x->d[0], filter->d[0]);
	if (conv.tap_count == 0) clear(work);
	run_places(&conv);
}

/* The pixels in [size] and taps in [window] that belong to tap [first]; false if there are no such pixels. *before is how far the
 * window of the first pixel extends before the output's gradient. */
static bool find_kind(int64_t first, int64_t size, int64_t window, const hr__attrs *attrs, int64_t *from, int64_t *places,
                      int64_t *taps, int64_t *before)
{
	int64_t stride = attrs->stride, reach = window - 1 - attrs->padding;
	*from = ((reach - first) % stride + stride) % stride;
	if (*from >= size) return false;
	*places = up(size - *from, stride);
	*taps = up(window - first, stride);
	*before = (reach - first - *from) / stride;
	return true;
}

/* The windows that cover a pixel begin up to a window's size before it, from the last tap to the first: the filter is rotated. */
HR__RUN(conv2d_grad_input)
{
	const hr__dims *grad = &work->in_types[0].dims, *filter = &work->in_types[1].dims, *x = &work->out_types[0].dims;
	int64_t stride = work->attrs->stride, high = filter->d[2], wide = filter->d[3];
	struct taps taps = { .channels = grad->d[1], .height = grad->d[2], .width = grad->d[3], .step = 1 };
	struct pixel_kind kind = { .stride = stride, .high = high, .wide = wide };
	if (taps.channels == 0 || high < stride || wide < stride) clear(work); /* some pixels have no taps */
	for (kind.tap_row = 0; kind.tap_row < least(high, stride); kind.tap_row++) {
		if (!find_kind(kind.tap_row, x->d[2], high, work->attrs, &kind.row, &taps.rows, &taps.high, &taps.above)) continue;
		for (kind.tap_column = 0; kind.tap_column < least(wide, stride); kind.tap_column++) {
			if (!find_kind(kind.tap_column, x->d[3], wide, work->attrs, &kind.column, &taps.columns, &taps.wide, &taps.left))
				continue;
			struct conv conv = conv_of(work, taps, work->in[0], grad->d[0], filter->d[1]);
			conv.of_input = true;
			conv.kind = kind;
			run_places(&conv);
		}
	}
}

/* ---- the gradient of the filter ---- */

static int64_t segments_of(int64_t out_channels, int64_t tap_count, int64_t places, int64_t size)
{
	int64_t each = most(out_channels * tap_count * size, 1);
	return most(least(least(SUMS_BYTES / each, PARTS), places / (4 * DEEP)), 1);
}

static int64_t strips_bytes(int64_t out_channels, int64_t places, int64_t size)
{
	return least(up(out_channels, HIGH), STRIPS) * HIGH * least(places, DEEP) * size;
}

HR__SCRATCH(conv2d_grad_filter)
{
	(void)attrs;
	int64_t size = (int64_t)hr_dtype_size(out->dtype), places = in[0].dims.d[0] * in[0].dims.d[2] * in[0].dims.d[3];
	int64_t out_channels = out->dims.d[0], taps = out->dims.d[1] * out->dims.d[2] * out->dims.d[3];
	int64_t segments = segments_of(out_channels, taps, places, size);
	return (uint64_t)((segments - 1) * out_channels * taps * size + PARTS * strips_bytes(out_channels, places, size));
}

/* The sums of the first segment are in the output, those of the others in scratch behind the packed strips. */
static char *sums_of(const struct conv *conv, int64_t segment)
{
	char *behind = (char *)conv->work->scratch + PARTS * strips_bytes(conv->out_channels, places_of(conv), conv->size);
	if (segment == 0) return conv->work->out[0];
	return behind + (segment - 1) * conv->out_channels * conv->tap_count * conv->size;
}

static void run_part(void *context, uint32_t number)
{
	const struct conv *conv = context;
	int64_t segment = number / conv->groups, group = number % conv->groups, places = places_of(conv);
	int64_t each = up(up(places, conv->segments), DEEP) * DEEP, begin = segment * each, end = least(begin + each, places);
	char *strips = (char *)conv->work->scratch + number * strips_bytes(conv->out_channels, places, conv->size);
	HR_ASSERT(begin < end);
	for (int64_t first = begin; first < end; first += DEEP) {
		void *sums = sums_of(conv, segment);
		int64_t count = least(DEEP, end - first);
		if (conv->is_f32) multiply_taps_f32(conv, group, first, count, first == begin, (float *)strips, sums);
		else multiply_taps_f64(conv, group, first, count, first == begin, (double *)strips, sums);
	}
}

static void join_range(void *context, int64_t begin, int64_t end)
{
	const struct conv *conv = context;
	if (conv->is_f32) join_f32(conv, (const float *)sums_of(conv, 1), begin, end);
	else join_f64(conv, (const double *)sums_of(conv, 1), begin, end);
}

HR__RUN(conv2d_grad_filter)
{
	const hr__dims *grad = &work->in_types[0].dims, *x = &work->in_types[1].dims;
	struct taps taps = taps_of(x, &work->out_types[0].dims, grad, work->attrs);
	struct conv conv = conv_of(work, taps, work->in[1], x->d[0], grad->d[1]);
	if (places_of(&conv) == 0) clear(work);
	if (places_of(&conv) == 0 || hr__type_bytes(&work->out_types[0]) == 0) return;
	conv.segments = segments_of(conv.out_channels, conv.tap_count, places_of(&conv), conv.size);
	conv.segments = up(places_of(&conv),
	                   up(up(places_of(&conv), conv.segments), DEEP) * DEEP); /* drop segments that rounding to DEEP leaves empty */
	conv.groups = least(PARTS / conv.segments, up(conv.tap_count, conv.panel));
	hr__team_run(work->team, (uint32_t)(conv.segments * conv.groups), run_part, &conv);
	if (conv.segments > 1) hr__each_range(work, conv.out_channels * conv.tap_count, HR__GRAIN / PARTS, join_range, &conv);
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
