/* page.h - a capture as one self-contained HTML page: memory over time, the peak, the map of regions, tables. It needs only a
 * browser: no network, no server, no other file.
 *
 * The page is a template (page.html, page.css, page_*.js), compiled into the library, with the capture's data embedded as
 * base64. */
#ifndef HR_PROFILE_PAGE_H
#define HR_PROFILE_PAGE_H

#include "analysis/capture/capture.h"

/* Writes the page to [path], by the rules of export_file.h: a file with mode 0600 that appears complete and replaces an older one,
 * a character device, or a descriptor of this process. HR_INVALID_ARGUMENT for a missing path, HR_IO, HR_NO_HOST_MEMORY. A failure
 * leaves an older file unchanged.
 *
 * Up to HR__PAGE_ALLOCATIONS allocations are included individually, about 20 bytes each; if there are more, the short-lived and
 * small ones are summed up. Other items beyond their limits are sampled from the whole time, and the page says so. Totals are those
 * of the whole capture. */
hr_status hr__page_write(const hr__capture *capture, const char *path);

#define HR__PAGE_ALLOCATIONS 600000u
#define HR__PAGE_OPS 600000u

/* hr__page_write with another limit on allocations and ops. For tests. */
hr_status hr__page_write_most(const hr__capture *capture, const char *path, uint32_t most);

/* The parts of the template; page_template.c. */
typedef struct hr__page_text {
	const char *text;
	size_t length;
} hr__page_text;

typedef enum hr__page_part {
	HR__PAGE_HTML,
	HR__PAGE_CSS,
	HR__PAGE_DATA_JS,
	HR__PAGE_CHART_JS,
	HR__PAGE_VIEW_JS,
	HR__PAGE_PART_COUNT
} hr__page_part;

hr__page_text hr__page_template(hr__page_part part);

#endif
