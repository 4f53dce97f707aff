/* page_lists.c - the lists of a page: ops, moves, refusals, regions and pauses. */
#include "analysis/page/page_writer.h"

#include "analysis/page/page_choice.h"
#include "analysis/view/view.h"

#define MOVES_MAX 400000u
#define MOVE_KINDS 6u /* those of hr__move_kind, dropped, recomputed */
#define REFUSALS_MAX 10000u
#define REGIONS_MAX 200000u
#define PAUSES_MAX 10000u

/* ---- ops ---- */

void hr__page_write_ops(hr__page_writer *page)
{
	const hr__capture *capture = page->capture;
	hr__page_choice choice = { 0 };
	uint64_t time_ns = 0;
	for (uint32_t i = 0; i < capture->op_count; i++) choice.counts[hr__page_area_grade(1, hr__page_op_ns(page, &capture->ops[i]))]++;
	hr__page_put(page, hr__page_choice_settle(&choice, page->most));
	for (uint32_t i = 0; i < capture->op_count; i++) {
		const hr__op_run *op = &capture->ops[i];
		if (!hr__page_choice_keeps(&choice, hr__page_area_grade(1, hr__page_op_ns(page, op)))) continue;
		hr__page_signed(&page->stream, (int64_t)(op->begin_ns - time_ns));
		hr__page_put(page, hr__page_op_ns(page, op));
		hr__page_put(page, op->device_ns);
		hr__page_put(page, hr__page_name(page, op->op));
		hr__page_put(page, hr__page_name(page, op->scope));
		hr__page_put(page, op->thread);
		time_ns = op->begin_ns;
	}
}

/* ---- moves ---- */

/* Moves of one kind on one device that are merged into one. */
struct move_sum {
	uint64_t time_ns, bytes, count;
	uint32_t site;
};

static uint32_t device_at(const hr__capture *capture, uint32_t site)
{
	return site == HR__NONE ? 0 : capture->allocators[capture->sites[site].allocator].device;
}

static void write_move(hr__page_writer *page, const struct move_sum *sum, uint32_t kind, uint64_t *time_ns)
{
	hr__page_put(page, sum->count);
	hr__page_put(page, kind);
	hr__page_signed(&page->stream, (int64_t)(sum->time_ns - *time_ns));
	hr__page_put(page, sum->bytes);
	hr__page_put(page, sum->site == HR__NONE ? 0 : (uint64_t)sum->site + 1);
	*time_ns = sum->time_ns;
}

static uint32_t page_kind(const hr__move *move)
{
	if (!move->by_recipe) return (uint32_t)move->kind;
	return move->kind == HR__MOVE_OUT ? MOVE_KINDS - 1 : MOVE_KINDS;
}

static void write_each_move(hr__page_writer *page)
{
	const hr__capture *capture = page->capture;
	uint64_t time_ns = 0;
	for (uint32_t i = 0; i < capture->move_count; i++) {
		const hr__move *move = &capture->moves[i];
		struct move_sum sum = { .time_ns = move->time_ns, .bytes = move->bytes, .count = 1, .site = move->site };
		write_move(page, &sum, page_kind(move), &time_ns);
	}
}

/* Writes the sums of a finished slice. */
static void write_move_sums(hr__page_writer *page, struct move_sum *sums, size_t count, uint64_t *time_ns)
{
	for (size_t i = 0; i < count; i++) {
		if (sums[i].count) write_move(page, &sums[i], (uint32_t)(i % MOVE_KINDS) + 1, time_ns);
		sums[i].count = sums[i].bytes = 0;
	}
}

static void sum_moves(hr__page_writer *page, struct move_sum *sums, size_t count)
{
	const hr__capture *capture = page->capture;
	uint64_t slices = MOVES_MAX / count ? MOVES_MAX / count : 1, slice_ns = capture->end_ns / slices + 1, slice = 0, time_ns = 0;
	for (uint32_t i = 0; i < capture->move_count; i++) {
		const hr__move *move = &capture->moves[i];
		struct move_sum *sum = &sums[device_at(capture, move->site) * MOVE_KINDS + page_kind(move) - 1];
		if (move->time_ns / slice_ns != slice) write_move_sums(page, sums, count, &time_ns);
		slice = move->time_ns / slice_ns;
		if (!sum->count++) sum->time_ns = move->time_ns, sum->site = move->site;
		sum->bytes += move->bytes;
	}
	write_move_sums(page, sums, count, &time_ns);
}

