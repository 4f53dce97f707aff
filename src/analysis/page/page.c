/* page.c - writes the HTML page: the template, and the capture as one stream of varints that page_data.js reads in the same order.
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
 * their device. The rest is added up in slices of time: a slice is one allocation with a site of its own, whose size is the minimum
 * of the rest during the slice. So the page never shows more than was in use, and is exact at the peak. The sums in tables (per
 * site, op and step) are computed here, over everything.
 *
 * Everything else has a maximum too, and no list is simply cut at its end. Kept are the longest ops; the regions with the largest
 * area and all that were mapped at the peak of their device; and steps and refusals sampled from the whole time, including the
 * steps of the peaks. Moves are added up in slices of time. The header has the true numbers, and the page says what is left out. */
#include "analysis/page/page.h"

#include <string.h>

#include "core/base/names.h"
#include "analysis/capture/frame_text.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "analysis/page/page_stream.h"
#include "analysis/view/view.h"

#define VERSION 6
#define SLICES 8192u
#define CELLS_MAX (UINT32_C(1) << 21) /* slices or steps, times devices; a file may claim 65,536 devices */
#define REFUSALS_MAX 10000u
#define REGIONS_MAX 200000u
#define PAUSES_MAX 10000u
#define MOVES_MAX 400000u
#define MOVE_KINDS 4u
#define STEPS_MAX 50000u
#define GRADES 512u                            /* of areas: four per power of two */
#define ADDRESS_MASK ((UINT64_C(1) << 53) - 1) /* a JavaScript number is exact up to 53 bits; no system has addresses above */

struct site_sum {
	uint64_t count, bytes, lifetime_ns, largest, live_bytes;
};

struct op_sum {
	uint64_t runs, ns, device_ns;
};

struct html_page {
	const hr__capture *capture;
	hr__page_stream stream;
	uint32_t most;
	uint32_t *names, *shapes, *frames; /* number of a name, shape or frame in the page; 0 = does not occur */
	uint32_t name_count, shape_count, frame_count, string_count;
	uint8_t *kept;     /* by allocation */
	uint32_t *numbers; /* by kept allocation: its number in the page */
	uint64_t *rest;    /* [slice * devices + device]: minimum of the bytes that are not kept */
	uint32_t slices;
	bool all_kept;
};

static uint64_t end_of(const struct html_page *page, uint64_t end_ns)
{
	return end_ns == HR__NEVER ? page->capture->end_ns : end_ns;
}

static void number(struct html_page *page, uint64_t value)
{
	hr__page_number(&page->stream, value);
}

/* ---- strings ---- */

static void mark_name(struct html_page *page, hr_name name)
{
	if (name < page->name_count) page->names[name] = 1;
}

static uint32_t name_number(const struct html_page *page, hr_name name)
{
	return name < page->name_count ? page->names[name] : 0;
}

static uint32_t shape_number(const struct html_page *page, hr_shape shape)
{
	return shape < page->shape_count ? page->shapes[shape] : 0;
}

static void mark_stack(struct html_page *page, hr_stack stack)
{
	uint16_t frames[HR_STACK_DEPTH_MAX];
	size_t count = hr__stack_frames(stack, frames);
	for (size_t i = 0; i < count; i++)
		if (frames[i] < page->frame_count) page->frames[frames[i]] = 1;
}

/* The number of frames, and the text of each. */
static void write_stack(struct html_page *page, hr_stack stack)
{
	uint16_t frames[HR_STACK_DEPTH_MAX];
	size_t count = hr__stack_frames(stack, frames);
	number(page, count);
	for (size_t i = 0; i < count; i++) number(page, frames[i] < page->frame_count ? page->frames[frames[i]] : 0);
}

