/* replay.h - the results of `headroom replay`, shared by the parts of the command. */
#ifndef HR_CLI_REPLAY_H
#define HR_CLI_REPLAY_H

#include "analysis/capture/facts.h"
#include "replay/find_limit.h"
#include "replay/measure.h"

typedef struct hr__replay {
	const char *path;
	hr__trace_facts trace;
	hr__program program;
	hr__setup setup;
	hr__trial trial;
	hr__limit_answer least; /* limit 0: not requested */
	uint64_t least_remapped; /* pages stitched in a run at that limit */
	hr__speed speed;
	bool timed; /* speed is filled in */
} hr__replay;

/* Print the results to standard output. */
void hr__replay_json(const hr__replay *replay);
hr_status hr__replay_text(const hr__replay *replay, bool picture);
/* Prints charts of memory over time and of the regions at the peak. */
hr_status hr__replay_picture(const hr__replay *replay);

#endif
