/* page_changes.c - the changes of a page: allocations and frees, and the rest of them as slices.
 *
 * If there are more allocations than the page can have, the rest is added up in slices of time: a slice is one allocation with a site of
 * its own, whose size is the minimum of the rest during the slice. */
#include "analysis/page/page_writer.h"

#include <string.h>

#include "analysis/page/page_choice.h"
#include "analysis/view/view.h"

#define SLICES 8192u

struct change_writer {
	hr__page_writer *page;
	const hr__capture *capture;
	uint8_t *kept;     /* by allocation */
	uint32_t *numbers; /* by kept allocation: its number in the page */
	uint64_t *rest;    /* [slice * devices + device]: minimum of the bytes that are not kept */
	uint64_t *now;     /* by device: bytes that are not kept */
	uint32_t *rest_numbers; /* by device: number of its slice's allocation + 1; 0 = none */
	uint32_t slices;
	bool all_kept;

	/* What is written so far. */
	uint64_t time_ns, address;
	uint32_t allocations, slice;
};

/* ---- what is kept ---- */

static uint32_t grade_of_allocation(const hr__page_writer *page, const hr__allocation *allocation)
{
	return hr__page_area_grade(allocation->bytes, hr__page_end_ns(page, allocation->end_ns) - allocation->begin_ns);
}

/* Marks allocations that are live at the peak of their device. */
static void keep_peaks(struct change_writer *writer)
{
	const hr__capture *capture = writer->capture;
	for (uint32_t i = 0; i < capture->change_count; i++) {
		const hr__change *change = &capture->changes[i];
		const hr__capture_device *device = &capture->devices[hr__allocation_device(capture, change->allocation)];
		if (device->peak_bytes && i <= device->peak_change) writer->kept[change->allocation] = !change->frees;
	}
}

static void choose_allocations(struct change_writer *writer)
{
	const hr__page_writer *page = writer->page;
	const hr__capture *capture = writer->capture;
	hr__page_choice choice = { 0 };
	writer->all_kept = capture->allocation_count <= page->most;
	if (writer->all_kept) {
		memset(writer->kept, 1, capture->allocation_count);
		return;
	}
	for (uint32_t i = 0; i < capture->allocation_count; i++) choice.counts[grade_of_allocation(page, &capture->allocations[i])]++;
	hr__page_choice_settle(&choice, page->most);
	keep_peaks(writer);
	for (uint32_t i = 0; i < capture->allocation_count; i++)
		if (hr__page_choice_keeps(&choice, grade_of_allocation(page, &capture->allocations[i]))) writer->kept[i] = 1;
}

static uint64_t change_time(const hr__capture *capture, const hr__change *change)
{
	const hr__allocation *allocation = &capture->allocations[change->allocation];
	return change->frees ? allocation->end_ns : allocation->begin_ns;
}

/* ---- slices ---- */

static uint32_t slice_of(const struct change_writer *writer, uint64_t time_ns)
{
	double part = (double)time_ns / ((double)writer->capture->end_ns + 1) * writer->slices;
	return part < writer->slices ? (uint32_t)part : writer->slices - 1;
}

/* Computes the minimum of the bytes that are not kept, for each slice and device. */
static void sum_rest(struct change_writer *writer)
{
	const hr__capture *capture = writer->capture;
	uint64_t *now = writer->now;
	size_t devices = capture->device_count;
	uint32_t slice = 0;
	for (uint32_t i = 0; i < capture->change_count; i++) {
		const hr__change *change = &capture->changes[i];
		if (writer->kept[change->allocation]) continue;
		uint32_t device = hr__allocation_device(capture, change->allocation);
		for (uint32_t next = slice_of(writer, change_time(capture, change)); slice < next;)
			memcpy(&writer->rest[++slice * devices], now, devices * sizeof *now);
		if (change->frees) now[device] -= capture->allocations[change->allocation].bytes;
		else now[device] += capture->allocations[change->allocation].bytes;
		if (now[device] < writer->rest[slice * devices + device]) writer->rest[slice * devices + device] = now[device];
	}
	while (++slice < writer->slices) memcpy(&writer->rest[slice * devices], now, devices * sizeof *now);
}

/* ---- writing ---- */

static void write_change(struct change_writer *writer, uint32_t code, uint64_t time_ns)
{
	hr__page_put(writer->page, code);
	hr__page_put(writer->page, time_ns - writer->time_ns);
	writer->time_ns = time_ns;
}

