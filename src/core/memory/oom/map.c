/* map.c - the memory map: each region as a sequence of runs, with its figures, from one walk.
 *
 * Adjacent chunks of one kind form a run. There is room for HR__REPORT_RUNS runs of all regions together. When it is used up, the
 * map gets coarser: a run is joined to its predecessor, as a mixed run, if together they are not longer than a threshold. While
 * that leaves less than a quarter of the room free, the threshold doubles. So long runs keep their exact extent, two adjacent runs
 * together are always longer than the threshold, and the threshold is never more than eight times what an even division would need.
 * The threshold stays in force for the regions that follow. Joining never changes the sums of bytes, bytes in use and chunks over
 * the runs of a region.
 *
 * Unmapped addresses at the end of a region are not a run, because they are practically unlimited.
 *
 * Spans (blocks of whole pages at their own addresses, span.c) are reported together as one more region: the last, of large blocks,
 * all of it in use. So the sums over all regions are those of the allocator. */
#include "core/memory/oom/oom.h"

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

/* Joins the short runs of one region and moves the result to [to]. Returns the number of runs left. */
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

/* Joins short runs by the current threshold. Returns the number left. */
static uint32_t join_short(const struct map *map)
{
	hr__report *report = map->report;
	uint32_t kept = 0;
	HR_ASSERT(report->region_count <= HR__REPORT_REGIONS && report->run_count <= HR__REPORT_RUNS);
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

/* Adds a run to the region being walked, which is the last one. */
static void add_run(struct map *map, hr__run run)
{
	hr__report *report = map->report;
	HR_ASSERT(report->region_count > 0 && run.bytes > 0 && run.in_use <= run.bytes);
	hr__report_region *region = &report->regions[report->region_count - 1];
	if (region->run_count && is_of_one_kind(&report->runs[report->run_count - 1], &run)) {
		join(&report->runs[report->run_count - 1], &run);
		return;
	}
	if (report->run_count == HR__REPORT_RUNS) make_space(map);
	report->runs[report->run_count++] = run;
	region->run_count++;
}

static void add_figures(hr__report_region *region, const hr__region_piece *piece)
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

static void walk_region(struct map *map, hr__region_walk *region_walk, bool addresses)
{
	hr__report *report = map->report;
	HR_ASSERT(report->region_count < HR__REPORT_REGIONS);
	hr__report_region *region = &report->regions[report->region_count++];
	hr__region_piece piece;
	hr__run hole = { 0 }; /* becomes a run only when a chunk follows */
	*region = (hr__report_region){ .address = addresses ? region_walk->region.address : 0,
		                           .addresses = region_walk->region.size,
		                           .small_blocks = region_walk->region.small,
		                           .first_run = report->run_count };
	while (hr__region_walk_next(region_walk, &piece)) {
		bool in_use = piece.state == HR__CHUNK_IN_USE;
		hr__run run = { .bytes = piece.bytes, .in_use = in_use ? piece.bytes : 0, .chunks = 1, .kind = (uint8_t)piece.state };
		add_figures(region, &piece);
		if (piece.state == HR__CHUNK_HOLE) {
			if (hole.bytes) join(&hole, &run); /* two holds saw one part each */
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
	hr__region_walk *region_walk;
	report->run_count = report->region_count = report->regions_left_out = 0;
	for (uint32_t slot = 0; slot < HR__REGIONS_MAX; slot++) {
		if (!hr__region_walk_open(walk, 0, slot, &region_walk)) continue;
		if (report->region_count < HR__REPORT_REGIONS) walk_region(&map, region_walk, addresses);
		else report->regions_left_out++;
		hr__region_walk_close(region_walk);
	}
	add_spans(&map, walk->allocator);
}
