/* map.c - what lies where: each region as a row of runs, and its figures, from one walk.
 *
 * Neighbouring chunks of a kind are one run. There is room for HR__REPORT_RUNS of all regions together. When it is used up, the row
 * gets coarser: a run is joined to the one before it, as a mixed one, where both together are no longer than a threshold; where that
 * does not leave a quarter of the room free, the threshold doubles. So what is long keeps its exact extent, two neighbours are always longer than the
 * threshold together, and the threshold is never more than eight times what an even division would need. It stays as it is for the
 * regions that come after. The sums of bytes, of bytes in use and of chunks over the runs of a region never change by that.
 *
 * Addresses with nothing behind them at the end of a region are no run: there is no end to them.
 *
 * Blocks of whole pages at addresses of their own (span.c) are told of together, as one region more: the last, of large blocks, all of it
 * in use. So the sums over all regions are those of the allocator. */
#include "memory/oom.h"

#define FIRST_THRESHOLD 512u

struct map {
	hr__report *report;
	uint64_t threshold;
};

static bool is_of_one_kind(const hr__run *a, const hr__run *b)
{
	return a->kind == b->kind && a->kind != HR__RUN_MIXED;
}

static void join(hr__run *into, const hr__run *run)
{
	if (into->kind != run->kind) into->kind = HR__RUN_MIXED;
	into->bytes += run->bytes;
	into->in_use += run->in_use;
	into->chunks += run->chunks;
}

/* Joins the short runs of one region, which move to [to]; returns how many are left. */
static uint32_t coarsen_region(hr__run *to, const hr__run *runs, uint32_t count, uint64_t threshold)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < count; i++) {
		hr__run run = runs[i];
		if (kept && (is_of_one_kind(&to[kept - 1], &run) || to[kept - 1].bytes + run.bytes <= threshold)) join(&to[kept - 1], &run);
		else to[kept++] = run;
	}
	return kept;
}

/* Joins short runs by the threshold as it is; the number left. */
static uint32_t join_short(const struct map *map)
{
	hr__report *report = map->report;
	uint32_t kept = 0;
	for (uint32_t i = 0; i < report->region_count; i++) {
		hr__report_region *region = &report->regions[i];
		uint32_t left = coarsen_region(&report->runs[kept], &report->runs[region->first_run], region->run_count, map->threshold);
		region->first_run = kept;
		region->run_count = left;
		kept += left;
	}
	return report->run_count = kept;
}

static void make_space(struct map *map)
{
	while (join_short(map) > HR__REPORT_RUNS / 4 * 3) map->threshold *= 2;
}

/* To the region that is being walked, the last one. */
static void add_run(struct map *map, hr__run run)
{
	hr__report *report = map->report;
	hr__report_region *region = &report->regions[report->region_count - 1];
	if (region->run_count && is_of_one_kind(&report->runs[report->run_count - 1], &run)) {
		join(&report->runs[report->run_count - 1], &run);
		return;
	}
	if (report->run_count == HR__REPORT_RUNS) make_space(map);
	report->runs[report->run_count++] = run;
	region->run_count++;
}

static void add_figures(hr__report_region *region, const hr__piece *piece)
{
	switch (piece->state) {
	case HR__CHUNK_IN_USE: region->in_use += piece->bytes; break;
	case HR__CHUNK_CACHED: region->cached += piece->bytes; break;
	case HR__CHUNK_FREE:
		region->free += piece->bytes;
		if (piece->bytes > region->largest_free) region->largest_free = piece->bytes;
		break;
	default: return;
	}
	region->reserved += piece->bytes;
}

static void walk_region(struct map *map, hr__line *line, bool addresses)
{
	hr__report *report = map->report;
	hr__report_region *region = &report->regions[report->region_count++];
	hr__piece piece;
	hr__run hole = { 0 }; /* not a run before something lies behind it */
	*region = (hr__report_region){ .address = addresses ? line->region.address : 0,
		                           .addresses = line->region.size,
		                           .small_blocks = line->region.small,
		                           .first_run = report->run_count };
	while (hr__line_next(line, &piece)) {
		bool in_use = piece.state == HR__CHUNK_IN_USE;
		hr__run run = { .bytes = piece.bytes, .in_use = in_use ? piece.bytes : 0, .chunks = 1, .kind = (uint8_t)piece.state };
		add_figures(region, &piece);
		if (piece.state == HR__CHUNK_HOLE) {
			if (hole.bytes) join(&hole, &run); /* two holds saw a part each */
			else hole = run;
			continue;
		}
		if (hole.bytes) add_run(map, hole);
		hole.bytes = 0;
		add_run(map, run);
	}
}

static void add_spans(struct map *map, const hr__allocator *allocator)
{
	hr__report *report = map->report;
	int64_t bytes = hr__load_relaxed(&allocator->span_bytes), count = hr__load_relaxed(&allocator->spans);
	if (bytes <= 0 || count <= 0) return;
	if (report->region_count == HR__REPORT_REGIONS) {
		report->regions_left_out++;
		return;
	}
	uint64_t held = (uint64_t)bytes;
	report->regions[report->region_count++] = (hr__report_region){
		.addresses = held, .reserved = held, .in_use = held, .first_run = report->run_count
	};
	add_run(map, (hr__run){ .bytes = held, .in_use = held, .chunks = (uint32_t)count, .kind = HR__RUN_IN_USE });
}

void hr__map_report(hr__walk *walk, bool addresses, hr__report *report)
{
	struct map map = { .report = report, .threshold = FIRST_THRESHOLD };
	hr__line *line;
	report->run_count = report->region_count = report->regions_left_out = 0;
	for (uint32_t slot = 0; slot < HR__REGIONS_MAX; slot++) {
		if (!hr__line_open(walk, 0, slot, &line)) continue;
		if (report->region_count < HR__REPORT_REGIONS) walk_region(&map, line, addresses);
		else report->regions_left_out++;
		hr__line_close(line);
	}
	add_spans(&map, walk->allocator);
}