static void mark_strings(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	for (uint32_t i = 0; i < capture->site_count; i++) {
		const hr__site *site = &capture->sites[i];
		mark_name(page, site->op);
		mark_name(page, site->scope);
		mark_name(page, site->tag);
		if (site->shape < page->shape_count) page->shapes[site->shape] = 1;
		mark_stack(page, site->stack);
	}
	for (uint32_t i = 0; i < capture->op_count; i++) {
		mark_name(page, capture->ops[i].op);
		mark_name(page, capture->ops[i].scope);
	}
}

/* String 0 is empty: no name, no shape. */
static void write_strings(struct html_page *page)
{
	uint32_t count = 1;
	if (page->name_count) page->names[0] = 0;
	if (page->shape_count) page->shapes[0] = 0;
	for (uint32_t i = 0; i < page->name_count; i++)
		if (page->names[i]) page->names[i] = count++;
	for (uint32_t i = 0; i < page->shape_count; i++)
		if (page->shapes[i]) page->shapes[i] = count++;
	for (uint32_t i = 0; i < page->frame_count; i++)
		if (page->frames[i]) page->frames[i] = count++;
	number(page, count);
	hr__page_string(&page->stream, "", 0);
	for (uint32_t i = 0; i < page->name_count; i++)
		if (page->names[i]) hr__page_string(&page->stream, hr_name_text(i), strlen(hr_name_text(i)));
	for (uint32_t i = 0; i < page->shape_count; i++) {
		char text[256];
		if (!page->shapes[i]) continue;
		size_t length = hr_shape_format(i, text, sizeof text);
		hr__page_string(&page->stream, text, length < sizeof text ? length : sizeof text - 1);
	}
	for (uint32_t i = 0; i < page->frame_count; i++) {
		char text[HR__FRAME_TEXT_BYTES];
		if (!page->frames[i]) continue;
		hr_frame frame = hr__frame_get(i);
		hr__frame_text(&frame, text);
		hr__page_string(&page->stream, text, strlen(text));
	}
}

/* ---- selection ---- */

/* The grade of an area: approximately its logarithm, from the exponent and the first bits of a double. */
static uint32_t grade_of(uint64_t bytes, uint64_t ns)
{
	double area = (double)bytes * (double)(ns + 1) + 1;
	uint64_t bits;
	memcpy(&bits, &area, sizeof bits);
	uint32_t grade = (uint32_t)(bits >> 49) - (1023u << 3);
	return grade < GRADES * 2 ? grade / 2 : GRADES - 1;
}

/* Selects which of many items are kept: those of the highest grades, and an even sample of the grade that fits only partly. First
 * every item is counted, then settle() is called, then stays() is called for every item in the same order. */
struct choice {
	uint64_t counts[GRADES];
	uint32_t grades;      /* this grade and all above are kept */
	uint64_t room, asked; /* in the grade below: number of items to keep, and number of calls so far */
};

/* Returns the number of items that are kept: [most], or all. */
static uint64_t settle(struct choice *choice, uint64_t most)
{
	uint64_t sum = 0;
	choice->grades = GRADES;
	while (choice->grades > 0 && sum + choice->counts[choice->grades - 1] <= most) sum += choice->counts[--choice->grades];
	choice->room = choice->grades ? most - sum : 0;
	return sum + choice->room;
}

static bool stays(struct choice *choice, uint32_t grade)
{
	if (grade + 1 != choice->grades) return grade >= choice->grades;
	uint64_t before = choice->asked++ * choice->room / choice->counts[grade];
	return choice->asked * choice->room / choice->counts[grade] > before;
}

static uint32_t grade_of_allocation(const struct html_page *page, const hr__allocation *allocation)
{
	return grade_of(allocation->bytes, end_of(page, allocation->end_ns) - allocation->begin_ns);
}

/* Marks allocations that are live at the peak of their device. */
static void keep_peaks(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	for (uint32_t i = 0; i < capture->change_count; i++) {
		const hr__change *change = &capture->changes[i];
		const hr__capture_device *device = &capture->devices[hr__allocation_device(capture, change->allocation)];
		if (device->peak_bytes && i <= device->peak_change) page->kept[change->allocation] = !change->frees;
	}
}

