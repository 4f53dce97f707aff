/* find_limit.h - finds the lowest limit with which a program runs. */
#ifndef HR_CLI_FIND_LIMIT_H
#define HR_CLI_FIND_LIMIT_H

#include "replay/measure.h"

typedef struct hr__limit_answer {
	uint64_t limit; /* the program runs at this and every higher limit tried; whole pages, to 0.1% of the peak */
	uint64_t lowest_success;  /* lowest limit at which it ran; below [limit] if success is not monotonic, else equal */
	uint64_t highest_failure; /* highest limit tried at which it failed; 0: none */
	uint32_t runs;            /* number of limits tried */
} hr__limit_answer;

/* [setup]'s own limit is ignored. [reserved] is what the program reserves without a limit; the search starts there. */
hr_status hr__find_limit(const hr__setup *setup, uint64_t reserved, hr__limit_answer *out);

#endif
