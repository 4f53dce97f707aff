/* forecast.h - what a step of a recorded program would take with less memory: the real engine, on the simulated device.
 *
 * Two parts. FACTS are of the recording alone: peak, least limit. A FORECAST is of one limit: the tape is driven through Large Model
 * Support, the steps before the one that is asked about first (the last HR__FORECAST_BEFORE of them) and then that one again and again; its
 * last time is what is told, because a step is planned from how the one before went. Each step ends with the host waiting for it, as a loop
 * does that reads its loss.
 *
 * Every forecast begins with a fresh library, device and allocator, and leaves the library shut down. */
#ifndef HR_CLI_FORECAST_H
#define HR_CLI_FORECAST_H

#include "drive.h"
#include "term.h"

#define HR__FORECAST_BEFORE 16u
#define HR__FORECAST_GRANULARITY 256u /* what the allocator rounds tensors to */
#define HR__FORECAST_COPY_NS 20000u   /* what a copy takes on top of its bytes on the simulated device */

typedef struct hr__forecast_facts {
	uint64_t peak_bytes;  /* most bytes of tensors at once in the step, with nothing moved */
	uint64_t plain_ns;    /* the ops of the step */
	uint64_t working_set_bytes; /* the largest of an op, in the step and in what is played before it: no limit below will do */
	uint32_t working_set_op;    /* that op; HR__USES_NONE = a tensor that is filled */
	uint32_t working_set_part;
} hr__forecast_facts;

/* The first step that is played before [part]. */
uint32_t hr__forecast_first(uint32_t part);

/* HR_NO_HOST_MEMORY. */
hr_status hr__forecast_facts_find(const hr__uses *uses, uint32_t part, hr__forecast_facts *out);

typedef struct hr__forecast_setup {
	const hr__uses *uses;
	uint32_t part;       /* the step that is asked about */
	uint32_t repeats;    /* how often it is played */
	uint64_t limit;      /* bytes */
	uint64_t link;       /* bytes per second, each way */
	uint64_t page;       /* bytes */
	uint64_t host_limit; /* bytes; 0 = as many as it takes */
	const char *policy;
	hr__progress *progress; /* may be NULL */
} hr__forecast_setup;

/* What could be computed again when it is needed, by the op that made it, instead of being moved. */
typedef struct hr__advice {
	hr_name op;
	uint32_t tensors;
	uint64_t bytes;
	uint64_t move_ns;    /* of the link, out and back */
	uint64_t compute_ns; /* of the op; several tensors that it makes share its time by their bytes */
} hr__advice;

typedef struct hr__forecast {
	bool fits;
	hr__drive_result stop;                   /* where it did not fit */
	char message[512];                       /* what the engine said then */
	uint64_t step_ns;                        /* what the step takes */
	uint64_t bound_ns;                       /* on top of its ops, whatever is moved */
	uint64_t bytes_out, bytes_in, evictions; /* in the step */
	hr_lms_stats stats; /* at its end, or when it did not fit; num_steps 0 and so on where there were no tensors yet */
	hr__advice *advice; /* what saves most first */
	uint32_t advice_count;
} hr__forecast;

/* The least limit in whole pages that runs, found by playing: the largest working set alone does not count whole pages, which small and
 * large blocks have of their own, nor what lies in the way. [setup]->limit is not looked at. *limit is 0 when none does up to [most]. Fails as
 * hr__forecast_make. */
hr_status hr__forecast_least(const hr__forecast_setup *setup, const hr__forecast_facts *facts, uint64_t most, uint64_t *limit);

/* Lack of room is no error: HR_OK and fits = false. HR_BAD_LIMIT, HR_INVALID_ARGUMENT (policy), HR_NO_HOST_MEMORY. To be freed, with or
 * without success. */
hr_status hr__forecast_make(const hr__forecast_setup *setup, hr__forecast *out);
void hr__forecast_free(hr__forecast *forecast);

#endif