static void choose_allocations(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	struct choice choice = { 0 };
	page->all_kept = capture->allocation_count <= page->most;
	if (page->all_kept) {
		memset(page->kept, 1, capture->allocation_count);
		return;
	}
	for (uint32_t i = 0; i < capture->allocation_count; i++) choice.counts[grade_of_allocation(page, &capture->allocations[i])]++;
	settle(&choice, page->most);
	keep_peaks(page);
	for (uint32_t i = 0; i < capture->allocation_count; i++)
		if (stays(&choice, grade_of_allocation(page, &capture->allocations[i]))) page->kept[i] = 1;
}

static uint64_t change_time(const hr__capture *capture, const hr__change *change)
{
	const hr__allocation *allocation = &capture->allocations[change->allocation];
	return change->frees ? allocation->end_ns : allocation->begin_ns;
}

static uint32_t slice_of(const struct html_page *page, uint64_t time_ns)
{
	double part = (double)time_ns / ((double)page->capture->end_ns + 1) * page->slices;
	return part < page->slices ? (uint32_t)part : page->slices - 1;
}

/* Computes the minimum of the bytes that are not kept, for each slice and device. */
static void sum_rest(struct html_page *page, uint64_t *now)
{
	const hr__capture *capture = page->capture;
	size_t devices = capture->device_count;
	uint32_t slice = 0;
	for (uint32_t i = 0; i < capture->change_count; i++) {
		const hr__change *change = &capture->changes[i];
		if (page->kept[change->allocation]) continue;
		uint32_t device = hr__allocation_device(capture, change->allocation);
		for (uint32_t next = slice_of(page, change_time(capture, change)); slice < next;)
			memcpy(&page->rest[++slice * devices], now, devices * sizeof *now);
		if (change->frees) now[device] -= capture->allocations[change->allocation].bytes;
		else now[device] += capture->allocations[change->allocation].bytes;
		if (now[device] < page->rest[slice * devices + device]) page->rest[slice * devices + device] = now[device];
	}
	while (++slice < page->slices) memcpy(&page->rest[slice * devices], now, devices * sizeof *now);
}

/* ---- devices, allocators, sites ---- */

static void write_devices(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	number(page, capture->device_count);
	for (uint32_t i = 0; i < capture->device_count; i++) {
		const hr__capture_device *device = &capture->devices[i];
		hr__page_string(&page->stream, device->name, strnlen(device->name, sizeof device->name));
		number(page, device->limit_bytes);
		number(page, device->page_bytes);
		number(page, device->peak_bytes);
		number(page, device->peak_ns);
		number(page, device->end_bytes);
	}
	number(page, capture->allocator_count);
	for (uint32_t i = 0; i < capture->allocator_count; i++) {
		const hr__capture_allocator *allocator = &capture->allocators[i];
		hr__page_string(&page->stream, allocator->name, strnlen(allocator->name, sizeof allocator->name));
		hr__page_string(&page->stream, allocator->kind, strnlen(allocator->kind, sizeof allocator->kind));
		number(page, allocator->device);
		number(page, allocator->limit_bytes);
		number(page, allocator->first_ns == HR__NEVER ? 0 : allocator->first_ns);
		number(page, allocator->first_ns == HR__NEVER ? 0 : end_of(page, allocator->last_ns));
	}
}

static void sum_sites(const struct html_page *page, struct site_sum *sums)
{
	const hr__capture *capture = page->capture;
	for (uint32_t i = 0; i < capture->allocation_count; i++) {
		const hr__allocation *allocation = &capture->allocations[i];
		struct site_sum *sum = &sums[allocation->site];
		sum->count++;
		sum->bytes += allocation->bytes;
		sum->lifetime_ns += end_of(page, allocation->end_ns) - allocation->begin_ns;
		if (allocation->bytes > sum->largest) sum->largest = allocation->bytes;
		if (allocation->end_ns == HR__NEVER) sum->live_bytes += allocation->bytes;
	}
}

