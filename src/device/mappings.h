/* mappings.h - the books of a device that is made of software: which pages exist, which ranges of addresses, what is mapped where.
 *
 * The simulated and the emulated device keep them to be strict: what a real device answers with undefined behaviour or a dead
 * process (mapping over a mapping, a page in two places, copying to an address with nothing behind it) they refuse with
 * HR_DEVICE_ERROR and a sentence. Keeping books never touches memory that is being managed.
 *
 * The owner locks: every function here is called under the device's own lock. */
#ifndef HR_DEVICE_MAPPINGS_H
#define HR_DEVICE_MAPPINGS_H

#include "headroom_backend.h"

typedef enum hr__range_kind {
	HR__RANGE_PAGES = 1, /* reserved addresses, in which pages come and go */
	HR__RANGE_PLAIN,     /* a plain allocation: memory all along */
	HR__RANGE_HOST       /* host memory that the device made */
} hr__range_kind;

typedef struct hr__range {
	uint64_t base, bytes;
	hr__range_kind kind;
	bool locked;           /* host memory: pinned by the system */
	uint32_t mapped;       /* pages mapped now */
	uint32_t leaf_entries; /* slots in a leaf: a power of two */
	uint32_t leaf_count;
	uint32_t *
		*leaves; /* for each page of the range: index of the page mapped there + 1, 0 = none; a leaf is made when first needed */
	struct hr__range *next; /* for the owner, once the range is out of the books */
} hr__range;

typedef struct hr__mappings {
	uint64_t page_bytes;
	hr__range **ranges; /* by address */
	uint32_t range_count, range_capacity;
	uint32_t *pages; /* state of each page: see mappings.c */
	uint32_t page_capacity;
	uint32_t page_made; /* pages that ever existed */
	uint32_t page_free; /* chain of pages that exist no more; index + 1, 0 = none */
	uint32_t page_live; /* pages that exist, those of the host not counted */
	uint32_t page_host; /* those */
} hr__mappings;

void hr__mappings_init(hr__mappings *books, uint64_t page_bytes);
void hr__mappings_destroy(hr__mappings *books);

/* Enters a range, which must not overlap another. HR_NO_HOST_MEMORY. */
hr_status hr__mappings_add(hr__mappings *books, uint64_t base, uint64_t bytes, hr__range_kind kind, hr__range **out);

/* The range of [kind] that begins at [base] and has [bytes], with no page in it; HR_DEVICE_ERROR otherwise. */
hr_status hr__mappings_whole(const hr__mappings *books, uint64_t base, uint64_t bytes, hr__range_kind kind, hr__range **out);

/* Takes a range out of the books; it then belongs to the caller, who frees it. */
void hr__mappings_remove(hr__mappings *books, hr__range *range);
void hr__range_free(hr__range *range);

/* A page is named by its offset in a memory that is page after page. Numbers of destroyed pages are used again. */
hr_status hr__mappings_page_create(hr__mappings *books, hr_page *page);
/* The same for a page of the host's memory: its offset is one in another memory. */
hr_status hr__mappings_host_page_create(hr__mappings *books, hr_page *page);
bool hr__mappings_is_host_page(const hr__mappings *books, hr_page page);
/* Whether a page of the host's memory is mapped at [address]. */
bool hr__mappings_host_page_at(const hr__mappings *books, uint64_t address);
hr_status hr__mappings_page_destroy(hr__mappings *books, hr_page page);
/* HR_OK when the page exists and is mapped nowhere. */
hr_status hr__mappings_page_check(const hr__mappings *books, hr_page page);

/* Enters pages as mapped from [address] on. All or none. */
hr_status hr__mappings_map(hr__mappings *books, uint64_t address, const hr_page *pages, uint32_t count);
/* HR_OK when [count] pages are mapped from [address] on. */
hr_status hr__mappings_unmap_check(const hr__mappings *books, uint64_t address, uint32_t count);
void hr__mappings_unmap(hr__mappings *books, uint64_t address, uint32_t count);

/* HR_OK when there is device memory behind all of the range. [what] begins the message: "copy from". */
hr_status hr__mappings_access(const hr__mappings *books, uint64_t address, uint64_t bytes, const char *what);

/* HR_OK unless the range begins in host memory of this device and does not end in it, or is device memory. For the host's side of a
 * copy on a device whose addresses cannot be mistaken for those of the host. */
hr_status hr__mappings_host_access(const hr__mappings *books, uint64_t address, uint64_t bytes, const char *what);

#endif