hr_status hr__page_write_moves(hr__page_writer *page)
{
	hr_status status = HR_OK;
	size_t count = ((size_t)page->capture->device_count + !page->capture->device_count) * MOVE_KINDS;
	if (page->capture->move_count <= MOVES_MAX) {
		write_each_move(page);
	} else {
		struct move_sum *sums = hr__view_alloc(count, sizeof *sums, &status);
		if (status) return status;
		sum_moves(page, sums, count);
		hr__view_free(sums, count, sizeof *sums);
	}
	hr__page_put(page, 0);
	return HR_OK;
}

/* ---- refusals ---- */

/* Grade of refusal [i]: 1 for the first in an interval of time and for the first after one on another device, so that bursts do not
 * displace them. */
static uint32_t grade_of_refusal(const hr__capture *capture, uint32_t i)
{
	const hr__refusal *now = &capture->refusals[i], *before = now - 1;
	uint64_t stretch_ns = capture->end_ns / (REFUSALS_MAX / 4) + 1;
	if (i == 0 || now->time_ns / stretch_ns != before->time_ns / stretch_ns) return 1;
	return device_at(capture, now->site) != device_at(capture, before->site);
}

void hr__page_write_refusals(hr__page_writer *page)
{
	const hr__capture *capture = page->capture;
	hr__page_choice choice = { 0 };
	for (uint32_t i = 0; i < capture->refusal_count; i++) choice.counts[grade_of_refusal(capture, i)]++;
	hr__page_put(page, hr__page_choice_settle(&choice, REFUSALS_MAX));
	for (uint32_t i = 0; i < capture->refusal_count; i++) {
		const hr__refusal *refusal = &capture->refusals[i];
		if (!hr__page_choice_keeps(&choice, grade_of_refusal(capture, i))) continue;
		hr__page_put(page, refusal->time_ns);
		hr__page_put(page, refusal->bytes);
		hr__page_put(page, refusal->site == HR__NONE ? 0 : (uint64_t)refusal->site + 1);
	}
}

/* ---- regions ---- */

static uint32_t grade_of_region(const hr__page_writer *page, const hr__region_run *region)
{
	return hr__page_area_grade(region->bytes, hr__page_end_ns(page, region->end_ns) - region->begin_ns);
}

static bool is_at_peak(const hr__capture *capture, const hr__region_run *region)
{
	const hr__capture_device *device = &capture->devices[capture->allocators[region->allocator].device];
	return device->peak_bytes && region->begin_ns <= device->peak_ns && device->peak_ns < region->end_ns;
}

static void write_region(hr__page_writer *page, const hr__region_run *region)
{
	hr__page_put(page, region->begin_ns);
	hr__page_put(page, region->end_ns == HR__NEVER ? 0 : region->end_ns - region->begin_ns + 1);
	hr__page_put(page, region->address & HR__PAGE_ADDRESS_MASK);
	hr__page_put(page, region->bytes);
	hr__page_put(page, region->allocator);
}

void hr__page_write_regions(hr__page_writer *page)
{
	const hr__capture *capture = page->capture;
	hr__page_choice choice = { 0 };
	uint32_t at_peaks = 0;
	for (uint32_t i = 0; i < capture->region_count; i++) {
		if (is_at_peak(capture, &capture->regions[i])) at_peaks++;
		else choice.counts[grade_of_region(page, &capture->regions[i])]++;
	}
	hr__page_put(page, at_peaks + hr__page_choice_settle(&choice, at_peaks < REGIONS_MAX ? REGIONS_MAX - at_peaks : 0));
	for (uint32_t i = 0; i < capture->region_count; i++)
		if (is_at_peak(capture, &capture->regions[i])) write_region(page, &capture->regions[i]);
	for (uint32_t i = 0; i < capture->region_count; i++) {
		const hr__region_run *region = &capture->regions[i];
		if (!is_at_peak(capture, region) && hr__page_choice_keeps(&choice, grade_of_region(page, region))) write_region(page, region);
	}
}

/* ---- pauses ---- */

static uint32_t grade_of_pause(const hr__pause *pause)
{
	return hr__page_area_grade(1, pause->end_ns - pause->begin_ns);
}

void hr__page_write_pauses(hr__page_writer *page)
{
	const hr__capture *capture = page->capture;
	hr__page_choice choice = { 0 };
	for (uint32_t i = 0; i < capture->pause_count; i++) choice.counts[grade_of_pause(&capture->pauses[i])]++;
	hr__page_put(page, hr__page_choice_settle(&choice, PAUSES_MAX));
	for (uint32_t i = 0; i < capture->pause_count; i++) {
		if (!hr__page_choice_keeps(&choice, grade_of_pause(&capture->pauses[i]))) continue;
		hr__page_put(page, capture->pauses[i].begin_ns);
		hr__page_put(page, capture->pauses[i].end_ns - capture->pauses[i].begin_ns);
	}
}