/* In the page, the sites of the capture are followed by one site per device, for the rest. */
static hr_status write_sites(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	hr_status status = HR_OK;
	struct site_sum *sums = hr__view_alloc(capture->site_count, sizeof *sums, &status);
	if (status) return status;
	sum_sites(page, sums);
	number(page, capture->site_count);
	for (uint32_t i = 0; i < capture->site_count; i++) {
		const hr__site *site = &capture->sites[i];
		const char *dtype = hr_dtype_text(site->dtype);
		number(page, name_number(page, site->op));
		number(page, name_number(page, site->scope));
		number(page, name_number(page, site->tag));
		number(page, shape_number(page, site->shape));
		hr__page_string(&page->stream, dtype, strlen(dtype));
		number(page, site->allocator);
		number(page, site->stream);
		write_stack(page, site->stack);
		number(page, sums[i].count);
		number(page, sums[i].bytes);
		number(page, sums[i].lifetime_ns);
		number(page, sums[i].largest);
		number(page, sums[i].live_bytes);
	}
	hr__view_free(sums, capture->site_count, sizeof *sums);
	return HR_OK;
}

/* ---- changes ---- */

struct change_writer {
	struct html_page *page;
	uint64_t time_ns, address;
	uint32_t allocations;   /* number written so far */
	uint32_t *rest_numbers; /* by device: number of its slice's allocation + 1; 0 = none */
	uint32_t slice;
};

static void write_change(struct change_writer *writer, uint32_t code, uint64_t time_ns)
{
	number(writer->page, code);
	number(writer->page, time_ns - writer->time_ns);
	writer->time_ns = time_ns;
}

static uint32_t write_allocation(struct change_writer *writer, uint64_t time_ns, uint64_t bytes, uint64_t slack, uint32_t site,
                                 uint64_t address)
{
	address &= ADDRESS_MASK;
	write_change(writer, 0, time_ns);
	number(writer->page, bytes);
	number(writer->page, slack);
	number(writer->page, site);
	hr__page_signed(&writer->page->stream, (int64_t)(address - writer->address));
	writer->address = address;
	return writer->allocations++;
}

/* Ends the previous slice's allocation and begins the next one, on each device where the rest differs. */
static void turn_slice(struct change_writer *writer, uint32_t slice)
{
	struct html_page *page = writer->page;
	uint32_t devices = page->capture->device_count;
	uint64_t time_ns = (uint64_t)((double)slice / page->slices * ((double)page->capture->end_ns + 1));
	if (time_ns < writer->time_ns) time_ns = writer->time_ns;
	for (uint32_t i = 0; i < devices; i++) {
		const uint64_t *rest = &page->rest[(size_t)slice * devices + i];
		uint32_t *now = &writer->rest_numbers[i];
		if (slice > 0 && rest[0] == *(rest - devices)) continue;
		if (*now) write_change(writer, writer->allocations - (*now - 1), time_ns);
		*now = rest[0] ? 1 + write_allocation(writer, time_ns, rest[0], 0, page->capture->site_count + i, 0) : 0;
	}
}

static void advance_slices(struct change_writer *writer, uint64_t time_ns)
{
	if (writer->page->all_kept) return;
	for (uint32_t slice = slice_of(writer->page, time_ns); writer->slice <= slice; writer->slice++)
		turn_slice(writer, writer->slice);
}

static void write_kept_changes(struct change_writer *writer)
{
	struct html_page *page = writer->page;
	const hr__capture *capture = page->capture;
	for (uint32_t i = 0; i < capture->change_count; i++) {
		const hr__change *change = &capture->changes[i];
		const hr__allocation *allocation = &capture->allocations[change->allocation];
		uint64_t time_ns = change_time(capture, change);
		if (!page->kept[change->allocation]) continue;
		advance_slices(writer, time_ns);
		if (time_ns < writer->time_ns) time_ns = writer->time_ns; /* the begin of a slice was rounded past it */
		if (change->frees) write_change(writer, writer->allocations - page->numbers[change->allocation], time_ns);
		else
			page->numbers[change->allocation] = write_allocation(writer, time_ns, allocation->bytes, allocation->slack,
			                                                     allocation->site, allocation->address);
	}
	advance_slices(writer, capture->end_ns);
}

