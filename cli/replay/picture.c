/* picture.c - charts made of characters: live bytes over time, and the contents of the regions at the peak.
 *
 * All cells of a region stand for the same number of mapped bytes; unmapped addresses are left out. The shade of a cell shows how
 * full it is, its colour what it contains. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/text/text.h"
#include "replay/replay.h"
#include "terminal/term.h"

#define INDENT 2
#define CHART_ROWS 6
#define CHART_LABEL 10 /* columns left of the chart */
#define REGIONS_SHOWN 6u
#define REGION_LINES 10u /* maximum for a region; small ones have fewer */
#define BYTES_PER_LINE_LEAST (UINT64_C(4) << 20)

static const char *const chart_blocks[] = { " ", "\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588" };
static const char *const chart_ascii[] = { " ", ".", ".", ":", ":", "|", "|", "#", "#" };

static void heading(const char *text, const char *rest)
{
	printf("\n%s%s%s%s\n\n", hr__style(stdout, HR__STYLE_HEADING), text, hr__style(stdout, HR__STYLE_PLAIN), rest);
}

/* ---- live bytes over time ---- */

/* Maximum of live bytes in each of [columns] equal parts of the program. */
static hr_status live_over_time(const hr__program *program, uint64_t *most, size_t columns)
{
	uint64_t *sizes = calloc(program->slots, sizeof *sizes), live = 0;
	if (!sizes) return hr__fail(HR_NO_HOST_MEMORY, "no memory for drawing %u block%s", program->slots, hr__plural(program->slots));
	memset(most, 0, columns * sizeof *most);
	for (size_t i = 0; i < program->count; i++) {
		const hr__program_event *event = &program->events[i];
		size_t column = (size_t)((double)i * (double)columns / (double)program->count);
		uint64_t before = live;
		live += event->bytes;
		if (!event->bytes) live -= sizes[event->slot];
		sizes[event->slot] = event->bytes;
		uint64_t now = before > live ? before : live;
		if (column < columns && now > most[column]) most[column] = now;
	}
	free(sizes);
	return HR_OK;
}

static void draw_chart(const uint64_t *most, size_t columns, uint64_t peak)
{
	const char *const *blocks = hr__term_utf8() ? chart_blocks : chart_ascii;
	char human[16];
	for (int row = CHART_ROWS - 1; row >= 0; row--) {
		const char *text = row == CHART_ROWS - 1 ? hr__format_size(peak, human, sizeof human) : row == 0 ? "0" : "";
		printf("%*s %s", CHART_LABEL, text, hr__style(stdout, HR__STYLE_IN_USE));
		for (size_t i = 0; i < columns; i++) {
			int eighths = (int)((double)most[i] / (double)peak * CHART_ROWS * 8 + 0.5) - row * 8;
			fputs(blocks[eighths < 0 ? 0 : eighths > 8 ? 8 : eighths], stdout);
		}
		printf("%s\n", hr__style(stdout, HR__STYLE_PLAIN));
	}
}

static hr_status draw_live(const hr__program *program)
{
	uint64_t most[200];
	size_t columns = (size_t)(hr__term_width() - CHART_LABEL - 2);
	char digits[32], rest[64];
	if (columns > program->count) columns = program->count;
	hr_status status = live_over_time(program, most, columns);
	if (status) return status;
	snprintf(rest, sizeof rest, " over %s event%s", hr__format_count(program->count, digits, sizeof digits), hr__plural(program->count));
	heading("Live bytes", rest);
	draw_chart(most, columns, program->peak_bytes);
	return HR_OK;
}

/* ---- regions ---- */

struct chunk {
	uint64_t bytes;
	hr_chunk_kind kind;
};

struct region {
	hr_region_info info;
	struct chunk *chunks;
	size_t count, capacity;
	bool failed; /* no memory for more chunks */
};

struct picture {
	struct region *regions;
	uint32_t count;
	hr_status status;
	char message[512];
};

static bool visit_chunk(void *context, const hr_chunk_view *view)
{
	struct region *region = context;
	if (view->kind == HR_CHUNK_UNMAPPED) return true;
	if (region->count == region->capacity) {
		size_t capacity = region->capacity ? 2 * region->capacity : 256;
		struct chunk *chunks = realloc(region->chunks, capacity * sizeof *chunks);
		if (!chunks) {
			region->failed = true;
			return false;
		}
		region->chunks = chunks;
		region->capacity = capacity;
	}
	region->chunks[region->count++] = (struct chunk){ view->bytes, view->kind };
	return true;
}

