/* page_tables.c - the tables of a page: strings, devices, allocators, sites and the totals of ops. */
#include "analysis/page/page_writer.h"

#include <string.h>

#include "analysis/capture/frame_text.h"
#include "analysis/view/view.h"
#include "core/base/names.h"

/* ---- strings ---- */

static void mark_name(hr__page_writer *page, hr_name name)
{
	if (name < page->name_count) page->names[name] = 1;
}

static uint32_t shape_number(const hr__page_writer *page, hr_shape shape)
{
	return shape < page->shape_count ? page->shapes[shape] : 0;
}

static void mark_stack(hr__page_writer *page, hr_stack stack)
{
	uint16_t frames[HR_STACK_DEPTH_MAX];
	size_t count = hr__stack_frames(stack, frames);
	for (size_t i = 0; i < count; i++)
		if (frames[i] < page->frame_count) page->frames[frames[i]] = 1;
}

/* The number of frames, and the text of each. */
static void write_stack(hr__page_writer *page, hr_stack stack)
{
	uint16_t frames[HR_STACK_DEPTH_MAX];
	size_t count = hr__stack_frames(stack, frames);
	hr__page_put(page, count);
	for (size_t i = 0; i < count; i++) hr__page_put(page, frames[i] < page->frame_count ? page->frames[frames[i]] : 0);
}

static void mark_strings(hr__page_writer *page)
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
void hr__page_write_strings(hr__page_writer *page)
{
	uint32_t count = 1;
	mark_strings(page);
	if (page->name_count) page->names[0] = 0;
	if (page->shape_count) page->shapes[0] = 0;
	for (uint32_t i = 0; i < page->name_count; i++)
		if (page->names[i]) page->names[i] = count++;
	for (uint32_t i = 0; i < page->shape_count; i++)
		if (page->shapes[i]) page->shapes[i] = count++;
	for (uint32_t i = 0; i < page->frame_count; i++)
		if (page->frames[i]) page->frames[i] = count++;
	hr__page_put(page, count);
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

/* ---- devices and allocators ---- */

void hr__page_write_devices(hr__page_writer *page)
{
	const hr__capture *capture = page->capture;
	hr__page_put(page, capture->device_count);
	for (uint32_t i = 0; i < capture->device_count; i++) {
		const hr__capture_device *device = &capture->devices[i];
		hr__page_string(&page->stream, device->name, strnlen(device->name, sizeof device->name));
		hr__page_put(page, device->limit_bytes);
		hr__page_put(page, device->page_bytes);
		hr__page_put(page, device->peak_bytes);
		hr__page_put(page, device->peak_ns);
		hr__page_put(page, device->end_bytes);
	}
	hr__page_put(page, capture->allocator_count);
	for (uint32_t i = 0; i < capture->allocator_count; i++) {
		const hr__capture_allocator *allocator = &capture->allocators[i];
		hr__page_string(&page->stream, allocator->name, strnlen(allocator->name, sizeof allocator->name));
		hr__page_string(&page->stream, allocator->kind, strnlen(allocator->kind, sizeof allocator->kind));
		hr__page_put(page, allocator->device);
		hr__page_put(page, allocator->limit_bytes);
		hr__page_put(page, allocator->first_ns == HR__NEVER ? 0 : allocator->first_ns);
		hr__page_put(page, allocator->first_ns == HR__NEVER ? 0 : hr__page_end_ns(page, allocator->last_ns));
	}
}

/* ---- sites ---- */

struct site_sum {
	uint64_t count, bytes, lifetime_ns, largest, live_bytes;
};

static void sum_sites(const hr__page_writer *page, struct site_sum *sums)
{
	const hr__capture *capture = page->capture;
	for (uint32_t i = 0; i < capture->allocation_count; i++) {
		const hr__allocation *allocation = &capture->allocations[i];
		struct site_sum *sum = &sums[allocation->site];
		sum->count++;
		sum->bytes += allocation->bytes;
		sum->lifetime_ns += hr__page_end_ns(page, allocation->end_ns) - allocation->begin_ns;
		if (allocation->bytes > sum->largest) sum->largest = allocation->bytes;
		if (allocation->end_ns == HR__NEVER) sum->live_bytes += allocation->bytes;
	}
}

hr_status hr__page_write_sites(hr__page_writer *page)
{
	const hr__capture *capture = page->capture;
	hr_status status = HR_OK;
	struct site_sum *sums = hr__view_alloc(capture->site_count, sizeof *sums, &status);
	if (status) return status;
	sum_sites(page, sums);
	hr__page_put(page, capture->site_count);
	for (uint32_t i = 0; i < capture->site_count; i++) {
		const hr__site *site = &capture->sites[i];
		const char *dtype = hr_dtype_text(site->dtype);
		hr__page_put(page, hr__page_name(page, site->op));
		hr__page_put(page, hr__page_name(page, site->scope));
		hr__page_put(page, hr__page_name(page, site->tag));
		hr__page_put(page, shape_number(page, site->shape));
		hr__page_string(&page->stream, dtype, strlen(dtype));
		hr__page_put(page, site->allocator);
		hr__page_put(page, site->stream);
		write_stack(page, site->stack);
		hr__page_put(page, sums[i].count);
		hr__page_put(page, sums[i].bytes);
		hr__page_put(page, sums[i].lifetime_ns);
		hr__page_put(page, sums[i].largest);
		hr__page_put(page, sums[i].live_bytes);
	}
	hr__view_free(sums, capture->site_count, sizeof *sums);
	return HR_OK;
}

/* ---- totals of ops ---- */

struct op_sum {
	uint64_t runs, ns, device_ns;
};

hr_status hr__page_write_op_totals(hr__page_writer *page)
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
		sum->ns += hr__page_op_ns(page, op);
		sum->device_ns += op->device_ns;
	}
	hr__page_put(page, count);
	for (uint32_t i = 0; i < page->name_count; i++) {
		if (!sums[i].runs) continue;
		hr__page_put(page, hr__page_name(page, i));
		hr__page_put(page, sums[i].runs);
		hr__page_put(page, sums[i].ns);
		hr__page_put(page, sums[i].device_ns);
	}
	hr__view_free(sums, page->name_count, sizeof *sums);
	return HR_OK;
}
