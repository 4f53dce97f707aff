/* verdict.h - shared by the files that compute a verdict. Private to them; under hr__report_lock. oom.h has the calls for other
 * files.
 *
 *     verdict.c          the definitions, the kinds, and the choice of the kind
 *     verdict_survey.c   how much is free and where, and what would have to be evicted or moved: fills in a judgement
 *     verdict_region.c     a region as it is, or as it would be (verdict_region.h)
 *     verdict_text.c     text and advice */
#ifndef HR_MEMORY_VERDICT_H
#define HR_MEMORY_VERDICT_H

#include "core/memory/oom/oom.h"

#define HR__NOT_FOUND UINT64_MAX /* there is no solution */

/* What each of the three limits leaves, in bytes. */
typedef struct hr__room {
	uint64_t allocator, device, card;
} hr__room;

/* Totals over all pools of the allocator, at one stage. */
typedef struct hr__survey {
	bool holds;                      /* a free range holds the request */
	uint64_t pages;                  /* fewest pages to map for the request; HR__NOT_FOUND = it fits in no hole */
	uint64_t whole;                  /* number of whole pages */
	uint64_t free, live, given_back; /* bytes */
} hr__survey;

/* What is known about a request so far. */
typedef struct hr__judgement {
	hr__walk *walk;
	hr__allocator *allocator;
	uint64_t size, alignment; /* alignment 0: the granularity is enough */
	uint64_t need;            /* least bytes that the device must provide for it, in whole units */
	uint64_t unit;            /* a page, or the granularity */
	bool small;               /* it belongs to a small pool */
	uint32_t home;            /* region that grows for it */
	bool fresh;               /* region [home] does not exist yet: it would be one hole */
	hr__room room;            /* now, or in the trimmed state */
	bool kept;                /* the calling thread's cache has a chunk for it */
	hr__survey now, trimmed, evicted; /* [evicted]: with every evictable block free */
	uint64_t donors;    /* whole pages that may be moved by stitching */
	uint64_t stitched;  /* pages to stitch; HR__NOT_FOUND = stitching does not help */
	bool lms;           /* tensors are evicted automatically */
	uint64_t host_room; /* bytes that the host can take */
	uint64_t evictable; /* bytes of all evictable blocks */
	hr__droppable droppable; /* those that recipes compute again */
	uint64_t evicting;  /* bytes of evictable blocks in the run with the fewest; HR__NOT_FOUND = there is no run */
	uint64_t moved;     /* bytes of live blocks of any kind to move; HR__NOT_FOUND = there is no window */
	uint64_t defragged; /* bytes of tensors that defragmentation would move; HR__NOT_FOUND = it does not help */
	hr__moving moving;  /* whether defragmentation is on, and its budget */
	const hr_custom_stats *custom; /* statistics of a custom allocator; NULL = none */
	uint64_t custom_left;          /* left by its own limit; UINT64_MAX = it has none */
	bool step_elsewhere;           /* the verdict's step_peak_bytes is from another allocator of the device */
} hr__judgement;

/* ---- finding the numbers (verdict_survey.c) ---- */

/* The present state: fills in [now] and [room]. */
void hr__survey_now(hr__judgement *j);
/* The trimmed state: fills in [trimmed] and [room]. */
void hr__survey_trimmed(hr__judgement *j);
/* In the trimmed state: fills in [stitched]. */
void hr__survey_stitching(hr__judgement *j);
/* In the trimmed state: fills in [lms], [host_room], [evictable] and [droppable]. Returns the bytes of tensors that would have to be evicted;
 * HR__NOT_FOUND if eviction does not help. */
uint64_t hr__survey_eviction(hr__judgement *j);
/* In the trimmed state: fills in [moved]. */
void hr__survey_sliding(hr__judgement *j);
/* Fills in [defragged] and [moving]. */
void hr__survey_defrag(hr__judgement *j);

/* For allocators other than "bfc": fill in [room], in the present state and with the device's bfc allocators trimmed. */
void hr__survey_room(hr__judgement *j);
void hr__survey_room_of_others(hr__judgement *j);

/* Whether a free range holds the request, or memory can grow by what is missing. [survey] and [room] must be of the same stage. */
bool hr__survey_fits(const hr__judgement *j, const hr__survey *survey);
/* Whether home has addresses for the request if everything in it were free. */
bool hr__survey_has_addresses(hr__judgement *j);

/* The least of what the three limits leave, in whole units. */
uint64_t hr__judgement_room(const hr__judgement *j);
/* a + b, or UINT64_MAX on overflow. */
uint64_t hr__verdict_sum(uint64_t a, uint64_t b);

/* ---- limits (verdict.c) ---- */

/* The allocator's limit is below its device's. */
bool hr__verdict_has_own_limit(const hr__allocator *allocator);
/* The logical device is only a part of its card. */
bool hr__verdict_is_part(const hr__allocator *allocator);

/* ---- text (verdict_text.c) ---- */

/* Fills in text and advice of a verdict from its other fields. */
void hr__verdict_describe(const hr__judgement *j, hr_verdict *verdict);

#endif