/* Called with the allocator as it is at the peak. */
static void look_at_regions(hr_allocator allocator, void *context)
{
	struct picture *picture = context;
	hr_stats stats;
	hr_stats_init(&stats);
	picture->status = hr_allocator_get_stats(allocator, &stats);
	if (!picture->status && stats.num_regions > 0) {
		picture->regions = calloc((size_t)stats.num_regions, sizeof *picture->regions);
		if (!picture->regions) picture->status = hr__fail(HR_NO_HOST_MEMORY, "no memory for drawing the regions");
	}
	for (uint32_t i = 0; !picture->status && i < stats.num_regions; i++) {
		struct region *region = &picture->regions[i];
		picture->count = i + 1;
		region->info.struct_size = sizeof region->info;
		picture->status = hr_allocator_get_region(allocator, i, &region->info);
		if (!picture->status) picture->status = hr_allocator_visit(allocator, i, visit_chunk, region);
		if (region->failed) picture->status = hr__fail(HR_NO_HOST_MEMORY, "no memory for drawing the regions");
	}
	if (picture->status) snprintf(picture->message, sizeof picture->message, "%s", hr_last_message());
}

/* Bytes of each kind in a cell. */
struct cell {
	uint64_t in_use, cached, free;
};

/* The next [bytes] of a region, starting [*into] bytes into chunk [*chunk]; both are advanced. */
static struct cell next_cell(const struct region *region, size_t *chunk, uint64_t *into, uint64_t bytes)
{
	struct cell cell = { 0 };
	while (bytes > 0 && *chunk < region->count) {
		const struct chunk *at = &region->chunks[*chunk];
		uint64_t part = at->bytes - *into < bytes ? at->bytes - *into : bytes;
		if (at->kind == HR_CHUNK_IN_USE) cell.in_use += part;
		else if (at->kind == HR_CHUNK_CACHED) cell.cached += part;
		else cell.free += part;
		bytes -= part;
		*into += part;
		if (*into == at->bytes) {
			++*chunk;
			*into = 0;
		}
	}
	return cell;
}

static const char *shade_of(double share, bool utf8)
{
	if (share >= 0.995) return utf8 ? "\u2588" : "#";
	if (share >= 0.66) return utf8 ? "\u2593" : "X";
	if (share >= 0.33) return utf8 ? "\u2592" : "x";
	return utf8 ? "\u2591" : "-";
}

/* Prints a cell; escape sequences are printed only when the style changes. */
static void draw_cell(const struct cell *cell, bool small, bool utf8, hr__style_name *style)
{
	uint64_t total = cell->in_use + cell->cached + cell->free;
	hr__style_name wanted = HR__STYLE_FREE;
	const char *text = utf8 ? "\u00B7" : ".";
	if (cell->in_use > 0 && cell->in_use >= cell->cached) {
		wanted = small ? HR__STYLE_SMALL : HR__STYLE_IN_USE;
		text = shade_of((double)cell->in_use / (double)total, utf8);
	} else if (cell->cached > 0) {
		wanted = HR__STYLE_CACHED;
		text = utf8 ? "\u25AB" : "o";
	}
	if (wanted != *style) fputs(hr__style(stdout, wanted), stdout);
	*style = wanted;
	fputs(text, stdout);
}

static void print_region_caption(const hr_region_info *info, uint32_t number, uint64_t per_cell)
{
	char text[256], reserved[16], largest[16], unit[16], blocks[32];
	snprintf(text, sizeof text, "region %u, %s blocks: %s, %.1f%% in use by %s block%s%s%s (a cell is %s)", number,
	         info->small_blocks ? "small" : "large", hr__format_size((uint64_t)info->bytes_reserved, reserved, sizeof reserved),
	         100.0 * (double)info->bytes_in_use / (double)info->bytes_reserved,
	         hr__format_count((uint64_t)info->num_live, blocks, sizeof blocks), hr__plural((uint64_t)info->num_live),
	         info->bytes_free > 0 ? ", largest free " : "",
	         info->bytes_free > 0 ? hr__format_size((uint64_t)info->largest_free_block, largest, sizeof largest) : "",
	         hr__format_size(per_cell, unit, sizeof unit));
	printf("%*s", INDENT, "");
	hr__term_wrap(text, INDENT, INDENT, hr__term_table_width());
}

