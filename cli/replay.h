/* replay.h - what a replay found out, between the parts of `headroom replay`. */
#ifndef HR_CLI_REPLAY_H
#define HR_CLI_REPLAY_H

#include "find_limit.h"
#include "measure.h"

typedef struct hr__replay {
	const char *path;
	hr__tape tape;
	hr__program program;
	hr__setup setup;
	hr__trial trial;
	hr__limit_answer least; /* limit 0: not asked for */
	uint64_t least_remapped; /* pages that were mapped side by side to run at it */
	hr__speed speed;
	bool timed; /* speed is filled in */
} hr__replay;

/* Print it to standard output. */
void hr__replay_json(const hr__replay *replay);
hr_status hr__replay_text(const hr__replay *replay, bool picture);
/* Memory over time, and the regions at the peak. */
hr_status hr__replay_picture(const hr__replay *replay);

#endif
