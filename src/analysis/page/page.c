/* page.c - writes the HTML page: the template, with the capture's data (page_writer.h) in it. */
#include "analysis/page/page.h"

#include <string.h>

#include "core/base/names.h"
#include "core/base/status.h"
#include "analysis/page/page_writer.h"
#include "analysis/view/view.h"

#define VERSION 6

static void write_header(hr__page_writer *page)
{
	const hr__capture *capture = page->capture;
	hr__page_put(page, VERSION);
	hr__page_put(page, capture->end_ns);
	hr__page_put(page, capture->start_wall_ns / 1000000);
	hr__page_put(page, capture->lost);
	hr__page_put(page, capture->skipped);
	hr__page_put(page, capture->other_names);
	hr__page_put(page, capture->complete);
	hr__page_put(page, capture->limited);
	hr__page_put(page, capture->allocation_count);
	hr__page_put(page, capture->op_count);
	hr__page_put(page, capture->change_count - capture->allocation_count);
	hr__page_put(page, capture->use_count);
	hr__page_put(page, capture->step_count);
	hr__page_put(page, capture->move_count);
	hr__page_put(page, capture->refusal_count);
	hr__page_put(page, capture->region_count);
	hr__page_put(page, capture->pause_count);
}

static hr_status write_data(hr__page_writer *page)
{
	hr_status status;
	write_header(page);
	hr__page_write_strings(page);
	hr__page_write_devices(page);
	if ((status = hr__page_write_sites(page))) return status;
	if ((status = hr__page_write_changes(page))) return status;
	if ((status = hr__page_write_op_totals(page))) return status;
	hr__page_write_ops(page);
	if ((status = hr__page_write_steps(page))) return status;
	if ((status = hr__page_write_moves(page))) return status;
	hr__page_write_refusals(page);
	hr__page_write_regions(page);
	hr__page_write_pauses(page);
	hr__page_flush(&page->stream);
	return HR_OK;
}

static void write_part(hr__page_writer *page, hr__page_part part)
{
	hr__page_text text = hr__page_template(part);
	hr__page_text_out(&page->stream, text.text, text.length);
}

/* Writes the template, with placeholders such as "@css@" replaced. */
static hr_status write_page(hr__page_writer *page)
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
	hr__page_writer *page = hr__view_alloc(1, sizeof *page, &status);
	if (status) return status;
	*page = (hr__page_writer){
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