static void draw_region(const struct region *region, uint32_t number)
{
	const hr_region_info *info = &region->info;
	size_t width = (size_t)(hr__term_width() - 2 * INDENT), chunk = 0;
	bool utf8 = hr__term_utf8();
	uint64_t total = (uint64_t)info->bytes_reserved, into = 0, lines = total / BYTES_PER_LINE_LEAST + 1;
	if (lines > REGION_LINES) lines = REGION_LINES;
	uint64_t per_cell = total / (lines * width) + 1;
	print_region_caption(info, number, per_cell);
	while (chunk < region->count) {
		hr__style_name style = HR__STYLE_PLAIN;
		printf("%*s", INDENT, "");
		for (size_t i = 0; i < width && chunk < region->count; i++) {
			struct cell cell = next_cell(region, &chunk, &into, per_cell);
			draw_cell(&cell, info->small_blocks, utf8, &style);
		}
		printf("%s\n", hr__style(stdout, HR__STYLE_PLAIN));
	}
	putchar('\n');
}

static void draw_legend(void)
{
	bool utf8 = hr__term_utf8();
	printf("%*s", INDENT, "");
	printf("%s%s%s in use  ", hr__style(stdout, HR__STYLE_IN_USE), shade_of(1, utf8), hr__style(stdout, HR__STYLE_PLAIN));
	printf("%s%s%s%s%s partly  ", hr__style(stdout, HR__STYLE_IN_USE), shade_of(0.7, utf8), shade_of(0.4, utf8),
	       shade_of(0.1, utf8), hr__style(stdout, HR__STYLE_PLAIN));
	printf("%s%s%s small blocks  ", hr__style(stdout, HR__STYLE_SMALL), shade_of(1, utf8), hr__style(stdout, HR__STYLE_PLAIN));
	printf("%s%s%s cached  ", hr__style(stdout, HR__STYLE_CACHED), utf8 ? "\u25AB" : "o", hr__style(stdout, HR__STYLE_PLAIN));
	printf("%s%s%s free\n", hr__style(stdout, HR__STYLE_FREE), utf8 ? "\u00B7" : ".", hr__style(stdout, HR__STYLE_PLAIN));
}

/* Largest first. */
static int compare_regions(const void *a, const void *b)
{
	const hr_region_info *left = &((const struct region *)a)->info, *right = &((const struct region *)b)->info;
	return (left->bytes_reserved < right->bytes_reserved) - (left->bytes_reserved > right->bytes_reserved);
}

static void draw_regions(const hr__replay *replay, struct picture *picture)
{
	char digits[32], rest[64];
	uint32_t shown = 0;
	snprintf(rest, sizeof rest, " at the peak, event %s", hr__format_count(replay->program.peak_event, digits, sizeof digits));
	heading("Regions", rest);
	if (picture->count == 0) {
		printf("%*s%s has none: every block is an allocation of the device\n", INDENT, "", replay->setup.allocator);
		return;
	}
	qsort(picture->regions, picture->count, sizeof *picture->regions, compare_regions);
	for (; shown < picture->count && shown < REGIONS_SHOWN; shown++)
		if (picture->regions[shown].info.bytes_reserved > 0) draw_region(&picture->regions[shown], shown + 1);
	if (shown < picture->count) printf("%*sand %u smaller region%s\n\n", INDENT, "", picture->count - shown, hr__plural(picture->count - shown));
	draw_legend();
}

hr_status hr__replay_picture(const hr__replay *replay)
{
	struct picture picture = { 0 };
	hr_status status = draw_live(&replay->program);
	if (!status) status = hr__measure_peak(&replay->setup, look_at_regions, &picture);
	if (!status && picture.status) status = hr__fail(picture.status, "%s", picture.message);
	if (!status) draw_regions(replay, &picture);
	for (uint32_t i = 0; i < picture.count; i++) free(picture.regions[i].chunks);
	free(picture.regions);
	return status;
}
