/* trial.h - tries sets of dropped gaps, and keeps the best. Private to the planner. */
#ifndef HR_LMS_PLAN_TRIAL_H
#define HR_LMS_PLAN_TRIAL_H

#include "core/lms/plan/recompute/drops.h"

/* A set of dropped gaps and brief tensors, with what it costs. */
typedef struct hr__drop_set {
	bool *dropped; /* by gap */
	bool *brief;   /* by tensor */
	uint64_t cost; /* UINT64_MAX = nothing was tried, or it is not possible */
} hr__drop_set;

typedef struct hr__drop_trial {
	const hr__plan_ring *ring;
	hr__plan_scratch scratch;
	hr__recipes recipes;
	hr__turns turns;
	hr__drops drops;
	uint64_t work; /* of planning moves, so far, in units of about 20 ns */
	hr__drop_set alone, both; /* the best by recomputing alone, and with moves */
} hr__drop_trial;

/* False if there is no memory. */
bool hr__trial_open(hr__drop_trial *trial, const hr__plan_ring *ring);
void hr__trial_close(hr__drop_trial *trial);

/* All work so far, in units of about 20 ns. */
uint64_t hr__trial_work(const hr__drop_trial *trial);

/* Drops the gaps of [set] in the turns, and no others. A set of which nothing was saved drops nothing. */
void hr__trial_use(hr__drop_trial *trial, const hr__drop_set *set);

/* Sets the gaps and tensors of [set] to those of the turns. */
void hr__trial_save(const hr__drop_trial *trial, hr__drop_set *set);

/* Tries the gaps that are dropped in the turns, without moves. The cost is the time of the step, or more than that of any step: the
 * bytes that do not fit. */
void hr__trial_alone(hr__drop_trial *trial);
/* The same for turns that have been made. */
void hr__trial_judge_alone(hr__drop_trial *trial);
bool hr__trial_fits_alone(const hr__drop_trial *trial);

/* Tries them with moves. *cost is the time of the step, and a little for copies; UINT64_MAX if it does not fit. HR_NO_HOST_MEMORY. */
hr_status hr__trial_both(hr__drop_trial *trial, uint64_t *cost);

/* Writes the plan for [set]. HR_NO_HOST_MEMORY; then there is nothing to free. */
hr_status hr__trial_write(hr__drop_trial *trial, const hr__drop_set *set, hr__plan *out);

#endif
