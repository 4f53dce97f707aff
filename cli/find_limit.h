/* find_limit.h - the least memory in which a program runs. */
#ifndef HR_CLI_FIND_LIMIT_H
#define HR_CLI_FIND_LIMIT_H

#include "measure.h"

typedef struct hr__limit_answer {
	uint64_t limit; /* the program runs at it and at every higher limit that was tried; in whole pages, to 0.1% of the peak */
	uint64_t lowest_success;  /* it also ran here; below limit when success is not monotonic, else the same */
	uint64_t highest_failure; /* the highest limit tried at which it did not; 0: it ran at all */
	uint32_t runs;            /* how many limits were tried */
} hr__limit_answer;

/* [setup]'s own limit is ignored. [reserved] is what the program takes when nothing limits it: where to start looking. */
hr_status hr__find_limit(const hr__setup *setup, uint64_t reserved, hr__limit_answer *out);

#endif
