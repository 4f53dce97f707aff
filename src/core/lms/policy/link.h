/* link.h - speed of copies between device and host: the mean of the copies that were timed, weighted by bytes; newer copies count more.
 * It is lower than the speed of the fastest copy, because copies in both directions slow each other down. Copies that took more than
 * twice as long as the fastest do not count: the host queued them late, for example because it had to pin memory. Copies below
 * HR__LINK_TIMED_MIN count only as long as none of that size was timed in their direction, and if they are slower than the guess: how
 * fast a fast link is, they do not tell. Private to the learned policy; under the context's lock. */
#ifndef HR_LMS_LINK_H
#define HR_LMS_LINK_H

#include "core/lms/lms.h"

#define HR__LINK_COPIES 64u                          /* remembered until they are timed, and as many small ones */
#define HR__LINK_TIMED_MIN (UINT64_C(4) << 20)       /* smaller copies say little about the link */
#define HR__LINK_TIMED_SMALLEST (UINT64_C(64) << 10) /* even smaller ones say nothing */
#define HR__LINK_COPY_NS 20000u                      /* fixed cost of a copy */

typedef struct hr__link_copy {
	bool out;
	uint64_t mark, before; /* numbers of the marks after and before it */
	uint64_t bytes;
} hr__link_copy;

typedef struct hr__link_speed {
	uint64_t bytes, ns; /* sums over copies; 0 = none yet */
	uint64_t fastest;   /* bytes per second */
} hr__link_speed;

typedef struct hr__link {
	hr__link_speed out, in;
	hr__link_speed small_out, small_in; /* of copies below HR__LINK_TIMED_MIN */
	hr__link_copy copies[2][HR__LINK_COPIES]; /* [1]: small ones */
	uint32_t copy_count[2];
} hr__link;

/* Notes a copy that was queued on the out or in stream. */
void hr__link_note(hr__link *link, hr__link_copy copy);
/* Times the noted copies that are done, and forgets all of them. */
void hr__link_time(hr__link *link, const hr__lms *lms);
/* Bytes per second in each direction; a guess until a copy was timed. */
uint64_t hr__link_out(const hr__link *link);
uint64_t hr__link_in(const hr__link *link);

#endif
