/* verdict.h - what the files of a verdict share: what is found out about a request, and who finds it. Private to them; under hr__report_lock.
 * oom.h has what others call.
 *
 *     verdict.c          the words, the kinds, and which one it is
 *     verdict_survey.c   how much is free and where, and what would have to go or move: fills in a judgement
 *     verdict_view.c     a region as it is, or as it would be (verdict_view.h)
 *     verdict_text.c     the verdict in words, and advice */
#ifndef HR_MEMORY_VERDICT_H
#define HR_MEMORY_VERDICT_H

#include "memory/oom.h"

#define HR__NOT_FOUND UINT64_MAX /* there is no way */

/* What each of the three limits leaves, in bytes. */
typedef struct hr__room {
	uint64_t allocator, device, card;
} hr__room;

/* All pools of the allocator, at one stage. */
typedef struct hr__survey {
	bool holds;                      /* some free stretch does */
	uint64_t pages;                  /* to be mapped where it takes the fewest; HR__NOT_FOUND = nowhere */
	uint64_t whole;                  /* whole pages there are */
	uint64_t free, live, given_back; /* bytes */
} hr__survey;

/* What is known of a request so far. */
typedef struct hr__judgement {
	hr__walk *walk;
	hr__allocator *allocator;
	uint64_t size, alignment; /* 0 where the granularity is enough */
	uint64_t need;            /* what must be had from the device for it, at the least; in whole units */
	uint64_t unit;            /* a page, or the granularity */
	bool small;               /* which pool it belongs to */
	uint32_t home;            /* region that grows for it; */
	bool fresh;               /* that region is not there yet: it would be one hole */
	hr__room room;            /* now, or in the trimmed state */
	bool kept;                /* the calling thread's cache has it */
	hr__survey now, trimmed, gone;
	uint64_t donors;    /* whole pages that may be moved to be stitched */
	uint64_t stitched;  /* pages; HR__NOT_FOUND = it cannot be had by that */
	bool lms;           /* tensors leave by themselves, */
	uint64_t host_room; /* and the host can take so many bytes of them */
	uint64_t leavers;   /* bytes of all of them, */
	uint64_t leaving;   /* and of those in the row that has the fewest; HR__NOT_FOUND = there is no row */
	uint64_t moved;     /* bytes of any live blocks; HR__NOT_FOUND likewise */
	uint64_t mended;    /* bytes of tensors that defragmentation would move; HR__NOT_FOUND = it does not help */
	hr__moving moving;  /* and whether it is on */
	const hr_custom_stats *custom; /* what an allocator that is the user's says of itself; NULL = nothing */
	uint64_t custom_left;          /* by its own limit; UINT64_MAX = it told of none */
	bool step_elsewhere;           /* the verdict's step_peak_bytes is of another allocator of the device */
} hr__judgement;

/* ---- what is found out (verdict_survey.c) ---- */

/* As it is: fills in [now] and [room]. */
void hr__survey_now(hr__judgement *j);
/* The trimmed state: fills in [trimmed] and [room]. */
void hr__survey_trimmed(hr__judgement *j);
/* In the trimmed state: fills in [stitched]. */
void hr__survey_stitching(hr__judgement *j);
/* In the trimmed state: fills in [lms], [host_room] and [leavers]. Bytes of tensors that would have to leave; HR__NOT_FOUND when that does
 * not help. */
uint64_t hr__survey_leaving(hr__judgement *j);
/* In the trimmed state: fills in [moved]. */
void hr__survey_sliding(hr__judgement *j);
/* Fills in [mended] and [moving]. */
void hr__survey_mending(hr__judgement *j);

/* For allocators that are not "bfc": fills in [room], as it is, and as it is when the device's bfc allocators are trimmed. */
void hr__survey_room(hr__judgement *j);
void hr__survey_room_of_others(hr__judgement *j);

/* Whether a free stretch holds the request, or memory grows by what is missing. [survey] and [room] are of the same stage. */
bool hr__survey_fits(const hr__judgement *j, const hr__survey *survey);
/* Whether any address of home would do, if everything there were free. */
bool hr__survey_has_addresses(hr__judgement *j);

/* The least of what the three limits leave, in whole units. */
uint64_t hr__judgement_room(const hr__judgement *j);
/* UINT64_MAX where it would be more. */
uint64_t hr__sum_of(uint64_t a, uint64_t b);

/* ---- whose limit it is (verdict.c) ---- */

/* The allocator may have less than all that its device may. */
bool hr__has_own_limit(const hr__allocator *allocator);
/* The logical device is a part of its card. */
bool hr__is_part(const hr__allocator *allocator);

/* ---- in words (verdict_text.c) ---- */

/* Fills in text and advice of a verdict whose other fields are there. */
void hr__verdict_say(const hr__judgement *j, hr_verdict *verdict);

#endif