/* The list of changes ends with a code that no change can have: a free of an allocation that does not exist. */
static hr_status write_changes(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	uint32_t devices = capture->device_count;
	hr_status status = HR_OK;
	page->slices = devices && SLICES > CELLS_MAX / devices ? CELLS_MAX / devices : SLICES;
	page->kept = hr__view_alloc(capture->allocation_count, 1, &status);
	page->numbers = hr__view_alloc(capture->allocation_count, sizeof *page->numbers, &status);
	page->rest = hr__view_alloc((size_t)page->slices * devices, sizeof *page->rest, &status);
	uint64_t *now = hr__view_alloc(devices, sizeof *now, &status);
	uint32_t *rest_numbers = hr__view_alloc(devices, sizeof *rest_numbers, &status);
	if (status == HR_OK) {
		struct change_writer writer = { .page = page, .rest_numbers = rest_numbers };
		choose_allocations(page);
		if (!page->all_kept) sum_rest(page, now);
		write_kept_changes(&writer);
		number(page, (uint64_t)writer.allocations + 1);
	}
	hr__view_free(page->kept, capture->allocation_count, 1);
	hr__view_free(page->numbers, capture->allocation_count, sizeof *page->numbers);
	hr__view_free(page->rest, (size_t)page->slices * devices, sizeof *page->rest);
	hr__view_free(now, devices, sizeof *now);
	hr__view_free(rest_numbers, devices, sizeof *rest_numbers);
	return status;
}

/* ---- ops ---- */

static uint64_t op_ns(const struct html_page *page, const hr__op_run *op)
{
	return end_of(page, op->end_ns) - op->begin_ns;
}

static hr_status write_op_totals(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	hr_status status = HR_OK;
	struct op_sum *sums = hr__view_alloc(page->name_count, sizeof *sums, &status);
	uint32_t count = 0;
	if (status) return status;
	for (uint32_t i = 0; i < capture->op_count; i++) {
		const hr__op_run *op = &capture->ops[i];
		if (op->op >= page->name_count) continue;
		struct op_sum *sum = &sums[op->op];
		count += sum->runs++ == 0;
		sum->ns += op_ns(page, op);
		sum->device_ns += op->device_ns;
	}
	number(page, count);
	for (uint32_t i = 0; i < page->name_count; i++) {
		if (!sums[i].runs) continue;
		number(page, name_number(page, i));
		number(page, sums[i].runs);
		number(page, sums[i].ns);
		number(page, sums[i].device_ns);
	}
	hr__view_free(sums, page->name_count, sizeof *sums);
	return HR_OK;
}

/* If there are too many ops, writes the longest. */
static void write_ops(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	struct choice choice = { 0 };
	uint64_t time_ns = 0;
	for (uint32_t i = 0; i < capture->op_count; i++) choice.counts[grade_of(1, op_ns(page, &capture->ops[i]))]++;
	number(page, settle(&choice, page->most));
	for (uint32_t i = 0; i < capture->op_count; i++) {
		const hr__op_run *op = &capture->ops[i];
		if (!stays(&choice, grade_of(1, op_ns(page, op)))) continue;
		hr__page_signed(&page->stream, (int64_t)(op->begin_ns - time_ns));
		number(page, op_ns(page, op));
		number(page, op->device_ns);
		number(page, name_number(page, op->op));
		number(page, name_number(page, op->scope));
		number(page, op->thread);
		time_ns = op->begin_ns;
	}
}

/* ---- steps ---- */

struct step_sum {
	uint64_t peak, allocations, bytes, left;
};

