/* ranks.h - the recordings of a job's ranks, read as one.
 *
 * Captures are read one after the other, and only a summary of each is kept: a job may have many ranks.
 *
 *     lag         of a step of a rank: what its streams waited for restores, and for a plan, beyond the median of all ranks in that step. The time of a step does not tell the slow rank, because the others wait for it in collectives
 *     straggler   a step of a rank whose lag is more than 5% of the step's median time */
#ifndef HR_ANALYSIS_RANKS_H
#define HR_ANALYSIS_RANKS_H

#include "analysis/capture/capture.h"
#include "headroom_analysis.h"

#define HR__RANKS_LANE 400u  /* intervals of a lane */
#define HR__RANKS_LAG_PART 20u /* a straggler's lag is more than 1/20 of the step */

typedef struct hr__rank_step {
	uint64_t number;
	uint64_t begin_ns, ns; /* since the rank's recording began; ns is 0 if the step did not end */
	uint64_t wait_ns;      /* stalls and pauses for plans */
	uint64_t lag_ns;       /* set by hr__ranks_finish */
	bool straggler;
} hr__rank_step;

typedef struct hr__rank_run {
	char path[256];     /* for messages; its end if it is longer */
	hr__rank rank;
	uint32_t process;
	char writer[32];
	bool complete;
	uint64_t start_wall_ns, end_ns, lost;

	/* the device with the highest peak, host pools aside */
	char device[32];
	uint64_t peak_bytes, peak_ns, limit_bytes; /* limit 0: unknown */
	hr_name peak_op;                           /* that holds most at the peak */
	uint64_t peak_op_bytes;
	uint64_t lane[HR__RANKS_LANE];             /* most bytes in use in each interval of [end_ns] */

	uint64_t refused, out_bytes, in_bytes, wait_ns; /* of all devices */
	hr__rank_step *steps;
	uint32_t step_count, step_capacity;
	uint64_t median_ns;                        /* of the steps that ended */
	uint64_t stragglers, lag_ns;               /* set by hr__ranks_finish */
} hr__rank_run;

typedef struct hr__ranks {
	hr__rank_run **runs;           /* by rank, after hr__ranks_finish */
	uint32_t count, capacity;
	uint32_t highest;              /* index of the run with the highest peak; set by hr__ranks_finish */
	uint64_t median_ns;            /* median time of a step */
} hr__ranks;

/* Adds a recording. [path] names it in messages. HR_INVALID_ARGUMENT: it is of another program, older than ranks, of another job, or of a rank that
 * was added already; the message says which. HR_NOT_READY: its process was not a rank, such as the launcher's; the caller may go on without it.
 * HR_NO_HOST_MEMORY. */
hr_status hr__ranks_add(hr__ranks *ranks, const hr__capture *capture, const char *path);

/* Sorts by rank and finds stragglers. HR_NO_HOST_MEMORY. */
hr_status hr__ranks_finish(hr__ranks *ranks);
void hr__ranks_free(hr__ranks *ranks);

/* Writes tables or one JSON object. [options]: width, colour, utf8, max_rows. */
hr_status hr__ranks_write(const hr__ranks *ranks, const hr_profile_options *options, hr_profile_format format, hr_profile_writer write, void *context);

/* Writes an HTML page with a lane for each rank, which needs no network and no scripts. HR_IO, HR_NO_HOST_MEMORY. */
hr_status hr__ranks_page(const hr__ranks *ranks, const char *path);

#endif
