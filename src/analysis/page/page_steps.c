/* page_steps.c - the steps of a page, with the sums of each device. */
#include "analysis/page/page_writer.h"

#include "analysis/page/page_choice.h"
#include "analysis/view/view.h"

#define STEPS_MAX 50000u

struct step_sum {
	uint64_t peak, allocations, bytes, left;
};

struct step_walk {
	hr__page_writer *page;
	uint64_t *now;         /* bytes in use of each device, after the changes up to [change] */
	struct step_sum *sums; /* by device, for one step */
	uint32_t devices;      /* number of devices whose sums are written; fewer than all only if there are extremely many */
	uint32_t change;
	uint32_t allocations; /* number of allocations so far */
};

/* Applies one change. In a step, [first] is the index of the step's first allocation. */
static void walk_change(struct step_walk *walk, uint32_t first, bool in_step)
{
	const hr__capture *capture = walk->page->capture;
	const hr__change *change = &capture->changes[walk->change++];
	uint64_t bytes = capture->allocations[change->allocation].bytes;
	uint32_t device = hr__allocation_device(capture, change->allocation);
	struct step_sum *sum = &walk->sums[device];
	if (change->frees) walk->now[device] -= bytes;
	else walk->now[device] += bytes, walk->allocations++;
	if (!in_step) return;
	if (walk->now[device] > sum->peak) sum->peak = walk->now[device];
	if (hr__allocation_birth(capture, change->allocation) >= first) sum->left += change->frees ? 0 - bytes : bytes;
	if (!change->frees) sum->allocations++, sum->bytes += bytes;
}

static void write_step(struct step_walk *walk, const hr__step_run *step)
{
	hr__page_writer *page = walk->page;
	while (walk->change < step->first_change) walk_change(walk, 0, false);
	for (uint32_t i = 0; i < walk->devices; i++) walk->sums[i] = (struct step_sum){ .peak = walk->now[i] };
	for (uint32_t first = walk->allocations; walk->change < step->last_change;) walk_change(walk, first, true);
	hr__page_put(page, step->number);
	hr__page_put(page, step->begin_ns);
	hr__page_put(page, hr__page_end_ns(page, step->end_ns) - step->begin_ns);
	for (uint32_t i = 0; i < walk->devices; i++) {
		hr__page_put(page, walk->sums[i].peak);
		hr__page_put(page, walk->sums[i].allocations);
		hr__page_put(page, walk->sums[i].bytes);
		hr__page_put(page, walk->sums[i].left);
	}
}

/* Marks the steps in which a device reached its peak. */
static void mark_peak_steps(const hr__capture *capture, uint8_t *marks)
{
	for (uint32_t i = 0; i < capture->device_count; i++) {
		uint32_t low = 0, high = capture->step_count, change = capture->devices[i].peak_change;
		while (low < high) {
			uint32_t middle = low + (high - low) / 2;
			if (capture->steps[middle].last_change <= change) low = middle + 1;
			else high = middle;
		}
		if (low < capture->step_count && capture->devices[i].peak_bytes) marks[low] = 1;
	}
}

static void write_chosen_steps(struct step_walk *walk, uint8_t *marks)
{
	const hr__capture *capture = walk->page->capture;
	hr__page_choice choice = { 0 };
	mark_peak_steps(capture, marks);
	for (uint32_t i = 0; i < capture->step_count; i++) choice.counts[marks[i]]++;
	uint64_t kept = hr__page_choice_settle(&choice, STEPS_MAX);
	walk->devices = kept && capture->device_count > HR__PAGE_CELLS_MAX / kept ? (uint32_t)(HR__PAGE_CELLS_MAX / kept) : capture->device_count;
	hr__page_put(walk->page, walk->devices);
	hr__page_put(walk->page, kept);
	for (uint32_t i = 0; i < capture->step_count; i++)
		if (hr__page_choice_keeps(&choice, marks[i])) write_step(walk, &capture->steps[i]);
}

hr_status hr__page_write_steps(hr__page_writer *page)
{
	const hr__capture *capture = page->capture;
	hr_status status = HR_OK;
	struct step_walk walk = { .page = page };
	walk.now = hr__view_alloc(capture->device_count, sizeof *walk.now, &status);
	walk.sums = hr__view_alloc(capture->device_count, sizeof *walk.sums, &status);
	uint8_t *marks = hr__view_alloc(capture->step_count, 1, &status);
	if (status == HR_OK) write_chosen_steps(&walk, marks);
	hr__view_free(walk.now, capture->device_count, sizeof *walk.now);
	hr__view_free(walk.sums, capture->device_count, sizeof *walk.sums);
	hr__view_free(marks, capture->step_count, 1);
	return status;
}