struct step_walk {
	struct html_page *page;
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
	struct html_page *page = walk->page;
	while (walk->change < step->first_change) walk_change(walk, 0, false);
	for (uint32_t i = 0; i < walk->devices; i++) walk->sums[i] = (struct step_sum){ .peak = walk->now[i] };
	for (uint32_t first = walk->allocations; walk->change < step->last_change;) walk_change(walk, first, true);
	number(page, step->number);
	number(page, step->begin_ns);
	number(page, end_of(page, step->end_ns) - step->begin_ns);
	for (uint32_t i = 0; i < walk->devices; i++) {
		number(page, walk->sums[i].peak);
		number(page, walk->sums[i].allocations);
		number(page, walk->sums[i].bytes);
		number(page, walk->sums[i].left);
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
	struct choice choice = { 0 };
	mark_peak_steps(capture, marks);
	for (uint32_t i = 0; i < capture->step_count; i++) choice.counts[marks[i]]++;
	uint64_t kept = settle(&choice, STEPS_MAX);
	walk->devices = kept && capture->device_count > CELLS_MAX / kept ? (uint32_t)(CELLS_MAX / kept) : capture->device_count;
	number(walk->page, walk->devices);
	number(walk->page, kept);
	for (uint32_t i = 0; i < capture->step_count; i++)
		if (stays(&choice, marks[i])) write_step(walk, &capture->steps[i]);
}

static hr_status write_steps(struct html_page *page)
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

/* ---- moves, refusals, regions ---- */

/* Moves of one kind on one device that are merged into one. */
struct move_sum {
	uint64_t time_ns, bytes, count;
	uint32_t site;
};

static uint32_t device_at(const hr__capture *capture, uint32_t site)
{
	return site == HR__NONE ? 0 : capture->allocators[capture->sites[site].allocator].device;
}

static void write_move(struct html_page *page, const struct move_sum *sum, uint32_t kind, uint64_t *time_ns)
{
	number(page, sum->count);
	number(page, kind);
	hr__page_signed(&page->stream, (int64_t)(sum->time_ns - *time_ns));
	number(page, sum->bytes);
	number(page, sum->site == HR__NONE ? 0 : (uint64_t)sum->site + 1);
	*time_ns = sum->time_ns;
}

static void write_each_move(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	uint64_t time_ns = 0;
	for (uint32_t i = 0; i < capture->move_count; i++) {
		const hr__move *move = &capture->moves[i];
		struct move_sum sum = { .time_ns = move->time_ns, .bytes = move->bytes, .count = 1, .site = move->site };
		write_move(page, &sum, (uint32_t)move->kind, &time_ns);
	}
}

/* Writes the sums of a finished slice. */
static void write_move_sums(struct html_page *page, struct move_sum *sums, size_t count, uint64_t *time_ns)
{
	for (size_t i = 0; i < count; i++) {
		if (sums[i].count) write_move(page, &sums[i], (uint32_t)(i % MOVE_KINDS) + 1, time_ns);
		sums[i].count = sums[i].bytes = 0;
	}
}

static void sum_moves(struct html_page *page, struct move_sum *sums, size_t count)
{
	const hr__capture *capture = page->capture;
	uint64_t slices = MOVES_MAX / count ? MOVES_MAX / count : 1, slice_ns = capture->end_ns / slices + 1, slice = 0, time_ns = 0;
	for (uint32_t i = 0; i < capture->move_count; i++) {
		const hr__move *move = &capture->moves[i];
		struct move_sum *sum = &sums[device_at(capture, move->site) * MOVE_KINDS + (uint32_t)move->kind - 1];
		if (move->time_ns / slice_ns != slice) write_move_sums(page, sums, count, &time_ns);
		slice = move->time_ns / slice_ns;
		if (!sum->count++) sum->time_ns = move->time_ns, sum->site = move->site;
		sum->bytes += move->bytes;
	}
	write_move_sums(page, sums, count, &time_ns);
}

/* If there are too many moves, those of one kind on one device are merged within each slice of time. */
static hr_status write_moves(struct html_page *page)
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
	number(page, 0);
	return HR_OK;
}

