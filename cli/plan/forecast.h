/* forecast.h - predicts the time of a recorded step with less memory, by running Large Model Support on the simulated device.
 *
 * FACTS depend on the recording alone: peak, largest working set. A FORECAST is for one limit. The schedule is replayed through Large
 * Model Support: first up to HR__FORECAST_BEFORE steps before the requested one, then the requested one repeatedly. The time of the
 * last repetition is reported, because a step is planned from how the one before it went. After each step the host waits for the
 * device, as in a training loop that reads its loss.
 *
 * Every forecast starts with a fresh library, device and allocator, and shuts the library down at the end. */
#ifndef HR_CLI_FORECAST_H
#define HR_CLI_FORECAST_H

#include "plan/drive.h"
#include "terminal/term.h"

#define HR__FORECAST_BEFORE 16u
#define HR__FORECAST_GRANULARITY 256u /* to which the allocator rounds tensors */
#define HR__FORECAST_COPY_NS 20000u   /* overhead of each copy on the simulated device */

typedef struct hr__forecast_facts {
	uint64_t peak_bytes;  /* maximum bytes of tensors at a time in the step, with no evictions */
	uint64_t plain_ns;    /* time of the step's ops */
	uint64_t working_set_bytes; /* the largest of an op, in the step and in what is played before it: a lower bound of the limit */
	uint32_t working_set_op;    /* that op; HR__SCHEDULE_NONE = a tensor that is filled */
	uint32_t working_set_part;
} hr__forecast_facts;

/* The first step that is played before [part]. */
uint32_t hr__forecast_first(uint32_t part);

/* HR_NO_HOST_MEMORY. */
hr_status hr__forecast_facts_find(const hr__schedule *schedule, uint32_t part, hr__forecast_facts *out);

typedef struct hr__forecast_setup {
	const hr__schedule *schedule;
	uint32_t part;       /* the requested step */
	uint32_t repeats;    /* how often it is played */
	uint64_t limit;      /* bytes */
	uint64_t link;       /* bytes per second, each way */
	uint64_t page;       /* bytes */
	uint64_t map_ns;     /* host time for mapping a page */
	uint64_t host_limit; /* bytes; 0 = unlimited */
	const char *policy;
	bool recompute; /* tensors of pure ops have recipes */
	hr__progress *progress; /* may be NULL */
} hr__forecast_setup;

/* Tensors of one op that could be recomputed when needed instead of being moved. */
typedef struct hr__advice {
	hr_name op;
	uint32_t tensors;
	uint64_t bytes;
	uint64_t move_ns;    /* time on the link, both ways */
	uint64_t compute_ns; /* time of the op, divided among the tensors that it makes in proportion to their bytes */
} hr__advice;

typedef struct hr__forecast {
	bool fits;
	hr__drive_result stop;                   /* where it did not fit */
	char message[512];                       /* the engine's message in that case */
	uint64_t step_ns;                        /* time of the step */
	uint64_t bound_ns;                       /* lower bound of the time added to that of the ops */
	uint64_t bytes_out, bytes_in, evictions; /* in the step */
	uint64_t bytes_stitched;                 /* bytes of pages that were mapped anew in the step */
	uint64_t drops, recomputes, again_ns;    /* the same: tensors dropped, recipes run, and their time */
	hr_lms_stats stats; /* at the end of the step, or when it did not fit; num_steps 0 and so on if there were no tensors yet */
	hr__advice *advice; /* largest saving first */
	uint32_t advice_count;
} hr__forecast;

/* Finds the lowest limit in whole pages that runs, by replaying. The largest working set alone is too low: small and large blocks
 * have separate pages, and memory is fragmented. [setup]->limit is ignored. *limit is 0 when no limit up to [most] runs. Fails like
 * hr__forecast_make. */
hr_status hr__forecast_least(const hr__forecast_setup *setup, const hr__forecast_facts *facts, uint64_t most, uint64_t *limit);

/* If the step does not fit, returns HR_OK and fits = false. HR_BAD_LIMIT, HR_INVALID_ARGUMENT (policy), HR_NO_HOST_MEMORY. [out]
 * must be freed also after a failure. */
hr_status hr__forecast_make(const hr__forecast_setup *setup, hr__forecast *out);
void hr__forecast_free(hr__forecast *forecast);

#endif