static uint32_t write_allocation(struct change_writer *writer, uint64_t time_ns, uint64_t bytes, uint64_t slack, uint32_t site,
                                 uint64_t address)
{
	address &= HR__PAGE_ADDRESS_MASK;
	write_change(writer, 0, time_ns);
	hr__page_put(writer->page, bytes);
	hr__page_put(writer->page, slack);
	hr__page_put(writer->page, site);
	hr__page_signed(&writer->page->stream, (int64_t)(address - writer->address));
	writer->address = address;
	return writer->allocations++;
}

/* Ends the previous slice's allocation and begins the next one, on each device where the rest differs. */
static void turn_slice(struct change_writer *writer, uint32_t slice)
{
	uint32_t devices = writer->capture->device_count;
	uint64_t time_ns = (uint64_t)((double)slice / writer->slices * ((double)writer->capture->end_ns + 1));
	if (time_ns < writer->time_ns) time_ns = writer->time_ns;
	for (uint32_t i = 0; i < devices; i++) {
		const uint64_t *rest = &writer->rest[(size_t)slice * devices + i];
		uint32_t *now = &writer->rest_numbers[i];
		if (slice > 0 && rest[0] == *(rest - devices)) continue;
		if (*now) write_change(writer, writer->allocations - (*now - 1), time_ns);
		*now = rest[0] ? 1 + write_allocation(writer, time_ns, rest[0], 0, writer->capture->site_count + i, 0) : 0;
	}
}

static void advance_slices(struct change_writer *writer, uint64_t time_ns)
{
	if (writer->all_kept) return;
	for (uint32_t slice = slice_of(writer, time_ns); writer->slice <= slice; writer->slice++)
		turn_slice(writer, writer->slice);
}

static void write_kept_changes(struct change_writer *writer)
{
	const hr__capture *capture = writer->capture;
	for (uint32_t i = 0; i < capture->change_count; i++) {
		const hr__change *change = &capture->changes[i];
		const hr__allocation *allocation = &capture->allocations[change->allocation];
		uint64_t time_ns = change_time(capture, change);
		if (!writer->kept[change->allocation]) continue;
		advance_slices(writer, time_ns);
		if (time_ns < writer->time_ns) time_ns = writer->time_ns; /* the begin of a slice was rounded past it */
		if (change->frees) write_change(writer, writer->allocations - writer->numbers[change->allocation], time_ns);
		else
			writer->numbers[change->allocation] = write_allocation(writer, time_ns, allocation->bytes, allocation->slack,
			                                                     allocation->site, allocation->address);
	}
	advance_slices(writer, capture->end_ns);
}

/* The list of changes ends with a code that no change can have: a free of an allocation that does not exist. */
hr_status hr__page_write_changes(hr__page_writer *page)
{
	const hr__capture *capture = page->capture;
	uint32_t devices = capture->device_count;
	hr_status status = HR_OK;
	struct change_writer writer = { .page = page, .capture = capture };
	writer.slices = devices && SLICES > HR__PAGE_CELLS_MAX / devices ? HR__PAGE_CELLS_MAX / devices : SLICES;
	writer.kept = hr__view_alloc(capture->allocation_count, 1, &status);
	writer.numbers = hr__view_alloc(capture->allocation_count, sizeof *writer.numbers, &status);
	writer.rest = hr__view_alloc((size_t)writer.slices * devices, sizeof *writer.rest, &status);
	writer.now = hr__view_alloc(devices, sizeof *writer.now, &status);
	writer.rest_numbers = hr__view_alloc(devices, sizeof *writer.rest_numbers, &status);
	if (status == HR_OK) {
		choose_allocations(&writer);
		if (!writer.all_kept) sum_rest(&writer);
		write_kept_changes(&writer);
		hr__page_put(page, (uint64_t)writer.allocations + 1);
	}
	hr__view_free(writer.kept, capture->allocation_count, 1);
	hr__view_free(writer.numbers, capture->allocation_count, sizeof *writer.numbers);
	hr__view_free(writer.rest, (size_t)writer.slices * devices, sizeof *writer.rest);
	hr__view_free(writer.now, devices, sizeof *writer.now);
	hr__view_free(writer.rest_numbers, devices, sizeof *writer.rest_numbers);
	return status;
}
