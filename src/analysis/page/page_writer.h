/* page_writer.h - the data of a page: one stream of varints that page_data.js reads in the same order.
 *
 *     header       version, end of the trace, wall clock time of its begin in ms, lost, skipped, other_names, complete, limited;
 *                  the numbers of allocations, ops, frees, uses, steps, moves, refusals, regions and pauses in the trace, even if
 *                  not all of them follow
 *     strings      names, shapes and frames of call stacks that occur, once each, as bytes; everything below refers to them by number
 *     devices, allocators, sites
 *     changes      code and time since the previous change. Code 0: a new allocation, with its bytes, slack, site and the distance
 *                  from the previous address. Code k: a free of the k-th last allocation. The begin and end of an allocation are
 *                  the times of its changes
 *     op totals, ops, steps with the sums of each device, moves, refusals, regions, pauses
 *
 * Level of detail. The page draws a million events in milliseconds, but a file of gigabytes is not usable. If there are more
 * allocations than the limit, those with the largest area (bytes times lifetime) are kept, and all that are live at the peak of
 * their device. The rest is added up in slices of time (page_changes.c). So the page never shows more than was in use, and is exact at
 * the peak. The sums in tables (per site, op and step) are computed here, over everything.
 *
 * Everything else has a maximum too, and no list is simply cut at its end. Kept are the longest ops; the regions with the largest
 * area and all that were mapped at the peak of their device; and steps and refusals sampled from the whole time, including the
 * steps of the peaks. Moves are added up in slices of time. The header has the true numbers, and the page says what is left out. */
#ifndef HR_PAGE_PAGE_WRITER_H
#define HR_PAGE_PAGE_WRITER_H

#include "analysis/capture/capture.h"
#include "analysis/page/page_stream.h"

#define HR__PAGE_CELLS_MAX (UINT32_C(1) << 21) /* slices or steps, times devices; a file may claim 65,536 devices */
#define HR__PAGE_ADDRESS_MASK ((UINT64_C(1) << 53) - 1) /* a JavaScript number is exact up to 53 bits; no system has addresses above */

typedef struct hr__page_writer {
	const hr__capture *capture;
	hr__page_stream stream;
	uint32_t most;                     /* allocations, and ops */
	uint32_t *names, *shapes, *frames; /* number of a name, shape or frame in the page; 0 = does not occur */
	uint32_t name_count, shape_count, frame_count;
} hr__page_writer;

static inline void hr__page_put(hr__page_writer *page, uint64_t value)
{
	hr__page_number(&page->stream, value);
}

/* The end of the trace for what has not ended. */
static inline uint64_t hr__page_end_ns(const hr__page_writer *page, uint64_t end_ns)
{
	return end_ns == HR__NEVER ? page->capture->end_ns : end_ns;
}

static inline uint32_t hr__page_name(const hr__page_writer *page, hr_name name)
{
	return name < page->name_count ? page->names[name] : 0;
}

static inline uint64_t hr__page_op_ns(const hr__page_writer *page, const hr__op_run *op)
{
	return hr__page_end_ns(page, op->end_ns) - op->begin_ns;
}

/* The functions below write a part of the data each, in this order. They fail with HR_NO_HOST_MEMORY. */

/* ---- page_tables.c ---- */

void hr__page_write_strings(hr__page_writer *page);
void hr__page_write_devices(hr__page_writer *page);
/* In the page, the sites of the capture are followed by one site per device, for the rest. */
hr_status hr__page_write_sites(hr__page_writer *page);

/* ---- page_changes.c ---- */

hr_status hr__page_write_changes(hr__page_writer *page);

/* ---- page_tables.c ---- */

hr_status hr__page_write_op_totals(hr__page_writer *page);

/* ---- page_lists.c; steps are in page_steps.c ---- */

/* If there are too many ops, writes the longest. */
void hr__page_write_ops(hr__page_writer *page);
hr_status hr__page_write_steps(hr__page_writer *page);
/* If there are too many moves, those of one kind on one device are merged within each slice of time. */
hr_status hr__page_write_moves(hr__page_writer *page);
void hr__page_write_refusals(hr__page_writer *page);
/* Regions at a peak come first. */
void hr__page_write_regions(hr__page_writer *page);
/* If there are too many pauses, writes the longest. */
void hr__page_write_pauses(hr__page_writer *page);

#endif
