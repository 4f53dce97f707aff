/* outlook.h - predicts the time of a recorded step in which tensors are moved, or ops run again, or both: by the planner's model
 * (core/lms/plan/plan.h) and, for both, also by a forecast (forecast.h), in which the engine plays the step with recipes. */
#ifndef HR_CLI_OUTLOOK_H
#define HR_CLI_OUTLOOK_H

#include "plan/forecast.h"

typedef enum hr__outlook_means { HR__BY_MOVING, HR__BY_RECOMPUTING, HR__BY_BOTH, HR__OUTLOOK_MEANS } hr__outlook_means;

typedef struct hr__outlook_step {
	bool fits;
	uint64_t step_ns;
	uint64_t again_ns;            /* of ops that run again */
	uint64_t bytes_out, bytes_in; /* moved in a step */
	uint32_t again_ops, dropped;  /* ops that run again; times that a tensor is dropped */
} hr__outlook_step;

typedef struct hr__outlook {
	uint64_t limit;    /* bytes */
	uint64_t bound_ns; /* that moving alone adds at least to the time of the ops */
	hr__outlook_step by[HR__OUTLOOK_MEANS]; /* by the model */
	hr__outlook_step played;                /* both, by a forecast */
} hr__outlook;

/* Limits of the picture, in percent of the peak. */
#define HR__PICTURE_FROM 95u
#define HR__PICTURE_TO 30u
#define HR__PICTURE_BY 5u
#define HR__PICTURE_POINTS ((HR__PICTURE_FROM - HR__PICTURE_TO) / HR__PICTURE_BY + 1)

/* Predicts the step of [setup] at [limit] bytes. Fails like hr__forecast_make. */
hr_status hr__outlook_make(const hr__forecast_setup *setup, uint64_t limit, hr__outlook *out);

/* Draws time over memory as an SVG file: [count] outlooks from the highest limit to the lowest. [title] names the program. False if the
 * file could not be written; errno says why. */
bool hr__outlook_draw(const char *path, const char *title, const hr__forecast_facts *facts, uint64_t link, const hr__outlook *outlooks,
                      uint32_t count);

#endif
