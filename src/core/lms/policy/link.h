/* link.h - how fast copies between the device and the host go: the fastest that was seen is what the link can do. Private to the learned
 * policy; under the context's lock. */
#ifndef HR_LMS_LINK_H
#define HR_LMS_LINK_H

#include "core/lms/lms.h"

#define HR__LINK_COPIES 64u                     /* that are remembered until they are timed */
#define HR__LINK_TIMED_MIN (UINT64_C(4) << 20)  /* smaller copies tell little about the link */
#define HR__LINK_COPY_NS 20000u                 /* a copy takes this long on top */

typedef struct hr__link_copy {
	bool out;
	uint64_t mark, before; /* numbers of the marks after and before it */
	uint64_t bytes;
} hr__link_copy;

typedef struct hr__link {
	uint64_t out, in; /* bytes per second, the fastest seen; 0 = none yet */
	hr__link_copy copies[HR__LINK_COPIES];
	uint32_t copy_count;
} hr__link;

/* A copy was given to the out or in stream of the context. */
void hr__link_note(hr__link *link, hr__link_copy copy);
/* Times those that were noted and are done, and forgets them all. */
void hr__link_time(hr__link *link, const hr__lms *lms);
/* Bytes per second each way; a guess as long as no copy was timed. */
uint64_t hr__link_out(const hr__link *link);
uint64_t hr__link_in(const hr__link *link);

#endif