/* Grade of refusal [i]: 1 for the first in an interval of time and for the first after one on another device, so that bursts do not
 * displace them. */
static uint32_t grade_of_refusal(const hr__capture *capture, uint32_t i)
{
	const hr__refusal *now = &capture->refusals[i], *before = now - 1;
	uint64_t stretch_ns = capture->end_ns / (REFUSALS_MAX / 4) + 1;
	if (i == 0 || now->time_ns / stretch_ns != before->time_ns / stretch_ns) return 1;
	return device_at(capture, now->site) != device_at(capture, before->site);
}

static void write_refusals(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	struct choice choice = { 0 };
	for (uint32_t i = 0; i < capture->refusal_count; i++) choice.counts[grade_of_refusal(capture, i)]++;
	number(page, settle(&choice, REFUSALS_MAX));
	for (uint32_t i = 0; i < capture->refusal_count; i++) {
		const hr__refusal *refusal = &capture->refusals[i];
		if (!stays(&choice, grade_of_refusal(capture, i))) continue;
		number(page, refusal->time_ns);
		number(page, refusal->bytes);
		number(page, refusal->site == HR__NONE ? 0 : (uint64_t)refusal->site + 1);
	}
}

static uint32_t grade_of_region(const struct html_page *page, const hr__region_run *region)
{
	return grade_of(region->bytes, end_of(page, region->end_ns) - region->begin_ns);
}

static bool is_at_peak(const hr__capture *capture, const hr__region_run *region)
{
	const hr__capture_device *device = &capture->devices[capture->allocators[region->allocator].device];
	return device->peak_bytes && region->begin_ns <= device->peak_ns && device->peak_ns < region->end_ns;
}

static void write_region(struct html_page *page, const hr__region_run *region)
{
	number(page, region->begin_ns);
	number(page, region->end_ns == HR__NEVER ? 0 : region->end_ns - region->begin_ns + 1);
	number(page, region->address & ADDRESS_MASK);
	number(page, region->bytes);
	number(page, region->allocator);
}

/* Regions at a peak come first. */
static void write_regions(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	struct choice choice = { 0 };
	uint32_t at_peaks = 0;
	for (uint32_t i = 0; i < capture->region_count; i++) {
		if (is_at_peak(capture, &capture->regions[i])) at_peaks++;
		else choice.counts[grade_of_region(page, &capture->regions[i])]++;
	}
	number(page, at_peaks + settle(&choice, at_peaks < REGIONS_MAX ? REGIONS_MAX - at_peaks : 0));
	for (uint32_t i = 0; i < capture->region_count; i++)
		if (is_at_peak(capture, &capture->regions[i])) write_region(page, &capture->regions[i]);
	for (uint32_t i = 0; i < capture->region_count; i++) {
		const hr__region_run *region = &capture->regions[i];
		if (!is_at_peak(capture, region) && stays(&choice, grade_of_region(page, region))) write_region(page, region);
	}
}

static uint32_t grade_of_pause(const hr__pause *pause)
{
	return grade_of(1, pause->end_ns - pause->begin_ns);
}

/* If there are too many pauses, writes the longest. */
static void write_pauses(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	struct choice choice = { 0 };
	for (uint32_t i = 0; i < capture->pause_count; i++) choice.counts[grade_of_pause(&capture->pauses[i])]++;
	number(page, settle(&choice, PAUSES_MAX));
	for (uint32_t i = 0; i < capture->pause_count; i++) {
		if (!stays(&choice, grade_of_pause(&capture->pauses[i]))) continue;
		number(page, capture->pauses[i].begin_ns);
		number(page, capture->pauses[i].end_ns - capture->pauses[i].begin_ns);
	}
}

/* ---- the page ---- */

