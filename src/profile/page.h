/* page.h - a capture as one HTML file that explains itself: memory over time, the peak, the map of regions, tables. It needs a browser and nothing
 * else: no network, no server, no other file.
 *
 * The page is a template (page.html, page.css, page_*.js), part of the library, with the capture's data in its middle as base64. */
#ifndef HR_PROFILE_PAGE_H
#define HR_PROFILE_PAGE_H

#include "profile/capture.h"

/* Writes the page to [path]: a file that only its user can read and that appears whole, in the place of one that had the name; or a pipe or device
 * that is there. HR_INVALID_ARGUMENT for no path, HR_IO, HR_NO_HOST_MEMORY. A failure leaves what was there.
 * Up to HR__PAGE_ALLOCATIONS allocations are in it one by one, about 20 bytes each; of more, those that are brief and small are summed up. What else
 * there is too much of is chosen from all over the time, and the page says so; its totals are those of the whole capture. */
hr_status hr__page_write(const hr__capture *capture, const char *path);

#define HR__PAGE_ALLOCATIONS 600000u
#define HR__PAGE_OPS 600000u

/* The same with another limit on allocations and ops. For tests. */
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
