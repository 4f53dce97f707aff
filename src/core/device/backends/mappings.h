/* mappings.h - bookkeeping of a software device: which pages and address ranges exist, and what is mapped where.
 *
 * The simulated and the emulated device use it to be strict. Errors that a real device answers with undefined behaviour or a crash
 * (mapping over a mapping, a page in two places, copying to an address without memory) are refused with HR_DEVICE_ERROR and a
 * message. The bookkeeping never touches the managed memory.
 *
 * Every function here is called under the device's own lock. */
#ifndef HR_DEVICE_MAPPINGS_H
#define HR_DEVICE_MAPPINGS_H

#include "headroom_backend.h"

typedef enum hr__range_kind {
	HR__RANGE_PAGES = 1, /* reserved addresses, in which pages are mapped and unmapped */
	HR__RANGE_PLAIN,     /* a plain allocation, backed by memory throughout */
	HR__RANGE_HOST       /* host memory that the device allocated */
} hr__range_kind;

typedef struct hr__range {
	uint64_t base, bytes;
	hr__range_kind kind;
	bool locked;           /* host memory: locked by the system */
	uint32_t mapped;       /* pages currently mapped */
	uint32_t leaf_entries; /* slots per leaf: a power of two */
	uint32_t leaf_count;
	uint32_t *
		*leaves; /* for each page of the range: 1 + index of the page mapped there, 0 = none; a leaf is allocated on first use */
	struct hr__range *next; /* for use by the owner after the range was removed */
} hr__range;

typedef struct hr__mappings {
	uint64_t page_bytes;
	hr__range **ranges; /* in address order */
	uint32_t range_count;
	uint32_t *pages; /* state of each page: see mappings.c */
	size_t range_capacity, page_capacity;
	uint32_t page_made; /* page numbers ever used */
	uint32_t page_free; /* list of destroyed pages; index + 1, 0 = none */
	uint32_t page_live; /* existing pages, without host pages */
	uint32_t page_host; /* existing host pages */
} hr__mappings;

void hr__mappings_init(hr__mappings *books, uint64_t page_bytes);
void hr__mappings_destroy(hr__mappings *books);

/* Adds a range, which must not overlap another. HR_NO_HOST_MEMORY. */
hr_status hr__mappings_add(hr__mappings *books, uint64_t base, uint64_t bytes, hr__range_kind kind, hr__range **out);

/* The range of [kind] that begins at [base] and has [bytes], with no page mapped; otherwise HR_DEVICE_ERROR. */
hr_status hr__mappings_whole(const hr__mappings *books, uint64_t base, uint64_t bytes, hr__range_kind kind, hr__range **out);

/* Removes a range; the caller then owns it and must free it. */
void hr__mappings_remove(hr__mappings *books, hr__range *range);
void hr__mappings_range_free(hr__range *range);

/* A page is named by its offset in a contiguous memory. Numbers of destroyed pages are reused. */
hr_status hr__mappings_page_create(hr__mappings *books, hr_page *page);
/* The same for a host page; its offset is in a separate memory. */
hr_status hr__mappings_host_page_create(hr__mappings *books, hr_page *page);
bool hr__mappings_is_host_page(const hr__mappings *books, hr_page page);
/* Whether a host page is mapped at [address]. */
bool hr__mappings_host_page_at(const hr__mappings *books, uint64_t address);
hr_status hr__mappings_page_destroy(hr__mappings *books, hr_page page);
/* HR_OK when the page exists and is not mapped. */
hr_status hr__mappings_page_check(const hr__mappings *books, hr_page page);

/* Records pages as mapped from [address] on. All or none. */
hr_status hr__mappings_map(hr__mappings *books, uint64_t address, const hr_page *pages, uint32_t count);
/* HR_OK when [count] pages are mapped from [address] on. */
hr_status hr__mappings_unmap_check(const hr__mappings *books, uint64_t address, uint32_t count);
void hr__mappings_unmap(hr__mappings *books, uint64_t address, uint32_t count);

/* HR_OK when all of the range is backed by device memory. [what] begins the message: "copy from". */
hr_status hr__mappings_access(const hr__mappings *books, uint64_t address, uint64_t bytes, const char *what);

/* For the host side of a copy, on a device whose addresses are disjoint from the host's. Fails when the range is device memory, or
 * begins in host memory of this device and extends beyond it. */
hr_status hr__mappings_host_access(const hr__mappings *books, uint64_t address, uint64_t bytes, const char *what);

#endif