static void write_header(struct html_page *page)
{
	const hr__capture *capture = page->capture;
	number(page, VERSION);
	number(page, capture->end_ns);
	number(page, capture->start_wall_ns / 1000000);
	number(page, capture->lost);
	number(page, capture->skipped);
	number(page, capture->other_names);
	number(page, capture->complete);
	number(page, capture->limited);
	number(page, capture->allocation_count);
	number(page, capture->op_count);
	number(page, capture->change_count - capture->allocation_count);
	number(page, capture->use_count);
	number(page, capture->step_count);
	number(page, capture->move_count);
	number(page, capture->refusal_count);
	number(page, capture->region_count);
	number(page, capture->pause_count);
}

static hr_status write_data(struct html_page *page)
{
	hr_status status;
	mark_strings(page);
	write_header(page);
	write_strings(page);
	write_devices(page);
	if ((status = write_sites(page))) return status;
	if ((status = write_changes(page))) return status;
	if ((status = write_op_totals(page))) return status;
	write_ops(page);
	if ((status = write_steps(page))) return status;
	if ((status = write_moves(page))) return status;
	write_refusals(page);
	write_regions(page);
	write_pauses(page);
	hr__page_flush(&page->stream);
	return HR_OK;
}

static void write_part(struct html_page *page, hr__page_part part)
{
	hr__page_text text = hr__page_template(part);
	hr__page_text_out(&page->stream, text.text, text.length);
}

/* Writes the template, with placeholders such as "@css@" replaced. */
static hr_status write_page(struct html_page *page)
{
	hr__page_text html = hr__page_template(HR__PAGE_HTML);
	const char *at = html.text, *end = html.text + html.length;
	hr_status status = HR_OK;
	for (const char *mark; status == HR_OK && (mark = memchr(at, '@', (size_t)(end - at))); at = mark) {
		hr__page_text_out(&page->stream, at, (size_t)(mark - at));
		if (!strncmp(mark, "@css@", 5)) write_part(page, HR__PAGE_CSS), mark += 5;
		else if (!strncmp(mark, "@data.js@", 9)) write_part(page, HR__PAGE_DATA_JS), mark += 9;
		else if (!strncmp(mark, "@chart.js@", 10)) write_part(page, HR__PAGE_CHART_JS), mark += 10;
		else if (!strncmp(mark, "@view.js@", 9)) write_part(page, HR__PAGE_VIEW_JS), mark += 9;
		else if (!strncmp(mark, "@data@", 6)) status = write_data(page), mark += 6;
		else hr__page_text_out(&page->stream, mark++, 1);
	}
	hr__page_text_out(&page->stream, at, (size_t)(end - at));
	return status;
}

hr_status hr__page_write_most(const hr__capture *capture, const char *path, uint32_t most)
{
	hr_status status = HR_OK;
	if (!path || !*path) return hr__fail(HR_INVALID_ARGUMENT, "a page needs a path to write to");
	struct html_page *page = hr__view_alloc(1, sizeof *page, &status);
	if (status) return status;
	*page = (struct html_page){
		.capture = capture, .most = most, .name_count = hr__names_count(), .shape_count = hr__shapes_count(), .frame_count = hr__frames_count()
	};
	page->names = hr__view_alloc(page->name_count, sizeof *page->names, &status);
	page->shapes = hr__view_alloc(page->shape_count, sizeof *page->shapes, &status);
	page->frames = hr__view_alloc(page->frame_count, sizeof *page->frames, &status);
	if (!status) status = hr__export_file_open(path, &page->stream.file);
	if (page->stream.file) status = hr__export_file_close(page->stream.file, write_page(page));
	hr__view_free(page->names, page->name_count, sizeof *page->names);
	hr__view_free(page->shapes, page->shape_count, sizeof *page->shapes);
	hr__view_free(page->frames, page->frame_count, sizeof *page->frames);
	hr__view_free(page, 1, sizeof *page);
	return status;
}

hr_status hr__page_write(const hr__capture *capture, const char *path)
{
	return hr__page_write_most(capture, path, HR__PAGE_ALLOCATIONS);
}
